"""What is fuzzed: every decoder, with valid inputs to start from.

A target decodes bytes into a destination between guards. What it accepts it must decode to the same
elements whatever was in the destination before, so that no memory of others shows through.
"""

import io
import json
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numcodecs
import numpy as np

import zarr_dask as zd
from tests.support.fuzz.mutate import hostile_bytes, hostile_json
from tests.support.guarded import GUARD, guarded_memory
from tests.support.paths import SNAPPY_FRAMES
from zarr_dask.codecs.base import ByteRequest, ChunkSpec, DecodeOptions, EncodedSize
from zarr_dask.codecs.chain import CodecChain
from zarr_dask.codecs.codec_config import ParseContext
from zarr_dask.codecs.compress.blosc import Blosc
from zarr_dask.codecs.fetch import drive_fetch_from_bytes
from zarr_dask.codecs.registry import chain_from_v3
from zarr_dask.codecs.registry_numcodecs import (
    codec_from_numcodecs,
    object_serializer_from_numcodecs,
)
from zarr_dask.dtypes import DataType, data_type_of
from zarr_dask.errors import CorruptObjectError, ZarrDaskError
from zarr_dask.stores.backends.memory import MemoryStore

LIMITS = zd.Limits(chunk_bytes=1 << 24, metadata_bytes=1 << 20, variable_bytes=1 << 22)


@dataclass(frozen=True)
class Target:
    """A decoder with inputs it accepts."""

    name: str
    samples: list[bytes]
    decode: Callable[[bytes], None]
    """Raises `ZarrDaskError` for what is not accepted, and nothing else."""
    hostile: Callable[[str, list[bytes]], bytes] = hostile_bytes


# --- bytes codecs ---------------------------------------------------------------------------------

NOISE = np.random.default_rng(7).bytes(400)
DATA = np.arange(200, dtype="<i4").tobytes() + NOISE + bytes(400)

COMPRESSORS = [
    *({"id": "blosc", "cname": cname, "clevel": 5, "shuffle": shuffle, "blocksize": blocksize}
      for cname in ("lz4", "zstd", "zlib", "blosclz", "lz4hc") for shuffle in (0, 1, 2)
      for blocksize in (0, 256)),
    {"id": "zstd", "level": 1}, {"id": "zstd", "level": 1, "checksum": True},
    {"id": "gzip", "level": 1}, {"id": "zlib", "level": 6}, {"id": "bz2", "level": 1},
    {"id": "lzma"}, {"id": "lzma", "format": 2},
    {"id": "lzma", "format": 3, "filters": [{"id": 33, "preset": 1}]},
    {"id": "lz4"}, {"id": "crc32c"}, {"id": "crc32"}, {"id": "adler32"}, {"id": "fletcher32"},
    {"id": "jenkins_lookup3", "initval": 0, "prefix": None}, {"id": "shuffle", "elementsize": 4},
    {"id": "delta", "dtype": "<i4"}, {"id": "delta", "dtype": "<i4", "astype": "<i2"},
    {"id": "fixedscaleoffset", "offset": 1, "scale": 2, "dtype": "<i4", "astype": "<u2"},
    {"id": "quantize", "digits": 2, "dtype": "<f4", "astype": "<f2"},
    {"id": "bitround", "keepbits": 3},
    {"id": "astype", "encode_dtype": "<i2", "decode_dtype": "<i4"},
    {"id": "packbits"}, {"id": "base64"},
    {"id": "categorize", "labels": ["a", "b"], "dtype": "<U1", "astype": "|u1"},
]  # fmt: skip
ELEMENTS = {"packbits": "|b1", "quantize": "<f4", "bitround": "<f4", "categorize": "<U1"}
"""Type strings of what some of them take; the others take integers."""


def streaming_zstd(data: bytes) -> bytes:
    """A frame that does not say how much it holds."""
    frame = numcodecs.zstd.compress(data, 1)
    start, width = (5, 1) if frame[4] & 0x20 else (6, 0)
    width = {0: width, 1: 2, 2: 4, 3: 8}[frame[4] >> 6]
    window = b"\x58" if start == 5 else frame[5:6]
    return frame[:4] + bytes([frame[4] & 0x1F]) + window + frame[start + width :]


def bytes_targets() -> Iterator[Target]:
    for config in COMPRESSORS:
        dtype = ELEMENTS.get(config["id"], "<i4")
        codec = codec_from_numcodecs(config, "c", dtype)
        whole = DATA if dtype == "<i4" else np.arange(300).astype(dtype).tobytes()
        samples = [bytes(codec.encode(data, 4)) for data in (whole, whole[:16])]
        if config["id"] in {"zstd", "gzip", "bz2", "lzma"} and config.get("format") != 3:
            samples.append(bytes(codec.encode(DATA[:900], 4)) + bytes(codec.encode(DATA[900:], 4)))
        if config["id"] == "zstd":
            samples += [streaming_zstd(DATA), bytes.fromhex("502a4d1801000000aa") + samples[0]]
        name = "-".join(str(value) for value in config.values())
        yield Target(name, samples, decoding_bytes(codec, len(whole)))


def snappy_targets() -> Iterator[Target]:
    """Frames of blosc with snappy, which is decoded in Python."""
    frames = json.loads(SNAPPY_FRAMES.read_text())
    for name, text in frames.items():
        frame = bytes.fromhex(text)
        nbytes = int.from_bytes(frame[4:8], "little")
        yield Target(f"snappy {name}", [frame], decoding_bytes(Blosc(), nbytes))


LONG = np.repeat(np.arange(1 << 13, dtype="<i4"), 24).tobytes() + NOISE
"""Of a dozen blocks."""


def divided_targets() -> Iterator[Target]:
    """Frames of which some blocks are wanted."""
    for cname in ("lz4", "zstd", "zlib", "blosclz"):
        for shuffle in (0, 1, 2):
            items = np.frombuffer(LONG, "<i4")
            frames = [
                bytes(numcodecs.blosc.compress(items, cname.encode(), clevel, shuffle, 1 << 14))
                for clevel in (5, 0)
            ]
            yield Target(f"blosc in part {cname} {shuffle}", frames, decode_part)


def decode_part(data: bytes) -> None:
    """What is wanted must not depend on what was there before, and is right where all of it is."""
    spans = [(0, 100), (len(LONG) - 90, len(LONG))]
    wanted = ByteRequest(len(LONG), 0, len(LONG), spans)
    found = []
    for before in (0x00, 0xFF):
        with guarded_memory(before):
            try:
                out = drive_fetch_from_bytes(Blosc().partial_decode(wanted), data).memory
                found.append(b"".join(out[start:stop].tobytes() for start, stop in spans))
            except ZarrDaskError:
                found.append(b"")
    assert found[0] == found[1], "the result depends on what was there before"
    whole = bytes(
        Blosc().decode(data, EncodedSize.of(len(LONG)))
    )  # raises if it is not to be accepted
    assert found[0] == b"".join(whole[start:stop] for start, stop in spans), "not that of the whole"


def decoding_bytes(codec, nbytes: int) -> Callable[[bytes], None]:
    """All three ways to decode, which must agree."""

    def decode(data: bytes) -> None:
        guarded = np.empty(nbytes + 2 * GUARD, np.uint8)
        out = guarded[GUARD:-GUARD]
        found = []
        for before in (0x00, 0xFF):
            guarded[:] = before
            try:
                codec.decode_into(data, out)
                found.append(out.tobytes())
            except ZarrDaskError:
                found.append(None)
            assert (guarded[:GUARD] == before).all(), "written before the destination"
            assert (guarded[-GUARD:] == before).all(), "written after the destination"
        assert found[0] == found[1], "the result depends on what was there before"
        try:
            exact = bytes(codec.decode(data, EncodedSize.of(nbytes)))
        except ZarrDaskError:
            exact = None
        assert exact == found[0], "decode and decode_into differ"
        open_ended = codec.decode(data, EncodedSize(None, 1 << 20))
        assert len(open_ended) <= 1 << 20, "more than was allowed"
        assert bytes(open_ended) == bytes(codec.decode(data, EncodedSize(None, 1 << 20))), (
            "not the same"
        )
        if exact is None:
            raise CorruptObjectError("refused where the size is known")

    return decode


# --- chains ---------------------------------------------------------------------------------------

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
BIG = {"name": "bytes", "configuration": {"endian": "big"}}
GZIP = {"name": "gzip", "configuration": {"level": 1}}
ZSTD = {"name": "zstd", "configuration": {"level": 1, "checksum": False}}
BLOSC = {
    "name": "blosc",
    "configuration": {
        "cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": 4, "blocksize": 0
    },
}  # fmt: skip
TRANSPOSE = {"name": "transpose", "configuration": {"order": [1, 0]}}


def shard(*codecs, chunk=(3, 4), index=(LITTLE, "crc32c"), location="end"):
    return {
        "name": "sharding_indexed",
        "configuration": {
            "chunk_shape": list(chunk),
            "codecs": list(codecs),
            "index_codecs": list(index),
            "index_location": location,
        },
    }


CHAINS = {
    "little": [LITTLE],
    "big": [BIG],
    "transposed": [TRANSPOSE, LITTLE],
    "gzip": [LITTLE, GZIP],
    "zstd": [BIG, ZSTD],
    "blosc": [LITTLE, BLOSC],
    "several": [TRANSPOSE, LITTLE, GZIP, ZSTD, "crc32c"],
    "shard": [shard(LITTLE)],
    "shard without checksum": [shard(LITTLE, index=[LITTLE])],
    "shard with its index first": [shard(LITTLE, ZSTD, index=[BIG], location="start")],
    "shard of compressed chunks": [shard(LITTLE, GZIP, index=[LITTLE])],
    "shard in a shard": [shard(shard(LITTLE, chunk=(3, 2), index=[LITTLE]), index=[LITTLE])],
    "compressed shard": [shard(LITTLE, index=[LITTLE]), ZSTD],
}
NUMBERS = np.arange(72, dtype="<i4").reshape(6, 12)
TEXTS = np.array([f"text é {n}" * (n % 5) for n in range(72)], object).reshape(6, 12)
BYTES = np.array([b"\xff" * (n % 5) for n in range(72)], object).reshape(6, 12)


def prefixed(name, **configuration):
    return {"name": f"numcodecs.{name}", "configuration": configuration}


TYPED = {
    "texts": ("string", TEXTS, ["vlen-utf8"]),
    "compressed texts": ("string", TEXTS, ["vlen-utf8", ZSTD]),
    "texts in gzip and blosc": ("string", TEXTS, ["vlen-utf8", BLOSC, GZIP]),
    "transposed texts": ("string", TEXTS, [TRANSPOSE, "vlen-utf8"]),
    "texts in a shard": ("string", TEXTS, [shard("vlen-utf8", index=[LITTLE])]),
    "byte strings": ("bytes", BYTES, ["vlen-bytes"]),
    "bools": ("bool", NUMBERS % 2 > 0, ["bytes"]),
    "packed bools": ("bool", NUMBERS % 2 > 0, ["packbits"]),
    "counted packed bools": (
        "bool",
        NUMBERS % 3 > 0,
        [{"name": "packbits", "configuration": {"padding_encoding": "first_byte"}}],
    ),
    "packed integers": (
        "i4",
        NUMBERS,
        [{"name": "packbits", "configuration": {"first_bit": 1, "last_bit": 9}}],
    ),
    "packed half bytes": ("int4", NUMBERS % 8, ["packbits"]),
    "n5_default": (
        "i4",
        NUMBERS,
        [{"name": "n5_default", "configuration": {"codecs": [TRANSPOSE, BIG]}}],
    ),
    "compressed n5_default": (
        "i4",
        NUMBERS,
        [{"name": "n5_default", "configuration": {"codecs": [TRANSPOSE, BIG, ZSTD]}}],
    ),
    "conditional": (
        "i4",
        NUMBERS,
        [
            LITTLE,
            {
                "name": "conditional",
                "configuration": {"codecs": ["crc32c", ZSTD, GZIP], "header_bits": 16},
            },
        ],
    ),
    "scale_offset": (
        "f8",
        NUMBERS,
        [{"name": "scale_offset", "configuration": {"offset": 2, "scale": 4}}, LITTLE],
    ),
    "cast_value": (
        "f8",
        NUMBERS,
        [{"name": "cast_value", "configuration": {"data_type": "int16"}}, LITTLE],
    ),
    "cast_value to floats": (
        "i4",
        NUMBERS,
        [{"name": "cast_value", "configuration": {"data_type": "float32"}}, LITTLE],
    ),
    "zfp": ("f4", NUMBERS, [{"name": "zfp", "configuration": {"mode": "reversible"}}]),
    "zfp of fixed rate": (
        "f8",
        NUMBERS,
        [{"name": "zfp", "configuration": {"mode": "fixed_rate", "rate": 9}}],
    ),
    "zfp of fixed accuracy": (
        "i4",
        NUMBERS,
        [{"name": "zfp", "configuration": {"mode": "fixed_accuracy", "tolerance": 0}}],
    ),
    "numcodecs.zfpy": ("f4", NUMBERS, [prefixed("zfpy", mode=4, tolerance=0.5)]),
    "numcodecs.pcodec": ("i4", NUMBERS, [prefixed("pcodec", level=3)]),
    "endian": ("i4", NUMBERS, [{"name": "endian", "configuration": {"endian": "big"}}]),
    "bitround": (
        "f4",
        NUMBERS,
        [{"name": "bitround", "configuration": {"keepbits": 3}}, LITTLE],
    ),
    "reshape": ("i4", NUMBERS, [{"name": "reshape", "configuration": {"shape": [-1]}}, LITTLE]),
    "numcodecs.delta": ("i4", NUMBERS, [prefixed("delta", dtype="<i4", astype="<i2"), LITTLE]),
    "numcodecs.fixedscaleoffset": (
        "f8",
        NUMBERS,
        [prefixed("fixedscaleoffset", offset=0, scale=2, dtype="<f8", astype="<i2"), LITTLE],
    ),
    "numcodecs.quantize": (
        "f4",
        NUMBERS,
        [prefixed("quantize", digits=2, dtype="<f4"), LITTLE],
    ),
    "numcodecs.bitround": ("f4", NUMBERS, [prefixed("bitround", keepbits=3), LITTLE]),
    "numcodecs.astype": (
        "i4",
        NUMBERS,
        [prefixed("astype", encode_dtype="<i2", decode_dtype="<i4"), LITTLE],
    ),
    "numcodecs.packbits": ("bool", NUMBERS % 2 > 0, [prefixed("packbits"), "bytes"]),
    **{
        f"numcodecs.{name}": ("i4", NUMBERS, [LITTLE, prefixed(name, **configuration)])
        for name, configuration in {
            "adler32": {},
            "crc32": {},
            "crc32c": {},
            "fletcher32": {},
            "jenkins_lookup3": {"initval": 0, "prefix": None},
            "shuffle": {"elementsize": 4},
            "blosc": {"cname": "lz4", "clevel": 1, "shuffle": 1, "blocksize": 0},
            "bz2": {"level": 1},
            "gzip": {"level": 1},
            "lz4": {"acceleration": 1},
            "lzma": {"format": 1},
            "zlib": {"level": 1},
            "zstd": {"level": 1},
        }.items()
    },
}


def chain_targets() -> Iterator[Target]:
    for name, documents in CHAINS.items():
        yield chain_target(name, chain_from_v3(documents), data_type_of("i4"), NUMBERS)
    for name, (dtype, array, documents) in TYPED.items():
        data_type = data_type_of(dtype)
        with warnings.catch_warnings(action="ignore"):  # old names are read with a warning
            chain = chain_from_v3(documents, "codecs", ParseContext("fuzz", array.ndim))
        yield chain_target(name, chain, data_type, array.astype(data_type.dtype))


def chain_target(name: str, chain: CodecChain, data_type: DataType, array: np.ndarray) -> Target:
    assert isinstance(chain, CodecChain), f"{name}: {chain}"
    spec = ChunkSpec(array.shape, data_type, data_type.zero, LIMITS.variable_bytes)
    assert not list(chain.problems(spec)), name
    bound = chain.bind(spec)
    sample = b"".join(map(bytes, bound.encode(array)))
    befores = ("one", "other") if data_type.variable else array.flat[[0, 1]]
    region = tuple(slice(n // 3, n // 3 + max(n // 2, 1), 1) for n in array.shape)

    def whole(data: bytes, out: np.ndarray) -> None:
        bound.decode(data, None, out, DecodeOptions())

    def part(data: bytes, out: np.ndarray) -> None:
        bound.decode(data, region, out[region], DecodeOptions())

    def fetched(data: bytes, out: np.ndarray) -> None:
        drive_fetch_from_bytes(bound.read(region, out[region], DecodeOptions(), whole=False), data)

    def decode(data: bytes) -> None:
        refused = False
        for way in (whole, part, fetched):
            found = []
            for before in befores:
                guarded = np.full((array.shape[0] + 2, *array.shape[1:]), before, data_type.dtype)
                out = guarded[1:-1]
                try:
                    way(data, out)
                    part_of = out[region]
                    found.append(part_of.tolist() if data_type.variable else part_of.tobytes())
                except ZarrDaskError:
                    found.append(None)
                assert (guarded[0] == before).all(), "written before the destination"
                assert (guarded[-1] == before).all(), "written after the destination"
            assert found[0] == found[1], "the result depends on what was there before"
            refused |= found[0] is None
        if refused:
            raise CorruptObjectError("refused in one way at least")

    return Target(f"chain of {name}", [sample], decode)


# --- objects --------------------------------------------------------------------------------------

OBJECTS = {
    "vlen-utf8": ({"id": "vlen-utf8"}, [f"é{n}" * n for n in range(6)]),
    "vlen-bytes": ({"id": "vlen-bytes"}, [b"\xff" * n for n in range(6)]),
    "vlen-array": (
        {"id": "vlen-array", "dtype": "<i2"},
        [np.arange(n, dtype="<i2") for n in range(6)],
    ),
    "json2": ({"id": "json2"}, ["é", 1, [1, [2]], {"a": {"b": None}}, -0.5, True]),
    "msgpack2": ({"id": "msgpack2"}, ["é" * 40, 1, [1, [2]], {"a": {"b": None}}, -0.5, b"\xff"]),
}


def object_targets() -> Iterator[Target]:
    for name, (config, items) in OBJECTS.items():
        codec = object_serializer_from_numcodecs(config, "c", allow_pickle=False)
        array = np.empty(6, object)
        for position, item in enumerate(items):
            array[position] = item
        array = array.reshape(2, 3)
        spec = ChunkSpec(array.shape, codec.data_type, None, LIMITS.variable_bytes)
        bound = codec.bind(spec)

        def decode(data: bytes, bound=bound) -> None:
            guarded = np.full((4, 3), "guard", object)
            try:
                bound.decode(data, None, guarded[1:-1], DecodeOptions())
            finally:
                assert all(item == "guard" for item in (*guarded[0], *guarded[-1]))

        yield Target(f"objects of {name}", [b"".join(map(bytes, bound.encode(array)))], decode)


# --- documents ------------------------------------------------------------------------------------


def stored(values=NUMBERS, dtype="<i4", **options) -> MemoryStore:
    store = MemoryStore()
    chunks = options.pop("chunks", (3, 4))
    array = zd.create_array(store, "a", shape=(6, 12), chunks=chunks, dtype=dtype, **options)
    array[:] = values
    return store


STRUCT = np.dtype([("x", "<i2"), ("y", "<f4"), ("z", "S3")])
STORES = {
    "v3": stored,
    "v3 shards": lambda: stored(shards=(6, 12)),
    "v3 names": lambda: stored(
        dimension_names=("y", None), fill_value=3, attributes={"a": [1, {"b": None}]}
    ),
    "v3 texts": lambda: stored(TEXTS, "string"),
    "v3 times": lambda: stored(NUMBERS.astype("<M8[10us]"), "<M8[10us]"),
    "v3 structs": lambda: stored(np.zeros((6, 12), STRUCT), STRUCT),
    "v3 floats": lambda: stored(NUMBERS, "<f4", fill_value=np.nan),
    "v3 complex": lambda: stored(NUMBERS, "<c8", fill_value=1 + 2j),
    "v2": lambda: stored(format="v2"),
    "v2 filters": lambda: stored(
        format="v2",
        order="F",
        codecs=[{"id": "delta", "dtype": "<i4"}, {"id": "zlib", "level": 1}],
    ),
    "v2 texts": lambda: stored(TEXTS, "string", format="v2"),
    "v2 structs": lambda: stored(np.zeros((6, 12), STRUCT), STRUCT, format="v2"),
    "v1": lambda: root_array(format="v1"),
    "draft": lambda: stored(format="v3draft"),
    "older draft": lambda: stored(format="v3draft-2022-05"),
}
DOCUMENTS = (".zarray", ".zattrs", ".zgroup", "zarr.json", ".zmetadata", "meta", "attrs")


def root_array(**options) -> MemoryStore:
    store = MemoryStore()
    array = zd.create_array(store, shape=(6, 12), chunks=(3, 4), dtype="<i4", **options)
    array[:] = NUMBERS
    return store


def document_targets() -> Iterator[Target]:
    for name, make in STORES.items():
        values = dict(make().values)
        for key, value in values.items():
            if key.rsplit("/", 1)[-1] in DOCUMENTS or key.startswith("meta/"):
                yield Target(
                    f"document {key} of {name}",
                    [bytes(value)],
                    opening(values, key),
                    hostile_json,
                )


def opening(values: dict[str, bytes], key: str) -> Callable[[bytes], None]:
    """Open the store with one document replaced, and read a little of what is there."""

    def decode(data: bytes) -> None:
        store = MemoryStore({**values, key: data})
        options = zd.ReadOptions(limits=LIMITS)
        node = zd.open(store, read=options)
        if isinstance(node, zd.Group):
            str(node.tree())
            node = node["a"]
        read_a_little(node)

    return decode


def read_a_little(node) -> None:
    if isinstance(node, zd.Array):
        repr(node)
        node[tuple(slice(0, 1) for _ in node.shape)]
        if node.shape and all(node.shape):
            node[tuple(n - 1 for n in node.shape)]


# --- archives, and metadata in one place ---------------------------------------------------------


def zip_targets() -> Iterator[Target]:
    values = {key: bytes(value) for key, value in stored().values.items()}
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", method) as archive:
            for key, value in values.items():
                archive.writestr(zipfile.ZipInfo(key), value, method)
        yield Target(f"zip archive by method {method}", [packed.getvalue()], decode_archive)


def decode_archive(data: bytes) -> None:
    """Open an archive and read all of its array."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.zip")
        path.write_bytes(data)
        node = zd.open(str(path), read=zd.ReadOptions(limits=LIMITS))
        if isinstance(node, zd.Group):
            str(node.tree())
            node = node["a"]
        read_a_little(node)


def consolidated_targets() -> Iterator[Target]:
    """A group whose members are known from one document only."""
    for version in ("v2", "v3"):
        store = MemoryStore()
        group = zd.create_group(store, format=version, attributes={"a": 1})
        group.create_array("a", shape=(6, 12), chunks=(3, 4), dtype="<i4")
        group.create_group("b").create_array("c", shape=3, chunks=2, dtype="<f4")
        zd.consolidate(store)
        values = dict(store.values)
        key = ".zmetadata" if version == "v2" else "zarr.json"
        sample = bytes(values[key])
        yield Target(
            f"consolidated metadata of {version}", [sample], opening(values, key), hostile_json
        )


def all_targets() -> list[Target]:
    return [
        *bytes_targets(),
        *snappy_targets(),
        *divided_targets(),
        *chain_targets(),
        *object_targets(),
        *document_targets(),
        *zip_targets(),
        *consolidated_targets(),
    ]


def names_covered() -> set[str]:
    """Names of the codecs that some target decodes."""
    return {
        *(config["id"] for config in COMPRESSORS),
        *OBJECTS,
        "zfpy",  # in v2 the serializers numcodecs.zfpy and numcodecs.pcodec
        "pcodec",
        *names_in([*CHAINS.values(), *(documents for _, _, documents in TYPED.values())]),
    }


def names_in(documents) -> Iterator[str]:
    """Names of codecs in their documents, those within others too."""
    for document in documents:
        if isinstance(document, str):
            yield document
        elif isinstance(document, list):
            yield from names_in(document)
        else:
            yield document["name"]
            for value in document.get("configuration", {}).values():
                if isinstance(value, list):
                    yield from names_in(item for item in value if not isinstance(item, int))
