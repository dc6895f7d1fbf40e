"""Locations of nodes, and of the data that stores refer to, however their stores were opened.

Two stores may be one place: through links, mappings, file systems of fsspec and stores of other
libraries. A job asks here so that it never writes over what it reads.

Checks of local paths find what no request to a store can show: files where folders must be.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any

from zarr_dask.errors import StoreError
from zarr_dask.stores.backends.fsspec import FsspecStore
from zarr_dask.stores.backends.memory import MemoryStore
from zarr_dask.stores.backends.obstore import ObstoreStore
from zarr_dask.stores.backends.zarr_python import ZarrPythonStore
from zarr_dask.stores.base import ReadsFiles, Store
from zarr_dask.stores.locations import is_local, unwrapped
from zarr_dask.stores.open import (
    canonical_location,
    contains_or_equal,
    local_path,
    unwrap_with_path,
)
from zarr_dask.stores.wrapper import unwrap

__all__ = [
    "blocking_file",
    "check_file",
    "check_folder",
    "folders_around",
    "locations_overlap",
    "nested",
    "overlaps",
    "place_in_tensorstore",
    "place_in_zarr_python",
    "place_of_target",
    "places_of_references",
    "source_at_target",
]


_MOST_REFERENCES = 1_000_000
"""Maximum number of chunks of a reference file system to look at."""


def place_of_target(store: Store, path: str) -> str:
    """Return the location of a node, which is the same however its store was opened."""
    store, path = unwrap_with_path(store, path)
    place: str | None = None
    if isinstance(store, FsspecStore | ObstoreStore):
        place = _remote(store.url, store.settings(), path)
    elif isinstance(store, MemoryStore):
        place = _mapping(getattr(store.values, "buffers", store.values), path)
    elif isinstance(store, ZarrPythonStore):
        place = place_in_zarr_python(store.store, path)
    return place or canonical_location(store, path)


def locations_overlap(one: tuple[Store, str], other: tuple[Store, str]) -> bool:
    """True if one node, given by its store and path, contains or is contained in the other.

    Works however the stores were opened: from other roots, through links, with other options.
    """
    return contains_or_equal(place_of_target(*one), place_of_target(*other))


def source_at_target(source: tuple[Store, str], target: tuple[Store, str]) -> str | None:
    """Return what a job would read and destroy: its source, or a file that this refers to."""
    place = place_of_target(*target)
    read = chain((place_of_target(*source),), places_of_references(source[0]))
    return next((one for one in read if contains_or_equal(one, place)), None)


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


def places_of_references(store: Any) -> Iterator[str]:
    """Yield the locations of the data that a store of ours or of zarr-python refers to."""
    inner = unwrap(store)
    if isinstance(inner, ReadsFiles):
        yield from _places_of_files(inner.files_read)
    yield from _references(_file_system_of(store))


def _places_of_files(
    urls: Iterable[str], options: Mapping[str, Any] | None = None
) -> Iterator[str]:
    """Yield the locations of files, given as paths or URLs, with options by scheme."""
    real = cache(os.path.realpath)  # files lie in few folders
    for url in urls:
        scheme, found, path = url.partition("://")
        if found and scheme not in {"file", "local"}:
            yield _remote(url, (options or {}).get(scheme, {}), "")
        else:
            folder, name = os.path.split(path if found else url)
            yield f"{real(folder)}/{name}"


def _file_system_of(store: Any) -> Any:
    """Return the fsspec file system that a store reads through; None if there is none."""
    store = unwrap(store)
    if isinstance(store, FsspecStore):
        return store.file_system()
    if isinstance(store, MemoryStore):
        return getattr(store.values, "fs", None)
    store = store.store if isinstance(store, ZarrPythonStore) else store
    return getattr(_innermost(store), "fs", None)


def _references(fs: Any) -> Iterator[str]:
    """Yield the locations of the data that a reference file system (kerchunk) is made of."""
    fs, _ = unwrapped(fs, "")
    references = getattr(fs, "references", None)
    if type(fs).__name__ != "ReferenceFileSystem" or references is None:
        return
    values = islice(references.values(), _MOST_REFERENCES)
    urls = {str(one[0]) for one in values if isinstance(one, list | tuple) and one and one[0]}
    options = {scheme: getattr(one, "storage_options", {}) for scheme, one in fs.fss.items()}
    yield from _places_of_files(urls, options)


def _innermost(store: Any) -> Any:
    """Return the innermost store in nested wrapper stores of zarr-python."""
    while (wrapped := getattr(store, "_store", None)) is not None:
        store = wrapped
    return store


def place_in_zarr_python(store: Any, path: str) -> str | None:
    """Return the location of a node in a store of zarr-python; None if it is unknown."""
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
    fs, root = unwrapped(fs, root)
    if is_local(fs):
        return os.path.realpath(f"{root}/{path}")
    return _remote(fs.unstrip_protocol(root), fs.storage_options, path)


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


def place_in_tensorstore(kvstore: Any) -> str | None:
    """Return the location of a key-value store of tensorstore; None if it is unknown."""
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


def blocking_file(store: Store, path: str) -> str | None:
    """Return the file at a local path or above it that prevents folders; None if there is none."""
    place = local_path(store, path)
    if place is None:
        return None
    place = place or "/"
    found = next(filter(os.path.lexists, (place, *folders_around(place))))
    return None if os.path.isdir(found) else found


def folders_around(path: str) -> Iterator[str]:
    """Yield the folder that an absolute path lies in, the one around that, and so on.

    Examples
    --------
    >>> list(folders_around("/data/a.zarr")), list(folders_around("/"))
    (['/data', '/'], [])
    """
    while (above := os.path.dirname(path)) != path:
        yield above
        path = above


def check_folder(store: Store, path: str, what: str) -> None:
    """Raise if a folder cannot be created; `what` names the option that needs it.

    Raises
    ------
    StoreError
        If a file is in the way.
    """
    found = blocking_file(store, path)
    if found is not None:
        raise StoreError(
            f"{what} needs a folder at {local_path(store, path)}, but {found} is a file, or a link "
            "that leads nowhere; nothing was written. Choose another place."
        )


def check_file(store: Store, key: str, what: str) -> None:
    """Raise if a file cannot be written; `what` names the option that needs it.

    Raises
    ------
    StoreError
        If there is a folder, or a file is in place of its parent folder.
    """
    place = local_path(store, key)
    if place is None:
        return
    if Path(place).is_dir():
        raise StoreError(
            f"{what} names {place}, which is a folder; nothing was written. Name a file."
        )
    check_folder(store, key.rpartition("/")[0], what)
