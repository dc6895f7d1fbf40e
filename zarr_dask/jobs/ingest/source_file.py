"""Files as stores name them: opening, reading parts, and finding them by patterns."""

from __future__ import annotations

import io
import os
import re
import stat
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from glob import glob, has_magic
from hashlib import sha256
from pathlib import Path
from typing import Any

from zarr_dask.errors import IngestError, StoreError
from zarr_dask.formats.detect import FORMATS
from zarr_dask.stores.base import Buffer, Range, Store, etag_of
from zarr_dask.stores.open import open_store
from zarr_dask.stores.put_tags import versions_below

__all__ = ["PositionedFile", "SourceFile", "find_files", "natural"]

SUFFIXES = (
    ".nc",
    ".nc3",
    ".nc4",
    ".cdf",
    ".h5",
    ".hdf5",
    ".he5",
    ".hdf",
    ".grib",
    ".grb",
    ".grib2",
    ".zarr",
)
"""Endings of the files and hierarchies that are taken from a folder."""


@dataclass(frozen=True)
class SourceFile:
    """The location of one file, or of one Zarr hierarchy."""

    url: str
    """Absolute path, or URL."""
    options: tuple[tuple[str, Any], ...] = ()
    """Options of its store."""

    @staticmethod
    def of(url: str, options: Mapping[str, Any] | None) -> SourceFile:
        """Return the place of a path or URL."""
        remote = "://" in url
        return SourceFile(
            url if remote else os.path.abspath(url),
            tuple((options or {}).items()) if remote else (),
        )

    @property
    def _split(self) -> tuple[str, str]:
        folder, _, name = self.url.rpartition("/")
        return folder or "/", name

    @property
    def store(self) -> Store:
        """The store of its folder."""
        return _store(self._split[0], repr(self.options)) or open_store(
            self._split[0], dict(self.options)
        )

    @property
    def path(self) -> str | None:
        """Its path if it is a local file."""
        return None if "://" in self.url else self.url

    @cached_property
    def is_hierarchy(self) -> bool:
        """True for a Zarr hierarchy: a local folder, or a URL that ends in ``.zarr``."""
        return self.url.endswith(".zarr") if self.path is None else os.path.isdir(self.path)

    def _stored(self) -> dict[str, tuple[int, Hashable]]:
        """Return the values of a hierarchy, with what changes when they do."""
        if self.path is None:
            found = versions_below(open_store(self.url, dict(self.options)), "")
            return {key: (one.nbytes, one.tag) for key, one in found.items()}
        walked = os.walk(self.path)
        files = [os.path.join(folder, name) for folder, _, names in walked for name in names]
        return {one: (os.stat(one).st_size, os.stat(one).st_mtime_ns) for one in files}

    def size(self) -> int:
        """Return its bytes.

        Raises
        ------
        IngestError
            If it is not there.
        """
        return self.version()[0] if self.path is not None or self.is_hierarchy else self._far_size()

    def _far_size(self) -> int:
        size = self.store.size(self._split[1])
        if size is None:
            raise IngestError(f"{self.url} is not there, or is a folder.")
        return size

    def tag(self) -> str:
        """Return what changes when the file does: times of a local file, a tag of a remote one."""
        if self.path is not None or self.is_hierarchy:
            return self.version()[1]
        return repr(etag_of(self.store, self._split[1]))

    def version(self) -> tuple[int, str]:
        """Return `size` and `tag`, which for a hierarchy takes one listing.

        Raises
        ------
        IngestError
            If it is not there, or is no file, such as a pipe.
        """
        if not self.is_hierarchy:
            return self._file_version() if self.path is not None else (self.size(), self.tag())
        stored = self._stored()
        digest = sha256(repr(sorted(stored.items())).encode()).hexdigest()[:24]
        return sum(nbytes for nbytes, _ in stored.values()), digest

    def _file_version(self) -> tuple[int, str]:
        try:
            found = os.stat(self.url)
        except (FileNotFoundError, NotADirectoryError):
            raise IngestError(f"{self.url} is not there, or is a folder.") from None
        if not stat.S_ISREG(found.st_mode):
            raise IngestError(f"{self.url} is a pipe, socket or device: expected a file.")
        return found.st_size, f"{found.st_mtime_ns}"

    def read(self, ranges: Sequence[Range]) -> list[Buffer]:
        """Return parts of the file.

        Raises
        ------
        IngestError
            If it is not there, or ends before them.
        """
        name = self._split[1]
        found = self.store.get_ranges([(name, one) for one in ranges])
        for one, part in zip(ranges, found, strict=True):
            if part is None:
                raise IngestError(f"{self.url} is not there any more.")
            self._check_whole(one, len(part))
        return [part for part in found if part is not None]

    def read_behind(self, header: bytes, one: Range) -> Buffer:
        """Return bytes and, behind them, a part of the file; see `read`."""
        if self.path is None or one.stop is None or not header:
            (part,) = self.read([one])
            return b"".join((header, part)) if header else part
        try:
            with Path(self.path).open("rb", buffering=0) as file:
                there = max(os.fstat(file.fileno()).st_size - one.start, 0)
                self._check_whole(one, there)  # before memory is taken: a size may be damaged
                found = memoryview(bytearray(len(header) + one.stop - one.start))
                found[: len(header)] = header
                file.seek(one.start)
                at = len(header)
                while at < len(found) and (count := file.readinto(found[at:])):
                    at += count
        except FileNotFoundError:
            raise IngestError(f"{self.url} is not there any more.") from None
        self._check_whole(one, at - len(header))
        return found

    def _check_whole(self, one: Range, length: int) -> None:
        if one.stop is not None and length < one.stop - one.start:
            raise IngestError(
                f"{self.url} ends at byte {one.start + length}, but values lie up to byte "
                f"{one.stop}: the file is cut off. Fetch it again."
            )

    def open_remote(self) -> io.BufferedReader:
        """Return a file object over a remote file."""
        return io.BufferedReader(_Remote(self), 1 << 20)


@lru_cache(maxsize=64)
def _local(folder: str) -> Store:
    return open_store(folder)


def _store(folder: str, options: str) -> Store | None:
    return _local(folder) if options == "()" and "://" not in folder else None


class PositionedFile(io.RawIOBase):
    """A file object of a known size with a position; how it is read says a subclass.

    Parameters
    ----------
    size
        Its length in bytes.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self._at, self._size = 0, size

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        """Change the position."""
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at


class _Remote(PositionedFile):
    """A remote file, read by ranges."""

    def __init__(self, place: SourceFile) -> None:
        super().__init__(place.size())
        self._place = place

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer."""
        view = memoryview(buffer).cast("B")
        stop = min(self._at + len(view), self._size)
        if stop <= self._at:
            return 0
        (part,) = self._place.read([Range(self._at, stop)])
        view[: len(part)] = part
        self._at += len(part)
        return len(part)


# --- finding files --------------------------------------------------------------------------------


def find_files(
    files: Any, options: Mapping[str, Any] | None = None, but: str | None = None
) -> list[str]:
    """Return paths and URLs of files and hierarchies, in the order given; of a pattern by name.

    Parameters
    ----------
    files
        A path or URL, a pattern, a folder, ``"@list.txt"`` for a file with one of these on each
        line, or a list of them.
    options
        Options of the stores of URLs.
    but
        Path or URL that no pattern and no folder yields, since it is where they are written to.

    Raises
    ------
    IngestError
        If there are none, or a pattern matches nothing.

    Examples
    --------
    >>> find_files("no-such-folder/*.nc")
    Traceback (most recent call last):
    ...
    zarr_dask.errors.IngestError: 'no-such-folder/*.nc' matches no file. ...
    """
    if isinstance(files, Mapping):
        raise TypeError(
            f"files is a {type(files).__name__}: expected paths, URLs or patterns.{_DATASETS}"
        )
    items: Iterable[Any] = [files] if isinstance(files, str | os.PathLike) else files
    found: list[str] = []
    for item in items:
        if not isinstance(item, str | os.PathLike):
            of_xarray = type(item).__module__.startswith("xarray.")
            raise TypeError(
                f"files has {item!r:.100}: expected paths, URLs or patterns."
                + _DATASETS * of_xarray
            )
        found += _matches(os.path.expanduser(os.fspath(item)), options, but)
    if not found:
        raise IngestError("there are no files: the list is empty. Give paths, URLs or patterns.")
    twice = (
        sorted({url for url in found if found.count(url) > 1})
        if len(set(found)) < len(found)
        else []
    )
    if twice:
        raise IngestError(
            f"{twice[0]} is given more than once ({len(twice)} files are): give each file once."
        )
    return found


_DATASETS = " zarr_dask.write_dataset(dataset, url) writes a dataset of xarray."


def _matches(item: str, options: Mapping[str, Any] | None, but: str | None) -> list[str]:
    if item.startswith("@"):
        lines = [line.strip() for line in _lines(Path(item[1:]))]
        return [url for line in lines if line for url in _matches(line, options, but)]
    if "://" in item:
        return _remote_matches(item, options, but) if has_magic(item) else [item]
    if os.path.isdir(item) and not _is_node(item):
        names = [one for one in os.listdir(item) if one.lower().endswith(SUFFIXES)]
        names = [one for one in names if not one.startswith(".")]
        found = [os.path.join(item, name) for name in names]
    elif has_magic(item) and not os.path.exists(item):
        found = glob(item, recursive=True)
    else:
        return [os.path.abspath(item)]
    found = [one for one in found if os.path.realpath(one) != but]
    if not found:
        raise IngestError(
            f"{item!r} matches no file. Check the pattern and the folder; of a folder, files "
            f"that end in {', '.join(SUFFIXES)} are taken."
        )
    return sorted((os.path.abspath(one) for one in found), key=natural)


def _lines(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise IngestError(
            f"{path}, the list of files, cannot be read ({error}). '@' stands before the name of a "
            "text file that has a path, URL or pattern on each line."
        ) from error
    if not any(line.strip() for line in lines):
        raise IngestError(f"{path}, the list of files, is empty: give a path or URL on each line.")
    return lines


def _is_node(folder: str) -> bool:
    keys = [key for known in FORMATS for key in known.node_keys("")]
    return folder.endswith(".zarr") or any(os.path.exists(os.path.join(folder, k)) for k in keys)


def _remote_matches(item: str, options: Mapping[str, Any] | None, but: str | None) -> list[str]:
    scheme, _, rest = item.partition("://")
    fixed = rest[: re.search(r"[*?\[]", rest).start()].rpartition("/")[0]  # type: ignore[union-attr]
    base = f"{scheme}://{fixed}"
    store = open_store(base, dict(options or {}))
    try:
        keys = _names_at(store, rest[len(fixed) + 1 :].count("/"))
    except StoreError as error:
        raise IngestError(f"{item!r}: the files cannot be listed ({error})") from error
    pattern = rest[len(fixed) + 1 :]
    found = [key for key in keys if fnmatchcase(key, pattern) and f"{base}/{key}" != but]
    if not found:
        raise IngestError(f"{item!r} matches no file. Check the pattern and the folder.")
    return [f"{base}/{key}" for key in sorted(found, key=natural)]


def _names_at(store: Store, depth: int, prefix: str = "") -> list[str]:
    """Return the files that many folders down, and the folders that end in ``.zarr``."""
    listing = store.list_dir(prefix)
    if depth:
        return [one for below in listing.prefixes for one in _names_at(store, depth - 1, below)]
    folders = [one.removesuffix("/") for one in listing.prefixes]
    return listing.keys + [one for one in folders if one.endswith(".zarr")]


def natural(name: str) -> list[Any]:
    """Return a key that sorts numbers in names by their values.

    Examples
    --------
    >>> sorted(["run/10.nc", "run/9.nc"], key=natural)
    ['run/9.nc', 'run/10.nc']
    """
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]
