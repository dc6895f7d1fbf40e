"""Filters of the numcodecs package, as steps from bytes to bytes.

In Zarr v2 every filter is given the buffer from the one before it, and has the data types in its
own configuration, so a filter for arrays is one for bytes as well. Decoded sizes are checked here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numcodecs
import numpy as np

from zarr_dask.codecs.base import BytesCodec, Codec, EncodedSize, Speeds
from zarr_dask.codecs.compress.blosc_frames import UNSHUFFLED_FAST, unshuffle
from zarr_dask.errors import ChecksumError, CorruptObjectError, DataTypeError
from zarr_dask.stores.base import Buffer

__all__ = ["ARRAY_FILTERS", "FILTERS", "Filter"]

ARRAY_FILTERS = frozenset(
    {"astype", "bitround", "categorize", "delta", "fixedscaleoffset", "packbits", "quantize"}
)
"""Filters that treat the bytes as numbers."""
_CHECKSUMS = {"adler32": 4, "crc32": 4, "crc32c": 4, "fletcher32": 4, "jenkins_lookup3": 4}
FILTERS = ARRAY_FILTERS | _CHECKSUMS.keys() | {"base64", "shuffle"}
"""Ids of the supported filters; compressors have modules of their own."""

_LARGEST_ITEM = 1 << 16

_RESIZING = {
    "astype": ("decode_dtype", "encode_dtype"),
    "categorize": ("dtype", "astype"),
    "delta": ("dtype", "astype"),
    "fixedscaleoffset": ("dtype", "astype"),
    "quantize": ("dtype", "astype"),
}
"""Names of the types before and after encoding in a filter's configuration."""


_ELEMENTS = "elements"
_EXAMPLES: dict[str, dict[str, Any]] = {
    "astype": {"encode_dtype": "<f8", "decode_dtype": _ELEMENTS},
    "bitround": {"keepbits": 2},
    "categorize": {
        "labels": ["a", "é", "日本", "abc", "z"],
        "dtype": _ELEMENTS,
        "astype": "|u1",
    },
    "delta": {"dtype": _ELEMENTS},
    "fixedscaleoffset": {"offset": 0, "scale": 1, "dtype": _ELEMENTS, "astype": "<i2"},
    "quantize": {"digits": 2, "dtype": _ELEMENTS},
}
"""Configurations of filters that need one, for elements of one type."""
_FAILURES = (ValueError, RuntimeError, TypeError, LookupError, ArithmeticError)
"""Errors of numcodecs for malformed buffers or invalid options, over all filters."""
_LONGEST_OPTION = 256
_LEAST_FRAMED = 1 << 14
"""Bytes from which `unshuffle` is faster than numcodecs."""


@dataclass(frozen=True)
class Filter(BytesCodec):
    """A numcodecs codec by its id.

    Parameters
    ----------
    id
        One of `FILTERS`.
    options
        The rest of its configuration, as JSON text so that the codec can be hashed.
    dtype
        Type string of the elements that the bytes hold in this chain.
    """

    id: str
    options: str = "{}"
    dtype: str | None = None
    name: ClassVar[str] = "numcodecs"
    may_alias: ClassVar[bool] = True
    peak_copies: ClassVar[int] = 2

    @classmethod
    def from_numcodecs(cls, name: str, config: dict[str, Any], dtype: str | None) -> Codec:
        """See `Codec.from_numcodecs`; numcodecs itself looks at the configuration."""
        given = dict(config)
        config.clear()
        return Filter.of({"id": name, **given}, dtype)

    def to_numcodecs(self) -> dict[str, Any]:
        """See `Codec.to_numcodecs`."""
        return self.configuration()

    @classmethod
    def example(cls, name: str, dtype: str) -> dict[str, Any]:
        """See `Codec.example`."""
        options = _EXAMPLES.get(name, {})
        return {key: dtype if value is _ELEMENTS else value for key, value in options.items()} | (
            {"elementsize": 1 if np.dtype(dtype).hasobject else np.dtype(dtype).itemsize}
            if name == "shuffle"
            else {}
        )

    def speeds(self) -> Speeds:
        """See `Codec.speeds`."""
        return Speeds(24e9, 24e9) if self.id == "crc32c" else super().speeds()

    @staticmethod
    def of(config: Mapping[str, Any], dtype: str | None = None) -> Filter:
        """Create a filter from a numcodecs configuration, ``id`` included.

        Raises
        ------
        ValueError, TypeError, KeyError
            If numcodecs rejects the configuration.
        """
        options = {name: value for name, value in config.items() if name != "id"}
        if any(
            isinstance(value, str) and len(value) > _LONGEST_OPTION for value in options.values()
        ):
            raise ValueError(f"an option of more than {_LONGEST_OPTION} characters")
        made = Filter(config["id"], json.dumps(options), dtype)
        _codec(made.id, made.options)
        made._check_dtypes(options)
        return made

    def _check_dtypes(self, options: Mapping[str, Any]) -> None:
        """Raise for invalid element types, and for a filter for other elements than it is given."""
        before, after = _RESIZING.get(self.id, ("", ""))
        named = [np.dtype(options[key]) for key in (before, after) if options.get(key) is not None]
        for made in named:
            if not 0 < made.itemsize <= _LARGEST_ITEM or made.hasobject:
                raise ValueError(f"{made.str!r} is no type of numbers")
        if self.id == "delta" and any(made.kind == "M" for made in named):
            raise ValueError("differences of points in time are none themselves; give it '<i8'")
        if self.dtype is None:
            return
        given = np.dtype(self.dtype)
        if named and named[0].itemsize != given.itemsize:
            raise ValueError(f"it takes {named[0].str!r}, but is given {self.dtype!r}")
        if self.id == "packbits" and given.kind != "b":
            raise ValueError(f"it takes bools, but is given {self.dtype!r}")
        if self.id == "bitround" and given.kind != "f":
            raise ValueError(f"it takes floats, but is given {self.dtype!r}")

    def configuration(self) -> dict[str, Any]:
        """Return the numcodecs configuration, ``id`` included."""
        return {"id": self.id, **json.loads(self.options)}

    def output_dtype(self, dtype: str) -> str:
        """Return the type string of the elements after this filter."""
        options = json.loads(self.options)
        if self.id == "packbits":
            return "|u1"
        if self.id not in _RESIZING:
            return dtype
        before, after = _RESIZING[self.id]
        return str(np.dtype(options.get(after) or options[before]).str)

    def size(self, size: EncodedSize) -> EncodedSize:
        """See `BytesCodec.size`."""
        if self.id in _CHECKSUMS:
            return size.plus(_CHECKSUMS[self.id])
        if self.id == "base64":
            exact = None if size.exact is None else 4 * -(-size.exact // 3)
            return EncodedSize(exact, 4 * -(-size.most // 3))
        if self.id == "packbits":
            exact = None if size.exact is None else -(-size.exact // 8) + 1
            return EncodedSize(exact, -(-size.most // 8) + 1)
        if self.id in _RESIZING:
            before, after = _RESIZING[self.id]
            options = json.loads(self.options)
            old = np.dtype(options[before]).itemsize
            new = np.dtype(options.get(after) or options[before]).itemsize
            exact = None if size.exact is None else size.exact // old * new
            return EncodedSize(exact, size.most // old * new)
        return size

    def encode(self, buffer: Buffer | np.ndarray, itemsize: int) -> Buffer:  # noqa: ARG002
        """See `BytesCodec.encode`."""
        typed = np.frombuffer(buffer, np.uint8)
        codec = _codec(self.id, self.options)
        try:
            if self.id == "bitround" and self.dtype is not None:
                # the only filter that is not told its type, and it supports only native byte order
                numbers = typed.view(self.dtype)
                native = numbers.dtype.newbyteorder("=")
                rounded = codec.encode(numbers.astype(native)).view(native)  # it returns integers
                return _bytes(rounded.astype(numbers.dtype))
            whole, tail = self._split(typed)
            return _joined(_bytes(codec.encode(whole)), tail)
        except _FAILURES as error:
            raise DataTypeError(f"filter {self.id!r} cannot encode a chunk ({error}).") from error

    def decode(self, buffer: Buffer, size: EncodedSize) -> Buffer:
        """See `BytesCodec.decode`."""
        if self.id == "base64" and len(buffer) > self.size(size).most:
            raise CorruptObjectError(
                f"it has {len(buffer)} bytes, and the chunk {self.size(size).most} in base64"
            )
        try:
            whole, tail = self._split(np.frombuffer(buffer, np.uint8))
            decoded = _joined(_bytes(_codec(self.id, self.options).decode(whole)), tail)
        except _FAILURES as error:
            kind = ChecksumError if self.id in _CHECKSUMS else CorruptObjectError
            raise kind(f"filter {self.id!r} cannot decode it ({error})") from error
        if len(decoded) > size.most or (size.exact is not None and len(decoded) != size.exact):
            raise CorruptObjectError(
                f"filter {self.id!r} gives {len(decoded)} bytes of it, expected "
                f"{size.most if size.exact is None else size.exact}"
            )
        return decoded

    @property
    def _element(self) -> int:
        """Bytes of the elements that are shuffled; 1 for other filters."""
        return max(_codec(self.id, self.options).elementsize, 1) if self.id == "shuffle" else 1

    def _split(self, data: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return whole elements, and the bytes behind them, which HDF5 leaves as they are."""
        whole = len(data) - len(data) % self._element
        return data[:whole], data[whole:]

    def decode_into(self, buffer: Buffer, out: np.ndarray) -> None:
        """See `BytesCodec.decode_into`; shuffled bytes go straight to their places."""
        nbytes = len(memoryview(buffer).cast("B"))
        if self.id != "shuffle" or nbytes != out.size or nbytes % self._element:
            super().decode_into(buffer, out)
            return
        data = np.frombuffer(buffer, np.uint8)
        if out.size >= _LEAST_FRAMED and self._element in UNSHUFFLED_FAST:
            unshuffle(data, self._element, out)
            return
        try:
            _codec(self.id, self.options).decode(data, out=out)
        except _FAILURES as error:
            raise CorruptObjectError(f"filter {self.id!r} cannot decode it ({error})") from error


def _joined(whole: memoryview, tail: np.ndarray) -> memoryview:
    return memoryview(b"".join((whole, tail.data))) if len(tail) else whole


def _bytes(result: Any) -> memoryview:
    array = np.asarray(result) if isinstance(result, np.ndarray) else np.frombuffer(result, "u1")
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


@lru_cache(maxsize=256)
def _codec(identifier: str, options: str) -> Any:
    return numcodecs.get_codec({"id": identifier, **json.loads(options)})
