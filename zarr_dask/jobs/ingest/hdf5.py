"""HDF5 and NetCDF-4 files through h5py: headers, places of chunks, and values.

Chunks are read where they lie in the file and decoded by the codecs of this package; the HDF5
library, which works for one thread at a time, only says where they are. It reads values itself
where a filter is unknown here, or data lie inside of its own structures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from zarr_dask.errors import MissingDependencyError
from zarr_dask.formats.documents import DEFAULT_LIMITS
from zarr_dask.jobs.ingest.header import (
    MOST_PLACES,
    Places,
    Variable,
    encoded,
    packed_places,
    reason,
)

__all__ = [
    "FAILURES",
    "LARGEST_USER_BLOCK",
    "SIGNATURE",
    "USER_BLOCK",
    "chunk_places",
    "dataset_of",
    "library",
    "read_header",
    "read_values",
]

SIGNATURE = b"\x89HDF\r\n\x1a\n"
USER_BLOCK = 512
"""Fewest bytes in front of the signature if there are any; else a power of two times as many."""
LARGEST_USER_BLOCK = 1 << 20
"""Last byte at which a signature is looked for."""

_INTERNAL = frozenset(
    {
        *("CLASS", "DIMENSION_LIST", "NAME", "REFERENCE_LIST", "DIMENSION_LABELS"),
        *("_Netcdf4Coordinates", "_Netcdf4Dimid", "_NCProperties", "_nc3_strict"),
        *("_NCCOPY", "_NCZARR_ARRAY", "_NCZARR_ATTR"),
    }
)
"""Attributes with which HDF5 and the netCDF library describe dimensions."""
_NO_VARIABLE = b"This is a netCDF dimension but not a netCDF variable"
NO_COORDINATE = "_nc4_non_coord_"
"""Prefix of the name of a variable that is called like a dimension, but is no coordinate of it."""
FAILURES = (OSError, ValueError, RuntimeError, KeyError, TypeError, IndexError)
"""Exceptions of the library about damaged files."""
_PIECE = 1 << 22
"""Bytes of the pieces in which one range of bytes is read."""


def library() -> Any:
    """Return h5py, with the filters of hdf5plugin where that is installed.

    Raises
    ------
    MissingDependencyError
        If h5py is not installed.
    """
    try:
        import h5py
    except ImportError:
        raise MissingDependencyError(
            "HDF5 and NetCDF-4 files are read by h5py, which is not installed: "
            "pip install 'zarr-dask[ingest]'."
        ) from None
    with suppress(ImportError):
        import hdf5plugin  # noqa: F401  (registers its filters)
    return h5py


# --- headers --------------------------------------------------------------------------------------


def read_header(
    file: Any,
) -> tuple[dict[str, dict[str, Any]], dict[str, Variable], tuple[str, ...]]:
    """Return the attributes of the groups of an open file, and its variables, by path.

    Third is what is left out: attributes as ``PATH@NAME``, and links by path.
    """
    left_out: list[str] = []
    groups: dict[str, dict[str, Any]] = {}
    variables: dict[str, Variable] = {}
    growing: dict[str, tuple[str, ...]] = {}
    known = _ScaleNames(file)
    for path, group, datasets, links in _groups(file["/"], ""):
        left_out += [f"{path}/{name}".lstrip("/") for name in links]
        own = _Attributes(group)
        groups[path] = own.of_users()
        left_out += [f"{path or '/'}@{name}" for name in own.left_out]
        phony: dict[tuple[int, int], str] = {}
        for name, dataset in datasets:
            attributes = _Attributes(dataset)
            if not attributes.scale_name().startswith(_NO_VARIABLE):
                at = f"{path}/{name.removeprefix(NO_COORDINATE)}".lstrip("/")
                try:
                    scales = _dims(known, dataset, attributes, phony)
                    variables[at] = _variable(dataset, attributes, scales)
                except (KeyError, ValueError) as error:  # a reference to nothing
                    variables[at] = _damaged(error)
                    continue
                left_out += [f"{at}@{one}" for one in attributes.left_out]
                longest = dataset.maxshape or ()
                if None in longest:
                    growing[at] = tuple(
                        "" if most is not None else scale
                        for most, scale in zip(longest, scales, strict=True)
                    )
    return groups, {**variables, **_grown(variables, growing)}, tuple(left_out)


def _grown(
    variables: Mapping[str, Variable], growing: Mapping[str, tuple[str, ...]]
) -> dict[str, Variable]:
    """Return variables that are shorter than their unlimited dimensions, at full length.

    The netCDF library reads fill values where a variable has fewer records than another one.

    Parameters
    ----------
    variables
        Variables by path, as long as their datasets are.
    growing
        The dimension of each axis by path; the empty text for an axis that cannot grow.
    """
    lengths: dict[str, int] = {}
    for path, scales in growing.items():
        for scale, length in zip(scales, variables[path].shape, strict=True):
            if scale.startswith("/"):
                lengths[scale] = max(length, lengths.get(scale, 0))
    found = {}
    for path, scales in growing.items():
        one = variables[path]
        shape = tuple(lengths.get(scale, n) for scale, n in zip(scales, one.shape, strict=True))
        if shape != one.shape:
            found[path] = replace(
                one, shape=shape, layout="values", filters=(), offset=None, places=""
            )
    return found


def _groups(
    group: Any, path: str, above: tuple[int, ...] = ()
) -> Iterator[tuple[str, Any, list[tuple[str, Any]], list[str]]]:
    """Yield all groups by hard links, with their datasets; not a group that lies in itself.

    Fourth are the names of links that are not followed.
    """
    h5py = library()
    members = list(_members(group))
    datasets = [(name, one) for name, one, _ in members if isinstance(one, h5py.Dataset)]
    yield path, group, datasets, [name for name, one, _ in members if one is None]
    own = (*above, h5py.h5o.get_info(group.id).addr)
    for name, inner, is_hard in members:
        if is_hard and isinstance(inner, h5py.Group):
            if path.count("/") > _DEEPEST:
                raise ValueError(f"groups lie more than {_DEEPEST} deep")
            if h5py.h5o.get_info(inner.id).addr not in own:
                yield from _groups(inner, f"{path}/{name}".lstrip("/"), own)


_DEEPEST = 64


def _members(group: Any) -> Iterator[tuple[str, Any, bool]]:
    """Yield names and objects of a group, and True for a hard link.

    The object is None behind a link to another file, or to nothing.
    """
    h5py = library()
    links: list[tuple[bytes, int]] = []
    by_age = group.id.get_create_plist().get_link_creation_order() & h5py.h5p.CRT_ORDER_TRACKED
    order = h5py.h5.INDEX_CRT_ORDER if by_age else h5py.h5.INDEX_NAME
    group.id.links.iterate(
        lambda name, link: links.append((name, link.type)), idx_type=order, info=True
    )
    for stored, kind in links:
        name = stored.decode("utf-8", "surrogateescape")
        if kind == h5py.h5l.TYPE_HARD:
            yield name, _opened(group, stored), True
        else:
            found = None
            if kind == h5py.h5l.TYPE_SOFT:
                with suppress(KeyError, RuntimeError):  # it leads nowhere
                    found = group[name] if _is_inside(group, name) else None
            yield name, found, False


def _opened(group: Any, name: bytes) -> Any:
    """Return what a hard link leads to, without the questions that h5py asks of its file."""
    h5py = library()
    found = h5py.h5o.open(group.id, name)
    if isinstance(found, h5py.h5d.DatasetID):
        return h5py.Dataset(found, readonly=True)
    return h5py.Group(found) if isinstance(found, h5py.h5g.GroupID) else found


def _is_inside(group: Any, path: str, depth: int = 0) -> bool:
    """True if a path leads through no link to another file."""
    h5py = library()
    at = group.file if path.startswith("/") else group
    for name in filter(None, path.split("/")):
        link = at.get(name, getlink=True)
        if isinstance(link, h5py.ExternalLink):
            return False
        soft = isinstance(link, h5py.SoftLink)
        if soft and (depth > _DEEPEST or not _is_inside(at, link.path, depth + 1)):
            return False
        at = at[name]
        if not isinstance(at, h5py.Group):
            break
    return True


class _Attributes:
    """The attributes of a group or dataset, whose names are asked for once."""

    def __init__(self, item: Any) -> None:
        self._id = item.id
        self._found = item.attrs
        self._names = list(self._found)
        self.left_out: list[str] = []
        """Those of users that NumPy has no data type for; known after `of_users`."""

    def get(self, name: str) -> Any:
        """Return a value as h5py gives it; None if there is none."""
        return self._found[name] if name in self._names else None

    def text(self, name: str) -> bytes:
        """Return a text as bytes; empty if there is none."""
        value = self.get(name)
        return value.encode() if isinstance(value, str) else bytes(value or b"")

    def is_scale(self) -> bool:
        """True for a dataset that is a dimension scale."""
        if "CLASS" not in self._names:
            return False
        is_one = library().h5ds.is_scale(self._id)  # in a tenth of the time of reading it
        return bool(is_one) or self.text("CLASS") == b"DIMENSION_SCALE"

    def scale_name(self) -> bytes:
        """Return the name of a dataset as a dimension scale; empty if there is none."""
        if "NAME" not in self._names:
            return b""
        with suppress(RuntimeError):  # it is no scale
            return bytes(library().h5ds.get_scale_name(self._id))
        return self.text("NAME")

    def of_users(self) -> dict[str, Any]:
        """Return those that do not belong to HDF5, in the form of `encoded`."""
        found = {}
        for name in self._names:
            if name not in _INTERNAL:
                try:
                    found[name] = _attribute(self._found[name])
                except (OSError, TypeError, ValueError):
                    self.left_out.append(name)
        return found


def _attribute(value: Any) -> Any:
    """Return an attribute in the form of `encoded`, with single elements as scalars."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, library().Empty):
        return ""
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "SO":
            texts = [
                v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v)
                for v in value.ravel()
            ]
            return texts[0] if len(texts) == 1 else texts
        if value.ndim == 1 and len(value) == 1:
            value = value[0]
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind not in "iufcbSU":
        raise TypeError(f"an attribute of the data type {value.dtype}")
    return encoded(value)


def _variable(dataset: Any, attributes: _Attributes, scales: tuple[str, ...]) -> Variable:
    """Return one dataset as a variable, with dimensions as `_dims` gives them."""
    attrs = attributes.of_users()
    shape = tuple(int(n) for n in dataset.shape or ())
    dims = tuple(scale.rpartition("/")[2] for scale in scales)
    stored = dataset.id.get_type()
    given = stored.dtype
    dtype, unsupported = _dtype(given)
    if dataset.shape is None:
        unsupported = "has no values (a null dataspace)"
    plist = dataset.id.get_create_plist()
    h5d = library().h5d
    kind = plist.get_layout()
    if kind == h5d.VIRTUAL or plist.get_external_count():
        unsupported = "lies in other files (a virtual dataset, or external storage)"
    filters = _filters(plist, given)
    fill: Any = None
    if not unsupported and dtype != "string":
        fill = np.zeros((), given)
        plist.get_fill_value(fill)
        fill = encoded(fill.astype(dtype)[()])
    layout, offset = "values", None
    chunks: tuple[int, ...] = tuple(map(int, plist.get_chunk())) if kind == h5d.CHUNKED else ()
    if isinstance(filters, str):
        unsupported = unsupported or filters
        filters = None
    if dtype == "string" or unsupported or not _is_as_in_numpy(stored):
        filters = None
    elif kind == h5d.CHUNKED and filters is not None:
        layout = "chunks"
    elif kind == h5d.CONTIGUOUS and filters is not None:
        layout, offset = "range", dataset.id.get_offset()
    nbytes = prod(chunks) * np.dtype(dtype).itemsize if dtype != "string" else 0
    if nbytes > DEFAULT_LIMITS.chunk_bytes:
        unsupported = f"has chunks of {nbytes} bytes, at most {DEFAULT_LIMITS.chunk_bytes} are read"
    has_places = layout == "chunks" and not unsupported
    places, unsupported = _few_places(dataset) if has_places else ("", unsupported)
    if not chunks:
        chunks = pieces(shape, 16 if dtype == "string" else np.dtype(dtype).itemsize)
    return Variable(
        dims,
        shape,
        dtype,
        attrs,
        layout,
        chunks,
        tuple(filters or ()),
        fill,
        offset,
        unsupported=unsupported,
        places=places,
    )


def _few_places(dataset: Any) -> tuple[str, str]:
    """Return the packed places of chunks if these are few, and the reason if they are not found."""
    counts = tuple(-(-n // size) for n, size in zip(dataset.shape, dataset.chunks, strict=True))
    if not 0 < prod(counts) <= MOST_PLACES:
        return "", ""
    try:
        found = chunk_places(dataset)
        end = dataset.file.id.get_filesize()
        if any(offset + size > end for offset, size, _ in found.values()):
            return "", "has chunks behind the end of the file"
        return packed_places(found, counts), ""
    except FAILURES as error:
        return "", f"has chunks that cannot be found ({reason(error)})"


def _damaged(error: Exception) -> Variable:
    """Return a variable whose header cannot be read."""
    text = f"has a header that cannot be read ({reason(error)})"
    return Variable((), (), "|u1", {}, "values", unsupported=text)


def pieces(shape: tuple[int, ...], itemsize: int, most: int = _PIECE) -> tuple[int, ...]:
    """Return the shape of the largest pieces that are one range of bytes, of up to `most` bytes.

    Examples
    --------
    >>> pieces((100, 512, 512), 4), pieces((3,), 8), pieces((10, 4096, 4096), 4)
    ((4, 512, 512), (3,), (1, 256, 4096))
    """
    piece = [1] * len(shape)
    left = max(most // itemsize, 1)
    for axis in reversed(range(len(shape))):
        piece[axis] = max(min(shape[axis], left), 1)
        left //= piece[axis]
        if piece[axis] < shape[axis]:
            break
    return tuple(piece)


def _dtype(dtype: np.dtype[Any]) -> tuple[str, str]:
    """Return the type string of a dataset, and the reason if it cannot be read."""
    h5py = library()
    if h5py.check_string_dtype(dtype) is not None and dtype.kind == "O":
        return "string", ""
    if dtype.kind in "iufcb" and dtype.itemsize <= (16 if dtype.kind == "c" else 8):
        return dtype.str, ""
    if dtype.kind == "S" and dtype.itemsize:
        return dtype.str, ""
    name = _name_of(dtype)
    return "|u1", f"has the data type {name}, which Zarr arrays of numbers and texts cannot have"


def _name_of(dtype: np.dtype[Any]) -> str:
    """Return the name of a data type, also of those that NumPy has as objects."""
    h5py = library()
    element = h5py.check_vlen_dtype(dtype)
    if element is not None:
        return f"'list of {element}'"
    return "'reference'" if h5py.check_ref_dtype(dtype) is not None else str(dtype)


def _is_as_in_numpy(stored: Any) -> bool:
    """True if elements lie in the file as NumPy has them.

    Integers may have fewer bits than their bytes, floats other parts than those of IEEE 754, and
    texts may be padded with blanks, or end at a zero with anything behind it.
    """
    h5t = library().h5t
    if isinstance(stored, h5t.TypeEnumID):
        stored = stored.get_super()
    if isinstance(stored, h5t.TypeStringID):
        return bool(stored.get_size() == 1 or stored.get_strpad() == h5t.STR_NULLPAD)
    return bool(stored == h5t.py_create(stored.dtype))


def _dims(
    known: _ScaleNames, dataset: Any, attributes: _Attributes, phony: dict[tuple[int, int], str]
) -> tuple[str, ...]:
    """Return the paths of the dimensions, as the netCDF library gives them.

    Dimensions that have no place in the file have a name without a slash in front of it.
    """
    ndim = len(dataset.shape or ())
    if ndim == 1 and attributes.is_scale():
        return (str(dataset.name),)
    listed = attributes.get("DIMENSION_LIST")
    names: list[str] = []
    by_id: Mapping[int, str] = {}
    ids: Any = attributes.get("_Netcdf4Coordinates") if listed is None else None
    if ids is not None and len(ids) == ndim:
        by_id = _dimension_ids(dataset.parent)
    for axis in range(ndim):
        if listed is not None and len(listed[axis]):
            names.append(known.name_of(listed[axis][0]))
        elif by_id and int(ids[axis]) in by_id:
            names.append(by_id[int(ids[axis])])
        else:
            length = int(dataset.shape[axis])
            label = dataset.dims[axis].label
            twin = sum(n == length for n in dataset.shape[:axis])  # dimensions differ by name
            names.append(label or phony.setdefault((length, twin), f"phony_dim_{len(phony)}"))
    return tuple(names)


class _ScaleNames:
    """The paths of the dimensions of a file: the library goes through the file to find each."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._found: dict[int, str] = {}

    def name_of(self, reference: Any) -> str:
        """Return the path of what a reference leads to."""
        h5py = library()
        address = h5py.h5o.get_info(h5py.h5r.dereference(reference, self._file.id)).addr
        if address not in self._found:
            found = h5py.h5r.get_name(reference, self._file.id)
            if found is None:
                raise ValueError("a dimension is a reference to nothing")
            self._found[address] = found.decode("utf-8", "surrogateescape")
        return self._found[address]


def _dimension_ids(group: Any) -> dict[int, str]:
    found: dict[int, str] = {}
    while True:
        for _, dataset, _ in _members(group):
            number = None if dataset is None else dataset.attrs.get("_Netcdf4Dimid")
            if number is not None:
                found.setdefault(int(number), str(dataset.name))
        if group.name == "/":
            return found
        group = group.parent


def _filters(plist: Any, dtype: Any) -> list[dict[str, Any]] | str | None:
    """Return filters as numcodecs names them; None if the HDF5 library must apply them.

    A text says why it cannot.
    """
    h5z = library().h5z
    found: list[dict[str, Any]] | None = []
    for number in range(plist.get_nfilters()):
        code, _, values, name = plist.get_filter(number)
        known = _known_filter(code, values, dtype.itemsize)
        if known is None:
            if not h5z.filter_avail(code):
                text = name.decode("utf-8", "replace") if isinstance(name, bytes) else name
                return (
                    f"has the filter {code} ({text.strip()}), which the HDF5 library lacks: "
                    "install hdf5plugin, which has the usual ones"
                )
            found = None
        elif found is not None:
            found.append(known)
    return found


def _known_filter(code: int, values: tuple[int, ...], itemsize: int) -> dict[str, Any] | None:
    """Return one filter as numcodecs names it; None if this package has no such codec."""
    if code == 1:
        return {"id": "zlib", "level": min(int(values[0]), 9) if values else 1}
    if code == 2:
        return {"id": "shuffle", "elementsize": int(values[0]) if values else itemsize}
    if code == 3:
        return {"id": "fletcher32"}
    if code == 307:
        return {"id": "bz2", "level": min(max(int(values[0]), 1), 9) if values else 9}
    if code == 32015:
        return {"id": "zstd", "level": min(int(values[0]), 22) if values else 3}
    if code == 32001:
        return {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}
    return None


# --- values ---------------------------------------------------------------------------------------


def chunk_places(dataset: Any) -> Places:
    """Return offset, size and filter mask of each stored chunk, by its coordinates."""
    shape = dataset.chunks
    found: dict[tuple[int, ...], tuple[int, int, int]] = {}

    def add(info: Any) -> None:
        coords = tuple(int(o) // n for o, n in zip(info.chunk_offset, shape, strict=True))
        if info.byte_offset is not None:
            found[coords] = (int(info.byte_offset), int(info.size), int(info.filter_mask))

    if hasattr(dataset.id, "chunk_iter"):
        dataset.id.chunk_iter(add)
    else:
        for number in range(dataset.id.get_num_chunks()):
            add(dataset.id.get_chunk_info(number))
    return found


def dataset_of(file: Any, path: str) -> Any:
    """Return the dataset of a variable, which may have another name in the file.

    Raises
    ------
    KeyError
        If there is none.
    """
    group, slash, name = path.rpartition("/")
    hidden = f"{group}{slash}{NO_COORDINATE}{name}"
    return file[hidden if hidden in file else path]


def read_values(dataset: Any, region: tuple[slice, ...]) -> np.ndarray:
    """Return a region of a dataset, read by the HDF5 library; texts as objects."""
    texts = library().check_string_dtype(dataset.dtype) is not None and dataset.dtype.kind == "O"
    stored = tuple(
        slice(s.start, min(s.stop, n)) for s, n in zip(region, dataset.shape, strict=True)
    )
    if stored != region:  # beyond the records that the dataset has
        lengths = tuple(s.stop - s.start for s in region)
        padded = np.full(
            lengths, "" if texts else dataset.fillvalue, object if texts else dataset.dtype
        )
        if all(s.stop > s.start for s in stored):
            padded[tuple(slice(0, s.stop - s.start) for s in stored)] = read_values(dataset, stored)
        return padded
    if texts:
        found = np.empty(tuple(s.stop - s.start for s in region), object)
        found[...] = dataset.asstr(errors="replace")[region] if found.ndim else dataset.asstr()[()]
        return found
    return np.asarray(dataset[region])
