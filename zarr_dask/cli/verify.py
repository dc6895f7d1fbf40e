"""``zarr-dask verify``: whether all that is stored is whole; the exit code says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import zarr_dask as zd
from zarr_dask.cli.base import Decorated, traceback_option
from zarr_dask.cli.printing import printable, say

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["cluster_options", "verify"]


def cluster_options(command: Decorated) -> Decorated:
    """Give a command the options that say where it runs."""
    for option in (
        click.option("--workers", type=click.IntRange(min=1), help="Run on so many new processes."),
        click.option("--scheduler", metavar="ADDRESS", help="Run on the Dask scheduler there."),
    ):
        command = option(command)
    return command


@click.command()
@click.argument("url")
@click.argument("path", default="")
@click.option(
    "--deep",
    type=click.Choice(["index", "decode", "receipts"]),
    default="index",
    help="How deep: the indices of shards and sizes (the default), every chunk, or all bytes "
    "against the receipts of jobs.",
)
@click.option("--manifest", metavar="FILE", help="What the jobs that wrote it have kept.")
@click.option("--journal", metavar="PLACE", help="Where open jobs keep their journals instead.")
@click.option("--sweep", is_flag=True, help="Remove temporary files that killed writers left.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--plot",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw a heat map into this file; needs matplotlib.",
)
@cluster_options
@traceback_option
@click.pass_context
def verify(
    context: click.Context,
    /,
    url: str,
    path: str,
    *,
    as_json: bool,
    plot: Path | None,
    workers: int | None,
    scheduler: str | None,
    **options: Any,
) -> None:
    """Find what is damaged, lost or left over.

    Looks at every stored object below a place, down to the chunks inside shards. Damaged objects,
    keys that belong to nothing, leftovers of killed jobs and consolidated metadata that are out of
    date are named. The exit code is 0 only if nothing is wrong.
    """
    from zarr_dask.jobs.run import connect

    if workers and scheduler:
        raise click.UsageError("--workers and --scheduler exclude each other.")
    with connect(scheduler, None, workers) as client:
        report = zd.verify(url, path, client=client, **options)
    if as_json:
        say(json.dumps(report.to_json(), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        for line in str(report).splitlines():
            say(printable(line))
    if plot is not None:
        save(report.plot(), plot)
    context.exit(report.exit_code)


def save(figure: Figure, file: Path) -> None:
    """Write a picture.

    Raises
    ------
    BadParameter
        If the name does not end in a format that is known.
    """
    known = sorted(figure.canvas.get_supported_filetypes())
    if file.suffix[1:].lower() not in known:
        names = ", ".join(f".{name}" for name in known)
        raise click.BadParameter(f"{str(file)!r} must end in one of {names}.")
    try:
        figure.savefig(file, dpi=110)
    except OSError as error:
        raise click.FileError(str(file), error.strerror) from error
