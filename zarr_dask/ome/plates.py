"""Plates of OME-Zarr: wells and their images, opened on demand, and mosaics."""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from zarr_dask._util.keywords import did_you_mean, takes_habits
from zarr_dask._util.threads import parallel_for
from zarr_dask.array.common_names import no_attribute
from zarr_dask.errors import (
    GridError,
    MetadataError,
    NodeTypeError,
    ValidationProblem,
)
from zarr_dask.formats.base import ReadOptions
from zarr_dask.hierarchy.group import Group
from zarr_dask.hierarchy.open_node import open_group
from zarr_dask.jobs.engine.plan import pluralize
from zarr_dask.ome.field_mosaic import FieldMosaic, check_alike
from zarr_dask.ome.html import plate_html
from zarr_dask.ome.model import Metadata, PlateLayout, WellFields, from_attributes
from zarr_dask.ome.picture import picture_of_fields
from zarr_dask.ome.plate_picture import mosaic_picture
from zarr_dask.ome.stored_image import Image, Level, image_of, node_named
from zarr_dask.stores.open import Location

if TYPE_CHECKING:
    import dask.array as da

__all__ = ["Plate", "Well", "open_plate", "well_path"]

_IMAGES = "well[0] is the first image of a well, len(well) their number."
_WELL_HINTS = {
    **dict.fromkeys(("images", "image", "fields_of_view", "positions"), _IMAGES),
    **dict.fromkeys(("levels", "shape", "axes", "to_dask"), _IMAGES),
    **dict.fromkeys(("path", "name"), "well.group.path has it."),
    **dict.fromkeys(("attrs", "attributes"), "well.group.attrs has them, well.fields parsed."),
}
_PLATE_HINTS = {
    **dict.fromkeys(
        ("wells", "well", "get_well"), "A plate is a mapping: plate['A/1'] is a well, list(plate)."
    ),
    **dict.fromkeys(("images", "image"), "plate['A/1'][0] is the first image of a well."),
    **dict.fromkeys(("attrs", "attributes"), "plate.group.attrs has them, plate.layout parsed."),
    "acquisitions": "plate.layout.acquisitions has them.",
    "name": "plate.layout.name has it.",
    "version": "plate.metadata.version has it.",
    **dict.fromkeys(("plot", "show", "thumbnail"), "zarr_dask.ome.thumbnail(url) draws it."),
}
"""Attributes of wells and plates elsewhere, and what to write instead."""

_MOST_FIELDS = 256
"""Maximum number of images of a well that are drawn."""


@dataclass(frozen=True, eq=False)
class Well:
    """One well of a plate: a sequence of its images."""

    group: Group
    fields: WellFields
    """Metadata of the images."""
    _opened: dict[int, Image] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.fields.images)

    def __getitem__(self, number: int) -> Image:
        """Return one image, by its number from 0, or from the end."""
        at = operator.index(number)
        return self.field(at + len(self) if at < 0 else at)

    if not TYPE_CHECKING:  # a type checker knows which attributes there are

        def __getattr__(self, name: str) -> NoReturn:
            no_attribute("ome.Well", name, _WELL_HINTS, dir(type(self)))

    def __repr__(self) -> str:
        return f"<zarr_dask.ome.Well {self.group.where} {pluralize(len(self), 'field')}>"

    def field(self, number: int = 0) -> Image:
        """Return one image of the well, by its number from 0.

        Raises
        ------
        IndexError
            If there is no such image.
        """
        if not 0 <= number < len(self):
            raise IndexError(f"field {number}: {self.group.where} has {len(self)}.")
        if number not in self._opened:
            path = self.fields.images[number].path
            node = node_named(self.group, path, f"well.images[{number}].path")
            if not isinstance(node, Group):
                raise NodeTypeError(f"{node.where} is an array, where an image must be.")
            self._opened[number] = image_of(node)
        return self._opened[number]

    def level(self, field: int, level: int) -> Level:
        """Return one level of one image.

        Raises
        ------
        GridError
            If it has no such level.
        IndexError
            If there is no such image.
        """
        levels = self.field(field).levels
        if not 0 <= level < len(levels):
            raise GridError(f"{self.group.where}: no level {level}, it has {len(levels)}.")
        return levels[level]

    def mosaic(self, level: int = 0, chunks: Any = None) -> da.Array:
        """Return all images at their positions, to the nearest pixel, as one lazy dask array.

        Of images that overlap, the later is on top. Where there is none, pixels are 0.

        Parameters
        ----------
        level
            Index of the level in the images.
        chunks
            Blocks, as for `Level.to_dask`.

        Raises
        ------
        DataTypeError
            If the images are of different data types.
        GridError
            If they differ in the sizes of pixels, or along axes other than the last two; if there
            is no such level; if they are too far apart.
        """
        return self.placed(level).to_dask(chunks)

    def placed(self, level: int) -> FieldMosaic:
        """Return one level of all images with their positions; see `mosaic`."""
        if not len(self):
            raise GridError(f"{self.group.where} has no image.")
        return FieldMosaic.of([self.level(number, level) for number in range(len(self))])

    def picture(self, *, size: int, max_bytes: int) -> np.ndarray:
        """Draw a small picture of all images at their positions; see `zarr_dask.ome.thumbnail`.

        Images at one place are of several acquisitions, or without positions: the first is drawn.
        """
        images = [self.field(number) for number in range(len(self.fields.images[:_MOST_FIELDS]))]
        shown = [(one.metadata, one.multiscale, one.levels) for one in images]
        return picture_of_fields(shown, size=size, max_bytes=max_bytes)


def well_path(key: Any) -> Any:
    """Return the path of a well that is given as a pair of row and column; others as they are.

    Examples
    --------
    >>> well_path(("A", 1)), well_path("A/1")
    ('A/1', 'A/1')
    """
    if isinstance(key, tuple) and len(key) == 2 and isinstance(key[0], str):
        return f"{key[0]}/{key[1]}"
    return key


@dataclass(frozen=True, eq=False)
class Plate(Mapping[str, Well]):
    """Wells of a plate by their path, or by row and column; made by `zarr_dask.ome.open_plate`."""

    group: Group
    metadata: Metadata
    layout: PlateLayout
    """Rows, columns, wells and acquisitions."""
    _opened: dict[str, Well] = field(default_factory=dict, repr=False)

    @cached_property
    def places(self) -> dict[str, tuple[int, int]]:
        """Row and column of each well, from 0."""
        return {well.path: (well.row, well.column) for well in self.layout.wells}

    @property
    def rows(self) -> tuple[str, ...]:
        """Names of the rows."""
        return tuple(row.name for row in self.layout.rows)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(column.name for column in self.layout.columns)

    def __getitem__(self, path: str | tuple[str, str | int]) -> Well:
        path = well_path(path)
        if path not in self.places:
            rows, columns = ", ".join(self.rows), ", ".join(self.columns)
            raise KeyError(
                f"{self.group.where} has no well {path!r}: expected ROW/COLUMN, of the rows {rows} "
                f"and the columns {columns}.{did_you_mean(str(path), self.places)}"
            )
        if path not in self._opened:
            node = node_named(self.group, path, "plate.wells")
            if not isinstance(node, Group):
                raise NodeTypeError(f"{node.where} is an array, where a well must be.")
            found = from_attributes(node.attributes, where=node.where).well
            if found is None:
                problem = ValidationProblem("well", node.attributes, "the images of a well")
                raise MetadataError(node.where, [problem])
            self._opened[path] = Well(node, found)
        return self._opened[path]

    if not TYPE_CHECKING:  # a type checker knows which attributes there are

        def __getattr__(self, name: str) -> NoReturn:
            no_attribute("ome.Plate", name, _PLATE_HINTS, dir(type(self)))

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)

    def __repr__(self) -> str:
        return (
            f"<zarr_dask.ome.Plate {self.group.where} {len(self.rows)} rows, "
            f"{len(self.columns)} columns, {len(self)} wells, OME-Zarr {self.metadata.version}>"
        )

    def _repr_html_(self) -> str:
        title = f"zarr_dask.ome.Plate {self.group.where}"
        return plate_html(
            title,
            self.metadata.version,
            self.layout,
            lambda size, max_bytes: self.picture(size=size, max_bytes=max_bytes),
        )

    def picture(self, *, size: int, max_bytes: int) -> np.ndarray:
        """Draw a small picture of all wells; see `zarr_dask.ome.thumbnail`."""

        def tile(path: str, side: int, budget: int) -> np.ndarray:
            return self[path].picture(size=side, max_bytes=budget)

        return mosaic_picture(self.places, tile, size=size, max_bytes=max_bytes)

    def mosaic(self, field: int | None = 0, level: int = 0, chunks: Any = None) -> da.Array:
        """Return all wells side by side, as one lazy dask array.

        Rows are along the second-last axis, columns along the last. Tiles have the size of the
        largest image. Smaller images start at their first corner, and the rest of a tile is 0. The
        metadata of all wells are read, several at a time, but no chunks.

        Parameters
        ----------
        field
            Index of the image in each well, from 0; wells with fewer images are left empty. None
            for all images of each well at their positions, as `Well.mosaic`.
        level
            Index of the level in the images.
        chunks
            Blocks of each image, as for `Level.to_dask`.

        Raises
        ------
        DataTypeError
            If the images are of different data types.
        GridError
            If they differ along axes other than the last two, or no well has such a field.
        """
        tiles = self._tiles(field, level)
        if not tiles:
            raise GridError(f"{self.group.where}: no well has a field {field}.")
        size = len(self.rows), len(self.columns)
        if size[0] * size[1] > _MOST_PLACES:
            raise GridError(
                f"{self.group.where}: {size[0]} rows and {size[1]} columns are too many for a "
                f"mosaic, which has at most {_MOST_PLACES} places."
            )
        first = next(iter(tiles.values()))
        for tile in tiles.values():
            check_alike(tile, first)
        height = max(tile.shape[-2] for tile in tiles.values())
        width = max(tile.shape[-1] for tile in tiles.values())
        return _assemble(tiles, size, (height, width), chunks)

    def _tiles(self, number: int | None, level: int) -> dict[tuple[int, int], Level | FieldMosaic]:
        """Return images by row and column."""
        found: dict[tuple[int, int], Level | FieldMosaic] = {}
        lock = threading.Lock()
        size = len(self.rows), len(self.columns)

        def load(path: str) -> None:
            row, column = self.places[path]
            if not (0 <= row < size[0] and 0 <= column < size[1]):
                problem = ValidationProblem(
                    path, (row, column), f"a place in a plate of {size} wells"
                )
                raise MetadataError(self.group.where, [problem])
            well = self[path]
            if (number or 0) >= len(well):
                return
            tile = well.placed(level) if number is None else well.level(number, level)
            with lock:
                found[row, column] = tile

        parallel_for(load, self.places, None)
        return dict(sorted(found.items()))


_MOST_PLACES = 1 << 16
"""Plates have at most 6,144 wells; untrusted metadata may claim any number."""


def _assemble(
    tiles: Mapping[tuple[int, int], Level | FieldMosaic],
    size: tuple[int, int],
    tile: tuple[int, int],
    chunks: Any,
) -> da.Array:
    import dask.array as da

    def padded(found: Level | FieldMosaic) -> da.Array:
        pixels = found.to_dask(chunks)
        more = [(0, 0)] * (pixels.ndim - 2)
        more += [(0, tile[0] - pixels.shape[-2]), (0, tile[1] - pixels.shape[-1])]
        return da.pad(pixels, more) if any(after for _, after in more) else pixels

    pixels = {where: padded(found) for where, found in tiles.items()}
    first = next(iter(pixels.values()))
    empty = da.zeros(first.shape, dtype=first.dtype, chunks=first.chunks)
    lines = [
        da.concatenate([pixels.get((row, column), empty) for column in range(size[1])], axis=-1)
        for row in range(size[0])
    ]
    return da.concatenate(lines, axis=-2)


@takes_habits()
def open_plate(
    url: Location | Group,
    path: str = "",
    *,
    storage_options: Mapping[str, Any] | None = None,
    read: ReadOptions | None = None,
) -> Plate:
    """Open a plate of OME-Zarr 0.4 or 0.5; wells are opened on demand.

    Parameters
    ----------
    url, path, storage_options, read
        As for `zarr_dask.open_group`.

    Raises
    ------
    NodeTypeError
        If the group is not a plate.
    OmeVersionError
        If the metadata are of another version.
    MetadataError
        If there are no OME-Zarr metadata.
    """
    group = open_group(url, path, storage_options=storage_options, read=read)
    metadata = from_attributes(group.meta.attributes, where=group.where)
    if metadata.plate is None:
        raise NodeTypeError(f"{group.where} is no plate; zarr_dask.ome.open opens images.")
    return Plate(group, metadata, metadata.plate)
