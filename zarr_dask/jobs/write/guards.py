"""What may not be written: places that a graph still reads lazily, and one place twice."""

from __future__ import annotations

from itertools import combinations, permutations
from typing import TYPE_CHECKING

from zarr_dask.errors import NodeExistsError, PartialWriteError, SourceIsTargetError
from zarr_dask.jobs.plan import format_region
from zarr_dask.jobs.write.sources import lazy_sources, place_of_target, places_of_source
from zarr_dask.stores.base import Store
from zarr_dask.stores.urls import overlap

if TYPE_CHECKING:
    from collections.abc import Sequence

    import dask.array as da

    from zarr_dask.jobs.write.plan import WritePlan

__all__ = ["check_apart", "check_not_read"]


def check_not_read(values: da.Array, store: Store, path: str) -> None:
    """Refuse to write over what a graph reads lazily.

    Raises
    ------
    SourceIsTargetError
        If the graph reads the node at the path, or one above or below it.
    """
    place = place_of_target(store, path)
    for source in lazy_sources(values):
        for read in places_of_source(source):
            if not overlap(read, place):
                continue
            raise SourceIsTargetError(
                f"the dask array reads {read}, which would be written: values would be lost "
                "before they are read. Write to another place, and replace the array by it "
                "afterwards; for a local array mode='swap' does that."
            )


# --- several arrays -------------------------------------------------------------------------------


def check_apart(plans: Sequence[WritePlan]) -> None:
    """Refuse writes that would get into each other's way.

    Raises
    ------
    NodeExistsError
        If two of them make one array, or one in another.
    PartialWriteError
        If two of them would write one stored object.
    SourceIsTargetError
        If one reads what another writes.
    """
    for one, other in permutations(plans, 2):
        check_not_read(one.values, other.target.store, other.target.path)
    for one, other in combinations(plans, 2):
        _check_pair(one, other)


def _check_pair(one: WritePlan, other: WritePlan) -> None:
    here, there = (place_of_target(plan.target.store, plan.target.path) for plan in (one, other))
    if not overlap(here, there):
        return
    if here != there or one.creates or other.creates:
        raise NodeExistsError(
            f"two of the arrays go to {one.target.where} and {other.target.where}: one would "
            "replace the other. Give each a place of its own."
        )
    if one.before is not None or other.before is not None:
        raise PartialWriteError(
            f"two of the arrays go to {one.target.where}, which one of them makes longer; join "
            "them with dask.array.concatenate and append the whole."
        )
    shared = _shared_object(one, other)
    if shared is not None:
        raise PartialWriteError(
            f"the regions {format_region(one.region)} and {format_region(other.region)} of "
            f"{one.target.where} meet in the stored object {shared}, which would have two writers. "
            "Choose regions of whole stored objects, or join the arrays with "
            "dask.array.concatenate and write them as one."
        )


def _shared_object(one: WritePlan, other: WritePlan) -> tuple[int, ...] | None:
    """Coordinates of a stored object that two regions of one array meet; None if there is none."""
    coords = []
    for dimension, a, b in zip(
        one.target.meta.grid.dimensions, one.region, other.region, strict=True
    ):
        if a.start >= a.stop or b.start >= b.stop:
            return None
        first = max(dimension.find(a.start), dimension.find(b.start))
        if first > min(dimension.find(a.stop - 1), dimension.find(b.stop - 1)):
            return None
        coords.append(first)
    return tuple(coords)
