"""Progress of a job on stderr: bars on a terminal, otherwise occasional lines."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING

import click

from zarr_dask.cli.settings import settings
from zarr_dask.jobs.engine.progress_bars import byte_bars, stage_bars, stage_names

if TYPE_CHECKING:
    from rich.console import Console

    from zarr_dask.jobs.copy.plan import CopyPlan
    from zarr_dask.jobs.migrate.plan import MigrationPlan
    from zarr_dask.jobs.rechunk.joint_plan import JointRechunkPlan
    from zarr_dask.jobs.rechunk.rechunk import Progress, RechunkPlan
    from zarr_dask.ome import OmeMigration

__all__ = [
    "PlainProgress",
    "SurveyLines",
    "image_progress",
    "migration_progress",
    "rechunk_progress",
    "survey_progress",
]


@contextmanager
def rechunk_progress(
    plan: RechunkPlan | JointRechunkPlan | CopyPlan, *, verify: bool = False
) -> Iterator[Callable[[Progress], None] | None]:
    """Yield a function that shows the progress of a job: a bar for each stage, or lines.

    None with ``--quiet``.
    """
    if settings().quiet:
        yield None
        return
    console = _terminal()
    names = stage_names(len(plan.stages), verify=verify)
    if console is None:
        yield PlainProgress(names)
        return
    totals = [*plan.totals, plan.nbytes]
    with stage_bars(console, dict(zip(names, totals, strict=False))) as advance:
        yield advance


@contextmanager
def migration_progress(
    plan: MigrationPlan | OmeMigration,
) -> Iterator[Callable[[int], None] | None]:
    """Yield a function that shows the bytes that a migration has copied: a bar, or lines.

    None with ``--quiet``.
    """
    if settings().quiet:
        yield None
        return
    from zarr_dask.jobs.rechunk.rechunk import Progress

    console = _terminal()
    if console is None:
        lines, lock = PlainProgress(["copying"]), Lock()

        def say(nbytes: int) -> None:
            with lock:
                lines(Progress(0, 1, nbytes, plan.nbytes))

        yield say
        return
    with byte_bars(console) as bars:
        task = bars.add_task("copying", total=plan.nbytes)
        yield lambda nbytes: bars.advance(task, nbytes)


@contextmanager
def image_progress() -> Iterator[Callable[[Progress], None] | bool | None]:
    """Yield a function that shows how much of a graph has been written, or True for a bar.

    None with ``--quiet``.
    """
    if settings().quiet:
        yield None
    else:
        yield PlainProgress(["writing"]) if _terminal() is None else True


def survey_progress() -> Callable[[int, int], None] | bool | None:
    """Return a function that shows how many files have been surveyed, or True for a bar.

    None with ``--quiet``. Lines are at least a second apart, so that a short survey has none.
    """
    if settings().quiet:
        return None
    return True if _terminal() is not None else SurveyLines()


@dataclass
class SurveyLines:
    """Prints a line for a survey that takes its time, at most one per second."""

    said: float = field(default_factory=perf_counter)
    """Time of the last line, or of the beginning."""

    def __call__(self, done: int, total: int) -> None:
        """Print a line if one is due."""
        if perf_counter() >= self.said + 1:
            self.said = perf_counter()
            click.echo(f"surveying: {done} of {total} files", err=True)


def _terminal() -> Console | None:
    """Return stderr if it is a terminal that supports progress bars."""
    from rich.console import Console

    console = Console(stderr=True)
    can_move = sys.stderr.isatty() and console.is_terminal and not console.is_dumb_terminal
    return console if can_move else None


@dataclass
class PlainProgress:
    """Prints a line for every tenth of a stage, but at most one per second."""

    names: Sequence[str]
    """Names of the stages."""
    stage: int = 0
    done: int = 0
    begun: float = field(default_factory=perf_counter)
    """Time at which the stage began."""
    last: float = field(default_factory=perf_counter)
    """Time at which the last task was done."""
    said: float = -math.inf
    """Time at which the last line was printed."""

    def __call__(self, step: Progress) -> None:
        """Count a finished task, and print a line if one is due."""
        if step.stage != self.stage:
            self.stage, self.done, self.begun = step.stage, 0, self.last
        before, self.done = self.done, self.done + step.nbytes
        self.last = perf_counter()
        finished = self.done == step.total
        tenth = step.total and self.done * 10 // step.total > before * 10 // step.total
        if finished or (tenth and self.last >= self.said + 1):
            self.said = self.last
            self._say(step, self.last - self.begun)

    def _say(self, step: Progress, seconds: float) -> None:
        from zarr_dask.jobs.engine.plan import format_bytes

        percent = self.done * 100 // step.total if step.total else 100
        rate = f", {format_bytes(self.done / seconds)}/s" if seconds else ""
        left = step.total - self.done
        when = f"{seconds * left / self.done:.0f} s left" if left else f"in {seconds:.1f} s"
        click.echo(
            f"{self.names[step.stage]}: {percent} % "
            f"({format_bytes(self.done)} of {format_bytes(step.total)}){rate}, {when}",
            err=True,
        )
