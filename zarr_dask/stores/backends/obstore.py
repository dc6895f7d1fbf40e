"""S3, Google Cloud Storage and Azure through obstore, which is faster than fsspec.

A store is a URL and its options in fsspec's spelling, which `zarr_dask.stores.option_mapping`
translates. Requests are made in `zarr_dask.stores.backends.obstore_requests`.

The threads of the library do not survive a fork, and cannot be restarted. A forked child of a
process that has used it falls back to fsspec, with the same options and errors. Only conditional
writes are not available there.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar
from urllib.parse import urlsplit

from zarr_dask.errors import MissingDependencyError, StoreError, StoreUnavailableError
from zarr_dask.stores.backends.fsspec import FsspecStore
from zarr_dask.stores.backends.obstore_requests import ObstoreRequests, forked_from
from zarr_dask.stores.base import (
    WHOLE,
    Buffer,
    Listing,
    Range,
    ReadPolicy,
    Store,
    TaggedBytes,
    VersionRequest,
)
from zarr_dask.stores.compare_and_swap import ConditionalStore, as_cas_store
from zarr_dask.stores.option_mapping import in_reach_of_obstore, share_bucket
from zarr_dask.stores.retry import DEFAULT, RetryPolicy
from zarr_dask.stores.secrets import (
    HoldsCredentials,
    identity_of,
    reveal_credentials,
    seal_credentials,
    unseal_credentials,
)
from zarr_dask.stores.unfinished_uploads import UnfinishedUpload
from zarr_dask.stores.url_secrets import check_endpoints, check_no_login

__all__ = ["ObstoreStore"]


@dataclass(frozen=True, slots=True)
class ObstoreStore(HoldsCredentials):
    """Values below a URL of an object store, through obstore; made by `ObstoreStore.from_url`.

    Parameters
    ----------
    url
        Root of the store: scheme, bucket and path.
    options
        Options in fsspec's spelling, as JSON text so that the store can be hashed.
    policy
        The policy for retries.
    """

    url: str
    options: str = "{}"
    policy: RetryPolicy = DEFAULT

    coalescing: ClassVar[ReadPolicy] = ReadPolicy(
        gap=1 << 20, largest=1 << 24, max_concurrent_requests=64
    )

    @staticmethod
    def from_url(
        url: str, options: Mapping[str, Any], policy: RetryPolicy | None = None
    ) -> ObstoreStore:
        """Return a store at `url`.

        Raises
        ------
        MissingDependencyError
            If obstore is not installed.
        StoreError
            If no client can be made with the options, or the URL or endpoint holds credentials.
        """
        check_no_login(url)
        check_endpoints(options)
        if not in_reach_of_obstore(url):
            raise StoreError(
                f"{url} cannot be served by obstore, only URLs of S3, Google Cloud Storage, Azure "
                "and HTTP can, not in chains: leave backend='obstore' out."
            )
        text = json.dumps(dict(options), sort_keys=True)
        store = ObstoreStore(url.rstrip("/"), text, policy or DEFAULT)
        requests = store._served()
        if isinstance(requests, ObstoreRequests):
            with suppress(StoreUnavailableError):  # S3 may not tell a region now: it is asked again
                requests.client()
        return store

    def with_policy(self, policy: RetryPolicy) -> ObstoreStore:
        """Return a store at the same location with another retry policy."""
        return replace(self, policy=policy)

    def settings(self) -> dict[str, Any]:
        """Return the options in fsspec's spelling; they may hold secrets."""
        return dict(json.loads(self.options))

    @property
    def identity(self) -> str:
        """The URL and a digest of the options that are not credentials."""
        return identity_of(self.url, self.options)

    def __repr__(self) -> str:
        return f"ObstoreStore({self.url!r})"  # options may hold credentials

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self.url, seal_credentials(self.options), self.policy)

    def _served(self) -> ObstoreRequests | FsspecStore:
        """Return the store that sends the requests in this process."""
        options = reveal_credentials(self.options, self.url)
        parent = forked_from()
        return (
            ObstoreRequests(self.url, options, self.policy)
            if parent is None
            else _without_library(self.url, options, self.policy, parent)
        )

    def _conditional(self) -> ConditionalStore:
        served = self._served()
        return served if isinstance(served, ObstoreRequests) else as_cas_store(served)

    @property
    def has_paged_listing(self) -> bool:
        """False in a forked process, see `zarr_dask.stores.listing.has_paged_listing`."""
        return forked_from() is None

    # --- the store --------------------------------------------------------------------------------

    def get(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.get`."""
        return self._served().get(key)

    def get_transient(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.get_transient`."""
        return self._served().get_transient(key)

    def get_ranges(self, requests: Sequence[tuple[str, Range]]) -> list[Buffer | None]:
        """See `zarr_dask.stores.base.Store.get_ranges`."""
        return self._served().get_ranges(requests)

    def get_versions(self, requests: Sequence[VersionRequest]) -> Iterable[TaggedBytes | None]:
        """See `zarr_dask.stores.base.get_ranges_if_match`: by ``If-Match``."""
        return self._served().get_versions(requests)

    def size(self, key: str) -> int | None:
        """See `zarr_dask.stores.base.Store.size`."""
        return self._served().size(key)

    def validator(self, key: str) -> Hashable:
        """See `zarr_dask.stores.base.etag_of`: the ETag of a value."""
        return self._served().validator(key)

    def set(self, key: str, buffers: Sequence[Buffer]) -> None:
        """See `zarr_dask.stores.base.Store.set`: one request, or parts that appear together."""
        self._served().set(key, buffers)

    def can_copy_from(self, source: Store) -> bool:
        """See `zarr_dask.stores.server_copy.SupportsServerCopy`: in one bucket, by one account."""
        return (
            isinstance(source, ObstoreStore)
            and self.options == source.options
            and isinstance(self._served(), ObstoreRequests)
            and share_bucket(self.url, source.url)
        )

    def copy_from(self, source: Store, old: str, key: str, nbytes: int) -> bool:
        """See `zarr_dask.stores.server_copy.SupportsServerCopy`.

        Raises
        ------
        StoreError
            If this process cannot use obstore any more.
        """
        served = self._served()
        if not isinstance(served, ObstoreRequests):
            raise StoreError(f"{self.url} copies nothing itself in a process that was forked.")
        return served.copy(source.url, old, key, nbytes)

    def check_conditional(self, key: str) -> None:
        """See `zarr_dask.stores.compare_and_swap.ConditionalStore`: all object stores support it.

        Raises
        ------
        ConditionalWriteError
            If it is an HTTP server, as most ignore conditions, or this process was forked.
        """
        self._conditional().check_conditional(key)

    def get_tagged(self, key: str, wanted: Range = WHOLE) -> tuple[Buffer | None, Hashable]:
        """See `zarr_dask.stores.compare_and_swap.ConditionalStore`."""
        return self._conditional().get_tagged(key, wanted)

    def set_if(self, key: str, buffers: Sequence[Buffer], tag: Hashable) -> bool:
        """See `zarr_dask.stores.compare_and_swap.ConditionalStore`: a put with ``If-Match``."""
        return self._conditional().set_if(key, buffers, tag)

    def delete(self, key: str) -> None:
        """See `zarr_dask.stores.base.Store.delete`."""
        self._served().delete(key)

    def delete_prefix(self, prefix: str) -> None:
        """See `zarr_dask.stores.base.Store.delete_prefix`."""
        self._served().delete_prefix(prefix)

    def list(self, prefix: str = "") -> Iterator[str]:
        """See `zarr_dask.stores.base.Store.list`."""
        return self._served().list(prefix)

    def list_sizes(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """See `zarr_dask.stores.base.list_sizes`."""
        return self._served().list_sizes(prefix)

    def list_tags(self, prefix: str) -> Iterator[tuple[str, tuple[str, int] | None]] | None:
        """See `zarr_dask.stores.base.SupportsListTags`."""
        served = self._served()
        return served.list_tags(prefix) if isinstance(served, ObstoreRequests) else None

    def list_uploads(self, prefix: str) -> Sequence[UnfinishedUpload]:
        """See `zarr_dask.stores.unfinished_uploads.SupportsUploads`; through s3fs.

        Raises
        ------
        MissingDependencyError
            If s3fs is not installed: obstore does not know them.
        """
        is_s3 = urlsplit(self.url).scheme in {"s3", "s3a"}
        return self._by_fsspec().list_uploads(prefix) if is_s3 else []

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        """See `zarr_dask.stores.unfinished_uploads.SupportsUploads`."""
        self._by_fsspec().abort_upload(upload)

    def _by_fsspec(self) -> FsspecStore:
        return FsspecStore(self.url, reveal_credentials(self.options, self.url), self.policy)

    def list_dir(self, prefix: str = "") -> Listing:
        """See `zarr_dask.stores.base.Store.list_dir`."""
        return self._served().list_dir(prefix)


def _unpickled(url: str, options: str, policy: RetryPolicy) -> ObstoreStore:
    return ObstoreStore(url, unseal_credentials(options, url), policy)


def _without_library(url: str, options: str, policy: RetryPolicy, parent: int) -> FsspecStore:
    """Return a store at the same location through fsspec.

    Raises
    ------
    StoreError
        If fsspec lacks a package for the service.
    """
    store = FsspecStore(url, options, policy)
    try:
        store.file_system()
    except MissingDependencyError as error:
        raise StoreError(
            f"{url} cannot be used here: this process was forked from process {parent}, which had "
            f"used obstore, whose threads do not survive that, and fsspec cannot take its place "
            f"({error}). Install that, or start processes by 'spawn' or 'forkserver'."
        ) from error
    return store
