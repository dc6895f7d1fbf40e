"""Codecs that are not known but may be skipped, because the metadata allows it.

Metadata may mark a codec with ``"must_understand": false`` (core specification, "Extension
definition"). Reading then skips it. Writing is not possible, because the input of its neighbours is
not known.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from zarr_dask.codecs.base import ArrayCodec, BytesCodec, ChunkSpec, Codec, EncodedSize
from zarr_dask.errors import CorruptObjectError, DataTypeError
from zarr_dask.stores.base import Buffer

__all__ = ["UnknownArrayCodec", "UnknownBytesCodec"]


@dataclass(frozen=True)
class _UnknownCodec(Codec):
    """The common part of both kinds: the metadata, as JSON text."""

    text: str
    is_unknown: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """See `Codec.name`."""
        return str(self.document()["name"])

    def configuration(self) -> dict[str, Any]:
        """See `Codec.configuration`."""
        return dict(self.document().get("configuration", {}))

    def document(self) -> dict[str, Any]:
        """See `Codec.document`."""
        return dict(json.loads(self.text))

    def _refusal(self) -> DataTypeError:
        return DataTypeError(f"codec {self.name!r} is not known, so that nothing can be written.")


@dataclass(frozen=True)
class UnknownArrayCodec(_UnknownCodec, ArrayCodec):
    """A skipped codec from array to array."""

    def output(self, spec: ChunkSpec) -> ChunkSpec:
        """See `ArrayCodec.output`."""
        return spec

    def view(self, array: np.ndarray) -> np.ndarray:
        """See `ArrayCodec.view`."""
        return array

    def encode(self, array: np.ndarray, spec: ChunkSpec) -> np.ndarray:  # noqa: ARG002
        """See `ArrayCodec.encode`."""
        raise self._refusal()

    def decode(self, encoded: np.ndarray, spec: ChunkSpec, out: np.ndarray) -> None:  # noqa: ARG002
        """See `ArrayCodec.decode`."""
        out[...] = encoded


@dataclass(frozen=True)
class UnknownBytesCodec(_UnknownCodec, BytesCodec):
    """A skipped codec from bytes to bytes."""

    peak_copies: ClassVar[int] = 0

    def size(self, size: EncodedSize) -> EncodedSize:
        """See `BytesCodec.size`."""
        return size

    def encode(self, buffer: Buffer | np.ndarray, itemsize: int) -> Buffer:  # noqa: ARG002
        """See `BytesCodec.encode`."""
        raise self._refusal()

    def decode(self, buffer: Buffer, size: EncodedSize) -> Buffer:
        """See `BytesCodec.decode`."""
        if len(buffer) != (len(buffer) if size.exact is None else size.exact):
            raise CorruptObjectError(
                f"it has {len(buffer)} bytes where {size.exact} were expected, with the unknown "
                f"codec {self.name!r} skipped"
            )
        return buffer
