"""OME-Zarr metadata of versions 0.4 and 0.5 as values: JSON in, the same JSON out.

`from_attributes` reads the attributes of one group, `Metadata.to_attributes` writes them. Fields
that these classes do not define are kept in ``extra``, and so are optional fields whose value has
the wrong type: real metadata break many small rules, and an image with invalid display colours can
still be read. Only fields that reading needs are required here; `zarr_dask.ome.validate` reports
all problems.

Each class declares in the metadata of its dataclass fields the name and the parser of a JSON field
(`_member`); reading and writing are one function each.
"""

# ruff: noqa: RUF009  (`_member` makes dataclass fields)
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Any, TypeVar

from zarr_dask._util.json_fields import is_int
from zarr_dask._util.keywords import takes_habits
from zarr_dask._util.warnings import warn
from zarr_dask.errors import (
    ABSENT,
    MetadataError,
    OmeMetadataWarning,
    OmeVersionError,
    ValidationProblem,
)
from zarr_dask.ome.later_versions import in_words_of_0_5, is_later

EXPECTED = "OME-Zarr metadata of a group, as zarr_dask.ome.write makes them"

__all__ = [
    "EARLIER",
    "EXPECTED",
    "KEYS",
    "NESTED",
    "SUPPORTED",
    "Acquisition",
    "Axis",
    "Channel",
    "Dataset",
    "DisplayWindow",
    "Field",
    "ImageLabel",
    "Label",
    "Metadata",
    "Multiscale",
    "Omero",
    "PlateAxisEntry",
    "PlateLayout",
    "Transformation",
    "WellFields",
    "WellPlace",
    "detect_version",
    "from_attributes",
    "is_number",
    "members_of",
]

SUPPORTED = ("0.4", "0.5")
EARLIER = ("0.1", "0.2", "0.3", "0.2 or older")
"""Versions that are brought forward, as `detect_version` names them."""
"""Versions of OME-Zarr that are read."""
NESTED = {"0.5"}
"""Versions whose metadata are below ``ome``, and whose arrays name their dimensions."""
KEYS = (
    "multiscales",
    "omero",
    "labels",
    "image-label",
    "plate",
    "well",
    "bioformats2raw.layout",
    "series",
)
"""Fields that hold OME-Zarr metadata: below ``ome`` since 0.5, among all attributes before."""

Read = Callable[[Any, str, list[ValidationProblem]], Any]
"""Parses JSON to a value, given its position and the list that collects problems."""
Number = int | float


# --- parsers of fields ----------------------------------------------------------------------------


def _member(name: str, read: Read, **options: Any) -> Any:
    return field(metadata={"name": name, "read": read}, **options)


def _extra() -> Any:
    return field(default_factory=dict, repr=False, hash=False)


def _plain(fits: Callable[[Any], bool], expected: str) -> Read:
    def read(value: Any, place: str, problems: list[ValidationProblem]) -> Any:
        if not fits(value):
            problems.append(ValidationProblem(place, value, expected))
        return value

    return read


def is_number(value: Any) -> bool:
    """True if a value is a JSON number."""
    return type(value) in {int, float}


def is_finite(number: float) -> bool:
    """True if a JSON number is finite and small enough for computation."""
    return abs(number) <= _LARGEST  # False for NaN


_LARGEST = 1e300


_text = _plain(lambda value: isinstance(value, str), "a string")
_int = _plain(is_int, "an integer")
_flag = _plain(lambda value: isinstance(value, bool), "true or false")
_number = _plain(is_number, "a number")
_object = _plain(lambda value: isinstance(value, Mapping), "an object")


_MOST_LEVELS = 1000
"""Levels, axes and transformations that a pyramid is read with at most; few have twenty."""
_MOST_CHANNELS = 10_000
"""Channels with display settings; spectral images have hundreds."""
_MOST_WELLS = 20_000
"""Rows, columns and wells of a plate that is read; the largest have 3456 wells."""


def _many(read: Read, most: int | None = None) -> Read:
    def read_all(value: Any, place: str, problems: list[ValidationProblem]) -> tuple[Any, ...]:
        if not isinstance(value, list):
            problems.append(ValidationProblem(place, value, "a list"))
            return ()
        if most is not None and len(value) > most:
            problems.append(ValidationProblem(place, f"{len(value)} items", f"at most {most}"))
            return ()
        return tuple(read(one, f"{place}[{i}]", problems) for i, one in enumerate(value))

    return read_all


def _one(name: str) -> Read:
    """Return a parser that reads an object as one of the classes below."""

    def read(value: Any, place: str, problems: list[ValidationProblem]) -> Any:
        return _read(globals()[name], value, place, problems)

    return read


Value = TypeVar("Value")


def _read(
    cls: type[Value], value: Any, place: str, problems: list[ValidationProblem]
) -> Value | None:
    """Parse an object as a value of a class; return None and add problems if a field is missing."""
    if not isinstance(value, Mapping):
        problems.append(ValidationProblem(place, value, "an object"))
        return None
    members, found = dict(value), {}
    here: list[ValidationProblem] = []
    for member in _members(cls):
        name, at = member.metadata["name"], _below(place, member.metadata["name"])
        needed = member.default is MISSING
        if name not in members:
            if needed:
                here.append(ValidationProblem(at, ABSENT, "a value"))
            continue
        wrong: list[ValidationProblem] = []
        read = member.metadata["read"](members[name], at, wrong)
        if not wrong:
            found[member.name] = read
            del members[name]
        elif needed:
            here += wrong
    problems += here
    return None if here else _made(cls, found, members)


def _made(cls: Any, found: dict[str, Any], extra: Mapping[str, Any]) -> Any:
    return cls(**found, extra=_copied(dict(extra)))


def _copied(value: Any) -> Any:
    """Return a copy of a JSON value; `copy.deepcopy` takes twice as long."""
    if isinstance(value, Mapping):
        return {name: _copied(one) for name, one in value.items()}
    return [_copied(one) for one in value] if isinstance(value, list) else value


def _members(cls: Any) -> Iterator[Any]:
    return (one for one in fields(cls) if "name" in one.metadata)


def _below(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _write(value: Any) -> Any:
    """Return a value as JSON."""
    if isinstance(value, tuple):
        return [_write(one) for one in value]
    if is_dataclass(value):
        members = ((one.metadata["name"], getattr(value, one.name)) for one in _members(value))
        known = {name: _write(member) for name, member in members if member is not None}
        return known | _copied(dict(getattr(value, "extra", {})))
    return _copied(dict(value)) if isinstance(value, Mapping) else value


# --- images ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Axis:
    """One dimension of an image."""

    name: str = _member("name", _text)
    type: str | None = _member("type", _text, default=None)
    """``space``, ``time``, ``channel`` or a custom type."""
    unit: str | None = _member("unit", _text, default=None)
    """Name of a unit in UDUNITS."""
    extra: Mapping[str, Any] = _extra()


@dataclass(frozen=True)
class Transformation:
    """A scale or a translation, with one number for each axis."""

    type: str = _member("type", _text)
    scale: tuple[Number, ...] | None = _member("scale", _many(_number), default=None)
    translation: tuple[Number, ...] | None = _member("translation", _many(_number), default=None)
    extra: Mapping[str, Any] = _extra()


@dataclass(frozen=True)
class Dataset:
    """One level of a pyramid: an array and the position of its pixels."""

    path: str = _member("path", _text)
    transformations: tuple[Transformation, ...] = _member(
        "coordinateTransformations", _many(_one("Transformation"), _MOST_LEVELS)
    )
    extra: Mapping[str, Any] = _extra()


@dataclass(frozen=True)
class Multiscale:
    """A pyramid: one image at several resolutions, the finest first."""

    axes: tuple[Axis, ...] = _member("axes", _many(_one("Axis"), _MOST_LEVELS))
    datasets: tuple[Dataset, ...] = _member("datasets", _many(_one("Dataset"), _MOST_LEVELS))
    transformations: tuple[Transformation, ...] | None = _member(
        "coordinateTransformations", _many(_one("Transformation"), _MOST_LEVELS), default=None
    )
    """Transformations applied after those of each level."""
    name: str | None = _member("name", _text, default=None)
    version: str | None = _member("version", _text, default=None)
    type: str | None = _member("type", _text, default=None)
    """Method that made the coarser levels."""
    metadata: Mapping[str, Any] | None = _member("metadata", _object, default=None)
    extra: Mapping[str, Any] = _extra()


@dataclass(frozen=True)
class DisplayWindow:
    """Range of values that a channel is displayed with, within its possible range."""

    min: Number = _member("min", _number)
    max: Number = _member("max", _number)
    start: Number = _member("start", _number)
    end: Number = _member("end", _number)
    extra: Mapping[str, Any] = _extra()


@dataclass(frozen=True)
class Channel:
    """Display settings of one channel."""

    color: str | None = _member("color", _text, default=None)
    """Red, green and blue as six hexadecimal digits."""
    window: DisplayWindow | None = _member("window", _one("DisplayWindow"), default=None)
    label: str | None = _member("label", _text, default=None)
    active: bool | None = _member("active", _flag, default=None)
    extra: Mapping[str, Any] = _extra()


@dataclass(frozen=True)
class Omero:
    """Display settings of an image."""

    channels: tuple[Channel, ...] = _member("channels", _many(_one("Channel"), _MOST_CHANNELS))
    version: str | None = _member("version", _text, default=None)
    extra: Mapping[str, Any] = _extra()


@dataclass(frozen=True)
class Label:
    """One value of a label image: its colour, or its properties (in ``extra``)."""

    value: int = _member("label-value", _int)
    rgba: tuple[int, ...] | None = _member("rgba", _many(_int), default=None)
    extra: Mapping[str, Any] = _extra()


@dataclass(frozen=True)
class ImageLabel:
    """The meaning of the values of a label image."""

    colors: tuple[Label, ...] | None = _member("colors", _many(_one("Label")), default=None)
    properties: tuple[Label, ...] | None = _member("properties", _many(_one("Label")), default=None)
    source: Mapping[str, Any] | None = _member("source", _object, default=None)
    version: str | None = _member("version", _text, default=None)
    extra: Mapping[str, Any] = _extra()

    @property
    def image(self) -> str:
        """Path of the labelled image, relative to this one."""
        image = (self.source or {}).get("image")
        return image if isinstance(image, str) else "../../"


# --- plates ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlateAxisEntry:
    """A row or a column of a plate."""

    name: str = _member("name", _text)
    extra: Mapping[str, Any] = _extra()


@dataclass(frozen=True)
class WellPlace:
    """Location of a well: its group, and its row and column counted from 0."""

    path: str = _member("path", _text)
    row: int = _member("rowIndex", _int)
    column: int = _member("columnIndex", _int)
    extra: Mapping[str, Any] = _extra()


@dataclass(frozen=True)
class Acquisition:
    """One run of the microscope over a plate."""

    id: int = _member("id", _int)
    name: str | None = _member("name", _text, default=None)
    description: str | None = _member("description", _text, default=None)
    maximum_field_count: int | None = _member("maximumfieldcount", _int, default=None)
    start_time: int | None = _member("starttime", _int, default=None)
    """Seconds since 1970."""
    end_time: int | None = _member("endtime", _int, default=None)
    extra: Mapping[str, Any] = _extra()


@dataclass(frozen=True)
class PlateLayout:
    """Rows, columns and wells of a plate."""

    rows: tuple[PlateAxisEntry, ...] = _member("rows", _many(_one("PlateAxisEntry"), _MOST_WELLS))
    columns: tuple[PlateAxisEntry, ...] = _member(
        "columns", _many(_one("PlateAxisEntry"), _MOST_WELLS)
    )
    wells: tuple[WellPlace, ...] = _member("wells", _many(_one("WellPlace"), _MOST_WELLS))
    acquisitions: tuple[Acquisition, ...] | None = _member(
        "acquisitions", _many(_one("Acquisition")), default=None
    )
    field_count: int | None = _member("field_count", _int, default=None)
    name: str | None = _member("name", _text, default=None)
    version: str | None = _member("version", _text, default=None)
    extra: Mapping[str, Any] = _extra()


@dataclass(frozen=True)
class Field:
    """One image of a well."""

    path: str = _member("path", _text)
    acquisition: int | None = _member("acquisition", _int, default=None)
    extra: Mapping[str, Any] = _extra()


@dataclass(frozen=True)
class WellFields:
    """The images of a well."""

    images: tuple[Field, ...] = _member("images", _many(_one("Field")))
    version: str | None = _member("version", _text, default=None)
    extra: Mapping[str, Any] = _extra()


# --- all of one group -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Metadata:
    """OME-Zarr metadata of one group; made by `from_attributes`.

    Examples
    --------
    >>> from zarr_dask.ome import from_attributes
    >>> attributes = {"ome": {"version": "0.5", "labels": ["cells"], "mine": 1}, "title": "run 7"}
    >>> metadata = from_attributes(attributes)
    >>> metadata.version, metadata.labels
    ('0.5', ('cells',))
    >>> metadata.to_attributes() == attributes
    True
    """

    version: str
    multiscales: tuple[Multiscale, ...] | None = _member(
        "multiscales", _many(_one("Multiscale")), default=None
    )
    omero: Omero | None = _member("omero", _one("Omero"), default=None)
    labels: tuple[str, ...] | None = _member("labels", _many(_text), default=None)
    image_label: ImageLabel | None = _member("image-label", _one("ImageLabel"), default=None)
    plate: PlateLayout | None = _member("plate", _one("PlateLayout"), default=None)
    well: WellFields | None = _member("well", _one("WellFields"), default=None)
    layout: int | None = _member("bioformats2raw.layout", _int, default=None)
    """3 for a group of several images in the layout of bioformats2raw."""
    series: tuple[str, ...] | None = _member("series", _many(_text), default=None)
    """Paths of those images, in the order of the OME-XML document."""
    extra: Mapping[str, Any] = _extra()
    """Other fields beside these."""
    others: Mapping[str, Any] = _extra()
    """Attributes beside ``ome``; before 0.5 they are part of ``extra``."""

    def to_attributes(self) -> dict[str, Any]:
        """Return the attributes of the group as they were read; ``ome`` always has a version.

        Raises
        ------
        OmeVersionError
            If they were of 0.6, which is not written.
        """
        if is_later(self.version):
            raise OmeVersionError("attributes", self.version, SUPPORTED)
        members = _write(self)
        if self.version in NESTED:
            return {"ome": {"version": self.version, **members}, **_copied(dict(self.others))}
        return dict(members)


_NEEDED = ("multiscales", "labels", "plate", "well", "series")
"""Fields without which a group cannot be opened; errors in other fields are tolerated."""


def members_of(attributes: Mapping[str, Any], version: str) -> Any:
    """Return the part of a group's attributes that holds the metadata of a version."""
    return attributes.get("ome", ABSENT) if version in NESTED else attributes


@takes_habits()
def detect_version(attributes: Mapping[str, Any]) -> str | None:
    """Return the version of OME-Zarr metadata; None if there are none.

    Metadata below ``ome`` take precedence over metadata of older versions beside it.

    Raises
    ------
    TypeError
        If no attributes are given, but the location of an image.
    """
    if not isinstance(attributes, Mapping):
        raise TypeError(
            f"attributes={attributes!r}: expected the attributes of a group, as those of "
            "zarr_dask.open_group(url).attrs."
        )
    ome = attributes.get("ome")
    if isinstance(ome, Mapping) and ("version" in ome or any(key in ome for key in KEYS)):
        version = ome.get("version", ABSENT)
        if version is ABSENT:  # in groups of label images written by ome-zarr, for instance
            return _inferred_below(ome.get("multiscales"))
        return version if isinstance(version, str) else f"{version!r}"
    present = [attributes[key] for key in KEYS if key in attributes]
    if not present:
        return None
    for value in present:
        first = value[0] if isinstance(value, list) and value else value
        if isinstance(first, Mapping) and isinstance(first.get("version"), str):
            return str(first["version"])
    return _inferred(attributes.get("multiscales"))


def _inferred_below(multiscales: Any) -> str:
    """Infer the version of metadata below ``ome`` that do not state it."""
    first = multiscales[0] if isinstance(multiscales, list) and multiscales else None
    newer = isinstance(first, Mapping) and "coordinateSystems" in first and "axes" not in first
    return "0.6 or newer" if newer else "0.5"


def _inferred(multiscales: Any) -> str:
    """Infer the version of metadata that do not state it, by their axes."""
    first = multiscales[0] if isinstance(multiscales, list) and multiscales else None
    if not isinstance(first, Mapping):
        return "0.4"
    axes = first.get("axes")
    if axes is None:
        return "0.2 or older" if _without_scales(first) else "0.4"
    names = isinstance(axes, list) and axes and all(isinstance(axis, str) for axis in axes)
    return "0.3" if names else "0.4"


def _without_scales(multiscale: Mapping[str, Any]) -> bool:
    datasets = multiscale.get("datasets")
    return isinstance(datasets, Sequence) and not any(
        isinstance(one, Mapping) and "coordinateTransformations" in one for one in datasets
    )


@takes_habits()
def from_attributes(
    attributes: Mapping[str, Any], version: str | None = None, where: str = "attributes"
) -> Metadata:
    """Read OME-Zarr metadata from the attributes of a group.

    Parameters
    ----------
    attributes
        All attributes of the group.
    version
        ``"0.4"`` or ``"0.5"``; detected by default, where ``ome`` takes precedence. 0.6 is read in
        the words of 0.5.
    where
        Name of the group in errors.

    Raises
    ------
    OmeVersionError
        If the metadata are of another version.
    MetadataError
        If there are none, or they lack fields needed to read an image or a plate.

    Warns
    -----
    OmeMetadataWarning
        If they are of 0.6.
    """
    version = version or detect_version(attributes)
    if version is None:
        raise MetadataError(
            where,
            [ValidationProblem("ome", ABSENT, EXPECTED)],
        )
    if is_later(version):
        return _read_later(attributes, version, where)
    if version not in SUPPORTED:
        raise OmeVersionError(where, version, SUPPORTED)
    members, others = dict(attributes), {}
    if version in NESTED:
        others = {name: value for name, value in members.items() if name != "ome"}
        if not isinstance(members.get("ome"), Mapping):
            problem = ValidationProblem("ome", members.get("ome", ABSENT), "an object")
            raise MetadataError(where, [problem])
        members = dict(members["ome"])
        told = members.pop("version", version)
        if not isinstance(told, str):
            problem = ValidationProblem("ome.version", told, f"{version!r}, a string")
            raise MetadataError(where, [problem])
        if told != version:
            raise OmeVersionError(where, str(told), (version,))
    return _metadata(members, version, others, where)


def _read_later(attributes: Mapping[str, Any], version: str, where: str) -> Metadata:
    """Read metadata of 0.6 as far as 0.5 has words for them."""
    problems: list[ValidationProblem] = []
    ome = attributes.get("ome")
    members = in_words_of_0_5(ome, problems) if isinstance(ome, Mapping) else {}
    if problems:
        raise MetadataError(where, problems)
    warn(
        f"{where} is of OME-Zarr {version}, which is read by its axes, scales and translations; "
        "other coordinate systems are left out. zarr_dask.ome.write copies it to 0.5.",
        OmeMetadataWarning,
    )
    members.pop("version", None)
    others = {name: value for name, value in attributes.items() if name != "ome"}
    return _metadata(members, version, others, where)


def _metadata(
    members: dict[str, Any], version: str, others: Mapping[str, Any], where: str
) -> Metadata:
    found: dict[str, Any] = {}
    problems: list[ValidationProblem] = []
    for member in _members(Metadata):
        name = member.metadata["name"]
        if name not in members:
            continue
        wrong: list[ValidationProblem] = []
        value = member.metadata["read"](members[name], name, wrong)
        if not wrong:
            found[member.name] = value
            del members[name]
        elif name in _NEEDED:
            problems += wrong
    if problems:
        raise MetadataError(where, problems)
    return Metadata(version, **found, extra=_copied(members), others=_copied(dict(others)))
