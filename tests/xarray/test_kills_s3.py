"""Writers of datasets in a bucket that are killed; a reader polls meanwhile."""

from __future__ import annotations

import dask.array as da
import pytest
import xarray as xr

import zarr_dask as zd
from tests.support.ceph import ceph_server
from tests.support.kill_roles import Cluster, Folder
from tests.support.object_stores import s3_server
from tests.support.xarray_kills import read, survives_kills
from tests.support.xarray_roles import killed, steps
from zarr_dask.errors import DatasetMismatchError, NodeNotFoundError, ResumeError

pytestmark = pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")


@pytest.fixture(scope="module")
def options():
    with s3_server() as server:
        yield server.options


def test_killed_on_the_way_and_while_it_is_shown(options):
    """A dataset that is made, and appended to twice, each killed at a known moment."""
    place, given = "s3://bucket/known", {"storage_options": options}
    killed(place, 0, 6, dies_at=1, options={**given, "resume": "made"})
    assert read(place, options) is None
    with pytest.raises(NodeNotFoundError):
        zd.open_dataset(place, **given)
    zd.write_dataset(steps(0, 6), place, resume="made", **given)
    append = {**given, "append": "time", "resume": "more"}
    killed(place, 6, 10, dies_at=1, options=append)
    for consolidated in (True, False):
        found = zd.open_dataset(place, consolidated=consolidated, **given)
        xr.testing.assert_identical(found.load(), steps(0, 6).load())
    zd.write_dataset(steps(6, 10), place, **append)
    append["resume"] = True  # the graph is the same
    killed(place, 10, 12, shows=1, options=append)
    assert read(place, options).identical(steps(0, 10).load())
    with pytest.raises(ResumeError):
        zd.plan_dataset(steps(12, 13), place, append="time", **given)
    assert zd.write_dataset(steps(10, 12), place, **append).is_repeated
    zd.write_dataset(steps(12, 13), place, append="time", **given)
    assert read(place, options).identical(steps(0, 13).load())
    append["resume"] = "last"
    killed(place, 13, 16, dies_at=1, options=append)
    zd.write_dataset(steps(13, 15), place, append="time", **given)  # that process has gone
    with pytest.raises(DatasetMismatchError, match="are in s3://bucket/known already"):
        zd.write_dataset(steps(13, 16), place, **append)
    assert read(place, options).identical(steps(0, 15).load())
    assert zd.verify(place, **given).ok


ANOTHER = da.ones((6, 2, 3), dtype="f4")
NAMES = {"dimension_names": ["time", "lat", "lon"]}
GONE = {
    "overwritten": lambda *at, **given: zd.to_zarr(ANOTHER, *at, mode="w", **NAMES, **given),
    "swapped": lambda *at, **given: zd.to_zarr(ANOTHER, *at, mode="swap", **NAMES, **given),
    "made anew": lambda *at, **given: zd.create_array(
        *at, shape=(6, 2, 3), dtype="f4", overwrite=True, **NAMES, **given
    ),
    "deleted": zd.delete,
    "renamed": lambda url, name, **given: zd.open_group(url, mode="r+", **given).rename(name, "u"),
}


@pytest.mark.parametrize("how", GONE)
@pytest.mark.filterwarnings("ignore:.* the consolidated metadata of")
def test_what_replaces_an_array_grows_by_no_append_that_died_in_its_group(options, how):
    place, given = f"s3://bucket/{how}", {"storage_options": options}
    zd.write_dataset(steps(0, 6), place, **given)
    killed(place, 6, 9, shows=0, options={**given, "append": "time"})
    GONE[how](place, "t", **given)
    with pytest.raises(DatasetMismatchError):
        zd.write_dataset(steps(6, 9), place, append="time", **given)
    name = {"deleted": "n", "renamed": "u"}.get(how, "t")
    assert zd.open_array(place, name, **given).shape[0] == (9 if name == "n" else 6)


# zarr-python warns of folders whose documents go while it looks at them, as with mode="w"
REPLACED = pytest.param("replace", marks=pytest.mark.filterwarnings("ignore:Object at .* is not"))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("what", ["create", "append", "region", REPLACED, "swap all"])
def test_killed_at_fifty_random_moments(options, what):
    survives_kills(f"s3://bucket/{what}", what, 50, options=options, last=45)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.cluster
def test_swaps_on_a_cluster_are_killed_at_fifty_random_moments(options, tmp_path):
    cluster = Cluster(Folder(str(tmp_path)), "cluster")
    try:
        given = {"options": options, "last": 45, "cluster": cluster}
        survives_kills("s3://bucket/cluster", "swap all", 50, **given)
    finally:
        cluster.kill()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_swaps_on_another_server_are_killed_at_fifty_random_moments(tmp_path):
    with ceph_server(tmp_path) as server:
        options = {**server.options}
        survives_kills(f"{server.root}/ceph", "swap all", 50, options=options, last=45)
