"""Calls that users try first, coming from NumPy, dask, xarray, zarr-python, h5py and rechunker.

Each works as the habit expects, or is refused with a message that says what to write instead.
"""

from __future__ import annotations

import copy
import json
import pickle

import dask.array as da
import numpy as np
import pytest

import zarr_dask as zd

# --- results as truth values ----------------------------------------------------------------------


def test_a_report_is_true_only_if_nothing_is_wrong():
    store = {}
    zd.create_array(store, shape=(8,), dtype="i4", chunks=2)[:4] = 1
    report = zd.verify(store)
    assert report
    assert report.ok
    assert "2 stored objects present; contents not read" in str(report).splitlines()[0]
    assert "lost objects cannot be told" in str(report)
    store["c/0"] = b"xy"
    damaged = zd.verify(store, deep="decode")
    assert not damaged
    assert not damaged.ok
    assert "every chunk decoded" in str(damaged).splitlines()[0]


def test_with_receipts_absent_objects_are_judged(tmp_path):
    manifest = tmp_path / "manifest.jsonl"
    zd.to_zarr(da.ones(8, chunks=2), tmp_path / "a.zarr", manifest=manifest)
    assert zd.verify(tmp_path / "a.zarr", manifest=manifest)
    (tmp_path / "a.zarr" / "c" / "1").unlink()
    report = zd.verify(tmp_path / "a.zarr", manifest=manifest)
    assert not report
    assert "cannot be told" not in str(report)
    assert "cannot be told" in str(zd.verify(tmp_path / "a.zarr"))


def test_results_are_one_line_in_a_console_and_text_in_a_notebook(tmp_path):
    x = da.ones((4, 4), chunks=2)
    url = tmp_path / "a.zarr"
    results = [
        zd.plan_write(x, url),
        zd.to_zarr(x, url),
        zd.verify(url),
        zd.compare(url, url),
        zd.survey(url),
        zd.plan_rechunk(url, tmp_path / "b.zarr", chunks=4),
        zd.rechunk(url, tmp_path / "b.zarr", chunks=4),
        zd.plan_copy(url, tmp_path / "c.zarr"),
        zd.copy(url, tmp_path / "c.zarr"),
    ]
    for one in results:
        assert repr(one).startswith(f"<{type(one).__name__}: ")
        assert "\n" not in repr(one)
        assert len(repr(one)) < 200
        assert str(one).splitlines()[0][:20] in repr(one)
        assert one._repr_html_().startswith("<")


# --- handles follow their node --------------------------------------------------------------------


def test_handles_follow_their_array(tmp_path):
    a = zd.create_array(tmp_path, "a", shape=(2, 3), dtype="i4", chunks=(2, 3))
    b = zd.open(tmp_path / "a", mode="r+")
    lazy, view, packed = a.to_dask(), a.lazy, pickle.dumps(a)
    tokens = {a.token}
    assert a.append([[1, 1, 1]]) is a
    tokens.add(a.token)
    assert a.shape == b.shape == pickle.loads(pickle.dumps(b)).shape == (3, 3)
    b[:] = 5
    assert (a[...] == 5).all()
    assert lazy.shape == view.shape == pickle.loads(packed).shape == (2, 3)
    assert (lazy.compute() == 5).all()
    zd.to_zarr(da.ones((2, 3), dtype="i4"), tmp_path, "a", append=0)
    assert a.shape == b.shape == (5, 3)
    assert a.resize((1, 3)) is a
    assert b[...].tolist() == [[5, 5, 5]]
    tokens.add(a.token)
    assert len(tokens) == 3
    assert len({a, b}) == 2
    with pytest.raises(TypeError, match="one tuple"):
        a.resize(3, 3)


def test_a_plan_does_not_follow(tmp_path):
    a = zd.create_array(tmp_path, shape=(2, 3), dtype="f8", chunks=(2, 3))
    plan = zd.plan_write(da.ones((2, 3)), a)
    a.append(np.zeros((2, 3)))
    assert plan.target.shape == (2, 3)


@pytest.mark.parametrize("kind", ["array", "group"])
def test_attributes_are_written(kind):
    store = {}
    options = {"shape": 3, "dtype": "i2"} if kind == "array" else {}
    node = getattr(zd, f"create_{kind}")(store, attributes={"x": [1, {"y": 2}]}, **options)
    other = zd.open(store)
    node.attrs["units"] = "m"
    node.attrs.update(title="t", n=np.int64(3))
    expected = {"x": [1, {"y": 2}], "units": "m", "title": "t", "n": 3}
    assert node.attrs == other.attrs == zd.open(store).attributes == expected
    del node.attrs["units"]
    assert node.attrs.pop("title") == "t"
    assert dict(other.attrs) == zd.open(store).attrs.asdict() == {"x": [1, {"y": 2}], "n": 3}
    assert json.loads(json.dumps(node.attributes)) == node.attributes
    assert type(copy.deepcopy(node.attributes)) is dict
    with pytest.raises(KeyError):
        del node.attrs["no"]
    with pytest.raises(zd.errors.ReadOnlyError):
        other.attrs["a"] = 1
    node.attrs.clear()
    assert not zd.open(store).attrs


def test_a_change_that_would_be_lost_is_refused():
    a = zd.create_array({}, shape=3, dtype="i2", attributes={"x": [1, {"y": 2}]})
    for change in (
        lambda: a.attributes.update(u=1),
        lambda: a.attributes.__setitem__("u", 1),
        lambda: a.attributes["x"].append(1),
        lambda: a.attrs["x"][1].update(y=3),
        lambda: a.attrs["x"].__setitem__(0, 3),
    ):
        with pytest.raises(TypeError, match=r"node\.attrs\['units'\] = 'm'"):
            change()
