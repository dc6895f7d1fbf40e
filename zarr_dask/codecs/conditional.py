"""``conditional``: codecs that each chunk may leave out (registry of Zarr extensions)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from zarr_dask._util.json_fields import is_codec_list, is_int_in
from zarr_dask.codecs.base import BytesCodec, ChunkSpec, Codec, EncodedSize
from zarr_dask.codecs.codec_config import CodecConfig
from zarr_dask.codecs.registry import codec_from_v3
from zarr_dask.errors import CorruptObjectError, ValidationProblem
from zarr_dask.stores.base import Buffer

__all__ = ["Conditional"]


_MOST_HEADER_BITS = 1 << 16


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
    peak_copies: ClassVar[int] = 3

    @classmethod
    def from_config(cls, config: CodecConfig) -> Codec:
        """See `Codec.from_config`."""
        documents = config.take("codecs", is_codec_list, "a list of at most 1000 codecs")
        fewest = -(-len(documents or ()) // 8) * 8
        bits = config.take(
            "header_bits",
            is_int_in(range(fewest, _MOST_HEADER_BITS + 1, 8)),
            f"a multiple of 8 from {fewest} to {_MOST_HEADER_BITS}",
            None,
        )
        codecs = []
        for position, document in enumerate(documents or ()):
            place = config.at(f"codecs[{position}]")
            made = codec_from_v3(document, place, config.stored)
            if isinstance(made, list):
                config.problems.extend(made)
            elif isinstance(made, BytesCodec):
                codecs.append(made)
            else:
                expected = "a codec from bytes to bytes"
                config.problems.append(ValidationProblem(place, made.name, expected))
        return cls(tuple(codecs), bits)

    @classmethod
    def example(cls, name: str, dtype: str) -> dict[str, Any]:  # noqa: ARG003
        """See `Codec.example`."""
        gzip = {"name": "gzip", "configuration": {"level": 1}}
        return {"header_bits": 8, "codecs": [gzip]}

    def configuration(self) -> dict[str, Any]:
        """See `Codec.configuration`."""
        bits = {} if self.header_bits is None else {"header_bits": self.header_bits}
        return {"codecs": [codec.document() for codec in self.codecs], **bits}

    @property
    def _header(self) -> int:
        """Bytes of the header."""
        return -(-len(self.codecs) // 8) if self.header_bits is None else self.header_bits // 8

    def problems(self, spec: ChunkSpec) -> Iterator[ValidationProblem]:
        """Yield the problems of its codecs."""
        for position, codec in enumerate(self.codecs):
            for problem in codec.problems(spec):
                place = f"configuration.codecs[{position}].{problem.field}".rstrip(".")
                yield ValidationProblem(place, problem.found, problem.expected, problem.kind)

    def size(self, size: EncodedSize) -> EncodedSize:
        """See `BytesCodec.size`."""
        most = size
        for codec in self.codecs:
            most = codec.size(most)
        return EncodedSize(None, max(size.most, most.most) + self._header)

    def encoder_state_nbytes(self, nbytes: int) -> int:
        """See `BytesCodec.encoder_state_nbytes`: the codecs run one at a time."""
        return max((codec.encoder_state_nbytes(nbytes) for codec in self.codecs), default=0)

    def decoder_state_nbytes(self, nbytes: int) -> int:
        """See `BytesCodec.decoder_state_nbytes`."""
        return max((codec.decoder_state_nbytes(nbytes) for codec in self.codecs), default=0)

    def encode(self, buffer: Buffer | np.ndarray, itemsize: int) -> Buffer:
        """See `BytesCodec.encode`."""
        mask = 0
        for position, codec in enumerate(self.codecs):
            before = memoryview(buffer).nbytes
            encoded = codec.encode(buffer, itemsize)
            if codec.size(EncodedSize.of(before)).exact is not None or len(encoded) < before:
                mask |= 1 << position
                buffer = encoded
        return b"".join((mask.to_bytes(self._header, "little"), buffer))

    def decode(self, buffer: Buffer, size: EncodedSize) -> Buffer:
        """See `BytesCodec.decode`."""
        first, body, expected = self._all_but_first(buffer, size)
        if first is not None:
            body = first.decode(body, expected)
        if len(body) > size.most or (size.exact is not None and len(body) != size.exact):
            raise CorruptObjectError(f"it has {len(body)} bytes, but the chunk has {size.most}")
        return body

    def decode_into(self, buffer: Buffer, out: np.ndarray) -> None:
        """See `BytesCodec.decode_into`; the codec that is undone last fills the memory."""
        first, body, _ = self._all_but_first(buffer, EncodedSize.of(out.size))
        if first is not None:
            first.decode_into(body, out)
            return
        if len(body) != out.size:
            raise CorruptObjectError(f"it has {len(body)} bytes, but the chunk has {out.size}")
        out[:] = np.frombuffer(body, np.uint8)

    def _all_but_first(
        self, buffer: Buffer, size: EncodedSize
    ) -> tuple[BytesCodec | None, Buffer, EncodedSize]:
        """Undo the applied codecs but the first; return it, its input, and the size it gives."""
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
        for codec, expected in zip(reversed(applied[1:]), reversed(sizes[1:-1]), strict=True):
            body = codec.decode(body, expected)
        return (applied[0] if applied else None), body, size
