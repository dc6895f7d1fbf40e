"""Two processes that make the same resumable call: one works, the other waits for its end."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import zarr_dask as zd
from tests.support.leftovers import left_in
from tests.support.scripts import Script

xr = pytest.importorskip("xarray")
pytest.importorskip("scipy")

CALLER = """
import logging, sys
import dask, dask.array as da, numpy as np, xarray as xr, zarr_dask as zd
from zarr_dask.jobs.engine import lifecycle
dask.config.set(scheduler="sync")
root, kind, role = sys.argv[1:]
told = []
def stop(step):
    if role == "first" and not told:
        told.append(step)
        print("begun", flush=True)
        sys.stdin.readline()
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
try:
    report = calls[kind]()
    print("done", report if kind in {"files", "planfiles", "labels"} else "", flush=True)
except zd.errors.ZarrDaskError as error:
    print(type(error).__name__, error, flush=True)
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
    "region": ("old.zarr", TWO),
    "copy": ("new.zarr", {"a": ONES, "b": ONES}),
    "image": ("new.zarr", {"0": VALUES}),
    "appendframe": ("old.zarr", {"0": LONGER["a"], "1": COARSER["a"]}),
    "level": ("old.zarr", {"1": COARSER["b"]}),
    "planfiles": ("ingested.zarr", FILES),
    "files": ("ingested.zarr", FILES),
}
SHORT = ("arrays", "appends", "labels")
CASES = [one if one in SHORT else pytest.param(one, marks=pytest.mark.ci) for one in EXPECTED]


@pytest.fixture
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    kind = request.getfixturevalue("kind")
    if kind in {"regions", "append", "appends", "labels", "region", "copy"}:
        ones = dict.fromkeys("ab", (("t", "x"), ONES))
        old = xr.Dataset(ones, coords={"t": np.arange(12)})
        zd.write_dataset(old, tmp_path / "old.zarr", chunks={"t": 2})
    if kind in {"appendframe", "level"}:
        levels = {"levels": 1 if kind == "level" else 2, "factors": 2, "chunks": (2, 4)}
        zd.ome.write(ONES, tmp_path / "old.zarr", axes="yx", **levels)
    if kind in {"files", "planfiles"}:
        for number in range(2):
            one = {"a": (("t", "x"), np.full((12, 4), number, "i4"))}
            one = xr.Dataset(one, coords={"t": np.arange(12) + 12 * number})
            one.to_netcdf(tmp_path / f"{number}.nc", engine="scipy")
        zd.ingest([tmp_path / "0.nc"], tmp_path / "ingested.zarr", concat="t", chunks={"t": 2})
    return tmp_path


def check(root: Path, kind: str) -> None:
    place, expected = EXPECTED[kind]
    for name, values in expected.items():
        np.testing.assert_array_equal(zd.open_array(root / place, name)[...], values)
    left = {name for name in left_in(root) if not name.endswith((".nc", ".ingest.json"))}
    assert left <= {"old.zarr", "new.zarr", "ingested.zarr"}


@pytest.mark.parametrize("kind", CASES)
def test_a_second_caller_waits_for_the_first(kind: str, root: Path) -> None:
    with Script(CALLER, root, kind, "first") as first:
        assert first.stdout.readline() == "begun\n"
        with Script(CALLER, root, kind, "second") as second:
            said = second.stdout.readline()
            assert "waiting for the process that works on the same job" in said
            first.stdin.write("\n")
            first.stdin.flush()
            assert first.stdout.readline().startswith("done")
            said = second.stdout.readline()
    # nobody but the first process can tell of an append that has ended in order
    assert said.startswith("done") or (kind.startswith("append") and "same one" in said)
    check(root, kind)


@pytest.mark.parametrize("kind", CASES)
def test_a_second_caller_does_what_a_killed_one_has_left(kind: str, root: Path) -> None:
    with Script(CALLER, root, kind, "first") as first:
        assert first.stdout.readline() == "begun\n"
        with Script(CALLER, root, kind, "second") as second:
            assert "waiting" in second.stdout.readline()
            first.kill()
            assert second.stdout.readline().startswith("done")
    check(root, kind)
