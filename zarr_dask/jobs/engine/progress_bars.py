"""Progress bars of jobs, on a terminal or in a notebook; they say what a job waits for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, cast

from zarr_dask.stores.patience import SERVICES

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bars

    from zarr_dask.jobs.engine.report import Progress

__all__ = [
    "bar",
    "byte_bars",
    "count_bar",
    "given_progress",
    "rechunk_bars",
    "stage_bars",
    "stage_names",
]


def given_progress(progress: Any) -> Callable[[Progress], None] | Literal[True] | None:
    """Return the function that a caller gives for progress, or True for bars; False is none.

    Raises
    ------
    TypeError
        If it is something else.
    """
    if callable(progress):
        return cast("Callable[[Progress], None]", progress)
    if progress is None or isinstance(progress, bool):
        return progress or None
    raise TypeError(
        f"progress={progress!r}: expected a function, True for bars, or None or False for nothing."
    )


@contextmanager
def bar(title: str, total: int) -> Iterator[Callable[[Progress], None]]:
    """Show the progress of a job in bytes, on stderr or below a notebook's cell."""
    from rich.console import Console

    with byte_bars(Console(file=sys.stderr)) as bars:
        task = bars.add_task(title, total=total)
        yield lambda step: bars.advance(task, step.nbytes)


@contextmanager
def count_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """Show how many of something are done, on stderr or below a notebook's cell.

    Yields
    ------
    callable
        To be called with the number of those done, and of all.
    """
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(bar_width=None),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(elapsed_when_finished=True),
    )
    with progress.Progress(*columns, console=Console(file=sys.stderr), expand=True) as bars:
        task = bars.add_task(title, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


def stage_names(stages: int, *, verify: bool) -> list[str]:
    """Return the names of the stages of a rechunking; a comparison is one more.

    Examples
    --------
    >>> stage_names(1, verify=True), stage_names(2, verify=False)
    (['copying', 'comparing'], ['stage 1 of 2', 'stage 2 of 2'])
    """
    names = [f"stage {n} of {stages}" for n in range(1, stages + 1)] if stages > 1 else ["copying"]
    return [*names, "comparing"] if verify else names


@contextmanager
def rechunk_bars(
    totals: Sequence[int], *, verify: int | None
) -> Iterator[Callable[[Progress], None]]:
    """Show a bar for each stage of a rechunking, on stderr or below a notebook's cell.

    Parameters
    ----------
    totals
        Bytes of each stage.
    verify
        Bytes to compare at the end; None for no comparison.
    """
    from rich.console import Console

    names = stage_names(len(totals), verify=verify is not None)
    last = [] if verify is None else [verify]
    bars = dict(zip(names, [*totals, *last], strict=True))
    with stage_bars(Console(file=sys.stderr), bars) as advance:
        yield advance


@contextmanager
def stage_bars(console: Console, totals: Mapping[str, int]) -> Iterator[Callable[[Progress], None]]:
    """Show a bar in bytes for each named stage, which starts when the one before is full."""
    # a task may take a minute: average the rate over many
    with byte_bars(console, speed_estimate_period=600) as bars:
        ids = [bars.add_task(name, start=False, total=total) for name, total in totals.items()]

        def start(stage: int) -> None:
            bars.start_task(ids[stage])
            bars.advance(ids[stage], 0)  # the rate counts from here

        def advance(step: Progress) -> None:
            if not bars.tasks[step.stage].started:  # the stages before it were done already
                start(step.stage)
            bars.advance(ids[step.stage], step.nbytes)
            if bars.tasks[step.stage].finished and step.stage + 1 < len(ids):
                start(step.stage + 1)

        start(0)
        yield advance


def byte_bars(console: Console, **options: Any) -> Bars:
    """Return bars that count bytes, with speed and time left."""
    from rich import progress

    return progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(bar_width=None),
        progress.TaskProgressColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(elapsed_when_finished=True),
        _wait_column(),
        console=console,
        expand=True,
        **options,
    )


def _wait_column() -> Any:
    """Return a column with the time that a job has been waiting for a service or workers."""
    from rich.progress import ProgressColumn
    from rich.text import Text

    class WaitColumn(ProgressColumn):
        def render(self, task: Any) -> Text:
            seconds = 0.0 if task.finished else SERVICES.waiting
            return Text(f"waiting {seconds:.0f} s for {SERVICES.wanted}" if seconds else "")

    return WaitColumn()
