"""Regions of the blocks of a dask array: computed on demand, a few numbers when pickled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from dask.layers import ArrayBlockwiseDep

from zarr_dask.grid.grid import Blocks, Shape

__all__ = ["BlockRegions", "PackedBlocks", "pack_blocks", "unpack_blocks"]

PackedSizes = tuple[str, tuple[int, ...]]
PackedBlocks = tuple[PackedSizes, ...]
"""Sizes of blocks along each dimension, in three numbers if they are equal."""


class BlockRegions(ArrayBlockwiseDep):
    """The region of each block, computed on demand.

    Parameters
    ----------
    chunks
        Sizes of the blocks along each dimension.
    origin
        Offset of the first block.
    """

    def __init__(self, chunks: Blocks, origin: Shape) -> None:
        super().__init__(chunks)
        self.origin = origin
        self._edges = [_edges(sizes) for sizes in chunks]

    def __getitem__(self, idx: tuple[int, ...]) -> tuple[slice, ...]:
        region = []
        for position, edge, start in zip(idx, self._edges, self.origin, strict=True):
            low, high = edge(position)
            region.append(slice(start + low, start + high, None))
        return tuple(region)

    def __reduce__(self) -> tuple[Any, ...]:
        return _regions, (pack_blocks(self.chunks), self.origin)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return "BlockRegions", pack_blocks(self.chunks), self.origin


def _regions(blocks: PackedBlocks, origin: Shape) -> BlockRegions:
    return BlockRegions(unpack_blocks(blocks), origin)


def pack_blocks(blocks: Blocks) -> PackedBlocks:
    """Return the sizes of blocks in a form that is small when pickled."""
    return tuple(map(_packed_sizes, blocks))


def unpack_blocks(blocks: PackedBlocks) -> Blocks:
    """Return the sizes that `pack_blocks` was given."""
    return tuple(map(_unpacked_sizes, blocks))


def _packed_sizes(sizes: Sequence[int]) -> PackedSizes:
    """Return equal sizes, with a shorter last one, as three numbers; others as they are."""
    if len(sizes) > 3 and len(set(sizes[:-1])) == 1:
        return "equal", (len(sizes), sizes[0], sizes[-1])
    return "listed", tuple(sizes)


def _unpacked_sizes(sizes: PackedSizes) -> tuple[int, ...]:
    kind, numbers = sizes
    if kind == "listed":
        return numbers
    count, size, last = numbers
    return (size,) * (count - 1) + (last,)


def _edges(sizes: Sequence[int]) -> Callable[[int], tuple[int, int]]:
    """Return a function for the start and end of a block by its number."""
    kind, numbers = _packed_sizes(sizes)
    if kind == "equal":
        count, size, last = numbers
        return lambda i: (i * size, i * size + (last if i == count - 1 else size))
    starts = tuple(accumulate(numbers, initial=0))
    return lambda i: (starts[i], starts[i + 1])
