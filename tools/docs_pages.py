"""The pages of docs/ as programs.

A page runs from its top to its end, in one folder and one namespace:

* ``python`` blocks are executed;
* in ``console`` blocks, lines after ``$`` that call zarr-dask are executed;
* in ``sh`` blocks, calls of zarr-dask are parsed and not executed (clusters, Slurm).

Places that a page cannot reach from here (buckets, schedulers) are replaced by local ones.

``python -m tools.docs_pages tutorials/dataset.md ...`` runs pages, each in a new folder.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from zarr_dask.cli import main

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"

ELSEWHERE = {
    "s3://bucket/": "bucket/",
    "gs://bucket/": "bucket/",
    "az://container/": "bucket/",
    "/scratch/me": "scratch",
    "icechunk:///data/": "icechunk://FOLDER/",
    '{"anon": True}': "{}",
    '{"profile": "work"}': "{}",
    '"remote_protocol": "s3"': '"remote_protocol": "file"',
    'Client("tcp://scheduler:8786")': "Client(processes=False, dashboard_address=':0')",
}
"""Places that only a network has, and what stands for them when a page runs, in its FOLDER."""
ELSEWHERE_IN = {
    "howto/unreliable-network.md": {"s3://bucket/": "memory://docs/"},
    "tutorials/dataset.md": {"s3://bucket/": ""},
}
"""The same for single pages: with options that a folder does not have, or with data of the page."""

_FENCE = re.compile(r"(?ms)^(?P<indent> *)```(?P<kind>\w*)[^\n]*\n(?P<code>.*?)^(?P=indent)```$")
_HEADING = re.compile(r"(?m)^#{1,6} (.*)$")
_PICTURE = re.compile(r"!\[[^\]]*\]\((?:\.\./)*assets/([\w-]+\.png)\)")


@dataclass(frozen=True)
class Block:
    """A block of code in a page."""

    kind: str
    code: str
    section: str
    line: int


def pages() -> dict[str, Path]:
    """Return the README and all pages, by their names below docs/."""
    found = {path.relative_to(DOCS).as_posix(): path for path in sorted(DOCS.rglob("*.md"))}
    return {"README": ROOT / "README.md", **found}


def blocks(text: str) -> Iterator[Block]:
    """Yield the blocks of a page in their order."""
    fences = list(_FENCE.finditer(text))
    inside = [(match.start(), match.end()) for match in fences]
    titles = [
        match
        for match in _HEADING.finditer(text)
        if not any(start <= match.start() < end for start, end in inside)
    ]
    for match in fences:
        above = [title[1] for title in titles if title.start() < match.start()]
        yield Block(
            match["kind"],
            textwrap.dedent(match["code"]),
            above[-1] if above else "",
            text.count("\n", 0, match.start()) + 1,
        )


def pictures(text: str) -> list[str]:
    """Return the pictures that a page shows and makes: files in the folder where it runs."""
    return _PICTURE.findall(text)


def commands(block: Block) -> Iterator[str]:
    """Yield the calls of zarr-dask in a block for a shell."""
    for line in block.code.replace("\\\n", " ").splitlines():
        if block.kind == "console" and not line.startswith("$ "):
            continue  # output
        for command in line.removeprefix("$ ").partition("  #")[0].split("&&"):
            if command.strip().startswith("zarr-dask "):
                yield " ".join(command.partition(" > ")[0].split())


def execute(block: Block, namespace: dict[str, Any], name: str) -> None:
    """Execute a block in the current folder."""
    if block.kind == "python":
        here = _here(block.code, name)
        code = compile("\n" * block.line + here, name, "exec", dont_inherit=True)
        exec(code, namespace)  # noqa: S102
    elif block.kind == "console":
        for command in commands(block):
            words = shlex.split(re.sub(r" --workers \d+", "", _here(command, name)))
            main.main(words[1:], prog_name="zarr-dask", standalone_mode=False)
    elif block.kind == "sh":
        for command in commands(block):
            parse(_here(command, name))


def run(name: str, folder: str | Path) -> None:
    """Run a page from its top to its end in a folder."""
    namespace: dict[str, Any] = {"__name__": "__page__"}
    with chdir(folder):
        for block in blocks(pages()[name].read_text(encoding="utf-8")):
            execute(block, namespace, name)


def parse(command: str) -> None:
    """Parse a call of zarr-dask as the command line does, and do not run it."""
    words, found = shlex.split(command)[1:], main
    while isinstance(found, click.Group):
        found = found.get_command(click.Context(found), words.pop(0))
    found.make_context(command, words)


def _here(code: str, name: str) -> str:
    for place, here in (ELSEWHERE | ELSEWHERE_IN.get(name, {})).items():
        code = code.replace(place, here.replace("FOLDER", str(Path.cwd())))
    return code


def prose(text: str) -> list[str]:
    """Return the sentences of a page: no code, tables, headings, lists of links or comments."""
    text = _FENCE.sub("", re.sub(r"(?s)<!--.*?-->", "", text))
    text = re.sub(r"(?ms)^<(\w+)[^>]*>.*?^</\1>$", "", text)
    paragraphs: list[str] = []
    for part in re.split(r"\n\s*\n", text):
        lines = [
            line for line in part.splitlines() if not re.match(r"\s*(#|\||:::|!\[|=== |!!! )", line)
        ]
        paragraphs += re.split(r"(?m)^\s*(?:[-*]|\d+\.|:) +", "\n".join(lines))
    sentences: list[str] = []
    for paragraph in paragraphs:
        plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", paragraph)
        plain = re.sub(r"`[^`]*`", "code", plain)
        plain = " ".join(plain.split()).replace("e.g.", "eg")
        sentences += [s for s in re.split(r"(?<=[.!?])\s+", plain) if len(s.split()) > 1]
    return sentences


if __name__ == "__main__":
    os.environ["MPLBACKEND"] = "Agg"
    for page in sys.argv[1:]:
        with tempfile.TemporaryDirectory(prefix="zarr-dask-docs-") as new:
            run(page, new)
