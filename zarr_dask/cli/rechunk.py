"""``zarr-dask rechunk`` and ``zarr-dask plan``: the same options, executed or only printed.

Dask is loaded only here, after the arguments were checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import zarr_dask as zd
from zarr_dask.cli.cluster import cluster
from zarr_dask.cli.files import check_outside
from zarr_dask.cli.options import array_options, job_options, run_options, selected
from zarr_dask.cli.output import (
    answer,
    echo,
    say_plan,
    say_report,
    terminal_safe,
    write_output,
)
from zarr_dask.cli.pictures import PictureType, save_picture
from zarr_dask.cli.price import say_price
from zarr_dask.cli.progress import rechunk_progress
from zarr_dask.cli.settings import two_storage_options
from zarr_dask.cli.signals import handle_signals
from zarr_dask.formats.base import normalise_path
from zarr_dask.stores.base import join

if TYPE_CHECKING:
    from distributed import Client

    from zarr_dask.jobs.copy.plan import CopyPlan
    from zarr_dask.jobs.rechunk.joint_plan import JointRechunkPlan
    from zarr_dask.jobs.rechunk.rechunk import RechunkPlan

__all__ = ["plan", "rechunk", "run_plan", "save_plot", "show_plan"]


@click.command(
    epilog="""\b
Examples:
  zarr-dask rechunk maps.zarr series.zarr --chunks time=-1,lat=32,lon=32
  zarr-dask rechunk maps.zarr series.zarr --chunks 512,32,32 \\
      --shards 512,256,256 --max-mem 256MB --workers 2
  zarr-dask rechunk run.zarr series.zarr --array u --array v --chunks time=-1
"""
)
@job_options
@array_options
@run_options
@click.option("--dry-run", is_flag=True, help="Print the plan, as the command plan; write nothing.")
def rechunk(src: str, dst: str, *, dry_run: bool, **options: Any) -> None:
    """Copy an array or a group into other chunks and shards.

    SRC is an array or a group, or with --array a group of which only some are taken; DST is the
    location of the copy. Grids for a group name dimensions. The plan is printed, then executed
    within --max-mem; then the results are printed beside the predictions. The metadata are written
    last, so readers never see an incomplete array.
    """
    run = {name: options.pop(name) for name in ("resume", "verify")}
    overwrite = options.pop("overwrite")
    again = overwrite or run["resume"]  # a job that has ended has made it visible
    with _planned(src, dst, overwrite=again, **options) as (made, client):
        if dry_run:
            show_plan(made, None, None)
        else:
            run_plan(replace(made, overwrite=overwrite), client, **run)


def run_plan(
    plan: RechunkPlan | JointRechunkPlan | CopyPlan,
    client: Client | None,
    *,
    resume: bool,
    verify: bool,
) -> None:
    """Print a plan, run it with a progress bar, and print the results.

    Raises
    ------
    Interrupted
        On Ctrl-C or SIGTERM; the message says how to resume.
    """
    say_plan(plan)
    say_price(plan)
    state = (
        f"{plan.where} is not complete. Run the same command again with --resume to go on, or "
        "without it to start over."
    )
    with handle_signals(state), rechunk_progress(plan, verify=verify) as advance:
        report = plan.run(client, advance, resume=resume, verify=verify)
    say_report(report)
    answer({**report.to_json(), **say_price(report)})


@click.command(
    epilog="""\b
Example:
  zarr-dask plan maps.zarr series.zarr --chunks time=-1,lat=32,lon=32 \\
      --max-mem 256MB --plot plan.png
"""
)
@job_options
@array_options
@click.option(
    "--plot",
    type=PictureType(),
    help="Draw the plan into this file (PNG, SVG, PDF ...); needs matplotlib.",
)
@click.option(
    "--output",
    "-o",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path, allow_dash=True),
    help="Write the plan into this file, for run, status, finish and script; - is standard output.",
)
def plan(src: str, dst: str, *, plot: Path | None, output: Path | None, **options: Any) -> None:
    """Show the plan of rechunk, without running it.

    The arguments are those of rechunk. Only the requested files are written.
    """
    check_outside(output, "--output", src, dst)
    check_outside(plot, "--plot", src, dst)
    with _planned(src, dst, **options) as (made, _):
        show_plan(made, output, plot)


def show_plan(
    plan: RechunkPlan | JointRechunkPlan | CopyPlan, output: Path | None, plot: Path | None
) -> None:
    """Print a plan, write it into a file for later execution, and draw it.

    Only the plan itself is printed if it is written to standard output.
    """
    to_stdout = output is not None and str(output) == "-"
    price = {}
    if not to_stdout:
        say_plan(plan)
        price = say_price(plan)
    if output is not None:
        write_output(plan.to_json(), output)  # the file is not affected by refusals
    if plot is not None:
        save_plot(plan, plot)
    if to_stdout:
        return
    for said, file in (("written to", output), ("drawn in", plot)):
        if file is not None:
            echo(f"{said} {terminal_safe(str(file))}")
    answer(
        {
            "target": plan.where,
            "nbytes": plan.nbytes,
            "stages": [
                {"number": n, "tasks": s.tasks} for n, s in enumerate(plan.as_job().stages, 1)
            ],
            "explanation": plan.explain(),
            **price,
        }
    )


def save_plot(plan: RechunkPlan | JointRechunkPlan | CopyPlan, file: Path) -> None:
    """Draw a plan into a file, in the format given by its extension."""
    save_picture(plan.plot(), file)


# --- the cluster ----------------------------------------------------------------------------------


_CHANGES = ("chunks", "shards", "codecs", "dtype", "format", "region")


@contextmanager
def _planned(
    src: str,
    dst: str,
    *,
    scheduler: str | None,
    scheduler_file: str | None,
    workers: int | None,
    arrays: tuple[str, ...],
    path: str,
    **options: Any,
) -> Iterator[tuple[RechunkPlan | JointRechunkPlan | CopyPlan, Client | None]]:
    """Yield the plan, and the cluster to run it on, for the duration of the context."""
    labels = options.pop("sel")
    if labels is None and all(options[name] is None for name in _CHANGES):
        raise click.UsageError(
            "give --chunks, --shards, --codecs, --dtype, --format, --region or --sel: without them "
            "nothing changes."
        )
    with cluster(scheduler, scheduler_file, workers) as client:
        of_source, options["target_options"] = two_storage_options(src, dst)
        options["client"] = client
        options["region"] = selected(src, options["region"], labels, of_source)
        if not arrays:
            source: Any = zd.open(src, storage_options=of_source)
            yield zd.plan_rechunk(source, dst, path=path, **options), client
            return
        sources = [zd.open_array(src, name, storage_options=of_source) for name in arrays]
        paths = [join(normalise_path(path), normalise_path(name)) for name in arrays]
        yield zd.plan_rechunk(sources, dst, path=paths, **options), client
