"""Open nodes that follow changes, and what a change asks of those of other nodes."""

import os

import numpy as np

import zarr_dask as zd
from zarr_dask.formats import handles


def test_handles_follow_changes_by_any_name(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "real")
    first = zd.create_array(tmp_path / "real" / "g", "a", shape=(0,), dtype="i4", chunks=2)
    by_link = zd.open_array(tmp_path / "link", "g/a", mode="r+")
    by_root = zd.open_array(tmp_path / "real" / "g" / "a", mode="r")
    first.append([1, 2])
    assert by_link.shape == by_root.shape == (2,)
    by_link.append([3])
    assert first.shape == by_root.shape == (3,)


def test_a_handle_by_a_link_that_leads_elsewhere_by_now_is_told_nothing(tmp_path):
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "one")
    one = zd.create_array(tmp_path / "one", shape=(0,), dtype="i4", chunks=2)
    two = zd.create_array(tmp_path / "two", shape=(0,), dtype="i4", chunks=2)
    by_link = zd.open_array(link)
    one.append([1])
    assert by_link.shape == (1,)
    link.unlink()
    link.symlink_to(tmp_path / "two")
    one.append([2, 3])
    assert by_link.shape == (1,)
    two.append([4])


def test_an_append_does_not_look_up_all_other_open_arrays(tmp_path, monkeypatch):
    """An ensemble has as many open arrays as members, all with one name."""
    held = [
        zd.create_array(tmp_path / str(n) / "a", shape=(0,), dtype="i4", chunks=2)
        for n in range(20)
    ]
    held[0].append([0])  # looks all of them up, once
    looks, look = [], os.path.realpath
    monkeypatch.setattr(os.path, "realpath", lambda *path: looks.append(path) or look(*path))
    held[1].append([1])
    assert 0 < len(looks) < 8


def test_closed_handles_are_forgotten(tmp_path):
    kept = handles._Handles()
    array = zd.create_array(tmp_path / "a", shape=(0,), dtype="i4", chunks=2)
    for number in range(1_000):
        kept.add(zd.create_array({}, f"{number}" if number % 2 else "", data=np.zeros(1)))
        if number % 10 == 0:
            kept.add(zd.open_array(tmp_path / "a"))
            kept.of(array.store, array.path)
    assert sum(len(refs) for refs in (*kept._new.values(), *kept._at.values())) < 150
