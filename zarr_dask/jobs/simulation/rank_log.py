"""Append-only files with checksums for the progress of the ranks of a simulation.

A line is the CRC-32C of a JSON object, a space and the object. On a local file system a line is
appended by one call. Readers ignore an incomplete last line, left by a killed process or a full
disk; it is cut off before the next line is added. Other stores cannot append: the whole file is
written again, and its owner shortens it when it grows long.

A file that is open for appending is locked (`zarr_dask.stores.file_lock`), which the kernel undoes
when the process ends in whatever way, and has a record beside it that names the process
(`zarr_dask.stores.file_lock`): that holds where locks are known to one host alone, or to none.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from weakref import finalize

from zarr_dask.codecs.checksum import crc32c
from zarr_dask.errors import (
    CorruptObjectError,
    JournalError,
    RankError,
    StoreError,
    WriterNotFoundError,
)
from zarr_dask.formats.base import where
from zarr_dask.stores.backends.posix_io import close_read, fsync_names, read_at, refresh
from zarr_dask.stores.base import Buffer, Range, Store, get_start, is_key
from zarr_dask.stores.file_backed import FileStore
from zarr_dask.stores.file_lock import (
    NO_LOCKS,
    RecordTakenError,
    has_shared_locks,
    lock,
    make_record,
    unlock,
)
from zarr_dask.stores.file_lock import Record as LockRecord
from zarr_dask.stores.no_follow import open_in

__all__ = ["REWINDS", "LogFolder", "LogWriter", "Record"]

REWINDS = "rewinds"
"""Name of the file with the restarts of an output."""

Record = dict[str, Any]
"""One JSON object."""

_PIECE = 1 << 26
"""Bytes that are read at a time; a longer line is none of ours."""
_LARGEST = 1 << 63
_MANY_LINES = 128
_RECORD = "held-"
"""Names of records begin so."""


_to_json = json.JSONEncoder(separators=(",", ":")).encode


def _line(record: Record) -> bytes:
    text = _to_json(record).encode()
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
        records.append(_checked(body, f"{at}: line {number + 1}"))
    return records, end


def _size_of_lines(descriptor: int, at: str) -> int:
    """Return the bytes of the whole lines of an open file, each with its checksum."""
    size = 0
    while True:
        text = read_at(descriptor, size, _PIECE)
        _, more = _records(text, at)
        size += more
        if not more or len(text) < _PIECE:
            return size


def _checked(text: bytes, at: str) -> Record:
    """A record that says what ranks say, whoever has written it.

    Raises
    ------
    JournalError
        If it says something else.
    """
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise JournalError(f"{at} is no JSON ({error}). {_ANEW}") from error
    members = record if isinstance(record, dict) else {}
    kind = next((one for one in _MEMBERS if one in members), None)
    if kind is None:
        raise JournalError(f"{at}: {record!a:.80} is nothing that a rank says. {_ANEW}")
    for name in _MEMBERS[kind]:
        is_right, expected = _CHECKS[name]
        if not is_right(members.get(name)):
            found = members.get(name)
            raise JournalError(f"{at}: {name} is {found!a:.80}, expected {expected}. {_ANEW}")
    return members


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < _LARGEST


def _is_steps(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(map(_is_count, value))
        and value[0] <= value[1]
    )


def _is_object(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 3
        and isinstance(value[0], list)
        and all(map(_is_count, (*value[0], *value[1:])))
        and value[2] < 1 << 32
    )


def _is_objects(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_object, value))


def _is_stored(value: Any) -> bool:
    return (
        isinstance(value, dict) and all(map(is_key, value)) and all(map(_is_count, value.values()))
    )


_ANEW = (
    "No rank has written it, and without the file nobody knows what is stored: create the output "
    "anew."
)
_MEMBERS = {
    "array": ("array", "index", "steps", "objects"),
    "from_step": ("from_step", "rewind"),
    "stored": ("stored", "rewind"),
}
"""Kinds of records, by the member that tells them apart."""
_CHECKS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "array": (is_key, "the path of an array"),
    "index": (_is_count, "an integer of at least 0"),
    "steps": (_is_steps, "the first step and the one behind the last"),
    "objects": (_is_objects, "lists of coordinates, bytes and a CRC-32C"),
    "from_step": (_is_count, "a step"),
    "rewind": (_is_count, "an integer of at least 0"),
    "stored": (_is_stored, "numbers of steps by paths of arrays"),
}


class LogWriter(Protocol):
    """A file of one process, open for appending; see `LogFolder.appender`."""

    def add(self, record: Record) -> None:
        """Append a record, and return when other processes can read it.

        Raises
        ------
        StoreError
            If it cannot be written; it can be added again.
        """
        ...

    def check_held(self) -> None:
        """Refuse to go on where the file is not this process's any more; only local files tell.

        Raises
        ------
        RankError
            If it is not.
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
        """See `LogWriter.add`."""
        records = [*self.records, record]
        if len(records) > _MANY_LINES:
            records = self.shortened(records)
        self.store.set(self.key, list(map(_line, records)))
        self.records = records

    def check_held(self) -> None:
        """See `LogWriter.check_held`."""

    def close(self) -> None:
        """See `LogWriter.close`."""


@dataclass(eq=False)
class _LocalFile:
    """A file that is open and locked until it is closed or garbage-collected."""

    path: str
    descriptor: int
    size: int
    """Bytes in whole lines."""
    fsync: bool
    holding: LockRecord

    def __post_init__(self) -> None:
        self._close = finalize(self, _close, self.descriptor, self.holding)

    def add(self, record: Record) -> None:
        """See `LogWriter.add`."""
        line = _line(record)
        self.check_held()
        locked = self.holding.owner.locked
        try:
            os.ftruncate(self.descriptor, self.size)  # remains of a failed write
            _write(self.descriptor, line)
            if self.fsync or not locked:
                os.fsync(self.descriptor)
            if locked:
                # network file systems show to other hosts what was written before it is given up
                unlock(self.descriptor)
                if not lock(self.descriptor, wait=False):
                    raise _in_use(self.path)
        except OSError as error:
            raise _failed("append to", self.path, error) from error
        self.size += len(line)

    def check_held(self) -> None:
        """See `LogWriter.check_held`."""
        if not (self.holding.owner.locked or self.holding.is_ours()):
            raise RankError(
                f"{self.holding.path}, the record that lets this process alone write for its rank, "
                "was removed or replaced: another process may write for it. Nothing was added; "
                "attach again when no other process runs as this rank."
            )

    def close(self) -> None:
        """See `LogWriter.close`."""
        try:
            self._close()
        except OSError as error:  # some file systems say only now that they have lost it
            raise _failed("close", self.path, error) from error


def _write(descriptor: int, line: bytes) -> None:
    done = os.write(descriptor, line)
    if done < len(line):
        raise OSError(errno.ENOSPC, f"{done} of {len(line)} bytes were written")


def _close(descriptor: int, holding: LockRecord) -> None:
    with suppress(OSError):  # whoever finds it later sees that its process is gone
        holding.remove()
    os.close(descriptor)


def _lock(descriptor: int, path: str, *, wait: bool) -> bool:
    """Lock an open file; returns False where no lock can be trusted.

    Raises
    ------
    RankError
        If another running process has locked it.
    """
    try:
        if not has_shared_locks(descriptor):
            return False
        if lock(descriptor, wait=wait):
            return True
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return False
    raise _in_use(path)


def _recorded(descriptor: int, path: str, *, wait: bool) -> LockRecord:
    """Lock an open file, where that can be trusted, and say so in a record beside it.

    Raises
    ------
    RankError
        If a process that still runs has done so, or nobody can tell that it does not run.
    """
    locked = _lock(descriptor, path, wait=wait)
    folder, name = os.path.split(path)
    try:
        return make_record(f"{folder}/{_RECORD}{name}", locked=locked, wait=wait)
    except RecordTakenError as error:
        raise _in_use(path, str(error)) from error


def _in_use(path: str, more: str = "") -> RankError:
    said = (
        f"{path} is in use: another process that still runs writes for this rank, or a Writer "
        f"of this one that was not closed. End it, or give each process a rank of its own. {more}"
    )
    return RankError(said.rstrip())


class LogFolder:
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
            appends = isinstance(self.store, FileStore)
            firsts = [self._read.get(name, 0) if appends else 0 for name in some]
            wanted = [
                (self.prefix + name, Range(first, first + _PIECE))
                for name, first in zip(some, firsts, strict=True)
            ]
            for name, first, text in zip(some, firsts, self.store.get_ranges(wanted), strict=True):
                if text is None:
                    continue
                records, size = self._all_records(name, first, text)
                self._read[name] = first + size
                if records or not appends:
                    yield name, records, first == 0

    def _all_records(self, name: str, first: int, text: Buffer | None) -> tuple[list[Record], int]:
        """Return the records from a byte on, and the bytes of their lines; `text` begins there."""
        key, at = self.prefix + name, where(self.store, self.prefix + name)
        found: list[Record] = []
        size = 0
        while text is not None:
            records, more = _records(bytes(text), at)
            found += records
            size += more
            if not more or len(text) < _PIECE:
                break
            begin = first + size
            text = self.store.get_ranges([(key, Range(begin, begin + _PIECE))])[0]
        return found, size

    def records(self, name: str) -> list[Record]:
        """Return all records of a file, including those read before."""
        self._read.pop(name, None)
        return next((records for _, records, _ in self.news([name])), [])

    # --- appending --------------------------------------------------------------------------------

    def appender(self, name: str, shortened: Callable[[list[Record]], list[Record]]) -> LogWriter:
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
        if not isinstance(self.store, FileStore):
            return _WholeFile(self.store, self.prefix + name, self.records(name), shortened)
        path = f"{self.store.root}/{self.prefix}{name}"
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
            descriptor = open_in(self.store.root, self.prefix + name, flags)
            with ExitStack() as stack:
                stack.callback(os.close, descriptor)
                holding = _recorded(descriptor, path, wait=False)
                stack.callback(holding.remove)
                refresh(descriptor)  # what lies behind a size of yesterday would be cut off
                size = _size_of_lines(descriptor, path)
                if self.store.fsync:
                    fsync_names(str(Path(path).parent), self.store.root)
                stack.pop_all()
        except StoreError:
            raise
        except OSError as error:
            raise _failed("open", path, error) from error
        return _LocalFile(path, descriptor, size, self.store.fsync, holding)

    def restarts(self) -> list[Record]:
        """Return the records of all restarts.

        Raises
        ------
        WriterNotFoundError
            If these files no longer exist.
        """
        text = get_start(self.store, self.prefix + REWINDS, _PIECE)
        if text is None:
            raise self._ended()
        return self._all_records(REWINDS, 0, text)[0] if text else []

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
        if not isinstance(self.store, FileStore):
            return
        for key in self.store.list_dir(self.prefix).keys:
            if key[len(self.prefix) :].startswith(start):
                path = f"{self.store.root}/{key}"
                try:
                    descriptor = open_in(self.store.root, key, os.O_RDWR)
                except StoreError:
                    raise
                except OSError as error:
                    raise _failed("open", path, error) from error
                try:
                    _recorded(descriptor, path, wait=False).remove()
                except OSError as error:
                    raise _failed("lock", path, error) from error
                finally:
                    close_read(descriptor)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the lock of this job, if the store is a local file system; other processes wait.

        Raises
        ------
        WriterNotFoundError
            If the files no longer exist.
        """
        if not isinstance(self.store, FileStore):
            self.restarts()
            yield
            return
        path = Path(f"{self.store.root}/{self.prefix}lock")
        try:
            descriptor = open_in(self.store.root, f"{self.prefix}lock", os.O_RDWR | os.O_CREAT)
        except FileNotFoundError as error:
            raise self._ended() from error
        except StoreError:
            raise
        except OSError as error:
            raise _failed("open", str(path), error) from error
        with ExitStack() as stack:
            stack.callback(close_read, descriptor)
            try:
                stack.callback(_recorded(descriptor, str(path), wait=True).remove)
            except FileNotFoundError as error:
                raise self._ended() from error
            except OSError as error:
                raise _failed("lock", str(path), error) from error
            self.restarts()
            yield


def _failed(doing: str, path: str, error: OSError) -> StoreError:
    return StoreError(f"could not {doing} {path!r}: {error.strerror or error}.")
