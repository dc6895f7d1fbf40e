"""Serializers for elements without fixed size: texts, byte strings, lists, any Python objects.

``vlen-utf8`` and ``vlen-bytes`` are codecs of the Zarr v3 registry; the same names, and
``vlen-array``, ``json2``, ``msgpack2`` and ``pickle``, are object codecs of Zarr v2, byte for byte
as the numcodecs package writes them. In memory the elements are an object array.

What a chunk claims is compared with what its metadata promise before memory is taken: the number
of elements with that of the chunk, every length with the bytes that are there. The number of
encoded bytes, and where elements may be anything an estimate of the memory they take, are bounded
by ``Limits.variable_bytes``. A pickle runs the code of whoever wrote it: `Pickle` is a codec like
the others, and it is `object_serializer_from_numcodecs` in `zarr_dask.codecs.registry` that makes
one only where the reader has opted in.
"""

from __future__ import annotations

import json
import pickle
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain as concatenated
from math import prod
from typing import Any, ClassVar

import numpy as np
from numcodecs.vlen import VLenBytes as _VLenBytes
from numcodecs.vlen import VLenUTF8 as _VLenUTF8

from zarr_dask.codecs.base import BoundSerializer, ChunkSpec, Reading, Serializer, Size
from zarr_dask.dtypes import DataType, data_type_of
from zarr_dask.errors import CorruptObjectError, DataTypeError, Problem
from zarr_dask.grid import Region, Shape
from zarr_dask.stores.base import Buffer

__all__ = ["Json2", "Msgpack2", "ObjectSerializer", "Pickle", "VlenArray", "VlenBytes", "VlenUtf8"]

_OBJECT = np.dtype(object)


class ObjectSerializer(Serializer):
    """From an object array to bytes."""

    element: ClassVar[str]
    """Name of the data type of its elements: ``"string"``, ``"bytes"`` or ``"object"``."""

    @property
    def data_type(self) -> DataType:
        """The data type of arrays that are stored this way."""
        return data_type_of(self.element)

    def configuration(self) -> dict[str, Any]:
        """See `Codec.configuration`."""
        return {}

    def problems(self, spec: ChunkSpec) -> Iterator[Problem]:
        """It is for elements of its own data type only."""
        if spec.data_type.name != self.element:
            yield Problem(
                "name",
                self.name,
                f"a codec for elements of type {spec.data_type.name!r}; this one is for "
                f"{self.element!r}",
            )

    def bind(self, spec: ChunkSpec) -> BoundSerializer:
        """See `Serializer.bind`."""
        return _BoundObjects(spec, self)

    @abstractmethod
    def encode_elements(self, array: np.ndarray) -> Buffer:
        """The bytes of an object array.

        Raises
        ------
        DataTypeError
            If it has elements that cannot be encoded.
        """

    @abstractmethod
    def decode_elements(self, buffer: memoryview, shape: Shape, most: int) -> np.ndarray:
        """The elements of a chunk as a 1-d object array, in C order.

        Parameters
        ----------
        buffer
            The bytes of the chunk.
        shape
            Its shape.
        most
            Bytes of memory that elements may take of whose size nothing is known.

        Raises
        ------
        CorruptObjectError
            If the bytes are not those of such a chunk.
        """


class _BoundObjects(BoundSerializer):
    def __init__(self, spec: ChunkSpec, codec: ObjectSerializer) -> None:
        self.spec = spec
        self.size = Size(None, spec.variable_bytes)
        self._codec = codec

    @property
    def working(self) -> int:
        """See `BoundSerializer.working`."""
        return self.spec.nbytes

    def encode(self, array: np.ndarray) -> list[Buffer]:
        encoded = self._codec.encode_elements(array)
        if len(encoded) > self.size.most:
            raise DataTypeError(
                f"a chunk of shape {self.spec.shape} takes {len(encoded)} bytes as "
                f"{self._codec.name!r}, and readers accept {self.size.most}: make the chunks "
                "smaller."
            )
        return [encoded]

    def decode(
        self,
        buffer: Buffer,
        region: Region | None,
        out: np.ndarray,
        reading: Reading,  # noqa: ARG002  (there is nothing to be absent in here)
    ) -> None:
        view = memoryview(buffer)
        if len(view) > self.size.most:
            raise _too_large(self._codec.name, len(view), self.size.most)
        most = _SWELLING * self.spec.variable_bytes
        elements = self._codec.decode_elements(view, self.spec.shape, most)
        chunk = elements.reshape(self.spec.shape)
        out[...] = chunk if region is None else chunk[region]


_SWELLING = 2
"""How many times the bound of encoded bytes decoded elements of any kind may take in memory."""


def _too_large(name: str, nbytes: int, most: int) -> CorruptObjectError:
    return CorruptObjectError(
        f"it has {name} elements of {nbytes} bytes, more than {most} "
        "(ReadOptions(limits=Limits(variable_bytes=...)) sets another bound)"
    )


# --- lengths and bytes ----------------------------------------------------------------------------

_WORD = 4  # a little-endian unsigned integer: the count of elements, or the length of one


def _check_frame(name: str, buffer: memoryview, count: int) -> None:
    """The number of elements is that of the chunk, and their lengths can be there."""
    if len(buffer) < _WORD:
        raise CorruptObjectError(f"{len(buffer)} bytes are fewer than a {name} header")
    claimed = int.from_bytes(buffer[:_WORD], "little")
    if claimed != count:
        raise CorruptObjectError(f"its {name} header says {claimed} elements, not {count}")
    if len(buffer) < _WORD * (1 + count):
        raise CorruptObjectError(
            f"{len(buffer)} bytes are too few for the lengths of its {count} {name} elements"
        )


def _check_all_used(name: str, buffer: memoryview, count: int, nbytes: int) -> None:
    used = _WORD * (1 + count) + nbytes
    if used != len(buffer):
        raise CorruptObjectError(
            f"its {count} {name} elements take {used} bytes, but it has {len(buffer)}"
        )


def _check_types(name: str, elements: np.ndarray, wanted: type) -> None:
    wrong = {kind for kind in set(map(type, elements.tolist())) if not issubclass(kind, wanted)}
    if wrong:
        found = ", ".join(sorted(kind.__name__ for kind in wrong))
        raise DataTypeError(
            f"{name!r} stores elements of type {wanted.__name__}, but the chunk has {found}."
        )


def _in_order(array: np.ndarray) -> np.ndarray:
    elements = np.ascontiguousarray(array, _OBJECT).reshape(-1)
    return elements if elements.flags.writeable else elements.copy()  # numcodecs asks for it


@dataclass(frozen=True)
class VlenBytes(ObjectSerializer):
    """The number of elements, then the length and the bytes of each."""

    name: ClassVar[str] = "vlen-bytes"
    element: ClassVar[str] = "bytes"

    def encode_elements(self, array: np.ndarray) -> Buffer:
        """See `ObjectSerializer.encode_elements`."""
        elements = _in_order(array)
        _check_types(self.name, elements, bytes)
        return bytes(_VLenBytes().encode(elements))

    def decode_elements(self, buffer: memoryview, shape: Shape, most: int) -> np.ndarray:  # noqa: ARG002
        """See `ObjectSerializer.decode_elements`."""
        elements = _split(self.name, buffer, prod(shape))
        _check_all_used(self.name, buffer, elements.size, sum(map(len, elements.tolist())))
        return elements


def _split(name: str, buffer: memoryview, count: int) -> np.ndarray:
    _check_frame(name, buffer, count)
    try:
        return _object_array(_VLenBytes().decode(buffer))
    except ValueError as error:
        raise CorruptObjectError(f"{name} cannot decode it ({error})") from error


def _object_array(elements: Any) -> np.ndarray:
    result: np.ndarray = elements
    return result


@dataclass(frozen=True)
class VlenUtf8(ObjectSerializer):
    """The number of elements, then the length in bytes and the UTF-8 of each."""

    name: ClassVar[str] = "vlen-utf8"
    element: ClassVar[str] = "string"

    def encode_elements(self, array: np.ndarray) -> Buffer:
        """See `ObjectSerializer.encode_elements`."""
        elements = _in_order(array)
        _check_types(self.name, elements, str)
        try:
            return bytes(_VLenUTF8().encode(elements))
        except UnicodeEncodeError as error:
            raise DataTypeError(f"a text of the chunk is not Unicode ({error}).") from error

    def decode_elements(self, buffer: memoryview, shape: Shape, most: int) -> np.ndarray:
        """See `ObjectSerializer.decode_elements`."""
        count = prod(shape)
        if len(buffer) * _WIDEST > most:
            self._check_width(buffer, count, most)
        _check_frame(self.name, buffer, count)
        try:
            elements = _object_array(_VLenUTF8().decode(buffer))
        except ValueError as error:  # UnicodeDecodeError is one
            raise CorruptObjectError(f"{self.name} cannot decode it ({error})") from error
        texts = elements.tolist()
        nbytes = sum(map(len, texts))
        if _WORD * (1 + count) + nbytes != len(buffer):  # not all of it is ASCII
            nbytes = sum(len(text.encode()) for text in texts)
        _check_all_used(self.name, buffer, count, nbytes)
        return elements

    def _check_width(self, buffer: memoryview, count: int, most: int) -> None:
        """One character outside the basic plane makes Python hold four bytes for each."""
        elements = _split(self.name, buffer, count).tolist()
        nbytes = sum(len(item) * (1 if item.isascii() else _WIDEST) for item in elements)
        if nbytes > most:
            raise _too_large(self.name, nbytes, most)


_WIDEST = 4


@dataclass(frozen=True)
class VlenArray(ObjectSerializer):
    """The number of elements, then the length in bytes and the numbers of each.

    Parameters
    ----------
    dtype
        Type string of the numbers, as stored; in memory they have native byte order.
    """

    dtype: str
    name: ClassVar[str] = "vlen-array"
    element: ClassVar[str] = "object"

    def configuration(self) -> dict[str, Any]:
        """See `Codec.configuration`."""
        return {"dtype": self.dtype}

    @cached_property
    def _stored(self) -> np.dtype[Any]:
        return np.dtype(self.dtype)

    def encode_elements(self, array: np.ndarray) -> Buffer:
        """See `ObjectSerializer.encode_elements`; None and 0 are arrays without elements."""
        elements = _in_order(array)
        pieces = [elements.size.to_bytes(_WORD, "little")]
        for item in elements.tolist():
            numbers = self._numbers(item)
            pieces += (len(numbers).to_bytes(_WORD, "little"), numbers)
        return b"".join(pieces)

    def _numbers(self, item: Any) -> bytes:
        if item is None or (type(item) is int and item == 0):  # absent, as fill values say it
            return b""
        try:
            numbers = np.asarray(item)
            whole = numbers.dtype.kind in "iu" and self._stored.kind in "iu"
            # an empty list is of floats; whole numbers are compared
            anyway = whole or numbers.size == 0
            cast = numbers.astype(self._stored, casting="unsafe" if anyway else "same_kind")
        except (ValueError, TypeError) as error:
            raise DataTypeError(
                f"{self.name!r} cannot store an element as {self.dtype!r} ({error})."
            ) from error
        if numbers.ndim != 1 or (whole and not np.array_equal(cast, numbers)):
            raise DataTypeError(
                f"{self.name!r} stores 1-d arrays of {self.dtype!r}, but an element of the chunk "
                f"is a {numbers.ndim}-d array of {numbers.dtype.str!r} that is none."
            )
        return cast.tobytes()

    def decode_elements(self, buffer: memoryview, shape: Shape, most: int) -> np.ndarray:  # noqa: ARG002
        """See `ObjectSerializer.decode_elements`."""
        pieces = _split(self.name, buffer, prod(shape)).tolist()
        _check_all_used(self.name, buffer, len(pieces), sum(map(len, pieces)))
        native = self._stored.newbyteorder("=")
        elements = np.empty(len(pieces), _OBJECT)
        for position, piece in enumerate(pieces):
            if len(piece) % self._stored.itemsize:
                raise CorruptObjectError(
                    f"element {position} has {len(piece)} bytes, no whole number of {self.dtype!r}"
                )
            elements[position] = np.frombuffer(piece, self._stored).astype(native)
        return elements


# --- nested lists ---------------------------------------------------------------------------------


def _nested(array: np.ndarray) -> list[Any]:
    """What json2 and msgpack2 write: the rows of the array, its type string, its shape."""
    return [*np.atleast_1d(array).tolist(), _OBJECT.str, list(array.shape)]


def _flat(name: str, items: Any, shape: Shape) -> np.ndarray:
    """The elements in nested lists, as `_nested` makes them."""
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
    elements = np.empty(count, _OBJECT)
    for position, item in enumerate(rows):
        elements[position] = item
    return elements


_MOST_DIMENSIONS = 64  # NumPy's own limit


def _stored_shape(name: str, items: Any) -> list[int]:
    """The shape at the end, after the data type."""
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

    The parameters are those of numcodecs, which hands them to Python's `json`.
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
        wide = 1 if encoded.isascii() else _WIDEST
        values = sum(map(encoded.count, (b",", b"[", b"{", b":")))
        # the text, the texts in it, and the values
        estimate = 2 * wide * len(encoded) + _VALUE_BYTES * values
        if estimate > most:
            raise _too_large(self.name, estimate, most)
        try:
            items = json.JSONDecoder(strict=self.strict).decode(encoded.decode(self.encoding))
        except (ValueError, RecursionError) as error:
            raise CorruptObjectError(f"{self.name} cannot decode it ({error!s:.200})") from error
        return _flat(self.name, items, shape)


_VALUE_BYTES = 72  # an empty list or object, and its place in another


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

        estimate = _WORD * len(buffer) + _VALUE_BYTES * _count_of_headers(buffer)
        if estimate > most:
            raise _too_large(self.name, estimate, most)
        reader = {"raw": self.raw, "max_buffer_size": max(len(buffer), 1), "strict_map_key": False}
        try:
            # what is there is counted before lists are made as long as they claim to be
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
    """MessagePack values of several bytes in memory, at most: their first byte has its top bit."""
    raw = np.frombuffer(buffer, np.uint8)
    slab = 1 << 20
    return sum(int((raw[at : at + slab] >> 7).sum()) for at in range(0, raw.size, slab))


# --- any Python objects ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Pickle(ObjectSerializer):
    """The chunk as Python pickles it. Decoding runs code: only for those who have opted in.

    Parameters
    ----------
    protocol
        Of the pickles it writes.
    """

    protocol: int = pickle.HIGHEST_PROTOCOL
    name: ClassVar[str] = "pickle"
    element: ClassVar[str] = "object"

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
        except Exception as error:  # what a pickle runs may raise anything
            raise CorruptObjectError(f"{self.name} cannot decode it ({error!s:.200})") from error
        if not isinstance(made, np.ndarray) or made.size != prod(shape):
            raise CorruptObjectError(
                f"its {self.name} holds a {type(made).__name__}, not an array of {prod(shape)} "
                "elements"
            )
        return made.astype(_OBJECT).reshape(-1)
