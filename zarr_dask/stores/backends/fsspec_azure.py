"""Azure's blobs through adlfs, with the conditions and tags that its own methods leave out.

adlfs shows the client of Azure's library (`service_client`). Its own listings gather all pages
before they return any, and so never end where a service names no last one.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from zarr_dask.errors import StoreKeyError
from zarr_dask.stores.backends.fsspec_s3 import Page, checked_part, checked_sizes
from zarr_dask.stores.base import WHOLE, Range, TaggedBytes
from zarr_dask.stores.error_mapping import statuses_of

__all__ = ["TAG", "check_may_put", "is_azure", "list_page", "put_if", "read_part"]

TAG = "etag"
"""Name of a value's tag in its status."""
_NO_BLOB = "BlobNotFound"
_REFUSED = {HTTPStatus.PRECONDITION_FAILED, HTTPStatus.CONFLICT}
_FOLDER = ("is_directory", "hdi_isfolder", "Hdi_isfolder")
"""Metadata of objects that stand for folders."""


def is_azure(fs: Any) -> bool:
    """True if a file system is adlfs's, with a client that answers."""
    protocols = fs.protocol if isinstance(fs.protocol, tuple | list) else (fs.protocol,)
    return "abfs" in protocols and hasattr(
        getattr(fs, "service_client", None), "get_container_client"
    )


def check_may_put(path: str) -> None:
    """Raise if adlfs would put a value and end in an error then: it takes a name for a host.

    Examples
    --------
    >>> check_may_put("container/run-1.zarr/c/0")
    >>> check_may_put("container/run[1].zarr/c/0")
    Traceback (most recent call last):
    ...
    zarr_dask.errors.StoreKeyError: adlfs cannot write 'run[1].zarr/c/0' ...
    """
    key = path.partition("/")[2]
    try:
        urlsplit(f"//{key}")
    except ValueError as error:
        raise StoreKeyError(
            f"adlfs cannot write {key!r} in the container {path.partition('/')[0]!r}: it takes the "
            f"first name for a host ({error}). Choose a name without brackets, or use obstore: "
            "storage_options={'backend': 'obstore'}."
        ) from error


async def read_part(fs: Any, path: str, wanted: Range, tag: Hashable) -> TaggedBytes | None:
    """Return a part of a value and its tag; no content if it has another tag than this one."""
    from azure.core.exceptions import HttpResponseError

    container, blob, version = fs.split_path(path)
    condition = _condition(tag[0]) if isinstance(tag, tuple) and tag[0] else {}
    given = {"version_id": version, **_timeouts(fs)}
    start, stop = wanted
    async with fs.service_client.get_blob_client(container=container, blob=blob) as client:
        try:
            if start < 0:  # Azure knows no ranges that are counted from the end
                found = await client.get_blob_properties(**condition, **given)
                start, condition = max(found.size + start, 0), _condition(found.etag)
            is_whole = wanted == WHOLE or (wanted.start < 0 and not start)
            part = {"offset": start} if not is_whole else {}
            if stop is not None:
                part["length"] = max(stop - start, 1)
            answer = await client.download_blob(**part, **condition, **given)
            content = bytes(await answer.readall())
        except HttpResponseError as error:
            code = getattr(error, "error_code", None)
            if str(getattr(code, "value", code)) == _NO_BLOB:
                return None
            if HTTPStatus.PRECONDITION_FAILED in statuses_of(error):
                return TaggedBytes(None, None)
            if HTTPStatus.NOT_FOUND in statuses_of(error):
                raise FileNotFoundError(path) from error
            raise
    e_tag = answer.properties.etag
    size = int(str(answer.properties.content_range).rpartition("/")[2])  # its range may be longer
    if not content and start >= size:
        return TaggedBytes(b"" if tag in {None, (e_tag, size)} else None, (e_tag, size), size)
    told = f"bytes {start}-{start + len(content) - 1}/{size}"
    return checked_part(content, told, e_tag, wanted, tag)


async def put_if(fs: Any, path: str, value: bytes, tag: str | None) -> bool:
    """Put a value if the present one has a tag, or if there is none; return True if it was put."""
    from azure.core.exceptions import HttpResponseError

    container, blob, _ = fs.split_path(path)
    condition: Mapping[str, Any] = (
        {"overwrite": False} if tag is None else {"overwrite": True, **_condition(tag)}
    )
    async with fs.service_client.get_blob_client(container=container, blob=blob) as client:
        try:
            await client.upload_blob(
                value, metadata={"is_directory": "false"}, **condition, **_timeouts(fs)
            )
        except HttpResponseError as error:
            if not statuses_of(error) & _REFUSED:
                raise
            return False
    fs.invalidate_cache(path)
    return True


async def list_page(fs: Any, folder: str, token: str | None, *, deep: bool) -> Page:
    """Return a page of the keys below a folder; only of those directly below it unless `deep`."""
    from azure.core.exceptions import ResourceNotFoundError

    container, prefix, _ = fs.split_path(f"{folder}/")
    asked = {"name_starts_with": prefix.lstrip("/") or None, "include": ["metadata"]}
    async with fs.service_client.get_container_client(container=container) as client:
        listing = client.list_blobs(**asked) if deep else client.walk_blobs(**asked, delimiter="/")
        pages = listing.by_page(continuation_token=token)
        try:
            found = [one async for one in await anext(pages)]
        except ResourceNotFoundError as error:
            raise FileNotFoundError(folder) from error
    prefixes = [one.name for one in found if "blob_type" not in one]
    blobs = [one for one in found if "blob_type" in one and not _is_folder(one)]
    sizes = checked_sizes([one.size for one in blobs])
    entries = [(one.name, size) for one, size in zip(blobs, sizes, strict=True)]
    return Page(entries, prefixes, pages.continuation_token)


def _is_folder(blob: Any) -> bool:
    """True if an object stands for a folder, as accounts with folders of their own list it."""
    return any((blob.metadata or {}).get(name) == "true" for name in _FOLDER)


def _condition(tag: str) -> dict[str, Any]:
    from azure.core import MatchConditions

    return {"etag": tag, "match_condition": MatchConditions.IfNotModified}


def _timeouts(fs: Any) -> dict[str, Any]:
    """Return the timeouts that users have given to adlfs."""
    return dict(getattr(fs, "_timeout_kwargs", ()))
