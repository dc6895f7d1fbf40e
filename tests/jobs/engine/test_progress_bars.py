"""The argument ``progress`` of all jobs."""

from __future__ import annotations

import dask.array as da
import pytest

import zarr_dask as zd


@pytest.mark.parametrize(
    "run",
    [
        lambda x, given: zd.to_zarr(x, {}, progress=given),
        lambda x, given: zd.rechunk(x, {}, chunks=3, progress=given),
        lambda x, given: zd.copy(zd.create_array({}, data=x.compute()), {}, progress=given),
        lambda x, given: zd.plan_rechunk(zd.create_array({}, data=x.compute()), {}, chunks=3).run(
            progress=given
        ),
        lambda x, given: zd.ome.write(x, {}, axes="yx", progress=given),
    ],
    ids=["to_zarr", "rechunk", "copy", "plan", "ome"],
)
def test_all_jobs_take_the_same(run, capsys):
    x = da.ones((6, 6), chunks=2)
    for given in (False, None):
        run(x, given)
        assert not capsys.readouterr().err
    run(x, True)
    assert capsys.readouterr().err
    steps = []
    run(x, steps.append)
    assert steps


def test_what_cannot_be_called_is_refused():
    with pytest.raises(TypeError, match=r"progress='yes': expected a function"):
        zd.copy(zd.create_array({}, data=[1]), {}, progress="yes")
