"""Where a job runs: a scheduler that is there, new local processes, or threads of this one."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["SCHEDULER_TIMEOUT", "connected"]

SCHEDULER_TIMEOUT = 5.0
"""Seconds until a scheduler must have answered."""


@contextmanager
def connected(
    scheduler: str | None, scheduler_file: str | None, workers: int | None, timeout: float
) -> Iterator[Client | None]:
    """A cluster for as long as the context lasts; None for threads of this process.

    Raises
    ------
    SchedulerError
        If no scheduler answers.
    """
    from zarr_dask.jobs.run import connect

    connection = connect(scheduler, scheduler_file, workers, timeout)
    with ExitStack() as stack:
        with _interrupts_put_off() if workers else nullcontext():
            client = stack.enter_context(connection)
        if client is not None and workers:
            _silence()
            client.run(_silence)
        yield client


@contextmanager
def _interrupts_put_off() -> Iterator[None]:
    """Ctrl-C waits until worker processes are there to be ended, and never reaches them."""
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # its start, which workers cause, would undo the mask
    came: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # processes inherit it
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
    if came:
        raise KeyboardInterrupt


def _silence() -> None:
    """Do not log the errors of tasks, which are raised too, nor workers that end slowly."""
    for process in ("worker", "nanny"):
        logging.getLogger(f"distributed.{process}").setLevel(logging.CRITICAL)
        logging.getLogger(f"distributed.{process}.memory").setLevel(logging.WARNING)
