"""Tokens of calls: equal in each process, whatever it has done before; different for others."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import dask.array as da
import numpy as np
import pytest

from zarr_dask.errors import ResumeError
from zarr_dask.graph.tokens import layer_tokens

SCRIPT = """
import json, math, os, sys
if os.environ["PYTHONHASHSEED"] == "2":
    import dask.array, numpy as np
    np.set_printoptions(legacy="1.13")
    import importlib.util
    if importlib.util.find_spec("dask_array"):
        import dask_array  # which gives functions of NumPy tokens of its own
    sys.modules["dask.array.ones"] = dask.array  # a module that functions may mean
import dask, dask.array as da, numpy as np
from zarr_dask.graph.tokens import layer_tokens

FACTOR, NAMES = {"b": 2}, {"alpha", "beta", "gamma"}

def same(block, names=frozenset(("x", "y", "z"))):
    known = [name for name in ("e", "f") if name in {"e", "f", "g", "h"}]
    return block * FACTOR["b"] + len(NAMES) + len(known) + len(names)

def using_modules(block):
    return block + dask.array.ones(3).sum().compute() + np.linalg.norm(block)

class Added:
    def __init__(self, number):
        self.number, self.names = number, {"one", "two", "three"}

    def __call__(self, block):
        return block + self.number

def again(block):
    return again if block is None else block

x = da.arange(8, chunks=4)
calls = [x.map_blocks(one, dtype=x.dtype) for one in (same, using_modules, Added(3), again)]
calls += [x.map_blocks(lambda b, names: b, names={"x", "y", "z"}, dtype=x.dtype)]
calls += [np.sin(x), np.add.outer(x, x), da.where(x > 2, x, 0)]
calls += [x.map_blocks(math.prod, dtype=x.dtype)]
calls += [x * np.float64(2.5), (x - x.mean()).rechunk(2), da.stack([x, x + 1]).sum(axis=0)]
print(json.dumps([layer_tokens(one) for one in calls]))
"""


def test_a_call_has_the_same_token_in_each_process():
    found = [
        json.loads(
            subprocess.check_output(
                [sys.executable, "-W", "ignore", "-c", SCRIPT],
                env={**os.environ, "PYTHONHASHSEED": seed},
            )
        )
        for seed in "12"
    ]
    assert found[0] == found[1]
    assert len({one[-1][1] for one in found[0]}) == len(found[0])


def token(function, **options) -> str:
    x = da.arange(8, chunks=4)
    return layer_tokens(x.map_blocks(function, meta=np.array((), "i8"), name="always", **options))[
        -1
    ][1]


def adding(number, power=1, scale=None):
    def add(block, by=power):
        return block**by + number * (1 if scale is None else len(scale))

    return add


class Object:
    def __init__(self, number):
        self.number = number

    def __call__(self, block):
        return block + self.number


def test_different_calls_have_different_tokens():
    calls = [
        lambda b: b + 1,
        lambda b: b + 1.0,
        lambda b: b - 1,
        np.sin,
        np.cos,
        lambda b: [c for c in b if c in {"p", "q"}],
        lambda b: [c for c in b if c in {"p", "r"}],
        adding(1),
        adding(2),
        adding(1, 2),
        adding(1, scale={"a"}),
        adding(1, scale={"b"}),
        adding(1, scale=frozenset("b")),
        Object(1),
        Object(2),
        type("Other", (Object,), {})(1),
        type("Other", (Object,), {"more": 1})(1),
        *(eval("lambda b: b + k", {"k": k}) for k in (1, 2)),  # noqa: S307
    ]
    assert len({token(one) for one in calls}) == len(calls)
    assert token(adding(1)) == token(adding(1))
    assert token(Object(1)) == token(Object(1))
    assert token(adding(1), by=3) != token(adding(1), by=4)
    assert token(adding(1), by={1: "a"}) != token(adding(1), by={1: "b"})


def test_layers_of_other_inputs_have_different_tokens():
    x = da.arange(8, chunks=4)
    found = [
        one.map_blocks(Object(1), dtype=x.dtype, name="always")
        for one in (x, x + 1, x.rechunk(8), da.from_array(np.arange(8), chunks=4, name="values"))
    ]
    assert len({layer_tokens(one)[-1][1] for one in found}) == len(found)
    assert layer_tokens(x - (x + 1))[-1] != layer_tokens((x + 1) - x)[-1]


def test_what_differs_each_time_is_refused():
    with pytest.raises(ResumeError, match="looks different in each process"):
        token(Object(object()))
