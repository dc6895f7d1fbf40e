"""Appends to stored datasets: what grows, what must be equal, and how labels go on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from secrets import token_hex

import dask.array as da
import xarray as xr

from zarr_dask.errors import DatasetMismatchError
from zarr_dask.formats.base import ReadOptions
from zarr_dask.hierarchy.open_node import open_group
from zarr_dask.journal import default_place, end_of_array, open_journals
from zarr_dask.stores.base import Store
from zarr_dask.xarray.call import Call, VariableWrite
from zarr_dask.xarray.encode import EncodedDataset, encode_dataset
from zarr_dask.xarray.stored import (
    NewLabels,
    StoredGroup,
    check_encoded,
    check_equal,
    fill_of,
    in_order_of,
)

__all__ = ["Growth", "forget_append", "plan_growth"]


@dataclass(frozen=True)
class Growth:
    """Changes of an append to the arrays of a group."""

    encoded: EncodedDataset
    pieces: tuple[VariableWrite, ...] = ()
    """Writes to stored arrays; the index of the dimension comes last."""
    new: Mapping[str, xr.Variable] = field(default_factory=dict)
    """Variables without the dimension that are not stored yet."""
    kept: tuple[str, ...] = ()
    """Variables without the dimension that are stored, and not written."""
    is_repeated: bool = False
    """True if the labels are stored already."""


def plan_growth(dataset: xr.Dataset, call: Call, present: StoredGroup) -> Growth:
    """Return what an append does; nothing is written.

    Raises
    ------
    DatasetMismatchError
        If the dataset does not continue what is stored.
    """
    dim = str(call.append)
    present.length(dim)
    if dim in dataset.variables and dim in present.raw and present.raw[dim].dims == (dim,):
        present.raw[dim].load()  # at once: decoding looks at its ends, and all labels are compared
    lacking = _lacking(dataset, dim, call, present)
    encoded = encode_dataset(
        dataset, present.group.node_format, None, present.decoded, casting=call.casting
    )
    variables = _checked(dataset, encoded, dim, present)
    labels = NewLabels()
    if dim in variables and dim in present.raw and variables[dim].dims == (dim,):
        at = present.group.where
        labels = NewLabels.of(dim, present.raw[dim], variables[dim], call.overlap, at)
    others = call.others or ("keep" if call.mode == "a-" else "match")
    fixed = {k: v for k, v in variables.items() if dim not in v.dims and k in present.raw}
    if others == "match":
        for name, variable in fixed.items():
            check_equal(name, variable, present.raw[name])
    kept = () if others == "write" else tuple(fixed)
    if labels.is_repeated and call.overlap != "replace":
        return Growth(encoded, kept=kept, is_repeated=True)
    written = [VariableWrite(name, one) for name, one in fixed.items()] if others == "write" else []
    growing = {k: v for k, v in variables.items() if dim in v.dims}
    return Growth(
        encoded,
        (*written, *_growing(growing, lacking, dim, labels, present)),
        {k: v for k, v in variables.items() if k not in present.raw},
        kept,
    )


def _lacking(dataset: xr.Dataset, dim: str, call: Call, present: StoredGroup) -> list[str]:
    """Return the stored variables along the dimension that the dataset lacks, if it may."""
    at = present.group.where
    if dim not in dataset.dims:
        raise DatasetMismatchError(
            f"append_dim={dim!r} does not match any existing dataset dimensions "
            f"{sorted(map(str, dataset.dims))}."
        )
    lacking = sorted(set(present.lengths(dim)) - {str(name) for name in dataset.variables})
    if lacking and (call.missing == "refuse" or dim in lacking):
        raise DatasetMismatchError(
            f"the dataset lacks {lacking}, which {at} has along {dim!r}; they would become "
            "shorter than all others. Add them, or pass missing='fill'"
            + (", which labels cannot be." if dim in lacking else ".")
        )
    surplus = sorted(
        str(k) for k, v in dataset.variables.items() if dim in v.dims and k not in present.raw
    )
    if surplus:
        raise DatasetMismatchError(
            f"{at} does not have {surplus}, which would be shorter than {dim!r} is there; drop "
            "them, or write them for all labels first (mode='a')."
        )
    known = sorted(name for name in call.encoding if name in present.raw)
    if known:
        raise DatasetMismatchError(
            f"variable(s) {known} already exist in {at}, but encoding was provided: they keep the "
            "one that they have. Leave encoding= out."
        )
    return lacking


def _checked(
    dataset: xr.Dataset, encoded: EncodedDataset, dim: str, present: StoredGroup
) -> dict[str, xr.Variable]:
    """Return encoded variables in the stored order of dimensions, if they fit."""
    variables = {}
    for name, variable in encoded.variables.items():
        if name not in present.raw:
            variables[name] = variable
            continue
        stored = present.raw[name]
        given = in_order_of(name, variable, stored)
        check_encoded(name, given, stored, in_order_of(name, dataset.variables[name], stored))
        if dim in given.dims:
            _check_growing(name, given, stored, dim)
        variables[name] = given
    return variables


def _growing(
    growing: Mapping[str, xr.Variable],
    lacking: Iterable[str],
    dim: str,
    labels: NewLabels,
    present: StoredGroup,
) -> list[VariableWrite]:
    """Return what is written to the arrays that grow."""
    count = next(variable.sizes[dim] for variable in growing.values())
    filled = {name: _missing_values(name, dim, count, present) for name in lacking}
    everything = {**growing, **filled}
    pieces = []
    # readers take the length of a dataset from its index: it becomes visible last
    for name in sorted(everything, key=lambda one: one == dim):
        stored = present.raw[name]
        axis = stored.dims.index(dim)
        if labels.overlap < count:
            pieces.append(
                VariableWrite(name, everything[name], append=axis, overlap=labels.overlap)
            )
            continue
        end = stored.shape[axis]  # all of it is there already
        region = [slice(None)] * stored.ndim
        region[axis] = slice(end - count, end)
        pieces.append(VariableWrite(name, everything[name], region=tuple(region), partial="own"))
    return pieces


def forget_append(store: Store, path: str, dim: str) -> None:
    """Remove the journals and claims of an append that has ended."""
    present = StoredGroup(open_group(store, path, read=ReadOptions(consolidated=False)))
    for name, array in present.arrays.items():
        variable, place = present.raw[name], default_place(store, array.path)
        if place is None or dim not in variable.dims:
            continue
        axis = variable.dims.index(dim)
        for journal, job in open_journals(place):
            is_over = job.append_committed and job.region[axis][1] == variable.shape[axis]
            if is_over and not journal.is_locked():
                end = end_of_array(store, array.path, token_hex(8), job.content_token)
                if end is not None:  # what the process had claimed that died
                    end.claim().close()
                    end.leave()
                journal.remove()


def _check_growing(name: str, given: xr.Variable, stored: xr.Variable, dim: str) -> None:
    if stored.dims.count(dim) > 1:
        raise DatasetMismatchError(
            f"variable {name!r} has the dimension {dim!r} more than once ({stored.dims}), and an "
            "append makes one dimension longer. Rename the others, or drop the variable."
        )
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
