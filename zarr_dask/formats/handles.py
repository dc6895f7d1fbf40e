"""The open nodes of this process, which follow changes of their metadata.

Every change of a node's metadata that this process makes (`zarr_dask.formats.concurrent_edit`) is
told to all its handles: after ``a.append(...)``, ``a`` and any other handle of that array have the
new shape. Plans, views and tasks hold arrays of their own, which stay as they were.
"""

from __future__ import annotations

import os
import threading
from typing import Any, Protocol
from weakref import WeakSet

from zarr_dask.formats.base import ArrayMeta, NodeMeta
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
    """Handles of this process, without keeping any of them alive; safe from many threads."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Keep nothing any more; in a new process nobody else holds the lock."""
        self._lock = threading.Lock()
        self._open: WeakSet[Handle] = WeakSet()

    def add(self, handle: Handle) -> None:
        with self._lock:
            self._open.add(handle)

    def all(self) -> list[Handle]:
        with self._lock:
            return list(self._open)


def opened(handle: Handle) -> None:
    """Let a node follow changes of its metadata from now on."""
    _OPEN.add(handle)


def tell_handles(store: Store, path: str, meta: NodeMeta) -> None:
    """Tell all handles of a node its changed metadata."""
    name = path.rpartition("/")[2]
    found = [one for one in _OPEN.all() if _may_be(one, name, meta)]
    if not found:
        return
    place = None
    for one in found:
        if one.store is not store or one.path != path:
            place = place or canonical_location(store, path)
            if canonical_location(one.store, one.path) != place:
                continue
        one.follow(meta)


def tell_growth(store: Store, path: str, meta: ArrayMeta) -> None:
    """Tell the handles of an array that a task in another process has made it longer."""
    for one in _OPEN.all():
        mine = one.meta
        if (
            _may_be(one, path.rpartition("/")[2], meta)
            and mine.grid.ndim == meta.grid.ndim
            and any(map(int.__gt__, meta.shape, mine.shape))
            and canonical_location(one.store, one.path) == canonical_location(store, path)
        ):
            one.follow(meta.with_shape(meta.grid, mine.attributes, mine.dimension_names))


def _may_be(handle: Handle, name: str, meta: NodeMeta) -> bool:
    """True if a handle may be of a node; the names of one in the root of a store are not known."""
    other = handle.path.rpartition("/")[2]
    same_name = other == name or not other or not name
    return same_name and isinstance(handle.meta, ArrayMeta) == isinstance(meta, ArrayMeta)


_OPEN = _Handles()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_OPEN.forget)
