"""Hierarchies of the v3 draft that other projects published: of GDAL (2022) and zarrita (2021)."""

from __future__ import annotations

import zipfile

import numpy as np
import pytest

import zarr_dask as zd


@pytest.fixture(scope="module")
def zarrita(public_data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("zarr_implementations")
    with zipfile.ZipFile(public_data / "zarr_implementations" / "data.zip") as archive:
        names = [name for name in archive.namelist() if name.startswith("zarrita.zr3/")]
        archive.extractall(folder, names)
    return folder / "zarrita.zr3"


@pytest.fixture(scope="module")
def picture(public_data):
    from PIL import Image  # matplotlib brings it

    with Image.open(public_data / "zarr_implementations" / "reference_image.png") as image:
        return np.asarray(image)


@pytest.mark.parametrize("name", ["raw", "gzip", "zlib", "blosc/lz4"])
def test_the_picture_in_zarrita(name, zarrita, picture):
    array = zd.open_array(zarrita, name)
    assert array.format == "v3draft-2022-05"
    assert picture.shape == (512, 512, 3)
    np.testing.assert_array_equal(array[...], picture)
    np.testing.assert_array_equal(array[95:205, 500:, 1], picture[95:205, 500:, 1])


def test_the_tree_of_zarrita(zarrita):
    kinds = {path: type(node).__name__ for path, node in zd.open_group(zarrita).walk()}
    assert kinds == {
        "blosc": "Group",
        "blosc/lz4": "Array",
        "gzip": "Array",
        "raw": "Array",
        "zlib": "Array",
    }


@pytest.fixture
def gdal(public_data):
    return public_data / "gdal_draft_v3" / "test.zr3"


def test_arrays_of_gdal(gdal):
    """Beside the values, what its test suite checks of this hierarchy."""
    with pytest.warns(zd.errors.ZarrDaskWarning, match="both an array and a group"):
        root = zd.open_array(gdal)
    assert (root.shape, root.dtype, root.chunks) == ((5, 10), np.dtype("i4"), (2, 5))
    assert root.attributes == {"f": "bar"}
    wanted = np.ones((5, 10), "i4")
    wanted[0, 0] = 2
    np.testing.assert_array_equal(root[...], wanted)
    inflated = zd.open_array(gdal, "ar")
    assert (inflated.shape, inflated.dtype) == ((2,), np.dtype("u1"))
    assert inflated[...].tolist() == [1, 2]
    android = zd.open_array(gdal, "marvin/android")
    assert (android.shape, android.dtype) == ((5, 4), np.dtype("?"))
    # c3 lies outside of the array; the document names 3 chunks of 2 along the first dimension
    assert android[...].all()


def test_groups_of_gdal(gdal):
    marvin = zd.open_group(gdal, "marvin")
    assert marvin.attributes == {"foo": "bar"}
    assert dict(marvin.groups())["paranoid"].attributes == {}  # null in its document
    assert list(marvin) == ["android", "paranoid"]
