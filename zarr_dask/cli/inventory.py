"""``zarr-dask inventory``: lists the nodes below a folder, as a table or as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

import zarr_dask as zd
from zarr_dask.cli.errors import Failure
from zarr_dask.cli.output import answer, echo, terminal_safe, wrapped
from zarr_dask.cli.settings import storage_options
from zarr_dask.jobs.engine.plan import pluralize

if TYPE_CHECKING:
    from zarr_dask.jobs.inventory.inventory import Inventory, NodeInventory

__all__ = ["inventory"]


@click.command()
@click.argument("root")
@click.argument("path", default="")
def inventory(root: str, path: str) -> None:
    """List the nodes below a folder, and their requirements.

    ROOT may hold many hierarchies of all formats. For every node it lists format, shape, data type,
    codecs, stored objects and sizes; required options and packages; and why a node cannot be read.
    No chunk is read. PATH is a path below ROOT. The exit code is 3 if there is nothing.
    """
    found = zd.inventory(root, path, storage_options=storage_options(root))
    if not found.nodes and not found.other_objects:
        is_file = Path(found.where).is_file()
        hint = "It is a file, and no zip archive." if is_file else "Check the path."
        raise Failure(terminal_safe(f"there is nothing at {found.where}. {hint}"))
    _say(found)
    answer(found.to_json())


def _say(found: Inventory) -> None:
    echo(f"{click.style('inventory', bold=True)} {terminal_safe(found.where)}")
    for line in _table(found.nodes):
        echo(terminal_safe(line))
    for heading, member in (
        ("needs", "needs"),
        ("warnings", "warnings"),
        ("cannot be read", "problems"),
    ):
        said = [(node.path, text) for node in found.nodes for text in getattr(node, member)]
        if said:
            echo(click.style(f"{heading}:", fg="cyan"))
        for where, text in said:
            echo(wrapped(terminal_safe(f"{where or '/'}: {text}"), "    ", "  "))
    echo(wrapped(_totals(found), "  "))


def _table(nodes: Sequence[NodeInventory]) -> Iterator[str]:
    """Yield one line for each node, in columns; nothing if there are none."""
    from zarr_dask.jobs.engine.plan import format_bytes

    head = ("path", "format", "shape", "data type", "codecs", "objects", "stored", "decoded")
    rows = [head, *(_row(node, format_bytes) for node in nodes)]
    if not nodes:
        return
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        yield f"  {'  '.join(cells)}".rstrip()


def _row(node: NodeInventory, words: Callable[[float], str]) -> tuple[str, ...]:
    start = (node.path or "/", node.format or "?")
    if node.kind != "array":
        return (*start, "group" if node.kind == "group" else "unreadable", "", "", "", "", "")
    return (
        *start,
        str(node.shape),
        node.data_type or "",
        "+".join(node.codecs),
        f"{node.objects:,} of {node.expected_objects:,}",
        words(node.stored_bytes),
        "?" if node.decoded_bytes is None else words(node.decoded_bytes),
    )


def _totals(found: Inventory) -> str:
    from zarr_dask.jobs.engine.plan import format_bytes

    totals = found.to_json()["totals"]
    nouns = {"groups": "group", "arrays": "array"}
    counts = (f"{totals[w]:,} {n}{'' if totals[w] == 1 else 's'}" for w, n in nouns.items())
    counted = ", ".join((*counts, f"{totals['unreadable']:,} unreadable"))
    others = totals["other_objects"]
    more = f"; {others:,} other objects ({format_bytes(totals['other_bytes'])})" if others else ""
    return (
        f"{counted}; {pluralize(totals['objects'], 'stored object')} "
        f"({format_bytes(totals['stored_bytes'])}){more}"
    )
