"""Laying a dask array out anew within a bound of memory: written as it comes, then rechunked.

Where blocks are whole stored objects of the new array, they are written into it directly. Else
they go, each by one task and without being copied, into an array between whose stored objects are
the blocks, as shards of smaller chunks where that helps reading them in other boxes; that is
rechunked like any other array, and removed at the end. A graph shuffle is never made.

With ``resume=True`` the array between has a name that the graph and the target make, so that the
same call finds it and its receipts again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from math import prod
from secrets import token_hex
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

from zarr_dask.array import Array
from zarr_dask.create import ArraySpec, array_meta
from zarr_dask.errors import ResumeError, StoreError
from zarr_dask.formats.base import Format, prefix_of, where
from zarr_dask.grid import Blocks, Cells, Shape
from zarr_dask.hierarchy import check_place
from zarr_dask.jobs.bars import rechunk_bars
from zarr_dask.jobs.plan import counted, format_bytes
from zarr_dask.jobs.rechunk.job import resume as resumed
from zarr_dask.jobs.rechunk.plan import Progress, RechunkPlan, digest, is_there_as_planned
from zarr_dask.jobs.rechunk.regridding import Resources, Wanted, new_array, planned
from zarr_dask.jobs.rechunk.report import RechunkReport
from zarr_dask.jobs.resume import Resume
from zarr_dask.jobs.write.guards import check_not_read
from zarr_dask.jobs.write.plan import WritePlan
from zarr_dask.jobs.write.target import WriteReport
from zarr_dask.jobs.write.write import plan_write
from zarr_dask.stores.base import Store
from zarr_dask.stores.memory import MemoryStore
from zarr_dask.stores.urls import Location, beside, inside, open_store, real_place
from zarr_dask.stores.wrappers import Wrapper

if TYPE_CHECKING:
    import dask.array as da
    from distributed import Client

__all__ = ["DaskRechunkPlan", "DaskRechunkReport", "grids_between", "plan_dask"]

_FOLDER = "zarr-dask-blocks-"
_SMALL = 1 << 16
"""Bytes of a chunk below which reading it alone costs more than it saves."""
_FORMAT = "v3"


@dataclass(frozen=True, slots=True)
class DaskRechunkReport:
    """What was done with a dask array."""

    written: WriteReport | None
    """What its blocks became; None if an earlier run had written them."""
    rechunked: RechunkReport | None
    """What was made of that; None if blocks went into the target directly."""
    seconds: float

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

    def __str__(self) -> str:
        if self.rechunked is None:
            return f"{self.written}, directly, in {self.seconds:.1f} s"
        return f"{self.rechunked}; with the blocks in {self.seconds:.1f} s"


@dataclass(frozen=True, eq=False)
class DaskRechunkPlan:
    """What will become of a dask array; made by `zarr_dask.plan_rechunk`."""

    values: da.Array
    """What is laid out anew."""
    then: RechunkPlan
    """From the array between to the target."""
    between: Between
    direct: bool
    """Whether blocks are whole stored objects of the target, so that nothing is put between."""
    options: dict[str, Any]
    """Of the target, as `zarr_dask.plan_write` takes them."""

    @property
    def target(self) -> Array:
        """As it will be; it does not exist yet."""
        return self.then.target

    @property
    def nbytes(self) -> int:
        """Decoded bytes that are laid out anew."""
        return self.then.nbytes

    def __str__(self) -> str:
        return self.explain()

    def explain(self) -> str:
        """The plan in words and numbers."""
        values, target = self.values, self.target
        shards = f" in shards {target.shards}" if target.shards else ""
        lines = [
            f"rechunk a dask array {values.shape} {values.dtype.name}, {format_bytes(self.nbytes)}",
            f"     to {target.where}, chunks {target.chunks}{shards}",
        ]
        if self.direct:
            lines.append(
                f"  direct  {counted(values.npartitions, 'block')} of {values.chunksize} are whole "
                "stored objects of the target, and are written as they are"
            )
            return "\n".join(lines)
        source = self.then.source
        pieces = f", in chunks of {source.chunks}" if source.shards else ""
        lines.append(
            f"  first   {counted(values.npartitions, 'block')} are written as they come into an "
            f"array between, {counted(source.meta.grid.ncells, 'stored object')}{pieces}"
        )
        then = self.then.explain().splitlines()[2:]
        return "\n".join([*lines, "  then    that is rechunked:", *then])

    # --- doing it ---------------------------------------------------------------------------------

    def run(
        self,
        client: Client | None = None,
        progress: Callable[[Progress], None] | Literal[True] | None = None,
        *,
        resume: Resume = False,
        journal: Location | None = None,
        verify: bool = False,
    ) -> DaskRechunkReport:
        """Do it.

        Parameters
        ----------
        client
            A cluster; by default the current client's, or the scheduler dask is configured for.
        progress
            Called after each task; True for bars that count bytes, one for each stage. Writing the
            blocks is the first stage.
        resume
            Go on with the same call if it has died: only blocks without a valid receipt are
            computed, and only boxes without one are copied. A name such as ``"run-7"`` says that
            calls with this name compute the same values, for graphs of which that cannot be told.
            Without it nothing is kept of a call that fails.
        journal
            Where the target's receipts are kept; beside it by default.
        verify
            Compare the target with what was computed, before it becomes visible. That is always put
            into an array between, because computing it once more may give other values.

        Raises
        ------
        ResumeError
            If the graph cannot be told from others, or there is no place for a journal.
        ValuesDifferError
            If the comparison finds a difference.
        NodeExistsError
            If the target has come into being since the plan was made.
        ZarrDaskError
            As `WritePlan.run` and `RechunkPlan.run`.
        """
        begun = perf_counter()
        direct = self.direct and not verify
        if progress is True:
            totals = [self.nbytes] * (1 if direct else 1 + len(self.then.stages))
            with rechunk_bars(totals, verify=self.nbytes if verify else None) as advance:
                return self.run(client, advance, resume=resume, journal=journal, verify=verify)
        if direct:
            written = self._directly(resume=resume, journal=journal).run(client, progress)
            return DaskRechunkReport(written, None, perf_counter() - begun)
        room = self.between.room(self, resume=resume)
        then = replace(self.then, source=replace(self.then.source, store=room.array))
        if not (resume and resumed(then, journal) is not None):
            if resume and then.is_finished() and room.exists():
                room.remove()  # a call that died had come to its end but for this
                return DaskRechunkReport(None, None, perf_counter() - begun)
            then.as_job().check_room()
        steps = _Steps(progress, 1 + len(then.stages) + verify)
        with self._cleared(then, room, journal, resume=resume):
            write = None
            if not is_there_as_planned(then.source):
                write = room.write(self, resume=resume).run(client, steps.of(0))
            told = steps.of(1)
            report = then.run(client, told, resume=bool(resume), journal=journal, verify=verify)
        return DaskRechunkReport(write, report, perf_counter() - begun)

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
        self, then: RechunkPlan, room: Room, journal: Location | None, *, resume: Resume
    ) -> Iterator[None]:
        """Remove the array between at the end; if something fails, only what cannot be resumed."""
        try:
            yield
        except BaseException as error:
            if not resume or not isinstance(error, Exception):
                with suppress(ResumeError, StoreError):
                    left = resumed(then, journal)
                    if left is not None and left.journal is not None:
                        left.remove_intermediates()
                        left.journal.remove()
                with suppress(StoreError):  # the first error is what matters
                    room.remove()
            raise
        room.remove()


class _Steps:
    """Progress of two jobs as one."""

    def __init__(self, progress: Callable[[Progress], None] | None, stages: int) -> None:
        self._progress, self._stages = progress, stages

    def of(self, first: int) -> Callable[[Progress], None] | None:
        """What is told of the steps of a job whose stages come after some others."""
        told = self._progress
        if told is None:
            return None
        return lambda step: told(replace(step, stage=step.stage + first, stages=self._stages))


# --- the array between ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Between:
    """How the blocks are kept, and in which place."""

    base: Store | None
    """The store in which the folder for it is; None for memory of this process."""
    prefix: str
    """What the name of the folder begins with."""
    chunks: Cells
    shards: Cells | None
    codecs: Any

    def room(self, plan: DaskRechunkPlan, *, resume: Resume) -> Room:
        """The place for one run: of a new name, or of one that the same call finds again.

        Raises
        ------
        ResumeError
            If the graph cannot be told from others, or there is no place that lasts.
        """
        if self.base is None:
            if resume:
                raise ResumeError(
                    f"{plan.target.where} is in memory: say with temp= where the blocks are kept "
                    "that have been computed, or leave resume=True out."
                )
            return Room(MemoryStore(), "blocks", self)
        name = _name_of(plan, resume) if resume else token_hex(16)
        return Room(self.base, f"{self.prefix}{_FOLDER}{name[:12]}", self)


def _name_of(plan: DaskRechunkPlan, resume: Resume) -> str:
    """Equal for calls that compute the same values for the same target."""
    from zarr_dask.fingerprint import layer_tokens

    target = plan.target
    if isinstance(resume, str):
        values: Any = resume
    else:
        values = (sorted(token for _, token in layer_tokens(plan.values)), plan.values.name)
    facts = (
        values,
        real_place(target.store, target.path),
        digest(target),
        plan.between.chunks,
        plan.between.shards,
    )
    return sha256(repr(facts).encode()).hexdigest()


@dataclass(frozen=True)
class Room:
    """A folder for the blocks and the journal of their write."""

    base: Store
    folder: str
    between: Between

    @property
    def array(self) -> Store:
        """The store whose root is the array between."""
        return inside(self.base, f"{self.folder}/blocks")

    def write(self, plan: DaskRechunkPlan, *, resume: Resume) -> WritePlan:
        """The write of the blocks."""
        made: WritePlan = plan_write(
            plan.values,
            self.array,
            chunks=self.between.chunks,
            shards=self.between.shards,
            codecs=self.between.codecs,
            resume=resume,
            journal=inside(self.base, f"{self.folder}/journal") if resume else None,
            overwrite=False,
            format=_FORMAT,
        )
        return made

    def exists(self) -> bool:
        """Whether there is anything in it."""
        return any(self.base.list_dir(prefix_of(self.folder)))

    def remove(self) -> None:
        """Remove the blocks and what is left of their journal."""
        self.base.delete_prefix(prefix_of(self.folder))


def grids_between(blocks: Blocks, objects: Shape, itemsize: int) -> tuple[Cells, Cells | None]:
    """Chunks and shards of an array whose stored objects are the blocks of a dask array.

    Parameters
    ----------
    blocks
        Sizes of the blocks.
    objects
        Shape of the stored objects to come, which chunks should not be longer than.
    itemsize
        Bytes of an element.

    Returns
    -------
    chunks, shards
        Shards are blocks of one size, where chunks that divide them help; else None.

    Examples
    --------
    >>> grids_between(((100, 100), (400,)), (200, 20), 8)
    ((100, 100), (100, 400))
    >>> grids_between(((30, 40), (400,)), (70, 20), 8)
    (((30, 40), 400), None)
    """
    lengths = [_one_size(sizes) for sizes in blocks]
    if any(length is None for length in lengths):
        cells = tuple(
            tuple(size for size in sizes if size) if length is None else length
            for sizes, length in zip(blocks, lengths, strict=True)
        )
        return cells, None
    block = tuple(length or 1 for length in lengths)
    chunk = [
        max(d for d in _divisors(length) if d <= max(wanted, 1))
        for length, wanted in zip(block, objects, strict=True)
    ]
    while prod(chunk) * itemsize < _SMALL and tuple(chunk) != block:
        # the dimension along which chunks are cut most is that which needs it least
        axis = max(range(len(chunk)), key=lambda axis: (block[axis] // chunk[axis], axis))
        chunk[axis] = min(d for d in _divisors(block[axis]) if d > chunk[axis])
    return tuple(chunk), None if tuple(chunk) == block else block


def _one_size(sizes: tuple[int, ...]) -> int | None:
    """The size of all blocks along a dimension, the last of which may be smaller."""
    first = max(sizes[0], 1) if sizes else 1
    is_regular = all(size == first for size in sizes[:-1]) and (not sizes or sizes[-1] <= first)
    return first if is_regular else None


def _divisors(length: int) -> list[int]:
    small = [d for d in range(1, int(length**0.5) + 1) if length % d == 0]
    return sorted({*small, *(length // d for d in small)})


# --- planning -------------------------------------------------------------------------------------


def plan_dask(
    values: Any,
    store: Store,
    path: str,
    node_format: Format,
    wanted: Wanted,
    resources: Resources,
    *,
    overwrite: bool,
) -> DaskRechunkPlan:
    """Plan how to lay a dask array out anew; see `zarr_dask.plan_rechunk`.

    Raises
    ------
    ValueError
        If a region is given.
    GridError
        If blocks have no known size, or the grids do not fit.
    SourceIsTargetError
        If the graph reads the target.
    StoreError
        If there is no place for the array between.
    """
    from zarr_dask.graph import checked_array

    known = checked_array(values)
    if wanted.region is not None:
        raise ValueError("region= is for stored arrays; slice the dask array instead.")
    typed = plan_write(known, MemoryStore(), format=_FORMAT).target
    data_type = typed.meta.data_type
    spec = ArraySpec(
        shape=known.shape,
        dtype=data_type,
        chunks=_first_blocks(known.chunks),
        codecs=wanted.codecs,
        format=node_format.name,
    )
    like = Array(store, path, array_meta(spec, where(store, path)), node_format)
    _, made = new_array(like, store, path, node_format, replace(wanted, codecs=None))
    check_not_read(known, store, path)
    check_place(store, path, node_format, overwrite=overwrite)
    codecs = None if data_type.variable else _plain(data_type.itemsize)
    grids = grids_between(known.chunks, made.write_chunks, data_type.typical_itemsize)
    base, prefix = _base(made, resources.temp)
    room = Room(MemoryStore(), "planned", Between(base, prefix, *grids, codecs))
    source = plan_write(
        known, room.array, chunks=grids[0], shards=grids[1], codecs=codecs, format=_FORMAT
    ).target
    then = planned(source, source.meta.grid.everything, made, resources, overwrite=overwrite)
    options = {
        "chunks": made.chunks if made.shards else _cells_of(made),
        "shards": _cells_of(made) if made.shards else None,
        "codecs": wanted.codecs,
        "format": node_format.name,
    }
    direct = made.meta.grid.align(known.chunks) == known.chunks and wanted.dtype is None
    return DaskRechunkPlan(known, then, room.between, direct, options)


def _first_blocks(blocks: Blocks) -> Shape:
    return tuple(max(sizes[0], 1) if sizes else 1 for sizes in blocks)


def _plain(itemsize: int) -> list[dict[str, Any]]:
    """No compression."""
    configuration = {"endian": "little"} if itemsize > 1 else {}
    return [{"name": "bytes", "configuration": configuration}]


def _cells_of(array: Array) -> Cells:
    """The size of stored objects along each dimension, or the sizes where they differ."""
    cell = array.meta.grid.cell_shape
    if cell is not None:
        return cell
    return tuple(dimension.lengths or 1 for dimension in array.meta.grid.dimensions)


def _base(target: Array, temp: Location | None) -> tuple[Store | None, str]:
    """The store for the array between, and what the name of its folder begins with.

    Raises
    ------
    StoreError
        If there is none.
    """
    if temp is not None:
        return open_store(temp), ""
    found = beside(target.store, ".")
    if found is not None:
        return found
    store = target.store
    while isinstance(store, Wrapper):
        store = store.store
    if isinstance(store, MemoryStore):
        return None, ""
    raise StoreError(
        f"{target.where} has no place beside it for the blocks of the dask array: it is the root "
        "of a bucket. Say where they go with temp=, a path or URL."
    )
