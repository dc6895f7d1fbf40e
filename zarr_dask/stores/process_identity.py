"""Owners of records: which process has made a record, and whether that process is gone.

A process is told by its host, the run of the kernel, the table of processes (containers of one host
have several) and the moment it began: numbers of processes come again, and so do names of hosts.
Of a host with this name and another run of the kernel, only its machine id tells whether it is this
one, started anew, or another one.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

__all__ = ["Owner", "is_number_of_gone", "number_of_process", "state_of_number"]


@dataclass(frozen=True)
class Owner:
    """A process, as a record says it."""

    host: str
    kernel: str
    """Tells one run of a kernel from all others; empty where that is not known."""
    table: str
    """Tells the table that the number is of; empty where that is not known."""
    pid: int
    began: str
    """When, as the kernel counts; empty where that is not known."""
    token: str
    """Random: tells one record of a process from all others."""
    machine: str = ""
    """Tells hosts of one name apart; empty where that is not known."""
    locked: bool = False
    """True if it holds a lock as well, which all who see its file system on a host share."""

    @staticmethod
    def here(*, locked: bool) -> Owner:
        """Return this process, for a record of its own.

        With a lock all records of a process are alike: the lock tells them apart.
        """
        return _locked_owner(os.getpid()) if locked else _owner(os.getpid(), locked=False)

    @staticmethod
    def parse(text: bytes | str) -> Owner | None:
        """Return the owner that a record names; None if it names none (yet)."""
        try:
            return Owner.of(json.loads(text))
        except (ValueError, RecursionError):
            return None

    @staticmethod
    def of(fields: Any) -> Owner | None:
        """Return the owner of these fields of a record; None if they name none."""
        try:
            return Owner(
                **{name: str(fields[name]) for name in ("host", "kernel", "table", "began")},
                pid=int(fields["pid"]),
                token=str(fields["token"]),
                machine=str(fields.get("machine", "")),
                locked=bool(fields["locked"]),
            )
        except (ValueError, TypeError, KeyError, OverflowError):
            return None

    def to_json(self) -> bytes:
        """Return what records hold."""
        return _as_json(self)

    def is_here(self) -> bool:
        """Return True if it is a process of a host of this name."""
        return self.host == _surroundings()[0]

    def is_gone(self) -> bool:
        """Return True if the process is known to be gone; of other hosts nobody here can tell."""
        return self._runs() is False

    def is_running(self) -> bool:
        """Return True if the process is known to be there."""
        return self._runs() is True

    def is_elsewhere(self) -> bool:
        """Return True if it cannot be looked for: it is one of another host, or of its kind."""
        return self._runs() is None

    def is_another_at_work(self) -> bool:
        """Return True if it is known to be there, is not stopped (SIGSTOP), and is not this one."""
        if self.is_this() or not self.is_running():
            return False
        return _state_and_beginning(self.pid)[0] not in _STOPPED

    def is_this(self) -> bool:
        """Return True if it is this process."""
        here = _owner(os.getpid(), locked=False)
        return replace(self, token="", locked=False) == replace(here, token="")

    def _runs(self) -> bool | None:
        """Look for the process; None where it cannot be looked for."""
        host, kernel, table = _surroundings()
        if self.host != host:
            return None
        if self.kernel and kernel and self.kernel != kernel:
            is_same = bool(self.machine) and self.machine == _machine()
            return False if is_same else None  # this host was started anew, or it is another one
        if self.table != table or sys.platform == "win32" or self.pid <= 0:
            return None
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # it is another user's
        except (OSError, OverflowError):
            return None
        state, now = _state_and_beginning(self.pid)
        if state in _ENDED:  # its parent has not asked for its exit code yet
            return False
        return not (self.began and now and now != self.began)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


_ENDED = ("Z", "X")
"""States of processes that have ended, as the kernel shows them."""
_STOPPED = ("T", "t")
_PID_BITS = 22
"""The kernel counts processes no further."""
_PLACE_BITS = 18


def number_of_process() -> int:
    """Return a number of 40 bits, which tells this process for short: in the name of a file."""
    return _place() << _PID_BITS | os.getpid() & (1 << _PID_BITS) - 1


def is_number_of_gone(number: int) -> bool:
    """Return True if a number is of a process that ran here, and is known to be gone."""
    return state_of_number(number) == "dead"


def state_of_number(number: int) -> Literal["running", "dead", "unknown"]:
    """Return the state of the process that a number is of; that of another host is unknown."""
    place, pid = number >> _PID_BITS, number & (1 << _PID_BITS) - 1
    if place != _place() or not pid or sys.platform == "win32":
        return "unknown"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return "dead"
    except OSError:
        return "running"  # it is another user's
    return "running"


@lru_cache(maxsize=1)
def _place() -> int:
    """Return a digest of the host, the run of its kernel, and the table of processes."""
    from hashlib import sha256  # which loads OpenSSL

    digest = sha256(repr(_surroundings()).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 32 - _PLACE_BITS


@lru_cache(maxsize=1)
def _surroundings() -> tuple[str, str, str]:
    import socket  # 4 ms

    table = ""
    with suppress(OSError):
        table = str(Path("/proc/self/ns/pid").readlink())
    return socket.gethostname(), _text("/proc/sys/kernel/random/boot_id"), table


@lru_cache(maxsize=2)
def _as_json(owner: Owner) -> bytes:
    return json.dumps(asdict(owner)).encode()


@lru_cache(maxsize=1)
def _locked_owner(pid: int) -> Owner:
    return _owner(pid, locked=True)


def _owner(pid: int, *, locked: bool) -> Owner:
    token = os.urandom(8).hex()
    return Owner(*_surroundings(), pid, _own_beginning(pid), token, _machine(), locked)


@lru_cache(maxsize=1)
def _machine() -> str:
    return _text("/etc/machine-id")


@lru_cache(maxsize=1)
def _own_beginning(pid: int) -> str:
    return _state_and_beginning(pid)[1]


def _state_and_beginning(pid: int) -> tuple[str, str]:
    fields = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return (fields[0], fields[19]) if len(fields) > 19 else ("", "")


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
