"""``reshape``: the elements of a chunk, in C order, with other dimensions.

(Zarr extensions, codec ``reshape``.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any, ClassVar

import numpy as np

from zarr_dask._util.json_fields import is_int, is_ints, is_list
from zarr_dask.codecs.base import ArrayCodec, ChunkSpec
from zarr_dask.codecs.codec_config import CodecConfig
from zarr_dask.errors import ValidationProblem
from zarr_dask.grid.grid import Shape

__all__ = ["REST", "Reshape"]

REST = -1
"""A length that follows from the others."""
_MOST_DIMENSIONS = 63
"""NumPy's limit is 64, and the index of a shard has one more than its array."""


@dataclass(frozen=True)
class Reshape(ArrayCodec):
    """Other dimensions of the same elements.

    Parameters
    ----------
    lengths
        For each dimension of the encoded form its length: a number, `REST`, or the dimensions of
        the chunk whose product it is.
    """

    lengths: tuple[int | tuple[int, ...], ...]
    name: ClassVar[str] = "reshape"
    pointwise: ClassVar[bool] = False

    @classmethod
    def from_config(cls, config: CodecConfig) -> Reshape:
        """See `Codec.from_config`."""
        lengths = config.take(
            "shape",
            lambda v: is_list(v) and all(map(_is_length, v)) and v.count(REST) <= 1,
            "a list of positive integers and lists of dimensions, and -1 once at most",
        )
        return cls(tuple(tuple(n) if isinstance(n, list) else n for n in lengths or ()))

    @classmethod
    def example(cls, name: str, dtype: str) -> dict[str, Any]:  # noqa: ARG003
        """See `Codec.example`."""
        return {"shape": [2, -1]}

    def configuration(self) -> dict[str, Any]:
        """See `Codec.configuration`."""
        return {"shape": [list(n) if isinstance(n, tuple) else n for n in self.lengths]}

    def problems(self, spec: ChunkSpec) -> Iterator[ValidationProblem]:
        """Check that the elements fit, and that the lengths are made of the named dimensions."""
        place, found = "configuration.shape", self.configuration()["shape"]
        named = [d for n in self.lengths if isinstance(n, tuple) for d in n]
        if any(d not in range(len(spec.shape)) for d in named):
            yield ValidationProblem(place, found, f"dimensions from 0 to {len(spec.shape) - 1}")
            return
        if len(self.lengths) > _MOST_DIMENSIONS:
            yield ValidationProblem(place, found, f"at most {_MOST_DIMENSIONS} dimensions", "grid")
            return
        if any(low >= high for low, high in pairwise(named)):
            yield ValidationProblem(
                place, found, "dimensions in ascending order, each once at most"
            )
            return
        shape = self._shape(spec.shape)
        if prod(shape) != prod(spec.shape):
            expected = f"a shape of the {prod(spec.shape)} elements of {list(spec.shape)}"
            yield ValidationProblem(place, found, expected, "grid")
            return
        for position, dimensions in enumerate(self.lengths):
            if not isinstance(dimensions, tuple) or not dimensions:
                continue
            before = prod(spec.shape[: dimensions[0]])
            after = prod(spec.shape[dimensions[-1] + 1 :])
            if prod(shape[:position]) != before or prod(shape[position + 1 :]) != after:
                expected = (
                    f"{before} elements before dimensions {list(dimensions)} and {after} after"
                )
                yield ValidationProblem(f"{place}[{position}]", found, expected, "grid")

    def _shape(self, shape: Shape) -> Shape:
        """Return the encoded shape for `shape`; with fewer elements if they do not fit."""
        lengths = [
            prod(shape[d] for d in n) if isinstance(n, tuple) else max(n, 1) for n in self.lengths
        ]
        if REST in self.lengths:
            lengths[self.lengths.index(REST)] = prod(shape) // max(prod(lengths), 1)
        return tuple(lengths)

    def output(self, spec: ChunkSpec) -> ChunkSpec:
        """See `ArrayCodec.output`."""
        return spec.with_shape(self._shape(spec.shape))

    def encoded_ndim(self, ndim: int) -> int:  # noqa: ARG002  (the shape is given)
        """See `ArrayCodec.encoded_ndim`."""
        return len(self.lengths)

    def view(self, array: np.ndarray) -> np.ndarray | None:
        """See `ArrayCodec.view`; only for a whole chunk with its elements in C order."""
        return array.reshape(self._shape(array.shape)) if array.flags.c_contiguous else None

    def encode(self, array: np.ndarray, spec: ChunkSpec) -> np.ndarray:
        """See `ArrayCodec.encode`."""
        return array.reshape(self._shape(spec.shape))

    def decode(self, encoded: np.ndarray, spec: ChunkSpec, out: np.ndarray) -> None:
        """See `ArrayCodec.decode`."""
        out[...] = encoded.reshape(spec.shape)


def _is_length(value: Any) -> bool:
    if is_ints(value):
        return all(dimension >= 0 for dimension in value)
    return is_int(value) and (value == REST or 0 < value < 1 << 63)
