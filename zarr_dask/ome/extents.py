"""Extents of two levels of one image, which differ by less than a pixel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from zarr_dask.grid.grid import Shape
from zarr_dask.hierarchy.group import Group
from zarr_dask.hierarchy.growing import growing_lengths

__all__ = ["lengths_around", "misfits"]

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


def lengths_around(group: Group) -> Mapping[str, tuple[Shape, Shape]]:
    """Return the shapes, by path, that an append to an image is changing: before and after.

    The group is that of the image, or of one of its label images.
    """
    above, between, _ = f"/{group.path}".rpartition("/labels/")
    found = growing_lengths(group.store, group.path)
    return {**found, **growing_lengths(group.store, above.strip("/"))} if between else found
