"""What each rank of a simulation has stored: receipts, added up.

A rank says what it has stored in a file of its own, one record after the other:

``{"array", "index", "steps": [a, b], "objects": [[coords, bytes, crc32c], ...]}``
    It has written its stored objects at `index` along the steps; they hold the steps from a up to,
    without, b. Written again when an object gets more steps.
``{"rewind": n, "from_step": k}``
    It has taken part in the n-th rewind: what it stored of the steps from k on holds no more.
``{"stored": {array: n}, "rewind": n}``
    The sum of all records before, where a long file was shortened.

A rewind is known from the file ``rewinds`` (the second kind of record, with the ``run`` that began
so, where it has a name). For a rank that has not taken part yet, what it stored of the steps after
it does not count either: so a restart from a checkpoint can never mix with steps of the run before
it. Two restarts from one step are told apart by their names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from zarr_dask.jobs.simulation.output import Output
from zarr_dask.jobs.simulation.progress_files import REWINDS, Folder, Record

__all__ = ["Progress", "Rewinds", "StoredObjects", "Survey", "shortened"]

_KEPT = 8
"""Receipts of each array that are kept when a file is shortened."""


class StoredObjects(NamedTuple):
    """The stored objects of a rank at one index along the steps."""

    start: int
    stop: int
    """They hold the steps from `start` up to, without, this one."""
    objects: tuple[tuple[tuple[int, ...], int, int], ...]
    """Coordinates in a step, bytes (0: fill values only, not stored) and CRC-32C."""

    def record(self, array: str, index: int) -> Record:
        """As it stands in the file of a rank."""
        steps = [self.start, self.stop]
        return {"array": array, "index": index, "steps": steps, "objects": self.objects}


@dataclass
class Progress:
    """What one rank has stored."""

    rewind: int = 0
    """The last rewind that it has taken part in."""
    stored: dict[str, int] = field(default_factory=dict)
    """Steps of each array; all before them are stored, too."""
    receipts: dict[str, dict[int, StoredObjects]] = field(default_factory=dict)
    """By array and by index along the steps."""

    def add(self, records: Iterable[Record]) -> Progress:
        """Take in what the rank says."""
        for record in records:
            if "array" in record:
                self._add_objects(record)
            elif "from_step" in record:
                self.go_back(int(record["rewind"]), int(record["from_step"]))
            else:
                self.rewind = int(record["rewind"])
                self.stored = {str(name): int(n) for name, n in record["stored"].items()}
                self.receipts = {}
        return self

    def _add_objects(self, record: Mapping[str, Any]) -> None:
        start, stop = map(int, record["steps"])
        objects = tuple(
            (tuple(map(int, coords)), int(nbytes), int(crc))
            for coords, nbytes, crc in record["objects"]
        )
        name = str(record["array"])
        self.receipts.setdefault(name, {})[int(record["index"])] = StoredObjects(
            start, stop, objects
        )
        self.stored[name] = max(stop, self.stored.get(name, 0))

    def go_back(self, number: int, step: int) -> None:
        """Forget what was stored of a step and those after it."""
        self.rewind = number
        for name in self.stored:
            self.stored[name] = min(self.stored[name], step)
        for found in self.receipts.values():
            for index in [index for index, one in found.items() if one.start >= step]:
                del found[index]


def shortened(records: Sequence[Record]) -> list[Record]:
    """Few records that say the same, but for receipts of steps long past."""
    progress = Progress().add(records)
    summary: Record = {"stored": progress.stored, "rewind": progress.rewind}
    return [
        summary,
        *(
            found[index].record(name, index)
            for name, found in progress.receipts.items()
            for index in sorted(found)[-_KEPT:]
        ),
    ]


class Rewinds:
    """The rewinds of an output, in order: from which step it began anew, and in which run."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.steps = [int(record["from_step"]) for record in records]
        self.runs = [record.get("run") for record in records]

    @property
    def last(self) -> int:
        """Number of the last one; 0 if there was none."""
        return len(self.steps)

    def limit(self, progress: Progress) -> int | None:
        """The step from which on nothing counts that a rank says, if there is one.

        That of the rewinds that it has not taken part in.
        """
        return min(self.steps[progress.rewind :], default=None)


class Survey:
    """The progress of all ranks, read again and again by one process.

    Parameters
    ----------
    output
        Of which.
    """

    def __init__(self, output: Output) -> None:
        self._folder = Folder(output.folder.store, output.folder.prefix)  # remembers what was read
        self._names = {output.rank_file(rank): rank for rank in range(output.ranks)}
        self._rewinds = Rewinds([])
        self._ranks: dict[int, Progress] = {}

    def update(self) -> None:
        """Read what ranks have said since."""
        self._rewinds = Rewinds(self._folder.records(REWINDS))
        for name, records, anew in self._folder.news(list(self._names)):
            rank = self._names[name]
            if anew or rank not in self._ranks:
                self._ranks[rank] = Progress()
            self._ranks[rank].add(records)

    def stored(self, rank: int, array: str) -> int:
        """Steps of an array that a rank has stored."""
        progress = self._ranks.get(rank)
        if progress is None:
            return 0
        limit = self._rewinds.limit(progress)
        steps = progress.stored.get(array, 0)
        return steps if limit is None else min(steps, limit)

    def receipt(self, rank: int, array: str, index: int) -> StoredObjects | None:
        """What a rank says of its objects at an index along the steps, if that is still known."""
        progress = self._ranks.get(rank)
        return None if progress is None else progress.receipts.get(array, {}).get(index)

    def receipts(self) -> Iterator[tuple[str, int, StoredObjects]]:
        """All that ranks say of their objects, as far as it is still known.

        Yields
        ------
        array, index, receipt
            The index is that along the steps.
        """
        for progress in self._ranks.values():
            for name, found in progress.receipts.items():
                for index, one in found.items():
                    yield name, index, one

    def forget(self, steps: int) -> None:
        """Drop the receipts of steps before these, which have been looked at."""
        for progress in self._ranks.values():
            for found in progress.receipts.values():
                for index in [index for index, one in found.items() if one.stop <= steps]:
                    del found[index]
