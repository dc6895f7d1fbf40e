"""``zarr-dask rechunk`` and ``zarr-dask plan``: the same options, carried out or only printed.

Dask is loaded only here, once the arguments are known to be right.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import zarr_dask as zd
from zarr_dask.cli.base import Interrupted
from zarr_dask.cli.cluster import SCHEDULER_TIMEOUT, connected
from zarr_dask.cli.options import job_options
from zarr_dask.cli.printing import printable, say, say_plan, shortened, wrapped
from zarr_dask.cli.progress import rechunk_progress
from zarr_dask.errors import NodeTypeError

if TYPE_CHECKING:
    from distributed import Client
    from matplotlib.figure import Figure

    from zarr_dask.jobs.rechunk.rechunk import RechunkPlan

__all__ = ["cluster", "plan", "rechunk"]


@click.command(
    epilog="""\b
Examples:
  zarr-dask rechunk maps.zarr series.zarr --chunks time=-1,lat=32,lon=32
  zarr-dask rechunk maps.zarr series.zarr --chunks 512,32,32 \\
      --shards 512,256,256 --max-mem 256MB --workers 2
"""
)
@job_options
@click.option("--resume", is_flag=True, help="Go on with the same job, if it has died.")
@click.option("--verify", is_flag=True, help="Compare source and target before the end.")
@click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors.")
def rechunk(src: str, dst: str, *, quiet: bool, resume: bool, verify: bool, **options: Any) -> None:
    """Copy an array into other chunks and shards.

    SRC is the array, DST the place of the new one. The plan is printed, then carried out within
    --max-mem. The metadata of the new array are written last: until then, no reader takes it for
    whole.
    """
    with _planned(src, dst, **options) as (plan, client):
        if not quiet:
            say_plan(plan)
        try:
            with nullcontext() if quiet else rechunk_progress(plan, verify=verify) as advance:
                report = plan.run(client, advance, resume=resume, verify=verify)
        except KeyboardInterrupt as interrupt:
            raise Interrupted(
                f": {plan.target.where} is not complete. Run the same command again with --resume "
                "to go on, or without it to start over."
            ) from interrupt
        if not quiet:
            say(wrapped(f"done: {report}", "  "))


@click.command(
    epilog="""\b
Example:
  zarr-dask plan maps.zarr series.zarr --chunks time=-1,lat=32,lon=32 \\
      --max-mem 256MB --plot plan.png
"""
)
@job_options
@click.option(
    "--plot",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw the plan into this file (PNG, SVG, PDF ...); needs matplotlib.",
)
@click.option(
    "--output",
    "-o",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the plan into this file, for run, status, finish and script.",
)
def plan(src: str, dst: str, *, plot: Path | None, output: Path | None, **options: Any) -> None:
    """Say what rechunk would do.

    The arguments are those of rechunk. Nothing is written but the files asked for.
    """
    with _planned(src, dst, **options) as (made, _):
        say_plan(made)
        if output is not None:
            try:
                output.write_text(made.to_json(), encoding="utf-8")
            except OSError as error:
                raise click.FileError(str(output), error.strerror) from error
            say(f"written to {printable(str(output))}")
        if plot is not None:
            _save(made.plot(), plot)
            say(f"drawn in {printable(str(plot))}")


def _save(figure: Figure, file: Path) -> None:
    known = sorted(figure.canvas.get_supported_filetypes())
    if file.suffix[1:].lower() not in known:
        raise click.BadParameter(
            f"{str(file)!r} must end in one of {', '.join(f'.{name}' for name in known)}.",
            param_hint="'--plot'",
        )
    try:
        figure.savefig(file, dpi=110)
    except OSError as error:
        raise click.FileError(str(file), error.strerror) from error


# --- where it runs --------------------------------------------------------------------------------


@contextmanager
def _planned(
    src: str,
    dst: str,
    *,
    scheduler: str | None,
    scheduler_file: str | None,
    workers: int | None,
    **options: Any,
) -> Iterator[tuple[RechunkPlan, Client | None]]:
    """The plan, and the cluster to run it on for as long as the context lasts."""
    if options["chunks"] is None and options["shards"] is None:
        raise click.UsageError("give --chunks, --shards or both: without them nothing changes.")
    with cluster(scheduler, scheduler_file, workers) as client:
        source = _source(src)
        from zarr_dask.jobs.rechunk.rechunk import plan_rechunk

        yield plan_rechunk(source, dst, client=client, **options), client


@contextmanager
def cluster(
    scheduler: str | None, scheduler_file: str | None, workers: int | None
) -> Iterator[Client | None]:
    """The cluster to run a job on for as long as the context lasts; None for threads."""
    if sum(place is not None for place in (scheduler, scheduler_file, workers)) > 1:
        raise click.UsageError("--scheduler, --scheduler-file and --workers exclude each other.")
    with connected(scheduler, scheduler_file, workers, SCHEDULER_TIMEOUT) as client:
        yield client


def _source(src: str) -> zd.Array:
    node = zd.open(src)
    if isinstance(node, zd.Array):
        return node
    arrays = [path for path, _ in node.arrays(recursive=True)]
    held = shortened(", ".join(arrays)) or "none"
    raise NodeTypeError(
        f"{node.where} is a group; SRC must be an array (copy takes groups). Arrays in it: {held}."
    )
