"""Watching the workers of a cluster while a job waits for its tasks.

A scheduler keeps tasks for as long as no worker can run them, and says nothing to the client. Here
the client looks at the workers every few seconds: it logs that none can run tasks, shows it in
progress bars, and after a while gives up. One of several workers that is paused, or not heard of,
is named; of the latter dask gives the tasks to others later (``distributed.scheduler.worker-ttl``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any

from zarr_dask.errors import WorkerLostError
from zarr_dask.jobs.engine.workers import few
from zarr_dask.stores.patience import SERVICES

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["WorkerWatch", "no_workers_timeout", "watch_workers"]

_LOG = logging.getLogger(__name__)
_OPTION = "distributed.scheduler.no-workers-timeout"
_DEFAULT = 600.0
"""Seconds that a job waits for workers if dask's option does not say."""
_LOOK = 2.0
"""Seconds between two looks at the workers of a small cluster."""
_LOOK_EACH = 0.03
"""The same for each worker: the list of a thousand workers takes the scheduler some time."""
_SILENT = 5.0
"""Seconds without workers that are worth a warning; the next ones come after twice the time."""
_QUIET = 30.0
"""Seconds after which a worker is named that is paused, or has not been heard of."""
_ANSWER = 10.0
"""Seconds within which a scheduler answers."""

Seen = Mapping[str, Mapping[str, Any]]
"""The workers of a scheduler by address, as it describes them."""


def no_workers_timeout() -> float:
    """Return the seconds that a job waits for workers: dask's own option, or ten minutes."""
    import dask
    from dask.utils import parse_timedelta

    wanted: float | None = parse_timedelta(dask.config.get(_OPTION, None))
    return _DEFAULT if wanted is None else wanted


class WorkerWatch:
    """The workers of a cluster as they were seen one time after another.

    Parameters
    ----------
    scheduler
        Address of the scheduler, for messages.
    limit
        Seconds without workers after which the job is given up.

    Examples
    --------
    >>> watch = WorkerWatch("tcp://a:8786", limit=600)
    >>> watch.see({"tcp://b:1": {"status": "running", "last_seen": 7.0}}, now=0)
    >>> watch.see({}, now=2)
    >>> watch.see({}, now=602)
    >>> str(watch.error)[:71]
    'the scheduler tcp://a:8786 has had no workers for 600 s (the last ones:'
    """

    def __init__(self, scheduler: str, limit: float) -> None:
        self.error: WorkerLostError | None = None
        """The reason to give up; None as long as there is none."""
        self._scheduler = scheduler
        self._limit = limit
        # when each was last known to be able to run tasks, as the scheduler says, and our time
        self._heard: dict[str, tuple[float, float]] = {}
        self._quiet: set[str] = set()
        self._since: float | None = None
        self._next_warning = _SILENT

    @property
    def interval(self) -> float:
        """Seconds until the next look."""
        return max(_LOOK, _LOOK_EACH * len(self._heard))

    def check(self) -> None:
        """Raise the error if the job is given up."""
        if self.error is not None:
            raise self.error

    def see(self, workers: Seen | None, now: float) -> None:
        """Take in the list of the workers; None if the scheduler has not answered."""
        able = workers is not None and self._some_can_run(workers, now)
        if able:
            self._note_able()
            return
        self._since = now if self._since is None else self._since
        passed = now - self._since
        said = self._describe(workers, passed)
        if passed >= self._limit:
            self.error = WorkerLostError(
                f"{said}, so the job has stopped. Start workers, and make the same call again: if "
                "it was and is made with resume=True, only missing objects are written. Dask's "
                f"option {_OPTION} is the time that jobs wait for workers."
            )
        elif passed >= self._next_warning:
            self._next_warning = 2 * passed
            _LOG.warning("%s; the job waits for workers, at most %.0f s", said, self._limit)
        if passed >= _SILENT:
            SERVICES.note_wait(passed, self.interval, "workers")

    def _some_can_run(self, workers: Seen, now: float) -> bool:
        """True if a worker can begin tasks, or runs one; workers that are quiet are named once."""
        for at, worker in workers.items():
            is_news = self._heard.get(at, (None, now))[0] != worker["last_seen"]
            if at not in self._heard or (is_news and _can_run(worker)):
                self._heard[at] = (worker["last_seen"], now)
        if workers:  # else the last ones are remembered
            if gone := self._heard.keys() - workers.keys():
                _LOG.info("workers have gone, %d left: %s", len(workers), few(gone))
            self._heard = {at: self._heard[at] for at in workers}
        quiet = {at for at in workers if now - self._heard[at][1] >= _QUIET}
        if new := quiet - self._quiet:
            states = _states(workers[at] for at in new)
            said = "workers have run nothing for %.0f s, and may have tasks: %s (%s)"
            _LOG.warning(said, _QUIET, few(new), states)
        self._quiet = quiet
        return any(_can_run(worker) for at, worker in workers.items() if at not in quiet)

    def _note_able(self) -> None:
        if self._next_warning > _SILENT:
            _LOG.info("workers run tasks again")
        if self._since is not None:
            SERVICES.hear("", 0.0)
        self._since, self._next_warning = None, _SILENT

    def _describe(self, workers: Seen | None, passed: float) -> str:
        if workers is None:
            return f"the scheduler {self._scheduler} has not answered for {passed:.0f} s"
        if not workers:
            last = f" (the last ones: {few(self._heard)})" if self._heard else ""
            return f"the scheduler {self._scheduler} has had no workers for {passed:.0f} s{last}"
        return (
            f"no worker of the scheduler {self._scheduler} has run tasks for {passed:.0f} s: "
            f"{few(workers)} ({_states(workers.values())})"
        )


def _can_run(worker: Mapping[str, Any]) -> bool:
    counts = worker.get("metrics", {}).get("task_counts", {})
    return worker["status"] == "running" or bool(counts.get("executing"))


def _states(workers: Iterable[Mapping[str, Any]]) -> str:
    """Return the states of workers that run nothing, for messages."""
    said = {"running": "not heard of", "paused": "paused, as their memory is full"}
    return ", ".join(sorted({said.get(one["status"], one["status"]) for one in workers}))


@contextmanager
def watch_workers(
    client: Client, cancel: Callable[[], Coroutine[Any, Any, None]]
) -> Iterator[WorkerWatch]:
    """Watch the workers of a cluster, on the client's event loop.

    Parameters
    ----------
    client
        Client of the cluster.
    cancel
        Called on the event loop when the job is given up; ends what waits for tasks.
    """
    scheduler = client.scheduler
    watch = WorkerWatch(scheduler.address if scheduler else "?", no_workers_timeout())

    async def look() -> None:
        while watch.error is None:
            await asyncio.sleep(watch.interval)
            watch.see(await _workers_of(client), monotonic())
        await cancel()

    looking = asyncio.run_coroutine_threadsafe(look(), client.loop.asyncio_loop)
    try:
        yield watch
    finally:
        looking.cancel()


async def _workers_of(client: Client) -> Seen | None:
    try:
        found: dict[str, Any] = await asyncio.wait_for(client.scheduler.identity(), _ANSWER)
    except OSError:  # also if it takes too long
        return None
    workers: Seen = found["workers"]
    return workers
