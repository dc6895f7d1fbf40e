"""Parallel writes lose nothing, with writers that are made to overlap.

Two writers are held together right before they store their objects, so that a write with two
writers for one object would lose the values of one of them every time. That the trap works is
shown on ``dask.array.to_zarr``, which does lose them. Every write is watched: which keys are
being written is noted in files, so that threads and processes are watched alike.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from distributed import Client
from zarr.storage import WrapperStore

import zarr_dask as zd
from tests.support.two_writers import PATIENCE, PairsOfProcesses, is_data
from zarr_dask.errors import SourceIsTargetError
from zarr_dask.stores import HookStore, LocalStore
from zarr_dask.stores.wrapper import StoreWrapper

# The two writes that lose values in dask, and how many objects each stores.
GRIDS = {
    "shards": ({"shards": (200, 200)}, 4),
    "chunks": ({"chunks": (80, 80)}, 25),
}
THREADS = {"scheduler": "threads", "num_workers": 2}


def ones() -> da.Array:
    return da.ones((400, 400), chunks=50)


def numbers() -> da.Array:
    """Every value another one, so that one out of place is found."""
    return da.arange(1, 160_001, chunks=-1).reshape((400, 400)).rechunk(50)


# --- watching and holding writers -------------------------------------------------------------


@dataclass(frozen=True)
class Watched(StoreWrapper):
    """Notes in a folder which key is written when, and by how many at a time."""

    folder: str

    def set(self, key, buffers):
        busy = Path(self.folder, f"{quote(key, safe='')}.busy")
        try:
            busy.touch(exist_ok=False)
        except FileExistsError:
            self._note("clash", key)
        try:
            self.store.set(key, buffers)
        finally:
            busy.unlink(missing_ok=True)
            self._note("set", key)

    def _note(self, what: str, key: str) -> None:
        descriptor = os.open(f"{self.folder}/{what}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(descriptor, f"{quote(key)}\n".encode())
        finally:
            os.close(descriptor)

    def noted(self, what: str) -> Counter[str]:
        """How often each key was noted."""
        with suppress(FileNotFoundError):
            lines = Path(self.folder, what).read_text().splitlines()
            return Counter(key for key in map(unquote, lines) if is_data(key))
        return Counter()


class Pairs:
    """Holds each writer of data until there is a second one, in this process."""

    def __init__(self, pairs: int) -> None:
        self.tickets = iter(range(2 * pairs))
        self.barrier = threading.Barrier(2, timeout=PATIENCE)
        self.lock = threading.Lock()
        self.met = 0

    def __call__(self, method: str, key: str) -> None:
        if method != "set" or not is_data(key):
            return
        with self.lock:
            ticket = next(self.tickets, None)
        if ticket is not None and self.barrier.wait() == 0:
            with self.lock:
                self.met += 1


def watched(place: Path, hold) -> Watched:
    folder = place / "watch"
    folder.mkdir(parents=True)
    return Watched(HookStore(LocalStore(str(place / "data")), hold), str(folder))


def assert_one_writer_each(store: Watched, objects: int) -> None:
    """Each stored object was set once, and none by two at a time."""
    assert store.noted("clash") == {}
    written = store.noted("set")
    assert len(written) == objects
    assert set(written.values()) == {1}


# --- the two writes that lose values in dask ---------------------------------------------------


@pytest.mark.conformance("C136")
@pytest.mark.parametrize("runs", [20, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("grid", GRIDS)
def test_nothing_is_lost_on_threads(tmp_path, grid, runs):
    options, objects = GRIDS[grid]
    with dask.config.set(**THREADS):
        for run in range(runs):
            hold = Pairs(objects // 2)
            store = watched(tmp_path / str(run), hold)
            report = zd.to_zarr(ones(), store, **options)
            assert hold.met == objects // 2
            assert report.objects == objects
            assert_one_writer_each(store, objects)
            assert (zd.open_array(tmp_path / str(run) / "data").read(threads=1) == 1).all()


@pytest.fixture(scope="module")
def processes(make_cluster):
    """Two processes of two threads: a writer that waits leaves a thread to its process."""
    with Client(make_cluster(threads_per_worker=2)) as client:
        yield client


@pytest.mark.parametrize("runs", [4, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("grid", GRIDS)
def test_nothing_is_lost_on_processes(tmp_path, processes, grid, runs):
    options, objects = GRIDS[grid]
    pairs = []
    for run in range(runs):
        meeting = tmp_path / str(run) / "meeting"
        meeting.mkdir(parents=True)
        hold = PairsOfProcesses(str(meeting), objects // 2)
        store = watched(tmp_path / str(run), hold)
        report = zd.to_zarr(ones(), store, **options)
        assert len(hold.met) == objects // 2
        pairs += hold.met
        assert report.objects == objects
        assert_one_writer_each(store, objects)
        assert (zd.open_array(tmp_path / str(run) / "data").read(threads=1) == 1).all()
    assert any(len(pair) == 2 for pair in pairs), "no two processes have met"


@pytest.mark.parametrize(
    "workers", [pytest.param(2, marks=pytest.mark.slow), 3, pytest.param(8, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    ("blocks", "chunks", "shards"),
    [
        (50, None, (200, 200)),
        (50, (80, 80), None),
        ((37, 53), (10, 20), (40, 60)),
        (((1, 399), (399, 1)), (64, 64), None),
        ((200, 200), (30, 30), (90, 90)),
        (400, (7, 400), None),
    ],
    ids=str,
)
def test_other_grids(tmp_path, blocks, chunks, shards, workers):
    values = numbers().rechunk(blocks)
    objects = zd.plan_write(values, {}, chunks=chunks, shards=shards).objects
    tasks = zd.plan_write(values, {}, chunks=chunks, shards=shards).tasks
    hold = Pairs(min(tasks // 2, 2))
    store = watched(tmp_path, hold)
    with dask.config.set(scheduler="threads", num_workers=workers):
        zd.to_zarr(values, store, chunks=chunks, shards=shards)
    assert hold.met == min(tasks // 2, 2)
    assert_one_writer_each(store, objects)
    np.testing.assert_array_equal(zd.open_array(tmp_path / "data")[...], values)


# --- into arrays that exist --------------------------------------------------------------------


@pytest.mark.parametrize("shards", [(200, 200), None])
def test_an_existing_target_keeps_its_grid(tmp_path, shards):
    objects = 4 if shards else 25
    hold = Pairs(objects // 2)
    store = watched(tmp_path, hold)
    grid = {"chunks": (50, 50), "shards": shards} if shards else {"chunks": (80, 80)}
    target = zd.create_array(store, shape=(400, 400), dtype="int64", **grid)
    with dask.config.set(**THREADS):
        zd.to_zarr(numbers(), target)
    assert hold.met == objects // 2
    assert_one_writer_each(store, objects)
    assert zd.open_array(tmp_path / "data").shards == shards
    np.testing.assert_array_equal(zd.open_array(tmp_path / "data")[...], numbers())


@pytest.mark.conformance("C136")
def test_regions_side_by_side_in_one_compute(tmp_path):
    hold = Pairs(2)
    store = watched(tmp_path, hold)
    target = zd.create_array(
        store, shape=(400, 400), dtype="int64", chunks=(50, 50), shards=(200, 200)
    )
    values = numbers()
    rows = [slice(0, 200), slice(200, 400)]
    writes = [zd.to_zarr(values[r], target, region=(r,), compute=False) for r in rows]
    with dask.config.set(**THREADS):
        reports = dask.compute(*writes)
    assert [report.objects for report in reports] == [2, 2]
    assert hold.met == 2
    assert_one_writer_each(store, 4)
    np.testing.assert_array_equal(target[...], values)


@pytest.mark.parametrize("aligned", [True, False])
def test_the_same_values_into_two_regions_in_one_compute(tmp_path, aligned):
    target = zd.create_array(tmp_path, shape=(40, 10), dtype="f8", chunks=(10, 10))
    values = da.ones((10, 10), chunks=10 if aligned else 5)
    regions = [(slice(start, start + 10),) for start in (0, 10, 30)]
    dask.compute(*[zd.to_zarr(values, target, region=r, compute=False) for r in regions])
    want = np.ones((40, 10))
    want[20:30] = 0
    np.testing.assert_array_equal(target[...], want)


def test_the_same_values_into_two_arrays_in_one_compute(tmp_path):
    values = da.ones((10, 10), chunks=5)
    places = [tmp_path / name for name in "abc"]
    dask.compute(*[zd.to_zarr(values, place, compute=False) for place in places])
    for place in places:
        assert (zd.open_array(place)[...] == 1).all()


@pytest.mark.conformance("C136")
def test_a_region_that_cuts_objects_has_one_writer_for_each(tmp_path):
    hold = Pairs(4)
    store = watched(tmp_path, hold)
    target = zd.create_array(store, shape=(400, 400), dtype="int64", chunks=(80, 80))
    model = np.zeros((400, 400), "int64")
    region = (slice(30, 390), slice(77, 300))
    values = numbers()[region].rechunk((50, 31))
    with dask.config.set(**THREADS):
        zd.to_zarr(values, target, region=region, partial="own")
    model[region] = values.compute()
    assert hold.met == 4
    assert_one_writer_each(store, 5 * 4)
    np.testing.assert_array_equal(target[...], model)


# --- over the source ----------------------------------------------------------------------------


def listing(place: Path) -> dict[str, bytes]:
    return {str(p.relative_to(place)): p.read_bytes() for p in place.rglob("*") if p.is_file()}


DERIVED = {
    "computed from": lambda place: zd.from_zarr(place) + 1,
    "itself": zd.from_zarr,
    "a part": lambda place: da.concatenate([zd.from_zarr(place)[:10], da.ones((30, 40))]),
    "rechunked": lambda place: zd.from_zarr(place).rechunk((7, 40)),
    "reduced": lambda place: zd.from_zarr(place) - zd.from_zarr(place).mean(axis=0),
    "optimised": lambda place: dask.optimize(zd.from_zarr(place) + 1)[0],
    "opened": lambda place: zd.open_array(place).to_dask() * 2,
    "opened for writing": lambda place: zd.open_array(place, mode="r+").to_dask() * 2,
    "from_array": lambda place: da.from_array(zd.open_array(place)) + 1,
    "map_blocks": lambda place: zd.from_zarr(place).map_blocks(np.negative, dtype="f8"),
    "delayed": lambda place: da.from_delayed(
        dask.delayed(np.negative)(zd.from_zarr(place)), (40, 40), "f8"
    ),
    "read by zarr-python": lambda place: da.from_zarr(str(place)) + 1,
}


@pytest.mark.parametrize("derived", DERIVED)
def test_overwriting_the_source_is_refused(tmp_path, derived):
    place = tmp_path / "a"
    source = zd.create_array(place, shape=(40, 40), dtype="f8", chunks=(10, 20))
    source[...] = np.arange(1600.0).reshape(40, 40)
    before = listing(place)
    values = DERIVED[derived](place)
    for options in (
        {"mode": "w"},
        {"overwrite": True},
        {"mode": "r+"},
        {"mode": "w", "compute": False},
    ):
        with pytest.raises(SourceIsTargetError, match=r"source|reads") as caught:
            zd.to_zarr(values, place, **options)
        assert str(place) in str(caught.value)
        assert listing(place) == before


@pytest.mark.parametrize("way", ["the root", "a group above", "a link", "another spelling"])
def test_overwriting_what_holds_the_source_is_refused(tmp_path, way):
    place = tmp_path / "root"
    source = zd.create_array(place, "group/a", shape=(40,), dtype="f8", chunks=10)
    source[...] = np.arange(40.0)
    link = tmp_path / "link"
    link.symlink_to(place)
    before = listing(place)
    values = zd.from_zarr(place, "group/a") + 1
    url, component = {
        "the root": (place, None),
        "a group above": (place, "group"),
        "a link": (link, "group/a"),
        "another spelling": (place / "group", "a"),
    }[way]
    with pytest.raises(SourceIsTargetError):
        zd.to_zarr(values, url, component, mode="w")
    assert listing(place) == before


def test_what_is_in_memory_may_be_written_back(tmp_path):
    source = zd.create_array(tmp_path, shape=(40,), dtype="f8", chunks=10)
    source[...] = 1
    values = (zd.from_zarr(tmp_path) + 1).persist(scheduler="sync")
    zd.to_zarr(values, tmp_path, mode="w")
    assert (zd.open_array(tmp_path)[...] == 2).all()


def test_a_neighbour_of_the_source_may_be_written(tmp_path):
    zd.create_array(tmp_path, "a", shape=(40,), dtype="f8", chunks=10)[...] = 1
    zd.to_zarr(zd.from_zarr(tmp_path, "a") + 1, tmp_path, "ab")
    assert (zd.open_array(tmp_path, "ab")[...] == 2).all()


# --- the trap works: what dask and zarr-python do ----------------------------------------------


class Trap(WrapperStore):
    """Lets the first two writers of a key read it before either of them writes."""

    def __init__(self, store) -> None:
        super().__init__(store)
        self.waiting: dict[str, asyncio.Event] = {}
        self.met: set[str] = set()

    async def set(self, key, value, *args) -> None:
        if is_data(key) and key not in self.met:
            other = self.waiting.pop(key, None)
            if other is None:
                other = self.waiting[key] = asyncio.Event()
                await asyncio.wait_for(other.wait(), PATIENCE)
            else:
                self.met.add(key)
                other.set()
        await super().set(key, value, *args)


@pytest.mark.parametrize("grid", GRIDS)
def test_dask_and_zarr_python_lose_values_in_the_same_trap(tmp_path, grid):
    options, objects = GRIDS[grid]
    store = Trap(zarr.storage.LocalStore(tmp_path))
    # As many threads as blocks: a writer that waits keeps none of the others from running.
    with dask.config.set(scheduler="threads", num_workers=64):
        da.to_zarr(ones(), store, **options)
    assert len(store.met) == objects
    lost = np.count_nonzero(zarr.open_array(tmp_path)[...] != 1)
    assert lost >= 2500 * objects if grid == "shards" else lost >= 400 * objects
