"""HDF5 files whose heaps are damaged are errors: the library would go through them for ever."""

from __future__ import annotations

import io
import subprocess
import sys

import numpy as np
import pytest

from zarr_dask.jobs.ingest.file_store import FileArrays, header_of
from zarr_dask.jobs.ingest.source_file import SourceFile

h5py = pytest.importorskip("h5py")

from zarr_dask.jobs.ingest.hdf5_file import CheckedFile  # noqa: E402  (it needs h5py)

HEAP = b"GCOL\x01\0\0\0"


@pytest.fixture
def path(tmp_path):
    """A file with texts and dimensions, which lie in a heap."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.attrs["title"] = "a run"
        file["x"] = np.arange(4.0)
        file["x"].make_scale("x")
        file["t"] = np.arange(4, dtype="f4")
        file["t"].dims[0].attach_scale(file["x"])
    return path


def damaged(path, at, data):
    """Change bytes of a heap, counted from its beginning; return the file."""
    content = bytearray(path.read_bytes())
    start = content.index(HEAP) + at
    content[start : start + len(data)] = data
    path.write_bytes(content)
    return path


DAMAGE = {
    "a length that overflows": (16 + 15, b"\xf6"),
    "a length beyond its end": (16 + 8, b"\x00\x20"),
    "a size beyond the file": (8 + 4, b"\x01"),
    "an end without a length": (16, b"\0" * 16),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_heap_is_an_error(path, kind):
    found = header_of(SourceFile.of(str(damaged(path, *DAMAGE[kind])), None), None)
    assert "heap at byte" in found.error


def test_a_survey_of_a_damaged_file_ends(path):
    damaged(path, *DAMAGE["a length that overflows"])
    code = "import sys; from zarr_dask.jobs.ingest.survey import survey_files as s; "
    code += "print(s([sys.argv[1]], None, None).headers[0].error)"
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "heap at byte" in done.stdout


def test_first_bytes_that_were_read_earlier_are_looked_at(path):
    data = damaged(path, *DAMAGE["a length that overflows"]).read_bytes()
    start = data.index(HEAP)
    for split in (0, 3, 7):
        file = CheckedFile(io.BytesIO(data))
        file.seek(start + split)
        with pytest.raises(OSError, match="is damaged"):
            file.readinto(bytearray(64))


def test_an_address_beyond_the_file_is_an_error(path):
    """The one of the root group, in a superblock of version 0."""
    content = bytearray(path.read_bytes())
    assert content[8] == 0
    content[64:72] = b"\xff" * 7 + b"\x7f"
    path.write_bytes(content)
    assert "no whole HDF5 file" in header_of(SourceFile.of(str(path), None), None).error
    file = CheckedFile(io.BytesIO(content))
    file.seek(1 << 63)
    with pytest.raises(OSError, match="it leads to byte"):
        file.readinto(bytearray(8))


def test_values_that_look_like_a_heap_are_read(path):
    values = np.frombuffer(b"GCOL" * 100, "u1")
    with h5py.File(path, "a") as file:
        file.create_dataset("values", data=values, chunks=(64,), compression="lzf")
    place = SourceFile.of(str(path), None)
    header = header_of(place, None)
    assert not header.error
    np.testing.assert_array_equal(FileArrays(place, header).array("values")[...], values)


def test_a_file_that_is_being_written_is_refused(path, monkeypatch):
    place = SourceFile.of(str(path), None)
    with h5py.File(path, "a", locking=True):
        assert "is being written by another process" in header_of(place, None).error
        monkeypatch.setenv("HDF5_USE_FILE_LOCKING", "FALSE")
        assert not header_of(place, None).error
    assert not header_of(place, None).error


def test_soft_links_lead_to_no_other_file(tmp_path, path):
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["g/y"] = [1, 2]
        file["out"] = h5py.ExternalLink(str(path), "/")
        for name, to in {"in": "/g/y", "near": "g/y", "far": "/out/x", "two": "far"}.items():
            file[name] = h5py.SoftLink(to)
        file["g/round"] = h5py.SoftLink("round")
        file["below"] = h5py.SoftLink("/g/y/z")
    found = header_of(SourceFile.of(str(tmp_path / "b.h5"), None), None)
    assert not found.error
    assert {*found.variables} == {"g/y", "in", "near"}
