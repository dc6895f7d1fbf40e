"""Slurm on loopback: munged, slurmctld, and a slurmd for each of some virtual nodes.

``tools/servers.sh slurm`` unpacks Debian's packages. Nothing runs as a service, root is not needed,
and all files of the cluster are in one folder.
"""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp

from tests.support.object_stores import INSTALLED, free_port, installed, libraries

NODES = ("n1", "n2", "n3")
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge,cred_expire=5
CredType=cred/munge
PluginDir={plugins}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmdPidFile={folder}/%n.pid
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,batch_sched_delay=0,sched_min_interval=100000,bf_interval=1
SelectType=select/cons_res
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=2
MaxArraySize=11
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """A cluster; its commands are called by name."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self.environment = environment

    def __call__(self, *words: object) -> str:
        """What a command prints."""
        done = subprocess.run(
            [*map(str, words)],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"{words}: {done.stdout} {done.stderr}"
        return done.stdout

    def states(self) -> dict[str, str]:
        """The state of each job that Slurm knows, by its id and name."""
        rows = self("squeue", "--all", "--states=all", "--noheader", "--array", "--format=%i/%j %T")
        return dict(row.split() for row in rows.splitlines())

    def wait(self, *expected: str, seconds: float = 120) -> dict[str, str]:
        """Wait until all jobs are in one of some states."""
        deadline = time.monotonic() + seconds
        while not set((states := self.states()).values()) <= {*expected}:
            assert time.monotonic() < deadline, (states, self.logs())
            time.sleep(0.1)
        return states

    def logs(self) -> str:
        return (self.folder / "slurmctld.log").read_text()[-3000:]


@contextmanager
def slurm_cluster() -> Iterator[Slurm]:
    """The cluster, ready."""
    controller = installed("slurm", "usr/sbin/slurmctld-wlm")
    folder = Path(mkdtemp(prefix="slurm"))  # short: the path of a socket has few characters
    root = INSTALLED / "slurm"
    plugins = next(
        iter(root.glob("usr/lib/*/slurm-wlm")), Path("/usr/lib/x86_64-linux-gnu/slurm-wlm")
    )
    environment = libraries("slurm")
    found = f"{environment.get('LD_LIBRARY_PATH', '')}:{plugins}".strip(":")
    programs = f"{root / 'usr/bin'}:{root / 'usr/sbin'}:{environment['PATH']}:/usr/sbin"
    environment |= {
        "LD_LIBRARY_PATH": found,
        "PATH": programs,
        "SLURM_CONF": str(folder / "slurm.conf"),
    }
    names = {"munged": "munged", "slurmctld": controller}
    names |= {name: installed("slurm", f"usr/sbin/{name}-wlm") for name in ("slurmd", "slurmstepd")}
    _configure(folder, plugins)
    cluster = Slurm(folder, environment)
    processes: list[subprocess.Popen[bytes]] = []

    def start(*words: object) -> None:
        with (folder / "out.log").open("ab") as log:
            command = [*map(str, words)]
            processes.append(
                subprocess.Popen(
                    command, env=environment, stdout=log, stderr=log, start_new_session=True
                )
            )

    try:
        start(
            *("munged", "--force", "--foreground", "--num-threads=1"),
            *(f"--key-file={folder}/key", f"--socket={folder}/munge", f"--pid-file={folder}/m.pid"),
            *(f"--log-file={folder}/munge.log", f"--seed-file={folder}/seed"),
        )
        _until((folder / "munge").exists)
        start(names["slurmctld"], "-D")
        for node in NODES:
            start(names["slurmd"], "-D", "-N", node, "-d", names["slurmstepd"])
        _until(lambda: _idle(cluster), seconds=60)
        yield cluster
    finally:
        with suppress(AssertionError, subprocess.TimeoutExpired):
            cluster("scancel", "--user", getpass.getuser())
            cluster.wait("CANCELLED", "COMPLETED", "FAILED", "TIMEOUT", "NODE_FAIL", seconds=10)
        for process in reversed(processes):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)
        shutil.rmtree(folder, ignore_errors=True)


def _configure(folder: Path, plugins: Path) -> None:
    folder.chmod(0o755)
    (folder / "key").write_bytes(secrets.token_bytes(1024))
    (folder / "key").chmod(0o600)
    for name in ("state", *NODES):
        (folder / name).mkdir()
    host = socket.gethostname().partition(".")[0]
    at = {"host": host, "port": free_port(), "user": getpass.getuser(), "plugins": plugins}
    text = CONFIGURATION.format(folder=folder, **at)
    for node in NODES:
        text += (
            f"NodeName={node} NodeAddr=127.0.0.1 NodeHostname={host} Port={free_port()} "
            "CPUs=2 RealMemory=4000\n"
        )
    (folder / "slurm.conf").write_text(text)


def _idle(cluster: Slurm) -> bool:
    done = subprocess.run(
        ["sinfo", "--noheader", "--Node", "--format=%T"],
        env=cluster.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode == 0 and done.stdout.split() == ["idle"] * len(NODES)


def _until(holds: object, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "Slurm does not start"
        time.sleep(0.05)
