"""Writing datasets: all variables by one graph and one plan, visible together.

`plan_dataset` finds out what a call means (`dataset_planner`): new arrays, arrays that grow
(`append`), or regions of arrays (`region`). For each variable it makes the request of a single
write, and a `GroupCommit` for their common end. What stands against any of them is found before
anything is written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from hashlib import sha256
from os import PathLike
from typing import Any, Literal

import xarray as xr

from zarr_dask._util.arguments import check_bools
from zarr_dask._util.keywords import explained_by, takes_habits
from zarr_dask._util.warnings import warn
from zarr_dask.dtypes.base import Casting
from zarr_dask.errors import ResumeError, ZarrDaskWarning
from zarr_dask.formats.base import Format, GroupMeta, normalise_path, where
from zarr_dask.formats.detect import formats_at
from zarr_dask.hierarchy.group import Group
from zarr_dask.hierarchy.open_node import open_group
from zarr_dask.jobs.engine.resume import Resume, ResumeOptions
from zarr_dask.jobs.engine.zip_targets import Archives
from zarr_dask.jobs.write.commit import finish_commit, has_unfinished_commit
from zarr_dask.jobs.write.dataset_keywords import DatasetMode, Missing, Others, Overlap
from zarr_dask.jobs.write.plan import Partial
from zarr_dask.jobs.write.submit import WriteProgress
from zarr_dask.jobs.write.zarr_python_kwargs import target_of
from zarr_dask.journal import OnConflict, claimed
from zarr_dask.journal.group_changes import changing_below
from zarr_dask.stores.base import Store, is_remote, join
from zarr_dask.stores.open import Location
from zarr_dask.stores.patience import in_job
from zarr_dask.xarray.call import Call
from zarr_dask.xarray.dataset_planner import Planner
from zarr_dask.xarray.encode import values_of
from zarr_dask.xarray.plan import DatasetPlan, DatasetReport

__all__ = ["as_dataset", "create_dataset", "plan_dataset", "write_dataset"]


_HABITS = {"store": "url", "path": "group", "zarr_format": "format"}


@in_job()
@takes_habits(**_HABITS)
def plan_dataset(
    dataset: xr.Dataset | xr.DataArray | xr.DataTree,
    url: Location | Group,
    group: str | None = None,
    *,
    mode: DatasetMode | None = None,
    append: str | None = None,
    append_dim: str | None = None,
    region: Any = None,
    encoding: Mapping[str, Any] | None = None,
    chunks: Any = None,
    shards: Any = None,
    codecs: Any = None,
    format: str | None = None,
    others: Others | None = None,
    overlap: Overlap = "refuse",
    missing: Missing = "refuse",
    partial: Partial | None = None,
    consolidated: bool | None = None,
    casting: Casting = "safe",
    on_conflict: OnConflict = "error",
    resume: Resume = False,
    journal: Location | None = None,
    manifest: Literal[True] | None = None,
    sha256: bool = False,
    confirm: bool = False,
    verify: bool = False,
    max_mem: str | int | None = None,
    temp: Location | None = None,
    write_inherited_coords: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> DatasetPlan:
    """Plan how to write a dataset; nothing is written.

    Parameters
    ----------
    dataset
        The dataset; a DataArray is written as a dataset of one variable, a DataTree as its groups.
    url
        Target: a path, a URL, a store, a mapping, or an open group.
    group
        Path of the group below it.
    mode
        ``"w"`` replaces the group with all below it, ``"w-"`` makes it only if nothing is there.
        ``"a"`` adds variables and writes over those that are there, ``"r+"`` only the latter;
        ``"a-"``, with `append`, leaves others alone. ``"swap"`` replaces a group in one step
        when the new one is whole, which may be computed from the old one; in object stores one of
        format v3 with consolidated metadata. The default is ``"a"`` for an append, ``"r+"`` for a
        region, else ``"w-"``.
    append, append_dim
        A dimension along which all variables that have it grow; the second is xarray's word.
    region
        Slices by dimension, ``"auto"`` for a dimension to find them by its labels, or ``"auto"``
        for all of them.
    encoding
        Encodings by variable, in place of those that the variables have; for a tree by path.
    chunks, shards
        Grids of new arrays, by dimension, by variable, or by both: ``{"time": 24}``,
        ``{"t": (24, 90)}``, ``{"t": {"time": 24}}``. -1 is a whole dimension. By default those of
        the encoding, else blocks that divide those of dask.
    codecs
        Codecs of new arrays, in place of those of the encoding; a mapping has them by variable.
    format
        ``"v3"`` or ``"v2"``; by default that of the groups around, else v3.
    others
        What an append does with stored variables without its dimension: they must be equal
        (``"match"``, the default), are left alone (``"keep"``, the default with ``mode="a-"``), or
        written again (``"write"``).
    overlap
        What an append does where labels are stored already: nothing (``"refuse"``), write them
        again (``"replace"``), or append without looking at labels (``"allow"``).
    missing
        What an append does where the dataset lacks a stored variable: an error (``"refuse"``), or
        missing values (``"fill"``).
    partial
        As for `zarr_dask.plan_write`: what to do where a region cuts stored objects. By default
        they are shared with other jobs (``"compare"``) where the store can compare, and refused
        elsewhere.
    consolidated
        True to write consolidated metadata of the root, False not to. None does so for a new root;
        those that there are, are kept up to date in any case.
    casting, resume, journal, sha256, confirm, verify, max_mem, temp
        As for `zarr_dask.plan_write`.
    manifest
        True to keep the checksums of all stored objects beside the hierarchy, where
        `ReadOptions.verify` and ``zarr_dask.verify(url, manifest=True)`` find them.
    on_conflict
        What an append does while another one to the same group is under way.
    write_inherited_coords
        True to write the coordinates that a node of a tree has from those above it again.
    storage_options
        Options of the store.

    Raises
    ------
    AppendConflictError
        If another append is under way when this one begins.
    DatasetMismatchError
        If the dataset does not fit what is stored.
    NodeExistsError
        If something exists where a group is to be made.
    ResumeError
        If an append died while it made its values visible: `write_dataset` ends it first.
    SourceIsTargetError
        If a variable reads what would be overwritten.
    ZarrDaskError
        As `zarr_dask.plan_write`.

    Examples
    --------
    >>> import dask.array as da, xarray as xr
    >>> import zarr_dask as zd
    >>> ds = xr.Dataset({"t": (("time", "x"), da.zeros((4, 6), chunks=(2, 6)))})
    >>> zd.plan_dataset(ds, {}).objects
    2
    """
    call = _call(
        mode=mode,
        append=_one_of(append, append_dim),
        region=region,
        encoding=_encodings(encoding),
        chunks=chunks,
        shards=shards,
        codecs=codecs,
        format=format,
        others=others,
        overlap=overlap,
        missing=missing,
        partial=partial,
        consolidated=consolidated,
        casting=casting,
        on_conflict=on_conflict,
        resume=ResumeOptions(resume, journal),
        manifest=manifest,
        sha256=sha256,
        confirm=confirm,
        verify=verify,
        max_mem=max_mem,
        temp=temp,
    )
    _check_dataset(dataset)
    store, path = _place(url, group, storage_options, call)
    nodes = _nodes(dataset, inherits=write_inherited_coords)
    for unfinished in _unfinished(store, path, call, nodes):
        raise ResumeError(
            f"a job that changed {where(store, unfinished)} died while it made that visible. "
            "zarr_dask.write_dataset with the same arguments does what is left of it first."
        )
    return Planner(store, path, _told(call, nodes)).plan(nodes)


@in_job()
@takes_habits(**_HABITS)
@explained_by(plan_dataset)
def write_dataset(
    dataset: xr.Dataset | xr.DataArray | xr.DataTree,
    url: Location | Group,
    group: str | None = None,
    *,
    mode: DatasetMode | None = None,
    append: str | None = None,
    append_dim: str | None = None,
    region: Any = None,
    encoding: Mapping[str, Any] | None = None,
    chunks: Any = None,
    shards: Any = None,
    codecs: Any = None,
    format: str | None = None,
    others: Others | None = None,
    overlap: Overlap = "refuse",
    missing: Missing = "refuse",
    partial: Partial | None = None,
    consolidated: bool | None = None,
    casting: Casting = "safe",
    on_conflict: OnConflict = "error",
    resume: Resume = False,
    journal: Location | None = None,
    manifest: Literal[True] | None = None,
    sha256: bool = False,
    confirm: bool = False,
    verify: bool = False,
    progress: WriteProgress | None = None,
    window: int | None = None,
    client: Any = None,
    compute: bool = True,
    max_mem: str | int | None = None,
    temp: Location | None = None,
    write_inherited_coords: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> Any:
    """Write a dataset so that no value can be lost and nothing half-written is visible.

    A new dataset is visible when all of it is written. An append shows its values when all of them
    are stored: first the new lengths of the arrays, the index of the dimension last, then
    consolidated metadata.

    Parameters
    ----------
    dataset, url, group, mode, append, append_dim, region, encoding, chunks, shards, codecs, format
        As for `plan_dataset`.
    others, overlap, missing, partial, consolidated, casting, on_conflict, resume, journal
        As for `plan_dataset`.
    manifest, sha256, confirm, verify, max_mem, temp
        As for `plan_dataset`.
    progress, window, client
        As for `WritePlan.run`.
    compute
        True to write now. False to make new arrays and write variables in memory, as xarray
        does, and return a collection whose ``compute()`` writes the dask arrays. What is appended
        becomes visible only then.
    write_inherited_coords
        As for `plan_dataset`.
    storage_options
        Options of the store.

    Returns
    -------
    DatasetReport or WriteCollection
        As `compute` says.

    Raises
    ------
    ZarrDaskError
        As `plan_dataset`; nothing is written then.

    Examples
    --------
    >>> import dask.array as da, numpy as np, xarray as xr
    >>> import zarr_dask as zd
    >>> store = {}
    >>> def days(first, last):
    ...     t = ("time", da.arange(first, last, chunks=2, dtype="f8"))
    ...     return xr.Dataset({"t": t}, coords={"time": np.arange(first, last)})
    >>> _ = zd.write_dataset(days(0, 4), store)
    >>> _ = zd.write_dataset(days(4, 9), store, append="time")
    >>> float(zd.open_dataset(store)["t"].sum())
    36.0
    """
    check_bools(compute=compute)
    call = _call(
        mode=mode,
        append=_one_of(append, append_dim),
        region=region,
        encoding=_encodings(encoding),
        chunks=chunks,
        shards=shards,
        codecs=codecs,
        format=format,
        others=others,
        overlap=overlap,
        missing=missing,
        partial=partial,
        consolidated=consolidated,
        casting=casting,
        on_conflict=on_conflict,
        resume=ResumeOptions(resume, journal),
        manifest=manifest,
        sha256=sha256,
        confirm=confirm,
        verify=verify,
        max_mem=max_mem,
        temp=temp,
    )
    _check_dataset(dataset)
    store, path = _place(url, group, storage_options, call)
    nodes = _nodes(dataset, inherits=write_inherited_coords)
    call = _told(call, nodes)
    _finish(store, path, call, nodes)
    if not compute:
        return _later(Planner(store, path, call), nodes)
    if call.append is None or on_conflict == "error":
        return _run(Planner(store, path, call), nodes, client, progress, window)
    with claimed(store, path, "wait", call.job):
        planner = Planner(store, path, call, is_claimed=True)
        return _run(planner, nodes, client, progress, window)


@in_job()
@takes_habits(**_HABITS)
@explained_by(plan_dataset)
def create_dataset(
    template: xr.Dataset,
    url: Location | Group,
    group: str | None = None,
    *,
    mode: DatasetMode | None = None,
    encoding: Mapping[str, Any] | None = None,
    chunks: Any = None,
    shards: Any = None,
    codecs: Any = None,
    format: str | None = None,
    consolidated: bool | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Group:
    """Make the arrays of a dataset without the values of its dask arrays.

    Variables in memory, such as coordinates, are written. Jobs then write the others, each its own
    region (`write_dataset` with ``region=``). No graph is made: only shapes and data types of dask
    arrays count.

    Parameters
    ----------
    template
        The dataset.
    url, group, mode, encoding, chunks, shards, codecs, format, consolidated, storage_options
        As for `plan_dataset`.

    Returns
    -------
    Group
        The group.

    Raises
    ------
    ZarrDaskError
        As `plan_dataset`.

    Examples
    --------
    >>> import dask.array as da, numpy as np, xarray as xr
    >>> import zarr_dask as zd
    >>> t = (("time",), da.zeros(6, chunks=2))
    >>> template = xr.Dataset({"t": t}, coords={"time": np.arange(6)})
    >>> store = {}
    >>> group = zd.create_dataset(template, store)
    >>> _ = zd.write_dataset((template + 1).isel(time=slice(2, 4)), store, region="auto")
    >>> zd.open_dataset(store)["t"].values.tolist()
    [nan, nan, 1.0, 1.0, nan, nan]
    """
    call = _call(
        mode=mode,
        append=None,
        region=None,
        encoding=_encodings(encoding),
        chunks=chunks,
        shards=shards,
        codecs=codecs,
        format=format,
        others=None,
        overlap="refuse",
        missing="refuse",
        partial=None,
        consolidated=consolidated,
        casting="safe",
        on_conflict="error",
        resume=ResumeOptions(),
        bare=True,
    )
    _check_dataset(template)
    store, path = _place(url, group, storage_options, call)
    nodes = _nodes(template)
    _finish(store, path, call, nodes)
    Planner(store, path, call).plan(nodes).run()
    return open_group(store, path, "r+")


def _one_of(append: str | None, append_dim: str | None) -> str | None:
    if append is not None and append_dim is not None and append != append_dim:
        raise TypeError("append= and append_dim= mean the same; choose one.")
    return append if append is not None else append_dim


def _call(*, mode: DatasetMode | None, append: str | None, region: Any, **options: Any) -> Call:
    if mode is None:
        mode = "a" if append is not None else "r+" if region is not None else "w-"
    call = Call(mode=mode, append=append, region=region, **options)
    call.check()
    return call


def _told(call: Call, nodes: Mapping[str, xr.Dataset]) -> Call:
    """Return an append that can be resumed, with what tells it from others.

    In object stores the claim of a process that died stays. Only the same call may take it over.
    """
    resume = call.resume.resume
    if call.append is None or not resume:
        return call
    told: Any = resume
    if not isinstance(resume, str):
        from zarr_dask.graph.tokens import layer_tokens

        try:
            told = [
                (str(name), one.dims, layer_tokens(values_of(one)))
                for node in nodes.values()
                for name, one in node.variables.items()
            ]
        except ResumeError:
            return call  # planning says so of dask arrays; others may have no token
    text = json.dumps([call.append, told])
    return replace(call, job=sha256(text.encode()).hexdigest()[:32])


def _place(
    url: Any, group: str | None, storage_options: Mapping[str, Any] | None, call: Call
) -> tuple[Store, str]:
    url, group, _ = target_of(url, group, {})
    return Archives(replaces=call.mode == "w" and not group).place(
        url, normalise_path(group), storage_options
    )


def _run(
    planner: Planner,
    nodes: Mapping[str, xr.Dataset],
    client: Any,
    progress: WriteProgress | None,
    window: int | None,
) -> DatasetReport:
    plan = planner.plan(nodes)
    if plan.is_repeated and not planner.call.resume.resume:
        warn(
            f"{plan.where} has all labels that were to be appended: nothing was written. Pass "
            "resume=True if the same call may have ended before, or overlap='replace' to write "
            "the values again.",
            ZarrDaskWarning,
        )
    if planner.free is not None:
        plan = plan.at_once()
    return plan.run(client, progress, window)


def _later(planner: Planner, nodes: Mapping[str, xr.Dataset]) -> Any:
    """Return tasks that write; new arrays are made now, as xarray does."""
    store, path, call = planner.store, planner.path, planner.call
    if call.append is not None or call.region is not None or planner.swap is not None:
        return planner.plan(nodes).collection()
    Planner(store, path, replace(call, bare=True)).plan(nodes).run()
    later = {
        below: node.drop_vars([k for k, v in node.variables.items() if v.chunks is None])
        for below, node in nodes.items()
    }
    filled = replace(call, mode="r+", encoding={}, chunks=None, shards=None, codecs=None)
    return Planner(store, path, filled).plan(later).collection()


def _format_at(store: Store, path: str) -> Format | None:
    found = [one for one, meta in formats_at(store, path) if isinstance(meta, GroupMeta)]
    return found[0] if found else None


def _unfinished(store: Store, path: str, call: Call, nodes: Iterable[str]) -> list[str]:
    """Return groups to append to, or to swap, where a job died while it became visible.

    Its record would count for the group that takes the place.
    """
    if call.mode == "swap" and is_remote(store):
        return changing_below(store, path)
    if call.append is None and call.mode != "swap":
        return []
    paths = (join(path, below) for below in nodes)
    return [one for one in paths if has_unfinished_commit(store, one)]


def _finish(store: Store, path: str, call: Call, nodes: Iterable[str]) -> None:
    """Do what such jobs have left."""
    for unfinished in _unfinished(store, path, call, nodes):
        node_format = _format_at(store, unfinished)
        if node_format is not None:
            given = (store, unfinished, node_format, call.on_conflict, call.job)
            finish_commit(*given, takes_over=call.mode == "swap")


def _nodes(dataset: Any, *, inherits: bool = False) -> dict[str, xr.Dataset]:
    """Return datasets by path; those of a tree with the coordinates above them if it says so."""
    if isinstance(dataset, xr.DataTree):
        return {
            normalise_path("" if key == "." else key): node.to_dataset(
                inherit=inherits or node is dataset
            )
            for key, node in dataset.subtree_with_keys
        }
    if isinstance(dataset, xr.DataArray):
        return {"": as_dataset(dataset)}
    _check_dataset(dataset)
    return {"": dataset}


def _check_dataset(dataset: Any) -> None:
    """Raise if something else than what xarray makes is to be written, and say what writes it."""
    if isinstance(dataset, xr.Dataset | xr.DataArray | xr.DataTree):
        return
    hint = "zarr_dask.to_zarr(array, url) writes an array."
    if isinstance(dataset, str | PathLike):
        hint = (
            "the dataset comes first, as in write_dataset(ds, url); zarr_dask.copy(source, target) "
            "copies what is stored."
        )
    elif isinstance(dataset, Mapping):
        hint = "xarray.Dataset(variables) makes one of variables by name."
    raise TypeError(
        f"expected an xarray Dataset, DataArray or DataTree, got {type(dataset).__name__}; {hint}"
    )


def _encodings(encoding: Any) -> dict[str, Any]:
    """Return encodings by variable.

    Raises
    ------
    TypeError
        If they are no mapping.
    ValueError
        If that of a variable is none, as in xarray.
    """
    one = "encoding= has a mapping for each variable, as {'t': {'chunks': (24, 90)}}"
    if not isinstance(encoding, Mapping | None):
        raise TypeError(f"{one}, got {encoding!r}.")
    for name, given in (encoding or {}).items():
        if not isinstance(given, Mapping):
            raise ValueError(f"{one}, to which all must be castable, got {given!r} for {name!r}.")
    return dict(encoding or {})


def as_dataset(array: xr.DataArray) -> xr.Dataset:
    """Return a dataset from which xarray makes the same array again."""
    from xarray.backends.api import DATAARRAY_NAME, DATAARRAY_VARIABLE

    if array.name is None:
        return array.to_dataset(name=DATAARRAY_VARIABLE)
    if array.name in array.coords or array.name in array.dims:
        dataset = array.to_dataset(name=DATAARRAY_VARIABLE)
        dataset.attrs[DATAARRAY_NAME] = array.name
        return dataset
    return array.to_dataset()
