"""Updating the coarser levels of an image and its label images from changed pixels of level 0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from zarr_dask._util.keywords import takes_habits
from zarr_dask.hierarchy.group import Group
from zarr_dask.indexing.basic import checked_region
from zarr_dask.jobs.engine.grid_arguments import check_not_empty, parse_region_argument
from zarr_dask.jobs.write.target import WriteReport
from zarr_dask.ome.coarser import update_plan
from zarr_dask.ome.downsample import Method, Reduce
from zarr_dask.ome.job import ImageProgress
from zarr_dask.ome.pixel_source import Budget
from zarr_dask.ome.plan import ImageUpdatePlan
from zarr_dask.ome.stored_image import open  # noqa: A004  (zd.ome.open)
from zarr_dask.stores.open import Location

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["plan_update", "update"]


@takes_habits()
def plan_update(
    url: Location | Group,
    region: Any = None,
    path: str = "",
    *,
    method: str | Method | Reduce | None = None,
    max_mem: str | int | None = None,
    client: Client | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> ImageUpdatePlan:
    """Plan how to make the coarser levels again that changed pixels contribute to.

    Every stored object has one task, which reads the level before. Levels of label images are made
    again as well, by their own method.

    Parameters
    ----------
    url, path
        The group of the image; a group that is open for writing may be given for both.
    region
        Pixels of level 0 that have changed: an index of slices and integers, or a mapping from
        names of axes to those, such as ``{"t": 5}``; by default all.
    method
        Method that made the levels of the image; by default the one that its metadata name, or
        ``"mean"`` if they name none.
    max_mem, client
        As for `zarr_dask.ome.plan_write`.
    storage_options
        Options of the store.

    Raises
    ------
    GridError
        If the levels do not fit together, or the region names an axis that does not exist.
    MemoryBudgetError
        If `max_mem` is too small for one stored object.
    MetadataError
        If the metadata name a method that this package does not have.
    ReadOnlyError
        If the store is open for reading only.
    SelectionError
        If the region has no pixels.
    """
    image = open(url, path, mode="r+", storage_options=storage_options)
    budget = Budget.of(max_mem, client)
    first = image.levels[0]
    asked = parse_region_argument(region, first.shape, first.axes, image.group.where)
    changed = checked_region(asked, first.shape)
    check_not_empty(asked, changed, first.shape, first.axes, image.group.where)
    by_axis = dict(zip(first.axes, zip(changed, first.shape, strict=True), strict=True))
    chains, pyramids = [], []
    for one in (image, *image.labels.values()):
        own = tuple(
            _along(by_axis.get(axis), length)
            for axis, length in zip(one.axes, one.levels[0].shape, strict=True)
        )
        chains.append(one.chain)
        pyramids.append(one.chain.plan(own, method if one is image else None, budget))
    return update_plan(chains, pyramids, budget)


def _along(changed: tuple[slice, int] | None, length: int) -> slice:
    """Return the changed pixels along an axis; all of them if it is not that of the image."""
    if changed is None or changed[1] != length:
        return slice(0, length, 1)
    return slice(changed[0].start, changed[0].stop, 1)


@takes_habits()
def update(
    url: Location | Group,
    region: Any = None,
    path: str = "",
    *,
    method: str | Method | Reduce | None = None,
    max_mem: str | int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    client: Client | None = None,
    progress: ImageProgress | None = None,
) -> WriteReport:
    """Bring the coarser levels of an image up to date: `plan_update`, then run.

    Each level equals that of a fresh write. Several processes may write regions of level 0 and
    call this afterwards, each for its own region; their updates run one after the other.

    Parameters
    ----------
    url, region, path, method, max_mem, storage_options, client
        As for `plan_update`.
    progress
        As for `zarr_dask.ome.plan.ImageUpdatePlan.run`.

    Raises
    ------
    ZarrDaskError
        See `plan_update` and `zarr_dask.ome.plan.ImageUpdatePlan.run`.

    Examples
    --------
    >>> import numpy as np
    >>> import zarr_dask as zd
    >>> store = {}
    >>> _ = zd.ome.write(np.zeros((300, 400), "u2"), store, axes="yx")
    >>> zd.open_array(store, "0", "r+")[:100, :100] = 8
    >>> zd.ome.update(store, {"y": slice(100), "x": slice(100)}).objects
    1
    >>> zd.ome.open(store).levels[1].array[49, 49]
    np.uint16(8)
    """
    plan = plan_update(
        url,
        region,
        path,
        method=method,
        max_mem=max_mem,
        client=client,
        storage_options=storage_options,
    )
    return plan.run(client, progress)
