"""``zarr-dask completion``: prints or installs the completion of commands, options and files."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from zarr_dask.cli.output import answer, echo, terminal_safe

__all__ = ["completion"]

_PROGRAM, _VARIABLE = "zarr-dask", "_ZARR_DASK_COMPLETE"
_STARTED = {"bash": ".bashrc", "zsh": ".zshrc"}
"""Files in the home folder that shells read when they start."""

_COMPINIT = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }"
"""Loads the completion of zsh where a user has not."""


@click.command(
    epilog="""\b
Examples:
  zarr-dask completion --install
  zarr-dask completion zsh
"""
)
@click.argument("shell", required=False, type=click.Choice(["bash", "zsh", "fish"]))
@click.option("--install", is_flag=True, help="Install it for this user.")
@click.pass_context
def completion(context: click.Context, /, shell: str | None, *, install: bool) -> None:
    """Print or install shell completion.

    SHELL is that of the environment by default. --install writes the script into a file of its own
    and adds one line to .bashrc or .zshrc; doing it again changes nothing.
    """
    found = shell or Path(os.environ.get("SHELL", "")).name
    made = get_completion_class(found)
    if found not in {"bash", "zsh", "fish"} or made is None:
        raise click.UsageError("the shell is not known: give bash, zsh or fish.")
    script = made(context.find_root().command, {}, _PROGRAM, _VARIABLE).source()
    if not install:
        echo(script)
        answer({"shell": found, "script": script, "files": []})
        return
    files = _install(found, script)
    for file in files:
        echo(f"written to {terminal_safe(str(file))}")
    echo("new shells complete zarr-dask")
    answer({"shell": found, "script": script, "files": [str(file) for file in files]})


def _install(shell: str, script: str) -> list[Path]:
    """Write the script where the shell finds it, and return the files that were written."""
    home = Path.home()
    if shell == "fish":
        config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
        return [_write(config / "fish" / "completions" / f"{_PROGRAM}.fish", script)]
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    if shell == "zsh":
        script = f"{_COMPINIT}\n{script}"
    file = _write(data / _PROGRAM / f"completion.{shell}", script)
    folder = Path(os.environ.get("ZDOTDIR") or home) if shell == "zsh" else home
    started = folder / _STARTED[shell]
    line = f'[ -r "{file}" ] && . "{file}"  # completion of {_PROGRAM}'
    try:
        known = started.read_text(encoding="utf-8") if started.exists() else ""
        if line in known.splitlines():
            return [file]
        ended = "" if not known or known.endswith("\n") else "\n"
        with started.open("a", encoding="utf-8") as opened:
            opened.write(f"{ended}{line}\n")
    except OSError as error:
        raise click.FileError(str(started), error.strerror) from error
    return [file, started]


def _write(file: Path, script: str) -> Path:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{script}\n", encoding="utf-8")
    except OSError as error:
        raise click.FileError(str(file), error.strerror) from error
    return file
