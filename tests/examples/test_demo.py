"""The demo: its physics, its promise that many ranks compute what one would, and all of it, small.

The examples run here too, since nothing else would notice when they no longer do.
"""

import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

import zarr_dask as zd
from examples import tsunami
from examples.tsunami import shallow_water as sw
from examples.tsunami import simulation
from tests.support.paths import ROOT
from zarr_dask.errors import MissingDependencyError, NodeExistsError

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def basin(shape=(40, 60), depth=100.0):
    """A flat-bottomed sea on the equator, cells of about 1 km, with an island."""
    latitude = 0.009 * (np.arange(shape[0]) - (shape[0] - 1) / 2)
    longitude = 0.009 * np.arange(shape[1])
    topography = np.full(shape, -depth)
    topography[shape[0] // 4 : shape[0] // 3, shape[1] // 2 : shape[1] // 2 + 5] = 50
    return sw.Sea(latitude, longitude, topography)


def whole(sea):
    return tuple(slice(0, n) for n in sea.shape)


def test_volume_is_conserved_between_walls():
    sea = basin()
    rates = sw.Rates.of(sea, 0.9 * sea.longest_step(), open_edges=False)
    state = sw.State.at_rest(sea.hump(0.05, 0.2, 1.0, 5000))
    volume = (state.elevation / rates.rise).sum()

    later = sw.advanced(state, rates, 2000)

    assert abs(later.elevation).max() > 0.01
    assert (later.elevation / rates.rise).sum() == pytest.approx(volume, rel=1e-12)
    assert (later.elevation[~sea.water] == 0).all()


def test_energy_neither_grows_nor_decays_between_walls():
    sea = basin()
    step = 0.9 * sea.longest_step()
    rates = sw.Rates.of(sea, step, open_edges=False)

    def energy(state):
        moved = sw.advanced(state, rates, 1)
        # The scheme keeps this product of two instants, not the square of one.
        potential = (state.elevation * moved.elevation / rates.rise).sum()
        kinetic = 0.0
        for flux, rate in ((moved.east, rates.east), (moved.north, rates.north)):
            open_faces = rate > 0
            kinetic += (flux[open_faces] ** 2 / rate[open_faces]).sum()
        return potential + kinetic

    state = sw.State.at_rest(sea.hump(0.05, 0.2, 1.0, 5000))
    assert energy(sw.advanced(state, rates, 2000)) == pytest.approx(energy(state), rel=1e-9)


def test_long_waves_travel_at_the_root_of_g_times_depth():
    sea = sw.Sea(0.009 * np.arange(3), 0.009 * np.arange(400), np.full((3, 400), -100.0))
    step = 0.5 * sea.longest_step()
    x = np.arange(400)
    hump = np.exp(-0.5 * ((x - 200) / 12) ** 2)
    state = sw.State.at_rest(np.tile(hump, (3, 1)))

    steps = 220
    moved = sw.advanced(state, sw.Rates.of(sea, step, open_edges=False), steps).elevation[1]

    dx = sea.spacing()[0][1]
    cells = np.sqrt(sw.GRAVITY * 100) * steps * step / dx
    right = np.where(x > 200, moved, 0)
    assert (right * x).sum() / right.sum() == pytest.approx(200 + cells, abs=0.5)
    assert right.max() == pytest.approx(0.5, rel=0.01)


def test_waves_leave_through_open_edges():
    sea = sw.Sea(0.009 * np.arange(3), 0.009 * np.arange(100), np.full((3, 100), -100.0))
    state = sw.State.at_rest(np.tile(np.exp(-0.5 * ((np.arange(100) - 50) / 8) ** 2), (3, 1)))
    step = 0.9 * sea.longest_step()
    later = sw.advanced(state, sw.Rates.of(sea, step), 800).elevation
    assert abs(later).max() < 0.01


@pytest.mark.parametrize("counts", [(1, 1), (2, 2), (3, 1), (2, 5)])
def test_many_ranks_compute_bit_for_bit_what_one_does(counts):
    sea = basin()
    rates = sw.Rates.of(sea, 0.9 * sea.longest_step())
    start = sw.State.at_rest(sea.hump(0.05, 0.2, 1.0, 5000))
    end, expected = sw.recorded(start, whole(sea), rates, whole(sea), 6, 4)

    blocks = sw.blocks(sea.shape, counts)
    states = [start.cut(block) for block in blocks]
    found = np.full_like(expected, np.nan)
    for slab in (slice(0, 3), slice(3, 6)):
        advanced = []
        for block in blocks:
            outer = sw.widened(block, 12, sea.shape)
            pieces = [
                (shared, state.cut(sw.inside(shared, other)))
                for other, state in zip(blocks, states, strict=True)
                if (shared := sw.overlap(outer, other)) is not None
            ]
            state, frames = sw.recorded(sw.assembled(pieces, outer), outer, rates, block, 3, 4)
            advanced.append(state)
            found[(slab, *block)] = frames
        states = advanced

    np.testing.assert_array_equal(found, expected)
    joined = sw.assembled(zip(blocks, states, strict=True), whole(sea))
    for name in ("elevation", "east", "north"):
        np.testing.assert_array_equal(getattr(joined, name), getattr(end, name))


def test_a_refined_map_keeps_the_edges_and_the_values_between():
    latitude, longitude = np.array([48.0, 49.0]), np.array([-125.0, -124.0, -123.0])
    plane = latitude[:, None] * 10 + longitude[None, :]
    sea = sw.refined(latitude, longitude, plane, (8, 10))
    assert sea.latitude[[0, -1]] == pytest.approx([48.0625, 48.9375])
    np.testing.assert_allclose(
        sea.topography, sea.latitude[:, None] * 10 + sea.longitude[None, :], rtol=1e-12
    )


@pytest.fixture(scope="module")
def small_demo(tmp_path_factory):
    """One run of everything, with what the command printed to a terminal of no size."""
    from rich.console import Console

    output = tmp_path_factory.mktemp("demo") / "output"
    text = (output.parent / "said.txt").open("w")
    with text:
        console = Console(file=text, width=200, color_system=None)
        report = tsunami.run(
            output, frames=20, shape=(96, 128), workers=2, max_mem="64MB", console=console
        )
    return report, (output.parent / "said.txt").read_text()


@pytest.mark.cluster
def test_the_demo_compares_everything_and_says_so(small_demo):
    report, said = small_demo
    assert report.values == 20 * 96 * 128
    assert f"equal: all {report.values:,} values" in said
    assert re.search(r"zarr-dask rechunk \S+ \S+ --chunks time=-1,lat=32,lon=32", said)
    assert list(report.seconds) == ["simulation", "rechunk", "comparison", "pictures"]


@pytest.mark.cluster
def test_the_demo_leaves_what_it_says(small_demo):
    folder = small_demo[0].output
    simulation, points = (
        zd.open_array(folder / "simulation.zarr"),
        zd.open_array(folder / "points.zarr"),
    )
    assert simulation.shards == (16, 48, 64)
    assert points.chunks == (20, 32, 32)
    assert points.dimension_names == ("time", "lat", "lon")
    assert points.attributes["units"] == "m"
    for name in ("wave.png", "plan.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.cluster
def test_the_parallel_simulation_is_that_of_one_process(small_demo):

    job = simulation.Simulation.of_topobathy(20, (96, 128))
    rates = sw.Rates.of(job.sea, simulation.FRAME_SECONDS / job.steps)
    start = sw.State.at_rest(job.sea.hump(**simulation.HUMP))
    everything = whole(job.sea)
    _, frames = sw.recorded(start, everything, rates, everything, 20, job.steps)
    expected = np.where(job.sea.water, frames, np.float32("nan"))
    np.testing.assert_array_equal(
        zd.open_array(small_demo[0].output / "simulation.zarr")[...], expected
    )


@pytest.mark.cluster
@pytest.mark.slow
def test_the_simulation_survives_the_loss_of_a_worker(tmp_path):
    from zarr_dask.jobs.engine.connect import connect

    job = simulation.Simulation.of_topobathy(160, (96, 128))
    lost = []

    def lose_one_worker(nbytes):
        if not lost:
            lost.append(next(iter(client.run(os.getpid).values())))
            os.kill(lost[0], signal.SIGKILL)

    with connect(workers=2) as client:
        simulation.simulate(job, tmp_path / "a.zarr", tmp_path / "b.zarr", client, lose_one_worker)

    assert lost
    found, foreign = (zd.open_array(tmp_path / name)[...] for name in ("a.zarr", "b.zarr"))
    np.testing.assert_array_equal(found, foreign)
    assert np.isfinite(found[:, job.sea.water]).all()


def test_a_folder_of_somebody_else_is_left_alone(tmp_path):
    (tmp_path / "simulation.zarr").mkdir()
    (tmp_path / "simulation.zarr" / "precious").write_text("data")
    with pytest.raises(NodeExistsError, match="has not made"):
        tsunami.run(tmp_path)
    assert [path.name for path in tmp_path.rglob("*")] == ["simulation.zarr", "precious"]


def test_a_folder_of_the_demo_is_cleared_of_its_own_files_only(tmp_path):
    folder = tmp_path / "output"
    tsunami._prepared(folder)
    (folder / "points.zarr").mkdir()
    (folder / "points.zarr" / "zarr.json").write_text("{}")
    (folder / "notes.txt").write_text("mine")
    tsunami._prepared(folder)
    assert sorted(path.name for path in folder.iterdir()) == [tsunami.MARKER, "notes.txt"]


def test_the_command_is_handed_its_options(monkeypatch, tmp_path):
    from click.testing import CliRunner

    from examples.tsunami import __main__ as command

    calls = []
    monkeypatch.setattr(command, "run", lambda *args, **options: calls.append((args, options)))
    for words in ([], [str(tmp_path / "out"), "--workers", "1"]):
        assert CliRunner().invoke(command.main, words).exit_code == 0
    assert calls == [
        (("demo-output",), {"workers": 2}),
        ((str(tmp_path / "out"),), {"workers": 1}),
    ]


def test_a_missing_package_is_named_with_the_extra(tmp_path, monkeypatch):
    def find(name):
        return None if name == "zarr" else object()

    monkeypatch.setattr(tsunami.importlib.util, "find_spec", find)
    with pytest.raises(MissingDependencyError, match=r"needs zarr.*zarr-dask\[demo\]"):
        tsunami.run(tmp_path / "output")
    assert not (tmp_path / "output").exists()


@pytest.mark.parametrize("example", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_the_examples_run(example, tmp_path):
    done = subprocess.run(
        [sys.executable, str(example), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "False" not in done.stdout
    assert not re.search(r"lost: [1-9]", done.stdout)


def test_there_are_examples():
    ome = {"ome_pyramid", "ome_versions"}
    assert {path.stem for path in EXAMPLES} == {"dask_write", "parallel_ranks", "rechunk", *ome}
