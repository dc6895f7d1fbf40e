"""NumPy's basic indexing, turned into a region and an index that finishes the selection.

``array[5, ::-2, None]`` becomes a region (slices of positive step, one per dimension) for the chunk
arithmetic, and an index that NumPy applies to the values read. That index drops the integer
dimensions, reverses those with negative steps and adds the new axes. Pure; knows shapes only.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import numpy as np

from zarr_dask._util.keywords import did_you_mean
from zarr_dask.errors import GridError, SelectionError

if TYPE_CHECKING:
    from zarr_dask.grid.grid import Cells, Region, Shape

__all__ = [
    "Selection",
    "assignable",
    "checked_cells",
    "checked_region",
    "checked_shape",
    "expanded",
    "has_lists",
    "index_of",
    "is_list",
    "names_array",
    "parse_basic",
    "parse_plain",
    "position_of",
    "split_fields",
]


Method = TypeVar("Method", bound=Callable[..., Any])


def names_array(where: Callable[[Any], str]) -> Callable[[Method], Method]:
    """Name the array in errors of the selection that a method is given.

    Parameters
    ----------
    where
        Returns store and path, given the object that has the method.
    """

    def decorate(method: Method) -> Method:
        @wraps(method)
        def named(self: Any, *args: Any, **options: Any) -> Any:
            try:
                return method(self, *args, **options)
            except SelectionError as error:
                raise error.of(where(self)) from error.__cause__

        return cast("Method", named)

    return decorate


class Selection(NamedTuple):
    """A basic selection of an array of known shape."""

    region: Region
    """Region to read, dimension by dimension."""
    finish: tuple[Any, ...]
    """Index that NumPy applies to the region to give the result."""
    plain: bool
    """True if the region is the result, so that `finish` need not be applied."""
    region_shape: Shape
    """Shape of the region."""

    @property
    def shape(self) -> Shape:
        """Shape of the result."""
        lengths = iter(self.region_shape)
        shape: list[int] = []
        for item in self.finish:
            if item is None:
                shape.append(1)
            elif item is not Ellipsis:
                length = next(lengths)
                if isinstance(item, slice):
                    shape.append(length)
        return tuple(shape)

    def spread(self, value: np.ndarray) -> np.ndarray:
        """Return a view of `value`, broadcast to the result, in the shape of the region.

        Raises
        ------
        ValueError
            Raised by NumPy if the value cannot be broadcast.
        """
        back: list[Any] = []
        for item in self.finish:
            if item is None:
                back.append(0)
            elif isinstance(item, slice):
                back.append(item)
            elif item is not Ellipsis:
                back.append(None)
        # the Ellipsis keeps a 0-d result an array; the index alone would give an element
        view: np.ndarray = assignable(value, self.shape)[*back, ...]
        return view


def assignable(value: np.ndarray, shape: Shape) -> np.ndarray:
    """Return `value` broadcast as in NumPy's assignment, which may drop leading axes of length 1.

    Raises
    ------
    GridError
        If the value cannot be broadcast.
    """
    given = value.shape
    if given == shape:
        return value
    extra = value.ndim - len(shape)
    if extra > 0 and all(n == 1 for n in given[:extra]):
        value = value.reshape(given[extra:])
    try:
        return np.broadcast_to(value, shape)
    except ValueError as error:
        raise GridError(
            f"values of shape {given} could not be broadcast to the shape {shape} selected: "
            "each of their dimensions, from the last on, must have its length, or 1."
        ) from error


def parse_basic(key: object, shape: Shape) -> Selection:
    """Parse integers, slices, Ellipsis and newaxis as NumPy does.

    Raises
    ------
    SelectionError
        For an index out of bounds, too many indices, a zero step, or an index of another kind.

    Examples
    --------
    >>> parse_basic((5, slice(None, None, -2)), (10, 4)).region
    (slice(5, 6, 1), slice(1, 4, 2))
    """
    plain = parse_plain(key, shape)
    if plain is not None:
        return Selection(plain[0], (slice(None),) * len(shape), True, plain[1])
    return _parsed(key if isinstance(key, tuple) else (key,), shape)


def parse_plain(key: object, shape: Shape) -> tuple[Region, Shape] | None:
    """Parse nearly all selections quickly: everything, or a forward slice of each axis.

    Returns
    -------
    tuple
        The region and its shape, which is that of the result. None for any other selection, which
        `parse_basic` or the caller parses or rejects, and for an array without dimensions.

    Examples
    --------
    >>> parse_plain((slice(2, 5), slice(None)), (10, 4))
    ((slice(2, 5, 1), slice(0, 4, 1)), (3, 4))
    >>> parse_plain((5, slice(None)), (10, 4)) is None
    True
    """
    given = key if isinstance(key, tuple) else (key,)
    if len(given) != len(shape) or not shape:
        return _everything(shape) if len(given) == 1 and given[0] is Ellipsis and shape else None
    region: list[slice] = []
    lengths: list[int] = []
    for item, length in zip(given, shape):  # noqa: B905  (as many; strict= takes its time)
        if type(item) is not slice:
            return None
        try:
            start, stop, step = item.indices(length)
        except (TypeError, ValueError):
            return None  # the general parser explains the error
        if step != 1 or start >= stop:
            return None
        region.append(slice(start, stop, 1))
        lengths.append(stop - start)
    return tuple(region), tuple(lengths)


@lru_cache(maxsize=64)
def _everything(shape: Shape) -> tuple[Region, Shape]:
    return tuple(slice(0, length, 1) for length in shape), shape


def _parsed(given: tuple[Any, ...], shape: Shape) -> Selection:
    usual = len(given) == len(shape) and _USUAL.issuperset(map(type, given))
    items = given if usual else expanded(given, shape)
    region: list[slice] = []
    finish: list[Any] = []
    lengths: list[int] = []
    plain = True
    for item in items:
        if item is None:
            finish.append(None)
            plain = False
            continue
        axis = len(region)
        if isinstance(item, slice):
            forward, turned, length = _slice(item, shape[axis], axis)
            region.append(forward)
            finish.append(_TURNED if turned else _ALL)
            lengths.append(length)
            plain = plain and not turned
        else:
            position = position_of(item, shape[axis], axis)
            region.append(slice(position, position + 1, 1))
            finish.append(0)
            lengths.append(1)
            plain = False
    if not usual and any(item is Ellipsis for item in given):
        finish.append(Ellipsis)  # a result without dimensions stays an array
    return Selection(tuple(region), tuple(finish), plain, tuple(lengths))


_USUAL = frozenset({int, slice})
_ALL, _TURNED = slice(None), slice(None, None, -1)


def checked_region(region: object, shape: Shape) -> Region:
    """Return a region given by a caller: slices (or integers) that keep every dimension.

    Raises
    ------
    SelectionError
        If it is not made of slices of positive step.

    Examples
    --------
    >>> checked_region((slice(2, None),), (10, 4))
    (slice(2, 10, 1), slice(0, 4, 1))
    """
    items = region if isinstance(region, tuple) else () if region is None else (region,)
    for item in items:
        if hasattr(item, "__len__") and not isinstance(item, str | Mapping):
            raise SelectionError(
                f"region={region!r:.200}: a {type(item).__name__} is no region, which has a slice "
                "for each dimension, as (slice(0, 10), ...). Elements at positions are written by "
                "array.oindex[positions] = values."
            )
    selection = parse_basic(() if region is None else region, shape)
    if not selection.plain:
        raise SelectionError(
            f"region {region!r} of an array of shape {shape} must be made of slices with a "
            "positive step, as slice(3, 4) for the element 3, of values[None]."
        )
    return selection.region


def expanded(items: tuple[Any, ...], shape: Shape) -> list[Any]:
    """Replace the Ellipsis of an index, and missing items, by slices.

    Raises
    ------
    SelectionError
        If there are more items than dimensions, or more than one Ellipsis.
    """
    consumed = sum(_consumed(item) for item in items)
    if consumed > len(shape):
        raise SelectionError(
            f"{consumed} indices for an array of {len(shape)} dimensions (shape {shape})."
        )
    ellipses = sum(item is Ellipsis for item in items)
    if ellipses > 1:
        raise SelectionError("an index can hold one Ellipsis ('...') only.")
    filler = [slice(None)] * (len(shape) - consumed)
    if not ellipses:
        return [*items, *filler]
    at = next(i for i, item in enumerate(items) if item is Ellipsis)
    return [*items[:at], *filler, *items[at + 1 :]]


def _consumed(item: object) -> int:
    """Return the number of dimensions that an item indexes; for a boolean mask, its own."""
    if item is None or item is Ellipsis:
        return 0
    is_mask = isinstance(item, np.ndarray) and item.dtype == bool and item.ndim > 0
    return item.ndim if is_mask else 1  # type: ignore[attr-defined]


def _slice(item: slice, length: int, axis: int) -> tuple[slice, bool, int]:
    """Return the slice with a positive step, True if the result must be reversed, its length."""
    try:
        start, stop, step = item.indices(length)
    except (TypeError, ValueError) as error:
        raise SelectionError(f"slice {item!r} in dimension {axis}: {error}.") from error
    count = len(range(start, stop, step))
    if count == 0:
        return slice(0, 0, 1), False, 0
    if step > 0:
        return slice(start, start + (count - 1) * step + 1, step), False, count
    return slice(start + (count - 1) * step, start + 1, -step), True, count


def position_of(item: object, length: int, axis: int) -> int:
    """Return an integer of an index, counted from the beginning of its dimension.

    Raises
    ------
    SelectionError
        If it is out of bounds, or not an integer.
    """
    if type(item) is int and 0 <= item < length:
        return item
    if isinstance(item, bool | np.bool_) or (isinstance(item, np.ndarray) and item.ndim > 0):
        raise _not_basic(item, axis)
    try:
        position = operator.index(item)  # type: ignore[arg-type]
    except TypeError as error:
        raise _not_basic(item, axis) from error
    if not -length <= position < length:
        raise SelectionError(
            f"index {position} is out of bounds for dimension {axis} with {length} elements."
        )
    return position % length if length else position


def _not_basic(item: object, axis: int) -> SelectionError:
    if isinstance(item, str | dict):
        return SelectionError(
            f"{item!r} names no elements: this is an array, not a group, and its index takes "
            "integers and slices. region= takes names of dimensions as {'time': slice(0, 10)}; "
            "zarr_dask.open_dataset gives variables that are indexed by name."
        )
    return SelectionError(
        f"index of type {type(item).__name__} in dimension {axis}: expected an integer, a slice, "
        "'...' or None. Read the region that holds what you need and index the result with NumPy, "
        "or select from the dask array (array.to_dask())."
    )


def checked_shape(values: object, ndim: int, what: str) -> Shape:
    """Return lengths given by a caller as one integer or a sequence of them.

    Raises
    ------
    GridError
        If they are not `ndim` positive integers.
    """
    items = (values,) * ndim if isinstance(values, int | np.integer) else values
    try:
        lengths = tuple(index_of(item) for item in items)  # type: ignore[attr-defined]
    except TypeError as error:
        raise GridError(f"{what}={values!r}: expected integers, one per dimension.") from error
    if len(lengths) != ndim or any(n < 1 for n in lengths):
        raise GridError(
            f"{what}={values!r}: expected {ndim} integers of at least 1, one per dimension."
        )
    return lengths


def index_of(value: object) -> int:
    """Return an integer as `operator.index` does, but reject truth values.

    Raises
    ------
    TypeError
        If it is not an integer.
    """
    if isinstance(value, bool):
        raise TypeError(f"{value} is no number")
    return operator.index(value)  # type: ignore[arg-type]


def checked_cells(values: object, ndim: int, what: str) -> Cells:
    """Return lengths as `checked_shape`; the sizes of all cells may be given instead of a length.

    Raises
    ------
    GridError
        If they are not positive integers, or not one item per dimension.

    Examples
    --------
    >>> checked_cells([[10, 20, 30], 16], 2, "chunks")
    ((10, 20, 30), 16)
    """
    if not isinstance(values, Sequence) or not any(isinstance(item, Sequence) for item in values):
        return checked_shape(values, ndim, what)
    if len(values) != ndim:
        raise GridError(f"{what}={values!r}: expected {ndim} items, one per dimension.")
    return tuple(
        _checked_sizes(item, what)
        if isinstance(item, Sequence)
        else checked_shape(item, 1, what)[0]
        for item in values
    )


def _checked_sizes(sizes: Sequence[Any], what: str) -> tuple[int, ...]:
    if len(sizes) == 1 and not sizes[0]:
        return (0,)
    return checked_shape(sizes, len(sizes), what)


def split_fields(key: object, known: Sequence[str]) -> tuple[str | list[str], tuple[Any, ...]]:
    """Return the fields of structured elements that an index names, and the rest of the index.

    Raises
    ------
    SelectionError
        If there is no such field.

    Examples
    --------
    >>> split_fields((slice(0, 2), "x"), ["x", "y"]), split_fields(["x", "y"], ["x", "y"])
    (('x', (slice(0, 2, None),)), (['x', 'y'], ()))
    """
    items = key if isinstance(key, tuple) else (key,)
    named = [isinstance(item, str) or _is_names(item) for item in items]
    given = [item for item, is_name in zip(items, named, strict=True) if is_name]
    names = [name for item in given for name in ([item] if isinstance(item, str) else item)]
    for name in names:
        if name not in known:
            raise SelectionError(
                f"{name!r} is no field of the elements, which have {', '.join(known)}."
                f"{did_you_mean(name, known)}"
            )
    rest = tuple(item for item, is_name in zip(items, named, strict=True) if not is_name)
    return (names[0] if len(given) == 1 and isinstance(given[0], str) else names), rest


def _is_names(item: object) -> bool:
    return isinstance(item, list) and bool(item) and all(isinstance(name, str) for name in item)


def has_lists(key: object) -> bool:
    """True if an index holds lists, arrays or masks, which exceed NumPy's basic indexing."""
    items = key if isinstance(key, tuple) else (key,)
    return any(map(is_list, items))


_SINGLE = (int, slice, np.generic)
_SEQUENCES = (list, tuple, range)


def is_list(item: object) -> bool:
    """True if an item of an index is a list, an array or a mask."""
    if item is None or item is Ellipsis or isinstance(item, _SINGLE):
        return False
    if isinstance(item, _SEQUENCES):
        return True
    ndim = getattr(item, "ndim", None)
    return isinstance(ndim, int) and ndim > 0
