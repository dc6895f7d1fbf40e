"""How much memory this process has, looked at while a task runs."""

from __future__ import annotations

import os
import socket
from functools import cache
from pathlib import Path

from zarr_dask.codecs.checksum import crc32c

__all__ = ["Memory", "process_name"]

_FACTS = Path("/proc/self/statm")


class Memory:
    """Resident bytes of the process, at the beginning of a task and at most since."""

    def __init__(self) -> None:
        _load()
        self.first = self.peak = _resident()

    def look(self) -> None:
        """Look again."""
        self.peak = max(self.peak, _resident())


@cache
def _load() -> None:
    """Load what the first task of a process would load: libraries stay, and belong to no task."""
    crc32c(b"")


def _resident() -> int:
    """Resident bytes of this process; 0 where the system does not say."""
    try:
        return int(_FACTS.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


@cache
def _host() -> str:
    return socket.gethostname()


def process_name() -> str:
    """Tells this process from those of other machines too."""
    return f"{_host()}:{os.getpid()}"
