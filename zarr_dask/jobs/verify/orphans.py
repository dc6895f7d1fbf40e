"""Orphans: stored objects without an array, because its metadata was lost or is not written yet.

A listing shows only names, and other files may have names like stored objects. While all keys are
listed, `OrphanedKeys` counts keys that look like stored objects and lie below no array. Afterwards
it decides which of them to report.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from zarr_dask.errors import StoreKeyError
from zarr_dask.formats.base import ChunkKeyEncoding, GroupMeta, ancestors
from zarr_dask.formats.detect import formats_at
from zarr_dask.jobs.engine.thread_map import listing_concurrency, map_concurrently
from zarr_dask.stores.base import Store

__all__ = ["LostArray", "OrphanedKeys"]

_MOST_PATHS = 10_000
_NUMBER = "(?:0|[1-9][0-9]*)"
_LETTERED = re.compile(rf"(?:(.*)/)?c(?:(?:/{_NUMBER})+|(?:\.{_NUMBER})+)")
_FLAT = re.compile(rf"(?:(.*)/)?{_NUMBER}(?:\.{_NUMBER})+")
"""Default keys of stored objects in the formats."""


class LostArray(NamedTuple):
    """Stored objects at a location where an array should be."""

    path: str
    objects: int
    """Number of keys that look like stored objects."""
    first: str
    """The first of these keys."""


@dataclass
class OrphanedKeys:
    """Keys that look like stored objects and lie below no array.

    Keys of only numbers and dots count if some array has such keys, or would have them by default.
    Otherwise they are more likely to be files named by a version or a date than objects of an array
    whose metadata is lost.
    """

    flat: bool
    """True if keys of only numbers count."""
    found: dict[str, LostArray] = field(default_factory=dict)
    """Findings by the path where the array should be."""

    @staticmethod
    def among(layouts: Iterable[object]) -> OrphanedKeys:
        """Return an empty collection for a hierarchy with these layouts of keys."""
        return OrphanedKeys(
            any(isinstance(k, ChunkKeyEncoding) and k.key((0,)) == "0" for k in layouts)
        )

    def note(self, key: str) -> None:
        """Count a key that lies below no array."""
        found = _LETTERED.fullmatch(key) or (_FLAT.fullmatch(key) if self.flat else None)
        if found is None:
            return
        path = found.group(1) or ""
        before = self.found.get(path, LostArray(path, 0, key))
        if before.objects or len(self.found) < _MOST_PATHS:
            self.found[path] = before._replace(objects=before.objects + 1)

    def lost(self, store: Store, told: Collection[str]) -> list[LostArray]:
        """Return the orphans to report.

        Parameters
        ----------
        store
            Store of the keys. It is checked for arrays of another format, which are not part of
            this hierarchy.
        told
            Paths that are reported already; everything below them is skipped too.
        """
        untold = [
            one
            for path, one in self.found.items()
            if not path.startswith(".") and not {path, *ancestors(path)}.intersection(told)
        ]
        owned = map_concurrently(
            lambda one: _has_owner(store, one), untold, listing_concurrency(store)
        )
        return [one for one, has in zip(untold, owned, strict=True) if not has]


def _has_owner(store: Store, lost: LostArray) -> bool:
    """True if an array of any format lies around a key, at its path or below that."""
    for folder in ancestors(lost.first):
        if len(folder) < len(lost.path):
            continue
        with suppress(StoreKeyError):  # such a key cannot have metadata
            if any(not isinstance(meta, GroupMeta) for _, meta in formats_at(store, folder)):
                return True
    return False
