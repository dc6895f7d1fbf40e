"""Plans of writes: several arrays at once, appending, casting; in words, in JSON and drawn."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

import zarr_dask as zd
from zarr_dask.errors import (
    DataTypeError,
    GridError,
    MetadataChangedError,
    NodeExistsError,
    NodeNotFoundError,
    PartialWriteError,
    ReadOnlyError,
    SourceIsTargetError,
    StoreError,
)
from zarr_dask.jobs.write.checks import partial_objects
from zarr_dask.stores import HookStore, MemoryStore, Recording

VALUES = np.arange(1, 241, dtype="int32").reshape(12, 20)


@pytest.fixture(autouse=True)
def one_thread():
    with dask.config.set(scheduler="sync"):
        yield


@pytest.fixture
def store():
    return MemoryStore()


def lazy(values=VALUES, chunks=(4, 5)) -> da.Array:
    return da.from_array(np.asarray(values), chunks=chunks)


def is_data(key: str) -> bool:
    return key.rsplit("/", 1)[-1][0] not in ".z"


def data_sets(recording: Recording, method: str = "set") -> Counter[str]:
    return Counter({key: n for key, n in recording.per_key(method).items() if is_data(key)})


@st.composite
def cuts(draw, length):
    """Lengths of blocks that make up a dimension."""
    borders = sorted({0, length, *draw(st.lists(st.integers(1, max(length - 1, 1)), max_size=4))})
    return tuple(b - a for a, b in pairwise([n for n in borders if n <= length]))


# --- one writing task per stored object --------------------------------------------------------


@st.composite
def grids(draw, shape):
    """Keywords for a new array: regular, sharded or rectilinear."""
    chunks = tuple(draw(st.integers(1, n + 1)) for n in shape)
    kind = draw(st.sampled_from(["chunks", "shards", "rectilinear", "none"]))
    if kind == "shards":
        factors = [draw(st.integers(1, 3)) for _ in shape]
        return {"chunks": chunks, "shards": tuple(map(int.__mul__, chunks, factors))}
    if kind == "rectilinear":
        return {"chunks": tuple(draw(cuts(n)) for n in shape)}
    return {"chunks": chunks} if kind == "chunks" else {}


@given(st.data())
def test_every_object_has_one_task_whatever_the_grids(data):
    """Blocks, grids and regions at random; several arrays at once."""
    recording = Recording(MemoryStore())
    arrays, names, wanted = [], [], {}
    for name in data.draw(st.sampled_from(["a", "ab", "abc"])):
        shape = tuple(data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=3)))
        values = np.arange(1, np.prod(shape) + 1, dtype="int16").reshape(shape)
        blocks = tuple(data.draw(cuts(n)) for n in shape)
        arrays.append(lazy(values, blocks))
        names.append(name)
        wanted[name] = values
    options = data.draw(grids(arrays[0].shape)) if len(arrays) == 1 else {}
    plan = zd.plan_write(arrays, recording, names, **options)
    reports = plan.run()
    assert sum(report.objects for report in reports) == plan.objects == len(data_sets(recording))
    assert set(data_sets(recording).values()) == {1}
    for name, values in wanted.items():
        np.testing.assert_array_equal(zd.open_array(recording.store, name)[...], values)


@given(st.data())
def test_regions_of_rectilinear_arrays(data):
    recording = Recording(MemoryStore())
    shape = (data.draw(st.integers(1, 15)), data.draw(st.integers(1, 15)))
    array = zd.create_array(recording, shape=shape, dtype="i4", **data.draw(grids(shape)))
    edge = lambda n: st.tuples(st.integers(0, n), st.integers(0, n)).map(sorted)  # noqa: E731
    region = tuple(slice(*data.draw(edge(n))) for n in shape)
    values = np.arange(1, 1 + np.prod(shape), dtype="i4").reshape(shape)[region]
    x = lazy(values, tuple(data.draw(cuts(n)) if n else (0,) for n in values.shape))
    recording.clear()
    plan = zd.plan_write(x, array, region=region, partial="own")
    plan.run()
    assert plan.target.meta.grid.align(plan.blocks, [s.start for s in region]) == plan.blocks
    puts = data_sets(recording) + data_sets(recording, "set_if")
    assert set(puts.values()) <= {1}
    assert len(puts) == plan.objects == plan.requests["write"]
    assert data_sets(recording, "get").total() == plan.requests["read"]
    want = np.zeros(shape, "i4")
    want[region] = values
    np.testing.assert_array_equal(array[...], want)


@pytest.mark.parametrize(
    ("blocks", "copied"),
    [
        (((4, 4, 4), (5, 5, 5, 5)), 0),
        (((4, 4, 2), (5, 5, 5, 3)), 0),
        (((3, 6, 9), (20,)), 0),
        (((4, 8), (10, 10)), 0),
        (((12,), (7, 7, 6)), 0),
        (((5, 7), (20,)), 0),
        (((10, 33, 57), (20,)), 240),
    ],
    ids=str,
)
def test_free_chunks_divide_the_blocks(store, blocks, copied):
    """Nothing is copied unless that would take tiny objects; what is copied is said."""
    shape = tuple(map(sum, blocks))
    plan = zd.plan_write(da.zeros(shape, chunks=blocks, dtype="i1") + 1, store)
    if copied:
        assert plan.copied > 0
        assert "copied" in str(plan)
    assert (plan.copied == 0) == (not plan.regrouped) == (not copied)


def test_blocks_of_any_size_as_they_are(store):
    """The sizes of all blocks are a grid, too."""
    x = lazy(chunks=((5, 7), (1, 2, 17)))
    plan = zd.plan_write(x, store, chunks=x.chunks)
    assert not plan.regrouped
    plan.run()
    np.testing.assert_array_equal(zd.open_array(store)[...], VALUES)


# --- several arrays ----------------------------------------------------------------------------


def test_what_arrays_share_is_computed_once(store):
    source = zd.create_array(Recording(MemoryStore()), shape=(12, 20), dtype="i4", chunks=(4, 5))
    source[...] = VALUES
    source.store.clear()
    x = zd.from_zarr(source) * 2
    reports = zd.to_zarr([x, x + 1], store, ["a", "b"])
    assert [report.objects for report in reports] == [12, 12]
    assert set(source.store.per_key().values()) == {1}
    np.testing.assert_array_equal(zd.open_array(store, "a")[...], VALUES * 2)
    np.testing.assert_array_equal(zd.open_array(store, "b")[...], VALUES * 2 + 1)


def test_several_are_one_submission(store):
    later = zd.to_zarr([lazy(), lazy() + 1, lazy() + 2], store, ["a", "b", "c"], compute=False)
    assert len(later.__dask_keys__()) == 1
    reports = later.compute()
    assert [report.objects for report in reports] == [12] * 3
    for n, name in enumerate("abc"):
        np.testing.assert_array_equal(zd.open_array(store, name)[...], VALUES + n)


def test_several_targets(store, tmp_path):
    existing = zd.create_array(store, "b", shape=(12, 20), dtype="i8", chunks=(6, 7))
    stored = zd.to_zarr([lazy(), lazy() * 3], [tmp_path / "a", existing], return_stored=True)
    assert isinstance(stored, tuple)
    np.testing.assert_array_equal(stored[0].compute(), VALUES)
    np.testing.assert_array_equal(stored[1].compute(), VALUES * 3)


def test_regions_of_one_array(store):
    target = zd.create_array(Recording(store), shape=(12, 20), dtype="i4", chunks=(4, 5))
    halves = [np.s_[0:4], np.s_[4:12]]
    zd.to_zarr([lazy()[r] for r in halves], [target, target], region=halves)
    np.testing.assert_array_equal(target[...], VALUES)
    assert set(data_sets(target.store).values()) == {1}


@pytest.mark.parametrize("partial", ["refuse", "own"])
@pytest.mark.parametrize(
    "rows", [(np.s_[0:6], np.s_[6:12]), (np.s_[0:8], np.s_[4:12]), (np.s_[0:12], np.s_[5:6])]
)
def test_regions_that_share_objects_are_refused(store, rows, partial):
    target = zd.create_array(store, shape=(12, 20), dtype="i4", chunks=(4, 5))
    before = dict(store.values)
    with pytest.raises(PartialWriteError, match=r"two writers|in part"):
        zd.to_zarr([lazy()[r] for r in rows], [target] * 2, region=list(rows), partial=partial)
    assert dict(store.values) == before


@pytest.mark.parametrize("names", [["a", "a"], ["a", "a/b"], ["", "b"]])
def test_two_arrays_need_two_places(store, names):
    with pytest.raises(NodeExistsError, match="place of its own"):
        zd.to_zarr([lazy(), lazy()], store, names)
    assert not store.values


def test_what_one_reads_another_may_not_write(store):
    a = zd.create_array(store, "a", shape=(12, 20), dtype="i4", chunks=(4, 5))
    before = dict(store.values)
    with pytest.raises(SourceIsTargetError):
        zd.to_zarr([lazy(), zd.from_zarr(a) + 1], [a, store], [None, "b"])
    assert dict(store.values) == before


@pytest.mark.parametrize(
    "arguments", [([], {}), ([1, 2], {"component": ["a"]}), ([1, 2], {"region": [np.s_[0:1]]})]
)
def test_lists_of_different_lengths(store, arguments):
    numbers, options = arguments
    with pytest.raises(ValueError, match=r"items|empty"):
        zd.to_zarr([lazy() for _ in numbers], store, **options)
    assert not store.values


# --- appending ---------------------------------------------------------------------------------


@given(st.data())
def test_appending_anything_to_anything(data):
    """Whatever the old length, the grid and the blocks: as NumPy's concatenate."""
    recording = Recording(MemoryStore())
    axis = data.draw(st.integers(-2, 1))
    shape = [data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))]
    array = zd.create_array(recording, shape=shape, dtype="i4", **data.draw(grids(shape)))
    old = -np.arange(1, 1 + np.prod(shape), dtype="i4").reshape(shape)
    array[...] = old
    if data.draw(st.booleans()):  # leave something behind the end
        shape[axis] = data.draw(st.integers(1, shape[axis]))
        array = zd.open_array(recording.store, mode="r+").resize(shape)
        old = old[: shape[0], : shape[1]]
    more = list(shape)
    more[axis] = data.draw(st.integers(1, 9))
    new = np.arange(1, 1 + np.prod(more), dtype="i4").reshape(more)
    recording.clear()
    plan = zd.plan_write(lazy(new, tuple(data.draw(cuts(n)) for n in more)), recording, append=axis)
    report = plan.run()
    assert set(data_sets(recording).values()) <= {1}
    assert report.objects == plan.objects
    puts = [r.key for r in recording.requests if r.method in {"set", "set_if"}]
    assert [key for key in puts if not is_data(key)] == puts[-1:]
    np.testing.assert_array_equal(
        zd.open_array(recording.store)[...], np.concatenate([old, new], axis)
    )


@pytest.mark.parametrize("version", ["v2", "v3"])
def test_the_new_length_is_seen_when_all_is_written(store, version):
    seen = []
    target = zd.create_array(
        store, shape=(3, 20), dtype="i4", chunks=(4, 5), format=version,
        dimension_names=("time", "x"), attributes={"units": "m"},
    )  # fmt: skip
    target[...] = -1

    def look(method: str, key: str) -> None:
        if method == "set":
            reader = zd.open_array(store)
            assert (reader[:3] == -1).all()
            seen.append(reader.shape[0])

    faulty = HookStore(store, look)
    zd.open_array(store, mode="r+").update_attributes({"more": 1})
    zd.to_zarr(lazy(), faulty, append="time")
    assert set(seen) == {3}
    array = zd.open_array(store)
    assert array.user_attributes == {"units": "m", "more": 1}
    assert (array[:3] == -1).all()
    np.testing.assert_array_equal(array[3:], VALUES)


def test_a_failed_append_leaves_the_old_array(store):
    target = zd.create_array(store, shape=(3, 20), dtype="i4", chunks=(4, 5))
    target[...] = -1

    def fail(method: str, key: str) -> None:
        if method == "set" and key == "c/3/3":
            raise StoreError("the disk is full")

    with pytest.raises(StoreError, match="full"):
        zd.to_zarr(lazy(), HookStore(store, fail), append=0)
    array = zd.open_array(store)
    assert array.shape == (3, 20)
    assert (array[...] == -1).all()
    zd.to_zarr(lazy(), store, append=0)
    np.testing.assert_array_equal(zd.open_array(store)[3:], VALUES)


def test_the_last_task_of_an_append_may_run_again(store):
    target = zd.create_array(store, shape=(3, 20), dtype="i4", chunks=(4, 5))
    target[...] = -1
    later = zd.to_zarr(lazy(), store, append=0, compute=False)
    later.compute()
    later.compute()
    assert zd.open_array(store).shape == (15, 20)
    zd.open_array(store, mode="r+").resize((1, 20))
    with pytest.raises(MetadataChangedError):
        later.compute()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"append": 2}, GridError),
        ({"append": -3}, GridError),
        ({"append": "time"}, GridError),
        ({"append": 1}, GridError),
        ({"append": True}, GridError),
        ({"append": 0, "region": np.s_[0:3]}, ValueError),
        ({"append": 0, "mode": "w"}, ValueError),
        ({"append": 0, "overwrite": True}, ValueError),
        ({"append": 0, "chunks": (4, 4)}, NodeExistsError),
    ],
    ids=str,
)
def test_what_cannot_be_appended(store, options, error):
    zd.create_array(store, shape=(3, 20), dtype="i4", chunks=(4, 5))
    before = dict(store.values)
    with pytest.raises(error):
        zd.to_zarr(lazy(), store, **options)
    assert dict(store.values) == before


def test_appending_needs_an_array(store):
    with pytest.raises(NodeNotFoundError):
        zd.to_zarr(lazy(), store, append=0)
    zd.create_array(store, shape=(3, 20), dtype="i4")
    with pytest.raises(ReadOnlyError):
        zd.to_zarr(lazy(), zd.open_array(store), append=0)
    with pytest.raises(SourceIsTargetError):
        zd.to_zarr(zd.from_zarr(store), store, append=0)


# --- casting -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("casting", "values", "target", "taken"),
    [
        ("safe", "f8", "f4", False),
        ("same_kind", "f8", "f4", True),
        ("same_kind", "f8", "i4", False),
        ("unsafe", "f8", "i4", True),
        ("unsafe", "i8", "u1", True),
    ],
)
def test_casting(store, casting, values, target, taken):
    array = zd.create_array(store, shape=VALUES.shape, dtype=target, chunks=(4, 5))
    x = VALUES.astype(values)
    if not taken:
        with pytest.raises(DataTypeError, match="casting='unsafe'"):
            zd.to_zarr(lazy(x), array, casting=casting)
        assert not any(map(is_data, store.list()))
        return
    zd.to_zarr(lazy(x), array, casting=casting)
    np.testing.assert_array_equal(array[...], x.astype(target))


@pytest.mark.parametrize("option", ["casting", "partial", "mode"])
def test_options_have_few_values(store, option):
    with pytest.raises(ValueError, match=option):
        zd.to_zarr(lazy(), store, **{option: "perhaps"})
    assert not store.values


@pytest.mark.parametrize("option", [{"attributes": {"a": 1}}, {"dimension_names": ("y", "x")}])
def test_what_describes_a_new_array_is_refused_for_another(store, option):
    zd.create_array(store, shape=VALUES.shape, dtype="i4", chunks=(4, 5))
    with pytest.raises(NodeExistsError, match=next(iter(option))):
        zd.to_zarr(lazy(), store, mode="r+", **option)


# --- how a plan is shown -----------------------------------------------------------------------


def test_a_plan_in_json(store):
    plan = zd.plan_write(lazy(chunks=(5, 7)), store, chunks=(2, 5), shards=(4, 10))
    facts = json.loads(plan.to_json())
    (array,) = facts["arrays"]
    assert facts["job"] == "write"
    assert (array["tasks"], array["objects"], array["creates"]) == (plan.tasks, 6, True)
    assert array["blocks"] == [[[5, 2], [2, 1]], [[7, 2], [6, 1]]]
    assert (array["chunks"], array["shards"]) == ([2, 5], [4, 10])
    assert array["nbytes"] == VALUES.nbytes
    assert array["region"] == [[0, 12], [0, 20]]


def test_the_json_of_a_large_plan_is_small():
    plan = zd.plan_write(da.zeros((316, 317), chunks=1), {})
    assert plan.tasks > 10**5
    assert len(plan.to_json()) < 3000
    target = zd.create_array({}, shape=(100, 400), dtype="f8", chunks=(2, 2))
    x = da.zeros((99, 399), chunks=(50, 50))
    cut = zd.plan_write(x, target, region=np.s_[1:, 1:], partial="own")
    assert json.loads(cut.to_json())["arrays"][0]["partial_objects"] == len(cut.partial) == 249
    several = zd.plan_write([x, x], {}, ["a", "b"])
    assert [a["target"].rpartition("/")[2] for a in json.loads(several.to_json())["arrays"]] == [
        "a",
        "b",
    ]


def test_a_plan_in_words_and_in_html(store):
    zd.create_array(store, "a<b>", shape=VALUES.shape, dtype="i4", chunks=(4, 5))
    plan = zd.plan_write(lazy(chunks=(3, 20)), store, "a<b>", append=0)
    text = str(plan)
    assert "a growing v3 array" in text
    assert "(12, 20) until all is written, (24, 20) then" in text
    assert "copied" in text
    html = plan._repr_html_()
    assert html.startswith("<table>")
    assert "a&lt;b&gt;" in html
    assert "a<b>" not in html
    both = zd.plan_write([lazy(), lazy()], store, ["c", "d"])
    assert both._repr_html_().count("<table>") == 2
    assert str(both).count("write (12, 20)") == 2


def test_words_for_blocks_of_which_the_last_is_the_largest():
    x = da.zeros((20, 20), chunks=5)
    plan = zd.plan_write(x, {}, chunks=(1, 1), shards=(8, 8))
    assert plan.blocks == ((8, 12), (8, 12))
    assert "5x5, regrouped into 8..12x8..12 so" in str(plan)
    assert "<td>0:20, 0:20</td>" in plan._repr_html_()


def test_datasets_are_planned():
    dataset = xr.Dataset({"t": ("x", np.arange(3.0))})
    for one in (dataset, dataset.chunk()["t"]):
        target = {}
        assert type(zd.plan_write(one, target)).__name__ == "DatasetPlan"
        assert not target


def colours(figure) -> list[set]:
    """The colours of the objects of each panel."""
    found = []
    for axis in figure.axes:
        patches = axis.collections[0]
        found.append({tuple(colour) for colour in patches.get_facecolor()})
    return found


def test_a_plan_as_a_picture(store, tmp_path):
    from matplotlib.colors import to_rgba

    from zarr_dask.jobs.write.plot import _IN_PART

    target = zd.create_array(store, shape=(30, 40), dtype="f8", chunks=(4, 5))
    values = da.zeros((25, 33), chunks=(9, 12))
    plan = zd.plan_write(values, target, region=np.s_[2:27, 3:36], partial="own")
    figure = plan.plot()
    (axis,) = figure.axes
    patches = axis.collections[0]
    assert len(patches.get_paths()) == plan.objects
    in_part = [c for c in patches.get_facecolor() if tuple(c) == to_rgba(_IN_PART)]
    assert len(in_part) == len(plan.partial)
    figure.savefig(tmp_path / "plan.png")
    whole = zd.plan_write(da.zeros((12, 8), chunks=4), {}).plot()
    assert colours(whole)[0].isdisjoint({to_rgba(_IN_PART)})
    assert len(colours(whole)[0]) == 6  # neighbours have different owners


@pytest.mark.parametrize("shape", [(), (7,), (0, 3), (3, 50, 40), (2, 3, 4, 5), (600, 2)])
def test_pictures_of_any_shape(shape, tmp_path):
    x = da.zeros(shape, chunks=2)
    figure = zd.plan_write([x, x], {}, ["a", "b"], dimension_names=tuple("abcd"[: len(shape)]))
    figure = figure.plot()
    figure.savefig(tmp_path / "plan.png")
    assert "a" in figure.axes[0].get_title(loc="left")
    if shape == (3, 50, 40):
        assert (figure.axes[0].get_ylabel(), figure.axes[0].get_xlabel()) == ("b", "c")
        assert "2 behind each other" in figure.axes[0].get_title(loc="left")


@pytest.mark.parametrize(
    ("options", "chunks", "shards"),
    [
        ({"chunks": -1}, (12, 20), None),
        ({"chunks": (-1, 5)}, (12, 5), None),
        ({"chunks": {"y": -1}}, (12, 5), None),
        ({"chunks": {1: 10}}, (4, 10), None),
        ({"chunks": {"x": 2}, "shards": {"x": 10}}, (4, 2), (4, 10)),
        ({"chunks": (2, 5), "shards": (-1, 10)}, (2, 5), (12, 10)),
    ],
)
def test_grids_by_name_and_whole_dimensions(options, chunks, shards):
    x = da.ones((12, 20), chunks=(4, 5))
    plan = zd.plan_write(x, {}, dimension_names=("y", "x"), **options)
    assert (plan.target.chunks, plan.target.shards) == (chunks, shards)
    assert (zd.to_zarr(x, {}, dimension_names=("y", "x"), return_stored=True, **options) == 1).all()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"chunks": {"z": 1}}, "names .'z'."),
        ({"chunks": {2: 1}}, "names .2."),
        ({"chunks": {"y": 0}}, "2 integers of at least 1"),
        ({"chunks": (-1, -2)}, "lengths of at least 1"),
        ({"shards": {"y": 4}}, "give both"),
        ({"chunks": {"y": 5}, "shards": {"y": 12}}, "do not divide"),
    ],
)
def test_grids_that_cannot_be(options, says):
    x = da.ones((12, 20), chunks=(4, 5))
    with pytest.raises(GridError, match=says):
        zd.plan_write(x, {}, dimension_names=("y", "x"), **options)


@pytest.mark.parametrize("seed", range(20))
def test_objects_that_are_cut_are_those_whose_elements_are_not_all_written(seed):
    random = np.random.default_rng(seed)
    shape = tuple(random.integers(1, 12, 3).tolist())
    chunks = tuple(random.integers(1, 6, 3).tolist())
    target = zd.create_array({}, shape=shape, dtype="u1", chunks=chunks)
    region = tuple(
        slice(*sorted(random.choice(n + 1, 2, replace=False).tolist()), 1) for n in shape
    )
    parts = target.meta.grid.parts(region)
    assert partial_objects(target, region) == tuple(p.coords for p in parts if not p.whole)


def test_planning_takes_no_step_for_each_object(tmp_path):
    """A million objects of one block: no list of them is made."""
    values = da.zeros((10**12,), chunks=10**12, dtype="u1")
    plan = zd.plan_write(values, tmp_path / "a.zarr", chunks=1)
    assert plan.objects == 10**12
    assert not plan.partial
