"""Consolidated metadata between us and zarr-python 2.18."""

import json
import os
import subprocess

import pytest

import zarr_dask as zd
from tests.support.paths import ZARR2, ZARR2_SCRIPTS
from zarr_dask.formats.consolidated import Consolidated
from zarr_dask.stores import LocalStore, Recording


@pytest.fixture
def peer():
    if not ZARR2.exists():
        assert os.environ.get("CI") != "true", f"{ZARR2} is missing: make test makes it"
        pytest.skip(f"zarr 2.18 is not installed in {ZARR2.parent.parent.name}: run make test")

    def run(what, place):
        script = ZARR2_SCRIPTS / "consolidated_peer.py"
        command = [ZARR2, script, what, place]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout) if done.stdout else None

    return run


def test_what_zarr_2_consolidates(peer, tmp_path):
    peer("write", tmp_path / "h")
    recording = Recording(LocalStore(str(tmp_path / "h")))
    group = zd.open_group(recording)
    assert isinstance(group.store, Consolidated)
    recording.clear()
    assert [path for path, _ in group.walk()] == ["a", "a/b", "a/b/x", "e"]
    assert group["a/b/x"].attributes == {"unit": "m"}
    assert group.attributes == {"title": "t"}
    assert recording.requests == []
    assert group["a/b/x"][...].tolist() == [1, 2, 3, 4]
    assert group.stale() == []


def test_zarr_2_reads_ours(peer, tmp_path):
    group = zd.create_group(tmp_path / "h", format="v2", attributes={"title": "t"})
    options = {"shape": (4,), "dtype": "<i4", "chunks": 2}
    group.create_array("a/b/x", **options)[...] = [1, 2, 3, 4]
    group.create_group("e")
    zd.consolidate(tmp_path / "h")
    for name in (".zarray", ".zattrs", ".zgroup"):
        for document in (tmp_path / "h").rglob(name):
            document.unlink()  # so that nothing else can be read
    assert peer("read", tmp_path / "h") == {
        "paths": ["a", "a/b", "a/b/x", "e"],
        "values": {"a/b/x": [1, 2, 3, 4]},
        "attributes": {"title": "t"},
    }
