"""Python objects as a list: ``json2``, ``msgpack2`` and ``pickle``, object codecs of Zarr v2.

The bytes are the same as those of the numcodecs package. A pickle runs code of its author: `Pickle`
is a codec like the others, but `object_serializer_from_numcodecs` in
`zarr_dask.codecs.registry_numcodecs` creates one only if the reader has opted in.
"""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass
from itertools import chain as concatenated
from math import prod
from typing import Any, ClassVar

import numpy as np

from zarr_dask.codecs.base import Codec
from zarr_dask.codecs.compress.compressor import take_int
from zarr_dask.codecs.objects.object_arrays import OBJECT, WIDEST, ObjectSerializer, too_large
from zarr_dask.errors import CorruptObjectError, DataTypeError
from zarr_dask.grid.grid import Shape
from zarr_dask.stores.base import Buffer

__all__ = ["Json2", "Msgpack2", "Pickle"]

# --- nested lists ---------------------------------------------------------------------------------


def _nested(array: np.ndarray) -> list[Any]:
    """Return the data of json2 and msgpack2: the rows of the array, its type string, its shape."""
    return [*np.atleast_1d(array).tolist(), OBJECT.str, list(array.shape)]


def _flat(name: str, items: Any, shape: Shape) -> np.ndarray:
    """Return the elements of nested lists made by `_nested`."""
    stored = _stored_shape(name, items)
    count = prod(shape)
    if prod(stored) != count:
        raise CorruptObjectError(
            f"its {name} holds an array of shape {stored}, not one of {list(shape)}"
        )
    rows: list[Any] = items[:-2] if count else []
    for length in stored[1:] if count else ():
        if not all(isinstance(row, list) and len(row) == length for row in rows):
            raise CorruptObjectError(f"its {name} rows are not those of an array of {stored}")
        rows = list(concatenated.from_iterable(rows))
    if len(rows) != count:
        raise CorruptObjectError(f"its {name} holds {len(rows)} elements, not {count}")
    elements = np.empty(count, OBJECT)
    for position, item in enumerate(rows):
        elements[position] = item
    return elements


_MOST_DIMENSIONS = 64  # NumPy's own limit


def _stored_shape(name: str, items: Any) -> list[int]:
    """Return the shape at the end of the list, after the data type."""
    if not isinstance(items, list) or len(items) < 2 or not isinstance(items[-2], str):
        raise CorruptObjectError(f"its {name} is no list that ends in a data type and a shape")
    stored = items[-1]
    if (
        not isinstance(stored, list)
        or len(stored) > _MOST_DIMENSIONS
        or not all(type(length) is int and 0 <= length < 1 << 63 for length in stored)
    ):
        raise CorruptObjectError(f"its {name} list does not end in a shape")
    return stored


@dataclass(frozen=True)
class Json2(ObjectSerializer):
    """A JSON list: the rows of the chunk, its data type and its shape.

    The parameters are those of numcodecs, which passes them to Python's `json`.
    """

    encoding: str = "utf-8"
    skipkeys: bool = False
    ensure_ascii: bool = True
    check_circular: bool = True
    allow_nan: bool = True
    sort_keys: bool = True
    indent: int | None = None
    separators: tuple[str, str] = (",", ":")
    strict: bool = True
    name: ClassVar[str] = "json2"
    element: ClassVar[str] = "object"

    @classmethod
    def from_numcodecs(cls, name: str, config: dict[str, Any], dtype: str | None) -> Codec:  # noqa: ARG003
        """See `Codec.from_numcodecs`."""
        encoding = config.pop("encoding", "utf-8")
        if encoding not in _ENCODINGS:
            raise ValueError(f"encoding is {encoding!r}, not one of {list(_ENCODINGS)}")
        indent = config.pop("indent", None)
        if indent is not None and (type(indent) is not int or indent not in range(17)):
            raise ValueError(f"indent is {indent!r}, not null or an integer from 0 to 16")
        separators = config.pop("separators", None)
        if separators is None:
            separators = [",", ":"] if indent is None else [", ", ": "]
        item, key = separators
        if not isinstance(item, str) or not isinstance(key, str):
            raise ValueError(f"separators are {separators!r}, not two texts")
        return cls(
            encoding,
            _flag(config, "skipkeys", default=False),
            _flag(config, "ensure_ascii", default=True),
            _flag(config, "check_circular", default=True),
            _flag(config, "allow_nan", default=True),
            _flag(config, "sort_keys", default=True),
            indent,
            (item, key),
            _flag(config, "strict", default=True),
        )

    def configuration(self) -> dict[str, Any]:
        """See `Codec.configuration`; in the spelling of numcodecs."""
        return {"encoding": self.encoding, **self._written, "strict": self.strict}

    @property
    def _written(self) -> dict[str, Any]:
        return {
            "skipkeys": self.skipkeys,
            "ensure_ascii": self.ensure_ascii,
            "check_circular": self.check_circular,
            "allow_nan": self.allow_nan,
            "indent": self.indent,
            "separators": list(self.separators),
            "sort_keys": self.sort_keys,
        }

    def encode_elements(self, array: np.ndarray) -> Buffer:
        """See `ObjectSerializer.encode_elements`."""
        try:
            return json.JSONEncoder(**self._written).encode(_nested(array)).encode(self.encoding)
        except (TypeError, ValueError, RecursionError) as error:
            raise DataTypeError(f"the chunk has elements that are not JSON ({error}).") from error

    def decode_elements(self, buffer: memoryview, shape: Shape, most: int) -> np.ndarray:
        """See `ObjectSerializer.decode_elements`."""
        encoded = bytes(buffer)
        wide = 1 if encoded.isascii() else WIDEST
        values = sum(map(encoded.count, (b",", b"[", b"{", b":")))
        # the text, the texts in it, and the values
        estimate = 2 * wide * len(encoded) + _VALUE_BYTES * values
        if estimate > most:
            raise too_large(self.name, estimate, most)
        try:
            items = json.JSONDecoder(strict=self.strict).decode(encoded.decode(self.encoding))
        except (ValueError, RecursionError) as error:
            raise CorruptObjectError(f"{self.name} cannot decode it ({error!s:.200})") from error
        return _flat(self.name, items, shape)


_VALUE_BYTES = 72  # an empty list or object, and the reference to it


@dataclass(frozen=True)
class Msgpack2(ObjectSerializer):
    """A MessagePack list: the rows of the chunk, its data type and its shape.

    Parameters
    ----------
    raw
        Read texts as bytes.
    use_single_float
        Write floats in four bytes.
    use_bin_type
        Write bytes as such, and not as texts.
    """

    raw: bool = False
    use_single_float: bool = False
    use_bin_type: bool = True
    name: ClassVar[str] = "msgpack2"
    element: ClassVar[str] = "object"

    @classmethod
    def from_numcodecs(cls, name: str, config: dict[str, Any], dtype: str | None) -> Codec:  # noqa: ARG003
        """See `Codec.from_numcodecs`."""
        return cls(
            _flag(config, "raw", default=False),
            _flag(config, "use_single_float", default=False),
            _flag(config, "use_bin_type", default=True),
        )

    def configuration(self) -> dict[str, Any]:
        """See `Codec.configuration`; in the spelling of numcodecs."""
        return {
            "raw": self.raw,
            "use_single_float": self.use_single_float,
            "use_bin_type": self.use_bin_type,
        }

    def encode_elements(self, array: np.ndarray) -> Buffer:
        """See `ObjectSerializer.encode_elements`."""
        import msgpack

        try:
            encoded: bytes = msgpack.packb(
                _nested(array),
                use_bin_type=self.use_bin_type,
                use_single_float=self.use_single_float,
            )
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise DataTypeError(
                f"the chunk has elements that are not MessagePack ({error})."
            ) from error
        return encoded

    def decode_elements(self, buffer: memoryview, shape: Shape, most: int) -> np.ndarray:
        """See `ObjectSerializer.decode_elements`."""
        import msgpack

        estimate = WIDEST * len(buffer) + _VALUE_BYTES * _count_of_headers(buffer)
        if estimate > most:
            raise too_large(self.name, estimate, most)
        reader = {"raw": self.raw, "max_buffer_size": max(len(buffer), 1), "strict_map_key": False}
        try:
            # values are counted before lists of the claimed lengths are allocated
            scan = msgpack.Unpacker(**reader)
            scan.feed(buffer)
            scan.skip()
            if scan.tell() != len(buffer):
                raise CorruptObjectError(
                    f"its {self.name} list takes {scan.tell()} bytes, but it has {len(buffer)}"
                )
            items = msgpack.unpackb(buffer, raw=self.raw, strict_map_key=False)
        except (ValueError, TypeError, msgpack.OutOfData, msgpack.UnpackException) as error:
            if isinstance(error, CorruptObjectError):
                raise
            raise CorruptObjectError(f"{self.name} cannot decode it ({error!s:.200})") from error
        if self.raw and isinstance(items, list) and len(items) > 1 and isinstance(items[-2], bytes):
            items[-2] = items[-2].decode("latin-1")
        return _flat(self.name, items, shape)


def _count_of_headers(buffer: memoryview) -> int:
    """Return a bound for the number of multi-byte values: their first byte has its top bit set."""
    raw = np.frombuffer(buffer, np.uint8)
    slab = 1 << 20
    return sum(int((raw[at : at + slab] >> 7).sum()) for at in range(0, raw.size, slab))


# --- any Python objects ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Pickle(ObjectSerializer):
    """The chunk as a Python pickle. Decoding runs code: only for readers who have opted in.

    Parameters
    ----------
    protocol
        Protocol of the pickles that it writes.
    """

    protocol: int = pickle.HIGHEST_PROTOCOL
    name: ClassVar[str] = "pickle"
    element: ClassVar[str] = "object"

    @classmethod
    def from_numcodecs(cls, name: str, config: dict[str, Any], dtype: str | None) -> Codec:  # noqa: ARG003
        """See `Codec.from_numcodecs`."""
        return cls(take_int(config, "protocol", 5, range(6)))

    def configuration(self) -> dict[str, Any]:
        """See `Codec.configuration`; in the spelling of numcodecs."""
        return {"protocol": self.protocol}

    def encode_elements(self, array: np.ndarray) -> Buffer:
        """See `ObjectSerializer.encode_elements`."""
        try:
            return pickle.dumps(np.ascontiguousarray(array), protocol=self.protocol)
        except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
            raise DataTypeError(
                f"the chunk has elements that no pickle holds ({error})."
            ) from error

    def decode_elements(self, buffer: memoryview, shape: Shape, most: int) -> np.ndarray:  # noqa: ARG002
        """See `ObjectSerializer.decode_elements`."""
        try:
            made = pickle.loads(buffer)  # noqa: S301  (the reader has opted in, see the registry)
        except Exception as error:  # code in a pickle may raise anything
            raise CorruptObjectError(f"{self.name} cannot decode it ({error!s:.200})") from error
        if not isinstance(made, np.ndarray) or made.size != prod(shape):
            raise CorruptObjectError(
                f"its {self.name} holds a {type(made).__name__}, not an array of {prod(shape)} "
                "elements"
            )
        return made.astype(OBJECT).reshape(-1)


_ENCODINGS = ("utf-8", "utf8", "ascii", "latin-1", "utf-16", "utf-32")


def _flag(config: dict[str, Any], name: str, *, default: bool) -> bool:
    value = config.pop(name, default)
    if not isinstance(value, bool):
        raise ValueError(f"{name} is {value!r}, not true or false")
    return value
