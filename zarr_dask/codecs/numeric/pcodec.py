"""``numcodecs.pcodec``: numbers compressed by the package pcodec."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, ClassVar

import numpy as np

from zarr_dask._util.json_fields import is_int_in
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
from zarr_dask.grid.grid import Region
from zarr_dask.stores.base import Buffer

__all__ = ["Pcodec"]

_DATA_TYPES = (
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (16, 32, 64)),
    *(f"float{bits}" for bits in (16, 32, 64)),
)


@dataclass(frozen=True)
class Pcodec(Serializer):
    """A standalone file of pcodec.

    Parameters
    ----------
    options
        Its configuration as JSON text, as in numcodecs: ``level``, ``mode_spec``, ``delta_spec``,
        ``paging_spec``, ``delta_encoding_order``, ``equal_pages_up_to``.
    """

    options: str = "{}"
    name: ClassVar[str] = "numcodecs.pcodec"

    @classmethod
    def from_config(cls, config: CodecConfig) -> Codec:
        """See `Codec.from_config`."""
        options = dict(config.rest())
        config.take("level", is_int_in(range(13)), "an integer from 0 to 12", 8)
        for name in ("mode_spec", "delta_spec", "paging_spec"):
            config.take(name, lambda v: isinstance(v, str), "a text", None)
        order = is_int_in(range(8))
        config.take(
            "delta_encoding_order", lambda v: v is None or order(v), "0 to 7, or null", None
        )
        pages = is_int_in(range(1, 1 << 32))
        config.take("equal_pages_up_to", pages, "a positive integer", 1 << 18)
        return cls(json.dumps(options))

    def to_numcodecs(self) -> dict[str, Any]:
        """See `Codec.to_numcodecs`."""
        return {"id": "pcodec", **self.configuration()}

    @classmethod
    def example(cls, name: str, dtype: str) -> dict[str, Any]:  # noqa: ARG003
        """See `Codec.example`."""
        return {"level": 8}

    def configuration(self) -> dict[str, Any]:
        """See `Codec.configuration`."""
        return dict(json.loads(self.options))

    def problems(self, spec: ChunkSpec) -> Iterator[ValidationProblem]:
        """Check that the data type is supported."""
        if spec.data_type.name not in _DATA_TYPES:
            expected = f"a codec for elements of type {spec.data_type.name!r}"
            yield ValidationProblem("name", self.name, f"{expected}; this one takes {_DATA_TYPES}")

    def bind(self, spec: ChunkSpec) -> BoundSerializer:
        """See `Serializer.bind`."""
        return _BoundPcodec(spec, self)

    @cached_property
    def encoder(self) -> Any:
        """The codec of numcodecs, which translates its configuration for the package.

        Raises
        ------
        MissingDependencyError
            If the package is not installed.
        DataTypeError
            If the configuration is invalid.
        """
        _library()
        from numcodecs.pcodec import PCodec

        try:
            return PCodec(**self.configuration())
        except (TypeError, ValueError) as error:
            raise DataTypeError(
                f"{self.name!r} cannot encode with {self.options}: {error}"
            ) from error


def _library() -> Any:
    try:
        from pcodec import standalone
    except ImportError as error:
        raise MissingDependencyError(
            "chunks compressed by pcodec need the package: pip install 'zarr-dask[pcodec]'"
        ) from error
    return standalone


class _BoundPcodec(BoundSerializer):
    def __init__(self, spec: ChunkSpec, codec: Pcodec) -> None:
        self.spec = spec
        self._codec = codec
        self.size = EncodedSize.of(spec.nbytes).compressed()

    @property
    def memory(self) -> CodecMemory:
        """See `BoundSerializer.memory`."""
        return CodecMemory(self.spec.nbytes, self.spec.nbytes)

    def encode(self, array: np.ndarray) -> list[Buffer]:
        try:
            encoded: bytes = self._codec.encoder.encode(np.ascontiguousarray(array))
        except (TypeError, ValueError, RuntimeError) as error:
            if isinstance(error, DataTypeError):
                raise
            raise DataTypeError(f"pcodec cannot encode a chunk ({error}).") from error
        return [encoded]

    def decode(
        self,
        buffer: Buffer,
        region: Region | None,
        out: np.ndarray,
        reading: DecodeOptions,  # noqa: ARG002  (no chunk in here can be absent)
    ) -> None:
        numbers = np.empty(prod(self.spec.shape), self.spec.dtype)
        try:
            progress = _library().simple_decompress_into(bytes(buffer), numbers)
        except (TypeError, ValueError, RuntimeError) as error:
            raise CorruptObjectError(f"pcodec cannot decompress it ({error})") from error
        if progress.n_processed != numbers.size or not progress.finished:
            raise CorruptObjectError(
                f"pcodec gives {progress.n_processed} numbers of it, and has finished: "
                f"{progress.finished}; the chunk has {numbers.size}"
            )
        chunk = numbers.reshape(self.spec.shape)
        out[...] = chunk if region is None else chunk[region]
