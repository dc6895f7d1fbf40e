"""The common part of stores whose responses have the tag of the value; spellings of tags.

Conditions of S3 name tags with quotes, as HTTP has it. Some gateways, Ceph's among them, answer 412
to a tag in quotes whatever the value is, and accept the same tag without. Which one a service wants
is found out at the first refusal that the value does not explain, and kept for the process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import lru_cache

from zarr_dask._util.threads import has_overlap_work, imap_unbuffered
from zarr_dask.errors import StoreError, StoreUnavailableError
from zarr_dask.stores.base import WHOLE, Buffer, Range, TaggedBytes, VersionRequest, check_key

__all__ = ["ConditionalGetMixin", "put_on_tag"]


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


class _Spelling:
    """Form of tags that one service wants; settled as soon as it has accepted one."""

    def __init__(self) -> None:
        self.quoted = True
        self.settled = False

    def of(self, tag: str, *, quoted: bool) -> str:
        return tag if quoted else tag.strip('"')

    def settle(self, *, quoted: bool) -> None:
        self.quoted, self.settled = quoted, True


@lru_cache(maxsize=256)
def _spelling(service: Hashable) -> _Spelling:  # noqa: ARG001  (the key of the cache)
    return _Spelling()


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
