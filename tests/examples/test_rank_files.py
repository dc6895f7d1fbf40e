"""Ranks in C and Fortran write an output, are torn off and restarted, beside ranks in Python."""

from __future__ import annotations

import fcntl
import runpy
import subprocess
from pathlib import Path
from shutil import which

import numpy as np
import pytest

import zarr_dask as zd
from tests.support import mpi
from tests.support.object_stores import INSTALLED, installed, missing
from tests.support.paths import ROOT
from zarr_dask.errors import RankError

C = ROOT / "examples/c"
STRICT = ("-std=c11", "-Wall", "-Wextra", "-Werror", "-O1")


def compiler(name):
    return which(name) or missing(name, f"apt-get install {name}")


def built(command):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return command[command.index("-o") + 1]


@pytest.fixture(scope="module")
def wave_of_c(tmp_path_factory):
    program = tmp_path_factory.mktemp("c") / "wave"
    return built([compiler("cc"), *STRICT, "-o", program, C / "wave.c", C / "zd_rank.c"])


def built_by_gfortran(folder):
    """By the system's one, or by the unpacked one beside the system's cc."""
    cc, fortran = compiler("cc"), installed("gfortran", "usr/bin/gfortran")
    rank = built([cc, "-c", C / "zd_rank.c", "-o", folder / "zd_rank.o"])
    more = []
    if Path(fortran).is_relative_to(INSTALLED):
        said = subprocess.run([cc, "-print-libgcc-file-name"], capture_output=True, check=True)
        own = Path(said.stdout.decode().strip()).parent
        libraries = [*(INSTALLED / "gfortran/usr/lib").glob("*-linux-gnu*")]
        libraries += (INSTALLED / "gfortran/usr/lib/gcc").glob("*/*")
        more = ["-static-libgfortran", "-fno-use-linker-plugin", f"-B{own}"]
        more += [f"-L{library}" for library in libraries]
    sources = [ROOT / f"examples/fortran/{name}.f90" for name in ("zd_rank", "wave")]
    warnings = ["-Wall", "-Wextra", "-Werror", f"-J{folder}"]
    return built([fortran, *warnings, *more, "-o", folder / "wave", *sources, rank])


@pytest.fixture
def url(tmp_path, monkeypatch):
    url = str(tmp_path / "run.zarr")
    in_python(monkeypatch, url, "create")
    return url


def in_python(monkeypatch, url, what):
    with monkeypatch.context() as patch:
        patch.setattr("sys.argv", ["wave.py", url, what])
        runpy.run_path(str(C / "wave.py"))


def run(program, url, steps, rank):
    words = [str(program), url, str(steps), str(rank)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=30)
    return done.stderr if done.returncode else ""


def field(steps):
    one = 1 + np.arange(64 * 128).reshape(64, 128)
    return (one + 10000 * np.arange(steps).reshape(-1, 1, 1)).astype("f4")


def check(url, steps):
    group = zd.open_group(url)
    np.testing.assert_array_equal(group["wave"][...], field(steps))
    np.testing.assert_array_equal(group["time"][...], np.arange(steps) / 2)


@pytest.mark.parametrize("language", ["c", "fortran"])
def test_ranks_without_python_write_and_finish_publishes(
    url, language, wave_of_c, tmp_path, monkeypatch
):
    program = wave_of_c if language == "c" else built_by_gfortran(tmp_path)
    assert [run(program, url, 12, rank) for rank in range(3)] == ["", "", ""]
    assert zd.Writer.attach(url).publish() == 0
    assert run(program, url, 12, 3) == ""
    in_python(monkeypatch, url, "publish")
    check(url, 10)
    assert not zd.verify(url, deep="receipts").findings
    assert [run(program, url, 20, rank) for rank in range(4)] == [""] * 4
    in_python(monkeypatch, url, "finish")
    check(url, 20)
    assert not zd.verify(url, deep="decode").findings
    assert "output.json: No such file" in run(program, url, 25, 0)


def test_ranks_of_mpi_in_c(url, tmp_path):
    mpicc = f"{mpi.folder('mpich')}/mpicc"
    sources = [C / "wave.c", C / "zd_rank.c"]
    program = built([mpicc, *STRICT, "-DWITH_MPI", "-o", tmp_path / "wave", *sources])
    status, said = mpi.run("mpich", 4, str(program), url, "15")
    assert status == 0, said
    assert zd.Writer.attach(url).finish() == 15
    check(url, 15)


def test_ranks_in_c_and_python_share_files_locks_and_restarts(url, wave_of_c):
    """What one has begun the other continues, after a checkpoint too."""
    for rank in range(4):
        run(wave_of_c, url, 10, rank)
    with zd.Writer.attach(url, rank=1) as writer:
        assert writer.next_step == 10
        assert "another process is this rank" in run(wave_of_c, url, 15, 1)
    with pytest.raises(zd.errors.StepError, match="only the steps before 10"):
        zd.Writer.attach(url, from_step=11)
    zd.Writer.attach(url, from_step=5, run="second")
    assert zd.Writer.attach(url).stored() == 5
    with zd.Writer.attach(url, rank=2) as writer:
        for step in range(5, 15):
            writer.write_step(step, {"wave": field(step + 1)[step, 32:, :64]})
    for rank in (0, 1, 3):
        assert run(wave_of_c, url, 15, rank) == ""
    assert zd.Writer.attach(url).publish() == 15
    check(url, 15)


def test_a_torn_line_is_cut_off_and_a_damaged_one_refused(url, wave_of_c):
    for rank in range(4):
        run(wave_of_c, url, 5, rank)
    (log,) = Path(f"{url}.zarr-dask/__output").glob("*/rank-3")
    log.write_bytes(log.read_bytes() + b'deadbeef {"array":"wave","index":1,"st')
    for rank in range(4):
        assert run(wave_of_c, url, 10, rank) == ""
    assert zd.Writer.attach(url).publish() == 10
    check(url, 10)
    log.write_bytes(log.read_bytes().replace(b'"index":0', b'"index":9'))
    assert "has a damaged line" in run(wave_of_c, url, 15, 3)


def test_a_rank_that_another_host_may_be_is_left_to_it(url, wave_of_c):
    (log,) = Path(f"{url}.zarr-dask/__output").glob("*/rewinds")
    record = log.with_name("held-rank-0")
    record.write_text('{"host": "other", "locked": false}')
    assert "if it is gone, remove the file" in run(wave_of_c, url, 5, 0)
    record.unlink()
    assert run(wave_of_c, url, 5, 0) == ""
    with log.with_name("rank-0").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert "another process is this rank" in run(wave_of_c, url, 5, 0)
    with log.with_name("rank-1").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(RankError):
            zd.Writer.attach(url).finish()


def test_the_reference_is_short():
    for path in (C / "zd_rank.c", ROOT / "examples/fortran/zd_rank.f90"):
        assert len(path.read_text().splitlines()) <= 200
