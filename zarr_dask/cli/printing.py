"""Text for a terminal: folded to its width, and safe to show, whoever wrote it."""

from __future__ import annotations

import json
import re
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING

import click

import zarr_dask as zd
from zarr_dask import tree

if TYPE_CHECKING:
    from zarr_dask.jobs.migrate.plan import MigrationPlan
    from zarr_dask.jobs.rechunk.joint_plan import JointPlan
    from zarr_dask.jobs.rechunk.rechunk import RechunkPlan
    from zarr_dask.jobs.rechunk.report import Measured
    from zarr_dask.ome import OmeMigration
    from zarr_dask.ome.plan import ImageWritePlan

__all__ = [
    "printable",
    "say",
    "say_field",
    "say_plan",
    "say_report",
    "say_title",
    "shortened",
    "wrapped",
]

_LABEL = 18
_MAX_VALUE = 400
"""Characters of one attribute that are shown; ``--json`` shows all."""


def printable(text: str) -> str:
    """Text of which nothing can steer a terminal; names and attributes come from strangers."""
    return "\n".join(map(tree.printable, text.split("\n")))


def say(text: str) -> None:
    """Print a line; what the terminal has no letters for is escaped."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    click.echo(text.encode(encoding, "backslashreplace").decode(encoding))


def _width() -> int:
    """Columns of the terminal; without one, nothing is wrapped."""
    return shutil.get_terminal_size((1 << 20, 24)).columns


_SHORT_TUPLE = re.compile(r"\([^()\n]{,40}\)")


def wrapped(line: str, indent: str, first: str = "") -> str:
    """A line folded to the width of the terminal; paths and short tuples stay in one piece."""
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
    plan: RechunkPlan | JointPlan | MigrationPlan | OmeMigration | ImageWritePlan,
) -> None:
    """Print a plan, folded with its indents."""
    for line in printable(plan.explain()).splitlines():
        words = line.lstrip()
        lead = line[: len(line) - len(words)]
        say(wrapped(words, f"{lead}        ", lead))


def say_report(report: Measured, *, as_json: bool) -> None:
    """Print what a job has done beside what its plan said, or that as one JSON object."""
    if as_json:
        say(json.dumps(report.to_json(), indent=2, allow_nan=False))
        return
    first, *rest = printable(report.explain()).splitlines()
    say(wrapped(f"done: {first}", "  "))
    for line in rest:
        say(line)


def say_field(label: str, *lines: str) -> None:
    """Print a label and what it is for, in two columns."""
    lead = f"  {label:{_LABEL - 2}}"
    for line in lines:
        words = printable(line).lstrip()
        indent = _LABEL + len(line) - len(line.lstrip())
        folded = wrapped(words, " " * (indent + 2), " " * indent)
        say(click.style(lead, fg="cyan") + folded[_LABEL:])
        lead = " " * _LABEL


def say_title(node: zd.Array | zd.Group, kind: str) -> None:
    """Print what a node is, and where."""
    say(f"{click.style(kind, bold=True)} {printable(node.where)}")


def shortened(text: str) -> str:
    """A text that fits into a few lines; it says where the rest is."""
    return text if len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]} ... (--json shows all)"
