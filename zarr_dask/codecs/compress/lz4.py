"""``lz4``: one block, with its size before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
from numcodecs import lz4 as _lz4

from zarr_dask.codecs.base import Codec, EncodedSize, Speeds
from zarr_dask.codecs.compress.compressor import Compressor, take_int
from zarr_dask.errors import CorruptObjectError
from zarr_dask.stores.base import Buffer

__all__ = ["Lz4"]


@dataclass(frozen=True)
class Lz4(Compressor):
    """The decoded size in four little-endian bytes, then an LZ4 block (not a frame)."""

    acceleration: int = 1
    name: ClassVar[str] = "lz4"
    in_numcodecs: ClassVar[bool] = True

    @classmethod
    def from_numcodecs(cls, name: str, config: dict[str, Any], dtype: str | None) -> Codec:  # noqa: ARG003
        """See `Codec.from_numcodecs`."""
        return cls(take_int(config, "acceleration", 1, range(-(1 << 31), 1 << 31)))

    @classmethod
    def example(cls, name: str, dtype: str) -> dict[str, Any]:  # noqa: ARG003
        """See `Codec.example`."""
        return {"acceleration": 1}

    def speeds(self) -> Speeds:
        """See `Codec.speeds`."""
        return Speeds(3.0e9, 1.0e9)

    def configuration(self) -> dict[str, Any]:
        """See `Codec.configuration`."""
        return {"acceleration": self.acceleration}

    def encode(self, buffer: Buffer | np.ndarray, itemsize: int) -> Buffer:  # noqa: ARG002
        """See `BytesCodec.encode`."""
        return cast("bytes", _lz4.compress(buffer, self.acceleration))

    def decode(self, buffer: Buffer, size: EncodedSize) -> Buffer:
        """See `BytesCodec.decode`."""
        if len(buffer) < 4:
            raise CorruptObjectError(f"{len(buffer)} bytes are fewer than an lz4 header")
        nbytes = int.from_bytes(memoryview(buffer)[:4], "little")
        size.check("lz4 block", nbytes)
        out = np.empty(nbytes, np.uint8)
        self.decode_into(buffer, out)
        return out.data

    def decode_into(self, buffer: Buffer, out: np.ndarray) -> None:
        """See `BytesCodec.decode_into`."""
        if len(buffer) < 4:
            raise CorruptObjectError(f"{len(buffer)} bytes are fewer than an lz4 header")
        nbytes = int.from_bytes(memoryview(buffer)[:4], "little")
        EncodedSize.of(out.size).check("lz4 block", nbytes)
        try:
            _lz4.decompress(buffer, out)
        except (RuntimeError, ValueError) as error:
            raise CorruptObjectError(f"lz4 cannot decompress it ({error})") from error
