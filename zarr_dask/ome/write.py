"""Writing images of OME-Zarr: a pyramid in one pass over the pixels, metadata last.

`plan_write` checks and decides everything, `write` also executes it. The decisions are made in
`zarr_dask.ome.images`, with `zarr_dask.ome.build_metadata` (metadata),
`zarr_dask.ome.downsample_factors` (levels), `zarr_dask.ome.grids` (chunks) and
`zarr_dask.ome.pyramid` (super-cells); `zarr_dask.ome.job` executes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np

from zarr_dask._util.keywords import takes_habits
from zarr_dask._util.warnings import warn
from zarr_dask.errors import MetadataError, ValidationProblem
from zarr_dask.formats.base import where
from zarr_dask.hierarchy.edit import check_can_create
from zarr_dask.hierarchy.group import Group
from zarr_dask.hierarchy.zip_target import open_target_or_archive
from zarr_dask.jobs.write.target import WriteReport
from zarr_dask.ome.downsample import Method, Reduce
from zarr_dask.ome.image_lifecycle import is_empty
from zarr_dask.ome.image_pixels import ImagePixels
from zarr_dask.ome.images import ImageOptions, PlannedImage, plan_image, plan_labels, requested
from zarr_dask.ome.job import ImageProgress
from zarr_dask.ome.model import Metadata
from zarr_dask.ome.plan import ImageWritePlan
from zarr_dask.ome.stored_image import Image, Level, image_of
from zarr_dask.stores.base import Store, join
from zarr_dask.stores.open import Location

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["plan_of", "plan_write", "with_own_options", "write"]


@takes_habits()
def plan_write(
    x: Any,
    url: Location | Group,
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
        The pixels of level 0: a dask array, a NumPy array, or a `zarr_dask.Array`. An `Image`, or a
        level, a part or a projection of one, brings its axes, scale, channels and label images.
        A `DataArray` of xarray brings its dimensions as axes, and of coordinates with equal steps
        scale, translation and units; texts along ``"c"`` are channels.
    url, path
        Location of the new group of the image. `write` makes a zip archive if `url` is the path of
        one.
    axes
        Names such as ``"tczyx"``, or axes with name, type and unit as mappings or
        `zarr_dask.ome.model.Axis`. By default those of a stored array, ``"yx"`` or ``"tczyx"``.
    scale
        Distance between pixels along each axis, by position or by name; 1 by default.
    translation
        Position of the first pixel along each axis, by position or by name; 0 by default.
    units
        Units of the axes such as ``{"y": "micrometer"}``, or by position, or one for all axes of
        space.
    name
        Name of the image; the last part of its path by default.
    channels
        Display settings of channels: for each a label, or a mapping with ``label``, ``color``
        (``"#RRGGBB"`` or three numbers), ``window`` (``(start, end)`` or a mapping) and others.
        None are written by default.
    version
        Version of OME-Zarr: ``"0.5"`` (Zarr v3), or ``"0.4"`` (Zarr v2).
    chunks
        Shape of the chunks of all levels, in the forms that `zarr_dask.create_array` takes; by
        default those of a stored array, or about 1 MiB.
    shards
        Shape of the shards, in the same forms; ``"auto"`` for about 32 MiB. None by default.
    codecs
        As for `zarr_dask.create_array`.
    levels
        Number of levels, level 0 included; by default until no axis of space exceeds 256 pixels.
    factors
        Ratio between each level and the one before. ``"isotropic"`` halves the axes of space with
        the smallest pixels, so that pixels become about cubic. A number applies to all axes of
        space; numbers apply to the axes, by position or by name. A list of these has an item for
        each level after the first.
    method
        ``"mean"``, ``"max"``, ``"mode"``, ``"nearest"``, ``"gaussian"``, a function of pixels and
        factors, or a `Method` that has a footprint (`zarr_dask.ome.downsample`).
    labels
        Label images by name: integers, or `LabelImage`. ``{}`` for none of those of `x`.
    overwrite
        Replace an existing node of any kind.
    max_mem
        Bytes that one process may hold on top of its idle size, such as ``"2GB"``. By default the
        rest of the workers' memory limit, or 1 GB.
    client
        A cluster; by default the current client's, or the scheduler that dask is configured for.
    storage_options
        Options of the store.

    Raises
    ------
    DataTypeError
        If the pixels are not numbers, or labels are not integers.
    GridError
        If such levels, chunks or shards are not possible, or labels have another shape.
    MemoryBudgetError
        If `max_mem` is too small for one stored object.
    MetadataError
        If the metadata would violate a rule of OME-Zarr; every violation is listed.
    NodeExistsError
        If a node exists at the location.
    OmeVersionError
        If the version is not supported.
    SourceIsTargetError
        If pixels are read from the target.
    ValueError
        If there is no such method, or it makes values that are not labels.

    Warns
    -----
    OmeMetadataWarning
        If a unit is not in UDUNITS-2.

    Examples
    --------
    >>> import dask.array as da
    >>> import zarr_dask as zd
    >>> x = da.ones((3, 600, 700), chunks=(1, 256, 256), dtype="u2")
    >>> plan = zd.ome.plan_write(x, {}, axes="cyx", chunks=(1, 256, 256))
    >>> [level.shape for level in plan.levels], plan.factors[1]
    ([(3, 600, 700), (3, 300, 350), (3, 150, 175)], (1, 2, 2))
    """
    given = {
        "axes": axes,
        "scale": scale,
        "translation": translation,
        "units": units,
        "channels": channels,
        "labels": labels,
    }
    x, told = with_own_options(x, given)
    labels = told.pop("labels")
    request, below = requested(
        url, path, version, chunks, shards, codecs, max_mem, client, storage_options
    )
    check_can_create(request.store, below, request.node_format, overwrite=overwrite, is_group=True)
    image = plan_image(
        request,
        x,
        below,
        name=name or _name_of(request.store, below),
        levels=levels,
        factors=factors,
        method=method,
        **told,
    )
    labelled = plan_labels(request, image, _by_name(labels, request, below))
    return plan_of(request, below, [(image, labelled)], overwrite=overwrite, title="write image")


def with_own_options(x: Any, given: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return pixels, and options completed with those that an image brings along.

    Parameters
    ----------
    x
        Pixels, or an image, a level, a part or a projection of one.
    given
        Options by name; those that are None are taken from the image.
    """
    if isinstance(x, Image):
        x = x.pixels()
    elif isinstance(x, Level) and x.place is not None:
        group, multiscale, number = x.place
        x = image_of(group, multiscale).pixels(number)
    elif type(x).__module__.startswith("xarray.") and hasattr(x, "dims") and hasattr(x, "data"):
        own = {"axes": [str(dim) for dim in x.dims], **_of_coordinates(x)}
        return x.data, {n: own.get(n) if one is None else one for n, one in given.items()}
    if not isinstance(x, ImagePixels):
        return x, dict(given)
    own = x.options()
    return x.values, {
        name: own.get(name) if value is None else value for name, value in given.items()
    }


def _of_coordinates(x: Any) -> dict[str, Any]:
    """Return the options that the coordinates of a DataArray tell: positions, units, channels."""
    scale, translation, units = [], [], []
    found: dict[str, Any] = {}
    for dim, length in zip(x.dims, x.shape, strict=True):
        one = x.coords.get(dim)
        values = np.empty(0) if one is None else np.asarray(one.values)
        units.append(None if one is None else one.attrs.get("units"))
        if values.dtype.kind not in "iuf":
            values = np.arange(length)
            if one is not None and str(dim).lower() == "c":
                found["channels"] = [str(label) for label in one.values.tolist()]
        steps = np.diff(values)
        step = (values[-1] - values[0]) / (length - 1) if length > 1 else 1
        if not step > 0 or not np.allclose(steps, step, rtol=1e-3, atol=0):
            warn(
                f"the coordinate {dim!r} of the pixels does not rise by equal steps, so that it is "
                "left out: the distance of pixels is 1. Pass scale= and translation=."
            )
            step, values = 1, np.zeros(1)
        scale.append(float(step))
        translation.append(float(values[0]) if len(values) else 0.0)
    known = [unit if isinstance(unit, str) else None for unit in units]
    if any(one is not None for one in known):
        found["units"] = known
    if any(dim in x.coords for dim in x.dims):
        found |= {"scale": scale, "translation": translation}
    return found


def plan_of(
    request: ImageOptions,
    path: str,
    images: Sequence[tuple[PlannedImage, Sequence[PlannedImage]]],
    groups: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    overwrite: bool,
    title: str,
) -> ImageWritePlan:
    """Return the plan of images with their labels, and of groups above them."""
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
                check_can_create(request.store, array.path, request.node_format, overwrite=False)
    return plan


def _by_name(labels: Any, request: ImageOptions, path: str) -> Mapping[str, Any]:
    """Return label images by name; each name is one part of a path."""
    if labels is None:
        return {}
    if isinstance(labels, Mapping) and all(isinstance(one, str) for one in labels):
        fits = request.node_format.is_node_name
        wrong = [name for name in labels if "/" in name or name in {".", ".."} or not fits(name)]
        if not wrong:
            return labels
        problem = ValidationProblem("labels", wrong, "names of nodes, without '/'")
    else:
        problem = ValidationProblem(
            "labels", type(labels).__name__, "a mapping of names to label images"
        )
    raise MetadataError(where(request.store, path), [problem])


def _name_of(store: Store, path: str) -> str:
    last = path.rpartition("/")[2] or str(store.url).rstrip("/").rpartition("/")[2]
    for ending in (".zip", ".ozx", ".zarr", ".ome"):
        last = last.removesuffix(ending)
    return last or "image"


class PassedImageKeywords(TypedDict, total=False):
    """Keywords of `plan_write` that `convert` passes on."""

    scale: Any
    translation: Any
    units: Any
    name: str | None
    channels: Any
    version: str
    chunks: Any
    shards: Any
    codecs: Any
    levels: Any
    factors: Any
    method: str | Method | Reduce
    labels: Mapping[str, Any] | None
    overwrite: bool
    max_mem: str | int | None
    storage_options: Mapping[str, Any] | None


class ImageKeywords(PassedImageKeywords, total=False):
    """Keywords of `plan_write` that `write` passes on."""

    axes: Any


@takes_habits(
    tuple(ImageKeywords.__annotations__),
    channel_names="channels",
    fmt="version",
    pixel_size="scale",
    scale_factors="factors",
)
def write(
    x: Any,
    url: Location | Group,
    path: str = "",
    *,
    client: Client | None = None,
    progress: ImageProgress | None = None,
    resume: bool | str = False,
    journal: Location | None = None,
    **options: Unpack[ImageKeywords],
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
        See `plan_write` and `ImageWritePlan.run`.

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
    place_options = options.pop("storage_options", None)
    with open_target_or_archive(url, place_options, replaces=overwrite and not path) as (
        place,
        known,
    ):
        # existing nodes may be leftovers of a dead job: starting the job checks that
        options["storage_options"], options["overwrite"] = known, True
        plan = plan_write(x, place, path, client=client, **options)
        return plan.with_overwrite(overwrite).run(client, progress, resume=resume, journal=journal)
