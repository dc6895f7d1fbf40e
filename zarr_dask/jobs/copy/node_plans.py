"""Decisions about each node of a copy: its format, its grid, and the way it is copied.

`GridOptions` holds the arguments of users. `NodePlans` decides for each node whether its stored
objects are copied as they are or rechunked, with notes for users and reasons for refusals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from zarr_dask._util.json_fields import is_int
from zarr_dask._util.keywords import did_you_mean
from zarr_dask.array.array import Array
from zarr_dask.array.create import same_bytes_metadata
from zarr_dask.errors import (
    CopyError,
    DataTypeError,
    GridError,
    MemoryBudgetError,
    MetadataError,
    SelectionError,
)
from zarr_dask.formats.base import ArrayMeta, Format, GroupMeta, where
from zarr_dask.formats.consolidated import (
    has_consolidated,
    is_consolidated,
    without_consolidated,
    without_recorded,
)
from zarr_dask.formats.detect import format_for_new
from zarr_dask.hierarchy.group import Group
from zarr_dask.hierarchy.locate import format_of_group_around
from zarr_dask.jobs.copy.raw_copy import RawCopyPlan, plan_move
from zarr_dask.jobs.engine.predict import largest_need
from zarr_dask.jobs.rechunk.plan import RechunkPlan
from zarr_dask.jobs.rechunk.target_spec import (
    RechunkBudget,
    TargetSpec,
    format_can_express,
    make_rechunk_plan,
    new_array,
    notes_of,
)
from zarr_dask.stores.base import Store, join

__all__ = ["GridOptions", "Node", "NodePlans", "inherited_format"]

Node = Array | Group | MetadataError
"""A node, or the error of reading it."""


@dataclass(frozen=True)
class GridOptions:
    """Requested differences from the source; see `plan_copy`."""

    chunks: Any
    shards: Any
    region: Any
    codecs: Any
    dtype: Any
    format: str | None
    paths: tuple[str, ...]
    """Paths of the arrays."""

    def check(self, root: Array | Group, arrays: Mapping[str, Array]) -> None:
        """Refuse arguments that do not fit the source."""
        if isinstance(root, Array):
            return
        known = {n for one in arrays.values() for n in one.dimension_names or () if n is not None}
        for_each = ", or as 'auto', a size such as '10MB', or -1"
        for what, given, such, otherwise in (
            ("chunks", self.chunks, "{'time': -1, 'x': 64}", for_each),
            ("shards", self.shards, "{'time': -1, 'x': 64}", for_each),
            ("region", self.region, "{'time': slice(0, 100)}", ""),
        ):
            if given is None or (what != "region" and _is_for_each(given)):
                continue
            if not isinstance(given, Mapping):
                raise GridError(
                    f"{what}={given!r}: for the arrays of a group it is given by names of "
                    f"dimensions, such as {such}{otherwise}. Dimensions in {root.where}: "
                    f"{', '.join(sorted(known)) or 'none has a name'}."
                )
            unknown = [
                name
                for name, one in given.items()
                if not (name in self._known and isinstance(one, Mapping | tuple | list | None))
                and (isinstance(one, Mapping) or name not in known)
            ]
            if unknown:
                hint = did_you_mean(unknown[0], [*known, *self.paths])
                raise GridError(
                    f"{what} names {unknown}, which no array in {root.where} has as a dimension, "
                    f"and no array is called; there are the dimensions {sorted(known)} and the "
                    f"arrays {sorted(self.paths)}.{hint}"
                )
        if self.dtype is not None and not self._is_by_path(self.dtype):
            raise DataTypeError(
                f"dtype={self.dtype!r}: for a group give a mapping from paths of arrays in it to "
                f"data types. Arrays in {root.where}: {', '.join(self.paths) or 'none'}."
            )
        codecs = self.codecs
        if isinstance(codecs, Mapping) and not self._is_codec(codecs):
            unknown = [name for name in codecs if name not in self._known]
            if unknown:
                raise GridError(
                    f"codecs= names {unknown}, which are no arrays in {root.where}; there are "
                    f"{', '.join(self.paths) or 'none'}."
                )

    def _is_by_path(self, given: Any) -> bool:
        return isinstance(given, Mapping) and given.keys() <= self._known

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(self.paths)

    @cached_property
    def _by_path(self) -> tuple[bool, bool]:
        """True if data types, and if codecs are given by path; not asked again for each array."""
        codecs = self._is_by_path(self.codecs) and not self._is_codec(self.codecs)
        return self._is_by_path(self.dtype), codecs

    def _is_codec(self, given: Any) -> bool:
        """True if a mapping is one codec, not codecs by path: an array may be called ``name``."""
        if not isinstance(given, Mapping):
            return False
        named = any(isinstance(given.get(member), str) for member in ("name", "id"))
        return named and (len(given) == 1 or not self._is_by_path(given))

    def of(self, path: str, array: Array) -> TargetSpec:
        """Return the requested changes of one array."""
        chunks, shards, dtype, codecs = self.chunks, self.shards, self.dtype, self.codecs
        region = self.region
        if path:  # below a group
            given = (chunks, shards, region)
            chunks, shards, region = (_own(one, path, array) for one in given)
            has_dtypes, has_codecs = self._by_path
            dtype = dtype.get(path) if has_dtypes else dtype
            codecs = codecs.get(path) if has_codecs else codecs
        return TargetSpec(chunks, shards, dtype, codecs, self.format, region)


def inherited_format(nodes: Mapping[str, Node], store: Store, path: str, grids: GridOptions) -> str:
    """Return the format of a copy's parent group if all nodes can have it, else their own."""
    own = next(node.format for node in nodes.values() if not isinstance(node, MetadataError))
    around = format_of_group_around(store, path)
    if around is None or around == own:
        return own
    wished = format_for_new(store, around, path)

    def can_have_it(name: str, node: Node) -> bool:
        if isinstance(node, MetadataError):
            return False
        if not all(map(wished.is_node_name, filter(None, name.split("/")))):
            return False
        if isinstance(node, Array):
            wanted = grids.of(name, node)
            return format_can_express(node, store, join(path, name), wished, wanted)
        known = without_consolidated(node.store), node.path, node.node_format, node.meta
        return has_consolidated(wished) or not is_consolidated(*known)

    return around if all(can_have_it(*one) for one in nodes.items()) else own


def _is_for_each(grid: Any) -> bool:
    """True for a grid that means the same for all arrays: "auto", a size, -1 or False."""
    return isinstance(grid, str) or grid is False or (is_int(grid) and grid == -1)


def _own(grid: Any, path: str, array: Array) -> Any:
    """Return the part of a grid or region that concerns an array; None for nothing.

    Under the path of an array it may be given for that one alone.
    """
    if grid is None or _is_for_each(grid):
        return grid
    names = array.dimension_names or ()
    alone = grid.get(path)
    if alone is None and path in grid and path not in names:
        return None  # {"salt": None}: it stays as it is
    if isinstance(alone, tuple | list) and path not in names:
        return alone  # {"salt": (10, 20)}
    found = {
        name: grid[name] for name in names if name in grid and not isinstance(grid[name], Mapping)
    }
    return {**found, **(alone if isinstance(alone, Mapping) else {})} or None


_Member = RawCopyPlan | RechunkPlan
_Refusal = MetadataError | GridError | DataTypeError | SelectionError | MemoryBudgetError


class NodePlans:
    """Collector for the plans, groups, notes and refusals of a copy."""

    def __init__(
        self,
        store: Store,
        path: str,
        node_format: Format,
        grids: GridOptions,
        resources: RechunkBudget,
        overwrite: bool,
    ) -> None:
        self.store, self.path, self.node_format = store, path, node_format
        self.grids, self.resources, self.overwrite = grids, resources, overwrite
        self.members: list[_Member] = []
        self.groups: list[tuple[str, GroupMeta]] = []
        self.consolidated: list[str] = []
        self.notes: list[str] = []
        self.refusals: list[tuple[str, str, Exception]] = []
        self.too_large: list[MemoryBudgetError] = []

    def member(self, name: str, array: Array) -> _Member | _Refusal:
        """Return the plan of an array, or the reason for refusing it; thread-safe."""
        try:
            self._check_name(name)
            return self._array(name, array)
        except (
            MetadataError,
            GridError,
            DataTypeError,
            SelectionError,
            MemoryBudgetError,
        ) as error:
            return error

    def add(self, name: str, node: Node, member: _Member | _Refusal | None) -> None:
        """Add a node, or note why it is refused; arrays are planned already."""
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
        except MemoryBudgetError as error:
            self.too_large.append(error)
        except (MetadataError, GridError, DataTypeError, SelectionError) as error:
            problems = error.problems if isinstance(error, MetadataError) else (error,)
            self.refusals.append((name, "; ".join(map(str, problems)), error))

    def raise_refusals(self, at: str) -> None:
        """Raise if any node was refused; for a single array, raise its own error."""
        if self.refusals and not self.groups and not self.refusals[0][0]:
            raise self.refusals[0][2]
        if self.refusals:
            raise CopyError(at, [(name, reason) for name, reason, _ in self.refusals])
        if self.too_large:
            raise largest_need(self.too_large)

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
            self.node_format.documents(new, path)  # raises if the format has no groups
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
        array.meta.check_writable(array.where)  # codecs skipped in reading have no known meaning
        wanted = self.grids.of(name, array)
        same = self._as_stored(array, path)
        rewrites = any(
            one is not None
            for one in (wanted.chunks, wanted.shards, wanted.dtype, wanted.codecs, wanted.region)
        )
        # only reading a shard shows whether one of its chunks is absent
        options = array.options
        strict = options.missing == "error" or bool(options.verify or options.consistent)
        if rewrites or strict or same is None:
            wanted = replace(wanted, format=self.node_format.name)
            new = new_array(array, self.store, path, self.node_format, wanted)
            if strict or same is None or not _same_bytes(new.array, same):
                return make_rechunk_plan(array, new, self.resources, overwrite=self.overwrite)
        target = Array(self.store, path, same, self.node_format)
        self.node_format.documents(same, path)  # raises if the format cannot express it
        move = plan_move(array, target, self.resources)
        return replace(move, notes=notes_of(array, target))

    def _as_stored(self, array: Array, path: str) -> ArrayMeta | None:
        """Return new metadata for the same stored bytes; None if the format cannot express it."""
        old, new = array.node_format, self.node_format
        same = same_bytes_metadata(array.meta, old, new, where(self.store, path))
        if same is not None and new != old:
            try:
                new.documents(same, path)
            except MetadataError:
                return None
        return same


def _same_bytes(made: Array, same: Any) -> bool:
    """True if the requested array has the same encoding as the stored one."""
    facts: Sequence[tuple[Any, Any]] = (
        (made.meta.grid, same.grid),
        (made.meta.codecs, same.codecs),
        (made.meta.data_type, same.data_type),
    )
    return all(a == b for a, b in facts)
