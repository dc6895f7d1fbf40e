"""Carrying out a plan to write images: tasks, what is left of them, and how the job ends.

One journal beside the node that comes into being holds the receipts of all levels of all images; a
receipt is left by each super-cell. So a job that has died does only the super-cells that have a
stored object without a valid receipt. Documents are written at the end, the outermost group's last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from secrets import token_hex
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from zarr_dask.array import Array
from zarr_dask.errors import (
    ListingError,
    MemoryBudgetError,
    NodeExistsError,
    ResumeError,
    StoreError,
    StoreKeyError,
)
from zarr_dask.formats.base import Format, prefix_of, where
from zarr_dask.grid import Shape
from zarr_dask.hierarchy import check_place, prepare_above, prepare_place, put_documents
from zarr_dask.jobs.bars import bar
from zarr_dask.jobs.plan import counted, format_bytes
from zarr_dask.jobs.rechunk.plan import digest
from zarr_dask.jobs.rechunk.rechunk import Progress
from zarr_dask.jobs.run import Workers, check_in_reach, find_workers, run_tasks
from zarr_dask.jobs.write.submit import compute_writes
from zarr_dask.jobs.write.target import WriteReport
from zarr_dask.journal import (
    Job,
    Journal,
    default_place,
    discard_journals,
    given_place,
    new_journal,
    open_journals,
)
from zarr_dask.ome.cells import CellReport, CellTarget, CellWriter, Records, merged
from zarr_dask.ome.downsample import Method
from zarr_dask.ome.pyramid import Stage
from zarr_dask.pool import for_each
from zarr_dask.receipts import Receipts
from zarr_dask.stores.base import Appender, Store, list_sizes
from zarr_dask.stores.urls import Location, real_place

if TYPE_CHECKING:
    import dask.array as da
    from distributed import Client

    from zarr_dask.graph import StoredWrite

__all__ = ["ImageProgress", "is_empty", "run_plan"]

ImageProgress = Callable[[Progress], None] | Literal[True]
"""What is called with every step; True for a bar."""


class _Pixels(Protocol):
    """What a job needs to know of a source (`zarr_dask.ome.plan.Pixels`)."""

    @property
    def values(self) -> Any: ...
    @property
    def handed_over(self) -> bool: ...


class _Pyramid(Protocol):
    """What a job needs to know of an image (`zarr_dask.ome.plan.PyramidPlan`)."""

    @property
    def pixels(self) -> _Pixels: ...
    @property
    def arrays(self) -> tuple[Array, ...]: ...
    @property
    def factors(self) -> tuple[Shape, ...]: ...
    @property
    def method(self) -> Method: ...
    @property
    def stages(self) -> tuple[Stage, ...]: ...
    def writer(self, stage: int, records: Records | None) -> CellWriter: ...


class _Plan(Protocol):
    """What a job needs to know of its plan (`zarr_dask.ome.plan.ImageWritePlan`)."""

    @property
    def store(self) -> Store: ...
    @property
    def path(self) -> str: ...
    @property
    def node_format(self) -> Format: ...
    @property
    def pyramids(self) -> Sequence[_Pyramid]: ...
    @property
    def groups(self) -> Mapping[str, Mapping[str, Any]]: ...
    @property
    def documents(self) -> Mapping[str, Mapping[str, bytes]]: ...
    @property
    def amends(self) -> tuple[Callable[[], None], ...]: ...
    @property
    def first(self) -> tuple[Callable[[], None], ...]: ...
    @property
    def creates(self) -> bool: ...
    @property
    def overwrite(self) -> bool: ...
    @property
    def max_mem(self) -> int: ...
    @property
    def threads_per_process(self) -> int: ...
    @property
    def peak(self) -> int: ...
    @property
    def objects(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def total(self) -> int: ...


_KIND = "pyramid"
_ARRAYS = "arrays"
"""The fact of a job that says which arrays it writes."""
_WAVE = 16
"""Images whose tasks run side by side; what each of them reads and writes goes with every task."""


def run_plan(
    plan: _Plan,
    client: Client | None,
    progress: ImageProgress | None,
    resume: bool | str,
    journal: Location | None,
) -> WriteReport:
    """Carry out a plan; see `zarr_dask.ome.plan.ImageWritePlan.run`."""
    workers = find_workers(client)
    _check_memory(plan, workers)
    check_in_reach(plan.store)
    job = _begun(plan, resume, journal)
    done = job.receipts()
    reports: list[CellReport] = []
    with ExitStack() as stack:
        told = progress
        if progress is True:
            told = stack.enter_context(bar("writing", plan.total))
        steps = _Steps(told if callable(told) else None, plan.total)
        for wave in _waves(plan.pyramids):
            for stage in range(max(len(pyramid.stages) for pyramid in wave)):
                reports += _run_stage(job, wave, stage, done, workers, steps)
        steps.end()
    job.finish()
    total = merged(reports)
    return WriteReport(total.objects, total.empty, plan.nbytes, total.stored)


def _waves(pyramids: Sequence[_Pyramid]) -> Iterator[Sequence[_Pyramid]]:
    for first in range(0, len(pyramids), _WAVE):
        yield pyramids[first : first + _WAVE]


def _check_memory(plan: _Plan, workers: Workers) -> None:
    needed = plan.peak // max(plan.threads_per_process, 1) * workers.threads_per_process
    if needed > plan.max_mem:
        raise MemoryBudgetError(
            f"the plan was made for {counted(plan.threads_per_process, 'thread')} per process; "
            f"{workers.threads_per_process} would hold {format_bytes(needed)}, more than "
            f"max_mem={format_bytes(plan.max_mem)}. Make the plan again for these workers."
        )


class _Steps:
    """Turns what tasks say into progress."""

    def __init__(self, told: Callable[[Progress], None] | None, total: int) -> None:
        self._told = told
        self._total = total
        self._done = 0
        self._lock = Lock()

    def add(self, nbytes: int) -> None:
        """So many bytes more are done."""
        with self._lock:
            nbytes = min(nbytes, self._total - self._done)
            self._done += nbytes
        if nbytes > 0 and self._told is not None:
            self._told(Progress(0, 1, nbytes, self._total))

    def end(self) -> None:
        """All is done, what an earlier run has done included."""
        self.add(self._total - self._done)


# --- running --------------------------------------------------------------------------------------


def _run_stage(
    job: _PyramidJob,
    wave: Sequence[_Pyramid],
    stage: int,
    done: Receipts | None,
    workers: Workers,
    steps: _Steps,
) -> list[CellReport]:
    """Run a stage of several images: what tasks read themselves, and what graphs hand over."""
    reports: list[CellReport] = []
    writers: list[CellWriter] = []
    tasks: list[int] = []
    count = 0
    graphs: list[tuple[CellWriter, da.Array, Sequence[int]]] = []
    for pyramid in wave:
        if stage >= len(pyramid.stages):
            continue
        writer = pyramid.writer(stage, job.records)
        missing = _missing(writer, done)
        values = _handed_over(pyramid, stage, workers)
        if values is not None:
            graphs.append((replace(writer, source=None), values, missing))
            continue
        tasks += [count + number for number in missing]
        count += writer.stage.tasks
        writers.append(writer)

    def note(report: CellReport) -> None:
        reports.append(report)
        steps.add(report.nbytes)

    if any(missing for _, _, missing in graphs):
        reports.append(_compute(graphs, workers, steps))
    if tasks:
        run_tasks(_Tasks(tuple(writers)), tasks, workers, note, f"zarr-pyramid-{stage + 1}")
    return reports


@dataclass(frozen=True, eq=False)
class _Tasks:
    """The tasks of a stage of several images, counted through; it goes with every task."""

    writers: tuple[CellWriter, ...]

    def __call__(self, number: int) -> CellReport:
        for writer in self.writers:
            if number < writer.stage.tasks:
                return writer(number)
            number -= writer.stage.tasks
        raise IndexError(f"there are not so many tasks that one has the number {number}.")


def _missing(writer: CellWriter, done: Receipts | None) -> Sequence[int]:
    """The tasks with a stored object that has no valid receipt."""
    tasks = range(writer.stage.tasks)
    if done is None or not len(done):
        return tasks
    return [n for n in tasks if not all(key in done for key in writer.keys(n))]


def _handed_over(pyramid: _Pyramid, stage: int, workers: Workers) -> da.Array | None:
    """The dask array whose graph hands super-cells over; None if tasks read them themselves."""
    import dask.array as da

    pixels, chosen = pyramid.pixels, pyramid.stages[stage]
    if chosen.first:
        return None
    values: Any = pixels.values
    if isinstance(values, np.ndarray):
        if workers.in_this_process:
            return None
        return da.from_array(values, chunks=chosen.cell, name=False)
    if not pixels.handed_over:
        return None
    cells = tuple(dimension.lengths or (0,) for dimension in chosen.cells.dimensions)
    regrouped: da.Array = values.rechunk(cells, method="tasks")
    return regrouped


def _compute(
    graphs: Sequence[tuple[CellWriter, da.Array, Sequence[int]]], workers: Workers, steps: _Steps
) -> CellReport:
    """Run tasks whose super-cells come from graphs, by one submission."""
    from zarr_dask.graph import write_array

    total = sum(int(values.nbytes) for _, values, _ in graphs)

    def collection(topic: str) -> tuple[list[StoredWrite], int]:
        writes = [
            write_array(
                values,
                CellTarget(writer),
                (0,) * values.ndim,
                f"{values.name}-{token_hex(8)}",
                None if len(missing) == writer.stage.tasks else _runs(missing),
                topic,
            )
            for writer, values, missing in graphs
        ]
        return writes, 0

    def told(step: Progress) -> None:
        steps.add(step.nbytes)

    reports = compute_writes(collection, total, workers.client, told)
    return merged(reports)


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and sum(runs[-1]) == number:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((number, 1))
    return runs


# --- the job --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _PyramidJob:
    """A plan, and the journal of its tasks."""

    plan: _Plan
    journal: Journal | None
    """Says that the job has not ended, while it is there."""
    keeps_receipts: bool
    is_resumed: bool = False

    @property
    def records(self) -> Records | None:
        """What tasks leave behind."""
        if self.journal is None or not self.keeps_receipts:
            return None
        return Records(self.journal, prefix_of(self.plan.path))

    def receipts(self) -> Receipts | None:
        """The receipts that hold, of a job that goes on."""
        return self._valid() if self.is_resumed else None

    def _valid(self) -> Receipts | None:
        if self.journal is None:
            return None
        return self.journal.valid_receipts(_sizes(self.plan))

    def finish(self) -> None:
        """Make the images visible, and end the job.

        Raises
        ------
        ResumeError
            If another job has begun to write to the same place anew, or something is missing.
        """
        plan = self.plan
        if self.journal is not None:
            job = self.journal.job()
            if job is not None and job.creation != self.journal.creation:
                raise ResumeError(
                    f"{where(plan.store, plan.path)} is being written anew by a job that began at "
                    f"{job.begun}, so that this one cannot end. Let only one of them run."
                )
        if self.keeps_receipts:
            valid = self._valid()
            left = plan.objects - (0 if valid is None else len(valid))
            if left:
                raise ResumeError(
                    f"{where(plan.store, plan.path)} is not complete: {counted(left, 'object')} of "
                    f"{plan.objects} have no valid receipt. The same call does what is missing."
                )
        _put_nodes(plan.store, plan.documents)
        for amend in plan.amends:
            amend()
        if self.journal is not None:
            self.journal.remove()


def _put_nodes(store: Store, nodes: Mapping[str, Mapping[str, bytes]]) -> None:
    """Write the documents of nodes, those of the deepest first and the outermost last."""
    by_depth: dict[int, list[str]] = {}
    for path in nodes:
        by_depth.setdefault(path.count("/") + bool(path), []).append(path)
    for depth in sorted(by_depth, reverse=True):
        for_each(lambda path: put_documents(store, nodes[path]), by_depth[depth], None)


def _sizes(plan: _Plan) -> dict[str, int]:
    """Bytes of all that lies below the node, by key below it."""
    prefix = prefix_of(plan.path)
    return {key[len(prefix) :]: size for key, size in list_sizes(plan.store, prefix)}


def _begun(plan: _Plan, resume: bool | str, journal: Location | None) -> _PyramidJob:
    """Go on with the same job if that is asked for and there is one; else begin."""
    at = where(plan.store, plan.path)
    required = bool(resume) or journal is not None
    place = default_place(plan.store, plan.path)
    if journal is not None:
        place = given_place(journal, plan.path)
    if place is None and required:
        raise ResumeError(
            f"{at} has no place beside it for a journal, which resume= needs: it is in memory, in "
            "an archive, or the root of a bucket. Say where with journal=, a path or URL outside "
            "the hierarchy."
        )
    job = Job(
        kind=_KIND,
        token=_token(plan, resume),
        creation="",
        resume="name" if isinstance(resume, str) and resume else "token" if resume else "",
        creates=plan.creates,
        objects=plan.objects,
        facts={_ARRAYS: [array.path for one in plan.pyramids for array in one.arrays]},
    )
    found = [] if place is None else open_journals(place)
    same = [pair for pair in found if resume and pair[1].token == job.token]
    if same:
        kept, old = same[0]
        kept.merge()
        resumed = _PyramidJob(plan, kept, keeps_receipts=True, is_resumed=True)
        if _may_go_on(resumed):
            kept.note(replace(job, creation=old.creation, begun=old.begun))
            prepare_above(plan.store, plan.path, plan.node_format)
            return resumed
    elif resume:
        _refuse_other(at, found)
    _make_room(plan)
    for old_journal, old in found:
        _remove_leftovers(plan, old)
        old_journal.remove()
    keeps_one = required or (place is not None and isinstance(place.store, Appender))
    if place is None or not keeps_one:
        return _PyramidJob(plan, None, keeps_receipts=False)
    opened = new_journal(place, job)
    begun = replace(job, creation=opened.creation)
    if required:
        opened.begin(begun)
        return _PyramidJob(plan, opened, keeps_receipts=True)
    with suppress(StoreError):  # beside a target that is not ours nothing can be kept
        opened.begin(begun)
        return _PyramidJob(plan, opened, keeps_receipts=False)
    return _PyramidJob(plan, None, keeps_receipts=False)


def _refuse_other(at: str, found: Sequence[tuple[Journal, Job]]) -> None:
    for journal, other in found:
        if other.resume:
            raise ResumeError(
                f"another job that began to write to {at} at {other.begun} has not ended. Its "
                f"journal is {journal.url}. Repeat the call as it was, or pass resume=False to "
                "begin anew and write over its work."
            )


def _may_go_on(job: _PyramidJob) -> bool:
    """Whether nobody else has put something at the place since the job began.

    If all of its work is there, the job had come to its end, and only its journal was left.
    """
    plan = job.plan
    try:
        _check_places(plan, overwrite=False)
    except NodeExistsError:
        valid = job.receipts()
        return valid is not None and len(valid) == plan.objects
    return True


def _check_places(plan: _Plan, *, overwrite: bool) -> None:
    store, node_format = plan.store, plan.node_format
    if plan.creates and is_empty(store, plan.path):
        check_place(store, plan.path, node_format, overwrite=overwrite, is_group=True)
        return
    for pyramid in plan.pyramids:
        for array in pyramid.arrays:
            check_place(store, array.path, node_format, overwrite=overwrite)
    for path in plan.groups:
        check_place(store, path, node_format, overwrite=overwrite, is_group=True)


def _make_room(plan: _Plan) -> None:
    """Remove what is replaced, and what a job that has died has left."""
    store, node_format = plan.store, plan.node_format
    _check_places(plan, overwrite=plan.overwrite)
    for begin in plan.first:
        begin()
    if plan.creates:
        prepare_place(store, plan.path, node_format, overwrite=plan.overwrite, is_group=True)
        discard_journals(store, plan.path)
    if plan.creates and is_empty(store, plan.path):
        return
    for pyramid in plan.pyramids:
        for array in pyramid.arrays:
            store.delete_prefix(prefix_of(array.path))


def is_empty(store: Store, path: str) -> bool:
    """Whether nothing lies at a path or below it; False where that cannot be listed."""
    try:
        return next(iter(store.list(prefix_of(path))), None) is None
    except ListingError:
        return False


def _remove_leftovers(plan: _Plan, job: Job) -> None:
    """Remove what a job that has died has left of arrays that are not written now."""
    told = job.facts.get(_ARRAYS, ()) if job.kind == _KIND else ()
    for path in told:
        if not isinstance(path, str) or not path.startswith(prefix_of(plan.path)):
            continue
        with suppress(NodeExistsError, StoreKeyError):  # somebody has put a node there since
            check_place(plan.store, path, plan.node_format, overwrite=False)
            plan.store.delete_prefix(prefix_of(path))


# --- telling jobs apart ---------------------------------------------------------------------------


def _token(plan: _Plan, resume: bool | str) -> str:
    """Equal for jobs that write the same pixels in the same form to the same place."""
    if isinstance(resume, str) and resume:
        return f"name:{resume}"
    if not resume:
        return f"new:{token_hex(16)}"
    facts: list[Any] = [real_place(plan.store, plan.path), sorted(plan.documents.items())]
    for pyramid in plan.pyramids:
        facts += [_token_of(pyramid), pyramid.factors, _token_of_method(pyramid)]
    return sha256(repr(facts).encode()).hexdigest()[:32]


def _token_of(pyramid: _Pyramid) -> Any:
    values = pyramid.pixels.values
    if isinstance(values, Array):
        return real_place(values.store, values.path), digest(values)
    if isinstance(values, np.ndarray):
        plain = np.ascontiguousarray(values).reshape(-1).view("u1")
        return values.shape, values.dtype.str, sha256(plain.data).hexdigest()
    from zarr_dask.fingerprint import layer_tokens

    return layer_tokens(values), values.name, str(values.dtype)


def _token_of_method(pyramid: _Pyramid) -> Any:
    from dask.tokenize import TokenizationError, tokenize

    method = pyramid.method
    try:
        return method.name, tokenize(method.reduce, method.margin, ensure_deterministic=True)
    except TokenizationError as error:
        raise ResumeError(
            f"resume=True must know whether a job is the same one, but the method {method.name!r} "
            f"looks different in each process ({error}). Pass a name, such as resume='run-7', if "
            "you see to it that calls with this name write the same pixels."
        ) from error
