"""A bounded set of tokens that a process has seen last."""

from __future__ import annotations

from collections import OrderedDict

__all__ = ["BoundedSet"]

_MOST_REMEMBERED = 256


class BoundedSet:
    """A set of the tokens that were added last."""

    def __init__(self) -> None:
        self._tokens: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, token: object) -> bool:
        return token in self._tokens

    def add(self, token: str) -> None:
        """Add a token; the oldest one is removed if there are too many."""
        self._tokens[token] = None
        while len(self._tokens) > _MOST_REMEMBERED:
            self._tokens.popitem(last=False)

    def discard(self, token: str) -> None:
        """Forget one."""
        self._tokens.pop(token, None)

    def clear(self) -> None:
        """Forget all of them."""
        self._tokens.clear()
