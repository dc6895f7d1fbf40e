"""Whole zlib and gzip streams through libdeflate: the same values and the same refusals."""

import gzip
import zlib

import numpy as np
import pytest

from zarr_dask.codecs.base import EncodedSize
from zarr_dask.codecs.compress import libdeflate
from zarr_dask.codecs.compress.deflate import Gzip, Zlib
from zarr_dask.errors import CorruptObjectError

deflate = pytest.importorskip("deflate")

SIZE = 20_000
VALUES = np.sin(np.arange(SIZE // 4) / 17).astype("f4").tobytes()
CODECS = {"zlib": (Zlib(), zlib.compress), "gzip": (Gzip(), gzip.compress)}


@pytest.fixture(params=[True, False], ids=["libdeflate", "isal"])
def library(request, monkeypatch):
    """What decodes: results and errors must not depend on it."""
    if not request.param:
        monkeypatch.setattr(libdeflate, "_library", lambda: None)
    return request.param


def decoded(codec, stream, nbytes=SIZE):
    return bytes(codec.decode(stream, EncodedSize.of(nbytes)))


@pytest.fixture(params=CODECS)
def both(request):
    return CODECS[request.param]


@pytest.mark.parametrize("level", [0, 1, 6, 9])
@pytest.mark.parametrize("nbytes", [0, 1, len(VALUES)])
def test_streams_of_every_level_are_decoded(both, level, nbytes, library):
    codec, compress = both
    stream = compress(VALUES[:nbytes], level)
    assert decoded(codec, memoryview(stream), nbytes) == VALUES[:nbytes]
    whole = libdeflate.decompress_whole(stream, nbytes, codec.wbits)
    assert (whole is not None) == (library and nbytes > 0)


def test_streams_one_after_the_other_are_decoded(both, library):
    codec, compress = both
    streams = compress(VALUES[:9]) + compress(VALUES[9:]) + compress(b"")
    assert decoded(codec, streams) == VALUES


@pytest.mark.parametrize("end", [b"x", b"\0" * 8, b"\x78\x9c"])
def test_what_follows_a_stream_is_refused(both, end, library):
    codec, compress = both
    with pytest.raises(CorruptObjectError):
        decoded(codec, compress(VALUES) + end)


def test_other_sizes_are_refused(both, library):
    codec, compress = both
    for nbytes in (len(VALUES) - 1, len(VALUES) + 1):
        with pytest.raises(CorruptObjectError, match="the chunk"):
            decoded(codec, compress(VALUES), nbytes)


def test_damage_is_refused(both, library):
    codec, compress = both
    stream = compress(VALUES)
    for position in (len(stream) // 2, len(stream) - 2):
        damaged = bytearray(stream)
        damaged[position] ^= 0xFF
        with pytest.raises(CorruptObjectError):
            decoded(codec, bytes(damaged))
    for length in (0, 1, 5, len(stream) // 2, len(stream) - 1):
        with pytest.raises(CorruptObjectError):
            decoded(codec, stream[:length])
