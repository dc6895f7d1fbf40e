"""Grids whose cells have declared sizes: documents, arithmetic, reading, writing, plans."""

from __future__ import annotations

import json
import pickle
import time
import tracemalloc

import dask.array as da
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import zarr_dask as zd
from zarr_dask.errors import GridError, MetadataError, UnknownGridError
from zarr_dask.grid.grid import Edges, Fixed, Grid
from zarr_dask.stores import LocalStore, MemoryStore, Recording

EXAMPLE = [
    4,
    [1, 2, 3],
    [[4, 2]],
    [[1, 3], 3],
    [4, 4, 4],
]
"""The example of the extension's README for a shape of 6 along each dimension: a length, a list,
runs, both mixed, and one chunk more than there are elements."""
EXAMPLE_SIZES = [(4, 4), (1, 2, 3), (4, 4), (1, 1, 1, 3), (4, 4)]
"""Declared sizes of the chunks that hold an element."""


def document(shape, edges, **changes) -> dict:
    configuration = {"kind": "inline", "chunk_shapes": edges, **changes}
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": "uint8",
        "chunk_grid": {"name": "rectilinear", "configuration": configuration},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
        "fill_value": 0,
        "codecs": [{"name": "bytes"}],
    }


def store_of(text: dict) -> MemoryStore:
    store = MemoryStore()
    store.set("zarr.json", [json.dumps(text).encode()])
    return store


# --- documents ----------------------------------------------------------------------------------


@pytest.mark.conformance("C096")
def test_the_example_of_the_readme():
    array = zd.open(store_of(document([6] * 5, EXAMPLE)))
    dimensions = array.meta.grid.dimensions
    for dimension, sizes in zip(dimensions, EXAMPLE_SIZES, strict=True):
        assert dimension.count == len(sizes)
        assert tuple(map(dimension.size_of, range(len(sizes)))) == sizes
        holds = [index for index, size in enumerate(sizes) for _ in range(size)]
        assert [dimension.find(position) for position in range(6)] == holds[:6]
    assert array.meta.grid.shape_of((0, 1, 1, 3, 1)) == (4, 2, 4, 3, 4)
    again = zd.open(array.store.store, mode="r+").update_attributes({"a": 1})
    configuration = json.loads(bytes(again.store.get("zarr.json")))["chunk_grid"]["configuration"]
    assert configuration == {
        "kind": "inline",
        "chunk_shapes": [4, [1, 2, 3], [[4, 2]], [[1, 3], 3], [[4, 3]]],
    }


@pytest.mark.conformance("C096")
def test_an_index_resolves_as_in_the_readme():
    grid = zd.open(store_of(document([26, 38], [[16, 10], [24, 14]]))).meta.grid
    (part,) = grid.parts((slice(20, 21, 1), slice(15, 16, 1)))
    assert (part.coords, part.inside) == ((1, 0), (slice(4, 5, 1), slice(15, 16, 1)))
    assert grid.shape_of((0, 1)) == (16, 14)


@pytest.mark.conformance("C096")
def test_chunks_have_their_declared_shapes():
    """Every chunk is stored whole, the last of a dimension too."""
    store = store_of(document([6, 6], [[1, 2, 3], [[4, 2]]]))
    values = np.arange(1, 37, dtype="u1").reshape(6, 6)
    padded = np.zeros((6, 8), "u1")
    padded[:, :6] = values
    for i, (low, high) in enumerate([(0, 1), (1, 3), (3, 6)]):
        for j in range(2):
            store.set(f"c.{i}.{j}", [padded[low:high, 4 * j : 4 * j + 4].tobytes()])
    array = zd.open(store, mode="r+")
    np.testing.assert_array_equal(array[...], values)
    np.testing.assert_array_equal(array[2:5, 3:5], values[2:5, 3:5])
    stored = dict(store.values)
    array[...] = values
    assert store.values == stored


@pytest.mark.conformance("C096")
@pytest.mark.parametrize("edges", [[[]], [[1]], [5], [[[2, 3], 1]]])
def test_a_dimension_without_elements(edges):
    array = zd.open(store_of(document([0], edges)))
    assert (array.meta.grid.counts, array[...].tolist()) == ((0,), [])


@pytest.mark.conformance("C097")
@pytest.mark.parametrize(
    "edges",
    [
        [[1, 2, 2]], [[[1, 5]]], [[]], [[0, 6]], [[6, 0]], [[-6, 12]], [0], [-1], [[[0, 3], 6]],
        [[[3, 0], 6]], [[[6, -1], 12]], [6.0], [[6.0]], ["6"], [["6"]], [None], [[None]], [True],
        [[True] * 6], [{"6": 1}], [[[6]]], [[[3, 2, 1]]], [[[[6, 1]]]], [[[3, [2]]]], [], [6, 6],
        6, "inline", None, {}, [1 << 63], [[1 << 63]], [[[1 << 62, 2]]], [[[1, 1 << 63]]],
    ],
)  # fmt: skip
def test_cells_that_cannot_be(edges):
    with pytest.raises(MetadataError) as caught:
        zd.open(store_of(document([6], edges)))
    (problem,) = caught.value.problems
    assert problem.field.startswith("chunk_grid.configuration.chunk_shapes")


@pytest.mark.conformance("C097")
@pytest.mark.parametrize("kind", ["outline", "", None, 1, ["inline"]])
def test_kinds_that_are_not_known(kind):
    with pytest.raises(MetadataError) as caught:
        zd.open(store_of(document([6], [[6]], kind=kind)))
    (problem,) = caught.value.problems
    assert (problem.field, problem.found) == ("chunk_grid.configuration.kind", kind)


def test_members_that_are_not_known():
    for missing in ("kind", "chunk_shapes"):
        text = document([6], [[6]])
        del text["chunk_grid"]["configuration"][missing]
        with pytest.raises(MetadataError, match=f"{missing}: absent"):
            zd.open(store_of(text))
    with pytest.raises(MetadataError, match="offset: got 1, expected no such member"):
        zd.open(store_of(document([6], [[6]], offset=1)))


def sharded(edges, inner) -> dict:
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    configuration = {"chunk_shape": inner, "codecs": [little], "index_codecs": [little]}
    text = document([12] * len(inner), edges)
    text["codecs"] = [{"name": "sharding_indexed", "configuration": configuration}]
    return text


def test_chunks_divide_every_shard():
    array = zd.open(store_of(sharded([[6, 2, 4], [[3, 4]]], [2, 3])))
    assert (array.chunks, array.shards) == ((2, 3), (6, 3))
    for edges in ([[6, 3, 3], 3], [[6, 2, 4], [3, 6, 2, 1]], [[6, 6], [[3, 3], 4]]):
        with pytest.raises(UnknownGridError, match="chunk_shape"):
            zd.open(store_of(sharded(edges, [2, 3])))


# --- hostile ------------------------------------------------------------------------------------


def test_a_run_of_any_length_takes_no_memory():
    tracemalloc.start()
    begun = time.perf_counter()
    many = 10**18
    array = zd.open(store_of(document([many], [[[1, many]]])))
    assert array[many - 3 :].tolist() == [0, 0, 0]
    assert array.key((array.meta.grid.counts[0] - 1,)) == f"c.{many - 1}"
    for edges in ([[[many, many]]], [[[1, 1 << 62], [1, 1 << 62], [1, 1 << 62]]]):
        with pytest.raises(MetadataError):
            zd.open(store_of(document([many], edges)))
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert used < 1_000_000
    assert time.perf_counter() - begun < 5


@pytest.mark.parametrize("edges", [[1], [[[1, 10**18]]]])
def test_more_blocks_than_dask_can_list(edges):
    array = zd.open(store_of(document([10**18], edges)))
    with pytest.raises(GridError, match="1000000000000000000 stored objects along one dimension"):
        array.to_dask()


def test_more_runs_than_anyone_needs():
    with pytest.raises(MetadataError, match="at most 262144 items, together"):
        zd.open(store_of(document([6, 6], [[1] * (1 << 17), [1] * ((1 << 17) + 1)])))


def test_a_million_cells_are_fast_and_small():
    rng = np.random.default_rng(1)
    sizes = tuple(rng.integers(1, 5, 1_000_000).tolist())
    extent = sum(sizes)
    begun = time.process_time()
    edges = Edges.of(sizes, extent)
    assert edges.find(extent - 1) == 999_999
    starts = np.cumsum([0, *sizes])
    for position in rng.integers(0, extent, 1000).tolist():
        index = int(np.searchsorted(starts, position, "right")) - 1
        assert edges.find(position) == index
        assert (edges.start(index), edges.size_of(index)) == (starts[index], sizes[index])
    pickled = pickle.dumps(edges)
    assert pickle.loads(pickled) == edges
    assert len(pickled) < 1_200_000
    months = Edges.of([31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] * 100, 36500)
    assert len(pickle.dumps(months)) < 500
    assert len(pickle.dumps(Edges.of([7] * 1_000_000, 7_000_000))) < 150
    assert time.process_time() - begun < 10


# --- what a user asks for -----------------------------------------------------------------------


def test_creating():
    array = zd.create_array(
        MemoryStore(), shape=(60, 32), dtype="i4", chunks=((10, 20, 30), 16), codecs=[]
    )
    configuration = json.loads(bytes(array.store.get("zarr.json")))["chunk_grid"]["configuration"]
    assert configuration == {"kind": "inline", "chunk_shapes": [[10, 20, 30], 16]}
    assert array.chunks == array.write_chunks == (30, 16)
    assert "chunks=(10..30, 16)>" in repr(array)
    assert "<td>(10..30, 16)</td>" in array._repr_html_()
    assert array.to_dask().chunks == ((10, 20, 30), (16, 16))
    values = np.arange(60 * 32, dtype="i4").reshape(60, 32)
    array[...] = values
    assert array.store.size("c/1/0") == 20 * 16 * 4
    np.testing.assert_array_equal(zd.open(array.store)[5:40:7, 3:], values[5:40:7, 3:])
    runs = zd.create_array(MemoryStore(), shape=(9,), dtype="i1", chunks=([2, 2, 2, 3],))
    configuration = json.loads(bytes(runs.store.get("zarr.json")))["chunk_grid"]["configuration"]
    assert configuration["chunk_shapes"] == [[[2, 3], 3]]


@pytest.mark.parametrize(
    ("shape", "chunks", "cell"),
    [
        ((10,), ((4, 4, 2),), (4,)),
        ((10,), ((10,),), (10,)),
        ((10,), ((4, 4, 3),), (4,)),
        ((0, 4), ((0,), (2, 2)), (1, 2)),
        ((10, 4), (np.array([5, 5]).tolist(), np.int64(3)), (5, 3)),
    ],
)
def test_sizes_that_are_regular_give_a_regular_grid(shape, chunks, cell):
    """What every reader knows; dask spells all chunks like that."""
    array = zd.create_array(MemoryStore(), shape=shape, dtype="i1", chunks=chunks)
    grid = json.loads(bytes(array.store.get("zarr.json")))["chunk_grid"]
    assert grid == {"name": "regular", "configuration": {"chunk_shape": list(cell)}}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"chunks": ((4, 4), 2)}, "reach to 8"),
        ({"chunks": ((4, 0, 6), 2)}, "at least 1"),
        ({"chunks": ((4, -4, 10), 2)}, "at least 1"),
        ({"chunks": ((4, 6),)}, "2 items"),
        ({"chunks": ((4, 6), (2, "x"))}, "integers"),
        ({"chunks": ((4, 6), (2.0, 2.0))}, "integers"),
        ({"chunks": (4, 2), "shards": ((4, 6), 2)}, "do not divide the shards"),
        ({"chunks": ((4, 6), 2), "shards": ((4, 6), 4)}, "expected integers"),
    ],
)
def test_cells_that_nobody_can_have(options, words):
    store = MemoryStore()
    with pytest.raises(GridError, match=words):
        zd.create_array(store, shape=(10, 4), dtype="i1", **options)
    assert store.values == {}


@pytest.mark.parametrize(("name", "path"), [("v1", ""), ("v2", "x"), ("v3draft", "x")])
def test_formats_that_have_no_such_grid(name, path):
    store = MemoryStore()
    with pytest.raises(UnknownGridError, match=r"chunks of one shape|a regular grid"):
        zd.create_array(store, path, shape=(10,), dtype="i1", chunks=((4, 6),), format=name)
    assert store.values == {}


def test_chunks_of_shards_by_themselves():
    array = zd.create_array(MemoryStore(), shape=(10, 4), dtype="i1", shards=((4, 6), 4))
    assert (array.chunks, array.shards) == ((2, 4), (6, 4))


# --- any grid, as NumPy -------------------------------------------------------------------------


@st.composite
def layouts(draw):
    """A shape, and the sizes of stored objects and of chunks in them."""
    ndim = draw(st.integers(1, 3))
    inner = draw(st.lists(st.integers(1, 3), min_size=ndim, max_size=ndim))
    cells, shape = [], []
    for step in inner:
        extent = draw(st.integers(0, 14))
        if draw(st.integers(0, 3)) == 0:
            cells.append(step * draw(st.integers(1, 3)))
        else:
            sizes = [step * n for n in draw(st.lists(st.integers(1, 4), min_size=1, max_size=6))]
            while sum(sizes) < extent:
                sizes.append(step * draw(st.integers(1, 4)))
            cells.append(tuple(sizes))
        shape.append(extent)
    return tuple(shape), tuple(cells), tuple(inner)


@st.composite
def regions(draw, shape):
    region = []
    for extent in shape:
        start = draw(st.integers(0, extent))
        stop = draw(st.integers(start, extent))
        region.append(slice(start, stop, draw(st.integers(1, 4))))
    return tuple(region)


def made(store, layout, shards):
    shape, cells, inner = layout
    grids = {"chunks": inner, "shards": cells} if shards else {"chunks": cells}
    codecs = ["crc32c"]
    return zd.create_array(store, shape=shape, dtype="i2", fill_value=-1, codecs=codecs, **grids)


@given(layouts(), st.booleans(), st.data())
def test_reads_and_writes_are_numpys(layout, shards, data):
    array = made(MemoryStore(), layout, shards)
    shape = layout[0]
    model = np.full(shape, -1, "i2")
    for number in range(3):
        region = data.draw(regions(shape))
        values = np.arange(model[region].size, dtype="i2").reshape(model[region].shape) + number
        array[region] = values
        model[region] = values
        seen = data.draw(regions(shape))
        np.testing.assert_array_equal(array[seen], model[seen])
    again = zd.open(array.store)
    np.testing.assert_array_equal(again[...], model)
    assert again.meta.grid == array.meta.grid
    assert pickle.loads(pickle.dumps(again.meta.grid)) == again.meta.grid


@settings(max_examples=25)
@given(layouts(), layouts(), st.booleans(), st.data())
def test_dask_reads_and_writes_are_numpys(layout, other, shards, data):
    shape = layout[0]
    values = np.arange(np.prod(shape, dtype=int), dtype="i2").reshape(shape)
    chunks = tuple(
        tuple(data.draw(st.lists(st.integers(1, n), min_size=1, max_size=n)) if n else (0,))
        for n in shape
    )
    blocks = tuple(_cut(sizes, n) for sizes, n in zip(chunks, shape, strict=True))
    x = da.from_array(values, blocks)
    grids = {"chunks": layout[2], "shards": layout[1]} if shards else {"chunks": layout[1]}
    store = MemoryStore()
    report = zd.to_zarr(x, store, codecs=[], fill_value=-1, **grids)
    array = zd.open(store)
    assert report.objects + report.empty == array.meta.grid.ncells
    lazy = array.to_dask()
    expected = tuple(d.lengths or (0,) for d in array.meta.grid.dimensions)
    assert lazy.chunks == expected
    np.testing.assert_array_equal(lazy.compute(scheduler="sync"), values)
    region = data.draw(regions(shape))
    np.testing.assert_array_equal(lazy[region].compute(scheduler="sync"), values[region])


def _cut(sizes, extent):
    """As many of the sizes as there is room for."""
    kept, left = [], extent
    for size in sizes:
        kept.append(min(size, left))
        left -= kept[-1]
        if not left:
            break
    return tuple([*kept, left] if left else kept)


@settings(max_examples=25)
@given(layouts(), st.booleans(), st.data())
def test_rechunking_keeps_every_value(layout, shards, data):
    source = made(MemoryStore(), layout, shards)
    shape = layout[0]
    values = np.arange(np.prod(shape, dtype=int), dtype="i2").reshape(shape)
    source[...] = values
    chunks = tuple(data.draw(st.integers(1, max(n, 1))) for n in shape)
    store = MemoryStore()
    plan = zd.plan_rechunk(source, store, chunks=chunks, max_mem="4MB")
    plan.run()
    target = zd.open(store)
    assert target.chunks == chunks
    np.testing.assert_array_equal(target[...], values)


@settings(max_examples=40)
@given(layouts(), st.booleans(), st.booleans(), st.data())
def test_rechunking_to_declared_sizes(layout, from_shards, to_shards, data):
    shape, cells, inner = layout
    source = zd.create_array(
        MemoryStore(), shape=shape, dtype="i2", fill_value=-1,
        chunks=tuple(data.draw(st.integers(1, 5)) for _ in shape),
    )  # fmt: skip
    if from_shards:
        source = made(MemoryStore(), layout, True)
    values = np.arange(np.prod(shape, dtype=int), dtype="i2").reshape(shape)
    source[...] = values
    store = Recording(MemoryStore())
    budget = data.draw(st.sampled_from(["1.2MB", "4MB", "64MB"]))
    grids = {"chunks": inner, "shards": cells} if to_shards else {"chunks": cells}
    try:
        plan = zd.plan_rechunk(source, store, max_mem=budget, **grids)
    except zd.errors.MemoryBudgetError:
        return
    plan.run()
    written = store.per_key("set")
    assert set(written.values()) <= {1}  # every stored object has one writing task
    target = zd.open(store)
    assert target.meta.grid == Grid.of(shape, cells)
    np.testing.assert_array_equal(target[...], values)


def test_boxes_are_whole_stored_objects():
    edges = Edges.of((3, 5, 2, 2, 2, 7, 1, 1), 20)
    assert [edges.groups(n).lengths for n in (7, 8, 15, 30)] == [
        (3, 7, 4, 6), (8, 6, 6), (14, 6), (20,)
    ]  # fmt: skip
    assert Fixed(3, 20).groups(9).lengths == (9, 9, 2)


def test_rechunking_by_name():
    source = zd.create_array(
        MemoryStore(), shape=(59, 8), dtype="i2", chunks=((31, 28), 4), dimension_names=["t", "x"]
    )
    source[...] = np.arange(59 * 8).reshape(59, 8)
    kept = MemoryStore()
    zd.rechunk(source, kept, chunks={"x": 8})
    assert zd.open(kept).to_dask().chunks == ((31, 28), (8,))
    months = MemoryStore()
    zd.rechunk(source, months, chunks={"t": (20, 39), "x": -1}, shards=None)
    assert zd.open(months).to_dask().chunks == ((20, 39), (8,))
    for store in (kept, months):
        np.testing.assert_array_equal(zd.open(store)[...], source[...])
    for chunks in ({"t": (20, 20)}, {"t": ()}, {"t": (20, -1)}, {"t": "ab"}, ((59,), (8,), 1)):
        with pytest.raises(GridError):
            zd.plan_rechunk(source, MemoryStore(), chunks=chunks)


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 30)), min_size=1, max_size=6),
    st.integers(0, 20),
    st.integers(0, 8),
)
def test_groups_end_at_the_last_boundary_in_reach(runs, more, over):
    end = sum(size * count for size, count in runs)
    edges = Edges(tuple(runs), max(end - over, 1))
    length = edges.largest + more
    sizes, start = [], 0
    while start < edges.extent:
        stop = edges.boundary_at_or_before(start + length)
        sizes.append(stop - start)
        start = stop
    assert edges.groups(length) == Edges.of(sizes, edges.extent)


def test_grids_of_too_many_cells_are_refused_before_they_are_listed():
    edges = Edges(((1, 1 << 61), (2, 1 << 60)), 1 << 62)
    assert edges.groups(2).count == 1 << 61
    with pytest.raises(GridError, match="cells along one dimension"):
        _ = edges.lengths
    store = MemoryStore()
    zd.create_array(store, shape=(60,), dtype="i1", chunks=((10, 20, 30),))
    document = json.loads(store.values["zarr.json"])
    document["shape"] = [1 << 62]
    document["chunk_grid"]["configuration"]["chunk_shapes"] = [[[1, 1 << 61], [2, 1 << 61]]]
    store.values["zarr.json"] = json.dumps(document).encode()
    array = zd.open(store)
    tracemalloc.start()
    try:
        with pytest.raises(GridError, match="cells along one dimension"):
            zd.plan_rechunk(array, {}, chunks=(2,), max_mem="1GB")
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_plans_for_many_cells_are_made_in_time():
    sizes = tuple(np.random.default_rng(1).integers(1, 40, 20_000).tolist())
    shape = (sum(sizes), 50)
    source = zd.create_array(MemoryStore(), shape=shape, dtype="f4", chunks=(sizes, 10))
    begun = time.perf_counter()
    plan = zd.plan_rechunk(source, MemoryStore(), chunks=(1000, 50), max_mem="100MB")
    assert plan.tasks < 1000
    plan = zd.plan_rechunk(source, MemoryStore(), chunks=(sizes[::-1], 50), max_mem="100MB")
    assert plan.tasks < 1000
    assert time.perf_counter() - begun < 20


def test_regions_that_cut_through_cells_are_refused():
    array = zd.create_array(MemoryStore(), shape=(60,), dtype="i4", chunks=((10, 20, 30),))
    x = da.ones(20, chunks=5, dtype="i4")
    zd.to_zarr(x, array, region=(slice(10, 30),))
    with pytest.raises(zd.errors.PartialWriteError, match="covers 1 stored object of"):
        zd.to_zarr(x, array, region=(slice(30, 50),))
    assert array[...].sum() == 20


# --- zarr-python ----------------------------------------------------------------------------------


@pytest.fixture
def rectilinear_zarr():
    with zarr.config.set({"array.rectilinear_chunks": True}):
        yield


PEER_CASES = {
    "plain": {"shape": (60, 100), "chunks": ((10, 20, 30), (50, 50))},
    "mixed": {"shape": (7, 6, 5), "chunks": ((1, 2, 4), (3, 3), (5,))},
    "shards": {"shape": (60, 32), "chunks": (5, 4), "shards": ((10, 20, 30), (16, 16))},
}


@pytest.mark.conformance("C096")
@pytest.mark.usefixtures("rectilinear_zarr")
@pytest.mark.parametrize("case", PEER_CASES)
def test_we_read_what_zarr_python_writes(case, tmp_path):
    options = PEER_CASES[case]
    values = np.arange(np.prod(options["shape"]), dtype="i4").reshape(options["shape"])
    theirs = zarr.create_array(tmp_path, dtype="i4", fill_value=3, **options)
    theirs[...] = values
    ours = zd.open(tmp_path)
    np.testing.assert_array_equal(ours[...], values)
    np.testing.assert_array_equal(ours[2:, ::3], values[2:, ::3])
    document = json.loads((tmp_path / "zarr.json").read_text())
    assert document["chunk_grid"]["name"] == "rectilinear"


@pytest.mark.conformance("C096")
@pytest.mark.usefixtures("rectilinear_zarr")
@pytest.mark.parametrize("case", PEER_CASES)
def test_zarr_python_reads_what_we_write(case, tmp_path):
    options = PEER_CASES[case]
    values = np.arange(np.prod(options["shape"]), dtype="i4").reshape(options["shape"])
    ours = zd.create_array(LocalStore(str(tmp_path)), dtype="i4", fill_value=3, **options)
    ours[...] = values
    np.testing.assert_array_equal(zarr.open_array(tmp_path, mode="r")[...], values)
    assert ours.meta.grid.cell_shape is None


@pytest.mark.conformance("C096")
@pytest.mark.usefixtures("rectilinear_zarr")
def test_both_read_chunks_beyond_the_end(tmp_path):
    (tmp_path / "zarr.json").write_text(json.dumps(document([6] * 5, EXAMPLE)))
    values = np.arange(6**5, dtype="u1").reshape([6] * 5)
    zd.open_array(tmp_path, mode="r+")[...] = values
    np.testing.assert_array_equal(zarr.open_array(tmp_path, mode="r")[...], values)
    zarr.open_array(tmp_path, mode="r+")[...] = values + 1
    np.testing.assert_array_equal(zd.open_array(tmp_path)[...], values + 1)


# --- arithmetic -----------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 5), min_size=1, max_size=12), st.data())
def test_lengths_and_counts_against_brute_force(sizes, data):
    extent = data.draw(st.integers(0, sum(sizes)))
    edges = Edges.of(sizes, extent)
    owner = [index for index, size in enumerate(sizes) for _ in range(size)][:extent]
    counts = [owner.count(index) for index in range(len(sizes))]
    assert edges.lengths == tuple(n for n in counts if n)
    assert edges.count == len(edges.lengths)
    assert (edges.largest, edges.end) == (max(sizes), sum(sizes))
    assert [edges.find(position) for position in range(extent)] == owner
    assert all(edges.start(i) == sum(sizes[:i]) for i in range(len(sizes) + 1))
    grid = Grid.of((extent,), (tuple(sizes),))
    assert grid.dimensions[0].lengths == edges.lengths
    if isinstance(grid.dimensions[0], Fixed):
        assert len(set(edges.lengths[:-1]) | {sizes[0]}) == 1
