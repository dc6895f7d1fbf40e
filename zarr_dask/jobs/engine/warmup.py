"""Codec warm-up of a process, so that memory measured for tasks does not include it.

A library that encodes is read from disk as far as it is used, and makes its tables. Python makes
objects for every line that runs for the first time. This takes up to a megabyte, stays in the
process, belongs to no task, and would count against a limit of two. So one chunk of invented
numbers is encoded and decoded first. For large chunks this is skipped: they make it negligible.
"""

from __future__ import annotations

from contextlib import suppress
from math import prod
from threading import Lock

import numpy as np

from zarr_dask.array.array import Array
from zarr_dask.codecs.base import DecodeOptions, concat_buffers
from zarr_dask.codecs.chain import BoundCodecChain
from zarr_dask.errors import ZarrDaskError
from zarr_dask.formats.base import ArrayMeta

__all__ = ["warm_up_codecs"]

_LARGEST = 1 << 20
"""Maximum bytes of a stored object for which a warm-up is useful."""


class _Rehearsed:
    """Codecs that this process has warmed up."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._names: set[tuple[str, ...]] = set()

    def is_new(self, names: tuple[str, ...]) -> bool:
        """True if codecs of these names have not been warmed up before."""
        with self._lock:
            new = names not in self._names
            self._names.add(names)
        return new


_REHEARSED = _Rehearsed()


def warm_up_codecs(source: Array, target: Array) -> None:
    """Warm up the codecs of arrays, once per process for codecs of the same names.

    Parameters
    ----------
    source, target
        Source and target; their data is neither read nor written.
    """
    for array in (target, source):
        meta = array.meta
        if meta.codecs.skipped or meta.dtype.kind not in "biufc":
            continue
        small = meta.largest_bound().spec.nbytes <= _LARGEST
        if small and _REHEARSED.is_new(_names(meta)):
            with suppress(ZarrDaskError):  # the codec may not accept these numbers
                _there_and_back(meta.largest_bound())


def _names(meta: ArrayMeta) -> tuple[str, ...]:
    inner = meta.codecs.serializer.inner_codecs or ()
    return tuple(codec.name for codec in (*meta.codecs.codecs, *inner))


def _there_and_back(bound: BoundCodecChain) -> None:
    values = (
        (np.arange(prod(bound.spec.shape)) % 2).astype(bound.spec.dtype).reshape(bound.spec.shape)
    )
    stored = concat_buffers(bound.encode(values))
    bound.decode(stored, None, np.empty_like(values), DecodeOptions())
