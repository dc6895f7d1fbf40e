"""OME-XML, the metadata of OME-TIFF, as far as OME-Zarr has a place for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from typing import Any
from xml.etree import ElementTree as ET

from zarr_dask.errors import MetadataError, ValidationProblem

__all__ = ["ImageFacts", "PlateFacts", "PlateField", "images_of_xml", "plate_of_xml", "unit_named"]

_LONGEST = 1 << 28
"""Maximum length of a document."""

_UNITS = {
    "å": "angstrom",
    "pm": "picometer",
    "nm": "nanometer",
    "µm": "micrometer",
    "μm": "micrometer",
    "um": "micrometer",
    "micron": "micrometer",
    "microns": "micrometer",
    "mm": "millimeter",
    "cm": "centimeter",
    "dm": "decimeter",
    "m": "meter",
    "km": "kilometer",
    "in": "inch",
    "ft": "foot",
    "ns": "nanosecond",
    "µs": "microsecond",
    "μs": "microsecond",
    "us": "microsecond",
    "ms": "millisecond",
    "s": "second",
    "sec": "second",
    "min": "minute",
    "h": "hour",
    "d": "day",
}
"""Names of units in OME-Zarr by their symbols."""


@dataclass(frozen=True)
class ImageFacts:
    """Metadata of one image."""

    name: str | None
    scale: Mapping[str, float]
    """Distance between pixels by name of the axis."""
    units: Mapping[str, str]
    channels: tuple[Mapping[str, Any], ...]
    """Names and colours of channels; none if the document tells none."""


@dataclass(frozen=True)
class PlateField:
    """One image of a well."""

    well: str
    """Path of the well, such as ``"A/1"``."""
    image: int
    """Number of the image in the document."""
    acquisition: int | None
    position: Mapping[str, tuple[float, str]]
    """Position of its first pixel by name of the axis, with the unit."""


@dataclass(frozen=True)
class PlateFacts:
    """Metadata of a plate."""

    name: str | None
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    acquisitions: tuple[Mapping[str, Any], ...]
    fields: tuple[PlateField, ...]
    """Images of all wells, in the order of the fields of each."""


def unit_named(symbol: str | None) -> str | None:
    """Return the name of a unit in OME-Zarr; None if the symbol is not one of a unit.

    Examples
    --------
    >>> unit_named("µm"), unit_named("pixel")
    ('micrometer', None)
    """
    return _UNITS.get((symbol or "").strip().casefold())


def images_of_xml(text: str, where: str) -> tuple[ImageFacts, ...]:
    """Return the metadata of all images in a document.

    Raises
    ------
    MetadataError
        If it is not XML, too long, or defines entities.

    Examples
    --------
    >>> images_of_xml('''<OME><Image Name="a"><Pixels PhysicalSizeX="0.5">
    ... <Channel Name="DAPI" Color="65535"/></Pixels></Image></OME>''', "a.ome.tif")
    (ImageFacts(name='a', scale={'x': 0.5}, units={'x': 'micrometer'},
     channels=({'label': 'DAPI', 'color': '0000FF'},)),)
    """
    root = _parsed(text, where)
    return tuple(_image(one) for one in root.iterfind("{*}Image"))


def _parsed(text: str, where: str) -> ET.Element:
    if len(text) > _LONGEST or "<!DOCTYPE" in text or "<!ENTITY" in text:
        expected = f"a document of at most {_LONGEST} characters that defines no entities"
        raise MetadataError(
            where, [ValidationProblem("OME-XML", f"{len(text)} characters", expected)]
        )
    try:
        return ET.fromstring(text)  # noqa: S314  (it defines no entities)
    except ET.ParseError as error:
        raise MetadataError(where, [ValidationProblem("OME-XML", str(error), "XML")]) from error


def _image(image: ET.Element) -> ImageFacts:
    pixels = image.find("{*}Pixels")
    scale: dict[str, float] = {}
    units: dict[str, str] = {}
    if pixels is not None:
        for axis, member, default in (
            ("x", "PhysicalSizeX", "µm"),
            ("y", "PhysicalSizeY", "µm"),
            ("z", "PhysicalSizeZ", "µm"),
            ("t", "TimeIncrement", "s"),
        ):
            size = _positive(pixels.get(member))
            unit = unit_named(pixels.get(f"{member}Unit", default))
            if size is not None:
                scale[axis] = size
                units |= {} if unit is None else {axis: unit}
    found = [] if pixels is None else [_channel(one) for one in pixels.iterfind("{*}Channel")]
    channels = tuple(found) if any(found) else ()
    return ImageFacts(image.get("Name") or None, scale, units, channels)


def _positive(text: str | None) -> float | None:
    try:
        size = float(text or "")
    except ValueError:
        return None
    return size if 0 < size < float("inf") else None


def _channel(channel: ET.Element) -> dict[str, Any]:
    told: dict[str, Any] = {}
    if name := channel.get("Name"):
        told["label"] = name
    try:
        rgba = int(channel.get("Color", "")) & 0xFFFFFFFF
    except ValueError:
        return told
    return told | {"color": f"{rgba >> 8:06X}"}


# --- plates ---------------------------------------------------------------------------------------

_MOST_LINES = 4096
"""Maximum number of rows or columns of a plate."""


def plate_of_xml(text: str, where: str) -> PlateFacts | None:
    """Return the plate that the images of a document are of; None if there is none.

    Raises
    ------
    MetadataError
        If there are several plates, or places of wells or images are wrong.

    Examples
    --------
    >>> plate = plate_of_xml('''<OME><Plate Rows="2" Columns="1"><Well Row="1" Column="0">
    ... <WellSample PositionX="3" PositionXUnit="mm"><ImageRef ID="Image:0"/></WellSample>
    ... </Well></Plate><Image ID="Image:0"/></OME>''', "a.ome.tif")
    >>> plate.rows, plate.columns, plate.fields
    (('A', 'B'), ('1',), (PlateField(well='B/1', image=0, acquisition=None,
     position={'x': (3.0, 'millimeter')}),))
    """
    root = _parsed(text, where)
    plates = [one for one in root.iterfind("{*}Plate") if one.find(".//{*}ImageRef") is not None]
    if len(plates) > 1:
        names = [one.get("Name") or one.get("ID") for one in plates]
        expected = "one plate, or the number of one image with series="
        raise MetadataError(where, [ValidationProblem("Plate", names, expected)])
    if not plates:
        return None
    numbers = {one.get("ID"): i for i, one in enumerate(root.iterfind("{*}Image"))}
    return _plate(plates[0], numbers, where)


def _plate(plate: ET.Element, numbers: Mapping[str | None, int], where: str) -> PlateFacts:
    runs = [
        (_acquisition(one, i), {ref.get("ID") for ref in one.iterfind("{*}WellSampleRef")})
        for i, one in enumerate(plate.iterfind("{*}PlateAcquisition"))
    ]
    wells = list(plate.iterfind("{*}Well"))
    lines = {
        member: _names(plate, member, [_index(well, member, where) for well in wells], where)
        for member in ("Row", "Column")
    }
    fields = []
    for well in wells:
        row, column = (names[_index(well, member, where)] for member, names in lines.items())
        samples = list(well.iterfind("{*}WellSample"))
        for sample in sorted(samples, key=lambda one: _count(one.get("Index")) or 0):
            image = sample.find("{*}ImageRef")
            if image is None:
                continue  # a place where nothing was taken
            if image.get("ID") not in numbers:
                problem = ValidationProblem(
                    "ImageRef", image.get("ID"), f"the ID of one of {len(numbers)} images"
                )
                raise MetadataError(where, [problem])
            run = next((told["id"] for told, refs in runs if sample.get("ID") in refs), None)
            number = numbers[image.get("ID")]
            fields.append(PlateField(f"{row}/{column}", number, run, _position(sample)))
    acquisitions = tuple(told for told, _ in runs)
    if len(runs) > 1 and any(one.acquisition is None for one in fields):
        problem = ValidationProblem(
            "PlateAcquisition", len(runs), "a reference to every image of the plate"
        )
        raise MetadataError(where, [problem])
    return PlateFacts(
        plate.get("Name") or None, lines["Row"], lines["Column"], acquisitions, tuple(fields)
    )


def _index(well: ET.Element, member: str, where: str) -> int:
    index = _count(well.get(member))
    if index is None or index >= _MOST_LINES:
        expected = f"a number below {_MOST_LINES}"
        problem = ValidationProblem(f"Well.{member}", well.get(member), expected)
        raise MetadataError(where, [problem])
    return index


def _names(plate: ET.Element, member: str, met: list[int], where: str) -> tuple[str, ...]:
    """Return names of all rows or columns, of those without a well, too."""
    told = _count(plate.get(f"{member}s")) or 0
    if told > _MOST_LINES:
        problem = ValidationProblem(f"Plate.{member}s", told, f"at most {_MOST_LINES}")
        raise MetadataError(where, [problem])
    default = "letter" if member == "Row" else "number"
    convention = plate.get(f"{member}NamingConvention", default)
    count = max([told, *(index + 1 for index in met)])
    return tuple(_letters(i) if convention == "letter" else str(i + 1) for i in range(count))


def _letters(index: int) -> str:
    """Return the name of a row: A to Z, AA and so on.

    Examples
    --------
    >>> _letters(0), _letters(25), _letters(26), _letters(47)
    ('A', 'Z', 'AA', 'AV')
    """
    above, last = divmod(index, 26)
    return (_letters(above - 1) if above else "") + chr(ord("A") + last)


def _acquisition(run: ET.Element, number: int) -> dict[str, Any]:
    told: dict[str, Any] = {"id": number}
    if name := run.get("Name"):
        told["name"] = name
    if most := _count(run.get("MaximumFieldCount")):
        told["maximumfieldcount"] = most
    for member, key in (("StartTime", "starttime"), ("EndTime", "endtime")):
        try:
            moment = datetime.fromisoformat(run.get(member, ""))
        except ValueError:
            continue
        told[key] = int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
    return told


def _position(sample: ET.Element) -> dict[str, tuple[float, str]]:
    """Return the position of an image; one without a unit of length says nothing of pixels."""
    found = {}
    for axis in "yx":
        member = f"Position{axis.upper()}"
        unit = unit_named(sample.get(f"{member}Unit"))
        try:
            place = float(sample.get(member, ""))
        except ValueError:
            continue
        if unit is not None and isfinite(place):
            found[axis] = place, unit
    return found


def _count(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and len(text) < 10 else None
