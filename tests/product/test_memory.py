"""Memory: a block that is read takes no more than itself, one stored object and a little."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys

import numpy as np
import pytest

import zarr_dask as zd
from tests.support.memory_of_reads import LAYOUTS
from tests.support.paths import ROOT
from zarr_dask.codecs.compress.deflate import Gzip, Zlib
from zarr_dask.errors import CorruptObjectError

A_LITTLE = 10_000_000
DECODED_BESIDES = {"part of a chunk"}
"""Where a whole chunk must be decoded for a part of it."""


@pytest.fixture(scope="module")
def figures(tmp_path_factory):
    if not sys.platform.startswith("linux"):
        pytest.skip("needs /proc")
    child = subprocess.run(
        [sys.executable, "-m", "tests.support.memory_of_reads", tmp_path_factory.mktemp("data")],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr[-3000:]
    return json.loads(child.stdout)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_block_takes_itself_and_one_stored_object(figures, layout):
    block, stored, peak = figures[layout]
    bound = block + stored + A_LITTLE
    assert peak <= bound + (16 << 20 if layout in DECODED_BESIDES else 0)


def test_what_is_stored_columns_first_is_read_so(tmp_path):
    values = np.arange(24, dtype="i4").reshape(4, 6)
    for dtype in ("<i4", ">i4"):
        array = zd.create_array(
            {}, shape=(4, 6), dtype=dtype, chunks=(4, 6), format="v2", order="F"
        )
        array[...] = values
        whole, part = array[...], array[1:3, 2:]
        assert whole.flags.f_contiguous
        assert whole.dtype == np.dtype("i4")
        np.testing.assert_array_equal(whole, values)
        np.testing.assert_array_equal(part, values[1:3, 2:])
        assert array.read(out=np.empty((4, 6), "i4")).flags.c_contiguous


CHANGE = """
import gc, json, sys
import dask, dask.array as da, numpy as np
import zarr_dask as zd
from tests.support.process_memory import begin_peak, status
inner, rows, how = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
noise = np.random.default_rng(0).integers

def planned(url, width):
    grid = {"chunks": (inner, width), "shards": (32768, width) if inner < 32768 else None}
    array = zd.create_array(url, shape=(rows, width), dtype="u1", **grid)
    for start in range(0, rows, 32768):
        array[start : start + 32768] = noise(0, 256, (min(32768, rows - start), width), "u1")
    part = slice(32768, 40960 if how != "whole" else rows)
    values = noise(0, 256, (part.stop - part.start, width), "u1")
    values = da.from_array(values, chunks=values.shape, name=False)
    given = {} if how == "whole" else {"partial": how}
    return zd.plan_write(values, url, region=(part,), **given)

with dask.config.set(scheduler="synchronous"):
    planned(sys.argv[1] + "/small", 8).run()  # what is imported counts as idle
    plan = planned(sys.argv[1] + "/large", 1024)
    gc.collect()
    before = begin_peak()
    plan.run()
    print(json.dumps([plan.memory.process, status("VmHWM") - before]))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
@pytest.mark.parametrize(
    ("how", "rows", "inner"),
    [
        ("whole", 49152, 256),
        ("own", 65536, 32768),
        ("compare", 65536, 256),
        # nothing new in these, of shards and whole chunks each:
        *(
            pytest.param(*one, marks=pytest.mark.slow)
            for one in (("whole", 49152, 32768), ("own", 65536, 256), ("compare", 65536, 32768))
        ),
    ],
)
def test_an_object_that_is_read_and_changed_is_counted(how, rows, inner, tmp_path):
    """What is kept of 32 MiB, or cut by the end of the array, is held besides the new bytes."""
    command = [sys.executable, "-c", CHANGE, tmp_path / "a.zarr", inner, rows, how]
    child = subprocess.run(
        [*map(str, command)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert child.returncode == 0, child.stderr[-3000:]
    planned, peak = json.loads(child.stdout)
    assert peak <= planned


# --- large streams, which are decompressed piece by piece -----------------------------------------

LARGE = np.random.default_rng(0).integers(0, 50, 3_000_000, dtype="u1").tobytes()


@pytest.mark.parametrize("codec", [Gzip(1), Gzip(6), Zlib(1), Zlib(9)], ids=repr)
@pytest.mark.parametrize("values", [LARGE, bytes(5_000_000)], ids=["noise", "zeros"])
def test_large_streams(codec, values):
    out = np.empty(len(values), np.uint8)
    encoded = codec.encode(values, 1)
    codec.decode_into(encoded, out)
    assert out.tobytes() == values
    for wrong in (encoded[:-1], encoded[: len(encoded) // 2], encoded + b"\0", encoded[1:], b""):
        with pytest.raises(CorruptObjectError):
            codec.decode_into(wrong, out)
    for size in (len(values) - 1, len(values) + 1):
        with pytest.raises(CorruptObjectError):
            codec.decode_into(encoded, np.empty(size, np.uint8))


def test_large_streams_one_after_the_other():
    out = np.empty(len(LARGE), np.uint8)
    encoded = gzip.compress(LARGE[:2_000_000], 1) + gzip.compress(LARGE[2_000_000:], 1)
    Gzip().decode_into(encoded, out)
    assert out.tobytes() == LARGE
    with pytest.raises(CorruptObjectError):
        Gzip().decode_into(encoded + gzip.compress(b"1"), out)
