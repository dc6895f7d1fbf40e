"""S3, Google Cloud Storage and Azure through obstore, the fast way.

A store is a URL and its options in fsspec's words, which `zarr_dask.stores.dialect` translates; the
client, whose making is slow, is found again in a bounded cache of the process. Requests of one
batch run side by side in threads that all stores of the process share.

Services answer 404 for a key that is not there as for a bucket that is not there. The answer says
which one it means, and where it does not, the bucket is asked for a listing: only a key that is
missing from a bucket that exists is "nothing". Answers to ranges are checked for being those.

Retries are obstore's: exponential backoff with jitter, a bounded number and a bounded time.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlsplit

from zarr_dask.errors import (
    ConditionalWriteError,
    ListingError,
    MissingDependencyError,
    StoreError,
    StoreKeyError,
    ZarrDaskError,
)
from zarr_dask.stores.base import WHOLE, Buffer, Coalescing, Listing, Range, check_key, join
from zarr_dask.stores.credentials import identity_of
from zarr_dask.stores.dialect import WEB, Place, place_of

__all__ = ["ObstoreStore"]

_SIDE_BY_SIDE = 32  # requests of batches at a time in one process
_MULTIPART = 1 << 25  # values from this size on are sent in parts
_PART = 1 << 24
_MOST_PARTS = 10_000  # of one value, on S3
_BATCH = 1000  # keys that are deleted at once
_ATTEMPTS = 3  # to read the end of a value that is replaced again and again
_ABSENT_CODES = {"NoSuchKey", "BlobNotFound"}
_LOST_CODES = {"ContainerNotFound", "NoSuchBucket"}
_CODE = re.compile(r"<Code>(\w+)</Code>")
_QUERY = re.compile(r"(https?://[^\s?]*)\?\S*")
_NO_SUCH_RANGE = ("416 Range Not Satisfiable", "non-partial response", "Wanted range starting at")

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class ObstoreStore:
    """Values below a URL of an object store, through obstore; made by `ObstoreStore.from_url`.

    Parameters
    ----------
    url
        Root of the store: scheme, bucket and path.
    options
        Options in the words of fsspec, as JSON text so that the store can be hashed.
    """

    url: str
    options: str = "{}"

    coalescing: ClassVar[Coalescing] = Coalescing(gap=1 << 20, largest=1 << 24, requests=64)

    @staticmethod
    def from_url(url: str, options: Mapping[str, Any]) -> ObstoreStore:
        """A store at `url`.

        Raises
        ------
        MissingDependencyError
            If obstore is not installed.
        StoreError
            If the options do not make a client.
        """
        store = ObstoreStore(url.rstrip("/"), json.dumps(dict(options), sort_keys=True))
        store._client()
        return store

    def settings(self) -> dict[str, Any]:
        """The options in the words of fsspec; they may hold secrets."""
        return dict(json.loads(self.options))

    @property
    def identity(self) -> str:
        """The URL and a digest of the options that are no credentials."""
        return identity_of(self.url, self.options)

    def __repr__(self) -> str:
        return f"ObstoreStore({self.url!r})"  # options may hold credentials

    # --- reading ----------------------------------------------------------------------------------

    def get(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.get`."""
        return self._part(key, WHOLE)

    def borrow(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.borrow`."""
        return self.get(key)

    def get_ranges(self, requests: Sequence[tuple[str, Range]]) -> list[Buffer | None]:
        """See `zarr_dask.stores.base.Store.get_ranges`."""
        for key, _ in requests:
            check_key(key)
        if len(requests) < 2:
            return [self._part(*request) for request in requests]
        return list(_THREADS.pool().map(lambda request: self._part(*request), requests))

    def size(self, key: str) -> int | None:
        """See `zarr_dask.stores.base.Store.size`."""
        found = self._head(key)
        return None if found is None else int(found["size"])

    def validator(self, key: str) -> Hashable:
        """See `zarr_dask.stores.base.validator_of`: the tag of a value."""
        found = self._head(key)
        return None if found is None or not found["e_tag"] else (found["e_tag"], found["size"])

    def get_tagged(self, key: str) -> tuple[Buffer | None, Hashable]:
        """See `zarr_dask.stores.conditional.ConditionalStore`."""
        with self._reporting("read", key):
            found = self._asked(key, lambda obs, client, at: obs.get(client, at))
            value = None if found is None else memoryview(found.bytes())
        return value, None if found is None else (found.meta["e_tag"], found.meta["version"])

    # --- writing ----------------------------------------------------------------------------------

    def set(self, key: str, buffers: Sequence[Buffer]) -> None:
        """See `zarr_dask.stores.base.Store.set`: one request, or parts that appear together."""
        pieces = _flat(buffers)
        nbytes = sum(map(len, pieces))
        with self._reporting("write", key):
            obs, client, at = self._at(key)
            if nbytes < _MULTIPART:
                obs.put(client, at, pieces, use_multipart=False)
            else:
                part = max(_PART, -(-nbytes // _MOST_PARTS))
                obs.put(client, at, pieces, use_multipart=True, chunk_size=part, max_concurrency=4)

    def check_conditional(self, key: str) -> None:
        """See `zarr_dask.stores.conditional.ConditionalStore`: the services all can.

        Raises
        ------
        ConditionalWriteError
            If it is an HTTP server, of which most ignore conditions.
        """
        check_key(key)
        if place_of(self.url).scheme in WEB:
            raise ConditionalWriteError(
                f"{self.url} is an HTTP server, which does not promise to look at conditions, so "
                "that two jobs cannot share a stored object there; write whole stored objects."
            )

    def set_if(self, key: str, buffers: Sequence[Buffer], tag: Hashable) -> bool:
        """See `zarr_dask.stores.conditional.ConditionalStore`: ``If-Match``, ``If-None-Match``."""
        with self._reporting("write", key):
            obs, client, at = self._at(key)
            try:
                obs.put(client, at, _flat(buffers), mode=_mode(tag), use_multipart=False)
            except (obs.exceptions.AlreadyExistsError, obs.exceptions.PreconditionError):
                return False
        return True

    def delete(self, key: str) -> None:
        """See `zarr_dask.stores.base.Store.delete`."""
        with self._reporting("delete", key):
            self._asked(key, lambda obs, client, at: obs.delete(client, at))

    def delete_prefix(self, prefix: str) -> None:
        """See `zarr_dask.stores.base.Store.delete_prefix`."""
        root = place_of(self.url).path
        keys = [join(root, key) for key in self.list(prefix)]
        with self._reporting("delete", prefix):
            obs, client, _ = self._client()
            for start in range(0, len(keys), _BATCH):
                obs.delete(client, keys[start : start + _BATCH])

    # --- listing ----------------------------------------------------------------------------------

    def list(self, prefix: str = "") -> Iterator[str]:
        """See `zarr_dask.stores.base.Store.list`."""
        return (key for key, _ in self.list_sizes(prefix))

    def list_sizes(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """See `zarr_dask.stores.base.list_sizes`."""
        with self._reporting("list", prefix):
            obs, client, root = self._client()
            for batch in obs.list(client, join(root, prefix.rstrip("/")) or None, chunk_size=1000):
                for found in batch:
                    yield _below(root, found["path"]), int(found["size"])

    def list_dir(self, prefix: str = "") -> Listing:
        """See `zarr_dask.stores.base.Store.list_dir`."""
        with self._reporting("list", prefix):
            obs, client, root = self._client()
            found = obs.list_with_delimiter(client, join(root, prefix.rstrip("/")) or None)
        keys = [_below(root, one["path"]) for one in found["objects"]]
        prefixes = [f"{_below(root, one)}/" for one in found["common_prefixes"]]
        return Listing(sorted(keys), sorted(prefixes))

    # --- requests ---------------------------------------------------------------------------------

    def _client(self) -> tuple[Any, Any, str]:
        """The library, the client of this process, and the path of the root in the bucket."""
        place = place_of(self.url)
        return (*_client(place._replace(path=""), self.options), place.path)

    def _at(self, key: str) -> tuple[Any, Any, str]:
        check_key(key)
        obs, client, root = self._client()
        return obs, client, join(root, key)

    def _asked(self, key: str, ask: Callable[[Any, Any, str], _Result]) -> _Result | None:
        """What a request gives; None if there is no such key in a bucket that there is."""
        obs, client, at = self._at(key)
        try:
            return ask(obs, client, at)
        except FileNotFoundError as error:
            codes = set(_CODE.findall(str(error)))
            if codes & _LOST_CODES:
                raise
            if place_of(self.url).scheme in WEB:
                return None
            if not codes & _ABSENT_CODES:  # answers to HEAD have no body, a listing has
                obs.list_with_delimiter(client, at)
        return None

    def _head(self, key: str) -> Mapping[str, Any] | None:
        with self._reporting("inspect", key):
            return self._asked(key, lambda obs, client, at: obs.head(client, at))

    def _part(self, key: str, wanted: Range) -> Buffer | None:
        start, stop = wanted
        if stop is not None and start >= stop:
            return None if self._head(key) is None else b""
        options = {} if wanted == WHOLE else {"range": _range(wanted)}
        with self._reporting("read", key):
            try:
                return self._answer(key, options)
            except _errors("NotSupportedError"):  # Azure knows no ranges from the end
                return self._end(key, -start)
            except _errors("GenericError") as error:
                if wanted == WHOLE or not any(words in str(error) for words in _NO_SUCH_RANGE):
                    raise
                size = self.size(key)  # the range begins behind the end, if it is that
                if size is None or size <= start or size == 0:
                    return None if size is None else b""
                raise

    def _answer(self, key: str, options: Mapping[str, Any]) -> Buffer | None:
        """A value or a part of it; its length is that which the answer itself announces."""
        found = self._asked(
            key, lambda obs, client, at: obs.get(client, at, options=options or None)
        )
        if found is None:
            return None
        value = memoryview(found.bytes())
        first, last = found.range
        if len(value) != last - first or not _is_part(options.get("range"), first, last, found):
            raise StoreError(
                f"could not read {key!r} in {self.url}: asked for {options.get('range', 'all')}, "
                f"got {len(value)} bytes as {first} to {last} of {found.meta['size']}."
            )
        return value

    def _end(self, key: str, nbytes: int) -> Buffer | None:
        """The last bytes of a value, found through its size; all of the value that had it."""
        for _ in range(_ATTEMPTS):
            found = self._head(key)
            if found is None or not found["size"]:
                return None if found is None else b""
            span = (max(found["size"] - nbytes, 0), found["size"])
            try:
                return self._answer(key, {"range": span, "if_match": found["e_tag"]})
            except _errors("PreconditionError"):
                continue  # it was replaced meanwhile
        raise StoreError(
            f"could not read the end of {key!r} in {self.url}: it was replaced {_ATTEMPTS} times "
            "while it was read."
        )

    @contextmanager
    def _reporting(self, doing: str, key: str) -> Iterator[None]:
        """Failures of the library and of the service are the store's."""
        try:
            yield
        except ZarrDaskError:
            raise
        except _errors("BaseError") as error:
            if doing == "list" and place_of(self.url).scheme in WEB:
                raise ListingError(
                    f"{self.url}/{key} cannot be listed: the server does not know WebDAV's way "
                    f"({_words(error)}). Open a node by its path, or a group that has consolidated "
                    "metadata (zarr_dask.consolidate)."
                ) from _public(error)
            raise _failed(self, doing, key, error) from _public(error)
        except ValueError as error:
            raise StoreKeyError(f"{self.url} cannot hold {key!r}: {_words(error)}") from error
        except OSError as error:
            raise _failed(self, doing, key, error) from _public(error)


def _flat(buffers: Sequence[Buffer]) -> list[memoryview]:
    """Buffers as the library takes them: bytes in one dimension."""
    views = [memoryview(buffer) for buffer in buffers]
    return [view.cast("B") for view in views if view.nbytes] or [memoryview(b"")]


def _below(root: str, path: str) -> str:
    return path[len(root) + 1 :] if root else path


def _mode(tag: Hashable) -> Any:
    """The condition that a value still has a tag; None: that there is no value."""
    if not isinstance(tag, tuple):
        return "create"
    e_tag, version = tag
    given = {"e_tag": e_tag, "version": version}
    return {name: value for name, value in given.items() if value is not None}


def _range(wanted: Range) -> Any:
    if wanted.start < 0:
        return {"suffix": -wanted.start}
    return {"offset": wanted.start} if wanted.stop is None else (wanted.start, wanted.stop)


def _is_part(asked: Any, first: int, last: int, found: Any) -> bool:
    """Whether the bytes from `first` to `last` are those that were asked for."""
    size = int(found.meta["size"])
    if asked is None:
        return first == 0 and last == size
    if isinstance(asked, tuple):
        return bool(first == asked[0] and last == min(asked[1], size))
    start = asked["offset"] if "offset" in asked else max(size - asked["suffix"], 0)
    return bool(first == start and last == size)


# --- failures -------------------------------------------------------------------------------------


def _errors(name: str) -> type[Exception]:
    from obstore import exceptions

    found: type[Exception] = getattr(exceptions, name)
    return found


def _words(error: BaseException) -> str:
    """What the service said, without the library's own view of it and without query strings."""
    return _QUERY.sub(r"\1", str(error).partition("\n\nDebug source")[0]).strip()


def _public(error: Exception) -> Exception:
    """An error without the queries of URLs, which may let somebody in."""
    return type(error)(_words(error))


def _failed(store: ObstoreStore, doing: str, key: str, error: Exception) -> StoreError:
    return StoreError(f"could not {doing} {key!r} in {store.url}: {_words(error)}")


# --- what a process keeps -------------------------------------------------------------------------


class _Threads:
    """Threads that wait for answers; made when they are first needed."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def pool(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_SIDE_BY_SIDE, "zarr-dask-obstore")
            return self._pool


_THREADS = _Threads()
_FORKED: list[int] = []  # the process that used the library before this one was forked from it


@lru_cache(maxsize=64)
def _client(place: Place, options: str) -> tuple[Any, Any]:
    """The library and the client of a bucket, one for all stores of this process in it.

    Raises
    ------
    MissingDependencyError
        If the library is not installed.
    StoreError
        If it does not take the options, or its threads were lost in a fork.
    """
    if _FORKED:
        raise StoreError(
            f"{urlsplit(place.url).scheme}://{place.bucket} cannot be used here: this process was "
            f"forked from process {_FORKED[0]}, which had used obstore, whose threads do not "
            "survive that. Start processes by 'spawn' or 'forkserver', or use "
            "storage_options={'backend': 'fsspec'}."
        )
    try:
        import obstore
    except ImportError as error:
        raise MissingDependencyError(
            f"{place.url} needs obstore, which is not installed: pip install 'zarr-dask[obstore]'"
        ) from error
    from zarr_dask.stores.dialect import client_of

    try:
        return obstore, client_of(place, options)
    except (ValueError, TypeError, _errors("BaseError")) as error:
        raise StoreError(f"no store at {place.url}: {_words(error)}") from _public(error)


def _after_fork() -> None:
    _THREADS.forget()
    if _client.cache_info().currsize:
        _FORKED[:] = [os.getppid()]
    _client.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
