"""What a write will do, as a value: in words, and as the graph that does it."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from secrets import token_hex
from typing import TYPE_CHECKING

from zarr_dask.array import Array
from zarr_dask.grid import Blocks, Region
from zarr_dask.hierarchy import prepare_array_place
from zarr_dask.jobs.plan import format_bytes
from zarr_dask.jobs.target import ArrayTarget, WriteReport

if TYPE_CHECKING:
    import dask.array as da

    from zarr_dask.graph import StoredWrite

__all__ = ["WritePlan"]


@dataclass(frozen=True, eq=False)
class WritePlan:
    """Everything that a write will do; made by `plan_write`."""

    values: da.Array
    """What is written, in the blocks it came in."""
    target: Array
    """Where; it does not exist yet if `creates`."""
    region: Region
    """Which elements of the target."""
    blocks: Blocks
    """Sizes of the blocks that are written, each a union of stored objects."""
    partial: tuple[tuple[int, ...], ...]
    """Coordinates of stored objects that the region covers only in part."""
    creates: bool
    overwrite: bool = False

    @property
    def regrouped(self) -> bool:
        """Whether the blocks are cut anew to fit the stored objects."""
        return bool(self.blocks != self.values.chunks)

    @property
    def tasks(self) -> int:
        """Number of writing tasks."""
        return prod(map(len, self.blocks))

    @property
    def objects(self) -> int:
        """Number of stored objects in the region."""
        return self.target.meta.grid.count_parts(self.region)

    def __str__(self) -> str:
        return self.explain()

    def explain(self) -> str:
        """The plan in words and numbers."""
        target = self.target
        grids = f"chunks {target.chunks}" + (f" in shards {target.shards}" if target.shards else "")
        how = (
            f"regrouped into {_sizes(self.blocks)} so that no stored object has two writers"
            if self.regrouped
            else "written as they are"
        )
        shape = tuple(s.stop - s.start for s in self.region)
        lines = [
            f"write {self.values.shape} {self.values.dtype.name}, "
            f"{format_bytes(self.values.nbytes)}",
            f"   to {target.where}, {'a new' if self.creates else 'an existing'} {target.format} "
            f"array of {grids}",
            f"  region  {shape} at {tuple(s.start for s in self.region)}",
            f"  blocks  {_sizes(self.values.chunks)}, {how}",
            f"  tasks   {self.tasks}, for {self.objects} stored objects",
        ]
        if self.partial:
            lines.append(
                f"  in part {len(self.partial)} stored objects are read, changed and written by "
                f"their single owner: {', '.join(map(str, self.partial[:5]))}"
                f"{' ...' if len(self.partial) > 5 else ''}"
            )
        return "\n".join(lines)

    def collection(self) -> StoredWrite:
        """The tasks, after making room at the target: what it replaces is gone."""
        from zarr_dask.graph import write_array

        target = self.target
        if self.creates:
            prepare_array_place(
                target.store,
                target.path,
                target.node_format,
                target.meta,
                overwrite=self.overwrite,
            )
        values = self.values
        if self.regrouped:
            values = values.rechunk(self.blocks, method="tasks")
        origin = tuple(s.start for s in self.region)
        # a write is an effect: what a scheduler still knows of an equal one must not stand for it
        token = f"{target.token}-{token_hex(8)}"
        return write_array(values, ArrayTarget(target, self.creates), origin, token)

    def run(self) -> WriteReport:
        """Do it, on the current client's cluster or dask's configured scheduler."""
        return self.collection().compute()  # type: ignore[no-any-return]


def _sizes(blocks: Blocks) -> str:
    return (
        "x".join(
            str(sizes[0])
            if len(set(sizes[:-1]) | {sizes[0]}) == 1
            else f"{min(sizes)}..{max(sizes)}"
            for sizes in blocks
        )
        or "one element"
    )
