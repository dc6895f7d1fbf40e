"""Tables of docs/howto/failures.md: each row's failure is made, and what the row says helps."""

import ast
import os
import re
import shutil
import sys
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
from fsspec.registry import _registry as FSSPEC_CLASSES  # noqa: N812

import zarr_dask as zd
from tests.support.fault_proxy import fault_proxy
from tests.support.leftovers import open_below
from tests.support.object_stores import s3_server
from tests.support.running import running
from tools import docs_pages
from zarr_dask.stores import file_lock, open_store
from zarr_dask.stores.process_identity import Owner

PAGE = docs_pages.DOCS / "howto" / "failures.md"
NOISE = np.random.default_rng(0).random((40, 40))
X = da.from_array(NOISE, chunks=10)


def tables():
    """Return the rows of each section that has a table, by their first cells."""
    found = {}
    for part in re.split(r"(?m)^##+ ", PAGE.read_text(encoding="utf-8"))[1:]:
        lines = re.findall(r"(?m)^\| (.*) \|$", part)
        rows = [line.split(" | ") for line in lines if not line.startswith("---")][1:]
        if rows:
            found[part.partition("\n")[0]] = {first: rest for first, *rest in rows}
    return found


TABLES = tables()


def quoted(cell):
    return re.findall(r"`([^`]+)`", cell)


def options_in(cell):
    """Return the storage options that a cell names."""
    return [ast.literal_eval(code) for code in quoted(cell) if code.startswith("{")]


# --- what verify finds ----------------------------------------------------------------------------


def shards():
    zd.to_zarr(X, "run.zarr", chunks=(5, 5), shards=(10, 10), manifest="run.manifest")
    return Path("run.zarr/c/0/0")


def torn():
    stored = shards()
    stored.write_bytes(stored.read_bytes()[:-3])


def checksum():
    stored = shards()
    data = bytearray(stored.read_bytes())
    data[20] ^= 1
    stored.write_bytes(data)


def undecodable():
    zd.to_zarr(X, "run.zarr", codecs="zstd")
    Path("run.zarr/c/0/0").write_bytes(b"no frame of zstd")


def absent():
    shards().unlink()


def journal():
    def dies(block, block_info=None):
        if block_info[0]["chunk-location"] == (3, 3) and not Path("again").exists():
            raise OSError("no space left on device")
        return block

    zd.create_group("run.zarr")
    x = X.map_blocks(dies, dtype="f8", name="job", meta=np.empty((0, 0)))
    with pytest.raises(OSError, match="no space"):
        zd.to_zarr(x, "run.zarr", "salt", resume=True)
    Path("again").touch()
    return x


DAMAGES = {
    "torn": torn,
    "checksum": checksum,
    "undecodable": undecodable,
    "absent": absent,
    "journal": journal,
}
IN_SECTIONS = {"orphan", "stray", "stale", "temporary", "document", "group"}
"""Those that tests/product/test_docs_failures.py makes, with the sections that they lead to."""


def test_every_kind_is_made():
    cells = TABLES["verify reports findings"]
    kinds = [kind for cell in cells for kind in quoted(cell)]
    assert sorted(kinds) == sorted([*DAMAGES, *IN_SECTIONS])


def section_of(kind):
    """Return the code of the section that the row of a kind leads to."""
    (rest,) = (rest for cell, rest in TABLES["verify reports findings"].items() if kind in cell)
    anchor = re.search(r"\(#([\w-]+)\)", rest[-1])[1]
    for block in docs_pages.blocks(PAGE.read_text(encoding="utf-8")):
        if block.kind == "python" and block.section.lower().replace(" ", "-") == anchor:
            yield block


@pytest.mark.parametrize("kind", DAMAGES)
def test_the_remedy_of_a_kind_helps(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x = DAMAGES[kind]()
    manifest = "run.manifest" if kind == "absent" else None
    found = zd.verify("run.zarr", deep="decode", manifest=manifest)
    assert kind in {finding.kind for finding in found.findings}
    ran = 0
    for block in section_of(kind):
        docs_pages.execute(block, {"zd": zd, "source": NOISE, "x": x}, kind)
        ran += 1
    assert ran
    assert zd.verify("run.zarr", deep="decode", manifest=manifest).ok
    name = "salt" if kind == "journal" else None
    np.testing.assert_array_equal(zd.open_array("run.zarr", name)[...], NOISE)


# --- buckets --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server():
    with s3_server() as running_server:
        zd.create_array(
            "s3://bucket/run.zarr", shape=4, dtype="i4", storage_options=running_server.options
        )
        for stored in running_server.admin.list_objects_v2(Bucket="bucket")["Contents"]:
            running_server.admin.put_object_acl(
                Bucket="bucket", Key=stored["Key"], ACL="public-read"
            )
        yield running_server


@pytest.fixture
def nothing_set(server, tmp_path, monkeypatch):
    """Set what a machine without credentials has, and one profile."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "AZURE_"))]:
        monkeypatch.delenv(name)
    for scheme in ("s3", "az"):  # fsspec keeps classes that other tests have imported
        monkeypatch.delitem(FSSPEC_CLASSES, scheme, raising=False)
    config = tmp_path / "aws-config"
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
    monkeypatch.setenv("AWS_REGION", "us-east-1")

    def profile(name, endpoint):
        keys = f"aws_access_key_id = {server.key}\naws_secret_access_key = {server.secret}\n"
        config.write_text(
            f"[profile {name}]\n{keys}endpoint_url = {endpoint}\nregion = us-east-1\n"
        )

    return profile


def refused(url, words, kind=zd.errors.StoreError, options=None):
    with pytest.raises(kind) as told:
        zd.open_array(url, storage_options=options)
    for word in words:
        assert word in str(told.value)


def opened(url, options=None):
    assert zd.open_array(url, storage_options=options).shape == (4,)


def no_credentials(row, words, server, profile, monkeypatch):
    refused("s3://bucket/run.zarr", words)
    work, public = options_in(row[-1])
    profile(work["profile"], server.endpoint)
    opened("s3://bucket/run.zarr", work)
    opened("s3://bucket/run.zarr", public)


def no_account(row, words, server, profile, monkeypatch):
    monkeypatch.setitem(sys.modules, "adlfs", None)
    refused("az://container/run.zarr", words)
    (named,) = options_in(row[-1])
    assert open_store("az://container/run.zarr", named).url == "az://container/run.zarr"


def not_installed(row, words, server, profile, monkeypatch):
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "obstore", None)
        without.setitem(sys.modules, "s3fs", None)
        (command,) = quoted(row[-1])
        words = [*words, command.split('"')[1]]
        refused("s3://bucket/run.zarr", words, zd.errors.MissingDependencyError, {"anon": True})
    opened("s3://bucket/run.zarr", {"anon": True})


def denied(row, words, server, profile, monkeypatch):
    monkeypatch.delenv("AWS_ENDPOINT_URL")  # which would be stronger than the profile's
    with fault_proxy(server.endpoint, rate=1.0, kinds={"denied": 1}) as proxy:
        profile("guest", proxy.endpoint)
        refused("s3://bucket/run.zarr", words, options={"profile": "guest"})
    assert "profile" in quoted(row[-1])
    profile("work", server.endpoint)
    opened("s3://bucket/run.zarr", {"profile": "work"})


def not_found(row, words, server, profile, monkeypatch):
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    (name,) = quoted(row[-1])
    here = {"anon": True, name: server.endpoint}
    refused("s3://buckte/run.zarr", words, options=here)
    opened("s3://bucket/run.zarr", here)


def unavailable(row, words, server, profile, monkeypatch):
    (name,) = quoted(row[-1])
    with fault_proxy(server.endpoint, rate=1.0, kinds={"throttled": 1}, times=3) as proxy:
        at = {"anon": True, "endpoint_url": proxy.endpoint}
        with pytest.raises(getattr(zd.errors, words[0])):
            zd.open_array("s3://bucket/run.zarr", storage_options=at | {name: {"attempts": 2}})
        opened("s3://bucket/run.zarr", at | {name: {"attempts": 20}})


BUCKETS = {
    '"no credentials were found"': no_credentials,
    '"the storage account is not named"': no_account,
    '"which is not installed"': not_installed,
    "403, `AccessDenied`": denied,
    "404, `NoSuchBucket`": not_found,
    "`StoreUnavailableError`": unavailable,
}
WITH_PROCESSES = {"`CredentialsMissingError`"}
"""Its failure and its remedy need other processes: tests/stores/test_secrets.py has both."""


def test_every_row_of_buckets_is_made():
    assert TABLES["A bucket cannot be opened"].keys() == BUCKETS.keys() | WITH_PROCESSES


@pytest.mark.parametrize("name", BUCKETS)
def test_a_bucket_can_be_opened(name, server, nothing_set, monkeypatch):
    row = TABLES["A bucket cannot be opened"][name]
    words = [word.strip('"` ') for word in name.split(",")]
    BUCKETS[name](row, words, server, nothing_set, monkeypatch)


# --- slow jobs ------------------------------------------------------------------------------------


def number(pattern, plan):
    return int(re.search(pattern, str(plan))[1].replace(",", ""))


def too_many_objects():
    zd.create_array("maps.zarr", shape=(1000, 1000), dtype="f4", chunks=(100, 100))
    small, sharded = (
        zd.plan_rechunk("maps.zarr", "s.zarr", chunks=(10, 10), **options)
        for options in ({}, {"shards": (1000, 100)})
    )
    assert number(r"in ([\d,]+) objects", small) == 10_000
    assert number(r"in ([\d,]+) objects", sharded) == 10


def too_little_memory():
    zd.create_array("maps.zarr", shape=(64, 512, 512), dtype="f4", chunks=(1, 512, 512))
    little, more = (
        zd.plan_rechunk("maps.zarr", "s.zarr", chunks=(64, 16, 512), max_mem=limit, threads=1)
        for limit in ("12MB", "200MB")
    )
    assert "stages" in str(little)
    assert "directly" in str(more)


def regrouped():
    x = da.ones((100, 100), chunks=30)
    assert "regrouped" in str(zd.plan_write(x, "y.zarr", chunks=(50, 50)))
    assert "written as they are" in str(zd.plan_write(x, "y.zarr", chunks=(15, 15)))


SLOW = {
    "millions of requests or tasks": too_many_objects,
    "several stages, or many times the array decoded": too_little_memory,
    '"regrouped", and many bytes copied': regrouped,
}


def test_every_row_of_slow_plans_is_made():
    assert TABLES["It is slow"].keys() == SLOW.keys()


@pytest.mark.parametrize("name", SLOW)
def test_a_plan_becomes_cheaper(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    SLOW[name]()


# --- network file systems -------------------------------------------------------------------------


def held_elsewhere(row, monkeypatch):
    monkeypatch.setattr(file_lock, "_KNOWN", {Path().stat().st_dev: False})

    def first(stopped):
        return zd.to_zarr(X, "run.zarr", progress=stopped)

    journal = Path("run.zarr.zarr-dask")
    with running(first):
        shutil.copytree(journal, "died")
    for left in ("run.zarr", journal):
        shutil.rmtree(left, ignore_errors=True)
    Path("died").rename(journal)
    (record,) = journal.glob("**/held-*")
    record.write_bytes(Owner("elsewhere", "k", "t", 1, "1", "0123", locked=False).to_json())
    with pytest.raises(zd.errors.JobRunningError, match=record.name):
        zd.to_zarr(X, "run.zarr", mode="w")
    record.unlink()
    zd.to_zarr(X, "run.zarr", mode="w")
    assert not open_below(Path("run.zarr.zarr-dask"))


def not_durable(row, monkeypatch):
    (code,) = quoted(row[-1])
    options = ast.literal_eval(code.removeprefix("storage_options="))
    synced = []
    monkeypatch.setattr(os, "fsync", lambda _: synced.append(1))
    zd.to_zarr(X, "plain.zarr")
    before = len(synced)
    zd.to_zarr(X, "run.zarr", storage_options=options)
    assert len(synced) - before >= before + 16  # the objects as well as the metadata


NETWORK = {
    "an error names a file `held-...` of another host": held_elsewhere,
    "chunks lost after a power cut": not_durable,
}
NEED_A_MOUNT = {
    "a worker does not see the array (`StoreOutOfReachError`)",
    "old listings or sizes for some seconds",
}


def test_every_row_of_mounts_is_made():
    assert TABLES["Network file systems"].keys() == NETWORK.keys() | NEED_A_MOUNT


@pytest.mark.parametrize("name", NETWORK)
def test_a_mount_can_be_used(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    NETWORK[name](TABLES["Network file systems"][name], monkeypatch)
    np.testing.assert_array_equal(zd.open_array("run.zarr")[...], NOISE)


def test_no_other_section_has_rows():
    made = {"verify reports findings", "A bucket cannot be opened", "It is slow"}
    assert TABLES.keys() == made | {"Network file systems"}
