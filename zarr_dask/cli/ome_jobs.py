"""``zarr-dask ome convert`` and ``ome pyramid``: print and execute plans."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

import zarr_dask as zd
from zarr_dask.cli.cluster import cluster, cluster_options
from zarr_dask.cli.migrate import run_migration, wrong_usage
from zarr_dask.cli.options import CodecsType, GridType, SizeType, named_option
from zarr_dask.cli.output import answer, echo, report_facts, say_plan, wrapped
from zarr_dask.cli.progress import image_progress
from zarr_dask.cli.settings import two_storage_options
from zarr_dask.cli.signals import handle_signals
from zarr_dask.errors import NodeTypeError
from zarr_dask.hierarchy.zip_target import open_target_or_archive

if TYPE_CHECKING:
    from distributed import Client

    from zarr_dask.ome.plan import ImageWritePlan

__all__ = ["convert", "pyramid"]


@click.command(
    epilog="""\b
Examples:
  zarr-dask ome convert image.zarr --dry-run
  zarr-dask ome convert image.zarr --remove-old
  zarr-dask ome convert old.zarr new.zarr --chunks z=1,y=256,x=256 \\
      --shards z=16,y=1024,x=1024
  zarr-dask ome convert new.zarr old.zarr --to 0.4
  zarr-dask ome convert stack.ome.tif image.zarr --shards auto"""
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
@named_option(
    "--chunks",
    type=GridType(),
    help="Rewrite all pixels in these chunks: z=1,y=256,x=256, or by position; -1 is a whole "
    "axis. Axes that are not named keep theirs.",
)
@named_option(
    "--shards",
    type=GridType(),
    help="Shards of the new arrays, in the same forms; for TIFF also auto.",
)
@click.option(
    "--codecs",
    type=CodecsType(),
    help="Rewrite all pixels with these codecs: zstd, or names joined by commas, or as JSON.",
)
@click.option(
    "--max-mem",
    type=SizeType(),
    help="Memory of one process above its idle size, at most, where pixels are rewritten.",
)
@cluster_options()
@click.option("--dry-run", is_flag=True, help="Print the plan; write nothing.")
@click.option(
    "--remove-old",
    is_flag=True,
    help="In place: remove old metadata once the new ones are written and verified.",
)
@click.option(
    "--resume", is_flag=True, help="Continue with arrays that an interrupted job has left."
)
@click.option("--series", type=int, help="Number of the image of a TIFF file that holds several.")
@click.option("--axes", help="Names of the dimensions of a TIFF file, such as zyx.")
def convert(
    url: str,
    dst: str | None,
    *,
    scheduler: str | None,
    scheduler_file: str | None,
    workers: int | None,
    dry_run: bool,
    resume: bool,
    series: int | None,
    axes: str | None,
    **options: Any,
) -> None:
    """Convert an image to another version, or from TIFF.

    An image or a plate is converted with labels, wells and fields, completely or not at all: if
    something cannot be expressed in the other version, the exit code is 3 and all reasons are
    printed, for a dry run as well. Stored objects are not decoded unless --chunks, --shards or
    --codecs are given. Without DST the new metadata are written beside the old ones, which are kept
    unless --remove-old is given. If both exist, 0.5 takes precedence over 0.4, so converting to 0.4
    requires a DST. DST may be the path of a zip archive. Pixels of local files that are rewritten
    without a DST replace the old ones at the end.

    URL may be the path of a TIFF or OME-TIFF file. DST is then a new image or plate with all its
    levels, and the sizes of pixels, units, channels and positions of the file. For a file that does
    not have them, zarr-dask ome pyramid takes --scale, --units and more.
    """
    from zarr_dask.ome.convert_tiff import is_tiff

    if is_tiff(url):
        if dst is None or options.pop("remove_old"):
            raise click.UsageError("a TIFF file is converted to a DST, and is never removed.")
        jobs = {"scheduler": scheduler, "scheduler_file": scheduler_file, "workers": workers}
        how = {"dry_run": dry_run, "resume": resume}
        options["version"] = options.pop("to")
        invoke = click.get_current_context().invoke
        invoke(pyramid, src=url, dst=dst, series=series, axes=axes, **jobs, **how, **options)
        return
    if series is not None or axes is not None or options["shards"] == "auto":
        raise click.UsageError("--series, --axes and --shards auto are for TIFF files.")
    of_source, of_target = two_storage_options(url, dst)
    with (
        cluster(scheduler, scheduler_file, workers) as client,
        open_target_or_archive(dst or url, of_target if dst else of_source) as (place, known),
    ):
        places = (place, None) if dst is None else (url, place)
        with wrong_usage():
            plan = zd.ome.plan_migration(
                places[0],
                dst=places[1],
                resume=resume,
                client=client,
                storage_options=known if dst is None else of_source,
                target_options=known if dst else None,
                **options,
            )
        run_migration(
            plan,
            lambda advance: plan.run(client, advance, resume=resume),
            dry_run=dry_run,
            to_go_on="to go on, with --resume if pixels are written anew.",
        )


# --- pyramids -------------------------------------------------------------------------------------


class _PerAxis(click.ParamType[Any]):
    """Values by position (``2,0.5,0.5``) or by name of the axis (``z=2,y=0.5``)."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `click.ParamType.convert`."""
        if not isinstance(value, str):
            return value
        items = [item.strip() for item in value.split(",")]
        named = [item for item in items if "=" in item]
        if named and len(named) < len(items):
            self.fail(f"{value!r} mixes values by position and by name.", param, ctx)
        try:
            if not named:
                return [self._read(item) for item in items]
            pairs = (item.partition("=") for item in items)
            return {name.strip(): self._read(text.strip()) for name, _, text in pairs}
        except ValueError as error:
            self.fail(f"{value!r}: {error}.", param, ctx)


def _levels(ctx: click.Context, param: click.Parameter, value: str | None) -> int | str | None:
    if value is None or value == "auto":
        return value
    if value.isdecimal() and int(value) > 0:
        return int(value)
    raise click.BadParameter("expected a number of at least 1, or auto.", ctx, param)


@click.command(
    epilog="""\b
Examples:
  zarr-dask ome pyramid stack.zarr image.zarr --axes zyx \\
      --scale z=2,y=0.5,x=0.5 --units z=micrometer,y=micrometer,x=micrometer
  zarr-dask ome pyramid stack.tif image.zarr --axes zyx --scale 2,0.5,0.5
  zarr-dask ome pyramid image.zarr sharded.zarr --shards auto --workers 2
  zarr-dask ome pyramid image.zarr
"""
)
@click.argument("src")
@click.argument("dst", required=False)
@click.option("--axes", help="Names of the axes, such as tczyx. By default those of SRC.")
@click.option(
    "--scale",
    type=_PerAxis("NUMBERS", float),
    help="Distance between pixels: z=2,y=0.5,x=0.5, or by position.",
)
@click.option(
    "--translation",
    type=_PerAxis("NUMBERS", float),
    help="Position of the first pixel, in the same forms.",
)
@click.option(
    "--units",
    type=_PerAxis("NAMES", str),
    help="Units of the axes, in the same forms, such as y=micrometer,x=micrometer.",
)
@click.option("--series", type=int, help="Number of the image of a TIFF file that holds several.")
@click.option("--name", help="Name of the image; the last part of DST by default.")
@click.option(
    "--to",
    "version",
    type=click.Choice(["0.5", "0.4"]),
    help="Version of OME-Zarr; 0.5 by default.",
)
@click.option("--path", default="", help="Path of the image below DST.")
@named_option(
    "--chunks",
    type=GridType(),
    help="Chunk lengths: z=1,y=256,x=256, or by position; about 1 MiB by default.",
)
@named_option(
    "--shards",
    type=GridType(),
    help="Shards of several chunks, in the same forms, or auto; none by default.",
)
@click.option(
    "--codecs",
    type=CodecsType(),
    help="Codecs of the chunks: zstd, or names joined by commas, or as JSON.",
)
@click.option(
    "--levels",
    callback=_levels,
    help="Number of levels, the finest included; auto, the default, ends at 256 pixels.",
)
@click.option(
    "--factors",
    multiple=True,
    type=GridType("isotropic"),
    help="Factor between levels: 2, or z=1,y=2,x=2, or isotropic (the default), which "
    "halves axes of small pixels first. Given several times, for one level after the other.",
)
@click.option(
    "--method",
    type=click.Choice(["mean", "max", "mode", "nearest", "gaussian"]),
    help="Computation of coarser pixels, mean by default. Labels always keep their values.",
)
@click.option(
    "--max-mem",
    type=SizeType(),
    help="Memory of one process above its idle size, at most, such as 1GB.",
)
@click.option("--overwrite", is_flag=True, help="Replace what is at DST.")
@cluster_options()
@click.option("--dry-run", is_flag=True, help="Print the plan; write nothing.")
@click.option("--resume", is_flag=True, help="Continue the same job if it was interrupted.")
def pyramid(
    src: str,
    dst: str | None,
    *,
    factors: tuple[Any, ...],
    scheduler: str | None,
    scheduler_file: str | None,
    workers: int | None,
    dry_run: bool,
    resume: bool,
    overwrite: bool,
    **options: Any,
) -> None:
    """Write an array as an image with all its levels.

    This takes one pass over the pixels. SRC is an array, a TIFF file, or an image whose finest
    level is used, with its axes, channels and label images. Readers never see an incomplete image.
    Without DST, one coarser level is added to the image SRC and to its labels. DST may be the path
    of a zip archive.
    """
    of_source, of_target = two_storage_options(src, dst)
    options = {name: value for name, value in options.items() if value is not None}
    if factors:
        options["factors"] = factors[0] if len(factors) == 1 else list(factors)
    replaces = overwrite and not dry_run and not options.get("path")
    with (
        cluster(scheduler, scheduler_file, workers) as client,
        open_target_or_archive(dst or src, of_target if dst else of_source, replaces=replaces) as (
            place,
            known,
        ),
    ):
        with wrong_usage():
            if dst is None:
                plan = _plan_of_level(place, client, known, overwrite=overwrite, **options)
            else:
                given = {"overwrite": overwrite or resume, "storage_options": known}
                if (found := _plate(src, options)) is not None:
                    wells, told = found
                    options = told | options | given
                    plan = zd.ome.plan_write_plate(wells, place, client=client, **options)
                else:
                    pixels, told = _pixels(src, of_source, options)
                    options = told | options | given
                    plan = zd.ome.plan_write(pixels, place, client=client, **options)
        say_plan(plan)
        if dry_run:
            answer({"plan": plan.explain(), "report": None})
            return
        plan = plan.with_overwrite(overwrite)
        state = (
            f"nothing of {dst or src} is to be seen yet. Run the same command again with --resume "
            "to go on, or without it to start over."
        )
        with handle_signals(state), image_progress() as progress:
            report = plan.run(client, progress, resume=resume)
    echo(wrapped(f"done: {report}", "  "))
    answer({"plan": plan.explain(), "report": report_facts(report)})


def _plan_of_level(
    src: Any, client: Client | None, known: Any, *, overwrite: bool, **options: Any
) -> ImageWritePlan:
    """Plan one more level of an image."""
    unfit = sorted(options.keys() - {"path", "factors", "method", "max_mem"})
    if unfit or overwrite:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in unfit or ["overwrite"])
        raise click.UsageError(f"without DST, a level is added to SRC: {names} needs a DST.")
    return zd.ome.plan_add_level(src, client=client, storage_options=known, **options)


def _plate(src: str, options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return the wells of a TIFF file that holds a plate, and options; take those of the source."""
    from zarr_dask.ome.convert_tiff import is_tiff, tiff_plate

    if not is_tiff(src) or "series" in options:
        return None
    found = tiff_plate(src, options.get("axes"))
    if found is not None:
        options.pop("axes", None)
    return found


def _pixels(
    src: str, storage_options: dict[str, Any] | None, options: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Return the array of an image, and its metadata as options; take those about the source."""
    from zarr_dask.ome.convert_tiff import is_tiff, tiff_image

    series = options.pop("series", None)
    if is_tiff(src):
        return tiff_image(src, series, options.pop("axes", None))
    if series is not None:
        raise click.UsageError("--series is for TIFF files.")
    node = zd.open(src, storage_options=storage_options)
    if isinstance(node, zd.Array):
        return node, {}
    if zd.ome.detect_version(node.attributes) is None:
        arrays = ", ".join(path for path, _ in node.arrays(recursive=True))
        raise NodeTypeError(
            f"{node.where} is a group without OME-Zarr metadata; SRC must be an array or an image. "
            f"Arrays in it: {arrays or 'none'}."
        )
    pixels = zd.ome.open(node).pixels()
    return pixels.values, pixels.options()
