"""The public `to_zarr` and `plan_write`: a group is copied, all else is written."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from zarr_dask.hierarchy.group import Group
from zarr_dask.jobs.write import write

__all__ = ["plan_write", "to_zarr"]

F = TypeVar("F", bound=Callable[..., Any])

_POSITIONS = ("arr", "url", "component", "storage_options", "region")
_NAMES = {"arr": "src", "url": "dst", "component": "path", "storage_options": "target_options"}
"""Arguments of a write, as a copy calls them."""


def _also_groups(of_values: F, positions: tuple[str, ...]) -> F:
    """Let a function that writes values take a group as well."""

    @wraps(of_values)
    def call(*args: Any, **options: Any) -> Any:
        if not isinstance(args[0] if args else options.get("arr"), Group):
            return of_values(*args, **options)
        from zarr_dask.jobs.copy import copy as copies  # only here: it takes long to import

        given = _as_copied(**dict(zip(positions, args, strict=False)), **options)
        copy: Callable[..., Any] = copies.copy if of_values is write.to_zarr else copies.plan_copy
        return copy(**given)

    return cast("F", call)


def _as_copied(
    *,
    mode: str = "a",
    overwrite: bool = False,
    compute: bool = True,
    return_stored: bool = False,
    **given: Any,
) -> dict[str, Any]:
    """Return the arguments of a copy for those of a write."""
    refused = {"mode": mode in {"r+", "swap"}, "compute": not compute}
    refused["return_stored"] = return_stored
    for name in [name for name, is_given in refused.items() if is_given]:
        raise TypeError(
            f"{name}= is about single arrays: a group is copied as a whole, to a new place or, "
            "with mode='w', in place of another one."
        )
    options = {_NAMES.get(name, name): one for name, one in given.items() if one is not None}
    return {**options, "overwrite": overwrite or mode == "w"}


plan_write = _also_groups(write.plan_write, (*_POSITIONS, "mode"))
to_zarr = _also_groups(write.to_zarr, (*_POSITIONS, "compute", "return_stored", "mode"))
