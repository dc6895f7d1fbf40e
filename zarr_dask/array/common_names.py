"""Names that nodes of zarr-python and h5py have, and hints for those that they have not here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from numbers import Number
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, Self, TypeVar

import numpy as np

from zarr_dask._util.arguments import MadeBy
from zarr_dask._util.keywords import did_you_mean, takes_habits
from zarr_dask.indexing.basic import split_fields
from zarr_dask.stores.base import Store

if TYPE_CHECKING:
    from zarr_dask._util.display import Tree

__all__ = [
    "ArrayNames",
    "NodeNames",
    "assigns_attrs",
    "facts_text",
    "no_attribute",
    "values_hint",
]

T = TypeVar("T")

_DASK_ONLY = frozenset(
    {
        "argtopk", "compute", "compute_chunk_sizes", "map_blocks", "map_overlap", "moment",
        "npartitions", "numblocks", "partitions", "persist", "rechunk", "to_dask_dataframe",
        "to_backend", "to_delayed", "to_hdf5", "to_svg", "to_tiledb", "topk", "visualize",
    }
)  # fmt: skip
"""Names of `dask.array.Array` that NumPy lacks; dask may be absent, and is slow to import."""
_NUMPY_ONLY = frozenset(
    {
        "argpartition", "argsort", "byteswap", "compress", "device", "diagonal", "dump", "dumps",
        "flags", "flat", "getfield", "item", "mT", "partition", "put", "searchsorted", "setfield",
        "setflags", "sort", "strides", "take", "to_device", "tobytes", "tofile", "tolist",
    }
)  # fmt: skip
"""Names of `numpy.ndarray` that dask's arrays lack."""


_XARRAY_ONLY = frozenset(
    {
        "as_numpy", "assign_attrs", "assign_coords", "bfill", "broadcast_equals", "broadcast_like",
        "chunk", "chunksizes", "coarsen", "combine_first", "convert_calendar", "coords", "count",
        "cumulative", "differentiate", "drop_attrs", "drop_duplicates", "drop_encoding",
        "drop_isel", "drop_sel", "drop_vars", "dropna", "dt", "equals", "expand_dims", "ffill",
        "fillna", "get_axis_num", "get_index", "groupby", "groupby_bins", "head", "identical",
        "idxmax", "idxmin", "indexes", "integrate", "interp", "interp_like", "interpolate_na",
        "isel", "isin", "isnull", "loc", "notnull", "pad", "pipe", "plot", "polyfit", "quantile",
        "query", "reduce", "reindex", "reindex_like", "rename", "resample", "reset_coords",
        "reset_index", "roll", "rolling", "sel", "set_index", "shift", "sortby", "stack",
        "swap_dims", "tail", "thin", "to_dataframe", "to_dataset", "to_index", "to_netcdf",
        "to_pandas", "to_series", "unstack", "variable", "weighted", "xindexes",
    }
)  # fmt: skip
"""Names of `xarray.DataArray` that the arrays of NumPy and dask lack."""


class Located(Protocol):
    """A node, as far as its place is concerned."""

    @property
    def store(self) -> Store:
        """Store that holds the node."""
        ...

    @property
    def path(self) -> str:
        """Path below the root of the store."""
        ...


_FIXED = "it is fixed when the array is created; zarr_dask.{} writes the array with another one"
_INSTEAD_OF_ASSIGNMENT = {
    "attributes": "node.attrs = {...} replaces all attributes",
    "chunks": _FIXED.format("rechunk"),
    "codecs": _FIXED.format("copy(..., codecs=...)"),
    "compressor": _FIXED.format("copy(..., codecs=...)"),
    "compressors": _FIXED.format("copy(..., codecs=...)"),
    "dims": "it is fixed when the array is created: dimension_names=",
    "dimension_names": "it is fixed when the array is created",
    "dtype": _FIXED.format("copy(..., dtype=...)"),
    "fill_value": "it is fixed when the array is created",
    "filters": _FIXED.format("copy(..., codecs=...)"),
    "name": "group.rename(old, new) moves a node",
    "path": "group.rename(old, new) moves a node",
    "shape": "array.resize(shape) changes the shape",
    "shards": _FIXED.format("rechunk"),
}
"""Attributes of a node that cannot be assigned, and what to write instead."""


def assigns_attrs(cls: type[T]) -> type[T]:
    """Let a frozen class of nodes take ``node.attrs = {...}``, and say what else is meant."""

    def assign(self: Any, name: str, value: Any) -> None:
        if name == "attrs":
            object.__setattr__(self, name, value)  # by the property
            return
        instead = _INSTEAD_OF_ASSIGNMENT.get(
            name, f"node.attrs[{name!r}] = ... stores an attribute"
        )
        raise AttributeError(f"zarr_dask.{cls.__name__}.{name} cannot be assigned: {instead}.")

    cls.__setattr__ = assign  # type: ignore[method-assign]
    return cls


class NodeNames(MadeBy):
    """Names that arrays and groups have in common with those of zarr-python."""

    @property
    def name(self: Located) -> str:
        """Path from the root of the store, with a slash before it."""
        return f"/{self.path}"

    @property
    def basename(self: Located) -> str:
        """Last part of the path; empty for the root of the store."""
        return self.path.rpartition("/")[2]

    @property
    def url(self: Located) -> str:
        """Path or URL of the node, which opens it again with the same options."""
        url = self.store.url
        return f"{url.rstrip('/')}/{self.path}" if self.path else url

    def __enter__(self) -> Self:
        """Return the node: a ``with`` block is possible, but nothing is kept open."""
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def close(self) -> None:
        """Do nothing: every write is stored when it returns, and no file is kept open."""


def facts_text(title: str, facts: Mapping[str, object]) -> Tree:
    """Return facts about a node as a text, which a notebook shows as a table."""
    from zarr_dask._util.display import Tree, html_table

    width = max(map(len, facts))
    lines = [title, *(f"  {name:<{width}}  {value}" for name, value in facts.items())]
    return Tree("\n".join(lines), html_table(title, facts))


def no_attribute(
    kind: str, name: str, hints: Mapping[str, str], known: list[str], otherwise: str = ""
) -> NoReturn:
    """Raise the error for an attribute that a node does not have.

    Raises
    ------
    AttributeError
        Always; it says what to write instead, if that is known.
    """
    message = f"zarr_dask.{kind} has no {name!r}."
    if name in hints:
        raise AttributeError(f"{message} {hints[name]}")
    if name.startswith("_"):
        raise AttributeError(message)
    public = [one for one in known if not one.startswith("_")]
    hint = did_you_mean(name, public, closeness=0.75 if otherwise else 0.6)
    raise AttributeError(message + (hint or otherwise))


def _refused(symbol: str) -> Callable[..., Any]:
    """Return a method for an operator that needs the elements."""

    def method(self: Any, other: Any = None) -> Any:  # noqa: ARG001
        if hasattr(other, "__array_ufunc__") or isinstance(other, np.generic):
            return NotImplemented  # NumPy, dask and xarray read the array themselves
        raise TypeError(
            f"zarr_dask.Array has no operator {symbol}, because it reads nothing by itself. "
            "array[...] has all values in memory, array.to_dask() computes lazily."
        )

    return method


def _refused_in_place(symbol: str) -> Callable[..., Any]:
    """Return a method for an operator that would change the elements."""

    def method(self: Any, other: Any) -> NoReturn:  # noqa: ARG001
        raise TypeError(
            f"zarr_dask.Array has no operator {symbol}=: array[...] {symbol}= values reads, "
            "changes and writes all elements."
        )

    return method


def _with_operators(cls: type) -> type:
    """Let arithmetic and comparisons of a class say what to write instead."""
    for name, symbol in _OPERATORS.items():
        setattr(cls, f"__{name}__", _refused(symbol))
        if name not in _ONE_WAY:
            setattr(cls, f"__r{name}__", _refused(symbol))
            setattr(cls, f"__i{name}__", _refused_in_place(symbol))
    return cls


_OPERATORS: Mapping[str, str] = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**",
    "matmul": "@", "and": "&", "or": "|", "xor": "^", "lshift": "<<", "rshift": ">>",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "neg": "-", "pos": "+", "abs": "abs", "invert": "~",
}  # fmt: skip
_ONE_WAY = frozenset({"lt", "le", "gt", "ge", "neg", "pos", "abs", "invert"})


@_with_operators
class ArrayNames(NodeNames):
    """Names that arrays have in common with those of zarr-python."""

    _made_by = "open_array(url) opens an array, create_array(url, ...) makes one"
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        """Compare by identity; numbers are refused, with which elements were meant.

        Raises
        ------
        TypeError
            For a number.
        """
        if isinstance(other, Number) and not isinstance(other, np.generic):
            _refused("==")(self)
        return NotImplemented

    def __bool__(self: Any) -> bool:
        """True unless the first dimension is empty; without dimensions, the truth of the value."""
        return bool(len(self)) if self.shape else bool(np.asarray(self))

    def __float__(self) -> float:
        return float(np.asarray(self))

    def __int__(self) -> int:
        return int(np.asarray(self))

    def __complex__(self) -> complex:
        return complex(np.asarray(self))

    @property
    def cdata_shape(self: Any) -> tuple[int, ...]:
        """Chunks along each dimension."""
        if self.shards is None:
            counts: tuple[int, ...] = self.meta.grid.counts
            return counts
        return tuple(-(-n // chunk) for n, chunk in zip(self.shape, self.chunks, strict=True))

    @property
    def nchunks(self) -> int:
        """Number of chunks, those in shards included."""
        return prod(self.cdata_shape)

    @property
    def nchunks_initialized(self: Any) -> int:
        """Number of chunks that are stored, found by one listing; a shard counts as a whole."""
        stored = sum(1 for _ in self.stored_keys())
        inner = 1
        if self.shards is not None:
            inner = prod(n // m for n, m in zip(self.shards, self.chunks, strict=True))
        return min(stored * inner, int(self.nchunks))

    @property
    def info(self: Any) -> Tree:
        """Facts about the array as a text, which a notebook shows as a table."""
        return facts_text(f"zarr_dask.Array {self.where}", self.facts())

    @takes_habits()
    def get_basic_selection(
        self: Any, selection: Any = ..., *, out: Any = None, fields: Any = None
    ) -> Any:
        """Return elements, as ``array[selection]`` does; into `out` if it is given.

        `fields` is the name of a field of structured elements, or a list of names.
        """
        return _into(out, _of_fields(self[selection], fields, self.dtype))

    @takes_habits()
    def set_basic_selection(self: Any, selection: Any, value: Any) -> None:
        """Write elements, as ``array[selection] = value`` does."""
        self[selection] = value

    @takes_habits()
    def get_orthogonal_selection(
        self: Any, selection: Any, *, out: Any = None, fields: Any = None
    ) -> Any:
        """Return elements, as ``array.oindex[selection]`` does."""
        return _into(out, _of_fields(self.oindex[selection], fields, self.dtype))

    @takes_habits()
    def set_orthogonal_selection(self: Any, selection: Any, value: Any) -> None:
        """Write elements, as ``array.oindex[selection] = value`` does."""
        self.oindex[selection] = value

    @takes_habits(mask="selection")
    def get_coordinate_selection(
        self: Any, selection: Any, *, out: Any = None, fields: Any = None
    ) -> Any:
        """Return points, as ``array.vindex[selection]`` does."""
        return _into(out, _of_fields(self.vindex[selection], fields, self.dtype))

    @takes_habits(mask="selection")
    def set_coordinate_selection(self: Any, selection: Any, value: Any) -> None:
        """Write points, as ``array.vindex[selection] = value`` does."""
        self.vindex[selection] = value

    get_mask_selection = get_coordinate_selection
    set_mask_selection = set_coordinate_selection

    @takes_habits()
    def get_block_selection(
        self: Any, selection: Any, *, out: Any = None, fields: Any = None
    ) -> Any:
        """Return whole stored objects, as ``array.blocks[selection]`` does."""
        return _into(out, _of_fields(self.blocks[selection], fields, self.dtype))

    def __delitem__(self, selection: object) -> NoReturn:
        """Raise: elements are overwritten, not deleted."""
        raise TypeError(
            f"del array[{selection!r}]: elements cannot be deleted. array[selection] = fill_value "
            "clears them, array.resize(shape) shortens the array, zarr_dask.delete(url, path) "
            "deletes it."
        )

    @takes_habits()
    def set_block_selection(self: Any, selection: Any, value: Any) -> None:
        """Write whole stored objects, as ``array.blocks[selection] = value`` does."""
        self.blocks[selection] = value

    if not TYPE_CHECKING:  # a type checker knows which attributes there are

        def __getattr__(self, name: str) -> NoReturn:
            hints = {**values_hint(name), **_ARRAY_HINTS}
            no_attribute("Array", name, hints, dir(type(self)))


def _of_fields(values: Any, fields: Any, dtype: np.dtype[Any]) -> Any:
    """Return the fields of elements that are named; all if none are.

    Raises
    ------
    SelectionError
        If there is no such field.
    TypeError
        If the elements have no fields.
    """
    if fields is None:
        return values
    if dtype.names is None:
        raise TypeError(
            f"fields={fields!r}: the elements have none, their type is {dtype}; "
            "array[...]['name'] is a field of structured elements."
        )
    return values[split_fields(fields, dtype.names)[0]]


def _into(out: Any, values: Any) -> Any:
    if out is None:
        return values
    out[...] = values
    return out


def values_hint(name: str, noun: str = "array") -> dict[str, str]:
    """Return the hint for a name that arrays of values have, in NumPy or in dask."""
    if name in _DASK_ONLY:
        return {name: f"Make it a dask array first: {noun}.to_dask().{name}."}
    if name in _NUMPY_ONLY:
        return {name: f"Read it first: {noun}[...].{name}."}
    if hasattr(np.ndarray, name):
        return {name: f"Read it first: {noun}[...].{name}, or lazily: {noun}.to_dask().{name}."}
    if name in _XARRAY_ONLY:
        return {name: f"Variables of xarray have it: zarr_dask.open_dataset(url)[name].{name}."}
    return {}


_ARRAY_HINTS: dict[str, str] = {
    **dict.fromkeys(
        ("compressor", "compressors", "filters", "serializer", "object_codec"),
        "array.codecs lists all of them, in the order of encoding.",
    ),
    **dict.fromkeys(
        ("filter_ids", "filter_names", "fletcher32", "scaleoffset", "shuffle"),
        "array.codecs lists all codecs, in the order of encoding.",
    ),
    **dict.fromkeys(
        ("islice", "iter_chunks"),
        "array.to_dask().blocks has them lazily, array.blocks[index] reads one.",
    ),
    **dict.fromkeys(
        ("is_scale", "make_scale"),
        "dimension_names= of create_array names dimensions; zarr_dask.to_zarr writes coordinates.",
    ),
    **dict.fromkeys(
        ("is_view", "is_virtual"), "It is stored under its own path, of which array.url tells."
    ),
    "async_array": "array.to_dask() reads side by side; array.read() reads with threads.",
    "chunk_grid": "array.chunks, array.shards and array.write_chunks are its grids.",
    "chunk_key_encoding": "array.meta.chunk_key_encoding has it; array.key(coords) is a key.",
    "drop": "zarr_dask.delete(url, path) deletes an array; zarr_dask.open_dataset drops variables.",
    "digest": "zarr_dask.digest(array) is a digest of the values.",
    "label": "array.dimension_names has the names of dimensions.",
    "open": "It is open; zarr_dask.open(url, mode='r+') opens it for writing.",
    **dict.fromkeys(("save", "to_zarr"), "zarr_dask.copy(array, url) copies it elsewhere."),
    "origin": "array.shape has the lengths; every dimension starts at 0.",
    **dict.fromkeys(("ref", "regionref"), "array.url is the location."),
    "refresh": "Values are read anew each time; zarr_dask.open(url) reads the metadata anew.",
    "asstr": "Elements are str already if the data type is one of texts: array[...].",
    **dict.fromkeys(
        ("chunk_layout", "schema", "spec"),
        "array.meta has the parsed metadata, array.info the facts.",
    ),
    **dict.fromkeys(
        ("config", "with_config"),
        "Options of reading are given when it is opened: read=zarr_dask.ReadOptions(...).",
    ),
    "conjugate": "Read it first: array[...].conj(), or lazily: array.to_dask().conj().",
    "fields": "array[...]['name'] is a field of structured elements.",
    "fillvalue": "array.fill_value has it.",
    "from_dict": "zarr_dask.create_array(url, shape=..., dtype=...) creates an array.",
    "read_chunk_sizes": "array.chunks, or array.to_dask().chunks, which has every length.",
    "write_chunk_sizes": "array.write_chunks is the shape of a stored object.",
    "chunksize": "array.chunks is the shape of a chunk, array.nbytes the size of all elements.",
    "dask": "array.to_dask() is a dask array, which has a graph.",
    "domain": "array.shape has the lengths; every dimension starts at 0.",
    "dims": "array.dimension_names has them.",
    "codec": "array.codecs lists all codecs, in the order of encoding.",
    **dict.fromkeys(("external", "virtual_sources"), "Its stored objects are array.store.list()."),
    "getitem": "array[selection] reads, array.read(region, threads=...) with threads.",
    "kvstore": "array.store is the store, array.path the path in it.",
    **dict.fromkeys(
        ("readable", "writable"), "zarr_dask.open(url, mode='r') reads, mode='r+' writes as well."
    ),
    "resolve": "Values are read anew each time; zarr_dask.open(url) reads the metadata anew.",
    "setitem": "array[selection] = values writes.",
    "storage_statistics": "array.nchunks_initialized and array.nbytes_stored() count.",
    **dict.fromkeys(
        ("transaction", "with_transaction"),
        "zarr_dask.to_zarr writes as a whole or not at all; Icechunk's sessions have commits.",
    ),
    **dict.fromkeys(
        ("mark_bounds_implicit", "translate_backward_by", "translate_by", "translate_to"),
        "Every dimension starts at 0; array.lazy[...] is a view of a part.",
    ),
    "chunk_store": "array.store is the store of metadata and chunks.",
    "compression": "array.codecs lists all codecs, in the order of encoding.",
    "compression_opts": "array.codecs lists all codecs, with their options.",
    "copy": "zarr_dask.copy copies it to another location, array[...] reads all elements.",
    "data": "array[...] reads all elements.",
    "extend": "array.append(values, axis=0) lengthens it.",
    "truncate": "array.resize(shape) shortens it.",
    "sizes": "dict(zip(array.dimension_names, array.shape)) has them.",
    "encoding": "array.codecs, array.chunks and array.fill_value say how it is stored.",
    "hexdigest": "zarr_dask.digest(array) is a digest of the values.",
    "info_complete": "array.info has the facts, array.nbytes_stored() the size of what is stored.",
    "fill": "array[...] = value writes one value everywhere.",
    "file": "array.store is the store, array.url the location.",
    "id": "array.url is the location; there are no ids.",
    "itemsize": "array.dtype.itemsize has it.",
    "len": "len(array) is the length of the first dimension.",
    "load": "array[...] reads all elements.",
    "maxshape": "Every dimension may grow: array.resize(shape), array.append(values).",
    "parent": "zarr_dask.open_group opens it by its own path.",
    "rank": "array.ndim is the number of dimensions.",
    "read_direct": "array.read(region, out=values) reads into an array.",
    "read_only": "zarr_dask.open(url, mode='r') opens for reading only.",
    "result": "It is no future: array.read() returns values, array.to_dask() is lazy.",
    "store_path": "array.store is the store, array.path the path in it.",
    "synchronizer": "Every stored object has one writer, so that no lock is needed.",
    "numpy": "array[...] reads all elements.",
    "value": "array[...] reads all elements.",
    "values": "array[...] reads all elements.",
    "to_numpy": "array[...] reads all elements.",
    "tree": "Groups have a tree; array.info has the facts of an array.",
    **dict.fromkeys(
        ("to_dataarray", "to_xarray"),
        "zarr_dask.open_dataset of the group that it lies in gives variables of xarray.",
    ),
    "write_direct": "array.write(region, values) writes a region.",
    "zarr_format": "array.format names the format, as 'v3'.",
    "metadata": "array.meta has the parsed metadata.",
    "median": "np.median(array[...]), or dask.array.median(array.to_dask(), axis=...).",
    "mode": "zarr_dask.open(url, mode='r+') opens for writing.",
    "order": "array.codecs has a transpose codec if elements are stored in order F.",
    "flush": "Every write is stored when it returns.",
}
