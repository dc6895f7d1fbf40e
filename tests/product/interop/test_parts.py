"""Parts of arrays that a peer made: read by us, written by us and read by the peer."""

from __future__ import annotations

import dataclasses
import itertools
import json

import numpy as np
import pytest

import zarr_dask as zd
from tests.support.interop import zarr_python
from tests.support.interop.cases import Case, Shards, data, expected
from tests.support.interop.refusals import PEERS
from tests.support.interop.sample import sampled
from tests.support.interop.seen import bits

SHAPE = (19, 22)

SHARDINGS = {
    "end": Shards(shape=(8, 12)),
    "start": Shards(shape=(8, 12), location="start"),
    "bare": Shards(shape=(8, 12), checksum=False),
    "nested": Shards(shape=(8, 12), nested=(4, 6)),
    "transposed": Shards(shape=(12, 12), order=(1, 0)),
}


def _case(label: str, **features) -> Case:
    return Case(
        id=f"parts-{label}",
        **{
            "format": "v3",
            "dtype": np.dtype("int32"),
            "shape": SHAPE,
            "chunks": (2, 3),
            "fill": "42",
            "attributes": {"made": "by a peer"},
        }
        | features,
    )


CASES = [
    _case("plain", codecs="zstd"),
    _case("big", codecs="crc32c", endian="big", keys="v2."),
    _case("transposed-plain", codecs="blosc-lz4", order=(1, 0)),
    *(
        _case(f"shards-{label}-{codecs}", shards=shards, codecs=codecs)
        for (label, shards), codecs in itertools.product(SHARDINGS.items(), ("none", "gzip"))
        if label != "transposed" or codecs == "none"
    ),
    _case("v2", format="v2", codecs="zlib", keys="v2/"),
    _case("v2-big-F", format="v2", dtype=np.dtype(">i4"), codecs="none", order=(1, 0), keys="v2."),
]

SELECTIONS = [
    np.s_[...],
    np.s_[3, 4],
    np.s_[-1],
    np.s_[:, -1],
    np.s_[2:4, 3:6],
    np.s_[7:9, 11:13],
    np.s_[1:-1, 2:-2],
    np.s_[::5, ::7],
    np.s_[::-1, ::-3],
    np.s_[15:2:-4, None, 21],
    np.s_[4:4],
    np.s_[100:, :],
]


EXCHANGES = sampled(
    pytest.param(peer, case, id=f"{peer}-{case.id.removeprefix('parts-')}")
    for peer, case in itertools.product(PEERS, CASES)
)


@pytest.mark.parametrize("written", ["all", "part"])
@pytest.mark.parametrize(("peer", "case"), EXCHANGES)
def test_parts_of_the_peers_array_are_read(peer, case, written, place):
    case = _with(case, written)
    PEERS[peer].write(case, place, data(case))
    array = zd.open_array(place)
    for selection in SELECTIONS:
        assert bits(array[selection]) == bits(expected(case)[selection]), selection


@pytest.mark.parametrize("written", ["nothing", "part", "all"])
@pytest.mark.parametrize(("peer", "case"), EXCHANGES)
def test_parts_are_written_into_the_peers_array(peer, case, written, place):
    case = _with(case, written)
    PEERS[peer].write(case, place, data(case))
    array = zd.open_array(place, mode="r+")
    model = expected(case)
    for number, selection in enumerate(SELECTIONS):
        if isinstance(selection, tuple) and None in selection:
            continue
        value = np.arange(model[selection].size).reshape(model[selection].shape) + 1000 * number
        model[selection] = value
        array[selection] = value
        assert bits(PEERS[peer].read(case, place).values) == bits(model), selection
    seen = PEERS[peer].read(case, place)
    assert seen.attributes in (None, case.attributes)


@pytest.mark.parametrize(("peer", "case"), EXCHANGES)
def test_we_and_the_peer_write_in_turns(peer, case, place):
    case = _with(case, "nothing")
    PEERS[peer].write(case, place, data(case))
    model = expected(case)
    for start in range(0, SHAPE[0] - 3, 3):
        region = (slice(start, start + 4), slice(start, start + 5))
        model[region] = start + 1
        if start % 2:
            zd.open_array(place, mode="r+")[region] = start + 1
        else:
            PEERS[peer].overwrite(case, place, region, model[region])
        assert bits(zd.open_array(place)[...]) == bits(model)
        assert bits(PEERS[peer].read(case, place).values) == bits(model)


def _with(case: Case, written: str) -> Case:
    return dataclasses.replace(case, written=written)


def test_zarr_python_writes_chunks_of_a_shard_out_of_order(place):
    """So that the tests above are about any order of bodies, not about the one we write."""
    case = _case("order", shape=(8, 12), shards=Shards(shape=(8, 12)))
    zarr_python.write(case, place, data(case))
    stored = (place / "c/0/0").read_bytes()
    index = np.frombuffer(stored[-4 - 16 * 16 : -4], "<u8").reshape(16, 2)
    assert sorted(index[:, 0]) != list(index[:, 0])
    assert bits(zd.open_array(place)[...]) == bits(data(case))


@pytest.mark.parametrize("peer", PEERS)
def test_a_shard_of_nothing_but_fill_is_not_stored(peer, place):
    """Written back to fill, a shard is gone for the peer as it is for us."""
    case = _case("gone", shards=Shards(shape=(8, 12)), codecs="zstd")
    PEERS[peer].write(case, place, data(case))
    array = zd.open_array(place, mode="r+")
    array[0:8, 0:12] = 42
    assert not (place / "c/0/0").exists()
    assert (place / "c/0/1").exists()
    model = expected(case)
    model[0:8, 0:12] = 42
    assert bits(PEERS[peer].read(case, place).values) == bits(model)


def test_a_gap_in_a_shard_is_skipped(place):
    """Bodies may lie anywhere, with anything between them."""
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [4],
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 7,
        "codecs": [
            {
                "name": "sharding_indexed",
                "configuration": {
                    "chunk_shape": [1],
                    "codecs": [{"name": "bytes"}],
                    "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
                },
            }
        ],
        "attributes": {},
    }
    place.mkdir()
    (place / "zarr.json").write_text(json.dumps(document))
    missing = 2**64 - 1
    index = np.array([[5, 1], [0, 1], [missing, missing], [5, 1]], "<u8")
    (place / "c").mkdir()
    (place / "c/0").write_bytes(b"\x01\xee\xee\xee\xee\x02\xee" + index.tobytes())
    assert zd.open_array(place)[...].tolist() == [2, 1, 7, 2]
    for peer in PEERS.values():
        seen = peer.read(_case("gap"), place)
        assert seen.values.tolist() == [2, 1, 7, 2]
