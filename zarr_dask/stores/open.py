"""Opening stores by the paths, URLs and objects that users pass."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, MutableMapping
from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import urlsplit

from zarr_dask.errors import StoreError
from zarr_dask.stores.backends.local import LocalStore
from zarr_dask.stores.backends.memory import MemoryStore
from zarr_dask.stores.backends.zarr_python import place_in_zarr_python, store_of_zarr_python
from zarr_dask.stores.backends.zip import ZipStore
from zarr_dask.stores.base import Store, join
from zarr_dask.stores.option_checks import check_number, check_options
from zarr_dask.stores.option_mapping import (
    SCHEMES,
    WEB,
    fsspec_configuration,
    in_reach_of_obstore,
    place_of,
    serves,
)
from zarr_dask.stores.parse_url import absolute, spelled
from zarr_dask.stores.retry import DEFAULT, Retrying, RetryPolicy, policy_of
from zarr_dask.stores.url_secrets import shown
from zarr_dask.stores.wrappers.adapter import completed
from zarr_dask.stores.wrappers.base import Below, Wrapper, innermost
from zarr_dask.stores.wrappers.cache import Cache

__all__ = [
    "BACKEND",
    "Location",
    "backend_of",
    "bare",
    "beside",
    "inside",
    "local_path",
    "located",
    "open_alike",
    "open_store",
    "overlap",
    "real_place",
]

BACKEND = "ZARR_DASK_BACKEND"
"""The environment variable that chooses what serves URLs, as ``backend`` does."""

Location = str | os.PathLike[str] | Store | MutableMapping[str, bytes]
"""A location: a path, a ``file://`` URL, a store, or a mapping from keys to bytes.

Stores, arrays and groups of zarr-python are accepted too.
"""


def open_store(url: Location, storage_options: Mapping[str, Any] | None = None) -> Store:
    """Return the store at a path or URL; stores are returned unchanged.

    Parameters
    ----------
    url
        A path, a URL, a store or a mapping.
    storage_options
        Options of the store: ``fsync`` for local files, ``largest`` for zip archives, ``headers``
        and ``timeout`` for HTTP; fsspec's own for any other URL. S3, Google Cloud Storage and Azure
        accept the same options with obstore and fsspec. obstore is used if it is installed and
        supports all given options. ``backend="obstore"`` or ``backend="fsspec"`` overrides this,
        or else the environment's ``ZARR_DASK_BACKEND`` does. HTTP, which uses neither by default,
        accepts ``backend``, too. All of these accept ``retry`` as well: a `RetryPolicy`, its fields
        as a mapping, or None for no retries.

    Raises
    ------
    StoreError
        If no backend serves the URL, or an option is unknown.
    """
    if storage_options is not None and not isinstance(storage_options, Mapping):
        raise StoreError(f"storage_options={_shortened(storage_options)}: expected a mapping.")
    options = dict(storage_options or {})
    foreign = store_of_zarr_python(url)
    if foreign is not None:
        return _without_options(foreign, options)
    own = completed(url)
    if own is not None:
        return _without_options(own, options)
    if isinstance(url, MutableMapping):
        return _without_options(_mapped(url) or MemoryStore.over(url), options)
    text = os.fspath(url) if isinstance(url, os.PathLike) else url
    # "" would be the current folder, but is more likely a missing name
    if not isinstance(text, str) or not text or "\0" in text:
        raise StoreError(
            f"{_shortened(url)} does not name a store: expected a path, a URL, a store or a "
            "mapping."
        )
    scheme, text = spelled(text)
    if not scheme:
        return _local(text, options)
    if scheme in SCHEMES and "::" not in text and not place_of(text).bucket:
        raise StoreError(f"{shown(text)!r} names no place: expected {scheme}://NAME/PATH.")
    policy = policy_of(options.pop("retry", DEFAULT))
    check_options(shown(text), options)
    if scheme in WEB and not (options.get("backend") or os.environ.get(BACKEND)):
        from zarr_dask.stores.backends.http import HTTPStore

        options.pop("backend", None)
        return HTTPStore.from_url(text, options, policy)
    return _remote(text, options, policy)


def open_alike(url: Location, like: Store) -> Store:
    """Return the store at a path or URL, with the options of another store of the same service.

    So journals, manifests and intermediate arrays can be put into the object store that a job
    writes to. Options, which may be credentials, are not sent to other hosts.
    """
    from zarr_dask.stores.backends.fsspec import FsspecStore
    from zarr_dask.stores.backends.obstore import ObstoreStore

    other = innermost(like)
    if isinstance(url, str) and "::" not in url and isinstance(other, FsspecStore | ObstoreStore):
        one, another = urlsplit(url), urlsplit(other.url)
        buckets = one.scheme in SCHEMES and one.scheme not in WEB
        same_host = buckets or one.netloc == another.netloc
        if one.scheme == another.scheme and same_host:
            return type(other).from_url(url, other.settings(), other.policy)
    return open_store(url)


def _mapped(mapping: Any) -> Store | None:
    """Return the store behind a mapping of fsspec over an object store; None for any other.

    The mapping itself would report a missing bucket as empty.
    """
    mapper = getattr(sys.modules.get("fsspec.mapping"), "FSMap", None)
    fs: Any = getattr(mapping, "fs", None)
    if mapper is None or type(mapping) is not mapper or fs.storage_args:
        return None
    scheme = fs.protocol if isinstance(fs.protocol, str) else fs.protocol[0]
    url = f"{scheme}://{mapping.root}"
    if scheme not in SCHEMES or scheme in WEB or set(mapping.root) & {"@", "?"}:
        return None
    from zarr_dask.stores.backends.fsspec import FsspecStore

    try:
        check_options(url, fs.storage_options)
        return FsspecStore.from_url(url, fs.storage_options)
    except StoreError:  # it has options that cannot be pickled, or must not be shown
        return None


def _shortened(given: Any) -> str:
    """Return the repr on one short line, because that of an array has many."""
    text = " ".join(repr(given).split())
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


_LONGEST_SHOWN = 200


def _remote(url: str, options: dict[str, Any], policy: RetryPolicy) -> Store:
    """Return the store at a URL by obstore, which is faster, or fsspec, which supports more."""
    from zarr_dask.stores.backends.fsspec import FsspecStore
    from zarr_dask.stores.backends.obstore import ObstoreStore

    scheme = place_of(url).scheme
    check_options(url, fsspec_configuration(scheme), f"fsspec's configuration of {scheme!r}: ")
    by_name = bool(options.get("backend"))
    chosen = options.pop("backend", None) or os.environ.get(BACKEND)
    if chosen not in {None, "fsspec", "obstore"}:
        raise StoreError(
            f"storage_options['backend'], or the environment's {BACKEND}, is {chosen!r}: expected "
            "'fsspec' or 'obstore', or none."
        )
    if chosen == "obstore" and not by_name and not in_reach_of_obstore(url):
        chosen = None  # the environment chooses only if there is a choice
    if chosen == "obstore" or (chosen is None and serves(url, options)):
        return ObstoreStore.from_url(url, options, policy)
    return FsspecStore.from_url(url, options, policy)


def backend_of(store: Store) -> str | None:
    """Return the backend of a store, if there is a choice: "obstore" or "fsspec"."""
    from zarr_dask.stores.backends.fsspec import FsspecStore
    from zarr_dask.stores.backends.obstore import ObstoreStore

    store = innermost(store)
    if isinstance(store, ObstoreStore):
        return "obstore"
    return "fsspec" if isinstance(store, FsspecStore) else None


def located(url: Location, path: str) -> tuple[Location, str]:
    """Return the store and path of a location; a node of zarr-python may add to the path."""
    place = place_in_zarr_python(url)
    return (url, path) if place is None else (place[0], join(place[1], path))


def _local(path: str, options: dict[str, Any]) -> LocalStore | ZipStore:
    root = absolute(path)
    archive, folder = _archive_of(root)
    if archive:
        largest = {}
        if "largest" in options:
            largest["largest"] = check_number(root, "largest", options.pop("largest"), int)
        return _without_options(ZipStore.from_path(archive, folder, **largest), options)
    fsync = options.pop("fsync", False)
    if not isinstance(fsync, bool):
        raise StoreError(f"{root}: storage_options['fsync'] is {fsync!r:.100}, expected a bool.")
    options.pop("auto_mkdir", None)  # fsspec's: folders are always created
    return _without_options(LocalStore(root, fsync), options)


def _archive_of(path: str) -> tuple[str, str]:
    """Return the zip archive that a path is, would be or leads into, and the path in it; or ""."""
    archive = path
    while not os.path.lexists(archive) and not archive.lower().endswith(".zip") and archive != "/":
        archive = os.path.dirname(archive)
    if _is_archive(archive):
        return archive, path[len(archive) + 1 :]
    return "", ""


def _is_archive(path: str) -> bool:
    """True if a path is, or would be, a zip archive: a file that looks like one, or no folder."""
    if os.path.isdir(path):
        return False
    if path.lower().endswith(".zip"):
        return True
    if not os.path.isfile(path):
        return False
    try:
        with open(path, "rb") as file:
            return file.read(2) == b"PK"
    except OSError:
        return False


_LONGEST_NAME = 255  # limit of file systems in bytes
_AnyStore = TypeVar("_AnyStore", bound=Store)


def _without_options(store: _AnyStore, options: Mapping[str, Any]) -> _AnyStore:
    if options:
        raise StoreError(
            f"storage_options {sorted(options)} mean nothing to {store.url}: local files take "
            "'fsync', zip archives 'largest'; stores, mappings and open nodes take none."
        )
    return store


def beside(store: Store, suffix: str) -> tuple[Store, str] | None:
    """Return the parent of a store and a path in it, made of its name and a suffix; None if none.

    Examples
    --------
    >>> beside(LocalStore("/data/a.zarr"), ".part")
    (LocalStore(root='/data', fsync=False), 'a.zarr.part')
    """
    if isinstance(store, Cache | Retrying):
        return beside(store.store, suffix)
    if isinstance(store, LocalStore) and store.root != "/":
        folder, name = os.path.split(store.root)
        if "\\" in name or len(os.fsencode(name + suffix)) > _LONGEST_NAME:
            return None  # a folder may have such a name, a key may not
        return LocalStore(folder, store.fsync), name + suffix
    from zarr_dask.stores.backends.fsspec import FsspecStore
    from zarr_dask.stores.backends.obstore import ObstoreStore

    if isinstance(store, FsspecStore | ObstoreStore):
        parent = _parent_of_url(store.url)
        if parent is not None:
            folder, name = parent
            return replace(store, url=folder), name + suffix
    return None


def _parent_of_url(url: str) -> tuple[str, str] | None:
    """Return the parent URL and a name; None for buckets, which have no parent, and for chains."""
    scheme, _, rest = url.partition("://")
    folder, _, name = rest.rpartition("/")
    if "::" in url or "?" in url or not folder.strip("/") or not name:
        return None
    return f"{scheme}://{folder}", name


def inside(store: Store, path: str) -> Store:
    """Return a store of its own for everything below a path of a store.

    Examples
    --------
    >>> inside(LocalStore("/data"), "a.zarr")
    LocalStore(root='/data/a.zarr', fsync=False)
    """
    if isinstance(store, LocalStore):
        return LocalStore(f"{store.root}/{path}", store.fsync)
    return Below(store, f"{path}/")


def real_place(store: Store, path: str) -> str:
    """Return the location of a node, with links resolved and wrappers removed.

    It does not depend on the root from which the node is named, so that `overlap` can compare two.

    Examples
    --------
    >>> real_place(LocalStore("/data"), "a/b") == real_place(LocalStore("/data/a"), "b")
    True
    """
    store, path = bare(store, path)
    if isinstance(store, LocalStore):  # any part of the path may be a link
        return os.path.realpath(f"{store.root}/{path}")
    url, mark, options = store.identity.rpartition("#")
    if mark and url == store.url:  # the digest of the options must not split the path
        return f"{options}#{url.rstrip('/')}/{path}".rstrip("/")
    return f"{store.identity}/{path}".rstrip("/")


def local_path(store: Store, path: str) -> str | None:
    """Return the path of a file or folder behind all wrappers; None if the store is not local.

    Examples
    --------
    >>> local_path(LocalStore("/data"), "a.zarr")
    '/data/a.zarr'
    """
    store, path = bare(store, path)
    return os.path.join(store.root, path).rstrip("/") if isinstance(store, LocalStore) else None


def bare(store: Store, path: str) -> tuple[Store, str]:
    """Return the store behind all wrappers, and the path in it."""
    while isinstance(store, Wrapper):
        if isinstance(store, Below):
            path = join(store.prefix.rstrip("/"), path)
        store = store.store
    return store, path


def overlap(a: str, b: str) -> bool:
    """True if one location is the other or lies within it.

    Examples
    --------
    >>> overlap("/data/a", "/data/a/b"), overlap("/data/a", "/data/ab")
    (True, False)
    """
    return a == b or a.startswith(f"{b}/") or b.startswith(f"{a}/")
