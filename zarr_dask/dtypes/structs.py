"""``struct``: elements of named fields, one after the other without padding."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from zarr_dask.dtypes.base import DataType
from zarr_dask.dtypes.bits import leaves, swappable
from zarr_dask.dtypes.fixed import bytes_from_json

_LABEL = 60
"""Most characters of field names in a message."""

__all__ = ["Struct", "Subarray", "struct_of"]


@dataclass(frozen=True)
class Struct(DataType):
    """Records of fields, each with a data type."""

    fields: tuple[tuple[str, DataType], ...]
    """Names and data types in order."""
    legacy: bool = field(default=False, compare=False, repr=False)
    """True if it was read under its old name ``structured``, which allows more."""

    @property
    def label(self) -> str:
        """See `DataType.label`."""
        names = ", ".join(name for name, _ in self.fields)
        return f"struct of {names if len(names) <= _LABEL else f'{len(self.fields)} fields'}"

    @property
    def zero(self) -> np.ndarray:
        """See `DataType.zero`: of each field."""
        return self._of({name: item.zero for name, item in self.fields})

    def document(self) -> dict[str, Any]:
        """See `DataType.document`; Zarr v3 has no fields that are arrays."""
        fields = [{"name": name, "data_type": item.document()} for name, item in self.fields]
        return self.described(fields=fields)

    def from_json(self, value: Any) -> np.ndarray:
        """See `DataType.from_json`: an object with a value for every field."""
        if not isinstance(value, Mapping):
            raise ValueError(f"{str(value)[:60]!r} is not an object with a value for every field")
        names = [name for name, _ in self.fields]
        if set(value) != set(names):
            raise ValueError(f"an object of {sorted(value)} where the fields are {names}")
        return self._of({name: item.from_json(value[name]) for name, item in self.fields})

    def to_json(self, value: np.ndarray) -> dict[str, Any]:
        """See `DataType.to_json`."""
        return {name: item.to_json(value[name].copy()) for name, item in self.fields}

    def from_packed(self, value: Any, order: Literal["<", ">"]) -> np.ndarray:
        """Return a 0-d array from the base64 of its bytes, as in the older formats.

        Parameters
        ----------
        value
            Base64, or a list of integers.
        order
            Byte order of the fields: little or big.

        Raises
        ------
        ValueError
            If it is neither, or has another number of bytes.
        """
        found = bytes_from_json(value)
        if len(found) != self.dtype.itemsize:
            raise ValueError(f"{len(found)} bytes where an element has {self.dtype.itemsize}")
        memory = swappable(self.dtype)
        packed = np.frombuffer(found, memory.newbyteorder(order)).reshape(())
        return packed.astype(memory).view(self.dtype)

    def scalar(self, value: Any) -> np.ndarray:
        """See `DataType.scalar`: a NumPy record, a mapping of all fields, or a sequence of them."""
        same = self.same(value)
        if same is not None:
            return same
        if isinstance(value, np.ndarray | np.void) and value.dtype.names is not None:
            value = [value[name] for name in value.dtype.names]
        names = [name for name, _ in self.fields]
        if isinstance(value, Mapping):
            if set(value) != set(names):
                raise ValueError(f"{sorted(map(str, value))} where the fields are {names}")
            value = [value[name] for name in names]
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            raise TypeError(f"{value!r} is not a record of {names}")
        if len(value) != len(names):
            raise ValueError(f"{len(value)} values where the fields are {names}")
        pairs = zip(self.fields, value, strict=True)
        return self._of({name: item.scalar(one) for (name, item), one in pairs})

    def cast(self, values: Any) -> np.ndarray:
        """See `DataType.cast`: field by field if NumPy would let times wrap around."""
        if not _has_times(self.dtype):
            return super().cast(values)
        if hasattr(values, "__array__"):
            array = np.asarray(values)
            if array.dtype.kind not in "OSTU":
                return self._of_fields(array)
            result = np.empty(array.size, self.dtype)
            for row, value in enumerate(array.ravel().tolist()):
                result[row] = self.cast(value)
            return result.reshape(array.shape)
        if isinstance(values, list):  # as in NumPy: lists are dimensions, tuples are records
            if values and all(isinstance(item, tuple) for item in values):
                return self._of_records(values)
            return np.stack([self.cast(item) for item in values]) if values else self.zero[None][:0]
        return self._of_records([values if isinstance(values, tuple) else None], values).reshape(())

    def _of_fields(self, array: np.ndarray) -> np.ndarray:
        """Return an array, cast: fields by their position, or one value for all of them."""
        names = array.dtype.names or [None] * len(self.fields)
        if len(names) != len(self.fields):
            raise TypeError(f"{len(names)} fields where {self.label} has {len(self.fields)}")
        result = np.empty(array.shape, self.dtype)
        for (name, item), other in zip(self.fields, names, strict=True):
            part = item.cast(array if other is None else array[other])
            inside = result[name].ndim - part.ndim  # one value for a whole field that is an array
            result[name] = part.reshape(part.shape + (1,) * inside)
        return result

    def _of_records(self, records: Sequence[Any], everywhere: Any = None) -> np.ndarray:
        """Return an array of tuples, cast by field; for None, all fields are `everywhere`."""
        result = np.empty(len(records), self.dtype)
        for record in records:
            if record is not None and len(record) != len(self.fields):
                raise ValueError(f"{len(record)} values where {self.label} has {len(self.fields)}")
        for position, (name, item) in enumerate(self.fields):
            column = [everywhere if one is None else one[position] for one in records]
            if isinstance(item, Struct | Subarray):
                for row, value in enumerate(column):
                    result[name][row] = item.cast(value)
            else:
                result[name] = item.cast(column)
        return result

    def _of(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        result = np.zeros((), self.dtype)
        for name, value in values.items():
            result[name] = value
        return result


@dataclass(frozen=True)
class Subarray(DataType):
    """A field that is an array of a fixed shape; only v2 has these."""

    element: DataType
    """The data type of the array's elements."""

    @property
    def zero(self) -> np.ndarray:
        """See `DataType.zero`: an array of the field's shape."""
        return np.full(self.dtype.shape, self.element.zero, self.dtype.base)

    def document(self) -> str:
        """See `DataType.document`; Zarr v3 has no such type."""
        raise ValueError("Zarr v3 has no fields that are arrays")

    def from_json(self, value: Any) -> np.ndarray:
        """See `DataType.from_json`: nested lists."""
        return self._of(value, self.element.from_json)

    def to_json(self, value: np.ndarray) -> Any:
        """See `DataType.to_json`: nested lists."""
        return _lists(value, self.element)

    def scalar(self, value: Any) -> np.ndarray:
        """See `DataType.scalar`: an array or nested lists."""
        return self._of(value, self.element.scalar)

    def cast(self, values: Any) -> np.ndarray:
        """See `DataType.cast`: the elements, or one value for all of them."""
        return self.element.cast(list(values) if isinstance(values, tuple) else values)

    def _of(self, value: Any, element: Any) -> np.ndarray:
        result = np.empty(self.dtype.shape, self.dtype.base)
        for index in np.ndindex(self.dtype.shape):
            item = value
            for depth, position in enumerate(index):
                if len(item) != self.dtype.shape[depth]:
                    raise ValueError(f"{value!r} has not the shape {self.dtype.shape}")
                item = item[position]
            result[index] = element(item)
        return result


def _has_times(dtype: np.dtype[Any]) -> bool:
    return any(part.base.kind in "mM" for _, part in leaves(dtype))


def _lists(value: np.ndarray, element: DataType) -> Any:
    if not value.ndim:
        return element.to_json(value.copy())
    return [_lists(item, element) for item in (value[i, ...] for i in range(len(value)))]


def struct_of(fields: Sequence[tuple[str, DataType]], *, legacy: bool = False) -> Struct:
    """Return the struct of some fields; equal data types share an object, for small pickles."""
    shared: dict[bytes, DataType] = {}
    fields = [(name, shared.setdefault(pickle.dumps(item), item)) for name, item in fields]
    names, formats = [name for name, _ in fields], [item.dtype for _, item in fields]
    dtype: np.dtype[Any] = np.dtype({"names": names, "formats": formats})
    return Struct("struct", dtype, tuple(fields), legacy)
