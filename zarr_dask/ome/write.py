"""Writing images of OME-Zarr: a pyramid in one pass over the pixels, documents last.

`plan_write` checks and decides everything, `write` does it at once. The decisions are in
`zarr_dask.ome.describe` (metadata), `zarr_dask.ome.grids` (chunks) and `zarr_dask.ome.pyramid`
(super-cells); `zarr_dask.ome.job` carries them out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zarr_dask.array import Array
from zarr_dask.errors import DataTypeError, GridError, MetadataError, Problem, ReadOnlyError
from zarr_dask.formats.base import Format, normalise_path, where
from zarr_dask.formats.detect import format_for_new
from zarr_dask.grid import Shape
from zarr_dask.hierarchy import check_place
from zarr_dask.jobs.write.target import WriteReport
from zarr_dask.ome.describe import (
    FORMATS,
    Frame,
    checked_attributes,
    checked_version,
    coarser,
    frame_of,
    image_label,
    multiscale_of,
    omero_of,
    steps_of,
)
from zarr_dask.ome.downsample import Method, Reduce, method_named
from zarr_dask.ome.grids import chunks_of, level_arrays, shards_of
from zarr_dask.ome.job import ImageProgress, is_empty
from zarr_dask.ome.model import Metadata
from zarr_dask.ome.plan import ImageWritePlan, PyramidPlan
from zarr_dask.ome.source import Budget, check_apart, checked_pixels, planned
from zarr_dask.stores.base import Store, join
from zarr_dask.stores.urls import Location, open_store
from zarr_dask.stores.wrappers import ReadOnly

if TYPE_CHECKING:
    from distributed import Client

__all__ = [
    "Labelled",
    "PlannedImage",
    "Request",
    "label_method",
    "plan_image",
    "plan_label",
    "plan_of",
    "plan_write",
    "requested",
    "write",
]

_LABEL_METHODS = ("nearest", "mode", "max")


@dataclass(frozen=True, eq=False)
class Labelled:
    """A label image, and what its values mean.

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
        What is known of values: ``{1: {"class": "nucleus"}}``, or such pairs.
    method
        ``"nearest"``, ``"mode"`` or ``"max"``; a mean of labels would be another label.
    """

    values: Any
    axes: Any = None
    colors: Any = None
    properties: Any = None
    method: str | Method | Reduce = "nearest"


@dataclass(frozen=True)
class Request:
    """Where images go, and how they are stored."""

    store: Store
    version: str
    node_format: Format
    chunks: Any
    shards: Any
    codecs: Any
    budget: Budget


def requested(
    url: Location,
    path: str,
    version: str,
    chunks: Any,
    shards: Any,
    codecs: Any,
    max_mem: str | int | None,
    client: Client | None,
    storage_options: Mapping[str, Any] | None,
) -> tuple[Request, str]:
    """Where images go, and the path below the store."""
    store, below = open_store(url, storage_options), normalise_path(path)
    at = where(store, below)
    checked_version(version, at)
    if isinstance(store, ReadOnly):
        raise ReadOnlyError(f"{at} is open for reading only.")
    node_format = format_for_new(store, FORMATS[version], below)
    budget = Budget.of(max_mem, client)
    return Request(store, version, node_format, chunks, shards, codecs, budget), below


@dataclass(frozen=True, eq=False)
class PlannedImage:
    """One image of a plan: its levels, and the attributes of its group."""

    path: str
    frame: Frame
    steps: tuple[Shape, ...]
    pyramid: PyramidPlan
    attributes: Mapping[str, Any]
    chunks: Shape
    shards: Shape | None


def plan_image(
    request: Request,
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
    """The plan of one image; see `plan_write`."""
    at = where(request.store, path)
    chosen = method_named(method)
    pixels = checked_pixels(values, at)
    check_apart(pixels, request.store, path)
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
        shapes.append(coarser(shapes[-1], step))
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
    pyramid = planned(pixels, arrays, (whole, *steps), chosen, request.budget)
    attributes = metadata.to_attributes()
    return PlannedImage(path, frame, steps, pyramid, attributes, chunks, shards)


def _grids(request: Request, pixels: Any, frame: Frame) -> tuple[Shape, Shape | None]:
    given, outer = request.chunks, request.shards
    if given is None and outer is None and isinstance(pixels, Array):
        if pixels.shards is None or not request.node_format.has_shards:
            given = pixels.chunks
        else:
            given, outer = pixels.chunks, pixels.shards
    itemsize = pixels.dtype.itemsize
    chunks = chunks_of(given, pixels.shape, frame, itemsize)
    return chunks, shards_of(outer, chunks, pixels.shape, frame, itemsize)


def _type_of(pixels: Any) -> Any:
    return pixels.meta.data_type if isinstance(pixels, Array) else pixels.dtype


# --- labels ---------------------------------------------------------------------------------------


def plan_labels(
    request: Request, image: PlannedImage, labels: Mapping[str, Any]
) -> list[PlannedImage]:
    """The plans of the label images of an image that is planned, too."""
    shapes = [array.shape for array in image.pyramid.arrays]
    return [
        plan_label(
            request,
            given if isinstance(given, Labelled) else Labelled(given),
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
    request: Request,
    given: Labelled,
    path: str,
    name: str,
    frame: Frame,
    shapes: Sequence[Shape],
    steps: Sequence[Shape],
    chunks: Shape,
    shards: Shape | None,
) -> PlannedImage:
    """The plan of a label image.

    Parameters
    ----------
    request
        How it is stored.
    given
        Its pixels, and what they mean.
    path, name
        Of its group.
    frame, shapes, steps
        Of the image that it labels: it has as many levels, of the same shapes.
    chunks, shards
        Of that image; those of the label image are alike.

    Raises
    ------
    DataTypeError
        If the pixels are no integers.
    GridError
        If they are not as many as those of the image.
    MetadataError
        If axes, colours or properties break a rule.
    """
    at = where(request.store, path)
    method = label_method(given.method)
    pixels = checked_pixels(given.values, at)
    check_apart(pixels, request.store, path)
    if pixels.dtype.kind not in "iu":
        raise DataTypeError(
            f"{at}: the pixels of a label image are integers, and {pixels.dtype} is no type of "
            "integers; convert with astype."
        )
    taken = _taken_axes(given.axes, pixels.ndim, frame, at)

    def of(values: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(values[i] for i in taken)

    if of(shapes[0]) != pixels.shape:
        raise GridError(
            f"{at}: the label image has the shape {pixels.shape}, and the image {of(shapes[0])} "
            f"along its axes {list(of(frame.names))}."
        )
    own = Frame(of(frame.axes), of(frame.scale), of(frame.translation))
    own_steps = tuple(of(step) for step in steps)
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
        [of(shape) for shape in shapes],
        _type_of(pixels),
        own_chunks,
        own_shards,
        own.names,
        request.codecs,
    )
    whole = (1,) * pixels.ndim
    pyramid = planned(pixels, arrays, (whole, *own_steps), method, request.budget)
    return PlannedImage(path, own, own_steps, pyramid, attributes, own_chunks, own_shards)


def label_method(method: str | Method | Reduce) -> Method:
    """A method that makes labels of labels.

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


def _taken_axes(axes: Any, ndim: int, frame: Frame, at: str) -> tuple[int, ...]:
    """Which axes of the image a label image has."""
    names = frame.names
    if axes is None:
        taken = [i for i, axis in enumerate(frame.axes) if axis.type != "channel"]
        taken = list(range(len(names))) if ndim == len(names) else taken
    else:
        unknown = [name for name in axes if name not in names]
        if unknown:
            problem = Problem("axes", unknown, f"axes of the image, which are {list(names)}")
            raise MetadataError(at, [problem])
        taken = [names.index(name) for name in axes]
    if len(taken) != ndim or taken != sorted(set(taken)):
        expected = f"{ndim} axes of the image, in the order {list(names)}"
        raise MetadataError(at, [Problem("axes", [names[i] for i in taken], expected)])
    return tuple(taken)


# --- the whole ------------------------------------------------------------------------------------


def plan_write(
    x: Any,
    url: Location,
    path: str = "",
    *,
    axes: Any = None,
    scale: Any = None,
    translation: Any = None,
    units: Any = None,
    name: str | None = None,
    channels: Any = None,
    version: str = "0.5",
    chunks: Any = None,
    shards: Any = None,
    codecs: Any = None,
    levels: Any = "auto",
    factors: Any = "isotropic",
    method: str | Method | Reduce = "mean",
    labels: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    max_mem: str | int | None = None,
    client: Client | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> ImageWritePlan:
    """Plan how to write an image with all its levels; nothing is written.

    Parameters
    ----------
    x
        The pixels of level 0: a dask array, a NumPy array, or a `zarr_dask.Array`.
    url, path
        Where the group of the image will be.
    axes
        Names such as ``"tczyx"``, or axes with name, type and unit as mappings or
        `zarr_dask.ome.model.Axis`. By default those that a stored array has, ``"yx"`` or
        ``"tczyx"``.
    scale
        Distance between pixels along each axis, by position or by name; 1 by default.
    translation
        Where the first pixel is along each axis, by position or by name; 0 by default.
    units
        Units of the axes such as ``{"y": "micrometer"}``, or by position.
    name
        Of the image; the last part of its place by default.
    channels
        How channels are displayed: for each a label, or a mapping with ``label``, ``color``,
        ``window`` and others. Nothing is written of them by default.
    version
        Of OME-Zarr: ``"0.5"`` (Zarr v3), or ``"0.4"`` (Zarr v2).
    chunks
        Shape of the chunks of all levels, by position or by name; by default those of a stored
        array, or about 1 MiB.
    shards
        Shape of the shards, in the same forms; ``"auto"`` for about 32 MiB. None by default.
    codecs
        As for `zarr_dask.create_array`.
    levels
        How many, level 0 included; by default until no axis of space has more than 256 pixels.
    factors
        By how much each level is coarser than the one before: ``"isotropic"`` halves the axes of
        space with the smallest pixels, so that pixels become about cubic; a number is for all axes
        of space; numbers are for the axes, by position or by name; a list of these has an item for
        each level after the first.
    method
        ``"mean"``, ``"max"``, ``"mode"``, ``"nearest"``, ``"gaussian"``, a function of pixels and
        factors, or a `Method` that has a footprint (`zarr_dask.ome.downsample`).
    labels
        Label images by name: integers, or `Labelled`.
    overwrite
        Replace what is at the place, whatever it is.
    max_mem
        Bytes that one process may hold above its size when idle, such as ``"2GB"``. By default
        what the workers' memory limit leaves, or 1 GB.
    client
        A cluster; by default the current client's, or the scheduler dask is configured for.
    storage_options
        Options of the store.

    Raises
    ------
    DataTypeError
        If the pixels are no numbers, or labels no integers.
    GridError
        If there can be no such levels, chunks or shards, or labels have another shape.
    MemoryBudgetError
        If `max_mem` is too small for one stored object.
    MetadataError
        If the metadata would break a rule of OME-Zarr; every rule is named.
    NodeExistsError
        If there is something at the place.
    OmeVersionError
        If the version is another one.
    SourceIsTargetError
        If pixels are read from what would be written.
    ValueError
        If there is no such method, or it makes other values of labels.

    Warns
    -----
    OmeMetadataWarning
        If UDUNITS-2 does not have a unit.

    Examples
    --------
    >>> import dask.array as da
    >>> import zarr_dask as zd
    >>> x = da.ones((3, 600, 700), chunks=(1, 256, 256), dtype="u2")
    >>> plan = zd.ome.plan_write(x, {}, axes="cyx", chunks=(1, 256, 256))
    >>> [level.shape for level in plan.levels], plan.factors[1]
    ([(3, 600, 700), (3, 300, 350), (3, 150, 175)], (1, 2, 2))
    """
    request, below = requested(
        url, path, version, chunks, shards, codecs, max_mem, client, storage_options
    )
    check_place(request.store, below, request.node_format, overwrite=overwrite, is_group=True)
    image = plan_image(
        request,
        x,
        below,
        axes=axes,
        scale=scale,
        translation=translation,
        units=units,
        name=name or _name_of(request.store, below),
        channels=channels,
        levels=levels,
        factors=factors,
        method=method,
    )
    labelled = plan_labels(request, image, _by_name(labels, request, below))
    return plan_of(request, below, [(image, labelled)], overwrite=overwrite, title="write image")


def plan_of(
    request: Request,
    path: str,
    images: Sequence[tuple[PlannedImage, Sequence[PlannedImage]]],
    groups: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    overwrite: bool,
    title: str,
) -> ImageWritePlan:
    """The plan of images with their labels, and of groups above them."""
    documents: dict[str, Mapping[str, Any]] = {}
    pyramids = []
    for image, labelled in images:
        for one in labelled:
            documents[one.path] = one.attributes
            pyramids.append(one.pyramid)
        if labelled:
            names = tuple(one.path.rpartition("/")[2] for one in labelled)
            listed = Metadata(request.version, labels=names).to_attributes()
            documents[join(image.path, "labels")] = listed
        documents[image.path] = image.attributes
        pyramids.append(image.pyramid)
    documents |= groups or {}
    workers = request.budget.workers
    plan = ImageWritePlan(
        store=request.store,
        path=path,
        node_format=request.node_format,
        pyramids=tuple(pyramids),
        groups=documents,
        overwrite=overwrite,
        max_mem=request.budget.max_mem,
        threads=workers.threads,
        threads_per_process=workers.threads_per_process,
        title=title,
    )
    if not overwrite and not is_empty(request.store, path):
        for pyramid in pyramids:
            for array in pyramid.arrays:
                check_place(request.store, array.path, request.node_format, overwrite=False)
    return plan


def _by_name(labels: Any, request: Request, path: str) -> Mapping[str, Any]:
    """Label images by name, each of which is one part of a path."""
    if labels is None:
        return {}
    if isinstance(labels, Mapping) and all(isinstance(one, str) for one in labels):
        fits = request.node_format.is_node_name
        wrong = [name for name in labels if "/" in name or name in {".", ".."} or not fits(name)]
        if not wrong:
            return labels
        problem = Problem("labels", wrong, "names of nodes, without '/'")
    else:
        problem = Problem("labels", type(labels).__name__, "a mapping of names to label images")
    raise MetadataError(where(request.store, path), [problem])


def _name_of(store: Store, path: str) -> str:
    last = path.rpartition("/")[2] or str(store.url).rstrip("/").rpartition("/")[2]
    for ending in (".zarr", ".ome"):
        last = last.removesuffix(ending)
    return last or "image"


def write(
    x: Any,
    url: Location,
    path: str = "",
    *,
    client: Client | None = None,
    progress: ImageProgress | None = None,
    resume: bool | str = False,
    journal: Location | None = None,
    **options: Any,
) -> WriteReport:
    """Write an image with all its levels in one pass over its pixels: `plan_write`, then run.

    Parameters
    ----------
    x, url, path, client
        As for `plan_write`.
    progress, resume, journal
        As for `ImageWritePlan.run`.
    **options
        As for `plan_write`: ``axes``, ``scale``, ``translation``, ``units``, ``name``,
        ``channels``, ``version``, ``chunks``, ``shards``, ``codecs``, ``levels``, ``factors``,
        ``method``, ``labels``, ``overwrite``, ``max_mem``, ``storage_options``.

    Raises
    ------
    ZarrDaskError
        As `plan_write` and `ImageWritePlan.run`.

    Examples
    --------
    >>> import numpy as np
    >>> import zarr_dask as zd
    >>> store = {}
    >>> pixels = np.arange(300 * 400, dtype="u2").reshape(300, 400)
    >>> _ = zd.ome.write(pixels, store, axes="yx", scale=(0.5, 0.5), units=("micrometer",) * 2)
    >>> [(level.shape, level.scale) for level in zd.ome.open(store).levels]
    [((300, 400), (0.5, 0.5)), ((150, 200), (1.0, 1.0))]
    """
    overwrite = options.pop("overwrite", False)
    # a job that has died may have made the image visible
    plan = plan_write(x, url, path, client=client, overwrite=bool(overwrite or resume), **options)
    return plan.with_overwrite(overwrite).run(client, progress, resume=resume, journal=journal)
