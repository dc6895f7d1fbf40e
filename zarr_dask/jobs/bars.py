"""How far a job is: a bar on a terminal or in a notebook."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zarr_dask.jobs.rechunk_plan import Progress

__all__ = ["bar"]


@contextmanager
def bar(title: str, total: int) -> Iterator[Callable[[Progress], None]]:
    """What shows the progress of a job in bytes, on stderr or below a notebook's cell."""
    from rich import progress
    from rich.console import Console

    with progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(bar_width=None),
        progress.TaskProgressColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(elapsed_when_finished=True),
        console=Console(file=sys.stderr),
        expand=True,
    ) as bars:
        task = bars.add_task(title, total=total)
        yield lambda step: bars.advance(task, step.nbytes)
