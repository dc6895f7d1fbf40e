"""``zarr-dask copy``: copies arrays and hierarchies to another location, grid, codec or format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from zarr_dask.cli.cluster import cluster
from zarr_dask.cli.files import check_outside
from zarr_dask.cli.options import FORMAT, encoding_options, job_options, run_options, selected
from zarr_dask.cli.output import echo, terminal_safe
from zarr_dask.cli.pictures import PictureType
from zarr_dask.cli.rechunk import run_plan, save_plot, show_plan
from zarr_dask.cli.settings import two_storage_options

__all__ = ["copy"]


@click.command(
    epilog="""\b
Examples:
  zarr-dask copy run-7.zarr s3://bucket/run-7.zarr
  zarr-dask copy era5.zarr points.zarr --chunks time=-1,lat=32,lon=32 --verify
  zarr-dask copy era5.zarr decade.zarr --sel time=2000:2009,lat=45:90
  zarr-dask copy old.zarr new.zarr --format v3 --output plan.json
"""
)
@job_options
@click.option(
    "--format",
    type=FORMAT,
    help="Format of the copy; by default that of the group around it, else of the source.",
)
@encoding_options
@run_options
@click.option("--dry-run", is_flag=True, help="Print the plan; write nothing.")
@click.option(
    "--output",
    "-o",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path, allow_dash=True),
    help="Only write the plan into this file, for run, status, finish and script; - is standard "
    "output.",
)
@click.option(
    "--plot",
    type=PictureType(),
    help="Draw the plan into this file (PNG, SVG, PDF ...); needs matplotlib.",
)
def copy(
    src: str,
    dst: str,
    *,
    scheduler: str | None,
    scheduler_file: str | None,
    workers: int | None,
    dry_run: bool,
    output: Path | None,
    plot: Path | None,
    **options: Any,
) -> None:
    """Copy an array, or a group with everything below it.

    SRC is an array or a group, DST the location of the copy. Stored objects are copied unchanged if
    grid and format allow it, otherwise rechunked within --max-mem. Grids are given by names of
    dimensions; arrays without these dimensions keep their grid. The copy becomes visible once it is
    complete.
    """
    from dataclasses import replace

    check_outside(output, "--output", src, dst)
    check_outside(plot, "--plot", src, dst)
    with cluster(scheduler, scheduler_file, workers) as client:
        from zarr_dask.jobs.copy.copy import plan_copy

        resume, verify = options.pop("resume"), options.pop("verify")
        overwrite = options.pop("overwrite")
        of_source, of_target = two_storage_options(src, dst)
        options["region"] = selected(src, options["region"], options.pop("sel"), of_source)
        plan = plan_copy(
            src,
            dst,
            client=client,
            overwrite=overwrite or resume,
            storage_options=of_source,
            target_options=of_target,
            **options,
        )
        plan = replace(plan, overwrite=overwrite)
        if dry_run or output is not None:
            show_plan(plan, output, plot)
            return
        if plot is not None:
            save_plot(plan, plot)
            echo(f"drawn in {terminal_safe(str(plot))}")
        run_plan(plan, client, resume=resume, verify=verify)
