"""Changing the metadata of a node that others may change concurrently.

A document is put only if it is still what was read, else all of it is read again: attributes that
others have added stay, and a node that is another one by now is not touched. Documents that do not
change are not written. Stores without conditions (`zarr_dask.stores.compare_and_swap`) get what
follows from the last look at them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from typing import Any, TypeVar

from zarr_dask._util.threads import run_concurrently
from zarr_dask.errors import MetadataChangedError
from zarr_dask.formats.base import (
    ArrayMeta,
    ChunkKeyEncoding,
    FetchedDocuments,
    Format,
    GroupMeta,
    NodeMeta,
    ReadOptions,
    checked_attributes,
    checked_documents,
    where,
)
from zarr_dask.formats.consolidated import warn_stale_consolidated, without_consolidated
from zarr_dask.formats.detect import FORMATS
from zarr_dask.formats.handles import tell_handles
from zarr_dask.stores.base import Range, Store, is_remote
from zarr_dask.stores.compare_and_swap import (
    ConditionalStore,
    cas_store_or_none,
    one_by_one,
    until_put,
)

__all__ = [
    "SeenNode",
    "change_attributes",
    "change_node",
    "check_objects_read",
    "check_still_shown",
    "reload_metadata",
    "say_the_same",
    "see_latest_node",
    "see_node_to_append",
    "with_attributes",
    "write_changed_documents",
    "write_if_absent",
]

AnyMeta = TypeVar("AnyMeta", ArrayMeta, GroupMeta)
_Meta = TypeVar("_Meta", bound=NodeMeta)


def with_attributes(
    store: Store,
    path: str,
    node_format: Format,
    meta: AnyMeta,
    attributes: Mapping[str, Any],
    options: ReadOptions,
    is_same: Callable[[AnyMeta], bool],
) -> AnyMeta:
    """Add or replace attributes in the store and return the changed metadata.

    Attributes that others give the node at the same time stay, and so does what else they change.

    Parameters
    ----------
    store, path, node_format
        The node.
    meta
        What it was when it was opened.
    attributes
        The attributes to add or replace.
    options
        How to read.
    is_same
        True for metadata of the same node, to which others may have made a change.

    Raises
    ------
    ConditionalWriteError
        If others have been faster again and again.
    MetadataError
        If an attribute cannot be expressed in JSON.
    MetadataChangedError
        If the node was deleted, or is another one by now.
    """
    given = checked_attributes(attributes, where(store, path))

    def more(present: NodeMeta | None) -> tuple[AnyMeta, AnyMeta]:
        if isinstance(present, type(meta)) and is_same(present):
            before = present
        else:
            before = _as_it_is(store, path, node_format, meta, present)
        return before, before.with_attributes({**before.attributes, **given})

    changed = _put_latest(store, path, node_format, more, options)
    warn_stale_consolidated(store, path, node_format)
    if node_format.names_attribute not in given:
        return changed
    return _with_names(store, path, node_format, changed, options)


def _with_names(
    store: Store, path: str, node_format: Format, changed: _Meta, options: ReadOptions
) -> _Meta:
    """Return metadata whose attribute with the names of dimensions has changed, with the names."""
    found = node_format.documents(changed, path)
    named = node_format.read(store, path, options, found=found)
    if not isinstance(named, type(changed)):
        return changed
    tell_handles(store, path, named)
    return named


@dataclass(frozen=True)
class SeenNode:
    """A node as one look has found it."""

    meta: NodeMeta | None
    """None if there was none."""
    tags: Mapping[str, Hashable]
    """Tags of its documents; empty if the store has none."""


def _see_node(store: Store, path: str, node_format: Format, options: ReadOptions) -> SeenNode:
    """Look at a node that may be changed afterwards (`write_changed_documents`)."""
    keys = node_format.node_keys(path)
    tags: dict[str, Hashable] = {}
    found = _read(store, cas_store_or_none(store, keys[0]), keys, options, tags)
    return SeenNode(node_format.read(store, path, options, found=found), tags)


def see_latest_node(store: Store, path: str, node_format: Format, options: ReadOptions) -> SeenNode:
    """Look at a node, and have its store confirm that no later metadata are there.

    A cache, or a service that answers with older values for a while, is found out by puts of what
    was read, on the condition that nothing else is there. A store without conditions is believed.

    Raises
    ------
    ConditionalWriteError
        If the store goes on to answer with something else than what it has.
    """
    keys = node_format.node_keys(path)
    tagged = cas_store_or_none(store, keys[0])
    if tagged is None:
        return _see_node(store, path, node_format, options)
    seen: list[SeenNode] = []

    def put(tags: dict[str, Hashable]) -> bool:
        found = _read(store, tagged, keys, options, tags)
        seen[:] = [SeenNode(node_format.read(store, path, options, found=found), dict(tags))]
        texts = {key: text for key, text in found.items() if isinstance(text, bytes)}
        return _put(store, tagged, texts, tags)

    until_put(f"the metadata of {where(store, path)}", put)
    return seen[0]


def see_node_to_append(
    store: Store, path: str, node_format: Format, options: ReadOptions, *, latest: bool
) -> SeenNode:
    """Look at a node before elements are written behind its end; `latest` as `see_latest_node`.

    Raises
    ------
    ConditionalWriteError
        As for `see_latest_node`.
    MetadataChangedError
        As for `check_still_shown`.
    """
    look = see_latest_node if latest else _see_node
    seen = look(store, path, node_format, options)
    check_still_shown(store, path, node_format)
    return seen


def reload_metadata(
    store: Store,
    path: str,
    node_format: Format,
    meta: AnyMeta,
    options: ReadOptions,
    seen: SeenNode | None = None,
) -> AnyMeta:
    """Return the metadata with the attributes that the store holds now.

    Parameters
    ----------
    store, path, node_format, meta, options
        As for `write_changed_documents`.
    seen
        A look that was just taken; by default, one is taken.

    Raises
    ------
    MetadataChangedError
        If the node was deleted, or differs in more than its attributes.
    """
    present = node_format.read(store, path, options, found={}) if seen is None else seen.meta
    return _as_it_is(store, path, node_format, meta, present)


def _as_it_is(
    store: Store, path: str, node_format: Format, meta: AnyMeta, present: NodeMeta | None
) -> AnyMeta:
    """The metadata with the attributes of what has just been read."""
    if present is None and _has_no_document(meta):
        return meta  # its document is created now
    if not isinstance(present, type(meta)) or not say_the_same(node_format, path, meta, present):
        raise MetadataChangedError(
            f"{where(store, path)} is not the node any more that was opened here: its metadata "
            "have changed. Open it again."
        )
    return meta.with_attributes(present.attributes)


def say_the_same(node_format: Format, path: str, one: NodeMeta, other: NodeMeta) -> bool:
    """Return True if the documents of two nodes differ in their attributes at most."""
    if isinstance(one, ArrayMeta) and isinstance(other, ArrayMeta):
        alike = one.grid == other.grid and one.dimension_names == other.dimension_names
        if alike and not (one.extra or other.extra) and one.is_stored_as(other):
            return True  # which is known in a tenth of the time of writing the documents
    first, second = (node_format.documents(each.with_attributes({}), path) for each in (one, other))
    return first == second


def write_changed_documents(
    store: Store,
    path: str,
    node_format: Format,
    meta: AnyMeta,
    change: Callable[[AnyMeta], AnyMeta],
    options: ReadOptions,
    *,
    warns: bool = True,
    seen: SeenNode | None = None,
    reloaded: AnyMeta | None = None,
) -> AnyMeta:
    """Write the documents of a node that say something else after a change; returns what it is.

    Warns if consolidated metadata do not, unless the caller has done so.

    Parameters
    ----------
    store, path, node_format
        The node.
    meta
        What it must be, whatever its attributes are.
    change
        Makes new metadata of it is now; may be called several times.
    options
        How to read.
    warns
        Whether consolidated metadata are looked at.
    seen
        An earlier look of the caller. The store is not asked again if nothing has changed since.
    reloaded
        The result of `reload_metadata` for that look, which is not compared again.

    Raises
    ------
    ConditionalWriteError
        If others have been faster again and again.
    MetadataChangedError
        If the node has gone, or says something else besides its attributes.
    """

    def checked(present: NodeMeta | None) -> tuple[AnyMeta, AnyMeta]:
        if reloaded is not None and seen is not None and present is seen.meta:
            return reloaded, change(reloaded)
        before = _as_it_is(store, path, node_format, meta, present)
        return before, change(before)

    changed = _put_latest(store, path, node_format, checked, options, seen)
    if warns:
        warn_stale_consolidated(store, path, node_format)
    return changed


def _has_no_document(meta: NodeMeta) -> bool:
    return isinstance(meta, GroupMeta) and meta.implicit


def change_attributes(
    store: Store,
    path: str,
    node_format: Format,
    change: Callable[[dict[str, Any]], Mapping[str, Any]],
    options: ReadOptions,
    *,
    warns: bool = False,
    allow_nan: bool = False,
) -> None:
    """Change the attributes of a node by a function, without losing concurrent changes.

    Consolidated metadata above are the caller's business.

    Parameters
    ----------
    store, path, node_format
        The node, whatever else it says by now.
    change
        Returns the new attributes; may be called several times.
    options
        Options for reading.
    warns
        True to warn if consolidated metadata above are out of date then.
    allow_nan
        True to take NaN and infinities as new values; those that are there are kept in any case.

    Raises
    ------
    ConditionalWriteError
        If other writers were faster too many times.
    MetadataChangedError
        If the node was deleted.
    """
    at = where(store, path)
    before: list[NodeMeta] = []

    def changed(present: NodeMeta | None) -> tuple[NodeMeta, NodeMeta]:
        if present is None:
            raise MetadataChangedError(f"{at} has gone. Open it again.")
        before[:] = [present]
        old, wanted = present.attributes, dict[str, Any]()
        for name, value in change(dict(old)).items():
            kept = name in old and value is old[name]
            one = {name: value}
            wanted |= one if kept else checked_attributes(one, at, allow_nan=allow_nan)
        return present, replace(present, attributes=wanted)

    after = _put_latest(store, path, node_format, changed, options)
    name = node_format.names_attribute
    if name is not None and before[0].attributes.get(name) != after.attributes.get(name):
        _with_names(store, path, node_format, after, options)
    if warns:
        warn_stale_consolidated(store, path, node_format)


def change_node(
    store: Store,
    path: str,
    node_format: Format,
    change: Callable[[NodeMeta | None], NodeMeta],
    options: ReadOptions,
) -> None:
    """Put what is made of a node as it is now, whatever it says; consolidated metadata stay.

    Parameters
    ----------
    store, path, node_format, options
        As for `write_changed_documents`.
    change
        Returns what the node is to be; may be called several times.

    Raises
    ------
    ConditionalWriteError
        If others have been faster again and again.
    """

    def changed(present: NodeMeta | None) -> tuple[NodeMeta, NodeMeta]:
        after = change(present)
        return after if present is None else present, after

    _put_latest(store, path, node_format, changed, options)


def _put_latest(
    store: Store,
    path: str,
    node_format: Format,
    change: Callable[[NodeMeta | None], tuple[_Meta, _Meta]],
    options: ReadOptions,
    seen: SeenNode | None = None,
) -> _Meta:
    """Put what is made of a node as it is now; made again if another one has put something."""
    keys = node_format.node_keys(path)
    tagged = cas_store_or_none(store, keys[0])
    latest: list[tuple[_Meta, _Meta]] = []
    earlier = [] if seen is None or tagged is None else [seen]

    def put(tags: dict[str, Hashable]) -> bool:
        now = earlier.pop() if earlier else _see_node(store, path, node_format, options)
        tags.update(now.tags)
        before, changed = change(now.meta)
        known = _has_no_document(before) or (len(keys) == 1 and _has_grown(before, changed))
        texts = {} if known else node_format.documents(before, path)
        documents = node_format.documents(changed, path)
        new = {key: text for key, text in documents.items() if text != texts.get(key)}
        latest[:] = [(before, changed)]
        return _put(store, tagged, new, tags)

    with nullcontext() if tagged is not None else one_by_one(store, keys[0]):
        until_put(f"the metadata of {where(store, path)}", put)
        before, after = latest[0]
        try:
            check_still_shown(store, path, node_format, (before, after))
        except MetadataChangedError:
            _undo(store, tagged, *(node_format.documents(node, path) for node in (before, after)))
            raise
    tell_handles(store, path, after)
    return after


def _undo(
    store: Store,
    tagged: ConditionalStore | None,
    before: Mapping[str, bytes],
    after: Mapping[str, bytes],
) -> None:
    """Put the documents back that a change has put, unless others have changed them since.

    Who is told that the change was refused may make it once more.
    """
    for key in (key for key in before.keys() & after.keys() if before[key] != after[key]):
        if tagged is None:
            if store.get(key) == after[key]:
                store.set(key, [before[key]])
            continue
        value, tag = tagged.get_tagged(key)
        if value == after[key]:
            tagged.set_if(key, [before[key]], tag)


def check_still_shown(
    store: Store,
    path: str,
    node_format: Format,
    change: tuple[NodeMeta, NodeMeta] | None = None,
) -> None:
    """Raise if a node has metadata of a newer format, which readers prefer.

    Asked before an append writes elements, since others may have appended beside the newer ones.
    Asked after a change of the older ones, too: a migration looks at them again when it has put the
    new ones, so that one of both sees the other one.

    Parameters
    ----------
    store, path, node_format
        The node.
    change
        What the older ones said before a change, and say after it. Newer ones that show the change
        were made of them.

    Raises
    ------
    MetadataChangedError
        If there are some that do not show it.
    """
    held = without_consolidated(store)
    for key, newer in _newer_documents(held, path, node_format):
        if not (change and _is_said(held, path, node_format, change, newer)):
            raise MetadataChangedError(
                f"{where(store, path)} has newer metadata, {key!r}, by a migration: a change of "
                f"those of format {node_format.name} is seen by readers of that format alone. Open "
                "it again, and make the change there."
            )


def check_objects_read(store: Store, path: str, node_format: Format, meta: ArrayMeta) -> None:
    """Raise if an array has metadata of a newer format whose stored objects have other keys.

    Asked after objects were put: a migration that renames them looks for changed ones when it has
    put the new metadata, so that one of both sees the other one.

    Parameters
    ----------
    store, path, node_format, meta
        The array whose objects were put.

    Raises
    ------
    MetadataChangedError
        If there are some.
    """
    for key, newer in _newer_documents(store, path, node_format):
        for one in newer:
            found = one.read(without_consolidated(store), path, ReadOptions(), found={})
            if isinstance(found, ArrayMeta) and _prefix_and_keys(one, path, found) != (
                _prefix_and_keys(node_format, path, meta)
            ):
                raise MetadataChangedError(
                    f"{where(store, path)} has newer metadata, {key!r}, by a migration that gave "
                    "its stored objects other keys: what was written now to those of format "
                    f"{node_format.name} may be seen by readers of that format alone. Open it "
                    "again, and write the values there."
                )


def _prefix_and_keys(
    node_format: Format, path: str, meta: ArrayMeta
) -> tuple[str, ChunkKeyEncoding]:
    return node_format.data_prefix(path), meta.chunk_key_encoding


def _newer_documents(
    store: Store, path: str, node_format: Format
) -> Iterator[tuple[str, tuple[Format, ...]]]:
    """Yield the keys of metadata in newer formats, which readers prefer, and these formats."""
    formats = FORMATS if node_format in FORMATS else ()
    newer = tuple(takewhile(lambda one: one != node_format, formats))
    own = node_format.node_keys(path)
    keys = [key for one in newer for key in one.node_keys(path) if key not in own]
    if not keys:
        return
    found = store.get_ranges([(key, Range(0, 1)) for key in keys])
    for key, text in zip(keys, found, strict=True):
        if text is not None:
            yield key, newer


def _is_said(
    store: Store,
    path: str,
    node_format: Format,
    change: tuple[NodeMeta, NodeMeta],
    newer: Iterable[Format],
) -> bool:
    """True if newer metadata have a new length, and new attributes, of older ones."""
    from zarr_dask.formats.missing_values import FILL_VALUE

    before, after = change
    translated = {node_format.names_attribute, FILL_VALUE}
    names = (before.attributes.keys() | after.attributes.keys()) - translated
    for one in newer:
        found = one.read(store, path, ReadOptions(), found={})
        if found is not None:
            is_shown = not (_has_grown(before, after) and _has_grown(after, found))
            return is_shown and all(
                found.attributes.get(name) == after.attributes.get(name)
                for name in names
                if before.attributes.get(name) != after.attributes.get(name)
            )
    return False


def _has_grown(before: NodeMeta, after: NodeMeta) -> bool:
    """True if the length of an array differs, so that the document that has it does."""
    if not (isinstance(before, ArrayMeta) and isinstance(after, ArrayMeta)):
        return False
    return before.shape != after.shape


def _put(
    store: Store,
    tagged: ConditionalStore | None,
    documents: Mapping[str, bytes],
    tags: Mapping[str, Hashable],
) -> bool:
    """Put documents, on the condition that the present ones have these ETags if supported."""
    for key, text in documents.items():
        if tagged is None:
            store.set(key, [text])
        elif not tagged.set_if(key, [text], tags[key]):
            return False
    return True


def write_if_absent(store: Store, documents: Mapping[str, bytes]) -> None:
    """Write documents in their order if they are absent; existing ones are kept."""
    for key, text in documents.items():
        tagged = cas_store_or_none(store, key)
        if tagged is not None:
            tagged.set_if(key, [text], None)
        elif store.size(key) is None:
            store.set(key, [text])


def _read(
    store: Store,
    tagged: ConditionalStore | None,
    keys: tuple[str, ...],
    options: ReadOptions,
    tags: dict[str, Hashable],
) -> FetchedDocuments:
    """Documents by key, and the tags of their values; nothing from a store without tags."""
    if tagged is None:
        return {}
    asking = [partial(tagged.get_tagged, key) for key in keys]
    answers = (
        run_concurrently(*asking)
        if is_remote(store) and len(keys) > 1
        else [ask() for ask in asking]
    )
    found = dict(zip(keys, answers, strict=True))
    tags.update({key: tag for key, (_, tag) in found.items()})
    return checked_documents(
        store, {key: value for key, (value, _) in found.items()}, options.limits
    )
