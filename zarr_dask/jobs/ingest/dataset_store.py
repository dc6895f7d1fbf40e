"""Many files as one read-only hierarchy of Zarr v3, which every other job can take as its source.

A chunk of an array is a chunk of a file, or what is left of one at the end of a file. Where files
are alike, bytes are handed on as they lie in the file; where one is not, its values are decoded,
converted, and handed on without filters. Either way, the codec ``conditional`` says which.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import product
from typing import Any

import numpy as np

from zarr_dask.errors import CorruptObjectError, IngestError, StoreError
from zarr_dask.formats.base import GroupMeta
from zarr_dask.jobs.engine.plan import format_region
from zarr_dask.jobs.ingest.broken import BrokenList, FilledChunk
from zarr_dask.jobs.ingest.combine import Combination, Combined, FilePiece
from zarr_dask.jobs.ingest.file_store import (
    FORMAT,
    FileArrays,
    ReadOnlyKeys,
    encode_block,
)
from zarr_dask.jobs.ingest.header import Header
from zarr_dask.jobs.ingest.source_file import SourceFile
from zarr_dask.stores.base import Buffer, Listing
from zarr_dask.stores.secrets import seal_credentials, unseal_credentials

__all__ = ["DatasetStore"]


def _region(one: Combined, coords: tuple[int, ...]) -> list[slice]:
    """Return the elements of a chunk, as far as it lies in the array."""
    return [
        slice(d.start(n), min(d.start(n) + d.size_of(n), d.extent))
        for d, n in zip(one.meta.grid.dimensions, coords, strict=True)
    ]


@dataclass(frozen=True, eq=False)
class DatasetStore(ReadOnlyKeys):
    """Files as one hierarchy.

    Parameters
    ----------
    headers
        The files.
    groups
        Attributes of the groups by path.
    arrays
        The arrays by path.
    options
        Options of the stores of remote files as JSON text; they may hold secrets.
    broken
        The list of chunks that are filled because they cannot be read; None to raise. With a list
        all chunks are decoded here, since only that tells which ones can be read.
    described
        How the files were put together, for plans that are kept in files.
    """

    headers: tuple[Header, ...]
    groups: Mapping[str, Mapping[str, Any]]
    arrays: Mapping[str, Combined]
    options: str = "{}"
    broken: BrokenList | None = None
    described: Mapping[str, Any] | None = None

    @staticmethod
    def of(
        found: Combination, options: Mapping[str, Any] | None, broken: BrokenList | None = None
    ) -> DatasetStore:
        """Return the store of files whose differences are settled."""
        text = json.dumps(dict(options or {}), sort_keys=True)
        return DatasetStore(found.headers, found.groups, found.arrays, text, broken)

    def __repr__(self) -> str:
        return f"DatasetStore({len(self.headers)} files)"

    @property
    def url(self) -> str:  # type: ignore[override]
        """The first file, and how many there are."""
        first = self.headers[0].url
        more = len(self.headers) - 1
        return f"files::{first}" + (f" and {more} more" if more else "")

    @cached_property
    def identity(self) -> str:
        """A digest of the files with their sizes and times, and of what is made of them."""
        facts = [(one.url, one.size, one.tag) for one in self.headers]
        made = [repr((a.path, a.axis, a.pieces)) for a in self.arrays.values()]
        documents = sorted((k, v) for k, v in self.documents.items())
        text = repr((facts, made, documents)).encode()
        return f"files::{sha256(text).hexdigest()[:32]}"

    def description(self) -> dict[str, Any]:
        """Return what `zarr_dask.jobs.ingest.described.files_of` makes the store of.

        Raises
        ------
        StoreError
            If no survey is kept.
        """
        if self.described is None or self.broken is not None:
            raise StoreError(
                f"{self.url} cannot be named in a file: its survey is not kept, or chunks that are "
                "broken are filled, whose list only one process takes. Run the plan itself."
            )
        return {"files": dict(self.described), "identity": self.identity}

    @cached_property
    def documents(self) -> dict[str, bytes]:
        """All metadata documents by key."""
        found: dict[str, bytes] = {}
        paths = {*self.groups, ""}
        for path in self.arrays:
            parts = path.split("/")[:-1]
            paths |= {"/".join(parts[:n]) for n in range(1, len(parts) + 1)}
        for path in sorted(paths):
            found.update(FORMAT.documents(GroupMeta(dict(self.groups.get(path, {}))), path))
        for path, one in self.arrays.items():
            found.update(FORMAT.documents(one.meta, path))
        return found

    def __getstate__(self) -> dict[str, Any]:
        names = ("headers", "groups", "arrays", "broken", "described")
        return {
            **{name: self.__dict__[name] for name in names},
            "options": seal_credentials(self.options),
        }

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self.__dict__["options"] = unseal_credentials(state["options"], self.url)

    def file(self, number: int) -> FileArrays:
        """Return the arrays of one file."""
        found = self._files.get(number)
        if found is None:
            header = self.headers[number]
            place = SourceFile.of(header.url, json.loads(self.options))
            found = self._files[number] = FileArrays(place, header)
        return found

    @cached_property
    def _files(self) -> dict[int, FileArrays]:
        return {}

    # --- keys -------------------------------------------------------------------------------------

    def check_hierarchies(self) -> None:
        """Raise if a source that is no single file is not the one that was surveyed.

        That takes a listing of each, so it is done when a job begins, and when a process opens one;
        a file is checked for each of its chunks.

        Raises
        ------
        IngestError
            If values were added, removed or changed.
        """
        for number in range(len(self.headers)):
            if self.file(number).place.is_hierarchy:
                self.file(number).check()

    def get(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.get`."""
        document = self.documents.get(key)
        if document is not None:
            return document
        found = self.located(key)
        return None if found is None else self._chunk(*found)

    def located(self, key: str) -> tuple[Combined, tuple[int, ...]] | None:
        """Return the array and the coordinates of a chunk; None if it is none."""
        path, mark, rest = key.rpartition("/c/")
        if not mark:
            path, mark, rest = key.rpartition("/c")
        one = self.arrays.get(path) if mark else None
        if one is None:
            return None
        coords = one.meta.coords(f"c/{rest}" if rest else "c")
        inside = coords is not None and all(
            n < count for n, count in zip(coords, one.meta.grid.counts, strict=True)
        )
        return (one, coords) if inside and coords is not None else None

    def piece_of(self, one: Combined, coords: tuple[int, ...]) -> tuple[FilePiece, int, int]:
        """Return the piece that a chunk is of, its first element in it, and its length."""
        if one.axis is None:
            return one.pieces[0], 0, 0
        dimension = one.meta.grid.dimensions[one.axis]
        start = dimension.start(coords[one.axis])
        piece = one.pieces[bisect_right(self._starts[one.path], start) - 1]
        return piece, start - piece.start, dimension.size_of(coords[one.axis])

    @cached_property
    def _starts(self) -> dict[str, list[int]]:
        return {path: [piece.start for piece in one.pieces] for path, one in self.arrays.items()}

    def direct_chunk(
        self, one: Combined, coords: tuple[int, ...]
    ) -> tuple[int, tuple[int, ...]] | None:
        """Return file and coordinates of the chunk that is a chunk of the array; None if none."""
        piece, start, length = self.piece_of(one, coords)
        if not piece.direct:
            return None
        if one.axis is None:
            return piece.file, coords
        rest = tuple(n for axis, n in enumerate(coords) if axis != one.axis)
        if one.new_axis:
            return piece.file, rest
        size = self.headers[piece.file].variables[one.path].chunks[one.axis]
        if size != length or start % size:
            return None
        return piece.file, (*coords[: one.axis], start // size, *coords[one.axis + 1 :])

    def _chunk(self, one: Combined, coords: tuple[int, ...]) -> Buffer | None:
        direct = self.direct_chunk(one, coords)
        if direct is not None and self.broken is None:
            number, own = direct
            found = self.file(number).chunk(one.path, own)
            fills = self.headers[number].variables[one.path].fill, one.served.fill
            if found is not None or fills[0] == fills[1]:
                return found
        cell = [d.size_of(n) for d, n in zip(one.meta.grid.dimensions, coords, strict=True)]
        values = self._values_or_mask(one, coords, _region(one, coords))
        return encode_block(values, one.served, cell)

    @property
    def files_read(self) -> list[str]:
        """See `zarr_dask.stores.base.ReadsFiles.files_read`."""
        return [one.url for one in self.headers]

    def of_file(self, error: CorruptObjectError) -> Exception:
        """See `zarr_dask.stores.base.StandsForFiles.of_file`."""
        found = self.located(error.key)
        if found is None:
            return error
        one, coords = found
        file = self.headers[self.piece_of(one, coords)[0].file].url
        place = format_region(tuple(_region(one, coords)))
        return IngestError(
            f"{file}: {one.path}{place} cannot be read: {error.reason}. Fetch the file again and "
            "call this with resume=True, or have masked values in its place: "
            "settle={'broken': 'fill'}."
        )

    def _values_or_mask(
        self, one: Combined, coords: tuple[int, ...], region: list[slice]
    ) -> np.ndarray:
        """Return the values of a chunk; masked ones if it cannot be read and this is the choice."""
        if self.broken is None:
            return self._values(one, coords, list(region))
        try:
            return self._values(one, coords, list(region))
        except (CorruptObjectError, IngestError) as error:
            file = self.headers[self.piece_of(one, coords)[0].file].url
            place = format_region(tuple(region))[1:-1]
            self.broken.add(FilledChunk(file, one.path, place, str(error)))
            texts = one.served.dtype == "string"
            dtype = object if texts else np.dtype(one.served.dtype)
            return np.full([s.stop - s.start for s in region], one.mask, dtype)

    def _values(self, one: Combined, coords: tuple[int, ...], region: list[slice]) -> np.ndarray:
        """Return the values of a chunk, as far as it lies in the array."""
        shape = [s.stop - s.start for s in region]
        piece, start, _ = self.piece_of(one, coords)
        if piece.file < 0:
            texts = one.served.dtype == "string"
            return np.full(shape, one.missing, object if texts else np.dtype(one.served.dtype))
        if one.axis is not None and one.new_axis:
            del region[one.axis]
        elif one.axis is not None:
            region[one.axis] = slice(start, start + shape[one.axis])
        if piece.conversion is not None and piece.conversion.width is not None:
            return self._padded(one, piece.file, region, piece.conversion.width).reshape(shape)
        file = self.file(piece.file)
        values = self._read(one, piece.file, region)
        if piece.conversion is not None:
            values = piece.conversion.apply(values, f"{one.path} in {file.url}")
        return values.reshape(shape)

    def _read(self, one: Combined, number: int, region: list[slice]) -> np.ndarray:
        """Return a region of a variable as its file has it."""
        file = self.file(number)
        array = file.array(one.path)
        variable = self.headers[number].variables[one.path]
        if variable.layout == "values":
            return file.values(one.path, tuple(region))
        return array.read(tuple(region), threads=1)

    def _padded(self, one: Combined, number: int, region: list[slice], width: int) -> np.ndarray:
        """Return a region of texts, with zeros behind those of a file."""
        made = np.zeros([s.stop - s.start for s in region], one.served.dtype)
        held = slice(min(region[-1].start, width), min(region[-1].stop, width))
        if made.size and held.start < held.stop:
            values = self._read(one, number, [*region[:-1], held])
            made[..., : held.stop - held.start] = values
        return made

    def list_dir(self, prefix: str = "") -> Listing:
        """See `zarr_dask.stores.base.Store.list_dir`; chunks are listed in arrays only."""
        if any(prefix.startswith(f"{path}/") for path in self.arrays):
            return super().list_dir(prefix)
        names = {
            k[len(prefix) :].partition("/")[:2] for k in self.documents if k.startswith(prefix)
        }
        keys = sorted(f"{prefix}{name}" for name, slash in names if not slash)
        return Listing(keys, sorted(f"{prefix}{name}/" for name, slash in names if slash))

    def list(self, prefix: str = "") -> Iterator[str]:
        """See `zarr_dask.stores.base.Store.list`; chunks may be absent all the same."""
        yield from (key for key in self.documents if key.startswith(prefix))
        for path, one in self.arrays.items():
            for coords in product(*map(range, one.meta.grid.counts)):
                key = f"{path}/{one.meta.chunk_key_encoding.key(coords)}"
                if key.startswith(prefix):
                    yield key
