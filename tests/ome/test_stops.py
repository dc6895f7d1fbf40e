"""Additions and plates that are stopped before a write: readable, and ended by the same call."""

from __future__ import annotations

import shutil
import warnings
from itertools import count

import dask
import numpy as np
import pytest

import zarr_dask as zd
from tests.support.ome_levels import pixels
from zarr_dask.errors import StoreError, ZarrDaskWarning
from zarr_dask.journal.finished import is_record
from zarr_dask.stores import LocalStore
from zarr_dask.stores.wrappers.base import HookStore

VALUES = pixels(20, 24) + np.uint16(1)
CHANGES = {"set", "set_if", "delete"}
SLOW = pytest.mark.slow


@pytest.fixture(autouse=True)
def one_thread():
    with dask.config.set(scheduler="sync"):
        yield


def stopping(root, changes):
    """A store that fails after so many changes."""
    left = [changes]

    def fault(verb, key):
        if verb in CHANGES:
            left[0] -= 1
            if left[0] < 0:
                raise StoreError("stopped")

    return HookStore(LocalStore(str(root)), fault)


def leftovers(place):
    """Files beside a node, but for the record of a finished job and the text that explains it."""
    names = [p.name for p in place.parent.rglob("*") if p.is_file() and place not in p.parents]
    return [name for name in names if not is_record(name) and name != "README.txt"]


def stopped_everywhere(tmp_path, base, act, check, step):
    """Stop `act` before one change after the other, look, and repeat it; how many there are."""
    for changes in count(step - 1, step):
        place = tmp_path / f"n{changes}" / "image"
        shutil.copytree(base, place)
        try:
            act(stopping(place, changes))
        except StoreError:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ZarrDaskWarning)
                assert zd.ome.open(place).levels[1].array[...].shape == (10, 12)
            act(LocalStore(str(place)))
            check(place)
            assert leftovers(place) == []
        else:
            return changes
        finally:
            shutil.rmtree(place.parent)
    raise AssertionError


def put_base(root, version):
    labels = {"first": (VALUES % 3).astype("u1")}
    zd.ome.write(VALUES, root, axes="yx", version=version, levels=2, chunks=8, labels=labels)
    zd.consolidate(root)
    return root


ROUNDS = [
    ("0.5", True, 4),
    pytest.param("0.5", False, 5, id="anew"),
    *(pytest.param(v, r, 1, marks=SLOW) for v in ("0.4", "0.5") for r in (True, False)),
]


@pytest.mark.parametrize(("version", "resume", "step"), ROUNDS)
def test_labels(tmp_path, version, resume, step):
    cells = (VALUES % 5).astype("u1")

    def check(place):
        found = zd.ome.open(place).labels
        assert list(found) == ["first", "cells"]
        np.testing.assert_array_equal(found["cells"].levels[1].array[...], cells[::2, ::2])
        assert zd.ome.validate(place) == []
        assert zd.open_group(place).stale() == []

    def act(store):
        zd.ome.write_labels(store, cells, "cells", resume=resume)

    base = put_base(tmp_path / "base", version)
    assert stopped_everywhere(tmp_path, base, act, check, step) > 10


@pytest.mark.parametrize(("version", "resume", "step"), ROUNDS)
def test_levels(tmp_path, version, resume, step):
    """One level comes, however often the call is repeated."""

    def check(place):
        found = zd.ome.open(place)
        assert len(found.levels) == len(found.labels["first"].levels) == 3
        assert zd.ome.validate(place) == []
        assert zd.open_group(place).stale() == []

    def act(store):
        zd.ome.add_level(store, resume=resume)

    base = put_base(tmp_path / "base", version)
    assert stopped_everywhere(tmp_path, base, act, check, step) > 5


@pytest.mark.parametrize("resume", [True, pytest.param(False, marks=SLOW)])
def test_plates(tmp_path, resume):
    wells = {"A/1": VALUES, "B/2": [VALUES, VALUES + np.uint16(1)]}
    for changes in count(1, 5):
        place = tmp_path / f"n{changes}" / "plate"
        place.parent.mkdir()
        try:
            zd.ome.write_plate(wells, stopping(place, changes), axes="yx", levels=2, resume=resume)
        except StoreError:
            zd.ome.write_plate(wells, place, axes="yx", levels=2, resume=resume)
            field = zd.ome.open_plate(place)["B/2"].field(1)
            np.testing.assert_array_equal(field.levels[0].array[...], VALUES + 1)
            assert zd.ome.validate(place) == []
            assert leftovers(place) == []
        else:
            break
    assert changes > 20


def test_what_lies_where_a_level_would_be_is_replaced_on_request(tmp_path):
    zd.ome.write(VALUES, tmp_path / "i", axes="yx", levels=2)
    zd.create_array(tmp_path / "i", "2", shape=(2,), dtype="u1")
    with pytest.raises(zd.errors.NodeExistsError):
        zd.ome.add_level(tmp_path / "i")
    zd.ome.add_level(tmp_path / "i", overwrite=True)
    assert zd.ome.open(tmp_path / "i").levels[2].shape == (5, 6)
