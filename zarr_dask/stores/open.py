"""Opening stores by the paths, URLs and objects that users pass."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from zarr_dask.errors import (
    LocationTypeError,
    MissingDependencyError,
    StoreArgumentError,
    StoreError,
)
from zarr_dask.stores.backends.local import LocalStore
from zarr_dask.stores.backends.memory import MemoryStore
from zarr_dask.stores.base import Store, join
from zarr_dask.stores.file_backed import FileStore
from zarr_dask.stores.locations import (
    expand_path,
    is_file_system,
    is_local,
    named_place,
    parse_location,
    path_on,
    unwrapped,
    values_of_obstore,
    without_session,
)
from zarr_dask.stores.wrapper import StoreWrapper, unwrap
from zarr_dask.stores.wrappers.base import PrefixStore

if TYPE_CHECKING:
    from zarr_dask.stores.backends.zip import ZipStore
    from zarr_dask.stores.retry import RetryPolicy

__all__ = [
    "BACKEND",
    "Location",
    "backend_of",
    "canonical_location",
    "contains_or_equal",
    "folder_store",
    "local_path",
    "local_root",
    "location_below",
    "open_store",
    "open_with_options_of",
    "sibling_location",
    "split_zarr_python_node",
    "substore",
    "unwrap_with_path",
    "without_folder",
]

_LOG = logging.getLogger(__name__)

BACKEND = "ZARR_DASK_BACKEND"
"""The environment variable that chooses what serves URLs, as ``backend`` does."""

Location = str | os.PathLike[str] | Store | MutableMapping[str, bytes]
"""A location: a path, a ``file://`` URL, a store, or a mapping from keys to bytes.

Stores, arrays and groups of zarr-python, repositories and sessions of Icechunk, stores of obstore,
paths of universal_pathlib and file systems of fsspec (with a path) are accepted too.
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
        raise LocationTypeError(
            f"storage_options={_shortened(storage_options)}: expected a mapping."
        )
    options = without_session(storage_options or {})
    if not isinstance(url, str):
        named = named_place(url)
        if named is not None:
            place, own = named
            return open_store(place, {**own, **options})
        given = _given_store(url)
        if given is not None:
            return _without_options(given, options)
    text = os.fspath(url) if isinstance(url, os.PathLike) else url
    # "" would be the current folder, but is more likely a missing name
    if not isinstance(text, str):
        raise LocationTypeError(
            f"{_shortened(url)} does not name a store: expected a path, a URL, a store or a "
            f"mapping.{_meant(url)}"
        )
    if not text or "\0" in text:
        raise StoreArgumentError(
            f"{_shortened(url)} does not name a store: expected a path, a URL, a store or a "
            "mapping."
        )
    scheme, text = parse_location(text)
    if not scheme:
        return _local(text, options)
    from zarr_dask.stores.registry import open_registered

    registered = open_registered(scheme, text, options)
    return _at_url(scheme, text, options) if registered is None else registered


def _check_bucket(url: str) -> None:
    """Raise if a URL has no bucket, or one whose name S3 does not allow.

    Other services say so themselves; gateways of S3 may answer as if permissions lacked.

    Raises
    ------
    StoreError
        If there is none.

    Examples
    --------
    >>> _check_bucket("s3://bucket/a")
    >>> _check_bucket("s3://My bucket/a")
    Traceback (most recent call last):
    zarr_dask.errors.StoreError: 's3://My bucket/a': 'My bucket' is not the name of a bucket: \
expected letters, digits, dots, hyphens and underscores.
    """
    from zarr_dask.stores.option_mapping import SCHEMES, place_of
    from zarr_dask.stores.url_secrets import redact_url

    scheme, bucket, _ = place_of(url)
    if "::" in url or scheme not in SCHEMES:
        return
    if not bucket:
        raise StoreError(f"{redact_url(url)!r} names no place: expected {scheme}://NAME/PATH.")
    if scheme in {"s3", "s3a"} and not _BUCKET.fullmatch(bucket):
        raise StoreError(
            f"{redact_url(url)!r}: {redact_url(bucket)!r} is not the name of a bucket: expected "
            "letters, digits, dots, hyphens and underscores."
        )


_BUCKET = re.compile(r"[\w.-]{1,255}|arn:.*|.*[@?].*", re.ASCII)  # with logins and queries too


def _at_url(scheme: str, text: str, options: dict[str, Any]) -> Store:
    """Return the store at a URL that this package serves."""
    from zarr_dask.stores.credential_functions import PROVIDER, name_of
    from zarr_dask.stores.option_checks import check_options
    from zarr_dask.stores.option_mapping import WEB
    from zarr_dask.stores.retry import DEFAULT, parse_retry_policy
    from zarr_dask.stores.url_secrets import redact_url

    _check_bucket(text)
    policy = parse_retry_policy(options.pop("retry", DEFAULT))
    if callable(options.get(PROVIDER)):
        options[PROVIDER] = name_of(options[PROVIDER], redact_url(text))
    check_options(redact_url(text), options)
    if scheme in WEB and not (options.get("backend") or os.environ.get(BACKEND)):
        from zarr_dask.stores.backends.http import HTTPStore

        options.pop("backend", None)
        return HTTPStore.from_url(text, options, policy)
    return _remote(text, options, policy)


def _given_store(url: Any) -> Store | None:
    """Return the store that an object is or stands for; None for paths and URLs."""
    from zarr_dask.stores.backends.zarr_python import store_of_zarr_python
    from zarr_dask.stores.wrappers.adapter import adapt_store

    store = store_of_zarr_python(url) or values_of_obstore(url) or adapt_store(url)
    if store is not None:
        return store
    if is_file_system(url):
        raise StoreError(
            f"{type(url).__name__} is a file system, which names no place by itself: give path= "
            "with the bucket or folder, or file_system.get_mapper(path)."
        )
    if type(url).__module__.partition(".")[0] == "h5py":
        raise LocationTypeError(
            f"{_shortened(url)} is no place for Zarr: zarr_dask.ingest(path, url) writes HDF5 "
            "files into a store, and dask.array.from_array(dataset) opens one array."
        )
    if isinstance(url, dict) and "kvstore" in url:
        raise LocationTypeError(
            f"{_shortened(url)} is a specification of TensorStore: give the path or URL in it."
        )
    return _mapped(url) or MemoryStore.over(url) if isinstance(url, MutableMapping) else None


def _meant(url: object) -> str:
    """Return a hint for several locations at once, or for an array."""
    if isinstance(url, list | tuple) and len(url) > 1:
        return (
            " Open them one by one, or together as xarray.open_mfdataset(urls, engine='zarr_dask')."
        )
    if hasattr(url, "data_vars"):
        return (
            " It is open already; zarr_dask.write_dataset(dataset, url) writes one to a location."
        )
    if hasattr(url, "__array__") or hasattr(url, "__dask_graph__"):
        return " zarr_dask.to_zarr(array, url) writes an array to a location."
    return ""


def open_with_options_of(url: Location, like: Store) -> Store:
    """Return the store at a path or URL, with the options of another store of the same service.

    So journals, manifests and intermediate arrays can be put into the object store that a job
    writes to. Options, which may be credentials, are not sent to other hosts.
    """
    from zarr_dask.stores.backends.fsspec import FsspecStore
    from zarr_dask.stores.backends.obstore import ObstoreStore
    from zarr_dask.stores.option_mapping import SCHEMES, WEB

    other = unwrap(like)
    if isinstance(url, str) and "::" not in url and isinstance(other, FsspecStore | ObstoreStore):
        one, another = urlsplit(url), urlsplit(other.url)
        buckets = one.scheme in SCHEMES and one.scheme not in WEB
        same_host = buckets or one.netloc == another.netloc
        if one.scheme == another.scheme and same_host:
            return type(other).from_url(url, other.settings(), other.policy)
    return open_store(url)


def _mapped(mapping: Any) -> Store | None:
    """Return the store behind a mapping of fsspec over files or an object store; None for others.

    The mapping itself belongs to one process, and would report a missing bucket as empty.
    """
    from zarr_dask.stores.option_checks import check_options
    from zarr_dask.stores.option_mapping import SCHEMES, WEB

    mapper = getattr(sys.modules.get("fsspec.mapping"), "FSMap", None)
    if mapper is None or type(mapping) is not mapper:
        return None
    fs, root = unwrapped(mapping.fs, mapping.root)
    if is_local(fs) and os.path.isabs(root):
        return LocalStore(root.rstrip("/"))
    if fs.storage_args:
        return None
    chain = _chain_of_cache(fs, root)
    if chain is not None:
        return open_store(*chain)
    scheme = fs.protocol if isinstance(fs.protocol, str) else fs.protocol[0]
    url = f"{scheme}://{root}"
    if scheme not in SCHEMES or scheme in WEB or set(root) & {"@", "?"}:
        return None
    from zarr_dask.stores.backends.fsspec import FsspecStore

    try:
        options = without_session(fs.storage_options)
        check_options(url, options)
        return FsspecStore.from_url(url, options)
    except StoreError:  # it has options that cannot be pickled, or must not be shown
        return None


def _chain_of_cache(fs: Any, root: str) -> tuple[str, dict[str, Any]] | None:
    """Return the URL and options of a path on a file system of fsspec that caches another one."""
    from zarr_dask.stores.option_checks import check_options

    options, kind = dict(fs.storage_options), type(fs).protocol
    scheme = kind if isinstance(kind, str) else kind[0]
    behind = options.pop("target_protocol", None)
    if scheme not in _CACHES or not isinstance(behind, str):
        return None
    found = {behind: options.pop("target_options", None) or {}, scheme: options}
    url = f"{scheme}::{behind}://{root}"
    try:
        check_options(url, found)
    except StoreError:  # it has options that cannot be pickled
        return None
    return url, found


_CACHES = {"blockcache", "filecache", "simplecache"}


def _shortened(given: Any) -> str:
    """Return the repr on one short line, because that of an array has many."""
    text = " ".join(repr(given).split())
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


_LONGEST_SHOWN = 200


def _remote(url: str, options: dict[str, Any], policy: RetryPolicy) -> Store:
    """Return the store at a URL by obstore, which is faster, or fsspec, which supports more."""
    from zarr_dask.stores.backends.fsspec import FsspecStore
    from zarr_dask.stores.backends.obstore import ObstoreStore
    from zarr_dask.stores.option_checks import check_options
    from zarr_dask.stores.option_mapping import (
        AWS_ENDPOINTS,
        check_names,
        fsspec_configuration,
        in_reach_of_obstore,
        obstore_supports,
        place_of,
    )
    from zarr_dask.stores.url_secrets import check_endpoint

    scheme = place_of(url).scheme
    check_options(url, fsspec_configuration(scheme), f"fsspec's configuration of {scheme!r}: ")
    check_names(url, options)
    if scheme in {"s3", "s3a"}:
        for name in AWS_ENDPOINTS:
            if os.environ.get(name):
                check_endpoint(os.environ[name], f"the environment's {name},")
    by_name = bool(options.get("backend"))
    chosen = options.pop("backend", None) or os.environ.get(BACKEND)
    if chosen not in {None, "fsspec", "obstore"}:
        raise StoreError(
            f"storage_options['backend'], or the environment's {BACKEND}, is {chosen!r}: expected "
            "'fsspec' or 'obstore', or none."
        )
    if chosen == "obstore" and not by_name and not in_reach_of_obstore(url):
        chosen = None  # the environment chooses only if there is a choice
    if chosen == "obstore" or (chosen is None and obstore_supports(url, options)):
        return ObstoreStore.from_url(url, options, policy)
    _explain_fsspec(url, options, is_chosen=chosen is not None)
    try:
        return FsspecStore.from_url(url, options, policy)
    except (MissingDependencyError, StoreArgumentError) as error:
        if chosen is None and in_reach_of_obstore(url):
            raise _neither(url, options, error) from error
        raise


def _explain_fsspec(url: str, options: Mapping[str, Any], *, is_chosen: bool) -> None:
    """Log why fsspec serves what obstore serves otherwise.

    Raises
    ------
    StoreArgumentError
        If fsspec cannot, because a function gives the credentials.
    """
    from zarr_dask.stores.credential_functions import PROVIDER
    from zarr_dask.stores.option_mapping import in_reach_of_obstore, refusal
    from zarr_dask.stores.url_secrets import redact_url

    if not in_reach_of_obstore(url):
        return
    why = "storage_options['backend'] or the environment says so"
    if not is_chosen:
        why = refusal(url, options) if find_spec("obstore") else "it is not installed"
        _LOG.info("%s is served by fsspec, not by obstore: %s", redact_url(url), why)
    if PROVIDER in options:
        raise StoreArgumentError(
            f"{redact_url(url)}: storage_options[{PROVIDER!r}] is for obstore, and fsspec serves "
            f"this: {why}."
        )


def _neither(url: str, options: Mapping[str, Any], error: Exception) -> Exception:
    """Return the error for a service that neither obstore nor fsspec can serve here.

    obstore's reason comes first: it says which option is missing, in the words of our docs.
    """
    from zarr_dask.stores.option_mapping import place_of, refusal
    from zarr_dask.stores.url_secrets import redact_url

    package = _FSSPEC_PACKAGES.get(place_of(url).scheme, "fsspec")
    absent = isinstance(error, MissingDependencyError)
    if find_spec("obstore") is None:
        if not absent:
            return error
        return MissingDependencyError(
            f"{redact_url(url)} needs obstore, which is not installed: pip install "
            f"'zarr-dask[obstore]' (or {package}: pip install "
            f"'zarr-dask[{_EXTRAS.get(package, package)}]')"
        )
    reason = refusal(url, options)
    if not reason or (not absent and options):
        return error  # which says more of options that are wrong
    if absent:
        others = f"Nor by {package}, which is not installed."
        return StoreError(f"{redact_url(url)} cannot be opened: {reason}. ({others})")
    return StoreArgumentError(f"{redact_url(url)} cannot be opened: {reason}. ({package}: {error})")


_FSSPEC_PACKAGES = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "az": "adlfs",
    "abfs": "adlfs",
    "http": "aiohttp",
    "https": "aiohttp",
}
_EXTRAS = {"s3fs": "s3", "gcsfs": "gcs", "adlfs": "azure"}


def backend_of(store: Store) -> str | None:
    """Return the backend of a store, if there is a choice: "obstore" or "fsspec"."""
    from zarr_dask.stores.backends.fsspec import FsspecStore
    from zarr_dask.stores.backends.obstore import ObstoreStore

    store = unwrap(store)
    if isinstance(store, ObstoreStore):
        return "obstore"
    return "fsspec" if isinstance(store, FsspecStore) else None


def split_zarr_python_node(url: Location, path: str) -> tuple[Location, str]:
    """Return the store and path of a location.

    A node of zarr-python may add to the path; on a file system of fsspec, the path is the place.
    """
    if isinstance(url, str):
        return url, path
    from zarr_dask.stores.backends.zarr_python import place_in_zarr_python

    if path and is_file_system(url):
        return path_on(url, path), ""
    place = place_in_zarr_python(url)
    return (url, path) if place is None else (place[0], join(place[1], path))


def without_folder(store: Store, path: str) -> str:
    """Return a path without the folder that all entries of a zip archive lie in.

    Keys do not have it, but it is part of the names that ``unzip -l`` shows. So both name a node.
    """
    place = unwrap(store)
    if isinstance(place, LocalStore):
        return path
    from zarr_dask.stores.backends.zip import ZipStore

    if not isinstance(place, ZipStore) or not place.folder:
        return path
    folder = place.folder.rstrip("/")
    if path != folder and not path.startswith(f"{folder}/"):
        return path
    if any(place.list_dir(f"{path}/")):
        return path  # a node of that name lies in the folder
    return path[len(folder) :].lstrip("/")


def _local(path: str, options: dict[str, Any]) -> LocalStore | ZipStore:
    root = expand_path(path)
    archive, folder = _archive_of(root)
    if archive:
        from zarr_dask.stores.backends.zip import ZipStore
        from zarr_dask.stores.option_checks import check_number

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
    while not os.path.lexists(archive) and not _names_archive(archive) and archive != "/":
        archive = os.path.dirname(archive)
    if _is_archive(archive):
        return archive, path[len(archive) + 1 :]
    return "", ""


def _names_archive(path: str) -> bool:
    """True if a path ends as those of zip archives do, also of OME-Zarr (``.ozx``)."""
    return path.lower().endswith((".zip", ".ozx"))


def _is_archive(path: str) -> bool:
    """True if a path is, or would be, a zip archive: a file that looks like one, or no folder."""
    if os.path.isdir(path):
        return False
    if _names_archive(path):
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
        raise StoreArgumentError(
            f"storage_options {sorted(options)} are not taken by {store.url}: local files take "
            "'fsync', zip archives 'largest'; stores, mappings and open nodes take none."
        )
    return store


def sibling_location(store: Store, suffix: str) -> tuple[Store, str] | None:
    """Return the parent of a store and a path in it, made of its name and a suffix; None if none.

    Examples
    --------
    >>> sibling_location(LocalStore("/data/a.zarr"), ".part")
    (LocalStore(root='/data', fsync=False), 'a.zarr.part')
    """
    from zarr_dask.stores.retry import Retrying
    from zarr_dask.stores.wrappers.cache import Cache

    if isinstance(store, Cache | Retrying):
        return sibling_location(store.store, suffix)
    beside = getattr(unwrap(store), "place_beside", None)
    if beside is not None:
        place, mark, given = beside
        return sibling_location(open_store(place, given), mark + suffix)
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


def folder_store(path: str, *, fsync: bool = False) -> FileStore:
    """Return the store of a local folder, whatever its name looks like."""
    return LocalStore(path, fsync)


def local_root(store: Store) -> str | None:
    """Return the folder or zip archive that a store is; None if it is not on this machine."""
    if isinstance(store, LocalStore):
        return os.path.realpath(store.root)
    from zarr_dask.stores.backends.zip import ZipStore

    return os.path.realpath(store.root) if isinstance(store, ZipStore) else None


def substore(store: Store, path: str) -> Store:
    """Return a store of its own for everything below a path of a store.

    Examples
    --------
    >>> substore(LocalStore("/data"), "a.zarr")
    LocalStore(root='/data/a.zarr', fsync=False)
    """
    if isinstance(store, LocalStore):
        return LocalStore(f"{store.root}/{path}", store.fsync)
    return PrefixStore(store, f"{path}/")


def canonical_location(
    store: Store, path: str, real: Callable[[str], str] = os.path.realpath
) -> str:
    """Return the location of a node, with links resolved (`real`) and wrappers removed.

    It does not depend on the root from which the node is named, so that `contains_or_equal` can
    compare two.

    Examples
    --------
    >>> here = canonical_location(LocalStore("/data"), "a/b")
    >>> here == canonical_location(LocalStore("/data/a"), "b")
    True
    """
    store, path = unwrap_with_path(store, path)
    if isinstance(store, LocalStore):  # any part of the path may be a link
        return real(f"{store.root}/{path}" if path else store.root)
    url, mark, options = store.identity.rpartition("#")
    if mark and url == store.url:  # the digest of the options must not split the path
        return f"{options}#{url.rstrip('/')}/{path}".rstrip("/")
    return f"{store.identity}/{path}".rstrip("/")


def location_below(store: Store, path: str, around: str) -> str:
    """Return the `canonical_location` of a node in a folder whose own is known already.

    Examples
    --------
    >>> location_below(MemoryStore(), "a/b", "x/a") == canonical_location(MemoryStore(), "a/b")
    False
    >>> location_below(LocalStore("/data"), "a/b", "/data/a")
    '/data/a/b'
    """
    inner, within = unwrap_with_path(store, path)
    if not isinstance(inner, LocalStore) or os.path.islink(f"{inner.root}/{within}"):
        return canonical_location(store, path)
    return f"{around.rstrip('/')}/{path.rpartition('/')[2]}"


def local_path(store: Store, path: str) -> str | None:
    """Return the path of a file or folder behind all wrappers; None if the store is not local.

    Examples
    --------
    >>> local_path(LocalStore("/data"), "a.zarr")
    '/data/a.zarr'
    """
    store, path = unwrap_with_path(store, path)
    return os.path.join(store.root, path).rstrip("/") if isinstance(store, LocalStore) else None


def unwrap_with_path(store: Store, path: str) -> tuple[Store, str]:
    """Return the store behind all wrappers, and the path in it."""
    while isinstance(store, StoreWrapper):
        if isinstance(store, PrefixStore):
            path = join(store.prefix.rstrip("/"), path)
        store = store.store
    return store, path


def contains_or_equal(a: str, b: str) -> bool:
    """True if one location is the other or lies within it.

    Examples
    --------
    >>> contains_or_equal("/data/a", "/data/a/b"), contains_or_equal("/data/a", "/data/ab")
    (True, False)
    """
    return a == b or a.startswith(f"{b}/") or b.startswith(f"{a}/")
