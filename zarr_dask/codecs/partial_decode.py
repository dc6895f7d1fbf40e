"""Decoding of the wanted blocks of a chunk, where the last step decodes blocks one by one.

A `BoundCodecChain` has a `PartialDecoder` if the last step of decoding supports it and the chunk is
large enough. `PartialDecoder.pays` tells if it pays for some regions; plans know the same bound
(`largest_partial_read`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from zarr_dask.codecs.base import (
    ByteRequest,
    BytesCodec,
    ChunkRead,
    ChunkSpec,
    DecodedBytes,
    largest_partial_read,
)
from zarr_dask.codecs.chunk_batches import fast_copyto
from zarr_dask.codecs.fetch import Fetch, byte_ranges_of
from zarr_dask.grid.grid import Region

__all__ = ["PartialDecoder"]


class PartialDecoder:
    """The decoder of regions of a chunk; they are regions of the array that was serialized.

    Parameters
    ----------
    codec
        The last step of decoding, whose results are the elements' memory.
    spec
        The serialized array.
    swapped
        The type whose bytes are in the other order, if they are.
    """

    def __init__(self, codec: BytesCodec, spec: ChunkSpec, swapped: np.dtype[Any] | None) -> None:
        self._codec = codec
        self._spec = spec
        self._swapped = swapped
        # rows are those along the first dimension that is longer than 1; bytes of each, or 0
        axis = next((axis for axis, length in enumerate(spec.shape) if length > 1), None)
        self._axis = axis or 0
        self._row = 0 if axis is None else spec.nbytes // spec.shape[axis]

    @property
    def block_nbytes(self) -> int:
        """Largest block in bytes."""
        return self._codec.partial_decode_nbytes(self._spec.nbytes)

    def pays(self, cuts: Sequence[ChunkRead]) -> bool:
        """Return True if the cuts are such a small part that locating their bytes pays."""
        wanted = 0
        for region, out in cuts:
            if region is None:
                return False
            wanted += out.nbytes
        return wanted <= largest_partial_read(self._spec.nbytes, len(cuts))

    def read(
        self, cuts: Sequence[ChunkRead], before_whole: Callable[[], None] | None = None
    ) -> Fetch[bool]:
        """Fetch and decode the blocks that the cuts need; return False if nothing is stored.

        Parameters
        ----------
        cuts
            The regions and their destinations.
        before_whole
            See `DecodeOptions.before_whole`.
        """
        parts = [(region, out) for region, out in cuts if region is not None]
        wanted = self._request([region for region, _ in parts])
        found = yield from self._codec.partial_decode(wanted, before_whole)
        if found is None:
            return False
        for region, out in parts:
            self._put(found, region, out)
        return True

    def _request(self, regions: Sequence[Region]) -> ByteRequest:
        """Return the bytes of some regions; there is memory for whole rows."""
        shape, nbytes = self._spec.shape, self._spec.nbytes
        spans = byte_ranges_of(shape, self._spec.dtype.itemsize, regions)
        row = self._row
        if not row or not spans:
            return ByteRequest(nbytes, 0, nbytes if spans else 0, spans)
        first, stop = spans[0][0] // row * row, -(-spans[-1][1] // row) * row
        return ByteRequest(nbytes, first, stop, spans)

    def _put(self, found: DecodedBytes, region: Region, out: np.ndarray) -> None:
        """Copy a region from memory that has its rows as they are stored."""
        if not out.size:
            return
        dtype = self._spec.dtype
        if self._swapped is not None:  # not always its own type, as NumPy cannot swap all of them
            dtype, out = self._swapped.newbyteorder(), out.view(self._swapped)
        memory, shape = found.memory, list(self._spec.shape)
        if self._row:
            taken, axis = region[self._axis], self._axis
            rows = range(taken.start, taken.stop, taken.step)
            shape[axis] = rows[-1] + 1 - rows.start
            first = rows.start * self._row - found.first
            memory = memory[first : first + shape[axis] * self._row]
            within = slice(0, shape[axis], taken.step)
            region = (*region[:axis], within, *region[axis + 1 :])
        fast_copyto(memory.view(dtype).reshape(shape)[region], into=out)
