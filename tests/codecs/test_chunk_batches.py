"""Chunks of a shard that are copied together."""

from contextlib import suppress
from itertools import product

import numcodecs
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import zarr_dask as zd
from zarr_dask._util.buffers import reserve_buffer, thread_buffer
from zarr_dask.codecs import chunk_batches as runs
from zarr_dask.codecs.chunk_batches import batch_decoder, iter_chunk_batches
from zarr_dask.dtypes import is_full_of, which_are_full_of
from zarr_dask.grid.grid import Grid
from zarr_dask.stores import MemoryStore

grids = st.integers(1, 4).flatmap(
    lambda ndim: st.tuples(
        st.tuples(*[st.integers(1, 3)] * ndim), st.tuples(*[st.integers(1, 4)] * ndim)
    )
)


def laid_out(shape, order, step):
    """Elements that are all different, in memory of some order, with gaps if `step` is not 1."""
    values = np.arange(np.prod(shape), dtype="i4").reshape(shape)
    room = np.zeros(tuple(n * step for n in shape), "i4", order=order)
    view = room[tuple(slice(None, None, step) for _ in shape)]
    view[...] = values
    return view


@given(grids, st.sampled_from("CF"), st.sampled_from([1, 2]), st.sampled_from([1, 40, 1 << 19]))
def test_runs_are_the_chunks_in_c_order(grid, order, step, most):
    chunk, counts = grid
    shape = tuple(map(int.__mul__, chunk, counts))
    array = laid_out(shape, order, step)
    before, runs.LARGEST_RUN = runs.LARGEST_RUN, most
    try:
        found = [chunk for run in iter_chunk_batches(array, chunk) for chunk in run]
        assert all(np.shares_memory(run, array) for run in iter_chunk_batches(array, chunk))
    finally:
        runs.LARGEST_RUN = before
    starts = product(*(range(0, n, c) for n, c in zip(shape, chunk, strict=True)))
    expected = [
        array[tuple(slice(s, s + c) for s, c in zip(start, chunk, strict=True))] for start in starts
    ]
    assert np.array_equal(found, expected)


@given(grids, st.data(), st.sampled_from("CF"), st.sampled_from([1, 2]))
def test_chunks_settle_where_they_belong_in_any_order(grid, data, order, step):
    chunk, counts = grid
    shape = tuple(map(int.__mul__, chunk, counts))
    bounds = [data.draw(st.tuples(st.integers(0, n - 1), st.integers(1, n))) for n in shape]
    region = tuple(slice(min(a, b - 1), max(a + 1, b), 1) for a, b in bounds)
    values = np.arange(np.prod(shape), dtype="i4").reshape(shape)
    out = laid_out(values[region].shape, order, step)
    out[...] = -1
    parts = data.draw(st.permutations(list(Grid.regular(shape, chunk).parts(region))))
    with batch_decoder(out, chunk) as place_of:
        for part in parts:
            origin = [c * n for c, n in zip(part.coords, chunk, strict=True)]
            cell = values[tuple(slice(o, o + n) for o, n in zip(origin, chunk, strict=True))]
            place = place_of(part)  # of the part, or of all of its chunk
            place[...] = cell if place.shape == chunk else cell[part.inside]
    assert np.array_equal(out, values[region])


def test_neighbours_share_a_copy(monkeypatch):
    copies = []
    monkeypatch.setattr(runs, "fast_copyto", lambda run, into: copies.append(run.shape))
    with batch_decoder(np.zeros((4, 12), "f4"), (2, 3)) as place_of:
        for part in Grid.regular((4, 12), (2, 3)).parts((slice(0, 4, 1), slice(0, 12, 1))):
            place_of(part)
    assert copies == [(4, 2, 3), (4, 2, 3)]


def test_equal_parts_of_neighbours_share_a_copy(monkeypatch):
    copies = []
    monkeypatch.setattr(runs, "fast_copyto", lambda run, into: copies.append(run.shape))
    with batch_decoder(np.zeros((1, 52), "f4"), (2, 3)) as place_of:
        for part in Grid.regular((4, 54), (2, 3)).parts((slice(1, 2, 1), slice(1, 53, 1))):
            assert place_of(part).shape == (2, 3)
    assert copies == [(1, 2), (16, 1, 3), (1, 2)]


def test_an_error_leaves_nothing_half_put():
    out = np.zeros((2, 6))
    parts = list(Grid.regular((2, 6), (2, 3)).parts((slice(0, 2, 1), slice(0, 6, 1))))
    with suppress(ZeroDivisionError), batch_decoder(out, (2, 3)) as place_of:
        place_of(parts[0])[...] = 7
        place_of(parts[1])[...] = 1 // 0
    assert not out.any()


def test_borrowed_memory_is_nobody_elses_until_it_is_given_back():
    with reserve_buffer("run", 100) as memory:
        assert not np.shares_memory(thread_buffer("run", 100), memory)
        with reserve_buffer("run", 50) as other:
            assert not np.shares_memory(other, memory)
    assert np.shares_memory(thread_buffer("run", 70), memory)


CODECS = {
    "lz4": [{"name": "blosc", "configuration": {"cname": "lz4", "clevel": 5, "typesize": 4}}],
    "gzip twice": [{"name": "gzip", "configuration": {"level": 1}}] * 2,
    "checksum": [{"name": "crc32c"}],
    "none": [],
}
BLOSC = {"shuffle": "shuffle", "blocksize": 0}


@pytest.mark.parametrize("endian", ["little", "big"])
@pytest.mark.parametrize("compressors", CODECS)
@pytest.mark.parametrize("order", ["C", "F"])
def test_shards_hold_what_zarr_python_reads(tmp_path, endian, compressors, order):
    rng = np.random.default_rng(3)
    values = np.asarray(rng.integers(0, 9, (24, 40, 12)), "i4", order=order)
    values[:8, 8:24] = 0  # some chunks are absent
    later = [dict(one) for one in CODECS[compressors]]
    for one in later:
        if one["name"] == "blosc":
            one["configuration"] = {**one["configuration"], **BLOSC}
    codecs = [{"name": "bytes", "configuration": {"endian": endian}}, *later]
    made = zd.create_array(
        tmp_path / "a",
        shape=(24, 36, 12),
        shards=(16, 40, 12),
        chunks=(4, 8, 6),
        dtype="i4",
        codecs=codecs,
    )
    made[...] = values[:, :36]
    theirs = zarr.open_array(tmp_path / "a", mode="r")
    assert np.array_equal(theirs[...], values[:, :36])
    for region in (np.s_[...], np.s_[1:23, 3:33], np.s_[4:20, 8:32, 6:], np.s_[::3, ::-5]):
        assert np.array_equal(made[region], values[:, :36][region])


def test_chunks_of_a_shard_in_another_order_are_read(tmp_path):
    """zarr-python stores chunks along a curve, so that neighbours lie apart."""
    values = np.random.default_rng(4).random((32, 64), "f4")
    theirs = zarr.create_array(
        tmp_path / "a", shape=values.shape, shards=(32, 64), chunks=(4, 8), dtype="f4"
    )
    theirs[...] = values
    array = zd.open_array(tmp_path / "a")
    for region in (np.s_[...], np.s_[4:28, 8:64], np.s_[3:30, 5:60]):
        assert np.array_equal(array[region], values[region])


def test_each_chunk_is_compressed_as_numcodecs_does_it():
    values = np.random.default_rng(5).random((8, 64), "f4")
    store = MemoryStore()
    codecs = [
        {"name": "bytes", "configuration": {"endian": "little"}},
        {"name": "numcodecs.zlib", "configuration": {"level": 1}},
    ]
    array = zd.create_array(
        store, shape=values.shape, shards=values.shape, chunks=(4, 8), dtype="f4", codecs=codecs
    )
    array[...] = values
    stored = bytes(store.get("c/0/0"))
    places = np.frombuffer(stored[-(16 * 16 + 4) : -4], "<u8").reshape(2, 8, 2)
    for (row, column), _ in np.ndenumerate(places[..., 0]):
        offset, nbytes = map(int, places[row, column])
        chunk = numcodecs.Zlib().decode(stored[offset : offset + nbytes])
        expected = values[row * 4 : row * 4 + 4, column * 8 : column * 8 + 8]
        assert bytes(chunk) == expected.tobytes()


@pytest.mark.parametrize("dtype", ["f4", "c8", "S3", "O", "i8"])
def test_chunks_of_fill_are_found_together_as_one_by_one(dtype):
    arrays = np.zeros((5, 2, 3), dtype)
    if dtype == "O":
        arrays[...] = ""
    fill = arrays[0, 0, 0:1].reshape(()).copy()
    arrays[1, 0, 0] = arrays[2, 1, 2] = "x" if dtype in {"S3", "O"} else 1
    if dtype == "f4":
        arrays[3, 0, 0] = -0.0
    expected = [is_full_of(one, fill) for one in arrays]
    assert which_are_full_of(arrays, fill) == expected
    assert expected == [True, False, False, dtype != "f4", True]
