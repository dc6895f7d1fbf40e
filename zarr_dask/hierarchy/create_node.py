"""Creating and deleting nodes: what is checked, made room for, and put in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from zarr_dask._util.arguments import check_bools
from zarr_dask._util.keywords import takes_habits
from zarr_dask.array.array import Array
from zarr_dask.array.create_options import (
    NEW_ARRAY_HABITS,
    OPEN_HABITS,
    CreateOptions,
    takes_codec_steps,
)
from zarr_dask.array.revalidate import Shown
from zarr_dask.dtypes.base import DefaultFill
from zarr_dask.errors import NodeExistsError, ZarrDaskError
from zarr_dask.formats.base import Format, GroupMeta, checked_attributes, where
from zarr_dask.formats.detect import format_for_new
from zarr_dask.formats.documents import looking_once
from zarr_dask.formats.handles import opened
from zarr_dask.hierarchy.locate import (
    Node,
    PrefetchedLocation,
    parent_format,
    prefetch_location,
    resolve_node,
)
from zarr_dask.indexing.basic import checked_region
from zarr_dask.stores.base import Store
from zarr_dask.stores.open import Location

if TYPE_CHECKING:
    from zarr_dask.array.create import ArraySpec
    from zarr_dask.journal import NodeClaim

__all__ = ["DATA_OPTIONS", "check_is_such", "create_array", "delete", "put_group"]

DATA_OPTIONS = frozenset({"shape", "dtype", "data"})
"""Keywords that make a new node an array."""


@takes_codec_steps
@takes_habits(**OPEN_HABITS, **NEW_ARRAY_HABITS)
def create_array(
    url: Location | Node,
    path: str = "",
    *,
    shape: Any = None,
    dtype: Any = None,
    data: Any = None,
    chunks: Any = "auto",
    shards: Any = None,
    codecs: Any = None,
    fill_value: Any = DefaultFill.OF_DTYPE,
    dimension_names: Any = None,
    attributes: Mapping[str, Any] | None = None,
    format: str | None = None,
    overwrite: bool = False,
    order: Literal["C", "F"] = "C",
    chunk_key_encoding: Any = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Array:
    """Create an array: its metadata and those of the groups above, and its values with `data`.

    Parameters
    ----------
    url, path
        Location: a path, a URL, a store, a mapping, or a node that is open for writing, of this
        package or of zarr-python; and the path below it.
    shape
        Elements along each dimension; may be left out with `data`.
    dtype
        Data type, which may be left out with `data`: anything that NumPy accepts (numbers,
        ``"U8"``, ``"S8"``, ``"V8"``, ``"M8[ns]"``, records), ``str`` or ``bytes`` for texts or byte
        strings of any length, a type of ml_dtypes, or the name or JSON object of a data type of
        Zarr v3 (``"string"``, ``"bfloat16"``, ``"r24"``). The byte order of a NumPy type is that of
        the stored bytes.
    data
        Values of the array: a NumPy array, a scalar or nested lists. They are written before the
        metadata, so that no reader sees half of them. `to_zarr` writes dask arrays.
    chunks
        Shape of a chunk, the unit of decoding: a length for all dimensions, for each, or for some
        by name or position, -1 for a whole dimension; False for one chunk, a size such as
        ``"10MB"``, or ``"auto"`` for near-cubic chunks of about 4 MiB, or 1 MiB within shards.
        ``(10, "auto")`` chooses one length so, ``{"time": "10MB"}`` one that makes the whole chunk
        of this size, and None is a whole dimension, as in dask. For v3,
        the sizes of all chunks along a dimension may be given instead of one length, as in
        dask: ``((31, 28, 31), 100)``. This makes a ``rectilinear`` grid, which few readers support,
        unless all sizes are equal except for a smaller last one.
    shards
        Shape of a stored object that holds several chunks; a multiple of the chunk shape, in the
        same forms. ``"auto"`` for about 64 MiB, or a size such as ``"256MB"``. None or False to
        store each chunk as an object of its own.
    codecs
        For v3 a list of codecs (names, objects with ``name`` and ``configuration``, codecs of
        `zarr_dask.codecs`, of zarr-python or of numcodecs), or one of them; inside shards if
        `shards` is given; a missing ``bytes`` codec is added. For v2 a list of numcodecs
        configurations, the compressor last; for v1 only the compressor (one of blosc, zlib, bz2,
        lzma). For the drafts either form, if they have the codecs. By default blosc (zstd, level 1,
        shuffled), or zstd for elements of one byte or of variable length, and crc32c for v3.
    fill_value
        Value of elements that are not written; None (v1 and v2) leaves it undefined. By default 0,
        and ``NaT`` for times. 0 is the zero of any data type: an empty text, a record of zeros, the
        first moment of 1970.
    dimension_names
        A name or None per dimension.
    attributes
        JSON values by name.
    format
        ``"v3"``, ``"v2"``, ``"v1"`` (or 3, 2, 1), or the v3 draft of 2022: ``"v3draft"``, or
        ``"v3draft-2022-05"`` for its older layout, which zarr-python 2 reads. By default the format
        of the surrounding group, or v3 if there is none.
    overwrite
        Replace an existing node, including all nodes below it.
    order
        ``"F"`` stores the elements of a chunk with the first dimension varying fastest.
    chunk_key_encoding
        Separator of the coordinates in keys, ``"/"`` or ``"."``. v3 also: ``"default"``, ``"v2"``,
        or either with a separator, as in ``{"name": "v2", "separator": "/"}``.
    storage_options
        Options of the store.

    Returns
    -------
    Array
        The new array, open for writing.

    Raises
    ------
    NodeExistsError
        If a node exists there already, or an array above it.
    GridError
        If chunks, shards and shape do not fit.
    MetadataError
        If the format cannot express the request; every problem is listed.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> a = zd.create_array({}, shape=(64, 64), dtype="f4", chunks=8, shards=32)
    >>> a.chunks, a.shards
    ((8, 8), (32, 32))
    >>> zd.create_array({}, data=[[1, 2], [3, 4]], dimension_names=["y", "x"])[1]
    array([3, 4])
    """
    from zarr_dask.array.create import ArraySpec, given_values, shape_of_values

    check_bools(overwrite=overwrite)
    values = None
    if data is not None:
        values, found = given_values(data)
        shape, dtype = shape_of_values(values, shape), found if dtype is None else dtype
    elif shape is None or dtype is None:
        missing = "shape=" if shape is None else "dtype="
        raise TypeError(f"create_array() needs {missing}, or data= with values.")
    spec = ArraySpec(
        shape=shape,
        dtype=dtype,
        chunks=chunks,
        shards=shards,
        codecs=codecs,
        fill_value=fill_value,
        dimension_names=dimension_names,
        attributes={} if attributes is None else attributes,
        format=format,
        order=order,
        chunk_key_encoding=chunk_key_encoding,
    )
    from zarr_dask.stores.sessions import transaction

    store, path = resolve_node(url, path, storage_options)
    with (
        transaction(url, store, f"create the array {path}") as place,
        looking_once() if values is None else nullcontext(),
    ):
        return _create_array(place, path, spec, values, overwrite=overwrite)


def _create_array(
    store: Store, path: str, spec: ArraySpec, values: np.ndarray | None, *, overwrite: bool
) -> Array:
    from zarr_dask.array.create import array_meta
    from zarr_dask.hierarchy.edit import (
        check_can_create,
        make_room_for_array,
        put_new_node,
        puts_metadata_first,
        rollback_metadata,
    )
    from zarr_dask.hierarchy.exclusive import creating

    def planned(prefetched: PrefetchedLocation) -> tuple[Array, Mapping[str, bytes]]:
        node_format = format_for_new(
            store, spec.format or parent_format(prefetched.store, path), path
        )
        meta = array_meta(replace(spec, format=node_format.name), where(store, path))
        documents = node_format.documents(meta, path)
        array = Array(store, path, meta, node_format)
        if values is not None:
            array.cast(values)  # refuses what it cannot hold
        return array, documents

    def check(prefetched: PrefetchedLocation) -> None:
        check_can_create(
            prefetched.store, path, planned(prefetched)[0].node_format, overwrite=overwrite
        )

    with creating(store, path, check) as (prefetched, claim):
        array, documents = planned(prefetched)
        meta, node_format = array.meta, array.node_format
        make_room_for_array(
            store,
            path,
            node_format,
            meta,
            overwrite=overwrite,
            prefetched=prefetched,
            is_claimed=claim is not None,
        )
        if values is not None:
            try:
                _fill(array, values, claim)
            except ZarrDaskError:
                rollback_metadata(store, path)
                raise
        put_new_node(store, path, documents, again=puts_metadata_first(store), claim=claim)
    array = replace(array, shown=Shown(path))
    opened(array)
    return array


def _fill(array: Array, values: np.ndarray, claim: NodeClaim | None) -> None:
    """Write the values of a new array, which have its shape, or are one value for all."""
    from zarr_dask.array.writer import write_parts

    grid, whole = array.meta.grid, checked_region(None, array.shape)
    elements = np.broadcast_to(array.cast(values), array.shape)
    fence = None if claim is None else claim.fence
    write_parts(array, lambda: grid.parts(whole), elements, None, fence=fence)


def put_group(
    store: Store,
    path: str,
    attributes: Mapping[str, Any] | None,
    format: str | None,
    *,
    overwrite: bool,
) -> tuple[GroupMeta, Format]:
    """Put the metadata of a group and of the groups above it; see `create_group`."""
    from zarr_dask.hierarchy.edit import make_room_for_node, put_new_node, puts_metadata_first

    check_bools(overwrite=overwrite)
    given = checked_attributes({} if attributes is None else attributes, where(store, path))
    meta = GroupMeta(given)

    def planned(prefetched: PrefetchedLocation) -> tuple[Format, Mapping[str, bytes]]:
        node_format = format_for_new(store, format or parent_format(prefetched.store, path), path)
        return node_format, node_format.documents(meta, path)

    with _creating_group(store, path, planned, overwrite=overwrite) as (prefetched, claim):
        node_format, documents = planned(prefetched)
        make_room_for_node(
            store, path, node_format, overwrite=overwrite, is_group=True, prefetched=prefetched
        )
        put_new_node(store, path, documents, again=puts_metadata_first(store), claim=claim)
    return meta, node_format


@contextmanager
def _creating_group(
    store: Store, path: str, check: Callable[[PrefetchedLocation], object], *, overwrite: bool
) -> Iterator[tuple[PrefetchedLocation, NodeClaim | None]]:
    """As `creating`, without a claim to a group that replaces nothing: its document is enough."""
    from zarr_dask.hierarchy.exclusive import creating

    if overwrite:
        with creating(store, path, check) as claimed:
            yield claimed
    else:
        yield prefetch_location(store, path, below=False), None


def check_is_such(array: Array, options: CreateOptions) -> None:
    """Refuse an array of another shape or data type than is asked for.

    Raises
    ------
    NodeExistsError
        If it is such an array.
    """
    if not DATA_OPTIONS & options.keys():
        return
    from zarr_dask.array.create import ArraySpec, array_meta, given_shape

    values = options.get("data")
    if values is not None:
        raise NodeExistsError(
            f"{array.where} exists already and was left as it is: open it without data= and write "
            "by array[...] = values, or pass mode='w' to replace it."
        )
    shape = given_shape(options.get("shape", array.shape))
    wanted = ArraySpec(shape=shape, dtype=options.get("dtype", array.meta.data_type))
    dtype = array_meta(wanted, array.where).dtype
    if (shape, dtype) != (array.shape, array.dtype):
        raise NodeExistsError(
            f"{array.where} exists already, with shape {array.shape} of {array.dtype}, not "
            f"{shape} of {dtype}; it was left as it is. Open it without shape= and "
            "dtype=, or pass mode='w' to replace it."
        )


@takes_habits(component="path", name="path")
def delete(
    url: Location | Node,
    path: str = "",
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Delete a node and everything below it, its metadata first.

    Parameters
    ----------
    url, path
        Location of the node. For the root of a store, everything in the store is deleted. The
        folder of a local store itself is kept, empty: it may be the current folder, shared, or a
        mount point.
    storage_options
        Options of the store.

    Raises
    ------
    NodeNotFoundError
        If there is none.
    ReadOnlyError
        If the store is read-only.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> values = {}
    >>> _ = zd.create_array(values, "a", shape=(2,), dtype="i1")
    >>> zd.delete(values, "a")
    >>> list(values)
    ['zarr.json']
    """
    from zarr_dask.hierarchy.edit import delete_node
    from zarr_dask.stores.sessions import transaction

    store, path = resolve_node(url, path, storage_options)
    with transaction(url, store, f"delete {path}") as place:
        delete_node(place, path)
