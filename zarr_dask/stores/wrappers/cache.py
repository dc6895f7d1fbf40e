"""A store that caches what was read in memory, up to a number of bytes.

A cache belongs to its process: it is not pickled with the store, and all equal stores of a process
share it. The least recently used parts are dropped first. The absence of a value is not cached.

Parts are cached as they were read, with the tag of their value; a range within a cached part is cut
out of it. `Cache.validate` determines how often the tag of a value is checked. Writing or deleting
through the store removes a value from the cache of the same process at once.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from zarr_dask.errors import StoreError
from zarr_dask.stores.base import (
    WHOLE,
    Buffer,
    Range,
    TaggedBytes,
    VersionRequest,
    etag_of,
    get_ranges_if_match,
)
from zarr_dask.stores.capabilities import Capabilities, capabilities_of
from zarr_dask.stores.compare_and_swap import as_cas_store
from zarr_dask.stores.wrapper import StoreWrapper

__all__ = ["Cache"]

_MOST_CACHES = 8  # whose contents a process keeps
_OVERHEAD = 300  # bytes of an entry besides its content


@dataclass(frozen=True)
class Cache(StoreWrapper):
    """A wrapper that caches values, and parts of values, in the memory of each process.

    Parameters
    ----------
    store
        Any store.
    max_bytes
        Bytes to keep at most, in each process.
    validate
        When to check that a value is still the cached one: "always", by a request without content
        for each key of a batch; "never", for values that do not change; or a number of seconds for
        which a check is valid. Values without a tag (see `zarr_dask.stores.base.etag_of`) are
        not cached under "always".

    Raises
    ------
    StoreError
        If the number of bytes or the rule is invalid.

    Examples
    --------
    >>> from zarr_dask.stores import Cache, MemoryStore, Range, Recording
    >>> slow = Recording(MemoryStore({"a": b"0123456789"}))
    >>> store = Cache(slow, max_bytes=1 << 20, validate="never")
    >>> store.get("a"), store.get_ranges([("a", Range(2, 4))]), slow.batches["get_ranges"]
    (b'0123456789', [b'23'], 1)
    """

    max_bytes: int
    validate: Literal["always", "never"] | float = "always"

    def __post_init__(self) -> None:
        named = self.validate in {"always", "never"}
        if self.max_bytes < 0 or not (named or isinstance(self.validate, int | float)):
            raise StoreError(
                f"a cache of max_bytes={self.max_bytes!r} with validate={self.validate!r} makes no "
                "sense: expected a number of bytes, and 'always', 'never' or a number of seconds."
            )

    def get(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.get`."""
        return self.get_ranges([(key, WHOLE)])[0]

    def get_ranges(self, requests: Sequence[tuple[str, Range]]) -> list[Buffer | None]:
        """See `zarr_dask.stores.base.Store.get_ranges`."""
        found = self.get_versions([(key, wanted, None) for key, wanted in requests])
        return [None if one is None else one.content for one in found]

    @property
    def capabilities(self) -> Capabilities:
        """As of every wrapper, and conditional reads, for which it looks at validators."""
        return replace(super().capabilities, conditional_get=True)

    def get_versions(self, requests: Sequence[VersionRequest]) -> list[TaggedBytes | None]:
        """See `zarr_dask.stores.base.get_ranges_if_match`."""
        kept = self._kept
        changes = kept.changes
        for key in sorted({key for key, _, _ in requests if kept.is_due(key, self.validate)}):
            kept.confirm(key, etag_of(self.store, key))
        found: list[TaggedBytes | None] = [
            kept.find(key, wanted, tag) for key, wanted, tag in requests
        ]
        missing = [number for number, one in enumerate(found) if one is None]
        if missing:
            fetched = self._fetch([requests[number] for number in missing])
            for number, one in zip(missing, fetched, strict=True):
                found[number] = self._received(requests[number], one, changes)
        return found

    def _received(
        self, request: VersionRequest, found: TaggedBytes | None, changes: int
    ) -> TaggedBytes | None:
        """Cache what was fetched, if that is possible and nothing was changed meanwhile."""
        key, wanted, _ = request
        if found is None or found.content is None:
            self._kept.confirm(key, None)  # the value was removed or replaced
        elif found.tag is not None or self.validate != "always":
            self._kept.put(key, wanted, found, self.max_bytes, changes)
        return found

    def _fetch(self, requests: Sequence[VersionRequest]) -> list[TaggedBytes | None]:
        if capabilities_of(self.store).conditional_get:
            return [*get_ranges_if_match(self.store, requests)]
        # the tag is requested before the bytes, which may be newer than it but not older
        before = {key: etag_of(self.store, key) for key in sorted({r[0] for r in requests})}
        found = self.store.get_ranges([(key, wanted) for key, wanted, _ in requests])
        asked = {key for key, _, tag in requests if tag is not None}
        after = {key: etag_of(self.store, key) for key in sorted(asked)}
        return [
            None
            if content is None
            else TaggedBytes(content if tag is None or tag == after[key] else None, before[key])
            for (key, _, tag), content in zip(requests, found, strict=True)
        ]

    # --- changes ----------------------------------------------------------------------------------

    def set(self, key: str, buffers: Sequence[Buffer]) -> None:
        """See `zarr_dask.stores.base.Store.set`."""
        with _KeyChange(self._kept, [key]):
            self.store.set(key, buffers)

    def set_if(self, key: str, buffers: Sequence[Buffer], tag: Hashable) -> bool:
        """See `zarr_dask.stores.compare_and_swap.ConditionalStore`."""
        with _KeyChange(self._kept, [key]):
            return as_cas_store(self.store).set_if(key, buffers, tag)

    def delete(self, key: str) -> None:
        """See `zarr_dask.stores.base.Store.delete`."""
        with _KeyChange(self._kept, [key]):
            self.store.delete(key)

    def delete_prefix(self, prefix: str) -> None:
        """See `zarr_dask.stores.base.Store.delete_prefix`."""
        with _KeyChange(self._kept, None):
            self.store.delete_prefix(prefix)

    # --- the cached parts -------------------------------------------------------------------------

    @property
    def _kept(self) -> _CachedParts:
        store: Any = self.store  # stores are small values; no protocol says that they have a hash
        return _kept(store, self.max_bytes, self.validate)

    @property
    def nbytes(self) -> int:
        """Number of bytes in this process's cache."""
        return self._kept.nbytes

    def clear(self) -> None:
        """Empty this process's cache."""
        self._kept.forget_keys(None)


class _KeyChange:
    """A context that drops keys before and after a change, so that no stale read stays cached."""

    def __init__(self, kept: _CachedParts, keys: Sequence[str] | None) -> None:
        self._kept, self._keys = kept, keys

    def __enter__(self) -> None:
        self._kept.forget_keys(self._keys)

    def __exit__(self, *_: object) -> None:
        self._kept.forget_keys(self._keys)


class _PartKey(NamedTuple):
    key: str
    part: Range


class _CachedParts:
    """Cached parts of values in order of use, the least recent first; safe from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parts: OrderedDict[_PartKey, bytes] = OrderedDict()
        self._ranges: dict[str, set[Range]] = {}
        self._tags: dict[str, Hashable] = {}
        self._asked: dict[str, float] = {}
        self.nbytes = 0
        self.changes = 0
        """Number of times that keys were dropped because they were changed."""

    def is_due(self, key: str, validate: str | float) -> bool:
        """True if the value's tag has to be checked now."""
        with self._lock:
            if key not in self._ranges or validate == "never":
                return False
            if isinstance(validate, str):
                return True
            return time.monotonic() - self._asked[key] >= validate

    def confirm(self, key: str, tag: Hashable) -> None:
        """Drop the parts of a value if its tag has changed or it is gone."""
        with self._lock:
            if key in self._ranges:
                if tag is None or self._tags[key] != tag:
                    self._forget(key)
                else:
                    self._asked[key] = time.monotonic()

    def find(self, key: str, wanted: Range, tag: Hashable) -> TaggedBytes | None:
        """Return a cached part of a value, if the value has the tag."""
        with self._lock:
            if key not in self._ranges or (tag is not None and self._tags[key] != tag):
                return None
            part = next((r for r in self._ranges[key] if _holds(r, wanted)), None)
            if part is None:
                return None
            place = _PartKey(key, part)
            self._parts.move_to_end(place)
            content = memoryview(self._parts[place])
            found = content if part == wanted else _cut(content, part, wanted)
            whole = len(found) == len(content)
            return TaggedBytes(self._parts[place] if whole else bytes(found), self._tags[key])

    def put(self, key: str, part: Range, found: TaggedBytes, most: int, changes: int) -> None:
        """Cache a part of a value, within `most` bytes in all; not if `changes` is outdated."""
        content = bytes(found.content or b"")
        if len(content) + _OVERHEAD > most:
            return
        with self._lock:
            if self.changes != changes:
                return
            if key in self._ranges and self._tags[key] != found.tag:
                self._forget(key)
            place = _PartKey(key, Range(*part))
            self._drop(place)
            self._parts[place] = content
            self._ranges.setdefault(key, set()).add(place.part)
            self._tags[key] = found.tag
            self._asked.setdefault(key, time.monotonic())
            self.nbytes += len(content) + _OVERHEAD
            while self.nbytes > most:
                self._drop(next(iter(self._parts)))

    def forget_keys(self, keys: Iterable[str] | None) -> None:
        """Drop some keys; all of them for None."""
        with self._lock:
            self.changes += 1
            for key in [*self._ranges] if keys is None else keys:
                self._forget(key)

    def _forget(self, key: str) -> None:
        for part in [*self._ranges.get(key, ())]:
            self._drop(_PartKey(key, part))

    def _drop(self, place: _PartKey) -> None:
        content = self._parts.pop(place, None)
        if content is None:
            return
        self.nbytes -= len(content) + _OVERHEAD
        self._ranges[place.key].discard(place.part)
        if not self._ranges[place.key]:
            for kept in (self._ranges, self._tags, self._asked):
                del kept[place.key]


def _holds(part: Range, wanted: Range) -> bool:
    """True if one range of a value lies within another, whatever the size of the value."""
    if part in {wanted, WHOLE}:
        return True
    if part.start < 0 or wanted.start < part.start:
        return False
    return part.stop is None or (wanted.stop is not None and wanted.stop <= part.stop)


def _cut(content: memoryview, part: Range, wanted: Range) -> memoryview:
    if wanted.start < 0:
        return content[wanted.start :]
    stop = None if wanted.stop is None else wanted.stop - part.start
    return content[wanted.start - part.start : stop]


@lru_cache(maxsize=_MOST_CACHES)
def _kept(store: Any, max_bytes: int, validate: str | float) -> _CachedParts:  # noqa: ARG001
    """Return this process's cache of a store; equal stores, with equal credentials, share it."""
    return _CachedParts()


if hasattr(os, "register_at_fork"):  # in a child no thread holds the locks
    os.register_at_fork(after_in_child=_kept.cache_clear)
