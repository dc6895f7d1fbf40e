"""`thumbnail`: a small picture of an image or a plate, on any store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from zarr_dask._util.keywords import takes_habits
from zarr_dask.hierarchy.group import Group
from zarr_dask.hierarchy.open_node import open_group
from zarr_dask.ome.model import from_attributes
from zarr_dask.ome.picture import picture
from zarr_dask.ome.plates import Plate, Well, open_plate
from zarr_dask.ome.stored_image import Image, image_of, open  # noqa: A004  (zd.ome.open)
from zarr_dask.ome.validate_metadata import series_of
from zarr_dask.stores.open import Location

__all__ = ["thumbnail"]

_BUDGET = 1 << 28
_LARGEST = 4096


@takes_habits()
def thumbnail(
    source: Location | Group | Image | Plate | Well,
    path: str = "",
    *,
    size: int = 256,
    max_bytes: int = _BUDGET,
    storage_options: Mapping[str, Any] | None = None,
) -> np.ndarray:
    """Draw a small picture of an image, a well, or all wells of a plate.

    Images of a well are drawn at their positions; without positions the first one is. Of a group of
    images (bioformats2raw) the first one is drawn.

    Active channels are added in their colours, each between the start and the end of its window.
    Along z the maximum is shown; along time the element that ``omero`` names, or else the first.
    Without ``omero``, or if a window is the full range of integers of more than 8 bits, each
    channel is stretched from its 1st to its 99th percentile, in each well separately. A label image
    shows the colours of its labels. If a plate has more than 96 wells, some rows and columns at
    equal distances are shown.

    Parameters
    ----------
    source, path
        The image, well or plate, or its location as for `zarr_dask.ome.open`.
    size
        Number of pixels of the longer side. A smaller image is not enlarged.
    max_bytes
        Decoded bytes to read, 256 MiB by default. If an image has more, and no level that is small
        enough, some chunks at equal distances are shown side by side.
    storage_options
        As for `zarr_dask.ome.open`.

    Returns
    -------
    numpy.ndarray
        Red, green and blue: uint8 of the shape (height, width, 3).

    Raises
    ------
    ValueError
        If `size` is not from 1 to 4096.
    DataTypeError
        If the pixels are not numbers.
    ZarrDaskError
        See `zarr_dask.ome.open`; also if no well of a plate has an image, or required data cannot
        be read.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> scale = [{"type": "scale", "scale": [1, 1]}]
    >>> axes = [{"name": name, "type": "space"} for name in "yx"]
    >>> level = {"path": "0", "coordinateTransformations": scale}
    >>> ome = {"version": "0.5", "multiscales": [{"axes": axes, "datasets": [level]}]}
    >>> group = zd.create_group({}, attributes={"ome": ome})
    >>> pixels = group.create_array("0", shape=(400, 300), dtype="u2", dimension_names=("y", "x"))
    >>> pixels[100:200, :] = 9
    >>> zd.ome.thumbnail(group, size=100).shape
    (100, 75, 3)
    """
    if not 1 <= size <= _LARGEST:
        raise ValueError(f"size={size}: expected a number of pixels from 1 to {_LARGEST}.")
    if not isinstance(source, Image | Plate | Well):
        group = open_group(source, path, storage_options=storage_options)
        metadata = from_attributes(group.attributes, where=group.where)
        if metadata.plate is not None:
            source = open_plate(group)
        elif metadata.well is not None:
            source = Well(group, metadata.well)
        elif metadata.layout is not None and not metadata.multiscales:
            source = open(group, next(iter(series_of(group)), ""))
        else:
            source = image_of(group)
    if isinstance(source, Plate | Well):
        return source.picture(size=size, max_bytes=max_bytes)
    shown = source.metadata, source.multiscale, source.levels
    return picture(*shown, size=size, max_bytes=max_bytes)
