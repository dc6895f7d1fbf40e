"""Replacing a local array or group at once: the new one is written beside it, and swapped in.

Until then the old one stays whole, so it may be the source. At the end the two folders are
exchanged in one system call (``renameat2`` on Linux, ``renamex_np`` on macOS). A reader that opens
it finds the old one or the new one, also after a crash at any moment. A file system without
such a call gets two renames; a crash right between them leaves both beside the location, and
nothing at it.

A job that is killed leaves a folder beside the root of the hierarchy,
``.<name>.zarr-dask-<16 hex digits>.swap``. A file in the new node, the mark, tells what it is: it
says which process writes the node and which journal knows of it, and is locked by that process for
as long as it lives, where locks can be trusted (`stores.file_lock`). The mark goes with the
node to its place, and is removed when the job has ended; a folder without a mark holds the old
node, after the two have changed places.

A job with a journal (``resume=``) finds its folder again, and continues there. Other folders are
removed by the next such job and by ``zarr_dask.verify(sweep=True)``, once it is certain that they
are not needed.
"""

from __future__ import annotations

import ctypes
import errno
import glob
import os
import re
import shutil
import sys
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO, Literal

from zarr_dask.errors import JournalError, LinkError, StoreError
from zarr_dask.formats.base import Format, prefix_of, where
from zarr_dask.journal import Journal
from zarr_dask.journal.location import check_no_link
from zarr_dask.stores.backends.posix_io import close_read, forget_folders, fsync_folder
from zarr_dask.stores.base import Store
from zarr_dask.stores.file_backed import FileStore
from zarr_dask.stores.file_lock import has_shared_locks, lock
from zarr_dask.stores.no_follow import folder_in, forget_reached, open_in
from zarr_dask.stores.open import folder_store
from zarr_dask.stores.process_identity import Owner, is_number_of_gone, number_of_process

__all__ = ["AtomicReplace", "SwapLeftover", "is_halfway", "left_beside", "plan_swap"]

State = Literal["running", "dead", "resumable", "unknown"]
_NO_EXCHANGE = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP}
_LONGEST_MARK = 1 << 14
_EXCHANGE = 2  # the flag of both systems
_AT_FDCWD = -100
_PART, _SUFFIX, _MAKING, _AWAY = ".zarr-dask-", ".swap", ".new", ".old"


@dataclass(frozen=True)
class AtomicReplace:
    """The folder of an array or a group, and the folder that replaces it."""

    place: str
    """Location of the old node, as an absolute path without links."""
    root: str
    """First part of the path of the new node's folder, beside the root of the hierarchy."""
    token: str
    fsync: bool
    path: str = ""
    """Path of the node in its store."""

    @property
    def beside(self) -> str:
        """The folder of the new node, until the end."""
        return f"{self.root}{_PART}{self.token}{_SUFFIX}"

    @property
    def store(self) -> FileStore:
        """The store of the new node, which lies at its root."""
        return folder_store(self.beside, fsync=self.fsync)

    def path_beside(self, path: str) -> str:
        """Return the path in `store` of the node, or of one below it, until the end."""
        return path[len(prefix_of(self.path)) :]

    @property
    def is_done(self) -> bool:
        """True if the folders have changed places, by a job whose journal is still there.

        Raises
        ------
        StoreError
            If that cannot be told.
        """
        try:
            return _has_mark(self.place, self.token)
        except OSError as error:
            raise StoreError(
                f"could not look for {_mark(self.token)} in {self.place}, which tells what is "
                f"new from what it replaces: {error.strerror or error}."
            ) from error

    @property
    def is_begun(self) -> bool:
        """True if the new node is being written, or has taken the place of the old one."""
        return Path(self.beside, _mark(self.token)).exists() or self.is_done

    def begin(
        self, *, held: bool, journal: Journal | None = None, resumed: bool = False
    ) -> BinaryIO | None:
        """Make the folder of the new node, or continue in it; remove what killed jobs have left.

        Parameters
        ----------
        held
            True if this process lives as long as the job.
        journal
            Journal of the job; None if it has none.
        resumed
            True if its receipts are for the existing content of the folder.

        Returns
        -------
        file or None
            Open while the job is held.

        Raises
        ------
        StoreError
            If the folder cannot be made.
        """
        around, name = os.path.split(self.root)
        for left in left_beside(around, name[1:]):
            left.remove()
        says = b"" if journal is None else os.fsencode(_place_of(journal))
        try:
            with suppress(LinkError):  # no mark of ours
                if resumed and _has_mark(self.beside, self.token):
                    return self._hold(self.beside, says, held=held)
            self.remove()
            return self._make(says, held=held)
        except OSError as error:
            raise StoreError(
                f"could not make {self.beside} for what is to take the place of "
                f"{self.place}: {error.strerror}. Check the permissions of the folder around it, "
                "or write to another place."
            ) from error

    def _make(self, says: bytes, *, held: bool) -> BinaryIO | None:
        making = f"{self.beside}{_MAKING}{number_of_process():010x}"
        _remove(making)  # of an attempt of this process that has failed
        try:
            Path(making).mkdir()
            mark = self._hold(making, says, held=held)
            Path(making).rename(self.beside)  # so that every folder has its mark from the start
        except OSError:
            _remove(making)  # a group's next attempt has another token
            raise
        return mark

    def _hold(self, folder: str, says: bytes, *, held: bool) -> BinaryIO | None:
        """Write and lock the mark of a folder; the caller closes the returned file."""
        with ExitStack() as stack:
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
            descriptor = open_in(folder, _mark(self.token), flags)
            mark = stack.enter_context(os.fdopen(descriptor, "a+b", buffering=0))
            mark.seek(0, os.SEEK_END)
            says_so = held and _is_free(mark)
            if says_so or not mark.tell():  # else another process of the same job says so
                owner = Owner.here(locked=_trusts(mark)).to_json() if says_so else b""
                mark.truncate(0)
                mark.write(owner + b"\n" + says)
            if says_so:
                stack.pop_all()
                return mark
        return None

    def end(self) -> None:
        """Exchange the folders, and remove the old node; the mark stays.

        May be called again after a crash at any moment, and after the end.

        Raises
        ------
        StoreError
            If the folders cannot be exchanged; the old node is then where it was.
        """
        try:
            if _has_mark(self.beside, self.token):
                _exchange(self.beside, self.place)
                for one in (self.beside, self.place):
                    forget_folders(one)
                forget_reached()
            for one in (self.beside, self.place):  # before the old node goes
                fsync_folder(str(Path(one).parent))
        except OSError as error:
            raise StoreError(
                f"{self.beside} could not take the place of {self.place}: "
                f"{error.strerror or error}. Both are whole."
            ) from error
        self.remove()

    def forget(self) -> None:
        """Remove the mark: the job has ended, and its journal is gone."""
        Path(self.place, _mark(self.token)).unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove what lies beside: the old node after the end, else the new one."""
        if Path(self.place).exists():  # else these are the only ones that there are
            _remove(f"{self.beside}{_AWAY}")
            _remove(self.beside)


# --- leftovers of killed jobs ---------------------------------------------------------------------


@dataclass(frozen=True)
class SwapLeftover:
    """A folder beside a hierarchy that belongs to a swap."""

    folder: str
    state: State
    """``"running"``; ``"dead"``, and not needed; ``"resumable"`` where a journal knows of it;
    ``"unknown"`` where another host may write it, or where it is a link."""

    def remove(self) -> bool:
        """Remove the folder if it is not needed; return True if it was not."""
        if self.state == "dead":
            _remove(self.folder)
        return self.state == "dead"


def left_beside(around: str, name: str) -> list[SwapLeftover]:
    """Return the folders of swaps beside the root of a hierarchy, including those in use.

    Parameters
    ----------
    around, name
        The folder that contains the root, and the root's name.
    """
    pattern = re.compile(
        rf"\.{re.escape(name)}{re.escape(_PART)}([0-9a-f]{{16}}){re.escape(_SUFFIX)}"
        rf"(?:\{_MAKING}([0-9a-f]{{10}}))?"
    )
    found = []
    with suppress(OSError):
        for folder in sorted(map(str, Path(around).iterdir())):
            match = pattern.fullmatch(Path(folder).name)
            if match is not None:
                found.append(SwapLeftover(folder, _state(folder, match[1], match[2])))
    return found


def _state(folder: str, token: str, maker: str | None) -> State:
    """Return the state of a folder; `maker` is the process that had not given it its mark yet."""
    if Path(folder).is_symlink() or not Path(folder).is_dir():
        return "unknown"  # no job makes such
    if os.path.lexists(f"{folder}{_AWAY}"):
        return "unknown"  # a crash between two renames: these are the only ones that there are
    try:
        descriptor = open_in(folder, _mark(token), os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb", buffering=0) as mark:
            if not _is_free(mark):
                return "running"
            mark.seek(0)
            who, _, journal = mark.read(_LONGEST_MARK).partition(b"\n")
            owner = Owner.parse(who)
            if journal and _is_open(os.fsdecode(journal)):
                return "resumable"
            if owner is None:
                return "dead" if _has_gone(maker) else "unknown"
            had_lock = owner.locked and owner.is_here() and _trusts(mark)
            return "dead" if had_lock or owner.is_gone() else "unknown"
    except FileNotFoundError:
        return "dead" if maker is None or _has_gone(maker) else "unknown"
    except OSError:
        return "unknown"


def _has_gone(maker: str | None) -> bool:
    return maker is not None and is_number_of_gone(int(maker, 16))


def _place_of(journal: Journal) -> str:
    """Return the folder of a journal in local files, or the URL of another one."""
    if isinstance(journal.store, FileStore):
        return f"{os.path.realpath(journal.store.root)}/{journal.prefix}"
    return journal.url


def _is_open(journal: str) -> bool:
    """True if a journal is there; of one that is no local file that is unknown."""
    if not journal.startswith("/"):
        return True
    try:
        return Journal(folder_store(journal.rstrip("/")), "", "", "").job() is not None
    except (JournalError, StoreError):
        return True  # nobody knows what it is


def _trusts(mark: BinaryIO) -> bool:
    """Return True if locks of a file hold between all who see it."""
    return has_shared_locks(mark.fileno())


def _has_mark(folder: str, token: str) -> bool:
    """True if a folder, which is no link, holds the new node of a job.

    Raises
    ------
    OSError
        If that cannot be told: the new node would be taken for the old one, and removed.
    """
    if Path(folder).is_symlink():
        return False
    try:
        close_read(open_in(folder, _mark(token), os.O_RDONLY | os.O_NONBLOCK))
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _remove(folder: str) -> None:
    """Remove a folder beside a hierarchy; a link in its place stays, and what it leads to."""
    around, name = os.path.split(folder)
    forget_folders(folder)
    with suppress(OSError), folder_in(around, "") as at:
        shutil.rmtree(name, ignore_errors=True, dir_fd=at)  # which follows no link
    forget_reached()


def _is_free(mark: BinaryIO) -> bool:
    """Lock a file until it is closed, or look who has it; returns False if another process has."""
    mark.seek(0)
    owner = Owner.parse(mark.read(_LONGEST_MARK).partition(b"\n")[0])
    if _trusts(mark):
        with suppress(OSError):  # no locks: what the mark says counts
            if not lock(mark.fileno()):
                return False
            if owner is None or owner.locked:
                return True
    return owner is None or not owner.is_running()


def _mark(token: str) -> str:
    """Return the name of the mark, which no listing shows and only the new node's folder has."""
    return f".zarr-dask-{token}.tmp"


# --- planning and exchanging ----------------------------------------------------------------------


def plan_swap(store: Store, path: str, *formats: Format) -> AtomicReplace:
    """Plan the swap of an array or a group; nothing is written.

    Parameters
    ----------
    store, path
        Store and path of the node.
    formats
        Formats of the old node and of the new one.

    Raises
    ------
    StoreError
        If the store is not a local one, or the node not in one folder that can be renamed.
    LinkError
        If a link stands in the place of the node, or leads to it.
    """
    if not isinstance(store, FileStore):
        raise StoreError(
            f"{where(store, path)} cannot be replaced at once: mode='swap' renames folders of "
            "local files, and in object stores replaces what is of format v3. Write to "
            "another place, and let readers open that one afterwards."
        )
    if any(node_format.prefixes(path) != (prefix_of(path),) for node_format in formats):
        raise StoreError(
            f"{where(store, path)} does not lie in one folder, as nodes of the formats v1, v2 and "
            "v3 do, so that it cannot be replaced at once."
        )
    check_no_link(store, path)
    place, root = (os.path.realpath(p) for p in (f"{store.root}/{path}", store.root))
    around, name = os.path.split(root)
    token = token_hex(8)
    if not name or _device(place) != Path(around).stat().st_dev:
        raise StoreError(
            f"{place} is on another file system than {around}, where its replacement would be "
            "written, so that it cannot be renamed. Write to another place."
        )
    return AtomicReplace(place, f"{around}/.{name}", token, store.fsync, path)


def _device(place: str) -> int:
    """Return the file system of a folder that another process may remove, or of the one around."""
    for folder in (Path(place), *Path(place).parents):
        with suppress(FileNotFoundError):
            return folder.stat().st_dev
    raise StoreError(f"{place} lies in no folder that exists.")


def is_halfway(store: Store) -> bool:
    """True if a job was killed right between two renames, in any node of a hierarchy."""
    if not isinstance(store, FileStore):
        return False
    around, name = os.path.split(os.path.realpath(store.root))
    return any(Path(around).glob(f".{glob.escape(name)}{_PART}*{_SUFFIX}{_AWAY}"))


def _exchange(new: str, old: str) -> None:
    away = f"{new}{_AWAY}"
    if Path(away).exists() or not _exchanged(new, old):
        if not Path(away).exists():  # else a job was killed right here; continue it
            Path(old).rename(away)
        try:
            Path(new).rename(old)
        except OSError:
            with suppress(OSError):
                Path(away).rename(old)
            raise
        Path(away).rename(new)


def _exchanged(new: str, old: str) -> bool:
    """Exchange two folders atomically; return False if the system cannot."""
    library = ctypes.CDLL(None, use_errno=True)
    first, second = os.fsencode(new), os.fsencode(old)
    if sys.platform == "darwin":
        call, arguments = "renamex_np", (first, second, _EXCHANGE)
    else:
        call, arguments = "renameat2", (_AT_FDCWD, first, _AT_FDCWD, second, _EXCHANGE)
    if not hasattr(library, call):
        return False
    if getattr(library, call)(*arguments) == 0:
        return True
    number = ctypes.get_errno()
    if number in _NO_EXCHANGE:
        return False
    raise OSError(number, os.strerror(number), new)
