"""Changing the documents of a node that others may have changed meanwhile.

What the store holds now is read first: attributes that others have added stay, and a node that is
another one by now is not touched. Documents that do not change are not written.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from zarr_dask.errors import ConditionalWriteError, MetadataChangedError
from zarr_dask.formats.base import (
    ArrayMeta,
    Format,
    Found,
    GroupMeta,
    NodeMeta,
    ReadOptions,
    checked_attributes,
    checked_documents,
    where,
)
from zarr_dask.formats.consolidated import warn_of_stale
from zarr_dask.stores.base import Store
from zarr_dask.stores.conditional import ConditionalStore, conditional_at

__all__ = ["change_attributes", "current", "put_changed", "put_new", "with_attributes"]

_ATTEMPTS = 1000
"""Every failed one means that another process has succeeded."""

AnyMeta = TypeVar("AnyMeta", ArrayMeta, GroupMeta)


def with_attributes(
    store: Store,
    path: str,
    node_format: Format,
    meta: AnyMeta,
    attributes: Mapping[str, Any],
    options: ReadOptions,
) -> AnyMeta:
    """The metadata with more (or other) attributes, written to the store.

    Raises
    ------
    MetadataError
        If the attributes hold what JSON cannot.
    MetadataChangedError
        If the node has gone, or says something else besides its attributes.
    """
    given = checked_attributes(attributes, where(store, path))
    present = current(store, path, node_format, meta, options)
    changed = replace(present, attributes={**present.attributes, **given})
    put_changed(store, path, node_format, present, changed)
    if node_format.names_attribute not in given:
        return changed
    # what names the dimensions is an attribute: the documents as they are now say which names
    found = node_format.documents(changed, path)
    named = node_format.read(store, path, options, found=found)
    return named if isinstance(named, type(changed)) else changed


def current(
    store: Store, path: str, node_format: Format, meta: AnyMeta, options: ReadOptions
) -> AnyMeta:
    """The metadata with the attributes that the store holds now, which others may have changed.

    Raises
    ------
    MetadataChangedError
        If the node has gone, or says something else besides its attributes.
    """
    present: NodeMeta | None = node_format.read(store, path, options, found={})
    if present is None and _has_no_document(meta):
        return meta  # it gets its document now
    without = replace(meta, attributes={})
    if not isinstance(present, type(meta)) or node_format.documents(
        without, path
    ) != node_format.documents(replace(present, attributes={}), path):
        raise MetadataChangedError(
            f"{where(store, path)} is not the node any more that was opened here: its metadata "
            "have changed. Open it again."
        )
    return replace(meta, attributes=present.attributes)


def put_changed(
    store: Store,
    path: str,
    node_format: Format,
    present: AnyMeta,
    changed: AnyMeta,
    *,
    warns: bool = True,
) -> None:
    """Write the documents of a node that say something else than before.

    Warns if consolidated metadata do not, unless the caller has done so.
    """
    before = {} if _has_no_document(present) else node_format.documents(present, path)
    for key, document in node_format.documents(changed, path).items():
        if document != before.get(key):
            store.set(key, [document])
    if warns:
        warn_of_stale(store, path, node_format)


def _has_no_document(meta: NodeMeta) -> bool:
    return isinstance(meta, GroupMeta) and meta.implicit


# --- while others change the same node ------------------------------------------------------------


def change_attributes(
    store: Store,
    path: str,
    node_format: Format,
    change: Callable[[dict[str, Any]], Mapping[str, Any]],
    options: ReadOptions,
) -> None:
    """Give a node the attributes that a function makes of those it has, losing nobody's change.

    A document is put only if it is still what was read, else it is read again. Stores that cannot
    do so (`zarr_dask.stores.conditional`) get what follows from the last look at it. Consolidated
    metadata above are the caller's business.

    Parameters
    ----------
    store, path, node_format
        The node.
    change
        Makes new attributes; may be called several times.
    options
        How to read.

    Raises
    ------
    ConditionalWriteError
        If others have been faster again and again.
    MetadataChangedError
        If the node has gone.
    """
    keys = node_format.node_keys(path)
    tagged = conditional_at(store, keys[0])
    for _ in range(_ATTEMPTS):
        found, tags = _read(store, tagged, keys, options)
        present = node_format.read(store, path, options, found=found)
        if present is None:
            raise MetadataChangedError(f"{where(store, path)} has gone. Open it again.")
        wanted = checked_attributes(change(dict(present.attributes)), where(store, path))
        if wanted == present.attributes:
            return
        changed = replace(present, attributes=wanted)
        before = {} if _has_no_document(present) else node_format.documents(present, path)
        documents = node_format.documents(changed, path)
        new = {key: text for key, text in documents.items() if text != before.get(key)}
        if _put(store, tagged, new, tags):
            return
    raise ConditionalWriteError(
        f"the attributes of {where(store, path)} were changed by others {_ATTEMPTS} times while "
        "this process tried to. Try again when they have ended."
    )


def _put(
    store: Store,
    tagged: ConditionalStore | None,
    documents: Mapping[str, bytes],
    tags: Mapping[str, Hashable],
) -> bool:
    """Put documents, on the condition that what is there has these tags if that can be had."""
    for key, text in documents.items():
        if tagged is None:
            store.set(key, [text])
        elif not tagged.set_if(key, [text], tags[key]):
            return False
    return True


def put_new(store: Store, documents: Mapping[str, bytes]) -> None:
    """Write documents where there are none, in their order; those of others stay as they are."""
    for key, text in documents.items():
        tagged = conditional_at(store, key)
        if tagged is not None:
            tagged.set_if(key, [text], None)
        elif store.size(key) is None:
            store.set(key, [text])


def _read(
    store: Store, tagged: ConditionalStore | None, keys: tuple[str, ...], options: ReadOptions
) -> tuple[Found, dict[str, Hashable]]:
    """Documents by key, and the tags of their values; nothing from a store without tags."""
    if tagged is None:
        return {}, {}
    found = {key: tagged.get_tagged(key) for key in keys}
    values = {key: value for key, (value, _) in found.items()}
    tags = {key: tag for key, (_, tag) in found.items()}
    return checked_documents(store, values, options.limits), tags
