"""Changing the metadata of a node that others may change concurrently.

The present state is read from the store first: attributes that others have added are kept, and a
node that was replaced meanwhile is not changed. Documents that do not change are not written.
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
"""Maximum number of attempts; each failed one means that another process has succeeded."""

AnyMeta = TypeVar("AnyMeta", ArrayMeta, GroupMeta)


def with_attributes(
    store: Store,
    path: str,
    node_format: Format,
    meta: AnyMeta,
    attributes: Mapping[str, Any],
    options: ReadOptions,
) -> AnyMeta:
    """Add or replace attributes in the store and return the changed metadata.

    Raises
    ------
    MetadataError
        If an attribute cannot be expressed in JSON.
    MetadataChangedError
        If the node was deleted, or differs in more than its attributes.
    """
    given = checked_attributes(attributes, where(store, path))
    present = current(store, path, node_format, meta, options)
    changed = replace(present, attributes={**present.attributes, **given})
    put_changed(store, path, node_format, present, changed)
    if node_format.names_attribute not in given:
        return changed
    # an attribute names the dimensions: read the names from the new documents
    found = node_format.documents(changed, path)
    named = node_format.read(store, path, options, found=found)
    return named if isinstance(named, type(changed)) else changed


def current(
    store: Store, path: str, node_format: Format, meta: AnyMeta, options: ReadOptions
) -> AnyMeta:
    """Return the metadata with the attributes that the store holds now.

    Raises
    ------
    MetadataChangedError
        If the node was deleted, or differs in more than its attributes.
    """
    present: NodeMeta | None = node_format.read(store, path, options, found={})
    if present is None and _has_no_document(meta):
        return meta  # its document is created now
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
    """Write the documents of a node that differ from before.

    Warn about outdated consolidated metadata, unless the caller does so.
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
    """Change the attributes of a node by a function, without losing concurrent changes.

    A document is written only if it is unchanged since it was read; otherwise it is read again. On
    stores without conditional writes (`zarr_dask.stores.conditional`) the last writer wins.
    Consolidated metadata above are left to the caller.

    Parameters
    ----------
    store, path, node_format
        The node.
    change
        Returns the new attributes; may be called several times.
    options
        Options for reading.

    Raises
    ------
    ConditionalWriteError
        If other writers were faster too many times.
    MetadataChangedError
        If the node was deleted.
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
    """Put documents, on the condition that the present ones have these ETags if supported."""
    for key, text in documents.items():
        if tagged is None:
            store.set(key, [text])
        elif not tagged.set_if(key, [text], tags[key]):
            return False
    return True


def put_new(store: Store, documents: Mapping[str, bytes]) -> None:
    """Write documents in their order if they are absent; existing ones are kept."""
    for key, text in documents.items():
        tagged = conditional_at(store, key)
        if tagged is not None:
            tagged.set_if(key, [text], None)
        elif store.size(key) is None:
            store.set(key, [text])


def _read(
    store: Store, tagged: ConditionalStore | None, keys: tuple[str, ...], options: ReadOptions
) -> tuple[Found, dict[str, Hashable]]:
    """Return documents by key, and the ETags of their values; empty if the store has no ETags."""
    if tagged is None:
        return {}, {}
    found = {key: tagged.get_tagged(key) for key in keys}
    values = {key: value for key, (value, _) in found.items()}
    tags = {key: tag for key, (_, tag) in found.items()}
    return checked_documents(store, values, options.limits), tags
