"""``conditional``: codecs that each chunk may leave out (registry of Zarr extensions)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from zarr_dask.codecs.base import BytesCodec, ChunkSpec, Size
from zarr_dask.errors import CorruptObjectError, Problem
from zarr_dask.stores.base import Buffer

__all__ = ["Conditional"]


@dataclass(frozen=True)
class Conditional(BytesCodec):
    """A bit for each codec, 1 if it was applied, then the bytes.

    Codecs whose output has a known size are always applied in encoding, others only if they make
    the data smaller.

    Parameters
    ----------
    codecs
        From bytes to bytes.
    header_bits
        Bits of the header, a multiple of 8 and at least one for each codec; None for the smallest.
    """

    codecs: tuple[BytesCodec, ...]
    header_bits: int | None = None
    name: ClassVar[str] = "conditional"
    may_alias: ClassVar[bool] = False
    copies: ClassVar[int] = 3

    def configuration(self) -> dict[str, Any]:
        """See `Codec.configuration`."""
        bits = {} if self.header_bits is None else {"header_bits": self.header_bits}
        return {"codecs": [codec.document() for codec in self.codecs], **bits}

    @property
    def _header(self) -> int:
        """Bytes of the header."""
        return -(-len(self.codecs) // 8) if self.header_bits is None else self.header_bits // 8

    def problems(self, spec: ChunkSpec) -> Iterator[Problem]:
        """Yield the problems of its codecs."""
        for position, codec in enumerate(self.codecs):
            for problem in codec.problems(spec):
                place = f"configuration.codecs[{position}].{problem.field}".rstrip(".")
                yield Problem(place, problem.found, problem.expected, problem.kind)

    def size(self, size: Size) -> Size:
        """See `BytesCodec.size`."""
        most = size
        for codec in self.codecs:
            most = codec.size(most)
        return Size(None, max(size.most, most.most) + self._header)

    def tables(self, nbytes: int) -> int:
        """See `BytesCodec.tables`: the codecs run one at a time."""
        return max((codec.tables(nbytes) for codec in self.codecs), default=0)

    def decoding(self, nbytes: int) -> int:
        """See `BytesCodec.decoding`."""
        return max((codec.decoding(nbytes) for codec in self.codecs), default=0)

    def encode(self, buffer: Buffer | np.ndarray, itemsize: int) -> Buffer:
        """See `BytesCodec.encode`."""
        mask = 0
        for position, codec in enumerate(self.codecs):
            before = memoryview(buffer).nbytes
            encoded = codec.encode(buffer, itemsize)
            if codec.size(Size.of(before)).exact is not None or len(encoded) < before:
                mask |= 1 << position
                buffer = encoded
        return b"".join((mask.to_bytes(self._header, "little"), buffer))

    def decode(self, buffer: Buffer, size: Size) -> Buffer:
        """See `BytesCodec.decode`."""
        view = memoryview(buffer)
        if len(view) < self._header:
            raise CorruptObjectError(f"{len(view)} bytes are fewer than its {self._header} of bits")
        mask = int.from_bytes(view[: self._header], "little")
        if mask >> len(self.codecs):
            raise CorruptObjectError(
                f"its header {mask:#x} has bits beyond those of its {len(self.codecs)} codecs"
            )
        applied = [codec for n, codec in enumerate(self.codecs) if mask >> n & 1]
        sizes = [size]
        for codec in applied:
            sizes.append(codec.size(sizes[-1]))
        body: Buffer = view[self._header :]
        for codec, expected in zip(reversed(applied), reversed(sizes[:-1]), strict=True):
            body = codec.decode(body, expected)
        if len(body) > size.most or (size.exact is not None and len(body) != size.exact):
            raise CorruptObjectError(f"it has {len(body)} bytes, but the chunk has {size.most}")
        return body
