"""Parts of shards: chunks that do not change keep their bytes, and no other byte is decoded."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import zarr_dask as zd
from zarr_dask.codecs.chain import thread_decoded_nbytes
from zarr_dask.errors import CorruptObjectError

SHAPE, SHARD, CHUNK = (13, 10), (8, 6), (4, 2)


def layout(codecs, location, fill):
    inner = {"chunk_shape": list(CHUNK), "codecs": codecs, "index_location": location}
    inner["index_codecs"] = [{"name": "bytes", "configuration": {"endian": "little"}}]
    return {
        "shape": SHAPE,
        "dtype": "int32",
        "chunks": SHARD,
        "codecs": [{"name": "sharding_indexed", "configuration": inner}],
        "fill_value": fill,
    }


PLAIN = [{"name": "bytes", "configuration": {"endian": "little"}}]
ZSTD = [*PLAIN, {"name": "zstd", "configuration": {"level": 1, "checksum": True}}]
NESTED = [
    {
        "name": "sharding_indexed",
        "configuration": {
            "chunk_shape": [2, 1],
            "codecs": ZSTD,
            "index_codecs": PLAIN,
            "index_location": "start",
        },
    }
]
CHAINS = {"plain": PLAIN, "zstd": ZSTD, "nested": NESTED}


@st.composite
def regions(draw):
    found = []
    for length in SHAPE:
        start = draw(st.integers(0, length - 1))
        found.append(slice(start, draw(st.integers(start + 1, length)), draw(st.integers(1, 3))))
    return tuple(found)


@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize("chain", CHAINS)
@given(writes=st.lists(st.tuples(regions(), st.integers(0, 2)), min_size=1, max_size=6))
def test_writes_of_parts_give_what_a_write_of_all_gives(chain, location, writes):
    options = layout(CHAINS[chain], location, 0)
    array = zd.create_array({}, **options)
    expected = np.zeros(SHAPE, "int32")
    for region, kind in writes:
        size = tuple(len(range(s.start, s.stop, s.step)) for s in region)
        values = np.arange(np.prod(size), dtype="int32").reshape(size) + 1 if kind else 0
        array[region] = expected[region] = values
    np.testing.assert_array_equal(array[...], expected)
    whole = zd.create_array({}, **options)
    whole[...] = expected
    stored = {key: bytes(array.store.get(key)) for key in array.store.list() if "c/" in key}
    same = {key: bytes(whole.store.get(key)) for key in whole.store.list() if "c/" in key}
    grid = array.meta.grid
    for key in stored.keys() - same.keys():  # an append may be writing to it, so it is kept
        coords = tuple(int(number) for number in key.split("/")[1:])
        assert grid.cuts(coords)
        assert not array[grid.region_of(coords)].any()
        del stored[key]
    assert stored == same


@st.composite
def lists(draw, length):
    return draw(st.lists(st.integers(0, length - 1), min_size=1, max_size=9))


@st.composite
def listed(draw):
    """The name of an accessor, and a key for it."""
    kind = draw(st.sampled_from(["oindex", "vindex", "plain"]))
    sides = [slice(draw(st.integers(0, n // 2)), n, draw(st.integers(1, 2))) for n in LONG]
    if kind == "oindex":
        for dim in draw(st.sets(st.integers(0, 2), min_size=1)):
            sides[dim] = draw(lists(LONG[dim]))
    else:
        count = draw(st.integers(1, 30))
        for dim in draw(st.sets(st.integers(0, 2), min_size=1)):
            places = st.integers(0, LONG[dim] - 1)
            sides[dim] = draw(st.lists(places, min_size=count, max_size=count))
        if kind == "vindex" and any(isinstance(side, slice) for side in sides):
            kind = "plain"
    return kind, tuple(sides)


LONG = (13, 10, 7)


@pytest.mark.parametrize("chain", CHAINS)
@given(
    keys=st.lists(listed(), min_size=1, max_size=4),
    first=st.booleans(),
    threads=st.sampled_from([None, 1, 2]),
)
def test_lists_of_elements_give_what_numpy_gives(chain, keys, first, threads):
    options = layout(CHAINS[chain], "end", 0) | {"shape": LONG, "chunks": (8, 6, 4)}
    inner = options["codecs"][0]["configuration"]
    inner["chunk_shape"] = [4, 2, 2]
    if chain == "nested":
        inner["codecs"] = [{**NESTED[0], "configuration": dict(NESTED[0]["configuration"])}]
        inner["codecs"][0]["configuration"]["chunk_shape"] = [2, 1, 2]
    array = zd.create_array({}, **options)
    expected = np.zeros(LONG, "int32")
    if first:
        array[...] = expected[...] = np.arange(910).reshape(LONG) + 1
    for number, (kind, key) in enumerate(keys):
        places = np.arange(910).reshape(LONG)
        at = np.ix_(*(np.arange(n)[k] for k, n in zip(key, LONG, strict=True)))
        chosen = places[at] if kind == "oindex" else places[key]
        values = np.arange(chosen.size, dtype="int32").reshape(chosen.shape) + 1000 * number
        flat = expected.reshape(-1)
        # of elements that are named more than once the last value counts, as in the library
        for place, value in zip(chosen.ravel(), values.ravel(), strict=True):
            flat[place] = value
        target = array if kind == "plain" else getattr(array, kind)
        target[key] = values
    np.testing.assert_array_equal(array[...], expected)


def test_only_chunks_that_change_in_part_are_decoded():
    array = zd.create_array({}, shape=64, dtype="f8", chunks=4, shards=64, codecs=["zstd"])
    array[...] = np.arange(64) + 1.0
    before = thread_decoded_nbytes()
    array[5] = 7.0
    assert thread_decoded_nbytes() - before == 4 * 8
    array[8:12] = 7.0
    assert thread_decoded_nbytes() - before == 4 * 8
    array[1:64:16] = 7.0
    assert thread_decoded_nbytes() - before == 5 * 4 * 8
    array[[60, 2, 3]] = 7.0
    assert thread_decoded_nbytes() - before == 7 * 4 * 8


def test_a_shard_that_the_end_of_the_array_cuts_is_not_decoded_where_all_of_it_is_written():
    array = zd.create_array({}, shape=(7, 40), dtype="f8", chunks=(7, 4), shards=(21, 64))
    array[...] = 1.0
    before = thread_decoded_nbytes()
    array[...] = np.arange(280.0).reshape(7, 40)
    assert thread_decoded_nbytes() == before
    np.testing.assert_array_equal(array[...], np.arange(280.0).reshape(7, 40))


@pytest.mark.parametrize("threads", [1, 2])
def test_of_a_new_shard_only_the_chunks_that_the_array_has_are_made(threads):
    """A shard of 1 GiB, of which the array has 3 MiB."""
    options = {"shape": 400_000, "dtype": "f8", "chunks": 1 << 17, "shards": 1 << 27}
    array = zd.create_array({}, codecs=["zstd"], **options)
    values = np.arange(400_000.0)
    tracemalloc.start()
    try:
        array.write(..., values, threads=threads)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 32 << 20
    np.testing.assert_array_equal(array[...], values)


def test_a_shard_whose_chunks_all_become_fill_values_is_removed():
    array = zd.create_array({}, shape=8, dtype="i4", chunks=2, shards=8)
    array[1:3] = 5
    array[1:3] = 0
    assert [key for key in array.store.list() if key.startswith("c/")] == []
    array[...] = 5
    array[1:8] = 0
    array[0] = 0
    assert [key for key in array.store.list() if key.startswith("c/")] == []


@pytest.mark.parametrize("damage", ["beyond", "overlap"])
def test_an_index_that_does_not_place_chunks_in_the_shard(damage):
    options = layout(PLAIN, "end", 0) | {"shape": SHARD}
    array = zd.create_array({}, **options)
    array[...] = np.arange(48).reshape(SHARD) + 1
    shard = bytearray(array.store.get("c/0/0"))
    index = np.frombuffer(shard[-96:], "<u8").reshape(6, 2).copy()
    index[3] = (0, len(shard) - 96) if damage == "overlap" else (len(shard), 32)
    shard[-96:] = index.tobytes()
    array.store.set("c/0/0", [bytes(shard)])
    with pytest.raises(CorruptObjectError, match="c/0/0"):
        array[0, 0] = 1
    assert bytes(array.store.get("c/0/0")) == bytes(shard)


def test_a_damaged_chunk_that_changes_in_part_is_named_and_nothing_is_put():
    array = zd.create_array({}, **layout(ZSTD, "end", 0))
    array[...] = np.arange(130).reshape(SHAPE) + 1
    shard = bytearray(array.store.get("c/0/0"))
    shard[3] ^= 255
    array.store.set("c/0/0", [bytes(shard)])
    with pytest.raises(CorruptObjectError, match="c/0/0"):
        array[0, 0] = 1
    assert bytes(array.store.get("c/0/0")) == bytes(shard)
