"""The structure of a zip archive: headers, the directory, and the end record.

The format is that of PKWARE's APPNOTE.TXT 6.3.9; zip64 is used only if a number does not fit.
Entries written here have no timestamp.
"""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterable
from typing import NamedTuple

__all__ = [
    "MINIMUM_PADDING",
    "ZipEntry",
    "directory",
    "end_of_directory",
    "local_header",
    "member_of",
]

_LOCAL = struct.Struct("<4s5H3I2H")  # 4.3.7
_CENTRAL = struct.Struct("<4s6H3I5H2I")  # 4.3.12
_END = struct.Struct("<4s4H2IH")  # 4.3.16
_END_64 = struct.Struct("<4sQ2H2I4Q")  # 4.3.14
_LOCATOR_64 = struct.Struct("<4sIQI")  # 4.3.15
_MOST_32, _MOST_16 = (1 << 32) - 1, (1 << 16) - 1
_UNIX = 3 << 8
_UTF_8 = 1 << 11
_NO_TIME = (0, 0x21)  # the first of January 1980
_A_FILE = 0o100644 << 16
_ZIP64 = 1  # the extra field of large numbers, 4.5.3
_PADDING = 0xD935  # an extra field that means nothing, as aligned archives have it
MINIMUM_PADDING = 4


class ZipEntry(NamedTuple):
    """An entry in the directory of an archive."""

    name: str
    offset: int
    """Offset of its local header."""
    size: int
    stored: int
    """Stored size in bytes."""
    crc: int
    method: int = zipfile.ZIP_STORED
    flags: int = 0
    time: tuple[int, int] = _NO_TIME
    attributes: int = _A_FILE


def member_of(info: zipfile.ZipInfo) -> ZipEntry:
    """Return an entry of an existing archive."""
    year, month, day, hour, minute, second = info.date_time
    time = (hour << 11 | minute << 5 | second // 2, max(year - 1980, 0) << 9 | month << 5 | day)
    return ZipEntry(
        info.filename,
        info.header_offset,
        info.file_size,
        info.compress_size,
        info.CRC,
        info.compress_type,
        info.flag_bits,
        time,
        info.external_attr,
    )


def local_header(name: str, size: int, crc: int, padding: int = 0) -> bytes:
    """Return the local header of a value stored without compression.

    Parameters
    ----------
    name, size, crc
        Name of the entry; size and checksum of its value.
    padding
        Number of bytes that the header is made longer by: 0, or 4 to 65,535.

    Raises
    ------
    ValueError
        If the name is too long for the format.
    """
    encoded, flags = _encoded(name)
    large = size >= _MOST_32
    extra = struct.pack("<2H2Q", _ZIP64, 16, size, size) if large else b""
    if padding:
        extra += struct.pack("<2H", _PADDING, padding - MINIMUM_PADDING).ljust(padding, b"\0")
    size = _MOST_32 if large else size
    return (
        _LOCAL.pack(
            b"PK\x03\x04",
            45 if large else 20,
            flags,
            zipfile.ZIP_STORED,
            *_NO_TIME,
            crc,
            size,
            size,
            len(encoded),
            len(extra),
        )
        + encoded
        + extra
    )


def directory(members: Iterable[ZipEntry]) -> bytes:
    """Return the directory of an archive."""
    return b"".join(_central(member) for member in members)


def _central(member: ZipEntry) -> bytes:
    encoded, flags = _encoded(member.name)
    numbers = (member.size, member.stored, member.offset)
    large = [number for number in numbers if number >= _MOST_32]
    extra = struct.pack(f"<2H{len(large)}Q", _ZIP64, 8 * len(large), *large) if large else b""
    size, stored, offset = (min(number, _MOST_32) for number in numbers)
    version = 45 if large else 20
    return (
        _CENTRAL.pack(
            b"PK\x01\x02",
            _UNIX | version,
            version,
            member.flags | flags,
            member.method,
            *member.time,
            member.crc,
            stored,
            size,
            len(encoded),
            len(extra),
            0,  # no comment
            0,  # one disk
            0,
            member.attributes,
            offset,
        )
        + encoded
        + extra
    )


def end_of_directory(count: int, nbytes: int, start: int, comment: bytes = b"") -> bytes:
    """Return the end records: the directory's number of entries, its size and its offset."""
    end = b""
    if count >= _MOST_16 or nbytes >= _MOST_32 or start >= _MOST_32:
        rest = _END_64.size - 12
        numbers = (rest, _UNIX | 45, 45, 0, 0, count, count, nbytes, start)
        end = _END_64.pack(b"PK\x06\x06", *numbers)
        end += _LOCATOR_64.pack(b"PK\x06\x07", 0, start + nbytes, 1)
    count, nbytes, start = min(count, _MOST_16), min(nbytes, _MOST_32), min(start, _MOST_32)
    return end + _END.pack(b"PK\x05\x06", 0, 0, count, count, nbytes, start, len(comment)) + comment


def _encoded(name: str) -> tuple[bytes, int]:
    """Return a name as bytes, and the flag for its encoding."""
    encoded = name.encode()
    if len(encoded) > _MOST_16:
        raise ValueError(f"a name of {len(encoded)} bytes is longer than {_MOST_16}")
    return encoded, 0 if name.isascii() else _UTF_8
