"""The benchmarks run and judge results; and the figures that are no times hold."""

import json
import subprocess
import sys

import numpy as np
import pytest

import zarr_dask as zd
from benchmarks import asv, graphs, memory, small_reads, walk
from benchmarks.__main__ import main
from benchmarks.counts import Counting
from benchmarks.measure import Case, Contender, as_markdown, facts
from benchmarks.suite import CASES
from zarr_dask.stores import MemoryStore

FIGURES = {
    "one-chunk",
    "random-points",
    "graph-construct",
    "graph-size",
    "graph-optimise",
    "graph-one-block-on-a-cluster",
    "graph-write",
    "walk-consolidated",
    "walk",
    "memory-blosc-32-in-256",
    "memory-zstd-256",
    "ome-pyramid",
    "dataset-climatology-chunks",
    "dataset-rolling-shards",
}
"""Cases of the figures to reach, besides reading and writing every layout."""


def test_every_figure_is_a_case():
    assert CASES.keys() >= FIGURES
    layouts = [f"{c}-{k}{s}" for c in ("blosc", "zstd") for k in (32, 64) for s in ("", "-in-256")]
    assert {f"{kind}-{layout}" for kind in ("read", "write") for layout in layouts} <= CASES.keys()


@pytest.mark.parametrize(
    "names",
    [
        ("one-chunk", "graph-size"),
        pytest.param(("walk-consolidated", "graph-construct"), marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_small_cases_run_and_are_right(names, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(small_reads, "REPEATS", 3)
    monkeypatch.setattr(small_reads, "N", 64)
    monkeypatch.setattr(walk, "ARRAYS", 3)
    monkeypatch.setattr(graphs, "COUNT", 10)
    results = {}
    for name in names:
        file, table = tmp_path / f"{name}.json", tmp_path / f"{name}.md"
        arguments = ["--only", name, "--rounds", "1", "--dir", str(tmp_path)]
        assert main([*arguments, "--json", str(file), "--markdown", str(table)]) == 0
        (results[name],) = json.loads(file.read_text())
        assert table.read_text().splitlines()[2].startswith(f"| {name} |")
    assert "all results equal" in capsys.readouterr().out
    if "one-chunk" in names:
        own = next(one for one in results["one-chunk"]["contenders"] if one["name"] == "zarr_dask")
        assert own["counts"]["requests"] == 1


def test_bytes_of_parts_are_counted():
    values = np.arange(4096, dtype="i4").reshape(64, 64)
    store = Counting(MemoryStore())
    codecs = [{"name": "bytes", "configuration": {"endian": "little"}}]
    array = zd.create_array(store, shape=(64, 64), dtype="i4", chunks=8, shards=64, codecs=codecs)
    array[...] = values
    store.clear()
    np.testing.assert_array_equal(array[3, 5:7], values[3, 5:7])
    index = 64 * 16 + 4  # two numbers for each chunk, and a checksum
    assert store.counts == {"requests": 2, "keys": 1, "bytes": index + 8 * 8 * 4}


@pytest.mark.slow
def test_what_is_wrong_is_said(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(walk, "ARRAYS", 3)
    monkeypatch.setattr(zd.Group, "arrays", lambda self: iter(()))
    assert main(["--only", "walk-consolidated", "--rounds", "1"]) == 1
    assert "WRONG" in capsys.readouterr().out


def test_ratios_are_to_the_first():
    one = Contender("floor", lambda: None, lambda _: True, results=[2.0, 1.0])
    own = Contender("zarr_dask", lambda: None, lambda _: True, results=[3.0, 4.0], verdict="equal")
    found = facts("a", Case("title", [one, own], reach="2 x floor"))
    assert [c["ratio"] for c in found["contenders"]] == [1.0, 3.0]
    assert [c["paired"] for c in found["contenders"]] == [1.0, (3 / 2 + 4 / 1) / 2]
    assert "| a | ms | 3 | floor 1 | 3.00 | 2.75 | 2 x floor |" in as_markdown([found])


@pytest.mark.parametrize(("single", "runs"), [(True, "aabbbaab"), (False, "aaaabbbbbbaa")])
def test_contenders_take_turns(single, runs):
    """A turn is a round without a warm-up but the first, or a warm-up and three rounds."""
    ran = []
    names = [Contender(name, lambda name=name: ran.append(name), lambda _: True) for name in "ab"]
    case = Case("title", names, rounds=3 if single else 4, single=single)
    case.measure()
    assert "".join(ran) == runs
    assert {len(one.results) for one in names} == {case.rounds}


def test_the_first_two_take_more_turns():
    ran = []
    names = [Contender(name, lambda name=name: ran.append(name), lambda _: True) for name in "abc"]
    Case("title", names, rounds=1, more=2, single=True).measure()
    assert "".join(ran) == "aabbcc" + "ab" + "ba"
    assert [len(one.results) for one in names] == [3, 3, 1]


def test_classes_for_asv(monkeypatch):
    monkeypatch.setattr(small_reads, "REPEATS", 3)
    monkeypatch.setattr(small_reads, "N", 64)
    benchmark = asv.OneChunk()
    benchmark.setup()
    benchmark.time_run()
    assert benchmark.track_ratio() > 0
    assert benchmark.track_counts() > 1
    benchmark.teardown()
    assert len([name for name in vars(asv) if name[0].isupper()]) >= len(CASES)


@pytest.mark.parametrize(
    "layout",
    [{"chunks": 32, "shards": 192}, pytest.param({"chunks": 192}, marks=pytest.mark.slow)],
    ids=str,
)
def test_memory_of_one_block(layout, tmp_path):
    """No more than the block, one stored object and 10 MB."""
    values = np.random.default_rng(0).normal(size=(192,) * 3).astype("f4")
    codecs = [{"name": "zstd", "configuration": {"level": 1, "checksum": False}}]
    array = zd.create_array(tmp_path / "a", shape=values.shape, dtype="f4", codecs=codecs, **layout)
    array[...] = values
    zd.create_array(tmp_path / "small", shape=(8,), dtype="f4", codecs=codecs)[...] = 1
    script = memory.SCRIPT.format(open=memory.OPEN["zarr_dask"])
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "a"), str(tmp_path / "small"), "192"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    peak, total = json.loads(done.stdout)
    assert np.isclose(total, values.sum(dtype="f8"))
    assert peak <= values.nbytes + array.nbytes_stored() + 10_000_000
