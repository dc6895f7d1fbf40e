"""OME-Zarr, the format of bioimaging, of versions 0.4 and 0.5: images, plates, and their rules.

=========  =======================================================================================
metadata   `model`, `build_metadata`, `rules`, `validate_metadata`, `units`, `ome_xml`
versions   `versions`, `earlier_versions`, `later_versions`, `migrate_hierarchy`, `migrate_arrays`
reading    `stored_image`, `levels`, `plates`, `field_mosaic`, `image_pixels`, `metadata_listing`,
           `extents`
layout     `grids`, `target_layout`, `downsample_factors`
a pyramid  `pyramid`, `pyramid_task`, `downsample`, `pixel_source`
a job      `plan`, `pyramid_plan`, `job`, `image_lifecycle`
writing    `write`, `write_plates`, `images`, `convert_tiff`
changing   `append_blocks`, `acquire_planes`, `update_levels`, `coarser`, `add_labels_levels`
labels     `label_blocks`, `measure`, `tables`
pictures   `thumbnail`, `picture`, `plate_picture`, `sampling`, `png`, `html`, `serve`
=========  =======================================================================================
"""

from typing import Any as _Any

from zarr_dask._util.keywords import did_you_mean as _did_you_mean
from zarr_dask.ome.acquire_planes import LiveImage, acquire
from zarr_dask.ome.add_labels_levels import (
    add_level,
    plan_add_level,
    plan_write_labels,
    write_labels,
)
from zarr_dask.ome.append_blocks import append
from zarr_dask.ome.convert_tiff import convert, plan_convert
from zarr_dask.ome.downsample import Method
from zarr_dask.ome.images import LabelImage
from zarr_dask.ome.label_blocks import label
from zarr_dask.ome.measure import Measurements, measure
from zarr_dask.ome.migrate_hierarchy import (
    OmeMigration,
    OmeMigrationReport,
    migrate,
    plan_migration,
)
from zarr_dask.ome.model import Metadata, detect_version, from_attributes
from zarr_dask.ome.plan import ImageUpdatePlan, ImageWritePlan
from zarr_dask.ome.plates import Plate, Well, open_plate
from zarr_dask.ome.rules import Violation
from zarr_dask.ome.stored_image import Image, Level, open  # noqa: A004  (zd.ome.open, as zd.open)
from zarr_dask.ome.thumbnail import thumbnail
from zarr_dask.ome.update_levels import plan_update, update
from zarr_dask.ome.validate_metadata import validate, validate_attributes
from zarr_dask.ome.write import plan_write, write
from zarr_dask.ome.write_plates import plan_write_plate, write_plate

__all__ = [
    "Image",
    "ImageUpdatePlan",
    "ImageWritePlan",
    "LabelImage",
    "Level",
    "LiveImage",
    "Measurements",
    "Metadata",
    "Method",
    "OmeMigration",
    "OmeMigrationReport",
    "Plate",
    "Violation",
    "Well",
    "acquire",
    "add_level",
    "append",
    "convert",
    "detect_version",
    "from_attributes",
    "label",
    "measure",
    "migrate",
    "open",
    "open_plate",
    "plan_add_level",
    "plan_convert",
    "plan_migration",
    "plan_update",
    "plan_write",
    "plan_write_labels",
    "plan_write_plate",
    "thumbnail",
    "update",
    "validate",
    "validate_attributes",
    "write",
    "write_labels",
    "write_plate",
]

_INSTEAD = {
    "AICSImage": "convert(file, url) writes TIFF; write(pixels, url) what other readers give.",
    **dict.fromkeys(("add_levels", "scale"), "add_level(url) adds one, write(levels=...) all."),
    **dict.fromkeys(
        ("imread", "imwrite", "load", "open_image", "parse_url", "read", "Reader", "read_image"),
        "open(url) opens an image, write(pixels, url) writes one.",
    ),
    **dict.fromkeys(
        ("info", "tree"), "print(open(url)) names axes, shape and levels; 'zarr-dask ome info' all."
    ),
    **dict.fromkeys(("save", "write_image", "write_multiscales"), "write(pixels, url) writes one."),
    **dict.fromkeys(
        ("to_multiscales", "to_ngff_image", "to_ngff_zarr"),
        "write(pixels, url) makes the levels and writes them.",
    ),
    **dict.fromkeys(
        ("from_ngff_zarr", "open_ome_zarr", "OMEZarr"), "open(url) opens what is stored."
    ),
    "Scaler": "write(method=..., factors=...) says how levels are made.",
    "mosaic": (
        "open_plate(url).mosaic() places all wells side by side, open_plate(url)['A/1'].mosaic() "
        "the images of one well."
    ),
    **dict.fromkeys(("plate", "read_plate"), "open_plate(url) opens, write_plate writes one."),
    **dict.fromkeys(
        ("append_frame", "append_time"), "append(url, values, axis='t') appends along an axis."
    ),
    **dict.fromkeys(("labels", "write_label"), "write_labels(url, values, name) adds labels."),
    **dict.fromkeys(("show", "view", "viewer"), "The command 'zarr-dask ome view URL' shows it."),
    "write_multiscale": (
        "write(pixels, url) makes the coarser levels itself: pass those of level 0."
    ),
    "write_well": "write_plate(wells, url) writes a plate with all its wells.",
}
"""Names of other libraries of OME-Zarr, and what to call instead."""


def __getattr__(name: str) -> _Any:
    """Say what to call instead of a name that other libraries have."""
    message = f"module {__name__!r} has no attribute {name!r}."
    if name.startswith("_"):  # asked for by tools, of every module
        raise AttributeError(message)
    if name in _INSTEAD:
        raise AttributeError(f"{message} zarr_dask.ome: {_INSTEAD[name]}")
    raise AttributeError(message + _did_you_mean(name, __all__))


def __dir__() -> list[str]:
    """Return the public names, without those of modules."""
    return __all__
