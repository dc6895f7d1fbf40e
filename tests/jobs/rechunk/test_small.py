"""The memory of jobs of a few megabytes, beside which what a process holds anyway counts."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

import zarr_dask as zd
from zarr_dask.errors import ZarrDaskWarning
from zarr_dask.jobs.engine import rss as rehearsing
from zarr_dask.jobs.engine import rss as resident
from zarr_dask.jobs.engine.rss import warm_up_codecs
from zarr_dask.stores import MemoryStore, Recording

MB = 1_000_000


@pytest.fixture
def fresh(monkeypatch):
    """As if nothing had been rehearsed in this process."""
    monkeypatch.setattr(rehearsing, "_REHEARSED", rehearsing._WarmCodecs())


@pytest.fixture
def encoded(monkeypatch):
    """Shapes of the chunks that are rehearsed."""
    shapes = []
    original = rehearsing._there_and_back

    def there_and_back(bound):
        shapes.append(bound.spec.shape)
        original(bound)

    monkeypatch.setattr(rehearsing, "_there_and_back", there_and_back)
    return shapes


def made(store=None, **options):
    options = {"shape": (64, 64), "dtype": "f4", "chunks": (8, 8), **options}
    return zd.create_array(MemoryStore() if store is None else store, **options)


@pytest.mark.cluster
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
@pytest.mark.parametrize("codec", ["blosc", "zstd"])
def test_new_workers_hold_no_more_than_is_stated(tmp_path, make_cluster, codec):
    """Their first task loads libraries; elements of eight bytes have the largest blosc blocks."""
    from distributed import Client

    values = np.random.default_rng(0).random((128, 128, 64)) * 200
    old = zd.create_array(
        tmp_path / "a", shape=values.shape, dtype="f8", chunks=(8, 128, 64), codecs=[codec]
    )
    old[...] = values
    grid = {"chunks": (16, 16, 16), "shards": (32, 32, 32), "codecs": ["blosc"], "max_mem": 8 * MB}
    with Client(make_cluster(2)) as client:
        for job in range(2):
            report = zd.rechunk(old, tmp_path / f"b{job}", client=client, **grid)
            assert 0 < report.peak <= report.bound <= 8 * MB


def test_codecs_of_the_same_names_are_rehearsed_once(fresh, encoded):
    blosc, zstd = made(codecs=["blosc"]), made(codecs=["zstd"], chunks=(4, 8))
    warm_up_codecs(blosc, blosc)
    assert encoded == [(8, 8)]
    warm_up_codecs(blosc, zstd)
    assert encoded == [(8, 8), (4, 8)]
    warm_up_codecs(zstd, made(codecs=["zstd"], shards=(32, 32)))
    assert encoded == [(8, 8), (4, 8), (32, 32)]


def test_nothing_is_read_or_written(fresh, encoded):
    store = Recording(MemoryStore())
    array = made(store, chunks=(4, 4), shards=(16, 16))
    store.clear()
    warm_up_codecs(array, array)
    assert encoded == [(16, 16)]
    assert not store.batches


def test_large_chunks_and_what_is_no_number_are_not_rehearsed(fresh, encoded):
    large = made(shape=(4096, 4096), chunks=(1024, 1024))
    for array in (large, made(dtype="U3"), made(dtype="M8[s]"), made(dtype=[("a", "i2")])):
        warm_up_codecs(array, array)
    assert not encoded


@pytest.mark.parametrize("dtype", ["?", "u1", "i8", "f2", "c16"])
@pytest.mark.parametrize(
    "codecs",
    [
        [],
        [{"name": "transpose", "configuration": {"order": [1, 0]}}, "zstd", "crc32c"],
        [{"name": "gzip", "configuration": {"level": 9}}],
    ],
    ids=["none", "several", "gzip"],
)
def test_all_numbers_can_be_rehearsed(fresh, encoded, dtype, codecs):
    array = made(dtype=dtype, codecs=codecs)
    warm_up_codecs(array, array)
    assert len(encoded) == 1


def test_what_takes_other_numbers_only_is_left_out(fresh, encoded):
    into = {"data_type": "int8", "scalar_map": {"encode": [[1, 1]]}, "out_of_range": "clamp"}
    array = made(codecs=[{"name": "cast_value", "configuration": into}])
    warm_up_codecs(array, array)
    assert len(encoded) == 1


def test_what_cannot_be_written_is_left_out(fresh, encoded, tmp_path):
    made(str(tmp_path), shape=(8,), chunks=(8,), dtype="u1")
    document = tmp_path / "zarr.json"
    said = json.loads(document.read_text())
    said["codecs"].append({"name": "unheard_of", "must_understand": False})
    document.write_text(json.dumps(said))
    with pytest.warns(ZarrDaskWarning, match="unheard_of"):
        array = zd.open_array(tmp_path)
    warm_up_codecs(array, made(dtype="U3"))
    assert not encoded


@pytest.mark.parametrize("cleared", [False, True])
def test_the_size_when_idle_is_that_of_a_process_without_tasks(monkeypatch, cleared):
    """What a task may have left does not make the process larger when idle; what it grows does."""
    sizes = iter([100, 170, 120, 165, 90, 150, 500, 570])
    idle = resident._IdleMemory()
    monkeypatch.setattr(resident, "_resident", lambda: next(sizes))
    rehearsed = []
    found = []
    for stage in ("one", "one", "one", "two"):
        idle.look(stage, lambda: rehearsed.append(1), cleared=cleared)
        found.append((idle.nbytes, resident.RssProbe(idle.nbytes).peak))
    second = 120 if cleared else 100
    assert found == [(100, 170), (second, 165), (90, 150), (500, 570)]
    assert len(rehearsed) == 2
