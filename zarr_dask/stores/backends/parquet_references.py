"""References of kerchunk in Parquet: a folder of metadata, and of tables of places for each array.

``ARRAY/refs.N.parq`` has a row for each chunk of the array in C order, ``record_size`` of them in a
file: path, offset and size, or the bytes themselves. `zarr_dask.formats.references` writes them.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import threading
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import islice, product
from math import prod
from operator import ge
from typing import Any

import numpy as np
from fsspec.core import url_to_fs
from fsspec.implementations.reference import LazyReferenceMapper

from zarr_dask.errors import StoreError
from zarr_dask.stores.backends.lazy_references import is_below, size_of
from zarr_dask.stores.backends.reference_targets import pyarrow

__all__ = ["ParquetReferences"]

_KEPT = 32
"""Tables that are kept."""
_MOST_ROWS = 10_000_000
_MOST_BYTES = 1 << 30
"""Of a table, decompressed: the file may come from a stranger."""
_ABSENT = {"path": None, "offset": 0, "size": 0, "raw": None}
"""Columns, and values of them that say nothing."""


class _Column:
    """A column of a table; values are made when they are asked for."""

    def __init__(self, values: Any, absent: int | None) -> None:
        self._values = values.combine_chunks()
        self._absent = absent

    def __getitem__(self, row: int) -> Any:
        value = self._values[row].as_py()
        is_nan = value != value  # noqa: PLR0124  (pandas writes it where a text is absent)
        return self._absent if value is None or is_nan else value


class ParquetReferences(LazyReferenceMapper):  # type: ignore[misc]
    """A lazy mapping from keys to references, as `fsspec` takes it.

    Other than that of fsspec it has groups, needs no pandas, keeps tables as they are stored, and
    is read by several threads and from an event loop. A masked value is absent, a damaged table an
    error.

    Parameters
    ----------
    document
        Location of the folder.
    options
        Options of its file system.
    """

    def __init__(self, document: str, options: Mapping[str, Any]) -> None:
        pyarrow()
        fs, root = _file_system(document, options)
        self._items: dict[str, bytes] = {}
        super().__init__(root, fs=fs, engine="pyarrow", cache_size=_KEPT)
        self.open_refs = lru_cache(maxsize=_KEPT)(self._table)
        self.loading = threading.Lock()  # for threads, so that each table is loaded once
        self.setup()  # now: threads would find it half done

    def setup(self) -> None:
        """Read the metadata.

        Raises
        ------
        ValueError
            If they are malformed.
        """
        opened = self.open_refs
        super().setup()
        self.open_refs = opened
        if type(self.record_size) is not int or not 1 <= self.record_size <= _MOST_ROWS:
            raise ValueError(f"record_size is {self.record_size!r}, expected 1 to {_MOST_ROWS}")
        outside = [name for name in self.zmetadata if {"", ".", ".."} & {*name.split("/")}]
        if outside:
            raise ValueError(f"{outside[0]!r} is no name in a hierarchy")
        document = {"zarr_consolidated_format": 1, "metadata": self.zmetadata}
        self._items = dict.fromkeys(self._items, json.dumps(document).encode())
        self._counts = {
            name.rpartition("/")[0]: tuple(
                -(-n // c) for n, c in zip(text["shape"], text["chunks"], strict=True)
            )
            for name, text in self.zmetadata.items()
            if "chunks" in text and "shape" in text
        }

    def _table(self, field: str, record: int) -> dict[str, _Column]:
        """Return the columns of one table.

        Raises
        ------
        FileNotFoundError
            If it is absent, as it may be if no chunk of it is stored.
        StoreError
            If it is damaged.
        """
        path = f"{self.root}/{field}/refs.{record}.parq"
        data = self.fs.cat_file(path)
        arrow = pyarrow()
        try:
            table = _read(arrow, data)
            columns = {name: table.column(name) for name in _ABSENT if name in table.column_names}
            _check_types(arrow, columns)
        except (arrow.ArrowException, OSError, ValueError) as error:
            raise StoreError(
                f"{path}, a table of references, cannot be read ({error}). Fetch it again, or make "
                "the references anew."
            ) from error
        rows = min(self.record_size, prod(self._counts[field]) - record * self.record_size)
        if table.num_rows < rows:
            raise StoreError(
                f"{path}, a table of references, has {table.num_rows} rows, expected {rows}: it is "
                "of another array. Make the references anew."
            )
        return {name: _Column(values, _ABSENT[name]) for name, values in columns.items()}

    def _load_one_key(self, key: str) -> Any:
        """Return the bytes of a value, or the URL, offset and size of the place where it lies.

        Raises
        ------
        KeyError
            If there is none.
        """
        if key in self._items:
            return self._items[key]
        if key in self.zmetadata:
            return json.dumps(self.zmetadata[key]).encode()
        field, _, name = key.rpartition("/")
        counts = self._counts.get(field)
        if counts is None or not re.fullmatch(r"\d+(\.\d+)*", name):
            raise KeyError(key)
        coords = [int(text) for text in name.split(".")]
        if len(coords) != len(counts or (1,)) or any(map(ge, coords, counts or (1,))):
            raise KeyError(key)
        number = int(np.ravel_multi_index(coords, counts or (1,)))
        try:
            table = self.open_refs(field, number // self.record_size)
        except FileNotFoundError as error:
            raise KeyError(key) from error
        place = _place(table, number % self.record_size)
        if place is None:
            raise KeyError(key)
        return place

    def _stored(self, field: str) -> Iterator[tuple[str, Any]]:
        """Yield the keys of an array that are stored, and where they are."""
        counts = self._counts[field] or (1,)
        count = prod(counts)
        names = (".".join(coords) for coords in product(*(map(str, range(n)) for n in counts)))
        for record in range(-(-count // self.record_size)):
            rows = list(islice(names, self.record_size))
            try:
                table = self.open_refs(field, record)
            except FileNotFoundError:
                continue
            for row, name in enumerate(rows):
                place = _place(table, row)
                if place is not None:
                    yield f"{field}/{name}", place

    def __iter__(self) -> Iterator[str]:
        yield from self._items
        yield from self.zmetadata
        yield from (key for field in self._counts for key, _ in self._stored(field))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def values(self) -> Iterator[Any]:
        """Yield the places of all chunks, from which fsspec tells the protocol."""
        return (place for field in self._counts for _, place in self._stored(field))

    def listdir(self) -> set[str]:
        """Return the paths of all folders."""
        parts = [name.split("/") for name in self.zmetadata]
        return {"/".join(some[:n]) for some in parts for n in range(1, len(some))}

    def keys_below(self, folder: str) -> list[str]:
        """Return the keys at and below a folder."""
        return [key for key, _ in self.sizes_below(folder)]

    def sizes_below(self, folder: str) -> list[tuple[str, int | None]]:
        """Return the keys at and below a folder with their sizes; None for those of whole files."""
        found: list[tuple[str, int | None]] = []
        documents = (name for name in (*self._items, *self.zmetadata) if is_below(name, folder))
        found += [(name, len(self[name])) for name in documents]
        for field in self._counts:
            if is_below(field, folder):
                found += [(key, size_of(one)) for key, one in self._stored(field)]
        return found

    def ls(self, path: str = "", detail: bool = True) -> Any:
        """Return the names directly below a path; of an array, only chunks that are stored."""
        path = path.rstrip("/")
        folders = self.listdir()
        if path and path not in folders:
            raise KeyError(path)
        found: dict[str, tuple[str, int | None]] = {}
        found |= {one: ("directory", 0) for one in folders if one.rpartition("/")[0] == path}
        for name in (*self._items, *self.zmetadata):
            if name.rpartition("/")[0] == path:
                found[name] = ("file", len(self[name]))
        for key, one in self._stored(path) if path in self._counts else ():
            found[key] = ("file", size_of(one))
        if not detail:
            return sorted(found)
        return [{"name": name, "type": k, "size": n} for name, (k, n) in sorted(found.items())]


def _place(table: Mapping[str, _Column], row: int) -> Any:
    """Return what a row says: bytes, a URL, perhaps with an offset and a size, or None."""
    url, offset, size, raw = (
        table[name][row] if name in table else absent for name, absent in _ABSENT.items()
    )
    if raw is not None or url is None:
        return raw
    return [url, offset, size] if offset or size else [url]


def _file_system(document: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """Return a file system and a path on it.

    Tables are asked for on the event loop that fetches chunks, so that one whose requests run on a
    loop gets another one.
    """
    fs, root = url_to_fs(document, **options)
    if not fs.async_impl:
        return fs, root
    own = {**fs.storage_options, "loop": _loop(), "skip_instance_cache": True}
    return type(fs)(*fs.storage_args, **own), root


@lru_cache(maxsize=1)
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="references", daemon=True).start()
    return loop


def _read(arrow: Any, data: bytes) -> Any:
    """Return a table.

    Raises
    ------
    ValueError
        If it is larger than any that is meant.
    """
    file = arrow.parquet.ParquetFile(io.BytesIO(data), read_dictionary=["path"])
    found = file.metadata
    size = sum(found.row_group(n).total_byte_size for n in range(found.num_row_groups))
    if found.num_rows > _MOST_ROWS or size > _MOST_BYTES:
        raise ValueError(
            f"{found.num_rows} rows of {size} bytes, expected at most {_MOST_ROWS} rows and "
            f"{_MOST_BYTES} bytes"
        )
    return file.read()


def _check_types(arrow: Any, columns: Mapping[str, Any]) -> None:
    """Raise a `ValueError` if columns hold other values than those of references."""
    types = arrow.types
    for name, values in columns.items():
        of = values.type.value_type if types.is_dictionary(values.type) else values.type
        number = name in {"offset", "size"}
        if number:
            right = types.is_integer(of)
        else:  # one without a value may have any type
            right = types.is_string(of) or types.is_binary(of) or types.is_large_string(of)
            right = right or values.null_count == len(values) or types.is_floating(of)
        if not right:
            raise ValueError(f"column {name!r} is of type {of}")


if hasattr(os, "register_at_fork"):  # its thread is not in the child
    os.register_at_fork(after_in_child=_loop.cache_clear)
