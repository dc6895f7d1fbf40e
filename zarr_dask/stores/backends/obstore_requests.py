"""Requests to S3, Google Cloud Storage and Azure, through obstore.

The client of a bucket is slow to create and is cached in the process, in a bounded cache. Requests
of one batch run concurrently in the process's waiting threads.

Services answer 404 both for a missing key and for a missing bucket. Usually the response tells
which one it is. If it does not, the bucket is listed: only a key that is missing from an existing
bucket is absent. Responses to range requests are checked.

Requests are retried by `zarr_dask.stores.retry` and not by the library, which does not retry those
refused with 429. Only the parts of a large value, which the library sends, are retried by it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from time import monotonic
from typing import Any, TypeVar

from zarr_dask._util.threads import request_slots
from zarr_dask.errors import (
    AccessDeniedError,
    ConditionalWriteError,
    ListingError,
    MissingDependencyError,
    StoreArgumentError,
    StoreError,
    StoreKeyError,
    StoreUnavailableError,
    ZarrDaskError,
)
from zarr_dask.stores.backends.http_ranges import ContentRange, range_satisfied
from zarr_dask.stores.base import (
    WHOLE,
    Buffer,
    Listing,
    Range,
    TaggedBytes,
    check_key,
    join,
)
from zarr_dask.stores.client_renewal import ClientRenewal
from zarr_dask.stores.conditional_get import (
    ConditionalGetMixin,
    check_obeys,
    check_one_put,
    put_on_tag,
)
from zarr_dask.stores.error_mapping import (
    BARE_REDIRECT,
    EXPIRED_CODES,
    address_error,
    denied_error,
    permanent_reason,
)
from zarr_dask.stores.fenced_deletes import check_may_delete
from zarr_dask.stores.key_names import in_order_of_removal
from zarr_dask.stores.listing import PagesSeen
from zarr_dask.stores.option_mapping import WEB, BucketPath, environment_hash, place_of
from zarr_dask.stores.put_tags import note_tag
from zarr_dask.stores.retry import (
    RetryPolicy,
    call_with_retries,
    cas_put_with_retries,
    note_requests,
    upload_timeout,
)

__all__ = ["ObstoreRequests", "forked_from"]

_MULTIPART = 1 << 25  # size from which values are sent in parts
_PART = 1 << 24
_PARTS_AT_ONCE = 4
_MOST_PARTS = 10_000  # of one value, on S3
_BATCH = 1000  # keys deleted in one request
_PART_RETRIES = 6  # of each part
_ATTEMPTS = 3  # to read the end of a value that is replaced meanwhile
_ABSENT_CODES = {"NoSuchKey", "BlobNotFound"}
_LOST_CODES = {"ContainerNotFound", "NoSuchBucket"}
_RESERVED = frozenset(";?:@&=+$,#")
"""Characters that some services with the interface of S3 leave quoted in the source of a copy."""
_S3 = {"s3", "s3a"}
"""Schemes of services that begin a listing after a given key, and may want tags without quotes."""
_AWS = (".amazonaws.com", ".amazonaws.com.cn")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_BODY = re.compile(r"(?:<\?xml[^>]*>\s*)?<Error\b.*<Code>\w+</Code>.*</Error>", re.DOTALL)
_MESSAGE = re.compile(r"<Message>([^<\n]*)")
"""The first line: that of Azure is followed by numbers for its support."""
_QUERY = re.compile(r"(https?://[^\s?]*)\?\S*")
_NO_SUCH_RANGE = ("416 Range Not Satisfiable", "non-partial response", "Wanted range starting at")
_CAUSE = re.compile(r'(?:message|error): "([^"]{1,200})"')
"""The operating system's words in the library's debug text."""
_TOKEN_REQUESTS = (
    "performing token request",
    "http://169.254.169.254/",
    "http://169.254.170.2/",
    "/latest/api/token",
    "metadata.google.internal",
)
"""In messages of requests for credentials, which go to the machine's own service."""
_STATUS = re.compile(r"status code: (\d{3})")
_PASSING = {408, 425, 429, 500, 502, 503, 504}
_THROTTLED = {429, 503}
# S3 returns some of these with status 400, or in the body of a response with status 200
_PASSING_CODES = {
    "InternalError",
    "OperationAborted",
    "RequestTimeout",
    "ServerBusy",
    "ServiceUnavailable",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
}
# in the library's message: no response has begun; a body that was cut off has another one
_UNREACHABLE = "error sending request"
_NO_URL = ("BadScheme", "RelativeUrlWithoutBase", "EmptyHost", "InvalidUri")
_PANIC = "PanicException"
_DENIED = ("PermissionDeniedError", "UnauthenticatedError")
_PROVIDER = " credential provider: "
_UNANSWERED = ("HTTP error: ", "Got invalid list response", "Got invalid multipart response")


_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class ObstoreRequests(ConditionalGetMixin):
    """The requests behind the methods of a store.

    Parameters
    ----------
    url
        Root of the store: scheme, bucket and path.
    options
        Options in fsspec's spelling, as JSON text, including credentials.
    policy
        The policy for retries.
    """

    url: str
    options: str
    policy: RetryPolicy
    _clients: dict[tuple[float, int], tuple[Any, Any]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """The clients that this object has used, which saves looking them up for each request."""

    # --- reading ----------------------------------------------------------------------------------

    def size(self, key: str) -> int | None:
        """See `zarr_dask.stores.base.Store.size`."""
        found = self._head(key)
        return None if found is None else int(found["size"])

    def validator(self, key: str) -> Hashable:
        """See `zarr_dask.stores.base.etag_of`: the ETag of a value."""
        found = self._head(key)
        return None if found is None else _tag(found)

    def get_tagged(self, key: str, wanted: Range = WHOLE) -> tuple[Buffer | None, Hashable]:
        """See `zarr_dask.stores.compare_and_swap.ConditionalStore`."""

        def ask() -> tuple[Buffer, Mapping[str, Any]] | None:
            try:
                return self._answer(key, wanted)
            except _errors("GenericError") as error:  # no part of an empty value can be asked for
                if wanted == WHOLE or not any(words in str(error) for words in _NO_SUCH_RANGE):
                    raise
                head = self._try_head(key)
                if head is not None and head["size"]:
                    raise
                return self._answer(key, WHOLE)

        found = self._do("read", key, ask)
        if found is None:
            return None, None
        value, meta = found
        return value, (meta["e_tag"], meta["version"])

    # --- writing ----------------------------------------------------------------------------------

    def set(self, key: str, buffers: Sequence[Buffer]) -> None:
        """See `zarr_dask.stores.base.Store.set`: one request, or parts that appear together."""
        pieces = _flat(buffers)
        nbytes = sum(map(len, pieces))

        def put() -> None:
            obs, client, at = self._at(key, sent=nbytes)
            note_tag(self.url, key, obs.put(client, at, pieces, use_multipart=False)["e_tag"])

        def put_parts(at_once: int) -> None:
            obs, client, at = self._at(key, _PART_RETRIES, at_once * _PART)
            part = max(_PART, -(-nbytes // _MOST_PARTS))
            given: Any = {"use_multipart": True, "chunk_size": part, "max_concurrency": at_once}
            note_tag(self.url, key, obs.put(client, at, pieces, **given)["e_tag"])

        if nbytes < _MULTIPART:
            self._do("write", key, put)
        else:
            self._do_several("write", key, put_parts, _PARTS_AT_ONCE)

    def copy(self, url: str, old: str, key: str, nbytes: int) -> bool:
        """Copy a value of another store in the same bucket; return False if there is none.

        Parameters
        ----------
        url
            Root of the other store.
        old, key
            Keys of the value, below that root and below the root of this store.
        nbytes
            Maximum bytes of the value.

        Raises
        ------
        StoreError
            If another service than S3 may take the quoted key for the key of another value.
        """
        check_key(old)
        before = join(place_of(url).path, old)
        if _RESERVED.intersection(before) and self._has_endpoint():
            raise StoreError(
                f"{join(url, old)} is not copied by its service: some services with the interface "
                "of S3 mistake the key for another one. Read and write the value."
            )

        def ask() -> bool | None:
            obs, client, at = self._at(key, sent=nbytes)

            def copied() -> bool:
                obs.copy(client, before, at)
                return True

            return self._unless_absent(copied, obs, client, before)

        return bool(self._do("copy", key, ask))

    def check_conditional(self, key: str) -> None:
        """See `zarr_dask.stores.compare_and_swap.ConditionalStore`: all object stores support it.

        Services with the interface of S3 that are not S3 are tried, once in each process.

        Raises
        ------
        ConditionalWriteError
            If it is an HTTP server, as most ignore conditions, or such a service that does.
        """
        check_key(key)
        if self._has_endpoint():
            check_obeys(
                self.url,
                self._service,
                lambda key, tag: self._retried_put(key, [b"0"], {"e_tag": tag}),
                self.delete,
            )
        if place_of(self.url).scheme in WEB:
            raise ConditionalWriteError(
                f"{self.url} is an HTTP server, which does not promise to look at conditions, so "
                "that two jobs cannot share a stored object there; write whole stored objects."
            )

    def set_if(self, key: str, buffers: Sequence[Buffer], tag: Hashable) -> bool:
        """See `zarr_dask.stores.compare_and_swap.ConditionalStore`: a put with ``If-Match``."""
        pieces = _flat(buffers)
        check_one_put(self.url, key, sum(map(len, pieces)))

        def put() -> bool:
            mode = _mode(tag)
            e_tag = mode.get("e_tag") if isinstance(mode, dict) else None
            if e_tag is None or place_of(self.url).scheme not in _S3:
                return self._put_on(key, pieces, mode)
            return put_on_tag(
                lambda spelled: self._put_on(key, pieces, {**mode, "e_tag": spelled}),
                lambda: self._e_tag(key),
                e_tag,
                self._service,
            )

        return cas_put_with_retries(
            self.policy,
            lambda: self._renewing(put),
            lambda: self.get(key),
            pieces,
            self._service,
        )

    def _put_on(self, key: str, pieces: Sequence[Buffer], mode: Any) -> bool:
        """Put a value on a condition, by one attempt; return False if it does not hold."""
        note_requests("write")
        with self._reporting("write", key), request_slots():
            obs, client, at = self._at(key, sent=sum(map(len, pieces)))
            try:
                obs.put(client, at, pieces, mode=mode, use_multipart=False)
            except (obs.exceptions.AlreadyExistsError, obs.exceptions.PreconditionError):
                return False
            except FileNotFoundError as error:  # of S3, where the value that has the tag has gone
                if set(_CODE.findall(str(error))) & _LOST_CODES or not isinstance(mode, dict):
                    raise
                return False
        return True

    def _retried_put(self, key: str, pieces: Sequence[Buffer], mode: Any) -> bool:
        return call_with_retries(
            self.policy,
            lambda: self._renewing(lambda: self._put_on(key, pieces, mode)),
            self._service,
        )

    def _has_endpoint(self) -> bool:
        """Return True if a service of another vendor answers at S3's interface."""
        if place_of(self.url).scheme not in _S3:
            return False
        endpoint = self.client()[1].config.get("endpoint")
        return bool(endpoint) and not str(endpoint).rstrip("/").endswith(_AWS)

    def _e_tag(self, key: str) -> str | None:
        with self._reporting("inspect", key), request_slots():
            found = self._try_head(key)
        return None if found is None else found["e_tag"]

    def delete(self, key: str) -> None:
        """See `zarr_dask.stores.base.Store.delete`."""

        def delete(obs: Any, client: Any, at: str) -> None:
            check_may_delete()
            obs.delete(client, at)

        self._do("delete", key, lambda: self._asked(key, delete))

    def delete_prefix(self, prefix: str) -> None:
        """See `zarr_dask.stores.base.Store.delete_prefix`."""
        for keys in in_order_of_removal([*self.list(prefix)], _BATCH):
            self._delete_all(prefix, keys)

    def _delete_all(self, prefix: str, keys: Sequence[str]) -> None:
        def delete() -> bool:
            obs, client, root = self.client()
            check_may_delete()
            try:
                obs.delete(client, [join(root, key) for key in keys])
            except FileNotFoundError:  # some services fail for a key that is gone already
                return False
            return True

        if not self._do("delete", prefix, delete):
            for key in keys:
                self.delete(key)

    # --- listing ----------------------------------------------------------------------------------

    def list(self, prefix: str = "") -> Iterator[str]:
        """See `zarr_dask.stores.base.Store.list`."""
        return (key for key, _ in self.list_sizes(prefix))

    def list_sizes(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """See `zarr_dask.stores.base.list_sizes`."""
        return ((key, int(found["size"])) for key, found in self._listed(prefix))

    def list_tags(self, prefix: str) -> Iterator[tuple[str, tuple[str, int] | None]]:
        """See `zarr_dask.stores.base.SupportsListTags`."""
        return ((key, _tag(found)) for key, found in self._listed(prefix))

    def _listed(self, prefix: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        root = place_of(self.url).path
        pages: Iterator[Any] | None = None
        last: str | None = None
        pages_seen = PagesSeen(prefix, self.url, root)

        def next_page() -> Sequence[Any] | None:
            nonlocal pages
            try:
                if pages is None:  # after a failure it continues behind the last key
                    obs, client, _ = self.client()
                    below = join(root, prefix.rstrip("/")) or None
                    pages = iter(obs.list(client, below, offset=last, chunk_size=1000))
                return next(pages, None)
            except Exception:
                pages = None
                raise

        while (page := self._do("list", prefix, next_page)) is not None:
            page = _without_marker(page, join(root, prefix.rstrip("/")))
            keys = [found["path"] for found in page]
            pages_seen.see(keys)
            yield from zip(pages_seen.below(keys), page, strict=True)
            last = keys[-1] if keys else last

    def list_dir(self, prefix: str = "") -> Listing:
        """See `zarr_dask.stores.base.Store.list_dir`."""

        def ask() -> tuple[Any, str]:
            obs, client, root = self.client()
            return obs.list_with_delimiter(client, join(root, prefix.rstrip("/")) or None), root

        found, root = self._do("list", prefix, ask)
        pages_seen = PagesSeen(prefix, self.url, root)
        objects = _without_marker(found["objects"], join(root, prefix.rstrip("/")))
        listed = ([one["path"] for one in objects], found["common_prefixes"])
        for page in listed:
            pages_seen.see(page)
        keys, prefixes = map(pages_seen.below, listed)
        return Listing(sorted(keys), sorted(f"{one}/" for one in prefixes))

    # --- requests ---------------------------------------------------------------------------------

    def client(self, retries: int = 0, sent: int = 0) -> tuple[Any, Any, str]:
        """Return the library, this process's client, and the path of the root in the bucket.

        The library's timeout runs from the moment when it begins to send, so a client for large
        values has a longer one. There are only a few different clients.
        """
        place = place_of(self.url)
        timeout = upload_timeout(self.policy.timeout, sent)
        found = self._clients.get((timeout, retries))
        if found is None:
            bucket = place._replace(path="")
            found = _client(bucket, self.options, timeout, retries, environment_hash(place.scheme))
            self._clients[timeout, retries] = found
        return (*found, place.path)

    def _at(self, key: str, retries: int = 0, sent: int = 0) -> tuple[Any, Any, str]:
        check_key(key)
        obs, client, root = self.client(retries, sent)
        return obs, client, join(root, key)

    def _do(self, doing: str, key: str, ask: Callable[[], _Result]) -> _Result:
        """Return the result of a request, with retries."""
        return self._do_several(doing, key, lambda _: ask(), 1)

    def _do_several(
        self, doing: str, key: str, ask: Callable[[int], _Result], most: int
    ) -> _Result:
        """Do the same as `_do`, with up to `most` concurrent requests; `ask` gets their number."""

        def attempt() -> _Result:
            note_requests(doing)
            with self._reporting(doing, key), request_slots(most) as at_once:
                return ask(at_once)

        return call_with_retries(self.policy, lambda: self._renewing(attempt), self._service)

    def _renewing(self, attempt: Callable[[], _Result]) -> _Result:
        """Return the result of an attempt; if the credentials have expired, of one with others.

        After a request without a response, the next attempt has a new client: the connections that
        the old one keeps may all have died.
        """
        sent = monotonic()
        try:
            return attempt()
        except StoreUnavailableError as error:
            if error.unreachable:
                self._renew_client()
            raise
        except AccessDeniedError as error:
            if not error.expired:
                raise
        self._renew_client(sent)
        return attempt()

    def _renew_client(self, sent: float | None = None) -> None:
        _RENEWAL.forget_clients(sent)
        self._clients.clear()

    @property
    def _service(self) -> Hashable:
        """Identifies the service in this process, for `call_with_retries`."""
        place = place_of(self.url)
        return place.scheme, place.bucket, hash(self.options)

    def _asked(self, key: str, ask: Callable[[Any, Any, str], _Result]) -> _Result | None:
        """Return the result of a request; None if the key is missing from an existing bucket."""
        obs, client, at = self._at(key)
        return self._unless_absent(lambda: ask(obs, client, at), obs, client, at)

    def _unless_absent(
        self, ask: Callable[[], _Result], obs: Any, client: Any, at: str
    ) -> _Result | None:
        """Return the same as `_asked`, of a request that begins with the value at a path."""
        try:
            return ask()
        except FileNotFoundError as error:
            codes = set(_CODE.findall(str(error)))
            if codes & _LOST_CODES:
                raise
            if place_of(self.url).scheme in WEB:
                return None
            if not codes & _ABSENT_CODES:  # responses to HEAD have no body
                self._check_absence(obs, client, at, error)
        return None

    def _check_absence(self, obs: Any, client: Any, at: str, error: Exception) -> None:
        """Raise if a 404 may be about the bucket or about nothing at all, and not about the key.

        A proxy in front of a service may answer 404 while the service is restarted.
        """
        if place_of(self.url).scheme not in _S3:
            obs.list_with_delimiter(client, at)
            return
        folder = at.rpartition("/")[0] or None
        page = next(iter(obs.list(client, folder, offset=_shortly_before(at))), ())
        if any(one["path"] == at for one in page):
            raise StoreUnavailableError(
                f"could not read {_below(place_of(self.url).path, at)!r} in {self.url}: the "
                f"service lists it, and says that it is not there: {_words(error)}"
            ) from _public(error)

    def _head(self, key: str) -> Mapping[str, Any] | None:
        return self._do("inspect", key, lambda: self._try_head(key))

    def _try_head(self, key: str) -> Mapping[str, Any] | None:
        return self._asked(key, lambda obs, client, at: obs.head(client, at))

    def _version(self, key: str, wanted: Range, tag: Hashable) -> TaggedBytes | None:
        """Return a part of a value, with its tag; without content if the value has another tag."""
        start, stop = wanted
        if stop is not None and start >= stop:
            found = self._head(key)
            return None if found is None else _checked(b"", found, tag)
        return self._do("read", key, lambda: self._try_version(key, wanted, tag))

    def _try_version(self, key: str, wanted: Range, tag: Hashable) -> TaggedBytes | None:
        try:
            found = self._answer(key, wanted, tag)
        except _errors("PreconditionError"):
            return TaggedBytes(None, None)  # the value was replaced
        except _errors("NotSupportedError"):  # Azure does not support ranges from the end
            return self._end(key, -wanted.start, tag)
        except _errors("GenericError") as error:
            if wanted == WHOLE or not any(words in str(error) for words in _NO_SUCH_RANGE):
                raise
            head = self._try_head(key)  # the range may begin behind the end
            if head is None or head["size"] <= wanted.start or not head["size"]:
                return None if head is None else _checked(b"", head, tag)
            raise
        return None if found is None else _checked(found[0], found[1], tag)

    def _answer(
        self, key: str, wanted: Range, tag: Hashable = None
    ) -> tuple[Buffer, Mapping[str, Any]] | None:
        """Return a value or a part of it, checked against the length that the response states."""
        options: dict[str, Any] = {} if wanted == WHOLE else {"range": _range(wanted)}
        if isinstance(tag, tuple) and tag[0]:
            options["if_match"] = tag[0]
        found = self._asked(
            key, lambda obs, client, at: obs.get(client, at, options=options or None)
        )
        if found is None:
            return None
        value, meta = memoryview(found.bytes()), found.meta  # created on each access
        first, stop = found.range
        span = ContentRange(first, stop, int(meta["size"]))
        problem = f"asked for {options.get('range', 'all')}, got {len(value)} bytes as {span}"
        if not range_satisfied(wanted, span):
            raise StoreError(f"could not read {key!r} in {self.url}: {problem}.")
        if len(value) != span.stop - span.first:
            raise StoreUnavailableError(f"could not read {key!r} in {self.url}: {problem}.")
        return value, meta

    def _end(self, key: str, nbytes: int, tag: Hashable) -> TaggedBytes | None:
        """Return the last bytes of a value, found through its size, in a second request."""
        for _ in range(_ATTEMPTS):
            head = self._try_head(key)
            if head is None or not head["size"]:
                return None if head is None else _checked(b"", head, tag)
            size = int(head["size"])
            try:
                found = self._answer(key, Range(max(size - nbytes, 0), size), _tag(head))
            except _errors("PreconditionError"):
                continue  # the value was replaced meanwhile
            return None if found is None else _checked(found[0], found[1], tag)
        raise StoreError(
            f"could not read the end of {key!r} in {self.url}: it was replaced {_ATTEMPTS} times "
            "while it was read."
        )

    @contextmanager
    def _reporting(self, doing: str, key: str) -> Iterator[None]:
        """Raise failures of the library and of the service as store errors."""
        what = f"could not {doing} {key!r} in {self.url}"
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
            raise _failed(what, error) from _public(error)
        except ValueError as error:
            raise StoreKeyError(f"{self.url} cannot hold {key!r}: {_words(error)}") from error
        except OSError as error:
            raise _failed(what, error) from _public(error)
        except BaseException as error:
            if type(error).__name__ != _PANIC:  # of the library; it is no Exception
                raise
            raise StoreError(
                f"{what}: the library has failed: {error}. Check the address of the service "
                "(endpoint_url), also in the environment."
            ) from None


def _flat(buffers: Sequence[Buffer]) -> list[memoryview]:
    """Return buffers as one-dimensional bytes, which the library needs."""
    views = [memoryview(buffer) for buffer in buffers]
    return [view.cast("B") for view in views if view.nbytes] or [memoryview(b"")]


def _shortly_before(key: str) -> str | None:
    """Return an offset for a listing whose first page has the key, if the key exists.

    Examples
    --------
    >>> _shortly_before("a/c/7"), _shortly_before("a/c/0"), _shortly_before("a")
    ('a/c/6~', 'a/c', '`~')
    """
    rest, last = key[:-1], key[-1]
    if last.isalnum() and last != "0" and ord(last) < 128:
        return f"{rest}{chr(ord(last) - 1)}~"
    return rest.rstrip("/") or None


def _without_marker(page: Sequence[Any], folder: str) -> Sequence[Any]:
    """Return a page of a listing without the object with a "/" that some tools make of a folder."""
    return [one for one in page if one["path"] != folder]


def _below(root: str, path: str) -> str:
    return path[len(root) + 1 :] if root else path


def _mode(tag: Hashable) -> Any:
    """Return the condition that a value still has a tag; for None, that there is no value."""
    if not isinstance(tag, tuple):
        return "create"
    e_tag, version = tag
    given = {"e_tag": e_tag, "version": version}
    return {name: value for name, value in given.items() if value is not None}


def _range(wanted: Range) -> Any:
    if wanted.start < 0:
        return {"suffix": -wanted.start}
    return {"offset": wanted.start} if wanted.stop is None else (wanted.start, wanted.stop)


def _tag(meta: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return the tag of a value from its metadata; None if the service has no ETags."""
    return (meta["e_tag"], int(meta["size"])) if meta["e_tag"] else None


def _checked(content: Buffer, meta: Mapping[str, Any], tag: Hashable) -> TaggedBytes:
    """Return a part of a value if its tag matches; some services ignore conditions."""
    found = _tag(meta)
    if tag is not None and found != tag:
        return TaggedBytes(None, None)
    return TaggedBytes(content, found, int(meta["size"]))


# --- failures -------------------------------------------------------------------------------------


def _errors(name: str) -> type[Exception]:
    from obstore import exceptions

    found: type[Exception] = getattr(exceptions, name)
    return found


def _text(error: BaseException) -> str:
    """Return the library's message, without its debug text and query strings."""
    return _QUERY.sub(r"\1", str(error).partition("\n\nDebug source")[0]).strip()


def _words(error: BaseException) -> str:
    """Return the library's message, with the code and the words of a body of XML in its place."""

    def told(body: re.Match[str]) -> str:
        return ": ".join(_CODE.findall(body[0])[:1] + _MESSAGE.findall(body[0])[:1])

    return _BODY.sub(told, _text(error))


def _public(error: Exception) -> Exception:
    """Return an error without the queries of URLs, which may be secrets."""
    return type(error)(_text(error))


def _failed(what: str, error: Exception) -> StoreError:
    """Return the store error; the library's debug text tells which ones are transient."""
    said = str(error)
    told = _STATUS.search(said)
    status = int(told[1]) if told else 0
    codes = set(_CODE.findall(said))
    cut = not told and any(words in said for words in _UNANSWERED)
    if any(words in said for words in _TOKEN_REQUESTS) and status not in _PASSING:
        return AccessDeniedError(
            f"{what}: {_words(error)}. No credentials were found: give them by the environment or "
            "storage_options; what is public is read with anon=True among these."
        )
    if _PROVIDER in said:
        return AccessDeniedError(
            f"{what}: {_words(error)}. The function that credential_provider names has failed, or "
            "returns something else than obstore expects: for S3 a dictionary with access_key_id, "
            "secret_access_key, token and expires_at."
        )
    if any(isinstance(error, _errors(name)) for name in _DENIED) or status in {401, 403}:
        return denied_error(f"{what}: {_words(error)}", codes)
    if codes & _LOST_CODES:
        parts = [f"{status} {' '.join(codes & _LOST_CODES)}", *_MESSAGE.findall(said)[:1]]
        reason = ": ".join(parts).rstrip(".")
        return StoreError(
            f"{what}: there is no such bucket ({reason}). Buckets and containers are made by the "
            "tools of the service; check the name, and the endpoint."
        )
    if codes & EXPIRED_CODES:
        return denied_error(f"{what}: {_words(error)}", codes)
    if (cut or BARE_REDIRECT in said) and (reason := permanent_reason(said)):
        return address_error(f"{what}: {_words(error)}", reason)
    if not (status in _PASSING or codes & _PASSING_CODES or cut):
        return StoreError(f"{what}: {_words(error)}")
    if cut and any(words in said for words in _NO_URL):
        return StoreError(f"{what}: {_words(error)}: the address of the service is no URL.")
    cause = _CAUSE.findall(said) if cut else []
    passing = StoreUnavailableError(f"{what}: {_words(error)}{f' ({cause[-1]})' if cause else ''}")
    passing.throttled = status in _THROTTLED or bool(codes & {"SlowDown", "ServerBusy"})
    passing.unreachable = cut and _UNREACHABLE in said
    return passing


# --- the clients of a process ---------------------------------------------------------------------


class _ForkDetector:
    """The parent of this process, if that had used the library before the fork."""

    def __init__(self) -> None:
        self.parent: int | None = None
        self.has_used = False
        """True if the library has been used, and its clients may have been forgotten."""

    def note(self) -> None:
        """Note the parent in a forked child, which does not have the library's threads."""
        if self.has_used or _client.cache_info().currsize:
            self.parent = os.getppid()
        _client.cache_clear()


_ANCESTRY = _ForkDetector()


def forked_from() -> int | None:
    """Return the process from which this one was forked, if that had used the library."""
    return _ANCESTRY.parent


@lru_cache(maxsize=64)
def _client(
    place: BucketPath,
    options: str,
    timeout: float,
    retries: int,
    around: int,  # noqa: ARG001
) -> tuple[Any, Any]:
    """Return the library and the client of a bucket, shared by all stores of this process.

    Raises
    ------
    MissingDependencyError
        If the library is not installed.
    StoreError
        If the library does not accept the options.
    """
    try:
        import obstore
    except ImportError as error:
        raise MissingDependencyError(
            f"{place.url} needs obstore, which is not installed: pip install 'zarr-dask[obstore]'"
        ) from error
    from zarr_dask.stores.option_mapping import client_of

    try:
        return obstore, client_of(place, options, timeout, retries)
    except (ValueError, TypeError, _errors("BaseError")) as error:
        raise StoreArgumentError(f"no store at {place.url}: {_words(error)}") from _public(error)


def _forget_clients() -> None:
    _ANCESTRY.has_used = True
    _client.cache_clear()


_RENEWAL = ClientRenewal(_forget_clients)

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_ANCESTRY.note)
