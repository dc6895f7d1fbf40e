"""Blosc frames of snappy, which current builds of c-blosc leave out.

Arrays with ``"cname": "snappy"`` exist nevertheless. This module reads the frame (c-blosc 1,
README_HEADER) and its blocks; snappy within these is decoded by cramjam. It only reads.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np

from zarr_dask.errors import CorruptObjectError, MissingDependencyError
from zarr_dask.stores.base import Buffer

__all__ = ["decompress_frame", "is_snappy", "snappy_decompress"]

_HEADER = 16
_SHUFFLED, _STORED, _BIT_SHUFFLED, _NOT_SPLIT = 1, 2, 4, 16
_SNAPPY, _ZLIB = 2, 3
_MOST_SPLITS, _SMALLEST_SPLIT = 16, 128


def is_snappy(frame: Buffer) -> bool:
    """True if a blosc frame, or its header, has blocks of snappy."""
    flags = memoryview(frame)[2]
    return flags >> 5 == _SNAPPY and not flags & _STORED


def decompress_frame(frame: Buffer, out: np.ndarray) -> None:
    """Decompress a blosc frame into `out`.

    Parameters
    ----------
    frame
        A frame of snappy, or of zlib (which is used to test this against c-blosc).
    out
        1-d, uint8, of the size in the header.

    Raises
    ------
    CorruptObjectError
        If it is not such a frame.
    """
    view = memoryview(frame)
    flags, itemsize = view[2], view[3]
    block = _word(view, 8)
    if block < 1 or itemsize < 1 or view[2] >> 5 not in _INFLATE:
        raise CorruptObjectError("its blosc header has no size of blocks or of elements")
    inflate = _INFLATE[flags >> 5]
    for number, start in enumerate(range(0, out.size, block)):
        target = out[start : start + block]
        whole = target.size == block
        splits = itemsize if whole and _is_split(flags, itemsize, block) else 1
        stored = _block(view, _word(view, _HEADER + 4 * number), target.size, splits, inflate)
        target[:] = _unshuffled(stored, flags, itemsize)


def _word(view: memoryview, at: int) -> int:
    if not 0 <= at <= len(view) - 4:
        raise CorruptObjectError("its blosc frame points outside of itself")
    return int.from_bytes(view[at : at + 4], "little")


def _is_split(flags: int, itemsize: int, block: int) -> bool:
    """True if the bytes of each significance are compressed separately."""
    return (
        not flags & _NOT_SPLIT and itemsize <= _MOST_SPLITS and block // itemsize >= _SMALLEST_SPLIT
    )


def _block(
    view: memoryview, at: int, nbytes: int, splits: int, inflate: Callable[[memoryview, int], bytes]
) -> np.ndarray:
    pieces = []
    for _ in range(splits):
        size, at = _word(view, at), at + 4
        piece = view[at : at + size]
        if len(piece) != size:
            raise CorruptObjectError("a block of its blosc frame ends too early")
        wanted = nbytes // splits
        pieces.append(bytes(piece) if size == wanted else inflate(piece, wanted))
        at += size
    joint = b"".join(pieces)
    if len(joint) != nbytes:
        raise CorruptObjectError(f"a block of its blosc frame holds {len(joint)} bytes: {nbytes}")
    return np.frombuffer(joint, np.uint8)


def _unshuffled(block: np.ndarray, flags: int, itemsize: int) -> np.ndarray:
    count = block.size // itemsize
    body, rest = block[: count * itemsize], block[count * itemsize :]
    if flags & _SHUFFLED and itemsize > 1:
        body = body.reshape(itemsize, count).T.reshape(-1)
    elif flags & _BIT_SHUFFLED and count and count % 8 == 0:
        rows = np.unpackbits(body.reshape(itemsize * 8, -1), axis=1, bitorder="little")
        body = np.packbits(rows.T, axis=1, bitorder="little").reshape(-1)
    return np.concatenate([body, rest])


def snappy_decompress(block: memoryview, nbytes: int) -> bytes:
    """Return the content of a block of snappy's raw format, which must have `nbytes`.

    Raises
    ------
    CorruptObjectError
        If it is not such a block.
    MissingDependencyError
        If cramjam is not installed.

    Examples
    --------
    >>> snappy_decompress(memoryview(bytes.fromhex("08" "0c61626364" "01" "04")), 8)
    b'abcdabcd'
    """
    try:
        from cramjam import DecompressionError, snappy
    except ImportError as error:
        raise MissingDependencyError(
            "blosc chunks of snappy need the package cramjam: pip install 'zarr-dask[snappy]'"
        ) from error
    out = bytearray(nbytes)
    try:
        count = snappy.decompress_raw_into(block, out)
    except DecompressionError as error:
        raise CorruptObjectError(f"snappy cannot decompress a block of it ({error})") from error
    if count != nbytes:
        raise CorruptObjectError(f"its snappy block holds {count} bytes, not {nbytes}")
    return bytes(out)


def _inflate(block: memoryview, nbytes: int) -> bytes:
    try:
        return zlib.decompressobj().decompress(block, nbytes)
    except zlib.error as error:
        raise CorruptObjectError(f"zlib cannot decompress a block of it ({error})") from error


_INFLATE: dict[int, Callable[[memoryview, int], bytes]] = {
    _SNAPPY: snappy_decompress,
    _ZLIB: _inflate,
}
