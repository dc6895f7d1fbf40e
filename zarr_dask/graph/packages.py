"""Packages that the tasks of a graph are made of, without loading or serialising the tasks."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any

from cloudpickle import list_registry_pickle_by_value
from dask.blockwise import Blockwise
from dask.highlevelgraph import HighLevelGraph

__all__ = ["packages_of"]

_DEEPEST = 8
"""Maximum depth of containers in a task that are looked into."""
_MOST_ITEMS = 32
"""Maximum number of their items."""
_REDUCE = ("__reduce_ex__", "__reduce__")
_EVERYWHERE = sys.stdlib_module_names | {
    "__main__",
    "__mp_main__",
    "dask",
    "distributed",
    "numpy",
    "tlz",
    "toolz",
}
"""Modules that every worker has."""


def packages_of(graph: HighLevelGraph) -> set[str]:
    """Return the top-level names of modules that functions of the graph are of.

    One task of each layer is looked at. Left out are modules that every worker has, and functions
    that are sent by value.

    Examples
    --------
    >>> import dask.array as da, numpy as np
    >>> packages_of(da.ones((4, 4)).map_blocks(np.sqrt).dask)
    set()
    """
    found = {_package(function) for layer in graph.layers.values() for function in _of(layer)}
    return found - _EVERYWHERE - {"", "zarr_dask"}


def _of(layer: Mapping[Any, Any]) -> Iterator[Any]:
    if isinstance(layer, Blockwise):
        yield from _functions(layer.task)
    elif isinstance(layer, dict) or getattr(layer, "is_materialized", bool)():
        yield from _functions(next(iter(layer.values()), None))


def _functions(value: Any, depth: int = 0) -> Iterator[Any]:
    """Yield the functions, classes and instances in a task."""
    if depth > _DEEPEST:
        return
    inner: Any = ()
    if isinstance(value, Mapping):
        inner = value.values()
    elif isinstance(value, list | tuple | set):
        inner = value
    elif isinstance(value, partial):
        inner = (value.func, value.args, value.keywords)
    elif type(value).__module__.partition(".")[0] == "dask":  # its tasks and containers
        inner = [getattr(value, name, None) for name in ("func", "args", "kwargs", "value")]
    else:
        yield value
    for one in islice(inner, _MOST_ITEMS):
        yield from _functions(one, depth + 1)


def _package(value: Any) -> str:
    """Return the top-level module that must be imported to load a value; "" for none.

    Functions that cannot be found by their names, and those of registered modules, are sent by
    value.
    """
    named = value
    if not hasattr(value, "__qualname__"):
        named = type(value)
        own = (getattr(named, name) is getattr(object, name) for name in _REDUCE)
        if not all(own):
            return ""  # it says itself how it is loaded
    module, path = getattr(named, "__module__", None), getattr(named, "__qualname__", "")
    if not isinstance(module, str) or module not in sys.modules:
        return ""
    by_name: Any = sys.modules[module]
    for name in path.split("."):
        by_name = getattr(by_name, name, None)
    package = module.partition(".")[0]
    by_value = {one.partition(".")[0] for one in list_registry_pickle_by_value()}
    return package if by_name is named and package not in by_value else ""
