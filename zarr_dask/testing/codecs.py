"""Conformance tests for codecs: `CodecTests` runs on codecs of this package and of others.

A subclass provides a codec as the fixture ``codec``::

    class TestMyCodec(CodecTests):
        @pytest.fixture
        def codec(self):
            return MyCodec(level=3)

The tests run in pytest, which the rest of this package does not need. In a ``conftest.py``, the
line ``pytest.register_assert_rewrite("zarr_dask.testing")`` lets failures show their values.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any, ClassVar

import numpy as np
import pytest

from zarr_dask.array.array import Array
from zarr_dask.codecs.base import BytesCodec, ChunkSpec, Codec, EncodedSize
from zarr_dask.codecs.registry import codec_class, codec_from_v3
from zarr_dask.dtypes import data_type_of
from zarr_dask.errors import CorruptObjectError, MetadataError, ZarrDaskError
from zarr_dask.hierarchy.create_node import create_array
from zarr_dask.hierarchy.open_node import open_array

__all__ = ["DTYPES", "CodecTests"]

DTYPES = ("bool", "uint8", "int16", "<i4", "int64", "float32", "float64", "complex64", "S3", "U2")
SHAPE = (7, 12)
CHUNKS = (4, 5)


def values_of(dtype: str, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    """Return values that repeat and values that do not."""
    count = int(np.prod(shape))
    numbers = np.arange(count) % 7
    numbers[count // 2 :] = np.random.default_rng(1).integers(0, 100, count - count // 2)
    return numbers.reshape(shape).astype(dtype)


class CodecTests:
    """Conformance tests of a codec; a subclass provides `codec`, a value of its class."""

    lossy: ClassVar[bool] = False
    """True if values may change by `tolerance` at most."""
    tolerance: ClassVar[float] = 0.0
    """Largest absolute difference of lossy codecs."""

    @pytest.fixture
    def codec(self) -> Codec:
        """Provide the codec."""
        raise pytest.UsageError("a subclass gives the codec")

    # --- as a value -------------------------------------------------------------------------------

    def test_is_registered(self, codec: Codec) -> None:
        """Check that metadata can name the codec."""
        found = codec_class(codec.name)
        assert found is not None, (
            f"no codec is known as {codec.name!r}: call zarr_dask.register_codec"
            f"({type(codec).__name__}), or list the class in the entry points 'zarr_dask.codecs'"
        )
        assert isinstance(codec, found), f"the name {codec.name!r} is that of {found}"

    def test_is_a_value(self, codec: Codec) -> None:
        """Check that the codec can be compared, hashed and pickled."""
        try:
            hash(codec)
        except TypeError as error:
            pytest.fail(
                f"{error}: codecs are keys of caches. Make the class @dataclass(frozen=True), with "
                "tuples instead of lists in its fields."
            )
        again = pickle.loads(pickle.dumps(codec))  # noqa: S301  (our own)
        assert again == codec, "a copy sent to a worker is another codec: compare by fields"

    def test_metadata_give_the_codec_back(self, codec: Codec) -> None:
        """Check that `configuration` is JSON and `from_config` its inverse."""
        text = json.dumps(codec.document(), allow_nan=False)
        made = codec_from_v3(json.loads(text), "codecs[0]")
        assert not isinstance(made, list), f"its own metadata, {text}, are refused: {made}"
        assert made == codec, f"{text} gives {made}: from_config must undo configuration()"

    def test_a_wrong_configuration_is_a_problem(self, codec: Codec) -> None:
        """Check that unknown members, and values that are none, are problems with a location."""
        document = {**codec.document(), "configuration": {**codec.configuration(), "no such": 1}}
        assert isinstance(codec_from_v3(document, "codecs[0]"), list), (
            "a member that it does not know is ignored: data of a newer version would be misread"
        )
        for member in codec.configuration():
            wrong = {**codec.configuration(), member: {"no": "such value"}}
            found = codec_from_v3({"name": codec.name, "configuration": wrong}, "codecs[0]")
            int32 = data_type_of("int32")
            refused = isinstance(found, list) or any(
                found.problems(ChunkSpec(CHUNKS, int32, int32.zero))
            )
            assert refused, (
                f"{member}={wrong[member]} is taken: raise ValueError in __post_init__, or note "
                "the problem in from_config"
            )

    def test_example(self, codec: Codec) -> None:
        """Check that `example` is a configuration."""
        given = codec.with_defaults(codec.name, codec.example(codec.name, "<i4"), 4)
        made = codec_from_v3({"name": codec.name, "configuration": given}, "codecs[0]")
        assert isinstance(made, Codec), f"example() gives {given}, which is refused: {made}"

    def test_speeds(self, codec: Codec) -> None:
        """Check that the speeds are bytes per second."""
        assert min(codec.speeds()) > 0, "speeds() are bytes per second, above 0"

    # --- chunks -----------------------------------------------------------------------------------

    def arrays(self, codec: Codec) -> Iterator[tuple[Array, np.ndarray]]:
        """Yield arrays in memory that use the codec, and their values, for all data types."""
        for dtype in DTYPES:
            try:
                array = create_array({}, shape=SHAPE, dtype=dtype, chunks=CHUNKS, codecs=[codec])
            except MetadataError:
                continue  # not for this data type
            yield array, values_of(dtype)

    def check(self, found: np.ndarray, values: np.ndarray, what: str) -> None:
        """Check what was read."""
        if self.lossy and values.dtype.kind in "iufc":
            most = np.abs(found - values.astype(found.dtype)).max()
            assert most <= self.tolerance, f"{what} differ by {most}, tolerance is {self.tolerance}"
        else:
            assert found.tolist() == values.tolist(), f"{what} are not what was written"

    def test_values_are_read_as_written(self, codec: Codec) -> None:
        """Check all values, regions and parts of chunks, of every data type that it takes."""
        tried = 0
        for array, values in self.arrays(codec):
            array[...] = values
            again = open_array(array.store)
            self.check(again[...], values, f"{array.dtype} values")
            self.check(again[2:6, 3:11], values[2:6, 3:11], f"{array.dtype} values of a region")
            self.check(again[5, ::3], values[5, ::3], f"{array.dtype} values of a row")
            tried += 1
        assert tried, f"problems() refuses all of {', '.join(DTYPES)}"

    def test_in_shards(self, codec: Codec) -> None:
        """Check that the codec serves inner chunks of shards."""
        if not isinstance(codec, BytesCodec):
            pytest.skip("tried for codecs from bytes to bytes")
        values = values_of("int32", (8, 8))
        array = create_array(
            {}, shape=(8, 8), dtype="int32", chunks=(4, 4), shards=(8, 8), codecs=[codec]
        )
        array[...] = values
        self.check(open_array(array.store)[...], values, "values in a shard")

    def test_metadata_of_zarr_2(self, codec: Codec) -> None:
        """Check arrays of format v2, if the codec says that it can be named there."""
        if not codec.in_numcodecs:
            pytest.skip("in_numcodecs is False: the codec is for v3 only")
        values = values_of("int32")
        array = create_array(
            {}, shape=SHAPE, dtype="int32", chunks=CHUNKS, format="v2", codecs=codec.to_numcodecs()
        )
        array[...] = values
        self.check(open_array(array.store)[...], values, "values in format v2")

    def test_threads(self, codec: Codec) -> None:
        """Check that threads may use one codec at once."""
        for array, values in self.arrays(codec):
            array[...] = values
            with ThreadPoolExecutor(4) as pool:
                for found in pool.map(lambda _, array=array: array[...], range(16)):
                    self.check(found, values, "values read by four threads at once")
            return

    # --- bytes ------------------------------------------------------------------------------------

    def chunks(self, codec: Codec) -> Iterator[tuple[Any, np.ndarray, bytes]]:
        """Yield the bound codecs, the elements and the bytes of one chunk of each data type."""
        for array, values in self.arrays(codec):
            chunk = np.ascontiguousarray(values[: CHUNKS[0], : CHUNKS[1]])
            data_type = data_type_of(values.dtype)
            bound = array.meta.codecs.bind(ChunkSpec(CHUNKS, data_type, data_type.zero))
            yield bound, chunk, b"".join(map(bytes, bound.encode(chunk)))

    def test_encoding_leaves_its_input_alone(self, codec: Codec) -> None:
        """Check that `encode` does not change the elements, which belong to its caller."""
        for bound, chunk, data in self.chunks(codec):
            before = chunk.copy()
            assert b"".join(map(bytes, bound.encode(chunk))) == data, (
                "the same chunk is encoded to other bytes: copies and retries would differ"
            )
            assert chunk.tobytes() == before.tobytes(), "encode() has changed its input: copy it"

    def test_size_is_a_limit(self, codec: Codec) -> None:
        """Check `size` against what `encode` returns."""
        if not isinstance(codec, BytesCodec):
            pytest.skip("for codecs from bytes to bytes")
        for _, chunk, _ in self.chunks(codec):
            raw = chunk.tobytes()
            said = codec.size(EncodedSize.of(len(raw)))
            nbytes = len(bytes(codec.encode(raw, chunk.itemsize)))
            assert nbytes <= said.most, f"encode() gives {nbytes} bytes, size().most is {said.most}"
            assert said.exact in {None, nbytes}, (
                f"encode() gives {nbytes} bytes, size().exact is {said.exact}: it must be None if "
                "the number depends on the values"
            )
            decoded = bytes(
                codec.decode(codec.encode(raw, chunk.itemsize), EncodedSize.of(len(raw)))
            )
            assert decoded == raw, "decode() does not undo encode()"
            for wrong in (len(raw) + 1, len(raw) - 1):
                try:
                    codec.decode(codec.encode(raw, chunk.itemsize), EncodedSize.of(wrong))
                except CorruptObjectError:
                    continue
                pytest.fail(
                    f"{len(raw)} bytes are decoded although {wrong} are expected: call "
                    "size.check('the name', nbytes) in decode()"
                )

    def test_damaged_bytes_are_refused(self, codec: Codec) -> None:
        """Check that damage raises `CorruptObjectError`, or gives a chunk of the right size."""
        random = Random(1)  # noqa: S311  (no secret)
        for array, values in self.arrays(codec):
            array[...] = values
            key = next(key for key in array.store.list() if "zarr.json" not in key)
            data = bytes(array.store.get(key) or b"")
            for number in range(40):
                damaged = bytearray(data[: random.randrange(len(data) + 1)] if number % 2 else data)
                for _ in range(number % 5):
                    if damaged:
                        damaged[random.randrange(len(damaged))] = random.randrange(256)
                array.store.set(key, [bytes(damaged)])
                try:
                    assert open_array(array.store)[...].shape == SHAPE
                except ZarrDaskError:
                    continue
                except Exception as error:  # noqa: BLE001  (anything else is what fails)
                    pytest.fail(
                        f"damaged bytes raise {type(error).__name__} ({error}): decode() must "
                        "raise zarr_dask.errors.CorruptObjectError"
                    )
