"""Making the clients of a process anew, which read files and ask for credentials again."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

__all__ = ["ClientRenewal"]

_RENEWED = 5.0  # seconds in which requests that were sent before do not renew credentials again


class ClientRenewal:
    """Forgets the clients of a library, at most every five seconds.

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

    def forget_clients(self) -> None:
        """Forget all clients, unless that has just been done for another request."""
        with self._lock:
            now = time.monotonic()
            if now - self._last >= _RENEWED:
                self._last = now
                self._forget()
