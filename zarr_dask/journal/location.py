"""The locations of journals, one for each node that a job writes to, and links above them.

The default is ``<root>.zarr-dask/<path>/`` beside the root of the hierarchy, so that nothing is
ever added to the hierarchy itself::

    run.zarr/                              the hierarchy
    run.zarr.zarr-dask/ocean/salt/         the journals of the node ocean/salt
        __job-<16 hex digits>/             a journal
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from time import monotonic
from typing import Generic, TypeVar

from zarr_dask._util.threads import parallel_for, run_concurrently
from zarr_dask.errors import LinkError, ListingError, ResumeError, StoreError
from zarr_dask.formats.base import prefix_of, where
from zarr_dask.formats.detect import nodes_around
from zarr_dask.formats.documents import looked_up_once, real_path
from zarr_dask.journal.journal import JobRecord, Journal, job_at, remove_empty_folders
from zarr_dask.journal.lock import HELD, check_not_locked
from zarr_dask.stores.base import Store, is_remote, join
from zarr_dask.stores.file_backed import FileStore
from zarr_dask.stores.no_follow import link_error
from zarr_dask.stores.open import (
    Location,
    canonical_location,
    folder_store,
    local_path,
    open_with_options_of,
    sibling_location,
    unwrap_with_path,
)
from zarr_dask.stores.real_location import check_folder
from zarr_dask.stores.sessions import JobSession, job_session
from zarr_dask.stores.wrapper import forkable

__all__ = [
    "CLAIM",
    "JOB",
    "NODES",
    "JournalLocation",
    "TTLCache",
    "check_behind_no_link",
    "check_no_link",
    "check_resumable",
    "default_place",
    "discard_journals",
    "from_root",
    "given_place",
    "holds_node",
    "is_bare",
    "new_journal",
    "no_open_journals",
    "open_journals",
]


T = TypeVar("T")

_SECONDS = 5.0
_MOST = 256


class TTLCache(Generic[T]):
    """Cached results by their request, as a job makes the same request several times.

    They are valid for some seconds, and until this process writes or removes metadata.

    Examples
    --------
    >>> believed = TTLCache[int]()
    >>> believed.get("a", lambda: 1), believed.get("a", lambda: 2)
    (1, 1)
    >>> believed.forget()
    >>> believed.get("a", lambda: 2)
    2
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[T, float]] = {}

    def get(self, asked: str, ask: Callable[[], T]) -> T:
        """Return the cached result, or that of `ask`; an exception is not cached."""
        known = self._known.get(asked)
        if known is not None and monotonic() - known[1] < _SECONDS:
            return known[0]
        if len(self._known) >= _MOST:
            self._known.clear()
        found = ask()
        self._known[asked] = (found, monotonic())
        return found

    def forget(self) -> None:
        """Empty the cache, because this process has changed something."""
        self._known.clear()


CLAIM = "__append/"
"""Folder of the claim to the end of an array (`zarr_dask.journal.claims`)."""
JOB = "__job-"
"""Start of the names of journals."""
REMOVAL = "__removal"
"""Name of the record of a removal (`zarr_dask.journal.removals`)."""
_SUFFIX = ".zarr-dask"
_NO_NAME = re.compile(r"[^A-Za-z0-9._]+")
_LONGEST_NAME = 60
NODES = TTLCache[bool]()
"""Cached checks for a node at the root of a store."""


@dataclass(frozen=True)
class JournalLocation:
    """The location of the journals of one node."""

    store: Store
    prefix: str
    """Ends in "/", or is empty."""
    session: JobSession | None = field(default=None, compare=False, repr=False)
    """The session of jobs that write to the node, if its store commits."""

    @property
    def url(self) -> str:
        """The location, for messages."""
        return f"{self.store.url}/{self.prefix}"


def default_place(store: Store, path: str) -> JournalLocation | None:
    """Return the location beside the root of a node's hierarchy; None if there is none.

    Memory, archives and the roots of buckets have none. Links are resolved and wrappers removed,
    and a store that begins inside a hierarchy is extended to the root of that. So any way to name a
    node leads to the same location.

    Examples
    --------
    >>> from zarr_dask.stores.open import open_store
    >>> default_place(open_store("/data/run.zarr"), "ocean/salt").url
    '/data/run.zarr.zarr-dask/ocean/salt/'
    """
    store, path = unwrap_with_path(store, path)
    if isinstance(store, FileStore):
        question = ("place", store.root, store.fsync, path)
        return looked_up_once(question, partial(_beside_files, store, path))
    return _beside(store, path)


def _beside_files(store: FileStore, path: str) -> JournalLocation | None:
    return _beside(folder_store(real_path(store.root), fsync=store.fsync), path)


def _beside(store: Store, path: str) -> JournalLocation | None:
    return _place_beside(*_from_root(store, path))


def from_root(store: Store, path: str) -> tuple[Store, str]:
    """Return a store that begins at the root of a node's hierarchy, and the path in that.

    Wrappers are removed.
    """
    return _from_root(*unwrap_with_path(store, path))


def _from_root(store: Store, path: str) -> tuple[Store, str]:
    around = sibling_location(store, "")
    while around is not None and holds_node(around[0]):
        store, name = around
        path = join(name, path)
        around = sibling_location(store, "")
    return store, path


def _place_beside(store: Store, path: str) -> JournalLocation | None:
    """Return the location beside a store that begins at the root of a hierarchy."""
    found = sibling_location(store, _SUFFIX)
    if found is None:
        return None
    return JournalLocation(found[0], prefix_of(join(found[1], path)), job_session(store))


def given_place(url: Location, store: Store, path: str) -> JournalLocation:
    """Return the location of a node's journals below a URL or in another store.

    Each node has a folder of its own there, so that jobs may share the URL. The folder is named by
    the node and a digest of its real location, whatever root the node is named from. A URL of the
    same service as the node's store is opened with the same options.

    Raises
    ------
    StoreError
        If there is a file at the path of the folder.
    ResumeError
        If the location is inside the node itself.

    Examples
    --------
    >>> from zarr_dask.stores.open import open_store
    >>> one = given_place("/jobs", open_store("/data/run.zarr"), "ocean/salt")
    >>> one == given_place("/jobs", open_store("/data/run.zarr/ocean"), "salt")
    True
    >>> one.prefix.startswith("salt-")
    True
    """
    place = canonical_location(store, path)
    held, below = unwrap_with_path(store, path)
    # a mapping makes a new store each time it is passed
    lasting = getattr(held, "lasting_name", None)
    node = place if lasting is None else f"{lasting}/{below}"
    name = _NO_NAME.sub("_", node.rpartition("/")[2])[:_LONGEST_NAME]
    prefix = prefix_of(f"{name or 'root'}-{sha256(node.encode()).hexdigest()[:8]}")
    beside_others = open_with_options_of(url, store)
    check_folder(beside_others, prefix, "journal=")
    if f"{canonical_location(beside_others, '')}/".startswith(f"{place}/"):
        raise ResumeError(
            f"journal= names a place inside of {where(store, path)}, which is to be written: "
            f"{beside_others.url}. Choose one outside of it."
        )
    return JournalLocation(beside_others, prefix, job_session(store))


def holds_node(store: Store) -> bool:
    """True if there is a node at the root of a store; cached for remote stores."""
    if not is_remote(store):
        return _looked_for_node(store)
    return NODES.get(store.identity, partial(_looked_for_node, store))


def _looked_for_node(store: Store) -> bool:
    try:
        return bool(nodes_around(store))
    except StoreError:
        return False  # a folder without read permission does not count as a hierarchy


def new_journal(place: JournalLocation, job: JobRecord) -> Journal:
    """Return a journal for a job, with a new creation."""
    name = sha256(repr((job.token, job.region)).encode()).hexdigest()[:16]
    prefix = f"{place.prefix}{JOB}{name}/"
    return Journal(place.store, prefix, job.token, token_hex(16), session=place.session)


def open_journals(
    place: JournalLocation, *, needed: bool = False
) -> list[tuple[Journal, JobRecord]]:
    """Return the jobs that write to a node and have not ended, whether running or dead.

    Parameters
    ----------
    place
        The location of their journals.
    needed
        If True, a store that cannot list raises; else it has no journals.

    Raises
    ------
    ListingError
        If it is one.
    LinkError
        If the place lies behind a link.
    JournalError
        If a document there says what no job says.
    """
    check_behind_no_link(place)
    found = []
    try:
        prefixes = place.store.list_dir(place.prefix).prefixes
    except ListingError:
        if needed:
            raise
        return []
    for prefix in prefixes:
        if not prefix[len(place.prefix) :].startswith(JOB):
            continue
        job = job_at(place.store, prefix)
        if job is not None:
            journal = Journal(place.store, prefix, job.token, job.run_id, session=place.session)
            found.append((journal, job))
    return found


def check_behind_no_link(place: JournalLocation) -> None:
    """Refuse journals behind a link: what is removed with them would not be a job's.

    Raises
    ------
    LinkError
        If a link leads to the place, or stands in it.
    """
    if not isinstance(place.store, FileStore):
        return
    folder = place.store.root
    for name in place.prefix.rstrip("/").split("/"):
        folder = os.path.join(folder, name)
        if os.path.islink(folder):
            raise LinkError(
                f"{folder} is a link that leads to {os.path.realpath(folder)}: journals, which jobs"
                " write and remove, do not lie behind links. Remove the link; to keep journals "
                "elsewhere, name the place by journal=."
            )


def check_resumable(store: Store, at: str, *, by_checkpoints: bool = True) -> None:
    """Raise if a store discards the work of a job that dies before the commit.

    Objects of equal size may exist already, so that receipts would not be reliable. A session that
    the job commits itself makes checkpoints from now on, unless the job has no use for them.

    Raises
    ------
    ResumeError
        If it is such a store.
    """
    session = job_session(store)
    if session is not None and by_checkpoints:
        session.resume()
    elif forkable(store) is not None:
        raise ResumeError(
            f"{at} keeps all that was written when it is committed, or nothing: of a job that has "
            "died there is nothing left to go on with. Leave resume= out"
            + (
                " and commit after each call, or write to a branch by its URL."
                if by_checkpoints
                else ": images are written to such a store in one go."
            )
        )


def discard_journals(
    store: Store, path: str, place: JournalLocation | None = None, *, is_claimed: bool = False
) -> None:
    """Discard the jobs that wrote to a node or below it, because it is removed or replaced.

    A caller that knows the `default_place` of the node passes it.

    A caller that has claimed the end of the array (`is_claimed`) gives the claim up with that:
    there is no node any more. The record of its removal stays. In remote stores the claim to the
    location stays, which is the caller's or that of a job. Jobs with a journal elsewhere
    (``journal=``) are not found. Their receipts are not valid for the new node, because that has
    another creation.

    Raises
    ------
    JobRunningError
        If a process that lives works on one of them.
    LinkError
        If they would lie behind a link.
    """
    place = place or default_place(store, path)
    if place is not None:
        check_behind_no_link(place)
    if place is None:
        return
    if place.session is not None:
        for journal, _ in open_journals(place):
            journal.check_not_locked(where(store, path))
            journal.discard_session()
    own, removal = f"{place.prefix}{CLAIM}{HELD}", f"{place.prefix}{REMOVAL}"
    kept = {own, removal} if is_claimed else {own}
    try:
        if is_remote(place.store):
            old = [key for key in place.store.list(place.prefix) if key not in kept]
            parallel_for(place.store.delete, old, None)
            return
        if not any(place.store.list_dir(place.prefix)):
            return
    except ListingError:  # a store without listings has no journals
        return
    if isinstance(place.store, FileStore):
        keys = (key for key in place.store.list(place.prefix) if not is_claimed or key != own)
        check_not_locked(place.store, keys, where(store, path))
    if is_claimed and place.store.size(removal) is not None:
        _remove_all_but(place, removal)
    else:
        place.store.delete_prefix(place.prefix)
    remove_empty_folders(place.store, place.prefix)


def _remove_all_but(place: JournalLocation, kept: str) -> None:
    keys, folders = place.store.list_dir(place.prefix)
    for key in {*keys, *(one.rstrip("/") for one in folders)} - {kept}:
        place.store.delete(key)  # also a link, which has the name of a folder
    for folder in folders:
        place.store.delete_prefix(folder)


def no_open_journals(store: Store, path: str, own: Collection[str] = ()) -> bool:
    """True if it is known that nothing is stored beside the hierarchy of an existing or new node.

    Nothing but the keys of the caller's claims (`own`), that is.

    Then there are neither journals at the default locations of its nodes nor open outputs. For
    remote stores the location and its content are looked up concurrently, because hardly any store
    begins inside a hierarchy.
    """
    likely = _place_beside(*unwrap_with_path(store, path))
    place, is_free = run_concurrently(
        partial(default_place, store, path), partial(is_bare, likely, own)
    )
    return is_free if place == likely else is_bare(place, own)


def is_bare(place: JournalLocation | None, own: Collection[str] = ()) -> bool:
    """True if nothing is stored beside the hierarchy of a location; False if that is not known."""
    if place is None:
        return True
    beside = prefix_of(place.prefix.partition("/")[0])
    if isinstance(place.store, FileStore) and not os.path.lexists(f"{place.store.root}/{beside}"):
        return True
    try:
        if own:
            return all(key in own for key in place.store.list(beside))
        return not any(place.store.list_dir(beside))
    except StoreError:
        return False  # a caller that must know requests it again


def check_no_link(store: Store, path: str) -> None:
    """Refuse to replace, remove or rename a node in whose place, or above which, a link stands.

    What the link leads to may be anybody's. The root of a hierarchy may be a link, and what lies
    above it; a store that begins at a link in a group is such a node.

    Raises
    ------
    LinkError
        If one does.
    """
    store, path = unwrap_with_path(store, path)
    root = local_path(store, "")
    if root is None:
        return
    done = ""
    for name in path.split("/") if path else ():
        done = join(done, name)
        if Path(root, done).is_symlink():
            raise link_error(root, done)
    for place in (Path(root), *Path(root).parents):
        if place.is_symlink() and _looked_for_node(folder_store(str(place.parent))):
            raise link_error(str(place.parent), place.name)
