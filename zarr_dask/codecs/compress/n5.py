"""``n5_default``: blocks of N5 in its default mode (registry of Zarr extensions).

A block has its own shape, so those at the borders of an array may or may not be cut short. Anything
beyond the chunk is dropped, and missing elements have the fill value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np

from zarr_dask._util.json_fields import is_codec_list
from zarr_dask.codecs.arrays import Bytes, Transpose
from zarr_dask.codecs.base import (
    BoundSerializer,
    ChunkSpec,
    Codec,
    CodecMemory,
    DecodeOptions,
    EncodedSize,
    Serializer,
)
from zarr_dask.codecs.chain import CodecChain
from zarr_dask.codecs.codec_config import CodecConfig
from zarr_dask.codecs.registry import inner_chain
from zarr_dask.dtypes import full_of
from zarr_dask.errors import CorruptObjectError, ValidationProblem
from zarr_dask.grid.grid import Region, Shape
from zarr_dask.stores.base import Buffer

__all__ = ["N5Default"]

_TYPES = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
_DATA_TYPES = frozenset((*_TYPES, "float32", "float64"))
_DEFAULT_MODE = 0
_MOST_DIMENSIONS = (1 << 16) - 1
_LONGEST = (1 << 32) - 1
_LARGER = 16
_HARMLESS = 1 << 26  # bytes that any block may have


@dataclass(frozen=True)
class N5Default(Serializer):
    """Mode, number of dimensions and shape as big-endian integers, then the elements.

    Parameters
    ----------
    codecs
        The codecs of the elements: a transposition that reverses all dimensions, ``bytes`` in
        big-endian order, and at most one codec from bytes to bytes.
    """

    codecs: CodecChain
    name: ClassVar[str] = "n5_default"

    @classmethod
    def from_config(cls, config: CodecConfig) -> Codec | None:
        """See `Codec.from_config`."""
        codecs = config.take("codecs", is_codec_list, "a list of at most 1000 codecs")
        chain = None if codecs is None else inner_chain(config, "codecs", codecs, config.stored)
        return None if chain is None else cls(chain)

    @classmethod
    def example(cls, name: str, dtype: str) -> dict[str, Any]:  # noqa: ARG003
        """See `Codec.example`."""
        steps = {"transpose": {"order": [0]}, "bytes": {"endian": "big"}, "gzip": {"level": 1}}
        return {"codecs": [{"name": step, "configuration": given} for step, given in steps.items()]}

    def configuration(self) -> dict[str, Any]:
        """See `Codec.configuration`."""
        return {"codecs": [codec.document() for codec in self.codecs.codecs]}

    def problems(self, spec: ChunkSpec) -> Iterator[ValidationProblem]:
        """Check that N5 supports the codecs and the chunk."""
        ndim = len(spec.shape)
        if spec.data_type.name not in _DATA_TYPES:
            expected = (
                f"a codec for elements of type {spec.data_type.name!r}, which N5 does not have"
            )
            yield ValidationProblem("name", self.name, expected)
        if max(spec.shape, default=1) > _LONGEST or ndim > _MOST_DIMENSIONS:
            yield ValidationProblem(
                "name", self.name, f"a codec for chunks of shape {list(spec.shape)}"
            )
        reverse = Transpose(tuple(reversed(range(ndim))))
        endian = getattr(self.codecs.serializer, "endian", "little")
        if (
            self.codecs.arrays != (reverse,)
            or not isinstance(self.codecs.serializer, Bytes)
            or endian not in ({"big", None} if spec.dtype.itemsize == 1 else {"big"})
            or len(self.codecs.bytes) > 1
        ):
            yield ValidationProblem(
                "configuration.codecs",
                [codec.document() for codec in self.codecs.codecs],
                f"'transpose' of order {list(reverse.order)}, 'bytes' of endian 'big', and at most "
                "one codec from bytes to bytes",
            )
            return
        for problem in self.codecs.problems(spec):
            yield ValidationProblem(
                f"configuration.{problem.field}", problem.found, problem.expected, problem.kind
            )

    def bind(self, spec: ChunkSpec) -> BoundSerializer:
        """See `Serializer.bind`."""
        return _BoundN5(self.codecs, spec)


class _BoundN5(BoundSerializer):
    def __init__(self, codecs: CodecChain, spec: ChunkSpec) -> None:
        self.spec = spec
        self._codecs = codecs
        self._header = _header_of(spec.shape)
        self._most = max(_LARGER * spec.nbytes, _HARMLESS)
        inner = codecs.bind(spec).size.most
        self.size = EncodedSize(None, len(self._header) + max(_LARGER * inner, _HARMLESS))

    @property
    def memory(self) -> CodecMemory:
        """See `BoundSerializer.memory`."""
        return self._codecs.bind(self.spec).memory

    def encode(self, array: np.ndarray) -> list[Buffer]:
        return [self._header, *self._codecs.bind(self.spec).encode(array)]

    def decode(
        self, buffer: Buffer, region: Region | None, out: np.ndarray, reading: DecodeOptions
    ) -> None:
        view = memoryview(buffer)
        shape = self._shape_in(view)
        body = view[len(self._header) :]
        if shape == self.spec.shape:
            self._codecs.bind(self.spec).decode(body, region, out, reading)
            return
        block = np.empty(shape, self.spec.dtype)
        self._codecs.bind(self.spec.with_shape(shape)).decode(body, None, block, reading)
        chunk = full_of(self.spec.shape, self.spec.dtype, self.spec.fill_value)
        both = tuple(slice(0, min(a, b), 1) for a, b in zip(shape, self.spec.shape, strict=True))
        chunk[both] = block[both]
        out[...] = chunk if region is None else chunk[region]

    def _shape_in(self, view: memoryview) -> Shape:
        """Return the shape of the block from its header."""
        if len(view) < len(self._header):
            raise CorruptObjectError(f"{len(view)} bytes are fewer than the header of an N5 block")
        mode, ndim = np.frombuffer(view[:4], ">u2").tolist()
        if mode != _DEFAULT_MODE or ndim != len(self.spec.shape):
            raise CorruptObjectError(
                f"its N5 block is of mode {mode} and has {ndim} dimensions, expected mode "
                f"{_DEFAULT_MODE} (default) and {len(self.spec.shape)} dimensions"
            )
        lengths = np.frombuffer(view[4 : len(self._header)], ">u4").tolist()
        nbytes = prod(lengths) * self.spec.dtype.itemsize
        if not nbytes or nbytes > self._most:
            raise CorruptObjectError(
                f"its N5 block claims the shape {lengths}, but the chunk has {self.spec.shape}"
            )
        return tuple(lengths)


def _header_of(shape: Shape) -> bytes:
    head = np.array([_DEFAULT_MODE, len(shape)], ">u2")
    return head.tobytes() + np.array(shape, ">u4").tobytes()
