"""Names of keys that stores treat apart: metadata, records of jobs, and temporary files.

Files that are written and then renamed are called ``.zarr-dask-<16 hex digits>.tmp``. The digits
tell the process that writes the file, so that what a killed one has left is known.
"""

from __future__ import annotations

import os
import re
from itertools import count

from zarr_dask.stores.process_identity import is_number_of_gone, number_of_process

__all__ = ["is_document", "is_left_by_the_dead", "is_metadata", "is_temporary", "temporary_name"]


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


_NAME = re.compile(r"\.zarr-dask-([0-9a-f]{16})\.tmp")
_COUNT_BITS = 24
_COUNT = count(int.from_bytes(os.urandom(_COUNT_BITS // 8)))
"""Counts the files of this process; it begins anywhere, since numbers of processes come again."""


def temporary_name() -> str:
    """Return a name that no other file of this folder has.

    Examples
    --------
    >>> len({temporary_name() for _ in range(1000)}), is_temporary(temporary_name())
    (1000, True)
    """
    number = next(_COUNT) & (1 << _COUNT_BITS) - 1
    return f".zarr-dask-{number_of_process() << _COUNT_BITS | number:016x}.tmp"


def is_temporary(name: str) -> bool:
    """True if a name is one of those."""
    return _NAME.fullmatch(name) is not None


def is_left_by_the_dead(name: str) -> bool:
    """True if a process of this host has left the file, and is known to be gone.

    Examples
    --------
    >>> is_left_by_the_dead(temporary_name())
    False
    """
    found = _NAME.fullmatch(name)
    return found is not None and is_number_of_gone(int(found[1], 16) >> _COUNT_BITS)
