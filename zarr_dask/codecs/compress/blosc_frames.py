"""Decoding some of the blocks of a blosc frame.

A frame of c-blosc 1 (README_CHUNK_FORMAT) is a header of 16 bytes, a table of the blocks' offsets,
and the blocks, in any order, because threads write them as they finish. Each block holds the same
number of bytes, the last one the rest, and is shuffled and compressed by itself. So each wanted
block can be made into a frame of its own, which the library decodes like any other. The others need
not even be read.

All offsets and lengths are checked before they are used. Unusual frames, and reads that would save
too little, are left to the decoder of whole frames, which also reports errors. Damage to blocks
that are not wanted goes unnoticed.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from enum import Enum
from functools import cache
from importlib import import_module
from math import inf
from typing import Any, NamedTuple

import numpy as np

from zarr_dask._util.buffers import thread_buffer
from zarr_dask.codecs.base import ByteRequest, DecodedBytes
from zarr_dask.codecs.fetch import Fetch, Spans
from zarr_dask.stores.base import Buffer, HeaderRange, Range

__all__ = [
    "MOST_SPLITS",
    "SMALLEST_SPLIT",
    "UNSHUFFLED_FAST",
    "FallbackRead",
    "blosc_library",
    "read_blocks",
    "unshuffle",
]


@cache
def blosc_library() -> Any:
    """Return the library, loaded when a chunk is encoded or decoded first: that takes 60 ms."""
    return import_module("numcodecs.blosc")


_HEADER = struct.Struct("<4B3I")
_WORD = struct.Struct("<i")
_SMALLER = struct.Struct("<4B3Ii")  # with a table for one block
_HEAD = 1 << 12
"""Bytes that are read first, which hold the tables of a thousand blocks."""
_LONGEST_TABLE = 1 << 18
_STEP = 1 << 20
"""Bytes per request for frames that were not compressed."""
_VERSION = 2  # of the frame; those of blosc 2 have higher ones
_STORED, _RESERVED, _NOT_SPLIT = 2, 8, 16
_KNOWN = frozenset({0, 1, 3, 4})
"""blosclz, lz4, zlib, zstd, as numbered in the upper bits of the flags."""
MOST_SPLITS, SMALLEST_SPLIT = 16, 128
"""Largest number of pieces in a block that the library splits, and least elements of a piece."""
_SHUFFLED, _LZ4 = 1, 1 << 5
UNSHUFFLED_FAST = frozenset({2, 4, 8, 16})
"""Sizes of elements in bytes for which the library has vector instructions."""
_IN_CACHE = 1 << 18
"""Bytes that are unshuffled at once."""
# the overhead of decoding a part, in bytes decoded in the same time: 64 kB in 10 us
_TO_LOOK, _EACH_BLOCK = 1 << 16, 1 << 15


class _Frame(NamedTuple):
    """The header of a frame."""

    version: int
    compressor: int
    flags: int
    typesize: int
    nbytes: int
    blocksize: int
    stored: int
    """Bytes of the frame."""

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return -(-self.nbytes // self.blocksize)

    @property
    def table_end(self) -> int:
        """First byte after the table."""
        return _HEADER.size + _WORD.size * self.blocks

    def splits(self, nbytes: int) -> int:
        """Return the number of pieces in which a block of a size is compressed."""
        whole = nbytes == self.blocksize and not self.flags & _NOT_SPLIT
        fits = self.typesize <= MOST_SPLITS and nbytes // self.typesize >= SMALLEST_SPLIT
        return self.typesize if whole and fits else 1


class FallbackRead(Enum):
    """The instruction to the caller if no blocks are read."""

    WHOLE = "whole"
    """Decode the whole frame."""


def read_blocks(
    wanted: ByteRequest, largest: int | None = None
) -> Fetch[DecodedBytes | FallbackRead | None]:
    """Request the blocks of a frame that contain some bytes, and decode these.

    Parameters
    ----------
    wanted
        The wanted ones of the decoded bytes; there is memory for whole blocks. Bytes in other
        blocks may be anything.
    largest
        Largest block in bytes for decoding only the wanted ones even if that takes longer.

    Returns
    -------
    DecodedBytes or FallbackRead or None
        None if there is no frame. `FallbackRead.WHOLE` if that would not take longer, or something
        about the frame is unusual or wrong.
    """
    received = yield (HeaderRange(0, _HEAD),)
    if received is None:
        return None
    head = b"".join(received)  # the memory is reused by the next read
    if len(head) < _HEADER.size:
        return FallbackRead.WHOLE
    frame = _Frame(*_HEADER.unpack_from(head))
    if not _is_sound(frame, wanted.nbytes):
        return FallbackRead.WHOLE
    if frame.flags & _STORED:
        return (yield from _copy(frame, wanted))
    if largest is not None and frame.blocksize > largest:
        return FallbackRead.WHOLE
    worth = frame.nbytes - _TO_LOOK if largest is None else inf
    blocks = _wanted_blocks(frame, wanted.spans, worth)
    if blocks is None:
        return FallbackRead.WHOLE
    if len(head) < frame.table_end <= _LONGEST_TABLE:
        received = yield (HeaderRange(0, frame.table_end),)
        head = b"".join(received or ())
    places = _places(head, frame, blocks)
    if places is None:
        return FallbackRead.WHOLE
    received = yield [Range(start, stop) for start, stop, _ in places]
    if received is None:
        return FallbackRead.WHOLE
    out = _room(wanted, frame.blocksize)
    done = all(
        _decode_block(piece, frame, place, out)
        for piece, place in zip(received, places, strict=True)
    )
    return out if done else FallbackRead.WHOLE


def _room(wanted: ByteRequest, blocksize: int) -> DecodedBytes:
    """Return memory of this thread, for whole blocks."""
    first = wanted.first // blocksize * blocksize
    stop = min(-(-wanted.stop // blocksize) * blocksize, wanted.nbytes)
    return DecodedBytes(thread_buffer("decoded", stop - first), first)


def _is_sound(frame: _Frame, nbytes: int) -> bool:
    """True if a header is as the library writes it, for a number of decoded bytes."""
    return (
        frame.version == _VERSION
        and not frame.flags & _RESERVED
        and frame.typesize > 0
        and frame.nbytes == nbytes
        and 0 < frame.blocksize <= nbytes
    )


def _copy(frame: _Frame, wanted: ByteRequest) -> Fetch[DecodedBytes | FallbackRead]:
    """Return the bytes of a frame that was not compressed."""
    if frame.stored != frame.nbytes + _HEADER.size:
        return FallbackRead.WHOLE
    steps = [
        (at, min(at + _STEP, stop))
        for start, stop in wanted.spans
        for at in range(start, stop, _STEP)
    ]
    received = yield [Range(start + _HEADER.size, stop + _HEADER.size) for start, stop in steps]
    if received is None:
        return FallbackRead.WHOLE
    out = _room(wanted, 1)
    for piece, (start, stop) in zip(received, steps, strict=True):
        if len(piece) != stop - start:
            return FallbackRead.WHOLE
        out.memory[start - out.first : stop - out.first] = np.frombuffer(piece, np.uint8)
    return out


def _wanted_blocks(frame: _Frame, spans: Spans, most: float) -> list[int] | None:
    """Return the wanted blocks' numbers; None if they cost more than decoding `most` bytes."""
    size, blocks = frame.blocksize, list[int]()
    for start, stop in spans:
        first, last = start // size, (stop - 1) // size
        first += bool(blocks) and blocks[-1] == first
        if (len(blocks) + last + 1 - first) * (size * 3 // 2 + _EACH_BLOCK) > most:
            return None
        blocks.extend(range(first, last + 1))
    return blocks


class _BlockBytes(NamedTuple):
    """The location of a block in a frame."""

    start: int
    stop: int
    """The start of the next one, or the end of the frame."""
    number: int


def _places(head: bytes, frame: _Frame, blocks: Sequence[int]) -> list[_BlockBytes] | None:
    """Return the locations of compressed blocks, in order; None if something is wrong."""
    if (
        frame.flags >> 5 not in _KNOWN
        or len(head) < frame.table_end
        or frame.stored < frame.table_end
        or not _of_whole_elements(frame)
    ):
        return None
    starts: tuple[int, ...] = struct.unpack_from(f"<{frame.blocks}i", head, _HEADER.size)
    ascending = sorted(starts)
    if ascending[0] < frame.table_end or ascending[-1] > frame.stored - _WORD.size:
        return None
    ascending.append(frame.stored)
    places = [
        _BlockBytes(start, ascending[bisect_right(ascending, start)], number)
        for number in blocks
        for start in (starts[number],)
    ]
    longest = frame.blocksize + _WORD.size * MOST_SPLITS
    if any(stop - start > longest for start, stop, _ in places):
        return None
    return sorted(places)


def _of_whole_elements(frame: _Frame) -> bool:
    """True if no block ends within an element, whose bytes the library might not write."""
    return not frame.blocksize % frame.typesize and not frame.nbytes % frame.typesize


def _decode_block(piece: Buffer, frame: _Frame, place: _BlockBytes, out: DecodedBytes) -> bool:
    """Decode one block into the output; return False if something is wrong with it."""
    begin = place.number * frame.blocksize - out.first
    target = out.memory[begin : begin + frame.blocksize]
    length = _length(piece, frame, target.size)
    if length is None or len(piece) != place.stop - place.start:
        return False
    try:
        blosc_library().decompress(_framed(piece, length, frame, target.size), target)
    except (RuntimeError, ValueError):  # decoding the whole frame raises a better error
        return False
    return True


def _length(piece: Buffer, frame: _Frame, nbytes: int) -> int | None:
    """Return the bytes of a block at the start of a piece; None if they are too few or too many."""
    splits = frame.splits(nbytes)
    most, last, at = nbytes // splits, len(piece) - _WORD.size, 0
    for _ in range(splits):
        if at > last:
            return None
        (length,) = _WORD.unpack_from(piece, at)
        at += _WORD.size + length
        if not 0 <= length <= most or at > len(piece):
            return None
    return at


def _framed(piece: Buffer, length: int, frame: _Frame, nbytes: int) -> np.ndarray:
    """Return a frame of one block, which holds `nbytes`, in memory of this thread."""
    at = _HEADER.size + _WORD.size
    memory = thread_buffer("frame", at + length)
    memory[at:] = np.frombuffer(piece, np.uint8, length)
    flags = frame.flags
    if nbytes < frame.blocksize:  # the last block, which is never split
        flags |= _NOT_SPLIT
    fields = (*frame[:2], flags, frame.typesize, nbytes, nbytes, at + length, at)
    _SMALLER.pack_into(memory.data, 0, *fields)
    return memory


def unshuffle(data: np.ndarray, itemsize: int, out: np.ndarray) -> None:
    """Put the bytes of elements together again, which a byte shuffle has sorted by significance.

    Only the library has vector instructions for it, and it offers them for frames alone. So some
    elements at a time are made into a frame of one block that is shuffled, but not compressed.

    Parameters
    ----------
    data
        1-d, uint8: first bytes of all elements, then all second bytes, and so on.
    itemsize
        Bytes of an element, one of `UNSHUFFLED_FAST`; `data` holds whole elements.
    out
        1-d, uint8, of the size of `data`.

    Examples
    --------
    >>> elements = np.empty(4, np.uint8)
    >>> unshuffle(np.array([1, 3, 2, 4], np.uint8), 2, elements)
    >>> elements
    array([1, 2, 3, 4], dtype=uint8)
    """
    rows = data.reshape(itemsize, -1)
    step = _IN_CACHE // itemsize
    at = _SMALLER.size + _WORD.size
    memory = thread_buffer("shuffled", at + min(data.size, _IN_CACHE))
    for start in range(0, rows.shape[1], step):
        piece = rows[:, start : start + step]
        frame = memory[: at + piece.size]
        frame[at:].reshape(piece.shape)[...] = piece
        fields = (_VERSION, 1, _LZ4 | _NOT_SPLIT | _SHUFFLED, itemsize, piece.size, piece.size)
        _SMALLER.pack_into(frame.data, 0, *fields, frame.size, _SMALLER.size)
        _WORD.pack_into(frame.data, _SMALLER.size, piece.size)
        target = out[start * itemsize :][: piece.size]
        blosc_library().decompress(frame, target)
