"""Arrays: creating, opening, reading and writing, without dask."""

import math
import os
import pickle
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import zarr_dask as zd
from zarr_dask.array.cells import dividing_chunks
from zarr_dask.errors import (
    ChunkMissingError,
    DataTypeError,
    GridError,
    MetadataError,
    ReadOnlyError,
    SelectionError,
    ZarrDaskWarning,
)
from zarr_dask.stores import LocalStore, MemoryStore, Recording


@pytest.fixture
def values():
    return np.arange(7 * 10, dtype="f4").reshape(7, 10) + 1


@pytest.fixture(params=["v3", "v3 sharded", "v2"])
def array(request, values, tmp_path):
    kind, _, sharded = request.param.partition(" ")
    shards = (4, 8) if sharded else None
    made = zd.create_array(
        tmp_path / "a", shape=values.shape, dtype="f4", chunks=(2, 4), shards=shards, format=kind
    )
    made[...] = values
    return made


def test_properties(array, values):
    assert (array.shape, array.ndim, array.size) == ((7, 10), 2, 70)
    assert (array.dtype, array.nbytes, len(array)) == (np.dtype("f4"), 280, 7)
    assert array.chunks == (2, 4)
    assert array.write_chunks == (array.shards or array.chunks)
    assert array.fill_value == 0
    assert array.nbytes_stored() == sum(
        array.store.size(key) for key in array.store.list() if "z" not in key
    )
    assert str(array.path) in repr(array)


def test_reads_are_numpys(array, values):
    np.testing.assert_array_equal(np.asarray(array), values)
    assert array[3, 4] == values[3, 4]
    assert type(array[3, 4]) is np.float32
    np.testing.assert_array_equal(array[::-2, None, 3:], values[::-2, None, 3:])
    np.testing.assert_array_equal(array[-1], values[-1])


@pytest.mark.parametrize("threads", [1, 2, None])
def test_read_into_given_memory(array, values, threads):
    big = np.zeros((9, 12), "f4")
    out = big[1:4, 2:8]
    assert array.read((slice(2, 5), slice(3, 9)), out=out, threads=threads) is out
    np.testing.assert_array_equal(out, values[2:5, 3:9])
    assert big.sum() == out.sum()


def test_memory_that_does_not_fit(array):
    with pytest.raises(SelectionError, match=r"shape \(2, 2\), the region has \(7, 10\)"):
        array.read(out=np.empty((2, 2), "f4"))
    with pytest.raises(DataTypeError, match="float32; got float64"):
        array.read(out=np.empty((7, 10)))
    frozen = np.empty((7, 10), "f4")
    frozen.flags.writeable = False
    with pytest.raises(DataTypeError, match="read-only"):
        array.read(out=frozen)


def test_writes_are_numpys(array, values):
    for index, value in [
        ((slice(1, 6, 2), slice(None, None, -3)), 5),
        ((2,), np.arange(10)),
        ((..., 0), -1),
        ((slice(3, 3),), 7),
        ((slice(None), None, slice(2, 4)), np.ones((7, 1, 1))),
    ]:
        array[index] = value
        values[index] = value
        np.testing.assert_array_equal(array[...], values)
    np.testing.assert_array_equal(zd.open_array(array.store)[...], values)


def test_values_that_do_not_fit(array):
    with pytest.raises(ValueError, match="broadcast"):
        array[:2] = np.ones((3, 10))
    with pytest.raises(DataTypeError, match="float32"):
        array[:2] = "text"
    with pytest.raises(SelectionError, match=r"values have shape \(2,\)"):
        array.write((slice(0, 3),), np.ones(2))


def test_each_stored_object_is_written_once(values):
    store = Recording(MemoryStore())
    array = zd.create_array(store, shape=values.shape, dtype="f4", chunks=(2, 2), shards=(4, 4))
    store.clear()
    array[...] = values
    assert store.per_key("set") == {"c/0/0": 1, "c/0/1": 1}  # they need no look at what is there
    ends = {"c/0/2": 1, "c/1/0": 1, "c/1/1": 1, "c/1/2": 1}  # an append may be changing these
    assert store.per_key("get") == store.per_key("set_if") == ends
    store.clear()
    array[1:3, 1:3] = 0
    assert store.per_key("get") == store.per_key("set") == {"c/0/0": 1}


def test_fill_values_are_not_stored():
    store = MemoryStore()
    array = zd.create_array(store, shape=(4, 4), dtype="f8", chunks=2, fill_value=np.nan)
    array[...] = 1
    assert len(store.values) == 5
    array[:2] = np.nan
    assert sorted(store.values) == ["c/1/0", "c/1/1", "zarr.json"]
    assert np.isnan(array[0, 0])
    array[:2] = np.array(0x7FF8000000000001, "u8").view("f8")  # another NaN is a value
    assert len(store.values) == 5


def test_without_a_fill_value_everything_is_stored():
    store = MemoryStore()
    array = zd.create_array(store, shape=(4,), dtype="i2", chunks=2, fill_value=None, format="v2")
    assert array.fill_value is None
    assert array[...].tolist() == [0] * 4
    array[...] = 0
    assert {"0", "1"} < set(store.values)


def test_absence_as_an_error():
    array = zd.create_array({}, shape=(4, 4), dtype="i2", chunks=(1, 1), shards=(2, 2))
    array[:2, :2] = [[1, 0], [2, 3]]
    strict = zd.open_array(array, read=zd.ReadOptions(missing="error"))
    assert strict[0, 0] == 1
    with pytest.raises(ChunkMissingError, match=r"chunk \(0, 1\) of the shard is absent"):
        strict[0, 1]
    with pytest.raises(ChunkMissingError, match=r"'c/1/1' \(chunk \(1, 1\)\) is absent"):
        strict[3, 3]


@pytest.mark.parametrize("grid", [{"chunks": 4}, {"chunks": 2, "shards": 4}], ids=str)
def test_writing_a_part_of_what_is_missing_begins_with_the_fill_value(grid):
    """In new arrays everything is missing; `missing` says how to read."""
    values = {}
    zd.create_array(values, shape=8, dtype="i4", fill_value=9, **grid)
    array = zd.open_array(values, mode="r+", read=zd.ReadOptions(missing="error"))
    array[0] = 1
    assert array[:2].tolist() == [1, 9]
    absent = slice(2, 4) if "shards" in grid else slice(4, 8)
    with pytest.raises(ChunkMissingError):
        array[absent]


def test_reading_needs_no_right_to_write(array):
    opened = zd.open_array(array.store)
    with pytest.raises(ReadOnlyError, match="reading only"):
        opened[0, 0] = 1
    with pytest.raises(ReadOnlyError):
        opened.update_attributes({"a": 1})


def test_nodes_are_frozen_and_attributes_are_not_lost(array):
    with pytest.raises(AttributeError):
        array.path = "b"
    with pytest.raises(TypeError, match="attrs"):
        array.attributes["x"] = 1
    changed = array.update_attributes({"unit": "m", "n": np.int64(3)})
    assert (
        array.attributes
        == changed.attributes
        == zd.open_array(array.store).attributes
        == {"unit": "m", "n": 3}
    )
    with pytest.raises(MetadataError, match="finite numbers"):
        changed.update_attributes({"bad": float("nan")})
    assert zd.open_array(array.store).attributes == {"unit": "m", "n": 3}


def test_pickles_are_small(array, values):
    opened = zd.open_array(array.store)
    opened[0, 0]  # what is worked out on use must not travel
    data = pickle.dumps(opened)
    assert len(data) < 2000
    np.testing.assert_array_equal(pickle.loads(data)[...], values)


def test_many_threads_read_and_write_one_array(tmp_path):
    array = zd.create_array(
        tmp_path / "a", shape=(64, 64), dtype="i4", chunks=(4, 4), shards=(8, 64)
    )
    expected = np.arange(64 * 64, dtype="i4").reshape(64, 64) + 1

    def work(row):
        for _ in range(5):
            array.write((slice(row, row + 8),), expected[row : row + 8], threads=1)
            np.testing.assert_array_equal(array[row : row + 8], expected[row : row + 8])

    threads = [threading.Thread(target=work, args=(row,)) for row in range(0, 64, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(array[...], expected)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_reads_after_a_fork(array, values):
    assert array[...].sum() == values.sum()  # the pool of this process has its threads now
    child = os.fork()
    if child == 0:
        same = bool((array[...] == values).all())
        os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_an_error_in_a_thread_is_raised(tmp_path):
    array = zd.create_array(tmp_path / "a", shape=(64,), dtype="i4", chunks=1, codecs=[])
    array[...] = 1
    LocalStore(str(tmp_path / "a")).set("c/40", [b"123"])
    with pytest.raises(ValueError, match="'c/40'"):
        array.read()


# --- creating -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"chunks": (2,)}, GridError, "expected 2 integers"),
        ({"chunks": (2, 0)}, GridError, "at least 1"),
        ({"chunks": (3, 2), "shards": (4, 4)}, GridError, "do not divide"),
        ({"shards": (4, 4), "format": "v2"}, GridError, "no shards"),
        ({"shape": (-1, 2)}, GridError, "shape="),
        ({"dtype": "nope"}, DataTypeError, "not a data type"),
        ({"dtype": "O"}, MetadataError, "dtype: got"),
        ({"fill_value": "x"}, DataTypeError, "fill_value='x'"),
        ({"fill_value": None}, DataTypeError, "fill_value=None"),
        ({"codecs": ["nope"]}, MetadataError, "known codec"),
        ({"codecs": [{"id": "nope"}], "format": "v2"}, MetadataError, "known codec"),
        ({"dimension_names": ["x"]}, GridError, "dimension_names"),
        ({"chunk_key_encoding": "fan"}, MetadataError, "chunk_key_encoding"),
        ({"chunk_key_encoding": "default", "format": "v2"}, MetadataError, "'v2' in format v2"),
        ({"order": "K"}, ValueError, "order='K'"),
        ({"format": "v9"}, ValueError, "format='v9'"),
        ({"attributes": {"x": object()}}, MetadataError, "attributes"),
    ],
)
def test_arrays_that_cannot_be_leave_nothing_behind(options, error, words):
    store = MemoryStore()
    with pytest.raises(error, match=words):
        zd.create_array(store, **{"shape": (8, 8), "dtype": "f4", "chunks": 4, **options})
    assert store.values == {}


@pytest.mark.parametrize("node_format", ["v3", "v2"])
def test_repeated_names_of_dimensions_are_warned_of(node_format):
    with pytest.warns(ZarrDaskWarning, match="two dimensions have one name"):
        array = zd.create_array(
            {}, shape=(2, 2), dtype="f4", dimension_names=["x", "x"], format=node_format
        )
    assert array.dimension_names == ("x", "x")
    zd.create_array({}, shape=(2, 2), dtype="f4", dimension_names=[None, None], format=node_format)


def test_automatic_chunks():
    assert zd.create_array({}, shape=(4096, 4096, 3), dtype="u1").chunks == (1182, 1182, 3)
    sharded = zd.create_array({}, shape=(1024, 1024), dtype="f4", shards=(1024, 512))
    assert sharded.chunks == (512, 512)
    assert zd.create_array({}, shape=(), dtype="f4").chunks == ()
    assert zd.create_array({}, shape=(0, 5), dtype="f4").chunks == (1, 5)


@settings(max_examples=200)
@given(
    st.lists(st.integers(1, 5000), min_size=1, max_size=3),
    st.sampled_from([1, 2, 8]),
    st.sampled_from([1 << 14, 1 << 20]),
)
def test_chunks_that_divide_shards_are_never_tiny(shards, itemsize, nbytes):
    chunks = dividing_chunks(tuple(shards), itemsize, nbytes)
    assert all(n % size == 0 for n, size in zip(shards, chunks, strict=True))
    size = math.prod(chunks) * itemsize
    assert size * 4096 >= min(nbytes, math.prod(shards) * itemsize)


def test_default_codecs():
    array = zd.create_array({}, shape=(4,), dtype="f4")
    assert [codec.name for codec in array.codecs] == ["bytes", "blosc", "crc32c"]
    assert array.codecs[1].configuration() == {
        "cname": "zstd", "clevel": 1, "shuffle": "shuffle", "typesize": 4, "blocksize": 1 << 20,
    }  # fmt: skip
    for dtype, first in (("i1", "bytes"), ("bool", "bytes"), ("string", "vlen-utf8")):
        codecs = zd.create_array({}, shape=(4,), dtype=dtype).codecs
        assert [codec.name for codec in codecs] == [first, "zstd", "crc32c"]


def test_codecs_may_be_named_shortly():
    array = zd.create_array({}, shape=(4,), dtype="f4", codecs=["blosc", "gzip", "zstd", "crc32c"])
    array[...] = 3
    assert array[...].tolist() == [3] * 4


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ((10, "auto"), (10, 4000)),
        ((-1, "auto"), (5000, 209)),
        ((None, 10), (5000, 10)),
        (("auto", "auto"), (1024, 1024)),
        ({"x": "auto"}, (1024, 1024)),
        ({"y": None}, (5000, 1024)),
    ],
)
def test_lengths_of_chunks_along_some_dimensions_are_chosen(chunks, expected):
    names = ("y", "x")
    made = zd.create_array({}, shape=(5000, 4000), dtype="f4", chunks=chunks, dimension_names=names)
    assert made.chunks == expected


def test_fields_of_structured_elements_are_read_by_name():
    values = np.zeros((4, 3), [("a", "i4"), ("b", "f8")])
    values["a"] = np.arange(12).reshape(4, 3)
    array = zd.create_array({}, data=values, chunks=2)
    np.testing.assert_array_equal(array["a"], values["a"])
    np.testing.assert_array_equal(array[1:3, "b"], values[1:3]["b"])
    np.testing.assert_array_equal(array["a", [0, 2]], values["a"][[0, 2]])
    assert array[["b"]].dtype.names == ("b",)
    assert array[1, 2, "a"] == 5
    np.testing.assert_array_equal(array.oindex["a", [0, 2], [1]], values["a"][[0, 2]][:, [1]])
    np.testing.assert_array_equal(array.vindex[[0, 2], [1, 0], "b"], values["b"][[0, 2], [1, 0]])
    np.testing.assert_array_equal(array.blocks["a", 1], values["a"][2:])
    taken = array.get_orthogonal_selection(([0, 2], slice(None)), fields="a")
    np.testing.assert_array_equal(taken, values["a"][[0, 2]])
    assert array.get_basic_selection((1, 2), fields=["a"]).item() == (5,)
    assert array.get_mask_selection(values["a"] > 9, fields="a").tolist() == [10, 11]
    assert array.get_block_selection((1, 1), fields="a").tolist() == [[8], [11]]
    with pytest.raises(SelectionError, match="'c' is no field"):
        array.get_basic_selection(fields="c")
    with pytest.raises(TypeError, match="the elements have none"):
        zd.create_array({}, data=[1, 2]).get_basic_selection(fields="a")
    with pytest.raises(SelectionError, match=r"'aa' is no field of .* a, b\. Did you mean 'a'"):
        array["aa"]
    with pytest.raises(SelectionError, match="written whole, not by the field 'a'"):
        array["a"] = 1
    np.testing.assert_array_equal(array[...], values)


@pytest.mark.parametrize(("format", "key"), [("v2", "0/1"), ("v3", "c/0/1")])
def test_a_separator_says_what_keys_look_like(format, key):
    for named in ({"dimension_separator": "/"}, {"chunk_key_encoding": "/"}):
        made = zd.create_array({}, shape=(4, 4), chunks=2, dtype="f4", format=format, **named)
        assert made.key((0, 1)) == key


def test_grids_may_be_arrays_of_numpy():
    chunks, shards = np.array([4, 4]), np.array([8, 8])
    made = zd.create_array({}, data=np.zeros((20, 20)), chunks=chunks, shards=shards)
    zd.rechunk(made, copy := {}, chunks=chunks, shards=shards, codecs="zstd")
    for array in (made, zd.open_array(copy)):
        assert (array.chunks, array.shards) == ((4, 4), (8, 8))
