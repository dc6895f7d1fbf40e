"""Pieces of stored objects, against NumPy, in every kind of layout."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import zarr_dask as zd
from tests.test_requests import CRC, LAYOUTS, SHAPE, VALUES, Exact, Far, sharding
from zarr_dask.reading import Piece, read_pieces
from zarr_dask.stores import MemoryStore, Recording

TRANSPOSE = {"name": "transpose", "configuration": {"order": [1, 0]}}
BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
SCALED = {"name": "scale_offset", "configuration": {"offset": 1, "scale": 2}}
PIECES_LAYOUTS = {
    **LAYOUTS,
    "v2 F gzip": {"format": "v2", "chunks": (4, 4), "order": "F", "compressor": {"id": "gzip"}},
    "transposed": {"chunks": (4, 8), "codecs": [TRANSPOSE, BYTES, CRC]},
    "transposed shards": {"chunks": (4, 8), "codecs": [TRANSPOSE, sharding((4, 2))]},
    "shards of transposed": {"chunks": (4, 8), "codecs": [sharding((2, 4), [TRANSPOSE, BYTES])]},
    "scaled shards": {
        "dtype": "float64",
        "fill_value": 1.0,
        "chunks": (4, 8),
        "codecs": [SCALED, sharding((2, 2), [TRANSPOSE, BYTES, CRC])],
    },
    "irregular": {"chunks": ((3, 5, 4), 6)},
}


def array_of(layout: str, store: MemoryStore | None = None) -> zd.Array:
    """An array of `VALUES`, of which the first rows were never written."""
    store = MemoryStore() if store is None else store
    options = {"dtype": "int32", "fill_value": 0, **PIECES_LAYOUTS[layout]}
    if "compressor" in options:
        options["codecs"] = [options.pop("compressor")]
    array = zd.create_array(store, "a", shape=SHAPE, **options)
    array[...] = expected(array)
    return array


def expected(array: zd.Array) -> np.ndarray:
    values = VALUES.astype(array.dtype)
    values[:4] = array.fill_value
    values[8:10, 3:5] = array.fill_value
    return values


def slices(length: int) -> st.SearchStrategy[slice]:
    def of(start: int, stop: int, step: int) -> slice:
        low, high = sorted((start, stop))
        last = low + (high - low) // step * step
        return slice(low, last + 1, step)

    position = st.integers(0, length - 1)
    return st.builds(of, position, position, st.integers(1, 3))


@st.composite
def lists_of_pieces(draw, array: zd.Array):
    """Pieces with room for what they take, and what that is."""
    grid = array.meta.grid
    coords = st.tuples(*(st.integers(0, count - 1) for count in grid.counts))
    values = expected(array)
    pieces, wanted = [], []
    for at in draw(st.lists(coords, min_size=1, max_size=8)):
        cell = values[grid.region_of(at)]
        inside = tuple(draw(slices(n)) for n in cell.shape)
        want = cell[inside]
        order = draw(st.sampled_from("CF"))
        out = np.full_like(want, -1, order=order)
        pieces.append(Piece(at, inside, out))
        wanted.append(want)
    return pieces, wanted


@pytest.mark.parametrize("layout", PIECES_LAYOUTS)
@given(data=st.data(), threads=st.sampled_from([1, None]))
@settings(deadline=None, max_examples=25)
def test_any_pieces(layout, data, threads):
    array = array_of(layout)
    pieces, wanted = data.draw(lists_of_pieces(array))
    read_pieces(array, pieces, threads)
    for piece, want in zip(pieces, wanted, strict=True):
        np.testing.assert_array_equal(piece.out, want)


@pytest.mark.parametrize("layout", PIECES_LAYOUTS)
def test_all_of_an_object_is_a_piece_of_it(layout):
    array = array_of(layout)
    at = (1, 0)
    out = np.empty(array.meta.grid.shape_of(at), array.dtype)
    read_pieces(array, [Piece(at, None, out)])
    region = array.meta.grid.region_of(at)
    inside = tuple(slice(s.stop - s.start) for s in region)
    np.testing.assert_array_equal(out[inside], expected(array)[region])


def point(array: zd.Array, row: int, column: int) -> Piece:
    (part,) = array.meta.grid.parts((slice(row, row + 1, 1), slice(column, column + 1, 1)))
    return Piece(part.coords, part.inside, np.empty((1, 1), array.dtype))


POINTS = [(5, 5), (4, 5), (7, 0), (5, 5), (6, 14), (11, 11)]


@pytest.mark.parametrize("layout", PIECES_LAYOUTS)
def test_points_of_one_object_share_its_requests(layout):
    array = array_of(layout, Far())
    recording = Recording(array.store)
    array = zd.open_array(recording, "a", format=array.format)
    recording.clear()
    pieces = [point(array, *at) for at in POINTS]
    read_pieces(array, pieces, threads=1)
    assert [p.out[0, 0] for p in pieces] == [expected(array)[at] for at in POINTS]
    levels = {"nested shards": 3}.get(layout, 2 if "shards" in layout else 1)
    levels = 1 if layout == "shards in gzip" else levels
    objects = {piece.coords for piece in pieces}
    assert recording.per_key() == {array.key(coords): levels for coords in objects}


def test_points_of_one_chunk_ask_for_it_once():
    array = array_of("shards", Exact())
    recording = Recording(array.store)
    array = zd.open_array(recording, "a")
    recording.clear()
    read_pieces(array, [point(array, 4, 0), point(array, 5, 1), point(array, 4, 1)])
    assert len(recording.requests) == 2


def test_an_absent_object_is_an_error_for_all_its_pieces():
    array = zd.create_array({}, shape=SHAPE, dtype="i4", chunks=(4, 4))
    strict = zd.open_array(array.store, read=zd.ReadOptions(missing="error"))
    with pytest.raises(zd.errors.ChunkMissingError):
        read_pieces(strict, [point(array, 0, 0), point(array, 3, 3)])
