"""Stored objects of no array: its document was lost, or has not been written yet.

A listing shows them by their names alone, so that what is no stored object may be called like one.
`Ownerless` counts, while all keys are listed, those that look like it and lie below no array, and
says afterwards which of them are worth a finding.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from zarr_dask.errors import StoreKeyError
from zarr_dask.formats.base import ChunkKeys, GroupMeta, ancestors
from zarr_dask.formats.detect import formats_at
from zarr_dask.jobs.abreast import abreast, waiting_for
from zarr_dask.stores.base import Store

__all__ = ["Lost", "Ownerless"]

_MOST_PATHS = 10_000
_NUMBER = "(?:0|[1-9][0-9]*)"
_LETTERED = re.compile(rf"(?:(.*)/)?c(?:(?:/{_NUMBER})+|(?:\.{_NUMBER})+)")
_FLAT = re.compile(rf"(?:(.*)/)?{_NUMBER}(?:\.{_NUMBER})+")
"""Keys of stored objects, as the formats have them by default."""


class Lost(NamedTuple):
    """What lies where an array should be."""

    path: str
    objects: int
    """How many, by their names."""
    first: str
    """The key of one."""


@dataclass
class Ownerless:
    """Keys that are called as stored objects are, and lie below no array.

    Keys of nothing but numbers with dots count where some array has such, or would have them by
    default. Elsewhere only its own document could tell that an array has them, and files that are
    called by a version or a date are more frequent than such arrays whose document is lost.
    """

    flat: bool
    """Whether those of numbers alone count."""
    found: dict[str, Lost] = field(default_factory=dict)
    """By the path where the array should be."""

    @staticmethod
    def among(layouts: Iterable[object]) -> Ownerless:
        """Those of a hierarchy with these layouts of keys."""
        return Ownerless(any(isinstance(k, ChunkKeys) and k.key((0,)) == "0" for k in layouts))

    def note(self, key: str) -> None:
        """Count a key that lies below no array."""
        found = _LETTERED.fullmatch(key) or (_FLAT.fullmatch(key) if self.flat else None)
        if found is None:
            return
        path = found.group(1) or ""
        before = self.found.get(path, Lost(path, 0, key))
        if before.objects or len(self.found) < _MOST_PATHS:
            self.found[path] = before._replace(objects=before.objects + 1)

    def lost(self, store: Store, told: Collection[str]) -> list[Lost]:
        """What is worth a finding.

        Parameters
        ----------
        store
            Where they are. It is asked whether there is an array of another format, which is no
            part of this hierarchy and not looked at.
        told
            Paths of which something is said already, and of all that lies below them.
        """
        untold = [
            one
            for path, one in self.found.items()
            if not path.startswith(".") and not {path, *ancestors(path)}.intersection(told)
        ]
        owned = abreast(lambda one: _has_owner(store, one), untold, waiting_for(store))
        return [one for one, has in zip(untold, owned, strict=True) if not has]


def _has_owner(store: Store, lost: Lost) -> bool:
    """Whether an array of any format lies around a key, its path or something below that."""
    for folder in ancestors(lost.first):
        if len(folder) < len(lost.path):
            continue
        with suppress(StoreKeyError):  # there can be no document
            if any(not isinstance(meta, GroupMeta) for _, meta in formats_at(store, folder)):
                return True
    return False
