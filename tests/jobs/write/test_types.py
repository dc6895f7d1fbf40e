"""Arrays of every kind of element through dask, rechunking and assignment; NumPy is the oracle."""

import datetime as dt

import dask.array as da
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import zarr_dask as zd
from zarr_dask.errors import DataTypeError
from zarr_dask.stores import MemoryStore

N = (7, 5)
COUNTS = np.arange(35).reshape(N)
RECORD = np.dtype([("a", ">i4"), ("b", "U2"), ("c", [("d", "?")])])


def records():
    values = np.zeros(N, RECORD)
    values["a"], values["b"], values["c"]["d"] = COUNTS, "x", COUNTS % 2
    return values


KINDS = {
    "bool": (COUNTS % 3 == 0, "bool"),
    "texts": (COUNTS.astype("U3"), "fixed_length_utf32"),
    "big-endian texts": (COUNTS.astype(">U3"), "fixed_length_utf32"),
    "byte strings": (COUNTS.astype("S3"), "null_terminated_bytes"),
    "raw": (COUNTS.astype("S3").view("V3"), "raw_bytes"),
    "times": (COUNTS.astype("M8[s]"), "numpy.datetime64"),
    "big-endian differences": (COUNTS.astype(">m8[3h]"), "numpy.timedelta64"),
    "records": (records(), "struct"),
    "bfloat16": (COUNTS.astype(ml_dtypes.bfloat16), "bfloat16"),
    "int4": ((COUNTS % 16 - 8).astype("i1").astype(ml_dtypes.int4), "int4"),
    "StringDType": (COUNTS.astype(np.dtypes.StringDType()), "string"),
    "any texts": (COUNTS.astype("U").astype(object), "string"),
    "any byte strings": (COUNTS.astype("S").astype(object), "bytes"),
}


def same(got, want):
    if got.dtype == object:
        return got.tolist() == want.astype(object).tolist()
    return got.tobytes() == want.astype(got.dtype).tobytes()


@pytest.mark.parametrize("shards", [None, (4, 4)], ids=["chunks", "shards"])
@pytest.mark.parametrize("kind", KINDS)
def test_through_dask_and_rechunking(kind, shards):
    values, name = KINDS[kind]
    store, again, other = MemoryStore(), MemoryStore(), MemoryStore()
    lazy = da.from_array(values, chunks=(3, 2))
    zd.to_zarr(lazy, store, chunks=(2, 2), shards=shards)
    array = zd.open_array(store)
    assert array.meta.data_type.name == name
    assert same(array[...], values)
    read = zd.from_zarr(store)
    assert read.dtype == array.dtype
    assert same(read.compute(), values)
    zd.to_zarr(read, again)
    assert zd.open_array(again).meta.data_type == array.meta.data_type
    assert same(zd.open_array(again)[...], values)
    zd.rechunk(store, other, chunks=(7, 1))
    assert zd.open_array(other).meta.data_type == array.meta.data_type
    assert same(zd.open_array(other)[...], values)


@pytest.mark.parametrize("name", ["r24", "complex_bfloat16", "complex_float32", "string", "bytes"])
def test_a_copy_has_the_data_type_of_its_source(name):
    store, copy = MemoryStore(), MemoryStore()
    zd.create_array(store, shape=(4, 4), dtype=name, chunks=2)
    zd.to_zarr(zd.from_zarr(store), copy)
    assert zd.open_array(copy).meta.data_type.name == name


@pytest.mark.parametrize("kind", KINDS)
def test_into_an_array_that_exists(kind):
    values, _ = KINDS[kind]
    store = MemoryStore()
    dtype = str if kind == "any texts" else bytes if kind == "any byte strings" else values.dtype
    array = zd.create_array(store, shape=N, dtype=dtype, chunks=(2, 2))
    zd.to_zarr(da.from_array(values, chunks=(4, 4)), array)
    assert same(zd.open_array(store)[...], values)


@pytest.mark.parametrize("value", [None, 1, 1.5, float("nan")], ids=str)
def test_objects_that_are_no_texts(value):
    values = np.full((4, 4), "text", object)
    values[1, 1] = value
    store = MemoryStore()
    with pytest.raises(DataTypeError, match="neither texts nor byte strings"):
        zd.to_zarr(da.from_array(values, chunks=2), store)
    assert not store.values
    with pytest.raises(DataTypeError, match="not a text"):
        zd.to_zarr(da.from_array(values[::-1, ::-1], chunks=2), store)
    assert "zarr.json" not in store.values


@pytest.mark.parametrize("empty", [(0, 3), (3, 0)])
def test_no_objects_are_texts(empty):
    store = MemoryStore()
    zd.to_zarr(da.from_array(np.empty(empty, object), chunks=2), store)
    assert zd.open_array(store).meta.data_type.name == "string"


@pytest.mark.parametrize(
    ("values", "target"),
    [
        (COUNTS, "U20"),
        (COUNTS, str),
        (COUNTS, bytes),
        (COUNTS.astype("U3"), bytes),
        (COUNTS.astype("S3"), str),
        (COUNTS.astype("U3"), "U2"),
        (COUNTS.astype("S3"), "U3"),
        (COUNTS, "V8"),
        (COUNTS.astype("M8[s]"), "i8"),
        (COUNTS.astype("f4"), "bfloat16"),
    ],
    ids=repr,
)
def test_what_a_target_cannot_hold(values, target):
    store = MemoryStore()
    array = zd.create_array(store, shape=N, dtype=target, chunks=(2, 2))
    with pytest.raises(DataTypeError, match="cannot hold"):
        zd.to_zarr(da.from_array(values, chunks=3), array)
    assert list(store.values) == ["zarr.json"]


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("U3", ["a", "bcd", "efgh"]),
        ("U3", np.array(["a", "b", "c"], ">U5")),
        ("S2", [b"a", b"bcd", b""]),
        ("V2", [b"ab", b"cd", b"ef"]),
        ("M8[s]", ["2020-01-01", "NaT", np.datetime64("1970-01-01T00:00:01")]),
        ("M8[s]", np.array([1, 2, 3], "M8[ms]")),
        ("m8[s]", [1, 2, np.timedelta64(1, "m")]),
        ("i4", np.array([1.9, -2.5, 3], "f8")),
        ("?", [0, 1, 2]),
        (RECORD, [(1, "a", (True,))] * 3),
        (RECORD, (1, "a", (True,))),
        (ml_dtypes.bfloat16, [1, 2.5, 3]),
        (ml_dtypes.int4, np.array([1, 2, -3])),
    ],
    ids=repr,
)
def test_assignment_casts_as_numpy_does(dtype, value):
    array = zd.create_array({}, shape=3, dtype=dtype, chunks=2)
    expected = np.zeros(3, array.dtype)
    array[...] = value
    expected[...] = value
    assert array[...].tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        (str, ["a", "", "b\0"], ["a", "", "b\0"]),
        (str, "same", ["same"] * 3),
        (str, np.array(["a", "b", "c"]), ["a", "b", "c"]),
        (str, np.array(["a", "b", "c"], np.dtypes.StringDType()), ["a", "b", "c"]),
        (str, np.str_("x"), ["x"] * 3),
        (bytes, [b"a", b"", b"\0"], [b"a", b"", b"\0"]),
        (bytes, np.array([b"a", b"b", b"c"]), [b"a", b"b", b"c"]),
        ("complex_bfloat16", [1 + 2j, 0, 3], [(1, 2), (0, 0), (3, 0)]),
    ],
    ids=repr,
)
def test_assignment_of_what_numpy_has_no_type_for(dtype, value, expected):
    array = zd.create_array({}, shape=3, dtype=dtype, chunks=2)
    array[...] = value
    assert array[...].tolist() == expected


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (str, 5),
        (str, ["a", None, "b"]),
        (str, b"x"),
        (str, np.array([1, 2, 3])),
        (bytes, "x"),
        (bytes, ["a", "b", "c"]),
        ("M8[s]", "yesterday"),
        ("i4", "x"),
        (RECORD, (1, 2, 3, 4)),
    ],
    ids=repr,
)
def test_assignment_of_what_does_not_fit(dtype, value):
    array = zd.create_array({}, shape=3, dtype=dtype, chunks=2)
    with pytest.raises(DataTypeError, match="cannot hold"):
        array[...] = value


def test_parts_of_chunks_of_texts_keep_the_rest():
    array = zd.create_array({}, shape=(4, 4), dtype=str, chunks=(3, 3), fill_value="-")
    array[1, 1:3] = ["a", "b"]
    array[3:, ::2] = "c"
    expected = np.full((4, 4), "-", object)
    expected[1, 1:3] = ["a", "b"]
    expected[3:, ::2] = "c"
    assert array[...].tolist() == expected.tolist()


@pytest.mark.parametrize("chunks", ["auto", {0: "auto"}, ("auto", 4), None])
def test_blocks_of_texts(chunks):
    """dask itself makes no automatic blocks of objects."""
    array = zd.create_array({}, shape=(4, 4), dtype=str, chunks=(2, 2), fill_value="-")
    lazy = array.to_dask(chunks)
    assert lazy.shape == (4, 4)
    assert lazy.compute().tolist() == [["-"] * 4] * 4


def test_chunks_of_fill_values_are_not_stored():
    for dtype, fill, other in [
        (str, "", "a"),
        (bytes, b"x", b""),
        ("U2", "ab", "a"),
        (RECORD, 0, None),
    ]:
        store = {}
        array = zd.create_array(store, shape=8, dtype=dtype, chunks=4, fill_value=fill)
        array[...] = array.fill_value
        assert list(store) == ["zarr.json"]
        if other is not None:
            array[5] = other
            assert sorted(store) == ["c/1", "zarr.json"]


# --- records with times ---------------------------------------------------------------------------

PER_SECOND = {"D": (1, 86400), "s": (1, 1), "ms": (1000, 1), "us": (10**6, 1), "ns": (10**9, 1)}
WITH_TIMES = np.dtype(
    [("t", "M8[ns]"), ("i", "i4"), ("in", [("d", "m8[us]"), ("u", "U3")]), ("pair", "M8[ms]", (2,))]
)


@st.composite
def times(draw, kind, unit):
    """A time of some unit as NumPy or Python spell it, and its count in another unit."""
    own = draw(st.sampled_from(sorted(PER_SECOND)))
    count = draw(st.integers(-(2**62), 2**62) | st.integers(-(10**6), 10**6))
    value = np.array(count, "i8").view(f"{kind}8[{own}]")[()]
    (up, down), (own_up, own_down) = PER_SECOND[unit], PER_SECOND[own]
    form = draw(st.sampled_from(["scalar", "array", "text"]))
    if form == "array":
        value = np.asarray(value)
    elif form == "text" and kind == "M" and own == unit:
        value = str(value)
    return value, (count * up * own_down) // (down * own_up)


@st.composite
def records_with_times(draw):
    t, d = draw(times("M", "ns")), draw(times("m", "us"))
    pair = [draw(times("M", "ms")) for _ in range(2)]
    number = draw(st.integers(-(2**33), 2**33) | st.integers(0, 9))
    make = draw(st.sampled_from([tuple, list]))
    value = (t[0], number, (d[0], "x"), make(one for one, _ in pair))
    counts = [t[1], d[1], *(one for _, one in pair)]
    fits = all(-(2**63) < count < 2**63 for count in counts) and -(2**31) <= number < 2**31
    return value, (counts, number), fits


@pytest.mark.filterwarnings("ignore")
@given(rows=st.lists(records_with_times(), min_size=1, max_size=4), nested=st.booleans())
def test_times_in_records_never_wrap_around(rows, nested):
    given_rows = [value for value, _, _ in rows]
    store = MemoryStore()
    shape = (1, len(rows)) if nested else (len(rows),)
    array = zd.create_array(store, shape=shape, dtype=WITH_TIMES, chunks=shape, format="v2")
    before = dict(store.values)
    values = [given_rows] if nested else given_rows
    if not all(fits for _, _, fits in rows):
        with pytest.raises(DataTypeError):
            array[...] = values
        assert store.values == before
        return
    array[...] = values
    for found, (_, (counts, number), _) in zip(array[...].ravel(), rows, strict=True):
        got = [found["t"], found["in"]["d"], *found["pair"]]
        assert [int(one.view("i8")) for one in got] == counts
        assert (found["i"], found["in"]["u"]) == (number, "x")


FAR = np.datetime64("9999-01-01")
PLAIN = [("t", "M8[ns]"), ("i", "i4")]


@pytest.mark.parametrize(
    "value",
    [
        [(FAR, 1)],
        [("9999-01-01", 1)],
        [(dt.datetime.max, 1)],  # noqa: DTZ901  (NumPy has no time zones)
        [("2000-01-01", 1 << 40)],
        [("2000-01-01", 1, 2)],
        [("2000-01-01",)],
        (FAR, 1),
        dt.date.max,
        np.array([(FAR, 1)], [("t", "M8[D]"), ("i", "i4")]),
        np.array([(FAR, 1)], [("t", "M8[D]"), ("i", "i4")])[0],
        np.array([(FAR, 1)], [("a", "M8[D]"), ("b", "i4")]).tolist(),
        np.array([((FAR, 1),), None], object)[:1],
        np.array([("9999-01-01", 1)], [("t", "U10"), ("i", "i4")]),
    ],
    ids=repr,
)  # fmt: skip
def test_records_that_do_not_fit_are_refused(value):
    array = zd.create_array(MemoryStore(), shape=1, dtype=PLAIN, chunks=1)
    with pytest.raises(DataTypeError):
        array[...] = value


def test_records_with_times_are_cast_as_numpy_casts_them():
    stamps = np.array(["2000-01-01T12", "1950-01-01T00"], "M8[h]")
    other = np.array([(stamps[0], 5), (stamps[1], 6)], [("x", "M8[h]"), ("y", "i8")])
    for value in (
        other, other.tolist(), list(other), [tuple(one) for one in other.tolist()],
        other.astype(object), stamps, list(stamps), 7, [7, 8], (stamps[0], 3),
    ):  # fmt: skip
        array = zd.create_array(MemoryStore(), shape=2, dtype=PLAIN, chunks=1)
        array[...] = value
        expected = np.empty(2, PLAIN)
        if isinstance(value, np.ndarray) and value.dtype.kind == "M":
            expected["t"], expected["i"] = stamps, stamps.astype("i8").astype("i4")
        else:
            expected[...] = value
        np.testing.assert_array_equal(array[...], expected)
    empty = zd.create_array(MemoryStore(), shape=0, dtype=PLAIN, chunks=1)
    empty[...] = []
    fields = [("t", "M8[s]", (3,)), ("s", [("d", "m8[s]", (2, 2))])]
    array = zd.create_array(MemoryStore(), shape=2, dtype=fields, chunks=1, format="v2")
    array[...] = [(5, (6,)), ([1, 2, 3], ([[1, 2], [3, 4]],))]
    expected = np.array([(5, (6,)), ([1, 2, 3], ([[1, 2], [3, 4]],))], fields)
    np.testing.assert_array_equal(array[...], expected)


def test_advice_for_longer_texts_is_a_type_of_numpy(tmp_path):
    array = zd.create_array(tmp_path / "a", shape=(2,), dtype="U1")
    values = da.from_array(np.array(["ab", "c"]))
    with pytest.raises(DataTypeError, match=r"every value of U2; convert with x\.astype\('U1'\)"):
        zd.to_zarr(values, array, region=(slice(0, 2),))
    zd.to_zarr(values.astype("U1"), array, region=(slice(0, 2),))
    assert list(array[...]) == ["a", "c"]
