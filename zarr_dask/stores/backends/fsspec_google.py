"""Google's objects through gcsfs, with the conditions and tags that its own methods leave out.

The tag of a value is its generation. Listings of gcsfs gather all pages before they return any, and
so never end where a service names no last one. Buckets that lie in one zone are asked over gRPC
by gcsfs, and are not asked here.
"""

from __future__ import annotations

import json
from collections.abc import Hashable
from secrets import token_hex
from typing import Any

from zarr_dask.stores.backends.fsspec_s3 import Page, checked_part, checked_sizes
from zarr_dask.stores.backends.http_ranges import range_header
from zarr_dask.stores.base import Range, TaggedBytes

__all__ = ["TAG", "is_google", "list_page", "put_if", "read_part"]

TAG = "generation"
"""Name of a value's tag in its status."""


def is_google(fs: Any) -> bool:
    """True if a file system is gcsfs's own."""
    protocols = fs.protocol if isinstance(fs.protocol, tuple | list) else (fs.protocol,)
    return "gs" in protocols and type(fs).__module__.startswith("gcsfs")


async def read_part(fs: Any, path: str, wanted: Range, tag: Hashable) -> TaggedBytes | None:
    """Return a part of a value and its tag; no content if it has another tag than this one."""
    given = {"ifGenerationMatch": tag[0]} if isinstance(tag, tuple) and tag[0] else {}
    try:
        headers, content = await fs._call(  # noqa: SLF001
            "GET", fs.url(path), headers=range_header(wanted), **given
        )
    except FileExistsError:  # gcsfs's word for status 412
        return TaggedBytes(None, None)
    told = headers.get("Content-Range")
    return checked_part(content, told, headers.get("X-Goog-Generation"), wanted, tag)


async def put_if(fs: Any, path: str, value: bytes, tag: str | None) -> bool:
    """Put a value if the present one has a tag, or if there is none; return True if it was put."""
    bucket, key, _ = fs.split_path(path)
    given = {"uploadType": "multipart", "ifGenerationMatch": tag or "0"}
    border = token_hex(16)
    head = (
        f"--{border}\nContent-Type: application/json; charset=UTF-8\n\n{json.dumps({'name': key})}"
    )
    head += f"\n--{border}\nContent-Type: application/octet-stream\n\n"
    data = b"".join((head.encode(), value, f"\n--{border}--".encode()))
    kind = {"Content-Type": f'multipart/related; boundary="{border}"'}
    place = f"{fs._location}/upload/storage/v1/b/{bucket}/o"  # noqa: SLF001
    try:
        await fs._call("POST", place, headers=kind, data=data, **given)  # noqa: SLF001
    except FileExistsError:  # gcsfs's word for status 412
        return False
    fs.invalidate_cache(path.rpartition("/")[0])
    return True


async def list_page(fs: Any, folder: str, token: str | None, *, deep: bool) -> Page:
    """Return a page of the keys below a folder; only of those directly below it unless `deep`."""
    bucket, prefix, _ = fs.split_path(f"{folder}/")
    given = {"prefix": prefix.lstrip("/") or None, "delimiter": None if deep else "/"}
    found = await fs._call(  # noqa: SLF001
        "GET", "b/{}/o", bucket, **given, pageToken=token, maxResults=1000, json_out=True
    )
    items = found.get("items", ())
    sizes = checked_sizes([one.get("size", 0) for one in items])
    entries = [(one["name"], size) for one, size in zip(items, sizes, strict=True)]
    return Page(entries, [*found.get("prefixes", ())], found.get("nextPageToken"))
