"""Any chain of codecs: what is read is what NumPy says was written, whole and in part."""

from __future__ import annotations

from contextlib import suppress

import numcodecs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import zarr_dask as zd
from tests.support.codec_documents import LITTLE, codec, document, opened
from zarr_dask.codecs.base import ChunkSpec, DecodeOptions
from zarr_dask.codecs.fetch import drive_fetch_from_bytes
from zarr_dask.codecs.registry import chain_from_v3
from zarr_dask.dtypes import data_type_of
from zarr_dask.errors import CorruptObjectError, DataTypeError, MetadataError, UnknownCodecError

COMPRESSORS = [
    [],
    [],
    ["crc32c"],
    [codec("zstd", level=1)],
    [codec("numcodecs.jenkins_lookup3", initval=1), codec("numcodecs.zlib", level=1)],
    [codec("numcodecs.crc32"), codec("gzip", level=1)],
]
SMALL = 40
"""Values lie within this distance of 0, so that steps between integers lose nothing."""


@st.composite
def steps(draw, shape, dtype):
    """One array codec that loses nothing, and what it makes of shape and type."""
    kinds = ["transpose", "reshape", "cast_value", "scale_offset", "astype"]
    if dtype[0] == "i":
        kinds.append("delta")
    kind = draw(st.sampled_from(kinds))
    wider = {"i1": "i2", "i2": "i4", "i4": "i8", "i8": "i8", "f4": "f8", "f8": "f8"}[dtype]
    name = {"i": "int", "f": "float"}[dtype[0]] + str(8 * int(wider[1]))
    if kind == "transpose":
        order = draw(st.permutations(range(len(shape))))
        return codec("transpose", order=list(order)), tuple(shape[i] for i in order), dtype
    if kind == "reshape":
        size = int(np.prod(shape))
        first = draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0]))
        return codec("reshape", shape=[first, -1]), (first, size // first), dtype
    if kind == "cast_value":
        return codec("cast_value", data_type=name), shape, wider
    if kind == "astype":
        options = {"decode_dtype": f"<{dtype}", "encode_dtype": f"<{wider}"}
        return codec("numcodecs.astype", **options), shape, wider
    if kind == "delta":
        types = {"dtype": f"<{dtype}", "astype": f"<{wider}"}
        return codec("numcodecs.delta", **types), shape, wider
    if dtype[0] == "f":
        return codec("scale_offset", scale=0.5), shape, dtype
    return codec("scale_offset", offset=draw(st.integers(-2, 2))), shape, dtype


@st.composite
def chains(draw, shape, dtype, depth):
    """The documents of a chain for chunks of a shape and type."""
    documents = []
    for _ in range(draw(st.integers(0, 3))):
        document, shape, dtype = draw(steps(shape, dtype))
        documents.append(document)
    if depth and draw(st.booleans()):
        inner = tuple(
            draw(st.sampled_from([n for n in range(1, s + 1) if s % n == 0])) for s in shape
        )
        options = {
            "chunk_shape": list(inner),
            "codecs": draw(chains(inner, dtype, depth - 1)),
            "index_location": draw(st.sampled_from(["start", "end"])),
        }
        documents.append(codec("sharding_indexed", **options))
    elif dtype[0] == "i" and draw(st.booleans()):
        documents.append("packbits")
    else:
        documents.append(codec("bytes", endian=draw(st.sampled_from(["little", "big"]))))
    return [*documents, *draw(st.sampled_from(COMPRESSORS))]


@st.composite
def arrays(draw):
    """Arguments of ``create_array``, and what the codecs make of values."""
    ndim = draw(st.integers(1, 3))
    chunks = tuple(draw(st.integers(1, 6)) for _ in range(ndim))
    shape = tuple(draw(st.integers(1, 2 * n + 1)) for n in chunks)
    dtype = draw(st.sampled_from(["i2", "i4", "f4", "f8"]))
    codecs = draw(chains(chunks, dtype, 2))
    rounded = dtype[0] == "f" and draw(st.booleans())
    if rounded:
        codecs = [codec("bitround", keepbits=3), *codecs]
    fill = draw(st.sampled_from([0, 1, -5]))
    options = {"shape": shape, "chunks": chunks, "dtype": dtype, "codecs": codecs}
    return {**options, "fill_value": fill}, rounded


def regions(shape):
    def region(n):
        return st.builds(
            lambda a, b, step: slice(min(a, b), max(a, b), step),
            *(st.integers(0, n), st.integers(0, n), st.integers(1, 3)),
        )

    return st.tuples(*map(region, shape))


def laid_out(values, layout):
    """The same values in other memory."""
    if layout == "columns first":
        return np.asfortranarray(values)
    if layout == "strided":
        wide = np.zeros(tuple(2 * n for n in values.shape), values.dtype)
        wide[tuple(slice(None, None, 2) for _ in values.shape)] = values
        return wide[tuple(slice(None, None, 2) for _ in values.shape)]
    if layout == "other byte order":
        return values.astype(values.dtype.newbyteorder())
    return values


LAYOUTS = st.sampled_from(["rows first", "columns first", "strided", "other byte order"])


@given(arrays(), st.data())
def test_chains_store_what_numpy_says(made, data):
    options, rounded = made
    store = {}
    array = zd.create_array(store, **options)
    want = np.full(array.shape, options["fill_value"], array.dtype)
    for _ in range(data.draw(st.integers(1, 3))):
        region = data.draw(regions(array.shape))
        seed = data.draw(st.integers(0, 3))
        values = np.random.default_rng(seed).integers(-SMALL, SMALL, want[region].shape)
        values = values.astype(array.dtype)
        if data.draw(st.booleans()):
            values[...] = options["fill_value"]
        array[region] = laid_out(values, data.draw(LAYOUTS))
        if rounded and values.size:
            values = np.asarray(numcodecs.BitRound(3).encode(values)).view(values.dtype)
        want[region] = values
    again = zd.open_array(store)
    np.testing.assert_array_equal(again[...], want)
    region = data.draw(regions(array.shape))
    np.testing.assert_array_equal(again[region], want[region])
    out = np.empty(want[region].shape, array.dtype, order="F")
    np.testing.assert_array_equal(again.read(region, out), want[region])
    assert all(value is not None for value in store.values())


PLAIN = [
    [LITTLE],
    [codec("transpose", order=[1, 0]), LITTLE, codec("zstd", level=1)],
    [codec("bitround", keepbits=4), LITTLE, codec("zstd", level=1)],
    [codec("sharding_indexed", chunk_shape=[2, 4], codecs=[LITTLE, codec("gzip", level=1)])],
]


@pytest.mark.parametrize("documents", PLAIN, ids=lambda documents: documents[0]["name"])
def test_what_only_moves_elements_is_decoded_into_its_destination(documents, monkeypatch):
    """No codec that changes nothing in decoding gets memory of its own."""
    bound = chain_from_v3(documents).bind(ChunkSpec((4, 8), data_type_of("f4"), np.zeros((), "f4")))
    values = np.arange(32, dtype="f4").reshape(4, 8)
    encoded = b"".join(bytes(piece) for piece in bound.encode(values))
    monkeypatch.setattr(bound, "_memory_after", None)
    out = np.zeros((4, 8), "f4")
    bound.decode(encoded, None, out, DecodeOptions())
    np.testing.assert_array_equal(out, values)
    part = np.zeros((2, 3), "f4")
    region = (slice(1, 3, 1), slice(2, 8, 2))
    assert drive_fetch_from_bytes(bound.read(region, part, DecodeOptions(), whole=False), encoded)
    np.testing.assert_array_equal(part, values[region])


def test_a_reshaped_chunk_is_decoded_into_its_destination(monkeypatch):
    documents = [codec("reshape", shape=[-1]), LITTLE, codec("zstd", level=1)]
    bound = chain_from_v3(documents).bind(ChunkSpec((4, 8), data_type_of("f4"), np.zeros((), "f4")))
    values = np.arange(32, dtype="f4").reshape(4, 8)
    encoded = b"".join(bytes(piece) for piece in bound.encode(values))
    monkeypatch.setattr(bound, "_memory_after", None)
    out = np.zeros((4, 8), "f4")
    bound.decode(encoded, None, out, DecodeOptions())
    np.testing.assert_array_equal(out, values)


# --- documents and bytes of strangers -------------------------------------------------------------

SOUND = [
    codec("bitround", keepbits=3),
    codec("reshape", shape=[-1]),
    codec("reshape", shape=[[0], 3]),
    codec("transpose", order=[1, 0]),
    codec("scale_offset", offset=1, scale=2),
    codec("cast_value", data_type="float32"),
    codec("cast_value", data_type="int16", out_of_range="wrap", rounding="towards-zero"),
    codec(
        "cast_value",
        data_type="int8",
        scalar_map={"encode": [["NaN", 0]], "decode": [[0, "NaN"]]},
    ),
    codec("numcodecs.delta", dtype="<i4", astype="|i1"),
    codec("numcodecs.delta", dtype="<f8"),
    codec("numcodecs.fixedscaleoffset", offset=1, scale=10, astype="<i2"),
    codec("numcodecs.quantize", digits=2, dtype="<f8"),
    codec("numcodecs.astype", encode_dtype="<i2"),
    codec("numcodecs.packbits"),
    codec("numcodecs.bitround", keepbits=4),
    {"name": "acme.thing", "configuration": {"level": 3}, "must_understand": False},
]
SERIALIZERS = [
    LITTLE,
    codec("packbits"),
    codec("packbits", padding_encoding="last_byte", first_bit=0, last_bit=6),
    codec("sharding_indexed", chunk_shape=[2, 3], codecs=[LITTLE]),
    codec("sharding_indexed", chunk_shape=[2, 3], codecs=[LITTLE, "crc32c"], index_codecs=[LITTLE]),
    codec("endian", endian="big"),
]
COMPRESSING = [
    "crc32c",
    codec("numcodecs.shuffle", elementsize=4),
    codec("numcodecs.crc32", location="end"),
    {"name": "acme.thing", "configuration": {"level": 3}, "must_understand": False},
]
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.integers(-3, 9)
    | st.floats()
    | st.sampled_from(["<i4", "|u1", "<f8", "int8", "float16", "NaN", "0x00", "wrap", "end", "C"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["encode", "decode", "name"]), inner, max_size=2)
    ),
    max_leaves=8,
)


@st.composite
def strange_codecs(draw, sound):
    """A codec, more often than not with one member that is anything."""
    made = draw(st.sampled_from(sound))
    if not isinstance(made, dict) or draw(st.booleans()):
        return made
    configuration = dict(made.get("configuration", {}))
    if not configuration or draw(st.integers(0, 9)) == 0:
        return {
            **made,
            draw(st.sampled_from(["must_understand", "name", "configuration"])): draw(VALUES),
        }
    configuration[draw(st.sampled_from(list(configuration)))] = draw(VALUES)
    return {**made, "configuration": configuration}


@pytest.mark.filterwarnings("ignore::zarr_dask.errors.ZarrDaskWarning")
@given(
    st.lists(strange_codecs(SOUND), max_size=1),
    strange_codecs(SERIALIZERS),
    st.lists(strange_codecs(COMPRESSING), max_size=1),
    st.sampled_from([("int32", 3), ("uint8", 3), ("float64", "NaN"), ("bool", True)]),
    st.binary(max_size=120),
)
def test_strange_documents_end_in_errors_of_ours(arrays, serializer, behind, typed, stored):
    data_type, fill = typed
    wanted = document((4, 3), data_type, [*arrays, serializer, *behind], fill=fill)
    try:
        array, store = opened(wanted, {"c/0/0": stored})
    except MetadataError:
        return
    for region in (..., (slice(1, 3), 2)):
        with suppress(CorruptObjectError):
            assert array[region].dtype == array.dtype
    del store["c/0/0"]
    values = np.ones((4, 3), array.dtype)
    with suppress(DataTypeError, UnknownCodecError), np.errstate(all="ignore"):
        array[...] = values
        array[1, 1] = values[0, 0]
        assert array[...].dtype == array.dtype


# --- arrays whose chunks change their shape -------------------------------------------------------


def shard(chunk_shape, *codecs):
    return codec("sharding_indexed", chunk_shape=chunk_shape, codecs=list(codecs))


RECHUNKED = {
    "a cast around shards": (
        [codec("cast_value", data_type="int8"), shard([2, 4], "bytes")],
        ["cast_value", "bytes"],
    ),
    "all around shards": (
        [
            codec("transpose", order=[1, 0]),
            codec("scale_offset", offset=-3),
            shard([4, 2], codec("bitround", keepbits=9), LITTLE, "crc32c"),
            codec("gzip", level=1),
        ],
        ["transpose", "scale_offset", "bitround", "bytes", "crc32c"],
    ),
    "differences": (
        [codec("numcodecs.delta", dtype="<i4"), LITTLE],
        ["numcodecs.delta", "bytes"],
    ),
    "one dimension": ([codec("reshape", shape=[[0, 1]]), "packbits"], ["reshape", "packbits"]),
}
"""Codecs, and the names of those of a chunk."""


@pytest.mark.parametrize("case", RECHUNKED)
@pytest.mark.parametrize("shards", [None, (6, 8)])
def test_rechunking_keeps_codecs_that_change_values(case, shards):
    codecs, kept = RECHUNKED[case]
    values = np.arange(120, dtype="i4").reshape(10, 12)
    source = zd.create_array({}, shape=(10, 12), chunks=(4, 8), dtype="i4", codecs=codecs)
    source[...] = values
    made = {}
    zd.rechunk(source, made, chunks=(3, 4), shards=shards)
    again = zd.open_array(made)
    np.testing.assert_array_equal(again[...], values)
    assert again.chunks == (3, 4)
    inner = again.codecs[0].inner_codecs if shards else again.codecs
    assert [made.name for made in inner] == kept


def test_reshaping_to_given_lengths_does_not_survive_other_chunks():
    codecs = [codec("reshape", shape=[4, 8]), LITTLE]
    source = zd.create_array({}, shape=(8, 8), chunks=(4, 8), dtype="i4", codecs=codecs)
    with pytest.raises(MetadataError, match="a shape of the 12 elements"):
        zd.rechunk(source, {}, chunks=(3, 4))
