"""What a reader saw of an array: the one form in which all readers' answers are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Seen:
    """An array as one implementation reads it."""

    values: np.ndarray[Any, Any]
    dtype: np.dtype[Any]
    fill: np.generic | None
    """None where the array has no fill value, or the reader does not tell."""
    attributes: Mapping[str, Any] | None
    """None where the reader does not know attributes."""
    dimension_names: tuple[str | None, ...] | None
    """None where there are none at all."""


def bits(value: Any) -> tuple[str, tuple[int, ...], bytes]:
    """Type, shape and the exact bits of an array or scalar, in native byte order."""
    array = np.asarray(value)
    native = array.dtype.newbyteorder("=")
    return native.str, array.shape, array.astype(native, copy=False).tobytes()
