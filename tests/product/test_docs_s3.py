"""Pages about buckets run on S3 as they stand: no place and no option in them is replaced."""

import pytest

import zarr_dask as zd
from tests.support.docs_samples import SAMPLES, era5
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
