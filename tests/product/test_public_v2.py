"""Stores of format v2 that other projects published, read as their writers meant them.

What they hold is known from zarr-python 3 where that reads them, from the image that was put in,
and from arrays beside them that hold the same. zarr-python 2 reads them all in
``tests/product/zarr2``.
"""

from __future__ import annotations

import zipfile

import numpy as np
import pytest
import zarr

import zarr_dask as zd

UNREAD_BY_PEER = {
    "14/0": "fill value 0 of bytes",
    "14/3": "fill value 0 of bytes",
    "15/0": "fill value 0 of texts",
    "15/4": "fill value 0 of texts",
    "1d.contiguous.json2.O": "json2",
}


@pytest.fixture(scope="module")
def fixture(public_data, tmp_path_factory):
    """What zarr-python 2 keeps to be compatible with: 24 kinds of arrays, and a few stores."""
    return _unzipped(public_data / "zarr_python_v2_fixture" / "data.zip", tmp_path_factory)


@pytest.fixture(scope="module")
def implementations(public_data, tmp_path_factory):
    return _unzipped(public_data / "zarr_implementations" / "data.zip", tmp_path_factory)


def _unzipped(archive, tmp_path_factory):
    folder = tmp_path_factory.mktemp(archive.parent.name)
    with zipfile.ZipFile(archive) as opened:
        opened.extractall(folder)
    return folder


def arrays_below(root):
    return sorted(path.parent for path in root.rglob(".zarray"))


def check(root, count):
    arrays = arrays_below(root)
    assert len(arrays) == count
    unread = set()
    for path in arrays:
        name = str(path.relative_to(root))
        array = zd.open_array(path)
        values = array[...]
        if name in UNREAD_BY_PEER:
            unread.add(name)
            continue
        peer = zarr.open_array(path, mode="r", zarr_format=2)
        assert array.shape == peer.shape
        assert array.chunks == peer.chunks
        assert array.attributes == dict(peer.attrs)
        assert equal(values, np.asarray(peer[...])), name
        part = tuple(slice(n // 3, None, 2) for n in array.shape)
        assert equal(array[part], values[part])
    return unread


def equal(got, want):
    """Equal element by element; numbers bit by bit."""
    got, want = np.asarray(got), np.asarray(want)
    if got.dtype.kind in "OT" or want.dtype.kind in "OT":
        return got.shape == want.shape and got.tolist() == want.tolist()
    return got.shape == want.shape and got.tobytes() == want.astype(got.dtype).tobytes()


@pytest.mark.filterwarnings("ignore::UserWarning:zarr")
def test_the_fixture_of_zarr_python(fixture):
    assert check(fixture, 53) == {name for name in UNREAD_BY_PEER if "/" in name}
    for bare, packed in (("14/0", "14/3"), ("15/0", "15/4")):
        array = zd.open_array(fixture, bare)
        assert array.dtype.kind == ("S" if bare == "14/0" else "U")
        assert array.fill_value == array.dtype.type()
        assert equal(array[...], zd.open_array(fixture, packed)[...])
        assert len(set(array[...].tolist())) > 1
    assert zd.open_group(fixture, "utf8attrs").attributes == {"foo": "た"}


def test_separators_of_the_fixture(fixture):
    want = zd.open_array(fixture / "flat")[...]
    assert want.any()
    for name in ("flat_legacy", "nested"):
        np.testing.assert_array_equal(zd.open_array(fixture / name)[...], want)
    legacy = fixture / "nested_legacy"  # its chunks are nested, and its document does not say so
    assert not zd.open_array(legacy)[...].any()
    with pytest.raises(zd.errors.ChunkMissingError, match="dimension_separator='/'"):
        zd.open_array(legacy, read=zd.ReadOptions(missing="error"))[...]
    nested = zd.open_array(legacy, read=zd.ReadOptions(dimension_separator="/"))
    np.testing.assert_array_equal(nested[...], want)


@pytest.mark.parametrize("name", ["blosc", "gzip"])
def test_the_image_of_zarr_implementations(implementations, public_data, name):
    from matplotlib.image import imread

    image = imread(public_data / "zarr_implementations" / "reference_image.png")
    array = zd.open_array(implementations / "zarr.zr" / name)
    np.testing.assert_array_equal(array[...], np.rint(image * 255).astype("u1"))
    np.testing.assert_array_equal(array[100:110, ::7], array[...][100:110, ::7])
    group = zd.open_group(implementations / "zarr.zr")
    assert [path for path, _ in group.arrays()] == ["blosc", "gzip"]


@pytest.mark.filterwarnings("ignore::UserWarning:zarr")
def test_the_arrays_of_zarrita(public_data):
    root = public_data / "zarrita_js" / "v2" / "data.zarr"
    assert check(root, 32) == {"1d.contiguous.json2.O"}
    objects = zd.open_array(root / "1d.contiguous.json2.O")
    assert len(objects[...]) == objects.shape[0]
    big, little = (zd.open_array(root / f"1d.contiguous.U13.{end}e") for end in "bl")
    assert big[...].tolist() == little[...].tolist()
    assert zd.open_group(root / "my group with spaces").format == "v2"
