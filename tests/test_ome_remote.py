"""OME-Zarr over HTTP and in a bucket: read, looked at, checked and brought to another version."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest
from http_server import Files, serving

import zarr_dask as zd
from tests.object_stores import s3_server
from tests.test_ome_migrate import put_labelled, same
from tests.test_ome_read import pixels, put_plate
from zarr_dask.errors import ListingError

NUMBERS = count()
pytestmark = pytest.mark.xdist_group("s3")


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
        with pytest.raises(ListingError, match="HTTP has no listing"):
            zd.ome.migrate(f"{url}/image", dst=tmp_path / "copy")
    np.testing.assert_array_equal(mosaic[:4, :4], wells["A/1"][::2, ::2])
    np.testing.assert_array_equal(mosaic[4:, 8:], wells["B/3"][::2, ::2])


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
