"""What a job that writes images will do, as a value: pyramids, documents, memory.

A `PyramidPlan` is one image, and `WritePlan` all that one job writes: an image with its label
images, or all wells of a plate. `zarr_dask.ome.job` carries it out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from zarr_dask.array import Array
from zarr_dask.formats.base import Format, GroupMeta, where
from zarr_dask.grid import Shape
from zarr_dask.jobs.plan import counted, format_bytes
from zarr_dask.jobs.write.target import WriteReport
from zarr_dask.ome.cells import CellWriter, InMemory, Records, Source, Stored
from zarr_dask.ome.downsample import Method
from zarr_dask.ome.job import ImageProgress, run_plan
from zarr_dask.ome.pyramid import Stage
from zarr_dask.stores.base import Store
from zarr_dask.stores.urls import Location

if TYPE_CHECKING:
    import dask.array as da
    from distributed import Client

    from zarr_dask.graph import ComputedBlocks

__all__ = ["ImageWritePlan", "Pixels", "PyramidPlan"]


@dataclass(frozen=True, eq=False)
class Pixels:
    """Where the pixels of level 0 come from."""

    values: Array | np.ndarray | da.Array
    """As the user has given them."""
    blocks: ComputedBlocks | None = None
    """Of a dask array: its blocks, if tasks can compute them one by one."""

    @property
    def handed_over(self) -> bool:
        """Whether super-cells come from a graph, so that tasks cannot read them."""
        return not isinstance(self.values, Array | np.ndarray) and self.blocks is None

    def source(self) -> Source | None:
        """What tasks read from; None where super-cells come from a graph."""
        if self.blocks is not None:
            return self.blocks
        if isinstance(self.values, Array):
            return Stored(self.values)
        if isinstance(self.values, np.ndarray):
            return InMemory(self.values, (0,) * self.values.ndim)
        return None


@dataclass(frozen=True, eq=False)
class PyramidPlan:
    """The levels of one image, and how they are made."""

    pixels: Pixels
    arrays: tuple[Array, ...]
    """The levels that are written, as they will be; they do not exist yet."""
    factors: tuple[Shape, ...]
    """Of each of them against the one before; of the first against what is read."""
    method: Method
    stages: tuple[Stage, ...]
    """One after the other."""

    @property
    def objects(self) -> int:
        """Number of stored objects."""
        return sum(array.meta.grid.ncells for array in self.arrays)

    @property
    def nbytes(self) -> int:
        """Decoded bytes of all levels that are written."""
        return sum(array.nbytes for array in self.arrays)

    def writer(self, stage: int, records: Records | None) -> CellWriter:
        """A stage bound to what it reads, writes and leaves behind."""
        chosen = self.stages[stage]
        source = Stored(self.arrays[chosen.first - 1]) if chosen.first else self.pixels.source()
        arrays = self.arrays[chosen.first : chosen.last + 1]
        return CellWriter(chosen, source, arrays, self.method, records)

    def bytes_of(self, stage: int) -> int:
        """Bytes of what a stage reads."""
        itemsize = self.arrays[0].meta.data_type.typical_itemsize
        return prod(self.stages[stage].shapes[0]) * itemsize

    def explain(self) -> list[str]:
        """The plan in words and numbers."""
        lines = []
        for array, factors in zip(self.arrays, self.factors, strict=True):
            shards = f" in shards {array.shards}" if array.shards else ""
            lines.append(
                f"  {array.path.rpartition('/')[2]}: {array.shape} {array.dtype.name}, factors "
                f"{factors}, chunks {array.chunks}{shards}, {format_bytes(array.nbytes)}"
            )
        for number, stage in enumerate(self.stages):
            levels = [self.arrays[i].path for i in range(stage.first, stage.last + 1)]
            names = ", ".join(path.rpartition("/")[2] for path in levels)
            source = self._read_by(stage)
            whole = self.bytes_of(number)
            lines.append(
                f"  stage {number + 1}: {source} -> {names} in {counted(stage.tasks, 'super-cell')}"
                f" of {stage.cell}, read in pieces of {stage.step}: {format_bytes(stage.read)}"
                f" ({stage.read / max(whole, 1):.2f} x); {format_bytes(stage.peak)} in each task"
            )
        return lines

    def _read_by(self, stage: Stage) -> str:
        if stage.first:
            return f"level {self.arrays[stage.first - 1].path.rpartition('/')[2]}"
        if self.pixels.handed_over:
            return "the blocks of a graph, regrouped,"
        if self.pixels.blocks is not None:
            return "blocks that each task computes"
        return "a stored array" if isinstance(self.pixels.values, Array) else "an array in memory"


@dataclass(frozen=True, eq=False)
class ImageWritePlan:
    """All that one job writes; made by `zarr_dask.ome.plan_write` and others."""

    store: Store
    path: str
    """Of the node that comes into being, or that is added to."""
    node_format: Format
    pyramids: tuple[PyramidPlan, ...]
    groups: Mapping[str, Mapping[str, Any]]
    """Path and attributes of new groups."""
    amends: tuple[Callable[[], None], ...] = ()
    """What is done at the end to groups that exist."""
    first: tuple[Callable[[], None], ...] = ()
    """What is done before anything is written."""
    creates: bool = True
    """Whether the node at `path` is new."""
    overwrite: bool = False
    max_mem: int = 0
    """Bytes that one process may hold above its size when idle."""
    threads: int = 1
    """Tasks that run at the same time."""
    threads_per_process: int = 1
    title: str = "write"

    @cached_property
    def documents(self) -> dict[str, dict[str, bytes]]:
        """Documents of all new nodes, by their paths; the deepest are to be written first."""
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
    def levels(self) -> tuple[Array, ...]:
        """The arrays of the first image, as they will be."""
        return self.pyramids[0].arrays

    @property
    def factors(self) -> tuple[Shape, ...]:
        """Of each level of the first image against the one before."""
        return self.pyramids[0].factors

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return sum(stage.tasks for pyramid in self.pyramids for stage in pyramid.stages)

    @property
    def objects(self) -> int:
        """Number of stored objects."""
        return sum(pyramid.objects for pyramid in self.pyramids)

    @property
    def nbytes(self) -> int:
        """Decoded bytes of all levels."""
        return sum(pyramid.nbytes for pyramid in self.pyramids)

    @property
    def peak(self) -> int:
        """Bytes that the tasks of one process hold at most."""
        peaks = [stage.peak for pyramid in self.pyramids for stage in pyramid.stages]
        return max(peaks, default=0) * self.threads_per_process

    @property
    def total(self) -> int:
        """Bytes that are read, which progress is counted in."""
        return sum(
            pyramid.bytes_of(i) for pyramid in self.pyramids for i in range(len(pyramid.stages))
        )

    def __str__(self) -> str:
        return self.explain()

    def explain(self) -> str:
        """The plan in words and numbers."""
        lines = [
            f"{self.title} {where(self.store, self.path)}: {format_bytes(self.nbytes)} in "
            f"{counted(self.objects, 'stored object')}, {counted(self.tasks, 'task')}",
            f"  memory  {format_bytes(self.peak)} of {format_bytes(self.max_mem)} in each process "
            f"of {counted(self.threads_per_process, 'thread')}",
        ]
        for pyramid in self.pyramids[:_MOST_SHOWN]:
            path = pyramid.arrays[0].path.rpartition("/")[0]
            below = path[len(self.path) :].strip("/")
            lines.append(f" {below or 'image'}, {pyramid.method.name}")
            lines += pyramid.explain()
        if len(self.pyramids) > _MOST_SHOWN:
            lines.append(f" and {len(self.pyramids) - _MOST_SHOWN} more images")
        return "\n".join(lines)

    def to_json(self) -> str:
        """The plan as a JSON document; its size does not depend on the number of tasks."""
        return json.dumps({"job": "pyramid", **self.facts()}, indent=2)

    def facts(self) -> dict[str, Any]:
        """The plan as values that JSON knows."""
        return {
            "target": where(self.store, self.path),
            "format": self.node_format.name,
            "nbytes": self.nbytes,
            "objects": self.objects,
            "tasks": self.tasks,
            "max_mem": self.max_mem,
            "peak": self.peak,
            "threads": self.threads,
            "threads_per_process": self.threads_per_process,
            "images": [_facts(pyramid) for pyramid in self.pyramids],
        }

    def with_overwrite(self, overwrite: bool) -> ImageWritePlan:
        """The plan, where what is at its place may be replaced or not."""
        return replace(self, overwrite=overwrite)

    def run(
        self,
        client: Client | None = None,
        progress: ImageProgress | None = None,
        *,
        resume: bool | str = False,
        journal: Location | None = None,
    ) -> WriteReport:
        """Do it.

        Levels are written first, then their documents, then those of the groups, the outermost
        last: what is half done is no image to any reader.

        Parameters
        ----------
        client
            A cluster; by default the current client's, or the scheduler dask is configured for.
        progress
            Called after each task with the bytes that it has read; True for a bar.
        resume
            True to go on with the same call after it died, and to keep receipts for that; a name
            says that calls with this name write the same pixels. False begins anew.
        journal
            Where receipts are kept, outside the hierarchy; beside it by default.

        Raises
        ------
        NodeExistsError
            If something has come into being at the place since the plan was made.
        MemoryBudgetError
            If more tasks share a process than the plan was made for.
        ResumeError
            If the job to be resumed is another one, cannot be told from others, or there is no
            place for a journal.
        StoreError
            If nothing can be written.
        """
        return run_plan(self, client, progress, resume, journal)


_MOST_SHOWN = 8


def _facts(pyramid: PyramidPlan) -> dict[str, Any]:
    return {
        "method": pyramid.method.name,
        "levels": [
            {
                "path": array.path,
                "shape": list(array.shape),
                "factors": list(factors),
                "chunks": list(array.chunks),
                "shards": None if array.shards is None else list(array.shards),
            }
            for array, factors in zip(pyramid.arrays, pyramid.factors, strict=True)
        ],
        "stages": [
            {
                "levels": [stage.first, stage.last],
                "super_cell": list(stage.cell),
                "piece": list(stage.step),
                "tasks": stage.tasks,
                "peak": stage.peak,
                "read": stage.read,
            }
            for stage in pyramid.stages
        ],
    }
