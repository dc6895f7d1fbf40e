"""``gzip``, ``zlib``, ``bz2``, ``lzma``: streams that do not state their decompressed size."""

from __future__ import annotations

import bz2 as _bz2
import lzma as _lzma
import zlib as _zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, cast

import numpy as np
from isal import isal_zlib

from zarr_dask._util.json_fields import is_int_in
from zarr_dask.codecs.base import Codec, EncodedSize, Speeds
from zarr_dask.codecs.codec_config import CodecConfig
from zarr_dask.codecs.compress.compressor import Compressor, take_int
from zarr_dask.codecs.compress.libdeflate import decompress_whole
from zarr_dask.errors import CorruptObjectError
from zarr_dask.stores.base import Buffer

__all__ = ["Bz2", "Gzip", "Lzma", "Zlib"]


class _Decompressor(Protocol):
    """The common interface of the decompressors of zlib, isal, bz2 and lzma."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: Any, max_length: int, /) -> bytes: ...


class _Inflater(_Decompressor, Protocol):
    """The additional interface of the decompressors of zlib and isal."""

    @property
    def unconsumed_tail(self) -> bytes: ...


_Header = Callable[[memoryview], int]
"""Returns the number of bytes at the start of a stream that must be passed at once."""


def _inflate(
    what: str,
    new: Callable[[], _Decompressor],
    buffer: Buffer,
    size: EncodedSize,
    failures: Any,
    header: _Header,
) -> bytes:
    """Decompress one stream, or several in sequence, up to the expected size."""
    view = memoryview(buffer).cast("B")
    pieces: list[bytes] = []
    total = position = 0
    window = len(view)
    try:
        while position < len(view):
            stream = new()
            window = max(window, header(view[position:]))
            fed = view[position : position + window]
            piece = stream.decompress(fed, size.most - total + 1)
            if total + len(piece) > size.most:
                EncodedSize(None, size.most).check(f"{what} stream", total + len(piece))
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
    size.check(f"{what} stream", total)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _inflate_into(
    what: str,
    new: Callable[[], _Inflater],
    buffer: Buffer,
    out: np.ndarray,
    failures: Any,
    header: _Header,
) -> None:
    """Decompress like `_inflate`, in pieces, which avoids a second copy of a large chunk."""
    view = memoryview(buffer).cast("B")
    total = position = streams = 0
    window = _FED
    while position < len(view):
        stream, begun, fed = new(), position, view[:0]
        window = max(window, header(view[position:]))
        streams += 1
        if streams > _MOST_STREAMS:
            raise CorruptObjectError(f"it has more than {_MOST_STREAMS} {what} streams")
        try:
            while not stream.eof:
                if not fed:
                    fed = view[position : position + window]
                    position += len(fed)
                    window = _FED
                piece = stream.decompress(fed, min(out.size - total, _PIECE) + 1)
                if total + len(piece) > out.size:
                    EncodedSize.of(out.size).check(f"{what} stream", total + len(piece))
                if not piece and not fed:
                    raise CorruptObjectError(f"its {what} stream ends too early")
                out[total : total + len(piece)] = np.frombuffer(piece, np.uint8)
                total += len(piece)
                fed = memoryview(stream.unconsumed_tail)
        except failures as error:
            raise CorruptObjectError(f"{what} cannot decompress it ({error})") from error
        position -= len(stream.unused_data)
        window = min(max(2 * (position - begun), _NARROWEST), _FED)
    EncodedSize.of(out.size).check(f"{what} stream", total)


_FED = 1 << 16
_PIECE = 1 << 20

# A stream copies everything that it is given beyond its end. So each stream after the first is
# given about as many bytes as the one before it had, and more if that was not enough.
_NARROWEST = 1 << 12
_WIDER = 64
_MOST_STREAMS = 1 << 18

_CHECKED, _EXTRA, _TEXTS = 2, 4, (8, 16)
"""Flags of a gzip header (RFC 1952): a checksum of its own, extra bytes, a name and a comment."""
_FIXED = 10


def _gzip_header(view: memoryview) -> int:
    """Return the bytes of the header of a gzip member with a header checksum; 0 for others.

    isal reports such a header as damaged if it does not get it at once.
    """
    if len(view) < _FIXED or not view[3] & _CHECKED:
        return 0
    end = _FIXED
    if view[3] & _EXTRA:
        end += 2 + int.from_bytes(view[end : end + 2], "little")
    for flag in _TEXTS:
        if view[3] & flag:
            end = _behind_zero(view, end)
    return end + 2


def _behind_zero(view: memoryview, start: int) -> int:
    """Return the position after a zero-terminated text; the end if there is no zero."""
    for first in range(start, len(view), _FED):
        found = bytes(view[first : first + _FED]).find(0)
        if found >= 0:
            return first + found + 1
    return len(view)


def _no_header(view: memoryview) -> int:  # noqa: ARG001
    """Return 0: no bytes need be passed at once."""
    return 0


_ISAL_LEVELS = range(1, 4)
"""Levels at which isal compresses as well as zlib, several times as fast."""


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
    peak_copies: ClassVar[int] = 3
    name: ClassVar[str] = "gzip"
    in_numcodecs: ClassVar[bool] = True
    wbits: ClassVar[int] = 31

    @classmethod
    def from_config(cls, config: CodecConfig) -> Codec:
        """See `Codec.from_config`."""
        return cls(config.take("level", is_int_in(range(10)), "an integer from 0 to 9"))

    @classmethod
    def from_numcodecs(cls, name: str, config: dict[str, Any], dtype: str | None) -> Codec:  # noqa: ARG003
        """See `Codec.from_numcodecs`."""
        return cls(take_int(config, "level", 1, range(-1, 10)))

    @classmethod
    def with_defaults(
        cls,
        name: str,  # noqa: ARG003
        configuration: dict[str, Any],
        itemsize: int,  # noqa: ARG003
    ) -> dict[str, Any]:
        """See `Codec.with_defaults`."""
        return {"level": 5, **configuration}

    @classmethod
    def example(cls, name: str, dtype: str) -> dict[str, Any]:  # noqa: ARG003
        """See `Codec.example`."""
        return {"level": 1}

    def speeds(self) -> Speeds:
        """See `Codec.speeds`."""
        return Speeds(0.3e9, 0.05e9)

    @property
    def _header(self) -> _Header:
        return _gzip_header

    def configuration(self) -> dict[str, Any]:
        """See `Codec.configuration`."""
        return {"level": self.level}

    def encode(self, buffer: Buffer | np.ndarray, itemsize: int) -> Buffer:  # noqa: ARG002
        """See `BytesCodec.encode`."""
        return _deflate(buffer, self.level, self.wbits)

    def decode(self, buffer: Buffer, size: EncodedSize) -> Buffer:
        """See `BytesCodec.decode`."""
        if size.exact is not None:
            content = decompress_whole(buffer, size.exact, self.wbits)
            if content is not None:
                return content
        new = _isal_decompressor(self.wbits)
        return _inflate(self.name, new, buffer, size, _ISAL_FAILURES, self._header)

    def decode_into(self, buffer: Buffer, out: np.ndarray) -> None:
        """See `BytesCodec.decode_into`."""
        if out.size <= _PIECE:
            super().decode_into(buffer, out)
            return
        new = _isal_decompressor(self.wbits)
        _inflate_into(self.name, new, buffer, out, _ISAL_FAILURES, self._header)

    def decode_into_peak_nbytes(self, nbytes: int) -> int:
        """See `BytesCodec.decode_into_peak_nbytes`; a large chunk is decoded in growing pieces."""
        return (
            super().decode_into_peak_nbytes(nbytes)
            if nbytes <= _PIECE
            else nbytes + self.peak_copies * _PIECE
        )


@dataclass(frozen=True)
class Zlib(Gzip):
    """A zlib stream (RFC 1950) of the given level, 0 to 9."""

    name: ClassVar[str] = "zlib"
    wbits: ClassVar[int] = 15

    @property
    def _header(self) -> _Header:
        return _no_header


@dataclass(frozen=True)
class Bz2(Compressor):
    """A bzip2 stream of the given level, 1 to 9."""

    level: int = 1
    peak_copies: ClassVar[int] = 3
    name: ClassVar[str] = "bz2"
    in_numcodecs: ClassVar[bool] = True

    @classmethod
    def from_numcodecs(cls, name: str, config: dict[str, Any], dtype: str | None) -> Codec:  # noqa: ARG003
        """See `Codec.from_numcodecs`."""
        return cls(take_int(config, "level", 1, range(1, 10)))

    @classmethod
    def example(cls, name: str, dtype: str) -> dict[str, Any]:  # noqa: ARG003
        """See `Codec.example`."""
        return {"level": 1}

    def speeds(self) -> Speeds:
        """See `Codec.speeds`."""
        return Speeds(0.02e9, 0.007e9)

    def configuration(self) -> dict[str, Any]:
        """See `Codec.configuration`."""
        return {"level": self.level}

    def encoder_state_nbytes(self, nbytes: int) -> int:  # noqa: ARG002
        """See `BytesCodec.encoder_state_nbytes`; the number is from the library's manual."""
        return 400_000 + 800_000 * self.level

    def encode(self, buffer: Buffer | np.ndarray, itemsize: int) -> Buffer:  # noqa: ARG002
        """See `BytesCodec.encode`."""
        return _bz2.compress(buffer, self.level)

    def decode(self, buffer: Buffer, size: EncodedSize) -> Buffer:
        """See `BytesCodec.decode`."""
        failures = (OSError, EOFError)
        return _inflate("bz2", _bz2.BZ2Decompressor, buffer, size, failures, _no_header)


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
    peak_copies: ClassVar[int] = 3
    name: ClassVar[str] = "lzma"
    in_numcodecs: ClassVar[bool] = True

    @classmethod
    def from_numcodecs(cls, name: str, config: dict[str, Any], dtype: str | None) -> Codec:  # noqa: ARG003
        """See `Codec.from_numcodecs`."""
        filters = config.pop("filters", None)
        chain = None if filters is None else tuple(_lzma_filter(item) for item in filters)
        preset = config.pop("preset", None)
        if preset is not None and type(preset) is not int:
            raise ValueError(f"preset is {preset!r}, not an integer")
        form = take_int(config, "format", _lzma.FORMAT_XZ, range(1, 4))
        codec = cls(form, take_int(config, "check", -1, range(-1, 17)), preset, chain)
        if form == _lzma.FORMAT_RAW:
            try:
                _lzma.LZMADecompressor(form, None, codec.configuration()["filters"])
            except _lzma.LZMAError as error:
                raise ValueError(f"filters are {filters!r}: {error}") from error
        return codec

    @classmethod
    def example(cls, name: str, dtype: str) -> dict[str, Any]:  # noqa: ARG003
        """See `Codec.example`."""
        return {"preset": 1}

    def speeds(self) -> Speeds:
        """See `Codec.speeds`."""
        return Speeds(0.02e9, 0.002e9)

    def configuration(self) -> dict[str, Any]:
        """See `Codec.configuration`."""
        filters = None if self.filters is None else [dict(chain) for chain in self.filters]
        return {
            "format": self.format,
            "check": self.check,
            "preset": self.preset,
            "filters": filters,
        }

    def encoder_state_nbytes(self, nbytes: int) -> int:
        """See `BytesCodec.encoder_state_nbytes`: a hash table, and a tree of earlier positions."""
        chains = map(dict, self.filters) if self.filters else [{"preset": self.preset}]
        largest = max(_dictionary(chain) for chain in chains)
        hashed = min(1 << max(largest - 1, 1).bit_length(), _LZMA_MOST_HASHED)
        return 2 * hashed + 12 * min(nbytes, largest)

    def encode(self, buffer: Buffer | np.ndarray, itemsize: int) -> Buffer:  # noqa: ARG002
        """See `BytesCodec.encode`."""
        return _lzma.compress(buffer, **self.configuration())

    def decode(self, buffer: Buffer, size: EncodedSize) -> Buffer:
        """See `BytesCodec.decode`."""
        filters = self.configuration()["filters"] if self.format == _lzma.FORMAT_RAW else None

        def new() -> _Decompressor:
            limit = None if filters else _LZMA_DICTIONARY + size.most
            return _lzma.LZMADecompressor(self.format, limit, filters)

        return _inflate("lzma", new, buffer, size, (_lzma.LZMAError, EOFError), _no_header)


_LZMA_MOST_HASHED = 1 << 25
_DICTIONARIES = tuple(1 << power for power in (18, 20, 21, 22, 22, 23, 23, 24, 25, 26))
"""Bytes of the dictionary of each preset."""


def _dictionary(chain: Mapping[str, int | None]) -> int:
    """Return the bytes of the dictionary in which a filter looks for repetitions."""
    said = chain.get("dict_size")
    if said is not None:
        return said
    preset = chain.get("preset")
    return _DICTIONARIES[_lzma.PRESET_DEFAULT if preset is None else preset & 31]


_LZMA_DICTIONARY = 1 << 27
"""Bytes of memory for the dictionary of any preset, with a margin."""


_LZMA_LARGEST = 1 << 28  # bytes of a dictionary; also above every other option


def _lzma_filter(item: Any) -> tuple[tuple[str, int], ...]:
    options = tuple(item.items())
    for name, value in options:
        if type(value) is not int or not (name == "id" or value in range(_LZMA_LARGEST + 1)):
            raise ValueError(f"{name} of a filter is {value!r}, not an integer that it can be")
    return options
