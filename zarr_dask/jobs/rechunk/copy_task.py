"""Copying one stage of a rechunking, task by task.

A task reads a box of the source and writes the stored objects of the target in it, one by one. Its
work depends only on its number. If the data types differ, the values are converted; a number that
the new type cannot hold is an error.

Fractions may be lost, other numbers and texts may not change: NumPy silently wraps integers, cuts
texts and drops imaginary parts when it casts. All checks process few elements at a time, so they
need negligible memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Lock
from time import perf_counter
from typing import Any

import numpy as np

from zarr_dask._util.buffers import malloc_keep_freed, release_thread_buffers
from zarr_dask._util.threads import parallel_for, wait_context
from zarr_dask.array.array import Array
from zarr_dask.array.reader import ObjectSlice, Reader
from zarr_dask.array.writer import write_object_part
from zarr_dask.codecs.chain import thread_absent_pieces, thread_decoded_nbytes
from zarr_dask.errors import ChunkMissingError, DataTypeError, StoreError
from zarr_dask.grid.grid import Part, Region, Shape, translate_region, view_region
from zarr_dask.jobs.engine.cost_model import StagePlan
from zarr_dask.jobs.engine.plan import CopyResult, ProcessMemory, format_region
from zarr_dask.jobs.engine.rss import (
    RssProbe,
    measure_rss,
    process_name,
    reuse_buffer,
    warm_up_codecs,
)
from zarr_dask.jobs.engine.visibility import check_job_seen_once
from zarr_dask.journal import Journal
from zarr_dask.journal.receipts import ObjectDigest, Receipt, StoredObject, with_tags
from zarr_dask.stores.base import IOCounters, is_remote
from zarr_dask.stores.put_tags import noting_tags
from zarr_dask.stores.retry import counting_retries
from zarr_dask.stores.streaming_put import concurrent_puts
from zarr_dask.stores.wrappers.metered import metered

__all__ = ["CopyReceipts", "CopyStage", "cast_to_target", "describe_uncastable"]


class _WholeChunks:
    """Lock for a task that must hold whole chunks while its plan expects parts of them.

    Only one task of the process holds it at a time; a child process after a fork has its own.
    """

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self._lock = Lock()

    @contextmanager
    def on_demand(self) -> Iterator[Callable[[], None]]:
        """Yield a function that waits for the lock, held from its first call to the end."""
        lock, is_held = self._lock, False

        def wait() -> None:
            nonlocal is_held
            if not is_held:
                with wait_context():
                    is_held = lock.acquire()

        try:
            yield wait
        finally:
            if is_held:
                release_thread_buffers()
                lock.release()


_WHOLE_CHUNKS = _WholeChunks()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_WHOLE_CHUNKS.renew)

_SHARES = 8
"""Batches of objects that each thread of a task reads, so that all end about the same time."""
_LARGE = 1 << 18
"""Minimum bytes of a stored object for which the cost of measuring memory is negligible."""


@dataclass(frozen=True)
class CopyReceipts:
    """Journal and run id for the receipts of a stage."""

    journal: Journal
    run_id: str
    """Identifies the receipts of the stage."""


@dataclass(frozen=True)
class CopyStage:
    """One pass over the array, bound to its source and target."""

    plan: StagePlan
    source: Array
    target: Array
    origin: Shape
    """First element of the source that is copied."""
    records: CopyReceipts | None = None
    """Destination of receipts; None for no receipts."""
    counted: int = 0
    """Bytes of an element as counted by progress: those of the first stage's source, because
    intermediate arrays may have a narrower data type; 0 for the size in this stage's source.
    """
    between: bool = False
    """True if the source is an intermediate array, of which every object was written."""
    waiting: int = 0
    """Bytes of encoded objects that a process may have waiting for a remote store, of all tasks."""

    def copy(self, number: int, stop: Callable[[], bool] | None = None) -> CopyResult:
        """Copy one box: read it whole, write its stored objects one by one.

        Parameters
        ----------
        number
            Number of the task.
        stop
            Called before each object; returns True to leave the rest to another run. The objects
            written by then have receipts.
        """
        begun = perf_counter()
        if self.records is not None:
            check_job_seen_once(self.records.journal, self.target)
        with (
            malloc_keep_freed(),
            measure_rss(self._name, self._rehearse) as memory,
            counting_retries() as retries,
        ):
            copied = self._copy(self._region(number), stop, memory)
        process = ProcessMemory(process_name(), memory.idle, memory.peak)
        seconds = perf_counter() - begun
        return replace(
            copied,
            seconds=seconds,
            process=process,
            retried=retries.count,
            waited=retries.seconds,
            requests=dict(retries.requests),
        )

    def keys(self, number: int) -> Iterator[str]:
        """Return the keys of the stored objects that a task writes, below the array's prefix."""
        meta = self.target.meta
        return (
            meta.chunk_key_encoding.key(part.coords)
            for part in meta.grid.parts(self._region(number))
        )

    @property
    def _prefix(self) -> str:
        return self.target.node_format.data_prefix(self.target.path)

    @property
    def _name(self) -> Hashable:
        """Key of the stage among others that run in the same process."""
        job = None if self.records is None else self.records.run_id
        return self.target.where, self.plan.box, job

    def _rehearse(self) -> None:
        warm_up_codecs(self.source, self.target)

    def _region(self, number: int) -> Region:
        boxes = self.plan.boxes
        return boxes.region_of(boxes.coords_of(number))

    def _copy(
        self, region: Region, stop: Callable[[], bool] | None, memory: RssProbe
    ) -> CopyResult:
        shape = tuple(s.stop - s.start for s in region)
        with reuse_buffer(self._name, shape, self.source.dtype) as values:
            return self._copy_through(values, region, stop, memory)

    def _copy_through(
        self,
        values: np.ndarray,
        region: Region,
        stop: Callable[[], bool] | None,
        memory: RssProbe,
    ) -> CopyResult:
        """Copy a box through the given memory."""
        try:
            traffic, decoded, absent = self._read(translate_region(region, self.origin), values)
        except ChunkMissingError as error:
            if not self.between:
                raise
            raise self._gone(error) from error
        memory.look()
        written: list[StoredObject] = []
        empty: list[str] = []
        encoded, lock = 0, Lock()

        def write(part: Part) -> None:
            nonlocal encoded
            if stop is not None and stop():
                return
            key = self.target.meta.chunk_key_encoding.key(part.coords)
            stored = self._write(*self._converted(part, values, region), key, memory)
            with lock:
                if stored is None:
                    empty.append(key)
                else:
                    written.append(stored)
                    encoded += self.target.meta.bound(part.coords).spec.nbytes

        with noting_tags() as tags, concurrent_puts(self.target.store, self.waiting):
            parallel_for(write, self.target.meta.grid.parts(region), self.plan.threads)
        memory.look()
        if self.records is not None:
            journal, prefix = self.records.journal, self._prefix
            objects = with_tags(written, self.target.store, prefix, tags)
            journal.add(Receipt(journal.token, self.records.run_id, objects, tuple(empty)))
        nbytes = sum(item.nbytes for item in written)
        return CopyResult(
            values.size * (self.counted or self.plan.source.itemsize),
            nbytes,
            len(written) + len(empty),
            decoded=decoded,
            encoded=encoded,
            read=traffic.nbytes,
            reads=traffic.requests,
            absent=absent,
        )

    def _gone(self, error: ChunkMissingError) -> Exception:
        """Return the error for an object that is absent from an intermediate array."""
        if self.records is not None:
            self.records.journal.check_ours()
        return StoreError(
            f"{self.source.where}, the intermediate array of this job, has lost {error.key!r}: "
            "somebody has removed it. Run the job again; with resume=True it writes again what is "
            "missing."
        )

    def _read(self, region: Region, values: np.ndarray) -> tuple[IOCounters, int, int]:
        """Read a box; return the requests, the decoded bytes and the number of absent pieces."""
        if self.plan.threads > 1:
            return self._read_shared(region, values)
        with _WHOLE_CHUNKS.on_demand() as before_whole:

            def read(reader: Reader) -> None:
                if self.plan.sparing:
                    reader = reader.sparing(before_whole)
                reader.read_region(region, values, 1)

            return self._counted(read)

    def _read_shared(self, region: Region, values: np.ndarray) -> tuple[IOCounters, int, int]:
        """Read a box as `_read`, on several threads, each source object on one of them."""
        pieces = [
            ObjectSlice(part.coords, part.inside, view_region(values, part.out), part.whole)
            for part in self.source.meta.grid.parts(region)
        ]
        shares = self.plan.threads * (1 if is_remote(self.source.store) else _SHARES)
        size = -(-len(pieces) // shares)
        found: list[tuple[IOCounters, int, int]] = []

        def read(batch: Sequence[ObjectSlice]) -> None:
            found.append(self._counted(lambda reader: reader.read_pieces(batch, 1)))

        batches = (pieces[start : start + size] for start in range(0, len(pieces), size))
        parallel_for(read, batches, self.plan.threads)
        traffic = IOCounters(
            sum(one.requests for one, _, _ in found), sum(one.nbytes for one, _, _ in found)
        )
        return traffic, sum(one for _, one, _ in found), sum(one for _, _, one in found)

    def _counted(self, read: Callable[[Reader], None]) -> tuple[IOCounters, int, int]:
        """Read on this thread; return the requests, the decoded bytes and the absent pieces."""
        tally = metered(self.source.store)
        decoded, absent = thread_decoded_nbytes(), thread_absent_pieces()
        read(replace(self.source, store=tally).reader)
        decoded, absent = thread_decoded_nbytes() - decoded, thread_absent_pieces() - absent
        return tally.traffic, decoded, absent

    def _converted(self, part: Part, values: np.ndarray, region: Region) -> tuple[Part, np.ndarray]:
        """Return a part and its values, in the data type of the target.

        This is done object by object to save memory.
        """
        if self.source.meta.data_type == self.target.meta.data_type:
            return part, values
        where = translate_region(part.out, tuple(s.start for s in region))
        alone = tuple(slice(0, s.stop - s.start, 1) for s in part.out)
        converted = cast_to_target(self.target, view_region(values, part.out), self.source, where)
        return part._replace(out=alone), converted

    def _write(
        self, part: Part, values: np.ndarray, key: str, memory: RssProbe
    ) -> StoredObject | None:
        """Store one object; return its entry for a receipt, or None if it is left out."""
        noting = ObjectDigest(checksum=self.records is not None)
        fence = None if self.records is None else self.records.journal.fence
        if not write_object_part(self.target, part, values, noting, fence=fence):
            return None
        if noting.nbytes >= _LARGE:
            memory.look()  # a thread keeps the bytes gathered for the store
        return noting.of(key)


def cast_to_target(target: Array, values: np.ndarray, source: Array, region: Region) -> np.ndarray:
    """Convert values to another array's data type; fractions may be lost, numbers may not wrap.

    Parameters
    ----------
    target
        Array with the new data type.
    values
        Values to convert; returned unchanged if the data types are the same.
    source, region
        Origin of the values, for messages.

    Raises
    ------
    DataTypeError
        If there are values that the data type cannot hold.
    """
    if source.meta.data_type == target.meta.data_type:
        return values
    said = describe_uncastable(values, target.dtype)
    if said is not None:
        raise _not_held(said, target, source, region)
    if values.dtype.kind == "c" and target.dtype.kind in "biuf":
        values = values.real
    try:
        with np.errstate(over="raise"):
            return target.cast(values)
    except FloatingPointError as error:
        what = "values that would become infinite"
        raise _not_held(what, target, source, region) from error


def _not_held(what: str, target: Array, source: Array, region: Region) -> DataTypeError:
    return DataTypeError(
        f"{source.where} has {what} in the region {format_region(region)}, which "
        f"{target.meta.data_type.label} cannot hold. Choose a wider dtype."
    )


_AT_A_TIME = 1 << 14


def describe_uncastable(values: np.ndarray, dtype: np.dtype[Any]) -> str | None:
    """Describe values that a data type cannot hold; None if it can hold all.

    This does not check for floating-point numbers that become infinite in NumPy's own types; use
    ``numpy.errstate(over="raise")`` for them.

    Examples
    --------
    >>> describe_uncastable(np.array([1.5, 256.0]), np.dtype("u1"))
    'values from 1.5 to 256.0'
    >>> describe_uncastable(np.array([1.5, 255.5]), np.dtype("u1"))
    >>> describe_uncastable(np.array(["abc"]), np.dtype("U2"))
    "texts such as 'abc'"
    """
    names = values.dtype.names
    if names is not None and dtype.names is not None:
        found = (
            describe_uncastable(values[name], dtype[other])
            for name, other in zip(names, dtype.names, strict=False)
        )
        return next((one for one in found if one is not None), None)
    flat = values.reshape(-1)
    for start in range(0, flat.size, _AT_A_TIME):
        said = _misfit(flat[start : start + _AT_A_TIME], dtype)
        if said is not None:
            return said
    return None


def _misfit(values: np.ndarray, dtype: np.dtype[Any]) -> str | None:
    if dtype.kind in "US" and values.dtype.kind == dtype.kind:
        cut = values[values.astype(dtype) != values]
        return f"texts such as {cut[0].item()!r}" if cut.size else None
    if dtype.type is np.void and values.dtype.type is np.void:
        return f"elements of {values.dtype.itemsize} bytes" if _shrinks(values, dtype) else None
    if not (_is_number(values.dtype) and _is_number(dtype)) or dtype.kind == "c":
        return None
    if values.dtype.kind == "c":
        if values.imag.any():
            return "complex numbers"
        values = values.real
    if values.dtype.type.__module__ != "numpy":
        values = values.astype("f8")
    return _number_misfit(values, dtype)


def _number_misfit(values: np.ndarray, dtype: np.dtype[Any]) -> str | None:
    if dtype.kind == "b":
        return None if ((values == 0) | (values == 1)).all() else "values besides 0 and 1"
    if dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        return _outside(values, int(bounds.min), int(bounds.max))
    if dtype.type.__module__ == "numpy":
        return None
    if dtype.name.startswith(("int", "uint")):  # of a few bits
        bits = int(dtype.name.partition("int")[2])
        low = 0 if dtype.name.startswith("uint") else -(1 << (bits - 1))
        return _outside(values, low, low + (1 << bits) - 1)
    with np.errstate(over="ignore"):
        cast = values.astype(dtype).astype("f8")
    if (np.isfinite(values.astype("f8")) & ~np.isfinite(cast)).any():
        return "values that would become infinite"
    return None


def _is_number(dtype: np.dtype[Any]) -> bool:
    """True if NumPy, or an extension of it (kind ``V``, but not void), can calculate with it."""
    return dtype.kind in "biufc" or (dtype.kind == "V" and dtype.type is not np.void)


def _shrinks(values: np.ndarray, dtype: np.dtype[Any]) -> bool:
    return values.dtype.names is None and dtype.itemsize < values.dtype.itemsize


def _outside(values: np.ndarray, lowest: int, highest: int) -> str | None:
    """Describe the range of some values, unless all fit between two integers once truncated."""
    low, high = values.min(), values.max()
    if values.dtype.kind == "f":  # powers of two are exact as floating-point numbers
        fits = np.trunc(low) >= float(lowest) and high < float(highest + 1)  # NaN is in no range
    else:
        fits = int(low) >= lowest and int(high) <= highest
    if fits:
        return None
    if np.isnan(low):
        return "NaN"
    return f"values from {low} to {high}"
