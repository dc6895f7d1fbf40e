"""``zfp``, ``numcodecs.zfpy`` and ``numcodecs.pcodec``, and what happens without their packages."""

import json
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
import zarr
import zfpy
from numcodecs.pcodec import PCodec
from numcodecs.zfpy import ZFPY
from zarr.codecs import numcodecs as zarr_numcodecs

import zarr_dask as zd
from tests.support.paths import ROOT
from zarr_dask.codecs.base import ChunkSpec, DecodeOptions
from zarr_dask.codecs.numeric import zfp_expert
from zarr_dask.codecs.registry import chain_from_v3
from zarr_dask.dtypes import data_type_of
from zarr_dask.errors import (
    CorruptObjectError,
    DataTypeError,
    MetadataError,
    MissingDependencyError,
)
from zarr_dask.stores.backends.memory import MemoryStore

SHAPES = [(), (1,), (7,), (5, 6), (3, 4, 5), (2, 3, 4, 5)]
ZFP_TYPES = ["int32", "int64", "float32", "float64"]
MODES = [
    {"mode": "reversible"},
    {"mode": "fixed_accuracy", "tolerance": 0.05},
    {"mode": "fixed_accuracy", "tolerance": 0},
    {"mode": "fixed_rate", "rate": 10.5},
    {"mode": "fixed_precision", "precision": 19},
]


def bound(document, shape, dtype):
    data_type = data_type_of(dtype)
    spec = ChunkSpec(shape, data_type, data_type.zero)
    chain = chain_from_v3([document])
    assert not list(chain.problems(spec))
    return chain.bind(spec)


def zfp(**configuration):
    return {"name": "zfp", "configuration": configuration}


def encode(chain, array):
    return b"".join(map(bytes, chain.encode(array)))


def decode(chain, data):
    out = np.empty(chain.spec.shape, chain.spec.dtype)
    chain.decode(data, None, out, DecodeOptions())
    return out


def numbers(shape, dtype):
    noise = np.random.default_rng(3).normal(size=shape) * 1000
    return np.asarray(noise).astype(dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ZFP_TYPES)
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: "-".join(map(str, mode.values())))
def test_zfp_is_the_stream_without_header(mode, dtype, shape):
    array = numbers(shape, dtype)
    chain = bound(zfp(**mode), shape, dtype)
    parameters = {name: value for name, value in mode.items() if name != "mode"}
    oracle = array.reshape(shape or (1,))
    stream = zfpy.compress_numpy(oracle, write_header=False, **parameters)
    assert encode(chain, array) == stream
    expected = zfpy.decompress_numpy(zfpy.compress_numpy(oracle, write_header=True, **parameters))
    np.testing.assert_array_equal(decode(chain, stream), expected.reshape(shape))
    if mode["mode"] == "reversible":
        np.testing.assert_array_equal(decode(chain, stream), array)


def expert(*numbers):
    return dict(zip(("minbits", "maxbits", "maxprec", "minexp"), numbers, strict=True))


def with_header(stream, shape, dtype, minbits, maxbits, maxprec, minexp):
    """A stream with zfp's own header in front, 148 bits of which 64 hold the numbers."""
    longest = {1: 48, 2: 24, 3: 16, 4: 12}[len(shape)]
    meta = 0
    for length in shape:
        meta = meta << longest | length - 1
    meta = meta << 4 | len(shape) - 1 << 2 | ZFP_TYPES.index(dtype)
    mode = minexp + 16495
    for number, bits in ((maxprec, 7), (maxbits, 15), (minbits, 15)):
        mode = mode << bits | max(number, 1) - 1
    mode = mode << 12 | 0xFFF
    magic = zfpy.compress_numpy(np.zeros(1, "i4"))[:4]
    bits = int.from_bytes(magic, "little") | meta << 32 | mode << 84
    bits |= int.from_bytes(stream, "little") << 148
    return bits.to_bytes(len(stream) + 32, "little")


EXPERTS = [
    (1, 13, 19, -2),
    (0, 32768, 64, -1074),
    (40, 400, 11, -5),
    (64, 64, 7, 3),
    (1, 25, 64, -1075),
    (20, 3000, 12, -1100),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ZFP_TYPES)
@pytest.mark.parametrize("numbers_of_expert", EXPERTS, ids=str)
def test_zfp_of_an_expert(numbers_of_expert, dtype, shape):
    chain = bound(zfp(mode="expert", **expert(*numbers_of_expert)), shape, dtype)
    array = numbers(shape, dtype)
    stream = encode(chain, array)
    minbits, maxbits, *_ = numbers_of_expert
    blocks = np.prod([-(-n // 4) for n in shape], dtype=int)
    assert blocks * minbits <= 8 * len(stream) <= blocks * maxbits + 64
    headed = with_header(stream, shape or (1,), dtype, *numbers_of_expert)
    padded = np.frombuffer(headed + bytes(100_000), "u1")
    expected = zfpy.decompress_numpy(padded).reshape(shape)
    found = decode(chain, stream)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(decode(chain, stream + bytes(8)), expected)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ZFP_TYPES)
def test_every_mode_of_zfp_is_one_of_an_expert(dtype, shape):
    rate = 6.5 if shape else 16
    bits = int(rate * 4 ** (len(shape) or 1) + 0.5)
    same = {
        (1, 1 << 40, 64, -(1 << 40)): {},
        (0, 20_000, 64, -3): {"tolerance": 0.125},
        (1, 16658, 13, -1074): {"precision": 13},
        (bits, bits, 64, -1074): {"rate": rate},
    }
    array = numbers(shape, dtype)
    for given, mode in same.items():
        chain = bound(zfp(mode="expert", **expert(*given)), shape, dtype)
        theirs = zfpy.compress_numpy(array.reshape(shape or (1,)), write_header=False, **mode)
        assert encode(chain, array) == theirs


def test_the_example_of_the_registry_for_experts(tmp_path):
    document = zfp(mode="expert", **expert(1, 13, 19, -2))
    values = numbers((8, 8), "f4")
    array = zd.create_array(tmp_path, shape=(8, 8), chunks=(4, 8), dtype="f4", codecs=[document])
    array[:] = values
    assert json.loads((tmp_path / "zarr.json").read_text())["codecs"] == [document]
    assert (tmp_path / "c" / "0" / "0").stat().st_size == 8  # two blocks of 13 bits
    found = zd.open(tmp_path)[...]
    np.testing.assert_array_equal(found, array[...])
    assert 0 < np.abs(found).max() < 4 * np.abs(values).max()


def test_streams_of_an_expert_that_lie():
    chain = bound(zfp(mode="expert", **expert(64, 64, 19, -2)), (8, 8), "f4")
    honest = encode(chain, numbers((8, 8), "f4"))
    for damaged in (b"", honest[:-8], honest + bytes(10_000)):
        with pytest.raises(CorruptObjectError):
            decode(chain, damaged)
    decode(chain, bytes(len(honest)))
    decode(chain, b"\xff" * len(honest))


def test_a_zfpy_that_hides_its_library(monkeypatch):
    monkeypatch.setattr(zfpy, "__file__", np.__file__)
    zfp_expert._library.cache_clear()
    chain = bound(zfp(mode="expert", **expert(1, 13, 19, -2)), (4,), "f4")
    with pytest.raises(MissingDependencyError, match="expert mode needs a package zfpy that shows"):
        chain.encode(numbers((4,), "f4"))
    zfp_expert._library.cache_clear()


@pytest.mark.parametrize("dtype", ["uint32", "uint64"])
def test_unsigned_integers_in_zfp(dtype):
    chain = bound(zfp(mode="reversible"), (3,), dtype)
    largest = np.iinfo(dtype.removeprefix("u")).max
    array = np.array([0, 1, largest], dtype)
    np.testing.assert_array_equal(decode(chain, encode(chain, array)), array)
    with pytest.raises(DataTypeError, match="cannot hold"):
        chain.encode(np.array([largest + 1, 0, 0], dtype))
    negative = zfpy.compress_numpy(np.array([-5, 5, 6], dtype[1:]), write_header=False)
    assert decode(chain, negative).tolist() == [0, 5, 6]


@pytest.mark.parametrize("shape", [(7,), (5, 6), (2, 3, 4, 5)], ids=str)
@pytest.mark.parametrize("dtype", ZFP_TYPES)
def test_zfpy_is_what_numcodecs_writes(dtype, shape):
    array = numbers(shape, dtype)
    for options in (
        {"mode": 4, "tolerance": 0.5},
        {"mode": 2, "rate": 16},
        {"mode": 3, "precision": 9},
    ):
        chain = bound({"name": "numcodecs.zfpy", "configuration": options}, shape, dtype)
        theirs = ZFPY(**options).encode(array)
        assert encode(chain, array) == theirs
        np.testing.assert_array_equal(decode(chain, theirs), ZFPY(**options).decode(theirs))


@pytest.mark.parametrize("shape", [*SHAPES, (2, 2, 2, 2, 2)], ids=str)
@pytest.mark.parametrize("dtype", ["int16", "uint32", "int64", "float16", "float32", "float64"])
def test_pcodec_is_what_numcodecs_writes(dtype, shape):
    array = numbers(shape, dtype) if dtype != "uint32" else np.full(shape, 5, dtype)
    chain = bound({"name": "numcodecs.pcodec", "configuration": {"level": 3}}, shape, dtype)
    theirs = PCodec(level=3).encode(array)
    assert encode(chain, array) == theirs
    np.testing.assert_array_equal(decode(chain, theirs), array)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"name": "numcodecs.zfpy", "configuration": {"mode": 2, "rate": 32}},
         lambda: zarr_numcodecs.ZFPY(mode=2, rate=32)),
        ({"name": "numcodecs.pcodec", "configuration": {"level": 5}},
         lambda: zarr_numcodecs.PCodec(level=5)),
    ],
    ids=["zfpy", "pcodec"],
)  # fmt: skip
def test_zarr_python_and_we_share_arrays(tmp_path, ours, theirs):
    values = np.arange(35, dtype="f8").reshape(7, 5)
    array = zd.create_array(
        tmp_path / "ours", shape=(7, 5), chunks=(3, 4), dtype="f8", codecs=[ours]
    )
    array[:] = values
    with warnings.catch_warnings(action="ignore"):
        np.testing.assert_array_equal(zarr.open_array(tmp_path / "ours", mode="r")[:], array[:])
        other = zarr.create_array(
            tmp_path / "theirs", shape=(7, 5), chunks=(3, 4), dtype="f8", serializer=theirs(),
            compressors=None,
        )  # fmt: skip
        other[:] = values
        np.testing.assert_array_equal(zd.open(tmp_path / "theirs")[:], other[:])


def test_zfp_in_a_shard():
    store = MemoryStore()
    codecs = [zfp(mode="reversible"), "crc32c"]
    array = zd.create_array(
        store, shape=(8, 8), chunks=(4, 4), shards=(8, 8), dtype="f4", codecs=codecs
    )
    array[:] = numbers((8, 8), "f4")
    np.testing.assert_array_equal(zd.open(store)[4:, :3], numbers((8, 8), "f4")[4:, :3])
    document = json.loads(store.get("zarr.json"))
    assert document["codecs"][0]["configuration"]["codecs"][0] == zfp(mode="reversible")


@pytest.mark.parametrize(
    ("document", "dtype", "shape", "place"),
    [
        (zfp(), "f4", 4, "mode"),
        (zfp(mode="expert", minbits=1, maxbits=13, maxprec=19), "f4", 4, "minexp"),
        (zfp(mode="expert", rate=1, **expert(1, 13, 19, -2)), "f4", 4, "rate"),
        (zfp(mode="expert", **expert(1, 13, 19, -2.5)), "f4", 4, "minexp"),
        (zfp(mode="expert", **expert(-1, 13, 19, -2)), "f4", 4, "minbits"),
        (zfp(mode="expert", **expert(513, 600, 19, -2)), "f4", 4, "from 0 to 512"),
        (zfp(mode="expert", **expert(14, 13, 19, -2)), "f4", 4, "at least 14"),
        (zfp(mode="expert", **expert(0, 0, 19, -2)), "i4", 4, "maxbits"),
        (zfp(mode="expert", **expert(0, 8, 19, -2)), "f4", 4, "at least 9"),
        (zfp(mode="expert", **expert(0, 11, 19, -2)), "f8", 4, "at least 12"),
        (zfp(mode="expert", **expert(0, 17, 19, -1075)), "f8", 4, "at least 18"),
        (zfp(mode="expert", **expert(0, 4, 19, -1075)), "u4", 4, "at least 5"),
        (zfp(mode="expert", **expert(1, 13, 0, -2)), "f4", 4, "maxprec"),
        (zfp(mode="expert", **expert(1, 13, 65, -2)), "f4", 4, "maxprec"),
        (zfp(mode="fixed_rate"), "f4", 4, "rate"),
        (zfp(mode="fixed_rate", rate=0), "f4", 4, "rate"),
        (zfp(mode="fixed_rate", rate=1e300), "f4", 4, "rate"),
        (zfp(mode="fixed_precision", precision=1.5), "f4", 4, "precision"),
        (zfp(mode="fixed_accuracy", tolerance=-1), "f4", 4, "tolerance"),
        (zfp(mode="reversible", rate=1), "f4", 4, "rate"),
        (zfp(mode="reversible"), "i2", 4, "int16"),
        (zfp(mode="reversible"), "f4", (1,) * 5, "at most 4"),
        ({"name": "numcodecs.zfpy", "configuration": {"mode": 1}}, "f4", 4, "mode"),
        ({"name": "numcodecs.zfpy", "configuration": {"x": 1}}, "f4", 4, "x"),
        ({"name": "numcodecs.zfpy", "configuration": {"mode": 4}}, "u4", 4, "uint32"),
        ({"name": "numcodecs.pcodec", "configuration": {"level": 13}}, "f4", 4, "level"),
        ({"name": "numcodecs.pcodec", "configuration": {"level": 1}}, "c8", 4, "complex64"),
    ],
    ids=str,
)
def test_configurations_that_are_refused(document, dtype, shape, place):
    with pytest.raises(MetadataError, match=place):
        zd.create_array(MemoryStore(), shape=shape, chunks=shape, dtype=dtype, codecs=[document])


def test_headers_of_zfp_that_lie():
    chain = bound({"name": "numcodecs.zfpy", "configuration": {"mode": 2, "rate": 8}}, (4, 4), "f4")
    honest = encode(chain, np.zeros((4, 4), "f4"))
    for other in (
        np.zeros((4, 5), "f4"),
        np.zeros((4096, 4096), "f4"),
        np.zeros((4, 4), "f8"),
        np.zeros((4, 4), "i4"),
    ):
        with pytest.raises(CorruptObjectError):
            decode(chain, zfpy.compress_numpy(other, rate=8)[: len(honest)])
    for damaged in (b"", b"zfp", bytes(20), honest + bytes(10_000)):
        with pytest.raises(CorruptObjectError):
            decode(chain, damaged)


@pytest.mark.parametrize(
    ("document", "package", "extra"),
    [
        (zfp(mode="reversible"), "zfpy", "zarr-dask[zfp]"),
        (zfp(mode="expert", **expert(1, 13, 19, -2)), "zfpy", "zarr-dask[zfp]"),
        ({"name": "numcodecs.zfpy", "configuration": {"mode": 4}}, "zfpy", "zarr-dask[zfp]"),
        ({"name": "numcodecs.pcodec"}, "pcodec", "zarr-dask[pcodec]"),
    ],
    ids=["zfp", "zfp of an expert", "zfpy", "pcodec"],
)
def test_without_the_package(monkeypatch, document, package, extra):
    store = MemoryStore()
    array = zd.create_array(store, shape=4, chunks=4, dtype="f4", codecs=[document])
    array[:] = np.arange(4)
    zfp_expert._library.cache_clear()
    monkeypatch.setitem(sys.modules, package, None)
    for name in [n for n in sys.modules if n.startswith(f"{package}.")]:
        monkeypatch.setitem(sys.modules, name, None)
    array = zd.open(store, mode="r+")  # what it is can be said without the package
    assert array.shape == (4,)
    with pytest.raises(MissingDependencyError) as caught:
        array[:]
    assert extra in str(caught.value)
    with pytest.raises(MissingDependencyError):
        array[:] = 1


def test_a_zfpy_that_numcodecs_cannot_read_disables_itself_alone(tmp_path):
    """zfpy 1.0.1.post0 has a version that makes ``import numcodecs`` fail."""
    info = tmp_path / "zfpy-1.0.1.post0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: zfpy\nVersion: 1.0.1.post0\n")
    code = (
        "import zarr_dask as zd; a = zd.create_array({}, shape=4, chunks=4, dtype='f4');"
        "a[:] = 1; import numcodecs; print(a[:].sum(), 'zfpy' in numcodecs.registry.codec_registry)"
    )
    child = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert child.stdout.split() == ["4.0", "False"], child.stderr
