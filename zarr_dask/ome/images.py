"""Plans of single images and label images: their metadata, their arrays, their super-cells.

`zarr_dask.ome.write` and `zarr_dask.ome.write_plates` combine them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zarr_dask.array.array import Array
from zarr_dask.errors import (
    ABSENT,
    DataTypeError,
    GridError,
    MetadataError,
    ValidationProblem,
)
from zarr_dask.formats.base import Format, where
from zarr_dask.formats.detect import OME_ZARR, format_for_new
from zarr_dask.grid.grid import Shape
from zarr_dask.hierarchy.group import Group
from zarr_dask.jobs.engine.zip_targets import Archives
from zarr_dask.ome.build_metadata import (
    AxesAndTransforms,
    checked_attributes,
    checked_version,
    frame_of,
    image_label,
    multiscale_of,
    omero_of,
)
from zarr_dask.ome.downsample import Method, Reduce, method_named
from zarr_dask.ome.downsample_factors import downsampled_shape, steps_of
from zarr_dask.ome.grids import level_arrays, level_grids
from zarr_dask.ome.model import Metadata
from zarr_dask.ome.pixel_source import (
    Budget,
    check_source_not_target,
    checked_pixels,
    make_pyramid_plan,
)
from zarr_dask.ome.pyramid_plan import PyramidPlan
from zarr_dask.stores.base import Store, join
from zarr_dask.stores.open import Location
from zarr_dask.stores.wrappers.base import check_writable

if TYPE_CHECKING:
    from distributed import Client

__all__ = [
    "ImageOptions",
    "LabelImage",
    "PlannedImage",
    "label_method",
    "plan_image",
    "plan_label",
    "plan_labels",
    "requested",
]

_LABEL_METHODS = ("nearest", "mode", "max")


@dataclass(frozen=True, eq=False)
class LabelImage:
    """A label image, and the meaning of its values.

    Parameters
    ----------
    values
        Integers: a dask array, a NumPy array or a `zarr_dask.Array`.
    axes
        Names of its axes, which are axes of the image; by default all of them, or all but the
        channel.
    colors
        Colours of values: ``{1: "#FF0000", 2: (0, 255, 0, 128)}``, or such pairs.
    properties
        Properties of values: ``{1: {"class": "nucleus"}}``, or such pairs.
    method
        ``"nearest"``, ``"mode"`` or ``"max"``; a mean of labels would be another label.
    """

    values: Any
    axes: Any = None
    colors: Any = None
    properties: Any = None
    method: str | Method | Reduce = "nearest"


@dataclass(frozen=True)
class ImageOptions:
    """Location and storage options of new images."""

    store: Store
    version: str
    node_format: Format
    chunks: Any
    shards: Any
    codecs: Any
    budget: Budget


def requested(
    url: Location | Group,
    path: str,
    version: str,
    chunks: Any,
    shards: Any,
    codecs: Any,
    max_mem: str | int | None,
    client: Client | None,
    storage_options: Mapping[str, Any] | None,
) -> tuple[ImageOptions, str]:
    """Return the location and storage options of images, and the path below the store."""
    store, below = Archives().place(url, path, storage_options)
    at = where(store, below)
    version = checked_version(version, at)
    check_writable(store, at)
    node_format = format_for_new(store, OME_ZARR[version].name, below)
    budget = Budget.of(max_mem, client)
    return ImageOptions(store, version, node_format, chunks, shards, codecs, budget), below


@dataclass(frozen=True, eq=False)
class PlannedImage:
    """One image of a plan: its levels, and the attributes of its group."""

    path: str
    frame: AxesAndTransforms
    steps: tuple[Shape, ...]
    pyramid: PyramidPlan
    attributes: Mapping[str, Any]
    chunks: Shape
    shards: Shape | None


def plan_image(
    request: ImageOptions,
    values: Any,
    path: str,
    *,
    axes: Any = None,
    scale: Any = None,
    translation: Any = None,
    units: Any = None,
    name: str | None = None,
    channels: Any = None,
    levels: Any = "auto",
    factors: Any = "isotropic",
    method: str | Method | Reduce = "mean",
) -> PlannedImage:
    """Plan one image; see `plan_write`."""
    at = where(request.store, path)
    chosen = method_named(method)
    pixels = checked_pixels(values, at)
    check_source_not_target(pixels, request.store, path)
    if axes is None and isinstance(pixels, Array) and all(pixels.dimension_names or (None,)):
        axes = pixels.dimension_names
    frame = frame_of(pixels.ndim, axes, scale, translation, units, at)
    paths = ["0"]
    metadata = Metadata(
        request.version,
        multiscales=(multiscale_of(frame, name, paths, (), chosen, request.version),),
        omero=omero_of(channels, frame, pixels.shape, pixels.dtype, request.version, at),
    )
    checked_attributes(metadata, "image", at)
    steps = steps_of(pixels.shape, frame, levels, factors)
    shapes = [pixels.shape]
    for step in steps:
        shapes.append(downsampled_shape(shapes[-1], step))
    paths = [str(i) for i in range(len(shapes))]
    multiscale = multiscale_of(frame, name, paths, steps, chosen, request.version)
    metadata = Metadata(request.version, multiscales=(multiscale,), omero=metadata.omero)
    chunks, shards = _grids(request, pixels, frame)
    arrays = level_arrays(
        request.store,
        path,
        request.node_format,
        paths,
        shapes,
        _type_of(pixels),
        chunks,
        shards,
        frame.names,
        request.codecs,
    )
    whole = (1,) * pixels.ndim
    pyramid = make_pyramid_plan(pixels, arrays, (whole, *steps), chosen, request.budget)
    attributes = metadata.to_attributes()
    return PlannedImage(path, frame, steps, pyramid, attributes, chunks, shards)


def _grids(
    request: ImageOptions, pixels: Any, frame: AxesAndTransforms
) -> tuple[Shape, Shape | None]:
    given, outer = request.chunks, request.shards
    if given is None and outer is None and isinstance(pixels, Array):
        if pixels.shards is None or not request.node_format.has_shards:
            given = pixels.chunks
        else:
            given, outer = pixels.chunks, pixels.shards
    return level_grids(given, outer, pixels.shape, frame, pixels.dtype.itemsize)


def _type_of(pixels: Any) -> Any:
    return pixels.meta.data_type if isinstance(pixels, Array) else pixels.dtype


# --- labels ---------------------------------------------------------------------------------------


def plan_labels(
    request: ImageOptions, image: PlannedImage, labels: Mapping[str, Any]
) -> list[PlannedImage]:
    """Plan the label images of an image that is being planned."""
    shapes = [array.shape for array in image.pyramid.arrays]
    return [
        plan_label(
            request,
            given if isinstance(given, LabelImage) else LabelImage(given),
            join(image.path, f"labels/{name}"),
            name,
            image.frame,
            shapes,
            image.steps,
            image.chunks,
            image.shards,
        )
        for name, given in labels.items()
    ]


def plan_label(
    request: ImageOptions,
    given: LabelImage,
    path: str,
    name: str,
    frame: AxesAndTransforms,
    shapes: Sequence[Shape],
    steps: Sequence[Shape],
    chunks: Shape,
    shards: Shape | None,
) -> PlannedImage:
    """Plan a label image.

    Parameters
    ----------
    request
        Location and storage options.
    given
        Pixels, and their meaning.
    path, name
        Path and name of its group.
    frame, shapes, steps
        Frame, level shapes and factors of the labelled image, which the label image shares.
    chunks, shards
        Chunks and shards of that image; the label image gets the same.

    Raises
    ------
    DataTypeError
        If the pixels are not integers.
    GridError
        If the shape differs from that of the image.
    MetadataError
        If axes, colours or properties break a rule.
    """
    at = where(request.store, path)
    method = label_method(given.method)
    pixels = checked_pixels(given.values, at)
    check_source_not_target(pixels, request.store, path)
    if pixels.dtype.kind not in "iu":
        raise DataTypeError(
            f"{at}: the pixels of a label image are integers, and {pixels.dtype} is no type of "
            "integers; convert with astype."
        )
    taken = _taken_axes(given.axes, pixels.ndim, frame, at)

    def of(values: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(values[i] for i in taken)

    single = tuple(
        i for i, at in enumerate(taken) if frame.axes[at].type == "channel" and pixels.shape[i] == 1
    )

    def labelled(shape: Shape) -> Shape:
        """Return the shape of a label image, which may have one channel for all of the image."""
        return tuple(1 if i in single else length for i, length in enumerate(of(shape)))

    if labelled(shapes[0]) != pixels.shape:
        raise GridError(
            f"{at}: the label image has the shape {pixels.shape}, and the image {of(shapes[0])} "
            f"along its axes {list(of(frame.names))}."
        )
    own = AxesAndTransforms(of(frame.axes), of(frame.scale), of(frame.translation))
    own_steps = tuple(labelled(step) for step in steps)
    paths = [str(i) for i in range(len(shapes))]
    metadata = Metadata(
        request.version,
        multiscales=(multiscale_of(own, name, paths, own_steps, method, request.version),),
        image_label=image_label(given.colors, given.properties, request.version, at),
    )
    attributes = checked_attributes(metadata, "label", at)
    own_chunks, own_shards = of(chunks), None if shards is None else of(shards)
    arrays = level_arrays(
        request.store,
        path,
        request.node_format,
        paths,
        [labelled(shape) for shape in shapes],
        _type_of(pixels),
        own_chunks,
        own_shards,
        own.names,
        request.codecs,
    )
    whole = (1,) * pixels.ndim
    pyramid = make_pyramid_plan(pixels, arrays, (whole, *own_steps), method, request.budget)
    return PlannedImage(path, own, own_steps, pyramid, attributes, own_chunks, own_shards)


def label_method(method: str | Method | Reduce) -> Method:
    """Return a method that makes only values that are labels.

    Raises
    ------
    ValueError
        If it would make values that no pixel has.
    """
    chosen = method_named(method)
    if chosen.name in {"mean", "gaussian"}:
        raise ValueError(
            f"method={method!r}: a mean of label values is the value of another label. Use one of "
            f"{', '.join(map(repr, _LABEL_METHODS))}."
        )
    return chosen


def _taken_axes(axes: Any, ndim: int, frame: AxesAndTransforms, at: str) -> tuple[int, ...]:
    """Return the indices of the image's axes that a label image has."""
    names = frame.names
    if axes is None:
        taken = [i for i, axis in enumerate(frame.axes) if axis.type != "channel"]
        taken = list(range(len(names))) if ndim == len(names) else taken
    else:
        unknown = [name for name in axes if name not in names]
        if unknown:
            problem = ValidationProblem(
                "axes", unknown, f"axes of the image, which are {list(names)}"
            )
            raise MetadataError(at, [problem])
        taken = [names.index(name) for name in axes]
    if axes is None and len(taken) != ndim:
        expected = (
            f"{ndim} axes of the image, one for each dimension of the labels: axes=, such as "
            f"{''.join(names[-ndim:])!r}, out of {list(names)}"
        )
        raise MetadataError(at, [ValidationProblem("axes", ABSENT, expected)])
    if len(taken) != ndim or taken != sorted(set(taken)):
        expected = f"{ndim} axes of the image, in the order {list(names)}"
        raise MetadataError(at, [ValidationProblem("axes", [names[i] for i in taken], expected)])
    return tuple(taken)
