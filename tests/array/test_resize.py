"""Other shapes for arrays that exist, in every format that is written."""

from __future__ import annotations

import pickle
from contextlib import nullcontext

import numpy as np
import pytest
import tensorstore as ts
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import zarr_dask as zd
from zarr_dask.errors import (
    CorruptObjectError,
    DataTypeError,
    GridError,
    MetadataChangedError,
    MetadataError,
    ReadOnlyError,
    StoreError,
    UnknownCodecError,
)
from zarr_dask.stores import HookStore, MemoryStore, Recording

LAYOUTS = {
    "v1": {"format": "v1", "chunks": (2, 3)},
    "v2": {"format": "v2", "chunks": (2, 3)},
    "v2 F": {"format": "v2", "chunks": (2, 3), "order": "F"},
    "v3": {"chunks": (2, 3), "chunk_key_encoding": "v2"},
    "shards": {"chunks": (2, 1), "shards": (4, 3)},
    "rectilinear": {"chunks": ((1, 3, 1), (2, 4))},
    "rectilinear shards": {"chunks": (1, 2), "shards": ((1, 3, 1), (2, 4))},
}


@pytest.fixture(params=LAYOUTS)
def layout(request):
    return LAYOUTS[request.param]


def made(layout, fill=-1, shape=(5, 6)):
    array = zd.create_array(
        MemoryStore(), shape=shape, dtype="i4", fill_value=fill, attributes={"a": 1}, **layout
    )
    array[...] = values_of(shape)
    return array


def values_of(shape):
    return np.arange(np.prod(shape, dtype=int), dtype="i4").reshape(shape)


def objects(array):
    """Stored objects by key."""
    prefix = array.node_format.data_prefix(array.path)
    return {
        key: bytes(value)
        for key, value in array.store.values.items()
        if array.meta.chunk_key_encoding.coords(key[len(prefix) :], array.ndim) is not None
    }


def fitted(values, shape, fill=-1):
    """The values in another shape, with the fill value where there are none."""
    result = np.full(shape, fill, values.dtype)
    common = tuple(slice(0, min(n, m)) for n, m in zip(values.shape, shape, strict=True))
    result[common] = values[common]
    return result


# --- shrinking ------------------------------------------------------------------------------------


@pytest.mark.conformance("C140")
def test_shrinking_keeps_objects(layout):
    array = made(layout)
    before = objects(array)
    smaller = array.resize((3, 4))
    assert array.shape == smaller.shape == zd.open(array.store).shape == (3, 4)
    assert objects(array) == before
    np.testing.assert_array_equal(smaller[...], values_of((5, 6))[:3, :4])
    np.testing.assert_array_equal(smaller.resize((5, 6))[...], values_of((5, 6)))


@pytest.mark.conformance("C140")
def test_shrinking_deletes_objects_if_asked_to(layout):
    array = made(layout)
    before = objects(array)
    smaller = array.resize((3, 4), prune=True)
    left = objects(smaller)
    assert set(left) == {smaller.key(c) for c in np.ndindex(smaller.meta.grid.counts)}
    assert set(left) < set(before)
    np.testing.assert_array_equal(smaller[...], values_of((5, 6))[:3, :4])
    # whoever lets it grow sees the fill value, also in the objects that the border cut
    again = smaller.resize((5, 6))
    np.testing.assert_array_equal(again[...], fitted(values_of((5, 6))[:3, :4], (5, 6)))


@pytest.mark.conformance("C140")
def test_growing_exposes_the_fill_value(layout):
    array = made(layout)
    before = objects(array)
    larger = array.resize((9, 13))
    assert objects(larger) == before
    np.testing.assert_array_equal(larger[...], fitted(values_of((5, 6)), (9, 13)))
    larger[7:, 11:] = 5
    assert zd.open(larger.store)[...].sum() == fitted(values_of((5, 6)), (9, 13)).sum() + 4 * 6


@pytest.mark.conformance("C140")
def test_growing_over_what_was_left_there(layout):
    """What an earlier shape left is shown as before, or not at all."""
    smaller = made(layout).resize((2, 2))
    larger = smaller.resize((5, 6), prune=True)
    np.testing.assert_array_equal(larger[...], fitted(values_of((5, 6))[:2, :2], (5, 6)))
    assert set(objects(larger)) <= set(objects(made(layout)))
    both = made(layout).resize((2, 9)).resize((8, 4), prune=True)
    np.testing.assert_array_equal(both[...], fitted(values_of((5, 6))[:2, :4], (8, 4)))
    again = both.resize((8, 9))
    np.testing.assert_array_equal(again[...], fitted(values_of((5, 6))[:2, :4], (8, 9)))


def test_pruning_writes_only_what_changes():
    store = Recording(MemoryStore())
    array = zd.create_array(store, shape=(8, 8), dtype="i4", chunks=(4, 4), codecs=[])
    array[...] = 1
    store.clear()
    smaller = array.resize((8, 4), prune=True)
    assert store.per_key("delete") == {"c/0/1": 1, "c/1/1": 1}
    assert not store.per_key("set")
    assert set(store.per_key("set_if")) == {"zarr.json"}
    store.clear()
    smaller.resize((6, 4), prune=True)
    assert store.per_key("set_if") == {"c/1/0": 1, "zarr.json": 1}
    store.clear()
    zd.open(store, mode="r+").resize((6, 4), prune=True)
    assert not {*store.per_key("set"), *store.per_key("set_if"), *store.per_key("delete")}


def test_what_remains_of_an_object_may_be_fill_values():
    """It stays: a region write may be about to put it back."""
    array = zd.create_array(MemoryStore(), shape=(4,), dtype="i4", chunks=4, fill_value=7)
    array[...] = [7, 7, 1, 1]
    assert objects(array.resize(2, prune=True)).keys() == {"c/0"}
    np.testing.assert_array_equal(array.resize(4)[...], 7)


def test_arrays_without_a_fill_value():
    array = made({"format": "v2", "chunks": (2, 3)}, fill=None)
    again = array.resize((3, 4), prune=True).resize((5, 6))
    np.testing.assert_array_equal(again[...], fitted(values_of((5, 6))[:3, :4], (5, 6), 0))


def test_shapes_down_to_nothing(layout):
    array = made(layout)
    empty = array.resize((0, 6), prune=True)
    assert (empty.shape, objects(empty)) == ((0, 6), {})
    assert zd.open(empty.store)[...].shape == (0, 6)
    np.testing.assert_array_equal(empty.resize((5, 6))[...], np.full((5, 6), -1))


@pytest.mark.conformance("C140")
@pytest.mark.parametrize("grids", [{"chunks": (2, 3)}, {"chunks": (2, 1), "shards": (4, 3)}])
def test_drafts(grids):
    store = MemoryStore()
    array = zd.create_array(
        store, "x", shape=(5, 6), dtype="i4", fill_value=-1, format="v3draft", **grids
    )
    array[...] = values_of((5, 6))
    kept = array.resize((3, 4)).resize((5, 6))
    np.testing.assert_array_equal(kept[...], values_of((5, 6)))
    kept.resize((3, 4), prune=True).resize((7, 6)).append(np.ones((2, 6)))
    expected = fitted(values_of((5, 6))[:3, :4], (9, 6))
    expected[7:] = 1
    np.testing.assert_array_equal(zd.open(store, "x")[...], expected)


def test_texts():
    array = zd.create_array(MemoryStore(), shape=(4,), dtype="string", chunks=4, fill_value="?")
    array[...] = ["a", "b", "é", "d"]
    again = array.resize(2, prune=True).resize(4)
    assert again[...].tolist() == ["a", "b", "?", "?"]


def test_other_files_stay():
    array = made({"chunks": (2, 3)})
    for key in ("c/9", "c/0/0/0", "c/a/b", "notes.txt", "c/1/01"):
        array.store.set(key, [b"x"])
    array.resize((0, 0), prune=True)
    assert set(array.store.values) == {
        "c/9", "c/0/0/0", "c/a/b", "notes.txt", "c/1/01", "zarr.json"
    }  # fmt: skip


def test_objects_outside_every_shape_go_too():
    for layout in (LAYOUTS["v3"], LAYOUTS["rectilinear"]):
        array = made(layout)
        array.store.set(array.key((77, 0)), [b"x"])
        array.resize((5, 5), prune=True)
        assert array.key((77, 0)) not in array.store.values


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [5, (5,), (5, 6, 1), (5, -1), (5, 6.0), (5, "6"), None, "56"])
def test_shapes_that_are_none(shape):
    array = made({"chunks": (2, 3)})
    before = dict(array.store.values)
    with pytest.raises(GridError, match="shape="):
        array.resize(shape, prune=True)
    assert array.store.values == before


def test_arrays_that_others_have_changed(layout):
    array = made(layout)
    other = zd.open(array.store, mode="r+")
    other.update_attributes({"b": 2})
    other = pickle.loads(pickle.dumps(other))  # as in another process
    assert array.resize((4, 6)).attributes == {"a": 1, "b": 2}
    before = dict(array.store.values)
    for action in (lambda: other.resize((9, 9), prune=True), lambda: other.append(np.ones((1, 6)))):
        with pytest.raises(MetadataChangedError, match="Open it again"):
            action()
    assert array.store.values == before
    assert zd.open(array.store).shape == (4, 6)


def test_arrays_open_for_reading(layout):
    array = made(layout)
    before = dict(array.store.values)
    opened = zd.open(array.store)
    for action in (
        lambda: opened.resize((4, 6)),
        lambda: opened.resize((4, 6), prune=True),
        lambda: opened.append(np.ones((1, 6), "i4")),
    ):
        with pytest.raises(ReadOnlyError):
            action()
    assert array.store.values == before


@pytest.mark.filterwarnings("ignore:.*unknown codec")
def test_objects_that_cannot_be_written():
    array = made({"chunks": (2, 3)})
    unknown = b'{"name": "shiny", "must_understand": false}'
    text = bytes(array.store.get("zarr.json")).replace(
        b'"codecs": [', b'"codecs": [' + unknown + b","
    )
    array.store.set("zarr.json", [text])
    opened = zd.open(array.store, mode="r+")
    with pytest.raises(UnknownCodecError, match="shiny"):
        opened.resize((4, 5), prune=True)
    with pytest.raises(UnknownCodecError, match="shiny"):
        opened.append(np.ones((1, 6), "i4"))
    assert opened.resize((4, 5)).shape == (4, 5)


def test_damaged_objects_are_located():
    array = made({"chunks": (2, 3)})
    array.store.set("c/1/1", [b"short"])
    with pytest.raises(CorruptObjectError, match="c/1/1"):
        array.resize((3, 6), prune=True)


def test_a_chunk_of_any_length_is_not_made():
    array = made(LAYOUTS["rectilinear"])
    with pytest.raises(MetadataError, match="chunks of 1759"):
        array.resize((1 << 40, 6))
    assert zd.open(array.store).shape == (5, 6)


# --- appending ----------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1, -1, -2])
def test_appending(layout, axis):
    array = made(layout)
    expected = values_of((5, 6))
    for length in (1, 4, 0, 3):
        shape = list(expected.shape)
        shape[axis] = length
        more = values_of(tuple(shape)) + 100
        array = array.append(more, axis)
        expected = np.concatenate([expected, more], axis)
        np.testing.assert_array_equal(array[...], expected)
    np.testing.assert_array_equal(zd.open(array.store)[...], expected)
    assert array.attributes == {"a": 1}


def test_each_month_gets_a_chunk():
    array = zd.create_array(MemoryStore(), shape=(0, 4), dtype="f4", chunks=((31,), 4))
    for days in (31, 28, 31, 30):
        array = array.append(np.ones((days, 4)))
    assert array.to_dask().chunks == ((31, 28, 31, 30), (4,))
    assert array.meta.grid.dimensions[0].runs == ((31, 1), (28, 1), (31, 1), (30, 1))


def test_elements_come_before_the_document():
    store = Recording(MemoryStore())
    array = zd.create_array(store, shape=(3,), dtype="i4", chunks=2)
    array[...] = 1
    store.clear()
    array.append([2, 3, 4])
    written = [request.key for request in store.requests if request.method in {"set", "set_if"}]
    assert written[-1] == "zarr.json"
    assert set(written) == {"c/1", "c/2", "zarr.json"}


def test_a_failed_append_leaves_the_array_as_it_was():
    inner = MemoryStore()
    array = zd.create_array(inner, shape=(2,), dtype="i4", chunks=2)
    array[...] = 1

    def fail(method, key):
        if method == "set" and key == "c/2":
            raise StoreError("the disk is full")

    faulty = zd.open(HookStore(inner, fail), mode="r+")
    with pytest.raises(StoreError, match="disk is full"):
        faulty.append([2, 3, 4])
    assert zd.open(inner)[...].tolist() == [1, 1]


@pytest.mark.parametrize("in_batch", [False, True])
def test_an_append_reads_its_metadata_once(in_batch):
    inner = MemoryStore()
    zd.create_array(inner, shape=(2,), dtype="i4", chunks=2)
    recording = Recording(inner)
    array = zd.open(recording, mode="r+")
    recording.clear()
    with array.batch() if in_batch else nullcontext():
        array.append([2, 3, 4])
    assert recording.per_key("get")["zarr.json"] == 1
    assert zd.open(inner)[...].tolist() == [0, 0, 2, 3, 4]


@pytest.mark.parametrize("in_batch", [False, True])
def test_attributes_that_others_set_during_an_append_stay(in_batch):
    inner = MemoryStore()
    other = zd.create_array(inner, shape=(2,), dtype="i4", chunks=2)

    def meddle(method, key):
        if method == "set" and key == "c/1":
            other.update_attributes({"units": "m"})

    array = zd.open(HookStore(inner, meddle), mode="r+")
    with array.batch() if in_batch else nullcontext():
        array.append([2, 3, 4])
    found = zd.open(inner)
    assert found[...].tolist() == [0, 0, 2, 3, 4]
    assert found.attrs["units"] == array.attrs["units"] == "m"


@pytest.mark.parametrize(
    ("values", "axis"),
    [(np.ones(6), 0), (np.ones((1, 5)), 0), (np.ones((1, 6)), 1), (np.ones((1, 6)), 2), (1, 0)],
)
def test_values_that_do_not_fit(values, axis):
    array = made({"chunks": (2, 3)})
    before = dict(array.store.values)
    with pytest.raises(GridError, match="cannot be appended"):
        array.append(values, axis)
    assert array.store.values == before
    scalar = zd.create_array(MemoryStore(), shape=(), dtype="i4")
    with pytest.raises(GridError, match="cannot be appended"):
        scalar.append(1)


NOT_HELD = {
    "overflow": ("f4", np.array([1e300])),
    "overflow in a list": ("f4", [1e300]),
    "rounded": ("f4", np.array([0.1])),
    "fraction": ("i8", np.array([1.5])),
    "fraction in a list": ("i8", [1.5]),
    "wrapped": ("i1", np.array([300])),
    "imaginary": ("f8", np.array([1j])),
    "cut text": ("U3", ["abcd"]),
    "half a second": ("M8[s]", np.array(["2020-01-01T00:00:00.5"], "M8[ms]")),
}


@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
@pytest.mark.parametrize(("dtype", "values"), NOT_HELD.values(), ids=NOT_HELD)
def test_appends_that_would_change_values(dtype, values):
    array = zd.create_array({}, shape=(0,), dtype=dtype, chunks=2)
    with pytest.raises(DataTypeError, match="cannot hold"):
        array.append(values)
    assert zd.open(array.store).shape == (0,)
    if dtype != "f4":
        assert array.append(values, casting="unsafe").shape == (1,)


@pytest.mark.parametrize(
    ("dtype", "values"),
    [("f4", np.array([1.0, np.nan])), ("f4", [0.1]), ("i2", np.arange(3)), ("c8", np.arange(2))],
)
def test_appends_that_fit(dtype, values):
    array = zd.create_array({}, shape=(0,), dtype=dtype, chunks=2)
    np.testing.assert_array_equal(array.append(values)[...], np.asarray(values, dtype))
    rounded = array.append(np.array([0.1]), casting="same_kind") if dtype == "f4" else array
    assert rounded.dtype == dtype


# --- any shapes, as NumPy -------------------------------------------------------------------------

SHAPES = st.tuples(st.integers(0, 9), st.integers(0, 9))


@settings(max_examples=40)
@given(st.sampled_from(sorted(LAYOUTS)), st.lists(st.tuples(SHAPES, st.integers(0, 3)), max_size=5))
def test_any_sequence_of_shapes(name, steps):
    """With pruning, an array is always what NumPy makes of it by copying what both shapes hold."""
    array = made(LAYOUTS[name])
    model = values_of((5, 6))
    for shape, value in steps:
        array = array.resize(shape, prune=True)
        model = fitted(model, shape)
        np.testing.assert_array_equal(array[...], model)
        array[shape[0] // 2 :, 1::2] = value
        model[shape[0] // 2 :, 1::2] = value
    np.testing.assert_array_equal(zd.open(array.store)[...], model)


# --- peers ----------------------------------------------------------------------------------------


@pytest.mark.conformance("C140")
@pytest.mark.parametrize("name", ["v2", "v3", "shards"])
def test_peers_see_the_same(name, tmp_path):
    layout = LAYOUTS[name]
    array = zd.create_array(tmp_path, shape=(5, 6), dtype="i4", fill_value=-1, **layout)
    array[...] = values_of((5, 6))
    array = array.resize((3, 4), prune=True).resize((7, 6)).append(np.ones((2, 6)))
    expected = fitted(values_of((5, 6))[:3, :4], (9, 6))
    expected[7:] = 1
    np.testing.assert_array_equal(array[...], expected)
    np.testing.assert_array_equal(zarr.open_array(tmp_path, mode="r")[...], expected)
    driver = "zarr" if name == "v2" else "zarr3"
    spec = {"driver": driver, "kvstore": f"file://{tmp_path}/"}
    np.testing.assert_array_equal(ts.open(spec).result().read().result(), expected)


@pytest.mark.conformance("C140")
@pytest.mark.parametrize("name", ["v2", "v3", "shards"])
def test_pruned_by_zarr_python_keeps_the_rest_of_objects(name, tmp_path):
    """zarr-python deletes whole objects only: what it leaves is shown, or cleared by us."""
    array = zd.create_array(tmp_path, shape=(5, 6), dtype="i4", fill_value=-1, **LAYOUTS[name])
    array[...] = values_of((5, 6))
    zarr.open_array(tmp_path, mode="r+").resize((1, 6))
    shown = zd.open(tmp_path, mode="r+").resize((2, 6))
    np.testing.assert_array_equal(shown[...], values_of((5, 6))[:2])
    zarr.open_array(tmp_path, mode="r+").resize((1, 6))
    cleared = zd.open(tmp_path, mode="r+").resize((2, 6), prune=True)
    np.testing.assert_array_equal(cleared[...], fitted(values_of((5, 6))[:1], (2, 6)))


@pytest.mark.parametrize("dtype", ["U1", "S1"])
def test_texts_whose_ends_would_be_cut_off_are_not_appended(dtype):
    array = zd.create_array({}, data=np.array(["x", "y"], dtype))
    kind = str if dtype[0] == "U" else str.encode
    with pytest.raises(DataTypeError, match="cannot hold the given values of object"):
        array.append(np.array([kind("b"), kind("abc")], object))
    array.append(np.array([kind("b"), kind("c")], object))
    assert array[...].tolist() == [kind(one) for one in "xybc"]


def test_text_is_appended_as_bytes_and_bytes_as_text():
    array = zd.create_array({}, data=np.array(["x"], "S2"))
    array.append(np.array(["ab"], object))
    assert array[...].tolist() == [b"x", b"ab"]
    array = zd.create_array({}, data=np.array(["x"], "U2"))
    array.append(np.array([b"ab"], object))
    assert array[...].tolist() == ["x", "ab"]
    with pytest.raises(DataTypeError, match="cannot hold the given values of object"):
        array.append(np.array([None], object))
