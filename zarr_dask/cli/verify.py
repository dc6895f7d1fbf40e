"""``zarr-dask verify``: checks that stored data are intact and sets the exit code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import zarr_dask as zd
from zarr_dask.cli.cluster import cluster, cluster_options
from zarr_dask.cli.errors import as_options
from zarr_dask.cli.output import answer, echo, terminal_safe
from zarr_dask.cli.pictures import PictureType, save_picture
from zarr_dask.cli.price import price_option, say_price
from zarr_dask.cli.settings import storage_options
from zarr_dask.cli.signals import handle_signals

__all__ = ["verify"]


@click.command()
@click.argument("url")
@click.argument("path", default="")
@click.option(
    "--deep",
    type=click.Choice(["index", "decode", "receipts"]),
    default="index",
    help="Depth: the indices of shards and sizes (the default), every chunk, or all bytes "
    "against the receipts of jobs.",
)
@click.option("--manifest", metavar="FILE", help="Manifest of the jobs that wrote the data.")
@click.option("--kept", is_flag=True, help="Use the manifests that are kept beside the arrays.")
@click.option(
    "--journal",
    metavar="URL",
    help="Location of the journals of open jobs; beside the data by default.",
)
@click.option(
    "--sweep", is_flag=True, help="Remove what killed writers left, unfinished uploads too."
)
@click.option(
    "--plot",
    type=PictureType(),
    help="Draw a heat map into this file; needs matplotlib.",
)
@price_option
@cluster_options()
def verify(
    url: str,
    path: str,
    *,
    plot: Path | None,
    scheduler: str | None,
    scheduler_file: str | None,
    workers: int | None,
    kept: bool,
    manifest: str | None,
    **options: Any,
) -> None:
    """Find damaged, lost and leftover objects.

    Checks every stored object below a path, down to the chunks inside shards. Damaged objects,
    orphaned keys, leftovers of killed jobs and outdated consolidated metadata are listed. The exit
    code is 0 if nothing is wrong, 1 if something is, and 3 if it failed.
    """
    with (
        cluster(scheduler, scheduler_file, workers) as client,
        handle_signals("not everything was looked at."),
    ):
        report = zd.verify(
            url,
            path,
            client=client,
            storage_options=storage_options(url),
            manifest=manifest or kept,
            **options,
        )
    for line in str(report).splitlines():
        echo(terminal_safe(as_options(line)))
    if plot is not None:
        save_picture(report.plot(), plot)
    answer({**report.to_json(), **say_price(report)}, report.exit_code)
