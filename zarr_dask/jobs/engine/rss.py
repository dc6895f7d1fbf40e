"""Resident memory of this process: measured while a task runs, after a warm-up, and used again.

A library that encodes is read from disk as far as it is used, and makes its tables. Python makes
objects for every line that runs for the first time. This takes up to a megabyte, stays in the
process, belongs to no task, and would count against a limit of two. So one chunk of invented
numbers is encoded and decoded first. For large chunks this is skipped: they make it negligible.

A task gets a box with `reuse_buffer`. When it ends, the next task can use the box while other tasks
of its stage still run in the process; the last of them frees the boxes. Allocating the pages of a
box anew for each task costs about as much as decoding it. The memory of a process is as planned
even if its tasks are not in step.

There are never more boxes than concurrent tasks, and each was made for a task of its own. So boxes
hold no more memory than the largest tasks do together.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from zarr_dask._util.buffers import malloc_trim, mmap_empty, task_memory_scope
from zarr_dask.array.array import Array
from zarr_dask.codecs.base import DecodeOptions, concat_buffers
from zarr_dask.codecs.chain import BoundCodecChain
from zarr_dask.errors import ZarrDaskError
from zarr_dask.formats.base import ArrayMeta
from zarr_dask.grid.grid import Shape

__all__ = ["RssProbe", "measure_rss", "process_name", "reuse_buffer", "warm_up_codecs"]


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
        if stage != self._stage and rehearse is not None:
            rehearse()
        malloc_trim()  # else a task would reuse it, or free it
        self._stage, self.nbytes = stage, _resident()


_IDLE = _IdleMemory()


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


class _WarmCodecs:
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


_REHEARSED = _WarmCodecs()


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


_BYTE = np.dtype(np.uint8)
_SMALLEST = 1 << 20
"""Minimum bytes of a box for which reuse pays off."""


@dataclass(frozen=True)
class _FreeBuffer:
    """A box that no task uses."""

    stage: Hashable
    memory: np.ndarray


class _BufferPool:
    """Boxes of this process."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._free: list[_FreeBuffer] = []
        self._tasks: Counter[Hashable] = Counter()
        """Number of running tasks of each stage."""

    def enter(self, stage: Hashable, nbytes: int) -> np.ndarray | None:
        """Count one more task; return a free box that is large enough for it, or None."""
        with self._lock:
            self._tasks[stage] += 1
            fitting = [
                one for one in self._free if one.stage == stage and one.memory.nbytes >= nbytes
            ]
            if not fitting and not self._free:
                return None
            # free a box that is too small before a new one is made
            taken = min(fitting or self._free, key=lambda one: one.memory.nbytes)
            self._free = [one for one in self._free if one is not taken]
        return taken.memory if fitting else None

    def leave(self, stage: Hashable, memory: np.ndarray | None) -> None:
        """Count one task less; the last task of a stage frees all boxes."""
        with self._lock:
            self._tasks[stage] -= 1
            if self._tasks[stage]:
                if memory is not None:
                    self._free.append(_FreeBuffer(stage, memory))
                return
            del self._tasks[stage]
            self._free = [one for one in self._free if one.stage != stage]


_BOXES = _BufferPool()


@contextmanager
def reuse_buffer(stage: Hashable, shape: Shape, dtype: np.dtype[Any]) -> Iterator[np.ndarray]:
    """Yield memory for a box, with arbitrary content, while a task of a stage uses it.

    Parameters
    ----------
    stage
        Key that is equal for tasks that share their boxes.
    shape, dtype
        Shape and data type of the box.
    """
    nbytes = prod(shape) * dtype.itemsize
    if dtype.hasobject or nbytes < _SMALLEST:
        yield np.empty(shape, dtype)
        return
    memory = _BOXES.enter(stage, nbytes)
    try:
        if memory is None:
            memory = mmap_empty((nbytes,), _BYTE)
        yield memory[:nbytes].view(dtype).reshape(shape)
    finally:
        _BOXES.leave(stage, memory)
