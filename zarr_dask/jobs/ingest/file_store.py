"""One file as a read-only store of Zarr v3: keys are chunks of the file, where they lie in it.

A chunk of HDF5 is served as its bytes in the file behind a bit for each filter, which is the form
of the codec ``conditional``: HDF5, too, says for each chunk which filters it left out. So the
codecs of this package decode it, on any thread.
"""

from __future__ import annotations

import os
import struct
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import product
from typing import Any, ClassVar

import numpy as np

from zarr_dask.array.array import Array
from zarr_dask.array.create import ArraySpec, array_meta
from zarr_dask.errors import IngestError, MissingDependencyError, ReadOnlyError
from zarr_dask.formats.base import ArrayMeta
from zarr_dask.formats.detect import DEFAULT_FORMAT
from zarr_dask.grid.grid import Cells
from zarr_dask.jobs.ingest import hdf5, netcdf3
from zarr_dask.jobs.ingest.engine import ZARR, Opened, open_with
from zarr_dask.jobs.ingest.hdf5_file import opened_hdf5
from zarr_dask.jobs.ingest.header import (
    Header,
    Places,
    Variable,
    decoded,
    reason,
    unpacked_places,
)
from zarr_dask.jobs.ingest.source_file import SourceFile
from zarr_dask.stores.base import Buffer, Listing, Range, ReadPolicy

__all__ = [
    "INDEXED_FILES",
    "SMALL",
    "FileArrays",
    "ReadOnlyKeys",
    "chunk_codecs",
    "encode_block",
    "header_of",
    "meta_of",
]

SMALL = 1 << 16
"""Most bytes of a variable whose values are read with the header."""

INDEXED_FILES = 256
"""Number of files whose places of chunks a process keeps."""

FORMAT = DEFAULT_FORMAT


# --- metadata -------------------------------------------------------------------------------------


def chunk_codecs(dtype: str, filters: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return the codecs of Zarr v3 for the chunks of a variable.

    Examples
    --------
    >>> [codec["name"] for codec in chunk_codecs(">f4", [{"id": "zlib", "level": 1}])]
    ['bytes', 'conditional']
    """
    if dtype == "string":
        return [{"name": "vlen-utf8"}]
    order = "big" if np.dtype(dtype).str.startswith(">") else "little"
    plain = (
        {"name": "bytes"}
        if np.dtype(dtype).itemsize == 1
        else {"name": "bytes", "configuration": {"endian": order}}
    )
    inner = [_codec(one) for one in filters]
    return (
        [plain, {"name": "conditional", "configuration": {"codecs": inner}}] if inner else [plain]
    )


def _codec(one: Mapping[str, Any]) -> dict[str, Any]:
    options = {name: value for name, value in one.items() if name != "id"}
    return {"name": f"numcodecs.{one['id']}", "configuration": options}


def meta_of(
    variable: Variable,
    shape: Sequence[int],
    dims: Sequence[str],
    cells: Cells,
    attributes: Mapping[str, Any],
    at: str,
) -> ArrayMeta:
    """Return the metadata of an array whose chunks are those of a variable."""
    fill: Any = "" if variable.dtype == "string" else 0
    if variable.fill is not None and variable.dtype != "string":
        fill = decoded(variable.fill)
    dtype: Any = "string" if variable.dtype == "string" else np.dtype(variable.dtype)
    return array_meta(
        ArraySpec(
            shape=tuple(shape),
            dtype=dtype,
            chunks=cells,
            codecs=chunk_codecs(variable.dtype, variable.filters),
            fill_value=fill,
            dimension_names=tuple(dims),
            attributes=attributes,
            allow_nan=True,  # as xarray writes them
        ),
        at,
    )


@dataclass(frozen=True)
class _Alike:
    """A variable that equals all others whose arrays have the same metadata."""

    facts: tuple[Any, ...]
    one: Variable = field(compare=False)
    at: str = field(compare=False)

    @staticmethod
    def of(one: Variable, at: str) -> _Alike:
        texts = repr((one.filters, one.fill))
        return _Alike((one.shape, one.dims, one.chunks, one.dtype, texts), one, at)


@lru_cache(maxsize=256)  # files of one set are alike
def _meta_of(alike: _Alike) -> ArrayMeta:
    one = alike.one
    return meta_of(one, one.shape, one.dims, one.chunks, {}, alike.at)


def encode_block(values: np.ndarray, variable: Variable, cell: Sequence[int]) -> bytes:
    """Return a chunk of decoded values, as if no filter had been applied."""
    if values.shape != tuple(cell):
        padded = (
            np.zeros(tuple(cell), values.dtype)
            if values.dtype != object
            else np.full(cell, "", object)
        )
        padded[tuple(slice(0, n) for n in values.shape)] = values
        values = padded
    if variable.dtype == "string":
        texts = [str(v).encode() for v in values.ravel()]
        parts = [struct.pack("<I", len(texts))]
        for text in texts:
            parts += [struct.pack("<I", len(text)), text]
        return b"".join(parts)
    data = np.ascontiguousarray(values, variable.dtype).tobytes()
    return bytes(_header_bytes(variable)) + data


def _header_bytes(variable: Variable) -> int:
    return -(-len(variable.filters) // 8)


# --- one file -------------------------------------------------------------------------------------


class ReadOnlyKeys(ABC):
    """Base of stores over files: they are only read."""

    coalescing: ClassVar[ReadPolicy] = ReadPolicy(gap=0, largest=1 << 26)
    url: str

    @abstractmethod
    def get(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.get`."""

    def get_transient(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.get_transient`."""
        return self.get(key)

    def get_ranges(self, requests: Sequence[tuple[str, Range]]) -> list[Buffer | None]:
        """See `zarr_dask.stores.base.Store.get_ranges`."""
        found: list[Buffer | None] = []
        for key, wanted in requests:
            value = self.get(key)
            found.append(None if value is None else memoryview(value)[wanted.start : wanted.stop])
        return found

    def _refuse(self) -> ReadOnlyError:
        return ReadOnlyError(f"{self.url} stands for files that are only read.")

    def set(self, key: str, buffers: Sequence[Buffer]) -> None:  # noqa: ARG002
        """Raise: nothing can be written."""
        raise self._refuse()

    def delete(self, key: str) -> None:  # noqa: ARG002
        """Raise: nothing can be written."""
        raise self._refuse()

    def delete_prefix(self, prefix: str) -> None:  # noqa: ARG002
        """Raise: nothing can be written."""
        raise self._refuse()

    @abstractmethod
    def list(self, prefix: str = "") -> Iterator[str]:
        """See `zarr_dask.stores.base.Store.list`."""

    def list_dir(self, prefix: str = "") -> Listing:
        """See `zarr_dask.stores.base.Store.list_dir`."""
        return Listing.below(prefix, self.list(prefix))

    def size(self, key: str) -> int | None:
        """See `zarr_dask.stores.base.Store.size`."""
        value = self.get(key)
        return None if value is None else len(value)


@dataclass(frozen=True, eq=False)
class FileArrays(ReadOnlyKeys):
    """The variables of one file, as arrays of Zarr v3.

    Parameters
    ----------
    place
        The file.
    header
        What the survey has read of it.
    """

    place: SourceFile
    header: Header

    @property
    def url(self) -> str:  # type: ignore[override]
        """The location of the file."""
        return self.place.url

    @property
    def identity(self) -> str:
        """Location, size and tag of the file."""
        return f"file::{self.place.url}#{self.header.size}-{self.header.tag}"

    def array(self, path: str) -> Array:
        """Return one variable as an array."""
        found = self._arrays.get(path)
        if found is None:
            alike = _Alike.of(self.header.variables[path], f"{path} in {self.url}")
            found = self._arrays[path] = Array(self, path, _meta_of(alike), FORMAT)
        return found

    @cached_property
    def _arrays(self) -> dict[str, Array]:
        return {}

    def check(self) -> None:
        """Raise if the file is not the one that was surveyed.

        Raises
        ------
        IngestError
            If its size or time differs.
        """
        if self.place.version() != (self.header.size, self.header.tag):
            raise IngestError(
                f"{self.url} has changed since it was surveyed. Run the call again: it surveys "
                "files that have changed."
            )

    def get(self, key: str) -> Buffer | None:
        """Return a chunk of the file by the key ``PATH/c/0/1``; None if it is not stored."""
        path, _, rest = key.partition("/c") if "/c/" not in key else key.rpartition("/c/")
        coords = tuple(int(n) for n in rest.split("/")) if rest else ()
        return self.chunk(path, coords)

    def chunk(self, path: str, coords: tuple[int, ...]) -> Buffer | None:
        """Return the bytes of a chunk; None if it is not stored.

        Raises
        ------
        IngestError
            If the file does not hold them any more.
        """
        one = self.header.variables[path]
        if self.place.path is not None and not self.place.is_hierarchy:
            self.check()
        if one.layout == "values":
            return encode_block(self.values(path, _region(one, coords)), one, one.chunks)
        if one.layout == "chunks":
            found = self._index(path).get(coords)
            if found is None:
                return None
            offset, size, skipped = found
            count = len(one.filters)
            applied = ~skipped & ((1 << count) - 1)
            header = applied.to_bytes(_header_bytes(one), "little")
            return self.place.read_behind(header, Range(offset, offset + size))
        if one.offset is None:
            return None
        return self._of_range(one, coords)

    def _of_range(self, one: Variable, coords: tuple[int, ...]) -> Buffer:
        """Return a piece of a variable that lies in one range of bytes, or record by record."""
        start = one.offset or 0
        region = _region(one, coords)
        lengths = [s.stop - s.start for s in region]
        dtype = np.dtype(one.dtype)
        if one.layout == "records":
            record = int(np.prod(one.shape[1:], dtype=np.int64)) * dtype.itemsize
            first, count = region[0].start, lengths[0]
            begin = start + first * one.stride
            stop = begin + (count - 1) * one.stride + record
            (data,) = self.place.read([Range(begin, stop)])
            rows = [data[n * one.stride : n * one.stride + record] for n in range(count)]
            joint = b"".join(rows)
        else:
            begin = start
            stride = dtype.itemsize
            for s, length in zip(reversed(region), reversed(one.shape), strict=True):
                begin += s.start * stride
                stride *= length
            size = int(np.prod(lengths, dtype=np.int64)) * dtype.itemsize
            joint = bytes(self.place.read([Range(begin, begin + size)])[0])
        missing = int(np.prod(one.chunks, dtype=np.int64)) * dtype.itemsize - len(joint)
        if not missing:
            return joint
        values = np.frombuffer(joint, dtype).reshape(lengths)
        return encode_block(values, one, one.chunks)

    def place_of(self, path: str, coords: tuple[int, ...]) -> tuple[int, int] | None:
        """Return offset and size of a chunk in the file; None if it is not one whole range.

        Raises
        ------
        LookupError
            If it is not stored.
        """
        one = self.header.variables[path]
        if one.layout == "chunks":
            offset, size, skipped = self._index(path)[coords]
            return None if skipped else (offset, size)
        if one.layout == "records" and one.chunks[0] == 1:
            record = int(np.prod(one.shape[1:], dtype=np.int64)) * np.dtype(one.dtype).itemsize
            return (one.offset or 0) + coords[0] * one.stride, record
        whole = all(
            s.stop - s.start == n for s, n in zip(_region(one, coords), one.chunks, strict=True)
        )
        if one.layout != "range" or not whole:
            return None
        if one.offset is None:
            raise LookupError(path)
        begin, stride = one.offset, np.dtype(one.dtype).itemsize
        for s, length in zip(reversed(_region(one, coords)), reversed(one.shape), strict=True):
            begin += s.start * stride
            stride *= length
        return begin, int(np.prod(one.chunks, dtype=np.int64)) * np.dtype(one.dtype).itemsize

    def values(self, path: str, region: tuple[slice, ...]) -> np.ndarray:
        """Return a region of a variable, read by the library of the file's format."""
        if self.header.kind == "hdf5":
            with self._hdf5(path) as file:
                return hdf5.read_values(hdf5.dataset_of(file, path), region)
        opened: Opened = _OPEN.get(self)
        try:
            return opened.read(path, region)
        except OSError as error:
            raise _unread(path, self.url, error) from error

    @contextmanager
    def _hdf5(self, path: str) -> Iterator[Any]:
        """Open the file for one read: an open HDF5 file would keep others from writing it."""
        with opened_hdf5(self.place) as file:
            try:
                yield file
            except hdf5.FAILURES as error:
                raise _unread(path, self.url, error) from error

    def _index(self, path: str) -> Places:
        indices = self._indices
        if path not in indices:
            self.check()
            one = self.header.variables[path]
            if one.places:
                indices[path] = unpacked_places(one.places, one.chunk_counts)
            else:
                indices.update(self._looked_up(path))
        return indices[path]

    def _looked_up(self, path: str) -> dict[str, Places]:
        """Return the places of the chunks of all variables whose header does not have them."""
        with self._hdf5(path) as file:
            return {
                name: hdf5.chunk_places(hdf5.dataset_of(file, name))
                for name, one in self.header.variables.items()
                if one.layout == "chunks" and not one.places
            }

    def keep(self, found: Mapping[str, Places]) -> None:
        """Keep the places of the chunks of variables, as long as those of recent files are kept."""
        self._indices.update(found)

    @property
    def _indices(self) -> dict[str, Places]:
        return _indices_of(self.identity, repr(self.place.options), os.getpid())

    def __getstate__(self) -> dict[str, Any]:
        return {"place": self.place, "header": self.header}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)

    def list(self, prefix: str = "") -> Iterator[str]:
        """Yield the keys of all chunks that may be stored."""
        for path in self.header.variables:
            meta = self.array(path).meta
            for coords in product(*map(range, meta.grid.counts)):
                key = f"{path}/{meta.chunk_key_encoding.key(coords)}"
                if key.startswith(prefix):
                    yield key


def _region(one: Variable, coords: Sequence[int]) -> tuple[slice, ...]:
    return tuple(
        slice(n * size, min((n + 1) * size, length))
        for n, size, length in zip(coords, one.chunks, one.shape, strict=True)
    )


@lru_cache(maxsize=INDEXED_FILES)
def _indices_of(identity: str, options: str, process: int) -> dict[str, Places]:  # noqa: ARG001
    """Return the indices of one file, which a process keeps for some files."""
    return {}


class _OpenFiles:
    """Files that xarray has opened for this process, the ones used last."""

    most = 16

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: OrderedDict[tuple[str, int], Any] = OrderedDict()

    def get(self, file: FileArrays) -> Any:
        """Return an open file."""
        name = file.identity, os.getpid()
        with self._lock:
            found = self._open.get(name)
            if found is None:
                if file.place.is_hierarchy:
                    file.check()  # once, since it takes a listing
                found = self._open[name] = open_with(file.header.kind, file.place)
                while len(self._open) > self.most:
                    self._open.popitem(last=False)  # closed when the last thread lets go of it
            self._open.move_to_end(name)
            return found


_OPEN = _OpenFiles()


# --- opening --------------------------------------------------------------------------------------


def kind_of(place: SourceFile, size: int) -> str:
    """Return the kind of a file by its first bytes.

    Raises
    ------
    IngestError
        If they are of no known kind.
    """
    if place.is_hierarchy:
        return ZARR
    (start,) = place.read([Range(0, min(8, size))])
    begin = bytes(start)
    if not begin:
        raise IngestError(f"{place.url} is empty. Fetch it again, or leave the file out.")
    if begin == hdf5.SIGNATURE:
        return "hdf5"
    if begin[:3] == netcdf3.MAGIC:
        return "netcdf3"
    if begin[:4] == b"GRIB":
        return "cfgrib"
    if begin[:4] == b"PK\x03\x04" and place.path is not None:
        return ZARR
    if size > hdf5.USER_BLOCK and _has_user_block(place, size):
        return "hdf5"
    raise _of_other_kind(place.url, begin)


def _of_other_kind(url: str, begin: bytes) -> IngestError:
    """Return the error for a file that begins with these bytes."""
    if begin[:4] in _TIFF:
        return IngestError(
            f"{url} is a TIFF file, which holds an image: zarr_dask.ome.convert writes one, "
            "as does zarr-dask ome convert."
        )
    if begin[:1] == b"{":
        return IngestError(
            f"{url} is JSON. If it holds references, zarr_dask.open_dataset and "
            f"zarr_dask.copy read 'reference::{url}'."
        )
    for signature, name in _COMPRESSED.items():
        if begin.startswith(signature):
            return IngestError(
                f"{url} is compressed with {name} as a whole, so that no part of it can be "
                f"read by itself: decompress it first, as by '{name} -d'."
            )
    return IngestError(
        f"{url} is neither NetCDF nor HDF5 nor GRIB nor an archive of Zarr: it begins with "
        f"{begin!r}. Give the engine of xarray that reads it, engine='...', or leave the file out."
    )


_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
}
"""First bytes of compressed files, and what decompresses them."""
_TIFF = {b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"}
"""First bytes of TIFF and BigTIFF in either byte order."""


def _has_user_block(place: SourceFile, size: int) -> bool:
    """True for an HDF5 file behind bytes of its user, such as those of MATLAB."""
    at, length = hdf5.USER_BLOCK, len(hdf5.SIGNATURE)
    while at + length <= min(size, hdf5.LARGEST_USER_BLOCK):
        if bytes(place.read([Range(at, at + length)])[0]) == hdf5.SIGNATURE:
            return True
        at *= 2
    return False


def header_of(place: SourceFile, engine: str | None) -> Header:
    """Return the header of a file; one with an `error` if it cannot be read."""
    size, tag = 0, ""
    left_out: tuple[str, ...] = ()
    try:
        size, tag = place.version()
        kind = engine or kind_of(place, size)
        if kind == "netcdf3":
            groups, variables = _netcdf3_header(place, size)
        elif kind == "hdf5":
            with opened_hdf5(place) as file:
                groups, variables, left_out = hdf5.read_header(file)
                small = {}
                for name, one in variables.items():
                    if _is_small_index(one):
                        try:
                            small[name] = hdf5.chunk_places(hdf5.dataset_of(file, name))
                        except hdf5.FAILURES as error:
                            text = f"has chunks that cannot be found ({reason(error)})"
                            variables[name] = replace(one, unsupported=text)
                FileArrays(place, Header(place.url, size, tag)).keep(small)
        else:
            groups, variables = open_with(kind, place).header()
    except MissingDependencyError:
        raise
    except hdf5.FAILURES as error:
        text = reason(error).removeprefix(place.url)  # differences name the file themselves
        return Header(place.url, size, tag, error=text.removeprefix(":").lstrip())
    return Header(place.url, size, tag, kind, groups, variables, left_out=left_out)


def _is_small_index(one: Variable) -> bool:
    """True for chunks that the survey reads, and whose places its header does not have."""
    is_read = one.nbytes <= SMALL and not one.unsupported
    return is_read and one.layout == "chunks" and not one.places


_FIRST = 1 << 16


def _netcdf3_header(place: SourceFile, size: int) -> Any:
    length = min(_FIRST, size)
    while True:
        (data,) = place.read([Range(0, length)])
        try:
            return netcdf3.read_header(bytes(data), size)
        except netcdf3.ShortHeaderError:
            if length == size:
                raise
            length = min(length * 16, size)


def _unread(path: str, url: str, error: Exception) -> IngestError:
    return IngestError(f"{path} in {url} cannot be read ({reason(error)}).")
