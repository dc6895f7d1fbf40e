"""Adding label images and coarser levels to existing OME-Zarr images."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from zarr_dask._util.keywords import takes_habits, takes_options_of
from zarr_dask.array.array import Array
from zarr_dask.array.create import with_grid
from zarr_dask.errors import (
    MetadataChangedError,
    MetadataError,
    NodeExistsError,
    ValidationProblem,
)
from zarr_dask.formats.base import GroupMeta, normalise_path, where
from zarr_dask.formats.concurrent_edit import change_attributes, write_if_absent
from zarr_dask.formats.consolidated import consolidated_groups
from zarr_dask.grid.grid import Grid, Shape
from zarr_dask.hierarchy.edit import check_can_create
from zarr_dask.hierarchy.group import Group
from zarr_dask.hierarchy.zip_target import open_target_or_archive
from zarr_dask.jobs.write.target import WriteReport
from zarr_dask.ome.build_metadata import AxesAndTransforms, dataset_of
from zarr_dask.ome.downsample import METHODS, Method, Reduce, method_named
from zarr_dask.ome.downsample_factors import downsampled_shape, factors_between, steps_of
from zarr_dask.ome.image_lifecycle import unfinished_arrays
from zarr_dask.ome.images import ImageOptions, LabelImage, label_method, plan_label
from zarr_dask.ome.job import ImageProgress
from zarr_dask.ome.levels import Level
from zarr_dask.ome.model import Dataset, Metadata, detect_version, from_attributes
from zarr_dask.ome.pixel_source import Budget, make_pyramid_plan
from zarr_dask.ome.plan import ImageWritePlan
from zarr_dask.ome.pyramid_plan import PyramidPlan
from zarr_dask.ome.stored_image import Image, open  # noqa: A004  (zd.ome.open)
from zarr_dask.ome.validate_metadata import find
from zarr_dask.ome.write import plan_of
from zarr_dask.stores.base import join
from zarr_dask.stores.open import Location

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["add_level", "plan_add_level", "plan_write_labels", "write_labels"]


def _opened(url: Location | Group, path: str, storage_options: Mapping[str, Any] | None) -> Image:
    return open(url, path, mode="r+", storage_options=storage_options)


def _frame(image: Image) -> AxesAndTransforms:
    first = image.levels[0]
    return AxesAndTransforms(image.multiscale.axes, first.scale, first.translation)


# --- labels ---------------------------------------------------------------------------------------


@takes_habits()
def plan_write_labels(
    url: Location | Group,
    values: Any,
    name: str,
    path: str = "",
    *,
    axes: Any = None,
    colors: Any = None,
    properties: Any = None,
    method: str | Method | Reduce = "nearest",
    codecs: Any = None,
    overwrite: bool = False,
    max_mem: str | int | None = None,
    client: Client | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> ImageWritePlan:
    """Plan how to add a label image to an image; nothing is written.

    It gets the same number of levels as the image, of the same shapes, chunks and shards.

    Parameters
    ----------
    url, path
        The group of the image; a group that is open for writing may be given for both.
    values
        The labels, integers: a dask array, a NumPy array, or a `zarr_dask.Array`.
    name
        Name of the label image.
    axes, colors, properties, method
        As for `LabelImage`.
    codecs
        As for `zarr_dask.create_array`.
    overwrite
        Replace an existing label image of that name.
    max_mem, client
        As for `zarr_dask.ome.plan_write`.
    storage_options
        Options of the store.

    Raises
    ------
    DataTypeError
        If the labels are not integers.
    GridError
        If the labels do not have the shape of the image, or the image's levels do not consist of
        whole cells.
    MetadataError
        If axes, colours or properties break a rule, such as a duplicate value.
    NodeExistsError
        If a label image of that name exists.
    ValueError
        If the method makes values that are not labels.
    """
    _check_order(url, values, name)
    image = _opened(url, path, storage_options)
    group = image.group
    if not name or "/" in name:
        raise MetadataError(group.where, [ValidationProblem("name", name, "a name without '/'")])
    version = image.metadata.version
    request = ImageOptions(
        group.store, version, group.node_format, None, None, codecs, Budget.of(max_mem, client)
    )
    labels = join(group.path, "labels")
    below = join(labels, name)
    check_can_create(group.store, below, group.node_format, overwrite=overwrite, is_group=True)
    arrays = [level.array for level in image.levels]
    shapes = [array.shape for array in arrays]
    steps = factors_between(shapes, [level.scale for level in image.levels], group.where)
    given = LabelImage(values, axes, colors, properties, method)
    planned_label = plan_label(
        request,
        given,
        below,
        name,
        _frame(image),
        shapes,
        steps,
        arrays[0].chunks,
        arrays[0].shards,
    )
    plan = plan_of(request, below, [(planned_label, ())], overwrite=overwrite, title="write labels")
    return replace(
        plan,
        first=(partial(_make_list, group, labels, version),),
        amends=(
            partial(_check_levels, image),
            partial(_list_label, group, labels, version, name),
        ),
        consolidated=_consolidated_around(group, [below]),
    )


def _check_order(url: Any, values: Any, name: Any) -> None:
    """Raise if arguments were swapped: `write` takes the pixels first."""
    order = "The order is: where the image is, the labels, their name."
    if not isinstance(name, str):
        kind = type(name).__name__
        raise TypeError(f"name= is a {kind}: expected the name of the label image. {order}")
    if isinstance(values, str | os.PathLike) or hasattr(url, "dtype"):
        raise TypeError(
            f"url= is a {type(url).__name__} and values= a {type(values).__name__}: expected the "
            f"place of an image, and labels as an array. {order}"
        )


def _consolidated_around(group: Group, paths: Sequence[str]) -> tuple[str, ...]:
    """Return paths of groups whose consolidated metadata describe the added nodes."""
    found = [consolidated_groups(group.store, path, group.node_format) for path in paths]
    return tuple(dict.fromkeys(path for of_one in found for path in of_one))


def _make_list(group: Group, path: str, version: str) -> None:
    """Create the group of label images if it does not exist, together with its list."""
    if find(group, "labels") is None:
        meta = GroupMeta(Metadata(version, labels=()).to_attributes())
        write_if_absent(group.store, group.node_format.documents(meta, path))


def _check_levels(image: Image) -> None:
    """Raise if the number of levels has changed, so that the label image may not be listed."""
    now = _opened(image.group, "", None)
    if len(now.levels) != len(image.levels):
        raise MetadataChangedError(
            f"{image.group.where} has got {len(now.levels)} levels while a label image with "
            f"{len(image.levels)} was written, which is not listed. Write it again, with "
            "overwrite=True."
        )


def _check_labels(image: Image, known: Collection[str]) -> None:
    """Raise if label images were added meanwhile that lack the new level."""
    added = sorted(set(_opened(image.group, "", None).labels) - set(known))
    if added:
        raise MetadataChangedError(
            f"{image.group.where} has got the label images {', '.join(added)} while a level was "
            "written, which is not listed. Add it again, with overwrite=True."
        )


def _list_label(group: Group, path: str, version: str, name: str) -> None:
    """Add a name to the list of label images, which other processes may extend concurrently."""

    def listed(attributes: dict[str, Any]) -> dict[str, Any]:
        metadata = Metadata(version, labels=())
        if detect_version(attributes) is not None:
            metadata = from_attributes(attributes, where=where(group.store, path))
        names = metadata.labels or ()
        if name in names:
            return attributes
        return attributes | replace(metadata, labels=(*names, name)).to_attributes()

    change_attributes(group.store, path, group.node_format, listed, group.options)


@takes_habits()
@takes_options_of(plan_write_labels)
def write_labels(
    url: Location | Group,
    values: Any,
    name: str,
    path: str = "",
    *,
    client: Client | None = None,
    progress: ImageProgress | None = None,
    resume: bool | str = False,
    journal: Location | None = None,
    **options: Any,
) -> WriteReport:
    """Add a label image to an existing image: `plan_write_labels`, then run.

    It is listed among the labels of the image once it is complete.

    Parameters
    ----------
    url, values, name, path, client
        As for `plan_write_labels`.
    progress, resume, journal
        As for `zarr_dask.ome.plan.ImageWritePlan.run`.
    **options

    Examples
    --------
    >>> import numpy as np
    >>> import zarr_dask as zd
    >>> store = {}
    >>> _ = zd.ome.write(np.ones((300, 400), "u2"), store, axes="yx")
    >>> cells = np.zeros((300, 400), "u4")
    >>> cells[100:200, 100:300] = 7
    >>> _ = zd.ome.write_labels(store, cells, "cells", colors={7: "#ff0000"})
    >>> zd.ome.open(store).labels["cells"].levels[1].array[60, 60]
    np.uint32(7)
    """
    _check_order(url, values, name)
    overwrite = options.pop("overwrite", False)
    place_options = options.pop("storage_options", None)
    with open_target_or_archive(url, place_options) as (place, known):
        options |= {"storage_options": known, "overwrite": True}  # as in `write`
        plan = plan_write_labels(place, values, name, path, client=client, **options)
        return plan.with_overwrite(overwrite).run(client, progress, resume=resume, journal=journal)


# --- levels ---------------------------------------------------------------------------------------


@takes_habits()
def plan_add_level(
    url: Location | Group,
    path: str = "",
    *,
    factors: Any = "isotropic",
    method: str | Method | Reduce | None = None,
    overwrite: bool = False,
    max_mem: str | int | None = None,
    client: Client | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> ImageWritePlan:
    """Plan how to add a coarser level to an image and its label images; nothing is written.

    Parameters
    ----------
    url, path
        The group of the image; a group that is open for writing may be given for both.
    factors
        Ratio between the new level and the last one: ``"isotropic"``, a number for all axes of
        space, or numbers for the axes, by position or by name.
    method
        Method that makes the pixels; by default the image's own (``type``), or ``"mean"``. Pixels
        of label images are made by the label image's own method, or ``"nearest"``.
    overwrite
        Replace a node at the path of the new level, if it is not a level of the image.
    max_mem, client
        As for `zarr_dask.ome.plan_write`.
    storage_options
        Options of the store.

    Raises
    ------
    GridError
        If the last level cannot be downsampled.
    MemoryBudgetError
        If `max_mem` is too small for one stored object.
    NodeExistsError
        If a node exists at the path of the new level.
    ValueError
        If there is no such method, or it makes values that are not labels.
    """
    image = _opened(url, path, storage_options)
    return _plan_level(image, factors, method, Budget.of(max_mem, client), overwrite, frozenset())


def _plan_level(
    image: Image,
    factors: Any,
    method: str | Method | Reduce | None,
    budget: Budget,
    overwrite: bool,
    unfinished: Collection[str],
) -> ImageWritePlan:
    """Plan one more level, ignoring arrays that unfinished jobs have listed already."""
    group, levels = image.group, _ended(image, unfinished)
    last = levels[-1]
    frame = AxesAndTransforms(image.multiscale.axes, last.scale, last.translation)
    (step,) = steps_of(last.shape, frame, 2, factors)
    by_name = dict(zip(frame.names, step, strict=True))
    additions = [_addition(image, levels, step, _method_of(image, method), budget)]
    for label in image.labels.values():
        own_levels = _ended(label, unfinished)
        if len(own_levels) == len(levels):
            own = tuple(by_name.get(axis, 1) for axis in label.axes)
            additions.append(_addition(label, own_levels, own, _method_of(label, None), budget))
    if not overwrite:
        for pyramid, _ in additions:
            check_can_create(
                group.store, pyramid.arrays[0].path, group.node_format, overwrite=False
            )
    workers = budget.workers
    return ImageWritePlan(
        store=group.store,
        path=group.path,
        node_format=group.node_format,
        pyramids=tuple(pyramid for pyramid, _ in additions),
        groups={},
        amends=(
            partial(_check_labels, image, tuple(image.labels)),
            *(amend for _, amend in reversed(additions)),
        ),
        consolidated=_consolidated_around(
            group, [pyramid.arrays[0].path for pyramid, _ in additions]
        ),
        creates=False,
        overwrite=overwrite,
        max_mem=budget.max_mem,
        threads=workers.threads,
        threads_per_process=workers.threads_per_process,
        title="add a level to",
    )


def _method_of(image: Image, method: str | Method | Reduce | None) -> Method:
    is_label = image.metadata.image_label is not None
    known = image.multiscale.type
    if method is None:
        method = known if known in METHODS else "nearest" if is_label else "mean"
    return label_method(method) if is_label else method_named(method)


def _ended(image: Image, unfinished: Collection[str]) -> tuple[Level, ...]:
    """Return the levels of an image without those of a job that died after listing them."""
    return tuple(level for level in image.levels if level.array.path not in unfinished)


def _addition(
    image: Image, levels: Sequence[Level], step: Shape, method: Method, budget: Budget
) -> tuple[PyramidPlan, Callable[[], None]]:
    """Return the plan of a level after the given ones, and the function that lists it."""
    group, last = image.group, levels[-1].array
    datasets = image.multiscale.datasets[: len(levels)]
    others = [
        dataset.path
        for one in image.metadata.multiscales or ()
        for dataset in one.datasets
        if one is not image.multiscale
    ]
    name = _next_name([one.path for one in datasets], others)
    array = _like(last, join(group.path, name), downsampled_shape(last.shape, step))
    pyramid = make_pyramid_plan(last, (array,), (step,), method, budget)
    before = datasets[-1]
    scale, translation = (1.0,) * last.ndim, (0.0,) * last.ndim
    for one in before.transformations:
        scale = tuple(one.scale or scale)
        translation = tuple(one.translation or translation)
    moved = tuple(
        at + size * method.offset(factor)
        for at, size, factor in zip(translation, scale, step, strict=True)
    )
    larger = tuple(size * factor for size, factor in zip(scale, step, strict=True))
    dataset = dataset_of(name, larger, moved if any(moved) else None)
    number = (image.metadata.multiscales or ()).index(image.multiscale)
    return pyramid, partial(_list_level, group, number, dataset)


def _next_name(paths: Sequence[str], others: Sequence[str]) -> str:
    """Return ``"3"`` after ``"2"``, ``"s3"`` after ``"s2"``; raise if another pyramid has it."""
    taken = {normalise_path(path) for path in (*paths, *others)}
    last = normalise_path(paths[-1])
    stem = last.rstrip("0123456789")
    digits = last[len(stem) :]
    name = f"{stem}{int(digits) + 1}" if digits else f"{last}-{len(paths)}"
    if name in taken:
        raise NodeExistsError(
            f"a level {name!r} is listed already, before the last one or in another pyramid."
        )
    return name


def _like(array: Array, path: str, shape: Shape) -> Array:
    """Return an array that is stored like another one, with another shape."""
    chunks = tuple(max(min(c, n), 1) for c, n in zip(array.chunks, shape, strict=True))
    shards = None
    if array.shards is not None:
        whole = (max(-(-n // c), 1) * c for c, n in zip(chunks, shape, strict=True))
        shards = tuple(map(min, array.shards, whole))
    meta = replace(array.meta, grid=Grid.regular(shape, array.write_chunks))
    meta = with_grid(meta, array.node_format, chunks, shards, chunks)
    return replace(array, path=path, meta=meta, shown=None)


def _list_level(group: Group, number: int, dataset: Dataset) -> None:
    """Append a level to the list of an image."""

    def listed(attributes: dict[str, Any]) -> dict[str, Any]:
        metadata = from_attributes(attributes, where=group.where)
        multiscales = list(metadata.multiscales or ())
        present = multiscales[number]
        if dataset.path in [one.path for one in present.datasets]:
            return attributes  # this job had finished before
        multiscales[number] = replace(present, datasets=(*present.datasets, dataset))
        return attributes | replace(metadata, multiscales=tuple(multiscales)).to_attributes()

    change_attributes(group.store, group.path, group.node_format, listed, group.options)


@takes_habits()
def add_level(
    url: Location | Group,
    path: str = "",
    *,
    factors: Any = "isotropic",
    method: str | Method | Reduce | None = None,
    overwrite: bool = False,
    max_mem: str | int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    client: Client | None = None,
    progress: ImageProgress | None = None,
    resume: bool | str = False,
    journal: Location | None = None,
) -> WriteReport:
    """Add a coarser level to an image and its label images: `plan_add_level`, then run.

    Parameters
    ----------
    url, path, factors, method, overwrite, max_mem, storage_options, client
        As for `plan_add_level`.
    progress, resume, journal
        As for `zarr_dask.ome.plan.ImageWritePlan.run`.

    Examples
    --------
    >>> import numpy as np
    >>> import zarr_dask as zd
    >>> store = {}
    >>> _ = zd.ome.write(np.ones((300, 400), "u2"), store, axes="yx")
    >>> _ = zd.ome.add_level(store)
    >>> [level.shape for level in zd.ome.open(store).levels]
    [(300, 400), (150, 200), (75, 100)]
    """
    with open_target_or_archive(url, storage_options) as (place, known):
        image = _opened(place, path, known)
        unfinished = unfinished_arrays(image.group.store, image.group.path, journal)
        plan = _plan_level(image, factors, method, Budget.of(max_mem, client), True, unfinished)
        return plan.with_overwrite(overwrite).run(client, progress, resume=resume, journal=journal)
