"""``create``, ``delete``, ``consolidate``, ``digest``, ``ls`` and ``head``: actions on a node."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import click
import numpy as np

import zarr_dask as zd
from zarr_dask.cli.cluster import cluster, cluster_options
from zarr_dask.cli.info import layout_line, name_of, node_facts
from zarr_dask.cli.options import FORMAT, CodecsType, GridType, RegionType, named_option, once_each
from zarr_dask.cli.output import answer, echo, terminal_safe
from zarr_dask.cli.settings import settings, storage_options
from zarr_dask.cli.signals import handle_signals
from zarr_dask.errors import MetadataError

__all__ = ["consolidate", "create", "delete", "digest", "head", "ls"]

_PATH = click.argument("path", default="")
_VERIFY = click.option(
    "--verify", is_flag=True, help="Compare what is read with the manifest kept beside it."
)
_MANIFEST = click.option("--manifest", metavar="FILE", help="Compare what is read with this one.")


class _ShapeType(click.ParamType[tuple[int, ...]]):
    """Lengths: ``512,32,32``; ``()`` for no dimension."""

    name = "SHAPE"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """See `click.ParamType.convert`."""
        if isinstance(value, tuple):
            return value
        items = [item.strip() for item in str(value).strip().strip("()[]").split(",")]
        lengths = [item for item in items if item]
        if not all(item.isdecimal() for item in lengths):
            self.fail(f"{value!r}: expected lengths, as in 512,32,32.", param, ctx)
        return tuple(map(int, lengths))


class _AttributeType(click.ParamType[tuple[str, Any]]):
    """``K=V``: the name and the value of an attribute, which is JSON or else a text."""

    name = "K=V"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, Any]:
        """See `click.ParamType.convert`."""
        if isinstance(value, tuple):
            return value
        key, mark, text = str(value).partition("=")
        if not (key and mark):
            self.fail(f"{value!r}: expected a name and a value, as in units=m.", param, ctx)
        return key, _json_or_text(text)


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


@click.command(
    epilog="""\b
Examples:
  zarr-dask create run.zarr
  zarr-dask create run.zarr temp --shape 365,180,360 --dtype float32 \\
      --chunks 1,180,360 --dims time,lat,lon --attribute units=K
"""
)
@click.argument("url")
@_PATH
@click.option("--shape", type=_ShapeType(), help="Lengths of the array; without it, a group.")
@click.option("--dtype", help="Data type of the array, such as float32.")
@named_option(
    "--chunks",
    type=GridType(),
    help="Chunks: 512,32,32, 64 for all, 10MB, or auto.",
)
@named_option("--shards", type=GridType(), help="Shards of several chunks, in the same form.")
@click.option("--codecs", type=CodecsType(), help="Codecs: names, as in zstd, or a JSON list.")
@click.option(
    "--fill-value", metavar="VALUE", help="Value of what is not written; 0 or NaT by default."
)
@click.option("--dims", metavar="NAMES", help="Names of the dimensions: time,lat,lon.")
@click.option(
    "--attribute",
    "attributes",
    type=_AttributeType(),
    multiple=True,
    callback=once_each,
    help="An attribute, as text or JSON; may be repeated.",
)
@click.option("--format", type=FORMAT, help="Format; that of the group around it, or v3.")
@click.option("--overwrite", is_flag=True, help="Replace what is there.")
def create(
    url: str,
    path: str,
    *,
    shape: tuple[int, ...] | None,
    dtype: str | None,
    fill_value: str | None,
    dims: str | None,
    attributes: dict[str, Any],
    **options: Any,
) -> None:
    """Create an empty array or a group.

    With --shape and --dtype it is an array, else a group. Groups above it are created too. PATH is
    the path below URL.
    """
    of_array = {name: value for name, value in options.items() if value is not None}
    common: dict[str, Any] = {
        name: of_array.pop(name) for name in ("format", "overwrite") if name in of_array
    }
    common |= {"attributes": attributes, "storage_options": storage_options(url)}
    if fill_value is not None:
        special = fill_value.strip("+-").casefold() in {"nan", "inf", "infinity"}
        of_array["fill_value"] = float(fill_value) if special else _json_or_text(fill_value)
    if dims is not None:
        of_array["dimension_names"] = [name.strip() for name in dims.split(",")]
    node: zd.Array | zd.Group
    if shape is not None and dtype is not None:
        node = zd.create_array(url, path, shape=shape, dtype=dtype, **of_array, **common)
    elif shape is not None or dtype is not None or of_array:
        raise click.UsageError("an array needs --shape and --dtype; a group takes neither.")
    else:
        node = zd.create_group(url, path, **common)
    kind = "array" if isinstance(node, zd.Array) else "group"
    echo(f"{kind} {terminal_safe(node.where)}")
    answer({"where": node.where, **node_facts(node.path, node)})


@click.command()
@click.argument("url")
@_PATH
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
def delete(url: str, path: str, *, yes: bool) -> None:
    """Delete an array, or a group with everything below it.

    Without --yes the command asks first. PATH is the path below URL. The folder URL itself stays.
    """
    options = storage_options(url)
    node = zd.open(url, path, storage_options=options)
    if not yes:
        if settings().as_json or not _may_ask():
            raise click.UsageError(f"this deletes {terminal_safe(node.where)}: give --yes.")
        what = "array" if isinstance(node, zd.Array) else "group and all below it"
        click.confirm(f"Delete the {what}: {terminal_safe(node.where)}?", abort=True, err=True)
    zd.delete(url, path, storage_options=options)
    echo(f"deleted {terminal_safe(node.where)}")
    answer({"where": node.where})


def _may_ask() -> bool:
    """True if a user can answer."""
    return sys.stdin.isatty()


@click.command()
@click.argument("url")
@_PATH
def consolidate(url: str, path: str) -> None:
    """Write all metadata below a group into one object.

    The group then opens with one request. Run it again when the hierarchy has changed. PATH is the
    path of the group below URL.
    """
    group = zd.consolidate(url, path, storage_options=storage_options(url))
    nodes = len(list(group.walk()))
    echo(f"consolidated {nodes} nodes below {terminal_safe(group.where)}")
    answer({"where": group.where, "nodes": nodes})


@click.command()
@click.argument("url")
@_PATH
@_VERIFY
@_MANIFEST
@cluster_options()
def digest(
    url: str,
    path: str,
    *,
    verify: bool,
    manifest: str | None,
    scheduler: str | None,
    scheduler_file: str | None,
    workers: int | None,
) -> None:
    """Print a digest of the values of each array.

    Equal values have the same digest in any layout, format and encoding. All chunks are read. PATH
    is the path of an array or a group below URL.
    """
    read = zd.ReadOptions(verify=manifest or verify)
    node = zd.open(url, path, storage_options=storage_options(url), read=read)
    arrays = [("", node)] if isinstance(node, zd.Array) else list(node.arrays(recursive=True))
    found: dict[str, str] = {}
    with (
        cluster(scheduler, scheduler_file, workers) as client,
        handle_signals("not everything was read."),
    ):
        for below, array in arrays:
            found[below] = zd.digest(array, client=client)
            echo(f"{found[below]}  {terminal_safe(below or node.where)}")
    answer({"where": node.where, "digests": found})


@click.command()
@click.argument("url")
@_PATH
@click.option("--long", "-l", "long", is_flag=True, help="Show shapes, data types and chunks.")
@click.option("--recursive", "-r", "-R", is_flag=True, help="List everything below as well.")
def ls(url: str, path: str, *, long: bool, recursive: bool) -> None:
    """List the nodes in a group.

    Names of groups end in a slash. No chunk is read. PATH is the path of the group below URL.
    """
    node = zd.open(url, path, storage_options=storage_options(url))
    if isinstance(node, zd.Array):
        nodes: list[tuple[str, Any]] = [(name_of(node), node)]
    else:
        nodes = list(node.walk(recursive=recursive))
    for name, child in nodes:
        shown = f"{name}/" if isinstance(child, zd.Group) else name
        echo(terminal_safe(f"{shown}  {_line(child)}".rstrip() if long else shown))
    answer({"where": node.where, "nodes": [node_facts(*one) for one in nodes]})


def _line(node: zd.Array | zd.Group | MetadataError) -> str:
    if isinstance(node, zd.Array):
        return layout_line(node)
    return "unreadable" if isinstance(node, MetadataError) else ""


@click.command(
    epilog="""\b
Examples:
  zarr-dask head run.zarr temp
  zarr-dask head run.zarr temp --region time=-1,lat=0:3,lon=0:3
"""
)
@click.argument("url")
@_PATH
@click.option(
    "--number", "-n", type=click.IntRange(min=1), default=5, show_default=True,
    help="Elements of each dimension.",
)  # fmt: skip
@named_option(
    "--region",
    type=RegionType(),
    help="Print this part instead: 0:3,: or by name time=0:3.",
)
@_VERIFY
@_MANIFEST
def head(
    url: str, path: str, *, number: int, region: Any, verify: bool, manifest: str | None
) -> None:
    """Print the first values of an array.

    Only the chunks that hold them are read. PATH is the path of the array below URL.
    """
    read = zd.ReadOptions(verify=manifest or verify)
    array = zd.open_array(url, path, storage_options=storage_options(url), read=read)
    if region is None:
        parts: Any = tuple(slice(0, number) for _ in array.shape)
    elif isinstance(region, dict):
        parts = tuple(_by_name(array, region))
    else:
        parts = region
    values = np.asarray(array[parts])
    with np.printoptions(threshold=1000, linewidth=100):
        echo(terminal_safe(str(values)))
    answer({"where": array.where, "shape": list(values.shape), "values": values})


def _by_name(array: zd.Array, region: dict[str | int, Any]) -> Iterator[Any]:
    """Yield an index for each dimension; those that are not named are whole."""
    names = array.dimension_names or (None,) * array.ndim
    unknown = [key for key in region if key not in names and key not in range(array.ndim)]
    if unknown:
        known = ", ".join(str(name) for name in names if name is not None) or "no names"
        raise click.UsageError(f"--region: {array.where} has no dimension {unknown[0]!r}: {known}.")
    for number, name in enumerate(names):
        yield region.get(number, slice(None) if name is None else region.get(name, slice(None)))
