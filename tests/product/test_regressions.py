"""What went wrong once, each with the words of what a user would have seen."""

import json
import os
import threading
import zipfile

import dask
import dask.array as da
import numcodecs
import numpy as np
import pytest

import zarr_dask as zd
from zarr_dask.errors import (
    CorruptObjectError,
    DataTypeError,
    GridError,
    MemoryBudgetError,
    MetadataChangedError,
    MetadataError,
    MissingGroupWarning,
    NodeNotFoundError,
    StoreError,
    StoreKeyError,
)
from zarr_dask.stores import HookStore, MemoryStore, Recording


def test_a_shard_that_goes_while_it_is_read_is_an_error():
    store = MemoryStore()
    zd.create_array(store, shape=(8,), dtype="i4", chunks=2, shards=8)[...] = range(1, 9)
    gets = []

    def before(method, key):
        if key == "c/0" and method == "get":
            gets.append(key)
            if len(gets) == 2:
                store.delete(key)

    array = zd.open_array(HookStore(store, before))
    with pytest.raises((CorruptObjectError, StoreError)):
        array.read((slice(1, 3),), out=np.full(2, -77, "i4"))


@pytest.mark.parametrize(
    ("function", "options", "error"),
    [
        (lambda b: b.max(0, keepdims=True), {}, GridError),
        (lambda b: np.concatenate([b, b]), {}, GridError),
        (lambda b: b * 1.7, {}, DataTypeError),
        (lambda b: np.ma.masked_equal(b, 2), {"meta": np.empty((0, 0), "i4")}, DataTypeError),
    ],
)
def test_blocks_that_are_not_what_dask_said(function, options, error):
    x = da.ones((4, 4), chunks=(2, 4), dtype="i4").map_blocks(function, dtype="i4", **options)
    store = MemoryStore()
    with pytest.raises(error, match="a block for"):
        zd.to_zarr(x, store)
    assert "zarr.json" not in store.values


def test_the_options_of_a_store_tell_its_arrays_apart(tmp_path):
    arrays = []
    for number in (1, 2):
        path = tmp_path / f"{number}.zip"
        store = MemoryStore()
        zd.create_array(store, shape=(4,), dtype="i4", chunks=4)[...] = number
        with zipfile.ZipFile(path, "w") as archive:
            for key, value in store.values.items():
                archive.writestr(key, value)
        arrays.append(zd.from_zarr("zip://", storage_options={"fo": str(path)}))
    assert arrays[0].name != arrays[1].name
    assert (arrays[1] - arrays[0]).compute(scheduler="sync").tolist() == [1] * 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_process_does_not_write_into_its_copy_of_a_memory_store():
    config = {"scheduler": "processes", "multiprocessing.context": "fork", "num_workers": 2}
    with dask.config.set(config), pytest.raises(StoreError, match="another process"):
        zd.to_zarr(da.ones(8, chunks=2), {})


def test_no_threads_are_no_threads():
    array = zd.create_array({}, shape=(4,), dtype="i4", chunks=1)
    for threads in (0, -1):
        with pytest.raises(ValueError, match="at least 1"):
            array.read(threads=threads)
        with pytest.raises(ValueError, match="at least 1"):
            array.write(None, np.ones(4, "i4"), threads=threads)


def test_an_array_read_from_within_a_thread_of_the_pool():
    inner = zd.create_array({}, shape=(64,), dtype="u1", chunks=1, codecs=[])
    inner[...] = 1
    outer_store = MemoryStore()
    zd.create_array(outer_store, shape=(64,), dtype="u1", chunks=1, codecs=[])[...] = 2

    def before(method, key):
        if method == "get" and key.startswith("c/"):
            assert inner[...].sum() == 64

    outer = zd.open_array(HookStore(outer_store, before))
    result = []
    thread = threading.Thread(target=lambda: result.append(outer[...].sum()), daemon=True)
    thread.start()
    thread.join(30)
    assert result == [128]


def test_attributes_of_others_stay():
    store = MemoryStore()
    first = zd.create_array(store, shape=(4,), dtype="i4", chunks=2)
    second = zd.open_array(store, mode="r+")
    first.update_attributes({"x": 1})
    assert second.update_attributes({"y": 2}).attributes == {"x": 1, "y": 2}
    zd.create_array(store, shape=(8,), dtype="i4", chunks=4, overwrite=True)
    with pytest.raises(MetadataChangedError, match="Open it again"):
        first.update_attributes({"z": 3})
    assert zd.open_array(store).shape == (8,)


def test_overwriting_where_no_node_is_removes_nothing(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "thesis.tex").write_text("years of work")
    (tmp_path / "sub" / "x.csv").write_text("1,2")
    zd.create_array(tmp_path, shape=(4,), dtype="f4", overwrite=True)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"
    assert (tmp_path / "sub" / "x.csv").exists()


def test_a_temporary_place_that_cannot_be_leaves_the_old_target():
    source = zd.create_array({}, shape=(8, 64), dtype="f4", chunks=(1, 64))
    target = {}
    zd.create_array(target, shape=(3,), dtype="i1")
    with pytest.raises(StoreError, match="nosuch"):
        zd.rechunk(source, target, chunks=(8, 8), temp="nosuch://x", overwrite=True)
    assert zd.open_array(target).shape == (3,)


def test_attributes_with_nan_can_be_used():
    store = MemoryStore()
    array = zd.create_array(store, shape=(4,), dtype="f4", chunks=2, format="v2")
    array[...] = 3
    store.values[".zattrs"] = b'{"_FillValue": NaN}'
    opened = zd.open_array(store, mode="r+")
    assert opened.to_dask().sum().compute(scheduler="sync") == 12
    opened.update_attributes({"unit": "m"})
    assert b'"_FillValue": NaN' in store.values[".zattrs"]
    target = {}
    zd.rechunk(opened, target, chunks=4)
    assert np.isnan(zd.open_array(target).attributes["_FillValue"])


@pytest.mark.parametrize("text", ["<i12", "<u48", "<f24", "<f1", "|i4", "<b8", "<c4"])
def test_type_strings_that_numpy_does_not_know(text):
    store = MemoryStore()
    zd.create_array(store, shape=(4,), dtype="i4", chunks=2, format="v2")
    document = json.loads(store.values[".zarray"])
    store.values[".zarray"] = json.dumps(document | {"dtype": text}).encode()
    with pytest.raises(MetadataError, match="type string"):
        zd.open(store)


@pytest.mark.parametrize(
    "config",
    [
        {"id": "lzma", "filters": [1]},
        {"id": "lzma", "format": "x"},
        {"id": "delta", "dtype": "|S0"},
        {"id": "delta", "dtype": "<i8"},
        {"id": "astype", "encode_dtype": "<i2", "decode_dtype": "<U100000000"},
        {"id": "zlib", "level": 100},
        {"id": "blosc", "cname": "nope"},
        {"id": "blosc", "clevel": 99},
        {"id": "blosc", "shuffle": -2},
        {"id": "zstd", "level": 10**30},
        {"id": "bitround", "keepbits": 3},
        {"id": "packbits"},
    ],
    ids=str,
)
def test_configurations_of_v2_codecs_are_checked_when_an_array_is_made_or_opened(config):
    store = MemoryStore()
    with pytest.raises(MetadataError):
        zd.create_array(store, shape=(4,), dtype="<i4", chunks=2, format="v2", codecs=[config])
    assert store.values == {}
    zd.create_array(store, shape=(4,), dtype="<i4", chunks=2, format="v2")
    document = json.loads(store.values[".zarray"]) | {"filters": [config]}
    store.values[".zarray"] = json.dumps(document).encode()
    with pytest.raises(MetadataError, match=r"filters\[0\]"):
        zd.open(store)


def test_codec_values_are_checked_as_documents_are():
    from zarr_dask.codecs.compress.blosc import Blosc
    from zarr_dask.codecs.compress.deflate import Gzip, Zlib

    for codec in (Gzip(100), Blosc("nope", typesize=4), Zlib(1)):
        with pytest.raises(MetadataError, match="codecs"):
            zd.create_array({}, shape=(4,), dtype="i4", codecs=[codec])


def test_blosc_without_a_type_size_stays_without(tmp_path):
    import tensorstore as ts

    zd.create_array(tmp_path, shape=(4,), dtype="i4", chunks=2)[...] = 5
    path = tmp_path / "zarr.json"
    document = json.loads(path.read_text())
    blosc = document["codecs"][1]["configuration"]
    blosc["shuffle"] = "noshuffle"
    del blosc["typesize"]
    path.write_text(json.dumps(document))
    array = zd.open_array(tmp_path, mode="r+")
    array.update_attributes({"unit": "m"})
    assert json.loads(path.read_text())["codecs"] == document["codecs"]
    array[...] = 6
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(tmp_path)}}
    assert ts.open(spec).result().read().result().tolist() == [6] * 4


@pytest.mark.parametrize("member", ["data_type", "chunk_grid", "chunk_key_encoding"])
def test_null_is_a_problem_with_a_name(member):
    store = MemoryStore()
    zd.create_array(store, shape=(4,), dtype="i4")
    document = json.loads(store.values["zarr.json"]) | {member: None}
    store.values["zarr.json"] = json.dumps(document).encode()
    with pytest.raises(MetadataError, match=f"{member}: got None"):
        zd.open(store)


def test_shapes_and_shards_beyond_all_measure():
    store = MemoryStore()
    zd.create_array(store, shape=(4,), dtype="i4")
    document = json.loads(store.values["zarr.json"])
    store.values["zarr.json"] = json.dumps(document | {"shape": [2**63]}).encode()
    with pytest.raises(MetadataError, match="shape"):
        zd.open(store)
    codecs = [{"name": "bytes", "configuration": {"endian": "little"}}]
    for _ in range(60):
        configuration = {"chunk_shape": [4], "codecs": codecs, "index_codecs": [LITTLE]}
        codecs = [{"name": "sharding_indexed", "configuration": configuration}]
    store.values["zarr.json"] = json.dumps(document | {"codecs": codecs}).encode()
    with pytest.raises(MetadataError, match="nested at most"):
        zd.open(store)


def test_codecs_over_a_shard_do_not_escape_the_bound():
    store = MemoryStore()
    inner = {
        "chunk_shape": [16384],
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
    }
    codecs = [{"name": "sharding_indexed", "configuration": inner}, "gzip"]
    with pytest.raises(MetadataError, match="decoded bytes per chunk"):
        zd.create_array(store, shape=(2**34,), dtype="i4", chunks=(2**34,), codecs=codecs)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("shape", [(1 << 22,), (1 << 22, 1), (1 << 11, 1 << 11), (1, 1 << 22)])
def test_a_chunk_of_fill_values_is_told_at_once(shape):
    """It took 9 seconds when every element of the first dimension was one step in Python."""
    store = MemoryStore()
    array = zd.create_array(store, shape=shape, dtype="f4", chunks=shape)
    for _ in range(20):
        array[...] = 0
    assert list(store.values) == ["zarr.json"]


def test_the_pool_that_dask_is_told_to_use_counts():
    from concurrent.futures import ThreadPoolExecutor

    from zarr_dask.jobs.engine import find_workers

    with ThreadPoolExecutor(7) as pool, dask.config.set(pool=pool):
        assert find_workers().threads_per_process == 7


def test_a_plan_does_not_run_where_more_tasks_share_its_memory():
    source = zd.create_array({}, shape=(64, 64, 64), dtype="f4", chunks=(1, 64, 64))
    with dask.config.set(scheduler="sync"):
        plan = zd.plan_rechunk(source, {}, chunks=(64, 8, 8), max_mem=2_000_000)
    with (
        dask.config.set(scheduler="threads", num_workers=8),
        pytest.raises(MemoryBudgetError, match="8 would hold"),
    ):
        plan.run()


@pytest.mark.parametrize("name", ["__x", "...", "zarr.json"])
def test_names_that_no_node_may_have(name, tmp_path):
    with pytest.raises(StoreKeyError, match="cannot be the name of a node"):
        zd.create_array(tmp_path, f"a/{name}", shape=(1,), dtype="i1")
    assert list(tmp_path.iterdir()) == []


def test_small_things_that_users_try():
    array = zd.create_array({}, shape=(2, 3), dtype="i4", format="v2",
                            chunk_key_encoding={"separator": "/"}, chunks=1)  # fmt: skip
    array[...] = 1
    assert [row.tolist() for row in array] == [[1, 1, 1]] * 2
    assert "0/0" in array.store.values
    assert type(array[1, 1, ...]) is np.ndarray
    assert array[1, 1, ...].shape == ()
    scalar = zd.create_array({}, shape=(), dtype="i4")
    assert type(scalar[...]) is np.ndarray
    assert type(scalar[()]) is np.int32
    with pytest.raises(TypeError, match="0-d"):
        iter(scalar)
    group = zd.create_group({})
    group.create_array("a", shape=(1,), dtype="i1")
    assert list(group) == ["a"]
    assert 0 not in group
    with pytest.raises(ValueError, match="missing='raise'"):
        zd.ReadOptions(missing="raise")


def test_urls_of_files_may_hold_any_character(tmp_path):
    path = tmp_path / "x#1 ü.zarr"
    zd.create_array(path, shape=(1,), dtype="i1")
    assert zd.open_array(path.as_uri()).shape == (1,)
    assert zd.open_array(f"file://{path}").shape == (1,)


LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}


def test_a_wrong_path_costs_no_walk_through_everything_below():
    folders = {f"run{number}/deeper/and/deeper/file": b"" for number in range(1500)}
    store = Recording(MemoryStore(folders))
    with pytest.raises(NodeNotFoundError):
        zd.open(store)
    assert sum(request.method == "list_dir" for request in store.requests) < 20
    few = {f"run{number}/deeper/file": b"" for number in range(500)}
    group = json.dumps({"zarr_format": 3, "node_type": "group"}).encode()
    with pytest.warns(MissingGroupWarning):
        assert zd.open(MemoryStore(few | {"run7/deeper/zarr.json": group})).format == "v3"


@pytest.mark.parametrize("name", ["zarr.json", "c/0", "archive.zip", "node"])
def test_a_pipe_in_the_place_of_a_file_keeps_nobody_waiting(tmp_path, name):
    array = zd.create_array(tmp_path, shape=4, dtype="i1", chunks=4)
    (tmp_path / "c").mkdir()
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises((StoreError, CorruptObjectError, MetadataError, NodeNotFoundError)):
        array[...] if name == "c/0" else zd.open(tmp_path / name.replace("zarr.json", ""))


# --- documents of implementations that no peer here stands for ------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"fill_value": "7"},  # n5-zarr
        {"fill_value": "7.0", "dtype": "<f8"},
        {"compressor": {"id": "blosc", "cname": "lz4", "clevel": 1, "shuffle": 1, "nthreads": 1}},
    ],
)
def test_documents_that_java_writes_are_read(changes):
    document = {
        "zarr_format": 2,
        "shape": [4],
        "chunks": [2],
        "dtype": "<i4",
        "order": "C",
        "compressor": None,
        "filters": None,
        "fill_value": 7,
        **changes,
    }
    values = np.array([1, 2], document["dtype"])
    chunk = values.tobytes()
    if document["compressor"]:
        chunk = numcodecs.get_codec({"id": "blosc"}).encode(values)
    array = zd.open_array({".zarray": json.dumps(document).encode(), "0": chunk})
    assert array[...].tolist() == [1, 2, 7, 7]
