"""How the graph of a write is computed: as a whole, or in windows; with its progress in bytes.

A graph is handed to the scheduler as a whole, unless each of its blocks is made by its own task
alone (`zarr_dask.graph.separate_writes`). Then the tasks can be run a few at a time, so that the
scheduler never knows of more than a window of them, and several short ones together. That is what
happens with many tasks on a cluster, and wherever a window is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from secrets import token_hex
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

from zarr_dask.jobs.bars import bar
from zarr_dask.jobs.rechunk_plan import Progress
from zarr_dask.jobs.run import Workers, compute, find_workers, listening, run_batches

if TYPE_CHECKING:
    from distributed import Client

    from zarr_dask.graph import BlockWrites, StoredWrite

__all__ = ["WriteProgress", "compute_write"]

WriteProgress = Callable[[Progress], None] | Literal[True]
"""What is called with every step; True for a bar."""

_MANY = 20_000
"""Tasks of which a scheduler should not know at once, if that can be helped."""
_MERGED = 64
"""Results that are kept before they are merged."""


def compute_write(
    collection: Callable[[str], StoredWrite],
    nbytes: int,
    client: Client | None = None,
    progress: WriteProgress | None = None,
    window: int | None = None,
) -> Any:
    """Make a collection, and compute it.

    Parameters
    ----------
    collection
        Makes it; called with the topic under which its tasks tell how far they are.
    nbytes
        Decoded bytes that are written.
    client
        A cluster; by default the current client's, or the scheduler dask is configured for.
    progress
        Called with the bytes of each task that is done, on a cluster from a thread of the client;
        True for a bar.
    window
        Tasks that the scheduler may know of at a time, of a graph that can be run in windows.
    """
    workers = find_workers(client)
    with ExitStack() as stack:
        steps = None
        if progress is not None:
            told = stack.enter_context(bar("writing", nbytes)) if progress is True else progress
            steps = _Steps(told, nbytes)
        topic = "" if steps is None or workers.client is None else f"zarr-write-{token_hex(8)}"
        write = collection(topic)
        separate = _separate(write, workers, window)
        if separate is not None:
            result = _compute_windows(separate, workers, steps, window)
        else:
            names = _writing_layers(write)
            if topic and steps is not None:
                stack.enter_context(listening(workers, topic, steps.heard))
            noted = None if steps is None else steps.returned
            result = compute(write, workers, names, noted)
        if steps is not None:
            steps.end()
        return result


def _separate(write: StoredWrite, workers: Workers, window: int | None) -> BlockWrites | None:
    """The tasks one by one, if they can and are to be run in windows."""
    from zarr_dask.graph import separate_writes

    if window is None and workers.client is None:
        return None
    separate = separate_writes(write)
    wanted = separate is not None and (window is not None or len(separate) > _MANY)
    return separate if wanted else None


def _writing_layers(write: StoredWrite) -> list[str]:
    return [name for name in write.__dask_graph__().layers if name.startswith("zarr-write-")]


def _compute_windows(
    writes: BlockWrites, workers: Workers, steps: _Steps | None, window: int | None
) -> Any:
    results: list[Any] = []

    def note(result: Any) -> None:
        results.append(result)
        if len(results) >= _MERGED:
            results[:] = [writes.target.merge(results)]
        if steps is not None:
            steps.returned(result)

    options = writes.annotations
    run_batches(writes, len(writes), workers, note, "zarr-write", window, options)
    return writes.target.finish(writes.target.merge(results))


class _Steps:
    """Turns what tasks say into progress; counts nothing twice that is done again."""

    def __init__(self, progress: Callable[[Progress], None], total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0
        self._seen: set[Any] = set()
        self._lock = Lock()

    def returned(self, report: Any) -> None:
        """A task has returned its report."""
        self._advance(report.nbytes)

    def heard(self, message: Any) -> None:
        """A task on a cluster has told that it is done."""
        start = message["start"]
        with self._lock:
            if start in self._seen:
                return
            self._seen.add(start)
        self._advance(message["nbytes"])

    def end(self) -> None:
        """All is done; what was told too late counts now."""
        self._advance(self._total - self._done)

    def _advance(self, nbytes: int) -> None:
        with self._lock:
            nbytes = min(nbytes, self._total - self._done)
            self._done += nbytes
        if nbytes > 0:
            self._progress(Progress(0, 1, nbytes, self._total))
