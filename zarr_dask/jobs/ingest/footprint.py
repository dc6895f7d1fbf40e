"""Memory of an ingest in each process, besides that of the copy: what is known of the files."""

from __future__ import annotations

from math import prod

from zarr_dask.jobs.ingest.combine import Combination, Combined, FilePiece
from zarr_dask.jobs.ingest.file_store import INDEXED_FILES
from zarr_dask.jobs.ingest.header import Header

__all__ = ["held_besides", "held_of_files"]


def held_of_files(found: Combination) -> int:
    """Return the bytes that a process holds of all files: headers, and the places of chunks.

    A worker has up to three copies of the headers: of the tasks that it runs, ends and receives.
    """
    chunks = sorted((_stored_chunks(header) for header in found.headers), reverse=True)
    variables = sum(len(header.variables) for header in found.headers)
    headers = _OF_HEADER * len(found.headers) + _OF_VARIABLE * variables
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
