"""Renewals of claims in object stores, by which other hosts see that their process is at work.

A host cannot look for a process of another one. So the process that runs all of a resumable job
renews the record of its claim (`zarr_dask.journal.claims`) every `RENEWED_EVERY` seconds, on the
condition that it has not changed. An equal call that finds the record waits as long as it is
renewed. It compares what it reads (`Watch`): clocks of two hosts need not agree.

A renewal keeps no other job out: a process that is taken for dead by mistake finds that another
one has its claim (`zarr_dask.journal.node_claims`).
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import inf
from time import monotonic, time

from zarr_dask.errors import ZarrDaskError
from zarr_dask.stores.process_identity import Owner

__all__ = ["LEASES", "RENEWED_EVERY", "Leases", "Renewal", "Watch", "now_in_utc", "watched"]

RENEWED_EVERY = 10.0
"""Seconds between two renewals of a claim."""
_EXPIRES = 30.0  # seconds without a renewal after which a process is taken for dead
_LONGEST_LOOK = 5.0  # seconds between two looks, above which the wait begins anew
_HOUR = 3600.0  # by which the clocks of two hosts differ at most: services refuse 15 minutes
_DEAD: dict[Owner, float] = {}
"""Processes that are taken for dead, and the times of their last renewals."""
_MOST_DEAD = 1024
_LOG = logging.getLogger(__name__)


class Leases:
    """Claims that this process renews, in one thread for all of them."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Reset; the new lock is free, also in a forked process, which renews nothing."""
        self._lock = threading.Lock()
        self._renewals: dict[tuple[str, ...], tuple[str, Callable[[], bool]]] = {}
        """By job: the claim that is renewed, and what renews it."""
        self._ended = threading.Event()

    def is_free(self, job: tuple[str, ...]) -> bool:
        """True if no claim of a job is renewed."""
        return job not in self._renewals

    def begin(self, job: tuple[str, ...], key: str, renew: Callable[[], bool]) -> None:
        """Renew a claim of a job until it ends, unless another one of the job is renewed.

        Parameters
        ----------
        job
            Tells it from others.
        key
            The claim.
        renew
            Renews it; returns False if it is not this process's any more.
        """
        with self._lock:
            is_first = not self._renewals
            self._renewals.setdefault(job, (key, renew))
            if is_first:
                self._ended = threading.Event()
                target, args = self._run, (self._ended,)
                threading.Thread(target=target, args=args, name="renewals", daemon=True).start()

    def end(self, job: tuple[str, ...], key: str) -> None:
        """Renew a claim no more; one that is not renewed is left as it is."""
        with self._lock:
            if job in self._renewals and self._renewals[job][0] == key:
                del self._renewals[job]
                if not self._renewals:
                    self._ended.set()

    def _run(self, ended: threading.Event) -> None:
        while not ended.wait(RENEWED_EVERY):
            with self._lock:
                renewals = list(self._renewals.items())
            for job, (key, renew) in renewals:
                if not ended.is_set() and not _renewed(renew):
                    self.end(job, key)


def _renewed(renew: Callable[[], bool]) -> bool:
    try:
        return renew()
    except (ZarrDaskError, OSError, RuntimeError) as error:  # threads may not begin at the exit
        _LOG.debug("a claim could not be renewed, and will be tried again: %s", error)
        return True


LEASES = Leases()
"""The claims of this process."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=LEASES.forget)


def now_in_utc() -> str:
    """Return the time as records have it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class Renewal:
    """The last renewal of a claim, as it is read."""

    owner: Owner
    """The process that has renewed it, without what tells its records apart."""
    at: float
    """Time of its clock, in seconds; negative if it renews nothing."""

    @staticmethod
    def of(owner: Owner, at: str) -> Renewal:
        """Return the renewal that a record names."""
        try:
            seconds = datetime.fromisoformat(at).timestamp()
        except (ValueError, OverflowError):
            seconds = -1.0
        return Renewal(replace(owner, token=""), seconds)

    @property
    def was_last(self) -> bool:
        """True if its process is taken for dead, since it has renewed no claim for so long."""
        return self.at <= _DEAD.get(self.owner, -inf) + _EXPIRES

    def is_of_another_at_work(self) -> bool:
        """Return True if its process is another one that is at work, as far as is known."""
        if self.was_last or self.owner.is_this():
            return False
        if self.owner.is_another_at_work():
            return True
        return self.owner.is_elsewhere() and self.at >= 0 and abs(time() - self.at) < _HOUR


class Watch:
    """Looks at a record that is renewed while its process is at work."""

    def __init__(self) -> None:
        self._seen: Renewal | None = None
        self._since = self._last = monotonic()

    def has_expired(self, renewal: Renewal) -> bool:
        """Note a look, which has just been taken; return True if the process is taken for dead.

        Time in which there were no looks, as in an outage of the store, does not count.
        """
        now = monotonic()
        if renewal != self._seen or now - self._last > _LONGEST_LOOK:
            self._seen, self._since = renewal, now
        self._last = now
        if now - self._since <= _EXPIRES:
            return False
        _DEAD[renewal.owner] = renewal.at
        while len(_DEAD) > _MOST_DEAD:
            del _DEAD[next(iter(_DEAD))]
        return True


def watched(look: Callable[[], Renewal | None]) -> Callable[[], bool]:
    """Return a look that tells if another process is still at work, to be taken again and again.

    Parameters
    ----------
    look
        Reads its record; returns the last renewal, or None if it works no more.
    """
    watch = Watch()

    def is_at_work() -> bool:
        found = look()
        if found is None or not found.is_of_another_at_work():
            return False
        return found.at < 0 or not watch.has_expired(found)

    return is_at_work
