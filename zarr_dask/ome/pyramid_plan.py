"""Contents of one writing job: pyramids with their sources, groups, and final changes.

`zarr_dask.ome.plan` describes them, `zarr_dask.ome.job` executes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from zarr_dask.array.array import Array
from zarr_dask.formats.base import Format, GroupMeta
from zarr_dask.grid.grid import Region, Shape
from zarr_dask.jobs.engine.plan import format_bytes, pluralize
from zarr_dask.jobs.engine.predict import overlapping_tasks
from zarr_dask.jobs.engine.prices import Priced
from zarr_dask.ome.downsample import Method
from zarr_dask.ome.pyramid import PyramidStage
from zarr_dask.ome.pyramid_task import (
    InMemory,
    PixelReader,
    PyramidRecords,
    PyramidTask,
    StoredSource,
)
from zarr_dask.stores.base import Store, is_remote
from zarr_dask.stores.streaming_put import room_within

if TYPE_CHECKING:
    import dask.array as da

    from zarr_dask.graph import IndependentBlocks

__all__ = ["PixelSource", "PyramidJobPlan", "PyramidPlan"]


@dataclass(frozen=True, eq=False)
class PixelSource:
    """Source of the pixels of level 0."""

    values: Array | np.ndarray | da.Array
    """The pixels as given by the user."""
    blocks: IndependentBlocks | None = None
    """Blocks of a dask array, if tasks can compute them one by one."""

    @property
    def handed_over(self) -> bool:
        """True if super-cells are computed by a graph, so that tasks cannot read them."""
        return not isinstance(self.values, Array | np.ndarray) and self.blocks is None

    def source(self) -> PixelReader | None:
        """Return the source that tasks read from; None if super-cells are computed by a graph."""
        if self.blocks is not None:
            return self.blocks
        if isinstance(self.values, Array):
            return StoredSource(self.values)
        if isinstance(self.values, np.ndarray):
            return InMemory(self.values, (0,) * self.values.ndim)
        return None


@dataclass(frozen=True, eq=False)
class PyramidPlan:
    """The levels of one image, and their source and method."""

    pixels: PixelSource
    arrays: tuple[Array, ...]
    """The new levels as they will be stored; they do not exist yet."""
    factors: tuple[Shape, ...]
    """Factors of each level against the one before; of the first against the source."""
    method: Method
    stages: tuple[PyramidStage, ...]
    """Stages, run one after the other."""
    region: Region | None = None
    """Pixels of the source that have changed, so that only what is made of them is written."""

    @property
    def objects(self) -> int:
        """Number of stored objects."""
        if self.region is None:
            return sum(array.meta.grid.ncells for array in self.arrays)
        return sum(int(array.meta.grid.count_parts(region)) for array, region in self._written())

    @property
    def nbytes(self) -> int:
        """Decoded bytes of all levels that are written."""
        if self.region is None:
            return sum(array.nbytes for array in self.arrays)
        itemsize = self.arrays[0].meta.data_type.typical_itemsize
        pixels = [_pixels(region) for _, region in self._written()]
        return sum(pixels) * itemsize

    @property
    def reads(self) -> int:
        """Requests by which tasks read stored pixels; a part of a shard takes two."""
        return sum(
            1 + bool(array.shards and not part.whole)
            for array, region in self._read()
            for part in array.meta.grid.parts(region)
        )

    def _read(self) -> Iterator[tuple[Array, Region]]:
        """Yield the regions of arrays that tasks read."""
        for i, stage in enumerate(self.stages):
            source = self.arrays[stage.first - 1] if stage.first else self.pixels.values
            if not isinstance(source, Array):
                continue
            for number in self.numbers(i):
                for piece, made in stage.pieces(number):
                    if all(s.start < s.stop for s in made):
                        yield from ((source, region) for region, _ in stage.steps(piece, made))

    def _written(self) -> Iterator[tuple[Array, Region]]:
        """Yield the regions of arrays that tasks write."""
        for i, stage in enumerate(self.stages):
            for number in self.numbers(i):
                for at in range(stage.first, stage.last + 1):
                    yield self.arrays[at], stage.region(number, at - stage.first)

    def writer(self, stage: int, records: PyramidRecords | None, waiting: int = 0) -> PyramidTask:
        """Return a stage with its source, its target arrays and its receipts.

        Up to `waiting` bytes of encoded objects may wait for a remote store in each process.
        """
        chosen = self.stages[stage]
        source = (
            StoredSource(self.arrays[chosen.first - 1]) if chosen.first else self.pixels.source()
        )
        arrays = self.arrays[chosen.first : chosen.last + 1]
        return PyramidTask(chosen, source, arrays, self.method, records, waiting)

    def numbers(self, stage: int) -> Sequence[int]:
        """Return the tasks of a stage."""
        chosen = self.stages[stage]
        if self.region is None:
            return range(chosen.tasks)
        changed = self.region
        for before in self.stages[:stage]:  # each of them of one level
            changed = before.coarse(changed)
        return chosen.meeting(changed)

    def bytes_of(self, stage: int) -> int:
        """Return the decoded bytes that a stage reads, without margins."""
        itemsize = self.arrays[0].meta.data_type.typical_itemsize
        chosen = self.stages[stage]
        if self.region is None:
            return prod(chosen.shapes[0]) * itemsize
        cells = [_pixels(chosen.region(number, -1)) for number in self.numbers(stage)]
        return sum(cells) * itemsize

    def explain(self) -> list[str]:
        """Return the plan as text."""
        lines = []
        for array, factors in zip(self.arrays, self.factors, strict=True):
            lines.append(
                f"  {array.path.rpartition('/')[2]}: {array.shape} {array.dtype.name}, factors "
                f"{factors}, chunks {array.meta.grids}, {format_bytes(array.nbytes)}"
            )
        for number, stage in enumerate(self.stages):
            levels = [self.arrays[i].path for i in range(stage.first, stage.last + 1)]
            names = ", ".join(path.rpartition("/")[2] for path in levels)
            source = self._read_by(stage)
            whole = self.bytes_of(number)
            tasks = pluralize(len(self.numbers(number)), "super-cell")
            lines.append(
                f"  stage {number + 1}: {source} -> {names} in "
                f"{tasks} of {stage.cell}, read in pieces of "
                f"{stage.step}: {format_bytes(stage.read)} ({stage.read / max(whole, 1):.2f} x); "
                f"{format_bytes(stage.peak)} in each task, {stage.threads} at a time in a process"
            )
        return lines

    def _read_by(self, stage: PyramidStage) -> str:
        if stage.first:
            return f"level {self.arrays[stage.first - 1].path.rpartition('/')[2]}"
        if self.pixels.handed_over:
            return "the blocks of a graph, regrouped,"
        if self.pixels.blocks is not None:
            return "blocks that each task computes"
        return "a stored array" if isinstance(self.pixels.values, Array) else "an array in memory"


def _pixels(region: Region) -> int:
    count: int = prod(s.stop - s.start for s in region)
    return count


@dataclass(frozen=True, eq=False)
class PyramidJobPlan(Priced):
    """All contents of one job: images with their label images, or all wells of a plate."""

    store: Store
    path: str
    """Path of the new node, or of the node that is extended."""
    node_format: Format
    pyramids: tuple[PyramidPlan, ...]
    groups: Mapping[str, Mapping[str, Any]]
    """Path and attributes of new groups."""
    amends: tuple[Callable[[], None], ...] = ()
    """Functions that change existing groups at the end."""
    first: tuple[Callable[[], None], ...] = ()
    """Functions called before anything is written."""
    consolidated: tuple[str, ...] = ()
    """Paths of surrounding groups whose consolidated metadata are rewritten."""
    creates: bool = True
    """True if the node at `path` is new."""
    overwrite: bool = False
    max_mem: int = 0
    """Bytes that one process may hold on top of its idle size."""
    threads: int = 1
    """Number of tasks that run at the same time."""
    threads_per_process: int = 1

    @cached_property
    def documents(self) -> dict[str, dict[str, bytes]]:
        """Metadata of all new nodes, by their paths; the deepest must be written first."""
        node_format = self.node_format
        documents = {
            array.path: node_format.documents(array.meta, array.path)
            for pyramid in self.pyramids
            for array in pyramid.arrays
        }
        for path, attributes in self.groups.items():
            documents[path] = node_format.documents(GroupMeta(attributes), path)
        return documents

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return sum(
            len(pyramid.numbers(i)) for pyramid in self.pyramids for i in range(len(pyramid.stages))
        )

    @property
    def objects(self) -> int:
        """Number of stored objects."""
        return sum(pyramid.objects for pyramid in self.pyramids)

    @property
    def nbytes(self) -> int:
        """Decoded bytes of all levels."""
        return sum(pyramid.nbytes for pyramid in self.pyramids)

    @property
    def requests(self) -> dict[str, int]:
        """Predicted requests of all tasks by kind; not those of what computes pixels."""
        return {"read": sum(pyramid.reads for pyramid in self.pyramids), "write": self.objects}

    @property
    def waiting(self) -> int:
        """Bytes of encoded objects that a process may have waiting for a remote store."""
        return room_within(self.max_mem - self.peak)

    @property
    def peak(self) -> int:
        """Maximum number of bytes that the tasks of one process hold."""
        return self.held_by_process(self.threads_per_process + self.overlapping)

    @cached_property
    def overlapping(self) -> int:
        """Number of tasks that are begun while others wait for a remote store.

        They run on threads of this process.
        """
        if self.threads != self.threads_per_process or not is_remote(self.store):
            return 0
        return overlapping_tasks(self.held_by_process, self.threads, self.max_mem, self.tasks)

    def held_by_process(self, threads: int) -> int:
        """Return the maximum number of bytes that a process of some threads holds."""
        stages = [stage for pyramid in self.pyramids for stage in pyramid.stages]
        held = [
            stage.peak * (stage.threads if stage.threads < self.threads_per_process else threads)
            for stage in stages
        ]
        return max(held, default=0)

    @property
    def total(self) -> int:
        """Bytes to read, the unit of progress."""
        return sum(
            pyramid.bytes_of(i) for pyramid in self.pyramids for i in range(len(pyramid.stages))
        )
