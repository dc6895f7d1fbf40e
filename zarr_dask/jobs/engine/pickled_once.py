"""Functions of many tasks in other processes: pickled once, and unpickled once by each process.

What a task needs can be large, such as the headers of all files of an ingest, and dask pickles it
for every task: in the client, in the scheduler, and in the worker.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import cloudpickle

__all__ = ["PickledOnce"]

_KEPT = 4
"""Number of functions that a process keeps."""
_FASTEST = 1
"""Level of compression."""


class PickledOnce:
    """A function that may be pickled many times; the process that calls it unpickles it once.

    Parameters
    ----------
    function
        The function. Calls in one process share it, as they do on threads.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function: Callable[..., Any] | None = function
        self._pickled = b""

    def __call__(self, *arguments: Any) -> Any:
        """Call the function."""
        function = self._function or _unpickled(self._pickled)
        return function(*arguments)

    def __getstate__(self) -> bytes:
        if self._function is not None and not self._pickled:
            self._pickled = zlib.compress(cloudpickle.dumps(self._function), _FASTEST)
        return self._pickled

    def __setstate__(self, state: bytes) -> None:
        self._function, self._pickled = None, state


@lru_cache(maxsize=_KEPT)
def _unpickled(data: bytes) -> Callable[..., Any]:
    found: Callable[..., Any] = pickle.loads(zlib.decompress(data))  # noqa: S301  (of the client)
    return found
