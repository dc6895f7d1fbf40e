"""Size and speed of candidates for the default codecs, over many kinds of data.

``python -m benchmarks.defaults`` prints one table; the figures in docs/developers/decisions.md come
from it. Every candidate is compared with what zarr-python writes by default (zstd, level 0).
"""

from __future__ import annotations

import gzip
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import skimage
from scipy import ndimage

import zarr_dask as zd
from benchmarks.fields import field
from zarr_dask.formats.base import ReadOptions

ROUNDS = 7
SECONDS = 0.01
"""Least CPU time of a round."""


def main() -> None:
    """Print stored size, and CPU time as a multiple of zarr-python's default, of each candidate."""
    samples = kinds()
    ratios: dict[str, list[tuple[float, float, float]]] = {name: [] for name in candidates()}
    print(f"{'':<26}" + "".join(f"{name:>24}" for name in candidates()))
    for kind, values in samples.items():
        found = measured_in_turns(values)
        peer = found["zarr-python"]
        row = f"{kind:<16} {values.nbytes / 1e6:6.2f} MB "
        for name, one in found.items():
            ratio = (one[0] / peer[0], one[1] / peer[1], one[2] / peer[2])
            ratios[name].append(ratio)
            row += f"{one[0] / values.nbytes:9.3f} {ratio[1]:6.2f} {ratio[2]:6.2f}"
        print(row)
    print(f"{'geometric mean':<26}", end="")
    for each in ratios.values():
        means = [statistics.geometric_mean(column) for column in zip(*each, strict=True)]
        print(f"{means[0]:9.3f} {means[1]:6.2f} {means[2]:6.2f}", end="")
    print("\nstored/decoded bytes, CPU time of encoding and of decoding as multiples of the first")


def candidates() -> dict[str, Any]:
    """Return codecs by their label, the ones to compare with first; None for our default."""
    zstd = {"name": "zstd", "configuration": {"level": 0, "checksum": False}}
    checked = {"name": "zstd", "configuration": {"level": 0, "checksum": True}}
    return {
        "zarr-python": [zstd],
        "default": None,
        "lz4, crc32c": [blosc("lz4", 5), "crc32c"],
        "blosc zstd 1, crc32c": [blosc("zstd", 1), "crc32c"],
        "the same, 1 MiB": [blosc("zstd", 1, 1 << 20), "crc32c"],
        "zstd, crc32c": [zstd, "crc32c"],
        "zstd with its own": [checked],
        "shuffle, zstd, crc32c": ["numcodecs.shuffle", zstd, "crc32c"],
    }


def blosc(cname: str, clevel: int, blocksize: int = 0) -> dict[str, Any]:
    """Return the document of a blosc codec."""
    sizes = {"clevel": clevel, "shuffle": "shuffle", "blocksize": blocksize}
    return {"name": "blosc", "configuration": {"cname": cname, **sizes}}


def measured_in_turns(values: np.ndarray) -> dict[str, tuple[float, float, float]]:
    """Return stored bytes, and CPU seconds of encoding and decoding, by candidate."""
    works = {name: work(values, codecs) for name, codecs in candidates().items()}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    for _ in range(ROUNDS):  # one after the other, so that all have the same neighbours
        for name, (encode, decode, _) in works.items():
            times[name].append((seconds(encode), seconds(decode)))
    return {
        name: (works[name][2], min(t[0] for t in each), min(t[1] for t in each))
        for name, each in times.items()
    }


def work(values: np.ndarray, codecs: Any) -> tuple[Callable[[], object], Callable[[], object], int]:
    """Return the encoding, the decoding and the encoded size of one chunk."""
    dtype = "string" if values.dtype == object else values.dtype
    array = zd.create_array({}, shape=values.shape, dtype=dtype, chunks=values.shape, codecs=codecs)
    bound = array.meta.bound((0,) * array.ndim)
    encoded = b"".join(bound.encode(values))
    out, reading = np.empty_like(values), ReadOptions().reading
    return (
        lambda: bound.encode(values),
        lambda: bound.decode(encoded, None, out, reading),
        len(encoded),
    )


def seconds(run: Callable[[], object]) -> float:
    """Return the CPU seconds of one run, over as many as take `SECONDS`."""
    begun, runs = time.process_time(), 0
    while (spent := time.process_time() - begun) < SECONDS:
        run()
        runs += 1
    return spent / runs


def kinds() -> dict[str, np.ndarray]:
    """Return data of many kinds, from matplotlib and scikit-image where they have some."""
    random = np.random.default_rng(0)
    real = Path(mpl.__file__).parent / "mpl-data" / "sample_data"
    smooth = field(128)
    elevation = np.load(real / "jacksboro_fault_dem.npz")["elevation"]
    disparity = np.load(Path(skimage.__file__).parent / "data" / "motorcycle_disp.npz")["arr_0"]
    scan = np.frombuffer(gzip.decompress((real / "s1045.ima.gz").read_bytes()), ">u2")
    photo = skimage.data.hubble_deep_field()
    blobs = ndimage.gaussian_filter(random.normal(size=(128, 128, 128)), 4) > 0.02
    ones = random.random((1024, 1024)) < 0.02
    return {
        "field f4": smooth,
        "field f8": smooth[:64].astype("f8") * np.pi,
        "real f4": disparity,
        "packed i2": np.round((smooth + 2) * 8000).astype("i2"),
        "elevation i2": elevation,
        "scan u2": scan.reshape(256, 256).astype("u2"),
        "mask": blobs,
        "counts u2": random.poisson(np.clip(smooth + 1, 0, None) * 5).astype("u2"),
        "counts i4": random.poisson(0.3, (512, 512)).astype("i4"),
        "photo u1": photo,
        "cells u1": skimage.data.cell(),
        "labels u4": ndimage.label(blobs)[0].astype("u4"),
        "labels i8": ndimage.label(blobs[:64] & (smooth[:64] > 0))[0].astype("i8"),
        "degrees f8": np.linspace(-180, 180, 200_000),
        "times i8": 1_600_000_000_000_000_000 + 3600_000_000_000 * np.arange(200_000),
        "strings": np.array([f"station-{i:05d}/{i * 7919 % 97}" for i in range(50_000)], object),
        "rain f4": np.clip(smooth - 1, 0, None),
        "sparse counts f4": random.poisson(0.05, (512, 512)).astype("f4"),
        "sparse f4": np.where(ones, random.normal(size=ones.shape), 0).astype("f4"),
        "noise f8": random.random((512, 512)),
    }


if __name__ == "__main__":
    main()
