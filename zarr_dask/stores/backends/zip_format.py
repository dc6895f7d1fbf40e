"""The structure of a zip archive: headers, the directory, and the end record.

The format is that of PKWARE's APPNOTE.TXT 6.3.9; zip64 is used only if a number does not fit.
Entries written here have no timestamp.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from zarr_dask.stores.base import Buffer

__all__ = [
    "MINIMUM_PADDING",
    "ZipDirectory",
    "ZipEntry",
    "directory",
    "end_of_directory",
    "local_header",
    "read_directory",
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
_NAME = 0x7075  # the extra field of a name in UTF-8, 4.6.9
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


class ZipDirectory(NamedTuple):
    """The directory of an archive."""

    start: int
    """Its offset, where the entries have ended."""
    entries: list[ZipEntry]


def read_directory(read: Callable[[int, int], Buffer], nbytes: int) -> ZipDirectory:
    """Read the directory of an archive, which may lie behind other data.

    Parameters
    ----------
    read
        Returns bytes of the file, from an offset on.
    nbytes
        Bytes of the file.

    Raises
    ------
    ValueError
        If the file is no archive, or a part of the directory is missing.
    """
    before = max(nbytes - _END.size - _MOST_16, 0)
    tail = bytes(read(before, nbytes - before))
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or at + _END.size > len(tail):
        raise ValueError("it has no directory at its end")
    *_, size, start, _ = _END.unpack_from(tail, at)
    end = before + at
    if tail[max(at - _LOCATOR_64.size, 0) : at].startswith(b"PK\x06\x07"):
        end -= _LOCATOR_64.size + _END_64.size
        record = bytes(read(end, _END_64.size)) if end >= 0 else b""
        if len(record) < _END_64.size or not record.startswith(b"PK\x06\x06"):
            raise ValueError("the end of its directory, of a large archive, is missing")
        *_, size, start = _END_64.unpack(record)
    first = end - size
    if first < 0:
        raise ValueError("its directory would begin before the file does")
    data = bytes(read(first, size))
    if len(data) < size:
        raise ValueError("its directory is cut off")
    return ZipDirectory(first, list(_entries(data, first - start)))


def _entries(data: bytes, shift: int) -> Iterator[ZipEntry]:
    """Yield the entries of a directory, whose offsets are too small by `shift`."""
    at, unpack = 0, _CENTRAL.unpack_from
    while at < len(data):
        if at + _CENTRAL.size > len(data) or not data.startswith(b"PK\x01\x02", at):
            raise ValueError(f"its directory is damaged at byte {at}")
        (
            *_, flags, method, clock, day, crc, stored, size,
            name_length, extra_length, comment, _, _, attributes, offset,
        ) = unpack(data, at)  # fmt: skip
        start = at + _CENTRAL.size
        stop = start + name_length
        at = stop + extra_length + comment
        if at > len(data):
            raise ValueError("its directory is cut off within an entry")
        encoded = data[start:stop]
        name = encoded.decode("utf-8" if flags & _UTF_8 else "cp437")
        entry = ZipEntry(
            name, offset + shift, size, stored, crc, method, flags, (clock, day), attributes
        )
        if extra_length:
            entry = _with_extra(entry, encoded, data[stop : stop + extra_length], shift)
        yield entry


def _with_extra(entry: ZipEntry, encoded: bytes, extra: bytes, shift: int) -> ZipEntry:
    """Return an entry with what its extra fields say: large numbers, and a name of another code."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        body = extra[at + 4 : at + 4 + length]
        at += 4 + length
        if len(body) < length:
            raise ValueError(f"the entry {entry.name!r} has a damaged extra field")
        if kind == _ZIP64:
            entry = _with_large(entry, body, shift)
        elif kind == _NAME and body[:5] == struct.pack("<BI", 1, zlib.crc32(encoded)):
            entry = entry._replace(name=body[5:].decode() or entry.name)
    return entry


def _with_large(entry: ZipEntry, body: bytes, shift: int) -> ZipEntry:
    numbers = {"size": entry.size, "stored": entry.stored, "offset": entry.offset - shift}
    large = [name for name, number in numbers.items() if number == _MOST_32]
    if len(body) < 8 * len(large):
        raise ValueError(f"the entry {entry.name!r} lacks its large numbers")
    numbers |= dict(zip(large, struct.unpack_from(f"<{len(large)}Q", body), strict=True))
    return entry._replace(
        size=numbers["size"], stored=numbers["stored"], offset=numbers["offset"] + shift
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
