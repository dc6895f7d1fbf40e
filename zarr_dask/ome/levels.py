"""One resolution of an image: its array, and the position of its pixels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from zarr_dask._util.display import format_shape
from zarr_dask._util.keywords import takes_habits
from zarr_dask.array.array import Array
from zarr_dask.array.common_names import no_attribute, values_hint
from zarr_dask.errors import GridError, ReadOnlyError
from zarr_dask.hierarchy.group import Group
from zarr_dask.ome.coarser import LevelChain

if TYPE_CHECKING:
    import dask.array as da

__all__ = ["Level"]


@dataclass(frozen=True, eq=False)
class Level:
    """One resolution of an image."""

    array: Array
    """The stored array."""
    axes: tuple[str, ...]
    """Names of the axes, in the order of the dimensions."""
    scale: tuple[float, ...]
    """Distance between pixels along each axis, in `units`."""
    translation: tuple[float, ...]
    """Position of the first pixel along each axis, in `units`."""
    units: tuple[str | None, ...]
    """Unit of each axis; None if it has none."""
    chain: LevelChain | None = field(default=None, repr=False)
    """The levels of the image, if it is open for writing."""
    place: tuple[Group, str | int, int] | None = field(default=None, repr=False)
    """The group of the image, its pyramid, and the number of the level."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of pixels along each axis."""
        return self.array.shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.array.ndim

    @property
    def dtype(self) -> np.dtype[Any]:
        """Data type of the pixels."""
        return self.array.dtype

    def __getitem__(self, key: Any) -> Any:
        """Read pixels by NumPy's indexing."""
        return self.array[key]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Read all pixels."""
        return self.array.__array__(dtype, copy)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Write pixels of level 0, and bring those of the coarser levels up to date.

        Raises
        ------
        GridError
            If this is not level 0.
        ReadOnlyError
            If the image is open for reading only.
        """
        if self.chain is None:
            raise ReadOnlyError(
                f"{self.array.where} is open for reading only; open the image with "
                "zarr_dask.ome.open(url, mode='r+')."
            )
        if self.chain.arrays[0] is not self.array:
            raise GridError(
                f"{self.array.where} is a coarser level, which follows from level 0: write to "
                "level 0, and this one is brought up to date."
            )
        self.chain.put(key, value)

    @takes_habits()
    def to_dask(self, chunks: Any = None) -> da.Array:
        """Return the pixels as a lazy dask array; `chunks` as for `zarr_dask.Array.to_dask`.

        Axes may be named: ``to_dask({"z": 1, "y": "auto"})``.
        """
        if isinstance(chunks, Mapping):
            chunks = {self._axis(key): value for key, value in chunks.items()}
        return self.array.to_dask(chunks)

    def _axis(self, key: Any) -> Any:
        return self.axes.index(key) if key in self.axes else key

    if not TYPE_CHECKING:  # a type checker knows which attributes there are

        def __getattr__(self, name: str) -> NoReturn:
            known = f"level.array.{name} has it." if hasattr(Array, name) else None
            hints = {name: known} if known else values_hint(name, "level")
            no_attribute("ome.Level", name, hints, dir(type(self)))

    def __repr__(self) -> str:
        shape = format_shape(self.shape, self.axes)
        return f"<zarr_dask.ome.Level {self.array.where} {shape} {self.array.dtype}>"
