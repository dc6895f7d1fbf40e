"""Data types of other packages by their names in metadata."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from zarr_dask._util.class_registry import Registry
from zarr_dask.dtypes.base import DataType

__all__ = ["DATA_TYPES", "register_data_type"]

_Class = TypeVar("_Class", bound=type[DataType])


def _check(name: str, cls: Any) -> None:
    """Raise for what is no data type."""
    if not (isinstance(cls, type) and issubclass(cls, DataType)):
        raise TypeError(
            f"data type {name!r}: {cls!r} is no class derived from zarr_dask.dtypes.DataType."
        )
    missing = sorted(getattr(cls, "__abstractmethods__", ()))
    if missing:
        raise TypeError(f"data type {name!r}: {cls.__qualname__} has no {', '.join(missing)}.")
    try:
        np.dtype(name)
    except TypeError:
        return
    raise ValueError(
        f"data type {name!r} is a type of NumPy: choose another name, such as 'yourpackage.{name}'."
    )


DATA_TYPES = Registry("data type", "zarr_dask.data_types", {}, _check)
"""Data types of other packages; those of this package are in `zarr_dask.dtypes.named`."""


def register_data_type(name: str, cls: _Class) -> _Class:
    """Make a data type known by its name, in this process; only v3 metadata can have it.

    Where other processes read or write as well, list the class in an installed package instead,
    under the entry points ``zarr_dask.data_types``, by its name.

    Parameters
    ----------
    name
        The name in metadata.
    cls
        A frozen dataclass derived from `zarr_dask.dtypes.DataType`. Its class method
        ``from_config(name, config)`` gives the type; stored elements are those of its NumPy type.

    Returns
    -------
    type
        The class.

    Raises
    ------
    TypeError, ValueError
        If it cannot be used, or the name belongs to another class.

    Examples
    --------
    >>> import numpy as np
    >>> import zarr_dask as zd
    >>> from zarr_dask.dtypes import DataType
    >>> class Degrees(DataType):
    ...     @classmethod
    ...     def from_config(cls, name, config):
    ...         return cls(name, np.dtype("float32"))
    ...     def from_json(self, value):
    ...         return self.scalar(value)
    ...     def to_json(self, value):
    ...         return float(value)
    ...     def scalar(self, value):
    ...         return np.asarray(value, self.dtype)
    >>> cls = zd.register_data_type("example.angles", Degrees)
    >>> a = zd.create_array({}, shape=3, dtype="example.angles", fill_value=-5)
    >>> zd.open(a.store)[...].tolist()
    [-5.0, -5.0, -5.0]
    """
    DATA_TYPES.register(name, cls)
    return cls
