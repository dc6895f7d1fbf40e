"""What was asked of stores that are far away, and is believed for some seconds."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Generic, TypeVar

__all__ = ["Believed"]

T = TypeVar("T")

_SECONDS = 5.0
_MOST = 256


class Believed(Generic[T]):
    """Answers by what was asked; a job asks the same several times.

    They are believed for some seconds, and no longer than until this process has written or
    removed a document.

    Examples
    --------
    >>> believed = Believed[int]()
    >>> believed.get("a", lambda: 1), believed.get("a", lambda: 2)
    (1, 1)
    >>> believed.forget()
    >>> believed.get("a", lambda: 2)
    2
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[T, float]] = {}

    def get(self, asked: str, ask: Callable[[], T]) -> T:
        """The answer; what `ask` raises is no answer, and is not kept."""
        known = self._known.get(asked)
        if known is not None and monotonic() - known[1] < _SECONDS:
            return known[0]
        if len(self._known) >= _MOST:
            self._known.clear()
        found = ask()
        self._known[asked] = (found, monotonic())
        return found

    def forget(self) -> None:
        """Something was changed by this process."""
        self._known.clear()
