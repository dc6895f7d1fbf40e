"""Appending to an image: level 0, all coarser levels and all label images become longer together.

The pixels are stored first, then those of the coarser levels that follow from them; readers see
neither. Then all lengths are changed in one go (`zarr_dask.jobs.write.commit`): what a process that
dies meanwhile leaves is completed by the next append.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np

from zarr_dask._util.arguments import check_resume
from zarr_dask._util.display import format_dtype
from zarr_dask._util.keywords import takes_habits
from zarr_dask.array.array import Array
from zarr_dask.array.resize import append_region, resize_grid
from zarr_dask.errors import (
    AppendConflictError,
    DataTypeError,
    GridError,
    MetadataError,
    ValidationProblem,
)
from zarr_dask.formats.base import ArrayMeta
from zarr_dask.grid.grid import Region, Shape
from zarr_dask.hierarchy.group import Group
from zarr_dask.hierarchy.zip_target import open_target_or_archive
from zarr_dask.jobs.engine.lifecycle import alone_at, waiting_for_same
from zarr_dask.jobs.engine.plan import add_requests
from zarr_dask.jobs.write.commit import (
    DerivedArrays,
    GroupCommit,
    finish_claimed_commit,
    has_unfinished_commit,
)
from zarr_dask.jobs.write.joint_plan import JointWritePlan
from zarr_dask.jobs.write.request import WriteRequest, as_dask
from zarr_dask.jobs.write.submit import WriteProgress
from zarr_dask.jobs.write.target import WriteReport
from zarr_dask.jobs.write.write import plan_several
from zarr_dask.journal import OnConflict, default_place
from zarr_dask.ome.coarser import update_plan
from zarr_dask.ome.downsample import Method, Reduce
from zarr_dask.ome.downsample_factors import downsampled_shape, factors_between
from zarr_dask.ome.pixel_source import Budget
from zarr_dask.ome.plan import claim_images
from zarr_dask.ome.pyramid_plan import PyramidPlan
from zarr_dask.ome.stored_image import Image, open  # noqa: A004  (zd.ome.open)
from zarr_dask.stores.open import Location

if TYPE_CHECKING:
    import dask.array as da
    from distributed import Client

__all__ = ["append"]


@takes_habits()
def append(
    url: Location | Group,
    block: Any,
    axis: str = "t",
    path: str = "",
    *,
    labels: Mapping[str, Any] | None = None,
    method: str | Method | Reduce | None = None,
    max_mem: str | int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    client: Client | None = None,
    progress: WriteProgress | None = None,
    on_conflict: OnConflict = "error",
    resume: bool | str = False,
) -> WriteReport:
    """Append pixels to an image, at the end of an axis, on all its levels.

    The new length becomes visible when all levels are stored. `zarr_dask.ome.open` shows levels of
    equal length at any moment. Label images become longer as well.

    Parameters
    ----------
    url, path
        The group of the image; a group that is open for writing may be given for both.
    block
        The pixels: a dask array, a NumPy array or a `zarr_dask.Array`; one element of the axis may
        lack it, such as a frame ``(y, x)`` for an image ``(t, y, x)``.
    axis
        Name of the axis.
    labels
        Values of label images by name; 0, the background, by default.
    method
        Method that made the levels of the image; by default the one that its metadata name, or
        ``"mean"`` if they name none.
    max_mem
        Bytes that one process may hold while it makes coarser levels, as for
        `zarr_dask.ome.plan_write`.
    storage_options
        Options of the store.
    client, progress
        As for `zarr_dask.WritePlan.run`; the progress is that of the given pixels.
    on_conflict
        Behaviour while another append or update of the image runs: ``"error"``, before anything is
        written, or ``"wait"``.
    resume
        True to resume the same call after it died, also if it died at its very end, so that nothing
        is appended twice; see `zarr_dask.plan_write`. If another process makes the same call, its
        end is waited for.

    Raises
    ------
    AppendConflictError
        If another append to the image is under way.
    DataTypeError
        If the image cannot hold the pixels.
    GridError
        If the shape does not fit, or the levels do not fit together.
    MetadataError
        If there is no such axis or label image, or the channels of the axis have display settings.
    ReadOnlyError
        If the store is open for reading only.
    ValueError
        If the metadata name a method that this package does not have.

    Examples
    --------
    >>> import numpy as np
    >>> import zarr_dask as zd
    >>> store = {}
    >>> _ = zd.ome.write(np.zeros((2, 300, 400), "u2"), store, axes="tyx")
    >>> _ = zd.ome.append(store, np.ones((300, 400), "u2"))
    >>> [level.shape for level in zd.ome.open(store).levels]
    [(3, 300, 400), (3, 150, 200)]
    """
    with open_target_or_archive(url, storage_options) as (place, known):
        return append_at(
            _opened(place, path, known),
            block,
            axis,
            None,
            labels=labels,
            method=method,
            budget=Budget.of(max_mem, client),
            client=client,
            progress=progress,
            on_conflict=on_conflict,
            resume=resume,
        )


def finish_append(image: Image) -> None:
    """Make all levels longer where an append has ended after some of them were.

    Raises
    ------
    ZarrDaskError
        If that fails as well, or another append does not end.
    """
    group = image.group
    if not has_unfinished_commit(group.store, group.path):
        return
    with claim_images(group.store, _claims(image), "wait"):
        finish_claimed_commit(group.store, group.path, group.node_format)


def _shapes(image: Image) -> dict[str, Shape]:
    """Return the shapes of level 0 of an image and its label images, by path."""
    return {one.group.path: one.levels[0].shape for one in (image, *image.labels.values())}


def _claims(image: Image) -> list[str]:
    """Return the paths of the images that an append claims."""
    return [image.group.path, *(label.group.path for label in image.labels.values())]


def append_at(
    image: Image,
    block: Any,
    axis: str,
    start: int | None,
    *,
    labels: Mapping[str, Any] | None = None,
    method: str | Method | Reduce | None = None,
    budget: Budget,
    client: Client | None = None,
    progress: WriteProgress | None = None,
    on_conflict: OnConflict = "error",
    resume: bool | str = False,
) -> WriteReport:
    """Append pixels as `append` does, to an axis of the length `start`; None for any length.

    Raises
    ------
    AppendConflictError
        If the axis has another length by now.
    ZarrDaskError
        See `append`.
    """
    group = image.group
    block = as_dask(block)  # once: what is in memory is named by its content
    awaited = None if on_conflict == "wait" else _shapes(image)
    job = _job(image, block, axis, labels or {}, resume)

    def append_now() -> list[WriteReport]:
        with _alone(group, job), claim_images(group.store, _claims(image), on_conflict, job):
            return append_claimed()

    def append_claimed() -> list[WriteReport]:
        finish_claimed_commit(group.store, group.path, group.node_format)
        image = _opened(group, "", None)
        if start is not None and image.levels[0].shape[image.axes.index(axis)] != start:
            raise AppendConflictError(
                f"{group.where} has no longer {start} elements along {axis!r}: something else has "
                "appended to it."
            )
        growing = _growing(image, block, axis, labels or {}, method)
        plan, coarser = _plan(image, growing, budget, client, resume, awaited)
        return [*plan.run(client, progress), *coarser]

    return _sum(waiting_for_same(append_now, group.where))


def _job(image: Image, block: Any, axis: str, labels: Mapping[str, Any], resume: bool | str) -> str:
    """Return a text that tells a resumable append from others; empty if it is none.

    Raises
    ------
    ZarrDaskError
        If the pixels do not fit, or cannot be told from others.
    """
    check_resume(resume)
    if not resume:
        return ""
    from zarr_dask.graph.tokens import layer_tokens

    told: list[Any] = [resume]
    if not isinstance(resume, str):
        growing = _growing(image, block, axis, labels, None)
        told += [(one.image.group.path, layer_tokens(one.values)) for one in growing]
    return sha256(str(told).encode()).hexdigest()[:32]


@contextmanager
def _alone(group: Group, job: str) -> Iterator[None]:
    """Wait while another process makes the same resumable append to local files."""
    place = default_place(group.store, group.path) if job else None
    if place is None:
        yield
        return
    with alone_at(place.store, f"{place.prefix}{job}", group.where):
        if place.session is not None:
            place.session.refresh()  # it was opened before another process may have committed
        yield


def _opened(url: Location | Group, path: str, options: Mapping[str, Any] | None) -> Image:
    return open(url, path, mode="r+", storage_options=options)


@dataclass(frozen=True, eq=False)
class _GrowingImage:
    """One image that becomes longer, or a label image."""

    image: Image
    values: da.Array
    axis: int
    method: str | Method | Reduce | None

    def grown(self) -> tuple[tuple[Array, ...], Region]:
        """Return the levels as they will be, and the new pixels of level 0.

        Raises
        ------
        GridError
            If the pixels or the levels do not fit.
        """
        levels, where = self.image.levels, self.image.group.where
        shapes = [level.shape for level in levels]
        steps = factors_between(shapes, [level.scale for level in levels], where)
        shape, region = append_region(shapes[0], self.values.shape, self.axis)
        made = [shape]
        for fine, coarse, step in zip(shapes, shapes[1:], steps, strict=False):
            whole = downsampled_shape(fine, step) == coarse
            length = _coarse(made[-1][self.axis], step[self.axis], whole=whole)
            if coarse[self.axis] != _coarse(fine[self.axis], step[self.axis], whole=whole):
                raise GridError(
                    f"{where}: levels of the shapes {fine} and {coarse} do not have the same "
                    f"extent along {self.image.axes[self.axis]!r}. Write the shorter one first."
                )
            made.append((*coarse[: self.axis], length, *coarse[self.axis + 1 :]))
        return tuple(map(_longer, (level.array for level in levels), made)), region


def _coarse(length: int, factor: int, *, whole: bool) -> int:
    """Return the length of a coarser level, whose last pixel may be of an incomplete cell."""
    return -(-length // factor) if whole else length // factor


def _longer(array: Array, shape: Shape) -> Array:
    meta = array.meta
    grid = resize_grid(meta.grid, shape, sharded=meta.codecs.serializer.is_sharding)
    return replace(array, meta=replace(meta, grid=grid), shown=None)


def _growing(
    image: Image,
    block: Any,
    axis: str,
    labels: Mapping[str, Any],
    method: str | Method | Reduce | None,
) -> list[_GrowingImage]:
    """Return the image and its label images with their new pixels.

    Raises
    ------
    MetadataError
        If there is no such axis or label image, or the channels of the axis have display settings.
    """
    import dask.array as da

    where = image.group.where
    if axis not in image.axes:
        problem = ValidationProblem(
            "axis", axis, f"one of the axes {list(image.axes)}{_grown(axis, image.axes)}"
        )
        raise MetadataError(where, [problem])
    at = image.axes.index(axis)
    if image.metadata.omero is not None and image.multiscale.axes[at].type == "channel":
        expected = "an axis that has no display settings; write such an image with all its channels"
        raise MetadataError(where, [ValidationProblem("axis", axis, expected)])
    values = _given(block, at, image.levels[0].array)
    found = [_GrowingImage(image, values, at, method)]
    unknown = [
        name for name in labels if name not in image.labels or axis not in image.labels[name].axes
    ]
    if unknown:
        expected = f"label images with an axis {axis!r}; there are {list(image.labels)}"
        raise MetadataError(where, [ValidationProblem("labels", unknown, expected)])
    for name, label in image.labels.items():
        if axis not in label.axes:
            continue
        own, array = label.axes.index(axis), label.levels[0].array
        if name in labels:
            given = _given(labels[name], own, array)
        else:  # also over what an append that died has left beyond the end
            shape = (*array.shape[:own], values.shape[at], *array.shape[own + 1 :])
            given = da.zeros(shape, dtype=array.dtype, chunks=array.write_chunks)
        found.append(_GrowingImage(label, given, own, None))
    return found


def _grown(axis: str, axes: tuple[str, ...]) -> str:
    """Return what to do for an axis that an image lacks, if OME-Zarr knows one of that name."""
    if axis not in "tc":
        return ""
    wanted = "".join(name for name in "tczyx" if name == axis or name in axes)
    return (
        f". It was written without that axis: zarr_dask.ome.write(image.to_dask()[None], url, "
        f"axes={wanted!r}) writes it as the first of a new image, to which more are appended"
    )


def _given(values: Any, axis: int, array: Array) -> da.Array:
    """Return pixels to append, to one element of an axis as a block that has it.

    Raises
    ------
    DataTypeError
        If the array cannot hold every value of their type.
    """
    found = as_dask(values)
    if not array.meta.data_type.accepts(found.dtype):
        raise DataTypeError(
            f"{array.where} holds {array.meta.data_type.label}, which cannot hold every value of "
            f"{format_dtype(found.dtype)}; convert with x.astype({format_dtype(array.dtype)!r}) if "
            "that is meant."
        )
    return found[(slice(None),) * axis + (np.newaxis,)] if found.ndim == array.ndim - 1 else found


def _plan(
    image: Image,
    growing: list[_GrowingImage],
    budget: Budget,
    client: Client | None,
    resume: bool | str,
    awaited: Mapping[str, Shape] | None,
) -> tuple[JointWritePlan, list[WriteReport]]:
    """Return the plan of level 0 of all images, and the list of reports of the coarser levels.

    `awaited` has the shapes by path that the images had before the same append may have been
    waited for, if it is not to be made behind others.
    """
    group = image.group
    pyramids: list[PyramidPlan | None] = []
    derived: list[tuple[ArrayMeta, Array]] = []
    requests = []
    for one in growing:
        arrays, region = one.grown()
        chain = replace(one.image.chain, arrays=arrays)
        pyramids.append(chain.plan(region, one.method, budget))
        present = [level.array for level in one.image.levels]
        derived += [(a.meta, b) for a, b in zip(present[1:], arrays[1:], strict=True)]
        start = None if awaited is None else awaited.get(one.image.group.path)
        until = None if start is None else append_region(start, one.values.shape, one.axis)[0]
        requests.append(
            WriteRequest(url=present[0], mode="r+", append=one.axis, resume=resume, until=until)
        )
    coarser = replace(update_plan([image.chain], pyramids, budget), claims=())
    reports: list[WriteReport] = []

    def write() -> None:
        reports.append(coarser.run(client))

    commit = GroupCommit(
        store=group.store,
        path=group.path,
        node_format=group.node_format,
        derived=DerivedArrays(tuple(derived), write),
    )
    plan = plan_several([one.values for one in growing], requests, commit)
    if all(one.before is None for one in plan.plans):  # an earlier call has ended the same append
        return replace(plan, commit=None), reports
    return plan, reports


def _sum(reports: list[WriteReport]) -> WriteReport:
    return WriteReport(
        sum(one.objects for one in reports),
        sum(one.empty for one in reports),
        sum(one.nbytes for one in reports),
        sum(one.stored for one in reports),
        sum(one.retried for one in reports),
        reports[0].already_done,
        seconds=max(one.seconds for one in reports),
        waited=sum(one.waited for one in reports),
        requests=add_requests(one.requests for one in reports),
    )
