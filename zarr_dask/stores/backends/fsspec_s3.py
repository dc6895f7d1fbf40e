"""Parts of S3 values through s3fs, checked against the headers of the responses.

fsspec's file systems return bytes without headers. s3fs passes on whatever a server sends, even the
first bytes of a value instead of its last. It fetches a large value in several requests, which may
hit different versions of it. Here each part is one request of s3fs, on condition that the value has
a tag, and the ``Content-Range`` is compared with the request. Listings are requested page by page,
so that a failed page does not discard the others.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from inspect import signature
from typing import Any, NamedTuple

from zarr_dask._util.threads import MOST_AT_ONCE
from zarr_dask.errors import StoreError, StoreUnavailableError
from zarr_dask.stores.backends.http_ranges import (
    ContentRange,
    parse_content_range,
    range_header,
    range_satisfied,
)
from zarr_dask.stores.base import Range, TaggedBytes
from zarr_dask.stores.error_mapping import codes_of, statuses_of

__all__ = [
    "LARGEST_SIZE",
    "TAG",
    "Page",
    "PartRequest",
    "UploadsPage",
    "abort_upload",
    "check_known",
    "checked_part",
    "checked_sizes",
    "config_for",
    "is_s3",
    "list_page",
    "list_uploads",
    "lists",
    "put_if",
    "read_part",
]

_REFUSED = {HTTPStatus.PRECONDITION_FAILED, HTTPStatus.CONFLICT}
"""Answers to a put whose condition does not hold, or of which two were on their way."""
PartRequest = tuple[str, Range, Hashable]
"""Full path, range, and the tag that the value must have."""


TAG = "ETag"
"""Name of a value's tag in its status."""


def is_s3(fs: Any) -> bool:
    """True if a file system is s3fs's own."""
    protocols = fs.protocol if isinstance(fs.protocol, tuple | list) else (fs.protocol,)
    return "s3" in protocols and hasattr(fs, "_call_s3")


def config_for(config: Any, timeout: float, retries: int) -> dict[str, Any]:
    """Return botocore's options for its own number of retries."""
    given = dict(config or {})
    return {
        "retries": {"max_attempts": retries},
        "max_pool_connections": MOST_AT_ONCE,
        "read_timeout": timeout,
        "connect_timeout": min(timeout, 10),
        **given,
    }


def check_known(options: Mapping[str, Any]) -> None:
    """Raise if there are options that s3fs would pass on, and its session would refuse later.

    Raises
    ------
    ValueError
        If there are some.
    """
    from botocore.session import Session
    from fsspec.asyn import AsyncFileSystem
    from s3fs import S3FileSystem

    makers: list[Any] = [S3FileSystem.__init__, Session.__init__, AsyncFileSystem.__init__]
    known = {name for make in makers for name in signature(make).parameters} | _OF_FSSPEC
    unknown = sorted(options.keys() - known)
    if unknown:
        raise ValueError(f"the storage option {unknown[0]!r} is not known here")


_OF_FSSPEC = {"listings_expiry_time", "max_paths", "skip_instance_cache", "use_listings_cache"}
"""Options of all file systems."""


async def read_part(fs: Any, path: str, wanted: Range, tag: Hashable) -> TaggedBytes | None:
    """Return a part of a value and its tag; no content if it has another tag than this one."""
    bucket, key, version = fs.split_path(path)
    asked: dict[str, Any] = range_header(wanted)
    if isinstance(tag, tuple) and tag[0]:
        asked["IfMatch"] = tag[0]
    if version:
        asked["VersionId"] = version
    try:
        answer = await fs._call_s3("get_object", Bucket=bucket, Key=key, **asked)  # noqa: SLF001
    except OSError as error:
        if "NoSuchKey" in codes_of(error):
            return None
        if HTTPStatus.PRECONDITION_FAILED in statuses_of(error):
            return TaggedBytes(None, None)
        raise
    async with answer["Body"] as body:
        content = bytes(await body.read())
    length = int(answer.get("ContentLength", len(content)))
    return checked_part(
        content, answer.get("ContentRange"), answer.get("ETag"), wanted, tag, length
    )


def checked_part(
    content: bytes,
    told: str | None,
    e_tag: str | None,
    wanted: Range,
    tag: Hashable,
    length: int | None = None,
) -> TaggedBytes:
    """Return what an answer holds, if it is the part that was asked for.

    Parameters
    ----------
    content
        The bytes that were sent.
    told
        Their range, by ``Content-Range``; None if they are all of the value.
    e_tag
        The tag of the value.
    wanted
        The part that was asked for.
    tag
        The tag that the value must have; None for any.
    length
        Number of bytes that the answer announced; None if nothing is known of it.

    Raises
    ------
    StoreError
        If it is another part, or not all of it.
    """
    length = len(content) if length is None else length
    span = parse_content_range(told) if told else ContentRange(0, length, length)
    problem = f"asked for {wanted}, got {len(content)} bytes as {told!r}"
    if span is None or (told and not range_satisfied(wanted, span)):
        raise StoreError(problem)
    if len(content) != span.stop - span.first:
        raise StoreUnavailableError(problem)
    found = (e_tag, span.size) if e_tag else None
    if tag is not None and found != tag:
        return TaggedBytes(None, None)  # some services ignore conditions
    start, stop = wanted
    if not told:  # and others ignore ranges
        return TaggedBytes(content[start:stop], found, span.size)
    return TaggedBytes(
        content if stop is None else content[: max(stop - start, 0)], found, span.size
    )


LARGEST_SIZE = (1 << 63) - 1
"""Bytes of a stored object at most."""


class Page(NamedTuple):
    """A page of a listing."""

    entries: list[tuple[str, int]]
    """Keys in the bucket, and the bytes of their values."""
    prefixes: list[str]
    token: str | None
    """The continuation token; None for the last page."""


def checked_sizes(listed: Sequence[Any]) -> list[int]:
    """Return the sizes of objects as they are listed.

    Raises
    ------
    ValueError
        If one of them cannot be.
    """
    sizes = [int(size) for size in listed]
    if any(size < 0 or size > LARGEST_SIZE for size in sizes):
        raise ValueError(
            f"an object of {next(n for n in sizes if not 0 <= n <= LARGEST_SIZE)} bytes"
        )
    return sizes


async def list_page(fs: Any, folder: str, token: str | None, *, deep: bool) -> Page:
    """Return a page of the keys below a folder; only of those directly below it unless `deep`."""
    bucket, key, _ = fs.split_path(f"{folder}/")
    asked: dict[str, Any] = {"Bucket": bucket, "Prefix": key.lstrip("/")}
    if not deep:
        asked["Delimiter"] = "/"
    if token:
        asked["ContinuationToken"] = token
    found = await fs._call_s3("list_objects_v2", **asked)  # noqa: SLF001
    sizes = checked_sizes([one["Size"] for one in found.get("Contents", ())])
    return Page(
        [(one["Key"], size) for one, size in zip(found.get("Contents", ()), sizes, strict=True)],
        [one["Prefix"] for one in found.get("CommonPrefixes", ())],
        found["NextContinuationToken"] if found.get("IsTruncated") else None,
    )


class UploadsPage(NamedTuple):
    """A page of a listing of unfinished uploads."""

    entries: list[tuple[str, str, float]]
    """Keys in the bucket, ids and times of the uploads."""
    markers: tuple[str, str] | None
    """Key and id that the next page begins behind; None for the last page."""


async def list_uploads(fs: Any, folder: str, markers: tuple[str, str] | None) -> UploadsPage:
    """Return a page of the unfinished uploads below a folder."""
    bucket, key, _ = fs.split_path(f"{folder}/")
    asked: dict[str, Any] = {"Bucket": bucket, "Prefix": key.lstrip("/")}
    if markers is not None:
        asked["KeyMarker"], asked["UploadIdMarker"] = markers
    page = await fs._call_s3("list_multipart_uploads", **asked)  # noqa: SLF001
    entries = [
        (one["Key"], one["UploadId"], one["Initiated"].timestamp())
        for one in page.get("Uploads", ())
    ]
    is_last = not page.get("IsTruncated")
    return UploadsPage(
        entries, None if is_last else (page["NextKeyMarker"], page["NextUploadIdMarker"])
    )


async def abort_upload(fs: Any, path: str, upload_id: str) -> None:
    """Remove the parts of an upload, if it is still there."""
    bucket, key, _ = fs.split_path(path)
    with suppress(FileNotFoundError):
        await fs._call_s3(  # noqa: SLF001
            "abort_multipart_upload", Bucket=bucket, Key=key, UploadId=upload_id
        )


async def lists(fs: Any, path: str) -> bool:
    """True if a key is listed."""
    bucket, key, _ = fs.split_path(path)
    asked = {"Bucket": bucket, "Prefix": key, "MaxKeys": 1}
    found = await fs._call_s3("list_objects_v2", **asked)  # noqa: SLF001
    return any(one["Key"] == key for one in found.get("Contents", ()))


async def put_if(fs: Any, path: str, value: bytes, tag: str | None) -> bool:
    """Put a value if the present one has a tag, or if there is none; return True if it was put.

    s3fs leaves out what the botocore that is installed does not know, without a word.
    """
    bucket, key, _ = fs.split_path(path)
    condition = {"IfNoneMatch": "*"} if tag is None else {"IfMatch": tag}
    try:
        await fs._call_s3("put_object", Bucket=bucket, Key=key, Body=value, **condition)  # noqa: SLF001
    except OSError as error:
        if statuses_of(error) & _REFUSED or (tag is not None and "NoSuchKey" in codes_of(error)):
            return False
        raise
    fs.invalidate_cache(path)
    return True
