"""Codecs of the numcodecs package in Zarr v3, with names that start with ``numcodecs.``.

In v3 a filter for arrays is a codec from array to array, which is given the result of the codec
before it, in C order; in v2 it is given bytes (`zarr_dask.codecs.numcodecs`). Both use the same
numcodecs codec. These names are not specified anywhere; the reference is zarr-python.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar

import numcodecs
import numpy as np

from zarr_dask._util.json_fields import is_int, is_int_in
from zarr_dask.codecs.base import ArrayCodec, BytesCodec, ChunkSpec, EncodedSize, Speeds
from zarr_dask.codecs.blockwise import map_blocks
from zarr_dask.codecs.codec_config import PREFIX, CodecConfig
from zarr_dask.codecs.numcodecs import Filter
from zarr_dask.codecs.registry_numcodecs import codec_from_numcodecs, example_of_numcodecs
from zarr_dask.dtypes import DataType, data_type_of
from zarr_dask.errors import ABSENT, CorruptObjectError, DataTypeError, ValidationProblem
from zarr_dask.grid.grid import Shape
from zarr_dask.stores.base import Buffer

__all__ = ["ArrayFilter", "NumcodecsBytesCodec"]

_TYPES = {
    "delta": ("dtype", "astype"),
    "fixedscaleoffset": ("dtype", "astype"),
    "quantize": ("dtype", "astype"),
    "astype": ("decode_dtype", "encode_dtype"),
    "packbits": (),
}
"""Names of the types of the elements before and after encoding in the configuration, by filter."""

_REQUIRED = {
    "delta": {"dtype"},
    "fixedscaleoffset": {"offset", "scale"},
    "quantize": {"digits"},
    "astype": {"encode_dtype"},
    "packbits": set[str](),
}
_NUMBERS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "offset": (lambda v: is_int(v) or isinstance(v, float), "a number"),
    "scale": (lambda v: (is_int(v) or isinstance(v, float)) and v != 0, "a number other than 0"),
    "digits": (is_int, "an integer"),
}

_FAILURES = (ValueError, TypeError, IndexError, ZeroDivisionError, OverflowError)
"""Errors of numcodecs for unsuitable values, over all filters."""


@dataclass(frozen=True)
class ArrayFilter(ArrayCodec):
    """A filter of numcodecs for arrays.

    Parameters
    ----------
    id
        Its id in numcodecs.
    options
        The rest of its configuration, as JSON text so that the codec can be hashed.
    """

    id: str
    options: str = "{}"

    @classmethod
    def from_config(cls, config: CodecConfig) -> ArrayFilter | None:
        """See `Codec.from_config`."""
        options = {}
        for name in (*_TYPES[config.id], *_numbers_of(config.id)):
            fits, expected = _NUMBERS.get(name, (_is_number_type, "a NumPy type of numbers"))
            default = ABSENT if name in _REQUIRED[config.id] else None
            value = config.take(name, fits, expected, default)
            if value is not None:
                options[name] = value
        kind = WholeChunkFilter if config.id in {"delta", "packbits"} else ArrayFilter
        return None if config.problems else kind(config.id, json.dumps(options))

    @classmethod
    def example(cls, name: str, dtype: str) -> dict[str, Any]:
        """See `Codec.example`."""
        return Filter.example(name.removeprefix(PREFIX), dtype)

    @property
    def name(self) -> str:
        """See `Codec.name`."""
        return f"{PREFIX}{self.id}"

    def configuration(self) -> dict[str, Any]:
        """See `Codec.configuration`."""
        return dict(json.loads(self.options))

    def document(self) -> dict[str, Any]:
        """See `Codec.document`; zarr-python needs a configuration even if it is empty."""
        return {"name": self.name, "configuration": self.configuration()}

    def problems(self, spec: ChunkSpec) -> Iterator[ValidationProblem]:
        """Check that the elements have the type that the filter accepts."""
        given = spec.data_type.name
        if self.id == "packbits":
            if given != "bool":
                yield ValidationProblem("", given, "bools to pack", "data_type")
            return
        if spec.dtype.kind not in "biufc" or not _is_number_type(spec.dtype.str):
            yield ValidationProblem("", given, f"numbers for {self.name!r}", "data_type")
            return
        before = _TYPES[self.id][0]
        said = self.configuration().get(before, spec.dtype.str)
        if _native(said) != spec.dtype:
            yield ValidationProblem(
                f"configuration.{before}", said, f"the type it is given, {given}"
            )
        elif np.dtype(said).str.startswith(">"):
            # zarr-python writes one of two byte streams, depending on how the array was opened
            expected = "a little-endian type: what codecs are given has no byte order"
            yield ValidationProblem(f"configuration.{before}", said, expected)
        elif self.id == "quantize" and {spec.dtype.kind, self._after(spec).dtype.kind} != {"f"}:
            yield ValidationProblem("", given, "floats to quantize", "data_type")

    def output(self, spec: ChunkSpec) -> ChunkSpec:
        """See `ArrayCodec.output`."""
        return replace(
            spec,
            shape=self._shape(spec.shape),
            data_type=self._after(spec),
            fill_value=self._fill(spec),
        )

    def encoded_ndim(self, ndim: int) -> int:
        """See `ArrayCodec.encoded_ndim`."""
        return 1 if self.id == "packbits" else ndim

    def _shape(self, shape: Shape) -> Shape:
        return (1 + -(-prod(shape) // 8),) if self.id == "packbits" else shape

    def _after(self, spec: ChunkSpec) -> DataType:
        """Return the data type of the encoded elements."""
        if self.id == "packbits":
            return data_type_of("u1")
        after = self.configuration().get(_TYPES[self.id][1])
        return spec.data_type if after is None else data_type_of(_native(after))

    def _fill(self, spec: ChunkSpec) -> np.ndarray | None:
        """Return the encoded form of the fill value; None if that is not a single value."""
        if spec.fill_value is None or not self.pointwise:
            return None
        try:
            with np.errstate(all="ignore"):
                return self.encode(spec.fill_value, spec.with_shape(()))
        except DataTypeError:
            return None

    def encode(self, array: np.ndarray, spec: ChunkSpec) -> np.ndarray:
        """See `ArrayCodec.encode`."""
        codec = self._codec(spec)
        try:
            return self._apply(codec.encode, array, spec.dtype, self._after(spec).dtype).reshape(
                self._shape(array.shape)
            )
        except _FAILURES as error:
            raise DataTypeError(f"codec {self.name!r} cannot encode a chunk ({error}).") from error

    def decode(self, encoded: np.ndarray, spec: ChunkSpec, out: np.ndarray) -> None:
        """See `ArrayCodec.decode`."""
        codec = self._codec(spec)
        try:
            with np.errstate(all="ignore"):  # stored values are decoded without checks
                decoded = self._apply(codec.decode, encoded, self._after(spec).dtype, spec.dtype)
            out[...] = decoded.reshape(out.shape)
        except _FAILURES as error:
            raise CorruptObjectError(f"codec {self.name!r} cannot decode it ({error})") from error

    def _apply(
        self,
        function: Callable[[np.ndarray], np.ndarray],
        array: np.ndarray,
        before: np.dtype[Any],
        after: np.dtype[Any],
    ) -> np.ndarray:
        """Return the numcodecs result for all elements of an array."""
        return map_blocks(function, array, before, after)

    def _codec(self, spec: ChunkSpec) -> Any:
        """Return the codec of numcodecs, for elements in the byte order of this machine."""
        options = self.configuration()
        for name, dtype in zip(
            _TYPES[self.id], (spec.dtype, self._after(spec).dtype), strict=False
        ):
            options[name] = dtype.str
        return numcodecs.get_codec({"id": self.id, **options})


@dataclass(frozen=True)
class WholeChunkFilter(ArrayFilter):
    """A filter whose result depends on an element's position in the chunk."""

    pointwise: ClassVar[bool] = False

    def _apply(
        self,
        function: Callable[[np.ndarray], np.ndarray],
        array: np.ndarray,
        before: np.dtype[Any],
        after: np.dtype[Any],  # noqa: ARG002  (determined by the filter)
    ) -> np.ndarray:
        return np.asarray(function(np.ascontiguousarray(array, dtype=before)))


def _numbers_of(identifier: str) -> tuple[str, ...]:
    numbers = {"fixedscaleoffset": ("offset", "scale"), "quantize": ("digits",)}
    return numbers.get(identifier, ())


def _is_number_type(value: Any) -> bool:
    try:
        return isinstance(value, str) and data_type_of(value).dtype.kind in "biufc"
    except TypeError:
        return False


def _native(value: str) -> np.dtype[Any]:
    return np.dtype(value).newbyteorder("=")


@dataclass(frozen=True)
class NumcodecsBytesCodec(BytesCodec):
    """A codec from bytes to bytes that v3 metadata names by its id in numcodecs.

    Parameters
    ----------
    codec
        The codec that does the work.
    id
        Id in numcodecs.
    options
        Its configuration as in the metadata, as JSON text.
    """

    codec: BytesCodec
    id: str
    options: str
    may_alias: ClassVar[bool] = True
    peak_copies: ClassVar[int] = 3

    @classmethod
    def from_config(cls, config: CodecConfig) -> NumcodecsBytesCodec | None:
        """See `Codec.from_config`; members have the spelling of numcodecs."""
        options = dict(config.rest())
        config.rest().clear()
        if config.id == "shuffle" and not is_int_in(range(1, 1 << 31))(options.get("elementsize")):
            found = options.get("elementsize", ABSENT)
            config.blame("elementsize", found, "a positive integer")
            return None
        codec = codec_from_numcodecs({**options, "id": config.id}, config.place)
        if isinstance(codec, list):
            config.problems.extend(codec)
            return None
        return cls(codec, config.id, json.dumps(options))

    def to_numcodecs(self) -> dict[str, Any]:
        """See `Codec.to_numcodecs`."""
        return {"id": self.id, **self.configuration()}

    @classmethod
    def with_defaults(
        cls, name: str, configuration: dict[str, Any], itemsize: int
    ) -> dict[str, Any]:
        """See `Codec.with_defaults`."""
        return (
            {"elementsize": itemsize, **configuration}
            if name.endswith("shuffle")
            else configuration
        )

    @classmethod
    def example(cls, name: str, dtype: str) -> dict[str, Any]:
        """See `Codec.example`."""
        config = example_of_numcodecs(name.removeprefix(PREFIX), dtype)
        return {member: value for member, value in config.items() if member != "id"}

    def speeds(self) -> Speeds:
        """See `Codec.speeds`."""
        return self.codec.speeds()

    @property
    def name(self) -> str:
        """See `Codec.name`."""
        return f"{PREFIX}{self.id}"

    def configuration(self) -> dict[str, Any]:
        """See `Codec.configuration`."""
        return dict(json.loads(self.options))

    def document(self) -> dict[str, Any]:
        """See `Codec.document`; zarr-python needs a configuration even if it is empty."""
        return {"name": self.name, "configuration": self.configuration()}

    def size(self, size: EncodedSize) -> EncodedSize:
        """See `BytesCodec.size`."""
        return self.codec.size(size)

    def encoder_state_nbytes(self, nbytes: int) -> int:
        """See `BytesCodec.encoder_state_nbytes`."""
        return self.codec.encoder_state_nbytes(nbytes)

    def decoder_state_nbytes(self, nbytes: int) -> int:
        """See `BytesCodec.decoder_state_nbytes`."""
        return self.codec.decoder_state_nbytes(nbytes)

    def encode(self, buffer: Buffer | np.ndarray, itemsize: int) -> Buffer:
        """See `BytesCodec.encode`."""
        return self.codec.encode(buffer, itemsize)

    def decode(self, buffer: Buffer, size: EncodedSize) -> Buffer:
        """See `BytesCodec.decode`."""
        return self.codec.decode(buffer, size)

    def decode_into(self, buffer: Buffer, out: np.ndarray) -> None:
        """See `BytesCodec.decode_into`."""
        self.codec.decode_into(buffer, out)
