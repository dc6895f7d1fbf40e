"""Arrays in one call: values that are saved and loaded, and arrays of one value."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import wraps
from os import PathLike
from typing import Any, ParamSpec, Unpack

import numpy as np

from zarr_dask._util.keywords import explained_by, takes_habits
from zarr_dask.array.array import Array
from zarr_dask.array.create import given_values
from zarr_dask.array.create_options import CreateOptions, LayoutOptions, takes_codec_steps
from zarr_dask.dtypes.base import DefaultFill
from zarr_dask.errors import NodeExistsError
from zarr_dask.formats.base import ReadOptions
from zarr_dask.hierarchy.create_node import create_array
from zarr_dask.hierarchy.group import Group, create_group
from zarr_dask.hierarchy.open_node import open as open_node
from zarr_dask.hierarchy.zip_target import open_target_or_archive
from zarr_dask.stores.open import Location

__all__ = [
    "array",
    "empty",
    "empty_like",
    "full",
    "full_like",
    "load",
    "ones",
    "ones_like",
    "save",
    "zeros",
    "zeros_like",
]

_MORE = (*CreateOptions.__annotations__, "path", "format", "storage_options")
_OPTIONS = frozenset(
    {*_MORE, "codecs", "compressor", "compressors", "filters", "serializer", "dtype", "mode"}
) - {"data", "shape"}
_HABITS = {
    "attrs": "attributes",
    "component": "path",
    "dims": "dimension_names",
    "name": "path",
    "store": "url",
    "zarr_format": "format",
}


_DTYPE = re.compile("[<>|=]?[?bBiufcSUVmM][0-9]+|bool|(u?int|float|complex)[0-9]*|str")
"""Data types in NumPy's words, which are hardly meant as the names of files."""

P = ParamSpec("P")


def _check_url(url: object) -> None:
    """Refuse a data type where the location belongs, as NumPy has it.

    Raises
    ------
    TypeError
        If it is one.
    """
    if isinstance(url, str) and _DTYPE.fullmatch(url):
        raise TypeError(
            f"{url!r} names a data type: pass dtype={url!r}, or url='./{url}' for a location of "
            "that name."
        )


def _shape_first(function: Callable[P, Array]) -> Callable[P, Array]:
    """Refuse a location where the shape belongs, whatever else is given."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Array:
        if args and isinstance(args[0], str | PathLike):
            raise TypeError(
                f"{args[0]!r} is no shape: the shape comes first, the location second or as url=."
            )
        return function(*args, **kwargs)

    return call


class PlaceOptions(LayoutOptions, total=False):
    """Keywords of `zarr_dask.create_array` besides shape, data type and values."""

    path: str
    format: str | None
    overwrite: bool
    storage_options: Mapping[str, Any] | None


class ArrayOptions(PlaceOptions, total=False):
    """Keywords of `zarr_dask.create_array` besides shape and values."""

    dtype: Any
    fill_value: Any


class ZerosOptions(PlaceOptions, total=False):
    """Keywords of `zeros_like` and its sisters: what is not taken from the other array."""

    shape: Any
    dtype: Any


@takes_codec_steps
@takes_habits(_MORE, **_HABITS)
def array(data: Any, url: Location | Group | None = None, **options: Unpack[ArrayOptions]) -> Array:
    """Create an array of values; in memory if no location is given.

    Parameters
    ----------
    data
        A NumPy array, a scalar, or nested lists.
    url
        Location of the array, as for `create_array`; None for memory.
    **options
        As for `create_array`.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> zd.array([[1, 2], [3, 4]], chunks=1)[1]
    array([3, 4])
    """
    _check_url(url)
    place: Any = {} if url is None else url
    return create_array(place, data=data, **options)


@_shape_first
@takes_codec_steps
@takes_habits(_MORE, **_HABITS)
def full(
    shape: Any,
    fill_value: Any,
    url: Location | Group | None = None,
    *,
    dtype: Any = None,
    **options: Unpack[PlaceOptions],
) -> Array:
    """Create an array whose elements are all the fill value; no chunk is stored.

    Parameters
    ----------
    shape
        Elements along each dimension.
    fill_value
        The value.
    url
        Location of the array, as for `create_array`; None for memory.
    dtype
        Data type; that of the value by default.
    **options
        As for `create_array`.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> zd.full((2, 2), 7.5)[...].tolist()
    [[7.5, 7.5], [7.5, 7.5]]
    """
    _check_url(url)
    place: Any = {} if url is None else url
    wanted = np.asarray(fill_value).dtype if dtype is None else dtype
    return create_array(place, shape=shape, dtype=wanted, fill_value=fill_value, **options)


@_shape_first
@takes_codec_steps
@takes_habits(_MORE, **_HABITS)
def zeros(
    shape: Any,
    url: Location | Group | None = None,
    *,
    dtype: Any = "f8",
    **options: Unpack[PlaceOptions],
) -> Array:
    """Create an array of zeros; no chunk is stored. The arguments are those of `full`.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> zd.zeros(3)[...]
    array([0., 0., 0.])
    """
    return full(shape, 0, url, dtype=dtype, **options)


@_shape_first
@takes_codec_steps
@takes_habits(_MORE, **_HABITS)
def empty(
    shape: Any,
    url: Location | Group | None = None,
    *,
    dtype: Any = "f8",
    **options: Unpack[PlaceOptions],
) -> Array:
    """Create an array to be written: zeros until then, or ``NaT``, as no element is undefined.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> zd.empty((2, 3), dtype="i4").shape
    (2, 3)
    """
    return full(shape, DefaultFill.OF_DTYPE, url, dtype=dtype, **options)


@_shape_first
@takes_codec_steps
@takes_habits(_MORE, **_HABITS)
def ones(
    shape: Any,
    url: Location | Group | None = None,
    *,
    dtype: Any = "f8",
    **options: Unpack[PlaceOptions],
) -> Array:
    """Create an array of ones; no chunk is stored. The arguments are those of `full`.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> zd.ones(3, dtype="i4")[...]
    array([1, 1, 1], dtype=int32)
    """
    return full(shape, 1, url, dtype=dtype, **options)


def _like(other: Any) -> dict[str, Any]:
    """Return shape, data type and, of an array in a store, chunks, shards and codecs."""
    if not isinstance(other, Array):
        values = other if hasattr(other, "shape") and hasattr(other, "dtype") else np.asarray(other)
        return {"shape": values.shape, "dtype": values.dtype}
    return {
        "shape": other.shape,
        "dtype": other.meta.data_type,
        "chunks": other.chunks,
        "shards": other.shards,
        "dimension_names": other.dimension_names,
        "format": other.format,
    }


@takes_codec_steps
@takes_habits((*_MORE, "shape", "dtype"), **_HABITS)
def full_like(
    other: Any,
    fill_value: Any,
    url: Location | Group | None = None,
    **options: Unpack[ZerosOptions],
) -> Array:
    """Create an array like another one, whose elements are all the fill value.

    Parameters
    ----------
    other
        An array: shape and data type are taken from it, and from an array in a store also chunks,
        shards, names of dimensions and format.
    fill_value
        The value.
    url
        Location of the array, as for `create_array`; None for memory.
    **options
        As for `create_array`, instead of what is taken from `other`.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> a = zd.zeros((6, 4), chunks=(2, 4), dtype="i2")
    >>> b = zd.full_like(a, 3)
    >>> b.chunks, b[0]
    ((2, 4), array([3, 3, 3, 3], dtype=int16))
    """
    _check_url(url)
    place: Any = {} if url is None else url
    wanted: dict[str, Any] = {**_like(other), **options}
    return create_array(place, fill_value=fill_value, **wanted)


@takes_codec_steps
@takes_habits((*_MORE, "shape", "dtype"), **_HABITS)
def zeros_like(
    other: Any, url: Location | Group | None = None, **options: Unpack[ZerosOptions]
) -> Array:
    """Create an array of zeros like another one, as `full_like` does."""
    return full_like(other, 0, url, **options)


@takes_codec_steps
@takes_habits((*_MORE, "shape", "dtype"), **_HABITS)
def empty_like(
    other: Any, url: Location | Group | None = None, **options: Unpack[ZerosOptions]
) -> Array:
    """Create an array like another one, to be written, as `empty` does."""
    return full_like(other, DefaultFill.OF_DTYPE, url, **options)


@takes_codec_steps
@takes_habits((*_MORE, "shape", "dtype"), **_HABITS)
def ones_like(
    other: Any, url: Location | Group | None = None, **options: Unpack[ZerosOptions]
) -> Array:
    """Create an array of ones like another one, as `full_like` does."""
    return full_like(other, 1, url, **options)


def save(
    url: Location | Group,
    *arrays: Any,
    path: str = "",
    overwrite: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    **named: Any,
) -> None:
    """Save values in memory, in one call: one array, or a group of several.

    Parameters
    ----------
    url
        Location, as for `create_array`; the path of a zip archive makes one, or adds to it.
    *arrays
        NumPy arrays, scalars or nested lists. One alone is the array at the location; several are
        called ``arr_0``, ``arr_1`` and so on in a group, as `numpy.savez` calls them.
    path
        Path below the location.
    overwrite
        Replace what exists.
    storage_options
        Options of the store.
    **named
        Arrays of a group, by name.

    Raises
    ------
    NodeExistsError
        If something exists at the location.
    DataTypeError, TypeError
        If one of them cannot be stored; then nothing is written.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> store = {}
    >>> zd.save(store, salt=[1.0, 2.0], depth=[10, 20])
    >>> zd.load(store)["depth"]
    array([10, 20])
    """
    if not arrays and not named:
        raise TypeError("save() needs values: save(url, values) or save(url, name=values).")
    both = {f"arr_{number}": values for number, values in enumerate(arrays)}
    if both.keys() & named.keys():
        raise NodeExistsError(f"{sorted(both.keys() & named.keys())} name two arrays each.")
    if len(both) == 1 and named and named.keys() <= _OPTIONS:
        raise TypeError(
            f"save() takes arrays by name, and {sorted(named)} are options of create_array: "
            "create_array(url, data=values, ...) takes both."
        )
    with open_target_or_archive(
        url, storage_options, replaces=overwrite and not path, message=f"save {path}".strip()
    ) as (place, options):
        if len(arrays) == 1 and not named:
            create_array(place, path, data=arrays[0], overwrite=overwrite, storage_options=options)
            return
        known = {name: given_values(values)[0] for name, values in {**both, **named}.items()}
        group = create_group(place, path, overwrite=overwrite, storage_options=options)
        for name, values in known.items():
            group.create_array(name, data=values)


@takes_habits()
@explained_by(open_node)
def load(
    url: Location | Array | Group,
    path: str = "",
    storage_options: Mapping[str, Any] | None = None,
    read: ReadOptions | None = None,
) -> Any:
    """Read a whole array into memory, or all arrays directly in a group.

    Parameters
    ----------
    url, path, storage_options, read
        As for `open`.

    Returns
    -------
    numpy.ndarray or dict
        The values; for a group those of each array by name. `open` reads nothing before it is
        asked to.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> store = {}
    >>> zd.save(store, [1, 2, 3])
    >>> zd.load(store)
    array([1, 2, 3])
    """
    node = open_node(url, path, "r", None, storage_options, read)
    if isinstance(node, Array):
        return node[...]
    return {name: one[...] for name, one in node.arrays()}
