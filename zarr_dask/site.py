"""What lies at the place of a node, above it and beside it, as checks are going to ask for it.

Where requests cost nothing they ask one after the other, as they come. Elsewhere all is asked for
at once, in one round trip, and handed on as a `Site`. The checks are the same, in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from zarr_dask.formats.base import Format, ReadOptions, ancestors, document_range
from zarr_dask.formats.detect import FORMATS
from zarr_dask.formats.draft import ENTRY
from zarr_dask.journal import is_free_beside
from zarr_dask.pool import abreast
from zarr_dask.stores.asked import Asked
from zarr_dask.stores.base import Store, is_far
from zarr_dask.stores.listed import lists_by_pages

__all__ = ["Site", "site_of", "site_of_array"]


@dataclass(frozen=True)
class Site:
    """A place where a node is to be made or written, as it was when it was looked at."""

    store: Store
    """The store, with what it has said of the place where that is remembered."""
    free_beside: bool = False
    """Whether it is known that nothing is kept beside the hierarchy: no journal, no open output."""


def site_of(store: Store, path: str, *, below: bool = True) -> Site:
    """Look at a place, where looking at all of it at once saves time.

    Parameters
    ----------
    store, path
        Where a node is to be made.
    below
        Whether it matters if there is anything below. It is left to the checks where finding out
        would mean to walk through all of it: they ask only if no document is there.
    """
    if not is_far(store):
        return Site(store)
    asked = Asked(store)
    part = document_range(ReadOptions().limits)
    nodes = [path, *ancestors(path)]
    keys = [key for one in nodes for candidate in FORMATS for key in candidate.node_keys(one)]
    documents = [(key, part) for key in dict.fromkeys([*keys, ENTRY])]
    prefixes: set[str] = set()
    if below and lists_by_pages(store):
        prefixes.update(prefix for candidate in FORMATS for prefix in candidate.prefixes(path))
    free_beside, *_ = abreast(
        partial(is_free_beside, store, path),
        partial(asked.ask, documents),
        *(partial(asked.ask_below, prefix) for prefix in prefixes),
    )
    return Site(asked, free_beside)


def site_of_array(
    store: Store, path: str, likely: Format, options: ReadOptions | None = None
) -> Site:
    """Look at an array that is there, where looking at all of it at once saves time.

    Parameters
    ----------
    store, path
        The array.
    likely
        Its format; of one that turns out to be of another format the documents are asked for then.
    options
        How it is read.
    """
    if not is_far(store):
        return Site(store)
    asked = Asked(store)
    part = document_range((options or ReadOptions()).limits)
    free_beside, _ = abreast(
        partial(is_free_beside, store, path),
        partial(asked.ask, [(key, part) for key in likely.node_keys(path)]),
    )
    return Site(asked, free_beside)
