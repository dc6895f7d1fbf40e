"""Classes by name: those of this package, of installed packages, and registered by a call.

Classes of this package are named as texts, ``"module:Class"``, and imported when they are needed.
Other packages list theirs as entry points, which are read when a name is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

from zarr_dask.errors import MissingDependencyError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["Registry", "load_class"]


class Registry:
    """Classes by name.

    Parameters
    ----------
    kind
        Noun for messages, such as "codec".
    group
        Group of entry points in which other packages list their classes.
    own
        Classes of this package as ``"module:Class"``, by name.
    check
        Raises TypeError or ValueError if a class of others cannot be used under a name.
    """

    def __init__(
        self, kind: str, group: str, own: Mapping[str, str], check: Callable[[str, Any], None]
    ) -> None:
        self.kind = kind
        self.group = group
        self._own = dict(own)
        self._check = check
        self._loaded: dict[str, Any] = {}
        self._foreign: dict[str, Any] = {}

    @cached_property
    def _points(self) -> dict[str, EntryPoint]:
        """The entry points of other packages; names of this package cannot be replaced."""
        from importlib.metadata import entry_points  # 40 ms

        found = entry_points(group=self.group)
        return {point.name: point for point in found if point.name not in self._own}

    def own_names(self) -> tuple[str, ...]:
        """Return the names of the classes of this package."""
        return tuple(sorted(self._own))

    def names(self) -> tuple[str, ...]:
        """Return all names, including those of other packages."""
        return tuple(sorted({*self._own, *self._foreign, *self._points}))

    def register(self, name: str, cls: Any) -> None:
        """Add a class of another package; the same class may be added again.

        Raises
        ------
        TypeError, ValueError
            If the class cannot be used, or the name belongs to another class.
        """
        self._check(name, cls)
        taken = self._own.get(name) or self._foreign.get(name)
        if taken is not None and not _same(taken, cls):
            raise ValueError(
                f"{self.kind} {name!r} is taken by {taken}: choose another name for {cls}, such as "
                f"'yourpackage.{name}'"
            )
        self._foreign[name] = cls

    def find(self, name: str) -> Any:
        """Return the class of a name; None for unknown names.

        Raises
        ------
        MissingDependencyError
            If another package lists the name, but its class cannot be imported.
        TypeError, ValueError
            If that class cannot be used.
        """
        found = self._loaded.get(name) or self._foreign.get(name)
        if found is None and name in self._own:
            found = self._loaded[name] = load_class(self._own[name])
        return found or self._find_installed(name)

    def _find_installed(self, name: str) -> Any:
        point = self._points.get(name)
        if point is None:
            return None
        try:
            found = point.load()
        except (ImportError, AttributeError) as error:
            package = "another package" if point.dist is None else point.dist.name
            raise MissingDependencyError(
                f"{self.kind} {name!r} is listed by {package} as {point.value!r} in the entry "
                f"points {self.group!r}, and cannot be imported ({error}): reinstall or remove "
                f"{package}."
            ) from error
        self._check(name, found)
        self._foreign[name] = found
        return found


def load_class(target: str) -> Any:
    """Import ``"module:Class"``."""
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


def _same(one: Any, other: Any) -> bool:
    """True for one class, and for its redefinition in a notebook cell or a reloaded module."""
    if one is other:
        return True
    place = (getattr(one, "__module__", None), getattr(one, "__qualname__", None))
    return place == (getattr(other, "__module__", ""), getattr(other, "__qualname__", ""))
