"""Output of a simulation: its arrays, and the ranks that write them.

All ranks share an `Output`. It is written once, when everything has been checked and the arrays
exist, and read by every rank that attaches. Its folder lies beside the hierarchy::

    run.zarr/                              the hierarchy, in which nothing is ever added
    run.zarr.zarr-dask/__output/
        output.json                        the `Output`; names the folder below
        <16 hex digits>/
            rank-<number>                  what a rank has stored (`progress`)
            rewinds                        restarts from a checkpoint
            lock                           held while the visible length changes

When the output is finished, a small record takes the place of this folder: the same script may run
again, and finds that nothing is left to do (`FinishedOutput`).
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from secrets import token_hex
from typing import Any

import numpy as np

from zarr_dask._util.arguments import check_type
from zarr_dask.array.array import Array
from zarr_dask.array.cells import auto_chunks, dividing_chunks
from zarr_dask.array.create import ArraySpec, array_meta, given_shape
from zarr_dask.array.resize import prune_outside, resize_grid
from zarr_dask.errors import (
    ConsolidatedMetadataWarning,
    GridError,
    MetadataChangedError,
    MetadataError,
    NodeExistsError,
    NodeNotFoundError,
    RankError,
    ReadOnlyError,
    SharedObjectError,
    StoreError,
    ValidationProblem,
    WriterNotFoundError,
)
from zarr_dask.formats.base import (
    Format,
    GroupMeta,
    Limits,
    ancestors,
    checked_attributes,
    load_json,
    normalise_path,
    read_documents,
    where,
)
from zarr_dask.formats.detect import format_for_new
from zarr_dask.grid.grid import Dimension, Grid, Shape
from zarr_dask.hierarchy.edit import check_can_create, make_room_for_array, write_documents
from zarr_dask.hierarchy.group import Group, create_group
from zarr_dask.hierarchy.locate import parent_format, resolve_node
from zarr_dask.hierarchy.open_node import open_array, open_group
from zarr_dask.jobs.simulation.decomposition import (
    Decomposition,
    RankShare,
    decompose,
    share_of,
    shared_objects,
    suggest_decomposition,
)
from zarr_dask.jobs.simulation.rank_log import REWINDS, LogFolder
from zarr_dask.journal import claiming_nodes, default_place, given_place, remove_empty_folders
from zarr_dask.journal.finished import (
    discard_record,
    is_still_there,
    put_output_record,
    record_of,
)
from zarr_dask.stores.base import Store, join
from zarr_dask.stores.open import Location
from zarr_dask.stores.wrapper import forkable
from zarr_dask.stores.wrappers.base import is_read_only

__all__ = ["FinishedOutput", "Output", "OutputArray"]

_DOCUMENT = "output.json"
_FORMAT = "zarr-dask output 1"
_UNBOUNDED = 1 << 40
"""Capacity of an output without a limit: more steps than any simulation has."""
_CHUNK_BYTES = 4 << 20
_STEPS_OF_COORDINATES = 1024
_FOLDER = "__output"
_RECORD = "output of a simulation"
"""Of the record of a finished output: a group has one."""
_KEYWORDS = {
    "axis",
    "values",
    "shape",
    "dtype",
    "chunks",
    "shards",
    "codecs",
    "fill_value",
    "dimension_names",
    "attributes",
    "order",
    "chunk_key_encoding",
}


@dataclass(frozen=True, eq=False)
class OutputArray:
    """An array that grows by one element along one dimension with every step."""

    name: str
    """Path below the group of the output."""
    array: Array
    """The array at its full length; the metadata in the store has the visible length."""
    axis: int
    """The dimension of the steps."""
    owners: Decomposition

    @cached_property
    def steps(self) -> Dimension:
        """The dimension of the steps, divided into stored objects."""
        return self.array.meta.grid.dimensions[self.axis]

    @cached_property
    def grid(self) -> Grid:
        """The grid of one step, divided into stored objects."""
        return Grid(_without(self.array.meta.grid.dimensions, self.axis))

    @property
    def is_coordinate(self) -> bool:
        """True if a step is a single value, such as its time."""
        return not self.grid.ndim

    def coords(self, index: int, coords: tuple[int, ...]) -> tuple[int, ...]:
        """Return the coordinates of a stored object, from its index and those in a step."""
        return (*coords[: self.axis], index, *coords[self.axis :])

    def key(self, index: int, coords: tuple[int, ...]) -> str:
        """Return the key of a stored object."""
        return self.array.key(self.coords(index, coords))

    def share(self, rank: int, *, shared: bool) -> RankShare:
        """Return the work of a rank for this array."""
        return share_of(self.owners, self.grid, rank, shared=shared)

    def shape_with(self, steps: int) -> Shape:
        """Return the shape of the array with this many visible steps."""
        shape = self.grid.shape
        return (*shape[: self.axis], steps, *shape[self.axis :])


def _without(items: tuple[Any, ...], axis: int) -> tuple[Any, ...]:
    return (*items[:axis], *items[axis + 1 :])


def _with(items: tuple[Any, ...], axis: int, item: Any) -> tuple[Any, ...]:
    return (*items[:axis], item, *items[axis:])


@dataclass(frozen=True)
class FinishedOutput:
    """Facts about an output that was finished."""

    steps: int
    """Number of steps, all of which are visible."""
    arguments: str
    """Digest of the arguments that it was created with."""
    restart: tuple[int, str | None] | None
    """First step and run of the last restart from a checkpoint; None without one."""


@dataclass(frozen=True, eq=False)
class Output:
    """Arrays in a group that grow together."""

    group: Group
    series: Mapping[str, OutputArray]
    capacity: int | None
    """Maximum number of steps; None for no limit."""
    ranks: int
    gathers: bool
    """True if ranks send pieces of their blocks to the owners of shared objects."""
    folder: LogFolder
    ended: FinishedOutput | None = None
    """Set if it was finished: its files are gone, and nothing can be put."""

    @property
    def store(self) -> Store:
        """Store of the arrays."""
        return self.group.store

    @property
    def node_format(self) -> Format:
        """Format of the arrays."""
        return self.group.node_format

    @property
    def where(self) -> str:
        """Store and path, for messages."""
        return self.group.where

    @cached_property
    def _paced(self) -> list[OutputArray]:
        """The arrays whose stored objects determine the possible ends of the visible length."""
        fields = [one for one in self.series.values() if not one.is_coordinate]
        return fields or list(self.series.values())

    def border(self, steps: int) -> int:
        """Return the most steps, up to this number, for which all arrays have whole stored objects.

        Coordinates do not count, because their owner also writes incomplete objects.
        """
        while True:
            borders = [one.steps.boundary_at_or_before(steps) for one in self._paced]
            if min(borders) == steps:
                return steps
            steps = min(borders)

    def end(self, steps: int, documents: Mapping[str, str]) -> None:
        """Record the end of the output, with the metadata of its arrays, and remove its files."""
        folder = self.folder
        above = folder.prefix.removesuffix("/").rpartition("/")[0] + "/"
        text = folder.store.get(f"{above}{_DOCUMENT}")
        if text is not None:
            said = load_json(folder.store, f"{above}{_DOCUMENT}", bytes(text))
            restart = [(one["from_step"], one.get("run")) for one in folder.restarts()][-1:]
            report = {"steps": steps, "restart": restart, "output": said}
            records = above.removesuffix(f"{_FOLDER}/")
            put_output_record(folder.store, records, _RECORD, report, documents)
        _forget(folder.store, above)

    def remove_rest(self) -> None:
        """Remove what is left of the files of a finished output, if its process was killed then.

        Those of another output that was created at the same location since are in another folder.
        """
        place, prefix = self.folder.store, self.folder.prefix
        place.delete_prefix(prefix)
        remove_empty_folders(place, prefix)

    def rank_file(self, rank: int) -> str:
        """Return the name of the file with the receipts of a rank."""
        return f"rank-{rank}"


# --- creating -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class OutputArguments:
    """Arguments of the user; see `zarr_dask.Writer.create`."""

    url: Location | Array | Group
    path: str
    arrays: Mapping[str, Mapping[str, Any]]
    capacity: int | None
    owners: Decomposition | Mapping[str, Decomposition] | None
    gathers: bool
    attributes: Mapping[str, Any]
    format: str | None
    overwrite: bool
    journal: Location | None
    storage_options: Mapping[str, Any] | None


def create_output(request: OutputArguments) -> Output:
    """Check everything, then make the arrays, without a visible step.

    An output that was created with the same arguments and is finished is returned as it is.

    Raises
    ------
    GridError, DataTypeError, MetadataError, TypeError
        If an array is not possible as described.
    SharedObjectError
        If two ranks would write one stored object.
    NodeExistsError
        If something exists at the location of an array.
    RankError
        If an output is open there that may not be replaced, or whose ranks still run.
    ReadOnlyError
        If ranks cannot write to the store.
    StoreError
        If there is no location for the journal.
    """
    store, path = resolve_node(request.url, request.path, request.storage_options)
    _check_store(store, where(store, path))
    place, prefix = _place(store, path, request.journal)
    capacity = _checked_capacity(request.capacity)
    group = _existing_group(store, path)
    kind = _format_of(request, store, path, group)
    drafts = _drafts(request, store, path, capacity, kind)
    series = {name: one.series for name, one in drafts.items() if one.series is not None}
    if not series:
        raise GridError("no array of the output grows: expected at least one without values=.")
    if not any(one.grid.ncells for one in series.values()):
        raise GridError("no array of the output has an element in a step: expected at least one.")
    ranks = max(one.owners.ranks for one in series.values())
    arguments = _digest(request, drafts)
    if not request.overwrite:
        done = _finished_output(store, path, place, prefix)
        if done is not None and done.ended is not None and done.ended.arguments == arguments:
            return done
    _check_places(request, store, drafts)
    if group is None:
        _check_group(request, store, path, kind)
    _check_no_other(place, prefix, where(store, path), overwrite=request.overwrite)
    place.delete(f"{prefix}{_DOCUMENT}")  # of an output that is replaced: prevents attaching
    place.delete_prefix(prefix)
    discard_record(place, prefix.removesuffix(f"{_FOLDER}/"), _RECORD)
    if group is None:
        group = create_group(store, path, attributes=request.attributes, format=kind)
    with warnings.catch_warnings(), claiming_nodes(store, *(d.array.path for d in drafts.values())):
        warnings.simplefilter("ignore", ConsolidatedMetadataWarning)  # written at the end
        for draft in drafts.values():
            draft.make(overwrite=request.overwrite)
    creation = token_hex(8)
    folder = LogFolder(place, f"{prefix}{creation}/")
    output = Output(group, series, request.capacity, ranks, request.gathers, folder)
    place.set(f"{folder.prefix}{REWINDS}", [b""])  # creates the folder
    place.set(f"{prefix}{_DOCUMENT}", [_to_json(output, creation, arguments)])
    return output


def _check_store(store: Store, at: str) -> None:
    if is_read_only(store) or forkable(store) is not None:
        raise ReadOnlyError(
            f"ranks cannot write to {at}: it is open for reading only, or holds what one session "
            "commits, as of Icechunk. Create the output in a folder or a bucket; zarr_dask.copy "
            "takes it elsewhere when it is finished."
        )


def _digest(request: OutputArguments, drafts: Mapping[str, PlannedArray]) -> str:
    """Return a digest of all that two calls must share to create the same output."""
    found = sha256(repr((request.capacity, request.gathers)).encode())
    for name, draft in sorted(drafts.items()):
        array, series, values = draft.array, draft.series, draft.values
        documents = array.node_format.documents(array.meta, array.path)
        found.update(repr((name, sorted(documents.items()))).encode())
        if series is not None:
            found.update(repr((series.axis, _owners_json(series.owners))).encode())
        if values is not None:
            is_pointers = values.dtype.kind in "OT"
            found.update(repr(values.tolist()).encode() if is_pointers else values.tobytes())
    return found.hexdigest()


def _check_no_other(place: Store, prefix: str, at: str, *, overwrite: bool) -> None:
    """Refuse to replace an output without being told to, or while a rank writes."""
    text = place.get(f"{prefix}{_DOCUMENT}")
    if text is None:
        return
    if not overwrite:
        raise RankError(
            f"an output of a simulation is open at {at} ({place.url}/{prefix}). End it with "
            "finish(), forget it with zarr_dask.Writer.abandon, or replace it with overwrite=True."
        )
    key = f"{prefix}{_DOCUMENT}"
    document = load_json(place, key, bytes(text))
    try:
        creation = _creation(document)
    except (KeyError, ValueError) as error:
        raise _damaged(place, key, error) from error
    LogFolder(place, f"{prefix}{creation}/").check_idle("rank-")


def abandon_output(
    url: Location | Array | Group,
    path: str,
    journal: Location | None,
    storage_options: Mapping[str, Any] | None,
) -> None:
    """Discard an output whose ranks will not continue; see `zarr_dask.Writer.abandon`."""
    store, path = resolve_node(url, path, storage_options)
    place, prefix = _place(store, path, journal)
    if place.get(f"{prefix}{_DOCUMENT}") is None:
        raise _no_output(store, path, place, prefix)
    _check_no_other(place, prefix, where(store, path), overwrite=True)
    with suppress(NodeNotFoundError, MetadataError, MetadataChangedError):  # the arrays may be gone
        output = open_output(store, path, journal, None)
        for one in output.series.values():
            array = open_array(output.group, one.name, "r+")
            prefix_of_data = output.node_format.data_prefix(array.path)
            prune_outside(array.store, prefix_of_data, array.meta, array.where)
    _forget(place, prefix)


def _forget(place: Store, prefix: str) -> None:
    place.delete(f"{prefix}{_DOCUMENT}")
    place.delete_prefix(prefix)
    remove_empty_folders(place, prefix)


def _no_output(store: Store, path: str, place: Store, prefix: str) -> WriterNotFoundError:
    return WriterNotFoundError(
        f"no output of a simulation was created at {where(store, path)}: there is no "
        f"{where(place, prefix + _DOCUMENT)}. zarr_dask.Writer.create makes one, before any rank "
        "attaches; one that was abandoned, or whose arrays have been replaced since, is a group "
        "like any other: zarr_dask.open."
    )


def _check_group(request: OutputArguments, store: Store, path: str, kind: str) -> None:
    """Raise if there cannot be such a group: some formats have none."""
    node_format = format_for_new(store, kind, path)
    check_can_create(store, path, node_format, overwrite=False, is_group=True)
    meta = GroupMeta(checked_attributes(request.attributes, where(store, path)))
    node_format.documents(meta, path)


def _place(store: Store, path: str, journal: Location | None) -> tuple[Store, str]:
    place = default_place(store, path) if journal is None else given_place(journal, store, path)
    if place is None:
        raise StoreError(
            f"{store.url} has no place beside it where ranks could say what they have stored: "
            "give journal=, a folder that all ranks can write to."
        )
    return place.store, f"{place.prefix}{_FOLDER}/"


def _checked_capacity(capacity: Any) -> int:
    if capacity is None:
        return _UNBOUNDED
    if isinstance(capacity, bool) or not isinstance(capacity, int | np.integer) or capacity < 1:
        raise GridError(f"capacity={capacity!r}: expected a number of steps, or None for no bound.")
    return int(capacity)


def _format_of(request: OutputArguments, store: Store, path: str, group: Group | None) -> str:
    """Return the name of the format of the arrays."""
    if group is None:
        return request.format or parent_format(store, path)
    if request.format not in {None, group.format}:
        raise NodeExistsError(
            f"format={request.format!r}: the group {group.where} exists, is of format "
            f"{group.format!r}, and would not show arrays of another one. Leave format out, or "
            "choose another group."
        )
    return group.format


def _existing_group(store: Store, path: str) -> Group | None:
    try:
        return open_group(store, path, "r+")
    except NodeNotFoundError:
        return None


# --- arrays of a request --------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PlannedArray:
    """An array to be made."""

    array: Array
    """The array as it will be, without steps."""
    series: OutputArray | None
    """The growing array; None for an array with given values."""
    values: np.ndarray | None
    """Values of an array that does not grow."""

    def make(self, *, overwrite: bool) -> None:
        """Make the array, whose location the caller has claimed."""
        array = self.array
        place = (array.store, array.path, array.node_format)
        make_room_for_array(*place, array.meta, overwrite=overwrite, is_claimed=True)
        if self.values is not None:
            array.write(None, self.values)
        write_documents(array.store, array.node_format.documents(array.meta, array.path))


def _check_kinds(request: OutputArguments) -> None:
    """Refuse arguments of the wrong types."""
    if not isinstance(request.arrays, Mapping):
        raise TypeError(
            f"arrays={request.arrays!r}: expected an object with the shape, dtype and so on of "
            "each array, by its name."
        )
    maps = request.owners
    for found in maps.values() if isinstance(maps, Mapping) else (maps,):
        expected = "what zarr_dask.decompose(grid, decomposition) gives, for all arrays or by name"
        check_type("owners", found, Decomposition, expected)


def _drafts(
    request: OutputArguments, store: Store, path: str, capacity: int, kind: str
) -> dict[str, PlannedArray]:
    """Return all arrays, each checked."""
    maps = request.owners
    _check_kinds(request)
    drafts = {}
    for given, spec in request.arrays.items():
        name = normalise_path(given)
        if name in drafts:
            raise TypeError(f"array {given!r} is described twice: {name!r} is another name of it.")
        if not isinstance(spec, Mapping):
            raise TypeError(
                f"array {given!r} is described by {spec!r}: expected an object with its shape, "
                "dtype and so on."
            )
        unknown = sorted(set(spec) - _KEYWORDS)
        if unknown or not name:
            raise TypeError(
                f"array {given!r}: {', '.join(unknown) or 'its name'} means nothing here; expected "
                f"a name and some of {', '.join(sorted(_KEYWORDS))}."
            )
        place = _ArrayLocation(store, join(path, name), name, kind)
        if "values" in spec:
            drafts[name] = _static(place, spec)
        else:
            found = maps.get(given) if isinstance(maps, Mapping) else maps
            drafts[name] = _growing(
                place, spec, capacity, found, explicit=isinstance(maps, Mapping)
            )
        growing = drafts[name].series
        if growing is not None and not request.gathers:
            _check_owned(growing)
    if isinstance(maps, Mapping) and not set(maps) <= set(request.arrays):
        strange = sorted(set(maps) - set(request.arrays))
        raise GridError(f"owners= names {strange}, which are no arrays of this output.")
    return drafts


def _check_places(
    request: OutputArguments, store: Store, drafts: Mapping[str, PlannedArray]
) -> None:
    """Refuse arrays inside others, and arrays where something exists."""
    for name, draft in drafts.items():
        array = draft.array
        around = next((above for above in ancestors(name) if above in drafts), None)
        if around is not None:
            raise NodeExistsError(
                f"array {name!r} would lie inside array {around!r}, and an array cannot hold other "
                "nodes. Choose another name."
            )
        check_can_create(
            store, array.path, array.node_format, overwrite=request.overwrite, advice=_CONTINUE
        )


_CONTINUE = (
    "A simulation that is started again does not create its output again: "
    "zarr_dask.Writer.attach(url, rank=...) continues it. If that finds none, there are "
    "other arrays. Only the same call as before finds a finished output done. Pass overwrite=True "
    "to replace what is there."
)


@dataclass(frozen=True)
class _ArrayLocation:
    store: Store
    path: str
    name: str
    kind: str

    def array(self, spec: Mapping[str, Any]) -> Array:
        at = where(self.store, self.path)
        node_format = format_for_new(self.store, self.kind, self.path)
        meta = array_meta(ArraySpec(**{"format": self.kind, **spec}), at)
        return Array(self.store, self.path, meta, node_format)


def _static(place: _ArrayLocation, spec: Mapping[str, Any]) -> PlannedArray:
    """Return the draft of an array with given values."""
    values = np.asarray(spec["values"])
    rest = {name: value for name, value in spec.items() if name not in {"values", "axis"}}
    rest = {"shape": values.shape, "dtype": values.dtype, **rest}
    if rest["shape"] != values.shape:
        raise GridError(
            f"array {place.name!r}: values of shape {values.shape}, not {rest['shape']}."
        )
    array = place.array(rest)
    return PlannedArray(array, None, array.cast(values))


def _growing(
    place: _ArrayLocation,
    spec: Mapping[str, Any],
    capacity: int,
    found: Decomposition | None,
    *,
    explicit: bool,
) -> PlannedArray:
    rest = {name: value for name, value in spec.items() if name != "axis"}
    missing = [name for name in ("shape", "dtype") if name not in rest]
    if missing:
        raise TypeError(f"array {place.name!r} needs {' and '.join(missing)}.")
    shape = rest["shape"]
    step = given_shape(shape)
    axis = spec.get("axis", 0)
    if not isinstance(axis, int) or not 0 <= axis <= len(step):
        raise GridError(f"array {place.name!r}: axis={axis!r}: expected 0 to {len(step)}.")
    if not step or (found is None and explicit):
        found = Decomposition.single(step)
    found = found or Decomposition.single(step)
    if found.shape != step:
        raise GridError(
            f"array {place.name!r} has steps of shape {step}, the owners are for steps of shape "
            f"{found.shape}; owners= also takes a dict, with a map for each array."
        )
    _check_steps_are_counted(place.name, rest, step, axis)
    names = rest.get("dimension_names")
    if isinstance(names, Collection) and not isinstance(names, str | AbstractSet):
        names = tuple(names)
    if isinstance(names, tuple) and len(names) == len(step):
        rest["dimension_names"] = _with(names, axis, "time")
    rest["shape"] = _with(step, axis, capacity)
    if isinstance(rest.get("chunks", "auto"), str) and rest.get("shards") is None:
        steps = min(capacity, _STEPS_OF_COORDINATES) if not step else 1
        itemsize = place.array({**rest, "chunks": 1}).meta.data_type.typical_itemsize
        rest["chunks"] = _with(_cell(found, itemsize), axis, steps)
    if capacity == _UNBOUNDED:
        _check_unbounded(place.name, rest, axis)
    array = place.array(rest)
    series = OutputArray(place.name, array, axis, found)
    return PlannedArray(_resized(array, series.shape_with(0)), series, None)


def _check_steps_are_counted(name: str, spec: Mapping[str, Any], step: Shape, axis: int) -> None:
    """Refuse grids that lack the number of steps in a stored object, and say where it belongs."""
    for what in ("chunks", "shards"):
        cells = spec.get(what)
        if isinstance(cells, list | tuple) and len(cells) != len(step) + 1:
            of_step = tuple(cells) if len(cells) == len(step) else step
            raise GridError(
                f"array {name!r}: {what}={cells!r} has {len(cells)} lengths; expected "
                f"{len(step) + 1}, with the number of steps in a stored object at position {axis}, "
                f"as in {what}={_with(of_step, axis, 1)}."
            )


def _check_unbounded(name: str, spec: Mapping[str, Any], axis: int) -> None:
    for what in ("chunks", "shards"):
        cells = spec.get(what)
        if isinstance(cells, list | tuple) and isinstance(cells[axis : axis + 1], list | tuple):
            sizes = cells[axis] if axis < len(cells) else 1
            if isinstance(sizes, list | tuple):
                raise GridError(
                    f"array {name!r}: {what} of declared lengths along the steps end somewhere: "
                    "give capacity=."
                )


def _cell(found: Decomposition, itemsize: int) -> Shape:
    """Return the default chunks of one step: blocks of the ranks, or parts of them."""
    if found.sizes is None:
        return auto_chunks(found.shape, itemsize, _CHUNK_BYTES)
    return dividing_chunks(tuple(max(n) or 1 for n in found.sizes), itemsize, _CHUNK_BYTES)


def _resized(array: Array, shape: Shape) -> Array:
    sharded = array.meta.codecs.serializer.is_sharding
    grid = resize_grid(array.meta.grid, shape, sharded=sharded)
    # longer than any document says
    return replace(array, meta=replace(array.meta, grid=grid), shown=None)


def _check_owned(series: OutputArray) -> None:
    """Refuse stored objects that two ranks would write."""
    shared = next(shared_objects(series.owners, series.grid), None)
    if shared is None:
        return
    cell, blocks = suggest_decomposition(series.owners, series.grid)
    whole = _with(cell, series.axis, series.array.write_chunks[series.axis])
    what = "shards" if series.array.shards else "chunks"
    fits = f"These ranks fit {what}={whole}"
    if blocks is not None:
        fits += f"; these {what} fit zd.decompose({series.grid.shape}, {blocks})"
    raise SharedObjectError(
        series.key(0, shared.coords),
        shared.ranks,
        f"{fits}; and with gather=True the first of the ranks collects what lies in the object.",
    )


# --- as JSON --------------------------------------------------------------------------------------


def _to_json(output: Output, creation: str, arguments: str) -> bytes:
    arrays = {
        name: {"axis": one.axis, "shape": one.owners.shape, **_owners_json(one.owners)}
        for name, one in output.series.items()
    }
    facts = {
        "format": _FORMAT,
        "run_id": creation,
        "capacity": output.capacity,
        "gathers": output.gathers,
        "arrays": arrays,
        "arguments": arguments,
    }
    return json.dumps(facts, indent=1).encode()


def _owners_json(found: Decomposition) -> dict[str, Any]:
    return {"boxes": found.boxes} if found.sizes is None else {"sizes": found.sizes}


def open_output(
    url: Location | Array | Group,
    path: str,
    journal: Location | None,
    storage_options: Mapping[str, Any] | None,
    *,
    finished: bool = False,
) -> Output:
    """Return the output at a location, as it was created; with `finished`, also one that has ended.

    Raises
    ------
    WriterNotFoundError
        If no output was created there.
    MetadataError
        If its JSON file is damaged.
    """
    store, path = resolve_node(url, path, storage_options)
    place, prefix = _place(store, path, journal)
    key = f"{prefix}{_DOCUMENT}"
    text = read_documents(place, [key], Limits())[key]
    if text is None:
        done = _finished_output(store, path, place, prefix) if finished else None
        if done is None:
            raise _no_output(store, path, place, prefix)
        return done
    document = load_json(place, key, text)
    try:
        return _from_json(document, open_group(store, path, "r+"), place, prefix)
    except _MALFORMED as error:
        raise _damaged(place, key, error) from error


_MALFORMED = (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError)


def _finished_output(store: Store, path: str, place: Store, prefix: str) -> Output | None:
    """Return the output that was finished, if its arrays are still there; None if not."""
    record = record_of(place, prefix.removesuffix(f"{_FOLDER}/"), _RECORD)
    if record is None or not is_still_there(store, record.documents):
        return None
    try:
        said, restart = record.report["output"], record.report["restart"]
        steps = _checked_capacity(record.report["steps"]) if record.report["steps"] else 0
        ended = FinishedOutput(
            steps, str(said.get("arguments")), tuple(restart[0]) if restart else None
        )
        output = _from_json(said, open_group(store, path, "r+"), place, prefix)
    except (NodeNotFoundError, MetadataChangedError, *_MALFORMED):
        return None  # what this package has not written, or of a group that is gone
    return replace(output, ended=ended)


def _damaged(place: Store, key: str, error: Exception) -> MetadataError:
    problem = ValidationProblem(key, str(error), f"what {_FORMAT!r} has")
    return MetadataError(where(place, key), [problem])


def _creation(document: Mapping[str, Any]) -> str:
    """Name of the folder of an output, as its document says it: no path that leads elsewhere."""
    creation = str(document["run_id"])
    if not re.fullmatch("[0-9a-f]{16}", creation):
        raise ValueError(f"creation {creation!a:.80}: expected 16 hexadecimal digits")
    return creation


def _from_json(document: Mapping[str, Any], group: Group, place: Store, prefix: str) -> Output:
    if document["format"] != _FORMAT:
        raise ValueError(f"format {document['format']!r}")
    capacity = document["capacity"]
    bound = _checked_capacity(capacity)
    series = {
        str(name): _series_from_json(group, str(name), facts, bound)
        for name, facts in document["arrays"].items()
    }
    ranks = max(one.owners.ranks for one in series.values())
    folder = LogFolder(place, f"{prefix}{_creation(document)}/")
    return Output(group, series, capacity, ranks, bool(document["gathers"]), folder)


def _series_from_json(
    group: Group, name: str, facts: Mapping[str, Any], capacity: int
) -> OutputArray:
    array = open_array(group, name, "r+")
    shape, axis = tuple(map(int, facts["shape"])), int(facts["axis"])
    if "sizes" in facts:
        found = decompose(shape, tuple(tuple(map(int, sizes)) for sizes in facts["sizes"]))
    else:
        boxes = tuple(tuple((int(a), int(b)) for a, b in box) for box in facts["boxes"])
        found = Decomposition(shape, boxes)
        if any(not _lies_in(box, shape) for box in boxes):
            raise ValueError(f"a box of {name!r} lies outside of the shape {shape}")
    if not 0 <= axis <= len(shape):
        raise ValueError(f"axis {axis} of {name!r}: expected a dimension of {len(shape) + 1}")
    if array.ndim != len(shape) + 1 or _without(array.shape, axis) != shape:
        raise changed_error(array)
    allocated = _resized(array, _with(shape, axis, capacity))
    return OutputArray(name, allocated, axis, found)


def _lies_in(box: tuple[tuple[int, int], ...], shape: Shape) -> bool:
    bounds = zip(box, shape, strict=True)  # which raises for another number of dimensions
    return all(0 <= first <= stop <= length for (first, stop), length in bounds)


def changed_error(array: Array) -> MetadataChangedError:
    """Return an error for an array that has been replaced by another one."""
    return MetadataChangedError(
        f"{array.where} is not the array any more that was created for this output: its metadata "
        "have changed. Create the output anew."
    )
