"""The command line: what it prints, what it refuses, and how it ends."""

import functools
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import ClassVar

import click
import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

import zarr_dask as zd
from tests.support.http_server import Files, serving
from tests.support.settle import settled
from tests.support.xarray_roles import steps
from zarr_dask.cli import main
from zarr_dask.cli.options import GridType
from zarr_dask.cli.progress import PlainProgress, SurveyLines
from zarr_dask.cli.signals import stop_requested
from zarr_dask.errors import NodeNotFoundError
from zarr_dask.jobs.engine.progress_bars import stage_bars
from zarr_dask.jobs.rechunk.rechunk import Progress
from zarr_dask.stores import open_store

PROGRAM = Path(sys.executable).with_name("zarr-dask")
SHAPE = (6, 20, 30)
ESCAPE = "\x1b"


@pytest.fixture(autouse=True)
def _wide(monkeypatch):
    """No line is folded unless a test asks for it."""
    monkeypatch.setenv("COLUMNS", "500")
    for name in ("ZARR_DASK_TRACEBACK", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def hierarchy(tmp_path):
    """A group with an array of maps, a group, and a sharded array."""
    group = zd.create_group(tmp_path / "h.zarr", attributes={"title": "run 7"})
    maps = group.create_array(
        "ocean/temp",
        shape=SHAPE,
        dtype="float32",
        chunks=(1, 20, 30),
        fill_value=np.nan,
        dimension_names=("time", "lat", "lon"),
        attributes={"units": "degC", "range": [-2, 40]},
    )
    maps[:5] = np.arange(5 * 600, dtype="float32").reshape(5, 20, 30)
    group.create_array("ocean/salt", shape=(64, 64), dtype="int16", chunks=(8, 8), shards=(32, 32))
    return str(tmp_path / "h.zarr")


@pytest.fixture
def maps(hierarchy):
    settled(open_store(hierarchy), "ocean/temp/c/4/0/0")  # else absent maps are looked for again
    return f"{hierarchy}/ocean/temp"


@pytest.fixture
def target(tmp_path):
    return str(tmp_path / "series.zarr")


def run(*arguments, code=0):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    problem = result.exception if not isinstance(result.exception, SystemExit) else None
    assert problem is None, result.output
    assert result.exit_code == code, result.output
    return result


def result(done):
    """What a command says with ``--json``."""
    document = json.loads(done.stdout)
    assert document["schema"] == "zarr-dask/1"
    assert (document["exit_code"], document["error"]) == (done.exit_code, None)
    return document["result"]


def refuse(*arguments, code=3):
    """What a refused command says on stderr; it says nothing else."""
    result = run(*arguments, code=code)
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result.stderr


def spawn(*arguments, **options):
    return subprocess.run(
        [PROGRAM, *map(str, arguments)],
        check=False,
        **{"capture_output": True, "text": True, "timeout": 50, **options},
    )


def files(folder):
    return {path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


# --- help and version -----------------------------------------------------------------------------


COMMANDS = main.list_commands(click.Context(main))


def test_version():
    assert run("--version").stdout == f"zarr-dask, version {zd.__version__}\n"


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)])
def test_help_fits_80_columns(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = run(*command, "--help").stdout
    assert "Usage:" in text
    assert max(map(len, text.splitlines())) <= 80
    if not command or command[0] in {"plan", "rechunk"}:
        assert "Example" in text


def test_help_lists_every_command_in_a_few_words():
    context = click.Context(main)
    assert COMMANDS == [
        "compare",
        "completion",
        "consolidate",
        "copy",
        "create",
        "delete",
        "digest",
        "doctor",
        "finish",
        "head",
        "info",
        "ingest",
        "inventory",
        "ls",
        "migrate",
        "ome",
        "plan",
        "rechunk",
        "run",
        "script",
        "status",
        "tree",
        "verify",
    ]
    for command in (main.get_command(context, name) for name in COMMANDS):
        assert not command.get_short_help_str(limit=60).endswith("..."), command.name
        assert command.get_help(context)


# --- info and tree --------------------------------------------------------------------------------


def test_info_of_an_array(hierarchy):
    lines = run("info", hierarchy, "ocean/temp").stdout.splitlines()
    assert lines[0] == f"array {hierarchy}/ocean/temp"
    fields = dict(re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in lines[1:8])
    assert fields == {
        "format": "v3",
        "shape": "(time: 6, lat: 20, lon: 30)",
        "data type": "float32",
        "chunks": "(1, 20, 30), 2.40 kB decoded",
        "shards": "none",
        "stored objects": "6 (one chunk each), of which 5 exist",
        "codecs": "bytes(endian=little)",
    }
    blosc = "blosc(cname=zstd, clevel=1, shuffle=shuffle, typesize=4, blocksize=1048576)"
    assert [lines[8].strip(), lines[9].strip()] == [blosc, "crc32c"]
    assert re.fullmatch(r"  fill value +nan", lines[10])
    assert re.fullmatch(r"  size +14\.4 kB decoded, .*B stored \(ratio [0-9.]+\)", lines[11])
    assert re.fullmatch(r'  attributes +units: "degC"', lines[12])
    assert lines[13].strip() == "range: [-2, 40]"


def test_info_shows_the_codecs_of_the_chunks_in_a_shard(hierarchy):
    text = run("info", f"{hierarchy}/ocean/salt").stdout
    assert re.search(r"shards +\(32, 32\), 2\.05 kB decoded", text)
    assert "4 (one shard each), of which 0 exist" in text
    order = ["sharding_indexed(", "bytes(", "blosc(", "crc32c", "index_codecs:"]
    places = [text.index(name) for name in order]
    assert places == sorted(places)
    assert "nothing stored" in text


def test_info_of_v2(tmp_path):
    zd.create_array(
        tmp_path / "a",
        shape=(4, 4),
        dtype=">f8",
        chunks=(2, 2),
        format="v2",
        order="F",
        fill_value=None,
        codecs=[{"id": "delta", "dtype": ">f8"}, {"id": "zlib", "level": 1}],
    )
    text = run("info", tmp_path / "a").stdout
    assert re.search(r"format +v2", text)
    assert re.search(r"fill value +none", text)
    facts = result(run("info", tmp_path / "a", "--json"))
    names = [codec["name"] for codec in facts["codecs"]]
    assert names == ["transpose", "bytes", "delta", "zlib"]
    assert facts["codecs"][1]["configuration"] == {"endian": "big"}
    assert facts["fill_value"] is None


def test_info_as_json(maps):
    facts = result(run("info", maps, "--json"))
    stored = facts.pop("nbytes_stored")
    assert stored == zd.open_array(maps).nbytes_stored() > 0
    assert [codec["name"] for codec in facts.pop("codecs")] == ["bytes", "blosc", "crc32c"]
    assert facts == {
        "kind": "array",
        "where": maps,
        "format": "v3",
        "shape": [6, 20, 30],
        "dimension_names": ["time", "lat", "lon"],
        "dtype": "float32",
        "chunks": [1, 20, 30],
        "shards": None,
        "stored_objects": {"shape": [1, 20, 30], "nbytes": 2400, "count": 6, "existing": 5},
        "fill_value": "NaN",
        "nbytes": 14400,
        "attributes": {"units": "degC", "range": [-2, 40]},
    }


@pytest.mark.parametrize(
    ("dtype", "fill", "expected"),
    [
        ("bool", True, True),
        ("uint8", 7, 7),
        ("float64", -np.inf, "-Infinity"),
        ("complex64", 1 - 2j, [1.0, -2.0]),
    ],
)
def test_info_as_json_is_strict(dtype, fill, expected, tmp_path):
    zd.create_array(tmp_path / "a", shape=(2,), dtype=dtype, chunks=2, fill_value=fill)
    document = tmp_path / "a" / "zarr.json"
    loose = document.read_text().replace('"attributes": {}', '"attributes": {"x": [NaN]}')
    document.write_text(loose)  # as writers do that know Python's JSON only

    text = run("info", tmp_path / "a", "--json").stdout
    facts = json.loads(text, parse_constant=pytest.fail)["result"]

    assert facts["fill_value"] == expected
    assert ("NaN" in loose) == (facts["attributes"] == {"x": ["NaN"]})


def test_info_can_leave_the_listing_out(maps):
    assert "exist" not in run("info", maps, "--no-count").stdout
    facts = result(run("info", maps, "--no-count", "--json"))
    assert facts["nbytes_stored"] is None
    assert facts["stored_objects"]["existing"] is None


def test_info_counts_only_what_belongs_to_the_grid(maps):
    for name in ("c/99/0/0", "c/notes.txt", "c/0/0/00"):
        (Path(maps) / name).parent.mkdir(parents=True, exist_ok=True)
        (Path(maps) / name).write_bytes(b"left over")
    assert result(run("info", maps, "--json"))["stored_objects"]["existing"] == 5


@pytest.mark.parametrize("shape", [(), (0, 5)])
def test_info_of_arrays_at_the_edge(shape, tmp_path):
    zd.create_array(tmp_path / "a", shape=shape, dtype="f8", chunks=(3,) * len(shape))
    assert f"shape           {shape}\n" in run("info", tmp_path / "a").stdout


def test_info_of_a_group(hierarchy):
    text = run("info", hierarchy).stdout
    assert re.search(r"arrays +0\n +groups +1: ocean\n +attributes +title: \"run 7\"", text)
    assert re.search(r"arrays +2: salt, temp\n +groups +0", run("info", hierarchy, "ocean").stdout)
    facts = result(run("info", hierarchy, "--json"))
    assert facts == {
        "kind": "group",
        "where": hierarchy,
        "format": "v3",
        "arrays": [],
        "groups": ["ocean"],
        "attributes": {"title": "run 7"},
    }


def test_info_of_a_group_with_a_node_that_cannot_be_read(hierarchy):
    Path(hierarchy, "ocean", "salt", "zarr.json").write_text('{"zarr_format": 3}')
    found = run("info", hierarchy, "ocean")
    assert found.exit_code == 0
    assert re.search(r"arrays +1: temp\n +groups +0\n +unreadable +1: salt", found.stdout)
    assert result(run("info", hierarchy, "ocean", "--json"))["unreadable"] == ["salt"]


def test_long_lines_are_folded_to_the_terminal(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    attributes = {"comment": "many words " * 20, "history": "x" * 1000}
    zd.create_array(
        tmp_path / "a", shape=(64, 64), dtype="f4", chunks=8, shards=32, attributes=attributes
    )
    lines = run("info", tmp_path / "a").stdout.splitlines()
    long = [line for line in lines[1:] if len(line) > 80]
    assert all("xxxx" in line for line in long), long
    assert any("(--json shows all)" in line for line in lines)


def test_what_strangers_wrote_cannot_steer_the_terminal(tmp_path):
    group = zd.create_group(tmp_path / "g", attributes={"a": f"{ESCAPE}[31m", "b\x9b2J": "\x9b2J"})
    group.create_array("x\x1b[2J", shape=(2,), dtype="i1", chunks=2)
    for arguments in (["info"], ["tree"], ["info", "--json"]):
        text = run(*arguments, tmp_path / "g").stdout
        assert ESCAPE not in text
        if "--json" not in arguments:
            assert "\x9b" not in text
    assert "x\\x1b[2J" in run("tree", tmp_path / "g").stdout


def test_tree(hierarchy):
    assert run("tree", hierarchy).stdout == (
        "/\n"
        "└── ocean/\n"
        "    ├── salt  (64, 64) int16, chunks (8, 8) in shards (32, 32)\n"
        "    └── temp  (6, 20, 30) float32, chunks (1, 20, 30)\n"
    )
    assert run("tree", hierarchy, "ocean").stdout.startswith("ocean\n├── salt")
    assert run("tree", hierarchy, "ocean/temp").stdout == (
        "temp  (6, 20, 30) float32, chunks (1, 20, 30)\n"
    )


def test_a_command_loads_only_its_own_modules(hierarchy):
    code = (
        "import sys\n"
        "from zarr_dask.cli import main\n"
        f"main(['info', {hierarchy!r}], standalone_mode=False)\n"
        "of_others = {f'zarr_dask.cli.{name}' for name in ('copy', 'rechunk', 'verify', 'ome')}\n"
        "own = [name for name in sys.modules if name.startswith('zarr_dask')]\n"
        "print(len(own), *(of_others & sys.modules.keys()), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stderr) <= 130  # and no name behind the number


def test_tree_on_a_terminal_that_knows_ascii_only(hierarchy):
    done = spawn("tree", hierarchy, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert "ocean/" in done.stdout


@pytest.mark.parametrize("arguments", [["info"], ["info", "--json"], ["tree"]])
def test_looking_loads_nothing_heavy(arguments, hierarchy):
    code = (
        "import sys\n"
        "from zarr_dask.cli import main\n"
        f"main([*{arguments!r}, {hierarchy!r}, 'ocean/temp'], standalone_mode=False)\n"
        "heavy = {'dask', 'distributed', 'fsspec', 'xarray', 'matplotlib', 'rich'}\n"
        "sys.exit(' '.join(heavy & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""


# --- grids ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "grid"),
    [
        ("512,32,32", (512, 32, 32)),
        ("-1, 32,32", (-1, 32, 32)),
        ("64", 64),
        ("(16, 64, 64)", (16, 64, 64)),
        ("[8]", (8,)),
        ("(8,)", (8,)),
        ("time=-1,lat=32", {"time": -1, "lat": 32}),
        ("0=-1, 2=8", {0: -1, 2: 8}),
        ("a=b=4", {"a=b": 4}),
        ("auto", "auto"),
        ("none", False),
        ("1.5 MiB", "1.5 MiB"),
    ],
)
def test_grids(text, grid):
    assert GridType().convert(text, None, None) == grid


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "'' is not a length"),
        ("1,,2", "'' is not a length"),
        ("32.5", "'32.5' is not a length"),
        ("32x32", "'32x32' is not a length"),
        ("0", "'0' is not a length"),
        ("-2,3", "'-2' is not a length"),
        ("1e3", "'1e3' is not a length"),
        ("lat=", "'' is not a length"),
        ("lat=all", "'all' is not a length"),
        ("lat=1,5", "mixes lengths by position and by name"),
        ("=5", "names no dimension"),
        ("lat=1,lat=2", "names the dimension 'lat' twice"),
        ("9" * 30, "is not a length"),
    ],
)
def test_malformed_grids(text, reason, maps, target):
    message = refuse("plan", maps, target, "--chunks", text, code=2)
    assert "Invalid value for '--chunks'" in message
    assert reason in message


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("5,5", "expected 3 lengths"),
        ("time=1,depth=2", "depth"),
        ("7=2", "7"),
    ],
)
def test_grids_that_do_not_fit_the_array(text, reason, maps, target):
    assert reason in refuse("plan", maps, target, "--chunks", text)


@pytest.mark.parametrize("command", ["rechunk", "copy"])
def test_a_resumable_command_that_has_ended_does_nothing(command, maps, target):
    job = (command, maps, target, "--chunks", "lat=5", "--resume")
    run(*job)
    before = files(target)
    assert "already done" in run(*job).stdout
    assert files(target) == before
    assert "exists already" in refuse(*job[:-1])


def test_a_full_disk_is_no_crash(maps):
    command = [sys.executable, "-m", "zarr_dask", "info", maps]
    with Path("/dev/full").open("w") as full:
        message = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=50, check=False
        )
    assert message.returncode == 3
    assert message.stderr.startswith("Error: could not write the output: ")
    assert "Traceback" not in message.stderr


# --- plan -----------------------------------------------------------------------------------------


def test_plan_says_all_and_writes_nothing(maps, target, tmp_path):
    before = files(tmp_path)
    text = run("plan", maps, target, "--chunks", "time=-1,lat=5", "--max-mem", "50MB").stdout
    plan = zd.plan_rechunk(maps, target, chunks={"time": -1, "lat": 5}, max_mem="50MB")
    assert text == f"{plan}\n"
    assert "(1, 20, 30) -> (6, 5, 30)" in text
    assert files(tmp_path) == before


def test_plan_is_folded_to_the_terminal(maps, target, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    lines = run("plan", maps, target, "--chunks", "6,5,5").stdout.splitlines()
    assert all(len(line) <= 60 for line in lines[2:]), lines
    assert lines[-1].startswith("          ")


def test_plan_draws(maps, target, tmp_path):
    picture = tmp_path / "plan.png"
    text = run("plan", maps, target, "--chunks", "6,5,5", "--plot", picture).stdout
    assert text.endswith(f"drawn in {picture}\n")
    assert picture.read_bytes().startswith(b"\x89PNG")


# --- rechunk --------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["copy"], ["rechunk"], ["ingest"]])
def test_a_store_cannot_be_written_to_standard_output(maps, command, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    refused = run(*command, maps, "-", code=2)
    assert "cannot be written to standard output" in refused.stderr
    assert not list(Path.cwd().iterdir())


def test_rechunk(maps, target):
    result = run("rechunk", maps, target, "--chunks", "time=-1,lat=5,lon=5", "--max-mem", "50MB")
    made = zd.open_array(target)
    assert made.chunks == (6, 5, 5)
    np.testing.assert_array_equal(made[...], zd.open_array(maps)[...])
    lines = result.stdout.splitlines()
    assert lines[0] == f"rechunk {maps}"
    (done,) = [number for number, line in enumerate(lines) if line.startswith("done: ")]
    said = r"done: 14\.4 kB in 24 stored objects \(.*\) by \d+ tasks in .* s"
    assert re.match(said, lines[done])
    table = "\n".join(lines[done + 1 :])
    assert re.search(r"requests +(\d+)  \(predicted \1\)", table)
    for row in ("time", "decoded", "stored", "memory above idle", "begun once more"):
        assert row in table
    assert re.search(r"^copying: 100 % \(14\.4 kB of 14\.4 kB\)", result.stderr, re.MULTILINE)
    assert ESCAPE not in result.output


def test_rechunk_into_shards_below_a_path(maps, target):
    run("rechunk", maps, target, "--chunks", "1,5,5", "--shards", "6,20,15", "--path", "a/b")
    made = zd.open(target)["a/b"]
    assert (made.chunks, made.shards) == ((1, 5, 5), (6, 20, 15))
    np.testing.assert_array_equal(made[...], zd.open_array(maps)[...])


def test_rechunk_quietly(maps, target):
    assert run("rechunk", maps, target, "--chunks", "3", "--quiet").output == ""
    assert zd.open_array(target).chunks == (3, 3, 3)


def test_rechunk_says_what_it_did_as_json(maps, target):
    done = run("rechunk", maps, target, "--chunks", "6,5,5", "--json")
    report = result(done)
    (stage,) = report["stages"]
    assert stage["actual"]["reads"] == stage["predicted"]["reads"] >= 6
    assert (report["nbytes"], report["objects"], report["repeated"]) == (14400, 24, 0)
    assert report["memory"]["peak"] <= report["memory"]["bound"]
    again = run("rechunk", maps, target, "--chunks", "3", "--json", "--quiet", "--overwrite")
    assert result(again)["objects"] == 2 * 7 * 10
    assert again.stderr == ""


def test_rechunk_several_arrays_of_a_group(hierarchy, target, tmp_path):
    arrays = ["--array", "ocean/temp", "--array", "/ocean/salt"]
    plan = run("plan", hierarchy, target, *arrays, "--chunks", "0=4", "-o", tmp_path / "p.json")
    assert "rechunk 2 arrays" in plan.stdout
    assert json.loads((tmp_path / "p.json").read_text())["job"] == "rechunk several"
    assert not Path(target).exists()
    options = ["--chunks", "0=4", "--path", "in/it", "--dtype", "float64", "--codecs", "zstd"]
    report = result(run("rechunk", hierarchy, target, *arrays, *options, "--json"))
    assert [one["nbytes"] for one in report["arrays"]] == [2 * 14400, 4 * 64 * 64 * 2]
    for name, chunks in (("temp", (4, 20, 30)), ("salt", (4, 8))):
        made = zd.open_array(target, f"in/it/ocean/{name}")
        assert (made.chunks, made.shards, made.dtype) == (chunks, None, "f8")
        assert [codec.name for codec in made.codecs] == ["bytes", "zstd"]
        old = zd.open_array(hierarchy, f"ocean/{name}")
        np.testing.assert_array_equal(made[...], old[...])


def test_rechunk_into_another_format(maps, target):
    text = run("rechunk", maps, target, "--format", "v2", "--codecs", '[{"id": "zlib"}]').stdout
    assert "format v3 -> v2" in text
    assert zd.open_array(target).format == "v2"
    np.testing.assert_array_equal(zd.open_array(target)[...], zd.open_array(maps)[...])
    run("rechunk", maps, target, "--chunks=-1", "--overwrite", "--codecs", "none")
    assert [codec.name for codec in zd.open(target).codecs] == ["bytes"]
    assert "is not JSON" in refuse("rechunk", maps, target, "--codecs", "[", code=2)


def test_rechunk_over_what_is_there(maps, target):
    run("rechunk", maps, target, "--chunks", "3")
    message = refuse("rechunk", maps, target, "--chunks", "2")
    assert "exists already" in message
    assert "--overwrite" in message
    assert zd.open_array(target).chunks == (3, 3, 3)
    run("rechunk", maps, target, "--chunks", "2", "--overwrite")
    assert zd.open_array(target).chunks == (2, 2, 2)


@pytest.mark.parametrize("shape", [(), (0, 5)])
def test_rechunk_arrays_at_the_edge(shape, tmp_path):
    zd.create_array(tmp_path / "a", shape=shape, dtype="f8", chunks=(3,) * len(shape))
    run("rechunk", tmp_path / "a", tmp_path / "b", "--chunks", "2")
    assert zd.open_array(tmp_path / "b").chunks == (2,) * len(shape)


@pytest.fixture
def large(tmp_path):
    """8 MB of data."""
    array = zd.create_array(
        tmp_path / "large.zarr", shape=(32, 256, 256), dtype="f4", chunks=(1, 256, 256)
    )
    array[...] = np.arange(array.size, dtype="f4").reshape(array.shape)
    return str(tmp_path / "large.zarr")


STAGED = """
import sys
from importlib import import_module
from zarr_dask.cli import main
from zarr_dask.grid.grid import Grid
from zarr_dask.jobs.rechunk.planner import CandidatePlan
from zarr_dask.jobs.engine.cost_model import Layout, StagePlan

def in_two(source, target, *_):
    cell = (8, 64, 256)
    middle = Layout(Grid.regular((32, 256, 256), cell), cell, 4)
    first, second = (8, 256, 256), (32, 64, 256)
    stages = StagePlan(source, middle, first), StagePlan(middle, target, second)
    return [CandidatePlan("in 2 stages", stages, 1.0)]

import_module("zarr_dask.jobs.rechunk.target_spec").alternatives = in_two
main(sys.argv[1:])
"""
"""The program with a planner that always takes two stages, of four tasks each."""


def staged(source, target, *options):
    grid = "32,64,256"
    return [sys.executable, "-c", STAGED, "rechunk", source, target, "--chunks", grid, *options]


def test_progress_of_several_stages_without_a_terminal(large, target, tmp_path):
    command = staged(large, target, "--temp", tmp_path / "temp")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(zd.open_array(target)[...], zd.open_array(large)[...])
    lines = done.stderr.splitlines()
    assert all(re.fullmatch(r"stage \d of 2: \d+ % \(.* of 8\.39 MB\).*", line) for line in lines)
    assert [line[:19] for line in lines if "100 %" in line] == [
        "stage 1 of 2: 100 %",
        "stage 2 of 2: 100 %",
    ]
    assert ESCAPE not in done.stdout + done.stderr


def test_progress_lines_are_few(capsys):
    lines = PlainProgress(["copying"])
    for _ in range(1000):
        lines(Progress(stage=0, stages=1, nbytes=10, total=10_000))
    said = capsys.readouterr().err.splitlines()
    assert 2 <= len(said) <= 10
    assert said[0].startswith("copying: 10 % (1.00 kB of 10.0 kB), ")
    assert said[-1].startswith("copying: 100 % (10.0 kB of 10.0 kB), ")


def test_lines_of_a_long_survey_are_a_second_apart(capsys):
    lines = SurveyLines(said=perf_counter() - 2)
    lines(1, 5000)
    lines.said += 3600  # however slow this machine is
    lines(2, 5000)
    assert capsys.readouterr().err == "surveying: 1 of 5000 files\n"


def test_progress_on_a_terminal(large, target):
    """The bars as a user sees them: each ends at 100 %, in bytes, in 80 columns."""
    screen, terminal = pty.openpty()
    environment = {**os.environ, "COLUMNS": "80", "TERM": "xterm"}
    with subprocess.Popen(
        staged(large, target), stdout=terminal, stderr=terminal, env=environment
    ) as job:
        os.close(terminal)
        shown = b"".join(iter(lambda: read_terminal(screen), b"")).decode()
    os.close(screen)
    assert job.returncode == 0, shown
    assert ESCAPE in shown
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown).replace("\r", "\n").splitlines()
    paths = [line for line in lines if large in line or target in line]
    assert max(len(line) for line in lines if line not in paths) <= 80
    for stage in (1, 2):
        bars = [line for line in lines if line.startswith(f"stage {stage} of 2 ━")]
        assert re.search(r" 100% 8\.4/8\.4 MB .*B/s +0:00:\d\d", bars[-1]), bars[-1]
    assert any(line.startswith("done: 8.39 MB") for line in lines)


def read_terminal(screen):
    try:
        return os.read(screen, 65536)
    except OSError:  # how Linux says that nobody holds the other end any more
        return b""


@pytest.mark.cluster
def test_rechunk_on_local_processes(large, target):
    done = spawn("rechunk", large, target, "--chunks", "32,64,64", "--workers", "2")
    assert done.returncode == 0, done.stderr
    assert "per process (1 thread), 2 tasks at a time" in done.stdout
    assert "100 %" in done.stderr
    np.testing.assert_array_equal(zd.open_array(target)[...], zd.open_array(large)[...])


@pytest.mark.slow
@pytest.mark.cluster
def test_an_error_on_local_processes_is_one_message(large, target):
    (Path(large) / "c" / "7" / "0" / "0").write_bytes(b"junk")
    done = spawn("rechunk", large, target, "--chunks", "32,64,64", "--workers", "2")
    assert done.returncode == 3
    said = [line for line in done.stderr.splitlines() if not line.startswith("copying: ")]
    assert len(said) == 1, done.stderr
    assert said[0].startswith("Error: ")
    assert "'c/7/0/0'" in said[0]
    assert not (Path(target) / "zarr.json").exists()


def test_rechunk_on_a_running_scheduler(cluster, maps, target, tmp_path):
    address = cluster.scheduler_address
    run("rechunk", maps, target, "--chunks", "3", "--scheduler", address)
    np.testing.assert_array_equal(zd.open_array(target)[...], zd.open_array(maps)[...])

    (tmp_path / "scheduler.json").write_text(json.dumps({"address": address}))
    options = ["--scheduler-file", tmp_path / "scheduler.json", "--overwrite"]
    run("rechunk", maps, target, "--chunks", "2", *options)
    assert zd.open_array(target).chunks == (2, 2, 2)


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["info", "tree", "plan", "rechunk"])
def test_no_node(command, tmp_path):
    job = ["target", "--chunks", "2"] if command in {"plan", "rechunk"} else []
    message = refuse(command, tmp_path / "none", *job)
    assert message.startswith(f"Error: no Zarr array or group at {tmp_path / 'none'}")
    assert not (tmp_path / "none").exists()


def test_not_json(maps):
    (Path(maps) / "zarr.json").write_text("<html>")
    message = refuse("info", maps)
    assert "JSON" in message
    assert "zarr.json" in message


def test_every_problem_is_listed(maps):
    document = json.loads((Path(maps) / "zarr.json").read_text())
    del document["shape"]
    document["codecs"][0]["name"] = "byts"
    (Path(maps) / "zarr.json").write_text(json.dumps(document))
    first, *problems = refuse("info", maps).splitlines()
    assert "problem" in first
    assert any("shape" in line for line in problems)
    assert any("byts" in line for line in problems)


def test_source_that_is_a_group(hierarchy, target):
    message = refuse("rechunk", hierarchy, target, "--chunks", "2")
    assert "by names of dimensions" in message
    assert not Path(target).exists()
    report = result(run("rechunk", hierarchy, target, "--codecs", "zstd", "--json"))
    assert len(report["arrays"]) == len(list(zd.open_group(target).arrays(recursive=True)))
    assert zd.compare(hierarchy, target).equal


def test_target_that_is_the_source(maps):
    before = files(maps)
    assert "is the source" in refuse("rechunk", maps, maps, "--chunks", "2", "--overwrite")
    assert files(maps) == before


def test_too_little_memory(maps, target):
    message = refuse("rechunk", maps, target, "--chunks", "6", "--max-mem", "1kB")
    assert "raise --max-mem" in message
    assert not Path(target).exists()


def test_wrong_usage(maps, target, tmp_path):
    job = ["rechunk", maps, target]
    assert "give --chunks, --shards" in refuse(*job, code=2)
    job += ["--chunks", "2"]
    assert "not a size" in refuse(*job, "--max-mem", "lots", code=2)
    assert "--workers" in refuse(*job, "--workers", "0", code=2)
    both = ["--workers", "1", "--scheduler", "tcp://127.0.0.1:1"]
    for command in (job, ["copy", maps, target], ["verify", maps], ["compare", maps, maps]):
        assert "exclude each other" in refuse(*command, *both, code=2)
        message = refuse(*command, "--scheduler-file", tmp_path / "none", code=2)
        assert "does not exist" in message
    for command in (job, ["copy", maps, target]):
        assert "'v9' is not one of 'v3', 'v2'" in refuse(*command, "--format", "v9", code=2)
    assert "Missing argument" in refuse("info", code=2)
    assert "No such command" in refuse("inform", code=2)
    assert not Path(target).exists()


OTHER_TOOLS = {
    "cp -r a b": "Use copy",
    "sync a b": "--resume",
    "mv a b": "copy, then delete",
    "append a": "'ingest' for files",
    "set-attrs a u=m": "create --attribute",
    "rm -r a": "Use delete",
    "rb a": "Use delete",
    "mb a": "Use create",
    "touch a": "Use create",
    "du a": "inventory",
    "cat a": "Use head",
    "stat a": "Use info",
    "hash a": "Use digest",
    "md5sum a": "Use digest",
    "h5ls a": "tree, or ls",
    "h5dump a": "head for values",
    "ncdump -h a": "info for the metadata",
    "header a": "info for the metadata",
    "print a": "info for the metadata",
    "show a": "Use info",
    "diff a b": "Use compare",
    "repack a b": "--codecs",
    "find a": "ls --recursive",
    "survey a": "inventory",
    "attr a units=m": "Use info",
    "setattr a units m": "--attribute",
    "consolidate-metadata a": "Use consolidate",
    "export a b.nc": "to_netcdf",
    "to-xarray a": "engine='zarr_dask'",
    "convert a b": "ingest",
    "upgrade a": "migrate",
    "fsck a": "verify",
    "check a": "verify",
    "resume a": "--resume",
    "gdal_translate -of Zarr a b": "'ome convert' for TIFF",
    "nccopy a b": "'ingest' for NetCDF",
    "translate a b": "'copy --codecs'",
    "gdalinfo a": "Use info",
    "describe a": "Use info",
    "dir a": "tree, or ls",
    "h5diff a b": "Use compare",
    "cmp a b": "Use compare",
    "ncatted -a units a": "--attribute",
    "set-attr a units m": "--attribute",
    "jobs a": "status URL",
    "gc a": "--sweep",
    "clean a": "--sweep",
    "info {a} --stats": "head prints values",
    "info {a} -json": "--json",
    "verify {a} --quick": "'--deep'",
    "migrate {a} b --overwrite": "nothing that exists is replaced",
    "copy {a} b --skip-existing": "--overwrite replaces",
    "migrate v3 {a}": "migrate SRC DST --format v3",
    "help copy": "--help",
    "copy --recursive {a} b": "always included",
    "copy --dryrun {a} b": "'--dry-run'",
    "copy --no-sign-request {a} b": "'--anon'",
    "copy --endpoint http://x {a} b": "'--endpoint-url'",
    "copy --include temp {a} b": "SRC/PATH",
    "copy --exclude temp {a} b": "SRC/PATH",
    "copy --delete {a} b": "not removed",
    "copy --force {a} b": "'--overwrite'",
    "copy -n {a} b": "'--dry-run'",
    "rechunk {a} b --chunks 4,1 -y": "nothing is asked",
    "rechunk {a} b --chunks 4,1 -j 2": "'--workers'",
    "rechunk {a} b --chunks 4 1": "commas",
    "rechunk {a} b --target-chunks 4,1": "'--chunks'",
    "rechunk {a} b --temp-store t --chunks 4,1": "'--temp'",
    "rechunk {a} b --max-memory 1GB --chunks 4,1": "'--max-mem'",
    "rechunk {a} b --chunks 4,1 --compressor zstd": "'--codecs'",
    "migrate {a} --to v3": "'--format'",
    "migrate {a} --format 2": "zarr-dask copy SRC DST --format v2",
    "verify {a} --full": "'--deep'",
    "tree {a} --depth 1": "'--level'",
    "tree {a} --max-depth 1": "'--level'",
    "info {a} --array temp": "second argument, PATH",
    "info {a} --variable temp": "second argument, PATH",
    "info {a} --path temp": "second argument, PATH",
    "info {a} -o json": "> FILE",
    "info {a} --format json": "--json",
    "info {a} --log-level debug": "'--verbose'",
    "info {a} --debug": "'--verbose'",
    "info --profile me {a}": "object store",
    "ls -a {a}": "nothing is hidden",
    "create n --shape 3,4 --dtype f4 -f 2": "'--format'",
    "--install-completion": "completion",
}


@pytest.mark.parametrize("words", OTHER_TOOLS)
def test_a_command_of_other_tools_is_answered_with_ours(words, tmp_path):
    zd.create_array(tmp_path / "a.zarr", data=np.ones((4, 4)))
    said = refuse(*words.format(a=tmp_path / "a.zarr").split(), code=2)
    assert OTHER_TOOLS[words] in " ".join(said.split())
    assert not (tmp_path / "b").exists()


def test_an_address_without_a_port_is_refused_with_one_message(tmp_path):
    zd.create_array(tmp_path / "a.zarr", data=np.ones((4, 4)))
    done = spawn(
        "rechunk", tmp_path / "a.zarr", tmp_path / "b.zarr", "--chunks", 1, "--scheduler", "threads"
    )
    assert done.returncode == 3
    assert "missing port number" in done.stderr
    assert "Traceback" not in done.stderr


def test_pictures_are_refused_before_the_job(maps, target, tmp_path):
    for name, words in (("a.foo", "must end in one of"), ("none/a.png", "there is no folder")):
        for command in (["verify", maps], ["copy", maps, target], ["plan", maps, target]):
            assert words in refuse(*command, "--plot", tmp_path / name, code=2)
    assert not Path(target).exists()


def test_verify_and_compare_on_a_running_scheduler(cluster, maps, tmp_path):
    file = tmp_path / "scheduler.json"
    file.write_text(json.dumps({"address": cluster.scheduler_address}))
    assert "nothing is wrong" in run("verify", maps, "--scheduler-file", file).stdout
    assert "equal" in run("compare", maps, maps, "--scheduler-file", file).stdout


def test_dead_scheduler(maps, target, monkeypatch):
    monkeypatch.setattr("zarr_dask.cli.cluster.SCHEDULER_TIMEOUT", 0.5)
    job = ["rechunk", maps, target, "--chunks", "2"]
    message = refuse(*job, "--scheduler", "tcp://127.0.0.1:1")
    assert "no dask scheduler answers at tcp://127.0.0.1:1" in message
    assert not Path(target).exists()


def test_errors_are_folded_to_the_terminal(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    lines = refuse("info", tmp_path / "none").splitlines()
    assert len(lines) > 1
    assert all(len(line) <= 50 or str(tmp_path) in line for line in lines)


@pytest.mark.parametrize("how", ["before", "after", "environment"])
def test_traceback_on_demand(how, tmp_path, monkeypatch):
    if how == "environment":
        monkeypatch.setenv("ZARR_DASK_TRACEBACK", "1")
    before = ["--traceback"] if how == "before" else []
    after = ["--traceback"] if how == "after" else []
    result = CliRunner().invoke(main, [*before, "info", str(tmp_path / "none"), *after])
    assert "NodeNotFoundError: no Zarr array or group" in result.stderr
    assert "Traceback" in result.stderr
    assert result.exit_code == 3


def test_warnings_are_one_line(hierarchy):
    (Path(hierarchy) / ".zgroup").write_text('{"zarr_format": 2}')
    done = spawn("info", hierarchy)
    assert done.returncode == 0
    assert done.stderr.startswith("Warning: ")
    assert done.stderr.count("\n") == 1


# --- how it ends ----------------------------------------------------------------------------------


class Hesitating(Files):
    """Answers with the last chunk when it is told to."""

    asked: ClassVar = threading.Event()
    told: ClassVar = threading.Event()

    def do_GET(self):  # noqa: N802  (so called by the library)
        if self.path.endswith("c/31/0/0"):
            self.asked.set()
            self.told.wait(40)
        super().do_GET()


@contextmanager
def hesitating(large, target, *options):
    """A rechunking whose last chunk does not come before it is told to."""
    values = {
        str(path.relative_to(large)): path.read_bytes()
        for path in Path(large).rglob("*")
        if path.is_file()
    }
    Hesitating.asked.clear()
    Hesitating.told.clear()
    with (
        serving(Hesitating, values) as (url, _),
        subprocess.Popen(
            [PROGRAM, "rechunk", url, target, "--chunks", "1,128,256", *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            # A shell that runs the tests in the background has its children ignore Ctrl-C; what is
            # called before the program starts takes no lock.
            preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
        ) as job,
    ):
        try:
            assert Hesitating.asked.wait(40)
            yield job
        finally:
            Hesitating.told.set()
            job.kill()


WAITS = "waiting for the tasks that are running to end; a second one does not wait."


@pytest.mark.parametrize(
    ("number", "name", "code"), [(signal.SIGINT, "Ctrl-C", 130), (signal.SIGTERM, "SIGTERM", 143)]
)
def test_a_signal_ends_a_job_when_its_tasks_have(large, target, number, name, code):
    """It says so while it waits, and then how to go on."""
    with hesitating(large, target, "--max-mem", "10MB", "--quiet") as job:
        job.send_signal(number)
        assert job.stderr.readline() == f"{name}: {WAITS}\n"
        assert job.poll() is None
        Hesitating.told.set()
        said = job.communicate(timeout=20)[1]
    assert said == (
        f"Interrupted: {target} is not complete. Run the same command again with --resume to go "
        "on, or without it to start over.\n"
    )
    assert job.returncode == code
    assert not (Path(target) / "zarr.json").exists()


def test_what_a_signal_says_stands_above_the_bars():
    """They are drawn anew every moment, over all lines that they know."""
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=200)
    with stage_bars(console, {"one": 5, "two": 5}), stop_requested("something") as told:
        os.kill(os.getpid(), signal.SIGTERM)
        assert told()
    shown = stream.getvalue()
    above = shown[: shown.index("SIGTERM: waiting for something to end")]
    assert above.endswith(f"{ESCAPE}[2K{ESCAPE}[1A{ESCAPE}[2K")  # both lines are wiped before


def test_a_second_signal_ends_a_job_at_once(large, target):
    """What it leaves is no array to anybody, and is gone on with."""
    with hesitating(large, target, "--max-mem", "10MB", "--quiet") as job:
        job.send_signal(signal.SIGINT)
        assert job.stderr.readline() == f"Ctrl-C: {WAITS}\n"
        job.send_signal(signal.SIGINT)
        assert job.wait(20) == 130
        assert not Hesitating.told.is_set()
        with pytest.raises(NodeNotFoundError):
            zd.open(target)
        Hesitating.told.set()
        subprocess.run([*job.args, "--resume"], check=True, timeout=50)
    np.testing.assert_array_equal(zd.open(target)[...], zd.open(large)[...])


@pytest.mark.parametrize("command", ["info", "tree"])
def test_broken_pipe_is_silent(command, hierarchy):
    reader, writer = os.pipe()
    os.close(reader)
    done = spawn(command, hierarchy, capture_output=False, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert done.stderr == ""


# --- labels ---------------------------------------------------------------------------------------


def test_labels_select_what_is_copied(tmp_path):
    place = tmp_path / "days.zarr"
    zd.write_dataset(steps(0, 40), place)
    run("copy", place, tmp_path / "a", "--sel", "time=2000-01-30:2000-02,lat=15:90")
    found = zd.open_dataset(tmp_path / "a").load()
    assert found.identical(steps(29, 40).sel(lat=slice(15, 90)).load())
    run("copy", place, tmp_path / "b", "--sel", "time=2000-02-01T00:00..", "--region", "lat=0:1")
    assert zd.open_dataset(tmp_path / "b").load().identical(steps(31, 40).isel(lat=[0]).load())
    run("rechunk", place, tmp_path / "c", "--array", "t", "--sel", "lat=20", "--chunks", "time=-1")
    assert zd.open_array(tmp_path / "c", "t").shape == (40, 1, 3)


@pytest.mark.parametrize(
    ("wanted", "days"),
    [
        ("2000-01-03T00:00", slice("2000-01-03T00:00", "2000-01-03T00:00")),
        ("2000-01-03 00:00:00", slice("2000-01-03", "2000-01-03")),
        ("2000-01-03T12:00:2000-01-05", slice("2000-01-03T12:00", "2000-01-05")),
        ("2000-01-03:2000-01-05T00:00:00", slice("2000-01-03", "2000-01-05T00:00:00")),
        ("2000-01-03T00:00:2000-01-05T06:30", slice("2000-01-03T00:00", "2000-01-05T06:30")),
        ("2000-01-03T12:00:", slice("2000-01-03T12:00", None)),
    ],
)
def test_times_with_colons_are_labels(tmp_path, wanted, days):
    place = tmp_path / "days.zarr"
    zd.write_dataset(steps(0, 8), place)
    run("copy", place, tmp_path / "a", "--sel", f"time={wanted}")
    assert zd.open_dataset(tmp_path / "a").load().identical(steps(0, 8).sel(time=days).load())


def test_what_is_given_by_name_may_be_given_one_by_one(tmp_path):
    """The first ones were once dropped without a word, and all was copied."""
    place = tmp_path / "days.zarr"
    zd.write_dataset(steps(0, 8), place)
    run("copy", place, tmp_path / "a", "--sel", "lat=15:90", "--sel", "time=2000-01-03:")
    wanted = steps(0, 8).sel(lat=slice(15, 90), time=slice("2000-01-03", None)).load()
    assert zd.open_dataset(tmp_path / "a").load().identical(wanted)
    run("copy", place, tmp_path / "b", "--region", "time=0:3", "--region", "lat=0")
    assert zd.open_array(tmp_path / "b", "t").shape[:2] == (3, 1)
    run("rechunk", place, tmp_path / "c", "--chunks", "time=5", "--chunks", "lat=1")
    assert zd.open_array(tmp_path / "c", "t").chunks[:2] == (5, 1)
    for given in (("time=3", "time=4"), ("3,1,1", "4,1,1"), ("time=3", "4,1,1")):
        options = [part for one in given for part in ("--chunks", one)]
        said = refuse("rechunk", place, tmp_path / "d", *options, code=2)
        assert "twice" in said or "more than once" in said


def test_labels_that_are_wrong_are_refused(tmp_path):
    place = tmp_path / "days.zarr"
    zd.write_dataset(steps(0, 40), place)
    for labels in ("2000", "time=", "time=a:b:c", "time=1999,time=2000"):
        said = refuse("copy", place, tmp_path / "a", "--sel", labels, code=2)
        assert "no range of labels" in said
    both = ("--sel", "time=2000", "--region", "time=0:3")
    assert "other dimensions" in refuse("copy", place, tmp_path / "a", *both, code=2)
    said = refuse("copy", place, tmp_path / "a", "--sel", "time=2031:")
    assert "they go from 2000-01-01" in said
    assert not (tmp_path / "a").exists()


def test_notes_at_an_error_are_printed(hierarchy, monkeypatch):
    """They may say what to do."""

    def fail(*_args, **_options):
        error = NodeNotFoundError("here", ["zarr.json"])
        error.add_note("Look at --codecs there.")
        raise error

    monkeypatch.setattr(zd, "open", fail)
    failed = run("info", hierarchy, code=3)
    assert failed.stderr.splitlines()[-1].strip() == "Look at --codecs there."
