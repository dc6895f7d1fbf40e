"""A small picture of a plate: small pictures of its wells in their arrangement.

Metadata and chunks of every displayed well are read, so of large plates only some rows and columns
at equal distances are displayed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from zarr_dask._util.threads import parallel_for
from zarr_dask.errors import GridError, MetadataError, NodeNotFoundError, NodeTypeError

__all__ = ["mosaic_picture"]

_MOST_WELLS = 96
"""Maximum number of displayed wells: a plate of 96 as a whole."""
_WIDE = 8
"""Minimum width in pixels of tiles that are separated by lines."""
_EMPTY = 32
"""Grey value of the background."""

Place = tuple[int, int]
"""Row and column."""


def mosaic_picture(
    wells: Mapping[str, Place],
    tile_of: Callable[[str, int, int], np.ndarray],
    *,
    size: int,
    max_bytes: int,
) -> np.ndarray:
    """Draw a small picture of a plate.

    Parameters
    ----------
    wells
        Paths and positions of the wells.
    tile_of
        Draws the picture of a well, given its path, the pixels of the longer side, and the decoded
        bytes to read.
    size
        Number of pixels of the longer side of the picture.
    max_bytes
        Maximum decoded bytes to read.

    Returns
    -------
    numpy.ndarray
        Red, green and blue: uint8 of the shape (height, width, 3).

    Raises
    ------
    GridError
        If no well has an image that can be displayed.
    """
    rows, columns = _shown(wells, size)
    chosen = {
        path: (rows.index(row), columns.index(column))
        for path, (row, column) in wells.items()
        if row in rows and column in columns
    }
    count = max(len(rows), len(columns), 1)
    side = max(size // count, 1)
    gap = 1 if side > _WIDE else 0
    tiles: dict[Place, np.ndarray] = {}
    lock = threading.Lock()

    def draw(path: str) -> None:
        try:
            tile = tile_of(path, side - gap, max_bytes // len(chosen))
        except (MetadataError, NodeNotFoundError, NodeTypeError):
            return  # one broken well must not hide the others
        with lock:
            tiles[chosen[path]] = tile

    parallel_for(draw, chosen, None)
    if not tiles:
        raise GridError(f"none of {len(wells)} wells has an image that can be shown.")
    height = max(tile.shape[0] for tile in tiles.values()) + gap
    width = max(tile.shape[1] for tile in tiles.values()) + gap
    picture = np.full((len(rows) * height, len(columns) * width, 3), _EMPTY, np.uint8)
    for (row, column), tile in tiles.items():
        at = row * height, column * width
        picture[at[0] : at[0] + tile.shape[0], at[1] : at[1] + tile.shape[1]] = tile
    return picture[: picture.shape[0] - gap, : picture.shape[1] - gap]


def _shown(wells: Mapping[str, Place], size: int) -> tuple[Sequence[int], Sequence[int]]:
    """Return the displayed rows and columns: all from the first to the last well, or a subset."""
    rows = sorted({row for row, _ in wells.values()})
    columns = sorted({column for _, column in wells.values()})
    if not rows:
        return (), ()
    lengths = [lines[-1] - lines[0] + 1 for lines in (rows, columns)]
    if len(wells) <= _MOST_WELLS and max(lengths) <= size:
        return range(rows[0], rows[-1] + 1), range(columns[0], columns[-1] + 1)
    stride = 1
    while len(rows[::stride]) * len(columns[::stride]) > _MOST_WELLS or (
        max(len(rows[::stride]), len(columns[::stride])) > size
    ):
        stride += 1
    return rows[::stride], columns[::stride]
