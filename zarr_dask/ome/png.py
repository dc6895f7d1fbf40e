"""Encoding of pictures as PNG, with zlib only."""

from __future__ import annotations

import struct
import zlib

import numpy as np

__all__ = ["png"]


def png(pixels: np.ndarray) -> bytes:
    r"""Encode a picture as a PNG file.

    Parameters
    ----------
    pixels
        Red, green and blue from 0 to 255, of the shape (height, width, 3) and the type uint8.

    Raises
    ------
    ValueError
        If they have another shape or type, or there are none.

    Examples
    --------
    >>> png(np.zeros((2, 3, 3), "u1"))[:8]
    b'\x89PNG\r\n\x1a\n'
    """
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or not pixels.size:
        raise ValueError(f"{pixels.dtype} of {pixels.shape}: expected uint8 of (height, width, 3).")
    height, width, _ = pixels.shape
    lines = np.zeros((height, 1 + width * 3), np.uint8)  # each begins with its filter type: 0, none
    lines[:, 1:] = pixels.reshape(height, width * 3)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, colours, plain
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            _piece(b"IHDR", header),
            _piece(b"IDAT", zlib.compress(lines.tobytes(), 6)),
            _piece(b"IEND", b""),
        )
    )


def _piece(kind: bytes, data: bytes) -> bytes:
    checksum = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)
