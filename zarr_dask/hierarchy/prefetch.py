"""Prefetching of everything that checks need at, above and beside the location of a node.

If requests cost nothing, checks send them one by one. For remote stores everything is requested at
once, in one round trip, and passed on as a `PrefetchedLocation`. The checks are the same, in the
same order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from zarr_dask._util.threads import run_concurrently
from zarr_dask.formats.base import Format, ReadOptions, ancestors, document_range, prefix_of
from zarr_dask.formats.detect import FORMATS
from zarr_dask.formats.v3draft import ENTRY
from zarr_dask.journal import no_open_journals
from zarr_dask.stores.base import Store, is_remote
from zarr_dask.stores.listing import has_paged_listing
from zarr_dask.stores.wrappers.prefetched import prefetching

__all__ = ["PrefetchedLocation", "find_free_location", "prefetch_array", "prefetch_location"]


@dataclass(frozen=True)
class PrefetchedLocation:
    """A location where a node is to be created or written, as it was when it was inspected."""

    store: Store
    """The store, with its prefetched responses if there are any."""
    free_beside: bool = False
    """True if it is known that there is no journal and no open output beside the hierarchy."""


def prefetch_location(store: Store, path: str, *, below: bool = True) -> PrefetchedLocation:
    """Prefetch the checks of a location, if that saves time.

    Parameters
    ----------
    store, path
        Location of the new node.
    below
        True if it matters what lies below the location. If finding out would take a walk through
        all of it, it is left to the checks, which need it only if there are no metadata.
    """
    if not is_remote(store):
        return PrefetchedLocation(store)
    asked = prefetching(store)
    part = document_range(ReadOptions().limits)
    nodes = [path, *ancestors(path)]
    keys = [key for one in nodes for candidate in FORMATS for key in candidate.node_keys(one)]
    documents = [(key, part) for key in dict.fromkeys([*keys, ENTRY])]
    prefixes: set[str] = set()
    if below and has_paged_listing(store):
        prefixes.update(prefix for candidate in FORMATS for prefix in candidate.prefixes(path))
    free_beside, *_ = run_concurrently(
        partial(no_open_journals, store, path),
        partial(asked.ask, documents),
        *(partial(asked.ask_below, prefix) for prefix in prefixes),
    )
    return PrefetchedLocation(asked, free_beside)


def find_free_location(store: Store, path: str) -> PrefetchedLocation | None:
    """Return the location of a new hierarchy, if one listing tells that nothing is stored there.

    It answers the checks of all nodes below. None if something is there, or if requests cost
    nothing.
    """
    if not (is_remote(store) and has_paged_listing(store)):
        return None
    asked = prefetching(store)
    part = document_range(ReadOptions().limits)
    keys = [
        key for one in ancestors(path) for candidate in FORMATS for key in candidate.node_keys(one)
    ]
    documents = [(key, part) for key in dict.fromkeys([*keys, *([ENTRY] if path else [])])]
    free_beside, is_free, _ = run_concurrently(
        partial(no_open_journals, store, path),
        partial(asked.ask_below, prefix_of(path)),
        partial(asked.ask, documents),
    )
    return PrefetchedLocation(asked, free_beside) if is_free else None


def prefetch_array(
    store: Store, path: str, likely: Format, options: ReadOptions | None = None
) -> PrefetchedLocation:
    """Prefetch the checks of an existing array, if that saves time.

    Parameters
    ----------
    store, path
        The array.
    likely
        The expected format; if the array has another one, its metadata are requested later.
    options
        Options for reading.
    """
    if not is_remote(store):
        return PrefetchedLocation(store)
    asked = prefetching(store)
    part = document_range((options or ReadOptions()).limits)
    free_beside, _ = run_concurrently(
        partial(no_open_journals, store, path),
        partial(asked.ask, [(key, part) for key in likely.node_keys(path)]),
    )
    return PrefetchedLocation(asked, free_beside)
