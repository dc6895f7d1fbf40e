"""The command line ``zarr-dask``: one module for each family of commands; `base` is shared.

It is a thin layer: it reads options, calls the package and prints. Results go to stdout, progress
and errors to stderr. Errors of this package become one message and exit code 1, wrong usage 2,
Ctrl-C 130, SIGTERM 143. Modules that load dask are imported inside the commands that need them.
"""

from __future__ import annotations

import os

import click

import zarr_dask as zd
from zarr_dask.cli import compare, copy, info, ingest, migrate, ome, plan_file, rechunk, verify
from zarr_dask.cli import inventory as survey
from zarr_dask.cli import script as submit_script
from zarr_dask.cli.errors import ErrorHandlingGroup, traceback_option
from zarr_dask.stores.open import BACKEND

__all__ = ["main"]


def _remember_backend(_: click.Context, __: click.Parameter, value: str | None) -> None:
    """Set the backend for this process and its child processes."""
    if value is not None:
        os.environ[BACKEND] = value


@click.group(
    cls=ErrorHandlingGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Examples:
  zarr-dask info maps.zarr
  zarr-dask tree s3://bucket/run-7.zarr
  zarr-dask plan maps.zarr series.zarr --chunks time=-1,lat=32,lon=32
  zarr-dask rechunk maps.zarr series.zarr --chunks 512,32,32 \\
      --max-mem 256MB --workers 2

URL, SRC and DST are paths or URLs. Options and credentials of object stores are taken from the
environment: AWS_..., GOOGLE_..., AZURE_..., and for all options FSSPEC_S3 with a JSON object, or
FSSPEC_S3_ENDPOINT_URL and the like.

Ctrl-C and SIGTERM end a job when the tasks that are running have ended, twice at once; either way
--resume goes on with it. Exit codes: 0 done, 1 an error or a finding, 2 wrong usage, 130 Ctrl-C,
143 SIGTERM.""",
)
@click.version_option(zd.__version__, prog_name="zarr-dask")
@click.option(
    "--backend",
    type=click.Choice(["fsspec", "obstore"]),
    expose_value=False,
    callback=_remember_backend,
    help="What serves URLs of object stores. By default obstore where it is installed and can.",
)
@traceback_option
def main() -> None:
    """Inspect Zarr arrays and rechunk them on Dask, in bounded memory."""


for _command in (
    info.info,
    info.tree,
    survey.inventory,
    rechunk.rechunk,
    rechunk.plan,
    copy.copy,
    ingest.ingest,
    plan_file.run,
    plan_file.status,
    plan_file.finish,
    submit_script.script,
    migrate.migrate,
    verify.verify,
    compare.compare,
    ome.ome,
):
    main.add_command(_command)
