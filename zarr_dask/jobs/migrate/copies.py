"""Copies of stored objects under the keys of another format, kept equal to what they were made of.

Whoever has opened the old metadata may write old objects until the new metadata are shown. So the
old objects are listed with their tags before they are copied, and once more before the new
metadata are shown, and after that: those whose tag has changed are copied again. What readers of
the new metadata may have written by then is never replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from math import prod
from threading import Lock
from typing import NamedTuple

from zarr_dask.codecs.checksum import crc32c
from zarr_dask.errors import MetadataChangedError, StoreError
from zarr_dask.formats.base import ArrayMeta, where
from zarr_dask.jobs.engine.thread_map import each_abreast, transfers_for
from zarr_dask.jobs.migrate.nodes import KeyMove, MigrationOptions, NodePlan, tagged_moves
from zarr_dask.stores.base import Buffer, list_sizes
from zarr_dask.stores.compare_and_swap import cas_store_or_none

__all__ = ["CopiedObjects", "Tally", "at_a_time"]

_BYTES_AT_A_TIME = 1 << 27
"""Of stored objects that are copied at a time."""
_ROUNDS = 100
"""Maximum number of listings. Each one that shows a change means that another process writes."""


class Tally:
    """Stored objects and bytes, counted by several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.objects = 0
        self.nbytes = 0

    def add(self, nbytes: int) -> None:
        """Count one object."""
        with self._lock:
            self.objects += 1
            self.nbytes += nbytes


def at_a_time(route: MigrationOptions, node: NodePlan) -> int:
    """Return the number of objects to copy at a time: few if they are large."""
    most = transfers_for(route.source)
    if most == 1 or not isinstance(node.before, ArrayMeta):
        return most
    largest = prod(node.before.grid.largest_cell) * node.before.data_type.typical_itemsize
    return max(min(most, _BYTES_AT_A_TIME // max(largest, 1)), 2)


class _Copy(NamedTuple):
    """A copy, by what it was made of."""

    tag: Hashable
    """Tag of the old object in the listing before it was copied; None if there are no tags."""
    content: tuple[int, int]
    """Number of bytes and CRC-32C."""


class CopiedObjects:
    """The copies of the stored objects of one node.

    Parameters
    ----------
    route, node
        The migration and the node.
    count
        Called with the number of bytes of each old object that is copied for the first time.
    """

    def __init__(
        self, route: MigrationOptions, node: NodePlan, count: Callable[[int], None]
    ) -> None:
        self._route, self._node, self._count = route, node, count
        self._copies: dict[KeyMove, _Copy] = {}
        self._written_twice: list[KeyMove] = []
        """Old objects that were written, as were their copies; the others are copied first."""

    def catch_up(self, *, shown: bool) -> None:
        """Copy what has changed since it was copied, until a listing shows no change.

        Parameters
        ----------
        shown
            True if the new metadata may have been seen, so that objects may have been written by
            those who read them.

        Raises
        ------
        MetadataChangedError
            If old and new objects were written, or the old ones do not stop to change.
        StoreError
            If the store fails, or has something else than what was put.
        """
        for _ in range(_ROUNDS):
            if not self.copy_changed(shown=shown):
                if self._written_twice:
                    raise self._conflict(self._written_twice[0])
                return
        raise MetadataChangedError(
            f"{where(self._route.source, self._node.path)} is being written again and again while "
            "its stored objects get other keys. Stop that and run the migration again."
        )

    def are_there(self) -> bool:
        """True if all copies are listed, as long as what they were made of.

        They are not if the node was replaced by another one, which may have the same metadata.
        """
        target = self._route.target
        listed = dict(
            list_sizes(target, self._route.target_format.data_prefix(self._node.path))
            if self._copies
            else ()
        )
        return all(listed.get(move.new) == copy.content[0] for move, copy in self._copies.items())

    def copy_changed(self, *, shown: bool) -> bool:
        """List once and copy what has changed; return True if something has.

        Raises
        ------
        MetadataChangedError, StoreError
            As `catch_up`; also if an object in another store goes while it is copied.
        """
        changed = Tally()
        left = dict(self._copies)

        def copy(listed: tuple[KeyMove, Hashable]) -> None:
            move, tag = listed
            known = left.pop(move, None)
            if known is not None and tag is not None and tag == known.tag:
                return
            if self._copy(move, tag, known, shown=shown):
                changed.add(0)

        each_abreast(
            copy, tagged_moves(self._route, self._node), at_a_time(self._route, self._node)
        )
        for move, known in left.items():
            self._remove(move, known, shown=shown)
        return bool(changed.objects or left)

    def _copy(self, move: KeyMove, tag: Hashable, known: _Copy | None, *, shown: bool) -> bool:
        """Copy and verify one object unless it is copied; return False if it had not changed."""
        source, target = self._route.source, self._route.target
        value = source.get(move.old)
        if value is None:
            if self._route.in_place:
                return True  # the next listing does not have it
            raise MetadataChangedError(
                f"{where(source, move.old)} has gone while it was copied: something else changes "
                "the hierarchy. Stop it and run the migration again."
            )
        content = _content(value)
        if known is None or content != known.content:
            if target.size(move.new) != len(value) or target.get(move.new) != value:
                self._put(move, value, known, shown=shown)
            if known is None:
                self._count(len(value))
        is_new = known is None or content != known.content
        self._copies[move] = _Copy(tag, content)
        return is_new

    def _put(self, move: KeyMove, value: Buffer, known: _Copy | None, *, shown: bool) -> None:
        target = self._route.target
        conditional = cas_store_or_none(target, move.new) if shown else None
        if conditional is not None:
            there, tag = conditional.get_tagged(move.new)
            if not _is_made(there, known) or not conditional.set_if(move.new, [value], tag):
                self._written_twice.append(move)
            return
        if shown and not _is_made(target.get(move.new), known):
            self._written_twice.append(move)
            return
        target.set(move.new, [value])
        if not shown and target.get(move.new) != value:
            raise StoreError(
                f"{where(target, move.new)} does not hold what was just written to it: the "
                "store is not to be trusted. The old keys and documents are untouched."
            )

    def _remove(self, move: KeyMove, known: _Copy, *, shown: bool) -> None:
        """Remove the copy of an object that is no longer there."""
        target = self._route.target
        there = target.get(move.new)
        if there is not None:
            if shown and not _is_made(there, known):
                self._written_twice.append(move)
            else:
                target.delete(move.new)
        del self._copies[move]

    def _conflict(self, move: KeyMove) -> MetadataChangedError:
        source, target = self._route.source, self._route.target
        return MetadataChangedError(
            f"{where(source, move.old)} was written while it got another key, and its copy "
            f"{move.new!r} in {target.url} by a reader of the new metadata: none of them has all "
            "values. Both were kept. Write their values once more through the new metadata."
        )


def _content(value: Buffer) -> tuple[int, int]:
    return memoryview(value).nbytes, crc32c(value)


def _is_made(value: Buffer | None, known: _Copy | None) -> bool:
    """True if a value is the copy that was made; nothing if there was none."""
    if value is None:
        return known is None
    return known is not None and _content(value) == known.content
