"""What codecs hold to look for repetitions, against what the process takes while they encode."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import zarr_dask as zd
from tests.support.paths import ROOT
from zarr_dask.codecs.compress.blosc import Blosc
from zarr_dask.codecs.compress.deflate import Bz2, Gzip, Lzma
from zarr_dask.codecs.compress.zstd import Zstd, zstd_tables
from zarr_dask.codecs.conditional import Conditional
from zarr_dask.codecs.numeric.filters import NumcodecsBytesCodec
from zarr_dask.jobs.engine.layouts import layout_of

BESIDES = 1_500_000
"""Bytes that are not counted: buffers of one block, the ends of the memory that malloc takes."""
MEASURE = """
import json, re, sys
from pathlib import Path
import numpy as np
from numcodecs import blosc
from zarr_dask.codecs.compress.blosc import Blosc
from zarr_dask.codecs.compress.deflate import Bz2, Gzip, Lzma
from zarr_dask.codecs.compress.zstd import Zstd

def resident(name):
    return int(re.search(rf"{name}:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024

blosc.use_threads = False  # as in tasks, which run in threads
rng = np.random.default_rng(0)
for text, nbytes in json.loads(sys.argv[1]):
    codec = eval(text)
    values = rng.integers(1, 200, nbytes // 4) + rng.random(nbytes // 4, "f4")
    data = values.astype("f4").view("u1")
    del values
    codec.encode(data[:8].copy(), 4)
    Path("/proc/self/clear_refs").write_text("5")
    idle = resident("VmRSS")
    stored = len(codec.encode(data, 4))
    print(resident("VmHWM") - idle - stored)
"""
QUICK = [
    (Zstd(0), 1 << 18),
    (Zstd(9), 1 << 20),
    (Zstd(19), 1 << 18),
    (Blosc("zstd", 5), 1 << 20),
    (Bz2(9), 1 << 18),
    (Lzma(), 1 << 18),
]
MORE = [
    *((Zstd(level), nbytes) for level in (0, 5, 9, 12, 15) for nbytes in (1 << 18, 1 << 21)),
    *((Zstd(level), 1 << 20) for level in (-5, 1, 19, 22)),
    (Zstd(9), 1 << 23),
    (Blosc("zstd", 9), 1 << 22),
    (Blosc("zstd", 7, blocksize=1 << 20), 1 << 22),
    (Blosc("zstd", 8, "bitshuffle", blocksize=1 << 20), 1 << 22),
    (Blosc("zstd", 8, blocksize=1 << 16), 1 << 21),
    (Blosc("lz4hc", 9), 1 << 21),
    (Blosc("zlib", 9), 1 << 21),
    (Gzip(9), 1 << 20),
    (Lzma(preset=1), 1 << 20),
    (Lzma(preset=6), 1 << 20),
    (Lzma(preset=9), 1 << 20),
]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
@pytest.mark.parametrize(
    "cases", [QUICK, pytest.param(MORE, marks=pytest.mark.slow)], ids=["quick", "more"]
)
def test_what_tables_take_is_known(cases):
    for (codec, nbytes), taken in zip(cases, taken_by(cases), strict=True):
        stated = codec.encoder_state_nbytes(nbytes)
        assert taken <= stated + BESIDES, (codec, nbytes)
        assert taken >= stated / 2 or stated < 8 * BESIDES, (codec, nbytes)


def taken_by(cases):
    """Bytes that each case took besides what it was given and what it made."""
    # what is freed goes back at once, so that each case takes all that it needs from the system
    environment = {
        **os.environ,
        "MALLOC_TRIM_THRESHOLD_": "0",
        "MALLOC_MMAP_THRESHOLD_": str(1 << 16),
    }
    given = json.dumps([(repr(codec), nbytes) for codec, nbytes in cases])
    command = [sys.executable, "-c", MEASURE, given]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return list(map(int, done.stdout.split()))


@pytest.mark.parametrize("cname", ["blosclz", "lz4", "lz4hc", "zlib", "zstd"])
@pytest.mark.parametrize("typesize", [1, 2, 4, 8, 16, 24])
def test_no_block_of_blosc_is_larger_than_is_stated(cname, typesize):
    """By the header of what the library makes: its fields 2 and 3 are bytes, and of a block."""
    for clevel in (1, 4, 5, 9):
        for nbytes in (100, 3000, 1 << 19, 3 << 20):
            codec = Blosc(cname, clevel, "shuffle", typesize)
            stored = codec.encode(np.zeros(nbytes // typesize * typesize, "u1"), typesize)
            block = int(np.frombuffer(stored, "<u4", 3)[2])
            assert (
                2 * block
                <= codec.decoder_state_nbytes(nbytes)
                <= codec.encoder_state_nbytes(nbytes)
            )
            if cname in {"blosclz", "lz4"} and typesize <= 8 and nbytes > 1 << 20:
                assert codec.decoder_state_nbytes(nbytes) == 2 * block
    assert Blosc(cname, 5, blocksize=1 << 16).decoder_state_nbytes(1 << 20) == 2 << 16


def test_codecs_around_another_have_its_tables():
    inner = Zstd(9)
    expected = inner.encoder_state_nbytes(1 << 20)
    assert Conditional((Gzip(1), inner, Bz2(1))).encoder_state_nbytes(1 << 20) == expected
    assert (
        NumcodecsBytesCodec(inner, "zstd", '{"level": 9}').encoder_state_nbytes(1 << 20) == expected
    )
    chunk = {"chunks": (4, 512, 512), "codecs": [inner]}
    plain = zd.create_array({}, shape=(8, 512, 512), dtype="f4", **chunk)
    shards = zd.create_array({}, shape=(8, 512, 512), dtype="f4", shards=(8, 512, 512), **chunk)
    for array in (plain, shards):
        assert layout_of(array).memory.encoder_state == inner.encoder_state_nbytes(4 << 20)


def test_codecs_around_another_hold_its_blocks():
    inner = Blosc("lz4", 5, "shuffle", 4)
    expected = inner.decoder_state_nbytes(1 << 20)
    assert expected == 1 << 20
    assert Conditional((Gzip(1), inner)).decoder_state_nbytes(1 << 20) == expected
    assert (
        NumcodecsBytesCodec(inner, "blosc", '{"cname": "lz4"}').decoder_state_nbytes(1 << 20)
        == expected
    )
    chunk = {"chunks": (4, 512, 512), "codecs": [inner]}
    plain = zd.create_array({}, shape=(8, 512, 512), dtype="f4", **chunk)
    shards = zd.create_array({}, shape=(8, 512, 512), dtype="f4", shards=(8, 512, 512), **chunk)
    for array in (plain, shards):
        assert layout_of(array).memory.decoder_state == expected


def test_shards_make_the_copies_in_the_other_byte_order_that_their_chunks_make():
    big = {"name": "bytes", "configuration": {"endian": "big"}}
    chunk = {"chunks": (4, 512, 512), "codecs": [big, Zstd(1)]}
    plain = zd.create_array({}, shape=(8, 512, 512), dtype="f4", **chunk)
    shards = zd.create_array({}, shape=(8, 512, 512), dtype="f4", shards=(8, 512, 512), **chunk)
    for array in (plain, shards):
        assert layout_of(array).memory.byteswap == 4 << 20
    chunk = {"chunks": (4, 512, 512), "codecs": [Zstd(1)]}
    shards = zd.create_array({}, shape=(8, 512, 512), dtype="f4", shards=(8, 512, 512), **chunk)
    assert layout_of(shards).memory.byteswap == 0


def test_bits_are_shuffled_by_way_of_one_more_block():
    for options in ({"shuffle": "bitshuffle"}, {"shuffle": None}):
        held = [
            Blosc("zstd", 8, blocksize=1 << 16, **one).encoder_state_nbytes(1 << 20)
            for one in (options, {"shuffle": "shuffle"})
        ]
        assert held[0] - held[1] == 1 << 16
    # 348 kB above the tables were measured for blocks of 40 kB
    assert zstd_tables(15, 40_000) > 1_450_000 - 2 * 40_000


def test_longer_inputs_and_higher_levels_have_no_smaller_tables():
    lengths = [0, 1, 100, *(1 << power for power in range(10, 31, 2))]
    for level in (-7, 0, 1, 9, 22):
        found = [zstd_tables(level, nbytes) for nbytes in lengths]
        assert found == sorted(found)
    assert zstd_tables(0, 1 << 30) == zstd_tables(3, 1 << 30)
    assert zstd_tables(-100_000, 1 << 30) < zstd_tables(1, 1 << 30) < zstd_tables(22, 1 << 30)
