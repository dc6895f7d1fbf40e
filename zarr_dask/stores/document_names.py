"""Names of metadata files, of all formats; stores treat these values with more care than data."""

from __future__ import annotations

__all__ = ["DOCUMENTS", "is_document"]

DOCUMENTS = {"zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata", "meta", "attrs"}
"""Names of metadata files that are no record of a job."""


def is_document(key: str) -> bool:
    """True if a key is that of metadata or of the record of a job.

    Examples
    --------
    >>> is_document("a/zarr.json"), is_document("a/.zattrs"), is_document("a/c/0")
    (True, True, False)
    """
    name = key.rpartition("/")[2]
    return name in DOCUMENTS or name.endswith(".json")
