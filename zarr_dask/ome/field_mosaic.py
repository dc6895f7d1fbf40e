"""Images of one well as one image, each at its position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from zarr_dask.array.array import Array
from zarr_dask.errors import DataTypeError, GridError
from zarr_dask.ome.levels import Level

if TYPE_CHECKING:
    import dask.array as da

__all__ = ["FieldMosaic", "check_alike"]


@dataclass(frozen=True, eq=False)
class FieldMosaic:
    """Levels of the images of a well, along their last two axes where their positions say."""

    levels: tuple[Level, ...]
    """One level of each image; the later is on top."""
    offsets: tuple[tuple[int, int], ...]
    """First row and column of each."""

    @staticmethod
    def of(levels: Sequence[Level]) -> FieldMosaic:
        """Return levels at their positions, to the nearest pixel.

        Raises
        ------
        DataTypeError
            If they are of different data types.
        GridError
            If they differ along axes other than the last two, or in the sizes of pixels, or lie so
            far apart that most of the mosaic would be empty.
        """
        first = levels[0]
        if min(first.scale[-2:]) <= 0:
            raise GridError(f"{first.array.where} has pixels of {first.scale}, not above 0.")
        for level in levels:
            check_alike(level, first)
            if (level.scale, level.units) != (first.scale, first.units):
                raise GridError(
                    f"{level.array.where} has pixels of {level.scale} {level.units}, "
                    f"{first.array.where} of {first.scale} {first.units}: fields at their "
                    "positions need pixels of one size; open them one by one."
                )
        least = [min(level.translation[i] for level in levels) for i in (-2, -1)]
        offsets = [
            tuple(
                (level.translation[i] - low) / first.scale[i]
                for i, low in zip((-2, -1), least, strict=True)
            )
            for level in levels
        ]
        extent = prod(
            max(at[i] + level.shape[i] for at, level in zip(offsets, levels, strict=True))
            for i in (-2, -1)
        )
        pixels = sum(prod(level.shape[-2:]) for level in levels)
        if not extent <= _EMPTIEST * max(pixels, 1):
            raise GridError(
                f"{first.array.where}: the positions of {len(levels)} fields span {extent:.3g} "
                f"pixels, and they have {pixels}: positions are wrong, or in another unit."
            )
        return FieldMosaic(tuple(levels), tuple((round(y), round(x)) for y, x in offsets))

    @property
    def array(self) -> Array:
        """The array of the first image."""
        return self.levels[0].array

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the axes."""
        return self.levels[0].axes

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of pixels along each axis."""
        ends = (
            (y + level.shape[-2], x + level.shape[-1])
            for (y, x), level in zip(self.offsets, self.levels, strict=True)
        )
        return (*self.levels[0].shape[:-2], *map(max, (0, 0), *ends))

    def to_dask(self, chunks: Any = None) -> da.Array:
        """Return the pixels as a lazy dask array; 0 where there is no image."""
        import dask.array as da
        from dask.array.core import normalize_chunks

        first = self.levels[0]
        if chunks is None:
            chunks = tuple(max(sizes, default=1) for sizes in first.to_dask().chunks)
        elif isinstance(chunks, Mapping):
            chunks = {
                self.axes.index(key) if key in self.axes else key: size
                for key, size in chunks.items()
            }
        sizes = normalize_chunks(chunks, self.shape, dtype=self.array.dtype)
        tiles = tuple(
            (level.array, at) for level, at in zip(self.levels, self.offsets, strict=True)
        )
        return da.map_blocks(
            _pasted,
            tiles,
            chunks=sizes,
            dtype=self.array.dtype,
            meta=np.empty((0,) * len(sizes), self.array.dtype),
        )


_EMPTIEST = 1000
"""Maximum ratio of the pixels of a mosaic to those of its images."""


def _pasted(tiles: Sequence[tuple[Array, tuple[int, int]]], block_info: Any = None) -> np.ndarray:
    """Return one block of a mosaic."""
    place = [slice(*ends) for ends in block_info[None]["array-location"]]
    block = np.zeros([one.stop - one.start for one in place], block_info[None]["dtype"])
    for array, offset in tiles:
        read, put = list(place), [slice(None)] * len(place)
        for axis, at in zip((-2, -1), offset, strict=True):
            low = max(place[axis].start, at)
            high = min(place[axis].stop, at + array.shape[axis])
            read[axis] = slice(low - at, max(high, low) - at)
            put[axis] = slice(low - place[axis].start, max(high, low) - place[axis].start)
        if all(one.stop > one.start for one in read):
            block[tuple(put)] = array[tuple(read)]
    return block


def check_alike(tile: Level | FieldMosaic, first: Level | FieldMosaic) -> None:
    """Raise if images do not fit in one mosaic.

    Raises
    ------
    DataTypeError
        If they are of different data types.
    GridError
        If they differ along axes other than the last two.
    """
    if tile.array.dtype != first.array.dtype:
        raise DataTypeError(
            f"{tile.array.where} is of {tile.array.dtype}, {first.array.where} of "
            f"{first.array.dtype}: a mosaic has one data type."
        )
    if (tile.axes, tile.shape[:-2]) != (first.axes, first.shape[:-2]):
        raise GridError(
            f"{tile.array.where} has axes {tile.axes} and shape {tile.shape}, {first.array.where} "
            f"{first.axes} and {first.shape}: a mosaic needs the same but for the last two."
        )
