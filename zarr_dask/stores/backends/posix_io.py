"""Reading and writing all bytes of open files, in as many system calls as it takes."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from zarr_dask._util.buffers import thread_buffer
from zarr_dask.stores.base import Buffer

__all__ = [
    "CLOEXEC",
    "IS_COMPLETE",
    "MOST_REMOVED",
    "READ",
    "append_once",
    "close_read",
    "make_folder",
    "read_at",
    "read_parts",
    "write",
    "write_at",
    "write_pieces",
]

CLOEXEC = getattr(os, "O_CLOEXEC", 0)
READ = os.O_RDONLY | CLOEXEC | getattr(os, "O_NONBLOCK", 0)  # a pipe must not block a reader
IS_COMPLETE = hasattr(os, "pread") and hasattr(os, "O_DIRECTORY") and os.open in os.supports_dir_fd
"""True if the system has the calls by which local files are read and written."""
MOST_REMOVED = 10_000
"""Attempts to use a folder that other processes keep removing.

With 100, some of 200,000 writes failed while three other threads removed the folder.
"""
_MAX_BUFFERS_PER_CALL = 1024  # IOV_MAX on Linux and macOS
_MAX_BYTES_PER_CALL = 1 << 30  # Linux moves at most 2 GiB - 4 KiB in one call


def close_read(descriptor: int) -> None:
    """Close a file that was only read, or a folder: where that fails, nothing is lost."""
    with suppress(OSError):
        os.close(descriptor)


def read_parts(descriptor: int, parts: Sequence[tuple[int, int]]) -> list[memoryview]:
    """Read parts of a file into memory of this thread; shorter where the file ends."""
    memory = thread_buffer("encoded", sum(length for _, length in parts)).data
    found = []
    position = 0
    for start, length in parts:
        done = _read_into(descriptor, memory[position : position + length], start)
        found.append(memory[position : position + done])
        position += length
    return found


def read_at(descriptor: int, start: int, length: int) -> bytes:
    """Return `length` bytes from `start`; fewer where the file ends."""
    data = os.pread(descriptor, min(length, _MAX_BYTES_PER_CALL), start)
    if len(data) == length or not data:
        return data
    pieces = [data]
    done = len(data)
    while done < length:
        data = os.pread(descriptor, min(length - done, _MAX_BYTES_PER_CALL), start + done)
        if not data:
            break
        pieces.append(data)
        done += len(data)
    return b"".join(pieces)


def _read_into(descriptor: int, memory: memoryview, start: int) -> int:
    """Fill `memory` from a byte on; return the number of bytes read."""
    length = len(memory)
    done = 0
    while done < length:
        count = os.preadv(descriptor, [memory[done : done + _MAX_BYTES_PER_CALL]], start + done)
        if count == 0:
            break
        done += count
    return done


def make_folder(folder: str) -> None:
    """Create a folder if necessary; it may be gone again where others remove empty ones.

    Raises
    ------
    OSError
        If there is something else at the path, or the system refuses.
    """
    try:
        with suppress(FileNotFoundError):  # one above it was removed meanwhile
            os.makedirs(folder, exist_ok=True)
    except FileExistsError:  # it was removed before `makedirs` checked its type
        if os.path.lexists(folder) and not os.path.isdir(folder):
            raise


def write(descriptor: int, buffers: Sequence[Buffer]) -> None:
    """Write all buffers at the current position of a file."""
    _write_all(buffers, lambda views, _: os.writev(descriptor, views))


def write_pieces(descriptor: int, pieces: Iterable[Buffer]) -> None:
    """Write pieces at the current position of a file as they arrive, each in its own call."""
    for piece in pieces:
        write(descriptor, [piece])


def write_at(descriptor: int, buffers: Sequence[Buffer], start: int) -> None:
    """Write all buffers one after the other, from an offset of a file on."""
    _write_all(buffers, lambda views, done: os.pwritev(descriptor, views, start + done))


def _write_all(
    buffers: Sequence[Buffer], write_some: Callable[[list[memoryview], int], int]
) -> None:
    """Write all buffers; the system may write fewer bytes per call than it is given."""
    pending = [view for view in map(_flat, buffers) if len(view)]
    first = written = 0
    while first < len(pending):
        done = write_some(pending[first : first + _MAX_BUFFERS_PER_CALL], written)
        written += done
        while done:
            view = pending[first]
            if done < len(view):
                pending[first] = view[done:]
                break
            done -= len(view)
            first += 1


def append_once(descriptor: int, data: bytes) -> None:
    """Append in one call, so that concurrent appends of threads do not mix their bytes."""
    done = os.write(descriptor, data)
    if done < len(data):
        raise OSError(errno.ENOSPC, f"{done} of {len(data)} bytes were written")


def _flat(buffer: Buffer) -> memoryview:
    view = memoryview(buffer)
    return view if view.ndim == 1 and view.itemsize == 1 else view.cast("B")
