"""``make demo``."""

from __future__ import annotations

import sys

import click

from examples.tsunami import run
from zarr_dask.errors import ZarrDaskError


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("output", default="demo-output", type=click.Path(file_okay=False))
@click.option(
    "--workers", type=click.IntRange(min=1), default=2, show_default=True, help="Local processes."
)
def main(output: str, workers: int) -> None:
    """Simulate a tsunami in parallel, and rechunk it.

    Fills the folder OUTPUT (demo-output) with arrays and pictures. Needs matplotlib and
    zarr-python: pip install 'zarr-dask[demo]'.
    """
    try:
        run(output, workers=workers)
    except ZarrDaskError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
