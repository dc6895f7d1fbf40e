"""Capabilities of a store besides reading, writing and listing, as one value.

The store itself says it: by the methods that it has, or by an attribute `capabilities`. A wrapper
can do what it forwards and what the store behind it can.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

__all__ = ["Capabilities", "capabilities_of"]

_METHODS = {
    "append": ("append",),
    "list_sizes": ("list_sizes",),
    "streaming_put": ("set_pieces",),
    "conditional_put": ("check_conditional", "get_tagged", "set_if"),
    "conditional_get": ("get_versions",),
    "open_value": ("open_value",),
    "server_copy": ("can_copy_from", "copy_from"),
}


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Operations that a store may have or lack.

    Examples
    --------
    >>> from zarr_dask.stores import LocalStore, MemoryStore
    >>> capabilities_of(LocalStore("/data")).append, capabilities_of(MemoryStore()).append
    (True, False)
    """

    append: bool = False
    """Bytes can be appended to a value."""
    list_sizes: bool = False
    """Listings include the sizes of values."""
    streaming_put: bool = False
    """A value can be put piece by piece."""
    conditional_put: bool = False
    """A value can be put on condition that it has not changed; a single key may refuse."""
    conditional_get: bool = False
    """Parts of a value can be read on condition that it has not changed."""
    open_value: bool = False
    """A value can be held open."""
    server_copy: bool = False
    """The service copies values itself."""
    cheap_random_reads: bool = False
    """A small range takes hardly longer than the same bytes of a larger one."""
    cheap_recursive_listing: bool = False
    """Listing all keys below a prefix costs no more than listing a folder."""
    paged_listing: bool = False
    """Listings yield the first keys early."""

    def __and__(self, other: Capabilities) -> Capabilities:
        """Return what both can do."""
        return _both(self, other)


def capabilities_of(store: Any) -> Capabilities:
    """Return the capabilities of a store."""
    given = getattr(store, "capabilities", None)
    return given if isinstance(given, Capabilities) else of_methods(store)


def of_methods(store: Any) -> Capabilities:
    """Return the capabilities that the methods and attributes of a store amount to."""
    kind, own = type(store), getattr(store, "__dict__", ())
    if _FLAGS.keys().isdisjoint(own) and _NAMES.isdisjoint(own):
        found = _of_class(kind)  # type: ignore[arg-type]  # it is hashable
        if found is not None:
            return found
    methods = _methods_of_class(kind)  # type: ignore[arg-type]
    if methods is None or not _NAMES.isdisjoint(own):
        methods = _callable_methods(store)
    return _made(methods, *(bool(getattr(store, name, False)) for name in _FLAGS))


_NAMES = frozenset(name for names in _METHODS.values() for name in names)
_FLAGS = {
    "supports_cheap_random_reads": "cheap_random_reads",
    "has_cheap_recursive_listing": "cheap_recursive_listing",
    "has_paged_listing": "paged_listing",
}
"""Attributes of stores, and the capabilities that they say."""


@lru_cache(maxsize=256)
def _of_class(kind: type) -> Capabilities | None:
    """Return the capabilities of all objects of a class; None if they may differ."""
    methods, flags = _methods_of_class(kind), [getattr(kind, name, False) for name in _FLAGS]
    if methods is None or not all(isinstance(one, bool) for one in flags):
        return None
    return _made(methods, *flags)


def _callable_methods(store: Any) -> tuple[bool, ...]:
    """Return True for each member of `_METHODS` that an object or a class has."""
    return tuple(
        all(callable(getattr(store, name, None)) for name in names) for names in _METHODS.values()
    )


@lru_cache(maxsize=256)  # capabilities are looked up for each request
def _methods_of_class(kind: type) -> tuple[bool, ...] | None:
    """Return the members of `_METHODS` that objects of a class have; None if they may differ."""
    found = (getattr(kind, name, None) for name in _NAMES)
    if hasattr(kind, "__getattr__") or not all(one is None or callable(one) for one in found):
        return None
    return _callable_methods(kind)


@lru_cache(maxsize=256)
def _both(one: Capabilities, other: Capabilities) -> Capabilities:
    names = (each.name for each in fields(Capabilities))
    return Capabilities(*(getattr(one, name) and getattr(other, name) for name in names))


@lru_cache(maxsize=256)
def _made(methods: tuple[bool, ...], *flags: bool) -> Capabilities:
    said = zip(_FLAGS.values(), flags, strict=True)
    return Capabilities(**dict(zip(_METHODS, methods, strict=True)), **dict(said))
