"""Selections of arrays: read at once, written, or kept as a `View` that reads when it is asked.

`read_selection` and `write_selection` are what every index goes through that is more than NumPy's
basic indexing; `View` is an array and a selection, `Selector` is what ``oindex``, ``vindex`` and
``blocks`` are.

Knows an array as `SelectedArray`: what reads it, and how a stored object is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from zarr_dask.errors import DataTypeError, SelectionError
from zarr_dask.gather import Gathering, Taking, out_index
from zarr_dask.grid import Shape
from zarr_dask.indexing import assignable
from zarr_dask.pool import for_each
from zarr_dask.reading import Piece, Reader
from zarr_dask.selection import (
    IndexTransform,
    parse_blocks,
    parse_numpy,
    parse_outer,
    parse_points,
)
from zarr_dask.writing import WrittenArray, write_part

if TYPE_CHECKING:
    import dask.array as da

__all__ = [
    "SelectedArray",
    "Selector",
    "View",
    "block_parser",
    "check_memory",
    "memory_for",
    "no_memory",
    "read_selection",
    "write_selection",
]


class SelectedArray(WrittenArray, Protocol):
    """What selecting needs to know of an array."""

    @property
    def reader(self) -> Reader:
        """What fetches elements."""
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
        """Tells the array from others, and from itself with other metadata."""
        ...

    def source(self, transform: IndexTransform | None, *, keep_indices: bool = False) -> Any:
        """A selection of the array as the tasks of a graph see it."""
        ...

    def cast(self, value: Any) -> np.ndarray:
        """Values in the array's data type."""
        ...

    def confirmation(self) -> Callable[[], None]:
        """What a call that misses something calls, to see that the array is still there."""
        ...

    def check_no_output(self) -> None:
        """Refuse an array that the ranks of a simulation write."""
        ...


# --- memory ---------------------------------------------------------------------------------------


def memory_for(array: SelectedArray, shape: Shape) -> np.ndarray:
    """Memory for elements of an array.

    Raises
    ------
    SelectionError
        If there is not so much.
    """
    try:
        return np.empty(shape, array.dtype)
    except (ValueError, MemoryError) as error:
        raise no_memory(array, shape, error) from error


def no_memory(array: SelectedArray, shape: Shape, error: Exception) -> SelectionError:
    """The error for a region that NumPy has no memory for."""
    return SelectionError(
        f"{array.where}: the region has shape {shape} and {prod(shape)} elements, for which "
        f"there is no memory ({error}). Read parts of it, or make a dask array of it with "
        "from_zarr."
    )


def check_memory(array: SelectedArray, out: np.ndarray, shape: Shape) -> None:
    """Refuse memory that a caller gives for elements of an array, if they do not fit in.

    Raises
    ------
    SelectionError
        If it has another shape.
    DataTypeError
        If it is no NumPy array, has another data type, or cannot be written to.
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
    """What a selection takes of an array.

    Parameters
    ----------
    array
        Where it is.
    transform
        The selection.
    out
        Where to put it; of the selection's shape and the array's data type.
    threads
        1 for the calling thread only; by default the threads of this process, one per core.
    """
    if out is not None:
        check_memory(array, out, transform.shape)
    if not transform.size:
        return memory_for(array, transform.shape) if out is None else out
    gathering = Gathering(transform)
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
    array: SelectedArray, gathering: Gathering, gathered: np.ndarray, threads: int | None
) -> None:
    region = gathering.region
    if region is not None:
        array.reader.read_region(region, gathered, threads)
        return
    meta = array.meta
    pieces: list[Piece] = []
    boxes: list[tuple[Taking, np.ndarray]] = []
    held = 0

    def read() -> None:
        array.reader.read_pieces(pieces, threads)
        for taking, box in boxes:
            place = out_index(taking.out, gathered.shape)
            gathered[place] = gathering.picked(taking, box)

    for taking in gathering.takings(meta.grid, meta.chunk_shape, _SPARSE):
        if taking.exact:
            destination = gathering.in_source_order(taking, gathered)
        else:
            destination = np.empty(
                [len(range(s.start, s.stop, s.step)) for s in taking.box], meta.dtype
            )
            boxes.append((taking, destination))
            held += destination.nbytes
        pieces.append(Piece(taking.coords, taking.box, destination))
        if held > _MOST_HELD or len(pieces) >= _MOST_PIECES:
            read()
            pieces, boxes, held = [], [], 0
    read()


_MOST_HELD = 1 << 26
"""Bytes of boxes that wait to be picked from; what is read beyond them is read afterwards."""
_MOST_PIECES = 1 << 16
_SPARSE = 1 << 14
"""Elements of a box for each point in it, of which copying costs more than a piece of its own."""


def write_selection(
    array: SelectedArray, transform: IndexTransform, value: Any, threads: int | None = None
) -> None:
    """Assign to what a selection takes of an array, with NumPy's broadcasting and casting.

    Of elements that are selected more than once, the last value stays.

    Parameters
    ----------
    array
        Where to write.
    transform
        The selection.
    value
        Broadcast to the selection's shape.
    threads
        1 for the calling thread only; by default the threads of this process, one per core.
    """
    values = assignable(array.cast(value), transform.shape)
    if not transform.size:
        return
    array.check_no_output()
    gathering = Gathering(transform)
    gathered = gathering.gathered(values)
    parts = gathering.assignments(array.meta.grid)
    confirm = array.confirmation()
    for_each(lambda part: write_part(array, part, gathered, confirm=confirm), parts, threads)


# --- selecting in other ways than array[...] ------------------------------------------------------

Parser = Callable[[Any, Shape], IndexTransform]
"""Makes a selection of an index and a shape."""


@dataclass(frozen=True)
class Selector:
    """An array that is indexed in another way than ``array[...]``, at once.

    What ``array.oindex``, ``array.vindex`` and ``array.blocks`` are.
    """

    array: SelectedArray
    """What is indexed."""
    parse: Parser
    """In which way."""

    def __getitem__(self, key: Any) -> Any:
        """What is selected; a scalar where NumPy gives one."""
        return read_selection(self.array, self.parse(key, self.array.shape))[()]

    def __setitem__(self, key: Any, value: Any) -> None:
        """Write what is selected, with NumPy's broadcasting and casting."""
        write_selection(self.array, self.parse(key, self.array.shape), value)


@dataclass(frozen=True)
class LazySelector:
    """A view that is indexed in another way than ``view[...]``."""

    view: View
    """What is indexed."""
    parse: Parser
    """In which way."""

    def __getitem__(self, key: Any) -> View:
        """What is selected, without reading it."""
        return self.view.selected(self.parse(key, self.view.shape))


def block_parser(array: SelectedArray) -> Parser:
    """How ``blocks`` understands an index: coordinates of the stored objects of an array."""
    grid = array.meta.grid
    return lambda key, _: parse_blocks(key, grid)


# --- views ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class View:
    """A selection of an array that reads nothing until it is asked to; made by ``array.lazy``.

    A view is indexed again and again, and transposed, without reading; `read`, ``np.asarray`` and
    dask then fetch only what is left. It can be read only.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> a = zd.create_array({}, shape=(4, 6), dtype="i2", chunks=(2, 3))
    >>> a[...] = np.arange(24).reshape(4, 6)
    >>> view = a.lazy[::-1, [0, 5, 2]].T
    >>> view.shape, view[1].read()
    ((3, 4), array([23, 17, 11,  5], dtype=int16))
    >>> view.to_dask().chunks
    ((2, 1), (2, 2))
    """

    array: SelectedArray
    """What is selected from."""
    transform: IndexTransform
    """What is selected."""

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
        """Bytes of all elements in memory; a guess where they have no fixed size."""
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

    def __getitem__(self, key: Any) -> View:
        """What NumPy's indexing selects of the view, without reading it."""
        return self.selected(parse_numpy(key, self.shape))

    def selected(self, following: IndexTransform) -> View:
        """A selection of this view."""
        return View(self.array, self.transform.then(following))

    @property
    def oindex(self) -> LazySelector:
        """Selects with lists of which each is taken along its own axis."""
        return LazySelector(self, parse_outer)

    @property
    def vindex(self) -> LazySelector:
        """Selects points: lists are broadcast against each other, their axes stand first."""
        return LazySelector(self, parse_points)

    @property
    def blocks(self) -> LazySelector:
        """Selects whole stored objects by their coordinates; of a view of the whole array only."""
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
        """The view with its axes in another order; in reverse order by default."""
        given = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes or None
        return View(self.array, self.transform.transposed(given))

    # --- reading ----------------------------------------------------------------------------------

    def read(self, out: np.ndarray | None = None, threads: int | None = None) -> np.ndarray:
        """The elements as a NumPy array.

        Parameters
        ----------
        out
            Where to put them; of the view's shape and the array's data type.
        threads
            1 for the calling thread only; by default the threads of this process, one per core.

        Raises
        ------
        SelectionError
            If `out` has another shape, or there is no memory for the result.
        DataTypeError
            If `out` has another data type, or cannot be written to.
        CorruptObjectError
            If stored bytes do not decode; it names key and coordinates.
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

    def to_dask(self, chunks: Any = None, name: str | None = None) -> da.Array:
        """The view as a lazy dask array, in one layer of constant size.

        Parameters
        ----------
        chunks
            Blocks: by default what is selected of each block that the array itself would have
            (`Array.to_dask`), and so for ``"chunks"`` and ``"shards"``; ``"auto"`` and any other
            form that dask takes say how to cut the view. Axes by position or by the name of the
            dimension they come from. Along lists in no order the blocks have one size.
        name
            Name in the graph; by default it tells the array, its metadata and the selection.
        """
        from zarr_dask.graph import (
            blocks_of_selection,
            cuts_objects,
            read_ahead,
            read_array,
            read_shares,
        )

        meta, transform = self.array.meta, self.transform
        itemsize = meta.data_type.typical_itemsize
        names = meta.dimension_names or ()
        blocks = blocks_of_selection(
            chunks, transform, meta.grid, meta.chunk_shape, itemsize, names
        )
        keep = cuts_objects(chunks, meta.grid, meta.chunk_shape, itemsize)
        source = self.array.source(transform, keep_indices=keep)
        if transform.has_lists:
            return read_shares(source, blocks, source.token, name)
        read = read_ahead if source.reads_ahead else read_array
        return read(source, blocks, source.token, name)
