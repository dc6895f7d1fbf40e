"""Limit for the number of tasks that a scheduler knows of, while workers come and go."""

from __future__ import annotations

import logging
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["PER_THREAD", "SubmissionWindow"]

PER_THREAD = 8
"""Number of tasks for each thread: enough that no thread waits for the client."""
_LOOK = 1.0
"""Seconds between two checks of the workers."""

_LOG = logging.getLogger(__name__)


class SubmissionWindow:
    """Limit of tasks for each thread of a cluster; it follows the size of an adaptive cluster.

    Parameters
    ----------
    client
        Client of the cluster.
    threads
        Number of threads at first.
    fixed
        Limit that does not depend on the workers.
    """

    def __init__(self, client: Client, threads: int, fixed: int | None = None) -> None:
        self._client = client
        self._fixed = fixed
        self._threads = threads
        self._looked = monotonic()
        _LOG.debug("window: at most %d tasks at a time on the cluster", self.tasks())

    def tasks(self) -> int:
        """Return the number of tasks that the scheduler may know of now."""
        if self._fixed is not None:
            return max(self._fixed, 1)
        if monotonic() > self._looked + _LOOK:
            # without workers the tasks wait for the next ones
            before = self._threads
            self._threads = sum(self._client.nthreads().values()) or before
            if self._threads != before:
                _LOG.debug("window: the cluster has %d threads now", self._threads)
            self._looked = monotonic()
        return max(self._threads * PER_THREAD, 1)
