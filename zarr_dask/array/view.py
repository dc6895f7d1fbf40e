"""Selections of arrays: read at once, written, or kept as a `View` that reads on demand.

`read_selection` and `write_selection` handle every index beyond NumPy's basic indexing. `View` is
an array and a selection; ``oindex``, ``vindex`` and ``blocks`` are `IndexAccessor` objects. Knows
an array as `SelectedArray`: its reader, and how a stored object is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from operator import attrgetter
from threading import get_ident
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np

from zarr_dask._util.arguments import MadeBy
from zarr_dask._util.buffers import thread_buffer
from zarr_dask.array.common_names import no_attribute
from zarr_dask.array.reader import ObjectSlice, Reader
from zarr_dask.array.writer import OpenedArray, write_parts
from zarr_dask.errors import DataTypeError, SelectionError
from zarr_dask.grid.grid import Shape
from zarr_dask.indexing.basic import assignable, names_array, split_fields
from zarr_dask.indexing.plan import (
    ChunkSelection,
    SelectionPlan,
    WholeChunkSelection,
    output_index,
)
from zarr_dask.indexing.transform import (
    IndexTransform,
    parse_blocks,
    parse_numpy,
    parse_outer,
    parse_points,
)
from zarr_dask.stores.base import is_remote

if TYPE_CHECKING:
    import dask.array as da

__all__ = [
    "IndexAccessor",
    "SelectedArray",
    "View",
    "block_parser",
    "check_out",
    "memory_for",
    "out_of_memory_error",
    "read_selection",
    "write_selection",
]


class SelectedArray(OpenedArray, Protocol):
    """Interface that selecting needs of an array."""

    @property
    def reader(self) -> Reader:
        """Reader of the elements."""
        ...

    @property
    def shape(self) -> Shape:
        """Elements along each dimension."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """Data type of the elements in memory."""
        ...

    @property
    def token(self) -> str:
        """Token that identifies the array and its metadata."""
        ...

    def source(self, transform: IndexTransform | None, *, keep_indices: bool = False) -> Any:
        """Return a selection of the array as the tasks of a graph see it."""
        ...

    def cast(self, value: Any) -> np.ndarray:
        """Cast values to the array's data type."""
        ...


# --- memory ---------------------------------------------------------------------------------------


def memory_for(array: SelectedArray, shape: Shape) -> np.ndarray:
    """Return memory for elements of an array.

    Raises
    ------
    SelectionError
        If there is not enough memory.
    """
    try:
        return np.empty(shape, array.dtype)
    except (ValueError, MemoryError) as error:
        raise out_of_memory_error(array, shape, error) from error


def out_of_memory_error(array: SelectedArray, shape: Shape, error: Exception) -> SelectionError:
    """Return the error for a region that is too large for memory."""
    return SelectionError(
        f"{array.where}: the region has shape {shape} and {prod(shape)} elements, for which "
        f"there is no memory ({error}). Read parts of it, or make a dask array of it with "
        "from_zarr."
    )


def check_out(array: SelectedArray, out: np.ndarray, shape: Shape) -> None:
    """Raise if an output array given by a caller does not fit.

    Raises
    ------
    SelectionError
        If it has another shape.
    DataTypeError
        If it is not a NumPy array, has another data type, or is read-only.
    """
    if not isinstance(out, np.ndarray):
        raise DataTypeError(
            f"out must be a writeable array of {array.dtype}; got {type(out).__name__}."
        )
    if out.shape != shape:
        raise SelectionError(f"out has shape {out.shape}, the region has {shape}.")
    if out.dtype != array.dtype or not out.flags.writeable:
        raise DataTypeError(
            f"out must be a writeable array of {array.dtype}; got {out.dtype}"
            f"{'' if out.flags.writeable else ', read-only'}."
        )


# --- reading and writing at once ------------------------------------------------------------------


def read_selection(
    array: SelectedArray,
    transform: IndexTransform,
    out: np.ndarray | None = None,
    threads: int | None = None,
) -> np.ndarray:
    """Read a selection of an array.

    Parameters
    ----------
    array
        Array to read from.
    transform
        The selection.
    out
        Array to read into; it must have the selection's shape and the array's data type.
    threads
        1 for the calling thread only; by default one per core, or the calling one where chunks are
        so small that others would not help.
    """
    if out is not None:
        check_out(array, out, transform.shape)
    if not transform.size:
        return memory_for(array, transform.shape) if out is None else out
    gathering = SelectionPlan(transform)
    if out is not None and gathering.viewable:
        _gather(array, gathering, gathering.gathered(out), threads)
        return out
    gathered = memory_for(array, gathering.shape)
    _gather(array, gathering, gathered, threads)
    if out is None:
        return gathering.result(gathered)
    out[...] = gathering.result(gathered)
    return out


def _gather(
    array: SelectedArray, gathering: SelectionPlan, gathered: np.ndarray, threads: int | None
) -> None:
    region = gathering.region
    if region is not None:
        array.reader.read_region(region, gathered, threads)
        return
    if not is_remote(array.store) and gathering.lists_only and array.reader.takes_whole_chunks:
        _gather_whole_chunks(array, gathering, gathered, threads)
        return
    meta = array.meta
    most = _MOST_HELD if is_remote(array.store) else _MOST_HELD_NEAR
    memory = _BoxMemory(meta.dtype)
    pieces: list[ObjectSlice] = []
    boxes: list[tuple[ChunkSelection, np.ndarray]] = []

    def read() -> None:
        array.reader.read_pieces(pieces, threads)
        for taking, box in boxes:
            place = output_index(taking.out, gathered.shape)
            gathered[place] = gathering.picked(taking, box)

    for taking in gathering.chunk_selections(meta.grid, meta.chunk_shape, _SPARSE):
        another = pieces and taking.coords != pieces[-1].coords
        if memory.held >= (most if another else _MOST_HELD) or len(pieces) >= _MOST_PIECES:
            read()
            pieces, boxes = [], []
            memory.held = 0
        if taking.exact:
            destination = gathering.in_source_order(taking, gathered)
        else:
            destination = memory.take([len(range(s.start, s.stop, s.step)) for s in taking.box])
            boxes.append((taking, destination))
        pieces.append(ObjectSlice(taking.coords, taking.box, destination))
    read()


def _gather_whole_chunks(
    array: SelectedArray, gathering: SelectionPlan, gathered: np.ndarray, threads: int | None
) -> None:
    """Decode each chunk as a whole, and take its elements while it is in the processor's cache."""
    meta, shape = array.meta, array.meta.chunk_shape
    plain, nbytes = shape == meta.grid.cell_shape, prod(shape) * meta.dtype.itemsize
    most = max(1, _MOST_HELD // nbytes)

    def jobs() -> Iterator[list[WholeChunkSelection]]:
        chunks = gathering.whole_chunk_selections(meta.grid, shape)
        if plain:
            yield from ([chunk] for chunk in chunks)
            return
        for _, of_object in groupby(chunks, attrgetter("coords")):
            several = list(of_object)
            yield from (several[at : at + most] for at in range(0, len(several), most))

    kept: dict[int, np.ndarray] = {}  # of each thread, one chunk

    def memory_of(chunks: list[WholeChunkSelection]) -> list[ObjectSlice]:
        thread = get_ident()
        if len(chunks) > 1:
            boxes = _BoxMemory(meta.dtype).take((len(chunks), *shape))
        elif thread in kept:
            boxes = kept[thread]
        else:
            boxes = kept[thread] = _BoxMemory(meta.dtype).take((1, *shape))
        if plain:
            return [ObjectSlice(chunks[0].coords, None, boxes[0], whole=True)]
        return [
            ObjectSlice(
                chunk.coords,
                tuple([slice(a, a + n, 1) for a, n in zip(chunk.origin, shape, strict=True)]),
                box,
            )
            for chunk, box in zip(chunks, boxes, strict=True)
        ]

    def take(chunks: list[WholeChunkSelection], pieces: Sequence[ObjectSlice]) -> None:
        for chunk, piece in zip(chunks, pieces, strict=True):
            place = output_index(chunk.out, gathered.shape)
            gathered[place] = piece.out.reshape(-1)[chunk.numbers]

    array.reader.read_each(jobs, memory_of, take, threads)


class _BoxMemory:
    """Memory of boxes, which is used again for the next ones."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self._pooled = not dtype.hasobject and dtype.kind != "T"
        self.held = 0
        """Bytes that were taken."""

    def take(self, shape: Sequence[int]) -> np.ndarray:
        """Return memory for a box; all that was taken is free again if `held` is set to 0."""
        nbytes = prod(shape) * self._dtype.itemsize
        begin, self.held = self.held, self.held + -(-nbytes // _ALIGNED) * _ALIGNED
        if self.held > _MOST_HELD_NEAR or not self._pooled:
            return np.empty(shape, self._dtype)
        memory = thread_buffer("box", _MOST_HELD_NEAR)
        return memory[begin : begin + nbytes].view(self._dtype).reshape(shape)


_ALIGNED = 64
_MOST_HELD = 1 << 26
"""Maximum bytes of boxes to pick from at a time; the rest is read afterwards."""
_MOST_HELD_NEAR = 1 << 22
"""The same where requests take no time, at whole stored objects: about a processor's cache."""
_MOST_PIECES = 1 << 16
_SPARSE = 1 << 14
"""Elements of a box per point, above which copying costs more than reading points one by one."""


def write_selection(
    array: SelectedArray, transform: IndexTransform, value: Any, threads: int | None = None
) -> None:
    """Assign to a selection of an array, with NumPy's broadcasting and casting.

    If an element is selected more than once, the last value wins.

    Parameters
    ----------
    array
        Array to write to.
    transform
        The selection.
    value
        Values, broadcast to the selection's shape.
    threads
        1 for the calling thread only; by default one per core, or the calling one where chunks are
        so small that others would not help.
    """
    values = assignable(array.cast(value), transform.shape)
    if not transform.size:
        return
    gathering = SelectionPlan(transform)
    gathered = gathering.gathered(values)
    write_parts(array, lambda: gathering.assignments(array.meta.grid), gathered, threads)


# --- selecting in other ways than array[...] ------------------------------------------------------

Parser = Callable[[Any, Shape], IndexTransform]
"""Parses an index for a shape."""


@dataclass(frozen=True)
class IndexAccessor:
    """An array that is indexed in another way than ``array[...]``, and read at once.

    ``array.oindex``, ``array.vindex`` and ``array.blocks`` are of this type.
    """

    array: SelectedArray
    """The indexed array."""
    parse: Parser
    """Parser of the index."""

    def __repr__(self) -> str:
        return f"<zarr_dask.Selector, to be indexed, of {self.array!r}>"

    @names_array(attrgetter("array.where"))
    def __getitem__(self, key: Any) -> Any:
        """Return the selected elements, or fields of them; a scalar where NumPy returns one."""
        if self.array.dtype.names is not None:
            fields, rest = split_fields(key, self.array.dtype.names)
            if fields:
                return self[rest][fields]
        return read_selection(self.array, self.parse(key, self.array.shape))[()]

    @names_array(attrgetter("array.where"))
    def __setitem__(self, key: Any, value: Any) -> None:
        """Write the selected elements, with NumPy's broadcasting and casting."""
        write_selection(self.array, self.parse(key, self.array.shape), value)


@dataclass(frozen=True)
class LazySelector:
    """A view that is indexed in another way than ``view[...]``."""

    view: View
    """The indexed view."""
    parse: Parser
    """Parser of the index."""

    @names_array(attrgetter("view.array.where"))
    def __getitem__(self, key: Any) -> View:
        """Return the selection as a view, without reading it."""
        return self.view.selected(self.parse(key, self.view.shape))


def block_parser(array: SelectedArray) -> Parser:
    """Return the parser of ``blocks``: coordinates of the stored objects of an array."""
    grid = array.meta.grid
    return lambda key, _: parse_blocks(key, grid)


# --- views ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class View(MadeBy):
    """A selection of an array that is not read until elements are needed; made by ``array.lazy``.

    A view can be indexed and transposed repeatedly without reading; `read`, ``np.asarray`` and dask
    then fetch only the selected elements. It is read-only.

    Examples
    --------
    >>> import numpy as np
    >>> import zarr_dask as zd
    >>> a = zd.create_array({}, shape=(4, 6), dtype="i2", chunks=(2, 3))
    >>> a[...] = np.arange(24).reshape(4, 6)
    >>> view = a.lazy[::-1, [0, 5, 2]].T
    >>> view.shape, view[1].read()
    ((3, 4), array([23, 17, 11,  5], dtype=int16))
    >>> view.to_dask().chunks
    ((2, 1), (2, 2))
    """

    _made_by = "open_array(url).lazy[...] makes a view"

    array: SelectedArray
    """The array that is selected from."""
    transform: IndexTransform
    """The selection."""

    @property
    def shape(self) -> Shape:
        """Elements along each axis."""
        return self.transform.shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Data type of the elements in memory."""
        return self.array.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of all elements in memory; an estimate if elements have no fixed size."""
        return self.size * self.array.meta.data_type.typical_itemsize

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a view without axes has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[View]:
        return (self[position] for position in range(len(self)))

    def __repr__(self) -> str:
        return f"<zarr_dask.View shape={self.shape} dtype={self.dtype} of {self.array!r}>"

    def __dask_tokenize__(self) -> tuple[str, str, str]:
        return "zarr_dask.View", self.array.token, self.transform.token

    # --- selecting --------------------------------------------------------------------------------

    @names_array(attrgetter("array.where"))
    def __getitem__(self, key: Any) -> View:
        """Select from the view by NumPy's indexing, without reading it."""
        return self.selected(parse_numpy(key, self.shape))

    def selected(self, following: IndexTransform) -> View:
        """Return a selection of this view."""
        return View(self.array, self.transform.then(following))

    @property
    def oindex(self) -> LazySelector:
        """Selects with lists, each applied to its own axis."""
        return LazySelector(self, parse_outer)

    @property
    def vindex(self) -> LazySelector:
        """Selects points: lists are broadcast against each other, and their axes come first."""
        return LazySelector(self, parse_points)

    @property
    def blocks(self) -> LazySelector:
        """Selects whole stored objects by their coordinates; only for a view of the whole array."""
        if self.transform.maps != IndexTransform.identity(self.array.shape).maps:
            raise SelectionError(
                f"a view of shape {self.shape} that selects already has no blocks of its own: "
                "array.lazy.blocks selects blocks of the whole array."
            )
        return LazySelector(self, block_parser(self.array))

    @property
    def T(self) -> View:  # noqa: N802  (NumPy's name)
        """The view with its axes in reverse order."""
        return self.transpose()

    def transpose(self, *axes: Any) -> View:
        """Return the view with its axes in another order; reversed by default."""
        given = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes or None
        return View(self.array, self.transform.transposed(given))

    # --- reading ----------------------------------------------------------------------------------

    def read(self, out: np.ndarray | None = None, threads: int | None = None) -> np.ndarray:
        """Read the elements as a NumPy array.

        Parameters
        ----------
        out
            Array to read into; it must have the view's shape and the array's data type.
        threads
            1 for the calling thread only; by default one per core, or the calling one where chunks
            are so small that others would not help.

        Raises
        ------
        SelectionError
            If `out` has another shape, or there is no memory for the result.
        DataTypeError
            If `out` has another data type, or cannot be written to.
        CorruptObjectError
            If stored bytes do not decode; the error names key and coordinates.
        ChunkMissingError
            If a chunk is absent and the array was opened with ``missing="error"``.
        StoreError
            If the store fails.
        """
        return read_selection(self.array, self.transform, out, threads)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("an array in a store cannot be read without a copy")
        return np.asarray(self.read(), dtype=dtype)

    if not TYPE_CHECKING:  # a type checker knows which attributes there are

        def __getattr__(self, name: str) -> NoReturn:
            hint = " view.read() has the values in memory, view.to_dask() computes lazily."
            no_attribute("View", name, {}, dir(type(self)), hint)

    def to_dask(self, chunks: Any = None, name: str | None = None) -> da.Array:
        """Return the view as a lazy dask array, in one layer of constant size.

        Parameters
        ----------
        chunks
            Blocks. By default, and for ``"chunks"`` and ``"shards"``, each block is the selected
            part of a block of the array itself (`Array.to_dask`); in a remote store, the default
            merges small parts. ``"auto"`` and any other form
            that dask takes cut the view itself. Axes are given by position or by the name of their
            dimension. Along unordered lists all blocks have the same size.
        name
            Name in the graph. The default identifies the array, its metadata and the selection.
        """
        from zarr_dask.graph import (
            blocks_of_selection,
            read_ahead,
            read_array,
            read_per_block,
            splits_objects,
        )

        meta, transform = self.array.meta, self.transform
        itemsize = meta.data_type.typical_itemsize
        names = meta.dimension_names or ()
        merge = is_remote(self.array.store) and self.dtype.kind not in "OT"  # whose size is unknown
        blocks = blocks_of_selection(
            chunks, transform, meta.grid, meta.chunk_shape, itemsize, names, merge=merge
        )
        keep = splits_objects(chunks, meta.grid, meta.chunk_shape, itemsize)
        source = self.array.source(transform, keep_indices=keep)
        if transform.has_lists:
            return read_per_block(source, blocks, source.token, name)
        read = read_ahead if source.reads_ahead else read_array
        return read(source, blocks, source.token, name)
