"""The cluster of a job: an existing scheduler, new local processes, or threads of this one.

`cluster_options` adds the options to a command, `cluster` interprets them.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING

import click

from zarr_dask.cli.errors import Decorated

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["SCHEDULER_TIMEOUT", "cluster", "cluster_options"]

SCHEDULER_TIMEOUT = 5.0
"""Seconds until a scheduler must have responded."""


def cluster_options(doing: str = "Run") -> Callable[[Decorated], Decorated]:
    """Return a decorator that adds the options of a cluster to a command."""
    options: list[Callable[[Decorated], Decorated]] = [
        click.option(
            "--scheduler", metavar="ADDRESS", help=f"{doing} on the Dask scheduler there."
        ),
        click.option(
            "--scheduler-file",
            type=click.Path(exists=True, dir_okay=False),
            help=f"{doing} on the Dask scheduler that has written this file.",
        ),
        click.option(
            "--workers",
            type=click.IntRange(min=1),
            help=f"{doing} on this number of new local processes; by default, on threads.",
        ),
    ]

    def decorate(command: Decorated) -> Decorated:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@contextmanager
def cluster(
    scheduler: str | None, scheduler_file: str | None, workers: int | None
) -> Iterator[Client | None]:
    """Connect to the cluster that options name, for the context's duration; None for threads.

    Raises
    ------
    UsageError
        If they name more than one.
    SchedulerError
        If no scheduler responds.
    """
    if sum(place is not None for place in (scheduler, scheduler_file, workers)) > 1:
        raise click.UsageError("--scheduler, --scheduler-file and --workers exclude each other.")
    from zarr_dask.jobs.engine.connect import connect

    connection = connect(scheduler, scheduler_file, workers, SCHEDULER_TIMEOUT)
    with ExitStack() as stack:
        with _interrupts_put_off() if workers else nullcontext():
            client = stack.enter_context(connection)
        if client is not None and workers:
            _silence()
            client.run(_silence)
        yield client


@contextmanager
def _interrupts_put_off() -> Iterator[None]:
    """Delay Ctrl-C until worker processes exist and can be ended; it never reaches them."""
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # it is started by workers, which would undo the mask
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
    """Silence the logs of task errors, which are raised too, and of workers that end slowly."""
    for process in ("worker", "nanny"):
        logging.getLogger(f"distributed.{process}").setLevel(logging.CRITICAL)
        logging.getLogger(f"distributed.{process}.memory").setLevel(logging.WARNING)
