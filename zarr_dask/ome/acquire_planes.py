"""Images that grow while a microscope takes them, plane by plane and in several processes.

Planes are kept beside the image, one file each, until those of a time point are complete. Then it
is appended (`zarr_dask.ome.append_blocks`), in the background, by one of the processes::

    image.zarr.zarr-dask/__acquire/7/0.12      time point 7, channel 0, plane 12
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import product
from math import prod
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from zarr_dask._util.keywords import takes_habits, takes_options_of
from zarr_dask._util.threads import take_done
from zarr_dask.array.array import Array
from zarr_dask.errors import (
    AppendConflictError,
    DataTypeError,
    GridError,
    MetadataError,
    NodeNotFoundError,
    StoreError,
    ValidationProblem,
)
from zarr_dask.formats.base import ReadOptions, where
from zarr_dask.formats.concurrent_edit import write_if_absent
from zarr_dask.formats.detect import read_node
from zarr_dask.grid.grid import Shape
from zarr_dask.hierarchy.edit import create_parent_groups
from zarr_dask.hierarchy.group import Group
from zarr_dask.hierarchy.locate import resolve_node
from zarr_dask.hierarchy.open_node import open_array
from zarr_dask.jobs.verify.expected import OpenJobs
from zarr_dask.journal import default_place, given_place, remove_empty_folders
from zarr_dask.journal.claims import sweep_claims
from zarr_dask.ome.append_blocks import append_at, finish_append
from zarr_dask.ome.pixel_source import Budget
from zarr_dask.ome.plan import ImageWritePlan
from zarr_dask.ome.stored_image import Image, open  # noqa: A004  (zd.ome.open)
from zarr_dask.ome.write import plan_write
from zarr_dask.stores.base import Store, is_remote
from zarr_dask.stores.open import Location, open_store
from zarr_dask.stores.wrapper import is_in_memory

if TYPE_CHECKING:
    import dask.array as da
    from distributed import Client

__all__ = ["LiveImage", "acquire"]

_LOG = logging.getLogger(__name__)
_FOLDER = "__acquire/"


@dataclass(frozen=True)
class _Planes:
    """Planes of time points that are not complete yet, as files of plain pixels."""

    store: Store
    prefix: str
    """Prefix of all keys; ends in "/"."""
    leading: Shape
    """Number of elements along each axis between time and the two axes of a plane."""
    plane: Shape
    """Shape of a plane."""
    dtype: np.dtype[Any]

    def put(self, time: int, index: Shape, pixels: np.ndarray) -> None:
        """Keep a plane."""
        stored = np.ascontiguousarray(pixels, self.dtype.newbyteorder("<"))
        self.store.set(self._key(time, index), [memoryview(stored.reshape(-1).view("u1"))])

    def missing(self, time: int) -> list[Shape]:
        """Return the planes that a time point lacks."""
        there = set(self.store.list_dir(f"{self.prefix}{time}/").keys)
        return [
            index
            for index in product(*map(range, self.leading))
            if self._key(time, index) not in there
        ]

    def values(self, time: int, at: int) -> da.Array:
        """Return a complete time point, with time as axis number `at`."""
        import dask.array as da

        single = tuple((1,) * length for length in self.leading)
        shape = (*single[:at], (1,), *single[at:], *((length,) for length in self.plane))
        values: da.Array = da.map_blocks(
            _PlaneOfBlock(self, time, at),
            chunks=shape,
            dtype=self.dtype,
            meta=np.empty((0,) * len(shape), self.dtype),
        )
        return values

    def get(self, time: int, index: Shape) -> np.ndarray:
        """Return a plane.

        Raises
        ------
        StoreError
            If it is not there, or has another size.
        """
        key = self._key(time, index)
        stored = self.store.get(key)
        size = prod(self.plane) * self.dtype.itemsize
        if stored is None or memoryview(stored).nbytes != size:
            found = "nothing" if stored is None else f"{memoryview(stored).nbytes} bytes"
            raise StoreError(
                f"{self.store.url}/{key} holds {found}, expected the {size} bytes of a plane. "
                "Remove it, and put the plane again."
            )
        return np.frombuffer(stored, self.dtype.newbyteorder("<")).reshape(self.plane)

    def times(self) -> list[int]:
        """Return the time points of which planes are kept, in order."""
        names = (name.rstrip("/") for name in self.store.list_dir(self.prefix).prefixes)
        ends = (name.rpartition("/")[2] for name in names)
        return sorted(int(time) for time in ends if time.isdecimal())

    def remove(self, before: int) -> None:
        """Remove time points that the image shows."""
        for time in self.times():
            if time < before:
                self.store.delete_prefix(f"{self.prefix}{time}/")
        remove_empty_folders(self.store, self.prefix)

    def _key(self, time: int, index: Shape) -> str:
        return f"{self.prefix}{time}/{'.'.join(map(str, index)) or '0'}"


@dataclass(frozen=True)
class _PlaneOfBlock:
    """Function of the position of a block: the plane that it is."""

    planes: _Planes
    time: int
    at: int

    def __call__(self, block_id: Shape) -> np.ndarray:
        index = (*block_id[: self.at], *block_id[self.at + 1 : -2])
        values = self.planes.get(self.time, index).astype(self.planes.dtype, copy=False)
        return values[(np.newaxis,) * (len(block_id) - 2)]


@dataclass(eq=False)
class LiveImage:
    """An image that is being taken; made by `zarr_dask.ome.acquire`."""

    image: Image
    """The image as it was when the acquisition began."""
    axis: str
    """Name of the axis that grows."""
    _planes: _Planes
    _budget: Budget
    _client: Client | None = None
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    _looks: list[Future[None]] = field(default_factory=list)
    """Looks for complete time points that had not ended when a plane was put last."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        """Append what an earlier process has left complete."""
        self._follow()

    @property
    def _array(self) -> Array:
        return self.image.levels[0].array

    @property
    def _at(self) -> int:
        return self.image.axes.index(self.axis)

    @property
    def done(self) -> int:
        """Number of complete time points that readers see."""
        array = self._array
        return open_array(array.store, array.path).shape[self._at]

    def put(self, pixels: Any, /, **index: int) -> None:
        """Keep a plane, or several; the last one of a time point makes it visible.

        Parameters
        ----------
        pixels
            Pixels along the axes that `index` does not name, in the order of the image.
        **index
            Position along axes other than the two of a plane: that of time always, such as
            ``t=7, c=0, z=12``.

        Raises
        ------
        DataTypeError
            If the image cannot hold the pixels.
        GridError
            If the shape does not fit, or the time point is complete already.
        MetadataError
            If an axis does not exist, or a position is outside.
        ZarrDaskError
            What went wrong in the background; the pixels are kept, and the next call tries again.
        """
        names = [name for name in self.image.axes[:-2] if name != self.axis]
        time = self._checked(names, index)
        values = np.asarray(pixels)
        whole = [
            n for name, n in zip(names, self._planes.leading, strict=True) if name not in index
        ]
        expected = (*whole, *self._planes.plane)
        if values.shape != expected:
            raise GridError(
                f"{self.image.group.where}: the pixels have the shape {values.shape}, expected "
                f"{expected} for {index}."
            )
        if not np.can_cast(values.dtype, self._planes.dtype, "safe"):
            raise DataTypeError(
                f"{self.image.group.where} holds {self._planes.dtype}, the pixels are of "
                f"{values.dtype}; convert them with astype."
            )
        if time < self.done:
            raise GridError(
                f"{self.image.group.where}: {self.axis}={time} is complete; it is changed by "
                "zarr_dask.ome.open(url, mode='r+').level(0)[...] = pixels."
            )
        for rest in product(*map(range, whole)):
            left = iter(rest)
            place = tuple(index[name] if name in index else next(left) for name in names)
            self._planes.put(time, place, values[rest])
        self._follow()

    def _checked(self, names: list[str], index: Mapping[str, Any]) -> int:
        """Return the time point of an index that is valid."""
        limits = dict(zip(names, self._planes.leading, strict=True))
        wrong = {
            name: at
            for name, at in index.items()
            if not isinstance(at, int | np.integer)
            or at < 0
            or (name != self.axis and at >= limits.get(name, 0))
        }
        if wrong or self.axis not in index:
            expected = f"a position along {self.axis!r}, and below {limits} along other axes"
            problem = ValidationProblem("index", wrong or dict(index), expected)
            raise MetadataError(self.image.group.where, [problem])
        return int(index[self.axis])

    def missing(self, time: int) -> list[dict[str, int]]:
        """Return the planes that a time point lacks, as what `put` takes besides the pixels."""
        if time < self.done:
            return []
        names = [name for name in self.image.axes[:-2] if name != self.axis]
        found = self._planes.missing(time)
        return [{self.axis: time, **dict(zip(names, one, strict=True))} for one in found]

    def waiting(self) -> dict[int, int]:
        """Return the time points of which planes are kept, with the number of planes they lack.

        A complete one is among them if an earlier time point is not complete.
        """
        done = self.done
        return {
            time: len(self._planes.missing(time)) for time in self._planes.times() if time >= done
        }

    # --- in the background

    def _follow(self) -> None:
        """Append what is complete, in the background; one look is enough for several planes."""
        with self._lock:
            for one in self._looks:
                one.cancel()  # which is in vain for one that has begun
            ended = take_done(self._looks)
            self._looks.append(self._pool.submit(self._advance))
        _raise_failure(ended)

    def _advance(self) -> None:
        """Append all complete time points that follow those of the image, and forget their planes.

        Raises
        ------
        AppendConflictError
            If something else has appended, or does not end.
        """
        finish_append(self.image)
        length = self.done
        while not self._planes.missing(length):
            values = self._planes.values(length, self._at)
            try:
                append_at(
                    self.image,
                    values,
                    self.axis,
                    length,
                    budget=self._budget,
                    client=self._client,
                    on_conflict="wait",
                )
            except AppendConflictError:
                if self.done == length:
                    raise
            length = self.done
        self._planes.remove(length)

    def close(self) -> None:
        """Wait until all complete time points are visible; planes of others are kept.

        The log tells of those that are kept (see `waiting`). The same `acquire` continues them.

        Raises
        ------
        ZarrDaskError
            What went wrong in the background.
        """
        self._pool.shutdown(wait=True)
        _raise_failure(self._looks)
        self._tidy()
        waiting = self.waiting()
        if waiting:
            first, lacks = self.done, len(self._planes.missing(self.done))
            _LOG.warning(
                "%s has %d complete time points. Planes of %d more are kept and not visible yet, "
                "since %s=%d lacks %d planes: missing(%d) lists them, and the same acquire "
                "continues, here or in another process.",
                *(self.image.group.where, first, len(waiting), self.axis, first, lacks, first),
            )

    def _tidy(self) -> None:
        """Remove what appends have left of which only the end of their process was missing."""
        store, path = self.image.group.store, self.image.group.path
        if is_remote(store):
            return
        jobs = OpenJobs(store, path, tuple(level.array for level in self.image.levels), None)
        for below, journal, job in jobs:
            if jobs.is_done(below, journal, job):
                journal.remove()
        sweep_claims(store, path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._pool.shutdown(wait=True)


def _raise_failure(looks: Sequence[Future[None]]) -> None:
    for one in looks:
        if not one.cancelled():
            one.result()


@takes_habits()
@takes_options_of(plan_write, but=("overwrite",))
def acquire(
    url: Location | Group,
    shape: Mapping[str, int],
    dtype: Any,
    path: str = "",
    *,
    axes: str = "tczyx",
    axis: str = "t",
    temp: Location | None = None,
    max_mem: str | int | None = None,
    client: Client | None = None,
    storage_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> LiveImage:
    """Begin to take an image plane by plane, or continue it; also in several processes.

    Readers see an image of all time points that are complete, with all levels, at any moment. A
    complete time point is appended in the background, by the process that has put its last plane.
    A process that dies loses the plane in hand; the next one that calls this with the same
    arguments continues.

    Parameters
    ----------
    url, path
        Location of the image, which is made if there is none.
    shape
        Number of pixels along each axis but the one that grows: ``{"c": 2, "z": 30, "y": 2048,
        "x": 2048}``.
    dtype
        Data type of the pixels.
    axes
        Names of the axes; the last two are those of a plane.
    axis
        Name of the axis that grows, which is not one of space.
    temp
        Location of planes until their time point is complete; beside the image by default.
    max_mem, client, storage_options
        As for `append`.
    **options

    Returns
    -------
    LiveImage
        Takes planes by its method ``put``, in a ``with`` statement.

    Raises
    ------
    DataTypeError, GridError
        If there is an image of another type or shape.
    MetadataError
        If axes and shape do not fit together, or a rule of OME-Zarr is broken.
    StoreError
        If there is no place beside the image, and no `temp`.

    Examples
    --------
    >>> import numpy as np
    >>> import zarr_dask as zd
    >>> store = {}
    >>> with zd.ome.acquire(store, {"c": 2, "y": 300, "x": 400}, "u2", axes="tcyx") as image:
    ...     for t in range(3):
    ...         for c in range(2):
    ...             image.put(np.full((300, 400), 10 * t + c, "u2"), t=t, c=c)
    >>> [level.shape for level in zd.ome.open(store).levels]
    [(3, 2, 300, 400), (3, 2, 150, 200)]
    """
    place, below = resolve_node(url, path, storage_options)
    at = where(place, below)
    lengths = _lengths(shape, axes, axis, at)
    budget = Budget.of(max_mem, client)
    try:
        read_node(place, below, None, ReadOptions())
    except NodeNotFoundError:
        empty = np.zeros(lengths, dtype)
        options |= {"axes": axes, "max_mem": max_mem, "client": client}
        # what another process has put meanwhile is kept
        _make(plan_write(empty, place, below, overwrite=True, **options))
    image = open(place, below, mode="r+")
    _check_same(image, lengths, axes, axis, np.dtype(dtype))
    room = _room(place, below, temp)
    rest = tuple(n for name, n in zip(axes, lengths, strict=True) if name != axis)
    dtype_here = image.levels[0].array.dtype
    planes = _Planes(*room, rest[:-2], rest[-2:], dtype_here)
    return LiveImage(image, axis, planes, budget, client)


def _make(plan: ImageWritePlan) -> None:
    """Put the documents of an image without pixels, if no other process has done so."""
    for path in sorted(plan.documents, key=len, reverse=True):
        write_if_absent(plan.store, plan.documents[path])
    create_parent_groups(plan.store, plan.path, plan.node_format)


def _room(store: Store, path: str, temp: Location | None) -> tuple[Store, str]:
    """Return the store and prefix of planes whose time point is not complete.

    Raises
    ------
    StoreError
        If there is none.
    """
    place = default_place(store, path) if temp is None else given_place(temp, store, path)
    if place is not None:
        return place.store, f"{place.prefix}{_FOLDER}"
    if is_in_memory(store):
        return open_store({}), ""
    raise StoreError(
        f"{where(store, path)} has no place beside it for planes of incomplete time points. Say "
        "where they go with temp=, a path or URL."
    )


def _lengths(shape: Any, axes: str, axis: str, at: str) -> Shape:
    """Return the shape of the image without any time point.

    Raises
    ------
    MetadataError
        If axes and shape do not fit together.
    """
    if axis not in axes[:-2] or axis in "zyx":
        problem = ValidationProblem(
            "axis", axis, f"one of the axes {axes[:-2]!r} that is not space"
        )
        raise MetadataError(at, [problem])
    if not isinstance(shape, Mapping):
        named = ", ".join(f"{name!r}: ..." for name in axes if name != axis)
        expected = f"lengths by the names of the axes, without that which grows: {{{named}}}"
        raise MetadataError(at, [ValidationProblem("shape", shape, expected)])
    if set(shape) != set(axes) - {axis} or len(set(axes)) != len(axes):
        expected = f"a length for each of the axes {[name for name in axes if name != axis]}"
        raise MetadataError(at, [ValidationProblem("shape", dict(shape), expected)])
    return tuple(0 if name == axis else int(shape[name]) for name in axes)


def _check_same(image: Image, lengths: Shape, axes: str, axis: str, dtype: np.dtype[Any]) -> None:
    """Raise if the image that is there is another one."""
    level, at = image.levels[0], axes.index(axis)
    shape = (*level.shape[:at], 0, *level.shape[at + 1 :])
    if image.axes != tuple(axes) or shape != lengths:
        raise GridError(
            f"{image.group.where} has the axes {image.axes} and the shape {level.shape}, expected "
            f"{tuple(axes)} and {lengths} with any number along {axis!r}. Choose another place."
        )
    if level.array.dtype != dtype:
        raise DataTypeError(
            f"{image.group.where} holds {level.array.dtype}, not {dtype}. Choose another place."
        )
