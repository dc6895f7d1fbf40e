"""Small zstd chunks through kept contexts: the same values and the same refusals."""

import threading

import numpy as np
import pytest
from numcodecs import zstd

from zarr_dask.codecs.base import EncodedSize
from zarr_dask.codecs.compress import zstd as module
from zarr_dask.codecs.compress.zstd import Zstd
from zarr_dask.errors import CorruptObjectError

pytest.importorskip("zstandard")

VALUES = np.sin(np.arange(1000) / 17).astype("f4").view("u1")


def _decoded(frame, nbytes=VALUES.size):
    out = np.empty(nbytes, "u1")
    Zstd().decode_into(frame, out)
    return out


@pytest.fixture(params=[True, False], ids=["zstandard", "numcodecs"])
def library(request, monkeypatch):
    """What decodes: results and errors must not depend on it."""
    if not request.param:
        monkeypatch.setattr(module, "_library", lambda: None)
    return request.param


@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("level", [-5, 0, 1, 3, 22])
@pytest.mark.parametrize(
    "values", [VALUES, VALUES[:1], np.zeros(1 << 16, "u1"), np.tile(VALUES, 50)], ids=len
)
def test_frames_of_both_libraries_are_read_by_both(values, level, checksum, library):
    frame = Zstd(level, checksum).encode(values, 4)
    assert zstd.decompress(frame) == values.tobytes()
    np.testing.assert_array_equal(_decoded(frame, values.size), values)
    np.testing.assert_array_equal(Zstd().decode(frame, EncodedSize.of(values.size)), values)
    other = zstd.compress(values, level, checksum)
    np.testing.assert_array_equal(_decoded(other, values.size), values)
    assert frame[:6] == other[:6]  # the same header: size stated, checksum or none


@pytest.mark.parametrize("end", [b"x", b"\x28\xb5\x2f\xfd", Zstd().encode(VALUES[:8], 1)])
def test_what_follows_a_frame_is_refused(end, library):
    with pytest.raises(CorruptObjectError):
        _decoded(Zstd().encode(VALUES, 4) + end)


def test_damage_is_refused(library):
    frame = bytearray(Zstd(checksum=True).encode(VALUES, 4))
    frame[len(frame) // 2] ^= 0xFF
    with pytest.raises(CorruptObjectError, match="zstd cannot decompress it"):
        _decoded(bytes(frame))
    with pytest.raises(CorruptObjectError):
        _decoded(bytes(frame[: len(frame) // 2]))
    np.testing.assert_array_equal(_decoded(Zstd().encode(VALUES, 4)), VALUES)  # the context is fit


def test_empty_and_skippable_frames_are_read(library):
    skippable = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc"
    frame = Zstd().encode(VALUES, 4)
    np.testing.assert_array_equal(_decoded(skippable + frame), VALUES)
    np.testing.assert_array_equal(_decoded(frame + skippable), VALUES)


def test_contexts_are_used_again_and_bounded():
    module._CONTEXTS.compressors.clear()
    for level in range(1, 12):
        Zstd(level).encode(VALUES, 4)
        kept = module._CONTEXTS.compressors
        context = kept[level, False]
        Zstd(level).encode(VALUES, 4)
        assert kept[level, False] is context
        assert len(kept) <= 4
    kept.clear()
    for nbytes, level in (((1 << 19) + 1, 3), (1 << 18, 9)):  # the tables of high levels are large
        large = np.zeros(nbytes, "u1")
        assert zstd.decompress(Zstd(level).encode(large, 1)) == large.tobytes()
        assert not kept
    Zstd(3).encode(large, 1)
    assert kept.keys() == {(3, False)}


def test_each_thread_has_contexts_of_its_own():
    frame = Zstd().encode(VALUES, 4)
    assert (_decoded(frame) == VALUES).all()
    seen = []

    def run():
        _decoded(frame)
        seen.append(module._CONTEXTS.decompressor)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen[0] is not module._CONTEXTS.decompressor is not None
