"""Metadata of OME-Zarr 0.1, 0.2 and 0.3 in the words of 0.4.

Up to 0.2 images have the axes t, c, z, y and x, in 0.3 axes are names. The sizes of pixels are not
known, so level 0 has pixels of size 1, and those of the others follow from the lengths. Wells have
no indices of their row and column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from operator import mul
from typing import Any

from zarr_dask.errors import StoreKeyError, ValidationProblem
from zarr_dask.formats.base import ArrayMeta, GroupMeta, NodeMeta, normalise_path
from zarr_dask.grid.grid import Shape
from zarr_dask.ome.model import EARLIER, detect_version
from zarr_dask.stores.base import join

__all__ = ["in_words_of_0_4"]

_TYPES = {"t": "time", "c": "channel", "z": "space", "y": "space", "x": "space"}


def in_words_of_0_4(
    path: str, nodes: Mapping[str, NodeMeta]
) -> dict[str, Any] | ValidationProblem | None:
    """Return the attributes of a group in the words of 0.4; None for what stays as it is.

    Parameters
    ----------
    path
        Path of the group.
    nodes
        Metadata of all nodes, with the shapes of levels.

    Returns
    -------
    dict, ValidationProblem or None
        New attributes, or what cannot be said in 0.4.
    """
    group = nodes[path]
    if not isinstance(group, GroupMeta) or detect_version(group.attributes) not in EARLIER:
        return None
    attributes = deepcopy(dict(group.attributes))
    for i, image in enumerate(_objects(attributes.get("multiscales"))):
        levels = _shapes(path, image, nodes, f"multiscales[{i}]")
        if isinstance(levels, ValidationProblem):
            return levels
        axes = _axes(image.get("axes"), len(levels[0]), f"multiscales[{i}].axes")
        if isinstance(axes, ValidationProblem):
            return axes
        image |= {"version": "0.4", "axes": axes}
        scale, before = [1.0] * len(levels[0]), levels[0]
        for dataset, shape in zip(image["datasets"], levels, strict=True):
            factors = map(_factor, before, shape)
            scale, before = list(map(mul, scale, factors)), shape
            dataset["coordinateTransformations"] = [{"type": "scale", "scale": scale}]
    for channel in _objects(_of(attributes.get("omero"), "channels")):
        window = channel.get("window")
        if isinstance(window, dict) and {"start", "end"} <= window.keys():
            window |= {"min": window.get("min", window["start"])}
            window |= {"max": window.get("max", window["end"])}
    for name in ("omero", "plate", "well", "image-label"):
        if isinstance(attributes.get(name), dict) and "version" in attributes[name]:
            attributes[name]["version"] = "0.4"
    _place_wells(attributes.get("plate"))
    return attributes


def _shapes(
    path: str, image: Mapping[str, Any], nodes: Mapping[str, NodeMeta], place: str
) -> list[Shape] | ValidationProblem:
    """Return the shapes of the levels."""
    found: list[Shape] = []
    for k, dataset in enumerate(_objects(image.get("datasets"))):
        below = dataset.get("path")
        try:
            meta = nodes.get(join(path, normalise_path(below))) if isinstance(below, str) else None
        except StoreKeyError:
            meta = None
        if not isinstance(meta, ArrayMeta) or (found and meta.grid.ndim != len(found[0])):
            expected = "the path of an array below the group, with as many dimensions as level 0"
            return ValidationProblem(f"{place}.datasets[{k}].path", below, expected)
        found.append(meta.shape)
    if not found:
        return ValidationProblem(f"{place}.datasets", image.get("datasets"), "at least one level")
    return found


def _axes(given: Any, ndim: int, place: str) -> list[dict[str, str]] | ValidationProblem:
    names = list("tczyx") if given is None else given
    known = isinstance(names, list) and all(isinstance(n, str) and n in _TYPES for n in names)
    if not known or len(names) != ndim:
        expected = f"{ndim} names of 't', 'c', 'z', 'y' and 'x', or none for these five"
        return ValidationProblem(place, given, expected)
    return [{"name": name, "type": _TYPES[name]} for name in names]


def _factor(fine: int, coarse: int) -> float:
    """Return the size of a coarse pixel in fine ones: a whole number if it explains the lengths."""
    if not coarse:
        return 1.0
    whole = max(round(fine / coarse), 1)
    fits = coarse in (-(-fine // whole), fine // whole)
    return float(whole) if fits else fine / coarse


def _place_wells(plate: Any) -> None:
    """Add the indices of rows and columns that the paths of wells name."""
    rows, columns = _names(_of(plate, "rows")), _names(_of(plate, "columns"))
    for well in _objects(_of(plate, "wells")):
        row, _, column = str(well.get("path")).partition("/")
        if row in rows and column in columns:
            well.setdefault("rowIndex", rows.index(row))
            well.setdefault("columnIndex", columns.index(column))


def _names(lines: Any) -> Sequence[Any]:
    return [line.get("name") for line in _objects(lines)]


def _of(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _objects(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
