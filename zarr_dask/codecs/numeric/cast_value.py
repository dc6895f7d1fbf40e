"""``cast_value``: the same numbers in another data type.

Each element is looked up in a table, or converted: exactly if possible, else rounded and brought
into range by the configuration. Any other value raises an error. (Zarr extensions, codec
``cast_value``.)
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from zarr_dask._util.json_fields import is_list, is_object, is_one_of
from zarr_dask.codecs.base import ArrayCodec, ChunkSpec
from zarr_dask.codecs.blockwise import map_blocks
from zarr_dask.codecs.codec_config import CodecConfig
from zarr_dask.codecs.numeric.casting import (
    OutOfRange,
    Rounding,
    convert,
    is_integer_or_float,
    promote,
)
from zarr_dask.dtypes import DataType, data_type_from_v3
from zarr_dask.dtypes.numbers import Integer
from zarr_dask.errors import CorruptObjectError, DataTypeError, ValidationProblem

__all__ = ["CastValue"]

ROUNDINGS: tuple[Rounding, ...] = (
    "nearest-even",
    "towards-zero",
    "towards-positive",
    "towards-negative",
    "nearest-away",
)

_MOST_PAIRS = 1 << 12
"""Limit of scalars in the table; more could only be an attack."""


@dataclass(frozen=True)
class CastValue(ArrayCodec):
    """Numbers cast to another data type.

    Parameters
    ----------
    data_type
        Data type of the encoded elements; integers or floats.
    rounding
        Rounding of numbers that it cannot hold exactly.
    out_of_range
        Treatment of numbers outside its range; None raises. See `convert`.
    scalar_map
        JSON text of the pairs of scalars that are looked up first, under ``encode`` and ``decode``;
        None for no pairs.
    """

    data_type: DataType
    rounding: Rounding = "nearest-even"
    out_of_range: OutOfRange | None = None
    scalar_map: str | None = None
    name: ClassVar[str] = "cast_value"

    @classmethod
    def from_config(cls, config: CodecConfig) -> CastValue | None:
        """See `Codec.from_config`."""
        document = config.take("data_type", lambda v: v is not None, "a data type")
        rounding = config.take(
            "rounding", is_one_of(*ROUNDINGS), f"one of {list(ROUNDINGS)}", "nearest-even"
        )
        out_of_range = config.take(
            "out_of_range", is_one_of("clamp", "wrap"), "'clamp' or 'wrap'", None
        )
        expected = (
            f"an object of 'encode' and 'decode', lists of pairs of scalars, {_MOST_PAIRS} at most"
        )
        scalar_map = config.take("scalar_map", _is_scalar_map, expected, None)
        if document is None:
            return None
        data_type = data_type_from_v3(document, config.at("data_type"))
        if isinstance(data_type, list):
            config.problems.extend(data_type)
            return None
        if not is_integer_or_float(data_type):
            config.blame("data_type", document, "a type of integers or floats", "data_type")
        elif out_of_range == "wrap" and not isinstance(data_type, Integer):
            config.blame("out_of_range", out_of_range, "'clamp' or none: floats do not wrap")
        text = None if scalar_map is None else json.dumps(scalar_map)
        return cls(data_type, rounding or "nearest-even", out_of_range, text)

    @classmethod
    def example(cls, name: str, dtype: str) -> dict[str, Any]:  # noqa: ARG003
        """See `Codec.example`."""
        return {"data_type": "int16"}

    def configuration(self) -> dict[str, Any]:
        """See `Codec.configuration`; defaults are left out."""
        members = {
            "data_type": self.data_type.document(),
            "rounding": None if self.rounding == "nearest-even" else self.rounding,
            "out_of_range": self.out_of_range,
            "scalar_map": None if self.scalar_map is None else json.loads(self.scalar_map),
        }
        return {name: value for name, value in members.items() if value is not None}

    def problems(self, spec: ChunkSpec) -> Iterator[ValidationProblem]:
        """Check that the elements are numbers, and that the fill value is preserved."""
        source = spec.data_type
        if not is_integer_or_float(source):
            yield ValidationProblem("", source.name, "integers or floats to cast", "data_type")
            return
        found = [
            *_scalar_problems(self.scalar_map, "encode", source, self.data_type),
            *_scalar_problems(self.scalar_map, "decode", self.data_type, source),
        ]
        yield from found
        if found or spec.fill_value is None:
            return
        try:
            back = self._cast(self._cast(spec.fill_value, source, "encode"), source, "decode")
        except ValueError as error:
            back, reason = None, str(error)
        else:
            reason = f"it would become {back}"
        if back is None or not _equal(back, spec.fill_value):
            expected = f"a codec from which the fill value comes back ({reason})"
            yield ValidationProblem("configuration", source.to_json(spec.fill_value), expected)

    def output(self, spec: ChunkSpec) -> ChunkSpec:
        """See `ArrayCodec.output`."""
        fill = (
            None
            if spec.fill_value is None
            else self._cast(spec.fill_value, spec.data_type, "encode")
        )
        return replace(spec, data_type=self.data_type, fill_value=fill)

    def encode(self, array: np.ndarray, spec: ChunkSpec) -> np.ndarray:
        """See `ArrayCodec.encode`."""
        try:
            return self._cast(array, spec.data_type, "encode")
        except ValueError as error:
            raise DataTypeError(f"codec 'cast_value' cannot encode a chunk: {error}.") from error

    def decode(self, encoded: np.ndarray, spec: ChunkSpec, out: np.ndarray) -> None:
        """See `ArrayCodec.decode`."""
        try:
            out[...] = self._cast(encoded, spec.data_type, "decode")
        except ValueError as error:
            raise CorruptObjectError(f"codec 'cast_value' cannot decode it: {error}") from error

    def _cast(self, array: np.ndarray, decoded: DataType, direction: str) -> np.ndarray:
        """Cast elements in one direction; `decoded` is the data type of the array."""
        encode = direction == "encode"
        source, target = (decoded, self.data_type) if encode else (self.data_type, decoded)
        table = _table(self.scalar_map, direction, source, target)

        def cast(values: np.ndarray) -> np.ndarray:
            found = table.find(promote(values, source))
            if found is None:
                return convert(values, source, target, self.rounding, self.out_of_range)
            mapped = found >= 0
            rest = values.copy()
            rest[mapped] = np.array(1).astype(source.dtype)  # a value that every type has
            result = convert(rest, source, target, self.rounding, self.out_of_range)
            result[mapped] = table.becomes[found[mapped]]
            return result

        return map_blocks(cast, array, source.dtype, target.dtype)


# --- the table ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Table:
    """Scalars and their replacements."""

    keys: np.ndarray
    """In ascending order, in a type that NumPy can compute with; no NaN."""
    becomes: np.ndarray
    """For each key, then for NaN if that is in the table."""
    has_nan: bool

    def find(self, values: np.ndarray) -> np.ndarray | None:
        """Return the positions of values in `becomes`, -1 for others; None if all are others."""
        if not self.becomes.size:
            return None
        found = np.full(values.size, -1)
        if self.keys.size:
            near = np.minimum(np.searchsorted(self.keys, values), self.keys.size - 1)
            found = np.where(self.keys[near] == values, near, found)
        if self.has_nan:
            found[np.isnan(values)] = self.keys.size
        return found if (found >= 0).any() else None


def _is_scalar_map(value: Any) -> bool:
    return (
        is_object(value)
        and value.keys() <= {"encode", "decode"}
        and all(
            is_list(pairs)
            and len(pairs) <= _MOST_PAIRS
            and all(is_list(pair) and len(pair) == 2 for pair in pairs)
            for pairs in value.values()
        )
    )


def _pairs(text: str | None, direction: str) -> list[list[Any]]:
    return [] if text is None else list(json.loads(text).get(direction, []))


def _scalar_problems(
    text: str | None, direction: str, source: DataType, target: DataType
) -> Iterator[ValidationProblem]:
    for position, pair in enumerate(_pairs(text, direction)):
        for side, (item, data_type) in enumerate(zip(pair, (source, target), strict=True)):
            try:
                _scalar(item, data_type)
            except (ValueError, TypeError, OverflowError) as error:
                place = f"configuration.scalar_map.{direction}[{position}][{side}]"
                yield ValidationProblem(place, item, f"a {data_type.name} ({error})")


@lru_cache(maxsize=256)
def _table(text: str | None, direction: str, source: DataType, target: DataType) -> _Table:
    numbers: dict[Any, np.ndarray] = {}
    nan: list[np.ndarray] = []
    for item, becomes in _pairs(text, direction):  # of equal items the first one counts
        key = promote(_scalar(item, source).reshape(1), source)[0]
        if np.isnan(key):
            nan.append(_scalar(becomes, target))
        else:
            numbers.setdefault(key, _scalar(becomes, target))
    keys = sorted(numbers)
    scalars = [*(numbers[key] for key in keys), *nan[:1]]
    made = np.empty(len(scalars), target.dtype)
    for position, scalar in enumerate(scalars):
        made[position] = scalar
    return _Table(
        np.array(keys, promote(source.dtype.type(1).reshape(1), source).dtype), made, bool(nan)
    )


def _scalar(item: Any, data_type: DataType) -> np.ndarray:
    """Parse a scalar from JSON; the codec's specification has a sign before infinity."""
    return data_type.from_json("Infinity" if item == "+Infinity" else item)


def _equal(back: np.ndarray, fill: np.ndarray) -> bool:
    return bool(back == fill) or bool(back != back and fill != fill)  # noqa: PLR0124
