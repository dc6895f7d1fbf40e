"""References in Parquet: what fsspec reads, and what kerchunk and fsspec write."""

from __future__ import annotations

import json
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

import zarr_dask as zd
from zarr_dask.errors import NodeExistsError, StoreError
from zarr_dask.formats import references
from zarr_dask.formats.references import parquet_files
from zarr_dask.stores.base import list_sizes
from zarr_dask.stores.open import open_store

pyarrow = pytest.importorskip("pyarrow")
pytest.importorskip("pandas")
parquet = pytest.importorskip("pyarrow.parquet")
reference = pytest.importorskip("fsspec.implementations.reference")
fsspec = pytest.importorskip("fsspec")
h5py = pytest.importorskip("h5py")
xr = pytest.importorskip("xarray")

SHAPE, CHUNKS = (7, 4), (2, 2)


@pytest.fixture(autouse=True)
def _small_tables(monkeypatch):
    monkeypatch.setattr(references, "_ROWS", 3)


@pytest.fixture
def refs(tmp_path):
    """References to an array of 8 chunks, of which one lies in the document and two nowhere."""
    values = np.arange(56, dtype="<i4").reshape(14, 4)
    values.tofile(tmp_path / "raw")
    document = {"zarr_format": 2, "shape": SHAPE, "chunks": CHUNKS, "dtype": "<i4", "order": "C"}
    document |= {"compressor": None, "filters": None, "fill_value": -1}
    found = {".zgroup": '{"zarr_format": 2}', "g/.zgroup": '{"zarr_format": 2}'}
    found |= {"g/a/.zarray": json.dumps(document), "g/a/.zattrs": '{"units": "K"}'}
    for number, key in enumerate(["0.0", "0.1", "1.0", "2.1", "3.1"]):
        found[f"g/a/{key}"] = [f"file://{tmp_path}/raw", 16 * number, 16]
    found["g/a/1.1"] = "base64:AQAAAAIAAAADAAAABAAAAA=="
    zero = {"shape": [], "chunks": [], "fill_value": 0, **document} | {"shape": [], "chunks": []}
    found |= {"s/.zarray": json.dumps(zero), "s/.zattrs": "{}", "s/0": "base64:BwAAAA=="}
    return found


def write(refs, folder):
    for key, content in parquet_files(refs):
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return f"reference::{folder}"


def same(found, refs):
    """Check an open group against the same references in a dictionary."""
    expected = zd.open("reference://", storage_options={"fo": refs})
    for name in ("g/a", "s"):
        np.testing.assert_array_equal(found[name][...], expected[name][...])
    assert dict(found["g/a"].attrs) == {"units": "K"}
    assert {*found["g"]} == {"a"}


def test_tables_that_are_written_are_read(tmp_path, refs):
    found = zd.open(write(refs, tmp_path / "a.parq"))
    same(found, refs)
    assert sorted(found.store.list("g/a/")) == sorted(k for k in refs if k.startswith("g/a/"))
    values = found["g/a"][...]
    assert values[2, 2] == 1  # from the document
    assert (values[4:6, 2:] == [[12, 13], [14, 15]]).all()
    assert (values[4:, :2] == -1).all()  # nowhere


def test_fsspec_reads_what_is_written(tmp_path, refs):
    write(refs, tmp_path / "a.parq")
    table = parquet.read_table(tmp_path / "a.parq/g/a/refs.0.parq")
    for name in ("offset", "size"):
        assert not table.schema.field(name).nullable
        assert table.column(name).type == pyarrow.int64()
    mapper = reference.LazyReferenceMapper(
        str(tmp_path / "a.parq"), fsspec.filesystem("file"), engine="pyarrow"
    )
    for key, one in refs.items():
        if key.rpartition("/")[2][0] != ".":
            assert mapper[key] == (one if isinstance(one, list) else _decoded(one))
    fs = fsspec.filesystem("reference", fo=mapper, remote_protocol="file")
    assert fs.cat("g/a/0.1") == np.arange(4, 8, dtype="<i4").tobytes()


def _decoded(text):
    import base64

    return base64.b64decode(text.removeprefix("base64:"))


def test_tables_of_pandas_are_read(tmp_path, refs):
    """As `fsspec` and kerchunk write them: absent texts are NaN, paths are categories."""
    import pandas as pd

    write(refs, tmp_path / "a.parq")
    for path in tmp_path.glob("a.parq/**/*.parq"):
        frame = parquet.read_table(path).to_pandas()
        frame["path"] = frame["path"].astype("category")
        frame.to_parquet(path, engine="pyarrow", index=False)
    same(zd.open(f"reference::{tmp_path}/a.parq"), refs)
    absent = pd.DataFrame({"path": [np.nan] * 3, "offset": 0, "size": 0, "raw": [np.nan] * 3})
    place = write(refs, tmp_path / "b.parq")
    absent.to_parquet(tmp_path / "b.parq/g/a/refs.0.parq", engine="pyarrow")
    assert (zd.open(place)["g/a"][:2] == -1).all()


def test_an_absent_table_has_no_chunks(tmp_path, refs):
    place = write(refs, tmp_path / "a.parq")
    (tmp_path / "a.parq/g/a/refs.1.parq").unlink()
    found = zd.open(place)
    assert (found["g/a"][2:4, 2:] == -1).all()
    assert "g/a/1.1" not in {*found.store.list("g/a/")}
    assert "g/a/3.1" in {*found.store.list("g/a/")}


DAMAGE = {
    "empty": lambda data: b"",
    "cut off": lambda data: data[:-9],
    "bytes changed": lambda data: data[:40] + b"\xff" * 8 + data[48:],
    "too short": lambda data: _table({"path": ["x"], "offset": [0], "size": [4], "raw": [None]}),
    "texts for numbers": lambda data: _table(
        {"path": ["x"] * 3, "offset": ["0"] * 3, "size": [4] * 3, "raw": [None] * 3}
    ),
    "numbers for texts": lambda data: _table(
        {"path": [1] * 3, "offset": [0] * 3, "size": [4] * 3, "raw": [None] * 3}
    ),
}


def _table(columns):
    buffer = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.table(columns), buffer)
    return buffer.getvalue().to_pybytes()


@pytest.mark.parametrize("way", DAMAGE)
def test_damaged_tables_are_errors(tmp_path, refs, way):
    place = write(refs, tmp_path / "a.parq")
    path = tmp_path / "a.parq/g/a/refs.0.parq"
    path.write_bytes(DAMAGE[way](path.read_bytes()))
    with pytest.raises(StoreError, match=r"refs\.0\.parq, a table of references, "):
        zd.open(place)["g/a"][...]


@pytest.mark.parametrize(
    "change",
    [
        {"record_size": 0},
        {"record_size": "3"},
        {"record_size": 10**12},
        {"metadata": {"../a/.zarray": {}}},
        {"metadata": []},
    ],
)
def test_malformed_metadata_are_errors(tmp_path, refs, change):
    place = write(refs, tmp_path / "a.parq")
    path = tmp_path / "a.parq/.zmetadata"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(StoreError, match="malformed"):
        zd.open(place)


def test_tables_larger_than_any_meant_are_refused(tmp_path, refs, monkeypatch):
    module = pytest.importorskip("zarr_dask.stores.backends.parquet_references")
    place = write(refs, tmp_path / "a.parq")
    monkeypatch.setattr(module, "_MOST_BYTES", 10)
    with pytest.raises(StoreError, match="expected at most"):
        zd.open(place)["g/a"][...]


def test_references_of_a_server_are_read_and_confined(tmp_path, refs):
    pytest.importorskip("aiohttp")
    write(refs, tmp_path / "a.parq")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        place = f"reference::http://127.0.0.1:{server.server_port}/a.parq"
        with pytest.raises(StoreError, match="a file of this machine"):
            zd.open_array(place, "g/a")[...]
        options = {"reference_places": [str(tmp_path)]}
        same(zd.open(place, storage_options=options), refs)
        server.shutdown()


def test_files_are_told_in_parquet(tmp_path):
    files = []
    for number in range(2):
        files.append(str(tmp_path / f"{number}.nc"))
        one = xr.Dataset({"a": (("t", "x"), np.random.default_rng(number).random((4, 30)))})
        one = one.assign_coords(t=np.arange(4) + 4 * number)
        one.to_netcdf(files[-1], engine="h5netcdf", encoding={"a": {"chunksizes": (1, 30)}})
    target = str(tmp_path / "run.parq")
    for _ in range(2):  # the second takes the place of the first
        assert zd.reference(files, target, concat="t") == 8
        found = zd.open_dataset(f"reference::{target}").load()
        with xr.open_mfdataset(files, engine="h5netcdf", chunks=None) as expected:
            xr.testing.assert_equal(found, expected)


def test_a_folder_of_something_else_is_kept(tmp_path):
    file = tmp_path / "0.h5"
    with h5py.File(file, "w") as opened:
        opened.create_dataset("a", data=np.ones(3)).dims[0].label = "t"
    other = tmp_path / "table.parquet"
    other.mkdir()
    (other / "part-0").write_bytes(b"x")
    with pytest.raises(NodeExistsError, match="holds no references"):
        zd.reference([str(file)], str(other), concat="t")
    assert (other / "part-0").read_bytes() == b"x"


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_a_listing_has_what_lies_in_a_folder_with_its_size(tmp_path, form):
    """Not what lies in another one whose name goes on; of whole files the size of the file."""
    (tmp_path / "whole").write_bytes(bytes(16))
    document = json.dumps({"zarr_format": 2, "shape": [3], "chunks": [1], "dtype": "|V16"})
    refs = {".zgroup": '{"zarr_format": 2}'}
    for name in ("a", "ab", "a/b"):
        refs |= {f"{name}/.zarray": document, f"{name}/0": [f"file://{tmp_path}/whole", 2, 7]}
        refs |= {f"{name}/1": "base64:AAAA", f"{name}/2": [f"file://{tmp_path}/whole", 0, 0]}
    if form == "json":
        refs |= {f"{name}/2": [f"file://{tmp_path}/whole"] for name in ("a", "ab", "a/b")}
        (tmp_path / "refs").write_text(json.dumps(refs))
    else:
        for key, content in parquet_files(refs):
            (tmp_path / f"refs/{key}").parent.mkdir(exist_ok=True, parents=True)
            (tmp_path / f"refs/{key}").write_bytes(content)
    store = open_store(f"reference::{tmp_path}/refs")
    sizes = dict(list_sizes(store, "a/"))
    chunks = {f"{name}/{n}": size for name in ("a", "a/b") for n, size in enumerate((7, 3, 16))}
    chunks |= {f"{name}/.zarray": len(store.get(f"{name}/.zarray")) for name in ("a", "a/b")}
    assert sizes == chunks
    assert {*store.list("a/")} == {*sizes}
    assert {*store.list()} - {".zmetadata"} == {*refs}
    assert store.list_dir("a/").keys == ["a/.zarray", "a/0", "a/1", "a/2"]
