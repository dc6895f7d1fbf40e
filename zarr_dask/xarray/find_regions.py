"""Regions of stored datasets to be read, copied or written: by labels, or side by side."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np

from zarr_dask._util.arguments import check_count
from zarr_dask._util.keywords import takes_habits
from zarr_dask.errors import DatasetMismatchError, GridError, LabelNotFoundError
from zarr_dask.formats.base import ReadOptions, normalise_path
from zarr_dask.hierarchy.group import Group
from zarr_dask.hierarchy.open_node import open_group
from zarr_dask.stores.open import Location
from zarr_dask.xarray.stored import StoredGroup

__all__ = ["find_region", "regions"]

_MOST_OBJECTS = 10_000_000  # along one dimension: their borders are listed


@takes_habits()
def find_region(
    url: Location | Group,
    labels: Mapping[str, Any],
    group: str | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
    read: ReadOptions | None = None,
) -> dict[str, slice]:
    """Find the region that labels stand for, to copy, rechunk or write it (``region=``).

    Parameters
    ----------
    url, group
        The group.
    labels
        By dimension a slice of labels, both ends included, or one label, as for
        `xarray.Dataset.sel`. A text is a time, also a part of one such as ``"2000-03"``; where
        labels are numbers it is taken as one. Where labels fall, such as latitudes from north to
        south, either end may come first.
    storage_options, read
        As for `zarr_dask.open`.

    Raises
    ------
    DatasetMismatchError
        If a dimension has no labels, or they are in no order.
    LabelNotFoundError
        If there is no such label, or none in the range.
    TypeError
        If labels are lists, which are no region.

    Examples
    --------
    >>> import numpy as np, xarray as xr
    >>> import zarr_dask as zd
    >>> lat = np.arange(-90, 91, 10)
    >>> store, target = {}, {}
    >>> _ = zd.write_dataset(xr.Dataset({"t": ("lat", lat)}, {"lat": lat}), store)
    >>> north = zd.find_region(store, {"lat": slice(45, None)})
    >>> north
    {'lat': slice(14, 19, None)}
    >>> _ = zd.copy(store, target, region=north)
    >>> zd.open_dataset(target)["lat"].values.tolist()
    [50, 60, 70, 80, 90]
    """
    given = {dim: _one_label(dim, one) for dim, one in _checked(labels).items()}
    stored = _stored(url, group, storage_options, read)
    return {dim: _found(stored, dim, one) for dim, one in given.items()}


@takes_habits()
def regions(
    url: Location | Group,
    n: int,
    group: str | None = None,
    *,
    dim: str | None = None,
    variables: Sequence[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    read: ReadOptions | None = None,
) -> list[dict[str, slice]]:
    """Divide a stored dataset into regions that share no stored object, one for each job.

    Parameters
    ----------
    url, group
        The group.
    n
        Number of regions. There are fewer where there are fewer stored objects.
    dim
        The dimension to divide; by default the first one of the largest variable.
    variables
        Variables that the jobs write; by default all along the dimension, but not its labels.
    storage_options, read
        As for `zarr_dask.open`.

    Raises
    ------
    DatasetMismatchError
        If no variable has the dimension.
    GridError
        If the stored objects of the variables have no border in common.

    Examples
    --------
    >>> import dask.array as da, xarray as xr
    >>> import zarr_dask as zd
    >>> template = xr.Dataset({"t": ("time", da.zeros(100, chunks=10))})
    >>> zd.regions(zd.create_dataset(template, {}), 3)
    [{'time': slice(0, 30, None)}, {'time': slice(30, 70, None)}, {'time': slice(70, 100, None)}]
    """
    check_count("n", n, None)
    stored = _stored(url, group, storage_options, read)
    largest = max(stored.raw.values(), key=lambda one: one.size * bool(one.ndim), default=None)
    if dim is None:
        dim = str(largest.dims[0]) if largest is not None and largest.ndim else ""
    stored.length(dim, "dim")
    names = [name for name in stored.lengths(dim) if name != dim or len(stored.lengths(dim)) == 1]
    if variables is not None:
        names = [name for name in names if name in variables]
        if unknown := sorted(set(variables) - set(names)):
            raise DatasetMismatchError(
                f"{stored.group.where} has no variables {unknown} along {dim!r}."
            )
    borders = reduce(np.intersect1d, [_borders(stored, name, dim) for name in names])
    if n > 1 and len(borders) < 3:
        objects = {name: _length(stored, name, dim) for name in names}
        if any(length < stored.length(dim) for length in objects.values()):
            raise GridError(
                f"stored objects of the variables of {stored.group.where} have no border along "
                f"{dim!r} in common; their lengths are {objects}. Name those that are written with "
                "variables=, or let jobs share objects (partial='compare')."
            )
    cells = len(borders) - 1
    picked = borders[np.round(np.linspace(0, cells, min(n, cells) + 1)).astype(int)].tolist()
    return [{dim: slice(a, b)} for a, b in pairwise(picked)]


def _stored(
    url: Any,
    group: str | None,
    storage_options: Mapping[str, Any] | None,
    read: ReadOptions | None,
) -> StoredGroup:
    path = normalise_path(group)
    return StoredGroup(open_group(url, path, "r", None, storage_options, read))


def _checked(labels: Any) -> Mapping[str, Any]:
    if type(labels).__module__.startswith("xarray."):
        raise TypeError(
            f"labels is a {type(labels).__name__}: expected labels by dimension, as {{'time': "
            "slice('2000', None)}; write_dataset(..., region='auto') finds the region of a dataset."
        )
    if not isinstance(labels, Mapping):
        raise TypeError(
            f"labels={labels!r}: expected a mapping, as {{'time': slice('2000', None)}}."
        )
    return labels


def _one_label(dim: str, wanted: Any) -> Any:
    """Return a slice of labels or one label, which may be an array without dimensions."""
    if isinstance(wanted, slice):
        return wanted
    if isinstance(wanted, Mapping) or np.ndim(wanted):
        raise TypeError(
            f"labels[{dim!r}]={wanted!r:.100}: expected a slice of labels or one label; several "
            "labels are no region. dataset.sel(...) reads them."
        )
    return np.asarray(wanted)[()] if hasattr(wanted, "ndim") else wanted


def _borders(stored: StoredGroup, name: str, dim: Hashable) -> np.ndarray[Any, Any]:
    array = stored.arrays[name]
    dimension = array.meta.grid.dimensions[stored.raw[name].dims.index(dim)]
    if dimension.count > _MOST_OBJECTS:
        raise GridError(
            f"{array.where} has {dimension.count} stored objects along {dim!r}, more than the "
            f"{_MOST_OBJECTS} that are divided among jobs: rechunk it into larger ones."
        )
    return np.concatenate(([0], np.cumsum(dimension.lengths, dtype=np.int64)))


def _length(stored: StoredGroup, name: str, dim: Hashable) -> int:
    return int(stored.arrays[name].write_chunks[stored.raw[name].dims.index(dim)])


def _found(stored: StoredGroup, dim: str, wanted: Any) -> slice:
    at = stored.group.where
    if dim not in stored.raw or stored.raw[dim].dims != (dim,):
        known = sorted(name for name, one in stored.raw.items() if one.dims == (name,))
        raise DatasetMismatchError(
            f"{at} has no labels of {dim!r}; there are labels of {known}. Give slices (region=)."
        )
    index = stored.decoded[dim].to_index()
    if not (index.is_monotonic_increasing or index.is_monotonic_decreasing):
        raise DatasetMismatchError(
            f"the labels of {dim!r} in {at} are in no order, so that no range of them is a region."
        )
    try:
        place = _place(index, wanted)
    except (KeyError, TypeError, ValueError) as error:
        raise LabelNotFoundError(
            f"{dim!r} in {at} has no label {_words(wanted)}{_why(error)}; labels go "
            f"{_extent(index)}."
        ) from error
    if place.start >= place.stop:
        raise LabelNotFoundError(
            f"{dim!r} in {at} has no labels {_words(wanted)}; they go {_extent(index)}."
        )
    return place


def _place(index: Any, wanted: Any) -> slice:
    if isinstance(wanted, slice):
        if wanted.step is not None:
            raise ValueError("a region has no step")
        ends = [_as_label(index, one) for one in (wanted.start, wanted.stop)]
        found: Any = index.slice_indexer(*ends)
        if found.start >= found.stop and index.is_monotonic_decreasing and None not in ends:
            found = index.slice_indexer(*reversed(ends))
    else:
        found = index.get_loc(_as_label(index, wanted))
    if not isinstance(found, slice):
        return slice(int(found), int(found) + 1)
    return slice(*found.indices(len(index))[:2])


def _as_label(index: Any, label: Any) -> Any:
    return float(label) if isinstance(label, str) and index.dtype.kind in "iuf" else label


def _words(wanted: Any) -> str:
    return f"from {wanted.start} to {wanted.stop}" if isinstance(wanted, slice) else repr(wanted)


def _why(error: Exception) -> str:
    """Return the reason, unless it is the label alone, as pandas gives it."""
    return "" if isinstance(error, KeyError) else f" ({error})"


def _extent(index: Any) -> str:
    return f"from {index[0]} to {index[-1]}" if len(index) else "nowhere: there are none"
