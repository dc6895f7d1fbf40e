"""What a survey finds: nodes of every format, their sizes, what they need, what is wrong."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import zarr
from click.testing import CliRunner

import zarr_dask as zd
from zarr_dask.cli import main
from zarr_dask.stores import LocalStore, MemoryStore, Recording
from zarr_dask.stores.backends.fsspec import FsspecStore
from zarr_dask.stores.base import ReadPolicy

NODE_MEMBERS = {
    "path",
    "kind",
    "format",
    "shape",
    "chunks",
    "write_chunks",
    "data_type",
    "codecs",
    "objects",
    "expected_objects",
    "stored_bytes",
    "decoded_bytes",
    "stray_objects",
    "needs",
    "warnings",
    "problems",
}


@pytest.fixture
def shelf(tmp_path):
    """Hierarchies of several formats in folders, and files that are none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        root = zarr.create_group(str(tmp_path / "2024/01/run.zarr"), zarr_format=2)
        made = root.create_array("u/v", shape=(6, 4), chunks=(2, 2), dtype="i4", fill_value=0)
        made[:4] = np.arange(1, 17).reshape(4, 4)
    zd.create_array(tmp_path / "final.zarr", "big", shape=(8, 8), dtype="f8", chunks=2, shards=4)[
        ...
    ] = 1.0
    zd.create_array(tmp_path / "one.v1", shape=(3,), dtype="i2", chunks=2, format="v1")[...] = 5
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "read.me").write_bytes(b"hello")
    (tmp_path / "final.zarr" / "big" / "c" / "9").mkdir()
    (tmp_path / "final.zarr" / "big" / "c" / "9" / "9").write_bytes(b"stray")
    return tmp_path


def by_path(found):
    return {node.path: node for node in found.nodes}


def size_of(folder, pattern):
    return sum(path.stat().st_size for path in Path(folder).glob(pattern))


def test_every_node_below_a_folder(shelf):
    found = zd.inventory(shelf)
    assert [(node.path, node.kind, node.format) for node in found.nodes] == [
        ("2024/01/run.zarr", "group", "v2"),
        ("2024/01/run.zarr/u", "group", "v2"),
        ("2024/01/run.zarr/u/v", "array", "v2"),
        ("final.zarr", "group", "v3"),
        ("final.zarr/big", "array", "v3"),
        ("one.v1", "array", "v1"),
    ]
    nodes = by_path(found)
    array = nodes["2024/01/run.zarr/u/v"]
    assert (array.shape, array.chunks, array.data_type) == ((6, 4), (2, 2), "int32")
    assert (array.objects, array.expected_objects) == (4, 6)
    assert array.stored_bytes == size_of(shelf / "2024/01/run.zarr/u/v", "[0-9]*")
    assert array.decoded_bytes == 6 * 4 * 4
    sharded = nodes["final.zarr/big"]
    assert (sharded.chunks, sharded.write_chunks) == ((2, 2), (4, 4))
    assert sharded.codecs == ("sharding_indexed", "bytes", "blosc", "crc32c")
    assert (sharded.objects, sharded.expected_objects, sharded.stray_objects) == (4, 4, 1)
    assert sharded.stored_bytes == size_of(shelf / "final.zarr/big/c", "[01]/[01]")
    assert (found.other_objects, found.other_bytes) == (1, 5)
    assert found.unreadable == ()


def test_below_a_path_paths_are_as_from_there(shelf):
    found = zd.inventory(shelf, "2024")
    assert [node.path for node in found.nodes] == [
        "01/run.zarr",
        "01/run.zarr/u",
        "01/run.zarr/u/v",
    ]
    assert by_path(found)["01/run.zarr/u/v"].objects == 4
    assert [node.path for node in zd.inventory(shelf / "one.v1").nodes] == [""]


def test_what_cannot_be_read_is_listed_with_every_problem(shelf):
    place = shelf / "final.zarr/big/zarr.json"
    document = json.loads(place.read_text())
    document["data_type"] = "int1024"
    document["chunk_grid"]["name"] = "hexagonal"
    place.write_text(json.dumps(document))
    (shelf / "2024/01/run.zarr/u/v/.zarray").write_text("{")
    found = zd.inventory(shelf)
    assert [node.path for node in found.unreadable] == ["2024/01/run.zarr/u/v", "final.zarr/big"]
    assert "JSON" in found.unreadable[0].problems[0]
    said = " ".join(found.unreadable[1].problems)
    assert "int1024" in said
    assert "hexagonal" in said
    assert len(found.arrays) == 1


def test_documents_side_by_side_are_a_warning(shelf):
    zd.migrate(shelf / "2024/01/run.zarr")
    node = by_path(zd.inventory(shelf))["2024/01/run.zarr/u/v"]
    assert node.format == "v3"
    assert node.objects == 4
    assert node.warnings == ("documents of v3 and v2; v3 is used",)


@pytest.mark.parametrize(
    ("codec", "package"),
    [
        ({"name": "zfp", "configuration": {"mode": "reversible"}}, "zarr-dask[zfp]"),
        ({"name": "numcodecs.pcodec", "configuration": {"level": 8}}, "zarr-dask[pcodec]"),
    ],
    ids=["zfp", "pcodec"],
)
def test_codecs_that_need_a_package(tmp_path, codec, package):
    zd.create_array(tmp_path, shape=(4,), dtype="f4", chunks=2)
    document = json.loads((tmp_path / "zarr.json").read_text())
    (tmp_path / "zarr.json").write_text(json.dumps({**document, "codecs": [codec]}))
    node = zd.inventory(tmp_path).nodes[0]
    assert (node.kind, node.problems) == ("array", ())
    assert node.needs == (f"{package}: codec {codec['name']}",)


def test_what_reading_needs(tmp_path):
    zd.create_array(tmp_path / "b", shape=(2,), dtype="bfloat16", chunks=2)
    zd.create_array(
        tmp_path / "s",
        shape=(2, 2),
        dtype="i2",
        chunks=1,
        format="v2",
        chunk_key_encoding={"separator": "/"},
    )[...] = 1
    document = json.loads((tmp_path / "s" / ".zarray").read_text())
    (tmp_path / "s" / ".zarray").write_text(json.dumps({**document, "dimension_separator": "."}))
    (tmp_path / "p").mkdir()
    pickled = {
        **document,
        "dtype": "|O",
        "filters": [{"id": "pickle", "protocol": 5}],
        "fill_value": None,
    }
    (tmp_path / "p" / ".zarray").write_text(json.dumps(pickled))
    zd.create_array(
        tmp_path / "f", shape=(2, 2), dtype="i2", chunks=2, format="v1", order="F", codecs=[]
    )
    nodes = by_path(zd.inventory(tmp_path))
    assert nodes["b"].needs == ("zarr-dask[ml]: data type bfloat16",)
    assert "dimension_separator" in nodes["s"].needs[0]
    assert (nodes["p"].kind, nodes["p"].data_type) == ("array", "object")
    assert "allow_pickle=True" in nodes["p"].needs[0]
    assert "v1_f_order='legacy'" in nodes["f"].warnings[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        read = zd.ReadOptions(dimension_separator="/")
        assert (zd.open_array(tmp_path / "s", read=read)[...] == 1).all()


@pytest.mark.parametrize("format", ["v3draft", "v3draft-2022-05"])
@pytest.mark.parametrize("place", ["", "deep/x"])
def test_drafts(tmp_path, format, place):
    root = tmp_path / place
    zd.create_array(root, "a/b", shape=(4,), dtype="i2", chunks=2, format=format)[:2] = 1
    (tmp_path / "other").write_bytes(b"12345")
    found = zd.inventory(tmp_path)
    start = f"{place}/" if place else ""
    assert [(node.path, node.kind) for node in found.nodes] == [
        (place, "group"),
        (f"{start}a", "group"),
        (f"{start}a/b", "array"),
    ]
    assert {node.format for node in found.nodes} == {format}
    array = found.arrays[0]
    assert (array.objects, array.expected_objects) == (1, 2)
    assert array.stored_bytes == sum(p.stat().st_size for p in root.rglob("c0"))
    assert (found.other_objects, found.other_bytes) == (1, 5)


def test_consolidated_metadata_that_are_out_of_date(tmp_path):
    group = zd.create_group(tmp_path)
    group.create_array("a", shape=(2,), dtype="i2", chunks=2)
    zd.consolidate(tmp_path)
    assert by_path(zd.inventory(tmp_path))[""].warnings == ()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zd.create_array(tmp_path, "b", shape=(2,), dtype="i2", chunks=2)
    assert by_path(zd.inventory(tmp_path))[""].warnings == (
        "consolidated metadata are out of date for b",
    )


def test_no_chunk_is_read_and_all_is_listed_once(shelf):
    store = Recording(LocalStore(str(shelf)))
    found = zd.inventory(store)
    read = {request.key for request in store.requests if request.method == "get"}
    assert not any(key.endswith(("0.0", "c/0/0")) for key in read)
    assert store.batches["list"] == 1
    listed = [request.key for request in store.requests if request.method == "list_dir"]
    assert len(listed) == len(set(listed))
    assert not any("/v/" in key or "/big/" in key for key in listed)
    assert len(found.arrays) == 3


class Far(MemoryStore):
    """A store whose requests take long."""

    coalescing = ReadPolicy(gap=0, largest=1 << 20, max_concurrent_requests=8)

    @staticmethod
    def of(folder):
        files = (one for one in folder.rglob("*") if one.is_file())
        return Far({one.relative_to(folder).as_posix(): one.read_bytes() for one in files})


def test_a_far_store_is_asked_for_each_document_of_the_newest_format_once():
    store = Far()
    group = zd.create_group(store, format="v3")
    for name in ("a", "b/c", "b/d"):
        group.create_array(name, shape=4, dtype="i2", chunks=2)[...] = 1
    recorded = Recording(store)
    assert len(zd.inventory(recorded).nodes) == 5
    asked = [one.key for one in recorded.requests if one.method == "get"]
    documents = sorted(key for key in store.values if key.endswith("zarr.json"))
    assert sorted(key for key in asked if key.partition("/")[0] != "c") == documents


def test_a_far_store_holds_the_same(shelf):
    zd.migrate(shelf / "2024/01/run.zarr")  # beside which the old documents stay
    near, far = (zd.inventory(store).to_json() for store in (LocalStore(str(shelf)), Far.of(shelf)))
    assert far["nodes"] == near["nodes"]
    assert any(one["warnings"] for one in far["nodes"])


def test_sizes_come_with_the_listing_where_the_store_has_them(shelf):
    local = zd.inventory(shelf).to_json()
    remote = zd.inventory(FsspecStore.from_url(f"file://{shelf}", {})).to_json()
    assert remote["nodes"] == local["nodes"]
    assert remote["totals"] == local["totals"]


def test_links_to_folders_around_them_are_not_followed(shelf):
    before = zd.inventory(shelf)
    (shelf / "2024" / "again").symlink_to(shelf)
    (shelf / "final.zarr" / "self").symlink_to(shelf / "final.zarr")
    after = zd.inventory(shelf)
    assert after.arrays == before.arrays
    assert after.other_objects == before.other_objects
    assert [node.path for node in after.nodes if node not in before.nodes] == ["final.zarr/self"]


def test_an_empty_place():
    assert zd.inventory({}).to_json()["totals"]["arrays"] == 0


def test_hostile_names_and_documents_do_not_stop_it():
    store = MemoryStore(
        {
            "a\x1b[2J/zarr.json": b"{}",
            "deep/zarr.json": b"[" * 100_000,
            "list/.zarray": b"[]",
            "b/zarr.json": b'{"zarr_format": 3, "node_type": "group"}',
        }
    )
    found = zd.inventory(store)
    assert len(found.unreadable) == 3
    assert [node.path for node in found.nodes if node.kind == "group"] == ["b"]


# --- the command ----------------------------------------------------------------------------------


def run(*arguments, code=0):
    result = CliRunner().invoke(main, ["inventory", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


def test_the_json_schema(shelf):
    (shelf / "2024/01/run.zarr/u/v/.zarray").write_text("{")
    document = json.loads(run(shelf, "--json").stdout)["result"]
    assert document == zd.inventory(shelf).to_json()
    assert document["inventory_version"] == 1
    assert document.keys() == {"inventory_version", "where", "nodes", "totals"}
    assert all(node.keys() == NODE_MEMBERS for node in document["nodes"])
    assert document["totals"] == {
        "arrays": 2,
        "groups": 3,
        "unreadable": 1,
        "objects": 6,
        "stored_bytes": sum(node["stored_bytes"] for node in document["nodes"]),
        "decoded_bytes": 8 * 8 * 8 + 3 * 2,
        "other_objects": 5,
        "other_bytes": document["totals"]["other_bytes"],
    }


def test_a_wrong_path_is_an_error(tmp_path):
    assert "there is nothing at" in run(tmp_path / "none", code=3).stderr
    (tmp_path / "file").write_text("no hierarchy")
    assert "is a file" in " ".join(run(tmp_path / "file", code=3).stderr.split())
    said = json.loads(run(tmp_path / "none", "--json", code=3).stdout)
    assert (said["exit_code"], said["result"]) == (3, None)
    assert "there is nothing at" in said["error"]["message"]


def test_the_table(shelf, monkeypatch):
    monkeypatch.setenv("COLUMNS", "500")
    (shelf / "2024/01/run.zarr/u/v/.zarray").write_text("{")
    zd.migrate(shelf / "one.v1")
    lines = run(shelf).stdout.splitlines()
    assert lines[0] == f"inventory {shelf}"
    assert lines[1].split() == [
        "path",
        "format",
        "shape",
        "data",
        "type",
        "codecs",
        "objects",
        "stored",
        "decoded",
    ]
    row = next(line for line in lines if line.split()[0] == "final.zarr/big")
    assert "sharding_indexed+bytes+blosc" in row
    assert "4 of 4" in row
    assert any(line.startswith("  2024/01/run.zarr/u/v: ") for line in lines)
    assert "  one.v1: documents of v3 and v1; v3 is used" in lines
    assert lines[-1].startswith("3 groups, 2 arrays, 1 unreadable; 6 stored objects (")


def test_names_cannot_steer_the_terminal(tmp_path):
    zd.create_array(tmp_path / "a\x1b[2J", shape=(2,), dtype="i2", chunks=2)
    assert "\x1b" not in run(tmp_path).stdout


def test_public_data(public_data):
    found = zd.inventory(public_data)
    assert len(found.arrays) > 70
    assert {node.format for node in found.nodes} >= {"v2", "v3"}
