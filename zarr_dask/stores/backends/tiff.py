"""Images in TIFF files as arrays of Zarr, which tifffile serves tile by tile or strip by strip.

tifffile's own stores hold an open file, so that no other process can have them. This one is the
path and the number of the image: each process opens the file once.

The dimensions can have another order than in the file, and several of them can be one. Pages that
are not compressed are served in rows of some MiB, however long their strips are.
"""

from __future__ import annotations

import json
import os
import re
import struct
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from glob import has_magic
from html import unescape
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from zarr_dask.errors import (
    DamagedValueError,
    MissingDependencyError,
    StoreError,
    ZarrDaskError,
)
from zarr_dask.stores.backends.local import LocalStore
from zarr_dask.stores.backends.zarr_python import ZarrPythonStore, answered_at_once, prototype
from zarr_dask.stores.base import WHOLE, Buffer, Range
from zarr_dask.stores.key_names import is_document
from zarr_dask.stores.wrappers.base import ReadOnly

__all__ = ["Dimensions", "open_tiff", "tiff_store"]

_MOST_OPEN = 8
"""Number of files that a process keeps open."""
_MOST_SERVED = 256
"""Number of images in them that it keeps."""
_ROWS = 1 << 22
"""Maximum number of bytes that are read of an uncompressed page at a time."""

_OF_DAMAGE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""Errors that tifffile and its decoders raise for damaged files: they take tags as they come."""

Dimensions = tuple[tuple[int, ...], ...]
"""Dimensions of the file that each dimension of the array is made of, from the slowest."""


@dataclass(frozen=True, eq=False)
class TiffStore(ZarrPythonStore):
    """One image of a TIFF file."""

    path: str
    series: int
    version: tuple[int, int]
    """Size and time of the file when it was opened first."""
    dimensions: Dimensions | None
    """Dimensions of the array, if they are not those of the file."""

    @property
    def url(self) -> str:
        """The path of the file."""
        return self.path

    @property
    def identity(self) -> str:
        """The path of the file, its version, the number of the image, and its dimensions."""
        size, time = self.version
        told = "" if self.dimensions is None else f":{self.dimensions}"
        return f"tiff:{self.path}:{size}:{time}:{self.series}{told}"

    @property
    def files_read(self) -> tuple[str, ...]:
        """See `zarr_dask.stores.base.ReadsFiles.files_read`."""
        return (self.path,)

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened, (self.path, self.series, self.version, self.dimensions)

    def get_ranges(self, requests: Sequence[tuple[str, Range]]) -> list[Buffer | None]:
        """See `zarr_dask.stores.base.Store.get_ranges`."""
        return [self._part(key, wanted) for key, wanted in requests]

    def size(self, key: str) -> int | None:
        """See `zarr_dask.stores.base.Store.size`."""
        value = self.get(key)
        return None if value is None else memoryview(value).nbytes

    def _part(self, key: str, wanted: Range) -> Buffer | None:
        if is_document(key):
            with _blaming_tags(self.path):
                document = self._document(key)
            return None if document is None else document[wanted.start : wanted.stop]
        first, *rest = key.replace("/", ".").split(".")
        named = first == "c"  # not by releases of tifffile for Python 3.11
        at = self._in_file([int(one) for one in (rest if named else [first, *rest])])
        if self._pages is not None:
            return self._pages.read(at, wanted)
        try:
            stored = "/".join(["c", *map(str, at)]) if named else ".".join(map(str, at))
            with self.reporting("read", key):
                decoded = answered_at_once(self.store.get(stored, prototype()))
            return None if decoded is None else decoded[wanted.start : wanted.stop]
        except _OF_DAMAGE as error:
            raise DamagedValueError(
                f"{self.path}, image {self.series}: the strip or tile {at} cannot be decoded: "
                f"{error}"
            ) from error

    @cached_property
    def _pages(self) -> _Pages | None:
        return _pages_of(_file(self.path, self.version).series[self.series])

    @cached_property
    def _grid(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shape and chunks in the file."""
        if self._pages is not None:
            return self._pages.shape, self._pages.chunk
        array = import_module("zarr").open_array(self.store, mode="r")
        return array.shape, array.chunks

    def _document(self, key: str) -> bytes | None:
        """Return the document of tifffile, with the dimensions and chunks of this store."""
        (stored,) = super().get_ranges([(key, WHOLE)])
        if stored is None:
            return None
        document: dict[str, Any] = json.loads(bytes(stored))
        if "codecs" not in document:
            return self._older_document(document)
        (shape, chunk), codecs = self._grid, document["codecs"]
        if self._pages is not None and self._pages.dtype.itemsize > 1:
            codecs = [{"name": "bytes", "configuration": self._pages.endian}]
        if self.dimensions is not None:
            inner = [one[-1] for one in self.dimensions]
            order = sorted(range(len(inner)), key=inner.__getitem__)
            document["dimension_names"] = None
            shape = tuple(prod(shape[i] for i in one) for one in self.dimensions)
            chunk = tuple(chunk[i] for i in inner)
            codecs = [{"name": "transpose", "configuration": {"order": order}}, *codecs]
        document["chunk_grid"]["configuration"]["chunk_shape"] = chunk
        return json.dumps(document | {"shape": shape, "codecs": codecs}).encode()

    def _older_document(self, document: dict[str, Any]) -> bytes:
        """Return a document of releases of tifffile that know no codecs."""
        if "shape" in document:
            document["shape"], document["chunks"] = self._grid
            if self._pages is not None:
                order = ">" if self._pages.endian.get("endian") == "big" else "<"
                document["dtype"] = np.dtype(document["dtype"]).newbyteorder(order).str
        if self.dimensions is not None:
            raise MissingDependencyError(
                f"{self.path}, image {self.series}: its dimensions are put in another order, which "
                "takes a tifffile newer than 2026.3, and so Python 3.12 or newer. Give axes= in "
                "the order of the file."
            )
        return json.dumps(document).encode()

    def _in_file(self, coords: Sequence[int]) -> tuple[int, ...]:
        """Return the coordinates of a chunk in the file."""
        if self.dimensions is None:
            return tuple(coords)
        shape, chunk = self._grid
        found = dict[int, int]()
        for at, one in zip(coords, self.dimensions, strict=True):
            counts = [-(-shape[i] // chunk[i]) for i in one]
            found |= zip(one, map(int, np.unravel_index(at, counts)), strict=True)
        return tuple(found[i] for i in range(len(shape)))


@dataclass(frozen=True, eq=False)
class _Pages:
    """Uncompressed pages of an image, whose rows are read where they lie."""

    series: Any
    shape: tuple[int, ...]
    page: tuple[int, ...]
    """Shape of a page, the last dimensions of the image."""
    chunk: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def endian(self) -> dict[str, str]:
        """Configuration of the codec for the order of bytes in the file."""
        return {"endian": "big" if self.dtype.byteorder == ">" else "little"}

    def read(self, at: Sequence[int], wanted: Range) -> Buffer | None:
        """Return a part of a chunk; None if the file has no such page."""
        corner = [i * size for i, size in zip(at, self.chunk, strict=True)]
        leading = len(self.shape) - len(self.page)
        number = int(np.ravel_multi_index(corner[:leading], self.shape[:leading]))
        within = int(np.ravel_multi_index(corner[leading:], self.page)) * self.dtype.itemsize
        whole = self.series.dataoffset
        page = self.series[0 if whole is not None else number]
        if page is None:
            return None
        size = prod(self.page) * self.dtype.itemsize
        offset = page.dataoffsets[0] if whole is None else whole + number * size
        nbytes = prod(self.chunk) * self.dtype.itemsize
        there = min(size - within, nbytes)
        low, high, _ = slice(wanted.start, wanted.stop).indices(nbytes)
        folder, name = os.path.split(page.parent.filehandle.path)
        first = offset + within
        start, stop = first + min(low, there), first + min(high, there)
        (found,) = LocalStore(folder).get_ranges([(name, Range(start, stop))])
        if found is None or memoryview(found).nbytes < stop - start:
            raise DamagedValueError(f"{folder}/{name} ends within the pixels of a page.")
        missing = max(high - max(low, there), 0)
        return bytes(found) + bytes(missing) if missing else found


def _pages_of(series: Any) -> _Pages | None:
    """Return the pages of an image if their pixels lie in the file as they are."""
    first, shape = series.keyframe, tuple(series.shape)
    page = tuple(first.shape)
    leading = len(shape) - len(page)
    plain = (
        series.transform is None
        and not first.is_lsm
        and first.is_final
        and first.dtype is not None
        and first.bitspersample == 8 * first.dtype.itemsize
        and shape[leading:] == page
        and prod(shape) > 0
        and first.parent.filehandle.is_file
    )
    if not plain:
        return None
    if series.dataoffset is None and prod(shape[:leading]) != len(series):
        return None
    dtype = np.dtype(first.dtype).newbyteorder(first.parent.byteorder)
    return _Pages(series, shape, page, (1,) * leading + _rows(page, dtype.itemsize), dtype)


def _rows(page: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return the shape of some rows of a page, which follow each other in the file.

    Examples
    --------
    >>> _rows((5000, 5000), 2), _rows((3, 5000, 5000), 1), _rows((100, 100, 3), 1)
    ((256, 5000), (1, 512, 5000), (100, 100, 3))
    """
    along = next(
        i for i in range(len(page)) if prod(page[i + 1 :]) * itemsize <= _ROWS or i + 1 == len(page)
    )
    most = max(_ROWS // (prod(page[along + 1 :]) * itemsize), 1)
    count = page[along] if page[along] <= most else 1 << (most.bit_length() - 1)
    return (*(1,) * along, count, *page[along + 1 :])


@contextmanager
def open_tiff(path: str) -> Iterator[Any]:
    """Open a file as tifffile's ``TiffFile`` for a ``with`` statement.

    The OME-XML of an image in several files may lie beside them, in a companion file, which may be
    given for the image.

    Parameters
    ----------
    path
        Path of the file.

    Raises
    ------
    MissingDependencyError
        If tifffile is not installed.
    StoreError
        If it cannot be read as TIFF, there or in the statement, or files that it names are absent.
    """
    with _blaming_tags(path), _found(path) as file:
        yield file


@contextmanager
def _blaming_tags(path: str) -> Iterator[None]:
    """Give what tifffile raises for damaged tags a type and the path of the file."""
    try:
        yield
    except ZarrDaskError:
        raise
    except (*_OF_DAMAGE, struct.error) as error:
        raise StoreError(
            f"cannot read {path} as TIFF: what it says of itself is damaged: {error}"
        ) from error


def _found(path: str, *, followed: bool = False) -> Any:
    """Return the ``TiffFile`` of a path, or of the file that it names (then `followed`)."""
    folder = Path(path).parent
    try:
        text = _xml_beside(path) if path.endswith(_COMPANIONS) else ""
        if text:
            names = [name for name, _ in _files_of(text)]
            _check_there(path, folder, names)
            return _parsed(str(folder / names[0]), omexml=text)
        file = _parsed(path)
    except StoreError:
        raise
    except FileNotFoundError as error:
        several = ""
        if has_magic(path):
            several = (
                " A pattern names no image: tifffile.imread(pattern, aszarr=True) is a stack of "
                "files, which zarr_dask.open opens and zarr_dask.ome.write writes."
            )
        raise StoreError(f"cannot read {path} as TIFF: there is no such file.{several}") from error
    except OSError as error:
        raise StoreError(f"cannot read {path} as TIFF: {error}") from error
    try:
        told = file.ome_metadata or ""
        elsewhere = _BINARY_ONLY.search(told)
        if elsewhere is not None:
            file.close()
            named = unescape(elsewhere[1])
            _check_there(path, folder, [named], followed=followed)
            return _found(str(folder / named), followed=True)
        own = _ROOT_UUID.search(told)
        others = [n for n, uuid in _files_of(told) if own is None or uuid != own[1].strip()]
        _check_there(path, folder, others if own is not None else [])
    except StoreError:
        file.close()
        raise
    return file


def _parsed(path: str, omexml: str | None = None) -> Any:
    """Return a file whose images tifffile has found."""
    try:
        import tifffile
    except ImportError:
        raise MissingDependencyError(
            "TIFF files are read by tifffile, which is not installed: "
            "pip install 'zarr-dask[tiff]'."
        ) from None
    try:
        file = tifffile.TiffFile(path, omexml=omexml)
    except tifffile.TiffFileError as error:
        raise StoreError(f"cannot read {path} as TIFF: {error}") from error
    try:
        len(file.series)  # finds them
        with _blaming_tags(path):
            _check_not_cut_off(file, path)
    except BaseException:
        file.close()
        raise
    return file


_NEEDED = frozenset((270, 273, 279, 320, 324, 325, 50838, 50839))
"""Tags of the description, of the pixels and the colours, and of ImageJ's metadata."""
_SIZES = {2: 1, 3: 2, 4: 4, 16: 8}
"""Bytes of the types of values that these have, and of others at least one."""


def _check_not_cut_off(file: Any, path: str) -> None:
    """Raise if a page, or what the first page says, lies behind the end of the file.

    tifffile logs that, and leaves out the pages and what is said of them.

    Raises
    ------
    DamagedValueError
        If one does.
    """
    tiff, handle, count = file.tiff, file.filehandle, len(file.pages)
    if not count or tiff.is_ndpi:
        return
    size, order = handle.size, tiff.byteorder
    entry = struct.Struct(f"{order}HH{'Q' if tiff.is_bigtiff else 'I'}")
    for page in {file.pages.first.offset, file.pages[count - 1].offset}:
        handle.seek(page)
        (tags,) = struct.unpack(tiff.tagnoformat, handle.read(tiff.tagnosize))
        text = handle.read(tags * tiff.tagsize + tiff.offsetsize)
        if len(text) < tags * tiff.tagsize + tiff.offsetsize:
            raise _cut_off(path, size, page + tiff.tagnosize + len(text))
        ends = []
        for at in range(0, tags * tiff.tagsize, tiff.tagsize):
            code, kind, length = entry.unpack_from(text, at)
            (start,) = struct.unpack_from(tiff.offsetformat, text, at + entry.size)
            nbytes = length * _SIZES.get(kind, 1)
            if code in _NEEDED and nbytes > tiff.offsetsize:
                ends.append(start + nbytes)
        ends += struct.unpack_from(tiff.offsetformat, text, tags * tiff.tagsize)
        if max(ends) > size:
            raise _cut_off(path, size, max(ends))


def _cut_off(path: str, size: int, end: int) -> DamagedValueError:
    return DamagedValueError(
        f"{path} is cut off: it has {size} bytes, and what it says of its images reaches to byte "
        f"{end}. Fetch or write the file again."
    )


_COMPANIONS = (".companion.ome", ".companion.ome.xml", ".ome.xml")
_MOST_XML = 1 << 28
# no look goes beyond the next element, so that strangers' texts are looked at once
_BINARY_ONLY = re.compile(r'<(?:\w+:)?BinaryOnly\b[^<>]*\bMetadataFile\s*=\s*"([^"<]*)"')
_ROOT_UUID = re.compile(r'<(?:\w+:)?OME\b[^<>]*\bUUID\s*=\s*"([^"<]*)"')
_FILE_UUID = re.compile(
    r'<(?:\w+:)?UUID\b[^<>]*\bFileName\s*=\s*"([^"<]*)"[^<>]*?(?:/>|>\s*+([^<\s]*+)\s*+<)'
)


def _files_of(text: str) -> list[tuple[str, str]]:
    """Return names and UUIDs of the files that OME-XML names."""
    return [(unescape(name), uuid) for name, uuid in dict.fromkeys(_FILE_UUID.findall(text))]


def _check_there(path: str, folder: Path, names: Sequence[str], *, followed: bool = False) -> None:
    """Raise if files are not beside the one that names them.

    Raises
    ------
    StoreError
        If one is absent, or lies in another folder; or if a file that was named for its OME-XML has
        none either.
    """
    if followed:
        raise StoreError(f"{path} has no OME-XML, and another file names it for that.")
    for name in names:
        if not name or name != Path(name).name or not (folder / name).is_file():
            raise StoreError(
                f"{path} is one of several files of an image, and names {name!r}, which is not "
                "beside it: fetch all files of the image into one folder, under their own names."
            )


def _xml_beside(path: str) -> str:
    """Return the OME-XML of a companion file.

    Raises
    ------
    StoreError
        If it is none, or names no files.
    """
    with Path(path).open("rb") as file:
        text = file.read(_MOST_XML + 1).decode("utf-8", "replace").strip()
    if len(text) > _MOST_XML or not text.endswith("OME>") or not _files_of(text):
        raise StoreError(
            f"{path} is no OME-XML that names the TIFF files of an image; expected elements UUID "
            "with FileName."
        )
    return text


def tiff_store(path: str, series: int, dimensions: Dimensions | None = None) -> ReadOnly:
    """Return an image of a TIFF file as a store with one array at its root.

    Of dimensions that become one, all but the last have one page in each chunk.

    Raises
    ------
    MissingDependencyError
        If tifffile or zarr is not installed.
    StoreError
        If the file cannot be read as TIFF.
    """
    whole = os.path.realpath(path)
    try:
        told = Path(whole).stat()
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error
    return ReadOnly(_opened(whole, series, (told.st_size, told.st_mtime_ns), dimensions))


@lru_cache(_MOST_SERVED)
def _opened(
    path: str, series: int, version: tuple[int, int], dimensions: Dimensions | None
) -> TiffStore:
    try:
        with _blaming_tags(path):
            served = _file(path, version).series[series].aszarr(level=0, maxworkers=1)
    except MissingDependencyError:
        raise
    except ImportError as error:
        raise MissingDependencyError(
            f"tifffile reads images through zarr ({error}): pip install 'zarr-dask[tiff]'."
        ) from error
    return TiffStore(served, path, series, version, dimensions)


@lru_cache(_MOST_OPEN)
def _file(path: str, version: tuple[int, int]) -> Any:  # noqa: ARG001  (another version is another file)
    file = _found(path)
    weakref.finalize(file, file.filehandle.close)
    return file
