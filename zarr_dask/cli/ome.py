"""``zarr-dask ome``: images and plates of OME-Zarr: what they are, their rules, other versions."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import zarr_dask as zd
from zarr_dask.cli.base import Interrupted, as_options, traceback_option
from zarr_dask.cli.options import GridType, SizeType
from zarr_dask.cli.printing import printable, say, say_field, say_plan, say_title, wrapped
from zarr_dask.cli.progress import migration_progress
from zarr_dask.errors import ABSENT, ZarrDaskError

if TYPE_CHECKING:
    from zarr_dask.ome import Image, Metadata, Violation

__all__ = ["ome"]


@click.group()
def ome() -> None:
    """Look at images and plates of OME-Zarr, convert them."""


@ome.command()
@click.argument("url")
@click.argument("path", default="")
@traceback_option
def info(url: str, path: str) -> None:
    """Say what an image or a plate is: axes, levels, sizes of pixels, labels, wells.

    PATH is the path of the group below URL.
    """
    group = zd.open_group(url, path)
    metadata = zd.ome.from_attributes(group.attributes, where=group.where)
    if metadata.plate is not None:
        _say_plate(group, metadata)
    else:
        _say_image(zd.ome.open(group))


def _say_plate(group: zd.Group, metadata: Metadata) -> None:
    plate = metadata.plate
    if plate is None:
        return
    say_title(group, "plate")
    say_field("version", metadata.version)
    say_field("rows", ", ".join(row.name for row in plate.rows))
    say_field("columns", ", ".join(column.name for column in plate.columns))
    say_field("wells", ", ".join(well.path for well in plate.wells))


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
        lines.append(f"{level.array.path.rpartition('/')[2]}: {level.shape}, pixels of {sizes}")
    say_field("levels", *lines)
    if image.labels:
        say_field("labels", ", ".join(image.labels))


@ome.command()
@click.argument("url")
@click.argument("path", default="")
@click.option("--strict", is_flag=True, help="List what is merely recommended, too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
@traceback_option
def validate(url: str, path: str, strict: bool, as_json: bool) -> None:
    """List every rule of OME-Zarr that is broken; exit with 1 if one must not be.

    All groups and arrays that the metadata name are looked at. PATH is the path of the group below
    URL.
    """
    found = zd.ome.validate(url, path, strict=strict)
    if as_json:
        say(json.dumps([_facts(one) for one in found], indent=2, ensure_ascii=False))
    else:
        for one in found:
            say(wrapped(printable(str(one)), "    ", "  "))
        say("valid" if not found else f"{len(found)} rule{'s' * (len(found) > 1)} broken")
    if any(one.level == "must" for one in found):
        raise click.exceptions.Exit(1)


def _facts(one: Violation) -> dict[str, Any]:
    found = None if one.found is ABSENT else str(one.found)
    return {"place": one.place, "found": found, "rule": one.rule, "level": one.level}


@ome.command()
@click.argument("url")
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--path", default="", help="Path of the image below URL, such as A/1/0 in a plate.")
@click.option(
    "--size",
    type=click.IntRange(1, 4096),
    default=256,
    show_default=True,
    help="Pixels of the longer side; a smaller image is not enlarged.",
)
@traceback_option
def thumbnail(url: str, out: Path, path: str, size: int) -> None:
    """Draw a small picture of an image into the file OUT, as PNG.

    Channels are coloured as omero says, or each is stretched to what it holds; along z the largest
    values are shown. The smallest level is read that is large enough.
    """
    from zarr_dask.ome.png import png

    pixels = zd.ome.thumbnail(url, path, size=size)
    try:
        out.write_bytes(png(pixels))
    except OSError as error:
        raise click.FileError(str(out), error.strerror) from error
    height, width, _ = pixels.shape
    say(f"{printable(str(out))}: {width} x {height} pixels")


@ome.command(
    epilog="""\b
Examples:
  zarr-dask ome convert image.zarr --dry-run
  zarr-dask ome convert image.zarr --remove-old
  zarr-dask ome convert old.zarr new.zarr --chunks z=1,y=256,x=256 \\
      --shards z=16,y=1024,x=1024
  zarr-dask ome convert new.zarr old.zarr --to 0.4"""
)
@click.argument("url")
@click.argument("dst", required=False)
@click.option(
    "--to",
    type=click.Choice(["0.5", "0.4"]),
    default="0.5",
    show_default=True,
    help="The version to convert to.",
)
@click.option("--path", default="", help="Path of the image or plate below URL (and DST).")
@click.option(
    "--chunks",
    type=GridType(),
    help="Write all pixels anew, in these chunks: z=1,y=256,x=256, or by position; -1 is a whole "
    "axis. Axes that are not named, and are not there, stay as they are.",
)
@click.option("--shards", type=GridType(), help="Shards of the new arrays, in the same forms.")
@click.option(
    "--max-mem",
    type=SizeType(),
    help="What one process may hold above its idle size where pixels are written anew.",
)
@click.option("--dry-run", is_flag=True, help="Say what would happen; write nothing.")
@click.option(
    "--remove-old",
    is_flag=True,
    help="In place: remove old documents when the new ones are there and verified.",
)
@click.option("--resume", is_flag=True, help="Go on with arrays that were left half done.")
@click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors.")
@traceback_option
def convert(
    url: str, dst: str | None, *, dry_run: bool, resume: bool, quiet: bool, **options: Any
) -> None:
    """Bring an image or a plate to another version of OME-Zarr.

    With labels, wells and fields, as a whole or not at all: if something cannot be said in the
    other version, the exit code is 1 and all reasons are printed, for a dry run as well. Stored
    objects are not decoded unless --chunks or --shards are given. Without DST the new documents are
    written beside the old ones, which stay unless --remove-old is given; 0.5 goes before 0.4 where
    both lie side by side, so that converting to 0.4 needs a DST.
    """
    try:
        plan = zd.ome.plan_migration(url, dst=dst, resume=resume, **options)
    except ZarrDaskError:
        raise
    except ValueError as error:
        raise click.UsageError(as_options(str(error))) from error
    if dry_run and plan.refusals:
        say_plan(plan)
        raise click.exceptions.Exit(1)
    if not quiet and not plan.refusals:
        say_plan(plan)
    if dry_run:
        return
    try:
        with nullcontext() if quiet or not plan.nbytes else migration_progress(plan) as advance:
            report = plan.run(progress=advance, resume=resume)
    except KeyboardInterrupt as interrupt:
        raise Interrupted(
            f": {plan.where} can be read as before. Run the same command again to go on, with "
            "--resume if pixels are written anew."
        ) from interrupt
    if not quiet:
        say(wrapped(f"done: {report}", "  "))
