"""Which format a node has, found out with one batch of requests.

A second one is made where the first finds nothing, for the documents of formats that hardly anyone
has.
"""

from __future__ import annotations

import warnings

from zarr_dask.errors import NodeNotFoundError
from zarr_dask.formats.base import Format, NodeMeta, ReadOptions, read_documents, where
from zarr_dask.formats.v1 import V1
from zarr_dask.formats.v2 import V2
from zarr_dask.formats.v3 import V3
from zarr_dask.stores.base import Store

__all__ = ["FORMATS", "format_named", "read_node"]

_BATCHES: tuple[tuple[Format, ...], ...] = ((V3, V2), (V1,))
"""Formats whose documents are asked for together; each batch if those before have found nothing."""

FORMATS: tuple[Format, ...] = tuple(known for batch in _BATCHES for known in batch)
"""All formats; where documents of several lie at one path, the first wins."""


def format_named(name: str) -> Format:
    """A format by its name.

    Raises
    ------
    ValueError
        If there is none of that name.
    """
    for candidate in FORMATS:
        if candidate.name == name:
            return candidate
    known = ", ".join(repr(candidate.name) for candidate in FORMATS)
    raise ValueError(f"format={name!r}: expected one of {known}, or None to find it out.")


def read_node(
    store: Store, path: str, format: str | None, options: ReadOptions
) -> tuple[Format, NodeMeta]:
    """The node at a path and its format.

    Parameters
    ----------
    store, path
        Where it is.
    format
        Name of the format; None to ask for the documents of all formats.
    options
        How to read.

    Raises
    ------
    NodeNotFoundError
        If there is no node.
    MetadataError
        If its documents are wrong.
    """
    if format is not None:
        chosen = format_named(format)
        meta = chosen.read(store, path, options, found={})
        if meta is None:
            raise NodeNotFoundError(
                where(store, path),
                chosen.node_keys(path),
                f"Only format {format!r} was asked for; leave format out to try all of them.",
            )
        return chosen, meta
    for batch in _BATCHES:
        node = _node_of(batch, store, path, options)
        if node is not None:
            return node
    keys = [key for candidate in FORMATS for key in candidate.node_keys(path)]
    raise NodeNotFoundError(where(store, path), keys, "Check the path, and the mode of opening.")


def _node_of(
    batch: tuple[Format, ...], store: Store, path: str, options: ReadOptions
) -> tuple[Format, NodeMeta] | None:
    """The node of one of some formats, whose documents are asked for in one batch."""
    keys = [key for candidate in batch for key in candidate.node_keys(path)]
    found = read_documents(store, keys, options.limits)
    present = [c for c in batch if any(found[key] is not None for key in c.node_keys(path))]
    for chosen in present:
        meta = chosen.read(store, path, options, found=found)
        if meta is None:
            continue
        if len(present) > 1:
            warnings.warn(
                f"{where(store, path)} has documents of the formats "
                f"{', '.join(c.name for c in present)}; {chosen.name} is used. "
                f"Pass format= to choose.",
                stacklevel=5,
            )
        return chosen, meta
    return None
