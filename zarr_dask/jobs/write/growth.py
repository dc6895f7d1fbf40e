"""What the tasks of an append know of each other: whether one of them has made the array longer.

A task may be run again when a worker dies with its result, in another process, after the end. The
array is longer then, and only if that was done by its own job is nothing wrong. The process itself
remembers, an open journal says so, and on a cluster the scheduler: it is what repeats tasks, so
that it knows as long as that may happen.
"""

from __future__ import annotations

from collections import OrderedDict

from zarr_dask.jobs.run import ask_scheduler

__all__ = ["LastTokens", "forget_growth", "has_ended", "has_grown", "note_end", "note_growth"]

_MOST_REMEMBERED = 256


class LastTokens:
    """The last tokens that were added."""

    def __init__(self) -> None:
        self._tokens: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, token: object) -> bool:
        return token in self._tokens

    def add(self, token: str) -> None:
        """Add one; the oldest of too many goes."""
        self._tokens[token] = None
        while len(self._tokens) > _MOST_REMEMBERED:
            self._tokens.popitem(last=False)

    def discard(self, token: str) -> None:
        """Forget one."""
        self._tokens.pop(token, None)

    def clear(self) -> None:
        """Forget all of them."""
        self._tokens.clear()


_GROWN = LastTokens()
"""The last writes that have made an array longer in this process."""


_ENDED = LastTokens()
"""The last writes that have ended in this process."""


def note_growth(token: str) -> None:
    """Say that a write is about to make an array longer.

    Raises
    ------
    OSError
        If the scheduler cannot be told; the array must not grow then.
    """
    ask_scheduler("log_event", topic=_topic(token), msg=True)
    _GROWN.add(token)


def forget_growth(token: str) -> None:
    """Say that a write has not made an array longer, although it was about to."""
    ask_scheduler("log_event", topic=_topic(token), msg=False)
    _GROWN.discard(token)


def has_grown(token: str) -> bool:
    """Whether a write has made an array longer, or was about to."""
    if token in _GROWN:
        return True
    events = ask_scheduler("events", topic=_topic(token))
    return bool(events) and bool(events[-1][1])  # each with its time


def note_end(token: str) -> None:
    """Say that a write is about to end, after which its journal is gone.

    Raises
    ------
    OSError
        If the scheduler cannot be told; the job must not end then.
    """
    ask_scheduler("log_event", topic=_topic_of_end(token), msg=True)
    _ENDED.add(token)


def has_ended(token: str) -> bool:
    """Return True if a write has ended, or was about to: its tasks may run again."""
    return token in _ENDED or bool(ask_scheduler("events", topic=_topic_of_end(token)))


def _topic_of_end(token: str) -> str:
    return f"zarr-end-{token}"


def _topic(token: str) -> str:
    return f"zarr-append-{token}"
