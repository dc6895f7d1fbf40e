"""Computing the graph of a write, as a whole or in windows, with progress in bytes.

A graph is submitted to the scheduler as a whole, unless each of its blocks is made by its own task
alone (`zarr_dask.graph.independent_writes`). Such tasks can be run a few at a time, and several
short ones together, so that the scheduler never knows of more than a window of them. This is done
for many tasks on a cluster, and if a window is given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from secrets import token_hex
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from zarr_dask.jobs.engine import Workers, compute, find_workers, run_batches, subscribe_events
from zarr_dask.jobs.engine.cluster import compute_each
from zarr_dask.jobs.engine.progress_bars import bar
from zarr_dask.jobs.engine.report import Progress
from zarr_dask.jobs.engine.session_forks import SessionForks

if TYPE_CHECKING:
    from distributed import Client

    from zarr_dask.graph import IndependentWrites, WriteCollection

__all__ = ["ReadyWrites", "WriteProgress", "compute_writes"]

WriteProgress = Callable[[Progress], None] | bool
"""Callback for every step; True for a bar, False for none."""

_MANY = 20_000
"""Number of tasks above which windows are used, if possible."""
_MERGED = 64
"""Number of results that are held before they are merged."""


class ReadyWrites(NamedTuple):
    """Collections that are ready to be computed."""

    writes: Sequence[WriteCollection]
    done: int
    """Number of bytes that were written before."""
    first: Sequence[WriteCollection] = ()
    """Writes of arrays that the others read."""
    forks: Sequence[SessionForks | None] = ()
    """Forks that the tasks of each write to, where changes must be merged."""


def compute_writes(
    begin: Callable[[str], ReadyWrites],
    nbytes: int,
    client: Client | None = None,
    progress: WriteProgress | None = None,
    window: int | None = None,
    *,
    lends: int = 0,
) -> tuple[Any, ...]:
    """Make one collection or several, and compute them as one, or each in windows.

    Parameters
    ----------
    begin
        Makes the collections; called with the topic under which their tasks report progress.
    nbytes
        Decoded bytes that are written, those written before included.
    client
        A cluster; by default the current client's, or the scheduler dask is configured for.
    progress
        Called with the bytes of each finished task, on a cluster from a thread of the client; first
        with the bytes that were written before. True for a bar.
    window
        Number of tasks that the scheduler may know of at a time, for graphs that can be run in
        windows.
    lends
        Bytes of the largest block if tasks wait for a remote store; else 0. See
        `zarr_dask.jobs.engine.overlap_pool`.
    """
    if progress is not None and not isinstance(progress, bool) and not callable(progress):
        raise TypeError(f"progress={progress!r}: expected a function, True, False or None.")
    workers = find_workers(client)
    with ExitStack() as stack:
        steps = None
        if not isinstance(progress, bool) and progress is not None:
            steps = _WriteProgress(progress, nbytes)
        elif progress:
            told = stack.enter_context(bar("writing", nbytes))
            steps = _WriteProgress(told, nbytes)
        topic = "" if steps is None or workers.client is None else f"zarr-write-{token_hex(8)}"
        writes, done, first, forks = begin(topic)
        if steps is not None:
            steps.advance(done)
        if topic and steps is not None:
            stack.enter_context(subscribe_events(workers, topic, steps.heard))
        run = _WriteRun(workers, steps, window, lends)
        if first:
            run.compute(first)
        commits = [one for one in forks if one is not None and one.commits]
        if workers.client is not None and writes and len(commits) == len(writes):
            results = run.compute_committing(writes, commits, workers.client)
        else:
            results = run.compute(writes)
        if steps is not None:
            steps.end()
        return results


@dataclass(frozen=True)
class _WriteRun:
    """Computes writes as one collection, or each in windows."""

    workers: Workers
    steps: _WriteProgress | None
    window: int | None
    lends: int

    def compute(self, writes: Sequence[WriteCollection]) -> tuple[Any, ...]:
        """Return the result of each write."""
        from zarr_dask.graph import join_writes

        separate = _separate(writes, self.workers, self.window)
        if separate is not None:
            return tuple(
                self._whole(write)
                if one is None
                else _compute_windows(one, self.workers, self.steps, self.window)
                for write, one in zip(writes, separate, strict=True)
            )
        if len(writes) == 1:
            return (self._whole(writes[0]),)
        results: tuple[Any, ...] = self._whole(join_writes(writes, tuple))
        return results

    def compute_committing(
        self, writes: Sequence[WriteCollection], forks: Sequence[SessionForks], client: Client
    ) -> tuple[Any, ...]:
        """Return the result of each write, whose changes are merged while its tasks run."""
        from zarr_dask.graph import join_writes, writing_keys

        separate = _separate(writes, self.workers, self.window)
        if separate is not None:
            pairs = zip(writes, forks, separate, strict=True)
            return tuple(
                self.compute_committing([write], [fork], client)[0]
                if one is None
                else _compute_windows(one, self.workers, self.steps, self.window, fork)
                for write, fork, one in pairs
            )
        keys = {key: n for n, write in enumerate(writes) for key in writing_keys(write)}
        results: list[list[Any]] = [[] for _ in writes]

        def note(key: Any, result: Any) -> None:
            number = keys[key]
            results[number].append(forks[number].take(result))

        whole = writes[0] if len(writes) == 1 else join_writes(writes, tuple)
        names = [name for write in writes for name in _writing_layers(write)]
        compute_each(whole, [*keys], client, names, note)
        return tuple(fork.finish(found) for fork, found in zip(forks, results, strict=True))

    def _whole(self, write: WriteCollection) -> Any:
        noted = None if self.steps is None else self.steps.returned
        return compute(write, self.workers, _writing_layers(write), noted, lends=self.lends)


def _separate(
    writes: Sequence[WriteCollection], workers: Workers, window: int | None
) -> list[IndependentWrites | None] | None:
    """Return the separate tasks of each write to run in windows, with None for those without any.

    The result is None if windows are not used. With `window`, None stands for a write that has
    nothing left to do.
    """
    from zarr_dask.graph import independent_writes

    if window is not None:
        return [independent_writes(write) for write in writes]
    if workers.client is None or len(writes) > 1:
        return None
    (found,) = map(independent_writes, writes)
    return [found] if found is not None and len(found) > _MANY else None


def _writing_layers(write: WriteCollection) -> list[str]:
    return [name for name in write.__dask_graph__().layers if name.startswith("zarr-write-")]


def _compute_windows(
    writes: IndependentWrites,
    workers: Workers,
    steps: _WriteProgress | None,
    window: int | None,
    forks: SessionForks | None = None,
) -> Any:
    results: list[Any] = []

    def note(result: Any) -> None:
        results.append(result if forks is None else forks.take(result))
        if forks is None and len(results) >= _MERGED:
            results[:] = [writes.target.merge(results)]
        if steps is not None:
            steps.returned(result)

    options = writes.annotations
    run_batches(writes, len(writes), workers, note, "zarr-write", window, options)
    if forks is not None:
        return forks.finish(results)
    return writes.target.finish(writes.target.merge(results))


class _WriteProgress:
    """Converts messages and results of tasks to progress; counts a repeated task once."""

    def __init__(self, progress: Callable[[Progress], None], total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0
        self._seen: set[Any] = set()
        self._lock = Lock()

    def returned(self, report: Any) -> None:
        """Count a task that has returned its report."""
        self.advance(report.nbytes)

    def heard(self, message: Any) -> None:
        """Count a task on a cluster that has sent a message that it is done."""
        task = tuple(message["task"])
        with self._lock:
            if task in self._seen:
                return
            self._seen.add(task)
        self.advance(message["nbytes"])

    def end(self) -> None:
        """Count bytes whose messages came too late."""
        self.advance(self._total - self._done)

    def advance(self, nbytes: int) -> None:
        """Add written bytes, and report the progress."""
        with self._lock:
            nbytes = min(nbytes, self._total - self._done)
            self._done += nbytes
        if nbytes > 0:
            self._progress(Progress(0, 1, nbytes, self._total))
