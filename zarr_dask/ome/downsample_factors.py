"""The number of levels of an image, and the downsampling factors between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from math import sqrt
from typing import Any

from zarr_dask._util.json_fields import is_int
from zarr_dask.errors import GridError, MetadataError
from zarr_dask.grid.grid import Shape
from zarr_dask.ome.build_metadata import AxesAndTransforms, per_axis, plain
from zarr_dask.ome.units import METRES

__all__ = ["downsampled_shape", "factors_between", "steps_of"]

_LONGEST = 256
"""Maximum length in pixels of the longest axis of the coarsest level, for ``levels="auto"``."""
_MOST_LEVELS = 64


def steps_of(
    shape: Shape, frame: AxesAndTransforms, levels: Any, factors: Any
) -> tuple[Shape, ...]:
    """Return the factors of each level after the first, against the one before.

    Parameters
    ----------
    shape
        Shape of level 0.
    frame
        Axes of level 0.
    levels
        Number of levels, level 0 included, or ``"auto"``.
    factors
        ``"isotropic"``; a number for all axes of space; numbers for all axes, by position or by
        name; or such numbers for each level.

    Raises
    ------
    GridError
        If such levels are not possible.
    """
    levels, factors = plain(levels), plain(factors)
    if not (levels == "auto" or (is_int(levels) and 1 <= levels <= _MOST_LEVELS)):
        raise GridError(f"levels={levels!r}: expected 'auto' or a number of levels of at least 1.")
    listed = _listed(factors, frame)
    if listed is not None:
        if levels not in ("auto", len(listed) + 1):
            raise GridError(
                f"levels={levels}: factors are given for {len(listed)} levels after the first."
            )
        return tuple(_bounded(step, level) for step, level in _along(shape, listed))
    is_isotropic = isinstance(factors, str) and factors == "isotropic"
    step = None if is_isotropic else _step(factors, frame)
    steps: list[Shape] = []
    sizes = list(frame.scale)
    while len(steps) + 1 < (_MOST_LEVELS if levels == "auto" else levels):
        if levels == "auto" and max(shape[i] for i in frame.space or range(len(shape))) <= _LONGEST:
            break
        wanted = _isotropic(shape, frame, sizes) if step is None else step
        bounded = _bounded(wanted, shape)
        if set(bounded) == {1}:
            if levels == "auto":
                break
            raise GridError(
                f"levels={levels}: level {len(steps)} of shape {shape} cannot be made coarser by "
                f"factors={factors!r}."
            )
        steps.append(bounded)
        shape = downsampled_shape(shape, bounded)
        sizes = [size * factor for size, factor in zip(sizes, bounded, strict=True)]
    return tuple(steps)


def downsampled_shape(shape: Shape, factors: Shape) -> Shape:
    """Return the shape of the next level, in which incomplete cells at the ends are pixels, too."""
    return tuple(-(-length // factor) for length, factor in zip(shape, factors, strict=True))


def factors_between(
    shapes: Sequence[Shape], scales: Sequence[Sequence[float]], where: str
) -> tuple[Shape, ...]:
    """Return the factors of each level of an image after the first, against the one before.

    Raises
    ------
    GridError
        If a level does not consist of whole cells of the one before.
    """
    levels = zip(shapes, scales, strict=True)
    return tuple(
        _between(fine, made, [_ratio(*pair) for pair in zip(small, large, strict=True)], where)
        for (fine, small), (made, large) in pairwise(levels)
    )


def _ratio(small: float, large: float) -> int:
    """Return the ratio of two sizes of pixels if it is a whole number; otherwise 0."""
    ratio = large / small if small else 0.0
    whole = round(ratio) if 0 < ratio < _LARGEST_FACTOR else 0
    return whole if abs(ratio - whole) < _SLACK * ratio else 0


_LARGEST_FACTOR = 1 << 20
_SLACK = 1e-6
"""Relative error of decimal fractions."""


def _between(fine: Shape, made: Shape, told: Sequence[int], where: str) -> Shape:
    """Return the factors that the sizes of pixels tell, where the shapes agree."""
    factors = tuple(
        f if f and m in {n // f, -(-n // f)} else max(round(n / m), 1) if m else 1
        for n, m, f in zip(fine, made, told, strict=True)
    )
    most = downsampled_shape(fine, factors)
    if any(m > there for m, there in zip(made, most, strict=True)):
        raise GridError(
            f"{where}: a level of shape {made} is not made of whole cells of the one before, of "
            f"shape {fine}, so that its pixels cannot be made from that one."
        )
    return factors


def _along(shape: Shape, listed: Sequence[Shape]) -> list[tuple[Shape, Shape]]:
    shapes = accumulate(listed, lambda s, f: downsampled_shape(s, _bounded(f, s)), initial=shape)
    return list(zip(listed, shapes, strict=False))


def _bounded(factors: Shape, shape: Shape) -> Shape:
    """Limit factors to the number of pixels along each axis."""
    return tuple(min(factor, max(n, 1)) for factor, n in zip(factors, shape, strict=True))


def _isotropic(shape: Shape, frame: AxesAndTransforms, sizes: Sequence[float]) -> Shape:
    """Return 2 for the axes of space with the smallest pixels, which makes pixels about cubic."""
    metres = [METRES.get(frame.axes[i].unit or "") for i in frame.space]
    known = dict(zip(frame.space, metres, strict=True)) if all(metres) else {}
    lengths = {i: sizes[i] * (known.get(i) or 1.0) for i in frame.space if shape[i] > 1}
    largest = min(lengths.values(), default=0.0) * sqrt(2)
    return tuple(2 if i in lengths and lengths[i] <= largest else 1 for i in range(len(shape)))


def _listed(factors: Any, frame: AxesAndTransforms) -> list[Shape] | None:
    """Return the factors of each level, if they are given level by level; otherwise None."""
    if isinstance(factors, str | Mapping) or not isinstance(factors, Sequence):
        return None
    if factors and all(map(is_int, factors)):
        return None
    return [_step(one, frame) for one in factors]


def _step(factors: Any, frame: AxesAndTransforms) -> Shape:
    names = frame.names
    if is_int(factors):
        factors = {names[i]: factors for i in frame.space}
    try:
        found = per_axis(factors, names, 1, "factors", "")
    except MetadataError:
        found = ()
    if not found or not all(is_int(one) and one >= 1 for one in found):
        raise GridError(
            f"factors={factors!r}: expected 'isotropic', a whole number, or one of at least 1 for "
            f"each of the axes {list(names)}, by position or by name; or these for each level."
        )
    return tuple(int(one) for one in found)
