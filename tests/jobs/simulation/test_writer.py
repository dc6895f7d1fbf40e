"""Output of a simulation, put by ranks of one process: values against NumPy, refusals, restarts."""

from __future__ import annotations

import gc
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import product
from pathlib import Path
from queue import Queue

import dask.array as da
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import zarr_dask as zd
from tests.support.process_memory import begin_peak, status
from zarr_dask.cli import main
from zarr_dask.errors import (
    ConsolidatedMetadataWarning,
    CorruptObjectError,
    DataTypeError,
    GridError,
    ManifestError,
    MetadataChangedError,
    NodeExistsError,
    RankError,
    SharedObjectError,
    StepError,
    StepNotShownWarning,
    StepsMissingError,
    StoreError,
    WriterNotFoundError,
    ZarrDaskError,
)
from zarr_dask.grid.grid import Grid
from zarr_dask.jobs.simulation import output
from zarr_dask.jobs.simulation.decomposition import share_of, shared_objects
from zarr_dask.stores import HookStore, LocalStore

FORMATS = ["v3", "v2", "v3draft", "v3draft-2022-05"]


def field(step, shape=(6, 8), seed=0.0):
    """A step of an array: a function of the step, nowhere the fill value."""
    return (1 + seed + step * 1000 + np.arange(np.prod(shape)).reshape(shape)).astype("f4")


def arrays(steps=2, **more):
    return {
        "u": {"shape": (6, 8), "dtype": "f4", "chunks": (steps, 3, 4), **more},
        "time": {"shape": (), "dtype": "f8"},
    }


def put(writer, step, seed=0.0):
    region = writer.region("u")
    writer.write_step(step, {"u": field(step, seed=seed)[region], "time": step / 4})


def put_all(url, steps, ranks=4, **options):
    """Every rank puts some steps; the writers, still open."""
    writers = [zd.Writer.attach(url, rank=rank, **options) for rank in range(ranks)]
    for writer in writers:
        for step in steps:
            put(writer, step)
    return writers


def close(writers):
    for writer in writers:
        writer.close()


def check_prefix(url, steps, seed=0.0):
    """Both readers see so many steps, and all of their values."""
    expected = np.array([field(step, seed=seed) for step in range(steps)]).reshape(-1, 6, 8)
    times = np.arange(steps) / 4
    group = zd.open(url)
    np.testing.assert_array_equal(group["u"][...], expected)
    np.testing.assert_array_equal(group["time"][...], times)
    if group.format in {"v2", "v3"}:
        peer = zarr.open_group(url, mode="r", use_consolidated=True)
        np.testing.assert_array_equal(peer["u"][...], expected)
        np.testing.assert_array_equal(peer["time"][...], times)


@pytest.fixture
def url(tmp_path):
    return str(tmp_path / "run.zarr")


OWNERS = zd.decompose((6, 8), (2, 2))


# --- what readers see -----------------------------------------------------------------------------


@pytest.mark.parametrize("node_format", FORMATS)
def test_the_visible_length_moves_in_whole_objects(url, node_format):
    """So in every format, with the rest once ranks have flushed."""
    create = zd.Writer.create(url, arrays(), owners=OWNERS, format=node_format)
    check_prefix(url, 0)
    writers = put_all(url, range(5))
    assert zd.open(url)["u"].shape == (0, 6, 8)
    assert create.publish() == 4
    check_prefix(url, 4)
    assert create.publish(3) == 4
    assert create.visible == 4
    close(writers)
    assert create.stored() == 5
    assert create.publish() == 4
    assert create.publish(4, flush=True) == 5
    check_prefix(url, 5)
    assert zd.open(url).format == node_format


@pytest.mark.parametrize("options", [{"chunks": (1, 3, 2), "shards": (4, 3, 4)}, {"axis": 2}])
def test_shards_and_other_places_of_the_steps(url, options):
    if "axis" in options:
        options["chunks"] = (3, 4, 3)
    spec = {"u": {"shape": (6, 8), "dtype": "f4", **options}}
    zd.Writer.create(url, spec, owners=OWNERS)
    for rank in range(4):
        with zd.Writer.attach(url, rank) as writer:
            for step in range(10):
                writer.write_step(step, {"u": field(step)[writer.region("u")]})
    assert zd.Writer.attach(url).publish(flush=True) == 10
    expected = np.stack([field(step) for step in range(10)], axis=options.get("axis", 0))
    np.testing.assert_array_equal(zd.open(url)["u"][...], expected)
    np.testing.assert_array_equal(zarr.open_group(url, mode="r")["u"][...], expected)


def test_verify_counts_steps_that_are_not_published_and_finds_no_fault(url):
    zd.Writer.create(url, arrays(), owners=OWNERS)
    writers = put_all(url, range(7))
    zd.Writer.attach(url).publish(3)
    report = zd.verify(url, deep="decode")
    assert (report.ok, report.exit_code, report.counts) == (True, 0, {})
    assert report.to_json()["unpublished"] == report.unpublished == 4
    assert "4 stored objects of steps that an open output has not published yet" in str(report)
    strays = Path(url, "u", "c", "1", "9"), Path(url, "u", "c", "9", "9")
    for stray in strays:
        stray.mkdir(parents=True, exist_ok=True)
        (stray / "9").write_bytes(b"?")
    report = zd.verify(url)
    assert (report.unpublished, report.counts) == (4, {"stray": 2})
    for stray in strays:
        (stray / "9").unlink()
    close(writers)
    zd.Writer.attach(url).finish()
    assert (zd.verify(url).unpublished, zd.verify(url).ok) == (0, True)


def test_what_lies_beside_the_hierarchy_and_what_in_it(url, tmp_path):
    zd.Writer.create(url, arrays(), owners=OWNERS, attributes={"title": "run"})
    close(put_all(url, range(2)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.zarr", "run.zarr.zarr-dask"]
    assert sorted(path.name for path in (tmp_path / "run.zarr").iterdir()) == [
        "time",
        "u",
        "zarr.json",
    ]
    assert zd.open(url).attributes == {"title": "run"}
    assert zd.open(url)["u"].attributes == {}


def test_static_arrays_names_and_default_grids(url):
    y = np.linspace(0, 1, 6)
    names = {"u": ("y", "x"), "v": ("time", "y", "x")}
    spec = {
        "u": {"shape": (6, 8), "dtype": "f4", "dimension_names": names["u"]},
        "v": {"shape": (6, 8), "dtype": "f4", "dimension_names": names["v"]},
        "time": {"shape": (), "dtype": "M8[s]", "dimension_names": ["time"]},
        "y": {"values": y, "dimension_names": ["y"]},
    }
    zd.Writer.create(url, spec, owners=OWNERS)
    with pytest.raises(GridError, match=r"\['y'\] are no growing arrays"):
        zd.Writer.attach(url, 0).write_step(0, {"y": y})
    group = zd.open(url)
    assert group["u"].chunks == (1, 3, 4)
    assert group["u"].dimension_names == group["v"].dimension_names == ("time", "y", "x")
    assert group["time"].chunks == (1024,)
    np.testing.assert_array_equal(group["y"][...], y)


def test_lengths_along_the_steps_may_differ_and_be_declared(url):
    spec = {
        "u": {"shape": (6, 8), "dtype": "f4", "chunks": (2, 3, 4)},
        "v": {"shape": (6, 8), "dtype": "f4", "chunks": (3, 6, 4)},
        "w": {"shape": (6, 8), "dtype": "f4", "chunks": ((6, 6, 8), 6, 8)},
    }
    maps = {"u": OWNERS, "v": zd.decompose((6, 8), (1, 2))}
    zd.Writer.create(url, spec, owners=maps, capacity=20)
    writers = [zd.Writer.attach(url, rank) for rank in range(4)]
    seen = []
    for step in range(20):
        for writer in writers:
            regions = {name: writer.region(name) for name in spec}
            blocks = {n: field(step)[region] for n, region in regions.items() if region}
            writer.write_step(step, blocks)
        seen.append(writers[0].publish())
    assert sorted(set(seen)) == [0, 6, 12, 20]
    close(writers)
    expected = np.array([field(step) for step in range(20)])
    for name in spec:
        np.testing.assert_array_equal(zd.open(url)[name][...], expected)


def test_consolidated_metadata_above_are_kept_in_step(url):
    zd.create_group(url)
    zd.Writer.create(url, arrays(), path="runs/7", owners=OWNERS)
    zd.consolidate(url)
    close(put_all(url, range(4), path="runs/7"))
    zd.Writer.attach(url, path="runs/7").publish()
    assert zd.open(url)["runs/7/u"].shape == (4, 6, 8)
    assert zd.open(url).stale() == zd.open(url, "runs/7").stale() == []


def test_readers_without_consolidated_metadata_see_whole_arrays(url):
    """Documents of arrays come before consolidated metadata, those of coordinates last."""
    from zarr_dask.jobs.simulation.output import open_output
    from zarr_dask.jobs.simulation.publish import Publisher
    from zarr_dask.stores import LocalStore, Recording

    zd.Writer.create(url, arrays(), owners=OWNERS)
    close(put_all(url, range(2)))
    store = Recording(LocalStore(url))
    output = open_output(store, "", None, None)
    Publisher(output).publish(1, flush=False)
    written = [one.key for one in store.requests if one.method in {"set", "set_if"}]
    assert written == ["u/zarr.json", "time/zarr.json", "zarr.json"]


def test_attributes_that_others_add_meanwhile_stay(url):
    coordinator = zd.Writer.create(url, arrays(), owners=OWNERS)
    close(put_all(url, range(2)))
    with pytest.warns(zd.errors.ConsolidatedMetadataWarning):
        zd.open_array(url, "u", mode="r+").update_attributes({"units": "m"})
    zd.Writer.attach(url).publish()
    assert zd.open(url)["u"].attributes == {"units": "m"}
    zarr.open_group(url).create_array("u", shape=3, dtype="i2", overwrite=True)
    with pytest.raises(MetadataChangedError):
        zd.Writer.attach(url)
    with pytest.raises(MetadataChangedError):
        coordinator.publish()


def test_fill_values_are_not_stored(url):
    spec = {"u": {"shape": (4,), "dtype": "f4", "chunks": (2, 2), "fill_value": 7}}
    zd.Writer.create(url, spec, owners=zd.decompose((4,), 2))
    for rank in range(2):
        with zd.Writer.attach(url, rank) as writer:
            for step in range(2):
                writer.write_step(step, {"u": np.full(2, 7 if rank else step, "f4")})
    assert zd.Writer.attach(url).publish() == 2
    array = zd.open(url)["u"]
    assert len(list(array.store.list("u/c/"))) == 1
    assert array[...].tolist() == [[0, 0, 7, 7], [1, 1, 7, 7]]


def test_holes_read_as_the_fill_value(url):
    regions = [(slice(0, 3), slice(0, 8)), (slice(3, 6), slice(4, 8))]
    with pytest.raises(GridError, match="12 of the 48"):
        zd.decompose((6, 8), regions)
    spec = {"u": {"shape": (6, 8), "dtype": "f4", "chunks": (1, 3, 4), "fill_value": -1}}
    zd.Writer.create(url, spec, owners=zd.decompose((6, 8), regions, holes=True))
    for rank in range(2):
        with zd.Writer.attach(url, rank) as writer:
            writer.write_step(0, {"u": field(0)[writer.region("u")]})
    zd.Writer.attach(url).publish()
    expected = field(0)
    expected[3:, :4] = -1
    np.testing.assert_array_equal(zd.open(url)["u"][0], expected)


def test_a_store_without_a_place_beside_it_needs_a_journal():
    values, journal = {}, {}
    with pytest.raises(StoreError, match="journal="):
        zd.Writer.create(values, arrays(), owners=OWNERS)
    assert values == {}
    zd.Writer.create(values, arrays(), owners=OWNERS, journal=journal)
    close(put_all(values, range(400), journal=journal))
    assert zd.Writer.attach(values, journal=journal).publish() == 400
    assert zd.open(values)["u"][399].tolist() == field(399).tolist()
    assert len(max(journal.values(), key=len)) < 20_000
    with zd.Writer.attach(values, 3, journal=journal) as writer:
        assert writer.next_step == 400


def test_a_writer_that_nobody_has_any_more_gives_its_rank_up(tmp_path):
    url = tmp_path / "run.zarr"
    zd.Writer.create(url, {"u": {"shape": (2,), "dtype": "f4"}})
    writer = zd.Writer.attach(url, 0)
    writer.write_step(0, {"u": [1, 2]})
    with pytest.raises(RankError, match="not closed"):
        zd.Writer.attach(url, 0)
    del writer
    gc.collect()
    with zd.Writer.attach(url, 0) as again:
        assert again.next_step == 1
        again.close()  # twice is no harm, nor that its number may be another file's by then
        with (tmp_path / "other").open("w") as other:
            again.close()
            other.write("still open")


def test_two_outputs_may_share_a_place_for_their_journals(tmp_path):
    options = {"journal": tmp_path / "journals"}
    places = [tmp_path / name for name in ("one.zarr", "two.zarr")]
    for place in places:
        zd.Writer.create(place, arrays(), owners=OWNERS, **options)
    close(put_all(places[0], range(4), **options))
    assert [zd.Writer.attach(place, **options).stored() for place in places] == [4, 0]
    with pytest.raises(WriterNotFoundError):
        zd.Writer.attach(tmp_path / "three.zarr", 0, **options)


@pytest.mark.parametrize("root", ["run.zarr", "run.zarr/below", "run.zarr/below/u"])
def test_verify_is_told_of_a_journal_elsewhere(tmp_path, root, capsys):
    options = {"journal": tmp_path / "journals"}
    zd.create_group(tmp_path / "run.zarr")
    place = tmp_path / "run.zarr" / "below"
    zd.Writer.create(place, arrays(), owners=OWNERS, **options)
    close(put_all(place, range(4), **options))
    assert set(zd.verify(tmp_path / root).counts) == {"stray"}
    report = zd.verify(tmp_path / root, **options)
    assert report.ok
    assert report.unpublished > 0
    with pytest.raises(SystemExit) as end:
        main(["verify", str(tmp_path / root), "--journal", str(options["journal"])])
    assert not end.value.code
    assert "has not published yet" in capsys.readouterr().out


def test_texts_and_records_and_times(url):
    spec = {
        "name": {"shape": (), "dtype": str, "chunks": 3},
        "when": {"shape": (), "dtype": "M8[s]"},
        "pair": {"shape": (2,), "dtype": [("a", "i2"), ("b", "f4")], "chunks": (3, 1)},
        "word": {"shape": (2,), "dtype": str, "chunks": (3, 1)},
    }
    zd.Writer.create(url, spec, owners=zd.decompose((2,), 2), capacity=5)
    pair = np.array([(1, 2.5), (3, 4.5)], spec["pair"]["dtype"])
    for rank in range(2):
        with zd.Writer.attach(url, rank, threads=None) as writer:
            for step in range(5):
                own = slice(rank, rank + 1)
                when = np.datetime64("2030-01-01", "s") + np.timedelta64(step, "s")
                words = np.array([f"{step} {rank}"], object)
                blocks = {"name": f"step {step}", "when": when, "pair": pair[own], "word": words}
                writer.write_step(step, blocks)
    assert zd.Writer.attach(url).publish(4) == 5
    group = zd.open(url)
    assert group["name"][...].tolist() == [f"step {step}" for step in range(5)]
    assert group["word"][4].tolist() == ["4 0", "4 1"]
    assert str(group["when"][4]) == "2030-01-01T00:00:04"
    np.testing.assert_array_equal(group["pair"][3], pair)


def test_other_file_systems_put_the_files_of_ranks_anew():
    fsspec = pytest.importorskip("fsspec")
    url, journal = "memory://writer/run.zarr", "memory://writer/journal"
    zd.Writer.create(url, arrays(), owners=OWNERS, journal=journal)
    close(put_all(url, range(5), journal=journal))
    coordinator = zd.Writer.attach(url, journal=journal)
    assert coordinator.publish(flush=True) == 5
    assert zd.open(url)["u"][4].tolist() == field(4).tolist()
    zd.Writer.attach(url, 2, from_step=3, journal=journal)
    assert coordinator.stored() == coordinator.visible == 3
    fsspec.filesystem("memory").rm("/writer", recursive=True)


def test_an_output_that_is_finished_leaves_nothing_beside_it(url, tmp_path):
    coordinator = zd.Writer.create(url, arrays(2), owners=OWNERS)
    close(put_all(url, range(7)))
    close([zd.Writer.attach(url, rank, from_step=3) for rank in range(4)])
    with zd.Writer.attach(url, 1) as writer:
        put(writer, 3)
    with pytest.raises(StepsMissingError, match="rank 0: u"):
        coordinator.finish()
    for rank in (0, 2, 3):
        with zd.Writer.attach(url, rank) as writer:
            put(writer, 3)
    assert coordinator.finish() == 4
    check_prefix(url, 4)
    assert not list(tmp_path.rglob("__output"))
    assert len(list(zd.open(url).store.list("u/c/"))) == 8


def run_script(url, steps, **options):
    """The script of a simulation, as a batch system starts it: once more after its end."""
    try:
        zd.Writer.attach(url)
    except WriterNotFoundError:
        zd.Writer.create(url, arrays(2), owners=OWNERS)
    for rank in range(4):
        with zd.Writer.attach(url, rank, **options) as writer:
            assert writer.region("u") is not None
            for step in range(writer.next_step, steps):
                put(writer, step)
    assert zd.Writer.attach(url).publish() == steps
    return zd.Writer.attach(url).finish()


def contents(folder):
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_the_script_of_a_finished_simulation_runs_again_and_writes_nothing(url, tmp_path):
    assert run_script(url, 4) == 4
    before = contents(tmp_path)
    assert run_script(url, 4) == 4
    again = zd.Writer.create(url, arrays(2), owners=OWNERS)
    assert again.finished
    assert (again.visible, again.stored(), again.next_step) == (4, 4, 4)
    with zd.Writer.attach(url, 1) as writer:
        put(writer, 3)  # as it may after a crash: skipped
        writer.flush()
    assert contents(tmp_path) == before
    check_prefix(url, 4)


def test_files_that_a_killed_process_was_removing_go_with_the_next_end(url, tmp_path, monkeypatch):
    def killed(place, prefix):
        place.delete(f"{prefix}output.json")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(output, "_forget", killed)
        with pytest.raises(KeyboardInterrupt):
            run_script(url, 4)
    assert list(tmp_path.rglob("rank-*"))
    assert run_script(url, 4) == 4
    assert not list(tmp_path.rglob("__output"))
    check_prefix(url, 4)


def test_a_finished_simulation_takes_no_more_steps(url, tmp_path):
    run_script(url, 4)
    before = contents(tmp_path)
    with pytest.raises(StepError, match=r"finished with 4 steps.*overwrite=True"):
        run_script(url, 5)
    with pytest.raises(StepError, match="finished with 4 steps"):
        zd.Writer.attach(url).publish(4)
    with pytest.raises(StepError, match="none of them can be discarded"):
        zd.Writer.attach(url, 0, from_step=2)
    for changed in ({"owners": zd.decompose((6, 8), (1, 2))}, {"capacity": 4}, {"gather": True}):
        with pytest.raises(zd.errors.NodeExistsError, match="Only the same call"):
            zd.Writer.create(url, arrays(2), **{"owners": OWNERS, **changed})
    other = {**arrays(2), "x": {"values": np.arange(3)}}
    with pytest.raises(zd.errors.NodeExistsError):
        zd.Writer.create(url, other, owners=OWNERS)
    assert contents(tmp_path) == before


def test_values_count_among_the_arguments_of_a_finished_output(url):
    def create(values):
        fixed = {"x": {"values": values}}
        return zd.Writer.create(url, {**arrays(2), **fixed}, owners=OWNERS)

    create(["a", "b"]).finish()
    assert create(["a", "b"]).finished
    with pytest.raises(zd.errors.NodeExistsError):
        create(["a", "c"])


def test_a_finished_output_begins_anew_if_it_is_told_to_or_is_gone(url):
    run_script(url, 4)
    zd.Writer.create(url, arrays(2), owners=OWNERS, overwrite=True)
    assert run_script(url, 2) == 2
    shutil.rmtree(url)
    assert run_script(url, 4) == 4
    with pytest.warns(zd.errors.ConsolidatedMetadataWarning):
        zd.to_zarr(da.zeros((2, 3), chunks=2), url, "u", overwrite=True)
    with pytest.raises(WriterNotFoundError, match="replaced"):
        zd.Writer.attach(url, 0)


def test_the_run_that_has_finished_an_output_may_start_again(url):
    zd.Writer.create(url, arrays(2), owners=OWNERS)
    close(put_all(url, range(4)))
    assert run_script(url, 4, from_step=2, run="job 7") == 4
    assert run_script(url, 4, from_step=2, run="job 7") == 4
    assert run_script(url, 4, from_step=4, run="job 8") == 4  # from the checkpoint of the end
    for options in ({"run": "job 8"}, {"run": "job 7", "from_step": 1}):
        with pytest.raises(StepError, match="none of them can be discarded"):
            run_script(url, 4, **{"from_step": 2, **options})


# --- refusals -------------------------------------------------------------------------------------


def test_the_format_is_that_of_the_group(tmp_path):
    zd.create_group(tmp_path / "a.zarr", format="v2")
    with pytest.raises(NodeExistsError, match="of format 'v2'"):
        zd.Writer.create(tmp_path / "a.zarr", arrays(), format="v3")
    zd.Writer.create(tmp_path / "a.zarr", arrays(), path="b")
    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="r", path="b", zarr_format=2)
    assert set(group) == {"u", "time"}


def test_shared_objects_are_refused_with_what_would_fit(url, tmp_path):
    spec = {"u": {"shape": (120, 90), "dtype": "f4", "chunks": (2, 50, 50)}}
    with pytest.raises(SharedObjectError) as caught:
        zd.Writer.create(url, spec, owners=zd.decompose((120, 90), (3, 1)))
    assert list(tmp_path.iterdir()) == []
    assert caught.value.key == "u/c/0/0/0"
    assert caught.value.ranks == (0, 1)
    assert "chunks=(2, 40, 50)" in str(caught.value)
    assert "((50, 50, 20), (90,))" in str(caught.value)
    assert "gather=True" in str(caught.value)
    zd.Writer.create(url, spec, owners=zd.decompose((120, 90), ((50, 50, 20), (90,))))


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"u": {"shape": (6, 9), "dtype": "f4"}}, GridError, "owners are for steps of shape"),
        ({"u": {"shape": (6, 8)}}, TypeError, "needs dtype"),
        ({"u": {"shape": (6, 8), "dtype": "f4", "colour": 1}}, TypeError, "colour"),
        ({"u": {"shape": (6, 8), "dtype": "f4", "axis": 3}}, GridError, "axis=3"),
        (
            {"u": {"shape": (6, 8), "dtype": "f4", "chunks": (3, 4)}},
            GridError,
            r"'u': chunks=\(3, 4\) has 2 lengths; expected 3, .* as in chunks=\(1, 3, 4\)",
        ),
        (
            {"u": {"shape": (6, 8), "dtype": "f4", "shards": [6], "axis": 1}},
            GridError,
            r"at position 1, as in shards=\(6, 1, 8\)",
        ),
        ({"u": {"shape": (6, 8), "dtype": "nonsense"}}, DataTypeError, "nonsense"),
        ({"y": {"values": [1, 2]}}, GridError, "no array of the output grows"),
        ({"u": {"shape": (6, 8), "dtype": "f4", "chunks": ((1, 2), 3, 4)}}, GridError, "capacity"),
    ],
)
def test_bad_descriptions_are_refused_before_anything_is_made(url, tmp_path, change, error, says):
    with pytest.raises(error, match=says):
        zd.Writer.create(url, {"time": {"values": 3}, **change}, owners=OWNERS)
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_not_replaced_unasked(url):
    zd.Writer.create(url, arrays(), owners=OWNERS)
    close(put_all(url, range(2)))
    zd.Writer.attach(url).publish()
    with pytest.raises(NodeExistsError):
        zd.Writer.create(url, arrays(), owners=OWNERS)
    check_prefix(url, 2)
    zd.Writer.create(url, arrays(), owners=OWNERS, overwrite=True)
    check_prefix(url, 0)
    assert zd.Writer.attach(url, 0).next_step == 0


def test_a_format_without_groups_is_refused(url, tmp_path):
    with pytest.raises(zd.errors.MetadataError, match="v1 has no groups"):
        zd.Writer.create(url, arrays(), owners=OWNERS, format="v1")
    assert list(tmp_path.iterdir()) == []


def test_an_output_must_be_created_before_ranks_attach(url):
    with pytest.raises(WriterNotFoundError, match=r"Writer\.create"):
        zd.Writer.attach(url, 0)


def test_a_simulation_that_is_started_again_is_told_to_attach(url):
    zd.Writer.create(url, arrays(), owners=OWNERS)
    with pytest.raises(zd.errors.NodeExistsError, match=r"Writer\.attach.*continues it"):
        zd.Writer.create(url, arrays(), owners=OWNERS)
    zd.Writer.abandon(url)
    with pytest.raises(WriterNotFoundError, match="abandoned"):
        zd.Writer.attach(url)


@pytest.mark.parametrize("rank", [-1, 4, 1.5, True, "0"])
def test_ranks_that_are_not_there_are_refused(url, rank):
    zd.Writer.create(url, arrays(), owners=OWNERS)
    with pytest.raises(RankError, match="ranks 0 to 3"):
        zd.Writer.attach(url, rank)


def test_two_processes_cannot_be_one_rank(url):
    zd.Writer.create(url, arrays(), owners=OWNERS)
    with zd.Writer.attach(url, 0), pytest.raises(RankError, match="in use"):
        zd.Writer.attach(url, 0)
    with zd.Writer.attach(url, 0) as writer:
        put(writer, 0)
    with pytest.raises(RankError, match="closed"):
        put(writer, 1)


@pytest.mark.parametrize(
    ("step", "blocks", "error", "says"),
    [
        (1, {}, StepError, "step 0 comes next"),
        (-1, {}, StepError, "step=-1"),
        (0.5, {}, StepError, r"step=0\.5"),
        (10, {}, StepError, "room for 10"),
        (0, {"u": None}, GridError, "no block for"),
        (0, {"u": np.zeros((6, 8), "f4")}, GridError, r"\(6, 8\)"),
        (0, {"u": np.zeros((3, 4), "f8")}, DataTypeError, "astype"),
        (0, {"u": np.ma.zeros((3, 4), "f4")}, DataTypeError, "masked"),
        (0, {"time": "noon"}, DataTypeError, "str"),
        (0, {"salt": 1}, GridError, r"\['salt'\]"),
    ],
)
def test_bad_steps_and_blocks_are_refused_before_anything_is_written(
    url, tmp_path, step, blocks, error, says
):
    zd.Writer.create(url, arrays(1), owners=OWNERS, capacity=10)
    blocks = {"u": np.ones((3, 4), "f4"), "time": 0.0, **blocks}
    with zd.Writer.attach(url, 0) as writer:
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(error, match=says):
            writer.write_step(step, {k: v for k, v in blocks.items() if v is not None})
        assert sorted(tmp_path.rglob("*")) == before
        writer.write_step(0, {"u": np.ones((3, 4), "f4"), "time": 0.0})
        with pytest.raises(StepError, match="step 1 comes next"):
            writer.write_step(
                0, {"u": np.ones((3, 4), "f4"), "time": 0.0}
            ) if writer.next_step else None


def test_a_cast_can_be_asked_for(url):
    zd.Writer.create(url, arrays(1), owners=OWNERS)
    with zd.Writer.attach(url, 0, casting="same_kind") as writer:
        writer.write_step(0, {"u": np.ones((3, 4)), "time": np.int64(3)})
        with pytest.raises(DataTypeError):
            writer.write_step(1, {"u": np.ones((3, 4), complex), "time": 0})


@pytest.mark.parametrize("flush", [False, True])
@pytest.mark.parametrize("blocked", ["u", "time"])
def test_a_step_that_could_not_be_stored_can_be_put_again(url, blocked, flush):
    """Whichever of the arrays was stored already, and whatever is still in memory."""
    zd.Writer.create(url, arrays(), owners=OWNERS)
    writers = put_all(url, range(1))
    obstacle = Path(url, blocked, "c")
    values = {"u": field(1)[writers[0].region("u")], "time": 0.25}
    for _ in range(2):
        obstacle.touch()  # where the folder of its objects would be
        with pytest.raises(StoreError):
            writers[0].write_step(1, values, flush=flush)
        obstacle.unlink()
    writers[0].write_step(1, values, flush=flush)
    for writer in writers[1:]:
        put(writer, 1)
    assert zd.Writer.attach(url).publish() == 2
    check_prefix(url, 2)
    with pytest.raises(StepError, match="step 2 comes next"):
        put(writers[0], 1)
    close(writers)


class Mailbox:
    """A communicator between threads; who waits for a message that never comes fails."""

    def __init__(self, rank, size, boxes):
        self.rank, self.size, self._boxes = rank, size, boxes

    def send(self, obj, dest, tag=0):
        self._boxes[self.rank, dest].put(obj)

    def recv(self, buf=None, source=0, tag=0):
        return self._boxes[source, self.rank].get(timeout=20)


def test_a_rank_that_puts_a_step_again_asks_the_others_for_nothing(url):
    """They have sent their pieces, and have gone on."""
    spec = {"u": {"shape": (8,), "dtype": "f4", "chunks": (1, 8)}}
    zd.Writer.create(url, spec, owners=zd.decompose((8,), (2,)), gather=True)
    boxes = {pair: Queue() for pair in product(range(2), repeat=2)}
    obstacle = Path(url, "u", "c")

    def run(rank):
        with zd.Writer.attach(url, rank=rank, gather=Mailbox(rank, 2, boxes)) as writer:
            for step in range(3):
                block = {"u": np.full(4, 1 + step * 10 + rank, "f4")}
                if not rank and step == 0:
                    obstacle.touch()
                    with pytest.raises(StoreError):
                        writer.write_step(step, block)
                    obstacle.unlink()
                writer.write_step(step, block)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, range(2)))
    zd.Writer.attach(url).publish()
    expected = np.repeat([[1, 2], [11, 12], [21, 22]], 4, axis=1)
    np.testing.assert_array_equal(zd.open(url)["u"][...], expected)


def together(url, ranks, run):
    """What ranks on threads, which share objects, return or raise."""
    spec = {"u": {"shape": (8 * ranks,), "dtype": "f4", "chunks": (2, 8 * ranks)}}
    zd.Writer.create(url, spec, owners=zd.decompose((8 * ranks,), (ranks,)), gather=True)
    boxes = {pair: Queue() for pair in product(range(ranks), repeat=2)}
    with ThreadPoolExecutor(ranks) as pool:
        found = [pool.submit(run, Mailbox(rank, ranks, boxes)) for rank in range(ranks)]
    assert all(box.empty() for box in boxes.values())
    return [one.exception() or one.result() for one in found]


def test_ranks_that_share_objects_find_their_output_finished(url):
    def run(comm):
        with zd.Writer.attach(url, comm.rank, gather=comm) as writer:
            first = writer.next_step
            for step in range(first, 3):
                writer.write_step(step, {"u": np.full(8, step, "f4")})
            return first

    assert together(url, 2, run) == [0, 0]
    assert zd.Writer.attach(url).finish() == 3
    assert together(url, 2, run) == [3, 3]
    assert zd.open(url)["u"][:, 15].tolist() == [0, 1, 2]


@pytest.mark.parametrize("rank", range(5))
def test_an_exception_in_one_rank_reaches_all(url, rank):
    """Those of its own code too; each other rank gets an error that names the first."""

    def run(comm):
        with zd.Writer.attach(url, rank=comm.rank, gather=comm) as writer:
            for step in range(8):
                if (comm.rank, step) == (rank, 3):
                    raise ValueError("no convergence.")
                writer.write_step(step, {"u": np.full(8, 1 + step, "f4")})

    errors = together(url, 5, run)
    assert isinstance(errors.pop(rank), ValueError)
    assert len(errors) == 4
    for error in errors:
        assert isinstance(error, RankError)
        assert f"rank {rank} has failed (before its step 3: ValueError: no convergence)" in str(
            error
        )
    assert zd.Writer.attach(url).publish() == 2
    assert zd.open(url)["u"][:, ::8].tolist() == [5 * [1], 5 * [2]]


@pytest.mark.parametrize("how", ["ends", "is released", "is dropped", "cannot flush", "skips"])
def test_a_rank_that_is_missing_is_named_by_all(url, how):
    """A rank that ends its output early, or puts another step, keeps nobody waiting."""

    def run(comm):
        writer = zd.Writer.attach(url, rank=comm.rank, gather=comm)
        steps = 4 if comm.rank or how == "cannot flush" else 3
        for step in range(steps):
            writer.write_step(step, {"u": np.full(8, 1 + step, "f4")})
        if comm.rank == 0 and how == "is released":
            writer.release()
        elif comm.rank == 0 and how == "is dropped":
            del writer
            gc.collect()
        elif comm.rank == 0 and how == "skips":
            with writer:
                writer.write_step(4, {"u": np.ones(8, "f4")})
        elif comm.rank == 0 and how == "cannot flush":
            obstacle = Path(url, "u", "c")
            shutil.rmtree(obstacle)
            obstacle.touch()
            with writer:
                writer.write_step(4, {"u": np.ones(8, "f4")})
        else:
            with writer:
                if how == "cannot flush":
                    writer.write_step(4, {"u": np.ones(8, "f4")})

    errors = together(url, 3, run)
    expected = {
        "ends": "rank 0 has failed (it closed its writer before step 3)",
        "is released": "rank 0 has failed (it was released)",
        "is dropped": "rank 0 has failed (its writer was not closed)",
        "cannot flush": "rank 0 has failed (before its step 5: StoreError",
        "skips": "rank 0 has failed (before its step 3: StepError",
    }
    assert len([one for one in errors if expected[how] in str(one)]) == 2, errors


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        ({"path": "other"}, WriterNotFoundError),
        ({"casting": "other"}, ValueError),
        ({"from_step": 3}, StepError),
    ],
)
def test_a_rank_that_cannot_attach_is_named_by_all(url, wrong, kind):
    def run(comm):
        options = {} if comm.rank else wrong
        with zd.Writer.attach(url, rank=comm.rank, gather=comm, **options):
            pass

    found = together(url, 3, run)
    assert isinstance(found[0], kind)
    for other in (1, 2):
        assert isinstance(found[other], RankError)
        assert f"rank 0 has failed ({kind.__name__}: " in str(found[other])
    zd.Writer.abandon(url)  # no rank has kept its file


@pytest.mark.parametrize("kind", ["files", "journal", "memory"])
def test_verify_holds_objects_against_what_ranks_have_said(tmp_path, kind):
    """Objects that are not whole may be replaced at any time, and are not compared."""
    where = {} if kind == "memory" else str(tmp_path / "run.zarr")
    options = {} if kind == "files" else {"journal": {} if kind == "memory" else tmp_path / "j"}
    coordinator = zd.Writer.create(where, arrays(), owners=OWNERS, **options)
    writers = put_all(where, range(5), **options)
    coordinator.publish()

    def kinds():
        report = zd.verify(where, deep="receipts", **options)
        return {one.key: one.kind for one in report.findings}

    assert kinds() == {}
    close(writers)
    assert coordinator.publish(flush=True) == 5
    assert kinds() == {}
    values = where if kind == "memory" else None

    def change(key, how):
        path = Path(tmp_path, "run.zarr", key)
        old = values[key] if values is not None else path.read_bytes()
        new = how(old)
        if values is not None:
            values.pop(key) if new is None else values.update({key: new})
        else:
            path.unlink() if new is None else path.write_bytes(new)

    change("u/c/0/0/0", lambda old: None)
    change("u/c/1/0/1", lambda old: old[:-1] + bytes([old[-1] ^ 1]))
    change("u/c/1/1/1", lambda old: old[:-1])
    change("u/c/2/1/1", lambda old: old[:-1])  # of a step that is alone in it
    assert kinds() == {"u/c/0/0/0": "absent", "u/c/1/0/1": "checksum", "u/c/1/1/1": "torn"}
    change("u/c/2/1/1", lambda old: None)  # one that is cut and damaged could not be cleared
    coordinator.finish()
    with pytest.raises(ManifestError, match="no receipts"):
        kinds()


def test_publishing_names_what_is_missing(url):
    coordinator = zd.Writer.create(url, arrays(), owners=OWNERS)
    writers = put_all(url, range(2))
    for writer in writers[:3]:
        put(writer, 2)
        put(writer, 3)
    with pytest.raises(StepsMissingError) as caught:
        coordinator.publish(3)
    assert caught.value.missing == ((3, "u", "u/c/1/1/1 (steps 2 to 3)"),)
    assert zd.open(url)["u"].shape[0] == 0
    assert coordinator.publish() == 2
    put(writers[3], 2)
    with pytest.warns(StepNotShownWarning, match=r"publish\(2\) shows the steps before 2 only"):
        assert coordinator.publish(2) == 2
    with pytest.raises(StepsMissingError, match="rank 3: u"):
        coordinator.publish(2, flush=True)
    close(writers)
    assert coordinator.publish(2, flush=True) == 3
    check_prefix(url, 3)


def test_an_output_whose_rank_has_died_is_ended_as_the_error_says(url):
    coordinator = zd.Writer.create(url, arrays(), owners=OWNERS)
    writers = put_all(url, range(3))
    writers.pop().release()  # as if it was killed, with step 2 in memory
    close(writers)
    with pytest.raises(StepsMissingError, match=r"publish\(flush=True\).*Writer\.abandon"):
        coordinator.finish()
    assert coordinator.publish(flush=True) == 2
    zd.Writer.abandon(url)
    check_prefix(url, 2)
    assert zd.verify(url).ok


def test_an_object_that_has_gone_is_noticed(url, tmp_path):
    coordinator = zd.Writer.create(url, arrays(), owners=OWNERS)
    close(put_all(url, range(2)))
    (tmp_path / "run.zarr/u/c/0/1/0").unlink()
    with pytest.raises(StepsMissingError, match="rank 2: u: u/c/0/1/0 has 0 bytes"):
        coordinator.publish(1)
    check_prefix(url, 0)


# --- restarts -------------------------------------------------------------------------------------


def test_a_rank_that_dies_goes_on_where_its_objects_end(url):
    coordinator = zd.Writer.create(url, arrays(4), owners=OWNERS)
    writers = put_all(url, range(6))
    for writer in writers:
        writer.release()  # as if it was killed: what is in memory is lost
    writers = [zd.Writer.attach(url, rank) for rank in range(4)]
    assert {writer.next_step for writer in writers} == {4}
    for writer in writers:
        for step in range(2, 9):  # from a checkpoint before: the first two are passed over
            put(writer, step)
    close(writers)
    assert coordinator.publish(flush=True) == 9
    check_prefix(url, 9)


def test_closed_in_the_midst_of_an_object_it_is_completed_later(url):
    coordinator = zd.Writer.create(url, arrays(4), owners=OWNERS)
    close(put_all(url, range(6)))
    assert coordinator.publish(flush=True) == 6
    writers = put_all(url, range(6, 7))
    check_prefix(url, 6)
    close(writers)
    close(put_all(url, range(7, 12)))
    assert coordinator.publish() == 12
    check_prefix(url, 12)


@pytest.mark.parametrize("step", [0, 3, 4, 5, 6])
def test_a_restart_from_a_checkpoint_forgets_what_lies_after(url, step):
    coordinator = zd.Writer.create(url, arrays(4), owners=OWNERS)
    close(put_all(url, range(6)))
    coordinator.publish(flush=True)
    writers = [zd.Writer.attach(url, rank, from_step=step) for rank in range(4)]
    check_prefix(url, step)
    assert {writer.next_step for writer in writers} == {step}
    assert coordinator.stored() == step
    for writer in writers[:3]:
        for at in range(step, 10):
            put(writer, at, seed=0.5)
    assert coordinator.publish(flush=True) == step, "old steps of rank 3 must not count"
    for at in range(step, 10):
        put(writers[3], at, seed=0.5)
    close(writers)
    assert coordinator.publish(flush=True) == 10
    expected = [field(at, seed=0 if at < step else 0.5) for at in range(10)]
    np.testing.assert_array_equal(zd.open(url)["u"][...], expected)


def test_a_restart_after_the_last_step_of_a_full_output_finds_nothing_to_do(url):
    coordinator = zd.Writer.create(url, arrays(4), owners=OWNERS, capacity=6)
    close(put_all(url, range(6)))
    coordinator.publish(flush=True)
    assert zd.Writer.attach(url, from_step=6, run="a").stored() == 6
    writers = [zd.Writer.attach(url, rank, from_step=6, run="b") for rank in range(4)]
    assert [writer.next_step for writer in writers] == [6] * 4
    with pytest.raises(StepError, match="room for 6 steps"):
        put(writers[0], 6)
    close(writers)
    with pytest.raises(StepError, match="room for 6 steps"):
        zd.Writer.attach(url, 0, from_step=7)
    coordinator.finish()
    stored = zarr.open_array(f"{url}/u", mode="r")[...]
    np.testing.assert_array_equal(stored, [field(step) for step in range(6)])


def test_a_rank_that_was_not_told_of_the_restart_takes_part_all_the_same(url):
    coordinator = zd.Writer.create(url, arrays(2), owners=OWNERS)
    close(put_all(url, range(6)))
    zd.Writer.attach(url, from_step=2)
    assert zd.Writer.attach(url, 0).next_step == 2
    assert coordinator.stored() == 2
    with pytest.raises(StepError, match="stored only the steps before 2"):
        zd.Writer.attach(url, 1, from_step=4)


@pytest.mark.parametrize("first", range(4))
def test_two_restarts_from_one_step_are_told_apart_by_the_names_of_their_runs(url, first):
    """Whoever comes first in the second one, those that missed the first one included."""
    coordinator = zd.Writer.create(url, arrays(2), owners=OWNERS)
    close(put_all(url, range(6)))
    for rank in (0, 2):  # the others die before they attach
        writer = zd.Writer.attach(url, rank, from_step=4, run="one")
        put(writer, 4, seed=0.25)
        put(writer, 5, seed=0.25)
        writer.release()
    order = [first, *(rank for rank in range(4) if rank != first)]
    writers = [zd.Writer.attach(url, rank, from_step=4, run="two") for rank in order]
    for number, writer in enumerate(writers):
        assert writer.next_step == 4
        assert coordinator.stored() == 4, (number, "steps of the first restart must not count")
        for step in range(4, 8):
            put(writer, step, seed=0.5)
    assert coordinator.publish() == 8
    close(writers)
    expected = [field(at, seed=0 if at < 4 else 0.5) for at in range(8)]
    np.testing.assert_array_equal(zd.open(url)["u"][...], expected)


def test_a_rank_that_attaches_again_in_its_run_goes_on_where_it_was(url):
    coordinator = zd.Writer.create(url, arrays(2), owners=OWNERS)
    close(put_all(url, range(6)))
    for writer in put_all(url, range(2, 6), from_step=2, run="17"):
        writer.release()
    again = zd.Writer.attach(url, 1, from_step=2, run="17")
    assert again.next_step == coordinator.stored() == 6
    with pytest.raises(StepError, match=r"run '17' has begun with step 2, not 4"):
        zd.Writer.attach(url, 0, from_step=4, run="17")
    assert zd.Writer.attach(url, from_step=2, run="17").stored() == 6
    assert zd.Writer.attach(url, from_step=2, run="18").stored() == 2
    with pytest.raises(TypeError, match="give both"):
        zd.Writer.attach(url, 0, run="18")


def test_a_process_that_is_not_of_the_last_run_cannot_write(url):
    """Without names a late rank is taken for one of the restart before; it must be noticed."""
    coordinator = zd.Writer.create(url, arrays(2), owners=OWNERS)
    close(put_all(url, range(4)))
    close(put_all(url, range(2, 4), ranks=1, from_step=2))
    late = zd.Writer.attach(url, 1, from_step=2)
    put(late, 2, seed=0.5)
    zd.Writer.attach(url, 0, from_step=2).close()
    store = zd.open(url).store
    before = {key: bytes(store.get(key)) for key in store.list("u/")}
    with pytest.raises(RankError, match="run="):
        put(late, 3, seed=0.5)
    assert {key: bytes(store.get(key)) for key in store.list("u/")} == before
    late.release()
    with zd.Writer.attach(url, 1) as writer:
        assert writer.next_step == 2
    assert coordinator.stored() == 2


def test_no_run_begins_after_what_a_rank_has_not_stored(url):
    zd.Writer.create(url, arrays(2), owners=OWNERS)
    close(put_all(url, range(4), ranks=3))
    with pytest.raises(StepError, match="only the steps before 0 are stored by all ranks"):
        zd.Writer.attach(url, from_step=2)
    close(put_all(url, range(4)))
    assert zd.Writer.attach(url, from_step=2).stored() == 2


def test_steps_that_are_not_stored_cannot_be_skipped(url):
    zd.Writer.create(url, arrays(4), owners=OWNERS)
    for writer in put_all(url, range(6)):
        writer.release()
    with pytest.raises(StepError, match="stored only the steps before 4 of 'u'"):
        zd.Writer.attach(url, 0, from_step=5)


def test_a_torn_line_is_cut_off_and_a_damaged_one_is_an_error(url, tmp_path):
    coordinator = zd.Writer.create(url, arrays(2), owners=OWNERS)
    close(put_all(url, range(4)))
    (file,) = tmp_path.rglob("rank-0")
    text = file.read_bytes()
    file.write_bytes(text + text.splitlines()[-1][:20])
    assert coordinator.publish() == 4
    with zd.Writer.attach(url, 0) as writer:
        assert writer.next_step == 4
        put(writer, 4)
    assert coordinator.publish() == 4
    file.write_bytes(text.replace(b'"u"', b'"v"', 1))
    with pytest.raises(CorruptObjectError, match="checksum"):
        zd.Writer.attach(url, 0)
    with pytest.raises(CorruptObjectError, match="checksum"):
        zd.Writer.attach(url).publish()


def test_a_full_disk_leaves_a_step_that_can_be_put_again(url, monkeypatch):
    coordinator = zd.Writer.create(url, arrays(1), owners=OWNERS)
    writers = put_all(url, range(2))
    whole = os.write

    def torn(descriptor, data):
        return whole(descriptor, data[: len(data) // 2])

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", torn)
        with pytest.raises(StoreError, match="bytes were written"):
            put(writers[0], 2)
    assert coordinator.publish() == 2
    for writer in writers:
        put(writer, 2)
    assert coordinator.publish() == 3
    close(writers)
    check_prefix(url, 3)


class StoppedError(Exception):
    """A process that ends in the midst of what it does."""


def stopping(number):
    """Raises at the request of some number that changes something."""
    left = [number]

    def before(method, key):
        if method in {"set", "delete", "delete_prefix"}:
            left[0] -= 1
            if left[0] < 0:
                raise StoppedError(key)

    return before


def check_documents(url, least, most):
    """Arrays by their own documents: every value there, coordinates not longer than fields."""
    fields, times = (zd.open_array(url, name) for name in ("u", "time"))
    assert least <= times.shape[0] <= most
    assert least <= fields.shape[0] <= most
    expected = [field(step) for step in range(fields.shape[0])]
    np.testing.assert_array_equal(fields[...], np.reshape(expected, (-1, 6, 8)))
    np.testing.assert_array_equal(times[...], np.arange(times.shape[0]) / 4)
    return fields.shape[0] - times.shape[0]


@pytest.mark.parametrize("node_format", ["v3", "v2", "v3draft"])
def test_wherever_publishing_stops_readers_see_whole_steps(url, tmp_path, node_format):
    journal = tmp_path / "journal"
    options = {"owners": OWNERS, "journal": journal, "format": node_format}
    zd.Writer.create(url, arrays(2), **options)
    close(put_all(url, range(3), journal=journal))
    stopped = 0
    for shown, target in ((2, None), (3, 2)):
        for number in range(20):
            store = HookStore(LocalStore(url), stopping(number))
            coordinator = zd.Writer.attach(store, journal=journal)
            try:
                seen = coordinator.publish(target, flush=target is not None)
            except StoppedError:
                stopped += 1
            else:
                assert seen == shown
                break
            assert check_documents(url, 0 if shown == 2 else 2, shown) >= 0
            if node_format != "v3draft":  # it has no consolidated metadata
                length = zd.open(url)["u"].shape[0]
                assert length in {0 if shown == 2 else 2, shown}
                check_prefix(url, length)
        check_prefix(url, shown)
    assert stopped >= 4


@pytest.mark.parametrize("number", range(12))
def test_wherever_a_rewind_stops_it_can_be_done_again(url, tmp_path, number):
    journal = tmp_path / "journal"
    zd.Writer.create(url, arrays(2), owners=OWNERS, journal=journal)
    close(put_all(url, range(5), journal=journal))
    coordinator = zd.Writer.attach(url, journal=journal)
    coordinator.publish(flush=True)
    store = HookStore(LocalStore(url), stopping(number))
    with suppress(StoppedError):
        zd.Writer.attach(store, 0, from_step=3, journal=journal).close()
    check_documents(url, 3, 5)
    length = zd.open(url)["u"].shape[0]
    assert length in {3, 5}
    check_prefix(url, length)
    writers = put_all(url, range(3, 6), journal=journal, from_step=3)
    assert coordinator.publish() == 6
    close(writers)
    check_prefix(url, 6)


@pytest.mark.parametrize("name", ["rank-0", "rewinds"])
@pytest.mark.parametrize("anew", [False, True])
def test_a_log_that_goes_on_with_a_hole_is_read_no_further(tmp_path, name, anew):
    """Of 64 GiB, which cost its author nothing; a hole is an unfinished line."""
    url = tmp_path / "w.zarr"
    zd.Writer.create(url, {"u": {"shape": (4,), "dtype": "i4", "chunks": (2, 4)}})
    with zd.Writer.attach(url, rank=0) as writer:
        for step in range(3):
            writer.write_step(step, {"u": np.full(4, step, "i4")})
    (file,) = (tmp_path / "w.zarr.zarr-dask").rglob(name)
    if anew:
        file.write_bytes(b"")
    os.truncate(file, 1 << 36)
    before = begin_peak()
    with suppress(ZarrDaskError):
        zd.Writer.attach(url, rank=0).close()
    with suppress(ZarrDaskError):
        zd.Writer.attach(url).publish(flush=True)
    assert status("VmHWM") - before < 300 << 20


def test_a_damaged_document_of_the_output_is_an_error(url, tmp_path):
    zd.Writer.create(url, arrays(2), owners=OWNERS)
    (file,) = tmp_path.rglob("output.json")
    good = json.loads(file.read_text())
    for change in ({"format": "x"}, {"run_id": "../../x"}, {"arrays": {}}, {"capacity": "x"}):
        file.write_text(json.dumps({**good, **change}))
        with pytest.raises(zd.errors.MetadataError):
            zd.Writer.attach(url, 0)


# --- owner maps -----------------------------------------------------------------------------------

sizes = st.lists(st.integers(0, 7), min_size=1, max_size=5).filter(any)


@given(st.lists(sizes, min_size=1, max_size=3), st.data())
def test_each_object_has_one_owner_and_each_element_comes_once(decomposition, data):
    shape = tuple(map(sum, decomposition))
    cells = tuple(data.draw(st.integers(1, n + 2)) for n in shape)
    grid = Grid.regular(shape, cells)
    found = zd.decompose(shape, tuple(map(tuple, decomposition)))
    if data.draw(st.booleans()):
        ranks = range(found.ranks)
        regions = [found.region(r) or (slice(0, 0),) * len(shape) for r in ranks]
        found = zd.decompose(shape, regions)
    shared = any(shared_objects(found, grid))
    shares = [share_of(found, grid, rank, shared=True) for rank in range(found.ranks)]
    owned = [coords for share in shares for coords in share.own]
    assert sorted(owned) == sorted(product(*map(range, grid.counts)))
    assert shared == any(share.send for share in shares)
    covered = np.zeros(shape, int)
    for rank, share in enumerate(shares):
        came = {other: shares[other].send[rank] for other in share.receive}
        assert came == share.receive
        block = np.empty(tuple(s.stop - s.start for s in share.region or ()))
        for piece in (*share.keep, *(one for found in came.values() for one in found)):
            assert piece.coords in share.own
            cell = covered[grid.region_of(piece.coords)]
            cell[piece.inside] += 1
        for piece in (*share.keep, *(one for found in share.send.values() for one in found)):
            assert block[piece.block].size
    assert (covered == 1).all()


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 6)), min_size=1, max_size=3), st.data()
)
def test_whole_cells_are_dealt_out_evenly(dimensions, data):
    shape = tuple(n for n, _ in dimensions)
    grid = Grid.regular(shape, tuple(data.draw(st.integers(1, n)) for n in shape))
    found = zd.decompose(grid, tuple(ranks for _, ranks in dimensions))
    assert not any(shared_objects(found, grid))
    for axis, (lengths, cell) in enumerate(zip(found.sizes, grid.cell_shape, strict=True)):
        counts = [-(-n // cell) for n in lengths]
        assert max(counts) - min(counts) <= 1
        assert sum(lengths) == shape[axis]


def test_owners_refuses_what_is_no_map():
    for decomposition, says in [
        ((2,), "one item for each"),
        ((0, 1), "at least one"),
        (((3, 4), (8,)), "add up to 7"),
        (("x", 1), "number of ranks"),
        ([(slice(0, 6), slice(0, 9))], "within the shape"),
        ([(slice(0, 6, 2), slice(0, 8))], "step 1"),
        ([(slice(0, 4), slice(0, 8)), (slice(3, 6), slice(0, 8))], "ranks 0 and 1 overlap"),
    ]:
        with pytest.raises(GridError, match=says):
            zd.decompose((6, 8), decomposition)


@settings(max_examples=15)
@given(st.data())
def test_whatever_dies_when_the_end_is_right(tmp_path_factory, data):
    """Puts, flushes, losses, rewinds and publications in any order, against what NumPy holds."""
    url = str(tmp_path_factory.mktemp("any") / "run.zarr")
    length = data.draw(st.integers(1, 4))
    coordinator = zd.Writer.create(url, arrays(length), owners=OWNERS)
    writers = [zd.Writer.attach(url, rank) for rank in range(4)]
    seeds: dict[int, float] = {}
    seed, visible = 0.0, 0
    actions = st.sampled_from(["put", "put", "put", "flush", "lose", "rewind", "publish"])
    for action in data.draw(st.lists(actions, max_size=25)):
        if action == "put":
            step = min(writer.next_step for writer in writers)
            for writer in writers:
                if writer.next_step == step:
                    put(writer, step, seeds.setdefault(step, seed))
        elif action == "flush":
            data.draw(st.sampled_from(writers)).flush()
        elif action == "lose":
            rank = data.draw(st.integers(0, 3))
            writers[rank].release()
            writers[rank] = zd.Writer.attach(url, rank)
            assert writers[rank].next_step >= visible
        elif action == "rewind":
            for writer in writers:
                writer.release()
            step = data.draw(st.integers(0, coordinator.stored()))
            writers = [zd.Writer.attach(url, rank, from_step=step) for rank in range(4)]
            seeds = {at: kept for at, kept in seeds.items() if at < step}
            seed, visible = seed + 0.125, min(visible, step)
        else:
            visible = max(visible, coordinator.publish(flush=data.draw(st.booleans())))
        group = zd.open(url)
        assert group["u"].shape[0] == group["time"].shape[0] == visible
        expected = [field(at, seed=seeds[at]) for at in range(visible)]
        np.testing.assert_array_equal(group["u"][...], np.reshape(expected, (-1, 6, 8)))
    for writer in writers:
        writer.close()


def files_in(folder):
    """Everything in a folder; files with the time of their last change."""
    found = {path: path.stat() for path in folder.rglob("*")}
    return {path: stat.st_mtime_ns if path.is_file() else None for path, stat in found.items()}


def test_nobody_else_changes_arrays_of_an_open_output(tmp_path):
    url = tmp_path / "run.zarr"
    zd.Writer.create(url, {"u": {"shape": (2,), "dtype": "f4"}}, path="out")
    other = zd.create_array(url, "v", shape=(2,), dtype="f4", chunks=2)
    with zd.Writer.attach(url, rank=0, path="out") as writer:
        writer.write_step(0, {"u": [1, 2]})
        assert writer.publish() == 1
        array = zd.open_array(url, "out/u", mode="r+")
        with pytest.raises(RankError, match=r"finish\(\)"):
            array.resize((5, 2))
        with pytest.raises(RankError, match=r"finish\(\)"):
            array.append(np.zeros((1, 2), "f4"))
        x = da.zeros((1, 2), dtype="f4")
        group = zd.open(url, mode="r+")
        changes = [
            lambda: array.__setitem__(..., 0),
            lambda: array.write(np.s_[0:0], np.zeros((0, 2), "f4")),
            lambda: array.__setitem__(([0], [1]), 0),
            lambda: array.vindex.__setitem__(([0], [1]), 0),
            lambda: zd.open_array(url, "out/u", mode="r+").blocks.__setitem__((0, 0), 0),
            lambda: zd.to_zarr(x, str(url), component="out/u", mode="r+"),
            lambda: zd.to_zarr(x, str(url), component="out/u", overwrite=True),
            lambda: zd.to_zarr(x, str(url), component="out", overwrite=True),
            lambda: zd.create_array(url, "out/u", shape=3, dtype="i2", overwrite=True),
            lambda: zd.create_group(url, "out", overwrite=True),
            lambda: zd.create_group(url, overwrite=True),
            lambda: zd.rechunk(other, url / "out" / "u", chunks=(2,), overwrite=True),
            lambda: zd.delete(url, "out/u"),
            lambda: zd.delete(url / "out"),
            lambda: group.delete("out"),
            lambda: zd.delete(url),
            lambda: group.rename("out/u", "w"),
            lambda: group.rename("out", "w"),
        ]
        before = files_in(tmp_path)
        array = zd.open_array(url, "out/u", mode="r+")
        for number, change in enumerate(changes):
            with pytest.raises(RankError, match=r"abandon"):
                change()
            assert before == files_in(tmp_path), number
        other[...] = 1
        assert other.resize(3).shape == (3,)
    assert zd.Writer.attach(url, path="out").finish() == 1
    with pytest.warns(ConsolidatedMetadataWarning):
        zd.open_array(url, "out/u", mode="r+").resize((5, 2))


def test_an_output_that_is_given_up(url, tmp_path):
    """It takes no step from readers, and not the place of a rank that runs."""
    coordinator = zd.Writer.create(url, arrays(2), owners=OWNERS)
    close(put_all(url, range(5)))
    assert coordinator.publish() == 4
    with (
        zd.Writer.attach(url, 1),
        pytest.raises(RankError, match="in use: another process"),
    ):
        zd.Writer.abandon(url)
    zd.Writer.abandon(url)
    check_prefix(url, 4)
    assert [path.name for path in tmp_path.iterdir()] == ["run.zarr"]
    assert zd.verify(url).ok
    zd.open(url, mode="r+")["u"][0] = 1
    for attach in (zd.Writer.attach, zd.Writer.abandon):
        with pytest.raises(WriterNotFoundError):
            attach(url)


def test_an_output_whose_arrays_have_gone_can_be_given_up(url, tmp_path):
    zd.Writer.create(url, arrays(2), owners=OWNERS)
    shutil.rmtree(url)
    with pytest.raises(RankError, match="abandon"):
        zd.to_zarr(da.zeros(3), url, "u")
    zd.Writer.abandon(url)
    zd.to_zarr(da.zeros(3), url, "u")
    assert [path.name for path in tmp_path.iterdir()] == ["run.zarr"]


def test_an_open_output_is_not_replaced_unasked(url):
    """Whatever its arrays are called: the files of its ranks would be lost."""
    zd.Writer.create(url, arrays(2), owners=OWNERS)
    other = {"v": {"shape": (2,), "dtype": "f4"}}
    with pytest.raises(RankError, match="overwrite=True"):
        zd.Writer.create(url, other)
    with zd.Writer.attach(url, 0) as writer:
        with pytest.raises(RankError, match="in use"):
            zd.Writer.create(url, other, overwrite=True)
        put(writer, 0)
    zd.Writer.create(url, other, overwrite=True)
    assert zd.Writer.attach(url).ranks == 1


@pytest.mark.parametrize("way", ["finish", "abandon", "replace", "remove"])
def test_a_rank_of_an_output_that_has_ended_writes_nothing(tmp_path, way):
    """In a store that does not tell that it runs; in local files the end is refused."""
    values, journal = {}, {}
    create = {"owners": OWNERS, "journal": journal}
    coordinator = zd.Writer.create(values, arrays(2), **create)
    close(put_all(values, range(2), journal=journal))
    late = zd.Writer.attach(values, 0, journal=journal)
    put(late, 2)
    if way == "finish":
        zd.Writer.attach(values, journal=journal).finish()
    elif way == "abandon":
        zd.Writer.abandon(values, journal=journal)
    elif way == "replace":
        zd.Writer.create(values, arrays(2), overwrite=True, **create)
    else:
        journal.clear()
    before = dict(values)
    with pytest.raises(WriterNotFoundError, match="not open any more"):
        put(late, 3)
    for act in (coordinator.publish, coordinator.finish):
        with pytest.raises(WriterNotFoundError):
            act()
    assert values == before


def test_an_output_is_not_finished_while_a_rank_runs(url):
    coordinator = zd.Writer.create(url, arrays(2), owners=OWNERS)
    writers = put_all(url, range(2))
    close(writers[:3])
    with pytest.raises(RankError, match="in use"):
        coordinator.finish()
    put(writers[3], 2)
    assert coordinator.publish() == 2
    assert zd.Writer.attach(url).ranks == 4


def test_arrays_that_cannot_be_an_output(url, tmp_path):
    empty = {"shape": (0, 3), "dtype": "f4"}
    with pytest.raises(GridError, match="no array of the output has an element"):
        zd.Writer.create(url, {"u": empty})
    with pytest.raises(TypeError, match="described twice"):
        zd.Writer.create(url, {"u": empty, "/u": {"shape": (3,), "dtype": "f4"}})
    assert not list(tmp_path.iterdir())
    zd.Writer.create(url, {"u": empty, "time": {"shape": (), "dtype": "f8"}})
    with zd.Writer.attach(url, 0) as writer:
        writer.write_step(0, {"u": np.zeros((0, 3), "f4"), "time": 1})
    assert zd.Writer.attach(url).publish(flush=True) == 1
    assert zd.open(url)["u"].shape == (1, 0, 3)


def test_names_of_other_libraries_are_explained(tmp_path):
    writer = zd.Writer.create(tmp_path / "a", {"u": {"shape": (2,), "dtype": "f4"}})
    for name, instead in {"put": "write_step", "rewind": "from_step", "steps": "next_step"}.items():
        with pytest.raises(AttributeError, match=instead):
            getattr(writer, name)
    assert not hasattr(writer, "_nothing")
