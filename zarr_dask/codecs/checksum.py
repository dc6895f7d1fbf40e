"""``crc32c``: a checksum of four bytes at the end, to detect damaged bytes (RFC 3720)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from zarr_dask.codecs.base import BytesCodec, EncodedSize, Speeds
from zarr_dask.errors import ChecksumError, CorruptObjectError
from zarr_dask.stores.base import Buffer

__all__ = ["Crc32c", "crc32c"]

_COPIED = 1 << 15
"""Length of a buffer up to which copying it takes less time than making a read-only view of it."""


def _with_google(buffer: Buffer | np.ndarray, before: int) -> int:
    import google_crc32c

    if len(buffer) <= _COPIED:
        buffer = bytes(buffer)
    if type(buffer) is bytes:
        return int(google_crc32c.extend(before, buffer))
    view = np.frombuffer(buffer, np.uint8)
    view.flags.writeable = False  # the library accepts only read-only memory
    return int(google_crc32c.extend(before, view))


_function: Callable[[Buffer | np.ndarray, int], int] = _with_google
with suppress(ImportError):
    from fastcrc.crc32 import iscsi as _function


def crc32c(buffer: Buffer | np.ndarray, before: int = 0) -> int:
    """Return the CRC-32C (Castagnoli) of some bytes, possibly continued from earlier ones.

    Parameters
    ----------
    buffer
        The bytes.
    before
        The CRC-32C of the bytes before them.

    Examples
    --------
    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    >>> hex(crc32c(b"6789", crc32c(b"12345")))
    '0xe3069283'
    """
    return _function(buffer, before)


# --- as a codec -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Crc32c(BytesCodec):
    """The bytes, then their CRC-32C as a little-endian integer."""

    name: ClassVar[str] = "crc32c"

    def to_numcodecs(self) -> dict[str, Any]:
        """See `Codec.to_numcodecs`."""
        return {"id": "crc32c"}

    def speeds(self) -> Speeds:
        """See `Codec.speeds`."""
        return Speeds(24e9, 24e9)

    def configuration(self) -> dict[str, Any]:
        """See `Codec.configuration`."""
        return {}

    def size(self, size: EncodedSize) -> EncodedSize:
        """See `BytesCodec.size`."""
        return size.plus(4)

    def encode(self, buffer: Buffer | np.ndarray, itemsize: int) -> Buffer:  # noqa: ARG002
        """See `BytesCodec.encode`."""
        return b"".join((buffer, crc32c(buffer).to_bytes(4, "little")))

    def encode_pieces(self, buffer: Buffer, itemsize: int) -> list[Buffer]:  # noqa: ARG002
        """See `BytesCodec.encode_pieces`: a copy takes longer than the checksum."""
        return [buffer, crc32c(buffer).to_bytes(4, "little")]

    def decode(self, buffer: Buffer, size: EncodedSize) -> Buffer:
        """See `BytesCodec.decode`."""
        view = memoryview(buffer)
        nbytes = len(view) - 4
        if not 0 <= nbytes <= size.most or nbytes != (nbytes if size.exact is None else size.exact):
            expected = size.plus(4)
            raise CorruptObjectError(
                f"it has {len(view)} bytes, but a chunk and its crc32c have "
                f"{expected.exact or f'from 4 to {expected.most}'}"
            )
        body = view[:-4]
        stored, actual = int.from_bytes(view[-4:], "little"), crc32c(body)
        if stored != actual:
            raise ChecksumError(
                f"its crc32c is {actual:#010x}, but {stored:#010x} is stored with it"
            )
        return body
