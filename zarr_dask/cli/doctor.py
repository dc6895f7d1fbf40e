"""``zarr-dask doctor``: versions, stores and codecs found, and a URL tried step by step."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import click

import zarr_dask as zd
from zarr_dask._util.show_versions import versions
from zarr_dask.cli.errors import FINDING, as_options
from zarr_dask.cli.output import answer, echo, say_field, terminal_safe, wrapped
from zarr_dask.cli.settings import is_remote, storage_options
from zarr_dask.codecs.registry import v3_names
from zarr_dask.codecs.registry_numcodecs import numcodecs_names
from zarr_dask.errors import ListingError, ZarrDaskError
from zarr_dask.stores.open import backend_of, open_store
from zarr_dask.stores.patience import in_foreground

__all__ = ["doctor"]

_SECONDS = 5.0
"""Seconds until a host must have accepted a connection."""
_STORES = (
    ("S3", ("obstore", "s3fs"), "s3"),
    ("Google Cloud Storage", ("obstore", "gcsfs"), "gcs"),
    ("Azure", ("obstore", "adlfs"), "azure"),
    ("Icechunk", ("icechunk",), None),
)
"""Services, the packages that serve them, and the extra besides obstore."""
_OPTIONAL_CODECS = (("zfpy", "zfpy", "zfp"), ("pcodec", "pcodec", "pcodec"))
"""Codecs, the packages that they need, and the extras that install them."""


@dataclass(frozen=True)
class Step:
    """One step of trying a URL."""

    name: str
    ok: bool | None
    """None if it was not tried, or does not apply."""
    said: str


@click.command(
    epilog="""\b
Examples:
  zarr-dask doctor
  zarr-dask doctor s3://bucket/run-7.zarr --anon
"""
)
@click.argument("url", required=False)
def doctor(url: str | None) -> None:
    """Print versions, stores and codecs, and try a URL.

    URL is tried step by step: its name, the connection, the credentials, listing and reading. The
    exit code is 1 if a step fails. Nothing is written.
    """
    packages, stores, codecs = versions(), _stores(), _missing_codecs()
    say_field("versions", *(f"{name} {one}" for name, one in packages.items() if one))
    missing = [name for name, one in packages.items() if not one]
    say_field("not installed", ", ".join(missing) or "nothing")
    say_field("stores", *(f"{name}: {by}" for name, by in stores.items()))
    known = len({*v3_names(), *numcodecs_names()})
    say_field("codecs", f"{known} found", *(f"{name}: {why}" for name, why in codecs.items()))
    facts: dict[str, Any] = {
        "versions": packages,
        "stores": stores,
        "codecs": sorted({*v3_names(), *numcodecs_names()} - {*codecs}),
        "steps": [],
    }
    if url is None:
        answer(facts)
        return
    for step in _try(url, storage_options(url)):
        mark = {True: "ok", False: "FAILED", None: "-"}[step.ok]
        echo(wrapped(terminal_safe(f"{step.name:<12}{mark:<8}{step.said}"), " " * 22, "  "))
        facts["steps"].append({"step": step.name, "ok": step.ok, "message": step.said})
    failed = any(step["ok"] is False for step in facts["steps"])
    answer(facts, FINDING if failed else 0)


def _stores() -> dict[str, str]:
    """Return what serves each kind of location."""
    found = {"local folders, zip archives, HTTP": "built in"}
    for name, packages, extra in _STORES:
        there = [package for package in packages if find_spec(package)]
        wanted = "obstore" if extra else packages[0]
        install = f"zarr-dask[{wanted}]" if extra else wanted
        found[name] = " and ".join(there) or f"nothing: pip install '{install}'"
    return found


def _missing_codecs() -> dict[str, str]:
    """Return codecs that are known, and what must be installed for them."""
    return {
        name: f"pip install 'zarr-dask[{extra}]'"
        for name, package, extra in _OPTIONAL_CODECS
        if not find_spec(package)
    }


# --- trying a URL ---------------------------------------------------------------------------------


def _try(url: str, options: Mapping[str, Any] | None) -> Iterator[Step]:
    """Yield the steps; after one that fails, those that need it are not tried."""
    steps: dict[str, Callable[[], str | None]] = {
        "name": lambda: _name(url, options),
        "connection": lambda: _connect(url, options or {}),
        "credentials": lambda: _credentials(url, options),
        "listing": lambda: _list(url, options),
        "reading": lambda: _read(url, options),
    }
    failed = False
    for name, act in steps.items():
        if failed:
            yield Step(name, None, "not tried")
            continue
        try:
            with in_foreground():
                said = act()
        except (ZarrDaskError, OSError) as error:
            failed = name != "listing"  # reading may be allowed all the same
            yield Step(name, False, as_options(" ".join(str(error).split())))
        else:
            yield Step(name, None if said is None else True, said or "not needed")


def _name(url: str, options: Mapping[str, Any] | None) -> str:
    """Return the store that a URL names, and the library that serves it."""
    store = open_store(url, options)
    backend = backend_of(store)
    return f"{store.url}, served by {backend}" if backend else store.url


def _credentials(url: str, options: Mapping[str, Any] | None) -> str | None:
    """Send one request that needs access; an absent key is an answer too."""
    if not is_remote(url):
        return None
    open_store(url, options).size("zarr.json")
    return "accepted, or not required"


def _list(url: str, options: Mapping[str, Any] | None) -> str:
    """List the top of the store."""
    try:
        found = open_store(url, options).list_dir("")
    except ListingError as error:
        return f"not possible here: {error}"
    return f"{len(found.keys)} keys and {len(found.prefixes)} folders at the top"


def _connect(url: str, options: Mapping[str, Any]) -> str | None:
    """Resolve the host of a URL and connect to it; None if there is none.

    Raises
    ------
    OSError
        If the name is unknown, or the host does not respond.
    """
    address = _address(url, options)
    if address is None:
        return None
    scheme, host, port = address
    if getproxies().get(scheme):
        return f"through the proxy of the environment, to {host}"
    try:
        with socket.create_connection((host, port), _SECONDS) as connection:
            if scheme != "https":
                return f"{host}:{port}"
            with ssl.create_default_context().wrap_socket(
                connection, server_hostname=host
            ) as secure:
                return f"{host}:{port}, {secure.version()}"
    except socket.gaierror as error:
        raise OSError(f"the name {host!r} is unknown ({error.strerror}).") from error
    except OSError as error:
        raise OSError(f"{host}:{port} does not respond as {scheme}: {error}.") from error


def _address(url: str, options: Mapping[str, Any]) -> tuple[str, str, int] | None:
    """Return scheme, host and port of the service; None if they are not known."""
    if not is_remote(url):
        return None
    parts = urlsplit(url.rpartition("::")[2])
    given = {**options, **(options.get("client_kwargs") or {})}
    endpoint = given.get("endpoint_url")
    if parts.scheme in {"http", "https"}:
        endpoint = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    elif parts.scheme in {"s3", "s3a"} and not endpoint:
        names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
        endpoint = next(filter(None, map(os.environ.get, names)), "https://s3.amazonaws.com")
    elif parts.scheme in {"gs", "gcs"} and not endpoint:
        endpoint = "https://storage.googleapis.com"
    elif parts.scheme in {"az", "abfs"} and not endpoint:
        account = given.get("account_name") or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")
        endpoint = f"https://{account}.blob.core.windows.net" if account else None
    found = urlsplit(str(endpoint)) if endpoint else None
    if found is None or not found.hostname:
        return None
    scheme = found.scheme or "https"
    return scheme, found.hostname, found.port or (80 if scheme == "http" else 443)


def _read(url: str, options: Mapping[str, Any] | None) -> str:
    """Read the first chunk of an array, or of the first one below a group."""
    node = zd.open(url, storage_options=options)
    if isinstance(node, zd.Group):
        found = next(iter(node.arrays(recursive=True)), None)
        if found is None:
            return f"a group of format {node.format} without arrays"
        node = found[1]
    values = node[tuple(slice(0, length) for length in node.chunks)]
    return f"{node.where}: first chunk read, {values.size} values of {node.dtype}"
