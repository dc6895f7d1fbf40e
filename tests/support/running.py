"""A job that runs in another thread until a test lets it end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import dask

from zarr_dask.errors import ResumeError

PATIENCE = 50.0


class Stopped:
    """A progress callback that stops a job at its first step until it is told to go on."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go_on = threading.Event()

    @classmethod
    def passing(cls) -> Stopped:
        """Return one that stops nothing."""
        passing = cls()
        passing.go_on.set()
        return passing

    def __call__(self, step: object) -> None:
        self.begun.set()
        if not self.go_on.wait(PATIENCE):
            raise TimeoutError


@contextmanager
def running(job: Callable[[Stopped], object]) -> Iterator[list[BaseException]]:
    """A job in a thread that has begun, and ends behind the statement; what it has raised."""
    stopped, raised = Stopped(), list[BaseException]()

    def run() -> None:
        try:
            with dask.config.set(scheduler="synchronous"):
                job(stopped)
        except (ResumeError, TimeoutError) as error:
            raised.append(error)
        finally:
            stopped.begun.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert stopped.begun.wait(PATIENCE)
        yield raised
    finally:
        stopped.go_on.set()
        thread.join(PATIENCE)
    assert not thread.is_alive()
