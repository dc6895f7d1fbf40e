"""Files below a folder, by direct system calls.

A value is written under a temporary name in its own folder and then renamed. So a reader sees the
old bytes or the new ones, and a killed writer leaves no partial value. It may leave the temporary
file (``.zarr-dask-<16 hex digits>.tmp``), which no listing shows.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property, partial, wraps
from itertools import islice
from typing import Any, ClassVar, Concatenate, ParamSpec, Self, TypeVar

from zarr_dask._util.warnings import warn
from zarr_dask.errors import (
    AccessDeniedError,
    LinkError,
    LinkWarning,
    ObjectReplacedError,
    StoreError,
)
from zarr_dask.stores.backends.posix_io import (
    IS_COMPLETE,
    READ,
    READ_NO_LINK,
    append_once,
    close_read,
    forget_folders,
    fsync_folder,
    fsync_names,
    fsync_names_in_time,
    read_at,
    read_part,
    refresh,
    write,
    write_pieces,
)
from zarr_dask.stores.base import (
    WHOLE,
    Buffer,
    Listing,
    Range,
    RangeReader,
    ReadPolicy,
    check_key,
    coalesce,
    slice_coalesced,
)
from zarr_dask.stores.compare_and_swap import LockKeeper, content_tag, folder_lock, lock_keeper
from zarr_dask.stores.file_backed import FileStore
from zarr_dask.stores.mounts import hides_names
from zarr_dask.stores.no_follow import (
    check_no_link,
    create_in,
    create_in_kept,
    folder_in,
    forget_reached,
    leave_folder,
    open_folder,
    open_in,
)

__all__ = ["LocalStore"]

_SMALL = 1 << 16  # bytes up to which allocating memory is cheaper than keeping it
_TICK_NS = 20_000_000  # Linux counts 100 to 1000 a second
_MOST_LINKS = 10_000
"""Links to folders that one listing follows: folders full of links to one another are not
followed along all of the ways that lead through them."""
_MORE_LOOKS = 1000
"""Looks for a file that its folder lists, but that seems to be missing each time."""
_MOST_LISTED = 10_000
_JUST_NOW = 10.0  # seconds, with what clocks of hosts differ by
_BESIDE_OTHERS = frozenset({errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY})
"""Errors of a removal while others use the folder; the last one of a removed file on NFS."""
_ON_ERROR = "onexc" if sys.version_info >= (3, 12) else "onerror"
_MOST_WALKS = 100
"""Walks through a folder to remove it, while others put files there."""
_MOST_REPLACED = 100
"""Attempts to read a value that other hosts keep replacing."""
_LIKE_CHUNK = re.compile(r"c?[0-9]*")
"""Names of folders that stored objects of arrays lie in."""
_LINK_TO_NOTHING = (
    " It is a link to a file that is not there: fetch what it stands for (git annex get, dvc pull),"
    " or remove the link where there is no value."
)

_IS_LINK = frozenset({errno.ELOOP, errno.EMLINK})  # the second one on FreeBSD

_Entries = list[os.DirEntry[str]]
P = ParamSpec("P")
T = TypeVar("T")


def _name(entry: os.DirEntry[str]) -> str:
    return entry.name


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """True if an entry is a folder, or a link to one; circular links are not."""
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno == errno.ELOOP:
            return False
        raise


def _opened_anew(
    read: Callable[Concatenate[LocalStore, P], T],
) -> Callable[Concatenate[LocalStore, P], T]:
    """Have a method read once more what another host has replaced or removed meanwhile.

    A server of NFS (version 3) forgets an open file then, and answers ESTALE.
    """

    @wraps(read)
    def call(self: LocalStore, /, *args: P.args, **options: P.kwargs) -> T:
        try:
            return read(self, *args, **options)
        except ObjectReplacedError:
            for _ in range(_MOST_REPLACED):
                with suppress(ObjectReplacedError):
                    return read(self, *args, **options)
            raise

    return call


def _is_in(place: str, folder: str) -> bool:
    """True if a real path is that of a folder, or lies in it."""
    return f"{place}/".startswith(f"{folder}/".replace("//", "/"))


@dataclass(frozen=True, slots=True)
class LocalStore(FileStore):
    """Files below a folder.

    Parameters
    ----------
    root
        The folder, as an absolute path; created on the first write.
    fsync
        Wait until each value and its folder are on the disk, so that a finished write survives
        a power cut. Off by default: a rename alone already protects against killed processes.
        Metadata and the records of jobs are always written like this, so that none is found empty.
    """

    root: str
    fsync: bool = False

    coalescing: ClassVar[ReadPolicy] = ReadPolicy(gap=1 << 14, largest=1 << 20)
    supports_cheap_random_reads: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not IS_COMPLETE:
            raise StoreError(
                f"local files are not supported on this system ({sys.platform}), which has no "
                f"calls relative to an open folder: {self.root} was not opened. Use object stores "
                "or memory, or run under WSL on Windows."
            )

    @property
    def url(self) -> str:
        """The folder's path."""
        return self.root

    @property
    def identity(self) -> str:
        """The folder, with links resolved."""
        return os.path.realpath(self.root)

    @_opened_anew
    def get(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.get`."""
        from zarr_dask.stores.file_lock import has_shared_locks

        descriptor = self._open(key)
        if descriptor is None:
            return None
        try:
            if not has_shared_locks(descriptor):  # nor sizes: both are kept by the host
                refresh(descriptor)
            return read_at(descriptor, 0, os.fstat(descriptor).st_size)
        except IsADirectoryError:
            return None
        except OSError as error:
            raise self.failed("read", key, error) from error
        finally:
            close_read(descriptor)

    def get_transient(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.get_transient`."""
        return self.get_start(key, sys.maxsize)

    @_opened_anew
    def get_start(self, key: str, nbytes: int) -> Buffer | None:
        """See `zarr_dask.stores.base.get_start`."""
        descriptor = self._open(key)
        if descriptor is None:
            return None
        try:
            size = _end(descriptor)
            if min(size, nbytes) <= _SMALL:
                size = min(size, nbytes)
                data = os.pread(descriptor, size, 0)
                return data if len(data) == size else read_at(descriptor, 0, size)
            if size > nbytes:  # as that of a folder may be
                size = min(os.fstat(descriptor).st_size, nbytes)
            return read_part(descriptor, 0, size)
        except IsADirectoryError:
            return None
        except OSError as error:
            raise self.failed("read", key, error) from error
        finally:
            close_read(descriptor)

    @_opened_anew
    def get_ranges(self, requests: Sequence[tuple[str, Range]]) -> list[Buffer | None]:
        """See `zarr_dask.stores.base.Store.get_ranges`."""
        results: list[Buffer | None] = []
        opened_key, descriptor = "", None
        looked_at, is_missing = None, False
        try:
            for key, wanted in requests:
                if key != opened_key:
                    if descriptor is not None:
                        close_read(descriptor)
                    opened_key, descriptor = key, None
                    folder = key.rpartition("/")[0]
                    if folder == looked_at and is_missing:
                        check_key(key)
                    else:
                        descriptor = self._open(key)
                    if descriptor is None and folder != looked_at and len(requests) > 1:
                        looked_at, is_missing = folder, not os.path.exists(f"{self.root}/{folder}")
                results.append(None if descriptor is None else self._part(descriptor, key, wanted))
        finally:
            if descriptor is not None:
                close_read(descriptor)
        return results

    def _part(self, descriptor: int, key: str, wanted: Range) -> Buffer | None:
        try:
            return read_at(descriptor, *_within(descriptor, wanted))
        except IsADirectoryError:
            return None
        except OSError as error:
            raise self.failed("read", key, error) from error

    def open_value(self, key: str) -> RangeReader:
        """See `zarr_dask.stores.base.SupportsOpen`: one file, even if it is replaced meanwhile."""
        return _OpenFile(self, key, self._open(key))

    def validator(self, key: str) -> Hashable:
        """See `zarr_dask.stores.base.etag_of`."""
        with self.open_value(key) as value:
            return value.validator()

    def set(self, key: str, buffers: Sequence[Buffer]) -> None:
        """See `zarr_dask.stores.base.Store.set`."""
        self._put(key, lambda descriptor: write(descriptor, buffers))

    def set_pieces(self, key: str, pieces: Iterable[Buffer]) -> None:
        """See `zarr_dask.stores.streaming_put.SupportsStreamingPut`."""
        self._put(key, lambda descriptor: write_pieces(descriptor, pieces))

    def _put(
        self,
        key: str,
        fill: Callable[[int], None],
        *,
        make: bool = True,
        locked: int | None = None,
    ) -> None:
        """Give a value its name when its file has been filled; in a new folder, if that is made.

        Its folder may be open already because this thread has locked it.

        Raises
        ------
        FileNotFoundError
            If the folder is not there, and not to be made.
        """
        from zarr_dask.stores.key_names import is_document, temporary_name

        check_key(key)
        path, _, name = key.rpartition("/")
        at_once = is_document(name)
        durable = self.fsync or at_once
        temporary = temporary_name()
        folder = f"{self.root}/{path}".rstrip("/")
        around = descriptor = -1
        try:
            try:
                kept = create_in_kept(self.root, path, temporary, locked)
                around, descriptor = kept or create_in(self.root, path, temporary, make=make)
                fill(descriptor)
                if durable:
                    os.fsync(descriptor)
                closing, descriptor = descriptor, -1
                os.close(closing)  # which may fail where the disk is full
                try:
                    # by its path, so that it fails where the folder has another name by now
                    os.replace(f"{folder}/{temporary}", name, dst_dir_fd=around)
                except FileNotFoundError:
                    self._move(temporary, key, kept, make=make)
                if durable:
                    (fsync_names if at_once else fsync_names_in_time)(folder, self.root)
            except BaseException:
                if descriptor >= 0:
                    close_read(descriptor)
                if around >= 0:
                    with suppress(OSError):  # what was written before a disk was full must not stay
                        os.unlink(temporary, dir_fd=around)
                raise
            finally:
                leave_folder(self.root, path, around)
        except StoreError:
            raise
        except OSError as error:
            if not make and isinstance(error, FileNotFoundError):
                raise
            raise self.failed("write", key, error) from error

    def _move(self, temporary: str, key: str, kept: tuple[int, int] | None, *, make: bool) -> None:
        """Move a file from a kept folder that has another path by now to what has its path.

        Raises
        ------
        FileNotFoundError
            If its folder was not a kept one.
        """
        path, _, name = key.rpartition("/")
        if kept is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        with folder_in(self.root, path, make=make) as folder:
            os.replace(temporary, name, src_dir_fd=kept[0], dst_dir_fd=folder)

    def check_conditional(self, key: str) -> None:
        """See `zarr_dask.stores.compare_and_swap.ConditionalStore`."""
        self._path(key)  # there is a lock or a record on every file system

    def get_tagged(self, key: str, wanted: Range = WHOLE) -> tuple[Buffer | None, Hashable]:
        """See `zarr_dask.stores.compare_and_swap.ConditionalStore`.

        FUSE opens a file that replaces another one just then with the size of the old one, and so
        gives what neither of them holds. There, the value is what two reads in a row agree on.
        """
        keeper = self._lock_ahead(key)
        (value,) = self.get_ranges([(key, wanted)])
        tag = content_tag(value)
        for _ in range(_MORE_LOOKS if hides_names(self.root) else 0):
            (value,), before = self.get_ranges([(key, wanted)]), tag
            tag = content_tag(value)
            if tag == before:
                break
        if keeper is not None:
            keeper.note_read(key, tag)
        return value, tag

    def _lock_ahead(self, key: str) -> LockKeeper | None:
        """Lock the folder of a value that is to be changed, if it is there and its lock is kept."""
        keeper = lock_keeper()
        if keeper is None:
            return None
        folder, opened = self._folder_of(key, make=False)
        with self._reporting("write", key):
            try:
                return keeper if keeper.lock_ahead(folder, opened) else None
            except (FileNotFoundError, NotADirectoryError):
                return None

    def _folder_of(self, key: str, *, make: bool) -> tuple[str, Callable[[], int]]:
        """Return the path of a value's folder, and what opens it, behind no link."""
        above = key.rpartition("/")[0]
        folder = f"{self.root}/{above}" if above else self.root
        return folder, partial(open_folder, self.root, above, make=make)

    def set_if(self, key: str, buffers: Sequence[Buffer], tag: Hashable) -> bool:
        """See `zarr_dask.stores.compare_and_swap.ConditionalStore`."""
        check_key(key)
        make = tag is None
        folder, opened = self._folder_of(key, make=make)
        keeper, fill = lock_keeper(), lambda descriptor: write(descriptor, buffers)
        with self._reporting("write", key):
            try:
                lock = None if keeper is None else keeper.take_read(folder, key, tag)
                if keeper is not None and lock is not None:
                    self._put(key, fill, make=make, locked=lock.descriptor)
                    keeper.count()
                    return True
                with folder_lock(folder, opened) as lock:
                    if not self._has(key, tag):
                        return False
                    lock.check()
                    self._put(key, fill, make=make, locked=lock.descriptor)
            except (FileNotFoundError, NotADirectoryError):
                if make:
                    raise
                return False  # a folder that was deleted or renamed is not made again
        return True

    def _has(self, key: str, tag: Hashable) -> bool:
        """Return True if a value has a tag, without another copy of it."""
        from zarr_dask.stores.file_lock import has_shared_locks

        descriptor = self._open(key)
        if descriptor is None:
            return tag is None
        try:
            if not has_shared_locks(descriptor):
                refresh(descriptor)
            return isinstance(tag, bytes) and _is_content(descriptor, tag)
        finally:
            close_read(descriptor)

    def append(self, key: str, data: bytes) -> bool:
        """See `zarr_dask.stores.base.SupportsAppend.append`; it survives a killed process.

        If the disk is full, some of the bytes may remain at the end of the value.
        """
        path = self._path(key)
        try:
            descriptor = open_in(self.root, key, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        except FileNotFoundError:
            return False
        except LinkError:
            raise
        except OSError as error:
            raise self.failed("open", key, error) from error
        with self._reporting("write", key):
            try:
                append_once(descriptor, data)
                if self.fsync:
                    os.fsync(descriptor)
                    fsync_names(os.path.dirname(path), self.root)
            finally:
                os.close(descriptor)
        return True

    def delete(self, key: str) -> None:
        """See `zarr_dask.stores.base.Store.delete`."""
        path = self._path(key)
        above, _, name = key.rpartition("/")
        try:
            with folder_in(self.root, above) as folder, self._between_puts(key):
                os.unlink(name, dir_fd=folder)
            if self.fsync:  # else the old value may be there again after a power cut
                fsync_names_in_time(os.path.dirname(path), self.root)
        except (FileNotFoundError, NotADirectoryError):
            return
        except StoreError:
            raise
        except OSError as error:
            if not os.path.isdir(path):  # a folder is not a value; systems report it differently
                raise self.failed("delete", key, error) from error

    def _between_puts(self, key: str) -> AbstractContextManager[object]:
        """Let no conditional put of a document look at it before, and put it after, a deletion."""
        from zarr_dask.stores.key_names import is_metadata

        path = self._path(key)
        if is_metadata(key) and os.path.isfile(path):
            return folder_lock(os.path.dirname(path))
        return nullcontext()

    def delete_prefix(self, prefix: str) -> None:
        """See `zarr_dask.stores.base.Store.delete_prefix`; links below go, what they lead to stays.

        Raises
        ------
        LinkError
            If a link leads to the prefix, or stands in its place.
        """
        path = prefix.removesuffix("/")
        with self._reporting("delete", prefix), suppress(FileNotFoundError, NotADirectoryError):
            if path:
                check_key(path)
            folder = f"{self.root}/{path}".rstrip("/")
            forget_folders(folder)
            forget_reached()
            if path:
                above, _, name = path.rpartition("/")
                with folder_in(self.root, above) as around:
                    check_no_link(self.root, path, around)
                    _remove_tree(name, around)
                folder = os.path.dirname(folder)
            else:
                _empty(self.root)  # the root stays: it may be a link
            if self.fsync:
                fsync_folder(folder)

    def move_prefix(self, old: str, new: str) -> bool:
        """Rename everything below a prefix at once, if the file system supports it.

        Parameters
        ----------
        old, new
            Prefixes, not empty, where no key starts with `new`; or keys, where a value at `new` is
            replaced.

        Returns
        -------
        bool
            False if nothing was done, for instance because the folder holds other file systems.
        """
        from zarr_dask.stores.key_names import is_document

        for prefix in (old, new):
            check_key(prefix.removesuffix("/"))
        before, after = (one.removesuffix("/") for one in (old, new))
        (above, _, name), (other, _, called) = before.rpartition("/"), after.rpartition("/")
        with (
            self._reporting("move", old),
            folder_in(self.root, above) as source,
            folder_in(self.root, other, make=True) as target,
        ):
            check_no_link(self.root, before, source)
            check_no_link(self.root, after, target)
            try:
                os.rename(name, called, src_dir_fd=source, dst_dir_fd=target)
            except OSError as error:
                if error.errno in {errno.EXDEV, errno.EBUSY, errno.ENOTEMPTY, errno.EEXIST}:
                    return False
                raise
            if old.endswith("/"):  # folders
                for path in (before, after):
                    forget_folders(f"{self.root}/{path}")
                forget_reached()
            if self.fsync or is_document(called):
                for path in (above, other):
                    fsync_folder(f"{self.root}/{path}".rstrip("/"))
        return True

    def list(self, prefix: str = "") -> Iterator[str]:
        """See `zarr_dask.stores.base.Store.list`.

        Links to folders are followed inside the root, once on each way; those that lead out of it,
        or to a folder around them, are left out.

        Raises
        ------
        LinkError
            If a link leads out whose name is that of a folder of stored objects: without these an
            array would be taken for one of fill values.
        """
        return (key for key, _ in self._walk(prefix))

    def list_sizes(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """See `zarr_dask.stores.base.list_sizes`."""
        for key, entry in self._walk(prefix):
            with self._reporting("inspect", key):
                try:
                    nbytes = entry.stat().st_size
                except OSError as error:
                    if error.errno in {errno.ENOENT, errno.ELOOP}:  # removed, or a link to nothing
                        continue
                    raise
            yield key, nbytes

    def list_temporaries(self, prefix: str | None) -> Iterator[tuple[str, float]]:
        """Yield temporary files, which no other listing shows, with their modification times.

        A writer that is killed leaves them; one that is at work has them for a moment. Where the
        prefix is None, only those that lie directly in the store. No link is followed.
        """
        from zarr_dask.stores.key_names import is_temporary

        pending = [prefix or ""]
        while pending:
            above = pending.pop()
            with (
                self._reporting("list", above),
                suppress(FileNotFoundError, NotADirectoryError),
                os.scandir(f"{self.root}/{above}") as entries,
            ):
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        if prefix is not None:
                            pending.append(f"{above}{entry.name}/")
                    elif is_temporary(entry.name):
                        with suppress(FileNotFoundError):  # it was at work, and is done
                            found = entry.stat(follow_symlinks=False)
                            yield above + entry.name, found.st_mtime

    def _walk(self, prefix: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
        """The files below a prefix, folder by folder."""
        bounds = _LinkBounds(self, prefix)
        nothing: tuple[str, ...] = ()
        pending = [(prefix, nothing)]
        while pending:
            above, links = pending.pop()
            files, folders = self._entries(above)
            yield from ((above + entry.name, entry) for entry in files)
            for one in folders:
                way = bounds.way(one, links) if one.is_symlink() else links
                if way is not None:
                    pending.append((f"{above}{one.name}/", way))

    @_opened_anew
    def _entries(self, prefix: str) -> tuple[_Entries, _Entries]:
        """Files and folders directly below a prefix, by name; links to folders are among these."""
        from zarr_dask.stores.key_names import is_value

        files, folders = _Entries(), _Entries()
        if prefix:
            check_key(prefix.removesuffix("/"))
        with (
            self._reporting("list", prefix),
            suppress(FileNotFoundError, NotADirectoryError),
            os.scandir(f"{self.root}/{prefix}") as entries,
        ):
            for entry in entries:
                if _is_folder(entry):
                    folders.append(entry)
                elif is_value(entry.name):
                    files.append(entry)
        return sorted(files, key=_name), sorted(folders, key=_name)

    def list_dir(self, prefix: str = "") -> Listing:
        """See `zarr_dask.stores.base.Store.list_dir`; links that lead out of the root are left out.

        Those to folders inside are not, wherever they lead: whoever follows them looks out.
        """
        bounds = _LinkBounds(self, prefix)
        files, folders = self._entries(prefix)
        inside = [one for one in folders if not one.is_symlink() or bounds.target(one) is not None]
        keys = [prefix + entry.name for entry in files]
        return Listing(keys, [f"{prefix}{entry.name}/" for entry in inside])

    def size(self, key: str) -> int | None:
        """See `zarr_dask.stores.base.Store.size`."""
        path = self._path(key)
        try:
            status = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            again = self._look_again("inspect", key, lambda: os.lstat(path))
            if again is None:
                return None
            status = again
        except OSError as error:
            raise self.failed("inspect", key, error) from error
        if stat.S_ISLNK(status.st_mode):
            try:
                status = os.stat(path)
            except NotADirectoryError:
                return None
            except OSError as error:
                hint = _LINK_TO_NOTHING if isinstance(error, FileNotFoundError) else ""
                raise self.failed("inspect", key, error, hint) from error
        return None if stat.S_ISDIR(status.st_mode) else status.st_size

    def _path(self, key: str) -> str:
        check_key(key)
        return f"{self.root}/{key}"

    def _open(self, key: str) -> int | None:
        """Open the file of a key; None if it is missing."""
        check_key(key)
        path = f"{self.root}/{key}"
        descriptor: int | None
        try:
            descriptor = os.open(path, READ_NO_LINK)
        except (FileNotFoundError, NotADirectoryError):
            if not hides_names(self.root):
                return None
            descriptor = self._look_again("open", key, lambda: os.open(path, READ_NO_LINK))
        except OSError as error:
            if error.errno not in _IS_LINK:
                raise self.failed("open", key, error) from error
            descriptor = self._open_link(key, path)
        if descriptor is not None and hides_names(self.root):
            refresh(descriptor)  # FUSE may know the size of the file that was there before
        return descriptor

    def _open_link(self, key: str, path: str) -> int | None:
        try:
            return os.open(path, READ)
        except NotADirectoryError:
            return None
        except OSError as error:
            hint = _LINK_TO_NOTHING if isinstance(error, FileNotFoundError) else ""
            raise self.failed("open", key, error, hint) from error

    def _look_again(self, doing: str, key: str, look: Callable[[], T]) -> T | None:
        """Look for a missing file where one that is being replaced may seem to be missing.

        Its name never leaves the listing of its folder. That is asked for if the folder has changed
        a moment ago.
        """
        for _ in range(_MORE_LOOKS if hides_names(self.root) else 0):
            try:
                return look()
            except (FileNotFoundError, NotADirectoryError):
                if not _is_listed(f"{self.root}/{key}"):
                    return None
            except OSError as error:
                raise self.failed(doing, key, error) from error
        return None

    def _reporting(self, doing: str, key: str) -> _Reporting:
        """Return a context manager that raises errors of the operating system as `failed`."""
        return _Reporting(self, doing, key)

    def failed(self, doing: str, key: str, error: OSError, hint: str = "") -> StoreError:
        """Return a store error for an error of the operating system."""
        hint = hint or {
            errno.ENOSPC: " Free some space and run the job again.",
            errno.EACCES: " Check the permissions of the file and of its folders.",
            errno.ENOTDIR: " Something above it is a file, not a folder: choose another place.",
            errno.ENOENT: " The folder may have been removed meanwhile, or its file system takes "
            "no files: choose another place.",
            errno.EROFS: " Its file system is mounted read-only: choose another place.",
            errno.EMFILE: " Raise the limit of open files (ulimit -n).",
            errno.ESTALE: " Another host has replaced or removed it meanwhile.",
        }.get(error.errno or 0, "")
        kind = AccessDeniedError if isinstance(error, PermissionError) else StoreError
        kind = ObjectReplacedError if error.errno == errno.ESTALE else kind
        return kind(
            f"could not {doing} {key!r} in the local store {self.root}: "
            f"{error.strerror or error}.{hint}"
        )


class _LinkBounds:
    """Tells of one listing which links to folders may be followed.

    Parameters
    ----------
    store, prefix
        What is listed; who names a prefix behind a link that leads out means what it leads to.
    """

    def __init__(self, store: LocalStore, prefix: str) -> None:
        self._store, self._prefix = store, prefix
        self._followed = 0

    @cached_property
    def _inside(self) -> tuple[str, str]:
        root = self._store.root
        return os.path.realpath(root), os.path.realpath(f"{root}/{self._prefix}")

    def target(self, entry: os.DirEntry[str]) -> str | None:
        """Real path of what a link leads to; None, with a warning, if that lies outside."""
        target = os.path.realpath(entry.path)
        if self._is_inside(target):
            return target
        warn(
            f"{entry.path} is a link that leads out of {self._store.root}, to {target}. What lies "
            "behind it is left out of listings; open it by its own path.",
            LinkWarning,
        )
        return None

    def _is_inside(self, target: str) -> bool:
        return any(_is_in(target, folder) for folder in self._inside)

    def way(self, entry: os.DirEntry[str], links: tuple[str, ...]) -> tuple[str, ...] | None:
        """The folders in which links were followed, with this one; None if it is not followed.

        Raises
        ------
        LinkError
            If stored objects would be left out, or there are too many links.
        """
        if _LIKE_CHUNK.fullmatch(entry.name) and not self._is_inside(os.path.realpath(entry.path)):
            raise LinkError(
                f"{entry.path} is called as a folder of stored objects is, and is a link that "
                f"leads out of {self._store.root}. Without what lies behind it an array would be "
                "taken for one of fill values. Link a whole hierarchy, not a part of an array, or "
                "put the folder in the place of the link."
            )
        target = self.target(entry)
        if target is None:
            return None
        way = (*links, os.path.realpath(os.path.dirname(entry.path)))
        if any(_is_in(folder, target) for folder in way):
            return None  # it leads to a folder that this way came through
        self._followed += 1
        if self._followed > _MOST_LINKS:
            raise LinkError(
                f"{self._store.root}/{self._prefix} has more than {_MOST_LINKS} ways through links "
                "to folders. Remove links that lead to one another."
            )
        return way


def _is_listed(path: str) -> bool:
    """True if a folder that has changed a moment ago has a file, as far as it is listed."""
    folder, _, name = path.rpartition("/")
    with suppress(OSError):
        if abs(time.time() - os.stat(folder).st_mtime) < _JUST_NOW:
            with os.scandir(folder) as entries:
                return any(entry.name == name for entry in islice(entries, _MOST_LISTED))
    return False


def _empty(root: str) -> None:
    """Remove all that lies in a folder."""
    from zarr_dask.stores.key_names import is_removed

    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    _remove_tree(entry.name, folder)
                elif not is_removed(entry.name):
                    with suppress(FileNotFoundError):  # another process was faster
                        os.unlink(entry.name, dir_fd=folder)
    finally:
        close_read(folder)


def _remove_tree(name: str, around: int) -> None:
    """Remove a folder in an open one, while others may add to it, read or remove it as well.

    Metadata go first: who reads a node meanwhile finds none, or all of its objects. On NFS and FUSE
    a removed file that is open keeps its folder there until it is closed; that is no failure.
    """
    with suppress(FileNotFoundError):  # another process was faster
        _remove_documents(name, around)
    for walk in range(1, _MOST_WALKS + 1):
        failed = _removal_failed(name, around)
        if failed is None or not _is_there(name, around):
            return
        if walk == _MOST_WALKS and not _has_only_removed(name, around):
            raise failed


def _removal_failed(name: str, around: int) -> OSError | None:
    """Remove what can be removed of a folder; return the last error that others are the cause of.

    Raises
    ------
    OSError
        The first error of another cause.
    """
    failed: list[OSError] = []

    def note(_function: object, _path: object, error: Any) -> None:
        error = error if isinstance(error, OSError) else error[1]
        if error.errno not in _BESIDE_OTHERS:
            raise error
        failed[:] = [error]

    shutil.rmtree(name, dir_fd=around, **{_ON_ERROR: note})  # type: ignore[call-overload]
    return failed[0] if failed else None


def _has_only_removed(name: str, around: int) -> bool:
    """True if all files in a folder were removed, and some of them are open."""
    from zarr_dask.stores.key_names import is_removed

    files = [one for _, _, names, _ in os.fwalk(name, dir_fd=around) for one in names]
    return bool(files) and all(map(is_removed, files))


def _remove_documents(name: str, around: int) -> None:
    from zarr_dask.stores.key_names import is_document

    for _, _, files, folder in os.fwalk(name, dir_fd=around):
        for document in filter(is_document, files):
            with suppress(FileNotFoundError):
                os.unlink(document, dir_fd=folder)


def _is_there(name: str, around: int) -> bool:
    try:
        os.stat(name, dir_fd=around, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


class _Reporting:
    """See `LocalStore._reporting`; a class, which each object that is put enters in a third."""

    __slots__ = ("_doing", "_key", "_store")

    def __init__(self, store: LocalStore, doing: str, key: str) -> None:
        self._store, self._doing, self._key = store, doing, key

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if isinstance(error, OSError) and not isinstance(error, StoreError):
            raise self._store.failed(self._doing, self._key, error) from error


class _OpenFile:
    """An open file, or a missing one."""

    __slots__ = ("_descriptor", "_key", "_store")

    def __init__(self, store: LocalStore, key: str, descriptor: int | None) -> None:
        self._store, self._key, self._descriptor = store, key, descriptor

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            close_read(self._descriptor)

    def validator(self) -> Hashable:
        """See `zarr_dask.stores.base.RangeReader.validator`.

        A file that was changed just now has none: file system clocks tick a few hundred times a
        second, and two changes in one tick look alike. Nor has one that was removed meanwhile, of
        which FUSE says nothing any more.
        """
        if self._descriptor is None:
            return None
        try:
            status = os.fstat(self._descriptor)
        except OSError:
            return None
        changed = max(status.st_mtime_ns, status.st_ctime_ns)
        if time.time_ns() - changed < _TICK_NS:
            return None
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns

    def get_ranges(self, ranges: Sequence[Range]) -> Iterable[Buffer] | None:
        """See `zarr_dask.stores.base.RangeReader.get_ranges`.

        Joint ranges are read one by one while the buffers are taken, each into the same memory. So
        they are still in the processor's cache when they are decoded.
        """
        if self._descriptor is None:
            return None
        if len(ranges) > 1:
            return self._one_by_one(self._descriptor, ranges)
        try:
            return [_transient_part(self._descriptor, ranges[0])]
        except IsADirectoryError:
            return None
        except OSError as error:
            raise self._store.failed("read", self._key, error) from error

    def _one_by_one(self, descriptor: int, ranges: Sequence[Range]) -> Iterator[Buffer]:
        joint, places = coalesce(ranges, self._store.coalescing)
        held, memory = -1, memoryview(b"")
        for (which, offset), wanted in zip(places, ranges, strict=True):
            if which != held:
                try:
                    held, memory = which, memoryview(_transient_part(descriptor, joint[which]))
                except OSError as error:
                    raise self._store.failed("read", self._key, error) from error
            yield slice_coalesced(memory, offset, wanted)


def _transient_part(descriptor: int, wanted: Range) -> Buffer:
    """Read a range of a file, perhaps into memory of this thread."""
    start, length = _within(descriptor, wanted)
    return (read_at if length <= _SMALL else read_part)(descriptor, start, length)


def _within(descriptor: int, wanted: Range) -> tuple[int, int]:
    """Return the first byte and the length of a range; a long one is cut at the end of the file.

    Memory is allocated for the bytes that exist, not for those requested.
    """
    start, stop = wanted
    if stop is not None and start >= 0 and stop - start <= _SMALL:
        return start, max(stop - start, 0)
    if stop is None and -_SMALL <= start < 0:
        size = _end(descriptor)
    else:
        size = os.fstat(descriptor).st_size
    start, stop, _ = slice(start, stop).indices(size)
    return start, max(stop - start, 0)


def _end(descriptor: int) -> int:
    """Return the size of a file, more cheaply than fstat does; of a folder any number.

    Raises
    ------
    IsADirectoryError
        If it is a folder whose file system, such as one in memory, has no number for it.
    """
    try:
        return os.lseek(descriptor, 0, os.SEEK_END)
    except OSError as error:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)) from error
        raise


_COMPARED = 1 << 20
"""Bytes of a file that are compared at a time."""


def _is_content(descriptor: int, content: bytes) -> bool:
    if os.fstat(descriptor).st_size != len(content):
        return False
    for start in range(0, len(content), _COMPARED):
        part = content[start : start + _COMPARED]  # bytes are compared at once, views one by one
        if read_at(descriptor, start, len(part)) != part:
            return False
    return True
