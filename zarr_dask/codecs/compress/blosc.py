"""``blosc``: shuffled and compressed in blocks, by any of its compressors."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal, cast

import numpy as np

from zarr_dask._util.json_fields import is_int_in, is_one_of
from zarr_dask.codecs.base import (
    ByteRequest,
    ChunkSpec,
    Codec,
    DecodedBytes,
    EncodedSize,
    Speeds,
)
from zarr_dask.codecs.codec_config import CodecConfig
from zarr_dask.codecs.compress.blosc_frames import (
    MOST_SPLITS,
    SMALLEST_SPLIT,
    FallbackRead,
    blosc_library,
    read_blocks,
)
from zarr_dask.codecs.compress.compressor import Compressor, take_int
from zarr_dask.codecs.compress.snappy import decompress_frame, is_snappy
from zarr_dask.codecs.compress.zstd import ZSTD_LEVELS, zstd_tables
from zarr_dask.codecs.fetch import Fetch
from zarr_dask.errors import ABSENT, CorruptObjectError, MetadataError, ValidationProblem
from zarr_dask.stores.base import Buffer

__all__ = [
    "BLOSC_CNAMES",
    "BLOSC_LARGEST_TYPESIZE",
    "BLOSC_SHUFFLES",
    "DEFAULT_BLOSC",
    "Blosc",
    "Shuffle",
]

Shuffle = Literal["noshuffle", "shuffle", "bitshuffle"]

_BLOSC_HEADER = struct.Struct("<4xIII")
BLOSC_SHUFFLES: tuple[Shuffle, ...] = ("noshuffle", "shuffle", "bitshuffle")
BLOSC_CNAMES = ("blosclz", "lz4", "lz4hc", "zlib", "zstd", "snappy")
"""Compressors; most builds of numcodecs lack snappy."""
_NUMBERS: dict[Shuffle, int] = {name: number for number, name in enumerate(BLOSC_SHUFFLES)}
_NAMES = {name: name.encode() for name in BLOSC_CNAMES}
"""As the library takes them."""
BLOSC_LARGEST_TYPESIZE = 255
"""Largest size of elements in bytes; blosc treats larger ones as bytes."""
_BLOSC_MAX_NBYTES = (1 << 31) - 17
_CHOSEN = (*[1 << 18] * 6, *[1 << 19] * 3, 1 << 20)
"""Largest block in bytes that blosc chooses for zstd, by its own level."""

_IN_CACHE = (1 << 13, 1 << 14, 1 << 15, 1 << 16, 1 << 17, 1 << 17, *[1 << 18] * 4)
"""Bytes of a block that blosc chooses for fast compressors, by level; slow ones have twice that.

If each byte of the elements is compressed separately, multiply by the bytes of an element.
"""
_SPEEDS = {
    "lz4": Speeds(5.7e9, 2.4e9),
    "blosclz": Speeds(5.0e9, 2.4e9),
    "lz4hc": Speeds(3.4e9, 0.04e9),
    "snappy": Speeds(1.5e9, 0.7e9),
    "zstd": Speeds(1.9e9, 0.2e9),
    "zstd 1": Speeds(1.9e9, 1.2e9),
    "zlib": Speeds(0.45e9, 0.04e9),
}
_SLOW = ("zlib", "lz4hc", "zstd")
_SMALL = 1 << 15
"""Bytes up to which copying a chunk takes less time than the library's checks of given memory."""
_SMALLEST_SPLIT, _LARGEST_SPLIT, _LARGEST_BLOCK = 1 << 16, 1 << 18, 1 << 20


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
        The way to regroup bytes (or bits) before compression; None for bits if elements have one
        byte and bytes otherwise.
    typesize
        Bytes of the unit of shuffling; None for those of an element.
    blocksize
        Bytes per block; if 0, blosc chooses.
    """

    cname: str = "lz4"
    clevel: int = 5
    shuffle: Shuffle | None = "shuffle"
    typesize: int | None = None
    blocksize: int = 0
    name: ClassVar[str] = "blosc"
    supports_partial_decode: ClassVar[bool] = True

    @classmethod
    def from_config(cls, config: CodecConfig) -> Codec:
        """See `Codec.from_config`; the type size may be left out if nothing is shuffled."""
        shuffle = config.take(
            "shuffle", is_one_of(*BLOSC_SHUFFLES), f"one of {list(BLOSC_SHUFFLES)}"
        )
        typesize_default = None if shuffle == "noshuffle" else ABSENT
        return cls(
            config.take("cname", is_one_of(*BLOSC_CNAMES), f"one of {list(BLOSC_CNAMES)}"),
            config.take("clevel", is_int_in(range(10)), "an integer from 0 to 9"),
            shuffle,
            config.take(
                "typesize", is_int_in(range(1, 1 << 31)), "a positive integer", typesize_default
            ),
            config.take("blocksize", is_int_in(range(1 << 31)), "an integer of at least 0", 0),
        )

    @classmethod
    def from_numcodecs(cls, name: str, config: dict[str, Any], dtype: str | None) -> Codec:  # noqa: ARG003
        """See `Codec.from_numcodecs`; n5-zarr writes two members that mean nothing."""
        config.pop("nthreads", None)
        config.pop("typesize", None)
        cname = config.pop("cname", "lz4")
        if cname not in BLOSC_CNAMES:
            raise ValueError(f"cname is {cname!r}, not one of {list(BLOSC_CNAMES)}")
        shuffle = take_int(config, "shuffle", 1, range(-1, 3))
        return cls(
            cname,
            take_int(config, "clevel", 5, range(10)),
            None if shuffle == -1 else BLOSC_SHUFFLES[shuffle],
            None,
            take_int(config, "blocksize", 0, range(1 << 31)),
        )

    def to_numcodecs(self) -> dict[str, Any]:
        """See `Codec.to_numcodecs`."""
        shuffle = -1 if self.shuffle is None else BLOSC_SHUFFLES.index(self.shuffle)
        return {
            "id": "blosc",
            "cname": self.cname,
            "clevel": self.clevel,
            "shuffle": shuffle,
            "blocksize": self.blocksize,
        }

    @classmethod
    def with_defaults(
        cls,
        name: str,  # noqa: ARG003
        configuration: dict[str, Any],
        itemsize: int,
    ) -> dict[str, Any]:
        """See `Codec.with_defaults`."""
        return {**cls(shuffle=None).resolved(itemsize).configuration(), **configuration}

    def speeds(self) -> Speeds:
        """See `Codec.speeds`."""
        found = _SPEEDS.get(f"{self.cname} {self.clevel}") or _SPEEDS.get(self.cname)
        return found or super().speeds()

    def configuration(self) -> dict[str, Any]:
        """See `Codec.configuration`."""
        return {
            "cname": self.cname,
            "clevel": self.clevel,
            "shuffle": self.shuffle,
            **({} if self.typesize is None else {"typesize": self.typesize}),
            "blocksize": self.blocksize,
        }

    def problems(self, spec: ChunkSpec) -> Iterator[ValidationProblem]:
        """Check that chunks are not larger than 2 GiB, the limit of blosc."""
        if spec.nbytes > _BLOSC_MAX_NBYTES:
            yield ValidationProblem(
                "name",
                "blosc",
                f"a codec for chunks of {spec.nbytes} bytes; blosc takes {_BLOSC_MAX_NBYTES}",
            )

    def resolved(self, itemsize: int) -> Blosc:
        """Return the same codec with the actual shuffle and type size for an `itemsize`."""
        return Blosc(self.cname, self.clevel, *self._shuffle(itemsize), self.blocksize)

    def _shuffle(self, itemsize: int) -> tuple[Shuffle, int]:
        """Return the way to regroup elements of `itemsize`, and the size to do it by."""
        shuffle = self.shuffle or ("bitshuffle" if itemsize == 1 else "shuffle")
        return shuffle, self.typesize or itemsize

    def encoder_state_nbytes(self, nbytes: int) -> int:
        """See `BytesCodec.encoder_state_nbytes`; a shuffled and a compressed block are included."""
        block = self._block(nbytes)
        # bits are shuffled by way of one more block; elements of one byte by default
        held = (2 if self.shuffle in ("shuffle", "noshuffle") else 3) * block
        if self.cname != "zstd":
            return held
        level = 2 * self.clevel - 1 if self.clevel < 9 else ZSTD_LEVELS[-1]  # as in blosc
        return held + zstd_tables(level, block)

    def decoder_state_nbytes(self, nbytes: int) -> int:
        """See `BytesCodec.decoder_state_nbytes`: a shuffled block, and a frame of one block."""
        return 2 * self._block(nbytes)

    def partial_decode_nbytes(self, nbytes: int) -> int:
        """See `BytesCodec.partial_decode_nbytes`."""
        odd = nbytes % (self.typesize or 1)  # see `read_blocks`: the chunk ends within an element
        return 0 if odd or self.cname == "snappy" else self._block(nbytes)

    def _block(self, nbytes: int) -> int:
        """Return the largest number of bytes of a block, for a size of the chunk."""
        if self.blocksize:
            return min(nbytes, self.blocksize)
        if self.cname == "zstd":
            return min(nbytes, _CHOSEN[self.clevel])
        whole = _IN_CACHE[self.clevel] << (self.cname in _SLOW)
        split = max(min(whole, _LARGEST_SPLIT) * (self.typesize or MOST_SPLITS), _SMALLEST_SPLIT)
        return min(nbytes, max(whole, min(split, _LARGEST_BLOCK)))

    def encode(self, buffer: Buffer | np.ndarray, itemsize: int) -> Buffer:
        """See `BytesCodec.encode`.

        Raises
        ------
        UnknownCodecError
            If this build of blosc lacks the compressor: snappy is read-only.
        """
        if self.cname not in _written_compressors():
            expected = (
                f"one of {list(_written_compressors())}, which can be written here; it can be read"
            )
            raise MetadataError.of(
                "codec blosc", [ValidationProblem("cname", self.cname, expected, "codec")]
            )
        shuffle, typesize = self._shuffle(itemsize)
        items, number = _items(buffer, typesize), _NUMBERS[shuffle]
        if number == 1 and self._is_default and (_repeats(items) or _occurs_often(items)):
            return self._smallest(items)  # the frame says how it is made
        return self._compressed(items, number, self.clevel)

    def _smallest(self, items: np.ndarray) -> bytes:
        """Return elements as a sample of them is smallest: shuffled, or as they are.

        As they are, they take the next level, which is what other libraries write by default, if
        that finds more.
        """
        ways = [(1, self.clevel), (0, self.clevel), (0, self.clevel + 1)]
        if items.nbytes <= _TRIED_WHOLE:
            return min((self._compressed(items, *way) for way in ways[:2]), key=len)
        sample = _sample(items)
        shuffled, same, higher = (len(self._compressed(sample, *way)) for way in ways)
        if shuffled < min(same, higher):
            return self._compressed(items, *ways[0])
        is_clear = abs(same - higher) > _MUCH * higher  # else what it cannot show decides
        takes_higher = higher < same if is_clear else _others_repeat(items, sample)
        return self._compressed(items, *ways[2 if takes_higher else 1])

    def _compressed(self, items: np.ndarray, shuffle: int, level: int) -> bytes:
        compress, cname = blosc_library().compress, _NAMES[self.cname]
        return cast("bytes", compress(items, cname, level, shuffle, self.blocksize))

    @property
    def _is_default(self) -> bool:
        """True for the codec of new arrays, which may leave single chunks unshuffled."""
        default = DEFAULT_BLOSC
        own = (self.cname, self.clevel, self.blocksize)
        return own == (default.cname, default.clevel, default.blocksize)

    def decode(self, buffer: Buffer, size: EncodedSize) -> Buffer:
        """See `BytesCodec.decode`."""
        out = np.empty(_blosc_nbytes(buffer, size), np.uint8)
        self.decode_into(buffer, out)
        return out.data

    def decode_into(self, buffer: Buffer, out: np.ndarray) -> None:
        """See `BytesCodec.decode_into`."""
        if len(buffer) < 16:
            _blosc_nbytes(buffer, EncodedSize.of(out.size))  # raises the right error
        nbytes, blocksize, stored = _BLOSC_HEADER.unpack_from(buffer)
        if nbytes != out.size:
            _blosc_nbytes(buffer, EncodedSize.of(out.size))
        if not nbytes:  # the library does not accept empty frames
            return
        if stored > len(buffer):
            raise CorruptObjectError(
                f"its blosc frame says {stored} bytes, but {len(buffer)} are there"
            )
        if buffer[2] & _BLOSC_SNAPPY or blocksize % (buffer[3] or 1):
            if "snappy" not in _written_compressors() and is_snappy(buffer):
                decompress_frame(buffer, out)
                return
            _check_all_written(buffer)
        try:
            if nbytes <= _SMALL:
                out.data[:] = blosc_library().decompress(buffer)
            else:
                blosc_library().decompress(buffer, out)
        except (RuntimeError, ValueError) as error:
            raise CorruptObjectError(f"blosc cannot decompress it ({error})") from error

    def partial_decode(
        self, wanted: ByteRequest, before_whole: Callable[[], None] | None = None
    ) -> Fetch[DecodedBytes | None]:
        """See `BytesCodec.partial_decode`."""
        largest = None if before_whole is None else self._block(wanted.nbytes)
        found = yield from read_blocks(wanted, largest)
        if found is not FallbackRead.WHOLE:
            return found
        return (yield from super().partial_decode(wanted, before_whole))


DEFAULT_BLOSC = Blosc("zstd", 1, None, blocksize=1 << 20)
"""Blosc for new arrays of elements with several bytes.

The blocks that blosc chooses for zstd are a quarter of this: compressing 18 kinds of data takes
nearly twice the time with them, and a fifth more bytes (``python -m benchmarks.defaults``).
"""


@cache
def _written_compressors() -> tuple[str, ...]:
    """Return the compressors in this build of numcodecs."""
    return tuple(blosc_library().list_compressors())


def _check_all_written(buffer: Buffer) -> None:
    """Raise if the library would leave bytes unwritten: a partial element in split blocks.

    It splits a block into one piece for each byte of an element. If it shuffles a block of one
    piece, such as the last one, it copies these bytes.
    """
    flags, typesize = buffer[2], buffer[3]
    if flags & (_BLOSC_STORED | _BLOSC_NOT_SPLIT) or not typesize:
        return
    _, block, _ = _BLOSC_HEADER.unpack_from(buffer)
    split = typesize <= MOST_SPLITS and block // typesize >= SMALLEST_SPLIT
    if split and block % typesize:
        raise CorruptObjectError(
            f"its blosc frame has a block of {block} bytes, which are no elements of {typesize}"
        )


_BLOSC_STORED, _BLOSC_NOT_SPLIT = 2, 16  # flags of the header
_BLOSC_SNAPPY = 2 << 5  # set in frames of snappy, and some others


def _items(buffer: Buffer | np.ndarray, itemsize: int) -> np.ndarray:
    """Return the bytes as elements of `itemsize`, which tells blosc the unit of shuffling."""
    if itemsize > BLOSC_LARGEST_TYPESIZE or memoryview(buffer).nbytes % itemsize:
        return np.frombuffer(buffer, np.uint8)
    return np.frombuffer(buffer, _UNITS.get(itemsize) or f"V{itemsize}")


def _repeats(items: np.ndarray) -> bool:
    """True if many elements repeat the one before.

    Shuffling tears repeated elements apart, such as the zeros of a sparse array.
    """
    if items.dtype.kind != "u" or items.dtype.itemsize == 1:
        return False
    step = items.size // _COMPARED + 1
    before, behind = items[:-1:step], items[1::step]
    return bool(np.count_nonzero(before == behind) * _FEW >= before.size)


def _occurs_often(items: np.ndarray) -> bool:
    """True if elements of several bytes occur more than once, such as prices and names as numbers.

    Compressors find them as they are, but not their bytes one by one.
    """
    if items.dtype.kind != "u" or items.dtype.itemsize < 4:  # of two bytes there are not many
        return False
    found = np.sort(items[:: items.size // _SORTED + 1])
    return bool(np.count_nonzero(found[1:] == found[:-1]) * _RARE > found.size)


def _others_repeat(items: np.ndarray, sample: np.ndarray) -> bool:
    """True if elements of another value than the most frequent one repeat.

    Those with few decimals do, all over the chunk: a higher level finds them.
    """
    frequent = np.sort(sample)[sample.size // 2]
    looked_at = items[:: items.size // _LOOKED_AT + 1]
    others = np.sort(looked_at[looked_at != frequent][:_COMPARED])
    return bool(np.count_nonzero(others[1:] == others[:-1]) * _FEW_OTHERS > others.size)


def _sample(items: np.ndarray) -> np.ndarray:
    """Return the beginning and the end of a chunk: some rows of each, if possible."""
    count = min(max(items.nbytes // 32, _SHORTEST), _LONGEST) // items.dtype.itemsize
    return np.concatenate([items[:count], items[-count:]])


_COMPARED = 4096
"""Maximum number of elements that are compared with the next one."""
_FEW = 4
"""If fewer than one element in so many repeats the one before, chunks are shuffled."""
_SORTED = 512
"""Maximum number of elements that are compared with each other."""
_RARE = 50
"""If one element in so many, or fewer, is there already, chunks are shuffled."""
_MUCH = 0.1
"""Relative difference of sizes of a sample that says which one of two levels is better."""
_LOOKED_AT = 1 << 15
"""Maximum number of elements among which others than the most frequent one are looked for."""
_FEW_OTHERS = 200
"""If one of so many others, or fewer, is there already, the lower level is better."""
_SHORTEST, _LONGEST = 1 << 11, 1 << 15
"""Bytes of each part of the sample; a 32nd of the chunk, if that is between these."""
_TRIED_WHOLE = 2 * _SHORTEST
"""Bytes of the largest chunk that is no larger than a sample, and is compressed both ways."""

_UNITS = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}


def _blosc_nbytes(buffer: Buffer, size: EncodedSize) -> int:
    """Return the decoded size in the frame's header, checked against the expected one."""
    if len(buffer) < 16:
        raise CorruptObjectError(f"{len(buffer)} bytes are fewer than a blosc header")
    nbytes = int(_BLOSC_HEADER.unpack_from(buffer)[0])
    size.check("blosc frame", nbytes)
    return nbytes
