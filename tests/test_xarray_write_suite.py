"""xarray's own tests of writing Zarr, with this package's writer in the place of xarray's.

What they write with ``to_zarr`` goes through `zarr_dask.write_dataset`; what they read is read by
xarray and zarr-python. `DIFFERENT` lists the tests that cannot pass, each with its reason.
"""

from __future__ import annotations

import pytest
import xarray as xr
import zarr
from xarray.tests import test_backends, test_backends_datatree

# fixtures of the tests below
from xarray.tests.conftest import (  # noqa: F401
    create_test_datatree,
    simple_datatree,
    time_unit,
    use_dask,
)
from xarray.tests.test_backends import default_zarr_format, tmp_store  # noqa: F401
from xarray.tests.test_backends_datatree import unaligned_datatree_zarr_factory  # noqa: F401

import zarr_dask.xarray.accessor  # noqa: F401

pytestmark = pytest.mark.filterwarnings("default")


def to_zarr(held, store=None, mode=None, group=None, encoding=None, **options):
    if store is None:
        store = zarr.storage.MemoryStore()
    if mode in (None, "w", "w-") and not {"append_dim", "region"} & options.keys():
        options.setdefault("zarr_format", zarr.config.get("default_zarr_format"))
    found = held.zd.to_zarr(store, mode, group, encoding, **options)
    return found


class Through:
    """Writes what xarray's tests write through our writer."""

    @pytest.fixture(autouse=True)
    def in_place_of_zarr(self, request, monkeypatch):
        for mark in request.node.iter_markers("skip_if_param"):
            skip_if_parameters_say(request.node, dict(mark.kwargs))
        for kind in (xr.Dataset, xr.DataArray, xr.DataTree):
            monkeypatch.setattr(kind, "to_zarr", to_zarr)


def skip_if_parameters_say(item, given):
    reason = given.pop("reason", "")
    if given.pop("condition", True) and all(
        item.callspec.params.get(name) == value for name, value in given.items()
    ):
        pytest.skip(reason)


class TestZarrDirectoryStore(Through, test_backends.TestZarrDirectoryStore):
    pass


class TestZarrRegionAuto(Through, test_backends.TestZarrRegionAuto):
    pass


class TestDataArrayToZarr(Through, test_backends.TestDataArrayToZarr):
    pass


class TestZarrDatatreeIO(Through, test_backends_datatree.TestZarrDatatreeIO):
    pass
