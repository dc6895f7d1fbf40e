"""The location of a new node in a remote store: one job at a time makes what is there.

On local files a lock tells that a job lives. In an object store nobody can tell, and a request that
is on its way cannot be called back. So a job that makes a node there claims its location before it
changes anything. The claim is the object by which an append has the end of its array
(`zarr_dask.journal.claims`), created on the condition that there is none::

    run.zarr.zarr-dask/ocean/salt/__append/held

A job deletes it when what it has made is visible. One that finds the claim of another job takes it
over: dead or at work, the other one is the earlier job. The later one replaces the claim on the
condition that it has not changed, and waits as long as the earlier one may rely on its last look at
it (`zarr_dask.journal.lock.wait_out`). Only then does it look at the location and make room.

* A job has seen its claim within `zarr_dask.journal.lock.INTERVAL` seconds before each object that
  it puts, and before each request that deletes (`zarr_dask.stores.fenced_deletes`). If the claim
  is another one's, it stops with `JobReplacedError`.
* A job succeeds only if it has seen its claim within that time when its metadata have been put. A
  later one that has taken the claim over since is still waiting then, and comes after it.

Calls that make, delete or rename a node do the same (`claiming_nodes`), except for a new group:
that removes nothing, and its metadata are put on the condition that there are none. What replaces
or removes a node ends the claims below it (`end_claims_below`), and waits as well. A node is not
made below another one whose claim a job has: each looks for the other one when its own claim is
there.

* What was on its way to the store for longer than that lands among the objects of the later job.
  Such a job keeps receipts (`NodeClaim.was_others`). Before it puts its metadata it looks once, by
  a listing, whether the objects are those of the receipts, by size and ETag.

Parts of one plan, and calls that resume a job, have the token of that job and share its claim.
A call with ``resume=`` that is equal to one of a process which is at work
(`zarr_dask.journal.leases`) waits for that (`zarr_dask.journal.lock.SameJobRunningError`).
There is no claim in stores without conditional writes, at the root of a bucket, and where nothing
may be put beside the hierarchy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from secrets import token_hex
from typing import Any, NamedTuple

from zarr_dask._util.threads import parallel_for
from zarr_dask.errors import (
    AppendConflictError,
    JobReplacedError,
    JobRunningError,
    ListingError,
    StoreError,
)
from zarr_dask.formats.base import Limits, read_documents, where
from zarr_dask.journal.claims import (
    ClaimRecord,
    change_claim,
    check_not_same,
    holds_no_claims,
    renew_claim,
)
from zarr_dask.journal.group_changes import CHANGE
from zarr_dask.journal.leases import LEASES, now_in_utc
from zarr_dask.journal.location import CLAIM, JOB, JournalLocation, default_place
from zarr_dask.journal.lock import HELD, LOOKS, wait_out
from zarr_dask.stores.base import Store, is_remote
from zarr_dask.stores.capabilities import capabilities_of
from zarr_dask.stores.compare_and_swap import as_cas_store, cas_store_or_none
from zarr_dask.stores.process_identity import Owner
from zarr_dask.stores.wrapper import forkable

__all__ = [
    "NodeClaim",
    "NodeClaims",
    "claim_left",
    "claim_node",
    "claim_nodes",
    "claiming_nodes",
    "end_claims_below",
    "has_claims",
    "releasing",
    "sweep_remote_claims",
]

_HOUR = 3600.0
_ATTEMPTS = 20
"""Times that a claim may come and go while a job tries to have it."""


@dataclass(frozen=True)
class NodeClaim:
    """The claim of one job to the location of a node; small, and a part of each of its tasks."""

    store: Store
    key: str
    token: str
    """Of the job: its run id, if it may be resumed or has parts."""
    what: str
    """The node, for messages."""
    job: str = field(default="", compare=False)
    """Tells the job from others (`JobRecord.token`), if this process alone runs all of it, and may
    resume it."""
    owner: Owner | None = field(default=None, compare=False)
    """This process, if it alone runs all of the job: an equal call of another one that goes on with
    the job has the same run id."""
    spares_appends: bool = field(default=False, compare=False)
    """True to take it over from no append whose process may be at work."""
    was_others: bool = field(default=False, compare=False)
    """True if another job has had it since the last that succeeded. A put of that job which was on
    its way for longer than this one has waited may land among its objects."""

    @property
    def _name(self) -> tuple[str, ...]:
        return self.store.url, self.key, self.token

    @property
    def _lease(self) -> tuple[str, ...]:
        return self.store.url, self.job

    def text(self) -> bytes:
        """Return the claim as it is stored; the first one of a resumable job is renewed."""
        renewed = now_in_utc() if self.job and LEASES.is_free(self._lease) else ""
        return ClaimRecord((self.token,), self.job, makes=True, renewed=renewed).to_json()

    def _begin_renewals(self) -> None:
        if self.job:
            renew = partial(renew_claim, self.store, self.key, self.token, self.job)
            LEASES.begin(self._lease, self.key, renew)

    def take(self) -> bool:
        """Claim the location; return True if another job has had it since the last that succeeded.

        What the caller knows of the location may be wrong then.

        Raises
        ------
        AppendConflictError
            If an append that is spared has it.
        JobReplacedError
            If a third job has taken the claim over while this one waited.
        JobRunningError
            If a job has claimed a node above.
        """
        was_others = self._taken_over()
        self._begin_renewals()
        try:
            self._check_above()
        except JobRunningError:
            self.give_up(leaves_journal=was_others)
            raise
        return was_others

    def take_if_free(self) -> bool:
        """Claim the location if there is no claim to it; return False if there is one.

        Raises
        ------
        JobRunningError
            If a job has claimed a node above.
        """
        at = LOOKS.now()
        if not as_cas_store(self.store).set_if(self.key, [self.text()], None):
            return False
        LOOKS.note(self._name, at)
        try:
            self._check_above()
        except JobRunningError:
            self.give_up(leaves_journal=False)
            raise
        return True

    def _check_above(self) -> None:
        """Raise if a job makes or replaces a node above, and with it this one.

        It ends the claims that it finds below its own: one of the two sees the other one.
        """
        folders = self.key.removesuffix(f"/{CLAIM}{HELD}").split("/")
        keys = ["/".join([*folders[:n], f"{CLAIM}{HELD}"]) for n in range(1, len(folders))]
        for key, found in _records(self.store, keys).items():
            is_live = found is not None and found.makes and not found.is_free
            if is_live and not self._is_mine(found):
                raise JobRunningError(
                    f"{self.what} lies below a node that a job is making or replacing ({found}), "
                    f"as its claim {self.store.url}/{key} says; nothing was written. Wait until "
                    "that job has ended. If its process has died, repeat its call, or remove the "
                    "claim."
                )

    def _taken_over(self) -> bool:
        """Claim the location; return as `take`."""
        tagged = as_cas_store(self.store)
        has_taken_over = False
        for _ in range(_ATTEMPTS):
            at = LOOKS.now()
            if tagged.set_if(self.key, [self.text()], None):
                LOOKS.note(self._name, at)
                return has_taken_over
            value, tag = tagged.get_tagged(self.key)
            found = ClaimRecord.parsed(value)
            if found is not None:
                check_not_same(self.store, self.key, found, self.job, self.what)
            if self._is_mine(found) and not (found and self._is_to_be_renewed(found)):
                LOOKS.note(self._name, at)
                return has_taken_over
            if value is None:
                continue  # it has just ended
            if has_taken_over:
                raise self._replaced(found)
            self._check_above()  # a job that has claimed a node above may have this one, too
            if self.spares_appends:
                _check_no_append(self.store, self.key, found, self.what)
            if tagged.set_if(self.key, [self.text()], tag):
                has_taken_over = not self._has_stopped(found)
                if has_taken_over and not (found and found.is_free):
                    wait_out()
        raise StoreError(
            f"{self.what} could not be claimed: {self.store.url}/{self.key} has changed "
            f"{_ATTEMPTS} times meanwhile. Let one job at a time make what is there."
        )

    def _is_to_be_renewed(self, found: ClaimRecord) -> bool:
        """Return True if the job's own claim does not say that this process works on it."""
        is_elsewhere = found.job != self.job or not found.owner.is_this()
        return found.given_up or (bool(self.job) and is_elsewhere)

    def _is_mine(self, found: ClaimRecord | None) -> bool:
        if found is None or found.tokens[-1:] != (self.token,):
            return False
        return self.owner is None or _without_token(found.owner) == self.owner

    def _has_stopped(self, found: ClaimRecord | None) -> bool:
        """Return True if a claim is of the same job, and no other process works on it any more."""
        if found is None or found.tokens[-1:] != (self.token,):
            return False
        return self.owner is None or self._is_mine(found) or found.is_free or found.owner.is_gone()

    def _found(self) -> ClaimRecord | None:
        return ClaimRecord.parsed(self.store.get(self.key))

    def check(self) -> None:
        """Look whether the job still has its claim.

        Raises
        ------
        JobReplacedError
            If it has not.
        """
        found = self._found()
        if not self._is_mine(found):
            raise self._replaced(found)

    def fence(self) -> None:
        """Do the same, unless this process has done so a moment ago."""
        LOOKS.now_and_then(self._name, self.check)

    def _replaced(self, found: ClaimRecord | None) -> JobReplacedError:
        if found is not None and found.tokens[-1:] == (self.token,):
            error = JobReplacedError(
                f"{self.what} is being made by an equal call of another process ({found}), which "
                f"goes on with this job, as its claim {self.store.url}/{self.key} says: this "
                "process had not renewed it for too long. It stops. Wait for the other one."
            )
            error.is_same_job = True
            return error
        who = "is gone" if found is None else f"is that of another one ({found})"
        return JobReplacedError(
            f"{self.what} is being made, or was made, by a later job than this one: the claim to "
            f"it, {self.store.url}/{self.key}, {who}. This one stops, so that it does not write "
            "over later values. Look at what is there, and let only one of them run."
        )

    def release(self) -> None:
        """End the claim, because all that the job has made is visible.

        Raises
        ------
        JobReplacedError
            If another job has taken it over. The node that is visible is not to be relied on then.
        """
        LEASES.end(self._lease, self.key)
        self.fence()
        self.store.delete(self.key)

    def give_up(self, *, leaves_journal: bool, tasks_run: bool = False) -> None:
        """End the claim, because the job has failed and none of its tasks runs any more.

        The claim stays, and is free, beside a journal (`leaves_journal`): what the next job knows
        of the location may be older than that. Where tasks may run on (`tasks_run`), it stays, and
        whoever comes next waits for them; but an equal call does not wait for this process.
        """
        LEASES.end(self._lease, self.key)
        if tasks_run and not self.job:
            return
        with suppress(StoreError):  # the first error is what matters; whoever comes next waits
            if tasks_run or leaves_journal:
                how: dict[str, Any] = {"job": ""} if tasks_run else {"given_up": True}

                def left(found: ClaimRecord) -> ClaimRecord:
                    return replace(found, **how) if self._is_mine(found) else found

                change_claim(as_cas_store(self.store), self.key, self.token, left)
            elif self._is_mine(self._found()):
                self.store.delete(self.key)


def _without_token(owner: Owner) -> Owner:
    """Return a process without what tells its records apart."""
    return replace(owner, token="", locked=False)


def _new_claim(
    store: Store, path: str, token: str, job: str = "", *, spares_appends: bool = False
) -> NodeClaim | None:
    """Return the claim that a job may make to a location; None where there are no claims."""
    if not is_remote(store) or forkable(store) is not None:
        return None
    place = default_place(store, path)
    if place is None:
        return None
    owner = _without_token(Owner.here(locked=False)) if job else None
    key = f"{place.prefix}{CLAIM}{HELD}"
    claim = NodeClaim(place.store, key, token, where(store, path), job, owner, spares_appends)
    return None if cas_store_or_none(claim.store, claim.key) is None else claim


def has_claims(store: Store, path: str) -> bool:
    """True if jobs claim the location of a node, which is in a remote store then."""
    return _new_claim(store, path, "") is not None


def claim_node(
    store: Store,
    path: str,
    token: str,
    *,
    takes_over: bool = True,
    job: str = "",
    spares_appends: bool = False,
) -> tuple[NodeClaim | None, bool]:
    """Claim the location of a new node; None where there is no claim.

    Parameters
    ----------
    store, path
        The node.
    token
        Tells the job from others.
    takes_over
        False to leave the location to another job that has claimed it.
    job
        As `NodeClaim.job`.
    spares_appends
        True to leave it to an append whose process may be at work.

    Returns
    -------
    NodeClaim or None, bool
        The claim, and whether another job has had it since the last one that succeeded.

    Raises
    ------
    AppendConflictError
        If such an append has it.
    JobReplacedError
        If a later job has taken it over meanwhile.
    JobRunningError
        If a job has claimed a node above.
    """
    try:
        claim = _new_claim(store, path, token, job, spares_appends=spares_appends)
        if claim is None:
            return None, False
        if takes_over:
            was_others = claim.take()
            return replace(claim, was_others=was_others), was_others
        return (claim, False) if claim.take_if_free() else (None, True)
    except StoreError as error:
        if not holds_no_claims(store, error):
            raise
        return None, False


@dataclass(frozen=True)
class NodeClaims:
    """Claims of one job to the locations of several nodes; a part of each of its tasks."""

    claims: tuple[NodeClaim, ...] = ()

    def at(self, what: str) -> NodeClaims:
        """Return the claim to one node alone (`NodeClaim.what`), if there is one."""
        return NodeClaims(tuple(one for one in self.claims if one.what == what))

    @property
    def were_others(self) -> bool:
        """True if another job has had one since the last that succeeded (`NodeClaim.take`)."""
        return any(claim.was_others for claim in self.claims)

    def fence(self) -> None:
        """Raise if a later job has taken one over; see `NodeClaim.fence`."""
        for claim in self.claims:
            claim.fence()

    def release(self) -> None:
        """End all of them, last the first one, which is renewed; see `NodeClaim.release`."""
        try:
            for claim in reversed(self.claims):
                claim.release()
        except BaseException:
            self.give_up(leaves_journal=False)
            raise

    def give_up(self, *, leaves_journal: bool, tasks_run: bool = False) -> None:
        """End all of them after a failure; see `NodeClaim.give_up`."""
        for claim in reversed(self.claims):
            claim.give_up(leaves_journal=leaves_journal, tasks_run=tasks_run)


def claim_nodes(store: Store, paths: Iterable[str], token: str, job: str = "") -> NodeClaims:
    """Claim the locations of nodes, as far as there are claims; `job` as `NodeClaim.job`.

    Raises
    ------
    JobReplacedError
        If a later job has taken one over meanwhile.
    JobRunningError
        If a job has claimed a node above.
    """
    found = NodeClaims()
    try:
        for path in sorted(set(paths)):
            claim, _ = claim_node(store, path, token, job=job)
            found = NodeClaims(found.claims if claim is None else (*found.claims, claim))
    except BaseException:
        found.give_up(leaves_journal=False)
        raise
    return found


def claim_left(store: Store, path: str) -> NodeClaim | None:
    """Claim the location of a node unless a job has it that may be at work; None then.

    Raises
    ------
    JobReplacedError
        If a later job has taken it over meanwhile.
    JobRunningError
        If a job has claimed a node above.
    """
    claim = _new_claim(store, path, token_hex(16))
    if claim is None or claim.take_if_free():
        return claim
    found = ClaimRecord.parsed(claim.store.get(claim.key))
    if found is not None and not _is_dead(found):
        return None
    claim.take()
    return claim


@contextmanager
def claiming_nodes(store: Store, *paths: str) -> Iterator[NodeClaims]:
    """Claim the locations of nodes for what a ``with`` statement does, where there are claims.

    Raises
    ------
    JobReplacedError
        If a later job has taken one over meanwhile.
    JobRunningError
        If a job has claimed a node above.
    """
    claims = claim_nodes(store, paths, token_hex(16))
    with releasing(claims):
        yield claims


@contextmanager
def releasing(claim: NodeClaim | NodeClaims) -> Iterator[None]:
    """Give a claim up at the end of a ``with`` statement, by which all of its work is done."""
    try:
        yield
    except BaseException:
        claim.give_up(leaves_journal=False)
        raise
    claim.release()


def end_claims_below(
    store: Store, path: str, *, spares_appends: bool = False, ends_changes: bool = False
) -> None:
    """Stop the jobs that make nodes below a location in a remote store, and wait until they have.

    The caller has claimed the location, and is about to remove what is there, or to put another
    version in its place: then appends are not stopped (`spares_appends`). Records of changes of
    groups there go, in local files too, if these are removed (`ends_changes`).

    Raises
    ------
    AppendConflictError
        If an append that is spared may be at work.
    """
    place = default_place(store, path) if ends_changes or is_remote(store) else None
    if place is None:
        return
    name, own = f"/{CLAIM}{HELD}", f"{place.prefix}{CLAIM}{HELD}"
    try:
        listed = list(place.store.list(place.prefix))
    except ListingError:
        return  # nor can what lies below be removed
    keys = [key for key in listed if key.endswith(name) and key != own and is_remote(store)]
    found = _records(place.store, keys)
    for key, one in found.items() if spares_appends else ():
        _check_no_append(place.store, key, one, where(store, path))
    changes = [key for key in listed if ends_changes and key.endswith(CHANGE)]
    parallel_for(place.store.delete, [*keys, *changes], None)
    if any(one is not None and one.makes and not one.is_free for one in found.values()):
        wait_out()


def _check_no_append(store: Store, key: str, found: ClaimRecord | None, what: str) -> None:
    """Raise if a claim is of an append whose process may be at work."""
    if found is not None and not (found.makes or found.is_free or found.has_died):
        raise AppendConflictError(
            f"an append to {what} is under way ({found}); nothing was written. Wait until it has "
            "ended. If its process has died, repeat its call with the same resume=, or remove "
            f"{store.url}/{key}."
        )


# --- claims of dead jobs --------------------------------------------------------------------------


class LeftClaims(NamedTuple):
    """Claims in a remote store that no job has a journal beside."""

    removed: list[str]
    """Descriptions of those that were removed."""
    unknown: dict[str, str]
    """Descriptions of those of which nobody here knows whether their jobs run, by key."""


def sweep_remote_claims(store: Store, path: str) -> LeftClaims:
    """Remove claims of dead jobs at and below a node in a remote store.

    A job is dead if it has given its claim up, or if its process was one of this host and is gone.
    An append looks at its claim less often, and may have workers elsewhere: its claim is removed an
    hour after it began, or at once if all of its tasks ran in its process. Claims of jobs with a
    journal stay with it, and so do records of appends that have ended.

    Each one is taken over, as by a later job (`NodeClaim`), waited out, and released.
    """
    left = LeftClaims([], {})
    place = default_place(store, path) if is_remote(store) else None
    if place is None or not capabilities_of(place.store).conditional_put:
        return left
    taken: list[NodeClaim] = []
    tagged = as_cas_store(place.store)
    for key in _without_journals(place):
        value, tag = tagged.get_tagged(key)
        found = ClaimRecord.parsed(value)
        if found is None or found.ended is not None:
            continue
        at = f"{place.store.url}/{key}"
        if _is_dead(found):
            own = NodeClaim(place.store, key, token_hex(16), at)
            if tagged.set_if(key, [own.text()], tag):
                taken.append(own)
                left.removed.append(f"the claim {at} ({found})")
        elif not found.owner.is_running():
            left.unknown[at] = str(found)
    if taken:
        wait_out()
    for own in taken:
        with suppress(JobReplacedError):  # a later job has it by now
            own.check()
            own.store.delete(own.key)
    return left


def _without_journals(place: JournalLocation) -> list[str]:
    """Return the keys of claims that no journal lies beside."""
    name = f"{CLAIM}{HELD}"
    try:
        keys = list(place.store.list(place.prefix))
    except ListingError:
        return []
    nodes = {key: key.removesuffix(name) for key in keys if key.endswith(name)}
    return [
        key
        for key, node in nodes.items()
        if not any(other.startswith(f"{node}{JOB}") for other in keys)
    ]


def _is_dead(found: ClaimRecord) -> bool:
    if found.given_up:
        return True
    return found.has_died or (found.owner.is_gone() and (found.makes or _age(found) > _HOUR))


def _age(found: ClaimRecord) -> float:
    """Return the seconds since a claim began, by the clock of this host, which has made it."""
    try:
        begun = datetime.fromisoformat(found.begun)
        return (datetime.now(UTC) - begun).total_seconds()
    except (ValueError, TypeError):
        return 0.0


def _records(store: Store, keys: Sequence[str]) -> dict[str, ClaimRecord | None]:
    texts = read_documents(store, keys, Limits()) if keys else {}
    return {key: ClaimRecord.parsed(text) for key, text in texts.items()}
