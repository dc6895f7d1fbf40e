"""Progress of each rank of a simulation: receipts, added up.

A rank records its progress in a file of its own, one record after the other:

``{"array", "index", "steps": [a, b], "objects": [[coords, bytes, crc32c], ...]}``
    The rank has written its stored objects at `index` along the steps; they hold the steps from a
    up to, but not including, b. The record is repeated when an object gets more steps.
``{"rewind": n, "from_step": k}``
    The rank has taken part in the n-th rewind: its stored steps from k on are no longer valid.
``{"stored": {array: n}, "rewind": n}``
    The sum of all earlier records, after a long file was shortened.

Rewinds are in the file ``rewinds`` (the second kind of record, with the ``run`` that caused it, if
it has a name). For a rank that has not taken part in a rewind yet, its stored steps after it do not
count either. So a restart from a checkpoint never mixes with steps of the previous run. Names
distinguish two restarts from the same step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from zarr_dask.jobs.simulation.output import Output
from zarr_dask.jobs.simulation.rank_log import LogFolder, Record

__all__ = ["OutputProgress", "RankProgress", "RestartHistory", "StoredObjects", "compact_log"]

_KEPT = 8
"""Number of receipts of each array that are kept when a file is shortened."""


class StoredObjects(NamedTuple):
    """The stored objects of a rank at one index along the steps."""

    start: int
    stop: int
    """The objects hold the steps from `start` up to, but not including, this one."""
    objects: tuple[tuple[tuple[int, ...], int, int], ...]
    """Coordinates in a step, bytes (0 for fill values only, not stored) and CRC-32C."""

    def record(self, array: str, index: int) -> Record:
        """Return the record for the file of a rank."""
        steps = [self.start, self.stop]
        return {"array": array, "index": index, "steps": steps, "objects": self.objects}


@dataclass
class RankProgress:
    """Progress of one rank."""

    rewind: int = 0
    """Number of the last rewind that it has taken part in."""
    stored: dict[str, int] = field(default_factory=dict)
    """Number of steps of each array that are stored without a gap."""
    receipts: dict[str, dict[int, StoredObjects]] = field(default_factory=dict)
    """Receipts by array and by index along the steps."""

    def add(self, records: Iterable[Record]) -> RankProgress:
        """Apply records of the rank."""
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
        """Discard a step and all later ones."""
        self.rewind = number
        for name in self.stored:
            self.stored[name] = min(self.stored[name], step)
        for found in self.receipts.values():
            for index in [index for index, one in found.items() if one.start >= step]:
                del found[index]


def compact_log(records: Sequence[Record]) -> list[Record]:
    """Return few records with the same content, except receipts of steps long past."""
    progress = RankProgress().add(records)
    summary: Record = {"stored": progress.stored, "rewind": progress.rewind}
    return [
        summary,
        *(
            found[index].record(name, index)
            for name, found in progress.receipts.items()
            for index in sorted(found)[-_KEPT:]
        ),
    ]


class RestartHistory:
    """The rewinds of an output, in order: the first step and the run of each."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.steps = [int(record["from_step"]) for record in records]
        self.runs = [record.get("run") for record in records]

    @property
    def last(self) -> int:
        """Number of the last rewind; 0 if there was none."""
        return len(self.steps)

    def limit(self, progress: RankProgress) -> int | None:
        """Return the step from which a rank's receipts do not count; None if all count.

        It comes from the rewinds that the rank has not taken part in.
        """
        return min(self.steps[progress.rewind :], default=None)


class OutputProgress:
    """Progress of all ranks, updated repeatedly by one process.

    Parameters
    ----------
    output
        Output of the ranks.
    """

    def __init__(self, output: Output) -> None:
        self._folder = LogFolder(output.folder.store, output.folder.prefix)  # own read positions
        self._names = {output.rank_file(rank): rank for rank in range(output.ranks)}
        self._rewinds = RestartHistory([])
        self._ranks: dict[int, RankProgress] = {}

    def update(self) -> None:
        """Read the new records of all ranks."""
        self._rewinds = RestartHistory(self._folder.restarts())
        for name, records, anew in self._folder.news(list(self._names)):
            rank = self._names[name]
            if anew or rank not in self._ranks:
                self._ranks[rank] = RankProgress()
            self._ranks[rank].add(records)

    def stored(self, rank: int, array: str) -> int:
        """Return the number of steps of an array that a rank has stored."""
        progress = self._ranks.get(rank)
        if progress is None:
            return 0
        limit = self._rewinds.limit(progress)
        steps = progress.stored.get(array, 0)
        return steps if limit is None else min(steps, limit)

    def receipt(self, rank: int, array: str, index: int) -> StoredObjects | None:
        """Return the receipt of a rank for an index along the steps; None if it was dropped."""
        progress = self._ranks.get(rank)
        return None if progress is None else progress.receipts.get(array, {}).get(index)

    def receipts(self) -> Iterator[tuple[str, int, StoredObjects]]:
        """Yield all receipts of the ranks that are still known.

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
        """Drop the receipts of steps before this number, which have been checked."""
        for progress in self._ranks.values():
            for found in progress.receipts.values():
                for index in [index for index, one in found.items() if one.stop <= steps]:
                    del found[index]
