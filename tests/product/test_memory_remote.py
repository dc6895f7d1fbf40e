"""Memory while much more than it goes through one process, from and to an object store."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import zarr_dask as zd
from benchmarks.s3_server import s3_server
from zarr_dask.stores import open_store

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc"),
]

BLOCK = 8 << 20
BLOCKS = 256  # 2 GiB
THREADS = 2
MORE = 64_000_000
BYTES = {"name": "bytes", "configuration": {"endian": "little"}}

# The first blocks are for what is imported and opened once.
STREAM = """
import json, sys
import dask, dask.array as da
import zarr_dask as zd
what, url, options, codecs, block, blocks = json.loads(sys.argv[1])
def memory(name):
    return int(open("/proc/self/status").read().split(name)[1].split()[0]) * 1024
def read(count):
    x = zd.from_zarr(url, chunks=block // 4, storage_options=options)
    assert x.blocks[:count].sum().compute() == count * block // 4
def write(count):
    x = da.ones(count * block // 4, chunks=block // 4, dtype="f4")
    zd.to_zarr(x, f"{url}-{count}", codecs=codecs, storage_options=options)
    assert zd.open(f"{url}-{count}", storage_options=options)[-1] == 1
with dask.config.set(scheduler="threads", num_workers=2):
    stream = {"read": read, "write": write}[what]
    stream(4)
    before = memory("VmRSS:")
    open("/proc/self/clear_refs", "w").write("5")
    stream(blocks)
print(memory("VmHWM:") - before)
"""


@pytest.fixture(scope="module")
def endpoint():
    with s3_server(0.0) as endpoint:
        yield endpoint


@pytest.fixture(params=["obstore", "fsspec"])
def options(request, endpoint):
    return {
        "key": "AKIAEXAMPLE",
        "secret": "nobody-asks",
        "client_kwargs": {"endpoint_url": endpoint, "region_name": "us-east-1"},
        "backend": request.param,
    }


def grown(*arguments) -> int:
    """Bytes of memory that a process needed more for all blocks than for a few."""
    given = json.dumps([*arguments, BLOCK, BLOCKS])
    said = subprocess.run(
        [sys.executable, "-c", STREAM, given], check=True, capture_output=True, text=True
    ).stdout
    print(f"{arguments[0]}: {int(said) / 1e6:.0f} MB")
    return int(said)


def test_two_gibibytes_are_read_through_one_process(options):
    url = f"s3://bucket/{options['backend']}"
    shape, chunk = (BLOCKS * BLOCK // 4,), BLOCK // 4
    array = zd.create_array(
        url, shape=shape, chunks=chunk, dtype="f4", codecs=[BYTES], storage_options=options
    )
    array[:chunk] = 1
    store = open_store(url, options)
    value = store.get("c/0")
    for number in range(1, BLOCKS):  # the server keeps equal values once
        store.set(f"c/{number}", [value])
    assert grown("read", url, options, None) < THREADS * BLOCK + MORE


def test_two_gibibytes_are_written_through_one_process(options):
    """Blocks that others may be computed besides, while they are sent, are among the rest."""
    url = f"s3://bucket/{options['backend']}-written"
    assert grown("write", url, options, [BYTES]) < THREADS * BLOCK + MORE
