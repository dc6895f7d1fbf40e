"""Zip archives: what they hold, in every form that writers give them, and what is refused."""

import contextlib
import io
import os
import pickle
import shutil
import struct
import subprocess
import sys
import time
import tracemalloc
import warnings
import zipfile
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import zarr_dask as zd
from zarr_dask.errors import NodeNotFoundError, ReadOnlyError, StoreError, StoreKeyError
from zarr_dask.stores import LocalStore, MemoryStore, Range, Store, ZipStore, open_store
from zarr_dask.stores.backends import zip as zip_module
from zarr_dask.stores.backends.zip_format import read_directory

VALUES = {
    "a/b/1": b"0123456789",
    "a/b/2": b"",
    "a/c": b"x" * 3000,
    "top": b"top",
    "näme/日本": b"unicode",
}
METHODS = [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]


def archive(path, values, method=zipfile.ZIP_STORED, folder=""):
    with zipfile.ZipFile(path, "w", method) as file:
        for name, value in values.items():
            file.writestr(f"{folder}{name}", value)
    return ZipStore.from_path(str(path))


@pytest.fixture(params=METHODS, ids=["stored", "deflated"])
def store(request, tmp_path):
    return archive(tmp_path / "x.zip", VALUES, request.param)


def in_memory():
    store = MemoryStore()
    store.values.update(VALUES)
    return store


# --- a store for reading --------------------------------------------------------------------------


def test_is_a_store(store):
    assert isinstance(store, Store)
    assert store.url == store.root
    assert "x.zip" in store.identity


def test_values(store):
    for key, value in VALUES.items():
        assert store.get(key) == store.get_transient(key) == value
        assert store.size(key) == len(value)
    for key in ("b", "a", "a/b", "a/b/11", "TOP"):
        assert store.get(key) is None
        assert store.size(key) is None


RANGES = [
    *(Range(0), Range(2, 5), Range(3, None), Range(-4), Range(-100), Range(0, 0), Range(5, 5)),
    *(Range(8, 100), Range(100, 200), Range(0, 10), Range(0, 9), Range(1, 10)),
]


@pytest.mark.parametrize("wanted", RANGES)
def test_ranges_are_those_of_a_slice(store, wanted):
    requests = [(key, wanted) for key in [*VALUES, "nothing"]]
    assert store.get_ranges(requests) == in_memory().get_ranges(requests)


def test_ranges_of_many_keys_in_order(store):
    requests = [("a/c", Range(1, 3)), ("top", Range(0)), ("no", Range(0)), ("a/c", Range(0, 1))]
    assert store.get_ranges(requests) == [b"xx", b"top", None, b"x"]
    assert store.get_ranges([]) == []


@pytest.mark.parametrize("prefix", ["", "a/", "a/b/", "näme/", "nothing/"])
def test_listing(store, prefix):
    assert sorted(store.list(prefix)) == sorted(in_memory().list(prefix))
    assert store.list_dir(prefix) == in_memory().list_dir(prefix)


@pytest.mark.parametrize("key", ["", "/a", "a/", "../x", "a/../b", "a//b", "a\\b", "nul\0"])
def test_keys_that_lead_outside(store, key):
    for ask in (store.get, store.size, lambda k: store.get_ranges([(k, Range(0))])):
        with pytest.raises(StoreKeyError):
            ask(key)


def test_every_change_is_refused(store):
    for change in (
        lambda: store.set("a/c", [b"1"]),
        lambda: store.delete("a/c"),
        lambda: store.delete_prefix("a/"),
        lambda: zd.create_group(store),
    ):
        with pytest.raises(ReadOnlyError, match=r"x\.zip is a zip archive"):
            change()
    assert store.get("a/c") == VALUES["a/c"]


def test_pickles_as_its_path(store):
    pickled = pickle.dumps(store)
    assert len(pickled) < 400
    assert pickle.loads(pickled) == store
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer).get('top'))"
    done = subprocess.run(
        [sys.executable, "-c", code], input=pickled, capture_output=True, check=True
    )
    assert done.stdout.strip() == b"b'top'"


def test_parts_of_a_stored_entry_are_read_without_the_rest(tmp_path, monkeypatch):
    store = archive(tmp_path / "x.zip", {"big": bytes(range(256)) * 40_000})
    assert store.size("big") == 10_240_000
    read = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, n, at: read.append(n) or pread(fd, n, at))
    assert store.get_ranges([("big", Range(256, 260)), ("big", Range(-2))]) == [
        b"\0\1\2\3", b"\xfe\xff",
    ]  # fmt: skip
    assert sum(read) < 100


def test_the_directory_is_read_once(store, monkeypatch):
    again = ZipStore.from_path(store.root)
    monkeypatch.setattr(zipfile, "ZipFile", None)
    assert again.get("top") == b"top"
    assert ZipStore.from_path(store.root) == store


def test_listings_of_a_large_archive_are_made_once(tmp_path):
    values = {f"a/c/{i // 100}/{i % 100}": b"" for i in range(10_000)}
    store = archive(tmp_path / "x.zip", values)
    assert len(store.list_dir("a/c/").prefixes) == 100
    zip_module._directory(store.root, store.stamp).entries.clear()  # not gone through again
    assert [len(store.list_dir(f"a/c/{i}/").keys) for i in range(100)] == [100] * 100


# --- forms of archives ----------------------------------------------------------------------------


def hierarchy(store, format="v3"):
    group = zd.create_group(store, format=format, attributes={"title": "t"})
    array = group.create_array("g/x", shape=(5, 4), dtype="<i4", chunks=(2, 4))
    array[...] = np.arange(20).reshape(5, 4)
    return store


def check_hierarchy(url, **options):
    group = zd.open_group(url, **options)
    assert group.attributes == {"title": "t"}
    assert [path for path, _ in group.walk()] == ["g", "g/x"]
    assert group["g/x"][1:4, 1].tolist() == [5, 9, 13]
    assert zd.open_array(url, "g/x")[...].tolist() == np.arange(20).reshape(5, 4).tolist()


@pytest.mark.parametrize("format", ["v2", "v3"])
@pytest.mark.parametrize("folder", ["", "x.zarr/", "日本 run 7/"])
@pytest.mark.parametrize("method", METHODS)
def test_hierarchies(tmp_path, format, folder, method):
    values = hierarchy(MemoryStore(), format).values
    archive(tmp_path / "x.zip", values, method, folder)
    check_hierarchy(tmp_path / "x.zip")
    check_hierarchy(f"file://{tmp_path}/x.zip")


def test_as_tools_write_them(tmp_path):
    hierarchy(tmp_path / "x.zarr")
    shutil.make_archive(tmp_path / "within", "zip", tmp_path / "x.zarr")
    shutil.make_archive(tmp_path / "around", "zip", tmp_path, "x.zarr")
    check_hierarchy(tmp_path / "within.zip")
    check_hierarchy(tmp_path / "around.zip")
    (tmp_path / "within.zip").rename(tmp_path / "run.ozx")  # known by its first bytes
    check_hierarchy(tmp_path / "run.ozx")


@pytest.mark.parametrize("name", ["x.zip", "x.bin"])
def test_a_hierarchy_in_a_folder_of_an_archive(tmp_path, name):
    values = {f"one/deep/{key}": value for key, value in hierarchy(MemoryStore()).values.items()}
    archive(tmp_path / name, {**values, "two/zarr.json": b"{"})
    check_hierarchy(tmp_path / name / "one" / "deep")
    check_hierarchy(f"{tmp_path}/{name}/one/deep/")
    assert (
        zd.open_array(tmp_path / name / "one/deep/g/x").where == f"{tmp_path}/{name}/one/deep/g/x"
    )
    with pytest.raises(NodeNotFoundError):
        zd.open(tmp_path / name / "three")


def test_folders_that_are_part_of_the_hierarchy(tmp_path):
    values = hierarchy(MemoryStore()).values
    del values["zarr.json"], values["g/zarr.json"]
    archive(tmp_path / "x.zip", values)
    assert zd.open_array(tmp_path / "x.zip", "g/x").shape == (5, 4)


def test_what_macos_puts_beside(tmp_path):
    values = hierarchy(MemoryStore()).values
    values = {f"x.zarr/{key}": value for key, value in values.items()}
    archive(tmp_path / "x.zip", {**values, "__MACOSX/x.zarr/._g": b"?"})
    check_hierarchy(tmp_path / "x.zip")


def test_the_last_of_several_entries_counts(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as file:
        file.writestr("a", b"old")
        file.mkdir("folder")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            file.writestr("a", b"newer")
    store = ZipStore.from_path(str(tmp_path / "x.zip"))
    assert store.get("a") == b"newer"
    assert list(store.list()) == ["a"]


def test_zip64_and_data_before_the_archive(tmp_path):
    path = tmp_path / "x.zip"
    path.write_bytes(b"#!/bin/sh\n" * 10)
    with zipfile.ZipFile(path, "a") as file, file.open("big", "w", force_zip64=True) as entry:
        entry.write(b"0123456789")
    with zipfile.ZipFile(tmp_path / "many.zip", "w") as file:
        for i in range(70_000):  # more than fit into the older directory
            file.writestr(str(i), b"")
    assert ZipStore.from_path(str(path)).get("big") == b"0123456789"
    assert ZipStore.from_path(str(tmp_path / "many.zip")).size("69999") == 0


@given(
    st.dictionaries(
        st.text("ab/é日k ", min_size=1, max_size=9), st.binary(max_size=40), max_size=5
    ),
    st.binary(max_size=30), st.binary(max_size=30), st.booleans(),
)  # fmt: skip
def test_the_directory_is_that_which_python_reads(values, before, comment, deflates):
    file = io.BytesIO(before)
    file.seek(len(before))
    method = zipfile.ZIP_DEFLATED if deflates else zipfile.ZIP_STORED
    with zipfile.ZipFile(file, "a", method) as archive:
        for name, value in values.items():
            archive.writestr(name, value)
        archive.comment = comment
    text = file.getvalue()
    with zipfile.ZipFile(file) as archive:
        found = read_directory(lambda at, count: text[at : at + count], len(text))
        assert found.start == archive.start_dir
        assert [
            (one.name, one.offset, one.size, one.stored, one.crc, one.method, one.flags)
            for one in found.entries
        ] == [
            (one.filename, one.header_offset, one.file_size, one.compress_size, one.CRC,
             one.compress_type, one.flag_bits)
            for one in archive.infolist()
        ]  # fmt: skip


def test_a_name_in_an_extra_field(tmp_path):
    """As Info-ZIP writes it beside one in the code of its machine."""
    name, real = b"k\x94ln", "k\xf6ln"
    field = struct.pack("<BI", 1, zlib.crc32(name)) + real.encode()
    extra = struct.pack("<2H", 0x7075, len(field)) + field
    entry = struct.pack(
        "<4s6H3I5H2I", b"PK\1\2", 20, 20, 0, 0, 0, 33, 0, 0, 0, len(name), len(extra), 0, 0, 0, 0, 0
    )  # fmt: skip
    text = entry + name + extra
    text += struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, len(text), 0, 0)
    (found,) = read_directory(lambda at, count: text[at : at + count], len(text)).entries
    assert found.name == real


@pytest.mark.parametrize("cut", [1, 30, 70, 120])
def test_a_directory_that_is_cut_off(tmp_path, cut):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("a", b"")
        archive.writestr("b", b"")
    text = (tmp_path / "x.zip").read_bytes()
    (tmp_path / "y.zip").write_bytes(text[: -22 - cut] + text[-22:])
    with pytest.raises(StoreError, match="is no zip archive that can be read"):
        ZipStore.from_path(str(tmp_path / "y.zip"))


def test_a_directory_of_many_empty_entries_takes_no_second(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for n in range(15_000):
            archive.writestr(f"a/c/{n}", b"")
    seconds = []
    for _ in range(3):
        begun = time.process_time()
        ZipStore.from_path(str(tmp_path / "x.zip"))
        seconds.append(time.process_time() - begun)
        zip_module._directory.cache_clear()
    assert min(seconds) < 0.2


def test_an_archive_that_was_streamed(tmp_path):
    class Pipe(io.RawIOBase):
        """Cannot seek: sizes come after the data."""

        def __init__(self, file):
            self.file = file

        def writable(self):
            return True

        def write(self, data):
            return self.file.write(data)

    with (tmp_path / "x.zip").open("wb") as file, zipfile.ZipFile(Pipe(file), "w") as out:
        out.writestr("a", b"0123456789", zipfile.ZIP_DEFLATED)
        out.writestr("b", b"0123456789")
    store = ZipStore.from_path(str(tmp_path / "x.zip"))
    assert store.get("a") == store.get("b") == b"0123456789"


def test_paths_that_are_no_archives(tmp_path):
    with pytest.raises(NodeNotFoundError):
        zd.open(tmp_path / "missing.zip")
    with pytest.raises(ReadOnlyError):
        zd.create_group(tmp_path / "missing.zip")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "folder.zip").mkdir()
    assert isinstance(open_store(tmp_path / "folder.zip"), LocalStore)
    with pytest.raises(StoreError, match="largest"):
        open_store(tmp_path / "folder.zip", {"largest": 3})


# --- archives that are broken or lie --------------------------------------------------------------


def test_no_archive_and_a_truncated_one(tmp_path):
    (tmp_path / "empty.zip").write_bytes(b"")
    (tmp_path / "text.zip").write_bytes(b"no archive at all" * 100)
    archive(tmp_path / "x.zip", VALUES)
    whole = (tmp_path / "x.zip").read_bytes()
    for number, length in enumerate((2, 100, len(whole) // 2, len(whole) - 30, len(whole) - 1)):
        (tmp_path / f"cut{number}.zip").write_bytes(whole[:length])
    for path in tmp_path.glob("*.zip"):
        if path.name != "x.zip":
            with pytest.raises(StoreError, match="no zip archive that can be read, or a part"):
                zd.open(path)


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/passwd", "a//b", "a/./b", "c:\\x\\y"])
def test_names_that_lead_elsewhere(tmp_path, name):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as file:
        file.writestr("zarr.json", "{}")
        file.writestr(name, b"x")
    with pytest.raises(StoreKeyError, match="an entry that leads elsewhere"):
        zd.open(tmp_path / "x.zip")


def patched(path, name, offset, form, value, local=None):
    """Change a number in the directory's record of an entry, and in its local header."""
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as file:
        header = file.getinfo(name).header_offset
    where = data.index(b"PK\1\2")
    while data[where + 46 :][: len(name)] != name.encode():
        where = data.index(b"PK\1\2", where + 4)
    struct.pack_into(form, data, where + offset, value)
    if local is not None:
        struct.pack_into(form, data, header + local, value)
    path.write_bytes(data)
    return ZipStore.from_path(str(path))


@pytest.mark.parametrize(
    ("method", "offset", "form", "value", "says"),
    [
        (zipfile.ZIP_STORED, 8, "<H", 1, "it is encrypted"),
        (zipfile.ZIP_STORED, 10, "<H", 14, "compressed by method 14"),
        (zipfile.ZIP_STORED, 10, "<H", 99, "compressed by method 99"),
        (zipfile.ZIP_STORED, 24, "<I", 5, "claims 5 bytes and holds 3000"),
        (zipfile.ZIP_STORED, 16, "<I", 5, "checksum"),
        (zipfile.ZIP_DEFLATED, 16, "<I", 5, "checksum"),
        (zipfile.ZIP_DEFLATED, 24, "<I", 2999, "does not hold the 2999 bytes"),
        (zipfile.ZIP_DEFLATED, 24, "<I", 3001, "does not hold the 3001 bytes"),
        (zipfile.ZIP_DEFLATED, 24, "<I", 0xFFFFFFF0, "cannot hold 4294967280 bytes"),
        (zipfile.ZIP_DEFLATED, 20, "<I", 5, "does not hold"),
        (zipfile.ZIP_STORED, 42, "<I", 7, "no entry where the directory says so"),
        (zipfile.ZIP_STORED, 42, "<I", 0x7FFFFFF0, "no entry where the directory says so"),
    ],
)
def test_entries_that_cannot_be_read(tmp_path, method, offset, form, value, says):
    archive(tmp_path / "x.zip", VALUES, method)
    store = patched(tmp_path / "x.zip", "a/c", offset, form, value)
    with pytest.raises(StoreError, match=rf"the entry 'a/c' of .*x\.zip cannot be read.*{says}"):
        store.get("a/c")
    assert store.get("top") == b"top"


def test_an_entry_that_claims_more_than_the_archive(tmp_path):
    archive(tmp_path / "x.zip", VALUES)
    patched(tmp_path / "x.zip", "a/c", 20, "<I", 1 << 30)
    store = patched(tmp_path / "x.zip", "a/c", 24, "<I", 1 << 30)
    with pytest.raises(StoreError, match="ends before it does"):
        store.get_ranges([("a/c", Range(0, 10))])


def test_a_bomb(tmp_path):
    size = (1 << 28) + (1 << 24)
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
    data = b"".join(squeeze.compress(bytes(1 << 24)) for _ in range(size >> 24)) + squeeze.flush()
    archive(tmp_path / "x.zip", {"zarr.json": data})
    for offset, form, value in ((10, "<H", 8), (24, "<I", size)):
        patched(tmp_path / "x.zip", "zarr.json", offset, form, value)
    began = time.perf_counter()
    tracemalloc.start()
    try:
        with pytest.raises(StoreError, match="more than 268435456"):
            zd.open(tmp_path / "x.zip")
        patched(tmp_path / "x.zip", "zarr.json", 24, "<I", 1 << 20)
        with pytest.raises(StoreError, match="does not hold the 1048576 bytes"):
            zd.open(tmp_path / "x.zip")
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert time.perf_counter() - began < 5
    with pytest.raises(StoreError, match="more than 1000"):
        zd.open(tmp_path / "x.zip", storage_options={"largest": 1000})


@pytest.mark.parametrize("how", ["replaced", "rewritten", "removed"])
def test_an_archive_that_changes_while_it_is_open(tmp_path, how):
    path = tmp_path / "x.zip"
    archive(path, hierarchy(MemoryStore()).values)
    array = zd.open_array(path, "g/x")
    other = hierarchy(MemoryStore())
    zd.open_array(other, "g/x", mode="r+")[...] = 9
    archive(tmp_path / "y.zip", {**other.values, "more": b"x"})
    if how == "removed":
        path.unlink()
    elif how == "replaced":
        (tmp_path / "y.zip").replace(path)
    else:
        path.write_bytes((tmp_path / "y.zip").read_bytes())
    says = "could not open" if how == "removed" else "was replaced or changed while it was open"
    with pytest.raises(StoreError, match=says):
        array[...]
    if how != "removed":
        assert zd.open_array(path, "g/x")[0, 0] == 9


# --- archives that others published ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("v2", "zipped_from_parent.zarr"),
        ("v2", "zipped_from_within.zarr"),
        ("v3", "zipped_from_parent.zarr"),
        ("v3", "zipped_from_within.zarr"),
        ("v3", "uncompressed.zarr"),
    ],
)
def test_published_archives(public_data, version, name):
    folder = public_data / "zarrita_js" / version
    plain = zd.ReadOptions(consolidated=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = dict(zd.open_group(folder / "data.zarr", read=plain).walk())
        found = dict(zd.open_group(folder / f"data.{name}.zip", read=plain).walk())
        assert list(found) == list(expected)
        arrays = {path: a for path, a in expected.items() if isinstance(a, zd.Array)}
        assert len(arrays) > 20
        for path, array in arrays.items():
            np.testing.assert_array_equal(found[path][...], array[...])


def test_the_fixture_of_zarr_python_2(public_data):
    group = zd.open_group(public_data / "zarr_python_v2_fixture" / "data.zip")
    arrays = dict(group.arrays(recursive=True))
    assert len(arrays) > 20
    assert sum(array[...].size for array in arrays.values()) > 0


def test_several_hierarchies_in_one_archive(public_data):
    place = public_data / "zarr_implementations" / "data.zip"
    v2 = zd.open_group(place / "zarr.zr")
    draft = zd.open_group(place / "zarrita.zr3")
    assert (v2.format, draft.format) == ("v2", "v3draft-2022-05")
    image = v2["blosc"][...] if isinstance(v2["blosc"], zd.Array) else v2["blosc/lz4"][...]
    arrays = [array for _, array in draft.arrays(recursive=True)]
    assert arrays
    for array in arrays:
        np.testing.assert_array_equal(array[...], image)


# --- archives with bytes changed at random --------------------------------------------------------


def test_damaged_archives_are_read_right_or_refused(tmp_path):
    random = np.random.default_rng(3)
    values = {**VALUES, "zarr.json": b'{"zarr_format": 3, "node_type": "group"}'}
    for method in METHODS:
        archive(tmp_path / "x.zip", values, method)
        whole = np.frombuffer((tmp_path / "x.zip").read_bytes(), "u1")
        for number in range(400):
            data = whole.copy()
            at = random.integers(0, len(data), 1 + number % 3)
            if number % 2:  # in the directory, which is where the claims are
                at = len(data) - 1 - at % 400
            data[at] = random.integers(0, 256, len(at))
            path = tmp_path / f"{method}-{number}.zip"
            path.write_bytes(data.tobytes())
            try:
                store = ZipStore.from_path(str(path))
                for key in list(store.list()):
                    with contextlib.suppress(StoreError):
                        found = store.get(key)
                        assert found == values.get(key, found)
            except StoreError:
                continue
            finally:
                path.unlink()


@pytest.mark.parametrize("offset", [1 << 62, 1 << 63, (1 << 64) - 1])
def test_an_entry_behind_all_files_is_refused(tmp_path, offset):
    """Zip64 says where it begins, in more bits than the system takes."""
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("c/0", b"value")
    found = path.read_bytes()
    entry, end = found.index(b"PK\1\2"), found.index(b"PK\5\6")
    extra = struct.pack("<HHQQQ", 1, 24, 5, 5, offset)
    sizes, place = b"\xff" * 8, b"\xff" * 4
    directory = found[entry : entry + 20] + sizes + struct.pack("<HH", 3, len(extra))
    directory += found[entry + 32 : entry + 42] + place + found[entry + 46 : end] + extra
    last = found[end : end + 12] + struct.pack("<I", len(directory)) + found[end + 16 :]
    path.write_bytes(found[:entry] + directory + last)
    with pytest.raises(StoreError, match="no entry where the directory says so"):
        ZipStore.from_path(str(path)).get("c/0")
