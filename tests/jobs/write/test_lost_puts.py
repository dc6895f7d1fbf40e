"""Stores that acknowledge what they do not keep: `confirm=True` or a manifest finds it."""

from dataclasses import dataclass

import dask
import dask.array as da
import numpy as np
import pytest

import zarr_dask as zd
from tests.support.fault_proxy import fault_proxy
from tests.support.lies import LIES as ALL_LIES
from tests.support.lies import OF_LENGTH, Put
from tests.support.object_stores import s3_server
from zarr_dask.errors import (
    ConditionalWriteError,
    CorruptObjectError,
    ManifestMismatchError,
    NodeNotFoundError,
    StoreError,
    ValuesDifferError,
)
from zarr_dask.stores import WHOLE, MemoryStore, Recording
from zarr_dask.stores.wrapper import StoreWrapper

VALUES = np.random.default_rng(0).random((40, 40))
LIES = {
    "lost": lambda _store, _key, _value: None,
    "halved": lambda store, key, value: store.set(key, [value[: len(value) // 2]]),
    "elsewhere": lambda store, key, value: store.set(f"other/{key}", [value]),
}


@dataclass(frozen=True)
class LyingStore(StoreWrapper):
    """A store that acknowledges one object and does something else with it."""

    lie: str = ""

    def set(self, key, buffers):
        if key == "a/c/2/1" and self.lie:
            LIES[self.lie](self.store, key, b"".join(buffers))
        else:
            self.store.set(key, buffers)


@pytest.mark.parametrize(
    "options", [{}, {"shards": (10, 10), "chunks": 5}], ids=["chunks", "shards"]
)
@pytest.mark.parametrize("lie", LIES)
def test_what_a_store_has_not_kept_is_not_shown(lie, options):
    x = da.from_array(VALUES, chunks=10)
    store = LyingStore(MemoryStore(), lie)
    with dask.config.set(scheduler="sync"):
        with pytest.raises(StoreError, match=r"'c/2/1'.*(no such object|got \d)"):
            zd.to_zarr(x, store, "a", confirm=True, **options)
        with pytest.raises(NodeNotFoundError):
            zd.open_array(store, "a")
        zd.to_zarr(x, store, "a", overwrite=True, **options)  # nobody asks
        honest = LyingStore(store.store)
        zd.to_zarr(x, honest, "a", overwrite=True, confirm=True, **options)
        np.testing.assert_array_equal(zd.open_array(honest, "a")[...], VALUES)
        for lie_again in {lie} - {"halved"}:
            del store.store.values["a/c/2/1"]
            with pytest.raises(StoreError, match="no such object"):
                zd.to_zarr(x, LyingStore(store.store, lie_again), "a", mode="r+", confirm=True)


@dataclass(frozen=True)
class LosingChanges(StoreWrapper):
    """A store that acknowledges a conditional put and does not keep it."""

    def set_if(self, key, buffers, tag):
        return True if "/c/" in key else super().set_if(key, buffers, tag)


@pytest.mark.parametrize("before", [None, 1.5])
def test_a_change_of_a_shared_object_that_is_lost_is_found(before):
    values = MemoryStore()
    array = zd.create_array(values, "a", shape=(40, 40), dtype="f8", chunks=20, codecs=[])
    if before is not None:
        array[...] = before
    rows = da.from_array(VALUES[:10], chunks=10)
    options = {"region": (slice(0, 10), slice(None)), "partial": "compare", "confirm": True}
    with dask.config.set(scheduler="sync"):
        with pytest.raises(StoreError, match="lost the change"):
            zd.to_zarr(rows, LosingChanges(values), "a", **options)
        for _ in range(2):  # the second time, nothing changes
            zd.to_zarr(rows, values, "a", **options)
    np.testing.assert_array_equal(array[:10], VALUES[:10])


@dataclass(frozen=True)
class DenyingPuts(StoreWrapper):
    """A store that makes conditional puts and says that it has not."""

    def set_if(self, key, buffers, tag):
        super().set_if(key, buffers, tag)
        return False


def test_puts_that_a_store_has_made_and_denies_end_a_job_soon():
    values = MemoryStore()
    array = zd.create_array(values, "a", shape=(40, 40), dtype="f8", chunks=20, codecs=[])
    log = Recording(DenyingPuts(values))
    rows = da.from_array(VALUES[:10], chunks=10)
    options = {"region": (slice(0, 10), slice(None)), "partial": "compare", "confirm": True}
    with dask.config.set(scheduler="sync"):
        zd.to_zarr(rows, log, "a", **options)
    np.testing.assert_array_equal(array[:10], VALUES[:10])
    assert log.per_key("set_if").keys() == {"a/c/0/0", "a/c/0/1"}
    assert set(log.per_key("set_if").values()) == {1}
    log.clear()
    zd.open_array(log, "a", mode="r+").attrs["k"] = 1
    zd.consolidate(log)
    assert set(log.per_key("set_if").values()) == {1}
    assert zd.open_group(values)["a"].attributes == {"k": 1}


@dataclass(frozen=True)
class DenyingObjects(StoreWrapper):
    """A store that does not show a stored object that it has."""

    def get_tagged(self, key, wanted=WHOLE):
        return (None, None) if "/c/" in key else super().get_tagged(key, wanted)


def test_a_change_of_an_object_that_a_store_hides_ends_soon():
    values = MemoryStore()
    array = zd.create_array(values, "a", shape=(40, 40), dtype="f8", chunks=20, codecs=[])
    array[...] = 1.5
    log = Recording(DenyingObjects(values))
    rows = da.from_array(VALUES[:10], chunks=10)
    options = {"region": (slice(0, 10), slice(None)), "partial": "compare"}
    why = "c/0/[01]' .*but the value is the same"
    with dask.config.set(scheduler="sync"), pytest.raises(ConditionalWriteError, match=why):
        zd.to_zarr(rows, log, "a", **options)
    assert max(log.per_key("set_if").values()) == 9
    np.testing.assert_array_equal(array[...], 1.5)


# --- every lie, at once or later ------------------------------------------------------------------

KEY, OTHER = "a/c/1/0", "a/c/0/1"
NEW = VALUES[:20, :20]
OLD = NEW + 1  # encoded to as many bytes


class Liar:
    """Two jobs, of which the second one is lied to."""

    def __init__(self, honest, url, folder, **options):
        self.honest, self.url, self.options = honest, url, options
        self.manifest, self.journal = str(folder / "manifest"), folder / "jobs"

    def write(self, values, **more):
        x = da.from_array(values, chunks=10)
        kept = {"manifest": self.manifest, "journal": self.journal, **self.options, **more}
        with dask.config.set(scheduler="sync"):
            zd.to_zarr(x, self.url, "a", overwrite=True, chunks=10, codecs=["crc32c"], **kept)

    def lie(self, name, before):
        value = bytes(self.honest.get(KEY))
        ALL_LIES[name](Put(self.honest, KEY, value, before, OTHER))

    def check_found(self):
        """Neither verify nor a read that is verified takes the object for what was put."""
        read = {key: one for key, one in self.options.items() if key == "storage_options"}
        report = zd.verify(self.url, "a", deep="receipts", manifest=self.manifest, **read)
        assert KEY in {one.key for one in report.findings}
        array = zd.open_array(self.url, "a", read=zd.ReadOptions(verify=self.manifest), **read)
        with pytest.raises(ManifestMismatchError) as caught:
            array[15, 5]
        assert caught.value.key == KEY
        np.testing.assert_array_equal(array[:10], NEW[:10])


@dataclass(frozen=True)
class LyingAtOnce(StoreWrapper):
    """A store that lies about one object as soon as it has put it."""

    then: object = None

    def set(self, key, buffers):
        self.store.set(key, buffers)
        if key == KEY:
            self.then()


@pytest.mark.parametrize("when", ["at once", "later"])
def test_every_lie_is_found_at_the_time_or_by_what_was_kept(when, tmp_path):
    for number, lie in enumerate(ALL_LIES):
        folder = tmp_path / str(number)
        folder.mkdir()
        honest = MemoryStore()
        liar = Liar(honest, honest, folder)
        liar.write(OLD)
        before = bytes(honest.get(KEY))
        if when == "at once":
            liar.url = LyingAtOnce(honest, lambda lie=lie, one=liar, b=before: one.lie(lie, b))
        check(liar, lie, before, at_once=when == "at once")


def check(liar, lie, before, *, at_once, has_tags=False):
    if at_once and (lie in OF_LENGTH or has_tags):
        with pytest.raises(StoreError, match=r"'c/1/0'.*(no such object|got \d)"):
            liar.write(NEW, confirm=True)
        return
    if at_once:
        with pytest.raises((ValuesDifferError, CorruptObjectError)):
            liar.write(NEW, verify=True)
    liar.write(NEW, confirm=True)
    if not at_once:
        liar.lie(lie, before)
    liar.check_found()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("when", ["at once", "later"])
def test_a_proxy_that_lies_about_puts_to_s3(when, tmp_path):
    with s3_server() as server, fault_proxy(server.endpoint) as proxy:
        client = {"endpoint_url": proxy.endpoint, "region_name": "us-east-1"}
        options = {**server.options, "client_kwargs": client}
        for number, lie in enumerate(ALL_LIES):
            folder = tmp_path / str(number)
            folder.mkdir()
            url = f"{server.root}/{when.replace(' ', '-')}-{number}.zarr"
            direct = zd.create_group(url, storage_options=server.options).store
            liar = Liar(direct, url, folder, storage_options=options)
            liar.write(OLD)
            before = bytes(direct.get(KEY))
            if when == "at once":
                proxy.faults.lie = lambda path, lie=lie, one=liar, b=before: (
                    one.lie(lie, b) if path.split("?")[0].endswith(KEY) else None
                )
            check(liar, lie, before, at_once=when == "at once", has_tags=True)
            proxy.faults.lie = None


def test_a_put_over_an_older_object_that_is_lost_is_found_by_its_tag(tmp_path):
    with s3_server() as server, fault_proxy(server.endpoint) as proxy:
        client = {"endpoint_url": proxy.endpoint, "region_name": "us-east-1"}
        options = {**server.options, "client_kwargs": client}
        direct = zd.create_group(f"{server.root}/a.zarr", storage_options=server.options).store
        liar = Liar(direct, f"{server.root}/a.zarr", tmp_path, storage_options=options)
        liar.write(OLD)
        before = bytes(direct.get(KEY))
        proxy.faults.lie = lambda path: liar.lie("the older", before) if path.endswith(KEY) else 0
        with pytest.raises(StoreError, match=r"'c/1/0'.*with the ETag '\w+' instead of '\w+'"):
            liar.write(NEW, confirm=True)
        proxy.faults.lie = None
        liar.write(NEW, confirm=True)
