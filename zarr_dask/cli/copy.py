"""``zarr-dask copy``: arrays and hierarchies into another place, grid, encoding or format."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from zarr_dask.cli.base import Interrupted
from zarr_dask.cli.options import job_options
from zarr_dask.cli.printing import printable, say, say_plan, wrapped
from zarr_dask.cli.progress import rechunk_progress
from zarr_dask.cli.rechunk import cluster

__all__ = ["copy"]


@click.command(
    epilog="""\b
Examples:
  zarr-dask copy run-7.zarr s3://bucket/run-7.zarr
  zarr-dask copy era5.zarr points.zarr --chunks time=-1,lat=32,lon=32 --verify
  zarr-dask copy old.zarr new.zarr --format v3 --output plan.json
"""
)
@job_options
@click.option("--format", help="Format of the copy, such as v3; that of the source by default.")
@click.option("--verify", is_flag=True, help="Compare source and copy before the end.")
@click.option("--resume", is_flag=True, help="Go on with the same job, if it has died.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option(
    "--output",
    "-o",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Only write the plan into this file, for run, status, finish and script.",
)
@click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors.")
def copy(
    src: str,
    dst: str,
    *,
    scheduler: str | None,
    scheduler_file: str | None,
    workers: int | None,
    verify: bool,
    resume: bool,
    dry_run: bool,
    output: Path | None,
    quiet: bool,
    **options: Any,
) -> None:
    """Copy an array, or a group with all that lies below it.

    SRC is an array or a group, DST the place of the copy. Stored objects are copied as they are
    where grid and format allow it, else laid out anew within --max-mem. Grids are given by names of
    dimensions; arrays without these dimensions keep theirs. The copy becomes visible when it is
    whole.
    """
    from dataclasses import replace

    with cluster(scheduler, scheduler_file, workers) as client:
        from zarr_dask.jobs.copy.copy import plan_copy

        overwrite = options.pop("overwrite")
        plan = plan_copy(src, dst, client=client, overwrite=overwrite or resume, **options)
        plan = replace(plan, overwrite=overwrite)
        if not quiet:
            say_plan(plan)
        if output is not None:
            try:
                output.write_text(plan.to_json(), encoding="utf-8")
            except OSError as error:
                raise click.FileError(str(output), error.strerror) from error
            say(f"written to {printable(str(output))}")
        if dry_run or output is not None:
            return
        try:
            with nullcontext() if quiet else rechunk_progress(plan, verify=verify) as advance:
                report = plan.run(client, advance, resume=resume, verify=verify)
        except KeyboardInterrupt as interrupt:
            raise Interrupted(
                f": {plan.where} is not complete. Run the same command again with --resume to go "
                "on, or without it to start over."
            ) from interrupt
        if not quiet:
            say(wrapped(f"done: {report}", "  "))
