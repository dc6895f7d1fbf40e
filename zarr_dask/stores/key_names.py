"""Names of keys that stores treat apart: metadata, records of jobs, and temporary files.

Files that are written and then renamed are called ``.zarr-dask-<16 hex digits>.tmp``. The digits
tell the process that writes the file, so that what a killed one has left is known.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Literal

from zarr_dask.stores.process_identity import number_of_process, state_of_number

__all__ = [
    "in_order_of_removal",
    "is_document",
    "is_left_by_the_dead",
    "is_metadata",
    "is_removed",
    "is_temporary",
    "is_value",
    "state_of_token",
    "temporary_name",
    "token_of_process",
]


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


def in_order_of_removal(keys: Iterable[str], most: int) -> Iterator[list[str]]:
    """Yield keys that are to be deleted, at most so many at a time, those of metadata first.

    Readers then find no array, rather than one whose objects are missing.

    Examples
    --------
    >>> list(in_order_of_removal(["a/c/0", "a/zarr.json", "b/c/0", "b/c/1"], 2))
    [['a/zarr.json'], ['a/c/0', 'b/c/0'], ['b/c/1']]
    """
    documents, others = list[str](), list[str]()
    for key in keys:
        (documents if is_document(key) else others).append(key)
    for some in (documents, others):
        yield from (some[start : start + most] for start in range(0, len(some), most))


_NAME = re.compile(r"\.zarr-dask-([0-9a-f]{16})\.tmp")
_IN_USE = re.compile(r"\.(?:nfs|fuse_hidden)[0-9a-f]+")
_COUNT_BITS = 24
_COUNT = count(int.from_bytes(os.urandom(_COUNT_BITS // 8)))
"""Counts the files of this process; it begins anywhere, since numbers of processes come again."""


def token_of_process() -> str:
    """Return 16 hex digits for the name of something that this process alone needs."""
    number = next(_COUNT) & (1 << _COUNT_BITS) - 1
    return f"{number_of_process() << _COUNT_BITS | number:016x}"


def state_of_token(token: str) -> Literal["running", "dead", "unknown"]:
    """Return the state of the process that such a token is of; that of another host is unknown."""
    return state_of_number(int(token, 16) >> _COUNT_BITS)


def temporary_name() -> str:
    """Return a name that no other file of this folder has.

    Examples
    --------
    >>> len({temporary_name() for _ in range(1000)}), is_temporary(temporary_name())
    (1000, True)
    """
    return f".zarr-dask-{token_of_process()}.tmp"


def is_temporary(name: str) -> bool:
    """True if a name is one of those."""
    return _NAME.fullmatch(name) is not None


def is_removed(name: str) -> bool:
    """True for a removed file that a process has open: so NFS and FUSE call it until it is closed.

    Examples
    --------
    >>> is_removed(".nfs00000000012a4b6600000001"), is_removed(".fuse_hidden0000000b00000065")
    (True, True)
    """
    return _IN_USE.fullmatch(name) is not None


def is_value(name: str) -> bool:
    """True if a file of this name is a value of a store, and not one of those above."""
    return not name.startswith(".") or not (is_temporary(name) or is_removed(name))


def is_left_by_the_dead(name: str) -> bool:
    """True if a process of this host has left the file, and is known to be gone.

    Examples
    --------
    >>> is_left_by_the_dead(temporary_name())
    False
    """
    found = _NAME.fullmatch(name)
    return found is not None and state_of_token(found[1]) == "dead"
