"""Rechunking an array within a memory limit, on any of dask's schedulers.

`plan_rechunk` plans everything; `RechunkPlan.run` does it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial as bound
from os import PathLike
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

import numpy as np

from zarr_dask._util.arguments import check_bools, check_count, check_resume, check_type
from zarr_dask._util.keywords import explained_by, takes_habits, takes_options_of
from zarr_dask._util.threads import cpu_count
from zarr_dask.array.array import Array
from zarr_dask.array.create_options import takes_codec_steps
from zarr_dask.errors import NodeExistsError, NodeTypeError, SourceIsTargetError
from zarr_dask.formats.base import ReadOptions
from zarr_dask.formats.detect import format_for_new
from zarr_dask.hierarchy.edit import check_can_create
from zarr_dask.hierarchy.group import Group
from zarr_dask.hierarchy.locate import options_of_both, parent_format, prefetch_location
from zarr_dask.hierarchy.open_node import open as open_node
from zarr_dask.jobs.engine import Workers, find_workers
from zarr_dask.jobs.engine.map_regions import is_dask
from zarr_dask.jobs.engine.predict import CostModel, memory_budget, plan_each
from zarr_dask.jobs.engine.resume import Resume
from zarr_dask.jobs.engine.zip_targets import Archives
from zarr_dask.jobs.rechunk.dask_source import DaskRechunkPlan, DaskRechunkReport, plan_dask
from zarr_dask.jobs.rechunk.joint_plan import JointRechunkPlan, JointReport
from zarr_dask.jobs.rechunk.plan import Progress, RechunkPlan, RechunkReport
from zarr_dask.jobs.rechunk.target_spec import (
    RechunkBudget,
    TargetSpec,
    make_rechunk_plan,
    new_array,
    target_format,
)
from zarr_dask.stores.base import Store
from zarr_dask.stores.open import Location
from zarr_dask.stores.patience import in_job
from zarr_dask.stores.real_location import nested, overlaps, place_of_target, source_at_target

if TYPE_CHECKING:
    import dask.array as da
    from distributed import Client

__all__ = [
    "Progress",
    "RechunkPlan",
    "RechunkReport",
    "check_all_apart",
    "plan_rechunk",
    "rechunk",
]


# --- making a plan --------------------------------------------------------------------------------


class JobOptions(TypedDict, total=False):
    """Keyword arguments of both `plan_rechunk` and `rechunk`; see there."""

    chunks: Any
    shards: Any
    max_mem: str | int | None
    temp: Location | None
    overwrite: bool
    path: Any
    client: Client | None
    storage_options: Mapping[str, Any] | None
    target_options: Mapping[str, Any] | None
    read: ReadOptions | None
    model: CostModel | None
    dtype: Any
    codecs: Any
    format: str | None
    region: Any


class PlanOptions(JobOptions, total=False):
    """Keyword arguments of `plan_rechunk`; see there."""

    threads: int | None


class RechunkOptions(JobOptions, total=False):
    """Keyword arguments of `rechunk`; see there."""

    progress: Callable[[Progress], None] | bool | None
    resume: Resume
    journal: Location | None
    verify: bool


_HABITS = {
    "component": "path",
    "target_chunks": "chunks",
    "target_store": "target",
    "temp_store": "temp",
    "zarr_format": "format",
}
"""Names of rechunker and zarr-python for arguments of this package."""


@overload
def plan_rechunk(
    source: Group, target: Location | Group, **options: Unpack[PlanOptions]
) -> Any: ...
@overload
def plan_rechunk(
    source: Location | Array, target: Location | Group, **options: Unpack[PlanOptions]
) -> RechunkPlan: ...
@overload
def plan_rechunk(
    source: da.Array, target: Location | Group, **options: Unpack[PlanOptions]
) -> DaskRechunkPlan: ...
@overload
def plan_rechunk(
    source: Sequence[Location | Array], target: Any, **options: Unpack[PlanOptions]
) -> JointRechunkPlan: ...
@in_job()
@takes_codec_steps
@takes_habits(**_HABITS)
def plan_rechunk(
    source: Any,
    target: Any,
    *,
    chunks: Any = None,
    shards: Any = None,
    max_mem: str | int | None = None,
    temp: Location | None = None,
    overwrite: bool = False,
    path: Any = "",
    client: Client | None = None,
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    read: ReadOptions | None = None,
    model: CostModel | None = None,
    dtype: Any = None,
    codecs: Any = None,
    format: str | None = None,
    region: Any = None,
    threads: int | None = None,
) -> RechunkPlan | JointRechunkPlan | DaskRechunkPlan:
    """Plan how to rechunk an array, several or a group; nothing is written.

    Parameters
    ----------
    source
        The array, or its location. A list of arrays makes one plan for them; their tasks share the
        workers and their memory, and they become visible together. The blocks of a dask array are
        written as they are computed: into the target if they are whole stored objects of it, else
        into an intermediate array, which is then rechunked.
    target
        Location of the new array; a list for several arrays, or one location with a list of paths.
        For several arrays, `chunks`, `shards`, `dtype` and `region` may also be lists.
    chunks
        Shape of its chunks: lengths by position, or by name or position of the dimension in a
        mapping; -1 is the whole dimension. Omitted dimensions stay as they are. The length along a
        dimension may also be the sizes of all its chunks, as for `zarr_dask.create_array`.
    shards
        Shape of its shards, in the same forms; none by default.
    max_mem
        Maximum bytes that one process may hold above its idle size, such as ``"2GB"``. By default
        the share that the workers' memory limit leaves, or 1 GB.
    temp
        Location of intermediate data, if any is needed; beside the target by default.
    overwrite
        Replace existing data at the target.
    path
        Path of the target below its store; a list for several arrays.
    client
        A cluster; by default the current client's, or the scheduler dask is configured for.
    storage_options
        Options of the source's store. What is open has its own: they are the target's then,
        unless there are `target_options`.
    target_options
        Options of the target's store.
    read
        How to read the source, if it is a location.
    model
        Cost model for the choice between plans.
    dtype
        Data type of the new array; that of the source by default. Fractions may be lost; a number
        that it cannot hold raises an error when it is read.
    codecs
        Codecs of its chunks, as for `zarr_dask.create_array`; by default those of the source, or,
        if another `format` does not have them, that format's defaults, with a note in the plan.
    format
        Its format, such as ``"v3"``. By default that of the target's parent group, if this format
        can express the array completely, else that of the source.
    region
        Slices of the source, without steps, by position or in a mapping by name or position of
        the dimension; all of it by default.
    threads
        Number of concurrent tasks in the one process that runs each part of the plan; by default
        those of the current workers.

    Returns
    -------
    RechunkPlan, JointRechunkPlan, DaskRechunkPlan or CopyPlan
        The second for several arrays, the third for a dask array, the fourth for a group.

    Raises
    ------
    GridError
        If the grids do not fit the array.
    ValueError
        If a list has a length other than the number of arrays.
    DataTypeError, MetadataError
        If the format has no such data type or codecs.
    SourceIsTargetError
        If the target is the source, or one lies within the other.
    NodeExistsError
        If something exists at the target, or two arrays have the same target.
    MemoryBudgetError
        If `max_mem` is too small for one stored object of the target.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> a = zd.create_array({}, shape=(8, 64, 64), dtype="f4", chunks=(1, 64, 64))
    >>> plan = zd.plan_rechunk(a, {}, chunks=(-1, 16, 16), max_mem="8MB")
    >>> plan.target.chunks, len(plan.stages)
    ((8, 16, 16), 1)
    >>> zd.plan_rechunk([a, a], {}, path=["b", "c"], chunks=[(-1, 16, 16), (4, 32, 32)]).nbytes
    262144
    """
    check_bools(overwrite=overwrite)
    check_count("threads", threads, "those of the workers")
    check_type("model", model, CostModel, "zarr_dask.CostModel(...)")
    named = next((one for one in _listed(source) if isinstance(one, str | PathLike)), None)
    storage_options, target_options = options_of_both(named, storage_options, target_options)
    opened = bound(_opened, storage_options=storage_options, read=read)
    archives = Archives(replaces=overwrite and not path)
    workers = find_workers(client) if threads is None else Workers(None, threads, threads)
    resources = RechunkBudget(workers, memory_budget(max_mem, workers), model or CostModel(), temp)
    if not isinstance(source, list | tuple):
        wanted = TargetSpec(chunks, shards, dtype, codecs, format, region)
        place = archives.place(target, path, target_options)
        if is_dask(source):
            form = format_for_new(place[0], format or parent_format(*place), place[1])
            return plan_dask(source, *place, form, wanted, resources, overwrite=overwrite)
        if threads is None and workers.in_this_process:
            resources = replace(resources, sharing=min(workers.threads, cpu_count()))
        return _plan(opened(source), *place, wanted, resources, overwrite=overwrite)
    each = [
        _for_each(given, len(source), name)
        for name, given in (
            ("target", target),
            ("path", path),
            ("chunks", chunks),
            ("shards", shards),
            ("dtype", dtype),
            ("region", region),
        )
    ]

    def plan_one(
        one: Any, place: Any, below: Any, cells: Any, outer: Any, kind: Any, part: Any
    ) -> RechunkPlan:
        wanted = TargetSpec(cells, outer, kind, codecs, format, part)
        to = archives.place(place, below, target_options)
        return _plan(opened(one), *to, wanted, resources, overwrite=overwrite)

    plans = plan_each(bound(plan_one, *one) for one in zip(source, *each, strict=True))
    check_all_apart(plans)
    return JointRechunkPlan(
        members=tuple(plans),
        max_mem=resources.max_mem,
        threads=workers.threads,
        threads_per_process=workers.threads_per_process,
        overwrite=overwrite,
        model=resources.model,
    )


def _for_each(given: Any, count: int, name: str) -> list[Any]:
    """Return the values of an argument for each of several arrays."""
    if not count:
        raise ValueError("there is no array to lay out anew: the list of sources is empty.")
    items = list(given) if isinstance(given, list) else [given] * count
    if len(items) != count:
        raise ValueError(
            f"{name} has {len(items)} items for {count} arrays: a list has one for each of them, "
            "and what is meant for all is no list."
        )
    return items


def _listed(source: Any) -> Sequence[Any]:
    return source if isinstance(source, list | tuple) else [source]


def _plan(
    array: Array,
    store: Store,
    path: str,
    wanted: TargetSpec,
    resources: RechunkBudget,
    *,
    overwrite: bool,
) -> RechunkPlan:
    """Return the plan of one array."""
    node_format = target_format(array, store, path, wanted)
    new = new_array(array, store, path, node_format, wanted)
    check_source_not_target(array, new.array)
    prefetched = prefetch_location(store, path)
    check_can_create(prefetched.store, path, node_format, overwrite=overwrite)
    return make_rechunk_plan(array, new, resources, overwrite=overwrite)


def _opened(
    source: Any, storage_options: Mapping[str, Any] | None, read: ReadOptions | None
) -> Array:
    if isinstance(source, np.ndarray):
        raise TypeError(
            f"the source is a NumPy array of shape {source.shape}, which is laid out in memory: "
            "create the new array (zarr_dask.create_array) and assign it (array[...] = values)."
        )
    node = source
    if not isinstance(source, Array):
        node = open_node(source, storage_options=storage_options, read=read)
    if isinstance(node, Array):
        return node
    raise NodeTypeError(
        f"{node.where} is a group: open an array in it (zarr_dask.open_array(source, name)). A "
        "list has arrays only; zarr_dask.rechunk takes a group by itself."
    )


@overload
def rechunk(source: Group, target: Location | Group, **options: Unpack[RechunkOptions]) -> Any: ...
@overload
def rechunk(
    source: Location | Array, target: Location | Group, **options: Unpack[RechunkOptions]
) -> RechunkReport: ...
@overload
def rechunk(
    source: da.Array, target: Location | Group, **options: Unpack[RechunkOptions]
) -> DaskRechunkReport: ...
@overload
def rechunk(
    source: Sequence[Location | Array], target: Any, **options: Unpack[RechunkOptions]
) -> JointReport: ...
@in_job()
@takes_codec_steps
@takes_habits(**_HABITS)
@takes_options_of(plan_rechunk, but=["threads"])
@explained_by(plan_rechunk)
def rechunk(
    source: Any,
    target: Any,
    *,
    overwrite: bool = False,
    client: Client | None = None,
    progress: Callable[[Progress], None] | bool | None = None,
    resume: Resume = False,
    journal: Location | None = None,
    verify: bool = False,
    **options: Any,
) -> RechunkReport | JointReport | DaskRechunkReport:
    """Rechunk an array, several or a group, within a memory limit: `plan_rechunk`, then run.

    Parameters
    ----------
    source, target, overwrite, client
        As for `plan_rechunk`.
    resume, journal, verify
        As for `RechunkPlan.run`. The same arguments make the same job. For a dask array see
        `DaskRechunkPlan.run`.
    progress
        Called after each task; True for bars that count bytes, one for each stage.
    **options
        As for `plan_rechunk`.

    Raises
    ------
    ZarrDaskError
        As `plan_rechunk` and `RechunkPlan.run`.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> a = zd.create_array({}, shape=(8, 64), dtype="f4", chunks=(1, 64))
    >>> a[...] = 2
    >>> target = {}
    >>> zd.rechunk(a, target, chunks=(8, 16)).objects
    4
    >>> float(zd.open_array(target)[...].sum())
    1024.0
    """
    check_bools(overwrite=overwrite, verify=verify)
    check_resume(resume)
    again = overwrite or bool(resume)  # a job that has died may have made it visible
    plan: RechunkPlan | JointRechunkPlan | DaskRechunkPlan = plan_rechunk(
        source, target, overwrite=again, client=client, **options
    )
    if isinstance(plan, DaskRechunkPlan):
        plan = replace(plan, then=replace(plan.then, overwrite=overwrite))
        return plan.run(client, progress, resume=resume, journal=journal, verify=verify)
    plan = replace(plan, overwrite=overwrite)
    return plan.run(client, progress, resume=bool(resume), journal=journal, verify=verify)


def check_source_not_target(source: Array, target: Array) -> None:
    """Refuse a target that is, contains or lies within the source.

    Raises
    ------
    SourceIsTargetError
        If it does.
    """
    if source_at_target((source.store, source.path), (target.store, target.path)) is not None:
        raise SourceIsTargetError(
            f"the target {target.where} is the source, or one lies within the other, so that "
            "writing would destroy what is still to be read. Choose another target, and replace "
            "the source by it afterwards."
        )


def check_all_apart(plans: Sequence[RechunkPlan]) -> None:
    """Refuse targets that conflict with each other, or with another array's source."""
    targets = [place_of_target(plan.target.store, plan.target.path) for plan in plans]
    sources = [place_of_target(plan.source.store, plan.source.path) for plan in plans]
    for number, other in overlaps(sources, targets):
        check_source_not_target(plans[number].source, plans[other].target)
    for number, other in nested(targets):
        one, another = plans[number].target, plans[other].target
        raise NodeExistsError(
            f"two of the arrays go to {one.where} and {another.where}: one would replace the "
            "other. Give each a place of its own."
        )
