"""A hook of mkdocs: what pages of the reference take from the package.

``::: zarr_dask.to_zarr`` becomes the directive for the module that defines the function, under the
public name, so that pages stay right when modules move. ``<!-- commands -->`` becomes the commands
of the command line with their options. Pictures of tutorials are made by running the tutorials.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from inspect import cleandoc, ismodule
from typing import TYPE_CHECKING, Any

import click

import zarr_dask as zd
from tools import docs_pictures
from zarr_dask._util.lazy_names import hidden_names
from zarr_dask.cli import main
from zarr_dask.stores import Store

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

_DIRECTIVE = re.compile(r"(?m)^::: zarr_dask\.([\w.]+)$")
_COMMANDS = "<!-- commands -->"


def _directive(match: re.Match[str]) -> str:
    found: Any = zd
    for part in match[1].split("."):
        found = getattr(found, part)
    module = ismodule(found)
    path = found.__name__ if module else f"{found.__module__}.{found.__qualname__}"
    lines = [f"::: {path}", "    options:", f"      heading: zarr_dask.{match[1]}"]
    lines += [f"      toc_label: {match[1]}"]
    if module or (found is not Store and hasattr(found, "get_ranges")):
        lines += ["      members: false"]  # the methods of a store stand at zarr_dask.stores.Store
    elif isinstance(found, type):
        if not issubclass(found, BaseException):  # all errors have the members of one
            lines += ["      inherited_members: true"]
        if hidden := sorted(hidden_names(found)):
            lines += [f'      filters: ["!^_", "!^({"|".join(hidden)})$"]']
    return "\n".join(lines)


def _paragraphs(text: str | None) -> Iterator[str]:
    """Yield the paragraphs of a help text; what is laid out by hand becomes a block of code."""
    for paragraph in re.split(r"\n\s*\n", cleandoc(text or "")):
        first, _, rest = paragraph.partition("\n")
        if first.strip() == "\b":
            title, _, code = rest.partition("\n")
            yield f"{title.strip()}\n\n```text\n{cleandoc(code)}\n```"
        else:
            yield " ".join(paragraph.split())


def _command(command: click.Command, name: str, context: click.Context) -> Iterator[str]:
    yield f"{'#' * (name.count(' ') + 2)} {name}"
    yield from _paragraphs(command.help)
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"```text\n{name} {usage}\n```"
    rows = [shown for param in command.get_params(context) if (shown := _option(param, context))]
    if rows:
        yield "\n".join(["| option | meaning |", "|---|---|", *rows])
    yield from _paragraphs(command.epilog)
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            if found is not None and not found.hidden:
                inner = click.Context(found, info_name=below, parent=context)
                yield from _command(found, f"{name} {below}", inner)


def _option(param: click.Parameter, context: click.Context) -> str:
    record = param.get_help_record(context)
    if record is None or not record[1] or param.name == "help":
        return ""
    names, meaning = (" ".join(text.split()) for text in record)
    return f"| `{names}` | {meaning.replace('<', '&lt;').replace('|', '&#124;')} |"


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Return the files of the site with the pictures of the tutorials; called by mkdocs."""
    from mkdocs.structure.files import File  # which tests of the reference do without

    for name, content in docs_pictures.made().items():
        files.append(File.generated(config, f"assets/{name}", content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return the page with public names and commands filled in; called by mkdocs."""
    markdown = _DIRECTIVE.sub(_directive, markdown)
    if _COMMANDS in markdown:
        context = click.Context(main, info_name="zarr-dask")
        commands = "\n\n".join(_command(main, "zarr-dask", context))
        markdown = markdown.replace(_COMMANDS, commands)
    return markdown
