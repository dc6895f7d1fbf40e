"""Opening HDF5 files so that damaged ones are errors: the HDF5 library reads through this module.

The library goes through the objects of a global heap, where texts and lists of dimensions lie, by
their lengths, and does not check these. A length of 0, or one that overflows, keeps it there for
ever, and nothing in this process can stop it. So heaps are looked at before it sees them.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from zarr_dask.errors import IngestError
from zarr_dask.jobs.ingest import hdf5
from zarr_dask.jobs.ingest.source_file import PositionedFile, SourceFile
from zarr_dask.stores.file_lock import lock

__all__ = ["opened_hdf5"]

_HEAP = b"GCOL\x01\0\0\0"
"""First bytes of a global heap; its size follows, then its objects."""
_OBJECT = 16
"""Bytes in front of an object: number, count of references, padding and length."""
_LARGEST = 1 << 30


@contextmanager
def opened_hdf5(place: SourceFile) -> Iterator[Any]:
    """Open a file with h5py for as long as the context lasts.

    Raises
    ------
    IngestError
        If it cannot be opened.
    """
    library = hdf5.library()
    with _raw(place) as raw:
        try:
            file = library.File(CheckedFile(raw), "r")
        except OSError as error:
            raise IngestError(f"{place.url} is no whole HDF5 file ({error}).") from error
        with file:
            yield file


def _raw(place: SourceFile) -> io.RawIOBase | io.BufferedIOBase:
    if place.path is None:
        return place.open_remote()
    raw = io.FileIO(place.path)
    if os.environ.get("HDF5_USE_FILE_LOCKING", "").upper() not in {"FALSE", "0"}:
        _check_unlocked(raw, place.path)
    return raw


class CheckedFile(PositionedFile):
    """A file object for h5py over one that is not changed.

    Parameters
    ----------
    raw
        The file.
    """

    def __init__(self, raw: io.RawIOBase | io.BufferedIOBase) -> None:
        super().__init__(raw.seek(0, os.SEEK_END))
        self._raw = raw

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer.

        Raises
        ------
        OSError
            If there is a heap in which the HDF5 library would not find an end, or nothing at all.
        """
        view = memoryview(buffer).cast("B")
        if not 0 <= self._at < self._size:  # an address may be damaged
            raise OSError(f"it leads to byte {self._at}, and has {self._size} bytes")
        before = min(self._at, len(_HEAP) - 1)  # the library may have read the first bytes earlier
        data = self._read(self._at - before, len(view) + before)
        at = data.find(_HEAP)
        while at >= 0:
            self._check_heap(self._at - before + at)
            at = data.find(_HEAP, at + 1)
        count = max(len(data) - before, 0)
        view[:count] = data[before:]
        self._at += count
        return count

    def _read(self, start: int, size: int) -> bytes:
        self._raw.seek(start)
        parts = []
        while size > 0 and (part := self._raw.read(size)):
            parts.append(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _check_heap(self, start: int) -> None:
        """Raise if lengths of objects do not lead from the beginning of a heap to its end."""
        header = self._read(start, _OBJECT)
        size = int.from_bytes(header[8:], "little")
        if size > min(_LARGEST, self._size - start):
            raise OSError(f"the heap at byte {start} has {size} bytes, more than the file")
        heap = self._read(start, size)
        at = _OBJECT
        while at + _OBJECT <= size:
            length = int.from_bytes(heap[at + 8 : at + _OBJECT], "little")
            number = int.from_bytes(heap[at : at + 2], "little")
            step = _OBJECT + -(-length // 8) * 8 if number else length  # 0 is the free space
            if not step or at + step > size:
                raise OSError(
                    f"the heap at byte {start} is damaged: its object {number} has {length} bytes"
                )
            at += step


def _check_unlocked(raw: Any, path: str) -> None:
    """Raise if another process has opened a file for writing, as the HDF5 library does."""
    if os.name == "nt":  # where the system refuses to open it
        return
    try:
        is_free = lock(raw.fileno(), shared=True)
    except OSError:  # a file system without locks
        return
    if not is_free:
        raw.close()
        raise IngestError(
            f"{path} is being written by another process, which has locked it. Wait for its end."
        )
