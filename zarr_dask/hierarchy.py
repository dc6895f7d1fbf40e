"""Changes of a hierarchy: where nodes may be, making room for them, removing and renaming them.

All of it works on documents and keys; what a node is to its users is the matter of `group` and
`array`. The order of the requests is the contract: a document makes a node visible, so documents
are written last and removed first.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from zarr_dask.errors import (
    ListingError,
    MetadataError,
    MixedFormatsWarning,
    NodeExistsError,
    NodeNotFoundError,
    StoreError,
    StoreKeyError,
)
from zarr_dask.formats.base import (
    ArrayMeta,
    Format,
    GroupMeta,
    NodeMeta,
    ReadOptions,
    ancestors,
    load_json,
    read_documents,
    where,
)
from zarr_dask.formats.consolidated import (
    Documents,
    consolidated_documents,
    consolidated_key,
    recorded_documents,
    warn_of_stale,
    without_consolidated,
)
from zarr_dask.formats.detect import FORMATS, formats_at, read_node
from zarr_dask.journal import check_no_output, discard_journals, forget_nodes_above
from zarr_dask.notices import warn
from zarr_dask.pool import for_each
from zarr_dask.site import Site, site_of
from zarr_dask.stores.asked import is_empty
from zarr_dask.stores.base import Store, is_far, join
from zarr_dask.stores.conditional import put_latest
from zarr_dask.stores.local import LocalStore
from zarr_dask.stores.urls import overlap
from zarr_dask.stores.wrappers import forkable
from zarr_dask.surroundings import array_around, check_no_link, file_in_the_way
from zarr_dask.walk import implied_formats, is_implied, walk, walk_documents

__all__ = [
    "check_place",
    "consolidate_group",
    "delete_node",
    "is_free",
    "is_shown_first",
    "prepare_above",
    "prepare_array_place",
    "prepare_place",
    "put_documents",
    "remove_leftovers",
    "rename_node",
    "stale_paths",
    "warn_of_mixture",
    "withdraw",
]


def _find_node(store: Store, path: str, options: ReadOptions | None = None) -> NodeMeta | None:
    """The metadata of the node at a path, of any format; None if there is none."""
    try:
        return read_node(store, path, None, options or ReadOptions())[1]
    except NodeNotFoundError:
        return None


# --- creating -------------------------------------------------------------------------------------


def check_place(
    store: Store, path: str, node_format: Format, *, overwrite: bool, is_group: bool = False
) -> None:
    """Whether a node may be created at a path; changes nothing.

    Raises
    ------
    NodeExistsError
        If something is there and may not be replaced, an array lies above, nodes lie below what
        shall be an array, or a file of something else is where its folder would be.
    StoreKeyError
        If the format has no nodes of such a name.
    """
    _check_names(store, path, node_format)
    _check_surroundings(store, path)
    for above in ancestors(path):
        _check_above(store, path, above)
    if overwrite:
        return
    if not is_group and is_implied(store, path):
        raise NodeExistsError(
            f"{where(store, path)} has no document, but nodes lie below it, and an array cannot "
            "hold other nodes. Choose another path, or pass overwrite=True to replace all of them."
        )
    if _is_taken(store, path, node_format):
        raise NodeExistsError(
            f"{where(store, path)} exists already and was left as it is. Pass overwrite=True to "
            "replace it, or open it with mode='r+' to write into it."
        )


def is_free(store: Store, path: str, node_format: Format) -> bool:
    """Whether an array may be created at a path without replacing anything."""
    try:
        check_place(store, path, node_format, overwrite=False)
    except NodeExistsError:
        return False
    return True


def _check_names(store: Store, path: str, node_format: Format) -> None:
    for name in path.split("/") if path else ():
        if not node_format.is_node_name(name):
            raise StoreKeyError(
                f"{name!r} in {where(store, path)} cannot be the name of a node in format "
                f"{node_format.name}."
            )


def _check_surroundings(store: Store, path: str) -> None:
    found = file_in_the_way(store, path)
    if found is not None:
        raise NodeExistsError(
            f"{where(store, path)} would be a folder, but {found} is a file, or a link that leads "
            "nowhere; it was left as it is. Choose another place, or remove it."
        )
    around = array_around(store)
    if around is not None:
        raise _inside(store, path, around)


def _check_above(store: Store, path: str, above: str) -> None:
    if isinstance(_find_node(store, above), ArrayMeta):
        raise _inside(store, path, where(store, above))


def _inside(store: Store, path: str, array: str) -> NodeExistsError:
    return NodeExistsError(
        f"{where(store, path)} would lie inside the array at {array}; an array cannot hold other "
        "nodes. Choose another path."
    )


def _is_taken(store: Store, path: str, node_format: Format) -> bool:
    try:
        found, meta = read_node(store, path, None, ReadOptions())
    except NodeNotFoundError:
        return False
    except MetadataError:
        return True  # documents that cannot be read are still somebody's
    is_implicit = isinstance(meta, GroupMeta) and meta.implicit
    return not (is_implicit and found.name == node_format.name)  # it may be given a document


def prepare_array_place(
    store: Store,
    path: str,
    node_format: Format,
    meta: ArrayMeta,
    *,
    overwrite: bool,
    site: Site | None = None,
) -> None:
    """Make room for an array: as `prepare_place`, and nothing is left that would be its values.

    Its document is put where the store takes no values without it (`is_shown_first`).

    Raises
    ------
    NodeExistsError, StoreKeyError
        As `check_place`.
    """
    site = site or site_of(store, path)
    room = prepare_place(store, path, node_format, overwrite=overwrite, is_group=False, site=site)
    if room.has_journals:
        discard_journals(store, path)
    prefix = node_format.data_prefix(path)
    if prefix not in room.emptied:
        remove_leftovers(site.store, prefix, meta)
    if is_shown_first(store):
        put_documents(store, node_format.documents(meta, path))


def is_shown_first(store: Store) -> bool:
    """Whether a new array's document is put before its values, for its owner to commit with them.

    Everywhere else it comes last, so that nobody takes the array for whole before it is.
    """
    return forkable(store) is not None


def withdraw(store: Store, path: str) -> None:
    """Remove a node whose document came first, because the job that was to write it has failed."""
    if is_shown_first(store) and formats_at(store, path):
        remove_node(store, path)


class Room(NamedTuple):
    """What is known of a place where there is room for a node."""

    emptied: frozenset[str] = frozenset()
    """Prefixes below which there is nothing."""
    has_journals: bool = True
    """Whether there may be journals of jobs that wrote there."""


def prepare_place(
    store: Store,
    path: str,
    node_format: Format,
    *,
    overwrite: bool,
    is_group: bool,
    warns: bool = True,
    site: Site | None = None,
) -> Room:
    """Make room for a node: remove what it replaces, create the groups above.

    Consolidated metadata above are out of date then, which is worth a warning unless the caller
    writes them anew (`warns`). Who has looked at the place just now hands on the `site`.

    Raises
    ------
    NodeExistsError, StoreKeyError
        As `check_place`.
    RankError
        If what is replaced belongs to the output of a simulation that is open.
    """
    site = site or site_of(store, path, below=overwrite or not is_group)
    check_place(site.store, path, node_format, overwrite=overwrite, is_group=is_group)
    room = Room(has_journals=not site.free_beside)
    if overwrite:
        room = _made_room(site, path)
    prepare_above(site.store, path, node_format)
    if warns:
        warn_of_stale(site.store, path, node_format)
    return room


def prepare_above(store: Store, path: str, node_format: Format) -> None:
    """Create the groups above a node, where there are none, and what the root must have."""
    for key, document in node_format.root_documents().items():
        if store.get(key) is None:
            store.set(key, [document])
    if node_format.has_implicit_groups:
        return
    for above in ancestors(path):
        try:
            found, _ = read_node(store, above, None, ReadOptions())
        except NodeNotFoundError:
            put_documents(store, node_format.documents(GroupMeta(), above))
        else:
            _warn_of_mixture(store, path, node_format, above, found)


def warn_of_mixture(store: Store, path: str, node_format: Format) -> None:
    """Warn if a group above a node is of another format, so that it does not show the node."""
    for above in () if node_format.has_implicit_groups else ancestors(path):
        with suppress(NodeNotFoundError):
            found, _ = read_node(store, above, None, ReadOptions())
            _warn_of_mixture(store, path, node_format, above, found)


def _warn_of_mixture(
    store: Store, path: str, node_format: Format, above: str, found: Format
) -> None:
    """A group shows the nodes of its own format only."""
    if found.name == node_format.name:
        return
    with suppress(MetadataError):
        if node_format.read(store, above, ReadOptions(), found={}) is not None:
            return
    warn(
        f"{where(store, path)} is of format {node_format.name}, the group at {where(store, above)} "
        f"of format {found.name}: readers of the group will not see it. Pass "
        f"format={found.name!r}, or choose another place.",
        MixedFormatsWarning,
    )


def put_documents(store: Store, documents: Mapping[str, bytes]) -> None:
    """Write documents in their order."""
    forget_nodes_above()
    for key, document in documents.items():
        store.set(key, [document])


def remove_leftovers(store: Store, prefix: str, meta: ArrayMeta) -> None:
    """Delete stored objects of a job that never finished: they are no values of a new array."""
    ndim = len(meta.shape)
    try:
        keys = list(store.list(prefix))
    except ListingError:
        return  # nobody can know what is there
    old = [key for key in keys if meta.keys.coords(key[len(prefix) :], ndim) is not None]
    for_each(store.delete, old, None)


# --- removing -------------------------------------------------------------------------------------


def delete_node(store: Store, path: str) -> None:
    """Delete the node at a path and all that lies below; of links below, the links alone.

    Raises
    ------
    NodeNotFoundError
        If there is none.
    LinkError
        If it is a link, or behind one.
    RankError
        If it belongs to the output of a simulation that is open, or holds one.
    """
    present = [node_format for node_format, _ in formats_at(store, path)]
    if not present:
        _refuse_nothing(store, path)
    check_no_link(store, path)
    check_no_output(store, path, below=True)
    remove_node(store, path)
    for node_format in present:
        warn_of_stale(store, path, node_format)


def remove_node(store: Store, path: str) -> None:
    """Delete a node and all that lies below, its documents first; files of no node stay.

    A reader that comes meanwhile finds no node rather than one with holes. What lies below an array
    of a draft, where that is possible, stays.
    """
    present = formats_at(store, path)
    discard_journals(store, path)
    for candidate, _ in present:
        _remove_documents(store, path, candidate)
    for candidate, meta in present:
        if isinstance(meta, ArrayMeta):
            _remove_objects(store, path, candidate, meta)
        else:
            _remove_below(store, path, candidate)


def _made_room(site: Site, path: str) -> Room:
    """Delete what is at a path and below it, with or without a document there."""
    store = site.store
    check_no_link(store, path)
    has_journals = not site.free_beside and check_no_output(store, path, below=True)
    found = formats_at(store, path)
    around = frozenset(prefix for candidate in FORMATS for prefix in candidate.prefixes(path))
    if is_far(store) and not found and all(is_empty(store, prefix) for prefix in around):
        return Room(around, has_journals)
    return Room(_remove_all(store, path, found), has_journals)


def _remove_all(
    store: Store, path: str, found: Iterable[tuple[Format, NodeMeta | None]]
) -> frozenset[str]:
    """Delete the nodes that were found at a path and all below it.

    Returns the prefixes below which there is nothing.
    """
    present = [candidate for candidate, _ in found]
    prefixes = {prefix for candidate in present for prefix in candidate.prefixes(path)}
    present += implied_formats(store, path, present, prefixes)
    for candidate in present:
        _remove_documents(store, path, candidate)
    prefixes |= {prefix for candidate in present for prefix in candidate.prefixes(path)}
    for prefix in sorted(prefixes):
        store.delete_prefix(prefix)
    return frozenset(prefixes)


def _remove_documents(store: Store, path: str, node_format: Format) -> None:
    forget_nodes_above()
    for key in (*node_format.node_keys(path), *(() if path else node_format.root_documents())):
        store.delete(key)


def _remove_below(store: Store, path: str, node_format: Format) -> None:
    for prefix in node_format.prefixes(path):
        store.delete_prefix(prefix)


def _remove_objects(store: Store, path: str, node_format: Format, meta: ArrayMeta) -> None:
    """Delete the stored objects of an array; of it alone, if there are documents below it."""
    data = node_format.data_prefix(path)
    others = [prefix for prefix in node_format.prefixes(path) if prefix != data]
    if any(next(iter(store.list(prefix)), None) is not None for prefix in others):
        remove_leftovers(store, data, meta)
    else:
        store.delete_prefix(data)


def _refuse_nothing(store: Store, path: str) -> None:
    keys = [key for candidate in FORMATS for key in candidate.node_keys(path)]
    raise NodeNotFoundError(where(store, path), keys, "Nothing was changed.")


# --- renaming -------------------------------------------------------------------------------------


def rename_node(store: Store, old: str, new: str) -> None:
    """Move a node and all that lies below to another path of the same store.

    In a local store the folder is renamed. Elsewhere stored objects are copied byte for byte, then
    documents from the deepest up, so that every node that can be seen is whole; then the old ones
    are removed. If copying fails, the copies are removed and the node stays where it is.

    Raises
    ------
    NodeNotFoundError
        If there is no node at `old`.
    NodeExistsError
        If anything is at `new`, or one path lies in the other.
    LinkError
        If either is a link, or behind one.
    RankError
        If it belongs to the output of a simulation that is open, or holds one.
    StoreKeyError
        If the format has no nodes of such a name.
    """
    present = [node_format for node_format, _ in formats_at(store, old)]
    if not present:
        _refuse_nothing(store, old)
    if not old or not new or overlap(old, new):
        raise NodeExistsError(
            f"{where(store, old)} cannot be renamed to {new!r}: the root of a hierarchy keeps its "
            "place, and a node cannot go into itself or to the place of a group above."
        )
    for path in (old, new):
        check_no_link(store, path)
    for node_format in present:
        check_place(store, new, node_format, overwrite=False, is_group=True)
        _check_free(store, new, node_format)
    check_no_output(store, old, below=True)
    discard_journals(store, old)
    if not _moved_at_once(store, old, new, present):
        _copy_node(store, old, new, present)
        remove_node(store, old)
    for node_format in present:
        warn_of_stale(store, old, node_format)
        warn_of_stale(store, new, node_format)


def _moved_at_once(store: Store, old: str, new: str, formats: Sequence[Format]) -> bool:
    """Whether the folder of a node could be renamed, where all of the node lies in one."""
    moves = {(f.prefixes(old), f.prefixes(new)) for f in formats}
    documents = [key for f in formats for key in f.node_keys(old)]
    (before, after), *others = moves
    if others or len(before) != 1 or not all(key.startswith(before[0]) for key in documents):
        return False
    if not isinstance(store, LocalStore):
        return False
    for node_format in formats:
        prepare_above(store, new, node_format)
    return store.move_prefix(before[0], after[0])


def _copy_node(store: Store, old: str, new: str, formats: Sequence[Format]) -> None:
    documents, objects = _keys_to_move(store, old, new, formats)
    done: list[str] = []

    def copy(pair: tuple[str, str]) -> None:
        value = store.get(pair[0])
        if value is not None:
            done.append(pair[1])
            store.set(pair[1], [value])

    try:
        for_each(copy, objects, None)
        for node_format in formats:
            prepare_above(store, new, node_format)
        for pair in documents:
            copy(pair)
    except BaseException:
        with suppress(StoreError):  # of a store that fails, the first error is what matters
            for key in reversed(done):
                store.delete(key)
        raise


def _check_free(store: Store, path: str, node_format: Format) -> None:
    for prefix in node_format.prefixes(path):
        found = next(iter(store.list(prefix)), None)
        if found is not None:
            raise NodeExistsError(
                f"{where(store, path)} is no node, but {found!r} lies there already; nothing was "
                "renamed. Choose another path."
            )


def _keys_to_move(
    store: Store, old: str, new: str, formats: Sequence[Format]
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Old and new keys of documents, in the order of copying, and of everything else."""
    documents: dict[str, str] = {}
    moves: dict[str, str] = {}
    for node_format in formats:
        nodes = walk(store, old, node_format, ReadOptions())
        for below in [*sorted(nodes, key=lambda p: -p.count("/")), ""]:
            keys = zip(
                node_format.node_keys(join(old, below)),
                node_format.node_keys(join(new, below)),
                strict=True,
            )
            documents.update(reversed(list(keys)))  # the most telling one last
        for before, after in zip(node_format.prefixes(old), node_format.prefixes(new), strict=True):
            moves.update((key, after + key[len(before) :]) for key in store.list(before))
    objects = [(key, target) for key, target in moves.items() if key not in documents]
    return list(documents.items()), objects


# --- consolidated metadata ------------------------------------------------------------------------


def consolidate_group(store: Store, path: str, node_format: Format) -> None:
    """Write the consolidated metadata of a group.

    Where several processes do so at the same time, the last ones are those of what is there.

    Raises
    ------
    MetadataError
        If a document is no JSON object, or the format has no consolidated metadata.
    """
    key = consolidated_key(path, node_format) or node_format.node_keys(path)[-1]

    def made() -> bytes:
        documents = _all_documents(store, path, node_format)
        return consolidated_documents(store, path, node_format, documents)[key]

    put_latest(store, key, made)


def stale_paths(store: Store, path: str, node_format: Format, meta: GroupMeta) -> list[str]:
    """Paths below a group of which its consolidated metadata do not say what the documents say.

    Nodes that are new, gone, or changed; none if the group has no consolidated metadata.
    """
    store = without_consolidated(store)
    recorded = recorded_documents(store, path, node_format, meta, ReadOptions().limits)
    if recorded is None:
        return []
    present = _all_documents(store, path, node_format)
    own = set(node_format.node_keys(path)) - recorded.keys()
    differing = {
        key.rpartition("/")[0]
        for key in present.keys() | recorded.keys()
        if key not in own and _comparable(present.get(key)) != _comparable(recorded.get(key))
    }
    return sorted(
        below[len(path) :].lstrip("/")
        for below in differing
        if _meaning(store, below, node_format, present)
        != _meaning(store, below, node_format, recorded)
    )


def _meaning(
    store: Store, path: str, node_format: Format, documents: Documents
) -> dict[str, str] | None:
    """What documents say of a node, however they spell it; None if they do not speak of it."""
    found = {key: documents.get(key) for key in node_format.node_keys(path)}
    texts = {key: None if d is None else json.dumps(d).encode() for key, d in found.items()}
    try:
        meta = node_format.read(store, path, ReadOptions(), found=texts)
        if meta is None:
            return None
        written = node_format.documents(meta, path)
    except MetadataError:
        return {key: _comparable(document) for key, document in found.items()}
    return {key: _comparable(json.loads(text)) for key, text in written.items()}


def _all_documents(store: Store, path: str, node_format: Format) -> Documents:
    """The documents of a group and of all nodes below, as JSON objects by key.

    Groups without a document get one here: readers look for it.
    """
    options = ReadOptions()
    texts = read_documents(store, node_format.node_keys(path), options.limits)
    found = {key: text for key, text in texts.items() if text is not None}
    found |= walk_documents(store, path, node_format, options)
    documents = {key: load_json(store, key, text) for key, text in found.items()}
    group = {
        key.rpartition("/")[2]: text for key, text in node_format.documents(GroupMeta(), "").items()
    }
    nodes = {key.rpartition("/")[0] for key in documents}
    missing = {above for node in nodes for above in ancestors(node) if len(above) >= len(path)}
    for above in missing - nodes:
        for name, text in group.items():
            documents[join(above, name)] = load_json(store, join(above, name), text)
    return documents


def _comparable(document: Mapping[str, Any] | None) -> str:
    """A document as a text that is equal for equal documents; no attributes are none at all."""
    members = {k: v for k, v in (document or {}).items() if k != "consolidated_metadata"}
    return json.dumps(members, sort_keys=True)
