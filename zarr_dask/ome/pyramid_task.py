"""The task of a pyramid: read one super-cell once, and write every level of its stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from zarr_dask._util.buffers import malloc_keep_freed, mmap_empty
from zarr_dask.array.array import Array
from zarr_dask.array.writer import write_object_part
from zarr_dask.errors import DataTypeError, GridError
from zarr_dask.grid.grid import Region, Shape
from zarr_dask.jobs.engine.plan import add_requests, format_region
from zarr_dask.jobs.engine.visibility import check_job_seen_once
from zarr_dask.journal import Journal, NodeClaims
from zarr_dask.journal.receipts import ObjectDigest, Receipt, StoredObject, with_tags
from zarr_dask.ome.downsample import Method, downsample
from zarr_dask.ome.pyramid import PyramidStage
from zarr_dask.stores.base import Store
from zarr_dask.stores.put_tags import noting_tags
from zarr_dask.stores.retry import counting_retries
from zarr_dask.stores.streaming_put import concurrent_puts

__all__ = [
    "InMemory",
    "PixelReader",
    "PyramidRecords",
    "PyramidTarget",
    "PyramidTask",
    "PyramidTaskReport",
    "StoredSource",
    "merged",
]


class PixelReader(Protocol):
    """Interface of a source of pixels."""

    def read(self, region: Region) -> np.ndarray:
        """Return the pixels of a region."""
        ...


@dataclass(frozen=True, eq=False)
class StoredSource:
    """A stored array as a source."""

    array: Array

    def read(self, region: Region) -> np.ndarray:
        """See `PixelReader.read`."""
        shape = tuple(s.stop - s.start for s in region)
        return self.array.read(region, out=mmap_empty(shape, self.array.dtype), threads=1)


@dataclass(frozen=True, eq=False)
class InMemory:
    """A NumPy array, or a block of one that begins at some pixel, as a source."""

    values: np.ndarray
    start: Shape

    def read(self, region: Region) -> np.ndarray:
        """See `PixelReader.read`."""
        pairs = zip(region, self.start, strict=True)
        return self.values[tuple(slice(s.start - at, s.stop - at) for s, at in pairs)]


@dataclass(frozen=True)
class PyramidRecords:
    """Looks of tasks before they put an object, and the place of their receipts."""

    journal: Journal | None
    """Journal with the receipts; None if there are none."""
    prefix: str
    """Common prefix of keys that receipts omit."""
    claims: NodeClaims
    """Claims of the job to the locations of the new nodes, in a remote store."""

    def fence(self) -> None:
        """Raise if a later job has taken the place of this one.

        Raises
        ------
        JobReplacedError
            If one has.
        """
        self.claims.fence()
        if self.journal is not None and not self.claims.claims:
            self.journal.fence()


@dataclass(frozen=True, slots=True)
class PyramidTaskReport:
    """Results of tasks."""

    objects: int = 0
    """Number of stored objects that were written."""
    empty: int = 0
    """Number of stored objects omitted because they hold fill values only."""
    nbytes: int = 0
    """Decoded bytes of the super-cells in the source."""
    stored: int = 0
    """Number of encoded bytes."""
    retried: int = 0
    """Number of requests that were retried."""
    waited: float = 0.0
    """Seconds that retried requests have waited."""
    requests: Mapping[str, int] = field(default_factory=dict)
    """Requests by kind."""


def merged(reports: Sequence[PyramidTaskReport]) -> PyramidTaskReport:
    """Return the sum of reports."""
    return PyramidTaskReport(
        sum(r.objects for r in reports),
        sum(r.empty for r in reports),
        sum(r.nbytes for r in reports),
        sum(r.stored for r in reports),
        sum(r.retried for r in reports),
        sum(r.waited for r in reports),
        add_requests(r.requests for r in reports),
    )


@dataclass(frozen=True, eq=False)
class PyramidTask:
    """A stage with its source, its target arrays and its receipts."""

    stage: PyramidStage
    source: PixelReader | None
    """Source of the pixels; None if a graph computes super-cells."""
    arrays: tuple[Array, ...]
    """Arrays that the stage writes."""
    method: Method
    records: PyramidRecords | None
    waiting: int
    """Bytes of encoded objects that a process may have waiting for a remote store."""

    def __call__(self, number: int) -> PyramidTaskReport:
        """Run one task."""
        if self.source is None:
            raise TypeError("this stage is handed its super-cells by a graph.")
        return self.write(number, self.source)

    def keys(self, number: int) -> Iterator[str]:
        """Yield the keys of the stored objects that a task writes, as in its receipt."""
        prefix = "" if self.records is None else self.records.prefix
        for i, array in enumerate(self.arrays):
            for part in array.meta.grid.parts(self.stage.region(number, i)):
                yield array.key(part.coords)[len(prefix) :]

    def write(self, number: int, source: PixelReader) -> PyramidTaskReport:
        """Write the stored objects of a super-cell on every level, then the receipt.

        The same pixels always give the same bytes. A task may therefore be run again, even
        concurrently with a late first run.
        """
        written = _WrittenObjects(self.records)
        store = self.arrays[0].store
        with (
            malloc_keep_freed(),
            counting_retries() as retries,
            noting_tags() as tags,
            concurrent_puts(store, self.waiting),
        ):
            self._write_levels(number, source, written)
        written.leave_receipt(store, tags)
        pixels = 1
        for s in self.stage.region(number, -1):
            pixels *= s.stop - s.start
        nbytes = pixels * self.arrays[0].meta.data_type.typical_itemsize
        counts = (len(written.objects), len(written.empty), nbytes, written.nbytes)
        return PyramidTaskReport(*counts, retries.count, retries.seconds, dict(retries.requests))

    def _write_levels(self, number: int, source: PixelReader, written: _WrittenObjects) -> None:
        stage, arrays = self.stage, self.arrays
        next_level = self._buffer(number, 1) if len(arrays) > 1 else None
        for piece, made in stage.pieces(number):
            if any(s.start >= s.stop for s in made):
                continue  # for an existing image, whose levels may lack the last pixels
            pixels = self._first_level(source, piece, made)
            written.put(arrays[0], made, pixels)
            if next_level is not None:
                self._coarse_into(next_level, number, pixels, made)
            del pixels  # before the next piece is read
        if next_level is not None:
            self._write_further(number, next_level, written)

    def _write_further(self, number: int, pixels: np.ndarray, written: _WrittenObjects) -> None:
        """Write the second level of the stage, and those after it."""
        for i in range(1, len(self.arrays)):
            if i > 1:
                buffer = self._buffer(number, i)
                downsample(pixels, self.stage.factors[i], self.method, buffer)
                pixels = buffer
            if pixels.size:
                written.put(self.arrays[i], self.stage.region(number, i), pixels)

    def _buffer(self, number: int, level: int) -> np.ndarray:
        region = self.stage.region(number, level)
        shape = tuple(s.stop - s.start for s in region)
        return mmap_empty(shape, self.arrays[level].dtype)

    def _first_level(self, source: PixelReader, piece: Region, made: Region) -> np.ndarray:
        """Return the pixels of the first level that are made of a piece."""
        stage, array = self.stage, self.arrays[0]
        factors = stage.factors[0]
        if all(factor == 1 for factor in factors):
            return _cast(array, _read(source, piece))
        pixels = np.empty(tuple(s.stop - s.start for s in made), array.dtype)
        for region, part in stage.steps(piece, made):
            before = tuple(
                cells.start * factor - s.start
                for s, cells, factor in zip(region, part, factors, strict=True)
            )
            within = tuple(
                slice(s.start - whole.start, s.stop - whole.start)
                for s, whole in zip(part, made, strict=True)
            )
            downsample(
                _cast(array, _read(source, region)), factors, self.method, pixels[within], before
            )
        return pixels

    def _coarse_into(
        self, buffer: np.ndarray, number: int, pixels: np.ndarray, made: Region
    ) -> None:
        """Downsample a piece of the first level into the next one."""
        factors, region = self.stage.factors[1], self.stage.region(number, 1)
        whole = self.stage.region(number, 0)
        taken = []
        for s, out, level, factor in zip(made, region, whole, factors, strict=True):
            low = min((s.start - level.start) // factor, out.stop - out.start)
            at_end = s.stop == level.stop
            high = out.stop - out.start if at_end else (s.stop - level.start) // factor
            taken.append(slice(low, min(high, out.stop - out.start)))
        downsample(pixels, factors, self.method, buffer[tuple(taken)])


class _WrittenObjects:
    """The stored objects that a task has written so far."""

    def __init__(self, records: PyramidRecords | None) -> None:
        self._records = records
        self._journal = None if records is None else records.journal
        self.objects: list[StoredObject] = []
        self.empty: list[str] = []
        self.nbytes = 0

    def put(self, array: Array, region: Region, pixels: np.ndarray) -> None:
        """Write the stored objects of a region, one after the other."""
        prefix = "" if self._records is None else self._records.prefix
        if self._journal is not None:
            check_job_seen_once(self._journal, array)
        fence = None if self._records is None else self._records.fence
        for part in array.meta.grid.parts(region):
            name = array.key(part.coords)[len(prefix) :]
            noting = ObjectDigest(checksum=self._journal is not None)
            if not write_object_part(array, part, pixels, noting, fence=fence):
                self.empty.append(name)
                continue
            self.nbytes += noting.nbytes
            self.objects.append(noting.of(name))

    def leave_receipt(self, store: Store, tags: Mapping[str, str]) -> None:
        """Record the written objects in the journal, with the tags that the store returned."""
        if self._records is None or self._records.journal is None:
            return
        journal = self._records.journal
        objects = with_tags(self.objects, store, self._records.prefix, tags)
        journal.add(Receipt(journal.token, journal.run_id, objects, tuple(self.empty)))


def _read(source: PixelReader, region: Region) -> np.ndarray:
    values = source.read(region)
    shape = tuple(s.stop - s.start for s in region)
    if np.shape(values) != shape:
        raise GridError(
            f"the pixels {format_region(region)} of the source have the shape {np.shape(values)}, "
            f"where {shape} was expected."
        )
    if isinstance(values, np.ma.MaskedArray):
        raise DataTypeError("masked pixels cannot be stored; fill them first (da.ma.filled).")
    return values


def _cast(array: Array, values: np.ndarray) -> np.ndarray:
    values = np.asarray(values)
    if not array.meta.data_type.holds(values.dtype):
        raise DataTypeError(
            f"pixels for {array.where} have the data type {values.dtype}, but dask said "
            f"{array.dtype}; give map_blocks the right dtype=, or convert with astype."
        )
    return array.cast(values)


@dataclass(frozen=True, eq=False)
class PyramidTarget:
    """A stage whose super-cells are the blocks of a graph; see `zarr_dask.graph.Target`."""

    writer: PyramidTask

    def write(self, block: np.ndarray, region: Region) -> PyramidTaskReport:
        """Run the task of a super-cell."""
        start = tuple(s.start for s in region)
        return self.writer.write(self.writer.stage.number(start), InMemory(block, start))

    def merge(self, results: Sequence[PyramidTaskReport]) -> PyramidTaskReport:
        """Return the sum of reports."""
        return merged(results)

    def finish(self, result: PyramidTaskReport) -> PyramidTaskReport:
        """Return the result unchanged: the caller that runs the job finishes it."""
        return result
