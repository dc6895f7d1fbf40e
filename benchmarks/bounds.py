"""Does the memory that a plan states hold, and is it not far too much? Many layouts, measured.

``python -m benchmarks.bounds`` runs each layout in a process of its own, with one and with four
threads, and prints what the plan says of memory, decoded bytes and requests beside what was
counted: the highest resident memory above that of the process when idle, every chunk that was
decoded, every call of a store. ``--only TEXT`` takes some of them.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import dask
import numpy as np

import zarr_dask as zd
from zarr_dask._util.buffers import malloc_trim
from zarr_dask.codecs.chain import BoundCodecChain
from zarr_dask.stores import LocalStore, Recording

__all__ = ["LAYOUTS", "Layout", "Measured", "measured"]

SHAPE = (256, 256, 512)
MB = 10**6


@dataclass(frozen=True)
class Layout:
    """A source and a target."""

    name: str
    source: dict[str, Any]
    target: dict[str, Any]
    max_mem: int
    """Bytes for each thread."""
    codec: str | None = "zstd"
    dtype: str = "f4"
    new_dtype: str | None = None
    noise: bool = True
    """Whether the values do not compress."""
    shape: tuple[int, ...] = SHAPE

    def __str__(self) -> str:
        return self.name

    def codecs(self) -> list[Any]:
        """Of the source."""
        if self.codec == "gzip":  # at its default level it is too slow to be tried often
            return [{"name": "gzip", "configuration": {"level": 1}}]
        if self.codec == "odd blosc":
            given = {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "blocksize": 0}
            return [{"name": "blosc", "configuration": given | {"typesize": 3}}]
        if self.codec == "zstd 9":  # whose tables are larger than its chunks
            return [{"name": "zstd", "configuration": {"level": 9, "checksum": False}}]
        return [] if self.codec is None else [self.codec]


SLABS = {"chunks": (4, 256, 512)}
HALF = (256, 256, 256)
"""Shape of arrays whose elements take twice as much."""
SHORT = {"chunks": (4, 256, 256)}
SERIES = {"chunks": (256, 32, 32)}
CUBES = {"chunks": (64, 64, 64)}
SHARDS = {"chunks": (32, 32, 32), "shards": (128, 128, 128)}
LARGE = {"chunks": (128, 128, 256)}
LAYOUTS = [
    Layout("slabs to series", SLABS, SERIES, 64 * MB),
    Layout("slabs to series, blosc", SLABS, SERIES, 64 * MB, "blosc"),
    Layout("slabs to series, gzip", SLABS, SERIES, 64 * MB, "gzip"),
    Layout("slabs to series, uncompressed", SLABS, SERIES, 64 * MB, None),
    Layout("slabs to series, zstd 9", SLABS, SERIES, 40 * MB, "zstd 9", shape=(128, 256, 256)),
    Layout("slabs to series, smooth", SLABS, SERIES, 64 * MB, noise=False),
    Layout("slabs to series, 20 MB", SLABS, SERIES, 20 * MB),
    Layout("slabs to series, f8", SHORT, SERIES, 64 * MB, dtype="f8", shape=HALF),
    Layout("slabs to series, f8 to f4", SHORT, SERIES, 64 * MB, "zstd", "f8", "f4", shape=HALF),
    Layout("slabs to series, u1", SLABS, SERIES, 40 * MB, dtype="u1"),
    Layout("slabs to shards", SLABS, SHARDS, 64 * MB),
    Layout("slabs to shards, smooth", SLABS, SHARDS, 64 * MB, noise=False),
    Layout("shards to slabs", SHARDS, SLABS, 64 * MB),
    Layout("shards to series, blosc", SHARDS, SERIES, 64 * MB, "blosc"),
    Layout("cubes to padded", CUBES, {"chunks": (100, 50, 200)}, 64 * MB),
    Layout("cubes to slabs", CUBES, SLABS, 32 * MB),
    Layout("large chunks to series", LARGE, SERIES, 80 * MB),
    Layout("large chunks to slabs, smooth", LARGE, SLABS, 80 * MB, noise=False),
    Layout("large chunks to slabs, blosc", LARGE, SLABS, 80 * MB, "blosc"),
    Layout("large chunks to slabs, odd blosc", LARGE, SLABS, 80 * MB, "odd blosc", noise=False),
    Layout("large chunks to slabs, gzip", LARGE, SLABS, 80 * MB, "gzip"),
    Layout("series to large chunks, blosc", SERIES, LARGE, 80 * MB, "blosc"),
    Layout(  # the second stage works on smaller chunks than the first
        "rows to columns, blosc",
        {"chunks": (512, 8192)},
        {"chunks": (8192, 512)},
        80 * MB,
        "blosc",
        shape=(8192, 8192),
    ),
    Layout(
        "small chunks to small chunks",
        {"chunks": (16, 16, 16)},
        {"chunks": (8, 32, 32)},
        32 * MB,
        shape=(128, 256, 256),
    ),
]


@dataclass(frozen=True)
class Measured:
    """What a plan said, and what was counted."""

    layout: str
    threads: int
    stages: int
    stated: int
    peak: int
    decoded: tuple[int, int]
    requests: tuple[int, int]
    tasks: int

    @property
    def share(self) -> float:
        """Of the stated memory."""
        return self.peak / self.stated

    def __str__(self) -> str:
        return (
            f"{self.layout:<34} {self.threads} threads {self.stages} stages {self.tasks:>5} tasks  "
            f"{self.peak / MB:7.1f} of {self.stated / MB:7.1f} MB  {self.share:5.2f}  "
            f"decoded {self.decoded[1] / self.decoded[0]:.3f}  "
            f"requests {self.requests[1]} of {self.requests[0]}"
        )


def measured(layout: Layout, threads: int, root: Path, *, worker: bool = True) -> Measured:
    """Run a layout in a process of its own.

    Parameters
    ----------
    layout
        Which.
    threads
        Tasks at a time.
    root
        Where the data go.
    worker
        Whether malloc is told what dask tells it in its workers.
    """
    environment = dict(os.environ)
    if worker:
        environment.update(MALLOC_TRIM_THRESHOLD_="65536")
    given = json.dumps([asdict(layout), threads, str(root)])
    command = [sys.executable, "-m", "benchmarks.bounds", "--run", given]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise RuntimeError(done.stderr)
    found = json.loads(done.stdout.splitlines()[-1])
    return Measured(
        **{**found, "decoded": tuple(found["decoded"]), "requests": tuple(found["requests"])}
    )


# --- in the process that is measured --------------------------------------------------------------


def _made(layout: Layout, root: Path) -> Path:
    place = root / re.sub(
        "[^a-z0-9]+",
        "-",
        f"{layout.source}{layout.codec}{layout.dtype}{layout.noise}{layout.shape}",
    )
    if place.exists():
        return place
    grid = {name: tuple(shape) for name, shape in layout.source.items()}
    shape = tuple(layout.shape)
    array = zd.create_array(place, shape=shape, dtype=layout.dtype, codecs=layout.codecs(), **grid)
    rng = np.random.default_rng(1)
    for start in range(0, shape[0], 128):
        if layout.noise:
            values = rng.integers(1, 200, (128, *shape[1:]), "u1").astype(layout.dtype)
            if np.dtype(layout.dtype).kind == "f":
                values += rng.random(values.shape, "f4").astype(layout.dtype)
        else:
            x, y, z = np.ogrid[start : start + 128, : shape[1], : shape[2]]
            values = (np.sin(x / 37) * np.cos(y / 23) + z // 64).astype(layout.dtype)
        array[start : start + 128] = values
    if layout.codec == "odd blosc":  # no blocks of it are read, and the document does not say so
        _write_anew(place, array[...])
        document = place / "zarr.json"
        text = document.read_text()
        assert '"typesize": 3' in text
        document.write_text(text.replace('"typesize": 3', '"typesize": 4'))
    return place


def _write_anew(place: Path, values: np.ndarray) -> None:
    """As tensorstore writes, whose blosc takes elements of any size for those of any chunk."""
    import tensorstore as ts

    there = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(place)}}
    ts.open(there).result().write(values).result()


class Counted:
    """Counts the bytes of chunks that are decoded in this process, as wholes or block by block."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._lock = Lock()
        whole, in_parts = BoundCodecChain.decode, BoundCodecChain._read_parts

        def decode(bound: BoundCodecChain, *rest: Any) -> None:
            self._count(bound)
            whole(bound, *rest)

        def read_parts(bound: BoundCodecChain, *rest: Any) -> Any:
            found = yield from in_parts(bound, *rest)
            self._count(bound)  # blocks that cannot be told apart are decoded as a whole instead
            return found

        BoundCodecChain.decode = decode
        BoundCodecChain._read_parts = read_parts

    def _count(self, bound: BoundCodecChain) -> None:
        # a shard decodes its chunks, and its index, which has integers of its own type
        if not bound._serializer.partial and bound.spec.dtype != np.dtype("u8"):
            with self._lock:
                self.nbytes += bound.spec.nbytes


def _memory(name: str) -> int:
    text = Path("/proc/self/status").read_text()
    return int(re.search(rf"{name}:\s+(\d+) kB", text)[1]) * 1024


def _run(layout: Layout, threads: int, root: Path) -> Measured:
    grid = {name: tuple(shape) for name, shape in layout.target.items()}
    if layout.new_dtype:
        grid["dtype"] = layout.new_dtype
    with (
        dask.config.set(scheduler="threads", num_workers=threads),
        tempfile.TemporaryDirectory(dir=root) as folder,
    ):
        small = zd.create_array(
            f"{folder}/small",
            shape=(8, 8),
            dtype=layout.dtype,
            chunks=(1, 8),
            codecs=layout.codecs(),
        )
        small[...] = 1
        zd.rechunk(small, f"{folder}/smaller", chunks=(8, 1), max_mem=threads * 8 * MB)
        old = LocalStore(str(_made(layout, root)))
        grid["max_mem"] = layout.max_mem * threads
        plan = zd.plan_rechunk(old, f"{folder}/new", **grid)
        gc.collect()
        malloc_trim()  # as when a stage begins
        Path("/proc/self/clear_refs").write_text("5")
        idle = _memory("VmRSS")
        plan.run()
        peak = _memory("VmHWM") - idle
        counted = Counted()
        stores = [
            Recording(store) for store in (old, *map(LocalStore, (f"{folder}/b", f"{folder}/t")))
        ]
        source, target, temp = stores
        again = zd.plan_rechunk(source, target, temp=temp, **grid)
        counted.nbytes = 0
        for store in stores:
            store.clear()
        again.run()
    reads = sum(store.batches[name] for store in (source, temp) for name in ("get", "get_ranges"))
    writes = sum(store.batches["set"] for store in (target, temp))
    costs = plan.costs
    return Measured(
        layout.name,
        threads,
        len(plan.stages),
        plan.peak,
        peak,
        (costs.decoded, counted.nbytes),
        (costs.reads + costs.writes, reads + writes),
        plan.tasks,
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bounds", description=__doc__)
    parser.add_argument("--only", default="", help="layouts whose name holds this text")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 4])
    parser.add_argument("--dir", type=Path, help="where the data go; a temporary folder by default")
    parser.add_argument(
        "--plain", action="store_true", help="as in any process but a worker of dask"
    )
    parser.add_argument("--run", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        given, threads, root = json.loads(options.run)
        print(json.dumps(asdict(_run(Layout(**given), threads, Path(root)))))
        return
    with tempfile.TemporaryDirectory(prefix="zarr-dask-bounds-", dir=options.dir) as folder:
        for layout in LAYOUTS:
            if options.only in layout.name:
                made = _made(layout, Path(folder))
                for threads in options.threads:
                    print(
                        measured(layout, threads, Path(folder), worker=not options.plain),
                        flush=True,
                    )
                shutil.rmtree(made)


if __name__ == "__main__":
    main()
