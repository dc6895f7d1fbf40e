"""Values below an HTTP or HTTPS URL, read-only.

Responses are checked against the requests: if a server ignores ranges and sends a whole value, the
part is cut out. Only "not found" and "gone" mean that there is no value. HTTP has no listing, so
hierarchies are walked by their consolidated metadata, or nodes are opened by their paths.

Connections are kept open and reused, by one request at a time and in one process only. Requests are
retried as in `zarr_dask.stores.retry`.
"""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from http import HTTPStatus
from typing import Any, ClassVar, NamedTuple
from urllib.parse import SplitResult, quote, urljoin, urlsplit, urlunsplit

from zarr_dask._util.threads import MOST_AT_ONCE, request_slots
from zarr_dask.errors import (
    AccessDeniedError,
    ListingError,
    ReadOnlyError,
    StoreArgumentError,
    StoreError,
    StoreUnavailableError,
)
from zarr_dask.stores.backends.http_ranges import (
    ContentRange,
    parse_content_range,
    parse_unsatisfied_range,
    range_header,
    range_satisfied,
)
from zarr_dask.stores.base import (
    WHOLE,
    Buffer,
    Listing,
    Range,
    ReadPolicy,
    TaggedBytes,
    check_key,
)
from zarr_dask.stores.conditional_get import ConditionalGetMixin
from zarr_dask.stores.error_mapping import as_store_error, retry_after
from zarr_dask.stores.option_checks import check_number
from zarr_dask.stores.retry import DEFAULT, RetryPolicy, call_with_retries, note_requests
from zarr_dask.stores.secrets import (
    HoldsCredentials,
    is_reference,
    reveal_credentials,
    seal_credentials,
    unseal_credentials,
)
from zarr_dask.stores.url_secrets import redact_url

__all__ = ["HTTPStore"]

_ABSENT = {HTTPStatus.NOT_FOUND, HTTPStatus.GONE}
_MOVED = {301, 302, 303, 307, 308}
_MOST_REDIRECTS = 5
_PASSING = {408, 425, 429, 500, 502, 503, 504}
_THROTTLED = {429, 503}
_DENIED = {401, 403}
_PRESIGNED = ("X-Amz-Signature=", "X-Goog-Signature=", "AWSAccessKeyId=")
_NO_END = {400, 416, 500, 501}
"""Statuses from servers that support ranges, but not from the end."""
_SECONDS = DEFAULT.timeout
_REQUEST_SECONDS = 900.0  # also if bytes arrive slowly
_LARGEST = (1 << 31) + (1 << 24)  # a chunk of the default limit, and the overhead of its encoding
_MOST_TOLD = 1 << 16  # bytes read of an error page; longer ones close the connection
_PIECE = 1 << 20


class _Response(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def length(self) -> int | None:
        """Size of the response in bytes, if the server has stated it."""
        told = self.headers.get("content-length", "")
        return int(told) if told.isdigit() else None


def _tag(answer: _Response, size: int | None) -> Hashable:
    """Return the tag of a value: a strong ETag, or time and size; None if there is neither."""
    tag = answer.headers.get("etag", "")
    strong = "" if tag.startswith("W/") else tag
    changed = answer.headers.get("last-modified", "")
    if strong:
        return (strong,)
    return ("", changed, size) if changed and size is not None else None


@dataclass(frozen=True, slots=True)
class HTTPStore(ConditionalGetMixin, HoldsCredentials):
    """Values below a URL; made by `HTTPStore.from_url`.

    Parameters
    ----------
    root
        The URL; a query (a token, for instance) is sent along with every request.
    headers
        Headers to send, as JSON text so that the store can be hashed. In a process that does not
        have the secrets, a reference to them.
    timeout
        Seconds to wait for a connection, and for each part of a response.
    largest
        Largest value in bytes that is read or sent whole: a server can send for ever.
    policy
        The policy for retries; its timeout is not used, but that of this store.
    """

    root: str
    headers: str = "{}"
    timeout: float = _SECONDS
    largest: int = _LARGEST
    policy: RetryPolicy = DEFAULT

    coalescing: ClassVar[ReadPolicy] = ReadPolicy(
        gap=1 << 20, largest=1 << 24, max_concurrent_requests=64
    )

    @staticmethod
    def from_url(
        url: str, options: Mapping[str, Any], policy: RetryPolicy | None = None
    ) -> HTTPStore:
        """Return a store at `url`.

        Raises
        ------
        StoreError
            If an option is not known, or the URL names no host.
        """
        unknown = sorted(options.keys() - {"headers", "timeout", "largest"})
        if unknown:
            raise StoreArgumentError(
                f"storage_options {unknown} are not taken by {redact_url(url)}: HTTP takes "
                "'headers' (an object of strings), 'timeout' (seconds) and 'largest' (bytes of a "
                "value)."
            )
        if not urlsplit(url).hostname:
            raise StoreArgumentError(f"{redact_url(url)!r} names no host.")
        headers = json.dumps(dict(options.get("headers", {})), sort_keys=True)
        policy = policy or DEFAULT
        place = redact_url(url)
        timeout = check_number(place, "timeout", options.get("timeout", policy.timeout), float)
        largest = check_number(place, "largest", options.get("largest", _LARGEST), int)
        return HTTPStore(url, headers, timeout, largest, policy)

    def with_policy(self, policy: RetryPolicy) -> HTTPStore:
        """Return a store at the same location with another retry policy."""
        return replace(self, policy=policy, timeout=policy.timeout)

    @property
    def url(self) -> str:
        """The URL without its query, which may hold secrets."""
        parts = urlsplit(self.root)
        host = parts.netloc.rpartition("@")[2]
        return urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))

    @property
    def identity(self) -> str:
        """The URL, and a digest of everything that may hold secrets."""
        root, headers = self._known()
        return f"{self.url}#{sha256((root + headers).encode()).hexdigest()[:16]}"

    def __reduce__(self) -> tuple[Any, ...]:
        root, options = self.root, self.headers
        if not is_reference(options):
            root, options = _parted(root, options)
        return _unpickled, (
            root,
            seal_credentials(options),
            self.timeout,
            self.largest,
            self.policy,
        )

    def _known(self) -> tuple[str, str]:
        """Return root and headers as they were given.

        Raises
        ------
        CredentialsMissingError
            If they came from another process without their secrets.
        """
        if not is_reference(self.headers):
            return self.root, self.headers
        return _joined(self.root, reveal_credentials(self.headers, self.url))

    def __repr__(self) -> str:
        return f"HTTPStore({self.url!r})"

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
        """Raise `ListingError`: HTTP has no listing."""
        raise self._no_listing(prefix)

    def list_dir(self, prefix: str = "") -> Listing:
        """Raise `ListingError`: HTTP has no listing."""
        raise self._no_listing(prefix)

    def size(self, key: str) -> int | None:
        """See `zarr_dask.stores.base.Store.size`."""
        answer = self._ask("HEAD", key, {}, WHOLE)
        if answer is None:
            return None
        length = answer.headers.get("content-length")
        if answer.status == HTTPStatus.OK and length is not None:
            return int(length)
        value = self.get(key)  # a server need not support HEAD, nor state the length
        return None if value is None else len(value)

    def validator(self, key: str) -> Hashable:
        """See `zarr_dask.stores.base.etag_of`: a strong ETag, or time and size."""
        answer = self._ask("HEAD", key, {}, WHOLE)
        if answer is None or answer.status != HTTPStatus.OK:
            return None
        length = answer.headers.get("content-length", "")
        return _tag(answer, int(length) if length.isdigit() else None)

    # --- requests ---------------------------------------------------------------------------------

    def _version(self, key: str, wanted: Range, tag: Hashable) -> TaggedBytes | None:
        """Return a part of a value, with its tag; without content if the value has another tag."""
        check_key(key)
        return call_with_retries(
            self.policy, lambda: self._try_version(key, wanted, tag), self._service
        )

    def _try_version(self, key: str, wanted: Range, tag: Hashable) -> TaggedBytes | None:
        start, stop = wanted
        headers = range_header(wanted)
        if isinstance(tag, tuple) and tag[0]:
            headers["If-Match"] = tag[0]
        answer = self._try_ask("GET", key, headers, wanted)
        if answer is None:
            return None
        if answer.status == HTTPStatus.PRECONDITION_FAILED and "If-Match" in headers:
            return TaggedBytes(None, None)
        content, size = answer.body, None
        if start < 0 and answer.status in _NO_END and not _is_empty(answer):
            return self._try_end(key, -start, tag, answer.status)
        if answer.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and "Range" in headers:
            content, size = b"", self._size_behind(key, wanted, answer)
        elif answer.status == HTTPStatus.OK:
            size = answer.length
            content = content if wanted == WHOLE else content[start:stop]
        elif answer.status == HTTPStatus.PARTIAL_CONTENT and "Range" in headers:
            size = self._checked_span(key, wanted, answer).size
            content = content if stop is None else content[: stop - start]
        else:
            raise self._refused(key, answer.status)
        found = _tag(answer, size)
        if found is None:
            found = tag  # not every response of every server has it
        return TaggedBytes(None if tag is not None and found != tag else content, found, size)

    def _try_end(self, key: str, nbytes: int, tag: Hashable, said: int) -> TaggedBytes | None:
        """Return the last bytes of a value, found through its size."""
        answer = self._try_ask("HEAD", key, {}, WHOLE)
        if answer is None:
            return None
        if answer.status != HTTPStatus.OK or answer.length is None:
            raise self._failed(
                key,
                f"the server answers {said} {_phrase(said)} to a range from the end, and does not "
                "tell how long the value is",
            )
        size = answer.length
        found = self._try_version(
            key, Range(max(size - nbytes, 0), size), _tag(answer, size) if tag is None else tag
        )
        if tag is None and found is not None and found.content is None:
            raise StoreUnavailableError(
                f"could not read {key!r} from {self.url}: it was replaced while its end was read."
            )
        return found

    def _size_behind(self, key: str, wanted: Range, answer: _Response) -> int | None:
        """Return the size of a value that ends before a range begins, if the server states it."""
        told = answer.headers.get("content-range", "")
        size = parse_unsatisfied_range(told)
        if size is not None and (wanted.start < size if wanted.start >= 0 else size > 0):
            raise self._failed(key, f"the server has no bytes from {wanted.start} on of {told!r}")
        return size

    def _checked_span(self, key: str, wanted: Range, answer: _Response) -> ContentRange:
        told = answer.headers.get("content-range", "")
        span = parse_content_range(told)
        if span is None or not range_satisfied(wanted, span):
            raise self._failed(key, f"asked for {range_header(wanted)}, the server sent {told!r}")
        if span.stop - span.first != len(answer.body):
            raise StoreUnavailableError(
                f"could not read {key!r} from {self.url}: the server sent {len(answer.body)} bytes "
                f"as {told!r}."
            )
        return span

    def _ask(
        self, method: str, key: str, headers: Mapping[str, str], wanted: Range
    ) -> _Response | None:
        check_key(key)
        return call_with_retries(
            self.policy, lambda: self._try_ask(method, key, headers, wanted), self._service
        )

    @property
    def _service(self) -> Hashable:
        """Identifies the service in this process, for `call_with_retries`."""
        return urlsplit(self.url)[:2]

    def _try_ask(
        self, method: str, key: str, headers: Mapping[str, str], wanted: Range
    ) -> _Response | None:
        """Return the response to a request, following redirects; None if there is no value."""
        root, given = self._known()
        parts = urlsplit(root)
        path = f"{parts.path.rstrip('/')}/{quote(key)}"
        at = parts._replace(path=path, fragment="")
        own = {**json.loads(given), "Accept-Encoding": "identity", **headers}
        for _ in range(_MOST_REDIRECTS + 1):
            note_requests("read" if method == "GET" else "inspect")
            answer = self._sent(method, key, at, own, wanted)
            if answer.status in _ABSENT:
                return None
            if answer.status not in _MOVED:
                coding = answer.headers.get("content-encoding", "identity")
                if coding != "identity":
                    raise self._failed(key, f"the server sent it encoded as {coding!r}, unasked")
                return answer
            moved = urlsplit(urljoin(urlunsplit(at), answer.headers.get("location", "")))
            if moved.path == f"{at.path}/":
                return None  # a folder is not a value
            if moved.netloc != at.netloc:  # headers for one host are not sent to another
                own = {"Accept-Encoding": "identity", **headers}
            at = moved
        raise self._failed(key, f"more than {_MOST_REDIRECTS} redirects")

    def _sent(
        self, method: str, key: str, at: SplitResult, headers: Mapping[str, str], wanted: Range
    ) -> _Response:
        """Return the response to one request; raise if it failed for a transient reason."""
        if at.scheme not in {"http", "https"}:
            raise self._failed(key, f"it has moved to {at.scheme!r}, which is not HTTP")
        try:
            with request_slots():
                answer = _send(method, at, headers, self, wanted)
        except (OSError, http.client.HTTPException) as error:
            words = str(error) or type(error).__name__
            raise as_store_error(
                f"could not read {key!r} from {self.url}: {words}", error
            ) from error
        except ValueError as error:
            raise self._failed(key, str(error)) from error
        no_end = wanted.start < 0 and answer.status in _NO_END
        if answer.status in _PASSING and not no_end:
            raise self._unavailable(key, answer)
        return answer

    def _unavailable(self, key: str, answer: _Response) -> StoreUnavailableError:
        said = f"the server answers {answer.status} {_phrase(answer.status)}"
        error = StoreUnavailableError(f"could not read {key!r} from {self.url}: {said}.")
        error.throttled = answer.status in _THROTTLED
        error.retry_after = retry_after(answer.headers.get("retry-after"))
        return error

    def _refused(self, key: str, status: int) -> StoreError:
        kind = AccessDeniedError if status in _DENIED else StoreError
        said = f"the server answers {status} {_phrase(status)}"
        if status in _DENIED and any(sign in self._known()[0] for sign in _PRESIGNED):
            said += (
                ". A presigned URL is for one object, and a node has many: open its s3:// or "
                "gs:// URL with credentials"
            )
        return kind(f"could not read {key!r} from {self.url}: {said}.")

    def _failed(self, key: str, reason: str) -> StoreError:
        return StoreError(f"could not read {key!r} from {self.url}: {reason}.")

    def _refusal(self, key: str) -> ReadOnlyError:
        return ReadOnlyError(f"{self.url} can only be read: {key!r} was not changed.")

    def _no_listing(self, prefix: str) -> ListingError:
        return ListingError(
            f"{self.url}/{prefix} cannot be listed: HTTP has no listing. Open a node by its path, "
            "or a group that has consolidated metadata (zarr_dask.consolidate)."
        )


def _is_empty(answer: _Response) -> bool:
    """True if a server says that a value is empty, so that it has no last bytes."""
    return parse_unsatisfied_range(answer.headers.get("content-range", "")) == 0


def _phrase(status: int) -> str:
    return HTTPStatus(status).phrase if status in set(HTTPStatus) else ""


# --- pickling -------------------------------------------------------------------------------------

_LOGIN, _QUERY, _HEADERS = "login", "token_query", "headers"
"""Names of options for the parts of an HTTP URL, and its headers, that may hold secrets."""


def _parted(root: str, headers: str) -> tuple[str, str]:
    """Return a URL without secrets, and its secrets with the headers as options."""
    parts = urlsplit(root)
    login, _, host = parts.netloc.rpartition("@")
    told = json.loads(headers)
    if not (login or parts.query or told):
        return root, "{}"
    options = {_LOGIN: login, _QUERY: parts.query, _HEADERS: told}
    text = json.dumps({name: value for name, value in options.items() if value}, sort_keys=True)
    return urlunsplit(parts._replace(netloc=host, query="")), text


def _joined(root: str, options: str) -> tuple[str, str]:
    """Return the URL and headers that `_parted` has split."""
    told = json.loads(options)
    parts = urlsplit(root)
    netloc = f"{told[_LOGIN]}@{parts.netloc}" if told.get(_LOGIN) else parts.netloc
    whole = parts._replace(netloc=netloc, query=told.get(_QUERY, parts.query))
    return urlunsplit(whole), json.dumps(told.get(_HEADERS, {}), sort_keys=True)


def _unpickled(
    root: str, options: str, timeout: float, largest: int, policy: RetryPolicy
) -> HTTPStore:
    told = unseal_credentials(options, root)
    given = (root, told) if is_reference(told) else _joined(root, told)
    return HTTPStore(*given, timeout, largest, policy)


# --- connections ----------------------------------------------------------------------------------


class _IdleConnections:
    """The idle open connections of one process."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Drop all connections; those of the parent must not be used in a forked process."""
        self._lock = threading.Lock()
        self._idle: dict[tuple[str, str], list[http.client.HTTPConnection]] = {}

    def take(self, scheme: str, host: str) -> http.client.HTTPConnection | None:
        with self._lock:
            idle = self._idle.get((scheme, host))
            return idle.pop() if idle else None

    def put(self, scheme: str, host: str, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            idle = self._idle.setdefault((scheme, host), [])
            if len(idle) < MOST_AT_ONCE:
                idle.append(connection)
                return
        connection.close()


_IDLE = _IdleConnections()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_IDLE.forget)


def _send(
    method: str, at: SplitResult, headers: Mapping[str, str], store: HTTPStore, wanted: Range
) -> _Response:
    """Send one request; again if an idle connection turns out to be closed."""
    connection = _IDLE.take(at.scheme, at.netloc)
    if connection is not None:
        try:
            return _exchange(connection, method, at, headers, store.largest, wanted)
        except (ConnectionError, http.client.BadStatusLine):
            pass
    made = http.client.HTTPSConnection if at.scheme == "https" else http.client.HTTPConnection
    connection = made(at.netloc.rpartition("@")[2], timeout=store.timeout)
    return _exchange(connection, method, at, headers, store.largest, wanted)


def _exchange(
    connection: http.client.HTTPConnection,
    method: str,
    at: SplitResult,
    headers: Mapping[str, str],
    largest: int,
    wanted: Range,
) -> _Response:
    target = f"{at.path}?{at.query}" if at.query else at.path
    try:
        connection.request(method, target, headers=dict(headers))
        response = connection.getresponse()
        answer = _Response(
            response.status,
            {name.lower(): value for name, value in response.getheaders()},
            _body(response, largest, wanted),
        )
    except BaseException:
        connection.close()
        raise
    if response.will_close or not response.isclosed():  # the server may send too much
        connection.close()
    else:
        _IDLE.put(at.scheme, at.netloc, connection)
    return answer


def _body(response: http.client.HTTPResponse, largest: int, wanted: Range) -> bytes:
    """Return the body of a response, read no further than needed.

    Raises
    ------
    ValueError
        If more than `largest` bytes would have to be read.
    """
    if response.status == HTTPStatus.OK:  # a server that ignores ranges sends from the start
        most = largest + 1 if wanted.stop is None else max(wanted.stop, 1)
    elif response.status == HTTPStatus.PARTIAL_CONTENT:
        most = _most_of_part(wanted, largest + 1)
    else:
        return _read(response, _MOST_TOLD)
    claimed = min(response.length or 0, most)
    body = b"" if claimed > largest else _read(response, min(most, largest + 1))
    if max(claimed, len(body)) > largest:
        raise ValueError(
            f"the server sends more than {largest} bytes; "
            "storage_options={'largest': ...} sets another bound"
        )
    return body


def _most_of_part(wanted: Range, otherwise: int) -> int:
    """Return the most bytes that the response to a range can hold; at least one is requested."""
    if wanted.stop is not None:
        return max(wanted.stop - wanted.start, 1)
    return -wanted.start if wanted.start < 0 else otherwise


def _read(response: http.client.HTTPResponse, most: int) -> bytes:
    """Return the first bytes of a response, at most `most` of them."""
    length = response.length
    end = time.monotonic() + _REQUEST_SECONDS
    pieces = []
    left = most if length is None else min(most, length)
    while left and (piece := response.read1(min(left, _PIECE))):
        pieces.append(piece)
        left -= len(piece)
        if time.monotonic() > end:
            raise TimeoutError(f"the answer was not complete after {_REQUEST_SECONDS:g} s")
    if not left:
        response.read(0)  # marks the response as complete
    body = b"".join(pieces)
    if left and length is not None:
        raise http.client.IncompleteRead(body, left)
    return body
