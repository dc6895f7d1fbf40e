"""What users pass by mistake is refused by a typed error, before anything is written."""

import re

import dask
import dask.array as da
import numpy as np
import pytest

import zarr_dask as zd
from zarr_dask.errors import (
    DataTypeError,
    GridError,
    MemoryBudgetError,
    NodeExistsError,
    PlanError,
    StepError,
    StoreError,
    StoreKeyError,
)

X = da.arange(10, chunks=5)


class Foreign:
    """An array that lies elsewhere, as cupy's do: it does not become one of NumPy by itself."""

    def __init__(self, values):
        self.values, self.shape, self.dtype, self.ndim = values, values.shape, values.dtype, 1

    def __array__(self, *args, **kwargs):
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")

    def __array_function__(self, *args):
        return NotImplemented


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (dask.delayed(1), "Delayed"),
        (da.ma.masked_greater(X, 3), "ma.filled"),
    ],
    ids=["delayed", "masked"],
)
def test_what_is_no_dask_array(here, values, words):
    with pytest.raises(DataTypeError, match=words):
        zd.to_zarr(values, "a.zarr")
    assert not list(here.iterdir())


class Sparse(Foreign):
    """A matrix as scipy's are, of which NumPy makes an array of one object."""

    def __array__(self, *args, **kwargs):
        found = np.empty((), object)
        found[()] = self
        return found


@pytest.mark.parametrize("kind", [Foreign, Sparse])
@pytest.mark.parametrize("window", [None, 2])
def test_blocks_that_do_not_become_numpy_arrays(window, kind):
    x = da.ones(10, chunks=5).map_blocks(kind, meta=np.empty(0))
    with pytest.raises(DataTypeError, match=rf"{kind.__name__}.*map_blocks"):
        zd.to_zarr(x, {}, window=window)


@pytest.mark.parametrize("place", ["", None, 5, b"a.zarr", "a\0b"])
def test_what_names_no_place(here, place):
    error = StoreError if isinstance(place, str) else TypeError
    with pytest.raises(error, match="does not name a store"):
        zd.to_zarr(X, place)
    assert not list(here.iterdir())


@pytest.mark.parametrize("path", [5, b"a", ["a"]])
def test_what_is_no_path(path):
    with pytest.raises(StoreKeyError, match="expected a text"):
        zd.to_zarr(X, {}, path)


def test_progress_that_cannot_be_called(here):
    with pytest.raises(TypeError, match="progress=5"):
        zd.to_zarr(X, "a.zarr", progress=5)
    assert not list(here.iterdir())


@pytest.mark.parametrize("text", [None, "[]", '{"job": []}', '{"job": "nothing"}'])
def test_what_is_no_plan(text):
    with pytest.raises(PlanError):
        zd.load_plan(text)


ARRAYS = {"u": {"shape": (4,), "dtype": "f4", "chunks": (2, 2)}}


def test_steps_are_integers(here):
    """A step of another kind once put blocks where no reader looks."""
    zd.Writer.create("run.zarr", ARRAYS)
    block = np.ones(4, "f4")
    with zd.Writer.attach("run.zarr", 0) as writer:
        for step in (0.0, True, "0", None):
            with pytest.raises(StepError):
                writer.write_step(step, {"u": block})
        writer.write_step(np.int64(0), {"u": block})
        writer.write_step(1, {"u": block})
    assert zd.Writer.attach("run.zarr").finish() == 2
    assert zd.open_array("run.zarr", "u")[...].tolist() == [[1] * 4] * 2


def test_arrays_of_an_output_are_described_and_apart(here):
    with pytest.raises(TypeError, match="described by 'f4'"):
        zd.Writer.create("run.zarr", {"u": "f4"})
    with pytest.raises(NodeExistsError, match="'u/v' would lie inside array 'u'"):
        zd.Writer.create("run.zarr", {**ARRAYS, "u/v": ARRAYS["u"]})
    with pytest.raises(GridError, match="shape of one step"):
        zd.decompose((4.5,), 2)
    assert not list(here.iterdir())


# --- words of rechunkings -------------------------------------------------------------------------


@pytest.mark.parametrize(("side", "threads"), [(200, 2), (200, 1), (1500, 2), (3000, 2)])
def test_how_much_memory_would_do_is_said_and_does(side, threads):
    """Beside large tasks a process holds more than these."""
    source = zd.create_array({}, shape=(side, side), dtype="f8", chunks=(10, side))
    wanted = {"chunks": (side, side), "threads": threads}
    with pytest.raises(MemoryBudgetError, match="raise max_mem") as caught:
        zd.plan_rechunk(source, {}, max_mem="300kB", **wanted)
    said = re.search(r"max_mem \(to ([0-9,]+) for processes of", str(caught.value))[1]
    enough = int(said.replace(",", ""))
    plan = zd.plan_rechunk(source, {}, max_mem=enough, **wanted)
    assert plan.peak <= plan.max_mem
    with pytest.raises(MemoryBudgetError):
        zd.plan_rechunk(source, {}, max_mem=enough - 2, **wanted)


def test_nan_in_an_array_that_becomes_integers(tmp_path):
    source = zd.create_array(tmp_path / "a", shape=(4,), dtype="f8", chunks=2)
    source[...] = [1, 2, np.nan, 4]
    with pytest.raises(DataTypeError, match="has NaN in the region"):
        zd.rechunk(source, tmp_path / "b", dtype="i2")


def test_sources_that_are_no_arrays(tmp_path):
    with pytest.raises(TypeError, match=r"NumPy array of shape \(1000,\).*create_array"):
        zd.rechunk(np.zeros(1000), tmp_path / "b", chunks=4)
    with pytest.raises(TypeError, match="does not name a store") as caught:
        zd.rechunk(range, tmp_path / "b", chunks=4)
    zd.create_group(tmp_path / "g").create_array("x", shape=(4,), dtype="i4", chunks=2)
    with pytest.raises(GridError, match="for the arrays of a group it is given by names"):
        zd.rechunk(tmp_path / "g", tmp_path / "b", chunks=4)
    with pytest.raises(TypeError) as caught:
        zd.open(np.zeros((1000, 1000)))
    assert len(str(caught.value)) < 400


def test_an_address_is_no_client(tmp_path):
    source = zd.create_array(tmp_path / "a", shape=(4,), dtype="i4", chunks=2)
    with pytest.raises(TypeError, match=r"expected a distributed\.Client"):
        zd.rechunk(source, tmp_path / "b", chunks=4, client="tcp://10.0.0.1:8786")


FLAGS = {
    "create_array": lambda s, f: zd.create_array(s, "x", shape=3, dtype="i4", overwrite=f),
    "create_group": lambda s, f: zd.create_group(s, overwrite=f),
    "to_zarr": lambda s, f: zd.to_zarr(X, s, "x", overwrite=f),
    "compute": lambda s, f: zd.to_zarr(X, s, "n", compute=f),
    "return_stored": lambda s, f: zd.to_zarr(X, s, "n", return_stored=f),
    "rechunk": lambda s, f: zd.rechunk(X, s, path="x", overwrite=f),
    "rechunk verify": lambda s, f: zd.rechunk(zd.open(s, "x"), s, path="n", verify=f),
    "run verify": lambda s, f: zd.plan_rechunk(zd.open(s, "x"), s, path="n", chunks=2).run(
        verify=f
    ),
    "copy": lambda s, f: zd.copy(zd.open(s, "x"), s, path="y", overwrite=f),
    "copy verify": lambda s, f: zd.copy(zd.open(s, "x"), s, path="n", verify=f),
    "dry_run": lambda s, f: zd.migrate(s, dry_run=f),
    "remove_old": lambda s, f: zd.migrate(s, remove_old=f),
    "ome.write": lambda s, f: zd.ome.write(da.ones((4, 4)), s, axes="yx", overwrite=f),
    "prune": lambda s, f: zd.open_array(s, "x", mode="r+").resize(2, prune=f),
    "sweep": lambda s, f: zd.verify(s, sweep=f),
    "Writer": lambda s, f: zd.Writer.create(
        s, {"x": {"shape": (4,), "dtype": "f4"}}, journal={}, overwrite=f
    ),
}


@pytest.mark.parametrize("flag", ["no", None, 1], ids=str)
@pytest.mark.parametrize("name", FLAGS)
def test_what_is_neither_true_nor_false_is_refused(name, flag):
    """A "no" from a file of settings would replace what is there."""
    values = {}
    zd.create_array(values, "x", shape=3, dtype="i4", format="v2")[...] = 1
    zd.create_array(values, "y", shape=3, dtype="i4", format="v2")[...] = 2
    before = dict(values)
    with pytest.raises(TypeError, match=rf"={flag!r}: expected True or False"):
        FLAGS[name](values, flag)
    assert values == before


def test_truth_values_of_numpy_are_flags():
    values = {}
    zd.to_zarr(X, values)
    zd.to_zarr(X + 1, values, overwrite=np.bool_(True))
    assert zd.open(values)[0] == 1


@pytest.mark.parametrize(
    "create",
    [
        lambda s, **options: zd.create_array(s, shape=(4, 4), dtype="f4", **options),
        lambda s, **options: zd.to_zarr(da.ones((4, 4), chunks=2), s, **options),
        lambda s, **options: zd.Writer.create(
            s, {"x": {"shape": (4,), "dtype": "f4", **options}}, journal={}
        ),
    ],
    ids=["create_array", "to_zarr", "Writer"],
)
@pytest.mark.parametrize(
    "options",
    [
        {"dimension_names": "ab"},
        {"dimension_names": {"a"}},
        {"dimension_names": 3},
        {"chunks": True},
        {"chunks": (True, 4)},
        {"chunks": ((True, 3), 4)},
        {"chunks": 1, "shards": True},
        {"chunks": (1, 1), "shards": (True, 4)},
    ],
    ids=str,
)
def test_letters_are_no_names_and_truth_values_no_sizes(create, options):
    values = {}
    with pytest.raises(GridError, match=r"=.*: expected|chunks of declared lengths"):
        create(values, **options)
    assert not values


def test_truth_values_are_no_lengths_and_no_dimensions():
    values = {}
    array = zd.create_array(values, shape=(2, 2), dtype="i4", chunks=1)
    before = dict(values)
    for change in (
        lambda: array.resize((True, 2)),
        lambda: array.append(np.ones((2, 2), "i4"), axis=True),
        lambda: array.append(np.ones((2, 2), "i4"), axis="x"),
        lambda: zd.Writer.create({}, {"u": {"shape": (True,), "dtype": "f4"}}, journal={}),
    ):
        with pytest.raises(GridError, match="expected"):
            change()
        assert values == before


def test_other_options_of_a_wrong_kind_say_what_is_expected():
    values = {}
    zd.to_zarr(X, values, "x")
    before = dict(values)
    array = zd.open(values, "x")
    with pytest.raises(TypeError, match="progress='yes': expected a function"):
        zd.rechunk(array, values, path="n", chunks=2, progress="yes")
    with pytest.raises(TypeError, match="read='x': expected"):
        zd.copy(array, values, path="n", read="x")
    with pytest.raises(TypeError, match="storage_options='x': expected a mapping"):
        zd.create_array(values, "n", shape=3, dtype="i4", storage_options="x")
    assert values == before


STEP = {"u": {"shape": (4,), "dtype": "f4", "chunks": (1, 2)}}


def writer(**options):
    zd.Writer.create("run.zarr", STEP)
    return zd.Writer.attach("run.zarr", 0, **options)


# The option that each of the calls is given wrongly, and the wrong values.
WRONG = {
    "array.read threads": lambda a, x: a.read(threads=x),
    "array.write threads": lambda a, x: a.write(None, np.zeros(a.shape, a.dtype), threads=x),
    "array.read out": lambda a, x: a.read(out=x),
    "array.to_dask name": lambda a, x: a.to_dask(name=x),
    "from_zarr name": lambda _, x: zd.from_zarr("a.zarr", name=x),
    "from_zarr read": lambda _, x: zd.from_zarr("a.zarr", read=x),
    "open mode": lambda _, x: zd.open("a.zarr", mode=x),
    "create_array attributes": lambda _, x: zd.create_array(
        "n.zarr", shape=4, dtype="i4", attributes=x
    ),
    "create_array dimension_names": lambda _, x: zd.create_array(
        "n.zarr", shape=4, dtype="i4", dimension_names=x
    ),
    "create_array fill_value": lambda _, x: zd.create_array(
        "n.zarr", shape=4, dtype="i4", fill_value=x
    ),
    "create_group attributes": lambda _, x: zd.create_group("n.zarr", attributes=x),
    "group.walk recursive": lambda _, x: list(zd.open_group("g.zarr").walk(x)),
    "ReadOptions missing": lambda _, x: zd.ReadOptions(missing=x),
    "ReadOptions index_cache": lambda _, x: zd.ReadOptions(index_cache=x),
    "to_zarr manifest": lambda _, x: zd.to_zarr(X, "n.zarr", manifest=x),
    "to_zarr window": lambda _, x: zd.to_zarr(X, "n.zarr", window=x),
    "to_zarr progress": lambda _, x: zd.to_zarr(X, "n.zarr", progress=x),
    "to_zarr resume": lambda _, x: zd.to_zarr(X, "n.zarr", resume=x),
    "copy resume": lambda a, x: zd.copy(a, "n.zarr", resume=x),
    "rechunk chunks": lambda a, x: zd.rechunk(a, "n.zarr", chunks=x),
    "rechunk shards": lambda a, x: zd.rechunk(a, "n.zarr", shards=x),
    "rechunk region": lambda a, x: zd.rechunk(a, "n.zarr", region=x),
    "rechunk max_mem": lambda a, x: zd.rechunk(a, "n.zarr", chunks=5, max_mem=x),
    "rechunk client": lambda a, x: zd.rechunk(a, "n.zarr", chunks=5, client=x),
    "rechunk progress": lambda a, x: zd.rechunk(a, "n.zarr", chunks=5, progress=x),
    "rechunk of a graph progress": lambda _, x: zd.rechunk(X, "n.zarr", chunks=3, progress=x),
    "plan_rechunk threads": lambda a, x: zd.plan_rechunk(a, "n.zarr", chunks=5, threads=x),
    "plan_rechunk model": lambda a, x: zd.plan_rechunk(a, "n.zarr", chunks=5, model=x),
    "copy client": lambda a, x: zd.copy(a, "n.zarr", client=x),
    "plan_copy threads": lambda a, x: zd.plan_copy(a, "n.zarr", threads=x),
    "plan_copy model": lambda a, x: zd.plan_copy(a, "n.zarr", model=x),
    "copy read": lambda a, x: zd.copy(a, "n.zarr", read=x),
    "plan_migration read": lambda _, x: zd.plan_migration("a.zarr", read=x),
    "survey read": lambda _, x: zd.inventory("a.zarr", read=x),
    "verify read": lambda _, x: zd.verify("a.zarr", read=x),
    "verify client": lambda _, x: zd.verify("a.zarr", client=x),
    "verify manifest": lambda _, x: zd.verify("a.zarr", manifest=x),
    "compare client": lambda a, x: zd.compare(a, a, client=x),
    "compare sample": lambda a, x: zd.compare(a, a, sample=x),
    "compare equal_nan": lambda a, x: zd.compare(a, a, equal_nan=x),
    "digest client": lambda a, x: zd.digest(a, client=x),
    "digest manifest": lambda a, x: zd.digest(a, manifest=x),
    "Manifest.read manifest": lambda _, x: zd.Manifest.read(x),
    "Writer.create arrays": lambda _, x: zd.Writer.create("n.zarr", x),
    "Writer.create owners": lambda _, x: zd.Writer.create("n.zarr", STEP, owners=x),
    "ZipWriter path": lambda _, x: zd.ZipWriter(x),
    "ZipWriter folder": lambda _, x: zd.ZipWriter("n.zip", folder=x),
    "ZipWriter fsync": lambda _, x: zd.ZipWriter("n.zip", fsync=x),
}


@pytest.fixture
def furnished(here):
    zd.create_group("g.zarr")
    return zd.create_array("a.zarr", shape=10, dtype="i4", chunks=2, dimension_names=["x"])


@pytest.mark.parametrize("wrong", [object(), 5.5, [1, "a"]], ids=["object", "5.5", "list"])
@pytest.mark.parametrize("call", WRONG)
def test_options_of_a_wrong_type_are_named(here, furnished, call, wrong):
    before = sorted(here.rglob("*"))
    option = call.rpartition(" ")[2]
    with pytest.raises((TypeError, ValueError, zd.errors.ZarrDaskError), match=f"{option}\\b"):
        WRONG[call](furnished, wrong)
    assert sorted(here.rglob("*")) == before


@pytest.mark.parametrize("threads", [0, -1, True, "4"])
def test_numbers_of_threads(here, furnished, threads):
    for name, call in WRONG.items():
        if name.endswith("threads"):
            with pytest.raises((TypeError, ValueError), match=rf"^threads={threads!r}: expected"):
                call(furnished, threads)


@pytest.mark.parametrize(
    ("option", "wrong"), [("threads", "4"), ("threads", 0), ("casting", 3), ("gather", 3)]
)
def test_options_of_a_rank(here, option, wrong):
    with pytest.raises((TypeError, ValueError), match=rf"{option}={wrong!r}: expected"):
        writer(**{option: wrong})
    writer_again = zd.Writer.attach("run.zarr", 0)  # what was refused has left nothing held
    writer_again.close()


@pytest.mark.parametrize("blocks", [3, None, [1], "u"])
def test_blocks_of_a_rank_that_have_no_names(here, blocks):
    with writer() as rank, pytest.raises(TypeError, match=r"blocks=.*by its name"):
        rank.write_step(0, blocks)


OPTIONS = {"fsync": True}
WITH_OPTIONS = {
    "open": lambda node: zd.open(node, storage_options=OPTIONS),
    "from_zarr": lambda node: zd.from_zarr(node, storage_options=OPTIONS),
    "to_zarr": lambda node: zd.to_zarr(X, node, storage_options=OPTIONS, region=...),
    "copy": lambda node: zd.copy(node, "n.zarr", storage_options=OPTIONS, target_options={}),
    "copy to": lambda node: zd.copy("a.zarr", node, target_options=OPTIONS, overwrite=True),
    "rechunk to": lambda node: zd.rechunk("a.zarr", node, chunks=5, target_options=OPTIONS),
    "inventory": lambda node: zd.inventory(node, storage_options=OPTIONS),
    "verify": lambda node: zd.verify(node, storage_options=OPTIONS),
    "digest": lambda node: zd.digest(node, storage_options=OPTIONS),
    "compare": lambda node: zd.compare(node, node, storage_options=OPTIONS),
    "open_dataset": lambda node: zd.open_dataset(node, storage_options=OPTIONS),
    "delete": lambda node: zd.delete(node, storage_options=OPTIONS),
    "migrate": lambda node: zd.migrate(node, storage_options=OPTIONS),
}


@pytest.mark.parametrize("what", ["node", "store"])
@pytest.mark.parametrize("call", WITH_OPTIONS)
def test_storage_options_beside_what_is_open(here, furnished, call, what):
    before = sorted(here.rglob("*"))
    node = zd.open_group("g.zarr", mode="r+") if call == "open_dataset" else furnished
    with pytest.raises(StoreError, match=r"^storage_options \['fsync'\]"):
        WITH_OPTIONS[call](node if what == "node" else node.store)
    assert sorted(here.rglob("*")) == before


def test_storage_options_of_the_one_that_is_a_place(here, furnished):
    assert zd.compare(furnished, "a.zarr", storage_options=OPTIONS)
    assert zd.compare("a.zarr", furnished.store, storage_options=OPTIONS)
    assert zd.compare(furnished, "a.zarr", target_options=OPTIONS)


def test_target_options_without_a_target(here):
    zd.create_group("old.zarr", format="v2")
    with pytest.raises(ValueError, match=r"target_options \['fsync'\] are for dst"):
        zd.plan_migration("old.zarr", target_options=OPTIONS)
    with pytest.raises(StoreError, match=r"target_options \['fsync'\] .* the second"):
        zd.compare("old.zarr", zd.open("old.zarr"), target_options=OPTIONS)
