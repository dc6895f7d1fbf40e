"""The open nodes of this process, which follow changes of their metadata.

Every change of a node's metadata that this process makes (`zarr_dask.formats.concurrent_edit`) is
told to all its handles: after ``a.append(...)``, ``a`` and any other handle of that array have the
new shape. Plans, views and tasks hold arrays of their own, which stay as they were.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from typing import Any, Protocol
from weakref import ref

from zarr_dask.formats.base import ArrayMeta, NodeMeta
from zarr_dask.formats.documents import real_path
from zarr_dask.stores.base import Store
from zarr_dask.stores.open import canonical_location

__all__ = ["Handle", "opened", "tell_growth", "tell_handles"]


class Handle(Protocol):
    """An array or a group that a user has open."""

    @property
    def store(self) -> Store:
        """Store that holds the node."""
        ...

    @property
    def path(self) -> str:
        """Path below the root of the store."""
        ...

    @property
    def meta(self) -> Any:
        """Parsed metadata of the node."""
        ...

    def follow(self, meta: Any) -> None:
        """Take the length, attributes and names of dimensions from changed metadata."""
        ...


class _Handles:
    """Handles of this process, without keeping any of them alive; safe from many threads.

    The location of each one is looked up once, at the first change that may be its own: an append
    to one of many open arrays looks up none of the others.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Keep nothing any more; in a new process nobody else holds the lock."""
        self._lock = threading.Lock()
        self._new: dict[str, list[ref[Handle]]] = {}
        """Those whose location is not known yet, by name; that of a root is empty."""
        self._at: dict[str, list[ref[Handle]]] = {}
        """The others, by location."""
        self._count = self._kept = 0

    def add(self, handle: Handle) -> None:
        with self._lock:
            self._new.setdefault(_name(handle.path), []).append(ref(handle))
            self._count += 1
            if self._count > 2 * self._kept + _FEW:
                self._forget_closed()

    def of(self, store: Store, path: str) -> list[Handle]:
        """Return the handles of a node, from whatever root it is named."""
        place, name = canonical_location(store, path, real_path), _name(path)
        with self._lock:
            names = [name, ""] if name else list(self._new)
            new = [one for each in dict.fromkeys(names) for one in _alive(self._new.get(each, ()))]
        # outside of the lock: it may take long
        places = {one: canonical_location(one.store, one.path) for one in new}
        with self._lock:
            for each in names if places else ():
                for one in _alive(self._new.pop(each, ())):
                    where, key = (self._at, places[one]) if one in places else (self._new, each)
                    where.setdefault(key, []).append(ref(one))
            found = _alive(self._at.get(place, ()))
        return [
            one
            for one in found
            if (one.store is store and one.path == path)
            or canonical_location(one.store, one.path) == place  # links may lead elsewhere by now
        ]

    def _forget_closed(self) -> None:
        for known in (self._new, self._at):
            for key, refs in list(known.items()):
                known[key] = [one for one in refs if one() is not None]
                if not known[key]:
                    del known[key]
        self._kept = self._count = sum(map(len, (*self._new.values(), *self._at.values())))


_FEW = 64


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _alive(refs: Iterable[ref[Handle]]) -> list[Handle]:
    return [handle for one in refs if (handle := one()) is not None]


def opened(handle: Handle) -> None:
    """Let a node follow changes of its metadata from now on."""
    _OPEN.add(handle)


def tell_handles(store: Store, path: str, meta: NodeMeta) -> None:
    """Tell all handles of a node its changed metadata."""
    for one in _OPEN.of(store, path):
        if isinstance(one.meta, ArrayMeta) == isinstance(meta, ArrayMeta):
            one.follow(meta)


def tell_growth(store: Store, path: str, meta: ArrayMeta) -> None:
    """Tell the handles of an array that a task in another process has made it longer."""
    for one in _OPEN.of(store, path):
        mine = one.meta
        if (
            isinstance(mine, ArrayMeta)
            and mine.grid.ndim == meta.grid.ndim
            and any(map(int.__gt__, meta.shape, mine.shape))
        ):
            one.follow(meta.with_shape(meta.grid, mine.attributes, mine.dimension_names))


_OPEN = _Handles()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_OPEN.forget)
