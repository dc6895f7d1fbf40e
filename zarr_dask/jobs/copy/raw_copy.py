"""Copying the stored objects of an array as they are, without decoding, if the metadata allows it.

A task copies the stored objects at consecutive coordinates of the grid. One listing of the source
finds the existing objects, so that tasks without any are skipped. If the source cannot list, every
object is requested. Absent objects stay absent.

If source and target share a service that copies values itself, no bytes come here. Receipts then
have the sizes of objects, without checksums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from math import ceil, prod
from operator import itemgetter
from time import perf_counter
from typing import Any, Literal, NamedTuple

from zarr_dask.array.array import Array
from zarr_dask.errors import (
    ListingError,
    MemoryBudgetError,
    StoreError,
    StoreUnavailableError,
    ValuesDifferError,
)
from zarr_dask.formats.base import check_listed
from zarr_dask.formats.consolidated import without_consolidated
from zarr_dask.jobs.engine.array_job import ArrayJob, is_there_as_planned, metadata_hash
from zarr_dask.jobs.engine.cost_model import OVERHEAD
from zarr_dask.jobs.engine.plan import CopyResult, Costs, ProcessMemory, format_bytes, pluralize
from zarr_dask.jobs.engine.predict import CostModel, needed_for_tasks
from zarr_dask.jobs.engine.rss import RssProbe, measure_rss, process_name
from zarr_dask.jobs.engine.thread_map import map_concurrently, transfers_for
from zarr_dask.jobs.engine.visibility import check_job_seen_once
from zarr_dask.jobs.rechunk.copy_task import CopyReceipts
from zarr_dask.jobs.rechunk.plan import source_facts
from zarr_dask.jobs.rechunk.target_spec import RechunkBudget
from zarr_dask.journal import Journal
from zarr_dask.journal.receipts import (
    Receipt,
    Receipts,
    StoredObject,
    stored_object,
    with_tags,
)
from zarr_dask.stores.base import Buffer, list_sizes
from zarr_dask.stores.config import to_config
from zarr_dask.stores.open import canonical_location
from zarr_dask.stores.put_tags import noting_tags
from zarr_dask.stores.retry import counting_retries
from zarr_dask.stores.server_copy import LARGEST_SERVER_COPY, ServerCopy, server_copy_or_none

__all__ = ["RawCopyJob", "RawCopyPlan", "RawCopyStage", "plan_move"]

_BATCH_BYTES = 1 << 26
"""Stored bytes per task, if objects are small."""
_BATCH_OBJECTS = 256
_PAGE = 1000
"""Keys that a listing tells in one request."""
_FEWER = 4
"""Objects to be looked at for each page of a listing, for which the listing is preferred."""
_NAMED = 10


@dataclass(frozen=True)
class RawCopyStage:
    """Costs of the one stage of a move."""

    tasks: int
    busy: int
    """Tasks with an object to copy."""
    peak: int
    """Maximum bytes that one task holds."""
    costs: Costs
    abreast: int
    """Number of objects that a task requests at a time."""
    estimated = requests_at_most = False
    threads = 1

    def work(self, model: CostModel) -> float:
        """Return the seconds that one thread would need for all its tasks."""
        costs = self.costs
        return (
            costs.read / model.read
            + costs.stored / model.write
            + (costs.reads / self.abreast + costs.writes) * model.request
            + self.busy * model.task
        )

    def memory(self, threads: int) -> int:
        """Return the maximum bytes that tasks on this many threads hold together."""
        return self.peak * max(min(threads, self.tasks), 1)


@dataclass(frozen=True)
class RawCopyPlan:
    """Plan to copy the stored objects of an array."""

    source: Array
    target: Array
    """The target as it will be; it does not exist yet."""
    batch: int
    """Number of grid cells that one task copies."""
    abreast: int
    """Number of objects that a task requests at a time."""
    objects: int
    """Number of stored objects; if the source cannot list, the largest possible number."""
    stored: int
    """Bytes of the stored objects; if the source cannot list, bytes of all elements."""
    largest: int
    """Bytes of the largest stored object."""
    listed: bool = True
    """True if the source can list its objects."""
    busy: int = 0
    """Tasks with an object to copy."""
    asked: int = 0
    """Objects that these tasks request, including absent ones."""
    notes: tuple[str, ...] = field(default=(), compare=False)
    """Notes for users."""

    copy_stages = ()
    """No stage copies boxes."""

    @property
    def nbytes(self) -> int:
        """Stored bytes that are copied."""
        return self.stored

    @property
    def stages(self) -> tuple[RawCopyStage, ...]:
        """The only stage."""
        tasks = ceil(self.target.meta.grid.ncells / self.batch)
        peak = self.largest * self.abreast + OVERHEAD
        costs = Costs(reads=self.asked, writes=self.objects, read=self.stored, stored=self.stored)
        return (RawCopyStage(tasks, self.busy, peak, costs, self.abreast),)

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return self.stages[0].tasks

    @property
    def costs(self) -> Costs:
        """Costs of all tasks together."""
        return self.stages[0].costs

    def how(self) -> str:
        """Return a short description of the copy."""
        if not self.listed:
            return "as it is stored, whatever there is"
        objects = pluralize(self.objects, "stored object")
        return f"as it is stored: {objects}, {format_bytes(self.stored)}"

    @property
    def token(self) -> str:
        """Token that is equal for plans that copy the same objects to the same location."""
        facts = (
            "move",
            canonical_location(self.source.store, self.source.path),
            metadata_hash(self.source),
            canonical_location(self.target.store, self.target.path),
            metadata_hash(self.target),
        )
        return sha256(repr(facts).encode()).hexdigest()[:32]

    def is_finished(self) -> bool:
        """True if the target is there with the metadata of the plan."""
        return is_there_as_planned(self.target)

    def facts(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        source, target = self.source, self.target
        documents = target.node_format.documents(target.meta, target.path)
        return {
            "job": "move",
            "source": source_facts(source),
            "target": {
                "store": to_config(target.store),
                "path": target.path,
                "format": target.format,
                "documents": {key: text.decode() for key, text in documents.items()},
            },
            "batch": self.batch,
            "abreast": self.abreast,
            "objects": self.objects,
            "stored": self.stored,
            "largest": self.largest,
            "listed": self.listed,
            "busy": self.busy,
            "asked": self.asked,
        }

    def bound(self, run_id: str, journal: Journal | None) -> RawCopyJob:
        """Return the job with its receipts."""
        return RawCopyJob(self, run_id, journal)

    def matching(self, threads: int) -> RawCopyVerification:  # noqa: ARG002  (it holds as much)
        """Return the comparison of source and target, which holds no more than the copy."""
        return RawCopyVerification(self)

    # --- tasks ------------------------------------------------------------------------------------

    def coords(self, number: int) -> Iterator[tuple[int, ...]]:
        """Yield the coordinates of the objects that a task copies."""
        grid = self.target.meta.grid
        first = number * self.batch
        for cell in range(first, min(first + self.batch, grid.ncells)):
            yield grid.coords_of(cell)

    def keys(self, number: int) -> Iterator[str]:
        """Return the keys of the objects that a task copies, below the target's prefix."""
        return map(self.target.meta.chunk_key_encoding.key, self.coords(number))

    def task_of(self, coords: Sequence[int]) -> int:
        """Return the number of the task that copies the object at some coordinates."""
        return self.target.meta.grid.number_of(coords) // self.batch


def plan_move(source: Array, target: Array, resources: RechunkBudget) -> RawCopyPlan:
    """Plan to copy the stored objects of an array.

    Parameters
    ----------
    source, target
        The array, and the new array, whose metadata must describe the same bytes in the same way.
    resources
        Resources that the plan may use.

    Raises
    ------
    MemoryBudgetError
        If one of the objects is larger than a task may hold.
    """
    budget, threads = resources.budget, resources.workers.threads_per_process
    grid = source.meta.grid
    cell = prod(grid.largest_cell) * source.meta.data_type.typical_itemsize
    try:
        found = _ListedObjects.of(source)
        objects, stored, largest, listed = found.objects, found.stored, found.largest, True
    except ListingError:
        found = None
        objects, stored, largest, listed = grid.ncells, source.nbytes, cell, False
    if largest + OVERHEAD > budget:
        enough = needed_for_tasks((largest + OVERHEAD) * threads)
        raise MemoryBudgetError(
            f"a stored object of {source.where} has {format_bytes(largest)} and a task needs "
            f"{format_bytes(OVERHEAD)} besides, but it may hold {format_bytes(budget)} (its share "
            f"of max_mem): raise max_mem (to {enough:,} for processes of "
            f"{pluralize(threads, 'thread')}), or use fewer threads per process.",
            needed=enough,
        )
    policies = [one.store.coalescing for one in (source, target)]
    in_flight = max(policy.max_bytes_in_flight for policy in policies)
    room = min(in_flight, budget - OVERHEAD) // max(largest, 1)
    mean = max(stored // max(objects, 1), 1)
    together = max(min(_BATCH_OBJECTS, _BATCH_BYTES // mean), 1)
    density = objects / max(grid.ncells, 1)  # of a nearly empty grid, few objects per cell
    batch = max(int(together * density), 1)
    busy, asked = (
        (ceil(grid.ncells / batch), grid.ncells) if found is None else found.batches(batch)
    )
    return RawCopyPlan(
        source=source,
        target=target,
        batch=batch,
        abreast=max(min(max(policy.max_concurrent_requests for policy in policies), room), 1),
        objects=objects,
        stored=stored,
        largest=largest,
        listed=listed,
        busy=busy,
        asked=asked,
    )


@dataclass(frozen=True)
class _ListedObjects:
    """Stored objects of an array, from a listing."""

    cells: Sequence[int]
    """Their cell numbers in the grid, which may need more than 64 bits."""
    ncells: int
    stored: int
    largest: int

    @classmethod
    def of(cls, array: Array) -> _ListedObjects:
        grid = array.meta.grid
        cells: list[int] = []
        stored = largest = 0
        for coords, size in objects_of(array):
            cells.append(grid.number_of(coords))
            stored += size
            largest = max(largest, size)
        return cls(cells, grid.ncells, stored, largest)

    @property
    def objects(self) -> int:
        return len(self.cells)

    def batches(self, batch: int) -> tuple[int, int]:
        """Return the number of batches with an object, and the number of cells in these batches."""
        having = {cell // batch for cell in self.cells}
        asked = sum(min(batch, self.ncells - number * batch) for number in having)
        return len(having), asked


def objects_of(array: Array) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield the coordinates and bytes of the existing stored objects.

    Raises
    ------
    ListingError
        If the store cannot list.
    """
    prefix = array.node_format.data_prefix(array.path)
    below = prefix + array.meta.chunk_key_encoding.folder(array.ndim)
    listed = False
    for key, size in list_sizes(array.store, below):
        listed = True
        coords = array.meta.coords(key[len(prefix) :])
        if coords is not None:
            yield coords, size
    if not (listed or any(array.store.list_dir(prefix))):
        check_listed(array.store, prefix, array.node_format.node_keys(array.path))


# --- running --------------------------------------------------------------------------------------


_Copied = tuple[str, StoredObject | None]
"""Key of a stored object, and what was copied; None for an absent object."""

_Outcome = Literal["copied", "absent", "refused", "left"]
"""Outcome of a copy by a service; "left" if it was not asked any more."""


@dataclass(frozen=True)
class RawCopyTask:
    """Runner for the tasks; small, because it is a part of each task."""

    plan: RawCopyPlan
    records: CopyReceipts | None

    def copy(self, number: int, stop: Callable[[], bool] | None = None) -> CopyResult:
        """Copy the objects of a task; `stop` is called before each object."""
        begun = perf_counter()
        if self.records is not None:
            check_job_seen_once(self.records.journal, self.plan.target)
        with measure_rss(self.plan.target.where) as memory, counting_retries() as retries:
            copied = self._copy(number, stop, memory)
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

    def _copy(self, number: int, stop: Callable[[], bool] | None, memory: RssProbe) -> CopyResult:
        confirm = self.plan.source.confirmation()
        by_server = self._server_copy()
        copied = (
            self._by_reading(number, stop, memory)
            if by_server is None
            else self._by_server(number, stop, by_server)
        )
        found = [*copied]
        written = [one for _, one in found if one is not None]
        empty = [key for key, one in found if one is None]
        if empty:
            confirm()
        if self.records is not None and (written or empty):
            journal = self.records.journal
            # if the source can be listed, absent objects are known
            gone = () if self.plan.listed else tuple(empty)
            journal.add(Receipt(journal.token, self.records.run_id, tuple(written), gone))
        nbytes = sum(item.nbytes for item in written)
        if by_server is not None:
            return CopyResult(nbytes, nbytes, len(written))
        reads = len(written) + len(empty)
        return CopyResult(nbytes, nbytes, len(written), read=nbytes, reads=reads)

    def _server_copy(self) -> ServerCopy | None:
        """Return what copies an object within the service; None if its bytes must come here."""
        plan = self.plan
        if not plan.listed or plan.largest > LARGEST_SERVER_COPY:
            return None
        return server_copy_or_none(without_consolidated(plan.source.store), plan.target.store)

    def _by_server(
        self, number: int, stop: Callable[[], bool] | None, by_server: ServerCopy
    ) -> Iterator[_Copied]:
        """Copy objects within the service, which tells their sizes afterwards."""
        source, target, plan = self.plan.source, self.plan.target, self.plan
        at_a_time = transfers_for(target.store)

        def copy(coords: tuple[int, ...]) -> _Outcome:
            if stop is not None and stop():
                return "left"
            self._fence()
            try:
                copied = by_server(source.key(coords), target.key(coords), plan.largest)
            except StoreUnavailableError:
                raise
            except StoreError:  # reading and writing tells what is wrong, if anything is
                return "refused"
            return "copied" if copied else "absent"

        cells = [*plan.coords(number)]
        outcomes = dict(zip(cells, map_concurrently(copy, cells, at_a_time), strict=True))
        copied = [coords for coords in cells if outcomes[coords] == "copied"]
        sizes = _sizes_of(target, copied, at_a_time)
        for coords in cells:
            name, size = self._name(coords), sizes.get(coords)
            if outcomes[coords] == "absent":
                yield name, None
            elif size:
                yield name, StoredObject(name, size, crc32c=0)
            elif outcomes[coords] != "left":  # a service that ignores the source puts nothing
                yield self._put(coords, source.store.get(source.key(coords)))

    def _by_reading(
        self, number: int, stop: Callable[[], bool] | None, memory: RssProbe
    ) -> Iterator[_Copied]:
        """Read objects and write them, each as soon as it is there."""
        source, plan = self.plan.source, self.plan
        at_a_time = min(max(map(transfers_for, (source.store, plan.target.store))), plan.abreast)

        def copy(coords: tuple[int, ...]) -> tuple[str, StoredObject | None] | None:
            if stop is not None and stop():
                return None
            value = source.store.get(source.key(coords))
            memory.look()
            return self._put(coords, value)

        copied = map_concurrently(copy, plan.coords(number), at_a_time)
        yield from (one for one in copied if one is not None)

    def _put(
        self, coords: tuple[int, ...], value: Buffer | None
    ) -> tuple[str, StoredObject | None]:
        """Write an object; nothing for an absent one."""
        name = self._name(coords)
        if value is None:
            return name, None
        self._fence()
        target = self.plan.target
        with noting_tags() as tags:
            target.store.set(target.key(coords), [value])
        put = stored_object(name, [value], with_sha256=False)
        prefix = target.node_format.data_prefix(target.path)
        (put,) = with_tags([put], target.store, prefix, tags)
        return name, put

    def _name(self, coords: tuple[int, ...]) -> str:
        """Return the key of an object below the node."""
        return self.plan.target.meta.chunk_key_encoding.key(coords)

    def _fence(self) -> None:
        """Raise if another run of the job has taken over."""
        if self.records is not None:
            self.records.journal.fence()


def _sizes_of(
    target: Array, cells: Sequence[tuple[int, ...]], at_a_time: int
) -> dict[tuple[int, ...], int]:
    """Return the bytes of stored objects that exist, from listings if these are fewer requests."""
    prefix = target.node_format.data_prefix(target.path)
    folders, pages = _folders_of(target, cells)
    if pages * _FEWER > len(cells):
        found = map_concurrently(
            lambda coords: (coords, target.store.size(target.key(coords))), cells, at_a_time
        )
        return {coords: size for coords, size in found if size is not None}
    listed = map_concurrently(
        lambda folder: [*list_sizes(target.store, f"{prefix}{folder}")], sorted(folders), at_a_time
    )
    sizes = {key: size for each in listed for key, size in each}
    return {at: sizes[target.key(at)] for at in cells if target.key(at) in sizes}


def _folders_of(target: Array, cells: Sequence[tuple[int, ...]]) -> tuple[set[str], int]:
    """Return the folders that hold some stored objects, and the pages of their listings."""
    encoding, counts = target.meta.chunk_key_encoding, target.meta.grid.counts
    best = {encoding.folder(target.ndim)}, ceil(prod(counts) / _PAGE)
    for level in range(1, target.ndim if encoding.separator == "/" else 0):
        keys = map(encoding.key, cells)
        folders = {f"{key.rsplit('/', target.ndim - level)[0]}/" for key in keys}
        pages = len(folders) * ceil(prod(counts[level:]) / _PAGE)
        best = min(best, (folders, pages), key=itemgetter(1))
    return best


@dataclass(frozen=True, eq=False)
class RawCopyJob(ArrayJob):
    """A move and the receipts of its tasks."""

    plan: RawCopyPlan

    def stage(self, number: int) -> RawCopyTask:  # noqa: ARG002  (there is one)
        """Return the runner."""
        journal = self.journal
        return RawCopyTask(
            self.plan, None if journal is None else CopyReceipts(journal, self.run_id)
        )

    def missing(
        self,
        stage: int,
        receipts: Sequence[Receipt] | None = None,
        within: range | None = None,
    ) -> Sequence[int]:
        """Return the numbers of tasks with an object that has no valid receipt."""
        plan = self.plan
        tasks = range(plan.tasks) if within is None else within
        own = (key for number in tasks for key in plan.keys(number))
        done = self.done(stage, receipts, None if within is None else own)
        ncells = plan.target.meta.grid.ncells
        if len(done) == ncells:
            return ()
        if plan.objects == ncells and not len(done):  # each task has some, whatever has gone
            return tasks
        # among few objects in a large grid, listing all is less than looking at each cell
        if plan.listed and (within is None or len(tasks) * plan.batch > plan.objects):
            key = plan.target.meta.chunk_key_encoding.key
            left = {plan.task_of(at) for at in self._present if key(at) not in done}
            return sorted(number for number in left if number in tasks)  # there may be 10^11
        if not len(done):
            return tasks
        return [n for n in tasks if self._is_left(n, done)]

    def _is_left(self, number: int, done: Receipts) -> bool:
        """True if a task has an object without a valid receipt.

        A task with receipts has none for objects that the source lacks, if the source was listed.
        """
        source, key = self.plan.source, self.plan.target.meta.chunk_key_encoding.key
        cells = [*self.plan.coords(number)]
        left = [coords for coords in cells if key(coords) not in done]
        if not self.plan.listed or len(left) == len(cells):
            return bool(left)
        return any(source.store.size(source.key(coords)) is not None for coords in left)

    @cached_property
    def _present(self) -> list[tuple[int, ...]]:
        source = self.plan.source
        found = [coords for coords, _ in objects_of(source)]
        if len(found) < source.meta.grid.ncells:
            source.confirmation()()
        return found


# --- comparison -----------------------------------------------------------------------------------


_Differing = tuple[tuple[int, ...], str, str]
"""First element of an object, and what each side holds."""


@dataclass(frozen=True)
class RawCopyDiff:
    """Result of comparing some objects."""

    nbytes: int
    differing: int
    first: tuple[_Differing, ...]
    retried: int = 0


@dataclass(frozen=True)
class RawCopyVerification:
    """A comparison of stored objects, byte by byte; called with the number of a task."""

    plan: RawCopyPlan

    @property
    def numbers(self) -> Sequence[int]:
        """Numbers of the tasks with an object on either side; all tasks without a listing."""
        plan = self.plan
        if not plan.listed:
            return range(plan.tasks)
        plan.source.confirmation()()  # of what has gone, nothing would be compared
        sides = (objects_of(one) for one in (plan.source, plan.target))
        return sorted({plan.task_of(coords) for side in sides for coords, _ in side})

    def __call__(self, number: int) -> RawCopyDiff:
        """Compare some objects."""
        plan = self.plan
        confirm = plan.source.confirmation()
        at_a_time = max(plan.abreast // 2, 1)  # of each, two objects are held
        with counting_retries() as retries:
            pairs = map_concurrently(self._compare, plan.coords(number), at_a_time)
        if any(old is None for old, _ in pairs):
            confirm()
        found = [difference for _, difference in pairs if difference is not None]
        nbytes = sum(old or 0 for old, _ in pairs)
        return RawCopyDiff(nbytes, len(found), tuple(found[:_NAMED]), retries.count)

    def _compare(self, coords: tuple[int, ...]) -> tuple[int | None, _Differing | None]:
        """Return the bytes of an object in the source, and how the target differs."""
        source, target = self.plan.source, self.plan.target
        old, new = (
            _Content.of(one.store.get(one.key(coords)), digested=self.plan.abreast == 1)
            for one in (source, target)
        )
        start = tuple(s.start for s in source.meta.grid.region_of(coords))
        differing = None if old == new else (start, _shown(old.nbytes), _shown(new.nbytes))
        return old.nbytes, differing

    def check(self, results: Sequence[RawCopyDiff]) -> None:
        """Refuse a target that differs from the source.

        Raises
        ------
        ValuesDifferError
            If there are differences; the error names the first elements of the first objects.
        """
        differing = sum(one.differing for one in results)
        if differing:
            first = sorted(at for one in results for at in one.first)[:_NAMED]
            where = (self.plan.source.where, self.plan.target.where)
            raise ValuesDifferError(*where, differing, first, "stored objects")


class _Content(NamedTuple):
    """The bytes of a stored object, or a digest where memory is for one object at a time."""

    nbytes: int | None
    """None if there is no object."""
    content: Buffer | None

    @classmethod
    def of(cls, value: Buffer | None, *, digested: bool) -> _Content:
        if value is None:
            return cls(None, None)
        return cls(len(value), sha256(value).digest() if digested else value)


def _shown(nbytes: int | None) -> str:
    return "nothing" if nbytes is None else f"{nbytes} bytes"
