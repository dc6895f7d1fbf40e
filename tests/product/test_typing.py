"""What a type checker says of calls: a misspelt keyword is an error, right ones are none."""

import re
import subprocess
import sys

import pytest

from tests.support.paths import ROOT

RIGHT = """
import dask.array as da
import numpy as np
import xarray as xr

import zarr_dask as zd

x, ds = da.ones((4, 4)), xr.Dataset()
zd.to_zarr(x, "a", chunks=(2, 2), compressor="zstd", progress=True)
zd.to_zarr([x, x], "a", component=["p", "q"])
zd.to_zarr(ds, "a", append_dim="t", encoding={"t": {}}, mode="a-", group="g", overlap="replace")
zd.plan_write(ds, "a", region="auto", safe_chunks=False)
zd.copy(np.ones(3), "b", chunks=2)
zd.ome.convert("a.tif", "b", axes="yx", method="mean")
reveal_type(zd.to_zarr(np.ones(3), "a"))
reveal_type(zd.rechunk("a", "b", chunks=2))
reveal_type(zd.copy("a", "b"))
reveal_type(zd.verify("a"))
"""
REVEALED = ["WriteReport", "RechunkReport", "JointReport", "VerifyReport"]
WRONG = """
to_zarr(x, "a", chuncks=2)
to_zarr(ds, "a", apend_dim="t")
plan_write(x, "a", chuncks=2)
rechunk("a", "b", chuncks=2)
copy("a", "b", chuncks=2)
plan_copy("a", "b", chuncks=2)
create_array("a", shape=3, dtype="f4", chuncks=2)
open("a", mod="r")
from_zarr("a", chuncks=2)
verify("a", depe="decode")
write_dataset(ds, "a", apend="t")
ingest(["a"], "b", concta="t")
open_group("a").create_array("b", shape=3, dtype="f4", chuncks=2)
open_dataset("a", chnks={})
ReadOptions(mising="fill")
ome.write(x, "a", axes="yx", axs="yx")
ome.convert("a", "b", mthod="mean")
"""


@pytest.fixture
def checked(tmp_path):
    pytest.importorskip("mypy")

    def check(text):
        """Return the lines that mypy prints of a file."""
        file = tmp_path / "calls.py"
        file.write_text(text)
        arguments = [sys.executable, "-m", "mypy", "--follow-imports=silent", str(file)]
        done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False)
        assert not done.stderr
        return [line for line in done.stdout.splitlines() if "calls.py" in line]

    return check


@pytest.mark.timeout(300)
def test_right_calls_have_types_of_this_package(checked):
    lines = checked(RIGHT)
    assert [re.search(r'"zarr_dask\.[\w.]*\.(\w+)"$', line)[1] for line in lines] == REVEALED


@pytest.mark.timeout(300)
def test_each_misspelt_keyword_is_an_error(checked):
    calls = WRONG.strip().splitlines()
    head = "import dask.array as da, xarray as xr, zarr_dask as zd\n"
    head += "x, ds = da.ones(3), xr.Dataset()\n"
    lines = checked(head + "".join(f"zd.{call}\n" for call in calls))
    found = {
        int(re.search(r"calls\.py:(\d+): error", line)[1]) for line in lines if ": error" in line
    }
    assert found == set(range(3, 3 + len(calls)))
