"""Downsampling of pixels to the next coarser level: methods and their exact rules.

A *cell* is the group of fine pixels that makes one coarse pixel: `factors` pixels along each axis.
Cells at the end of an axis are smaller if its length is not a multiple of its factor, so that no
pixel is dropped and a level has ``ceil(length / factor)`` pixels. Every method is a value
(`Method`), and its result depends on the pixels alone, not on the pieces in which they are
processed:

``mean``
    The sum of the pixels of a cell over their number. Integers are summed exactly and rounded to
    the nearest, halves to the even one (as `numpy.rint`); floats are summed in double precision.
``max``
    The largest pixel; NaN if there is one.
``mode``
    The most frequent pixel, the smallest of several.
``nearest``
    The first pixel, ``x[::factor]``.
``gaussian``
    A weighted mean around the centre of the cell, axis by axis: weights ``exp(-d**2 / (2 s**2))``
    for pixels at distances d up to the factor, with s a third of the factor. Beyond its border the
    image is extended with its last pixels. In double precision, rounded as the mean.

Work is done in slabs that fit the processor's cache, on strided views: only the sums are copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise, product
from math import exp, prod
from typing import Any

import numpy as np

from zarr_dask.errors import DataTypeError, GridError
from zarr_dask.grid.grid import Region, Shape

__all__ = ["METHODS", "Method", "downsample", "method_named"]

Reduce = Callable[[np.ndarray, Shape], np.ndarray]
"""Maps fine pixels, a multiple of the factor along each axis, to coarse ones."""

_SLAB = 1 << 17
"""Number of fine pixels that are processed at a time."""


@dataclass(frozen=True)
class Method:
    """Method that makes the pixels of one level from those of the finer one.

    Parameters
    ----------
    name
        Name of the method in the metadata.
    reduce
        Called with fine pixels (an array in native byte order) and the factor of each axis; returns
        the coarse ones. The number of pixels along an axis is a multiple of its factor, with
        `margin` more on both sides of the axes whose factor is above 1. The result for a cell must
        not depend on other cells of the same call.
    margin
        Number of fine pixels on both sides of a cell that contribute to it: the footprint of the
        method. A number, or a function of the factor. Outside the image its last pixels are
        repeated.
    centred
        True if a coarse pixel is at the centre of its cell, False if at the cell's first pixel.
    cuts
        True to call `reduce` with smaller cells at the end of the image; otherwise such cells are
        padded with the last pixels.

    Examples
    --------
    >>> import numpy as np
    >>> from zarr_dask.ome import Method
    >>> def median(pixels, factors):
    ...     for axis, factor in enumerate(factors):
    ...         shape = (*pixels.shape[:axis], -1, factor, *pixels.shape[axis + 1 :])
    ...         pixels = np.median(pixels.reshape(shape), axis=axis + 1)
    ...     return pixels
    >>> Method("median", median).name
    'median'
    """

    name: str
    reduce: Reduce
    margin: int | Callable[[int], int] = 0
    centred: bool = True
    cuts: bool = False

    def margins(self, factors: Shape) -> Shape:
        """Return the number of fine pixels beside the cells that contribute, for each axis."""
        margin = self.margin
        return tuple(
            0 if factor == 1 else margin(factor) if callable(margin) else margin
            for factor in factors
        )

    def offset(self, factor: int) -> float:
        """Return the distance of a coarse pixel from its cell's first pixel, in fine pixels."""
        return (factor - 1) / 2 if self.centred else 0.0


def downsample(
    values: np.ndarray,
    factors: Shape,
    method: Method,
    out: np.ndarray,
    before: Shape | None = None,
) -> None:
    """Downsample pixels.

    Parameters
    ----------
    values
        Fine pixels from the first one of a cell on, preceded by `before` more pixels, and followed
        by more after the last cell if the method has a margin.
    factors
        Fine pixels of a cell along each axis.
    method
        The method.
    out
        Output array of the coarse pixels. Pixels that `values` lack for whole cells and margins are
        outside the image.
    before
        Number of pixels before the first cell along each axis, at most the method's margin; none by
        default.
    """
    values = values.astype(values.dtype.newbyteorder("="), copy=False)
    if not out.size:
        return
    if all(factor == 1 for factor in factors):
        out[...] = values
    elif method.cuts:
        for fine, made, cell in _corners(values, factors, out):
            for part in _slabs(made.shape, cell):
                taken = tuple(
                    slice(s.start * f, s.stop * f) for s, f in zip(part, cell, strict=True)
                )
                made[part] = method.reduce(fine[taken], cell)
    else:
        _coarse_with_margins(values, factors, method, out, before or (0,) * out.ndim)


def _corners(
    values: np.ndarray, factors: Shape, out: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, Shape]]:
    """Yield parts with cells of one size: whole cells, and smaller ones at the ends of axes."""
    along = []
    for length, factor, count in zip(values.shape, factors, out.shape, strict=True):
        whole = min(length // factor, count)
        pieces = [(slice(0, whole * factor), slice(0, whole), factor)] if whole else []
        if whole < count:
            rest = length - whole * factor
            pieces.append((slice(whole * factor, length), slice(whole, count), rest))
        along.append(pieces)
    for combined in product(*along):
        fine, made, cell = zip(*combined, strict=True)
        yield values[fine], out[made], cell


def _slabs(shape: Shape, factors: Shape) -> Iterator[Region]:
    """Cut the output along its first axes, so that each piece is made of few fine pixels."""
    slab = list(shape)
    for axis in range(len(shape)):
        excess = -(-prod(slab) * prod(factors) // _SLAB)
        slab[axis] = max(1, slab[axis] // excess)
        if slab[axis] > 1:
            break
    ranges = [
        [slice(i, min(i + step, n)) for i in range(0, n, step)]
        for n, step in zip(shape, slab, strict=True)
    ]
    return product(*ranges)


def _coarse_with_margins(
    values: np.ndarray,
    factors: Shape,
    method: Method,
    out: np.ndarray,
    before: Shape,
) -> None:
    """Downsample slab by slab, each with its margins, padded with the last pixels if necessary."""
    margins = method.margins(factors)
    for part in _slabs(out.shape, factors):
        taken, added = [], []
        for axis, (s, f, m) in enumerate(zip(part, factors, margins, strict=True)):
            start = s.start * f - m + before[axis]
            stop = s.stop * f + m + before[axis]
            low, high = max(start, 0), min(stop, values.shape[axis])
            taken.append(slice(low, high))
            added.append((low - start, stop - high))
        fine = values[tuple(taken)]
        if any(map(any, added)):
            fine = np.pad(fine, added, mode="edge")
        made = np.asarray(method.reduce(fine, factors))
        _check_shape(made, out[part].shape, method)
        out[part] = _in_type(made, out.dtype)


def _check_shape(made: np.ndarray, shape: Shape, method: Method) -> None:
    if made.shape != shape:
        raise GridError(
            f"the method {method.name!r} made pixels of shape {made.shape} where {shape} were "
            "expected: one for each cell, without the margins."
        )


def _in_type(values: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Convert values to a type, rounded to nearest (halves to even) and clipped to its range."""
    if values.dtype == dtype:
        return values
    if values.dtype.kind == "c" and dtype.kind != "c":
        raise DataTypeError(f"complex pixels cannot be those of a level of {dtype}.")
    if dtype.kind == "b":
        return np.rint(values).astype(dtype)
    if dtype.kind not in "iu":
        return values.astype(dtype)
    if values.dtype.kind == "f":
        values = np.rint(values)
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    made = np.empty(values.shape, dtype)
    with np.errstate(invalid="ignore"):  # values out of range are set below
        made[...] = values.astype(dtype)
    made[values <= low] = low
    made[values >= high] = high
    return made


# --- the mean -------------------------------------------------------------------------------------


def _mean(values: np.ndarray, factors: Shape) -> np.ndarray:
    kind, count = values.dtype.kind, prod(factors)
    if kind in "fc":
        double: np.dtype[Any] = np.dtype("c16" if kind == "c" else "f8")
        total = _summed(values, factors, np.result_type(double, values.dtype))
        np.divide(total, count, out=total)
        with np.errstate(over="ignore"):
            return total.astype(values.dtype)
    if kind == "b":
        return _rounded(_summed(values.view("u1"), factors, np.dtype("u4")), count).astype(bool)
    wide = _accumulator(values.dtype, count)
    if wide is None:
        return _mean_of_longest(values, factors)
    return _rounded(_summed(values, factors, wide), count).astype(values.dtype)


def _accumulator(dtype: np.dtype[Any], count: int) -> np.dtype[Any] | None:
    """Return the narrowest type that holds the sum of some integers, with room to round it."""
    largest = max(abs(int(np.iinfo(dtype).min)), int(np.iinfo(dtype).max))
    for size in (2, 4, 8):
        wide = np.dtype(f"{dtype.kind}{size}")
        if size > dtype.itemsize and (largest + 1) * count <= np.iinfo(wide).max:
            return wide
    return None


def _summed(values: np.ndarray, factors: Shape, wide: np.dtype[Any]) -> np.ndarray:
    """Return the sums of cells, last axis first, because its neighbours share words of memory."""
    total = values
    paired = _pairs(values, factors[-1], wide)
    axes = list(range(values.ndim - 1))
    if paired is not None:
        total = paired
    else:
        axes.append(values.ndim - 1)
    for axis in axes:
        if factors[axis] > 1:
            total = _summed_along(total, axis, factors[axis], wide)
    return total if total.dtype == wide else total.astype(wide)


def _pairs(values: np.ndarray, factor: int, wide: np.dtype[Any]) -> np.ndarray | None:
    """Return sums of neighbours along the last axis, reading two of them as one wider integer.

    Strides along the fastest axis cost several times as much as whole rows.
    """
    dtype = values.dtype
    if factor != 2 or dtype.kind != "u" or wide.itemsize != 2 * dtype.itemsize:
        return None
    if values.strides[-1] != dtype.itemsize or values.shape[-1] % 2:
        return None
    words = values.view(wide)
    bits = 8 * dtype.itemsize
    total: np.ndarray = np.right_shift(words, bits)
    total += np.bitwise_and(words, (1 << bits) - 1)
    return total


def _summed_along(values: np.ndarray, axis: int, factor: int, wide: np.dtype[Any]) -> np.ndarray:
    steps = [_step(values, axis, factor, i) for i in range(factor)]
    total: np.ndarray = np.add(steps[0], steps[1], dtype=wide)
    for other in steps[2:]:
        np.add(total, other, out=total, casting="same_kind")
    return total


def _step(values: np.ndarray, axis: int, factor: int, first: int) -> np.ndarray:
    return values[(slice(None),) * axis + (slice(first, None, factor),)]


def _rounded(total: np.ndarray, count: int) -> np.ndarray:
    """Divide integer sums by a count, in place, rounded to nearest, halves to even."""
    shift = count.bit_length() - 1
    if count == 1 << shift:
        if shift:
            even = np.right_shift(total, shift)
            even &= 1
            total += even
            total += (1 << (shift - 1)) - 1
            np.right_shift(total, shift, out=total)
        return total
    quotient, rest = np.divmod(total, count)
    rest *= 2
    quotient += (rest > count) | ((rest == count) & (quotient % 2 == 1))
    return quotient


def _mean_of_longest(values: np.ndarray, factors: Shape) -> np.ndarray:
    """Return the mean of integers whose sum overflows: sum quotients and remainders apart."""
    count = prod(factors)
    wide = values.dtype
    quotients, rests = np.divmod(values, count)
    quotient, rest = (_summed_narrow(part, factors, wide) for part in (quotients, rests))
    more, rest = np.divmod(rest, count)
    quotient += more
    rest *= 2
    quotient += (rest > count) | ((rest == count) & (quotient % 2 == 1))
    return quotient


def _summed_narrow(values: np.ndarray, factors: Shape, wide: np.dtype[Any]) -> np.ndarray:
    for axis, factor in enumerate(factors):
        if factor > 1:
            values = _summed_along(values, axis, factor, wide)
    return values


# --- the others -----------------------------------------------------------------------------------


def _members(values: np.ndarray, factors: Shape) -> list[np.ndarray]:
    """Return, for each position in a cell, the pixels at it."""
    places = product(*(range(factor) for factor in factors))
    return [
        values[tuple(slice(i, None, f) for i, f in zip(place, factors, strict=True))]
        for place in places
    ]


def _max(values: np.ndarray, factors: Shape) -> np.ndarray:
    for axis, factor in enumerate(factors):
        if factor > 1:
            steps = [_step(values, axis, factor, i) for i in range(factor)]
            values = np.maximum(steps[0], steps[1])
            for other in steps[2:]:
                np.maximum(values, other, out=values)
    return values


def _nearest(values: np.ndarray, factors: Shape) -> np.ndarray:
    return values[tuple(slice(None, None, factor) for factor in factors)]


def _mode(values: np.ndarray, factors: Shape) -> np.ndarray:
    """Return the most frequent pixel: after sorting, the first of the longest runs."""
    members = _members(values, factors)
    if values.dtype.kind in "iu" and len(members) <= _LARGEST_NETWORK:
        members = [np.array(one) for one in members]
        _sort(members)
    else:
        members = list(
            np.sort(np.stack(members, axis=-1), axis=-1).transpose(-1, *range(values.ndim))
        )
    best = np.array(members[0])
    longest = np.ones(best.shape, np.int32)
    run = np.ones(best.shape, np.int32)
    for before, one in pairwise(members):
        run *= before == one
        run += 1
        longer = run > longest
        np.copyto(best, one, where=longer)
        np.copyto(longest, run, where=longer)
    return best


_LARGEST_NETWORK = 32


def _sort(members: list[np.ndarray]) -> None:
    """Sort arrays element by element, in place, by Batcher's sorting network."""
    count = len(members)
    smaller = np.empty_like(members[0])
    p = 1
    while p < count:
        k = p
        while k >= 1:
            for j in range(k % p, count - k, 2 * k):
                for i in range(min(k, count - j - k)):
                    if (i + j) // (2 * p) == (i + j + k) // (2 * p):
                        one, other = members[i + j], members[i + j + k]
                        np.minimum(one, other, out=smaller)
                        np.maximum(one, other, out=other)
                        one[...] = smaller
            k //= 2
        p *= 2


def _gaussian_margin(factor: int) -> int:
    return (factor + 1) // 2


def _gaussian(values: np.ndarray, factors: Shape) -> np.ndarray:
    total = values.astype(np.result_type(values.dtype, "f8"))
    for axis, factor in enumerate(factors):
        if factor > 1:
            total = _weighted(total, axis, factor)
    return total


def _weighted(values: np.ndarray, axis: int, factor: int) -> np.ndarray:
    weights = gaussian_weights(factor)
    count = (values.shape[axis] - 2 * _gaussian_margin(factor)) // factor
    shape = (*values.shape[:axis], count, *values.shape[axis + 1 :])
    total = np.zeros(shape, values.dtype)
    for first, weight in enumerate(weights):
        if weight:
            stop = first + (count - 1) * factor + 1
            step = values[(slice(None),) * axis + (slice(first, stop, factor),)]
            total += weight * step
    return total


def gaussian_weights(factor: int) -> tuple[float, ...]:
    """Return the weights of the pixels of a cell and its margins along one axis; their sum is 1.

    Examples
    --------
    >>> [round(weight, 4) for weight in gaussian_weights(2)]
    [0.0477, 0.4523, 0.4523, 0.0477]
    """
    margin, centre = _gaussian_margin(factor), (factor - 1) / 2
    distances = [abs(i - centre) for i in range(-margin, factor + margin)]
    raw = [exp(-0.5 * (3 * d / factor) ** 2) if d <= factor else 0.0 for d in distances]
    return tuple(weight / sum(raw) for weight in raw)


METHODS = {
    "mean": Method("mean", _mean, cuts=True),
    "max": Method("max", _max, cuts=True),
    "mode": Method("mode", _mode, cuts=True),
    "nearest": Method("nearest", _nearest, centred=False, cuts=True),
    "gaussian": Method("gaussian", _gaussian, margin=_gaussian_margin),
}
"""The methods by name."""


def method_named(method: str | Method | Reduce) -> Method:
    """Return a method from its name, or from a function without a margin.

    Raises
    ------
    ValueError
        If there is no method of this name.
    """
    if isinstance(method, Method):
        return method
    if callable(method):
        return Method(getattr(method, "__name__", "custom"), method)
    if method not in METHODS:
        raise ValueError(
            f"method={method!r}: expected one of {', '.join(map(repr, METHODS))}, a function of "
            "pixels and factors, or a zarr_dask.ome.Method."
        )
    return METHODS[method]
