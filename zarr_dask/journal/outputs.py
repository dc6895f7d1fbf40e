"""Outputs that the ranks of a simulation write: found here, so that nobody else changes them.

What they are is the matter of `zarr_dask.jobs.simulation.output`; the document of an open one lies
in the place of its group, beside the journals of that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from zarr_dask.errors import JournalError, RankError, ResumeError, StoreError
from zarr_dask.formats.base import load_json, where
from zarr_dask.journal.believed import Believed
from zarr_dask.journal.held import check_none_held
from zarr_dask.journal.places import (
    NODES,
    Place,
    check_behind_no_link,
    default_place,
    given_place,
    holds_node,
)
from zarr_dask.stores.base import Store, is_far, join
from zarr_dask.stores.urls import Location, bare, beside, real_place

__all__ = ["OUTPUT", "OpenOutput", "check_no_output", "forget_nodes_above", "output_of"]

OUTPUT = "__output/output.json"
"""Says beside a group what its ranks write (`jobs.simulation.output`), while that goes on."""
_FREE = Believed[None]()
"""Which arrays belong to no open output, as far as could be found out."""


def forget_nodes_above() -> None:
    """A document was written or removed, so that places of journals may be others."""
    NODES.forget()
    _FREE.forget()


@dataclass(frozen=True)
class OpenOutput:
    """What an array belongs to that the ranks of a simulation write."""

    url: str
    """Of what lies beside the hierarchy, for messages."""
    axis: int
    """The dimension along which the array grows."""


def check_no_output(store: Store, path: str, *, below: bool = False, often: bool = False) -> bool:
    """Refuse to change an array that the ranks of a simulation write.

    Those that were given a journal of their own are not found. Returns whether there may be
    journals of what lies at the path and, with `below`, below it.

    Parameters
    ----------
    store, path
        What is to be changed.
    below
        Whether all that lies below is changed as well.
    often
        Whether it is asked again and again, by every assignment: of a store that is far away the
        answer is believed for some seconds then, and who may not look there is not kept from
        writing.

    Raises
    ------
    RankError
        If it belongs to an output that is open (`zarr_dask.Writer`).
    JobRunningError
        If, with `below`, a process that lives works on a job there.
    LinkError
        If, with `below`, a link leads to where journals lie.
    """
    if often and is_far(store):
        _FREE.get(real_place(store, path), partial(_check_if_possible, store, path))
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
        check_none_held(place.store, [key], where(store, path))
    return there_are_some or not is_far(place.store)  # a folder may be there without a value


def _check_if_possible(store: Store, path: str) -> None:
    with suppress(StoreError):
        check_no_output(store, path)


def output_of(store: Store, path: str, journal: Location | None = None) -> OpenOutput | None:
    """The open output that an array belongs to, if there is one.

    Parameters
    ----------
    store, path
        The array.
    journal
        Where the output was told to keep its journal, if not at its default place.
    """
    groups = _default_groups(store, path) if journal is None else _groups(journal, store, path)
    for place, name in groups:
        key = f"{place.prefix}{OUTPUT}"
        text = place.store.get(key)
        if text is None:
            continue
        arrays = load_json(place.store, key, bytes(text)).get("arrays", {})
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


def _default_groups(store: Store, path: str) -> Iterator[tuple[Place, str]]:
    """Where outputs of groups above an array may be, from the root of the hierarchy on.

    With each place comes the name of the array below that group.
    """
    place = default_place(store, path)
    parts = [] if place is None else place.prefix.split("/")
    for count in range(1, len(parts) - 1):
        if place is not None:
            group = "/".join(parts[:count]) + "/"
            yield Place(place.store, group), place.prefix[len(group) :].rstrip("/")


def _groups(journal: Location, store: Store, path: str) -> Iterator[tuple[Place, str]]:
    """The same of outputs with a journal elsewhere, from the nearest group on."""
    store, path = bare(store, path)
    name = ""
    while True:
        path, _, last = path.rpartition("/")
        if not last:
            around = beside(store, "")
            if around is None or not holds_node(around[0]):
                return
            store, last = around
        name = join(last, name) if name else last
        with suppress(ResumeError):  # a group around the journal has no output that uses it
            yield given_place(journal, store, path), name


def _is_output(what: str, url: str) -> RankError:
    return RankError(
        f"{what} is written by a zarr_dask.Writer, whose output is open ({url}). End it with "
        "finish() before, or write by way of it; zarr_dask.Writer.abandon forgets one whose ranks "
        "will not go on."
    )
