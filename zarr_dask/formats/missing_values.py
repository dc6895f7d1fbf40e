"""The missing value of an array, as CF and xarray have it: ``_FillValue``.

Before v3 it is the fill value of the array. In v3 the attribute ``_FillValue`` says it, as xarray
writes it: floats as doubles in base64, byte strings in base64, complex numbers as two floats. So an
array that changes its format changes where it is said.
"""

from __future__ import annotations

import base64
import binascii
import struct
from dataclasses import replace
from typing import Any

import numpy as np

from zarr_dask.dtypes import DataType
from zarr_dask.dtypes.bits import bits_of
from zarr_dask.formats.base import ArrayMeta, Format

__all__ = ["FILL_VALUE", "carry_missing_value", "decoded_fill", "has_mask", "missing_value"]

FILL_VALUE = "_FillValue"


def decoded_fill(value: Any, data_type: DataType) -> Any:
    """Decode a ``_FillValue`` in the form of xarray's own Zarr backend; others are unchanged.

    NCZarr and GDAL write plain numbers.
    """
    kind = data_type.dtype.kind
    try:
        if data_type.name == "bytes" or kind == "S":
            return base64.b64decode(value, validate=True) if isinstance(value, str) else value
        if kind == "f":
            return _double(value)
        if kind == "c" and isinstance(value, list) and len(value) == 2:
            return complex(_double(value[0]), _double(value[1]))
    except (binascii.Error, struct.error, ValueError):
        return value
    return value


def _double(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if value in {"NaN", "Infinity", "-Infinity"}:  # as in Zarr metadata
        return float(value)
    return struct.unpack("<d", base64.b64decode(value, validate=True))[0]


def missing_value(meta: ArrayMeta, node_format: Format) -> str:
    """Return the missing value that xarray finds, as text: NaN is equal to itself; else "none"."""
    if FILL_VALUE in meta.attributes:
        return str(decoded_fill(meta.attributes[FILL_VALUE], meta.data_type))
    is_said = node_format.names_attribute is None
    return "none" if is_said or meta.fill_value is None else str(meta.fill_value[()])


def has_mask(meta: ArrayMeta) -> bool:
    """True if a number or bool is the missing value before v3; NaN is missing in every format."""
    fill: Any = meta.fill_value
    is_number = np.asarray(fill).dtype.kind in "biuf"
    return (
        is_number
        and bool(fill == fill)  # noqa: PLR0124  (NaN is not)
        and meta.dimension_names is not None
        and FILL_VALUE not in meta.attributes
    )


def carry_missing_value(meta: ArrayMeta, old: Format, new: Format) -> ArrayMeta:
    """Return metadata of an array in which xarray finds the same missing values in another format.

    Where the other format cannot say it, they are unchanged.

    Parameters
    ----------
    meta
        Metadata of the array as it is.
    old, new
        Present format and new format.
    """
    was_said, is_said = (one.names_attribute is None for one in (old, new))
    if was_said == is_said:
        return meta
    if is_said:
        if not has_mask(meta):
            return meta
        fill: Any = meta.fill_value
        number = {"f": float, "b": bool}.get(meta.dtype.kind, int)(fill)
        said = _base64(number) if isinstance(number, float) else number
        return replace(meta, attributes={**meta.attributes, FILL_VALUE: said})
    attributes = dict(meta.attributes)
    if FILL_VALUE not in attributes:
        named = meta.dimension_names is not None or not meta.shape  # no dimension to name
        is_zero = bits_of(meta.fill_value) == bits_of(meta.data_type.zero)
        # no fill value at all: it is read as zero, and not masked
        return (
            replace(meta, fill_value=None) if named and is_zero and new.has_undefined_fill else meta
        )
    value = decoded_fill(attributes.pop(FILL_VALUE), meta.data_type)
    try:
        missing = meta.data_type.scalar(value)
    except (ValueError, TypeError, OverflowError):
        return meta
    return replace(meta, fill_value=missing, attributes=attributes)


def _base64(number: float) -> str:
    return base64.standard_b64encode(struct.pack("<d", number)).decode()
