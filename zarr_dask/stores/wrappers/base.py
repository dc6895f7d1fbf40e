"""Options of a store, as wrappers around a store.

`Recording` logs every request, `ReadOnly` refuses writes, `Below` is a part of a store, and
`Faulty` injects failures (for tests).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from zarr_dask.errors import ReadOnlyError
from zarr_dask.stores.base import (
    Buffer,
    Coalescing,
    Forkable,
    Listing,
    OpenValue,
    Range,
    ReopenedValue,
    Store,
    Version,
    VersionRequest,
    can_peek,
    list_sizes,
    open_value,
    read_versions,
    validator_of,
)
from zarr_dask.stores.compare_and_swap import conditional

__all__ = [
    "Below",
    "Faulty",
    "ReadOnly",
    "Recording",
    "Request",
    "Wrapper",
    "forkable",
    "innermost",
]


@dataclass(frozen=True)
class Wrapper:
    """A store that forwards every call to another one."""

    store: Store

    @property
    def url(self) -> str:
        """The wrapped store's location."""
        return self.store.url

    @property
    def identity(self) -> str:
        """The wrapped store's identity."""
        return self.store.identity

    @property
    def coalescing(self) -> Coalescing:
        """The wrapped store's limits."""
        return self.store.coalescing

    @property
    def lists_at_once(self) -> bool:
        """The wrapped store's; see `zarr_dask.stores.listing.ListsAtOnce`."""
        return bool(getattr(self.store, "lists_at_once", False))

    def get(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.get`."""
        return self.store.get(key)

    def borrow(self, key: str) -> Buffer | None:
        """Return the same as `get`, which a wrapper may override."""
        return self.get(key)

    def get_ranges(self, requests: Sequence[tuple[str, Range]]) -> list[Buffer | None]:
        """See `zarr_dask.stores.base.Store.get_ranges`."""
        return self.store.get_ranges(requests)

    def open_value(self, key: str) -> OpenValue:
        """Open a value that is read by `get_ranges`, which a wrapper may override.

        The parts are known to be of the same value only if the wrapper has `get_versions`, too.
        """
        return ReopenedValue(self, key)

    def validator(self, key: str) -> Hashable:
        """See `zarr_dask.stores.base.validator_of`."""
        return validator_of(self.store, key)

    def set(self, key: str, buffers: Sequence[Buffer]) -> None:
        """See `zarr_dask.stores.base.Store.set`."""
        self.store.set(key, buffers)

    def check_conditional(self, key: str) -> None:
        """See `zarr_dask.stores.compare_and_swap.ConditionalStore`."""
        conditional(self.store).check_conditional(key)

    def get_tagged(self, key: str) -> tuple[Buffer | None, Hashable]:
        """See `zarr_dask.stores.compare_and_swap.ConditionalStore`."""
        return conditional(self.store).get_tagged(key)

    def set_if(self, key: str, buffers: Sequence[Buffer], tag: Hashable) -> bool:
        """See `zarr_dask.stores.compare_and_swap.ConditionalStore`."""
        return conditional(self.store).set_if(key, buffers, tag)

    def delete(self, key: str) -> None:
        """See `zarr_dask.stores.base.Store.delete`."""
        self.store.delete(key)

    def delete_prefix(self, prefix: str) -> None:
        """See `zarr_dask.stores.base.Store.delete_prefix`."""
        self.store.delete_prefix(prefix)

    def list(self, prefix: str = "") -> Iterator[str]:
        """See `zarr_dask.stores.base.Store.list`."""
        return self.store.list(prefix)

    def list_dir(self, prefix: str = "") -> Listing:
        """See `zarr_dask.stores.base.Store.list_dir`."""
        return self.store.list_dir(prefix)

    def size(self, key: str) -> int | None:
        """See `zarr_dask.stores.base.Store.size`."""
        return self.store.size(key)


def innermost(store: Store) -> Store:
    """Return the store behind all wrappers."""
    while isinstance(store, Wrapper):
        store = store.store
    return store


def forkable(store: Store) -> Forkable | None:
    """Return the store behind all wrappers if tasks write to forks that must be merged into it."""
    found = innermost(store)
    return found if isinstance(found, Forkable) else None


@dataclass(frozen=True)
class Below(Wrapper):
    """A store of its own for everything below a prefix.

    Examples
    --------
    >>> from zarr_dask.stores import MemoryStore
    >>> list(Below(MemoryStore({"a/b": b"", "c": b""}), "a/").list())
    ['b']
    """

    prefix: str
    """Ends in "/"."""

    @property
    def url(self) -> str:
        """The location below the wrapped store's."""
        return f"{self.store.url}/{self.prefix.rstrip('/')}"

    @property
    def identity(self) -> str:
        """The identity of the location below the wrapped store's."""
        return f"{self.store.identity}/{self.prefix.rstrip('/')}"

    def get(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.get`."""
        return self.store.get(self.prefix + key)

    def borrow(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.borrow`."""
        return self.store.borrow(self.prefix + key)

    def get_ranges(self, requests: Sequence[tuple[str, Range]]) -> list[Buffer | None]:
        """See `zarr_dask.stores.base.Store.get_ranges`."""
        return self.store.get_ranges([(self.prefix + key, wanted) for key, wanted in requests])

    def get_versions(self, requests: Sequence[VersionRequest]) -> Iterable[Version | None]:
        """See `zarr_dask.stores.base.read_versions`."""
        moved = [(self.prefix + key, wanted, tag) for key, wanted, tag in requests]
        return read_versions(self.store, moved)

    @property
    def can_peek(self) -> bool:
        """The wrapped store's; see `zarr_dask.stores.base.can_peek`."""
        return can_peek(self.store)

    def open_value(self, key: str) -> OpenValue:
        """See `zarr_dask.stores.base.ValueOpener`."""
        return open_value(self.store, self.prefix + key)

    def validator(self, key: str) -> Hashable:
        """See `zarr_dask.stores.base.validator_of`."""
        return validator_of(self.store, self.prefix + key)

    def set(self, key: str, buffers: Sequence[Buffer]) -> None:
        """See `zarr_dask.stores.base.Store.set`."""
        self.store.set(self.prefix + key, buffers)

    def check_conditional(self, key: str) -> None:
        """See `zarr_dask.stores.compare_and_swap.ConditionalStore`."""
        conditional(self.store).check_conditional(self.prefix + key)

    def get_tagged(self, key: str) -> tuple[Buffer | None, Hashable]:
        """See `zarr_dask.stores.compare_and_swap.ConditionalStore`."""
        return conditional(self.store).get_tagged(self.prefix + key)

    def set_if(self, key: str, buffers: Sequence[Buffer], tag: Hashable) -> bool:
        """See `zarr_dask.stores.compare_and_swap.ConditionalStore`."""
        return conditional(self.store).set_if(self.prefix + key, buffers, tag)

    def delete(self, key: str) -> None:
        """See `zarr_dask.stores.base.Store.delete`."""
        self.store.delete(self.prefix + key)

    def delete_prefix(self, prefix: str) -> None:
        """See `zarr_dask.stores.base.Store.delete_prefix`."""
        self.store.delete_prefix(self.prefix + prefix)

    def list(self, prefix: str = "") -> Iterator[str]:
        """See `zarr_dask.stores.base.Store.list`."""
        start = len(self.prefix)
        return (key[start:] for key in self.store.list(self.prefix + prefix))

    def list_dir(self, prefix: str = "") -> Listing:
        """See `zarr_dask.stores.base.Store.list_dir`."""
        start = len(self.prefix)
        found = self.store.list_dir(self.prefix + prefix)
        return Listing([k[start:] for k in found.keys], [p[start:] for p in found.prefixes])

    def size(self, key: str) -> int | None:
        """See `zarr_dask.stores.base.Store.size`."""
        return self.store.size(self.prefix + key)


@dataclass(frozen=True)
class ReadOnly(Wrapper):
    """A wrapper that refuses every change."""

    def borrow(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.borrow`."""
        return self.store.borrow(key)

    def get_versions(self, requests: Sequence[VersionRequest]) -> Iterable[Version | None]:
        """See `zarr_dask.stores.base.read_versions`."""
        return read_versions(self.store, requests)

    @property
    def can_peek(self) -> bool:
        """The wrapped store's; see `zarr_dask.stores.base.can_peek`."""
        return can_peek(self.store)

    def open_value(self, key: str) -> OpenValue:
        """See `zarr_dask.stores.base.ValueOpener`."""
        return open_value(self.store, key)

    def list_sizes(self, prefix: str) -> Iterator[tuple[str, int]]:
        """See `zarr_dask.stores.base.SizesLister`."""
        return list_sizes(self.store, prefix)

    def set(self, key: str, buffers: Sequence[Buffer]) -> None:  # noqa: ARG002
        """Raise `ReadOnlyError`."""
        raise self._refusal(key)

    def check_conditional(self, key: str) -> None:
        """Raise `ReadOnlyError`."""
        raise self._refusal(key)

    def set_if(self, key: str, buffers: Sequence[Buffer], tag: Hashable) -> bool:  # noqa: ARG002
        """Raise `ReadOnlyError`."""
        raise self._refusal(key)

    def delete(self, key: str) -> None:
        """Raise `ReadOnlyError`."""
        raise self._refusal(key)

    def delete_prefix(self, prefix: str) -> None:
        """Raise `ReadOnlyError`."""
        raise self._refusal(prefix)

    def _refusal(self, key: str) -> ReadOnlyError:
        return ReadOnlyError(
            f"{self.url} is open for reading only: {key!r} was not changed. A node is opened for "
            "writing with mode='r+'."
        )


class Request(NamedTuple):
    """One request to a store."""

    method: str
    key: str
    range: Range | None = None


@dataclass(frozen=True)
class Recording(Wrapper):
    """A wrapper that logs every request; a batch of ranges counts as one request per range.

    Examples
    --------
    >>> from zarr_dask.stores import MemoryStore
    >>> store = Recording(MemoryStore())
    >>> store.get("a")
    >>> store.requests
    [Request(method='get', key='a', range=None)]
    """

    requests: list[Request] = field(default_factory=list, compare=False)
    """Every request so far, oldest first."""
    batches: Counter[str] = field(default_factory=Counter, compare=False)
    """Number of calls of each method."""

    def clear(self) -> None:
        """Clear the log."""
        self.requests.clear()
        self.batches.clear()

    def per_key(self, method: str = "get") -> Counter[str]:
        """Return the number of reads (``get``) or writes (``set``) of each key."""
        return Counter(request.key for request in self.requests if request.method == method)

    def get(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.get`."""
        self._note("get", key)
        return self.store.get(key)

    def get_ranges(self, requests: Sequence[tuple[str, Range]]) -> list[Buffer | None]:
        """See `zarr_dask.stores.base.Store.get_ranges`."""
        self.batches["get_ranges"] += 1
        self.requests.extend(Request("get", key, wanted) for key, wanted in requests)
        return self.store.get_ranges(requests)

    def get_versions(self, requests: Sequence[VersionRequest]) -> Iterable[Version | None]:
        """See `zarr_dask.stores.base.read_versions`."""
        self.batches["get_ranges"] += 1
        self.requests.extend(Request("get", key, wanted) for key, wanted, _ in requests)
        return read_versions(self.store, requests)

    def set(self, key: str, buffers: Sequence[Buffer]) -> None:
        """See `zarr_dask.stores.base.Store.set`."""
        self._note("set", key)
        self.store.set(key, buffers)

    def get_tagged(self, key: str) -> tuple[Buffer | None, Hashable]:
        """See `zarr_dask.stores.compare_and_swap.ConditionalStore`."""
        self._note("get", key)
        return super().get_tagged(key)

    def set_if(self, key: str, buffers: Sequence[Buffer], tag: Hashable) -> bool:
        """See `zarr_dask.stores.compare_and_swap.ConditionalStore`."""
        self._note("set_if", key)
        return super().set_if(key, buffers, tag)

    def delete(self, key: str) -> None:
        """See `zarr_dask.stores.base.Store.delete`."""
        self._note("delete", key)
        self.store.delete(key)

    def delete_prefix(self, prefix: str) -> None:
        """See `zarr_dask.stores.base.Store.delete_prefix`."""
        self._note("delete_prefix", prefix)
        self.store.delete_prefix(prefix)

    def list(self, prefix: str = "") -> Iterator[str]:
        """See `zarr_dask.stores.base.Store.list`."""
        self._note("list", prefix)
        return self.store.list(prefix)

    def list_dir(self, prefix: str = "") -> Listing:
        """See `zarr_dask.stores.base.Store.list_dir`."""
        self._note("list_dir", prefix)
        return self.store.list_dir(prefix)

    def size(self, key: str) -> int | None:
        """See `zarr_dask.stores.base.Store.size`."""
        self._note("size", key)
        return self.store.size(key)

    def _note(self, method: str, key: str) -> None:
        self.batches[method] += 1
        self.requests.append(Request(method, key))


@dataclass(frozen=True)
class Faulty(Wrapper):
    """A wrapper that calls `before` with the method and the key before every request.

    If `before` raises, so does the store; if it waits (at a barrier, say), so does the store.
    """

    before: Callable[[str, str], None]

    def get(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.get`."""
        self.before("get", key)
        return self.store.get(key)

    def get_ranges(self, requests: Sequence[tuple[str, Range]]) -> list[Buffer | None]:
        """See `zarr_dask.stores.base.Store.get_ranges`."""
        for key, _ in requests:
            self.before("get", key)
        return self.store.get_ranges(requests)

    def get_versions(self, requests: Sequence[VersionRequest]) -> Iterable[Version | None]:
        """See `zarr_dask.stores.base.read_versions`."""
        for key, _, _ in requests:
            self.before("get", key)
        return read_versions(self.store, requests)

    def set(self, key: str, buffers: Sequence[Buffer]) -> None:
        """See `zarr_dask.stores.base.Store.set`."""
        self.before("set", key)
        self.store.set(key, buffers)

    def get_tagged(self, key: str) -> tuple[Buffer | None, Hashable]:
        """See `zarr_dask.stores.compare_and_swap.ConditionalStore`."""
        self.before("get", key)
        return super().get_tagged(key)

    def set_if(self, key: str, buffers: Sequence[Buffer], tag: Hashable) -> bool:
        """See `zarr_dask.stores.compare_and_swap.ConditionalStore`."""
        self.before("set_if", key)
        return super().set_if(key, buffers, tag)

    def delete(self, key: str) -> None:
        """See `zarr_dask.stores.base.Store.delete`."""
        self.before("delete", key)
        self.store.delete(key)

    def delete_prefix(self, prefix: str) -> None:
        """See `zarr_dask.stores.base.Store.delete_prefix`."""
        self.before("delete_prefix", prefix)
        self.store.delete_prefix(prefix)

    def list(self, prefix: str = "") -> Iterator[str]:
        """See `zarr_dask.stores.base.Store.list`."""
        self.before("list", prefix)
        return self.store.list(prefix)

    def list_dir(self, prefix: str = "") -> Listing:
        """See `zarr_dask.stores.base.Store.list_dir`."""
        self.before("list_dir", prefix)
        return self.store.list_dir(prefix)

    def size(self, key: str) -> int | None:
        """See `zarr_dask.stores.base.Store.size`."""
        self.before("size", key)
        return self.store.size(key)
