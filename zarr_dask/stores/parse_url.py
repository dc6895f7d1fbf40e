"""Parsing of paths and URLs as users write them."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote

from zarr_dask.errors import StoreError
from zarr_dask.stores.option_mapping import SCHEMES

__all__ = ["expand_path", "parse_location"]

_LOCAL = {"file", "local"}
_SCHEME = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]*):(//)?")
_LOST_SLASH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/(?!/)")
_OTHERS = {"abfss", "ftp", "gdrive", "github", "hf", "memory", "reference", "sftp", "ssh"}
_SERVICES = {*SCHEMES, *_OTHERS, "http", "https"} - {"reference"}
"""Schemes whose URLs name a location by themselves, without another file system behind them."""


def parse_location(text: str) -> tuple[str, str]:
    """Return the scheme of a location, in lower case, and the location; "" and a path if local.

    Raises
    ------
    StoreError
        If it is a URL with a missing slash.

    Examples
    --------
    >>> parse_location("S3://bucket/a"), parse_location("file:///data/a%20b")
    (('s3', 's3://bucket/a'), ('', '/data/a b'))
    >>> parse_location("zip::/data/a.zip")
    ('zip', 'zip::file:///data/a.zip')
    """
    if "::" in text and _is_chain(text):
        first, *others = text.split("::")
        return first.partition(":")[0], "::".join([first, *others[:-1], _end_of_chain(others[-1])])
    found = _SCHEME.match(text)
    scheme = found[1].lower() if found and ("://" in text or found[1].lower() == "file") else ""
    if not scheme or found is None:
        _check_slashes(text)
        return "", text
    rest = text[found.end(1) + 1 :]
    if scheme not in _LOCAL:
        return scheme, f"{scheme}:{rest}"
    path = unquote(rest.removeprefix("//"))
    return "", path.removeprefix("localhost") if path.startswith("localhost/") else path


def expand_path(path: str) -> str:
    """Return an absolute local path, expanding "~" to the user's folder."""
    root = os.path.abspath(os.path.expanduser(path))
    return root if root == "/" else root.rstrip("/")


def _is_chain(text: str) -> bool:
    """True if a text begins with a file system of fsspec that wraps another one.

    Files may have "::" in their names, hosts in addresses (``http://[::1]/a``), keys anywhere.
    """
    scheme, mark, _ = text.partition("::")[0].partition("://")
    if "/" in scheme or (mark and scheme.lower() in _SERVICES):
        return False
    return _is_known(scheme) and not os.path.lexists(text)


def _is_known(scheme: str) -> bool:
    from fsspec import available_protocols

    return scheme in available_protocols()


def _end_of_chain(place: str) -> str:
    """Return the last part of a chain; for a path, a URL that is valid in any working folder."""
    return place if "://" in place or _is_known(place) else f"file://{expand_path(place)}"


def _check_slashes(text: str) -> None:
    """Raise for ``s3:/bucket/a``, which would be a local folder called "s3:"."""
    found = _LOST_SLASH.match(text)
    if found is None or found[1].lower() not in {*SCHEMES, *_OTHERS}:
        return
    if not os.path.lexists(f"{found[1]}:"):
        raise StoreError(
            f"{text!r} is a URL that has lost a slash, as pathlib takes them: give a text, "
            f"'{found[1]}://{text[found.end() :]}'."
        )
