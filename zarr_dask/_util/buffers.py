"""Working memory that is not the result of a read.

Each thread reuses memory that is needed only while one chunk is processed: allocating and freeing a
few megabytes costs about as much as decoding them. `thread_buffer` holds our own buffers and
`SegmentedBuffer` the encoded chunks of a shard, both until the last task of the process ends
(`task_memory_scope`). `malloc_keep_freed` is for the buffers of codecs in dask workers, which are
configured to return freed memory immediately (``MALLOC_TRIM_THRESHOLD_``).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from math import prod
from typing import Any, Literal, Self
from weakref import WeakSet

import numpy as np

__all__ = [
    "SegmentedBuffer",
    "keep_freed_arrays",
    "malloc_keep_freed",
    "malloc_trim",
    "mmap_empty",
    "prefault",
    "release_thread_buffers",
    "reserve_buffer",
    "task_memory_scope",
    "thread_buffer",
]

Use = Literal["encoded", "decoded", "chunk", "frame", "run", "box", "shuffled"]
Buffer = bytes | bytearray | memoryview
First = Callable[[bool], object]

_LARGEST_KEPT = 1 << 26
_BYTE = np.dtype(np.uint8)
_STEP = 1 << 20  # encoded chunks differ a little in size; rounding up avoids reallocation


class _ThreadBuffers:
    """Memory held by a thread, which others may free, except what is in use."""

    def __init__(self) -> None:
        self.memory: dict[Use, np.ndarray] = {}
        self.segments: list[memoryview] = []
        """Memory that `SegmentedBuffer` writes to, in parts of `_STEP` bytes, at most 64 MiB. Empty
        while a `SegmentedBuffer` uses them."""
        self.purpose: Hashable = None
        """Purpose that the memory was used for; None if not for tasks."""
        self.tasks = 0
        """Number of tasks running in the thread, nested in each other."""

    def give_back(self) -> None:
        self.memory.clear()
        self.segments.clear()


class _BuffersOfThreads:
    """Memory of all live threads of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: WeakSet[_ThreadBuffers] = WeakSet()
        self._worker: _ThreadBuffers | None = None
        """The first thread that has run a task."""
        self._several = False
        """True if other threads have run tasks, too."""

    def forget(self) -> None:
        """Reset in a new process, which has one thread, no running task and a free lock."""
        self._lock = threading.Lock()
        self._all = WeakSet()
        _KEPT.keeper.tasks = 0
        self._all.add(_KEPT.keeper)

    def add(self, one: _ThreadBuffers) -> None:
        with self._lock:
            self._all.add(one)

    def begin(self, here: _ThreadBuffers, purpose: Hashable, first: First | None) -> None:
        """Register the start of a task; if no other runs, call `first` before any other starts."""
        with self._lock:
            alone = not any(one.tasks for one in self._all)
            for one in self._all:
                if not one.tasks and (alone or one.purpose not in {None, purpose}):
                    one.give_back()
            if here.purpose != purpose:
                here.give_back()
                here.purpose = purpose
            self._worker = self._worker or here
            self._several = self._several or self._worker is not here
            if alone and first is not None:
                first(_ALLOCATOR.told and not self._several)
            here.tasks += 1

    def end(self, here: _ThreadBuffers) -> None:
        """Register the end of a task; after the last one, free the memory of all tasks."""
        with self._lock:
            here.tasks = max(here.tasks - 1, 0)  # a new process has no running task
            if any(one.tasks for one in self._all):
                return
            for one in self._all:
                if one.purpose is not None:
                    one.give_back()
                    one.purpose = None


_KEEPERS = _BuffersOfThreads()


class _ThreadMemory(threading.local):
    """Memory held by the current thread."""

    def __init__(self) -> None:
        self.keeper = _ThreadBuffers()
        self.memory = self.keeper.memory
        self.gathers = False
        """True while a `SegmentedBuffer` is active."""
        _KEEPERS.add(self.keeper)


_KEPT = _ThreadMemory()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_KEEPERS.forget)


def thread_buffer(use: Use, nbytes: int) -> np.ndarray:
    """Return `nbytes` of memory, overwritten by this thread's next call for the same use.

    Parameters
    ----------
    use
        ``"encoded"`` for bytes as they are stored, ``"decoded"`` for elements of a chunk before
        they are copied, ``"chunk"`` for a whole chunk of which several regions are taken,
        ``"frame"`` for those encoded blocks of a chunk that are read, ``"run"`` for adjacent
        chunks, ``"shuffled"`` for bytes that are sorted by significance.
    nbytes
        Number of bytes; memory above 64 MiB is not reused.
    """
    if nbytes > _LARGEST_KEPT:
        return np.empty(nbytes, np.uint8)
    memory = _KEPT.memory.get(use)
    if memory is None or memory.size < nbytes:
        roomy = -(-nbytes // _STEP) * _STEP if nbytes > _STEP else nbytes
        _KEPT.memory.pop(use, None)  # free the old memory before the new one is made
        memory = _KEPT.memory[use] = mmap_empty((roomy,), _BYTE)
    return memory[:nbytes]


@contextmanager
def reserve_buffer(use: Use, nbytes: int) -> Iterator[np.ndarray]:
    """Yield memory as `thread_buffer` does, reserved until the end of the statement.

    It is for generators: between two of their items the thread may need scratch memory, too.
    """
    memory = thread_buffer(use, nbytes)
    _KEPT.memory.pop(use, None)
    try:
        yield memory
    finally:
        if nbytes <= _LARGEST_KEPT:
            _KEPT.memory[use] = memory if memory.base is None else memory.base


def release_thread_buffers() -> None:
    """Free the memory that the current thread holds."""
    _KEPT.keeper.give_back()


@contextmanager
def task_memory_scope(purpose: Hashable, first: First | None = None) -> Iterator[None]:
    """Run a task whose memory the current thread keeps for the next one of the same purpose.

    When a task of another purpose begins, the memory of idle threads is freed; when the last task
    ends, all of it. Otherwise a stage with small chunks would hold the memory of an earlier stage
    with large ones, which its plan does not count.

    Parameters
    ----------
    purpose
        A value that is equal for the tasks of one stage; not None.
    first
        Called if no other task runs in this process; no task begins before it returns. Its argument
        is True if no memory of finished tasks is left in the process. malloc may keep some for each
        thread, except for the last one to work if freed memory is returned immediately.
    """
    keeper = _KEPT.keeper
    _KEEPERS.begin(keeper, purpose, first)
    try:
        yield
    finally:
        _KEEPERS.end(keeper)


_PAGE_MAPPED = 1 << 20
_HUGE = 1 << 22  # NumPy requests large pages from this size on


def mmap_empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Return memory for many chunks that goes back to the system as soon as it is freed.

    malloc keeps large blocks that were freed, up to 32 MB for each thread, in any process but a
    dask worker. A task with a large memory bound would then hold twice as much.
    """
    nbytes = prod(shape) * dtype.itemsize
    if nbytes < _PAGE_MAPPED or dtype.hasobject:
        return np.empty(shape, dtype)
    if sys.platform == "win32":
        memory = mmap.mmap(-1, nbytes)
    else:  # private: shared mappings get no large pages
        memory = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if nbytes >= _HUGE and sys.platform == "linux":
        with suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8).view(dtype).reshape(shape)


_PAGE = 1 << 12


def prefault(memory: np.ndarray) -> None:
    """Make the system provide the memory of an array, leaving its elements unchanged.

    The system does so when a page is first written to, which takes as long as filling it.
    """
    flat = memory.ravel(order="K")
    if flat.base is None or memory.dtype.hasobject or memory.dtype.kind == "T":
        return  # it is a copy, or not made of bytes
    pages = flat.view(np.uint8)[::_PAGE]
    pages |= 0


# --- pieces of one object -------------------------------------------------------------------------


class SegmentedBuffer:
    """Pieces of bytes, copied one after the other into memory that the thread reuses.

    A shard consists of many encoded chunks. Keeping them uncopied would take new memory from the
    system for each shard, which costs a quarter of the time of compressing them. If they are
    copied, each chunk is encoded in the memory of the one before it.

    The result of `buffers` is valid until the same thread gathers again. Nested ``with`` statements
    (a shard in a shard) do not copy the pieces of the inner one. A thread holds as much memory as
    the last object needed, at most 64 MiB; pieces beyond that are not copied either.

    Examples
    --------
    >>> with SegmentedBuffer() as gathered:
    ...     gathered.add(b"one")
    ...     gathered.add(b"two")
    >>> [bytes(buffer) for buffer in gathered.buffers()]
    [b'onetwo']
    """

    def __init__(self) -> None:
        self._segments: list[memoryview] | None = None
        self._used = 0
        self._loose: list[Buffer] = []

    def __enter__(self) -> Self:
        if not _KEPT.gathers:
            _KEPT.gathers = True
            kept = _KEPT.keeper.segments
            self._segments = kept.copy()
            kept.clear()  # others cannot free the memory in use
        return self

    def __exit__(self, *error: object) -> None:
        if self._segments is not None:
            _KEPT.gathers = False
            _KEPT.keeper.segments[:] = self._segments[: -(-self._used // _STEP)]

    def add(self, piece: Buffer) -> None:
        """Append a piece."""
        nbytes = len(piece)
        if self._segments is None or self._loose or self._used + nbytes > _LARGEST_KEPT:
            self._loose.append(piece)
            return
        done = 0
        while done < nbytes:
            number, start = divmod(self._used, _STEP)
            if number == len(self._segments):
                self._segments.append(np.empty(_STEP, np.uint8).data)
            step = min(nbytes - done, _STEP - start)
            part = piece if step == nbytes else piece[done : done + step]
            self._segments[number][start : start + step] = part
            self._used += step
            done += step

    def buffers(self) -> list[Buffer]:
        """Return all bytes, in few buffers."""
        found: list[Buffer] = list(self._loose)
        if self._segments is not None:
            whole, rest = divmod(self._used, _STEP)
            found[:0] = self._segments[:whole]
            if rest:
                found.insert(whole, self._segments[whole][:rest])
        return found


# --- memory of codecs -----------------------------------------------------------------------------

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of glibc's mallopt
_LARGEST_FREE_TOP, _LARGEST_ON_HEAP = 4 << 20, 4 << 20  # small for any memory bound
_LARGER_THAN_SMALL = 96 << 10
"""Size of a freed block for which malloc trims: it then returns the end of a thread's own heap to
the system, which ``malloc_trim`` omits."""
_DEFAULT_ON_HEAP = 128 << 10  # the threshold once a trim threshold is set


class _Allocator:
    """malloc of this process, if it is configured to return memory immediately."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._libc: Any = None
        told = os.environ.get("MALLOC_TRIM_THRESHOLD_", "")
        self._told = int(told) if told.isdecimal() else None
        if self._told is not None:
            libc = ctypes.CDLL(None)
            if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim"):  # glibc
                libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
                libc.free.restype, libc.free.argtypes = None, [ctypes.c_void_p]
                self._libc = libc

    @property
    def told(self) -> bool:
        """True if it is configured so."""
        return self._libc is not None

    def enter(self) -> None:
        """Add a user; the first changes the thresholds."""
        if self._libc is None:
            return
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._libc.mallopt(_MMAP_THRESHOLD, _LARGEST_ON_HEAP)
                self._libc.mallopt(_TRIM_THRESHOLD, _LARGEST_FREE_TOP)

    def leave(self) -> None:
        """Remove a user; the last restores the thresholds and returns all free memory."""
        if self._libc is None:
            return
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._libc.mallopt(_MMAP_THRESHOLD, _DEFAULT_ON_HEAP)
                self._libc.mallopt(_TRIM_THRESHOLD, self._told)
                self._libc.malloc_trim(0)
                self._libc.free(self._libc.malloc(_LARGER_THAN_SMALL))


_ALLOCATOR = _Allocator()


@cache
def keep_freed_arrays(nbytes: int) -> None:
    """Let malloc reuse freed arrays of up to this size, as it does once a larger one was freed.

    glibc returns what is free beyond twice its largest freed array so far. A process whose first
    large arrays are the blocks of a dataset would take new pages for each of them, which costs a
    quarter of the processor time of a mean. This has no effect with another C library, or if
    ``MALLOC_TRIM_THRESHOLD_`` is set.

    Parameters
    ----------
    nbytes
        Bytes of an array; several of them may be free at a time.
    """
    np.empty(2 * nbytes, np.uint8)  # untouched, and freed at once


def malloc_trim() -> None:
    """Return the memory that malloc holds to the system, in a fraction of a millisecond.

    This has no effect unless the C library is glibc.
    """
    trim = _trim()
    if trim is not None:
        trim(0)


@cache
def _trim() -> Any:
    """Return ``malloc_trim`` if it exists."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None


@contextmanager
def malloc_keep_freed() -> Iterator[None]:
    """Let malloc keep freed memory while a task runs, as in any process but a dask worker.

    Afterwards everything is returned at once, as the worker was configured. This has no effect if
    ``MALLOC_TRIM_THRESHOLD_`` is not set, or the C library is not glibc. A rechunking task of many
    2 MB chunks takes a third less time.
    """
    _ALLOCATOR.enter()
    try:
        yield
    finally:
        _ALLOCATOR.leave()
