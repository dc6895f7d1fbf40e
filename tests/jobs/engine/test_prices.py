"""What requests cost: in plans, in reports and on the command line."""

from __future__ import annotations

import json

import dask.array as da
import numpy as np
import pytest
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
    wrong = run("plan", tmp_path / "a", tmp_path / "c", *grid, "--price", "s4")
    assert wrong.exit_code == 2
    assert "is none of s3, gs, az" in wrong.output.replace("\n", " ")
