"""Writing dask arrays: planned so that every stored object has exactly one writing task.

If blocks do not fit the stored objects of the target, the graph regroups them, so that one task
gathers all values of an object. No two tasks ever write one object. A region that would cut through
objects is refused. The metadata of a new array is written last, by the last task.

`plan_write` checks (`checks`) and decides everything. `request` holds the arguments, `plan` the
decisions, `target_array` the array to write to, `target` the work of each task, and `running` the
end of the job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial as bound
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Unpack, overload

from zarr_dask._util.arguments import check_bools
from zarr_dask._util.keywords import explained_by, takes_habits, takes_options_of
from zarr_dask.array.array import Array
from zarr_dask.array.resize import axis_of
from zarr_dask.errors import (
    DataTypeError,
    ListingError,
    MetadataError,
    NodeNotFoundError,
    SelectionError,
    StoreError,
)
from zarr_dask.formats.base import DEFAULT_OPTIONS, ArrayMeta, read_documents
from zarr_dask.formats.detect import DEFAULT_FORMAT
from zarr_dask.grid.grid import Region
from zarr_dask.hierarchy.edit import check_can_create, puts_metadata_first
from zarr_dask.hierarchy.group import Group
from zarr_dask.hierarchy.key_swap import KeySwap, Swap, plan_key_swap, shown_key_swap
from zarr_dask.hierarchy.locate import (
    PrefetchedLocation,
    parent_format,
    prefetch_location,
    resolve_node,
)
from zarr_dask.hierarchy.open_node import open_array
from zarr_dask.indexing.basic import checked_region
from zarr_dask.jobs.engine import find_workers
from zarr_dask.jobs.engine.grid_arguments import parse_region_argument
from zarr_dask.jobs.engine.layouts import layout_of
from zarr_dask.jobs.engine.predict import JobBudget, plan_each
from zarr_dask.jobs.engine.resume import (
    Resume,
    find_finished_append,
    has_shown_swap,
    plan_resume,
)
from zarr_dask.jobs.engine.zip_targets import Archives
from zarr_dask.jobs.write.checks import (
    check_disjoint_targets,
    check_existing,
    check_fits,
    check_not_read,
    check_whole,
    partial_objects,
)
from zarr_dask.jobs.write.commit import GroupCommit
from zarr_dask.jobs.write.dataset_keywords import (
    DatasetPlanOptions,
    DatasetWriteOptions,
    OfXarray,
)
from zarr_dask.jobs.write.joint_plan import JointWritePlan
from zarr_dask.jobs.write.regroup import (
    check_fits_budget,
    check_held_together,
    cost_model_for,
    held_together,
    left_beside,
    ways,
)
from zarr_dask.jobs.write.request import (
    RunKeywords,
    WriteKeywords,
    WriteMode,
    WriteOptions,
    WriteRequest,
    are_several,
    as_dask,
    is_of_xarray,
    split_request,
)
from zarr_dask.jobs.write.running import WritePlan
from zarr_dask.jobs.write.staging import StagingArray, StagingFolder, plan_staging
from zarr_dask.jobs.write.submit import WriteProgress
from zarr_dask.jobs.write.target import WriteReport
from zarr_dask.jobs.write.target_array import append_target, existing_array, new_array
from zarr_dask.jobs.write.zarr_python_kwargs import KEYWORDS, target_of
from zarr_dask.journal import check_no_output
from zarr_dask.journal.swap import AtomicReplace, is_halfway, plan_swap
from zarr_dask.stores.base import is_remote
from zarr_dask.stores.compare_and_swap import as_cas_store
from zarr_dask.stores.open import Location
from zarr_dask.stores.patience import in_job
from zarr_dask.stores.retry import counting_requests

if TYPE_CHECKING:
    import dask.array as da

__all__ = ["plan_blocks", "plan_several", "plan_write", "to_zarr"]


Values = Any
"""A dask array, a NumPy array, nested lists, or an open array or view."""
_HABITS = {
    "append_dim": "append",
    "attrs": "attributes",
    "dims": "dimension_names",
    "path": "component",
}

# --- making a plan --------------------------------------------------------------------------------


@overload
def plan_write(
    arr: OfXarray,
    url: Any,
    component: str | None = None,
    *,
    mode: Any = None,
    group: str | None = None,
    encoding: Mapping[str, Any] | None = None,
    **options: Unpack[DatasetPlanOptions],
) -> Any: ...
@overload
def plan_write(
    arr: Values,
    url: Location | Array | Group,
    component: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    region: Any = None,
    mode: WriteMode = "a",
    **options: Unpack[WriteKeywords],
) -> WritePlan: ...
@overload
def plan_write(
    arr: Sequence[da.Array | Array],
    url: Sequence[Location | Array | Group] | Location | Group,
    component: Sequence[str | None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    region: Any = None,
    mode: WriteMode = "a",
    **options: Unpack[WriteKeywords],
) -> JointWritePlan: ...
@in_job()
@takes_habits((*KEYWORDS, "name"), is_of_xarray, **_HABITS)
@takes_options_of(WriteOptions)
def plan_write(
    arr: Any,
    url: Any,
    component: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    region: Any = None,
    mode: WriteMode = "a",
    **keywords: Any,
) -> Any:
    """Plan how to write a dask array, or several; nothing is written.

    Parameters
    ----------
    arr
        The dask array; or a NumPy array, nested lists, an open `Array` or a `View`. A list of dask
        arrays is written by one graph, so that what they have in common is computed once. A new
        array keeps the attributes and the names of the dimensions of an open `Array`. An open
        `Group` is copied, as by `plan_copy`.
    url
        Target: a path, a URL, a store, a mapping, or an `Array` opened with ``mode="r+"``; a list
        for several arrays, or one location with a list of components.
    component
        Path below it; a list for several arrays.
    storage_options
        Options of the store.
    region
        Slices of an existing array to write into, by position or for some dimensions by name; all
        of it by default. A list for several arrays.
    mode
        ``"a"`` creates, ``"w"`` replaces an existing array, ``"w-"`` creates only if nothing
        exists, ``"r+"`` writes into an existing array. ``"swap"`` replaces an array, which may
        also be the source: the new one is written beside it and takes its place when it is
        complete. It is for local files, and for format v3 in object stores with conditional
        writes, where the new one has other keys of stored objects (``chunk_key_encoding``).
    **options
        As for `WriteOptions`.
    **keywords
        Keywords that dask passes to zarr-python: ``compressor``, ``compressors``, ``filters``,
        ``serializer``, ``order``, ``zarr_format``, ``dimension_separator``, ``chunk_key_encoding``.

    Returns
    -------
    WritePlan, JointWritePlan, DatasetPlan or CopyPlan
        The second for several arrays, the third for a dataset, the fourth for a group.

    Raises
    ------
    AppendConflictError
        If another append is under way when this one begins.
    GridError
        If shapes or grids do not fit, or blocks have no known size.
    MemoryBudgetError
        If no way of writing the blocks fits into `max_mem`.
    ConditionalWriteError
        If objects are to be shared, and the store or its file system has no conditional writes.
    DataTypeError
        If the target cannot hold every value of the dask array's data type.
    NodeExistsError
        If something exists at the location of a new array.
    PartialWriteError
        If the region cuts through stored objects, or two arrays would write one object.
    ResumeError
        If the job to resume is another one, cannot be told from others, or has no location for a
        journal.
    SourceIsTargetError
        If a dask array reads what would be overwritten.
    TypeError
        For unknown keywords.
    ValueError
        For options that contradict each other.

    Examples
    --------
    >>> import dask.array as da
    >>> import zarr_dask as zd
    >>> plan = zd.plan_write(da.ones((400, 400), chunks=50), {}, chunks=(80, 80))
    >>> plan.tasks, plan.objects, plan.regrouped
    (25, 25, True)
    >>> x = da.ones((40, 40), chunks=10)
    >>> zd.plan_write([x, x + 1], {}, ["a", "b"]).tasks
    32
    >>> each = [{"fill_value": -1}, {"chunks": (20, 20)}]
    >>> zd.plan_write([x, x + 1], {}, ["a", "b"], each=each).tasks
    20
    """
    if is_of_xarray(arr):
        to = (url, component, storage_options, mode)
        return _of_xarray(arr.zd.plan, *to, region=region, **keywords)
    others = {name: keywords.pop(name) for name in (*KEYWORDS, "name") if name in keywords}
    request = WriteRequest(
        url=url,
        component=component,
        storage_options=storage_options,
        region=region,
        mode=mode,
        keywords=others,
        **keywords,
    )
    check_bools(overwrite=request.overwrite, sha256=request.sha256)
    check_bools(confirm=request.confirm, verify=request.verify)
    archives = Archives(replaces=(request.overwrite or mode == "w") and not component)
    place, storage_options = archives.instead_of(url, storage_options)
    request = replace(request, url=place, storage_options=storage_options)
    if not are_several(arr):
        if request.each is not None:
            raise TypeError("each= is about several arrays; name the options of a single one.")
        return _plan(arr, request)
    return plan_several(arr, split_request(request, len(arr)))


def _of_xarray(
    write: Callable[..., Any],
    url: Any,
    component: Any,
    storage_options: Mapping[str, Any] | None,
    mode: str,
    **given: Any,
) -> Any:
    """Plan or write a dataset, by a method of its accessor."""
    names = {"component": component}
    names |= {name: given.pop(name, None) for name in ("group", "name", "path")}
    said = [name for name, value in names.items() if value is not None]
    if len(said) > 1:
        raise TypeError(f"{said[0]}= and {said[1]}= both say where the group lies; choose one.")
    component = names[said[0]] if said else None
    replaces = given.pop("overwrite", False)
    given = {name: value for name, value in given.items() if value is not None}
    mode_of_dataset = "w" if replaces else None if mode == "a" else mode
    return write(url, mode_of_dataset, component, storage_options=storage_options, **given)


def plan_several(
    arrays: Sequence[da.Array], requests: Sequence[WriteRequest], commit: GroupCommit | None = None
) -> JointWritePlan:
    """Plan to write several arrays by one graph; nothing is written.

    Parameters
    ----------
    arrays, requests
        The dask arrays, and what is asked of each.
    commit
        Makes all of them visible together; each one becomes so alone without it.

    Raises
    ------
    ZarrDaskError
        As `plan_write`.
    """
    first: list[WritePlan] = []

    def plan_one(values: da.Array, asked: WriteRequest) -> WritePlan:
        # the journal of the first one is the last one to go
        ended = first[0].resume.ended_with if first else ()
        plan = _plan(values, replace(asked, ended=ended))
        first[:] = first or [plan]
        defers = commit is not None and not puts_metadata_first(plan.target.store)
        return replace(plan, deferred=True) if defers else plan

    plans = plan_each(bound(plan_one, *one) for one in zip(arrays, requests, strict=True))
    check_disjoint_targets(plans)
    is_resumable = commit is None and any(one.resume for one in requests)
    awaiting = [_awaiting(one, p.target, p.before) for one, p in zip(requests, plans, strict=True)]
    anew = bound(plan_several, arrays, awaiting) if is_resumable else None
    if commit is not None and commit.swap is not None:
        begun = (one.swap for one in plans if one.resume.resumed)
        swap = next((one for one in begun if one is not None), commit.swap)
        plans = [one.within(swap) for one in plans]
        commit = replace(commit, swap=swap)
    return JointWritePlan(tuple(_in_one_graph(_sharing_memory(plans))), commit, anew)


def _sharing_memory(plans: Sequence[WritePlan]) -> Sequence[WritePlan]:
    """Return the plans, with arrays between where blocks of all arrays would wait at a time.

    Raises
    ------
    MemoryBudgetError
        If too many blocks would wait, and there are no places for arrays between.
    """
    found = list(plans)
    budget = next((plan.budget for plan in found if plan.budget and plan.memory.held), None)
    if budget is None or len(found) < 2:
        return found
    threads = budget.workers.threads_per_process
    while held_together([plan.memory for plan in found], threads) > budget.max_mem:
        others = [plan.memory for plan in found if not plan.staged]
        rest = left_beside(others, budget)
        within = [plan.staged_within(rest) for plan in found]
        chosen = [plan.memory for plan in within]
        if held_together(chosen, threads) <= budget.max_mem:
            return within
        movable = [n for n, way in enumerate(chosen) if way.held and found[n].staged_way]
        if not movable:
            check_held_together(chosen, budget)
            return within
        most = max(movable, key=lambda n: found[n].memory.waiting)
        found[most] = found[most].with_array_between()
    return found


def _in_one_graph(plans: Sequence[WritePlan]) -> Sequence[WritePlan]:
    """Return the plans; those whose graphs other arrays need, too, do all in one graph."""
    layers = Counter(name for plan in plans for name in plan.values.dask.layers)
    return [
        replace(plan, in_one_graph=any(layers[name] > 1 for name in plan.values.dask.layers))
        if plan.staged
        else plan
        for plan in plans
    ]


def plan_blocks(
    staging: StagingFolder, values: da.Array, *, resume: Resume, verify: bool = False
) -> WritePlan:
    """Plan to write the blocks of a dask array, as they come, into an intermediate array."""
    between = staging.between
    request = WriteRequest(
        url=staging.array,
        chunks=between.chunks,
        shards=between.shards,
        codecs=between.codecs,
        format=DEFAULT_FORMAT.name,
        resume=resume,
        journal=staging.journal if resume else None,
        verify=verify,
        is_between=True,
    )
    return _plan(values, request)


def _is_unfinished(prefetched: PrefetchedLocation, target: Array) -> bool:
    """Return True if a job that nobody knows to have died has left objects in a remote store."""
    if not is_remote(target.store):
        return False
    prefix = target.node_format.data_prefix(target.path)
    keys = target.node_format.node_keys(target.path)[:1]
    if any(read_documents(prefetched.store, keys, DEFAULT_OPTIONS.limits).values()):
        return False
    try:
        return any(prefetched.store.list_dir(prefix))
    except ListingError:
        return False  # it cannot be known


class _ResolvedTarget(NamedTuple):
    """Destination of the values."""

    target: Array
    region: Region
    prefetched: PrefetchedLocation
    """Content of the location."""
    before: ArrayMeta | None = None
    """Metadata of the array now, if it grows."""
    ended: Region | None = None
    """The region, if a job that has ended already appended the same values."""


def _aim(values: da.Array, request: WriteRequest) -> _ResolvedTarget:
    """Return the destination of the values; nothing is written."""
    if request.creates and not isinstance(request.url, Array):
        store, path = resolve_node(request.url, request.component or "", request.storage_options)
        prefetched = request.prefetched or prefetch_location(store, path)
        around = parent_format(prefetched.store, path)
        target = new_array(values, store, path, request.wanted, request.keywords, around)
        return _ResolvedTarget(target, checked_region(None, target.shape), prefetched)
    try:
        given = (request.url, request.component, request.storage_options)
        target, prefetched = existing_array(*given, request.prefetched)
    except NodeNotFoundError as error:
        first = "region= writes into an array that exists: zarr_dask.create_array makes it"
        if request.append is not None:
            first = "append= lengthens an array that exists: write the first piece without it"
        elif request.region is None:
            first = "mode='r+' writes into an array that exists: leave it out to make one"
        raise NodeNotFoundError(error.where, error.looked_for, f"{first}. {error.hint}") from None
    check_existing(target, request)
    if request.append is None:
        return _ResolvedTarget(target, _region_in(target, request.region), prefetched)
    if request.on_conflict == "wait":
        target = target.as_long_as_it_is(axis_of(target, request.append, "append"))
    before = target.meta
    overlap, length = request.overlap, request.length
    target, region = append_target(target, values, request.append, prefetched, overlap, length)
    ended = find_finished_append(values, replace(target, meta=before), region, request.journals)
    if ended is not None:  # only its journal is left
        return _ResolvedTarget(replace(target, meta=before), ended, prefetched, None, ended)
    return _ResolvedTarget(target, region, prefetched, before)


def _plan(arr: Any, request: WriteRequest) -> WritePlan:
    """Return the plan of one array."""
    from zarr_dask.graph import checked_array

    values = checked_array(as_dask(arr))
    given = request
    url, component, keywords = target_of(request.url, request.component, request.keywords)
    request = replace(request, url=url, component=component, keywords=keywords)
    request.check()
    if isinstance(arr, Array) and request.creates:
        request = _with_names_of(arr, request)
    target, region, prefetched, before, ended = _aim(values, request)
    if not prefetched.free_beside:
        check_no_output(target.store, target.path)
    swap: Swap | None = request.swap
    if isinstance(swap, KeySwap):
        target, swap = _in_group(target, request, swap)
    elif request.mode == "swap":
        target, swap = _swap(target, request, prefetched)
    anyway = request.overwrite or request.mode == "w" or swap is not None
    replaces = request.creates and anyway  # where nothing is to be swapped, nothing is removed
    keys = target.meta.chunk_key_encoding if isinstance(swap, KeySwap) else None
    is_moved = isinstance(swap, AtomicReplace)
    check_not_read(values, target.store, target.path, keys, removes=anyway, moves=is_moved)
    check_fits(values, target, region, request.casting, request.region)
    resume = plan_resume(
        values,
        target,
        region,
        creates=request.creates and swap is None,
        grows=request.append is not None,
        grown=ended is not None,
        options=request.journals,
        swap=swap,
        free_beside=prefetched.free_beside,
        waits=request.on_conflict == "wait",
        anew=replaces,
        unfinished=request.creates
        and not request.is_between
        and _is_unfinished(prefetched, target),
    )
    if swap is not None and resume.resumed is not None:
        swap = replace(swap, token=resume.resumed[1].swap)
    over = resume.has_ended
    if request.creates and not over and resume.resumed is None:
        place = (prefetched.store, target.path, target.node_format)
        check_can_create(*place, overwrite=replaces, advice=request.advice)
    aligned = target.meta.grid.align(values.chunks, tuple(s.start for s in region))
    plan = WritePlan(
        values=values,
        target=target,
        region=region,
        blocks=aligned,
        partial=partial_objects(target, region),
        creates=request.creates,
        overwrite=replaces,
        before=before,
        casting=request.casting,
        uses_cas=request.partial == "compare",
        resume=resume,
        swap=swap,
        has_ended=over or (swap is not None and swap.is_done),
        prefetched=prefetched,
        anew=bound(_plan, arr, _awaiting(given, target, before)) if request.resume else None,
        again=bound(_plan, arr, given) if request.on_conflict == "wait" else None,
        is_between=request.is_between,
    )
    if not plan.has_ended and not request.is_between:
        plan = _within_budget(plan, request)
    if plan.partial and plan.uses_cas:
        as_cas_store(target.store).check_conditional(target.key(plan.partial[0]))
    if request.partial == "refuse" and request.append is None:
        check_whole(plan)
    return plan


def _awaiting(request: WriteRequest, target: Array, before: ArrayMeta | None) -> WriteRequest:
    """Return the request to be planned again after another process has worked on the same job.

    An append that may not stand behind others is not made twice then.
    """
    if before is None or request.on_conflict == "wait":
        return request
    return replace(request, until=target.shape)


def _with_names_of(source: Array, request: WriteRequest) -> WriteRequest:
    """Return the request of a new array, which keeps the attributes and dimensions of another."""
    names, attributes = request.dimension_names, request.attributes
    return replace(
        request,
        dimension_names=source.dimension_names if names is None else names,
        attributes=source.attributes if attributes is None else attributes,
    )


def _within_budget(plan: WritePlan, request: WriteRequest) -> WritePlan:
    """Return the plan with the way of writing its blocks that fits the budget best."""
    values, target = plan.values, plan.target
    if not plan.regrouped and request.max_mem is None:
        return plan
    budget = JobBudget.of(request.max_mem, find_workers())
    written = plan.written(plan.blocks)
    between, made = _between(plan, request) if plan.regrouped and values.size else (None, None)
    layout = None if made is None else layout_of(made)
    ways_within = bound(ways, written, model=cost_model_for(target.store), between=layout)
    found = ways_within(budget)
    check_fits_budget(found, budget, target.where)
    return replace(
        plan,
        blocks=found[0].blocks,
        ways=found,
        budget=budget,
        ways_within=ways_within,
        between=between,
        plan_blocks=bound(plan_blocks, resume=request.resume, verify=request.verify),
    )


def _between(
    plan: WritePlan, request: WriteRequest
) -> tuple[StagingArray, Array] | tuple[None, None]:
    """Return the array between that the blocks may be written into, if there can be one."""
    try:
        found = plan_staging(plan.values, plan.target, request.temp)
    except (StoreError, DataTypeError, MetadataError):
        if request.temp is not None:
            raise
        return None, None
    if found[0].base is None and request.resume:
        return None, None  # what is in memory is gone with the process
    return found


def _region_in(target: Array, given: Any) -> Region:
    """Return the region of an array to write into."""
    if isinstance(given, str):
        raise SelectionError(
            f"region={given!r}: expected slices, as (slice(0, 10), ...) or by names of dimensions "
            "{'time': slice(0, 10)}. Coordinates find the region of a dataset: "
            "zarr_dask.write_dataset(ds, url, region='auto')."
        )
    if isinstance(given, Mapping):
        given = parse_region_argument(
            given, target.shape, target.dimension_names or (), target.where
        )
    return checked_region(given, target.shape)


def _swap(
    target: Array, request: WriteRequest, prefetched: PrefetchedLocation
) -> tuple[Array, Swap | None]:
    """Return the new version of an array, and its swap at once; None if there is no array yet."""
    formats, is_far = [target.node_format], is_remote(target.store)
    try:
        present = open_array(prefetched.store if is_far else target.store, target.path)
    except NodeNotFoundError:
        if not is_halfway(target.store):
            return target, None
    else:
        formats.append(present.node_format)
        if is_far:
            return _key_swap(target, present, request)
    return target, plan_swap(target.store, target.path, *formats)


def _key_swap(target: Array, present: Array, request: WriteRequest) -> tuple[Array, KeySwap]:
    """Return the new version of an array in an object store, and its swap."""
    if has_shown_swap(present, request.journals):
        return shown_key_swap(target, present)
    return plan_key_swap(target, present, named=_names_keys(request))


def _in_group(target: Array, request: WriteRequest, swap: KeySwap) -> tuple[Array, KeySwap]:
    """Return the new version of an array of a group in an object store, and the group's swap."""
    old = swap.before.get(target.path)
    if old is not None and target.node_format == swap.node_format:
        is_done = has_shown_swap(replace(target, meta=old), request.journals)
        swap = replace(swap, is_done=is_done)
    return swap.new_version(target, named=_names_keys(request)), swap


def _names_keys(request: WriteRequest) -> bool:
    """Return True if the user has named the keys of stored objects."""
    return any(map(request.keywords.get, ("chunk_key_encoding", "dimension_separator")))


@overload
def to_zarr(
    arr: OfXarray,
    url: Any,
    component: str | None = None,
    *,
    mode: Any = None,
    group: str | None = None,
    encoding: Mapping[str, Any] | None = None,
    **options: Unpack[DatasetWriteOptions],
) -> Any: ...
@overload
def to_zarr(
    arr: Sequence[da.Array | Array],
    url: Sequence[Location | Array | Group] | Location | Group,
    component: Sequence[str | None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    region: Any = None,
    compute: Literal[True] = True,
    return_stored: Literal[False] = False,
    mode: WriteMode = "a",
    **options: Unpack[RunKeywords],
) -> tuple[WriteReport, ...]: ...
@overload
def to_zarr(
    arr: Values,
    url: Location | Array | Group,
    component: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    region: Any = None,
    compute: Literal[True] = True,
    return_stored: Literal[False] = False,
    mode: WriteMode = "a",
    **options: Unpack[RunKeywords],
) -> WriteReport: ...
@overload
def to_zarr(
    arr: Any,
    url: Any,
    component: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    region: Any = None,
    compute: bool = True,
    return_stored: bool = False,
    mode: WriteMode = "a",
    **options: Unpack[RunKeywords],
) -> Any: ...
@in_job()
@takes_habits((*KEYWORDS, "name"), is_of_xarray, **_HABITS)
@takes_options_of(plan_write)
@explained_by(plan_write, WritePlan.run)
def to_zarr(
    arr: Any,
    url: Any,
    component: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    region: Any = None,
    compute: bool = True,
    return_stored: bool = False,
    mode: WriteMode = "a",
    *,
    progress: WriteProgress | None = None,
    window: int | None = None,
    **options: Any,
) -> Any:
    """Write a dask array, or several, so that no value can be lost: `plan_write`, then run.

    Datasets, arrays and trees of xarray are written as `zarr_dask.write_dataset` does, groups as
    `zarr_dask.copy` does.

    Parameters
    ----------
    arr, url, component, storage_options, region, mode
        As for `plan_write`.
    compute
        True to write now. False to make room at the target and return a collection whose
        ``compute()`` writes.
    return_stored
        True to return the stored array as a dask array, after writing it.
    progress, window
        As for `WritePlan.run`.
    **options
        As for `plan_write`.

    Returns
    -------
    WriteReport or WriteCollection or dask.array.Array
        As `compute` and `return_stored` say; a `JointReport` for a group. For several arrays a
        tuple of reports, one collection whose ``compute()`` returns that tuple, or a tuple of dask
        arrays.

    Raises
    ------
    ZarrDaskError
        As `plan_write`; nothing is written then.

    Examples
    --------
    >>> import dask.array as da
    >>> import zarr_dask as zd
    >>> store = {}
    >>> zd.to_zarr(da.ones((400, 400), chunks=50), store, shards=(200, 200)).objects
    4
    >>> float(zd.from_zarr(store).sum().compute())
    160000.0
    >>> zd.to_zarr(da.ones((100, 400), chunks=50), store, append=0).objects
    2
    >>> zd.open_array(store).shape
    (500, 400)
    """
    if is_of_xarray(arr):
        given = {**options, "region": region, "progress": progress, "window": window}
        to = (url, component, storage_options, mode)
        return _of_xarray(arr.zd.to_zarr, *to, compute=compute, **given)
    check_bools(compute=compute, return_stored=return_stored)
    with counting_requests() as planning:
        plan = plan_write(arr, url, component, storage_options, region, mode, **options).at_once()
    if not compute and not return_stored:
        return plan.collection()
    report = plan.run(progress=progress, window=window)
    if return_stored:
        return plan.stored()
    if isinstance(report, WriteReport):
        return report.with_waits(planning)
    return (report[0].with_waits(planning), *report[1:]) if report else report
