"""A check before each request that deletes from a remote store.

Many values are listed first and deleted in batches. A process that was stopped in between and goes
on later would delete what another job has put there since. So a job that has claimed a location
looks again whether it still has before each batch, as it does before each put
(`zarr_dask.journal.node_claims`). What a request has been sent for can no longer be called back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["check_may_delete", "fenced_deletes"]

_FENCE: ContextVar[Callable[[], None] | None] = ContextVar("zarr_dask_delete_fence", default=None)


@contextmanager
def fenced_deletes(fence: Callable[[], None] | None) -> Iterator[None]:
    """Call a check before each request of this context that deletes, if there is one.

    It raises if nothing may be deleted any more.
    """
    token = _FENCE.set(fence)
    try:
        yield
    finally:
        _FENCE.reset(token)


def check_may_delete() -> None:
    """Raise if the check of this context says so; called by stores right before such a request."""
    fence = _FENCE.get()
    if fence is not None:
        fence()
