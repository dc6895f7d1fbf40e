"""A sweep over data types, chunk sizes, codecs, accesses, layouts and interfaces, beside peers.

``python -m benchmarks.sweep`` runs it and prints the cells in which a peer is ahead.

Each contender of a cell has a process of its own, so that CPU time has no part of the idle threads
of another library. They take turns, begun by another one each time. Each turn gives CPU time (of
all threads of the process) and wall time; the ratio to a peer is the median over the turns of our
time to its time in the same turn. Writes with fsync are compared with writes with fsync only:
tensorstore syncs by default and this package does not, so both are measured both ways.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import product
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import dask
import numpy as np

from benchmarks.sweep_peers import PEERS, Access, Layout, Peer

__all__ = ["CELLS", "Cell", "main"]

AHEAD = 1.10
"""Ratio from which a peer is said to be ahead."""
SIDE = 128
"""Length of each side of the array; the quick form has half of that."""


@dataclass(frozen=True)
class Cell:
    """One way to use one layout."""

    interface: str
    """``"array"`` or ``"dask"``."""
    kind: str
    """``"read"``, ``"write"``, ``"create"`` or ``"append"``."""
    access: str
    dtype: str
    codec: str
    chunk: int
    shard: int | None

    @property
    def name(self) -> str:
        layout = f"{self.chunk}" + (f"-in-{self.shard}" if self.shard else "")
        use = f"{self.kind}/{self.access}/{self.interface}"
        return f"{use}/{self.dtype}/{self.codec}/{layout}"

    def layout(self, side: int) -> Layout:
        if self.kind == "append":  # rows of the size of a chunk, and chunks of so many rows
            rows = int(self.access.partition("-in-")[2])
            shards = None if self.shard is None else (self.shard * rows, 64, 64)
            return Layout((0, 64, 64), self.dtype, self.codec, (rows, 64, 64), shards)
        chunks = (min(self.chunk, side),) * 3
        shards = None if self.shard is None else (min(self.shard, side),) * 3
        return Layout((side,) * 3, self.dtype, self.codec, chunks, shards)


def _accesses(cell: Cell, side: int) -> list[Access]:
    """Return selections of one kind at different places; a run takes them one after the other."""
    random = np.random.default_rng(0)
    chunk, count = min(cell.chunk, side), 8

    def starts(length: int) -> list[int]:
        return random.integers(0, side - length + 1, count).tolist()

    def points(number: int) -> list[Access]:
        return [Access(tuple(random.integers(0, side, (3, number))), "vindex") for _ in range(2)]

    def boxes(*lengths: int) -> list[Access]:
        corners = zip(*map(starts, lengths), strict=True)
        return [
            Access(tuple(slice(c, c + n) for c, n in zip(corner, lengths, strict=True)))
            for corner in corners
        ]

    def some() -> np.ndarray:
        return np.sort(random.choice(side, side // 5, replace=False))

    every = (slice(None),)
    pairs = list(zip(starts(1), starts(1), strict=True))
    return {
        "whole": lambda: [Access(every * 3)],
        "plane": lambda: [Access((i, *every * 2)) for i in starts(1)],
        "last-plane": lambda: [Access((*every * 2, i)) for i in starts(1)],
        "row": lambda: [Access((i, j, *every)) for i, j in pairs],
        "column": lambda: [Access((*every, i, j)) for i, j in pairs],
        "box": lambda: boxes(*(chunk + chunk // 2,) * 3),
        "element": lambda: [Access(at) for at in zip(starts(1), starts(1), starts(1), strict=True)],
        "chunk": lambda: [
            Access(tuple(slice(i * chunk, (i + 1) * chunk) for i in at))
            for at in random.integers(0, side // chunk, (count, 3)).tolist()
        ],
        "strided": lambda: [Access((slice(i, None, 3),) * 3) for i in range(2)],
        "points-300": lambda: points(300),
        "points-100000": lambda: points(min(100_000, side**3 // 4)),
        "mask-1": lambda: [Access(random.random((side,) * 3) < 0.01, "mask")],
        "mask-50": lambda: [Access(random.random((side,) * 3) < 0.5, "mask")],
        "mask-box": lambda: [Access(_box_mask(side), "mask")],
        "oindex": lambda: [Access((some(), some(), some()), "oindex") for _ in range(2)],
    }[cell.access]()


def _box_mask(side: int) -> np.ndarray:
    mask = np.zeros((side,) * 3, bool)
    mask[(slice(side // 5, side // 2),) * 3] = True
    return mask


def _values(cell: Cell, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Return smooth values with noise in their last bits, which compress about as data do."""
    if not all(shape):
        return np.empty(shape, cell.dtype)
    axes = np.ogrid[tuple(slice(0, n) for n in shape)]
    smooth = sum(np.sin(axis / 17.0 + seed) for axis in axes)
    noise = np.random.default_rng(seed).normal(scale=1e-3, size=shape)
    values = smooth + noise
    if cell.dtype == "bool":
        return values > 0
    return (values * (1 if np.dtype(cell.dtype).kind == "f" else 30)).astype(cell.dtype)


# --- cells ----------------------------------------------------------------------------------------

_READS = (
    "whole", "plane", "last-plane", "row", "column", "box", "element", "chunk", "strided",
    "points-300", "points-100000", "mask-1", "mask-50", "mask-box", "oindex",
)  # fmt: skip
_WRITES = (
    "whole", "plane", "last-plane", "row", "box", "element", "chunk", "strided", "points-300",
    "mask-1", "oindex",
)  # fmt: skip
_DTYPES = ("bool", "uint8", "int16", "float64")
_CODECS = ("raw", "zstd", "gzip", "blosc-zlib", "blosc-zstd", "crc32c")
_BASE = ("float32", "blosc-lz4")


def _cells() -> Iterator[Cell]:
    """Every access with two layouts; other data types, codecs and chunks with a few accesses."""
    for shard in (None, 64):
        for access in _READS:
            yield Cell("array", "read", access, *_BASE, 32, shard)
        for access in _WRITES:
            yield Cell("array", "write", access, *_BASE, 32, shard)
        for kind, dtype in product(("read", "write"), _DTYPES):
            yield Cell("array", kind, "whole", dtype, "zstd", 32, shard)
        for kind, codec in product(("read", "write"), _CODECS):
            yield Cell("array", kind, "whole", "float32", codec, 32, shard)
        for kind, codec in product(("read", "write"), ("raw", "blosc-lz4", "zstd")):
            yield Cell("array", kind, "whole", "float32", codec, 10, shard and 60)
            yield Cell("array", kind, "chunk", "float32", codec, 16, shard)
            yield Cell("array", kind, "chunk", "float32", codec, 10, shard and 60)
        for kind in ("read", "write"):
            yield Cell("dask", kind, "whole", *_BASE, 32, shard)
        yield Cell("dask", "read", "last-plane", *_BASE, 32, shard)
        yield Cell("dask", "read", "box", *_BASE, 32, shard)
        yield Cell("array", "create", "new", *_BASE, 32, shard)
        yield Cell("array", "append", "row-in-1", *_BASE, 64, shard and 16)
        yield Cell("array", "append", "row-in-16", *_BASE, 64, shard and 16)


CELLS = list(dict.fromkeys(_cells()))
QUICK = [
    cell
    for cell in CELLS
    if cell.access in {"element", "chunk", "plane", "new", "row-in-1"} and cell.codec == "blosc-lz4"
]


# --- measuring ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Use:
    """What one contender does in a cell, in its own process."""

    prepare: Callable[[], None]
    run: Callable[[], object]
    check: Callable[[object], bool]

    def is_right(self) -> bool:
        self.prepare()
        return self.check(self.run())

    def times(self, repeats: int) -> tuple[float, float]:
        """Return CPU time and wall time of a run."""
        self.prepare()
        gc.collect(0)
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(repeats):
            self.run()
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        return cpu / repeats, wall / repeats


def _serve(pipe: Connection, cell: Cell, peer: Peer, root: Path, side: int) -> None:
    """Run a contender as often as its pipe says, until it says None."""
    use = _use(cell, peer, root, side)
    pipe.send(use.is_right())
    while (repeats := pipe.recv()) is not None:
        pipe.send(use.times(repeats))


@dataclass
class _Contender:
    """One contender of a cell, seen from the process that measures."""

    peer: Peer
    pipe: Connection
    is_right: bool
    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)

    def take_turn(self, repeats: int) -> tuple[float, float]:
        self.pipe.send(repeats)
        cpu, wall = self.pipe.recv()
        return cpu, wall


def _processes() -> Any:
    """Return how processes are begun: forked from one that has imported all peers, if possible."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([Peer.__module__])
    return context


def _started(
    cell: Cell, peer: Peer, root: Path, side: int, processes: Any, exits: ExitStack
) -> _Contender:
    """Begin the process of a contender, which ends with `exits`."""
    near, far = processes.Pipe()
    process = processes.Process(target=_serve, args=(far, cell, peer, root, side))
    process.start()
    far.close()
    exits.callback(process.join)
    exits.enter_context(near)
    exits.callback(near.send, None)
    return _Contender(peer, near, near.recv())


def _can(cell: Cell, peer: Peer, side: int) -> bool:
    if peer.synced and cell.kind == "read":
        return False
    accesses = _accesses(cell, side) if cell.kind in {"read", "write"} else []
    accessor = accesses[0].accessor if accesses else ""
    return peer.can(cell.interface, cell.kind, cell.layout(side), accessor)


def _use(cell: Cell, peer: Peer, root: Path, side: int) -> _Use:
    layout = cell.layout(side)
    if cell.kind in {"create", "append"}:
        return _growing(cell, peer, root / peer.name.replace(" ", "-") / "array", layout)
    accesses = _accesses(cell, side)
    if cell.kind == "write" and cell.access in {"points-300", "row"} and layout.shards:
        accesses = accesses[:2]
    old = _values(cell, layout.shape)
    path = root / peer.name.replace(" ", "-") / "array"
    if cell.kind == "write":
        return _writing(cell, peer, path, layout, accesses, old)
    if not peer.reads_zarr:
        peer.write(peer.create(path, layout), Access(...), old)
        return _reading(cell, peer, path, layout, accesses, old)
    path = root / "array.zarr"  # made by the first contender, which is this package
    if not path.exists():
        PEERS[0].create(path, layout)[...] = old
    return _reading(cell, peer, path, layout, accesses, old)


def _reading(
    cell: Cell, peer: Peer, path: Path, layout: Layout, accesses: list[Access], old: np.ndarray
) -> _Use:
    array = peer.open(path, layout)

    def run() -> object:
        return [peer.read(array, access) for access in accesses]

    def lazily() -> object:
        blocks = layout.shards or tuple(2 * c for c in layout.chunks)
        return [peer.lazy(path, layout, blocks)[access.index].compute() for access in accesses]

    def check(found: Any) -> bool:
        return all(map(np.array_equal, found, [_taken(old, access) for access in accesses]))

    return _Use(lambda: None, run if cell.interface == "array" else lazily, check)


def _taken(values: np.ndarray, access: Access) -> np.ndarray:
    return values[np.ix_(*access.index) if access.accessor == "oindex" else access.index]


def _writing(
    cell: Cell, peer: Peer, path: Path, layout: Layout, accesses: list[Access], old: np.ndarray
) -> _Use:
    new = _values(cell, layout.shape, 1)
    pieces = [np.array(_taken(new, access)) for access in accesses]
    expected = old.copy()
    for access, piece in zip(accesses, pieces, strict=True):
        index = np.ix_(*access.index) if access.accessor == "oindex" else access.index
        expected[index] = piece
    arrays: list[Any] = []

    def prepare() -> None:
        arrays.clear()
        shutil.rmtree(path.parent, ignore_errors=True)
        if cell.interface == "array":
            made = peer.create(path, layout)
            if cell.access != "whole":
                peer.write(made, Access(...), old)
            arrays.append(made)

    def run() -> object:
        for access, piece in zip(accesses, pieces, strict=True):
            peer.write(arrays[0], access, piece)
        return arrays[0]

    def lazily() -> object:
        blocks = layout.shards or tuple(2 * c for c in layout.chunks)
        peer.store(dask.array.from_array(new, chunks=blocks, name=False), path, layout)
        return peer.open(path, layout)

    def check(array: Any) -> bool:
        return np.array_equal(peer.read(array, Access(...)), expected)

    return _Use(prepare, run if cell.interface == "array" else lazily, check)


def _growing(cell: Cell, peer: Peer, path: Path, layout: Layout) -> _Use:
    rows = _values(cell, (20, *layout.shape[1:]), 1) if cell.kind == "append" else None
    arrays: list[Any] = []

    def prepare() -> None:
        arrays.clear()
        shutil.rmtree(path.parent, ignore_errors=True)
        if rows is not None:
            arrays.append(peer.create(path, layout))

    def append() -> object:
        array = arrays[0]
        for i in range(len(rows)):
            array = peer.append(array, rows[i : i + 1])
        return array

    def create() -> object:
        return [peer.create(path.parent / str(i) / "a", layout) for i in range(10)][-1]

    def check(array: Any) -> bool:
        if rows is None:
            return tuple(array.shape) == layout.shape
        return np.array_equal(peer.read(array, Access(...)), rows)

    return _Use(prepare, create if rows is None else append, check)


def _measure(
    cell: Cell, root: Path, side: int, rounds: int, seconds: float, processes: Any
) -> dict[str, Any]:
    with ExitStack() as exits:
        contenders = [
            _started(cell, peer, root, side, processes, exits)
            for peer in PEERS
            if _can(cell, peer, side)
        ]
        repeats = 1
        if cell.kind == "read":  # a run that writes begins with a prepared array: it is run once
            _, once = contenders[0].take_turn(1)
            repeats = min(100, int(seconds / once) + 1)
        for turn in range(rounds):
            first = turn % len(contenders)
            for one in [*contenders[first:], *contenders[:first]]:
                cpu, wall = one.take_turn(repeats)
                one.cpu.append(cpu)
                one.wall.append(wall)
    return {
        "name": cell.name,
        "wrong": [one.peer.name for one in contenders if not one.is_right],
        "contenders": [
            {
                "name": one.peer.name,
                "synced": one.peer.synced,
                **{
                    unit: {"best": min(times), "median": median(times), "all": times}
                    for unit, times in (("cpu", one.cpu), ("wall", one.wall))
                },
            }
            for one in contenders
        ],
    }


def ratios(found: dict[str, Any], unit: str) -> dict[str, float]:
    """Return our time to that of each peer, paired; with fsync to those with fsync."""
    own = {
        one["synced"]: one[unit]["all"]
        for one in found["contenders"]
        if one["name"].startswith("zarr_dask")
    }
    return {
        one["name"]: median(map(float.__truediv__, own[one["synced"]], one[unit]["all"]))
        for one in found["contenders"]
        if not one["name"].startswith("zarr_dask")
    }


def ahead(found: dict[str, Any], unit: str) -> dict[str, float]:
    """Return the peers that are ahead in a cell, and our time to theirs."""
    return {name: ratio for name, ratio in ratios(found, unit).items() if ratio > AHEAD}


def _line(found: dict[str, Any]) -> str:
    (own, *_) = found["contenders"]
    parts = [f"{found['name']:<52} {1e3 * own['cpu']['median']:9.3f} ms cpu"]
    cpu, wall = ratios(found, "cpu"), ratios(found, "wall")
    parts += [f"{name} {cpu[name]:.2f}/{wall[name]:.2f}" for name in cpu]
    if found["wrong"]:
        parts.append(f"WRONG: {', '.join(found['wrong'])}")
    return "  ".join(parts)


def main(arguments: list[str] | None = None) -> int:
    """Run the sweep; 1 if a result is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sweep", description=__doc__)
    parser.add_argument("--only", default="", help="cells whose name holds all of these words")
    parser.add_argument("--rounds", type=int, help="turns of each contender (7, quick 1)")
    parser.add_argument("--quick", action="store_true", help="a few cells of a small array")
    parser.add_argument("--dir", type=Path, help="where the data go; a temporary folder by default")
    parser.add_argument("--json", type=Path, help="also write all times to this file")
    parser.add_argument("--list", action="store_true", help="name the cells and run none")
    options = parser.parse_args(arguments)
    words = options.only.split()
    cells = [
        cell
        for cell in (QUICK if options.quick else CELLS)
        if all(word in cell.name for word in words)
    ]
    if options.list:
        print("\n".join(cell.name for cell in cells))
        return 0
    rounds = options.rounds or (1 if options.quick else 7)
    side, seconds = (SIDE // 2, 0.0) if options.quick else (SIDE, 0.02)
    processes = _processes()
    results = []
    print("ours / peer, CPU time / wall time, medians of pairs")
    for cell in cells:
        with tempfile.TemporaryDirectory(prefix="zarr-dask-sweep-", dir=options.dir) as folder:
            place = Path(folder)
            results.append(_measure(cell, place, side, rounds, seconds, processes))
        print(_line(results[-1]), flush=True)
    for unit in ("cpu", "wall"):
        behind = {found["name"]: who for found in results if (who := ahead(found, unit))}
        count = f"{len(behind)} of {len(results)}"
        print(f"\na peer is ahead by more than 10 % in {unit} time: {count}")
        for name, who in sorted(behind.items(), key=lambda item: -max(item[1].values())):
            print(f"  {name:<52} " + ", ".join(f"{one} {r:.2f}" for one, r in who.items()))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    return 1 if any(found["wrong"] for found in results) else 0


if __name__ == "__main__":
    sys.exit(main())
