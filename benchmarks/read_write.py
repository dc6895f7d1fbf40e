"""Reading and writing a 512 x 512 x 512 float32 field in 256^3 blocks, eight layouts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import tensorstore as ts
import zarr
from zarr.codecs import BloscCodec, ZstdCodec

import zarr_dask as zd
from benchmarks.counts import Counting
from benchmarks.fields import LAYOUTS, LayoutCase, field
from benchmarks.floor import read_blocks, write_blocks
from benchmarks.measure import Case, Contender
from zarr_dask.stores import LocalStore

__all__ = ["CASES"]

N, BLOCK = 512, 256
MORE = 12
"""Rounds of the floor and of this package alone, besides those with the peers."""


@contextmanager
def _case(kind: str, layout: LayoutCase, root: Path, threads: int) -> Iterator[Case]:
    values = field(N)
    title = f"{kind} {N}^3 float32, {layout.name}, {BLOCK}^3 blocks, {threads} threads"
    contenders = (_read if kind == "read" else _write)(root, layout, values, threads)
    yield Case(title, contenders, more=MORE, single=kind == "write", reach="1.10 x floor")


def _corners() -> list[tuple[slice, ...]]:
    steps = [slice(i, i + BLOCK) for i in range(0, N, BLOCK)]
    return [(a, b, c) for a in steps for b in steps for c in steps]


def _equal(blocks: object, values: np.ndarray) -> bool:
    return all(
        np.array_equal(block, values[at]) for block, at in zip(blocks, _corners(), strict=True)
    )


def _blocks_of(array: da.Array, threads: int) -> list[np.ndarray]:
    """The blocks of a dask array, computed on threads and left as they are."""
    with dask.config.set(scheduler="threads", num_workers=threads):
        kept = array.persist()
    graph = kept.__dask_graph__()
    return [graph[key] for key in dask.core.flatten(kept.__dask_keys__())]


def _tensorstore(
    path: Path, threads: int, *, fsync: bool = False, **options: object
) -> ts.TensorStore:
    limits = {"data_copy_concurrency": {"limit": threads}, "file_io_sync": fsync}
    context = ts.Context(limits)
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}, **options}
    return ts.open(spec, context=context).result()


def _dimensions(layout: LayoutCase) -> dict:
    shard = None if layout.shard is None else (layout.shard,) * 3
    return {"chunks": (layout.chunk,) * 3, "shards": shard}


# --- reading --------------------------------------------------------------------------------------


def _read(root: Path, layout: LayoutCase, values: np.ndarray, threads: int) -> list[Contender]:
    path = root / "field.zarr"
    made = zd.create_array(
        path, shape=values.shape, dtype="f4", codecs=layout.codecs, **_dimensions(layout)
    )
    made[...] = values
    tensorstore = _tensorstore(path, threads)

    def check(blocks: object) -> bool:
        return _equal(blocks, values)

    def peer() -> list[np.ndarray]:
        array = da.from_zarr(zarr.open_array(path, mode="r"), chunks=(BLOCK,) * 3)
        return _blocks_of(array, threads)

    def own() -> list[np.ndarray]:
        return _blocks_of(zd.from_zarr(path, chunks=BLOCK), threads)

    def counted() -> dict[str, int]:
        store = Counting(LocalStore(str(path)))
        array = zd.from_zarr(zd.open_array(store), chunks=BLOCK)
        store.clear()
        _blocks_of(array, threads)
        return {"tasks": array.npartitions, **store.counts}

    def through_dask() -> list[np.ndarray]:
        source = da.from_array(_Lazy(tensorstore), chunks=BLOCK, meta=np.empty((0,) * 3, "f4"))
        return _blocks_of(source, threads)

    def alone() -> list[np.ndarray]:
        futures = [tensorstore[at].read() for at in _corners()]
        return [future.result() for future in futures]

    return [
        Contender("floor", lambda: read_blocks(path, layout, N, BLOCK, threads), check),
        Contender("zarr_dask", own, check, count=counted),
        Contender("dask + zarr-python", peer, check),
        Contender("dask + tensorstore", through_dask, check),
        Contender("tensorstore alone", alone, check),
    ]


class _Lazy:
    """A tensorstore array as dask wants its sources."""

    def __init__(self, array: ts.TensorStore) -> None:
        self._array = array
        self.shape, self.ndim, self.dtype = array.shape, array.ndim, array.dtype.numpy_dtype

    def __getitem__(self, key: object) -> np.ndarray:
        return self._array[key].read().result()


# --- writing --------------------------------------------------------------------------------------


def _write(root: Path, layout: LayoutCase, values: np.ndarray, threads: int) -> list[Contender]:
    path = root / "written.zarr"
    source = da.from_array(values, chunks=BLOCK, name=False)
    dimensions = _dimensions(layout)
    peer_codec = (
        BloscCodec(cname="lz4", clevel=5, shuffle="shuffle", typesize=4)
        if layout.codec == "blosc"
        else ZstdCodec(level=1)
    )

    def clear() -> None:
        shutil.rmtree(path, ignore_errors=True)

    def check(_: object) -> bool:
        return bool(np.array_equal(_read_back(path, values), values))

    def floor() -> None:
        write_blocks(path, layout, values, BLOCK, threads)
        zd.create_array(
            root / "meta.zarr",
            shape=values.shape,
            dtype="f4",
            codecs=layout.codecs,
            overwrite=True,
            **dimensions,
        )
        shutil.copy(root / "meta.zarr" / "zarr.json", path / "zarr.json")

    def own(*, fsync: bool) -> None:
        target = LocalStore(str(path), fsync=fsync)
        with dask.config.set(scheduler="threads", num_workers=threads):
            zd.to_zarr(source, target, codecs=layout.codecs, **dimensions)

    def peer() -> None:
        target = zarr.create_array(
            path, shape=values.shape, dtype="f4", compressors=peer_codec, **dimensions
        )
        with dask.config.set(scheduler="threads", num_workers=threads):
            da.store(source, target, lock=False, compute=True)

    def counted() -> dict[str, int]:
        plan = zd.plan_write(source, root / "counted.zarr", codecs=layout.codecs, **dimensions)
        return {"tasks": plan.tasks, "objects": plan.objects}

    def alone(*, fsync: bool) -> None:
        document = _metadata(root, layout, values)
        made = _tensorstore(path, threads, fsync=fsync, create=True, metadata=document)
        futures = [made[at].write(values[at]) for at in _corners()]
        for future in futures:
            future.result()

    return [
        Contender("floor", floor, check, clear),
        Contender("zarr_dask", partial(own, fsync=False), check, clear, counted),
        Contender("dask + zarr-python", peer, check, clear),
        Contender("tensorstore alone", partial(alone, fsync=False), check, clear),
        Contender("zarr_dask, fsync", partial(own, fsync=True), check, clear),
        Contender("tensorstore alone, fsync", partial(alone, fsync=True), check, clear),
    ]


def _read_back(path: Path, values: np.ndarray) -> np.ndarray:
    """What a peer reads; the floor's and our own work is judged by somebody else."""
    read = zarr.open_array(path, mode="r")[...]
    return read if read.shape == values.shape else np.empty(0)


def _metadata(root: Path, layout: LayoutCase, values: np.ndarray) -> dict:
    made = zd.create_array(
        root / "meta.zarr",
        shape=values.shape,
        dtype="f4",
        codecs=layout.codecs,
        overwrite=True,
        **_dimensions(layout),
    )
    document = json.loads((root / "meta.zarr" / "zarr.json").read_text())
    assert made.shape == values.shape
    return {key: value for key, value in document.items() if key != "attributes"}


CASES = {
    f"{kind}-{layout.slug}": partial(_case, kind, layout)
    for layout in LAYOUTS
    for kind in ("read", "write")
}
