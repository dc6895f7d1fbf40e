"""create, delete, consolidate, digest, ls and head."""

import json

import dask.array as da
import numpy as np
import pytest
from click.testing import CliRunner

import zarr_dask as zd
from zarr_dask.cli import main


def run(*words, code=0):
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == code, done.output
    return done


def result(*words):
    return json.loads(run(*words, "--json").stdout)["result"]


@pytest.fixture
def run_zarr(tmp_path):
    group = zd.create_group(tmp_path / "run.zarr")
    values = np.arange(24, dtype="f4").reshape(4, 6)
    group.create_array("sea/temp", data=values, chunks=(2, 3), dimension_names=("time", "x"))
    group.create_array("land", shape=3, dtype="i2", chunks=3)
    return str(tmp_path / "run.zarr")


def test_create(tmp_path):
    url = tmp_path / "a.zarr"
    words = ["--shape", "8,6", "--dtype", "int16", "--chunks", "t=4,x=3", "--dims", "t,x"]
    more = ["--attribute", "units=K", "--attribute", "n=[1,2]", "--fill-value", "7"]
    said = run("create", url, "g/temp", *words, *more, "--codecs", "zstd").stdout
    assert said == f"array {url}/g/temp\n"
    made = zd.open(url, "g/temp")
    assert (made.shape, made.dtype, made.chunks) == ((8, 6), "i2", (4, 3))
    assert (made.dimension_names, made.fill_value) == (("t", "x"), 7)
    assert made.attributes == {"units": "K", "n": [1, 2]}
    assert [codec.name for codec in made.codecs] == ["bytes", "zstd"]
    assert "--overwrite" in run("create", url, "g/temp", *words, code=3).stderr
    run("create", url, "g/temp", "--shape", "()", "--dtype", "f8", "--overwrite")
    assert zd.open(url, "g/temp").shape == ()
    assert run("create", url, "h", "--format", "v3").stdout == f"group {url}/h\n"
    assert zd.open(url, "h").attributes == {}


def test_status_of_a_simulation_says_that_its_folder_is_needed(tmp_path):
    url = str(tmp_path / "sim.zarr")
    zd.Writer.create(url, {"u": {"shape": (4, 4), "dtype": "f4"}})
    said = run("status", url, code=1).stdout
    assert "keep that folder" in said
    assert "may be removed" not in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--shape", "4"], "needs --shape and --dtype"),
        (["--chunks", "4"], "needs --shape and --dtype"),
        (["--shape", "4,a", "--dtype", "f4"], "expected lengths"),
        (["--attribute", "units"], "as in units=m"),
        (["--shape", "3", "4", "--dtype", "f4"], "commas between them, as in --shape 3,4"),
        (["--shape", "3,4", "--dtype", "f4", "--chunks", "3", "4"], "as in --chunks 3,4"),
    ],
)
def test_create_refuses(words, says, tmp_path):
    assert says in run("create", tmp_path / "a", *words, code=2).stderr
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (["--shape", "[40, 30]", "--chunks", "1kB"], {"chunks": (15, 16)}),
        (["--shape", "40,30", "--format", "2"], {"format": "v2"}),
        (["--shape", "40,30", "--fill-value=-inf"], {"fill_value": -np.inf}),
    ],
)
def test_create_takes_the_forms_of_python(words, facts, tmp_path):
    run("create", tmp_path / "a", "--dtype", "f4", *words)
    made = zd.open(tmp_path / "a")
    assert {name: getattr(made, name) for name in facts} == facts
    run("create", tmp_path / "b", "--dtype", "f4", *words, "--fill-value", "nan", "--overwrite")
    assert np.isnan(zd.open(tmp_path / "b").fill_value)


def test_copies_take_codecs_and_data_type(run_zarr, tmp_path):
    run("copy", f"{run_zarr}/sea/temp", tmp_path / "b", "--codecs", "gzip", "--dtype", "f8", "-q")
    found = zd.open(tmp_path / "b")
    assert ([one.name for one in found.codecs], found.dtype) == (["bytes", "gzip"], "f8")


def test_advice_names_options(run_zarr, tmp_path):
    assert "--deep decode" in run("verify", run_zarr).stdout
    said = run("ingest", tmp_path / "no.nc", tmp_path / "b", code=3).stderr
    assert "--settle unreadable=... with 'skip'" in " ".join(said.split())


def test_delete(run_zarr, monkeypatch):
    assert "give --yes" in run("delete", run_zarr, "land", code=2).stderr
    assert "land" in zd.open(run_zarr)
    assert run("delete", run_zarr, "land", "-y").stdout == f"deleted {run_zarr}/land\n"
    assert "land" not in zd.open(run_zarr)
    run("delete", run_zarr, "land", "-y", code=3)
    monkeypatch.setattr("zarr_dask.cli.nodes._may_ask", lambda: True)
    for answer, code in (("n", 1), ("y", 0)):
        done = CliRunner().invoke(main, ["delete", run_zarr, "sea"], input=answer)
        assert (done.exit_code, "sea" in zd.open(run_zarr)) == (code, bool(code)), done.output


def test_consolidate(run_zarr):
    assert "3 nodes" in run("consolidate", run_zarr).stdout
    zarr = pytest.importorskip("zarr")
    found = zarr.open_consolidated(run_zarr)
    assert {name for name, _ in found.members(max_depth=None)} == {"land", "sea", "sea/temp"}


def test_digest(run_zarr):
    expected = zd.digest(zd.open(run_zarr, "sea/temp"))
    lines = run("digest", run_zarr).stdout.splitlines()
    assert f"{expected}  sea/temp" in lines
    assert len(lines) == 2
    assert result("digest", run_zarr, "sea/temp")["digests"] == {"": expected}


def test_ls(run_zarr):
    assert run("ls", run_zarr).stdout == "land\nsea/\n"
    assert run("ls", run_zarr, "-r").stdout == "land\nsea/\nsea/temp\n"
    assert run("ls", run_zarr, "sea", "-l").stdout == "temp  (4, 6) float32, chunks (2, 3)\n"
    assert run("ls", run_zarr, "sea/temp").stdout == "temp\n"
    assert [one["kind"] for one in result("ls", run_zarr)["nodes"]] == ["array", "group"]


def test_head(run_zarr):
    assert run("head", run_zarr, "sea/temp", "-n", "2").stdout == "[[0. 1.]\n [6. 7.]]\n"
    for region in ("1:3,0", "time=1:3,x=0"):
        found = result("head", run_zarr, "sea/temp", "--region", region)
        assert (found["shape"], found["values"]) == ([2], [6.0, 12.0])
    message = run("head", run_zarr, "sea/temp", "--region", "lat=0", code=2).stderr
    assert "no dimension 'lat': time, x" in " ".join(message.split())
    assert "is a group" in " ".join(run("head", run_zarr, code=3).stderr.split())


def test_head_reads_no_other_chunk(run_zarr, tmp_path):
    (tmp_path / "run.zarr/sea/temp/c/1/1").write_bytes(b"junk")
    run("head", run_zarr, "sea/temp", "-n", "2")


def test_an_array_is_listed_by_its_name(run_zarr):
    assert run("ls", run_zarr, "sea/temp").stdout == "temp\n"
    zd.create_array(f"{run_zarr}-alone", data=np.arange(3, dtype="i2"))
    assert run("ls", f"{run_zarr}-alone").stdout == "run.zarr-alone\n"
    line = "run.zarr-alone  (3,) int16, chunks (3,)\n"
    assert run("ls", "-l", f"{run_zarr}-alone").stdout == line
    assert run("tree", f"{run_zarr}-alone").stdout == line


def test_a_tree_of_some_levels(run_zarr):
    whole, top = (run("tree", run_zarr, *more).stdout for more in ((), ("--level", "1")))
    assert "temp" in whole
    assert "temp" not in top
    assert "sea/" in top
    assert [one["path"] for one in result("tree", run_zarr, "-L", "1")["nodes"]] == ["land", "sea"]


def test_head_of_a_group_names_its_arrays(run_zarr):
    assert "PATH, after URL, names an array" in run("head", run_zarr, "sea", code=3).stderr


def test_ls_takes_the_options_of_ls(run_zarr):
    assert "sea/temp  (" in run("ls", "-lR", run_zarr).stdout


def test_status_of_a_url(run_zarr):
    assert "no jobs are recorded" in run("status", run_zarr).stdout
    zd.to_zarr(np.arange(8), run_zarr, "sea/salt", resume=True)
    said = run("status", run_zarr).stdout
    assert "0 of 1 jobs have not ended" in said
    assert "may be removed" in said
    (job,) = result("status", f"{run_zarr}/sea")["jobs"]
    assert (job["path"], job["state"]) == ("salt", "ended")

    def fail(block):
        raise RuntimeError

    lost = da.ones(8, chunks=4).map_blocks(fail, dtype="f8", meta=np.empty(0))
    with pytest.raises(RuntimeError):
        zd.to_zarr(lost, run_zarr, "lost", resume="run-1")
    assert "lost  write" in run("status", run_zarr, code=1).stdout
    run("status", "no-plan.json", code=2)
    run("status", run_zarr, "--watch", code=2)


@pytest.mark.parametrize(
    ("word", "says"), [("rm", "Use delete"), ("help", "--help"), ("nix", "No such")]
)
def test_commands_of_other_programs(word, says):
    assert says in run(word, code=2).stderr


def test_a_place_is_no_command(run_zarr):
    assert f"zarr-dask info {run_zarr}" in run(run_zarr, code=2).stderr
    assert "zarr-dask create makes a node" in run("info", f"{run_zarr}-2", code=3).stderr


HABITS = {
    "ome create {a}": "ome pyramid",
    "ome labels {a}": "write_labels",
    "ome show {a}": "ome view",
    "ome append {a}": "ome.append",
    "tail {a}": "head --region",
    "kerchunk {a}": "zarr_dask.reference",
    "plot {a}": "plan --plot",
    "stats {a}": "inventory",
    "compare {a} {a} --rtol 1": "compared exactly",
    "verify {a} --repair": "'--sweep'",
    "verify {a} --decode": "'--deep'",
    "head {a} --rows 2": "'--number'",
    "copy {a} b.zarr -d time,2,4": "'--sel' or '--region'",
    "copy {a} b.zarr -v t2m": "SRC/NAME is the one of a name",
    "ingest f.nc b.zarr --dim time": "'--concat'",
    "ingest f.nc -o b.zarr": "The target is the last argument",
    "create new --shape 3 --dtype f4 --fill 1": "'--fill-value'",
    "digest {a} --sha256": "one digest",
    "finish {a}": "Writer.attach(url).finish()",
    "run {a}": "with --resume",
}


@pytest.mark.parametrize("line", HABITS)
def test_other_words_for_commands_and_options_are_answered(line, run_zarr):
    said = run(*line.format(a=run_zarr).split(), code=2).stderr
    assert HABITS[line] in " ".join(said.split())


def test_a_repeated_option_with_two_values_is_refused(run_zarr, tmp_path):
    """The last value would win, without a word."""
    settle = ["--settle", "units=convert", "--settle", "units=first"]
    said = run("ingest", run_zarr, tmp_path / "b", *settle, code=2).stderr
    assert "'units' has two values, 'convert' and 'first'" in said
    words = ["--attribute", "units=m", "--attribute", "units=km"]
    said = run("create", tmp_path / "c", *words, code=2).stderr
    assert "'units' has two values, 'm' and 'km'" in said
    run("create", tmp_path / "c", "--attribute", "units=m", "--attribute", "units=m")
    said = run("ingest", run_zarr, tmp_path / "b", "--settle", "units=a", code=2).stderr
    assert "--settle units=a: for 'units' expected 'convert'" in said


@pytest.mark.parametrize(
    ("start", "words"),
    [(b"CDF\1", "zarr-dask ingest writes it"), (b"II*\0", "zarr-dask ome convert")],
)
def test_a_file_of_another_format_is_answered_by_a_command(tmp_path, start, words):
    (tmp_path / "file").write_bytes(start + bytes(8))
    said = " ".join(run("info", tmp_path / "file", code=3).stderr.split())
    assert words in said
    assert "zarr_dask." not in said


@pytest.mark.parametrize("command", ["info", "tree", "ls", "head", "digest", "verify", "delete"])
def test_two_locations_of_a_command_that_takes_one(tmp_path, run_zarr, command, monkeypatch):
    """As of a pattern that the shell has expanded; the second one is no path below the first."""
    zd.save(tmp_path / "b.zarr", np.zeros(3))
    monkeypatch.chdir(tmp_path)
    said = run(command, "run.zarr", "b.zarr", code=2).stderr
    assert "'b.zarr' is a location of its own" in " ".join(said.split())
    assert "call the command once for each" in " ".join(said.split())
    run(command, "run.zarr", "s3://bucket/b.zarr", code=2)
    said = run(command, "run.zarr", "land", "c.zarr", code=2).stderr
    assert "takes one location, URL, and the PATH" in " ".join(said.split())
    assert zd.open("b.zarr").shape == (3,)


def test_a_path_below_a_location_may_be_that_of_a_folder_beside_it(tmp_path, run_zarr, monkeypatch):
    zd.create_group(tmp_path / "sea")
    monkeypatch.chdir(tmp_path)
    assert "temp" in run("info", "run.zarr", "sea").stdout
    assert "there is no 'mountain" in run("info", "run.zarr", "mountain", code=3).stderr
