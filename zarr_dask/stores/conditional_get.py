"""The common part of stores whose responses have the tag of the value; spellings of tags.

Conditions of S3 name tags with quotes, as HTTP has it. Some gateways, Ceph's among them, answer 412
to a tag in quotes whatever the value is, and accept the same tag without. Which one a service wants
is found out at the first refusal that the value does not explain, and kept for the process.

Others ignore the conditions of puts, so that each of two writers is told that it was the only one.
They are told by a put that must fail, once in each process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import lru_cache
from secrets import token_hex

from zarr_dask._util.threads import has_overlap_work, imap_unbuffered
from zarr_dask.errors import (
    AccessDeniedError,
    ConditionalWriteError,
    StoreError,
    StoreUnavailableError,
)
from zarr_dask.stores.base import WHOLE, Buffer, Range, TaggedBytes, VersionRequest, check_key

__all__ = ["ConditionalGetMixin", "check_obeys", "check_one_put", "put_on_tag"]


class ConditionalGetMixin(ABC):
    """Batches made of single requests, which run concurrently and are returned in order."""

    __slots__ = ()

    @abstractmethod
    def _version(self, key: str, wanted: Range, tag: Hashable) -> TaggedBytes | None:
        """Return a part of a value, with retries; see `get_ranges_if_match`."""

    def get(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.get`."""
        return self.get_ranges([(key, WHOLE)])[0]

    def get_transient(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.get_transient`."""
        return self.get(key)

    def get_ranges(self, requests: Sequence[tuple[str, Range]]) -> list[Buffer | None]:
        """See `zarr_dask.stores.base.Store.get_ranges`."""
        found = self.get_versions([(key, wanted, None) for key, wanted in requests])
        return [None if one is None else one.content for one in found]

    def get_versions(self, requests: Sequence[VersionRequest]) -> Iterable[TaggedBytes | None]:
        """See `zarr_dask.stores.base.get_ranges_if_match`: by ``If-Match``, if values have tags."""
        for key, _, _ in requests:
            check_key(key)
        if len(requests) < 2 and not has_overlap_work():
            return [self._version(*request) for request in requests]
        return imap_unbuffered(lambda request: self._version(*request), requests)


class _TagSpelling:
    """Form of tags that one service wants; settled as soon as it has accepted one."""

    def __init__(self) -> None:
        self.quoted = True
        self.settled = False

    def of(self, tag: str, *, quoted: bool) -> str:
        return tag if quoted else tag.strip('"')

    def settle(self, *, quoted: bool) -> None:
        self.quoted, self.settled = quoted, True


@lru_cache(maxsize=256)
def _spelling(service: Hashable) -> _TagSpelling:  # noqa: ARG001  (the key of the cache)
    return _TagSpelling()


def put_on_tag(
    put: Callable[[str], bool], current: Callable[[], str | None], tag: str, service: Hashable
) -> bool:
    """Put a value if the present one has a tag; return True if it was put.

    Parameters
    ----------
    put
        Sends the value with the condition; returns False if the service says that it fails.
    current
        Returns the tag of the present value.
    tag
        The tag that the present value must have, in quotes.
    service
        Identifies the service in this process.

    Examples
    --------
    >>> put_on_tag(lambda tag: tag == "1", lambda: '"1"', '"1"', "a gateway without quotes")
    True
    """
    spelling = _spelling(service)
    quoted = spelling.quoted
    if put(spelling.of(tag, quoted=quoted)):
        spelling.settle(quoted=quoted)
        return True
    if spelling.settled or current() != tag:  # else nobody has put another value
        return False
    try:
        done = put(spelling.of(tag, quoted=not quoted))
    except StoreUnavailableError:
        raise
    except StoreError:  # a service that accepts tags in quotes only
        return False
    if done:
        spelling.settle(quoted=not quoted)
    return done


_LARGEST_PUT = 5000 << 20
"""Bytes that S3 and Azure take in one request."""


def check_one_put(url: str, key: str, nbytes: int) -> None:
    """Raise before a value is sent that is too large for one request.

    Values in parts are not put on a condition.

    Raises
    ------
    ConditionalWriteError
        If it is.
    """
    if nbytes > _LARGEST_PUT:
        raise ConditionalWriteError(
            f"{key!r} in {url} would have {nbytes:,} bytes. It is shared with other writers, and a "
            f"put on the condition that none of them was faster takes {_LARGEST_PUT:,} bytes at "
            "most. Choose smaller chunks or shards, or write past the end of the array by appends "
            "of whole stored objects."
        )


# --- services that ignore conditions --------------------------------------------------------------

_OBEYS: dict[Hashable, bool] = {}
"""Services that this process has tried, and whether they look at conditions."""
_NO_TAG = '"00000000000000000000000000000000"'


def check_obeys(
    url: str,
    service: Hashable,
    put: Callable[[str, str], bool],
    delete: Callable[[str], None],
) -> None:
    """Raise if a service puts values whatever the conditions are.

    Parameters
    ----------
    url
        The store, for the message.
    service
        Identifies the service in this process.
    put
        Puts a few bytes at a key on the condition that the present value has a tag; returns False
        if the service says that it has not.
    delete
        Removes a value.

    Raises
    ------
    ConditionalWriteError
        If it does, or does not know them.
    """
    obeys = _OBEYS.get(service)
    if obeys is None:
        try:
            obeys = _OBEYS[service] = _tried(put, delete)
        except AccessDeniedError:  # the write itself says so, if there is to be one
            return
    if not obeys:
        raise ConditionalWriteError(
            f"the service at {url} puts values whose condition (If-Match) does not hold, or "
            "knows no conditions, so that two jobs cannot share a stored object there. Write whole "
            "stored objects, and let one process at a time change metadata."
        )


def _tried(put: Callable[[str, str], bool], delete: Callable[[str], None]) -> bool:
    """Return True if a put that must fail does: of an absent value, or else a present one."""
    key = f".zarr-dask-{token_hex(8)}.tmp"
    try:
        if not put(key, _NO_TAG):
            return True
        try:
            return not put(key, _NO_TAG)
        finally:
            delete(key)
    except (StoreUnavailableError, AccessDeniedError):
        raise
    except StoreError:  # it does not know the header
        return False
