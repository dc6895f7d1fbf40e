"""Text for a terminal: wrapped to its width, and without control characters."""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import zarr_dask as zd
from zarr_dask._util import display as tree
from zarr_dask.cli.settings import COMMAND, settings

if TYPE_CHECKING:
    from zarr_dask.jobs.copy.plan import CopyPlan
    from zarr_dask.jobs.engine.report import ReportBase
    from zarr_dask.jobs.migrate.plan import MigrationPlan
    from zarr_dask.jobs.rechunk.joint_plan import JointRechunkPlan
    from zarr_dask.jobs.rechunk.rechunk import RechunkPlan
    from zarr_dask.ome import OmeMigration
    from zarr_dask.ome.plan import ImageWritePlan

__all__ = [
    "SCHEMA",
    "abbreviate",
    "answer",
    "echo",
    "report_facts",
    "say_error",
    "say_field",
    "say_plan",
    "say_report",
    "say_title",
    "terminal_safe",
    "wrapped",
    "write_output",
]

_LABEL = 18
_MAX_VALUE = 400
"""Maximum number of characters shown of an attribute; ``--json`` shows all."""


def terminal_safe(text: str) -> str:
    """Return text that cannot control a terminal; names and attributes are untrusted."""
    return "\n".join(map(tree.escape_control_chars, text.split("\n")))


def echo(text: str) -> None:
    """Print a line for people: nothing with ``--quiet`` or ``--json``."""
    if not (settings().quiet or settings().as_json):
        _print(text)


def _print(text: str) -> None:
    """Print a line; characters that the terminal cannot encode are escaped."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    click.echo(text.encode(encoding, "backslashreplace").decode(encoding))


def answer(result: Any, exit_code: int = 0) -> None:
    """Print the result of a command as one JSON object, with ``--json``; end with an exit code.

    Raises
    ------
    click.exceptions.Exit
        If the exit code is not 0.
    """
    if settings().as_json:
        _print_json({"exit_code": exit_code, "result": result, "error": None})
    if exit_code:
        raise click.exceptions.Exit(exit_code)


def say_error(kind: str, message: str, exit_code: int) -> None:
    """Print an error as one JSON object, with ``--json``."""
    if settings().as_json:
        error = {"type": kind, "message": message}
        _print_json({"exit_code": exit_code, "result": None, "error": error})


def _print_json(outcome: Mapping[str, Any]) -> None:
    context = click.get_current_context(silent=True)
    command = None if context is None else context.meta.get(COMMAND)
    document = {"schema": SCHEMA, "command": command, **outcome}
    _print(json.dumps(_strict(document), indent=2, ensure_ascii=False, allow_nan=False))


def _strict(value: Any) -> Any:
    """Return a value as strict JSON; values that JSON lacks are written as in Zarr v3."""
    if isinstance(value, Mapping):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    if is_dataclass(value):
        return _strict(report_facts(value))
    if hasattr(value, "tolist"):
        return _strict(value.tolist())
    if isinstance(value, complex):
        return [_strict(value.real), _strict(value.imag)]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


SCHEMA = "zarr-dask/1"
"""Name and version of what ``--json`` prints; members are added, not changed, in a version."""


def _width() -> int:
    """Return the columns of the terminal; without one, nothing is wrapped."""
    return shutil.get_terminal_size((1 << 20, 24)).columns


_SHORT_TUPLE = re.compile(r"\([^()\n]{,40}\)")


def wrapped(line: str, indent: str, first: str = "") -> str:
    """Return a line wrapped to the terminal's width; paths and short tuples are not split."""
    if len(line.split()) <= 2:  # a label and a path
        return f"{first}{line}"
    kept = _SHORT_TUPLE.sub(lambda found: found[0].replace(" ", "\0"), line)
    folded = textwrap.fill(
        kept,
        max(_width(), 40),
        initial_indent=first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return folded.replace("\0", " ")


def say_plan(
    plan: RechunkPlan | JointRechunkPlan | CopyPlan | MigrationPlan | OmeMigration | ImageWritePlan,
) -> None:
    """Print a plan, wrapped with its indents."""
    for line in terminal_safe(plan.explain()).splitlines():
        words = line.lstrip()
        lead = line[: len(line) - len(words)]
        echo(wrapped(words, f"{lead}        ", lead))


def report_facts(report: Any) -> dict[str, Any]:
    """Return a report as JSON values."""
    if hasattr(report, "to_json"):
        return dict(report.to_json())
    return {one.name: getattr(report, one.name) for one in fields(report)}


def say_report(report: ReportBase) -> None:
    """Print the results of a job beside the predictions of its plan."""
    first, *rest = terminal_safe(report.explain()).splitlines()
    echo(wrapped(f"done: {first}", "  "))
    for line in rest:
        echo(line)


def write_output(text: str, file: Path) -> None:
    """Write a text into a file; ``-`` is standard output.

    Raises
    ------
    click.FileError
        If the file cannot be written.
    """
    if str(file) == "-":
        _print(text)
        return
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.FileError(str(file), error.strerror) from error


def say_field(label: str, *lines: str) -> None:
    """Print a label and its value, in two columns."""
    lead = f"  {label:{_LABEL - 2}}"
    for line in lines:
        words = terminal_safe(line).lstrip()
        indent = _LABEL + len(line) - len(line.lstrip())
        folded = wrapped(words, " " * (indent + 2), " " * indent)
        echo(click.style(lead, fg="cyan") + folded[_LABEL:])
        lead = " " * _LABEL


def say_title(node: zd.Array | zd.Group, kind: str) -> None:
    """Print the kind and location of a node."""
    echo(f"{click.style(kind, bold=True)} {terminal_safe(node.where)}")


def abbreviate(text: str) -> str:
    """Truncate a text to a few lines, with a note where to find the rest."""
    return text if len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]} ... (--json shows all)"
