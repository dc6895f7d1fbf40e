"""Images of OME-Zarr: levels of a pyramid as dask arrays, with sizes and positions of pixels.

Opening reads the metadata of the image and its levels, but no chunks. An image that violates only
rules that reading does not need can be opened (`zarr_dask.ome.validate` lists all violations).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np

from zarr_dask._util.arguments import check_choice
from zarr_dask._util.display import format_shape
from zarr_dask._util.keywords import takes_habits
from zarr_dask.array.array import Array
from zarr_dask.array.common_names import no_attribute
from zarr_dask.errors import (
    ABSENT,
    GridError,
    MetadataError,
    NodeNotFoundError,
    NodeTypeError,
    OmeVersionError,
    StoreKeyError,
    ValidationProblem,
)
from zarr_dask.formats.base import ReadOptions
from zarr_dask.hierarchy.group import Group
from zarr_dask.hierarchy.growing import LOOKS, as_before
from zarr_dask.hierarchy.open_node import open_group
from zarr_dask.ome.coarser import LevelChain
from zarr_dask.ome.extents import lengths_around, misfits
from zarr_dask.ome.html import image_html
from zarr_dask.ome.image_pixels import ImagePixels, labelled, pixels_of
from zarr_dask.ome.levels import Level
from zarr_dask.ome.model import (
    SUPPORTED,
    Dataset,
    Metadata,
    Multiscale,
    Transformation,
    from_attributes,
    is_finite,
)
from zarr_dask.ome.validate_metadata import find, series_of
from zarr_dask.stores.open import Location
from zarr_dask.stores.wrappers.base import check_writable

if TYPE_CHECKING:
    import dask.array as da

__all__ = ["Image", "Labels", "Level", "image_of", "node_named", "open"]


_HINTS = {
    **dict.fromkeys(
        ("compute", "data", "load", "numpy", "to_numpy", "values"),
        "image.level(0)[...] reads the pixels, image.to_dask() opens them lazily.",
    ),
    "info": "print(image) says what it is; 'zarr-dask ome info URL' says all.",
    "append": "zarr_dask.ome.append(url, values, axis='t') appends to all levels.",
    **dict.fromkeys(
        ("channel_names", "channels", "colors"),
        "image.metadata.omero has the display settings of channels.",
    ),
    **dict.fromkeys(("attrs", "attributes"), "image.group.attrs has them, image.metadata parsed."),
    **dict.fromkeys(
        ("chunks", "nbytes", "shards", "size"),
        "image.levels[0].array is the array of level 0, which has it.",
    ),
    **dict.fromkeys(
        ("pixel_size", "scale", "spacing", "voxel_size"),
        "image.levels[0].scale has it, of each level its own.",
    ),
    **dict.fromkeys(("dims", "dimension_names"), "image.axes has the names of axes."),
    **dict.fromkeys(
        ("multiscales", "pyramid", "resolutions"), "image.levels has all levels, the finest first."
    ),
    "sel": "image.crop(y=slice(10, 60)) is a part of it.",
    **dict.fromkeys(("plot", "show", "thumbnail"), "zarr_dask.ome.thumbnail(url) draws it."),
    "units": "image.multiscale.axes have their units.",
    "name": "image.multiscale.name has it.",
    "version": "image.metadata.version has it.",
    **dict.fromkeys(
        ("mean", "min", "std", "sum"),
        "image.max('z') is a projection; image.to_dask() has all reductions.",
    ),
    "validate": "zarr_dask.ome.validate(url) lists broken rules.",
    "write": "zarr_dask.ome.write(image, url) writes it elsewhere.",
    "add_labels": "zarr_dask.ome.write_labels(url, values, name) adds labels.",
}
"""Attributes of images elsewhere, and what to write instead."""


@dataclass(frozen=True, eq=False)
class Image:
    """An image of OME-Zarr; made by `zarr_dask.ome.open`."""

    group: Group
    """The group that holds the levels."""
    metadata: Metadata
    """All OME-Zarr metadata of the group."""
    multiscale: Multiscale
    """Metadata of the chosen pyramid."""
    levels: tuple[Level, ...]
    """All resolutions, the finest first."""

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the axes."""
        return tuple(axis.name for axis in self.multiscale.axes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of pixels of level 0 along each axis."""
        return self.levels[0].shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.axes)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Data type of the pixels."""
        return self.levels[0].dtype

    @cached_property
    def labels(self) -> Labels:
        """The label images by name; each is opened on demand."""
        return Labels(self.group, self.levels[0].chain is not None)

    @property
    def chain(self) -> LevelChain:
        """The levels, as what each of them is made from."""
        return _chain(self.group, self.metadata, self.multiscale, self.levels)

    def pixels(self, level: int = 0) -> ImagePixels:
        """Return one level with its place, channels and label images, as `write` takes it.

        Raises
        ------
        GridError
            If there is no such level.
        """
        labels = {
            name: labelled(label.levels[level], label.metadata.image_label)
            for name, label in self.labels.items()
            if len(label.levels) == len(self.levels)
        }
        return pixels_of(self._numbered(level), self.multiscale.axes, self.metadata, labels)

    def crop(self, **index: slice | int | str) -> ImagePixels:
        """Return a part of level 0 and of its label images, for `write`; see `ImagePixels.crop`.

        Examples
        --------
        >>> import numpy as np
        >>> import zarr_dask as zd
        >>> store, part = {}, {}
        >>> _ = zd.ome.write(np.ones((9, 300, 400), "u2"), store, axes="zyx", scale=(2, 0.5, 0.5))
        >>> image = zd.ome.open(store)
        >>> _ = zd.ome.write(image.crop(z=slice(4, 8), x=slice(100, 300)), part)
        >>> zd.ome.open(part).levels[0].shape, zd.ome.open(part).levels[0].translation
        ((4, 300, 200), (8.0, 0.0, 50.0))
        """
        return self.pixels().crop(**index)

    @takes_habits()
    def max(self, axis: str) -> ImagePixels:
        """Return the maximum projection of level 0, for `write`; see `ImagePixels.max`."""
        return self.pixels().max(axis)

    @takes_habits()
    def to_dask(self, level: int = 0, chunks: Any = None) -> da.Array:
        """Return one level as a lazy dask array.

        Raises
        ------
        GridError
            If there is no such level.
        """
        return self._numbered(level).to_dask(chunks)

    def _numbered(self, number: int) -> Level:
        if not isinstance(number, int | np.integer):
            raise TypeError(
                f"level {number!r}: expected a number, 0 for the finest, or one of pixel_size= and "
                "shape=."
            )
        if not -len(self.levels) <= number < len(self.levels):
            raise GridError(f"{self.group.where}: no level {number}, it has {len(self.levels)}.")
        return self.levels[number]

    @takes_habits()
    def level(
        self,
        number: int | None = None,
        *,
        pixel_size: float | Mapping[str, float] | Sequence[float] | None = None,
        shape: int | Mapping[str, int] | Sequence[int] | None = None,
    ) -> Level:
        """Return a level: by its number, or the coarsest one that is still fine enough.

        The finest one if none is fine enough.

        Parameters
        ----------
        number
            Number of the level, 0 for the finest.
        pixel_size
            Maximum distance between pixels, in the units of the axes: for axes by name, for all
            axes or all of type space by position, or one number for all axes of type space.
        shape
            Minimum number of pixels: for axes by name or by position, or one number for the longest
            axis of type space.

        Raises
        ------
        GridError
            If there is no such level.
        ValueError
            If not exactly one of them is given, or an axis does not exist.
        """
        if [number, pixel_size, shape].count(None) != 2:
            raise ValueError("expected one of a number, pixel_size= and shape=.")
        if number is not None:
            return self._numbered(number)
        sizes, lengths = self._by_name(pixel_size), self._by_name(shape)
        fits = [
            level
            for level in self.levels
            if (
                self._is_sharp(level, sizes)
                if sizes is not None
                else self._is_large(level, lengths)
            )
        ]
        return min(fits, key=lambda level: level.array.size) if fits else self.levels[0]

    def _by_name(self, wanted: Any) -> Any:
        """Return numbers for axes by their names, if they are given by position."""
        if not isinstance(wanted, Sequence | np.ndarray):
            return wanted
        for names in (self.axes, self._space()):
            if len(wanted) == len(names):
                return dict(zip(names, wanted, strict=True))
        raise ValueError(
            f"{wanted!r}: expected one number for each of the axes {self.axes}, or for each of "
            f"{tuple(self._space())}."
        )

    def _is_sharp(self, level: Level, wanted: float | Mapping[str, float]) -> bool:
        if not isinstance(wanted, Mapping):
            wanted = dict.fromkeys(self._space(), wanted)
        # scales are stored as decimal fractions, so 0.1 * 2 * 2 must count as 0.4
        return all(abs(level.scale[self._at(n)]) <= size * _SLACK for n, size in wanted.items())

    def _is_large(self, level: Level, wanted: int | Mapping[str, int] | None) -> bool:
        if not isinstance(wanted, Mapping):
            return max(level.shape[self._at(name)] for name in self._space()) >= (wanted or 0)
        return all(level.shape[self._at(name)] >= size for name, size in wanted.items())

    def _space(self) -> list[str]:
        named = [axis.name for axis in self.multiscale.axes if axis.type == "space"]
        return named or list(self.axes[-2:])

    def _at(self, name: str) -> int:
        if name not in self.axes:
            raise ValueError(f"no axis {name!r} in {self.group.where}: it has {self.axes}.")
        return self.axes.index(name)

    def __getitem__(self, key: Any) -> NoReturn:
        raise TypeError(_SEVERAL_LEVELS)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:
        raise TypeError(_SEVERAL_LEVELS)  # NumPy would make an array of one object

    if not TYPE_CHECKING:  # a type checker knows which attributes there are

        def __getattr__(self, name: str) -> NoReturn:
            no_attribute("ome.Image", name, _HINTS, dir(type(self)))

    def __repr__(self) -> str:
        first = self.levels[0]
        return (
            f"<zarr_dask.ome.Image {self.group.where} {format_shape(first.shape, self.axes)} "
            f"{first.array.dtype}, {len(self.levels)} levels, OME-Zarr {self.metadata.version}>"
        )

    def _repr_html_(self) -> str:
        title = f"zarr_dask.ome.Image {self.group.where}"
        return image_html(title, self.metadata, self.multiscale, self.levels, self.labels.names)


_SLACK = 1 + 1e-9
_SEVERAL_LEVELS = (
    "an image has several levels: image.level(0)[...] reads pixels, image.levels[0] is a level "
    "with its scale."
)


@dataclass(frozen=True, eq=False)
class Labels(Mapping[str, Image]):
    """Label images of an image, by name; each is opened on demand."""

    image: Group
    """The group of the image."""
    writable: bool = False
    """True if their pixels may be written."""
    _opened: dict[str, Image] = field(default_factory=dict, repr=False)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the label images, in the order of the metadata."""
        node = find(self.image, "labels")
        if not isinstance(node, Group):
            return ()
        try:
            return from_attributes(node.attributes, where=node.where).labels or ()
        except MetadataError:
            return ()  # a group of that name without a list

    def __getitem__(self, name: str) -> Image:
        if name not in self.names:
            held = ", ".join(map(repr, self.names)) or "none"
            raise KeyError(f"{self.image.where} has no label image {name!r}; it has {held}.")
        if name not in self._opened:
            node = node_named(self.image, f"labels/{name}", "labels")
            self._opened[name] = image_of(_as_group(node), writable=self.writable)
        return self._opened[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"<zarr_dask.ome.Labels of {self.image.where}: {', '.join(self.names) or 'none'}>"


def node_named(group: Group, path: str, member: str) -> Array | Group:
    """Return the node that a field of a group's metadata names.

    Raises
    ------
    MetadataError
        If the path leads out of the group, or is not valid.
    NodeNotFoundError
        If there is no such node.
    """
    try:
        return group[path]
    except StoreKeyError as error:
        problem = ValidationProblem(member, path, "the path of a node below the group")
        raise MetadataError(group.where, [problem]) from error


def _as_group(node: Array | Group) -> Group:
    if isinstance(node, Group):
        return node
    raise NodeTypeError(f"{node.where} is an array, where an image of OME-Zarr, a group, must be.")


@takes_habits()
def open(
    url: Location | Group,
    path: str = "",
    *,
    mode: Literal["r", "r+"] = "r",
    multiscale: str | int = 0,
    storage_options: Mapping[str, Any] | None = None,
    read: ReadOptions | None = None,
) -> Image:
    """Open an image of OME-Zarr 0.4 or 0.5; one of 0.6 is read with a warning.

    Parameters
    ----------
    url, path
        The group that holds the levels, as for `zarr_dask.open_group`.
    mode
        ``"r+"`` to write as well: ``image.level(0)[...] = pixels`` also brings the coarser levels
        up to date.
    multiscale
        Name or number of the pyramid, if the group has several.
    storage_options, read
        As for `zarr_dask.open_group`.

    Returns
    -------
    Image
        The image, with its levels as arrays, and axes, scales, translations and units.

    Raises
    ------
    NodeTypeError
        If the group is a plate or holds several images; the message names them.
    OmeVersionError
        If the metadata are of another version.
    MetadataError
        If there are no OME-Zarr metadata, or levels and axes do not fit together.
    ReadOnlyError
        If it is to be written, and the store is open for reading only.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> scale = {"type": "scale", "scale": [0.5, 0.5]}
    >>> axes = [{"name": n, "type": "space", "unit": "micrometer"} for n in "yx"]
    >>> level = {"path": "0", "coordinateTransformations": [scale]}
    >>> ome = {"version": "0.5", "multiscales": [{"axes": axes, "datasets": [level]}]}
    >>> group = zd.create_group({}, attributes={"ome": ome})
    >>> _ = group.create_array("0", shape=(40, 30), dtype="u2", dimension_names=("y", "x"))
    >>> image = zd.ome.open(group)
    >>> image.levels[0].scale, image.levels[0].units
    ((0.5, 0.5), ('micrometer', 'micrometer'))
    >>> image.to_dask().shape
    (40, 30)
    """
    check_choice("mode", mode, Literal["r", "r+"])
    group = open_group(url, path, mode, storage_options=storage_options, read=read)
    if mode == "r+":
        check_writable(group.store, group.where)
    return image_of(group, multiscale, writable=mode == "r+")


def image_of(group: Group, multiscale: str | int = 0, *, writable: bool = False) -> Image:
    """Return the image in a group; see `open`."""
    metadata = from_attributes(group.meta.attributes, where=group.where)
    if writable and metadata.version not in SUPPORTED:
        raise OmeVersionError(group.where, metadata.version, SUPPORTED)
    if not metadata.multiscales:
        raise _no_image(group, metadata)
    chosen = _choose(metadata.multiscales, multiscale, group)
    if not chosen.datasets:
        raise MetadataError(group.where, [ValidationProblem("datasets", (), "at least one level")])
    found = _levels(group, chosen)
    levels = tuple(replace(one, place=(group, multiscale, i)) for i, one in enumerate(found))
    if writable:
        chain = _chain(group, metadata, chosen, levels)
        levels = tuple(replace(level, chain=chain) for level in levels)
    return Image(group, metadata, chosen, levels)


def _levels(group: Group, chosen: Multiscale) -> tuple[Level, ...]:
    """Return levels of one extent, also while an append changes their lengths one by one."""
    levels: tuple[Level, ...] = ()
    for _ in range(LOOKS):
        levels = tuple(_level(group, chosen, one, i) for i, one in enumerate(chosen.datasets))
        if _fit(levels):
            break
        lengths = lengths_around(group)
        before = tuple(replace(one, array=as_before(one.array, lengths)) for one in levels)
        if _fit(before):
            return before
    return levels


def _fit(levels: Sequence[Level]) -> bool:
    return not any(
        misfits(fine.shape, fine.scale, made.shape, made.scale) for fine, made in pairwise(levels)
    )


def _chain(
    group: Group, metadata: Metadata, multiscale: Multiscale, levels: Sequence[Level]
) -> LevelChain:
    return LevelChain(
        group,
        tuple(level.array for level in levels),
        tuple(level.scale for level in levels),
        tuple(axis.name for axis in multiscale.axes),
        multiscale.type,
        is_label=metadata.image_label is not None,
    )


def _no_image(group: Group, metadata: Metadata) -> Exception:
    if metadata.plate is not None:
        return NodeTypeError(f"{group.where} is a plate; zarr_dask.ome.open_plate opens it.")
    paths: list[str] = []
    if metadata.layout is not None:
        paths = series_of(group)
    elif metadata.well is not None:
        paths = [image.path for image in metadata.well.images]
    elif metadata.labels is not None:
        paths = list(metadata.labels)
    if paths:
        return NodeTypeError(
            f"{group.where} holds several images, {', '.join(paths[:_MOST_NAMED])}"
            f"{', ...' if len(paths) > _MOST_NAMED else ''}: path= names one of them."
        )
    return MetadataError(group.where, [ValidationProblem("multiscales", ABSENT, "an image")])


_MOST_NAMED = 20


def _choose(found: tuple[Multiscale, ...], wanted: str | int, group: Group) -> Multiscale:
    if isinstance(wanted, str):
        named = [one for one in found if one.name == wanted]
        if named:
            return named[0]
    elif 0 <= wanted < len(found):
        return found[wanted]
    names = [one.name for one in found]
    raise ValueError(f"multiscale={wanted!r}: {group.where} has {len(found)}, with names {names}.")


def _level(group: Group, multiscale: Multiscale, dataset: Dataset, number: int) -> Level:
    member = f"datasets[{number}]"
    try:
        array = node_named(group, dataset.path, f"{member}.path")
    except NodeNotFoundError as error:
        problem = ValidationProblem(f"{member}.path", dataset.path, "the path of an array")
        raise MetadataError(group.where, [problem]) from error
    if not isinstance(array, Array):
        raise NodeTypeError(f"{array.where} is a group, where {member} must be an array.")
    ndim = len(multiscale.axes)
    if array.ndim != ndim:
        expected = f"an array of {ndim} dimensions, as there are axes"
        raise MetadataError(group.where, [ValidationProblem(member, array.shape, expected)])
    scale, translation = (1.0,) * ndim, (0.0,) * ndim
    for one in (*dataset.transformations, *(multiscale.transformations or ())):
        vector = _vector(one, ndim, member, group)
        if one.type == "scale":
            scale = tuple(a * b for a, b in zip(scale, vector, strict=True))
            translation = tuple(a * b for a, b in zip(translation, vector, strict=True))
        elif one.type == "translation":
            translation = tuple(a + b for a, b in zip(translation, vector, strict=True))
    names = tuple(axis.name for axis in multiscale.axes)
    units = tuple(axis.unit for axis in multiscale.axes)
    return Level(array, names, scale, translation, units)


def _vector(one: Transformation, ndim: int, member: str, group: Group) -> tuple[float, ...]:
    """Return the numbers of a transformation, without which pixels have no position."""
    if one.type == "identity":
        return (0.0,) * ndim
    numbers = {"scale": one.scale, "translation": one.translation}.get(one.type)
    if numbers is None or len(numbers) != ndim or not all(map(is_finite, numbers)):
        expected = f"a scale or a translation with one finite number for each of {ndim} axes"
        field_name = f"{member}.coordinateTransformations"
        raise MetadataError(
            group.where, [ValidationProblem(field_name, (one.type, numbers), expected)]
        )
    return tuple(map(float, numbers))
