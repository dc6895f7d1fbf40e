"""Compressors: ``blosc``, ``zstd``, ``gzip``, ``zlib``, ``bz2``, ``lzma``, ``lz4``.

Every decoder is told how many bytes to expect and produces no more than that, whatever the
compressed bytes claim: sizes in headers are compared before memory is allocated, streams are
cut off. blosc, zstd and lz4 (numcodecs) and gzip and zlib (isal) release the GIL.
"""

from __future__ import annotations

import bz2 as _bz2
import lzma as _lzma
import struct
import zlib as _zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, cast

import numpy as np
from isal import isal_zlib
from numcodecs import blosc as _blosc
from numcodecs import lz4 as _lz4
from numcodecs import zstd as _zstd

from zarr_dask.codecs.base import BytesCodec, ChunkSpec, Size
from zarr_dask.codecs.snappy import decompress_frame, is_snappy
from zarr_dask.errors import CorruptObjectError, MetadataError, Problem
from zarr_dask.stores.base import Buffer

__all__ = [
    "BLOSC_CNAMES",
    "BLOSC_LARGEST_TYPESIZE",
    "BLOSC_SHUFFLES",
    "ZSTD_LEVELS",
    "Blosc",
    "Bz2",
    "Gzip",
    "Lz4",
    "Lzma",
    "Shuffle",
    "Zlib",
    "Zstd",
]

Shuffle = Literal["noshuffle", "shuffle", "bitshuffle"]


class Compressor(BytesCodec):
    """A codec whose output size depends on the values."""

    def size(self, size: Size) -> Size:
        """See `BytesCodec.size`."""
        return size.compressed()


# --- blosc ----------------------------------------------------------------------------------------

_BLOSC_HEADER = struct.Struct("<4xIII")
BLOSC_SHUFFLES: tuple[Shuffle, ...] = ("noshuffle", "shuffle", "bitshuffle")
_BLOSC_WRITES = tuple(_blosc.list_compressors())
"""What this build of numcodecs has; snappy is missing from most."""
BLOSC_CNAMES = tuple(dict.fromkeys((*_BLOSC_WRITES, "snappy")))
_NO_SNAPPY = "snappy" not in _BLOSC_WRITES
BLOSC_LARGEST_TYPESIZE = 255
"""Bytes of an element; blosc takes larger ones for bytes."""
_BLOSC_MAX_NBYTES = (1 << 31) - 17


@dataclass(frozen=True)
class Blosc(Compressor):
    """Shuffled and compressed in blocks: a c-blosc 1 frame.

    Parameters
    ----------
    cname
        The compressor within.
    clevel
        0 (stored) to 9.
    shuffle
        How bytes (or bits) are regrouped beforehand; None for bits where elements have one
        byte and bytes otherwise.
    typesize
        Bytes of what is shuffled; None for those of an element.
    blocksize
        Bytes per block; 0 lets blosc choose.
    """

    cname: str = "lz4"
    clevel: int = 5
    shuffle: Shuffle | None = "shuffle"
    typesize: int | None = None
    blocksize: int = 0
    name: ClassVar[str] = "blosc"

    def configuration(self) -> dict[str, Any]:
        """See `Codec.configuration`."""
        return {
            "cname": self.cname,
            "clevel": self.clevel,
            "shuffle": self.shuffle,
            **({} if self.typesize is None else {"typesize": self.typesize}),
            "blocksize": self.blocksize,
        }

    def problems(self, spec: ChunkSpec) -> Iterator[Problem]:
        """Blosc holds 2 GiB at most."""
        if spec.nbytes > _BLOSC_MAX_NBYTES:
            yield Problem(
                "name",
                "blosc",
                f"a codec for chunks of {spec.nbytes} bytes; blosc takes {_BLOSC_MAX_NBYTES}",
            )

    def resolved(self, itemsize: int) -> Blosc:
        """The same codec with shuffle and type size as they are for elements of `itemsize`."""
        return Blosc(self.cname, self.clevel, *self._shuffle(itemsize), self.blocksize)

    def _shuffle(self, itemsize: int) -> tuple[Shuffle, int]:
        """How elements of `itemsize` are regrouped, and as which size."""
        shuffle = self.shuffle or ("bitshuffle" if itemsize == 1 else "shuffle")
        return shuffle, self.typesize or itemsize

    def encode(self, buffer: Buffer | np.ndarray, itemsize: int) -> Buffer:
        """See `BytesCodec.encode`.

        Raises
        ------
        UnknownCodecError
            If the build of blosc here lacks the compressor: snappy is read only.
        """
        if self.cname not in _BLOSC_WRITES:
            expected = f"one of {list(_BLOSC_WRITES)}, which can be written here; it can be read"
            raise MetadataError.of("codec blosc", [Problem("cname", self.cname, expected, "codec")])
        shuffle, typesize = self._shuffle(itemsize)
        items, cname = _items(buffer, typesize), self.cname.encode()
        number = BLOSC_SHUFFLES.index(shuffle)
        return cast("bytes", _blosc.compress(items, cname, self.clevel, number, self.blocksize))

    def decode(self, buffer: Buffer, size: Size) -> Buffer:
        """See `BytesCodec.decode`."""
        out = np.empty(_blosc_nbytes(buffer, size), np.uint8)
        self.decode_into(buffer, out)
        return out.data

    def decode_into(self, buffer: Buffer, out: np.ndarray) -> None:
        """See `BytesCodec.decode_into`."""
        if len(buffer) < 16:
            _blosc_nbytes(buffer, Size.of(out.size))  # says what is wrong
        nbytes, _, stored = _BLOSC_HEADER.unpack_from(buffer)
        if nbytes != out.size:
            _blosc_nbytes(buffer, Size.of(out.size))
        if not nbytes:  # the library takes no frame of nothing
            return
        if stored > len(buffer):
            raise CorruptObjectError(
                f"its blosc frame says {stored} bytes, but {len(buffer)} are there"
            )
        if buffer[2] & _BLOSC_UNUSUAL:
            if _NO_SNAPPY and is_snappy(buffer):
                decompress_frame(buffer, out)
                return
            _check_all_written(buffer)
        try:
            _blosc.decompress(buffer, out)
        except (RuntimeError, ValueError) as error:
            raise CorruptObjectError(f"blosc cannot decompress it ({error})") from error


def _check_all_written(buffer: Buffer) -> None:
    """The library leaves bytes as they are that are no whole element of a block of bits."""
    flags, typesize = buffer[2], buffer[3]
    if not flags & _BLOSC_BITS or flags & _BLOSC_STORED or not typesize:
        return
    nbytes, blocksize, _ = _BLOSC_HEADER.unpack_from(buffer)
    for block in (blocksize, nbytes % blocksize if blocksize else 0):
        if block > typesize and block % typesize and not block // typesize % 8:
            raise CorruptObjectError(
                f"its blosc frame has a block of {block} bytes, which are no elements of {typesize}"
            )


_BLOSC_STORED, _BLOSC_BITS = 2, 4  # flags of the header
_BLOSC_UNUSUAL = _BLOSC_BITS | 2 << 5  # set where a frame has bits shuffled, or is one of snappy


def _items(buffer: Buffer | np.ndarray, itemsize: int) -> np.ndarray:
    """The bytes as elements of `itemsize`, which is how blosc learns what to shuffle."""
    raw = np.frombuffer(buffer, np.uint8)
    if itemsize > BLOSC_LARGEST_TYPESIZE or raw.size % itemsize:
        return raw
    return raw.view(f"u{itemsize}" if itemsize in {1, 2, 4, 8} else f"V{itemsize}")


def _blosc_nbytes(buffer: Buffer, size: Size) -> int:
    """Decoded bytes according to the frame's header, checked against what is expected."""
    if len(buffer) < 16:
        raise CorruptObjectError(f"{len(buffer)} bytes are fewer than a blosc header")
    nbytes = int(_BLOSC_HEADER.unpack_from(buffer)[0])
    _check_size("blosc frame", nbytes, size)
    return nbytes


def _check_size(what: str, nbytes: int, size: Size) -> None:
    if size.exact is not None and nbytes != size.exact:
        raise CorruptObjectError(f"its {what} holds {nbytes} bytes, but the chunk has {size.exact}")
    if nbytes > size.most:
        raise CorruptObjectError(
            f"its {what} claims {nbytes} bytes, but the chunk can have {size.most} at most"
        )


# --- zstd -----------------------------------------------------------------------------------------

_ZSTD_MAGIC = 0xFD2FB528
ZSTD_LEVELS = range(-131072, 23)


@dataclass(frozen=True)
class Zstd(Compressor):
    """A Zstandard frame (RFC 8878).

    Parameters
    ----------
    level
        -131072 to 22; 0 is the library's default (3).
    checksum
        Whether the frame ends in a checksum of its content.
    """

    level: int = 0
    checksum: bool = False
    name: ClassVar[str] = "zstd"

    def configuration(self) -> dict[str, Any]:
        """See `Codec.configuration`."""
        return {"level": self.level, "checksum": self.checksum}

    def encode(self, buffer: Buffer | np.ndarray, itemsize: int) -> Buffer:  # noqa: ARG002
        """See `BytesCodec.encode`."""
        return cast("bytes", _zstd.compress(buffer, self.level, self.checksum))

    def decode(self, buffer: Buffer, size: Size) -> Buffer:
        """See `BytesCodec.decode`."""
        view = memoryview(buffer).cast("B")
        first = _first_content(view)
        if first is not None and first > size.most:
            _check_size("zstd frame", first, Size(None, size.most))
        frames = list(_zstd_frames(view))
        total = None if any(frame.content is None for frame in frames) else _total(frames)
        if total is None and (size.exact is None or size.exact > sum(f.most for f in frames)):
            return _unsized(view, frames, size)
        out = np.empty(_expected(total, size), np.uint8)
        self._fill(view, frames, out)
        return out.data

    def decode_into(self, buffer: Buffer, out: np.ndarray) -> None:
        """See `BytesCodec.decode_into`."""
        view = memoryview(buffer).cast("B")
        if out.size and _first_content(view) == out.size:  # more of it would not fit
            _zstd_into(view, out)
            return
        frames = list(_zstd_frames(view))
        if not any(frame.content is None for frame in frames):
            _expected(_total(frames), Size.of(out.size))
        self._fill(view, frames, out)

    @staticmethod
    def _fill(view: memoryview, frames: list[_ZstdFrame], out: np.ndarray) -> None:
        if sum(frame.content is None for frame in frames) > 1:
            decoded = _unsized(view, frames, Size.of(out.size))
            out[:] = np.frombuffer(decoded, np.uint8)
            return
        unsaid = any(frame.content is None for frame in frames)
        rest = out.size - _total(frames)  # what the frame has that does not say it
        if rest < 0 or (rest and not unsaid):
            raise CorruptObjectError(
                f"its zstd frames hold {_total(frames)} bytes, but the chunk has {out.size}"
            )
        position = 0
        for frame in frames:
            content = rest if frame.content is None else frame.content
            if content or frame.most:  # the library takes no frame of nothing
                _zstd_into(frame.saying(view, content), out[position : position + content])
            position += content


def _zstd_into(frame: Buffer, out: np.ndarray) -> None:
    """Decompress frames that say what they hold, of which the library makes sure."""
    try:
        _zstd.decompress(frame, out)
    except (RuntimeError, ValueError) as error:
        raise CorruptObjectError(f"zstd cannot decompress it ({error})") from error


def _unsized(view: memoryview, frames: list[_ZstdFrame], size: Size) -> Buffer:
    """Frames of which some do not say what they hold: their blocks bound it."""
    if sum(frame.most for frame in frames) > max(size.most, _ZSTD_HARMLESS):
        raise CorruptObjectError(
            "its zstd frames do not say how many bytes they hold, so that its memory cannot be "
            "bounded"
        )
    try:
        pieces = [
            _zstd.decompress(view[frame.start : frame.stop]) for frame in frames if frame.most
        ]
    except (RuntimeError, ValueError) as error:
        raise CorruptObjectError(f"zstd cannot decompress it ({error})") from error
    _check_size("zstd frames", sum(map(len, pieces)), size)
    return b"".join(pieces)


def _expected(nbytes: int | None, size: Size) -> int:
    if nbytes is None:
        return cast("int", size.exact)
    _check_size("zstd frame", nbytes, size)
    return nbytes


# Frames, RFC 8878 section 3.1.

_ZSTD_SKIPPABLE = range(0x184D2A50, 0x184D2A60)
_ZSTD_BLOCK = 1 << 17  # bytes that a block holds at most
_ZSTD_HARMLESS = 1 << 24  # bytes that may always be taken
_ZSTD_MOST_FRAMES = 1 << 14
_ZSTD_MOST_BLOCKS = 1 << 18


@dataclass(frozen=True, slots=True)
class _ZstdFrame:
    start: int
    stop: int
    fields: int
    """Where the header's fields end: content size and all that stands before it."""
    content: int | None
    """Bytes it says it holds."""
    most: int
    """Bytes that its blocks hold at most."""

    def saying(self, view: memoryview, content: int) -> Buffer:
        """The frame with a header that says `content`, so that the decoder compares."""
        frame = view[self.start : self.stop]
        if self.content is not None:
            return frame
        head = bytearray(frame[: self.fields - self.start])
        head[4] |= 0xC0  # a content size of eight bytes; there was none
        return b"".join((head, content.to_bytes(8, "little"), frame[len(head) :]))


def _total(frames: list[_ZstdFrame]) -> int:
    return sum(frame.content or 0 for frame in frames)


def _zstd_frames(view: memoryview) -> Iterator[_ZstdFrame]:
    """The frames that hold something, one after the other."""
    position = seen = blocks = 0
    while position < len(view) or not seen:
        if len(view) - position < 8:
            raise CorruptObjectError("it does not begin with a zstd frame" if not seen else _CUT)
        seen += 1
        magic = int.from_bytes(view[position : position + 4], "little")
        if magic in _ZSTD_SKIPPABLE:
            position += 8 + int.from_bytes(view[position + 4 : position + 8], "little")
            if position > len(view):
                raise CorruptObjectError(_CUT)
        else:
            start, header = position, _zstd_header(view, position)
            position, count, most = _zstd_blocks(view, header.end, _ZSTD_MOST_BLOCKS - blocks)
            blocks += count
            position += 4 if view[start + 4] & 4 else 0  # checksum
            if position > len(view) or (header.content or 0) > most:
                raise CorruptObjectError(_CUT)
            yield _ZstdFrame(start, position, header.fields, header.content, most)
        if seen >= _ZSTD_MOST_FRAMES:
            raise CorruptObjectError(f"it has more than {_ZSTD_MOST_FRAMES} zstd frames")


_CUT = "its zstd frame ends too early"


class _ZstdHeader(NamedTuple):
    fields: int
    """Where the content size stands, or would."""
    end: int
    content: int | None


def _zstd_header(view: memoryview, start: int) -> _ZstdHeader:
    """The header of the frame at `start`."""
    if len(view) - start < 6 or int.from_bytes(view[start : start + 4], "little") != _ZSTD_MAGIC:
        raise CorruptObjectError("it does not begin with a zstd frame")
    descriptor = view[start + 4]
    single_segment = bool(descriptor & 0x20)
    width = (1 if single_segment else 0, 2, 4, 8)[descriptor >> 6]
    fields = start + 5 + (0 if single_segment else 1) + (0, 1, 2, 4)[descriptor & 3]
    end = fields + width
    if end > len(view):
        raise CorruptObjectError(_CUT)
    if width == 0:
        return _ZstdHeader(fields, end, None)
    number = int.from_bytes(view[fields:end], "little")
    return _ZstdHeader(fields, end, number + 256 if width == 2 else number)


def _first_content(view: memoryview) -> int | None:
    """Content size of the frame it begins with; None if it is not said, or is skippable."""
    if len(view) >= 8 and int.from_bytes(view[:4], "little") in _ZSTD_SKIPPABLE:
        return None
    return _zstd_header(view, 0).content


def _zstd_blocks(view: memoryview, position: int, allowed: int) -> tuple[int, int, int]:
    """Where the blocks of a frame end, how many they are, and the bytes they hold at most."""
    count = most = 0
    last = False
    while not last:
        if position + 3 > len(view):
            raise CorruptObjectError(_CUT)
        if count >= allowed:
            raise CorruptObjectError(f"it has more than {_ZSTD_MOST_BLOCKS} zstd blocks")
        header = int.from_bytes(view[position : position + 3], "little")
        last, kind, nbytes = bool(header & 1), header >> 1 & 3, header >> 3
        stored = 1 if kind == 1 else nbytes  # one byte, repeated
        position += 3 + stored
        most += _ZSTD_BLOCK if kind == 2 else nbytes
        count += 1
    return position, count, most


# --- streams --------------------------------------------------------------------------------------


class _Decompressor(Protocol):
    """What the decompressors of zlib, isal, bz2 and lzma share."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: Any, max_length: int, /) -> bytes: ...


class _Inflater(_Decompressor, Protocol):
    """What the decompressors of zlib and isal have besides."""

    @property
    def unconsumed_tail(self) -> bytes: ...


def _inflate(
    what: str, new: Callable[[], _Decompressor], buffer: Buffer, size: Size, failures: Any
) -> bytes:
    """Decompress one stream, or several one after the other, up to the expected size."""
    view = memoryview(buffer).cast("B")
    pieces: list[bytes] = []
    total = position = 0
    window = len(view)
    try:
        while position < len(view):
            stream = new()
            fed = view[position : position + window]
            piece = stream.decompress(fed, size.most - total + 1)
            if total + len(piece) > size.most:
                _check_size(f"{what} stream", total + len(piece), Size(None, size.most))
            if not stream.eof:
                if len(fed) == len(view) - position:
                    raise CorruptObjectError(f"its {what} stream ends too early")
                window *= _WIDER
                continue
            total += len(piece)
            pieces.append(piece)
            if len(pieces) > _MOST_STREAMS:
                raise CorruptObjectError(f"it has more than {_MOST_STREAMS} {what} streams")
            length = len(fed) - len(stream.unused_data)
            position += length
            window = max(2 * length, _NARROWEST)
    except failures as error:
        raise CorruptObjectError(f"{what} cannot decompress it ({error})") from error
    _check_size(f"{what} stream", total, size)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _inflate_into(
    what: str, stream: _Inflater, buffer: Buffer, out: np.ndarray, failures: Any
) -> bool:
    """Decompress one stream piece by piece, so that there is no second copy of a large chunk.

    Returns
    -------
    bool
        False if there is more than one stream; what was put into `out` is then of no use.
    """
    view = memoryview(buffer).cast("B")
    total = position = 0
    fed: Buffer = b""
    try:
        while not stream.eof:
            if not fed:
                fed = view[position : position + _FED]
                position += len(fed)
            piece = stream.decompress(fed, min(out.size - total, _PIECE) + 1)
            if total + len(piece) > out.size:
                _check_size(f"{what} stream", total + len(piece), Size.of(out.size))
            if not piece and not fed:
                raise CorruptObjectError(f"its {what} stream ends too early")
            out[total : total + len(piece)] = np.frombuffer(piece, np.uint8)
            total += len(piece)
            fed = stream.unconsumed_tail
    except failures as error:
        raise CorruptObjectError(f"{what} cannot decompress it ({error})") from error
    if position - len(stream.unused_data) < len(view):
        return False
    _check_size(f"{what} stream", total, Size.of(out.size))
    return True


_FED = 1 << 16
_PIECE = 1 << 20

# A stream copies all that it is given beyond its end: the streams after the first are given about
# as much as the one before them had, and more if that was not all.
_NARROWEST = 1 << 12
_WIDER = 64
_MOST_STREAMS = 1 << 18

_ISAL_LEVELS = range(1, 4)
"""Where isal compresses as well as zlib at the same level, several times as fast."""


_ISAL_FAILURES = (isal_zlib.error, EOFError)


def _deflate(buffer: Buffer | np.ndarray, level: int, wbits: int) -> bytes:
    data = memoryview(buffer)
    if level in _ISAL_LEVELS:
        return isal_zlib.compress(data, level, wbits)
    return _zlib.compress(data, level, wbits)


def _isal_decompressor(wbits: int) -> Callable[[], _Inflater]:
    return lambda: cast("_Inflater", isal_zlib.decompressobj(wbits))


@dataclass(frozen=True)
class Gzip(Compressor):
    """A gzip stream (RFC 1952) of the given level, 0 to 9."""

    level: int = 1
    copies: ClassVar[int] = 3
    name: ClassVar[str] = "gzip"
    wbits: ClassVar[int] = 31

    def configuration(self) -> dict[str, Any]:
        """See `Codec.configuration`."""
        return {"level": self.level}

    def encode(self, buffer: Buffer | np.ndarray, itemsize: int) -> Buffer:  # noqa: ARG002
        """See `BytesCodec.encode`."""
        return _deflate(buffer, self.level, self.wbits)

    def decode(self, buffer: Buffer, size: Size) -> Buffer:
        """See `BytesCodec.decode`."""
        return _inflate(self.name, _isal_decompressor(self.wbits), buffer, size, _ISAL_FAILURES)

    def decode_into(self, buffer: Buffer, out: np.ndarray) -> None:
        """See `BytesCodec.decode_into`."""
        stream = _isal_decompressor(self.wbits)()
        if out.size <= _PIECE or not _inflate_into(self.name, stream, buffer, out, _ISAL_FAILURES):
            super().decode_into(buffer, out)


@dataclass(frozen=True)
class Zlib(Gzip):
    """A zlib stream (RFC 1950) of the given level, 0 to 9."""

    name: ClassVar[str] = "zlib"
    wbits: ClassVar[int] = 15


@dataclass(frozen=True)
class Bz2(Compressor):
    """A bzip2 stream of the given level, 1 to 9."""

    level: int = 1
    copies: ClassVar[int] = 3
    name: ClassVar[str] = "bz2"

    def configuration(self) -> dict[str, Any]:
        """See `Codec.configuration`."""
        return {"level": self.level}

    def encode(self, buffer: Buffer | np.ndarray, itemsize: int) -> Buffer:  # noqa: ARG002
        """See `BytesCodec.encode`."""
        return _bz2.compress(buffer, self.level)

    def decode(self, buffer: Buffer, size: Size) -> Buffer:
        """See `BytesCodec.decode`."""
        return _inflate("bz2", _bz2.BZ2Decompressor, buffer, size, (OSError, EOFError))


@dataclass(frozen=True)
class Lzma(Compressor):
    """An LZMA stream; the parameters are those of Python's `lzma`.

    Parameters
    ----------
    format
        1 xz, 2 the old "alone" form, 3 raw.
    check
        Integrity check of xz; -1 is the default of the format.
    preset
        0 to 9, or None.
    filters
        Filter chain as a tuple of (name, value) pairs each, or None.
    """

    format: int = 1
    check: int = -1
    preset: int | None = None
    filters: tuple[tuple[tuple[str, int], ...], ...] | None = None
    copies: ClassVar[int] = 3
    name: ClassVar[str] = "lzma"

    def configuration(self) -> dict[str, Any]:
        """See `Codec.configuration`."""
        filters = None if self.filters is None else [dict(chain) for chain in self.filters]
        return {
            "format": self.format,
            "check": self.check,
            "preset": self.preset,
            "filters": filters,
        }

    def encode(self, buffer: Buffer | np.ndarray, itemsize: int) -> Buffer:  # noqa: ARG002
        """See `BytesCodec.encode`."""
        return _lzma.compress(buffer, **self.configuration())

    def decode(self, buffer: Buffer, size: Size) -> Buffer:
        """See `BytesCodec.decode`."""
        filters = self.configuration()["filters"] if self.format == _lzma.FORMAT_RAW else None

        def new() -> _Decompressor:
            limit = None if filters else _LZMA_DICTIONARY + size.most
            return _lzma.LZMADecompressor(self.format, limit, filters)

        return _inflate("lzma", new, buffer, size, (_lzma.LZMAError, EOFError))


_LZMA_DICTIONARY = 1 << 27
"""Bytes of memory for the dictionary of any preset, with some to spare."""


# --- lz4 ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lz4(Compressor):
    """The decoded size in four little-endian bytes, then an LZ4 block (not a frame)."""

    acceleration: int = 1
    name: ClassVar[str] = "lz4"

    def configuration(self) -> dict[str, Any]:
        """See `Codec.configuration`."""
        return {"acceleration": self.acceleration}

    def encode(self, buffer: Buffer | np.ndarray, itemsize: int) -> Buffer:  # noqa: ARG002
        """See `BytesCodec.encode`."""
        return cast("bytes", _lz4.compress(buffer, self.acceleration))

    def decode(self, buffer: Buffer, size: Size) -> Buffer:
        """See `BytesCodec.decode`."""
        if len(buffer) < 4:
            raise CorruptObjectError(f"{len(buffer)} bytes are fewer than an lz4 header")
        nbytes = int.from_bytes(memoryview(buffer)[:4], "little")
        _check_size("lz4 block", nbytes, size)
        out = np.empty(nbytes, np.uint8)
        self.decode_into(buffer, out)
        return out.data

    def decode_into(self, buffer: Buffer, out: np.ndarray) -> None:
        """See `BytesCodec.decode_into`."""
        if len(buffer) < 4:
            raise CorruptObjectError(f"{len(buffer)} bytes are fewer than an lz4 header")
        nbytes = int.from_bytes(memoryview(buffer)[:4], "little")
        _check_size("lz4 block", nbytes, Size.of(out.size))
        try:
            _lz4.decompress(buffer, out)
        except (RuntimeError, ValueError) as error:
            raise CorruptObjectError(f"lz4 cannot decompress it ({error})") from error
