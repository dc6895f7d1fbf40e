"""File systems of fsspec in this process: opened and cached by URL, and their methods called.

Each process finds the file system of a store in a cache (`file_system_at`). Clients are made anew
when their credentials have expired (`with_renewal`).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from inspect import iscoroutinefunction
from typing import Any, TypeVar
from urllib.parse import urlsplit

from zarr_dask._util.keywords import did_you_mean
from zarr_dask.errors import (
    AccessDeniedError,
    MissingDependencyError,
    StoreArgumentError,
    StoreError,
)
from zarr_dask.stores.backends.fsspec_open_file import turn_of
from zarr_dask.stores.backends.fsspec_retries import leave_retries_to_us
from zarr_dask.stores.backends.fsspec_s3 import check_known, config_for
from zarr_dask.stores.backends.reference_targets import (
    PLACES,
    confine,
    document_of,
    explaining,
    state_of,
)
from zarr_dask.stores.client_renewal import ClientRenewal
from zarr_dask.stores.error_mapping import library_errors
from zarr_dask.stores.option_mapping import SCHEMES, WEB, environment_hash, to_fsspec_options
from zarr_dask.stores.retry import DEFAULT
from zarr_dask.stores.secrets import redacted
from zarr_dask.stores.url_secrets import restore_query

__all__ = [
    "RENEWAL",
    "REQUEST_SECONDS",
    "bucket_is_there",
    "call_in_turn",
    "call_method",
    "file_system_at",
    "has_no_folders",
    "is_async",
    "lies_in_one_zone",
    "run_async",
    "with_renewal",
]

REQUEST_SECONDS = 900.0
"""Seconds for any request: a file system may have no timeout of its own."""
_INSIDE_FILES = {"libarchive", "reference", "tar", "zip"}
"""Schemes of what lies in one file, which is named by an option or after ``::``."""
_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "oss", "obs", "cos", "tos"}
_LAYOUT_SECONDS = 0.5  # for retries of a request that gcsfs does without, if need be
_REFUSED = "Bad Request: "  # gcsfs's word for an answer with "invalid" in it, in a ValueError
_MOST_SERVICES = 16  # file systems, with their clients, that a process keeps

_Result = TypeVar("_Result")


def _no_store(url: str, options: str, error: BaseException) -> StoreError:
    words = redacted(str(error) or type(error).__name__, json.loads(options))
    if type(error) is KeyError:
        words = f"{words} is missing in the options"
    hint = " In a chain, options are named by scheme: {'s3': {...}}." if "::" in url else ""
    scheme = url.partition("://")[0]
    if scheme not in SCHEMES and "::" not in url:
        hint = did_you_mean(scheme, SCHEMES)
    if scheme in _INSIDE_FILES and "::" not in url:
        file = url.partition("://")[2] or "FILE"
        hint = (
            f" {scheme}:// needs the file that it reads: write {scheme}://::{file}, or give it as "
            "storage_options={'fo': ...}."
        )
        if scheme == "zip":
            hint = f" An archive is opened as {file!r} or 'zip://::{file}'."
    kind = StoreArgumentError if isinstance(error, ValueError | TypeError) else StoreError
    return kind(f"no store at {url}: {words.rstrip('.')}.{hint}")


@lru_cache(maxsize=64)
def bucket_is_there(url: str, options: str, second: int) -> bool:  # noqa: ARG001
    """True if the bucket of a missing key exists; checked at most once a second.

    Only services whose file system does not report what is missing are queried. Also True for the
    others, and if the service refuses the request.
    """
    fs, root = file_system_at(url, options, DEFAULT.timeout)
    bucket = root.partition("/")[0]
    scheme = url.partition("://")[0]
    try:
        if scheme in {"gs", "gcs"}:
            fs.call("GET", "b/{}/o", bucket, maxResults=1, json_out=True)
        elif scheme in {"az", "abfs"}:
            fs.info(bucket, refresh=True)
    except FileNotFoundError:
        return False
    except library_errors():
        return True
    return True


@lru_cache(maxsize=64)
def lies_in_one_zone(url: str, options: str) -> bool:
    """True if values of a bucket of Google's are read and put over gRPC, by gcsfs alone."""
    fs, root = file_system_at(url, options, DEFAULT.timeout)
    is_zonal = getattr(fs, "_is_zonal_bucket", None)
    try:
        return is_zonal is not None and bool(run_async(fs, is_zonal(root.partition("/")[0])))
    except library_errors():
        return False


def file_system_at(url: str, options: str, timeout: float, retries: int = 0) -> tuple[Any, str]:
    """Return the file system of this process and the path of the root on it.

    Its timeout and number of retries are set to these, if it supports that.
    """
    scheme, _, place = url.partition("://")
    service = scheme in SCHEMES and scheme not in WEB and "::" not in url
    around: Hashable = environment_hash(scheme)
    if url.startswith("reference:"):  # one that is written again is read again
        around = (around, state_of(document_of(url, json.loads(options))))
    try:
        if not service or set(place) & {"@", "?"}:  # these have a meaning for file systems
            fs, root = _opened(url, options, timeout, retries, around)
        else:
            fs, _ = _opened(f"{scheme}://", options, timeout, retries, around)
            root = fs._strip_protocol(url)  # noqa: SLF001  (as in fsspec's own function)
    except ImportError as error:
        raise MissingDependencyError(
            f"{url} needs a package that is not installed: {error}"
        ) from error
    except (LookupError, ValueError, TypeError) as error:
        raise _no_store(url, options, error) from None
    except library_errors() as error:
        raise _no_store(url, options, error) from None
    return fs, root.rstrip("/")


@lru_cache(maxsize=_MOST_SERVICES)
def _opened(
    url: str,
    options: str,
    timeout: float,
    retries: int,
    around: Hashable,  # noqa: ARG001
) -> tuple[Any, str]:
    """Return a file system and a path on it.

    Those of services are cached here, in a bounded cache. fsspec would keep each one as long as the
    process lives, one for each thread, and the clients of S3 take 13 MB each.
    """
    from fsspec.core import url_to_fs

    given = to_fsspec_options(url, json.loads(options))
    refers = url.startswith("reference:")
    places = given.pop(PLACES, None) if refers else None
    place = restore_query(url, given)
    if refers:
        given["skip_instance_cache"] = True  # it gets rules of its own
    if "::" not in url and urlsplit(url).scheme in {*SCHEMES} - WEB:
        given["skip_instance_cache"] = True
    plain = urlsplit(url).scheme in {"s3", "s3a"} and "::" not in url
    if plain:
        check_known(given)
        given["config_kwargs"] = config_for(given.get("config_kwargs"), timeout, retries)
    if urlsplit(url).scheme in {"gs", "gcs"}:  # gcsfs asks for the kind of a bucket
        given = {"retry_timeout": _LAYOUT_SECONDS, **given}
    document = document_of(url, given)
    with explaining(document) if refers else nullcontext():
        if refers:
            from zarr_dask.stores.backends.json_references import reference_options

            given = reference_options(document, given)
            place = f"reference://{place.partition('::')[0].partition('://')[2]}"
        fs, root = url_to_fs(place, **given)
    if "::" not in url:
        leave_retries_to_us(fs)
    if refers:
        confine(fs, document, places)
    return fs, root


RENEWAL = ClientRenewal(_opened.cache_clear)
"""Makes clients anew when their credentials have expired."""

if hasattr(os, "register_at_fork"):  # a child has file systems of its own
    os.register_at_fork(after_in_child=_opened.cache_clear)


def with_renewal(attempt: Callable[[], _Result]) -> _Result:
    """Return the result of an attempt; if the credentials have expired, of one with others."""
    sent = time.monotonic()
    try:
        return attempt()
    except AccessDeniedError as error:
        if not error.expired:
            raise
    RENEWAL.forget_clients(sent)
    return attempt()


def call_method(
    fs: Any, method: str, *args: Any, seconds: float = REQUEST_SECONDS, **kwargs: Any
) -> Any:
    """Call a method of a file system, with a timeout if its requests run on an event loop."""
    inner = getattr(fs, f"_{method}", None)
    if is_async(fs) and iscoroutinefunction(inner):
        return run_async(fs, inner(*args, **kwargs), seconds)
    with _refusals_as_errors():
        return call_in_turn(fs, method, *args, **kwargs)


@contextmanager
def _refusals_as_errors() -> Iterator[None]:
    """Raise `OSError` for what a service has refused, where gcsfs raises `ValueError`."""
    try:
        yield
    except ValueError as error:
        if not str(error).startswith(_REFUSED):
            raise
        raise OSError(str(error)) from error


def call_in_turn(fs: Any, method: str, *args: Any, **kwargs: Any) -> Any:
    """Call a method of a file system, alone where it takes one question at a time."""
    with turn_of(fs):
        return getattr(fs, method)(*args, **kwargs)


def has_no_folders(fs: Any) -> bool:
    """True if a file system is an object store's, whose folders are but the starts of keys."""
    protocols = fs.protocol if isinstance(fs.protocol, tuple | list) else (fs.protocol,)
    return not _OBJECT_STORES.isdisjoint(protocols)


def is_async(fs: Any) -> bool:
    """True if the requests of a file system run on fsspec's event loop."""
    from fsspec.asyn import AsyncFileSystem
    from fsspec.implementations.dirfs import DirFileSystem

    if isinstance(fs, DirFileSystem):  # it claims to be async whatever file system it wraps
        return is_async(fs.fs)
    return isinstance(fs, AsyncFileSystem) and bool(fs.async_impl)


def run_async(fs: Any, what: Any, seconds: float = REQUEST_SECONDS) -> Any:
    """Return the result of a coroutine, run on fsspec's event loop in this process."""
    from fsspec.asyn import sync

    async def wait() -> Any:
        return await what

    with _refusals_as_errors():
        return sync(fs.loop, wait, timeout=seconds)
