"""Text for a terminal: wrapped to its width, and without control characters."""

from __future__ import annotations

import json
import re
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING

import click

import zarr_dask as zd
from zarr_dask._util import display as tree

if TYPE_CHECKING:
    from zarr_dask.jobs.copy.plan import CopyPlan
    from zarr_dask.jobs.engine.report import ReportBase
    from zarr_dask.jobs.migrate.plan import MigrationPlan
    from zarr_dask.jobs.rechunk.joint_plan import JointRechunkPlan
    from zarr_dask.jobs.rechunk.rechunk import RechunkPlan
    from zarr_dask.ome import OmeMigration
    from zarr_dask.ome.plan import ImageWritePlan

__all__ = [
    "abbreviate",
    "echo",
    "say_field",
    "say_plan",
    "say_report",
    "say_title",
    "terminal_safe",
    "wrapped",
]

_LABEL = 18
_MAX_VALUE = 400
"""Maximum number of characters shown of an attribute; ``--json`` shows all."""


def terminal_safe(text: str) -> str:
    """Return text that cannot control a terminal; names and attributes are untrusted."""
    return "\n".join(map(tree.escape_control_chars, text.split("\n")))


def echo(text: str) -> None:
    """Print a line; characters that the terminal cannot encode are escaped."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    click.echo(text.encode(encoding, "backslashreplace").decode(encoding))


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


def say_report(report: ReportBase, *, as_json: bool) -> None:
    """Print the results of a job beside the predictions of its plan, or as one JSON object."""
    if as_json:
        echo(json.dumps(report.to_json(), indent=2, allow_nan=False))
        return
    first, *rest = terminal_safe(report.explain()).splitlines()
    echo(wrapped(f"done: {first}", "  "))
    for line in rest:
        echo(line)


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
