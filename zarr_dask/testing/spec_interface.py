"""The abstract store interface of the Zarr specifications, on top of this package's stores.

The v3 draft and the final v3 specification describe a store by operations on keys and values:
``get``, ``get_partial_values``, ``set``, ``set_partial_values``, ``erase``, ``erase_values``,
``erase_prefix``, ``list``, ``list_prefix`` and ``list_dir``. Nothing else in this package uses
them: `zarr_dask.stores.base.Store` requires fewer operations of an implementation, and that every
write is all or nothing. This module is for code that follows the specification:

* `AbstractStore` offers these operations over any store of this package.
* `StoreWithPartialAccess` derives all of them from four: ``get``, ``set``, ``erase``, ``list``. The
  specification recommends an entity of that name.

Keys and prefixes are restricted as in the specification: letters, digits and ``/.-_``; keys do not
end in "/", prefixes do.

Source: v3 draft and core specification 3.1, "Abstract store interface".
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from zarr_dask.errors import StoreKeyError
from zarr_dask.stores.base import Buffer, Listing, Range, Store

__all__ = ["AbstractStore", "KeyRange", "KeyStartValue", "ListDirResult", "StoreWithPartialAccess"]

_KEY = re.compile(r"[a-zA-Z0-9/._-]*[a-zA-Z0-9._-]")
_PREFIX = re.compile(r"(?:[a-zA-Z0-9/._-]*/)?")


class KeyRange(NamedTuple):
    """A part of a value to read."""

    key: str
    start: int
    """First byte."""
    length: int | None
    """Number of bytes; None for all that follow."""


class KeyStartValue(NamedTuple):
    """A part of a value to write."""

    key: str
    start: int
    """Offset of its first byte."""
    value: bytes


class ListDirResult(NamedTuple):
    """The keys and prefixes directly below a prefix."""

    keys: frozenset[str]
    """Full keys."""
    prefixes: frozenset[str]
    """Full prefixes, each ending in "/"."""


class StoreWithPartialAccess(ABC):
    """All operations of the specification, derived from ``get``, ``set``, ``erase`` and ``list``.

    Subclasses override the operations that they can do more efficiently.

    Examples
    --------
    >>> class Values(StoreWithPartialAccess):
    ...     def __init__(self):
    ...         self.values = {}
    ...
    ...     def get(self, key):
    ...         return self.values.get(key)
    ...
    ...     def set(self, key, value):
    ...         self.values[key] = value
    ...
    ...     def erase(self, key):
    ...         self.values.pop(key, None)
    ...
    ...     def list(self):
    ...         return frozenset(self.values)
    >>> store = Values()
    >>> store.set_partial_values([("a/b", 0, b"12"), ("a/b", 2, b"34"), ("a/d/e", 0, b"5")])
    >>> store.get_partial_values([("a/b", 1, 2), ("c", 0, None), ("a/b", 3, None)])
    [b'23', None, b'4']
    >>> listed = store.list_dir("a/")
    >>> sorted(listed.keys), sorted(listed.prefixes)
    (['a/b'], ['a/d/'])
    """

    # --- readable ---------------------------------------------------------------------------------

    @abstractmethod
    def get(self, key: str) -> bytes | None:
        """Return the value of a key, or None if there is none."""

    def get_partial_values(
        self, key_ranges: Iterable[tuple[str, int, int | None]]
    ) -> list[bytes | None]:
        """Return parts of values in the order of the requests; None where there is no such key.

        Parameters
        ----------
        key_ranges
            Key, first byte and number of bytes (None: all that follow); a key may be repeated. A
            range that extends beyond its value is cut at the end.

        Raises
        ------
        ValueError
            If a start or length is negative.
        """
        wanted = [_checked_range(KeyRange(*item)) for item in key_ranges]
        values = {key: self.get(key) for key in dict.fromkeys(item.key for item in wanted)}
        return [_cut(values[item.key], item) for item in wanted]

    # --- writable ---------------------------------------------------------------------------------

    @abstractmethod
    def set(self, key: str, value: bytes) -> None:
        """Store a value at a key, replacing any value that is there."""

    def set_partial_values(self, key_start_values: Iterable[tuple[str, int, bytes]]) -> None:
        """Write bytes into values, which are created or extended if necessary.

        Every value is read and written once; gaps are filled with zeros.

        Parameters
        ----------
        key_start_values
            Key, offset of the first byte, and the bytes; a key may be repeated.

        Raises
        ------
        ValueError
            If a start is negative, or two parts of one value overlap; nothing is written then.
        """
        for key, parts in _by_key(key_start_values).items():
            self.set(key, _with_parts(self.get(key) or b"", parts))

    @abstractmethod
    def erase(self, key: str) -> None:
        """Remove a key and its value; do nothing if there is none."""

    def erase_values(self, keys: Iterable[str]) -> None:
        """Remove several keys and their values."""
        for key in dict.fromkeys(keys):
            self.erase(key)

    def erase_prefix(self, prefix: str) -> None:
        """Remove every key that starts with a prefix."""
        self.erase_values(self.list_prefix(prefix))

    # --- listable ---------------------------------------------------------------------------------

    @abstractmethod
    def list(self) -> frozenset[str]:
        """Return all keys."""

    def list_prefix(self, prefix: str) -> frozenset[str]:
        """Return all keys that start with a prefix.

        Raises
        ------
        StoreKeyError
            If it is not a valid prefix: not empty, and without a "/" at its end.
        """
        check_prefix(prefix)
        return frozenset(key for key in self.list() if key.startswith(prefix))

    def list_dir(self, prefix: str) -> ListDirResult:
        """Return the keys and prefixes directly below a prefix; empty if the prefix does not exist.

        Raises
        ------
        StoreKeyError
            If it is not a valid prefix: not empty, and without a "/" at its end.
        """
        keys, prefixes = Listing.below(prefix, self.list_prefix(prefix))
        return ListDirResult(frozenset(keys), frozenset(prefixes))


class AbstractStore(StoreWithPartialAccess):
    """The operations of the specification over a store of this package.

    Ranges and listings are requested from the store itself. Parts of values are written by reading
    and writing whole values, because object stores can do nothing else.

    Parameters
    ----------
    store
        Any store, such as one returned by `zarr_dask.stores.open_store`.

    Examples
    --------
    >>> from zarr_dask.stores import MemoryStore
    >>> store = AbstractStore(MemoryStore())
    >>> store.set("foo", b"bar")
    >>> store.get_partial_values([("foo", 1, None), ("FOO", 0, None), ("foo", 0, 1)])
    [b'ar', None, b'b']
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        """The store that holds the bytes."""

    def get(self, key: str) -> bytes | None:
        """See `StoreWithPartialAccess.get`."""
        return _bytes(self.store.get(check_key(key)))

    def get_partial_values(
        self, key_ranges: Iterable[tuple[str, int, int | None]]
    ) -> list[bytes | None]:
        """See `StoreWithPartialAccess.get_partial_values`: one batch of requests."""
        wanted = [_checked_range(KeyRange(*item)) for item in key_ranges]
        requests = [
            (item.key, Range(item.start, None if item.length is None else item.start + item.length))
            for item in wanted
        ]
        return [_bytes(value) for value in self.store.get_ranges(requests)]

    def set(self, key: str, value: bytes) -> None:
        """See `StoreWithPartialAccess.set`: all or nothing."""
        self.store.set(check_key(key), [value])

    def erase(self, key: str) -> None:
        """See `StoreWithPartialAccess.erase`."""
        self.store.delete(check_key(key))

    def erase_prefix(self, prefix: str) -> None:
        """See `StoreWithPartialAccess.erase_prefix`."""
        check_prefix(prefix)
        self.store.delete_prefix(prefix)

    def list(self) -> frozenset[str]:
        """See `StoreWithPartialAccess.list`."""
        return frozenset(self.store.list())

    def list_prefix(self, prefix: str) -> frozenset[str]:
        """See `StoreWithPartialAccess.list_prefix`."""
        check_prefix(prefix)
        return frozenset(self.store.list(prefix))

    def list_dir(self, prefix: str) -> ListDirResult:
        """See `StoreWithPartialAccess.list_dir`."""
        check_prefix(prefix)
        found = self.store.list_dir(prefix)
        return ListDirResult(frozenset(found.keys), frozenset(found.prefixes))


# --- restrictions on keys and ranges --------------------------------------------------------------


def check_key(key: str) -> str:
    """Return the key if the specification allows it.

    Raises
    ------
    StoreKeyError
        For characters other than letters, digits and ``/.-_``, and a "/" at the end.
    """
    if not _KEY.fullmatch(key):
        raise StoreKeyError(
            f"{key!r} is not a key: the specification allows letters, digits and /.-_ in it, and "
            "no / at its end."
        )
    return key


def check_prefix(prefix: str) -> None:
    """Raise if this is not a prefix as the specification defines it.

    Raises
    ------
    StoreKeyError
        If it is neither empty nor ends in "/", or has characters that a key must not have.
    """
    if not _PREFIX.fullmatch(prefix):
        raise StoreKeyError(
            f"{prefix!r} is not a prefix: it must end in '/', after letters, digits and /.-_"
        )


def _checked_range(item: KeyRange) -> KeyRange:
    check_key(item.key)
    if item.start < 0 or (item.length is not None and item.length < 0):
        raise ValueError(
            f"{item}: start and length count bytes from the first one on, and are not negative."
        )
    return item


def _cut(value: bytes | None, item: KeyRange) -> bytes | None:
    stop = None if item.length is None else item.start + item.length
    return None if value is None else value[item.start : stop]


def _bytes(value: Buffer | None) -> bytes | None:
    return None if value is None else bytes(value)


def _by_key(
    key_start_values: Iterable[tuple[str, int, bytes]],
) -> Mapping[str, Sequence[KeyStartValue]]:
    """Return the parts of each value in the order of their bytes, if none of them overlap."""
    by_key: dict[str, list[KeyStartValue]] = {}
    for item in key_start_values:
        part = KeyStartValue(*item)
        if part.start < 0:
            raise ValueError(f"{part.key!r}: start={part.start} is before the first byte.")
        by_key.setdefault(check_key(part.key), []).append(part)
    for key, parts in by_key.items():
        parts.sort(key=lambda part: part.start)
        for before, after in pairwise(part for part in parts if part.value):
            if before.start + len(before.value) > after.start:
                raise ValueError(
                    f"{key!r}: {len(before.value)} bytes from byte {before.start} on and "
                    f"{len(after.value)} from byte {after.start} on overlap; nothing was written."
                )
    return by_key


def _with_parts(value: bytes, parts: Sequence[KeyStartValue]) -> bytes:
    stop = max(part.start + len(part.value) for part in parts)
    result = bytearray(value.ljust(stop, b"\0"))
    for part in parts:
        result[part.start : part.start + len(part.value)] = part.value
    return bytes(result)
