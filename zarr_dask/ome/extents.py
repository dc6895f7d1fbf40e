"""Extents of two levels of one image, which differ by less than a pixel."""

from __future__ import annotations

from collections.abc import Sequence

from zarr_dask.grid.grid import Shape

__all__ = ["misfits"]

_SLACK = 1e-6
"""Relative error of decimal fractions."""


def misfits(fine: Shape, scale: Sequence[float], made: Shape, coarse: Sequence[float]) -> bool:
    """True if two levels differ by one coarse pixel or more in the extent of an axis.

    Examples
    --------
    >>> misfits((3, 75), (1, 0.5), (2, 37), (1, 1.0))
    True
    """
    sizes = zip(fine, scale, made, coarse, strict=True)
    return any(
        abs(m * large - n * small) >= max(abs(large), abs(small)) * (1 - _SLACK)
        for n, small, m, large in sizes
    )
