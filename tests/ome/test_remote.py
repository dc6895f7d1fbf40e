"""OME-Zarr over HTTP, in a bucket and in an archive: read, written, brought to another version."""

from __future__ import annotations

import zipfile
from itertools import count

import numpy as np
import pytest
import zarr

import zarr_dask as zd
from tests.support.http_server import Files, serving
from tests.support.object_stores import s3_server
from tests.support.ome_images import pixels, put_image, put_plate
from tests.support.ome_labelled import put_labelled, same
from tests.support.ome_levels import ORACLES
from zarr_dask.errors import NodeExistsError, NodeNotFoundError, StoreError
from zarr_dask.journal.finished import is_record
from zarr_dask.stores.wrappers.base import HookStore

NUMBERS = count()


@pytest.fixture(params=["0.4", "0.5"])
def version(request):
    return request.param


def values_below(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_over_http(tmp_path, version):
    levels, cells = put_labelled(tmp_path / "image", version)
    wells = {"A/1": pixels(8, 8), "B/3": pixels(8, 8) + np.uint16(9)}
    put_plate(tmp_path / "plate", version, wells)
    with serving(Files, values_below(tmp_path)) as (url, seen):
        image = zd.ome.open(f"{url}/image")
        assert not [path for path in map(str, seen) if "/0/0" in path]  # documents only
        same(image, levels)
        same(image.labels["cells"], cells)
        np.testing.assert_array_equal(image.to_dask(1).compute(scheduler="sync"), levels[1])
        assert image.level(shape={"y": 5}).shape == levels[2].shape
        assert zd.ome.thumbnail(f"{url}/image", size=8).shape == (8, 7, 3)
        assert "data:image/png" in image._repr_html_()
        assert zd.ome.validate(f"{url}/image", strict=True) == zd.ome.validate(
            tmp_path / "image", strict=True
        )
        mosaic = zd.ome.open_plate(f"{url}/plate").mosaic(level=1).compute(scheduler="sync")
    np.testing.assert_array_equal(mosaic[:4, :4], wells["A/1"][::2, ::2])
    np.testing.assert_array_equal(mosaic[4:, 8:], wells["B/3"][::2, ::2])


@pytest.mark.parametrize("anew", [False, True])
def test_migrated_from_http(tmp_path, version, anew):
    """HTTP has no listing, but the metadata name what there is."""
    levels, cells = put_labelled(tmp_path / "image", version)
    put_plate(
        tmp_path / "plate", version, {"A/1": pixels(8, 8), "B/3": pixels(8, 8) + np.uint16(9)}
    )
    zd.create_array(
        tmp_path / "image", "labels/cells/s2", shape=(3, 5, 5), dtype="i4", chunks=2,
        overwrite=True, format="v3" if version == "0.5" else "v2", dimension_names=["z", "y", "x"],
    )  # fmt: skip
    zd.open_array(tmp_path / "image", "labels/cells/s2", "r+")[2:] = 7  # other chunks are absent
    cells[2] = np.zeros((3, 5, 5), "i4")
    cells[2][2:] = 7
    to = "0.4" if version == "0.5" else "0.5"
    options = {"chunks": 4} if anew else {}
    with serving(Files, values_below(tmp_path)) as (url, _):
        plan = zd.ome.migrate(f"{url}/image", to, tmp_path / "copy", **options)
        zd.ome.migrate(f"{url}/plate", to, tmp_path / "plate-copy", **options)
    assert zd.ome.validate(tmp_path / "copy") == zd.ome.validate(tmp_path / "plate-copy") == []
    image = zd.ome.open(tmp_path / "copy")
    assert image.metadata.version == to
    same(image, levels)
    same(image.labels["cells"], cells)
    if not anew:
        copied = [path for path in (tmp_path / "copy").rglob("*") if path.name.isdecimal()]
        assert sum(path.is_file() for path in copied) == plan.metadata.objects
    found, before = (zd.ome.open_plate(tmp_path / name) for name in ("plate-copy", "plate"))
    np.testing.assert_array_equal(
        found.mosaic().compute(scheduler="sync"), before.mosaic().compute(scheduler="sync")
    )


def test_collections_over_http(tmp_path):
    """Named by a list, or counted; and what only consolidated metadata name."""
    for name, series in (("a", ["1", "0"]), ("b", None)):
        root = zarr.open_group(tmp_path / name, mode="w", zarr_format=2)
        root.attrs["bioformats2raw.layout"] = 3
        for path in ("0", "1"):
            put_image(tmp_path / name, path, "0.4", pixels(4, 8, 8))
        if series:
            ome = zarr.open_group(tmp_path / name, path="OME", mode="a", zarr_format=2)
            ome.attrs["series"] = series
        (tmp_path / name / "OME").mkdir(exist_ok=True)
        (tmp_path / name / "OME" / "METADATA.ome.xml").write_text("<OME/>")
    zd.create_array(tmp_path / "b", "mine", shape=(4,), dtype="u1", format="v2")[...] = 5
    zd.consolidate(tmp_path / "b")
    with serving(Files, values_below(tmp_path)) as (url, _):
        for name in "ab":
            zd.ome.migrate(f"{url}/{name}", dst=tmp_path / f"{name}2")
    for name in "ab":
        assert zd.ome.validate(tmp_path / f"{name}2") == []
        assert zd.ome.open(tmp_path / f"{name}2", "1").levels[0].shape == (4, 8, 8)
        assert (tmp_path / f"{name}2" / "OME" / "METADATA.ome.xml").read_text() == "<OME/>"
    assert zd.open_array(tmp_path / "b2", "mine")[...].tolist() == [5] * 4


@pytest.fixture(scope="module")
def server():
    with s3_server() as running:
        yield running


@pytest.mark.parametrize("backend", ["obstore", pytest.param("fsspec", marks=pytest.mark.slow)])
def test_in_a_bucket(tmp_path, server, backend):
    options = {**server.options, "backend": backend}
    url = f"s3://bucket/ome-{next(NUMBERS)}"
    levels, cells = put_labelled(tmp_path, "0.4")
    store = zd.stores.open_store(f"{url}/image", options)
    for key, value in values_below(tmp_path).items():
        store.set(key, [value])
    same(zd.ome.open(f"{url}/image", storage_options=options), levels)
    plan = zd.ome.migrate(f"{url}/image", storage_options=options, remove_old=True)
    assert plan.old == "0.4"
    image = zd.ome.open(f"{url}/image", storage_options=options)
    assert image.metadata.version == "0.5"
    same(image, levels)
    same(image.labels["cells"], cells)
    assert zd.ome.validate(f"{url}/image", storage_options=options) == []
    assert not [key for key in store.list() if key.rpartition("/")[2].startswith(".z")]
    back = {"storage_options": options, "target_options": options}
    zd.ome.migrate(f"{url}/image", "0.4", f"{url}/back", chunks=8, **back)
    again = zd.ome.open(f"{url}/back", storage_options=options)
    assert again.metadata.version == "0.4"
    same(again, levels)
    assert zd.ome.thumbnail(f"{url}/back", storage_options=options).shape == (20, 17, 3)


# --- written --------------------------------------------------------------------------------------


def check_written(url, values, options=None):
    """An image with labels, and what is added to it, wherever it is."""
    remote = {"storage_options": options}
    cells = values[0].astype("i4") % 7
    zd.ome.write(
        values, url, axes="cyx", chunks=(1, 8, 8), levels=2, labels={"first": cells}, **remote
    )
    zd.ome.write_labels(url, cells, "second", colors={1: "#00ff00"}, **remote)
    zd.ome.add_level(url, **remote)
    image = zd.ome.open(url, **remote)
    expected = values
    for level in image.levels:
        np.testing.assert_array_equal(level.array[...], expected)
        expected = ORACLES["mean"](expected, (1, 2, 2))
    assert list(image.labels) == ["first", "second"]
    for label in image.labels.values():
        assert len(label.levels) == 3
        np.testing.assert_array_equal(label.levels[2].array[...], cells[::4, ::4])
    assert zd.ome.validate(url, **remote) == []
    with pytest.raises(NodeExistsError):
        zd.ome.write(values, url, axes="cyx", **remote)
    zd.ome.write(values[:1], url, axes="cyx", overwrite=True, **remote)
    assert zd.ome.open(url, **remote).levels[0].shape == (1, *values.shape[1:])
    assert not zd.ome.open(url, **remote).labels


@pytest.mark.parametrize("backend", ["obstore", pytest.param("fsspec", marks=pytest.mark.slow)])
def test_written_to_a_bucket(server, backend):
    options = {**server.options, "backend": backend}
    url = f"s3://bucket/ome-{next(NUMBERS)}"
    values = pixels(2, 20, 17) + np.uint16(1)
    check_written(f"{url}/image.zarr", values, options)
    target = {"storage_options": options, "axes": "yx", "levels": 2}
    zd.ome.write_plate({"A/1": values[0], "B/2": values[1]}, f"{url}/plate", **target)
    plate = zd.ome.open_plate(f"{url}/plate", storage_options=options)
    np.testing.assert_array_equal(plate["B/2"].field(0).levels[0].array[...], values[1])
    assert zd.ome.validate(f"{url}/plate", storage_options=options) == []
    # what a job that has died has left is gone on with
    failing = HookStore(zd.stores.open_store(f"{url}/later", options), fail_at("zarr.json"))
    wanted = {"axes": "cyx", "chunks": (1, 8, 8), "levels": 2, "resume": True}
    with pytest.raises(StoreError, match="stopped"):
        zd.ome.write(values, failing, **wanted)
    with pytest.raises(NodeNotFoundError, match="resume=True"):
        zd.ome.open(f"{url}/later", storage_options=options)
    zd.ome.write(values, f"{url}/later", storage_options=options, **wanted)
    assert zd.ome.validate(f"{url}/later", storage_options=options) == []
    stored = zd.stores.open_store(url, options).list()
    keys = [key for key in stored if not is_record(key.rpartition("/")[2])]
    assert {key.partition("/")[0] for key in keys} == {"image.zarr", "plate", "later"}


def fail_at(name):
    def fault(verb, key):
        if verb == "set" and key.rpartition("/")[2] == name:
            raise StoreError("stopped")

    return fault


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_written_to_an_archive(tmp_path, scheme):
    values = pixels(2, 20, 17) + np.uint16(1)
    place = f"{scheme}{tmp_path}/image.zarr.zip"
    check_written(place, values)
    assert zd.ome.open(place).multiscale.name == "image"
    zd.ome.write_plate({"A/1": values[0], "B/2": values[1]}, tmp_path / "p.zip", axes="yx")
    assert zd.ome.open_plate(tmp_path / "p.zip").mosaic().shape == (40, 34)
    assert zd.ome.validate(tmp_path / "p.zip") == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["image.zarr.zip", "p.zip"]


def test_brought_to_another_version_in_an_archive(tmp_path):
    levels, cells = put_labelled(tmp_path / "old", "0.4")
    place = tmp_path / "new.zip"
    zd.ome.migrate(tmp_path / "old", dst=place, dry_run=True)
    assert not place.exists()
    zd.ome.migrate(tmp_path / "old", dst=place)
    zd.ome.migrate(place, "0.4", tmp_path / "back.zip", chunks=4)
    zd.ome.migrate(tmp_path / "back.zip", remove_old=True)  # in place: the archive is made anew
    for name in ("new.zip", "back.zip"):
        image = zd.ome.open(tmp_path / name)
        assert image.metadata.version == "0.5"
        same(image, levels)
        same(image.labels["cells"], cells)
        assert zd.ome.validate(tmp_path / name) == []
    with zipfile.ZipFile(tmp_path / "back.zip") as archive:
        names = [name.rpartition("/")[2] for name in archive.namelist()]
    assert not [name for name in names if name.startswith(".z")]
