"""The command line: ``zarr-dask info | tree | survey | rechunk | plan | migrate | demo``.

A thin end: it reads options, calls the package and prints. What a command says goes to stdout,
progress and errors to stderr. Errors of this package become one message and exit code 1, wrong
usage 2, an interrupt 130. Whatever loads dask is imported inside the command that needs it.
"""

from __future__ import annotations

import json
import logging
import math
import re
import shutil
import signal
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import starmap
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

import zarr_dask as zd
from zarr_dask.errors import MemoryBudgetError, NodeTypeError, ZarrDaskError

if TYPE_CHECKING:
    from distributed import Client
    from matplotlib.figure import Figure

    from zarr_dask.codecs.base import Codec
    from zarr_dask.jobs.migrate import MigrationPlan
    from zarr_dask.jobs.rechunk import Progress, RechunkPlan
    from zarr_dask.jobs.survey import NodeSurvey, Survey

__all__ = ["main"]

_TRACEBACK = "zarr_dask.traceback"
_SCHEDULER_TIMEOUT = 5.0
_LABEL = 18
_MAX_VALUE = 400
"""Characters of one attribute that are shown; ``--json`` shows all."""


# --- how the commands behave ----------------------------------------------------------------------


class _Failure(click.ClickException):
    """An error of the package, as a message folded to the terminal."""

    def show(self, file: Any = None) -> None:
        first, *rest = _printable(self.message).splitlines() or [""]
        lines = [_wrapped(first, "  ", "Error: ").removeprefix("Error: ")]
        lines += [_wrapped(line.lstrip(), "    ", "  ") for line in rest]
        click.echo(click.style("Error: ", fg="red") + "\n".join(lines), file=file, err=file is None)


class _Interrupted(click.ClickException):
    """Ctrl-C."""

    exit_code = 130

    def show(self, file: Any = None) -> None:
        click.echo(f"Interrupted{self.message}", file=file, err=file is None)


class _Commands(click.Group):
    """Commands whose errors are messages."""

    def invoke(self, ctx: click.Context) -> Any:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            try:
                return super().invoke(ctx)
            except ZarrDaskError as error:
                if ctx.meta.get(_TRACEBACK):
                    raise
                raise _Failure(_as_options(str(error))) from error
            except KeyboardInterrupt as interrupt:
                raise _Interrupted(".") from interrupt


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    click.echo(f"Warning: {_printable(str(message))}", err=True)


def _as_options(message: str) -> str:
    """What an error tells callers to pass, as options of a command."""
    named = re.sub(r"(?<![\w/-])max_mem\b", "--max-mem", message)
    for option in ("overwrite", "remove_old"):
        named = named.replace(f"{option}=True", f"--{option.replace('_', '-')}")
    return named


def _remember_traceback(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta[_TRACEBACK] = True


_Decorated = TypeVar("_Decorated", bound=Callable[..., Any])


def _traceback_option(command: _Decorated) -> _Decorated:
    return click.option(
        "--traceback",
        is_flag=True,
        expose_value=False,
        is_eager=True,
        envvar="ZARR_DASK_TRACEBACK",
        callback=_remember_traceback,
        help="Show where in Python an error arose.",
    )(command)


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

URL, SRC and DST are paths or URLs.""",
)
@click.version_option(zd.__version__, prog_name="zarr-dask")
@_traceback_option
def main() -> None:
    """Look at Zarr arrays and lay them out anew on Dask, in bounded memory."""


# --- printing -------------------------------------------------------------------------------------


def _printable(text: str) -> str:
    """Text of which nothing can steer a terminal; names and attributes come from strangers."""
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text
    )


def _say(text: str) -> None:
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    click.echo(text.encode(encoding, "backslashreplace").decode(encoding))


def _width() -> int:
    """Columns of the terminal; without one, nothing is wrapped."""
    return shutil.get_terminal_size((1 << 20, 24)).columns


_SHORT_TUPLE = re.compile(r"\([^()\n]{,40}\)")


def _wrapped(line: str, indent: str, first: str = "") -> str:
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


def _say_plan(plan: RechunkPlan | MigrationPlan) -> None:
    for line in _printable(plan.explain()).splitlines():
        words = line.lstrip()
        lead = line[: len(line) - len(words)]
        _say(_wrapped(words, f"{lead}        ", lead))


def _say_field(label: str, *lines: str) -> None:
    lead = f"  {label:{_LABEL - 2}}"
    for line in lines:
        words = _printable(line).lstrip()
        indent = _LABEL + len(line) - len(line.lstrip())
        folded = _wrapped(words, " " * (indent + 2), " " * indent)
        _say(click.style(lead, fg="cyan") + folded[_LABEL:])
        lead = " " * _LABEL


def _say_title(node: zd.Array | zd.Group, kind: str) -> None:
    _say(f"{click.style(kind, bold=True)} {_printable(node.where)}")


# --- info and tree --------------------------------------------------------------------------------


@main.command()
@click.argument("url")
@click.argument("path", default="")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--no-count", is_flag=True, help="Do not list the stored objects of an array.")
@_traceback_option
def info(url: str, path: str, as_json: bool, no_count: bool) -> None:
    """Say what an array or a group is.

    PATH is the path of the node below URL.
    """
    node = zd.open(url, path)
    if isinstance(node, zd.Group):
        children = list(node.children())
        facts: dict[str, Any] = {
            "kind": "group",
            "where": node.where,
            "format": node.format,
            "arrays": [name for name, child in children if isinstance(child, zd.Array)],
            "groups": [name for name, child in children if isinstance(child, zd.Group)],
            "attributes": node.attributes,
        }
    else:
        facts = _array_facts(node, None if no_count else _stored(node))
    if as_json:
        _say(json.dumps(_strict(facts), indent=2, ensure_ascii=False, allow_nan=False))
    elif isinstance(node, zd.Group):
        _say_group(node, facts)
    else:
        _say_array(node, facts)


@main.command()
@click.argument("url")
@click.argument("path", default="")
@_traceback_option
def tree(url: str, path: str) -> None:
    """Show the hierarchy below a group.

    PATH is the path of the group below URL.
    """
    node = zd.open(url, path)
    if isinstance(node, zd.Group):
        _say(_printable(node.tree()))
        return
    shards = f" in shards {node.shards}" if node.shards else ""
    name = node.path.rsplit("/", 1)[-1] or "/"
    _say(
        _printable(
            f"{name}  {node.shape} {node.meta.data_type.label}, chunks {node.chunks}{shards}"
        )
    )


def _stored(array: zd.Array) -> tuple[int, int]:
    """Number and bytes of the stored objects that exist, by one listing."""
    from zarr_dask.array import stored_sizes

    sizes = list(stored_sizes(array))
    return len(sizes), sum(sizes)


def _array_facts(array: zd.Array, stored: tuple[int, int] | None) -> dict[str, Any]:
    object_shape = array.write_chunks
    return {
        "kind": "array",
        "where": array.where,
        "format": array.format,
        "shape": array.shape,
        "dimension_names": array.dimension_names,
        "dtype": array.meta.data_type.label,
        "chunks": array.chunks,
        "shards": array.shards,
        "stored_objects": {
            "shape": object_shape,
            "nbytes": math.prod(object_shape) * array.meta.data_type.typical_itemsize,
            "count": array.meta.grid.ncells,
            "existing": None if stored is None else stored[0],
        },
        "codecs": [_codec_facts(codec) for codec in array.codecs],
        "fill_value": _fill_fact(array),
        "nbytes": array.nbytes,
        "nbytes_stored": None if stored is None else stored[1],
        "attributes": array.attributes,
    }


def _fill_fact(array: zd.Array) -> Any:
    """The fill value as JSON; None where there is none."""
    fill = array.meta.fill
    return None if fill is None else array.meta.data_type.to_json(fill)


def _codec_facts(codec: Codec) -> dict[str, Any]:
    configuration = codec.configuration()
    return {"name": configuration.pop("id", codec.name), "configuration": configuration}


def _strict(value: Any) -> Any:
    """A value as strict JSON; what JSON has no word for is spelled as Zarr v3 does."""
    if isinstance(value, Mapping):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, complex):
        return [_strict(value.real), _strict(value.imag)]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _say_group(group: zd.Group, facts: Mapping[str, Any]) -> None:
    _say_title(group, "group")
    _say_field("format", group.format)
    for kind in ("arrays", "groups"):
        names = facts[kind]
        listed = f": {_shortened(', '.join(names))}" if names else ""
        _say_field(kind, f"{len(names)}{listed}")
    _say_field("attributes", *_attribute_lines(group.attributes))


def _say_array(array: zd.Array, facts: Mapping[str, Any]) -> None:
    from zarr_dask.jobs.plan import format_bytes

    itemsize = array.meta.data_type.typical_itemsize

    def grid(shape: Sequence[int]) -> str:
        return f"{tuple(shape)}, {format_bytes(math.prod(shape) * itemsize)} decoded"

    _say_title(array, "array")
    _say_field("format", array.format)
    _say_field("shape", _named_shape(array))
    _say_field("data type", array.meta.data_type.label)
    _say_field("chunks", grid(array.chunks))
    _say_field("shards", grid(array.shards) if array.shards else "none")
    objects = facts["stored_objects"]
    existing = "" if objects["existing"] is None else f", of which {objects['existing']:,} exist"
    kind = "one shard" if array.shards else "one chunk"
    _say_field("stored objects", f"{objects['count']:,} ({kind} each){existing}")
    _say_field("codecs", *_codec_lines(facts["codecs"]))
    _say_field("fill value", "none" if array.fill_value is None else str(array.fill_value))
    _say_field("size", _size_line(facts["nbytes"], facts["nbytes_stored"], format_bytes))
    _say_field("attributes", *_attribute_lines(array.attributes))


def _named_shape(array: zd.Array) -> str:
    names = array.dimension_names
    if names is None:
        return str(array.shape)
    lengths = zip(names, array.shape, strict=True)
    return f"({', '.join(str(n) if name is None else f'{name}: {n}' for name, n in lengths)})"


def _size_line(nbytes: int, stored: int | None, words: Callable[[float], str]) -> str:
    line = f"{words(nbytes)} decoded"
    if stored is None:
        return line
    if not stored:
        return f"{line}, nothing stored"
    return f"{line}, {words(stored)} stored (ratio {nbytes / stored:.2f})"


def _codec_lines(codecs: Sequence[Mapping[str, Any]], indent: str = "") -> Iterator[str]:
    """One codec a line, in the order of encoding; those of the chunks in a shard below it."""
    for codec in codecs:
        configuration = codec.get("configuration", {})
        inner = {name: v for name, v in configuration.items() if _are_codecs(v)}
        own = {name: v for name, v in configuration.items() if name not in inner}
        words = ", ".join(starmap(_parameter, own.items()))
        yield f"{indent}{codec['name']}({words})" if words else f"{indent}{codec['name']}"
        for name, below in inner.items():
            yield f"{indent}  {name}:"
            yield from _codec_lines(below, f"{indent}    ")


def _are_codecs(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(item, dict) for item in value)


def _parameter(name: str, value: Any) -> str:
    return f"{name}={value if isinstance(value, str) else json.dumps(value)}"


def _attribute_lines(attributes: Mapping[str, Any]) -> Iterator[str]:
    if not attributes:
        yield "none"
    for name, value in attributes.items():
        yield f"{name}: {_shortened(json.dumps(value, ensure_ascii=False))}"


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]} ... (--json shows all)"


# --- survey ---------------------------------------------------------------------------------------


@main.command()
@click.argument("root")
@click.argument("path", default="")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@_traceback_option
def survey(root: str, path: str, as_json: bool) -> None:
    """Say what there is below a folder, and what reading it needs.

    ROOT may hold many hierarchies of all formats. For every node: its format, shape, data type,
    codecs, stored objects and sizes; which options and packages it needs; what cannot be read,
    and why. No chunk is read. PATH is a path below ROOT.
    """
    found = zd.survey(root, path)
    if as_json:
        _say(json.dumps(found.to_json(), indent=2, ensure_ascii=False, allow_nan=False))
        return
    _say(f"{click.style('survey', bold=True)} {_printable(found.where)}")
    for line in _table(found.nodes):
        _say(_printable(line))
    for heading, member in (
        ("needs", "needs"),
        ("warnings", "warnings"),
        ("cannot be read", "problems"),
    ):
        said = [(node.path, text) for node in found.nodes for text in getattr(node, member)]
        if said:
            _say(click.style(f"{heading}:", fg="cyan"))
        for where, text in said:
            _say(_wrapped(_printable(f"{where or '/'}: {text}"), "    ", "  "))
    _say(_wrapped(_totals(found), "  "))


def _table(nodes: Sequence[NodeSurvey]) -> Iterator[str]:
    """One line for each node, in columns; nothing if there are none."""
    from zarr_dask.jobs.plan import format_bytes

    head = ("path", "format", "shape", "data type", "codecs", "objects", "stored", "decoded")
    rows = [head, *(_row(node, format_bytes) for node in nodes)]
    if not nodes:
        return
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        yield f"  {'  '.join(cells)}".rstrip()


def _row(node: NodeSurvey, words: Callable[[float], str]) -> tuple[str, ...]:
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


def _totals(found: Survey) -> str:
    from zarr_dask.jobs.plan import format_bytes

    totals = found.to_json()["totals"]
    nouns = {"groups": "group", "arrays": "array"}
    counts = (f"{totals[w]:,} {n}{'' if totals[w] == 1 else 's'}" for w, n in nouns.items())
    counted = ", ".join((*counts, f"{totals['unreadable']:,} unreadable"))
    others = totals["other_objects"]
    more = f"; {others:,} other objects ({format_bytes(totals['other_bytes'])})" if others else ""
    return (
        f"{counted}; {totals['objects']:,} stored objects "
        f"({format_bytes(totals['stored_bytes'])}){more}"
    )


# --- options of the jobs --------------------------------------------------------------------------


class _GridType(click.ParamType[Any]):
    """Lengths by position (``512,32,32``), for all (``64``), or by name (``time=-1,lat=32``)."""

    name = "GRID"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        text = value.strip()
        if text[:1] + text[-1:] in {"()", "[]"}:  # as info and plan print them
            text = text[1:-1].removesuffix(",")
        items = [item.strip() for item in text.split(",")]
        named = [item for item in items if "=" in item]
        if named and len(named) < len(items):
            self.fail(
                f"{value!r} mixes lengths by position and by name: write 512,32,32 or "
                "time=-1,lat=32.",
                param,
                ctx,
            )
        if named:
            return self._by_name(value, items, param, ctx)
        lengths = tuple(self._length(value, item, param, ctx) for item in items)
        return lengths[0] if len(lengths) == 1 and text == value.strip() else lengths

    def _by_name(
        self,
        value: str,
        items: Sequence[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> dict[str | int, int]:
        grid: dict[str | int, int] = {}
        for item in items:
            name, _, length = (part.strip() for part in item.rpartition("="))
            if not name:
                self.fail(f"{value!r}: {item!r} names no dimension.", param, ctx)
            key = int(name) if re.fullmatch("[0-9]+", name) else name
            if key in grid:
                self.fail(f"{value!r} names the dimension {name!r} twice.", param, ctx)
            grid[key] = self._length(value, length, param, ctx)
        return grid

    def _length(
        self, value: str, text: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        if not re.fullmatch("-1|0*[1-9][0-9]{,17}", text):
            self.fail(
                f"{value!r}: {text!r} is not a length: expected a number of at least 1, or -1 for "
                "the whole dimension, as in 512,32,32 or time=-1,lat=32.",
                param,
                ctx,
            )
        return int(text)


class _SizeType(click.ParamType[int]):
    """Bytes, or a text with a unit."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from zarr_dask.jobs.plan import parse_bytes

        try:
            return parse_bytes(value)
        except MemoryBudgetError:
            self.fail(f"{value!r} is not a size: expected bytes, or 256MB, 2GiB ...", param, ctx)


_JOB_OPTIONS = [
    click.argument("src"),
    click.argument("dst"),
    click.option(
        "--chunks",
        type=_GridType(),
        help="What is decoded at once: 512,32,32, or 64 for all dimensions, or by name or position "
        "time=-1,lat=32. -1 is a whole dimension; what is not named stays as it is.",
    ),
    click.option(
        "--shards",
        type=_GridType(),
        help="Stored objects of several chunks, in the same forms. Without it, every chunk is an "
        "object of its own.",
    ),
    click.option(
        "--max-mem",
        type=_SizeType(),
        help="What one process may hold above its idle size, such as 256MB. By default 60 % of "
        "the workers' limit, or 1 GB.",
    ),
    click.option("--path", default="", help="Path of the new array below DST."),
    click.option("--temp", metavar="URL", help="Where intermediate data goes, if there must be."),
    click.option("--overwrite", is_flag=True, help="Replace what is at DST."),
    click.option("--scheduler", metavar="ADDRESS", help="Run on the Dask scheduler there."),
    click.option(
        "--scheduler-file",
        type=click.Path(exists=True, dir_okay=False),
        help="Run on the Dask scheduler that has written this file.",
    ),
    click.option(
        "--workers",
        type=click.IntRange(min=1),
        help="Run on so many new local processes. By default, on threads of this one.",
    ),
    _traceback_option,
]


def _job_options(command: _Decorated) -> _Decorated:
    for option in reversed(_JOB_OPTIONS):
        command = cast("Callable[[_Decorated], _Decorated]", option)(command)
    return command


@contextmanager
def _planned(
    src: str,
    dst: str,
    *,
    scheduler: str | None,
    scheduler_file: str | None,
    workers: int | None,
    **options: Any,
) -> Iterator[tuple[RechunkPlan, Client | None]]:
    """The plan, and the cluster to run it on for as long as the context lasts."""
    if options["chunks"] is None and options["shards"] is None:
        raise click.UsageError("give --chunks, --shards or both: without them nothing changes.")
    if sum(place is not None for place in (scheduler, scheduler_file, workers)) > 1:
        raise click.UsageError("--scheduler, --scheduler-file and --workers exclude each other.")
    source = _source(src)
    from zarr_dask.jobs.rechunk import plan_rechunk
    from zarr_dask.jobs.run import connect

    connection = connect(scheduler, scheduler_file, workers, _SCHEDULER_TIMEOUT)
    with ExitStack() as stack:
        with _interrupts_put_off() if workers else nullcontext():
            client = stack.enter_context(connection)
        if client is not None and workers:
            _silence()
            client.run(_silence)
        yield plan_rechunk(source, dst, client=client, **options), client


@contextmanager
def _interrupts_put_off() -> Iterator[None]:
    """Ctrl-C waits until worker processes are there to be ended, and never reaches them."""
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # its start, which workers cause, would undo the mask
    came: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # processes inherit it
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
    if came:
        raise KeyboardInterrupt


def _silence() -> None:
    """Do not log the errors of tasks, which are raised too, nor workers that end slowly."""
    for process in ("worker", "nanny"):
        logging.getLogger(f"distributed.{process}").setLevel(logging.CRITICAL)
        logging.getLogger(f"distributed.{process}.memory").setLevel(logging.WARNING)


def _source(src: str) -> zd.Array:
    node = zd.open(src)
    if isinstance(node, zd.Array):
        return node
    arrays = [path for path, _ in node.arrays(recursive=True)]
    held = _shortened(", ".join(arrays)) or "none"
    raise NodeTypeError(f"{node.where} is a group; SRC must be an array. Arrays in it: {held}.")


# --- rechunk and plan -----------------------------------------------------------------------------


@main.command(
    epilog="""\b
Examples:
  zarr-dask rechunk maps.zarr series.zarr --chunks time=-1,lat=32,lon=32
  zarr-dask rechunk maps.zarr series.zarr --chunks 512,32,32 \\
      --shards 512,256,256 --max-mem 256MB --workers 2
"""
)
@_job_options
@click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors.")
def rechunk(src: str, dst: str, *, quiet: bool, **options: Any) -> None:
    """Copy an array into other chunks and shards.

    SRC is the array, DST the place of the new one. The plan is printed, then carried out within
    --max-mem. The metadata of the new array are written last: until then, no reader takes it for
    whole.
    """
    with _planned(src, dst, **options) as (plan, client):
        if not quiet:
            _say_plan(plan)
        try:
            with nullcontext() if quiet else _progress(plan) as advance:
                report = plan.run(client, advance)
        except KeyboardInterrupt as interrupt:
            raise _Interrupted(
                f": {plan.target.where} is not complete. Run the same command again to start over."
            ) from interrupt
        if not quiet:
            _say(_wrapped(f"done: {report}", "  "))


@main.command(
    epilog="""\b
Example:
  zarr-dask plan maps.zarr series.zarr --chunks time=-1,lat=32,lon=32 \\
      --max-mem 256MB --plot plan.png
"""
)
@_job_options
@click.option(
    "--plot",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw the plan into this file (PNG, SVG, PDF ...); needs matplotlib.",
)
def plan(src: str, dst: str, *, plot: Path | None, **options: Any) -> None:
    """Say what rechunk would do; writes nothing.

    The arguments are those of rechunk.
    """
    with _planned(src, dst, **options) as (made, _):
        _say_plan(made)
        if plot is not None:
            _save(made.plot(), plot)
            _say(f"drawn in {_printable(str(plot))}")


def _save(figure: Figure, file: Path) -> None:
    known = sorted(figure.canvas.get_supported_filetypes())
    if file.suffix[1:].lower() not in known:
        raise click.BadParameter(
            f"{str(file)!r} must end in one of {', '.join(f'.{name}' for name in known)}.",
            param_hint="'--plot'",
        )
    try:
        figure.savefig(file, dpi=110)
    except OSError as error:
        raise click.FileError(str(file), error.strerror) from error


# --- migrate --------------------------------------------------------------------------------------


@main.command(
    epilog="""\b
Examples:
  zarr-dask migrate maps.zarr --dry-run
  zarr-dask migrate maps.zarr
  zarr-dask migrate maps.zarr --remove-old
  zarr-dask migrate draft.zarr final.zarr"""
)
@click.argument("src")
@click.argument("dst", required=False)
@click.option("--path", default="", help="Path of the hierarchy's root below SRC (and DST).")
@click.option(
    "--format",
    type=click.Choice(["v3", "v2"]),
    default="v3",
    show_default=True,
    help="The new format; v2 is for arrays of v1.",
)
@click.option(
    "--data",
    type=click.Choice(["keep", "rename", "copy"]),
    help="keep stored objects where they are (the default in place), rename them to the default "
    "keys of v3, or copy them to DST. Their bytes are never changed.",
)
@click.option("--dry-run", is_flag=True, help="Say what would happen; write nothing.")
@click.option(
    "--remove-old",
    is_flag=True,
    help="In place: remove old documents and keys when the new ones are there and verified.",
)
@click.option(
    "--v1-f-order",
    type=click.Choice(["spec", "legacy"]),
    default="spec",
    show_default=True,
    help="How v1 arrays of order F without blosc are laid out; legacy is what zarr-python 1 wrote.",
)
@click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors.")
@_traceback_option
def migrate(
    src: str,
    dst: str | None,
    *,
    path: str,
    format: str,
    data: Any,
    dry_run: bool,
    remove_old: bool,
    v1_f_order: Any,
    quiet: bool,
) -> None:
    """Say in Zarr v3 what a hierarchy of an older format holds.

    No chunk is decoded, and a hierarchy is migrated as a whole or not at all: if a node cannot
    be, the exit code is 1 and all reasons are printed, for a dry run as well. Without DST the new
    documents are written beside the old ones, which stay unless --remove-old is given; v3 wins
    where both lie side by side. An interrupted migration leaves a readable hierarchy; run the
    same command again.
    """
    read = zd.ReadOptions(v1_f_order=v1_f_order)
    try:
        plan = zd.plan_migration(
            src, dst, path=path, format=format, data=data, remove_old=remove_old, read=read
        )
    except ZarrDaskError:
        raise
    except ValueError as error:
        raise click.UsageError(_as_options(str(error))) from error
    if dry_run and plan.refusals:
        _say_plan(plan)
        raise click.exceptions.Exit(1)
    if not quiet and not plan.refusals:
        _say_plan(plan)
    if dry_run:
        return
    try:
        with nullcontext() if quiet or not plan.nbytes else _copying(plan) as advance:
            report = plan.run(advance)
    except KeyboardInterrupt as interrupt:
        raise _Interrupted(
            f": {plan.where} can be read as before. Run the same command again to go on."
        ) from interrupt
    if not quiet:
        _say(_wrapped(f"done: {report}", "  "))


# --- progress -------------------------------------------------------------------------------------


def _stage_name(stage: int, stages: int) -> str:
    return "copying" if stages == 1 else f"stage {stage + 1} of {stages}"


@contextmanager
def _progress(plan: RechunkPlan) -> Iterator[Callable[[Progress], None]]:
    """What shows the progress of a plan on stderr: bars on a terminal, else a line now and then."""
    from rich.console import Console

    console = Console(stderr=True)
    if sys.stderr.isatty() and console.is_terminal and not console.is_dumb_terminal:
        with _bars(plan, console) as advance:
            yield advance
    else:
        yield _Lines()


@contextmanager
def _copying(plan: MigrationPlan) -> Iterator[Callable[[int], None]]:
    """What shows how many bytes a migration has copied: a bar on a terminal, else lines."""
    from rich import progress
    from rich.console import Console

    from zarr_dask.jobs.rechunk import Progress

    console = Console(stderr=True)
    if not (sys.stderr.isatty() and console.is_terminal and not console.is_dumb_terminal):
        lines, lock = _Lines(), Lock()

        def say(nbytes: int) -> None:
            with lock:
                lines(Progress(0, 1, nbytes, plan.nbytes))

        yield say
        return
    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(bar_width=None),
        progress.TaskProgressColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(elapsed_when_finished=True),
    )
    with progress.Progress(*columns, console=console, expand=True) as bars:
        task = bars.add_task("copying", total=plan.nbytes)
        yield lambda nbytes: bars.advance(task, nbytes)


@contextmanager
def _bars(plan: RechunkPlan, console: Any) -> Iterator[Callable[[Progress], None]]:
    from rich import progress

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(bar_width=None),
        progress.TaskProgressColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(elapsed_when_finished=True),
    )
    stages = len(plan.stages)
    # one task may take a minute: the rate is that of many
    with progress.Progress(
        *columns, console=console, expand=True, speed_estimate_period=600
    ) as bars:
        total = plan.source.nbytes
        ids = [
            bars.add_task(_stage_name(n, stages), start=False, total=total) for n in range(stages)
        ]

        def start(stage: int) -> None:
            bars.start_task(ids[stage])
            bars.advance(ids[stage], 0)  # the rate counts from here

        def advance(step: Progress) -> None:
            task = ids[step.stage]
            bars.advance(task, step.nbytes)
            if bars.tasks[step.stage].finished and step.stage + 1 < stages:
                start(step.stage + 1)

        start(0)
        yield advance


@dataclass
class _Lines:
    """A line for every tenth of a stage, but not more than one a second."""

    stage: int = 0
    done: int = 0
    begun: float = field(default_factory=perf_counter)
    """When the stage began."""
    last: float = field(default_factory=perf_counter)
    """When the last task was done."""
    said: float = -math.inf
    """When the last line was printed."""

    def __call__(self, step: Progress) -> None:
        if step.stage != self.stage:
            self.stage, self.done, self.begun = step.stage, 0, self.last
        before, self.done = self.done, self.done + step.nbytes
        self.last = perf_counter()
        finished = self.done == step.total
        tenth = step.total and self.done * 10 // step.total > before * 10 // step.total
        if finished or (tenth and self.last >= self.said + 1):
            self.said = self.last
            self._say(step, self.last - self.begun)

    def _say(self, step: Progress, seconds: float) -> None:
        from zarr_dask.jobs.plan import format_bytes

        percent = self.done * 100 // step.total if step.total else 100
        rate = f", {format_bytes(self.done / seconds)}/s" if seconds else ""
        left = step.total - self.done
        when = f"{seconds * left / self.done:.0f} s left" if left else f"in {seconds:.1f} s"
        click.echo(
            f"{_stage_name(step.stage, step.stages)}: {percent} % "
            f"({format_bytes(self.done)} of {format_bytes(step.total)}){rate}, {when}",
            err=True,
        )


# --- demo -----------------------------------------------------------------------------------------


@main.command()
@click.argument("output", default="demo-output", type=click.Path(file_okay=False))
@click.option(
    "--workers", type=click.IntRange(min=1), default=2, show_default=True, help="Local processes."
)
@_traceback_option
def demo(output: str, workers: int) -> None:
    """Simulate a tsunami in parallel, and rechunk it.

    Fills the folder OUTPUT (demo-output) with arrays and pictures. Needs matplotlib and
    zarr-python: pip install 'zarr-dask[demo]'.
    """
    from zarr_dask.demo import run

    run(output, workers=workers)


if __name__ == "__main__":
    main()
