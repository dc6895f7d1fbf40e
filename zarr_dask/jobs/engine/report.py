"""Reports of rechunkings: actual work beside the predictions of the plan.

`TaskStatistics` adds up the results of tasks. `ReportBase` is the common part of all reports, of
one array, several arrays or a dask array: predicted and actual costs of each stage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from heapq import nlargest
from html import escape
from time import perf_counter
from typing import Any

from zarr_dask._util.display import InWords, escape_control_chars
from zarr_dask._util.lazy_names import hides
from zarr_dask.jobs.engine.plan import CopyResult, Costs, ProcessMemory, format_bytes, pluralize
from zarr_dask.jobs.engine.prices import Priced

__all__ = [
    "ArrayCopyReport",
    "JointReport",
    "Progress",
    "RechunkReport",
    "ReportBase",
    "StageEstimate",
    "StageReport",
    "TaskStatistics",
]

Table = tuple[str, list[tuple[str, str, str]]]
"""A title, and rows with a name, the actual value, and the prediction if there is one."""

_MOST_PROCESSES = 8
"""Maximum number of processes whose memory is listed: those that have held most."""
_MOST_ARRAYS = 50
"""Maximum number of arrays that are listed, the largest ones."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a job after one more task."""

    stage: int
    """Number of the stage, from 0."""
    stages: int
    """Number of stages."""
    nbytes: int
    """Bytes of the array that the task has copied."""
    total: int
    """Bytes of the array."""


@dataclass(frozen=True, slots=True)
class StageEstimate:
    """Predicted work of a stage."""

    tasks: int
    costs: Costs
    seconds: float
    """Time by the cost model: to compare with other plans, not the time that it will take."""
    estimated: bool = False
    """True if decoded bytes are estimates, because elements have no fixed length."""
    requests_at_most: bool = False
    """True if there may be fewer requests, because chunks are read in part."""


@dataclass(frozen=True, slots=True)
class StageReport:
    """Predicted and actual work of one stage."""

    tasks: int
    """Tasks of the stage."""
    done: int
    """Tasks done by this run; the others were done before."""
    predicted: Costs
    """Costs of all tasks."""
    actual: Costs
    """Costs of the tasks of this run."""
    predicted_seconds: float
    """Time of all tasks by the cost model, which compares plans and knows no machine."""
    seconds: float
    """Time from the start of the first task of the stage to the end of the last."""
    retried: int = 0
    """Requests of these tasks that were retried; `actual` does not count them."""
    estimated: bool = False
    """True if predicted decoded bytes are estimates, because elements have no fixed length."""
    requests_at_most: bool = False
    """True if fewer requests than predicted may do, because chunks are read in part."""
    absent: int = 0
    """Absent chunks and parts of absent objects, which predictions count as if they existed."""

    def rows(self) -> list[tuple[str, str, str]]:
        """Return table rows: names, actual values and predictions."""
        actual, predicted = self.actual, self.predicted
        about = "about " if self.estimated else ""
        most = "at most " if self.absent else ""
        # objects of nothing but the fill value are not encoded
        all_done = self.done == self.tasks
        left_out = "at most " if all_done and actual.written < predicted.written else ""
        may_be_fewer = self.absent or self.requests_at_most
        is_fewer = may_be_fewer and actual.requests < predicted.requests
        fewer = "at most " if is_fewer else ""
        return [
            ("tasks", f"{self.done:,}", f"{self.tasks:,}"),
            ("time", f"{self.seconds:.3g} s", ""),
            (
                "decoded",
                format_bytes(actual.decoded),
                f"{about or most}{format_bytes(predicted.decoded)}",
            ),
            (
                "encoded",
                format_bytes(actual.written),
                f"{about or left_out}{format_bytes(predicted.written)}",
            ),
            ("read", format_bytes(actual.read), f"about {format_bytes(predicted.read)}"),
            ("stored", format_bytes(actual.stored), f"about {format_bytes(predicted.stored)}"),
            ("requests", f"{actual.requests:,}", f"{fewer}{predicted.requests:,}"),
            *([("absent pieces", f"{self.absent:,}", "")] if self.absent else []),
            ("requests tried again", f"{self.retried:,}", ""),
        ]


@hides("further_tables", "names")
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ReportBase(Priced, InWords):
    """Measurements of a job's tasks, beside the predictions."""

    seconds: float
    stages: tuple[StageReport, ...] = ()
    """The stages in order, with predicted and actual costs and times."""
    bound: int = 0
    """Maximum bytes per process above its idle size, by the plan."""
    peaks: Mapping[str, int] = field(default_factory=dict)
    """Maximum bytes above the idle size of each process, by host and process id; empty if the
    system does not report memory. Measured after each box is read and with each large object that
    is encoded.
    """
    repeated: int = 0
    """Tasks that a cluster has started again because a worker was lost."""
    already_done: str = ""
    """Time at which the same job ended earlier, so that this call did nothing; else empty."""
    retried_besides: int = 0
    """Requests that were retried outside of stages: in the comparison, and at the start and end of
    the job.
    """

    waited: float = 0.0
    """Seconds that retried requests of tasks have waited, of all threads together."""
    requests: Mapping[str, int] = field(default_factory=dict)
    """Requests of tasks by kind: ``read``, ``write``, ``inspect``, ``list``, ``delete``. Repeated
    requests count again; files have none.
    """

    def _before(self) -> str:
        return f"already done at {self.already_done}: " if self.already_done else ""

    @property
    def retried(self) -> int:
        """Requests that were retried because a store was busy or slow, or cut off a reply.

        Retries inside a library, and retries of failed tasks, are not known.
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
        """Return the names of the stages."""
        return [
            f"stage {number} of {len(self.stages)}" for number in range(1, 1 + len(self.stages))
        ]

    def explain(self) -> str:
        """Return the whole report as text, with actual and predicted values side by side."""
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
                ("waits for these", f"{self.waited:.3g} s", ""),
            ],
        )
        if self.requests:
            rows = [(kind, f"{count:,}", "") for kind, count in sorted(self.requests.items())]
            yield "requests to services", rows
        yield from self.further_tables()

    def further_tables(self) -> Iterator[Table]:
        """Return further tables: titles, and rows of the same form."""
        return iter(())

    def _repr_html_(self) -> str:
        head = "<tr><th></th><th>done</th><th>predicted</th></tr>"
        body = "".join(
            f"<tr><th colspan='3'>{escape(title)}</th></tr>"
            + "".join(
                "<tr>"
                + "".join(f"<td>{escape(escape_control_chars(cell))}</td>" for cell in row)
                + "</tr>"
                for row in rows
            )
            for title, rows in self._tables()
        )
        title = escape(escape_control_chars(str(self)))
        return f"<table><caption>{title}</caption>{head}{body}</table>"

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "seconds": self.seconds,
            "tasks": self.tasks,
            "repeated": self.repeated,
            "retried": self.retried,
            "waited": self.waited,
            "requests": dict(self.requests),
            "memory": {"bound": self.bound, "peak": self.peak, "peaks": dict(self.peaks)},
            "stages": [
                {"name": name, **asdict(stage)}
                for name, stage in zip(self.names(), self.stages, strict=True)
            ],
        }


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RechunkReport(ReportBase):
    """Result of a rechunking."""

    nbytes: int
    """Decoded bytes of the array."""
    stored: int
    """Encoded bytes of the target."""
    objects: int
    """Stored objects of the target."""

    def __str__(self) -> str:
        return self._before() + (
            f"{format_bytes(self.nbytes)} in {pluralize(self.objects, 'stored object')} "
            f"({format_bytes(self.stored)}) by {pluralize(self.tasks, 'task')} "
            f"in {self.seconds:.1f} s ({rate(self.nbytes, self.seconds)})"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        of_array = {"nbytes": self.nbytes, "stored": self.stored, "objects": self.objects}
        return {**of_array, **ReportBase.to_json(self)}


@dataclass(frozen=True, slots=True)
class ArrayCopyReport:
    """Result for one array among others."""

    target: str
    """Store and path."""
    nbytes: int
    """Decoded bytes."""
    stored: int
    """Encoded bytes of the target."""
    tasks: int
    """Tasks done by this run."""
    objects: int
    """Stored objects of the target."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class JointReport(ReportBase):
    """Result of a job of several arrays; each stage includes all arrays that have this many."""

    arrays: tuple[ArrayCopyReport, ...]

    @property
    def nbytes(self) -> int:
        """Decoded bytes of all arrays."""
        return sum(one.nbytes for one in self.arrays)

    @property
    def stored(self) -> int:
        """Encoded bytes of all targets."""
        return sum(one.stored for one in self.arrays)

    @property
    def objects(self) -> int:
        """Stored objects of all targets."""
        return sum(one.objects for one in self.arrays)

    def __str__(self) -> str:
        return self._before() + (
            f"{pluralize(len(self.arrays), 'array')}, {format_bytes(self.nbytes)} "
            f"({format_bytes(self.stored)} stored) by {pluralize(self.tasks, 'task')} in "
            f"{self.seconds:.1f} s ({rate(self.nbytes, self.seconds)})"
        )

    def further_tables(self) -> Iterator[Table]:
        """Yield a table of the arrays, the largest first."""
        most = nlargest(_MOST_ARRAYS, self.arrays, key=lambda one: one.nbytes)
        rows = [
            (
                one.target,
                f"{format_bytes(one.nbytes)}, {format_bytes(one.stored)} stored, "
                f"{pluralize(one.tasks, 'task')}",
                "",
            )
            for one in most
        ]
        if rows:
            of = f", the largest of {len(self.arrays)}" if len(self.arrays) > len(most) else ""
            yield f"arrays{of}", rows

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        arrays = [asdict(one) for one in self.arrays]
        totals = {"nbytes": self.nbytes, "stored": self.stored, "objects": self.objects}
        return {**totals, **ReportBase.to_json(self), "arrays": arrays}


def rate(nbytes: int, seconds: float) -> str:
    """Return bytes per second as text for people."""
    return f"{format_bytes(nbytes / seconds)}/s" if seconds else "-/s"


class TaskStatistics:
    """Sums of the results of a job's tasks so far.

    Parameters
    ----------
    stages
        Number of stages.
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
        self._absent = [0] * stages
        self.already_done = ""
        """Time at which the same job ended earlier; empty if this run has done something."""
        self.begun = 0
        """Number of task starts on a cluster."""
        self.waited = 0.0
        """Seconds that retried requests have waited."""
        self.requests: Counter[str] = Counter()
        """Requests by kind."""
        self.retried_comparing = 0
        """Requests of the comparison that were retried."""

    def begin(self, _: object = None) -> None:
        """Count a task that a worker has started."""
        self.begun += 1

    def note(self, array: int, stage: int, one: CopyResult) -> None:
        """Add the result of a finished task of an array."""
        now = perf_counter()
        if self._first[stage] is None:
            self._first[stage] = now - one.seconds
        self._last[stage] = now
        self._done[stage] += 1
        self._costs[stage] += Costs(
            one.decoded, one.encoded, one.reads, one.objects, one.read, one.stored
        )
        self._retried[stage] += one.retried
        self._absent[stage] += one.absent
        self.waited += one.waited
        self.requests.update(one.requests)
        self._tasks[array] += 1
        self._stored[array, stage] += one.stored
        self._note_memory(one.process)

    def _note_memory(self, process: ProcessMemory) -> None:
        if process.peak:
            above = process.peak - process.idle
            self._peaks[process.name] = max(above, self._peaks.get(process.name, 0))

    @property
    def repeated(self) -> int:
        """Number of tasks that were started again."""
        return max(self.begun - sum(self._done), 0)

    @property
    def peaks(self) -> dict[str, int]:
        """See `ReportBase.peaks`."""
        return dict(self._peaks)

    def tasks_of(self, array: int) -> int:
        """Return the number of finished tasks of an array, in all stages."""
        return self._tasks[array]

    def stored_of(self, array: int, stage: int) -> int:
        """Return the encoded bytes that the tasks of a stage of an array have written."""
        return self._stored[array, stage]

    def stages(self, expected: Sequence[StageEstimate]) -> tuple[StageReport, ...]:
        """Return the report of each stage, beside its predictions."""
        return tuple(
            StageReport(
                stage.tasks,
                self._done[number],
                stage.costs,
                self._costs[number],
                stage.seconds,
                0.0 if (first := self._first[number]) is None else self._last[number] - first,
                self._retried[number],
                stage.estimated,
                stage.requests_at_most,
                self._absent[number],
            )
            for number, stage in enumerate(expected)
        )
