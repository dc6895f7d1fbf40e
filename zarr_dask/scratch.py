"""Where memory comes from that is not the result of a read.

A thread uses some again and again, for what lives only as long as one chunk is worked on.
Asking the system for a few megabytes and giving them back costs about as much as decoding them.
`scratch` keeps our own buffers, `Gathered` the encoded chunks of a shard, both until the last task
of the process ends (`working_for`); `keeping_freed_memory` is for the buffers that codecs make, in
dask workers, which are told to give every freed one back at once (``MALLOC_TRIM_THRESHOLD_``).
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
    "Gathered",
    "borrowed",
    "keeping_freed_memory",
    "lasting",
    "let_go",
    "provide",
    "return_freed_memory",
    "scratch",
    "working_for",
]

Use = Literal["encoded", "decoded", "chunk", "frame", "run"]
Buffer = bytes | bytearray | memoryview
First = Callable[[bool], object]

_LARGEST_KEPT = 1 << 26
_BYTE = np.dtype(np.uint8)
_STEP = 1 << 20  # encoded chunks differ a little in size; memory is not made anew for each


class _Keeper:
    """What a thread keeps, which others may take from it; what it works in stays as it is."""

    def __init__(self) -> None:
        self.memory: dict[Use, np.ndarray] = {}
        self.segments: list[memoryview] = []
        """Where `Gathered` puts bytes, each of `_STEP` bytes; 64 MiB at most. None of them while
        one is at work in these."""
        self.purpose: Hashable = None
        """What the memory has been used for; None if not for tasks."""
        self.tasks = 0
        """That run in the thread, one within the other."""

    def give_back(self) -> None:
        self.memory.clear()
        self.segments.clear()


class _Keepers:
    """Those of all threads of this process that are alive."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: WeakSet[_Keeper] = WeakSet()
        self._worker: _Keeper | None = None
        """Of the first thread that has run a task."""
        self._several = False
        """Whether others have, too."""

    def forget(self) -> None:
        """In a new process there is one thread, in which no task runs; nobody holds the lock."""
        self._lock = threading.Lock()
        self._all = WeakSet()
        _KEPT.keeper.tasks = 0
        self._all.add(_KEPT.keeper)

    def add(self, one: _Keeper) -> None:
        with self._lock:
            self._all.add(one)

    def begin(self, here: _Keeper, purpose: Hashable, first: First | None) -> None:
        """A task begins in a thread; if no other one runs, call `first` before any other begins."""
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

    def end(self, here: _Keeper) -> None:
        """A task has ended; with the last of the process all that tasks have kept goes."""
        with self._lock:
            here.tasks = max(here.tasks - 1, 0)  # in a new process nothing has begun
            if any(one.tasks for one in self._all):
                return
            for one in self._all:
                if one.purpose is not None:
                    one.give_back()
                    one.purpose = None


_KEEPERS = _Keepers()


class _Kept(threading.local):
    """What the current thread keeps."""

    def __init__(self) -> None:
        self.keeper = _Keeper()
        self.memory = self.keeper.memory
        self.gathers = False
        """Whether a `Gathered` is at work."""
        _KEEPERS.add(self.keeper)


_KEPT = _Kept()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_KEEPERS.forget)


def scratch(use: Use, nbytes: int) -> np.ndarray:
    """Memory of `nbytes`, whose content the next call of this thread for the same use destroys.

    Parameters
    ----------
    use
        ``"encoded"`` for bytes as they are stored, ``"decoded"`` for elements of a chunk on their
        way to where they go, ``"chunk"`` for a whole chunk of which several regions are taken,
        ``"frame"`` for the encoded blocks of it that are wanted, ``"run"`` for chunks side by side.
    nbytes
        How many bytes; more than 64 MiB are not kept.
    """
    if nbytes > _LARGEST_KEPT:
        return np.empty(nbytes, np.uint8)
    memory = _KEPT.memory.get(use)
    if memory is None or memory.size < nbytes:
        roomy = -(-nbytes // _STEP) * _STEP if nbytes > _STEP else nbytes
        _KEPT.memory.pop(use, None)  # give the old memory back before the new one is made
        memory = _KEPT.memory[use] = lasting((roomy,), _BYTE)
    return memory[:nbytes]


@contextmanager
def borrowed(use: Use, nbytes: int) -> Iterator[np.ndarray]:
    """Memory as `scratch` gives it, which nobody else gets before the end of the statement.

    It is for generators: what the thread does between two of their items may need some, too.
    """
    memory = scratch(use, nbytes)
    _KEPT.memory.pop(use, None)
    try:
        yield memory
    finally:
        if nbytes <= _LARGEST_KEPT:
            _KEPT.memory[use] = memory if memory.base is None else memory.base


def let_go() -> None:
    """Give back what the current thread keeps."""
    _KEPT.keeper.give_back()


@contextmanager
def working_for(purpose: Hashable, first: First | None = None) -> Iterator[None]:
    """While a task runs in the current thread, keep its memory for the next one like it.

    What threads of the process keep that have nothing to do now goes when a task of another
    purpose begins, and everything when the last task ends. A stage that works on small chunks would
    hold the memory of one before it, which had large ones, besides all that its plan counts.

    Parameters
    ----------
    purpose
        Equal for the tasks of one stage; not None.
    first
        Called if no other task runs in this process; none begins before it returns. It is told
        whether nothing is left in the process of tasks that have ended. malloc may keep some for
        each thread, except for the last one that worked where freed memory goes back at once.
    """
    keeper = _KEPT.keeper
    _KEEPERS.begin(keeper, purpose, first)
    try:
        yield
    finally:
        _KEEPERS.end(keeper)


_PAGE_MAPPED = 1 << 20
_HUGE = 1 << 22  # NumPy asks for large pages from there on


def lasting(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Memory for many chunks, which goes back to the system as soon as it is let go.

    What malloc has once handed out in large blocks it later keeps, up to 32 MB for each thread, in
    any process but a dask worker; a task that may hold so many bytes would hold them twice.
    """
    nbytes = prod(shape) * dtype.itemsize
    if nbytes < _PAGE_MAPPED or dtype.hasobject:
        return np.empty(shape, dtype)
    if sys.platform == "win32":
        memory = mmap.mmap(-1, nbytes)
    else:  # private: what processes could share gets no large pages
        memory = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if nbytes >= _HUGE and sys.platform == "linux":
        with suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8).view(dtype).reshape(shape)


_PAGE = 1 << 12


def provide(memory: np.ndarray) -> None:
    """Have the system provide the memory of an array, in which every element stays as it is.

    It does so when a page is first written to, which takes as long as filling it.
    """
    flat = memory.ravel(order="K")
    if flat.base is None or memory.dtype.hasobject or memory.dtype.kind == "T":
        return  # it is a copy, or not made of bytes
    pages = flat.view(np.uint8)[::_PAGE]
    pages |= 0


# --- pieces of one whole --------------------------------------------------------------------------


class Gathered:
    """Pieces of bytes, copied into memory that the thread keeps, one after the other.

    A shard is made of many encoded chunks. Kept as they are, all of them lie in memory that is
    taken from the system for each shard anew, which takes a quarter of the time of compressing
    them. Copied, each is made in the memory of the one before it.

    What `buffers` gives is good until the same thread gathers again. Within a ``with`` statement
    that gathers, another one (a shard in a shard) leaves its pieces as they are. Threads keep as
    much as the last whole needed, and not more than 64 MiB; pieces beyond that are left as they
    are, too.

    Examples
    --------
    >>> with Gathered() as gathered:
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
            kept.clear()  # nobody else takes away what this one works in
        return self

    def __exit__(self, *error: object) -> None:
        if self._segments is not None:
            _KEPT.gathers = False
            _KEPT.keeper.segments[:] = self._segments[: -(-self._used // _STEP)]

    def add(self, piece: Buffer) -> None:
        """One more piece, behind those before it."""
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
        """All bytes, in few buffers."""
        found: list[Buffer] = list(self._loose)
        if self._segments is not None:
            whole, rest = divmod(self._used, _STEP)
            found[:0] = self._segments[:whole]
            if rest:
                found.insert(whole, self._segments[whole][:rest])
        return found


# --- what codecs allocate -------------------------------------------------------------------------

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of glibc's mallopt
_LARGEST_FREE_TOP, _LARGEST_ON_HEAP = 4 << 20, 4 << 20  # little enough for any bound of memory
_LARGER_THAN_SMALL = 96 << 10
"""Bytes that malloc looks around for when they are freed: the end of a thread's own heap goes back
to the system then, which ``malloc_trim`` forgets."""
_DEFAULT_ON_HEAP = 128 << 10  # where it stays once a trim threshold was set


class _Allocator:
    """malloc of this process, as far as it was told to give memory back at once."""

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
        """Whether it was."""
        return self._libc is not None

    def enter(self) -> None:
        """One more user; the first changes the thresholds."""
        if self._libc is None:
            return
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._libc.mallopt(_MMAP_THRESHOLD, _LARGEST_ON_HEAP)
                self._libc.mallopt(_TRIM_THRESHOLD, _LARGEST_FREE_TOP)

    def leave(self) -> None:
        """One user less; the last puts the thresholds back and gives all free memory back."""
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


def return_freed_memory() -> None:
    """Give back to the system what malloc keeps, which takes a fraction of a millisecond.

    Without effect where the C library is not glibc.
    """
    trim = _trim()
    if trim is not None:
        trim(0)


@cache
def _trim() -> Any:
    """``malloc_trim`` where there is one."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None


@contextmanager
def keeping_freed_memory() -> Iterator[None]:
    """While a task runs, let malloc keep what is freed, as in any process but a dask worker.

    Afterwards everything is given back at once, as the worker was told to do. Without effect where
    ``MALLOC_TRIM_THRESHOLD_`` is not set, or the C library is not glibc. A rechunking task of many
    2 MB chunks takes a third less time.
    """
    _ALLOCATOR.enter()
    try:
        yield
    finally:
        _ALLOCATOR.leave()
