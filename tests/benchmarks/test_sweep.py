"""The sweep beside peers runs, and says where a peer is ahead."""

import json

import pytest

from benchmarks import sweep
from benchmarks.sweep_peers import PEERS


def test_the_quick_form_runs_and_results_are_right(tmp_path, capsys):
    file = tmp_path / "sweep.json"
    words = "element array 32-in-64"
    assert sweep.main(["--quick", "--only", words, "--json", str(file)]) == 0
    read, write = json.loads(file.read_text())
    assert read["name"] == "read/element/array/float32/blosc-lz4/32-in-64"
    assert write["name"] == "write/element/array/float32/blosc-lz4/32-in-64"
    names = {one["name"] for one in write["contenders"]}
    assert names >= {"zarr_dask", "zarr_dask fsync", "tensorstore", "tensorstore fsync"}
    assert not {one["name"] for one in read["contenders"] if one["synced"]}
    assert "a peer is ahead by more than 10 % in cpu time" in capsys.readouterr().out


def _wrong_value(array, access):
    return 1e9


def test_wrong_results_are_said(monkeypatch, capsys):
    peer = next(peer for peer in PEERS if peer.name == "zarr-python")
    monkeypatch.setattr(peer, "read", _wrong_value, raising=False)
    words = "read element array 32-in-64"
    assert sweep.main(["--quick", "--only", words]) == 1
    assert "WRONG: zarr-python" in capsys.readouterr().out


def test_every_axis_is_swept():
    seen = {name: {getattr(cell, name) for cell in sweep.CELLS} for name in ("kind", "interface")}
    assert seen == {"kind": {"read", "write", "create", "append"}, "interface": {"array", "dask"}}
    accesses = {cell.access for cell in sweep.CELLS}
    assert accesses >= {"whole", "plane", "box", "row", "strided", "mask-1", "oindex", "chunk"}
    assert {cell.dtype for cell in sweep.CELLS} >= {"bool", "float32", "float64"}
    assert {bool(cell.shard) for cell in sweep.CELLS} == {True, False}


@pytest.mark.parametrize("slower", [1.0, 1.2])
def test_writes_with_fsync_are_compared_with_writes_with_fsync(slower):
    def times(name, seconds, synced=False):
        return {"name": name, "synced": synced, "cpu": {"all": [seconds, seconds]}}

    found = {
        "contenders": [
            times("zarr_dask", 1.0),
            times("tensorstore", 1.0),
            times("zarr_dask fsync", 5.0 * slower, synced=True),
            times("tensorstore fsync", 5.0, synced=True),
        ]
    }
    assert sweep.ratios(found, "cpu") == {"tensorstore": 1.0, "tensorstore fsync": slower}
    assert bool(sweep.ahead(found, "cpu")) == (slower > sweep.AHEAD)
