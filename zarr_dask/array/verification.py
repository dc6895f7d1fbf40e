"""Comparison of stored objects with a manifest while they are read (`ReadOptions.verify`).

The bytes of an object must have the size and the checksums of its receipt. So an object that was
damaged, exchanged for another or for an older one, or lost is an error at the read that meets it.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from zarr_dask.errors import ManifestError, ManifestMismatchError
from zarr_dask.journal.manifest import Manifest, ManifestPlace
from zarr_dask.journal.receipts import StoredObject, stored_object
from zarr_dask.stores.base import BoundedRange, Buffer, Store, etag_of

__all__ = ["ObjectCheck"]


@dataclass(frozen=True, slots=True)
class _ManifestByKey:
    """A manifest by keys."""

    objects: Mapping[str, StoredObject]
    empty: frozenset[str]
    prefix: str | None


@dataclass(frozen=True, slots=True)
class ObjectCheck:
    """Compares the stored objects of one array with a manifest.

    Examples
    --------
    >>> import dask.array as da
    >>> import zarr_dask as zd
    >>> from zarr_dask.stores.backends.memory import MemoryStore
    >>> stored, beside = MemoryStore(), MemoryStore()
    >>> x = da.arange(4, chunks=2)
    >>> _ = zd.to_zarr(x, stored, journal=beside, manifest="memory://doctest/x.manifest")
    >>> check = ObjectCheck.of(stored, "", "", "memory://doctest/x.manifest")
    >>> check.compare("c/0", stored.get("c/0"))
    >>> check.compare("c/1", stored.get("c/0"))
    Traceback (most recent call last):
    zarr_dask.errors.ManifestMismatchError: ...
    """

    url: str
    """Location of the manifest, for messages."""
    receipts: _ManifestByKey
    prefix: str
    """Common prefix of the keys of the array's stored objects."""
    listed_prefix: str
    """The same in the manifest beside a node, which may have been opened from another root."""

    @staticmethod
    def of(
        store: Store,
        path: str,
        prefix: str,
        manifest: bool | str | os.PathLike[str],
        objects: int | None = None,
    ) -> ObjectCheck:
        """Return the check of an array; its manifest is read once, as long as it is unchanged.

        Parameters
        ----------
        store, path
            Location of the array.
        prefix
            Common prefix of the keys of its stored objects.
        manifest
            `ReadOptions.verify`.
        objects
            As for `ManifestPlace.of_node`.

        Raises
        ------
        ManifestError
            If there is no whole manifest.
        """
        place = ManifestPlace.of_node(manifest, store, path, objects)
        receipts = _READ.get(place)
        theirs = receipts.prefix if place.beside and receipts.prefix is not None else prefix
        return ObjectCheck(place.url, receipts, prefix, theirs)

    def wanted(self, key: str) -> BoundedRange:
        """Return the bytes to request: no more than one more than there must be.

        Raises
        ------
        ManifestError
            If the manifest does not say what the object must be.
        """
        expected = self._expected(key)
        return BoundedRange(0, 1 if expected is None else expected.nbytes + 1)

    def compare(self, key: str, found: Buffer | None) -> None:
        """Raise unless an object, or its absence, is what the manifest says.

        Raises
        ------
        ManifestMismatchError
            If it is something else.
        """
        expected = self._expected(key)
        reason = ""
        if expected is None and found is not None:
            reason = "it is there, but was left out on purpose: all of it was fill values"
        elif expected is not None and found is None:
            reason = f"it is absent, but was stored with {expected.nbytes:,} bytes"
        elif expected is not None and found is not None:
            is_long = memoryview(found).nbytes > expected.nbytes
            summed = stored_object(key, [found], with_sha256=expected.sha256 is not None)
            reason = f"more than {expected.nbytes:,} bytes" if is_long else ""
            reason = reason or summed.difference(expected)
        if reason:
            raise ManifestMismatchError(f"{reason} ({self.url})")

    def _expected(self, key: str) -> StoredObject | None:
        """Return the receipt of an object; None if it was left out on purpose."""
        receipts = self.receipts
        known = self.listed_prefix + key[len(self.prefix) :]
        found = receipts.objects.get(known)
        if found is None and known not in receipts.empty:
            raise ManifestError(
                f"{self.url} does not list the stored object {known!r}: what is read there cannot "
                "be verified. Give the manifest of the job that wrote it, or read without verify=."
            )
        if found is not None and not found.has_checksum:
            raise ManifestError(f"{self.url} has no checksum of the stored object {known!r}.")
        return found


class _ReadManifests:
    """The last manifests that this process has read; safe from many threads."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Keep nothing any more; in a new process nobody else holds the lock."""
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, str], tuple[Hashable, _ManifestByKey]] = OrderedDict()

    def get(self, place: ManifestPlace) -> _ManifestByKey:
        """Return the manifest at a location; read again if it has changed."""
        where, tag = (place.store.identity, place.key), etag_of(place.store, place.key)
        with self._lock:  # threads that want the same one wait for the first
            known = self._kept.get(where)
            if known is not None and tag is not None and known[0] == tag:
                return known[1]
            manifest = Manifest.at(place)
            by_key = {item.key: item for item in manifest.objects}
            found = _ManifestByKey(by_key, manifest.empty, manifest.prefix)
            self._kept[where] = (tag, found)
            if len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
            return found


_MOST_KEPT = 8
_READ = _ReadManifests()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_READ.forget)
