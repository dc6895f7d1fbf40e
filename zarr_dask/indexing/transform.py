"""Selections as values, which can be composed without reading anything.

An `IndexTransform` maps each element of the result to an element of each dimension of an array. The
map of a dimension is constant (`ConstantMap`), moves in steps along an axis of the result
(`StridedMap`), or is a list (`IndexArrayMap`). Integers, slices, new axes, transposes, lists,
boolean masks and points all have this form, and so does a selection of a selection
(`IndexTransform.then`). Pure; knows shapes only.

::

    parse_numpy       array[...]            as NumPy indexes
    parse_outer       array.oindex[...]     each list along its own axis
    parse_points      array.vindex[...]     lists broadcast against each other, their axes first
    parse_blocks      array.blocks[...]     whole stored objects

`zarr_dask.indexing.plan` finds the elements that a transform takes of each stored object.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from math import prod
from typing import Any

import numpy as np

from zarr_dask.errors import SelectionError
from zarr_dask.grid.grid import Grid, Region, Shape
from zarr_dask.indexing.basic import expanded, is_list, position_of

__all__ = [
    "ConstantMap",
    "IndexArrayMap",
    "IndexTransform",
    "StridedMap",
    "axes_of",
    "axis_names",
    "parse_blocks",
    "parse_numpy",
    "parse_outer",
    "parse_points",
    "positions_of",
]


@dataclass(frozen=True, slots=True)
class ConstantMap:
    """One element of a dimension."""

    position: int
    """Position of the element."""


@dataclass(frozen=True, slots=True)
class StridedMap:
    """Elements of a dimension in equal steps along one axis of the result."""

    axis: int
    """The axis of the result."""
    start: int
    """Element at the beginning of the axis."""
    step: int
    """Distance between elements; negative if the axis is reversed."""


@dataclass(frozen=True, slots=True, eq=False)
class IndexArrayMap:
    """Elements of a dimension by a list that has some of the axes of the result."""

    axes: tuple[int, ...]
    """The axes of the result, in ascending order."""
    positions: np.ndarray
    """Elements, in the shape of these axes; at least one axis."""


Map = ConstantMap | StridedMap | IndexArrayMap
"""The elements of one dimension that a selection takes."""


@dataclass(frozen=True, eq=False)
class IndexTransform:
    """Map from each element of a result to an element of an array.

    Examples
    --------
    >>> rows = parse_numpy(np.s_[::-1, None, 2:6], (10, 8))
    >>> rows.shape
    (10, 1, 4)
    >>> rows.then(parse_outer(([3, 1], 0, -1), rows.shape)).maps
    (IndexArrayMap(axes=(0,), positions=array([6, 8])), ConstantMap(position=5))
    """

    shape: Shape
    """Shape of the result."""
    maps: tuple[Map, ...]
    """One map for each dimension of the array."""

    @staticmethod
    def identity(shape: Shape) -> IndexTransform:
        """Return the selection of the whole array, unchanged."""
        return IndexTransform(shape, tuple(StridedMap(axis, 0, 1) for axis in range(len(shape))))

    @property
    def ndim(self) -> int:
        """Axes of the result."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Elements of the result."""
        return prod(self.shape)

    @cached_property
    def has_lists(self) -> bool:
        """True if a dimension is indexed by a list."""
        return any(isinstance(one, IndexArrayMap) for one in self.maps)

    def then(self, following: IndexTransform) -> IndexTransform:
        """Return a selection of this selection's result, as one selection of the array."""
        return IndexTransform(
            following.shape, tuple(_composed(one, following) for one in self.maps)
        )

    def transposed(self, axes: Sequence[int] | None = None) -> IndexTransform:
        """Return the selection with its axes in another order; reversed by default.

        Raises
        ------
        SelectionError
            If `axes` is not a permutation.
        """
        given = range(self.ndim)[::-1] if axes is None else axes
        order = [axis + self.ndim if axis < 0 else axis for axis in given]
        if sorted(order) != list(range(self.ndim)):
            raise SelectionError(
                f"axes {tuple(given)} are no permutation of the {self.ndim} axes of shape "
                f"{self.shape}."
            )
        place = {axis: at for at, axis in enumerate(order)}
        maps = tuple(StridedMap(place[axis], 0, 1) for axis in range(self.ndim))
        return self.then(IndexTransform(tuple(self.shape[axis] for axis in order), maps))

    def within(self, region: Region) -> IndexTransform:
        """Return a region of the result, given by slices with bounds and a positive step."""
        shape = tuple(len(range(s.start, s.stop, s.step or 1)) for s in region)
        maps = tuple(StridedMap(axis, s.start, s.step or 1) for axis, s in enumerate(region))
        return self.then(IndexTransform(shape, maps))

    @cached_property
    def token(self) -> str:
        """Token that identifies this selection; the same in every process."""
        digest = sha256(repr(self.shape).encode())
        for one in self.maps:
            if isinstance(one, IndexArrayMap):
                digest.update(f"{one.axes}{one.positions.shape}".encode())
                digest.update(np.ascontiguousarray(one.positions, "<i8").tobytes())
            else:
                digest.update(repr(one).encode())
        return digest.hexdigest()[:32]


def _composed(one: Map, following: IndexTransform) -> Map:
    if isinstance(one, ConstantMap):
        return one
    if isinstance(one, StridedMap):
        inner = following.maps[one.axis]
        if isinstance(inner, ConstantMap):
            return ConstantMap(one.start + one.step * inner.position)
        if isinstance(inner, StridedMap):
            return StridedMap(inner.axis, one.start + one.step * inner.start, one.step * inner.step)
        return IndexArrayMap(inner.axes, one.start + one.step * inner.positions)
    inners = [following.maps[axis] for axis in one.axes]
    axes = tuple(sorted({axis for inner in inners for axis in axes_of(inner)}))
    positions = one.positions[
        tuple(
            _evaluated(inner, axes, following.shape, length)
            for inner, length in zip(inners, one.positions.shape, strict=True)
        )
    ]
    return IndexArrayMap(axes, positions) if axes else ConstantMap(int(positions))


def axes_of(one: Map) -> tuple[int, ...]:
    """Return the axes of the result that an element depends on."""
    if isinstance(one, ConstantMap):
        return ()
    return (one.axis,) if isinstance(one, StridedMap) else one.axes


def axis_names(transform: IndexTransform, names: Sequence[str | None]) -> tuple[str | None, ...]:
    """Return, for each axis of a result, the name of its only dimension; None for other axes.

    Examples
    --------
    >>> axis_names(parse_numpy(np.s_[0, None, ::2], (4, 4)), ["x", "y"])
    (None, 'y')
    """
    found: dict[int, list[str | None]] = {}
    for one, name in zip(transform.maps, names, strict=bool(names)):
        for axis in axes_of(one):
            found.setdefault(axis, []).append(name if len(axes_of(one)) == 1 else None)
    alone = {axis: of_axis[0] for axis, of_axis in found.items() if len(of_axis) == 1}
    return tuple(alone.get(axis) for axis in range(transform.ndim)) if names else ()


def _evaluated(one: Map, axes: tuple[int, ...], shape: Shape, length: int) -> Any:
    """Return indices as NumPy broadcasts them, or a slice if there is a single axis."""
    if isinstance(one, ConstantMap):
        return one.position
    if isinstance(one, StridedMap) and len(axes) == 1:
        count = shape[one.axis]
        if not count:
            return slice(0, 0)
        stop = one.start + one.step * count
        if one.step > 0 and stop - one.step < length:
            return slice(one.start, stop, one.step)
    positions = positions_of(one, shape)
    own = axes_of(one)
    return positions.reshape([shape[axis] if axis in own else 1 for axis in axes])


def positions_of(one: Map, shape: Shape) -> np.ndarray:
    """Return the elements of a dimension, in the shape of the axes that they depend on."""
    if isinstance(one, IndexArrayMap):
        return one.positions
    if isinstance(one, ConstantMap):
        return np.array(one.position, np.int64)
    return one.start + one.step * np.arange(shape[one.axis], dtype=np.int64)


# --- from an index --------------------------------------------------------------------------------


_Steps = tuple[int, int, int]
"""First element, step and number of elements of a slice."""
_Entry = None | _Steps | np.ndarray
"""A new axis, a slice, or positions (without dimensions: an integer)."""


def parse_numpy(key: object, shape: Shape) -> IndexTransform:
    """Parse an index as NumPy does: lists are broadcast against each other.

    Their axes stay at their position in the index, or come first if other items separate the lists,
    even an Ellipsis for no dimension at all.

    Raises
    ------
    SelectionError
        If it is out of bounds, of an unsupported kind, or does not fit the shape.

    Examples
    --------
    >>> parse_numpy(np.s_[:, [1, 2, 0], [0, 1, 1]], (5, 6, 7)).shape
    (5, 3)
    >>> parse_numpy(np.s_[[1, 2, 0], :, [0, 1, 1]], (5, 6, 7)).shape
    (3, 6)
    """
    entries = _entries(key, shape)
    listed = [at for at, entry in enumerate(entries) if isinstance(entry, np.ndarray)]
    some = any(isinstance(entry, np.ndarray) and entry.ndim for entry in entries)
    apart = some and (
        listed[-1] - listed[0] >= len(listed) or listed[0] < _before_ellipsis(key) <= listed[-1]
    )
    return _broadcast(entries, first=apart)


def _before_ellipsis(key: object) -> int:
    """Return the number of entries before the Ellipsis of an index; 0 if there is none."""
    items = key if isinstance(key, tuple) else ()
    at = next((at for at, item in enumerate(items) if item is Ellipsis), 0)
    arrays = (_array_of(item) if is_list(item) else item for item in items[:at])
    masks = (item for item in arrays if isinstance(item, np.ndarray) and item.dtype == bool)
    return at + sum(mask.ndim - 1 for mask in masks)


def parse_outer(key: object, shape: Shape) -> IndexTransform:
    """Parse an index whose lists, of one dimension each, get an axis of their own.

    Raises
    ------
    SelectionError
        If it is out of bounds, of an unsupported kind, or does not fit the shape.

    Examples
    --------
    >>> parse_outer(np.s_[[1, 2, 0], :, [0, 1]], (5, 6, 7)).shape
    (3, 6, 2)
    """
    lengths: list[int] = []
    maps: list[Map] = []
    for entry in _entries(key, shape, flat=True):
        if entry is None:
            lengths.append(1)
        elif isinstance(entry, tuple):
            start, step, count = entry
            maps.append(StridedMap(len(lengths), start, step))
            lengths.append(count)
        elif entry.ndim:
            maps.append(IndexArrayMap((len(lengths),), entry))
            lengths.append(len(entry))
        else:
            maps.append(ConstantMap(int(entry)))
    return IndexTransform(tuple(lengths), tuple(maps))


def parse_points(key: object, shape: Shape) -> IndexTransform:
    """Parse points: lists are broadcast against each other, and their axes come first.

    Raises
    ------
    SelectionError
        If it is out of bounds, of an unsupported kind, or does not fit the shape.

    Examples
    --------
    >>> parse_points(np.s_[[1, 2, 0], :, [0, 1, 1]], (5, 6, 7)).shape
    (3, 6)
    """
    return _broadcast(_entries(key, shape), first=True)


def parse_blocks(key: object, grid: Grid) -> IndexTransform:
    """Parse coordinates of whole cells of a grid: integers and slices; no dimension is dropped.

    Raises
    ------
    SelectionError
        If it is out of bounds, or of an unsupported kind.

    Examples
    --------
    >>> parse_blocks(np.s_[1, :2], Grid.regular((5, 9), (3, 4))).shape
    (2, 8)
    """
    items = key if isinstance(key, tuple) else (key,)
    for item in items:
        if (
            item is None
            or is_list(item)
            or (isinstance(item, slice) and item.step not in {None, 1})
        ):
            raise SelectionError(
                f"{item!r} is no index of blocks: expected integers, slices without a step, or "
                "'...'."
            )
    lengths: list[int] = []
    maps: list[Map] = []
    for axis, (item, dimension) in enumerate(
        zip(expanded(items, grid.shape), grid.dimensions, strict=True)
    ):
        if isinstance(item, slice):
            first, _, count = _steps(item, dimension.count, axis)
        else:
            first, count = position_of(item, dimension.count, axis), 1
        start = dimension.start(first)
        maps.append(StridedMap(axis, start, 1))
        lengths.append(max(min(dimension.start(first + count), dimension.extent) - start, 0))
    return IndexTransform(tuple(lengths), tuple(maps))


def _broadcast(entries: Sequence[_Entry], *, first: bool) -> IndexTransform:
    """Broadcast lists together; their axes come first, or at the position of the first list."""
    listed = [entry.shape for entry in entries if isinstance(entry, np.ndarray)]
    try:
        common = np.broadcast_shapes(*listed)
    except ValueError as error:
        raise SelectionError(
            f"index arrays of shapes {', '.join(map(str, listed))} cannot be broadcast together; "
            "oindex takes each of them along its own dimension."
        ) from error
    lengths = list(common) if first else []
    base = 0 if first else None
    maps: list[Map] = []
    for entry in entries:
        if entry is None:
            lengths.append(1)
        elif isinstance(entry, tuple):
            start, step, count = entry
            maps.append(StridedMap(len(lengths), start, step))
            lengths.append(count)
        else:
            if base is None:
                base = len(lengths)
                lengths.extend(common)
            maps.append(_listed(entry, base + len(common) - entry.ndim))
    return IndexTransform(tuple(lengths), tuple(maps))


def _listed(positions: np.ndarray, first_axis: int) -> Map:
    """Return positions along axes from some axis on, without axes of length 1."""
    axes = tuple(first_axis + at for at, n in enumerate(positions.shape) if n != 1)
    if not axes:
        return ConstantMap(int(positions.reshape(())))
    return IndexArrayMap(axes, positions.reshape([n for n in positions.shape if n != 1]))


def _entries(key: object, shape: Shape, *, flat: bool = False) -> list[_Entry]:
    """Return the items of an index, one for each dimension of the array and each new axis."""
    given = key if isinstance(key, tuple) else (key,)
    items = [_array_of(item) if is_list(item) else item for item in given]
    entries: list[_Entry] = []
    axis = 0
    for item in expanded(tuple(items), shape):
        if item is None:
            entries.append(None)
            continue
        if isinstance(item, slice):
            entries.append(_steps(item, shape[axis], axis))
        elif not isinstance(item, np.ndarray) or not item.ndim:
            entries.append(np.array(position_of(item, shape[axis], axis), np.int64))
        else:
            if flat and item.ndim > 1:
                raise SelectionError(
                    f"index array of shape {item.shape} in dimension {axis}: an orthogonal "
                    "selection takes lists of one dimension; vindex takes any, and broadcasts them."
                )
            found = _from_mask(item, shape, axis) if item.dtype == bool else [item]
            entries.extend(
                positions if item.dtype == bool else _checked(positions, shape[at], at)
                for at, positions in enumerate(found, axis)
            )
            axis += len(found)
            continue
        axis += 1
    return entries


def _array_of(item: Any) -> np.ndarray:
    graph = getattr(item, "__dask_graph__", None)
    if graph is not None and graph() is not None:
        raise SelectionError(
            "a lazy array cannot be an index here, because where to read must be known: compute it "
            "first, or index the dask array (to_dask)."
        )
    try:
        array = np.asarray(item)
    except ValueError as error:
        raise SelectionError(f"index {item!r} is no array: {error}.") from error
    if isinstance(item, list | tuple) and not array.size:
        array = array.astype(np.int64)  # an empty list selects nothing, as in NumPy
    if array.dtype != bool and array.dtype.kind not in "iu":
        raise SelectionError(
            f"index array of type {array.dtype}: expected integers or booleans, as NumPy does."
        )
    return array


def _from_mask(mask: np.ndarray, shape: Shape, axis: int) -> list[np.ndarray]:
    if mask.shape != shape[axis : axis + mask.ndim]:
        raise SelectionError(
            f"boolean mask of shape {mask.shape} from dimension {axis} on, where the array has "
            f"shape {shape[axis : axis + mask.ndim]}: they must be the same."
        )
    return _positions_of_true(mask)


def _positions_of_true(mask: np.ndarray) -> list[np.ndarray]:
    """Return ``mask.nonzero()``, which NumPy finds dimension by dimension for each element.

    Finding the numbers of the elements, and dividing these, takes a sixth of the time where one
    element in a hundred is true, and half where one in two is.
    """
    (numbers,) = mask.reshape(-1).nonzero()
    if mask.size <= np.iinfo(np.uint32).max:
        numbers = numbers.astype(np.uint32)  # which are divided in a third of the time
    found = []
    for length in mask.shape[:0:-1]:
        above = numbers // length
        found.append((numbers - above * length).astype(np.int64))
        numbers = above
    return [numbers.astype(np.int64), *reversed(found)]


def _checked(positions: np.ndarray, length: int, axis: int) -> np.ndarray:
    """Return positions counted from 0, in memory that is not the caller's."""
    if not positions.size:
        return np.empty(positions.shape, np.int64)
    lowest, highest = int(positions.min()), int(positions.max())
    if lowest < -length or highest >= length:
        outside = highest if highest >= length else lowest
        raise SelectionError(
            f"index {outside} is out of bounds for dimension {axis} with {length} elements."
        )
    counted = positions.astype(np.int64)
    if lowest < 0:
        counted[counted < 0] += length
    return counted


def _steps(item: slice, length: int, axis: int) -> _Steps:
    try:
        start, stop, step = item.indices(length)
    except (TypeError, ValueError) as error:
        raise SelectionError(f"slice {item!r} in dimension {axis}: {error}.") from error
    count = len(range(start, stop, step))
    return (start, step, count) if count else (0, 1, 0)
