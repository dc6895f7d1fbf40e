"""Capabilities of a store besides reading, writing and listing, as one value.

The store itself says it: by the methods that it has, or by an attribute `capabilities`. A wrapper
can do what it forwards and what the store behind it can.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
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
        names = (one.name for one in fields(self))
        return Capabilities(*(getattr(self, name) and getattr(other, name) for name in names))


def capabilities_of(store: Any) -> Capabilities:
    """Return the capabilities of a store."""
    given = getattr(store, "capabilities", None)
    return given if isinstance(given, Capabilities) else of_methods(store)


def of_methods(store: Any) -> Capabilities:
    """Return the capabilities that the methods and attributes of a store amount to."""
    found = {
        name: all(callable(getattr(store, method, None)) for method in methods)
        for name, methods in _METHODS.items()
    }
    return Capabilities(
        **found,
        cheap_random_reads=bool(getattr(store, "supports_cheap_random_reads", False)),
        cheap_recursive_listing=bool(getattr(store, "has_cheap_recursive_listing", False)),
        paged_listing=bool(getattr(store, "has_paged_listing", False)),
    )
