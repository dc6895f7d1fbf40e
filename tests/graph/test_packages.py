"""The packages that functions of a graph are of."""

from __future__ import annotations

import sys
import types
from functools import partial

import cloudpickle
import dask.array as da
import pytest

from zarr_dask.graph.requirements import packages_of


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = types.ModuleType("station_tools")
    source = "def double(block, key=None): return block\n"
    source += "class Twice:\n  def __call__(self, block): return block"
    exec(source, module.__dict__)  # noqa: S102
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def found(function: object, **options: object) -> set[str]:
    x = da.ones((8, 8), chunks=4).map_blocks(function, dtype="f8", **options)
    return packages_of((x + 1).sum().dask)


def test_functions_are_found_wherever_they_stand(tools: types.ModuleType) -> None:
    name = {"station_tools"}
    assert found(tools.double) == name
    assert found(partial(tools.double, key=1)) == name
    assert found(tools.Twice()) == name
    assert found(len, key={"a": [tools.double]}) == name
    assert packages_of(da.from_delayed(_delayed(tools.double), (4,), "f8").dask) == name


def _delayed(function: object) -> object:
    import dask

    return dask.delayed(function, pure=True)(1)


def test_what_is_sent_by_value_needs_no_package(tools: types.ModuleType) -> None:
    assert found(lambda block: block) == set()
    inner = types.FunctionType(tools.double.__code__, {"__name__": "gone"}, "double")
    inner.__module__ = "gone"
    assert found(inner) == set()
    cloudpickle.register_pickle_by_value(tools)
    try:
        assert found(tools.double) == set()
    finally:
        cloudpickle.unregister_pickle_by_value(tools)
