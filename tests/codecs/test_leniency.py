"""Codecs as older or laxer documents spell them: read with a warning, never written so."""

from __future__ import annotations

import json
import warnings

import dask.array as da
import numpy as np
import pytest

import zarr_dask as zd
from tests.support.codec_documents import LITTLE, codec, document, opened
from zarr_dask.errors import CorruptObjectError, MetadataError, UnknownCodecError, ZarrDaskWarning
from zarr_dask.stores import MemoryStore, Recording

CRC = {"name": "crc32c"}
VALUES = np.arange(6, dtype="i2").reshape(2, 3)
SHARD = {
    "chunk_shape": [1, 3],
    "codecs": [LITTLE],
    "index_codecs": [LITTLE, CRC],
    "index_location": "end",
}


def warned(words):
    return pytest.warns(ZarrDaskWarning, match=f"zarr.json: .*{words}")


def codecs_written(store):
    return json.loads(store["zarr.json"])["codecs"]


def retitled(array):
    """The same with its document written anew."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what was lax is read once more
        array.update_attributes({"title": "run 7"})


@pytest.mark.conformance("C103")
def test_endian_is_the_old_name_of_bytes():
    old = {"name": "endian", "configuration": {"endian": "big"}}
    with warned("codec 'endian', now called 'bytes'"):
        array, store = opened(
            document((2, 3), "int16", [old]), {"c/0/0": VALUES.astype(">i2").tobytes()}
        )
    np.testing.assert_array_equal(array[...], VALUES)
    retitled(array)
    assert codecs_written(store) == [codec("bytes", endian="big")]
    with pytest.raises(MetadataError, match="'bytes', as this codec is called now"):
        zd.create_array({}, shape=3, dtype="i2", codecs=[old])


@pytest.mark.conformance("C103")
@pytest.mark.parametrize(("order", "want"), [("C", [0, 1]), ("F", [1, 0])])
def test_transpose_by_the_name_of_an_order(order, want):
    stored = VALUES.transpose(want).tobytes()
    wanted = document((2, 3), "int16", [codec("transpose", order=order), LITTLE])
    with warned(f"an order of '{order}', now a list"):
        array, store = opened(wanted, {"c/0/0": stored})
    np.testing.assert_array_equal(array[...], VALUES)
    retitled(array)
    assert codecs_written(store) == [codec("transpose", order=want), LITTLE]
    with pytest.raises(MetadataError, match="a list of the dimensions"):
        zd.create_array({}, shape=(2, 3), dtype="i2", codecs=wanted["codecs"])


@pytest.mark.conformance("C103")
def test_transpose_by_name_counts_the_dimensions_it_is_given():
    values = np.arange(24, dtype="i2").reshape(2, 3, 4)
    flat = [codec("reshape", shape=[6, 4]), codec("transpose", order="F"), LITTLE]
    with warned("order of 'F'"):
        array, _ = opened(
            document((2, 3, 4), "int16", flat), {"c/0/0/0": values.reshape(6, 4).T.tobytes()}
        )
    np.testing.assert_array_equal(array[...], values)
    inner = SHARD | {"chunk_shape": [2, 3, 4], "codecs": [codec("transpose", order="F"), LITTLE]}
    with warned(r"codecs\[0\].*order of 'F'"):
        array, _ = opened(document((2, 3, 4), "int16", [codec("sharding_indexed", **inner)]))
    assert array.codecs[0].codecs.arrays[0].order == (2, 1, 0)


@pytest.mark.conformance("C135")
def test_index_without_byte_order_is_little_endian():
    """As in the example of RFC 2 of OME-Zarr."""
    lax = SHARD | {"index_codecs": [{"name": "bytes"}, CRC]}
    strict, store = opened(document((2, 3), "int16", [codec("sharding_indexed", **SHARD)]))
    strict[...] = VALUES
    with warned("index_codecs without byte order; little-endian order is taken"):
        array, ours = opened(
            document((2, 3), "int16", [codec("sharding_indexed", **lax)]),
            {"c/0/0": bytes(store["c/0/0"])},
        )
    with warned("index_codecs without byte order"):  # whoever opens it is told, not the first only
        zd.open_array(ours)
    np.testing.assert_array_equal(array[...], VALUES)
    array[...] = VALUES
    assert bytes(ours["c/0/0"]) == bytes(store["c/0/0"])
    retitled(array)
    (written,) = codecs_written(ours)
    assert written["configuration"]["index_codecs"] == [LITTLE, CRC]


@pytest.mark.conformance("C135")
def test_the_array_of_rfc_2_opens():
    wanted = document((2, 16, 16), "uint16", [], (1, 16, 16))
    wanted["codecs"] = [
        {
            "name": "sharding_indexed",
            "configuration": {
                "chunk_shape": [1, 8, 8],
                "codecs": [
                    {"name": "bytes", "configuration": {"endian": "little"}},
                    {"name": "gzip", "configuration": {"level": 1}},
                ],
                "index_codecs": [{"name": "bytes"}, {"name": "crc32c"}],
                "index_location": "end",
            },
        }
    ]
    with warned("index_codecs without byte order"):
        array, _ = opened(wanted)
    assert (array.chunks, array.shards) == ((1, 8, 8), (1, 16, 16))


def test_index_codecs_may_be_missing():
    lax = {name: value for name, value in SHARD.items() if name != "index_codecs"}
    strict, store = opened(document((2, 3), "int16", [codec("sharding_indexed", **SHARD)]))
    strict[...] = VALUES
    with warned("no index_codecs; bytes in little-endian order and a crc32c"):
        array, _ = opened(
            document((2, 3), "int16", [codec("sharding_indexed", **lax)]),
            {"c/0/0": bytes(store["c/0/0"])},
        )
    np.testing.assert_array_equal(array[...], VALUES)
    made = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        zd.create_array(
            made, shape=(2, 3), dtype="i2", codecs=[codec("sharding_indexed", **lax)], chunks=(2, 3)
        )
    (written,) = codecs_written(made)
    assert written["configuration"]["index_codecs"] == [LITTLE, CRC]


# --- codecs that need not be understood -----------------------------------------------------------


def unknown(**members):
    return {
        "name": "acme.thing",
        "configuration": {"level": 3},
        "must_understand": False,
        **members,
    }


PLACES = {
    "first": [unknown(), LITTLE],
    "last": [LITTLE, unknown()],
    "between": [LITTLE, unknown(), CRC],
    "in shards": [codec("sharding_indexed", **SHARD | {"codecs": [LITTLE, unknown()]})],
    "around shards": [unknown(), codec("sharding_indexed", **SHARD)],
}


def unknown_stored(place):
    """An array with a codec that is not known, as one without it has written it."""
    known = json.loads(json.dumps(PLACES[place]).replace(json.dumps(unknown()), "null"))
    known = [c for c in known if c]
    for c in known:
        inner = c.get("configuration", {}).get("codecs")
        if inner:
            c["configuration"]["codecs"] = [i for i in inner if i]
    array, stored = opened(document((4, 3), "int16", known, (2, 3)))
    array[:2] = VALUES
    wanted = json.dumps(document((4, 3), "int16", PLACES[place], (2, 3))).encode()
    store = MemoryStore({**{key: bytes(raw) for key, raw in stored.items()}, "zarr.json": wanted})
    recording = Recording(store)
    with warned("unknown codec, 'acme.thing', that need not be understood"):
        return zd.open_array(recording, mode="r+"), recording


@pytest.mark.conformance("C125")
@pytest.mark.parametrize("place", PLACES)
def test_an_unknown_codec_that_need_not_be_understood_is_skipped(place):
    array, recording = unknown_stored(place)
    np.testing.assert_array_equal(array[:2], VALUES)
    np.testing.assert_array_equal(array[1, 1:], VALUES[1, 1:])
    assert not array[2:].any()
    retitled(array)
    assert json.loads(bytes(recording.get("zarr.json")))["codecs"] == PLACES[place]


@pytest.mark.conformance("C125")
@pytest.mark.parametrize("place", PLACES)
def test_nothing_is_written_through_an_unknown_codec(place):
    array, recording = unknown_stored(place)
    before = {key: bytes(recording.get(key)) for key in recording.list()}
    for write in (
        lambda: array.__setitem__(..., 5),
        lambda: array.__setitem__(..., 0),  # which would delete
        lambda: array.__setitem__((0, 0), 5),
        lambda: array.write(None, np.zeros((4, 3), "i2"), threads=1),
        lambda: zd.to_zarr(da.ones((4, 3), dtype="i2", chunks=2), array),
        lambda: zd.rechunk(array, MemoryStore(), chunks=(1, 3)),
    ):
        with pytest.raises(UnknownCodecError, match=r"acme\.thing"):
            write()
    assert {key: bytes(recording.get(key)) for key in recording.list()} == before


@pytest.mark.conformance("C125")
def test_bytes_that_make_no_sense_without_the_unknown_codec():
    with warned("acme"):
        array, _ = opened(document((4,), "uint8", ["bytes", unknown()]), {"c/0": "0102"})
    with pytest.raises(CorruptObjectError, match=r"the unknown codec 'acme\.thing' skipped"):
        array[...]


@pytest.mark.conformance("C125")
@pytest.mark.parametrize(
    "found",
    [
        unknown(must_understand=True),
        unknown(must_understand="false"),
        unknown(must_understand=None),
        unknown(must_understand=0),
        {"name": "acme.thing"},
        "acme.thing",
        unknown(name=5),
        unknown(configuration=5),
    ],
)
def test_other_unknown_codecs_are_refused(found):
    with pytest.raises(MetadataError, match=r"codecs\[1\]"):
        opened(document((4,), "uint8", ["bytes", found]))


@pytest.mark.conformance("C125")
def test_an_unknown_serializer_cannot_be_skipped():
    with (
        warned("acme"),
        pytest.raises(MetadataError, match="exactly one codec from array to bytes"),
    ):
        opened(document((4,), "uint8", [unknown(), CRC]))


def test_an_unknown_codec_of_an_index_cannot_be_skipped():
    shard = codec("sharding_indexed", **SHARD | {"index_codecs": [LITTLE, unknown()]})
    with warned("acme"), pytest.raises(UnknownCodecError, match="index_codecs"):
        opened(document((2, 3), "int16", [shard]))


def test_a_known_codec_may_say_whether_it_must_be_understood():
    for must in (True, False):
        array, store = opened(
            document((2, 3), "int16", [{**LITTLE, "must_understand": must}]),
            {"c/0/0": VALUES.tobytes()},
        )
        np.testing.assert_array_equal(array[...], VALUES)
        retitled(array)
        assert codecs_written(store) == [LITTLE]
    with pytest.raises(MetadataError, match="must_understand"):
        opened(document((2, 3), "int16", [{**LITTLE, "must_understand": "no"}]))


def test_users_cannot_make_arrays_with_unknown_codecs():
    with pytest.raises(UnknownCodecError, match=r"acme\.thing"):
        zd.create_array({}, shape=4, dtype="u1", codecs=["bytes", unknown()])
