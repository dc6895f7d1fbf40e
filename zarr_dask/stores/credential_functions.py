"""Functions that return credentials, named so that options stay texts."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from zarr_dask.errors import StoreError

__all__ = ["PROVIDER", "function_of", "name_of"]

PROVIDER = "credential_provider"
"""The storage option for a function that returns credentials, as obstore asks for them."""


def name_of(function: Any, url: str) -> str:
    """Return the name by which other processes import a function, as "module:name".

    Raises
    ------
    StoreError
        If it is not a function of a module.

    Examples
    --------
    >>> from os.path import join
    >>> name_of(join, "s3://bucket")
    'posixpath:join'
    """
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    text = f"{module}:{name}"
    if not module or "<" in name or _found(text) is not function:
        raise StoreError(
            f"{url}: storage_options[{PROVIDER!r}] is {function!r:.100}, which other processes "
            "cannot import: define a function at the top of a module and pass that, or give "
            "key, secret and token, or a profile."
        )
    return text


def function_of(text: str) -> Callable[[], Any]:
    """Return the function of a name.

    Raises
    ------
    StoreError
        If it cannot be imported.
    """
    found = _found(text)
    if not callable(found):
        raise StoreError(
            f"storage_options[{PROVIDER!r}] is {text!r}, and there is no such function: expected "
            "'MODULE:NAME' of a function that this process can import."
        )
    function: Callable[[], Any] = found
    return function


def _found(text: str) -> Any:
    module, _, name = text.partition(":")
    try:
        found: Any = import_module(module)
    except (ImportError, ValueError):
        return None
    for part in name.split("."):
        found = getattr(found, part, None)
    return found
