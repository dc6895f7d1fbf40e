"""Labels computed block by block, such as a segmentation, with ids that are unique in the image.

Each block is computed together with a margin of its neighbours and kept in an array between, under
ids of its own. Where two blocks have seen the same pixels, their labels are compared; those of one
object get one id. The label image is then written from the array between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from math import prod
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import numpy as np

from zarr_dask._util.keywords import takes_habits
from zarr_dask.array.array import Array
from zarr_dask.errors import DataTypeError, GridError, MetadataError, ValidationProblem
from zarr_dask.grid.grid import Grid, Region, Shape
from zarr_dask.hierarchy.create_node import create_array
from zarr_dask.hierarchy.group import Group
from zarr_dask.hierarchy.zip_target import open_target_or_archive
from zarr_dask.jobs.engine import Workers, check_reachable_from_workers, find_workers, run_tasks
from zarr_dask.jobs.engine.progress_bars import bar
from zarr_dask.jobs.rechunk.rechunk import Progress
from zarr_dask.jobs.write.staging import labels_folder, temporary_base
from zarr_dask.jobs.write.target import WriteReport
from zarr_dask.ome.add_labels_levels import plan_write_labels
from zarr_dask.ome.job import ImageProgress
from zarr_dask.ome.stored_image import Image, open  # noqa: A004  (zd.ome.open)
from zarr_dask.stores.base import Store
from zarr_dask.stores.open import Location, open_store

if TYPE_CHECKING:
    import dask.array as da
    from distributed import Client

__all__ = ["label"]

_LIKED = 1 << 25
"""Preferred bytes of a block."""
_LARGEST = 1 << 31
"""Maximum number of labels in one block."""


@dataclass(frozen=True)
class _Blocks:
    """Division of a label image into blocks, and their places in the array between."""

    grid: Grid
    """Blocks of the label image."""
    overlap: Shape
    """Pixels of the margin along each axis."""
    single: Shape
    """Axes along which blocks have one element, and are not compared."""
    connectivity: int = 1
    """Axes along which two touching pixels of one object may differ in place."""

    @property
    def cell(self) -> Shape:
        """Shape of the largest block with its margins."""
        sizes = zip(self.grid.largest_cell, self.overlap, self.grid.shape, strict=True)
        return tuple(min(size + 2 * margin, length) for size, margin, length in sizes)

    @property
    def shape(self) -> Shape:
        """Shape of the array between."""
        return tuple(n * count for n, count in zip(self.cell, self.grid.counts, strict=True))

    def coords(self, number: int) -> Shape:
        """Return the position of a block."""
        return tuple(int(i) for i in np.unravel_index(number, self.grid.counts))

    def seen(self, coords: Shape) -> Region:
        """Return the pixels of a block and its margins."""
        core = self.grid.region_of(coords)
        return tuple(
            slice(max(s.start - margin, 0), min(s.stop + margin, length), 1)
            for s, margin, length in zip(core, self.overlap, self.grid.shape, strict=True)
        )

    def kept(self, coords: Shape, region: Region) -> Region:
        """Return the place in the array between of pixels that a block has seen."""
        return tuple(
            slice(i * size + s.start - own.start, i * size + s.stop - own.start, 1)
            for i, size, s, own in zip(coords, self.cell, region, self.seen(coords), strict=True)
        )

    def neighbours(self, coords: Shape) -> Iterator[tuple[Shape, Shape]]:
        """Yield step and position of each next block, past a corner where only pixels touch.

        Blocks past a corner that have seen the same pixels are compared with those between them.
        """
        axes = [i for i in range(self.grid.ndim) if i not in self.single]
        for step in product(*((-1, 0, 1) if i in axes else (0,) for i in range(self.grid.ndim))):
            moved = [i for i in axes if step[i]]
            other = tuple(at + by for at, by in zip(coords, step, strict=True))
            if not moved or step[moved[0]] < 0:  # the other block comes to this one
                continue
            if len(moved) > 1 and any(self.overlap[i] for i in moved):
                continue
            is_there = all(0 <= at < n for at, n in zip(other, self.grid.counts, strict=True))
            if len(moved) <= self.connectivity and is_there:
                yield step, other

    def shifts(self, step: Shape) -> Iterator[Shape]:
        """Yield the ways along the border to pixels that touch, for a step to the next block."""
        free = [not (by or i in self.single) for i, by in enumerate(step)]
        for shift in product(*((-1, 0, 1) if one else (0,) for one in free)):
            if np.count_nonzero(step) + np.count_nonzero(shift) <= self.connectivity:
                yield shift


@dataclass(frozen=True)
class _BlockLabels:
    """Labels of one block: the first ones are in the block, the others in its margins alone."""

    number: int
    inside: int
    count: int
    nbytes: int


@dataclass(frozen=True)
class _LabelTask:
    """Task that labels one block, and keeps the labels in the array between."""

    function: Callable[[np.ndarray], Any]
    source: Array
    axes: tuple[int | None, ...]
    """For each axis of the source that of the label image; None for the channels."""
    channel: int | None
    blocks: _Blocks
    between: Array

    def __call__(self, number: int) -> _BlockLabels:
        coords = self.blocks.coords(number)
        region = self.blocks.seen(coords)
        shape = tuple(s.stop - s.start for s in region)
        pixels = self._pixels(region)
        nbytes = pixels.nbytes
        told = np.asarray(self.function(pixels))
        del pixels
        wanted = tuple(n for i, n in enumerate(shape) if i not in self.blocks.single)
        place = f"function of the block {tuple((s.start, s.stop) for s in region)}"
        if told.shape != wanted:
            raise GridError(f"{place}: it returned the shape {told.shape}, expected {wanted}.")
        if told.dtype.kind not in "iu":
            raise DataTypeError(f"{place}: it returned {told.dtype}; labels are integers.")
        if told.size and told.min() < 0:
            raise DataTypeError(f"{place}: it returned the label {told.min()}; 0 is the least.")
        numbered, inside, count = _numbered(told.reshape(shape), self._core(coords, region))
        self.between[self.blocks.kept(coords, region)] = numbered
        return _BlockLabels(number, inside, count, nbytes)

    def _pixels(self, region: Region) -> np.ndarray:
        index: list[Any] = []
        for axis in self.axes:
            if axis is None:
                index.append(slice(None) if self.channel is None else self.channel)
            else:
                index.append(region[axis].start if axis in self.blocks.single else region[axis])
        return np.asarray(self.source[tuple(index)])

    def _core(self, coords: Shape, region: Region) -> Region:
        core = self.blocks.grid.region_of(coords)
        return tuple(
            slice(s.start - own.start, s.stop - own.start)
            for s, own in zip(core, region, strict=True)
        )


def _numbered(labels: np.ndarray, core: Region) -> tuple[np.ndarray, int, int]:
    """Return labels as numbers from 1, those in the core first, and the counts of both."""
    values, places = np.unique(labels, return_inverse=True)
    if len(values) > _LARGEST:
        raise GridError(f"a block has {len(values)} labels, more than {_LARGEST}.")
    places = places.reshape(labels.shape)
    is_inside = np.zeros(len(values), bool)
    is_inside[np.unique(places[core])] = True
    is_label = values != 0
    order = np.concatenate(
        [np.flatnonzero(is_label & is_inside), np.flatnonzero(is_label & ~is_inside)]
    )
    numbers = np.zeros(len(values), np.uint32)
    numbers[order] = np.arange(1, len(order) + 1)
    return numbers[places], int((is_label & is_inside).sum()), len(order)


@dataclass(frozen=True)
class _MatchTask:
    """Task that finds the labels of one block that are the same objects as those of the next."""

    blocks: _Blocks
    between: Array

    def __call__(self, number: int) -> list[tuple[int, int, np.ndarray]]:
        coords = self.blocks.coords(number)
        found = []
        for step, other in self.blocks.neighbours(coords):
            axis = next(i for i, by in enumerate(step) if by)
            ours, theirs = self._shared(coords, other, step)
            a = self.between[self.blocks.kept(coords, ours)]
            b = self.between[self.blocks.kept(other, theirs)]
            if self.blocks.overlap[axis]:
                border = self.blocks.grid.region_of(other)[axis].start - ours[axis].start
                pairs = _same(a, b, axis, border)
            else:
                pairs = _touching(a, b, self.blocks.shifts(step))
            if len(pairs):
                neighbour = int(np.ravel_multi_index(other, self.blocks.grid.counts))
                found.append((number, neighbour, pairs))
        return found

    def _shared(self, coords: Shape, other: Shape, step: Shape) -> tuple[Region, Region]:
        """Return the pixels that both blocks have seen, or else those at their border."""
        both = list(map(_common, self.blocks.seen(coords), self.blocks.seen(other)))
        ours, theirs = list(both), list(both)
        cores = self.blocks.grid.region_of(coords), self.blocks.grid.region_of(other)
        for axis, by in enumerate(step):
            if by and not self.blocks.overlap[axis]:
                border = max(core[axis].start for core in cores)
                low, high = slice(border - 1, border, 1), slice(border, border + 1, 1)
                ours[axis], theirs[axis] = (low, high) if by > 0 else (high, low)
        return tuple(ours), tuple(theirs)


def _common(one: slice, other: slice) -> slice:
    return slice(max(one.start, other.start), min(one.stop, other.stop), 1)


def _touching(a: np.ndarray, b: np.ndarray, shifts: Iterable[Shape]) -> np.ndarray:
    """Return pairs of labels that touch across a border, which no pixel of both blocks covers.

    Examples
    --------
    >>> _touching(np.array([[7], [0]]), np.array([[0], [5]]), [(0, 0), (1, 0)]).tolist()
    [[7, 5]]
    """
    found = [np.empty((0, 2), a.dtype)]
    for shift in shifts:
        one = tuple(
            slice(max(-by, 0), n - max(by, 0)) for by, n in zip(shift, a.shape, strict=True)
        )
        other = tuple(
            slice(max(by, 0), n - max(-by, 0)) for by, n in zip(shift, b.shape, strict=True)
        )
        found.append(_overlapping(a[one], b[other])[0])
    return np.unique(np.concatenate(found), axis=0)


def _same(a: np.ndarray, b: np.ndarray, axis: int, border: int) -> np.ndarray:
    """Return pairs of labels of one object: more than half of the smaller one is in the other.

    Of an object that winds, each block joins other parts. So connected pieces of labels are
    compared as well, where they reach the border between the blocks.

    Parameters
    ----------
    a, b
        Labels of two blocks for the pixels that both have seen.
    axis, border
        Place of the border.
    """
    pairs, is_same = _overlapping(a, b)
    if is_same.all():
        return pairs
    pieces_a, labels_a = _pieces(np.where(np.isin(a, pairs[~is_same, 0]), a, 0))
    pieces_b, labels_b = _pieces(np.where(np.isin(b, pairs[~is_same, 1]), b, 0))
    pieces, are_same = _overlapping(pieces_a, pieces_b)
    near = (slice(None),) * axis + (slice(max(border - 1, 0), border + 1),)
    reaching, _ = _overlapping(pieces_a[near], pieces_b[near])
    once = np.array([len(labels_b), 1])
    found = pieces[are_same & np.isin(pieces @ once, reaching @ once)]
    joined = np.stack([labels_a[found[:, 0]], labels_b[found[:, 1]]], -1)
    return np.unique(np.concatenate([pairs[is_same], joined]), axis=0)


def _overlapping(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return pairs of labels that share pixels, and where these are over half of the smaller."""
    both = (a != 0) & (b != 0)
    pairs, counts = np.unique(np.stack([a[both], b[both]], -1), axis=0, return_counts=True)
    sizes = np.minimum(np.bincount(a.ravel())[pairs[:, 0]], np.bincount(b.ravel())[pairs[:, 1]])
    return pairs, 2 * counts > sizes


def _pieces(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers of connected pieces of labels, 0 for the background, and the label of each.

    Examples
    --------
    >>> pieces, labels = _pieces(np.array([[7, 7, 0, 7], [0, 7, 0, 7], [5, 5, 0, 0]]))
    >>> pieces.tolist(), labels.tolist()
    ([[1, 1, 0, 2], [0, 1, 0, 2], [3, 3, 0, 0]], [0, 7, 7, 5])
    """
    begins = np.ones(labels.shape, bool)
    begins[..., 1:] = labels[..., 1:] != labels[..., :-1]
    runs = (np.cumsum(begins) - 1).reshape(labels.shape)
    of_runs = labels[begins]
    edges = [np.empty((0, 2), runs.dtype)]
    for axis in range(labels.ndim - 1):
        one, other = (np.moveaxis(runs, axis, 0)[part] for part in (np.s_[:-1], np.s_[1:]))
        meet = (of_runs[one] == of_runs[other]) & (of_runs[one] != 0)
        edges.append(np.unique(np.stack([one[meet], other[meet]], -1), axis=0))
    one, other = np.concatenate(edges).T
    roots = np.arange(len(of_runs))
    while (apart := roots[one] != roots[other]).any():
        ends = roots[one[apart]], roots[other[apart]]
        np.minimum.at(roots, np.maximum(*ends), np.minimum(*ends))
        while (above := roots[roots] != roots).any():
            roots[above] = roots[roots[above]]
    firsts = np.unique(roots[of_runs != 0])
    numbers = np.where(of_runs != 0, np.searchsorted(firsts, roots) + 1, 0)
    return numbers[runs], np.concatenate([np.zeros(1, of_runs.dtype), of_runs[firsts]])


def _final_ids(
    found: Sequence[_BlockLabels], same: Sequence[tuple[int, int, np.ndarray]]
) -> tuple[np.ndarray, np.ndarray]:
    """Return where the labels of each block begin, and the final id of all labels of all blocks."""
    starts = np.concatenate([[0], np.cumsum([one.count for one in found])]).astype(np.int64)
    roots = np.arange(starts[-1])
    parents: dict[int, int] = {}

    def root_of(node: int) -> int:
        while (above := parents.get(node, node)) != node:
            parents[node] = parents.get(above, above)
            node = above
        return node

    for number, neighbour, pairs in sorted(same, key=lambda one: one[:2]):
        ids = pairs.astype(np.int64) - 1 + starts[[number, neighbour]]
        for one, other in ids.tolist():
            low, high = sorted((root_of(one), root_of(other)))
            parents[high] = low
    for node in parents:
        roots[node] = root_of(node)
    inside = [np.arange(at, at + one.inside) for at, one in zip(starts, found, strict=False)]
    kept = np.unique(roots[np.concatenate(inside)]) if inside else roots[:0]
    dtype = np.uint32 if len(kept) < 1 << 32 else np.uint64
    ids = np.zeros(len(roots), dtype)
    is_kept = np.isin(roots, kept)
    ids[is_kept] = np.searchsorted(kept, roots[is_kept]) + 1
    return starts, ids


@dataclass(frozen=True)
class _FinalLabels:
    """Function of the position of a block: its labels under their final ids."""

    blocks: _Blocks
    between: Array
    starts: Array
    ids: Array

    def __call__(self, block_id: Shape) -> np.ndarray:
        place = self.blocks.kept(block_id, self.blocks.grid.region_of(block_id))
        number = int(np.ravel_multi_index(block_id, self.blocks.grid.counts))
        first, last = (int(at) for at in self.starts[number : number + 2])
        own = np.concatenate([[0], np.asarray(self.ids[first:last])]).astype(self.ids.dtype)
        labels: np.ndarray = own[np.asarray(self.between[place])]
        return labels


# --- for users ------------------------------------------------------------------------------------


@takes_habits()
def label(
    url: Location | Group | Image,
    function: Callable[[np.ndarray], Any],
    name: str = "labels",
    path: str = "",
    *,
    overlap: int | Mapping[str, int] = 0,
    connectivity: int = 1,
    channel: int | str | None = None,
    blocks: Mapping[str, int] | None = None,
    method: Any = "mode",
    colors: Any = None,
    properties: Any = None,
    codecs: Any = None,
    overwrite: bool = False,
    max_mem: str | int | None = None,
    temp: Location | None = None,
    client: Client | None = None,
    progress: ImageProgress | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> WriteReport:
    """Label the objects of an image by blocks, and write them as a label image with all its levels.

    Labels of one object in several blocks get one id. Ids are 1, 2, ... in the order of the blocks,
    whatever the scheduler.

    Parameters
    ----------
    url, path
        The image, or its group as for `write_labels`.
    function
        Returns labels, integers from 0 for the background, for the pixels of a block. It gets the
        axes of space of one time point; the channels are a first axis if there are several and
        `channel` is not given. It is sent to workers, so it should be importable or small.
    name
        Name of the label image.
    overlap
        Pixels that a block takes of its neighbours on each side, for all axes of space or by name.
        Labels of two blocks are one object if more than half of the smaller one, among the pixels
        that both have seen, is in the other, or of a connected piece of it at their border. With 0
        labels are one object if they touch, as `connectivity` says.
    connectivity
        Pixels that touch across a border without overlap: 1 for those that share a side, as
        ``scipy.ndimage.label`` has it; 2 or more for those that touch at a corner as well, as
        ``skimage.measure.label`` does by default. The number of axes of space is all of them.
    channel
        Number or label of one channel.
    blocks
        Pixels of a block by name of the axis of space; whole stored objects of about 32 MiB by
        default.
    method, colors, properties
        As for `LabelImage`.
    codecs, overwrite, max_mem, client, storage_options
        As for `plan_write_labels`.
    temp
        Location of the labels of the blocks until all are known; beside the image by default.
    progress
        Called after each block with the bytes that it has read; True for a progress bar.

    Returns
    -------
    WriteReport
        What was written of the label image.

    Raises
    ------
    DataTypeError
        If the function returns other values than integers from 0.
    GridError
        If it returns another shape, or blocks are smaller than the overlap.
    MetadataError
        If there is no such channel or axis, or names, colours or properties break a rule.
    NodeExistsError
        If a label image of that name exists.
    ZarrDaskError
        See `plan_write_labels`.

    Examples
    --------
    >>> import numpy as np
    >>> import zarr_dask as zd
    >>> from scipy.ndimage import label
    >>> store = {}
    >>> pixels = np.zeros((300, 400), "u2")
    >>> pixels[100:200, 50:350] = pixels[250:, 10:20] = 9
    >>> _ = zd.ome.write(pixels, store, axes="yx", chunks=(128, 128))
    >>> _ = zd.ome.label(store, lambda x: label(x > 5)[0], "cells", blocks={"y": 128, "x": 128})
    >>> cells = zd.ome.open(store).labels["cells"]
    >>> np.unique(cells.levels[0][...]), cells.levels[1].shape
    (array([0, 1, 2], dtype=uint32), (150, 200))
    """
    if isinstance(url, Image):
        url = url.group
    with open_target_or_archive(url, storage_options) as (place, known):
        image = open(place, path, mode="r+", storage_options=known)
        workers = find_workers(client)
        check_reachable_from_workers(image.group.store, client)
        options: dict[str, Any] = {
            "axes": [axis.name for axis in image.multiscale.axes if axis.type != "channel"],
            "method": method,
            "colors": colors,
            "properties": properties,
            "codecs": codecs,
            "max_mem": max_mem,
            "client": client,
        }
        job = _LabelJob.of(image, function, channel, overlap, blocks, connectivity)
        plan_write_labels(image.group, job.blank(), name, overwrite=overwrite, **options)
        base, prefix = temporary_base(job.source, temp)
        base = open_store({}) if base is None else base
        with labels_folder(base, prefix) as folder:
            values = job.run(folder, workers, progress)
            plan = plan_write_labels(image.group, values, name, overwrite=overwrite, **options)
            return plan.run(client)


@dataclass(frozen=True)
class _LabelJob:
    """Everything that is decided before blocks are computed."""

    function: Callable[[np.ndarray], Any]
    source: Array
    axes: tuple[int | None, ...]
    channel: int | None
    blocks: _Blocks

    @staticmethod
    def of(
        image: Image,
        function: Callable[[np.ndarray], Any],
        channel: int | str | None,
        overlap: int | Mapping[str, int],
        blocks: Mapping[str, int] | None,
        connectivity: int,
    ) -> _LabelJob:
        source = image.levels[0].array
        axes = image.multiscale.axes
        kept = [i for i, axis in enumerate(axes) if axis.type != "channel"]
        names = [axes[i].name for i in kept]
        shape = tuple(source.shape[i] for i in kept)
        space = [name for name, i in zip(names, kept, strict=True) if axes[i].type == "space"]
        where = image.group.where
        margins = _by_axis(overlap, space, "overlap", where, least=0)
        lengths = _by_axis(blocks or {}, space, "blocks", where, least=1)
        _check_connectivity(connectivity, space, where)
        number = _channel(image, channel)
        own = tuple(source.write_chunks[i] for i in kept)
        depth = source.nbytes // max(source.size, 1)
        if number is None:
            depth *= prod(n for i, n in enumerate(source.shape) if i not in kept)
        sizes = _sizes(names, own, shape, space, lengths, depth)
        margin = tuple(margins.get(name, 0) for name in names)
        grid = Grid.of(shape, sizes)
        for name, size, count, wide in zip(names, sizes, grid.counts, margin, strict=True):
            if count > 1 and wide > size:
                raise GridError(
                    f"{where}: an overlap of {wide} pixels along {name!r} is more than a block of "
                    f"{size}; pass blocks={{{name!r}: {wide}}} or more."
                )
        return _LabelJob(
            function,
            source,
            tuple(kept.index(i) if i in kept else None for i in range(source.ndim)),
            number,
            _Blocks(
                grid,
                margin,
                tuple(i for i, name in enumerate(names) if name not in space),
                connectivity,
            ),
        )

    def blank(self) -> da.Array:
        """Return an array of the shape of the label image, to plan and check with."""
        import dask.array as da

        grid = self.blocks.grid
        return da.zeros(grid.shape, dtype="u4", chunks=grid.largest_cell)

    def run(self, folder: Store, workers: Workers, progress: ImageProgress | None) -> da.Array:
        """Compute all blocks, and return the label image under its final ids."""
        import dask.array as da

        blocks, grid = self.blocks, self.blocks.grid
        between = create_array(folder, "blocks", shape=blocks.shape, dtype="u4", chunks=blocks.cell)
        compute = _LabelTask(self.function, self.source, self.axes, self.channel, blocks, between)
        found: list[_BlockLabels] = []
        with ExitStack() as stack:
            told: Any = progress
            if progress is True:
                told = stack.enter_context(bar("labelling", self.source.nbytes))

            def note(one: _BlockLabels) -> None:
                found.append(one)
                if told is not None:
                    told(Progress(0, 1, one.nbytes, self.source.nbytes))

            run_tasks(compute, range(grid.ncells), workers, note, "zarr-label", writes_to=[folder])
        found.sort(key=lambda one: one.number)
        same: list[tuple[int, int, np.ndarray]] = []
        compare = _MatchTask(blocks, between)
        run_tasks(compare, range(grid.ncells), workers, same.extend, "zarr-label-borders")
        starts, ids = _final_ids(found, same)
        final = _FinalLabels(
            blocks, between, _stored(folder, "starts", starts), _stored(folder, "ids", ids)
        )
        values: da.Array = da.map_blocks(
            final,
            chunks=tuple(dimension.lengths for dimension in grid.dimensions),
            dtype=ids.dtype,
            meta=np.empty((0,) * grid.ndim, ids.dtype),
            name=f"zarr-label-{token_hex(8)}",
        )
        return values


def _stored(folder: Store, name: str, values: np.ndarray) -> Array:
    chunks = (min(max(len(values), 1), 1 << 20),)
    array = create_array(folder, name, shape=values.shape, dtype=values.dtype, chunks=chunks)
    array[...] = values
    return array


def _by_axis(
    given: int | Mapping[str, int], space: Sequence[str], what: str, where: str, *, least: int
) -> dict[str, int]:
    """Return a number for each named axis of space."""
    numbers: dict[str, Any] = (
        dict(given) if isinstance(given, Mapping) else dict.fromkeys(space, given)
    )
    wrong = {
        name: number
        for name, number in numbers.items()
        if name not in space
        or isinstance(number, bool)
        or not isinstance(number, int)
        or number < least
    }
    if wrong:
        expected = f"integers from {least}, for axes of space, which are {list(space)}"
        raise MetadataError(where, [ValidationProblem(what, wrong, expected)])
    return numbers


def _check_connectivity(connectivity: Any, space: Sequence[str], where: str) -> None:
    is_number = isinstance(connectivity, int) and not isinstance(connectivity, bool)
    if not (is_number and 1 <= connectivity <= len(space)):
        expected = f"a number from 1 to {len(space)}, the number of axes of space"
        raise MetadataError(where, [ValidationProblem("connectivity", connectivity, expected)])


def _channel(image: Image, channel: int | str | None) -> int | None:
    """Return the number of the chosen channel; None for all of several."""
    at = [i for i, axis in enumerate(image.multiscale.axes) if axis.type == "channel"]
    count = prod(image.levels[0].shape[i] for i in at)
    omero = image.metadata.omero
    names = [] if omero is None else [one.label for one in omero.channels]
    if channel is None:
        return 0 if at and count == 1 else None
    number = names.index(channel) if channel in names else channel
    if not at or isinstance(number, str | bool) or not 0 <= number < count:
        expected = f"a number below {count if at else 0}, or one of the labels {names}"
        raise MetadataError(image.group.where, [ValidationProblem("channel", channel, expected)])
    return number


def _sizes(
    names: Sequence[str],
    objects: Shape,
    shape: Shape,
    space: Sequence[str],
    given: Mapping[str, int],
    depth: int,
) -> Shape:
    """Return the shape of a block: as given, or whole stored objects up to a preferred size."""
    sizes = [
        min(given.get(name, size), max(length, 1)) if name in space else 1
        for name, size, length in zip(names, objects, shape, strict=True)
    ]
    growing = [i for i, name in enumerate(names) if name in space and name not in given]
    while growing:
        axis = min(growing, key=lambda i: sizes[i])
        larger = min(2 * sizes[axis], max(shape[axis], 1))
        if larger == sizes[axis] or prod(sizes) // sizes[axis] * larger * depth > _LIKED:
            growing.remove(axis)
        else:
            sizes[axis] = larger
    return tuple(sizes)
