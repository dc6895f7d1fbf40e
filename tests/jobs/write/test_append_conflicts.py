"""Several who append to one array, or change its metadata, at the same time: nothing is lost."""

from __future__ import annotations

import json
import os
import pickle
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

import zarr_dask as zd
from tests.support.leftovers import left_in
from tests.support.scripts import Script
from zarr_dask.errors import (
    AppendConflictError,
    ConditionalWriteError,
    MetadataChangedError,
    StoreError,
    ZarrDaskError,
)
from zarr_dask.jobs.write.target import WriteReport
from zarr_dask.journal import claims, location
from zarr_dask.journal.claims import ArrayEnd, Claim, end_of_array
from zarr_dask.stores import HookStore, MemoryStore
from zarr_dask.stores.backends.local import LocalStore
from zarr_dask.stores.wrapper import StoreWrapper

PATIENCE = 50.0


@pytest.fixture(autouse=True)
def in_order() -> Any:
    with dask.config.set(scheduler="synchronous"):
        yield


def place(tmp_path: Path, kind: str) -> Any:
    """An array of four zeros."""
    found: Any = MemoryStore() if kind == "memory" else tmp_path / "a.zarr"
    zd.to_zarr(da.zeros(4, chunks=2, dtype="i4"), found)
    return found


def values(value: int, count: int = 2) -> da.Array:
    return da.full((count,), value, chunks=2, dtype="i4")


def append(target: Any, value: int, **options: Any) -> None:
    zd.to_zarr(values(value), target, append=0, **options)


def append_directly(target: Any, value: int, **options: Any) -> None:
    zd.open_array(target, mode="r+").append([value, value], **options)


WAYS = {"to_zarr": append, "Array.append": append_directly}
KINDS = ["local", "memory"]


def while_appending(target: Any, act: Callable[[], None], **options: Any) -> None:
    """Append two ones; act when the first object is there and the document is not."""
    acted = []

    def between(step: object) -> None:
        if step.nbytes and not acted:  # type: ignore[attr-defined]
            acted.append(True)
            act()

    append(target, 1, progress=between, **options)
    assert acted


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_second_append_is_refused_before_it_writes(kind: str, way: str, tmp_path: Path) -> None:
    target = place(tmp_path, kind)

    def second() -> None:
        with pytest.raises(AppendConflictError, match=r"nothing was written.*on_conflict='wait'"):
            WAYS[way](target, 2)
        assert zd.open_array(target).shape == (4,)

    while_appending(target, second)
    assert zd.open_array(target)[...].tolist() == [0, 0, 0, 0, 1, 1]
    WAYS[way](target, 2)
    assert zd.open_array(target)[...].tolist() == [0, 0, 0, 0, 1, 1, 2, 2]
    assert [path.name for path in tmp_path.iterdir()] in ([], ["a.zarr"])


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_second_append_waits(kind: str, way: str, resume: bool, tmp_path: Path) -> None:
    target = place(tmp_path, kind)
    if kind == "memory" and resume:
        pytest.skip("memory keeps no journal")
    began = threading.Event()
    options = {"resume": True} if resume and way == "to_zarr" else {}

    def wait() -> None:
        with dask.config.set(scheduler="synchronous"):
            began.set()
            WAYS[way](target, 2, on_conflict="wait", **options)

    thread = threading.Thread(target=wait)

    def second() -> None:
        thread.start()
        assert began.wait(PATIENCE)
        thread.join(0.2)
        assert thread.is_alive()

    while_appending(target, second, resume=resume)
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert zd.open_array(target)[...].tolist() == [0, 0, 0, 0, 1, 1, 2, 2]
    assert left_in(tmp_path) <= {"a.zarr"}


def test_who_waits_goes_on_behind_irregular_cells(tmp_path: Path) -> None:
    x = da.from_array(np.arange(5), chunks=((2, 3),))
    zd.to_zarr(x, tmp_path / "a", chunks=x.chunks)
    opened = zd.open_array(tmp_path / "a", mode="r+")
    zd.to_zarr(x, tmp_path / "a", append=0)
    opened.append([7], on_conflict="wait")
    zd.to_zarr(x, opened.append([8], on_conflict="wait"), append=0, on_conflict="wait")
    want = [*range(5), *range(5), 7, 8, *range(5)]
    assert zd.open_array(tmp_path / "a")[...].tolist() == want
    stored = zd.to_zarr(x, opened, append=0, on_conflict="wait", return_stored=True)
    assert stored.compute().tolist() == [*want, *range(5)]


def test_an_array_of_another_kind_is_not_waited_for(tmp_path: Path) -> None:
    opened = zd.open_array(place(tmp_path, "local"), mode="r+")
    zd.create_array(tmp_path / "a.zarr", shape=4, dtype="f8", overwrite=True)
    with pytest.raises(MetadataChangedError):
        opened.append([7], on_conflict="wait")
    zd.create_array(tmp_path / "a.zarr", shape=(4, 4), dtype="i4", overwrite=True)
    with pytest.raises(MetadataChangedError):
        opened.append([7], on_conflict="wait")


@pytest.mark.parametrize("kind", KINDS)
def test_the_shape_stays_while_an_append_runs(kind: str, tmp_path: Path) -> None:
    target = place(tmp_path, kind)
    opened = zd.open_array(target, mode="r+")

    def second() -> None:
        with pytest.raises(AppendConflictError):
            opened.resize(2, prune=True)

    elsewhere = pickle.loads(pickle.dumps(opened))
    while_appending(target, second)
    assert opened.shape == (6,)
    with pytest.raises(MetadataChangedError):
        elsewhere.resize(2, prune=True)
    assert zd.open_array(target)[...].tolist() == [0, 0, 0, 0, 1, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_failed_append_keeps_nobody_away(kind: str, tmp_path: Path) -> None:
    target = place(tmp_path, kind)

    def stop() -> None:
        raise StoreError("no space")

    with pytest.raises(StoreError, match="no space"):
        while_appending(target, stop)
    with pytest.raises(TypeError, match="None"):
        append_directly(target, None)  # type: ignore[arg-type]
    append_directly(target, 3)
    append(target, 4)
    assert zd.open_array(target)[...].tolist() == [0, 0, 0, 0, 3, 3, 4, 4]
    assert [path.name for path in tmp_path.iterdir()] in ([], ["a.zarr"])


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_tasks_find_out_that_their_claim_was_taken(kind: str, fails: bool, tmp_path: Path) -> None:
    """Of a collection, nobody holds the claim while no task runs."""
    target = place(tmp_path, kind)
    later = zd.to_zarr(values(1, 4), target, append=0, compute=False)

    class StopError(Exception):
        pass

    def stop() -> None:
        raise StopError

    written = []

    def another(_: Any, value: Any, *__: Any) -> None:
        written.append(isinstance(value, WriteReport))
        if sum(written) != 1 or not written[-1]:
            return
        if not fails:
            append(target, 2)
            return
        with pytest.raises(StopError):
            while_appending(target, stop)

    wanted = AppendConflictError if fails else MetadataChangedError
    with dask.callbacks.Callback(posttask=another), pytest.raises(wanted):
        later.compute()
    assert zd.open_array(target)[...].tolist() == [0, 0, 0, 0] + ([] if fails else [2, 2])
    append(target, 3)
    assert zd.open_array(target)[-2:].tolist() == [3, 3]
    assert [path.name for path in tmp_path.iterdir()] in ([], ["a.zarr"])


def test_a_claim_goes_with_its_process(tmp_path: Path) -> None:
    target = place(tmp_path, "local")
    script = """
import sys, dask.array as da, zarr_dask as zd
def stop(step):
    print("begun", flush=True)
    sys.stdin.read()
zd.to_zarr(da.ones(2, chunks=2, dtype="i4"), sys.argv[1], append=0, progress=stop)
"""
    with Script(script, target) as process:
        assert process.stdout.readline() == "begun\n"
        with pytest.raises(AppendConflictError, match=f"process {process.pid} on "):
            append(target, 2)
        process.kill()
        process.wait()
        append(target, 2)
    assert zd.open_array(target)[...].tolist() == [0, 0, 0, 0, 2, 2]
    assert [path.name for path in tmp_path.iterdir()] == ["a.zarr"]


RACE = """
import sys, dask, dask.array as da, zarr_dask as zd
dask.config.set(scheduler="sync")
number, options = int(sys.argv[2]), eval(sys.argv[3])
for line in sys.stdin:
    place = sys.argv[1] + line.strip()
    x = da.full((2 * number,), number, chunks=2, dtype="i4")
    try:
        zd.to_zarr(x, place, append=0, **options)
        said = "ok"
    except zd.errors.ZarrDaskError as error:
        said = type(error).__name__
    zd.open_group(sys.argv[1], mode="r+").update_attributes({f"{line}{number}": number})
    print(said, flush=True)
"""


@pytest.mark.parametrize(
    "options",
    [{}, pytest.param({"on_conflict": "wait"}, marks=pytest.mark.slow)],
    ids=["error", "wait"],
)
def test_two_processes(options: dict[str, str], tmp_path: Path) -> None:
    """What a call has written that came back well is there, and all attributes are."""
    zd.create_group(tmp_path / "a")
    with ExitStack() as stack:
        processes = [
            stack.enter_context(Script(RACE, tmp_path / "a", number, repr(options)))
            for number in (1, 2)
        ]
        for pair in range(5):
            target = f"{tmp_path}/a{pair}"
            zd.to_zarr(da.zeros(4, chunks=2, dtype="i4"), target)
            for process in processes:
                process.stdin.write(f"{pair}\n")
            for process in processes:
                process.stdin.flush()
            said = [process.stdout.readline().strip() for process in processes]
            found = zd.open_array(target)[...].tolist()
            want = sum(2 * n for n, word in enumerate(said, 1) if word == "ok")
            assert len(found) == 4 + want
            for number, word in enumerate(said, 1):
                assert found.count(number) == (2 * number if word == "ok" else 0)
            assert set(said) <= {"ok", "AppendConflictError", "MetadataChangedError"}
            assert "ok" in said
            assert not options or said == ["ok", "ok"]
        assert len(zd.open_group(tmp_path / "a").attributes) == 10


# --- stores that are asked by requests ------------------------------------------------------------


class Objects(StoreWrapper):
    """Local files as an object store shows them: conditional puts, and no locks."""


def object_end(root: Path, token: str, job: str = "") -> claims.ArrayEnd:
    found = end_of_array(LocalStore(str(root / "a.zarr")), "", token, job)
    assert found is not None
    return claims.ArrayEnd(Objects(found.store), found.prefix, token, found.what, job)


@pytest.mark.parametrize("then", ["ends", "goes on"])
def test_a_record_in_an_object_store_that_changes_while_it_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    place(tmp_path, "local")
    first, second = object_end(tmp_path, "1", "job"), object_end(tmp_path, "2", "job")
    first.claim()
    if then == "ends":
        first.note_ended((2,), {})
    looks = []

    def get_tagged(store: Objects, key: str, get: Any = Objects.get_tagged) -> Any:
        found = get(store, key)
        looks.append(found)
        if len(looks) == 1:
            first.leave() if then == "ends" else store.set(key, [bytes(found[0]) + b" "])
        return found

    monkeypatch.setattr(Objects, "get_tagged", get_tagged)
    assert second.claim().is_new
    assert looks


def test_a_record_in_an_object_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place(tmp_path, "local")
    first, second = object_end(tmp_path, "1", "job"), object_end(tmp_path, "2")
    record = tmp_path / "a.zarr.zarr-dask" / "__append" / "held"
    claim = first.claim()
    assert claim.is_new
    assert record.exists()
    assert not first.claim().is_new  # another worker of the same job
    with pytest.raises(AppendConflictError, match=f"process {os.getpid()} on .*remove .*__append/"):
        second.claim()
    again = object_end(tmp_path, "3", "job")
    assert again.claim().is_new  # of the same job: it has died, and is resumed
    monkeypatch.setattr(claims, "_PATIENCE", 0.05)
    with pytest.raises(AppendConflictError):
        second.claim("wait")
    monkeypatch.setattr(claims, "_PATIENCE", PATIENCE)
    timer = threading.Timer(0.05, again.leave)
    timer.start()
    assert second.claim("wait").is_new
    timer.join()
    second.note_ended((6,), {})
    third = object_end(tmp_path, "4")
    assert third.claim().is_new  # of what has ended, the record alone is there
    second.acknowledge()
    third.note_ended((8,), {"objects": 1})
    third.acknowledge()
    assert json.loads(record.read_bytes())["ended"]["is_known"]
    at = (zd.open_array(tmp_path / "a.zarr").store, "", "")
    assert claims.ended_append(*at, (8,)) is None  # a new call, which appends once more
    awaited = claims.ended_append(*at, (8,), was_awaited=True)
    assert awaited is not None
    assert awaited.report == {"objects": 1}
    assert second.claim().is_new
    second.leave()
    assert not record.exists()
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_bytes(b"[[[")
    with pytest.raises(AppendConflictError):
        second.claim()


# --- attributes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["v2", "v3"])
@pytest.mark.parametrize("what", ["array", "group"])
@pytest.mark.parametrize("kind", KINDS)
def test_attributes_of_both_survive(kind: str, what: str, format: str, tmp_path: Path) -> None:
    inner: Any = MemoryStore() if kind == "memory" else LocalStore(str(tmp_path / "a"))
    if what == "array":
        zd.create_array(inner, shape=4, dtype="i4", format=format)
    else:
        zd.create_group(inner, format=format)
    raced = []

    def race(method: str, key: str) -> None:
        if method == "set_if" and len(raced) < 3:
            raced.append(key)
            zd.open(inner, mode="r+").update_attributes({f"other{len(raced)}": 1})

    node = zd.open(HookStore(inner, race), mode="r+").update_attributes({"own": 2})
    want = {"own": 2, "other1": 1, "other2": 1, "other3": 1}
    assert dict(node.attributes) == want
    assert dict(zd.open(inner).attributes) == want


@pytest.mark.parametrize("format", ["v2", "v3"])
def test_an_attribute_and_a_length_both_survive(format: str) -> None:
    inner = MemoryStore()
    zd.create_array(inner, shape=4, dtype="i4", chunks=2, format=format)
    raced: list[str] = []

    def race(method: str, key: str) -> None:
        if method == "set_if" and not raced:
            raced.append(key)
            zd.open_array(inner, mode="r+").update_attributes({"a": 1})

    append(HookStore(inner, race), 1)
    assert raced
    raced.clear()
    zd.open_array(HookStore(inner, race), mode="r+").resize(9)
    found = zd.open_array(inner)
    assert found.shape == (9,)
    assert dict(found.attributes) == {"a": 1}


def test_two_new_shapes_are_not_both_taken() -> None:
    inner = MemoryStore()
    zd.create_array(inner, shape=4, dtype="i4", chunks=2)
    opened: list[Any] = [zd.open_array(inner, mode="r+")]

    def race(method: str, key: str) -> None:
        if method == "set_if" and opened:
            text = inner.values[key]
            inner.values[key] = bytes(text).replace(b"4", b"7", 1)
            opened.clear()

    with pytest.raises(MetadataChangedError):
        zd.open_array(HookStore(inner, race), mode="r+").resize(9)
    assert zd.open_array(inner).shape == (7,)


def test_a_store_that_refuses_for_no_reason() -> None:
    class Refusing(StoreWrapper):
        tries = 0

        def set_if(self, key: str, *_: Any) -> bool:
            Refusing.tries += 1
            return False

    inner = MemoryStore()
    zd.create_array(inner, shape=4, dtype="i4")
    array = zd.open_array(Refusing(inner), mode="r+")
    with pytest.raises(ConditionalWriteError, match="the value is the same"):
        array.update_attributes({"a": 1})
    assert 1 < Refusing.tries < 20


def test_what_says_nothing(tmp_path: Path) -> None:
    target = place(tmp_path, "local")
    with pytest.raises(ValueError, match="on_conflict='later': expected one of"):
        append(target, 1, on_conflict="later")
    with pytest.raises(ValueError, match="on_conflict='later': expected one of"):
        append_directly(target, 1, on_conflict="later")
    with pytest.raises(ValueError, match="about appends"):
        zd.to_zarr(values(1), tmp_path / "b", on_conflict="wait")
    with pytest.raises(ValueError, match="one array at a time"):
        zd.to_zarr([values(1)], tmp_path, ["a.zarr"], append=0, on_conflict="wait")
    assert [path.name for path in tmp_path.iterdir()] == ["a.zarr"]


def test_of_two_new_arrays_at_one_place_one_is_made_and_it_is_whole(tmp_path, monkeypatch):
    root = tmp_path / "a.zarr"
    zd.create_group(root)
    leftover = Path(f"{root}.zarr-dask", "a", "leftover")
    ended: dict[int, str] = {}
    checked, claimed = threading.Event(), threading.Event()
    check, claim = location.check_not_locked, ArrayEnd.claim

    def write(value: int) -> None:
        try:
            zd.to_zarr(values(value, 4), root, "a")
            ended[value] = ""
        except ZarrDaskError as error:
            ended[value] = type(error).__name__

    other = threading.Thread(target=write, args=(2,))

    def slow_check(*args: Any) -> None:  # of the other job, before it removes what it has found
        check(*args)
        if threading.current_thread() is other:
            checked.set()
            claimed.wait(PATIENCE)

    def slow_claim(self: ArrayEnd, *args: Any) -> Claim:
        if threading.current_thread() is not other and not checked.is_set():
            leftover.parent.mkdir(parents=True, exist_ok=True)
            leftover.touch()
            other.start()
            checked.wait(0.2)  # it has to wait for this one
        found = claim(self, *args)
        claimed.set()
        return found

    monkeypatch.setattr(location, "check_not_locked", slow_check)
    monkeypatch.setattr(ArrayEnd, "claim", slow_claim)
    write(1)
    other.join()
    (made,) = (value for value, error in ended.items() if not error)
    np.testing.assert_array_equal(zd.open_array(root, "a")[...], made)
