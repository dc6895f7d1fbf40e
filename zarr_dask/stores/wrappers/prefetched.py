"""A store with prefetched values and listings, for checks that follow.

Checks send their requests one after the other, because one error takes precedence over another.
Where each request is slow, everything that they need is fetched concurrently beforehand, and the
checks are answered from that.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain

from zarr_dask.errors import StoreError
from zarr_dask.stores.base import Buffer, Listing, Range, Store
from zarr_dask.stores.wrapper import StoreWrapper

__all__ = ["PrefetchedStore", "asking_anew", "is_empty", "prefetching"]


def is_empty(store: Store, prefix: str) -> bool:
    """True if no key starts with the prefix."""
    return next(iter(store.list(prefix)), None) is None


def prefetching(store: Store) -> PrefetchedStore:
    """Return a store that answers from what was fetched before."""
    return PrefetchedStore(store)


def asking_anew(store: Store) -> Store:
    """Return the store behind one that answers from what was fetched before."""
    return store.store if isinstance(store, PrefetchedStore) else store


@dataclass(frozen=True)
class PrefetchedStore(StoreWrapper):
    """A store with a cache of prefetched values, dropped when they are changed through it.

    Whatever could not be fetched is requested again by the caller that needs it, so that the error
    is raised there. For short-lived use only: changes by other writers are not seen.

    Examples
    --------
    >>> from zarr_dask.stores import MemoryStore, Recording
    >>> store = Recording(MemoryStore({"a/b": b"1"}))
    >>> asked = PrefetchedStore(store)
    >>> asked.ask([("a/b", Range(0)), ("c/d", Range(0))])
    >>> asked.ask_below("c/")
    True
    >>> asked.get_ranges([("c/f", Range(0)), ("a/b", Range(0))]), list(asked.list("c/e/"))
    ([None, b'1'], [])
    >>> store.batches
    Counter({'get_ranges': 1, 'list': 1})
    """

    _values: dict[tuple[str, Range], Buffer | None] = field(default_factory=dict, compare=False)
    _empty: set[str] = field(default_factory=set, compare=False)
    """Prefixes that no key starts with."""

    def ask(self, requests: Sequence[tuple[str, Range]]) -> None:
        """Prefetch parts of values.

        Raises
        ------
        StoreError
            If the service cannot be reached.
        """
        try:
            found = self.store.get_ranges(requests)
        except StoreError as error:
            if error.unreachable:  # as for every other request
                raise
        else:
            self._values.update(zip(requests, found, strict=True))

    def emptied(self, prefix: str) -> PrefetchedStore:
        """Return a store that answers as if all keys with a prefix had been removed.

        Examples
        --------
        >>> from zarr_dask.stores import MemoryStore
        >>> prefetching(MemoryStore({"a/b": b"1"})).emptied("a/").get("a/b") is None
        True
        """
        return replace(self, _empty={*self._empty, prefix})

    def ask_below(self, prefix: str) -> bool:
        """Find out if any key starts with a prefix; returns True if it is known that none does."""
        with suppress(StoreError):
            return is_empty(self, prefix)
        return False

    def denied(self) -> dict[str, list[str]]:
        """Return the keys of prefetched values below prefixes that were listed as empty."""
        found = [key for (key, _), value in self._values.items() if value is not None]
        denied = {
            prefix: [key for key in found if key.startswith(prefix)] for prefix in self._empty
        }
        return {prefix: keys for prefix, keys in denied.items() if keys}

    def get(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.get`."""
        return None if self._is_empty(key) else self.store.get(key)

    def get_ranges(self, requests: Sequence[tuple[str, Range]]) -> list[Buffer | None]:
        """See `zarr_dask.stores.base.Store.get_ranges`."""
        values = dict(self._values)
        values.update((one, None) for one in requests if self._is_empty(one[0]))
        unknown = [one for one in requests if one not in values]
        if unknown:
            values.update(zip(unknown, self.store.get_ranges(unknown), strict=True))
        return [values[one] for one in requests]

    def list(self, prefix: str = "") -> Iterator[str]:
        """See `zarr_dask.stores.base.Store.list`."""
        if self._is_empty(prefix):
            return iter(())
        found = self.store.list(prefix)
        for first in found:
            return chain([first], found)
        self._empty.add(prefix)
        return iter(())

    def list_dir(self, prefix: str = "") -> Listing:
        """See `zarr_dask.stores.base.Store.list_dir`."""
        return Listing([], []) if self._is_empty(prefix) else self.store.list_dir(prefix)

    def set(self, key: str, buffers: Sequence[Buffer]) -> None:
        """See `zarr_dask.stores.base.Store.set`; cached parts of the value are updated."""
        asked = self._forget(key)
        self.store.set(key, buffers)
        self._keep(key, asked, buffers)

    def set_if(self, key: str, buffers: Sequence[Buffer], tag: Hashable) -> bool:
        """See `zarr_dask.stores.compare_and_swap.ConditionalStore`."""
        asked = self._forget(key)
        done = super().set_if(key, buffers, tag)
        if done:
            self._keep(key, asked, buffers)
        return done

    def _keep(self, key: str, asked: Sequence[Range], buffers: Sequence[Buffer]) -> None:
        value = b"".join(buffers)
        self._values.update({(key, part): value[part.start : part.stop] for part in asked})

    def delete(self, key: str) -> None:
        """See `zarr_dask.stores.base.Store.delete`."""
        self._forget(key)
        self.store.delete(key)

    def delete_prefix(self, prefix: str) -> None:
        """See `zarr_dask.stores.base.Store.delete_prefix`."""
        for key in {key for key, _ in [*self._values] if key.startswith(prefix)}:
            self._forget(key)
        self.store.delete_prefix(prefix)

    def _is_empty(self, prefix: str) -> bool:
        return any(prefix.startswith(empty) for empty in self._empty)

    def _forget(self, key: str) -> Sequence[Range]:
        """Drop what is cached of a value and of the prefixes around it; return the cached parts."""
        for prefix in [one for one in [*self._empty] if key.startswith(one)]:
            self._empty.discard(prefix)
        asked = [part for name, part in [*self._values] if name == key]
        for part in asked:
            self._values.pop((key, part), None)
        return asked
