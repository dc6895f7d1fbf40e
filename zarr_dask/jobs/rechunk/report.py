"""What a rechunking has done, beside what its plan has said.

`Ledger` adds up what tasks return, `RechunkReport` is what is left of it at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from time import perf_counter

from zarr_dask.jobs.plan import Costs, format_bytes
from zarr_dask.jobs.rechunk.copying import Copied, Process

__all__ = ["Ledger", "Progress", "RechunkReport", "StageReport"]


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


@dataclass(frozen=True, slots=True)
class RechunkReport:
    """What a rechunking has done."""

    nbytes: int
    """Decoded bytes of the array."""
    stored: int
    """Encoded bytes of the target."""
    objects: int
    """Stored objects of the target."""
    tasks: int
    """Tasks that this run has done."""
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

    @property
    def peak(self) -> int:
        """The highest of `peaks`; 0 if there are none."""
        return max(self.peaks.values(), default=0)

    def __str__(self) -> str:
        rate = format_bytes(self.nbytes / self.seconds) if self.seconds else "-"
        return (
            f"{format_bytes(self.nbytes)} in {self.objects} stored objects "
            f"({format_bytes(self.stored)}) by {self.tasks} tasks in {self.seconds:.1f} s "
            f"({rate}/s)"
        )

    def explain(self) -> str:
        """All of it, predicted and actual side by side."""
        names, rows = self._table()
        width = max(len(name) for name in names)
        lines = [str(self)]
        for title, cells in rows:
            lines.append(f"{title}:")
            lines.extend(f"  {name:<{width}}  {cell}" for name, cell in cells)
        return "\n".join(lines)

    def _table(self) -> tuple[list[str], list[tuple[str, list[tuple[str, str]]]]]:
        rows = [
            (f"stage {number} of {len(self.stages)}", _stage_rows(stage))
            for number, stage in enumerate(self.stages, 1)
        ]
        memory = [(name, format_bytes(nbytes)) for name, nbytes in sorted(self.peaks.items())]
        rows.append((f"memory above idle, {format_bytes(self.bound)} at most by the plan", memory))
        rows.append(("workers", [("tasks begun once more", f"{self.repeated:,}")]))
        return [name for _, cells in rows for name, _ in cells], rows

    def _repr_html_(self) -> str:
        _, rows = self._table()
        body = "".join(
            f"<tr><th colspan='2'>{escape(title)}</th></tr>"
            + "".join(f"<tr><td>{escape(n)}</td><td>{escape(cell)}</td></tr>" for n, cell in cells)
            for title, cells in rows
        )
        return f"<table><caption>{escape(str(self))}</caption>{body}</table>"


def _stage_rows(stage: StageReport) -> list[tuple[str, str]]:
    """What is said of a stage: a name, the actual and the predicted number."""
    actual, predicted = stage.actual, stage.predicted
    pairs = [
        ("tasks", f"{stage.done:,}", f"{stage.tasks:,}"),
        ("time", f"{stage.seconds:.3g} s", f"{stage.predicted_seconds:.3g} s"),
        ("decoded", format_bytes(actual.decoded), format_bytes(predicted.decoded)),
        ("read", format_bytes(actual.read), f"about {format_bytes(predicted.read)}"),
        ("written", format_bytes(actual.stored), f"about {format_bytes(predicted.stored)}"),
        ("requests", f"{actual.requests:,}", f"{predicted.requests:,}"),
    ]
    return [(name, f"{found} (predicted {said})") for name, found, said in pairs]


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
        self._idle: dict[str, int] = {}
        self._peak: dict[str, int] = {}
        self.begun = 0
        """Tasks that a cluster has begun."""

    def begin(self, _: object = None) -> None:
        """A worker has begun a task."""
        self.begun += 1

    def note(self, stage: int, one: Copied) -> None:
        """A task is done."""
        now = perf_counter()
        if self._first[stage] is None:
            self._first[stage] = now - one.seconds
        self._last[stage] = now
        self._done[stage] += 1
        self._costs[stage] += Costs(
            one.decoded, one.encoded, one.reads, one.objects, one.read, one.stored
        )
        self._note_memory(one.process)

    def _note_memory(self, process: Process) -> None:
        if process.peak:
            name = process.name
            self._idle[name] = min(process.idle, self._idle.get(name, process.idle))
            self._peak[name] = max(process.peak, self._peak.get(name, 0))

    @property
    def tasks(self) -> int:
        """Tasks that are done."""
        return sum(self._done)

    @property
    def repeated(self) -> int:
        """Tasks that were begun once more."""
        return max(self.begun - self.tasks, 0)

    @property
    def peaks(self) -> dict[str, int]:
        """See `RechunkReport.peaks`."""
        return {name: peak - self._idle[name] for name, peak in self._peak.items()}

    def stored(self, stage: int) -> int:
        """Encoded bytes that the tasks of a stage have written."""
        return self._costs[stage].stored

    def stages(
        self, tasks: Sequence[int], predicted: Sequence[Costs], seconds: Sequence[float]
    ) -> tuple[StageReport, ...]:
        """What has become of each stage, beside what was predicted."""
        return tuple(
            StageReport(
                tasks[number],
                self._done[number],
                predicted[number],
                self._costs[number],
                seconds[number],
                0.0 if (first := self._first[number]) is None else self._last[number] - first,
            )
            for number in range(len(tasks))
        )
