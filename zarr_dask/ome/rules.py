"""The rules of OME-Zarr 0.4 and 0.5 for the attributes of one group.

Each function checks one kind of metadata and notes violations, in the raw JSON: no model is needed,
so that the first error does not hide others. Rules of the published schemas and rules that only the
text states are treated alike. Recommendations of the text have the level ``should``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from zarr_dask._util.json_fields import is_int
from zarr_dask.errors import ABSENT
from zarr_dask.ome.model import is_finite, is_number
from zarr_dask.ome.units import UNITS

__all__ = ["RULES", "Violation", "Violations", "check_version"]

Fits = Callable[[Any], bool]
"""Returns True if a value follows a rule."""


@dataclass(frozen=True)
class Violation:
    """A violation of one rule."""

    place: str
    """Path of the node unless it is the validated one, then the field."""
    found: object
    """Value that was found; `zarr_dask.errors.ABSENT` if there is none."""
    rule: str
    """Text of the violated rule."""
    level: str = "must"
    """``must``, or ``should`` for a recommendation."""

    def __str__(self) -> str:
        found = "absent" if self.found is ABSENT else repr(self.found)
        shown = found if len(found) <= _LONGEST else f"{found[:_LONGEST]}..."
        return f"{self.place}: {shown}; {self.rule} ({self.level})"


_LONGEST = 80


@dataclass
class Violations:
    """Collects violations."""

    version: str
    found: list[Violation] = field(default_factory=list)
    alone: bool = True
    """True if only the attributes are known, as in the published test suites."""

    @property
    def tolerates(self) -> bool:
        """True to accept metadata that are valid in the suite of 0.4, but violate its text."""
        return self.alone and self.version in _VERSION_INSIDE

    def add(self, place: str, found: object, rule: str, level: str = "must") -> None:
        """Note a violation."""
        self.found.append(Violation(place, found, rule, level))

    def should(self, place: str, found: object, rule: str) -> None:
        """Note a violation of a recommendation."""
        self.add(place, found, rule, "should")

    def take(
        self,
        owner: Mapping[str, Any],
        place: str,
        name: str,
        fits: Fits,
        rule: str,
    ) -> Any:
        """Return a required field; if it is wrong, note a violation and return None."""
        value = owner.get(name, ABSENT)
        if value is not ABSENT and fits(value):
            return value
        self.add(f"{place}.{name}", value, rule)
        return None

    def may(
        self,
        owner: Mapping[str, Any],
        place: str,
        name: str,
        fits: Fits,
        rule: str,
    ) -> Any:
        """Return an optional field, as `take`."""
        return self.take(owner, place, name, fits, rule) if name in owner else None

    def objects(self, values: list[Any], place: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield position and value of every object of a list; note items that are not objects."""
        for i, value in enumerate(values):
            if isinstance(value, Mapping):
                yield f"{place}[{i}]", value
            else:
                self.add(f"{place}[{i}]", value, "must be an object")

    def unique(self, values: list[tuple[str, Hashable]], rule: str, level: str = "must") -> None:
        """Note every value that also occurs at an earlier position."""
        seen: set[Hashable] = set()
        for place, value in values:
            if value in seen:
                self.add(place, value, rule, level)
            seen.add(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_filled(value: Any) -> bool:
    return isinstance(value, list) and bool(value)


def _at_least(low: int) -> Callable[[Any], bool]:
    return lambda value: is_int(value) and value >= low


def _matches(pattern: str) -> Callable[[Any], bool]:
    found = re.compile(pattern, re.ASCII)
    return lambda value: isinstance(value, str) and found.fullmatch(value) is not None


_is_name = _matches("[A-Za-z0-9]+")


def check_version(members: Mapping[str, Any], place: str, notes: Violations) -> None:
    """Check the version inside an object of 0.4: absent, or that of all metadata."""
    if "version" in members:
        rule = f"the version of all metadata of a hierarchy must be {notes.version!r}"
        notes.take(members, place, "version", lambda found: found == notes.version, rule)
    elif notes.version in _VERSION_INSIDE:
        notes.should(f"{place}.version", ABSENT, f"should be {notes.version!r}")


_VERSION_INSIDE = {"0.4"}
"""Versions in which each object has a version; later only ``ome.version`` has it."""


# --- images ---------------------------------------------------------------------------------------


def check_multiscales(value: Any, notes: Violations) -> None:
    """Check pyramids."""
    if not _is_filled(value):
        notes.add("multiscales", value, "must be a list of at least one multiscale")
        return
    for place, one in notes.objects(value, "multiscales"):
        _check_multiscale(one, place, notes)
    notes.unique(
        [(f"multiscales[{i}]", repr(one)) for i, one in enumerate(value)],
        "no multiscale may be listed twice",
    )


def _check_multiscale(one: Mapping[str, Any], place: str, notes: Violations) -> None:
    rule = "must be a list of axes"
    if "coordinateSystems" in one:
        level = "should" if "axes" in one else "must"
        why = f"belongs to OME-Zarr 0.6 (RFC-5); metadata of {notes.version} have axes instead"
        notes.add(f"{place}.coordinateSystems", one["coordinateSystems"], why, level)
        rule = "must be a list of axes, also where there are coordinateSystems"
    axes = notes.take(one, place, "axes", lambda v: isinstance(v, list), rule)
    if axes is not None:
        _check_axes(axes, f"{place}.axes", notes)
    rule = "must be a list of at least one dataset"
    datasets = notes.take(one, place, "datasets", _is_filled, rule)
    paths: list[tuple[str, Hashable]] = []
    for at, dataset in notes.objects(datasets or [], f"{place}.datasets"):
        path = notes.take(dataset, at, "path", _is_text, "the path of an array must be a string")
        if path is not None and path.startswith("/"):
            rule = "the path of an array must be relative to its group, without '/' at the start"
            notes.add(f"{at}.path", path, rule)
        if path is not None:
            paths.append((f"{at}.path", path))
        value = dataset.get("coordinateTransformations", ABSENT)
        _check_transformations(value, f"{at}.coordinateTransformations", axes, notes)
    notes.unique(paths, "each level should be an array of its own", "should")
    _check_order(datasets or [], f"{place}.datasets", notes)
    if "coordinateTransformations" in one:
        value = one["coordinateTransformations"]
        _check_transformations(value, f"{place}.coordinateTransformations", axes, notes)
    if notes.version in _VERSION_INSIDE:
        check_version(one, place, notes)
    notes.may(one, place, "name", _is_text, "must be a string")
    for name in ("name", "type", "metadata"):
        if name not in one:
            notes.should(f"{place}.{name}", ABSENT, "should say more of the image")


def _check_axes(axes: list[Any], place: str, notes: Violations) -> None:
    if not 2 <= len(axes) <= 5:
        notes.add(place, f"{len(axes)} axes", "an image must have 2 to 5 axes")
    names, kinds = [], []
    for at, axis in notes.objects(axes, place):
        name = notes.take(axis, at, "name", _is_text, "each axis must have a name, a string")
        names.append((f"{at}.name", name))
        rule = "the type of an axis must be a string"
        kind = notes.may(axis, at, "type", lambda v: v is None or _is_text(v), rule)
        kinds.append(kind if kind in {"space", "time"} else "channel")
        if kind is None and "type" not in axis:
            notes.should(f"{at}.type", ABSENT, "an axis should have a type")
        elif kind is not None and (meant := _misspelt(kind)):
            notes.should(f"{at}.type", kind, f"is not a type that readers know; {meant!r} is one")
        _check_unit(axis, kind, at, notes)
    notes.unique([one for one in names if one[1] is not None], "names of axes must be unique")
    if kinds.count("space") not in {2, 3}:
        found = f"{kinds.count('space')} axes of type space"
        told = [axis.get("type") for axis in axes if isinstance(axis, Mapping)]
        guesses = [(kind, _misspelt(kind)) for kind in told if isinstance(kind, str)]
        hints = "".join(f"; {kind!r} may be meant as {name!r}" for kind, name in guesses if name)
        notes.add(place, found, f"2 or 3 axes must be of type space{hints}")
    if kinds.count("time") > 1:
        notes.add(place, "several axes of type time", "at most one axis may be of type time")
    if kinds.count("channel") > 1:
        rule = "at most one axis may be of type channel, of another type or of none"
        told = [axis.get("type") for axis in axes if isinstance(axis, Mapping)]
        guesses = [(kind, _misspelt(kind)) for kind in told if isinstance(kind, str)]
        hints = "".join(f"; {kind!r} may be meant as {name!r}" for kind, name in guesses if name)
        notes.add(place, f"{kinds.count('channel')} such axes", rule + hints)
    space = [name for (_, name), kind in zip(names, kinds, strict=True) if kind == "space"]
    if set(space) == {"x", "y", "z"} and space != ["z", "y", "x"]:
        rule = "planes stacked along z should have the axes in the order z, y, x"
        notes.should(place, space, rule)
    order = ["time", "channel", "space"]
    if kinds != sorted(kinds, key=order.index):
        rule = "axes must be in the order time, channel or another type, space"
        notes.add(place, kinds, rule)


def _check_ascending(
    owner: Mapping[str, Any], place: str, low: str, high: str, notes: Violations
) -> None:
    """Note a number that is below the one that it should follow."""
    first: Any = owner.get(low)
    last: Any = owner.get(high)
    if is_number(first) and is_number(last) and last < first:
        notes.should(f"{place}.{high}", last, f"{high} should not be below {low}, {first}")


def _check_vector(
    one: Mapping[str, Any], kind: str, place: str, axes: list[Any] | None, notes: Violations
) -> None:
    """Check the numbers of a scale or a translation."""
    rule = f"a {kind} must be a list of numbers"
    vector = notes.take(one, place, kind, _is_vector, rule)
    if vector is None:
        return
    if not all(map(is_finite, vector)):
        notes.add(f"{place}.{kind}", vector, f"a {kind} must be of finite numbers")
    if kind == "scale" and not all(vector):
        notes.add(f"{place}.scale", vector, "the size of a pixel must not be 0")
    if kind == "scale" and min(vector, default=0) < 0:
        notes.should(f"{place}.scale", vector, "the size of a pixel should be above 0")
    if axes is not None and len(vector) != len(axes):
        # an image of the test suite has numbers for the axes of space alone
        spatial = sum(isinstance(a, Mapping) and a.get("type") == "space" for a in axes)
        if not (notes.tolerates and len(vector) == spatial):
            rule = f"a {kind} must have one number for each of the {len(axes)} axes"
            notes.add(f"{place}.{kind}", vector, rule)


def _misspelt(kind: str) -> str:
    """Return the type that a similar name stands for; "" if there is none."""
    known = ("space", "time", "channel")
    return "" if kind in known else next(iter(get_close_matches(kind.lower(), known, 1)), "")


def _check_unit(axis: Mapping[str, Any], kind: str | None, place: str, notes: Violations) -> None:
    unit = notes.may(axis, place, "unit", _is_text, "a unit must be a string")
    if unit is not None and kind in UNITS and unit not in UNITS[kind]:
        rule = f"the unit should be a name that UDUNITS-2 has for {kind}"
        notes.should(f"{place}.unit", unit, rule)


def _check_transformations(
    value: Any, place: str, axes: list[Any] | None, notes: Violations
) -> None:
    if not _is_filled(value):
        notes.add(place, value, "must be a list with one scale and at most one translation")
        return
    kinds: list[str] = []
    for at, one in notes.objects(value, place):
        rule = "must be 'scale' or 'translation'"
        if isinstance(one.get("type"), str) and one["type"] in _LATER_TYPES:
            rule += f"; {one['type']!r} belongs to OME-Zarr 0.6 (RFC-5)"
        kind = notes.take(one, at, "type", lambda v: v in ("scale", "translation"), rule)
        if kind is None:
            continue
        kinds.append(kind)
        _check_vector(one, kind, at, axes, notes)
    if kinds.count("scale") != 1:
        notes.add(place, kinds, "there must be exactly one scale")
    if kinds.count("translation") > 1:
        notes.add(place, kinds, "there may be at most one translation")
    if "scale" in kinds and "translation" in kinds[: kinds.index("scale")]:
        notes.add(place, kinds, "the scale must stand before the translation")


_LATER_TYPES = {
    "affine",
    "bijection",
    "byDimension",
    "coordinates",
    "displacements",
    "mapAxis",
    "projectAxis",
    "rotation",
    "sequence",
}
"""Types of transformations that only later versions have; ``identity`` is of all."""


def _is_vector(value: Any) -> bool:
    return isinstance(value, list) and all(is_number(item) for item in value)


def _check_order(datasets: list[Any], place: str, notes: Violations) -> None:
    """Check that no level has smaller pixels than the one before."""
    before: list[float] | None = None
    for i, dataset in enumerate(datasets):
        scale = _scale(dataset)
        if scale and before and len(scale) == len(before):
            smaller = [a < b for a, b in zip(scale, before, strict=True)]
            larger = [a > b for a, b in zip(scale, before, strict=True)]
            if any(smaller) and not any(larger):
                rule = "datasets must be in the order from the highest resolution to the lowest"
                notes.add(f"{place}[{i}]", scale, rule)
        before = scale or before


def _scale(dataset: Any) -> list[float] | None:
    steps = dataset.get("coordinateTransformations") if isinstance(dataset, Mapping) else None
    for one in steps if isinstance(steps, list) else ():
        if isinstance(one, Mapping) and _is_vector(one.get("scale")):
            return list(one["scale"])
    return None


def check_omero(value: Any, notes: Violations) -> None:
    """Check the display settings of channels."""
    if not isinstance(value, Mapping):
        notes.add("omero", value, "must be an object")
        return
    rule = "omero must have a list of channels"
    channels = notes.take(value, "omero", "channels", lambda v: isinstance(v, list), rule)
    for at, channel in notes.objects(channels or [], "omero.channels"):
        rule = "a channel must have a colour of 6 hexadecimal digits"
        notes.take(channel, at, "color", _matches("[0-9A-Fa-f]{6}"), rule)
        rule = "a channel must have a window, an object"
        window = notes.take(channel, at, "window", lambda v: isinstance(v, Mapping), rule)
        for name in ("min", "max", "start", "end") if window is not None else ():
            rule = "a window must have the numbers min, max, start and end"
            notes.take(window, f"{at}.window", name, is_number, rule)
        for low, high in (("min", "max"), ("start", "end")) if window is not None else ():
            _check_ascending(window, f"{at}.window", low, high, notes)
        for name in ("label", "family"):
            notes.may(channel, at, name, _is_text, "must be a string")
        notes.may(channel, at, "active", _is_flag, "must be true or false")


# --- labels ---------------------------------------------------------------------------------------


def check_labels(value: Any, notes: Violations) -> None:
    """Check the list of label images."""
    if not (isinstance(value, list) and all(map(_is_text, value))):
        notes.add("labels", value, "must be a list of paths of label images")
        return
    notes.unique([(f"labels[{i}]", one) for i, one in enumerate(value)], "paths should be unique")


def check_image_label(value: Any, notes: Violations) -> None:
    """Check the meaning of the values of a label image."""
    place = "image-label"
    if not isinstance(value, Mapping):
        notes.add(place, value, "must be an object")
        return
    check_version(value, place, notes)
    if "colors" not in value:
        notes.should(f"{place}.colors", ABSENT, "should give the labels colours")
    for name in ("colors", "properties"):
        rule = "must be a list of at least one object"
        items = notes.may(value, place, name, _is_filled, rule)
        values = []
        for at, one in notes.objects(items or [], f"{place}.{name}"):
            rule = "must have a label-value, an integer"
            label = notes.take(one, at, "label-value", is_int, rule)
            values.append((f"{at}.label-value", label))
            if name == "colors":
                rule = "must be four integers from 0 to 255"
                notes.may(one, at, "rgba", _is_rgba, rule)
        rule = "no label-value may stand in two objects of the list"
        notes.unique([one for one in values if one[1] is not None], rule)
    rule = "must be an object"
    source = notes.may(value, place, "source", lambda v: isinstance(v, Mapping), rule)
    if source is not None:
        rule = "must be the path of the image that is labelled, a string"
        notes.may(source, f"{place}.source", "image", _is_text, rule)


def _is_rgba(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 4 and all(_is_byte(item) for item in value)


def _is_byte(value: Any) -> bool:
    return is_int(value) and 0 <= value <= 255


# --- plates ---------------------------------------------------------------------------------------


def check_plate(value: Any, notes: Violations) -> None:
    """Check rows, columns and wells."""
    if not isinstance(value, Mapping):
        notes.add("plate", value, "must be an object")
        return
    rows = _check_lines(value, "rows", notes)
    columns = _check_lines(value, "columns", notes)
    wells = notes.take(value, "plate", "wells", _is_filled, "must be a list of at least one well")
    paths = []
    for at, well in notes.objects(wells or [], "plate.wells"):
        _check_well_place(well, at, rows, columns, notes)
        if _is_text(well.get("path")):
            paths.append((f"{at}.path", well["path"]))
    notes.unique(paths, "no well may be listed twice")
    _check_acquisitions(value, notes)
    rule = "must be an integer above 0"
    notes.may(value, "plate", "field_count", _at_least(1), rule)
    notes.may(value, "plate", "name", _is_text, "must be a string")
    if "name" not in value:
        notes.should("plate.name", ABSENT, "a plate should have a name")
    check_version(value, "plate", notes)


def _check_lines(plate: Mapping[str, Any], which: str, notes: Violations) -> list[Any] | None:
    lines = notes.take(plate, "plate", which, _is_filled, f"must list the {which}, at least one")
    names = []
    for at, line in notes.objects(lines or [], f"plate.{which}"):
        rule = f"{which} must have names of letters and digits"
        name = notes.take(line, at, "name", _is_name, rule)
        if name is not None:
            names.append((f"{at}.name", name))
    notes.unique(names, f"names of {which} must be unique")
    _check_cases(names, notes)
    return lines if lines is None else [_name(line) for line in lines]


def _check_cases(names: list[tuple[str, Any]], notes: Violations) -> None:
    """Check for names that are one file on case-insensitive systems."""
    seen: dict[str, Any] = {}
    for place, name in names:
        if seen.setdefault(name.lower(), name) != name:
            notes.should(place, name, "names should differ in more than upper and lower case")


def _name(line: Any) -> Any:
    return line.get("name") if isinstance(line, Mapping) else None


def _check_well_place(
    well: Mapping[str, Any],
    place: str,
    rows: list[Any] | None,
    columns: list[Any] | None,
    notes: Violations,
) -> None:
    rule = "must be the names of a row and a column with a slash between"
    path = notes.take(well, place, "path", _matches("[A-Za-z0-9]+/[A-Za-z0-9]+"), rule)
    indices = []
    for name, lines in (("rowIndex", rows), ("columnIndex", columns)):
        index = notes.take(well, place, name, _at_least(0), "must be an integer, counted from 0")
        if index is not None and lines is not None and index >= len(lines):
            notes.add(f"{place}.{name}", index, f"there are only {len(lines)} of them")
            index = None
        indices.append(None if index is None or lines is None else lines[index])
    row, column = indices
    if None in (path, row, column) or path == f"{row}/{column}":
        return
    turned = path == f"{column}/{row}" and notes.version in _VERSION_INSIDE
    if turned and notes.tolerates:
        return  # plates of the test suite name the column first
    rule = f"the well in row {row!r} and column {column!r} must have the path '{row}/{column}'"
    notes.add(f"{place}.path", path, rule, "should" if turned else "must")


def _check_acquisitions(plate: Mapping[str, Any], notes: Violations) -> None:
    rule = "must be a list of acquisitions"
    runs = notes.may(plate, "plate", "acquisitions", lambda v: isinstance(v, list), rule)
    numbers = []
    for at, run in notes.objects(runs or [], "plate.acquisitions"):
        rule = "an acquisition must have an id, an integer from 0"
        number = notes.take(run, at, "id", _at_least(0), rule)
        if number is not None:
            numbers.append((f"{at}.id", number))
        rule = "must be an integer above 0"
        notes.may(run, at, "maximumfieldcount", _at_least(1), rule)
        for name in ("starttime", "endtime"):
            rule = "must be an integer, in seconds since 1970"
            notes.may(run, at, name, _at_least(0), rule)
        _check_ascending(run, at, "starttime", "endtime", notes)
        for name in ("name", "description"):
            notes.may(run, at, name, _is_text, "must be a string")
        for name in ("name", "maximumfieldcount"):
            if name not in run:
                notes.should(f"{at}.{name}", ABSENT, "an acquisition should tell it")
    notes.unique(numbers, "ids of acquisitions must be unique")


def check_well(value: Any, notes: Violations) -> None:
    """Check the images of one well."""
    if not isinstance(value, Mapping):
        notes.add("well", value, "must be an object")
        return
    images = notes.take(value, "well", "images", _is_filled, "must be a list of at least one image")
    paths = []
    for at, image in notes.objects(images or [], "well.images"):
        rule = "the path of an image must be letters and digits"
        path = notes.take(image, at, "path", _is_name, rule)
        if path is not None:
            paths.append((f"{at}.path", path))
        notes.may(image, at, "acquisition", is_int, "must be the id of an acquisition, an integer")
    notes.unique(paths, "paths of images must be unique")
    _check_cases(paths, notes)
    check_version(value, "well", notes)


# --- several images -------------------------------------------------------------------------------


def check_layout(value: Any, notes: Violations) -> None:
    """Check the mark of a group of several images."""
    if not (is_int(value) and value == 3):
        notes.add("bioformats2raw.layout", value, "must be the number 3")


def check_series(value: Any, notes: Violations) -> None:
    """Check paths of several images."""
    if not (_is_filled(value) and all(map(_is_text, value))):
        notes.add("series", value, "must be a list of paths, at least one")


RULES: Mapping[str, Callable[[Any, Violations], None]] = {
    "multiscales": check_multiscales,
    "omero": check_omero,
    "labels": check_labels,
    "image-label": check_image_label,
    "plate": check_plate,
    "well": check_well,
    "bioformats2raw.layout": check_layout,
    "series": check_series,
}
"""The rules of each field."""
