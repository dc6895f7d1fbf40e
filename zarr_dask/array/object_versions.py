"""The versions of all stored objects of an array when it was opened (`ReadOptions.consistent`).

A call that reads many objects, or a graph of tasks, takes its time, in which other processes may
put objects. With this option all that is read is of the moment when the array was opened, or an
error: a listing tells the tag of each object (`zarr_dask.stores.base.etag_of`), and a digest of
all of them is kept in the options, and so in each task. A process that has not seen the objects yet
lists them once more, and must find the same digest. What is read must have the tag in the listing,
and what is absent there must be absent.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256

from zarr_dask.errors import ArrayChangedError, StoreError
from zarr_dask.formats.base import ArrayMeta, ReadOptions, where
from zarr_dask.stores.base import Store, etag_of, is_remote, list_tags

__all__ = ["ObjectVersions", "pinned"]

_MOST_KEPT = 8
_TICKS = 5
_TICK = 0.02
"""Seconds after a change in which a file has no tag, because another one would look the same."""


@dataclass(frozen=True, slots=True)
class ObjectVersions:
    """The stored objects of one array as they were when it was opened."""

    store: Store
    where: str
    """Store and path, for messages."""
    tags: Mapping[str, Hashable]
    """By key."""

    @staticmethod
    def of(store: Store, path: str, prefix: str, meta: ArrayMeta, digest: str) -> ObjectVersions:
        """Return the versions that have a digest; looked up once in a process.

        Raises
        ------
        ArrayChangedError
            If the objects have changed since.
        """
        found = _KNOWN.get(digest)
        if found is None:
            found = _listed(store, path, prefix, meta)
            if found.digest != digest:
                raise ArrayChangedError(
                    f"{found.where} has changed since it was opened with consistent=True: its "
                    "stored objects are other ones by now. Open it again."
                )
            _keep(digest, found)
        return found

    @property
    def digest(self) -> str:
        """A text that tells these versions from others."""
        return sha256(repr(sorted(self.tags.items())).encode()).hexdigest()

    def check(self, key: str, *, present: bool, tag: Hashable = None) -> None:
        """Raise unless an object that has been read, or is absent, is as it was.

        Parameters
        ----------
        key
            Its key.
        present
            False if there is none.
        tag
            The tag that it was read with, if that is known; else the object is asked for it.

        Raises
        ------
        ArrayChangedError
            If it is not.
        """
        expected = self.tags.get(key)
        if present:
            tag = etag_of(self.store, key) if tag is None else tag
        if present != (expected is not None) or (present and tag != expected):
            raise ArrayChangedError(
                f"{self.where}: the stored object {key!r} was "
                f"{'put' if expected is None else 'replaced' if present else 'removed'} after the "
                "array was opened with consistent=True. What was read before is older. Open the "
                "array again, and read when nobody writes it."
            )


def pinned(
    store: Store, path: str, prefix: str, meta: ArrayMeta, options: ReadOptions
) -> ReadOptions:
    """Return options that name the present versions of an array's objects, which they ask for.

    Raises
    ------
    StoreError
        If the store has no tags.
    ListingError
        If it has no listings.
    """
    found = _listed(store, path, prefix, meta)
    _keep(found.digest, found)
    return replace(options, consistent=found.digest)


def _listed(store: Store, path: str, prefix: str, meta: ArrayMeta) -> ObjectVersions:
    tags = {
        key: tag
        for key, tag in list_tags(store, prefix)
        if meta.coords(key[len(prefix) :]) is not None
    }
    for _ in range(_TICKS):
        fresh = [key for key, tag in tags.items() if tag is None]
        if not fresh or is_remote(store):
            break
        time.sleep(_TICK)  # until another change would be seen
        tags |= {key: etag_of(store, key) for key in fresh}
    if None in tags.values():
        raise StoreError(
            f"{where(store, path)}: consistent=True needs a store that tells whether a value has "
            f"changed, and {store.url} has no tags, or the array is being written. Read a copy of "
            "it in files or in an object store, or leave consistent= out."
        )
    return ObjectVersions(store, where(store, path), tags)


_KNOWN: OrderedDict[str, ObjectVersions] = OrderedDict()
"""The last versions that this process has seen, by their digest."""


def _keep(digest: str, found: ObjectVersions) -> None:
    _KNOWN[digest] = found
    while len(_KNOWN) > _MOST_KEPT:
        _KNOWN.popitem(last=False)
