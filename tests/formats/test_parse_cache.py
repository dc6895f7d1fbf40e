"""Documents of arrays that are alike say the same whether another one was read before or not."""

import copy
import json
import random
import warnings
from dataclasses import dataclass

import numpy as np
import pytest

import zarr_dask as zd
from zarr_dask.errors import MetadataError
from zarr_dask.formats import v2, v2_document, v3
from zarr_dask.formats.base import Limits, ReadOptions
from zarr_dask.stores import MemoryStore

OPTIONS = {
    "plain": {"dtype": "f4"},
    "big-endian": {"dtype": ">i2"},
    "times": {"dtype": "M8[ns]"},
    "texts": {"dtype": "U5", "fill_value": "a"},
    "records": {"dtype": [("a", "i4"), ("b", "f8")]},
    "columns first": {"dtype": "u1", "order": "F"},
    "any texts": {"dtype": str, "fill_value": ""},
}
VALUES = [
    *(None, True, False, 0, 1, -1, 3, 3.0, 1.5, "a", "", [], {}, [1], [1, 2], [4, 4], [4, 4, 4]),
    *([0, 4], [4.0, 4], [True, 4], [1 << 63, 1], [-1, 1], ["y", "x"], ["y", None], [1, "x"]),
    *({"must_understand": False}, {"name": "x"}, "float32", "float64", "<f4", ">f4", "NaN"),
    *({"name": "regular"}, {"name": "regular", "configuration": {"chunk_shape": [4, 4]}}),
    *(["bytes"], [{"name": "endian", "configuration": {"endian": "little"}}], "C", "F", ".", "/"),
]  # fmt: skip


def documents(format, options):
    store = MemoryStore()
    zd.create_array(
        store, shape=(10, 6), chunks=(4, 3), format=format, attributes={"n": 1}, **options
    )
    return {key: json.loads(text) for key, text in store.values.items()}


def variant(document, chance):
    """The document with one or two of its values, at any depth, replaced, removed or moved."""
    document = copy.deepcopy(document)
    for _ in range(chance.choice([1, 1, 2])):
        holder = document
        while True:
            keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
            if not keys:
                break
            key = chance.choice(keys)
            if isinstance(holder[key], dict | list) and chance.random() < 0.5:
                holder = holder[key]
                continue
            draw = chance.random()
            if draw < 0.2 and isinstance(holder, dict):
                del holder[key]
            elif draw < 0.3 and isinstance(holder, dict):
                holder["more"] = copy.deepcopy(chance.choice(VALUES))
            else:
                holder[key] = copy.deepcopy(chance.choice(VALUES))
            break
    return document


def outcome(read):
    """What comes of reading: the array and what it warns of, or what is wrong."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            meta = read()
        except MetadataError as error:
            return type(error), sorted(map(str, error.problems))
    fill = getattr(meta, "fill_value", None)
    if fill is not None:
        fill = fill.item() if fill.dtype.hasobject else fill.tobytes()
    told = sorted(str(warning.message).rpartition(": ")[2] for warning in caught)
    return repr(meta), fill, getattr(meta, "skipped", None), told


def oracle(format, found, key):
    """Reading without anything that is known."""
    if format == "v3":
        return lambda: v3.parse(found[key], "", Limits())
    return lambda: v2_document.parse(found[key], found.get(".zattrs", {}), "", ReadOptions())


@pytest.mark.parametrize("format", ["v2", "v3"])
@pytest.mark.parametrize("name", OPTIONS)
def test_the_same_with_and_without_what_is_known(format, name):
    found = documents(format, OPTIONS[name])
    key = ".zarray" if format == "v2" else "zarr.json"
    chance = random.Random(f"{format} {name}")
    read = (v2.V2 if format == "v2" else v3.V3).read
    for number in range(400):
        other = dict(found)
        if number % 2:  # else the same as before
            changed = chance.choice(list(found))
            other[changed] = variant(found[changed], chance)
        parsed = {".zarray": None, ".zattrs": None, ".zgroup": None, **other}
        texts = {k: None if d is None else json.dumps(d).encode() for k, d in parsed.items()}
        expected = outcome(oracle(format, other, key))
        if isinstance(other.get(".zattrs", {}), dict):
            got = outcome(lambda: read(MemoryStore(), "", ReadOptions(), found=parsed))  # noqa: B023
            assert got == expected, other
            got = outcome(lambda: read(MemoryStore(), "", ReadOptions(), found=texts))  # noqa: B023
            assert got == expected, other
    known = (v2_document if format == "v2" else v3)._known.cache_info()
    assert known.hits > 100
    assert known.currsize <= known.maxsize


def test_options_are_part_of_what_is_known():
    store = MemoryStore()
    group = zd.create_group(store, format="v2")
    for name in ("a", "b"):
        group.create_array(name, shape=(4, 4), chunks=(2, 2), dtype="f8")
    small = zd.ReadOptions(limits=zd.Limits(chunk_bytes=16))
    slash = zd.ReadOptions(dimension_separator="/")
    for _ in range(2):
        for path in ("a", "b"):
            assert zd.open_array(store, path).meta.chunk_key_encoding.separator == "."
            assert zd.open_array(store, path, read=slash).meta.chunk_key_encoding.separator == "/"
            with pytest.raises(MetadataError, match="decoded bytes per chunk"):
                zd.open_array(store, path, read=small)


@pytest.mark.parametrize("format", ["v2", "v3"])
def test_every_array_of_consolidated_metadata_is_validated(format):
    store = MemoryStore()
    group = zd.create_group(store, format=format)
    for number in range(20):
        options = {"shape": (number + 1, 3), "chunks": (2, 3), "dtype": "f4"}
        group.create_array(f"a{number:02d}", **options, attributes={"n": number})
    zd.consolidate(store)
    key = ".zmetadata" if format == "v2" else "zarr.json"
    document = json.loads(store.values[key])
    entries = document["metadata"] if format == "v2" else (
        document["consolidated_metadata"]["metadata"]
    )  # fmt: skip
    array = "{}/.zarray" if format == "v2" else "{}"
    entries[array.format("a07")]["shape"] = [True, 3]
    entries[array.format("a11")]["fill_value"] = "x"
    del entries[array.format("a13")]["codecs" if format == "v3" else "order"]
    store.values[key] = json.dumps(document).encode()
    found = dict(zd.open_group(store).walk())
    wrong = {path: node for path, node in found.items() if isinstance(node, MetadataError)}
    assert list(wrong) == ["a07", "a11", "a13"]
    assert [str(error).split(":")[-1].split()[0] for error in wrong.values()]
    for path, node in found.items():
        if path not in wrong:
            number = int(path[1:])
            assert (node.shape, node.attributes) == ((number + 1, 3), {"n": number})


@pytest.mark.parametrize("format", ["v2", "v3"])
def test_attributes_are_nobody_elses(format):
    store = MemoryStore()
    zd.create_group(store, format=format).create_array(
        "a", shape=2, chunks=2, dtype="f4", attributes={"list": [1]}
    )
    group = zd.consolidate(store)
    for _ in range(2):
        ((_, array),) = group.arrays()
        assert array.attributes == {"list": [1]}
        for node in (array, group["a"]):
            with pytest.raises(TypeError, match="would not be stored"):
                node.attributes["list"].append(2)
    np.testing.assert_array_equal(group["a"][...], [0, 0])


def test_codecs_in_json_are_made_into_a_chain_once():
    def chain(codecs, **options):
        given = {"shape": (4, 6), "dtype": "f4", "chunks": (2, 3), "codecs": codecs, **options}
        return zd.create_array({}, **given).meta.codecs

    blosc = {"name": "blosc", "configuration": {"cname": "zstd", "clevel": 1}}
    assert chain([blosc]) is chain([copy.deepcopy(blosc)])
    assert chain(None) is chain(None)
    assert chain([blosc]).bytes[0].typesize == 4
    assert chain([blosc], dtype="f8").bytes[0].typesize == 8
    assert chain([blosc], dtype=">f4") != chain([blosc])
    assert chain([blosc], order="F") != chain([blosc])
    with pytest.raises(MetadataError, match="clevel"):  # as a number it is valid
        chain([{**blosc, "configuration": {"cname": "zstd", "clevel": True}}])
    for _ in range(2):  # what is wrong is told each time
        with pytest.raises(MetadataError, match="nothing"):
            chain([{"name": "nothing"}])


def test_codecs_that_are_objects_are_taken_as_they_are():
    options = {"shape": (4,), "dtype": "f4", "chunks": (2,)}
    first = zd.create_array({}, codecs=[zd.codecs.Blosc(clevel=1)], **options)
    second = zd.create_array({}, codecs=[zd.codecs.Blosc(clevel=2)], **options)
    assert [one.meta.codecs.bytes[0].clevel for one in (first, second)] == [1, 2]


def test_a_codec_that_is_registered_anew_is_taken():
    def registered():
        @zd.register_codec
        @dataclass(frozen=True)
        class Same(zd.codecs.BytesCodec):
            name = "example.registered-anew"

            def configuration(self):
                return {}

            def size(self, size):
                return size

            def encode(self, buffer, itemsize):
                return buffer

            def decode(self, buffer, size):
                return buffer

        return Same

    options = {"shape": (4,), "dtype": "f4", "codecs": "example.registered-anew"}
    for _ in range(2):
        cls = registered()
        assert type(zd.create_array({}, **options).meta.codecs.bytes[0]) is cls
