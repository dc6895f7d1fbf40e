"""``zstd``: frames of Zstandard, with or without their size.

Headers of all frames and blocks are read before memory is allocated.

The functions of numcodecs make a context for each call, which takes four times as long as decoding
4 kB, and nearly as long as encoding 200 kB. Where the package ``zstandard`` is installed, small
chunks go through contexts that each thread keeps; what it refuses is left to numcodecs.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from types import ModuleType
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np

from zarr_dask._util.json_fields import is_int_in
from zarr_dask.codecs.base import Codec, EncodedSize, Speeds
from zarr_dask.codecs.codec_config import CodecConfig
from zarr_dask.codecs.compress.compressor import Compressor, take_int
from zarr_dask.errors import CorruptObjectError
from zarr_dask.stores.base import Buffer

__all__ = ["ZSTD_LEVELS", "Zstd", "compress_small", "decompress_small", "zstd_tables"]


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
        If True, the frame ends in a checksum of its content.
    """

    level: int = 0
    checksum: bool = False
    name: ClassVar[str] = "zstd"

    @classmethod
    def from_config(cls, config: CodecConfig) -> Codec:
        """See `Codec.from_config`."""
        level = config.take("level", is_int_in(ZSTD_LEVELS), "an integer from -131072 to 22")
        checksum = config.take("checksum", lambda v: isinstance(v, bool), "true or false", False)
        return cls(level, checksum)

    @classmethod
    def from_numcodecs(cls, name: str, config: dict[str, Any], dtype: str | None) -> Codec:  # noqa: ARG003
        """See `Codec.from_numcodecs`."""
        level = take_int(config, "level", 0, ZSTD_LEVELS)
        return cls(level, bool(config.pop("checksum", False)))

    def to_numcodecs(self) -> dict[str, Any]:
        """See `Codec.to_numcodecs`; older readers do not know the member ``checksum``."""
        return {"id": "zstd", "level": self.level, **({"checksum": True} if self.checksum else {})}

    @classmethod
    def with_defaults(
        cls,
        name: str,  # noqa: ARG003
        configuration: dict[str, Any],
        itemsize: int,  # noqa: ARG003
    ) -> dict[str, Any]:
        """See `Codec.with_defaults`."""
        return {"level": 0, "checksum": False, **configuration}

    @classmethod
    def example(cls, name: str, dtype: str) -> dict[str, Any]:  # noqa: ARG003
        """See `Codec.example`."""
        return {"level": 1}

    def speeds(self) -> Speeds:
        """See `Codec.speeds`."""
        return Speeds(0.9e9, 0.6e9)

    def configuration(self) -> dict[str, Any]:
        """See `Codec.configuration`."""
        return {"level": self.level, "checksum": self.checksum}

    def encoder_state_nbytes(self, nbytes: int) -> int:
        """See `BytesCodec.encoder_state_nbytes`."""
        return zstd_tables(self.level, nbytes)

    def encode(self, buffer: Buffer | np.ndarray, itemsize: int) -> Buffer:  # noqa: ARG002
        """See `BytesCodec.encode`."""
        small = compress_small(buffer, self.level, checksum=self.checksum)
        if small is not None:
            return small
        return cast("bytes", _numcodecs().compress(buffer, self.level, self.checksum))

    def decode(self, buffer: Buffer, size: EncodedSize) -> Buffer:
        """See `BytesCodec.decode`."""
        view = memoryview(buffer).cast("B")
        first = _first_content(view)
        if first is not None and first > size.most:
            EncodedSize(None, size.most).check("zstd frame", first)
        if first and first == size.exact:  # more would not fit
            out = np.empty(first, np.uint8)
            _zstd_into(view, out)
            return out.data
        frames = list(_zstd_frames(view))
        total = None if any(frame.content is None for frame in frames) else _total(frames)
        if total is None and (size.exact is None or size.exact > sum(f.most for f in frames)):
            return _unsized(view, frames, size)
        out = np.empty(_expected(total, size), np.uint8)
        self._fill(view, frames, out)
        return out.data

    def decode_into(self, buffer: Buffer, out: np.ndarray) -> None:
        """See `BytesCodec.decode_into`."""
        if out.size and _first_holds(buffer, out.size):  # more would not fit
            _zstd_into(buffer, out)
            return
        view = memoryview(buffer).cast("B")
        frames = list(_zstd_frames(view))
        if not any(frame.content is None for frame in frames):
            _expected(_total(frames), EncodedSize.of(out.size))
        self._fill(view, frames, out)

    @staticmethod
    def _fill(view: memoryview, frames: list[_ZstdFrame], out: np.ndarray) -> None:
        if sum(frame.content is None for frame in frames) > 1:
            decoded = _unsized(view, frames, EncodedSize.of(out.size))
            out[:] = np.frombuffer(decoded, np.uint8)
            return
        unsaid = any(frame.content is None for frame in frames)
        rest = out.size - _total(frames)  # the content of the frame without a stated size
        if rest < 0 or (rest and not unsaid):
            raise CorruptObjectError(
                f"its zstd frames hold {_total(frames)} bytes, but the chunk has {out.size}"
            )
        position = 0
        for frame in frames:
            content = rest if frame.content is None else frame.content
            if content or frame.most:  # the library does not accept empty frames
                _zstd_into(frame.saying(view, content), out[position : position + content])
            position += content


# Window, chain and hash table of each level as powers of two, for inputs longer than 256 KiB
# (ZSTD_defaultCParameters); tables for shorter inputs are limited by the window.
_LEVELS = (
    *((19, 12, 13), (19, 13, 14), (20, 15, 16), (21, 16, 17), (21, 18, 18), (21, 18, 19)),
    *((21, 18, 19), (21, 19, 20), (21, 19, 20), (22, 20, 21), (22, 21, 22), (22, 21, 22)),
    *((22, 22, 23), (22, 22, 22), (22, 22, 23), (22, 23, 23), (22, 22, 22), (23, 23, 22)),
    *((23, 22, 22), (23, 24, 22), (25, 25, 23), (26, 26, 24), (27, 27, 25)),
)
_DEFAULT_LEVEL, _FIRST_WITH_TREES, _FIRST_WITH_SHORT_MATCHES = 3, 11, 16
_SHORT_MATCHES = 4 << 17  # a table for matches of three bytes
_CONTEXT, _OPTIMAL_PARSER = 1 << 16, 3 << 17  # the latter from the first level with trees on


@lru_cache(maxsize=256)  # asked for each small chunk
def zstd_tables(level: int, nbytes: int) -> int:
    """Return the most bytes of a context and its tables, in which Zstandard looks for repetitions.

    Parameters
    ----------
    level
        The level passed to the library: 0 is the default, lower ones are faster.
    nbytes
        Bytes that are compressed at once; a short input has small tables.
    """
    number = _DEFAULT_LEVEL if level == 0 else max(level, 0)
    window, chain, hashed = _LEVELS[number]
    window = min(window, max(nbytes - 1, 1).bit_length())
    hashed = min(hashed, window + 1)
    chain = min(chain, window + (number >= _FIRST_WITH_TREES))  # trees have two per position
    short = _SHORT_MATCHES if number >= _FIRST_WITH_SHORT_MATCHES else 0
    parser = _OPTIMAL_PARSER if number >= _FIRST_WITH_TREES else 0
    return _CONTEXT + (4 << hashed) + (4 << chain) + short + parser


def _zstd_into(frame: Buffer, out: np.ndarray) -> None:
    """Decompress frames with a stated size, which the library checks."""
    if decompress_small(frame, out):
        return
    try:
        _numcodecs().decompress(frame, out)
    except (RuntimeError, ValueError) as error:
        raise CorruptObjectError(f"zstd cannot decompress it ({error})") from error


def _unsized(view: memoryview, frames: list[_ZstdFrame], size: EncodedSize) -> Buffer:
    """Decompress frames some of which do not state their size, bounded by their blocks."""
    if sum(frame.most for frame in frames) > max(size.most, _ZSTD_HARMLESS):
        raise CorruptObjectError(
            "its zstd frames do not say how many bytes they hold, so that its memory cannot be "
            "bounded"
        )
    try:
        pieces = [
            _numcodecs().decompress(view[frame.start : frame.stop])
            for frame in frames
            if frame.most
        ]
    except (RuntimeError, ValueError) as error:
        raise CorruptObjectError(f"zstd cannot decompress it ({error})") from error
    size.check("zstd frames", sum(map(len, pieces)))
    return b"".join(pieces)


def _expected(nbytes: int | None, size: EncodedSize) -> int:
    if nbytes is None:
        return cast("int", size.exact)
    size.check("zstd frame", nbytes)
    return nbytes


# Frames, RFC 8878 section 3.1.

_ZSTD_SKIPPABLE = range(0x184D2A50, 0x184D2A60)
_ZSTD_BLOCK = 1 << 17  # most bytes of a block
_ZSTD_HARMLESS = 1 << 24  # bytes that may always be allocated
_ZSTD_MOST_FRAMES = 1 << 14
_ZSTD_MOST_BLOCKS = 1 << 18


@dataclass(frozen=True, slots=True)
class _ZstdFrame:
    start: int
    stop: int
    fields: int
    """End of the header's fields: the content size and everything before it."""
    content: int | None
    """Bytes that it states to hold."""
    most: int
    """Most bytes that its blocks can hold."""

    def saying(self, view: memoryview, content: int) -> Buffer:
        """Return the frame with `content` in its header, so that the decoder checks it."""
        frame = view[self.start : self.stop]
        if self.content is not None:
            return frame
        head = bytearray(frame[: self.fields - self.start])
        head[4] |= 0xC0  # a content size of eight bytes; there was none
        return b"".join((head, content.to_bytes(8, "little"), frame[len(head) :]))


def _total(frames: list[_ZstdFrame]) -> int:
    return sum(frame.content or 0 for frame in frames)


def _zstd_frames(view: memoryview) -> Iterator[_ZstdFrame]:
    """Yield the frames that hold data, in order."""
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
    """Position of the content size, even if there is none."""
    end: int
    content: int | None


def _zstd_header(view: memoryview, start: int) -> _ZstdHeader:
    """Return the header of the frame at `start`."""
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
    """Return the content size of the first frame; None if not stated, or the frame is skippable."""
    if len(view) >= 8 and int.from_bytes(view[:4], "little") in _ZSTD_SKIPPABLE:
        return None
    return _zstd_header(view, 0).content


def _first_holds(buffer: Buffer, nbytes: int) -> bool:
    """Return True if the first frame says that it holds this many bytes."""
    library = _library()
    if library is None:
        return _first_content(memoryview(buffer).cast("B")) == nbytes
    try:
        return bool(library.frame_content_size(buffer) == nbytes)  # in a tenth of the time
    except library.ZstdError:
        return False


def _zstd_blocks(view: memoryview, position: int, allowed: int) -> tuple[int, int, int]:
    """Return the end of a frame's blocks, their number, and the most bytes they can hold."""
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


_SMALL = 1 << 16
"""Bytes of the largest chunk that gains from a kept context when it is decoded."""
_SMALL_INPUT, _SMALL_TABLES = 1 << 19, 1 << 21
"""Bytes of the largest chunk that gains when it is encoded, and of tables that a thread keeps."""
_MOST_LEVELS = 4  # contexts of a thread; a process rarely writes with more than one level


class _Contexts(threading.local):
    """Contexts of the current thread; those of the library may not be shared between threads."""

    def __init__(self) -> None:
        self.decompressor: Any = None
        self.compressors: dict[tuple[int, bool], Any] = {}


_CONTEXTS = _Contexts()


@cache
def _numcodecs() -> Any:
    """Return the functions of numcodecs, loaded when they are first called: that takes 60 ms."""
    return import_module("numcodecs.zstd")


@cache
def _library() -> ModuleType | None:
    """Return the package; imported late, because few processes need it."""
    try:
        import zstandard
    except ImportError:
        return None
    return zstandard


def compress_small(buffer: Buffer | np.ndarray, level: int, *, checksum: bool) -> bytes | None:
    """Return a frame that states its size; None if the chunk is not small, or for numcodecs."""
    library = _library()
    nbytes = memoryview(buffer).nbytes
    is_small = nbytes <= _SMALL_INPUT and zstd_tables(level, nbytes) <= _SMALL_TABLES
    if library is None or not is_small:
        return None
    compressors = _CONTEXTS.compressors
    compressor = compressors.get((level, checksum))
    if compressor is None:
        if len(compressors) >= _MOST_LEVELS:
            compressors.clear()
        compressor = library.ZstdCompressor(level, write_checksum=checksum)
        compressors[level, checksum] = compressor
    return cast("bytes", compressor.compress(buffer))


def decompress_small(frame: Buffer, out: np.ndarray) -> bool:
    """Decompress one frame that states the size of `out`; False if numcodecs must try it."""
    library = _library()
    if library is None or not 0 < out.size <= _SMALL:  # it does not look into empty frames
        return False
    decompressor = _CONTEXTS.decompressor
    if decompressor is None:
        decompressor = _CONTEXTS.decompressor = library.ZstdDecompressor()
    try:
        decoded = decompressor.decompress(frame, allow_extra_data=False)
    except library.ZstdError:
        return False
    if len(decoded) != out.size:
        return False
    out.data[:] = decoded
    return True
