"""Variables that a group holds already, and checks of what is written to them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import xarray as xr
from xarray import conventions

from zarr_dask.array.array import Array
from zarr_dask.errors import DatasetMismatchError
from zarr_dask.hierarchy.group import Group
from zarr_dask.xarray.variables import variable

__all__ = ["NewLabels", "StoredGroup", "check_encoded", "check_equal", "fill_of", "in_order_of"]

_TOLD = ("units", "calendar", "scale_factor", "add_offset", "missing_value", "_Unsigned")
"""Attributes that say what stored numbers mean."""


@dataclass(frozen=True)
class StoredGroup:
    """The arrays directly in a group, as variables of xarray."""

    group: Group

    @cached_property
    def arrays(self) -> dict[str, Array]:
        """Arrays by name."""
        return {name: node for name, node in self.group.children() if isinstance(node, Array)}

    @cached_property
    def raw(self) -> dict[str, xr.Variable]:
        """Variables as they are stored."""
        return {name: variable(array, None) for name, array in self.arrays.items()}

    @cached_property
    def decoded(self) -> dict[str, xr.Variable]:
        """Variables with the encoding that others of their name are to be given."""
        found: Any = conventions.decode_cf_variables(dict(self.raw), {})[0]
        return dict(found)

    def lengths(self, dim: Hashable) -> dict[str, int]:
        """Return the length of a dimension, by variable that has it."""
        return {k: v.sizes[dim] for k, v in self.raw.items() if dim in v.dims}

    def length(self, dim: Hashable, option: str = "append_dim") -> int:
        """Return the length of the dimension that an option names.

        Raises
        ------
        DatasetMismatchError
            If no variable has it, or they disagree.
        """
        lengths = self.lengths(dim)
        if not lengths:
            dims = sorted({str(d) for v in self.raw.values() for d in v.dims})
            raise DatasetMismatchError(
                f"{option}={dim!r} does not match any existing dataset dimensions of "
                f"{self.group.where}: {dims}."
            )
        if len(set(lengths.values())) > 1:
            raise DatasetMismatchError(
                f"the variables of {self.group.where} have different lengths along {dim!r}: "
                f"{lengths}. Something that was appending to them was interrupted. Make them equal "
                "again (zarr_dask.Array.resize) before anything is appended."
            )
        return next(iter(lengths.values()))


def in_order_of(name: str, given: xr.Variable, stored: xr.Variable) -> xr.Variable:
    """Return a variable with its dimensions in the stored order.

    Raises
    ------
    DatasetMismatchError
        If it has other dimensions.
    """
    if given.dims == stored.dims:
        return given
    if set(given.dims) != set(stored.dims):
        raise DatasetMismatchError(
            f"variable {name!r} already exists with different dimension names {stored.dims} != "
            f"{given.dims}; rename, or write it to another place."
        )
    return given.transpose(*stored.dims)


def check_encoded(
    name: str, encoded: xr.Variable, stored: xr.Variable, original: xr.Variable
) -> None:
    """Refuse values that the stored encoding cannot hold exactly.

    Parameters
    ----------
    name
        Name of the variable.
    encoded
        The values in the encoding of the stored variable, as far as xarray has kept to it.
    stored
        The stored variable, not decoded.
    original
        The values before.

    Raises
    ------
    DatasetMismatchError
        If units or calendar would differ, or times come back as others.
    """
    for key in _TOLD:
        if not {key} <= encoded.attrs.keys() & stored.attrs.keys():
            continue
        same = _same(encoded.attrs[key], stored.attrs[key])
        if not same and not (key == "units" and _same_units(encoded.attrs, stored.attrs)):
            raise DatasetMismatchError(
                f"variable {name!r} is stored with {key}={stored.attrs[key]!r}, in which its new "
                f"values cannot be expressed exactly ({key}={encoded.attrs[key]!r} could). "
                "Convert them, or write the dataset anew with another encoding."
            )
    of_texts = original.dtype.kind == stored.dtype.kind and stored.dtype.kind in "SU"
    if of_texts and original.dtype.itemsize > stored.dtype.itemsize:
        raise DatasetMismatchError(
            f"Mismatched dtypes for variable {name!r}: it is stored as {stored.dtype}, which is "
            f"too short for texts of {original.dtype}, whose ends would be cut off."
        )
    if original.chunks is not None or original.dtype.kind not in "mM":
        return
    with_units = encoded.copy(data=encoded.to_numpy().copy())  # xarray decodes some in place
    with_units.attrs = {**encoded.attrs, **{k: stored.attrs[k] for k in _TOLD if k in stored.attrs}}
    again = conventions.decode_cf_variable(name, with_units)
    if not np.array_equal(_as_times(again.values, original.dtype), original.values, equal_nan=True):
        raise DatasetMismatchError(
            f"the times of {name!r} cannot be held exactly by what is stored "
            f"({stored.dtype}, {stored.attrs.get('units')!r}). Round them, or write the dataset "
            "anew with another encoding."
        )


def _as_times(values: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    if values.dtype.kind == "O" and dtype.kind == "M":  # the stored calendar is another one
        dates = [one.isoformat() if hasattr(one, "isoformat") else "NaT" for one in values.flat]
        return np.array(dates, dtype).reshape(values.shape)
    return values.astype(dtype) if values.dtype.kind == dtype.kind else values


def _same_units(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """True if numbers mean the same times, however the units are spelled."""
    try:
        found = [
            conventions.decode_cf_variable(
                "probe",
                xr.Variable(
                    ("probe",),
                    np.array([0, 1]),
                    {key: attributes[key] for key in ("units", "calendar") if key in attributes},
                ),
            ).to_numpy()
            for attributes in (one, other)
        ]
    except (ValueError, OverflowError):
        return False
    return found[0].dtype.kind in "mMO" and bool((found[0] == found[1]).all())


def _same(one: Any, other: Any) -> bool:
    a, b = np.asarray(one), np.asarray(other)
    has_nan = a.dtype.kind == b.dtype.kind == "f"  # missing_value=NaN is that of many files
    return bool(np.array_equal(a, b, equal_nan=has_nan))


def check_equal(name: str, encoded: xr.Variable, stored: xr.Variable) -> None:
    """Refuse a variable that an append does not write if it is not what is stored.

    Raises
    ------
    DatasetMismatchError
        If shape or values differ.
    """
    expected, found = stored.to_numpy(), encoded.to_numpy()
    if expected.shape == found.shape and _equal(expected, found):
        return
    where = ""
    if expected.shape == found.shape and expected.ndim:
        first = np.argwhere(~_equal_elements(expected, found))[0]
        where = f" The first difference is at {tuple(map(int, first))}."
    raise DatasetMismatchError(
        f"variable {name!r}, which has not the dimension to append to, is not what is stored "
        f"(shapes {found.shape} and {expected.shape}).{where} What is appended would lie at other "
        "places. Make it equal (sortby, reindex_like), drop it, or pass others='keep'."
    )


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    return bool(_equal_elements(one, other).all())


def _equal_elements(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    same = np.asarray(one == other)
    if same.shape != one.shape:
        return np.zeros(one.shape, bool)
    both = one.dtype.kind in "fc" and other.dtype.kind in "fc"
    return same | (np.isnan(one) & np.isnan(other)) if both else same


def fill_of(name: str, array: Array, stored: xr.Variable) -> Any:
    """Return the stored value of missing elements.

    Raises
    ------
    DatasetMismatchError
        If the variable has none.
    """
    for key in ("_FillValue", "missing_value"):
        if key in stored.attrs:
            return stored.attrs[key]
    if array.dtype.kind in "fc":
        return np.nan
    raise DatasetMismatchError(
        f"the dataset lacks {name!r}, and no value of {array.dtype} is a missing one there: it has "
        "no _FillValue. Add the variable to the dataset."
    )


@dataclass(frozen=True)
class NewLabels:
    """Relation of the labels of what is appended to those that are stored."""

    overlap: int = 0
    """NewLabels at the end of the stored ones that begin the new ones."""
    is_repeated: bool = False
    """True if the stored ones end with all of the new ones."""

    @staticmethod
    def of(
        dim: str, stored: xr.Variable, given: xr.Variable, overlap: str, where: str
    ) -> NewLabels:
        """Compare encoded labels.

        Raises
        ------
        DatasetMismatchError
            If labels occur twice, or do not continue those that are stored.
        """
        new, old = given.to_index(), stored.to_index()
        if overlap == "allow":
            return NewLabels()
        if not new.is_unique:
            raise DatasetMismatchError(
                f"labels of {dim!r} occur twice in what is to be appended to {where}; drop one of "
                "each (drop_duplicates), or pass overlap='allow'."
            )
        known = np.asarray(new.isin(old))
        count = int(known.sum())
        if count:
            tail = old[len(old) - count :]
            if not (known[:count].all() and tail.equals(new[:count])):
                raise DatasetMismatchError(
                    f"{count} of {len(new)} labels of {dim!r} are in {where} already, and not as "
                    "the end that the new ones begin with. Write them with region='auto', and "
                    "append the others."
                )
            if count == len(new):
                return NewLabels(count, is_repeated=True)
            if overlap != "replace":
                raise DatasetMismatchError(
                    f"the first {count} labels of {dim!r} ({_first(new, count)}) are in {where} "
                    "already. Leave them out, or pass overlap='replace' to write over them."
                )
        _check_continues(dim, old, new[count:], where)
        return NewLabels(count)


def _first(labels: Sequence[Any], count: int) -> str:
    return ", ".join(str(label) for label in labels[: min(count, 3)]) + (
        " ..." if count > 3 else ""
    )


def _check_continues(dim: str, old: Any, new: Any, where: str) -> None:
    """Refuse labels that break the order of those that are stored."""
    if not len(old) or not len(new):
        return
    try:
        rises = old.is_monotonic_increasing and not (len(old) == 1 and new[0] < old[-1])
        falls = old.is_monotonic_decreasing and not rises
        last = old[len(old) - 1 :].append(new)
        broken = (rises and not last.is_monotonic_increasing) or (
            falls and not last.is_monotonic_decreasing
        )
    except TypeError:  # labels without an order
        return
    if broken:
        raise DatasetMismatchError(
            f"the labels of {dim!r} in {where} are in order up to {old[-1]}, and {new[0]} to "
            f"{new[-1]} do not go on from there (as stored). Sort the dataset, or pass "
            "overlap='allow'."
        )


def missing_names(present: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """Return the names of variables that are stored, but not given."""
    return sorted(name for name in present if name not in given)
