"""Pages about buckets run on S3 as they stand: no place and no option in them is replaced."""

import re
import subprocess
import sys
import time

import numpy as np
import pytest
import xarray as xr

import zarr_dask as zd
from tests.support.docs_samples import SAMPLES, era5
from tests.support.fault_proxy import fault_proxy
from tests.support.object_stores import s3_server
from tools import docs_pages


@pytest.fixture(scope="module")
def server():
    with s3_server() as running:
        yield running


@pytest.fixture
def environment(server, tmp_path, monkeypatch):
    """Set what a user of AWS has: a region and a profile."""
    config = tmp_path / "aws-config"
    config.write_text(
        "[profile work]\n"
        f"aws_access_key_id = {server.key}\naws_secret_access_key = {server.secret}\n"
        f"endpoint_url = {server.endpoint}\nregion = us-east-1\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret)


@pytest.mark.parametrize("name", ["howto/object-stores.md", "howto/copy.md"])
def test_runs_on_s3(name, server, environment, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(docs_pages, "ELSEWHERE", {})
    if name == "howto/copy.md":
        for prepare in SAMPLES[name]:
            prepare()
    else:
        era5("s3://bucket/era5.zarr")()
        for stored in server.admin.list_objects_v2(Bucket="bucket")["Contents"]:
            server.admin.put_object_acl(Bucket="bucket", Key=stored["Key"], ACL="public-read")
    docs_pages.run(name, tmp_path)
    assert zd.open("s3://bucket/era5.zarr" if "object" in name else "s3://bucket/run-7.zarr")


def die_after(code, objects, faults, folder):
    """Run code in a process, which is killed when it has begun to put some objects of values."""
    faults.counted()
    job = subprocess.Popen([sys.executable, "-c", code], cwd=folder)
    put, deadline = 0, time.monotonic() + 60
    while put < objects:
        assert job.poll() is None
        assert time.monotonic() < deadline
        put += sum(one.method == "PUT" and "/t2m/c/" in one.path for one in faults.counted())
        time.sleep(0.001)
    job.kill()
    job.wait()


@pytest.mark.timeout(300)
def test_the_tutorial_of_datasets_in_a_bucket_killed_twice(
    server, environment, tmp_path, monkeypatch
):
    """Its steps as they stand, and nothing else; both calls that write die, and are repeated."""
    monkeypatch.chdir(tmp_path)
    text = docs_pages.pages()["tutorials/dataset.md"].read_text(encoding="utf-8")
    steps = [one for one in docs_pages.blocks(text) if one.kind == "python"]
    code = [re.sub(r'"(\w+\.zarr)"', r'"s3://bucket/tutorial/\1"', one.code) for one in steps]
    make = code[0]
    assert "resume=True" in make
    append = f"{make}\n{code[-1]}"  # names that it needs; what was made is not made again
    place = "s3://bucket/tutorial/era5.zarr"
    with fault_proxy(server.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        proxy.faults.latency = 0.02
        die_after(make, 3, proxy.faults, tmp_path)
        with pytest.raises(zd.errors.NodeNotFoundError):
            zd.open_dataset(place)
        subprocess.run([sys.executable, "-c", make], cwd=tmp_path, check=True)
        before = zd.open_dataset(place).load()
        assert before.sizes["time"] == 731
        die_after(append, 2, proxy.faults, tmp_path)
        xr.testing.assert_identical(zd.open_dataset(place).load(), before)
        # All of it, from its top: what is done says so. In a process of its own, because
        # dask_array, which other tests import, changes the tokens of dask.
        subprocess.run([sys.executable, "-c", "\n".join(code)], cwd=tmp_path, check=True)
        assert zd.verify(place).ok
    found = xr.open_zarr(place, storage_options=server.options).load()
    assert found.sizes["time"] == 731 + 365
    assert found["time"].to_index().is_unique
    xr.testing.assert_identical(found.isel(time=slice(731)), before)
    np.testing.assert_array_equal(found["t2m"][731:], before["t2m"][365:730])
