"""A hook of mkdocs: API pages name what users import, and this finds where it is defined.

``::: zarr_dask.to_zarr`` in a page becomes the directive for the module that defines the function,
under the public name. So pages stay right when modules move.
"""

from __future__ import annotations

import re
from inspect import ismodule
from typing import Any

import zarr_dask as zd
from zarr_dask.stores import Store

_DIRECTIVE = re.compile(r"(?m)^::: zarr_dask\.([\w.]+)$")


def _defined(name: str) -> tuple[str, Any]:
    """Return the path below which an object is defined, and the object."""
    found: Any = zd
    for part in name.split("."):
        found = getattr(found, part)
    return (
        found.__name__ if ismodule(found) else f"{found.__module__}.{found.__qualname__}"
    ), found


def _directive(match: re.Match[str]) -> str:
    path, found = _defined(match[1])
    lines = [f"::: {path}", "    options:", f"      heading: zarr_dask.{match[1]}"]
    lines += [f"      toc_label: {match[1]}"]
    if ismodule(found) or (found is not Store and hasattr(found, "get_ranges")):
        lines += ["      members: false"]  # the methods of a store stand at zarr_dask.stores.Store
    return "\n".join(lines)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return the page with its directives for public names replaced; called by mkdocs."""
    return _DIRECTIVE.sub(_directive, markdown)
