"""The codecs of new arrays: small, checked, and known to other libraries."""

import numpy as np
import pytest
import tensorstore as ts
import zarr

import zarr_dask as zd
from zarr_dask.errors import CorruptObjectError

STEPS = np.arange(1 << 16).reshape(256, 256)
NOISE = np.random.default_rng(1).random((2, 256, 256))
KINDS = {
    "field": (np.sin(STEPS / 300) + STEPS % 7 / 1e4).astype("f4"),
    "coordinates": np.linspace(-180, 180, 1 << 16).reshape(256, 256),
    "packed": (np.sin(STEPS / 300) * 3e4).astype("i2"),
    "counts": np.random.default_rng(0).poisson(3, (256, 256)).astype("u4"),
    "labels": (STEPS // 256 // 9 + STEPS % 256 // 60 * 40).astype("i8"),
    "mask": STEPS % 256 > STEPS // 256,
    "picture": (STEPS * STEPS // 97 % 251).astype("u1"),
    "complex": np.exp(1j * STEPS / 50).astype("c8"),
    "sparse": np.where(NOISE[0] < 0.05, NOISE[1], 0).astype("f4"),
    "sparser": np.where(NOISE[0] < 0.02, NOISE[1], 0),
    "rare counts": np.where(NOISE[0] < 0.02, NOISE[1] * 9, 0).astype("u4"),
}


@pytest.mark.parametrize("format", ["v2", "v3"])
@pytest.mark.parametrize("kind", KINDS)
def test_others_read_what_is_no_larger_than_theirs(tmp_path, kind, format):
    values = KINDS[kind]
    array = zd.create_array(
        tmp_path / "a", shape=values.shape, dtype=values.dtype, chunks=(256, 128), format=format
    )
    array[...] = values
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "a")[...], values)
    driver = {"v2": "zarr", "v3": "zarr3"}[format]
    spec = {"driver": driver, "kvstore": {"driver": "file", "path": f"{tmp_path}/a/"}}
    np.testing.assert_array_equal(ts.open(spec).result().read().result(), values)
    peer = zarr.create_array(
        tmp_path / "b",
        shape=values.shape,
        dtype=values.dtype,
        chunks=(256, 128),
        zarr_format=int(format[1]),
    )
    peer[...] = values
    checksums = 2 * 4 if format == "v3" else 0
    assert array.nbytes_stored() <= zd.open_array(tmp_path / "b").nbytes_stored() + checksums


@pytest.mark.parametrize("dtype", ["f4", "u1", "string"])
def test_one_changed_bit_is_found(dtype):
    values = {}
    array = zd.create_array(values, shape=(40,), dtype=dtype)
    array[...] = np.arange(40) if dtype != "string" else [f"n {i}" for i in range(40)]
    whole = bytes(values["c/0"])
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        values["c/0"] = bytes(damaged)
        with pytest.raises(CorruptObjectError):
            array[...]


def test_formats_without_a_checksum_are_given_none(tmp_path):
    zd.create_array(tmp_path / "a", shape=(8,), dtype="f4", chunks=4)[...] = np.arange(8)
    zd.copy(tmp_path / "a", tmp_path / "b", format="v2")
    copied = zd.open_array(tmp_path / "b")
    assert [codec.name for codec in copied.codecs] == ["bytes", "blosc"]
    spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": f"{tmp_path}/b/"}}
    assert ts.open(spec).result().read().result().tolist() == list(range(8))


def test_each_chunk_is_shuffled_or_not_and_is_read_in_part():
    """Metadata say that chunks are shuffled; a frame of blosc says whether it is."""
    values = np.concatenate([KINDS["sparse"], KINDS["field"]])
    array = zd.create_array(store := {}, data=np.tile(values, (1, 8)), chunks=(256, 2048))
    assert [bool(store[key][2] & 1) for key in ("c/0/0", "c/1/0")] == [False, True]
    assert array[3:5, 1030:1035].tolist() == values[3:5, 6:11].tolist()
    assert array[::31, ::97].tolist() == np.tile(values, (1, 8))[::31, ::97].tolist()
    whole, given = dict(store), array[...]
    array[...] = given
    # blosc's own threads put the blocks of a frame in any order
    assert {key: (len(text), text[:16]) for key, text in store.items()} == {
        key: (len(text), text[:16]) for key, text in whole.items()
    }
    assert np.array_equal(array[...], given)


def test_a_shuffle_that_is_asked_for_is_kept():
    codec = {"name": "blosc", "configuration": {"cname": "zstd", "clevel": 3, "shuffle": "shuffle"}}
    zd.create_array(store := {}, data=KINDS["sparse"], chunks=256, codecs=[codec])
    assert store["c/0/0"][2] & 1
