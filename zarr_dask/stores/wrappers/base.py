"""Options of a store, as wrappers around a store.

`Recording` logs every request, `ReadOnly` refuses writes, `PrefixStore` is a part of a store, and
`HookStore` injects failures (for tests).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Self, TypeGuard, cast

from zarr_dask.errors import ReadOnlyError
from zarr_dask.stores.base import (
    WHOLE,
    Buffer,
    Listing,
    Range,
    RangeReader,
    Store,
    SupportsListTags,
    TaggedBytes,
    VersionRequest,
    etag_of,
    get_ranges_if_match,
    get_start,
    list_sizes,
    open_value,
    supports_cheap_random_reads,
)
from zarr_dask.stores.capabilities import capabilities_of
from zarr_dask.stores.compare_and_swap import as_cas_store
from zarr_dask.stores.wrapper import StoreWrapper, unwrap

if TYPE_CHECKING:
    from zarr_dask.stores.base import SupportsAppend
    from zarr_dask.stores.streaming_put import SupportsStreamingPut

__all__ = [
    "ForwardedReads",
    "HookStore",
    "PrefixStore",
    "ReadOnly",
    "Recording",
    "Request",
    "check_writable",
    "is_read_only",
    "read_only",
]


@dataclass(frozen=True)
class PrefixStore(StoreWrapper):
    """A store of its own for everything below a prefix.

    Examples
    --------
    >>> from zarr_dask.stores import MemoryStore
    >>> list(PrefixStore(MemoryStore({"a/b": b"", "c": b""}), "a/").list())
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

    def get_transient(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.get_transient`."""
        return self.store.get_transient(self.prefix + key)

    def get_start(self, key: str, nbytes: int) -> Buffer | None:
        """See `zarr_dask.stores.base.get_start`."""
        return get_start(self.store, self.prefix + key, nbytes)

    def get_ranges(self, requests: Sequence[tuple[str, Range]]) -> list[Buffer | None]:
        """See `zarr_dask.stores.base.Store.get_ranges`."""
        return self.store.get_ranges([(self.prefix + key, wanted) for key, wanted in requests])

    def get_versions(self, requests: Sequence[VersionRequest]) -> Iterable[TaggedBytes | None]:
        """See `zarr_dask.stores.base.get_ranges_if_match`."""
        moved = [(self.prefix + key, wanted, tag) for key, wanted, tag in requests]
        return get_ranges_if_match(self.store, moved)

    @property
    def supports_cheap_random_reads(self) -> bool:
        """The wrapped store's; see `zarr_dask.stores.base.supports_cheap_random_reads`."""
        return supports_cheap_random_reads(self.store)

    def open_value(self, key: str) -> RangeReader:
        """See `zarr_dask.stores.base.SupportsOpen`."""
        return open_value(self.store, self.prefix + key)

    def validator(self, key: str) -> Hashable:
        """See `zarr_dask.stores.base.etag_of`."""
        return etag_of(self.store, self.prefix + key)

    def set(self, key: str, buffers: Sequence[Buffer]) -> None:
        """See `zarr_dask.stores.base.Store.set`."""
        self.store.set(self.prefix + key, buffers)

    def check_conditional(self, key: str) -> None:
        """See `zarr_dask.stores.compare_and_swap.ConditionalStore`."""
        as_cas_store(self.store).check_conditional(self.prefix + key)

    def get_tagged(self, key: str, wanted: Range = WHOLE) -> tuple[Buffer | None, Hashable]:
        """See `zarr_dask.stores.compare_and_swap.ConditionalStore`."""
        return as_cas_store(self.store).get_tagged(self.prefix + key, wanted)

    def set_if(self, key: str, buffers: Sequence[Buffer], tag: Hashable) -> bool:
        """See `zarr_dask.stores.compare_and_swap.ConditionalStore`."""
        return as_cas_store(self.store).set_if(self.prefix + key, buffers, tag)

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
class ForwardedReads(StoreWrapper):
    """The base of wrappers that read as the wrapped store does, with all that it is able to."""

    def get_transient(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.get_transient`."""
        return self.store.get_transient(key)

    def get_start(self, key: str, nbytes: int) -> Buffer | None:
        """See `zarr_dask.stores.base.get_start`."""
        return get_start(self.store, key, nbytes)

    def get_versions(self, requests: Sequence[VersionRequest]) -> Iterable[TaggedBytes | None]:
        """See `zarr_dask.stores.base.get_ranges_if_match`."""
        return get_ranges_if_match(self.store, requests)

    @property
    def supports_cheap_random_reads(self) -> bool:
        """The wrapped store's; see `zarr_dask.stores.base.supports_cheap_random_reads`."""
        return supports_cheap_random_reads(self.store)

    def open_value(self, key: str) -> RangeReader:
        """See `zarr_dask.stores.base.SupportsOpen`."""
        return open_value(self.store, key)

    def list_sizes(self, prefix: str) -> Iterator[tuple[str, int]]:
        """See `zarr_dask.stores.base.SupportsListSizes`."""
        return list_sizes(self.store, prefix)

    def list_tags(self, prefix: str) -> Iterator[tuple[str, tuple[str, int] | None]] | None:
        """See `zarr_dask.stores.base.SupportsListTags`."""
        return self.store.list_tags(prefix) if isinstance(self.store, SupportsListTags) else None


_HOW = "A node is opened for writing with mode='r+'."


@dataclass(frozen=True)
class ReadOnly(ForwardedReads):
    """A wrapper that refuses every change."""

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
            f"{self.url} is open for reading only: {key!r} was not changed. "
            + getattr(unwrap(self.store), "how_to_write", _HOW)
        )


def is_read_only(store: Store) -> TypeGuard[ReadOnly]:
    """True if a store refuses every change because it was opened for reading."""
    return isinstance(store, ReadOnly)


def check_writable(store: Store, at: str) -> None:
    """Raise if a store is open for reading only.

    Raises
    ------
    ReadOnlyError
        If it is.
    """
    if is_read_only(store):
        raise ReadOnlyError(f"{at} is open for reading only; open it with mode='r+'.")


def read_only(store: Store) -> ReadOnly:
    """Return a store that refuses every change; the same one if it does already."""
    return store if isinstance(store, ReadOnly) else ReadOnly(store)


class Request(NamedTuple):
    """One request to a store."""

    method: str
    key: str
    range: Range | None = None


@dataclass(frozen=True)
class Recording(StoreWrapper):
    """A wrapper that logs every request; a batch of ranges counts as one request per range.

    Examples
    --------
    >>> from zarr_dask.stores import MemoryStore, Recording
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

    def get_start(self, key: str, nbytes: int) -> Buffer | None:
        """See `zarr_dask.stores.base.get_start`."""
        self._note("get", key)
        return get_start(self.store, key, nbytes)

    def get_ranges(self, requests: Sequence[tuple[str, Range]]) -> list[Buffer | None]:
        """See `zarr_dask.stores.base.Store.get_ranges`."""
        self.batches["get_ranges"] += 1
        self.requests.extend(Request("get", key, wanted) for key, wanted in requests)
        return self.store.get_ranges(requests)

    def get_versions(self, requests: Sequence[VersionRequest]) -> Iterable[TaggedBytes | None]:
        """See `zarr_dask.stores.base.get_ranges_if_match`."""
        self.batches["get_ranges"] += 1
        self.requests.extend(Request("get", key, wanted) for key, wanted, _ in requests)
        return get_ranges_if_match(self.store, requests)

    @property
    def supports_cheap_random_reads(self) -> bool:
        """The wrapped store's; see `zarr_dask.stores.base.supports_cheap_random_reads`."""
        return supports_cheap_random_reads(self.store)

    def open_value(self, key: str) -> RangeReader:
        """See `zarr_dask.stores.base.SupportsOpen`; each range that is read is a request."""
        if not capabilities_of(self.store).open_value:
            return super().open_value(key)
        return _RecordedReader(self, key, open_value(self.store, key))

    def list_sizes(self, prefix: str) -> Iterator[tuple[str, int]]:
        """See `zarr_dask.stores.base.SupportsListSizes`."""
        self._note("list", prefix)
        return list_sizes(self.store, prefix)

    def set(self, key: str, buffers: Sequence[Buffer]) -> None:
        """See `zarr_dask.stores.base.Store.set`."""
        self._note("set", key)
        self.store.set(key, buffers)

    def set_pieces(self, key: str, pieces: Iterable[Buffer]) -> None:
        """See `zarr_dask.stores.streaming_put.SupportsStreamingPut`."""
        self._note("set", key)
        cast("SupportsStreamingPut", self.store).set_pieces(key, pieces)

    def append(self, key: str, data: bytes) -> bool:
        """See `zarr_dask.stores.base.SupportsAppend`."""
        self._note("append", key)
        return cast("SupportsAppend", self.store).append(key, data)

    def get_tagged(self, key: str, wanted: Range = WHOLE) -> tuple[Buffer | None, Hashable]:
        """See `zarr_dask.stores.compare_and_swap.ConditionalStore`."""
        self._note("get", key)
        return super().get_tagged(key, wanted)

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


class _RecordedReader:
    """A value that is held open, whose reads are logged.

    Parameters
    ----------
    log
        The wrapper that logs.
    key
        The key.
    inner
        The value.
    """

    def __init__(self, log: Recording, key: str, inner: RangeReader) -> None:
        self._log, self._key, self._inner = log, key, inner

    def __enter__(self) -> Self:
        self._inner.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._inner.__exit__(*error)

    def validator(self) -> Hashable:
        """See `RangeReader.validator`."""
        return self._inner.validator()

    def get_ranges(self, ranges: Sequence[Range]) -> Iterable[Buffer] | None:
        """See `RangeReader.get_ranges`."""
        if [*ranges] == [WHOLE]:
            self._log._note("get", self._key)  # noqa: SLF001  (of one module)
        else:
            self._log.batches["get_ranges"] += 1
            self._log.requests.extend(Request("get", self._key, wanted) for wanted in ranges)
        return self._inner.get_ranges(ranges)


@dataclass(frozen=True)
class HookStore(StoreWrapper):
    """A wrapper that calls `before` with the method and the key before every request.

    If `before` raises, so does the store; if it waits (at a barrier, say), so does the store.
    """

    before: Callable[[str, str], None]

    def get(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.get`."""
        self.before("get", key)
        return self.store.get(key)

    def get_start(self, key: str, nbytes: int) -> Buffer | None:
        """See `zarr_dask.stores.base.get_start`."""
        self.before("get", key)
        return get_start(self.store, key, nbytes)

    def get_ranges(self, requests: Sequence[tuple[str, Range]]) -> list[Buffer | None]:
        """See `zarr_dask.stores.base.Store.get_ranges`."""
        for key, _ in requests:
            self.before("get", key)
        return self.store.get_ranges(requests)

    def get_versions(self, requests: Sequence[VersionRequest]) -> Iterable[TaggedBytes | None]:
        """See `zarr_dask.stores.base.get_ranges_if_match`."""
        for key, _, _ in requests:
            self.before("get", key)
        return get_ranges_if_match(self.store, requests)

    def set(self, key: str, buffers: Sequence[Buffer]) -> None:
        """See `zarr_dask.stores.base.Store.set`."""
        self.before("set", key)
        self.store.set(key, buffers)

    def get_tagged(self, key: str, wanted: Range = WHOLE) -> tuple[Buffer | None, Hashable]:
        """See `zarr_dask.stores.compare_and_swap.ConditionalStore`."""
        self.before("get", key)
        return super().get_tagged(key, wanted)

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
