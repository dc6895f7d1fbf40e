"""What a writing task does: whole stored objects of an array, one after the other.

`ArrayTarget` is the part of a write that travels to the workers. It knows nothing of how the blocks
came about; `zarr_dask.jobs.write` sees to it that no stored object lies in two of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from zarr_dask.array import Array
from zarr_dask.errors import DataTypeError, GridError, MetadataChangedError
from zarr_dask.formats.base import ArrayMeta
from zarr_dask.formats.update import current, put_changed
from zarr_dask.hierarchy import put_documents
from zarr_dask.indexing import checked_region
from zarr_dask.jobs.plan import format_bytes, format_region
from zarr_dask.jobs.shared import change_part
from zarr_dask.scratch import keeping_freed_memory

__all__ = ["ArrayTarget", "Casting", "WriteReport", "takes"]

Casting = Literal["safe", "same_kind", "unsafe"]
"""Which values an array takes, in NumPy's words."""


def takes(array: Array, dtype: np.dtype[Any], casting: Casting) -> bool:
    """Whether values of a NumPy type may be written to an array."""
    if array.meta.data_type.holds(dtype):
        return True
    return casting != "safe" and np.can_cast(dtype, array.dtype, casting)


@dataclass(frozen=True, slots=True)
class WriteReport:
    """What a write has done."""

    objects: int = 0
    """Stored objects that were written."""
    empty: int = 0
    """Stored objects left out because they hold fill values only."""
    nbytes: int = 0
    """Decoded bytes."""
    stored: int = 0
    """Encoded bytes."""

    def __str__(self) -> str:
        return (
            f"{format_bytes(self.nbytes)} in {self.objects} stored objects "
            f"({format_bytes(self.stored)}), {self.empty} left out as fill values"
        )


@dataclass(frozen=True, eq=False)
class ArrayTarget:
    """An array as the tasks of a graph write it; see `zarr_dask.graph.Target`."""

    array: Array
    creates: bool
    """Whether the last task writes the metadata document."""
    before: ArrayMeta | None = None
    """Of an array that grows: what its document says until all is written."""
    casting: Casting = "safe"
    """Which values are taken."""
    compares: bool = False
    """Whether other jobs may be writing to stored objects that are written in part."""

    def write(self, block: np.ndarray, region: tuple[slice, ...]) -> WriteReport:
        """Write the stored objects of a region, one after the other."""
        array = self.array
        self._check(block, region)
        values = array.cast(block)
        with keeping_freed_memory():
            sizes = [
                change_part(array, part, values)
                if self.compares and not part.whole
                else array.write_part(part, values)
                for part in array.meta.grid.parts(checked_region(region, array.shape))
            ]
        empty = sizes.count(0)
        return WriteReport(len(sizes) - empty, empty, values.nbytes, sum(sizes))

    def _check(self, block: Any, region: tuple[slice, ...]) -> None:
        """Refuse what a graph has computed against its own word."""
        shape = tuple(s.stop - s.start for s in region)
        if np.shape(block) != shape:
            raise GridError(
                f"a block for the region {format_region(region)} of {self.array.where} has the "
                f"shape {np.shape(block)}, but dask said {shape}; give map_blocks the right "
                "chunks=."
            )
        if isinstance(block, np.ma.MaskedArray):
            raise DataTypeError(
                f"a block for {self.array.where} is masked, and a mask cannot be stored; fill it "
                "first (da.ma.filled)."
            )
        dtype = np.asarray(block).dtype
        if not takes(self.array, dtype, self.casting):
            raise DataTypeError(
                f"a block for {self.array.where} has the data type {dtype}, but dask said "
                f"{self.array.dtype}; give map_blocks the right dtype=, or convert with astype."
            )

    def merge(self, results: Sequence[WriteReport]) -> WriteReport:
        """Add reports up."""
        return WriteReport(
            sum(r.objects for r in results),
            sum(r.empty for r in results),
            sum(r.nbytes for r in results),
            sum(r.stored for r in results),
        )

    def finish(self, result: WriteReport) -> WriteReport:
        """Make a new array, or the new length of one, visible."""
        array = self.array
        if self.creates:
            put_documents(array.store, array.node_format.documents(array.meta, array.path))
        elif self.before is not None:
            self._grow(self.before)
        return result

    def _grow(self, before: ArrayMeta) -> None:
        array = self.array
        place = (array.store, array.path, array.node_format)
        try:
            present = current(*place, before, array.options)
        except MetadataChangedError:
            current(*place, array.meta, array.options)  # this task runs again: it has been done
            return
        put_changed(*place, present, replace(array.meta, attributes=present.attributes))

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return "zarr_dask.ArrayTarget", self.array.token, self.creates
