"""Graphs of a million blocks: made, sent, optimised, and one block computed on a cluster."""

from __future__ import annotations

import gc
import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path

import dask
import dask.array as da
import zarr
from distributed import Client, LocalCluster

import zarr_dask as zd
from benchmarks.measure import Case, Contender

__all__ = ["CASES"]

COUNT, CHUNK, FILL = 1000, 100, 7
BLOCK = (slice(500 * CHUNK, 501 * CHUNK), slice(300 * CHUNK, 301 * CHUNK))
ROWS, COLUMNS = 316, 317


def _ways(root: Path) -> dict[str, Callable[[], da.Array]]:
    """How to make the lazy array: of 1000 x 1000 chunks, none of them stored."""
    path = root / "million.zarr"
    shape = (COUNT * CHUNK,) * 2
    own = zd.create_array(path, shape=shape, dtype="f4", chunks=CHUNK, fill_value=FILL)
    theirs = zarr.open_array(path, mode="r")
    return {
        "zarr_dask": lambda: zd.from_zarr(own),
        "dask": lambda: da.from_zarr(theirs),
        "dask, inline_array": lambda: da.from_zarr(theirs, inline_array=True),
    }


def _is_million(array: object) -> bool:
    return isinstance(array, da.Array) and array.npartitions == COUNT**2


def _pickled(array: da.Array) -> int:
    return len(pickle.dumps(array.__dask_graph__()))


@contextmanager
def _construct(root: Path, threads: int) -> Iterator[Case]:
    contenders = [
        Contender(name, make, _is_million, count=lambda m=make: {"bytes of graph": _pickled(m())})
        for name, make in _ways(root).items()
    ]
    yield Case("a lazy array of 1000 x 1000 chunks, made", contenders, 20, reach="1 ms")


@contextmanager
def _size(root: Path, threads: int) -> Iterator[Case]:
    contenders = [
        Contender(name, make, _is_million, value=_pickled) for name, make in _ways(root).items()
    ]
    title = "the pickled graph of 1000 x 1000 chunks"
    yield Case(title, contenders, 1, unit="kB", scale=1e-3, reach="6 kB")


@contextmanager
def _optimise(root: Path, threads: int) -> Iterator[Case]:
    def check(found: object) -> bool:
        return bool((found[0].compute(scheduler="sync") == FILL).all())

    def tasks(array: da.Array) -> dict[str, int]:
        return {"tasks": len(dask.optimize(array[BLOCK])[0].__dask_graph__())}

    contenders = []
    for name, make in _ways(root).items():
        array = make()
        run = partial(lambda array: dask.optimize(array[BLOCK]), array)
        contenders.append(Contender(name, run, check, count=partial(tasks, array)))
    yield Case("one block of 1000 x 1000, selected and optimised", contenders, 10, reach="3 ms")


@contextmanager
def _one_block(root: Path, threads: int) -> Iterator[Case]:
    """From the call to the values in the client, on one worker process."""

    def check(values: object) -> bool:
        return values.shape == (CHUNK, CHUNK) and bool((values == FILL).all())

    with (
        LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            processes=True,
            dashboard_address="127.0.0.1:0",
            scheduler_kwargs={"dashboard": False},
        ) as cluster,
        Client(cluster) as client,
    ):
        nothing_read = partial(da.full, (COUNT * CHUNK,) * 2, FILL, chunks=CHUNK, dtype="f4")
        ways = {"floor": nothing_read, **_ways(root)}
        contenders = [
            Contender(name, partial(_compute, client, make(), count()), check, _quiet)
            for name, make in ways.items()
        ]
        yield Case(
            "one block of 1000 x 1000 on a local cluster, submit to result",
            contenders,
            20,
            single=True,
            reach="15 ms",
        )


def _quiet() -> None:
    """Let a client send what is left to be sent of the block before.

    It sends at most once in 10 ms, the scheduler once in 5 ms: a block that is asked for at once
    after another one waits for that. What dask's million tasks leave is collected before.
    """
    gc.collect()
    time.sleep(0.05)


def _compute(client: Client, array: da.Array, numbers: Iterator[int]) -> object:
    """Another block each time, which the scheduler cannot know yet."""
    start = next(numbers) * CHUNK
    return client.compute(array[start : start + CHUNK, :CHUNK]).result()


@contextmanager
def _write(root: Path, threads: int) -> Iterator[Case]:
    """What a client does to submit a write: the plan, the graph, and its bytes."""
    source = da.zeros((ROWS * 10, COLUMNS * 10), chunks=10, dtype="f4")

    def own() -> bytes:
        target = root / f"{time.monotonic_ns()}.zarr"
        return pickle.dumps(zd.to_zarr(source, target, compute=False).__dask_graph__())

    def peer() -> bytes:
        target = root / f"{time.monotonic_ns()}.zarr"
        return pickle.dumps(source.to_zarr(str(target), compute=False).__dask_graph__())

    def check(found: object) -> bool:
        return len(dict(pickle.loads(found))) >= ROWS * COLUMNS

    contenders = [
        Contender("zarr_dask", own, check, count=lambda: {"bytes of graph": len(own())}),
        Contender("dask", peer, check, count=lambda: {"bytes of graph": len(peer())}),
    ]
    yield Case(f"{ROWS} x {COLUMNS} aligned writing tasks, submitted", contenders, reach="10 ms")


CASES: dict[str, Callable] = {
    "graph-construct": _construct,
    "graph-size": _size,
    "graph-optimise": _optimise,
    "graph-one-block-on-a-cluster": _one_block,
    "graph-write": _write,
}
