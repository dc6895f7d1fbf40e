"""``bitround``: numbers with fewer significant bits, which compress better.

Floats lose bits of their mantissa, integers those far below their most significant bit; both are
rounded, and decoding has nothing to undo. (Zarr extensions, codec ``bitround``.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from zarr_dask._util.json_fields import is_int_in
from zarr_dask.codecs.base import ArrayCodec, ChunkSpec
from zarr_dask.codecs.codec_config import PREFIX, CodecConfig
from zarr_dask.codecs.numeric.casting import bit_lengths
from zarr_dask.errors import ValidationProblem

__all__ = ["BitRound"]

_MANTISSA = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}
"""Bits of the mantissa that are stored, by data type."""
_PARTS = {"complex64": "float32", "complex128": "float64"}
"""Complex types that are not named after their parts."""
_INTEGERS = frozenset(
    {
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
        *("numpy.datetime64", "numpy.timedelta64"),
    }
)


@dataclass(frozen=True)
class BitRound(ArrayCodec):
    """Numbers rounded to some significant bits.

    Parameters
    ----------
    keepbits
        For floats, bits of the mantissa to keep; for integers, bits to keep from the most
        significant one on, which is the sign of negative ones. At least 1.
    alias
        True if it is named ``numcodecs.bitround``, which supports only floats.
    """

    keepbits: int
    alias: bool = False
    pointwise: ClassVar[bool] = True

    @classmethod
    def from_config(cls, config: CodecConfig) -> BitRound | None:
        """See `Codec.from_config`."""
        keepbits = config.take("keepbits", is_int_in(range(1, 65)), "an integer of at least 1")
        alias = config.name.startswith(PREFIX)
        return None if keepbits is None else cls(keepbits, alias)

    @classmethod
    def example(cls, name: str, dtype: str) -> dict[str, Any]:  # noqa: ARG003
        """See `Codec.example`."""
        return {"keepbits": 2}

    @property
    def name(self) -> str:
        """See `Codec.name`."""
        return "numcodecs.bitround" if self.alias else "bitround"

    def configuration(self) -> dict[str, Any]:
        """See `Codec.configuration`."""
        return {"keepbits": self.keepbits}

    def problems(self, spec: ChunkSpec) -> Iterator[ValidationProblem]:
        """Check that the elements are numbers with a known bit format."""
        name = spec.data_type.name
        if name not in _INTEGERS and _part(name) not in _MANTISSA:
            yield ValidationProblem(
                "", name, "floats, complex numbers or integers to round", "data_type"
            )
        elif self.alias and name not in _MANTISSA.keys() - {"bfloat16"}:
            yield ValidationProblem(
                "", name, "float16, float32 or float64; 'bitround' takes more types"
            )

    def output(self, spec: ChunkSpec) -> ChunkSpec:
        """See `ArrayCodec.output`."""
        return (
            spec
            if spec.fill_value is None
            else replace(spec, fill_value=self.encode(spec.fill_value, spec))
        )

    def view(self, array: np.ndarray) -> np.ndarray:
        """See `ArrayCodec.view`; decoding restores nothing."""
        return array

    def encode(self, array: np.ndarray, spec: ChunkSpec) -> np.ndarray:
        """See `ArrayCodec.encode`."""
        rounded = np.array(array, spec.dtype, order="C")
        part = _part(spec.data_type.name)
        itemsize = spec.dtype.itemsize
        if part in _MANTISSA:
            itemsize = 2 if _MANTISSA[part] < 23 else (4 if part == "float32" else 8)
            lost = max(_MANTISSA[part] - self.keepbits, 0)
            if lost:
                bits = rounded.reshape(-1).view(f"u{itemsize}")
                _round_floats(bits, lost, _MANTISSA[part])
        else:
            _round_integers(rounded.reshape(-1).view(f"u{itemsize}"), self.keepbits)
        return rounded

    def decode(self, encoded: np.ndarray, spec: ChunkSpec, out: np.ndarray) -> None:  # noqa: ARG002
        """See `ArrayCodec.decode`."""
        out[...] = encoded


def _part(name: str) -> str:
    """Return the float type of the parts of a data type's numbers."""
    return _PARTS.get(name, name.removeprefix("complex_"))


def _round_floats(bits: np.ndarray, lost: int, mantissa: int) -> None:
    """Round to nearest, ties to even; above the largest number is infinity, and NaN stays NaN."""
    kind = bits.dtype.type
    everything = (1 << 8 * bits.itemsize) - 1
    infinity = everything >> (mantissa + 1) << mantissa
    mask = kind(everything >> lost << lost)
    nan = (bits & kind(everything >> 1)) > kind(infinity)
    quiet = (bits[nan] & mask) | kind(1 << (mantissa - 1))
    bits += ((bits >> kind(lost)) & kind(1)) + kind((1 << (lost - 1)) - 1)
    bits &= mask
    bits[nan] = quiet


def _round_integers(bits: np.ndarray, keepbits: int) -> None:
    """Round to nearest, ties to even, in two's complement; never past the largest number."""
    width = 8 * bits.itemsize
    if keepbits >= width:
        return
    kind = bits.dtype.type
    lost = np.maximum(bit_lengths(bits) - keepbits, 0).astype(bits.dtype)
    some = lost > 0
    shift = lost[some]
    old = bits[some]
    one = kind(1)
    half = (one << (shift - one)) - one
    new = old + ((old >> shift) & one) + half
    new[new < old] = kind((1 << width) - 1)
    bits[some] = new >> shift << shift
