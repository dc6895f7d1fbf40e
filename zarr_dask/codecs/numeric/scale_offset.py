"""``scale_offset``: numbers minus an offset, times a factor, in their own data type.

A value that the data type cannot hold is an error, for intermediate results as well. (Zarr
extensions, codec ``scale_offset``.)
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from zarr_dask._util.json_fields import any_value
from zarr_dask.codecs.base import ArrayCodec, ChunkSpec
from zarr_dask.codecs.blockwise import map_blocks
from zarr_dask.codecs.codec_config import CodecConfig
from zarr_dask.codecs.numeric.casting import convert, is_integer_or_float, promote
from zarr_dask.dtypes import DataType, data_type_of, is_small
from zarr_dask.dtypes.numbers import Integer
from zarr_dask.errors import CorruptObjectError, DataTypeError, ValidationProblem

__all__ = ["ScaleOffset"]


@dataclass(frozen=True)
class ScaleOffset(ArrayCodec):
    """``(x - offset) * scale``.

    Parameters
    ----------
    offset
        JSON text of a scalar of the data type; None subtracts nothing.
    scale
        JSON text of a scalar of the data type other than 0; None for no factor.
    """

    offset: str | None = None
    scale: str | None = None
    name: ClassVar[str] = "scale_offset"

    @classmethod
    def from_config(cls, config: CodecConfig) -> ScaleOffset:
        """See `Codec.from_config`."""
        given = [config.take(name, any_value, "a scalar", _ABSENT) for name in ("offset", "scale")]
        return cls(*(None if v is _ABSENT else json.dumps(v) for v in given))

    @classmethod
    def example(cls, name: str, dtype: str) -> dict[str, Any]:  # noqa: ARG003
        """See `Codec.example`."""
        return {"offset": 1, "scale": 1}

    def configuration(self) -> dict[str, Any]:
        """See `Codec.configuration`."""
        members = {"offset": self.offset, "scale": self.scale}
        return {name: json.loads(text) for name, text in members.items() if text is not None}

    def problems(self, spec: ChunkSpec) -> Iterator[ValidationProblem]:
        """Check that the elements, the offset and the scale are numbers."""
        if not is_integer_or_float(spec.data_type):
            yield ValidationProblem(
                "", spec.data_type.name, "integers or floats to scale", "data_type"
            )
            return
        found = False
        for name, item in self.configuration().items():
            expected = f"a {spec.data_type.name}{' other than 0' if name == 'scale' else ''}"
            try:
                number = _number(json.dumps(item), spec.data_type)
            except (ValueError, TypeError, OverflowError) as error:
                found = True
                yield ValidationProblem(f"configuration.{name}", item, f"{expected} ({error})")
            else:
                if name == "scale" and number == 0:
                    found = True
                    yield ValidationProblem(f"configuration.{name}", item, expected)
        if found or spec.fill_value is None:
            return
        try:
            self._encoded(spec.fill_value, spec.data_type)
        except ValueError as error:
            value = spec.data_type.to_json(spec.fill_value)
            yield ValidationProblem(
                "configuration", value, f"a codec that takes the fill value ({error})"
            )

    def output(self, spec: ChunkSpec) -> ChunkSpec:
        """See `ArrayCodec.output`."""
        if spec.fill_value is None:
            return spec
        return replace(spec, fill_value=self._encoded(spec.fill_value, spec.data_type))

    def encode(self, array: np.ndarray, spec: ChunkSpec) -> np.ndarray:
        """See `ArrayCodec.encode`."""
        try:
            return self._encoded(array, spec.data_type)
        except ValueError as error:
            raise DataTypeError(f"codec 'scale_offset' cannot encode a chunk: {error}.") from error

    def decode(self, encoded: np.ndarray, spec: ChunkSpec, out: np.ndarray) -> None:
        """See `ArrayCodec.decode`."""
        steps = (("divide", self.scale), ("add", self.offset))
        try:
            out[...] = _applied(encoded, spec.data_type, steps)
        except ValueError as error:
            raise CorruptObjectError(f"codec 'scale_offset' cannot decode it: {error}") from error

    def _encoded(self, array: np.ndarray, data_type: DataType) -> np.ndarray:
        steps = (("subtract", self.offset), ("multiply", self.scale))
        return _applied(array, data_type, steps)


_ABSENT = object()


@lru_cache(maxsize=256)
def _number(text: str, data_type: DataType) -> Any:
    """Return a scalar in a type that NumPy can compute with."""
    return promote(data_type.from_json(json.loads(text)).reshape(1), data_type)[0]


def _applied(
    array: np.ndarray, data_type: DataType, steps: tuple[tuple[str, str | None], ...]
) -> np.ndarray:
    """Return the results of operations, each with a scalar, in the arithmetic of the data type."""

    def apply(block: np.ndarray) -> np.ndarray:
        for name, text in steps:
            if text is None:
                continue
            scalar = _number(text, data_type)
            if isinstance(data_type, Integer):
                block = _of_integers(name, block, scalar, data_type)
            else:
                block = _of_floats(name, block, scalar, data_type)
        return block

    return map_blocks(apply, array, data_type.dtype, data_type.dtype)


def _of_integers(name: str, values: np.ndarray, scalar: Any, data_type: Integer) -> np.ndarray:
    """Compute with integers; as operations are monotonic, the range's ends tell if all fit."""
    wide, number = promote(values, data_type), int(scalar)
    if name == "divide" and (wide % scalar).any():
        raise ValueError(f"{values[wide % scalar != 0][0]} is not a multiple of {number}")
    least, greatest = data_type.limits
    for end in (int(wide.min()), int(wide.max())):
        exact = _EXACT[name](end, number)
        if not least <= exact <= greatest:
            raise ValueError(f"{exact} is outside the range of {data_type.name}")
    result: np.ndarray = _OPERATIONS[name](wide, scalar)
    return result.astype(data_type.dtype)


def _of_floats(name: str, values: np.ndarray, scalar: Any, data_type: DataType) -> np.ndarray:
    """Compute with floats; those of few bits through float64, which does not change the result."""
    small = is_small(data_type.dtype)
    given = promote(values, data_type) if small else values
    with np.errstate(all="ignore"):
        result: np.ndarray = _OPERATIONS[name](given, given.dtype.type(scalar))
    beyond = np.isinf(result) & np.isfinite(given)
    if beyond.any():
        raise ValueError(f"{name} of {given[beyond][0]} gives no finite {data_type.name}")
    return convert(result, data_type_of("float64"), data_type) if small else result


_OPERATIONS: dict[str, Any] = {
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": lambda values, scalar: (
        values // scalar if values.dtype.kind in "iu" else values / scalar
    ),
    "add": np.add,
}
_EXACT: dict[str, Any] = {
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a // b,
    "add": lambda a, b: a + b,
}
"""The same operations for integers of any length."""
