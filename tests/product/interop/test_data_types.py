"""Every data type that zarr-python or tensorstore has, written by each side and read by the other.

What a peer cannot do is asserted too, so that we learn when it can.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorstore as ts
import zarr
from zarr.codecs import BytesCodec

import zarr_dask as zd

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*:zarr.errors.UnstableSpecificationWarning"),
    # zarr-python makes times without a unit in a way that NumPy gives up
    pytest.mark.filterwarnings("ignore:The 'generic' unit:DeprecationWarning"),
]

RECORD = np.dtype([("a", "i4"), ("b", "U2"), ("c", [("d", "M8[s]"), ("e", "?")]), ("f", "S3")])

# values, and the fill value where it is not the default
VALUES: dict[str, tuple[np.ndarray[Any, Any], Any]] = {
    "times": (np.array([1, -5, 7], "i8").view("M8[3s]"), np.datetime64("NaT", "s")),
    "times without unit": (np.array([1, -5, 7], "i8").view("M8"), 0),
    "differences": (np.array([1, -5, 7], "i8").view("m8[10us]"), 5),
    "texts": (np.array(["ab", "", "\U0001f600\u20acx"], "U3"), "fill"[:3]),
    "null-terminated": (np.array([b"ab", b"", b"xyz"], "S3"), b"fi"),
    "raw": (np.array([b"abc", b"\0\0\1", b"xyz"], "V3"), np.void(b"\0\1\2")),
    "records": (np.array([(1, "x", (5, True), b"q"), (-2, "yz", (0, False), b"")], RECORD), 0),
    "any texts": (np.array(["", "a longer text", "\u00e9"], object), "fill"),
    "any bytes": (np.array([b"", b"\0\1", b"\xff" * 9], object), b"\0fill"),
    "bool": (np.array([True, False, True]), True),
    "float16": (np.array([1.5, -0.0, np.inf], "f2"), np.float16("nan")),
    "complex64": (np.array([1 - 2j, complex(np.nan, -0.0)], "c8"), 1 + 1j),
    "uint64": (np.array([0, 1 << 63, (1 << 64) - 1], "u8"), (1 << 64) - 1),
}
NAMES = {"any texts": str, "any bytes": "variable_length_bytes"}
OURS = {"any texts": "string", "any bytes": "bytes"}


def same(got: Any, want: np.ndarray[Any, Any]) -> bool:
    got = np.asarray(got)
    if want.dtype == object:
        return got.shape == want.shape and got.astype(object).tolist() == want.tolist()
    return got.dtype.newbyteorder("=") == want.dtype and (
        got.astype(want.dtype).tobytes() == want.tobytes()
    )


@pytest.mark.parametrize("shards", [None, 4], ids=["chunks", "shards"])
@pytest.mark.parametrize("endian", ["little", "big"])
@pytest.mark.parametrize("kind", VALUES)
class TestZarrPython:
    """The same arrays through zarr-python."""

    def codecs(self, kind: str, endian: str) -> Any:
        if kind in NAMES:
            return None
        return [{"name": "bytes", "configuration": {"endian": endian}}]

    def test_ours(self, kind: str, endian: str, shards: int | None, place: Path) -> None:
        values, fill = VALUES[kind]
        ours = zd.create_array(
            place,
            shape=(6,),
            dtype=OURS.get(kind, values.dtype),
            chunks=(2,),
            shards=None if shards is None else (shards,),
            codecs=self.codecs(kind, endian),
            fill_value=fill,
        )
        ours[: len(values)] = values
        theirs = zarr.open_array(place, mode="r+")
        assert same(theirs[: len(values)], values)
        assert same(theirs[...], ours[...])
        theirs[5:] = values[:1]
        assert same(ours[5:], values[:1])

    def test_theirs(self, kind: str, endian: str, shards: int | None, place: Path) -> None:
        values, fill = VALUES[kind]
        serializer = {} if kind in NAMES else {"serializer": BytesCodec(endian=endian)}
        theirs = zarr.create_array(
            place,
            shape=(6,),
            dtype=NAMES.get(kind, values.dtype),
            chunks=(2,),
            shards=None if shards is None else (shards,),
            fill_value=np.zeros((), values.dtype)[()] if kind == "records" else fill,
            **serializer,
        )
        theirs[: len(values)] = values
        ours = zd.open_array(place, mode="r+")
        assert same(ours[: len(values)], values)
        assert same(theirs[...], ours[...])
        ours[5] = values[0]
        assert same(zarr.open_array(place)[5:], values[:1])
        ours.update_attributes({"said": "by us"})
        assert same(zarr.open_array(place)[...], ours[...])


# --- tensorstore ----------------------------------------------------------------------------------

SMALL = [
    "int2",
    "int4",
    "bfloat16",
    "float8_e3m4",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e4m3b11fnuz",
    "float8_e8m0fnu",
    "float4_e2m1fn",
]
UNKNOWN_TO_TENSORSTORE = ["uint2", "uint4", "float8_e4m3", "float6_e2m3fn", "float6_e3m2fn"]


def spec(place: Path) -> dict[str, Any]:
    return {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{place}/"}}


def every_value(name: str) -> np.ndarray[Any, Any]:
    """All bit patterns of a type, or 256 of them."""
    dtype = np.dtype(getattr(ml_dtypes, name))
    bits = {"int2": 2, "int4": 4, "float4_e2m1fn": 4, "bfloat16": 16}.get(name, 8)
    patterns = np.arange(0, 1 << bits, max(1, (1 << bits) // 256))
    return patterns.astype(f"u{dtype.itemsize}").view(dtype)


@pytest.mark.parametrize("endian", ["little", "big"])
@pytest.mark.parametrize("name", SMALL)
def test_small_types_of_tensorstore(name: str, endian: str, place: Path) -> None:
    values = every_value(name)
    codecs = [{"name": "bytes", "configuration": {"endian": endian}}]
    fill = 1 if name == "float8_e8m0fnu" else 0
    options = {"shape": values.shape, "dtype": name, "chunks": values.shape}
    ours = zd.create_array(place / "ours", **options, codecs=codecs, fill_value=fill)
    ours[...] = values
    theirs = ts.open(spec(place / "ours"), open=True).result()
    assert np.asarray(theirs.read().result()).tobytes() == values.tobytes()

    document = json.loads((place / "ours" / "zarr.json").read_text(encoding="utf-8"))
    created = ts.open(spec(place / "theirs") | {"metadata": document}, create=True).result()
    created.write(values).result()
    read = zd.open_array(place / "theirs")
    assert read.dtype == values.dtype
    assert read[...].tobytes() == values.tobytes()
    assert read.meta.data_type == ours.meta.data_type


@pytest.mark.parametrize("name", SMALL)
def test_fill_values_of_tensorstore(name: str, place: Path) -> None:
    """Those that it writes; float8_e8m0fnu aside, of which it takes 1.0 for another number."""
    if name == "float8_e8m0fnu":
        ours = zd.create_array(place, shape=2, dtype=name, chunks=2, fill_value=1)
        theirs = ts.open(spec(place), open=True).result()
        assert float(theirs.fill_value) != float(ours.fill_value) == 1.0
        return
    ours = zd.create_array(place, shape=2, dtype=name, chunks=2, fill_value=1)
    theirs = ts.open(spec(place), open=True).result()
    assert theirs.fill_value.tobytes() == ours.meta.fill_value.tobytes()
    assert np.asarray(theirs.read().result()).tobytes() == ours[...].tobytes()


@pytest.mark.parametrize("name", UNKNOWN_TO_TENSORSTORE)
def test_small_types_that_tensorstore_does_not_have(name: str, place: Path) -> None:
    zd.create_array(place, shape=2, dtype=name, chunks=2)
    with pytest.raises(ValueError, match="is not one of the supported data types"):
        ts.open(spec(place), open=True).result()


@pytest.mark.parametrize("name", ["raw_bytes", "r24"])
def test_raw_bytes_of_tensorstore(name: str, place: Path) -> None:
    """They are one more dimension there, and of ``r24`` it wants base64.

    It opens them, but its NumPy type of them has no bytes, so that none can be read or written
    (0.1.86); to create such an array ends the process.
    """
    values = np.array([b"abc", b"\0\0\1"], "V3")
    wanted = np.dtype("V3") if name == "raw_bytes" else name
    zd.create_array(place, shape=3, dtype=wanted, chunks=1, fill_value=b"\1\2\3")[:2] = values
    if name == "r24":
        with pytest.raises(ValueError, match="base64"):
            ts.open(spec(place), open=True).result()
        document = json.loads((place / "zarr.json").read_text(encoding="utf-8"))
        document["fill_value"] = "AQID"
        (place / "zarr.json").write_text(json.dumps(document), encoding="utf-8")
    theirs = ts.open(spec(place), open=True).result()
    assert (theirs.shape, theirs.dtype.numpy_dtype.itemsize) == ((3, 3), 0)
    assert zd.open_array(place)[...].tobytes() == values.tobytes() + b"\1\2\3"
