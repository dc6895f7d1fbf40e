"""Arrays as a plan describes them, and as they are found."""

from __future__ import annotations

from hashlib import sha256

from zarr_dask.array.array import Array
from zarr_dask.errors import MetadataError, NodeNotFoundError, NodeTypeError
from zarr_dask.hierarchy.group import open_array

__all__ = ["is_there_as_planned", "metadata_hash"]


def metadata_hash(array: Array) -> str:
    """Return a digest of an array's metadata, which does not depend on how it was opened."""
    documents = array.node_format.documents(array.meta, array.path)
    return sha256(b"\0".join(documents.values())).hexdigest()


def is_there_as_planned(target: Array) -> bool:
    """True if an array is there with the metadata planned for it."""
    try:
        found = open_array(target.store, target.path, format=target.format)
    except (NodeNotFoundError, NodeTypeError, MetadataError):
        return False
    return metadata_hash(found) == metadata_hash(target)
