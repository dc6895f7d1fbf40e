"""zarr-python 2.18, the last of its line, reads what we write and writes what we read."""

import json
import os
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest

import zarr_dask as zd
from tests.support.paths import ZARR2, ZARR2_SCRIPTS
from tests.support.zarr2 import cases as data

CASES = data.cases()


@pytest.fixture(scope="module")
def peer():
    if not ZARR2.exists():
        assert os.environ.get("CI") != "true", f"{ZARR2} is missing: make test makes it"
        pytest.skip(f"zarr 2.18 is not installed in {ZARR2.parent.parent.name}: run make test")

    def run(what, jobs, folder):
        path = folder / f"{what}.json"
        path.write_text(json.dumps(jobs), encoding="utf-8")
        command = [ZARR2, ZARR2_SCRIPTS / "peer.py", what, path]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        assert answer["version"].startswith("2.18.")
        return answer["answers"]

    return run


def same(got, want):
    """Equal bit by bit; objects by what they print."""
    if got.shape != want.shape:
        return False
    if got.dtype.hasobject:
        return [repr(item) for item in got.flat] == [repr(item) for item in want.flat]
    return got.astype(want.dtype).tobytes() == want.tobytes()


def test_the_matrix_is_whole():
    assert len(CASES) == 615
    for one in ("order", "separator", "shape"):
        assert len({getattr(case, one) for case in CASES}) == {"order": 2, "separator": 2}.get(
            one, 5
        )
    seen = {(str(case.dtype), case.order, len(case.shape)) for case in CASES}
    assert len(seen) > 200


def test_it_reads_what_we_write(peer, tmp_path):
    jobs = []
    for number, case in enumerate(CASES):
        path = tmp_path / f"größe {number}.zarr"
        codecs = [*case.filters, *([case.compressor] if case.compressor else [])]
        fill = case.fill_array[0] if case.fill is not None else None
        array = zd.create_array(
            path, shape=case.shape, dtype=case.zarr_dask_dtype, chunks=case.chunks, codecs=codecs,
            order=case.order, fill_value=fill, format="v2", attributes=case.attributes,
            chunk_key_encoding={"name": "v2", "separator": case.separator},
        )  # fmt: skip
        array[case.written] = case.values
        jobs.append({
            "path": str(path), "values": str(tmp_path / f"{number}.npy"),
            "fill": str(tmp_path / f"{number}.fill.npy"),
        })  # fmt: skip
    for case, place, answer in zip(CASES, jobs, peer("read", jobs, tmp_path), strict=True):
        got = np.load(place["values"], allow_pickle=True)[*case.written, ...]
        assert same(got, case.values), str(case)
        assert answer["dtype"] == case.dtype
        assert answer["attributes"] == case.attributes
        assert answer["order"] == (case.order if len(case.shape) > 1 else "C") or case.dtype == "|O"
        fill = np.load(place["fill"], allow_pickle=True)
        if case.fill is None:
            assert fill[0] is None
        elif case.dtype != "|O":
            assert same(fill, case.fill_array), str(case)
        if case.fill is not None and case.dtype != "|O":
            whole = np.load(place["values"], allow_pickle=True)
            assert same(whole, case.expected), str(case)


def test_we_read_what_it_writes(peer, tmp_path):
    jobs = []
    for number, case in enumerate(CASES):
        np.save(tmp_path / f"{number}.npy", case.values)
        np.save(tmp_path / f"{number}.fill.npy", case.fill_array)
        jobs.append({
            "path": str(tmp_path / f"größe {number}.zarr"),
            "values": str(tmp_path / f"{number}.npy"),
            "fill": str(tmp_path / f"{number}.fill.npy"),
            "dtype": case.dtype, "shape": case.shape, "chunks": case.chunks, "order": case.order,
            "separator": case.separator, "compressor": case.compressor, "filters": case.filters,
            "attributes": case.attributes,
            "written": [[part.start, part.stop] for part in case.written],
        })  # fmt: skip
    peer("write", jobs, tmp_path)
    for case, job in zip(CASES, jobs, strict=True):
        array = zd.open_array(job["path"])
        assert same(array[*case.written, ...], case.values), str(case)
        assert array.dtype == case.stored.newbyteorder("=")
        assert array.attributes == case.attributes
        assert (array.fill_value is None) == (case.fill is None)
        if case.fill is not None:
            assert same(array[...], case.expected), str(case)
        document = array.node_format.documents(array.meta, "")[".zarray"]
        before = json.loads(Path(job["path"], ".zarray").read_text(encoding="utf-8"))
        assert json.loads(document)["dtype"] == before["dtype"] == case.dtype
        assert json.loads(document)["fill_value"] == before["fill_value"] or case.dtype == "|O"


def test_it_reads_the_published_stores_as_we_do(peer, public_data, tmp_path):
    for name in ("zarr_python_v2_fixture", "zarr_implementations"):
        with zipfile.ZipFile(public_data / name / "data.zip") as archive:
            archive.extractall(tmp_path / name)
    roots = (
        tmp_path / "zarr_python_v2_fixture",
        tmp_path / "zarr_implementations" / "zarr.zr",
        public_data / "zarrita_js" / "v2" / "data.zarr",
    )
    paths = [path.parent for root in roots for path in sorted(root.rglob(".zarray"))]
    assert len(paths) == 87
    jobs = [
        {
            "path": str(path),
            "values": str(tmp_path / f"{number}.npy"),
            "fill": str(tmp_path / f"{number}.fill.npy"),
            "nested": path.name == "nested_legacy",
        }
        for number, path in enumerate(paths)
    ]
    answers = peer("read", jobs, tmp_path)
    for path, job, answer in zip(paths, jobs, answers, strict=True):
        read = zd.ReadOptions(dimension_separator="/") if job["nested"] else None
        array = zd.open_array(path, read=read)
        assert same(array[...], np.load(job["values"], allow_pickle=True)), path
        assert array.attributes == answer["attributes"]
