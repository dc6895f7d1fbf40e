"""``zfp`` and ``numcodecs.zfpy``: streams of the zfp library, through the package zfpy.

``zfp`` of the registry of Zarr extensions stores only the stream; shape and type are in the
metadata. ``numcodecs.zfpy`` adds zfp's own header. The library trusts its stream and reads beyond
its end, so the stream is padded with as many zeros as it could ever read.
"""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np

from zarr_dask._util.json_fields import any_value, is_int, is_int_in, is_one_of
from zarr_dask.codecs.base import (
    BoundSerializer,
    ChunkSpec,
    Codec,
    CodecMemory,
    DecodeOptions,
    EncodedSize,
    Serializer,
)
from zarr_dask.codecs.codec_config import CodecConfig
from zarr_dask.errors import (
    CorruptObjectError,
    DataTypeError,
    MissingDependencyError,
    ValidationProblem,
)
from zarr_dask.grid.grid import Region, Shape
from zarr_dask.stores.base import Buffer

__all__ = ["Zfp", "Zfpy"]

_NATIVE = ("int32", "int64", "float32", "float64")
_SIGNED = {"uint32": "int32", "uint64": "int64"}
"""Stored as signed integers, without negative ones."""
_MOST_DIMENSIONS = 4
_EDGE = 4  # elements along each dimension of zfp's blocks
_BLOCK_BITS = 128  # more than the header and the rounding of a block
_FEW_BITS = 32
_HEADER = 32  # bytes; more than a header of zfp
_LARGEST_RATE = 128  # twice the need of an element of 64 bits, for blocks that are padded


def _library() -> Any:
    try:
        import zfpy
    except ImportError as error:
        raise MissingDependencyError(
            "chunks compressed by zfp need the package zfpy: pip install 'zarr-dask[zfp]'"
        ) from error
    return zfpy


@dataclass(frozen=True)
class _ZfpSerializer(Serializer):
    """The common part of both codecs."""

    @property
    @abstractmethod
    def parameters(self) -> dict[str, float]:
        """The arguments of zfpy: none, or one of tolerance, rate and precision."""

    @property
    @abstractmethod
    def has_header(self) -> bool:
        """True if the stream begins with zfp's header."""

    def data_types(self) -> tuple[str, ...]:
        """Return the names of the supported data types."""
        return _NATIVE

    def problems(self, spec: ChunkSpec) -> Iterator[ValidationProblem]:
        """Check that the data type is supported, and there are at most four dimensions."""
        if spec.data_type.name not in self.data_types():
            expected = f"a codec for elements of type {spec.data_type.name!r}"
            yield ValidationProblem(
                "name", self.name, f"{expected}; this one takes {self.data_types()}"
            )
            return
        if len(spec.shape) > _MOST_DIMENSIONS:
            expected = f"a codec for chunks of {len(spec.shape)} dimensions; zfp has at most 4"
            yield ValidationProblem("name", self.name, expected)

    def bind(self, spec: ChunkSpec) -> BoundSerializer:
        """See `Serializer.bind`."""
        return _BoundZfp(spec, self)


def _is_number(value: Any) -> bool:
    return type(value) in {int, float} and 0 <= value < math.inf


_ZFP_PARAMETERS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "tolerance": (_is_number, "a number of at least 0"),
    "rate": (lambda v: _is_number(v) and 0 < v <= 128, "a number above 0, up to 128"),
    "precision": (is_int_in(range(1, 129)), "an integer from 1 to 128"),
}


_NO_EXPERT = (
    "; the expert mode is not supported, because zfpy has no function for it: encode the array "
    "again in one of these modes, with a program that calls the zfp library itself"
)


@dataclass(frozen=True)
class Zfp(_ZfpSerializer):
    """A zfp stream without header.

    Parameters
    ----------
    mode
        ``"reversible"``, ``"fixed_accuracy"``, ``"fixed_rate"`` or ``"fixed_precision"``.
        The expert mode is refused: zfpy has no function for it.
    parameter
        The tolerance, the bits per element, or the bit planes; None if reversible.
    """

    mode: str = "reversible"
    parameter: float | None = None
    name: ClassVar[str] = "zfp"
    has_header: ClassVar[bool] = False
    names: ClassVar[Mapping[str, str]] = {
        "fixed_accuracy": "tolerance",
        "fixed_rate": "rate",
        "fixed_precision": "precision",
    }
    """The name of each mode's parameter."""

    @classmethod
    def from_config(cls, config: CodecConfig) -> Codec | None:
        """See `Codec.from_config`."""
        modes = ("reversible", *cls.names)
        expected = f"one of {list(modes)}{_NO_EXPERT}"
        mode = config.take("mode", is_one_of(*modes), expected)
        if mode is None:
            config.rest().clear()
            return None
        if mode == "reversible":
            return cls()
        name = cls.names[mode]
        fits, expected = _ZFP_PARAMETERS[name]
        return cls(mode, config.take(name, fits, expected))

    @classmethod
    def example(cls, name: str, dtype: str) -> dict[str, Any]:  # noqa: ARG003
        """See `Codec.example`."""
        return {"mode": "reversible"}

    def configuration(self) -> dict[str, Any]:
        """See `Codec.configuration`."""
        return {"mode": self.mode, **self.parameters}

    @property
    def parameters(self) -> dict[str, float]:
        """See `_ZfpSerializer.parameters`."""
        return {} if self.parameter is None else {self.names[self.mode]: self.parameter}

    def data_types(self) -> tuple[str, ...]:
        """See `_ZfpSerializer.data_types`."""
        return (*_NATIVE, *_SIGNED)


@dataclass(frozen=True)
class Zfpy(_ZfpSerializer):
    """A zfp stream with its header, as in numcodecs.

    Parameters
    ----------
    options
        Its configuration as JSON text: ``mode`` (2 fixed rate, 3 fixed precision, 4 fixed accuracy)
        and one of ``rate``, ``precision`` and ``tolerance``.
    """

    options: str = "{}"
    name: ClassVar[str] = "numcodecs.zfpy"
    has_header: ClassVar[bool] = True
    modes: ClassVar[Mapping[int, str]] = {2: "rate", 3: "precision", 4: "tolerance"}

    @classmethod
    def from_config(cls, config: CodecConfig) -> Codec:
        """See `Codec.from_config`."""
        options = dict(config.rest())
        mode = config.take("mode", lambda v: is_int(v) and v in cls.modes, "2, 3 or 4", 4)
        for name, (fits, expected) in _ZFP_PARAMETERS.items():
            used = cls.modes.get(mode) == name
            config.take(name, fits if used else any_value, expected, -1)
        config.take("compression_kwargs", any_value, "anything", None)
        return cls(json.dumps(options))

    def to_numcodecs(self) -> dict[str, Any]:
        """See `Codec.to_numcodecs`."""
        return {"id": "zfpy", **self.configuration()}

    @classmethod
    def example(cls, name: str, dtype: str) -> dict[str, Any]:  # noqa: ARG003
        """See `Codec.example`."""
        return {"mode": 4, "tolerance": 1e-3}

    def configuration(self) -> dict[str, Any]:
        """See `Codec.configuration`."""
        return dict(json.loads(self.options))

    @property
    def parameters(self) -> dict[str, float]:
        """See `_ZfpSerializer.parameters`."""
        options = self.configuration()
        parameter = self.modes[options.get("mode", 4)]
        return {parameter: options.get(parameter, -1)}


def _held(name: str) -> str:
    """Return the name of the data type that elements are stored as."""
    return _SIGNED.get(name, name)


class _BoundZfp(BoundSerializer):
    def __init__(self, spec: ChunkSpec, codec: _ZfpSerializer) -> None:
        self.spec = spec
        self._codec = codec
        self._held = np.dtype(_held(spec.data_type.name))
        self._shape: Shape = spec.shape or (1,)
        blocks = prod(-(-n // _EDGE) for n in self._shape)
        elements = _EDGE ** len(self._shape)
        rate = min(codec.parameters.get("rate", 0), _LARGEST_RATE)
        bits = elements * max(8 * self._held.itemsize + 2, rate) + _BLOCK_BITS
        self._block_bits = bits
        self._room = int(blocks * bits) // 8 + 2 * _HEADER
        fixed = int(elements * rate + 0.5)  # of every block, if not very small
        self._fewest = -(-blocks * fixed // 8) if fixed > _FEW_BITS else 1
        self.size = EncodedSize(None, self._room)

    @property
    def memory(self) -> CodecMemory:
        """See `BoundSerializer.memory`."""
        return CodecMemory(self._room + self.spec.nbytes, self._room + self.spec.nbytes)

    def encode(self, array: np.ndarray) -> list[Buffer]:
        held = np.ascontiguousarray(array).reshape(self._shape)
        if held.dtype != self._held:
            if held.size and held.max() > np.iinfo(self._held).max:
                raise DataTypeError(
                    f"{self._codec.name!r} stores {self.spec.data_type.name} as {self._held.name}, "
                    f"which cannot hold {held.max()}."
                )
            held = held.astype(self._held)
        if not held.size:
            return [b""]
        parameters = self._codec.parameters
        encoded = _library().compress_numpy(held, write_header=self._codec.has_header, **parameters)
        return [encoded]

    def decode(
        self,
        buffer: Buffer,
        region: Region | None,
        out: np.ndarray,
        reading: DecodeOptions,  # noqa: ARG002  (no chunk in here can be absent)
    ) -> None:
        if not out.size:
            return
        raw = np.frombuffer(buffer, np.uint8)
        if not self._fewest <= raw.size <= self._room:
            raise CorruptObjectError(
                f"it has {raw.size} bytes, but a zfp stream of the chunk has {self._fewest} to "
                f"{self._room}"
            )
        padded = np.zeros(self._room + _HEADER, np.uint8)
        padded[: raw.size] = raw
        held = self._decompressed(padded).reshape(self.spec.shape)
        if self._held != self.spec.dtype:
            held = np.maximum(held, 0)
        out[...] = held if region is None else held[region]

    def _decompressed(self, padded: np.ndarray) -> np.ndarray:
        library = _library()
        held: np.ndarray
        try:
            if self._codec.has_header:
                self._check_header(library.header(padded))
                held = library.decompress_numpy(padded)
            else:
                held = np.empty(self._shape, self._held)
                kind = library.dtype_to_ztype(self._held)
                library._decompress(  # noqa: SLF001  (the only way to decode without header)
                    padded, kind, self._shape, out=held, **self._codec.parameters
                )
        except (ValueError, RuntimeError, TypeError, OverflowError) as error:
            if isinstance(error, CorruptObjectError):
                raise
            raise CorruptObjectError(f"zfp cannot decompress it ({error})") from error
        return held

    def _check_header(self, header: Mapping[str, Any]) -> None:
        lengths = [header[name] for name in ("nw", "nz", "ny", "nx")]
        count = prod(length for length in lengths if length)
        least = header["config"]["expert"]["minbits"]
        if np.dtype(header["type"]) != self._held or count != prod(self._shape):
            raise CorruptObjectError(
                f"its zfp header says {lengths} elements of {header['type']}, but the chunk has "
                f"shape {self.spec.shape} and type {self.spec.data_type.name}"
            )
        blocks = prod(-(-length // _EDGE) for length in lengths if length)
        if blocks * max(least, self._block_bits) // 8 + _HEADER > self._room:
            raise CorruptObjectError(
                f"its zfp header says blocks of {least} bits and a shape of {lengths}, which take "
                f"more than {self._room} bytes"
            )
