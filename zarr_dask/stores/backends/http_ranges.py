"""Checks that an HTTP response holds the bytes that were requested.

A server may ignore the requested range and send the whole value, send another part (the first bytes
instead of the last), or fewer bytes than it states. The bytes must match the response's headers,
and the headers must match the request.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from zarr_dask.stores.base import WHOLE, Range

__all__ = [
    "ContentRange",
    "parse_content_range",
    "parse_unsatisfied_range",
    "range_header",
    "range_satisfied",
]

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)", re.IGNORECASE)
_UNSATISFIED = re.compile(r"bytes \*/(\d+)", re.IGNORECASE)


class ContentRange(NamedTuple):
    """The range of bytes of a value that a response holds."""

    first: int
    stop: int
    size: int | None
    """Size of the whole value in bytes; None if the server has not stated it."""


def parse_content_range(content_range: str) -> ContentRange | None:
    """Parse a ``Content-Range`` header; return None if it is invalid.

    Examples
    --------
    >>> parse_content_range("bytes 2-5/10")
    ContentRange(first=2, stop=6, size=10)
    """
    found = _CONTENT_RANGE.fullmatch(content_range.strip())
    if found is None:
        return None
    first, stop = int(found[1]), int(found[2]) + 1
    size = None if found[3] == "*" else int(found[3])
    return ContentRange(first, stop, size) if first < stop <= (size or stop) else None


def parse_unsatisfied_range(content_range: str) -> int | None:
    """Return the size of a value from the header of a 416 response; None if it is not stated."""
    found = _UNSATISFIED.fullmatch(content_range.strip())
    return None if found is None else int(found[1])


def range_satisfied(wanted: Range, span: ContentRange) -> bool:
    """True if a span is the requested range, or as much of it as the value has.

    At least one byte is always requested, because HTTP has no empty ranges.

    Examples
    --------
    >>> range_satisfied(Range(2, 8), ContentRange(2, 8, 10))
    True
    >>> range_satisfied(Range(2, 8), ContentRange(2, 6, 6))
    True
    >>> range_satisfied(Range(2, 8), ContentRange(2, 6, 10))
    False
    >>> range_satisfied(Range(-4), ContentRange(0, 4, 10))
    False
    """
    first, stop, size = span
    if wanted.start < 0:
        return size is not None and (first, stop) == (max(size + wanted.start, 0), size)
    if first != wanted.start:
        return False
    if wanted.stop is None:
        return size is None or stop == size
    last = max(wanted.stop, wanted.start + 1)
    return stop == (last if size is None else min(last, size))


def range_header(wanted: Range) -> dict[str, str]:
    """Return the HTTP header that requests a part of a value; no header for all of it.

    Examples
    --------
    >>> range_header(Range(2, 8)), range_header(Range(-4)), range_header(WHOLE)
    ({'Range': 'bytes=2-7'}, {'Range': 'bytes=-4'}, {})
    """
    start, stop = wanted
    if wanted == WHOLE:
        return {}
    if start < 0:
        return {"Range": f"bytes={start}"}
    last = "" if stop is None else max(stop - 1, start)
    return {"Range": f"bytes={start}-{last}"}
