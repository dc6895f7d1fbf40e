"""xarray's own tests of reading Zarr, with this package in the place of zarr-python.

xarray writes with zarr-python, as its tests ask for; what they open as ``engine="zarr"`` goes
through our backend. `DIFFERENT` lists the tests that mean something else than the values that are
read; each of them must fail, or be taken off the list.
"""

from __future__ import annotations

from typing import ClassVar

import pytest
import zarr
from xarray.backends import refresh_engines
from xarray.backends.common import BACKEND_ENTRYPOINTS
from xarray.tests import test_backends, test_backends_datatree, test_distributed

# fixtures of the tests below
from xarray.tests.conftest import (  # noqa: F401
    create_test_datatree,
    simple_datatree,
    time_unit,
    use_dask,
)
from xarray.tests.test_backends import (  # noqa: F401
    chunks,
    default_zarr_format,
    file_cache_maxsize,
    fsspec_memory_zarr_stores,
    nfiles,
    parallel,
    tmp_store,
)
from xarray.tests.test_backends_datatree import unaligned_datatree_zarr_factory  # noqa: F401
from xarray.tests.test_distributed import (  # noqa: F401
    cleanup,
    client,
    cluster_fixture,
    loop,
    loop_in_thread,
)
from xarray.tests.test_distributed import zarr as clean_zarr  # noqa: F401

from zarr_dask.xarray import ZarrDaskBackend

pytestmark = pytest.mark.filterwarnings("default")


def location(place):
    """Where a store of zarr-python is, for us."""
    if isinstance(place, zarr.storage.WrapperStore):
        return location(place._store)
    if isinstance(place, zarr.storage.MemoryStore):
        return location(place._store_dict)
    if isinstance(place, dict):
        return {key: value.to_bytes() for key, value in place.items()}
    if isinstance(place, zarr.storage.LocalStore):
        return str(place.root)
    if isinstance(place, zarr.storage.ZipStore):
        return str(place.path)
    return place


class InPlaceOfZarr(ZarrDaskBackend):
    """Our backend with the keywords of xarray's own."""

    open_dataset_parameters: ClassVar = (
        *("mask_and_scale", "decode_times", "concat_characters", "decode_coords"),
        *("drop_variables", "use_cftime", "decode_timedelta", "group", "mode", "consolidated"),
        *("storage_options", "zarr_format", "use_zarr_fill_value_as_mask", "cache_members"),
    )

    def open_dataset(self, place, **options):
        return super().open_dataset(location(place), **ours(options))

    def open_groups_as_dict(self, place, **options):
        return super().open_groups_as_dict(location(place), **ours(options))

    def open_datatree(self, place, **options):
        return super().open_datatree(location(place), **ours(options))


def ours(options):
    unknown = {"mode", "zarr_format", "cache_members", "store", "engine"}
    return {name: value for name, value in options.items() if name not in unknown}


OBJECTS = "the codecs in an encoding of v3 are documents, not objects of zarr-python"
WORDS = "the error has other words"
CALLS = "counts the calls of zarr-python's own functions"
SILENT = "metadata that are not consolidated are no reason for a warning"
DIFFERENT = {
    "test_read_non_consolidated_warning": SILENT,
    "test_to_zarr_not_consolidated": SILENT,
    "test_non_existent_store": WORDS,
    "test_raises_key_error_on_invalid_zarr_store": WORDS,
    "test_compressor_encoding[3]": OBJECTS,
    "test_zarr_encoding[zarr_format=3]": OBJECTS,
    "test_zarr_fill_value_setting[2-int]": "xarray does not heed use_zarr_fill_value_as_mask",
    "test_zarr_fill_value_setting[2-float]": "xarray does not heed use_zarr_fill_value_as_mask",
    "test_async_load_multiple_variables": CALLS,
    "test_concurrent_load_multiple_objects": CALLS,
    "test_indexing": CALLS,
}
"""Tests by name, or by name and parameters, and why they cannot pass."""


class Through:
    """Opens what xarray's tests open through our backend, and takes their marks at their word."""

    different: ClassVar = DIFFERENT

    @pytest.fixture(autouse=True)
    def in_place_of_zarr(self, request, monkeypatch):
        for mark in request.node.iter_markers("skip_if_param"):
            skip_if_parameters_say(request.node, dict(mark.kwargs))
        monkeypatch.setitem(BACKEND_ENTRYPOINTS, "zarr", ("zarr", InPlaceOfZarr))
        name = request.node.name
        reason = self.different.get(name) or self.different.get(name.partition("[")[0])
        if reason:
            request.node.add_marker(pytest.mark.xfail(reason=reason, strict=True))
        yield
        monkeypatch.undo()
        refresh_engines()  # xarray keeps the backends it found, ours in the place of its own


def skip_if_parameters_say(item, given):
    reason = given.pop("reason", "")
    if given.pop("condition", True) and all(
        item.callspec.params.get(name) == value for name, value in given.items()
    ):
        pytest.skip(reason)


QUICK = {
    *("test_zero_dimensional_variable", "test_pickle", "test_roundtrip_object_dtype"),
    *("test_roundtrip_string_data", "test_roundtrip_numpy_datetime_data", "test_roundtrip_endian"),
    *("test_roundtrip_timedelta_data", "test_roundtrip_coordinates", "test_orthogonal_indexing"),
    *("test_vectorized_indexing", "test_vectorized_indexing_negative_step", "test_auto_chunk"),
    *("test_roundtrip_mask_and_scale", "test_shard_encoding", "test_hidden_zarr_keys"),
    *("test_zarr_fill_value_in_encoding_on_read", "test_roundtrip_bytes_with_fill_value"),
    *("test_encoding_same_dtype", "test_group", "test_zarr_fill_value_setting", "test_attributes"),
}


class TestReading(Through, test_backends.TestZarrDirectoryStore):
    """What most of the others are variations of."""


for _name in dir(TestReading):
    if _name.startswith("test_") and _name not in QUICK:
        setattr(TestReading, _name, None)  # pytest collects no None


@pytest.mark.slow
class TestZarrDirectoryStore(Through, test_backends.TestZarrDirectoryStore):
    pass


@pytest.mark.slow
class TestZarrDictStore(Through, test_backends.TestZarrDictStore):
    pass


@pytest.mark.slow
class TestZarrNoConsolidatedMetadataSupport(
    Through, test_backends.TestZarrNoConsolidatedMetadataSupport
):
    # there xarray's own backend is silent too
    different: ClassVar = {k: v for k, v in DIFFERENT.items() if v != SILENT}


@pytest.mark.slow
class TestZarrWriteEmpty(Through, test_backends.TestZarrWriteEmpty):
    pass


class TestZarrRectilinearChunksRead(Through, test_backends.TestZarrRectilinearChunksRead):
    pass


class TestDataArrayToZarr(Through, test_backends.TestDataArrayToZarr):
    pass


@pytest.mark.slow
class TestZarrRegionAuto(Through, test_backends.TestZarrRegionAuto):
    pass


class TestZarrDatatreeIO(Through, test_backends_datatree.TestZarrDatatreeIO):
    pass


@pytest.fixture(name="readengine")
def read_with_zarr():
    return "zarr"


@pytest.fixture(name="zarr")
def of_distributed(clean_zarr):  # noqa: F811
    return clean_zarr


class TestNoClass(Through):
    """Those that are in no class of xarray."""

    @pytest.fixture(autouse=True)
    def in_a_folder_of_its_own(self, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)

    for _name in (
        *("test_open_mfdataset_manyfiles", "test_open_fsspec", "test_open_mfdataset_fsspec"),
        *("test_roundtrip_stringdtype_zarr_v3", "test_zarr_create_default_indexes"),
        *("test_open_dataset_chunking_zarr", "test_chunking_consistency"),
        *("test_stringdtype_with_na_object_uses_the_compatibility_path",),
        *("test_zarr_closing_internal_zip_store", "test_raises_key_error_on_invalid_zarr_store"),
    ):
        locals()[_name] = staticmethod(getattr(test_backends, _name))
    test_distributed = staticmethod(test_distributed.test_dask_distributed_zarr_integration_test)
