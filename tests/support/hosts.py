"""Several hosts: network namespaces with their own addresses, for a scheduler and its workers.

What runs in one of them has its own mounts as well. Only root may make them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from shutil import which

import pytest

from tests.support.paths import ROOT

SCHEDULER = "10.99.0.1"
ADDRESS = f"tcp://{SCHEDULER}:8786"
QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


class Hosts:
    """A host for the scheduler and its client, and some for workers, each with its link."""

    def __init__(self, name: str, workers: int) -> None:
        self.names = [f"{name}-{number}" for number in range(workers + 1)]

    def ip(self, host: int, *words: str) -> None:
        subprocess.run(["ip", "-n", self.names[host], *words], check=True, capture_output=True)

    def link(self, worker: int, state: str) -> None:
        """Pull the plug of a worker, or put it in again: "down" or "up"."""
        self.ip(0, "link", "set", f"w{worker}", state)

    def start(self, host: int, *command: str, hides: str = "", **options) -> subprocess.Popen:
        """Run a Python program on a host, which does not see what is in some folder."""
        mount = f"mount -t tmpfs none '{hides}' && " if hides else ""
        words = ["sh", "-c", f'{mount}exec "$@"', "sh", sys.executable, "-m", *command]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        inside = ["ip", "netns", "exec", self.names[host], *words]
        return subprocess.Popen(inside, env=environment, cwd=ROOT, **options)

    @contextmanager
    def running(self, host: int, *command: str, hides: str = "") -> Iterator[None]:
        """Run a program until the end of the block."""
        with self.start(host, *command, hides=hides, **QUIET) as process:
            try:
                yield
            finally:
                process.kill()


@contextmanager
def hosts(workers: int) -> Iterator[Hosts]:
    """Make hosts that reach each other through a switch; skip where that is not allowed."""
    found = Hosts(f"zd{os.getpid()}", workers)
    if which("ip") is None or os.geteuid():
        pytest.skip("network namespaces need root and the program ip (iproute2)")
    with ExitStack() as stack:
        for name in found.names:
            made = subprocess.run(["ip", "netns", "add", name], check=False, capture_output=True)
            if made.returncode:
                pytest.skip(f"this machine makes no network namespace: {made.stderr.decode()}")
            stack.callback(subprocess.run, ["ip", "netns", "del", name], check=True)
        found.ip(0, "link", "add", "switch", "type", "bridge")
        found.ip(0, "address", "add", f"{SCHEDULER}/24", "dev", "switch")
        found.ip(0, "link", "set", "switch", "up")
        for worker in range(1, workers + 1):
            pair = ["link", "add", f"w{worker}", "type", "veth", "peer", "name", "eth0"]
            found.ip(0, *pair, "netns", found.names[worker])
            found.ip(0, "link", "set", f"w{worker}", "master", "switch", "up")
            found.ip(worker, "address", "add", f"10.99.0.{worker + 1}/24", "dev", "eth0")
            found.ip(worker, "link", "set", "eth0", "up")
        for host in range(workers + 1):
            found.ip(host, "link", "set", "lo", "up")
        yield found


@contextmanager
def cluster(found: Hosts, hides: str = "") -> Iterator[None]:
    """A scheduler on the first host and a worker on each other; the last one lacks a folder."""
    listen = ("--host", SCHEDULER, "--port", "8786", "--no-dashboard")
    with ExitStack() as stack:
        stack.enter_context(found.running(0, "distributed.cli.dask_scheduler", *listen))
        last = len(found.names) - 1
        for worker in range(1, last + 1):
            own = ("--host", f"10.99.0.{worker + 1}", "--nthreads", "1", "--no-nanny")
            command = ("distributed.cli.dask_worker", ADDRESS, *own, "--no-dashboard")
            lacks = hides if worker == last else ""
            stack.enter_context(found.running(worker, *command, hides=lacks))
        yield
