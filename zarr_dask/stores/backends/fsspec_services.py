"""Services whose answers are seen with their headers, through the file systems that know them.

There is a module for each. Other file systems of fsspec return bytes, and nothing is known of the
value that they are of.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Protocol

from zarr_dask.stores.backends import fsspec_azure, fsspec_google, fsspec_s3
from zarr_dask.stores.backends.fsspec_azure import is_azure
from zarr_dask.stores.backends.fsspec_google import is_google
from zarr_dask.stores.backends.fsspec_s3 import Page, PartRequest, is_s3
from zarr_dask.stores.base import Range, TaggedBytes

__all__ = ["Service", "read_parts", "service_of"]


class Service(Protocol):
    """Requests to one kind of service; a module has them."""

    TAG: str
    """Name of a value's tag in its status."""

    async def read_part(
        self, fs: Any, path: str, wanted: Range, tag: Hashable
    ) -> TaggedBytes | None:
        """Return a part of a value and its tag; no content if it has another tag than this one."""
        ...

    async def put_if(self, fs: Any, path: str, value: bytes, tag: str | None) -> bool:
        """Put a value if the present one has a tag, or if there is none; True if it was put."""
        ...

    async def list_page(self, fs: Any, folder: str, token: str | None, *, deep: bool) -> Page:
        """Return a page of the keys below a folder; only of those directly below unless `deep`."""
        ...


def service_of(fs: Any) -> Service | None:
    """Return the requests to the service of a file system; None if its answers are not seen."""
    if is_s3(fs):
        return fsspec_s3
    if is_azure(fs):
        return fsspec_azure
    return fsspec_google if is_google(fs) else None


async def read_parts(
    service: Service, fs: Any, requests: Sequence[PartRequest]
) -> list[TaggedBytes | Exception | None]:
    """Return parts of values, or the errors of reading them; one request each, concurrently."""
    import asyncio  # which local files do not need; loading it takes long

    asked = [service.read_part(fs, *request) for request in requests]
    found = await asyncio.gather(*asked, return_exceptions=True)
    for one in found:
        if isinstance(one, BaseException) and not isinstance(one, Exception):
            raise one
    return found  # type: ignore[return-value]  # any other BaseException was raised
