"""Run by `test_memory.py`: how much memory it takes to read one block, for each layout.

Prints a JSON object: for each layout the bytes of the block, of its largest stored object, and of
what the process grew by at most while the block was read. Each read has a process of its own, which
has read something small before, so that nothing is left to be imported.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np

import zarr_dask as zd

SHAPE = (128, 128, 512)  # 32 MiB of float32
OBJECT = (128, 128, 256)
BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
TRANSPOSE = {"name": "transpose", "configuration": {"order": [2, 1, 0]}}
WHOLE = (slice(0, 128), slice(0, 128), slice(0, 256))
PART = (slice(3, 128), slice(0, 128), slice(5, 250))

LAYOUTS = {
    "uncompressed": ({"codecs": []}, WHOLE),
    "blosc": ({}, WHOLE),
    "zstd": ({"codecs": ["zstd"]}, WHOLE),
    "gzip": ({"codecs": ["gzip"]}, WHOLE),
    "crc32c": ({"codecs": ["crc32c"]}, WHOLE),
    "shards": ({"chunks": (32, 32, 32), "shards": OBJECT}, WHOLE),
    "shards of gzip": ({"chunks": (32, 32, 32), "shards": OBJECT, "codecs": ["gzip"]}, WHOLE),
    "part of a shard": ({"chunks": (32, 32, 32), "shards": OBJECT}, PART),
    "transposed": ({"codecs": [TRANSPOSE, BYTES, "blosc"]}, WHOLE),
    "v2": ({"format": "v2"}, WHOLE),
    "v2 F": ({"format": "v2", "order": "F"}, WHOLE),
    "v2 F gzip": ({"format": "v2", "order": "F", "codecs": [{"id": "gzip", "level": 1}]}, WHOLE),
    "v2 big-endian": ({"format": "v2", "dtype": ">f4"}, WHOLE),
    "part of a chunk": ({}, PART),
}


def memory(name: str) -> int:
    """A figure of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def make(folder: Path, options: dict) -> zd.Array:
    options = {"chunks": OBJECT, "dtype": "f4", **options}
    array = zd.create_array(folder, shape=SHAPE, **options)
    values = np.random.default_rng(0).normal(size=OBJECT).astype("f4")  # hardly compresses
    array[WHOLE] = values
    return array


def small(folder: Path, options: dict) -> zd.Array:
    options = {"chunks": (8, 8, 8), "dtype": "f4", **options}
    options |= {"chunks": (4, 4, 4), "shards": (8, 8, 8)} if "shards" in options else {}
    array = zd.create_array(folder, shape=(8, 8, 8), **options)
    array[...] = 1
    return array


def growth(folder: Path, name: str) -> tuple[int, int, int]:
    options, region = LAYOUTS[name]
    path = folder / name.replace(" ", "-")
    if os.fork() == 0:  # so that no memory is left over from writing
        make(path, options)
        small(folder / f"{path.name}-small", options)
        os._exit(0)
    assert os.wait()[1] == 0
    zd.open_array(folder / f"{path.name}-small")[1:7, 1:7, 1:7]
    zd.open_array(folder / f"{path.name}-small").read(threads=1)
    array = zd.open_array(path)
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmHWM")
    values = array.read(region, threads=1)
    peak = memory("VmHWM") - before
    largest = max(file.stat().st_size for file in path.rglob("*"))
    shutil.rmtree(path)
    return values.nbytes, largest, peak


def main(folder: Path) -> None:
    found = {}
    for name in LAYOUTS:
        reading, writing = os.pipe()
        if os.fork() == 0:
            os.write(writing, json.dumps(growth(folder, name)).encode())
            os._exit(0)
        os.close(writing)
        found[name] = json.loads(os.read(reading, 1000))
        assert os.wait()[1] == 0
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
