"""Listings without requests, derived from known keys.

`build_tree` and `list_from_tree` are for callers that know all keys already. `ListingCache` is a
store that lists everything below a prefix at once and answers from memory afterwards. This pays if
a full listing costs no more than that of a folder, as in a mapping. In other stores it would go
through the key of every chunk. An archive has an index of its folders already.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from zarr_dask.errors import StoreError
from zarr_dask.stores.base import Buffer, Listing, Range, Store, join
from zarr_dask.stores.capabilities import capabilities_of
from zarr_dask.stores.wrapper import StoreWrapper, unwrap

__all__ = [
    "ListingCache",
    "PagesSeen",
    "build_tree",
    "has_cheap_recursive_listing",
    "has_paged_listing",
    "list_from_tree",
]


_MOST_EMPTY = 256
"""Pages without a key in a row: a service may send some where keys were deleted."""


class PagesSeen:
    """Pages of one listing, to find a service that sends no end, or something else than asked for.

    Parameters
    ----------
    prefix
        What is listed.
    url
        Place of the store, for messages.
    root
        Path of the store in its bucket.
    """

    def __init__(self, prefix: str, url: str, root: str) -> None:
        self._said = f"{prefix!r} in {url}"
        folder = join(root, prefix.rstrip("/"))
        self._folder = f"{folder}/" if folder else ""
        self._start = len(root) + 1 if root else 0
        self._first: set[str] = set()
        self._tokens: set[str] = set()
        self._empty = 0

    def see(self, page: Sequence[str]) -> None:
        """Note the keys, or the keys and prefixes, of the next page.

        Raises
        ------
        StoreError
            If it holds a key twice, or what another page has begun with, or if no page holds any.
        """
        self._empty = 0 if page else self._empty + 1
        is_twice = len(set(page)) < len(page)
        if is_twice or not self._first.isdisjoint(page) or self._empty > _MOST_EMPTY:
            raise self._endless()
        self._first.update(page[:1])

    def see_token(self, token: str) -> None:
        """Note the token that asks for the next page.

        Raises
        ------
        StoreError
            If another page was asked for by it.
        """
        if token in self._tokens:
            raise self._endless()
        self._tokens.add(token)

    def below(self, paths: Sequence[str]) -> list[str]:
        """Return what a page lists as keys, or prefixes, of the store.

        Raises
        ------
        StoreError
            If one of them does not lie below what was asked for.
        """
        folder, start = self._folder, self._start
        for path in paths:
            if not path.startswith(folder) or _has_dots(path[start:]):
                raise StoreError(
                    f"could not list {self._said}: the service lists {path[:200]!r}, which does "
                    "not lie there. Try again; if it remains so, only those who run the service "
                    "can mend it."
                )
        return [path[start:] for path in paths]

    def _endless(self) -> StoreError:
        return StoreError(
            f"could not list {self._said}: the service sends the same page again. "
            "Try again; if it remains so, only those who run the service can mend it."
        )


def _has_dots(key: str) -> bool:
    """True if a segment of a key names its own folder or the one above."""
    return "." in key and not {".", ".."}.isdisjoint(key.split("/"))


ListingTree = dict[str, set[str]]
"""The keys directly below each prefix, and the prefixes, with a "/" at the end."""


def build_tree(keys: Iterable[str], scope: str = "") -> ListingTree:
    """Return the keys and prefixes directly below each prefix of some keys, from `scope` on.

    Examples
    --------
    >>> build_tree(["a/b", "a/c/d"]) == {"": {"a/"}, "a/": {"a/b", "a/c/"}, "a/c/": {"a/c/d"}}
    True
    """
    below: ListingTree = {}
    for key in keys:
        child = key
        while len(child) > len(scope):
            above = child[: child.rfind("/", 0, -1) + 1]
            known = below.get(above)
            if known is not None:
                known.add(child)
                break
            below[above] = {child}
            child = above
    return below


def list_from_tree(below: Mapping[str, Iterable[str]], prefix: str) -> Listing:
    """Return a prefix's listing out of the listings of all prefixes."""
    names = sorted(below.get(prefix, ()))
    keys = [name for name in names if not name.endswith("/")]
    return Listing(keys, [name for name in names if name.endswith("/")])


def has_cheap_recursive_listing(store: Store) -> bool:
    """True if listing all keys below a prefix costs no more than listing a folder.

    Examples
    --------
    >>> from zarr_dask.stores import LocalStore, MemoryStore
    >>> has_cheap_recursive_listing(MemoryStore()), has_cheap_recursive_listing(LocalStore("/data"))
    (True, False)
    """
    return capabilities_of(store).cheap_recursive_listing


def has_paged_listing(store: Store) -> bool:
    """True if one request tells if any key starts with a prefix, however many do.

    Examples
    --------
    >>> from zarr_dask.stores import MemoryStore, Recording
    >>> has_paged_listing(Recording(MemoryStore()))
    True
    """
    found = capabilities_of(unwrap(store))
    return found.cheap_recursive_listing or found.paged_listing


@dataclass(frozen=True)
class ListingCache(StoreWrapper):
    """A snapshot of a store's keys: listed once, below the first prefix that is requested.

    Keys that are not in the listing are not requested either. For short-lived use only.

    Examples
    --------
    >>> from zarr_dask.stores import MemoryStore, Recording
    >>> store = Recording(MemoryStore({"a/b": b"1", "a/c/d": b"2"}))
    >>> listed = ListingCache(store)
    >>> listed.list_dir("a/")
    Listing(keys=['a/b'], prefixes=['a/c/'])
    >>> listed.list_dir("a/c/").keys, listed.get_ranges([("a/x", Range(0)), ("a/b", Range(0))])
    (['a/c/d'], [None, b'1'])
    >>> store.batches
    Counter({'list': 1, 'get_ranges': 1})
    """

    _known: dict[str, ListingTree] = field(default_factory=dict, compare=False)
    """Listings by the prefix that was listed."""

    def list_dir(self, prefix: str = "") -> Listing:
        """See `zarr_dask.stores.base.Store.list_dir`."""
        below = self._around(prefix)
        if below is None:
            below = self._known[prefix] = build_tree(self.store.list(prefix), prefix)
        return list_from_tree(below, prefix)

    def get_ranges(self, requests: Sequence[tuple[str, Range]]) -> list[Buffer | None]:
        """See `zarr_dask.stores.base.Store.get_ranges`."""
        asked = [one for one in requests if self._may_hold(one[0])]
        fetched = dict(zip(asked, self.store.get_ranges(asked) if asked else [], strict=True))
        return [fetched.get(one) for one in requests]

    def _around(self, name: str) -> ListingTree | None:
        """Return the listing that covers a key or prefix, if there is one."""
        return next((b for scope, b in self._known.items() if name.startswith(scope)), None)

    def _may_hold(self, key: str) -> bool:
        below = self._around(key)
        return below is None or key in below.get(key[: key.rfind("/") + 1], ())
