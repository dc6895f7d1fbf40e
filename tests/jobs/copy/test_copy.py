"""`zd.copy`: whole hierarchies into other places, grids and formats, objects as they are."""

from __future__ import annotations

import json
import shutil
import threading
import warnings
import zipfile
from dataclasses import dataclass, field, replace

import dask
import numpy as np
import pytest
import xarray
import zarr
from click.testing import CliRunner

import zarr_dask as zd
from tests.support.http_server import Files, serving
from tests.support.leftovers import left_in
from tests.support.scripts import Script, run_script
from zarr_dask.cli import main
from zarr_dask.errors import (
    ChunkMissingError,
    ConsolidatedMetadataWarning,
    CopyError,
    DataTypeError,
    GridError,
    LinkWarning,
    MemoryBudgetError,
    MetadataError,
    NodeExistsError,
    NodeNotFoundError,
    PlanError,
    SourceIsTargetError,
    ValuesDifferError,
)
from zarr_dask.jobs.copy.plan import CopyPlan
from zarr_dask.jobs.copy.raw_copy import RawCopyPlan
from zarr_dask.journal import Journal
from zarr_dask.stores import LocalStore, MemoryStore, Recording
from zarr_dask.stores.base import Listing, list_sizes
from zarr_dask.stores.wrapper import StoreWrapper

FORMATS = ["v2", "v3", "v3draft"]
T = np.arange(32 * 8 * 12, dtype="f4").reshape(32, 8, 12)


@pytest.fixture(autouse=True)
def one_thread():
    with dask.config.set(scheduler="sync"):
        yield


def made(place, format="v3", *, consolidated=True) -> zd.Group:
    """A hierarchy with nearly everything in it."""
    group = zd.create_group(place, format=format, attributes={"title": "run", "n": [1, 2]})
    group.create_group("empty/inner", attributes={"none": None})
    t = group.create_array(
        "ocean/t",
        shape=T.shape,
        dtype="f4",
        chunks=(1, 8, 12),
        fill_value=7,
        attributes={"units": "K"},
        dimension_names=("time", "y", "x"),
    )
    t[:16] = T[:16]
    big = group.create_array("big", shape=(7,), dtype=">i2", chunks=3)
    big[...] = np.arange(7)
    group.create_array("one", shape=(), dtype="i4")[...] = 5
    group.create_array("zero", shape=(0, 3), dtype="i4", chunks=(2, 3))
    if format in {"v2", "v3"}:
        name = group.create_array("name", shape=(3,), dtype="string", chunks=2)
        name[...] = np.array(["a", "bcd", ""], dtype=object)
        if consolidated:
            zd.consolidate(place)
    return zd.open_group(place)


def test_a_copy_is_refused_with_the_memory_that_suffices(tmp_path):
    array = zd.create_array(tmp_path / "a.zarr/x", shape=(2000,), dtype="f8", chunks=500)
    array[...] = np.random.default_rng(0).random(2000)
    options = {"max_mem": "1MB", "threads": 2}
    with pytest.raises(MemoryBudgetError, match="2 threads") as got:
        zd.plan_copy(tmp_path / "a.zarr/x", tmp_path / "b.zarr", **options)
    assert f"{got.value.needed:,}" in str(got.value)
    options["max_mem"] = got.value.needed
    plan = zd.plan_copy(tmp_path / "a.zarr/x", tmp_path / "b.zarr", **options)
    assert plan.peak <= got.value.needed


def test_where_memory_is_for_one_object_two_are_never_held(tmp_path):
    """The comparison has the memory of the copy."""

    class Counted(bytearray):
        held = most = 0

        def __init__(self, value: bytes) -> None:
            super().__init__(value)
            Counted.held += 1
            Counted.most = max(Counted.most, Counted.held)

        def __del__(self) -> None:
            Counted.held -= 1

    class Counting(LocalStore):
        def get(self, key):
            value = super().get(key)
            return Counted(value) if "/c" in f"/{key}" and value is not None else value

    array = zd.create_array(tmp_path / "a.zarr", shape=(2000,), dtype="f8", chunks=1000)
    array[...] = np.random.default_rng(0).random(2000)
    with pytest.raises(MemoryBudgetError) as got:
        zd.plan_copy(tmp_path / "a.zarr", tmp_path / "b.zarr", max_mem=1)
    target = Counting(str(tmp_path / "b.zarr"))
    source = zd.open_array(Counting(str(tmp_path / "a.zarr")))
    zd.plan_copy(source, target, max_mem=got.value.needed).run(verify=True)
    assert Counted.most == 1


def same(a, b) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = zd.compare(a, b)
    assert found.equal, str(found)


def moved(plan: CopyPlan) -> set[str]:
    return {one.target.path for one in plan.members if isinstance(one, RawCopyPlan)}


# --- as it is -------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
def test_all_bytes_are_the_same(tmp_path, format):
    made(tmp_path / "a.zarr", format)
    plan = zd.plan_copy(tmp_path / "a.zarr", tmp_path / "b.zarr")
    assert moved(plan) == {one.target.path for one in plan.members}
    report = plan.run(verify=True)
    same(tmp_path / "a.zarr", tmp_path / "b.zarr")
    assert_same_files(tmp_path / "a.zarr", tmp_path / "b.zarr")
    assert report.stored == sum(one.stored for one in plan.members)
    assert left_in(tmp_path) == {"a.zarr", "b.zarr"}


def assert_same_files(a, b) -> None:
    files = [
        {p.relative_to(root): p.read_bytes() for p in root.rglob("*") if p.is_file()}
        for root in (a, b)
    ]
    assert files[0].keys() == files[1].keys()
    for name, text in files[0].items():
        if text[:1] == b"{":  # documents may be spelled in another way
            assert json.loads(text) == json.loads(files[1][name]), name
        else:
            assert text == files[1][name], name


@pytest.mark.parametrize("target", FORMATS)
@pytest.mark.parametrize("source", FORMATS)
def test_formats(tmp_path, source, target):
    made(tmp_path / "a.zarr", source)
    if target == "v3draft":
        with zarr_dask_refuses_texts(source):
            zd.copy(tmp_path / "a.zarr", tmp_path / "b.zarr", format=target, verify=True)
        if source in {"v2", "v3"}:
            return
    else:
        plan = zd.plan_copy(tmp_path / "a.zarr", tmp_path / "b.zarr", format=target)
        # the checksum of v3 is none that readers of v2 know
        anew = (source, target) == ("v3", "v2")
        assert moved(plan) == (set() if anew else {one.target.path for one in plan.members})
        plan.run(verify=True)
    same(tmp_path / "a.zarr", tmp_path / "b.zarr")
    new = zd.open_group(tmp_path / "b.zarr")
    assert new.format == target
    assert new["ocean/t"].fill_value == 7
    sizes = [zd.open(tmp_path / name)["ocean/t"].nbytes_stored() for name in ("a.zarr", "b.zarr")]
    assert (sizes[0] > sizes[1]) if (source, target) == ("v3", "v2") else (sizes[0] == sizes[1])
    if target != "v3draft":
        peer = zarr.open_group(str(tmp_path / "b.zarr"), mode="r")
        np.testing.assert_array_equal(peer["ocean/t"][:16], T[:16])
        assert (peer["ocean/t"][16:] == 7).all()
        if source != "v1":
            assert peer["one"][()] == 5
            assert peer.attrs["title"] == "run"
            assert dict(peer["empty/inner"].attrs) == {"none": None}
            is_consolidated = peer.metadata.consolidated_metadata is not None
            assert is_consolidated == (source in {"v2", "v3"})


def zarr_dask_refuses_texts(source):
    """The draft has no texts."""
    from contextlib import nullcontext

    return pytest.raises(CopyError, match="name: ") if source in {"v2", "v3"} else nullcontext()


def test_a_single_array(tmp_path):
    made(tmp_path / "a.zarr")
    array = zd.open_array(tmp_path / "a.zarr", "ocean/t")
    target = MemoryStore()
    zd.copy(array, target, path="x/t")
    new = zd.open_array(target, "x/t")
    np.testing.assert_array_equal(new[:16], T[:16])
    assert new.attributes == {"units": "K"}
    zd.copy(array, target, path="x/u", chunks=(16, 8, 6), dtype="i4", codecs=["zstd"])
    new = zd.open_array(target, "x/u")
    assert (new.chunks, new.dtype, new.dimension_names) == ((16, 8, 6), "i4", ("time", "y", "x"))
    np.testing.assert_array_equal(new[:16], T[:16])


@pytest.mark.parametrize("target", ["v1", "v2", "v3", "v3draft"])
def test_arrays_of_v1(tmp_path, target):
    array = zd.create_array(
        tmp_path / "a", shape=(9, 5), dtype=">f4", chunks=(2, 3), format="v1", fill_value=7,
        attributes={"unit": "K"}, order="F",
    )  # fmt: skip
    array[:5] = np.arange(25).reshape(5, 5)
    plan = zd.plan_copy(tmp_path / "a", tmp_path / "b", format=target)
    assert moved(plan) == {""}
    plan.run(verify=True)
    new = zd.open_array(tmp_path / "b")
    assert (new.format, new.attributes, new.fill_value) == (target, {"unit": "K"}, 7)
    np.testing.assert_array_equal(new[...], array[...])
    assert new.nbytes_stored() == array.nbytes_stored()


def test_a_group_below_others(tmp_path):
    made(tmp_path / "a.zarr")
    zd.create_group(tmp_path / "b.zarr")
    zd.copy(zd.open_group(tmp_path / "a.zarr", "ocean"), tmp_path / "b.zarr", path="copies/ocean")
    same(zd.open(tmp_path / "a.zarr", "ocean"), zd.open(tmp_path / "b.zarr", "copies/ocean"))


def test_absent_chunks_stay_absent(tmp_path):
    made(tmp_path / "a.zarr")
    zd.copy(tmp_path / "a.zarr", tmp_path / "b.zarr")
    found = sorted(p.name for p in (tmp_path / "b.zarr" / "ocean" / "t" / "c").iterdir())
    assert found == sorted(map(str, range(16)))


@pytest.mark.parametrize("layout", [{"chunks": (2, 6)}, {"chunks": (2, 3), "shards": (4, 6)}])
def test_absent_chunks_are_lost_ones_for_those_who_say_so(tmp_path, layout):
    array = zd.create_array(tmp_path / "a.zarr", shape=(8, 6), dtype="i4", fill_value=7, **layout)
    array[...] = 1
    strict = zd.ReadOptions(missing="error")
    zd.copy(tmp_path / "a.zarr", tmp_path / "b.zarr", read=strict)
    assert (zd.open_array(tmp_path / "b.zarr")[...] == 1).all()
    array[:2, :3] = 7  # of the shard one chunk is absent then
    if array.shards is None:
        array.store.delete("c/0/0")
    with pytest.raises(ChunkMissingError):
        zd.copy(tmp_path / "a.zarr", tmp_path / "c.zarr", read=strict)
    with pytest.raises(NodeNotFoundError):
        zd.open(tmp_path / "c.zarr")


def test_few_objects_of_a_huge_grid_take_few_requests():
    source = zd.create_array(MemoryStore(), shape=(10**12,), dtype="i1", chunks=10)
    for at in (0, 5 * 10**11, 10**12 - 1):
        source[at : at + 1] = [3]
    store, target = Recording(source.store), Recording(MemoryStore())
    plan = zd.plan_copy(zd.open_array(store), target)
    plan.run()
    assert sum(key.startswith("c/") for key in store.per_key("get")) <= 3
    assert zd.open_array(target)[[0, 1, 5 * 10**11, 10**12 - 1]].tolist() == [3, 0, 3, 3]


# --- other grids ----------------------------------------------------------------------------------


def test_grids_by_name(tmp_path):
    made(tmp_path / "a.zarr")
    plan = zd.plan_copy(tmp_path / "a.zarr", tmp_path / "b.zarr", chunks={"time": -1, "x": 6})
    assert {one.target.path for one in plan.members} - moved(plan) == {"ocean/t"}
    plan.run(verify=True)
    new = zd.open_group(tmp_path / "b.zarr")
    assert new["ocean/t"].chunks == (32, 8, 6)
    assert new["big"].chunks == (3,)
    same(tmp_path / "a.zarr", tmp_path / "b.zarr")
    assert zarr.open_group(tmp_path / "b.zarr").metadata.consolidated_metadata is not None


def test_a_grid_that_is_there_already_is_no_reason_to_decode(tmp_path):
    made(tmp_path / "a.zarr")
    plan = zd.plan_copy(tmp_path / "a.zarr", MemoryStore(), chunks={"time": 1, "x": 12})
    assert moved(plan) == {one.target.path for one in plan.members}


def test_shards_and_codecs(tmp_path):
    made(tmp_path / "a.zarr")
    zd.copy(
        tmp_path / "a.zarr",
        tmp_path / "b.zarr",
        chunks={"time": 4},
        shards={"time": 16},
        codecs={"ocean/t": ["zstd"], "big": ["gzip"]},
        dtype={"big": "i8"},
    )
    new = zd.open_group(tmp_path / "b.zarr")
    assert (new["ocean/t"].chunks, new["ocean/t"].shards) == ((4, 8, 12), (16, 8, 12))
    assert new["big"].dtype == "i8"
    assert [codec.name for codec in new["big"].codecs] == ["bytes", "gzip"]
    np.testing.assert_array_equal(new["big"][...], np.arange(7))
    peer = zarr.open_group(tmp_path / "b.zarr", mode="r")
    np.testing.assert_array_equal(peer["ocean/t"][:16], T[:16])


@pytest.mark.parametrize(
    ("format", "codecs", "made"),
    [
        ("v3", {"name": ["gzip"]}, ("gzip", "crc32c")),
        ("v3", {"name": ["gzip"], "id": ["zstd"]}, ("gzip", "zstd")),
        ("v3", {"name": "gzip", "id": "zstd"}, ("gzip", "zstd")),
        ("v3", {"name": "crc32c"}, ("crc32c", "crc32c")),
        ("v3", {"name": "gzip", "configuration": {"level": 1}}, ("gzip", "gzip")),
        ("v2", {"id": "zlib", "level": 1}, ("zlib", "zlib")),
        ("v2", {"id": [{"id": "zlib", "level": 1}]}, ("blosc", "zlib")),
    ],
)
def test_codecs_of_arrays_that_are_called_as_members_of_a_codec(format, codecs, made):
    group = zd.create_group({}, format=format)
    for path in ("name", "id"):
        group.create_array(path, shape=(6,), dtype="i4", chunks=3)[...] = np.arange(6)
    target = {}
    zd.copy(group, target, codecs=codecs)
    copied = zd.open_group(target)
    assert tuple(copied[path].codecs[-1].name for path in ("name", "id")) == made
    with pytest.raises(GridError, match=r"codecs= names \['none'\], which are no arrays"):
        zd.plan_copy(group, {}, codecs={"name": ["gzip"], "none": ["zstd"]})


def test_shards_go_where_the_format_has_none(tmp_path):
    place = tmp_path / "a.zarr"
    array = zd.create_array(place, "s", shape=(8, 8), dtype="i4", chunks=(2, 2), shards=(4, 8))
    array[...] = np.arange(64).reshape(8, 8)
    zd.copy(place, tmp_path / "b.zarr", format="v2", verify=True)
    new = zd.open_array(tmp_path / "b.zarr", "s")
    assert (new.chunks, new.shards, new.format) == ((2, 2), None, "v2")
    np.testing.assert_array_equal(new[...], array[...])
    zd.copy(place, tmp_path / "c.zarr")
    assert zd.open_array(tmp_path / "c.zarr", "s").shards == (4, 8)


@pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")
@pytest.mark.parametrize("format", ["v2", "v3"])
def test_xarray(tmp_path, format):
    data = xarray.Dataset(
        {"t": (("time", "y", "x"), T, {"units": "K"}), "s": (("y", "x"), T[0].astype("f8"))},
        coords={
            "time": np.array("2000-01-01", "M8[ns]") + np.arange(32) * np.timedelta64(1, "D"),
            "x": np.arange(12.0),
        },
        attrs={"title": "run"},
    )
    data.to_zarr(tmp_path / "a.zarr", zarr_format=int(format[1]))
    zd.copy(tmp_path / "a.zarr", tmp_path / "b.zarr", chunks={"time": 16, "x": 4}, verify=True)
    zd.copy(tmp_path / "a.zarr", tmp_path / "c.zarr", format="v3")
    for name in ("b.zarr", "c.zarr"):
        with xarray.open_zarr(tmp_path / name, consolidated=True) as new:
            xarray.testing.assert_identical(new.load(), data)
    assert zd.open_group(tmp_path / "b.zarr")["t"].chunks[::2] == (16, 4)


@pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")
@pytest.mark.parametrize("chunks", [None, {"x": 4}])
def test_xarray_reads_scalars_of_v3_in_v2(tmp_path, chunks):
    data = xarray.Dataset(
        {"t": (("y", "x"), T[0] + 1, {"grid_mapping": "crs"})},
        coords={"crs": ((), 7, {"grid_mapping_name": "latitude_longitude"})},
    )
    data.to_zarr(tmp_path / "a.zarr", zarr_format=3)
    assert "dimension_names" not in json.loads((tmp_path / "a.zarr/crs/zarr.json").read_text())
    zd.copy(tmp_path / "a.zarr", tmp_path / "b.zarr", chunks=chunks, format="v2", verify=True)
    assert zd.compare(tmp_path / "a.zarr", tmp_path / "b.zarr")
    with xarray.open_zarr(tmp_path / "b.zarr", mask_and_scale=False) as new:
        np.testing.assert_array_equal(new["t"], data["t"])
        assert (new["crs"].dims, int(new["crs"])) == ((), 7)


# --- codecs that a format does not have -----------------------------------------------------------

TURNED = [
    {"name": "transpose", "configuration": {"order": [1, 0]}},
    {"name": "bytes", "configuration": {"endian": "big"}},
    {"name": "crc32c"},
]
LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
MIXED = np.dtype([("a", ">i4"), ("b", "<f8")])


def test_what_v2_cannot_say_is_encoded_anew(tmp_path):
    """Some orders of axes have no form in v2."""
    order = [{"name": "transpose", "configuration": {"order": [1, 0, 2]}}, LITTLE, "zstd"]
    group = zd.create_group(tmp_path / "a.zarr")
    odd = group.create_array("x/odd", shape=T.shape, dtype="f4", chunks=(8, 8, 12), codecs=order)
    odd[...] = T
    plain = group.create_array("plain", shape=(4,), dtype="i4", chunks=2, codecs=["blosc"])
    plain[...] = np.arange(4)
    plan = zd.plan_copy(tmp_path / "a.zarr", tmp_path / "b.zarr", format="v2")
    assert moved(plan) == {"plain"}
    (note,) = plan.notes
    assert note.startswith("x/odd is encoded anew (")
    assert "codecs" in note
    assert f"note    {note}" in str(plan)
    assert zd.load_plan(plan.to_json()).notes == plan.notes
    plan.run(verify=True)
    same(tmp_path / "a.zarr", tmp_path / "b.zarr")
    peer = zarr.open_group(str(tmp_path / "b.zarr"), mode="r")
    np.testing.assert_array_equal(peer["x/odd"][...], T)


def test_fields_of_both_byte_orders_are_encoded_anew(tmp_path):
    values = np.array([(1, 2.5), (-3, 4.5), (5, 6.5)], MIXED)
    peer = zarr.open_group(str(tmp_path / "a.zarr"), mode="w", zarr_format=2)
    peer.create_array("m", shape=3, dtype=MIXED, chunks=2)[...] = values
    plan = zd.plan_copy(tmp_path / "a.zarr", tmp_path / "b.zarr", format="v3")
    (note,) = plan.notes
    assert "'a' big, 'b' little" in note
    plan.run(verify=True)
    new = zd.open_array(tmp_path / "b.zarr", "m")
    assert new[...].tolist() == values.tolist()
    lone = zd.plan_rechunk(zd.open(tmp_path / "a.zarr")["m"], tmp_path / "c", format="v3")
    assert lone.notes == plan.notes
    assert zd.load_plan(lone.to_json()).notes == lone.notes
    lone.run(verify=True)
    assert zd.open_array(tmp_path / "c")[...].tolist() == values.tolist()


@pytest.mark.parametrize("target", ["v1", "v2", "v3draft"])
@pytest.mark.parametrize("dtype", ["f4", ">i2"])
def test_formats_without_such_codecs(tmp_path, target, dtype):
    array = zd.create_array(
        tmp_path / "a", shape=(9, 6), dtype=dtype, chunks=(4, 6), codecs=TURNED, fill_value=3
    )
    array[:7] = np.arange(42).reshape(7, 6)
    plan = zd.plan_copy(tmp_path / "a", tmp_path / "b", format=target)
    plan.run(verify=True)
    new = zd.open_array(tmp_path / "b")
    assert (new.format, new.chunks, new.fill_value) == (target, (4, 6), 3)
    np.testing.assert_array_equal(new[...], array[...])


def test_what_is_not_a_matter_of_codecs_is_refused(tmp_path):
    """Another format lacks the data type, or codecs were asked for that it does not have."""
    array = zd.create_array(tmp_path / "a", shape=(4,), dtype="string", chunks=2)
    with pytest.raises(MetadataError):
        zd.plan_copy(array, {}, format="v3draft")
    number = zd.create_array(tmp_path / "n", shape=(4,), dtype="i4", chunks=2)
    with pytest.raises(MetadataError):
        zd.plan_copy(number, {}, format="v3", codecs=["no-such-codec"])


# --- other sources --------------------------------------------------------------------------------


def test_archives(tmp_path):
    made(tmp_path / "a.zarr")
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for file in (tmp_path / "a.zarr").rglob("*"):
            if file.is_file():
                archive.write(file, file.relative_to(tmp_path / "a.zarr"))
    zd.copy(tmp_path / "a.zip", tmp_path / "b.zarr", verify=True)
    assert_same_files(tmp_path / "a.zarr", tmp_path / "b.zarr")


def test_into_an_archive(tmp_path):
    made(tmp_path / "a.zarr")
    with zd.ZipWriter(tmp_path / "b.zip") as archive:
        zd.copy(tmp_path / "a.zarr", archive, chunks={"x": 6}, verify=True)
    same(tmp_path / "a.zarr", tmp_path / "b.zip")


def test_plans_are_shown(tmp_path):
    made(tmp_path / "a.zarr")
    group = zd.open_group(tmp_path / "a.zarr", mode="r+")
    with pytest.warns(ConsolidatedMetadataWarning):
        group.create_array("<b>", shape=(4,), dtype="i1")
    plan = zd.plan_copy(tmp_path / "a.zarr", tmp_path / "b.zarr", chunks={"x": 6})
    lines = str(plan).splitlines()
    assert len([line for line in lines if "as it is stored" in line]) == 5
    assert len([line for line in lines if "(1, 8, 12) -> (1, 8, 6), directly" in line]) == 1
    html = plan._repr_html_()
    assert "<td>&lt;b&gt;</td>" in html
    assert html.count("<svg") == 3 + len(moved(plan))
    titles = [axis.get_title(loc="left") for axis in plan.plot().axes]
    assert any("decodes" in title and "stage 1 of all arrays" in title for title in titles)
    assert any(title.startswith("big\nas it is stored") for title in titles)


def test_servers_that_cannot_list(tmp_path):
    made(tmp_path / "a.zarr")
    values = {
        str(file.relative_to(tmp_path)): file.read_bytes()
        for file in (tmp_path / "a.zarr").rglob("*")
        if file.is_file()
    }
    with serving(Files, values) as (url, _):
        plan = zd.plan_copy(f"{url}/a.zarr", tmp_path / "b.zarr")
        assert not any(one.listed for one in plan.members)
        plan.run(verify=True)
    assert_same_files(tmp_path / "a.zarr", tmp_path / "b.zarr")


@dataclass(frozen=True)
class Slow(Recording):
    """A store whose requests take their time: two listings must be under way at once."""

    both: threading.Barrier = field(
        default_factory=lambda: threading.Barrier(2, timeout=30), compare=False
    )

    @property
    def coalescing(self):
        return replace(self.store.coalescing, max_concurrent_requests=16)

    def list_sizes(self, prefix=""):
        if prefix.endswith("/c/"):
            self.both.wait()
        return list_sizes(self.store, prefix)


def test_arrays_of_remote_stores_are_listed_side_by_side():
    store = MemoryStore()
    group = zd.create_group(store)
    for name in ("a", "b"):
        group.create_array(name, shape=(8,), dtype="i4", chunks=4)[...] = np.arange(8)
    plan = zd.plan_copy(Slow(store), {}, max_mem="1GB")
    plan.run(verify=False)
    assert moved(plan) == {"a", "b"}


def test_links(tmp_path):
    made(tmp_path / "real.zarr", consolidated=False)
    made(tmp_path / "a.zarr", consolidated=False)
    (tmp_path / "a.zarr" / "linked").symlink_to(tmp_path / "a.zarr" / "ocean")
    (tmp_path / "a.zarr" / "outside").symlink_to(tmp_path / "real.zarr" / "ocean")
    (tmp_path / "a.zarr" / "loop").symlink_to(tmp_path / "a.zarr")
    with pytest.warns(LinkWarning, match=r"outside is a link that leads out of"):
        zd.copy(tmp_path / "a.zarr", tmp_path / "b.zarr")
    assert not (tmp_path / "b.zarr" / "linked").is_symlink()
    assert not (tmp_path / "b.zarr" / "outside").exists()
    np.testing.assert_array_equal(zd.open(tmp_path / "b.zarr", "linked/t")[:16], T[:16])
    (tmp_path / "c.zarr").symlink_to(tmp_path / "real.zarr" / "ocean")
    with pytest.raises(SourceIsTargetError):
        zd.copy(tmp_path / "real.zarr", tmp_path / "c.zarr", overwrite=True)


def test_groups_without_documents(tmp_path):
    made(tmp_path / "a.zarr", consolidated=False)
    (tmp_path / "a.zarr" / "ocean" / "zarr.json").unlink()
    zd.copy(tmp_path / "a.zarr", tmp_path / "b.zarr")
    assert (tmp_path / "b.zarr" / "ocean" / "zarr.json").exists()


def test_consolidated_metadata_that_are_wrong_are_not_believed(tmp_path):
    made(tmp_path / "a.zarr")
    with pytest.warns(ConsolidatedMetadataWarning):
        zd.open_array(tmp_path / "a.zarr", "one", "r+").update_attributes({"new": 1})
    zd.copy(zd.open_group(tmp_path / "a.zarr"), tmp_path / "b.zarr")
    assert zd.open_group(tmp_path / "b.zarr")["one"].attributes == {"new": 1}
    assert zd.open_group(tmp_path / "b.zarr").stale() == []


# --- what is refused ------------------------------------------------------------------------------


def test_refusals(tmp_path):
    place = tmp_path / "a.zarr"
    made(place)
    target = tmp_path / "b.zarr"
    with pytest.raises(GridError, match=r"\['tme'\].*time"):
        zd.copy(place, target, chunks={"tme": 1})
    with pytest.raises(GridError, match="by names of dimensions"):
        zd.copy(place, target, chunks=(1, 2))
    with pytest.raises(DataTypeError, match="mapping from paths"):
        zd.copy(place, target, dtype="f8")
    with pytest.raises(GridError, match=r"codecs= names \['ocaen'\]"):
        zd.copy(place, target, codecs={"ocaen": ["zstd"]})
    turned = [{"name": "transpose", "configuration": {"order": [1, 0]}}]
    with pytest.raises(CopyError, match=r"big: .*\n.*name: ") as got:
        zd.copy(place, target, codecs=turned)
    assert len(got.value.refusals) == 4
    with pytest.raises(SourceIsTargetError):
        zd.copy(place, place, path="ocean/copy")
    with pytest.raises(SourceIsTargetError):
        zd.copy(zd.open(place, "ocean"), place, overwrite=True)
    with pytest.raises(MemoryBudgetError, match=r"a task needs 1.05 MB besides, but it may hold"):
        zd.copy(place, target, max_mem="1MB")
    with pytest.raises(NodeNotFoundError):
        zd.copy(tmp_path / "none", target)
    (place / "one" / "zarr.json").write_text('{"zarr_format": 3, "node_type": "array"}')
    with pytest.raises(CopyError, match="one: "):
        zd.copy(place, target)
    assert not target.exists()
    zd.create_group(target)
    with pytest.raises(NodeExistsError):
        zd.copy(zd.open(place, "ocean"), target)
    zd.create_array(tmp_path / "c.zarr", "x/y", shape=1, dtype="i1")
    (tmp_path / "c.zarr" / "zarr.json").unlink()
    with pytest.raises(NodeExistsError):
        zd.copy(zd.open(place, "ocean"), tmp_path / "c.zarr")


def test_overwrite(tmp_path):
    made(tmp_path / "a.zarr")
    made(tmp_path / "b.zarr", "v2")
    zd.copy(tmp_path / "a.zarr", tmp_path / "b.zarr", overwrite=True)
    assert_same_files(tmp_path / "a.zarr", tmp_path / "b.zarr")


# --- the end, and what comes before ---------------------------------------------------------------


class StopError(Exception):
    """What ends a job in the middle."""


def stop_after(tasks: int):
    count = 0

    def progress(_) -> None:
        nonlocal count
        count += 1
        if count == tasks:
            raise StopError

    return progress


GRID = {"chunks": {"x": 6}, "max_mem": "3MB"}


@pytest.mark.parametrize("tasks", [1, 3, 4])
def test_what_is_done_is_not_done_again(tmp_path, tasks):
    made(tmp_path / "a.zarr")
    plan = zd.plan_copy(tmp_path / "a.zarr", tmp_path / "b.zarr", **GRID)
    with pytest.raises(StopError):
        plan.run(progress=stop_after(tasks))
    for path in ("", "big", "ocean/t"):
        with pytest.raises(NodeNotFoundError, match="resume=True"):
            zd.open(tmp_path / "b.zarr", path)
    report = zd.copy(tmp_path / "a.zarr", tmp_path / "b.zarr", resume=True, **GRID)
    todo = sum(one.tasks for one in plan.members if one.target.path != "zero")
    assert report.tasks == todo - tasks
    same(tmp_path / "a.zarr", tmp_path / "b.zarr")
    assert left_in(tmp_path) == {"a.zarr", "b.zarr"}


@pytest.mark.parametrize("format", ["v2", "v3"])
def test_a_copy_is_visible_when_it_is_whole(tmp_path, format):
    """At every moment of writing documents, whoever finds the root finds everything."""
    made(tmp_path / "a.zarr", format)
    seen: list[str] = []

    class Looking(Recording):
        def set(self, key, buffers):
            root = {".zgroup", ".zmetadata", "zarr.json"}
            if any(self.store.size(name) is not None for name in root):
                seen.append(key)
            super().set(key, buffers)

    zd.copy(tmp_path / "a.zarr", Looking(LocalStore(str(tmp_path / "b.zarr"))))
    assert seen == ([".zmetadata"] if format == "v2" else [])
    same(tmp_path / "a.zarr", tmp_path / "b.zarr")


def test_a_job_that_died_at_each_document_is_ended_by_the_same_call(tmp_path, monkeypatch):
    made(tmp_path / "a.zarr", "v2")
    count = len(zd.plan_copy(tmp_path / "a.zarr", tmp_path / "b.zarr").documents)
    for dying in range(0, count, 3):
        target = tmp_path / f"b{dying}.zarr"

        def some(store, documents, dying=dying):
            for number, (key, text) in enumerate(documents.items()):
                if number == dying:
                    raise StopError
                store.set(key, [text])

        with monkeypatch.context() as patch:
            patch.setattr("zarr_dask.jobs.copy.plan.write_documents", some)
            with pytest.raises(StopError):
                zd.copy(tmp_path / "a.zarr", target)
        report = zd.copy(tmp_path / "a.zarr", target, resume="run-7" if dying % 2 else True)
        assert report.tasks == 0
        assert_same_files(tmp_path / "a.zarr", target)


def test_ending_a_visible_copy_reads_its_journal_as_often_for_many_arrays(tmp_path, monkeypatch):
    """The job died when only its journal was left to remove; it was read anew for each array."""
    reads, receipts = [], Journal.receipts
    for count in (2, 12):
        source, target = tmp_path / f"a{count}.zarr", tmp_path / f"b{count}.zarr"
        for number in range(count):
            zd.create_array(source, f"g/{number}", shape=(4,), dtype="i4", chunks=(4,))[...] = 1

        def remove(self):
            raise StopError

        with monkeypatch.context() as patch:
            patch.setattr(Journal, "remove", remove)
            with pytest.raises(StopError):
                zd.copy(source, target)
        reads.append(0)

        def counted(self):
            reads[-1] += 1
            return receipts(self)

        monkeypatch.setattr(Journal, "receipts", counted)
        assert zd.copy(source, target, resume=True).tasks == 0
        monkeypatch.undo()
        same(source, target)
    assert 0 < reads[0] == reads[1]


def test_what_a_dead_job_left_is_no_value_of_absent_chunks(tmp_path):
    made(tmp_path / "a.zarr")
    left = tmp_path / "b.zarr" / "ocean" / "t" / "c" / "20" / "0"
    left.mkdir(parents=True)
    shutil.copy(tmp_path / "a.zarr" / "ocean" / "t" / "c" / "3" / "0" / "0", left / "0")
    zd.copy(tmp_path / "a.zarr", tmp_path / "b.zarr", verify=True)
    assert (zd.open(tmp_path / "b.zarr", "ocean/t")[20] == 7).all()


def test_what_somebody_else_put_there_is_not_taken_over(tmp_path):
    made(tmp_path / "a.zarr")
    with pytest.raises(StopError):
        zd.copy(tmp_path / "a.zarr", tmp_path / "b.zarr", progress=stop_after(2))
    zd.create_group(tmp_path / "b.zarr", attributes={"mine": 1})
    with pytest.raises(NodeExistsError):
        zd.copy(tmp_path / "a.zarr", tmp_path / "b.zarr", resume=True)
    assert zd.open_group(tmp_path / "b.zarr").attributes == {"mine": 1}


def test_a_copy_that_differs_does_not_become_visible(tmp_path):
    made(tmp_path / "a.zarr")

    class Lying(Recording):
        def set(self, key, buffers):
            if key.endswith("t/c/3/0/0"):
                buffers = [bytes(b"".join(buffers))[:-1]]
            super().set(key, buffers)

    target = Lying(MemoryStore())
    with pytest.raises(ValuesDifferError, match=r"1 stored objects differ.*\n.*\(3, 0, 0\)"):
        zd.copy(tmp_path / "a.zarr", target, verify=True)
    with pytest.raises(NodeNotFoundError):
        zd.open(target)


KILLED = """
import sys
import dask
import zarr_dask as zd

with dask.config.set(scheduler="sync"):
    zd.copy(
        sys.argv[1], sys.argv[2], chunks={"x": 6}, max_mem="3MB", resume=True,
        progress=lambda _: print("done", flush=True),
    )
"""


def test_a_killed_process(tmp_path):
    made(tmp_path / "a.zarr")
    command = (KILLED, tmp_path / "a.zarr", tmp_path / "b.zarr")
    for _ in range(2):
        with Script(*command) as process:
            process.stdout.readline()
            process.kill()
    run_script(*command)
    same(tmp_path / "a.zarr", tmp_path / "b.zarr")
    assert left_in(tmp_path) == {"a.zarr", "b.zarr"}


# --- plans in files, commands ---------------------------------------------------------------------


def cli(*words: object, code: int = 0) -> str:
    done = CliRunner().invoke(main, [*map(str, words)])
    assert done.exit_code == code, done.output
    return " ".join(done.output.split())


@pytest.mark.parametrize("format", FORMATS)
def test_plans_in_files(tmp_path, format):
    made(tmp_path / "a.zarr", format)
    file = tmp_path / "plan.json"
    words = [tmp_path / "a.zarr", tmp_path / "b.zarr", "--chunks", "x=6", "--threads", 1]
    assert "written to" in cli("copy", *words, "-o", file)
    plan = zd.load_plan(file.read_text())
    assert (
        plan.documents
        == zd.plan_copy(tmp_path / "a.zarr", tmp_path / "b.zarr", chunks={"x": 6}).documents
    )
    assert "not begun" in cli("status", file, code=1)
    for number, _ in enumerate(plan.stages, 1):
        for part in ("1/2", "2/2"):
            cli("run", file, "--stage", number, "--part", part)
    with pytest.raises(NodeNotFoundError):
        zd.open(tmp_path / "b.zarr", "big")
    assert "is finished" in cli("finish", file, "--verify")
    same(tmp_path / "a.zarr", tmp_path / "b.zarr")
    assert "finished already" in cli("run", file)


def test_plans_of_strangers(tmp_path):
    made(tmp_path / "a.zarr")
    plan = zd.plan_copy(tmp_path / "a.zarr", tmp_path / "b.zarr", chunks={"x": 6})
    document = json.loads(plan.to_json())
    arrays = document["arrays"]
    number = next(n for n, one in enumerate(arrays) if one["job"] == "move")
    for change, said in (
        ({"groups": {"../x": {}}}, "no path|not a key|missing or wrong"),
        ({"consolidated": ["nowhere"]}, "consolidated groups"),
        ({"max_mem": 10}, "more than its max_mem"),
        ({"arrays": [{**arrays[number], "batch": 0}]}, "at least 1"),
        (
            {"arrays": [{**arrays[number], "source": next(
                one["source"] for one in arrays if one["source"]["path"] == "zero"
            )}]},
            "another grid",
        ),
    ):  # fmt: skip
        with pytest.raises(PlanError, match=said):
            zd.load_plan(json.dumps({**document, **change}))


def test_command(tmp_path):
    made(tmp_path / "a.zarr")
    words = ["copy", tmp_path / "a.zarr", tmp_path / "b.zarr", "--chunks", "time=-1"]
    assert "directly" in cli(*words, "--dry-run")
    assert not (tmp_path / "b.zarr").exists()
    assert "done: 5 arrays" in cli(*words, "--verify", "--format", "v2")
    assert zd.open_group(tmp_path / "b.zarr").format == "v2"
    assert "exists already" in cli(*words, code=3)
    same(tmp_path / "a.zarr", tmp_path / "b.zarr")


def test_progress_counts_bytes(tmp_path):
    made(tmp_path / "a.zarr")
    plan, seen = zd.plan_copy(tmp_path / "a.zarr", tmp_path / "b.zarr", chunks={"x": 6}), []
    plan.run(progress=seen.append, verify=True)
    for stage, total in enumerate([*(one.nbytes for one in plan.stages), plan.nbytes]):
        assert sum(step.nbytes for step in seen if step.stage == stage) == total


# --- the format of the group around ---------------------------------------------------------------


def source_of(format, **options):
    """A hierarchy of one array with names of dimensions."""
    group = zd.create_group({}, format=format, attributes={"title": "run 7"})
    options = {"shape": (8, 6), "dtype": "i2", "chunks": (2, 6), "codecs": ["blosc"], **options}
    array = group.create_array("u", dimension_names=["t", "x"], fill_value=-1, **options)
    array[:4] = np.arange(24).reshape(4, 6)
    return group


@pytest.mark.parametrize("how", ["rechunk", "copy", "copy of an array"])
@pytest.mark.parametrize(
    ("old", "around"),
    [("v3", "v2"), ("v2", "v3"), ("v3", "v3draft"), ("v3draft", "v2"), ("v2", "v3draft")],
)
def test_copies_have_the_format_of_the_group_around(old, around, how):
    source, values = source_of(old), {}
    zd.create_group(values, format=around)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if how == "rechunk":
            zd.rechunk(source["u"], values, path="run/u", chunks={"t": 8})
        else:
            zd.copy(source if how == "copy" else source["u"], values, path="run/u")
    name = "run/u/u" if how == "copy" else "run/u"
    shown = dict(zd.open_group(values, format=around).arrays(recursive=True))
    assert list(shown) == [name]
    made = shown[name]
    assert (made.format, made.dimension_names, made.fill_value) == (around, ("t", "x"), -1)
    np.testing.assert_array_equal(made[...], source["u"][...])


@pytest.mark.parametrize("format", ["v2", "v3draft"])
@pytest.mark.parametrize(
    "options",
    [{"shards": (4, 6)}, {"chunks": ((3, 5), 6)}, {"codecs": ["zstd", "crc32c"]}],
)
def test_what_the_format_around_cannot_say_keeps_its_own(format, options):
    source, values = source_of("v3", **options), {}
    zd.create_group(values, format=format)
    plan = zd.plan_copy(source["u"], values, path="u")
    can = ("shards" if format == "v3draft" else "codecs") in options
    assert plan.members[0].target.format == (format if can else "v3")
    assert not any("encoded anew" in note for note in plan.notes)


def test_what_keeps_its_format_is_said_to_be_of_another_than_the_group_around():
    source, values = source_of("v3", shards=(4, 6)), {}
    zd.create_group(values, format="v2")
    with pytest.warns(zd.errors.MixedFormatsWarning, match="format v2"):
        zd.copy(source["u"], values, path="u")
    assert zd.open(values, "u", format="v3").shards == (4, 6)


def test_a_format_that_is_named_is_heeded_in_any_group():
    source, values = source_of("v3"), {}
    zd.create_group(values, format="v2")
    assert zd.plan_copy(source, values, path="a", format="v3").node_format.name == "v3"
    plan = zd.plan_rechunk(source["u"], values, path="a", chunks=3, format="v3")
    assert plan.target.format == "v3"


@pytest.mark.parametrize("how", ["rechunk", "copy"])
def test_jobs_in_a_group_of_another_format_are_found_again(tmp_path, how):
    source = zd.create_array(tmp_path / "source.zarr", shape=(8, 6), dtype="i2", chunks=(2, 6))
    source[...] = np.arange(48).reshape(8, 6)
    zd.create_group(tmp_path / "old.zarr", format="v2")
    target = tmp_path / "old.zarr" / "u"

    def run(progress=None):
        options = {"chunks": (8, 3), "max_mem": "9MB", "resume": True, "progress": progress}
        return getattr(zd, how)(source, target, **options)

    def die(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(die)
    begun = {one.name for one in tmp_path.rglob("__job-*")}
    assert len(begun) == 1
    plan = getattr(zd, f"plan_{how}")(source, target, chunks=(8, 3), overwrite=True)
    document = json.loads(plan.to_json())
    assert "v2" in json.dumps(document)
    assert zd.load_plan(plan.to_json()) is not None
    run()
    assert not list(tmp_path.rglob("__job-*"))
    np.testing.assert_array_equal(zd.open(target)[...], source[...])
    assert zd.open(target).format == "v2"


# --- what xarray masks ----------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["copy", "rechunk", "rechunk several", "copy of an array"])
@pytest.mark.parametrize(("old", "new"), [("v2", "v3"), ("v3", "v2"), ("v2", "v2"), ("v3", "v3")])
def test_xarray_finds_the_same_missing_values_in_another_format(tmp_path, old, new, how):
    """What has no names of dimensions is nothing to xarray, and stays as it is."""
    xr = pytest.importorskip("xarray")
    fill = -99 if old == "v2" else 0
    values = np.array([1, fill, 3], "i2")
    group = zd.create_group(tmp_path / "a", format=old)
    names = {"dimension_names": ("x",), "fill_value": fill}
    group.create_array("t", shape=3, dtype="i2", chunks=2, **names)[...] = values
    group.create_array("u", shape=3, dtype="i2", chunks=2, fill_value=fill)[...] = values
    if how == "copy":
        plan = zd.plan_copy(tmp_path / "a", tmp_path / "b", format=new)
    elif how == "rechunk":
        zd.create_group(tmp_path / "b", format=new)
        plan = zd.plan_rechunk(group["t"], tmp_path / "b", path="t", chunks=3, format=new)
    elif how == "rechunk several":
        zd.create_group(tmp_path / "b", format=new)
        plan = zd.plan_rechunk([group["t"]], tmp_path / "b", path=["t"], chunks=3, format=new)
    else:
        zd.create_group(tmp_path / "b", format=new)
        plan = zd.plan_copy(group["t"], tmp_path / "b", path="t", format=new)
    notes = [line for line in plan.explain().splitlines() if "missing values" in line]
    assert not notes
    plan.run()
    if how == "copy":
        assert "_FillValue" not in zd.open_array(tmp_path / "b", "u").attributes

    def seen(place, **options):
        found = xr.open_dataset(tmp_path / place, engine="zarr_dask", drop_variables="u", **options)
        return np.asarray(found["t"]).tolist()

    def alike(a, b):
        return np.array_equal(a, b, equal_nan=True)

    assert alike(seen("a"), seen("b"))
    assert np.isnan(seen("a")).any() == (old == "v2")


@pytest.mark.parametrize("fill", [False, True])
def test_bools_that_are_missing_to_xarray_stay_so(tmp_path, fill):
    xr = pytest.importorskip("xarray")
    held = xr.Dataset({"b": ("x", [True, False], {"_FillValue": fill})})
    held.to_zarr(tmp_path / "a", zarr_format=2, consolidated=False)
    zd.copy(tmp_path / "a", tmp_path / "b", format="v3")
    zd.copy(tmp_path / "b", tmp_path / "c", format="v2")
    first, *others = (xr.open_zarr(tmp_path / one, consolidated=False).load() for one in "abc")
    assert first["b"].isnull().values.tolist() == [fill, not fill]
    for one in others:
        xr.testing.assert_identical(one, first)


@pytest.mark.parametrize("path", [["v2", "v3", "v2"], ["v3", "v2", "v3"]])
def test_datasets_mean_the_same_in_other_formats_and_back(tmp_path, path):
    """Packed integers, masked floats, and a time of 0, which no format may mask."""
    xr = pytest.importorskip("xarray")
    packed = xr.Variable("time", [1.5, np.nan, 2.5])
    packed.encoding = {"dtype": "i2", "scale_factor": 0.01, "_FillValue": -32767}
    marked = xr.Variable("time", [1.0, np.nan, 3.0], encoding={"_FillValue": -999.0})
    plain = xr.Variable("time", np.array([0, 1, 2], "i4"))
    texts = xr.Variable("time", np.array(["", "a", "b"], object))
    data = {"packed": packed, "marked": marked, "plain": plain, "texts": texts}
    times = np.array(["2000-01-01", "2000-01-02", "2000-01-03"], "M8[ns]")
    ds = xr.Dataset(data, coords={"time": times})
    version = int(path[0][1])
    ds.to_zarr(tmp_path / "0", zarr_format=version, consolidated=False)
    before = xr.open_zarr(tmp_path / "0", consolidated=False).load()
    for number, name in enumerate(path[1:]):
        zd.copy(tmp_path / f"{number}", tmp_path / f"{number + 1}", format=name)
        found = xr.open_zarr(tmp_path / f"{number + 1}", consolidated=False).load()
        xr.testing.assert_identical(found, before)


def test_grids_of_one_array_alone_are_given_under_its_path():
    group = zd.create_group({})
    for name in ("a", "b"):
        made = group.create_array(
            name, shape=(8, 6), dtype="i4", chunks=(1, 6), dimension_names=("time", "x")
        )
        made[...] = 3
    plan = zd.plan_copy(group, {}, chunks={"time": 4, "b": {"time": -1, "x": 2}})
    assert {one.target.path: one.target.chunks for one in plan.members} == {
        "a": (4, 6),
        "b": (8, 2),
    }
    with pytest.raises(GridError, match="c"):
        zd.plan_copy(group, {}, chunks={"c": {"time": 1}})


def test_a_plan_names_a_hundred_arrays_one_by_one():
    source = {}
    for number in range(103):
        zd.create_array(source, f"x{number}", shape=1, dtype="i1")
    lines = str(zd.plan_copy(source, {})).splitlines()
    assert lines[-1] == "  and 3 more arrays"
    assert sum("requests" in line and "int8" in line for line in lines) == 100


# --- listings that leave nodes out ----------------------------------------------------------------


@dataclass(frozen=True)
class HidingStore(StoreWrapper):
    """A store whose listings leave out what begins with one of some prefixes."""

    hidden: set[str] = field(default_factory=set, compare=False)

    def list(self, prefix=""):
        return (k for k in self.store.list(prefix) if not k.startswith((*self.hidden,)))

    def list_dir(self, prefix=""):
        found = self.store.list_dir(prefix)
        return Listing(*([k for k in one if not k.startswith((*self.hidden,))] for one in found))


@pytest.mark.parametrize("chunks", [None, {"x": 2}])
def test_a_verified_copy_lists_its_source_again(chunks):
    store = HidingStore(MemoryStore())
    group = zd.create_group(store)
    for name in "ab":
        array = group.create_array(
            f"of/{name}", shape=(4,), chunks=1, dtype="i4", dimension_names=("x",)
        )
        array[...] = 7
    store.hidden.add("of/b/")
    target = MemoryStore()
    plan = zd.plan_copy(group, target, chunks=chunks)
    zd.copy(group, MemoryStore(), chunks=chunks, verify=True)  # as far as can be known
    store.hidden.clear()
    with pytest.raises(ValuesDifferError, match=r"1 nodes differ.*\n.*the node 'of/b'"):
        plan.run(verify=True)
    assert not [key for key in target.list() if key.endswith("zarr.json")]
    zd.plan_copy(group, target, chunks=chunks).run(verify=True)
    same(store, target)


@pytest.mark.parametrize("run", [zd.copy, zd.rechunk])
@pytest.mark.parametrize(
    ("chunks", "wanted"),
    [
        ("auto", [(20,), (20, 30)]),
        (-1, [(20,), (20, 30)]),
        (False, [(20,), (20, 30)]),
        ("80B", [(10,), (3, 3)]),
    ],
)
def test_one_grid_for_all_arrays_of_a_group(run, chunks, wanted):
    source, target = {}, {}
    group = zd.create_group(source)
    group.create_array("x", data=np.arange(20.0), chunks=5)
    group.create_array("y", data=np.arange(600.0).reshape(20, 30), chunks=5)
    run(source, target, chunks=chunks)
    made = zd.open_group(target)
    assert [made[name].chunks for name in "xy"] == wanted
    assert zd.compare(source, target).equal
