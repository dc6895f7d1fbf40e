"""Blosc frames of snappy, which current builds of c-blosc leave out.

Arrays with ``"cname": "snappy"`` exist nevertheless. This module reads the frame (c-blosc 1,
README_HEADER), its blocks, and snappy's own format within these. It is plain Python with a few
MB/s, and only reads.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np

from zarr_dask.errors import CorruptObjectError
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

    Examples
    --------
    >>> snappy_decompress(memoryview(bytes.fromhex("08" "0c61626364" "01" "04")), 8)
    b'abcdabcd'
    """
    claimed, at = _varint(block)
    if claimed != nbytes:
        raise CorruptObjectError(f"its snappy block holds {claimed} bytes, not {nbytes}")
    out = bytearray()
    try:
        while at < len(block):
            at = _step(block, at, out, nbytes)
    except IndexError as error:
        raise CorruptObjectError("its snappy block ends too early") from error
    if len(out) != nbytes:
        raise CorruptObjectError("its snappy block ends too early")
    return bytes(out)


def _varint(block: memoryview) -> tuple[int, int]:
    number = 0
    for at, byte in enumerate(block[:5]):
        number |= (byte & 0x7F) << (7 * at)
        if byte < 0x80:
            return number, at + 1
    raise CorruptObjectError("its snappy block does not begin with a length")


def _step(block: memoryview, at: int, out: bytearray, most: int) -> int:
    """Execute one tag; return the position of the next one."""
    tag = block[at]
    at += 1
    kind, number = tag & 3, tag >> 2
    if kind == 0:
        extra = max(number - 59, 0)  # bytes of the length, if it does not fit in the tag
        length = 1 + (int.from_bytes(block[at : at + extra], "little") if extra else number)
        at += extra
        if len(out) + length > most or at + length > len(block):
            raise CorruptObjectError("a literal of its snappy block is too long")
        out += block[at : at + length]
        return at + length
    if kind == 1:
        length, width = 4 + (number & 7), 1
        distance = (tag >> 5) << 8 | block[at]
    else:
        length, width = 1 + number, 2 if kind == 2 else 4
        distance = int.from_bytes(block[at : at + width], "little")
    if not 0 < distance <= len(out) or len(out) + length > most:
        raise CorruptObjectError("a copy of its snappy block points outside of it")
    start = len(out) - distance
    if distance >= length:
        out += out[start : start + length]
    else:  # the copy overlaps its own result
        repeated = bytes(out[start:])
        out += (repeated * (length // distance + 1))[:length]
    return at + width


def _inflate(block: memoryview, nbytes: int) -> bytes:
    try:
        return zlib.decompressobj().decompress(block, nbytes)
    except zlib.error as error:
        raise CorruptObjectError(f"zlib cannot decompress a block of it ({error})") from error


_INFLATE: dict[int, Callable[[memoryview, int], bytes]] = {
    _SNAPPY: snappy_decompress,
    _ZLIB: _inflate,
}
