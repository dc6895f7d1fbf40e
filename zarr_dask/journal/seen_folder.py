"""The folder of an array in local files, as it is when a job begins to write into the array.

A region write has no journal. If its process is stopped, another job may replace the array
meanwhile, by one with the same metadata. Replacing, removing and renaming an array make another
folder, or none, stand in its place; changes of its metadata do not. So the job keeps the folder
open, which keeps its number from being used again, and compares it before each object that it puts.

Processes on other hosts do not compare: numbers of folders may differ there.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from zarr_dask.errors import JobReplacedError
from zarr_dask.formats.base import Format, prefix_of
from zarr_dask.journal.lock import JobLock
from zarr_dask.stores.base import Store
from zarr_dask.stores.file_backed import FileStore
from zarr_dask.stores.open import unwrap_with_path
from zarr_dask.stores.process_identity import Owner

__all__ = ["SeenFolder", "see_folder"]


@dataclass(frozen=True)
class SeenFolder:
    """A folder as one host sees it; small, and a part of each task."""

    path: str
    host: tuple[str, ...]
    device: int
    inode: int

    def check(self) -> None:
        """Refuse to write where another folder, or none, is by now.

        Raises
        ------
        JobReplacedError
            If that is so.
        """
        if self.host != _host():
            return
        try:
            found = os.stat(self.path)  # noqa: PTH116  (before each object)
        except FileNotFoundError:
            has = "is gone"
        else:
            if (found.st_dev, found.st_ino) == (self.device, self.inode):
                return
            has = "is another one"
        raise JobReplacedError(
            f"{self.path} {has}: the array was removed, or written anew by another job, since this "
            "one began. This one stops, so that it does not write over later values. Look at what "
            "is there, and write again."
        )


def see_folder(
    store: Store, path: str, node_format: Format
) -> tuple[SeenFolder, JobLock] | tuple[None, None]:
    """Return the folder of an array, and what keeps it open; None if it is not in local files.

    Parameters
    ----------
    store, path
        The array.
    node_format
        Its format. One that keeps chunks elsewhere than metadata has no folder for both.
    """
    inner, below = unwrap_with_path(store, path)
    if not isinstance(inner, FileStore) or node_format.prefixes(below) != (prefix_of(below),):
        return None, None
    folder = f"{inner.root}/{below}".rstrip("/")
    try:
        descriptor = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    except OSError:
        return None, None  # writing there says what is wrong
    found = os.fstat(descriptor)
    return SeenFolder(folder, _host(), found.st_dev, found.st_ino), JobLock(descriptor)


def _host() -> tuple[str, ...]:
    here = Owner.here(locked=True)
    return here.host, here.kernel, here.table
