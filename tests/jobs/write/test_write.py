"""``to_zarr``: what it takes and refuses, what it leaves behind, how big its graphs are."""

from __future__ import annotations

import json
import pickle
from functools import partial
from itertools import pairwise, product
from pathlib import Path

import dask
import dask.array as da
import numcodecs
import numpy as np
import pytest
import zarr
from dask.base import collections_to_expr
from hypothesis import given
from hypothesis import strategies as st
from zarr.core.chunk_key_encodings import DefaultChunkKeyEncoding, V2ChunkKeyEncoding

import zarr_dask as zd
from zarr_dask.errors import (
    DataTypeError,
    GridError,
    MetadataChangedError,
    MetadataError,
    NodeExistsError,
    NodeNotFoundError,
    PartialWriteError,
    ReadOnlyError,
    SelectionError,
    StoreError,
    UnknownDataTypeError,
)
from zarr_dask.stores import HookStore, MemoryStore, Recording

VALUES = np.arange(1, 241, dtype="int32").reshape(12, 20)


@pytest.fixture(autouse=True)
def one_thread():
    with dask.config.set(scheduler="sync"):
        yield


@pytest.fixture
def store():
    return MemoryStore()


def lazy(values=VALUES, chunks=(4, 5)) -> da.Array:
    return da.from_array(np.asarray(values), chunks=chunks)


def data_keys(store: MemoryStore) -> set[str]:
    return {key for key in store.list() if key.rsplit("/", 1)[-1][0] not in ".z"}


def assert_same(got, want) -> None:
    """Equal in shape, type and every bit."""
    got, want = np.asarray(got), np.asarray(want)
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    assert got.tobytes() == want.tobytes()


# --- modes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["a", "w", "w-"])
@pytest.mark.parametrize("component", [None, "a", "a/b/c"])
def test_every_mode_creates(store, mode, component):
    report = zd.to_zarr(lazy(), store, component, mode=mode)
    assert (report.objects, report.empty, report.nbytes) == (12, 0, VALUES.nbytes)
    assert report.stored == zd.open_array(store, component or "").nbytes_stored()
    assert "12 stored objects" in str(report)
    assert_same(zd.open_array(store, component or "")[...], VALUES)
    if component == "a/b/c":
        assert dict(zd.open_group(store).groups(recursive=True)).keys() == {"a", "a/b"}


@pytest.mark.parametrize("mode", ["a", "w-"])
@pytest.mark.parametrize("what", ["array", "group", "v2 array", "broken document"])
def test_what_is_there_is_not_replaced_unasked(store, mode, what):
    if what == "group":
        zd.create_group(store, "x")
    elif what == "broken document":
        store.set("x/zarr.json", [b"{"])
    else:
        zd.create_array(store, "x", shape=3, dtype="u1", format="v2" if "v2" in what else "v3")
    before = dict(store.values)
    with pytest.raises(NodeExistsError, match=r"overwrite=True") as caught:
        zd.to_zarr(lazy(), store, "x", mode=mode)
    assert f"{store.url}/x" in str(caught.value)
    assert dict(store.values) == before


@pytest.mark.parametrize(
    "options", [{"mode": "w"}, {"overwrite": True}, {"mode": "w-", "overwrite": True}]
)
@pytest.mark.parametrize("what", ["array", "group with arrays", "v2 array", "broken document"])
@pytest.mark.filterwarnings("ignore::zarr_dask.errors.MixedFormatsWarning")
def test_what_is_there_is_replaced_when_asked(store, options, what):
    zd.create_array(store, "neighbour", shape=3, dtype="u1")[...] = 1
    if what == "group with arrays":
        zd.create_array(store, "x/y", shape=3, dtype="u1")[...] = 1
    elif what == "broken document":
        store.set("x/zarr.json", [b"{"])
    else:
        old = zd.create_array(
            store, "x", shape=9, dtype="u1", chunks=1, format="v2" if "v2" in what else "v3"
        )
        old[...] = 1
    zd.to_zarr(lazy(), store, "x", **options)
    assert_same(zd.open_array(store, "x")[...], VALUES)
    assert set(store.list("x/")) == {"x/zarr.json", *data_keys_of(store, "x")}
    assert zd.open_array(store, "neighbour")[...].all()


def data_keys_of(store: MemoryStore, path: str) -> set[str]:
    array = zd.open_array(store, path)
    grid = array.meta.grid
    return {
        f"{path}/{array.meta.chunk_key_encoding.key(part.coords)}"
        for part in grid.parts(grid.everything)
    }


def test_r_plus_writes_into_what_is_there(store):
    zd.create_array(store, shape=VALUES.shape, dtype="int64", chunks=(6, 10), attributes={"a": 1})
    zd.to_zarr(lazy(), store, mode="r+")
    array = zd.open_array(store)
    assert_same(array[...], VALUES.astype("int64"))
    assert (array.chunks, array.attributes) == ((6, 10), {"a": 1})


def test_r_plus_needs_an_array(store):
    with pytest.raises(NodeNotFoundError):
        zd.to_zarr(lazy(), store, mode="r+")
    assert not store.values
    zd.create_group(store)
    with pytest.raises(zd.errors.NodeTypeError):
        zd.to_zarr(lazy(), store, mode="r+")


@pytest.mark.parametrize("mode", ["r", "x", "write", ""])
def test_other_modes_are_refused(store, mode):
    with pytest.raises(ValueError, match="mode"):
        zd.to_zarr(lazy(), store, mode=mode)
    assert not store.values


def test_r_plus_does_not_replace(store):
    zd.create_array(store, shape=VALUES.shape, dtype="int32", chunks=(6, 10))
    with pytest.raises((ValueError, TypeError), match="overwrite"):
        zd.to_zarr(lazy(), store, mode="r+", overwrite=True)


@pytest.mark.parametrize("how", [{"mode": "r+"}, {"append": 0}, {"region": np.s_[:6]}], ids=str)
@pytest.mark.parametrize(
    "said",
    [
        {"fill_value": 3},
        {"fill_value": None},
        {"fill_value": np.zeros((), "i4,f4")[()]},
        {"fill_value": np.array([0, 1])},
        {"format": "v2"},
        {"compressor": None},
    ],
    ids=str,
)
def test_what_an_array_that_exists_would_not_heed_is_refused(store, how, said):
    zd.to_zarr(lazy(), store)
    before = dict(store.values)
    values = lazy()[:6] if "region" in how else lazy()
    with pytest.raises(NodeExistsError, match=next(iter(said))):
        zd.to_zarr(values, store, **how, **said)
    assert dict(store.values) == before
    same = {"format": "v3", "zarr_format": 3}
    zd.to_zarr(values, store, **how, fill_value=0, **same, filters=None, partial="own")


@pytest.mark.parametrize("how", [{"mode": "r+"}, {"append": 0}, {"region": np.s_[:12]}], ids=str)
@pytest.mark.parametrize("said", [{"format": "v3"}, {"zarr_format": 3}], ids=str)
def test_an_array_of_v2_is_not_taken_for_one_of_v3(store, how, said):
    zd.to_zarr(lazy(), store, format="v2")
    before = dict(store.values)
    with pytest.raises(NodeExistsError, match="format"):
        zd.plan_write(lazy(), store, **how, **said)
    assert dict(store.values) == before
    zd.to_zarr(lazy(), store, **how, format="v2", zarr_format=2)


def test_two_formats_are_refused(store):
    zd.to_zarr(lazy(), store)
    before = dict(store.values)
    with pytest.raises(TypeError, match="zarr_format=3"):
        zd.to_zarr(lazy() + 1, store, mode="w", format="v2", zarr_format=3)
    assert dict(store.values) == before
    zd.to_zarr(lazy() + 1, store, mode="w", format="v2", zarr_format=2)
    assert zd.open_array(store).format == "v2"


def test_an_open_array_is_a_target(store):
    target = zd.create_array(store, "a", shape=VALUES.shape, dtype="int32", chunks=(6, 10))
    zd.to_zarr(lazy(), target)
    assert_same(target[...], VALUES)
    with pytest.raises(ReadOnlyError, match=r"r\+"):
        zd.to_zarr(lazy(), zd.open_array(store, "a"))


@pytest.mark.parametrize(
    "keywords", [{"chunks": (3, 3)}, {"shards": (4, 4)}, {"codecs": []}, {"order": "F"}]
)
def test_an_existing_array_keeps_its_own(store, keywords):
    target = zd.create_array(store, shape=VALUES.shape, dtype="int32", chunks=(6, 10))
    with pytest.raises(NodeExistsError, match=next(iter(keywords))):
        zd.to_zarr(lazy(), target, **keywords)
    assert data_keys(store) == set()


def test_nothing_is_created_inside_an_array(store):
    zd.create_array(store, "a", shape=3, dtype="u1")
    before = dict(store.values)
    with pytest.raises(NodeExistsError, match="inside the array"):
        zd.to_zarr(lazy(), store, "a/b")
    assert dict(store.values) == before


# --- what comes back --------------------------------------------------------------------------


def test_return_stored(store):
    x = zd.to_zarr(lazy(), store, shards=(6, 10), chunks=(3, 5), return_stored=True)
    assert isinstance(x, da.Array)
    assert x.chunks == ((6, 6), (10, 10))
    assert_same(x.compute(), VALUES)
    existing = zd.create_array({}, "b", shape=VALUES.shape, dtype="int32", chunks=(6, 10))
    assert_same(zd.to_zarr(lazy(), existing, return_stored=True).compute(), VALUES)


def test_compute_later(store):
    later = zd.to_zarr(lazy(), store, compute=False)
    assert data_keys(store) == set()
    with pytest.raises(NodeNotFoundError):
        zd.open(store)
    assert later.compute().objects == 12
    assert_same(zd.open_array(store)[...], VALUES)
    again = later.persist()
    assert again.compute().objects == 12


def test_compute_together(store):
    parts = [zd.to_zarr(lazy() + n, store, str(n), compute=False) for n in range(3)]
    reports = dask.compute(*parts, lazy().sum())
    assert reports[-1] == VALUES.sum()
    assert [report.objects for report in reports[:-1]] == [12, 12, 12]
    for n in range(3):
        assert_same(zd.open_array(store, str(n))[...], VALUES + n)


@pytest.mark.parametrize("scheduler", ["sync", "threads", "processes"])
def test_schedulers(tmp_path, scheduler):
    with dask.config.set(scheduler=scheduler, num_workers=2):
        zd.to_zarr(lazy(), tmp_path, shards=(6, 10), chunks=(3, 5))
    assert_same(zd.open_array(tmp_path)[...], VALUES)


def test_a_memory_store_is_refused_by_other_processes(store):
    with (
        dask.config.set(scheduler="processes", num_workers=1),
        pytest.raises(StoreError, match="another process"),
    ):
        zd.to_zarr(lazy(), store)
    assert not store.values


# --- grids ------------------------------------------------------------------------------------


def test_regular_blocks_are_stored_as_they_are(store):
    plan = zd.plan_write(lazy(), store)
    assert plan.target.chunks == (4, 5)
    assert not plan.regrouped
    assert (plan.tasks, plan.objects) == (12, 12)
    assert not store.values


def test_shards_without_chunks(store):
    zd.to_zarr(
        da.zeros((512, 512, 4), chunks=(512, 512, 4), dtype="f8") + 1, store, shards=(512, 512, 4)
    )
    array = zd.open_array(store)
    assert array.shards == (512, 512, 4)
    assert np.prod(array.chunks) * 8 <= 1 << 20
    assert all(s % c == 0 for s, c in zip(array.shards, array.chunks, strict=True))


@pytest.mark.parametrize(
    "blocks",
    [
        ((1, 2, 3, 6), (20,)),
        ((12,), (7, 7, 6)),
        ((5, 7), (13, 7)),
        ((4, 4, 3, 1), (1,) * 20),
        ((3, 0, 9), (20, 0)),
        ((0, 12), (0, 0, 20)),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "grid", [{}, {"chunks": (5, 6)}, {"chunks": (2, 3), "shards": (4, 9)}], ids=str
)
def test_irregular_blocks(store, blocks, grid):
    recording = Recording(store)
    values = lazy(chunks=blocks)
    plan = zd.plan_write(values, store, **grid)
    assert "12" in str(plan)
    report = zd.to_zarr(values, recording, **grid)
    assert_same(zd.open_array(store)[...], VALUES)
    assert set(recording.per_key("set").values()) == {1}
    assert report.objects == plan.objects == len(data_keys(store))


@pytest.mark.parametrize(
    ("version", "grid"),
    [
        *product(["v2", "v3"], [{}, {"chunks": ()}]),
        ("v3", {"chunks": (), "shards": ()}),
    ],
    ids=str,
)
def test_no_dimensions(store, grid, version):
    report = zd.to_zarr(da.from_array(np.array(7.5)), store, format=version, **grid)
    assert report.objects == 1
    assert_same(zd.open_array(store)[...], np.float64(7.5))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0, 2)])
@pytest.mark.parametrize("version", ["v2", "v3"])
def test_no_elements(store, shape, version):
    report = zd.to_zarr(da.zeros(shape, chunks=2), store, format=version)
    assert (report.objects, report.empty) == (0, 0)
    assert_same(zd.open_array(store)[...], np.zeros(shape))


def test_unknown_block_sizes_are_refused(store):
    x = lazy()
    with pytest.raises(GridError, match="compute_chunk_sizes"):
        zd.to_zarr(x[x > 3], store)
    assert not store.values
    zd.to_zarr(x[x > 3].compute_chunk_sizes(), store)
    assert_same(np.sort(zd.open_array(store)[...]), VALUES[VALUES > 3])


def test_only_arrays(store):
    for value in (None, {"a": VALUES}, object()):
        with pytest.raises(DataTypeError, match="dask array"):
            zd.to_zarr(value, store)
    assert not store.values


@given(st.data())
def test_any_blocks_into_any_grid(data):
    ndim = data.draw(st.integers(1, 3))
    shape = tuple(data.draw(st.integers(1, 12)) for _ in range(ndim))
    blocks = tuple(tuple(data.draw(cuts(n))) for n in shape)
    chunks = tuple(data.draw(st.integers(1, n + 1)) for n in shape)
    factors = tuple(data.draw(st.integers(1, 3)) for _ in shape)
    shards = tuple(a * b for a, b in zip(chunks, factors, strict=True))
    values = np.arange(1, np.prod(shape) + 1, dtype="int16").reshape(shape)
    recording = Recording(MemoryStore())
    sharded = data.draw(st.booleans())
    options = {"chunks": chunks, "shards": shards if sharded else None}
    with dask.config.set(scheduler="sync"):
        report = zd.to_zarr(lazy(values, blocks), recording, **options)
    assert_same(zd.open_array(recording.store)[...], values)
    assert set(recording.per_key("set").values()) == {1}
    assert report.objects == len(data_keys(recording.store))


@st.composite
def cuts(draw, length):
    """Lengths of blocks that make up a dimension."""
    borders = sorted({0, length, *draw(st.lists(st.integers(0, length), max_size=4))})
    return [b - a for a, b in pairwise(borders)]


# --- regions ----------------------------------------------------------------------------------


def ready(store, **options) -> zd.Array:
    options = {"chunks": (4, 5), **options}
    array = zd.create_array(store, shape=VALUES.shape, dtype="int32", **options)
    array[...] = -VALUES
    return array


WHOLE_REGIONS = [
    np.s_[0:4],
    np.s_[4:12, 5:20],
    np.s_[8:, 10:15],
    (slice(None), slice(-5, None)),
    np.s_[...],
    np.s_[:],
]
CUT_REGIONS = [np.s_[0:3], np.s_[1:4], np.s_[4:8, 3:20], np.s_[:, 19:], np.s_[5:6, 6:7]]


@pytest.mark.parametrize("region", WHOLE_REGIONS, ids=str)
@pytest.mark.parametrize("blocks", [(4, 5), (3, 7), -1], ids=str)
def test_regions_of_whole_objects(store, region, blocks):
    recording = Recording(store)
    ready(store)
    want = -VALUES
    want[region] = VALUES[region]
    report = zd.to_zarr(lazy(VALUES[region], blocks), recording, region=region)
    assert_same(zd.open_array(store)[...], want)
    assert recording.per_key("set").total() == report.objects
    assert set(recording.per_key("set")) <= data_keys(store)
    assert not set(recording.per_key("get")) & data_keys(store)


@pytest.mark.parametrize("region", CUT_REGIONS, ids=str)
@pytest.mark.parametrize(
    "grid", [{}, {"chunks": (2, 5), "shards": (4, 5)}, {"format": "v2"}], ids=str
)
def test_regions_that_cut_objects(store, region, grid):
    ready(store, **grid)
    before = dict(store.values)
    values = lazy(VALUES[region], 2)
    with pytest.raises(PartialWriteError, match="only in part") as caught:
        zd.to_zarr(values, store, region=region)
    assert "(4, 5)" in str(caught.value)
    assert 'partial="own"' in str(caught.value)
    assert dict(store.values) == before
    recording = Recording(store)
    zd.to_zarr(values, recording, region=region, partial="own")
    want = -VALUES
    want[region] = VALUES[region]
    assert_same(zd.open_array(store)[...], want)
    assert set(recording.per_key("set").values()) == {1}
    plan = zd.plan_write(values, store, region=region, partial="own")
    assert plan.partial
    assert "in part" in str(plan)


def test_whole_regions_at_the_edge(store):
    """The last object ends with the array."""
    array = zd.create_array(store, shape=(10, 10), dtype="int32", chunks=(4, 4))
    zd.to_zarr(lazy(VALUES[:2, :2]), array, region=np.s_[8:10, 8:10])
    assert_same(array[8:, 8:], VALUES[:2, :2])


@given(st.data())
def test_any_region(data):
    chunks = data.draw(st.tuples(st.integers(1, 13), st.integers(1, 21)))
    edge = lambda n: st.tuples(st.integers(0, n), st.integers(0, n)).map(sorted)  # noqa: E731
    region = tuple(slice(*data.draw(edge(n))) for n in VALUES.shape)
    block = data.draw(st.integers(1, 20))
    recording = Recording(MemoryStore())
    array = ready(recording, chunks=chunks)
    recording.clear()
    want = -VALUES
    want[region] = VALUES[region]
    with dask.config.set(scheduler="sync"):
        zd.to_zarr(lazy(VALUES[region], block), array, region=region, partial="own")
    assert set(recording.per_key("set").values()) <= {1}
    asked = recording.per_key("get")
    assert asked.pop("zarr.json", 0) <= 2  # whether it is still the array that was planned for
    assert set(asked.values()) <= {1}
    assert_same(array[...], want)


@pytest.mark.parametrize(
    ("region", "error"),
    [
        (np.s_[0:8], GridError),
        (np.s_[0:4, 0:5, 0:1], SelectionError),
        (np.s_[0:4:2], GridError),
        (np.s_[3::-1], SelectionError),
        (np.s_[0], SelectionError),
        ((None, np.s_[0:4]), SelectionError),
        ("rows", SelectionError),
    ],
    ids=str,
)
def test_regions_that_are_none(store, region, error):
    ready(store)
    before = dict(store.values)
    with pytest.raises(error):
        zd.to_zarr(lazy(VALUES[0:4]), store, region=region)
    assert dict(store.values) == before


def test_a_region_by_names(store):
    names = ("time", "x")
    array = zd.create_array(
        store, shape=VALUES.shape, dtype=VALUES.dtype, chunks=4, dimension_names=names
    )
    zd.to_zarr(lazy(VALUES[4:8, :4]), store, region={"time": slice(4, 8), 1: slice(0, 4)})
    want = np.zeros_like(VALUES)
    want[4:8, :4] = VALUES[4:8, :4]
    assert_same(array[...], want)
    zd.to_zarr(lazy(VALUES[3:4]), store, region={"time": 3}, partial="own")
    want[3] = VALUES[3]
    assert_same(array[...], want)
    for wrong, said in (({"y": slice(4)}, "names .'y'."), ({"x": 0, 1: 0}, "twice")):
        with pytest.raises(GridError, match=said):
            zd.to_zarr(lazy(VALUES), store, region=wrong)


@pytest.mark.parametrize(
    ("region", "said"),
    [
        (
            {"time": slice(100, 104)},
            "100:104 reaches beyond the 12 elements of the dimension 'time'",
        ),
        (np.s_[10:14, 0:9], "10:14 reaches beyond the 12 elements of the dimension 'time'. Make"),
        (np.s_[-14:-10], "-14:-10 reaches beyond the 12 elements of the dimension 'time'. Make"),
        (np.s_[0:4, 5:], None),
    ],
)
def test_a_region_beyond_the_array_is_said_to_be_so(store, region, said):
    """NumPy cuts it off, and says what is left as if it had been asked for."""
    zd.create_array(store, shape=(12, 9), dtype="f4", chunks=4, dimension_names=("time", "x"))
    before = dict(store.values)
    with pytest.raises(GridError, match=r"has shape \(4, 9\)") as raised:
        zd.to_zarr(lazy(np.ones((4, 9), "f4")), store, region=region, partial="own")
    assert ("beyond" in str(raised.value)) == (said is not None)
    assert said is None or said in str(raised.value)
    assert dict(store.values) == before


def test_a_region_that_takes_what_there_is_is_no_error(store):
    """As in NumPy: no value is lost."""
    array = zd.create_array(store, shape=(10,), dtype="f4", chunks=4)
    zd.to_zarr(lazy(np.ones(2, "f4"), 2), store, region=np.s_[8:12])
    assert_same(array[...], np.repeat(np.array([0, 1], "f4"), [8, 2]))


def test_a_region_needs_an_array(store):
    with pytest.raises(NodeNotFoundError):
        zd.to_zarr(lazy(), store, region=np.s_[0:12])
    assert not store.values


# --- data types -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "target"),
    [
        ("int32", "int16"),
        ("f8", "f4"),
        ("int64", "f8"),
        ("c8", "f8"),
        ("f4", "int32"),
        ("u1", "i1"),
    ],
)
def test_values_that_might_not_fit(store, values, target):
    array = zd.create_array(store, shape=VALUES.shape, dtype=target, chunks=(4, 5))
    if np.can_cast(values, target, "safe"):
        zd.to_zarr(lazy(VALUES.astype(values)), array)
        return
    with pytest.raises(DataTypeError, match="astype") as caught:
        zd.to_zarr(lazy(VALUES.astype(values)), array)
    assert np.dtype(target).name in str(caught.value)
    assert np.dtype(values).name in str(caught.value)
    assert data_keys(store) == set()


@pytest.mark.parametrize(
    ("values", "target"), [("int16", "int32"), ("f4", "f8"), ("u1", "f4"), ("?", "u1")]
)
def test_values_that_fit(store, values, target):
    array = zd.create_array(store, shape=VALUES.shape, dtype=target, chunks=(4, 5))
    zd.to_zarr(lazy(VALUES.astype(values)), array)
    assert_same(array[...], VALUES.astype(values).astype(target))


@pytest.mark.parametrize("dtype", ["O", [("a", "f4", (2,))], "g", "G"], ids=str)
def test_types_that_are_not_known(store, dtype):
    with pytest.raises((DataTypeError, UnknownDataTypeError), match=r"data type|Python objects"):
        zd.to_zarr(da.zeros((4,), chunks=2, dtype=np.dtype(dtype)), store)
    assert not store.values


@pytest.mark.parametrize("version", ["v2", "v3"])
@pytest.mark.parametrize("dtype", ["?", "i1", ">i2", "<u4", ">f4", "f2", "c8", ">c16"])
def test_types(store, dtype, version):
    values = (VALUES % 7).astype(dtype)
    zd.to_zarr(lazy(values), store, format=version)
    assert_same(zd.open_array(store)[...], values.astype(np.dtype(dtype).newbyteorder("=")))
    assert_same(zarr.open_array(dict_store(store))[...].astype(values.dtype), values)


def dict_store(store: MemoryStore) -> zarr.storage.MemoryStore:
    """What zarr-python makes of the same bytes."""
    from zarr.core.buffer import default_buffer_prototype

    make = default_buffer_prototype().buffer.from_bytes
    return zarr.storage.MemoryStore({key: make(value) for key, value in store.values.items()})


# --- what zarr-python takes ---------------------------------------------------------------------

V3_KEYWORDS = {
    "compressors": {"compressors": zarr.codecs.ZstdCodec(level=3, checksum=True)},
    "several": {"compressors": [zarr.codecs.GzipCodec(level=2), zarr.codecs.Crc32cCodec()]},
    "none": {"compressors": None},
    "empty": {"compressors": []},
    "blosc": {"compressors": zarr.codecs.BloscCodec(cname="lz4", clevel=3, shuffle="shuffle")},
    "blosc as it comes": {"compressors": zarr.codecs.BloscCodec()},
    "documents": {"compressors": [{"name": "gzip", "configuration": {"level": 1}}]},
    "filters": {
        "filters": [zarr.codecs.TransposeCodec(order=(1, 0))],
        "compressors": zarr.codecs.GzipCodec(),
    },
    "serializer": {
        "serializer": zarr.codecs.BytesCodec(endian="big"),
        "compressors": zarr.codecs.GzipCodec(),
    },
    "keys of v2": {"chunk_key_encoding": V2ChunkKeyEncoding(separator="/"), "compressors": None},
    "keys": {"chunk_key_encoding": DefaultChunkKeyEncoding(separator="."), "compressors": None},
    "keys as document": {
        "chunk_key_encoding": {"name": "v2", "separator": "."},
        "compressors": None,
    },
    "names": {"dimension_names": ["y", "x"], "compressors": None},
    "fill value": {"fill_value": 9, "compressors": None, "attributes": {"units": "m"}},
    "shards": {"shards": (8, 10), "compressors": zarr.codecs.ZstdCodec()},
}
V2_KEYWORDS = {
    "compressors": {"compressors": numcodecs.Zlib(level=3)},
    "none": {"compressors": None},
    "blosc": {"compressors": numcodecs.Blosc(cname="zstd", clevel=2, shuffle=2)},
    "filters": {
        "filters": [numcodecs.Delta(dtype="<i4"), numcodecs.Shuffle(elementsize=4)],
        "compressors": numcodecs.LZ4(),
    },
    "order": {"order": "F", "compressors": numcodecs.BZ2(level=1)},
    "separator": {"chunk_key_encoding": {"name": "v2", "separator": "/"}, "compressors": None},
}


def zarr_pythons(**keywords) -> dict:
    """What zarr-python makes of the keywords."""
    array = zarr.create_array({}, shape=VALUES.shape, chunks=(4, 5), dtype="int32", **keywords)
    return array.metadata.to_dict()


@pytest.mark.parametrize("name", V3_KEYWORDS)
def test_keywords_of_zarr_python(store, name):
    keywords = V3_KEYWORDS[name]
    zd.to_zarr(lazy(), store, chunks=(4, 5), **keywords)
    assert_same(zd.open_array(store)[...], VALUES)
    theirs = zarr.open_array(dict_store(store))
    assert_same(theirs[...], VALUES)
    assert theirs.metadata.to_dict() == zarr_pythons(**keywords)


@pytest.mark.parametrize("name", V2_KEYWORDS)
def test_keywords_of_zarr_python_in_v2(store, name):
    keywords = V2_KEYWORDS[name]
    zd.to_zarr(lazy(), store, chunks=(4, 5), zarr_format=2, **keywords)
    array = zd.open_array(store)
    assert array.format == "v2"
    assert_same(array[...], VALUES)
    theirs = zarr.open_array(dict_store(store))
    assert_same(theirs[...], VALUES)
    assert theirs.metadata.to_dict() == zarr_pythons(zarr_format=2, **keywords)


def test_the_compressor_of_v2(store):
    zd.to_zarr(lazy(), store, zarr_format=2, compressor=numcodecs.Zlib(level=3))
    document = json.loads(store.values[".zarray"])
    assert document["compressor"] == {"id": "zlib", "level": 3}
    assert document["filters"] is None


@pytest.mark.parametrize(
    "keywords",
    [
        {"compressors": "auto"},
        {"filters": "auto", "compressors": "auto", "serializer": "auto"},
        {"filters": None},
        {"filters": [zarr.codecs.TransposeCodec(order=(1, 0))]},
        {"serializer": zarr.codecs.BytesCodec(endian="big")},
        {"serializer": zarr.codecs.BytesCodec(endian="big"), "compressors": "auto"},
    ],
    ids=["auto", "all auto", "no filters", "filters", "serializer", "serializer, auto"],
)
def test_a_compressor_that_nobody_spoke_of_is_the_default(store, keywords):
    zd.to_zarr(lazy(), store, chunks=(4, 5), **keywords)
    names = [codec.name for codec in zd.open_array(store).codecs]
    assert names[-2:] == ["blosc", "crc32c"] or names[-1] == "blosc"
    assert_same(zarr.open_array(dict_store(store))[...], VALUES)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("separator", [".", "/"])
def test_the_dimension_separator(store, version, separator):
    zd.to_zarr(lazy(), store, zarr_format=version, dimension_separator=separator)
    first = f"0{separator}0" if version == 2 else f"c{separator}0{separator}0"
    assert first in store.values
    assert_same(zd.open_array(store)[...], VALUES)


def test_order_in_v3(store):
    zd.to_zarr(lazy(), store, order="F", compressors=None)
    assert [codec.name for codec in zd.open_array(store).codecs] == ["transpose", "bytes"]
    assert store.values["c/0/0"] == VALUES[:4, :5].tobytes(order="F")


@pytest.mark.parametrize(
    "keywords",
    [{"lock": True}, {"synchronizer": None}, {"compresors": None}, {"config": {}}],
    ids=str,
)
def test_keywords_that_mean_nothing(store, keywords):
    with pytest.raises(TypeError, match=next(iter(keywords))):
        zd.to_zarr(lazy(), store, **keywords)
    assert not store.values


def test_codecs_in_two_spellings(store):
    with pytest.raises(TypeError, match="codecs"):
        zd.to_zarr(lazy(), store, codecs=[], compressors=None)
    assert not store.values


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_filters_without_a_compressor_get_the_usual_one(tmp_path, zarr_format):
    filters = [{2: numcodecs.Delta("i4"), 3: zarr.codecs.numcodecs.Delta(dtype="<i4")}[zarr_format]]
    zd.to_zarr(lazy(VALUES.astype("i4")), tmp_path, filters=filters, zarr_format=zarr_format)
    assert zd.open_array(tmp_path).codecs[-1].name == "blosc"
    np.testing.assert_array_equal(zarr.open_array(str(tmp_path), mode="r")[...], VALUES)


@pytest.mark.parametrize(
    ("node_format", "codec"),
    [("v1", "blosc"), ("v2", "blosc"), ("v2", "zstd"), ("v3", "zstd"), ("v3draft", "gzip")],
)
def test_codecs_that_are_only_named(store, node_format, codec):
    zd.to_zarr(lazy(), store, codecs=codec, format=node_format)
    assert zd.open_array(store).codecs[-1].name == codec
    np.testing.assert_array_equal(zd.open_array(store)[...], VALUES)


def test_names_attributes_fill(store):
    zd.to_zarr(lazy(), store, fill_value=-1, dimension_names=("y", "x"), attributes={"units": "m"})
    array = zd.open_array(store)
    assert array.fill_value == -1
    assert array.dimension_names == ("y", "x")
    assert array.attributes == {"units": "m"}


@pytest.mark.parametrize(
    ("keywords", "error"),
    [
        ({"chunks": (3, 3), "shards": (4, 4)}, GridError),
        ({"chunks": (3,)}, GridError),
        ({"chunks": (0, 3)}, GridError),
        ({"chunks": "many"}, GridError),
        ({"shards": (4, 4), "format": "v2"}, GridError),
        ({"format": "v9"}, ValueError),
        ({"zarr_format": 4}, ValueError),
        ({"fill_value": "high"}, DataTypeError),
        ({"fill_value": 1.5}, DataTypeError),
        ({"fill_value": 1 << 40}, DataTypeError),
        ({"dimension_names": ("x",)}, GridError),
        ({"attributes": {"a": float("nan")}}, MetadataError),
        ({"attributes": {"a": {1, 2}}}, MetadataError),
        ({"codecs": ["lz77"]}, zd.errors.UnknownCodecError),
        ({"codecs": [{"name": "gzip", "configuration": {"level": 99}}]}, MetadataError),
        ({"order": "K"}, ValueError),
        ({"chunk_key_encoding": "morton"}, MetadataError),
        ({"dimension_separator": "-"}, MetadataError),
    ],
    ids=str,
)
def test_nonsense_is_refused_before_anything_is_written(store, keywords, error):
    zd.create_array(store, shape=3, dtype="u1")[...] = 1
    before = dict(store.values)
    with pytest.raises(error):
        zd.to_zarr(lazy(), store, mode="w", **keywords)
    assert dict(store.values) == before


# --- what is left behind ----------------------------------------------------------------------


@pytest.mark.parametrize("version", ["v2", "v3"])
def test_documents_come_last(store, version):
    recording = Recording(store)
    zd.to_zarr(lazy(), recording, "a", format=version)
    written = [r.key for r in recording.requests if r.method in {"set", "set_if"}]
    document = "a/zarr.json" if version == "v3" else "a/.zarray"
    assert written[-1] == document
    groups = {"zarr.json"} if version == "v3" else {".zgroup", ".zattrs"}
    data = set(written) - groups - {document, "a/.zattrs"}
    assert len(data) == 12
    assert set(written[: len(groups)]) == groups


@pytest.mark.parametrize("version", ["v2", "v3"])
@pytest.mark.parametrize("replace", [False, True])
def test_a_failed_write_leaves_no_document(store, version, replace):
    if replace:
        zd.create_array(store, "a", shape=3, dtype="u1", format=version)[...] = 1

    def fail(method: str, key: str) -> None:
        if method == "set" and key.endswith(("c/2/1", "2.1")):
            raise StoreError("the disk is full")

    with pytest.raises(StoreError, match="disk is full"):
        zd.to_zarr(lazy(), HookStore(store, fail), "a", format=version, overwrite=replace)
    with pytest.raises(NodeNotFoundError):
        zd.open_array(store, "a")
    assert not [key for key in store.list("a/") if key.rsplit("/", 1)[-1][0] in ".z"]
    zd.to_zarr(lazy(), store, "a", format=version)
    assert_same(zd.open_array(store, "a")[...], VALUES)


def test_a_failed_block_leaves_no_document(store):
    def fail(block):
        raise RuntimeError("no such luck")

    with pytest.raises(RuntimeError, match="luck"):
        zd.to_zarr(lazy().map_blocks(fail, dtype="int32", meta=np.empty((0, 0), "int32")), store)
    assert not store.values


def test_each_object_is_set_once(store):
    recording = Recording(store)
    zd.to_zarr(lazy(chunks=(5, 3)), recording, chunks=(2, 5), shards=(4, 10))
    assert recording.per_key("set") == dict.fromkeys(data_keys(store), 1)
    assert recording.per_key("set_if") == {"zarr.json": 1}
    assert len(data_keys(store)) == 6


# --- fill values ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "grid", [{}, {"chunks": (2, 5), "shards": (4, 10)}, {"format": "v2"}], ids=str
)
def test_objects_of_fill_values_are_not_stored(store, grid):
    values = np.full((12, 20), 7, "int32")
    values[5, 12] = 1
    report = zd.to_zarr(lazy(values), store, fill_value=7, **grid)
    assert len(data_keys(store)) == 1
    assert (report.objects, report.empty) == (1, 5 if "shards" in grid else 11)
    assert_same(zd.open_array(store)[...], values)


def test_objects_of_fill_values_are_deleted(store):
    array = ready(store)
    recording = Recording(store)
    zd.to_zarr(da.zeros((4, 20), chunks=5, dtype="int32"), recording, region=np.s_[4:8])
    assert data_keys(store) == {f"c/{i}/{j}" for i in (0, 2) for j in range(4)}
    assert not array[4:8].any()
    assert recording.per_key("delete") == {f"c/1/{j}": 1 for j in range(4)}


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c8", "c16"])
@pytest.mark.parametrize(
    ("fill", "value"), [(0.0, -0.0), (-0.0, 0.0), (np.nan, -np.nan), (0.0, np.nan), (np.nan, 0.0)]
)
def test_fill_values_are_compared_bit_by_bit(store, dtype, fill, value):
    values = np.full(6, np.array(value).astype(dtype))
    if np.signbit(value) and np.isnan(value):
        values = -np.full(6, np.array(np.nan).astype(dtype))
    zd.to_zarr(lazy(values, 3), store, fill_value=np.array(fill).astype(dtype)[()])
    assert len(data_keys(store)) == 2
    assert_same(zd.open_array(store)[...], values)


def test_payloads_of_nan_are_values(store):
    bits = np.array([0x7FC00000, 0x7FC00001, 0xFFC00000, 0x7F800001], "u4")
    zd.to_zarr(lazy(bits.view("f4"), 1), store, fill_value=np.float32(np.nan))
    assert data_keys(store) == {"c/1", "c/2", "c/3"}
    assert_same(zd.open_array(store)[...].view("u4"), bits)


def test_a_nan_of_its_own_is_a_fill_value(store):
    bits = np.array([0x7FC00000, 0x7FC00001, 0xFFC00000, 0x7FC00001], "u4")
    zd.to_zarr(lazy(bits.view("f4"), 1), store, fill_value=bits.view("f4")[1])
    assert data_keys(store) == {"c/0", "c/2"}
    assert_same(zd.open_array(store)[...].view("u4"), bits)


def test_without_a_fill_value_everything_is_stored(store):
    zd.to_zarr(da.zeros((12, 20), chunks=(4, 5)), store, fill_value=None, format="v2")
    assert len(data_keys(store)) == 12
    with pytest.raises(DataTypeError, match="fill_value"):
        zd.to_zarr(lazy(), store, "b", fill_value=None)


# --- sizes ------------------------------------------------------------------------------------


def planned(side: int, block: int, chunk: int) -> tuple[int, int]:
    """Bytes of what a scheduler is sent for a write, and how many tasks it makes of it."""
    values = da.zeros((side, side), chunks=block)
    later = zd.to_zarr(values, {}, chunks=(chunk, chunk), compute=False)
    graph = later.__dask_graph__()
    sent = collections_to_expr([later]).optimize()
    tasks = len(dict(later.__dask_optimize__(graph, later.__dask_keys__())))
    return max(len(pickle.dumps(graph)), len(pickle.dumps(sent))), tasks


def test_the_graph_of_aligned_blocks_has_a_constant_size():
    small, small_tasks = planned(40, 4, 4)
    large, large_tasks = planned(400, 4, 4)
    assert large_tasks - small_tasks > 9_900
    assert large < 10_000
    assert large - small < 1_500


def test_one_fused_task_per_block_and_a_small_tree():
    _, tasks = planned(400, 4, 4)
    tree = -(-10_000 // 32) + -(-313 // 32) + 1
    assert tasks == 10_000 + tree


def test_blocks_of_many_objects_stay_one_task():
    plan = zd.plan_write(da.zeros((400, 400), chunks=100), {}, chunks=(10, 10))
    assert (plan.tasks, plan.objects) == (16, 1600)
    assert not plan.regrouped


@pytest.mark.parametrize(
    ("blocks", "chunks", "tasks"),
    [(50, 80, 25), (50, 100, 16), (50, 400, 1), (80, 50, 25), (7, 20, 400)],
)
def test_regrouped_tasks(blocks, chunks, tasks):
    plan = zd.plan_write(da.zeros((400, 400), chunks=blocks), {}, chunks=(chunks, chunks))
    assert plan.regrouped
    assert plan.tasks == tasks
    assert "regrouped" in plan.explain()
    assert plan.target.meta.grid.align(plan.blocks) == plan.blocks


def test_pickling_a_write(tmp_path):
    later = zd.to_zarr(lazy(), tmp_path, chunks=(4, 5), compute=False)
    pickle.loads(pickle.dumps(later)).compute()
    assert_same(zd.open_array(tmp_path)[...], VALUES)


def test_annotations_survive():
    with dask.annotate(priority=7):
        later = zd.to_zarr(lazy(), {}, compute=False)
    graph = later.__dask_optimize__(later.__dask_graph__(), later.__dask_keys__())
    assert {"priority": 7} in [layer.annotations for layer in graph.layers.values()]


def test_on_a_cluster(tmp_path, client):
    report = zd.to_zarr(lazy(), tmp_path, shards=(6, 10), chunks=(3, 5))
    assert report.objects == 4
    assert_same(zd.open_array(tmp_path)[...], VALUES)
    later = zd.to_zarr(lazy() + 1, tmp_path, chunks=(4, 5), compute=False, mode="w")
    future = client.compute(later)
    assert future.result().objects == 12
    assert_same(zd.open_array(tmp_path)[...], VALUES + 1)
    assert Path(tmp_path, "zarr.json").exists()


def test_writing_the_same_again_on_a_cluster(tmp_path, client):
    """Tasks that were done for one write are not taken for those of the next one."""
    later = zd.to_zarr(lazy(), tmp_path, compute=False)
    kept = client.persist(later)
    client.gather(client.compute(kept))
    again = zd.to_zarr(lazy(), tmp_path, mode="w")
    assert again.objects == 12
    assert_same(zd.open_array(tmp_path)[...], VALUES)


# --- arrays that have changed since a write was planned -------------------------------------------


def appends(place, *, lazily):
    """Two appends that are planned before either of them runs."""
    for value in (2.0, 3.0):
        x = da.full((5,), value, chunks=5)
        if lazily:
            yield zd.to_zarr(x, place, append=0, compute=False).compute
        else:
            yield zd.plan_write(x, place, append=0).run


@pytest.mark.parametrize("lazily", [False, True])
def test_an_append_never_writes_over_another_one(tmp_path, lazily):
    zd.to_zarr(da.ones((10,), chunks=5), tmp_path)
    first, second = list(appends(tmp_path, lazily=lazily))
    first()
    with pytest.raises(MetadataChangedError):
        second()
    np.testing.assert_array_equal(zd.open_array(tmp_path)[...], [1.0] * 10 + [2.0] * 5)


def test_two_appends_in_one_compute_are_not_both_well(tmp_path):
    zd.to_zarr(da.ones((10,), chunks=5), tmp_path)
    x = da.full((5,), 2.0, chunks=5)
    both = [zd.to_zarr(x + n, tmp_path, append=0, compute=False) for n in range(2)]
    with pytest.raises(MetadataChangedError):
        dask.compute(*both, scheduler="sync")


@pytest.mark.parametrize("way", ["plan", "collection", "open array"])
def test_chunks_of_another_grid_are_not_put_into_an_array(tmp_path, way):
    zd.to_zarr(da.ones((20,), chunks=5), tmp_path)
    x, region, target = da.full((10,), 2.0, chunks=5), np.s_[:10], zd.open_array(tmp_path, "", "r+")
    if way == "plan":
        write = zd.plan_write(x, tmp_path, region=region).run
    elif way == "collection":
        write = zd.to_zarr(x, tmp_path, region=region, compute=False).compute
    else:
        write = partial(zd.to_zarr, x, target, region=region)
    zd.to_zarr(da.ones((20,), chunks=20), tmp_path, mode="w")
    with pytest.raises(MetadataChangedError):
        write()
    np.testing.assert_array_equal(zd.open_array(tmp_path)[...], 1)


def test_attributes_may_change_meanwhile(tmp_path):
    zd.to_zarr(da.ones((20,), chunks=5), tmp_path)
    plan = zd.plan_write(da.full((10,), 2.0, chunks=5), tmp_path, append=0)
    zd.open_array(tmp_path, "", "r+").update_attributes({"a": 1})
    plan.run()
    assert zd.open_array(tmp_path).shape == (30,)
    assert zd.open_array(tmp_path).attributes["a"] == 1
