"""Receipts of this process that wait to be stored together, for stores that cannot append.

There each receipt is a request, as expensive as that of the stored object that it is about. So a
process gathers receipts and stores them as one object, at most one for `_MANY` stored objects or
for `_LONG` seconds of work. What a killed process has gathered is lost, and done again: `_SHORT`
seconds of work, `_MANY` objects or `_LONG` seconds, whichever of the last two comes first.

No thread waits for the time to pass: a batch is stored by the task that makes it complete, by the
process that ends a job without success, or never, if the job ends.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic

__all__ = ["GATHERED", "Batch", "ReceiptBatches", "take_gathered"]

_SHORT = 2.0
"""Seconds of work that may always be lost."""
_LONG = 30.0
"""Seconds of work that may be lost if it has made only few objects."""
_MANY = 20
_MOST_BYTES = 1 << 20
"""Bytes of receipts that are gathered."""
_MOST_JOBS = 64
"""Jobs of which receipts are kept; those of the oldest one are forgotten."""


@dataclass
class Batch:
    """Receipts of a job, in lines, that are not stored yet."""

    lines: list[bytes] = field(default_factory=list)
    objects: int = 0
    """Number of stored objects that they are about."""
    begun: float = float("inf")
    """Time by `time.monotonic` when the first of these tasks began."""

    @property
    def is_due(self) -> bool:
        """True if it should be stored now."""
        age = monotonic() - self.begun
        return (
            age >= _LONG
            or (age >= _SHORT and self.objects >= _MANY)
            or sum(map(len, self.lines)) >= _MOST_BYTES
        )

    def add(self, other: Batch) -> None:
        """Add the receipts of another batch."""
        self.lines += other.lines
        self.objects += other.objects
        self.begun = min(self.begun, other.begun)


class ReceiptBatches:
    """The batches of this process, by job."""

    def __init__(self) -> None:
        self.forget_all()

    def forget_all(self) -> None:
        """Reset; the new lock is free, also in a forked process, which has written nothing yet."""
        self._lock = threading.Lock()
        self._batches: dict[Sequence[str], Batch] = {}

    def add(self, job: Sequence[str], more: Batch) -> Batch | None:
        """Gather receipts; return those to store now, if it is time, which are no longer kept."""
        with self._lock:
            batch = self._batches.setdefault(job, Batch())
            batch.add(more)
            if batch.is_due:
                return self._batches.pop(job)
            if len(self._batches) > _MOST_JOBS:
                del self._batches[next(iter(self._batches))]
        return None

    def keep(self, job: Sequence[str], batch: Batch) -> None:
        """Gather receipts that could not be stored, or were taken from elsewhere."""
        with self._lock:
            self._batches.setdefault(job, Batch()).add(batch)

    def take(self, job: Sequence[str]) -> Batch:
        """Return the receipts of a job, which are no longer kept."""
        with self._lock:
            return self._batches.pop(job, Batch())

    def lines(self, job: Sequence[str]) -> bytes:
        """Return the receipts of a job."""
        with self._lock:
            return b"".join(self._batches.get(job, Batch()).lines)


GATHERED = ReceiptBatches()
"""The batches of this process."""


def take_gathered(job: Sequence[str]) -> Batch:
    """Return the receipts that this process has gathered, for another one that keeps them."""
    return GATHERED.take(job)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=GATHERED.forget_all)
