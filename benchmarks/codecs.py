"""Codec speeds on this machine: the table of `zarr_dask.codecs.throughput`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import zarr_dask as zd
from zarr_dask.codecs.throughput import speeds_of
from zarr_dask.formats.base import ReadOptions

SHAPE = (64, 128, 128)
ROUNDS = 5
NAMED = ("numcodecs.bz2", "gzip", "numcodecs.lzma", "numcodecs.lz4", "zstd", "crc32c")
BLOSC = ("lz4", "blosclz", "lz4hc", "zstd", "zlib")


def main() -> None:
    """Print bytes of elements per second and thread, beside what plans reckon with."""
    values = smooth()
    for label, codecs in cases().items():
        array = zd.create_array({}, shape=SHAPE, dtype="f4", chunks=SHAPE, codecs=codecs)
        decode, encode, stored = measured(array, values)
        known = speeds_of(array.meta.codecs)
        print(
            f"{label:<15} decode {decode / 1e9:7.3f} ({known.decode / 1e9:6.3f})  "
            f"encode {encode / 1e9:8.3f} ({known.encode / 1e9:6.3f}) GB/s, stored {stored:.2f}"
        )


def measured(array: zd.Array, values: np.ndarray) -> tuple[float, float, float]:
    """Bytes per second decoded and encoded, and stored bytes per decoded byte."""
    bound = array.meta.bound((0,) * array.ndim)
    encoded = b"".join(bound.encode(values))
    out = np.empty_like(values)
    reading = ReadOptions().reading
    decode = seconds(lambda: bound.decode(encoded, None, out, reading))
    encode = seconds(lambda: bound.encode(values))
    return values.nbytes / decode, values.nbytes / encode, len(encoded) / values.nbytes


def cases() -> dict[str, list[Any]]:
    """Codecs by their label."""
    blosc = {
        f"blosc {name}": [{"name": "blosc", "configuration": blosc_configuration(name)}]
        for name in BLOSC
    }
    order = [
        {"name": "transpose", "configuration": {"order": [2, 1, 0]}},
        {"name": "bytes", "configuration": {"endian": "little"}},
    ]
    return {"none": [], **blosc, **{name: [name] for name in NAMED}, "transpose": order}


def blosc_configuration(name: str) -> dict[str, Any]:
    """As our default, with another compressor within."""
    return {"cname": name, "clevel": 5, "shuffle": "shuffle", "typesize": 4, "blocksize": 0}


def smooth() -> np.ndarray:
    """A wave with a little noise, as measured fields have."""
    wave = np.sin(np.linspace(0, 60, np.prod(SHAPE))).reshape(SHAPE)
    return (wave + np.random.default_rng(0).normal(0, 0.01, SHAPE)).astype("f4")


def seconds(work: Callable[[], object]) -> float:
    """The shortest of some rounds, in the time of this process."""
    times = []
    for _ in range(ROUNDS):
        begun = time.process_time()
        work()
        times.append(time.process_time() - begun)
    return max(min(times), 1e-9)


if __name__ == "__main__":
    main()
