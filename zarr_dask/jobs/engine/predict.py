"""The cost model: time and memory of a job's stages, whatever they copy, and memory budgets."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from math import ceil, inf
from numbers import Real
from typing import Protocol, Self, TypeVar

from zarr_dask._util.control_groups import memory_limit
from zarr_dask.errors import MemoryBudgetError
from zarr_dask.jobs.engine.plan import Costs, format_bytes, parse_bytes
from zarr_dask.jobs.engine.workers import Workers
from zarr_dask.stores.streaming_put import COPIES, MOST_WAITING

__all__ = [
    "IDLE_WORKER",
    "CostModel",
    "JobBudget",
    "held_by_process",
    "largest_need",
    "left_for_tasks",
    "machine_memory",
    "memory_budget",
    "needed_for_tasks",
    "overlapping_tasks",
    "plan_each",
    "seconds",
]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CostModel:
    """Time of everything besides decoding and encoding, for choosing between plans.

    Raises
    ------
    ValueError
        If a number is not valid.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> object_store = zd.CostModel(request=0.03, read=90e6, write=60e6)
    """

    request: float = 1.0e-4
    """Seconds from a request to its response, whatever its size."""
    read: float = 4.0e9
    """Stored bytes per second that a thread reads."""
    write: float = 1.0e9
    """Stored bytes per second that a thread writes."""
    touch: float = 1.0e9
    """Bytes per second at which the system provides memory that a thread has not used before. Later
    tasks of the thread use the same memory again.
    """
    limit: float = inf
    """Maximum requests per second that the store serves, for all threads together."""
    listing: float = 0.0
    """Seconds per stored object to list an intermediate array when it is removed."""
    task: float = 2.0e-3
    """Seconds that a thread spends on a task besides its work."""
    schedule: float = 5.0e-4
    """Seconds that the scheduler spends on a task, one after the other."""
    stage: float = 0.1
    """Overhead of a stage in seconds: the last tasks leave threads idle, and the previous
    intermediate array is removed.
    """

    def __post_init__(self) -> None:
        for one in fields(self):
            value, is_rate = getattr(self, one.name), one.name in _RATES
            good = isinstance(value, Real) and not isinstance(value, bool)
            if not (good and (value > 0 if is_rate else 0 <= value < inf)):
                expected = "above 0" if is_rate else "of at least 0 that is finite"
                raise ValueError(f"CostModel {one.name}={value!r}: expected a number {expected}.")
            object.__setattr__(self, one.name, float(value))  # JSON does not know NumPy's numbers

    def facts(self) -> dict[str, float | None]:
        """Return the model as JSON values; unbounded numbers are None."""
        return {name: None if value == inf else value for name, value in asdict(self).items()}

    @classmethod
    def of(cls, facts: Mapping[str, float | None]) -> Self:
        """Return the model that `facts` has described.

        Raises
        ------
        TypeError
            If there are unknown members.
        ValueError
            If a number is not valid.
        """
        return cls(**{name: inf if value is None else value for name, value in facts.items()})


_RATES = frozenset({"read", "write", "touch", "limit"})
"""Fields that are rates per second."""


class StageMemory(Protocol):
    """A stage, as far as computing its memory needs."""

    def memory(self, threads: int) -> int:
        """Return the maximum bytes that tasks on this many threads hold together."""
        ...


def held_by_process(stages: Iterable[StageMemory], threads: int) -> int:
    """Return the maximum bytes that a process with these threads grows by while it runs stages.

    Tasks hold most of it. With its first job a process also loads libraries, and each thread makes
    a heap of its own; for small tasks the idle size is measured after that.
    """
    return needed_for_tasks(max(stage.memory(threads) for stage in stages))


def overlapping_tasks(held_by: Callable[[int], int], threads: int, max_mem: int, tasks: int) -> int:
    """Return the number of tasks that a process may begin while others wait for a remote store.

    Parameters
    ----------
    held_by
        Returns the bytes that a process with so many tasks holds.
    threads
        Number of tasks that compute at a time.
    max_mem
        Bytes that one process may hold.
    tasks
        Number of tasks that there are.

    Examples
    --------
    >>> [overlapping_tasks(lambda count: count << 20, 2, most << 20, 99) for most in (50, 53, 99)]
    [0, 2, 8]
    """
    waiting = COPIES * MOST_WAITING  # values that are sent while a task goes on need no other task
    most = min(max_mem - waiting, held_by(threads) + _OVERLAPPING_BYTES)
    numbers = (_MOST_OVERLAPPING >> n for n in range(_MOST_OVERLAPPING.bit_length()))
    found = next((n for n in numbers if held_by(threads + n) <= most), 0)
    return max(min(found, tasks - threads), 0)


_MOST_OVERLAPPING = 8
"""Eight tasks that wait and two that compute keep a service busy that takes 0.1 s to respond."""
_OVERLAPPING_BYTES = 1 << 28


def needed_for_tasks(nbytes: int) -> int:
    """Return the maximum growth of a process whose tasks hold this many bytes together."""
    objects = min(OBJECTS, max(nbytes - _TINY, 0))
    return nbytes + objects + min(LOADED, -(-max(nbytes - _SMALL, 0) // _SHARE))


def left_for_tasks(nbytes: int) -> int:
    """Return the bytes that tasks may hold together in a process that may grow by this many."""
    nbytes -= min(OBJECTS, -(-max(nbytes - _TINY, 0) // 2))
    if nbytes <= _SMALL:
        return nbytes
    return max(nbytes - LOADED, (_SHARE * nbytes + _SMALL) // (_SHARE + 1))


class StageWork(Protocol):
    """A stage, as far as computing its time needs."""

    @property
    def busy(self) -> int:
        """Number of tasks that have something to do."""
        ...

    @property
    def costs(self) -> Costs:
        """Costs of all its tasks together."""
        ...

    @property
    def threads(self) -> int:
        """Number of threads that share its only task; 1 if there are several tasks."""
        ...

    def work(self, model: CostModel) -> float:
        """Return the seconds that one thread, or those of its only task, would need for all."""
        ...

    def memory(self, threads: int) -> int:
        """Return the maximum bytes that tasks on this many threads hold together."""
        ...


def seconds(stage: StageWork, threads: int, model: CostModel) -> float:
    """Return the time of a stage by the model; the last round of tasks may leave threads idle."""
    tasks = stage.busy
    rounds = ceil(tasks / threads) / max(tasks, 1)
    answered = stage.costs.requests / model.limit
    # all threads at the same time
    touching = stage.memory(1) / model.touch / stage.threads if tasks else 0.0
    work = stage.work(model) * rounds + touching
    return model.stage + max(work, tasks * model.schedule, answered)


OBJECTS = 1 << 19
"""Bytes of a process for Python objects beside its tasks: those of lines that run for the first
time, and a dask worker's messages and records. 470 kB were measured; tasks that hold no more than
`_TINY` never had so many.
"""
_TINY = 1 << 21
LOADED = 8 << 20
"""Maximum additional bytes of a process after its first job; 7.4 MB were measured."""
_SMALL, _SHARE = 1 << 25, 16
"""If tasks together hold more than `_SMALL`, one `_SHARE`th of the excess is added to it."""


_DEFAULT_MEMORY = 10**9
_SHARE_OF_LIMIT = 0.6  # fraction of a worker's memory limit; dask starts to spill at about this
_SHARE_OF_PAUSE = 0.8  # fraction at which a dask worker starts no more tasks
IDLE_WORKER = 150_000_000
"""Bytes of an idle dask worker that has imported the package."""


def memory_budget(max_mem: str | int | None, workers: Workers) -> int:
    """Return the bytes that one process may hold: as given, or a share of the workers' limit.

    Without a limit it is 1 GB, and no more than the process's share of half of the machine.

    Raises
    ------
    MemoryBudgetError
        If it is not a size, or is more than a worker may use.
    """
    limit = workers.memory_limit
    if max_mem is not None:
        wanted = parse_bytes(max_mem, "max_mem")
        if limit is not None and wanted + IDLE_WORKER > limit:
            raise MemoryBudgetError(
                f"max_mem={format_bytes(wanted)} is more than the workers have: each may use "
                f"{format_bytes(limit)}, and takes some {format_bytes(IDLE_WORKER)} when idle. "
                f"Give at most {format_bytes(max(limit - IDLE_WORKER, 0))}, or workers more memory."
            )
        return wanted
    if limit is None:
        return min(_DEFAULT_MEMORY, _share_of_machine(workers))
    # a small worker has little left for tasks before dask pauses it
    left = int(limit * _SHARE_OF_PAUSE) - IDLE_WORKER
    return max(min(int(limit * _SHARE_OF_LIMIT), left), limit // 8)


def plan_each(plans: Iterable[Callable[[], T]]) -> list[T]:
    """Return the plans of several arrays, or their comparisons, made one after the other.

    Raises
    ------
    MemoryBudgetError
        If there is too little memory for some: the error of the one that needs most, so that what
        it advises suffices for all.
    """
    made: list[T] = []
    refusals: list[MemoryBudgetError] = []
    for make in plans:
        try:
            made.append(make())
        except MemoryBudgetError as error:
            refusals.append(error)
    if refusals:
        raise largest_need(refusals)
    return made


def largest_need(refusals: Iterable[MemoryBudgetError]) -> MemoryBudgetError:
    """Return the refusal of the array that needs most memory."""
    return max(refusals, key=lambda error: error.needed or 0)


@dataclass(frozen=True, slots=True)
class JobBudget:
    """Memory of each process that computes and writes the blocks of dask arrays."""

    workers: Workers
    max_mem: int
    """Bytes that one process may hold above its size when idle."""
    given: bool
    """True if the caller has said so."""

    @classmethod
    def of(cls, max_mem: str | int | None, workers: Workers) -> Self:
        """Return the budget that is given, or a share of what workers or the machine have.

        Raises
        ------
        MemoryBudgetError
            As `memory_budget`.
        """
        if max_mem is None and workers.memory_limit is None:
            return cls(workers, _share_of_machine(workers), False)
        return cls(workers, memory_budget(max_mem, workers), max_mem is not None)


def _share_of_machine(workers: Workers) -> int:
    """Return the bytes of half of the machine's memory that each process of it has."""
    processes = max(workers.threads // workers.threads_per_process, 1)
    return machine_memory() // 2 // processes


def machine_memory() -> int:
    """Return the bytes of memory that this machine, the container or the batch job has."""
    limit = memory_limit()
    found = [] if limit is None else [limit]
    with suppress(ValueError, OSError, AttributeError):  # not every system knows these names
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min(found, default=_DEFAULT_MEMORY)
