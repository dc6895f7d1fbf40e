"""A zip archive that is being written: each value once, in sequence, by one process.

Values are written to a temporary file beside the archive as they arrive. Metadata is kept in
memory, so that it may change until the end. `ZipWriter.close` writes the metadata and the
directory, and renames the file: until then there is no archive, or the old one. A killed process
leaves the temporary file (``.zarr-dask-<16 hex digits>.tmp``), which `zarr_dask.verify` removes.

Metadata come first in the directory, the outermost before the others. In an archive called ``.ozx``
they come first in the file, too, as far as the room goes that is left for them (RFC-9 of OME-Zarr).

No value is overwritten: an archive would keep both, and its readers need not agree on the valid
one.
"""

from __future__ import annotations

import os
import threading
import weakref
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate
from secrets import token_hex
from types import TracebackType
from typing import Any, ClassVar, Literal, Self, get_args

from zarr_dask._util.arguments import check_bools
from zarr_dask.errors import NodeExistsError, StoreError, StoreOutOfReachError, WrittenOnceError
from zarr_dask.stores.backends.memory import unreachable_store
from zarr_dask.stores.backends.posix_io import fsync_folder, read_at, write_at
from zarr_dask.stores.backends.zip import ZipStore
from zarr_dask.stores.backends.zip_format import (
    MINIMUM_PADDING,
    ZipEntry,
    directory,
    end_of_directory,
    local_header,
)
from zarr_dask.stores.base import (
    WHOLE,
    Buffer,
    Listing,
    Range,
    ReadPolicy,
    Store,
    check_key,
)
from zarr_dask.stores.key_names import is_document, is_metadata
from zarr_dask.stores.listing import build_tree, list_from_tree

__all__ = ["ZipWriter"]

_Mode = Literal["x", "w", "a"]
_ROOM = 1 << 16
"""Bytes at the beginning of an archive for metadata that are known at its end."""


class ZipWriter:
    """A store that becomes a zip archive when it is closed, or leaves nothing behind.

    Parameters
    ----------
    path
        Path of the future archive.
    mode
        ``"x"``: there must be no archive yet. ``"w"``: replace an existing one. ``"a"``: add to an
        existing one; its entries are copied first, so that the old archive is intact until the new
        one is complete.
    folder
        A folder in the archive, as a prefix of all entries' names that keys do not have. By default
        the one that holds all entries of an old archive, if it is a hierarchy; else none.
    fsync
        If True, the archive and its folder are synced to disk on closing.

    Raises
    ------
    NodeExistsError
        If `path` exists, with ``mode="x"``.
    StoreError
        If `path` is not a zip archive, with ``mode="a"``.

    Notes
    -----
    One process writes, with any number of threads. So dask's threads can write to it; dask's
    processes and the workers of a cluster are refused. Values are stored without compression,
    because chunks are compressed already. A value is written once; metadata may change until the
    end.

    Examples
    --------
    >>> import os, tempfile
    >>> import zarr_dask as zd
    >>> path = os.path.join(tempfile.mkdtemp(), "run.zip")
    >>> with zd.ZipWriter(path) as archive:
    ...     group = zd.create_group(archive)
    ...     array = group.create_array("t", shape=(4,), chunks=2, dtype="i4")
    ...     array[...] = [1, 2, 3, 4]
    >>> zd.open(path)["t"][1:3]
    array([2, 3], dtype=int32)
    """

    coalescing: ClassVar[ReadPolicy] = ReadPolicy(gap=1 << 16, largest=1 << 26)
    is_in_memory: ClassVar[bool] = True  # until it is closed, no other process sees its values

    def __init__(
        self,
        path: str | os.PathLike[str],
        mode: _Mode = "x",
        *,
        folder: str = "",
        fsync: bool = False,
    ) -> None:
        if mode not in get_args(_Mode):
            raise ValueError(f"Cannot use mode={mode!r}: expected one of {list(get_args(_Mode))}.")
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"path={path!r}: expected the path of a file.")
        if not isinstance(folder, str):
            raise TypeError(f"folder={folder!r}: expected a path in it, '' for its root.")
        check_bools(fsync=fsync)
        self.comment_of: Callable[[Store], bytes] | None = None
        """Makes the comment of an archive called ``.ozx``, when it is closed."""
        self.root = os.path.abspath(os.path.expanduser(path))
        self.mode: _Mode = mode
        self.fsync = fsync
        if mode == "a":
            self._old = ZipStore.from_path(self.root, folder)
        else:
            self._old = ZipStore(self.root, f"{folder}/" if folder else "", None)
        self._check_place()
        self._lock = threading.RLock()
        self._file: _ArchiveFile | None = None  # created when it is first needed
        self._members: dict[str, ZipEntry] = {}
        self._reserved: dict[str, tuple[int, int]] = {}  # sizes and checksums, by key
        self._documents: dict[str, bytes] = {}
        self._dropped: set[str] = set()  # metadata of the old archive
        self._state: Literal["open", "closed", "discarded"] = "open"
        self._process = os.getpid()
        self._token = token_hex(8)
        _LIVING[self._token] = self

    def _check_place(self) -> None:
        if self.mode == "x" and os.path.lexists(self.root):
            raise NodeExistsError(
                f"{self.root} exists. Choose another path, or mode='w' to replace it, or mode='a' "
                "to add to it."
            )
        if os.path.isdir(self.root):
            raise NodeExistsError(f"{self.root} is a folder, where an archive cannot be.")

    # --- opening and closing ----------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def close(self) -> None:
        """Write the metadata and the directory, and make the archive appear.

        Raises
        ------
        StoreError
            If that fails, or another process has created or changed the file at the path meanwhile;
            then nothing is changed.
        """
        with self._lock:
            if self._state != "open":
                return
            self._check_process()
            try:
                if self.mode != "a" or self._file or self._documents or self._dropped:
                    self._finish()
            except BaseException:
                self.discard()
                raise
            self._state = "closed"

    def discard(self) -> None:
        """Discard everything that was written, without changing anything."""
        with self._lock:
            if self._state == "open":
                self._state = "discarded"
                if self._file is not None and self._process == os.getpid():
                    self._file.remove()

    def _finish(self) -> None:
        file = self._begun()
        documents = sorted(self._documents.items(), key=lambda item: (item[0].count("/"), item[0]))
        for (key, value), place in zip(documents, self._places(documents), strict=True):
            checksum = zlib.crc32(value)
            self._members[key] = self._put(file, key, [value], len(value), checksum, place)
        kept = {key: member for key, member in self._old_members() if key not in self._dropped}
        members = sorted((kept | self._members).items(), key=_place_in_directory)
        listed = directory(member for _, member in members)
        comment = self.comment_of(self) if self.comment_of and self._is_ozx else b""
        with self._reporting("finish", self.root):
            start = file.end
            end = end_of_directory(len(members), len(listed), start, comment)
            write_at(file.descriptor, [listed, end], start)
            if self.fsync:
                os.fsync(file.descriptor)
            self._appear(file)

    def _places(self, documents: Sequence[tuple[str, bytes]]) -> list[tuple[int | None, int]]:
        """Return where each document goes, and by how much its header is longer, to fill the room.

        None says at the end.
        """
        sizes = [
            len(local_header(self._old.folder + key, len(value), 0)) + len(value)
            for key, value in documents
        ]
        ends = [*accumulate(sizes)]
        fitting = bisect_right(ends, _ROOM - MINIMUM_PADDING) if self._has_room else 0
        places: list[tuple[int | None, int]] = [(None, 0)] * len(documents)
        places[:fitting] = [
            (end - size, 0) for end, size in zip(ends[:fitting], sizes, strict=False)
        ]
        if fitting:
            places[fitting - 1] = places[fitting - 1][0], _ROOM - ends[fitting - 1]
        return places

    def _appear(self, file: _ArchiveFile) -> None:
        """Rename the file; with mode "x" by a link, so that one of two writers fails."""
        if self.mode == "x":
            try:
                os.link(file.path, self.root)
            except FileExistsError as error:
                raise StoreError(f"{self.root} has appeared while it was written.") from error
            file.remove()
        else:
            if self.mode == "a" and ZipStore.from_path(self.root).stamp != self._old.stamp:
                raise StoreError(f"{self.root} has changed while it was added to. Do it again.")
            os.replace(file.path, self.root)
            file.close()
        if self.fsync:
            fsync_folder(os.path.dirname(self.root))

    # --- the location -----------------------------------------------------------------------------

    @property
    def folder(self) -> str:
        """The folder in the archive that keys lie in; empty, or ending in "/"."""
        return self._old.folder

    @property
    def url(self) -> str:
        """The archive's path, and the folder in it."""
        return f"{self.root}/{self._old.folder}".rstrip("/")

    @property
    def identity(self) -> str:
        """The archive, with links resolved."""
        return os.path.realpath(self.url)

    def __repr__(self) -> str:
        return f"ZipWriter({self.root!r}, {self.mode!r}, {self._state})"

    def __reduce__(self) -> tuple[Any, ...]:
        if self._state == "closed":
            return ZipStore.from_path, (self.root, self._old.folder.rstrip("/"))
        return _same_writer, (self._token, self._process, self.root)

    # --- reading ----------------------------------------------------------------------------------

    def get(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.get`."""
        return self.get_ranges([(key, WHOLE)])[0]

    def get_transient(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.get_transient`."""
        return self.get(key)

    def get_ranges(self, requests: Sequence[tuple[str, Range]]) -> list[Buffer | None]:
        """See `zarr_dask.stores.base.Store.get_ranges`."""
        reader = self._reader()
        if reader is not self:
            return reader.get_ranges(requests)
        return [self._part(key, wanted) for key, wanted in requests]

    def _part(self, key: str, wanted: Range) -> Buffer | None:
        check_key(key)
        document = self._documents.get(key)
        if document is not None:
            return document[wanted.start : wanted.stop]
        member = self._members.get(key)
        if member is None:
            gone = key in self._dropped
            return None if gone else self._old.get_ranges([(key, wanted)])[0]
        first, last, _ = slice(wanted.start, wanted.stop).indices(member.size)
        start = member.offset + len(local_header(member.name, member.size, member.crc))
        with self._reporting("read", key):
            return read_at(self._begun().descriptor, start + first, max(last - first, 0))

    def size(self, key: str) -> int | None:
        """See `zarr_dask.stores.base.Store.size`."""
        value = self._documents.get(key)
        if value is not None:
            return len(value)
        member = self._members.get(key)
        if member is not None:
            return member.size
        check_key(key)
        reader = self._reader()
        return (self._old if reader is self else reader).size(key)

    def list(self, prefix: str = "") -> Iterator[str]:
        """See `zarr_dask.stores.base.Store.list`."""
        return iter([key for key in self._keys() if key.startswith(prefix)])

    def list_dir(self, prefix: str = "") -> Listing:
        """See `zarr_dask.stores.base.Store.list_dir`."""
        return list_from_tree(build_tree(self.list(prefix), prefix), prefix)

    def _keys(self) -> tuple[str, ...]:
        reader = self._reader()
        if reader is not self:
            return tuple(reader.list())
        with self._lock:
            own = {**self._members, **self._documents}
            old = [key for key in self._old.list() if key not in own and key not in self._dropped]
        return (*own, *old)

    def _reader(self) -> Store:
        """Return the store to read from: this writer, or the archive after closing."""
        if self._state == "closed":
            return ZipStore.from_path(self.root, self._old.folder.rstrip("/"))
        if self._state == "discarded":
            raise StoreError(f"{self.root} was not written: its writer has given up.")
        self._check_process()
        return self

    # --- writing ----------------------------------------------------------------------------------

    def set(self, key: str, buffers: Sequence[Buffer]) -> None:
        """See `zarr_dask.stores.base.Store.set`; the same value may be written twice.

        Raises
        ------
        WrittenOnceError
            If there is a different value.
        """
        check_key(key)
        self._check_open(key)
        if is_document(key):
            with self._lock:
                self._documents[key] = b"".join(buffers)
                self._dropped.add(key)
            return
        pieces = [memoryview(buffer).cast("B") for buffer in buffers if memoryview(buffer).nbytes]
        crc, size = 0, 0
        for piece in pieces:
            crc, size = zlib.crc32(piece, crc), size + len(piece)
        if not self._reserve(key, size, crc):
            return
        try:
            member = self._put(self._begun(), key, pieces, size, crc)
        except BaseException:
            with self._lock:
                del self._reserved[key]
            raise
        with self._lock:
            self._members[key] = member

    def _reserve(self, key: str, size: int, crc: int) -> bool:
        """Return True if a value is new, False if it exists; raise if a different one exists."""
        with self._lock:
            there = self._reserved.get(key)
            if there is None:
                entry = self._old.entry(key)
                there = None if entry is None else (entry.size, entry.crc)
            if there is None:
                self._reserved[key] = (size, crc)
                return True
        if there == (size, crc):
            return False
        raise self._written(key)

    def _put(
        self,
        file: _ArchiveFile,
        key: str,
        pieces: Sequence[Buffer],
        size: int,
        crc: int,
        place: tuple[int | None, int] = (None, 0),
    ) -> ZipEntry:
        name = self._old.folder + key
        offset, padding = place
        try:
            header = local_header(name, size, crc, padding)
        except ValueError as error:
            raise StoreError(f"cannot write {key!r} into {self.root}: {error}") from error
        if offset is None:
            with self._lock:
                offset = file.end
                file.end += len(header) + size
        with self._reporting("write", key):
            write_at(file.descriptor, [header, *pieces], offset)
        return ZipEntry(name, offset, size, size, crc)

    def delete(self, key: str) -> None:
        """See `zarr_dask.stores.base.Store.delete`.

        Raises
        ------
        WrittenOnceError
            If there is a value that is not metadata.
        """
        check_key(key)
        self._check_open(key)
        if self.size(key) is None:
            return
        if not is_document(key):
            raise self._written(key)
        with self._lock:
            self._documents.pop(key, None)
            self._dropped.add(key)

    def delete_prefix(self, prefix: str) -> None:
        """See `zarr_dask.stores.base.Store.delete_prefix`; all is removed or nothing.

        Raises
        ------
        WrittenOnceError
            If there are values that are not metadata.
        """
        found = [*self.list(prefix)]
        for key in found:
            if not is_document(key):
                raise self._written(key)
        for key in found:
            self.delete(key)

    def _begun(self) -> _ArchiveFile:
        """Return the temporary file, creating it with the entries of the old archive, if any."""
        with self._lock:
            if self._file is None:
                with self._reporting("write", self.root):
                    self._file = _ArchiveFile(
                        f"{os.path.dirname(self.root)}/.zarr-dask-{self._token}.tmp"
                    )
                    weakref.finalize(self, self._file.remove_in, self._process)
                    if self._has_room:
                        self._file.end = _ROOM
                    if self._old.stamp is not None:
                        self._file.end = self._old.copy_entries(self._file.descriptor)
            return self._file

    @property
    def _is_ozx(self) -> bool:
        return self.root.lower().endswith(".ozx")

    @property
    def _has_room(self) -> bool:
        return self._is_ozx and self._old.stamp is None

    def _old_members(self) -> tuple[tuple[str, ZipEntry], ...]:
        """Return the entries of the old archive by key, including those outside its folder."""
        if self._old.stamp is None:
            return ()
        members = self._old.members()
        front = self._old.folder
        return tuple(
            (one.name[len(front) :] if one.name.startswith(front) else f"/{one.name}", one)
            for one in members
        )

    # --- refusals ---------------------------------------------------------------------------------

    def _check_open(self, key: str) -> None:
        if self._state != "open":
            raise StoreError(
                f"{self.root} is {self._state}: {key!r} was not written. Add to an archive with "
                "zarr_dask.ZipWriter(path, mode='a')."
            )
        self._check_process()

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise StoreOutOfReachError(_elsewhere_message(self.root))

    def _written(self, key: str) -> WrittenOnceError:
        return WrittenOnceError(
            f"{key!r} is in the archive {self.root} already: a zip archive is written once, and "
            "would keep both values. Write each stored object once and whole, or into a folder."
        )

    @contextmanager
    def _reporting(self, doing: str, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if isinstance(error, StoreError):
                raise
            raise StoreError(
                f"could not {doing} {key!r} in {self.root}: {error.strerror or error}"
            ) from error


def _place_in_directory(item: tuple[str, ZipEntry]) -> tuple[Any, ...]:
    key, member = item
    return (False, key.count("/"), key) if is_metadata(key) else (True, member.offset)


class _ArchiveFile:
    """The temporary file, and the offset of the next entry."""

    def __init__(self, path: str) -> None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self.descriptor = os.open(path, flags, 0o666)
        self.path = path
        self.end = 0
        self._is_open = True

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            os.close(self.descriptor)

    def remove(self) -> None:
        if self._is_open:
            self.close()
            with suppress(OSError):
                os.unlink(self.path)

    def remove_in(self, process: int) -> None:
        """Remove the file, unless this is a forked child: the file is its parent's."""
        if os.getpid() == process:
            self.remove()


_LIVING: weakref.WeakValueDictionary[str, ZipWriter] = weakref.WeakValueDictionary()


def _same_writer(token: str, process: int, path: str) -> Store:
    living = _LIVING.get(token) if process == os.getpid() else None
    return unreachable_store(_elsewhere_message(path)) if living is None else living


def _elsewhere_message(path: str) -> str:
    return (
        f"the zip archive {path} is written by another process, and one process alone can do "
        "that. Compute with threads (dask.config.set(scheduler='threads')), or write into a folder "
        "and zip that."
    )
