"""``zarr-dask ome``: describes and validates OME-Zarr images and plates, and draws pictures.

Commands that write arrays are in `zarr_dask.cli.ome_jobs`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import zarr_dask as zd
from zarr_dask.cli.errors import FINDING, ImageGroup
from zarr_dask.cli.ome_jobs import convert, pyramid
from zarr_dask.cli.output import answer, echo, say_field, say_title, terminal_safe, wrapped
from zarr_dask.cli.settings import storage_options
from zarr_dask.errors import ABSENT, MetadataError, NodeNotFoundError, NodeTypeError

if TYPE_CHECKING:
    from zarr_dask.ome import Image, Level, Plate, Violation, Well
    from zarr_dask.ome.model import Channel

__all__ = ["ome"]


@click.group(cls=ImageGroup)
def ome() -> None:
    """Inspect images and plates of OME-Zarr, or make them."""


@ome.command()
@click.argument("url")
@click.argument("path", default="")
def info(url: str, path: str) -> None:
    """Describe an image, a plate, a well or a group of images.

    Prints axes, levels, sizes of pixels, storage, channels, labels and wells, and positions of the
    fields of the first well; of a group of bioformats2raw its images. PATH is the path of the group
    below URL.
    """
    from zarr_dask.ome.validate_metadata import series_of

    group = zd.open_group(url, path, storage_options=storage_options(url))
    metadata = zd.ome.from_attributes(group.attributes, where=group.where)
    if metadata.plate is not None:
        plate = zd.ome.open_plate(group)
        _say_plate(plate)
        answer(_plate_facts(plate))
    elif metadata.well is not None:
        fields = _fields_of(zd.ome.Well(group, metadata.well))
        say_title(group, "well")
        _say_fields(fields)
        answer({"kind": "well", "where": group.where, "fields": fields})
    elif metadata.layout is not None and not metadata.multiscales:
        say_title(group, "group of images")
        images = [_image_facts(zd.ome.open(group, path)) for path in series_of(group)]
        say_field("images", *(f"{one['where']}: {one['levels'][0]['shape']}" for one in images))
        answer({"kind": "images", "where": group.where, "images": images})
    else:
        image = zd.ome.open(group)
        _say_image(image)
        answer(_image_facts(image))


def _plate_facts(plate: Plate) -> dict[str, Any]:
    return {
        "kind": "plate",
        "where": plate.group.where,
        "version": plate.metadata.version,
        "name": plate.layout.name,
        "rows": list(plate.rows),
        "columns": list(plate.columns),
        "wells": list(plate),
        "acquisitions": [run.name or str(run.id) for run in plate.layout.acquisitions or ()],
        "fields_of_first_well": _fields_of(_first_well(plate)),
    }


def _first_well(plate: Plate) -> Well | None:
    """Return the first well; None if the plate has none, or it cannot be read."""
    with suppress(NodeNotFoundError, NodeTypeError, MetadataError):
        return next(iter(plate.values()), None)
    return None


def _fields_of(well: Well | None) -> list[dict[str, Any]]:
    """Return the readable images of a well, with the positions of their first pixels."""
    fields: list[dict[str, Any]] = []
    if well is None:
        return fields
    for number in range(min(len(well), _MOST_FIELDS)):
        with suppress(NodeNotFoundError, NodeTypeError, MetadataError):
            level = well.field(number).levels[0]
            position = {
                axis: {"at": at, "unit": unit}
                for axis, at, unit in zip(level.axes, level.translation, level.units, strict=True)
                if axis in ("z", "y", "x")
            }
            path = well.fields.images[number].path
            fields.append({"path": path, "shape": level.shape, "position": position})
    return fields


_MOST_FIELDS = 100
"""Maximum number of fields that are listed."""


def _image_facts(image: Image) -> dict[str, Any]:
    return {
        "kind": "image",
        "where": image.group.where,
        "version": image.metadata.version,
        "axes": list(image.axes),
        "dtype": str(image.levels[0].array.dtype),
        "levels": [
            {
                "path": level.array.path.rpartition("/")[2],
                "shape": level.shape,
                "scale": level.scale,
                "translation": level.translation,
                "units": level.units,
                "chunks": level.array.chunks,
                "shards": level.array.shards,
                "codecs": [codec.name for codec in level.array.codecs],
                "nbytes": level.array.nbytes,
            }
            for level in image.levels
        ],
        "channels": [
            {"label": channel.label, "color": channel.color} for channel in _channels(image)
        ],
        "labels": sorted(image.labels),
    }


def _say_plate(plate: Plate) -> None:
    facts = _plate_facts(plate)
    say_title(plate.group, "plate")
    say_field("version", facts["version"])
    if facts["name"]:
        say_field("name", facts["name"])
    for name in ("rows", "columns", "wells"):
        say_field(name, ", ".join(facts[name]))
    if facts["acquisitions"]:
        say_field("acquisitions", ", ".join(facts["acquisitions"]))
    above = next((f"{well}/" for well in plate), "")
    _say_fields(facts["fields_of_first_well"], above)


def _say_fields(fields: Sequence[dict[str, Any]], above: str = "") -> None:
    if fields:
        say_field("fields", *(above + _field_line(one) for one in fields))


def _field_line(one: dict[str, Any]) -> str:
    place = _place((axis, part["at"], part["unit"]) for axis, part in one["position"].items())
    return f"{one['path']}: {one['shape']} at {place}"


def _place(parts: Iterable[tuple[str, float, str | None]]) -> str:
    return ", ".join(f"{axis} {at:g} {unit or ''}".rstrip() for axis, at, unit in parts)


def _say_image(image: Image) -> None:
    say_title(image.group, "image")
    say_field("version", image.metadata.version)
    say_field("axes", ", ".join(image.axes))
    say_field("data type", str(image.levels[0].array.dtype))
    lines = []
    for level in image.levels:
        sizes = ", ".join(
            f"{size:g} {unit}" if unit else f"{size:g}"
            for size, unit in zip(level.scale, level.units, strict=True)
        )
        lines.append(f"{_name(level, image)}: {level.shape}, pixels of {sizes}")
    say_field("levels", *lines)
    if any(image.levels[0].translation):
        first = image.levels[0]
        say_field("position", _place(zip(image.axes, first.translation, first.units, strict=True)))
    say_field("storage", *(f"{_name(level, image)}: {_storage(level)}" for level in image.levels))
    channels = [f"{one.label or '?'} {one.color or ''}".strip() for one in _channels(image)]
    if channels:
        say_field("channels", ", ".join(channels))
    if image.labels:
        say_field("labels", ", ".join(image.labels))


def _channels(image: Image) -> Sequence[Channel]:
    return () if image.metadata.omero is None else image.metadata.omero.channels


def _name(level: Level, image: Image) -> str:
    """Return the path of a level below its image, as the metadata have it."""
    return level.array.path.removeprefix(image.group.path).removeprefix("/")


def _storage(level: Level) -> str:
    from zarr_dask.jobs.engine.plan import format_bytes

    array = level.array
    shards = "" if array.shards is None else f" in shards of {array.shards}"
    codecs = ", ".join(codec.name for codec in array.codecs)
    size = format_bytes(array.nbytes)
    return f"chunks of {array.chunks}{shards}, {codecs}, {size} decoded"


@ome.command()
@click.argument("url")
@click.argument("path", default="")
@click.option("--strict", is_flag=True, help="List what is merely recommended, too.")
def validate(url: str, path: str, strict: bool) -> None:
    """List every violated rule of OME-Zarr.

    The exit code is 1 if a mandatory rule is violated. All groups and arrays that the metadata name
    are checked. PATH is the path of the group below URL.
    """
    found = zd.ome.validate(url, path, strict=strict, storage_options=storage_options(url))
    for one in found:
        echo(wrapped(terminal_safe(str(one)), "    ", "  "))
    echo("valid" if not found else f"{len(found)} rule{'s' * (len(found) > 1)} broken")
    broken = any(one.level == "must" for one in found)
    answer([_facts(one) for one in found], FINDING if broken else 0)


def _facts(one: Violation) -> dict[str, Any]:
    found = None if one.found is ABSENT else str(one.found)
    return {"place": one.place, "found": found, "rule": one.rule, "level": one.level}


def _png(_: click.Context, __: click.Parameter, out: Path) -> Path:
    if str(out) != "-" and out.suffix.lower() not in {"", ".png"}:
        raise click.BadParameter(f"{str(out)!r} must end in .png: that is what is written.")
    return out


@ome.command()
@click.argument("url")
@click.argument(
    "out", type=click.Path(dir_okay=False, path_type=Path, allow_dash=True), callback=_png
)
@click.option("--path", default="", help="Path of the image below URL, such as A/1/0 in a plate.")
@click.option(
    "--size",
    type=click.IntRange(1, 4096),
    default=256,
    show_default=True,
    help="Pixels of the longer side; a smaller image is not enlarged.",
)
def thumbnail(url: str, out: Path, path: str, size: int) -> None:
    """Draw a small picture of an image into the file OUT, as PNG.

    Channels are coloured by the omero metadata, or each is stretched to its range of values; along
    z the maximum is shown. The smallest level that is large enough is read.
    """
    from zarr_dask.ome.png import png

    pixels = zd.ome.thumbnail(url, path, size=size, storage_options=storage_options(url))
    if str(out) == "-":
        sys.stdout.buffer.write(png(pixels))
        return
    try:
        out.write_bytes(png(pixels))
    except OSError as error:
        raise click.FileError(str(out), error.strerror) from error
    height, width, _ = pixels.shape
    echo(f"{terminal_safe(str(out))}: {width} x {height} pixels")
    answer({"file": str(out), "width": width, "height": height})


@ome.command()
@click.argument("url")
@click.argument("path", default="")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Port of this machine; by default a free one.",
)
@click.option("--browser/--no-browser", default=True, help="Open the page in a browser.")
def view(url: str, path: str, *, port: int, browser: bool) -> None:
    """Show an image, a plate or a well in a browser.

    The viewer is neuroglancer: pip install "zarr-dask[view]". The page is served until the command
    is interrupted, to this machine alone. PATH is the path of the group below URL.
    """
    import webbrowser

    from zarr_dask.ome.serve import serve

    with serve(url, path, port=port, storage_options=storage_options(url)) as server:
        echo(f"page: {server.url}")
        echo(f"data: {server.data}")
        echo("It is served until this command is interrupted (Ctrl-C).")
        if browser:
            webbrowser.open(server.url)
        with suppress(KeyboardInterrupt):
            server.closed.wait()
    answer({"page": server.url, "data": server.data})


ome.add_command(convert)
ome.add_command(pyramid)
