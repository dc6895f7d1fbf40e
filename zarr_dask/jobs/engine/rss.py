"""Resident memory of this process, measured while a task runs, and codec warm-up before that.

A library that encodes is read from disk as far as it is used, and makes its tables. Python makes
objects for every line that runs for the first time. This takes up to a megabyte, stays in the
process, belongs to no task, and would count against a limit of two. So one chunk of invented
numbers is encoded and decoded first. For large chunks this is skipped: they make it negligible.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from math import prod
from pathlib import Path
from threading import Lock

import numpy as np

from zarr_dask._util.buffers import malloc_trim, task_memory_scope
from zarr_dask.array.array import Array
from zarr_dask.codecs.base import DecodeOptions, concat_buffers
from zarr_dask.codecs.chain import BoundCodecChain
from zarr_dask.codecs.checksum import crc32c
from zarr_dask.errors import ZarrDaskError
from zarr_dask.formats.base import ArrayMeta

__all__ = ["RssProbe", "measure_rss", "process_name", "warm_up_codecs"]


_FACTS = Path("/proc/self/statm")


class RssProbe:
    """Resident bytes of the process: when idle, and the maximum since a task started."""

    def __init__(self, idle: int) -> None:
        self.idle = idle
        self.peak = _resident()

    def look(self) -> None:
        """Measure again."""
        self.peak = max(self.peak, _resident())


@contextmanager
def measure_rss(
    stage: Hashable, rehearse: Callable[[], object] | None = None
) -> Iterator[RssProbe]:
    """Yield the memory of the process while a task runs; the last task frees what is cached.

    Parameters
    ----------
    stage
        Key that is equal for the tasks of one stage.
    rehearse
        Loads the libraries that the first task in a process would load.
    """

    def look(cleared: bool) -> None:
        _IDLE.look(stage, rehearse, cleared=cleared)

    with task_memory_scope(stage, look):
        yield RssProbe(_IDLE.nbytes)


class _IdleMemory:
    """The size of this process while no task runs.

    It is measured when a stage starts, and before each task if no memory of the last task is kept:
    a dask worker grows by itself, for instance by its records of tasks.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self._stage: Hashable = None

    def look(
        self, stage: Hashable, rehearse: Callable[[], object] | None, *, cleared: bool
    ) -> None:
        """Measure the idle size before a task of this stage, while no task runs."""
        if stage == self._stage and not cleared:
            self.nbytes = min(self.nbytes, _resident())
            return
        if stage != self._stage:
            _load()
            if rehearse is not None:
                rehearse()
        malloc_trim()  # else a task would reuse it, or free it
        self._stage, self.nbytes = stage, _resident()


_IDLE = _IdleMemory()


@cache
def _load() -> None:
    """Load libraries that the first task would load: they stay, and belong to no task."""
    crc32c(b"")


def _resident() -> int:
    """Return the resident bytes of this process; 0 if the system does not report them.

    Pages of files are left out: they are libraries, which any thread of the process may touch for
    the first time while a task runs, and which the system drops when it needs the memory.
    """
    try:
        resident, of_files = map(int, _FACTS.read_bytes().split()[1:3])
        return (resident - of_files) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


@cache
def _host() -> str:
    return socket.gethostname()


def process_name() -> str:
    """Return a name for this process that is unique across machines."""
    return f"{_host()}:{os.getpid()}"


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
