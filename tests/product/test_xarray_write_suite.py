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
    if isinstance(store, dict):  # as zarr-python wraps it, which reads it in these tests
        store = zarr.storage.MemoryStore(store)
    if mode in (None, "w", "w-") and not {"append_dim", "region"} & options.keys():
        options.setdefault("zarr_format", zarr.config.get("default_zarr_format"))
    return held.zd.to_zarr(store, mode, group, encoding, **options)


REGROUPED = "blocks that cut stored objects are regrouped, not refused; regions share objects"
FITTED = "what a variable brings along of grids that do not fit is left out, not refused"
DIFFERENT = {
    "test_shard_encoding[3]": FITTED,
    "test_shard_encoding_with_dask": REGROUPED,
    "test_chunk_encoding_with_dask": REGROUPED,
    "test_append_with_append_dim_no_overwrite": "coordinates that differ are refused (#11101)",
    "test_zarr_region_chunk_partial": REGROUPED,
    "test_zarr_append_chunk_partial": REGROUPED,
    "test_zarr_region_chunk_partial_offset": REGROUPED,
    "test_zarr_safe_chunk_append_dim": REGROUPED,
    "test_zarr_safe_chunk_region": REGROUPED,
    "test_to_zarr_compute_false[zarr_format=2]": "an array without fill value has no empty objects",
}
"""Tests by name, or by name and parameters, and why they cannot pass."""


class Through:
    """Writes what xarray's tests write through our writer."""

    @pytest.fixture(autouse=True)
    def in_place_of_zarr(self, request, monkeypatch):
        for mark in request.node.iter_markers("skip_if_param"):
            skip_if_parameters_say(request.node, dict(mark.kwargs))
        for kind in (xr.Dataset, xr.DataArray, xr.DataTree):
            monkeypatch.setattr(kind, "to_zarr", to_zarr)
        name = request.node.name
        reason = DIFFERENT.get(name) or DIFFERENT.get(name.partition("[")[0])
        if reason:
            request.node.add_marker(pytest.mark.xfail(reason=reason, strict=True))


def skip_if_parameters_say(item, given):
    reason = given.pop("reason", "")
    if given.pop("condition", True) and all(
        item.callspec.params.get(name) == value for name, value in given.items()
    ):
        pytest.skip(reason)


QUICK = {
    *("test_zero_dimensional_variable", "test_roundtrip_object_dtype", "test_roundtrip_endian"),
    *("test_roundtrip_string_data", "test_roundtrip_numpy_datetime_data", "test_append_write"),
    *("test_roundtrip_timedelta_data", "test_roundtrip_coordinates", "test_write_region_errors"),
    *(
        "test_roundtrip_mask_and_scale",
        "test_hidden_zarr_keys",
        "test_group",
        "test_write_region_mode",
    ),
    *(
        "test_roundtrip_bytes_with_fill_value",
        "test_encoding_kwarg",
        "test_append_with_new_variable",
    ),
}


class TestWriting(Through, test_backends.TestZarrDirectoryStore):
    """What most of the others are variations of."""


for _name in dir(TestWriting):
    if _name.startswith("test_") and _name not in QUICK:
        setattr(TestWriting, _name, None)  # pytest collects no None


@pytest.mark.slow
class TestZarrDirectoryStore(Through, test_backends.TestZarrDirectoryStore):
    pass


@pytest.mark.slow
class TestZarrRegionAuto(Through, test_backends.TestZarrRegionAuto):
    pass


@pytest.mark.slow
class TestDataArrayToZarr(Through, test_backends.TestDataArrayToZarr):
    pass


@pytest.mark.slow
class TestZarrDatatreeIO(Through, test_backends_datatree.TestZarrDatatreeIO):
    pass
