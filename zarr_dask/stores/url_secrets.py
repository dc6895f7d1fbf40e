"""Secrets in URLs: logins and queries, which must never be shown.

A URL is shown in messages, names, graphs and plans. A secret that the file system accepts as an
option becomes one, and is then treated like all credentials (`zarr_dask.stores.secrets`).
Otherwise the URL is refused, without showing the secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from zarr_dask.errors import StoreError
from zarr_dask.stores.option_mapping import WEB

__all__ = [
    "QUERY_DIGEST",
    "check_endpoint",
    "check_endpoints",
    "check_no_login",
    "redact_url",
    "restore_query",
    "split_credentials",
]

_QUERY = "token_query"
"""The option for the query of a URL; its name marks it as a credential."""
QUERY_DIGEST = "query_digest"
"""The option that distinguishes locations with different queries."""
_WITH_LOGIN = {"ftp", "sftp", "smb", "ssh"}
"""Schemes whose file systems accept ``username`` and ``password``."""
_NO_PASSWORD = {"git", "github"}
"""Schemes whose URLs have something else before the ``@``: an owner and a repository, a path."""
_LOGIN = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://[^/?#]*@")
_USER = re.compile(r"(?:^|::)([A-Za-z][A-Za-z0-9+.-]*)://([^/?#@]*)@")


def split_credentials(url: str) -> tuple[str, dict[str, str]]:
    """Return a URL without secrets, and these as options of a file system of fsspec.

    Parameters
    ----------
    url
        Of a single file system, or a chain of them.

    Raises
    ------
    StoreError
        If it has a login or a query that its file system does not accept as an option.

    Examples
    --------
    >>> split_credentials("ftp://me:hunter2@host/a.zarr")
    ('ftp://host/a.zarr', {'username': 'me', 'password': 'hunter2'})
    >>> split_credentials("zip::https://host/a.zip?signature=1234")[0]
    'zip::https://host/a.zip'
    """
    parts = urlsplit(url)
    chained = _is_chain(url)
    if not chained and parts.scheme in _WITH_LOGIN and parts.password is not None:
        netloc = parts.netloc.rpartition("@")[2]
        login = {"username": unquote(parts.username or ""), "password": unquote(parts.password)}
        return urlunsplit(parts._replace(netloc=netloc)), login
    check_no_login(url)
    place, mark, query = url.rpartition("?")
    if not (chained and mark and urlsplit(url.rpartition("::")[2]).scheme in WEB):
        return url, {}
    return place, {_QUERY: query, QUERY_DIGEST: sha256(query.encode()).hexdigest()[:16]}


def redact_url(url: str) -> str:
    """Return a URL without logins and queries, fit to be shown.

    Examples
    --------
    >>> redact_url("zip::https://me:hunter2@host/a.zip?signature=1234")
    'zip::https://host/a.zip'
    """
    return _LOGIN.sub(r"\1://", url).partition("?")[0]


def restore_query(url: str, options: dict[str, Any]) -> str:
    """Return the URL as it was before `split_credentials`; remove its query from the options."""
    options.pop(QUERY_DIGEST, None)
    query = options.pop(_QUERY, None)
    return url if query is None else f"{url}?{query}"


def check_no_login(url: str) -> None:
    """Raise if a URL holds credentials.

    Raises
    ------
    StoreError
        If it has a password, or is an HTTP URL with a user or a query.
    """
    for scheme, login in _USER.findall(url):
        if (":" in login and scheme not in _NO_PASSWORD) or scheme in WEB:
            named = f"; in a chain by scheme, {{{scheme!r}: {{...}}}}" if _is_chain(url) else ""
            raise StoreError(
                f"a URL of scheme {scheme!r} was given with a password or a user in it, which "
                f"would be shown in messages: pass it in storage_options{named}."
            )
    parts = urlsplit(url)
    if parts.scheme in WEB and parts.query:
        raise StoreError(
            f"{parts.scheme}://{parts.netloc}{parts.path} was given with a query, which only the "
            "package's own way of reading HTTP sends along: leave backend= (or ZARR_DASK_BACKEND) "
            "out."
        )


_BLOB_ENDPOINT = re.compile(r"(?:^|;)BlobEndpoint=([^;]*)")


def check_endpoints(options: Mapping[str, Any]) -> None:
    """Raise if the address of a service is no URL, or holds credentials.

    Raises
    ------
    StoreError
        If an ``endpoint_url`` has no scheme, or has a user or a query.
    """
    for name, value in options.items():
        if isinstance(value, Mapping):
            check_endpoints(value)
        elif name == "endpoint_url" and isinstance(value, str):
            check_endpoint(value)
        elif name == "connection_string" and (found := _BLOB_ENDPOINT.search(str(value))):
            check_endpoint(found[1], "BlobEndpoint of the connection_string")


def check_endpoint(url: str, name: str = "endpoint_url") -> None:
    """Raise if one address is no URL, or holds credentials.

    Raises
    ------
    StoreError
        See `check_endpoints`.

    Examples
    --------
    >>> check_endpoint("localhost:9000")
    Traceback (most recent call last):
    zarr_dask.errors.StoreError: endpoint_url 'localhost:9000' has no scheme: write \
'https://localhost:9000', or 'http://localhost:9000' for a service without TLS.
    """
    if why := _malformed(url):
        raise StoreError(f"{name} {url!r} is no URL: {why}.")
    parts = urlsplit(url)
    if "@" in url or parts.query:
        place = parts.netloc.rpartition("@")[2] or "a service"
        raise StoreError(
            f"{name} for {place} was given with a login or a query in it, which would be shown in "
            "messages and in plans: pass credentials by their own names (key and secret, "
            "sas_token, ...)."
        )
    if parts.scheme not in WEB or not parts.hostname:
        rest = url.rpartition("://")[2]
        raise StoreError(
            f"{name} {url!r} has no scheme: write 'https://{rest}', or 'http://{rest}' for a "
            "service without TLS."
            if "://" not in url
            else f"{name} {url!r} is of scheme {parts.scheme!r}: expected http or https, and a "
            "host."
        )


def _malformed(url: str) -> str:
    """Return the reason why libraries would fail on an address; "" if it can be taken apart."""
    if not url:
        return "it is empty; leave it out for the service's own address"
    if "@" in url:  # a login, which is refused without being shown
        return ""
    if any(sign.isspace() for sign in url):
        return "it has a space in it"
    try:
        _ = urlsplit(url).port
    except ValueError as error:
        return str(error)
    return ""


def _is_chain(url: str) -> bool:
    """True if a URL is a chain of file systems; hosts may have "::" in their addresses."""
    return "::" in url.partition("[")[0]
