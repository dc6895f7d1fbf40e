"""zfp's expert mode: the four numbers that define all of its modes.

zfpy has no function for them. The zfp library in it has one, and is called directly: `compress` and
`decompress` do the same as zfpy, except for the call that sets the mode.

The library trusts the four numbers. If `maxbits` leaves no room for the data in front of a block,
it writes beyond the end of its memory: `ZfpExpertParams.problems` must be checked first.

Source: zfp 1.0, "Compression modes", "High-level C API".
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from zarr_dask.errors import MissingDependencyError

__all__ = ["MOST_BITS_PER_ELEMENT", "ZfpExpertParams", "compress", "decompress"]

MOST_BITS_PER_ELEMENT = 128
"""Twice the need of an element of 64 bits, for blocks that are padded."""

_LEAST_EXPONENT = -1074  # of a float64; anything below it selects the reversible mode
_CLIPPED = 1 << 15
"""No block has so many bits, and no number so large an exponent: larger values have no effect."""

_AHEAD_OF_BLOCK = {"int32": 0, "int64": 0, "float32": 9, "float64": 12}
_MORE_IF_REVERSIBLE = {"int32": 5, "int64": 6, "float32": 5, "float64": 6}
"""Bits in front of the elements of a block, whatever its limit."""


class ZfpExpertParams(NamedTuple):
    """The numbers of the expert mode."""

    minbits: int
    """Least bits of a block; shorter ones are padded."""
    maxbits: int
    """Most bits of a block."""
    maxprec: int
    """Most bit planes of a block, 1 to 64."""
    minexp: int
    """Exponent of the lowest bit plane; any value below -1074 selects the reversible mode."""

    def problems(self, held: str, ndim: int) -> Iterator[tuple[str, int, str]]:
        """Yield numbers that the library must not be given: name, number, and expected values.

        Parameters
        ----------
        held
            Name of the data type of the elements in zfp.
        ndim
            Number of dimensions of the chunk, 1 to 4.
        """
        most = MOST_BITS_PER_ELEMENT * 4**ndim
        if not 0 <= self.minbits <= most:
            yield "minbits", self.minbits, f"an integer from 0 to {most} for {ndim} dimensions"
        least = _AHEAD_OF_BLOCK[held]
        if self.minexp < _LEAST_EXPONENT:
            least += _MORE_IF_REVERSIBLE[held]
        least = max(least, self.minbits, 1)
        if self.maxbits < least:
            yield "maxbits", self.maxbits, f"an integer of at least {least} for {held}"
        if not 1 <= self.maxprec <= 64:
            yield "maxprec", self.maxprec, "an integer from 1 to 64"

    def clipped(self) -> tuple[int, int, int, int]:
        """Return equivalent numbers that C can hold."""
        minexp = min(max(self.minexp, -_CLIPPED), _CLIPPED)
        return self.minbits, min(self.maxbits, _CLIPPED), self.maxprec, minexp


def compress(held: np.ndarray, expert: ZfpExpertParams) -> bytes:
    """Return the stream of an array in C order, without header."""
    library = _library()
    field = _field(library, held)
    stream = library.zfp_stream_open(None)
    try:
        library.zfp_stream_set_params(stream, *expert.clipped())
        memory = ctypes.create_string_buffer(library.zfp_stream_maximum_size(stream, field))
        with _Bits(library, stream, memory, len(memory)):
            size = library.zfp_compress(stream, field)
            return ctypes.string_at(memory, size)
    finally:
        library.zfp_stream_close(stream)
        library.zfp_field_free(field)


def decompress(padded: np.ndarray, out: np.ndarray, expert: ZfpExpertParams) -> None:
    """Decode a stream into an array in C order.

    `padded` must have as many bytes as the library could read: it does not check for the end.
    """
    library = _library()
    field = _field(library, out)
    stream = library.zfp_stream_open(None)
    try:
        library.zfp_stream_set_params(stream, *expert.clipped())
        with _Bits(library, stream, padded.ctypes.data, padded.size):
            if not library.zfp_decompress(stream, field):
                raise RuntimeError("error during zfp decompression")
    finally:
        library.zfp_stream_close(stream)
        library.zfp_field_free(field)


class _Bits:
    """Memory as the bit stream of a zfp stream."""

    def __init__(self, library: Any, stream: int, memory: Any, size: int) -> None:
        self._library = library
        self._bits = library.stream_open(memory, size)
        library.zfp_stream_set_bit_stream(stream, self._bits)
        library.zfp_stream_rewind(stream)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._library.stream_close(self._bits)


def _field(library: Any, array: np.ndarray) -> int:
    import zfpy

    make = getattr(library, f"zfp_field_{array.ndim}d")
    kind = int(zfpy.dtype_to_ztype(array.dtype))
    return int(make(array.ctypes.data, kind, *reversed(array.shape)))


_POINTER, _SIZE, _UINT, _INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint, ctypes.c_int
_CALLS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "stream_open": (_POINTER, (_POINTER, _SIZE)),
    "stream_close": (None, (_POINTER,)),
    "zfp_stream_open": (_POINTER, (_POINTER,)),
    "zfp_stream_close": (None, (_POINTER,)),
    "zfp_stream_set_params": (_INT, (_POINTER, _UINT, _UINT, _UINT, _INT)),
    "zfp_stream_set_bit_stream": (None, (_POINTER, _POINTER)),
    "zfp_stream_rewind": (None, (_POINTER,)),
    "zfp_stream_maximum_size": (_SIZE, (_POINTER, _POINTER)),
    "zfp_compress": (_SIZE, (_POINTER, _POINTER)),
    "zfp_decompress": (_SIZE, (_POINTER, _POINTER)),
    "zfp_field_free": (None, (_POINTER,)),
    **{f"zfp_field_{n}d": (_POINTER, (_POINTER, _INT, *[_SIZE] * n)) for n in range(1, 5)},
}
"""The functions of the library that are used: result and arguments."""


@lru_cache(maxsize=1)
def _library() -> Any:
    """Return the library that zfpy is linked with: the symbols are loaded with zfpy."""
    try:
        import zfpy
    except ImportError as error:
        raise MissingDependencyError(
            "chunks compressed by zfp need the package zfpy: pip install 'zarr-dask[zfp]'"
        ) from error
    try:
        library = ctypes.CDLL(zfpy.__file__)
        for name, (result, arguments) in _CALLS.items():
            call = getattr(library, name)
            call.restype, call.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise MissingDependencyError(
            "zfp's expert mode needs a package zfpy that shows the names of the library that it is "
            f"linked with, as that of PyPI does: {error}"
        ) from error
    return library
