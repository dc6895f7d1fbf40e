"""A short-lived cache of results from remote stores."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Generic, TypeVar

__all__ = ["TTLCache"]

T = TypeVar("T")

_SECONDS = 5.0
_MOST = 256


class TTLCache(Generic[T]):
    """Cached results by their request, as a job makes the same request several times.

    They are valid for some seconds, and until this process writes or removes metadata.

    Examples
    --------
    >>> believed = TTLCache[int]()
    >>> believed.get("a", lambda: 1), believed.get("a", lambda: 2)
    (1, 1)
    >>> believed.forget()
    >>> believed.get("a", lambda: 2)
    2
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[T, float]] = {}

    def get(self, asked: str, ask: Callable[[], T]) -> T:
        """Return the cached result, or that of `ask`; an exception is not cached."""
        known = self._known.get(asked)
        if known is not None and monotonic() - known[1] < _SECONDS:
            return known[0]
        if len(self._known) >= _MOST:
            self._known.clear()
        found = ask()
        self._known[asked] = (found, monotonic())
        return found

    def forget(self) -> None:
        """Empty the cache, because this process has changed something."""
        self._known.clear()
