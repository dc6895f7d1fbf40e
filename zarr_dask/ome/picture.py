"""Small pictures of images: channels coloured by ``omero``, maximum projection along z.

The picture is made of the smallest level that is large enough. The amount of data is bounded: if
there is no such level, some chunks at equal distances are read (`zarr_dask.ome.sampling`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import isfinite
from typing import Any

import numpy as np

from zarr_dask.array.array import Array
from zarr_dask.dtypes import is_small
from zarr_dask.errors import DataTypeError, GridError
from zarr_dask.ome.levels import Level
from zarr_dask.ome.model import Channel, ImageLabel, Metadata, Multiscale, Omero
from zarr_dask.ome.sampling import Sampling, mean_to, nearest_to, sampled

__all__ = ["Pictured", "full_range", "picture", "picture_of_fields"]

Pictured = tuple[Metadata, Multiscale, Sequence[Level]]
"""An image as a picture needs it."""

_MOST_CHANNELS = 16
"""Maximum number of displayed channels: each is read, and more cannot be told apart."""


def picture(
    metadata: Metadata,
    multiscale: Multiscale,
    levels: Sequence[Level],
    *,
    size: int,
    max_bytes: int,
) -> np.ndarray:
    """Draw a small picture of an image; see `zarr_dask.ome.thumbnail`."""
    view = _PictureAxes.of(metadata, multiscale, levels[0].array.where)
    level = _level(levels, view, size)
    array = _checked(level.array)
    if not array.size:
        return np.zeros((1, 1, 3), np.uint8)
    shape = _shape(level, view.across, size)
    meaning = metadata.image_label
    if meaning is not None and array.dtype.kind in "biu":
        channel = view.channels(array)[0]
        sampling = sampled(array, view.across, view.projected, size, max_bytes)
        plane = _plane(array, view, channel.index, sampling)
        for axis, length in enumerate(shape):
            plane = nearest_to(plane, axis, length)
        return _labelled(plane, meaning)
    return _coloured(_planes(level, view, shape, max_bytes))


def _checked(array: Array) -> Array:
    if array.dtype.kind not in "biufc" and not is_small(array.dtype):
        raise DataTypeError(f"{array.where} is of {array.dtype}: a picture is made of numbers.")
    return array


def _planes(
    level: Level, view: _PictureAxes, shape: tuple[int, int], max_bytes: int
) -> list[tuple[_ShownChannel, np.ndarray]]:
    """Return the displayed channels and their pixels, in the shape of the picture."""
    array = level.array
    channels = view.channels(array)
    sampling = sampled(array, view.across, view.projected, max(shape), max_bytes // len(channels))
    return [
        (one, mean_to(_as_numbers(_plane(array, view, one.index, sampling)), shape))
        for one in channels
    ]


def _coloured(
    planes: Sequence[tuple[_ShownChannel, np.ndarray]], covered: np.ndarray | None = None
) -> np.ndarray:
    """Return a picture of channels; outside of what is covered it is black."""
    shown = np.zeros((*planes[0][1].shape, 3))
    for channel, plane in planes:
        shown += channel.coloured(plane, covered)
    if covered is not None:
        shown[~covered] = 0
    pixels: np.ndarray = np.rint(np.clip(shown, 0, 1) * 255).astype(np.uint8)
    return pixels


# --- several fields -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Box:
    """Vertical and horizontal extent of an image, in the units of its axes."""

    start: tuple[float, float]
    stop: tuple[float, float]
    units: tuple[str | None, str | None]

    @staticmethod
    def of(level: Level, across: tuple[int, int]) -> _Box:
        start = tuple(level.translation[i] - level.scale[i] / 2 for i in across)
        sizes = tuple(level.scale[i] * level.shape[i] for i in across)
        stop = tuple(at + size for at, size in zip(start, sizes, strict=True))
        units = tuple(level.units[i] for i in across)
        return _Box((start[0], start[1]), (stop[0], stop[1]), (units[0], units[1]))


def picture_of_fields(images: Sequence[Pictured], *, size: int, max_bytes: int) -> np.ndarray:
    """Draw images side by side, where their positions say; only the first if these say nothing.

    Of images that overlap, the later is on top. All have the display settings of the first, and
    without a window are stretched together.
    """
    metadata, multiscale, levels = images[0]
    view = _PictureAxes.of(metadata, multiscale, levels[0].array.where)
    boxes = [
        _Box.of(of_one[0], view.across) for _, other, of_one in images if _alike(other, multiscale)
    ]
    if len(boxes) < len(images) or not _are_apart(boxes):
        return picture(*images[0], size=size, max_bytes=max_bytes)
    start = [min(box.start[i] for box in boxes) for i in range(2)]
    extent = [max(box.stop[i] for box in boxes) - start[i] for i in range(2)]
    finest = min(min(one[0].scale[i] for i in view.across) for _, _, one in images)
    each = min(size / max(extent), 1 / finest)
    side = [max(1, round(one * each)) for one in extent]
    covered = np.zeros(side, bool)
    shown: list[tuple[_ShownChannel, np.ndarray]] = []
    for (_, _, of_one), box in zip(images, boxes, strict=True):
        ends = [
            [
                min(max(round((at - start[i]) * each), 0), side[i])
                for at in (box.start[i], box.stop[i])
            ]
            for i in range(2)
        ]
        place = tuple(slice(min(a, side[i] - 1), max(b, a + 1)) for i, (a, b) in enumerate(ends))
        shape = place[0].stop - place[0].start, place[1].stop - place[1].start
        level = _level(of_one, view, max(shape))
        if not _checked(level.array).size:
            continue
        planes = _planes(level, view, shape, max_bytes // len(images))
        shown = shown or [(channel, np.zeros(side)) for channel, _ in planes]
        for (_, whole), (_, plane) in zip(shown, planes, strict=False):
            whole[place] = plane
        covered[place] = True
    return _coloured(shown, covered) if shown else np.zeros((1, 1, 3), np.uint8)


def _alike(one: Multiscale, other: Multiscale) -> bool:
    return [axis.name for axis in one.axes] == [axis.name for axis in other.axes]


def _are_apart(boxes: Sequence[_Box]) -> bool:
    """True if images lie at different places, in one unit of sensible lengths."""
    numbers = [number for box in boxes for number in (*box.start, *box.stop)]
    return (
        len({box.start for box in boxes}) > 1
        and len({unit for box in boxes for unit in box.units}) == 1
        and all(isfinite(number) and abs(number) < _FARTHEST for number in numbers)
        and all(a < b for box in boxes for a, b in zip(box.start, box.stop, strict=True))
    )


# --- displayed data -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _ShownChannel:
    """One channel with its display settings."""

    index: int
    rgb: tuple[float, float, float]
    window: tuple[float, float] | None
    inverted: bool = False

    def coloured(self, plane: np.ndarray, covered: np.ndarray | None = None) -> np.ndarray:
        """Return the channel's contribution to red, green and blue."""
        values = plane if covered is None else plane[covered]
        low, high = self.window or map(float, np.percentile(values, (1, 99)))
        if high > low:
            shown = np.clip((plane - low) / (high - low), 0, 1)
        else:  # no window: show where there is a value
            shown = (plane > (low if self.window else 0)).astype(np.float64)
        coloured: np.ndarray = (1 - shown if self.inverted else shown)[..., None] * self.rgb
        return coloured


@dataclass(frozen=True)
class _PictureAxes:
    """Assignment of the axes of an image to the sides of its picture."""

    across: tuple[int, int]
    """The vertical and the horizontal axis."""
    projected: tuple[int, ...]
    time: int | None
    channel: int | None
    omero: Omero | None

    @staticmethod
    def of(metadata: Metadata, multiscale: Multiscale, at: str) -> _PictureAxes:
        """Return the view of an image; of axes of other types the first element is displayed."""
        axes = multiscale.axes
        names = [axis.name for axis in axes]
        ndim = len(names)
        if {"x", "y"} <= set(names):
            across = names.index("y"), names.index("x")
        elif ndim >= 2:
            across = ndim - 2, ndim - 1
        else:
            raise GridError(f"{at} has the axes {names}: a picture has two sides.")
        rest = [n for n in range(ndim) if n not in across]
        space = tuple(n for n in rest if axes[n].type == "space" or names[n] == "z")
        times = [n for n in rest if axes[n].type == "time"]
        others = [n for n in rest if n not in space and n not in times]
        return _PictureAxes(
            across,
            space,
            times[0] if times else None,
            others[-1] if others else None,
            metadata.omero,
        )

    def channels(self, array: Array) -> list[_ShownChannel]:
        """Return the displayed channels."""
        count = 1 if self.channel is None else array.shape[self.channel]
        told = () if self.omero is None else self.omero.channels[:count]
        if not told:
            count = min(count, _MOST_CHANNELS)
            return [_ShownChannel(i, _default_colour(i, count), None) for i in range(count)]
        active = [i for i, one in enumerate(told) if one.active is not False]
        shown = [
            _displayed(i, told[i], len(told), array.dtype)
            for i in active or range(min(len(told), _MOST_CHANNELS))
        ]
        return [_grey(shown[0])] if self._model() == "greyscale" else shown

    def _model(self) -> object:
        return self._rendering().get("model")

    def _rendering(self) -> Mapping[str, Any]:
        found = {} if self.omero is None else self.omero.extra.get("rdefs")
        return found if isinstance(found, Mapping) else {}

    def index(self, array: Array, channel: int, piece: Sequence[Any]) -> list[Any]:
        """Return the index along each axis except the sides of the picture."""
        index: list[Any] = [0] * array.ndim
        if self.time is not None:
            wanted = self._rendering().get("defaultT", 0)
            is_there = isinstance(wanted, int) and 0 <= wanted < array.shape[self.time]
            index[self.time] = int(wanted) if is_there else 0
        if self.channel is not None:
            index[self.channel] = channel
        for axis, taken in zip(self.projected, piece, strict=True):
            index[axis] = taken
        return index


def _default_colour(index: int, count: int) -> tuple[float, float, float]:
    if count == 1:
        return 1.0, 1.0, 1.0
    return _COLOURS[index % len(_COLOURS)]


_COLOURS = (
    (1.0, 0.0, 0.0),
    (0.0, 1.0, 0.0),
    (0.0, 0.0, 1.0),
    (1.0, 0.0, 1.0),
    (0.0, 1.0, 1.0),
    (1.0, 1.0, 0.0),
    (1.0, 1.0, 1.0),
    (1.0, 0.5, 0.0),
)


def _displayed(index: int, told: Channel, count: int, dtype: np.dtype[Any]) -> _ShownChannel:
    """Return a channel with the display settings of ``omero``, as far as they are valid."""
    window = told.window
    limits = None if window is None else (_bounded(window.start), _bounded(window.end))
    if limits is not None and (not all(map(isfinite, limits)) or limits == full_range(dtype)):
        limits = None
    colour = _colour(told.color) or _default_colour(index, count)
    return _ShownChannel(index, colour, limits, told.extra.get("inverted") is True)


def full_range(dtype: np.dtype[Any]) -> tuple[float, float] | None:
    """Return the full range of an integer type, a window in which most images are black."""
    if dtype.kind not in "iu" or dtype.itemsize == 1:
        return None
    info = np.iinfo(dtype)
    return float(info.min), float(info.max)


def _bounded(number: float) -> float:
    """Limit a number to the range of computation; JSON has integers of any size."""
    return float(min(max(number, -_FARTHEST), _FARTHEST))


_FARTHEST = 1e300


def _grey(one: _ShownChannel) -> _ShownChannel:
    return _ShownChannel(one.index, (1.0, 1.0, 1.0), one.window, one.inverted)


def _colour(text: str | None) -> tuple[float, float, float] | None:
    """Parse six hexadecimal digits, perhaps after a hash sign, as shares of red, green and blue."""
    digits = (text or "").removeprefix("#")
    if len(digits) < 6 or any(c not in "0123456789abcdefABCDEF" for c in digits):
        return None
    red, green, blue = (int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4))
    return red, green, blue


# --- reading --------------------------------------------------------------------------------------


def _level(levels: Sequence[Level], view: _PictureAxes, size: int) -> Level:
    """Return the smallest level whose longer side has `size` pixels or more; else the finest."""

    def sides(level: Level) -> tuple[int, int]:
        return level.shape[view.across[0]], level.shape[view.across[1]]

    large = [level for level in levels if max(sides(level)) >= size]
    if large:
        return min(large, key=lambda level: level.array.size)
    return max(levels, key=lambda level: level.array.size)


def _shape(level: Level, across: tuple[int, int], size: int) -> tuple[int, int]:
    """Return height and width of the picture, in the proportions of the image."""
    lengths = [level.shape[axis] * abs(level.scale[axis]) for axis in across]
    ratio = lengths[0] / lengths[1] if lengths[1] else 0.0
    pixels = [level.shape[axis] for axis in across]
    if level.units[across[0]] != level.units[across[1]] or not 1 / _FLATTEST <= ratio <= _FLATTEST:
        ratio = min(max(pixels[0] / pixels[1], 1 / size), size)
    longest = min(size, max(pixels))
    height, width = (1.0, 1 / ratio) if ratio > 1 else (ratio, 1.0)
    return max(1, round(longest * height)), max(1, round(longest * width))


_FLATTEST = 16
"""Maximum ratio of the sides; beyond it the pixel sizes are assumed to be wrong."""


def _plane(array: Array, view: _PictureAxes, channel: int, sampling: Sampling) -> np.ndarray:
    """Return the maximum projection of one channel at the sampled positions."""
    planes = (_projected(array, view, channel, sampling, piece) for piece in sampling.pieces)
    plane = reduce(np.fmax, planes)
    return plane if view.across[0] < view.across[1] else plane.T


def _projected(
    array: Array, view: _PictureAxes, channel: int, sampling: Sampling, piece: Sequence[slice]
) -> np.ndarray:
    """Return the maximum of one channel along a piece of the projected axes."""
    index = view.index(array, channel, piece)
    for axis, indices in zip(view.across, sampling.across, strict=True):
        whole = len(indices) == array.shape[axis]
        index[axis] = slice(None) if whole else indices
    values = np.asarray(array.oindex[tuple(index)])
    if values.dtype.kind == "c":
        values = np.abs(values)
    left = sorted((*view.across, *view.projected))
    for axis in sorted(view.projected, reverse=True):
        values = np.fmax.reduce(values, axis=left.index(axis))  # NaN counts least
    return values


def _as_numbers(plane: np.ndarray) -> np.ndarray:
    """Return values that can be averaged; NaN and infinities become 0."""
    numbers = plane.astype(np.float64)
    return np.nan_to_num(numbers, copy=False, posinf=0.0, neginf=0.0)


def _labelled(plane: np.ndarray, meaning: ImageLabel) -> np.ndarray:
    """Return labels in their colours: those of the metadata, or one derived from the value."""
    values, where = np.unique(plane, return_inverse=True)
    told = {one.value: one.rgba for one in meaning.colors or () if one.rgba is not None}
    picture = np.zeros((len(values), 3), np.uint8)
    for row, value in enumerate(values):
        rgba = told.get(int(value))
        if rgba is not None and len(rgba) == 4:
            picture[row] = [
                min(max(part, 0), 255) * min(max(rgba[3], 0), 255) // 255 for part in rgba[:3]
            ]
        elif value:
            mixed = int(value) * 0x9E3779B1 & 0xFFFFFF  # makes adjacent labels differ
            picture[row] = [64 + (mixed >> shift & 0xFF) * 191 // 255 for shift in (16, 8, 0)]
    return picture[where.reshape(plane.shape)]
