"""Sources of a dask graph: the stored arrays that its tasks read lazily, and their locations.

A graph can hide an array deep: in a literal of a layer, a fused task, a list argument of a delayed
function, the closure of a mapped function, a variable of its module, or xarray's five layers of
adapters. So everything reachable from a task is searched, each object once. A path that a function
opens while it runs cannot be detected.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import islice, pairwise
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
from zarr_dask.stores.backends.fsspec import FsspecStore
from zarr_dask.stores.backends.memory import MemoryStore
from zarr_dask.stores.backends.obstore import ObstoreStore
from zarr_dask.stores.backends.zarr_python import ZarrPythonStore
from zarr_dask.stores.base import Store
from zarr_dask.stores.open import canonical_location, contains_or_equal, unwrap_with_path
from zarr_dask.stores.wrapper import unwrap

if TYPE_CHECKING:
    import dask.array as da

__all__ = [
    "find_lazy_arrays",
    "locations_overlap",
    "nested",
    "overlaps",
    "place_of_target",
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
_MOST_REFERENCES = 1_000_000
"""Maximum number of chunks of a reference file system to look at."""


def find_lazy_arrays(array: da.Array) -> Iterator[Any]:
    """Yield the arrays of this package, of zarr-python and of tensorstore that a graph holds."""
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
    """Return the array types of other libraries; only a library that is imported can be in use."""
    found = (("zarr", "Array"), ("zarr", "AsyncArray"), ("tensorstore", "TensorStore"))
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


# --- locations ------------------------------------------------------------------------------------


def place_of_target(store: Store, path: str) -> str:
    """Return the location of a node, which is the same however its store was opened."""
    store, path = unwrap_with_path(store, path)
    place: str | None = None
    if isinstance(store, FsspecStore | ObstoreStore):
        place = _remote(store.url, store.settings(), path)
    elif isinstance(store, MemoryStore):
        place = _mapping(getattr(store.values, "buffers", store.values), path)
    elif isinstance(store, ZarrPythonStore):
        place = _zarr_python(store.store, path)
    return place or canonical_location(store, path)


def locations_overlap(one: tuple[Store, str], other: tuple[Store, str]) -> bool:
    """True if one node, given by its store and path, contains or is contained in the other.

    Works however the stores were opened: from other roots, through links, with other options.
    """
    return contains_or_equal(place_of_target(*one), place_of_target(*other))


def overlaps(places: Sequence[str], others: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield pairs of a place and another one that is it, contains it or lies within it.

    At least one pair for each place that overlaps any; the time grows with their number only.

    Examples
    --------
    >>> list(overlaps(["/a/b", "/c", "/d/e/f"], ["/a", "/d/e/f/g", "/cc"]))
    [(0, 0), (2, 1)]
    """
    at = {place: number for number, place in enumerate(others)}
    around = {above: number for place, number in at.items() for above in _above(place)}
    for number, place in enumerate(places):
        known = next((at[one] for one in (place, *_above(place)) if one in at), around.get(place))
        if known is not None:
            yield number, known


def nested(places: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield pairs of places of which one is the other or lies within it, if there are any.

    Examples
    --------
    >>> list(nested(["/a/b", "/c", "/a-b", "/a"])), list(nested(["/a", "/ab"]))
    ([(3, 0)], [])
    """
    folders = sorted((f"{place}/", number) for number, place in enumerate(places))
    for (one, first), (other, second) in pairwise(folders):
        if other.startswith(one):
            yield first, second


def _above(place: str) -> Iterator[str]:
    while "/" in place:
        place = place.rpartition("/")[0]
        yield place


def places_of_source(source: Any) -> Iterator[str]:
    """Yield the locations of an array and of the data it refers to; nothing if they are unknown."""
    place: str | None = None
    if isinstance(source, Array):
        place = place_of_target(source.store, source.path)
    elif hasattr(source, "kvstore"):
        place = _tensorstore(source.kvstore)
    elif (inner := getattr(source, "store_path", None)) is not None:
        place = _zarr_python(inner.store, inner.path)
    if place is not None:
        yield place
    yield from _references(_file_system_of(source))


def _file_system_of(source: Any) -> Any:
    """Return the fsspec file system that an array is read through; None if there is none."""
    inner = getattr(source, "store_path", None)
    store: Any = source.store if isinstance(source, Array) else getattr(inner, "store", None)
    store = unwrap(store)
    if isinstance(store, FsspecStore):
        return store.file_system()
    if isinstance(store, MemoryStore):
        return getattr(store.values, "fs", None)
    store = store.store if isinstance(store, ZarrPythonStore) else store
    return getattr(_innermost(store), "fs", None)


def _references(fs: Any) -> Iterator[str]:
    """Yield the locations of the data that a reference file system (kerchunk) is made of."""
    fs, _ = _unwrapped(fs, "")
    references = getattr(fs, "references", None)
    if type(fs).__name__ != "ReferenceFileSystem" or references is None:
        return
    values = islice(references.values(), _MOST_REFERENCES)
    urls = {str(one[0]) for one in values if isinstance(one, list | tuple) and one and one[0]}
    real = cache(os.path.realpath)  # files lie in few folders
    for url in urls:
        scheme, found, path = url.partition("://")
        if found and scheme not in {"file", "local"}:
            yield _remote(url, getattr(fs.fss.get(scheme), "storage_options", {}), "")
        else:
            folder, name = os.path.split(path if found else url)
            yield f"{real(folder)}/{name}"


def _innermost(store: Any) -> Any:
    """Return the innermost store in nested wrapper stores of zarr-python."""
    while (wrapped := getattr(store, "_store", None)) is not None:
        store = wrapped
    return store


def _zarr_python(store: Any, path: str) -> str | None:
    store = _innermost(store)
    values = getattr(store, "_store_dict", None)
    if values is not None:
        return _memory(values, path)
    fs = getattr(store, "fs", None)
    if fs is not None:
        return _fsspec(fs, store.path, path)
    inner = getattr(store, "store", None)  # of obstore
    if inner is not None:
        return _obstore(inner, path)
    root = getattr(store, "root", None) or getattr(store, "path", None)
    return None if root is None else os.path.realpath(f"{root}/{path}")


def _fsspec(fs: Any, root: str, path: str) -> str:
    """Return a location below a folder of an fsspec file system, which may wrap another one."""
    fs, root = _unwrapped(fs, root)
    if "file" in (fs.protocol if isinstance(fs.protocol, tuple) else (fs.protocol,)):
        return os.path.realpath(f"{root}/{path}")
    return _remote(fs.unstrip_protocol(root), fs.storage_options, path)


def _unwrapped(fs: Any, root: str) -> tuple[Any, str]:
    while True:
        if hasattr(fs, "sync_fs"):
            fs = fs.sync_fs
        elif type(fs).__name__ == "DirFileSystem":
            fs, root = fs.fs, f"{fs.path}/{root}"
        else:
            return fs, root


def _mapping(values: Any, path: str) -> str:
    """Return a location in a mapping, which may be one over a file system."""
    fs, root = getattr(values, "fs", None), getattr(values, "root", None)
    return _memory(values, path) if fs is None or root is None else _fsspec(fs, root, path)


def _memory(values: Any, path: str) -> str:
    return f"memory:{id(values)}/{path}".rstrip("/")


def _obstore(store: Any, path: str) -> str | None:
    prefix = getattr(store, "prefix", None) or ""
    if type(store).__name__ == "LocalStore":
        return os.path.realpath(f"{prefix}/{path}")
    config = getattr(store, "config", None) or {}
    bucket = config.get("bucket")
    if bucket is None:
        return None
    return _remote(f"s3://{bucket}/{prefix}", {"endpoint_url": config.get("endpoint")}, path)


def _tensorstore(kvstore: Any) -> str | None:
    url = str(getattr(kvstore, "url", ""))
    scheme, found, path = url.partition("://")
    if not found:
        return None
    return os.path.realpath(path) if scheme == "file" else _remote(url, {}, "")


def _remote(url: str, options: Mapping[str, Any], path: str) -> str:
    """Return a URL, preceded by its server if that is not the default one."""
    client = options.get("client_kwargs") or {}
    server = options.get("endpoint_url") or client.get("endpoint_url") or ""
    scheme, _, below = url.rpartition("://")
    place = f"{scheme}://{below.strip('/')}/{path}".rstrip("/")
    return f"{server} {place}" if server else place
