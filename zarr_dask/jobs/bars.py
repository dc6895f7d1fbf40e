"""How far a job is: a bar on a terminal or in a notebook."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bars

    from zarr_dask.jobs.rechunk_plan import Progress

__all__ = ["bar", "byte_bars"]


@contextmanager
def bar(title: str, total: int) -> Iterator[Callable[[Progress], None]]:
    """What shows the progress of a job in bytes, on stderr or below a notebook's cell."""
    from rich.console import Console

    with byte_bars(Console(file=sys.stderr)) as bars:
        task = bars.add_task(title, total=total)
        yield lambda step: bars.advance(task, step.nbytes)


def byte_bars(console: Console, **options: Any) -> Bars:
    """Bars that count bytes, with speed and time left."""
    from rich import progress

    return progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(bar_width=None),
        progress.TaskProgressColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(elapsed_when_finished=True),
        console=console,
        expand=True,
        **options,
    )
