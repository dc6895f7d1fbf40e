"""Repositories of Icechunk by URL, for reading: a branch, a tag or a snapshot.

``icechunk:///data/repo@branch.main``, ``icechunk+s3://bucket/repo@tag.v1``, ``@<snapshot id>``;
the branch main without any of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from zarr_dask.errors import MissingDependencyError, StoreError
from zarr_dask.stores.backends.zarr_python import store_of_zarr_python
from zarr_dask.stores.base import Store

if TYPE_CHECKING:
    from icechunk import Storage

__all__ = ["IcechunkURL"]

_S3_OPTIONS = ("region", "endpoint_url", "allow_http", "force_path_style", "requester_pays")
_ANONYMOUS = "anonymous"


class IcechunkURL:
    """Opens URLs of Icechunk; see `zarr_dask.stores.registry.register_store`."""

    @classmethod
    def from_url(cls, url: str, storage_options: Mapping[str, Any]) -> Store:
        """Return the store of a session for reading.

        Credentials come from the environment: a session holds its own, and is sent to workers.

        Raises
        ------
        MissingDependencyError
            If Icechunk is not installed.
        StoreError
            If there is no such repository, branch, tag or snapshot, or an option is unknown.
        """
        try:
            import icechunk
        except ImportError as error:
            raise MissingDependencyError(
                f"{url} is a repository of Icechunk: install it (pip install icechunk)."
            ) from error
        place, at, reference = url.rpartition("@")
        try:
            storage = _storage(place if at else url, storage_options)
            repository = icechunk.Repository.open(storage)
            session = repository.readonly_session(**_version(reference if at else ""))
        except (icechunk.IcechunkError, ValueError) as error:
            raise StoreError(
                f"{url} cannot be opened: {str(error).splitlines()[0]}. Expected a repository, and "
                "@branch.NAME, @tag.NAME or @SNAPSHOT behind it."
            ) from error
        store = store_of_zarr_python(session)
        if store is None:
            raise StoreError(f"{url}: this Icechunk has no store that can be read.")
        return store


def _version(reference: str) -> dict[str, Any]:
    kind, dot, name = reference.partition(".")
    if not reference:
        return {"branch": "main"}
    return {kind: name} if dot and kind in {"branch", "tag"} else {"snapshot_id": reference}


def _storage(place: str, options: Mapping[str, Any]) -> Storage:
    """Return where a repository is.

    Raises
    ------
    StoreError
        If an option is unknown.
    """
    import icechunk

    parts = urlsplit(place)
    known = (*_S3_OPTIONS, _ANONYMOUS) if parts.scheme.endswith("+s3") else ()
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise StoreError(
            f"{place}: unknown storage_options {', '.join(unknown)}; expected some of "
            f"{', '.join(known) or 'none'}. Credentials come from the environment; with others, "
            "pass repository.readonly_session(...).store."
        )
    path = unquote(parts.path)
    if not known:
        return icechunk.local_filesystem_storage(path)
    given: dict[str, Any] = {} if options.get(_ANONYMOUS) else {"from_env": True}
    given |= options
    return icechunk.s3_storage(bucket=parts.netloc, prefix=path.strip("/"), **given)
