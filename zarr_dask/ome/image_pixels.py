"""Pixels of an image with their place and meaning: parts and projections that `write` takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np

from zarr_dask._util.display import format_shape
from zarr_dask.array.common_names import no_attribute
from zarr_dask.errors import GridError, MetadataError, ValidationProblem
from zarr_dask.indexing.basic import parse_basic
from zarr_dask.ome.build_metadata import AxesAndTransforms
from zarr_dask.ome.images import LabelImage
from zarr_dask.ome.model import Channel, ImageLabel, Metadata

if TYPE_CHECKING:
    from zarr_dask.ome.levels import Level

__all__ = ["ImagePixels", "labelled", "pixels_of"]


_HINTS = {
    **dict.fromkeys(
        ("compute", "data", "load", "numpy", "to_numpy"),
        "numpy.asarray(pixels) reads them, pixels.to_dask() opens them lazily.",
    ),
    **dict.fromkeys(
        ("level", "levels", "save", "to_zarr", "write"),
        "zarr_dask.ome.write(pixels, url) writes them, with all levels.",
    ),
    **dict.fromkeys(
        ("scale", "translation", "units"), "pixels.frame has scale, translation and axes."
    ),
    **dict.fromkeys(("mean", "min", "std", "sum"), "pixels.to_dask() has all reductions."),
}
"""Attributes of arrays and images elsewhere, and what to write instead."""


@dataclass(frozen=True, eq=False)
class ImagePixels:
    """Pixels of one resolution, their place, channels and label images; made by `Image.crop`."""

    values: Any
    """A `zarr_dask.Array`, or a dask array of a part or a projection."""
    frame: AxesAndTransforms
    """Axes, distances between pixels, and position of the first one."""
    channels: Sequence[Channel | Mapping[str, Any]] | None
    """Display settings of the channels."""
    labels: Mapping[str, LabelImage]
    """Label images by name."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of pixels along each axis."""
        shape: tuple[int, ...] = tuple(self.values.shape)
        return shape

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the axes."""
        return self.frame.names

    def __repr__(self) -> str:
        shape = format_shape(self.shape, self.axes)
        return f"<zarr_dask.ome.ImagePixels {shape} {self.values.dtype}>"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.values, dtype=dtype, copy=copy)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Data type of the pixels."""
        dtype: np.dtype[Any] = self.values.dtype
        return dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def to_dask(self) -> Any:
        """Return the pixels as a lazy dask array."""
        return _lazy(self.values)

    if not TYPE_CHECKING:  # a type checker knows which attributes there are

        def __getattr__(self, name: str) -> NoReturn:
            no_attribute("ome.ImagePixels", name, _HINTS, dir(type(self)))

    def options(self) -> dict[str, Any]:
        """Return what `zarr_dask.ome.plan_write` is told of the pixels."""
        frame = self.frame
        told = {"axes": frame.axes, "scale": frame.scale, "translation": frame.translation}
        return {**told, "channels": self.channels, "labels": self.labels or None}

    def crop(self, **index: slice | int | str) -> Self:
        """Return a part of the pixels, and of the label images.

        Parameters
        ----------
        **index
            Pixels by name of the axis: slices, or integers, which leave the axis out. A channel can
            be named by its label.

        Raises
        ------
        GridError
            If a slice has another step than 1, or holds no pixel.
        MetadataError
            If there is no such axis or channel.
        SelectionError
            If an index is out of range.
        """
        at = [self._axis(name) for name in index]
        chosen = [
            self._channel(axis, one) if isinstance(one, str) else one
            for axis, one in zip(at, index.values(), strict=True)
        ]
        if any(isinstance(one, slice) and one.step not in (None, 1) for one in chosen):
            raise GridError(f"crop of {index}: a part has all pixels between its ends, step 1.")
        whole: list[Any] = [slice(None)] * len(self.shape)
        for axis, one in zip(at, chosen, strict=True):
            whole[axis] = one
        region = parse_basic(tuple(whole), self.shape).region
        empty = [axis for axis in at if region[axis].start >= region[axis].stop]
        if empty:
            lengths = {self.axes[axis]: self.shape[axis] for axis in empty}
            raise GridError(f"crop of {index}: no pixel lies there, the image has {lengths}.")
        starts = zip(self.frame.translation, self.frame.scale, region, strict=True)
        moved = tuple(origin + size * one.start for origin, size, one in starts)
        channels = self.channels
        for axis, one in zip(at, chosen, strict=True):
            if channels is not None and self.frame.axes[axis].type == "channel":
                channels = channels[one] if isinstance(one, slice) else (channels[one],)
        kept = [i for i, one in enumerate(whole) if isinstance(one, slice)]
        labels = {
            name: self._cropped(label, dict(zip(self.axes, whole, strict=True)))
            for name, label in self.labels.items()
        }
        frame = replace(self.frame, translation=moved)
        values = _lazy(self.values)[tuple(whole)]
        return replace(
            self, values=values, frame=_taken(frame, kept), channels=channels, labels=labels
        )

    def _cropped(self, label: LabelImage, index: Mapping[str, Any]) -> LabelImage:
        """Return a part of a label image; an axis of one pixel for all of the image stays."""
        lengths = dict(zip(self.axes, self.shape, strict=True))
        single = {
            name
            for name, length in zip(label.axes, label.values.shape, strict=True)
            if length != lengths[name]
        }
        own = [
            (slice(None) if isinstance(index[name], slice) else 0)
            if name in single
            else index[name]
            for name in label.axes
        ]
        axes = [name for name, one in zip(label.axes, own, strict=True) if isinstance(one, slice)]
        return replace(label, values=_lazy(label.values)[tuple(own)], axes=axes)

    def max(self, axis: str) -> Self:
        """Return the maximum projection along an axis, also of the label images.

        Channels cannot be projected.

        Raises
        ------
        MetadataError
            If there is no such axis, or it is that of the channels.
        """
        at = self._axis(axis)
        if self.frame.axes[at].type == "channel":
            problem = ValidationProblem("axis", axis, "an axis of space or time")
            raise MetadataError("max", [problem])
        labels = {
            name: replace(
                label,
                values=_lazy(label.values).max(label.axes.index(axis)),
                axes=[one for one in label.axes if one != axis],
            )
            if axis in label.axes
            else label
            for name, label in self.labels.items()
        }
        kept = [i for i in range(len(self.shape)) if i != at]
        values = _lazy(self.values).max(at)
        return replace(self, values=values, frame=_taken(self.frame, kept), labels=labels)

    def _channel(self, axis: int, label: str) -> int:
        """Return the number of a channel by its label."""
        known = self.channels or () if self.frame.axes[axis].type == "channel" else ()
        labels = [one.label if isinstance(one, Channel) else one.get("label") for one in known]
        if label not in labels:
            expected = (
                f"a slice, an integer, or the label of a channel, of which there are {labels}"
            )
            raise MetadataError("image", [ValidationProblem(self.axes[axis], label, expected)])
        return labels.index(label)

    def _axis(self, name: str) -> int:
        if name not in self.axes:
            problem = ValidationProblem("axis", name, f"one of the axes {list(self.axes)}")
            raise MetadataError("image", [problem])
        return self.axes.index(name)


def _taken(frame: AxesAndTransforms, kept: list[int]) -> AxesAndTransforms:
    def of(values: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(values[i] for i in kept)

    return AxesAndTransforms(of(frame.axes), of(frame.scale), of(frame.translation))


def _lazy(values: Any) -> Any:
    return values.to_dask() if hasattr(values, "to_dask") else values


def pixels_of(
    level: Level, axes: tuple[Any, ...], metadata: Metadata, labels: Mapping[str, LabelImage]
) -> ImagePixels:
    """Return the pixels of a level of an image."""
    channels = None if metadata.omero is None else metadata.omero.channels
    frame = AxesAndTransforms(axes, level.scale, level.translation)
    return ImagePixels(level.array, frame, channels, labels)


def labelled(level: Level, meaning: ImageLabel | None) -> LabelImage:
    """Return a level of a label image with the meaning of its values."""
    colors = () if meaning is None else meaning.colors or ()
    properties = () if meaning is None else meaning.properties or ()
    known: Mapping[int, Any] = {one.value: one.rgba for one in colors if one.rgba is not None}
    return LabelImage(
        level.array,
        list(level.axes),
        known or None,
        {one.value: one.extra for one in properties} or None,
    )
