"""Rechunking a dask array within a memory limit: its blocks are written first, then rechunked.

If blocks are whole stored objects of the new array, they are written into it directly. Otherwise
each block is written by one task, without being copied, into an intermediate array. Its stored
objects are the blocks, as shards of smaller chunks if that helps to read them in other boxes. It is
rechunked like any other array, and removed at the end. A graph shuffle is never used.

With ``resume=True`` the name of the intermediate array depends on the graph and the target only, so
that the same call finds it and its receipts again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from html import escape
from math import prod
from time import perf_counter
from typing import TYPE_CHECKING, Any

from zarr_dask._util.arguments import check_bools
from zarr_dask._util.display import InWords, escape_control_chars, format_dtype
from zarr_dask._util.lazy_names import hides
from zarr_dask.array.array import Array
from zarr_dask.array.create import ArraySpec, array_meta
from zarr_dask.errors import PlanError, ResumeError, StoreError
from zarr_dask.formats.base import Format, where
from zarr_dask.formats.detect import DEFAULT_FORMAT
from zarr_dask.grid.grid import Blocks, Cells, Shape
from zarr_dask.hierarchy.edit import check_can_create
from zarr_dask.jobs.engine.array_job import is_there_as_planned
from zarr_dask.jobs.engine.cost_model import block_memory
from zarr_dask.jobs.engine.layouts import layout_of
from zarr_dask.jobs.engine.lifecycle import resume as resumed
from zarr_dask.jobs.engine.overlap_pool import max_uploading
from zarr_dask.jobs.engine.plan import Costs, add_requests, format_bytes, pluralize
from zarr_dask.jobs.engine.prices import Priced
from zarr_dask.jobs.engine.progress_bars import given_progress, rechunk_bars
from zarr_dask.jobs.engine.report import RechunkReport, ReportBase, StageReport
from zarr_dask.jobs.engine.resume import Resume
from zarr_dask.jobs.engine.workers import runs_processes
from zarr_dask.jobs.engine.zip_targets import closes_zip_targets
from zarr_dask.jobs.rechunk.compression_sample import CompressionRatios
from zarr_dask.jobs.rechunk.plan import Progress, RechunkPlan
from zarr_dask.jobs.rechunk.target_spec import (
    RechunkBudget,
    TargetArray,
    TargetSpec,
    make_rechunk_plan,
    new_array,
)
from zarr_dask.jobs.write.checks import check_not_read
from zarr_dask.jobs.write.running import WritePlan
from zarr_dask.jobs.write.staging import StagingArray, StagingFolder, plan_staging
from zarr_dask.jobs.write.target import WriteReport
from zarr_dask.jobs.write.write import plan_blocks, plan_write
from zarr_dask.journal import given_place
from zarr_dask.stores.base import Store, is_remote
from zarr_dask.stores.open import Location, open_store
from zarr_dask.stores.patience import in_job

if TYPE_CHECKING:
    import dask.array as da
    from distributed import Client
    from matplotlib.figure import Figure

__all__ = ["DaskRechunkPlan", "DaskRechunkReport", "plan_dask"]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DaskRechunkReport(ReportBase):
    """Result of rechunking a dask array.

    The first stage writes the blocks, unless an earlier run has done that. Its predicted time is
    for writing only, and its memory is not measured, because both depend on the computation of the
    blocks.
    """

    written: WriteReport | None
    """Report of writing the blocks; None if an earlier run had written them."""
    rechunked: RechunkReport | None
    """Report of the rechunking; None if blocks were written into the target directly."""

    @property
    def nbytes(self) -> int:
        """Decoded bytes of the array."""
        one = self.rechunked or self.written
        return 0 if one is None else one.nbytes

    @property
    def stored(self) -> int:
        """Encoded bytes of the target."""
        one = self.rechunked or self.written
        return 0 if one is None else one.stored

    @property
    def objects(self) -> int:
        """Stored objects of the target."""
        one = self.rechunked or self.written
        return 0 if one is None else one.objects

    def names(self) -> list[str]:
        """Return the names of the stages."""
        then = [] if self.rechunked is None else self.rechunked.names()
        return [*([] if self.written is None else ["blocks, as they come"]), *then]

    def __str__(self) -> str:
        if self.rechunked is None:
            return f"{self.written}, directly, in {self.seconds:.1f} s"
        return f"{self.rechunked}; with the blocks in {self.seconds:.1f} s"

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        of_array = {"nbytes": self.nbytes, "stored": self.stored, "objects": self.objects}
        return {**of_array, **ReportBase.to_json(self)}


@hides("lends")
@dataclass(frozen=True, eq=False, repr=False)
class DaskRechunkPlan(Priced, InWords):
    """Everything that rechunking a dask array will do; made by `zarr_dask.plan_rechunk`."""

    values: da.Array
    """The array to rechunk."""
    then: RechunkPlan
    """Plan from the intermediate array to the target."""
    between: StagingArray
    direct: bool
    """True if blocks are whole stored objects of the target, so that no intermediate array is
    needed.
    """
    options: dict[str, Any]
    """Arguments of `zarr_dask.plan_write` for the target."""
    lends: bool = False
    """True for threads without a cluster, with additional threads while blocks are sent to a remote
    store: see `zarr_dask.jobs.engine.overlap_pool`.
    """

    @property
    def target(self) -> Array:
        """The target as it will be; it does not exist yet."""
        return self.then.target

    @property
    def nbytes(self) -> int:
        """Decoded bytes to rechunk."""
        return self.then.nbytes

    @property
    def requests(self) -> dict[str, int]:
        """Predicted requests of all tasks by kind; not those of what makes the blocks."""
        first = self.target if self.direct else self.then.source
        written = {"write": first.meta.grid.ncells}
        return written if self.direct else add_requests([written, self.then.requests])

    @property
    def block_memory(self) -> int:
        """Maximum bytes per process while blocks are written: the blocks, and write buffers.

        Memory for computing a block is not included, because it is unknown.
        """
        array = self.target if self.direct else self.then.source
        written = layout_of(array)
        largest: Shape = tuple(max(sizes, default=0) for sizes in self.values.chunks)
        nbytes = prod(largest) * written.itemsize
        threads = self.then.threads_per_process
        if self.lends and is_remote(array.store):
            threads += max_uploading(nbytes)
        return block_memory(written, nbytes) * min(threads, written.grid.ncells)

    def __str__(self) -> str:
        return self.explain()

    def explain(self) -> str:
        """Return the plan in words and numbers."""
        values, target = self.values, self.target
        lines = [
            f"rechunk a dask array {values.shape} {format_dtype(values.dtype)}, "
            f"{format_bytes(self.nbytes)}",
            f"     to {target.where}, chunks {target.meta.grids}",
        ]
        if self.direct:
            lines.append(
                f"  direct  {pluralize(values.npartitions, 'block')} of {values.chunksize} are "
                "whole stored objects of the target, and are written as they are"
            )
            return "\n".join([*lines, self._memory_of_blocks()])
        source = self.then.source
        pieces = f", in chunks of {source.chunks}" if source.shards else ""
        lines.append(
            f"  first   {pluralize(values.npartitions, 'block')} are written as they come into an "
            f"array between, {pluralize(source.meta.grid.ncells, 'stored object')}{pieces}"
        )
        lines.append(self._memory_of_blocks())
        then = self.then.explain().splitlines()[2:]
        return "\n".join([*lines, "  then    that is rechunked:", *then])

    def _memory_of_blocks(self) -> str:
        return (
            f"  memory  {format_bytes(self.block_memory)} per process for blocks and what writing "
            "them adds; what computing them takes comes on top"
        )

    def plot(self) -> Figure:
        """Plot the work on the blocks as a matplotlib figure: see `RechunkPlan.plot`.

        Blocks that are written directly are drawn as by `WritePlan.plot`.

        Raises
        ------
        MissingDependencyError
            If matplotlib is not installed.
        """
        if self.direct:
            return self._directly(resume=False, journal=None).plot()
        return self.then.plot()

    def _repr_html_(self) -> str:
        first, *rest = self.explain().splitlines()
        words = "".join(
            f"<p>{escape(escape_control_chars(line.strip()))}</p>" for line in (first, *rest[:3])
        )
        return words if self.direct else words + self.then._repr_html_()

    def to_json(self) -> str:
        """Raise `PlanError`: a graph contains functions, which a plan file never does.

        Raises
        ------
        PlanError
            Always. The message tells how to store the blocks first; the rest can be a plan file.
        """
        if self.direct:
            raise PlanError(
                "a dask graph has no form in a plan file, and its blocks are whole stored objects "
                "of the target: write them with zarr_dask.to_zarr, which needs no rechunking."
            )
        between = self.between
        shards = f", shards={between.shards}" if between.shards else ""
        raise PlanError(
            "a dask graph has no form in a plan file. Store its blocks first, with dask: "
            f"zarr_dask.to_zarr(x, between, chunks={between.chunks}{shards}); then "
            f"zarr_dask.plan_rechunk(between, target, chunks={self.options['chunks']}, "
            f"shards={self.options['shards']}).to_json() is carried out without dask "
            "(give it dtype=, codecs= and format= as here)."
        )

    # --- running ----------------------------------------------------------------------------------

    @in_job()
    @closes_zip_targets(lambda plan: [plan.target.store])
    def run(
        self,
        client: Client | None = None,
        progress: Callable[[Progress], None] | bool | None = None,
        *,
        resume: Resume = False,
        journal: Location | None = None,
        verify: bool = False,
    ) -> DaskRechunkReport:
        """Run the plan.

        Parameters
        ----------
        client
            A cluster; by default the current client's, or the scheduler dask is configured for.
        progress
            Called after each task; True for bars that count bytes, one for each stage. Writing the
            blocks is the first stage.
        resume
            Resume the same call if it has died: only blocks without a valid receipt are computed,
            and only boxes without one are copied. A name such as ``"run-7"`` declares that all
            calls with this name compute the same values, for graphs whose tokens cannot show it.
            Without it, a call that fails leaves nothing.
        journal
            Location of the target's receipts; beside it by default.
        verify
            Compare the target with the computed values before it becomes visible. The values are
            then always put into an intermediate array, because computing them again may give other
            values.

        Raises
        ------
        ResumeError
            If the graph cannot be told from others, or there is no location for a journal.
        ValuesDifferError
            If the comparison finds a difference.
        NodeExistsError
            If something exists at the target by now.
        ZarrDaskError
            As `WritePlan.run` and `RechunkPlan.run`.
        """
        check_bools(verify=verify)
        progress = given_progress(progress)
        begun = perf_counter()
        direct = self.direct and not verify
        if progress is True:
            totals = [self.nbytes] * (1 if direct else 1 + len(self.then.stages))
            with rechunk_bars(totals, verify=self.nbytes if verify else None) as advance:
                return self.run(client, advance, resume=resume, journal=journal, verify=verify)
        if direct:
            write = self._directly(resume=resume, journal=journal)
            report, stage = self._write(write, client, progress)
            return DaskRechunkReport(
                written=report, rechunked=None, stages=(stage,), seconds=perf_counter() - begun
            )
        if journal is not None:
            given_place(journal, self.target.store, self.target.path)  # raises if there is none
        staging = self.between.staging(self.values, self.target, resume=resume)
        then = replace(self.then, source=replace(self.then.source, store=staging.array))
        if not (resume and resumed(then.as_job(), journal) is not None):
            if resume and then.is_finished() and staging.exists():
                staging.remove()  # a call died at its end, before it removed this
                seconds = perf_counter() - begun
                return DaskRechunkReport(written=None, rechunked=None, seconds=seconds)
            then.as_job().check_room()
        steps = _JoinedProgress(progress, 1 + len(then.stages) + verify)
        with self._cleared(then, staging, journal, resume=resume):
            written: WriteReport | None = None
            stages: list[StageReport] = []
            if not is_there_as_planned(then.source):
                made = plan_blocks(staging, self.values, resume=resume)
                written, first = self._write(made, client, steps.of(0))
                stages.append(first)
            told = steps.of(1)
            ran = then.run(client, told, resume=bool(resume), journal=journal, verify=verify)
        return DaskRechunkReport(
            written=written,
            rechunked=ran,
            seconds=perf_counter() - begun,
            stages=(*stages, *ran.stages),
            bound=ran.bound,
            peaks=ran.peaks,
            repeated=ran.repeated,
            retried_besides=ran.retried_besides,
            waited=ran.waited + (0.0 if written is None else written.waited),
            requests=add_requests(one.requests for one in (written, ran) if one is not None),
        )

    def _write(
        self,
        write: WritePlan,
        client: Client | None,
        progress: Callable[[Progress], None] | None,
    ) -> tuple[WriteReport, StageReport]:
        """Write the blocks, and return the report beside the predictions."""
        begun = perf_counter()
        written = write.run(client, progress)
        seconds = perf_counter() - begun
        layout, model = layout_of(write.target), self.then.model
        ratio = self.then.ratios.target if self.direct else 1.0
        stored = round(write.nbytes * ratio)
        predicted = Costs(written=write.nbytes, writes=write.objects, stored=stored)
        work = (
            write.nbytes / layout.encode
            + stored / model.write
            + write.objects * model.request
            + write.tasks * model.task
        )
        objects = written.objects + written.empty
        actual = Costs(written=written.nbytes, writes=objects, stored=written.stored)
        done = write.tasks * objects // max(write.objects, 1)
        least = work / self.then.threads
        return written, StageReport(
            write.tasks, done, predicted, actual, least, seconds, written.retried
        )

    def _directly(self, *, resume: Resume, journal: Location | None) -> WritePlan:
        target = self.target
        plan: WritePlan = plan_write(
            self.values,
            target.store,
            target.path,
            resume=resume,
            journal=journal,
            overwrite=self.then.overwrite,
            **self.options,
        )
        return plan

    @contextmanager
    def _cleared(
        self, then: RechunkPlan, staging: StagingFolder, journal: Location | None, *, resume: Resume
    ) -> Iterator[None]:
        """Remove the intermediate array at the end, or what cannot be resumed after an error."""
        try:
            yield
        except BaseException as error:
            if not resume or not isinstance(error, Exception):
                with suppress(ResumeError, StoreError):
                    left = resumed(then.as_job(), journal)
                    if left is not None and left.journal is not None:
                        left.remove_intermediates()
                        left.journal.remove()
                with suppress(StoreError):  # the first error is what matters
                    staging.remove()
            raise
        staging.remove()


class _JoinedProgress:
    """Progress of two jobs as one."""

    def __init__(self, progress: Callable[[Progress], None] | None, stages: int) -> None:
        self._progress, self._stages = progress, stages

    def of(self, first: int) -> Callable[[Progress], None] | None:
        """Return the progress callback for a job whose stages come after some others."""
        told = self._progress
        if told is None:
            return None
        return lambda step: told(replace(step, stage=step.stage + first, stages=self._stages))


# --- planning -------------------------------------------------------------------------------------


def plan_dask(
    values: Any,
    store: Store,
    path: str,
    node_format: Format,
    wanted: TargetSpec,
    resources: RechunkBudget,
    *,
    overwrite: bool,
) -> DaskRechunkPlan:
    """Plan how to rechunk a dask array; see `zarr_dask.plan_rechunk`.

    Raises
    ------
    ValueError
        If a region is given.
    GridError
        If blocks have no known size, or the grids do not fit.
    SourceIsTargetError
        If the graph reads the target.
    StoreError
        If there is no location for the intermediate array.
    """
    from zarr_dask.graph import checked_array

    known = checked_array(values)
    if wanted.region is not None:
        raise ValueError("region= is for stored arrays; slice the dask array instead.")
    typed = plan_write(known, open_store({}), format=DEFAULT_FORMAT.name).target
    data_type = typed.meta.data_type
    spec = ArraySpec(
        shape=known.shape,
        dtype=data_type,
        chunks=_first_blocks(known.chunks),
        codecs=wanted.codecs,
        format=node_format.name,
    )
    like = Array(store, path, array_meta(spec, where(store, path)), node_format)
    made = new_array(like, store, path, node_format, replace(wanted, codecs=None)).array
    check_not_read(known, store, path)
    check_can_create(store, path, node_format, overwrite=overwrite)
    between, source = plan_staging(known, made, resources.temp)
    new = TargetArray(source.meta.grid.everything, made)
    # nothing exists yet that could be sampled
    then = make_rechunk_plan(
        source, new, resources, overwrite=overwrite, sample=CompressionRatios()
    )
    options = {
        "chunks": made.chunks if made.shards else _cells_of(made),
        "shards": _cells_of(made) if made.shards else None,
        "codecs": wanted.codecs,
        "format": node_format.name,
    }
    direct = made.meta.grid.align(known.chunks) == known.chunks and wanted.dtype is None
    lends = resources.workers.client is None and not runs_processes()
    return DaskRechunkPlan(known, then, between, direct, options, lends)


def _first_blocks(blocks: Blocks) -> Shape:
    return tuple(max(sizes[0], 1) if sizes else 1 for sizes in blocks)


def _cells_of(array: Array) -> Cells:
    """Return the size of stored objects along each dimension, or the sizes if they differ."""
    cell = array.meta.grid.cell_shape
    if cell is not None:
        return cell
    return tuple(dimension.lengths or 1 for dimension in array.meta.grid.dimensions)
