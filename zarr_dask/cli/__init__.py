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

from importlib import import_module

import click

import zarr_dask as zd
from zarr_dask.cli.errors import ErrorHandlingGroup
from zarr_dask.cli.settings import add_settings

__all__ = ["main"]

_COMMANDS = {
    "info": "info",
    "tree": "info",
    "inventory": "inventory",
    "rechunk": "rechunk",
    "plan": "rechunk",
    "copy": "copy",
    "ingest": "ingest",
    "run": "plan_file",
    "status": "plan_file",
    "finish": "plan_file",
    "script": "script",
    "migrate": "migrate",
    "verify": "verify",
    "compare": "compare",
    "create": "nodes",
    "delete": "nodes",
    "consolidate": "nodes",
    "digest": "nodes",
    "ls": "nodes",
    "head": "nodes",
    "ome": "ome",
    "doctor": "doctor",
    "completion": "completion",
}
"""Modules of commands, which are imported when a command is called or listed."""


class _Commands(ErrorHandlingGroup):
    """The commands of `_COMMANDS`; a call loads the module of one."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names of all commands."""
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command; None if there is none of this name."""
        if cmd_name in _COMMANDS and cmd_name not in self.commands:
            module = import_module(f"zarr_dask.cli.{_COMMANDS[cmd_name]}")
            command: click.Command = getattr(module, cmd_name)
            add_settings(command)
            self.add_command(command)
        return super().get_command(ctx, cmd_name)


@click.group(
    cls=_Commands,
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


add_settings(main)
