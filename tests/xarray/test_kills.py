"""Writers of datasets that are killed at random moments, on threads and on a cluster."""

from __future__ import annotations

import random

import pytest

from tests.support.kill_roles import Cluster, Folder
from tests.support.xarray_kills import survives_kills

pytestmark = [
    pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part"),
    pytest.mark.filterwarnings("ignore:Object at .*zarr-dask-"),  # what zarr-python does not know
    pytest.mark.timeout(1800),
]
JOBS = ["create", "append", "region", "swap", "swap all"]


@pytest.fixture
def cluster(tmp_path):
    made = Cluster(Folder(str(tmp_path)), "cluster")
    yield made
    made.kill()


@pytest.mark.parametrize("what", JOBS)
def test_killed_with_threads(tmp_path, what):
    seed = random.randrange(1, 2**32)
    print(f"seed {seed}")
    survives_kills(tmp_path / "a", what, 2, seed=seed, last=45)


@pytest.mark.cluster
@pytest.mark.parametrize("what", JOBS)
def test_killed_on_a_cluster(tmp_path, what, cluster):
    seed = random.randrange(1, 2**32)
    print(f"seed {seed}")
    survives_kills(tmp_path / "a", what, 2, seed=seed, last=25, cluster=cluster)


@pytest.mark.slow
@pytest.mark.parametrize("what", JOBS)
def test_killed_with_threads_at_fifty_moments(tmp_path, what):
    survives_kills(tmp_path / "a", what, 50)


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("what", JOBS)
def test_killed_on_a_cluster_at_fifty_moments(tmp_path, what, cluster):
    survives_kills(tmp_path / "a", what, 50, cluster=cluster)
