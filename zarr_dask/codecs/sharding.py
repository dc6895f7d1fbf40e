"""``sharding_indexed``: a chunk that holds a grid of smaller chunks and an index of them.

A shard is a codec that happens to contain a `Grid`. All of it is decoded from one buffer; a
region of it is fetched in two rounds, the index and then the chunks that the region meets.
(Zarr v3 codec ``sharding_indexed``, version 1.0.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, ClassVar, Literal

import numpy as np

from zarr_dask.codecs.arrays import Bytes
from zarr_dask.codecs.base import (
    BoundSerializer,
    ChunkSpec,
    Codec,
    Cut,
    Reading,
    Serializer,
    Size,
)
from zarr_dask.codecs.chain import Chain, fill_absent
from zarr_dask.codecs.checksum import Crc32c
from zarr_dask.codecs.fetch import Fetch, abreast, window
from zarr_dask.dtypes import data_type_of, is_full_of
from zarr_dask.errors import CorruptObjectError, Problem
from zarr_dask.grid import Grid, Part, Region, Shape, cut
from zarr_dask.stores.base import Buffer, Range

__all__ = ["DEFAULT_INDEX_CODECS", "IndexLocation", "Sharding"]

IndexLocation = Literal["start", "end"]

Coords = tuple[int, ...]

_ABSENT = (1 << 64) - 1
_INDEX_DTYPE = np.dtype("uint64")
_MAX_KEPT_PARTS = 1 << 16

DEFAULT_INDEX_CODECS = Chain((), Bytes("little"), (Crc32c(),))
"""What the specification recommends: little-endian integers and a checksum."""


@dataclass(frozen=True)
class Sharding(Serializer):
    """Chunks of one shape within a larger chunk.

    Parameters
    ----------
    chunk_shape
        Shape of the inner chunks; divides that of the shard.
    codecs
        How an inner chunk becomes bytes.
    index_codecs
        How the index does; of a size that does not depend on its values.
    index_location
        Where the index is.
    """

    chunk_shape: Shape
    codecs: Chain
    index_codecs: Chain = DEFAULT_INDEX_CODECS
    index_location: IndexLocation = "end"
    name: ClassVar[str] = "sharding_indexed"
    divides: ClassVar[bool] = True

    def configuration(self) -> dict[str, Any]:
        """See `Codec.configuration`."""
        return {
            "chunk_shape": list(self.chunk_shape),
            "codecs": [codec.document() for codec in self.codecs.codecs],
            "index_codecs": [codec.document() for codec in self.index_codecs.codecs],
            "index_location": self.index_location,
        }

    @property
    def inner_codecs(self) -> tuple[Codec, ...]:
        """See `Serializer.inner_codecs`."""
        return self.codecs.codecs

    def inner_shape(self, shape: Shape) -> Shape:  # noqa: ARG002  (the inner grid is given)
        """See `Serializer.inner_shape`."""
        return self.codecs.inner_shape(self.chunk_shape)

    def problems(self, spec: ChunkSpec) -> Iterator[Problem]:
        """The inner chunks must fill the shard, and the index must have a known size."""
        if len(self.chunk_shape) != len(spec.shape) or any(
            inner < 1 or outer % inner
            for outer, inner in zip(spec.shape, self.chunk_shape, strict=True)
        ):
            yield Problem(
                "configuration.chunk_shape",
                list(self.chunk_shape),
                f"lengths that divide those of the shard, {list(spec.shape)}",
                "grid",
            )
            return
        inner = spec.with_shape(self.chunk_shape)
        for problem in self.codecs.problems(inner):
            yield _inside("codecs", problem)
        index = _index_spec(spec.shape, self.chunk_shape)
        index_problems = [_inside("index_codecs", p) for p in self.index_codecs.problems(index)]
        yield from index_problems
        if not index_problems and self.index_codecs.bind(index).size.exact is None:
            yield Problem(
                "configuration.index_codecs",
                [codec.name for codec in self.index_codecs.codecs],
                "codecs whose output has a fixed size, such as 'bytes' and 'crc32c'",
            )

    def bind(self, spec: ChunkSpec) -> BoundSerializer:
        """See `Serializer.bind`."""
        return _BoundSharding(self, spec)


def _inside(member: str, problem: Problem) -> Problem:
    place = problem.field.removeprefix("codecs")
    return Problem(f"configuration.{member}{place}", problem.found, problem.expected, problem.kind)


def _index_spec(shape: Shape, chunk_shape: Shape) -> ChunkSpec:
    counts = tuple(outer // inner for outer, inner in zip(shape, chunk_shape, strict=True))
    return ChunkSpec((*counts, 2), data_type_of(_INDEX_DTYPE), np.array(_ABSENT, _INDEX_DTYPE))


class _BoundSharding(BoundSerializer):
    partial = True

    def __init__(self, codec: Sharding, spec: ChunkSpec) -> None:
        self.spec = spec
        self._grid = Grid.regular(spec.shape, codec.chunk_shape)
        self._inner = codec.codecs.bind(spec.with_shape(codec.chunk_shape))
        self._index_spec = _index_spec(spec.shape, codec.chunk_shape)
        self._index = codec.index_codecs.bind(self._index_spec)
        self._index_size = self._index.size.most
        self._index_first = codec.index_location == "start"
        # gaps between chunks are legal, so the bound is generous
        inner_most = self._inner.size.most
        self.size = Size(None, 2 * (prod(self._grid.counts) * inner_most + self._index_size))

    @property
    def working(self) -> int:
        """See `BoundSerializer.working`."""
        return self._inner.working

    # --- writing --------------------------------------------------------------------------------

    def encode(self, array: np.ndarray) -> list[Buffer]:
        fill = self.spec.fill
        index = np.full(self._index_spec.shape, _ABSENT, _INDEX_DTYPE)
        buffers: list[Buffer] = []
        offset = self._index_size if self._index_first else 0
        for part in self._all_parts:
            chunk = cut(array, part.out)
            if fill is not None and is_full_of(chunk, fill):
                continue
            pieces = self._inner.encode(chunk)
            nbytes = sum(len(piece) for piece in pieces)
            index[part.coords] = (offset, nbytes)
            buffers.extend(pieces)
            offset += nbytes
        encoded = self._index.encode(index)
        return [*encoded, *buffers] if self._index_first else [*buffers, *encoded]

    @cached_property
    def _all_parts(self) -> Sequence[Part]:
        return tuple(self._grid.parts(self._grid.everything))

    # --- reading from all bytes -----------------------------------------------------------------

    def decode(
        self, buffer: Buffer, region: Region | None, out: np.ndarray, reading: Reading
    ) -> None:
        shard = memoryview(buffer)
        index = self._decode_index(self._cut_index(shard))
        for part in self._parts(region):
            offset, nbytes = index[part.coords].tolist()
            destination = cut(out, part.out)
            if offset == _ABSENT and nbytes == _ABSENT:
                self._fill(part.coords, destination, reading)
                continue
            if offset + nbytes > len(shard):
                raise _outside(offset, nbytes, len(shard)).inside(part.coords)
            inside = None if destination.shape == self._inner.spec.shape else part.inside
            try:
                self._inner.decode(shard[offset : offset + nbytes], inside, destination, reading)
            except CorruptObjectError as error:
                raise error.inside(part.coords) from error

    def _parts(self, region: Region | None) -> Iterator[Part] | Sequence[Part]:
        if region is not None:
            return self._grid.parts(region)
        if self._grid.ncells > _MAX_KEPT_PARTS:
            return self._grid.parts(self._grid.everything)
        return self._all_parts

    def _cut_index(self, shard: memoryview) -> memoryview:
        if len(shard) < self._index_size:
            raise CorruptObjectError(
                f"it has {len(shard)} bytes, fewer than the {self._index_size} of its index"
            )
        return shard[: self._index_size] if self._index_first else shard[-self._index_size :]

    def _decode_index(self, encoded: Buffer) -> np.ndarray:
        index = np.empty(self._index_spec.shape, _INDEX_DTYPE)
        try:
            self._index.decode(encoded, None, index, Reading())
        except CorruptObjectError as error:
            raise CorruptObjectError(f"its shard index does not decode: {error.reason}") from error
        return index

    def _fill(self, coords: Coords, destination: np.ndarray, reading: Reading) -> None:
        fill_absent(destination, self.spec, reading, f"chunk {coords} of the shard")

    # --- reading a region -----------------------------------------------------------------------

    def read(self, cuts: Sequence[Cut], reading: Reading) -> Fetch[bool]:
        size = self._index_size
        received = yield (Range(0, size) if self._index_first else Range(-size, None),)
        if received is None:
            return False
        index = self._decode_index(self._cut_index(memoryview(received[0])))
        yield from abreast(
            [
                self._chunk(coords, index[coords].tolist(), inner, reading)
                for coords, inner in self._cuts_by_chunk(cuts).items()
            ]
        )
        return True

    def _cuts_by_chunk(self, cuts: Sequence[Cut]) -> dict[Coords, list[Cut]]:
        """What is wanted of each inner chunk."""
        found: dict[Coords, list[Cut]] = {}
        shape = self._inner.spec.shape
        for region, out in cuts:
            for part in self._parts(region):
                destination = cut(out, part.out)
                inside = None if destination.shape == shape else part.inside
                found.setdefault(part.coords, []).append(Cut(inside, destination))
        return found

    def _chunk(
        self, coords: Coords, place: list[int], cuts: list[Cut], reading: Reading
    ) -> Fetch[None]:
        offset, nbytes = place
        if offset == _ABSENT and nbytes == _ABSENT:
            for _, out in cuts:
                self._fill(coords, out, reading)
            return
        if nbytes > self._inner.size.most or offset + nbytes >= 1 << 63:
            raise CorruptObjectError(
                f"the shard index gives it {nbytes} bytes from byte {offset} on"
            ).inside(coords)
        try:
            present = yield from window(
                self._inner.read_cuts(cuts, reading, whole=False), offset, nbytes
            )
        except CorruptObjectError as error:
            raise error.inside(coords) from error
        if not present:
            raise CorruptObjectError("it was removed while it was being read").inside(coords)


def _outside(offset: int, nbytes: int, length: int) -> CorruptObjectError:
    return CorruptObjectError(
        f"the shard index points to bytes {offset} to {offset + nbytes} of {length}"
    )
