"""``zarr-dask demo``."""

from __future__ import annotations

import click

from zarr_dask.cli.errors import traceback_option

__all__ = ["demo"]


@click.command()
@click.argument("output", default="demo-output", type=click.Path(file_okay=False))
@click.option(
    "--workers", type=click.IntRange(min=1), default=2, show_default=True, help="Local processes."
)
@traceback_option
def demo(output: str, workers: int) -> None:
    """Simulate a tsunami in parallel, and rechunk it.

    Fills the folder OUTPUT (demo-output) with arrays and pictures. Needs matplotlib and
    zarr-python: pip install 'zarr-dask[demo]'.
    """
    from zarr_dask.demo import run

    run(output, workers=workers)
