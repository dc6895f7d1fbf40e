"""How many bytes a plan expects to be stored, from a sample; and what lies between its stages."""

from __future__ import annotations

import json
from dataclasses import replace

import dask
import numpy as np
import pytest
import tensorstore as ts

import zarr_dask as zd
from zarr_dask.codecs.base import CodecMemory
from zarr_dask.errors import PlanError
from zarr_dask.jobs.engine.predict import CostModel
from zarr_dask.jobs.rechunk.compression_sample import CompressionRatios, ratios
from zarr_dask.stores import MemoryStore, Recording

SHAPE = (512, 32, 32)
RNG = np.random.default_rng(3)
VALUES = {
    "noise": RNG.random(SHAPE, "f4") + 1,
    "smooth": np.broadcast_to(np.arange(1, 513, dtype="f4")[:, None, None], SHAPE),
}
FAR = CostModel(write=60e6, read=90e6)
NEAR = CostModel(write=1e12, read=1e12)


@pytest.fixture(autouse=True)
def one_thread():
    with dask.config.set(scheduler="sync"):
        yield


def made(store, values, **options) -> zd.Array:
    options = {"chunks": (1, 32, 32), **options}
    array = zd.create_array(store, shape=values.shape, dtype=values.dtype, **options)
    array[...] = values
    return array


@pytest.mark.parametrize("codecs", [None, ["gzip"], []], ids=str)
@pytest.mark.parametrize("kind", VALUES)
def test_stored_bytes_are_about_those_that_were_expected(tmp_path, kind, codecs):
    level = {"name": "gzip", "configuration": {"level": 1}}
    codecs = [level if one == "gzip" else one for one in codecs] if codecs else codecs
    old = made(tmp_path / "a", VALUES[kind], chunks=(8, 32, 32), codecs=codecs)
    report = zd.rechunk(old, tmp_path / "b", chunks=(64, 16, 16), max_mem="40MB")
    (stage,) = report.stages
    assert stage.actual.read == pytest.approx(stage.predicted.read, rel=0.1)
    some = stage.predicted.written / 50
    assert stage.actual.stored == pytest.approx(stage.predicted.stored, rel=0.5, abs=some)


def test_other_codecs_are_tried_on_a_chunk(tmp_path):
    old = made(tmp_path / "a", VALUES["smooth"], chunks=(8, 32, 32), codecs=[])
    report = zd.rechunk(old, tmp_path / "b", chunks=(64, 16, 16), max_mem="40MB", dtype="f8",
                        codecs=["crc32c", {"name": "blosc", "configuration": {
                            "cname": "zstd", "clevel": 3, "shuffle": "shuffle", "typesize": 8,
                            "blocksize": 0}}])  # fmt: skip
    (stage,) = report.stages
    assert stage.predicted.read == stage.actual.read
    assert stage.predicted.stored < stage.predicted.written / 5
    assert stage.actual.stored < stage.actual.written / 5


def test_a_sample_is_small():
    store = Recording(MemoryStore())
    old = made(store, VALUES["noise"])
    store.clear()
    found = ratios(old, old.meta.grid.everything, old)
    assert store.per_key("size").total() <= 8
    assert store.per_key("get").total() <= 1
    assert found.source == pytest.approx(1.0, abs=0.3)


def test_what_is_copied_as_soon_as_sampled_is_not_read_for_it():
    """A group of thousands of small arrays would be read twice."""
    store = Recording(MemoryStore())
    old = made(store, VALUES["noise"][:8])
    store.clear()
    assert zd.plan_rechunk(old, {}, chunks=(8, 16, 16), codecs=["zstd"]).tasks == 1
    assert not store.per_key("get")


def test_where_nothing_is_stored_nothing_is_expected(tmp_path):
    old = zd.create_array(tmp_path / "a", shape=SHAPE, dtype="f4", chunks=(1, 32, 32))
    plan = zd.plan_rechunk(old, tmp_path / "b", chunks=(512, 8, 8), max_mem="40MB")
    assert plan.costs.read == plan.costs.stored == 0
    empty = zd.create_array(tmp_path / "e", shape=(0, 4), dtype="f4", chunks=(1, 4))
    assert ratios(empty, empty.meta.grid.everything, empty) == CompressionRatios()


@pytest.mark.parametrize("typesize", [4, 3])
def test_blosc_frames_whose_blocks_cannot_be_told_apart_are_found(tmp_path, typesize):
    """A task that must decode whole chunks would have to wait for those of other threads."""
    values = np.broadcast_to(np.arange(512, dtype="f4")[:, None, None], (512, 64, 64))
    blosc = {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "blocksize": 0}
    codec = {"name": "blosc", "configuration": blosc | {"typesize": typesize}}
    old = zd.create_array(tmp_path / "a", shape=values.shape, dtype="f4", chunks=values.shape,
                          codecs=[codec])  # fmt: skip
    there = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(tmp_path / "a")}}
    ts.open(there).result().write(values).result()  # its blosc takes elements of any size
    document = tmp_path / "a" / "zarr.json"
    document.write_text(document.read_text().replace('"typesize": 3', '"typesize": 4'))

    old, in_blocks = zd.open_array(tmp_path / "a"), typesize == 4
    assert ratios(old, old.meta.grid.everything, old).in_blocks == in_blocks
    plan = zd.plan_rechunk(old, tmp_path / "b", chunks=(16, 64, 64), max_mem="25MB")
    assert bool(plan.stages[0].source.partial_decode_nbytes) == in_blocks
    assert zd.load_plan(plan.to_json()).stages == plan.stages
    plan.run()
    np.testing.assert_array_equal(zd.open_array(tmp_path / "b")[...], values)


def test_damaged_chunks_do_not_keep_anybody_from_planning(tmp_path):
    old = made(tmp_path / "a", VALUES["noise"], chunks=(512, 32, 32))
    (tmp_path / "a" / "c" / "0" / "0" / "0").write_bytes(b"damaged")
    assert zd.plan_rechunk(old, tmp_path / "b", chunks=(8, 8, 8), max_mem="40MB").tasks


# --- between stages -----------------------------------------------------------------------------


def staged(old, target, kind, model, **options):
    options = {"chunks": (-1, 4, 4), "max_mem": "1.8MB", "model": model, **options}
    plan = zd.plan_rechunk(old, target, **options)
    way = next(way for way in plan.candidates if len(way.stages) == 2)
    return replace(plan, stages=way.stages)


@pytest.mark.parametrize(
    ("kind", "model", "compressed"),
    [("smooth", FAR, True), ("smooth", NEAR, False), ("noise", NEAR, False)],
)
def test_what_lies_between_is_compressed_where_that_is_cheaper(tmp_path, kind, model, compressed):
    old = made(tmp_path / "a", VALUES[kind])
    temp = Recording(MemoryStore())
    plan = staged(old, tmp_path / "b", kind, model, temp=temp)
    assert plan.stages[0].target.compressed == compressed
    report = plan.run()
    first, _ = report.stages
    assert (first.actual.stored < first.actual.written) == compressed
    np.testing.assert_array_equal(zd.open_array(tmp_path / "b")[...], VALUES[kind])
    assert not temp.store.values


def test_a_plan_in_a_file_knows_what_lies_between(tmp_path):
    old = made(tmp_path / "a", VALUES["smooth"])
    plan = staged(old, tmp_path / "b", "smooth", FAR)
    text = plan.to_json()
    loaded = zd.load_plan(text)
    assert loaded.stages == plan.stages
    loaded.run()
    np.testing.assert_array_equal(zd.open_array(tmp_path / "b")[...], VALUES["smooth"])
    for ratio in (-1.0, float("nan"), "many"):
        document = {**json.loads(text), "ratios": [ratio, 1.0, 1.0]}
        with pytest.raises(PlanError, match="missing or wrong"):
            zd.load_plan(json.dumps(document))


def test_what_was_stored_otherwise_between_is_made_again(tmp_path):
    """A run that goes on with another plan takes no compressed objects for plain ones."""
    old = made(tmp_path / "a", VALUES["smooth"])
    plan = staged(old, tmp_path / "b", "smooth", FAR)

    class StopError(Exception):
        pass

    def stop(step) -> None:
        if step.stage == 1:
            raise StopError

    with pytest.raises(StopError):
        plan.run(progress=stop)
    plain = replace(plan.stages[0].target, compressed=False, memory=CodecMemory(), ratio=1.0)
    stages = (
        replace(plan.stages[0], target=plain),
        replace(plan.stages[1], source=plain),
    )
    replace(plan, stages=stages).run(resume=True)
    np.testing.assert_array_equal(zd.open_array(tmp_path / "b")[...], VALUES["smooth"])
