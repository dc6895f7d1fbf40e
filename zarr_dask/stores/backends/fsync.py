"""File and folder names that survive a power cut.

A file is lost with any folder on its path. So all of these must be on the disk before a write
returns, even if another thread or process has created them just now and has not synced them yet. A
process remembers the folders that are known to be on the disk, by device and inode. It forgets
those that it removes or renames, with all below them.
"""

from __future__ import annotations

import os
from threading import Lock

from zarr_dask.stores.backends.posix_io import READ, close_read

__all__ = ["forget_folders", "fsync_folder", "fsync_names"]

_MOST_KNOWN = 1 << 16
_KNOWN_LOCK = Lock()
_KNOWN: dict[str, tuple[int, int]] = {}
"""Folders that are on the disk with all their parents, by real path: device and inode of each."""
_BELOW: dict[str, set[str]] = {}
"""Those of them, and the folders on their paths, by the folder that they lie in."""


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
        Its path.
    root
        A folder above it, or itself. Folders above the root may belong to other users, and are
        synced only as far as possible.

    Raises
    ------
    OSError
        If a folder below `root` cannot be synced.
    """
    fsync_folder(folder)
    folder, root = os.path.realpath(folder), os.path.realpath(root)
    found: dict[str, tuple[int, int]] = {}
    place = _place(folder)
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
        if max(len(_KNOWN) + len(found), len(_BELOW)) > _MOST_KNOWN:
            _KNOWN.clear()
            _BELOW.clear()
        _KNOWN.update(found)
        for one in found:
            _link(one)


def forget_folders(folder: str) -> None:
    """Forget a folder and those below it: others with the same name may get the same inode."""
    folder = os.path.realpath(folder)
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
