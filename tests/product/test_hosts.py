"""Scheduler and workers on hosts of their own: network namespaces, whose links go down."""

from __future__ import annotations

import subprocess
import time
from contextlib import contextmanager

import pytest

from tests.support.hosts import cluster, hosts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@contextmanager
def client(found, folder):
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with found.start(0, "tests.support.hosts_client", str(folder), "2", **output) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("state", ["up", "down"])
def test_jobs_run_on_several_hosts_also_while_a_link_is_down(tmp_path, state):
    """For 20 seconds in the middle of the job; nothing is lost, and values are right."""
    with hosts(2) as found, cluster(found), client(found, tmp_path) as job:
        assert job.stdout.readline() == "begins\n"
        assert job.stdout.readline() == "runs\n"
        if state == "down":
            found.link(2, "down")
            time.sleep(20)  # that is how long the link is down
            assert job.poll() is None
            found.link(2, "up")
        said, _ = job.communicate(timeout=180)
    assert "right" in said, said


def test_a_folder_that_one_host_does_not_see_is_named_before_anything_is_written(tmp_path):
    folder = tmp_path / "seen"
    (folder / "below").mkdir(parents=True)
    below = folder / "below"
    with hosts(2) as found, cluster(found, hides=str(folder)), client(found, below) as job:
        said, _ = job.communicate(timeout=120)
    assert job.returncode
    assert "WorkerSetupError: 1 of 2 workers do not see the folder" in said
    assert "tcp://10.99.0.3:" in said
    assert not list((folder / "below").iterdir())
