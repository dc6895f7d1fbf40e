"""Writing plates of OME-Zarr: all wells by one job, the metadata of the plate last."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from zarr_dask._util.json_fields import is_int
from zarr_dask._util.keywords import takes_habits, takes_options_of
from zarr_dask.array.array import Array
from zarr_dask.errors import DataTypeError, GridError, MetadataError, ValidationProblem
from zarr_dask.formats.base import where
from zarr_dask.hierarchy.edit import check_can_create
from zarr_dask.hierarchy.group import Group
from zarr_dask.hierarchy.zip_target import open_target_or_archive
from zarr_dask.jobs.engine.map_regions import is_dask
from zarr_dask.jobs.write.target import WriteReport
from zarr_dask.ome.build_metadata import checked_attributes
from zarr_dask.ome.downsample import Method, Reduce
from zarr_dask.ome.images import ImageOptions, PlannedImage, plan_image, requested
from zarr_dask.ome.job import ImageProgress
from zarr_dask.ome.model import (
    NESTED,
    Acquisition,
    Field,
    Metadata,
    PlateAxisEntry,
    PlateLayout,
    WellFields,
    WellPlace,
)
from zarr_dask.ome.pixel_source import checked_pixels
from zarr_dask.ome.plan import ImageWritePlan
from zarr_dask.ome.plates import well_path
from zarr_dask.ome.write import plan_of, with_own_options
from zarr_dask.stores.base import join
from zarr_dask.stores.open import Location

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["plan_write_plate", "write_plate"]

_WELL = re.compile("[A-Za-z0-9]+/[A-Za-z0-9]+", re.ASCII)
_OWN = "axes", "scale", "translation", "units", "channels"
_NUMBERS = re.compile("([0-9]+)")


@dataclass(frozen=True, eq=False)
class _Image:
    """One field of a well."""

    well: str
    number: int
    acquisition: int | None
    values: Any
    options: Mapping[str, Any]
    """Axes, scale, translation and channels that it brings along."""

    @property
    def path(self) -> str:
        """Path below the plate."""
        return f"{self.well}/{self.number}"


@takes_habits()
def plan_write_plate(
    wells: Mapping[str, Any],
    url: Location | Group,
    path: str = "",
    *,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    name: str | None = None,
    acquisitions: Sequence[Any] | None = None,
    axes: Any = None,
    scale: Any = None,
    translation: Any = None,
    positions: Mapping[str, Any] | None = None,
    units: Any = None,
    channels: Any = None,
    version: str = "0.5",
    chunks: Any = None,
    shards: Any = None,
    codecs: Any = None,
    levels: Any = "auto",
    factors: Any = "isotropic",
    method: str | Method | Reduce = "mean",
    overwrite: bool = False,
    max_mem: str | int | None = None,
    client: Client | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> ImageWritePlan:
    """Plan how to write a plate; nothing is written.

    Parameters
    ----------
    wells
        The images of each well by its path ``"row/column"``, or by the pair of row and column: one
        image, a list of images (its fields), or a mapping from the id of an acquisition to either.
        Images are as for `zarr_dask.ome.plan_write`. All have the same data type and the same
        shape, except along the last two axes.
    url, path
        Location of the new group of the plate.
    rows, columns
        Names of all rows and columns, including those without a well; those of the wells by
        default.
    name
        Name of the plate.
    acquisitions
        Ids, mappings, or `zarr_dask.ome.model.Acquisition`; by default the ids that wells name.
        If there are several, each well names its own.
    axes, scale, translation, units, channels, version, chunks, shards, codecs
        As for `zarr_dask.ome.plan_write`, for all images.
    positions
        Positions of the first pixels of single images, by path such as ``"A/1/0"`` and by axis:
        ``{"A/1/1": {"y": 0, "x": 325.0}}``. They take precedence over `translation`.
    levels, factors, method, overwrite, max_mem, client, storage_options
        As for `zarr_dask.ome.plan_write`. All images have as many levels as the first.

    Raises
    ------
    DataTypeError
        If images have different data types.
    GridError
        If images have different shapes.
    MetadataError
        If names of wells, rows and columns do not match, or another rule would be violated.
    ZarrDaskError
        See `zarr_dask.ome.plan_write`.
    """
    request, below = requested(
        url, path, version, chunks, shards, codecs, max_mem, client, storage_options
    )
    at = where(request.store, below)
    check_can_create(request.store, below, request.node_format, overwrite=overwrite, is_group=True)
    images = list(_images(wells, at))
    layout = _layout(images, rows, columns, name, acquisitions, version, at)
    plate = checked_attributes(Metadata(version, plate=layout), "plate", at)
    _check_alike(images, at)
    shared = {"axes": axes, "scale": scale, "channels": channels}
    places = _positions(positions, images, at)
    planned: list[PlannedImage] = []
    for image in images:
        given = shared | {"translation": places.get(image.path, translation), "units": units}
        told = {name: value for name, value in given.items() if value is not None}
        planned.append(
            plan_image(
                request,
                image.values,
                join(below, image.path),
                name=image.path,
                levels=len(planned[0].steps) + 1 if planned else levels,
                factors=factors,
                method=method,
                **{**image.options, **told},
            )
        )
    groups = _groups(request, images, below, at)
    groups[below] = plate
    pairs = [(image, ()) for image in planned]
    return plan_of(request, below, pairs, groups, overwrite=overwrite, title="write plate")


def _images(wells: Any, at: str) -> Iterator[_Image]:
    """Yield all fields of all wells."""
    if not isinstance(wells, Mapping) or not wells:
        problem = ValidationProblem("wells", wells, "a mapping of at least one well to its images")
        raise MetadataError(at, [problem])
    named = {well_path(well): given for well, given in wells.items()}
    if len(named) < len(wells):
        problem = ValidationProblem("wells", list(wells), "each well once")
        raise MetadataError(at, [problem])
    wells = named
    wrong = [
        well for well in wells if not (isinstance(well, str) and _WELL.fullmatch(well) is not None)
    ]
    if wrong:
        expected = "'row/column', each of letters and digits only"
        raise MetadataError(at, [ValidationProblem("wells", well, expected) for well in wrong])
    for well, given in wells.items():
        found = list(_fields(given, well, at))
        if not found:
            raise MetadataError(
                at, [ValidationProblem(f"wells.{well}", given, "at least one image")]
            )
        for number, (acquisition, image) in enumerate(found):
            values, options = with_own_options(image, dict.fromkeys(_OWN))
            yield _Image(well, number, acquisition, values, options)


def _fields(given: Any, well: str, at: str) -> Iterator[tuple[int | None, Any]]:
    if not isinstance(given, Mapping):
        yield from ((None, image) for image in _listed(given))
        return
    for acquisition, images in given.items():
        if not is_int(acquisition):
            problem = ValidationProblem(
                f"wells.{well}", acquisition, "the id of an acquisition, an integer"
            )
            raise MetadataError(at, [problem])
        yield from ((acquisition, image) for image in _listed(images))


def _listed(given: Any) -> Sequence[Any]:
    is_image = is_dask(given) or isinstance(given, np.ndarray | Array)
    return given if isinstance(given, Sequence) and not is_image else (given,)


def _positions(given: Any, images: Sequence[_Image], at: str) -> Mapping[str, Any]:
    """Return positions by path; each path is that of an image."""
    if given is None:
        return {}
    known = {image.path for image in images}
    if not isinstance(given, Mapping) or not known.issuperset(given):
        expected = f"positions by paths of images, such as {images[0].path!r}"
        raise MetadataError(at, [ValidationProblem("positions", given, expected)])
    return given


# --- wells in the metadata of a plate -------------------------------------------------------------


def _layout(
    images: Sequence[_Image],
    rows: Sequence[str] | None,
    columns: Sequence[str] | None,
    name: str | None,
    acquisitions: Sequence[Any] | None,
    version: str,
    at: str,
) -> PlateLayout:
    wells = list(dict.fromkeys(image.well for image in images))
    places = [well.split("/") for well in wells]
    row_names = _names(rows, [row for row, _ in places], "rows", at)
    column_names = _names(columns, [column for _, column in places], "columns", at)
    known = _acquisitions(acquisitions, images, at)
    counts = [sum(1 for image in images if image.well == well) for well in wells]
    return PlateLayout(
        rows=tuple(PlateAxisEntry(one) for one in row_names),
        columns=tuple(PlateAxisEntry(one) for one in column_names),
        wells=tuple(
            WellPlace(well, row_names.index(row), column_names.index(column))
            for well, (row, column) in zip(wells, places, strict=True)
        ),
        acquisitions=known or None,
        field_count=max(counts),
        name=name,
        version=version,
    )


def _names(given: Sequence[str] | None, met: list[str], what: str, at: str) -> list[str]:
    """Return the names of all rows or columns; every well must be in one."""
    if given is None:
        return sorted(set(met), key=_natural)
    names = list(given)
    absent = sorted(set(met) - set(names), key=_natural)
    if absent:
        problem = ValidationProblem(
            what, names, f"the names of all, {', '.join(absent)} of wells included"
        )
        raise MetadataError(at, [problem])
    return names


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Return a sort key by which 2 comes before 10, and Z before AA."""
    parts = _NUMBERS.split(name)
    return [(len(part), int(part) if part.isdecimal() else 0, part) for part in parts]


def _acquisitions(
    given: Sequence[Any] | None, images: Sequence[_Image], at: str
) -> tuple[Acquisition, ...]:
    met = sorted({image.acquisition for image in images if image.acquisition is not None})
    found = tuple(_acquisition(one, at) for one in (met if given is None else given))
    absent = [one for one in met if one not in [acquisition.id for acquisition in found]]
    if absent:
        problem = ValidationProblem(
            "acquisitions", given, f"all that wells name, {absent} included"
        )
        raise MetadataError(at, [problem])
    untold = [image.path for image in images if image.acquisition is None]
    if len(found) > 1 and untold:
        problem = ValidationProblem(
            f"wells.{untold[0]}", None, "the id of one of several acquisitions"
        )
        raise MetadataError(at, [problem])
    return found


def _acquisition(one: Any, at: str) -> Acquisition:
    if isinstance(one, Acquisition):
        return one
    if is_int(one):
        return Acquisition(one)
    if isinstance(one, Mapping) and is_int(one.get("id")):
        return Acquisition(
            one["id"],
            one.get("name"),
            one.get("description"),
            one.get("maximumfieldcount"),
            one.get("starttime"),
            one.get("endtime"),
        )
    raise MetadataError(
        at, [ValidationProblem("acquisitions", one, "an id, or an object with one")]
    )


def _groups(
    request: ImageOptions, images: Sequence[_Image], below: str, at: str
) -> dict[str, Mapping[str, Any]]:
    """Return path and attributes of the groups of wells and rows."""
    version = request.version
    wells: dict[str, list[Field]] = {}
    for image in images:
        wells.setdefault(image.well, []).append(Field(str(image.number), image.acquisition))
    groups: dict[str, Mapping[str, Any]] = {}
    told = None if version in NESTED else version
    for well, fields in wells.items():
        metadata = Metadata(version, well=WellFields(tuple(fields), told))
        groups[join(below, well)] = checked_attributes(metadata, "well", f"{at}/{well}")
    for well in wells:
        groups.setdefault(join(below, well.partition("/")[0]), {})
    return groups


def _check_alike(images: Sequence[_Image], at: str) -> None:
    """Raise if images differ in data type or shape, so that they do not fit in one plate."""
    first = checked_pixels(images[0].values, f"{at}/{images[0].path}")
    for image in images[1:]:
        values = checked_pixels(image.values, f"{at}/{image.path}")
        if values.dtype.newbyteorder("=") != first.dtype.newbyteorder("="):
            raise DataTypeError(
                f"{at}: the image {image.path} is of {values.dtype}, {images[0].path} of "
                f"{first.dtype}: all images of a plate have one data type."
            )
        if (values.ndim, values.shape[:-2]) != (first.ndim, first.shape[:-2]):
            raise GridError(
                f"{at}: the image {image.path} has the shape {values.shape}, {images[0].path} "
                f"{first.shape}: images of a plate differ along the last two axes only."
            )


@takes_habits()
@takes_options_of(plan_write_plate)
def write_plate(
    wells: Mapping[str, Any],
    url: Location | Group,
    path: str = "",
    *,
    client: Client | None = None,
    progress: ImageProgress | None = None,
    resume: bool | str = False,
    journal: Location | None = None,
    **options: Any,
) -> WriteReport:
    """Write a plate, wells concurrently: `plan_write_plate`, then run.

    The groups of wells and of the plate get their metadata when all images are complete.

    Parameters
    ----------
    wells, url, path, client
        As for `plan_write_plate`.
    progress, resume, journal
        As for `zarr_dask.ome.plan.ImageWritePlan.run`.
    **options

    Examples
    --------
    >>> import numpy as np
    >>> import zarr_dask as zd
    >>> store = {}
    >>> wells = {"A/1": np.ones((300, 400), "u2"), "B/2": [np.full((300, 400), 2, "u2")] * 2}
    >>> _ = zd.ome.write_plate(wells, store, axes="yx", name="screen 7")
    >>> plate = zd.ome.open_plate(store)
    >>> plate.rows, plate.columns, len(plate["B/2"])
    (('A', 'B'), ('1', '2'), 2)
    """
    overwrite = options.pop("overwrite", False)
    place_options = options.pop("storage_options", None)
    with open_target_or_archive(url, place_options, replaces=overwrite and not path) as (
        place,
        known,
    ):
        options |= {"storage_options": known, "overwrite": True}  # as in `write`
        plan = plan_write_plate(wells, place, path, client=client, **options)
        return plan.with_overwrite(overwrite).run(client, progress, resume=resume, journal=journal)
