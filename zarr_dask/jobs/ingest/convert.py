"""Values of one file as the combined array has them: other units, other packing, other types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import Any

import numpy as np

from zarr_dask.errors import IngestError
from zarr_dask.jobs.ingest.header import Variable, decoded

__all__ = ["PACKING", "Conversion", "unpacked_dtype"]

PACKING = ("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")
"""Attributes that say what stored numbers mean."""

_NAT = np.iinfo(np.int64).min


@dataclass(frozen=True)
class Conversion:
    """Changes that are made to the values of one file."""

    scale: Fraction = Fraction(1)
    offset: Fraction = Fraction(0)
    """Exact change of units: ``scale * value + offset``."""
    packing: tuple[tuple[str, Any], ...] | None = None
    """Attributes of packed values to unpack, in the form of `encoded`; None to leave them."""
    unpacked: str = ""
    """Type string of the file's unpacked values, which may have fewer digits than the result."""
    masks: tuple[float, ...] = ()
    """Numbers that stand for missing values, and stay, if values are not unpacked."""
    has_nat: bool = False
    """True for int64 times: xarray stores NaT as the least of these numbers, without a mask."""
    width: int | None = None
    """Characters of the file's texts, if those of the array are longer and end in zeros."""
    target: str = ""
    """Type string of the result."""

    @property
    def changes_units(self) -> bool:
        """True if numbers become others."""
        return self.scale != 1 or self.offset != 0

    def apply(self, values: np.ndarray, what: str) -> np.ndarray:
        """Return converted values.

        Raises
        ------
        IngestError
            If the target's type cannot hold one of them.
        """
        if self.packing is not None:
            values = _unpacked(values, dict(self.packing), np.dtype(self.unpacked))
        wanted = np.dtype(self.target)
        is_nat = values == _NAT if self.has_nat else np.zeros((), bool)
        if self.changes_units:
            values = self._rescaled(values, is_nat, what)
        if is_nat.any():
            values = np.where(is_nat, np.nan if wanted.kind == "f" else _NAT, values)
        if values.dtype.kind == "O" or values.dtype == wanted:
            return values
        with np.errstate(all="ignore"):
            made = values.astype(wanted)
        if wanted.kind in "iu" and not np.array_equal(made, values):
            raise IngestError(f"{what} has values that {wanted} cannot hold.")
        return made

    def _rescaled(self, values: np.ndarray, is_nat: np.ndarray, what: str) -> np.ndarray:
        is_missing = np.isin(values, self.masks) | is_nat
        if values.dtype.kind in "iu":
            parts = lcm(self.scale.denominator, self.offset.denominator)
            scale, offset = int(self.scale * parts), int(self.offset * parts)
            held = values[~is_missing]
            ends = (int(held.min()), int(held.max())) if held.size else ()
            if any(not -(2**63) <= scale * end + offset < 2**63 for end in ends):
                raise IngestError(f"{what} has values that int64 cannot hold in the new units.")
            made = values.astype("i8") * scale + offset
            made = made / parts if parts > 1 else made  # rounded once
        else:
            made = values.astype("f8") * float(self.scale) + float(self.offset)
        if not is_missing.any() and not np.isin(made, self.masks).any():
            return made
        if (np.isin(made, self.masks) & ~is_missing).any():
            raise IngestError(
                f"{what} has values that become {list(self.masks)} in the units of the first file, "
                "which stand for missing values there."
            )
        return np.where(is_missing, values, made)


def _unpacked(values: np.ndarray, packing: Mapping[str, Any], dtype: np.dtype[Any]) -> np.ndarray:
    """Return values as the CF conventions decode them: NaN where they are masked."""
    if str(packing.get("_Unsigned", "")).lower() == "true" and values.dtype.kind == "i":
        values = values.astype(f"u{values.dtype.itemsize}")
    masked = np.zeros(values.shape, bool)
    for name in ("_FillValue", "missing_value"):
        if name in packing:
            for mask in np.atleast_1d(decoded(packing[name])):
                masked |= values == np.asarray(mask).astype(values.dtype)
    made = values.astype(dtype)
    if "scale_factor" in packing:
        made *= np.asarray(decoded(packing["scale_factor"]), dtype)
    if "add_offset" in packing:
        made += np.asarray(decoded(packing["add_offset"]), dtype)
    made[masked] = np.nan
    return made


def unpacked_dtype(variable: Variable) -> np.dtype[Any]:
    """Return the type in which unpacked values lose nothing, by the rules of xarray."""
    dtype = np.dtype(variable.dtype).newbyteorder("=")
    given = [variable.attribute(name) for name in ("scale_factor", "add_offset")]
    kinds = [np.asarray(one).dtype for one in given if one is not None]
    if len(kinds) == 2 and kinds[0] == kinds[1] and kinds[0].kind == "f":
        whole = dtype.kind in "iu" and dtype.itemsize >= 4
        return np.dtype("f8") if whole else kinds[0].newbyteorder("=")
    if given[1] is not None:
        return np.dtype("f8")
    if given[0] is not None:
        return np.result_type(kinds[0], "f4").newbyteorder("=")
    small = dtype.itemsize <= (4 if dtype.kind == "f" else 2)
    return np.dtype("f4" if small else "f8")
