"""``zarr-dask compare``: compares the values of two locations and sets the exit code."""

from __future__ import annotations

import json
from typing import Any

import click

import zarr_dask as zd
from zarr_dask.cli.cluster import cluster, cluster_options
from zarr_dask.cli.errors import traceback_option
from zarr_dask.cli.output import echo, terminal_safe
from zarr_dask.cli.signals import handle_signals

__all__ = ["compare"]


@click.command()
@click.argument("a")
@click.argument("b")
@click.option(
    "--sample",
    metavar="PART",
    help="Compare only this fraction of the blocks (0.01), or so many of each array (20).",
)
@click.option("--equal-nan/--unequal-nan", default=True, help="Whether NaN equals NaN (it does).")
@click.option("--attributes/--no-attributes", default=True, help="Whether attributes count.")
@click.option("--digest", is_flag=True, help="Work out digests of the values on the way.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@cluster_options()
@traceback_option
@click.pass_context
def compare(
    context: click.Context,
    /,
    a: str,
    b: str,
    *,
    sample: str | None,
    as_json: bool,
    scheduler: str | None,
    scheduler_file: str | None,
    workers: int | None,
    **options: Any,
) -> None:
    """Compare the values of arrays or hierarchies.

    A and B are paths or URLs of two arrays, or of two groups. Differences in layout, codecs and
    format are ignored. The first differences are listed; the exit code is 0 only if there are none.
    """
    part = _part(sample)
    with (
        cluster(scheduler, scheduler_file, workers) as client,
        handle_signals("not everything was compared."),
    ):
        found = zd.compare(a, b, part, client, **options)
    if as_json:
        echo(json.dumps(found.to_json(), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        for line in str(found).splitlines():
            echo(terminal_safe(line))
        for one in found.arrays:
            if one.digest is not None:
                echo(f"  {one.digest}  {terminal_safe(one.path or '/')}")
    context.exit(found.exit_code)


def _part(text: str | None) -> float | None:
    """Parse a number of blocks, or a fraction of them."""
    if text is None:
        return None
    try:
        part = int(text) if text.isdecimal() else float(text)
    except ValueError:
        part = 0
    if part <= 0 or (part > 1 and not text.isdecimal()):
        raise click.BadParameter(
            f"{text!r} is neither a fraction such as 0.01 nor a number of blocks.",
            param_hint="'--sample'",
        )
    return part
