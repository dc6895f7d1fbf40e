"""Clusters and xarray are extras: everything else runs where they are not installed."""

import os
import subprocess
import sys

import pytest

from tests.support.paths import ROOT
from zarr_dask.errors import MissingDependencyError
from zarr_dask.jobs.engine.connect import connect

ALONE = """
import sys


class Absent:
    @staticmethod
    def find_spec(name, *_):
        if name.partition(".")[0] in ("distributed", "xarray"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Absent)
import numpy as np
import zarr_dask as zd

u = {"shape": (8, 8), "dtype": "f4", "chunks": (1, 4, 8)}
zd.Writer.create("run.zarr", {"u": u}, owners=zd.decompose((8, 8), (2, 1)))
for rank in range(2):
    with zd.Writer.attach("run.zarr", rank=rank) as writer:
        writer.write_step(0, {"u": np.full((4, 8), rank, "f4")})
zd.Writer.attach("run.zarr").finish()
assert zd.open_array("run.zarr", "u")[...].sum() == 32
assert "dask" not in sys.modules

import dask.array as da
zd.to_zarr(da.ones((8, 8), chunks=3), "x.zarr", chunks=(4, 4), resume=True)
zd.rechunk("x.zarr", "y.zarr", chunks=(8, 2), verify=True)
zd.copy("y.zarr", "z.zarr")
assert zd.compare("x.zarr", "z.zarr")
assert zd.verify("z.zarr", deep="decode")
assert (zd.from_zarr("z.zarr") + 1).sum().compute() == 128

try:
    zd.open_dataset("x.zarr")
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize(
    "options", [{"workers": 2}, {"scheduler": "tcp://127.0.0.1:1"}, {"scheduler_file": "no.json"}]
)
def test_without_distributed_the_extra_is_named(options, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with (
        pytest.raises(MissingDependencyError, match=r"pip install 'zarr-dask\[cluster\]'"),
        connect(**options),
    ):
        pass
    with connect() as client:
        assert client is None


def test_jobs_and_ranks_run_without_extras(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", ALONE],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert "pip install 'zarr-dask[xarray]'" in done.stdout, done.stderr
