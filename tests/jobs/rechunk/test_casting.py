"""Laying arrays out anew with another data type, other codecs or in another format."""

from __future__ import annotations

import json

import dask
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import zarr_dask as zd
from zarr_dask.errors import (
    DataTypeError,
    GridError,
    NodeNotFoundError,
    UnknownCodecError,
)
from zarr_dask.jobs.engine.cost_model import StagePlan
from zarr_dask.stores import MemoryStore

VALUES = np.arange(-60, 60, dtype="i2").reshape(10, 12)


@pytest.fixture(autouse=True)
def one_thread():
    with dask.config.set(scheduler="sync"):
        yield


def made(values=VALUES, **options) -> zd.Array:
    options = {"dtype": values.dtype, "chunks": (3, 5), **options}
    array = zd.create_array(MemoryStore(), shape=values.shape, **options)
    array[...] = values
    return array


@pytest.mark.parametrize("dtype", ["i1", "i4", "f4", "f8", "c8", ">i2"])
@pytest.mark.parametrize("source", ["v3", "v2", "v1"])
def test_another_data_type(tmp_path, source, dtype):
    plan = zd.plan_rechunk(made(format=source), tmp_path / "a.zarr", chunks=(5, 4), dtype=dtype)
    assert ("data type" in str(plan)) == (np.dtype(dtype).newbyteorder("=") != VALUES.dtype)
    plan.run()
    new = zd.open_array(tmp_path / "a.zarr")
    assert new.dtype == np.dtype(dtype).newbyteorder("=")
    np.testing.assert_array_equal(new[...], VALUES.astype(dtype))
    if source != "v1":
        np.testing.assert_array_equal(zarr.open_array(tmp_path / "a.zarr")[...], new[...])


def test_fractions_may_go_but_numbers_do_not_wrap():
    near = made(np.array([1.7, -2.9, 100.0]), chunks=2)
    store = MemoryStore()
    zd.rechunk(near, store, chunks=3, dtype="i1")
    assert zd.open_array(store)[...].tolist() == [1, -2, 100]
    for value in (128.5, -129.0, np.nan, np.inf):
        target = MemoryStore()
        far = made(np.array([1.0, value, 2.0]), chunks=2)
        with pytest.raises(DataTypeError, match=r"(from .* to|NaN) .*region \[0:3\].* int8 cannot"):
            zd.rechunk(far, target, chunks=3, dtype="i1")
        with pytest.raises(NodeNotFoundError):
            zd.open_array(target)
    with pytest.raises(DataTypeError, match="cannot hold"):
        zd.rechunk(made(np.array([300, 1]), chunks=2), MemoryStore(), chunks=1, dtype="u1")


@pytest.mark.parametrize("target", ["v1", "v2", "v3", "v3draft"])
@pytest.mark.parametrize("source", ["v1", "v2", "v3", "v3draft"])
def test_another_format(tmp_path, source, target):
    named = {} if source == "v1" else {"dimension_names": ("y", "x")}
    old = made(format=source, attributes={"unit": "K"}, fill_value=7, **named)
    zd.rechunk(old, tmp_path / "a.zarr", chunks=(4, 12), format=target)
    new = zd.open_array(tmp_path / "a.zarr")
    assert new.format == target
    assert new.fill_value == 7
    said = named and target == "v3" != source  # by the fill value before
    assert new.user_attributes == {"unit": "K"} | ({"_FillValue": 7} if said else {})
    assert new.dimension_names == (None if source == "v1" else old.dimension_names)
    np.testing.assert_array_equal(new[...], VALUES)
    if target in {"v2", "v3"}:
        peer = zarr.open_array(tmp_path / "a.zarr", mode="r")
        assert peer.attrs["unit"] == "K"
        np.testing.assert_array_equal(peer[...], VALUES)


def test_a_format_alone_keeps_the_grid():
    old = made(format="v2", codecs=[{"id": "delta", "dtype": "<i2"}, {"id": "zlib", "level": 1}])
    store = MemoryStore()
    zd.rechunk(old, store, format="v3")
    new = zd.open_array(store)
    assert (new.format, new.chunks) == ("v3", (3, 5))
    np.testing.assert_array_equal(new[...], VALUES)


def test_shards_go_where_the_format_has_none():
    old = made(chunks=(2, 3), shards=(4, 6))
    store = MemoryStore()
    zd.rechunk(old, store, format="v2")
    new = zd.open_array(store)
    assert (new.format, new.shards, new.chunks) == ("v2", None, (2, 3))
    np.testing.assert_array_equal(new[...], VALUES)


def test_a_grid_goes_that_the_format_does_not_know():
    old = made(chunks=((3, 7), 5))
    store = MemoryStore()
    zd.rechunk(old, store, format="v2", chunks=(4, 4))
    new = zd.open_array(store)
    assert (new.format, new.chunks) == ("v2", (4, 4))
    np.testing.assert_array_equal(new[...], VALUES)


def test_other_codecs():
    store = MemoryStore()
    old = made(chunks=(2, 3), shards=(4, 6))
    zd.rechunk(old, store, codecs=["zstd", "crc32c"])
    new = zd.open_array(store)
    assert (new.chunks, new.shards) == ((2, 3), (4, 6))
    inner = new.meta.codecs.serializer.inner_codecs
    assert [codec.name for codec in inner] == ["bytes", "zstd", "crc32c"]
    np.testing.assert_array_equal(new[...], VALUES)


def test_numbers_do_not_become_infinite():
    store = MemoryStore()
    zd.rechunk(made(np.array([65504.0, np.inf, np.nan]), chunks=2), store, chunks=3, dtype="f2")
    np.testing.assert_array_equal(zd.open_array(store)[...], [65504, np.inf, np.nan])
    with pytest.raises(DataTypeError, match="become infinite"):
        zd.rechunk(made(np.array([1e5, 1.0]), chunks=2), MemoryStore(), chunks=1, dtype="f2")


def test_nothing_to_change_is_refused():
    with pytest.raises(GridError, match="nothing to change"):
        zd.rechunk(made(), MemoryStore())


@given(st.data())
def test_both_data_types_are_counted_and_what_lies_between_is_narrow(data):
    old, new = (data.draw(st.sampled_from(["u1", "i2", "f4", "f8"])) for _ in range(2))
    values = np.arange(64 * 64 * 64).reshape(64, 64, 64) % 100
    source = made(values.astype(old), chunks=(1, 64, 64), codecs=[])
    store = MemoryStore()
    with dask.config.set(scheduler="sync"):
        plan = zd.plan_rechunk(source, store, chunks=(64, 2, 2), dtype=new, max_mem="3.2MB")
        for stage in plan.stages:
            same = StagePlan(stage.source, stage.target, stage.box)
            assert same.peak <= 3_200_000
        for stage in plan.stages[:-1]:
            assert stage.target.itemsize == min(np.dtype(old).itemsize, np.dtype(new).itemsize)
        plan.run()
    assert zd.open_array(store).dtype == new
    np.testing.assert_array_equal(zd.open_array(store)[...], values.astype(new))


@pytest.mark.parametrize(
    ("values", "dtype", "says"),
    [
        (np.array([1.5, 2.0**63]), "i8", "values from"),
        (np.array([1.5, 2.0**64]), "u8", "values from"),
        (np.array([-1.0]), "u1", "values from"),
        (np.array([0, 2]), "bool", "besides 0 and 1"),
        (np.array([1 + 2j]), "f8", "complex"),
        (np.array(["ab", "abc"]), "U2", "'abc'"),
        (np.array([b"ab", b"abc"]), "S2", "b'abc'"),
        (np.array([(70000, 1.0)], [("a", "i4"), ("b", "f8")]), [("a", "i2"), ("b", "f4")], "70000"),
        (np.array([8]), "int4", "values from 8 to 8"),
        (np.array([1e6]), "float8_e4m3fn", "become infinite"),
    ],
)
def test_what_a_data_type_cannot_hold_is_never_changed(values, dtype, says):
    store = MemoryStore()
    with pytest.raises(DataTypeError, match=says):
        zd.rechunk(made(values, chunks=1), store, chunks=1, dtype=dtype)
    assert not list(store.list("zarr.json"))


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (np.array([-0.9, 255.9]), "u1"),
        (np.array([-(2.0**63), 0.5]), "i8"),
        (np.array([0, 1]), "bool"),
        (np.array([1 + 0j, 2.5]), "f4"),
        (np.array(["ab", "abc"]), "U3"),
        (np.array([(7, 1.5)], [("a", "i4"), ("b", "f8")]), [("a", "i2"), ("b", "f4")]),
        (np.array([2**64 - 1], "u8"), "f4"),
    ],
)
def test_fractions_may_go(values, dtype):
    store = MemoryStore()
    zd.rechunk(made(values, chunks=1), store, chunks=2, dtype=dtype)
    expected = (values.real if values.dtype.kind == "c" else values).astype(dtype)
    np.testing.assert_array_equal(zd.open_array(store)[...], expected)


@pytest.mark.parametrize(
    ("values", "dtype", "says"),
    [
        (np.array(["1", "2"]), "i4", "texts .* do not become numbers"),
        (np.array(["1", "2"], object), "f8", "texts .string. do not become numbers"),
        (np.array(["1", "2"]), "S1", "texts .* do not become byte strings"),
        (np.array([b"1", b"2"]), "u1", "byte strings .* do not become numbers"),
        (np.array([1, 2]), "U4", "numbers .* do not become texts"),
        (np.array([1, 2]), "string", "numbers .* do not become texts"),
    ],
)
def test_what_texts_mean_as_numbers_is_for_the_user_to_say(values, dtype, says):
    options = {"dtype": "string"} if values.dtype == object else {}
    with pytest.raises(DataTypeError, match=f"{says}.*astype"):
        zd.plan_rechunk(made(values, chunks=1, **options), MemoryStore(), chunks=1, dtype=dtype)


def test_fields_do_not_change_places(tmp_path):
    """NumPy would put the values of each field into the one in its place."""
    dtype = np.dtype([("x", "i4"), ("y", "i4")])
    source = zd.create_array(tmp_path / "a.zarr", shape=(4,), dtype=dtype, chunks=(2,))
    source[...] = np.array([(n, -n) for n in range(4)], dtype)
    for names in (("y", "x"), ("y", "z")):
        with pytest.raises(DataTypeError, match="in the order of the source"):
            zd.plan_rechunk(source, tmp_path / "b.zarr", dtype=[(name, "i8") for name in names])
    zd.rechunk(source, tmp_path / "b.zarr", dtype=[("x", "i8"), ("z", "i2")])
    found = zd.open_array(tmp_path / "b.zarr")[...]
    assert found.tolist() == [(n, -n) for n in range(4)]
    assert found.dtype.names == ("x", "z")


@pytest.mark.parametrize("format", ["v1", "v2", "v3", "v3draft"])
@pytest.mark.parametrize("job", [zd.plan_rechunk, zd.plan_copy])
@pytest.mark.filterwarnings("ignore::zarr_dask.errors.ZarrDaskWarning")  # that it is skipped
def test_codecs_that_are_skipped_in_reading_are_named_with_their_array(job, format):
    values = {}
    zd.create_array(values, "g/a", shape=(4,), dtype="f8", chunks=2)[...] = 1
    document = json.loads(values["g/a/zarr.json"])
    document["codecs"].append({"name": "acme.thing", "must_understand": False})
    values["g/a/zarr.json"] = json.dumps(document).encode()
    array = zd.open_array(values, "g/a")
    with pytest.raises(UnknownCodecError, match=r"memory://\w+/g/a: .*(?s:.)*acme\.thing"):
        job(array, MemoryStore(), path="x", chunks=4, format=format)
