"""``zarr-dask migrate``: what it prints, what it refuses, and how it ends."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
from click.testing import CliRunner

import zarr_dask as zd
from zarr_dask.cli import main
from zarr_dask.jobs.migrate.plan import MigrationPlan


@pytest.fixture(autouse=True)
def _wide(monkeypatch):
    """No line is folded."""
    monkeypatch.setenv("COLUMNS", "500")
    for name in ("ZARR_DASK_TRACEBACK", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def old(tmp_path):
    group = zd.create_group(tmp_path / "old", format="v2")
    for name in ("a", "b"):
        array = group.create_array(
            name, shape=(4,), dtype=">i2", chunks=2, dimension_names=["x"], fill_value=None
        )
        array[...] = np.arange(4)
    return tmp_path / "old"


def run(*arguments, code=0):
    result = CliRunner().invoke(main, ["migrate", *map(str, arguments)])
    problem = result.exception if not isinstance(result.exception, SystemExit) else None
    assert problem is None, result.output
    assert result.exit_code == code, result.output
    return result


def files(root):
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def values(url, format):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return zd.open_group(url, format=format)["a"][...].tolist()


def test_dry_runs_print_the_plan_and_write_nothing(old):
    before = files(old)
    said = run(old, "--dry-run", "--remove-old").stdout
    assert files(old) == before
    assert said.splitlines() == [
        f"migrate {old} from v2 to v3",
        "  place      in place",
        "  nodes      1 group, 2 arrays",
        "  documents  3 new documents",
        "  data       stored objects stay where they are, untouched",
        "  old        old documents are removed when the new ones are verified",
        "  note       a and 1 more: fill value: there is none (null); it becomes zero, as which it "
        "is read",
        "  note       a and 1 more: attribute _ARRAY_DIMENSIONS becomes dimension_names ['x']",
    ]


def test_in_place(old):
    before = files(old)
    said = run(old).stdout
    assert "done: 3 nodes, 3 documents written in" in said
    assert "v3 wins where both lie side by side" in said
    assert before.items() < files(old).items()
    assert values(old, "v2") == values(old, "v3") == [0, 1, 2, 3]
    assert (
        "done: 3 nodes, 0 documents written, 6 old keys removed in"
        in run(old, "--remove-old").stdout
    )
    assert sorted(files(old)) == [
        "a/0",
        "a/1",
        "a/zarr.json",
        "b/0",
        "b/1",
        "b/zarr.json",
        "zarr.json",
    ]


def test_renamed(old):
    result = run(old, "--data", "rename", "--remove-old")
    nbytes = sum(len(value) for name, value in files(old).items() if "/c/" in name)
    assert f"4 stored objects ({nbytes} B) copied byte for byte" in result.stdout
    assert f"4 stored objects copied ({nbytes} B)" in result.stdout
    assert result.stderr.splitlines()[-1].startswith(f"copying: 100 % ({nbytes} B of {nbytes} B)")
    assert sorted(name for name in files(old) if name.startswith("a/")) == [
        "a/c/0",
        "a/c/1",
        "a/zarr.json",
    ]


def test_to_another_place(old, tmp_path):
    before = files(old)
    result = run(old, tmp_path / "new", "--quiet")
    assert result.stdout == ""
    assert files(old) == before
    assert values(tmp_path / "new", "v3") == [0, 1, 2, 3]


def test_refusals_end_in_1_and_name_everything(old):
    for name in ("a", "b"):
        document = json.loads((old / name / ".zarray").read_text())
        document["compressor"] = {"id": f"lz-{name}"}
        (old / name / ".zarray").write_text(json.dumps(document))
    before = files(old)
    dry = run(old, "--dry-run", code=3)
    real = run(old, code=3)
    assert files(old) == before
    for said in (dry.stdout, real.stderr):
        assert "lz-a" in said
        assert "lz-b" in said
    assert real.stdout == ""
    assert "nothing will be written" in dry.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "copy"], "in place takes 'keep' or 'rename'"),
        (
            ["new", "--remove-old"],
            "--remove-old is for migrations in place: a copy leaves its source",
        ),
        (["--format", "v1"], "'v1' is not one of"),
    ],
)
def test_wrong_usage_ends_in_2(old, arguments, message):
    assert message in run(old, *arguments, code=2).stderr


def test_nothing_there_ends_in_1(tmp_path):
    assert "no Zarr array or group" in run(tmp_path / "none", code=3).stderr


def test_an_interrupt_says_that_all_can_be_read(old, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(MigrationPlan, "run", interrupt)
    said = run(old, code=130).stderr
    assert "can be read as before. Run the same command again" in said


def test_the_order_of_v1_can_be_said(tmp_path):
    array = zd.create_array(
        tmp_path, shape=(2, 3), dtype="<i2", chunks=(2, 3), codecs=[], format="v1", order="F"
    )
    document = json.loads((tmp_path / "meta").read_text())
    assert document["order"] == "F"
    (tmp_path / "0.0").write_bytes(np.arange(6, dtype="<i2").tobytes())
    del array
    run(tmp_path, "--v1-f-order", "legacy", "--quiet")
    assert zd.open(tmp_path, format="v3")[...].tolist() == [[0, 1, 2], [3, 4, 5]]
