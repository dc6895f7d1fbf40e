"""Outputs that the ranks of a simulation write, looked up so that no other job changes them.

They are defined in `zarr_dask.jobs.simulation.output`. The metadata of an open one is next to the
journals of its group.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from zarr_dask.errors import JournalError, RankError, ResumeError, StoreError
from zarr_dask.formats.base import Limits, load_json, read_documents, where
from zarr_dask.journal.location import (
    NODES,
    JournalLocation,
    TTLCache,
    check_behind_no_link,
    default_place,
    given_place,
    holds_node,
)
from zarr_dask.journal.lock import check_not_locked
from zarr_dask.stores.base import Store, is_remote, join
from zarr_dask.stores.open import Location, canonical_location, sibling_location, unwrap_with_path

__all__ = ["OUTPUT", "OpenOutput", "check_no_output", "forget_nodes_above", "output_of"]

OUTPUT = "__output/output.json"
"""Metadata of an output (`jobs.simulation.output`) beside its group, while it is open."""
_FREE = TTLCache[None]()
"""Cached checks of arrays that belong to no open output, as far as could be determined."""


def forget_nodes_above() -> None:
    """Empty the caches, because metadata was written or removed and may move journals."""
    NODES.forget()
    _FREE.forget()


@dataclass(frozen=True)
class OpenOutput:
    """The open output of a simulation that an array belongs to."""

    url: str
    """Its location beside the hierarchy, for messages."""
    axis: int
    """The dimension along which the array grows."""


def check_no_output(store: Store, path: str, *, below: bool = False, often: bool = False) -> bool:
    """Raise if an array belongs to an open output of a simulation.

    Outputs with a journal elsewhere (``journal=``) are not found. Return True if there may be
    journals at the path or, with `below`, below it.

    Parameters
    ----------
    store, path
        The location of the change.
    below
        If True, everything below the path is changed as well.
    often
        If True, the check is repeated often, as for every assignment. For a remote store its result
        is then cached for some seconds, and a user who has no permission to check can still write.

    Raises
    ------
    RankError
        If it belongs to an open output (`zarr_dask.Writer`).
    JobRunningError
        If, with `below`, a process that lives works on a job there.
    LinkError
        If, with `below`, a link leads to where journals lie.
    """
    if often and is_remote(store):
        _FREE.get(canonical_location(store, path), partial(_check_if_possible, store, path))
        return True
    output = output_of(store, path)
    if output is not None:
        raise _is_output(where(store, path), output.url)
    place = default_place(store, path) if below else None
    if place is None:
        return True
    check_behind_no_link(place)
    there_are_some = False
    for key in place.store.list(place.prefix):
        there_are_some = True
        if key == OUTPUT or key.endswith(f"/{OUTPUT}"):
            raise _is_output(where(store, path), f"{place.store.url}/{key[: -len(OUTPUT)]}")
        check_not_locked(place.store, [key], where(store, path))
    return there_are_some or not is_remote(place.store)  # there may be a folder without a value


def _check_if_possible(store: Store, path: str) -> None:
    with suppress(StoreError):
        check_no_output(store, path)


def output_of(store: Store, path: str, journal: Location | None = None) -> OpenOutput | None:
    """Return the open output that an array belongs to, if there is one.

    Parameters
    ----------
    store, path
        The array.
    journal
        The location of the output's journal, if it is not the default.
    """
    groups = _default_groups(store, path) if journal is None else _groups(journal, store, path)
    for place, name in groups:
        key = f"{place.prefix}{OUTPUT}"
        text = read_documents(place.store, [key], Limits())[key]
        if text is None:
            continue
        arrays = load_json(place.store, key, text).get("arrays", {})
        if isinstance(arrays, dict) and name in arrays:
            return OpenOutput(place.url, _axis_of(arrays[name], where(place.store, key), name))
    return None


def _axis_of(facts: Any, at: str, name: str) -> int:
    """The dimension along which an array grows, as the document of an output says it."""
    axis = facts.get("axis") if isinstance(facts, dict) else None
    if type(axis) is not int or axis < 0:
        raise JournalError(
            f"{at} is the document of no output: 'axis' of its array {name!r} is "
            f"{axis!a:.80}, expected the number of a dimension. If no simulation writes it, "
            "remove the folder that the document lies in."
        )
    return axis


def _default_groups(store: Store, path: str) -> Iterator[tuple[JournalLocation, str]]:
    """Yield possible locations of outputs of groups above an array, from the root down.

    Each comes with the name of the array below that group.
    """
    place = default_place(store, path)
    parts = [] if place is None else place.prefix.split("/")
    for count in range(1, len(parts) - 1):
        if place is not None:
            group = "/".join(parts[:count]) + "/"
            yield JournalLocation(place.store, group), place.prefix[len(group) :].rstrip("/")


def _groups(journal: Location, store: Store, path: str) -> Iterator[tuple[JournalLocation, str]]:
    """Yield the same for outputs with a journal elsewhere, from the nearest group up."""
    store, path = unwrap_with_path(store, path)
    name = ""
    while True:
        path, _, last = path.rpartition("/")
        if not last:
            around = sibling_location(store, "")
            if around is None or not holds_node(around[0]):
                return
            store, last = around
        name = join(last, name) if name else last
        with suppress(ResumeError):  # no output of a group around the journal uses it
            yield given_place(journal, store, path), name


def _is_output(what: str, url: str) -> RankError:
    return RankError(
        f"{what} is written by a zarr_dask.Writer, whose output is open ({url}). End it with "
        "finish() before, or write by way of it; zarr_dask.Writer.abandon forgets one whose ranks "
        "will not go on."
    )
