"""An array: a store, a path and the array's metadata.

Reading goes through `zarr_dask.array.reader`, writing through `zarr_dask.array.writer`, one stored
object at a time. A handle follows its array: changes of the metadata that this process makes, by
this handle or another, are seen by all of them (`zarr_dask.formats.handles`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from zarr_dask._util.arguments import check_bools, check_choice, check_unmasked
from zarr_dask._util.keywords import takes_habits
from zarr_dask._util.lazy_names import hides
from zarr_dask.array.attributes import Attributes, fixed
from zarr_dask.array.common_names import ArrayNames, assigns_attrs
from zarr_dask.array.reader import Reader
from zarr_dask.array.revalidate import Confirmation, Shown, Standing, continues
from zarr_dask.dtypes import bits_of
from zarr_dask.dtypes.base import Casting
from zarr_dask.errors import AppendConflictError, DataTypeError, MetadataError, SelectionError
from zarr_dask.formats.base import ArrayMeta, Format, ReadOptions, check_listed, where
from zarr_dask.formats.parse_cache import pack, unpack
from zarr_dask.grid.grid import Edges, Fixed, Grid, Region, Shape
from zarr_dask.indexing.basic import (
    checked_region,
    has_lists,
    names_array,
    parse_basic,
    parse_plain,
    split_fields,
)
from zarr_dask.stores.base import Store, is_remote, list_sizes
from zarr_dask.stores.wrappers.metered import unmetered

if TYPE_CHECKING:
    import dask.array as da

    from zarr_dask.array.append_batch import AppendBatch
    from zarr_dask.array.source import ArraySource
    from zarr_dask.array.view import IndexAccessor, View
    from zarr_dask.codecs.base import Codec
    from zarr_dask.indexing.transform import IndexTransform
    from zarr_dask.journal import OnConflict

__all__ = ["Array", "object_sizes"]


@hides(
    "as_long_as_it_is",
    "cast",
    "check_no_output",
    "confirmation",
    "facts",
    "follow",
    "put_shape",
    "reader",
    "reading_from",
    "shown",
    "source",
    "stored_keys",
    "takes_small_puts",
    "token",
    "user_attributes",
    "where",
)
@assigns_attrs
@dataclass(frozen=True, eq=False)
class Array(ArrayNames):
    """An array in a store; made by `zarr_dask.open_array` and `zarr_dask.create_array`.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> a = zd.create_array({}, shape=(4, 6), dtype="int16", chunks=(2, 3))
    >>> a[1:3, ::2] = [[1, 2, 3], [4, 5, 6]]
    >>> a[2]
    array([4, 0, 5, 0, 6, 0], dtype=int16)
    """

    store: Store
    """Store that holds the array."""
    path: str
    """Path below the root of the store; empty for the root."""
    meta: ArrayMeta
    """Parsed metadata of the array."""
    node_format: Format
    """Format in which the metadata are written."""
    options: ReadOptions = field(default_factory=ReadOptions)
    """Options of reading."""
    shown: Shown | None = None
    """Location of the document it was opened with; None if there is none yet, or none so long."""

    # --- what it is -------------------------------------------------------------------------------

    @property
    def shape(self) -> Shape:
        """Elements along each dimension."""
        return self.meta.shape

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Data type of the elements in memory."""
        return self.meta.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of all elements in memory; an estimate if elements have no fixed size."""
        return self.size * self.meta.data_type.typical_itemsize

    @property
    def chunks(self) -> Shape:
        """Shape of a chunk, the unit of decoding; if chunks differ, the largest lengths.

        The sizes of all chunks are those of the blocks of `to_dask`.
        """
        return self.meta.chunk_shape

    @property
    def shards(self) -> Shape | None:
        """Shape of a stored object that holds several chunks; None if the array is not sharded."""
        return self.write_chunks if self.meta.codecs.serializer.is_sharding else None

    @property
    def write_chunks(self) -> Shape:
        """Shape of a stored object, the unit of writing: a shard, or a chunk without shards.

        If stored objects differ in shape, the largest along each dimension.
        """
        return self.meta.grid.largest_cell

    @property
    def fill_value(self) -> Any:
        """Value of elements that were never written; None if it is undefined."""
        return None if self.meta.fill_value is None else self.meta.fill_value[()]

    @property
    def attrs(self) -> Attributes:
        """The user's attributes, as a mapping that writes: ``array.attrs["units"] = "m"``."""
        return Attributes(self)

    @attrs.setter
    def attrs(self, attributes: Mapping[str, Any]) -> None:
        self.attrs.put(attributes)

    @property
    def attributes(self) -> dict[str, Any]:
        """The user's attributes, as a copy that raises on assignment; `attrs` changes them."""
        found: dict[str, Any] = fixed(self.meta.attributes)
        return found

    @property
    def user_attributes(self) -> dict[str, Any]:
        """The attributes without the one that holds the names of dimensions, if there is one.

        Formats v1 and v2 can only store these names in the attribute ``_ARRAY_DIMENSIONS``
        (xarray's convention); `attributes` includes it as stored.
        """
        hidden = None if self.dimension_names is None else self.node_format.names_attribute
        return {name: value for name, value in self.meta.attributes.items() if name != hidden}

    @property
    def dimension_names(self) -> tuple[str | None, ...] | None:
        """Names of the dimensions, if they have any."""
        return self.meta.dimension_names

    @property
    def codecs(self) -> tuple[Codec, ...]:
        """Codecs of a stored object, in the order of encoding."""
        return self.meta.codecs.codecs

    @property
    def format(self) -> str:
        """Name of the format, such as ``"v3"``."""
        return self.node_format.name

    @property
    def where(self) -> str:
        """Store and path, for messages."""
        return where(self.store, self.path)

    def key(self, coords: Sequence[int]) -> str:
        """Return the key of the stored object at the given coordinates."""
        return self.node_format.data_prefix(self.path) + self.meta.chunk_key_encoding.key(coords)

    def nbytes_stored(self) -> int:
        """Return the size in bytes of all stored objects, found by one listing."""
        return sum(object_sizes(self))

    def stored_keys(self) -> Iterator[str]:
        """Yield the keys of all stored objects, found by one listing."""
        prefix = self.node_format.data_prefix(self.path)
        for key in self.store.list(prefix):
            if self.meta.coords(key[len(prefix) :]) is not None:
                yield key

    def __iter__(self) -> Iterator[Any]:
        if not self.shape:
            raise TypeError("iteration over a 0-d array")
        return (self[position] for position in range(self.shape[0]))

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a 0-d array has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        stored = self.meta.grid.words
        grids = f"chunks={self.chunks} shards={stored}" if self.shards else f"chunks={stored}"
        return (
            f"<zarr_dask.Array {self.where} {self.format} shape={self.shape} "
            f"dtype={self.meta.data_type.label} {grids}>"
        )

    def _repr_html_(self) -> str:
        from zarr_dask._util.display import html_table

        return html_table(f"zarr_dask.Array {self.where}", self.facts())

    def facts(self) -> dict[str, object]:
        """Return facts for display, by name."""
        from zarr_dask._util.display import format_shape

        return {
            "format": self.format,
            "shape": format_shape(self.shape, self.dimension_names),
            "data type": self.meta.data_type.label,
            "chunks": self.chunks if self.shards else self.meta.grid.words,
            "shards": self.meta.grid.words if self.shards else "none",
            "codecs": ", ".join(codec.name for codec in self.codecs),
            "attributes": ", ".join(self.attributes) or "none",
        }

    # --- reading ----------------------------------------------------------------------------------

    @names_array(attrgetter("where"))
    def __getitem__(self, key: Any) -> Any:
        """Return elements by NumPy's indexing; a scalar where NumPy returns one.

        Of structured elements an index may name a field, or several, beside the position.
        """
        shape = self.meta.grid.shape
        plain = parse_plain(key, shape)
        if plain is not None:
            return self._read(*plain, None)
        if self.dtype.names is not None:
            fields, rest = split_fields(key, self.dtype.names)
            if fields:
                return self[rest][fields]
        if has_lists(key):
            from zarr_dask.array.view import read_selection
            from zarr_dask.indexing.transform import parse_numpy

            return read_selection(self, parse_numpy(key, shape))[()]
        selection = parse_basic(key, shape)
        values = self._read(selection.region, selection.region_shape, None)
        # without dimensions NumPy gives a scalar, by indexing
        return values if selection.plain and shape else values[selection.finish]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("an array in a store cannot be read without a copy")
        return np.asarray(self.read(), dtype=dtype)

    @takes_habits()
    @names_array(attrgetter("where"))
    def read(
        self, region: Any = None, out: np.ndarray | None = None, threads: int | None = None
    ) -> np.ndarray:
        """Read a region as a NumPy array.

        Parameters
        ----------
        region
            A tuple of slices with positive steps; the whole array by default.
        out
            Array to read into; it must have the region's shape and the array's data type.
        threads
            1 for the calling thread only; by default one per core, or the calling one where chunks
            are so small that others would not help.

        Raises
        ------
        SelectionError
            If the region is not valid.
        DataTypeError
            If `out` has another data type, or cannot be written to.
        CorruptObjectError
            If stored bytes do not decode; the error names key and coordinates.
        ChunkMissingError
            If a chunk is absent and the array was opened with ``missing="error"``.
        StoreError
            If the store fails.
        """
        from zarr_dask.array.view import check_out

        checked = checked_region(region, self.shape)
        shape = tuple([-(-(s.stop - s.start) // s.step) for s in checked])
        if out is None:
            return self._read(checked, shape, threads)
        check_out(self, out, shape)
        self.reader.read_region(checked, out, threads)
        return out

    def _read(self, region: Region, shape: Shape, threads: int | None) -> np.ndarray:
        """Read a region of the given shape into new memory."""
        reader = self.reader
        try:
            out = reader.allocate(region, shape)
        except (ValueError, MemoryError) as error:
            from zarr_dask.array.view import out_of_memory_error

            raise out_of_memory_error(self, shape, error) from error
        reader.read_into_fresh(region, out, threads)
        return out

    @cached_property
    def reader(self) -> Reader:
        """Reader of the elements (`zarr_dask.array.reader`)."""
        prefix = self.node_format.data_prefix(self.path)
        verify, place = self.options.verify, (self.store, self.path, prefix)
        consistent, check, versions = self.options.consistent, None, None
        if verify:
            from zarr_dask.array.verification import ObjectCheck

            check = ObjectCheck.of(*place, verify, self.meta.grid.ncells)
        if isinstance(consistent, str):
            from zarr_dask.array.object_versions import ObjectVersions

            versions = ObjectVersions.of(*place, self.meta, consistent)
        return Reader(
            *place,
            self.meta,
            self.options,
            standing=self._standing,
            check=check,
            versions=versions,
        )

    @cached_property
    def takes_small_puts(self) -> bool:
        """True if a call writes stored objects one by one; see `zarr_dask.array.writer`."""
        from zarr_dask.array.writer import takes_small_puts

        return takes_small_puts(self)

    @property
    def _standing(self) -> Standing | None:
        if self.shown is None:
            return None
        place = (unmetered(self.store), self.path, self.node_format)
        return Standing(*place, self.meta, self.options, self.shown)

    def __getstate__(self) -> dict[str, Any]:
        unkept = {"reader", "takes_small_puts", "_looked_up", "_batch"}
        return {name: value for name, value in self.__dict__.items() if name not in unkept}

    @takes_habits()
    def to_dask(self, chunks: Any = None, name: str | None = None) -> da.Array:
        """Return the array as a lazy dask array.

        Parameters
        ----------
        chunks
            Blocks. None: one block per stored object, or whole chunks of it if the object is larger
            than dask's ``array.chunk-size``. In a remote store, blocks merge small objects up to
            16 MiB, as long as there are 16 of them: a task requests all objects of its block at
            once. ``"auto"``: whole stored objects merged up to dask's size. ``"chunks"`` or
            ``"shards"``: one block for each of these. Or any form that dask takes. A mapping gives
            any of these by position or name of a dimension: ``{"time": "auto", "x": -1}`` keeps
            stored objects along the other dimensions.
        name
            Name in the graph. The default identifies the array and its metadata, attributes
            included, and is the same in every process.

        Raises
        ------
        GridError
            If `chunks` does not give blocks of the array.
        DaskBackendError
            If dask's array-expr backend is turned on.
        """
        from zarr_dask.graph import normalize_blocks, read_ahead, read_array, splits_objects

        meta = self.meta
        names = meta.dimension_names or ()
        itemsize = meta.data_type.typical_itemsize
        merge = is_remote(self.store) and self.dtype.kind not in "OT"  # whose size is unknown
        blocks = normalize_blocks(chunks, meta.grid, meta.chunk_shape, itemsize, names, merge=merge)
        keep = splits_objects(chunks, meta.grid, meta.chunk_shape, itemsize)
        source = self.source(None, keep_indices=keep)
        read = read_ahead if source.reads_ahead else read_array
        return read(source, blocks, self.token, name)

    def reading_from(self, store: Store) -> Array:
        """Return the same array, read from another store."""
        return replace(self, store=store)

    def source(
        self, transform: IndexTransform | None, *, keep_indices: bool = False
    ) -> ArraySource:
        """Return the array, or a selection of it, as the tasks of a graph see it.

        Parameters
        ----------
        transform
            The selection; None for the whole array.
        keep_indices
            True to cache the indices of shards in each process, as `ReadOptions.index_cache` does.
            This has no effect on remote stores: revalidating an index there takes as long as
            fetching it.
        """
        from zarr_dask.array.source import ArraySource

        options, token = self.options, self.token
        if keep_indices and not options.index_cache and not is_remote(self.store):
            options = replace(options, index_cache=_KEPT_INDICES)
        if transform is not None:
            token = f"{token}-{transform.token}"
        bare = replace(self.meta, attributes={}, dimension_names=None, extra={})
        return ArraySource(replace(self, meta=bare, options=options), token, transform)

    @cached_property
    def token(self) -> str:
        """Token that identifies the array and its metadata."""
        from hashlib import sha256  # which loads OpenSSL

        meta = self.meta
        facts = (self.store.identity, self.path, self.format, self.options, meta.grid)
        more = (meta.data_type, bits_of(meta.fill_value), meta.codecs, meta.chunk_key_encoding)
        rest = (meta.attributes, meta.dimension_names)
        return sha256(repr((facts, more, rest)).encode()).hexdigest()[:32]

    def __dask_tokenize__(self) -> tuple[str, str]:
        return "zarr_dask.Array", self.token

    @cached_property
    def _packed(self) -> bytes:
        return pack((self.meta, self.node_format, self.options))

    def __reduce__(self) -> tuple[Any, ...]:
        shown_by = () if self.shown is None else (self.shown.by,)
        return _unpacked, (self.store, self.path, self._packed, *shown_by)

    # --- selecting in other ways ------------------------------------------------------------------

    @property
    def lazy(self) -> View:
        """The array as a view; selecting from it reads nothing until elements are needed.

        Examples
        --------
        >>> import zarr_dask as zd
        >>> a = zd.create_array({}, shape=(4, 6), dtype="i2", chunks=(2, 3))
        >>> a.lazy[1:, None].T.shape
        (6, 1, 3)
        """
        from zarr_dask.array.view import View
        from zarr_dask.indexing.transform import IndexTransform

        return View(self._as_it_is(), IndexTransform.identity(self.shape))

    @property
    def oindex(self) -> IndexAccessor:
        """Selects with lists or masks, each applied to its own dimension.

        Examples
        --------
        >>> import zarr_dask as zd
        >>> a = zd.create_array({}, shape=(4, 6), dtype="i2", chunks=(2, 3))
        >>> a.oindex[[3, 0], [1, 2, 5]] = 7
        >>> a.oindex[[0, 1, 3], 2:]
        array([[7, 0, 0, 7],
               [0, 0, 0, 0],
               [7, 0, 0, 7]], dtype=int16)
        """
        from zarr_dask.array.view import IndexAccessor
        from zarr_dask.indexing.transform import parse_outer

        return IndexAccessor(self, parse_outer)

    @property
    def vindex(self) -> IndexAccessor:
        """Selects points: lists are broadcast against each other, and their axes come first.

        A mask of the array's shape selects the elements where it is true.

        Examples
        --------
        >>> import zarr_dask as zd
        >>> a = zd.create_array({}, shape=(4, 6), dtype="i2", chunks=(2, 3))
        >>> a.vindex[[0, 3], [1, 5]] = [8, 9]
        >>> a.vindex[[3, 1, 0], [5, 5, 1]]
        array([9, 0, 8], dtype=int16)
        """
        from zarr_dask.array.view import IndexAccessor
        from zarr_dask.indexing.transform import parse_points

        return IndexAccessor(self, parse_points)

    @property
    def blocks(self) -> IndexAccessor:
        """Selects whole stored objects (shards, or chunks if there are none) by coordinates.

        Takes integers and slices without a step for the first dimensions; no dimension is dropped.

        Examples
        --------
        >>> import zarr_dask as zd
        >>> a = zd.create_array({}, shape=(4, 6), dtype="i2", chunks=(2, 3))
        >>> a.blocks[1, 0] = 5
        >>> a.blocks[1].tolist()
        [[5, 5, 5, 0, 0, 0], [5, 5, 5, 0, 0, 0]]
        """
        from zarr_dask.array.view import IndexAccessor, block_parser

        return IndexAccessor(self, block_parser(self))

    # --- writing ----------------------------------------------------------------------------------

    @names_array(attrgetter("where"))
    def __setitem__(self, key: Any, value: Any) -> None:
        """Write elements by NumPy's indexing, with NumPy's broadcasting and casting."""
        if self.dtype.names is not None and (fields := split_fields(key, self.dtype.names)[0]):
            raise SelectionError(
                f"{self.where}: elements are written whole, not by the field {fields!r}. "
                "Read them (values = array[...]), change the field (values[name] = ...), and write "
                "them back (array[...] = values)."
            )
        if has_lists(key):
            from zarr_dask.array.view import write_selection
            from zarr_dask.indexing.transform import parse_numpy

            write_selection(self, parse_numpy(key, self.shape), value)
            return
        selection = parse_basic(key, self.shape)
        values = selection.spread(self.cast(value))
        self._write(selection.region, values, None)

    @takes_habits()
    @names_array(attrgetter("where"))
    def write(self, region: Any, values: np.ndarray, threads: int | None = None) -> None:
        """Write a region.

        A stored object that the region covers only partly is read, changed and written; no other
        writer may write to it meanwhile.

        Parameters
        ----------
        region
            A tuple of slices with positive steps.
        values
            Values of the region's shape.
        threads
            1 for the calling thread only; by default one per core, or the calling one where chunks
            are so small that others would not help.
        """
        checked = checked_region(region, self.shape)
        shape = tuple(len(range(s.start, s.stop, s.step)) for s in checked)
        values = self.cast(values)
        if values.shape != shape:
            raise SelectionError(f"values have shape {values.shape}, the region has {shape}.")
        self._write(checked, values, threads)

    def cast(self, value: Any) -> np.ndarray:
        """Cast values to the array's data type, as NumPy does on assignment.

        Arrays are cast; Python numbers must fit. Elements of arrays of texts or byte strings must
        be texts or byte strings.

        Raises
        ------
        DataTypeError
            If the data type cannot hold them, or elements are masked.
        """
        check_unmasked(value, self.where)
        try:
            return self.meta.data_type.cast(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise DataTypeError(
                f"{self.where} holds {self.meta.data_type.label}, which cannot hold the given "
                f"{type(value).__name__} ({error})."
            ) from error

    def _checked_cast(self, values: Any, casting: Casting) -> np.ndarray:
        """Cast values to the array's data type, without what changes them unasked.

        Raises
        ------
        DataTypeError
            If the data type cannot hold them.
        """
        data_type = self.meta.data_type
        try:
            with np.errstate(over="warn" if casting == "unsafe" else "raise"):
                result = self.cast(values)
        except FloatingPointError as error:
            raise DataTypeError(
                f"{self.where} holds {data_type.label}, which cannot hold the given values: some "
                "would become infinite. Pass casting='unsafe' if that is meant."
            ) from error
        given = np.asarray(values)
        if casting == "unsafe" or data_type.accepts(given.dtype, casting):
            return result
        kinds = given.dtype.kind + result.dtype.kind
        rounds = not hasattr(values, "dtype") and kinds in {"ff", "fc", "cc", "fV"}
        if rounds or (casting == "safe" and _are_kept(given, result)):
            return result
        raise DataTypeError(
            f"{self.where} holds {data_type.label}, which cannot hold the given values of "
            f"{given.dtype} as they are; convert with values.astype({str(self.dtype)!r}) if "
            "that is meant, or pass casting='same_kind' or 'unsafe'."
        )

    def _write(self, region: Region, values: np.ndarray, threads: int | None) -> None:
        from zarr_dask.array.writer import write_parts

        write_parts(self, lambda: self.meta.grid.parts(region), values, threads)

    def confirmation(self) -> Confirmation:
        """Return the check of a call or task that misses something: the array must still be there.

        It raises `NodeNotFoundError` or `MetadataChangedError`, and looks only once.
        """
        return Confirmation(self._standing)

    def check_no_output(self) -> None:
        """Raise if the ranks of a simulation write to the array; looked up once.

        Raises
        ------
        RankError
            If it belongs to a simulation output that is still open.
        """
        _ = self._looked_up

    @cached_property
    def _looked_up(self) -> bool:
        from zarr_dask.journal import check_no_output

        check_no_output(self.store, self.path, often=True)
        return True

    # --- changes of metadata ----------------------------------------------------------------------

    @takes_habits(new_attributes="attributes")
    def update_attributes(self, attributes: Mapping[str, Any]) -> Array:
        """Add or replace attributes in the store; as ``attrs.update``. Returns the array itself.

        Raises
        ------
        MetadataError
            If an attribute cannot be expressed in JSON.
        MetadataChangedError
            If the array in the store differs by now in more than its attributes and length.
        ReadOnlyError
            If the array was opened for reading.
        """
        from zarr_dask.formats.concurrent_edit import with_attributes

        meta = with_attributes(
            self.store,
            self.path,
            self.node_format,
            self.meta,
            attributes,
            self.options,
            lambda now: continues(self.meta, now) or continues(now, self.meta),
        )
        self.follow(meta)
        return self

    def follow(self, meta: ArrayMeta) -> None:
        """Take the length, attributes and names of dimensions from metadata that were changed.

        Metadata of another array, which has taken the place of this one, are not taken.
        """
        mine = self.meta
        if _has_followed(mine, meta) or not _is_same_array(mine, meta):
            return
        changed = mine.with_shape(meta.grid, meta.attributes, meta.dimension_names)
        kept = {name: value for name, value in self.__dict__.items() if name not in _DERIVED}
        self.__dict__.clear()
        self.__dict__.update(kept, meta=changed)

    def _as_it_is(self) -> Array:
        """Return the array as it is now, which follows no changes."""
        same = object.__new__(Array)
        same.__dict__.update(self.__dict__)
        return same

    @takes_habits(size="shape")
    def resize(self, shape: Any, prune: bool = False) -> Array:
        """Resize the array in the store. Returns the array itself, which has the new shape.

        Only the metadata change; stored objects are kept. Elements outside the new shape reappear
        when the array grows back, unless they are pruned, and so do those of appends that failed.
        No other job may write to the array meanwhile.

        Parameters
        ----------
        shape
            Elements along each dimension; a mapping changes some, as ``{"time": 100}``.
        prune
            Clear everything outside the old and the new shape: delete the objects that lie
            completely outside, and set the outside part of objects that cross the border to the
            fill value. Elements that the array gains by growing then read as the fill value. Takes
            a listing of all stored objects.

        Raises
        ------
        AppendConflictError
            If an append to the array is under way.
        GridError
            If `shape` is not a shape, or has another number of dimensions.
        MetadataChangedError
            If the array in the store differs by now in more than its attributes.
        RankError
            If it belongs to a simulation output that is still open (`zarr_dask.Writer`).
        ReadOnlyError
            If the array was opened for reading.
        UnknownCodecError
            If objects to be pruned cannot be encoded.

        Examples
        --------
        >>> import zarr_dask as zd
        >>> a = zd.create_array({}, shape=(3,), dtype="i2", chunks=2, fill_value=-1)
        >>> a[...] = [1, 2, 3]
        >>> a.resize(1).resize(4)[...]
        array([ 1,  2,  3, -1], dtype=int16)
        >>> a = zd.open_array(a.store, mode="r+")
        >>> a.resize(1, prune=True).resize(4)[...]
        array([ 1, -1, -1, -1], dtype=int16)
        """
        from zarr_dask.array.resize import checked_extents
        from zarr_dask.journal import check_no_output, claimed

        if type(prune) is int:
            raise TypeError(
                f"prune={prune}: expected True or False; the shape is one tuple: resize((30, 20))."
            )
        check_bools(prune=prune)
        new_shape = checked_extents(self._lengths(shape), self.ndim)
        check_no_output(self.store, self.path)
        with claimed(self.store, self.path):
            self.follow(self._as_it_is().put_shape(new_shape, prune=prune))
        return self

    def _lengths(self, shape: Any) -> Any:
        """Return lengths by position, from those of some dimensions by name or position."""
        from zarr_dask.array.cells import items_by_axis

        if not isinstance(shape, Mapping):
            return shape
        names = self.dimension_names or (None,) * self.ndim
        return items_by_axis(shape, names, self.shape, "shape", self.where)

    def put_shape(self, new_shape: Shape, *, prune: bool) -> ArrayMeta:
        """Resize the array in the store, which this process has claimed; return its metadata."""
        from zarr_dask.formats.concurrent_edit import reload_metadata, write_changed_documents

        place = (self.store, self.path, self.node_format)
        if prune:
            present = reload_metadata(*place, self.meta, self.options)
            _reshaped(self, present, new_shape)  # refuses what cannot be
            self.meta.check_writable(self.where)
            if any(map(int.__gt__, new_shape, self.shape)):
                self._clear_outside(present)
        changed = write_changed_documents(
            *place, self.meta, lambda now: _reshaped(self, now, new_shape), self.options
        )
        if prune and any(map(int.__lt__, new_shape, self.shape)):
            self._clear_outside(changed)
        return changed

    @takes_habits(data="values", dim="axis")
    def append(
        self,
        values: Any,
        axis: int | str = 0,
        on_conflict: OnConflict = "error",
        *,
        casting: Casting = "safe",
    ) -> Array:
        """Write more elements at the end of the array. Returns the array itself, grown.

        The elements are written before the document, so that a reader never sees the array longer
        than what is in it. Objects that the old end cuts are read, changed and written; nothing
        but appends may write to the array meanwhile.

        Parameters
        ----------
        values
            Values of the array's shape, except along one dimension.
        axis
            That dimension, by position or name; counted from the end if negative.
        on_conflict
            What to do while another append to the array is under way: ``"error"``, or ``"wait"``
            until it has ended, and append behind its elements.
        casting
            Casts that are allowed, in NumPy's words. ``"safe"``: none that changes a value; floats
            of Python are rounded. ``"same_kind"``: floats of NumPy are rounded, too. No number may
            overflow except with ``"unsafe"``.

        Raises
        ------
        AppendConflictError
            If another append is under way.
        GridError
            If the shapes do not fit together.
        DataTypeError
            If the array cannot hold the values.
        MetadataChangedError
            If the array in the store differs by now in more than its attributes.
        ReadOnlyError
            If the array was opened for reading.

        Examples
        --------
        >>> import zarr_dask as zd
        >>> a = zd.create_array({}, shape=(1, 2), dtype="i2", chunks=2)
        >>> a.append([[1, 2], [3, 4]])[...].tolist()
        [[0, 0], [1, 2], [3, 4]]
        """
        from zarr_dask.array.resize import append_region, axis_of
        from zarr_dask.formats.documents import looking_once
        from zarr_dask.journal import OnConflict, check_no_output, claimed

        check_choice("on_conflict", on_conflict, OnConflict)
        check_choice("casting", casting, Casting)
        axis = axis_of(self, axis, "axis")
        more = self._checked_cast(values, casting)
        batch: AppendBatch | None = self.__dict__.get("_batch")
        if batch is not None:
            batch.append(more, axis)
            return self
        append_region(self.shape, more.shape, axis)  # refuses what does not fit
        _ = self.takes_small_puts  # which its copies keep
        with looking_once():
            check_no_output(self.store, self.path)
            with claimed(self.store, self.path, on_conflict):
                behind = self.as_long_as_it_is(axis) if on_conflict == "wait" else self._as_it_is()
                self.follow(_append(behind, more, axis))
        return self

    @takes_habits()
    @contextmanager
    def batch(self, on_conflict: OnConflict = "error") -> Iterator[Array]:
        """Gather many appends: a ``with`` statement, at whose end the array grows once.

        Elements that `append` is given within it are written when their stored objects are full;
        at most 64 MB of them wait in memory. The metadata are written once, at the end, and until
        then the array has its old length for every reader, this one included. If the statement
        ends with an exception, all appends that had returned before are kept. If the process is
        killed, the array keeps its old length.

        Parameters
        ----------
        on_conflict
            What to do while another append to the array is under way: ``"error"``, or ``"wait"``
            until it has ended, and append behind its elements.

        Raises
        ------
        AppendConflictError
            If another append is under way, or another batch of this array.
        MetadataChangedError
            If the array in the store differs by now in more than its attributes.
        ReadOnlyError
            If the array was opened for reading.
        StoreError
            At the end, if an append has failed.

        Examples
        --------
        >>> import zarr_dask as zd
        >>> a = zd.create_array({}, shape=(0, 2), dtype="i2", chunks=(100, 2))
        >>> with a.batch():
        ...     for step in range(250):
        ...         _ = a.append([[step, -step]])
        >>> a.shape, a[-1].tolist()
        ((250, 2), [249, -249])
        """
        from zarr_dask.array.append_batch import AppendBatch
        from zarr_dask.formats.concurrent_edit import (
            reload_metadata,
            see_node_to_append,
            write_changed_documents,
        )
        from zarr_dask.journal import OnConflict, check_no_output, claimed
        from zarr_dask.stores.wrappers.confirmed import is_confirmed

        check_choice("on_conflict", on_conflict, OnConflict)
        if "_batch" in self.__dict__:
            raise AppendConflictError(
                f"a batch of appends to {self.where} has begun and not ended; end it first."
            )
        check_no_output(self.store, self.path)
        with claimed(self.store, self.path, on_conflict):
            place = (self.store, self.path, self.node_format)
            if on_conflict == "wait":
                found = self.node_format.read(self.store, self.path, self.options, found={})
                if isinstance(found, ArrayMeta):
                    self.follow(found)
            before = self.meta
            seen = see_node_to_append(*place, self.options, latest=is_confirmed(self.store))
            grown = [reload_metadata(*place, before, self.options, seen)]
            before.check_writable(self.where)

            def write(shape: Shape, region: Region, values: np.ndarray) -> None:
                longer = _reshaped(self, grown[-1], shape)
                _write_behind(self, longer, region, values)
                grown[:] = [longer]

            cells = (d.size if isinstance(d, Fixed) else 1 for d in before.grid.dimensions)
            batch = self.__dict__["_batch"] = AppendBatch(self.shape, tuple(cells), write)
            try:
                yield self
            finally:
                del self.__dict__["_batch"]
                try:
                    batch.close()
                finally:
                    if batch.shape != before.grid.shape:
                        now = write_changed_documents(
                            *place,
                            before,
                            lambda now: replace(now, grid=grown[-1].grid),
                            self.options,
                            seen=seen,
                        )
                        self.follow(now)

    def as_long_as_it_is(self, axis: int) -> Array:
        """The array as long along one dimension as others have made it since it was opened.

        It is not looked at otherwise: what is another array by now is refused when it is written.
        """
        found = self.node_format.read(self.store, self.path, self.options, found={})
        ndim = self.ndim
        if not (isinstance(found, ArrayMeta) and found.grid.ndim == ndim and -ndim <= axis < ndim):
            return self  # which is refused
        shape = list(self.shape)
        shape[axis] = found.grid.shape[axis]
        cells = list(_reshaped(self, self.meta, tuple(shape)).grid.dimensions)
        if isinstance(found.grid.dimensions[axis], Edges):  # each append has cells of its own
            cells[axis] = found.grid.dimensions[axis]
        return replace(self, meta=replace(self.meta, grid=Grid(tuple(cells))))

    def _clear_outside(self, meta: ArrayMeta) -> None:
        """Delete or clear stored elements outside the shape."""
        from zarr_dask.array.resize import prune_outside

        prefix = self.node_format.data_prefix(self.path)
        prune_outside(self.store, prefix, meta, self.where)


def _unpacked(store: Store, path: str, packed: bytes, shown_by: str | None = None) -> Array:
    meta, node_format, options = unpack(packed)
    shown = None if shown_by is None else Shown(shown_by, here=False)
    return Array(store, path, meta, node_format, options, shown)


def _append(array: Array, more: np.ndarray, axis: int) -> ArrayMeta:
    """Write elements at the end, which this process has claimed, and return the new metadata."""
    from zarr_dask.array.resize import append_region
    from zarr_dask.formats.concurrent_edit import (
        reload_metadata,
        see_node_to_append,
        write_changed_documents,
    )
    from zarr_dask.stores.wrappers.confirmed import is_confirmed

    shape, region = append_region(array.shape, more.shape, axis)
    place, options = (array.store, array.path, array.node_format), array.options
    seen = see_node_to_append(*place, options, latest=is_confirmed(array.store))
    before = reload_metadata(*place, array.meta, options, seen)
    longer = _reshaped(array, before, shape)
    _write_behind(array, longer, region, more)
    return write_changed_documents(
        *place,
        array.meta,
        lambda now: longer if now is before else _reshaped(array, now, shape),
        options,
        seen=seen,
        reloaded=before,
    )


def _are_kept(values: np.ndarray, result: np.ndarray) -> bool:
    """True if values can be told exactly from what they were cast to."""
    before, after = values.dtype, result.dtype
    if before.kind == "O" and after.kind in "mM":
        values = np.asarray(values, "M8[ns]" if after.kind == "M" else "m8[ns]")
        before = values.dtype
    if before.kind == "O" and after.kind in "SU":  # of fixed length, where ends are cut off
        are_texts = all(isinstance(one, str | bytes) for one in values.flat)
        return are_texts and np.array_equal(values.astype(after.kind), result)
    parsed = before.kind == "O" or (before.kind in "SU" and after.kind not in "SU")
    if parsed or before.names or after.names:
        return True  # one by one, by a cast that raises
    with np.errstate(invalid="ignore", over="ignore"):
        back = (result if before.kind == "c" else result.real).astype(before)
    return np.array_equal(back, values, equal_nan=before.kind in "fcmM")


def _write_behind(array: Array, meta: ArrayMeta, region: Region, values: np.ndarray) -> None:
    """Write to an array that has grown, but whose document does not say so yet."""
    from zarr_dask.array.writer import write_parts

    grown = replace(array, meta=meta, shown=None)
    # by its caller, who has claimed the end of the array
    grown.__dict__.update(_looked_up=True, takes_small_puts=array.takes_small_puts)
    write_parts(grown, lambda: meta.grid.parts(region), values, None, array.meta.grid)


_DERIVED = frozenset({"reader", "token", "_packed"})
"""Values that an array computes from its metadata, and keeps."""


def _has_followed(old: ArrayMeta, new: ArrayMeta) -> bool:
    """True if nothing that a handle follows differs, as when it was told of a change before."""
    return (
        old.grid is new.grid
        and old.attributes is new.attributes
        and old.dimension_names is new.dimension_names
    )


def _is_same_array(old: ArrayMeta, new: ArrayMeta) -> bool:
    """True if metadata differ in the length, attributes or names of dimensions at most."""
    return old.grid.ndim == new.grid.ndim and old.is_stored_as(new)


def _reshaped(array: Array, meta: ArrayMeta, shape: Shape) -> ArrayMeta:
    from zarr_dask.array.resize import resize_grid

    sharded = meta.codecs.serializer.is_sharding
    grid = resize_grid(meta.grid, shape, sharded=sharded)
    if grid.cell_shape is not None:  # and that of the array before: its codecs fit as they did
        return meta.with_shape(grid, meta.attributes, meta.dimension_names)
    changed = replace(meta, grid=grid)
    problems = list(changed.problems())
    if problems:
        raise MetadataError.of(array.where, problems)
    return changed


_KEPT_INDICES = 1 << 26
"""Bytes of shard indices that a process caches if blocks are parts of shards."""


def object_sizes(array: Array) -> Iterator[int]:
    """Yield the size in bytes of each stored object that exists."""
    prefix = array.node_format.data_prefix(array.path)
    listed = False
    for key, nbytes in list_sizes(array.store, prefix):
        listed = True
        if array.meta.coords(key[len(prefix) :]) is not None:
            yield nbytes
    if not listed:
        check_listed(array.store, prefix, array.node_format.node_keys(array.path))
