"""Append-only files with checksums for the progress of the ranks of a simulation.

A line is the CRC-32C of a JSON object, a space and the object. On a local file system a line is
appended by one call. Readers ignore an incomplete last line, left by a killed process or a full
disk; it is cut off before the next line is added. Other stores cannot append: the whole file is
written again, and its owner shortens it when it grows long.

A file that is open for appending is locked (``flock``); the kernel releases the lock when the
process ends for any reason. On file systems without such locks, files are not locked.
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
from typing import Any, Protocol
from weakref import finalize

from zarr_dask.codecs.checksum import crc32c
from zarr_dask.errors import CorruptObjectError, RankError, StoreError, WriterNotFoundError
from zarr_dask.formats.base import where
from zarr_dask.stores.base import Range, Store
from zarr_dask.stores.durable import fsync_names
from zarr_dask.stores.files import read_at
from zarr_dask.stores.local import LocalStore

__all__ = ["REWINDS", "Appender", "Folder", "Record"]

REWINDS = "rewinds"
"""Name of the file with the restarts of an output."""

Record = dict[str, Any]
"""One JSON object."""

_LONGEST_FILE = 1 << 28
"""Maximum bytes of a progress file; larger files are not from this package."""
_MANY_LINES = 128
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP}


def _line(record: Record) -> bytes:
    text = json.dumps(record, separators=(",", ":")).encode()
    return b"%08x %b\n" % (crc32c(text), text)


def _records(text: bytes, at: str) -> tuple[list[Record], int]:
    """Return the records in whole lines, and the total bytes of these lines."""
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


class Appender(Protocol):
    """A file of one process, open for appending; see `Folder.appender`."""

    def add(self, record: Record) -> None:
        """Append a record, and return when other processes can read it.

        Raises
        ------
        StoreError
            If it cannot be written; it can be added again.
        """
        ...

    def close(self) -> None:
        """Close the file and release its lock."""
        ...


@dataclass
class _WholeFile:
    """A file in a store that cannot append: written anew with every record."""

    store: Store
    key: str
    records: list[Record]
    shortened: Callable[[list[Record]], list[Record]]

    def add(self, record: Record) -> None:
        """See `Appender.add`."""
        records = [*self.records, record]
        if len(records) > _MANY_LINES:
            records = self.shortened(records)
        self.store.set(self.key, list(map(_line, records)))
        self.records = records

    def close(self) -> None:
        """See `Appender.close`."""


@dataclass(eq=False)
class _LocalFile:
    """A file that is open and locked until it is closed or garbage-collected."""

    path: str
    descriptor: int
    size: int
    """Bytes in whole lines."""
    fsync: bool

    def __post_init__(self) -> None:
        self._close = finalize(self, os.close, self.descriptor)

    def add(self, record: Record) -> None:
        """See `Appender.add`."""
        line = _line(record)
        try:
            os.ftruncate(self.descriptor, self.size)  # remains of a failed write
            _write(self.descriptor, line)
            if self.fsync:
                os.fsync(self.descriptor)
            # network file systems show data to other hosts once its lock is released
            _unlock(self.descriptor)
            _lock(self.descriptor, self.path, wait=False)
        except OSError as error:
            raise _failed("append to", self.path, error) from error
        self.size += len(line)

    def close(self) -> None:
        """See `Appender.close`."""
        self._close()


def _write(descriptor: int, line: bytes) -> None:
    done = os.write(descriptor, line)
    if done < len(line):
        raise OSError(errno.ENOSPC, f"{done} of {len(line)} bytes were written")


def _lock(descriptor: int, path: str, *, wait: bool) -> None:
    """Lock an open file, if the file system supports it.

    Raises
    ------
    RankError
        If another running process has locked it.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError as error:
        raise RankError(
            f"{path} is in use: another process that still runs writes for this rank, or a Writer "
            "of this one that was not closed. End it, or give each process a rank of its own."
        ) from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


def _unlock(descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


class Folder:
    """The files of one job, in a store of any kind, with the read position of each.

    Parameters
    ----------
    store, prefix
        Location of the files; the prefix ends in "/".
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
        """Yield the records added to files since they were last read here.

        Yields
        ------
        name, records, anew
            `anew` is true if the records are all records of the file, not only new ones.

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
        """Return all records of a file, including those read before."""
        self._read.pop(name, None)
        return next((records for _, records, _ in self.news([name])), [])

    # --- appending --------------------------------------------------------------------------------

    def appender(self, name: str, shortened: Callable[[list[Record]], list[Record]]) -> Appender:
        """Open a file of this process for appending.

        Parameters
        ----------
        name
            Name of the file.
        shortened
            Returns fewer records with the same content, for stores that write the whole file anew.

        Raises
        ------
        RankError
            If another running process has it open.
        """
        if not isinstance(self.store, LocalStore):
            return _WholeFile(self.store, self.prefix + name, self.records(name), shortened)
        path = f"{self.store.root}/{self.prefix}{name}"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            try:
                _lock(descriptor, path, wait=False)
                _, size = _records(read_at(descriptor, 0, os.fstat(descriptor).st_size), path)
                if self.store.fsync:
                    fsync_names(str(Path(path).parent), self.store.root)
            except BaseException:
                os.close(descriptor)
                raise
        except OSError as error:
            raise _failed("open", path, error) from error
        return _LocalFile(path, descriptor, size, self.store.fsync)

    def check_open(self) -> None:
        """Raise if these files no longer exist.

        Raises
        ------
        WriterNotFoundError
            If they do not exist.
        """
        if self.store.size(self.prefix + REWINDS) is None:
            raise self._ended()

    def _ended(self) -> WriterNotFoundError:
        return WriterNotFoundError(
            f"the output that had its files at {self.where} is not open any more: it was finished, "
            "given up or replaced meanwhile. Nothing may be written to it; attach to the one that "
            "is there, if there is one."
        )

    def check_idle(self, start: str) -> None:
        """Raise if a process has a file open for appending whose name starts with `start`.

        This is only detected on local files.

        Raises
        ------
        RankError
            If a process has such a file open.
        """
        if not isinstance(self.store, LocalStore):
            return
        for key in self.store.list_dir(self.prefix).keys:
            if key[len(self.prefix) :].startswith(start):
                path = f"{self.store.root}/{key}"
                try:
                    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                except OSError as error:
                    raise _failed("open", path, error) from error
                try:
                    _lock(descriptor, path, wait=False)
                finally:
                    os.close(descriptor)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the lock of this job, if the store is a local file system; other processes wait.

        Raises
        ------
        WriterNotFoundError
            If the files no longer exist.
        """
        if not isinstance(self.store, LocalStore):
            self.check_open()
            yield
            return
        path = Path(f"{self.store.root}/{self.prefix}lock")
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except FileNotFoundError as error:
            raise self._ended() from error
        except OSError as error:
            raise _failed("open", str(path), error) from error
        try:
            _lock(descriptor, str(path), wait=True)
            self.check_open()
            yield
        finally:
            os.close(descriptor)


def _failed(doing: str, path: str, error: OSError) -> StoreError:
    return StoreError(f"could not {doing} {path!r}: {error.strerror or error}.")
