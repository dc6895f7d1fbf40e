"""Shared by all commands: errors as one message, warnings as one line, and ``--traceback``."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import click

from zarr_dask.cli.output import terminal_safe, wrapped
from zarr_dask.errors import ZarrDaskError

__all__ = [
    "OWN_PROCESS",
    "Decorated",
    "ErrorHandlingGroup",
    "Interrupted",
    "Terminated",
    "as_options",
    "traceback_option",
]

_TRACEBACK = "zarr_dask.traceback"
OWN_PROCESS = "own process"
"""Object of the context of a command that is a process of its own."""


class _Failure(click.ClickException):
    """An error of the package, as a message wrapped to the width of the terminal."""

    def show(self, file: Any = None) -> None:
        first, *rest = terminal_safe(self.message).splitlines() or [""]
        lines = [wrapped(first, "  ", "Error: ").removeprefix("Error: ")]
        lines += [wrapped(line.lstrip(), "    ", "  ") for line in rest]
        click.echo(click.style("Error: ", fg="red") + "\n".join(lines), file=file, err=file is None)


class Interrupted(click.ClickException):
    """Ctrl-C, with its usual exit code."""

    exit_code = 130

    def show(self, file: Any = None) -> None:
        """Print the interruption, and the state of the job."""
        click.echo(f"Interrupted{self.message}", file=file, err=file is None)


class Terminated(Interrupted):
    """SIGTERM."""

    exit_code = 143


class ErrorHandlingGroup(click.Group):
    """Commands that print errors as messages."""

    def main(self, args: Any = None, **extra: Any) -> Any:
        """Run a command; see `click.Group.main`."""
        return super().main(args, obj=OWN_PROCESS if args is None else None, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; see `click.Group.invoke`."""
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            try:
                return super().invoke(ctx)
            except ZarrDaskError as error:
                if ctx.meta.get(_TRACEBACK):
                    raise
                raise _Failure(as_options(str(error))) from error
            except KeyboardInterrupt as interrupt:
                raise Interrupted(".") from interrupt


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    sys.stderr.write(f"Warning: {terminal_safe(str(message))}\n")  # above progress bars, if any


def as_options(message: str) -> str:
    """Replace Python arguments in an error message by options of the command."""
    named = re.sub(r"(?<![\w/-])max_mem\b", "--max-mem", message)
    named = re.sub(r"(?<![\w/.-])dst(?![\w/-]|\.\w)", "DST", named)
    anonymous = 'storage_options={"anon": True}'
    named = named.replace(anonymous, """FSSPEC_S3='{"anon": true}' in the environment""")
    for option in ("overwrite", "remove_old"):
        named = named.replace(f"{option}=True", f"--{option.replace('_', '-')}")
    return named


def _remember_traceback(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta[_TRACEBACK] = True


Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def traceback_option(command: Decorated) -> Decorated:
    """Give a command ``--traceback``."""
    return click.option(
        "--traceback",
        is_flag=True,
        expose_value=False,
        is_eager=True,
        envvar="ZARR_DASK_TRACEBACK",
        callback=_remember_traceback,
        help="Show where in Python an error arose.",
    )(command)
