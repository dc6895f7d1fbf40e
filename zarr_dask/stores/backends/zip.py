"""The entries of a local zip archive, for reading; `zip_writer` writes.

The directory of an archive is read once per process. A stored entry is then read like a file, in
parts if parts are requested, and a deflated one is inflated as a whole. Sizes stated by an archive
are checked against its own size before memory is allocated: archives come from strangers.

The pickled form is the path, with the size and the time of the file. An archive that is replaced
while it is open raises an error in every process, and is never mixed with the old one.
"""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from operator import attrgetter
from typing import ClassVar

from zarr_dask.errors import DamagedValueError, ReadOnlyError, StoreError, StoreKeyError
from zarr_dask.stores.backends.posix_io import close_read, read_at, write_at
from zarr_dask.stores.backends.zip_format import ZipDirectory, ZipEntry, read_directory
from zarr_dask.stores.base import WHOLE, Buffer, Listing, Range, ReadPolicy, check_key
from zarr_dask.stores.key_names import is_document
from zarr_dask.stores.listing import build_tree, list_from_tree

__all__ = ["ZipStore"]

_PIECE = 1 << 24  # bytes copied at a time
_LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, lengths of the name and of the extra field
_SIGNATURE = b"PK\x03\x04"
_STORED, _DEFLATED = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED
_ENCRYPTED = 0x1
_FED = 1 << 14  # bytes inflated at a time
_MOST_INFLATED = 1040  # upper bound of the compression ratio of deflate, which is 1032
_NOT_DATA = "__MACOSX/"  # added to archives by macOS


@dataclass(frozen=True, slots=True)
class ZipStore:
    """The entries of a zip archive; made by `ZipStore.from_path`.

    Parameters
    ----------
    root
        The archive, as an absolute path.
    folder
        Prefix of the names of all entries that keys do not have: a folder with "/", or nothing.
    stamp
        Size of the file and time of its last change, in ns; None if there is no file.
    largest
        Largest deflated entry in bytes: a small archive can claim a very large one.
    """

    root: str
    folder: str
    stamp: tuple[int, int] | None
    largest: int = 1 << 28

    coalescing: ClassVar[ReadPolicy] = ReadPolicy(gap=1 << 16, largest=1 << 26)

    @staticmethod
    def from_path(path: str, folder: str = "", largest: int = 1 << 28) -> ZipStore:
        """Return the archive at a path; entries may have a common folder, such as ``x.zarr/``.

        Parameters
        ----------
        path
            The archive.
        folder
            The folder in it whose entries to use, with or without the one that holds all entries;
            by default that one, if it is a hierarchy, else none.
        largest
            Largest deflated entry in bytes.

        Raises
        ------
        StoreError
            If the file is not a zip archive, or is truncated.
        StoreKeyError
            If an entry has a name that leads outside the archive.
        """
        try:
            stamp = _stamp(os.stat(path))
        except (FileNotFoundError, NotADirectoryError):
            return ZipStore(path, f"{folder}/" if folder else "", None, largest)
        except OSError as error:
            raise StoreError(f"could not open {path}: {error.strerror}") from error
        entries = _directory(path, stamp).entries
        front = f"{folder}/" if folder else ""
        if not front or not _has_folder(entries, front):
            within = _leading_folder(entries) + front
            front = within if not front or _has_folder(entries, within) else front
        return ZipStore(path, front, stamp, largest)

    @property
    def url(self) -> str:
        """The archive's path, and the folder in it."""
        return f"{self.root}/{self.folder}".rstrip("/")

    @property
    def identity(self) -> str:
        """The archive, with links resolved, and the folder in it."""
        return os.path.realpath(f"{self.root}/{self.folder}")

    def get(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.get`."""
        return self.get_ranges([(key, WHOLE)])[0]

    def get_transient(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.get_transient`."""
        return self.get(key)

    def get_ranges(self, requests: Sequence[tuple[str, Range]]) -> list[Buffer | None]:
        """See `zarr_dask.stores.base.Store.get_ranges`."""
        found = [(self.entry(key), key, wanted) for key, wanted in requests]
        if all(entry is None for entry, _, _ in found):
            return [None] * len(found)
        with self._opened() as descriptor:
            return [
                None if entry is None else self._part(descriptor, key, entry, wanted)
                for entry, key, wanted in found
            ]

    def set(self, key: str, buffers: Sequence[Buffer]) -> None:  # noqa: ARG002
        """Raise `ReadOnlyError`."""
        raise self._refusal(key)

    def delete(self, key: str) -> None:
        """Raise `ReadOnlyError`."""
        raise self._refusal(key)

    def delete_prefix(self, prefix: str) -> None:
        """Raise `ReadOnlyError`."""
        raise self._refusal(prefix)

    def list(self, prefix: str = "") -> Iterator[str]:
        """See `zarr_dask.stores.base.Store.list`."""
        wanted, start = self.folder + prefix, len(self.folder)
        return (name[start:] for name in self._entries() if name.startswith(wanted))

    def list_dir(self, prefix: str = "") -> Listing:
        """See `zarr_dask.stores.base.Store.list_dir`."""
        if self.stamp is None:
            return Listing([], [])
        found = list_from_tree(_directory(self.root, self.stamp).below, self.folder + prefix)
        start = len(self.folder)
        return Listing([k[start:] for k in found.keys], [p[start:] for p in found.prefixes])

    def size(self, key: str) -> int | None:
        """See `zarr_dask.stores.base.Store.size`."""
        entry = self.entry(key)
        return None if entry is None else entry.size

    def validator(self, key: str) -> Hashable:
        """See `zarr_dask.stores.base.etag_of`; reading a changed archive raises an error."""
        entry = self.entry(key)
        return None if entry is None else (self.stamp, entry)

    def members(self) -> Sequence[ZipEntry]:
        """Return all entries of the archive, those outside its folder and repeated ones too."""
        with self._opened() as source:
            return _read_directory(self.root, source).entries

    def copy_entries(self, descriptor: int) -> int:
        """Copy everything before the directory to the start of a file; return its bytes."""
        with self._opened() as source:
            length, done = _read_directory(self.root, source).start, 0
            while done < length:
                piece = read_at(source, done, min(_PIECE, length - done))
                write_at(descriptor, [piece], done)
                done += len(piece)
        return length

    # --- one entry --------------------------------------------------------------------------------

    def _entries(self) -> Mapping[str, ZipEntry]:
        return {} if self.stamp is None else _directory(self.root, self.stamp).entries

    def entry(self, key: str) -> ZipEntry | None:
        """Return the entry of a value; None if there is none."""
        check_key(key)
        return self._entries().get(self.folder + key)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        with _opened(self.root, self.stamp) as descriptor:
            yield descriptor

    def _part(self, descriptor: int, key: str, entry: ZipEntry, wanted: Range) -> Buffer:
        self._check(key, entry)
        start = self._start(descriptor, key, entry)
        if entry.method == _DEFLATED:
            data = read_at(descriptor, start, entry.stored)
            if wanted.start < 0 or wanted.stop is None:
                return self._inflated(key, entry, data, entry.size)[wanted.start : wanted.stop]
            return self._inflated(key, entry, data, min(wanted.stop, entry.size))[wanted.start :]
        first, last, _ = slice(wanted.start, wanted.stop).indices(entry.size)
        value = read_at(descriptor, start + first, max(last - first, 0))
        if (first, last) == (0, entry.size) and zlib.crc32(value) != entry.crc:
            raise self._broken(key, "its checksum does not fit", by_checksum=True)
        return value

    def _check(self, key: str, entry: ZipEntry) -> None:
        """Raise for entries that cannot be read, and for impossible sizes."""
        if entry.flags & _ENCRYPTED:
            raise self._broken(key, "it is encrypted")
        if entry.method not in {_STORED, _DEFLATED}:
            expected = "only stored and deflated entries can be read; zip it without compression"
            raise self._broken(key, f"it is compressed by method {entry.method}; {expected}")
        if entry.method == _STORED and entry.size != entry.stored:
            raise self._broken(key, f"it claims {entry.size} bytes and holds {entry.stored}")
        if entry.method == _DEFLATED and entry.size > _MOST_INFLATED * entry.stored:
            raise self._broken(key, f"it cannot hold {entry.size} bytes in {entry.stored}")
        if entry.method == _DEFLATED and entry.size > self.largest:
            raise self._broken(
                key,
                f"it claims {entry.size} bytes, more than {self.largest}; "
                "storage_options={'largest': ...} sets another bound",
            )

    def _start(self, descriptor: int, key: str, entry: ZipEntry) -> int:
        """Return the offset of the bytes of an entry."""
        nbytes = (self.stamp or (0, 0))[0]
        is_inside = 0 <= entry.offset <= nbytes  # zip64 counts further than files go
        header = read_at(descriptor, entry.offset, _LOCAL_HEADER.size) if is_inside else b""
        if len(header) < _LOCAL_HEADER.size or not header.startswith(_SIGNATURE):
            raise self._broken(key, "there is no entry where the directory says so")
        _, name, extra = _LOCAL_HEADER.unpack(header)
        start = entry.offset + _LOCAL_HEADER.size + int(name) + int(extra)
        if start + entry.stored > nbytes:
            raise self._broken(key, "the archive ends before it does")
        if self.folder + key in _directory(self.root, self.stamp or (0, 0)).sharing:
            raise self._broken(key, "its bytes are those of another entry as well; pack it again")
        return start

    def _inflated(self, key: str, entry: ZipEntry, data: Buffer, most: int) -> bytes | memoryview:
        """Return the first bytes of an entry; the checksum is checked only for the whole.

        This is done in steps, because zlib itself takes twice the memory of its output.
        """
        inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        value, size = memoryview(bytearray(most)), 0
        try:
            for start in range(0, len(data), _FED):
                piece = inflate.decompress(data[start : start + _FED], most + 1 - size)
                piece = piece[: most - size] if most < entry.size else piece
                if size + len(piece) > most:
                    break
                value[size : size + len(piece)] = piece
                size += len(piece)
                if inflate.eof or (size == most < entry.size):
                    break
        except zlib.error as error:
            raise self._broken(key, f"it cannot be inflated ({error})") from error
        if size != most or (most == entry.size and (not inflate.eof or inflate.unconsumed_tail)):
            raise self._broken(key, f"it does not hold the {entry.size} bytes that it claims")
        if most == entry.size and zlib.crc32(value) != entry.crc:
            raise self._broken(key, "its checksum does not fit", by_checksum=True)
        return bytes(value) if size < _PIECE else value.toreadonly()

    def _broken(self, key: str, reason: str, *, by_checksum: bool = False) -> DamagedValueError:
        name = self.folder + key
        error = DamagedValueError(f"the entry {name!r} of {self.root} cannot be read: {reason}.")
        error.by_checksum = by_checksum
        return error

    def _refusal(self, key: str) -> ReadOnlyError:
        return ReadOnlyError(
            f"{self.root} is a zip archive, which is written in one go: {key!r} was not changed. "
            "Use zarr_dask.ZipWriter as the store, with mode='a' to add to an archive."
        )


# --- the directory of an archive ------------------------------------------------------------------


@dataclass(frozen=True)
class _Directory:
    entries: dict[str, ZipEntry] = field(default_factory=dict)
    sharing: frozenset[str] = frozenset()
    """Entries whose bytes are also those of another one."""

    @cached_property
    def below(self) -> dict[str, set[str]]:
        """Entries and folders directly below each folder; folders end in "/"."""
        return build_tree(self.entries)


@lru_cache(maxsize=16)
def _directory(path: str, stamp: tuple[int, int]) -> _Directory:
    """Return the entries of an archive by name; if a name is repeated, the last one."""
    with _opened(path, stamp) as descriptor:
        found = _read_directory(path, descriptor).entries
    entries: dict[str, ZipEntry] = {}
    for entry in found:
        name = entry.name
        if name.endswith("/") or name.startswith(_NOT_DATA):
            continue
        try:
            check_key(name)
        except StoreKeyError as error:
            raise StoreKeyError(f"{path} has an entry that leads elsewhere: {error}") from error
        entries[name] = entry
    sharing = _sharing(found)
    return _Directory(
        entries, frozenset(k for k, one in entries.items() if sharing and one in sharing)
    )


def _read_directory(path: str, descriptor: int) -> ZipDirectory:
    try:
        return read_directory(partial(read_at, descriptor), os.fstat(descriptor).st_size)
    except ValueError as error:
        raise StoreError(
            f"{path} is no zip archive that can be read, or a part of it is missing: {error}."
        ) from error


def _sharing(found: Sequence[ZipEntry]) -> set[ZipEntry]:
    """Return the entries that begin before another one has ended.

    With such entries a small archive could hold any number of large values.
    """
    stop, sharing = 0, set[ZipEntry]()
    for entry in sorted(found, key=attrgetter("offset")):
        if entry.offset < stop:
            sharing.add(entry)
        stop = max(stop, entry.offset + _LOCAL_HEADER.size + entry.stored)
    return sharing


def _has_folder(entries: Iterable[str], folder: str) -> bool:
    """Return True if an entry lies in a folder."""
    return any(name.startswith(folder) for name in entries)


def _leading_folder(entries: Mapping[str, object]) -> str:
    """Return the folder that holds all entries, if it is the root of a hierarchy; else ""."""
    first = next(iter(entries), "").partition("/")
    folder = first[0] + first[1]
    if not first[1] or not all(name.startswith(folder) for name in entries):
        return ""
    here = (name for name in entries if "/" not in name.removeprefix(folder))
    return folder if any(map(is_document, here)) else ""


@contextmanager
def _opened(path: str, stamp: tuple[int, int] | None) -> Iterator[int]:
    """Open the file; raise if it is not the one that was opened first."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # it may be a pipe
    except OSError as error:
        raise StoreError(f"could not open {path}: {error.strerror}") from error
    try:
        if _stamp(os.fstat(descriptor)) != stamp:
            raise StoreError(f"{path} was replaced or changed while it was open. Open it again.")
        yield descriptor
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise StoreError(f"could not read {path}: {error.strerror or error}") from error
    finally:
        close_read(descriptor)


def _stamp(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns
