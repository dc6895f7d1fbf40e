"""Arrays of v3 that others have published, read as their writers meant them.

The fixtures of zarrita.js were written by zarr-python 3. We must read what it reads of them;
some values are spelled out, so that not both can be wrong in the same way.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import zarr

import zarr_dask as zd

KNOWN = {
    "1d.contiguous.b1": [True, False, True, False],
    "1d.contiguous.f4.be": [-1000.5, 0.0, 1000.5, 0.0],
    "1d.chunked.ragged.i2": [1, 2, 3, 4, 5],
    "2d.chunked.ragged.i2": [[1, 2, 3], [4, 5, 6], [7, 8, 9]],
    "2d.contiguous.i2": [[1, 2], [3, 4]],
    "3d.chunked.mixed.i2.F": np.arange(27).reshape(3, 3, 3).tolist(),
    "3d.chunked.mixed.compressed.sharded.i2": np.arange(27).reshape(3, 3, 3).tolist(),
    "1d.string.unicode": ["hello", "世界", "🚀🎉", "Ñoño"],
    "2d.chunked.string.vlen": [["hello", "world"], ["foo", "bar"]],
}


@pytest.fixture
def fixtures(public_data: Path) -> Path:
    return public_data / "zarrita_js" / "v3" / "data.zarr"


def arrays(root: Path) -> list[str]:
    """Paths of all arrays, found without any implementation."""
    return sorted(
        str(path.parent.relative_to(root))
        for path in root.rglob("zarr.json")
        if json.loads(path.read_text())["node_type"] == "array"
    )


def test_what_zarr_python_reads_of_them(fixtures):
    names = arrays(fixtures)
    assert len(names) >= 44
    for name in names:
        ours = zd.open_array(fixtures, name)[...]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # data types and codecs without a specification
            theirs = np.asarray(zarr.open_array(fixtures, path=name, mode="r")[...])
        if ours.dtype == object:
            assert ours.tolist() == theirs.tolist(), name
        else:
            assert (ours.dtype, ours.tobytes()) == (theirs.dtype, theirs.tobytes()), name


@pytest.mark.parametrize("name", KNOWN)
def test_values_that_are_known(fixtures, name):
    assert zd.open_array(fixtures, name)[...].tolist() == KNOWN[name]


def test_every_region_of_them(fixtures):
    for name in arrays(fixtures):
        array = zd.open_array(fixtures, name)
        whole = array[...]
        index = tuple(slice(n // 2, None, 2) for n in array.shape)
        np.testing.assert_array_equal(array[index], whole[index])
        lazy = array.to_dask(chunks=1 if array.ndim else None)
        np.testing.assert_array_equal(lazy.compute(scheduler="sync"), whole)


def test_their_documents_survive_a_change_of_attributes(fixtures):
    for name in arrays(fixtures):
        store = zd.stores.MemoryStore()
        text = (fixtures / name / "zarr.json").read_bytes()
        store.set("zarr.json", [text])
        before = zd.open_array(store, mode="r+")
        after = before.update_attributes({"mine": 1})
        assert repr(zd.open_array(store).meta) == repr(after.meta)
        again = json.loads(bytes(store.get("zarr.json")))
        theirs = json.loads(text)
        for member in ("shape", "chunk_grid", "chunk_key_encoding", "fill_value"):
            assert again[member] == theirs[member], (name, member)


def test_groups(fixtures):
    root = zd.open_group(fixtures)
    found = sorted(path for path, _ in root.arrays(recursive=True))
    assert found == arrays(fixtures)
    assert "my group with spaces" in dict(root.groups())
