"""``zarr-dask compare``: compares the values of two locations and sets the exit code."""

from __future__ import annotations

from typing import Any

import click

import zarr_dask as zd
from zarr_dask.cli.cluster import cluster, cluster_options
from zarr_dask.cli.output import answer, echo, terminal_safe
from zarr_dask.cli.price import price_option, say_price
from zarr_dask.cli.settings import two_storage_options
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
@click.option(
    "--equal-nan/--unequal-nan", default=True, help="Treat NaN as equal to NaN (the default)."
)
@click.option(
    "--attributes/--no-attributes", default=True, help="Compare attributes too (the default)."
)
@click.option("--digest", is_flag=True, help="Work out digests of the values on the way.")
@price_option
@cluster_options()
def compare(
    a: str,
    b: str,
    *,
    sample: str | None,
    scheduler: str | None,
    scheduler_file: str | None,
    workers: int | None,
    **options: Any,
) -> None:
    """Compare the values of arrays or hierarchies.

    A and B are paths or URLs of two arrays, or of two groups. Differences in layout, codecs and
    format are ignored. The first differences are listed. The exit code is 0 if there are none, 1 if
    there are some, and 3 if the comparison failed.
    """
    part = _part(sample)
    with (
        cluster(scheduler, scheduler_file, workers) as client,
        handle_signals("not everything was compared."),
    ):
        of_a, of_b = two_storage_options(a, b)
        left, right = _opened(a, of_a), _opened(b, of_b)
        found = zd.compare(left, right, part, client, **options)
    for line in str(found).splitlines():
        echo(terminal_safe(line))
    for one in found.arrays:
        if one.digest is not None:
            echo(f"  {one.digest}  {terminal_safe(one.path or '/')}")
    answer({**found.to_json(), **say_price(found)}, found.exit_code)


def _opened(url: str, options: dict[str, Any] | None) -> str | zd.Array | zd.Group:
    """Return a node that needs options, opened; any other is left to the comparison."""
    return url if options is None else zd.open(url, storage_options=options)


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
