"""Any file system that fsspec knows: S3, GCS, Azure, HTTP and more.

The file system is found again through fsspec's own cache in every process, so the pickled form
is a URL and its options. Only fsspec's `FileNotFoundError` means "not there", and not where S3 says
that it is the bucket which is not there.
"""

from __future__ import annotations

import errno
import json
import sys
import time
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

from zarr_dask.errors import MissingDependencyError, StoreError
from zarr_dask.stores.base import Buffer, Coalescing, Listing, Range, check_key, join
from zarr_dask.stores.credentials import identity_of, redacted
from zarr_dask.stores.dialect import for_fsspec

__all__ = ["FsspecStore"]

_ABSENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
_LOST = {"NoSuchBucket", "ContainerNotFound"}  # what services call the lack of the bucket itself
_ATTEMPTS = 3  # to read a part of a value that is replaced again and again
_FAILURES = (
    ("aiohttp", "ClientError"),
    ("asyncssh", "Error"),
    ("azure.core.exceptions", "AzureError"),
    ("botocore.exceptions", "BotoCoreError"),
    ("botocore.exceptions", "ClientError"),
    ("fsspec.implementations.reference", "ReferenceNotReachable"),
    ("gcsfs.retry", "HttpError"),
    ("google.auth.exceptions", "GoogleAuthError"),
    ("paramiko", "SSHException"),
    ("zipfile", "BadZipFile"),
)
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
        """The URL and a digest of the options that are no credentials."""
        return identity_of(self.url, self.options)

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
        except _failures() as error:
            raise _failed(self, "read", key, error) from self._public(error)

    def borrow(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.borrow`."""
        return self.get(key)

    def get_ranges(self, requests: Sequence[tuple[str, Range]]) -> list[Buffer | None]:
        """See `zarr_dask.stores.base.Store.get_ranges`.

        File systems do not show what a service said of a range, so that the length is compared
        with what was asked for. Ends of values are found through their sizes: Azure has no other
        way, some services send the beginning, and which ones cannot be seen.
        """
        for key, _ in requests:
            check_key(key)
        found = self._ranges(requests)
        for _ in range(_ATTEMPTS - 1):
            again = [number for number, value in enumerate(found) if isinstance(value, _Changed)]
            if not again:
                break
            fetched = self._ranges([requests[number] for number in again])
            for number, value in zip(again, fetched, strict=True):
                found[number] = value
        for value in found:
            if isinstance(value, _Changed):
                raise value.error
        return [None if isinstance(value, _Changed) else value for value in found]

    def _ranges(self, requests: Sequence[tuple[str, Range]]) -> list[Buffer | _Changed | None]:
        """Parts of values; `_Changed` where one does not fit what was known of its value."""
        fs, root = _file_system(self.url, self.options)
        from_end = sorted({key for key, wanted in requests if wanted.start < 0})
        sizes = self._sizes(from_end)
        asked = [
            (key, wanted if wanted.start >= 0 else _absolute(wanted, sizes[key]))
            for key, wanted in requests
        ]
        fetched = fs.cat_ranges(
            [join(root, key) for key, _ in asked],
            [wanted.start for _, wanted in asked],
            [_last_asked(wanted) for _, wanted in asked],
            on_error="return",
        )
        return [
            None
            if wanted.start < 0 and sizes[key] is None
            else self._checked(key, absolute, value, known=wanted.start < 0)
            for (key, wanted), (_, absolute), value in zip(requests, asked, fetched, strict=True)
        ]

    def _sizes(self, keys: Sequence[str]) -> dict[str, int | None]:
        """Sizes of values, asked for side by side where the file system can."""
        fs, root = _file_system(self.url, self.options)
        if len(keys) < 2 or not getattr(fs, "async_impl", False):
            return {key: self.size(key) for key in keys}
        from fsspec.asyn import _run_coros_in_chunks, sync

        async def ask() -> Any:
            for key in keys:
                fs.invalidate_cache(join(root, key))
            asked = [fs._info(join(root, key)) for key in keys]  # noqa: SLF001  (fsspec's own name)
            return await _run_coros_in_chunks(asked, return_exceptions=True)

        return {
            key: None if status is None else int(status["size"])
            for key, found in zip(keys, sync(fs.loop, ask), strict=True)
            for status in [self._found(key, found)]
        }

    def _checked(self, key: str, wanted: Range, value: Any, *, known: bool) -> Any:
        """A part of a value, if it is the one that was asked for.

        Parameters
        ----------
        known
            Whether the range was made from the value's size.
        """
        if isinstance(value, _ABSENT):
            self._check_bucket("read", key, value)
            return None
        if wanted.start == wanted.stop:
            if isinstance(value, Exception) and self.size(key) is None:
                return None
            return b""
        if isinstance(value, Exception):
            return self._behind_the_end(key, wanted, value)
        if wanted.stop is None:
            return bytes(value)
        missing = wanted.stop - wanted.start - len(value)
        if missing > 0 and not known:
            size = self.size(key)
            missing = -1 if size is None else min(size, wanted.stop) - wanted.start - len(value)
            missing = 0 if size is not None and not value and size <= wanted.start else missing
        if not missing:
            return bytes(value)
        return _Changed(
            StoreError(
                f"could not read {key!r} in {self.url}: asked for bytes {wanted.start} to "
                f"{wanted.stop}, got {len(value)}: the service does not know ranges, or the value "
                "is replaced again and again."
            )
        )

    def _behind_the_end(self, key: str, wanted: Range, error: Exception) -> Buffer | None:
        """No bytes, if it is that a range begins where its value has ended; else the error."""
        size = self.size(key) if _is_no_such_range(error) else wanted.start + 1
        if size is not None and size > wanted.start:
            raise _failed(self, "read", key, error) from self._public(error)
        return None if size is None else b""

    def _check_bucket(self, doing: str, key: str, error: OSError) -> None:
        """Refuse an absence that is the bucket's, of which file systems say the same."""
        answer = getattr(error.__cause__, "response", None)
        told = answer.get("Error", {}).get("Code") if isinstance(answer, dict) else None
        told = told or getattr(error.__cause__, "error_code", None)
        if told is None:
            lost = not _bucket_is_there(self.url, self.options, int(time.monotonic()))
        else:
            lost = str(getattr(told, "value", told)) in _LOST
        if lost:
            raise StoreError(
                f"could not {doing} {key!r} in {self.url}: there is no such bucket "
                f"({redacted(str(error), self.settings())})"
            ) from self._public(error)

    def set(self, key: str, buffers: Sequence[Buffer]) -> None:
        """See `zarr_dask.stores.base.Store.set`."""
        fs, root = _file_system(self.url, self.options)
        check_key(key)
        try:
            fs.pipe_file(join(root, key), b"".join(buffers))
        except _failures() as error:  # absence too: there is nowhere to write to
            raise _failed(self, "write", key, error) from self._public(error)

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
        self._check_emptiness(prefix, found)
        return (path[len(root) :].lstrip("/") for path in found)

    def list_sizes(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """See `zarr_dask.stores.base.list_sizes`."""
        fs, root = _file_system(self.url, self.options)
        found: dict[str, dict[str, Any]] = {}
        with _reporting(self, "list", prefix):
            found = fs.find(join(root, prefix.rstrip("/")), detail=True)
        self._check_emptiness(prefix, found)
        return ((p[len(root) :].lstrip("/"), int(entry["size"])) for p, entry in found.items())

    def _check_emptiness(self, prefix: str, found: Collection[str]) -> None:
        """Refuse an empty listing of a bucket that is not there."""
        if not found:
            self._check_bucket("list", prefix, FileNotFoundError("nothing was listed"))

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
        fs.invalidate_cache(join(root, key))  # listings that it keeps may be old
        try:
            return self._found(key, fs.info(join(root, key)))
        except _failures() as error:
            return self._found(key, error)

    def _found(self, key: str, status: Any) -> Mapping[str, Any] | None:
        """What is known of a value; None if there is none, or a folder."""
        if isinstance(status, _ABSENT):
            self._check_bucket("inspect", key, status)
            return None
        if isinstance(status, BaseException):
            if not isinstance(status, _failures()):
                raise status
            raise _failed(self, "inspect", key, status) from self._public(status)
        found: Mapping[str, Any] = status
        return None if found["type"] == "directory" else found

    def _public(self, error: BaseException) -> BaseException:
        """An error as it may be shown: itself, if neither it nor what led to it tells a secret."""
        options, link = self.settings(), error
        while redacted(str(link), options) == str(link):
            if (link := link.__cause__ or link.__context__) is None:  # type: ignore[assignment]
                return error
        return OSError(f"{type(error).__name__}: {redacted(str(error), options)}")


class _Changed(NamedTuple):
    """A part that does not fit what was known of its value, and what to say if it never does."""

    error: StoreError


def _absolute(wanted: Range, size: int | None) -> Range:
    """A range from the end of a value of known size, from its beginning."""
    return Range(max((size or 0) + wanted.start, 0), size or 0)


def _last_asked(wanted: Range) -> int | None:
    """Where a range ends; file systems differ in what they make of one of no bytes."""
    return None if wanted.stop is None else max(wanted.stop, wanted.start + 1)


def _failures() -> tuple[type[BaseException], ...]:
    """The errors that file systems have for what a service said, of those that are loaded.

    Many are no `OSError`; what is none of these is a mistake in a program, and stays as it is.
    """
    loaded = ((sys.modules.get(module), name) for module, name in _FAILURES)
    return (
        OSError,
        NotImplementedError,
        *(getattr(module, name) for module, name in loaded if hasattr(module, name)),
    )


def _is_no_such_range(error: Exception) -> bool:
    """Whether a service has answered 416, as each file system says it."""
    codes = (getattr(error, name, None) for name in ("status", "status_code", "code"))
    return 416 in codes or getattr(error, "errno", None) == errno.EINVAL


def _failed(store: FsspecStore, doing: str, key: str, error: BaseException) -> StoreError:
    words = redacted(str(error), store.settings()) or type(error).__name__
    return StoreError(f"could not {doing} {key!r} in {store.url}: {words}")


@contextmanager
def _reporting(store: FsspecStore, doing: str, key: str) -> Iterator[None]:
    """Absence is an empty answer; every other failure is the store's."""
    try:
        yield
    except _ABSENT as error:
        store._check_bucket(doing, key, error)  # noqa: SLF001  (it is this module's)
    except _failures() as error:
        raise _failed(store, doing, key, error) from store._public(error)  # noqa: SLF001


@lru_cache(maxsize=64)
def _bucket_is_there(url: str, options: str, second: int) -> bool:  # noqa: ARG001
    """Whether there is a bucket around a key that is not there, asked at most once in a second.

    Asked only of services whose file system does not tell what it is that is missing; True of
    the others, and where the service does not let us know.
    """
    fs, root = _file_system(url, options)
    bucket = root.partition("/")[0]
    scheme = url.partition("://")[0]
    try:
        if scheme in {"gs", "gcs"}:
            fs.call("GET", "b/{}/o", bucket, maxResults=1, json_out=True)
        elif scheme in {"az", "abfs"}:
            fs.info(bucket, refresh=True)
    except FileNotFoundError:
        return False
    except _failures():
        return True
    return True


@lru_cache(maxsize=64)
def _file_system(url: str, options: str) -> tuple[Any, str]:
    """The file system of this process and the path of the root on it."""
    from fsspec.core import url_to_fs

    try:
        fs, root = url_to_fs(url, **for_fsspec(url, json.loads(options)))
    except ImportError as error:
        raise MissingDependencyError(
            f"{url} needs a package that is not installed: {error}"
        ) from error
    except ValueError as error:
        raise StoreError(f"no store at {url}: {error}") from error
    return fs, root.rstrip("/")
