"""The tables of `refusals` against the peers: every entry still holds, for every case."""

from __future__ import annotations

import numpy as np
import pytest
import zarr

import zarr_dask as zd
from tests.support.interop import ours
from tests.support.interop.cases import data, expected, matrix
from tests.support.interop.refusals import DEFECTS, PEERS, REFUSALS, cases_of
from tests.support.interop.seen import bits

pytestmark = pytest.mark.filterwarnings("ignore:.*two dimensions have one name")

MATRIX = matrix()


def _label(entry):
    return f"{entry.peer}: {entry.what}"


@pytest.mark.parametrize("entry", [e for e in REFUSALS if e.write], ids=_label)
def test_peer_refuses_to_write(entry, place):
    error, message = entry.write
    cases = cases_of(entry, MATRIX, "write")
    assert cases
    for case in cases:
        with pytest.raises(error, match=message):
            PEERS[entry.peer].write(case, place / case.id.replace("/", "_"), data(case))


@pytest.mark.parametrize("entry", [e for e in REFUSALS if e.read], ids=_label)
def test_peer_refuses_to_read(entry, place):
    error, message = entry.read
    cases = cases_of(entry, MATRIX, "read")
    assert cases
    for case in cases:
        path = place / case.id.replace("/", "_")
        ours.write(case, path, data(case))
        with pytest.raises(error, match=message):
            PEERS[entry.peer].read(case, path)


@pytest.mark.parametrize("entry", REFUSALS, ids=_label)
def test_we_do_what_the_peer_refuses(entry, place):
    for case in MATRIX:
        if entry.applies(case):
            path = place / case.id.replace("/", "_")
            ours.write(case, path, data(case))
            assert bits(ours.read(case, path).values) == bits(expected(case))


@pytest.mark.parametrize("entry", [e for e in DEFECTS if e.side == "write"], ids=_label)
def test_peer_writes_something_else(entry, place):
    """Its own reading shows the difference, and is the same as ours."""
    cases = [case for case in MATRIX if entry.applies(case)]
    assert cases
    for case in cases:
        path = place / case.id.replace("/", "_")
        PEERS[entry.peer].write(case, path, data(case))
        theirs = PEERS[entry.peer].read(case, path)
        assert bits(theirs.values) != bits(expected(case))
        assert bits(ours.read(case, path).values) == bits(theirs.values)


@pytest.mark.parametrize("entry", [e for e in DEFECTS if e.side == "read"], ids=_label)
def test_peer_reads_something_else(entry, place):
    cases = [case for case in MATRIX if entry.applies(case)]
    assert cases
    for case in cases:
        path = place / case.id.replace("/", "_")
        ours.write(case, path, data(case))
        assert bits(PEERS[entry.peer].read(case, path).values) != bits(expected(case))
        assert bits(ours.read(case, path).values) == bits(expected(case))


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_zarr_python_takes_any_nan_for_its_fill_value(zarr_format, place):
    """It drops the chunk; we compare bits and keep it."""
    payload = np.full(4, 0x7FC00123, "u4").view("f4")
    options = {"shape": 4, "chunks": 2, "dtype": "f4", "fill_value": np.float32(np.nan)}
    theirs = zarr.create_array(place / "theirs", zarr_format=zarr_format, **options)
    theirs[...] = payload
    assert bits(theirs[...]) != bits(payload)
    mine = zd.create_array(place / "ours", format=f"v{zarr_format}", **options)
    mine[...] = payload
    assert bits(mine[...]) == bits(payload)
    assert bits(zarr.open_array(place / "ours", mode="r")[...]) == bits(payload)
