"""Names of files and folders that survive a power cut.

A file is lost with any folder that leads to it, so that all of those must be on the disk before a
write returns, whoever has made them: another thread or another process may have done so just now
and not have come to putting them there. Which folders are there for good a process remembers, as
the system tells them apart; it forgets them where it removes or renames some.
"""

from __future__ import annotations

import os

from zarr_dask.stores.files import READ

__all__ = ["forget_folders", "fsync_folder", "fsync_names"]

_MOST_KNOWN = 1 << 16
_KNOWN: dict[str, tuple[int, int]] = {}
"""Folders that are on the disk with all that lead to them: device and inode of each."""


def fsync_folder(folder: str) -> None:
    """Put the names in a folder onto the disk."""
    descriptor = os.open(folder, READ)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_names(folder: str, root: str) -> None:
    """Put the names in a folder onto the disk, and those of the folders that lead to it.

    Parameters
    ----------
    folder
        Its path.
    root
        A folder above it, or itself. What lies above may be somebody else's, and is put onto the
        disk as far as that is possible.

    Raises
    ------
    OSError
        If that is not possible of what lies below `root`.
    """
    fsync_folder(folder)
    found: dict[str, tuple[int, int]] = {}
    place = _place(folder)
    while _KNOWN.get(folder) != place:
        found[folder] = place
        above = os.path.dirname(folder)
        place_above = _place(above)
        if above == folder or place_above[0] != place[0]:
            break  # a file system is mounted here: nobody has just made this folder
        try:
            fsync_folder(above)
        except OSError:
            if len(above) >= len(root):
                raise
            break
        folder, place = above, place_above
    if len(_KNOWN) + len(found) > _MOST_KNOWN:
        _KNOWN.clear()
    _KNOWN.update(found)


def forget_folders() -> None:
    """Folders were removed or renamed: others of the same name may get the same inode."""
    _KNOWN.clear()


def _place(folder: str) -> tuple[int, int]:
    status = os.stat(folder)
    return status.st_dev, status.st_ino
