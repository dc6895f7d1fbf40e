"""Changes of a hierarchy: locations for new nodes, and creating, removing and renaming nodes.

All functions work on metadata and keys; `group` and `array` hold the nodes that users see. The
order of the requests matters: metadata make a node visible, so they are written last and removed
first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from secrets import token_hex
from typing import Any, NamedTuple, TypeVar

from zarr_dask._util.threads import parallel_for
from zarr_dask._util.warnings import warn
from zarr_dask.errors import (
    JobReplacedError,
    JobRunningError,
    ListingError,
    MetadataError,
    MixedFormatsWarning,
    NodeExistsError,
    NodeNotFoundError,
    StoreError,
    StoreKeyError,
)
from zarr_dask.formats.base import (
    DEFAULT_OPTIONS,
    ArrayMeta,
    Format,
    GroupMeta,
    NodeMeta,
    ReadOptions,
    ancestors,
    check_listed,
    load_json,
    read_documents,
    where,
)
from zarr_dask.formats.concurrent_edit import write_if_absent
from zarr_dask.formats.consolidated import (
    Documents,
    consolidated_documents,
    consolidated_key,
    recorded_documents,
    warn_stale_consolidated,
    without_consolidated,
)
from zarr_dask.formats.detect import FORMATS, formats_at, read_node
from zarr_dask.hierarchy.exclusive import editing, removing
from zarr_dask.hierarchy.locate import (
    PrefetchedLocation,
    enclosing_array,
    has_no_folder,
    prefetch_location,
)
from zarr_dask.hierarchy.walk import implicit_group_formats, is_implied, walk, walk_documents
from zarr_dask.journal import (
    NodeClaim,
    NodeClaims,
    begin_removal,
    check_not_claimed,
    claim_node,
    claiming_nodes,
    default_place,
    discard_journals,
    end_claims_below,
    end_removal,
    forget_nodes_above,
    jobs_creating,
    remove_empty_folders,
    stopped_removal,
)
from zarr_dask.journal.group_changes import check_not_changing
from zarr_dask.journal.location import check_no_link, is_bare
from zarr_dask.journal.node_claims import has_claims, sweep_remote_claims
from zarr_dask.stores.base import Buffer, Store, is_remote, join, list_sizes
from zarr_dask.stores.capabilities import capabilities_of
from zarr_dask.stores.compare_and_swap import cas_store_or_none, cas_update
from zarr_dask.stores.fenced_deletes import fenced_deletes
from zarr_dask.stores.file_backed import FileStore
from zarr_dask.stores.open import contains_or_equal
from zarr_dask.stores.real_location import blocking_file
from zarr_dask.stores.sessions import job_session
from zarr_dask.stores.wrapper import forkable
from zarr_dask.stores.wrappers.prefetched import asking_anew, is_empty

__all__ = [
    "REPLACE",
    "can_create",
    "check_can_create",
    "clear_room",
    "consolidate_group",
    "create_parent_groups",
    "delete_node",
    "make_room_for_array",
    "make_room_for_node",
    "put_new_node",
    "puts_metadata_first",
    "remove_leftovers",
    "rename_node",
    "rollback_metadata",
    "stale_paths",
    "warn_mixed_formats",
    "write_documents",
]


Opened = TypeVar("Opened")
_MOST_DIMENSIONS = 64  # of leftovers of other arrays


def _find_node(store: Store, path: str, options: ReadOptions | None = None) -> NodeMeta | None:
    """Return the metadata of the node at a path, of any format; None if there is none."""
    try:
        return read_node(store, path, None, options or DEFAULT_OPTIONS)[1]
    except NodeNotFoundError:
        return None


# --- creating -------------------------------------------------------------------------------------


REPLACE = "Pass overwrite=True to replace it, or open it with mode='r+' to write into it."


def check_can_create(
    store: Store,
    path: str,
    node_format: Format,
    *,
    overwrite: bool,
    is_group: bool = False,
    advice: str = REPLACE,
) -> None:
    """Raise if a node may not be created at a path, with advice; changes nothing.

    Raises
    ------
    NodeExistsError
        If a node exists there and may not be replaced, an array lies above, nodes lie below a new
        array, or a file is where the node's folder would be.
    StoreKeyError
        If the format does not allow such a name for a node.
    """
    _check_names(store, path, node_format)
    _check_surroundings(store, path)
    for above in ancestors(path):
        _check_above(store, path, above)
    if overwrite or has_no_folder(store, path, node_format):
        return
    if not is_group and is_implied(store, path):
        raise NodeExistsError(
            f"{where(store, path)} has no document, but nodes lie below it, and an array cannot "
            "hold other nodes. Choose another path, or pass overwrite=True to replace all of them."
        )
    if _is_taken(store, path, node_format):
        raise _exists(store, path, advice)


def _exists(store: Store, path: str, advice: str = REPLACE) -> NodeExistsError:
    return NodeExistsError(f"{where(store, path)} exists already and was left as it is. {advice}")


def _is_made(store: Store, path: str, node_format: Format) -> bool:
    """True if there is an array, or a group that has a document, by now."""
    try:
        found = node_format.read(store, path, DEFAULT_OPTIONS, found={})
    except MetadataError:
        return True
    return found is not None and not (isinstance(found, GroupMeta) and found.implicit)


def can_create(store: Store, path: str, node_format: Format) -> bool:
    """True if an array may be created at a path without replacing anything."""
    try:
        check_can_create(store, path, node_format, overwrite=False)
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
    found = blocking_file(store, path)
    if found is not None:
        raise NodeExistsError(
            f"{where(store, path)} would be a folder, but {found} is a file, or a link that leads "
            "nowhere; it was left as it is. Choose another place, or remove it."
        )
    around = enclosing_array(store)
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
        found, meta = read_node(store, path, None, DEFAULT_OPTIONS)
    except NodeNotFoundError:
        return False
    except MetadataError:
        return True  # metadata that cannot be read still belong to a node
    is_implicit = isinstance(meta, GroupMeta) and meta.implicit
    return not (is_implicit and found.name == node_format.name)  # it may be given metadata


def make_room_for_array(
    store: Store,
    path: str,
    node_format: Format,
    meta: ArrayMeta,
    *,
    overwrite: bool,
    prefetched: PrefetchedLocation | None = None,
    alone: bool = True,
    is_claimed: bool = False,
) -> None:
    """Prepare the location of a new array as `make_room_for_node` does; delete leftover objects.

    A caller that has claimed the location says so (`is_claimed`).

    The metadata of the array are written first if the store needs them first
    (`puts_metadata_first`). An array that is not shown alone (`alone`) leaves the groups above, and
    consolidated metadata, to the caller.

    Raises
    ------
    NodeExistsError, StoreKeyError
        See `check_can_create`.
    """
    prefetched = prefetched or prefetch_location(store, path)
    reserved = make_room_for_node(
        store,
        path,
        node_format,
        overwrite=overwrite,
        is_group=False,
        warns=alone,
        prefetched=prefetched,
        makes_above=alone,
    )
    if reserved.has_journals or node_format.data_prefix(path) not in reserved.emptied:
        with editing(store, path) as place:
            if not reserved.has_journals:
                check_not_claimed(place, where(store, path))  # by a job that has begun since
            elif is_remote(store) or not _is_made(store, path, node_format):
                discard_journals(store, path, place)
            if node_format.data_prefix(path) not in reserved.emptied:
                if is_claimed or not is_remote(store):
                    clear_room(prefetched.store, path, node_format, meta)
                else:
                    _clear_remote_room(prefetched.store, path, node_format, meta)
    if puts_metadata_first(store):
        write_documents(store, node_format.documents(meta, path))


def clear_room(store: Store, path: str, node_format: Format, meta: ArrayMeta) -> None:
    """Delete stored objects of an unfinished job, unless another process has made a node since.

    The caller is `editing` the path.

    Raises
    ------
    NodeExistsError
        If it has: the objects are its own.
    """
    if not is_remote(store) and _is_made(store, path, node_format):
        raise _exists(store, path)
    remove_leftovers(store, node_format.data_prefix(path), meta)


def _clear_remote_room(store: Store, path: str, node_format: Format, meta: ArrayMeta) -> None:
    """Delete stored objects of an unfinished job, which may be about to end, from a remote store.

    Raises
    ------
    NodeExistsError
        If it has ended: the objects are values.
    """
    if not _leftover_keys(store, node_format.data_prefix(path), meta):
        return
    claim, _ = claim_node(store, path, token_hex(16))
    try:
        if claim is not None and _is_made(store, path, node_format):
            raise _exists(store, path)
        remove_leftovers(store, node_format.data_prefix(path), meta)
    finally:
        if claim is not None:
            claim.give_up(leaves_journal=False)


def puts_metadata_first(store: Store) -> bool:
    """True if a new array's metadata are written before its values, and both committed together.

    In all other stores they are written last, so that readers never see an incomplete array.
    """
    return forkable(store) is not None


def rollback_metadata(store: Store, path: str) -> None:
    """Remove a node whose metadata were written first, because the job writing it has failed.

    A session that the job commits itself is dropped by it.
    """
    if puts_metadata_first(store) and job_session(store) is None and formats_at(store, path):
        remove_node(store, path)


class ReservedLocation(NamedTuple):
    """Facts about a location that was prepared for a node."""

    emptied: frozenset[str] = frozenset()
    """Prefixes that are known to be empty."""
    has_journals: bool = True
    """True if journals of earlier jobs may exist there."""


def make_room_for_node(
    store: Store,
    path: str,
    node_format: Format,
    *,
    overwrite: bool,
    is_group: bool,
    warns: bool = True,
    prefetched: PrefetchedLocation | None = None,
    makes_above: bool = True,
) -> ReservedLocation:
    """Prepare the location of a new node: remove the replaced node, create the groups above.

    This makes consolidated metadata above out of date, which gives a warning unless the caller
    rewrites them (`warns`). A caller that has just inspected the location passes it as
    `prefetched`, and one that shows several nodes at once makes the groups above itself
    (`makes_above`).

    Raises
    ------
    NodeExistsError, StoreKeyError
        See `check_can_create`.
    RankError
        If a replaced node belongs to a simulation output that is still open.
    """
    prefetched = prefetched or prefetch_location(store, path, below=overwrite or not is_group)
    check_can_create(prefetched.store, path, node_format, overwrite=overwrite, is_group=is_group)
    if has_no_folder(store, path, node_format):
        beside = default_place(store, path)
        reserved = ReservedLocation(frozenset(node_format.prefixes(path)), not is_bare(beside))
    else:
        reserved = ReservedLocation(has_journals=not prefetched.free_beside)
    if overwrite:
        with removing(store, path, free_beside=prefetched.free_beside) as has_journals:
            reserved = _reserve(prefetched, path, has_journals=has_journals)
    if makes_above:
        create_parent_groups(prefetched.store, path, node_format)
    if warns:
        warn_stale_consolidated(prefetched.store, path, node_format)
    return reserved


def create_parent_groups(store: Store, path: str, node_format: Format) -> None:
    """Create missing groups above a node, and the metadata that the root must have."""
    for key, document in node_format.root_documents().items():
        if store.get(key) is None:
            store.set(key, [document])
    if node_format.has_implicit_groups:
        return
    missing: list[str] = []
    for above in ancestors(path):
        try:
            found, _ = read_node(store, above, None, DEFAULT_OPTIONS)
        except NodeNotFoundError:
            missing.append(above)
        else:
            _warn_mixed_formats(store, path, node_format, above, found)
    if missing:
        forget_nodes_above()
    for above in missing:
        write_if_absent(store, node_format.documents(GroupMeta(), above))


def warn_mixed_formats(store: Store, path: str, node_format: Format) -> None:
    """Warn if a group above a node is of another format, and therefore does not show the node."""
    for above in () if node_format.has_implicit_groups else ancestors(path):
        with suppress(NodeNotFoundError):
            found, _ = read_node(store, above, None, DEFAULT_OPTIONS)
            _warn_mixed_formats(store, path, node_format, above, found)


def _warn_mixed_formats(
    store: Store, path: str, node_format: Format, above: str, found: Format
) -> None:
    """Warn if a group is of another format than a node: it shows only nodes of its own format."""
    if found.name == node_format.name:
        return
    with suppress(MetadataError):
        if node_format.read(store, above, DEFAULT_OPTIONS, found={}) is not None:
            return
    warn(
        f"{where(store, path)} is of format {node_format.name}, the group at {where(store, above)} "
        f"of format {found.name}: readers of the group will not see it. Pass "
        f"format={found.name!r}, or choose another place.",
        MixedFormatsWarning,
    )


def put_new_node(
    store: Store,
    path: str,
    documents: Mapping[str, bytes],
    *,
    again: bool = False,
    claimed: bool = False,
    claim: NodeClaim | None = None,
) -> None:
    """Put the metadata of a new node, on the condition that nobody has made one meanwhile.

    Parameters
    ----------
    store, path
        The node.
    documents
        Its metadata; the last ones make it visible.
    again
        True if what has these metadata may have been made by an earlier call for the same node.
    claimed
        True if the caller has claimed its place, where claims pass.
    claim
        The claim of a caller that is no job to its place, in a remote store.

    Raises
    ------
    NodeExistsError
        If another process has made a node there.
    JobRunningError
        If a job makes one.
    JobReplacedError
        If a later job has taken the claim over.
    """
    forget_nodes_above()
    if claim is not None:
        claim.fence()
    *first, last = documents
    with editing(store, path) as place:
        if not (again or claimed):
            check_not_claimed(place, where(store, path))
        is_alone = is_remote(store) and (claimed or claim is not None)
        present = None if is_alone or not first else store.get(last)
        if present is not None and not (again and present == documents[last]):
            raise _exists(store, path)  # what lies at the first keys belongs to it
        for key in first:
            store.set(key, [documents[key]])
        tagged = cas_store_or_none(store, last)
        if tagged is None:
            store.set(last, [documents[last]])
        elif not tagged.set_if(last, [documents[last]], None) and not (
            again and store.get(last) == documents[last]
        ):
            raise _exists(store, path)


def write_documents(store: Store, documents: Mapping[str, bytes]) -> None:
    """Write metadata in the given order."""
    forget_nodes_above()
    for key, document in documents.items():
        store.set(key, [document])


def remove_leftovers(store: Store, prefix: str, meta: ArrayMeta) -> None:
    """Delete stored objects of an unfinished job, which a new array would read as values."""
    keys = _leftover_keys(store, prefix, meta)
    parallel_for(store.delete, keys, None)
    ndim = len(meta.shape)
    coords = meta.chunk_key_encoding.coords
    others = (key for key in keys if coords(key[len(prefix) :], ndim) is None)
    for folder in sorted({key.rpartition("/")[0] for key in others}, reverse=True):
        remove_empty_folders(store, f"{folder}/")


def _leftover_keys(store: Store, prefix: str, meta: ArrayMeta) -> list[str]:
    """Return the keys below a prefix that are those of stored objects."""
    try:
        keys = list(store.list(prefix))
    except ListingError:
        return []  # the keys there cannot be known
    return [key for key in keys if _is_object(key[len(prefix) :], meta)]


def _is_object(key: str, meta: ArrayMeta) -> bool:
    """True if a key is that of a stored object, also of an array with more or fewer dimensions.

    A file of such an array stands where the new one needs a folder, or the other way round.
    """
    encoding = meta.chunk_key_encoding
    least = key.count(encoding.separator)
    numbers = {len(meta.shape), *(n for n in (least, least + 1) if n <= _MOST_DIMENSIONS)}
    return any(encoding.coords(key, n) is not None for n in numbers)


# --- removing -------------------------------------------------------------------------------------


def delete_node(store: Store, path: str) -> None:
    """Delete the node at a path and all that lies below; of links below, the links alone.

    What a removal that was stopped has left there is removed as well: nodes below a group that has
    no metadata any more, and stored objects.

    Raises
    ------
    NodeNotFoundError
        If there is none.
    LinkError
        If it is a link, or behind one.
    RankError
        If it belongs to a simulation output that is still open, or contains one.
    """
    present = formats_at(store, path)
    half_removed = [] if present else _half_removed(store, path)
    if not (present or half_removed):
        sweep_remote_claims(store, path)  # of a removal that was killed at its end
        _refuse_nothing(store, path)
    check_no_link(store, path)
    with (
        claiming_nodes(store, path) as claims,
        removing(store, path, claims=claims),
        fenced_deletes(claims.fence),
    ):
        if not half_removed:
            _check_still_there(store, path, present, claims)
        elif formats_at(store, path) or not _half_removed(store, path):
            _refuse_nothing(store, path)
        end_claims_below(store, path)
        if half_removed:
            discard_journals(store, path, is_claimed=True)
            _remove_rest(store, path, half_removed, {})
            end_removal(store, path)
        else:
            remove_node(store, path, is_claimed=True)
    present = present or half_removed
    for node_format, _ in present:
        warn_stale_consolidated(store, path, node_format)


def remove_node(store: Store, path: str, *, is_claimed: bool = False) -> None:
    """Delete a node and everything below it, its metadata first; keep files of no node.

    Concurrent readers then find no node rather than one with missing chunks. Nodes below an array,
    which the drafts allow, are kept. A caller that has claimed the location (`is_claimed`) looks
    before each request whether it still has (`fenced_deletes`).
    """
    present = formats_at(store, path)
    listed = _listed_below(store, path, [candidate for candidate, _ in present])
    if not is_claimed:
        discard_journals(store, path)
    begin_removal(store, path, [candidate.name for candidate, _ in present])
    for candidate, _ in present:
        _remove_documents(store, path, candidate)
    if is_claimed:  # with the claim: who has it next finds no node
        _discard_journals(store, path)
    _remove_rest(store, path, present, listed)
    end_removal(store, path)


def _discard_journals(store: Store, path: str) -> None:
    """Discard the journals of a node that has gone; a job that has begun since finds no node."""
    with suppress(JobRunningError):
        discard_journals(store, path, is_claimed=True)


def _remove_rest(
    store: Store,
    path: str,
    present: Iterable[tuple[Format, NodeMeta | None]],
    listed: Mapping[str, str],
) -> None:
    """Delete what lies at and below a node whose metadata are gone."""
    for candidate, meta in present:
        if isinstance(meta, ArrayMeta):
            _remove_objects(store, path, candidate, meta, listed)
        else:
            for prefix in candidate.prefixes(path):
                _remove_below(store, prefix, listed)


def _reserve(prefetched: PrefetchedLocation, path: str, *, has_journals: bool) -> ReservedLocation:
    """Delete everything at and below a path, with or without metadata there."""
    store = prefetched.store
    check_no_link(store, path)
    found = formats_at(store, path)
    around = frozenset(prefix for candidate in FORMATS for prefix in candidate.prefixes(path))
    if is_remote(store) and not found and all(is_empty(store, prefix) for prefix in around):
        return ReservedLocation(around, has_journals)
    end_claims_below(store, path, ends_changes=True)
    return ReservedLocation(_remove_all(store, path, found), has_journals)


def _remove_all(
    store: Store, path: str, found: Iterable[tuple[Format, NodeMeta | None]]
) -> frozenset[str]:
    """Delete the nodes that were found at a path and everything below it.

    Return the prefixes that are empty afterwards.
    """
    present = [candidate for candidate, _ in found]
    prefixes = {prefix for candidate in present for prefix in candidate.prefixes(path)}
    present += implicit_group_formats(store, path, present, prefixes)
    listed = _listed_below(asking_anew(store), path, present)
    for candidate in present:
        _remove_documents(store, path, candidate)
    prefixes |= {prefix for candidate in present for prefix in candidate.prefixes(path)}
    for prefix in sorted(prefixes):
        _remove_below(store, prefix, listed)
    return frozenset(prefixes)


def _listed_below(store: Store, path: str, present: Iterable[Format]) -> dict[str, str]:
    """Return a key that is no metadata of a node for each of its prefixes that has one.

    Folders of this machine are not asked: they tell of all that they hold.

    Raises
    ------
    StoreError
        If nothing is listed. It would stay, and be read as values of the next node there.
    """
    found: dict[str, str] = {}
    for candidate in () if isinstance(store, FileStore) else present:
        documents = candidate.node_keys(path)
        for prefix in candidate.prefixes(path):
            some = [*islice(store.list(prefix), len(documents) + 1)]
            if not some:
                check_listed(store, prefix, documents)
            found.update((prefix, key) for key in some if key not in documents)
    return found


def _remove_documents(store: Store, path: str, node_format: Format) -> None:
    forget_nodes_above()
    for key in (*node_format.node_keys(path), *(() if path else node_format.root_documents())):
        store.delete(key)


def _remove_below(store: Store, prefix: str, listed: Mapping[str, str]) -> None:
    """Delete everything below a prefix, and look for a key that a service has listed there.

    Raises
    ------
    StoreError
        If its value is still there.
    """
    store.delete_prefix(prefix)
    key = listed.get(prefix)
    if key is not None and is_remote(store) and store.size(key) is not None:
        raise StoreError(
            f"could not remove all below {prefix!r} in {store.url}: {key!r} is still there, either "
            "because another process has put it just now, or because the service has not listed "
            "it again. The metadata of the node are gone. Remove what is left, or create a node "
            "there with overwrite=True, which removes stored objects."
        )


def _remove_objects(
    store: Store, path: str, node_format: Format, meta: ArrayMeta, listed: Mapping[str, str]
) -> None:
    """Delete the stored objects of an array, but no nodes below it."""
    data = node_format.data_prefix(path)
    others = [prefix for prefix in node_format.prefixes(path) if prefix != data]
    if any(next(iter(store.list(prefix)), None) is not None for prefix in others):
        remove_leftovers(store, data, meta)
    else:
        _remove_below(store, data, listed)


def _check_still_there(
    store: Store,
    path: str,
    present: Iterable[tuple[Format, NodeMeta | None]],
    claims: NodeClaims,
) -> None:
    """Raise if a node has gone since it was found, because another process was faster.

    That may have been stopped by these claims when it had removed the metadata: the rest is removed
    in its place.
    """
    if formats_at(store, path):
        return
    if claims.claims:
        with fenced_deletes(claims.fence):
            _remove_rest(store, path, present, {})
            end_removal(store, path)
    _refuse_nothing(store, path)


def _half_removed(store: Store, path: str) -> list[tuple[Format, NodeMeta | None]]:
    """Return the formats of what a removal that was stopped has left at a path.

    They are in its record. Where there is none, they are those of nodes below a group without
    metadata, in a group that has some: elsewhere the path may be a folder that holds hierarchies of
    others.
    """
    recorded = stopped_removal(store, path)
    if recorded:
        return [(candidate, None) for candidate in FORMATS if candidate.name in recorded]
    if not path or not formats_at(store, path.rpartition("/")[0]):
        return []
    return [(candidate, None) for candidate in implicit_group_formats(store, path, (), ())]


def _refuse_nothing(store: Store, path: str) -> None:
    keys = [key for candidate in FORMATS for key in candidate.node_keys(path)]
    hint = "Nothing was changed."
    if is_implied(store, path):
        below = next(iter(sorted(store.list_dir(f"{path}/" if path else "").prefixes)), "")
        hint += (
            f" Nodes lie below it, in {below.rstrip('/')!r} and maybe others, as they do after a "
            "removal that was stopped. Delete each of them, or name this path from the root of its "
            "hierarchy, if a group is above: zarr_dask.delete(root, path)."
        )
    raise NodeNotFoundError(where(store, path), keys, hint)


# --- renaming -------------------------------------------------------------------------------------


def rename_node(store: Store, old: str, new: str, opened: Callable[[], Opened]) -> Opened:
    """Move a node and everything below it to another path of the same store.

    In a local store the folder is renamed. In other stores stored objects are copied byte for byte,
    then metadata from the deepest node up, so that every visible node is complete; then the old
    ones are removed. If copying fails, the copies are removed and the node is kept. Objects that
    stopped jobs have left at the new path of an array are removed, as by a new array there.

    Parameters
    ----------
    store, old, new
        The node, and its new path.
    opened
        Opens the node at its new path, before anybody else may remove it.

    Raises
    ------
    NodeNotFoundError
        If there is no node at `old`.
    NodeExistsError
        If anything is at `new`, or one path lies in the other.
    LinkError
        If either is a link, or behind one.
    RankError
        If it belongs to a simulation output that is still open, or contains one.
    StoreKeyError
        If the format does not allow such a name for a node.
    """
    found = formats_at(store, old)
    present = [node_format for node_format, _ in found]
    if not present:
        _refuse_nothing(store, old)
    if not old or not new or contains_or_equal(old, new):
        raise NodeExistsError(
            f"{where(store, old)} cannot be renamed to {new!r}: the root of a hierarchy keeps its "
            "place, and a node cannot go into itself or to the place of a group above."
        )
    for path in (old, new):
        check_no_link(store, path)
    leftovers = _leftovers_of(store, new, found)
    for node_format in present:
        check_can_create(store, new, node_format, overwrite=False, is_group=True)
        with editing(store, new):  # nobody removes what was there
            _check_free(store, new, node_format, leftovers)
    for node_format in present:
        create_parent_groups(store, new, node_format)
    with (
        claiming_nodes(store, old, new) as claims,
        removing(store, old, new, claims=claims),
        editing(store, new) as place,
    ):
        check_not_claimed(place, where(store, new))
        _check_still_there(store, old, found, claims)
        check_not_changing(store, old)
        end_claims_below(store, old)
        for node_format in present:
            if leftovers is not None and not formats_at(store, new):
                with fenced_deletes(claims.fence):
                    remove_leftovers(store, node_format.data_prefix(new), leftovers)
            _check_free(store, new, node_format)  # another may have put something there meanwhile
        if _moved_at_once(store, old, new, present):
            _discard_journals(store, old)
        else:
            _copy_node(store, old, new, present, claims.fence)
            claims.fence()
            # the copy is visible: what a later job makes of it does not keep half of the source
            with fenced_deletes(claims.at(where(store, old)).fence):
                remove_node(store, old, is_claimed=True)
        node = opened()
    for node_format in present:
        warn_stale_consolidated(store, old, node_format)
        warn_stale_consolidated(store, new, node_format)
    return node


def _moved_at_once(store: Store, old: str, new: str, formats: Sequence[Format]) -> bool:
    """Rename the folder of a node; True if that was possible, because it holds the whole node."""
    moves = {(f.prefixes(old), f.prefixes(new)) for f in formats}
    documents = [key for f in formats for key in f.node_keys(old)]
    (before, after), *others = moves
    if others or len(before) != 1 or not all(key.startswith(before[0]) for key in documents):
        return False
    if not isinstance(store, FileStore):
        return False
    return store.move_prefix(before[0], after[0])


def _copy_node(
    store: Store, old: str, new: str, formats: Sequence[Format], fence: Callable[[], None]
) -> None:
    documents, objects, sizes = _keys_to_move(store, old, new, formats)
    done: list[str] = []

    def copy(pair: tuple[str, str]) -> bool:
        value = store.get(pair[0])
        if value is not None:
            _check_whole(store, pair[0], value, sizes.get(pair[0]))
            fence()
            done.append(pair[1])
            store.set(pair[1], [value])
        return value is not None

    def copy_listed(pair: tuple[str, str]) -> None:
        if not copy(pair):
            _check_gone(store, pair[0])

    try:
        parallel_for(copy_listed, objects, None)
        for pair in documents:
            copy(pair)
        _check_kept(store, new, formats, done)
    except JobReplacedError:
        raise  # what lies there may be the later job's
    except BaseException:
        with suppress(StoreError):  # if the store fails, the first error matters
            for key in reversed(done):
                store.delete(key)
        raise


def _check_kept(store: Store, path: str, formats: Sequence[Format], copied: Iterable[str]) -> None:
    """Raise if a service that has acknowledged copies does not list them, before it removes more.

    It is asked for each that it does not list.
    """
    if not is_remote(store):
        return
    there = {key for one in formats for prefix in one.prefixes(path) for key in store.list(prefix)}
    lost = next((key for key in copied if key not in there and store.size(key) is None), None)
    if lost is not None:
        raise StoreError(
            f"{store.url} has acknowledged {lost!r}, a copy, and does not have it; nothing was "
            "renamed. Either the store has lost it, or another process has removed it just now. "
            "Look at the store, then try again."
        )


def _check_whole(store: Store, key: str, value: Buffer, listed: int | None) -> None:
    """Raise if a value is not as long as the store says: the rest of what is there would be lost.

    It is asked again if the listing said something else: another process may have put a value.
    """
    if listed is None or len(value) == listed:
        return
    now = store.size(key)
    if now != len(value):
        raise StoreError(
            f"could not read {key!r} from {store.url}: expected {listed:,} bytes, as it is listed, "
            f"got {len(value):,}, and the store says now that it has {now}; nothing was renamed. "
            "Try again; if it remains so, the store does not send what it holds."
        )


def _check_gone(store: Store, key: str) -> None:
    """Raise if a store that has no value at a key lists the key: what is there would be lost."""
    if key in store.list_dir(key[: key.rfind("/") + 1]).keys:
        raise StoreError(
            f"could not read {key!r} from {store.url}: it is listed, but the store says that it is "
            "not there; nothing was renamed. Try again; if it remains so, remove the object, if "
            "its values are not needed."
        )


def _leftovers_of(
    store: Store, path: str, moved: Iterable[tuple[Format, NodeMeta | None]]
) -> ArrayMeta | None:
    """Return the array to move, if objects like its own at its new path are nobody's.

    Who makes a node there has a claim or a journal beside it, where there are claims or locks.
    """
    place = default_place(store, path)
    meta = next((meta for _, meta in moved if isinstance(meta, ArrayMeta)), None)
    if place is None or not (has_claims(store, path) or isinstance(store, FileStore)):
        return None
    try:
        is_taken = any(place.store.list(place.prefix)) or any(jobs_creating(store, path))
    except ListingError:
        return None
    return None if is_taken else meta


def _check_free(
    store: Store, path: str, node_format: Format, leftovers: ArrayMeta | None = None
) -> None:
    """Raise if anything lies at a path, but for leftovers of stopped jobs, as those of an array."""
    data = node_format.data_prefix(path)
    own = set() if leftovers is None else set(_leftover_keys(store, data, leftovers))
    for prefix in node_format.prefixes(path):
        found = next((key for key in store.list(prefix) if key not in own), None)
        if found is not None:
            raise NodeExistsError(
                f"{where(store, path)} is no node, but {found!r} lies there already; nothing was "
                "renamed. Choose another path."
            )


def _keys_to_move(
    store: Store, old: str, new: str, formats: Sequence[Format]
) -> tuple[list[tuple[str, str]], list[tuple[str, str]], dict[str, int | None]]:
    """Return old and new keys of metadata, in the order of copying, and of all other objects.

    Return the bytes that are listed by the old keys, too.
    """
    documents: dict[str, str] = {}
    moves: dict[str, str] = {}
    sizes: dict[str, int | None] = {}
    for node_format in formats:
        nodes = walk(store, old, node_format, DEFAULT_OPTIONS)
        for below in [*sorted(nodes, key=lambda p: -p.count("/")), ""]:
            keys = zip(
                node_format.node_keys(join(old, below)),
                node_format.node_keys(join(new, below)),
                strict=True,
            )
            documents.update(reversed(list(keys)))  # the one that makes the node visible last
        for before, after in zip(node_format.prefixes(old), node_format.prefixes(new), strict=True):
            found = _listed_sizes(store, before)
            moves.update((key, after + key[len(before) :]) for key in found)
            sizes |= found
        if not moves:
            check_listed(store, node_format.data_prefix(old), node_format.node_keys(old))
    objects = [(key, target) for key, target in moves.items() if key not in documents]
    return list(documents.items()), objects, sizes


def _listed_sizes(store: Store, prefix: str) -> dict[str, int | None]:
    """Return the keys below a prefix, and the bytes of their values if the listing has them."""
    if capabilities_of(store).list_sizes:
        return dict(list_sizes(store, prefix))
    return dict.fromkeys(store.list(prefix))


# --- consolidated metadata ------------------------------------------------------------------------


def consolidate_group(store: Store, path: str, node_format: Format) -> None:
    """Write the consolidated metadata of a group.

    If several processes write them at the same time, the last ones describe the final state.

    Raises
    ------
    MetadataError
        If metadata are not a JSON object, or the format has no consolidated metadata.
    """
    key = consolidated_key(path, node_format) or node_format.node_keys(path)[-1]

    def made() -> bytes:
        documents = _all_documents(store, path, node_format)
        return consolidated_documents(store, path, node_format, documents)[key]

    cas_update(store, key, made)


def stale_paths(store: Store, path: str, node_format: Format, meta: GroupMeta) -> list[str]:
    """Return paths below a group whose consolidated metadata differ from the nodes' metadata.

    These are nodes that were added, removed or changed; none if there are no consolidated metadata.
    """
    store = without_consolidated(store)
    recorded = recorded_documents(store, path, node_format, meta, DEFAULT_OPTIONS.limits)
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
    """Return the normalised metadata of a node; None if the documents do not describe it."""
    found = {key: documents.get(key) for key in node_format.node_keys(path)}
    texts = {key: None if d is None else json.dumps(d).encode() for key, d in found.items()}
    try:
        meta = node_format.read(store, path, DEFAULT_OPTIONS, found=texts)
        if meta is None:
            return None
        written = node_format.documents(meta, path)
    except MetadataError:
        return {key: _comparable(document) for key, document in found.items()}
    return {key: _comparable(json.loads(text)) for key, text in written.items()}


def _all_documents(store: Store, path: str, node_format: Format) -> Documents:
    """Return the metadata of a group and of all nodes below, as JSON objects by key.

    Groups without metadata get some here, because readers look for them.
    """
    options = DEFAULT_OPTIONS
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
    """Return metadata as a text that is equal for equal metadata, without consolidated metadata."""
    members = {k: v for k, v in (document or {}).items() if k != "consolidated_metadata"}
    return json.dumps(members, sort_keys=True)
