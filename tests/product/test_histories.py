"""Random histories of several processes on one hierarchy: some order of them explains answers."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

import pytest

import zarr_dask as zd
from tests.support.histories.model import Event, explained
from tests.support.histories.run import WEIGHTS, operations, workers
from tests.support.object_stores import azure_server, s3_server

ALONE: list[list] = [[], []]
FOUND = (20048, 20106, 20114, 20182, 20202, 20228)
"""Seeds of histories that had no order, some of them seldom, before what they found was mended."""

FOUND_ON_S3 = (40005, 40009, 40033, 40040, 40052)
"""The same on an S3 server: two removals or renames of one node had succeeded."""


FOUND_ON_AZURE = (7002, 7016)
"""The same on Azure through fsspec: appends and creations of two processes had both succeeded."""


def event(name: str, *args, path: str = "a", time: tuple[float, float], error="", answer=None):
    return Event(name, path, args, *time, error, answer)


def test_the_checker_finds_what_no_order_explains():
    made = event("create", 1, time=(0, 1))
    append = event("append", 2, 7, time=(2, 5))
    late = event("read", time=(6, 7), answer=[{"id": 1}, [0, 0, 0, 0]])
    early = event("read", time=(3, 4), answer=[{"id": 1}, [0, 0, 0, 0]])
    whole = event("read", time=(6, 7), answer=[{"id": 1}, [0, 0, 0, 0, 7, 7]])
    assert explained([made, append, early, whole])
    assert not explained([made, append, late])
    assert not explained([made, event("create", 2, time=(0, 1))])
    refused = event("create", 2, time=(0, 2), error="NodeExistsError")
    assert explained([made, refused])
    assert not explained([made, event("read", time=(2, 3), error="NodeNotFoundError")])
    replaced = event("delete", time=(2, 4), error="JobReplacedError")
    for answer, error in (([{"id": 1}, [0] * 4], ""), (None, "NodeNotFoundError")):
        assert explained([made, replaced, event("read", time=(5, 6), answer=answer, error=error)])
    half = event("read", time=(0, 9), answer=[{"id": 1}, [3, 3, 4, 4]])
    writes = [event("write", n, 3 + n, time=(2, 3)) for n in (0, 1)]
    assert explained([made, *writes, half])
    refused = event("rename", "b", time=(3, 4), error="NodeExistsError")
    for began, is_right in ((2, True), (5, False)):  # is there something of a node in the making?
        making = event("swap", 9, path="b", time=(began, 6))
        assert explained([made, refused, making]) == is_right
    there = event("create", 2, path="b", time=(0, 1))
    gone = event("delete", path="b", time=(2, 3))
    left = event("rename", "c", path="b", time=(2, 3), error="JobReplacedError")
    late = event("write", 0, 5, path="b", time=(2, 4), error="NodeNotFoundError")
    for others, is_right in (((gone,), False), ((left,), True), ((gone, late), True)):
        after = event("rename", "b", time=(3.5, 4), error="NodeExistsError")
        seen = event("read", path="b", time=(3, 3.4), error="NodeNotFoundError")
        assert explained([made, there, *others, seen, after], renames_at_once=False) == is_right


def check_histories(
    place: str, seeds: Iterable[int], count: int, options: dict[str, Any] | None = None
) -> None:
    """Run one history for each seed, and look for an order of it."""
    with workers() as running:
        for seed in seeds:
            root = f"{place}/h{seed}.zarr"
            zd.create_group(root, storage_options=options)
            first = running.run(root, options or {}, [[("create", "a", (999,))], *ALONE])
            todo = operations(Random(seed), count, list(WEIGHTS))
            events = running.run(root, options or {}, todo)
            last = running.run(root, options or {}, [[("read", path, ()) for path in "ab"], *ALONE])
            found = sorted([*first, *events, *last], key=lambda one: one.began)
            # in an object store a node is copied, then removed
            assert explained(found, renames_at_once=options is None), (seed, *found)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_each_history_has_an_order(tmp_path):
    check_histories(str(tmp_path), [*range(50), *FOUND], 5)


@pytest.mark.slow
@pytest.mark.timeout(550)
def test_each_history_on_an_s3_server_has_an_order():
    with s3_server() as server:
        check_histories("s3://bucket", FOUND_ON_S3, 5, server.options)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_each_history_on_azure_through_fsspec_has_an_order(tmp_path):
    with azure_server(tmp_path) as server:
        options = {**server.options, "backend": "fsspec"}
        check_histories(server.root, FOUND_ON_AZURE, 5, options)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_is_written_while_objects_get_other_keys_is_not_lost(tmp_path):
    """Two processes write through metadata of v2 while a third one migrates; few see both."""
    with workers() as running:
        for seed in range(60):
            random, root = Random(seed), str(tmp_path / f"h{seed}.zarr")
            zd.create_group(root, format="v2")
            made = [("create", path, (number, "v2")) for number, path in enumerate("ab", 1)]
            first = running.run(root, {}, [made, *ALONE])
            writers = operations(random, 8, ["write"])[:2]
            events = running.run(root, {}, [*writers, [("migrate", "", ())]])
            last = running.run(root, {}, [[("read", path, ()) for path in "ab"], *ALONE])
            events = [one._replace(error=one.error and "migrated") for one in events]
            found = sorted([*first, *events, *last], key=lambda one: one.began)
            assert explained(found), (seed, *found)
    assert any(tmp_path.glob("*/a/zarr.json"))
