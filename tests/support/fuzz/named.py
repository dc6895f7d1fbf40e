"""Attacks by name: small inputs that claim, or decompress to, far more than they should.

Run as a process it attempts each with 300 MiB of memory and reports, as JSON, the error, the
seconds, and by how much memory grew.
"""

import bz2
import gzip
import json
import lzma
import resource
import struct
import sys
import time
import warnings
import zlib
from collections.abc import Callable

import numcodecs
import numpy as np

import zarr_dask as zd
import zarr_dask.ome
from tests.support.fuzz import stored
from tests.support.fuzz.child import in_good_time, limit_memory
from tests.support.fuzz.targets import streaming_zstd
from zarr_dask.codecs.base import ChunkSpec, DecodeOptions, EncodedSize
from zarr_dask.codecs.compress.blosc import Blosc
from zarr_dask.codecs.compress.deflate import Bz2, Gzip, Lzma, Zlib
from zarr_dask.codecs.compress.lz4 import Lz4
from zarr_dask.codecs.compress.zstd import Zstd
from zarr_dask.codecs.objects.object_json import Json2, Msgpack2
from zarr_dask.codecs.objects.vlen import VlenArray, VlenBytes, VlenUtf8
from zarr_dask.dtypes import VARIABLE_BYTES
from zarr_dask.stores.backends.memory import MemoryStore

CASES: dict[str, Callable[[], object]] = {}


def case(name: str, attack: Callable[[], object]) -> None:
    assert name not in CASES
    CASES[name] = attack


# --- compressors ----------------------------------------------------------------------------------

ZEROS = bytes(1 << 25)
FIXED, VARIABLE = EncodedSize.of(1000), EncodedSize(None, VARIABLE_BYTES)


def zstd_frame(nbytes: int | None, blocks: int) -> bytes:
    """A zstd frame of blocks of 128 KiB, each of four bytes: one byte that is repeated."""
    size = b"" if nbytes is None else nbytes.to_bytes(8, "little")
    head = struct.pack("<IBB", 0xFD2FB528, 0x00 if nbytes is None else 0xC0, 0x38) + size
    block = (1 << 17) << 3 | 1 << 1
    last = (block | 1).to_bytes(3, "little") + b"a"
    return head + (block.to_bytes(3, "little") + b"a") * (blocks - 1) + last


def blosc_frame(nbytes: int, blocksize: int, cbytes: int | None = None, typesize: int = 4) -> bytes:
    body = np.random.default_rng(0).bytes(1000)
    length = 16 + len(body) if cbytes is None else cbytes
    return struct.pack("<BBBBIII", 2, 1, 0x21, typesize, nbytes, blocksize, length) + body


COMPRESSED = {
    "64 kB of zstd that hold 4 GiB and say so": (Zstd(), zstd_frame(1 << 32, 1 << 14)),
    "64 kB of zstd that hold 2 GiB and say nothing": (Zstd(), zstd_frame(None, 1 << 14)),
    "64 kB of zstd that claim 4 GiB": (Zstd(), zstd_frame(1 << 32, 1) + bytes(64_000)),
    "64 kB of zstd that claim 2^63 bytes": (Zstd(), zstd_frame(1 << 63, 1) + bytes(64_000)),
    "ever so many frames of zstd": (Zstd(), streaming_zstd(ZEROS) * 100),
    "a zstd window of 4 TiB": (Zstd(), b"\x28\xb5\x2f\xfd\x00\xff" + bytes(100)),
    "blosc that claims 2 GiB": (Blosc(), blosc_frame((1 << 31) - 1, 1 << 20)),
    "blosc that claims 4 GiB": (Blosc(), blosc_frame((1 << 32) - 1, 1 << 20)),
    "blosc with blocks of 4 GiB": (Blosc(), blosc_frame(1000, (1 << 32) - 1)),
    "blosc that is cut off": (Blosc(), blosc_frame(1000, 1000, 1 << 31)),
    "blosc without type size": (Blosc(), blosc_frame(1000, 1000, typesize=0)),
    "lz4 that claims 4 GiB": (Lz4(), b"\xff\xff\xff\xff" + numcodecs.lz4.compress(b"a")[4:]),
    "lz4 that claims 2 GiB": (Lz4(), b"\xff\xff\xff\x7f" + numcodecs.lz4.compress(b"a")[4:]),
    "a gzip bomb": (Gzip(), gzip.compress(ZEROS) * 64),
    "a zlib bomb": (Zlib(), zlib.compress(ZEROS * 8)),
    "a bz2 bomb": (Bz2(), bz2.compress(ZEROS) * 64),
    "an lzma bomb": (Lzma(), lzma.compress(ZEROS, preset=0) * 64),
    "an lzma dictionary of 4 GiB": (
        Lzma(format=2),
        b"\x5d\xff\xff\xff\xff" + lzma.compress(b"a" * 99, lzma.FORMAT_ALONE)[5:],
    ),
}
for name, (codec, data) in COMPRESSED.items():
    case(f"{name}, of known size", lambda codec=codec, data=data: codec.decode(data, FIXED))
    out = np.empty(1000, np.uint8)
    case(f"{name}, in place", lambda codec=codec, data=data, out=out: codec.decode_into(data, out))
    if "in blosc" not in name and name != "blosc with blocks of 4 GiB":
        case(f"{name}, of open size", lambda codec=codec, data=data: codec.decode(data, VARIABLE))


# --- elements without fixed size ------------------------------------------------------------------


def decode(codec, data: bytes, shape=(2,), most: int = VARIABLE_BYTES) -> None:
    out = np.empty(shape, object)
    codec.bind(ChunkSpec(shape, codec.data_type, None, most)).decode(
        data, None, out, DecodeOptions()
    )


for serializer in (VlenUtf8(), VlenBytes(), VlenArray("|u1")):
    for what, data in {
        "a header that claims 2^32 - 1 elements": b"\xff\xff\xff\xff" + bytes(64_000),
        "an element longer than the buffer": b"\2\0\0\0\xff\xff\xff\xff" + bytes(64_000),
        "too few elements": b"\2\0\0\0\1\0\0\0a",
        "too many elements": b"\3\0\0\0" + bytes(12),
    }.items():
        case(f"{serializer.name} with {what}", lambda c=serializer, d=data: decode(c, d))
case(
    "128 MiB of text of which one character makes all of it four bytes wide",
    lambda: decode(
        VlenUtf8(),
        b"\1\0\0\0\xf8\xff\xff\7" + b"\xf0\x9f\x98\x80" + bytes((1 << 27) - 12),
        (1,),
    ),
)
case("128 MiB of JSON lists", lambda: decode(Json2(), b"[" + b"[]," * (1 << 22) + b'"|O",[2]]'))
case("JSON that is nested deeply", lambda: decode(Json2(), b"[" * 1_000_000))
case("JSON with a long number", lambda: decode(Json2(), b"[" + b"1" * 1_000_000 + b",2]"))
case(
    "JSON with a huge shape",
    lambda: decode(Json2(), b'[1,"|O",[' + b"9223372036854775807," * 60 + b"1]]"),
)
case(
    "a MessagePack list of 2^32 - 1 elements", lambda: decode(Msgpack2(), b"\xdd\xff\xff\xff\xff\1")
)
case("MessagePack lists in lists", lambda: decode(Msgpack2(), b"\xdd\0\xff\xff\xff" * 1000))
case(
    "64 MiB of MessagePack lists", lambda: decode(Msgpack2(), b"\xdd\4\0\0\0" + b"\x90" * (1 << 26))
)
case("MessagePack that is nested deeply", lambda: decode(Msgpack2(), b"\x91" * 1_000_000))


# --- shards ---------------------------------------------------------------------------------------

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
GZIP = {"name": "gzip", "configuration": {"level": 1}}
F = (1 << 64) - 1


def shard(*places: int, codecs=(LITTLE,)) -> Callable[[], object]:
    """Read a shard of two chunks of four bytes, with this index, in every way."""
    configuration = {
        "chunk_shape": [2], "codecs": list(codecs), "index_codecs": [LITTLE],
        "index_location": "end",
    }  # fmt: skip
    sharding = {"name": "sharding_indexed", "configuration": configuration}
    store = MemoryStore()
    array = zd.create_array(store, shape=4, chunks=4, dtype="u2", codecs=[sharding])
    store.set("c/0", [bytes(8), np.array(places, "<u8").tobytes()])

    def attack() -> None:
        try:
            array[:]
        finally:
            for part in (slice(0, 1), slice(2, 4), slice(3, 4)):
                array[part]

    return attack


for what, places in {
    "points outside": (0, 4, 100, 4),
    "points just outside": (0, 4, 37, 4),
    "points to 2^63": (0, 4, 1 << 63, 4),
    "wraps around": (0, 4, F - 3, 4),
    "has a length of 2^63": (0, 4, 4, 1 << 63),
    "has a length of 2^64 - 1": (0, 4, 4, F),
    "has an offset of 2^64 - 1": (0, 4, F, 4),
    "has chunks of other lengths": (0, 4, 4, 3),
    "points to itself": (0, 4, 8, 32),
}.items():
    case(f"a shard index that {what}", shard(*places))
case("a shard that is shorter than its index", lambda: short_shard(20))
case("a shard of nothing", lambda: short_shard(0))


def short_shard(nbytes: int) -> None:
    store = MemoryStore()
    array = zd.create_array(store, shape=4, chunks=2, shards=4, dtype="u2")
    store.set("c/0", [bytes(nbytes)])
    array[0:1]


# --- documents ------------------------------------------------------------------------------------

V3 = {
    "zarr_format": 3, "node_type": "array", "shape": [4], "data_type": "int32", "fill_value": 0,
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}},
    "chunk_key_encoding": {"name": "default"}, "codecs": [LITTLE],
}  # fmt: skip
V2 = {
    "zarr_format": 2, "shape": [4], "chunks": [4], "dtype": "<i4", "fill_value": 0, "order": "C",
    "compressor": None, "filters": None,
}  # fmt: skip
V1 = {
    "zarr_format": 1, "shape": [4], "chunks": [4], "dtype": "<i4", "fill_value": 0, "order": "C",
    "compression": "none", "compression_opts": None,
}  # fmt: skip
DRAFT = {
    "zarr_format": "https://purl.org/zarr/spec/core/3.0",
    "metadata_encoding": {"type": "json", "metadata_key_suffix": ".json"},
    "extensions": [],
}


def opened(values: dict[str, bytes]) -> None:
    node = zd.open(MemoryStore(dict(values)))
    if isinstance(node, zd.Group):
        str(node.tree())
    else:
        repr(node)
        node[(0,) * len(node.shape)]


def document(key: str, text: bytes, others: dict[str, bytes] | None = None) -> Callable[[], object]:
    return lambda: opened({**(others or {}), key: text})


PLACES = {
    "zarr.json": {},
    ".zarray": {},
    ".zgroup": {},
    ".zattrs": {".zarray": json.dumps(V2).encode()},
    ".zmetadata": {".zgroup": b'{"zarr_format": 2}'},
    "meta": {"attrs": b"{}"},
    "attrs": {"meta": json.dumps(V1).encode()},
    "meta/array.json": {"zarr.json": json.dumps(DRAFT).encode()},
    "meta/group.json": {"zarr.json": json.dumps(DRAFT).encode()},
}
TEXTS = {
    "lists nested 100000 deep": b"[" * 100_000 + b"]" * 100_000,
    "objects nested 100000 deep": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "attributes nested 300 deep": b'{"zarr_format": 3, "node_type": "group", "attributes": {"a": '
    + b"[" * 300
    + b"]" * 300
    + b"}}",
    "a list": b"[1, 2]",
    "a number": b"3",
    "null": b"null",
    "a string": b'"zarr"',
    "nothing": b"",
    "no JSON": b"{",
    "no UTF-8": b'{"a": "\xff"}',
    "UTF-16": '{"zarr_format": 3}'.encode("utf-16"),
    "a long number": b'{"zarr_format": ' + b"9" * 100_000 + b"}",
    "a million members": b'{"zarr_format": 7, ' + b'"a": 1, ' * 1_000_000 + b'"b": 1}',
    "65 MiB": b'{"a": "' + bytes(65 << 20) + b'"}',
    "60 MiB of empty lists": b'{"a": [' + b"[]," * (20 << 20) + b"[]]}",
    "60 MiB in one wide text": b'{"a": "' + b"x" * (60 << 20) + "\U0001f600".encode() + b'"}',
}
for key, others in PLACES.items():
    for what, text in TEXTS.items():
        case(f"{key} of {what}", document(key, text, others))


def nested_struct(depth: int) -> object:
    inner: object = "int32"
    for _ in range(depth):
        fields = [{"name": "a", "data_type": inner}]
        inner = {"name": "struct", "configuration": {"fields": fields}}
    return inner


def nested_shard(depth: int) -> object:
    inner: object = LITTLE
    for _ in range(depth):
        configuration = {"chunk_shape": [4], "index_codecs": [LITTLE], "codecs": [inner]}
        inner = {"name": "sharding_indexed", "configuration": configuration}
    return inner


SHAPES = {
    "negative": [-1],
    "a float": [4.0],
    "true": [True],
    "a text": ["4"],
    "null": [None],
    "2^63": [1 << 63],
    "2^200": [1 << 200],
    "no list": 4,
    "an object": {"0": 4},
    "nested": [[4]],
}
for what, lengths in SHAPES.items():
    grid = {"name": "regular", "configuration": {"chunk_shape": lengths}}
    case(
        f"v3 with a shape of {what}",
        document("zarr.json", json.dumps(V3 | {"shape": lengths}).encode()),
    )
    case(
        f"v3 with chunks of {what}",
        document("zarr.json", json.dumps(V3 | {"chunk_grid": grid}).encode()),
    )
    for version, key, valid in ((2, ".zarray", V2), (1, "meta", V1)):
        for member in ("shape", "chunks"):
            text = json.dumps(valid | {member: lengths}).encode()
            case(f"v{version} with {member} of {what}", document(key, text, {"attrs": b"{}"}))
for what, changes in {
    "chunks of 0": {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [0]}}},
    "chunks of 2^62": {
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1 << 62]}}
    },
    "a million dimensions": {
        "shape": [1] * 1_000_000,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1] * 1_000_000}},
    },
    "raw elements of 2^40 bits": {"data_type": "r1099511627776"},
    "texts of 2^40 bytes": {
        "data_type": {"name": "fixed_length_utf32", "configuration": {"length_bytes": 1 << 40}},
        "fill_value": "",
    },
    "names of fields that stand twice": {
        "data_type": {
            "name": "struct",
            "configuration": {"fields": [{"name": "a", "data_type": "int32"}] * 2},
        },
        "fill_value": {"a": 0},
    },
    "structs nested 100 deep": {"data_type": nested_struct(100)},
    "ten thousand codecs": {"codecs": [LITTLE, *["crc32c"] * 10_000]},
    "a hundred compressors": {"codecs": [LITTLE, *[GZIP] * 100]},
    "shards nested 100 deep": {"codecs": [nested_shard(100)]},
    "a permutation that is none": {
        "codecs": [{"name": "transpose", "configuration": {"order": [1 << 62]}}, LITTLE]
    },
    "a rectilinear grid of 2^62 chunks": {
        "chunk_grid": {
            "name": "rectilinear",
            "configuration": {"kind": "inline", "chunk_shapes": [[[1, 1 << 62]]]},
        }
    },
    "a rectilinear grid of a million sizes": {
        "chunk_grid": {
            "name": "rectilinear",
            "configuration": {"kind": "inline", "chunk_shapes": [[1] * 1_000_000]},
        }
    },
    "a rectilinear grid of chunks of 2^62": {
        "chunk_grid": {
            "name": "rectilinear",
            "configuration": {"kind": "inline", "chunk_shapes": [[[1 << 62, 1 << 62]]]},
        }
    },
}.items():
    case(f"v3 with {what}", document("zarr.json", json.dumps(V3 | changes).encode()))
many = ", ".join(f'"{number}": 0' for number in range(300_000))
for what, text in {
    "members of 300000 names": json.dumps(V3)[:-1] + f", {many}}}",
    "members of 300000 names, one of them twice": json.dumps(V3)[:-1] + f', {many}, "shape": [5]}}',
    "a codec of 300000 members": json.dumps(V3 | {"codecs": [LITTLE, "x"]}).replace(
        '"x"', f'{{"name": "crc32c", "configuration": {{{many}}}}}'
    ),
    "300000 unknown codecs": json.dumps(V3 | {"codecs": [LITTLE, *[{}] * 300_000]}),
    "300000 unknown transformers": json.dumps(V3 | {"storage_transformers": [{}] * 300_000}),
}.items():
    case(f"v3 with {what}", document("zarr.json", text.encode()))
twice = json.dumps(V3)[:-1] + ', "shape": [5]}'
case("v3 with a member that stands twice", document("zarr.json", twice.encode()))
CHANNELS = {
    "multiscales": [{"axes": [{"name": "x"}], "datasets": [{"path": "0"}]}],
    "omero": {"channels": [{"color": "00FF00", "window": {"start": 0}}] * 100_000},
}
GROUP = {
    "zarr_format": 3,
    "node_type": "group",
    "attributes": {"ome": {"version": "0.5"} | CHANNELS},
}
case(
    "display settings of 10^5 channels",
    lambda: zd.ome.open(MemoryStore({"zarr.json": json.dumps(GROUP).encode()})),
)
case("everything of an array of 2^62 elements", lambda: everything_of([1 << 62], [1]))
case("everything of an array of 2^40 elements", lambda: everything_of([1 << 40], [1 << 20]))


def everything_of(shape: list[int], chunks: list[int]) -> None:
    grid = {"name": "regular", "configuration": {"chunk_shape": chunks}}
    text = json.dumps(V3 | {"shape": shape, "chunk_grid": grid}).encode()
    zd.open(MemoryStore({"zarr.json": text}))[:]


for what, attack in stored.CASES.items():
    case(what, attack)


def main() -> None:
    warnings.simplefilter("ignore")
    zd.open(MemoryStore({"zarr.json": json.dumps(V3).encode()}))[:]
    limit_memory()
    results = {}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name, attack in CASES.items():
        start = time.process_time()
        try:
            attack()
            error, text = "", "no error"
        except Exception as caught:  # noqa: BLE001  (whatever comes is reported)
            error = type(caught).__name__ if isinstance(caught, zd.errors.ZarrDaskError) else "?"
            text = f"{type(caught).__name__}: {caught!s:.300}"
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        seconds = in_good_time(time.process_time() - start)
        results[name] = (error, text, seconds, (after - before) / 1024)
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
