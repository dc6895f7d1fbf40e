"""Changes of what nodes there are, one at a time: making room, removing and renaming.

A new node is put on the condition that there is none; that tells which of two is made. What else
such a change removes must not be what another one has just put there. In local files the folder
around the node is locked meanwhile. Appends are kept away by a claim to the end of the array, in
all stores that have claims. Writes of regions ask nobody: theirs come before or after. In object
stores the location is claimed as by a job (`zarr_dask.journal.node_claims`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from secrets import token_hex

from zarr_dask.errors import StoreError
from zarr_dask.hierarchy.locate import PrefetchedLocation, prefetch_location
from zarr_dask.journal import (
    JournalLocation,
    NodeClaim,
    NodeClaims,
    check_no_output,
    claim_node,
    claimed,
    default_place,
    releasing,
)
from zarr_dask.journal.group_changes import leave_changes
from zarr_dask.journal.location import is_bare
from zarr_dask.stores.base import Store, is_remote
from zarr_dask.stores.compare_and_swap import folder_lock
from zarr_dask.stores.fenced_deletes import fenced_deletes
from zarr_dask.stores.open import local_path

__all__ = ["creating", "editing", "removing"]


@contextmanager
def creating(
    store: Store, path: str, check: Callable[[PrefetchedLocation], object], *, below: bool = True
) -> Iterator[tuple[PrefetchedLocation, NodeClaim | None]]:
    """Claim the location of a new node within a ``with`` statement, where there are claims.

    Yield the location as it is then, and the claim.

    Parameters
    ----------
    store, path, below
        As for `prefetch_location`.
    check
        Raises if the node may not be made. It is called before the claim of another job is taken
        over, which stops that job.

    Raises
    ------
    JobReplacedError
        If a later job has taken the location over meanwhile.
    JobRunningError
        If a job has claimed a node above.
    """
    token = token_hex(16)
    claim, is_others = claim_node(store, path, token, takes_over=False)
    if is_others:
        check(prefetch_location(store, path, below=below))
        claim, was_others = claim_node(store, path, token)
        if was_others:
            leave_changes(store, path)
    if claim is None:
        yield prefetch_location(store, path, below=below), None
        return
    with releasing(claim), fenced_deletes(claim.fence):
        yield prefetch_location(store, path, below=below, own=(claim.key,)), claim


@contextmanager
def editing(store: Store, *paths: str) -> Iterator[JournalLocation | None]:
    """Let no other process make room for, remove or rename these nodes within a ``with`` statement.

    Metadata above must not be put within it: locks are taken from the outside in.

    Yields
    ------
    JournalLocation or None
        The location of the journals of the first node, if its store is local and has one.

    Raises
    ------
    StoreError
        If the folder around a node cannot be locked.
    """
    around = [_folder_around(store, path) for path in paths]
    with ExitStack() as stack:
        for folder in sorted({folder for folder, _ in around} - {""}):
            try:
                stack.enter_context(folder_lock(folder))
            except OSError as error:
                raise StoreError(f"could not lock {folder}: {error.strerror or error}.") from error
        yield around[0][1]


@contextmanager
def removing(
    store: Store,
    path: str,
    *others: str,
    free_beside: bool = False,
    claims: NodeClaims | None = None,
) -> Iterator[bool]:
    """As `editing`, and keep appends to the first node away, because it is removed or moved.

    Yield False if there are no journals of it.

    Parameters
    ----------
    store, path
        The node.
    others
        Further paths that change.
    free_beside
        True if nothing lay beside the hierarchy; looked at again in local files.
    claims
        Claims to these locations, in a remote store.

    Raises
    ------
    AppendConflictError
        If an append is under way.
    RankError
        If it belongs to a simulation output that is still open, or contains one.
    """
    with editing(store, path, *others) as place:
        is_free = free_beside and is_bare(place)  # a job may have begun since
        has_journals = not is_free and check_no_output(store, path, below=True)
        with claimed(store, path, removes=True):
            yield has_journals
            if not is_remote(store) or (claims is not None and claims.were_others):
                leave_changes(store, path)


def _folder_around(store: Store, path: str) -> tuple[str, JournalLocation | None]:
    """Return the folder to lock for a node, whatever root the node is named from.

    It is the folder around that of the node, or the root of a hierarchy itself; empty where
    nothing is to be locked. The location of the node's journals is returned with it.
    """
    found = local_path(store, path)
    if found is None:
        return "", None
    place, own = default_place(store, path), os.path.realpath(found)
    is_root = place is not None and place.prefix.count("/") == 1
    around = own if is_root else os.path.dirname(own)
    return around if os.path.isdir(around) else "", place
