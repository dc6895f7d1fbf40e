"""Regions of stored datasets: by position, or found by labels."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import xarray as xr

from zarr_dask.dtypes.base import Casting
from zarr_dask.errors import DatasetMismatchError, LabelNotFoundError
from zarr_dask.xarray.call import VariableWrite
from zarr_dask.xarray.encode import encode_dataset
from zarr_dask.xarray.stored import StoredGroup, check_encoded, in_order_of, missing_names

__all__ = ["region_pieces"]


def region_pieces(
    dataset: xr.Dataset, given: Any, present: StoredGroup, casting: Casting
) -> list[VariableWrite]:
    """Return what is written into regions of the arrays of a group.

    Parameters
    ----------
    dataset
        The values.
    given
        Slices or ``"auto"`` by dimension, or ``"auto"`` for all dimensions.
    present
        The group.
    casting
        As for `encode_dataset`.

    Raises
    ------
    DatasetMismatchError
        If something does not fit.
    TypeError, ValueError
        If it is no region.
    """
    region, by_labels = _region(dataset, given, present)
    # labels are where they have been found; they are never written again
    dataset = dataset.drop_vars([name for name in by_labels if name in dataset.variables])
    dataset = _without_stored_labels(dataset, region, present)
    _check_in_region(dataset, region, present)
    encoded = encode_dataset(
        dataset, present.group.node_format, None, present.decoded, casting=casting
    )
    pieces = []
    for name, variable in encoded.variables.items():
        stored = present.raw[name]
        values = in_order_of(name, variable, stored)
        check_encoded(name, values, stored, in_order_of(name, dataset.variables[name], stored))
        slices = tuple(region.get(dim, slice(None)) for dim in values.dims)
        expected = tuple(
            len(range(*one.indices(n))) for one, n in zip(slices, stored.shape, strict=True)
        )
        if expected != values.shape:
            raise DatasetMismatchError(
                f"variable {name!r} already exists with different dimension sizes: the region has "
                f"{dict(zip(stored.dims, expected, strict=True))}, the dataset "
                f"{dict(values.sizes)}."
            )
        pieces.append(VariableWrite(name, values, region=slices))
    return pieces


def _without_stored_labels(
    dataset: xr.Dataset, region: Mapping[Hashable, slice], present: StoredGroup
) -> xr.Dataset:
    """Return the dataset without its indices, which must be those of the region.

    xarray leaves them out, so that values may come under labels of others.

    Raises
    ------
    DatasetMismatchError
        If there are other labels.
    """
    same = []
    for name in dataset.xindexes:
        given, stored = dataset.variables[name], present.decoded.get(str(name))
        if stored is None or given.ndim != 1 or given.dims != stored.dims:
            continue
        labels, old = given.to_index(), stored[region.get(given.dims[0], slice(None))].to_index()
        if len(labels) != len(old):
            continue  # the length is refused with those of the values
        if not (labels.equals(old) or bool(np.all(labels == old))):
            raise DatasetMismatchError(
                f"the labels of {name!r} are not those of the region of {present.group.where} "
                f"(the first is {labels[0]}, and {old[0]} is stored). Pass region='auto' to write "
                f"where the labels are, or drop them (drop_vars). drop_indexes({name!r}) writes "
                "them like other values."
            )
        same.append(name)
    return dataset.drop_vars(same)


def _check_in_region(
    dataset: xr.Dataset, region: Mapping[Hashable, slice], present: StoredGroup
) -> None:
    """Refuse variables that are not stored, or that the region is no part of."""
    apart = [str(k) for k, v in dataset.variables.items() if not set(v.dims) & set(region)]
    if apart and region:
        raise DatasetMismatchError(
            "when setting `region` explicitly in to_zarr(), all variables in the dataset to write "
            f"must have at least one dimension in common with the region's dimensions "
            f"{list(region)}, but that is not the case for some variables here: drop {apart!r} "
            "(drop_vars)."
        )
    unknown = missing_names({str(name): None for name in dataset.variables}, present.raw)
    if unknown:
        raise DatasetMismatchError(
            f"dataset contains non-pre-existing variables {unknown!r}, which a region does not "
            "make; drop them, or make them first (zarr_dask.create_dataset)."
        )


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
    index = present.decoded[name].to_index()
    places = np.asarray(index.get_indexer(dataset.variables[dim].to_index()))
    if (places == -1).any():
        raise LabelNotFoundError(
            f"Not all values of coordinate {name!r} in the new array were found in the original "
            f"store ({present.group.where}); a region changes no labels. append= alone adds some."
        )
    if (np.diff(places) != 1).any():
        raise DatasetMismatchError(
            f"The auto-detected region of coordinate {name!r} for writing new data to the original "
            "store had non-contiguous indices: write it piece by piece."
        )
    return slice(int(places[0]), int(places[-1]) + 1) if len(places) else slice(0, 0)
