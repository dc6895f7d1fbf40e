"""The spelling of tags in conditions of S3: with quotes, as HTTP has it, or without.

Some gateways, Ceph's among them, answer 412 to a tag in quotes whatever the value is, and accept
the same tag without. Which one a service wants is found out at the first refusal that the value
does not explain, and kept for the process.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache

from zarr_dask.errors import StoreError, StoreUnavailableError

__all__ = ["put_on_tag"]


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
