"""Changes of several documents of a group, which become visible one after the other.

A record beside the hierarchy says what they are::

    run.zarr.zarr-dask/ocean/__append/commit.json

It stands from the moment when all values are stored until all documents are put. If the process
dies in between, others know what is left to do.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from zarr_dask.errors import JobRunningError, JournalError, StoreError
from zarr_dask.formats.base import prefix_of, where
from zarr_dask.journal.journal import remove_empty_folders
from zarr_dask.journal.location import JournalLocation, default_place
from zarr_dask.stores.base import Store, is_remote, join

__all__ = [
    "CHANGE",
    "LengthChange",
    "VersionChange",
    "change_at",
    "changing_below",
    "check_not_changing",
    "leave_changes",
]

_LENGTHS, _VERSION = "zarr-dask commit 1", "zarr-dask swap 1"
CHANGE = "__append/commit.json"
"""Name of the record beside a group."""
_LARGEST = 1 << 63


@dataclass(frozen=True)
class _Recorded(ABC):
    """A change, and the store beside the hierarchy that has its record."""

    store: Store
    prefix: str

    @abstractmethod
    def to_json(self) -> Mapping[str, Any]:
        """Return the record."""

    def put(self) -> None:
        """Record that the change begins."""
        self.store.set(f"{self.prefix}{CHANGE}", [json.dumps(self.to_json()).encode()])

    def remove(self) -> None:
        """Remove the record, because the change has ended."""
        key = f"{self.prefix}{CHANGE}"
        self.store.delete(key)
        remove_empty_folders(self.store, key.rpartition("/")[0] + "/")


@dataclass(frozen=True)
class LengthChange(_Recorded):
    """Lengths that are being changed together."""

    lengths: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]
    """Shapes before and after, by path of the array below the group."""

    def to_json(self) -> Mapping[str, Any]:
        """See `_Recorded`."""
        return {"format": _LENGTHS, "arrays": self.lengths}


@dataclass(frozen=True)
class VersionChange(_Recorded):
    """A group in an object store that is being replaced; see `zarr_dask.hierarchy.key_swap`."""

    documents: Mapping[str, str]
    """Documents of the new nodes, by path below the group."""
    gone: Sequence[str] = ()
    """Paths below the group of old nodes that are none of the new ones."""

    def to_json(self) -> Mapping[str, Any]:
        """See `_Recorded`."""
        return {"format": _VERSION, "documents": self.documents, "gone": self.gone}


def change_at(store: Store, path: str) -> LengthChange | VersionChange | None:
    """Return the change of a group that has not ended; None if there is none.

    Raises
    ------
    JournalError
        If something else is there.
    """
    place = default_place(store, path)
    return None if place is None else _change_in(place)


def _change_in(place: JournalLocation) -> LengthChange | VersionChange | None:
    try:
        text = place.store.get(f"{place.prefix}{CHANGE}")
    except StoreError:
        return None  # what lies beside may not be ours to read
    if text is None:
        return None
    try:
        return _parsed(place, json.loads(bytes(text)))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        what = "a swap" if _VERSION.encode() in bytes(text) else "an append"
        raise JournalError(
            f"{place.url}{CHANGE} is not what {what} leaves there while it ends ({error}); look at "
            "the arrays of the group, and remove it."
        ) from error


def changing_below(store: Store, path: str) -> list[str]:
    """Return paths of groups, a node itself and those below, whose changes have not ended."""
    place = default_place(store, path)
    if place is None:
        return []
    try:
        keys = [key for key in place.store.list(place.prefix) if key.endswith(CHANGE)]
    except StoreError:
        return []  # what lies beside may not be ours to read
    below = (key.removeprefix(place.prefix).removesuffix(CHANGE) for key in keys)
    return [join(path, one.rstrip("/")) for one in below]


def check_not_changing(store: Store, path: str) -> None:
    """Raise if a group in an object store is shown in part, so that it cannot be moved.

    Raises
    ------
    JobRunningError
        If it is being replaced, or the job that did so was killed.
    """
    if is_remote(store) and isinstance(change_at(store, path), VersionChange):
        raise JobRunningError(
            f"{where(store, path)} is being replaced by a job with mode='swap', or that was killed "
            "at its end; nothing was changed. Wait until it has ended, or repeat its call, or let "
            "zarr_dask.verify(url, sweep=True) end what is left of it."
        )


def leave_changes(store: Store, path: str) -> None:
    """Take arrays at and below a node, which goes or is replaced, out of changes of groups above.

    Those are appends that died while they became visible. What takes the place of such an array is
    not made longer by them.
    """
    place = default_place(store, path)
    if place is None:
        return
    folders = place.prefix.rstrip("/").split("/")
    for depth in range(1, len(folders)):
        record = None
        with suppress(JournalError):  # it names nothing
            record = _change_in(replace(place, prefix=prefix_of("/".join(folders[:depth]))))
        if not isinstance(record, LengthChange):
            continue
        name = "/".join(folders[depth:])
        left = {
            one: pair
            for one, pair in record.lengths.items()
            if not f"{one}/".startswith(f"{name}/")
        }
        if not left:
            record.remove()
        elif left != record.lengths:
            replace(record, lengths=left).put()


def _parsed(place: JournalLocation, document: Any) -> LengthChange | VersionChange:
    if document["format"] == _VERSION:
        documents, gone = document["documents"], document["gone"]
        if not all(isinstance(one, str) for one in (*documents, *documents.values(), *gone)):
            raise TypeError("documents and paths are no texts")
        return VersionChange(place.store, place.prefix, dict(documents), tuple(gone))
    if document["format"] != _LENGTHS:
        raise KeyError("format")
    arrays = document["arrays"]
    lengths = {name: _shapes(before, after) for name, (before, after) in arrays.items()}
    return LengthChange(place.store, place.prefix, lengths)


def _shapes(before: Any, after: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of an array that becomes longer.

    Raises
    ------
    ValueError, TypeError
        If they are none.
    """
    if not all(type(n) is int for n in (*before, *after)):
        raise ValueError(f"{before!r:.80} and {after!r:.80} are no shapes")
    if not all(0 <= old <= new < _LARGEST for old, new in zip(before, after, strict=True)):
        raise ValueError(f"{before!r:.80} does not grow to {after!r:.80}")
    return tuple(before), tuple(after)
