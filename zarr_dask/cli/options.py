"""Options of ``zarr-dask rechunk``, ``plan`` and ``copy``, with the types of their values."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import click

from zarr_dask.cli.cluster import cluster_options
from zarr_dask.cli.errors import Decorated
from zarr_dask.cli.price import price_option
from zarr_dask.errors import MemoryBudgetError
from zarr_dask.formats.detect import FORMATS
from zarr_dask.formats.v3draft import DRAFTS

__all__ = [
    "FORMAT",
    "CodecsType",
    "FormatType",
    "GridType",
    "LabelsType",
    "RegionType",
    "SizeType",
    "TargetType",
    "array_options",
    "encoding_options",
    "job_options",
    "named_option",
    "once_each",
    "run_options",
    "selected",
]


class GridType(click.ParamType[Any]):
    """Lengths by position (``512,32,32``), for all (``64``), or by name (``time=-1,lat=32``).

    A size (``10MB``) and a word for an automatic choice (``auto``) are passed on as they are.
    ``none`` is False, as in Python: no shards, or one chunk.
    """

    name = "GRID"

    def __init__(self, word: str = "auto") -> None:
        self._word = word

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `click.ParamType.convert`."""
        if not isinstance(value, str):
            return value
        text = value.strip()
        if text == self._word or _SIZE.fullmatch(text):
            return text
        if text == "none":
            return False
        if text[:1] + text[-1:] in {"()", "[]"}:  # as printed by info and plan
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
    ) -> dict[str | int, int | str]:
        grid: dict[str | int, int | str] = {}
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
    ) -> int | str:
        if text == "auto" or _SIZE.fullmatch(text):
            return text
        if not re.fullmatch("-1|0*[1-9][0-9]{,17}", text):
            self.fail(
                f"{value!r}: {text!r} is not a length: expected a number of at least 1, or -1 for "
                "the whole dimension, as in 512,32,32 or time=-1,lat=32.",
                param,
                ctx,
            )
        return int(text)


_SIZE = re.compile("[0-9.]+ *([kKMGT]i?)?B")


class RegionType(click.ParamType[Any]):
    """Slices by position (``0:100,:,5``) or by name (``time=0:100,lat=5``); 5 is 5:6."""

    name = "REGION"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `click.ParamType.convert`."""
        if not isinstance(value, str):
            return value
        text = value.strip()
        if text[:1] + text[-1:] in {"()", "[]"}:  # as printed by Python and plan
            text = text[1:-1].removesuffix(",")
        items = [item.strip() for item in text.split(",")]
        named = [item for item in items if "=" in item]
        if not named:
            return tuple(self._part(value, item, param, ctx) for item in items)
        if len(named) < len(items):
            self.fail(
                f"{value!r} mixes slices by position and by name: write 0:100,:,5 or "
                "time=0:100,lat=5.",
                param,
                ctx,
            )
        region: dict[str | int, Any] = {}
        for item in items:
            name, _, part = (one.strip() for one in item.rpartition("="))
            if not name:
                self.fail(f"{value!r}: {item!r} names no dimension.", param, ctx)
            key = int(name) if re.fullmatch("[0-9]+", name) else name
            if key in region:
                self.fail(f"{value!r} names the dimension {name!r} twice.", param, ctx)
            region[key] = self._part(value, part, param, ctx)
        return region

    def _part(
        self, value: str, text: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        """Parse one slice, number or ellipsis."""
        if text == "...":
            return ...
        numbers = [one.strip() for one in text.split(":")]
        if len(numbers) > 3 or not all(re.fullmatch("(-?[0-9]{1,18})?", one) for one in numbers):
            self.fail(
                f"{value!r}: {text!r} is no slice: expected start:stop, where either may be left "
                "out, or one number, as in 0:100,:,5 or time=0:100,lat=5.",
                param,
                ctx,
            )
        if numbers[2:] not in ([], [""], ["1"]):
            self.fail(f"{value!r}: {text!r} has a step; what is copied has none.", param, ctx)
        bounds = [int(one) if one else None for one in numbers[:2]]
        if len(bounds) == 2:
            return slice(*bounds)
        (first,) = bounds
        if first is None:
            self.fail(f"{value!r}: a slice is missing; a whole dimension is ':'.", param, ctx)
        return first


class LabelsType(click.ParamType[Any]):
    """Ranges of labels (``time=2000:2010,lat=45:90``); ``..`` parts labels that have colons."""

    name = "LABELS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `click.ParamType.convert`."""
        if not isinstance(value, str):
            return value
        labels: dict[str, Any] = {}
        for item in value.split(","):
            name, _, wanted = (part.strip() for part in item.partition("="))
            ends = [one.strip() or None for one in _label_ends(wanted)]
            if not name or name in labels or not wanted or len(ends) > 2:
                self.fail(
                    f"{value!r}: {item!r} is no range of labels: expected time=2000:2010, one "
                    "label as in lat=45, or time=2000-01-01T06:00..2000-01-02, each name once.",
                    param,
                    ctx,
                )
            labels[name] = slice(*ends) if len(ends) == 2 else ends[0]
        return labels


def _label_ends(wanted: str) -> list[str]:
    """Return the ends of a range of labels, or one label; colons within a time part nothing."""
    if ".." in wanted:
        return wanted.split("..")
    times = _TIMES.fullmatch(wanted)
    if times is None:
        return wanted.split(":")
    return [one for one in times.groups() if one is not None]


_TIME = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?Z?"
_TIMES = re.compile(rf"({_TIME})|({_TIME}|[^:]*):({_TIME}|[^:]*)")


class _NamedOption(click.Option):
    """An option whose values by name may also be given one by one: ``--sel time=3 --sel lat=5``."""

    def __init__(self, names: Sequence[str], **options: Any) -> None:
        super().__init__(names, **{**options, "multiple": True})

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """Return all values as one.

        Raises
        ------
        click.BadParameter
            If one of several has no names, or a name is given twice.
        """
        given = super().process_value(ctx, value)
        if len(given) < 2:
            return given[0] if given else None
        found: dict[Any, Any] = {}
        for one in given:
            if not isinstance(one, dict):
                text = "is given more than once, which is only possible by name, as in time=3"
                raise click.BadParameter(f"{text}.", ctx, self)
            for name, part in one.items():
                if name in found:
                    raise click.BadParameter(f"names {name!r} twice.", ctx, self)
                found[name] = part
        return found


named_option = partial(click.option, cls=_NamedOption)
"""Decorate a command with an option whose values by name may be given one by one."""


class CodecsType(click.ParamType[Any]):
    """Names of codecs (``zstd`` or ``transpose,bytes,gzip``), or their objects as JSON."""

    name = "CODECS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `click.ParamType.convert`."""
        if not isinstance(value, str):
            return value
        text = value.strip()
        if text.casefold() == "none":
            return []
        if not text.startswith(("[", "{")):
            return [name.strip() for name in text.split(",") if name.strip()]
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            self.fail(f"{value!r} is not JSON: {error}.", param, ctx)
        return found if isinstance(found, list) else [found]


class FormatType(click.Choice[str]):
    """Name of a format; 2 and 3 are v2 and v3."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `click.ParamType.convert`."""
        named = f"v{value}" if value in {"1", "2", "3"} else value
        return super().convert(named, param, ctx)


FORMAT = FormatType([known.name for known in (*FORMATS, *DRAFTS)])
"""Names of formats."""


class SizeType(click.ParamType[int]):
    """Bytes, or a text with a unit."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """See `click.ParamType.convert`."""
        from zarr_dask.jobs.engine.plan import parse_bytes

        try:
            return parse_bytes(value)
        except MemoryBudgetError:
            self.fail(f"{value!r} is not a size: expected bytes, or 256MB, 2GiB ...", param, ctx)


class TargetType(click.ParamType[Any]):
    """The location of a new store: not ``-``, since standard output can hold none."""

    name = "URL"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """See `click.ParamType.convert`."""
        if value == "-":
            self.fail(
                "a store cannot be written to standard output: name a folder, a URL, or an archive "
                "such as out.zip. A folder called - is ./-.",
                param,
                ctx,
            )
        return str(value)


def once_each(
    ctx: click.Context, param: click.Parameter, value: tuple[tuple[str, Any], ...]
) -> dict[str, Any]:
    """Return the values of a repeated option ``KEY=VALUE`` by key, as its callback.

    Raises
    ------
    click.BadParameter
        If a key has two values, of which one would be lost.
    """
    found: dict[str, Any] = {}
    for key, one in value:
        if found.setdefault(key, one) != one:
            raise click.BadParameter(
                f"{key!r} has two values, {found[key]!r} and {one!r}; give one.", ctx, param
            )
    return found


_JOB_OPTIONS = [
    click.argument("src"),
    click.argument("dst", type=TargetType()),
    named_option(
        "--chunks",
        type=GridType(),
        help="Chunk lengths: 512,32,32, or 64 for all dimensions, or by name or position "
        "time=-1,lat=32; also auto, or a size such as 10MB, for all or for one dimension. -1 is a "
        "whole dimension; dimensions that are not named keep theirs.",
    ),
    named_option(
        "--shards",
        type=GridType(),
        help="Shard lengths, in the same forms: stored objects of several chunks. none: every "
        "chunk is an object of its own, as it is without this option where --chunks is given.",
    ),
    named_option(
        "--region",
        type=RegionType(),
        help="Copy only this part: slices as in NumPy, 0:100,:,5 or by name time=0:100,lat=5. A "
        "number is a slice of length one; all dimensions are kept.",
    ),
    named_option(
        "--sel",
        type=LabelsType(),
        help="Copy only what has these labels, both ends included: time=2000:2010,lat=45:90. SRC "
        "is a group with coordinates; needs xarray.",
    ),
    click.option(
        "--max-mem",
        type=SizeType(),
        help="Memory of one process above its idle size, at most, such as 256MB. By default 60 % "
        "of the workers' limit, or 1 GB.",
    ),
    click.option(
        "--threads",
        type=click.IntRange(min=1),
        help="Tasks at a time in one process. By default the threads of a worker, or one per core.",
    ),
    click.option("--path", default="", help="Path of the new array below DST."),
    click.option("--temp", metavar="URL", help="Location of intermediate data, if any is needed."),
    click.option("--overwrite", is_flag=True, help="Replace what is at DST."),
    price_option,
    cluster_options(),
]


_ENCODING_OPTIONS = [
    click.option(
        "--dtype", help="Data type of a new array, such as float32; that of SRC by default."
    ),
    click.option(
        "--codecs",
        type=CodecsType(),
        help="Codecs of a new array: names, as in zstd,crc32c, a JSON list, or none; those of SRC "
        "by default.",
    ),
]

_ARRAY_OPTIONS = [
    click.option(
        "--array",
        "arrays",
        metavar="PATH",
        multiple=True,
        help="An array in the group SRC, rechunked to the same path in DST; may be repeated, for "
        "one plan of all of them.",
    ),
    click.option(
        "--format",
        type=FORMAT,
        help="Format of the new array; that of SRC by default.",
    ),
    *_ENCODING_OPTIONS,
]

_RUN_OPTIONS = [
    click.option(
        "--verify",
        is_flag=True,
        help="Compare source and target before the target becomes visible.",
    ),
    click.option("--resume", is_flag=True, help="Continue the same job if it was interrupted."),
]


def selected(
    src: str, region: Any, labels: dict[str, Any] | None, storage_options: dict[str, Any] | None
) -> Any:
    """Return the region that ``--region`` and ``--sel`` ask for together."""
    if labels is None:
        return region
    if region is not None and (not isinstance(region, dict) or region.keys() & labels.keys()):
        raise click.UsageError(
            "--sel and --region go together where each names other dimensions: --region lat=0:5 "
            "--sel time=2000:2010."
        )
    from zarr_dask.xarray.find_regions import find_region

    return {**(region or {}), **find_region(src, labels, storage_options=storage_options)}


def job_options(command: Decorated) -> Decorated:
    """Give a command the arguments and options of all commands that rechunk arrays."""
    return _with(_JOB_OPTIONS, command)


def array_options(command: Decorated) -> Decorated:
    """Give a command the additional options of rechunk and plan."""
    return _with(_ARRAY_OPTIONS, command)


def encoding_options(command: Decorated) -> Decorated:
    """Give a command the options of data type and codecs."""
    return _with(_ENCODING_OPTIONS, command)


def run_options(command: Decorated) -> Decorated:
    """Give a command the options of executing a plan."""
    return _with(_RUN_OPTIONS, command)


def _with(options: Sequence[Any], command: Decorated) -> Decorated:
    for option in reversed(options):
        command = cast("Callable[[Decorated], Decorated]", option)(command)
    return command
