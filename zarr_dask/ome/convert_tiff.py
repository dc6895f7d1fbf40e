"""Images of TIFF and OME-TIFF files, written as OME-Zarr with all their levels."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, prod
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from zarr_dask._util.keywords import takes_habits
from zarr_dask.array.array import Array
from zarr_dask.errors import MetadataError, ValidationProblem
from zarr_dask.hierarchy.group import Group
from zarr_dask.hierarchy.open_node import open_array
from zarr_dask.jobs.write.target import WriteReport
from zarr_dask.ome.build_metadata import AxesAndTransforms, frame_of
from zarr_dask.ome.grids import default_chunks
from zarr_dask.ome.image_pixels import ImagePixels
from zarr_dask.ome.job import ImageProgress
from zarr_dask.ome.ome_xml import ImageFacts, images_of_xml, plate_of_xml, unit_named
from zarr_dask.ome.plan import ImageWritePlan
from zarr_dask.ome.units import METRES
from zarr_dask.ome.write import PassedImageKeywords, plan_write, write
from zarr_dask.ome.write_plates import plan_write_plate, write_plate
from zarr_dask.stores.backends.tiff import open_tiff, tiff_store
from zarr_dask.stores.open import Location

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["convert", "is_tiff", "plan_convert", "tiff_image", "tiff_plate"]

_ENDINGS = (
    *(".tif", ".tiff", ".btf", ".tf2", ".tf8"),
    *(".flex", ".lsm", ".ndpi", ".qptiff", ".scn", ".stk", ".svs", ".zif"),
)
_ORDER = "tczyx"
_JOINED = "tcz"
"""Axes that several dimensions of a file can be."""


def is_tiff(src: Any) -> bool:
    """True if a path names a TIFF file."""
    return isinstance(src, str | os.PathLike) and str(src).lower().endswith(_ENDINGS)


@dataclass(frozen=True)
class _Series:
    """One image of a file."""

    axes: str
    """Letters of tifffile, one for each dimension."""
    facts: ImageFacts
    shown: tuple[Mapping[str, Any], ...]
    """Channels as the tags of the file say, where other metadata say nothing."""
    is_tiled: bool
    palette: np.ndarray | None
    """Red, green and blue of each value, where values are no intensities."""


def tiff_image(
    src: str | os.PathLike[str], series: int | None, axes: str | None
) -> tuple[Any, dict[str, Any]]:
    """Return the pixels of an image of a TIFF file, and its metadata as options of `write`.

    Parameters
    ----------
    src
        Path of the file.
    series
        Number of the image.
    axes
        Names of the dimensions as they are in the file, such as ``"zyx"``.

    Raises
    ------
    MetadataError
        If the file holds several images and `series` is None, or dimensions cannot be named.
    MissingDependencyError
        If tifffile is not installed.
    StoreError
        If the file cannot be read as TIFF.
    """
    path = os.fspath(src)
    number, one = _read_series(path, series)
    return _pixels(path, number, one, axes)


def _pixels(path: str, number: int, one: _Series, axes: str | None) -> tuple[Any, dict[str, Any]]:
    """Return the pixels of an image, and its metadata as options of `write`."""
    array = open_array(tiff_store(path, number))
    names = _names(one.axes, axes, array, path)
    ordered = "".join(name for name in _ORDER if name in names)
    dimensions = tuple(tuple(i for i, name in enumerate(names) if name == axis) for axis in ordered)
    if dimensions != tuple((i,) for i in range(array.ndim)):
        array = open_array(tiff_store(path, number, dimensions))
    values: Any = array
    if one.palette is not None and "c" not in ordered:
        values, ordered = _coloured(array, one.palette, ordered)
    told = _told(one, ordered, values.shape)
    # strips are as wide as their page, which no viewer wants to read at once
    unit = tuple(
        size if name == "z" or (name in "yx" and one.is_tiled) else 1
        for name, size in zip(ordered, _chunk_of(values), strict=True)
    )
    frame = frame_of(len(ordered), ordered, told["scale"], None, told["units"], path)
    return values, told | {"chunks": _chunks(values, unit, frame)}


def _chunk_of(values: Any) -> tuple[int, ...]:
    chunk: tuple[int, ...] = values.chunks if isinstance(values, Array) else values.chunksize
    return chunk


def _chunks(values: Any, unit: tuple[int, ...], frame: AxesAndTransforms) -> tuple[int, ...]:
    """Return chunks of about 1 MiB, of one page or whole tiles."""
    counts = tuple(
        1 if axis.name == "z" else -(-length // size)
        for axis, length, size in zip(frame.axes, values.shape, unit, strict=True)
    )
    units = default_chunks(counts, frame, values.dtype.itemsize * prod(unit))
    return tuple(count * size for count, size in zip(units, unit, strict=True))


def _coloured(array: Array, palette: np.ndarray, axes: str) -> tuple[Any, str]:
    """Return the colours of values that are numbers of a palette, and the axes with channels."""
    at = 1 if "t" in axes else 0
    values = array.to_dask()
    chunks = (*values.chunks[:at], (len(palette),), *values.chunks[at:])
    coloured = values.map_blocks(
        _looked_up, palette, at, new_axis=at, chunks=chunks, dtype=palette.dtype
    )
    return coloured, f"{axes[:at]}c{axes[at:]}"


def _looked_up(values: np.ndarray, palette: np.ndarray, at: int) -> np.ndarray:
    return np.moveaxis(palette.take(values, axis=1, mode="clip"), 0, at)


def _told(one: _Series, ordered: str, shape: tuple[int, ...]) -> dict[str, Any]:
    """Return the metadata of an image as options of `write`."""
    facts = one.facts
    told: dict[str, Any] = {
        "axes": ordered,
        "scale": {axis: size for axis, size in facts.scale.items() if axis in ordered},
        "units": {axis: unit for axis, unit in facts.units.items() if axis in ordered},
    }
    channels = _channels(one, shape[ordered.index("c")] if "c" in ordered else 1)
    if channels:
        told["channels"] = channels
    if facts.name:
        told["name"] = facts.name
    return told


def _channels(one: _Series, count: int) -> list[dict[str, Any]]:
    """Return the channels of an image; of a channel in colour each colour is one."""
    named, samples = one.facts.channels, one.shown
    for some in (named, samples):
        if len(some) == count:
            return [dict(channel) for channel in some]
    if not samples or count % len(samples):
        return []
    outer = count // len(samples)
    labels = [channel.get("label") for channel in named] if len(named) == outer else []
    labels = [label or f"{i + 1}" for i, label in enumerate(labels or [None] * outer)]
    return [
        {**sample, "label": f"{label} {sample.get('label', '')}".strip()}
        for label in labels
        for sample in samples
    ]


def tiff_plate(
    src: str | os.PathLike[str], axes: str | None
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return the wells of a plate in a TIFF file, and other options of `write_plate`.

    None is returned if the file holds no plate. Positions of fields follow the OME-XML, if it says
    in which unit of length they are.

    Parameters
    ----------
    src
        Path of the file.
    axes
        Names of the dimensions as they are in the file, such as ``"zyx"``.

    Raises
    ------
    MetadataError
        If there are several plates, or images of the plate are not in the file.
    ZarrDaskError
        See `tiff_image`.
    """
    path = os.fspath(src)
    with open_tiff(path) as file:
        text = file.ome_metadata
        plate = plate_of_xml(text, path) if text else None
        if plate is None:
            return None
        images, count = images_of_xml(text, path), len(file.series)
        if count != len(images):
            expected = f"{len(images)} images, as the OME-XML says; or the number of one: series="
            raise MetadataError(path, [ValidationProblem("series", count, expected)])
        every = [_series_of(file, one.image, images[one.image]) for one in plate.fields]
    wells: dict[str, dict[int | None, list[Any]]] = {}
    has_runs = all(one.acquisition is not None for one in plate.fields)
    for one, series in zip(plate.fields, every, strict=True):
        values, options = _pixels(path, one.image, series, axes)
        pixels = _placed(values, options, one.position, path)
        run = one.acquisition if has_runs else None
        wells.setdefault(one.well, {}).setdefault(run, []).append(pixels)
    layout: dict[str, Any] = {"rows": plate.rows, "columns": plate.columns, "name": plate.name}
    if not has_runs:
        return {well: fields[None] for well, fields in wells.items()}, layout
    return dict(wells), layout | {"acquisitions": plate.acquisitions}


def _placed(
    values: Any, told: Mapping[str, Any], position: Mapping[str, tuple[float, str]], path: str
) -> ImagePixels:
    """Return an image with the position of its first pixel, in the units of its axes."""
    units = told["units"]
    place = {
        axis: number * float(f"{METRES[unit] / METRES[units[axis]]:.12g}")
        for axis, (number, unit) in position.items()
        if unit in METRES and units.get(axis) in METRES
    }
    frame = frame_of(values.ndim, told["axes"], told["scale"], place, units, path)
    return ImagePixels(values, frame, told.get("channels"), {})


def _read_series(path: str, series: int | None) -> tuple[int, _Series]:
    with open_tiff(path) as file:
        count = len(file.series)
        if not count:
            expected = "a file with an image; this one has none that tifffile finds"
            raise MetadataError(path, [ValidationProblem("series", series, expected)])
        if series is None and count != 1:
            names = [one.name for one in file.series[:_MOST_NAMED]]
            expected = f"a number below {count}, as the file holds several images: {names}"
            raise MetadataError(path, [ValidationProblem("series", series, expected)])
        number = series or 0
        if not 0 <= number < count:
            expected = f"a number of one of the {count} images"
            raise MetadataError(path, [ValidationProblem("series", series, expected)])
        return number, _series_of(file, number, _facts(file, number, path))


def _series_of(file: Any, number: int, facts: ImageFacts) -> _Series:
    found = file.series[number]
    palette, shown = _palette(found), _shown(found)
    if palette is not None:
        colour = _single_colour(palette)
        shown = _RGB if colour is None else ({"color": colour},)
        if colour is not None or found.kind not in _WITHOUT_MICROSCOPE:
            palette, shown = None, shown if colour is not None else ()
    return _Series(found.axes, facts, shown, bool(found.keyframe.is_tiled), palette)


_WITHOUT_MICROSCOPE = ("generic", "shaped", "uniform")
"""Kinds of images in which a palette is not just a look-up table of a display."""


def _palette(series: Any) -> np.ndarray | None:
    """Return the palette of an image, of 8 or 16 bits; None if it has none."""
    table = series.keyframe.colormap if series.keyframe.photometric == _PALETTE else None
    if table is None or np.ndim(table) != 2 or len(table) != len(_RGB):
        return None
    table = np.asarray(table, "u2")
    is_of_bytes = bool(np.all(table % 257 == 0) or np.all(table & 255 == 0))
    return (table >> 8).astype("u1") if is_of_bytes else table


def _single_colour(palette: np.ndarray) -> str | None:
    """Return the colour of the largest value, if the others are that colour, only darker.

    Examples
    --------
    >>> none, ramp = np.zeros(256, "u1"), np.arange(256, dtype="u1")
    >>> _single_colour(np.stack([none, ramp, none])), _single_colour(np.stack([ramp, ramp, none]))
    ('00FF00', 'FFFF00')
    """
    last = palette[:, -1].astype(float)
    expected = last[:, None] * np.linspace(0, 1, palette.shape[1])
    most = float(np.iinfo(palette.dtype).max)
    if not last.any() or np.abs(palette - expected).max() > most * _NEAR:
        return None
    return "{:02X}{:02X}{:02X}".format(*(round(255 * one / most) for one in last.tolist()))


_NEAR = 0.02
"""Maximum difference of a palette from a line, where 1 is the brightest colour."""


_RGB = (
    {"label": "red", "color": "FF0000"},
    {"label": "green", "color": "00FF00"},
    {"label": "blue", "color": "0000FF"},
)
_ALPHA = {"label": "alpha", "color": "FFFFFF", "active": False}
_MINISWHITE, _PALETTE, _COLOURS = 0, 3, (2, 6)
"""Values of the tag PhotometricInterpretation; YCbCr is decoded to RGB."""


def _shown(series: Any) -> tuple[Mapping[str, Any], ...]:
    """Return how the channels of an image are to be shown, by its tags; nothing if as usual."""
    page = series.keyframe
    if page.photometric in _COLOURS and "S" in series.axes and page.samplesperpixel >= len(_RGB):
        return (*_RGB, *[_ALPHA] * (page.samplesperpixel - len(_RGB)))
    return ({"inverted": True},) if page.photometric == _MINISWHITE else ()


_MOST_NAMED = 20


def _facts(file: Any, number: int, path: str) -> ImageFacts:
    """Return the metadata of an image, from OME-XML or those of ImageJ."""
    text = file.ome_metadata or _damaged_xml(file)
    if text:
        images = images_of_xml(text, path)
        if number < len(images):
            return images[number]
    told = file.imagej_metadata
    if not isinstance(told, Mapping):
        return _of_tags(file.series[number])
    unit = unit_named(str(told.get("unit", "")).replace("\\u00B5", "µ"))
    scale = {"z": told.get("spacing"), "t": told.get("finterval")}
    if unit is not None:
        tags = file.pages.first.tags
        scale |= {axis: _size(tags.valueof(f"{axis.upper()}Resolution")) for axis in "yx"}
    known = {
        axis: float(size)
        for axis, size in scale.items()
        if isinstance(size, int | float) and size > 0 and isfinite(size)
    }
    units = {} if unit is None else {axis: unit for axis in known if axis != "t"}
    if "t" in known:
        units["t"] = unit_named(str(told.get("tunit", "sec"))) or "second"
    return ImageFacts(None, known, units, _imagej_channels(told))


def _damaged_xml(file: Any) -> str:
    """Return OME-XML that tifffile does not take for such, as its end is not the right one."""
    text: str = file.pages.first.description.strip()
    return text if _BEGIN_OF_XML.match(text) else ""


_BEGIN_OF_XML = re.compile(r"(<\?xml[^>]*>\s*)?(<!--((?!-->).)*-->\s*)*<(\w+:)?OME\b", re.DOTALL)


def _of_tags(series: Any) -> ImageFacts:
    """Return sizes of pixels: of a microscope's own metadata, or else in centimetres.

    Sizes in inches are of printers.
    """
    if series.kind not in _WITHOUT_MICROSCOPE and max(series.shape) <= _MOST_ALONG:
        facts = _of_microscope(series)
        if facts.scale:
            return facts
    tags = series.keyframe.tags
    if tags.valueof("ResolutionUnit") != _CENTIMETER:
        return ImageFacts(None, {}, {}, ())
    sizes = {axis: _size(tags.valueof(f"{axis.upper()}Resolution")) for axis in "yx"}
    scale = {axis: size * _MICROMETERS for axis, size in sizes.items() if size}
    return ImageFacts(None, scale, dict.fromkeys(scale, "micrometer"), ())


def _of_microscope(series: Any) -> ImageFacts:
    """Return sizes of pixels that tifffile finds in the metadata of a microscope."""
    units = {
        axis.lower(): unit_named(unit) or unit
        for axis, unit in getattr(series, "coord_units", {}).items()  # not before tifffile 2026.4
    }
    known = {axis: unit for axis, unit in units.items() if unit in METRES or axis == "t"}
    told = {
        axis.lower(): abs(size)
        for axis, size in getattr(series, "coord_scales", {}).items()
        if axis.lower() in known and isfinite(size) and size
    }
    return ImageFacts(None, told, {axis: known[axis] for axis in told}, ())


_MOST_ALONG = 1 << 24
"""Maximum number of pixels of a dimension: tifffile makes a coordinate for each of them."""
_CENTIMETER, _MICROMETERS = 3, 1e4
"""Value of the tag ResolutionUnit, and micrometers in a centimetre."""


def _imagej_channels(told: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """Return names, colours and windows of channels: lists of ImageJ with an item for each."""
    names, tables, ranges = (told.get(member) for member in ("Labels", "LUTs", "Ranges"))
    count = told.get("channels", 1)
    is_sensible = isinstance(count, int) and 0 < count <= _MOST_CHANNELS
    found: list[dict[str, Any]] = [{} for _ in range(count if is_sensible else 0)]
    if isinstance(names, list) and len(names) == len(found):
        for one, name in zip(found, names, strict=True):
            one["label"] = str(name)
    if isinstance(tables, list) and len(tables) == len(found):
        for one, table in zip(found, tables, strict=True):
            colours = np.asarray(table)
            if colours.shape == _LUT:
                one["color"] = "{:02X}{:02X}{:02X}".format(*colours[:, -1].tolist())
    if isinstance(ranges, tuple | list) and len(ranges) == 2 * len(found):
        for one, start, end in zip(found, ranges[::2], ranges[1::2], strict=True):
            if isinstance(start, float) and isinstance(end, float) and isfinite(end - start):
                one["window"] = {"start": start, "end": end}
    return tuple(found) if any(found) else ()


_MOST_CHANNELS = 1024
_LUT = (3, 256)
"""Shape of a table of colours."""


def _size(resolution: Any) -> float | None:
    """Return the size of a pixel for a resolution, a fraction of pixels in a unit."""
    if not isinstance(resolution, tuple) or len(resolution) != 2 or not resolution[0]:
        return None
    return float(resolution[1]) / float(resolution[0])


def _names(letters: str, given: str | None, array: Array, path: str) -> str:
    """Return the name of each dimension: one of t, c, z, y and x.

    Samples of a pixel, such as red, green and blue, are channels.
    """
    names = letters.lower().replace("s", "c") if given is None else given.lower()
    known = len(names) == array.ndim and set(names) <= set(_ORDER)
    if not known or any(names.count(name) > 1 for name in set(names) - set(_JOINED)):
        told = (
            f"{letters}, of the shape {array.shape}"
            if given is None
            else f"{given}, for {letters}, of the shape {array.shape}"
        )
        expected = (
            f"axes=, a name of {_ORDER!r} for each dimension in the file, such as 'zyx'; "
            "dimensions of one name become one axis"
        )
        raise MetadataError(path, [ValidationProblem("axes", told, expected)])
    return names


class ConvertKeywords(PassedImageKeywords, total=False):
    """Keywords of `plan_write` and `plan_write_plate` that `convert` passes on."""

    rows: Sequence[str] | None
    columns: Sequence[str] | None
    acquisitions: Sequence[Any] | None
    positions: Mapping[str, Any] | None


@takes_habits(tuple(ConvertKeywords.__annotations__))
def plan_convert(
    src: str | os.PathLike[str],
    url: Location | Group,
    path: str = "",
    *,
    series: int | None = None,
    axes: str | None = None,
    client: Client | None = None,
    **options: Unpack[ConvertKeywords],
) -> ImageWritePlan:
    """Plan how to write an image or a plate of a TIFF or OME-TIFF file; nothing is written.

    Parameters
    ----------
    src, url, path, series, axes, client
        As for `convert`.
    **options
        As for `plan_write` or `plan_write_plate`.

    Raises
    ------
    ZarrDaskError
        See `convert`.

    Examples
    --------
    >>> import numpy as np, tempfile, tifffile
    >>> import zarr_dask as zd
    >>> folder = tempfile.mkdtemp()
    >>> tifffile.imwrite(f"{folder}/a.tif", np.ones((300, 400), "u2"))
    >>> plan = zd.ome.plan_convert(f"{folder}/a.tif", f"{folder}/a.zarr", max_mem="200MB")
    >>> plan.objects, plan.nbytes
    (2, 300000)
    """
    write_plan = plan_write_plate if (plate := _plate(src, series, axes)) else plan_write
    content, told = plate or tiff_image(src, series, axes)
    given: dict[str, Any] = told | {**options}
    return write_plan(content, url, path, client=client, **given)


def _plate(
    src: str | os.PathLike[str], series: int | None, axes: str | None
) -> tuple[Any, dict[str, Any]] | None:
    """Return the wells of a file and its layout; None if an image of it is meant."""
    return tiff_plate(src, axes) if series is None else None


@takes_habits(tuple(ConvertKeywords.__annotations__))
def convert(
    src: str | os.PathLike[str],
    url: Location | Group,
    path: str = "",
    *,
    series: int | None = None,
    axes: str | None = None,
    client: Client | None = None,
    progress: ImageProgress | None = None,
    resume: bool | str = False,
    journal: Location | None = None,
    **options: Unpack[ConvertKeywords],
) -> WriteReport:
    """Write an image or a plate of a TIFF or OME-TIFF file as OME-Zarr, with all its levels.

    Tiles and strips are read as they are needed, so that files of any size take bounded memory.
    Name, sizes of pixels, units, channels and colours follow the metadata of OME-XML or ImageJ, or
    else the tags of the file.
    tifffile reads the file; install ``zarr-dask[tiff]``.

    Parameters
    ----------
    src
        Path of the file.
    url, path
        Location of the new group of the image, as for `write`.
    series
        Number of the image, if the file holds several. Without one, a plate is written with all its
        wells and fields.
    axes
        Names of the dimensions as they are in the file, such as ``"zyx"``; by default those that
        the file tells. The image gets the order t, c, z, y, x. Dimensions of one name, such as
        the second and third of ``"tzzyx"``, become one axis.
    client, progress, resume, journal
        As for `write`.
    **options
        As for `plan_write` or `plan_write_plate`; they take precedence over the metadata of the
        file.

    Raises
    ------
    MetadataError
        If the file holds several images and `series` is None, or dimensions cannot be named.
    MissingDependencyError
        If tifffile is not installed.
    StoreError
        If the file cannot be read as TIFF.
    ZarrDaskError
        See `plan_write`.

    Examples
    --------
    >>> import numpy as np, tempfile, tifffile
    >>> import zarr_dask as zd
    >>> folder = tempfile.mkdtemp()
    >>> facts = {"axes": "CYX", "PhysicalSizeX": 0.5, "PhysicalSizeY": 0.5}
    >>> pixels = np.ones((2, 300, 400), "u2")
    >>> tifffile.imwrite(f"{folder}/a.ome.tif", pixels, ome=True, metadata=facts)
    >>> _ = zd.ome.convert(f"{folder}/a.ome.tif", f"{folder}/a.zarr")
    >>> image = zd.ome.open(f"{folder}/a.zarr")
    >>> image.axes, image.level(1).scale, image.level(1).units
    (('c', 'y', 'x'), (1.0, 1.0, 1.0), (None, 'micrometer', 'micrometer'))
    """
    content, told = (plate := _plate(src, series, axes)) or tiff_image(src, series, axes)
    given: dict[str, Any] = told | {**options}
    return (write_plate if plate else write)(
        content,
        url,
        path,
        client=client,
        progress=progress,
        resume=resume,
        journal=journal,
        **given,
    )
