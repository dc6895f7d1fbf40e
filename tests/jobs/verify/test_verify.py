"""`zd.verify` against stores that were damaged by hand, and zarr-python reading the same."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tracemalloc
import zipfile
from collections import Counter
from dataclasses import dataclass, replace
from itertools import count
from math import prod
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import zarr_dask as zd
from tests.support.leftovers import left_in
from zarr_dask.cli import main
from zarr_dask.codecs.checksum import crc32c
from zarr_dask.errors import GridError, ManifestError
from zarr_dask.jobs.verify.object_states import ObjectStates
from zarr_dask.jobs.verify.scan import CellRuns
from zarr_dask.journal import Journal, default_place, open_journals
from zarr_dask.journal.manifest import Manifest
from zarr_dask.journal.receipts import stored_object
from zarr_dask.stores import LocalStore, MemoryStore
from zarr_dask.stores.base import ReadPolicy
from zarr_dask.stores.key_names import temporary_name
from zarr_dask.stores.wrappers.base import Recording

VALUES = np.arange(1, 97, dtype="i4").reshape(8, 12)


def sharded(values=None, **options):
    """Four shards of 4 x 6, each with six chunks of 2 x 2."""
    store = {} if values is None else values
    more = {"shape": (8, 12), "dtype": "i4", "chunks": (2, 2), "shards": (4, 6)} | options
    zd.create_array(store, "a", **more)[...] = VALUES[: more["shape"][0], : more["shape"][1]]
    return store


def many_nodes(count):
    """A group with small arrays, all alike, made of the documents of the first."""
    store = MemoryStore()
    zd.create_group(store)
    zd.create_array(store, path="a0", shape=4, dtype="i4", chunks=4)[...] = 1
    own = {key: value for key, value in store.values.items() if key.startswith("a0/")}
    for number in range(1, count):
        for key, value in own.items():
            store.values[f"a{number}/{key[3:]}"] = value
    return store


def test_each_document_is_read_once():
    store = Recording(many_nodes(3))
    assert zd.verify(store).ok
    reads = store.per_key("get")
    assert {reads[f"a{n}/zarr.json"] for n in range(3)} == {1}


def test_memory_of_many_nodes_is_little():
    """Of each node its metadata, and a state and a report of its objects are held."""
    few, many = 100, 1100
    peaks = []
    for number in (few, few, many):  # the first one fills caches
        store = many_nodes(number)
        tracemalloc.start()
        assert zd.verify(store).ok
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert (peaks[2] - peaks[1]) / (many - few) < 1650


def found(report):
    return Counter(finding.kind for finding in report.findings)


def kinds(report):
    return {finding.kind: (finding.key, finding.coords) for finding in report.findings}


@pytest.mark.parametrize("deep", ["index", "decode"])
@pytest.mark.parametrize("format", ["v1", "v2", "v3", "v3draft"])
def test_nothing_is_wrong(deep, format):
    store = {}
    zd.create_array(store, shape=(8, 12), dtype="i4", chunks=(3, 5), format=format)[...] = VALUES
    report = zd.verify(store, deep=deep)
    assert report.ok
    assert report.exit_code == 0
    assert report.findings == ()
    assert report.objects["ok"] == report.arrays[0].states.size == 9
    assert "nothing is wrong" in str(report)


def test_shards_are_counted_down_to_their_chunks():
    store = sharded(shape=(8, 11))
    zd.open_array(store, "a", mode="r+")[4:6, :2] = 0  # one chunk of a shard
    zd.open_array(store, "a", mode="r+")[:4, :6] = 0  # all of a shard that the end does not cut
    for deep in ("index", "decode"):
        report = zd.verify(store, deep=deep)
        assert report.ok
        assert report.objects == {"ok": 3, "absent": 1, **dict.fromkeys(DAMAGED, 0), "empty": 0}
        assert (report.chunks["ok"], report.chunks["absent"]) == (17, 1)


DAMAGED = ("torn", "checksum", "undecodable")


def test_chunks_that_a_shard_has_outside_of_the_array_are_not_counted():
    store = {}
    options = {"shape": (5,), "dtype": "i4", "chunks": 2, "shards": 8}
    zd.create_array(store, **options)[...] = 1
    report = zd.verify(store)
    assert report.chunks["ok"] == 3
    assert report.chunks["absent"] == 0


@pytest.mark.parametrize("deep", ["index", "decode"])
@pytest.mark.parametrize("location", ["start", "end"])
def test_an_index_that_cannot_be_read(deep, location):
    codec = {
        "name": "sharding_indexed",
        "configuration": {
            "chunk_shape": [2, 2],
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
            "index_codecs": [
                {"name": "bytes", "configuration": {"endian": "little"}},
                {"name": "crc32c"},
            ],
            "index_location": location,
        },
    }
    store = {}
    options = {"shape": (8, 12), "dtype": "i4", "chunks": (4, 6), "codecs": [codec]}
    zd.create_array(store, "a", **options)[...] = VALUES
    value = bytearray(store["a/c/1/0"])
    value[3 if location == "start" else -7] ^= 0x40
    store["a/c/1/0"] = bytes(value)
    report = zd.verify(store, deep=deep)
    assert kinds(report) == {"torn": ("a/c/1/0", ((1, 0),))}
    assert report.objects["torn"] == 1
    with pytest.raises(Exception, match=r"(?i)crc32c|checksum"):
        zarr.open_array(zarr_store(store), path="a", mode="r")[...]


def zarr_store(values):
    from zarr.core.buffer import cpu

    return zarr.storage.MemoryStore({k: cpu.Buffer.from_bytes(v) for k, v in values.items()})


@pytest.mark.parametrize("cut", [1, 50, 200])
def test_shards_cut_short(cut):
    store = sharded()
    store["a/c/0/1"] = store["a/c/0/1"][:-cut]
    for deep in ("index", "decode"):
        assert kinds(zd.verify(store, deep=deep)) == {"torn": ("a/c/0/1", ((0, 1),))}


@pytest.mark.parametrize("entry", [(1 << 40, 16), (0, 1 << 40), ((1 << 64) - 16, 32), (0, 1 << 63)])
def test_an_index_that_points_outside(entry):
    store = sharded(codecs=[])
    shard = store["a/c/0/0"]
    index = np.frombuffer(shard[-100:-4], "<u8").reshape(2, 3, 2).copy()
    index[1, 2] = entry
    body = index.tobytes()
    store["a/c/0/0"] = shard[:-100] + body + crc32c(body).to_bytes(4, "little")
    for deep in ("index", "decode"):
        report = zd.verify(store, deep=deep)
        assert kinds(report) == {"torn": ("a/c/0/0", ((0, 0), (1, 2)))}
        assert report.chunks["torn"] == 1
        assert report.chunks["ok"] == 23


def test_checksums_name_the_chunk_inside_its_shard():
    store = sharded(codecs=["crc32c"])
    value = bytearray(store["a/c/1/1"])
    value[20 * 4 + 3] ^= 1  # the fifth chunk, of 20 bytes
    store["a/c/1/1"] = bytes(value)
    assert zd.verify(store).ok  # the index is whole
    report = zd.verify(store, deep="decode")
    assert kinds(report) == {"checksum": ("a/c/1/1", ((1, 1), (1, 1)))}
    assert report.chunks["checksum"] == 1


@pytest.mark.parametrize("codec", ["blosc", "zstd", "gzip"])
def test_what_does_not_decode(codec):
    store = {}
    zd.create_array(store, shape=(1000,), dtype="i4", chunks=500, codecs=[codec])[...] = 5
    store["c/1"] = bytes(len(store["c/1"]))
    report = zd.verify(store, deep="decode")
    assert kinds(report) == {"undecodable": ("c/1", ((1,),))}
    assert report.arrays[0].heat_map() == "#X"


@pytest.mark.parametrize("side", [1 << 29, 1 << 40])  # of more cells than 64 bits can number
def test_more_stored_objects_than_can_be_looked_at(side):
    array = zd.create_array({}, shape=(side, side), dtype="u1", chunks=(8, 16))
    array[0, 0] = 1
    with pytest.raises(GridError, match="verify keeps a byte for each"):
        zd.verify(array)


def test_sizes_that_cannot_be():
    store = {}
    zd.create_array(store, shape=(6,), dtype="i4", chunks=2, codecs=[])[...] = 5
    store["c/0"], store["c/2"] = store["c/0"][:-1], b""
    report = zd.verify(store)
    assert found(report) == {"torn": 2}
    assert report.arrays[0].states.tolist() == [3, 0, 3]


def test_checksum_filters_of_v2():
    store = {}
    for name in ("crc32", "adler32", "fletcher32"):
        filters = [{"id": name}]
        options = {"shape": (4,), "dtype": "i4", "format": "v2", "codecs": filters}
        zd.create_array(store, name, **options)[...] = 5
        value = bytearray(store[f"{name}/0"])
        value[7] ^= 1
        store[f"{name}/0"] = bytes(value)
    assert found(zd.verify(store_group(store), deep="decode")) == {"checksum": 3}


def store_group(values):
    return values | {".zgroup": b'{"zarr_format": 2}'}


def test_keys_that_belong_to_nothing():
    store = sharded()
    store |= {"README.md": b"", "a/c/9/9": b"x", "a/c/0/0.bak": b"x", "a/deeper/file": b"x"}
    store |= {"a/.DS_Store": b"x"}
    report = zd.verify(store)
    assert {f.key: f.kind for f in report.findings} == {
        "a/c/9/9": "stray",
        "a/c/0/0.bak": "orphan",
        "a/deeper/file": "orphan",
        "a/.DS_Store": "orphan",
    }
    assert report.arrays[0].ok


@pytest.mark.parametrize("format", ["v3", "v2"])
def test_an_array_whose_document_is_lost(tmp_path, format):
    place = tmp_path / "run"
    zd.to_zarr([da.from_array(VALUES, (4, 6))] * 2, place, ["a", "b/c"], format=format)
    (place / "readme.txt").write_text("of somebody")
    assert zd.verify(place).ok
    for name in ("zarr.json", ".zarray", ".zattrs"):
        (place / "b" / "c" / name).unlink(missing_ok=True)
    report = zd.verify(place)
    assert [(f.kind, f.path) for f in report.findings] == [("orphan", "b/c")]
    assert "4 stored objects of no array" in str(report)
    (place / "a" / ("zarr.json" if format == "v3" else ".zarray")).write_text("{")
    assert found(zd.verify(place)) == {"orphan": 1, "document": 1}


@pytest.mark.parametrize(
    ("format", "name", "lost"),
    [
        ("v3", "2024.05.01", 0),
        ("v3", "1.2", 0),
        ("v3", "c/01", 0),
        ("v3", "c.1.0", 1),
        ("v2", "2024.05.01", 0),
        ("v2", "1.2", 1),
    ],
)
def test_files_that_are_called_like_stored_objects(format, name, lost):
    """Coordinates have no zeros in front; v3 has keys of numbers alone only if a document says."""
    store = {f"notes/{name}": b"of somebody"}
    group = zd.create_group(store, format=format)
    group.create_array("a", shape=(4, 4), dtype="i4", chunks=2)[...] = 1
    assert found(zd.verify(store)) == ({"orphan": lost} if lost else {})


@pytest.mark.parametrize(("separator", "key"), [(".", "b/0.0"), ("/", "b/0/0")])
def test_an_array_whose_document_is_lost_among_those_that_came_from_v2(separator, key):
    store = {}
    group = zd.create_group(store)
    layout = {"name": "v2", "separator": separator}
    for name in "ab":
        options = {"shape": (4, 4), "dtype": "i4", "chunks": 2, "chunk_key_encoding": layout}
        group.create_array(name, **options)[...] = 1
    del store["b/zarr.json"]
    assert key in store
    lost = separator == "."
    assert found(zd.verify(store)) == ({"orphan": 1} if lost else {})


@pytest.mark.filterwarnings("ignore::zarr_dask.errors.MixedFormatsWarning")
@pytest.mark.parametrize("readable", [True, False])
def test_arrays_of_another_format_are_no_objects_of_lost_ones(readable):
    """Nor are those whose names look like parts of a key."""
    store = {}
    group = zd.create_group(store, format="v3")
    layout = {"name": "v2", "separator": "."}
    group.create_array("a", shape=(4,), dtype="i4", chunks=2, chunk_key_encoding=layout)[...] = 1
    old = {"shape": (4, 4), "dtype": "i4", "chunks": 2, "format": "v2"}
    zd.create_array(store, "old", **old)[...] = 1
    zd.create_array(store, "deep/c", **old, chunk_key_encoding={"separator": "/"})[...] = 1
    if not readable:
        store["old/.zarray"] = b"{"
    assert {"old/0.0", "deep/c/0/0"} <= {*store}
    assert zd.verify(store).ok
    del store["old/.zarray"], store["deep/c/.zarray"]
    lost = {f.path for f in zd.verify(store).findings if f.kind == "orphan"}
    assert lost == {"old", "deep"}


def test_objects_of_a_job_that_has_not_ended_are_told_of_once(tmp_path):
    zd.create_group(tmp_path / "run")
    blocks = [da.from_array(VALUES[:4], (4, 6)), da.full((4, 12), np.nan, chunks=(4, 6))]
    broken = da.concatenate(blocks).map_blocks(raises_on_nan, dtype="f8", meta=np.empty((0, 0)))
    with dask.config.set(scheduler="sync"), pytest.raises(ZeroDivisionError):
        zd.to_zarr(broken, tmp_path / "run", "a", resume="name")
    assert any((tmp_path / "run/a/c").rglob("*"))
    assert found(zd.verify(tmp_path / "run")) == {"journal": 1}
    shutil.rmtree(tmp_path / "run.zarr-dask")
    assert found(zd.verify(tmp_path / "run")) == {"orphan": 1}


def raises_on_nan(block):
    if np.isnan(block).any():
        raise ZeroDivisionError
    return block


def test_documents_and_consolidated_metadata():
    store = sharded()
    zd.consolidate(store)
    assert zd.verify(store).ok
    store["a/zarr.json"] = store["a/zarr.json"].replace(
        b'"attributes": {}', b'"attributes": {"x": 1}'
    )
    assert found(zd.verify(store)) == {"stale": 1}
    store["b/zarr.json"] = b'{"zarr_format": 3, "node_type": "array"}'
    report = zd.verify(store)
    assert found(report) == {"stale": 2, "document": 1}
    assert report.exit_code == 1


def test_temporary_files_are_found_and_swept(tmp_path):
    sharded(str(tmp_path))
    new, old = (tmp_path / "a/c" / f".zarr-dask-{n * 16}.tmp" for n in "ab")
    for file in (new, old):
        file.write_bytes(b"half")
    os.utime(old, (1, 1))
    assert found(zd.verify(tmp_path)) == {"temporary": 2}
    report = zd.verify(tmp_path, sweep=True)
    assert report.swept == 1
    assert found(report) == {"temporary": 1}  # somebody may be writing it
    assert new.exists()
    assert not old.exists()


@dataclass(frozen=True)
class Row:
    key: str
    nbytes: int
    crc32c: int


@dataclass(frozen=True)
class Receipts:
    objects: tuple[Row, ...]
    empty: frozenset[str] = frozenset()


def test_receipts():
    store = sharded()
    rows = tuple(
        Row(key, len(value), crc32c(value)) for key, value in store.items() if "/c/" in key
    )
    assert zd.verify(store, deep="receipts", manifest=Receipts(rows)).ok
    value = bytearray(store["a/c/0/0"])
    value[0] ^= 1
    store |= {"a/c/0/0": bytes(value), "a/c/0/1": store["a/c/0/1"] + b"\0"}
    del store["a/c/1/0"], store["a/c/1/1"]
    report = zd.verify(store, deep="receipts", manifest=Receipts(rows, frozenset({"a/c/1/1"})))
    assert {f.key: f.kind for f in report.findings} == {
        "a/c/0/0": "checksum",
        "a/c/0/1": "torn",
        "a/c/1/0": "absent",
    }
    assert report.objects == {
        "ok": 0,
        "empty": 1,
        "absent": 1,
        "torn": 1,
        "checksum": 1,
        "undecodable": 0,
    }
    with pytest.raises(ManifestError, match="manifest="):
        zd.verify(store, deep="receipts")
    with pytest.raises(ManifestError, match="name no stored object"):
        zd.verify(store, manifest=Receipts((Row("b/c/0/0", 1, 2),)))
    with pytest.raises(ValueError, match="deep='deeper'"):
        zd.verify(store, deep="deeper")


@dataclass(frozen=True)
class Hashed(Row):
    sha256: str


class Streamed:
    """Receipts that can be gone through once."""

    empty = frozenset()

    def __init__(self, rows):
        self.objects = iter(rows)


def test_receipts_that_can_be_gone_through_once():
    store = sharded()
    values = {key: value for key, value in store.items() if "/c/" in key}
    rows = [Hashed(k, len(v), crc32c(v), hashlib.sha256(v).hexdigest()) for k, v in values.items()]
    assert zd.verify(store, deep="receipts", manifest=Streamed(rows)).ok
    rows[0] = replace(rows[0], crc32c=1)
    report = zd.verify(store, deep="receipts", manifest=Streamed(rows))
    assert [(f.kind, f.key) for f in report.findings] == [("checksum", rows[0].key)]


def test_manifests_that_jobs_keep(tmp_path):
    values = VALUES.copy()
    values[:4, :6] = 0
    kept = tmp_path / "kept"
    options = {"chunks": (2, 2), "shards": (4, 6), "manifest": kept}
    zd.to_zarr(da.from_array(values, (4, 6)), tmp_path / "run", "a", **options)
    for manifest in (kept, str(kept), zd.Manifest.read(kept)):
        report = zd.verify(tmp_path / "run", deep="receipts", manifest=manifest)
        assert report.ok
        assert (report.objects["ok"], report.objects["empty"]) == (3, 1)
    (tmp_path / "run/a/c/1/1").unlink()
    assert zd.verify(tmp_path / "run").ok  # nobody can know
    report = zd.verify(tmp_path / "run", manifest=kept)
    assert kinds(report) == {"absent": ("a/c/1/1", ((1, 1),))}
    assert report.findings[0].reason == "a receipt says that it has been stored"
    receipts = zd.Manifest.read(kept)
    others = Receipts(tuple(one for one in receipts.objects if one.key != "a/c/1/1"))
    reasons = {f.key: f.reason for f in zd.verify(tmp_path / "run", manifest=others).findings}
    assert reasons == dict.fromkeys(
        ("a/c/0/0", "a/c/1/1"), "no receipt says that it is empty on purpose"
    )
    assert run("verify", tmp_path / "run", "--deep", "receipts", "--manifest", kept) == 1


@pytest.mark.parametrize("options", [{}, {"shards": (4, 6)}])
def test_objects_that_end_in_their_own_checksum_are_told_apart(tmp_path, options):
    """The CRC-32C of a value and its CRC-32C is the same for all values of one length."""
    options |= {"chunks": (4, 6), "codecs": ["crc32c"]}
    for name, sha256 in (("with", True), ("without", False)):
        place = tmp_path / name
        kept = {"manifest": tmp_path / f"{name}.manifest", "sha256": sha256}
        zd.to_zarr(da.from_array(VALUES, (4, 6)), place, **options, **kept)
        files = [place / "c/0/0", place / "c/1/1"]
        one, other = (file.read_bytes() for file in files)
        assert len(one) == len(other)
        assert crc32c(one) == crc32c(other)
        report = zd.verify(place, deep="receipts", manifest=kept["manifest"])
        assert report.ok
        files[0].write_bytes(other)
        report = zd.verify(place, deep="receipts", manifest=kept["manifest"])
        assert [(f.kind, f.key) for f in report.findings] == [("checksum", "c/0/0")]


@pytest.mark.parametrize("deep", ["decode", "receipts"])
@pytest.mark.parametrize("options", [{}, {"shards": (4, 6), "chunks": (2, 3)}])
def test_swapped_and_outdated_objects_are_found(tmp_path, options, deep):
    place, kept = tmp_path / "a", tmp_path / "m"
    values = np.random.default_rng(0).random(VALUES.shape)  # all objects have one length
    zd.to_zarr(da.from_array(values, (4, 6)), place, **{"chunks": (4, 6), **options}, manifest=kept)
    old, other = ((place / key).read_bytes() for key in ("c/0/0", "c/0/1"))
    zd.to_zarr(da.from_array(values + 1, (4, 6)), place, mode="r+", manifest=kept)
    new = (place / "c/1/0").read_bytes()
    assert zd.verify(place, deep=deep, manifest=kept).ok
    for key, value in (("c/0/0", old), ("c/0/1", new), ("c/1/0", other)):
        (place / key).write_bytes(value)
    assert zd.verify(place, deep="decode").ok  # nobody else sees it
    report = zd.verify(place, deep=deep, manifest=kept)
    found = [(finding.kind, finding.key) for finding in report.findings]
    assert [key for _, key in found] == ["c/0/0", "c/0/1", "c/1/0"]
    assert {kind for kind, _ in found} <= {"checksum", "torn"}


def test_receipts_tell_of_documents_and_of_what_was_empty(tmp_path):
    values = da.concatenate([da.zeros(10, chunks=10), da.ones(10, chunks=10)])
    zd.to_zarr(values, tmp_path / "a", manifest=tmp_path / "m")
    assert zd.verify(tmp_path / "a", deep="receipts", manifest=tmp_path / "m").ok
    shutil.copy(tmp_path / "a" / "c" / "1", tmp_path / "a" / "c" / "0")
    document = tmp_path / "a" / "zarr.json"
    document.write_text(document.read_text().replace('"float64"', '"int64"'))
    report = zd.verify(tmp_path / "a", deep="receipts", manifest=tmp_path / "m")
    found = [(finding.kind, finding.key) for finding in report.findings]
    assert found == [("checksum", "c/0"), ("document", "zarr.json")]


@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize("entry", ["met", "index", "same"])
def test_an_index_whose_chunks_meet(location, entry):
    plain = [{"name": "bytes", "configuration": {"endian": "little"}}]
    configuration = {
        "chunk_shape": [4],
        "codecs": [*plain, {"name": "gzip", "configuration": {"level": 1}}],
        "index_codecs": plain,
        "index_location": location,
    }
    codec = {"name": "sharding_indexed", "configuration": configuration}
    values: dict = {}
    array = zd.create_array(values, shape=(16,), dtype="i4", chunks=16, codecs=[codec])
    array[...] = range(1, 17)
    shard = bytes(values["c/0"])
    at = slice(0, 64) if location == "start" else slice(len(shard) - 64, len(shard))
    index = np.frombuffer(shard[at], "<u8").reshape(4, 2).copy()
    assert zd.verify(values).ok
    if entry == "met":
        index[1, 0] = index[0, 0] + 3
    elif entry == "same":
        index[1] = index[0]
    else:
        index[1] = (60, 8) if location == "start" else (len(shard) - 66, 8)
    values["c/0"] = shard[: at.start] + index.tobytes() + shard[at.stop :]
    report = zd.verify(values)
    assert report.ok == (entry == "same")
    assert {finding.kind for finding in report.findings} <= {"torn"}


@pytest.mark.parametrize("journal", [None, "journals"])
def test_jobs_that_have_not_ended(tmp_path, journal):
    kept = {} if journal is None else {"journal": tmp_path / journal}
    zd.create_array(tmp_path / "run", "a", shape=(8, 12), dtype="i4", chunks=(4, 6))
    blocks = da.from_array(VALUES, (4, 6))
    calls = count()

    def fails_at_third(block):
        if block.size and next(calls) == 2:
            raise ZeroDivisionError
        return block

    failing = da.map_blocks(fails_at_third, blocks, dtype="i4")
    target = zd.open_array(tmp_path / "run", "a", mode="r+")
    with dask.config.set(scheduler="sync"), pytest.raises(ZeroDivisionError):
        zd.to_zarr(failing, target, resume="name", **kept)
    report = zd.verify(tmp_path / "run", **kept)
    assert [(f.kind, f.path) for f in report.findings] == [("journal", "a")]
    report = zd.verify(tmp_path / "run", deep="receipts", **kept)
    assert found(report) == {"journal": 1}
    assert 0 < report.objects["ok"] < 4
    done = next(file for file in (tmp_path / "run/a/c").rglob("*") if file.is_file())
    done.write_bytes(done.read_bytes() + b"!")
    report = zd.verify(tmp_path / "run", deep="receipts", **kept)
    assert found(report) == {"journal": 1, "torn": 1}


LEFT = {
    "new": lambda place: zd.to_zarr(da.ones((8, 12), chunks=(4, 6)), place, "a"),
    "new with receipts": lambda place: zd.to_zarr(
        da.ones((8, 12), chunks=(4, 6)), place, "a", resume=True
    ),
    "region": lambda place: zd.to_zarr(
        da.ones((4, 12), chunks=(4, 6)), place, "b", region=np.s_[4:], resume=True, mode="r+"
    ),
    "append": lambda place: zd.to_zarr(
        da.ones((4, 12), chunks=(4, 6)), place, "b", append=0, resume=True
    ),
    "append without receipts": lambda place: zd.to_zarr(
        da.ones((4, 12), chunks=(4, 6)), place, "b", append=0
    ),
    "rechunk": lambda place: zd.rechunk(zd.open_array(place, "b"), place, path="a", chunks=(2, 12)),
}


@pytest.mark.parametrize("kind", LEFT)
def test_a_journal_that_was_left_when_all_was_written(tmp_path, monkeypatch, kind):
    """It says so, and the sweep removes it: it is no sign of a job that has to go on."""
    zd.create_array(tmp_path / "run", "b", shape=(8, 12), dtype="f8", chunks=(4, 6))[...] = VALUES
    with monkeypatch.context() as patched:
        patched.setattr(Journal, "remove", lambda _: None)  # killed there
        LEFT[kind](tmp_path / "run")
    (finding,) = zd.verify(tmp_path / "run").findings
    assert finding.kind == "journal"
    assert "has written all, and was killed before its journal was removed" in finding.reason
    report = zd.verify(tmp_path / "run", sweep=True)
    assert report.ok
    assert report.swept == 1
    assert left_in(tmp_path) == {"run"}


def test_the_rest_of_a_journal_that_was_being_removed_is_swept(tmp_path):
    """Its description goes first: there is no job any more, and no other one finds its files."""
    run = tmp_path / "run"
    zd.create_array(run, "b", shape=(8, 12), dtype="f8", chunks=(4, 6))[...] = VALUES
    rest = tmp_path / "run.zarr-dask/b/__job-0123456789abcdef"
    rest.mkdir(parents=True)
    (rest / "held").touch()
    name = "from zarr_dask.stores.key_names import temporary_name as name; print(name())"
    of_the_dead = subprocess.check_output([sys.executable, "-c", name], text=True).strip()
    (rest / of_the_dead).touch()
    stranger = tmp_path / "run.zarr-dask/b/__job-notes/held"
    stranger.parent.mkdir()
    stranger.touch()
    assert zd.verify(run, sweep=True).ok
    assert not rest.exists()
    assert stranger.exists()


def test_a_document_alone_does_not_end_a_job_that_keeps_receipts(tmp_path):
    """Another library may have written it, where this job would have."""
    zd.create_group(tmp_path / "run")
    blocks = [da.from_array(VALUES[:4], (4, 6)), da.full((4, 12), np.nan, chunks=(4, 6))]
    broken = da.concatenate(blocks).map_blocks(raises_on_nan, dtype="f8", meta=np.empty((0, 0)))
    with dask.config.set(scheduler="sync"), pytest.raises(ZeroDivisionError):
        zd.to_zarr(broken, tmp_path / "run", "a", resume="name")
    ((_, job),) = open_journals(default_place(LocalStore(str(tmp_path / "run")), "a"))
    for key, text in job.documents.items():
        (tmp_path / "run" / key).write_text(text)
    (finding,) = zd.verify(tmp_path / "run", sweep=True).findings
    assert "has not ended: it is running, or was killed" in finding.reason


def test_a_journal_of_what_was_changed_since_is_not_swept(tmp_path, monkeypatch):
    """Nobody knows then whether the job has come to its end."""
    with monkeypatch.context() as patched:
        patched.setattr(Journal, "remove", lambda _: None)
        LEFT["new with receipts"](tmp_path / "run")
    zd.open_array(tmp_path / "run", "a", mode="r+").update_attributes({"title": "mine"})
    next(one for one in (tmp_path / "run/a/c").rglob("*") if one.is_file()).unlink()
    (finding,) = zd.verify(tmp_path / "run", sweep=True).findings
    assert "has not ended: it is running, or was killed" in finding.reason


def test_stores_that_cannot_list():
    from zarr_dask.errors import ListingError

    class Deaf(MemoryStore):
        def list(self, prefix=""):
            raise ListingError("this store cannot list")

    values = {}
    zd.create_array(values, shape=(6,), dtype="i4", chunks=2)[:4] = 5
    report = zd.verify(Deaf(values))
    assert report.ok
    assert not report.listed
    assert (report.objects["ok"], report.objects["absent"]) == (2, 1)


def test_archives_and_other_file_systems(tmp_path):
    import fsspec

    sharded(str(tmp_path / "run"))
    archive = shutil.make_archive(str(tmp_path / "run"), "zip", tmp_path / "run")
    assert zd.verify(archive, deep="decode").chunks["ok"] == 24
    memory = fsspec.filesystem("memory")
    for file in (tmp_path / "run").rglob("*"):
        if file.is_file():
            memory.pipe(f"/verify/{file.relative_to(tmp_path / 'run')}", file.read_bytes())
    assert zd.verify("memory://verify", deep="decode").chunks["ok"] == 24
    memory.pipe("/verify/a/c/1/1", b"short")
    memory.pipe("/verify/a/junk", b"")
    assert found(zd.verify("memory://verify")) == {"torn": 1, "orphan": 1}
    assert found(zd.verify("memory://verify", "a", deep="decode")) == {"torn": 1, "orphan": 1}


LITTLE = [{"name": "bytes", "configuration": {"endian": "little"}}]


@pytest.mark.parametrize("deep", ["decode", "receipts"])
def test_damaged_entries_of_archives(tmp_path, deep):
    values = da.from_array(np.arange(48, dtype="i4").reshape(6, 8), chunks=(2, 4))
    kept = tmp_path / "run.manifest"
    zd.to_zarr(values, tmp_path / "run", "a", codecs=LITTLE, manifest=kept)
    path = Path(shutil.make_archive(str(tmp_path / "run"), "zip", tmp_path / "run"))
    with zipfile.ZipFile(path) as file, zipfile.ZipFile(tmp_path / "b.zip", "w") as stored:
        for name in file.namelist():
            stored.writestr(name, file.read(name))
    data = bytearray((tmp_path / "b.zip").read_bytes())
    for first in (0, 32):  # of the rows of chunks
        where = data.index(np.arange(first, first + 4, dtype="<i4").tobytes())
        data[where] ^= 1
    (tmp_path / "b.zip").write_bytes(data)
    report = zd.verify(str(tmp_path / "b.zip"), deep=deep, manifest=kept)
    assert found(report) == {"checksum": 2}
    assert [one.key for one in report.findings] == ["a/c/0/0", "a/c/2/0"]
    assert "checksum does not fit" in report.findings[0].reason


def test_nested_shards_and_other_chains():
    inner = {
        "name": "sharding_indexed",
        "configuration": {
            "chunk_shape": [2, 2],
            "codecs": [
                {"name": "bytes", "configuration": {"endian": "little"}},
                {"name": "crc32c"},
            ],
            "index_codecs": [
                {"name": "bytes", "configuration": {"endian": "little"}},
                {"name": "crc32c"},
            ],
        },
    }
    outer = {**inner, "configuration": {**inner["configuration"], "chunk_shape": [4, 4]}}
    outer["configuration"]["codecs"] = [inner]
    for codecs in ([outer], [{"name": "transpose", "configuration": {"order": [1, 0]}}, outer]):
        store = {}
        options = {"shape": (8, 12), "dtype": "i4", "chunks": (8, 12)}
        zd.create_array(store, **options, codecs=codecs)[...] = VALUES
        for deep in ("index", "decode"):
            report = zd.verify(store, deep=deep)
            assert report.ok
            assert report.chunks["ok"] == 24
        value = bytearray(store["c/0/0"])
        value[1] ^= 1
        store["c/0/0"] = bytes(value)
        (finding,) = zd.verify(store, deep="decode").findings
        assert (finding.kind, finding.coords) == ("checksum", ((0, 0), (0, 0), (0, 0)))
    gzipped = {}
    codecs = [inner, {"name": "gzip", "configuration": {"level": 1}}]
    zd.create_array(gzipped, shape=(8, 12), dtype="i4", chunks=(8, 12), codecs=codecs)[...] = VALUES
    assert zd.verify(gzipped, deep="decode").ok
    value = bytearray(gzipped["c/0/0"])
    value[len(value) // 2] ^= 1
    gzipped["c/0/0"] = bytes(value)
    assert not zd.verify(gzipped, deep="decode").ok


def test_scalars_and_arrays_without_elements():
    store = {}
    zd.create_array(store, "s", shape=(), dtype="i4")[...] = 3
    zd.create_array(store, "e", shape=(0, 3), dtype="i4", chunks=2)
    zd.create_array(store, "t", shape=(3,), dtype=str)[...] = ["a", "b", ""]
    report = zd.verify(store, deep="decode")
    assert report.ok
    assert [array.heat_map() for array in report.arrays] == ["", "#", "#"]


@given(st.data())
def test_what_zarr_python_cannot_read_is_found(data):
    """Any byte of any object is changed: decoding says so, or zarr-python reads the same values."""
    store = sharded(codecs=["crc32c"])
    key = data.draw(st.sampled_from(sorted(k for k in store if "/c/" in k)))
    value = bytearray(store[key])
    value[data.draw(st.integers(0, len(value) - 1))] ^= data.draw(st.integers(1, 255))
    store[key] = bytes(value)
    report = zd.verify(store, deep="decode")
    assert [finding.key for finding in report.findings] == [key]
    with pytest.raises(Exception):  # noqa: B017, PT011  (of many kinds)
        zarr.open_array(zarr_store(store), path="a", mode="r")[...]


@given(st.sets(st.integers(0, 60)), st.integers(0, 60), st.integers(0, 60))
def test_cells(numbers, first, length):
    cells = CellRuns.of(sorted(numbers))
    assert cells.count == len(numbers)
    assert list(cells.part(first, first + length)) == sorted(numbers)[first : first + length]


def test_requests_of_a_look_at_indexes(tmp_path):
    sharded(str(tmp_path))
    store = Recording(zd.open(tmp_path).store)
    zd.verify(store)
    asked = [one for one in store.requests if "/c/" in one.key]
    assert Counter(one.range.start for one in asked if one.method == "get") == {-100: 4}
    assert len(asked) == 8  # the size and the index of each shard


class Distant(MemoryStore):
    """A service whose responses do not tell the size of the whole value."""

    coalescing = ReadPolicy(gap=0, largest=1 << 20, max_concurrent_requests=8)


def test_an_index_from_afar_is_asked_for_once():
    near = MemoryStore()
    sharded(near)
    store = Recording(Distant(near.values))
    assert zd.verify(store).ok
    asked = Counter(one.method for one in store.requests if "/c/" in one.key)
    assert asked == {"get": 4, "size": 4}


class Lending(MemoryStore):
    """A service behind which values are read into memory that is used again."""

    coalescing = ReadPolicy(gap=0, largest=1 << 20, max_concurrent_requests=8)

    def __init__(self, values):
        super().__init__(values)
        self.memory = bytearray(1000)

    def get_start(self, key, nbytes):
        value = self.get(key)
        self.memory[: len(value)] = value
        return memoryview(self.memory)[: min(len(value), nbytes)]


def test_values_are_kept_until_they_are_decoded():
    values = np.random.default_rng(1).integers(0, 99, 1000, "i4")
    store = MemoryStore()
    codecs = ["crc32c"]
    zd.create_array(store, shape=1000, dtype="i4", chunks=10, codecs=codecs)[...] = values
    store.values["c/0"] = bytes(44)
    report = zd.verify(Lending(store.values), deep="decode")
    assert [one.key for one in report.findings] == ["c/0"]


def test_many_arrays_and_a_cluster(tmp_path, client):
    for number in range(40):
        options = {"shape": (6,), "dtype": "i4", "chunks": 2}
        zd.create_array(tmp_path, f"g/a{number}", **options)[...] = number + 1
    (tmp_path / "g/a7/c/1").write_bytes(b"")
    report = zd.verify(tmp_path, deep="decode", client=client)
    assert report.objects["ok"] == 119
    assert kinds(report) == {"torn": ("g/a7/c/1", ((1,),))}


def test_report_as_text_json_and_picture(tmp_path):
    store = sharded(codecs=["crc32c"])
    store["a/c/1/0"] = store["a/c/1/0"][:-9]
    report = zd.verify(store)
    document = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert document["objects"] == {**dict.fromkeys(document["objects"], 0), "ok": 3, "torn": 1}
    assert document["findings"][0]["coords"] == [[1, 0]]
    assert not document["ok"]
    assert "##\n    T#" in str(report)
    assert "torn: 'a/c/1/0' (chunk (1, 0))" in str(report)
    axes = report.plot().axes
    assert axes[0].images[0].get_array().tolist() == [[0, 0], [3, 0]]


def test_counting_many_states_takes_little_memory():
    store = {}
    zd.create_array(store, shape=(3,), dtype="i1", chunks=1)[1] = 1
    (report,) = zd.verify(store).arrays
    many = replace(report, found=ObjectStates.of(np.resize(report.states, 10_000_001)))
    tracemalloc.start()
    try:
        counts = many.objects
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (counts["ok"], counts["absent"]) == (3_333_334, 6_666_667)
    assert peak < 20_000_000


def test_objects_that_are_only_claimed_take_no_memory():
    store = {}
    array = zd.create_array(store, shape=(1 << 15, 1 << 15), dtype="i1", chunks=1)
    array[9, 9] = 1
    store["c/32767/700"] = b""
    report = zd.verify(store)  # what it imports is in memory
    receipts = Manifest(
        (stored_object("c/9/9", [store["c/9/9"]], with_sha256=False),), frozenset({"c/9/10"})
    )
    tracemalloc.start()
    try:
        report = zd.verify(store)
        text, document = str(report), report.to_json()
        compared = zd.verify(store, deep="receipts", manifest=receipts)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert report.objects == {**dict.fromkeys(report.objects, 0), "ok": 1, "torn": 1} | {
        "absent": (1 << 30) - 2
    }
    assert compared.counts["absent"] == compared.objects["absent"] == (1 << 30) - 3
    assert compared.objects["empty"] == 1
    assert document["objects"]["torn"] == 1
    assert f"    .T{'.' * 62}" in text
    assert peak < 50_000_000


@given(st.data())
def test_states_of_many_objects_are_those_of_few(data):
    counts = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    size = prod(counts)
    known = data.draw(st.dictionaries(st.integers(0, size - 1), st.integers(0, 5)))
    dense, sparse = (ObjectStates(counts, known=0) for _ in range(2))
    sparse._codes = {}
    for states in (dense, sparse):
        states.put([*known], bytes(known.values()))
    assert dense.tally() == sparse.tally()
    assert [*dense.absent()] == [*sparse.absent()]
    assert [dense[cell] for cell in range(size)] == [sparse[cell] for cell in range(size)]
    np.testing.assert_array_equal(dense.codes(), sparse.codes())
    rows, columns = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    np.testing.assert_array_equal(dense.image(rows, columns), sparse.image(rows, columns))


def test_heat_maps_are_small():
    store = {}
    array = zd.create_array(store, shape=(300, 700), dtype="i1", chunks=1)
    array[150, 350] = 1
    store["c/299/699"] = b""
    rows = zd.verify(store).arrays[0].heat_map().splitlines()
    assert len(rows) == 16
    assert {len(row) for row in rows} == {64}
    assert rows[-1][-1] == "T"
    assert rows[0] == "." * 64


def run(*arguments):
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    return end.value.code


def test_command(tmp_path, capsys):
    sharded(str(tmp_path / "x"))
    assert run("verify", tmp_path / "x") in {0, None}
    assert "nothing is wrong" in capsys.readouterr().out
    shard = tmp_path / "x/a/c/0/1"
    shard.write_bytes(shard.read_bytes()[:-3])
    picture = tmp_path / "map.png"
    assert run("verify", tmp_path / "x", "a", "--json", "--plot", picture, "--deep", "decode") == 1
    assert json.loads(capsys.readouterr().out)["result"]["counts"] == {"torn": 1}
    assert picture.stat().st_size > 1000
    assert run("verify", tmp_path / "x", "--plot", "map.nothing") == 2


@pytest.mark.parametrize(
    ("format", "lost", "paths"),
    [
        ("v3", ["zarr.json"], [""]),
        ("v3", ["zarr.json", "g/zarr.json"], ["", "g"]),
        ("v3", ["g/zarr.json"], ["g"]),
        ("v2", [".zgroup"], [""]),
        ("v2", ["g/.zgroup"], ["g"]),
        ("v3draft", [], []),  # groups need no document there
    ],
)
@pytest.mark.filterwarnings("ignore::zarr_dask.errors.MissingGroupWarning")
def test_groups_whose_document_is_lost(format, lost, paths):
    """Objects of an array that lost its own are named all the same."""
    values = {}
    for name in ("g/a", "b", "u"):
        zd.create_array(values, name, shape=(4, 4), chunks=2, dtype="i4", format=format)[...] = 1
    assert zd.verify(values).ok
    for key in lost:
        del values[key]
    report = zd.verify(values)
    assert [one.path for one in report.findings if one.kind == "group"] == paths
    assert report.ok == (not paths)
    assert report.exit_code == bool(paths)
    if format == "v3":
        with pytest.raises((FileNotFoundError, zarr.errors.GroupNotFoundError)):
            zarr.open_group(values, path=paths[0], mode="r")
    document = {"v3": "u/zarr.json", "v2": "u/.zarray"}.get(format)
    if document is not None:
        del values[document]
        report = zd.verify(values)
        assert [one.path for one in report.findings if one.kind == "orphan"] == ["u"]


def test_nodes_of_zarr_python_are_places(tmp_path):
    group = zarr.create_group(tmp_path / "a.zarr")
    group.create_array("b/x", data=np.arange(12), chunks=(4,))
    (tmp_path / "a.zarr" / "b" / "x" / "c" / "1").write_bytes(b"?")
    for one, path in ((group, ""), (group, "b"), (group["b"], "x"), (group["b/x"], "")):
        report = zd.verify(one, path, deep="decode")
        assert [f.key for f in report.findings] == ["b/x/c/1"]


def test_files_of_dead_processes_are_no_problem_and_swept_at_once(tmp_path):
    array = zd.create_array(tmp_path / "a.zarr", shape=4, dtype="i4", chunks=2, data=range(4))
    left = (
        "import os, sys; from zarr_dask.stores.key_names import temporary_name as name;"
        "open(os.path.join(sys.argv[1], name()), 'wb').write(b'half')"
    )
    subprocess.run([sys.executable, "-c", left, str(tmp_path / "a.zarr/c")], check=True)
    mine = tmp_path / "a.zarr/c" / temporary_name()
    mine.write_bytes(b"half")
    report = zd.verify(array)
    assert found(report) == {"temporary": 1}  # this process lives
    assert report.leftovers == 1
    assert "1 temporary file of processes that have died" in str(report)
    mine.unlink()
    assert zd.verify(array).ok
    swept = zd.verify(array, sweep=True)
    assert (swept.ok, swept.swept, swept.leftovers) == (True, 1, 0)
    assert sorted(one.name for one in mine.parent.iterdir()) == ["0", "1"]
