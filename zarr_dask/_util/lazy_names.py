"""The names that a package and a class show: imported when first used, or left out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, TypeVar

__all__ = ["hidden_names", "hides", "lazy_names"]

T = TypeVar("T")


def lazy_names(
    package: str,
    modules: Mapping[str, tuple[str, ...]],
    instead: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's ``__getattr__`` and ``__dir__`` for names of its modules.

    No name may be that of a module: the import of the module would hide it.

    Parameters
    ----------
    package
        Name of the package.
    modules
        Names that each module has, by the name of the module within the package.
    instead
        What to write instead of names of other libraries.

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
            hint = f". {instead[name]}" if name in instead else ""
            raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}")
        found = getattr(import_module(f"{package}.{module_of[name]}"), name)
        setattr(sys.modules[package], name, found)
        return found

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *module_of})

    return find, names


def hides(*names: str) -> Callable[[type[T]], type[T]]:
    """Leave names out of completion and of the reference: this package uses them, users need not.

    Raises
    ------
    AttributeError
        If the class has no such name.

    Examples
    --------
    >>> @hides("journal")
    ... class Plan:
    ...     def run(self): "Run the plan."
    ...     def journal(self): "Return the journal."
    >>> [name for name in dir(Plan()) if not name.startswith("_")]
    ['run']
    """

    def decorate(cls: type[T]) -> type[T]:
        known = {*dir(cls), *getattr(cls, "__dataclass_fields__", ())}
        if absent := sorted(set(names) - known):
            raise AttributeError(f"{cls.__name__} has no {absent}, which it would hide")
        hidden = {*names, *hidden_names(cls)}
        setattr(cls, _HIDDEN, frozenset(hidden))
        setattr(cls, "__dir__", lambda self: sorted(set(object.__dir__(self)) - hidden))  # noqa: B010
        return cls

    return decorate


def hidden_names(cls: type) -> frozenset[str]:
    """Return the names of a class that `hides` leaves out."""
    return frozenset(getattr(cls, _HIDDEN, ()))


_HIDDEN = "_hidden_names"
