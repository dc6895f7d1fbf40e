"""Names of a package that are imported when they are first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["lazy_names"]


def lazy_names(
    package: str, modules: Mapping[str, tuple[str, ...]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's ``__getattr__`` and ``__dir__`` for names of its modules.

    No name may be that of a module: the import of the module would hide it.

    Parameters
    ----------
    package
        Name of the package.
    modules
        Names that each module has, by the name of the module within the package.

    Examples
    --------
    >>> find, names = lazy_names("zarr_dask.grid", {"grid": ("Grid", "Region")})
    >>> find("Grid").__name__
    'Grid'
    >>> find("Gird")
    Traceback (most recent call last):
    AttributeError: module 'zarr_dask.grid' has no attribute 'Gird'
    >>> lazy_names("zarr_dask.grid", {"grid": ("Grid", "grid")})
    Traceback (most recent call last):
    ValueError: zarr_dask.grid: ['grid'] are names of modules, which hide them.
    """
    module_of = {name: module for module, names in modules.items() for name in names}
    hidden = module_of.keys() & modules.keys()
    if hidden:
        raise ValueError(f"{package}: {sorted(hidden)} are names of modules, which hide them.")

    def find(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(import_module(f"{package}.{module_of[name]}"), name)
        setattr(sys.modules[package], name, found)
        return found

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *module_of})

    return find, names
