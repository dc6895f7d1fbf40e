"""OME-Zarr in another version: what zarr-python has written, brought to 0.5 and back."""

from __future__ import annotations

import json
import shutil
import signal
import warnings

import numpy as np
import pytest
import zarr

import zarr_dask as zd
from tests.support.kill_roles import PATIENCE, start
from tests.support.leftovers import left_in
from tests.support.ome_images import pixels, put_image, put_plate
from tests.support.ome_labelled import put_labelled, same
from tests.support.ome_roles import migrate_until
from zarr_dask.errors import (
    MetadataChangedError,
    MetadataError,
    MigrationError,
    OmeVersionError,
    SourceIsTargetError,
    StoreError,
)
from zarr_dask.stores import LocalStore, MemoryStore
from zarr_dask.stores.wrappers.base import HookStore

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
BIG = {"name": "bytes", "configuration": {"endian": "big"}}
TURNED = {"name": "transpose", "configuration": {"order": [1, 0, 2]}}
REVERSED = {"name": "transpose", "configuration": {"order": [2, 1, 0]}}


def files(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def documents(found):
    return {name for name in found if name.rpartition("/")[2].startswith((".z", "zarr.json"))}


def to_copy(tmp_path, source, name="copy"):
    shutil.copytree(source, tmp_path / name)
    return tmp_path / name


# --- from versions before 0.4 ---------------------------------------------------------------------


def put_earlier(root, version, names, shape):
    """An image with labels as its version has it, with the keys of arrays in one folder in 0.1."""
    separator = "." if version == "0.1" else "/"
    levels = [pixels(*shape), pixels(*shape)[..., ::2, ::2], pixels(*shape)[..., ::4, ::4]]
    for path in ("", "labels/cells"):
        group = zarr.open_group(root, path=path, mode="a", zarr_format=2)
        for i, level in enumerate(levels):
            keys = {"name": "v2", "separator": separator}
            at = {"shape": level.shape, "dtype": "u2", "chunks": (8,) * level.ndim}
            group.create_array(f"s{i}", **at, chunk_key_encoding=keys)[...] = level
        one = {"version": version, "datasets": [{"path": f"s{i}"} for i in range(3)], "name": "a"}
        group.attrs["multiscales"] = [one | ({"axes": list(names)} if version == "0.3" else {})]
    colors = [{"label-value": 1, "rgba": [1, 2, 3, 4]}]
    group.attrs["image-label"] = {"version": version, "colors": colors}
    zarr.open_group(root, path="labels", mode="a", zarr_format=2).attrs["labels"] = ["cells"]
    window = {"start": 0, "end": 9}
    omero = {"version": version, "channels": [{"color": "FF0000", "window": window}]}
    zarr.open_group(root, mode="a", zarr_format=2).attrs["omero"] = omero
    return levels


@pytest.mark.parametrize(
    ("version", "names", "shape"),
    [
        ("0.1", "tczyx", (1, 1, 3, 13, 17)),
        ("0.2", "tczyx", (1, 1, 3, 13, 17)),
        ("0.3", "zyx", (3, 9, 17)),
    ],
)
@pytest.mark.parametrize("anew", [False, True])
def test_from_earlier_versions(tmp_path, version, names, shape, anew):
    from tests.support.ome_peers import by_models

    levels = put_earlier(tmp_path / "old", version, names, shape)
    with pytest.raises(OmeVersionError, match=r"migrate brings 0\.1"):
        zd.ome.open(tmp_path / "old")
    place = tmp_path / "old"
    if anew:
        place = tmp_path / "new"
        zd.ome.migrate(tmp_path / "old", dst=place, chunks={"y": 5})
    else:
        zd.ome.migrate(place, remove_old=True)
    assert zd.ome.validate(place) == []
    assert by_models(place, "0.5") == "Image"
    for image in (zd.ome.open(place), zd.ome.open(place).labels["cells"]):
        same(image, levels)
        assert image.axes == tuple(names)
        assert [level.scale[-2:] for level in image.levels] == [(1, 1), (2, 2), (4, 4)]
    assert image.metadata.image_label.colors[0].rgba == (1, 2, 3, 4)


def test_a_plate_of_an_earlier_version(tmp_path):
    put_plate(tmp_path, "0.4", {"A/1": pixels(20, 20), "B/3": pixels(20, 20)})
    for path in tmp_path.rglob(".zattrs"):
        found = json.loads(path.read_text())
        for well in found.get("plate", {}).get("wells", []):
            del well["rowIndex"], well["columnIndex"]
        for image in found.get("multiscales", []):
            image |= {"version": "0.3", "axes": ["y", "x"]}
            for dataset in image["datasets"]:
                del dataset["coordinateTransformations"]
        for name in {"plate", "well"} & found.keys():
            found[name]["version"] = "0.3"
        path.write_text(json.dumps(found))
    zd.ome.migrate(tmp_path, remove_old=True)
    assert zd.ome.validate(tmp_path) == []
    assert zd.ome.open_plate(tmp_path).places == {"A/1": (0, 0), "B/3": (1, 2)}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"axes": ["q", "y", "x"]}, r"multiscales\[0\]\.axes"),
        ({"version": "0.2"}, "none for these five"),
        ({"datasets": [{"path": "s9"}]}, r"datasets\[0\]\.path"),
        ({"datasets": [{"path": "../s0"}]}, r"datasets\[0\]\.path"),
        ({"datasets": []}, "at least one level"),
    ],
)
def test_what_an_earlier_version_leaves_unclear(tmp_path, change, says):
    put_earlier(tmp_path, "0.3", "zyx", (3, 9, 17))
    group = zarr.open_group(tmp_path, mode="a", zarr_format=2)
    changed = group.attrs["multiscales"][0] | change
    if change == {"version": "0.2"}:
        del changed["axes"]
    group.attrs["multiscales"] = [changed]
    before = files(tmp_path)
    with pytest.raises(MigrationError, match=says):
        zd.ome.migrate(tmp_path)
    with pytest.raises(ValueError, match=r"0\.5 alone"):
        zd.ome.migrate(tmp_path, "0.4", tmp_path.parent / "copy")
    assert files(tmp_path) == before


# --- to 0.5 ---------------------------------------------------------------------------------------


@pytest.mark.conformance("C157")
def test_only_documents_change_in_place(tmp_path, public_data):
    from tests.support.ome_peers import by_models, by_ngff_zarr, by_ome_zarr, schema_problems

    levels, cells = put_labelled(tmp_path, "0.4")
    before = files(tmp_path)
    plan = zd.ome.migrate(tmp_path, remove_old=True)
    assert (plan.old, plan.new, plan.nbytes) == ("0.4", "0.5", 0)
    after = files(tmp_path)
    # stored objects lie where they were, byte for byte
    assert {n: v for n, v in before.items() if n not in documents(before)} == {
        n: v for n, v in after.items() if n not in documents(after)
    }
    assert {name.rpartition("/")[2] for name in documents(after)} == {"zarr.json"}
    image = zd.ome.open(tmp_path)
    assert image.metadata.version == "0.5"
    same(image, levels)
    same(image.labels["cells"], cells)
    assert zd.ome.validate(tmp_path) == []
    assert image.levels[0].array.dimension_names == ("z", "y", "x")
    ome = json.loads((tmp_path / "zarr.json").read_text())["attributes"]
    assert ome.keys() == {"title", "custom", "ome"}
    assert "version" not in ome["ome"]["multiscales"][0]
    assert "version" not in ome["ome"]["omero"]
    assert ome["ome"]["multiscales"][0]["mine"] == {"a": [1]}
    assert image.labels["cells"].metadata.image_label.version == "0.5"
    # and so say the others
    assert schema_problems(public_data, tmp_path, "0.5") == []
    assert by_models(tmp_path, "0.5") == "Image"
    for found in (by_ome_zarr(tmp_path), by_ngff_zarr(tmp_path)):
        for one, values in zip(found, levels, strict=True):
            np.testing.assert_array_equal(one.compute(scheduler="sync"), values)


def test_old_documents_stay_until_they_are_not_wanted(tmp_path):
    levels, _ = put_labelled(tmp_path, "0.4")
    before = files(tmp_path)
    zd.ome.migrate(tmp_path)
    assert before.items() <= files(tmp_path).items()
    with pytest.warns(zd.errors.ZarrDaskWarning, match="v3 is used"):
        same(zd.ome.open(tmp_path), levels)
    again = zd.ome.migrate(tmp_path, remove_old=True)
    assert again.old == "0.4"
    assert zd.ome.validate(tmp_path) == []
    finished = files(tmp_path)
    assert zd.ome.migrate(tmp_path, remove_old=True).old == "0.5"
    assert files(tmp_path) == finished


@pytest.mark.conformance("C157")
def test_plates_with_all_their_wells(tmp_path, public_data):
    from tests.support.ome_peers import by_models, ngff_zarr, schema_problems

    wells = {"A/1": pixels(8, 8), "A/3": pixels(8, 8) + np.uint16(100), "B/2": pixels(8, 8)}
    put_plate(tmp_path / "old", "0.4", wells, fields=("0", "1"))
    mosaic = zd.ome.open_plate(tmp_path / "old").mosaic(1).compute(scheduler="sync")
    zd.ome.migrate(tmp_path / "old", dst=tmp_path / "new")
    plate = zd.ome.open_plate(tmp_path / "new")
    np.testing.assert_array_equal(plate.mosaic(1).compute(scheduler="sync"), mosaic)
    assert zd.ome.validate(tmp_path / "new") == []
    assert schema_problems(public_data, tmp_path / "new", "0.5") == []
    assert by_models(tmp_path / "new", "0.5") == "HCS"
    read = ngff_zarr.from_hcs_zarr(str(tmp_path / "new"), validate=True)
    found = read.get_well("A", "3").get_image(1).images[0].data
    np.testing.assert_array_equal(found, wells["A/3"] + np.uint16(1))
    assert zd.ome.validate(tmp_path / "old") == []


@pytest.mark.parametrize("in_place", [True, False])
def test_collections_as_bioformats2raw_lays_them_out(tmp_path, in_place):
    old = tmp_path / "old"
    root = zarr.open_group(old, mode="w", zarr_format=2)
    root.attrs["bioformats2raw.layout"] = 3
    images = [put_image(old, path, "0.4", pixels(4, 8, 8)) for path in ("0", "1")]
    zarr.open_group(old, path="OME", mode="a", zarr_format=2).attrs["series"] = ["1", "0"]
    (old / "OME" / "METADATA.ome.xml").write_text("<OME/>")
    new = old if in_place else tmp_path / "new"
    plan = zd.ome.migrate(old, dst=None if in_place else new, remove_old=in_place)
    assert plan.files == (() if in_place else ("OME/METADATA.ome.xml",))
    assert (new / "OME" / "METADATA.ome.xml").read_text() == "<OME/>"
    assert zd.ome.validate(new) == []
    assert zd.open_group(new).attributes == {"ome": {"version": "0.5", "bioformats2raw.layout": 3}}
    with pytest.raises(zd.errors.NodeTypeError, match="several images, 1, 0"):
        zd.ome.open(new)
    same(zd.ome.open(new, "1"), images[1])


def test_a_dry_run_writes_nothing(tmp_path):
    put_labelled(tmp_path / "old", "0.4")
    before = files(tmp_path)
    plan = zd.ome.migrate(tmp_path / "old", dry_run=True)
    assert "OME-Zarr 0.4 to 0.5" in str(plan)
    assert "stored objects stay where they are" in str(plan)
    plan = zd.ome.migrate(
        tmp_path / "old", dst=tmp_path / "new", shards={"z": -1}, chunks={"x": 4}, dry_run=True
    )
    assert "6 arrays" in str(plan)
    assert "s0: (9, 20, 17) uint16, chunks (8, 8, 8) -> (8, 8, 4) in shards" in str(plan)
    assert files(tmp_path) == before


class Stop(Exception):  # noqa: N818  (no error, but a stop)
    pass


def test_an_interrupted_migration_leaves_a_readable_image(tmp_path):
    """Stopped before each write and each removal in turn, it can be read, and be gone on with."""
    levels, cells = put_labelled(tmp_path / "old", "0.4", shape=(2, 8, 8))
    stopped, count = True, 0
    while stopped:
        place = to_copy(tmp_path, tmp_path / "old", f"n{count}")
        left = [count]

        def fault(verb, key, left=left):
            if verb in {"set", "delete"}:
                left[0] -= 1
                if left[0] < 0:
                    raise StoreError("stopped")

        stopped = False
        try:
            zd.ome.migrate(HookStore(LocalStore(place), fault), remove_old=True)
        except StoreError:
            stopped = True
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", zd.errors.ZarrDaskWarning)
            image = zd.ome.open(place)
            same(image, levels)
            same(image.labels["cells"], cells)
            zd.ome.migrate(place, remove_old=True)
        assert zd.ome.validate(place) == []
        assert {n.rpartition("/")[2] for n in documents(files(place))} == {"zarr.json"}
        shutil.rmtree(place)
        count += 3
    assert count > 20


def killed_at(tmp_path, removals):
    """Killed before a removal, it can be read and is right; the same call ends it."""
    levels, cells = put_labelled(tmp_path, "0.4", shape=(2, 8, 8))
    process = start(migrate_until, str(tmp_path), removals)
    process.join(PATIENCE)
    left = [name for name in files(tmp_path) if name.endswith((".zarray", ".zattrs", ".zgroup"))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", zd.errors.ZarrDaskWarning)
        image = zd.ome.open(tmp_path)
        assert image.metadata.version == "0.5"
        same(image, levels)
        same(image.labels["cells"], cells)
        assert zd.ome.validate(tmp_path) == []
        zd.ome.migrate(tmp_path, remove_old=True)
    assert zd.ome.validate(tmp_path) == []
    same(zd.ome.open(tmp_path), levels)
    assert {n.rpartition("/")[2] for n in documents(files(tmp_path))} == {"zarr.json"}
    return process.exitcode, len(left)


@pytest.mark.parametrize("removals", [5, 17])
def test_killed_while_old_documents_are_removed(tmp_path, removals):
    code, left = killed_at(tmp_path, removals)
    assert (code, left) == (-signal.SIGKILL, 18 - removals)


@pytest.mark.slow
def test_killed_before_each_removal(tmp_path):
    found = [killed_at(tmp_path / str(removals), removals) for removals in range(19)]
    assert [code for code, _ in found] == [-signal.SIGKILL] * 18 + [0]


def test_metadata_that_change_meanwhile(tmp_path):
    put_labelled(tmp_path, "0.4")
    plan = zd.ome.plan_migration(tmp_path)
    zd.open_group(tmp_path, "labels/cells", mode="r+").update_attributes({"late": 1})
    before = files(tmp_path)
    with pytest.raises(MetadataChangedError):
        plan.run()
    assert files(tmp_path) == before


def test_consolidated_metadata_are_those_of_the_new_version(tmp_path):
    levels, _ = put_labelled(tmp_path, "0.4")
    zd.consolidate(tmp_path)
    zd.ome.migrate(tmp_path, remove_old=True)
    group = zd.open_group(tmp_path)
    assert group.stale() == []
    same(zd.ome.open(tmp_path), levels)
    assert zarr.open_consolidated(tmp_path)["labels/cells"].attrs["ome"]["version"] == "0.5"


# --- back to 0.4 ----------------------------------------------------------------------------------


def test_there_and_back(tmp_path, public_data):
    from tests.support.ome_peers import by_models, by_ngff_zarr, by_ome_zarr, schema_problems

    levels, cells = put_labelled(tmp_path / "old", "0.4")
    zd.ome.migrate(tmp_path / "old", dst=tmp_path / "new")
    plan = zd.ome.migrate(tmp_path / "new", "0.4", tmp_path / "back")
    assert (plan.old, plan.new, plan.anew) == ("0.5", "0.4", ())
    image = zd.ome.open(tmp_path / "back")
    assert (image.metadata.version, image.group.format) == ("0.4", "v2")
    same(image, levels)
    same(image.labels["cells"], cells)
    assert zd.ome.validate(tmp_path / "back") == []
    assert schema_problems(public_data, tmp_path / "back", "0.4") == []
    assert by_models(tmp_path / "back", "0.4") == "Image"
    for found in (by_ome_zarr(tmp_path / "back"), by_ngff_zarr(tmp_path / "back")):
        np.testing.assert_array_equal(found[0].compute(scheduler="sync"), levels[0])
    # the same attributes, but for a version that 0.4 has no rule about
    for path in ("", "labels", "labels/cells"):
        first = zd.open_group(tmp_path / "old", path).attributes.copy()
        last = zd.open_group(tmp_path / "back", path).attributes.copy()
        first.get("omero", {}).pop("version", None)
        for one in first.get("multiscales", ()):
            one["version"] = "0.4"
        assert first == last
    # and the same bytes under the same keys
    first, last = files(tmp_path / "old"), files(tmp_path / "back")
    assert {n: v for n, v in first.items() if "/.z" not in f"/{n}"} == {
        n: v for n, v in last.items() if "/.z" not in f"/{n}"
    }


def put_array(root, name, **options):
    options = {"shape": (4, 8, 8), "dtype": "u2", "chunks": (2, 4, 4)} | options
    array = zd.create_array(
        root, name, dimension_names=("z", "y", "x"), overwrite=True, format="v3", **options
    )
    array[...] = pixels(*array.shape).astype(array.dtype)
    return array


@pytest.mark.parametrize(
    ("options", "field", "says"),
    [
        ({"shards": (4, 8, 8)}, "shards", "no shards"),
        ({"dtype": "bfloat16"}, "dtype", "a data type that v2 can name"),
        ({"codecs": [TURNED, LITTLE]}, "order", "order 'C' or 'F'"),
        ({"chunks": ((1, 3), 4, 4)}, "chunks", "chunks of one shape"),
        ({"codecs": [BIG, {"name": "crc32c"}]}, "", ""),
        ({"codecs": [REVERSED, LITTLE]}, "", ""),
    ],
)
def test_what_0_4_cannot_say_is_named(tmp_path, options, field, says):
    levels = put_image(tmp_path / "new", "", "0.5", pixels(4, 8, 8))
    array = put_array(tmp_path / "new", "s0", **options)
    values = array[...]
    if not field:  # it can
        zd.ome.migrate(tmp_path / "new", "0.4", tmp_path / "old")
        np.testing.assert_array_equal(zd.ome.open(tmp_path / "old").levels[0].array[...], values)
        return
    plan = zd.ome.migrate(tmp_path / "new", "0.4", tmp_path / "old", dry_run=True)
    assert [(path, one.field) for path, one in plan.refusals] == [("s0", field)]
    assert says in str(plan)
    with pytest.raises(MigrationError, match=says):
        zd.ome.migrate(tmp_path / "new", "0.4", tmp_path / "old")
    assert not (tmp_path / "old").exists()
    if field != "dtype":  # written anew, it can
        plain = zd.ome.migrate(tmp_path / "new", "0.4", tmp_path / "old", chunks=4, codecs=[])
        assert len(plain.anew) == 3
        same(zd.ome.open(tmp_path / "old"), [values, *levels[1:]])
        assert zd.ome.validate(tmp_path / "old") == []


def test_attributes_in_the_way(tmp_path):
    put_image(tmp_path / "new", "", "0.5", pixels(4, 8, 8))
    zarr.open_group(tmp_path / "new", mode="a").attrs["multiscales"] = "mine"
    with pytest.raises(MigrationError, match=r"multiscales: got.*'mine'"):
        zd.ome.migrate(tmp_path / "new", "0.4", tmp_path / "old")
    put_image(tmp_path / "older", "", "0.4", pixels(4, 8, 8))
    zarr.open_group(tmp_path / "older", mode="a", zarr_format=2).attrs["ome"] = "mine"
    with pytest.raises(MigrationError, match="ome: got 'mine'"):
        zd.ome.migrate(tmp_path / "older")


# --- other chunks, shards and codecs --------------------------------------------------------------


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_a_pyramid_is_sharded_on_the_way(tmp_path, version):
    levels, cells = put_labelled(tmp_path / "old", version)
    seen = []
    plan = zd.ome.plan_migration(
        tmp_path / "old",
        dst=tmp_path / "new",
        chunks={"z": 1, "y": 4, "x": 4},
        shards={"z": 2, "y": 16, "x": 16},
        codecs=[LITTLE, {"name": "gzip", "configuration": {"level": 1}}],
        max_mem="100MB",
    )
    plan.run(progress=seen.append)
    assert sum(seen) == plan.nbytes
    image = zd.ome.open(tmp_path / "new")
    same(image, levels)
    same(image.labels["cells"], cells)
    for level in (*image.levels, *image.labels["cells"].levels):
        assert (level.array.chunks, level.array.shards) == ((1, 4, 4), (2, 16, 16))
        assert [codec.name for codec in level.array.meta.codecs.serializer.codecs.bytes] == ["gzip"]
        assert level.array.dimension_names == ("z", "y", "x")
    assert zd.ome.validate(tmp_path / "new") == []
    assert zd.verify(tmp_path / "new").ok


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_an_image_is_sharded_in_its_place(tmp_path, version):
    levels, cells = put_labelled(tmp_path / "image", version)
    (tmp_path / "image/notes.txt").write_text("mine")
    before = files(tmp_path)
    with pytest.raises(ValueError, match=r"would be lost: notes\.txt"):
        zd.ome.migrate(tmp_path / "image", chunks=4)
    assert files(tmp_path) == before
    (tmp_path / "image/notes.txt").unlink()
    layout = {"chunks": {"z": 2, "y": 4, "x": 4}, "shards": {"z": 4, "y": 16, "x": 16}}
    said = str(zd.ome.migrate(tmp_path / "image", **layout, dry_run=True))
    assert "in place: written beside it" in said
    assert "swap" not in said
    assert "old        the old hierarchy is removed" in said
    zd.ome.migrate(tmp_path / "image", **layout)
    assert zd.ome.validate(tmp_path / "image") == []
    same(zd.ome.open(tmp_path / "image"), levels)
    same(zd.ome.open(tmp_path / "image").labels["cells"], cells)
    first = zd.ome.open(tmp_path / "image").level(0).array
    assert (first.chunks, first.shards) == ((2, 4, 4), (4, 16, 16))
    assert left_in(tmp_path) == {"image"}
    assert not [name for name in files(tmp_path / "image") if "zarr-dask" in name]


def test_a_failure_leaves_the_image_in_its_place(tmp_path):
    put_labelled(tmp_path / "image", "0.5")
    (tmp_path / "image/s1/c/0/0/0").write_bytes(b"damaged")
    before = files(tmp_path)
    with pytest.raises(zd.errors.CorruptObjectError):
        zd.ome.migrate(tmp_path / "image", chunks={"y": 4})
    found = files(tmp_path)
    assert {name: found[name] for name in found if name.startswith("image/")} == before
    assert left_in(tmp_path) == {"image"}


def test_labels_without_an_axis_of_their_image(tmp_path):
    put_image(tmp_path / "old", "", "0.4", pixels(4, 8, 8))
    put_image(tmp_path / "old", "labels/cells", "0.4", pixels(8, 8, dtype="i4"), names="yx")
    labels = zarr.open_group(tmp_path / "old", path="labels", mode="a", zarr_format=2)
    labels.attrs["labels"] = ["cells"]
    chunks = {"z": -1, "y": 2}
    zd.ome.migrate(tmp_path / "old", dst=tmp_path / "new", chunks=chunks)
    image = zd.ome.open(tmp_path / "new")
    assert image.levels[0].array.chunks == (4, 2, 8)
    assert image.labels["cells"].levels[0].array.chunks == (2, 8)
    with pytest.raises(ValueError, match="no image has an axis q; there are x, y, z"):
        zd.ome.migrate(tmp_path / "old", dst=tmp_path / "other", chunks={"q": 1})
    with pytest.raises(MigrationError, match=r"labels/cells/s0.*expected 2 lengths"):
        zd.ome.migrate(tmp_path / "old", dst=tmp_path / "other", chunks=(1, 2, 2))
    assert not (tmp_path / "other").exists()


def test_an_interrupted_resharding_is_gone_on_with(tmp_path):
    levels, cells = put_labelled(tmp_path / "old", "0.4")
    options = {"dst": tmp_path / "new", "shards": 8, "chunks": 4}
    plan = zd.ome.plan_migration(tmp_path / "old", **options)

    def stop(nbytes):
        raise Stop

    with pytest.raises(Stop):
        plan.run(progress=stop)
    with pytest.raises(MetadataError):
        zd.ome.open(tmp_path / "new")  # no reader takes it for an image
    again = zd.ome.plan_migration(tmp_path / "old", resume=True, **options)
    report = again.run(resume=True)
    assert 0 < report.arrays.tasks < plan.arrays.tasks  # none of them twice
    assert zd.ome.plan_migration(tmp_path / "old", resume=True, **options).run(resume=True)
    image = zd.ome.open(tmp_path / "new")
    same(image, levels)
    same(image.labels["cells"], cells)


@pytest.mark.parametrize("to", ["0.4", "0.5"])
@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_consolidated_metadata_of_arrays_that_are_written_anew(tmp_path, version, to):
    levels, cells = put_labelled(tmp_path / "old", version)
    zd.consolidate(tmp_path / "old")
    options = {"dst": tmp_path / "new", "chunks": 4}
    plan = zd.ome.migrate(tmp_path / "old", to, **options)
    assert plan.consolidated == ("",)
    assert "consolidated metadata are written anew" in str(plan)
    for _ in range(2):
        group = zd.open_group(tmp_path / "new")
        assert group.stale() == []
        assert "labels/cells/s0" in zarr.open_consolidated(tmp_path / "new")
        same(zd.ome.open(tmp_path / "new"), levels)
        same(zd.ome.open(tmp_path / "new").labels["cells"], cells)
        # the same call once more does no harm
        zd.ome.migrate(tmp_path / "old", to, resume=True, **options)


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_a_level_that_lies_elsewhere(tmp_path, version):
    put_image(tmp_path / "i", "", version, pixels(4, 8, 8))
    group = zarr.open_group(tmp_path / "i", mode="a")
    attributes = dict(group.attrs)
    members = attributes["ome"] if version == "0.5" else attributes
    members["multiscales"][0]["datasets"][1]["path"] = "../../elsewhere"
    group.attrs.update(attributes)
    with pytest.raises(MetadataError, match=r"datasets\[1\]\.path: got '../../elsewhere'"):
        zd.ome.open(tmp_path / "i")
    (found,) = zd.ome.validate(tmp_path / "i")
    assert found.place == "../../elsewhere"
    other = "0.4" if version == "0.5" else "0.5"
    with pytest.raises(MigrationError, match=r"multiscales\[0\]\.datasets\[1\]\.path"):
        zd.ome.migrate(tmp_path / "i", other, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_arguments_that_do_not_go_together(tmp_path):
    put_labelled(tmp_path / "old", "0.4")
    put_labelled(tmp_path / "new", "0.5")
    before = files(tmp_path)
    for options, says in (
        ({"to": "0.3"}, "expected '0.4' or '0.5'"),
        ({"chunks": 4, "resume": True}, "begins anew"),
        ({"dst": tmp_path / "x", "remove_old": True}, "remove_old"),
        ({"to": "0.4", "dst": tmp_path / "x", "shards": 8}, "without shards"),
        ({"path": "labels/cells"}, "belongs to"),
    ):
        with pytest.raises(ValueError, match=says):
            zd.ome.migrate(tmp_path / "old", **options)
    with pytest.raises(MigrationError, match=r"s0: .*got .*'shards': .*are not a multiple of"):
        zd.ome.migrate(tmp_path / "new", chunks={"y": 4, "x": 4}, shards={"y": 6, "x": 6})
    with pytest.raises(ValueError, match="pass dst"):
        zd.ome.migrate(tmp_path / "new", to="0.4")
    with pytest.raises(SourceIsTargetError):
        zd.ome.migrate(tmp_path / "old", dst=tmp_path / "old" / "inside")
    with pytest.raises(zd.errors.NodeNotFoundError):
        zd.ome.migrate(tmp_path / "nothing")
    assert files(tmp_path) == before


def test_metadata_that_cannot_be_migrated(tmp_path):
    root = zarr.open_group(tmp_path / "a", mode="w", zarr_format=2)
    with pytest.raises(MetadataError, match=r"metadata of a group, as zarr_dask\.ome\.write"):
        zd.ome.migrate(tmp_path / "a")
    root.attrs["multiscales"] = [{"version": "0.7", "datasets": [{"path": "0"}]}]
    with pytest.raises(OmeVersionError, match=r"0\.7"):
        zd.ome.migrate(tmp_path / "a")
    put_labelled(tmp_path / "b", "0.4")
    cells = zarr.open_group(tmp_path / "b", path="labels/cells", mode="a", zarr_format=2)
    cells.attrs["multiscales"] = [{"version": "0.1", "datasets": []}]
    with pytest.raises(MigrationError, match=r"labels/cells: OME-Zarr version: got '0\.1'"):
        zd.ome.migrate(tmp_path / "b")
    put_labelled(tmp_path / "c", "0.4")
    shape = {"shape": (4, 4), "dtype": "u2", "zarr_format": 2, "overwrite": True}
    zarr.create_array(tmp_path / "c", name="s1", **shape)
    with pytest.raises(MigrationError, match=r"s1: shape: got .4, 4., expected one dimension"):
        zd.ome.migrate(tmp_path / "c")


def test_in_memory(tmp_path):
    store = MemoryStore()
    put_labelled(tmp_path, "0.4")
    for name, text in files(tmp_path).items():
        store.set(name, [text])
    zd.ome.migrate(store, remove_old=True)
    other = MemoryStore()
    zd.ome.migrate(store, "0.4", other, chunks=4)
    assert zd.ome.validate(other) == []
