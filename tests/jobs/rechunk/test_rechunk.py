"""Laying arrays out anew: every value, every scheduler, within the memory that was promised."""

from __future__ import annotations

import gc
import os
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import uuid4

import dask
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import zarr_dask as zd
from tests.support.process_memory import status
from zarr_dask.errors import (
    ChunkMissingError,
    CorruptObjectError,
    GridError,
    MemoryBudgetError,
    NodeExistsError,
    NodeNotFoundError,
    SourceIsTargetError,
    StoreError,
)
from zarr_dask.jobs.engine.plan import parse_bytes
from zarr_dask.stores import HookStore, LocalStore, MemoryStore, Recording
from zarr_dask.stores.wrapper import StoreWrapper

MB = 1_000_000
BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
CRC = {"name": "crc32c"}
NESTED = {
    "name": "sharding_indexed",
    "configuration": {
        "chunk_shape": [4, 6],
        "codecs": [
            {
                "name": "sharding_indexed",
                "configuration": {
                    "chunk_shape": [2, 3],
                    "codecs": [BYTES, {"name": "gzip", "configuration": {"level": 1}}],
                    "index_codecs": [BYTES, CRC],
                },
            }
        ],
        "index_codecs": [BYTES, CRC],
    },
}
SOURCES = {
    "v3": {"chunks": (5, 7)},
    "v3 F": {"chunks": (5, 7), "order": "F"},
    "shards": {"chunks": (2, 3), "shards": (8, 9)},
    "nested shards": {"chunks": (8, 12), "codecs": [NESTED]},
    "uncompressed, big-endian": {
        "chunks": (5, 7),
        "codecs": [{"name": "bytes", "configuration": {"endian": "big"}}],
    },
    "keys of v2": {
        "chunks": (5, 7),
        "chunk_key_encoding": {"name": "v2", "separator": "."},
    },
    "v2": {"chunks": (5, 7), "format": "v2"},
    "v2 F with filters": {
        "chunks": (5, 7),
        "format": "v2",
        "order": "F",
        "codecs": [{"id": "delta", "dtype": "<i4"}, {"id": "zlib", "level": 1}],
    },
}
TARGETS = {
    "chunks": {"chunks": (4, 4)},
    "one chunk": {"chunks": -1},
    "rows": {"chunks": (1, -1)},
    "shards": {"chunks": (3, 2), "shards": (6, 8)},
    "shards alone": {"shards": (10, 8)},
    "one shard": {"chunks": (5, 7), "shards": -1},
}
VALUES = np.arange(1, 211, dtype="int32").reshape(14, 15)


@pytest.fixture(autouse=True)
def one_thread():
    with dask.config.set(scheduler="sync"):
        yield


def made(store=None, values=VALUES, **options) -> zd.Array:
    store = MemoryStore() if store is None else store
    options = {"dtype": values.dtype, **options}
    array = zd.create_array(store, shape=values.shape, **options)
    array[...] = values
    return array


def files_below(place: Path) -> set[str]:
    return {str(p.relative_to(place)) for p in place.rglob("*")}


# --- values and metadata ------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", SOURCES)
def test_every_layout_into_every_other(source, target):
    old = made(**SOURCES[source])
    store = MemoryStore()
    if old.format == "v2" and "shards" in TARGETS[target]:
        with pytest.raises(zd.errors.MetadataError, match="shards"):
            zd.rechunk(old, store, **TARGETS[target])
        assert not store.values
        return
    plan = zd.plan_rechunk(old, store, **TARGETS[target])
    assert not store.values
    report = plan.run()
    new = zd.open_array(store)
    np.testing.assert_array_equal(new[...], VALUES)
    assert new.format == old.format
    assert (new.chunks, new.shards) == (plan.target.chunks, plan.target.shards)
    assert report.nbytes == VALUES.nbytes
    assert report.stored == new.nbytes_stored()
    assert report.objects == new.meta.grid.ncells
    assert report.tasks == plan.tasks
    assert "14" in str(plan)
    assert "stored object" in str(report)


@given(st.data())
def test_any_grid_into_any_other(data):
    shape = data.draw(st.lists(st.integers(0, 13), min_size=0, max_size=3).map(tuple))
    values = np.arange(np.prod(shape), dtype="int16").reshape(shape)

    def grid() -> dict:
        chunks = tuple(data.draw(st.integers(1, n + 2)) for n in shape)
        if data.draw(st.booleans(), label="sharded"):
            factors = tuple(data.draw(st.integers(1, 3)) for _ in shape)
            return {
                "chunks": chunks,
                "shards": tuple(a * b for a, b in zip(chunks, factors, strict=True)),
            }
        return {"chunks": chunks}

    old = made(values=values, **grid())
    store = MemoryStore()
    wanted = grid()
    with dask.config.set(scheduler="sync"):
        zd.rechunk(old, store, max_mem="8MB", **wanted)
    new = zd.open_array(store)
    np.testing.assert_array_equal(new[...], values)
    assert new.chunks == wanted["chunks"]
    assert new.shards == wanted.get("shards")


@pytest.mark.parametrize("version", ["v2", "v3"])
def test_what_is_no_grid_is_kept(version):
    values = VALUES.astype("f8")
    values[3:6] = np.nan
    codecs = [{"id": "zlib", "level": 3}] if version == "v2" else [BYTES, "zstd", CRC]
    old = made(
        values=values,
        chunks=(5, 7),
        format=version,
        codecs=codecs,
        fill_value=np.nan,
        dimension_names=("time", "x"),
        attributes={"units": "m", "nested": {"a": [1, None]}},
        chunk_key_encoding={"name": "v2", "separator": "/"},
    )
    store = MemoryStore()
    zd.rechunk(old, store, chunks=(2, 15))
    new = zd.open_array(store)
    np.testing.assert_array_equal(new[...], values)
    assert np.isnan(new.fill_value)
    assert new.codecs == old.codecs
    assert new.attributes == old.attributes
    assert new.dimension_names == ("time", "x")
    assert new.meta.chunk_key_encoding == old.meta.chunk_key_encoding
    assert new.dtype == old.dtype
    zd.rechunk(new, MemoryStore(), chunks=old.chunks)


def test_members_of_others_are_kept():
    store = MemoryStore()
    made(store, chunks=(5, 7))
    text = store.values["zarr.json"].decode()
    extra = '"ours": {"must_understand": false, "a": 1}'
    store.set("zarr.json", [text.replace("{", f"{{{extra},", 1).encode()])
    target = MemoryStore()
    zd.rechunk(store, target, chunks=(7, 5))
    assert zd.open_array(target).meta.extra == {"ours": {"must_understand": False, "a": 1}}


def test_fill_values_stay_unwritten():
    values = np.zeros((14, 15), "int32")
    values[13, 14] = 1
    store = MemoryStore()
    zd.rechunk(made(values=values, chunks=(5, 7)), store, chunks=(2, 5))
    assert set(store.values) == {"zarr.json", "c/6/2"}
    np.testing.assert_array_equal(zd.open_array(store)[...], values)


@pytest.mark.parametrize(
    ("shape", "chunks"), [((), ()), ((0,), (3,)), ((3, 0), (2, 2)), ((0, 0), -1)]
)
@pytest.mark.parametrize("version", ["v2", "v3"])
def test_few_elements(shape, chunks, version):
    values = np.full(shape, 7.5)
    store = MemoryStore()
    zd.rechunk(made(values=values, chunks=1, format=version), store, chunks=chunks)
    np.testing.assert_array_equal(zd.open_array(store)[...], values)


# --- how grids are given ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("grids", "chunks", "shards"),
    [
        ({"chunks": 4}, (4, 4), None),
        ({"chunks": [4, 3]}, (4, 3), None),
        ({"chunks": (-1, 3)}, (14, 3), None),
        ({"chunks": {"time": -1}}, (14, 7), None),
        ({"chunks": {"x": 3, "time": 2}}, (2, 3), None),
        ({"chunks": {1: 3}}, (5, 3), None),
        ({"chunks": {}}, (5, 7), None),
        ({"chunks": {"time": 7}, "shards": {"time": 14, "x": -1}}, (7, 7), (14, 21)),
        ({"shards": {"time": 10}}, (5, 7), (10, 7)),
        ({"chunks": (np.int64(3), np.uint8(4))}, (3, 4), None),
        ({"chunks": 100}, (100, 100), None),
    ],
    ids=str,
)
def test_grids(grids, chunks, shards):
    old = made(chunks=(5, 7), dimension_names=("time", "x"))
    store = MemoryStore()
    zd.rechunk(old, store, **grids)
    new = zd.open_array(store)
    assert (new.chunks, new.shards) == (chunks, shards)
    np.testing.assert_array_equal(new[...], VALUES)


@pytest.mark.parametrize(
    ("grids", "says"),
    [
        ({}, "nothing to change"),
        ({"chunks": (4,)}, "2 lengths"),
        ({"chunks": (4, 4, 4)}, "2 lengths"),
        ({"chunks": (0, 4)}, "at least 1"),
        ({"chunks": (-2, 4)}, "at least 1"),
        ({"chunks": (True, 4)}, "2 lengths"),
        ({"chunks": (2.5, 4)}, "2 lengths"),
        ({"chunks": {"depth": 4}}, "depth.*time"),
        ({"chunks": {2: 4}}, "2"),
        ({"chunks": "time"}, "a size such as"),
        ({"chunks": (4, 4), "shards": (6, 8)}, "do not divide"),
        ({"chunks": (4, 4), "shards": {"depth": 8}}, "depth"),
    ],
    ids=str,
)
def test_grids_that_are_none(grids, says):
    old = made(chunks=(5, 7), dimension_names=("time", "x"))
    store = MemoryStore()
    with pytest.raises(GridError, match=says):
        zd.rechunk(old, store, **grids)
    assert not store.values


# --- targets ------------------------------------------------------------------------------------


def test_a_place_in_a_hierarchy(tmp_path):
    old = made(chunks=(5, 7))
    zd.rechunk(old, tmp_path, path="a/b", chunks=(7, 5))
    np.testing.assert_array_equal(zd.open_group(tmp_path)["a/b"][...], VALUES)


def test_a_url_as_source(tmp_path):
    made(tmp_path / "old", chunks=(5, 7))
    zd.rechunk(tmp_path / "old", f"file://{tmp_path}/new", chunks=(7, 5))
    np.testing.assert_array_equal(zd.open_array(tmp_path / "new")[...], VALUES)
    with pytest.raises(NodeNotFoundError):
        zd.rechunk(tmp_path / "nothing", tmp_path / "newer", chunks=(7, 5))
    assert not (tmp_path / "newer").exists()


def test_what_is_there_is_replaced_only_when_asked():
    old, store = made(chunks=(5, 7)), MemoryStore()
    made(store, values=VALUES[:3] * 0 + 9, chunks=(1, 1))
    before = dict(store.values)
    with pytest.raises(NodeExistsError, match="overwrite"):
        zd.rechunk(old, store, chunks=(7, 5))
    plan = zd.plan_rechunk(old, store, chunks=(7, 5), overwrite=True)
    assert dict(store.values) == before
    plan.run()
    np.testing.assert_array_equal(zd.open_array(store)[...], VALUES)
    assert len(store.values) == 1 + 2 * 3


def test_a_target_that_appears_meanwhile_is_left_alone():
    old, store = made(chunks=(5, 7)), MemoryStore()
    plan = zd.plan_rechunk(old, store, chunks=(7, 5))
    made(store, values=VALUES[:3], chunks=(3, 5))
    before = dict(store.values)
    with pytest.raises(NodeExistsError):
        plan.run()
    assert dict(store.values) == before


@pytest.mark.parametrize("way", ["itself", "within", "above", "a link", "another path"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_the_source_is_no_target(tmp_path, way, overwrite):
    old = made(tmp_path / "a" / "b", chunks=(5, 7))
    (tmp_path / "link").symlink_to(tmp_path / "a")
    before = {
        p: (tmp_path / p).read_bytes() for p in files_below(tmp_path) if (tmp_path / p).is_file()
    }
    target, path = {
        "itself": (tmp_path / "a" / "b", ""),
        "within": (tmp_path / "a" / "b" / "c", ""),
        "above": (tmp_path / "a", ""),
        "a link": (tmp_path / "link" / "b", ""),
        "another path": (tmp_path, "a/b"),
    }[way]
    with pytest.raises(SourceIsTargetError):
        zd.rechunk(old, target, path=path, chunks=(7, 5), overwrite=overwrite)
    for name, content in before.items():
        assert (tmp_path / name).read_bytes() == content


ROOTS = [("", "g/a"), ("/g", "a"), ("/g/a", "")]
"""Ways to name one array in a bucket."""


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize(("place", "path"), [*ROOTS, ("/g", ""), ("/g/a/b", "")])
def test_the_source_is_no_target_from_another_root_of_a_bucket(root, place, path):
    bucket = f"memory://{uuid4().hex}"
    made(f"{bucket}/g/a", chunks=(5, 7))
    old = zd.open_array(f"{bucket}{root[0]}", root[1])
    with pytest.raises(SourceIsTargetError):
        zd.rechunk(old, f"{bucket}{place}", path=path, chunks=(7, 5), overwrite=True)
    np.testing.assert_array_equal(old[...], VALUES)
    zd.rechunk(old, f"{bucket}/g/a2", chunks=(7, 5))
    with pytest.raises(NodeExistsError, match="place of its own"):
        zd.plan_rechunk([old, old], [f"{bucket}/h", f"{bucket}/h/a"], path=["a", ""], chunks=3)


def test_a_neighbour_of_the_source_is_a_target(tmp_path):
    old = made(tmp_path / "a", chunks=(5, 7))
    zd.rechunk(old, tmp_path / "a2", chunks=(7, 5))
    np.testing.assert_array_equal(zd.open_array(tmp_path / "a2")[...], VALUES)


# --- in two stages ------------------------------------------------------------------------------

SERIES = np.arange(1024 * 48 * 40, dtype="f4").reshape(1024, 48, 40)
STAGED = {"chunks": (-1, 4, 4), "max_mem": 2_600_000}


@pytest.fixture(scope="module")
def slabs(tmp_path_factory) -> zd.Array:
    """One time step per chunk."""
    place = tmp_path_factory.mktemp("slabs") / "source"
    return made(place, values=SERIES, chunks=(1, 48, 40), codecs=[])


def staged_plan(source, target, **options):
    plan = zd.plan_rechunk(source, target, **{**STAGED, **options})
    assert len(plan.stages) == 2, str(plan)
    return plan


def assert_only_the_target_is_left(place: Path) -> None:
    assert [p.name for p in place.iterdir()] == ["target"]
    np.testing.assert_array_equal(zd.open_array(place / "target")[...], SERIES)
    assert zd.open_array(place / "target").chunks == (1024, 4, 4)
    names = {p.split("/")[0] for p in files_below(place / "target")}
    assert names == {"zarr.json", "c"}


def test_small_memory_takes_two_stages(slabs, tmp_path):
    plan = staged_plan(slabs, tmp_path / "target")
    assert plan.peak <= plan.max_mem
    text = str(plan)
    assert "in 2 stages" in text
    assert "stage 1:" in text
    assert "stage 2:" in text
    done = []
    report = plan.run(progress=done.append)
    assert_only_the_target_is_left(tmp_path)
    assert len(done) == report.tasks == plan.tasks
    assert {item.stages for item in done} == {2}
    for stage in (0, 1):
        assert sum(item.nbytes for item in done if item.stage == stage) == SERIES.nbytes
    assert report.objects == 12 * 10
    assert report.nbytes == SERIES.nbytes


def test_large_memory_takes_one_stage(slabs, tmp_path):
    plan = zd.plan_rechunk(slabs, tmp_path / "target", chunks=(-1, 4, 4), max_mem="100MB")
    assert len(plan.stages) == 1
    assert "directly" in str(plan)
    plan.run()
    assert_only_the_target_is_left(tmp_path)


def test_stages_through_a_given_place(slabs, tmp_path):
    temp = Recording(LocalStore(str(tmp_path / "temp")))
    plan = staged_plan(slabs, tmp_path / "target", temp=temp)
    plan.run()
    assert temp.per_key("set").total() == plan.stages[0].target.grid.ncells
    assert set(temp.per_key("set").values()) == {1}
    folders = {key.rpartition("/")[0] for key in temp.per_key("set")}
    assert len(folders) == 1  # each further one would have to be made and removed
    assert temp.per_key("get").total() == plan.stages[1].costs.reads
    assert list(temp.list()) == []
    assert {p for p in files_below(tmp_path / "temp") if "temporary" in p} == set()
    (tmp_path / "temp").rmdir()
    assert_only_the_target_is_left(tmp_path)


def test_stages_in_memory(slabs):
    store = MemoryStore()
    staged_plan(slabs, store).run()
    assert {key.split("/")[0] for key in store.values} == {"zarr.json", "c"}
    np.testing.assert_array_equal(zd.open_array(store)[...], SERIES)


INTO_SHARDS = {"shards": (1024, 8, 8)}


@pytest.mark.parametrize(
    ("layout", "grids"),
    [
        pytest.param({"format": "v2", "chunks": (1, 48, 40)}, {}, id="v2-chunks"),  # has no shards
        *(
            pytest.param(layout, grids, id=f"{name}-{into}")
            for name, layout in {
                "shards": {"chunks": (1, 12, 10), "shards": (1, 48, 40)},
                "F": {"chunks": (1, 48, 40), "order": "F"},
            }.items()
            for into, grids in {"shards": INTO_SHARDS, "chunks": {}}.items()
        ),
    ],
)
def test_stages_of_other_layouts(tmp_path, layout, grids):
    old = made(tmp_path / "old", values=SERIES, **layout)
    plan = zd.plan_rechunk(old, tmp_path / "target", **{**STAGED, "max_mem": "3.4MB", **grids})
    assert len(plan.stages) == 2
    plan.run()
    np.testing.assert_array_equal(zd.open_array(tmp_path / "target")[...], SERIES)
    assert zd.open_array(tmp_path / "target").shards == grids.get("shards")
    assert {p.name for p in tmp_path.iterdir()} == {"old", "target"}


def test_intermediate_data_that_vanish_are_no_values(slabs, tmp_path):
    temp = LocalStore(str(tmp_path / "temp"))
    plan = staged_plan(slabs, tmp_path / "target", temp=temp)
    gone = []

    def tidy_up(progress) -> None:
        if progress.stage == 1 and not gone:  # what somebody's clean-up job might do
            gone.extend(temp.list())
            for key in gone:
                temp.delete(key)

    with pytest.raises((ChunkMissingError, StoreError)):
        plan.run(progress=tidy_up)
    assert gone
    with pytest.raises(NodeNotFoundError):
        zd.open(tmp_path / "target")


# --- failures -----------------------------------------------------------------------------------


def failing(source: zd.Array, key: str, error: Exception) -> zd.Array:
    """The same array in a store that cannot read one key."""

    def before(method: str, wanted: str) -> None:
        if method == "get" and wanted == key:
            raise error

    return replace(source, store=HookStore(source.store, before))


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("key", ["c/0/0/0", "c/1000/0/0"])
def test_a_failed_read_leaves_nothing_that_looks_whole(slabs, tmp_path, scheduler, stages, key):
    source = failing(slabs, key, StoreError("the wire is cut"))
    options = STAGED if stages == 2 else {**STAGED, "max_mem": "100MB"}
    with dask.config.set(scheduler=scheduler, num_workers=2):
        if scheduler == "threads":
            options = {
                **options,
                "max_mem": 2 * parse_bytes(options["max_mem"]),
            }
        plan = zd.plan_rechunk(source, tmp_path / "target", **options)
        assert len(plan.stages) == stages
        with pytest.raises(StoreError, match="the wire is cut"):
            plan.run()
    with pytest.raises(NodeNotFoundError):
        zd.open(tmp_path / "target")
    assert_only_what_resuming_needs_is_left(tmp_path)
    zd.rechunk(slabs, tmp_path / "target", chunks=(-1, 4, 4))
    assert_only_the_target_is_left(tmp_path)


def assert_only_what_resuming_needs_is_left(folder: Path) -> None:
    """Stored objects, receipts and what lies between the stages, beside the target."""
    left = {p.name for p in folder.iterdir()}
    temporary = {name for name in left if name.startswith("target.zarr-dask-temporary-")}
    assert left - temporary <= {"target", "target.zarr-dask"}


def test_corrupt_data_are_named(tmp_path):
    old = made(tmp_path / "old", chunks=(5, 7), codecs=[BYTES, CRC])
    path = tmp_path / "old" / "c" / "1" / "2"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptObjectError, match=r"c/1/2") as caught:
        zd.rechunk(old, tmp_path / "target", chunks=(7, 5))
    assert caught.value.coords == ((1, 2),)
    with pytest.raises(NodeNotFoundError):
        zd.open(tmp_path / "target")


def test_a_failed_write_leaves_no_document():
    old, store = made(chunks=(5, 7)), MemoryStore()

    def before(method: str, key: str) -> None:
        if (method, key) == ("set", "c/1/2"):
            raise StoreError("the disk is full")

    with pytest.raises(StoreError, match="the disk is full"):
        zd.rechunk(old, HookStore(store, before), chunks=(7, 5))
    assert "zarr.json" not in store.values
    with pytest.raises(NodeNotFoundError):
        zd.open(store)


def test_a_failing_progress_stops_the_job(slabs, tmp_path):
    def stop(progress) -> None:
        raise KeyboardInterrupt

    plan = staged_plan(slabs, tmp_path / "target")
    with pytest.raises(KeyboardInterrupt):
        plan.run(progress=stop)
    assert {p.name for p in tmp_path.iterdir()} <= {"target", "target.zarr-dask"}
    with pytest.raises(NodeNotFoundError):
        zd.open(tmp_path / "target")


@dataclass(frozen=True)
class Slow(StoreWrapper):
    """A place for intermediate data where the first write takes until the job cleans up."""

    writing: threading.Event = field(default_factory=threading.Event, compare=False)
    cleaned: threading.Event = field(default_factory=threading.Event, compare=False)
    written: threading.Event = field(default_factory=threading.Event, compare=False)
    seconds: float = 2

    def set(self, key, buffers):
        if self.writing.is_set():
            self.store.set(key, buffers)
            return
        self.writing.set()
        try:
            # A job that waits for its tasks before it cleans up is waited for in vain.
            self.cleaned.wait(self.seconds)
            self.store.set(key, buffers)
        finally:
            self.written.set()

    def delete_prefix(self, prefix):
        self.store.delete_prefix(prefix)
        self.cleaned.set()


def test_a_task_that_is_still_writing_when_another_fails_is_waited_for(slabs, tmp_path):
    temp = Slow(MemoryStore())

    def before(method: str, key: str) -> None:
        if method == "get" and key == "c/1000/0/0":
            assert temp.writing.wait(20)
            raise StoreError("the wire is cut")

    source = replace(slabs, store=HookStore(slabs.store, before))
    with dask.config.set(scheduler="threads", num_workers=2):
        plan = staged_plan(source, tmp_path / "target", temp=temp, max_mem=2 * STAGED["max_mem"])
        with pytest.raises(StoreError, match="the wire is cut"):
            plan.run()
    assert temp.written.is_set()
    with dask.config.set(scheduler="sync"):
        replace(plan, source=slabs).run(resume=True)
    assert list(temp.list()) == []


def test_an_interrupted_job_is_cleaned_up_when_nobody_writes_any_more(slabs, tmp_path):
    temp = Slow(MemoryStore(), seconds=0.3)

    def interrupt(progress):
        assert temp.writing.is_set()
        raise KeyboardInterrupt

    with dask.config.set(scheduler="threads", num_workers=2):
        plan = staged_plan(slabs, tmp_path / "target", temp=temp, max_mem=2 * STAGED["max_mem"])
        with pytest.raises(KeyboardInterrupt):
            plan.run(progress=interrupt)
    assert temp.written.is_set()
    assert list(temp.list()) == []


# --- schedulers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("scheduler", ["sync", "threads", "processes"])
def test_schedulers_of_dask(slabs, tmp_path, scheduler, stages):
    memory = STAGED["max_mem"] if stages == 2 else 100 * MB
    with dask.config.set(scheduler=scheduler, num_workers=2):
        per_process = 2 if scheduler == "threads" else 1
        plan = zd.plan_rechunk(
            slabs, tmp_path / "target", chunks=(-1, 4, 4), max_mem=memory * per_process
        )
        assert plan.threads_per_process == per_process
        assert plan.threads == (1 if scheduler == "sync" else 2)
        assert len(plan.stages) == stages
        plan.run()
    assert_only_the_target_is_left(tmp_path)


@pytest.mark.parametrize("stages", [1, 2])
def test_on_a_cluster(slabs, tmp_path, client, stages):
    memory = STAGED["max_mem"] if stages == 2 else 100 * MB
    plan = zd.plan_rechunk(slabs, tmp_path / "target", chunks=(-1, 4, 4), max_mem=memory)
    assert (plan.threads, plan.threads_per_process) == (2, 1)
    assert len(plan.stages) == stages
    done = []
    plan.run(progress=done.append)
    assert len(done) == plan.tasks
    assert_only_the_target_is_left(tmp_path)


def test_a_client_that_is_given(slabs, tmp_path, cluster):
    from distributed import Client

    with Client(cluster, set_as_default=False) as client:
        plan = zd.plan_rechunk(slabs, tmp_path / "target", chunks=(-1, 4, 4), client=client)
        limit = min(w["memory_limit"] for w in client.scheduler_info()["workers"].values())
        assert plan.max_mem <= limit
        assert plan.threads_per_process == 1
        plan.run(client)
    assert_only_the_target_is_left(tmp_path)


def test_a_failed_read_on_a_cluster(slabs, tmp_path, client):
    (tmp_path / "old").mkdir()
    made(tmp_path / "old", values=SERIES, chunks=(1, 48, 40), codecs=[BYTES, CRC])
    (tmp_path / "old" / "c" / "700" / "0" / "0").write_bytes(b"damaged")
    (tmp_path / "job").mkdir()
    plan = staged_plan(tmp_path / "old", tmp_path / "job" / "target")
    with pytest.raises(CorruptObjectError, match="c/700/0/0") as caught:
        plan.run()
    assert caught.value.coords == ((700, 0, 0),)
    assert caught.value.key == "c/700/0/0"
    assert_only_what_resuming_needs_is_left(tmp_path / "job")
    with pytest.raises(NodeNotFoundError):
        zd.open(tmp_path / "job" / "target")


def test_many_tasks_on_a_cluster(tmp_path, client):
    """More tasks than the scheduler is told of at a time."""
    old = made(tmp_path / "old", chunks=(14, 15))
    layout = zd.plan_rechunk(old, tmp_path / "new", chunks=(1, 1)).stages[0]
    plan = zd.plan_rechunk(old, tmp_path / "new", chunks=(1, 1))
    plan = replace(plan, stages=(replace(layout, box=(1, 1)),))
    assert plan.tasks == 210
    assert plan.run().objects == 210
    np.testing.assert_array_equal(zd.open_array(tmp_path / "new")[...], VALUES)


# --- memory -------------------------------------------------------------------------------------


def idle_bytes(small: zd.Array, target: Path) -> int:
    """Resident bytes of this process, and from now on its peak begins anew.

    Idle means: with all imported that a job needs, of which a worker may get no task before.
    """
    with dask.config.set(scheduler="sync"):
        zd.rechunk(small, f"{target}-{os.getpid()}", chunks=(7, 5), max_mem="40MB")
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    return status("VmRSS")


BIG = (128, 512, 512)


@pytest.fixture(scope="module")
def big(tmp_path_factory) -> dict[str, zd.Array]:
    """128 MB that do not compress, in slabs and in shards."""
    place = tmp_path_factory.mktemp("big")
    slabs = {"chunks": (4, 512, 512)}
    shards = {"chunks": (32, 32, 32), "shards": (128, 128, 128)}
    arrays = {
        name: zd.create_array(place / name, shape=BIG, dtype="f4", codecs=["zstd"], **grid)
        for name, grid in (("slabs", slabs), ("shards", shards))
    }
    values = np.random.default_rng(3).random(BIG, "f4")
    for array in arrays.values():
        array[...] = values
    return arrays


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="measured on Linux")
@pytest.mark.parametrize(
    ("source", "grids", "memory", "stages"),
    [
        pytest.param("slabs", {"chunks": (128, 32, 32)}, 40 * MB, {1, 2}, marks=pytest.mark.slow),
        ("slabs", {"chunks": (128, 32, 32)}, 16 * MB, {2}),
        ("slabs", {"chunks": (16, 32, 32), "shards": (128, 128, 128)}, 40 * MB, {1, 2}),
        pytest.param("slabs", {"chunks": (100, 50, 200)}, 40 * MB, {1, 2}, marks=pytest.mark.slow),
        pytest.param("shards", {"chunks": (4, 512, 512)}, 40 * MB, {1, 2}, marks=pytest.mark.slow),
    ],
    ids=["columns", "columns in two stages", "shards", "padded", "from shards"],
)
def test_workers_keep_within_their_memory(big, tmp_path, client, source, grids, memory, stages):
    small = made(values=VALUES, store=tmp_path / "small", chunks=(5, 7), codecs=["zstd"])
    plan = zd.plan_rechunk(big[source], tmp_path / "target", max_mem=memory, **grids)
    assert len(plan.stages) in stages
    assert plan.peak <= memory
    idle = client.run(idle_bytes, small, tmp_path / "warm")
    plan.run()
    peak = client.run(status, "VmHWM")
    above = {worker: peak[worker] - idle[worker] for worker in idle}
    assert max(above.values()) <= memory, f"{above} with {plan}"
    target = zd.open_array(tmp_path / "target")
    for start in range(0, 512, 128):
        region = np.s_[:, start : start + 128]
        assert (target[region] == big[source][region]).all()


@pytest.mark.parametrize(
    "max_mem", [1000, "1kB", "1.2MB"], ids=["bytes", "text", "a little too small"]
)
def test_too_little_memory(slabs, tmp_path, max_mem):
    with pytest.raises(MemoryBudgetError, match=r"\(1024, 24, 40\)") as caught:
        zd.rechunk(
            slabs, tmp_path / "target", chunks=(-1, 4, 4), shards=(1024, 24, 40), max_mem=max_mem
        )
    assert "max_mem" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_shard_within_gzip_is_read_whole():
    """The plan must count all of an object that cannot be read in part."""
    sharding = {
        "name": "sharding_indexed",
        "configuration": {
            "chunk_shape": [64, 64],
            "codecs": [BYTES],
            "index_codecs": [BYTES, CRC],
        },
    }
    values = np.arange(1024 * 1024, dtype="f8").reshape(1024, 1024)
    old = made(values=values, chunks=(1024, 1024), codecs=[sharding, "gzip"])
    with pytest.raises(MemoryBudgetError):
        zd.plan_rechunk(old, MemoryStore(), chunks=(64, 64), max_mem="4MB")
    plan = zd.plan_rechunk(old, MemoryStore(), chunks=(64, 64), max_mem="64MB")
    assert plan.peak > values.nbytes


def test_a_plan_can_be_drawn(slabs, tmp_path):
    from matplotlib import pyplot as plt
    from matplotlib.figure import Figure

    figure = zd.plan_rechunk(slabs, tmp_path / "target", **STAGED).plot()
    assert isinstance(figure, Figure)
    figure.savefig(tmp_path / "plan.png")
    plt.close(figure)
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
