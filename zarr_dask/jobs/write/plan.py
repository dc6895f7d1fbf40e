"""Plan of a write as a value: as text, as JSON, and as a plot.

`zarr_dask.jobs.write.running` runs it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, pairwise
from math import prod
from typing import TYPE_CHECKING, Any, Literal, Self

from zarr_dask._util.display import InWords, format_dtype, html_table
from zarr_dask.array.array import Array
from zarr_dask.array.writer import is_shared
from zarr_dask.dtypes.base import Casting
from zarr_dask.formats.base import ArrayMeta
from zarr_dask.grid.grid import Blocks, Region
from zarr_dask.hierarchy.key_swap import Swap
from zarr_dask.hierarchy.locate import PrefetchedLocation
from zarr_dask.jobs.engine import find_workers
from zarr_dask.jobs.engine.plan import format_bytes, format_times, pluralize
from zarr_dask.jobs.engine.predict import CostModel, JobBudget
from zarr_dask.jobs.engine.prices import Priced
from zarr_dask.jobs.engine.resume import ResumePlan
from zarr_dask.jobs.write.plot import WritePanel, plot_writes
from zarr_dask.jobs.write.regroup import Regrouping, WrittenBlocks, ways, written_blocks
from zarr_dask.jobs.write.staging import StagingArray, StagingFolder
from zarr_dask.journal import NodeClaim

if TYPE_CHECKING:
    import dask.array as da
    from matplotlib.figure import Figure

__all__ = ["Partial", "PlannedWrite"]

Partial = Literal["refuse", "own", "compare"]
"""Treatment of stored objects that a region covers only in part: see `plan_write`."""

_MOST_LISTED = 1000
"""Maximum number of objects written in part that the JSON of a plan lists."""


@dataclass(frozen=True, eq=False, repr=False)
class PlannedWrite(Priced, InWords):
    """Everything that a write will do; made by `plan_write`."""

    values: da.Array
    """The values to write, in their original blocks."""
    target: Array
    """The array as it will be; it does not exist yet if `creates`."""
    region: Region
    """Elements of the target to write."""
    blocks: Blocks
    """Sizes of the blocks that are written, each a union of stored objects."""
    partial: tuple[tuple[int, ...], ...]
    """Coordinates of stored objects that the region covers only in part."""
    creates: bool
    resume: ResumePlan
    """Journal of the job, and the job that it resumes."""
    overwrite: bool = False
    before: ArrayMeta | None = None
    """Metadata of a growing array until all is written."""
    casting: Casting = "safe"
    uses_cas: bool = False
    """True if other jobs may be writing to the objects that are written in part."""
    swap: Swap | None = None
    """Swap that later puts the array, or its group, in place of another one; None to write it in
    place."""
    has_ended: bool = False
    """True if a call wrote all of it and died before it could remove its journals."""
    prefetched: PrefetchedLocation | None = None
    """Content of the array's location when this was planned."""
    reuse_prefetched_place: bool = False
    """True if it is run by the call that has planned it, so that `prefetched` is of just now."""
    deferred: bool = False
    """True if a `Commit` makes the array visible together with others."""
    is_between: bool = False
    """True if only one job knows of the array."""
    ways: tuple[Regrouping, ...] = ()
    """Ways to write the blocks, the chosen one first; empty for blocks that are written as they
    are, if nobody has asked for a budget."""
    budget: JobBudget | None = None
    """Memory that the ways were chosen for."""
    ways_within: Callable[[JobBudget], tuple[Regrouping, ...]] | None = None
    """Returns the ways within another budget."""
    between: StagingArray | None = None
    """Array between that the blocks may be written into first; None if there is no place for it."""
    plan_blocks: Callable[[StagingFolder, da.Array], PlannedWrite] | None = None
    """Plans the write into that array."""
    in_one_graph: bool = False
    """True if other arrays of the same call need blocks that are written between, so that one graph
    has to do both."""
    anew: Callable[[], Self] | None = None
    """Plans the same resumable job again, after another process has worked on it; None for others.
    """
    group_claim: NodeClaim | None = None
    """The claim of the caller to a group that the array becomes visible with."""
    again: Callable[[], Self] | None = None
    """Plans the same append behind what others have appended meanwhile; None where none is waited
    for."""

    def at_once(self) -> Self:
        """Return the plan to be run now, without repeating the requests made while planning."""
        return replace(self, reuse_prefetched_place=True)

    def within(self, swap: Swap) -> Self:
        """Return the plan of an array of a group that replaces another one.

        All arrays of the group go on in the folder that the first one has begun in.
        """
        resume = replace(self.resume, job=replace(self.resume.job, swap=swap.token))
        ended = self.resume.has_ended or swap.is_done
        return replace(self, swap=swap, resume=resume, has_ended=ended)

    @property
    def regrouped(self) -> bool:
        """True if the blocks are cut anew to fit the stored objects."""
        return bool(self.blocks != self.values.chunks)

    @property
    def staged(self) -> bool:
        """True if blocks are written into an array between, from which the target is written."""
        return bool(self.ways) and self.ways[0].way == "staged"

    @property
    def staged_way(self) -> Regrouping | None:
        """The way through an array between, if that fits the budget."""
        fitting = (way for way in self.ways if self.budget and way.process <= self.budget.max_mem)
        return next((way for way in fitting if way.way == "staged"), None)

    def with_array_between(self) -> Self:
        """Return the plan that writes through an array between, if there is such a way."""
        way = self.staged_way
        if way is None:
            return self
        others = (one for one in self.ways if one != way)
        return replace(self, ways=(way, *others), blocks=way.blocks)

    def staged_within(self, budget: JobBudget) -> Self:
        """Return the plan through an array between, with boxes that fit a smaller budget.

        The same plan if there are none, or if it goes another way.
        """
        found = self.ways_within(budget) if self.staged and self.ways_within else ()
        fitting = [one for one in found if one.way == "staged" and one.process <= budget.max_mem]
        if not fitting:
            return self
        return replace(self, ways=(fitting[0], *self.ways[1:]), blocks=fitting[0].blocks)

    @property
    def memory(self) -> Regrouping:
        """Memory of a task and of a process, for the way in which the blocks are written."""
        return self.ways[0] if self.ways else self._directly(self._budget)

    @property
    def _budget(self) -> JobBudget:
        return self.budget or JobBudget.of(None, find_workers())

    @property
    def spare(self) -> int:
        """Bytes of the budget of a process that its tasks leave."""
        return self._budget.max_mem - self.memory.process

    def _directly(self, budget: JobBudget) -> Regrouping:
        return ways(self.written(self.values.chunks), budget, CostModel(), None)[0]

    def written(self, aligned: Blocks) -> WrittenBlocks:
        """Return what the estimates need, for blocks that are unions of stored objects."""
        shares = bool(self._cut) or (self.uses_cas and bool(self.partial))
        keeps = bool(self.partial) or self.resume.options.verify  # an object is read, too
        return written_blocks(
            self.values, self.target, self.region, aligned, keeps=keeps, shares=shares
        )

    @property
    def tasks(self) -> int:
        """Number of writing tasks."""
        return prod(map(len, self.blocks))

    @property
    def objects(self) -> int:
        """Number of stored objects in the region."""
        return self.target.meta.grid.count_parts(self.region)

    @property
    def nbytes(self) -> int:
        """Decoded bytes that are written."""
        return int(self.values.size) * self.target.meta.data_type.typical_itemsize

    @property
    def work_nbytes(self) -> int:
        """Decoded bytes that tasks write, those of an array between included."""
        return self.nbytes + (int(self.values.nbytes) if self.staged else 0)

    @property
    def largest_block(self) -> int:
        """Decoded bytes of the largest block that a task writes."""
        itemsize = self.target.meta.data_type.typical_itemsize
        return prod(max(sizes, default=0) for sizes in self.blocks) * itemsize

    @property
    def copied(self) -> int:
        """Decoded bytes that are copied into other blocks before they are written."""
        if not self.regrouped:
            return 0
        same = prod(map(_in_common, self.values.chunks, self.blocks))
        return (int(self.values.size) - same) * self.target.meta.data_type.typical_itemsize

    @property
    def requests(self) -> dict[str, int]:
        """Predicted requests of the writing tasks by kind; not those of what makes the blocks."""
        back = self.objects if self.resume.options.verify else 0
        return {"read": len(self.partial) + self._shared + back, "write": self.objects}

    @property
    def _shared(self) -> int:
        """Number of stored objects that are read because the array's end cuts them, and no more."""
        seen = (self.before or self.target.meta).grid
        return self._cut - sum(map(seen.cuts, self.partial)) if self._cut else 0

    @property
    def _cut(self) -> int:
        """Number of stored objects that the array's end cuts, where an append may change them.

        See `zarr_dask.array.writer.is_shared`.
        """
        target = self.target
        seen = (self.before or target.meta).grid
        if self.creates or not is_shared(target, tuple(n - 1 for n in seen.counts), seen):
            return 0
        return seen.count_cut(self.region)

    def __str__(self) -> str:
        return self.explain()

    def explain(self) -> str:
        """Return the plan in words and numbers."""
        target = self.target
        shape = tuple(s.stop - s.start for s in self.region)
        lines = [
            f"write {self._described_values()}",
            f"   to {target.where}, {self._kind()} {target.format} array of "
            f"chunks {target.meta.grids}",
            f"  region  {shape} at {tuple(s.start for s in self.region)}",
            f"  blocks  {_sizes(self.values.chunks)}, {self._how()}",
            f"  tasks   {self.tasks}, for {pluralize(self.objects, 'stored object')}",
            self._memory(),
        ]
        lines += self._reasons()
        if self.swap is not None and not self.deferred:
            lines.append("  swap    written beside the old array, whose place it takes at the end")
        if self.before is not None:
            lines.append(f"  length  {self.before.shape} until all is written, {target.shape} then")
        if self.partial:
            lines.append(
                f"  in part {pluralize(len(self.partial), 'stored object')} read, changed and "
                f"{self._in_part()}: {', '.join(map(str, self.partial[:5]))}"
                f"{' ...' if len(self.partial) > 5 else ''}"
            )
        if self.resume.options.verify:
            lines.append("  verify  each object is read back and compared before it counts")
        if line := self.resume.explain():
            lines.append(line)
        return "\n".join(lines)

    def _reasons(self) -> list[str]:
        """Return the reasons for this way to write the blocks: the numbers of the other one."""
        if not self.regrouped:
            return ["  why     no two blocks share a stored object"]
        if len(self.ways) < 2:
            return ["  why     there is no place for an array between"]
        chosen, other = self.ways
        return [
            f"  why     {chosen.words()}",
            f"          rather than {other.words()},",
            f"          {self._objection(chosen, other)}",
        ]

    def _objection(self, chosen: Regrouping, other: Regrouping) -> str:
        most = self._budget.max_mem
        if other.process > most:
            return f"which is more than the {format_bytes(most)} there are"
        if other.seconds < chosen.seconds:
            return "which leaves too little for the other arrays of this call"
        times = other.seconds / (chosen.seconds or 1.0)
        return f"which takes {format_times(times)} times as long by the cost model"

    def _kind(self) -> str:
        return "a new" if self.creates else "a growing" if self.before else "an existing"

    def _memory(self) -> str:
        budget, memory = self._budget, self.memory
        return (
            f"  memory  {format_bytes(memory.task)} per task, {format_bytes(memory.process)} per "
            f"process of {pluralize(budget.workers.threads_per_process, 'thread')}, of "
            f"{format_bytes(budget.max_mem)}; what computing the blocks takes comes on top"
        )

    def _in_part(self) -> str:
        if self.uses_cas:
            return "put back if no other job has changed them meanwhile, else read again"
        return "written by their single owner"

    def _described_values(self) -> str:
        dtype = format_dtype(self.values.dtype)
        return f"{self.values.shape} {dtype}, {format_bytes(self.nbytes)}"

    def _how(self) -> str:
        if not self.regrouped:
            return "written as they are"
        if self.staged:
            return (
                f"written as they come into an array between, from which {_sizes(self.blocks)} are "
                "read, so that no stored object has two writers"
            )
        return (
            f"regrouped into {_sizes(self.blocks)} so that no stored object has two writers "
            f"({format_bytes(self.copied)} copied)"
        )

    def _repr_html_(self) -> str:
        target = self.target
        facts = {
            "target": f"{self._kind()} {target.format} array of chunks {target.meta.grids}",
            "values": self._described_values(),
            "region": ", ".join(f"{s.start}:{s.stop}" for s in self.region) or "one element",
            "blocks": f"{_sizes(self.values.chunks)}, {self._how()}",
            "tasks": self.tasks,
            "stored objects": self.objects,
            "of them in part": len(self.partial),
        }
        return html_table(f"write to {target.where}", facts)

    def facts(self) -> dict[str, Any]:
        """Return the plan as JSON values; block sizes are pairs of a size and a count."""
        target = self.target
        return {
            "target": target.where,
            "format": target.format,
            "creates": self.creates,
            "overwrite": self.overwrite,
            "data_type": target.meta.data_type.label,
            "shape": list(target.shape),
            "shape_before": None if self.before is None else list(self.before.shape),
            "chunks": list(target.chunks),
            "shards": None if target.shards is None else list(target.shards),
            "region": [[s.start, s.stop] for s in self.region],
            "blocks": _runs(self.values.chunks),
            "written_blocks": _runs(self.blocks),
            "regrouped": self.regrouped,
            "staged": self.staged,
            "tasks": self.tasks,
            "objects": self.objects,
            "uses_cas": self.uses_cas,
            "swaps": self.swap is not None,
            "partial_objects": len(self.partial),
            "partial": [list(coords) for coords in self.partial[:_MOST_LISTED]],
            "nbytes": self.nbytes,
            "copied_nbytes": self.copied,
            "task_memory": self.memory.task,
            "process_memory": self.memory.process,
        }

    def to_json(self) -> str:
        """Return the plan as JSON.

        The length does not depend on the number of tasks: equal blocks are counted, and only the
        first thousand objects that are written in part are listed.
        """
        return json.dumps({"job": "write", "arrays": [self.facts()]}, indent=2)

    def plot(self) -> Figure:
        """Plot the owner of each stored object as a matplotlib figure.

        Stored objects have the colour of the task that writes them; objects written in part have
        another colour. The borders of dask's blocks are drawn over them. Of more than two
        dimensions, the two longest are shown.

        Raises
        ------
        MissingDependencyError
            If matplotlib is not installed.
        """
        return plot_writes([self.panel()])

    def panel(self) -> WritePanel:
        """Return the data for `plot`."""
        target = self.target
        return WritePanel(
            target.path or target.where,
            target.meta.grid,
            self.region,
            self.values.chunks,
            self.blocks,
            len(self.partial),
            target.dimension_names,
        )


def _sizes(blocks: Blocks) -> str:
    return (
        "x".join(
            str(sizes[0])
            if len(set(sizes[:-1]) | {sizes[0]}) == 1 and sizes[-1] <= sizes[0]
            else f"{min(sizes)}..{max(sizes)}"
            for sizes in blocks
        )
        or "one element"
    )


def _runs(blocks: Blocks) -> list[list[list[int]]]:
    return [[[size, len(list(same))] for size, same in groupby(sizes)] for sizes in blocks]


def _in_common(sizes: Iterable[int], others: Iterable[int]) -> int:
    """Return the number of elements in the blocks that two divisions of a dimension share."""
    found = [_intervals(one) for one in (sizes, others)]
    return sum(stop - start for start, stop in found[0] & found[1])


def _intervals(sizes: Iterable[int]) -> set[tuple[int, int]]:
    borders = list(accumulate(sizes, initial=0))
    return set(pairwise(borders))
