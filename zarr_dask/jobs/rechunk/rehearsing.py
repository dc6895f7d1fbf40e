"""What the first task of a process would load and keep, loaded before memory is looked at.

A library that encodes is read from disk as far as it is used, makes its tables, and Python makes
objects for every line that runs for the first time: up to a megabyte, which stays in the process,
belongs to no task, and would count against a bound of two. So one chunk of invented numbers is
encoded and decoded before. Of large chunks none is: beside them that is nothing.
"""

from __future__ import annotations

from contextlib import suppress
from math import prod
from threading import Lock

import numpy as np

from zarr_dask.array import Array
from zarr_dask.codecs.base import Reading, joined
from zarr_dask.codecs.chain import BoundChain
from zarr_dask.errors import ZarrDaskError
from zarr_dask.formats.base import ArrayMeta

__all__ = ["rehearse"]

_LARGEST = 1 << 20
"""Bytes of a stored object that is worth it."""


class _Rehearsed:
    """What this process has rehearsed."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._names: set[tuple[str, ...]] = set()

    def is_new(self, names: tuple[str, ...]) -> bool:
        """Whether codecs of these names have not been here before."""
        with self._lock:
            new = names not in self._names
            self._names.add(names)
        return new


_REHEARSED = _Rehearsed()


def rehearse(source: Array, target: Array) -> None:
    """Encode and decode what arrays hold, once in a process for codecs of the same names.

    Parameters
    ----------
    source, target
        Nothing of them is read or written.
    """
    for array in (target, source):
        meta = array.meta
        if meta.codecs.skipped or meta.dtype.kind not in "biufc":
            continue
        small = meta.largest_bound().spec.nbytes <= _LARGEST
        if small and _REHEARSED.is_new(_names(meta)):
            with suppress(ZarrDaskError):  # what takes other numbers only
                _there_and_back(meta.largest_bound())


def _names(meta: ArrayMeta) -> tuple[str, ...]:
    inner = meta.codecs.serializer.inner_codecs or ()
    return tuple(codec.name for codec in (*meta.codecs.codecs, *inner))


def _there_and_back(bound: BoundChain) -> None:
    values = (
        (np.arange(prod(bound.spec.shape)) % 2).astype(bound.spec.dtype).reshape(bound.spec.shape)
    )
    stored = joined(bound.encode(values))
    bound.decode(stored, None, np.empty_like(values), Reading())
