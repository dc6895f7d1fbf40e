"""From a user's description of an image to its OME-Zarr metadata, checked before writing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

import numpy as np

from zarr_dask._util.json_fields import is_int
from zarr_dask._util.warnings import warn
from zarr_dask.errors import (
    ABSENT,
    MetadataError,
    OmeMetadataWarning,
    OmeVersionError,
    ValidationProblem,
)
from zarr_dask.formats.base import checked_attributes as json_attributes
from zarr_dask.grid.grid import Shape
from zarr_dask.ome.downsample import Method
from zarr_dask.ome.model import (
    NESTED,
    SUPPORTED,
    Axis,
    Channel,
    Dataset,
    DisplayWindow,
    ImageLabel,
    Label,
    Metadata,
    Multiscale,
    Omero,
    Transformation,
    is_number,
)
from zarr_dask.ome.ome_xml import unit_named
from zarr_dask.ome.validate_metadata import validate_attributes

__all__ = [
    "AxesAndTransforms",
    "checked_attributes",
    "checked_version",
    "dataset_of",
    "frame_of",
    "image_label",
    "multiscale_of",
    "omero_of",
    "per_axis",
    "plain",
]

_TYPES = {"t": "time", "c": "channel", "z": "space", "y": "space", "x": "space"}


@dataclass(frozen=True)
class AxesAndTransforms:
    """Axes of an image, and the position of its pixels."""

    axes: tuple[Axis, ...]
    scale: tuple[float, ...]
    translation: tuple[float, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the axes."""
        return tuple(axis.name for axis in self.axes)

    @property
    def space(self) -> tuple[int, ...]:
        """Indices of the axes of type space."""
        return tuple(i for i, axis in enumerate(self.axes) if axis.type == "space")


# --- axes -----------------------------------------------------------------------------------------


def frame_of(
    ndim: int, axes: Any, scale: Any, translation: Any, units: Any, where: str
) -> AxesAndTransforms:
    """Parse axes, scale and translation in all accepted forms.

    Raises
    ------
    MetadataError
        If they do not fit the image or each other.
    """
    found = _axes(ndim, axes, where)
    names = tuple(axis.name for axis in found)
    if isinstance(units, str):
        units = {axis.name: units for axis in found if axis.type == "space"}
    given = per_axis(units, names, None, "units", where)
    found = tuple(
        replace(axis, unit=axis.unit if unit is None else _unit(unit))
        for axis, unit in zip(found, given, strict=True)
    )
    frame = AxesAndTransforms(
        found,
        _numbers(per_axis(scale, names, 1.0, "scale", where), "scale", where),
        _numbers(per_axis(translation, names, 0.0, "translation", where), "translation", where),
    )
    if any(one <= 0 for one in frame.scale):
        raise MetadataError(where, [ValidationProblem("scale", frame.scale, "numbers above 0")])
    return frame


def _axes(ndim: int, axes: Any, where: str) -> tuple[Axis, ...]:
    if axes is None:
        if ndim not in {2, 5}:
            problem = ValidationProblem(
                "axes", ABSENT, f"a name for each of {ndim} axes, such as 'czyx'"
            )
            raise MetadataError(where, [problem])
        axes = "tczyx"[-ndim:]
    if not isinstance(axes, Sequence):
        raise MetadataError(where, [ValidationProblem("axes", axes, "names of axes")])
    if all(isinstance(one, str) and len(one) == 1 and one in "TCZYX" for one in axes):
        axes = [one.lower() for one in axes]  # as tifffile and bioio name them; viewers do not
    found = tuple(_axis(one, i, where) for i, one in enumerate(axes))
    if len(found) != ndim:
        names = [axis.name for axis in found]
        raise MetadataError(
            where, [ValidationProblem("axes", names, f"{ndim} axes, as the image has")]
        )
    return found


def _unit(given: Any) -> Any:
    """Return the name of a unit that is given by its symbol; others unchanged."""
    return unit_named(given) or given if isinstance(given, str) else given


def _axis(one: Any, number: int, where: str) -> Axis:
    if isinstance(one, Axis):
        return one
    if isinstance(one, str):
        return Axis(one, _TYPES.get(one.lower()))
    if isinstance(one, Mapping) and isinstance(one.get("name"), str):
        known = {key: value for key, value in one.items() if key in {"name", "type", "unit"}}
        extra = {key: value for key, value in one.items() if key not in known}
        known.setdefault("type", _TYPES.get(known["name"].lower()))
        return Axis(**known, extra=extra)
    raise MetadataError(where, [ValidationProblem(f"axes[{number}]", one, "a name, or an axis")])


def per_axis(
    given: Any, names: Sequence[str], default: Any, what: str, where: str
) -> tuple[Any, ...]:
    """Return one value for each axis, from a mapping by name, a sequence, or the default.

    Raises
    ------
    MetadataError
        If a name belongs to no axis, or the number of values is wrong.
    """
    if given is None:
        return (default,) * len(names)
    if isinstance(given, Mapping):
        large = {name.upper(): name for name in names if name.upper() not in names}
        given = {large.get(key, key): value for key, value in given.items()}
        unknown = [key for key in given if key not in names]
        if unknown:
            problem = ValidationProblem(what, unknown, f"names of axes, which are {list(names)}")
            raise MetadataError(where, [problem])
        return tuple(given.get(name, default) for name in names)
    values = tuple(given) if isinstance(given, Sequence | np.ndarray) else ()
    if isinstance(given, str) or len(values) != len(names):
        raise MetadataError(
            where, [ValidationProblem(what, given, f"one for each of the axes {list(names)}")]
        )
    return values


def _numbers(values: tuple[Any, ...], what: str, where: str) -> tuple[float, ...]:
    try:
        numbers = tuple(float(value) for value in values)
        if all(map(isfinite, numbers)):
            return numbers
    except (TypeError, ValueError):
        pass
    raise MetadataError(where, [ValidationProblem(what, values, "finite numbers")])


# --- metadata -------------------------------------------------------------------------------------


def multiscale_of(
    frame: AxesAndTransforms,
    name: str | None,
    paths: Sequence[str],
    factors: Sequence[Shape],
    method: Method,
    version: str,
) -> Multiscale:
    """Return the metadata of a pyramid.

    Parameters
    ----------
    frame
        Axes, and the position of the pixels of level 0.
    name
        Name of the image.
    paths
        Paths of the levels.
    factors
        Factors of each level after the first, against the one before.
    method
        Method that made the levels; it determines the offset of coarse pixels.
    version
        Version of OME-Zarr.
    """
    ndim = len(frame.axes)
    product, offset = [1] * ndim, [0.0] * ndim
    places = [(tuple(product), tuple(offset))]
    for step in factors:
        offset = [at + f * method.offset(s) for at, f, s in zip(offset, product, step, strict=True)]
        product = [f * s for f, s in zip(product, step, strict=True)]
        places.append((tuple(product), tuple(offset)))
    translations = [
        tuple(t + s * at for t, s, at in zip(frame.translation, frame.scale, offset, strict=True))
        for _, offset in places
    ]
    scales = [
        tuple(s * f for s, f in zip(frame.scale, product, strict=True)) for product, _ in places
    ]
    moved = any(any(one) for one in translations)
    return Multiscale(
        axes=frame.axes,
        datasets=tuple(
            dataset_of(path, scale, translation if moved else None)
            for path, scale, translation in zip(paths, scales, translations, strict=True)
        ),
        name=name,
        version=None if version in NESTED else version,
        type=method.name,
        metadata={
            "method": "zarr_dask.ome.write",
            "description": "each level follows from the one before",
            "kwargs": {"method": method.name, "factors": [list(step) for step in factors]},
        },
    )


def dataset_of(path: str, scale: Sequence[float], translation: Sequence[float] | None) -> Dataset:
    """Return the metadata of one level."""
    steps = [Transformation("scale", scale=tuple(scale))]
    if translation is not None:
        steps.append(Transformation("translation", translation=tuple(translation)))
    return Dataset(path, tuple(steps))


_COLOURS = ("FFFFFF",), ("00FF00", "FF00FF", "00FFFF", "FFFF00", "FF0000", "0000FF")


def omero_of(
    channels: Any,
    frame: AxesAndTransforms,
    shape: Shape,
    dtype: np.dtype[Any],
    version: str,
    where: str,
) -> Omero | None:
    """Return the display settings of channels; None if none are given.

    Raises
    ------
    MetadataError
        If the number of channels does not fit the image, or one is not a channel.
    """
    if channels is None:
        return None
    at = next((i for i, axis in enumerate(frame.axes) if axis.type == "channel"), None)
    count = 1 if at is None else shape[at]
    if isinstance(channels, str) and count == 1:
        channels = [channels]
    if isinstance(channels, str) or not isinstance(channels, Sequence) or len(channels) != count:
        raise MetadataError(
            where, [ValidationProblem("channels", channels, f"{count} names or channels")]
        )
    found = tuple(_channel(one, i, count, dtype, where) for i, one in enumerate(channels))
    return Omero(found, None if version in NESTED else version)


def _channel(one: Any, number: int, count: int, dtype: np.dtype[Any], where: str) -> Channel:
    colours = _COLOURS[count > 1]
    colour = colours[number % len(colours)]
    low, high = (0, 1) if dtype.kind in "fcb" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    window = DisplayWindow(int(low), int(high), int(low), int(high))
    if isinstance(one, str):
        return Channel(colour, window, one, active=True)
    if isinstance(one, Mapping):
        given = dict(one)
        wanted = given.pop("window", window)
        if isinstance(wanted, tuple | list) and len(wanted) == len(_ENDS):
            wanted = dict(zip(_ENDS, wanted, strict=True))
        if isinstance(wanted, Mapping):
            wanted = _window(wanted, low, high, f"channels[{number}].window", where)
        known = {key: given.pop(key) for key in ("color", "label", "active") if key in given}
        known.setdefault("color", colour)
        if not isinstance(known["color"], str):
            red, green, blue, _ = _rgba(known["color"], where)
            known["color"] = f"{red:02X}{green:02X}{blue:02X}"
        known["color"] = known["color"].lstrip("#")
        known.setdefault("active", True)
        return Channel(window=wanted, **known, extra=given)
    if isinstance(one, Channel):
        return replace(one, color=one.color or colour, window=one.window or window)
    raise MetadataError(
        where, [ValidationProblem(f"channels[{number}]", one, "a name or a channel")]
    )


_ENDS = ("start", "end")


def _window(given: Mapping[str, Any], low: int, high: int, what: str, where: str) -> DisplayWindow:
    """Return a window completed with the limits of the data type."""
    values = {name: plain(value) for name, value in given.items()}
    if not all(map(is_number, values.values())):
        raise MetadataError(where, [ValidationProblem(what, dict(given), "numbers")])
    start, end = values.get("start", low), values.get("end", high)
    least, most = values.get("min", min(low, start)), values.get("max", max(high, end))
    return DisplayWindow(least, most, start, end)


def plain(given: Any) -> Any:
    """Convert NumPy's numbers and arrays to Python values, also inside lists and mappings.

    Examples
    --------
    >>> import numpy as np
    >>> plain((np.int64(2), {"y": np.array([1.5])}))
    [2, {'y': [1.5]}]
    """
    if isinstance(given, np.generic | np.ndarray):
        return given.tolist()
    if isinstance(given, Mapping):
        return {key: plain(value) for key, value in given.items()}
    return [plain(value) for value in given] if isinstance(given, list | tuple) else given


def image_label(
    colors: Any, properties: Any, version: str, where: str, source: str = "../../"
) -> ImageLabel:
    """Return the meaning of the values of a label image.

    Parameters
    ----------
    colors
        Colours by label value: three or four numbers from 0 to 255 or ``"#RRGGBB"``, as a mapping
        or as pairs.
    properties
        Properties by label value: mappings, as a mapping or as pairs.

    Raises
    ------
    MetadataError
        If they have another form. Violations of OME-Zarr rules, such as a duplicate value, are
        found by `checked_attributes`.
    """
    shown = tuple(
        Label(_value(value, where), _rgba(colour, where))
        for value, colour in _pairs(colors, "colors", where)
    )
    known = tuple(
        Label(_value(value, where), extra=_members(members, where))
        for value, members in _pairs(properties, "properties", where)
    )
    return ImageLabel(
        colors=shown or None,
        properties=known or None,
        source={"image": source},
        version=None if version in NESTED else version,
    )


def _pairs(given: Any, what: str, where: str) -> list[tuple[Any, Any]]:
    if given is None:
        return []
    if isinstance(given, Mapping):
        return list(given.items())
    try:
        return [(value, said) for value, said in given]
    except (TypeError, ValueError):
        problem = ValidationProblem(what, given, "a mapping of label values, or pairs")
        raise MetadataError(where, [problem]) from None


def _value(value: Any, where: str) -> int:
    value = plain(value)
    if not is_int(value):
        raise MetadataError(where, [ValidationProblem("label-value", value, "an integer")])
    return int(value)


def _members(members: Any, where: str) -> dict[str, Any]:
    if not isinstance(members, Mapping):
        raise MetadataError(where, [ValidationProblem("properties", members, "a mapping")])
    return {str(key): plain(value) for key, value in members.items()}


def _rgba(colour: Any, where: str) -> tuple[int, ...]:
    if isinstance(colour, str):
        try:
            found = tuple(bytes.fromhex(colour.lstrip("#")))
        except ValueError:
            found = ()
    else:
        found = tuple(map(plain, colour)) if isinstance(colour, Sequence | np.ndarray) else ()
    if len(found) not in {3, 4} or not all(is_int(one) and 0 <= one < 1 << 8 for one in found):
        expected = "three or four numbers from 0 to 255, or '#RRGGBB'"
        raise MetadataError(where, [ValidationProblem("colors", colour, expected)])
    return found if len(found) == 4 else (*found, 255)


def checked_version(version: str, where: str) -> str:
    """Return the version if it can be written.

    Raises
    ------
    OmeVersionError
        If the version is not supported.
    """
    if str(version) not in SUPPORTED:
        raise OmeVersionError(where, str(version), SUPPORTED)
    return str(version)


def checked_attributes(metadata: Metadata, kind: str, where: str) -> dict[str, Any]:
    """Return the attributes of a group if they violate no rule of OME-Zarr.

    Units that are not in UDUNITS-2 only give a warning.

    Raises
    ------
    MetadataError
        If a rule is violated; every violation is listed.
    """
    attributes = json_attributes(metadata.to_attributes(), where)
    found = validate_attributes(attributes, metadata.version, kind, strict=True)
    broken = [one for one in found if one.level == "must"]
    if broken:
        raise MetadataError(
            where, [ValidationProblem(one.place, one.found, one.rule, "rule") for one in broken]
        )
    for one in found:
        if one.place.endswith(".unit"):
            warn(f"{where}: {one}", OmeMetadataWarning)
    return attributes
