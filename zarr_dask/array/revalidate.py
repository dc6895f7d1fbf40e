"""The document that an array was opened with, which must still stand where something is missing.

A stored object that is absent has the fill value only as long as the array is there. So a reader
that finds one missing asks for the document once more, after it has found that: an array that was
deleted, a store that answers "not found" to everything and a process that does not see the file
system all look like arrays of fill values otherwise.

Attributes may change and arrays may grow meanwhile. What each process has seen of a document is
kept with what tells whether it is still the same, so that to ask again is a look at a file.
"""

from __future__ import annotations

import os
import platform
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from time import time_ns
from typing import NamedTuple

from zarr_dask._util.warnings import without_warnings
from zarr_dask.errors import JournalError, MetadataChangedError, NodeNotFoundError
from zarr_dask.formats.base import (
    ArrayMeta,
    Format,
    NodeMeta,
    ReadOptions,
    read_documents,
    where,
)
from zarr_dask.formats.consolidated import read_consolidated
from zarr_dask.formats.detect import FORMATS
from zarr_dask.grid.dimension import Dimension, Edges, Fixed
from zarr_dask.stores.base import Store, etag_of, is_remote
from zarr_dask.stores.open import local_path

__all__ = ["Confirmation", "Shown", "Standing", "continues", "is_since", "this_process"]


_TICKS_NS = 20_000_000
"""Times of files are those of a clock that is late by some milliseconds."""


class Shown(NamedTuple):
    """The document that says that an array is there."""

    by: str
    """Path of the node that has it: the array, or a group with consolidated metadata."""
    here: bool = True
    """True if this process has read it; False in one that the array has travelled to."""


@dataclass(frozen=True)
class Standing:
    """The document of an array, to be looked at again."""

    store: Store
    path: str
    node_format: Format
    meta: ArrayMeta
    options: ReadOptions
    shown: Shown

    def see(self) -> None:
        """Look at the document if this process never has, and the store is not far away.

        Far away there is one service for all processes, and `check` finds out what is missing.

        Raises
        ------
        NodeNotFoundError, MetadataChangedError
            As `check`.
        """
        if is_remote(self.store):
            return
        seen = _SEEN.get(self._place)
        # an array that does not continue what was seen may have been opened later, elsewhere
        if seen is None or not continues(self.meta, seen.meta):
            self.check()

    def check(self) -> None:
        """Look whether the document still stands; one small request.

        Raises
        ------
        NodeNotFoundError
            If there is none any more, or this process does not see it.
        MetadataChangedError
            If it says something else; attributes may differ, and the array may have grown.
        """
        place = self._place
        seen = _SEEN.get(place)
        # asked for before the document, which may be newer than it, but not older
        validator = None if is_remote(self.store) else etag_of(self.store, place.key)
        if seen is not None and validator is not None and seen.validator == validator:
            self._compare(seen.meta)
            return
        text = read_documents(self.store, [place.key], self.options.limits)[place.key]
        if text is None:
            self._check_consolidated()
            return
        if seen is not None and seen.text == text:
            present: NodeMeta | None = seen.meta
        else:
            others = dict.fromkeys(self.node_format.node_keys(self.path))
            found = {**others, place.key: text}
            with without_warnings():
                present = self.node_format.read(self.store, self.path, self.options, found=found)
        try:
            self._compare(present)
        except MetadataChangedError:
            if self._is_being_shown():
                return
            raise
        if isinstance(present, ArrayMeta):
            _SEEN.put(place, _SeenDocument(validator, text, present))

    def last_moves(self) -> tuple[int, ...]:
        """Return times at which the array, and each group around it, may have been moved or made.

        A move of a folder changes its times, and those of the one around it. New metadata of a node
        and of the group around it may have changed both, too. Nothing is returned if the store is
        not of local files.
        """
        try:
            found = [os.stat(folder) for folder in self._folders]  # noqa: PTH116
        except OSError:  # what has gone is found out by others
            return ()
        return tuple(
            [min(one.st_ctime_ns, above.st_mtime_ns) for one, above in pairwise(found)],
        )

    @cached_property
    def _folders(self) -> list[str]:
        """The folder of an array in local files, those of the groups around it, and the next."""
        found = local_path(self.store, self.path)
        folders = [] if found is None else [found]
        for _ in range(self.path.count("/") + 2 if folders else 0):
            folders.append(os.path.dirname(folders[-1]))  # noqa: PTH120
        return folders

    def is_gone(self) -> bool:
        """True if an array in local files had a document, and has none now."""
        return self._is_local_file and self.store.size(self._key) is None

    def check_objects_read(self) -> None:
        """Raise if an array in local files has got newer metadata with other keys of its objects.

        Raises
        ------
        MetadataChangedError
            If so; see `zarr_dask.formats.concurrent_edit.check_objects_read`.
        """
        if self._is_local_file and self.node_format != FORMATS[0]:
            from zarr_dask.formats.concurrent_edit import check_objects_read

            check_objects_read(self.store, self.path, self.node_format, self.meta)

    @cached_property
    def _is_local_file(self) -> bool:
        return self.shown.by == self.path and local_path(self.store, "") is not None

    @cached_property
    def _key(self) -> str:
        return self.node_format.node_keys(self.path)[0]

    @property
    def _place(self) -> _DocumentKey:
        return _DocumentKey(self.store.identity, self._key, self.options)

    def _check_consolidated(self) -> None:
        """As `check`, where the node has no document of its own."""
        recorded = None
        if self.shown.by != self.path:
            place = (self.store, self.shown.by, self.node_format, self.path)
            with without_warnings():
                recorded = read_consolidated(*place, self.options)
        if recorded is None:
            keys = self.node_format.node_keys(self.path)[:1]
            raise NodeNotFoundError(where(self.store, self.path), keys, _gone())
        self._compare(recorded.meta)
        self._check_not_removed(recorded.others)

    def _is_being_shown(self) -> bool:
        """Return True if its group is being replaced, and shows the array already.

        Its own document comes after that in an object store; see `zarr_dask.hierarchy.key_swap`.
        """
        if self.shown.by == self.path or not is_remote(self.store):
            return False
        from zarr_dask.journal.group_changes import VersionChange, change_at

        found: list[NodeMeta | None] = []
        with without_warnings(), suppress(JournalError):
            if isinstance(change_at(self.store, self.shown.by), VersionChange):
                place = (self.store, self.shown.by, self.node_format, self.path)
                recorded = read_consolidated(*place, self.options)
                found.append(None if recorded is None else recorded.meta)
        if not found:  # that may have ended since its document was read
            found.append(self.node_format.read(self.store, self.path, self.options, found={}))
        return isinstance(found[0], ArrayMeta) and continues(self.meta, found[0])

    def _check_not_removed(self, others: Sequence[str]) -> None:
        """Raise if the array was removed, which outdated consolidated metadata still name.

        Some hierarchies have no other metadata: `others` are keys of documents that nodes have in
        those that do.
        """
        from zarr_dask.journal import explain_incomplete

        keys = self.node_format.node_keys(self.path)[:1]
        absent = NodeNotFoundError(where(self.store, self.path), keys)
        folder = local_path(self.store, self._key.rpartition("/")[0])
        if folder is not None and not os.path.isdir(folder):  # noqa: PTH112  (as fast as it is)
            raise NodeNotFoundError(absent.where, keys, _outdated("there is not even a folder"))
        told = explain_incomplete(absent, self.store, self.path)
        if told is not absent:
            raise told
        found = read_documents(self.store, others, self.options.limits)
        if any(text is not None for text in found.values()) and not self._is_being_shown():
            hint = _outdated("others that they name have documents of their own, and it has none")
            raise NodeNotFoundError(absent.where, keys, hint)

    def _compare(self, present: NodeMeta | None) -> None:
        if not isinstance(present, ArrayMeta) or not continues(self.meta, present):
            raise MetadataChangedError(
                f"{where(self.store, self.path)} is not the array any more that was opened here: "
                f"its metadata have changed ({_words(self.meta)}; now {_words(present)}), as "
                f"{this_process()} sees it. Open it again."
            )


class Confirmation:
    """Looks at a document at most once, however many threads of a call miss something."""

    def __init__(self, standing: Standing | None) -> None:
        self._written = self._standing = standing
        self._lock = threading.Lock()
        self._begun = time_ns()

    def check_written(self, is_left: Callable[[], bool]) -> None:
        """Raise if the array was removed or moved before all objects had been put into it.

        Those that were put before have gone with it.

        Parameters
        ----------
        is_left
            Returns True if some object may not have gone; asked only if the array is not there.

        Raises
        ------
        NodeNotFoundError
            If so.
        MetadataChangedError
            If a migration gives its objects other keys.
        """
        self.check_not_migrated()
        array = self._written
        if array is not None and array.is_gone() and is_left():
            keys = array.node_format.node_keys(array.path)[:1]
            raise NodeNotFoundError(
                where(array.store, array.path),
                keys,
                "The array was deleted or moved while values were written to it, and some came too "
                "late. Open it at its new place, and write them again.",
            )

    def may_be_there(self) -> bool:
        """True if what was missing is to be looked for again: see `Standing.last_moves`."""
        return self._written is not None and is_since(self._written.last_moves(), self._begun)

    def check_not_migrated(self) -> None:
        """Raise `MetadataChangedError` if a migration gives objects that were put other keys."""
        if self._written is not None:
            self._written.check_objects_read()

    def __call__(self) -> None:
        """As `Standing.check`; an array without a document is not there yet."""
        with self._lock:
            if self._standing is not None:
                self._standing.check()
            self._standing = None


def _outdated(how: str) -> str:
    return (
        f"Consolidated metadata name it, but {how}: it was deleted or moved. "
        "zarr_dask.consolidate(url) brings them up to date."
    )


def is_since(times: Sequence[int], begun: int) -> bool:
    """True if one of the times of files is after one of `time.time_ns`, or about it."""
    return max(times, default=0) > begun - _TICKS_NS


def _gone() -> str:
    return (
        "The array was there when it was opened, so that what is missing now is no fill value: it "
        f"was deleted or moved, or {this_process()} does not see the store. Open it again, or "
        "give all workers the same file system."
    )


def this_process() -> str:
    """Return the number of the process that asks, and its host, for messages."""
    return f"process {os.getpid()} on {platform.node()}"


def _words(meta: NodeMeta | None) -> str:
    if not isinstance(meta, ArrayMeta):
        return "no array"
    codecs = ", ".join(codec.name for codec in meta.codecs.codecs)
    return f"shape {meta.shape}, {meta.data_type.label}, chunks {meta.grids}, codecs {codecs}"


# --- what may change ------------------------------------------------------------------------------


def continues(old: ArrayMeta, new: ArrayMeta) -> bool:
    """True if stored objects mean the same as before, and none of them has left the array."""
    return old is new or (
        len(old.grid.dimensions) == len(new.grid.dimensions)
        and all(map(_reaches, old.grid.dimensions, new.grid.dimensions))
        and old.is_stored_as(new)
    )


def _reaches(old: Dimension, new: Dimension) -> bool:
    """True if a dimension begins with the cells of another one, and is as long at least."""
    if new.extent < old.extent:
        return False
    if isinstance(old, Fixed) or isinstance(new, Fixed):
        return isinstance(old, Fixed) and isinstance(new, Fixed) and old.size == new.size
    return _begins_with(new, old)


def _begins_with(longer: Edges, shorter: Edges) -> bool:
    if not shorter.runs:
        return True
    last = len(shorter.runs) - 1
    size, count = shorter.runs[last]
    return (
        len(longer.runs) > last
        and longer.runs[:last] == shorter.runs[:last]
        and longer.runs[last][0] == size
        and longer.runs[last][1] >= count
    )


# --- what this process has seen -------------------------------------------------------------------


class _DocumentKey(NamedTuple):
    """The document, and how it is read."""

    store: str
    """Identity of the store."""
    key: str
    options: ReadOptions


class _SeenDocument(NamedTuple):
    """A document as it was."""

    validator: Hashable
    text: bytes
    meta: ArrayMeta


class _Documents:
    """The last documents that were seen; safe from many threads."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Keep nothing any more; in a new process nobody else holds the lock."""
        self._lock = threading.Lock()
        self._kept: OrderedDict[_DocumentKey, _SeenDocument] = OrderedDict()

    def get(self, place: _DocumentKey) -> _SeenDocument | None:
        """Return the part of a document that is kept."""
        with self._lock:
            return self._kept.get(place)

    def put(self, place: _DocumentKey, seen: _SeenDocument) -> None:
        """Keep a document if it is small; the oldest of too many goes."""
        with self._lock:
            self._kept.pop(place, None)
            if len(seen.text) <= _MOST_BYTES:
                self._kept[place] = seen
            if len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)


_MOST_KEPT = 256
_MOST_BYTES = 1 << 16
_SEEN = _Documents()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_SEEN.forget)
