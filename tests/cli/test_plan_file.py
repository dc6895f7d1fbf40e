"""``zarr-dask run | status | finish | script``: plans in files, by processes without dask."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import zarr_dask as zd
from tests.support.object_stores import installed, s3_server
from zarr_dask.cli import main
from zarr_dask.cli.script import TimeOption
from zarr_dask.jobs.engine.lifecycle import join_job
from zarr_dask.jobs.plan_file import load_plan
from zarr_dask.jobs.rechunk.verify_copy import CopyVerification
from zarr_dask.stores import LocalStore, Recording
from zarr_dask.stores.open import BACKEND

SHAPE = (512, 32, 32)
VALUES = np.arange(512 * 32 * 32, dtype="f4").reshape(SHAPE)


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> str:
    place = tmp_path_factory.mktemp("source") / "a.zarr"
    options = {"chunks": (1, 32, 32), "codecs": ["blosc"]}
    array = zd.create_array(place, shape=SHAPE, dtype="f4", **options)
    array[...] = VALUES
    return str(place)


def cli(*words: object, code: int = 0) -> str:
    """What a command prints, in this process, on one line."""
    done = CliRunner().invoke(main, [*map(str, words)])
    assert done.exit_code == code, done.output
    return " ".join(done.output.split())


def script_of(*words: object) -> str:
    return CliRunner().invoke(main, [*map(str, words)]).output


def planned(source: str, folder: Path, *options: str) -> Path:
    file = folder / "plan.json"
    more = options or ("--chunks=-1,4,4", "--max-mem", "1.55MB", "--threads", "1")
    assert "written to" in cli("plan", source, folder / "b.zarr", *more, "-o", file)
    return file


@pytest.mark.parametrize("command", [["run"], ["status"], ["finish"], ["script", "--slurm"]])
@pytest.mark.parametrize("content", [b"\x89PNG\xff", b"{", b"[]"], ids=["picture", "half", "list"])
def test_files_that_hold_no_plan_are_named(tmp_path, command, content):
    file = tmp_path / "p.json"
    file.write_bytes(content)
    said = cli(*command, file, code=3)
    assert f"{file}: " in said
    assert "JSON" in said or "no plan" in said


@pytest.mark.parametrize("command", ["plan", "copy"])
@pytest.mark.parametrize("option", ["-o", "--plot"])
def test_no_file_is_put_among_arrays(tmp_path, monkeypatch, command, option):
    """One of them would have replaced the document of the source."""
    monkeypatch.chdir(tmp_path)
    zd.create_array("a.zarr", "x", shape=(4, 4), dtype="f4", chunks=2)[...] = 1
    zd.create_array("other.zarr", "y", shape=3, dtype="i4")
    Path("link").symlink_to("a.zarr/x")
    shutil.make_archive("c", "zip", "a.zarr")
    before = sorted(tmp_path.rglob("*"))
    name = "plan.png" if option == "--plot" else "plan.json"
    places = ["a.zarr/x/zarr.json", f"a.zarr/x/c/{name}", f"a.zarr/{name}", f"b.zarr/{name}"]
    if option == "--plot":
        places = places[1:3]
    for file in [*places, f"other.zarr/y/{name}", f"link/{name}"]:
        said = cli(command, "a.zarr/x", "b.zarr", option, file, "--chunks=1,4", code=2)
        assert "among arrays" in said
    if option == "-o":
        said = cli(command, "c.zip/x", "b.zarr", option, "c.zip", "--chunks=1,4", code=2)
        assert "among arrays" in said
    assert sorted(tmp_path.rglob("*")) == before
    run = [] if command == "plan" else ["--dry-run"]
    cli(command, "a.zarr/x", "b.zarr", option, name, "--chunks=1,4", *run)
    assert Path(name).is_file()


def test_stages_in_parts_by_several_processes(source, tmp_path):
    file = planned(source, tmp_path)
    stages = json.loads(file.read_text())["stages"]
    assert len(stages) == 2
    assert "not begun" in cli("status", file, code=1)
    for number, _ in enumerate(stages, 1):
        commands = [
            [sys.executable, "-m", "zarr_dask.cli", "run", file, "--stage", number, "--part", part]
            for part in ("1/2", "2/2")
        ]
        running = [subprocess.Popen([str(word) for word in one]) for one in commands]
        assert [process.wait(50) for process in running] == [0, 0]
        assert f"stage {number}: {stages[number - 1]['tasks']} of" in cli("status", file, code=1)
    assert "all tasks are done" in cli("status", file, code=1)
    cli("info", tmp_path / "b.zarr", code=3)
    assert "is finished" in cli("finish", file)
    assert "is finished" in cli("status", file)
    np.testing.assert_array_equal(zd.open_array(tmp_path / "b.zarr")[...], VALUES)
    assert {p.name for p in tmp_path.iterdir()} == {"b.zarr", "plan.json"}


def test_a_plan_as_a_whole_needs_no_dask(source, tmp_path):
    file = planned(source, tmp_path)
    program = (
        "import sys\nfrom zarr_dask.cli import main\n"
        "try:\n    main(['run', sys.argv[1]])\n"
        "except SystemExit as end:\n    assert not end.code\n"
        "assert not {'dask', 'distributed'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", program, file], check=True, timeout=50)
    np.testing.assert_array_equal(zd.open_array(tmp_path / "b.zarr")[...], VALUES)


def test_a_part_that_comes_late_leaves_the_target_alone(source, tmp_path):
    zd.create_array(tmp_path / "b.zarr", shape=(3,), dtype="i2", chunks=3)
    more = ("--chunks=-1,4,4", "--max-mem", "1.55MB", "--threads", "1", "--overwrite")
    file = planned(source, tmp_path, *more)
    assert "not begun" in cli("status", file, code=1)
    cli("run", file)
    assert "is finished already" in cli("run", file, "--stage", 1, "--part", "1/3")
    assert "--stage 9" in cli("run", file, "--stage", 9, code=2)
    np.testing.assert_array_equal(zd.open_array(tmp_path / "b.zarr")[...], VALUES)


def test_what_is_missing_is_not_finished(source, tmp_path):
    file = planned(source, tmp_path)
    assert "has not been begun" in cli("finish", file, code=3)
    cli("run", file, "--stage", 1)
    assert "is not complete" in cli("finish", file, code=3)
    cli("run", file)
    assert "finished already" in cli("finish", file)


def test_sigterm_finishes_the_object_at_hand(source, tmp_path):
    file = planned(source, tmp_path, "--chunks=1,1,32", "--max-mem", "1.55MB", "--threads", "1")
    command = [sys.executable, "-m", "zarr_dask.cli", "run", str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        while not any((tmp_path / "b.zarr").rglob("c/*/*/0")):
            assert process.poll() is None
        os.kill(process.pid, signal.SIGTERM)
        told = process.stdout.read()
        assert process.wait(30) == 143
    done, tasks = map(int, re.search(r"stage 1: (\d+) of (\d+) tasks done", told).groups())
    assert done < tasks
    assert not [p for p in (tmp_path / "b.zarr").rglob("*") if p.name.endswith(".tmp")]
    written = sum(1 for p in (tmp_path / "b.zarr").rglob("c/*/*/0"))
    receipts = (tmp_path / "b.zarr.zarr-dask").rglob("receipts-*")
    assert sum(text.read_text().count('["c/') for text in receipts) == written
    cli("run", file)
    np.testing.assert_array_equal(zd.open_array(tmp_path / "b.zarr")[...], VALUES)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("run", "--part", "1/2"), "give --stage too"),
        (("run", "--stage", "1", "--part", "3/2"), "is not I/N"),
        (("run", "--stage", "9"), "--stage 9: the plan has"),
        (("run", "--threads", "99"), "99 threads would hold more"),
        (("run", "--target-option", "anon=true"), "not for plans"),
        (("script", "--storage-option", "token=abc"), "a credential does not belong in a script"),
        (
            ("script", "--storage-option", 'client_kwargs={"aws_secret_access_key": "a"}'),
            "a credential does not belong in a script",
        ),
    ],
)
def test_wrong_usage(source, tmp_path, words, says):
    file = planned(source, tmp_path)
    command, *options = words
    assert says in cli(command, file, *options, code=2)  # which batch systems do not repeat


def test_jobs_of_a_script_get_its_options_of_object_stores(source, tmp_path, monkeypatch):
    monkeypatch.setenv(BACKEND, "")  # --backend sets it for this process, too: undone at the end
    monkeypatch.delenv(BACKEND)
    with s3_server() as server:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret)
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        file, target = tmp_path / "plan.json", f"{server.root}/b.zarr"
        cli("plan", source, target, "--chunks=512,16,16", "-o", file)
        monkeypatch.delenv("AWS_ENDPOINT_URL")  # jobs run on other hosts
        given = ["--endpoint-url", server.endpoint, "--region", "us-east-1"]
        given += ["--backend", "obstore", "--storage-option", "requester_pays=true"]
        script = script_of("script", file, "--pbs", "--parts", "1", *given)
        for job in jobs_of(script):
            shell = [str(shutil.which("sh")), "-c", job]
            done = subprocess.run(shell, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
        assert script.count("--backend obstore") == script.count("requester_pays=true") == 2
        written = zd.open_array(target, storage_options=server.options)
        np.testing.assert_array_equal(written[...], VALUES)


@pytest.mark.slow
def test_a_script_for_slurm_runs_stages_one_after_the_other(source, tmp_path):
    """Carried out by a stand-in for sbatch that runs what it is given at once."""
    folder = tmp_path / "it's $HOME, of course"
    folder.mkdir()
    file = planned(source, folder)
    journal = ("--journal", f"{folder}/journals of jobs")
    script = script_of("script", file, "--slurm", "--parts", "2", "--time", "01:00:00", *journal)
    assert script.count("--array=1-2") == 2
    assert script.count("--signal=B:USR1@120") == 3  # else the batch shell is not signalled
    assert script.count("--time=60") == script.count("--mem=") == script.count("--cpus-per-task=")
    assert script.count('--dependency="afterok$before" --kill-on-invalid-dep=yes') == 2
    assert script.count(f"{sys.executable} -m zarr_dask.cli") == 3
    stand_in = tmp_path / "bin" / "sbatch"
    stand_in.parent.mkdir()
    stand_in.write_text(
        "#!/bin/sh\n"
        'for word in "$@"; do case "$word" in\n'
        "  --array=1-*) last=${word#--array=1-} ;;\n"
        "esac; done\njob=$(cat)\n"
        "for SLURM_ARRAY_TASK_ID in $(seq 1 ${last:-1}); do export SLURM_ARRAY_TASK_ID\n"
        '  sh -c "$job" >&2 || exit 1\n'
        "done\n"
        "echo 17\n"
    )
    stand_in.chmod(stand_in.stat().st_mode | stat.S_IXUSR)
    paths = os.pathsep.join([str(stand_in.parent), os.environ["PATH"]])
    subprocess.run(
        [shutil.which("sh"), "-c", script],
        check=True,
        env={**os.environ, "PATH": paths},
        timeout=55,
    )
    np.testing.assert_array_equal(zd.open_array(folder / "b.zarr")[...], VALUES)
    names = {p.name for p in folder.iterdir()}
    assert names <= {"b.zarr", "plan.json", "plan.json.logs", "journals of jobs"}


@pytest.mark.parametrize("kind", ["array", "group"])
def test_plans_of_no_tasks(tmp_path, kind):
    if kind == "array":
        zd.create_array(tmp_path / "a.zarr", shape=(0, 5), dtype="i2", chunks=(2, 5))
    else:
        zd.create_group(tmp_path / "a.zarr", attributes={"title": "empty"})
    file = tmp_path / "plan.json"
    cli("copy", tmp_path / "a.zarr", tmp_path / "b.zarr", "-o", file)
    assert "--stage 1" in script_of("script", file, "--slurm")
    cli("run", file, "--stage", 1, "--part", "1/1")
    assert "0 of 0 tasks done (100%) all tasks are done" in cli("status", file, code=1)
    cli("finish", file)
    assert (
        repr(zd.open(tmp_path / "b.zarr")).partition(" v3")[2]
        == (repr(zd.open(tmp_path / "a.zarr")).partition(" v3")[2])
    )


def test_why_there_is_no_plan_file(source, tmp_path):
    words = ("plan", source, tmp_path / "b.zip", "--chunks=-1,8,8", "-o", tmp_path / "plan.json")
    assert "is a zip archive, which one process writes" in cli(*words, code=3)


@pytest.fixture
def taken():
    """Both signals are taken, as in a terminal; a shell's background has ignored Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("taken")
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)],
)
def test_a_signal_ends_a_comparison_too(source, tmp_path, monkeypatch, number, code):
    """It comes when the first box is compared; the target is not visible then."""
    file = planned(source, tmp_path, "--chunks=1,8,8", "--max-mem", "20MB", "--threads", "1")
    compared = []
    compare = CopyVerification.__call__

    def compare_and_signal(self, box):
        compared.append(box)
        os.kill(os.getpid(), number)
        return compare(self, box)

    monkeypatch.setattr(CopyVerification, "__call__", compare_and_signal)
    cli("run", file, "--verify", "--threads", 1, code=code)
    assert len(compared) == 1
    assert not (tmp_path / "b.zarr" / "zarr.json").exists()
    monkeypatch.undo()
    cli("run", file, "--verify")
    np.testing.assert_array_equal(zd.open_array(tmp_path / "b.zarr")[...], VALUES)


@pytest.mark.parametrize("command", ["run", "finish"])
def test_what_another_plan_has_finished_is_compared_too(source, tmp_path, command):
    """Metadata say the same of both; that the values are others, only they can tell."""
    file = planned(source, tmp_path, "--chunks=16,8,8")
    options = {"dtype": VALUES.dtype, "codecs": ["blosc"]}
    other = zd.create_array(tmp_path / "other.zarr", shape=VALUES.shape, **options)
    other[...] = VALUES + 1
    zd.rechunk(tmp_path / "other.zarr", tmp_path / "b.zarr", chunks=(16, 8, 8))
    assert "finished already" in cli(command, file)
    said = cli(command, file, "--verify", code=3)
    assert re.search("[0-9,]+ elements.* differ", said.replace("\n", " "))
    shutil.rmtree(tmp_path / "b.zarr")
    cli("run", file)
    assert "finished already" in cli(command, file, "--verify")


@pytest.mark.parametrize(
    ("region", "index"),
    [
        ("0:100,:,5", np.s_[0:100, :, 5:6]),
        ("-3:", np.s_[-3:]),
        ("[:, 3:9]", np.s_[:, 3:9]),
        ("...,-1", np.s_[..., -1:]),
        ("2=4:6,0=:9:1", np.s_[:9, :, 4:6]),
        (":", np.s_[:]),
    ],
)
def test_a_region(source, tmp_path, region, index):
    file = planned(source, tmp_path, "--region", region)
    cli("run", file)
    cli("rechunk", source, tmp_path / "c.zarr", f"--region={region}", "--chunks=7", "--verify")
    cli("copy", source, tmp_path / "d.zarr", f"--region={region}", "--verify")
    for name in ("b.zarr", "c.zarr", "d.zarr"):
        np.testing.assert_array_equal(zd.open_array(tmp_path / name)[...], VALUES[index])


def test_a_region_by_names(tmp_path):
    group = zd.create_group(tmp_path / "g.zarr")
    for name in ("t", "x"):
        array = group.create_array(name, shape=(9,), dtype="i4", chunks=2, dimension_names=[name])
        array[...] = np.arange(9)
    cli("copy", tmp_path / "g.zarr", tmp_path / "h.zarr", "--region", "t=2:5", "--verify")
    np.testing.assert_array_equal(zd.open_array(tmp_path / "h.zarr", "t")[...], [2, 3, 4])
    np.testing.assert_array_equal(zd.open_array(tmp_path / "h.zarr", "x")[...], np.arange(9))
    sources = ["--array", "t", "--region", "t=7"]
    cli("rechunk", tmp_path / "g.zarr", tmp_path / "i.zarr", *sources)
    np.testing.assert_array_equal(zd.open_array(tmp_path / "i.zarr", "t")[...], [7])


@pytest.mark.parametrize(
    ("region", "says"),
    [
        ("0:100:2", "has a step"),
        ("a:b", "is no slice"),
        ("1:2:3:4", "is no slice"),
        ("", "a slice is missing"),
        ("1:2,", "a slice is missing"),
        ("0=1:2,3", "mixes slices"),
        ("=1:2", "names no dimension"),
        ("0=1,0=2", "twice"),
        ("time=0:3", "which are no dimensions"),
        ("512", "that has 512"),
        (":,:,:,0", "4 indices"),
    ],
)
def test_regions_that_are_none(source, tmp_path, region, says):
    words = ("plan", source, tmp_path / "b.zarr", "--chunks=7", f"--region={region}")
    done = CliRunner().invoke(main, [*map(str, words)])
    assert done.exit_code
    assert says in " ".join(done.output.split())


def test_a_part_looks_at_its_own_objects_only(tmp_path):
    """Of the others neither stored objects nor receipts."""
    zd.create_array(tmp_path / "a.zarr", shape=(64, 512), dtype="f4", chunks=(64, 16))[...] = 7
    store = Recording(LocalStore(str(tmp_path)))
    source, budget = zd.open_array(tmp_path / "a.zarr"), (1 << 20) + 100_000
    plan = zd.plan_rechunk(source, store, path="b.zarr", chunks=(64, 4), max_mem=budget, threads=1)
    tasks = plan.stages[0].tasks
    assert (len(plan.stages), tasks > 6) == (1, True)
    job = join_job(plan.as_job())
    half = range(tasks // 2)
    for numbers in (range(2), half[2:]):
        own = job.part(0, numbers)
        assert own.missing(0, numbers) == [*numbers]
        for number in numbers:
            own.stage(0).copy(number)
    store.clear()
    own = job.part(0, range(2))
    assert own.missing(0, range(2)) == []
    mine = {f"b.zarr/{key}" for number in range(2) for key in own.jobs[0].stage(0).keys(number)}
    looked_at = {one.key for one in store.requests if "/c/" in one.key}
    assert looked_at == mine
    assert [len([*one.journal.receipts()]) for one in (own, job)] == [2, tasks // 2]
    across = range(1, tasks // 2 + 1)  # other parts than before
    assert job.part(0, across).missing(0, across) == [tasks // 2]
    (tmp_path / min(mine)).unlink()
    assert own.missing(0, range(2)) == [0]
    assert job.missing(0, range(tasks)) == [0, *range(tasks // 2, tasks)]


@pytest.mark.parametrize("sparse", [False, True])
def test_a_part_of_a_copy_looks_at_its_own_objects_only(tmp_path, sparse):
    grid = (100_000, 4) if sparse else (40, 4)
    array = zd.create_array(tmp_path / "a.zarr", shape=grid, dtype="i2", chunks=(1, 4))
    array[:40] = 7
    array[5] = 0  # absent
    file = tmp_path / "plan.json"
    cli("copy", tmp_path / "a.zarr", tmp_path / "b.zarr", "-o", file)
    job = join_job(load_plan(file.read_text()).as_job())
    (member,) = job.plan.members
    tasks = job.plan.stages[0].tasks
    first = range(1)
    assert job.missing(0, first) == [0]
    job.stage(0).copy(0)
    assert not job.part(0, first).missing(0, first)  # any part may have written these receipts
    assert not job.missing(0, first)
    cli("run", file)
    np.testing.assert_array_equal(zd.open_array(tmp_path / "b.zarr")[:50], array[:50])
    assert member.batch * tasks >= grid[0]


def test_a_part_that_is_done_is_done_whatever_signal_follows(source, tmp_path):
    file = planned(source, tmp_path)
    command = [sys.executable, "-m", "zarr_dask.cli", "run", file, "--stage", "1", "--part", "1/2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        said = process.stdout.readline()
        process.terminate()
        assert process.wait(30) == 0
    done, tasks = map(int, re.search(r"stage 1: (\d+) of (\d+) tasks done", said).groups())
    assert done == tasks > 0


def jobs_of(script: str) -> list[str]:
    """The input of every command that submits."""
    return re.findall(r"<<'END_OF_JOB'\n(.*?)\nEND_OF_JOB", script, re.DOTALL)


@pytest.mark.parametrize("system", ["slurm", "pbs", "lsf", "k8s"])
def test_scripts_are_sound(source, tmp_path, system):
    """More parts than an array may have are several; jobs of Kubernetes are YAML."""
    import yaml

    folder = tmp_path / "it's $HOME, of course"
    folder.mkdir()
    file = planned(source, folder)
    words = ["--throttle", "2", "--setup", "module load python", "--verify", "--mem", "4G"]
    if system == "k8s":
        words += ["--image", "registry/zarr:1", "--claim", "plan=/data", "--claim", "plan=/more"]
    else:
        words += ["--account", "ab12", "--partition", "main", "--array-limit", "3"]
        words += ["--logs", str(tmp_path / "logs")]
    script = script_of("script", file, f"--{system}", *words)
    check = installed("slurm", "usr/bin/shellcheck")
    jobs = jobs_of(script)
    if system == "k8s":
        found = [yaml.safe_load(job) for job in jobs]
        assert {one["kind"] for one in found} == {"Job"}
        pods = [one["spec"]["template"]["spec"] for one in found]
        jobs = ["#!/bin/sh\n" + one["containers"][0]["command"][2] for one in pods]
        plan, claim = pods[0]["volumes"]
        assert claim["persistentVolumeClaim"]["claimName"] == "plan"
        mounts = {m["mountPath"]: m["name"] for m in pods[0]["containers"][0]["volumeMounts"]}
        assert mounts == {
            "/etc/zarr-dask": plan["name"],
            "/data": claim["name"],
            "/more": claim["name"],
        }
        assert pods[0]["containers"][0]["resources"]["limits"]["memory"] == "4096Mi"
        assert found[0]["spec"]["parallelism"] == 2
    else:
        assert script.count("ab12") == script.count("<<'END_OF_JOB'") > 3
        assert all("module load python" in job for job in jobs)
    for text in (script, *jobs):
        done = subprocess.run(
            [check, "--exclude=SC2016", "-"],
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )
        assert not done.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--k8s",), "needs the --image"),
        (("--slurm", "--image", "x"), "are for --k8s"),
        (("--time", "tomorrow"), "is no time"),
        (("--time", "0"), "is no time limit"),
        (("--time", "90", "--time-factor", "2"), "--time and --time-factor exclude each other"),
        (("--mem", "0"), "is no memory"),
        (("--mem", "much"), "is not a size"),
        (("--k8s", "--image", "x", "--claim", "data"), "is not NAME=FOLDER"),
        (("--slurm", "--k8s", "--image", "x"), "--slurm and --k8s exclude each other"),
        (("--lsf", "--pbs"), "--pbs and --lsf exclude each other"),
        *(
            (("--k8s", "--image", "x", *words), f"{words[0]} is not for --k8s")
            for words in (
                ("--account", "ab12"),
                ("--partition", "main"),
                ("--array-limit", "1000"),
                ("--logs", "logs"),
                ("--option", "--qos=long"),
            )
        ),
        (("--k8s", "--image", "x", "--claim", "a=/x", "--claim", "b=/x/"), "a folder of its own"),
        (("--k8s", "--image", "x", "--claim", "a=/etc/zarr-dask"), "a folder of its own"),
        (("--option", "qos=long"), "such as --option=--qos=long"),
        (("--qos", "long"), "--option=--qos=VALUE"),
        (("-p", "main"), "Did you mean '--partition'"),
        (("--queue", "main"), "Did you mean '--partition'"),
        (("--cpus-per-task", "4"), "zarr-dask plan takes them"),
        (("--sge",), "systems are --slurm, --pbs, --lsf and --k8s"),
    ],
)
def test_scripts_with_wrong_options(source, tmp_path, words, says):
    file = planned(source, tmp_path)
    assert says in cli("script", file, *words, code=2)


def test_what_jobs_read_has_a_place_that_they_find(source, tmp_path, monkeypatch):
    """A plan on standard input has none; a large one does not fit what Kubernetes hands to jobs."""
    file = planned(source, tmp_path)
    assert "PLAN is a file" in cli("script", "-", code=2)
    monkeypatch.chdir(tmp_path)
    assert f"--journal {tmp_path}/receipts " in script_of("script", file, "--journal", "receipts")
    assert "--journal s3://b/x " in script_of("script", file, "--journal", "s3://b/x")
    told = json.loads(script_of("script", file, "--json"))["result"]
    assert (told["system"], told["script"]) == ("slurm", script_of("script", file))
    monkeypatch.setattr("zarr_dask.cli.script._CONFIG_MAP", 10)
    assert "holds 10" in cli("script", file, "--k8s", "--image", "x", code=2)


@pytest.mark.parametrize(
    ("given", "minutes"),
    [
        ("90", 90),
        ("01:30:00", 90),
        ("1-00:00:01", 1441),
        ("20:30", 21),
        ("1-12", 2160),
        ("1-12:30", 2190),
    ],
)
def test_times(given, minutes):
    assert TimeOption().convert(given, None, None) == minutes


def test_the_status_is_watched_until_the_end(source, tmp_path):
    file = planned(source, tmp_path)
    command = [sys.executable, "-m", "zarr_dask.cli", "status", file, "--watch", "--every", "0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "not begun\n"
        cli("run", file)
        lines = process.stdout.readlines()
        assert process.wait(30) == 0
    assert lines[-1].endswith("is finished\n")
