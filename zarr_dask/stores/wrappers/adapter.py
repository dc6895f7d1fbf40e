"""Third-party stores, completed with the operations that this package needs.

Seven methods make a store: ``get``, ``get_ranges``, ``set``, ``delete``, ``delete_prefix``,
``list`` and ``list_dir``, as `zarr_dask.stores.base.Store` describes them. `StoreAdapter` adds the
rest.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from zarr_dask.stores.base import Buffer, Listing, Range, ReadPolicy, Store, check_key

__all__ = ["MinimalStore", "StoreAdapter", "adapt_store"]


class MinimalStore(Protocol):
    """The methods that a store must have; see `zarr_dask.stores.base.Store` for what they do."""

    def get(self, key: str) -> Buffer | None:
        """Return the value at a key."""
        ...

    def get_ranges(self, requests: Sequence[tuple[str, Range]]) -> Sequence[Buffer | None]:
        """Return parts of values, in the order of the requests."""
        ...

    def set(self, key: str, buffers: Sequence[Buffer]) -> None:
        """Put the joined buffers at a key, all or nothing."""
        ...

    def delete(self, key: str) -> None:
        """Remove a value."""
        ...

    def delete_prefix(self, prefix: str) -> None:
        """Remove every value whose key starts with a prefix."""
        ...

    def list(self, prefix: str) -> Iterator[str]:
        """Yield every key that starts with a prefix."""
        ...

    def list_dir(self, prefix: str) -> tuple[Sequence[str], Sequence[str]]:
        """Return keys and prefixes directly below a prefix."""
        ...


_METHODS = ("get", "get_ranges", "set", "delete", "delete_prefix", "list", "list_dir")
_REST = ("url", "identity", "coalescing", "get_transient", "size")


def adapt_store(candidate: Any) -> Store | None:
    """Return a complete `Store`; None for an object that is not a store.

    Examples
    --------
    >>> adapt_store({}) is None  # a mapping is none by itself
    True
    """
    if not all(callable(getattr(candidate, name, None)) for name in _METHODS):
        return None
    kind = type(candidate)  # looked at first: a property may take its time
    if all(hasattr(kind, name) or hasattr(candidate, name) for name in _REST):  # by delegation
        store: Store = candidate
        return store
    return StoreAdapter(candidate)


@dataclass(frozen=True)
class StoreAdapter:
    """A complete store on top of an object with the seven methods.

    Parameters
    ----------
    inner
        The object with the methods; pickled if possible.
    """

    inner: MinimalStore
    name: str = field(init=False)
    """A name that identifies it: its repr, unless that is only its address."""

    def __post_init__(self) -> None:
        name = repr(self.inner)
        if type(self.inner).__repr__ is object.__repr__:  # another object may get the address later
            name = f"{type(self.inner).__qualname__}-{uuid.uuid4().hex[:16]}"
        object.__setattr__(self, "name", name)

    @property
    def url(self) -> str:
        """See `zarr_dask.stores.base.Store.url`."""
        return str(getattr(self.inner, "url", self.name))

    @property
    def identity(self) -> str:
        """See `zarr_dask.stores.base.Store.identity`."""
        return str(getattr(self.inner, "identity", self.name))

    @property
    def coalescing(self) -> ReadPolicy:
        """See `zarr_dask.stores.base.Store.coalescing`: ranges of many keys at once."""
        return _AT_ONCE

    def get(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.get`."""
        check_key(key)
        return self.inner.get(key)

    def get_transient(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.get_transient`."""
        return self.get(key)

    def get_ranges(self, requests: Sequence[tuple[str, Range]]) -> list[Buffer | None]:
        """See `zarr_dask.stores.base.Store.get_ranges`."""
        for key, _ in requests:
            check_key(key)
        return [*self.inner.get_ranges(requests)]

    def set(self, key: str, buffers: Sequence[Buffer]) -> None:
        """See `zarr_dask.stores.base.Store.set`."""
        check_key(key)
        self.inner.set(key, buffers)

    def delete(self, key: str) -> None:
        """See `zarr_dask.stores.base.Store.delete`."""
        check_key(key)
        self.inner.delete(key)

    def delete_prefix(self, prefix: str) -> None:
        """See `zarr_dask.stores.base.Store.delete_prefix`."""
        self.inner.delete_prefix(prefix)

    def list(self, prefix: str = "") -> Iterator[str]:
        """See `zarr_dask.stores.base.Store.list`."""
        return iter(self.inner.list(prefix))

    def list_dir(self, prefix: str = "") -> Listing:
        """See `zarr_dask.stores.base.Store.list_dir`; accepts any pair of keys and prefixes."""
        keys, prefixes = self.inner.list_dir(prefix)
        return Listing(sorted(keys), sorted(prefixes))

    def size(self, key: str) -> int | None:
        """See `zarr_dask.stores.base.Store.size`; reads the whole value."""
        value = self.get(key)
        return None if value is None else memoryview(value).nbytes


_AT_ONCE = ReadPolicy(gap=1 << 14, largest=1 << 24, max_concurrent_requests=64)
