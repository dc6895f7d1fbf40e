"""Making the clients of a process anew, which read files and ask for credentials again."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

__all__ = ["ClientRenewal"]

_PAUSE = 5.0
"""Minimum seconds between renewals for services that do not respond."""


class ClientRenewal:
    """Forgets the clients of a library, once for all requests that failed with them.

    Parameters
    ----------
    forget
        Forgets all clients of this process, so that the next requests make new ones.
    """

    def __init__(self, forget: Callable[[], None]) -> None:
        self._forget = forget
        self._reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        """Begin anew; the new lock is free, also in a forked process."""
        self._lock = threading.Lock()
        self._last = float("-inf")

    def forget_clients(self, sent: float | None = None) -> None:
        """Forget all clients, unless that has just been done for another request.

        Parameters
        ----------
        sent
            When the request was sent whose credentials had expired, as `time.monotonic` counts.
            None for one that got no response: these go on failing, and making clients is slow.
        """
        with self._lock:
            now = time.monotonic()
            if now - self._last >= _PAUSE if sent is None else sent >= self._last:
                self._last = now
                self._forget()
