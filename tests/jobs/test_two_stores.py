"""Sources and targets with options of their own: `storage_options` and `target_options`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import zarr_dask as zd
from tests.support.object_stores import S3Server, s3_server
from zarr_dask.cli import main
from zarr_dask.errors import NodeNotFoundError

GRID = {"y": -1, "x": 2}
VALUES = np.arange(24, dtype="i4").reshape(4, 6)
Servers = tuple[S3Server, S3Server]


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    """Two services; the first has an array in a group, of two formats."""
    with s3_server() as one, s3_server() as other:
        for name in ("v3", "v2"):
            options = {"storage_options": one.options}
            group = zd.create_group(f"s3://bucket/{name}", format=name, **options)
            names = {"dimension_names": ("y", "x")} if name == "v3" else {}
            array = group.create_array("a", shape=(4, 6), dtype="i4", chunks=(1, 6), **names)
            array[...] = VALUES
        yield one, other


def rechunk(src: Any, dst: str, **options: Any) -> None:
    zd.rechunk(src, dst, chunks=GRID, **options)


def rechunk_by_plan(src: Any, dst: str, **options: Any) -> None:
    zd.plan_rechunk(src, dst, chunks=GRID, **options).run()


def rechunk_list(src: Any, dst: str, **options: Any) -> None:
    zd.plan_rechunk([src], dst, path=[""], chunks=GRID, **options).run()


def copy(src: Any, dst: str, **options: Any) -> None:
    zd.copy(src, dst, **options)


def copy_by_plan(src: Any, dst: str, **options: Any) -> None:
    zd.plan_copy(src, dst, **options).run()


def migrate(src: Any, dst: str, **options: Any) -> None:
    zd.migrate(src, dst, **options)


def migrate_by_plan(src: Any, dst: str, **options: Any) -> None:
    zd.plan_migration(src, dst, **options).run()


OF_ARRAYS = [rechunk, rechunk_by_plan, rechunk_list, copy, copy_by_plan]
CALLS = [
    *((call, "v3", "a") for call in OF_ARRAYS),
    *((call, "v3", "") for call in OF_ARRAYS if call is not rechunk_list),
    *((call, "v2", "") for call in (migrate, migrate_by_plan)),
]
IDS = [f"{call.__name__}-{format}-{'array' if below else 'group'}" for call, format, below in CALLS]


@pytest.mark.parametrize("is_open", [False, True], ids=["url", "open"])
@pytest.mark.parametrize(("call", "format", "below"), CALLS, ids=IDS)
def test_each_store_has_its_options(
    call: Callable[..., None], format: str, below: str, is_open: bool, servers: Servers
) -> None:
    """An open source has its own, so that the only ones that are given are the target's."""
    one, other = servers
    src, dst = f"s3://bucket/{format}/{below}", f"s3://bucket/{call.__name__}-{below}-{is_open}"
    node = zd.open(src, storage_options=one.options)
    if is_open:
        call(node, dst, storage_options=other.options)
    else:
        call(src, dst, storage_options=one.options, target_options=other.options)
    made = zd.open(dst, storage_options=other.options)
    array = made if below else made["a"]
    np.testing.assert_array_equal(array[...], VALUES)
    assert zd.compare(made, node, attributes=False)
    assert (
        one.admin.list_objects_v2(Bucket="bucket", Prefix=dst.rpartition("/")[2])["KeyCount"] == 0
    )


def test_comparisons_take_both(servers: Servers) -> None:
    one, other = servers
    zd.copy(
        "s3://bucket/v3",
        "s3://bucket/compared",
        storage_options=one.options,
        target_options=other.options,
    )
    both = {"storage_options": one.options, "target_options": other.options}
    assert zd.compare("s3://bucket/v3", "s3://bucket/compared", **both)
    with pytest.raises(NodeNotFoundError):  # those of the first hold for both
        zd.compare("s3://bucket/v3", "s3://bucket/compared", storage_options=one.options)


def test_reading_options_hold_for_a_source_by_its_url(servers: Servers) -> None:
    one, _ = servers
    read = zd.ReadOptions(missing="error")
    given = {"storage_options": one.options, "read": read}
    plan = zd.plan_rechunk("s3://bucket/v3/a", {}, chunks=GRID, **given)
    assert plan.source.options.missing == "error"


@pytest.mark.parametrize(
    ("command", "below"),
    [*product(["copy", "rechunk", "plan"], ["/a", ""]), ("migrate", "")],
)
def test_commands_take_both(command: str, below: str, servers: Servers, tmp_path: Any) -> None:
    one, other = servers
    src = f"s3://bucket/{'v2' if command == 'migrate' else 'v3'}{below}"
    dst = f"s3://bucket/by-{command}-{bool(below)}{below}"
    keys = [("key", one.key), ("secret", one.secret), ("endpoint_url", one.endpoint)]
    shared = [word for name, given in keys for word in ("--storage-option", f"{name}={given}")]
    both = [*shared, "--target-option", f"endpoint_url={other.endpoint}"]

    def run(*words: Any) -> str:
        found = CliRunner().invoke(main, [*map(str, words)], catch_exceptions=False)
        assert found.exit_code == 0, found.output
        return found.output

    chunks = ["--chunks", "y=4,x=2"] if command in {"rechunk", "plan"} else []
    if command == "plan":
        plan = tmp_path / "plan.json"
        run("plan", src, dst, *chunks, *both, "-o", plan)
        assert one.secret not in plan.read_text()
        run(
            "run",
            plan,
            "--storage-option",
            f"key={one.key}",
            "--storage-option",
            f"secret={one.secret}",
        )
    else:
        run(command, src, dst, *chunks, *both)
    made = zd.open(dst, storage_options=other.options)
    array = made if below else made["a"]
    np.testing.assert_array_equal(array[...], VALUES)
    assert json.loads(run("compare", src, dst, *both, "--json"))["exit_code"] == 0
