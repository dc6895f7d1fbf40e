"""``zarr-dask ingest``: writes many NetCDF, HDF5 or other files into one store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from zarr_dask.cli.cluster import cluster, cluster_options
from zarr_dask.cli.errors import as_options
from zarr_dask.cli.files import check_outside
from zarr_dask.cli.options import (
    FORMAT,
    CodecsType,
    GridType,
    SizeType,
    TargetType,
    named_option,
    once_each,
    run_options,
)
from zarr_dask.cli.output import answer, echo, say_report, terminal_safe, write_output
from zarr_dask.cli.price import price_option, say_price
from zarr_dask.cli.progress import image_progress, rechunk_progress, survey_progress
from zarr_dask.cli.settings import is_remote, two_storage_options
from zarr_dask.cli.signals import handle_signals

__all__ = ["ingest"]


class _Settle(click.ParamType[Any]):
    """A kind of difference and a choice: ``units=convert``, or ``units:pressure=first``."""

    name = "KIND=CHOICE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `click.ParamType.convert`."""
        from zarr_dask.jobs.ingest.differences import checked_settle

        kind, mark, choice = str(value).rpartition("=")
        if not mark:
            self.fail(f"{value!r}: expected a kind and a choice, as in units=convert.", param, ctx)
        try:
            checked_settle({kind: choice})
        except ValueError as error:
            self.fail(as_options(str(error)), param, ctx)
        return kind, choice


@click.command(
    epilog="""\b
Examples:
  zarr-dask ingest 'run/*.nc' run.zarr --concat time \\
      --chunks time=-1,lat=32 --max-mem 2GB
  zarr-dask ingest run/ run.zarr --settle packing=unpack --settle missing=fill
  zarr-dask ingest era5.grib era5.zarr --engine cfgrib

The same command with more files appends these.
"""
)
@click.argument("files", nargs=-1, required=True)
@click.argument("dst", type=TargetType())
@click.option(
    "--concat",
    metavar="NAME",
    help="Dimension along which the files follow each other; a new one if no file has it. By "
    "default the one along which they differ.",
)
@click.option(
    "--order",
    type=click.Choice(["given", "name", "coordinate"]),
    help="Order of the files; by default that of FILES, and by name within a pattern.",
)
@click.option(
    "--settle",
    type=_Settle(),
    multiple=True,
    callback=once_each,
    help="Choice for differences of one kind, such as units=convert, dtype=promote, "
    "packing=unpack, missing=fill, values=first, unreadable=skip, broken=fill; for those of one "
    "variable as in units:pressure=first. By default all are listed, and nothing is written.",
)
@click.option("--variable", "variables", multiple=True, help="Take only this variable.")
@click.option(
    "--engine", help="Engine of xarray that reads the files, such as cfgrib:typeOfLevel=surface."
)
@named_option("--chunks", type=GridType(), help="Chunks by name: time=-1,lat=32.")
@named_option("--shards", type=GridType(), help="Shards by name, in the same form.")
@click.option("--codecs", type=CodecsType(), help="Codecs: names, as in zstd, or a JSON list.")
@click.option("--format", type=FORMAT, help="Format of the store; v3 by default.")
@click.option("--max-mem", type=SizeType(), help="Memory of one process, at most, such as 2GB.")
@click.option("--path", default="", help="Path of the arrays below DST.")
@click.option("--temp", metavar="URL", help="Location of intermediate data, if any is needed.")
@click.option("--overwrite", is_flag=True, help="Replace what is at DST.")
@click.option(
    "--survey", metavar="FILE", help="File that keeps the headers; beside DST by default."
)
@price_option
@cluster_options()
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
def ingest(
    files: tuple[str, ...],
    dst: str,
    *,
    settle: dict[str, str],
    variables: tuple[str, ...],
    scheduler: str | None,
    scheduler_file: str | None,
    workers: int | None,
    dry_run: bool,
    output: Path | None,
    resume: bool,
    verify: bool,
    **options: Any,
) -> None:
    """Write many NetCDF, HDF5, GRIB or Zarr files into one store.

    FILES are paths, URLs, patterns, folders, or @LIST for a file with one of these on each line;
    DST is the location of the store. All headers are read first, and differences between files are
    listed before anything is written.
    """
    check_outside(output, "--output", dst)
    with cluster(scheduler, scheduler_file, workers) as client:
        from zarr_dask.jobs.ingest.ingest import AppendReport, plan_ingest

        of_files, of_target = two_storage_options(next(filter(is_remote, files), files[0]), dst)
        plan = plan_ingest(
            list(files),
            dst,
            settle=settle,
            variables=variables or None,
            resume=resume,
            client=client,
            progress=survey_progress(),
            storage_options=of_files,
            target_options=of_target,
            **options,
        )
        if output is not None:
            write_output(plan.to_json(), output)
            if str(output) == "-":
                return
        echo(plan.explain())
        price = say_price(plan)
        if output is not None:
            echo(f"written to {terminal_safe(str(output))}")
        if dry_run or output is not None:
            answer({"plan": plan.explain(), **price, "report": None})
            return
        state = (
            f"{dst} is not complete. Run the same command again with --resume to go on, or "
            "without it to start over."
        )
        copied = plan.copy
        bars = image_progress() if copied is None else rechunk_progress(copied, verify=verify)
        with handle_signals(state), bars as advance:
            report = plan.run(client, advance, resume=resume, verify=verify)
        if isinstance(report, AppendReport):
            echo(str(report))
        else:
            say_report(report)
        answer({**report.to_json(), **say_price(report)})
