"""Checks of the types of storage options.

Stores are values: their options are compared, pickled and written into plans. That works for texts,
numbers, booleans, lists and objects of these. Options of other types are refused by name. The value
is never shown, because it may be a secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zarr_dask.errors import StoreError

__all__ = ["check_number", "check_options"]

_TEXTS = {
    "account_host",
    "account_key",
    "account_name",
    "aws_access_key_id",
    "aws_secret_access_key",
    "aws_session_token",
    "client_id",
    "client_secret",
    "connection_string",
    "credential_provider",
    "endpoint_url",
    "key",
    "profile",
    "project",
    "region",
    "region_name",
    "sas_token",
    "secret",
    "tenant_id",
}
_OBJECTS = {"client_kwargs", "config_kwargs", "headers", "s3_additional_kwargs"}
_HINT = (
    "Stores are found again in other processes by texts, numbers, true, false, and lists and "
    "objects of them; what is made in Python already can be given as a store of zarr-python "
    "(zarr.storage.FsspecStore, ObjectStore)."
)

_INSTEAD = {
    "session": "Give a session of boto3 or aiobotocore, profile=, or key=, secret= and token=.",
}
"""Replacements for options that are objects of other libraries."""


def check_options(url: str, options: Mapping[str, Any], where: str = "storage_options") -> None:
    """Raise if an option is of a type that no store accepts.

    Parameters
    ----------
    url
        The location that they are for, for messages.
    options
        As they were given; in a chain, those of each scheme by its name.
    where
        The name of the argument, for messages.

    Raises
    ------
    StoreError
        If a name is not a text, a value is of the wrong type, or two addresses are given.

    Examples
    --------
    >>> check_options("s3://bucket/a", {"anon": True, "client_kwargs": {"region_name": "r"}})
    >>> check_options("s3://bucket/a", {"client_kwargs": {"region_name": 1}})
    Traceback (most recent call last):
    zarr_dask.errors.StoreError: s3://bucket/a: storage_options['client_kwargs']['region_name'] is \
of type int, expected a text.
    """
    _check_object(url.partition("?")[0], where, options)


def check_number(url: str, name: str, value: Any, kind: type[int | float]) -> Any:
    """Return an option that must be a positive number.

    Raises
    ------
    StoreError
        If it is not.

    Examples
    --------
    >>> check_number("https://host/a", "timeout", "3", float)
    3.0
    """
    try:
        number = kind(value)
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None or isinstance(value, bool) or not number > 0:
        raise StoreError(
            f"{url}: storage_options[{name!r}] is {value!r:.100}, expected a number above 0."
        )
    return number


def _check_object(url: str, where: str, options: Mapping[Any, Any]) -> None:
    for name, value in options.items():
        if not isinstance(name, str):
            raise StoreError(f"{url}: {where} has the name {name!r:.100}, expected a text.")
        at = f"{where}[{name!r}]"
        if value is None:
            continue
        if name in _TEXTS and not isinstance(value, str):
            # except for the options of a scheme in a chain, which may have such a name
            if not (isinstance(value, Mapping) and "::" in url):
                raise _wrong(url, at, value, "a text")
        elif name in _OBJECTS and not isinstance(value, Mapping):
            raise _wrong(url, at, value, "an object")
        _check_value(url, at, value)
    _check_one_address(url, where, options)


def _check_one_address(url: str, where: str, options: Mapping[Any, Any]) -> None:
    """Raise if options lead to two services, of which libraries choose one without a word."""
    name, inner = "endpoint_url", options.get("client_kwargs")
    both = (options.get(name), inner.get(name) if isinstance(inner, Mapping) else None)
    if all(both) and len({str(one).rstrip("/") for one in both}) > 1:
        raise StoreError(
            f"{url}: {where}[{name!r}] and {where}['client_kwargs'][{name!r}] are two addresses; "
            "give one of them."
        )


def _check_value(url: str, at: str, value: Any) -> None:
    if isinstance(value, Mapping):
        _check_object(url, at, value)
    elif isinstance(value, list | tuple):
        for number, one in enumerate(value):
            _check_value(url, f"{at}[{number}]", one)
    elif value is not None and not isinstance(value, str | int | float):
        name = at.rpartition("[")[2].strip("']")
        raise StoreError(
            f"{url}: {at} is of type {type(value).__qualname__}, which cannot be sent to other "
            f"processes. {_INSTEAD.get(name, _HINT)}"
        )


def _wrong(url: str, at: str, value: Any, expected: str) -> StoreError:
    return StoreError(f"{url}: {at} is of type {type(value).__name__}, expected {expected}.")
