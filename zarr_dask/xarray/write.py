"""Writing datasets: all variables by one graph and one plan, visible together.

`plan_dataset` finds out what a call means: new arrays, arrays that grow, or regions of arrays. For
each variable it makes the request of a single write, and a `GroupCommit` for their common end. What
stands against any of them is found before anything is written.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from functools import partial as bound
from typing import Any, Literal

import dask.array as da
import numpy as np
import pandas as pd
import xarray as xr

from zarr_dask._util.arguments import check_choice, check_flags
from zarr_dask._util.warnings import warn
from zarr_dask.array.array import Array
from zarr_dask.array.create import ArraySpec
from zarr_dask.errors import (
    ConditionalWriteError,
    DatasetMismatchError,
    LabelNotFoundError,
    NodeNotFoundError,
    ResumeError,
    ZarrDaskWarning,
)
from zarr_dask.formats.base import Format, GroupMeta, ReadOptions, normalise_path, where
from zarr_dask.formats.detect import format_for_new, format_named, formats_at
from zarr_dask.hierarchy.edit import check_place
from zarr_dask.hierarchy.group import Group, open_group
from zarr_dask.hierarchy.parents import format_around
from zarr_dask.jobs.engine.resume import Resume, ResumeOptions
from zarr_dask.jobs.engine.zip_targets import Archives
from zarr_dask.jobs.write.checks import check_not_read
from zarr_dask.jobs.write.commit import (
    GroupCommit,
    GroupShown,
    finish_commit,
    has_unfinished_commit,
)
from zarr_dask.jobs.write.plan import Partial
from zarr_dask.jobs.write.request import WriteRequest
from zarr_dask.jobs.write.submit import WriteProgress
from zarr_dask.jobs.write.target import Casting
from zarr_dask.jobs.write.target_array import new_array
from zarr_dask.jobs.write.write import plan_several
from zarr_dask.jobs.write.zarr_python_kwargs import target_of
from zarr_dask.journal import OnConflict, default_place, open_journals
from zarr_dask.stores.base import Store, join
from zarr_dask.stores.compare_and_swap import conditional
from zarr_dask.stores.open import Location
from zarr_dask.xarray.encode import Encoded, array_spec, encode_dataset, values_of
from zarr_dask.xarray.plan import DatasetPlan
from zarr_dask.xarray.stored import (
    Labels,
    StoredGroup,
    check_encoded,
    check_equal,
    fill_of,
    in_order_of,
    missing_names,
)

__all__ = ["DatasetMode", "create_dataset", "plan_dataset", "write_dataset"]

DatasetMode = Literal["w", "w-", "a", "a-", "r+"]
"""What is done with what is there, in the words of `xarray.Dataset.to_zarr`."""
Others = Literal["match", "keep", "write"]
"""What an append does with variables without its dimension that are stored."""
Overlap = Literal["refuse", "replace", "allow"]
"""What an append does with labels that are stored."""
Missing = Literal["refuse", "fill"]
"""What an append does about stored variables that the dataset lacks."""

_THIS_PACKAGE = {"v2", "v3"}


@dataclass(frozen=True, kw_only=True)
class _Call:
    """Arguments of a call; see `plan_dataset`."""

    mode: DatasetMode
    append: str | None
    region: Any
    encoding: Mapping[str, Any]
    chunks: Any
    shards: Any
    codecs: Any
    format: str | None
    others: Others | None
    overlap: Overlap
    missing: Missing
    partial: Partial | None
    consolidated: bool | None
    casting: Casting
    on_conflict: OnConflict
    resume: ResumeOptions
    bare: bool = False
    """True to make arrays of dask arrays without their values."""

    def check(self) -> None:
        check_choice("mode", self.mode, DatasetMode)
        if self.others is not None:
            check_choice("others", self.others, Others)
        check_choice("overlap", self.overlap, Overlap)
        check_choice("missing", self.missing, Missing)
        self.resume.check()
        if self.append is not None and self.region is not None:
            raise ValueError("append= and region= both say where to write; choose one.")
        if self.append is not None and self.mode not in {"a", "a-"}:
            raise ValueError(
                f"cannot set append_dim unless mode='a' or mode='a-', the first of which is the "
                f"default then; mode={self.mode!r} was given."
            )
        if self.region is not None and self.mode not in {"a", "a-", "r+"}:
            raise ValueError(
                "cannot set region unless mode='a', mode='a-', mode='r+' or mode=None: it needs a "
                f"dataset that exists; mode={self.mode!r} was given."
            )


@dataclass(frozen=True)
class _Write:
    """One array of a call."""

    path: str
    values: da.Array
    request: WriteRequest


@dataclass
class _Work:
    """What a call comes down to."""

    writes: list[_Write] = field(default_factory=list)
    bare: list[Array] = field(default_factory=list)
    groups: list[GroupShown] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    is_repeated: bool = False


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
        ``"a-"``, with `append`, leaves others alone. The default is ``"a"`` for an append,
        ``"r+"`` for a region, else ``"w-"``.
    append, append_dim
        A dimension along which all variables that have it grow; the second is xarray's word.
    region
        Slices by dimension, ``"auto"`` for a dimension to find them by its labels, or ``"auto"``
        for all of them.
    encoding
        Encodings by variable, in place of those that the variables have; for a tree by path.
    chunks, shards
        Grids of new arrays, by dimension or by variable and dimension; -1 is a whole dimension. By
        default those of the encoding, else blocks that divide those of dask.
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
    casting, resume, journal
        As for `zarr_dask.plan_write`.
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
        encoding=dict(encoding or {}),
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
    )
    store, path = _place(url, group, storage_options, call)
    if call.append is not None and has_unfinished_commit(store, path):
        raise _unfinished(store, path)
    return _Planner(store, path, call).plan(_nodes(dataset, inherits=write_inherited_coords))


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
    progress: WriteProgress | None = None,
    window: int | None = None,
    client: Any = None,
    compute: bool = True,
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
    DatasetReport or StoredWrite
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
    >>> zd.open_dataset(store)["t"].sum().item()
    36.0
    >>> zd.write_dataset(days(4, 9), store, append="time").is_repeated
    True
    """
    check_flags(compute=compute)
    call = _call(
        mode=mode,
        append=_one_of(append, append_dim),
        region=region,
        encoding=dict(encoding or {}),
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
    )
    store, path = _place(url, group, storage_options, call)
    node_format = None if call.append is None else _format_at(store, path)
    if node_format is not None:
        finish_commit(store, path, node_format, on_conflict)
    inherits = write_inherited_coords
    planner = _Planner(store, path, call)
    return _run(planner, dataset, client, progress, window, compute=compute, inherits=inherits)


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
        encoding=dict(encoding or {}),
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
    store, path = _place(url, group, storage_options, call)
    _Planner(store, path, call).plan(_nodes(template)).run()
    return open_group(store, path, "r+")


def _one_of(append: str | None, append_dim: str | None) -> str | None:
    if append is not None and append_dim is not None and append != append_dim:
        raise TypeError("append= and append_dim= mean the same; choose one.")
    return append if append is not None else append_dim


def _call(*, mode: DatasetMode | None, append: str | None, region: Any, **options: Any) -> _Call:
    if mode is None:
        mode = "a" if append is not None else "r+" if region is not None else "w-"
    call = _Call(mode=mode, append=append, region=region, **options)
    call.check()
    return call


def _place(
    url: Any, group: str | None, storage_options: Mapping[str, Any] | None, call: _Call
) -> tuple[Store, str]:
    url, group, _ = target_of(url, group, {})
    return Archives(replaces=call.mode == "w" and not group).place(
        url, normalise_path(group), storage_options
    )


def _run(
    planner: _Planner,
    dataset: Any,
    client: Any,
    progress: WriteProgress | None,
    window: int | None,
    *,
    compute: bool,
    inherits: bool,
) -> Any:
    call, nodes = planner.call, _nodes(dataset, inherits=inherits)
    if not compute and call.append is None and call.region is None:
        return _made_first(planner, nodes)
    plan = planner.plan(nodes)
    if not compute:
        return plan.collection()
    if plan.is_repeated and not planner.call.resume.resume:
        warn(
            f"{plan.where} has all labels that were to be appended: nothing was written. Pass "
            "resume=True if the same call may have ended before, or overlap='replace' to write "
            "the values again.",
            ZarrDaskWarning,
        )
    return plan.run(client, progress, window)


def _made_first(planner: _Planner, nodes: Mapping[str, xr.Dataset]) -> Any:
    """Make all arrays now, as xarray does, and return the tasks that write those of dask."""
    store, path, call = planner.store, planner.path, planner.call
    _Planner(store, path, replace(call, bare=True)).plan(nodes).run()
    later = {
        below: node.drop_vars([k for k, v in node.variables.items() if v.chunks is None])
        for below, node in nodes.items()
    }
    filled = replace(call, mode="r+", encoding={}, chunks=None, shards=None, codecs=None)
    return _Planner(store, path, filled).plan(later).collection()


def _format_at(store: Store, path: str) -> Format | None:
    found = [one for one, meta in formats_at(store, path) if isinstance(meta, GroupMeta)]
    return found[0] if found else None


def _unfinished(store: Store, path: str) -> Exception:
    return ResumeError(
        f"an append to {where(store, path)} died while it made its values visible. "
        "zarr_dask.write_dataset with append= does what is left of it first."
    )


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
        return {"": _as_dataset(dataset)}
    if not isinstance(dataset, xr.Dataset):
        raise TypeError(
            f"expected an xarray Dataset, DataArray or DataTree, got {type(dataset).__name__}."
        )
    return {"": dataset}


def _as_dataset(array: xr.DataArray) -> xr.Dataset:
    """Return a dataset from which xarray makes the same array again."""
    from xarray.backends.api import DATAARRAY_NAME, DATAARRAY_VARIABLE

    if array.name is None:
        return array.to_dataset(name=DATAARRAY_VARIABLE)
    if array.name in array.coords or array.name in array.dims:
        dataset = array.to_dataset(name=DATAARRAY_VARIABLE)
        dataset.attrs[DATAARRAY_NAME] = array.name
        return dataset
    return array.to_dataset()


class _Planner:
    """Plans one call.

    Parameters
    ----------
    store, path
        The group.
    call
        Arguments of the user.
    """

    def __init__(self, store: Store, path: str, call: _Call) -> None:
        self.store = store
        self.path = path
        self.call = call

    @cached_property
    def around(self) -> str:
        """Name of the format of a new group."""
        return self.call.format or format_around(self.store, self.path)

    @cached_property
    def partial(self) -> Partial:
        """What is done with stored objects that a region cuts."""
        if self.call.partial is not None:
            return self.call.partial
        try:
            conditional(self.store).check_conditional(join(self.path, "zarr.json"))
        except ConditionalWriteError:
            return "refuse"
        return "compare"

    def plan(self, nodes: Mapping[str, xr.Dataset]) -> DatasetPlan:
        """Plan to write datasets, by path below the group."""
        call, work = self.call, _Work()
        if len(nodes) > 1 and (call.append is not None or call.region is not None):
            raise ValueError("append= and region= are about one group; write the nodes one by one.")
        if len(nodes) > 1 and set(call.encoding) - {f"/{path}" for path in nodes}:
            unknown = sorted(set(call.encoding) - {f"/{path}" for path in nodes})
            raise ValueError(f"unexpected encoding group names: {unknown}")
        present = self._present(self.path)
        if present is not None and call.mode == "w":
            node_format = format_for_new(self.store, self.around, self.path)
        elif present is not None:
            node_format = present.group.node_format
        else:
            node_format = format_for_new(self.store, self.around, self.path)
        self._check_place(nodes, node_format, exists=present is not None)
        for below, dataset in sorted(nodes.items(), key=lambda item: item[0], reverse=True):
            encoding = call.encoding.get(f"/{below}", {}) if len(nodes) > 1 else call.encoding
            self._plan_node(work, join(self.path, below), dataset, encoding, node_format)
        return self._planned(work, node_format)

    def _present(self, path: str) -> StoredGroup | None:
        """Return the group at a path, unless it is to be replaced."""
        try:
            found = open_group(self.store, path, "r+", read=ReadOptions(consolidated=False))
        except NodeNotFoundError:
            return None
        return None if found.meta.implicit else StoredGroup(found)

    def _check_place(
        self, nodes: Mapping[str, xr.Dataset], node_format: Format, *, exists: bool
    ) -> None:
        call = self.call
        if call.format is not None and exists and call.mode not in {"w", "w-"}:
            wanted = format_named(call.format)
            if wanted.name != node_format.name:
                raise DatasetMismatchError(
                    f"{where(self.store, self.path)} is of format {node_format.name}, not "
                    f"{wanted.name}: leave format= out."
                )
        if not exists and (call.append is not None or call.region is not None or call.mode == "r+"):
            keys = [key for key in node_format.node_keys(self.path)]
            raise NodeNotFoundError(where(self.store, self.path), keys, "Nothing was written.")
        if call.mode in {"w", "w-"} or not exists:
            check_place(
                self.store,
                self.path,
                node_format,
                overwrite=call.mode == "w" or self._is_resumed(nodes),
                is_group=True,
            )

    def _is_resumed(self, nodes: Mapping[str, xr.Dataset]) -> bool:
        """True if a job of an earlier call is there, which may have made the group already."""
        if not self.call.resume.resume:
            return False
        for below, dataset in nodes.items():
            for name in map(str, dataset.variables):
                path = join(join(self.path, below), name)
                place = default_place(self.store, path)
                if place is not None and any(job.creates for _, job in open_journals(place)):
                    return True
        return False

    # --- one group --------------------------------------------------------------------------------

    def _plan_node(
        self,
        work: _Work,
        path: str,
        dataset: xr.Dataset,
        encoding: Mapping[str, Any],
        node_format: Format,
    ) -> None:
        call = self.call
        present = None if call.mode in {"w", "w-"} else self._present(path)
        if call.region is not None and present is not None:
            self._plan_region(work, path, dataset, present)
            return
        if call.append is not None and present is not None:
            self._plan_append(work, path, dataset, encoding, present)
            return
        stored = {} if present is None else present.decoded
        encoded = encode_dataset(dataset, node_format, encoding, stored)
        self._plan_variables(work, path, encoded, encoding, node_format, present)
        if call.mode != "r+":
            made = present is None
            work.groups.append(GroupShown(path, encoded.attributes, creates=made))

    def _plan_variables(
        self,
        work: _Work,
        path: str,
        encoded: Encoded,
        encoding: Mapping[str, Any],
        node_format: Format,
        present: StoredGroup | None,
    ) -> None:
        """Plan variables that are new, or written over as a whole."""
        stored = {} if present is None else present.raw
        new = missing_names(encoded.variables, stored)
        if new and self.call.mode == "r+":
            raise DatasetMismatchError(
                f"dataset contains non-pre-existing variables {new!r}, which mode='r+' does not "
                "make; pass mode='a'."
            )
        for name, variable in encoded.variables.items():
            if name in stored:
                if self.call.bare and variable.chunks is not None:
                    continue
                given = in_order_of(name, variable, stored[name])
                if given.shape != stored[name].shape:
                    raise DatasetMismatchError(
                        f"variable {name!r} already exists with different dimension sizes: "
                        f"{dict(stored[name].sizes)} != {dict(given.sizes)}. Append to it "
                        "(append=), write a part of it (region=), or all of it anew (mode='w')."
                    )
                work.writes.append(self._write(path, name, given, mode="r+"))
            else:
                self._plan_new(work, path, name, variable, encoding, node_format)

    def _plan_new(
        self,
        work: _Work,
        path: str,
        name: str,
        variable: xr.Variable,
        encoding: Mapping[str, Any],
        node_format: Format,
    ) -> None:
        call = self.call
        spec, keywords = array_spec(
            name,
            variable,
            node_format,
            is_asked=name in encoding,
            chunks=_of_variable(call.chunks, name, variable),
            shards=_of_variable(call.shards, name, variable, whole=True),
            codecs=call.codecs.get(name) if isinstance(call.codecs, Mapping) else call.codecs,
        )
        if call.bare and variable.chunks is not None:
            at = join(path, name)
            array = new_array(variable.data, self.store, at, spec, keywords, node_format.name)
            work.bare.append(array)
            return
        mode = "w" if call.mode == "w" else "w-"
        work.writes.append(self._write(path, name, variable, mode=mode, spec=spec, keys=keywords))

    def _write(
        self,
        path: str,
        name: str,
        variable: xr.Variable,
        *,
        mode: Any,
        spec: ArraySpec | None = None,
        keys: Mapping[str, Any] | None = None,
        region: Any = None,
        append: int | None = None,
        overlap: int = 0,
    ) -> _Write:
        at = join(path, name)
        call = self.call
        wanted = spec or ArraySpec(shape=None, dtype=None, chunks=None)
        request = WriteRequest(
            url=self.store,
            component=at,
            storage_options=None,
            region=region,
            mode=mode,
            wanted=wanted,
            overwrite=False,
            append=append,
            casting=call.casting,
            partial=self.partial if region is not None else "refuse",
            on_conflict="error",
            resume=call.resume,
            keywords=keys or {},
            overlap=overlap,
        )
        return _Write(at, values_of(variable), request)

    # --- a region ---------------------------------------------------------------------------------

    def _plan_region(
        self, work: _Work, path: str, dataset: xr.Dataset, present: StoredGroup
    ) -> None:
        region, by_labels = _region(dataset, self.call.region, present)
        if by_labels:
            # labels are where they have been found; they are never written again
            names = [name for name in by_labels if name in dataset.variables]
            dataset = dataset.drop_vars(names)
        if self.call.mode == "r+" or self.call.region == "auto":
            unknown = missing_names(dataset.variables, present.raw)
            if unknown and self.call.mode == "r+":
                raise DatasetMismatchError(
                    f"dataset contains non-pre-existing variables {unknown!r}, which a region "
                    "does not make; drop them, or make them first (zarr_dask.create_dataset)."
                )
        apart = [str(k) for k, v in dataset.variables.items() if not set(v.dims) & set(region)]
        if apart and region:
            raise DatasetMismatchError(
                "when setting `region` explicitly in to_zarr(), all variables in the dataset to "
                f"write must have at least one dimension in common with the region's dimensions "
                f"{list(region)}, but that is not the case for some variables here: drop {apart!r} "
                "(drop_vars)."
            )
        encoded = encode_dataset(dataset, present.group.node_format, None, present.decoded)
        for name, variable in encoded.variables.items():
            if name not in present.raw:
                raise DatasetMismatchError(
                    f"variable {name!r} is not in {present.group.where}, and a region of it cannot "
                    "make it whole; make it first (zarr_dask.create_dataset, mode='a')."
                )
            stored = present.raw[name]
            given = in_order_of(name, variable, stored)
            check_encoded(name, given, stored, in_order_of(name, dataset.variables[name], stored))
            slices = tuple(region.get(dim, slice(None)) for dim in given.dims)
            expected = tuple(
                len(range(*one.indices(n))) for one, n in zip(slices, stored.shape, strict=True)
            )
            if expected != given.shape:
                raise DatasetMismatchError(
                    f"variable {name!r} already exists with different dimension sizes: the region "
                    f"has {dict(zip(stored.dims, expected, strict=True))}, the dataset "
                    f"{dict(given.sizes)}."
                )
            work.writes.append(self._write(path, name, given, mode="r+", region=slices))

    # --- an append --------------------------------------------------------------------------------

    def _plan_append(
        self,
        work: _Work,
        path: str,
        dataset: xr.Dataset,
        encoding: Mapping[str, Any],
        present: StoredGroup,
    ) -> None:
        call, dim = self.call, str(self.call.append)
        present.length(dim)
        at = present.group.where
        if dim not in dataset.dims:
            raise DatasetMismatchError(
                f"append_dim={dim!r} does not match any existing dataset dimensions "
                f"{sorted(map(str, dataset.dims))}."
            )
        grow = {k: v for k, v in present.raw.items() if dim in v.dims}
        given = {str(k) for k in dataset.variables}
        lacking = sorted(set(grow) - given)
        if lacking and (call.missing == "refuse" or dim in lacking):
            raise DatasetMismatchError(
                f"the dataset lacks {lacking}, which {at} has along {dim!r}; they would become "
                "shorter than all others. Add them, or pass missing='fill'"
                + (", which labels cannot be." if dim in lacking else ".")
            )
        surplus = [
            str(k) for k, v in dataset.variables.items() if dim in v.dims and k not in present.raw
        ]
        if surplus:
            raise DatasetMismatchError(
                f"{at} does not have {sorted(surplus)}, which would be shorter than {dim!r} is "
                "there; drop them, or write them for all labels first (mode='a')."
            )
        if encoding:
            _check_same_encoding(encoding, present)
        encoded = encode_dataset(dataset, present.group.node_format, None, present.decoded)
        variables = {}
        for name, variable in encoded.variables.items():
            if name in present.raw:
                stored = present.raw[name]
                variables[name] = in_order_of(name, variable, stored)
                original = in_order_of(name, dataset.variables[name], stored)
                check_encoded(name, variables[name], stored, original)
                if dim in variables[name].dims:
                    _check_sizes(name, variables[name], stored, dim)
            else:
                variables[name] = variable
        labels = Labels()
        if dim in variables and dim in present.raw and variables[dim].dims == (dim,):
            old, new = present.raw[dim].values, variables[dim].values
            labels = Labels.of(dim, old, new, call.overlap, at)
        self._plan_others(
            work, path, {k: v for k, v in variables.items() if dim not in v.dims}, present
        )
        if labels.is_repeated and call.overlap != "replace":
            work.is_repeated = True
            return
        self._plan_growth(work, path, variables, lacking, labels, present)
        work.groups.append(GroupShown(path, encoded.attributes, creates=False))

    def _plan_others(
        self,
        work: _Work,
        path: str,
        variables: Mapping[str, xr.Variable],
        present: StoredGroup,
    ) -> None:
        """Plan, or compare, the variables that do not grow."""
        others = self.call.others or ("keep" if self.call.mode == "a-" else "match")
        for name, variable in variables.items():
            if name not in present.raw:
                node_format = present.group.node_format
                self._plan_new(work, path, name, variable, self.call.encoding, node_format)
            elif others == "write":
                work.writes.append(self._write(path, name, variable, mode="r+"))
            else:
                if others == "match":
                    check_equal(name, variable, present.raw[name])
                work.kept.append(join(path, name))

    def _plan_growth(
        self,
        work: _Work,
        path: str,
        variables: Mapping[str, xr.Variable],
        lacking: Iterable[str],
        labels: Labels,
        present: StoredGroup,
    ) -> None:
        dim = str(self.call.append)
        count = next(v.sizes[dim] for v in variables.values() if dim in v.dims)
        growing = {k: v for k, v in variables.items() if dim in v.dims}
        for name in lacking:
            growing[name] = _missing_values(name, dim, count, present)
        # readers take the length of a dataset from its index: it becomes visible last
        order = sorted(growing, key=lambda name: (name == dim, name not in present.raw))
        for name in order:
            stored = present.raw[name]
            axis = stored.dims.index(dim)
            if labels.overlap < count:
                one = self._write(
                    path, name, growing[name], mode="a", append=axis, overlap=labels.overlap
                )
            else:  # all of it is there already
                end = stored.shape[axis]
                region = [slice(None)] * stored.ndim
                region[axis] = slice(end - count, end)
                one = self._write(path, name, growing[name], mode="r+", region=tuple(region))
                one = replace(one, request=replace(one.request, partial="own"))
            work.writes.append(one)

    # --- the plan ---------------------------------------------------------------------------------

    def _planned(self, work: _Work, node_format: Format) -> DatasetPlan:
        call, start = self.call, len(self.path) + 1 if self.path else 0
        if call.mode == "w":
            for one in work.writes:
                check_not_read(one.values, self.store, self.path)
        has_root = bool(formats_at(self.store, ""))
        makes_root = not has_root or (call.mode == "w" and not self.path)
        commit = GroupCommit(
            store=self.store,
            path=self.path,
            node_format=node_format,
            groups=tuple(work.groups),
            bare=tuple(work.bare),
            overwrite=call.mode == "w",
            appends=call.append is not None,
            consolidated=makes_root if call.consolidated is None else call.consolidated,
            on_conflict=call.on_conflict,
        )
        writes = [] if work.is_repeated else work.writes
        joint = plan_several(
            [one.values for one in writes], [one.request for one in writes], commit
        )
        return DatasetPlan(
            joint,
            tuple(one.path[start:] for one in writes),
            where(self.store, self.path),
            tuple(path[start:] for path in work.kept),
            work.is_repeated,
            bound(_forget, self.store, self.path, call.append) if work.is_repeated else None,
        )


def _forget(store: Store, path: str, dim: str) -> None:
    """Remove the journals of an append that has ended."""
    present = StoredGroup(open_group(store, path, read=ReadOptions(consolidated=False)))
    for name, array in present.arrays.items():
        variable, place = present.raw[name], default_place(store, array.path)
        if place is None or dim not in variable.dims:
            continue
        axis = variable.dims.index(dim)
        for journal, job in open_journals(place):
            is_over = job.growing and job.region[axis][1] == variable.shape[axis]
            if is_over and not journal.is_held():
                journal.remove()


def _check_same_encoding(encoding: Mapping[str, Any], present: StoredGroup) -> None:
    known = sorted(name for name in encoding if name in present.raw)
    if known:
        raise DatasetMismatchError(
            f"variable(s) {known} already exist in {present.group.where}, but encoding was provided: "
            "they keep the one that they have. Leave encoding= out."
        )


def _check_sizes(name: str, given: xr.Variable, stored: xr.Variable, dim: str) -> None:
    sizes = {k: n for k, n in stored.sizes.items() if k != dim}
    found = {k: n for k, n in given.sizes.items() if k != dim}
    if sizes != found:
        raise DatasetMismatchError(
            f"variable {name!r} already exists with different dimension sizes: {sizes} != {found}. "
            f"Only {dim!r} grows."
        )


def _missing_values(name: str, dim: str, count: int, present: StoredGroup) -> xr.Variable:
    stored, array = present.raw[name], present.arrays[name]
    shape = tuple(count if d == dim else n for d, n in stored.sizes.items())
    blocks = tuple(min(max(n, 1), size) for n, size in zip(shape, array.write_chunks, strict=True))
    values = da.full(shape, fill_of(name, array, stored), dtype=array.dtype, chunks=blocks)
    return xr.Variable(stored.dims, values)


def _of_variable(given: Any, name: str, variable: xr.Variable, *, whole: bool = False) -> Any:
    """Return what the user says of the grid of one variable.

    Dimensions that a grid of shards leaves out are in one shard each (`whole`).
    """
    if isinstance(given, Mapping) and any(isinstance(one, Mapping) for one in given.values()):
        given = given.get(name)
    if not isinstance(given, Mapping):
        return given
    mine = {dim: size for dim, size in given.items() if dim in variable.dims}
    if whole and mine:
        lengths = [mine.get(dim, -1) for dim in variable.dims]
        sizes = zip(lengths, variable.shape, strict=True)
        return tuple(max(size, 1) if length == -1 else length for length, size in sizes)
    return mine or None


def _region(
    dataset: xr.Dataset, given: Any, present: StoredGroup
) -> tuple[dict[Hashable, slice], list[Hashable]]:
    """Return the slices of a region, and the coordinates that it was found by.

    Raises
    ------
    DatasetMismatchError
        If labels are not there, or not side by side.
    TypeError, ValueError
        If it is no region.
    """
    if isinstance(given, str) and given == "auto":
        given = dict.fromkeys(dataset.dims, "auto")
    if not isinstance(given, Mapping):
        raise TypeError(f"``region`` must be a dict, got {type(given)}")
    unknown = [dim for dim in given if dim not in dataset.dims]
    if unknown:
        raise ValueError(
            f"all keys in ``region`` are not in Dataset dimensions, got {list(given)} and "
            f"{list(dataset.dims)}"
        )
    slices: dict[Hashable, slice] = {}
    found: list[Hashable] = []
    for dim, one in given.items():
        if isinstance(one, str) and one == "auto":
            slices[dim] = _found_by_labels(dim, dataset, present)
            found += [k for k, v in dataset.variables.items() if k == dim]
        elif not isinstance(one, slice):
            raise TypeError(f"all values in ``region`` must be slice objects, got {dict(given)}")
        elif one.step not in (1, None):
            raise ValueError(
                f"step on all slices in ``region`` must be 1 or None, got {dict(given)}"
            )
        else:
            slices[dim] = one
    return slices, found


def _found_by_labels(dim: Hashable, dataset: xr.Dataset, present: StoredGroup) -> slice:
    if dim not in dataset.variables:
        return slice(0, dataset.sizes[dim])
    name = str(dim)
    if name not in present.decoded:
        raise DatasetMismatchError(
            f"{present.group.where} has no labels of {name!r} to find the region by; give slices."
        )
    index = pd.Index(present.decoded[name].values)
    places = np.asarray(index.get_indexer(pd.Index(dataset[dim].values)))
    if (places == -1).any():
        raise LabelNotFoundError(
            f"Not all values of coordinate {name!r} in the new array were found in the original "
            f"store ({present.group.where}); a region changes no labels."
        )
    if (np.diff(places) != 1).any():
        raise DatasetMismatchError(
            f"The auto-detected region of coordinate {name!r} for writing new data to the original "
            "store had non-contiguous indices: write it piece by piece."
        )
    return slice(int(places[0]), int(places[-1]) + 1) if len(places) else slice(0, 0)
