"""What a rechunking has done, beside what its plan has said.

`Ledger` adds up what tasks return; `Measured` is what all reports have in common, whether of one
array, of several or of a dask array: for each stage what was predicted and what came out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from heapq import nlargest
from html import escape
from time import perf_counter
from typing import Any

from zarr_dask.jobs.plan import Costs, counted, format_bytes
from zarr_dask.jobs.rechunk.copying import Copied, Process
from zarr_dask.tree import printable

__all__ = [
    "ArrayReport",
    "Expected",
    "JointReport",
    "Ledger",
    "Measured",
    "Progress",
    "RechunkReport",
    "StageReport",
]

Table = tuple[str, list[tuple[str, str, str]]]
"""A title, and rows of a name, what was done, and what was predicted if anything was."""

_MOST_PROCESSES = 8
"""Whose memory is listed: those that have held most."""
_MOST_ARRAYS = 50
"""That are listed, the largest ones."""


@dataclass(frozen=True, slots=True)
class Progress:
    """One more task is done."""

    stage: int
    """Which stage, from 0."""
    stages: int
    """How many there are."""
    nbytes: int
    """Bytes of the array that the task has copied."""
    total: int
    """Bytes of the array."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What a stage is to do by the plan."""

    tasks: int
    costs: Costs
    seconds: float
    """How long it takes by the cost model."""


@dataclass(frozen=True, slots=True)
class StageReport:
    """What one stage was to do by the plan, and what it has done."""

    tasks: int
    """Tasks of the stage."""
    done: int
    """Those that this run has done; others were done before it."""
    predicted: Costs
    """Of all tasks."""
    actual: Costs
    """Of those that this run has done."""
    predicted_seconds: float
    """Of all tasks, by the cost model."""
    seconds: float
    """From the first task of the stage to the last."""
    retried: int = 0
    """Requests of these tasks that were tried again; `actual` does not count them."""

    def rows(self) -> list[tuple[str, str, str]]:
        """What is said of it: names, and what was done and predicted."""
        actual, predicted = self.actual, self.predicted
        return [
            ("tasks", f"{self.done:,}", f"{self.tasks:,}"),
            ("time", f"{self.seconds:.3g} s", f"{self.predicted_seconds:.3g} s"),
            ("decoded", format_bytes(actual.decoded), format_bytes(predicted.decoded)),
            ("encoded", format_bytes(actual.written), format_bytes(predicted.written)),
            ("read", format_bytes(actual.read), f"about {format_bytes(predicted.read)}"),
            ("stored", format_bytes(actual.stored), f"about {format_bytes(predicted.stored)}"),
            ("requests", f"{actual.requests:,}", f"{predicted.requests:,}"),
            ("requests tried again", f"{self.retried:,}", ""),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What the tasks of a job have done, beside what was predicted."""

    seconds: float
    stages: tuple[StageReport, ...] = ()
    """One after the other: predicted and actual costs and times."""
    bound: int = 0
    """Bytes that a process was to hold above its size when idle at most, by the plan."""
    peaks: Mapping[str, int] = field(default_factory=dict)
    """The most bytes above its size when idle that tasks have seen in each process, by host and
    number of the process; empty where the system does not say. Looked at after each box is read and
    with each large object that is encoded."""
    repeated: int = 0
    """Tasks that a cluster has begun once more, because a worker was lost."""
    retried_besides: int = 0
    """Requests that were tried again outside of stages: in the comparison, and where the job begins
    and ends."""

    @property
    def retried(self) -> int:
        """Requests that were tried again because a store was busy, slow or cut off.

        What a library tries again by itself is not known, nor what tasks have that failed.
        """
        return self.retried_besides + sum(stage.retried for stage in self.stages)

    @property
    def tasks(self) -> int:
        """Tasks that this run has done."""
        return sum(stage.done for stage in self.stages)

    @property
    def peak(self) -> int:
        """The highest of `peaks`; 0 if there are none."""
        return max(self.peaks.values(), default=0)

    def names(self) -> list[str]:
        """Of the stages."""
        return [
            f"stage {number} of {len(self.stages)}" for number in range(1, 1 + len(self.stages))
        ]

    def explain(self) -> str:
        """All of it, what was done and what was predicted side by side."""
        lines = [str(self)]
        for title, rows in self._tables():
            lines.append(f"{title}:")
            widths = [max(len(row[column]) for row in rows) for column in range(2)]
            for name, done, predicted in rows:
                said = f"  (predicted {predicted})" if predicted else ""
                lines.append(f"  {name:<{widths[0]}}  {done:>{widths[1]}}{said}")
        return "\n".join(lines)

    def _tables(self) -> Iterator[Table]:
        for name, stage in zip(self.names(), self.stages, strict=True):
            yield name, stage.rows()
        if self.bound:
            most = nlargest(_MOST_PROCESSES, self.peaks.items(), key=lambda item: item[1])
            rows = [(name, format_bytes(nbytes), "") for name, nbytes in most]
            of = f", of {len(self.peaks)} processes" if len(self.peaks) > len(most) else ""
            title = f"memory above idle, {format_bytes(self.bound)} at most by the plan{of}"
            yield title, rows or [("not known", "", "")]
        yield (
            "retries",
            [
                ("tasks begun once more", f"{self.repeated:,}", ""),
                ("requests tried again", f"{self.retried:,}", ""),
            ],
        )
        yield from self.further_tables()

    def further_tables(self) -> Iterator[Table]:
        """What else there is to say: titles, and rows as the others have."""
        return iter(())

    def _repr_html_(self) -> str:
        head = "<tr><th></th><th>done</th><th>predicted</th></tr>"
        body = "".join(
            f"<tr><th colspan='3'>{escape(title)}</th></tr>"
            + "".join(
                "<tr>" + "".join(f"<td>{escape(printable(cell))}</td>" for cell in row) + "</tr>"
                for row in rows
            )
            for title, rows in self._tables()
        )
        title = escape(printable(str(self)))
        return f"<table><caption>{title}</caption>{head}{body}</table>"

    def to_json(self) -> dict[str, Any]:
        """All of it as values that JSON knows."""
        return {
            "seconds": self.seconds,
            "tasks": self.tasks,
            "repeated": self.repeated,
            "retried": self.retried,
            "memory": {"bound": self.bound, "peak": self.peak, "peaks": dict(self.peaks)},
            "stages": [
                {"name": name, **asdict(stage)}
                for name, stage in zip(self.names(), self.stages, strict=True)
            ],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RechunkReport(Measured):
    """What a rechunking has done."""

    nbytes: int
    """Decoded bytes of the array."""
    stored: int
    """Encoded bytes of the target."""
    objects: int
    """Stored objects of the target."""

    def __str__(self) -> str:
        return (
            f"{format_bytes(self.nbytes)} in {self.objects} stored objects "
            f"({format_bytes(self.stored)}) by {self.tasks} tasks in {self.seconds:.1f} s "
            f"({rate(self.nbytes, self.seconds)})"
        )

    def to_json(self) -> dict[str, Any]:
        """All of it as values that JSON knows."""
        of_array = {"nbytes": self.nbytes, "stored": self.stored, "objects": self.objects}
        return {**of_array, **Measured.to_json(self)}


@dataclass(frozen=True, slots=True)
class ArrayReport:
    """What was done for one array among others."""

    target: str
    """Store and path."""
    nbytes: int
    """Decoded bytes."""
    stored: int
    """Encoded bytes of the target."""
    tasks: int
    """That this run has done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JointReport(Measured):
    """What a job of several arrays has done; each stage is one of all arrays that have so many."""

    arrays: tuple[ArrayReport, ...]

    @property
    def nbytes(self) -> int:
        """Decoded bytes of all arrays."""
        return sum(one.nbytes for one in self.arrays)

    @property
    def stored(self) -> int:
        """Encoded bytes of all targets."""
        return sum(one.stored for one in self.arrays)

    def __str__(self) -> str:
        return (
            f"{counted(len(self.arrays), 'array')}, {format_bytes(self.nbytes)} "
            f"({format_bytes(self.stored)} stored) by {counted(self.tasks, 'task')} in "
            f"{self.seconds:.1f} s ({rate(self.nbytes, self.seconds)})"
        )

    def further_tables(self) -> Iterator[Table]:
        """The arrays one by one, the largest first."""
        most = nlargest(_MOST_ARRAYS, self.arrays, key=lambda one: one.nbytes)
        rows = [
            (
                one.target,
                f"{format_bytes(one.nbytes)}, {format_bytes(one.stored)} stored, "
                f"{counted(one.tasks, 'task')}",
                "",
            )
            for one in most
        ]
        if rows:
            of = f", the largest of {len(self.arrays)}" if len(self.arrays) > len(most) else ""
            yield f"arrays{of}", rows

    def to_json(self) -> dict[str, Any]:
        """All of it as values that JSON knows."""
        arrays = [asdict(one) for one in self.arrays]
        totals = {"nbytes": self.nbytes, "stored": self.stored}
        return {**totals, **Measured.to_json(self), "arrays": arrays}


def rate(nbytes: int, seconds: float) -> str:
    """Bytes per second for people."""
    return f"{format_bytes(nbytes / seconds)}/s" if seconds else "-/s"


class Ledger:
    """What the tasks of a job have done so far.

    Parameters
    ----------
    stages
        How many stages there are.
    """

    def __init__(self, stages: int) -> None:
        self._costs = [Costs()] * stages
        self._done = [0] * stages
        self._first: list[float | None] = [None] * stages
        self._last = [0.0] * stages
        self._peaks: dict[str, int] = {}
        self._tasks: Counter[int] = Counter()
        self._stored: Counter[tuple[int, int]] = Counter()
        self._retried = [0] * stages
        self.begun = 0
        """Tasks that a cluster has begun."""
        self.retried_comparing = 0
        """Requests of the comparison that were tried again."""

    def begin(self, _: object = None) -> None:
        """A worker has begun a task."""
        self.begun += 1

    def note(self, array: int, stage: int, one: Copied) -> None:
        """A task is done, of the array with a number."""
        now = perf_counter()
        if self._first[stage] is None:
            self._first[stage] = now - one.seconds
        self._last[stage] = now
        self._done[stage] += 1
        self._costs[stage] += Costs(
            one.decoded, one.encoded, one.reads, one.objects, one.read, one.stored
        )
        self._retried[stage] += one.retried
        self._tasks[array] += 1
        self._stored[array, stage] += one.stored
        self._note_memory(one.process)

    def _note_memory(self, process: Process) -> None:
        if process.peak:
            above = process.peak - process.idle
            self._peaks[process.name] = max(above, self._peaks.get(process.name, 0))

    @property
    def repeated(self) -> int:
        """Tasks that were begun once more."""
        return max(self.begun - sum(self._done), 0)

    @property
    def peaks(self) -> dict[str, int]:
        """See `Measured.peaks`."""
        return dict(self._peaks)

    def tasks_of(self, array: int) -> int:
        """Tasks of an array that are done, of all stages."""
        return self._tasks[array]

    def stored_of(self, array: int, stage: int) -> int:
        """Encoded bytes that the tasks of a stage of an array have written."""
        return self._stored[array, stage]

    def stages(self, expected: Sequence[Expected]) -> tuple[StageReport, ...]:
        """What has become of each stage, beside what was expected of it."""
        return tuple(
            StageReport(
                stage.tasks,
                self._done[number],
                stage.costs,
                self._costs[number],
                stage.seconds,
                0.0 if (first := self._first[number]) is None else self._last[number] - first,
                self._retried[number],
            )
            for number, stage in enumerate(expected)
        )
