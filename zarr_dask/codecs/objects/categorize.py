"""``categorize`` of the numcodecs package, for texts of any length: numbers in place of labels.

A text is replaced by its position in a list of labels, counted from 1. 0 stands for every other
text and is read as the empty one. For texts of a fixed length, the same codec is a filter from
bytes to bytes (`zarr_dask.codecs.numcodecs`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np

from zarr_dask.codecs.base import Codec
from zarr_dask.codecs.objects.object_arrays import ObjectSerializer
from zarr_dask.errors import CorruptObjectError, DataTypeError
from zarr_dask.grid.grid import Shape
from zarr_dask.stores.base import Buffer

__all__ = ["Categorize"]


@dataclass(frozen=True)
class Categorize(ObjectSerializer):
    """Texts as numbers.

    Parameters
    ----------
    labels
        The texts that have a number.
    astype
        Type string of the stored numbers.
    """

    labels: tuple[str, ...]
    astype: str = "|u1"
    name: ClassVar[str] = "categorize"
    element: ClassVar[str] = "string"

    @classmethod
    def from_numcodecs(
        cls,
        name: str,  # noqa: ARG003
        config: dict[str, Any],
        dtype: str | None,  # noqa: ARG003
    ) -> Codec:
        """See `Codec.from_numcodecs`."""
        labels, astype = config.pop("labels"), config.pop("astype", "|u1")
        stored = config.pop("dtype", "|O")
        if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
            raise ValueError(f"labels are {labels!r:.80}, not a list of texts")
        made = np.dtype(astype) if isinstance(astype, str) else None
        if made is None or made.kind not in "iu" or len(labels) > np.iinfo(made).max:
            raise ValueError(f"astype is {astype!r}, not integers that count {len(labels)} labels")
        if stored not in {"|O", "O", "object"}:
            raise ValueError(f"dtype is {stored!r}, but the array is of objects")
        return cls(tuple(labels), made.str)

    def configuration(self) -> dict[str, Any]:
        """See `Codec.configuration`; in the spelling of numcodecs."""
        return {"labels": list(self.labels), "dtype": "|O", "astype": self.astype}

    def encode_elements(self, array: np.ndarray) -> Buffer:
        """See `ObjectSerializer.encode_elements`."""
        numbers = {label: number for number, label in enumerate(self.labels, 1)}
        try:
            codes = [numbers.get(text, 0) for text in array.reshape(-1).tolist()]
        except TypeError as error:  # lists cannot be looked up
            raise DataTypeError(f"{self.name!r} stores texts only ({error}).") from error
        return np.array(codes, self.astype).tobytes()

    def decode_elements(self, buffer: memoryview, shape: Shape, most: int) -> np.ndarray:  # noqa: ARG002
        """See `ObjectSerializer.decode_elements`; a number without a label is read as 0."""
        raw = np.frombuffer(buffer, np.uint8)
        stored = np.dtype(self.astype)
        if raw.size != prod(shape) * stored.itemsize:
            raise CorruptObjectError(
                f"it has {raw.size} bytes, but {prod(shape)} {self.name} elements have "
                f"{prod(shape) * stored.itemsize}"
            )
        codes = raw.view(stored)
        known = np.where((codes > 0) & (codes <= len(self.labels)), codes, 0).astype(np.intp)
        return np.array(["", *self.labels], object)[known]
