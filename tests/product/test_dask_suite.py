"""dask's own tests of Zarr, with our functions in the place of dask's.

Every test function of the modules below that names Zarr is collected here, as dask ships it, with
``from_zarr`` and ``to_zarr`` replaced. Where a test means something that we do differently on
purpose, `DIFFERENT` says why; such a test must fail, else it does not belong there.
docs/reference/dask.md says the same to users.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
import zarr as zarr_python  # `zarr` is a fixture of dask's tests
from dask.array.utils import assert_eq

import zarr_dask as zd

MODULES = {
    "dask.array.tests.test_array_core": {"unknown"},
    "dask.tests.test_distributed": {"zarr"},
}
"""Where dask tests Zarr, and the fixtures that those tests use."""

NAMES = {"from_zarr", "to_zarr", "zarr"}

NO_WARNING = "blocks that do not fit the stored objects are regrouped without a warning"
NO_ARRAY = "compute=False gives a collection that writes, not an array"
SHARDS = "blocks of a sharded array are its shards"
DIFFERENT = {
    "test_zarr_inline_array[False]": "the source is always part of the tasks",
    "test_zarr_irregular_chunks[shape0-chunks0-True]": NO_WARNING,
    "test_zarr_irregular_chunks[shape1-chunks1-True]": NO_WARNING,
    "test_zarr_irregular_chunks[shape4-chunks4-True]": NO_WARNING,
    "test_compute_chunk_sizes_warning_fixes_to_zarr": NO_WARNING,
    "test_zarr_risky_shards_warns": "no setting makes a write unsafe: there is nothing to warn of",
    "test_zarr_nocompute": NO_ARRAY,
    "test_zarr_to_zarr_shards[None]": NO_ARRAY,
    "test_zarr_to_zarr_shards[all]": NO_ARRAY,
    "test_zarr_to_zarr_shards[half]": NO_ARRAY,
    "test_zarr_sharding_roundtrip[chunks0-shards0]": SHARDS,
    "test_zarr_sharding_roundtrip[chunks1-shards1]": SHARDS,
    "test_zarr_regions": "a region that cuts stored objects is refused unless partial='own'",
}
"""What is not shared, by the name of the test."""


def _names_zarr(node: ast.AST) -> bool:
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    attributes = {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
    texts = {n.value for n in ast.walk(node) if isinstance(n, ast.Constant)}
    return bool(NAMES & (names | attributes | {t for t in texts if isinstance(t, str)}))


def _tests_of(module) -> dict[str, object]:
    """The test functions that name Zarr in their body, or are given zarr-python by a fixture."""
    tree = ast.parse(Path(inspect.getsourcefile(module)).read_text(encoding="utf-8"))
    found = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            given = {argument.arg for argument in node.args.args}
            if any(map(_names_zarr, node.body)) or "zarr" in given:
                function = getattr(module, node.name)
                marks = getattr(function, "pytestmark", [])
                function.pytestmark = [mark for mark in marks if mark.name != "slow"]
                found[node.name] = function
    return found


for _name, _fixtures in MODULES.items():
    _module = importlib.import_module(_name)
    globals().update(_tests_of(_module))
    globals().update({fixture: getattr(_module, fixture) for fixture in _fixtures})


@pytest.fixture
def c(client):
    """A client of worker processes, as dask's tests ask for it."""
    return client


@pytest.fixture(autouse=True)
def ours_in_place_of_dasks(request, monkeypatch):
    for module in (da, importlib.import_module("dask.array.core")):
        monkeypatch.setattr(module, "from_zarr", zd.from_zarr)
        monkeypatch.setattr(module, "to_zarr", zd.to_zarr)
    reason = DIFFERENT.get(request.node.name)
    if reason is not None:
        request.node.add_marker(pytest.mark.xfail(reason=reason, strict=True))


# --- what those tests mean, in our way ------------------------------------------------------------


def test_regions_that_cut_objects_are_written_by_who_owns_them():
    a = da.arange(16).reshape((4, 4)).rechunk(2)
    z = zarr_python.zeros_like(a, chunks=2)
    a[:2, :2].to_zarr(z, region=(slice(2), slice(2)))
    with pytest.raises(zd.errors.PartialWriteError):
        a[:3, 3:4].to_zarr(z, region=(slice(1, 4), slice(2, 3)))
    a[:3, 3:4].to_zarr(z, region=(slice(1, 4), slice(2, 3)), partial="own")
    a[3:, 3:].to_zarr(z, region=(slice(2, 3), slice(1, 2)), partial="own")
    expected = [[0, 1, 0, 0], [4, 5, 3, 0], [0, 15, 7, 0], [0, 0, 11, 0]]
    assert_eq(da.from_zarr(z), expected)


@pytest.mark.parametrize("region", [None, (slice(None),), (slice(50),)], ids=str)
def test_blocks_are_regrouped_into_shards(region):
    arr = da.arange(100, chunks=7)[region or slice(None)]
    z = zarr_python.create_array({}, shape=(100,), chunks=(1,), shards=(2,), dtype=arr.dtype)
    waiting = arr.to_zarr(z, region=region, compute=False)
    assert not z[:].any()
    report = waiting.compute()
    assert report.objects + report.empty == arr.size // 2
    assert_eq(z[region or slice(None)], arr)


def test_no_setting_makes_a_write_unsafe():
    arr = da.arange(100, chunks=10) + 1
    z = zarr_python.create_array({}, shape=(100,), chunks=(3,), shards=(6,), dtype=arr.dtype)
    with dask.config.set({"array.chunk-size": 1}):
        arr.to_zarr(z)
    assert_eq(z[:], arr)


@pytest.mark.parametrize("blocks", [((2, 1, 1, 2), 1), ((2, 1, 2, 1), 1), ((4, 1, 1), 2)], ids=str)
def test_irregular_blocks_are_written(blocks, tmp_path):
    x = da.arange(12).reshape(6, 2).rechunk(blocks)
    x.to_zarr(tmp_path, compute=False).compute()
    assert_eq(zarr_python.open_array(tmp_path, mode="r")[...], np.arange(12).reshape(6, 2))


def test_blocks_of_shards_are_chunks_on_request(tmp_path):
    a = da.ones((60, 60), chunks=3)
    a.to_zarr(tmp_path, shards=(18, 18), chunks=(3, 3))
    assert da.from_zarr(tmp_path).chunks == ((18, 18, 18, 6),) * 2
    assert da.from_zarr(tmp_path, chunks="chunks").chunks == a.chunks


def test_dask_stores_into_an_open_array(tmp_path):
    """With dask's own lock: its tasks know nothing of stored objects."""
    x = da.arange(100, chunks=7).reshape(10, 10).rechunk((3, 4))
    target = zd.create_array(tmp_path, shape=(10, 10), dtype=x.dtype, chunks=2, shards=(6, 4))
    da.store(x, target)
    assert_eq(target[...], x)
    da.store(x[:4] * 2, target, regions=(slice(4, 8), slice(None)))
    assert_eq(target[4:8], x[:4] * 2)
    stored = da.store(x + 1, target, return_stored=True, compute=True)
    assert_eq(stored, x + 1)


# --- the list of differences ----------------------------------------------------------------------


def test_differences_are_tests_of_dask(request):
    here = {item.name for item in request.session.items if item.path == request.path}
    collected_alone = request.config.option.keyword or "::" in " ".join(request.config.args)
    assert collected_alone or here >= DIFFERENT.keys()


def test_dask_tests_zarr_in_these_modules_only():
    """A module of dask's tests that begins to use Zarr is noticed."""
    root = Path(da.__file__).parent.parent
    elsewhere = {
        "dask.array.tests.test_xarray",  # xarray's own to_zarr
        "dask.tests.test_graph_manipulation",  # the inside of dask's own from_zarr
        "dask.tests.test_order",  # groups of zarr-python, for the order of tasks
        "dask.tests.test_sizeof",  # xarray's own to_zarr
    }
    using = {
        ".".join(("dask", *path.relative_to(root).with_suffix("").parts))
        for path in root.rglob("test_*.py")
        if "zarr" in path.read_text(encoding="utf-8")
    }
    assert using - elsewhere == set(MODULES)
