"""Stores that answer a get or a listing with something else: right values, or an error.

What decodes to the right number of elements is values for a reader who compares it with nothing.
`ReadOptions(verify=...)` compares it with a manifest, and finds every lie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

import zarr_dask as zd
from zarr_dask.errors import (
    ArrayChangedError,
    ChunkMissingError,
    CorruptObjectError,
    ManifestMismatchError,
    NodeNotFoundError,
)
from zarr_dask.stores import LocalStore, Range
from zarr_dask.stores.base import Buffer, Listing
from zarr_dask.stores.wrapper import StoreWrapper

KEY, OTHER = "a/c/1/0", "a/c/0/1"
VALUES = np.random.default_rng(0).integers(1, 1 << 30, (20, 20), dtype="i4")
OLD = VALUES + 1
LAYOUTS: dict[str, dict[str, Any]] = {
    "checksum": {"chunks": 10, "codecs": ["bytes", "crc32c"]},
    "default": {"chunks": 10},
    "bare": {"chunks": 10, "codecs": ["bytes"]},
    "shards": {"chunks": 5, "shards": 10},
}
Answer = Callable[[LocalStore, bytes], bytes | None]
OF_LENGTH: dict[str, Answer] = {
    "empty": lambda _, __: b"",
    "halved": lambda _, value: value[: len(value) // 2],
    "a byte less": lambda _, value: value[:-1],
    "a byte more": lambda _, value: value + b"\0",
    "twice": lambda _, value: value * 2,
}
"""Found in every layout: a chunk has its length, and a shard an index at its end."""
OF_BYTES: dict[str, Answer] = {
    "a bit flipped": lambda _, value: value[:40] + bytes([value[40] ^ 1]) + value[41:],
}
"""Found by a checksum."""
OF_OTHERS: dict[str, Answer] = {
    "the older": lambda store, _: store.get("old/c/1/0"),
    "another": lambda store, _: store.get(OTHER),
}
"""Whole objects, which only a manifest tells from the one that is asked for."""
ABSENT: dict[str, Answer] = {"not there": lambda _, __: None}
GET_LIES = OF_LENGTH | OF_BYTES | OF_OTHERS | ABSENT


@dataclass(frozen=True)
class LyingStore(StoreWrapper):
    """A store that answers for one key with something else, and lies in listings."""

    answer: Answer | None = None
    listing: Callable[[list[str]], list[str]] | None = None

    def get(self, key: str) -> Buffer | None:
        value = self.store.get(key)
        if key != KEY or value is None or self.answer is None:
            return value
        return self.answer(self.store, bytes(value))  # type: ignore[arg-type]

    def get_ranges(self, requests: Sequence[tuple[str, Range]]) -> list[Buffer | None]:
        def part(key: str, wanted: Range) -> Buffer | None:
            value = self.get(key)
            return None if value is None else bytes(value)[wanted.start : wanted.stop]

        return [part(key, wanted) for key, wanted in requests]

    def list(self, prefix: str = "") -> Iterator[str]:
        keys = [*self.store.list(prefix)]
        return iter(keys if self.listing is None else self.listing(keys))

    def list_dir(self, prefix: str = "") -> Listing:
        found = self.store.list_dir(prefix)
        if self.listing is None:
            return found
        below = {f"{name}zarr.json": name for name in found.prefixes}
        told = [key for key in self.listing([*below]) if key.startswith(prefix)]
        return Listing(self.listing(found.keys), [key.removesuffix("zarr.json") for key in told])


@pytest.fixture(params=LAYOUTS)
def honest(request, tmp_path: Path) -> LocalStore:
    """Two arrays of the same layout, the second one with a manifest."""
    store = LocalStore(str(tmp_path / "run.zarr"))
    layout = LAYOUTS[request.param]
    with dask.config.set(scheduler="sync"):
        for name, values in (("old", OLD), ("a", VALUES)):
            x = da.from_array(values, chunks=10)
            zd.to_zarr(x, store, name, manifest=str(tmp_path / f"{name}.manifest"), **layout)
    return store


def manifest(store: LocalStore) -> str:
    return str(Path(store.root).parent / "a.manifest")


def read(store: Any, **options: Any) -> np.ndarray:
    return zd.open_array(store, "a", read=zd.ReadOptions(**options))[...]


@pytest.mark.parametrize("lie", GET_LIES)
def test_a_manifest_tells_every_lie_about_an_object(lie: str, honest: LocalStore) -> None:
    liar = LyingStore(honest, GET_LIES[lie])
    np.testing.assert_array_equal(read(honest, verify=manifest(honest)), VALUES)
    with pytest.raises(ManifestMismatchError) as caught:
        read(liar, verify=manifest(honest))
    assert caught.value.key == KEY
    report = zd.verify(liar, "a", deep="receipts", manifest=manifest(honest))
    assert KEY in {one.key for one in report.findings}


@pytest.mark.parametrize("lie", OF_LENGTH)
def test_a_wrong_length_is_no_values(lie: str, honest: LocalStore, request) -> None:
    liar = LyingStore(honest, OF_LENGTH[lie])
    if lie == "twice" and "shards" in request.node.name:
        np.testing.assert_array_equal(read(liar), VALUES)  # its last index names the first half
        return
    with pytest.raises(CorruptObjectError) as caught:
        read(liar)
    assert caught.value.key == KEY


def test_a_checksum_tells_flipped_bits(honest: LocalStore, request) -> None:
    liar = LyingStore(honest, OF_BYTES["a bit flipped"])
    if "bare" in request.node.name:
        assert (read(liar) != VALUES).sum() == 1  # as docs/reference/selecting.md says
        return
    with pytest.raises(CorruptObjectError):
        read(liar)


@pytest.mark.parametrize("lie", OF_OTHERS)
def test_whole_objects_of_others_decode(lie: str, honest: LocalStore) -> None:
    """Which is why there are manifests; everything else is right."""
    found = read(LyingStore(honest, OF_OTHERS[lie]))
    wrong = np.zeros((20, 20), bool)
    wrong[10:, :10] = True
    np.testing.assert_array_equal(found != VALUES, wrong)


def test_what_is_denied_is_told_by_options(honest: LocalStore) -> None:
    liar = LyingStore(honest, ABSENT["not there"])
    assert not read(liar)[10:, :10].any()  # the one lie that looks like fill values
    with pytest.raises(ChunkMissingError):
        read(liar, missing="error")
    with pytest.raises(ArrayChangedError, match="removed"):
        read(liar, consistent=True)


def test_denied_metadata_are_no_fill_values(honest: LocalStore) -> None:
    array = zd.open_array(honest, "a")
    none = LyingStore(honest, lambda *_: None)
    with pytest.raises(NodeNotFoundError):
        zd.open_array(none, "nothing")
    assert array.shape == (20, 20)


# --- listings -------------------------------------------------------------------------------------

LIST_LIES: dict[str, Callable[[list[str]], list[str]]] = {
    "misses a key": lambda keys: [key for key in keys if key != KEY and not key.startswith("old/")],
    "repeats keys": lambda keys: [key for key in keys for _ in range(2)],
    "lists what was deleted": lambda keys: [*keys, "gone/zarr.json", "a/c/7/7"],
}


@pytest.mark.parametrize("lie", LIST_LIES)
def test_reads_ask_no_listing(lie: str, honest: LocalStore) -> None:
    liar = LyingStore(honest, listing=LIST_LIES[lie])
    np.testing.assert_array_equal(read(liar), VALUES)
    np.testing.assert_array_equal(zd.from_zarr(liar, "a").compute(scheduler="sync"), VALUES)


@pytest.mark.parametrize("lie", LIST_LIES)
def test_a_group_shows_each_node_once_and_none_that_is_gone(lie: str, honest: LocalStore) -> None:
    found = [name for name, _ in zd.open_group(LyingStore(honest, listing=LIST_LIES[lie])).arrays()]
    assert found == (["a"] if lie == "misses a key" else ["a", "old"])


@pytest.mark.parametrize("lie", LIST_LIES)
def test_values_of_a_new_array_are_its_own(lie: str, honest: LocalStore) -> None:
    """Although the store does not list what the one before has left, or lists more."""
    liar = LyingStore(honest, listing=LIST_LIES[lie])
    new = VALUES.copy()
    new[10:] = 0  # objects that are left out
    with dask.config.set(scheduler="sync"):
        zd.to_zarr(da.from_array(new, chunks=10), liar, "a", mode="w", chunks=10)
    np.testing.assert_array_equal(read(honest), new)


@pytest.mark.parametrize("lie", LIST_LIES)
def test_a_version_is_that_of_the_listing_or_an_error(lie: str, honest: LocalStore) -> None:
    liar = LyingStore(honest, listing=LIST_LIES[lie])
    if lie != "misses a key":
        np.testing.assert_array_equal(read(liar, consistent=True), VALUES)
        return
    with pytest.raises(ArrayChangedError, match="put"):
        read(liar, consistent=True)


def stopping() -> da.Array:
    """The values, whose third block fails once."""
    computed: list[None] = []

    def block(values: np.ndarray) -> np.ndarray:
        computed.append(None)
        if len(computed) == 3:
            raise RuntimeError("stopped")
        return values

    x = da.from_array(VALUES, chunks=10)
    return x.map_blocks(block, dtype="i4", meta=np.empty((0, 0), "i4"), name="stopping")


@pytest.mark.parametrize("lie", LIST_LIES)
def test_a_job_that_goes_on_writes_what_it_does_not_see(lie: str, tmp_path: Path) -> None:
    """Receipts name the objects, and the store is asked for those of the array alone."""
    honest = LocalStore(str(tmp_path / "run.zarr"))
    x = stopping()
    given: dict[str, Any] = {"resume": "run", "chunks": 10}
    with dask.config.set(scheduler="sync"):
        with pytest.raises(RuntimeError):
            zd.to_zarr(x, honest, "a", **given)
        zd.to_zarr(x, LyingStore(honest, listing=LIST_LIES[lie]), "a", **given)
    np.testing.assert_array_equal(read(honest), VALUES)


@dataclass(frozen=True)
class LyingSizes(StoreWrapper):
    """A store whose listing names an object that was lost, with its size."""

    lost: tuple[str, int] = ("", 0)

    def list_sizes(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        found = [(key, self.store.size(key) or 0) for key in self.store.list(prefix)]
        return iter([*found, self.lost])


def test_an_object_that_is_listed_after_it_was_lost_is_found_with_a_manifest(
    tmp_path: Path,
) -> None:
    """A job that goes on believes the listing; no page promises more without a manifest."""
    honest = LocalStore(str(tmp_path / "run.zarr"))
    x = stopping()
    given: dict[str, Any] = {"resume": "run", "chunks": 10, "manifest": str(tmp_path / "manifest")}
    with dask.config.set(scheduler="sync"):
        with pytest.raises(RuntimeError):
            zd.to_zarr(x, honest, "a", **given)
        key = next(iter(honest.list("a/c/")))  # there is one at least
        size = honest.size(key) or 0
        honest.delete(key)
        zd.to_zarr(x, LyingSizes(honest, (key, size)), "a", **given)
    with pytest.raises(ManifestMismatchError):
        read(honest, verify=given["manifest"])
