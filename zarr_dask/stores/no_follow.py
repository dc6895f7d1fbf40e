"""Folders below a root, reached without following links: for all that writes and deletes.

A hierarchy may come from a stranger, or lie where others can write. A link in it would lead a
deletion or a write to files of somebody else. So each folder below the root is opened by its name
in the one above it, which refuses links. All that follows is done in the open folder, whatever
takes its name meanwhile. The root, and what lies above it, may be links: a user has named it.

Folders that were reached so are remembered, by what the system tells them apart by: a folder that
is still the same one is opened by one call. A thread that puts many files in a row keeps the folder
of the last one open (`FolderKeeper`).
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TypeVar

from zarr_dask.errors import LinkError
from zarr_dask.stores.backends.posix_io import (
    CLOEXEC,
    LIST,
    MOST_REMOVED,
    close_read,
    make_folder,
)

__all__ = [
    "FolderKeeper",
    "check_no_link",
    "create_in",
    "create_in_kept",
    "folder_in",
    "folders_on",
    "forget_reached",
    "leave_folder",
    "link_error",
    "open_folder",
    "open_in",
    "remove_empty",
]

T = TypeVar("T")
_OPEN = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0) | CLOEXEC
_GONE = frozenset({errno.ENOENT, errno.ESTALE})
"""Errors of a folder that was removed; the second one on NFS, by another host."""
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | CLOEXEC
_MOST_REACHED = 1 << 16
_REACHED: dict[tuple[str, str], tuple[int, int]] = {}
"""Folders that no link below their root leads to: device and inode, by root and path."""
_PLACES: dict[tuple[int, int], list[tuple[str, str]]] = {}
"""Roots and paths that each of them was reached by."""


@contextmanager
def folder_in(root: str, path: str, *, make: bool = False) -> Iterator[int]:
    """Hold a folder below a root open, for calls with ``dir_fd``.

    Parameters
    ----------
    root, path
        The root, and the path of the folder below it.
    make
        Make the folder, and those that lead to it, where they are not there.

    Raises
    ------
    LinkError
        If a link below the root leads to it.
    OSError
        If it is not there, or cannot be made.
    """
    descriptor = _until_kept(root, path, lambda: _reached(root, path, make=make), make=make)
    try:
        yield descriptor
    finally:
        close_read(descriptor)


def open_folder(root: str, path: str, *, make: bool) -> int:
    """Open a folder as `folder_in`, to list, to sync or to lock it; the caller closes it."""
    return _until_kept(root, path, lambda: _reached(root, path, make=make, flags=LIST), make=make)


def open_in(root: str, key: str, flags: int, around: int | None = None) -> int:
    """Open a file below a root, which no link leads to and which is none itself.

    Its folder may be open already (`around`).

    Raises
    ------
    LinkError
        If it is, or is behind, a link.
    OSError
        If it cannot be opened.
    """
    path, _, name = key.rpartition("/")
    folder = _reached(root, path, make=False) if around is None else around
    try:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=folder)
    except OSError:
        check_no_link(root, key, folder)
        raise
    finally:
        if around is None:
            close_read(folder)


def create_in(root: str, path: str, name: str, *, make: bool = True) -> tuple[int, int]:
    """Open a new file in a folder below a root, which is made if it is not there (`make`).

    Others may remove folders meanwhile that are empty, as journals do when they end.

    Returns
    -------
    tuple
        The open folder and the open file; the caller closes both.

    Raises
    ------
    LinkError
        If a link below the root leads to the folder.
    OSError
        If the file cannot be made.
    """
    return _until_kept(root, path, lambda: _create_once(root, path, name, make=make), make=make)


def _until_kept(root: str, path: str, use: Callable[[], T], *, make: bool) -> T:
    """Use a folder that is made for that, and made again while others remove it."""
    for _ in range(MOST_REMOVED if make else 0):
        try:
            return use()
        except OSError as error:
            if error.errno not in _GONE:
                raise
            from zarr_dask.stores.mounts import hides_names

            if path and hides_names(root):
                _forget_names(root, path)
    return use()


def _create_once(root: str, path: str, name: str, *, make: bool) -> tuple[int, int]:
    folder = _reached(root, path, make=make)
    try:
        return folder, os.open(name, _CREATE, 0o666, dir_fd=folder)
    except BaseException:
        close_read(folder)
        raise


class FolderKeeper:
    """A context manager that keeps the folder that this thread puts files in open.

    It may get another name meanwhile, or a link may take its place. So a put looks whether its file
    is where it is to be (`create_in_kept`).
    """

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self._place: tuple[str, str] | None = None
        self._descriptor = -1

    def __enter__(self) -> None:
        self._token = _KEEPER.set(self)

    def __exit__(self, *_: object) -> None:
        _KEEPER.reset(self._token)
        self.let_go()

    def taken(self, root: str, path: str) -> int | None:
        """Return the folder, which is the caller's now; None if another one is kept."""
        if self._place != (root, path):
            return None
        self._place = None
        return self._descriptor

    def keep(self, root: str, path: str, folder: int) -> None:
        """Keep an open folder, instead of the one before."""
        self.let_go()
        self._place, self._descriptor = (root, path), folder

    def let_go(self) -> None:
        """Close the folder, if there is one."""
        if self._place is not None:
            self._place = None
            close_read(self._descriptor)


_KEEPER: ContextVar[FolderKeeper | None] = ContextVar("zarr_dask_folder_keeper", default=None)


def _keeper_here() -> FolderKeeper | None:
    """Return the keeper of this thread: others may have got its context."""
    keeper = _KEEPER.get()
    return keeper if keeper is not None and keeper.thread == threading.get_ident() else None


def create_in_kept(
    root: str, path: str, name: str, locked: int | None = None
) -> tuple[int, int] | None:
    """As `create_in`, in the folder that this thread keeps open; None if that is not the one.

    The folder may have another path by now. The caller passes it to `leave_folder`. One that is
    open because it is locked is used instead, as a copy of its descriptor.
    """
    keeper = _keeper_here()
    folder = None if keeper is None else keeper.taken(root, path)
    if folder is None and locked is not None:
        folder = os.dup(locked)
    if folder is None:
        return None
    try:
        return folder, os.open(name, _CREATE, 0o666, dir_fd=folder)
    except OSError:  # it was removed; what else is wrong is found out where it is opened again
        close_read(folder)
        return None


def leave_folder(root: str, path: str, folder: int) -> None:
    """Close a folder in which a file was put, or keep it for the next one; nothing if it is -1."""
    keeper = _keeper_here()
    if keeper is not None and folder >= 0:
        keeper.keep(root, path, folder)
    elif folder >= 0:
        close_read(folder)


def check_no_link(root: str, path: str, folder: int) -> None:
    """Refuse a link as the last name of a path, in the open folder that it lies in.

    Raises
    ------
    LinkError
        If it is one.
    """
    name = path.rpartition("/")[2]
    with suppress(FileNotFoundError, NotADirectoryError):
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise link_error(root, path)


def link_error(root: str, path: str) -> LinkError:
    """Say that a path below a root is a link, which nobody follows to write or to delete."""
    place = f"{root}/{path}"
    return LinkError(
        f"{place} is a link that leads to {os.path.realpath(place)}, and was not followed: nothing "
        "is written, renamed or deleted behind links below the root of a store. Open what it leads "
        "to by its own path, or remove the link itself."
    )


@contextmanager
def folders_on(root: str, path: str) -> Iterator[list[tuple[str, int]]]:
    """Hold the folders that lead to a path open, as far as they are there, from a root down.

    Yields
    ------
    list
        The name of each folder on the path, and the open one that it is to be in.

    Raises
    ------
    OSError
        If the root is not there, or a link leads to the path.
    """
    opened = [os.open(root, _OPEN)]
    try:
        *above, last = path.split("/")
        with suppress(FileNotFoundError):
            for name in above:
                opened.append(os.open(name, _OPEN | os.O_NOFOLLOW, dir_fd=opened[-1]))
        yield list(zip((*above, last), opened, strict=False))
    finally:
        for folder in opened:
            close_read(folder)


def remove_empty(name: str, around: int) -> None:
    """Remove an empty folder in an open one.

    Raises
    ------
    OSError
        If it is not there, or not empty.
    """
    status = os.stat(name, dir_fd=around, follow_symlinks=False)
    os.rmdir(name, dir_fd=around)
    for place in _PLACES.pop((status.st_dev, status.st_ino), ()):
        _REACHED.pop(place, None)


def forget_reached() -> None:
    """Folders were removed or renamed: others may get the same inode."""
    _REACHED.clear()
    _PLACES.clear()


def _reached(root: str, path: str, *, make: bool, flags: int = _OPEN) -> int:
    known = _REACHED.get((root, path))
    if known is not None:
        try:
            descriptor = os.open(f"{root}/{path}", flags)
        except OSError:
            descriptor = -1  # it has gone, or something else is there
        if descriptor >= 0:
            if _identity(descriptor) == known:
                return descriptor
            close_read(descriptor)
    descriptor = _opened_by_names(root, path, make=make, flags=flags)
    if max(len(_REACHED), len(_PLACES)) >= _MOST_REACHED:
        forget_reached()
    known = _identity(descriptor)
    _PLACES.setdefault(known, []).append((root, path))
    _REACHED[root, path] = known
    return descriptor


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _opened_by_names(root: str, path: str, *, make: bool, flags: int) -> int:
    """Open a folder with some flags, and those that lead to it only to go on from there."""
    names = path.split("/") if path else []
    try:
        folder = os.open(root, _OPEN if names else flags)
    except FileNotFoundError:
        if not make:
            raise
        make_folder(root)
        folder = os.open(root, _OPEN if names else flags)
    is_new = False
    for number, name in enumerate(names, 1):
        try:
            how = (flags if number == len(names) else _OPEN) | os.O_NOFOLLOW
            below, is_new = _opened_below(folder, name, how, make=make, is_new=is_new)
        except OSError:
            check_no_link(root, "/".join(names[:number]), folder)
            raise
        finally:
            close_read(folder)
        folder = below
    return folder


def _opened_below(
    folder: int, name: str, flags: int, *, make: bool, is_new: bool
) -> tuple[int, bool]:
    """Open a folder in another one, which may be new; return True besides if it was made."""
    if not (make and is_new):
        try:
            return os.open(name, flags, dir_fd=folder), False
        except FileNotFoundError:
            if not make:
                raise
    with suppress(FileExistsError):  # another process has made it just now
        os.mkdir(name, dir_fd=folder)
    return os.open(name, flags, dir_fd=folder), True


def _forget_names(root: str, path: str) -> None:
    """Have the kernel forget folders that are gone, and that FUSE has told it of for some time.

    It does when it is to remove them; one that is there is empty, or stays.
    """
    with suppress(OSError), folders_on(root, path) as places:
        for name, around in reversed(places):
            with suppress(FileNotFoundError):
                os.rmdir(name, dir_fd=around)
                return
