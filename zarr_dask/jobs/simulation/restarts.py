"""Restarts from a checkpoint: the ranks of the new run, and the valid steps of the previous one.

The first rank of a new run makes a rewind (`publish.rewind`), and the others take part in it. A
rank knows its run only by its name (``run=``). Without a name, it takes part in the last rewind if
that begins with the same step and the rank has not taken part before. This cannot distinguish a
late rank from the first rank of another run from the same step. Such a rank is stopped before it
writes after the next rewind.
"""

from __future__ import annotations

from typing import Any

from zarr_dask.errors import RankError, StepError
from zarr_dask.jobs.simulation.output import Output
from zarr_dask.jobs.simulation.progress import RankProgress, RestartHistory
from zarr_dask.jobs.simulation.publish import Publisher, checked_step, rewind
from zarr_dask.jobs.simulation.rank_log import LogWriter

__all__ = ["begin", "begin_all", "check_ended", "check_not_past", "check_run"]


def check_run(run: Any, from_step: int | None) -> None:
    """Refuse an invalid name of a run.

    Raises
    ------
    TypeError
        If it is not a name, or is given without `from_step`.
    """
    if run is None:
        return
    if not isinstance(run, str) or not run:
        raise TypeError(f"run={run!r}: expected a name, such as the number of the job.")
    if from_step is None:
        raise TypeError(f"run={run!r} names a run that begins with from_step=; give both.")


def check_ended(output: Output, from_step: int | None, run: str | None) -> None:
    """Refuse to restart an output that was finished, unless the same run has finished it.

    Raises
    ------
    StepError
        If steps would be discarded.
    """
    ended = output.ended
    if ended is None or from_step in {None, ended.steps}:
        return
    if ended.restart is None or (from_step, run or ended.restart[1]) != ended.restart:
        raise StepError(
            f"from_step={from_step}: {output.where} was finished with {ended.steps} steps, and "
            "none of them can be discarded. To begin anew, create it with overwrite=True."
        )


def begin(
    output: Output,
    progress: RankProgress,
    owned: list[str],
    from_step: int | None,
    run: str | None,
    appender: LogWriter,
) -> None:
    """Take part in earlier rewinds, and in the one of this run if it starts from a checkpoint.

    Raises
    ------
    StepError
        If this rank has not stored the steps before, or the run has started with another step.
    """
    rewinds = RestartHistory(output.folder.restarts())
    if from_step is not None:
        from_step = checked_step(output, from_step, end=True)
        with output.folder.exclusive():
            rewinds = RestartHistory(output.folder.restarts())
            if not _has_begun(output, rewinds, progress.rewind, from_step, run):
                _check_stored(output, progress, rewinds, owned, from_step)
                rewind(output, from_step, run)
                rewinds = RestartHistory(output.folder.restarts())
            elif rewinds.last > progress.rewind:
                _check_stored(output, progress, rewinds, owned, from_step)
    for number in range(progress.rewind + 1, rewinds.last + 1):
        step = rewinds.steps[number - 1]
        appender.add({"rewind": number, "from_step": step})
        progress.go_back(number, step)


def begin_all(output: Output, from_step: int, run: str | None) -> None:
    """Restart an output from a checkpoint for all of its ranks, which need not take part.

    Raises
    ------
    StepError
        If a rank has not stored the steps before, or the run has started with another step.
    """
    from_step = checked_step(output, from_step, end=True)
    with output.folder.exclusive():
        rewinds = RestartHistory(output.folder.restarts())
        if _has_begun(output, rewinds, rewinds.last, from_step, run):
            return
        stored = Publisher(output).stored()
        if stored < from_step:
            raise StepError(
                f"{output.where}: from_step={from_step}, but only the steps before {stored} are "
                "stored by all ranks. Begin at an earlier checkpoint; flush() before each "
                "checkpoint stores all that was put."
            )
        rewind(output, from_step, run)


def _has_begun(
    output: Output, rewinds: RestartHistory, known: int, from_step: int, run: str | None
) -> bool:
    """True if the last rewind belongs to this run.

    Without names, it does if this rank has not taken part in it (its number is larger than
    `known`). So the first rank of a run makes a rewind, and the others take part in it.
    """
    if not rewinds.last or rewinds.runs[-1] != run:
        return False
    step = rewinds.steps[-1]
    if run is None:
        return rewinds.last > known and step == from_step
    if step != from_step:
        raise StepError(
            f"{output.where}: the run {run!r} has begun with step {step}, not {from_step}. All "
            "ranks of a run begin with one step; another run needs another name."
        )
    return True


def check_not_past(output: Output, rank: int, rewind: int, appender: LogWriter) -> None:
    """Refuse to write for a process that was there before the output began anew, or ended.

    Further steps of the process would not count, and could overwrite those of a later run.

    Raises
    ------
    RankError
        If it has begun anew, or another process may be this rank.
    WriterNotFoundError
        If the output has ended.
    """
    appender.check_held()
    rewinds = output.folder.restarts()
    if len(rewinds) > rewind:
        step = rewinds[rewind]["from_step"]
        raise RankError(
            f"{output.where} began anew with step {step} after this process had attached as rank "
            f"{rank}: its steps do not count any more. End it if it is of a run before. If it is "
            "not, the ranks of this run were taken for those of another one that began with the "
            "same step: attach all with run=, a name that no other run has."
        )


def _check_stored(
    output: Output, progress: RankProgress, rewinds: RestartHistory, owned: list[str], step: int
) -> None:
    limit = rewinds.limit(progress)
    for name in owned:
        stored = progress.stored.get(name, 0)
        stored = stored if limit is None else min(stored, limit)
        if stored < step:
            raise StepError(
                f"{output.where}: from_step={step}, but this rank has stored only the steps before "
                f"{stored} of {name!r}. Begin at an earlier checkpoint; flush() before each "
                "checkpoint stores all that was put."
            )
