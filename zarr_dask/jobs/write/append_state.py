"""Shared state of the tasks of an append: whether one of them has made the array longer.

If a worker dies with its result, a task may be run again after the end, in another process. The
array is longer then, which is right only if the task's own job did it. Three places record it: the
process itself, an open journal, and on a cluster the scheduler. As the scheduler repeats tasks, its
record lasts as long as it is needed.
"""

from __future__ import annotations

from zarr_dask.jobs.engine import ask_scheduler
from zarr_dask.jobs.engine.visibility import BoundedSet
from zarr_dask.journal import NodeClaim

__all__ = [
    "forget_growth",
    "has_ended",
    "has_grown",
    "has_released",
    "mark_appended",
    "note_end",
    "release",
]

_GROWN = BoundedSet()
"""The last writes that made an array longer in this process."""


_ENDED = BoundedSet()
"""The last writes that have ended in this process."""


def mark_appended(token: str) -> None:
    """Record that a write is about to make an array longer.

    Raises
    ------
    OSError
        If the scheduler does not receive it; the array must not grow then.
    """
    ask_scheduler("log_event", topic=_topic(token), msg=True)
    _GROWN.add(token)


def forget_growth(token: str) -> None:
    """Say that a write has not made an array longer, although it was about to."""
    ask_scheduler("log_event", topic=_topic(token), msg=False)
    _GROWN.discard(token)


def has_grown(token: str) -> bool:
    """True if a write has made an array longer, or was about to."""
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


def release(claim: NodeClaim) -> None:
    """End the claim to a new node, unless a task that ran before has done so.

    Raises
    ------
    JobReplacedError
        If another job has taken it over.
    """
    if has_released(claim):
        return
    claim.fence()
    note_end(_released(claim))
    claim.release()


def has_released(claim: NodeClaim) -> bool:
    """Return True if the job of a claim has ended it, or was about to: a task may run again."""
    return has_ended(_released(claim))


def _released(claim: NodeClaim) -> str:
    return f"{claim.token}-{claim.key}"


def _topic_of_end(token: str) -> str:
    return f"zarr-end-{token}"


def _topic(token: str) -> str:
    return f"zarr-append-{token}"
