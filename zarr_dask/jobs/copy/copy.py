"""``zd.copy``: arrays and whole hierarchies into another place, grid, encoding or format.

`plan_copy` decides for every array whether its stored objects can be copied as they are, because
grid, codecs and format say the same of the same bytes, or must be laid out anew; `CopyPlan.run`
does it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from zarr_dask.array import Array
from zarr_dask.create import as_stored
from zarr_dask.errors import (
    CopyError,
    DataTypeError,
    GridError,
    ListingError,
    MetadataError,
    MissingGroupWarning,
    SelectionError,
    SourceIsTargetError,
)
from zarr_dask.flags import check_count, check_flags, check_given
from zarr_dask.formats.base import (
    ArrayMeta,
    Format,
    GroupMeta,
    ReadOptions,
    normalise_path,
    where,
)
from zarr_dask.formats.consolidated import (
    consolidated_holder,
    has_consolidated,
    is_consolidated,
    without_consolidated,
    without_recorded,
)
from zarr_dask.formats.detect import format_for_new
from zarr_dask.group import Group
from zarr_dask.group import open as open_node
from zarr_dask.jobs.abreast import abreast, waiting_for
from zarr_dask.jobs.archives import Archives
from zarr_dask.jobs.copy.moving import MovePlan, plan_move
from zarr_dask.jobs.copy.plan import CopyPlan
from zarr_dask.jobs.rechunk.joint_plan import JointReport
from zarr_dask.jobs.rechunk.plan import Progress, RechunkPlan
from zarr_dask.jobs.rechunk.regridding import (
    Resources,
    Wanted,
    memory_budget,
    new_array,
    notes_of,
    planned,
    says_all,
)
from zarr_dask.jobs.rechunk.sampling import LARGEST
from zarr_dask.jobs.rechunk.stages import CostModel
from zarr_dask.jobs.run import Workers, find_workers
from zarr_dask.jobs.write.sources import meet
from zarr_dask.stores.base import Store, join
from zarr_dask.stores.urls import Location, open_alike
from zarr_dask.surroundings import format_of_group_around

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["copy", "plan_copy"]


def plan_copy(
    src: Location | Array | Group,
    dst: Location | Group,
    *,
    path: str = "",
    chunks: Any = None,
    shards: Any = None,
    format: str | None = None,
    codecs: Any = None,
    dtype: Any = None,
    region: Any = None,
    max_mem: str | int | None = None,
    temp: Location | None = None,
    overwrite: bool = False,
    client: Client | None = None,
    threads: int | None = None,
    model: CostModel | None = None,
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    read: ReadOptions | None = None,
) -> CopyPlan:
    """Plan how to copy an array or a hierarchy; nothing is written.

    Stored objects are copied as they are, without being decoded, wherever grid, codecs and format
    say the same of the same bytes; else the array is laid out anew within `max_mem`.

    Parameters
    ----------
    src
        An array or a group: where it is, or an open node.
    dst
        Where the copy will be.
    path
        Path of the copy below it.
    chunks, shards
        New grids, by name of the dimension: ``chunks={"time": -1, "x": 64}``; -1 is the whole
        dimension. Arrays without any of these dimensions are copied on the grid they have. For a
        single array in all forms that `zarr_dask.plan_rechunk` takes.
    format
        Format of the copy; by default that of the group around it where there is one whose format
        can say all that the source says, else that of the source.
    codecs
        Codecs of the chunks, as for `zarr_dask.create_array`; those of each array by default, or
        the default ones of another `format` that does not have them, which the plan notes. For a
        group also a mapping from paths of arrays in it to codecs; ``{"name": "crc32c"}`` is a codec
        even where an array is called ``name``.
    dtype
        Data type, for a single array; for a group a mapping from paths of arrays in it.
    region
        What is copied: slices by name of the dimension, ``region={"time": slice(0, 100)}``.
        Arrays without any of these dimensions are copied whole. For a single array in all forms
        that `zarr_dask.plan_rechunk` takes.
    max_mem, temp, client, threads, model
        As for `zarr_dask.plan_rechunk`.
    overwrite
        Replace what is there.
    storage_options, target_options
        Options of the stores at `src` and `dst`.
    read
        How to read the source.

    Raises
    ------
    CopyError
        If some of the nodes of a group cannot be copied as asked for; all reasons are listed.
    GridError
        If a grid names dimensions that no array has.
    NodeNotFoundError
        If there is nothing at `src`.
    NodeExistsError
        If there is something at `dst`.
    SourceIsTargetError
        If one of the two places lies within the other.
    MemoryBudgetError
        If `max_mem` is too small for one stored object.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> group = zd.create_group({}, attributes={"title": "run 7"})
    >>> _ = group.create_array("t", shape=(8, 64), dtype="f4", chunks=(1, 64),
    ...                        dimension_names=("time", "x"))
    >>> _ = group.create_array("x", shape=(64,), dtype="f4", chunks=64, dimension_names=("x",))
    >>> plan = zd.plan_copy(group, {}, chunks={"time": -1})
    >>> [(one.target.path, one.target.chunks) for one in plan.members]
    [('t', (8, 64)), ('x', (64,))]
    """
    check_flags(overwrite=overwrite)
    check_count("threads", threads, "those of the workers")
    check_given("model", model, CostModel, "zarr_dask.CostModel(...)")
    options = ReadOptions.given(read)
    if read is None and isinstance(src, Array | Group):
        options = src.options
    root = _opened(src, storage_options, options)
    archives = Archives(replaces=overwrite and not normalise_path(path))
    store, below = archives.place(dst, path, target_options)
    if temp is not None:
        open_alike(temp, store)  # raises where it cannot be had
    workers = find_workers(client) if threads is None else Workers(None, threads, threads)
    resources = Resources(workers, memory_budget(max_mem, workers), model or CostModel(), temp)
    nodes = dict(_nodes(root))
    arrays = {name: node for name, node in nodes.items() if isinstance(node, Array)}
    grids = _Grids(chunks, shards, region, codecs, dtype, format, tuple(arrays))
    grids.check(root, arrays)
    node_format = format_for_new(store, format or _followed(nodes, store, below, grids), below)
    _check_apart(nodes, store, below)
    work = _Work(store, below, node_format, grids, resources, overwrite)
    at_a_time = min(waiting_for(root.store), resources.max_mem // (2 * LARGEST))  # they sample
    members = abreast(lambda one: work.member(*one), arrays.items(), max(at_a_time, 1))
    made = dict(zip(arrays, members, strict=True))
    for name, node in nodes.items():
        work.add(name, node, made.get(name))
    work.raise_refusals(root.where)
    plan = CopyPlan(
        members=tuple(work.members),
        max_mem=resources.max_mem,
        threads=workers.threads,
        threads_per_process=workers.threads_per_process,
        overwrite=overwrite,
        source=(without_consolidated(root.store), root.path),
        store=store,
        path=below,
        node_format=node_format,
        groups=tuple(work.groups),
        consolidated=tuple(work.consolidated),
        notes=tuple(dict.fromkeys(work.notes)),
        model=resources.model,
    )
    plan.check_room()
    return plan


def copy(
    src: Location | Array | Group,
    dst: Location | Group,
    *,
    path: str = "",
    chunks: Any = None,
    shards: Any = None,
    format: str | None = None,
    codecs: Any = None,
    dtype: Any = None,
    region: Any = None,
    max_mem: str | int | None = None,
    temp: Location | None = None,
    overwrite: bool = False,
    client: Client | None = None,
    progress: Callable[[Progress], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    read: ReadOptions | None = None,
    resume: bool = False,
    journal: Location | None = None,
    verify: bool = False,
) -> JointReport:
    """Copy an array or a hierarchy: `plan_copy`, then run.

    Attributes, names of dimensions, fill values and empty groups are kept, absent chunks stay
    absent, and consolidated metadata are made anew where the source has them. The copy becomes
    visible when the whole of it is there.

    Parameters
    ----------
    src, dst, path, chunks, shards, format, codecs, dtype, region, max_mem, temp, overwrite
        As for `plan_copy`.
    client, storage_options, target_options, read
        As for `plan_copy`.
    progress
        Called after each task.
    resume, journal, verify
        As for `RechunkPlan.run`. The same arguments make the same job. What was copied as stored
        objects is compared byte by byte.

    Raises
    ------
    ZarrDaskError
        As `plan_copy` and `CopyPlan.run`.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> a = zd.create_array({}, shape=(8, 64), dtype="f4", chunks=(1, 64), attributes={"unit": "K"})
    >>> a[...] = 2
    >>> target = {}
    >>> zd.copy(a, target, format="v2").stored == a.nbytes_stored()
    True
    >>> zd.open(target).attributes
    {'unit': 'K'}
    """
    check_flags(overwrite=overwrite, resume=resume, verify=verify)
    plan = plan_copy(
        src,
        dst,
        path=path,
        chunks=chunks,
        shards=shards,
        format=format,
        codecs=codecs,
        dtype=dtype,
        region=region,
        max_mem=max_mem,
        temp=temp,
        overwrite=overwrite or resume,  # a job that has died may have made some of it visible
        client=client,
        storage_options=storage_options,
        target_options=target_options,
        read=read,
    )
    plan = replace(plan, overwrite=overwrite)
    return plan.run(client, progress, resume=resume, journal=journal, verify=verify)


# --- the source -----------------------------------------------------------------------------------

_Node = Array | Group | MetadataError


def _opened(
    src: Any, storage_options: Mapping[str, Any] | None, options: ReadOptions
) -> Array | Group:
    """The source, by the documents of its nodes: consolidated ones may be out of date."""
    return open_node(
        src, storage_options=storage_options, read=replace(options, consolidated=False)
    )


def _nodes(root: Array | Group) -> Iterator[tuple[str, _Node]]:
    """All nodes by their paths below the source, parents first; "" is the source itself."""
    yield "", root
    if isinstance(root, Array):
        return
    left_out = consolidated_holder(root.store, root.node_format)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MissingGroupWarning)  # they get documents
        try:
            below = list(root.walk())
        except ListingError:
            options = replace(root.options, consolidated=True)
            recorded = open_node(root.store, root.path, format=root.format, read=options)
            below = list(recorded.walk()) if isinstance(recorded, Group) else []
    for name, node in below:
        if join(root.path, name) != left_out:
            yield name, node


def _check_apart(nodes: Mapping[str, _Node], store: Store, path: str) -> None:
    """Refuse a copy that is, holds or lies within what is copied, links included."""
    for node in nodes.values():
        if isinstance(node, MetadataError):
            continue
        if meet((without_consolidated(node.store), node.path), (store, path)):
            raise SourceIsTargetError(
                f"{where(store, path)} is {node.where}, or one lies within the other, so that the "
                "copy would go into what is copied. Choose another place."
            )


# --- what is asked for ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Grids:
    """What is to be other than in the source; see `plan_copy`."""

    chunks: Any
    shards: Any
    region: Any
    codecs: Any
    dtype: Any
    format: str | None
    paths: tuple[str, ...]
    """Of the arrays."""

    def check(self, root: Array | Group, arrays: Mapping[str, Array]) -> None:
        """Refuse what means nothing for a source."""
        if isinstance(root, Array):
            return
        known = {n for one in arrays.values() for n in one.dimension_names or () if n is not None}
        for what, given, such in (
            ("chunks", self.chunks, "{'time': -1, 'x': 64}"),
            ("shards", self.shards, "{'time': -1, 'x': 64}"),
            ("region", self.region, "{'time': slice(0, 100)}"),
        ):
            if given is None:
                continue
            if not isinstance(given, Mapping):
                raise GridError(
                    f"{what}={given!r}: for the arrays of a group it is given by names of "
                    f"dimensions, such as {such}. Dimensions in {root.where}: "
                    f"{', '.join(sorted(known)) or 'none has a name'}."
                )
            unknown = [name for name in given if name not in known]
            if unknown:
                raise GridError(
                    f"{what} names {unknown}, which no array in {root.where} has as a dimension; "
                    f"there are {sorted(known)}."
                )
        if self.dtype is not None and not self._is_by_path(self.dtype):
            raise DataTypeError(
                f"dtype={self.dtype!r}: for a group give a mapping from paths of arrays in it to "
                f"data types. Arrays in {root.where}: {', '.join(self.paths) or 'none'}."
            )
        codecs = self.codecs
        if isinstance(codecs, Mapping) and not self._is_codec(codecs):
            unknown = [name for name in codecs if name not in self.paths]
            if unknown:
                raise GridError(
                    f"codecs= names {unknown}, which are no arrays in {root.where}; there are "
                    f"{', '.join(self.paths) or 'none'}."
                )

    def _is_by_path(self, given: Any) -> bool:
        return isinstance(given, Mapping) and all(name in self.paths for name in given)

    def _is_codec(self, given: Any) -> bool:
        """Whether a mapping is one codec, and not of codecs by path: arrays may be called so."""
        if not isinstance(given, Mapping):
            return False
        named = any(isinstance(given.get(member), str) for member in ("name", "id"))
        return named and (len(given) == 1 or not self._is_by_path(given))

    def of(self, path: str, array: Array) -> Wanted:
        """What is asked for one array."""
        chunks, shards, dtype, codecs = self.chunks, self.shards, self.dtype, self.codecs
        region = self.region
        if path:  # below a group
            chunks, shards, region = (_own(given, array) for given in (chunks, shards, region))
            dtype = dtype.get(path) if self._is_by_path(dtype) else dtype
            if self._is_by_path(codecs) and not self._is_codec(codecs):
                codecs = codecs.get(path)
        return Wanted(chunks, shards, dtype, codecs, self.format, region)


def _followed(nodes: Mapping[str, _Node], store: Store, path: str, grids: _Grids) -> str:
    """Name of the format of the group around a copy if all nodes can have it; else their own."""
    own = next(node.format for node in nodes.values() if not isinstance(node, MetadataError))
    around = format_of_group_around(store, path)
    if around is None or around == own:
        return own
    followed = format_for_new(store, around, path)

    def can_have_it(name: str, node: _Node) -> bool:
        if isinstance(node, MetadataError):
            return False
        if not all(map(followed.is_node_name, filter(None, name.split("/")))):
            return False
        if isinstance(node, Array):
            wanted = grids.of(name, node)
            return says_all(node, store, join(path, name), followed, wanted)
        known = without_consolidated(node.store), node.path, node.node_format, node.meta
        return has_consolidated(followed) or not is_consolidated(*known)

    return around if all(can_have_it(*one) for one in nodes.items()) else own


def _own(grid: Any, array: Array) -> Any:
    """What a grid or a region by names says of an array; None for nothing."""
    if grid is None:
        return None
    names = array.dimension_names or ()
    return {name: length for name, length in grid.items() if name in names} or None


# --- one node after the other ---------------------------------------------------------------------

_Member = MovePlan | RechunkPlan
_Refusal = MetadataError | GridError | DataTypeError | SelectionError


class _Work:
    """What becomes of the nodes."""

    def __init__(
        self,
        store: Store,
        path: str,
        node_format: Format,
        grids: _Grids,
        resources: Resources,
        overwrite: bool,
    ) -> None:
        self.store, self.path, self.node_format = store, path, node_format
        self.grids, self.resources, self.overwrite = grids, resources, overwrite
        self.members: list[_Member] = []
        self.groups: list[tuple[str, GroupMeta]] = []
        self.consolidated: list[str] = []
        self.notes: list[str] = []
        self.refusals: list[tuple[str, str, Exception]] = []

    def member(self, name: str, array: Array) -> _Member | _Refusal:
        """What becomes of an array, or why nothing can; safe to call from many threads."""
        try:
            self._check_name(name)
            return self._array(name, array)
        except (MetadataError, GridError, DataTypeError, SelectionError) as error:
            return error

    def add(self, name: str, node: _Node, member: _Member | _Refusal | None) -> None:
        """Plan what becomes of a node, or note why nothing can; arrays are planned already."""
        try:
            if isinstance(member, Exception):
                raise member
            if isinstance(node, MetadataError):
                raise node
            if member is not None:
                self.members.append(member)
                self.notes.extend(member.notes)
            elif isinstance(node, Group):
                self._check_name(name)
                self._group(name, node)
        except (MetadataError, GridError, DataTypeError, SelectionError) as error:
            problems = error.problems if isinstance(error, MetadataError) else (error,)
            self.refusals.append((name, "; ".join(map(str, problems)), error))

    def raise_refusals(self, at: str) -> None:
        """Refuse the whole if something cannot be copied; that of a single array by its error."""
        if self.refusals and not self.groups and not self.refusals[0][0]:
            raise self.refusals[0][2]
        if self.refusals:
            raise CopyError(at, [(name, reason) for name, reason, _ in self.refusals])

    def _check_name(self, name: str) -> None:
        for part in name.split("/") if name else ():
            if not self.node_format.is_node_name(part):
                raise GridError(f"{part!r} cannot be the name of a node in {self.node_format.name}")

    def _group(self, name: str, node: Group) -> None:
        meta = node.meta
        path = join(self.path, name)
        same = node.node_format == self.node_format
        extra = without_recorded(meta.extra) if same else {}
        new = GroupMeta(meta.attributes, extra, implicit=meta.implicit)
        if meta.implicit and not self.node_format.has_implicit_groups:
            self.notes.append("groups without a document get one")
        if not (meta.implicit and self.node_format.has_implicit_groups):
            self.node_format.documents(new, path)  # raises where the format has none
        self.groups.append((path, new))
        store = without_consolidated(node.store)
        if is_consolidated(store, node.path, node.node_format, meta):
            if has_consolidated(self.node_format):
                self.consolidated.append(path)
            else:
                self.notes.append(
                    f"{self.node_format.name} has no consolidated metadata: there will be none"
                )

    def _array(self, name: str, array: Array) -> _Member:
        path = join(self.path, name)
        array.meta.check_writable(array.where)  # what was skipped in reading has no known meaning
        wanted = self.grids.of(name, array)
        same = self._as_stored(array, path)
        rewrites = any(
            one is not None
            for one in (wanted.chunks, wanted.shards, wanted.dtype, wanted.codecs, wanted.region)
        )
        # whether a chunk is absent within its shard is found out by reading it
        strict = array.options.missing == "error"
        if rewrites or strict or same is None:
            wanted = replace(wanted, format=self.node_format.name)
            new = new_array(array, self.store, path, self.node_format, wanted)
            if strict or same is None or not _same_bytes(new.array, same):
                return planned(array, new, self.resources, overwrite=self.overwrite)
        target = Array(self.store, path, same, self.node_format)
        self.node_format.documents(same, path)  # raises where the format cannot say it
        move = plan_move(array, target, self.resources.budget)
        return replace(move, notes=notes_of(array, target))

    def _as_stored(self, array: Array, path: str) -> ArrayMeta | None:
        """What says the same of the same stored bytes; None if the format has no words for it."""
        old, new = array.node_format, self.node_format
        same = as_stored(array.meta, old, new, where(self.store, path))
        if same is not None and new != old:
            try:
                new.documents(same, path)
            except MetadataError:
                return None
        return same


def _same_bytes(made: Array, same: Any) -> bool:
    """Whether what was asked for is what is stored."""
    facts: Sequence[tuple[Any, Any]] = (
        (made.meta.grid, same.grid),
        (made.meta.codecs, same.codecs),
        (made.meta.data_type, same.data_type),
    )
    return all(a == b for a, b in facts)
