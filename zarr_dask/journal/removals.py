"""Records of removals that are under way, by which the same call ends one that was stopped.

The metadata of a node go first, so that readers find none rather than half of one. A process that
is killed after that leaves objects of which nothing tells any more whose they were. So the removal
says in the place of the node's journals, before it removes anything, in which formats the node is
there::

    run.zarr.zarr-dask/ocean/
        __removal                      {"format": "zarr-dask removal 1", "formats": ["v3"]}

The record goes last. There is none where nothing can be put beside the hierarchy.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from zarr_dask.errors import LinkError, StoreError
from zarr_dask.formats.documents import DEFAULT_LIMITS, parse_json
from zarr_dask.journal.claims import holds_no_claims, remove_rests
from zarr_dask.journal.journal import remove_empty_folders
from zarr_dask.journal.location import REMOVAL, check_behind_no_link, default_place
from zarr_dask.stores.base import Store, get_start
from zarr_dask.stores.file_backed import FileStore
from zarr_dask.stores.wrapper import forkable

__all__ = ["begin_removal", "end_removal", "stopped_removal"]

_FORMAT = "zarr-dask removal 1"
_LONGEST = 1 << 12  # bytes of a record


def begin_removal(store: Store, path: str, formats: Iterable[str]) -> None:
    """Record that a node, which is there in these formats, is about to be removed.

    Raises
    ------
    LinkError
        If the record would lie behind a link.
    StoreError
        If the store fails.
    """
    place = None if forkable(store) is not None else default_place(store, path)
    if place is None:
        return
    check_behind_no_link(place)
    text = json.dumps({"format": _FORMAT, "formats": [*formats]}).encode()
    try:
        place.store.set(f"{place.prefix}{REMOVAL}", [text])
    except StoreError as error:
        if not holds_no_claims(place.store, error):
            raise


def end_removal(store: Store, path: str) -> None:
    """Remove the record, because nothing is left of the node."""
    place = None if forkable(store) is not None else default_place(store, path)
    if place is None:
        return
    try:
        place.store.delete(f"{place.prefix}{REMOVAL}")
    except StoreError as error:
        if not holds_no_claims(place.store, error):
            raise
    if isinstance(place.store, FileStore):
        remove_rests(place.store, place.prefix)
        remove_empty_folders(place.store, place.prefix)


def stopped_removal(store: Store, path: str) -> tuple[str, ...]:
    """Return the formats of a node whose removal has begun; empty if none has, as far as is known.

    Its process may have died, or be at work.
    """
    place = None if forkable(store) is not None else default_place(store, path)
    if place is None:
        return ()
    try:
        check_behind_no_link(place)
        text = get_start(place.store, f"{place.prefix}{REMOVAL}", _LONGEST)
        found = None if text is None else parse_json(bytes(text), DEFAULT_LIMITS)
    except (LinkError, StoreError, ValueError, RecursionError):
        return ()
    if not isinstance(found, dict) or found.get("format") != _FORMAT:
        return ()
    formats = found.get("formats")
    return tuple(map(str, formats)) if isinstance(formats, list) else ()
