"""Changing the documents of a node that others may have changed meanwhile.

What the store holds now is read first: attributes that others have added stay, and a node that is
another one by now is not touched. Documents that do not change are not written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from zarr_dask.errors import MetadataChangedError
from zarr_dask.formats.base import (
    ArrayMeta,
    Format,
    GroupMeta,
    NodeMeta,
    ReadOptions,
    checked_attributes,
    where,
)
from zarr_dask.formats.consolidated import warn_of_stale
from zarr_dask.stores.base import Store

__all__ = ["current", "put_changed", "with_attributes"]

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
    store: Store, path: str, node_format: Format, present: AnyMeta, changed: AnyMeta
) -> None:
    """Write the documents of a node that say something else than before."""
    before = {} if _has_no_document(present) else node_format.documents(present, path)
    for key, document in node_format.documents(changed, path).items():
        if document != before.get(key):
            store.set(key, [document])
    warn_of_stale(store, path, node_format)


def _has_no_document(meta: NodeMeta) -> bool:
    return isinstance(meta, GroupMeta) and meta.implicit
