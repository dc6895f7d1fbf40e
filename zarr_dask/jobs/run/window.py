"""How many tasks a scheduler is told of at a time, while workers come and go."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["PER_THREAD", "Window"]

PER_THREAD = 8
"""Tasks for each thread: enough that none waits for the client."""
_LOOK = 1.0
"""Seconds between two looks at the workers."""


class Window:
    """Some tasks for each thread of a cluster: an adaptive one has more of them when it has grown.

    Parameters
    ----------
    client
        Of the cluster.
    threads
        How many there are at first.
    fixed
        Tasks whatever the workers are.
    """

    def __init__(self, client: Client, threads: int, fixed: int | None = None) -> None:
        self._client = client
        self._fixed = fixed
        self._threads = threads
        self._looked = monotonic()

    def tasks(self) -> int:
        """How many tasks the scheduler may know of now."""
        if self._fixed is not None:
            return max(self._fixed, 1)
        if monotonic() > self._looked + _LOOK:
            # without workers the tasks wait for the next ones
            self._threads = sum(self._client.nthreads().values()) or self._threads
            self._looked = monotonic()
        return max(self._threads * PER_THREAD, 1)
