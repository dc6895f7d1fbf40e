"""``zarr-dask info`` and ``zarr-dask tree``: describe a node, and list the nodes below it.

Neither loads dask nor reads a chunk.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import starmap
from typing import TYPE_CHECKING, Any

import click

import zarr_dask as zd
from zarr_dask._util.display import format_shape
from zarr_dask.array.array import object_sizes
from zarr_dask.cli.output import abbreviate, answer, echo, say_field, say_title, terminal_safe
from zarr_dask.cli.settings import storage_options
from zarr_dask.errors import MetadataError
from zarr_dask.stores.open import backend_of

if TYPE_CHECKING:
    from zarr_dask.codecs.base import Codec

__all__ = ["info", "layout_line", "name_of", "node_facts", "tree"]


@click.command()
@click.argument("url")
@click.argument("path", default="")
@click.option("--no-count", is_flag=True, help="Do not list the stored objects of an array.")
def info(url: str, path: str, no_count: bool) -> None:
    """Describe an array or a group.

    PATH is the path of the node below URL.
    """
    node = zd.open(url, path, storage_options=storage_options(url))
    if isinstance(node, zd.Group):
        children = list(node.walk(recursive=False))
        facts: dict[str, Any] = {
            "kind": "group",
            "where": node.where,
            "format": node.format,
            "arrays": [name for name, child in children if isinstance(child, zd.Array)],
            "groups": [name for name, child in children if isinstance(child, zd.Group)],
            "attributes": node.attributes,
        }
        unreadable = [name for name, child in children if isinstance(child, MetadataError)]
        if unreadable:
            facts["unreadable"] = unreadable
    else:
        facts = _array_facts(node, None if no_count else _stored(node))
    backend = backend_of(node.store)
    if backend:
        facts["backend"] = backend
    if isinstance(node, zd.Group):
        _say_group(node, facts)
    else:
        _say_array(node, facts)
    answer(facts)


@click.command()
@click.argument("url")
@click.argument("path", default="")
@click.option(
    "--level", "-L", type=click.IntRange(min=1), help="Show this many levels; by default all."
)
def tree(url: str, path: str, level: int | None) -> None:
    """Show the hierarchy below a group.

    PATH is the path of the group below URL.
    """
    node = zd.open(url, path, storage_options=storage_options(url))
    if isinstance(node, zd.Group):
        echo(terminal_safe(node.tree(level)))
        shown = [
            node_facts(below, child)
            for below, child in node.walk(recursive=level != 1)
            if level is None or below.count("/") < level
        ]
        answer({"where": node.where, "nodes": shown})
        return
    echo(terminal_safe(f"{name_of(node)}  {layout_line(node)}"))
    answer({"where": node.where, "nodes": [node_facts("", node)]})


def name_of(array: zd.Array) -> str:
    """Return the last part of the location of an array."""
    return array.where.rstrip("/").rpartition("/")[2]


def layout_line(array: zd.Array) -> str:
    """Return shape, data type and chunks of an array, for a list."""
    return f"{array.shape} {array.meta.data_type.label}, chunks {array.meta.grids}"


def node_facts(path: str, node: zd.Array | zd.Group | MetadataError) -> dict[str, Any]:
    """Return what a tree or a list shows of a node, as JSON."""
    if isinstance(node, zd.Group):
        return {"path": path, "kind": "group"}
    if isinstance(node, MetadataError):
        return {"path": path, "kind": "unreadable", "problem": str(node)}
    return {
        "path": path,
        "kind": "array",
        "shape": node.shape,
        "dtype": node.meta.data_type.label,
        "chunks": node.chunks,
        "shards": node.shards,
    }


def _stored(array: zd.Array) -> tuple[int, int]:
    """Return number and bytes of the stored objects that exist, by one listing."""
    sizes = list(object_sizes(array))
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
    """Return the fill value as JSON; None if there is none."""
    fill = array.meta.fill_value
    return None if fill is None else array.meta.data_type.to_json(fill)


def _codec_facts(codec: Codec) -> dict[str, Any]:
    configuration = codec.configuration()
    return {"name": configuration.pop("id", codec.name), "configuration": configuration}


def _say_group(group: zd.Group, facts: Mapping[str, Any]) -> None:
    say_title(group, "group")
    say_field("format", group.format)
    _say_backend(facts)
    for kind in ("arrays", "groups", "unreadable"):
        if kind not in facts:
            continue
        names = facts[kind]
        listed = f": {abbreviate(', '.join(names))}" if names else ""
        say_field(kind, f"{len(names)}{listed}")
    say_field("attributes", *_attribute_lines(group.attributes))


def _say_backend(facts: Mapping[str, Any]) -> None:
    if "backend" in facts:
        say_field("read by", facts["backend"])


def _say_array(array: zd.Array, facts: Mapping[str, Any]) -> None:
    from zarr_dask.jobs.engine.plan import format_bytes

    itemsize = array.meta.data_type.typical_itemsize

    def grid(shape: Sequence[int], words: str, most: str = "") -> str:
        return f"{words}, {most}{format_bytes(math.prod(shape) * itemsize)} decoded"

    most = "" if array.meta.grid.cell_shape else "at most "
    stored = grid(array.write_chunks, array.meta.grid.words, most)

    say_title(array, "array")
    say_field("format", array.format)
    _say_backend(facts)
    say_field("shape", format_shape(array.shape, array.dimension_names))
    say_field("data type", array.meta.data_type.label)
    say_field("chunks", grid(array.chunks, str(array.chunks)) if array.shards else stored)
    say_field("shards", stored if array.shards else "none")
    objects = facts["stored_objects"]
    existing = "" if objects["existing"] is None else f", of which {objects['existing']:,} exist"
    kind = "one shard" if array.shards else "one chunk"
    say_field("stored objects", f"{objects['count']:,} ({kind} each){existing}")
    say_field("codecs", *_codec_lines(facts["codecs"]))
    say_field("fill value", "none" if array.fill_value is None else str(array.fill_value))
    say_field("size", _size_line(facts["nbytes"], facts["nbytes_stored"], format_bytes))
    say_field("attributes", *_attribute_lines(array.attributes))


def _size_line(nbytes: int, stored: int | None, words: Callable[[float], str]) -> str:
    line = f"{words(nbytes)} decoded"
    if stored is None:
        return line
    if not stored:
        return f"{line}, nothing stored"
    return f"{line}, {words(stored)} stored (ratio {nbytes / stored:.2f})"


def _codec_lines(codecs: Sequence[Mapping[str, Any]], indent: str = "") -> Iterator[str]:
    """Yield one line per codec, in the order of encoding; codecs inside a shard are indented."""
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
        yield f"{name}: {abbreviate(json.dumps(value, ensure_ascii=False))}"
