"""doctor and completion."""

import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

import zarr_dask as zd
from tests.support.http_server import Files, serving
from tests.support.object_stores import free_port, s3_server
from zarr_dask.cli import main


def run(*words, code=0):
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == code, done.output
    return done


def steps(url, *words, code=0):
    """Each step of doctor, as 'ok', 'failed' or '-', and what was said."""
    found = json.loads(run("doctor", url, *words, "--json", code=code).stdout)["result"]["steps"]
    marks = {True: "ok", False: "failed", None: "-"}
    return {one["step"]: marks[one["ok"]] for one in found}, {
        one["step"]: one["message"] for one in found
    }


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    for name in [name for name in os.environ if name.startswith("AWS_") or "proxy" in name.lower()]:
        monkeypatch.delenv(name)


def test_what_is_there():
    text = run("doctor").stdout
    assert f"zarr-dask {zd.__version__}" in text
    facts = json.loads(run("doctor", "--json").stdout)["result"]
    assert {"zstd", "blosc", "gzip", "sharding_indexed"} <= {*facts["codecs"]}
    assert facts["versions"]["numpy"] is not None
    assert "obstore" in facts["stores"]["S3"]


def test_what_is_missing(monkeypatch):
    monkeypatch.setattr("zarr_dask.cli.doctor.find_spec", lambda _: None)
    facts = json.loads(run("doctor", "--json").stdout)["result"]
    assert "pip install 'zarr-dask[obstore]'" in facts["stores"]["S3"]
    assert "pcodec" not in facts["codecs"]


def test_local(tmp_path):
    zd.create_array(tmp_path / "a", "x", shape=4, dtype="i4", chunks=2)[...] = 1
    marks, said = steps(tmp_path / "a")
    assert list(marks.values()) == ["ok", "-", "-", "ok", "ok"]
    assert "2 values of int32" in said["reading"]
    marks, said = steps(tmp_path / "none", code=1)
    assert marks["reading"] == "failed"


def test_http(tmp_path):
    zd.create_array(tmp_path / "a", shape=4, dtype="i4", chunks=2)[...] = 1
    values = {
        str(path.relative_to(tmp_path)): path.read_bytes()
        for path in tmp_path.rglob("*")
        if path.is_file()
    }
    with serving(Files, values) as (url, _):
        marks, said = steps(f"{url}/a")
    assert list(marks.values()) == ["ok"] * 5
    assert said["connection"].startswith("127.0.0.1:")


def test_each_step_may_fail():
    refused = f"http://127.0.0.1:{free_port()}"
    for url, words, failing in (
        ("s3://", [], "name"),
        ("s3://b/a", ["--endpoint-url", refused, "--anon"], "connection"),
        ("http://no.such.host.invalid/a", [], "connection"),
    ):
        marks, said = steps(url, *words, code=1)
        assert [step for step, mark in marks.items() if mark == "failed"] == [failing], said
        assert [*marks.values()][-1] == "-"


def test_s3():
    with s3_server() as server:
        url, service = "s3://bucket/d", ["--endpoint-url", server.endpoint]
        zd.create_array(url, shape=4, dtype="i4", chunks=2, storage_options=server.options)
        secrets = [f"--storage-option=key={server.key}", f"--storage-option=secret={server.secret}"]
        marks, said = steps(url, *service, *secrets, "--region", "us-east-1")
        assert list(marks.values()) == ["ok"] * 5
        assert "obstore" in said["name"]
        assert server.secret not in str(said)
        marks, _ = steps("s3://absent/d", *service, *secrets, "--region", "us-east-1", code=1)
        assert "failed" in marks.values()


# --- completion -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shell", "started"), [("bash", ".bashrc"), ("zsh", ".zshrc"), ("fish", None)]
)
def test_completion_installs_itself_once(shell, started, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", f"/bin/{shell}")
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    if started:
        (tmp_path / started).write_text("alias a=b")
    for _ in range(2):
        run("completion", "--install")
    files = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    if started is None:
        assert files == {"zarr-dask.fish"}
        return
    assert files == {started, f"completion.{shell}"}
    first, line = (tmp_path / started).read_text().splitlines()
    assert (first, "completion of zarr-dask" in line) == ("alias a=b", True)


def test_completion_of_an_unknown_shell(monkeypatch):
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    assert "give bash, zsh or fish" in run("completion", code=2).stderr


def test_bash_completes(tmp_path):
    """What the script in bash asks the program for."""
    script = run("completion", "bash").stdout
    subprocess.run(["bash", "--norc", "-n"], input=script, text=True, check=True)
    for words, found in (
        ("zarr-dask comp", {"plain,compare", "plain,completion"}),
        ("zarr-dask info --js", {"plain,--json"}),
        ("zarr-dask info a", {"file,a"}),
    ):
        count = len(words.split()) - 1
        made = subprocess.run(
            [sys.executable, "-m", "zarr_dask"],
            env={
                **os.environ,
                "_ZARR_DASK_COMPLETE": "bash_complete",
                "COMP_WORDS": words,
                "COMP_CWORD": str(count),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert set(made.stdout.split()) == found
