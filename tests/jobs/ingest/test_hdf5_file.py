"""HDF5 files whose heaps are damaged are errors: the library would go through them for ever."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import numpy as np
import pytest

from zarr_dask.jobs.ingest.file_store import FileArrays, header_of
from zarr_dask.jobs.ingest.header import MOST_PLACES, Header
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


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (h5py.vlen_dtype("i4"), "'list of int32'"),
        (h5py.ref_dtype, "'reference'"),
        (h5py.regionref_dtype, "'reference'"),
        ("V5", "|V5"),
    ],
)
def test_data_types_that_are_refused_are_named(tmp_path, dtype, name):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("a", (3,), dtype)
    found = header_of(SourceFile.of(str(tmp_path / "a.h5"), None), None).variables["a"]
    assert found.unsupported.startswith(f"has the data type {name}, which Zarr arrays")


def chunked(path, count, **options):
    """Write a file of that many chunks, the second of which is not stored."""
    with h5py.File(path, "w") as file:
        made = file.create_dataset("v", (count, 5000), "f8", chunks=(1, 5000), **options)
        for number in set(range(count)) - {1}:
            made[number] = np.full(5000, number, "f8")
    return header_of(SourceFile.of(str(path), None), None)


def test_places_of_few_chunks_are_kept_with_the_header(tmp_path, monkeypatch):
    path, options = tmp_path / "a.h5", {"compression": "gzip", "shuffle": True}
    header = Header.of_json(json.loads(json.dumps(chunked(path, 5, **options).to_json())))
    expected = [0.0, 0.0, 2.0, 3.0, 4.0]
    monkeypatch.setattr("zarr_dask.jobs.ingest.file_store.opened_hdf5", None)  # not opened again
    found = FileArrays(SourceFile.of(str(path), None), header).array("v").read()
    np.testing.assert_array_equal(found, np.repeat(expected, 5000).reshape(5, 5000))


def test_places_of_many_chunks_are_looked_up(tmp_path):
    path = tmp_path / "a.h5"
    header = chunked(path, MOST_PLACES + 1)
    assert not header.variables["v"].places
    found = FileArrays(SourceFile.of(str(path), None), header).array("v").read()
    assert found[:, 0].tolist() == [0, 0, *range(2, MOST_PLACES + 1)]


def test_places_of_a_survey_that_are_none_are_refused(tmp_path):
    facts = chunked(tmp_path / "a.h5", 3).to_json()
    for places in ("AAAA", "!", 3):
        facts["variables"]["v"]["places"] = places
        with pytest.raises((ValueError, TypeError)):
            Header.of_json(facts)


def test_chunks_beyond_the_end_of_a_file_are_named_by_the_survey(tmp_path):
    path = tmp_path / "a.h5"
    chunked(path, 5, compression="gzip")
    with h5py.File(path, "r") as file:
        at = file["v"].id.get_chunk_info(2).byte_offset
    data = bytearray(path.read_bytes())
    start = data.index(at.to_bytes(8, "little"))
    data[start : start + 8] = (1 << 40).to_bytes(8, "little")
    path.write_bytes(data)
    found = header_of(SourceFile.of(str(path), None), None).variables["v"]
    assert "behind the end of the file" in found.unsupported
