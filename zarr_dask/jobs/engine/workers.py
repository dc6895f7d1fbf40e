"""Workers of a job: a cluster, or the scheduler that dask is configured to use."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from zarr_dask._util.threads import cpu_count
from zarr_dask.errors import SchedulerError, StoreOutOfReachError, WorkerSetupError
from zarr_dask.jobs.engine.session_forks import SessionForks
from zarr_dask.stores.base import Store
from zarr_dask.stores.wrapper import forkable, is_in_memory

if TYPE_CHECKING:
    from distributed import Client

__all__ = [
    "Workers",
    "ask_workers",
    "begin_imports",
    "check_reachable_from_workers",
    "configured_scheduler",
    "few",
    "find_workers",
    "forks_for",
    "known_workers",
    "runs_elsewhere",
    "runs_processes",
]

_LOG = logging.getLogger(__name__)
_PATIENCE = 60.0
"""Maximum seconds to wait for workers that are starting."""
_ANSWER = 30.0
"""Maximum seconds to wait for the answer of a scheduler."""
_ABREAST = 64
"""Workers that are asked at a time: each takes a connection to the scheduler."""
_NAMED = 3
"""Maximum number of workers that a message names."""


@dataclass(frozen=True)
class Workers:
    """Workers that run the tasks of a job."""

    client: Client | None
    """A cluster; None for the scheduler that dask is configured to use."""
    threads: int
    """Maximum number of concurrent tasks."""
    threads_per_process: int
    """Number of these tasks that share the memory of a process."""
    memory_limit: int | None = None
    """Bytes that the smallest process may use, if known."""

    @property
    def in_this_process(self) -> bool:
        """True if tasks see the memory of this process; dask's own processes may be only one."""
        return self.client is None and self.threads == self.threads_per_process


def find_workers(client: Client | None = None) -> Workers:
    """Return the workers of the given or current client, or of dask's configured scheduler.

    Raises
    ------
    SchedulerError
        If the cluster has no workers.
    TypeError
        If `client` is not a client.
    WorkerSetupError
        If this process is importing the script of the process that started it.
    """
    _check_not_importing_script()
    client = _checked(client) or _current_client()
    return _local_workers() if client is None else _cluster_workers(client)


def _checked(client: Client | None) -> Client | None:
    if client is not None and not hasattr(client, "scheduler_info"):
        how = f", as Client({client!r})" if isinstance(client, str) else ", or None"
        raise TypeError(f"client={client!r}: expected a distributed.Client{how}.")
    return client


def begin_imports(client: Client | None, modules: Sequence[str]) -> None:
    """Let the workers of a cluster import modules, without waiting for them.

    It is for modules that their first tasks will load, while this process is still planning. If one
    cannot be imported, the tasks say so.

    Parameters
    ----------
    client
        A cluster; by default the current client's, if there is one.
    modules
        Names of the modules.

    Raises
    ------
    TypeError
        If `client` is not a client.
    """
    cluster = _checked(client) or _current_client()
    if cluster is None or cluster.asynchronous:
        return

    async def ask() -> None:
        with suppress(OSError):  # whoever runs tasks there will be told
            await cluster.run(_import, tuple(modules), wait=False, on_error="ignore")

    cluster.loop.add_callback(ask)


async def _import(modules: tuple[str, ...]) -> None:
    """Import modules in a thread of a worker, whose event loop goes on meanwhile."""
    for name in modules:
        with suppress(ImportError):
            await asyncio.to_thread(import_module, name)


def _check_not_importing_script() -> None:
    """Raise if a job begins in a script without guard, while a process started by it imports it.

    The job would write what the script itself has written or is writing.
    """
    processes = sys.modules.get("multiprocessing.process")
    if processes and getattr(processes.current_process(), "_inheriting", False):
        script = getattr(sys.modules.get("__mp_main__"), "__file__", None) or "the main script"
        raise WorkerSetupError(
            f"a job begins while a new process imports {script}, the script that started it: the "
            "job would run once more in each process. Put the work into a function, and call it "
            'below `if __name__ == "__main__":`.'
        )


def _current_client() -> Client | None:
    """Return the client that dask would use now; None if another scheduler is configured."""
    if "distributed" not in sys.modules:
        return None  # so no client exists in this process
    from dask.base import get_scheduler
    from distributed import Client

    owner = getattr(get_scheduler(), "__self__", None)  # if the scheduler is a client's method
    return owner if isinstance(owner, Client) else None


def check_reachable_from_workers(
    store: Store, client: Client | None = None, *, merges: bool = True
) -> None:
    """Refuse a store that only this process can write if tasks run in other processes.

    Parameters
    ----------
    store
        Store to write to.
    client
        A cluster; by default the current client's, or the scheduler dask is configured for.
    merges
        True if the caller gets back the forks that tasks write to.

    Raises
    ------
    StoreOutOfReachError
        If tasks run on a cluster or in dask's own processes.
    StoreError
        If tasks would write to forks of the store, and it cannot be forked now.
    """
    forks = forkable(store) is not None
    alone = is_in_memory(store) or (forks and not merges)
    if not (alone or forks) or not runs_elsewhere(client):
        return
    if not alone:
        SessionForks([store])
        return
    raise StoreOutOfReachError(
        f"{store.url} can be written by this process alone, and dask's processes or the "
        "distributed scheduler run each task in another process: what it writes would be lost. "
        + (
            "Leave compute=False out, so that it is merged at the end, or compute with threads."
            if forks
            else "Write to a local or remote store, or compute with threads."
        )
    )


def runs_elsewhere(client: Client | None) -> bool:
    """True if tasks run in other processes than this one."""
    client = client or _current_client()
    if client is None:
        return runs_processes()
    return any(not address.startswith("inproc://") for address in known_workers(client))


def forks_for(stores: Iterable[Store], client: Client | None = None) -> SessionForks | None:
    """Return forks for tasks; None if they can write to the stores themselves.

    Parameters
    ----------
    stores
        Stores that tasks write to.
    client
        A cluster; by default the current client's, or the scheduler dask is configured for.

    Raises
    ------
    StoreError
        If a store cannot be forked now.
    StoreOutOfReachError
        If other processes cannot reach it.
    """
    written = [store for store in stores if forkable(store) is not None]
    return SessionForks(written) if written and runs_elsewhere(client) else None


def _cluster_workers(client: Client) -> Workers:
    workers = known_workers(client) or _first_workers(client)
    threads = [worker["nthreads"] for worker in workers.values()]
    limits = [worker["memory_limit"] for worker in workers.values() if worker["memory_limit"]]
    return Workers(client, sum(threads), max(threads), min(limits, default=None))


def _first_workers(client: Client) -> dict[str, Any]:
    """Wait for workers that are still starting."""
    _LOG.info("the scheduler has no workers yet; some are waited for, at most %.0f s", _PATIENCE)
    try:
        client.wait_for_workers(1, timeout=_PATIENCE)
    except TimeoutError as error:
        raise SchedulerError(
            f"the scheduler at {client.scheduler.address if client.scheduler else '?'} has no "
            f"workers, and none came within {_PATIENCE:.0f} s. Start some with 'dask worker'."
        ) from error
    return known_workers(client)


def known_workers(client: Client) -> dict[str, Any]:
    """Return the workers of a cluster by address, as its scheduler describes them now.

    Raises
    ------
    SchedulerError
        If the scheduler is gone, or does not answer.
    """
    found: dict[str, Any]
    if client.asynchronous:  # it may be asked from its own event loop: as it was known last
        found = client.scheduler_info().get("workers") or {}
        return found

    async def ask() -> Any:
        if client.scheduler is None:
            raise ConnectionError("the client is closed")
        return await asyncio.wait_for(client.scheduler.identity(), _ANSWER)

    try:
        found = client.sync(ask)["workers"]
    except OSError as error:
        late = f"has not answered within {_ANSWER:.0f} s"
        said = late if isinstance(error, TimeoutError) else f"is gone ({error})"
        raise SchedulerError(
            f"the scheduler of {client!r} {said}. Connect to another one."
        ) from error
    return found


def ask_workers(
    client: Client, function: Callable[..., Any], *args: Any, seconds: float, **kwargs: Any
) -> dict[str, Any]:
    """Call a function on every worker of a cluster; return the answers by address.

    Each is asked by itself, so that one that does not answer keeps no others' answers back.

    Parameters
    ----------
    client
        Client of the cluster.
    function
        Function that can be pickled.
    *args, **kwargs
        Its arguments.
    seconds
        Maximum time that a worker may take.

    Returns
    -------
    dict[str, Any]
        Results; instead of a result the error that was raised, or that the worker is out of reach:
        `OSError`, or `TimeoutError` if it has not answered in time.

    Raises
    ------
    SchedulerError
        If the scheduler is gone, or does not answer.
    """
    workers = known_workers(client)
    abreast = asyncio.Semaphore(_ABREAST)

    async def ask(worker: str) -> Any:
        async with abreast:
            # on the event loop a client's methods return coroutines
            asked: Any = client.run(function, *args, workers=[worker], on_error="return", **kwargs)
            try:
                return (await asyncio.wait_for(asked, seconds))[worker]
            except TimeoutError as error:
                return error

    async def ask_all() -> list[Any]:
        return await asyncio.gather(*map(ask, workers))

    return dict(zip(workers, client.sync(ask_all), strict=True))


def few(addresses: Iterable[str]) -> str:
    """Return the first addresses, for messages.

    Examples
    --------
    >>> few(["d", "c", "b", "a"])
    'a, b, c and 1 more'
    """
    every: Sequence[str] = sorted(addresses)
    more = f" and {len(every) - _NAMED} more" if len(every) > _NAMED else ""
    return ", ".join(every[:_NAMED]) + more


def _local_workers() -> Workers:
    import dask
    from dask.local import get_sync

    if configured_scheduler() is get_sync:
        return Workers(None, 1, 1)
    pool = dask.config.get("pool", None)  # a number, or an executor that dask will use
    size = pool if isinstance(pool, int) else getattr(pool, "_max_workers", None)
    threads = size or dask.config.get("num_workers", None) or cpu_count()
    one_process = not runs_processes()
    return Workers(None, threads, threads if one_process else 1)


def runs_processes() -> bool:
    """True if dask is configured to use processes of its own."""
    from dask.multiprocessing import get as get_processes

    return configured_scheduler() is get_processes


def configured_scheduler() -> Callable[..., Any] | None:
    """Return the function by which dask would compute a graph now; None if nothing is configured.

    dask imports distributed to look for a client. If it is not loaded there is none, and the import
    takes a quarter of a second.
    """
    import dask
    from dask.base import get_scheduler, named_schedulers

    if "distributed" not in sys.modules and not dask.config.get("get", None):
        name = dask.config.get("scheduler", None)
        if name is None:
            return None
        if isinstance(name, str) and name.lower() in named_schedulers:
            found: Callable[..., Any] = named_schedulers[name.lower()]
            return found
    return get_scheduler()  # type: ignore[no-any-return]
