"""Memory of an ingest in each process, besides that of the copy.

It consists of what a process knows of the files, of chunks that are converted, and of the libraries
that a worker loads with its first task.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from zarr_dask.jobs.engine.workers import Workers
from zarr_dask.jobs.ingest.combine import Combination, Combined, FilePiece
from zarr_dask.jobs.ingest.file_store import INDEXED_FILES
from zarr_dask.jobs.ingest.header import Header, Variable

__all__ = ["held_besides", "held_of_files", "loaded_by_worker"]


def held_of_files(found: Combination) -> int:
    """Return the bytes that a process holds of all files: headers, and the places of chunks.

    A worker has up to three copies of the headers: of the tasks that it runs, ends and receives.
    """
    chunks = sorted((_stored_chunks(header) for header in found.headers), reverse=True)
    variables = [one for header in found.headers for one in header.variables.values()]
    headers = _OF_HEADER * len(found.headers) + _OF_VARIABLE * len(variables)
    headers += sum(len(one.places) for one in variables)
    return 3 * headers + _OF_CHUNK * sum(chunks[:INDEXED_FILES])


def _stored_chunks(header: Header) -> int:
    """Return the maximum number of chunks of a file whose places have to be looked up.

    The file has an address of 8 bytes for each that is stored, which may be few of a large array.
    """
    chunks = sum(
        prod(-(-n // size) for n, size in zip(one.shape, one.chunks, strict=True))
        for one in header.variables.values()
        if one.layout == "chunks"
    )
    return min(chunks, header.size // 8)


_OF_HEADER, _OF_VARIABLE = 1_500, 1_500
"""Bytes that the header of a file takes as Python objects, and those of each of its variables."""
_OF_CHUNK = 300
"""Bytes of the coordinates of a chunk with its offset, size and filters."""


def held_besides(found: Combination, *, decodes: bool) -> int:
    """Return the bytes that a task holds for a chunk that is not handed on as it lies in a file.

    The chunk of the file, its values, and what is made of them, besides what a plan counts.
    """
    most = 0
    for one in found.arrays.values():
        for piece in one.pieces:
            if piece.file >= 0 and (decodes or not piece.direct or _is_cut(one, piece, found)):
                chunk = prod(found.headers[piece.file].variables[one.path].chunks)
                most = max(most, chunk * one.served.itemsize)
    return 3 * most


def _is_cut(one: Combined, piece: FilePiece, found: Combination) -> bool:
    """True if a file ends within a chunk that is not the last one of the array."""
    if one.axis is None or one.new_axis or piece is one.pieces[-1]:
        return False
    size = found.headers[piece.file].variables[one.path].chunks[one.axis]
    return piece.extent % size > 0


def loaded_by_worker(found: Combination, workers: Workers) -> int:
    """Return the maximum bytes of the libraries that a process loads with its first task.

    They are this package and the reader of the files, as private memory and as mapped files. This
    process has loaded them when it planned.
    """
    if workers.in_this_process:
        return 0
    headers = found.headers
    readers = {
        _OF_READER.get(header.kind, _OF_ENGINE) for header in headers if header.kind != _HDF5
    }
    if any(_is_looked_up(headers[n].variables[path]) for path, n in _sources(found)):
        readers.add(_OF_READER[_HDF5])
    return _OF_PACKAGE + max(readers, default=0)


def _sources(found: Combination) -> Iterator[tuple[str, int]]:
    """Yield the paths of all variables with the numbers of their HDF5 files."""
    for one in found.arrays.values():
        for piece in one.pieces:
            if piece.file >= 0 and found.headers[piece.file].kind == _HDF5:
                yield one.path, piece.file


def _is_looked_up(one: Variable) -> bool:
    """True for a variable for which a worker opens the HDF5 file."""
    return one.layout == "values" or (one.layout == "chunks" and not one.places)


_OF_PACKAGE = 28 << 20
"""Bytes that a worker grows by when it loads this package; 25 MB were measured."""
_HDF5 = "hdf5"
_OF_READER = {"netcdf3": 0, _HDF5: 22 << 20}
"""Bytes of the libraries of a reader by kind of file; 20 MB were measured of h5py, which a worker
loads only to look for chunks or to read values."""
_OF_ENGINE = 152 << 20
"""Bytes of xarray with one of its engines; 117 MB were measured with Zarr, 136 with h5netcdf."""
