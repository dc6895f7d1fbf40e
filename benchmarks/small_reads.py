"""Reads of next to nothing: one small chunk, and points scattered over shards."""

from __future__ import annotations

import os
import struct
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import tensorstore as ts
import zarr
from numcodecs import blosc

import zarr_dask as zd
from benchmarks.counts import Counting
from benchmarks.fields import LayoutCase, field
from benchmarks.measure import Case, Contender
from zarr_dask.stores import LocalStore

__all__ = ["CASES"]

CHUNK, SIDE, REPEATS = 64, 640, 300
N, SHARD, INNER, POINTS = 512, 256, 32, 300


def _tensorstore(path: Path) -> ts.TensorStore:
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}}
    context = ts.Context({"data_copy_concurrency": {"limit": 1}, "cache_pool": {}})
    return ts.open(spec, context=context).result()


# --- one chunk ------------------------------------------------------------------------------------


@contextmanager
def _one_chunk(root: Path, threads: int) -> Iterator[Case]:
    """Another chunk every time, all files in the page cache."""
    path = root / "chunks.zarr"
    values = field(N)[:, :, 0][:1].repeat(SIDE, 0)[:, : min(SIDE, N)]
    values = np.ascontiguousarray(values + np.arange(SIDE, dtype="f4")[:, None])
    layout = LayoutCase("", "blosc", CHUNK, None)
    made = zd.create_array(path, shape=values.shape, dtype="f4", chunks=CHUNK, codecs=layout.codecs)
    made[...] = values
    rows, columns = (length // CHUNK for length in values.shape)
    corners = [divmod(number % (rows * columns), columns) for number in range(REPEATS)]
    regions = [
        (slice(i * CHUNK, (i + 1) * CHUNK), slice(j * CHUNK, (j + 1) * CHUNK)) for i, j in corners
    ]

    def floor() -> list[np.ndarray]:
        found = []
        for i, j in corners:
            out = np.empty((CHUNK, CHUNK), "f4")
            file = os.open(f"{path}/c/{i}/{j}", os.O_RDONLY)
            blosc.decompress(os.read(file, 1 << 20), out)
            os.close(file)
            found.append(out)
        return found

    def check(found: object) -> bool:
        return all(np.array_equal(one, values[at]) for one, at in zip(found, regions, strict=True))

    def counted() -> dict[str, int]:
        store = Counting(LocalStore(str(path)))
        array = zd.open_array(store)
        store.clear()
        array[regions[0]]
        return store.counts

    theirs, stored, own = zarr.open_array(path, mode="r"), _tensorstore(path), zd.open_array(path)
    contenders = [
        Contender("floor", floor, check),
        Contender("zarr_dask", lambda: [own[at] for at in regions], check, count=counted),
        Contender("zarr-python", lambda: [theirs[at] for at in regions], check),
        Contender("tensorstore", lambda: [stored[at].read().result() for at in regions], check),
    ]
    title = f"one {CHUNK} x {CHUNK} float32 blosc chunk, one thread"
    yield Case(title, contenders, number=REPEATS, unit="us", scale=1e6, reach="30 us")


# --- points ---------------------------------------------------------------------------------------


@contextmanager
def _points(root: Path, threads: int) -> Iterator[Case]:
    """Files in the page cache, nothing decoded is kept between runs."""
    path = root / "points.zarr"
    values = field(N)
    layout = LayoutCase("", "blosc", INNER, SHARD)
    made = zd.create_array(
        path, shape=values.shape, dtype="f4", chunks=INNER, shards=SHARD, codecs=layout.codecs
    )
    made[...] = values
    points = tuple(np.random.default_rng(0).integers(0, N, (3, POINTS)))
    expected = values[points]

    def check(found: object) -> bool:
        return np.array_equal(found, expected)

    def counted() -> dict[str, int]:
        store = Counting(LocalStore(str(path)))
        array = zd.open_array(store)
        store.clear()
        array.vindex[points]
        return store.counts

    theirs, own = zarr.open_array(path, mode="r"), zd.open_array(path)
    stored = _tensorstore(path)
    contenders = [
        Contender("floor", lambda: _read_points(path, points), check),
        Contender("zarr_dask", lambda: own.vindex[points], check, count=counted),
        Contender("zarr-python", lambda: theirs.vindex[points], check),
        Contender("tensorstore", lambda: stored.vindex[points].read().result(), check),
    ]
    title = f"{POINTS} random points of {N}^3 float32, {INNER}^3 chunks in {SHARD}^3 shards"
    yield Case(title, contenders, reach="36 ms")


def _read_points(path: Path, points: tuple[np.ndarray, ...]) -> np.ndarray:
    """One thread: the index of each shard once, each chunk once."""
    per_shard: dict[tuple, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    side = SHARD // INNER
    for number, point in enumerate(zip(*(axis.tolist() for axis in points), strict=True)):
        inner = [c % SHARD // INNER for c in point]
        chunk = (inner[0] * side + inner[1]) * side + inner[2]
        per_shard[tuple(c // SHARD for c in point)][chunk].append(number)
    found = np.empty(len(points[0]), "f4")
    scratch = np.empty((INNER,) * 3, "f4")
    places = tuple(axis % INNER for axis in points)
    for shard, chunks in per_shard.items():
        file = os.open(f"{path}/c/{'/'.join(map(str, shard))}", os.O_RDONLY)
        nbytes = 16 * side**3
        index = os.pread(file, nbytes, os.fstat(file).st_size - nbytes - 4)
        for chunk, numbers in chunks.items():
            offset, length = struct.unpack_from("<2Q", index, 16 * chunk)
            blosc.decompress(os.pread(file, length, offset), scratch)
            found[numbers] = scratch[tuple(place[numbers] for place in places)]
        os.close(file)
    return found


CASES: dict[str, Callable] = {"one-chunk": _one_chunk, "random-points": _points}
