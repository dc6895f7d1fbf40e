"""Jobs that die and are taken up again: only what is missing is computed, only the same is taken.

Killed processes are the matter of test_kills.py; here jobs fail in this one.
"""

from __future__ import annotations

import errno
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
from collections import Counter
from itertools import product
from pathlib import Path

import dask
import dask.array as da
import fsspec
import google_crc32c
import numpy as np
import pytest

import zarr_dask as zd
from tests.support.leftovers import left_in, open_below
from tests.support.scripts import run_script
from zarr_dask.errors import (
    JournalError,
    MetadataChangedError,
    NodeExistsError,
    NodeNotFoundError,
    ResumeError,
    StoreError,
)
from zarr_dask.jobs.write import append_state as growth
from zarr_dask.jobs.write import start, target
from zarr_dask.jobs.write.start import start_write
from zarr_dask.journal import Journal, claims, default_place, ended_append, open_journals
from zarr_dask.journal.receipts import Receipt, StoredObject, collect
from zarr_dask.stores import HookStore, LocalStore, MemoryStore, Recording, open_store

RAW = [{"name": "bytes", "configuration": {"endian": "little"}}]
COMPUTED: Counter[tuple[int, ...]] = Counter()


def noted(block, block_info=None):
    COMPUTED[block_info[0]["chunk-location"]] += 1
    return block * 2


def numbers(shape=(40, 30), chunks=(10, 10)):
    return da.arange(np.prod(shape), chunks=-1).reshape(shape).rechunk(chunks)


def source(shape=(40, 30), chunks=(10, 10)):
    return numbers(shape, chunks).map_blocks(noted, dtype="i8")


def striped():
    """The source beside a column of blocks of zeros."""
    return source((40, 40)).map_blocks(
        lambda block, block_info=None: block * (block_info[0]["chunk-location"][1] < 3),
        dtype="i8",
    )


def coords_key(coords):
    return f"c/{coords[0]}/{coords[1]}"


def expected(shape=(40, 30)):
    return np.arange(np.prod(shape)).reshape(shape) * 2


@pytest.fixture(autouse=True)
def one_thread():
    COMPUTED.clear()
    with dask.config.set(scheduler="sync"):
        yield


class Failing:
    """Lets a number of stored objects be written, then none."""

    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self, method: str, key: str) -> None:
        if method == "set" and not key.endswith((".json", ".zarray", ".zattrs", ".zgroup")):
            self.left -= 1
            if self.left < 0:
                raise StoreError(errno.ENOSPC, "no space left on device")


def failing(place, after: int) -> HookStore:
    return HookStore(LocalStore(str(place)), Failing(after))


def fail(values, place, after, component=None, **options):
    with pytest.raises(StoreError, match="no space"):
        zd.to_zarr(values, failing(place, after), component, **options)


def everything_below(place: Path) -> set[str]:
    return {str(path.relative_to(place)) for path in place.rglob("*")}


def objects_of(report) -> int:
    """Objects that a call has written; a job that has ended answers with its earlier report."""
    return 0 if report.already_done else report.objects


# --- only what is missing -------------------------------------------------------------------------


@pytest.mark.parametrize("resume", [True, "run-7"])
@pytest.mark.parametrize("after", [0, 1, 7, 11])
def test_only_what_is_missing_is_computed(tmp_path, after, resume):
    fail(source(), tmp_path / "a", after, resume=resume)
    COMPUTED.clear()
    report = zd.to_zarr(source(), tmp_path / "a", resume=resume)
    assert report.objects == 12 - after
    assert sum(COMPUTED.values()) == 12 - after
    assert set(COMPUTED.values()) == {1}
    np.testing.assert_array_equal(zd.open_array(tmp_path / "a")[...], expected())
    assert left_in(tmp_path) == {"a"}


def test_it_may_die_again_and_again(tmp_path):
    for _ in range(11):
        fail(source(), tmp_path / "a", 1, resume=True)
    zd.to_zarr(source(), tmp_path / "a", resume=True)
    # each attempt computed one block for nothing: the one that could not be written
    assert sum(COMPUTED.values()) == 12 + 11
    np.testing.assert_array_equal(zd.open_array(tmp_path / "a")[...], expected())


KILLED = """
import os, signal, sys
import dask, dask.array as da, numpy as np
import zarr_dask as zd

seen = []

def block(values):
    seen.append(1)
    if len(seen) == 100:
        os.kill(os.getpid(), signal.SIGKILL)
    return values

x = da.ones((400, 10), chunks=(1, 10)).map_blocks(block, dtype="f8", meta=np.ones((0, 0)))
dask.config.set(scheduler="sync")
zd.to_zarr(x, sys.argv[1], resume="one")
"""


def test_files_beside_the_data_are_as_many_as_the_plan_says(tmp_path):
    plan = zd.plan_write(da.ones((400, 10), chunks=(1, 10)), tmp_path / "a", resume="one")
    assert "at most 2 files for each process and 5 for all" in str(plan)
    for processes in (1, 2, 3):
        assert run_script(KILLED, tmp_path / "a")[0] == -signal.SIGKILL
        done = len(list(tmp_path.glob("a/c/*/0")))
        assert 90 * processes < done < 100 * processes  # and in so many files:
        beside = [path for path in tmp_path.glob("a.*/**/*") if path.is_file()]
        assert 0 < len(beside) <= 2 * processes + 5
    memory = zd.plan_write(da.ones(4), MemoryStore(), "a", resume=True, journal=MemoryStore())
    assert "an object for each process and at least 2 s of its work" in str(memory)


@pytest.mark.parametrize(
    "options",
    [
        {"shards": (20, 20), "chunks": (10, 5)},
        {"chunks": (7, 7)},
        {"chunks": ((10, 30), 13)},
        {"zarr_format": 2},
        {"format": "v1"},
        {"format": "v3draft"},
        {"fill_value": None, "zarr_format": 2},
    ],
    ids=str,
)
def test_every_kind_of_target(tmp_path, options):
    fail(source(), tmp_path / "r", 2, "a", resume=True, **options)
    with pytest.raises(NodeNotFoundError, match=r"\d of \d+ stored objects have valid receipts"):
        zd.open(tmp_path / "r", "a")
    [(_, job)] = open_journals(default_place(LocalStore(str(tmp_path / "r")), "a"))
    report = zd.to_zarr(source(), tmp_path / "r", "a", resume=True, **options)
    assert report.objects < job.objects
    np.testing.assert_array_equal(zd.open_array(tmp_path / "r", "a")[...], expected())


def test_objects_left_out_as_fill_values_are_receipted(tmp_path):
    fail(striped(), tmp_path / "a", 11, resume=True)
    [(journal, _)] = open_journals(default_place(LocalStore(str(tmp_path / "a")), ""))
    empty = len(journal.valid_receipts({}).empty)
    assert empty >= 1
    COMPUTED.clear()
    report = zd.to_zarr(striped(), tmp_path / "a", resume=True)
    assert (report.objects, report.empty) == (1, 4 - empty)
    assert sum(COMPUTED.values()) == 1 + 4 - empty
    np.testing.assert_array_equal(zd.open_array(tmp_path / "a")[:, 30:], 0)


@pytest.mark.parametrize("damage", ["removed", "shorter", "longer", "put where there was none"])
def test_a_receipt_holds_only_for_what_is_there(tmp_path, damage):
    fail(striped(), tmp_path / "a", 11, resume=True, codecs=RAW)
    [(journal, _)] = open_journals(default_place(LocalStore(str(tmp_path / "a")), ""))
    receipts = collect(journal.receipts(), journal.run_id)
    key = min(receipts.empty if damage.startswith("put") else receipts.objects)
    victim = tmp_path / "a" / key
    assert victim.exists() is not damage.startswith("put")
    if damage == "removed":
        victim.unlink()
    else:
        victim.write_bytes(b"\1" * (799 if damage == "shorter" else 801))
    zd.to_zarr(striped(), tmp_path / "a", resume=True, codecs=RAW)
    left = {coords for coords in product(range(4), range(4)) if coords_key(coords) not in receipts}
    twice = {coords for coords, count in COMPUTED.items() if count == 2}
    assert {coords_key(coords) for coords in twice} - {coords_key(c) for c in left} == {key}
    np.testing.assert_array_equal(zd.open_array(tmp_path / "a")[:, :30], expected((40, 40))[:, :30])
    np.testing.assert_array_equal(zd.open_array(tmp_path / "a")[:, 30:], 0)


@pytest.mark.parametrize("when", ["before the document", "before the journal goes"])
def test_a_job_that_dies_at_its_very_end(tmp_path, when, monkeypatch):
    from zarr_dask.jobs.write import target
    from zarr_dask.journal import Journal

    def die(*args, **options):
        raise StoreError("killed")

    with monkeypatch.context() as patch:
        if when == "before the document":
            patch.setattr(target, "put_new_node", die)
        else:
            patch.setattr(Journal, "remove", die)
        with pytest.raises(StoreError, match="killed"):
            zd.to_zarr(source(), tmp_path / "a", resume=True)
    COMPUTED.clear()
    plan = zd.plan_write(source(), tmp_path / "a", resume=True)
    assert len(plan.collection().__dask_graph__().layers) == 1
    assert plan.run().objects == 0
    assert not COMPUTED
    np.testing.assert_array_equal(zd.open_array(tmp_path / "a")[...], expected())
    assert left_in(tmp_path) == {"a"}


@pytest.mark.parametrize(
    "job",
    [
        lambda place, stored, **options: zd.to_zarr(source(), place, **options),
        lambda place, stored, **options: zd.rechunk(source(), place, chunks=3, **options),
        lambda place, stored, **options: zd.rechunk(stored, place, chunks=2, **options),
        lambda place, stored, **options: zd.rechunk(
            [stored], place, path=["a"], chunks=2, **options
        ),
        lambda place, stored, **options: zd.ome.write(source(), place, axes="yx", **options),
    ],
    ids=["write", "rechunk dask", "rechunk", "rechunk several", "image"],
)
@pytest.mark.parametrize(
    ("resume", "error"), [("", ValueError), (3, TypeError), (None, TypeError), (b"x", TypeError)]
)
def test_what_is_no_job_to_be_resumed(tmp_path, job, resume, error):
    stored = zd.create_array({}, shape=4, dtype="i2", chunks=4)
    with pytest.raises(error, match=r"resume=.*: expected True, False, or a name for the job"):
        job(tmp_path / "a", stored, resume=resume)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("what", ["journal", "manifest"])
def test_nothing_of_a_job_is_kept_in_its_array(tmp_path, what):
    (tmp_path / "link").symlink_to(tmp_path)
    for place in (tmp_path / "a" / "x", tmp_path / "link" / "a" / "c" / "x"):
        with pytest.raises(ResumeError, match=f"{what}= names a place inside"):
            zd.to_zarr(source(), tmp_path / "a", **{what: place})
    assert not (tmp_path / "a").exists()
    zd.to_zarr(source(), tmp_path / "a", **{what: tmp_path / "b" / "x"})


def test_a_job_that_has_ended_says_so(tmp_path):
    zd.to_zarr(source(), tmp_path / "a", resume=True)
    COMPUTED.clear()
    assert zd.to_zarr(source(), tmp_path / "a", resume=True).already_done
    assert not COMPUTED
    with pytest.raises(NodeExistsError):
        zd.to_zarr(source() + 1, tmp_path / "a", resume=True)


def test_replacing_an_array(tmp_path):
    zd.to_zarr(source() - 5, tmp_path / "a")
    fail(source(), tmp_path / "a", 5, resume=True, mode="w")
    assert zd.to_zarr(source(), tmp_path / "a", resume=True, mode="w").objects == 7
    np.testing.assert_array_equal(zd.open_array(tmp_path / "a")[...], expected())


def test_a_region_of_an_existing_array(tmp_path):
    array = zd.create_array(tmp_path / "a", shape=(80, 50), dtype="i8", chunks=(10, 10))
    array[...] = -1
    region = (slice(10, 50), slice(5, 35))
    options = {"region": region, "partial": "own", "resume": True}
    fail(source(), tmp_path / "a", 6, **options)
    np.testing.assert_array_equal(array[:10], -1)
    # tasks for columns 20 to 35 write two objects, and their receipt when both are stored; which
    # task is the last one before the failure depends on the names in the graph
    assert zd.to_zarr(source(), tmp_path / "a", **options).objects in {16 - 6, 16 - 5}
    want = np.full((80, 50), -1)
    want[region] = expected()
    np.testing.assert_array_equal(array[...], want)
    assert left_in(tmp_path) == {"a"}


def test_two_regions_of_one_array_have_journals_of_their_own(tmp_path):
    zd.create_array(tmp_path / "a", shape=(80, 30), dtype="i8", chunks=(10, 10))
    halves = {0: (slice(0, 40),), 1: (slice(40, 80),)}
    for resume in (True, "a name for both"):
        for region in halves.values():
            fail(source(), tmp_path / "a", 5, region=region, resume=resume)
        for region in halves.values():
            report = zd.to_zarr(source(), tmp_path / "a", region=region, resume=resume)
            assert report.objects == 7
    np.testing.assert_array_equal(zd.open_array(tmp_path / "a")[40:], expected())


def test_a_later_write_into_the_region_takes_the_receipts_away(tmp_path):
    """What it has written must not pass for the work of the job that died."""
    array = zd.create_array(tmp_path / "a", shape=(40, 30), dtype="i8", chunks=10, codecs=RAW)
    fail(source(), tmp_path / "a", 5, mode="r+", resume=True)
    zd.to_zarr(da.ones((10, 10), dtype="i8", chunks=10), array, region=(slice(10), slice(10)))
    assert zd.to_zarr(source(), tmp_path / "a", mode="r+", resume=True).objects == 12
    np.testing.assert_array_equal(array[...], expected())


def test_attributes_may_differ(tmp_path):
    fail(source(), tmp_path / "a", 5, resume=True, attributes={"begun": "monday"})
    report = zd.to_zarr(source(), tmp_path / "a", resume=True, attributes={"begun": "tuesday"})
    assert report.objects == 7
    assert zd.open_array(tmp_path / "a").attributes == {"begun": "tuesday"}


HALVES = range(4), range(4, 8)


def test_other_blocks_of_the_same_values_under_a_name(tmp_path):
    fail(source(), tmp_path / "a", 45, resume="n", chunks=(5, 5))
    [(journal, _)] = open_journals(default_place(LocalStore(str(tmp_path / "a")), ""))
    done = {item.key for one in journal.receipts() for item in one.objects}
    assert len(done) == 44  # of one of the two blocks that are written now nothing is missing
    whole = [all(f"c/{r}/{c}" in done for r in rows for c in range(6)) for rows in HALVES]
    assert whole.count(True) == 1
    report = zd.to_zarr(source(chunks=(20, 30)), tmp_path / "a", resume="n", chunks=(5, 5))
    assert report.objects == 24
    np.testing.assert_array_equal(zd.open_array(tmp_path / "a")[...], expected())


# --- only the same job ----------------------------------------------------------------------------

UNSTABLE = {
    "random": lambda: da.random.default_rng().normal(size=(40, 30), chunks=10),
    "delayed": lambda: da.from_delayed(dask.delayed(np.ones)((40, 30)), (40, 30), "f8"),
}
OTHERS = {
    "another function": (lambda x: x + 1, {}, "layer 'add'"),
    "another source": (lambda x: source() - 1 + 1, {}, "layer 'sub"),
    "fewer layers": (lambda x: numbers(), {}, "layers"),
    "other chunks": (lambda x: x, {"chunks": 5}, "layout"),
    "other codecs": (lambda x: x, {"codecs": RAW}, "layout"),
    "a name": (lambda x: x, {"resume": "n"}, r"resume=True, and now with resume='n'"),
}


@pytest.mark.parametrize("kind", UNSTABLE)
def test_a_graph_that_is_new_each_time_is_not_resumed_but_by_name(tmp_path, kind):
    fail(UNSTABLE[kind](), tmp_path / "a", 0, resume=True)
    before = everything_below(tmp_path)
    with pytest.raises(ResumeError, match=r"layer '(normal|ones)'.*unseeded") as caught:
        zd.to_zarr(UNSTABLE[kind](), tmp_path / "a", resume=True)
    assert str(tmp_path) in str(caught.value)
    assert everything_below(tmp_path) == before
    zd.to_zarr(UNSTABLE[kind](), tmp_path / "a", resume=False)


def test_a_layer_without_a_token_is_named(tmp_path):
    class Odd:
        def __reduce__(self):
            raise TypeError("no pickle of this")

    values = source().map_blocks(lambda b, odd: b, Odd(), dtype="i8", name="mine")
    with pytest.raises(ResumeError, match=r"the layer 'mine'.*resume='run-7'"):
        zd.to_zarr(values, tmp_path / "a", resume=True)
    assert everything_below(tmp_path) == set()
    assert zd.to_zarr(values, tmp_path / "a", resume="n").objects == 12


@pytest.mark.parametrize("kind", OTHERS)
def test_another_job_is_refused_and_changes_nothing(tmp_path, kind):
    change, options, why = OTHERS[kind]
    fail(source(), tmp_path / "a", 5, resume=True)
    before = everything_below(tmp_path)
    with pytest.raises(ResumeError, match=why):
        zd.to_zarr(change(source()), tmp_path / "a", **{"resume": True, **options})
    assert everything_below(tmp_path) == before
    assert zd.to_zarr(source(), tmp_path / "a", resume=True).objects == 7


def test_a_name_holds_for_one_layout_only(tmp_path):
    fail(source(), tmp_path / "a", 5, resume="n")
    with pytest.raises(ResumeError, match="layout"):
        zd.to_zarr(source(), tmp_path / "a", resume="n", chunks=5)
    with pytest.raises(ResumeError, match="'n', and now with resume='m'"):
        zd.to_zarr(source(), tmp_path / "a", resume="m")
    with pytest.raises(ResumeError, match="dtype"):
        zd.to_zarr(
            source().astype("i4"),
            tmp_path / "a",
            resume="n",
        )


def test_beginning_anew_ignores_the_receipts(tmp_path):
    fail(source(), tmp_path / "a", 5, resume=True)
    assert zd.to_zarr(source(), tmp_path / "a").objects == 12
    assert left_in(tmp_path) == {"a"}
    fail(source(), tmp_path / "b", 5, resume=True)
    fail(source(), tmp_path / "b", 3)
    assert zd.to_zarr(source(), tmp_path / "b", resume=True).objects == 12


def test_an_array_created_meanwhile_is_not_the_half_done_one(tmp_path):
    fail(source(), tmp_path / "a", 5, resume=True, codecs=RAW)
    zd.create_array(tmp_path / "a", shape=(40, 30), dtype="i8", chunks=10, codecs=RAW)[:] = 3
    with pytest.raises(NodeExistsError):
        zd.to_zarr(source(), tmp_path / "a", resume=True, codecs=RAW)
    assert (zd.open_array(tmp_path / "a")[...] == 3).all()


def test_an_array_that_another_library_created_meanwhile_is_not_either(tmp_path):
    import zarr

    fail(source(), tmp_path / "a", 5, resume=True, codecs=RAW)
    zarr.create_array(tmp_path / "a", shape=(40, 30), dtype="i8", chunks=(10, 10), overwrite=True)[
        :
    ] = 3
    with pytest.raises(NodeExistsError):
        zd.to_zarr(source(), tmp_path / "a", resume=True, codecs=RAW)


SAME_IN_ANOTHER_PROCESS = """
import dask, dask.array as da, numpy as np, functools
import zarr_dask as zd
from zarr_dask.graph.tokens import layer_tokens
factor = np.arange(3)
def scaled(block, block_info=None):
    return block * factor[0]
x = zd.from_zarr(url)
y = da.from_array(np.arange(1200.0).reshape(40, 30), chunks=(7, 30))
graphs = [
    x + 1, x - x.mean(axis=0), x.rechunk((3, 5)), x[3:, ::2], da.where(x > 3, x, 0), np.sin(x),
    da.concatenate([x, x]), x.map_blocks(scaled, dtype="f8"), x.map_blocks(lambda b: b * 2),
    x.map_overlap(lambda b: b, depth=1, boundary="none"), da.tensordot(x, x.T, 1), y @ x.T,
    da.random.default_rng(7).normal(size=(40, 30), chunks=10), da.coarsen(np.mean, x, {0: 2}),
    x.map_blocks(functools.partial(np.add, 3)), da.fft.fft(x.rechunk((40, 10)), axis=0),
    da.from_delayed(dask.delayed(np.ones, pure=True)((4,)), (4,), "f8"), x.astype("f4"),
]
print([layer_tokens(graph) for graph in graphs])
"""


def test_tokens_are_the_same_in_every_process(tmp_path):
    zd.create_array(tmp_path / "a", shape=(40, 30), dtype="f8", chunks=(10, 10))[:] = 1
    script = tmp_path / "script.py"
    script.write_text(f"url = {str(tmp_path / 'a')!r}\n{SAME_IN_ANOTHER_PROCESS}")
    runs = [
        subprocess.Popen(
            [sys.executable, str(script)],
            env={"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("1", "2")
    ]
    first, second = (run.communicate()[0] for run in runs)
    assert first == second
    assert len(first) > 1000


# --- places ---------------------------------------------------------------------------------------


def test_a_store_without_a_place_beside_it_needs_to_be_told(tmp_path):
    values = {}
    for options in ({"resume": True}, {"resume": "n"}, {"manifest": tmp_path / "m"}):
        with pytest.raises(ResumeError, match="journal="):
            zd.to_zarr(source(), values, **options)
    assert values == {}
    store = MemoryStore.over(values)
    with pytest.raises(StoreError):
        zd.to_zarr(source(), HookStore(store, Failing(5)), resume=True, journal=tmp_path / "j")
    assert zd.to_zarr(source(), values, resume=True, journal=tmp_path / "j").objects == 7
    np.testing.assert_array_equal(zd.open_array(values)[...], expected())
    assert open_below(tmp_path / "j") == set()


@pytest.mark.parametrize("resume", [True, "run-7"])
def test_jobs_that_share_a_place_for_their_journals(tmp_path, resume):
    """Encoded sizes are equal everywhere, so that receipts of another array would hold."""
    options = {"codecs": [], "resume": resume, "journal": tmp_path / "journals"}
    fail(source(), tmp_path / "a", 5, **options)
    zd.create_array(tmp_path / "b", shape=(40, 30), chunks=(10, 10), dtype=int, codecs=[])[...] = -1
    values = da.from_array(expected() + 1, (10, 10))
    del options["codecs"]
    assert zd.to_zarr(values, tmp_path / "b", mode="r+", **options).objects == 12
    np.testing.assert_array_equal(zd.open_array(tmp_path / "b")[...], expected() + 1)
    zd.to_zarr(values, tmp_path / "c", journal=options["journal"])  # begins anew: b, a go on
    options["codecs"] = []
    assert zd.to_zarr(source(), tmp_path / "a", **options).objects == 7
    np.testing.assert_array_equal(zd.open_array(tmp_path / "a")[...], expected())


@pytest.mark.parametrize("kind", ["dict", "fsspec", "store"])
def test_mappings_share_a_place_for_their_journals(tmp_path, kind):
    """Neither has a place of its own; encoded sizes are equal, so that receipts would hold."""

    def mapping(name):
        if kind == "fsspec":
            return fsspec.get_mapper(str(tmp_path / name))
        return {} if kind == "dict" else MemoryStore()

    a, b = mapping("a"), mapping("b")
    options = {"resume": "run-7", "journal": tmp_path / "journals"}
    faulty = HookStore(open_store(a), Failing(5))
    with pytest.raises(StoreError, match="no space"):
        zd.to_zarr(source(), faulty, codecs=[], **options)
    zd.create_array(b, shape=(40, 30), chunks=(10, 10), dtype=int, codecs=[])[...] = -1
    values = da.from_array(expected() + 1, (10, 10))
    assert zd.to_zarr(values, b, mode="r+", **options).objects == 12
    np.testing.assert_array_equal(zd.open_array(b)[...], expected() + 1)
    if kind == "fsspec":
        a = mapping("a")
    assert zd.to_zarr(source(), a, codecs=[], **options).objects == 7
    np.testing.assert_array_equal(zd.open_array(a)[...], expected())


@pytest.mark.parametrize("anew", ["write", "rechunk", "copy"])
def test_a_job_leaves_the_journals_of_others_alone(tmp_path, anew):
    options = {"resume": True, "journal": tmp_path / "journals"}
    fail(source(), tmp_path / "a", 5, **options)
    zd.to_zarr(source(), tmp_path / "b")
    if anew == "write":
        zd.to_zarr(source(), tmp_path / "c", journal=options["journal"])
    elif anew == "rechunk":
        plan = zd.plan_rechunk(tmp_path / "b", tmp_path / "c", chunks=(7, 7))
        plan.run(journal=options["journal"])
    else:
        zd.copy(tmp_path / "b", tmp_path / "c", journal=options["journal"])
    assert zd.to_zarr(source(), tmp_path / "a", **options).objects == 7


def test_a_journal_elsewhere_is_found_from_every_root(tmp_path):
    options = {"resume": "run-7", "journal": tmp_path / "journals"}
    fail(source(), tmp_path / "a", 5, "b/c", **options)
    (tmp_path / "link").symlink_to(tmp_path / "a" / "b")
    assert zd.to_zarr(source(), tmp_path / "link", "c", **options).objects == 7


def test_a_journal_in_a_store_that_cannot_append(tmp_path):
    store, journal = MemoryStore(), MemoryStore()
    with pytest.raises(StoreError):
        zd.to_zarr(source(), HookStore(store, Failing(5)), resume=True, journal=journal)
    assert sum("receipts-batch" in key for key in journal.list()) == 1
    watched = Recording(journal)
    assert zd.to_zarr(source(), store, resume=True, journal=watched).objects == 7
    puts = [request.key for request in watched.requests if request.method == "set"]
    assert not any("receipts" in key for key in puts)
    assert ["__done-" in key for key in journal.list()] == [True]
    np.testing.assert_array_equal(zd.open_array(store)[...], expected())


def test_existence_and_sizes_are_one_listing(tmp_path):
    fail(source(), tmp_path / "a", 5, resume=True)
    sizes = []
    store = Recording(LocalStore(str(tmp_path / "a")))
    zd.to_zarr(source(), store, resume=True)
    per_object = [r for r in store.requests if r.method in {"size", "get"} and r.key[:2] == "c/"]
    assert len(per_object) <= 2 * 5, sizes


def test_a_parent_that_cannot_be_written_is_no_obstacle_without_resume(tmp_path, monkeypatch):
    from zarr_dask.journal import Journal

    def refuse(self, job):
        raise StoreError("read-only file system")

    monkeypatch.setattr(Journal, "begin", refuse)
    assert zd.to_zarr(source(), tmp_path / "a").objects == 12
    with pytest.raises(StoreError, match="read-only"):
        zd.to_zarr(source(), tmp_path / "b", resume=True)


def test_a_url_has_its_journal_beside_it(tmp_path):
    """fsspec's memory: it cannot append, but has a place beside every folder in a bucket."""
    url = f"memory://bucket/{tmp_path.name}.zarr"
    with pytest.raises(StoreError, match="no space"):
        zd.to_zarr(source(), HookStore(open_store(url), Failing(5)), "g/a", resume=True)
    with pytest.raises(NodeNotFoundError, match="5 of 12 stored objects have valid receipts"):
        zd.open(url, "g/a")
    assert zd.to_zarr(source(), url, "g/a", resume=True).objects == 7
    np.testing.assert_array_equal(zd.open_array(url, "g/a")[...], expected())
    assert [key for key in open_store("memory://bucket").list() if "__job" in key] == []


def test_a_hierarchy_that_was_removed_under_its_journal_is_made_again(tmp_path):
    fail(source(), tmp_path / "r", 5, "g/a", resume=True)
    shutil.rmtree(tmp_path / "r")
    assert zd.to_zarr(source(), tmp_path / "r", "g/a", resume=True).objects == 12
    assert [path for path, _ in zd.open_group(tmp_path / "r").arrays(recursive=True)] == ["g/a"]


# --- what a half-done array looks like ------------------------------------------------------------


def test_opening_a_half_done_array_says_what_is_missing(tmp_path):
    root = tmp_path / "run.zarr"
    zd.create_group(root)
    fail(source(), root, 5, "g/a", resume=True)
    ways = {
        "from the root": lambda: zd.open(root, "g/a"),
        "from a group": lambda: zd.open(root, "g")["a"],
        "by its own path": lambda: zd.open(root / "g" / "a"),
        "as an array": lambda: zd.open_array(root, "g/a"),
        "lazily": lambda: zd.from_zarr(root, "g/a"),
        "as a source": lambda: zd.plan_rechunk(root / "g" / "a", {}),
    }
    for way in ways.values():
        with pytest.raises(NodeNotFoundError, match="5 of 12 stored objects") as caught:
            way()
        assert "7 are missing. The same call with resume=True" in str(caught.value)
        assert f"{root}.zarr-dask/g/a/" in str(caught.value)
    assert "a" not in zd.open_group(root, "g")
    with pytest.raises(NodeNotFoundError) as caught:
        zd.open(root, "g/b")
    assert "job" not in str(caught.value)
    zd.to_zarr(source(), root, "g/a", resume=True)
    assert zd.open(root, "g/a").shape == (40, 30)


def test_a_half_done_array_without_receipts_or_under_a_name(tmp_path):
    fail(source(), tmp_path / "a", 5)
    with pytest.raises(NodeNotFoundError, match="5 stored objects of at most 12 are there"):
        zd.open(tmp_path / "a")
    fail(source(), tmp_path / "b", 5, resume="run-7")
    with pytest.raises(NodeNotFoundError, match="call with resume='run-7'"):
        zd.open(tmp_path / "b")


def test_other_libraries_see_no_array_before_the_end(tmp_path):
    import tensorstore
    import zarr

    fail(source(), tmp_path / "a", 11, resume=True)
    with pytest.raises(FileNotFoundError):
        zarr.open_array(tmp_path / "a", mode="r")
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{tmp_path}/a/"}}
    with pytest.raises(ValueError, match="NOT_FOUND"):
        tensorstore.open(spec, open=True).result()


@pytest.mark.parametrize("way", ["delete", "overwrite", "create", "rename away"])
def test_removing_or_replacing_a_node_forgets_its_jobs(tmp_path, way):
    array = zd.create_array(tmp_path / "r", "a", shape=(40, 30), dtype="i8", chunks=10)
    fail(source(), tmp_path / "r", 5, "a", mode="r+", resume=True)
    if way == "delete":
        zd.open_group(tmp_path / "r", mode="r+").delete("a")
    elif way == "overwrite":
        zd.to_zarr(source(), tmp_path / "r", "a", mode="w")
    elif way == "create":
        zd.create_array(tmp_path / "r", "a", shape=1, dtype="i8", overwrite=True)
    else:
        zd.open_group(tmp_path / "r", mode="r+").rename("a", "b")
    assert array.shape == (40, 30)
    assert left_in(tmp_path) == {"r"}


# --- manifests -----------------------------------------------------------------------------------


def test_a_manifest_agrees_with_the_files_and_with_sha256sum(tmp_path):
    values = da.concatenate([source(), da.zeros((40, 10), chunks=10, dtype="i8")], axis=1)
    fail(values, tmp_path / "r", 9, "g/a", resume=True, manifest=tmp_path / "m", sha256=True)
    assert not (tmp_path / "m").exists()
    zd.to_zarr(values, tmp_path / "r", "g/a", resume=True, manifest=tmp_path / "m", sha256=True)
    manifest = zd.Manifest.read(tmp_path / "m")
    files = {p: n for p in everything_below(tmp_path / "r") if (n := tmp_path / "r" / p).is_file()}
    files = {key: path for key, path in files.items() if key.startswith("g/a/")}
    assert {one.key: one.nbytes for one in manifest.objects} == {
        key: path.stat().st_size for key, path in files.items()
    }
    assert manifest.empty == {f"g/a/c/{row}/3" for row in range(4)}
    (tmp_path / "sums").write_text(manifest.to_sha256sum())
    check = subprocess.run(
        ["sha256sum", "--check", "--strict", str(tmp_path / "sums")],
        cwd=tmp_path / "r",
        capture_output=True,
        text=True,
        check=False,
    )
    assert check.returncode == 0, check.stderr
    assert check.stdout.count(": OK") == 13


GZIP = {"name": "gzip", "configuration": {"level": 1}}


def sharded(chunks, *codecs, location="end"):
    index_codecs = [*RAW, {"name": "crc32c"}]
    members = {
        "chunk_shape": list(chunks),
        "index_codecs": index_codecs,
        "index_location": location,
    }
    return {"name": "sharding_indexed", "configuration": {**members, "codecs": list(codecs)}}


@pytest.mark.parametrize(
    "codecs",
    [
        [sharded((5, 5), *RAW)],
        [sharded((5, 5), *RAW, location="start")],
        [sharded((10, 10), sharded((5, 5), *RAW), GZIP)],
        [sharded((5, 5), *RAW), GZIP],
        [{"name": "transpose", "configuration": {"order": [1, 0]}}, sharded((5, 5), *RAW)],
    ],
    ids=["shard", "index first", "in a compressed shard", "compressed", "transposed"],
)
def test_checksums_are_those_of_the_files_whatever_shards_are_made_of(tmp_path, codecs):
    values = da.ones((40, 40), chunks=20, dtype="i8").map_blocks(np.triu, dtype="i8")
    zd.to_zarr(values, tmp_path / "a", codecs=codecs, chunks=(20, 20), manifest=tmp_path / "m")
    zd.to_zarr(values, tmp_path / "b", codecs=codecs, chunks=(20, 20))  # nobody asks for sums
    objects = zd.Manifest.read(tmp_path / "m").objects
    assert len(objects) == 5
    for one in objects:
        raw = (tmp_path / "a" / one.key).read_bytes()
        assert (one.nbytes, one.crc32c) == (len(raw), google_crc32c.value(raw))
        assert (tmp_path / "b" / one.key).read_bytes() == raw


def test_a_manifest_without_sha256_says_how_to_have_them(tmp_path):
    zd.to_zarr(source(), tmp_path / "a", manifest=tmp_path / "m")
    manifest = zd.Manifest.read(tmp_path / "m")
    assert len(manifest.objects) == 13
    with pytest.raises(zd.errors.ManifestError, match="sha256=True"):
        manifest.to_sha256sum()
    assert left_in(tmp_path) == {"a", "m"}


# --- a full disk ----------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    """A file system of one megabyte, where this process may make one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("this process may not mount a file system")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_disk_that_was_full_and_has_room_again(small_disk):
    """The journal lies on the same disk, so that a receipt may not fit either."""
    noise = np.random.default_rng(3).random((200, 1000))
    values = da.from_array(noise, chunks=(10, 1000)).map_blocks(noted, dtype="f8") / 2
    with pytest.raises(StoreError, match="No space left on device"):
        zd.to_zarr(values, small_disk / "a", resume=True)
    done = len(list((small_disk / "a" / "c").iterdir()))
    assert 8 <= done < 20
    assert list(small_disk.rglob("*.tmp")) == []
    with pytest.raises(NodeNotFoundError, match="stored objects have valid receipts"):
        zd.open(small_disk / "a")
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    COMPUTED.clear()
    report = zd.to_zarr(values, small_disk / "a", resume=True)
    assert sum(COMPUTED.values()) == report.objects <= 20 - done + 1
    np.testing.assert_array_equal(zd.open_array(small_disk / "a")[...], noise)


# --- tasks that are run twice, or late ------------------------------------------------------------


def test_the_last_task_run_again_changes_nothing(tmp_path):
    collection = zd.to_zarr(
        source(), tmp_path / "a", resume=True, manifest=tmp_path / "m", compute=False
    )
    collection.compute()
    before = {
        p: (tmp_path / p).read_bytes()
        for p in everything_below(tmp_path)
        if (tmp_path / p).is_file()
    }
    collection.compute()
    after = {
        p: (tmp_path / p).read_bytes()
        for p in everything_below(tmp_path)
        if (tmp_path / p).is_file()
    }
    assert before == after


def test_a_job_that_is_overtaken_by_a_new_one_does_not_end(tmp_path):
    slow = zd.to_zarr(source(), tmp_path / "a", resume=True, compute=False)
    fail(source(), tmp_path / "a", 0, resume=False)
    fail(source(), tmp_path / "a", 3, resume=True)
    with pytest.raises(ResumeError, match="anew"):
        slow.compute()
    with pytest.raises(NodeNotFoundError):
        zd.open(tmp_path / "a")


# --- graphs ---------------------------------------------------------------------------------------


def test_the_graph_of_what_is_missing_stays_small(tmp_path):
    values = da.zeros((10_000, 10_000), chunks=100) + 1
    first = zd.to_zarr(values, tmp_path / "a", resume=True, compute=False)
    assert len(pickle.dumps(first.__dask_graph__())) < 10_000
    [(journal, _)] = open_journals(default_place(LocalStore(str(tmp_path / "a")), ""))

    keys = [f"c/{i}/{j}" for i in range(60) for j in range(100)]
    for key in keys[::2]:
        path = tmp_path / "a" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    objects = tuple(StoredObject(key, 0, 0) for key in keys[::2])
    journal.add(Receipt(journal.token, journal.run_id, objects))
    second = zd.to_zarr(values, tmp_path / "a", resume=True, compute=False)
    graph = second.__dask_graph__()
    assert len(pickle.dumps(graph)) < 60_000
    tasks = second.__dask_optimize__(graph, second.__dask_keys__())
    writes = [key for key in dict(tasks) if str(key[0]).startswith("zarr-write")]
    assert len(writes) == 7000


# --- growing arrays, and several at once ----------------------------------------------------------


def test_appending(tmp_path):
    zd.create_array(tmp_path / "a", shape=(15, 30), dtype="i8", chunks=10)[...] = -1
    fail(source(), tmp_path / "a", 7, append=0, resume=True)
    assert zd.open_array(tmp_path / "a").shape == (15, 30)
    report = zd.to_zarr(source(), tmp_path / "a", append=0, resume=True)
    assert 15 - 7 - 3 <= report.objects < 15  # three are put on condition, which is not counted
    array = zd.open_array(tmp_path / "a")
    np.testing.assert_array_equal(array[:15], -1)
    np.testing.assert_array_equal(array[15:], expected())


def die(*args, **options):
    raise StoreError("killed")


def append_that_dies_at_its_end(tmp_path, monkeypatch):
    """To an array of ten rows, of which the document still says ten."""
    zd.create_array(tmp_path / "a", shape=(10, 30), dtype="i8", chunks=10)[...] = -1
    with monkeypatch.context() as patch:
        patch.setattr(target, "write_changed_documents", die)
        with pytest.raises(StoreError, match="killed"):
            zd.to_zarr(source(), tmp_path / "a", append=0, resume=True)


def test_an_append_that_dies_at_its_end_is_not_done_twice(tmp_path, monkeypatch):
    append_that_dies_at_its_end(tmp_path, monkeypatch)
    zd.to_zarr(source(), tmp_path / "a", append=0, resume=True)
    assert zd.open_array(tmp_path / "a").shape == (50, 30)


@pytest.mark.parametrize("first", ["append", "create", "region"])
def test_the_next_step_goes_on_after_a_job_that_left_only_its_journal(tmp_path, monkeypatch, first):
    """A script that is killed there looks at the array when it runs again, and takes the next."""
    options = {"append": {"append": 0}, "create": {}, "region": {"region": np.s_[:40]}}[first]
    if first != "create":
        shape = {"append": (0, 30), "region": (40, 30)}[first]
        zd.create_array(tmp_path / "a", shape=shape, dtype="i8", chunks=10)
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "remove", die)
        with pytest.raises(StoreError, match="killed"):
            zd.to_zarr(source(), tmp_path / "a", resume=True, **options)
    following = {"append": 0} if first == "append" else {"region": np.s_[:40], "mode": "r+"}
    zd.to_zarr(source() + 1, tmp_path / "a", resume=True, **following)
    found = zd.open_array(tmp_path / "a")[...]
    want = [expected(), expected() + 1] if first == "append" else [expected() + 1]
    np.testing.assert_array_equal(found, np.concatenate(want))
    assert left_in(tmp_path) == {"a"}


def test_an_append_that_died_before_its_end_is_not_taken_for_done(tmp_path, monkeypatch):
    append_that_dies_at_its_end(tmp_path, monkeypatch)
    with pytest.raises(ResumeError, match="another job"):
        zd.to_zarr(source() + 1, tmp_path / "a", append=0, resume=True)


@pytest.mark.parametrize("grown", [1, 2])
def test_several_appends_that_die_at_their_end_are_not_done_twice(tmp_path, monkeypatch, grown):
    """Some of the arrays are longer already, others are not."""
    from zarr_dask.journal import Journal

    for name in "uv":
        zd.create_array(tmp_path / "r", name, shape=(15, 30), dtype="i8", chunks=10)[...] = -1
    both = [source(), source() + 1]
    options = {"component": ["u", "v"], "append": 0, "resume": True}
    done = []

    def die_after(journal):
        raise StoreError("killed")

    def grow(self, before, job, original=target.ArrayTarget._grow):
        if len(done) == grown:
            raise StoreError("killed")
        original(self, before, job)
        done.append(self)

    with monkeypatch.context() as patch:
        patch.setattr(target.ArrayTarget, "_grow", grow)
        patch.setattr(Journal, "remove", die_after)
        with pytest.raises(StoreError, match="killed"):
            zd.to_zarr(both, tmp_path / "r", **options)
    lengths = [zd.open_array(tmp_path / "r", name).shape[0] for name in "uv"]
    assert sorted(lengths) == sorted([55] * grown + [15] * (2 - grown))
    COMPUTED.clear()
    zd.to_zarr(both, tmp_path / "r", **options)
    assert not COMPUTED
    for name, want in zip("uv", (expected(), expected() + 1), strict=True):
        array = zd.open_array(tmp_path / "r", name)
        assert array.shape == (55, 30)
        np.testing.assert_array_equal(array[15:], want)
    zd.to_zarr(both, tmp_path / "r", **options)  # no journal is left: values are appended anew
    assert zd.open_array(tmp_path / "r", "v").shape == (95, 30)


@pytest.mark.parametrize("removed", [0, 1, 2])
@pytest.mark.parametrize("kind", ["append", "create", "region"])
def test_several_jobs_that_die_while_their_journals_go_are_not_done_twice(
    tmp_path, monkeypatch, kind, removed
):
    """Killed before, or right after, so many of the three journals are gone."""
    from zarr_dask.journal import Journal

    names = ["u", "v", "w"]
    if kind != "create":
        for name in names:
            zd.create_array(tmp_path / "r", name, shape=(40, 30), dtype="i8", chunks=10)[...] = -1
    how = {"append": {"append": 0}, "create": {}, "region": {"mode": "r+"}}[kind]
    values = [source() + number for number in range(3)]
    options = {"component": names, "resume": True, **how}
    gone = []

    def remove(self, original=Journal.remove):
        if len(gone) == removed:
            raise StoreError("killed")
        gone.append(self)
        original(self)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "remove", remove)
        with pytest.raises(StoreError, match="killed"):
            zd.to_zarr(values, tmp_path / "r", **options)
    COMPUTED.clear()
    plan = zd.plan_write(values, tmp_path / "r", **options)
    if kind == "append" and removed:  # somebody else is faster, and is not harmed
        zd.to_zarr(source() * 0 - 5, tmp_path / "r", "w", append=0)
        COMPUTED.clear()
        plan = zd.plan_write(values, tmp_path / "r", **options)
    steps = []
    assert {objects_of(report) for report in plan.run(progress=steps.append)} == {0}
    assert not COMPUTED
    assert [step.nbytes for step in steps] == [plan.nbytes]
    for number, name in enumerate(names):
        array = zd.open_array(tmp_path / "r", name)
        first = 40 if kind == "append" else 0
        np.testing.assert_array_equal(array[first : first + 40], expected() + number)
        others = 40 if name == "w" and kind == "append" and removed else 0
        assert array.shape == (first + 40 + others, 30)
    assert left_in(tmp_path) == {"r"}


APPEND = """
import os, sys, dask, dask.array as da, zarr_dask as zd
from zarr_dask.journal import Journal

def remove_and_die(journal, remove=Journal.remove):
    remove(journal)
    os._exit(9)

if sys.argv[2] == "killed":
    Journal.remove = remove_and_die
with dask.config.set(scheduler="sync"):
    zd.to_zarr(da.arange(4, chunks=2), sys.argv[1], append=0, resume="run-7")
"""


@pytest.mark.parametrize("how", ["killed", "in order"])
def test_an_append_killed_when_its_journal_has_gone_is_not_done_twice(tmp_path, how):
    """What remains tells the next process; this one knows what it has appended itself."""
    place, values = tmp_path / "a", da.arange(4, chunks=2)
    zd.to_zarr(da.full((2,), 7, chunks=2), place)
    code, _ = run_script(APPEND, place, how)
    assert code == (9 if how == "killed" else 0)
    record = json.loads((tmp_path / "a.zarr-dask" / "__append" / "held").read_text())
    assert record["ended"]["is_known"] == (how == "in order")
    wanted = [7, 7, 0, 1, 2, 3]
    for number in range(3):
        report = zd.to_zarr(values, place, append=0, resume="run-7")
        assert bool(report.already_done) == (how == "killed" and number == 0)
        wanted += [] if report.already_done else [0, 1, 2, 3]
        assert zd.open_array(place)[...].tolist() == wanted
        assert left_in(tmp_path) == {"a"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("format", "other"),
        ("job", None),
        ("tokens", [1]),
        ("owner", None),
        ("ended", {}),
        ("ended", {"shape": ["6"], "report": {}}),
    ],
)
def test_a_record_of_an_append_that_says_what_none_says_is_not_passed_over(tmp_path, field, value):
    """The same call would append once more."""
    place, values = tmp_path / "a", da.arange(4, chunks=2)
    zd.to_zarr(da.full((2,), 7, chunks=2), place)
    run_script(APPEND, place, "killed")
    record = tmp_path / "a.zarr-dask/__append/held"
    fields = json.loads(record.read_text())
    if field == "ended" and value:
        value = fields["ended"] | value
    fields |= {field: value}
    del fields["crc32"]
    record.write_text(json.dumps({**fields, "crc32": claims._checksum(fields)}))
    with pytest.raises(JournalError, match=r"held is not what an append leaves there"):
        zd.to_zarr(values, place, append=0, resume="run-7")
    assert zd.open_array(place).shape == (6,)
    record.unlink()
    zd.to_zarr(values, place, append=0, resume="run-7")
    assert zd.open_array(place).shape == (10,)


def test_a_record_of_an_append_that_is_damaged_is_not_passed_over(tmp_path):
    place, values = tmp_path / "a", da.arange(4, chunks=2)
    zd.to_zarr(da.full((2,), 7, chunks=2), place)
    run_script(APPEND, place, "killed")
    record = tmp_path / "a.zarr-dask/__append/held"
    text = record.read_bytes()
    damaged = [text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :] for at in range(len(text))]
    (start,) = (at for at in range(len(text)) if text.startswith(b'"ended": {', at))
    for found in (*damaged, text[: start + 20], b"no JSON"):
        if claims.ClaimRecord.parsed(found) == claims.ClaimRecord.parsed(text):
            continue  # the last digit of a number
        record.write_bytes(found)
        with pytest.raises(JournalError, match="held is not what an append leaves there"):
            ended_append(LocalStore(str(place)), "", "any", (6,))
    for found in (b"", b"\0" * 99, text[:10], text[:start]):  # no append has ended yet
        record.write_bytes(found)
        assert ended_append(LocalStore(str(place)), "", "any", (6,)) is None
    record.write_bytes(text)
    assert zd.to_zarr(values, place, append=0, resume="run-7").already_done


@pytest.mark.parametrize("changes", ["appends", "resizes"])
def test_what_was_appended_is_appended_again_where_it_has_gone(tmp_path, changes):
    place, values = tmp_path / "a", da.arange(4, chunks=2)
    zd.to_zarr(da.full((2,), 7, chunks=2), place)
    run_script(APPEND, place, "killed")
    array = zd.open_array(place, mode="r+")
    if changes == "resizes":
        array.resize(2, prune=True)
    array.append([5, 6, 7, 8])
    wanted = array[...].tolist()
    assert not zd.to_zarr(values, place, append=0, resume="run-7").already_done
    assert zd.open_array(place)[...].tolist() == [*wanted, 0, 1, 2, 3]


@pytest.mark.parametrize("deaths", [1, 2, 3])
def test_appends_of_which_one_is_done_may_die_again_and_again(tmp_path, monkeypatch, deaths):
    """Each call that goes on finds one array longer by its own work, however many died since."""
    for name in "uv":
        zd.create_array(tmp_path / "r", name, shape=(15, 30), dtype="i8", chunks=10)[...] = -1
    both = [source(), source() + 1]
    options = {"component": ["u", "v"], "append": 0, "resume": True}

    def grow(self, before, job, original=target.ArrayTarget._grow):
        if self.array.path == "v":
            raise StoreError("killed")
        original(self, before, job)

    with monkeypatch.context() as patch:
        patch.setattr(target.ArrayTarget, "_grow", grow)
        for _ in range(deaths):
            with pytest.raises(StoreError, match="killed"):
                zd.to_zarr(both, tmp_path / "r", **options)
    zd.to_zarr(both, tmp_path / "r", **options)
    for name, want in zip("uv", (expected(), expected() + 1), strict=True):
        array = zd.open_array(tmp_path / "r", name)
        assert array.shape == (55, 30)
        np.testing.assert_array_equal(array[15:], want)
    assert left_in(tmp_path) == {"r"}


def dies_when_journals_go(patch, after=0):
    """Lets so many journals be removed, then none."""
    from zarr_dask.journal import Journal

    gone = []

    def remove(self, original=Journal.remove):
        if len(gone) == after:
            raise StoreError("killed")
        gone.append(self)
        original(self)

    patch.setattr(Journal, "remove", remove)


@pytest.mark.parametrize("kind", ["append", "create"])
def test_jobs_that_die_twice_while_their_journals_go_are_not_done_twice(
    tmp_path, monkeypatch, kind
):
    """The second call finds some of the journals only, and must not forget the others."""
    names = ["u", "v", "w"]
    if kind == "append":
        for name in names:
            zd.create_array(tmp_path / "r", name, shape=(40, 30), dtype="i8", chunks=10)[...] = -1
    values = [source() + number for number in range(3)]
    options = {"component": names, "resume": True} | ({"append": 0} if kind == "append" else {})
    for after in (1, 0):
        with monkeypatch.context() as patch:
            dies_when_journals_go(patch, after)
            with pytest.raises(StoreError, match="killed"):
                zd.to_zarr(values, tmp_path / "r", **options)
    reports = zd.to_zarr(values, tmp_path / "r", **options)
    assert {objects_of(report) for report in reports} == {0}
    for number, name in enumerate(names):
        array = zd.open_array(tmp_path / "r", name)
        np.testing.assert_array_equal(array[-40:], expected() + number)
        assert array.shape == (80 if kind == "append" else 40, 30)
    assert left_in(tmp_path) == {"r"}


@pytest.mark.parametrize("resume", [True, "run-7"])
def test_the_end_of_several_jobs_is_not_that_of_others(tmp_path, monkeypatch, resume):
    """All arrays were written, and only journals were left; the next call has another array."""
    with monkeypatch.context() as patch:
        dies_when_journals_go(patch)
        with pytest.raises(StoreError, match="killed"):
            zd.to_zarr([source(), source() + 1], tmp_path / "r", ["u", "v"], resume=resume)
    COMPUTED.clear()
    reports = zd.to_zarr([source(), source() + 2], tmp_path / "r", ["u", "w"], resume=resume)
    assert [report.objects for report in reports] == [0, 12]
    for name, more in zip("uvw", range(3), strict=True):
        np.testing.assert_array_equal(zd.open_array(tmp_path / "r", name)[...], expected() + more)


@pytest.mark.parametrize("removed", ["u", "v", ""])
def test_several_jobs_that_ended_begin_again_where_arrays_were_removed(
    tmp_path, monkeypatch, removed
):
    options = {"component": ["u", "v"], "resume": True}
    both = [source(), source() + 1]
    with monkeypatch.context() as patch:
        dies_when_journals_go(patch, 0 if removed != "v" else 1)
        with pytest.raises(StoreError, match="killed"):
            zd.to_zarr(both, tmp_path / "r", **options)
    shutil.rmtree(tmp_path / "r" / removed)  # not by this package, which would forget the journals
    zd.to_zarr(both, tmp_path / "r", **options)
    for name, want in zip("uv", (expected(), expected() + 1), strict=True):
        np.testing.assert_array_equal(zd.open_array(tmp_path / "r", name)[...], want)


def test_an_append_of_others_is_not_taken_for_the_own_one(tmp_path):
    """A job died half way, and another one has appended as many rows since."""
    zd.create_array(tmp_path / "a", shape=(10, 30), dtype="i8", chunks=10)[...] = -1
    fail(source(), tmp_path / "a", 7, append=0, resume=True)
    array = zd.open_array(tmp_path / "a", mode="r+")
    array.append(np.full((40, 30), 7), axis=0)
    with pytest.raises(ResumeError, match="has grown since"):
        zd.to_zarr(source(), tmp_path / "a", append=0, resume=True)
    zd.to_zarr(source(), tmp_path / "a", append=0)
    found = zd.open_array(tmp_path / "a")[...]
    np.testing.assert_array_equal(found[10:50], 7)
    np.testing.assert_array_equal(found[50:], expected())
    assert left_in(tmp_path) == {"a"}


@pytest.mark.parametrize("resume", [True, False])
def test_the_last_task_of_an_append_may_run_again_in_another_process(tmp_path, resume):
    """A worker dies when it has made the array longer, before anybody knows."""
    zd.create_array(tmp_path / "a", shape=(15, 30), dtype="i8", chunks=10)[...] = -1
    plan = zd.plan_write(source(), tmp_path / "a", append=0, resume=resume)
    begun = start_write(plan, "", ends=False, held=True)
    for _ in range(2):
        begun.write.compute()
        growth._GROWN.clear()  # what only the process knew that died
        target._CHECKED.clear()
    found = zd.open_array(tmp_path / "a")[...]
    np.testing.assert_array_equal(found[15:], expected())
    np.testing.assert_array_equal(found[:15], -1)


def test_of_two_appends_for_one_end_the_second_does_not_end(tmp_path, monkeypatch):
    """Its journal is open and the array as long as it should be, but not by its work.

    Nothing can be claimed, as beside a hierarchy in a folder that belongs to others.
    """
    monkeypatch.setattr(target.ArrayTarget, "check_place_once", lambda self: None)
    monkeypatch.setattr(start, "end_of_array", lambda *args: None)
    zd.create_array(tmp_path / "a", shape=(10, 30), dtype="i8", chunks=10)[...] = -1
    plans = [zd.plan_write(source(), tmp_path / "a", append=0) for _ in range(2)]
    first, second = (start_write(plan, "", ends=False, held=True) for plan in plans)
    first.write.compute()
    with pytest.raises(MetadataChangedError, match="another job has appended"):
        second.write.compute()


def test_several_arrays_in_one_call_are_resumed_together(tmp_path):
    """One of them may be whole already: the journals of all stay until the last is written."""
    both = [source(), source() + 1]
    options = {
        "component": ["a", "b"],
        "resume": True,
        "manifest": [tmp_path / "m", tmp_path / "n"],
    }
    for after in (5, 5, 5):
        with pytest.raises(StoreError, match="no space"):
            zd.to_zarr(both, failing(tmp_path / "r", after), **options)
    COMPUTED.clear()
    reports = zd.to_zarr(both, tmp_path / "r", **options)
    assert sum(report.objects for report in reports) == 24 - 15
    assert sum(COMPUTED.values()) <= 12
    np.testing.assert_array_equal(zd.open_array(tmp_path / "r", "a")[...], expected())
    np.testing.assert_array_equal(zd.open_array(tmp_path / "r", "b")[...], expected() + 1)
    assert left_in(tmp_path) == {"r", "m", "n"}
    assert len(zd.Manifest.read(tmp_path / "n").objects) == 13
    with pytest.raises(ValueError, match="manifest has 1 items"):
        zd.plan_write(both, tmp_path / "s", ["a", "b"], manifest=tmp_path / "m")
    with pytest.raises(ValueError, match="one place twice"):
        zd.plan_write(both, tmp_path / "s", ["a", "b"], manifest=[tmp_path / "m", tmp_path / "m"])


# --- with the rest of the package -----------------------------------------------------------------


def test_a_resumed_job_in_windows(tmp_path):
    array = zd.create_array(tmp_path / "s", shape=(40, 30), dtype="i8", chunks=10)
    array[...] = expected()
    values = zd.from_zarr(array).map_blocks(noted, dtype="i8")
    with pytest.raises(StoreError, match="no space"):
        zd.plan_write(values, failing(tmp_path / "b", 5), resume=True).run(window=2)
    COMPUTED.clear()
    report = zd.plan_write(values, tmp_path / "b", resume=True).run(window=2)
    assert report.objects == sum(COMPUTED.values())
    assert 12 - 7 <= report.objects <= 12 - 3
    np.testing.assert_array_equal(zd.open_array(tmp_path / "b")[...], 2 * expected())


@pytest.mark.parametrize("several", [False, True])
def test_progress_begins_with_what_is_done(tmp_path, several):
    steps = []
    names, values = (["a", "b"], [source(), source() + 1]) if several else ("a", source())
    fail(values, tmp_path / "r", 7, names, resume=True)
    plan = zd.plan_write(values, tmp_path / "r", names, resume=True)
    plan.run(progress=steps.append)
    assert steps[0].nbytes == 7 * 10 * 10 * 8
    assert sum(step.nbytes for step in steps) == steps[0].total == plan.nbytes


@pytest.mark.parametrize("sizes", ["equal", "other"])
@pytest.mark.parametrize("earlier", [False, True])
@pytest.mark.parametrize("partial", ["own", "compare"])
def test_a_manifest_has_shared_objects_as_they_are(tmp_path, partial, earlier, sizes):
    """Another job changes its part of an object between the death of a job and its end."""
    codecs = [] if sizes == "equal" else ["zstd"]
    zd.create_array(tmp_path / "a", shape=(40,), dtype="i8", chunks=10, codecs=codecs)[...] = -1
    values = da.from_array(np.arange(30), 10)
    options = {"partial": partial, "region": slice(5, 35), "resume": "run-7"}
    options["manifest"] = tmp_path / "m"
    with pytest.raises(StoreError, match="killed"):
        zd.to_zarr(values, HookStore(LocalStore(str(tmp_path / "a")), dies_at("c/0")), **options)
    for file in next((tmp_path / "a.zarr-dask").glob("__job-*")).glob("receipts-*"):
        other = file.with_name("receipts-!" if earlier else "receipts-z")
        file.rename(other)  # of a process whose name comes before or after that of this one
    other = np.random.default_rng(7).integers(0, 10**9, 5)
    zd.to_zarr(da.from_array(other, 5), tmp_path / "a", region=slice(35, 40), partial=partial)
    zd.to_zarr(values, tmp_path / "a", **options)
    report = zd.verify(tmp_path / "a", deep="receipts", manifest=tmp_path / "m")
    assert report.ok, report
    np.testing.assert_array_equal(zd.open_array(tmp_path / "a")[5:], [*range(30), *other])


def dies_at(last):
    """Lets all objects be written but one."""

    def check(method, key):
        if method.startswith("set") and key == last:
            raise StoreError("killed")

    return check


def test_verify_takes_a_manifest(tmp_path):
    zd.to_zarr(striped(), tmp_path / "r", "g/a", manifest=tmp_path / "m")
    manifest = zd.Manifest.read(tmp_path / "m")
    assert zd.verify(tmp_path / "r", deep="receipts", manifest=manifest).ok
    victim = tmp_path / "r" / "g" / "a" / "c" / "1" / "1"
    changed = bytearray(victim.read_bytes())
    changed[-1] ^= 1
    victim.write_bytes(changed)
    (tmp_path / "r" / "g" / "a" / "c" / "2" / "2").unlink()
    report = zd.verify(tmp_path / "r", deep="receipts", manifest=manifest)
    assert {one.key for one in report.findings} == {"g/a/c/1/1", "g/a/c/2/2"}


@pytest.mark.parametrize("options", [{}, {"zarr_format": 2}, {"format": "v3draft"}], ids=str)
def test_a_job_that_has_ended_says_so_when_its_array_has_grown(tmp_path, options):
    """A script that makes an array and appends to it may be begun again from its top."""
    zd.to_zarr(source(), tmp_path / "a", resume=True, **options)
    zd.to_zarr(source(), tmp_path / "a", append=0)
    assert zd.to_zarr(source(), tmp_path / "a", resume=True, **options).already_done
    assert zd.open_array(tmp_path / "a").shape == (80, 30)
    array = zd.open_array(tmp_path / "a", mode="r+")
    array.resize((30, 30))  # less than what was written
    with pytest.raises(NodeExistsError):
        zd.to_zarr(source(), tmp_path / "a", resume=True, **options)
    array.resize((80, 30))
    array.attrs["units"] = "m"
    with pytest.raises(NodeExistsError):
        zd.to_zarr(source(), tmp_path / "a", resume=True, **options)


def test_plan_says_that_a_resuming_call_found_nothing_to_resume(tmp_path):
    """A job that was called without ``resume=`` has no receipts: the next call writes all."""

    def block(values, block_info=None):
        if (tmp_path / "fail").exists() and block_info[0]["chunk-location"] == (3,):
            raise RuntimeError("stopped")
        return values

    x = da.ones(8, chunks=2).map_blocks(block, dtype="f8", meta=np.ones(0))
    (tmp_path / "fail").touch()
    for resume, said in ((False, "no job to resume"), (True, "resumes the job")):
        with pytest.raises(RuntimeError, match="stopped"):
            zd.to_zarr(x, tmp_path / "a", resume=resume)
        assert said in str(zd.plan_write(x, tmp_path / "a", resume=True))
