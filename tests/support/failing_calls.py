"""Calls of the system that fail, or end the process, at the n-th one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from threading import Lock
from typing import Any, Self

import zarr_dask.stores.backends.posix_io  # noqa: F401  # looks for the true calls

NAMES = (
    "open", "close", "write", "writev", "pwritev", "fsync", "mkdir", "rename", "replace",
    "unlink", "rmdir",
)  # fmt: skip
"""Those that change files, or that these need."""
CALLERS = ("zarr_dask.", "shutil")


def fail(number: int) -> Callable[[Callable[[], Any], str], Any]:
    """An error with this number; a file whose closing fails is closed nevertheless."""

    def failing(call: Callable[[], Any], name: str) -> Any:
        if name == "close":
            call()
        raise OSError(number, os.strerror(number))

    return failing


def kill_before(call: Callable[[], Any], name: str) -> Any:
    """End the process instead of the call."""
    os._exit(KILLED)


def kill_after(call: Callable[[], Any], name: str) -> Any:
    """End the process when the call has been carried out."""
    try:
        call()
    finally:
        os._exit(KILLED)


KILLED = 9


class NthCall:
    """Watches the calls that the package makes, and does something else at the n-th one."""

    def __init__(self, last: int, act: Callable[[Callable[[], Any], str], Any]) -> None:
        self.last, self.act = last, act
        self.count = 0
        self.name = ""
        """The call that was met; "" if there were fewer."""
        self._lock = Lock()
        self._true = {name: getattr(os, name) for name in NAMES}

    def __enter__(self) -> Self:
        for name, call in self._true.items():
            setattr(os, name, self._watched(name, call))
        return self

    def __exit__(self, *_: object) -> None:
        for name, call in self._true.items():
            setattr(os, name, call)

    def _watched(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **options: Any) -> Any:
            if sys._getframe(1).f_globals.get("__name__", "").startswith(CALLERS):
                with self._lock:
                    self.count += 1
                    met = self.count == self.last
                if met:
                    self.name = name
                    return self.act(lambda: call(*arguments, **options), name)
            return call(*arguments, **options)

        return watched
