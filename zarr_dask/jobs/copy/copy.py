"""Copy arrays and hierarchies to another location, grid, encoding or format.

`plan_copy` decides for every array (`zarr_dask.jobs.copy.node_plans`) how to copy it. Its stored
objects are copied as they are if grid, codecs and format allow it; otherwise it is rechunked.
`CopyPlan.run` does the work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

from zarr_dask._util.arguments import check_bools, check_count, check_resume, check_type
from zarr_dask._util.keywords import explained_by, takes_habits, takes_options_of
from zarr_dask._util.threads import run_concurrently
from zarr_dask.array.array import Array
from zarr_dask.array.create_options import takes_codec_steps
from zarr_dask.errors import MetadataError, SourceIsTargetError
from zarr_dask.formats.base import ReadOptions, normalise_path, where
from zarr_dask.formats.consolidated import without_consolidated
from zarr_dask.formats.detect import format_for_new
from zarr_dask.hierarchy.group import Group
from zarr_dask.hierarchy.locate import options_of_both, prefetch_location
from zarr_dask.hierarchy.open_node import open as open_node
from zarr_dask.jobs.copy.node_plans import GridOptions, Node, NodePlans, inherited_format
from zarr_dask.jobs.copy.plan import CopyPlan
from zarr_dask.jobs.copy.source_nodes import nodes_of
from zarr_dask.jobs.engine import Workers, find_workers
from zarr_dask.jobs.engine.predict import CostModel, memory_budget
from zarr_dask.jobs.engine.resume import Resume
from zarr_dask.jobs.engine.thread_map import listing_concurrency, map_concurrently
from zarr_dask.jobs.engine.zip_targets import Archives
from zarr_dask.jobs.rechunk.compression_sample import LARGEST
from zarr_dask.jobs.rechunk.joint_plan import JointReport
from zarr_dask.jobs.rechunk.plan import Progress
from zarr_dask.jobs.rechunk.rechunk import plan_rechunk
from zarr_dask.jobs.rechunk.target_spec import RechunkBudget
from zarr_dask.stores.base import Store, is_remote
from zarr_dask.stores.open import Location, open_with_options_of
from zarr_dask.stores.patience import in_job
from zarr_dask.stores.real_location import overlaps, place_of_target, places_of_references

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["copy", "plan_copy"]


class CopyOptions(TypedDict, total=False):
    """Keyword arguments of both `plan_copy` and `copy`, for type checkers; see there."""

    overwrite: bool
    client: Client | None

    path: str
    chunks: Any
    shards: Any
    format: str | None
    codecs: Any
    dtype: Any
    region: Any
    max_mem: str | int | None
    temp: Location | None
    model: CostModel | None
    storage_options: Mapping[str, Any] | None
    target_options: Mapping[str, Any] | None
    read: ReadOptions | None


class PlanCopyOptions(CopyOptions, total=False):
    """Keyword arguments of `plan_copy`."""

    threads: int | None


class RunCopyOptions(CopyOptions, total=False):
    """Keyword arguments of `copy`."""

    progress: Callable[[Progress], None] | bool | None
    resume: Resume
    journal: Location | None
    verify: bool


_HABITS = {
    "component": "path",
    "source": "src",
    "target": "dst",
    "zarr_format": "format",
}
"""Names of zarr-python and of other jobs for arguments of this package."""


@overload
def plan_copy(
    src: Location | Array | Group, dst: Location | Group, **options: Unpack[PlanCopyOptions]
) -> CopyPlan: ...
@overload
def plan_copy(src: Any, dst: Location | Group, **options: Unpack[PlanCopyOptions]) -> Any: ...
@in_job()
@takes_codec_steps
@takes_habits(**_HABITS)
@explained_by(plan_rechunk)
def plan_copy(
    src: Any,
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

    Stored objects are copied as they are, without decoding, if grid, codecs and format allow it;
    else the array is rechunked within `max_mem`.

    Parameters
    ----------
    src
        An array or a group: its location, or an open node. Dask and NumPy arrays, and datasets of
        xarray, are written as by `zarr_dask.plan_write` and `zarr_dask.plan_dataset`; for these
        `region` names dimensions only of datasets.
    dst
        Location of the copy.
    path
        Path of the copy below it.
    chunks, shards
        New grids, by name of the dimension: ``chunks={"time": -1, "x": 64}``; -1 is the whole
        dimension. Arrays without any of these dimensions keep their grid. A mapping under the path
        of an array is for that array alone: ``chunks={"time": 24, "t2m": {"time": -1}}``; so is a
        tuple, as ``{"t2m": (24, 10, 10)}``. ``"auto"``, a size such as ``"10MB"``, -1 and False are
        for all arrays. For a single array, all forms that
        `zarr_dask.plan_rechunk` accepts.
    format
        Format of the copy. By default that of its parent group, if this format can express the
        source completely, else that of the source.
    codecs
        Codecs of the chunks, as for `zarr_dask.create_array`; by default those of each array, or,
        if another `format` does not have them, that format's defaults, with a note in the plan. For
        a group also a mapping from paths of arrays in it to codecs; ``{"name": "crc32c"}`` is a
        codec even if there is an array called ``name``.
    dtype
        Data type, for a single array; for a group a mapping from paths of arrays in it.
    region
        Region to copy: slices by name of the dimension, ``region={"time": slice(0, 100)}``. Arrays
        without any of these dimensions are copied whole. For a single array, all forms that
        `zarr_dask.plan_rechunk` accepts.
    max_mem, temp, client, threads, model
        As for `zarr_dask.plan_rechunk`.
    overwrite
        Replace existing nodes at the target.
    storage_options, target_options
        Options of the stores at `src` and `dst`. An open `src` has its own: `storage_options`
        are those of `dst` then, unless there are `target_options`.
    read
        How to read the source.

    Raises
    ------
    CopyError
        If some nodes of a group cannot be copied as requested; all reasons are listed.
    GridError
        If a grid names dimensions that no array has.
    NodeNotFoundError
        If nothing exists at `src`.
    NodeExistsError
        If something exists at `dst`.
    SourceIsTargetError
        If source or target lies within the other.
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
    check_bools(overwrite=overwrite)
    check_count("threads", threads, "those of the workers")
    check_type("model", model, CostModel, "zarr_dask.CostModel(...)")
    options = ReadOptions.given(read)
    if read is None and isinstance(src, Array | Group):
        options = src.options
    storage_options, target_options = options_of_both(src, storage_options, target_options)
    root = _opened(src, storage_options, options)
    archives = Archives(replaces=overwrite and not normalise_path(path))
    store, below = archives.place(dst, path, target_options)
    if temp is not None:
        open_with_options_of(temp, store)  # raises if the store cannot be opened
    workers = find_workers(client) if threads is None else Workers(None, threads, threads)
    resources = RechunkBudget(workers, memory_budget(max_mem, workers), model or CostModel(), temp)
    nodes = dict(nodes_of(root))
    arrays = {name: node for name, node in nodes.items() if isinstance(node, Array)}
    grids = GridOptions(chunks, shards, region, codecs, dtype, format, tuple(arrays))
    grids.check(root, arrays)
    node_format = format_for_new(
        store, format or inherited_format(nodes, store, below, grids), below
    )
    _check_apart(nodes, store, below)
    work = NodePlans(store, below, node_format, grids, resources, overwrite)
    at_a_time = min(
        listing_concurrency(root.store), resources.max_mem // (2 * LARGEST)
    )  # they sample
    plan_members = partial(
        map_concurrently, lambda one: work.member(*one), arrays.items(), max(at_a_time, 1)
    )
    if is_remote(store):  # the target is looked at while the source is listed
        members, prefetched = run_concurrently(
            plan_members, partial(prefetch_location, store, below)
        )
    else:
        members, prefetched = plan_members(), None
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
    plan.check_room(None if prefetched is None else (prefetched,))
    return plan


@overload
def copy(
    src: Location | Array | Group, dst: Location | Group, **options: Unpack[RunCopyOptions]
) -> JointReport: ...
@overload
def copy(src: Any, dst: Location | Group, **options: Unpack[RunCopyOptions]) -> Any: ...
@in_job()
@takes_codec_steps
@takes_habits(**_HABITS)
@takes_options_of(plan_copy, but=["threads"])
@explained_by(plan_copy)
def copy(
    src: Any,
    dst: Location | Group,
    *,
    overwrite: bool = False,
    client: Client | None = None,
    progress: Callable[[Progress], None] | bool | None = None,
    resume: Resume = False,
    journal: Location | None = None,
    verify: bool = False,
    **options: Any,
) -> JointReport:
    """Copy an array or a hierarchy: `plan_copy`, then run.

    Attributes, dimension names, fill values and empty groups are kept. Absent chunks stay absent.
    Consolidated metadata is written anew if the source has it. The copy becomes visible when all of
    it is complete.

    Parameters
    ----------
    src, dst, overwrite, client
        As for `plan_copy`.
    progress
        Called after each task; True for bars that count bytes.
    resume, journal, verify
        As for `RechunkPlan.run`. The same arguments make the same job; a name, as `to_zarr` takes
        it, means the same as True. Objects that were copied
        without decoding are compared byte by byte.
    **options
        As for `plan_copy`.

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
    >>> zd.copy(a, target, format="v2").stored < a.nbytes_stored()  # without checksums
    True
    >>> zd.open(target).attributes
    {'unit': 'K'}
    """
    check_bools(overwrite=overwrite, verify=verify)
    check_resume(resume)
    again = overwrite or bool(resume)  # a job that has died may have made some of it visible
    plan: CopyPlan = plan_copy(src, dst, overwrite=again, client=client, **options)
    plan = replace(plan, overwrite=overwrite)
    return plan.run(client, progress, resume=bool(resume), journal=journal, verify=verify)


# --- the source -----------------------------------------------------------------------------------


def _opened(
    src: Any, storage_options: Mapping[str, Any] | None, options: ReadOptions
) -> Array | Group:
    """Return the source, opened without consolidated metadata, which may be out of date."""
    return open_node(
        src, storage_options=storage_options, read=replace(options, consolidated=False)
    )


def _check_apart(nodes: Mapping[str, Node], store: Store, path: str) -> None:
    """Refuse a copy that is, contains or lies within the source, also through links."""
    sources = [
        (without_consolidated(node.store), node.path)
        for node in nodes.values()
        if not isinstance(node, MetadataError)
    ]
    places = [place_of_target(*source) for source in sources]
    for one in {id(source): source for source, _ in sources}.values():
        places += places_of_references(one)
    for number, _ in overlaps(places, [place_of_target(store, path)]):
        raise SourceIsTargetError(
            f"{where(store, path)} is {places[number]}, or one lies within the other, so that the "
            "copy would go into what is copied. Choose another place."
        )
