"""Sources of a dask graph: the stored arrays that its tasks read lazily, and their locations.

A graph can hide an array deep: in a literal of a layer, a fused task, a list argument of a delayed
function, the closure of a mapped function, a variable of its module, or xarray's five layers of
adapters. So everything reachable from a task is searched, each object once. A path that a function
opens while it runs cannot be detected.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from zarr_dask.array.array import Array
from zarr_dask.stores.real_location import (
    place_in_tensorstore,
    place_in_zarr_python,
    place_of_target,
    places_of_references,
)

if TYPE_CHECKING:
    import dask.array as da

__all__ = [
    "find_lazy_arrays",
    "is_file",
    "places_of_source",
    "walk_objects",
]

_LEAVES: tuple[type, ...] = (
    str, bytes, bytearray, memoryview, int, float, complex, type(None), slice, range, type,
    np.dtype, np.generic, ModuleType, BuiltinFunctionType,
)  # fmt: skip
_REFERENCES = {("dask._task_spec", "TaskRef"), ("dask._task_spec", "Alias")}
"""References to other tasks, which hold nothing themselves."""
_NAMES = {"__weakref__", "_data_producer", "_dependencies", "_is_coro", "_repr", "key"}
"""Attributes of tasks that hold only names and marks; skipped because there are very many tasks."""
_CONTAINERS = (
    dict, list, tuple, set, frozenset, np.ndarray, partial, FunctionType, MethodType,
)  # fmt: skip
_ELSEWHERE = {
    "asyncio", "concurrent", "contextvars", "distributed", "fsspec", "logging", "multiprocessing",
    "numpy", "pandas", "threading", "tornado", "weakref", "_thread",
}  # fmt: skip
"""Packages whose objects hold no arrays of a graph, but much else."""
_READERS = {"dask", "tensorstore", "xarray", "zarr", "zarr_dask"}
"""Packages whose objects are searched if a function names them as a global of its module."""
_MOST_OBJECTS = 200_000
"""Maximum number of objects with attributes to search: a closure can hold a whole program."""


def find_lazy_arrays(array: da.Array) -> Iterator[Any]:
    """Yield what a graph reads: arrays of this package, of zarr-python and tensorstore, files."""
    return walk_objects(array.__dask_graph__().layers.values(), (Array, *_foreign()))


def walk_objects(values: Iterable[Any], kinds: tuple[type, ...]) -> Iterator[Any]:
    """Yield the objects of some types that are reachable from others, each once."""
    ways: dict[type, _TraversalRule | None] = {}
    seen: set[int] = set()
    objects = 0
    pending: list[Any] = list(values)
    while pending:
        value = pending.pop()
        kind = type(value)
        if kind not in ways:
            ways[kind] = _way_into(kind)
        way = ways[kind]
        if way is None or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, kinds):
            yield value
            continue
        objects += way.counts
        if objects <= _MOST_OBJECTS or not way.counts:
            pending.extend(way.held(value))


class _TraversalRule(NamedTuple):
    """Traversal of the objects of one type."""

    held: Callable[[Any], Iterable[Any]]
    """Returns the objects that an object holds."""
    counts: bool = False
    """True if the number of such objects is unbounded; objects of a graph are bounded."""


def _way_into(kind: type) -> _TraversalRule | None:
    """Return the traversal for objects of a type; None if they hold no arrays."""
    if issubclass(kind, _LEAVES) or (kind.__module__, kind.__name__) in _REFERENCES:
        return None
    if issubclass(kind, _CONTAINERS):
        return _TraversalRule(_held)
    package = kind.__module__.partition(".")[0]
    if package in _ELSEWHERE:
        return None
    slots = tuple(
        member
        for one in kind.__mro__
        for member in vars(one).values()
        if isinstance(member, MemberDescriptorType) and member.__name__ not in _NAMES
    )
    return _TraversalRule(partial(_attributes, slots), counts=package != "dask")


def _foreign() -> tuple[type, ...]:
    """Return the types of other libraries; only a library that is imported can be in use."""
    found = (
        ("zarr", "Array"),
        ("zarr", "AsyncArray"),
        ("tensorstore", "TensorStore"),
        ("h5py", "Dataset"),
        ("netCDF4", "Variable"),
        ("xarray.backends.file_manager", "FileManager"),
    )
    kinds = (getattr(sys.modules.get(package), name, None) for package, name in found)
    return tuple(kind for kind in kinds if isinstance(kind, type))


def _held(value: Any) -> Iterable[Any]:
    """Return the objects that a container or a function holds."""
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, np.ndarray):
        return value.ravel().tolist() if value.dtype == object else ()
    if isinstance(value, partial):
        return (value.func, *value.args, *value.keywords.values())
    if isinstance(value, MethodType):
        return (value.__self__, value.__func__)
    if isinstance(value, FunctionType):
        cells = [_content(cell) for cell in value.__closure__ or ()]
        defaults = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
        return (*cells, *defaults, *_globals(value))
    return tuple(value)


def _globals(function: FunctionType) -> Iterator[Any]:
    """Yield the globals that a function names: arrays, and other functions of the same module."""
    for name in _names(function.__code__):
        value = function.__globals__.get(name)
        if isinstance(value, FunctionType):
            if value.__globals__ is function.__globals__:
                yield value
        elif type(value).__module__.partition(".")[0] in _READERS:
            yield value


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing has been put there yet
        return None


def _attributes(slots: tuple[MemberDescriptorType, ...], value: Any) -> Iterator[Any]:
    """Yield the attributes of an object, without running any of its code."""
    held = getattr(value, "__dict__", None)
    if isinstance(held, dict):
        yield from list(held.values())
    for slot in slots:
        try:
            yield slot.__get__(value)
        except AttributeError:  # nothing has been put there yet
            continue


def places_of_source(source: Any) -> Iterator[str]:
    """Yield the locations of an array and of the data it refers to; nothing if they are unknown."""
    place: str | None = None
    if (file := _file_of(source)) is not None:
        place = os.path.realpath(file)
    elif isinstance(source, Array):
        place = place_of_target(source.store, source.path)
    elif hasattr(source, "kvstore"):
        place = place_in_tensorstore(source.kvstore)
    elif (inner := getattr(source, "store_path", None)) is not None:
        place = place_in_zarr_python(inner.store, inner.path)
    if place is not None:
        yield place
    inner = getattr(source, "store_path", source)
    yield from places_of_references(getattr(inner, "store", None))


def is_file(source: Any) -> bool:
    """True for an object of another library that reads a local file."""
    return _file_of(source) is not None


def _file_of(source: Any) -> str | None:
    """Return the local file that an object of h5py, netCDF4 or xarray reads, if any."""
    package = type(source).__module__.partition(".")[0]
    named: Any = None
    if package == "h5py":
        named = source.file.filename if source else None
    elif package == "netCDF4":
        with suppress(RuntimeError):  # it is closed
            named = source.group().filepath()
    elif package == "xarray":
        named = next(iter(getattr(source, "_args", ())), None)
    return str(named) if isinstance(named, str | os.PathLike) and Path(named).exists() else None
