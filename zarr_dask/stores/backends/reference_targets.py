"""Places that references (kerchunk) may lead to: a document from elsewhere names any file or host.

A document that lies on another host leads neither to files of this machine nor to addresses of its
network, unless the user names these places. A document of the user's own may lead anywhere.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType, NoneType
from typing import Any
from urllib.parse import unquote, urlsplit

from zarr_dask.errors import MissingDependencyError, StoreError

__all__ = [
    "PLACES",
    "check_target",
    "confine",
    "document_of",
    "explaining",
    "is_entry",
    "is_parquet",
    "malformed",
    "pyarrow",
    "state_of",
]

PLACES = "reference_places"
"""The option that lists places: URLs and folders."""
_LOCAL = {"", "file", "local", "memory"}


def document_of(url: str, options: Mapping[str, Any]) -> str:
    """Return the location of the document of references; empty for one in memory.

    Examples
    --------
    >>> document_of("reference::https://example.org/refs.json", {})
    'https://example.org/refs.json'
    >>> document_of("reference://run::refs.json", {})
    'refs.json'
    """
    named = options.get("fo") or url.partition("::")[2]
    return named if isinstance(named, str) else ""


def is_parquet(document: str) -> bool:
    """True for the location of references in Parquet: by its name, as kerchunk and fsspec tell it.

    Examples
    --------
    >>> is_parquet("s3://bucket/run.parq"), is_parquet("run.json")
    (True, False)
    """
    return document.endswith(("/", ".parq", ".parquet"))


def pyarrow() -> ModuleType:
    """Return the package that reads and writes Parquet.

    Raises
    ------
    MissingDependencyError
        If it is not installed.
    """
    try:
        import_module("pyarrow.parquet")  # an attribute of the package from then on
        return import_module("pyarrow")
    except ImportError as error:
        raise MissingDependencyError(
            "references in Parquet are read and written by pyarrow: install zarr-dask[parquet]."
        ) from error


def state_of(document: str) -> tuple[int, ...]:
    """Return what changes when a document of this machine is written again; empty for others."""
    parts = urlsplit(document)
    if parts.scheme not in {"", "file", "local"}:
        return ()
    try:
        found = os.stat(parts.path if parts.scheme else document)
    except OSError:
        return ()
    return found.st_ino, found.st_mtime_ns, found.st_size


def confine(file_system: Any, document: str, places: Sequence[str] | None) -> None:
    """Let a reference file system of fsspec read from these places only; see `check_target`."""
    locate = file_system._cat_common  # noqa: SLF001  (where fsspec finds the target of a key)

    def located(path: str, start: int | None = None, end: int | None = None) -> Any:
        with explaining(document, path):  # entries are looked at when read
            found = locate(path, start, end)
            if found[0] is None:
                raise ValueError("no URL")
            if isinstance(found[0], str):
                if b"\0" in found[0].encode():  # lone surrogates are no UTF-8
                    raise ValueError("a URL with a NUL")
                check_target(found[0], document, places)
        if isinstance(found[0], str):
            _reach(file_system, found[0])
        return found

    def explained(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **options: Any) -> Any:
            with explaining(document, str(given[0]) if given else ""):
                return method(*given, **options)

        return call

    file_system._cat_common = located  # noqa: SLF001
    file_system.info = explained(file_system.info)
    file_system._dircache_from_items = explained(file_system._dircache_from_items)  # noqa: SLF001


def is_entry(entry: object) -> bool:
    """True for a text, bytes, or a list of a URL and perhaps an offset and a size.

    Anything else fsspec takes for something, or for nothing when it lists what there is. The URL
    may be None in the last form, for a target that the options name.
    """
    if type(entry) is not list:
        return isinstance(entry, str | bytes)
    if len(entry) != 3:
        return len(entry) == 1 and isinstance(entry[0], str)
    url, offset, size = entry
    is_place = isinstance(url, str | NoneType)
    return is_place and type(offset) is type(size) is int and offset >= 0 <= size


def _reach(file_system: Any, target: str) -> None:
    """Make a file system for the scheme of a target; fsspec has one for the first of a document."""
    scheme = target.partition("://")[0] if "://" in target else None
    if scheme not in file_system.fss:
        given = file_system.storage_options.get("remote_options")
        options = {"remote_protocol": scheme, "remote_options": given, "skip_instance_cache": True}
        file_system.fss[scheme] = type(file_system)({}, **options).fss[scheme]


@contextmanager
def explaining(document: str, path: str = "") -> Iterator[None]:
    """Raise a `StoreError` for what fsspec raises about malformed references."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise malformed(document, path, error) from error


def malformed(document: str, path: str, found: object) -> StoreError:
    """Return the error of an entry at a path, if that is known, of a document."""
    entry = f"a malformed entry for {path!r:.200}" if path else "a malformed entry"
    return StoreError(
        f"references in {document or 'memory'} have {entry} ({found}): expected a text, or a list "
        "of a URL and perhaps an offset and a size. Make the references anew."
    )


def check_target(target: str, document: str, places: Sequence[str] | None) -> None:
    """Raise if a reference may not lead to a target.

    Parameters
    ----------
    target
        Path or URL in the document.
    document
        Location of the document; empty for one in memory.
    places
        Places that the user names; None for the rule of the module.

    Raises
    ------
    StoreError
        If it may not.

    Examples
    --------
    >>> check_target("s3://data/a.nc", "https://example.org/refs.json", None)
    >>> check_target("/data/a.nc", "/data/refs.json", ["/data"])
    >>> check_target("file:///etc/passwd", "https://example.org/refs.json", None)
    Traceback (most recent call last):
    ...
    zarr_dask.errors.StoreError: references in https://example.org/refs.json lead to ...
    """
    if places is not None:
        if not any(_lies_in(target, place) for place in places):
            raise _refusal(target, document, f"which is in none of {list(places)}")
        return
    own = urlsplit(document)
    if own.scheme in _LOCAL:
        return
    parts = urlsplit(target)
    if parts.scheme in _LOCAL:
        raise _refusal(target, document, "a file of this machine")
    if parts.hostname != own.hostname and parts.hostname and _is_inside(parts.hostname):
        raise _refusal(target, document, "an address of this network")


def _refusal(target: str, document: str, what: str) -> StoreError:
    return StoreError(
        f"references in {document or 'the document'} lead to {target}, {what}. If this is meant, "
        f"name the place: storage_options={{'{PLACES}': ['...']}}."
    )


def _lies_in(target: str, place: str) -> bool:
    """True if a target is a place or lies below it; links and ".." are resolved."""
    one, other = _resolved(target), _resolved(place)
    return one == other or one.startswith(other.rstrip("/") + "/")


def _resolved(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme in {"", "file", "local"}:
        return os.path.realpath(os.path.expanduser(unquote(parts.path) if parts.scheme else url))
    return f"{parts.scheme}://{parts.netloc}{os.path.normpath(parts.path or '/')}"


def _is_inside(host: str) -> bool:
    """True for names and addresses of this machine and of private networks."""
    if host == "localhost" or host.endswith((".localhost", ".local", ".internal")):
        return True
    try:
        return not ipaddress.ip_address(host.strip("[]")).is_global
    except ValueError:
        return False
