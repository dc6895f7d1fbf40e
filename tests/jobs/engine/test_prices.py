"""What requests cost: in plans, in reports and on the command line."""

from __future__ import annotations

import json

import dask.array as da
import numpy as np
import pytest
import xarray as xr
from click.testing import CliRunner

import zarr_dask as zd
from tests.support.http_server import Files, serving
from zarr_dask.cli import main
from zarr_dask.jobs.engine.prices import PRICES, price_of, price_table
from zarr_dask.stores import MemoryStore


@pytest.mark.parametrize(
    "wrong", ["s4", {"reads": 1.0}, {"read": -1.0}, {"read": "1"}, {"read": float("nan")}, [1]]
)
def test_tables_that_are_none(wrong):
    with pytest.raises(ValueError, match="prices="):
        price_table(wrong)


def test_requests_by_kind_times_prices():
    requests = {"read": 1000, "write": 2000, "list": 10, "delete": 5}
    assert price_of(requests, {"read": 1, "write": 0.5}) == 2
    assert price_of(requests, "s3") == pytest.approx(0.0004 + 0.01 + 0.00005)
    assert all(price_of({}, name) == 0 for name in PRICES)


def test_plans_and_reports():
    store = MemoryStore()
    plan = zd.plan_write(da.ones((8, 6), chunks=(2, 6)), store)
    assert plan.price({"write": 1000}) == 4
    assert plan.run().price() == 0  # memory has no requests
    again = zd.plan_rechunk(store, MemoryStore(), chunks=(8, 3))
    assert again.requests == {"read": again.costs.reads, "write": 2}
    assert again.price({"write": 1000}) == 2
    copied = zd.plan_copy(store, MemoryStore())
    assert copied.price({"read": 1000, "write": 1000}) == copied.costs.requests


def test_plans_and_reports_of_other_jobs():
    prices = {"read": 1000, "write": 1000}
    several = [da.ones(4, chunks=2), da.ones(6, chunks=2)]
    joint = zd.plan_write(several, MemoryStore(), component=["a", "b"])
    assert joint.price(prices) == sum(plan.price(prices) for plan in joint.plans) == 5
    ds = xr.Dataset({"t": ("x", np.arange(6.0))}, coords={"x": np.arange(6)})
    plan = zd.plan_dataset(ds, MemoryStore())
    assert plan.price(prices) == plan.objects
    report = plan.run()
    assert (report.price(prices), report.retried, report.waited) == (0, 0, 0)
    assert report.rate > 0
    old = MemoryStore()
    zd.create_array(old, "a", shape=(6,), dtype="i4", chunks=2, format="v2")[...] = 1
    migration = zd.plan_migration(old)
    assert migration.requests == {"read": 2, "inspect": 0, "write": 2}  # group and array
    assert zd.plan_migration(old, MemoryStore()).requests["write"] == 5
    assert migration.run().price(prices) == 0
    dask_plan = zd.plan_rechunk(da.ones((8, 8), chunks=(2, 8)), MemoryStore(), chunks=(8, 2))
    assert dask_plan.requests["write"] >= 4
    assert dask_plan.price(prices) == sum(dask_plan.requests.values())


def test_a_pyramid_is_priced_as_it_is_read_and_written():
    store = {}
    zd.create_array(store, "in", shape=(64, 64), dtype="u1", chunks=(16, 16))[...] = 1
    source = zd.open_array(store, "in")
    plan = zd.ome.plan_write(source, {}, chunks=(16, 16), levels=2)
    assert plan.requests["write"] == plan.objects == 16 + 4
    assert plan.requests["read"] == 16
    assert plan.price({"read": 1000, "write": 1000}) == 36


def test_files_that_are_appended_are_priced(tmp_path):
    for number in range(2):
        part = xr.Dataset({"t": ("x", np.arange(4.0))}, coords={"x": np.arange(4) + 4 * number})
        part.to_netcdf(tmp_path / f"{number}.nc", engine="scipy")
    files = [tmp_path / "0.nc", tmp_path / "1.nc"]
    target = MemoryStore()
    plan = zd.plan_ingest(files[:1], target, concat="x")
    assert plan.requests == plan.copy.requests
    plan.run()
    plan = zd.plan_ingest(files, target, concat="x")
    assert plan.requests == plan.append.requests
    report = plan.run()
    assert report.to_json()["requests"] == report.requests == {}
    assert report.seconds > 0


def test_verify_and_compare_count_the_requests_of_their_tasks():
    values = {}
    array = zd.create_array(values, shape=(6,), dtype="i4", chunks=2, codecs=["crc32c"])
    array[...] = np.arange(6)
    with serving(Files, {f"a/{key}": bytes(text) for key, text in values.items()}) as (url, seen):
        compared = zd.compare(f"{url}/a", array)
        asked = len(seen)
        verified = zd.verify(f"{url}/a", deep="decode")
        assert compared.equal
        assert sum(compared.requests.values()) == asked
        assert sum(verified.requests.values()) == len(seen) - asked
    for report in (compared, verified):
        assert report.requests["read"] >= 3
        assert report.seconds > 0
        assert report.price({"read": 1000}) == report.requests["read"]
        assert report.to_json()["requests"] == report.requests
        assert "requests: " in str(report)
    assert zd.verify(values).requests == {}


def test_on_the_command_line(tmp_path):
    zd.create_array(tmp_path / "a", shape=(6, 6), dtype="i4", chunks=(1, 6))[...] = 1
    table = tmp_path / "prices.json"
    table.write_text('{"read": 1000, "write": 10}')

    def run(*words):
        return CliRunner().invoke(main, [str(word) for word in words])

    grid = ("--chunks", "6,1")
    said = run("plan", tmp_path / "a", tmp_path / "b", *grid, "--price", table).output
    assert "price   12.06 USD for requests (12 read, 6 write)" in said
    said = run("rechunk", tmp_path / "a", tmp_path / "b", *grid, "--price", "s3").output
    assert said.count("price") == 2
    found = run("--json", "verify", tmp_path / "b", "--price", "gs")
    assert json.loads(found.output)["result"]["price"] == 0
    found = run("--json", "compare", tmp_path / "a", tmp_path / "b")
    assert "price" not in json.loads(found.output)["result"]
    zd.create_array(tmp_path / "old", shape=(6,), dtype="i4", chunks=2, format="v2")[...] = 1
    said = run("migrate", tmp_path / "old", "--dry-run", "--price", table).output
    assert "price   1.01 USD for requests (0 inspect, 1 read, 1 write)" in said
    wrong = run("plan", tmp_path / "a", tmp_path / "c", *grid, "--price", "s4")
    assert wrong.exit_code == 2
    assert "is none of s3, gs, az" in wrong.output.replace("\n", " ")
