"""Names of metadata files and records of jobs, by their form; stores take more care of these."""

from __future__ import annotations

__all__ = ["is_document", "is_metadata"]


def is_document(key: str) -> bool:
    """True if a key is that of metadata, in any format, or of the record of a job.

    Examples
    --------
    >>> is_document("a/zarr.json"), is_document("a/.zattrs"), is_document("a/c/0")
    (True, True, False)
    """
    name = key.rpartition("/")[2]
    return name.startswith(".z") or name.endswith(".json") or name in {"meta", "attrs"}


def is_metadata(key: str) -> bool:
    """True if a key is that of metadata, and of no record: these lie in folders named "__...".

    Examples
    --------
    >>> is_metadata("a/zarr.json"), is_metadata("x.zarr.zarr-dask/__job-1/job.json")
    (True, False)
    """
    return is_document(key) and "/__" not in f"/{key}"
