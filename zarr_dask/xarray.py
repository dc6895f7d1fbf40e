"""xarray reads Zarr through this package: ``xr.open_dataset(url, engine="zarr_dask", chunks={})``.

xarray finds `ZarrDaskBackend` by its entry point. It is given variables over lazy arrays
(`StoredArray`), never dask arrays: whether and how they become dask arrays is xarray's own step,
and everything of the CF conventions (masks, scales, times, coordinates, texts) is xarray's too.
What is ours: names of dimensions and attributes, what a fill value means, the ``encoding``, and
``preferred_chunks``, which are stored objects, so that a block never holds a part of a shard.

`open_dataset` and `open_datatree` do the same with graphs that do not grow with the number of
chunks: xarray's default puts the array under a key of its own, and dask then visits all chunks
whenever one of them is computed.

Names, masks and attributes follow two conventions. In v3 the document names dimensions, and an
attribute ``_FillValue`` in base64 says which value is masked. Before it an attribute names
dimensions (or NCZarr's own metadata do), and the fill value of the array is the masked one.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import multiprocessing
import os
import struct
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numcodecs
import numpy as np
import xarray as xr
from xarray.backends import AbstractDataStore, BackendArray, BackendEntrypoint
from xarray.backends.store import StoreBackendEntrypoint
from xarray.coding.strings import create_vlen_dtype
from xarray.core import indexing

from zarr_dask.array import Array
from zarr_dask.blocks import MOST_BLOCKS
from zarr_dask.codecs.base import Codec, Serializer
from zarr_dask.errors import MetadataError, Problem
from zarr_dask.formats.base import ReadOptions, normalise_path
from zarr_dask.formats.v2_document import (
    DIMENSIONS,
    dimension_names,
    names_of_nczarr,
    numcodecs_steps,
    stored_dtype,
)
from zarr_dask.grid import Fixed, Grid, Shape
from zarr_dask.group import Group, open_group
from zarr_dask.indexing import parse_basic
from zarr_dask.stores.urls import Location

__all__ = ["StoredArray", "ZarrDaskBackend", "open_dataset", "open_datatree"]


def open_dataset(
    url: Location | Group,
    group: str | None = None,
    chunks: Any = "objects",
    *,
    format: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    read: ReadOptions | None = None,
    **options: Any,
) -> xr.Dataset:
    """A group as an `xarray.Dataset`, lazily.

    As ``xarray.open_dataset(url, engine="zarr_dask", ...)``, with graphs whose size does not depend
    on the number of chunks, and with names in the graph that tell the metadata of the variables.

    Parameters
    ----------
    url
        A path, a URL, a store, a mapping, or an open group.
    group
        Path of the group below it.
    chunks
        Blocks: ``"objects"`` for one stored object each, None for no dask arrays at all, or what
        ``xarray.open_dataset`` takes.
    format
        Name of the format; found out by default.
    storage_options
        Options of the store.
    read
        How to read.
    options
        All else that ``xarray.open_dataset`` takes: ``decode_cf``, ``mask_and_scale``,
        ``decode_times``, ``drop_variables``, ``use_zarr_fill_value_as_mask`` and so on.

    Raises
    ------
    NodeNotFoundError
        If there is no group.
    MetadataError
        If documents are wrong, or a variable has dimensions without names.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> values = {}
    >>> a = zd.create_array(values, "t", shape=(6,), dtype="f4", chunks=2, dimension_names=["x"])
    >>> a[...] = range(6)
    >>> zd.open_dataset(values)["t"].chunks
    ((2, 2, 2),)
    """
    opened = _open(url, group, format, storage_options, read, recursive=False)
    return xr.open_dataset(
        opened,  # type: ignore[arg-type]  # our backend takes what _open makes
        engine=ZarrDaskBackend,
        chunks={} if isinstance(chunks, str) and chunks == "objects" else chunks,
        inline_array=True,
        **options,
    )


def open_datatree(
    url: Location | Group,
    group: str | None = None,
    chunks: Any = "objects",
    *,
    format: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    read: ReadOptions | None = None,
    **options: Any,
) -> xr.DataTree:
    """A hierarchy of groups as an `xarray.DataTree`, lazily.

    Parameters
    ----------
    url, group, chunks, format, storage_options, read
        As for `open_dataset`.
    **options
        Of `xarray.open_datatree`.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> values = {}
    >>> _ = zd.create_array(values, "ocean/t", shape=(4,), dtype="f4", dimension_names=["x"])
    >>> zd.open_datatree(values).groups
    ('/', '/ocean')
    """
    opened = _open(url, group, format, storage_options, read, recursive=True)
    return xr.open_datatree(
        opened,  # type: ignore[arg-type]  # our backend takes what _open makes
        engine=ZarrDaskBackend,
        chunks={} if isinstance(chunks, str) and chunks == "objects" else chunks,
        inline_array=True,
        **options,
    )


class ZarrDaskBackend(BackendEntrypoint):
    """What xarray calls for ``engine="zarr_dask"``."""

    description = "Open Zarr hierarchies of any format with zarr_dask"
    supports_groups = True
    open_dataset_parameters = (
        *("mask_and_scale", "decode_times", "concat_characters", "decode_coords"),
        *("drop_variables", "use_cftime", "decode_timedelta", "group", "format"),
        *("storage_options", "read", "consolidated", "use_zarr_fill_value_as_mask"),
    )

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        """Whether this backend is meant where nobody names an engine.

        Open groups of this package are; names that end in ``.zarr`` or ``.zarr.zip`` are too, but
        xarray asks its backends by name, and its own for Zarr comes before.
        """
        if isinstance(filename_or_obj, Group | _Opened):
            return True
        if not isinstance(filename_or_obj, str | os.PathLike):
            return False
        return os.fspath(filename_or_obj).rstrip("/").endswith((".zarr", ".zarr.zip"))

    def open_dataset(
        self,
        filename_or_obj: Any,
        *,
        mask_and_scale: Any = True,
        decode_times: Any = True,
        concat_characters: Any = True,
        decode_coords: Any = True,
        drop_variables: str | Iterable[str] | None = None,
        use_cftime: Any = None,
        decode_timedelta: Any = None,
        group: str | None = None,
        format: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        read: ReadOptions | None = None,
        consolidated: bool | None = None,
        use_zarr_fill_value_as_mask: bool | None = None,
    ) -> xr.Dataset:
        """A group as a dataset; see `xarray.open_dataset`.

        Parameters
        ----------
        filename_or_obj
            A path, a URL, a store, a mapping, or an open group.
        mask_and_scale, decode_times, concat_characters, decode_coords, use_cftime, decode_timedelta
            See `xarray.open_dataset`.
        drop_variables
            Names of variables that are left out; nothing of them is looked at.
        group
            Path of the group below it.
        format, storage_options, read
            See `zarr_dask.open`.
        consolidated
            False to ask for every document, whatever the consolidated metadata say.
        use_zarr_fill_value_as_mask
            Whether elements that have the fill value of their array are missing values. By default
            they are but in v3, where the attribute ``_FillValue`` says which are.
        """
        read = _read_options(read, consolidated)
        opened = _open(filename_or_obj, group, format, storage_options, read, recursive=False)
        dropped = _names(drop_variables)
        store = _Variables(opened, "", dropped, use_zarr_fill_value_as_mask)
        return StoreBackendEntrypoint().open_dataset(
            store,
            mask_and_scale=mask_and_scale,
            decode_times=decode_times,
            concat_characters=concat_characters,
            decode_coords=decode_coords,
            use_cftime=use_cftime,
            decode_timedelta=decode_timedelta,
        )

    def open_groups_as_dict(
        self,
        filename_or_obj: Any,
        *,
        mask_and_scale: Any = True,
        decode_times: Any = True,
        concat_characters: Any = True,
        decode_coords: Any = True,
        drop_variables: str | Iterable[str] | None = None,
        use_cftime: Any = None,
        decode_timedelta: Any = None,
        group: str | None = None,
        format: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        read: ReadOptions | None = None,
        consolidated: bool | None = None,
        use_zarr_fill_value_as_mask: bool | None = None,
    ) -> dict[str, xr.Dataset]:
        """Every group of a hierarchy as a dataset, by its path; parameters as `open_dataset`."""
        read = _read_options(read, consolidated)
        opened = _open(filename_or_obj, group, format, storage_options, read, recursive=True)
        dropped = _names(drop_variables)
        return {
            f"/{path}": StoreBackendEntrypoint().open_dataset(
                _Variables(opened, path, dropped, use_zarr_fill_value_as_mask),
                mask_and_scale=mask_and_scale,
                decode_times=decode_times,
                concat_characters=concat_characters,
                decode_coords=decode_coords,
                use_cftime=use_cftime,
                decode_timedelta=decode_timedelta,
            )
            for path in opened.groups
        }

    def open_datatree(self, filename_or_obj: Any, **options: Any) -> xr.DataTree:
        """A hierarchy as a tree of datasets; parameters as `open_groups_as_dict`."""
        return xr.DataTree.from_dict(self.open_groups_as_dict(filename_or_obj, **options))


def _read_options(read: ReadOptions | None, consolidated: bool | None) -> ReadOptions | None:
    """How to read, with xarray's own keyword for consolidated metadata."""
    if consolidated is None:
        return read
    return replace(read or ReadOptions(), consolidated=consolidated)


def _names(names: str | Iterable[str] | None) -> frozenset[str]:
    return frozenset([names] if isinstance(names, str) else names or ())


# --- what is opened -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Opened:
    """A group and the nodes below it, read once."""

    root: Group
    nodes: Mapping[str, Array | Group | MetadataError]
    """By path below the root."""
    is_named: bool
    """Whether xarray knows a name of the place already."""

    @property
    def groups(self) -> dict[str, Group]:
        """All groups by path, the root first."""
        below = {path: node for path, node in self.nodes.items() if isinstance(node, Group)}
        return {"": self.root, **below}

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        arrays = {p: node.token for p, node in self.nodes.items() if isinstance(node, Array)}
        return "zarr_dask.xarray", self.root.store.identity, self.root.path, arrays


def _open(
    url: Any,
    group: str | None,
    format: str | None,
    storage_options: Mapping[str, Any] | None,
    read: ReadOptions | None,
    *,
    recursive: bool,
) -> _Opened:
    if isinstance(url, _Opened):
        return url
    path = normalise_path(group)
    if isinstance(url, Group) and not path and format is None and read is None:
        return _Opened(url, dict(url.walk(recursive)), is_named=False)
    root = open_group(url, path, "r", format, storage_options, read)
    is_named = isinstance(url, str | os.PathLike)
    return _Opened(root, dict(root.walk(recursive)), is_named)


class _Variables(AbstractDataStore):
    """The arrays directly in one group, as xarray's decoders take them."""

    def __init__(
        self, opened: _Opened, path: str, dropped: frozenset[str], fill_is_mask: bool | None
    ) -> None:
        self._opened = opened
        self._path = path
        self._dropped = dropped
        self._fill_is_mask = fill_is_mask

    def get_variables(self) -> dict[str, xr.Variable]:
        """Variables by name.

        Raises
        ------
        MetadataError
            If one cannot be read, or has dimensions without names.
        """
        variables = {}
        for path, node in self._opened.nodes.items():
            above, _, name = path.rpartition("/")
            if above != self._path or name in self._dropped:
                continue
            if isinstance(node, MetadataError):
                raise node
            if isinstance(node, Array):
                variables[name] = _variable(node, self._fill_is_mask)
        return variables

    def get_attrs(self) -> dict[str, Any]:
        """Attributes of the group, without those of the netCDF library."""
        group = self._opened.groups[self._path]
        return {k: v for k, v in group.attributes.items() if not _is_of_netcdf(k)}

    def get_encoding(self) -> dict[str, Any]:
        """Where the group is, if xarray cannot know."""
        return {} if self._opened.is_named else {"source": self._opened.groups[self._path].where}


def _is_of_netcdf(attribute: str) -> bool:
    """Whether an attribute is for the netCDF library only: ``_NCZARR_...``, ``_NCProperties``."""
    return attribute.lower().startswith("_nc")


# --- variables ------------------------------------------------------------------------------------


def _variable(array: Array, fill_is_mask: bool | None) -> xr.Variable:
    names = _dimension_names(array)
    hidden = DIMENSIONS if array.dimension_names is None else None
    attributes = {
        k: v for k, v in array.user_attributes.items() if not _is_of_netcdf(k) and k != hidden
    }
    encoding = _encoding(array, names)
    if _has_names_in_document(array):
        encoding["fill_value"] = array.fill_value
        encoding |= _codecs_of_v3(array)
    else:
        encoding |= _codecs_of_numcodecs(array)
    if fill_is_mask is None:
        fill_is_mask = not _has_names_in_document(array)
    if fill_is_mask and array.fill_value is not None:
        attributes["_FillValue"] = array.fill_value
    elif "_FillValue" in attributes:
        attributes["_FillValue"] = _decoded_fill(attributes["_FillValue"], array)
    data = indexing.LazilyIndexedArray(StoredArray(array))
    return xr.Variable(names, data, attributes, encoding)


def _has_names_in_document(array: Array) -> bool:
    """Which of the two conventions of the module's docstring the array follows."""
    return array.node_format.names_attribute is None


def _dimension_names(array: Array) -> tuple[str, ...]:
    names: Sequence[str | None] | None = array.dimension_names
    if names is None:  # a document of v3 that was made of one of v2
        attributes, ndim = array.attributes, array.ndim
        names = dimension_names(attributes, ndim) or names_of_nczarr({}, attributes, ndim)
    found = tuple(name for name in names or () if name is not None)
    if len(found) == array.ndim:
        return found
    attribute = array.node_format.names_attribute
    place = "dimension_names" if attribute is None else f"attributes.{attribute}"
    expected = (
        f"{array.ndim} names: xarray's dimensions have names. drop_variables= leaves the variable "
        "out, zarr_dask.from_zarr reads it without them"
    )
    present = None if array.dimension_names is None else list(array.dimension_names)
    if present is None and attribute is not None:
        present = array.attributes.get(attribute)
    raise MetadataError(array.where, [Problem(place, present, expected)])


def _encoding(array: Array, names: tuple[str, ...]) -> dict[str, Any]:
    """How the array is stored, as far as all formats have it."""
    sizes = _sizes(array.meta.grid)
    preferred = _sizes(array.meta.grid, MOST_BLOCKS)
    sharded = array.shards is not None
    encoding: dict[str, Any] = {
        "chunks": array.chunks if sharded else sizes,
        "shards": sizes if sharded else None,
        "preferred_chunks": dict(zip(names, preferred, strict=True)),
    }
    if array.meta.data_type.name in _OBJECTS:
        encoding["dtype"] = _dtype(array)
    return encoding


def _sizes(grid: Grid, most: int | None = None) -> tuple[int | tuple[int, ...], ...]:
    """Sizes of stored objects along each dimension: one number, or all of them where they differ.

    Where there are more than `most`, of as many of them together as leave no more.

    Examples
    --------
    >>> from zarr_dask.grid import Edges
    >>> _sizes(Grid((Fixed(4, 10), Edges.of([3, 4], 6))))
    (4, (3, 3))
    >>> _sizes(Grid((Fixed(4, 100),)), most=10)
    (12,)
    """
    return tuple(
        dimension.size * (-(-dimension.count // most) if most and dimension.count else 1)
        if isinstance(dimension, Fixed)
        else dimension.lengths or (0,)
        for dimension in grid.dimensions
    )


def _codecs_of_v3(array: Array) -> dict[str, Any]:
    """Codecs by the keywords that zarr-python has for them; of the chunks in shards."""
    codecs = _innermost(array.codecs)
    at = next(i for i, codec in enumerate(codecs) if isinstance(codec, Serializer))
    return {
        "filters": tuple(codec.document() for codec in codecs[:at]),
        "serializer": codecs[at].document(),
        "compressors": tuple(codec.document() for codec in codecs[at + 1 :]),
    }


def _innermost(codecs: Sequence[Codec]) -> Sequence[Codec]:
    """The codecs of what is decoded at once."""
    for codec in codecs:
        if isinstance(codec, Serializer) and codec.inner_codecs is not None:
            return _innermost(codec.inner_codecs)
    return codecs


def _codecs_of_numcodecs(array: Array) -> dict[str, Any]:
    """Filters and compressor as numcodecs' own objects, which zarr-python takes for v2.

    Without them where numcodecs lacks one.
    """
    stored = stored_dtype(array.meta)
    encoding: dict[str, Any] = {} if stored.isnative else {"dtype": stored}
    filters, compressor = numcodecs_steps(array.meta)
    try:
        made = [numcodecs.get_codec(item) for item in [*filters, compressor] if item is not None]
    except (ValueError, ImportError):
        return encoding
    count = len(made) if compressor is None else len(made) - 1
    return {**encoding, "filters": tuple(made[:count]), "compressors": tuple(made[count:])}


def _decoded_fill(value: Any, array: Array) -> Any:
    """A ``_FillValue`` as xarray's own Zarr backend writes it; what others write is left as it is.

    xarray packs floats as doubles into base64, byte strings as they are, complex numbers as two
    floats. NCZarr and GDAL write plain numbers.
    """
    kind = array.dtype.kind
    try:
        if array.meta.data_type.name == "bytes" or kind == "S":
            return base64.b64decode(value, validate=True) if isinstance(value, str) else value
        if kind == "f":
            return _double(value)
        if kind == "c" and isinstance(value, list) and len(value) == 2:
            return complex(_double(value[0]), _double(value[1]))
    except (binascii.Error, struct.error, ValueError):
        return value
    return value


def _double(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if value in {"NaN", "Infinity", "-Infinity"}:  # as Zarr's own documents spell them
        return float(value)
    return struct.unpack("<d", base64.b64decode(value, validate=True))[0]


# --- elements -------------------------------------------------------------------------------------

_OBJECTS = {"string": str, "bytes": bytes}
"""Data types that are held as Python objects of one kind."""


def _dtype(array: Array) -> np.dtype[Any]:
    """The array's NumPy type; where elements are objects, with the mark that tells xarray which."""
    kind = _OBJECTS.get(array.meta.data_type.name)
    if kind is None:
        return array.dtype
    marked: np.dtype[Any] = create_vlen_dtype(kind)  # type: ignore[no-untyped-call]
    return marked


class StoredArray(BackendArray):
    """An array as xarray reads it; it can be pickled, and read by many threads.

    The main thread of a program reads with all threads of its pool. Threads of others, which are
    those of dask's schedulers and of servers, read by themselves, and so do other processes.
    """

    def __init__(self, array: Array) -> None:
        self._array = array  # xarray looks into what has an attribute `array`
        self.shape = array.shape
        self.dtype = _dtype(array)

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return self._read(key, 1 if _is_worker() else None)

    async def async_getitem(self, key: indexing.ExplicitIndexer) -> Any:
        """As indexing, in another thread."""
        return await asyncio.to_thread(self._read, key, None)

    def _read(self, key: indexing.ExplicitIndexer, threads: int | None) -> Any:
        def select(index: tuple[Any, ...]) -> Any:
            if isinstance(key, indexing.OuterIndexer):
                return self._array.lazy.oindex[index].read(threads=threads)
            if isinstance(key, indexing.VectorizedIndexer):
                return self._array.lazy.vindex[index].read(threads=threads)
            selection = parse_basic(index, self.shape)
            values = self._array.read(selection.region, threads=threads)
            return values[selection.finish]

        return indexing.explicit_indexing_adapter(
            _without_empty(key, self.shape), self.shape, indexing.IndexingSupport.VECTORIZED, select
        )


def _without_empty(key: indexing.ExplicitIndexer, shape: Shape) -> indexing.ExplicitIndexer:
    """The key with other slices for those of no element, for which xarray fails backwards."""
    items = tuple(
        slice(0, 0, 1) if isinstance(item, slice) and not range(n)[item] else item
        for item, n in zip(key.tuple, shape, strict=True)
    )
    return type(key)(items)


def _is_worker() -> bool:
    """Whether somebody else has divided the work among threads or processes already."""
    is_main = threading.current_thread() is threading.main_thread()
    return not is_main or multiprocessing.parent_process() is not None
