"""Files that grow by lines which check themselves: what each rank of a simulation has stored.

A line is the CRC-32C of a JSON object, a space and the object. On a local file system a line is
appended by one call, and what a killed process left of its last line is cut off by the next one
that opens the file for appending. Other stores have no appending: there the whole file is put anew,
shortened by its owner when it grows long.

A file that is open for appending is locked (``flock``), which the kernel undoes when the process
ends in whatever way. File systems without such locks go without.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zarr_dask.codecs.checksum import crc32c
from zarr_dask.errors import CorruptObjectError, RankError, StoreError
from zarr_dask.formats.base import where
from zarr_dask.stores.base import Range, Store
from zarr_dask.stores.local import LocalStore, read_at

__all__ = ["REWINDS", "Appender", "Folder", "Record"]

REWINDS = "rewinds"
"""Name of the file that says from which steps an output began anew."""

Record = dict[str, Any]
"""One JSON object."""

_LONGEST_FILE = 1 << 28
"""Bytes of one progress file at most: more is not one of ours."""
_MANY_LINES = 128
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP}


def _line(record: Record) -> bytes:
    text = json.dumps(record, separators=(",", ":")).encode()
    return b"%08x %b\n" % (crc32c(text), text)


def _records(text: bytes, at: str) -> tuple[list[Record], int]:
    """The records in whole lines, and how many bytes those have."""
    end = text.rfind(b"\n") + 1
    records = []
    for number, line in enumerate(text[:end].splitlines()):
        checksum, _, body = line.partition(b" ")
        if checksum != b"%08x" % crc32c(body):
            raise CorruptObjectError(
                f"{at}: line {number + 1} of {len(line)} bytes does not have its checksum. The "
                "file was damaged; without it nobody knows what is stored: create the output anew."
            )
        records.append(json.loads(body))
    return records, end


@dataclass
class Appender:
    """A file of one process, open for appending; see `Folder.appender`."""

    add: Callable[[Record], None]
    """Append a record, and return when other processes can read it."""
    close: Callable[[], None]
    """Close the file and give up its lock."""


class Folder:
    """The files of one job, in a store of any kind, with what was read of them so far.

    Parameters
    ----------
    store, prefix
        Where; the prefix ends in "/".
    """

    def __init__(self, store: Store, prefix: str) -> None:
        self.store = store
        self.prefix = prefix
        self._read: dict[str, int] = {}

    @property
    def where(self) -> str:
        """Store and prefix, for messages."""
        return where(self.store, self.prefix)

    # --- reading ----------------------------------------------------------------------------------

    def news(self, names: Sequence[str]) -> Iterator[tuple[str, list[Record], bool]]:
        """What was added to files since they were last read here.

        Yields
        ------
        name, records, anew
            Whether the records are all that there are, not only those that are new.

        Raises
        ------
        CorruptObjectError
            If a whole line does not have its checksum.
        """
        for start in range(0, len(names), 1000):
            some = names[start : start + 1000]
            appends = isinstance(self.store, LocalStore)
            firsts = [self._read.get(name, 0) if appends else 0 for name in some]
            wanted = [
                (self.prefix + name, Range(first, first + _LONGEST_FILE))
                for name, first in zip(some, firsts, strict=True)
            ]
            for name, first, text in zip(some, firsts, self.store.get_ranges(wanted), strict=True):
                if text is None:
                    continue
                records, size = _records(bytes(text), where(self.store, self.prefix + name))
                self._read[name] = first + size
                if records or not appends:
                    yield name, records, first == 0

    def records(self, name: str) -> list[Record]:
        """All records of a file, without regard to what was read before."""
        self._read.pop(name, None)
        return next((records for _, records, _ in self.news([name])), [])

    # --- appending --------------------------------------------------------------------------------

    def appender(self, name: str, shortened: Callable[[list[Record]], list[Record]]) -> Appender:
        """A file of this process, open for appending.

        Parameters
        ----------
        name
            Of the file.
        shortened
            Makes records that say the same as many, for stores that put the whole file anew.

        Raises
        ------
        RankError
            If a process that still runs has it open.
        """
        if isinstance(self.store, LocalStore):
            return self._local_appender(self.store, name)
        records = self.records(name)

        def add(record: Record) -> None:
            records.append(record)
            if len(records) > _MANY_LINES:
                records[:] = shortened(records)
            self.store.set(self.prefix + name, list(map(_line, records)))

        return Appender(add, lambda: None)

    def _local_appender(self, store: LocalStore, name: str) -> Appender:
        path = f"{store.root}/{self.prefix}{name}"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            try:
                self._lock(descriptor, name, wait=False)
                size = os.fstat(descriptor).st_size
                _, whole = _records(read_at(descriptor, 0, size), path)
                if whole < size:  # its writer was killed in the midst of a line
                    os.ftruncate(descriptor, whole)
            except BaseException:
                os.close(descriptor)
                raise
        except OSError as error:
            raise _failed("open", path, error) from error

        def add(record: Record) -> None:
            line = _line(record)
            try:
                while line:
                    line = line[os.write(descriptor, line) :]
                if store.fsync:
                    os.fsync(descriptor)
            except OSError as error:
                raise _failed("append to", path, error) from error

        return Appender(add, lambda: os.close(descriptor))

    def _lock(self, descriptor: int, name: str, *, wait: bool) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            raise RankError(
                f"{self.where}{name} is in use: another process that still runs writes for this "
                "rank. End it, or give each process a rank of its own."
            ) from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the one lock of this job, where the store is a local file system; others wait."""
        if not isinstance(self.store, LocalStore):
            yield
            return
        path = Path(f"{self.store.root}/{self.prefix}lock")
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise _failed("open", str(path), error) from error
        try:
            self._lock(descriptor, "lock", wait=True)
            yield
        finally:
            os.close(descriptor)


def _failed(doing: str, path: str, error: OSError) -> StoreError:
    return StoreError(f"could not {doing} {path!r}: {error.strerror or error}.")
