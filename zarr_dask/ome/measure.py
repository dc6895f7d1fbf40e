"""Measurements of labelled objects, block by block: size, place and intensities.

Each task reads one box of the label image and the pixels of the image there, and returns sums,
least and greatest values of the objects in it. These are added up in the order of the boxes, so
that the result does not depend on the scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from zarr_dask._util.keywords import takes_habits
from zarr_dask.array.array import Array
from zarr_dask.errors import DataTypeError, GridError
from zarr_dask.grid.grid import Grid, Region, Shape
from zarr_dask.hierarchy.group import Group
from zarr_dask.hierarchy.zip_target import open_target_or_archive
from zarr_dask.jobs.engine import check_reachable_from_workers, find_workers, run_tasks
from zarr_dask.jobs.engine.map_regions import boxes_for
from zarr_dask.jobs.engine.progress_bars import bar
from zarr_dask.jobs.rechunk.rechunk import Progress
from zarr_dask.ome.job import ImageProgress
from zarr_dask.ome.levels import Level
from zarr_dask.ome.stored_image import Image, open  # noqa: A004  (zd.ome.open)
from zarr_dask.ome.tables import check_table_name, write_table
from zarr_dask.stores.open import Location

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["Measurements", "measure"]


@dataclass(frozen=True, eq=False)
class Measurements:
    """Measurements of the objects of a label image; made by `zarr_dask.ome.measure`."""

    labels: np.ndarray
    """Values of the objects, ascending."""
    columns: Mapping[str, np.ndarray]
    """Measurements by name, one for each object."""

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class _PartialMeasures:
    """Sums and extremes of the objects in some boxes, one row for each object."""

    labels: np.ndarray
    counts: np.ndarray
    place_sums: np.ndarray
    """Sums of positions along the axes."""
    starts: np.ndarray
    stops: np.ndarray
    sums: np.ndarray
    """Sums of intensities of the channels."""
    least: np.ndarray
    most: np.ndarray

    @staticmethod
    def joined(parts: Sequence[_PartialMeasures]) -> _PartialMeasures:
        """Return the sums and extremes of several parts."""

        def every(name: str) -> np.ndarray:
            return np.concatenate([getattr(part, name) for part in parts])

        labels, rows = _grouped(every("labels"))
        return _PartialMeasures(
            labels,
            _reduced(np.add, every("counts"), rows),
            _reduced(np.add, every("place_sums"), rows),
            _reduced(np.minimum, every("starts"), rows),
            _reduced(np.maximum, every("stops"), rows),
            _reduced(np.add, every("sums"), rows),
            _reduced(np.fmin, every("least"), rows),
            _reduced(np.fmax, every("most"), rows),
        )


_Rows = tuple[np.ndarray, np.ndarray]
"""Order in which elements of one label are neighbours, and where those of each begin."""


def _grouped(values: np.ndarray) -> tuple[np.ndarray, _Rows]:
    """Return the different values, and the elements of each."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    is_first = np.ones(len(ordered), bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return ordered[is_first], (order, np.flatnonzero(is_first))


def _reduced(function: np.ufunc, values: np.ndarray, rows: _Rows) -> np.ndarray:
    order, firsts = rows
    if not len(firsts):
        return values[:0]
    found: np.ndarray = function.reduceat(values[order], firsts, axis=0)
    return found


@dataclass(frozen=True)
class _MeasureTask:
    """Task that measures the objects in one box of the label image."""

    label: Array
    image: Array
    axes: tuple[int | None, ...]
    """For each axis of the image that of the label image; None for the channels."""
    boxes: Grid

    def __call__(self, number: int) -> tuple[int, _PartialMeasures]:
        coords: Shape = tuple(int(i) for i in np.unravel_index(number, self.boxes.counts))
        region = self.boxes.region_of(coords)
        ids = np.asarray(self.label[region])
        at = np.flatnonzero(ids)
        labels, rows = _grouped(ids.ravel()[at])
        counts = _reduced(np.add, np.ones(len(at), np.int64), rows)
        pixels = self._pixels(region, at, ids.shape)
        places = np.stack(np.unravel_index(at, ids.shape), -1) + [s.start for s in region]
        return number, _PartialMeasures(
            labels,
            counts,
            _reduced(np.add, places, rows),
            _reduced(np.minimum, places, rows),
            _reduced(np.maximum, places, rows) + 1,
            _reduced(np.add, pixels, rows),
            _reduced(np.fmin, pixels, rows),
            _reduced(np.fmax, pixels, rows),
        )

    def _pixels(self, region: Region, at: np.ndarray, shape: Shape) -> np.ndarray:
        """Return the labelled pixels of each channel."""
        count = next((self.image.shape[i] for i, one in enumerate(self.axes) if one is None), 1)
        found = np.empty((len(at), count))
        for channel in range(count if len(at) else 0):
            index = tuple(channel if axis is None else region[axis] for axis in self.axes)
            plane = np.asarray(self.image[index])
            found[:, channel] = np.broadcast_to(plane, shape).ravel()[at]
        return found


@takes_habits()
def measure(
    url: Location | Group | Image,
    label: str,
    path: str = "",
    *,
    table: str | None = None,
    overwrite: bool = False,
    client: Client | None = None,
    progress: ImageProgress | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Measurements:
    """Measure the objects of a label image by blocks, and write a table beside it.

    The table is the group ``tables/NAME`` of the image, in AnnData's layout: ``anndata.read_zarr``
    reads it, and ngio lists it as a feature table of the label image. An object has one row at
    all time points.

    Parameters
    ----------
    url, path
        The image, or its group as for `write_labels`.
    label
        Name of the label image.
    table
        Name of the table; that of the label image by default.
    overwrite
        Replace a table of that name.
    client, storage_options
        As for `plan_write_labels`.
    progress
        Called after each block with the bytes that it has read; True for a progress bar.

    Returns
    -------
    Measurements
        For each object: ``area``, its number of pixels; ``centroid_y`` in the units of the axis;
        ``start_y`` and ``stop_y``, the pixels of level 0 that it lies between; ``mean_DAPI``,
        ``min_DAPI`` and ``max_DAPI``, intensities of a channel by its label or number. Without
        channels these are ``mean``, ``min`` and ``max``. Pixels that are NaN count only for means.

    Raises
    ------
    DataTypeError
        If pixels are complex numbers.
    GridError
        If the label image has another shape than the image, or labels for each channel.
    KeyError
        If there is no such label image.
    MetadataError
        If the name of the table is not one of a node.
    NodeExistsError
        If there is such a table.

    Examples
    --------
    >>> import numpy as np
    >>> import zarr_dask as zd
    >>> store, cells = {}, np.zeros((30, 40), "u4")
    >>> cells[10:20, 5:10] = 7
    >>> _ = zd.ome.write(cells * 2, store, axes="yx", labels={"cells": cells})
    >>> found = zd.ome.measure(store, "cells")
    >>> found.labels, found.columns["area"], found.columns["mean"], found.columns["centroid_y"]
    (array([7], dtype=uint32), array([50.]), array([14.]), array([14.5]))
    >>> zd.open_group(store, "tables").attributes["tables"]
    ['cells']
    """
    if isinstance(url, Image):
        url = url.group
    with open_target_or_archive(url, storage_options) as (place, known):
        image = open(place, path, mode="r+", storage_options=known)
        name = label if table is None else table
        check_table_name(image.group, name, overwrite=overwrite)
        check_reachable_from_workers(image.group.store, client)
        labelled = image.labels[label]
        task = _task_of(image, labelled)
        parts: dict[int, _PartialMeasures] = {}
        total = task.label.nbytes
        with ExitStack() as stack:
            told: Any = progress
            if progress is True:
                told = stack.enter_context(bar("measuring", total))

            def note(found: tuple[int, _PartialMeasures]) -> None:
                parts[found[0]] = found[1]
                if told is not None:
                    told(Progress(0, 1, total // max(task.boxes.ncells, 1), total))

            run_tasks(task, range(task.boxes.ncells), find_workers(client), note, "zarr-measure")
        every = _PartialMeasures.joined([parts[number] for number in sorted(parts)])
        columns = _columns(every, labelled.levels[0], _channel_names(image))
        found = Measurements(every.labels, columns)
        write_table(image.group, name, label, found.labels, columns, overwrite=overwrite)
        return found


def _task_of(image: Image, label: Image) -> _MeasureTask:
    """Return the task of measuring a label image, after checking that it fits."""
    source, ids = image.levels[0], label.levels[0]
    if source.array.dtype.kind == "c":
        raise DataTypeError(
            f"{source.array.where} is of {source.array.dtype}, and only real numbers are measured."
        )
    lengths = {
        axis.name: length
        for axis, length in zip(image.multiscale.axes, source.shape, strict=True)
        if axis.type != "channel"
    }
    own = {
        axis: length
        for axis, length in zip(ids.axes, ids.shape, strict=True)
        if axis in lengths or length != 1
    }
    if list(own.items()) != list(lengths.items()):
        raise GridError(
            f"{ids.array.where} has the lengths {own}, and {source.array.where} {lengths} without "
            "channels: each pixel needs one label, which is that of all channels."
        )
    axes = tuple(ids.axes.index(axis) if axis in lengths else None for axis in source.axes)
    boxes = boxes_for(ids.shape, np.dtype("f8"), [ids.array])
    return _MeasureTask(ids.array, source.array, axes, boxes)


def _columns(
    found: _PartialMeasures, level: Level, channels: Sequence[str]
) -> dict[str, np.ndarray]:
    """Return measurements by name; positions in the units of the axes."""
    columns = {"area": found.counts.astype(float)}
    kept = [i for i, axis in enumerate(level.axes) if axis in "tzyx"]
    means = found.place_sums / found.counts[:, None]
    for i in kept:
        columns[f"centroid_{level.axes[i]}"] = level.translation[i] + level.scale[i] * means[:, i]
    for i in kept:
        columns[f"start_{level.axes[i]}"] = found.starts[:, i].astype(float)
        columns[f"stop_{level.axes[i]}"] = found.stops[:, i].astype(float)
    for i, channel in enumerate(channels):
        columns[f"mean{channel}"] = found.sums[:, i] / found.counts
        columns[f"min{channel}"] = found.least[:, i]
        columns[f"max{channel}"] = found.most[:, i]
    return columns


def _channel_names(image: Image) -> list[str]:
    """Return endings of the names of intensities; labels of channels are used if all differ."""
    at = next((i for i, axis in enumerate(image.multiscale.axes) if axis.type == "channel"), None)
    if at is None:
        return [""]
    count = image.levels[0].shape[at]
    omero = image.metadata.omero
    told = [] if omero is None else [one.label for one in omero.channels]
    names = [one for one in told if one and "/" not in one]
    if len(set(names)) != count:
        names = [str(i) for i in range(count)]
    return [f"_{name}" for name in names]
