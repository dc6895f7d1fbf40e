"""OME-XML, the metadata of OME-TIFF, as far as OME-Zarr has a place for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree as ET

from zarr_dask.errors import MetadataError, ValidationProblem

__all__ = ["ImageFacts", "images_of_xml", "unit_named"]

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
    if len(text) > _LONGEST or "<!DOCTYPE" in text or "<!ENTITY" in text:
        expected = f"a document of at most {_LONGEST} characters that defines no entities"
        raise MetadataError(
            where, [ValidationProblem("OME-XML", f"{len(text)} characters", expected)]
        )
    try:
        root = ET.fromstring(text)  # noqa: S314  (it defines no entities)
    except ET.ParseError as error:
        raise MetadataError(where, [ValidationProblem("OME-XML", str(error), "XML")]) from error
    return tuple(_image(one) for one in root.iterfind("{*}Image"))


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
