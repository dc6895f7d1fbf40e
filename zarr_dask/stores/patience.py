"""Time that this process goes on sending requests to a service that does not respond.

Jobs outlast an outage of a minute: they are expensive to begin again. Calls in the foreground, such
as opening a node, end within seconds, because somebody waits for them, and because an address that
has never responded is most often wrong. `in_task` and `in_foreground` mark the two; what is neither
waits like a job for services that have responded before, as does all that a job does in the client
(`in_job`).

Only the default policy is adapted. A policy that a user gives is obeyed as it is.

Waits are logged. Those in the processes of a cluster are logged by the client as well, which hears
of them (`Services.forward`, `Services.hear`), and progress bars show them (`Services.waiting`).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = [
    "SERVICES",
    "Services",
    "in_foreground",
    "in_job",
    "in_task",
    "is_foreground",
    "is_task",
    "task_begun",
]

_TASK, _JOB, _FOREGROUND = "task", "job", "foreground"
_KIND: ContextVar[str | None] = ContextVar("zarr_dask_patience", default=None)
_BEGUN: ContextVar[float | None] = ContextVar("zarr_dask_task_begun", default=None)
_LOG = logging.getLogger("zarr_dask")
_SILENT = 2.0  # seconds of waiting for one request before it is worth a warning
_WARN_EVERY = 5.0  # seconds between two warnings of this process
_LASTS = 30.0  # seconds after which a wait is over if nothing more is heard of it
_MOST_SERVICES = 1024


@contextmanager
def in_task() -> Iterator[None]:
    """Mark the work of a task: requests of it are repeated as long as the policy allows.

    Examples
    --------
    >>> with in_task():
    ...     is_task()
    True
    """
    begun = _BEGUN.set(task_begun())
    token = _KIND.set(_TASK)
    try:
        yield
    finally:
        _KIND.reset(token)
        _BEGUN.reset(begun)


@contextmanager
def in_job() -> Iterator[None]:
    """Mark what a client does for a job: nodes that it opens wait like the job; in tasks no change.

    An address that has never responded is still given up soon.

    Examples
    --------
    >>> with in_job(), in_foreground():
    ...     is_foreground()
    False
    """
    token = _KIND.set(_TASK if is_task() else _JOB)
    try:
        yield
    finally:
        _KIND.reset(token)


@contextmanager
def in_foreground() -> Iterator[None]:
    """Mark a call that a user waits for; without effect inside a task or a job.

    Examples
    --------
    >>> with in_foreground():
    ...     is_foreground()
    True
    >>> with in_task(), in_foreground():
    ...     is_foreground()
    False
    """
    token = _KIND.set(_KIND.get() or _FOREGROUND)
    try:
        yield
    finally:
        _KIND.reset(token)


def is_task() -> bool:
    """True inside a task."""
    return _KIND.get() == _TASK


def task_begun() -> float:
    """Return the time by `time.monotonic` when the current task began; now outside of tasks."""
    return _BEGUN.get() or time.monotonic()


def is_foreground() -> bool:
    """True inside a call that a user waits for, and not inside a task."""
    return _KIND.get() == _FOREGROUND


class Services:
    """The services that have responded to this process, and the present wait for one."""

    def __init__(self) -> None:
        self.forward: Callable[[str, float], None] | None = None
        """Tells the client of a job about a wait, and with an empty text that it is over."""
        self.forget()

    def forget(self) -> None:
        """Reset; the new lock is free, also in a forked process."""
        self._lock = threading.Lock()
        self._known: set[Hashable] = set()
        self._warned = float("-inf")
        self.wanted = ""
        """The thing that is waited for."""
        self._began: float | None = None
        self._ends = float("-inf")

    @property
    def waiting(self) -> float:
        """Seconds that requests have been waiting for a service, or a job for workers; else 0."""
        now, began = time.monotonic(), self._began
        return 0.0 if began is None or now > self._ends else now - began

    def has_responded(self, service: Hashable) -> bool:
        """True if a service has responded to this process; also for None, an unnamed one."""
        return service is None or service in self._known

    def note_response(self, service: Hashable) -> None:
        """Note that a service has responded."""
        if service is None or service in self._known:
            return
        with self._lock:
            if len(self._known) >= _MOST_SERVICES:
                self._known.clear()
            self._known.add(service)

    def tell_wait(self, error: Exception, attempts: int, passed: float, waiting: float) -> None:
        """Log that a request will be repeated; as a warning if it has been failing for a while."""
        said = (
            f"waiting for a service: {str(error).rstrip('.')} ({attempts} attempts in "
            f"{passed:.1f} s; the next one in {waiting:.1f} s)"
        )
        if passed + waiting < _SILENT or not self.note_wait(passed, waiting):
            _LOG.debug("%s", said)
            return
        _LOG.warning("%s", said)
        if self.forward is not None:
            self.forward(said, passed)

    def note_wait(self, passed: float, waiting: float, wanted: str = "a service") -> bool:
        """Note that something is waited for; return True if it is time for a warning.

        Parameters
        ----------
        passed
            Seconds since the wait began.
        waiting
            Seconds until the next attempt.
        wanted
            What is waited for.
        """
        with self._lock:
            now = time.monotonic()
            self.wanted = wanted
            self._began = now - passed if self._began is None else min(self._began, now - passed)
            self._ends = max(self._ends, now + waiting + _LASTS)
            is_due = now - self._warned >= _WARN_EVERY
            if is_due:
                self._warned = now
        return is_due

    def tell_response(self, attempts: int, passed: float) -> None:
        """Log that a request has succeeded after some attempts."""
        said = f"the service responds again, after {attempts} attempts in {passed:.1f} s"
        self._began = None
        if passed < _SILENT:
            _LOG.debug("%s", said)
            return
        _LOG.info("%s", said)
        if self.forward is not None:
            self.forward("", passed)

    def hear(self, said: str, passed: float) -> None:
        """Take up what another process of a job has forwarded."""
        if not said:
            self._began = None
        elif self.note_wait(passed, 0.0):
            _LOG.warning("in a worker: %s", said)


SERVICES = Services()
"""The services that this process has used."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=SERVICES.forget)
