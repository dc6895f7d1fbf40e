"""Options of every command: before or after its name, for stores, and what `--json` prints."""

import json
import logging
import os
import subprocess
import sys

import click
import numpy as np
import pytest
from click.testing import CliRunner

import zarr_dask as zd
from tests.support.object_stores import s3_server
from zarr_dask.cli import main
from zarr_dask.cli.errors import as_options
from zarr_dask.cli.settings import (
    Settings,
    add_settings,
    settings,
    storage_options,
    two_storage_options,
)


def run(*words, code=0):
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == code, done.output
    return done


def parsed(*words):
    """The settings that a command sees."""

    @click.command()
    @click.argument("urls", nargs=-1)
    def look(urls):
        found["settings"] = settings()
        found["options"] = two_storage_options(*urls) if len(urls) > 1 else storage_options(*urls)

    found = {}
    main.add_command(look)
    try:
        add_settings(look)
        run(*words)
    finally:
        del main.commands["look"]
    return found["settings"], found["options"]


@pytest.fixture
def array(tmp_path):
    made = zd.create_array(tmp_path / "a", shape=(4, 6), dtype="f4", chunks=(2, 3))
    made[...] = np.arange(24).reshape(4, 6)
    return str(tmp_path / "a")


@pytest.mark.parametrize(
    "words",
    [
        ["--json", "--storage-option", "profile=p", "--region", "r", "look", "s3://b/a"],
        ["look", "s3://b/a", "--json", "--region=r", "--storage-option", "profile=p"],
        ["--region", "r", "look", "--storage-option=profile=p", "s3://b/a", "--json"],
    ],
)
def test_before_and_after_the_command(words):
    given, options = parsed(*words)
    assert given == Settings(as_json=True, options={"profile": "p"}, of_buckets={"region": "r"})
    assert options == {"profile": "p", "region": "r"}


def test_values_of_storage_options():
    words = ["key=123", "anon=false", "timeout=3", 'client_kwargs={"region_name": "r"}', "x=a=b"]
    options = parsed("look", "s3://b/a", *[f"--storage-option={word}" for word in words])[1]
    assert options == {
        "key": "123",
        "anon": False,
        "timeout": 3,
        "client_kwargs": {"region_name": "r"},
        "x": "a=b",
    }
    assert "as in anon=true" in run("--storage-option", "anon", "info", "s3://b/a", code=2).stderr


def test_options_hold_for_urls_alone():
    words = ["--anon", "--storage-option=timeout=3", "--target-option=anon=false"]
    of_bucket = {"anon": True, "timeout": 3}
    assert parsed("look", "s3://a/b", "gs://c", *words)[1] == (
        of_bucket,
        {"anon": False, "timeout": 3},
    )
    assert parsed("look", "https://a/b", "gs://c", *words)[1][0] == {"timeout": 3}
    assert parsed("look", "local", "gs://c", *words)[1][0] is None
    assert parsed("look", "s3://a/b", "local", *words[:2])[1] == (of_bucket, None)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["info", "x", "--anon"], "--anon is for a location in an object store"),
        (["info", "https://x", "--endpoint-url", "u"], "--endpoint-url is for a location in an"),
        (["tree", "x", "--storage-option", "a=b"], "--storage-option is for a location at a URL"),
        (["copy", "s3://x", "y", "--target-option", "a=b"], "--target-option is for a target at"),
    ],
)
def test_options_that_no_location_takes(words, says):
    assert says in run(*words, code=2).stderr


def test_a_region_of_an_array_is_no_region_of_s3(array, tmp_path):
    run("copy", array, tmp_path / "b", "--region", "0:2,:", "-q")
    assert zd.open_array(tmp_path / "b").shape == (2, 6)
    said = run("copy", array, tmp_path / "c", "--s3-region", "eu-west-1", code=2).stderr
    assert "--region is for a location in an object store" in said


@pytest.fixture(scope="module")
def s3():
    with s3_server() as server:
        yield server


@pytest.fixture
def s3_words(s3, monkeypatch):
    """The options of the server for the command line; the environment has none."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    return [
        *("--endpoint-url", s3.endpoint, "--s3-region", "us-east-1"),
        *("--storage-option", f"key={s3.key}", "--storage-option", f"secret={s3.secret}"),
    ]


def test_storage_options_reach_s3(s3, s3_words, tmp_path):
    url = "s3://bucket/reach"
    made = zd.create_array(url, "a", shape=4, dtype="i4", chunks=2, storage_options=s3.options)
    made[...] = 7
    for words in (["info", url, "a"], ["verify", url], ["compare", f"{url}/a", f"{url}/a"]):
        assert json.loads(run(*words, "--json", *s3_words).stdout)["exit_code"] == 0
    run("copy", f"{url}/a", f"{url}/b", *s3_words, "-q")
    plan = tmp_path / "plan.json"
    run("plan", f"{url}/a", tmp_path / "c", "--chunks", 4, *s3_words, "-o", plan)
    assert s3.secret not in plan.read_text()
    run("run", plan, *s3_words)
    for array in (
        zd.open_array(url, "b", storage_options=s3.options),
        zd.open_array(tmp_path / "c"),
    ):
        assert array[...].tolist() == [7] * 4


# --- JSON -----------------------------------------------------------------------------------------


def test_every_command_prints_one_schema(array, tmp_path):
    new, plan, picture = tmp_path / "b", tmp_path / "plan.json", tmp_path / "p.png"
    run("plan", array, tmp_path / "n", "--chunks", 2, "-o", plan)
    zd.ome.write(np.zeros((8, 8), "u1"), tmp_path / "image", axes="yx")
    for words in (
        ["info", array],
        ["tree", array],
        ["inventory", tmp_path],
        ["plan", array, tmp_path / "x", "--chunks", 2],
        ["rechunk", array, new, "--chunks", 2],
        ["copy", array, tmp_path / "c"],
        ["copy", array, tmp_path / "d", "--dry-run"],
        ["migrate", array],
        ["verify", array],
        ["compare", array, new],
        ["run", plan],
        ["status", plan],
        ["finish", plan],
        ["ome", "info", tmp_path / "image"],
        ["ome", "validate", tmp_path / "image"],
        ["ome", "thumbnail", tmp_path / "image", picture],
        ["ome", "convert", tmp_path / "image", "--dry-run"],
        ["ome", "pyramid", array, tmp_path / "j", "--axes", "yx"],
    ):
        document = json.loads(run(*words, "--json").stdout)
        assert list(document) == ["schema", "command", "exit_code", "result", "error"], words
        assert document["schema"] == "zarr-dask/1"
        assert document["command"] == " ".join(words[: 2 if words[0] == "ome" else 1])
        assert document["error"] is None
        assert document["result"] is not None


@pytest.mark.parametrize(
    ("words", "code", "kind"),
    [
        (["info", "none"], 3, "NodeNotFoundError"),
        (["plan", "none", "b"], 2, "UsageError"),
        (["info", "none", "--anon"], 2, "UsageError"),
    ],
)
def test_errors_as_json(words, code, kind):
    done = run("--json", *words, code=code)
    document = json.loads(done.stdout)
    assert (document["command"], document["exit_code"]) == (words[0], code)
    assert document["error"]["type"] == kind
    assert document["error"]["message"].split()[0] in done.stderr


def test_findings_are_1_and_failures_3(array, tmp_path):
    zd.create_array(tmp_path / "b", shape=(4, 6), dtype="f4", chunks=4)
    document = json.loads(run("compare", array, tmp_path / "b", "--json", code=1).stdout)
    assert (document["exit_code"], document["result"]["equal"]) == (1, False)
    assert run("compare", array, tmp_path / "b", "-q", code=1).output == ""
    run("compare", array, tmp_path / "none", code=3)
    (tmp_path / "a" / "c" / "0" / "0").write_bytes(b"")
    assert run("verify", array, "-q", code=1).output == ""
    run("verify", tmp_path / "none", code=3)


def test_a_crash_is_a_failure(monkeypatch, array):
    def crash(*_, **__):
        raise RuntimeError("a fault of the program")

    monkeypatch.setattr(zd, "open", crash)
    assert "RuntimeError: a fault of the program" in run("info", array, code=3).stderr


# --- output ---------------------------------------------------------------------------------------


def test_a_plan_in_a_pipe(array, tmp_path):
    words = [sys.executable, "-m", "zarr_dask"]
    made = subprocess.run(
        [*words, "plan", array, tmp_path / "b", "--chunks", "2", "-o", "-"],
        check=True,
        capture_output=True,
    )
    assert zd.load_plan(made.stdout.decode()).nbytes == 96
    subprocess.run([*words, "run", "-"], check=True, input=made.stdout, capture_output=True)
    np.testing.assert_array_equal(zd.open_array(tmp_path / "b")[...], zd.open_array(array)[...])
    assert not (tmp_path / "-").exists()


def test_verbose_logs_and_leaves_no_trace(array):
    logger = logging.getLogger("zarr_dask")
    before = logger.level, list(logger.handlers)

    def info(*_, **__):
        logger.info("said")
        logger.debug("said in detail")

    for flag, lines in ((), []), (("-v",), ["said"]), (("-vv",), ["said", "said in detail"]):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("zarr_dask.cli.info.say_title", info)
            assert run("info", array, *flag).stderr.splitlines() == lines
    assert (logger.level, list(logger.handlers)) == before


def test_a_command_that_is_not_understood_leaves_no_trace(array):
    logger = logging.getLogger("zarr_dask")
    before = logger.level
    run("info", array, "-vv", "--nonsense", code=2)
    run("-v", "--nonsense", "info", array, code=2)
    assert logger.level == before


def test_messages_name_options():
    said = as_options(
        "raise max_mem; pass overwrite=True, or resume=True, or "
        'storage_options={"anon": True}; /data/dst/max_mem=3 stays'
    )
    assert said == (
        "raise --max-mem; pass --overwrite, or --resume, or --anon; /data/dst/max_mem=3 stays"
    )
    said = as_options(
        "Give the region by storage_options={'client_kwargs': {'region_name': ...}}, AWS_REGION in "
        "the environment, or a profile; a service other than AWS by 'endpoint_url'."
    )
    assert as_options("by its path: open('/a.zarr', path='t')") == (
        "by its path: URL and PATH are /a.zarr and t"
    )
    assert said == (
        "Give the region by --region, AWS_REGION in the environment, or a profile; a service "
        "other than AWS by --endpoint-url."
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["rechunk", "a", "b", "--memory", "1GB"], "Did you mean '--max-mem'?"),
        (["ome", "convert", "a", "b", "--version", "0.4"], "Did you mean '--to'?"),
        (["create", "a", "-f", "v3"], "Did you mean '--format' or '--overwrite'?"),
        (["create", "a", "--attrs", "u=m"], "Did you mean '--attribute'?"),
        (["info", "a", "--format", "json"], "for JSON it is --json."),
        (["verify", "a", "--checksum"], "Did you mean '--deep'?"),
        (["copy", "a", "b", "--recursive"], "what lies below is always included."),
        (["plan", "a", "b", "--n-workers", "2"], "Did you mean '--workers'?"),
        (["list", "a"], "Use ls."),
        (["checksum", "a"], "Use digest."),
        (["copy", "a", "b", "--deflate", "5"], "Did you mean '--codecs'?"),
        (["copy", "a", "b", "--transfers", "4"], "Did you mean '--workers'?"),
        (["copy", "a", "b", "-P"], "unless --quiet"),
        (["migrate", "a", "--force"], "nothing that exists is replaced."),
        (["migrate", "a", "--remove-v2-metadata"], "Did you mean '--remove-old'?"),
        (["migrate", "v3", "a", "b"], "migrate SRC DST --format v3."),
        (["rechunk", "a", "b", "2,3"], "--chunks 2,3."),
        (["rechunk", "a", "b", "y=2,x=-1"], "--chunks y=2,x=-1."),
        (["ome", "convert", "a.tif", "b", "--scale", "z=2"], "ome pyramid SRC DST takes it"),
        (["remove-metadata", "a"], "Use migrate --remove-old."),
        (["cancel", "a"], "Use Ctrl-C"),
        (["slurm", "a"], "then script."),
        (["serve", "a"], "'ome view' for images"),
        (["resume", "a"], "Use the same command again with --resume."),
    ],
    ids=str,
)
def test_options_of_other_tools_are_answered(words, says):
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2
    assert says in " ".join(result.stderr.split())


def test_a_rechunking_is_only_shown(array, tmp_path):
    target = tmp_path / "new.zarr"
    result = CliRunner().invoke(
        main, ["rechunk", array, str(target), "--chunks", "0=8B", "--dry-run"]
    )
    assert result.exit_code == 0
    assert "->" in result.stdout
    assert not target.exists()
