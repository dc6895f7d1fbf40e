"""Metadata of OME-Zarr 0.6 (RFC-5) in the words of 0.5, for reading.

Each level has one transformation to a coordinate system that all levels share, which is made of
scales and translations. Its axes and these numbers are what 0.5 says. Further coordinate systems
stay in the attributes of the group.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from zarr_dask.errors import ABSENT, ValidationProblem

__all__ = ["in_words_of_0_5", "is_later"]

_LATER = re.compile(r"0\.6((\.dev|rc)\d+)?", re.ASCII)
_DEEPEST = 8
"""Maximum depth of sequences in sequences."""


def is_later(version: str) -> bool:
    """True for a version that is read as far as 0.5 has words for it.

    Examples
    --------
    >>> is_later("0.6"), is_later("0.6rc0"), is_later("0.5"), is_later("0.7")
    (True, True, False, False)
    """
    return _LATER.fullmatch(version) is not None


def in_words_of_0_5(
    members: Mapping[str, Any], problems: list[ValidationProblem]
) -> dict[str, Any]:
    """Return metadata below ``ome`` in the words of 0.5; add what cannot be said to `problems`."""
    said = dict(members)
    images = said.get("multiscales")
    if isinstance(images, list):
        said["multiscales"] = [
            _image(one, f"multiscales[{i}]", problems) if isinstance(one, Mapping) else one
            for i, one in enumerate(images)
        ]
    return said


def _image(one: Mapping[str, Any], place: str, problems: list[ValidationProblem]) -> dict[str, Any]:
    systems = one.get("coordinateSystems", ABSENT)
    by_name = {
        system.get("name"): system
        for system in (systems if isinstance(systems, list) else ())
        if isinstance(system, Mapping) and isinstance(system.get("name"), str)
    }
    datasets = one.get("datasets")
    levels = [d for d in datasets if isinstance(d, Mapping)] if isinstance(datasets, list) else []
    outputs = {_output(level) for level in levels}
    name = next(iter(outputs)) if len(outputs) == 1 else None
    axes = by_name[name].get("axes") if name in by_name else None
    if not isinstance(axes, list):
        expected = "a coordinate system with axes that all levels are transformed to"
        problems.append(ValidationProblem(f"{place}.coordinateSystems", systems, expected))
        return dict(one)
    kept = ("coordinateSystems", "coordinateTransformations")
    rest = {name: value for name, value in one.items() if name not in kept}
    made = []
    for i, level in enumerate(levels):
        steps = _steps(level, len(axes), f"{place}.datasets[{i}]", problems)
        made.append({**level, "coordinateTransformations": steps})
    return {**rest, "axes": axes, "datasets": made}


def _output(level: Mapping[str, Any]) -> str | None:
    """Return the name of the coordinate system that a level is transformed to."""
    steps = level.get("coordinateTransformations")
    first = steps[0] if isinstance(steps, list) and len(steps) == 1 else None
    output = first.get("output") if isinstance(first, Mapping) else None
    name = output.get("name") if isinstance(output, Mapping) else output
    return name if isinstance(name, str) else None


def _steps(
    level: Mapping[str, Any], ndim: int, place: str, problems: list[ValidationProblem]
) -> list[dict[str, Any]]:
    scale, translation = [1.0] * ndim, [0.0] * ndim
    for step in _flat(level["coordinateTransformations"], _DEEPEST):
        kind = step.get("type") if isinstance(step, Mapping) else None
        if kind == "identity":
            continue
        numbers: Any = step.get(kind) if isinstance(kind, str) else None
        fits = isinstance(numbers, list) and len(numbers) == ndim and all(map(_is_number, numbers))
        if fits and kind == "scale":
            scale = [a * b for a, b in zip(scale, numbers, strict=True)]
            translation = [a * b for a, b in zip(translation, numbers, strict=True)]
        elif fits and kind == "translation":
            translation = [a + b for a, b in zip(translation, numbers, strict=True)]
        else:
            expected = (
                f"scales and translations of {ndim} numbers, which is what can be read of 0.6"
            )
            problems.append(ValidationProblem(f"{place}.coordinateTransformations", step, expected))
            return []
    made: list[dict[str, Any]] = [{"type": "scale", "scale": scale}]
    if any(translation):
        made.append({"type": "translation", "translation": translation})
    return made


def _flat(steps: Any, depth: int) -> Sequence[Any]:
    """Return transformations one by one, those of sequences among them."""
    found: list[Any] = []
    for step in steps if isinstance(steps, list) else [steps]:
        is_sequence = isinstance(step, Mapping) and step.get("type") == "sequence"
        if is_sequence and depth and isinstance(step.get("transformations"), list):
            found += _flat(step["transformations"], depth - 1)
        else:
            found.append(step)
    return found


def _is_number(value: Any) -> bool:
    return type(value) in {int, float}
