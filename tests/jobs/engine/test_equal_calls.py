"""Two processes that make the same resumable call: one works, the other waits for its end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest

import zarr_dask as zd
from tests.support.leftovers import left_in
from tests.support.object_stores import s3_server
from tests.support.scripts import Script

xr = pytest.importorskip("xarray")
pytest.importorskip("scipy")

CALLER = """
import logging, os, sys
import dask, dask.array as da, numpy as np, xarray as xr, zarr_dask as zd
from zarr_dask.jobs.engine import lifecycle
from zarr_dask.journal import leases
from zarr_dask.stores import process_identity
dask.config.set(scheduler="sync")
root, kind, role, endpoint = sys.argv[1:]
if endpoint:
    names = {"ENDPOINT_URL": endpoint, "ACCESS_KEY_ID": "k", "SECRET_ACCESS_KEY": "s"}
    os.environ |= {f"AWS_{name}": value for name, value in {**names, "REGION": "us-east-1"}.items()}
role, _, host = role.partition("@")
if host:  # as if each of them ran on its own
    process_identity._surroundings = lambda: (host, f"kernel of {host}", "")
leases.RENEWED_EVERY, leases._EXPIRES = 0.2, 2.0
told = []
def stop(step):
    if role == "first" and not told:
        told.append(step)
        print("begun", flush=True)
        if "fail" in sys.stdin.readline():
            raise RuntimeError("as it was told")
if role == "second":
    lifecycle._SILENT = 0.0  # it says at once that it waits
    logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.WARNING)
def values(number):
    return da.from_array(np.arange(48, dtype="i8").reshape(12, 4) + number, chunks=(2, 4))
def dataset(start):
    two = {name: (("t", "x"), values(number)) for number, name in enumerate("ab")}
    return xr.Dataset(two, coords={"t": np.arange(start, start + 12)})
two, again = [values(0), values(1)], {"resume": True, "progress": stop}
calls = {
    "arrays": lambda: zd.to_zarr(two, f"{root}/new.zarr", ["a", "b"], **again),
    "named": lambda: zd.to_zarr(two, f"{root}/new.zarr", ["a", "b"], resume="x", progress=stop),
    "regions": lambda: zd.to_zarr(
        two, f"{root}/old.zarr", ["a", "b"], region=[np.s_[:12], np.s_[:12]], **again
    ),
    "appends": lambda: zd.to_zarr(two, f"{root}/old.zarr", ["a", "b"], append=0, **again),
    "append": lambda: zd.to_zarr(values(0), f"{root}/old.zarr", "a", append=0, **again),
    "dataset": lambda: zd.write_dataset(dataset(0), f"{root}/new.zarr", **again),
    "replaced": lambda: zd.write_dataset(dataset(0), f"{root}/new.zarr", mode="w", **again),
    "plan": lambda: zd.plan_dataset(dataset(0), f"{root}/new.zarr", resume=True).run(progress=stop),
    "tree": lambda: zd.write_dataset(
        xr.DataTree.from_dict({"/": dataset(0), "/k": dataset(0)}), f"{root}/new.zarr", **again
    ),
    "labels": lambda: zd.write_dataset(dataset(12), f"{root}/old.zarr", append="t", **again),
    "unlabelled": lambda: zd.write_dataset(
        dataset(0).drop_vars("t"), f"{root}/old.zarr", append="t", **again
    ),
    "region": lambda: zd.write_dataset(dataset(0), f"{root}/old.zarr", region="auto", **again),
    "copy": lambda: zd.copy(f"{root}/old.zarr", f"{root}/new.zarr", **again),
    "image": lambda: zd.ome.write(values(0), f"{root}/new.zarr", axes="yx", levels=1, **again),
    "appendframe": lambda: zd.ome.append(f"{root}/old.zarr", values(0), axis="y", **again),
    "level": lambda: zd.ome.add_level(f"{root}/old.zarr", factors=2, **again),
    "planfiles": lambda: zd.plan_ingest(
        [f"{root}/0.nc", f"{root}/1.nc"], f"{root}/ingested.zarr", concat="t", resume=True
    ).run(**again),
    "files": lambda: zd.ingest(
        [f"{root}/0.nc", f"{root}/1.nc"], f"{root}/ingested.zarr", concat="t", **again
    ),
}
if role == "planned":
    plans = {
        "append": lambda: zd.plan_write(values(0), f"{root}/old.zarr", "a", append=0, resume=True),
        "unlabelled": lambda: zd.plan_dataset(
            dataset(0).drop_vars("t"), f"{root}/old.zarr", append="t", resume=True
        ),
    }
    plan = plans[kind]()
    print("planned", flush=True)
    sys.stdin.readline()
    calls[kind] = plan.run
try:
    report = calls[kind]()
    print("done", report if kind in {"files", "planfiles", "labels"} else "", flush=True)
except zd.errors.ZarrDaskError as error:
    print(type(error).__name__, error, flush=True)
except RuntimeError:
    print("failed", flush=True)
    sys.stdin.readline()
"""
VALUES = np.arange(48).reshape(12, 4)
ONES = np.ones((12, 4), "i8")
TWO = {"a": VALUES, "b": VALUES + 1}
LONGER = {name: np.concatenate([ONES, one]) for name, one in TWO.items()}
COARSER = {"a": np.rint(LONGER["a"].reshape(12, 2, 2, 2).mean((1, 3))), "b": np.ones((6, 2))}
FILES = {"a": np.repeat([[0] * 4, [1] * 4], 12, axis=0)}
EXPECTED: Mapping[str, tuple[str, Mapping[str, np.ndarray]]] = {
    "arrays": ("new.zarr", TWO),
    "named": ("new.zarr", TWO),
    "regions": ("old.zarr", TWO),
    "appends": ("old.zarr", LONGER),
    "append": ("old.zarr", {"a": LONGER["a"], "b": ONES}),
    "dataset": ("new.zarr", TWO),
    "replaced": ("new.zarr", TWO),
    "plan": ("new.zarr", TWO),
    "tree": ("new.zarr", {**TWO, "k/a": VALUES, "k/b": VALUES + 1}),
    "labels": ("old.zarr", LONGER),
    "unlabelled": ("old.zarr", LONGER),
    "region": ("old.zarr", TWO),
    "copy": ("new.zarr", {"a": ONES, "b": ONES}),
    "image": ("new.zarr", {"0": VALUES}),
    "appendframe": ("old.zarr", {"0": LONGER["a"], "1": COARSER["a"]}),
    "level": ("old.zarr", {"1": COARSER["b"]}),
    "planfiles": ("ingested.zarr", FILES),
    "files": ("ingested.zarr", FILES),
}
SHORT = ("arrays", "append", "appends", "labels", "unlabelled")
SHORT_IN_BUCKETS = ("arrays", "append")
CASES = [one if one in SHORT else pytest.param(one, marks=pytest.mark.ci) for one in EXPECTED]

IN_BUCKETS = [
    one if one in SHORT_IN_BUCKETS else pytest.param(one, marks=pytest.mark.ci)
    for one in EXPECTED
    if one not in {"files", "planfiles"}
]


@pytest.fixture
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder with what the calls need."""
    make(request.getfixturevalue("kind"), str(tmp_path), tmp_path)
    return tmp_path


@pytest.fixture
def bucket(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, str]]:
    """A place in a bucket with what the calls need, and the endpoint."""
    with s3_server() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        make(request.getfixturevalue("kind"), f"{server.root}/here", tmp_path)
        yield f"{server.root}/here", server.endpoint


def make(kind: str, root: str, files: Path) -> None:
    if kind in {"regions", "append", "appends", "labels", "unlabelled", "region", "copy"}:
        ones = dict.fromkeys("ab", (("t", "x"), ONES))
        old = xr.Dataset(ones, coords={} if kind == "unlabelled" else {"t": np.arange(12)})
        zd.write_dataset(old, f"{root}/old.zarr", chunks={"t": 2})
    if kind in {"appendframe", "level"}:
        levels = {"levels": 1 if kind == "level" else 2, "factors": 2, "chunks": (2, 4)}
        zd.ome.write(ONES, f"{root}/old.zarr", axes="yx", **levels)
    if kind in {"files", "planfiles"}:
        for number in range(2):
            one = {"a": (("t", "x"), np.full((12, 4), number, "i4"))}
            one = xr.Dataset(one, coords={"t": np.arange(12) + 12 * number})
            one.to_netcdf(files / f"{number}.nc", engine="scipy")
        zd.ingest([files / "0.nc"], f"{root}/ingested.zarr", concat="t", chunks={"t": 2})


def check(root: str, kind: str) -> None:
    place, expected = EXPECTED[kind]
    for name, values in expected.items():
        np.testing.assert_array_equal(zd.open_array(f"{root}/{place}", name)[...], values)


def check_clean(root: Path) -> None:
    left = {name for name in left_in(root) if not name.endswith((".nc", ".ingest.json"))}
    assert left <= {"old.zarr", "new.zarr", "ingested.zarr"}


def first_ends(*call: object, hosts: tuple[str, str] = ("", "")) -> None:
    """Make a call while another process makes it, which then ends."""
    with Script(CALLER, *call[:2], f"first{hosts[0]}", *call[2:]) as first:
        assert first.stdout.readline() == "begun\n"
        with Script(CALLER, *call[:2], f"second{hosts[1]}", *call[2:]) as second:
            said = second.stdout.readline()
            assert "waiting for the process that works on the same job" in said
            first.stdin.write("\n")
            first.stdin.flush()
            assert first.stdout.readline().startswith("done")
            said = second.stdout.readline()
    assert said.startswith("done"), said


def first_is_killed(*call: object, hosts: tuple[str, str] = ("", "")) -> None:
    """Make a call while another process makes it, which is killed."""
    with Script(CALLER, *call[:2], f"first{hosts[0]}", *call[2:]) as first:
        assert first.stdout.readline() == "begun\n"
        with Script(CALLER, *call[:2], f"second{hosts[1]}", *call[2:]) as second:
            assert "waiting" in second.stdout.readline()
            first.kill()
            assert second.stdout.readline().startswith("done")


def first_fails(*call: object) -> None:
    """Make a call while another process makes it, which fails, and is there for longer."""
    with Script(CALLER, *call[:2], "first", *call[2:]) as first:
        assert first.stdout.readline() == "begun\n"
        with Script(CALLER, *call[:2], "second", *call[2:]) as second:
            assert "waiting" in second.stdout.readline()
            first.stdin.write("fail\n")
            first.stdin.flush()
            assert first.stdout.readline() == "failed\n"
            assert second.stdout.readline().startswith("done")


@pytest.mark.parametrize("kind", CASES)
def test_a_second_caller_waits_for_the_first(kind: str, root: Path) -> None:
    first_ends(root, kind, "")
    check(str(root), kind)
    check_clean(root)


@pytest.mark.parametrize("kind", CASES)
def test_a_second_caller_does_what_a_killed_one_has_left(kind: str, root: Path) -> None:
    first_is_killed(root, kind, "")
    check(str(root), kind)
    check_clean(root)


@pytest.mark.parametrize("kind", IN_BUCKETS)
def test_a_second_caller_waits_on_an_object_store(kind: str, bucket: tuple[str, str]) -> None:
    root, endpoint = bucket
    first_ends(root, kind, endpoint)
    check(root, kind)


@pytest.mark.parametrize("kind", IN_BUCKETS)
def test_a_second_caller_goes_on_on_an_object_store(kind: str, bucket: tuple[str, str]) -> None:
    root, endpoint = bucket
    first_is_killed(root, kind, endpoint)
    check(root, kind)


@pytest.mark.parametrize("kind", IN_BUCKETS)
def test_a_call_that_has_failed_on_an_object_store_is_not_waited_for(
    kind: str, bucket: tuple[str, str]
) -> None:
    root, endpoint = bucket
    first_fails(root, kind, endpoint)
    check(root, kind)


@pytest.mark.parametrize("kind", ["append", "unlabelled"])
def test_an_append_that_was_planned_before_an_equal_one_ended_is_not_made_twice(
    kind: str, root: Path
) -> None:
    """The process of the other one has exited in order before this one begins to run."""
    with Script(CALLER, root, kind, "planned", "") as planned:
        assert planned.stdout.readline() == "planned\n"
        with Script(CALLER, root, kind, "first", "") as first:
            first.stdin.write("\n")
            first.stdin.flush()
            assert first.stdout.readline() == "begun\n"
            assert first.stdout.readline().startswith("done")
            assert first.wait() == 0
        planned.stdin.write("\n")
        planned.stdin.flush()
        said = planned.stdout.readline()
    assert said.startswith("done"), said
    check(str(root), kind)
    check_clean(root)
    with Script(CALLER, root, kind, "again", "") as again:  # which was planned behind it
        assert again.stdout.readline().startswith("done")
    place, expected = EXPECTED[kind]
    name, longer = next(iter(expected.items()))
    assert len(zd.open_array(root / place, name)) == len(longer) + len(VALUES)


HOSTS = ("@one", "@two")


@pytest.mark.ci
@pytest.mark.parametrize(
    "kind", ["arrays", "regions", "append", "replaced", "copy", "image", "appendframe"]
)
def test_callers_on_two_hosts_wait_for_each_other(kind: str, bucket: tuple[str, str]) -> None:
    root, endpoint = bucket
    first_ends(root, kind, endpoint, hosts=HOSTS)
    check(root, kind)


@pytest.mark.ci
@pytest.mark.parametrize("kind", ["arrays", "regions", "append", "copy"])
def test_a_caller_goes_on_when_that_of_another_host_renews_its_claim_no_more(
    kind: str, bucket: tuple[str, str]
) -> None:
    root, endpoint = bucket
    first_is_killed(root, kind, endpoint, hosts=HOSTS)
    check(root, kind)


def in_two_threads(call: Callable[[Callable[[object], None]], object]) -> None:
    """Make a call in two threads; the second one begins, and waits, while the first is at work."""
    begun, may_end = threading.Event(), threading.Event()

    def stop(_: object) -> None:
        begun.set()
        may_end.wait(20)

    with ThreadPoolExecutor(2) as threads, dask.config.set(scheduler="sync"):
        first = threads.submit(call, stop)
        while not begun.wait(0.1):
            assert not first.done(), first.result()
        second = threads.submit(call, lambda _: None)
        with pytest.raises(TimeoutError):
            second.result(1.5)
        may_end.set()
        first.result()
        second.result()


@pytest.mark.parametrize("kind", ["none"])
def test_two_threads_append_the_same_once_to_an_object_store(
    kind: str, bucket: tuple[str, str]
) -> None:
    where = f"{bucket[0]}/{kind}.zarr"
    values = da.from_array(VALUES, chunks=(2, 4))
    zd.to_zarr(values, where)

    def call(stop: Callable[[object], None]) -> zd.WriteReport:
        return zd.to_zarr(values, where, append=0, resume=True, progress=stop)

    in_two_threads(call)
    np.testing.assert_array_equal(zd.open_array(where)[...], np.concatenate([VALUES] * 2))


@pytest.mark.ci
@pytest.mark.parametrize("kind", ["copy"])
def test_two_threads_make_the_same_copy_once_in_an_object_store(
    kind: str, bucket: tuple[str, str]
) -> None:
    root, _ = bucket

    def call(stop: Callable[[object], None]) -> object:
        return zd.copy(f"{root}/old.zarr", f"{root}/new.zarr", resume=True, progress=stop)

    in_two_threads(call)
    check(root, kind)


SIMULTANEOUS = """
import os, sys
import dask, dask.array as da, numpy as np, zarr_dask as zd
dask.config.set(scheduler="sync")
where, endpoint = sys.argv[1:]
names = {"ENDPOINT_URL": endpoint, "ACCESS_KEY_ID": "k", "SECRET_ACCESS_KEY": "s"}
os.environ |= {f"AWS_{name}": value for name, value in {**names, "REGION": "us-east-1"}.items()}
values = da.from_array(np.arange(48).reshape(12, 4), chunks=(1, 4))
plan = zd.plan_write(values, where, resume=True)
print("planned", flush=True)
sys.stdin.readline()
plan.run()
print("done", flush=True)
"""


def test_calls_that_begin_at_once_on_an_object_store_both_succeed(tmp_path: Path) -> None:
    with s3_server() as server:
        where = f"{server.root}/at-once.zarr"
        scripts = [Script(SIMULTANEOUS, where, server.endpoint) for _ in range(3)]
        with ExitStack() as stack:
            for script in scripts:
                stack.enter_context(script)
            for script in scripts:
                assert script.stdout.readline() == "planned\n"
            for script in scripts:
                script.stdin.write("\n")
                script.stdin.flush()
            for script in scripts:
                assert script.stdout.readline() == "done\n"
        options = server.options
        np.testing.assert_array_equal(zd.open_array(where, storage_options=options)[...], VALUES)
