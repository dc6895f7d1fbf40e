"""References of kerchunk to the chunks of many files: a dataset without a copy of its values.

References are documents of Zarr v2 and, for each chunk, a file with an offset and a size. They can
name only chunks of one shape with one list of filters. Small arrays that are not so are put into
the document, and so are coordinates of dimensions, which readers need before anything else: opening
the dataset would ask for every file.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import gcd, prod
from typing import Any

import numpy as np

from zarr_dask._util.keywords import takes_habits
from zarr_dask.array.array import Array
from zarr_dask.errors import IngestError, NodeExistsError
from zarr_dask.formats.references import (
    PARQUET_METADATA,
    ReferencedArray,
    group_references,
    parquet_files,
)
from zarr_dask.grid.grid import Fixed
from zarr_dask.hierarchy.open_node import open_array
from zarr_dask.jobs.engine.plan import format_bytes
from zarr_dask.jobs.ingest.combine import Combined, Order, combine
from zarr_dask.jobs.ingest.dataset_store import DatasetStore
from zarr_dask.jobs.ingest.differences import checked_settle, refuse
from zarr_dask.jobs.ingest.file_store import encode_block
from zarr_dask.jobs.ingest.header import Header, Variable, decoded
from zarr_dask.jobs.ingest.ingest import surveyed
from zarr_dask.stores.backends.reference_targets import is_parquet, pyarrow
from zarr_dask.stores.base import Store, get_start
from zarr_dask.stores.open import Location, open_store
from zarr_dask.stores.patience import in_job

__all__ = ["reference"]

_INLINE = 1 << 20
"""Most bytes of an array that is put into the document."""
_LARGEST = 1 << 26
"""Most bytes of a chunk of values that lie in one range of bytes."""


@takes_habits()
@in_job()
def reference(
    files: Any,
    url: Location,
    *,
    concat: str | None = None,
    order: Order | None = None,
    settle: Mapping[str, str] | None = None,
    variables: Sequence[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
) -> int:
    """Write references to the chunks of many files, as kerchunk does; no values are copied.

    Parameters
    ----------
    files, concat, order, settle, variables, storage_options
        As for `zarr_dask.plan_ingest`; NetCDF and HDF5 files only.
    url
        Path or URL of the JSON document; of a folder for Parquet if it ends in ``.parq`` or
        ``.parquet``, of which readers load a part at a time.
    target_options
        Options of its store.

    Returns
    -------
    int
        Number of references.

    Raises
    ------
    IngestError
        If files do not fit together, or an array cannot be told by references.
    NodeExistsError
        If something else than references lies there.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> zd.reference("run/*.nc", "run.json", concat="time")  # doctest: +SKIP
    >>> zd.open_dataset("reference::run.json")  # doctest: +SKIP
    """
    settled = checked_settle(settle)
    tables = _checked_folder(str(url), target_options) if is_parquet(str(url)) else None
    survey, concat = surveyed(files, storage_options, concat, order)
    headers = [
        _with_ranges(one, _extents(survey.headers, concat), concat) for one in survey.headers
    ]
    found = combine(headers, concat=concat, order=order, settle=settled, variables=variables)
    refuse(found.differences, found.doubt)
    store = DatasetStore.of(found, storage_options)
    refs: dict[str, Any] = {}
    for path in dict.fromkeys(("", *found.groups)):
        refs.update(group_references(path, found.groups.get(path, {})))
    for path, one in found.arrays.items():
        refs.update(_array(store, path, one))
    if tables is None:
        document = json.dumps({"version": 1, "refs": refs}).encode()
        folder, _, name = str(url).rpartition("/")
        _put_document(open_store(folder or ".", target_options), name, document)
    else:
        _put_tables(tables, refs)
    return sum(isinstance(one, list) for one in refs.values())


def _put_document(store: Store, name: str, document: bytes) -> None:
    """Put references in JSON where nothing or another document of JSON is.

    Raises
    ------
    NodeExistsError
        If there is something else, such as one of the files.
    """
    start = get_start(store, name, 1)
    if start is not None and bytes(start) != b"{":
        raise NodeExistsError(
            f"{store.url}/{name} is no document of references, which would take its place. Give "
            "another name, or remove it."
        )
    store.set(name, [document])


def _checked_folder(url: str, options: Mapping[str, Any] | None) -> Store:
    """Return the store of references in Parquet.

    Raises
    ------
    NodeExistsError
        If there is something else, which would be removed.
    """
    pyarrow()
    store = open_store(url, options)
    if store.get(PARQUET_METADATA) is None and next(iter(store.list()), None) is not None:
        raise NodeExistsError(
            f"{url} has files, but no {PARQUET_METADATA}: it holds no references, which would take "
            "its place. Give another folder, or remove it."
        )
    return store


def _put_tables(store: Store, refs: Mapping[str, Any]) -> None:
    """Write references in Parquet; they are none until their metadata are written, as the last."""
    store.delete(PARQUET_METADATA)
    store.delete_prefix("")
    for key, content in parquet_files(refs):
        store.set(key, [content])


def _extents(headers: Sequence[Header], concat: str | None) -> int:
    """Return the largest length that divides those of all files along the concatenation."""
    lengths = [one.dimensions.get(concat or "", 0) for one in headers]
    return gcd(*lengths) if lengths else 0


def _with_ranges(header: Header, common: int, concat: str | None) -> Header:
    """Return a header whose ranges of bytes are cut where chunks of one shape need it."""
    changed = {
        path: replace(one, chunks=_cut(one, common if one.dims[:1] == (concat,) else 0))
        for path, one in header.variables.items()
        if one.layout in {"range", "records"} and one.shape and not one.unsupported
    }
    return replace(header, variables={**header.variables, **changed})


def _cut(one: Variable, common: int) -> tuple[int, ...]:
    rest = tuple(max(n, 1) for n in one.shape[1:])
    if one.layout == "records":
        return (1, *rest)
    most = max(common or one.shape[0], 1)
    row = prod(rest) * one.itemsize
    divisors = [n for n in range(1, most + 1) if most % n == 0 and n * row <= _LARGEST]
    return (max(divisors, default=1), *rest)


def _array(store: DatasetStore, path: str, one: Combined) -> dict[str, Any]:
    """Return the references of one array.

    Raises
    ------
    IngestError
        If references cannot tell it.
    """
    regular = all(isinstance(d, Fixed) for d in one.meta.grid.dimensions)
    places = _places(store, one) if regular and one.served.dtype != "string" else None
    if places is None or _is_index(one):
        return _inlined(open_array(store, path), one, _kind(store, one))
    stored, unwritten = places
    chunks = one.meta.grid.largest_cell
    made = _documents(one, chunks, np.dtype(one.served.dtype))
    fills = {file: store.headers[file].variables[path].fill for file in {*unwritten.values()}}
    of_files = {file: _unwritten_chunk(made, one, fill) for file, fill in fills.items()}
    named = {at: text for at, file in unwritten.items() if (text := of_files[file]) is not None}
    if sum(map(len, named.values())) > _INLINE:
        return _inlined(open_array(store, path), one, _kind(store, one))
    chunk_refs = {made.key(at): place for at, place in {**stored, **named}.items()}
    return {**made.documents(), **chunk_refs}


def _unwritten_chunk(made: ReferencedArray, one: Combined, fill: Any) -> str | None:
    """Return a reference to a chunk of what HDF5 reads where nothing was written.

    None if readers have it without a reference: zeros, or masked values.

    Parameters
    ----------
    made, one
        The array.
    fill
        Fill value of the file, which may differ from those of others.
    """
    dtype = np.dtype(made.dtype)
    value = np.zeros((), dtype) if fill is None else decoded(fill)
    seen = np.zeros((), dtype) if made.fill is None else one.served.attribute("_FillValue")
    with np.errstate(all="ignore"):
        value, seen = (np.asarray(number).astype(dtype) for number in (value, seen))
    if np.array_equal(value, seen, equal_nan=dtype.kind in "fc"):
        return None
    store = open_store({})
    for key, text in made.documents().items():
        store.set(key, [text.encode()])
    array = open_array(store, one.path, "r+")
    array[tuple(slice(0, n) for n in made.chunks)] = value
    data = store.get(made.key((0,) * array.ndim))
    return None if data is None else f"base64:{base64.b64encode(data).decode()}"


def _is_index(one: Combined) -> bool:
    """True for the coordinate of a dimension, if it is small enough for the document."""
    name = one.path.rpartition("/")[2]
    dtype = np.dtype(one.served.dtype)
    small = prod(one.meta.shape) * dtype.itemsize <= _INLINE
    return one.meta.dimension_names == (name,) and small


def _places(
    store: DatasetStore, one: Combined
) -> tuple[dict[tuple[int, ...], list[Any]], dict[tuple[int, ...], int]] | None:
    """Return file, offset and size of each stored chunk, and the files of those that are not.

    None if one is no range of bytes.
    """
    found: dict[tuple[int, ...], list[Any]] = {}
    unwritten: dict[tuple[int, ...], int] = {}
    for coords in product(*map(range, one.meta.grid.counts)):
        direct = store.direct_chunk(one, coords)
        if direct is None:
            return None
        file = store.file(direct[0])
        try:
            place = file.place_of(one.path, direct[1])
        except LookupError:
            unwritten[coords] = direct[0]
            continue
        if place is None:
            return None
        found[coords] = [_target(file.url), *place]
    return found, unwritten


def _target(url: str) -> str:
    return url if "://" in url else f"file://{url}"


def _kind(store: DatasetStore, one: Combined) -> str:
    return next(store.headers[piece.file].kind for piece in one.pieces if piece.file >= 0)


def _inlined(array: Array, one: Combined, kind: str) -> dict[str, Any]:
    texts = array.dtype.kind == "O"
    data = b"" if array.nbytes > _INLINE else _encoded(array, one)
    if max(len(data), array.nbytes) > _INLINE:
        why = (
            "its chunks differ between files, a file ends within a chunk, they have filters that "
            f"only the HDF5 library knows, or it has more than {format_bytes(_INLINE)} of texts"
            if kind in {"hdf5", "netcdf3"}
            else f"the engine {kind!r} reads it, so that it is no NetCDF or HDF5, and it has more "
            f"than {format_bytes(_INLINE)}"
        )
        raise IngestError(
            f"{one.path} cannot be told by references: {why}. Leave it out (variables=), or copy "
            "the files with zarr_dask.ingest."
        )
    chunks = [max(n, 1) for n in array.shape]
    filters = ({"id": "vlen-utf8"},) if texts else ()
    dtype = array.dtype if texts or array.dtype.itemsize == 1 else array.dtype.newbyteorder("<")
    made = _documents(replace(one, served=replace(one.served, filters=filters)), chunks, dtype)
    value = f"base64:{base64.b64encode(data).decode()}"
    return {**made.documents(), **({made.key((0,) * array.ndim): value} if array.size else {})}


def _encoded(array: Array, one: Combined) -> bytes:
    """Return all values as one chunk without filters, little endian."""
    values = np.ascontiguousarray(array.read()).reshape(array.shape)
    if array.dtype.kind == "O":
        return encode_block(values, one.served, array.shape)
    return values.astype(values.dtype.newbyteorder("<")).tobytes()


def _documents(one: Combined, chunks: Sequence[int], dtype: np.dtype[Any]) -> ReferencedArray:
    """Return the array as its documents tell it; the fill value is the mask."""
    given = one.served.attrs.get("_FillValue")
    fill = given["value"] if isinstance(given, Mapping) else given
    several = isinstance(fill, list)  # a fill value is one number
    if several or dtype.kind == "S":  # characters have no masks
        fill = None
    return ReferencedArray(
        one.path,
        one.meta.shape,
        chunks,
        dtype.str,
        one.served.filters,
        fill,
        {k: v for k, v in one.meta.attributes.items() if several or k != "_FillValue"},
        one.meta.dimension_names or (),
    )
