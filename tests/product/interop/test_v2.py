"""Format v2 beyond numbers: times, texts, structs and objects, exchanged with what reads them."""

from __future__ import annotations

import numcodecs
import numpy as np
import pytest
import tensorstore as ts
import zarr

import zarr_dask as zd
from tests.support.zarr2 import cases

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:zarr", "ignore::FutureWarning:zarr")


def zarr_python_knows(case):
    """Whether zarr-python 3 has the data type and the codecs of a case."""
    if case.dtype == "|O":
        return case.filters[0]["id"] in {"vlen-utf8", "vlen-bytes"}
    if isinstance(case.dtype, list):
        return not any(len(field) == 3 for field in case.dtype)
    return case.stored.kind in "mMSUV" and not case.filters


CASES = [case for case in cases.cases() if zarr_python_knows(case)]
IDS = [f"{number} {case.name}" for number, case in enumerate(CASES)]


def same(got, want):
    got, want = np.asarray(got), np.asarray(want)
    if want.dtype.hasobject:
        return got.shape == want.shape and got.tolist() == want.tolist()
    return got.shape == want.shape and got.astype(want.dtype).tobytes() == want.tobytes()


def test_the_matrix_is_large():
    assert len(CASES) == 250
    assert {case.stored.kind for case in CASES} == set("mMSUVO")
    assert {case.order for case in CASES} == {"C", "F"}


def written_or_filled(case):
    """Where both must see the same: without a fill value, zarr-python reads times as NaT."""
    return case.written if case.fill is None and case.stored.kind in "mM" else ()


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_zarr_python_reads_ours(case, tmp_path):
    array = zd.create_array(
        tmp_path, shape=case.shape, dtype=case.zarr_dask_dtype, chunks=case.chunks,
        codecs=[*case.filters, *([case.compressor] if case.compressor else [])],
        order=case.order, fill_value=None if case.fill is None else case.fill_array[0],
        format="v2", chunk_key_encoding={"separator": case.separator}, attributes=case.attributes,
    )  # fmt: skip
    array[case.written] = case.values
    peer = zarr.open_array(tmp_path, mode="r", zarr_format=2)
    assert same(peer[*written_or_filled(case), ...], case.expected[*written_or_filled(case), ...])
    assert dict(peer.attrs) == case.attributes
    assert peer.order == (case.order if len(case.shape) > 1 else "C")


def zarr_python_writes(case):
    """It fails on structs of times with a compressor, and on objects without dimensions."""
    times = isinstance(case.dtype, list) and "M8" in str(case.dtype)
    return not times and (case.dtype != "|O" or case.shape != ())


WRITTEN = [case for case in CASES if zarr_python_writes(case)]


@pytest.mark.parametrize(
    "case", WRITTEN, ids=[f"{n} {case.name}" for n, case in enumerate(WRITTEN)]
)
def test_we_read_zarr_pythons(case, tmp_path):
    objects = {"string": "str", "bytes": zarr.dtype.VariableLengthBytes()}
    peer = zarr.create_array(
        tmp_path, zarr_format=2, shape=case.shape, chunks=case.chunks,
        dtype=objects[case.zarr_dask_dtype] if case.dtype == "|O" else case.stored,
        compressors=None if case.compressor is None else numcodecs.get_codec(case.compressor),
        fill_value=None if case.dtype == "|O" or case.fill is None else case.fill_array[0],
        order=case.order, attributes=case.attributes,
        chunk_key_encoding={"name": "v2", "separator": case.separator},
    )  # fmt: skip
    peer[case.written] = case.values if case.shape else case.values[()]
    array = zd.open_array(tmp_path)
    assert same(array[*case.written, ...], case.values)
    assert array.attributes == case.attributes
    assert same(array[*written_or_filled(case), ...], peer[*written_or_filled(case), ...])


STRUCT = [["a", ">i2"], ["b", "<i2"], ["c", ">f8"], ["d", "<u4", [2]]]


def test_tensorstore_reads_fields_of_ours(tmp_path):
    """A struct of both byte orders and a field with a shape, field by field."""
    stored = cases.dtype_from_json(STRUCT)
    values = cases.anything(stored.newbyteorder("="), (5, 6))
    array = zd.create_array(
        tmp_path, shape=(5, 6), dtype=stored, chunks=(2, 4), order="F", format="v2",
        codecs=[{"id": "zlib", "level": 1}], fill_value=None,
    )  # fmt: skip
    array[...] = values
    for name in stored.names:
        spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": f"{tmp_path}/"}}
        peer = ts.open(spec | {"field": name}, open=True).result()
        assert same(peer.read().result(), values[name])


def test_we_read_fields_that_tensorstore_writes(tmp_path):
    document = {
        "zarr_format": 2, "shape": [5, 6], "chunks": [2, 4], "dtype": STRUCT, "order": "C",
        "compressor": {"id": "zlib", "level": 1}, "filters": None, "fill_value": None,
    }  # fmt: skip
    spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": f"{tmp_path}/"}}
    stored = cases.dtype_from_json(STRUCT)
    values = cases.anything(stored.newbyteorder("="), (5, 6))
    for number, name in enumerate(stored.names):
        given = {"metadata": document} if number == 0 else {}
        peer = ts.open(spec | given | {"field": name}, create=number == 0, open=True).result()
        peer.write(values[name]).result()
    assert same(zd.open_array(tmp_path)[...], values)
