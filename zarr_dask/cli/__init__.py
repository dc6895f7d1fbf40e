"""The command line ``zarr-dask``: one module for each family of commands.

It is a thin layer: it reads options, calls the package and prints. Results go to stdout, progress
and errors to stderr. A finding has exit code 1, wrong usage 2, a failure 3, Ctrl-C 130, SIGTERM
143. Modules that load dask are imported inside the commands that need them.

=============  ==========================================================================
every command  `settings`, `options`, `errors`, `output`, `progress`, `signals`, `files`,
               `completion`
nodes          `info`, `nodes`, `inventory`, `doctor`
data           `verify`, `compare`
jobs           `rechunk`, `copy`, `migrate`, `ingest`, `cluster`, `price`, `pictures`,
               `job_status`
plan files     `plan_file`, `script`, `batch_scripts`
images         `ome`, `ome_jobs`
=============  ==========================================================================
"""

from __future__ import annotations

import click

import zarr_dask as zd
from zarr_dask.cli import (
    compare,
    completion,
    copy,
    doctor,
    info,
    ingest,
    migrate,
    nodes,
    ome,
    plan_file,
    rechunk,
    verify,
)
from zarr_dask.cli import inventory as survey
from zarr_dask.cli import script as submit_script
from zarr_dask.cli.errors import ErrorHandlingGroup
from zarr_dask.cli.settings import add_settings

__all__ = ["main"]


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

URL, SRC and DST are paths or URLs. The options above may be given before or after the name of a
command. Credentials of object stores come from the environment, as AWS_..., GOOGLE_... and
AZURE_..., or from the configuration files of these services.

Press Ctrl-C once to stop a job after the running tasks, twice to stop at once; --resume continues
it. Exit codes: 0 done, 1 something differs or is damaged, 2 wrong usage, 3 failed, 130 Ctrl-C, 143
SIGTERM.""",
)
@click.version_option(zd.__version__, "--version", "-V", prog_name="zarr-dask")
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
    nodes.create,
    nodes.delete,
    nodes.consolidate,
    nodes.digest,
    nodes.ls,
    nodes.head,
    ome.ome,
    doctor.doctor,
    completion.completion,
):
    main.add_command(_command)
add_settings(main)
