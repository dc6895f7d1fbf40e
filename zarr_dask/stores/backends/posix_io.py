"""Files: reads and writes of all bytes, the bytes of now, and names that survive a power cut.

FUSE and network file systems keep sizes and names of files for a while. What another host has
replaced meanwhile is then read with the size of its predecessor: cut off, or not at all.

A file is lost with any folder on its path. So all of these must be on the disk before a write
returns, even if another thread or process has created them just now and has not synced them yet. A
process remembers the folders that are known to be on the disk, by device and inode. It forgets
those that it removes or renames, with all below them.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache
from threading import Lock
from typing import Any

from zarr_dask._util.buffers import thread_buffer
from zarr_dask.stores.base import Buffer

__all__ = [
    "CLOEXEC",
    "IS_COMPLETE",
    "LIST",
    "MOST_REMOVED",
    "READ",
    "READ_NO_LINK",
    "append_once",
    "close_read",
    "forget_folders",
    "fresh_bytes",
    "fsync_folder",
    "fsync_names",
    "fsync_names_in_time",
    "make_folder",
    "names_later",
    "read_at",
    "read_part",
    "refresh",
    "write",
    "write_at",
    "write_pieces",
]


CLOEXEC = getattr(os, "O_CLOEXEC", 0)
READ = os.O_RDONLY | CLOEXEC | getattr(os, "O_NONBLOCK", 0)  # a pipe must not block a reader
READ_NO_LINK = READ | getattr(os, "O_NOFOLLOW", 0)
"""Fails for links; where the system says that there is no file, there is no link either."""
LIST = os.O_RDONLY | CLOEXEC | getattr(os, "O_DIRECTORY", 0)
"""Opens a folder to list, to sync or to lock it."""
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
    try:
        os.close(descriptor)
    except OSError:
        return


def read_part(descriptor: int, start: int, length: int) -> memoryview:
    """Read a part of a file into memory of this thread; it is shorter where the file ends."""
    memory = thread_buffer("encoded", length).data
    if not length:
        return memory
    done = os.preadv(descriptor, [memory[:_MAX_BYTES_PER_CALL]], start)
    while 0 < done < length:
        count = os.preadv(descriptor, [memory[done : done + _MAX_BYTES_PER_CALL]], start + done)
        if not count:
            break
        done += count
    return memory[:done]


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
    if len(buffers) == 1:
        view = _flat(buffers[0])
        done = os.writev(descriptor, [view[:_MAX_BYTES_PER_CALL]])
        if done == len(view):
            return
        buffers = [view[done:]]
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


_EMPTY_PATH, _FORCE_SYNC, _BASIC = 0x1000, 0x2000, 0x7FF  # flags of statx
_LONGEST_RECORD = 1 << 16  # bytes


def fresh_bytes(path: str) -> bytes | None:
    """The first bytes of a record, which is smaller; None if there is none.

    A stranger's link, pipe or folder in its place has none, and is neither followed nor waited for.
    """
    try:
        descriptor = os.open(path, READ_NO_LINK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            return b""
        raise
    try:
        refresh(descriptor)
        return os.read(descriptor, _LONGEST_RECORD)
    except IsADirectoryError:
        return b""
    finally:
        close_read(descriptor)


def refresh(descriptor: int) -> None:
    """Let the system ask for the size of an open file, whatever it believes; as far as it can."""
    call = _statx()
    if call is not None:
        call(descriptor, b"", _EMPTY_PATH | _FORCE_SYNC, _BASIC, ctypes.create_string_buffer(256))


@lru_cache(maxsize=1)
def _statx() -> Any:
    if sys.platform != "linux":
        return None
    return getattr(ctypes.CDLL(None), "statx", None)


_MOST_KNOWN = 1 << 16
_KNOWN_LOCK = Lock()
_KNOWN: dict[str, tuple[int, int]] = {}
"""Folders that are on the disk with all their parents, by real path: device and inode of each."""
_BELOW: dict[str, set[str]] = {}
"""Those of them, and the folders on their paths, by the folder that they lie in."""
_REAL: dict[str, str] = {}
"""Real paths of folders that were synced, by the paths that they were called by."""


def fsync_folder(folder: str) -> None:
    """Sync the names in a folder to the disk."""
    descriptor = os.open(folder, READ)
    try:
        os.fsync(descriptor)
    finally:
        close_read(descriptor)


def fsync_names(folder: str, root: str) -> None:
    """Sync the names in a folder, and in all folders on its path, to the disk.

    Parameters
    ----------
    folder
        Its path; no link lies between the root and it.
    root
        A folder above it, or itself. Folders above the root may belong to other users, and are
        synced only as far as possible.

    Raises
    ------
    OSError
        If a folder below `root` cannot be synced.
    """
    fsync_folder(folder)
    place, called = _place(folder), folder
    if _KNOWN.get(_REAL.get(called, "")) == place:
        return
    below, root = folder.removeprefix(str(root)).strip("/"), os.path.realpath(root)
    real = folder = os.path.join(root, below) if below else root
    found: dict[str, tuple[int, int]] = {}
    while _KNOWN.get(folder) != place:
        found[folder] = place
        above = os.path.dirname(folder)
        place_above = _place(above)
        if above == folder or place_above[0] != place[0]:
            break  # a mount point cannot just have been created
        try:
            fsync_folder(above)
        except OSError:
            if len(above) >= len(root):
                raise
            break
        folder, place = above, place_above
    with _KNOWN_LOCK:
        if max(len(_KNOWN) + len(found), len(_BELOW), len(_REAL)) > _MOST_KNOWN:
            _KNOWN.clear()
            _BELOW.clear()
            _REAL.clear()
        _KNOWN.update(found)
        _REAL[called] = real
        for one in found:
            _link(one)


_LATER: ContextVar[dict[str, str] | None] = ContextVar("zarr_dask_names_later", default=None)
_MOST_LATER = 1 << 12


@contextmanager
def names_later(folders: dict[str, str]) -> Iterator[None]:
    """Let `fsync_names_in_time` note folders, with their roots, for a caller that syncs them."""
    token = _LATER.set(folders)
    try:
        yield
    finally:
        _LATER.reset(token)


def fsync_names_in_time(folder: str, root: str) -> None:
    """As `fsync_names`, but within `names_later` when its caller does: once for many files."""
    later = _LATER.get()
    if later is None or (len(later) >= _MOST_LATER and folder not in later):
        fsync_names(folder, root)
    else:
        later[folder] = root


def forget_folders(folder: str, *, is_real: bool = False) -> None:
    """Forget a folder and those below it: others with the same name may get the same inode.

    No link leads to one that is named by its real path (`is_real`).
    """
    folder = folder if is_real else os.path.realpath(folder)
    with _KNOWN_LOCK:
        _BELOW.get(os.path.dirname(folder), set()).discard(folder)
        waiting = [folder]
        while waiting:
            one = waiting.pop()
            _KNOWN.pop(one, None)
            waiting += _BELOW.pop(one, ())


def _link(folder: str) -> None:
    """Enter a folder, and those on its path, into the folders that they lie in."""
    above = os.path.dirname(folder)
    while folder not in _BELOW.setdefault(above, set()) and above != folder:
        _BELOW[above].add(folder)
        folder, above = above, os.path.dirname(above)


def _place(folder: str) -> tuple[int, int]:
    status = os.stat(folder)
    return status.st_dev, status.st_ino
