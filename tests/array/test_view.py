"""Selections of stored arrays, at once and lazily, against NumPy and zarr-python."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from importlib import import_module

import dask
import dask.array as da
import numpy as np
import pytest
import tensorstore as ts
import zarr
from dask.array.core import getter
from hypothesis import given, settings
from hypothesis import strategies as st

import zarr_dask as zd
from tests.support import selections
from zarr_dask.array.source import ArraySource
from zarr_dask.codecs.chain import BoundCodecChain
from zarr_dask.errors import ChunkMissingError, DataTypeError, GridError, SelectionError
from zarr_dask.graph import find_sources
from zarr_dask.stores import LocalStore, MemoryStore, Recording
from zarr_dask.stores.base import ReadPolicy

VIEW = import_module("zarr_dask.array.view")  # `zarr_dask.array` is the function

SHAPE = (9, 8, 7)
VALUES = np.arange(1, np.prod(SHAPE) + 1, dtype="int32").reshape(SHAPE)
BYTES = {"name": "bytes", "configuration": {"endian": "little"}}


def sharding(chunk_shape, codecs=(BYTES,)):
    configuration = {
        "chunk_shape": list(chunk_shape),
        "codecs": list(codecs),
        "index_codecs": [BYTES, {"name": "crc32c"}],
    }
    return {"name": "sharding_indexed", "configuration": configuration}


TRANSPOSED = {"name": "transpose", "configuration": {"order": [2, 0, 1]}}


class Remote(MemoryStore):
    """A store whose requests take their time."""

    coalescing = ReadPolicy(gap=0, largest=1 << 20, max_concurrent_requests=8)


LAYOUTS = {
    "v2": {"format": "v2", "chunks": (3, 3, 7)},
    "v2 F": {"format": "v2", "chunks": (4, 4, 2), "order": "F"},
    "v3": {"chunks": (4, 3, 2)},
    "uncompressed": {"chunks": (4, 3, 7), "codecs": []},
    "shards": {"chunks": (2, 2, 2), "shards": (4, 6, 4)},
    "transposed": {"chunks": (4, 3, 2), "codecs": [TRANSPOSED, BYTES, "gzip"]},
    "transposed shards": {"chunks": (4, 6, 4), "codecs": [TRANSPOSED, sharding((2, 2, 3))]},
    "nested shards": {"chunks": (8, 8, 8), "codecs": [sharding((4, 4, 4), [sharding((2, 2, 1))])]},
    "rectilinear": {"chunks": ((4, 2, 3), 3, (1, 6))},
    "rectilinear shards": {"chunks": (2, 2, 1), "shards": ((4, 2, 4), (2, 6), 3)},
    "texts": {"chunks": (4, 3, 2), "dtype": "string"},
    "far": {"chunks": (4, 3, 2), "far": True},
    "far shards": {"chunks": (2, 2, 2), "shards": (4, 6, 4), "far": True},
}


def values_of(layout):
    return VALUES.astype(str).astype(object) if "dtype" in LAYOUTS[layout] else VALUES


def created(layout, store=None):
    options = {"dtype": "int32", **LAYOUTS[layout]}
    far = options.pop("far", False)
    store = (Remote() if far else MemoryStore()) if store is None else store
    array = zd.create_array(store, "a", shape=SHAPE, **options)
    array[...] = values_of(layout)
    return array


ARRAYS = {layout: created(layout) for layout in LAYOUTS}
A_FEW = settings(max_examples=max(settings.default.max_examples // 5, 5))
each_layout = pytest.mark.parametrize("layout", LAYOUTS)
KINDS = {
    "numpy": (selections.numpy_keys, lambda a: a, lambda a, key: a[key]),
    "outer": (selections.outer_keys, lambda a: a.oindex, selections.outer),
    "points": (selections.point_keys, lambda a: a.vindex, lambda a, key: a[key]),
}


# --- reading ----------------------------------------------------------------------------------


@each_layout
@pytest.mark.parametrize("kind", KINDS)
@A_FEW
@given(st.data())
def test_reads_are_numpys(layout, kind, data):
    keys, indexed, numpys = KINDS[kind]
    key = data.draw(keys(SHAPE))
    expected = numpys(values_of(layout), key)
    array = ARRAYS[layout]
    got = indexed(array)[key]
    assert type(got) is type(expected)
    np.testing.assert_array_equal(got, expected)
    view = indexed(array.lazy)[key]
    assert (view.shape, view.dtype) == (np.shape(got), array.dtype)
    np.testing.assert_array_equal(np.asarray(view), expected)


@each_layout
@A_FEW
@given(st.data())
def test_views_of_views_are_numpys(layout, data):
    view, expected = ARRAYS[layout].lazy, values_of(layout)
    for _ in range(2):
        kind = data.draw(st.sampled_from([*KINDS, "transpose"]))
        if kind == "transpose":
            axes = data.draw(st.permutations(range(view.ndim)))
            view, expected = view.transpose(axes), expected.transpose(axes)
            continue
        keys, indexed, numpys = KINDS[kind]
        key = data.draw(keys(view.shape))
        view, expected = indexed(view)[key], np.asarray(numpys(expected, key))
    np.testing.assert_array_equal(view.read(threads=1), expected)
    out = np.zeros(view.shape[::-1], view.dtype).T
    assert view.read(out=out) is out
    np.testing.assert_array_equal(out, expected)


@A_FEW
@given(st.data())
def test_views_become_dask_arrays(data):
    layout = data.draw(st.sampled_from(list(LAYOUTS)))
    view, expected = ARRAYS[layout].lazy, values_of(layout)
    for _ in range(data.draw(st.integers(1, 2))):
        keys, indexed, numpys = KINDS[data.draw(st.sampled_from(list(KINDS)))]
        key = data.draw(keys(view.shape))
        view, expected = indexed(view)[key], np.asarray(numpys(expected, key))
    chunks = data.draw(st.sampled_from([None, "chunks", "shards", "auto", 2, -1]))
    lazy = view.T.to_dask(chunks)
    assert len(lazy.__dask_graph__().layers) == 1
    assert (lazy.shape, lazy.dtype) == (view.shape[::-1], view.dtype)
    np.testing.assert_array_equal(lazy.compute(scheduler="sync"), expected.T)
    rest = data.draw(selections.numpy_keys(lazy.shape, lists=False))
    of_dask = da.from_array(expected.T, chunks=lazy.chunks)[rest]
    np.testing.assert_array_equal(lazy[rest].compute(scheduler="sync"), of_dask.compute())


def test_arrays_without_dimensions_and_without_elements():
    scalar = zd.create_array({}, shape=(), dtype="i2", chunks=())
    scalar[...] = 5
    assert scalar.vindex[()] == scalar.oindex[...] == scalar.blocks[()] == scalar.lazy.read() == 5
    assert scalar.lazy[None].to_dask().compute().tolist() == [5]
    assert scalar.lazy[None, None].oindex[[0, 0, 0], 0].read().tolist() == [5, 5, 5]
    empty = zd.create_array({}, shape=(0, 3), dtype="i2", chunks=(1, 2))
    assert empty.oindex[[], [2, 0]].shape == (0, 2)
    assert empty.vindex[np.ones((0, 3), bool)].shape == (0,)
    assert empty.blocks[:, 1].shape == (0, 1)
    assert empty.lazy[:, [1, 1]].T.to_dask().compute().shape == (2, 0)
    empty.oindex[[], [2, 0]] = 3
    with pytest.raises(SelectionError, match="out of bounds"):
        empty[[0]]


FLAT = VALUES[0] % 3 == 0
MASKS = {
    "everywhere": np.s_[VALUES % 7 == 0],
    "first": np.s_[VALUES[..., 0] % 2 == 0],
    "last": np.s_[..., FLAT],
    "between": np.s_[1:, VALUES[0, :, 0] % 2 == 0, None],
    "and an integer": np.s_[3, FLAT],
    "and a list": np.s_[VALUES[..., 0] == 1, [5]],
    "nowhere": np.s_[VALUES < 0],
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("layout", ["v2 F", "shards", "rectilinear"])
def test_masks_of_many_dimensions(layout, mask):
    key = MASKS[mask]
    array = created(layout)
    np.testing.assert_array_equal(array[key], VALUES[key])
    np.testing.assert_array_equal(array.lazy[::-1][::-1][key].read(), VALUES[key])
    array[key] = -VALUES[key]
    expected = VALUES.copy()
    expected[key] = -VALUES[key]
    np.testing.assert_array_equal(array[...], expected)


def test_more_than_is_held_at_once(monkeypatch):
    monkeypatch.setattr(VIEW, "_MOST_HELD", 64)
    mask = VALUES % 3 > 0
    np.testing.assert_array_equal(ARRAYS["shards"].vindex[mask], VALUES[mask])
    monkeypatch.setattr(VIEW, "_MOST_PIECES", 3)
    np.testing.assert_array_equal(ARRAYS["shards"].vindex[mask], VALUES[mask])


# --- writing ----------------------------------------------------------------------------------


@each_layout
@pytest.mark.parametrize("kind", KINDS)
@A_FEW
@given(st.data())
def test_writes_are_numpys(layout, kind, data):
    keys, indexed, numpys = KINDS[kind]
    key = data.draw(keys(SHAPE))
    expected = values_of(layout).copy()
    shape = np.shape(numpys(expected, key))
    kept = [n if data.draw(st.booleans()) else 1 for n in shape[data.draw(st.integers(0, 4)) :]]
    count = int(np.prod(kept))
    value = np.arange(1000, 1000 + count).reshape(kept)
    value = value.astype(str).astype(object) if layout == "texts" else value
    array = created(layout)
    indexed(array)[key] = value
    if kind == "outer":
        squeezed = tuple(at for at, one in enumerate(key) if isinstance(one, int))
        expected[selections.mesh(SHAPE, key)] = np.expand_dims(
            np.broadcast_to(value, shape), squeezed
        )
    else:
        expected[key] = value
    np.testing.assert_array_equal(array[...], expected)


def test_values_are_checked_before_anything_is_written():
    array = created("v3")
    recording = Recording(array.store)
    array = zd.open_array(recording, "a", mode="r+")
    recording.clear()
    with pytest.raises(ValueError, match="broadcast"):
        array.oindex[[0, 1]] = np.ones((3, 8, 7))
    with pytest.raises(DataTypeError):
        array.vindex[[0], [0], [0]] = "text"
    with pytest.raises(SelectionError, match="out of bounds"):
        array.oindex[[0, 9]] = 1
    with pytest.raises(zd.errors.ReadOnlyError):
        zd.open_array(array.store, "a").oindex[[0]] = 1
    assert not recording.per_key("set")


def test_each_stored_object_is_written_once_and_read_only_where_it_is_cut():
    recording = Recording(created("v3").store)
    array = zd.open_array(recording, "a", mode="r+")
    recording.clear()
    array.oindex[[3, 2, 1, 0, 0, 4], :, [1, 0]] = 5
    ends = {f"a/c/{i}/2/0": 1 for i in (0, 1)}  # an append may be changing these
    cut = {f"a/c/1/{j}/0": 1 for j in (0, 1, 2)}
    assert recording.per_key("set") == {f"a/c/{i}/{j}/0": 1 for i in (0, 1) for j in (0, 1)}
    assert recording.per_key("set_if") == ends
    assert recording.per_key("get") == {**ends, **cut}
    expected = VALUES.copy()
    expected[:5, :, :2] = 5
    np.testing.assert_array_equal(array[...], expected)


def test_views_are_not_written():
    with pytest.raises(TypeError, match="assignment"):
        ARRAYS["v3"].lazy[0] = 1
    with pytest.raises(TypeError, match="assignment"):
        ARRAYS["v3"].lazy.oindex[[0]] = 1


# --- zarr-python ------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["v2", "v3", "shards", "nested shards"])
def peers(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("peer")
    array = created(request.param, LocalStore(path))
    return array, zarr.open_array(str(path / "a"), mode="r+")


def test_zarr_python_gives_the_same(peers):
    ours, theirs = peers
    mask = VALUES % 5 == 0
    rows, columns = np.array([8, 0, 3]), np.array([True] * 3 + [False] * 5)
    np.testing.assert_array_equal(ours.oindex[rows, columns], theirs.oindex[rows, columns])
    np.testing.assert_array_equal(ours.oindex[2, :, rows % 7], theirs.oindex[2, :, rows % 7])
    points = (rows, np.array([[1], [7]]), rows % 7)
    np.testing.assert_array_equal(ours.vindex[points], theirs.vindex[points])
    np.testing.assert_array_equal(ours.vindex[mask], theirs.vindex[mask])
    for blocks in [(0,), (-1, 0), np.s_[0:2, :, 0], (0, 0, 0), ...]:
        np.testing.assert_array_equal(ours.blocks[blocks], theirs.blocks[blocks])
        np.testing.assert_array_equal(ours.lazy.blocks[blocks].read(), theirs.blocks[blocks])


def test_tensorstore_gives_the_same(peers):
    ours, _ = peers
    driver = "zarr" if ours.format == "v2" else "zarr3"
    store = {"driver": "file", "path": f"{ours.store.root}/a"}
    theirs = ts.open({"driver": driver, "kvstore": store}, open=True).result()
    rows, columns = np.array([8, 0, 3]), np.array([True] * 3 + [False] * 5)
    outer, points = np.s_[rows, ::-3, rows % 7], np.s_[rows, :, [[1], [6]]]
    np.testing.assert_array_equal(ours.oindex[outer], theirs.oindex[outer].read().result())
    np.testing.assert_array_equal(ours.vindex[points], theirs.vindex[points].read().result())
    view, peer = ours.lazy.oindex[rows, columns][..., None], theirs.oindex[rows, columns]
    np.testing.assert_array_equal(view.T, peer[..., ts.newaxis].T.read().result())


def test_zarr_python_reads_what_is_written(peers):
    ours, theirs = peers
    ours.oindex[[0, 8], :, [6, 1]] = -1
    ours.vindex[[1, 2], [3, 4], [0, 5]] = [-2, -3]
    ours.blocks[0] = 7
    np.testing.assert_array_equal(theirs[...], ours[...])
    expected = VALUES.copy()
    expected[np.ix_([0, 8], range(8), [6, 1])] = -1
    expected[[1, 2], [3, 4], [0, 5]] = [-2, -3]
    expected[: ours.write_chunks[0]] = 7
    np.testing.assert_array_equal(ours[...], expected)
    ours[...] = VALUES


# --- what is asked for ------------------------------------------------------------------------


class Far(MemoryStore):
    """A store that wants as few requests as possible, whatever lies between the bytes."""

    coalescing = ReadPolicy(gap=1 << 30, largest=1 << 40)


def recorded(layout, store=None):
    recording = Recording(created(layout, Far() if store is None else store).store)
    array = zd.open_array(recording, "a", mode="r+")
    recording.clear()
    return recording, array


def test_nothing_is_read_until_it_is_asked_for():
    recording, array = recorded("shards")
    view = array.lazy[::-1, None].T.oindex[[1, 2]].vindex[[0, 1], [3, 3]]
    lazy = view.to_dask() + 1
    assert repr(view).startswith("<zarr_dask.View shape=(2, 1, 9) dtype=int32 of <zarr_dask.Array")
    assert view.nbytes == 72
    assert lazy.shape == view.shape
    assert recording.requests == []


NARROW = {
    "a row": lambda view: view[5],
    "a new axis": lambda view: view[None, 5],
    "a transpose": lambda view: view.T[..., 5],
    "a negative step": lambda view: view[::-1][3],
    "a list": lambda view: view[[5]],
    "a list of a list": lambda view: view[[0, 5, 1]].oindex[[1]],
    "a mask": lambda view: view.oindex[np.arange(9) == 5],
    "points": lambda view: view.vindex[[5, 5], [0, 7], [0, 6]],
    "a block": lambda view: view.blocks[1][1],
}


@pytest.mark.parametrize("narrow", NARROW)
@pytest.mark.parametrize("through_dask", [False, True])
def test_views_ask_for_an_index_and_a_row_of_chunks(narrow, through_dask):
    recording, array = recorded("shards")
    view = NARROW[narrow](array.lazy)
    got = view.to_dask().compute(scheduler="sync") if through_dask else view.read()
    np.testing.assert_array_equal(got, NARROW[narrow](np_view(VALUES)))
    met = {f"a/c/1/{j}/{k}" for j in (0, 1) for k in (0, 1)}
    if narrow == "points":
        met = {"a/c/1/0/0", "a/c/1/1/1"}
    assert recording.per_key() == dict.fromkeys(met, 2)
    wanted = sum(r.range.stop - r.range.start for r in recording.requests if r.range.start >= 0)
    stored = sum(len(recording.store.values[key]) for key in met)
    assert wanted < 0.75 * stored


class np_view:  # noqa: N801
    """NumPy's array with the names of a view."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return self.values

    def __getitem__(self, key):
        return np_view(self.values[key])

    @property
    def T(self):  # noqa: N802
        return np_view(self.values.T)

    @property
    def oindex(self):
        return self

    vindex = oindex

    @property
    def blocks(self):
        return {1: np_view(self.values[4:8])}


@pytest.mark.parametrize(
    ("index", "chunks", "expected"),
    [
        (np.s_[...], {"t": 10}, ((10, 10, 10, 10), (10, 10, 10))),
        (np.s_[...], ("chunks", "shards"), ((5,) * 8, (10, 10, 10))),
        (np.s_[::-1, 5:], {"t": "chunks"}, ((5,) * 8, (5, 10, 10))),
        (np.s_[3:, None, 4], {"t": -1}, ((37,), (1,))),
        (np.s_[[1, 2, 30], 5:], {"x": "chunks"}, ((2, 1), (5,) * 5)),
        (np.s_[:, [[1, 2], [3, 4]]], {"t": 40}, ((40,), (2,), (2,))),
    ],
)
def test_blocks_of_views_by_name_and_by_dimension(index, chunks, expected):
    values = np.arange(1200).reshape(40, 30)
    array = zd.create_array(
        {}, shape=(40, 30), dtype="i8", chunks=5, shards=(20, 10), dimension_names=["t", "x"]
    )
    array[...] = values
    view = array.lazy[index]
    x = view.to_dask(chunks)
    assert x.chunks == expected
    np.testing.assert_array_equal(x.compute(scheduler="sync"), values[index])
    turned = view.T.to_dask(chunks if isinstance(chunks, dict) else chunks[::-1])
    assert turned.chunks == expected[::-1]
    np.testing.assert_array_equal(turned.compute(scheduler="sync"), values[index].T)


def test_names_that_a_view_has_no_more():
    array = zd.create_array({}, shape=(4, 4), dtype="i1", chunks=2, dimension_names=["t", "x"])
    for view in (array.lazy[0], array.lazy.vindex[[0, 1], [0, 1]]):
        with pytest.raises(GridError, match="'t'"):
            view.to_dask({"t": 1})


def test_dask_pushes_slices_into_views_and_arrays():
    recording, array = recorded("shards")
    for lazy, expected in [
        (array.to_dask()[5], VALUES[5]),
        (array.lazy[::-1].to_dask()[3], VALUES[5]),
        (array.lazy.T.to_dask()[..., 5], VALUES[5].T),
        (array.lazy.oindex[[1, 5, 6]].to_dask()[1], VALUES[5]),
    ]:
        recording.clear()
        np.testing.assert_array_equal(lazy.compute(scheduler="sync"), expected)
        assert recording.per_key() == {f"a/c/1/{j}/{k}": 2 for j in (0, 1) for k in (0, 1)}
        ranges = [r.range for r in recording.requests if r.range.start >= 0]
        assert sum(r.stop - r.start for r in ranges) <= 4 * 6 * 36


def test_lists_and_points_ask_each_object_once():
    recording, array = recorded("shards")
    array.oindex[[0, 8, 1, 5, 5, 2]]
    assert set(recording.per_key().values()) == {2}
    recording.clear()
    generator = np.random.default_rng(1)
    points = tuple(generator.integers(0, n, 50) for n in SHAPE)
    np.testing.assert_array_equal(array.vindex[points], VALUES[points])
    assert set(recording.per_key().values()) == {2}


@pytest.mark.parametrize("store", [Far, Remote])
def test_chunks_are_decoded_once(monkeypatch, store):
    _, array = recorded("v3", store())
    decoded = []
    original = BoundCodecChain.decode
    monkeypatch.setattr(
        BoundCodecChain, "decode", lambda *a, **k: (decoded.append(1), original(*a, **k))[1]
    )
    for sparse in (0, 100):  # points one by one, or the box around them
        monkeypatch.setattr(VIEW, "_SPARSE", sparse)
        decoded.clear()
        points = ([0, 0, 3, 1, 8], [0, 1, 2, 1, 7], [0, 1, 1, 0, 6])
        np.testing.assert_array_equal(array.vindex[points], VALUES[points])
        assert len(decoded) <= 2


def test_absence_is_an_error_where_the_reader_says_so():
    array = zd.create_array({}, shape=(8,), dtype="i2", chunks=2, fill_value=-1)
    array[2:4] = 5
    assert array.vindex[[0, 3]].tolist() == [-1, 5]
    strict = zd.open_array(array.store, read=zd.ReadOptions(missing="error"))
    assert strict.lazy[[2, 3]].read().tolist() == [5, 5]
    with pytest.raises(ChunkMissingError, match="c/0"):
        strict.vindex[[0, 3]]


# --- views as values --------------------------------------------------------------------------


def test_views_behave_as_arrays():
    view = ARRAYS["v3"].lazy[1:4, 0]
    assert len(view) == 3
    assert [row.read().tolist() for row in view] == VALUES[1:4, 0].tolist()
    assert np.asarray(view, dtype="f8").dtype == np.float64
    with pytest.raises(ValueError, match="without a copy"):
        np.asarray(view, copy=False)
    with pytest.raises(TypeError, match="no length"):
        len(view[0, 0])
    assert view.transpose(1, 0).shape == view.transpose((1, 0)).shape == view.T.shape == (7, 3)
    with pytest.raises(SelectionError, match="out has shape"):
        view.read(out=np.empty((2, 7), "i4"))
    with pytest.raises(DataTypeError, match="float64"):
        view.read(out=np.empty((3, 7)))
    with pytest.raises(SelectionError, match="blocks of its own"):
        view.blocks[0]


def test_blocks_follow_stored_objects():
    array = ARRAYS["shards"]
    assert array.lazy[1:].to_dask().chunks == ((3, 4, 1), (6, 2), (4, 3))
    assert array.lazy[::-2, None, 3].to_dask().chunks == ((1, 2, 2), (1,), (4, 3))
    assert array.lazy[1:].T.to_dask("chunks").chunks[-1] == (1, 2, 2, 2, 1)
    assert array.lazy.oindex[[0, 1, 4, 8]].to_dask().chunks[0] == (2, 1, 1)
    assert array.lazy.oindex[[8, 0, 4, 1]].to_dask().chunks[0] == (2, 2)
    assert array.lazy.oindex[[8, 0, 4, 1]].to_dask({0: 3}).chunks[0] == (3, 1)
    points = tuple(np.zeros(3000, int) for _ in SHAPE)
    assert array.lazy.vindex[points].to_dask().chunks == ((3000,),)
    with dask.config.set({"array.chunk-size": "64 B"}):
        assert array.lazy[1:5].to_dask().chunks[0] == (1, 2, 1)
    with pytest.raises(zd.errors.GridError):
        array.lazy[1:].to_dask((1, 2))


def test_graphs_are_small_and_their_names_the_same_everywhere():
    array = zd.create_array({}, shape=(10_000, 10_000), dtype="i4", chunks=(10, 10))
    few = array.lazy[::-1, None, 5:].to_dask()
    assert few.npartitions == 1_000_000
    rows = np.arange(0, 10_000, 7)
    lists = array.lazy.oindex[rows].to_dask()
    for one, most in [(few, 6000), (lists, 30_000)]:
        (layer,) = one.__dask_graph__().layers.values()
        assert not layer.is_materialized()
        assert len(pickle.dumps(layer)) < most
    assert lists.name == array.lazy.oindex[rows].to_dask().name
    assert lists.name != array.lazy.oindex[rows[::-1]].to_dask().name != few.name
    tasks = dict(layer.cull({(lists.name, 0, 0)}, set())[0])
    assert len(pickle.dumps(tasks)) < 3000


def test_graphs_are_pickled_and_fused(tmp_path):
    array = created("shards", LocalStore(tmp_path))
    for view in (array.lazy[::-1].T, array.lazy.oindex[[5, 0, 3], ::2], array.lazy[VALUES % 2 > 0]):
        lazy = (view.to_dask(2) + 1).sum()
        again = pickle.loads(pickle.dumps(lazy))
        assert again.compute(scheduler="sync") == (view.read() + 1).sum()
        (optimized,) = dask.optimize(view.to_dask(2) + 1)
        assert len(dict(optimized.__dask_graph__())) == optimized.npartitions


def test_names_are_the_same_in_another_process(tmp_path):
    array = zd.create_array(tmp_path / "a", shape=(8, 8), dtype="i4", chunks=(4, 4))
    code = (
        "import sys, zarr_dask as zd\n"
        "print(zd.open(sys.argv[1]).lazy[::-1].oindex[[3, 1]].T.to_dask().name)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "a"], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == array.lazy[::-1].oindex[[3, 1]].T.to_dask().name


def test_views_are_pickled():
    view = pickle.loads(pickle.dumps(ARRAYS["v3"].lazy[:, [3, 1]].T))
    np.testing.assert_array_equal(view.read(), VALUES[:, [3, 1]].T)
    assert dask.base.tokenize(view) == dask.base.tokenize(ARRAYS["v3"].lazy[:, [3, 1]].T)


def test_what_is_read_lazily_is_not_written_over():
    array = created("v3")
    for view in (array.lazy[::-1], array.lazy[[2, 1]]):
        with pytest.raises(zd.errors.SourceIsTargetError):
            zd.to_zarr(view.to_dask(), array.store, "a", overwrite=True)


def test_masks_of_dask_are_refused():
    with pytest.raises(SelectionError, match="compute it first"):
        ARRAYS["v3"][da.ones(9, dtype=bool)]


def test_sources_of_tasks_take_lists():
    array = ARRAYS["v3"]
    for lazy in (array.to_dask(), array.lazy.to_dask()):
        (source,) = find_sources(lazy, ArraySource)
        np.testing.assert_array_equal(getter(source, ([5, 1], slice(2, 4))), VALUES[[5, 1], 2:4])
        np.testing.assert_array_equal(source[VALUES % 2 == 0], VALUES[VALUES % 2 == 0])
    wrapped = da.from_array(array, chunks=(4, 4, 4))
    np.testing.assert_array_equal(wrapped[:, [7, 0]].compute(), VALUES[:, [7, 0]])


@pytest.mark.parametrize("name", ["compute", "mean", "result"])
def test_attributes_that_a_view_has_not(name):
    view = zd.zeros(3).lazy[1:]
    with pytest.raises(AttributeError, match=rf"zarr_dask.View has no '{name}'.*view\.read\(\)"):
        getattr(view, name)
    assert pickle.loads(pickle.dumps(view)).shape == copy.copy(view).shape == (2,)


@pytest.mark.parametrize(
    "select",
    [
        lambda a: a[9],
        lambda a: a[[0, 9]],
        lambda a: a["x"],
        lambda a: a.__setitem__(9, 0),
        lambda a: a.__setitem__([0, 9], 0),
        lambda a: a.read(1.5),
        lambda a: a.write((slice(0, 2),), np.zeros(3)),
        lambda a: a.oindex[[0, 9]],
        lambda a: a.vindex[[0, 9], [0, 0]],
        lambda a: a.blocks[9],
        lambda a: a.blocks.__setitem__(9, 0),
        lambda a: a.lazy[9],
        lambda a: a.lazy.oindex[[0, 9]],
    ],
    ids=map(str, range(13)),
)
def test_errors_of_selections_name_store_and_path_once(tmp_path, select):
    a = zd.create_array(tmp_path, "g/a", shape=(4, 6), dtype="i4", chunks=(2, 3))
    with pytest.raises(SelectionError) as caught:
        select(a)
    assert str(caught.value).startswith(f"{tmp_path}/g/a: ")
    assert str(caught.value).count(str(tmp_path)) == 1
