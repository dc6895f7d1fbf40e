"""Any file system that fsspec knows: S3, GCS, Azure, HTTP and more.

The file system is found again through fsspec's own cache in every process, so the pickled form
is a URL and its options. Only fsspec's `FileNotFoundError` means "not there", and not where S3 says
that it is the bucket which is not there.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit, urlunsplit

from zarr_dask.errors import MissingDependencyError, StoreError
from zarr_dask.stores.base import Buffer, Coalescing, Listing, Range, check_key, join

__all__ = ["FsspecStore"]

_ABSENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
# what file systems call the tag of a value, and when it was last changed
_TAGS = ("ETag", "etag", "md5Hash", "content_md5", "generation", "VersionId")
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")


_WITH_LOGIN = {"ftp", "sftp", "smb", "ssh"}
"""Schemes whose file systems take ``username`` and ``password``."""


def _login_apart(url: str) -> tuple[str, dict[str, str]]:
    """A URL and what it says of user and password: a URL is shown in messages and in plans.

    Raises
    ------
    StoreError
        If it has a password, and its file system no option for one.
    """
    parts = urlsplit(url)
    if parts.password is None:
        return url, {}
    if parts.scheme not in _WITH_LOGIN:
        raise StoreError(
            f"a URL of scheme {parts.scheme!r} was given with a password in it, which would be "
            "shown in messages: pass it in storage_options."
        )
    netloc = parts.netloc.rpartition("@")[2]
    login = {"username": unquote(parts.username or ""), "password": unquote(parts.password)}
    return urlunsplit(parts._replace(netloc=netloc)), login


@dataclass(frozen=True, slots=True)
class FsspecStore:
    """Values below a URL, through fsspec.

    Parameters
    ----------
    url
        Root of the store, with its scheme.
    options
        The file system's own options, as JSON text so that the store can be hashed.
    """

    url: str
    options: str = "{}"

    coalescing: ClassVar[Coalescing] = Coalescing(gap=1 << 20, largest=1 << 24, requests=64)

    @staticmethod
    def from_url(url: str, options: Mapping[str, Any]) -> FsspecStore:
        """A store at `url`.

        Raises
        ------
        MissingDependencyError
            If the package that serves the scheme is not installed.
        StoreError
            If no such scheme is known, or the URL has a password that is no part of it.
        """
        place, login = _login_apart(url if url.endswith("://") else url.rstrip("/"))
        store = FsspecStore(place, json.dumps({**login, **options}, sort_keys=True))
        _file_system(store.url, store.options)
        return store

    @property
    def identity(self) -> str:
        """The URL and a digest of the options, which may hold secrets."""
        return f"{self.url}#{sha256(self.options.encode()).hexdigest()[:16]}"

    def settings(self) -> dict[str, Any]:
        """The options; they may hold secrets."""
        return dict(json.loads(self.options))

    def __repr__(self) -> str:
        return f"FsspecStore({self.url!r})"  # options may hold credentials

    def get(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.get`."""
        fs, root = _file_system(self.url, self.options)
        check_key(key)
        try:
            return bytes(fs.cat_file(join(root, key)))
        except _ABSENT as error:
            self._check_bucket("read", key, error)
            return None
        except OSError as error:
            raise _failed(self, "read", key, error) from error

    def borrow(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.borrow`."""
        return self.get(key)

    def get_ranges(self, requests: Sequence[tuple[str, Range]]) -> list[Buffer | None]:
        """See `zarr_dask.stores.base.Store.get_ranges`."""
        fs, root = _file_system(self.url, self.options)
        for key, _ in requests:
            check_key(key)
        asked = [wanted for _, wanted in requests]
        found = fs.cat_ranges(
            [join(root, key) for key, _ in requests],
            [wanted.start for wanted in asked],
            # file systems differ in what they make of a range of no bytes
            [
                None if wanted.stop is None else max(wanted.stop, wanted.start + 1)
                for wanted in asked
            ],
            on_error="return",
        )
        return [
            self._checked(key, wanted, value)
            for (key, wanted), value in zip(requests, found, strict=True)
        ]

    def _checked(self, key: str, wanted: Range, value: Any) -> Buffer | None:
        if isinstance(value, _ABSENT):
            self._check_bucket("read", key, value)
            return None
        if isinstance(value, OSError) and value.errno == errno.EINVAL:  # so s3fs says 416
            size = self.size(key)
            if size is None or size <= wanted.start or size == 0:  # it begins behind the end
                return None if size is None else b""
        if isinstance(value, Exception):
            raise _failed(self, "read", key, value) from value
        return b"" if wanted.start == wanted.stop else bytes(value)

    def _check_bucket(self, doing: str, key: str, error: OSError) -> None:
        """Refuse an absence that is the bucket's, of which s3fs says the same as of a key."""
        answer = getattr(error.__cause__, "response", None) or {}
        if answer.get("Error", {}).get("Code") == "NoSuchBucket":
            raise _failed(self, doing, key, error) from error

    def set(self, key: str, buffers: Sequence[Buffer]) -> None:
        """See `zarr_dask.stores.base.Store.set`."""
        fs, root = _file_system(self.url, self.options)
        check_key(key)
        try:
            fs.pipe_file(join(root, key), b"".join(buffers))
        except OSError as error:  # absence too: there is nowhere to write to
            raise _failed(self, "write", key, error) from error

    def delete(self, key: str) -> None:
        """See `zarr_dask.stores.base.Store.delete`."""
        fs, root = _file_system(self.url, self.options)
        check_key(key)
        if self.size(key) is not None:  # a folder is no value
            with _reporting(self, "delete", key):
                fs.rm_file(join(root, key))

    def delete_prefix(self, prefix: str) -> None:
        """See `zarr_dask.stores.base.Store.delete_prefix`."""
        fs, root = _file_system(self.url, self.options)
        with _reporting(self, "delete", prefix):
            fs.rm(join(root, prefix.rstrip("/")), recursive=True)

    def list(self, prefix: str = "") -> Iterator[str]:
        """See `zarr_dask.stores.base.Store.list`."""
        fs, root = _file_system(self.url, self.options)
        found: list[str] = []
        with _reporting(self, "list", prefix):
            found = fs.find(join(root, prefix.rstrip("/")))
        return (path[len(root) :].lstrip("/") for path in found)

    def list_sizes(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """See `zarr_dask.stores.base.list_sizes`."""
        fs, root = _file_system(self.url, self.options)
        found: dict[str, dict[str, Any]] = {}
        with _reporting(self, "list", prefix):
            found = fs.find(join(root, prefix.rstrip("/")), detail=True)
        return ((p[len(root) :].lstrip("/"), int(entry["size"])) for p, entry in found.items())

    def list_dir(self, prefix: str = "") -> Listing:
        """See `zarr_dask.stores.base.Store.list_dir`."""
        fs, root = _file_system(self.url, self.options)
        entries: list[dict[str, Any]] = []
        with _reporting(self, "list", prefix):
            entries = fs.ls(join(root, prefix.rstrip("/")), detail=True, refresh=True)
        keys, prefixes = [], []
        for entry in entries:
            name = f"{prefix}{entry['name'].rstrip('/').rsplit('/', 1)[-1]}"
            if entry["type"] == "directory":
                prefixes.append(f"{name}/")
            else:
                keys.append(name)
        return Listing(sorted(keys), sorted(prefixes))

    def size(self, key: str) -> int | None:
        """See `zarr_dask.stores.base.Store.size`."""
        status = self._status(key)
        return None if status is None else int(status["size"])

    def validator(self, key: str) -> Hashable:
        """See `zarr_dask.stores.base.validator_of`: the tag of a value, or its time and size."""
        fs, root = _file_system(self.url, self.options)
        fs.invalidate_cache(join(root, key))  # listings that it keeps may be old
        status = self._status(key)
        if status is None:
            return None
        tag = next((status[name] for name in _TAGS if status.get(name)), None)
        changed = next((status[name] for name in _TIMES if status.get(name)), None)
        if tag is None and changed is None:
            return None
        return str(tag), str(changed), int(status["size"]), str(status.get("ino", ""))

    def _status(self, key: str) -> Mapping[str, Any] | None:
        fs, root = _file_system(self.url, self.options)
        try:
            status: Mapping[str, Any] = fs.info(join(root, key))
            return None if status["type"] == "directory" else status
        except _ABSENT as error:
            self._check_bucket("inspect", key, error)
            return None
        except OSError as error:
            raise _failed(self, "inspect", key, error) from error


def _last_asked(wanted: Range) -> int | None:
    """Where a range ends; file systems differ in what they make of one of no bytes."""
    return None if wanted.stop is None else max(wanted.stop, wanted.start + 1)


def _failed(store: FsspecStore, doing: str, key: str, error: Exception) -> StoreError:
    return StoreError(f"could not {doing} {key!r} in {store.url}: {error}")


@contextmanager
def _reporting(store: FsspecStore, doing: str, key: str) -> Iterator[None]:
    """Absence is an empty answer; every other failure is the store's."""
    try:
        yield
    except _ABSENT as error:
        store._check_bucket(doing, key, error)  # noqa: SLF001  (it is this module's)
    except OSError as error:
        raise _failed(store, doing, key, error) from error


@lru_cache(maxsize=64)
def _file_system(url: str, options: str) -> tuple[Any, str]:
    """The file system of this process and the path of the root on it."""
    from fsspec.core import url_to_fs

    try:
        fs, root = url_to_fs(url, **json.loads(options))
    except ImportError as error:
        raise MissingDependencyError(
            f"{url} needs a package that is not installed: {error}"
        ) from error
    except ValueError as error:
        raise StoreError(f"no store at {url}: {error}") from error
    return fs, root.rstrip("/")
