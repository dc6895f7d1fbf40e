"""Client for a job: of a running scheduler, or of new local processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from zarr_dask.errors import MissingDependencyError, SchedulerError

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["connect"]

_COMES_BACK = "10 minutes"
"""Time for a new process to start in place of one that has died. With dask's 15 s, a cluster on a
busy machine ends that process while it is still importing packages, and goes on without it."""


@contextmanager
def connect(
    scheduler: str | None = None,
    scheduler_file: str | None = None,
    workers: int | None = None,
    timeout: float = 10.0,
) -> Iterator[Client | None]:
    """Yield a client for a job: of a running scheduler, of new local processes, or None.

    Parameters
    ----------
    scheduler
        Address of a running scheduler.
    scheduler_file
        File written by a running scheduler.
    workers
        Number of local processes to start, of one thread each, for as long as the job runs.
    timeout
        Maximum seconds to wait for the scheduler.

    Raises
    ------
    MissingDependencyError
        If the package of Dask's clusters is not installed.
    SchedulerError
        If no scheduler answers.
    """
    if scheduler is None and scheduler_file is None:
        if not workers:
            yield None
            return
        _require_distributed()
        yield from _local_cluster(workers)
        return
    _require_distributed()
    from distributed import Client
    from distributed.comm import parse_address, parse_host_port
    from distributed.comm.registry import get_backend

    place = scheduler_file or scheduler
    try:
        if scheduler_file is not None:
            scheduler = json.loads(Path(scheduler_file).read_text(encoding="utf-8"))["address"]
        # a Client that fails on one of these ends noisily
        scheme, location = parse_address(scheduler)
        get_backend(scheme)
        if scheme in {"tcp", "tls", "ws", "wss"}:
            parse_host_port(location)
        client = Client(scheduler, timeout=timeout, set_as_default=False)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SchedulerError(
            f"no dask scheduler answers at {place} within {timeout:g} s ({error}). Start one with "
            "'dask scheduler', or let the job start local processes with --workers."
        ) from error
    with client:
        yield client


def _require_distributed() -> None:
    try:
        import distributed  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            "schedulers and worker processes need distributed, which is not installed: "
            "pip install 'zarr-dask[cluster]'"
        ) from error


def _local_cluster(workers: int) -> Iterator[Client]:
    import dask
    from distributed import Client, LocalCluster

    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": _COMES_BACK}),
        LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address="127.0.0.1:0",
            scheduler_kwargs={"dashboard": False},
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client
