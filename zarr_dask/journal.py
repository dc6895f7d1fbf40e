"""Journals: where a job keeps what it is and the receipts of its tasks, beside the hierarchy.

The journals of the jobs that write to one node lie in a `Place`, by default
``<root>.zarr-dask/<path>/`` beside the root of the hierarchy, one folder each::

    run.zarr/                              the hierarchy, in which nothing is ever added
    run.zarr.zarr-dask/ocean/salt/         the place of the node ocean/salt
        __job-<16 hex digits>/
            job.json                       what the job is (`Job`); there while it is open
            receipts-<host>-<pid>-<..>     one file per process, only ever appended to
            receipts-task-<..>             where stores cannot append: one object per task

The file of a process is written with one call per receipt, so that a killed process leaves whole
lines and at most a torn last one, which is passed over. No two processes share a file: appending
from two hosts is not safe on network file systems. A journal is removed when its job has ended
well; a task that ends later (of a worker that was thought dead) then finds no journal, and what
it has written is what was there.

Everything here is bytes and values: which objects a job owns and what is left of it is for the
jobs to say. Writes, rechunkings and simulation output keep the same journals.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from time import monotonic
from typing import Any

from zarr_dask.errors import (
    ListingError,
    MetadataError,
    NodeNotFoundError,
    RankError,
    ResumeError,
    StoreError,
)
from zarr_dask.formats.base import (
    Limits,
    ancestors,
    load_json,
    prefix_of,
    read_documents,
    where,
)
from zarr_dask.formats.detect import formats_at
from zarr_dask.pool import abreast
from zarr_dask.receipts import Receipt, Receipts, collect, parse_receipts
from zarr_dask.stores.base import Appender, Buffer, Store, is_far, join, list_sizes
from zarr_dask.stores.conditional import conditional, tag_of
from zarr_dask.stores.durable import forget_folders
from zarr_dask.stores.local import LocalStore
from zarr_dask.stores.memory import MemoryStore
from zarr_dask.stores.urls import Location, bare, beside, open_alike, real_place
from zarr_dask.stores.wrappers import forkable
from zarr_dask.surroundings import check_folder

__all__ = [
    "Job",
    "Journal",
    "OpenOutput",
    "Place",
    "check_no_output",
    "check_resumable",
    "creating",
    "default_place",
    "discard_journals",
    "explained",
    "forget_nodes_above",
    "given_place",
    "is_free_beside",
    "new_journal",
    "open_journals",
    "output_of",
    "remove_empty_folders",
]

OUTPUT = "__output/output.json"
"""Says beside a group what its ranks write (`jobs.simulation.output`), while that goes on."""
STAGES = "stages"
"""Fact of a job whose receipts have creations of their own, for each of its stages or arrays."""
TARGETS = "targets"
"""Fact of a job of several arrays: their paths, where it does not make all below its place."""
LAST = "-target"
"""What the creation of the receipts of a last stage ends in."""
_FORMAT = "zarr-dask job 1"
_FOLDER = "__job-"
_DOCUMENT = "job.json"
_RECEIPTS = "receipts-"
_SUFFIX = ".zarr-dask"
_NO_NAME = re.compile(r"[^A-Za-z0-9._]+")
_LONGEST_NAME = 60
_PROCESS = token_hex(4)  # with the process id: two hosts may share a name, and ids come again


@dataclass(frozen=True)
class Place:
    """Where the journals of one node lie."""

    store: Store
    prefix: str
    """Ends in "/", or is empty."""

    @property
    def url(self) -> str:
        """For messages."""
        return f"{self.store.url}/{self.prefix}"


@dataclass(frozen=True)
class Job:
    """What a job is, so that it is known again and can be finished."""

    kind: str
    """What does the work, such as ``"write"``."""
    token: str
    """Equal for the same job only; random where nobody may take it up again."""
    creation: str
    """Random: tells what the job writes to from what may be at the same place later."""
    resume: str = ""
    """How it can be taken up: ``"token"``, ``"name"``, or not at all."""
    creates: bool = False
    """Whether what it writes to does not exist before it ends."""
    data: str = ""
    """What the keys of its stored objects lie below, if that is not their node; as in drafts."""
    objects: int = 0
    """Stored objects that it writes, those that turn out to be empty included."""
    documents: Mapping[str, str] = field(default_factory=dict)
    """Metadata documents that are written last, by key."""
    layers: tuple[tuple[str, str], ...] = ()
    """Name and token of every layer of the graph, inputs first."""
    region: tuple[tuple[int, int], ...] = ()
    """First element and the one behind the last along each dimension; empty for all."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What else a kind of job must keep."""
    begun: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    growing: bool = False
    """Whether an append has begun to show the new length, or has shown it."""
    ended: bool = False
    """Whether it has ended, and all that began with it; only journals are left to be removed."""
    writes: str = ""
    """Tells which values go where, whatever the region: an array grows, and they are put once."""
    together: tuple[str, ...] = ()
    """What the others write that have ended with it."""
    swap: str = ""
    """Tells the folder of an array that takes the place of another one at the end."""

    def to_json(self) -> bytes:
        """As the journal holds it."""
        return json.dumps({"format": _FORMAT, **asdict(self)}, indent=1).encode()

    def meets(self, region: tuple[tuple[int, int], ...]) -> bool:
        """Whether the job writes to some element of a region."""
        pairs = zip(self.region, region, strict=False)  # of nothing else if one of them is empty
        return all(a < d and c < b for (a, b), (c, d) in pairs)


@dataclass(frozen=True)
class Journal:
    """The journal of one job; small, and a part of each of its tasks."""

    store: Store
    prefix: str
    """Ends in "/"."""
    token: str
    creation: str

    @property
    def url(self) -> str:
        """For messages."""
        return f"{self.store.url}/{self.prefix}"

    def begin(self, job: Job) -> None:
        """Open the journal; what an older job has left in it goes."""
        self.store.delete_prefix(self.prefix)
        self.note(job)

    def note(self, job: Job) -> None:
        """Say what the job is."""
        self.store.set(f"{self.prefix}{_DOCUMENT}", [job.to_json()])

    def note_if_none(self, job: Job) -> bool:
        """As `note`, unless there is a job here already; returns whether it was noted.

        The store must be a `zarr_dask.stores.conditional.ConditionalStore`.
        """
        store = conditional(self.store)
        return store.set_if(f"{self.prefix}{_DOCUMENT}", [job.to_json()], tag_of(None))

    def add(self, receipt: Receipt) -> None:
        """Keep a receipt; nothing happens where the job has ended and its journal is gone.

        Raises
        ------
        StoreError
            If it cannot be written. The task must fail then: its work would not be known.
        """
        line = receipt.to_line()
        if isinstance(self.store, Appender):
            self.store.append(f"{self.prefix}{_RECEIPTS}{_name_of_process(os.getpid())}", line)
            return
        # a task that is run again replaces its own, and no other array's or stage's of equal keys
        names = [receipt.creation, *(item.key for item in receipt.objects), *receipt.empty]
        name = sha256(",".join(names).encode()).hexdigest()[:16]
        self.store.set(f"{self.prefix}{_RECEIPTS}task-{name}", [line])

    def receipts(self) -> Iterator[Receipt]:
        """All receipts, those of other creations included; some may come twice.

        What another process merges meanwhile is found again in what it was merged into.
        """
        asked: set[str] = set()
        while True:
            found = {key for key in self.store.list(self.prefix) if self._is_receipts(key)}
            absent = False
            for key in sorted(found - asked):
                text = self.store.get(key)
                absent |= text is None
                if text is not None:
                    yield from parse_receipts(text)
            if not absent:
                return
            asked |= found

    def _is_receipts(self, key: str) -> bool:
        return key.startswith(f"{self.prefix}{_RECEIPTS}")

    def valid_receipts(self, sizes: Mapping[str, int]) -> Receipts:
        """The receipts that hold for what is in the store, by the sizes of what is there."""
        return collect(self.receipts(), self.creation, sizes)

    def merge(self) -> None:
        """Put the receipts of single tasks into one object, where the store cannot append."""
        if isinstance(self.store, Appender):
            return
        keys = [key for key in self.store.list(self.prefix) if self._is_receipts(key)]
        texts: list[Buffer] = [text for text in map(self.store.get, keys) if text is not None]
        if len(texts) < 2:
            return
        merged = f"{self.prefix}{_RECEIPTS}merged-{token_hex(8)}"
        self.store.set(merged, texts)
        for key in keys:
            self.store.delete(key)

    def job(self) -> Job | None:
        """The job that keeps its journal here now; None if it has ended."""
        return _job_at(self.store, self.prefix)

    def note_end(self, others: Iterable[Journal]) -> None:
        """Say that the job has ended, and those that began with it, before any journal goes."""
        job = self.job()
        if job is None:
            return
        found = [other.job() for other in others]
        written = [other.writes for other in found if other is not None]
        together = dict.fromkeys((*job.together, *written))  # journals of some may be gone
        self.note(replace(job, ended=True, together=tuple(together)))

    def remove(self) -> None:
        """End the job: nothing of the journal stays, nor folders that have become empty."""
        self.store.delete(f"{self.prefix}{_DOCUMENT}")
        with suppress(StoreError):  # a task that ends late may add to it; the job is over anyway
            self.store.delete_prefix(self.prefix)
        remove_empty_folders(self.store, self.prefix)


@lru_cache(maxsize=1)
def _name_of_process(number: int) -> str:
    """Tells a process from all others; after a fork it has another number."""
    return f"{socket.gethostname()}-{number}-{_PROCESS}"


def remove_empty_folders(store: Store, prefix: str) -> None:
    """Remove the folders that lead to a journal, as far as they are empty."""
    if not isinstance(store, LocalStore):
        return
    forget_folders()
    for folder in (prefix.rstrip("/"), *_folders_above(prefix.rstrip("/"))):
        try:
            Path(store.root, folder).rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            return  # other journals are in it


def _folders_above(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


# --- places ---------------------------------------------------------------------------------------


def default_place(store: Store, path: str) -> Place | None:
    """Beside the root of the hierarchy that a node is in; None where there is no such place.

    Memory, archives and the roots of buckets have none. Links are followed and wrappers taken
    off, and a store that begins inside a hierarchy leads to the root of that, so that all ways to
    name a node lead to one place.

    Examples
    --------
    >>> default_place(LocalStore("/data/run.zarr"), "ocean/salt").url
    '/data/run.zarr.zarr-dask/ocean/salt/'
    """
    store, path = bare(store, path)
    if isinstance(store, LocalStore):
        store = LocalStore(os.path.realpath(store.root), store.fsync)
    around = beside(store, "")
    while around is not None and _holds_node(around[0]):
        store, name = around
        path = join(name, path)
        around = beside(store, "")
    return _place_beside(store, path)


def _place_beside(store: Store, path: str) -> Place | None:
    """Beside a store that begins at the root of a hierarchy."""
    found = beside(store, _SUFFIX)
    return None if found is None else Place(found[0], prefix_of(join(found[1], path)))


def given_place(url: Location, store: Store, path: str) -> Place:
    """The place of a node's journals below a URL or in a store of their own.

    Each node has a folder of its own there, so that jobs may share the URL: its name, and a digest
    of where it lies, so that it is the same from whatever root the node is named. A URL in the
    service that the node's store is in is opened with the same options.

    Raises
    ------
    StoreError
        If a file is in the way of the folder.
    ResumeError
        If it lies in the node itself.

    Examples
    --------
    >>> one = given_place("/jobs", LocalStore("/data/run.zarr"), "ocean/salt")
    >>> one == given_place("/jobs", LocalStore("/data/run.zarr/ocean"), "salt")
    True
    >>> one.prefix.startswith("salt-")
    True
    """
    place = real_place(store, path)
    held, below = bare(store, path)
    # a mapping is another store each time it is given
    node = f"{held.lasting_name}/{below}" if isinstance(held, MemoryStore) else place
    name = _NO_NAME.sub("_", node.rpartition("/")[2])[:_LONGEST_NAME]
    prefix = prefix_of(f"{name or 'root'}-{sha256(node.encode()).hexdigest()[:8]}")
    beside_others = open_alike(url, store)
    check_folder(beside_others, prefix, "journal=")
    if f"{real_place(beside_others, '')}/".startswith(f"{place}/"):
        raise ResumeError(
            f"journal= names a place inside of {where(store, path)}, which is to be written: "
            f"{beside_others.url}. Choose one outside of it."
        )
    return Place(beside_others, prefix)


def check_resumable(store: Store, at: str) -> None:
    """Refuse to take up jobs in a store that keeps nothing of them before it is committed.

    Objects of equal size may have been there before, so that receipts could not tell.

    Raises
    ------
    ResumeError
        If it is such a store.
    """
    if forkable(store) is not None:
        raise ResumeError(
            f"{at} keeps all that was written when it is committed, or nothing: of a job that has "
            "died there is nothing left to go on with. Leave resume= out, and commit after each "
            "call."
        )


def _holds_node(store: Store) -> bool:
    if not is_far(store):
        return _looked_for_node(store)
    return _ABOVE.holds_node(store)


def _looked_for_node(store: Store) -> bool:
    try:
        return bool(formats_at(store, ""))
    except StoreError:
        return False  # a folder that may not be looked into is nobody's hierarchy


class _Above:
    """What lies around hierarchies in stores that are far away: other ones, and open outputs.

    A job asks several times; an answer is believed for some seconds, and no longer than until this
    process has written or removed a document.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[bool, float]] = {}
        self._free: dict[str, float] = {}

    def check_no_output(self, store: Store, path: str) -> None:
        """Refuse to change an array of an open output, if that can be found out."""
        node = real_place(store, path)
        if monotonic() - self._free.get(node, -_BELIEVED) < _BELIEVED:
            return
        with suppress(StoreError):
            check_no_output(store, path)
        if len(self._free) >= _MOST_KNOWN:
            self._free.clear()
        self._free[node] = monotonic()

    def holds_node(self, store: Store) -> bool:
        """Whether there is a node at the root of a store."""
        known, asked = self._known.get(store.identity, (False, 0.0))
        if asked and monotonic() - asked < _BELIEVED:
            return known
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        found = _looked_for_node(store)
        self._known[store.identity] = (found, monotonic())
        return found

    def forget(self) -> None:
        """A document was written or removed."""
        self._known.clear()
        self._free.clear()


_ABOVE = _Above()
_BELIEVED = 5.0
_MOST_KNOWN = 256


def forget_nodes_above() -> None:
    """A document was written or removed, so that places of journals may be others."""
    _ABOVE.forget()


def new_journal(place: Place, job: Job) -> Journal:
    """A journal for a job, of a new creation."""
    name = sha256(repr((job.token, job.region)).encode()).hexdigest()[:16]
    return Journal(place.store, f"{place.prefix}{_FOLDER}{name}/", job.token, token_hex(16))


def open_journals(place: Place, *, needed: bool = False) -> list[tuple[Journal, Job]]:
    """The jobs that write to a node and have not ended: running ones, and ones that have died.

    Parameters
    ----------
    place
        Where their journals are.
    needed
        Whether a store that lists nothing is an error; else nobody can have kept a journal there.

    Raises
    ------
    ListingError
        If it is one.
    """
    found = []
    try:
        prefixes = place.store.list_dir(place.prefix).prefixes
    except ListingError:
        if needed:
            raise
        return []
    for prefix in prefixes:
        if not prefix[len(place.prefix) :].startswith(_FOLDER):
            continue
        job = _job_at(place.store, prefix)
        if job is not None:
            found.append((Journal(place.store, prefix, job.token, job.creation), job))
    return found


def _job_at(store: Store, prefix: str) -> Job | None:
    key = f"{prefix}{_DOCUMENT}"
    text = read_documents(store, [key], Limits())[key]
    if text is None:
        return None
    try:
        document = load_json(store, key, text)
        if document.pop("format", None) != _FORMAT:
            return None
        job = Job(**document)
        return Job(
            **{
                **vars(job),
                "layers": tuple((str(name), str(token)) for name, token in job.layers),
                "region": tuple((int(start), int(stop)) for start, stop in job.region),
                "together": tuple(map(str, job.together)),
            }
        )
    except (MetadataError, TypeError, ValueError):
        return None  # nothing that this package has written: no job of ours


def discard_journals(store: Store, path: str) -> None:
    """Forget the jobs that wrote to a node and to all below it, because it is removed or replaced.

    Those in a place of their own (``journal=``) are not found; their receipts hold for nothing
    that is written anew, because that has another creation.
    """
    place = default_place(store, path)
    try:
        if place is None or not any(place.store.list_dir(place.prefix)):
            return
    except ListingError:  # no job can have kept a journal there
        return
    place.store.delete_prefix(place.prefix)
    remove_empty_folders(place.store, place.prefix)


def is_free_beside(store: Store, path: str) -> bool:
    """Whether it is known that nothing is kept beside the hierarchy that a node is, or will be, in.

    Then there is no journal of any of its nodes at its default place, and no open output. For
    stores that are far away: where a place would be, and what is there, is asked at the same time,
    because hardly any store begins inside of a hierarchy.
    """
    likely = _place_beside(*bare(store, path))
    place, is_free = abreast(partial(default_place, store, path), partial(_is_bare, likely))
    return is_free if place == likely else _is_bare(place)


def _is_bare(place: Place | None) -> bool:
    """Whether nothing is kept beside the hierarchy of a place; False where that is not known."""
    if place is None:
        return True
    try:
        return not any(place.store.list_dir(prefix_of(place.prefix.partition("/")[0])))
    except StoreError:
        return False  # it is asked for again by whoever must know


# --- output of simulations ------------------------------------------------------------------------


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
    """
    if often and is_far(store):
        _ABOVE.check_no_output(store, path)
        return True
    output = output_of(store, path)
    if output is not None:
        raise _is_output(where(store, path), output.url)
    place = default_place(store, path) if below else None
    if place is None:
        return True
    there_are_some = False
    for key in place.store.list(place.prefix):
        there_are_some = True
        if key == OUTPUT or key.endswith(f"/{OUTPUT}"):
            raise _is_output(where(store, path), f"{place.store.url}/{key[: -len(OUTPUT)]}")
    return there_are_some or not is_far(place.store)  # a folder may be there without a value


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
        if name in arrays:
            return OpenOutput(place.url, int(arrays[name]["axis"]))
    return None


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
            if around is None or not _holds_node(around[0]):
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


# --- what a half-done job looks like --------------------------------------------------------------


def explained(error: NodeNotFoundError, store: Store, path: str) -> NodeNotFoundError:
    """The error, saying what is missing if a job that creates the node has not ended."""
    try:
        found = next(creating(store, path), None)
    except StoreError:
        return error  # what was asked for was not there; that is all that can be said
    if found is None:
        return error
    journal, job = found
    prefix = job.data or prefix_of(path)
    if job.facts.get(STAGES):
        hint = _what_is_left(journal, job)
    else:
        sizes = {key[len(prefix) :]: size for key, size in list_sizes(store, prefix)}
        hint = _what_is_missing(journal, job, sizes)
    return NodeNotFoundError(error.where, error.looked_for, hint)


def creating(store: Store, path: str) -> Iterator[tuple[Journal, Job]]:
    """The open jobs that create a node, alone or with others below a group above it.

    Those that were given a journal of their own are not found.
    """
    place = default_place(store, path)
    if place is None:
        return
    root = place.prefix.removesuffix(prefix_of(path))
    if not any(place.store.list_dir(root)):
        return  # nobody writes anything to this hierarchy
    for above in (path, *reversed(ancestors(path))):
        for journal, job in open_journals(Place(place.store, root + prefix_of(above))):
            if job.creates and (above == path or _makes(job, path)):
                yield journal, job


def _makes(job: Job, path: str) -> bool:
    """Whether a job of several arrays makes the node at a path below its own place."""
    targets = job.facts.get(TARGETS, [path])
    return bool(job.facts.get(STAGES)) and isinstance(targets, list) and path in targets


def _what_is_left(journal: Journal, job: Job) -> str:
    """What is missing of a job whose receipts are of several stages or arrays."""
    done = {
        (receipt.creation, key)
        for receipt in journal.receipts()
        if "-" not in receipt.creation or receipt.creation.endswith(LAST)
        for key in (*(item.key for item in receipt.objects), *receipt.empty)
    }
    return (
        f"A job that began to create it at {job.begun} has not ended, or is still running: "
        f"{len(done)} of at most {job.objects} stored objects have receipts. The same call with "
        f"resume=True does what is missing and ends it. (Its journal: {journal.url})"
    )


def _what_is_missing(journal: Journal, job: Job, sizes: Mapping[str, int]) -> str:
    begun = f"A job that began to create it at {job.begun} has not ended, or is still running: "
    if not job.resume:
        return (
            f"{begun}{len(sizes)} stored objects of at most {job.objects} are there. It keeps no "
            "receipts, so that the same call must begin anew; with resume=True it would not have "
            f"to. (Its journal: {journal.url})"
        )
    done = len(journal.valid_receipts(sizes))
    how = "resume=True" if job.resume == "token" else f"resume={job.token.partition(':')[2]!r}"
    return (
        f"{begun}{done} of {job.objects} stored objects have valid receipts, "
        f"{job.objects - done} are missing. The same call with {how} writes those and ends it. "
        f"(Its journal: {journal.url})"
    )
