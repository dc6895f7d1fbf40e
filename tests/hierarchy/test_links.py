"""Links in a hierarchy and beside it: nothing that writes or deletes follows them."""

from __future__ import annotations

import json
import os
import shutil
import time
from functools import partial
from pathlib import Path

import dask.array as da
import numpy as np
import pytest

import zarr_dask as zd
from zarr_dask.errors import (
    JournalError,
    LinkError,
    LinkWarning,
    ManifestError,
    MetadataError,
    PlanError,
    ZarrDaskError,
)
from zarr_dask.jobs.simulation.rank_log import LogFolder, _line
from zarr_dask.journal import default_place
from zarr_dask.journal.journal import JobRecord
from zarr_dask.journal.location import check_no_link
from zarr_dask.journal.receipts import Receipt, StoredObject, parse_receipts
from zarr_dask.journal.validate_record import _CHECKS
from zarr_dask.stores import LocalStore
from zarr_dask.stores.no_follow import create_in

X = da.arange(16, chunks=4).reshape(4, 4).rechunk(2)
DATA = {"shape": (4, 4), "dtype": "i8", "chunks": (2, 2)}


def state(folder: Path) -> dict[str, bytes | None]:
    """All that lies in a folder."""
    return {
        str(one.relative_to(folder)): one.read_bytes() if one.is_file() else None
        for one in sorted(folder.rglob("*"))
    }


@pytest.fixture
def victim(tmp_path):
    """A folder of somebody, with a hierarchy in it; checked at the end."""
    folder = tmp_path / "home"
    (folder / "photos").mkdir(parents=True)
    (folder / "thesis.txt").write_text("years")
    (folder / "photos" / "1.jpg").write_text("x")
    zd.to_zarr(X, folder / "data.zarr", "a")
    temporary = folder / "data.zarr" / f".zarr-dask-{'a' * 16}.tmp"
    temporary.write_text("old")
    os.utime(temporary, (0, 0))
    before = state(folder)
    yield folder
    assert state(folder) == before


@pytest.fixture
def root(tmp_path):
    zd.create_group(tmp_path / "g.zarr")
    zd.to_zarr(X, tmp_path / "g.zarr", "q")
    return tmp_path / "g.zarr"


def replace_by_link(folder: Path, target: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
    folder.symlink_to(target)


# --- journals -------------------------------------------------------------------------------------

CALLS = {
    "w": lambda root: zd.to_zarr(X, root, "q", mode="w"),
    "swap": lambda root: zd.to_zarr(X, root, "q", mode="swap"),
    "append": lambda root: zd.to_zarr(X, root, "q", mode="a", append=0),
    "resume": lambda root: zd.to_zarr(X, root, "q", mode="w", resume=True),
    "overwrite": lambda root: zd.create_array(root, "q", overwrite=True, **DATA),
    "group": lambda root: zd.create_group(root, "q", overwrite=True),
    "delete": lambda root: zd.delete(root, "q"),
    "rename": lambda root: zd.open_group(root, mode="r+").rename("q", "r"),
    "rechunk": lambda root: zd.rechunk(root / "q", root, path="q", chunks=(4, 4), overwrite=True),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("where", ["root", "node"])
def test_journals_do_not_lie_behind_links(root, victim, call, where):
    beside = Path(f"{root}.zarr-dask")
    if where == "root":
        beside.symlink_to(victim)
    else:
        beside.mkdir()
        (beside / "q").symlink_to(victim)
    before = state(root)
    if call == "rechunk":
        with pytest.raises(ZarrDaskError):
            CALLS[call](root)
    else:
        with pytest.raises(LinkError, match=r"is a link that leads to .*home"):
            CALLS[call](root)
    assert state(root) == before


def test_the_folder_of_an_old_job_may_be_no_link(root, victim):
    place = default_place(LocalStore(str(root)), "q")
    folder = Path(place.store.root, place.prefix)
    folder.mkdir(parents=True)
    (folder / f"__job-{'0' * 16}").symlink_to(victim)
    zd.verify(root, sweep=True)
    zd.delete(root, "q")
    assert not (root / "q").exists()


def test_what_is_ended_behind_a_link_is_told_of_and_left(root, victim):
    document = JobRecord("write", "t", "c", ended=True).to_json()
    (victim / f"__job-{'0' * 16}").mkdir()
    (victim / f"__job-{'0' * 16}" / "job.json").write_bytes(document)
    beside = Path(f"{root}.zarr-dask")
    beside.symlink_to(victim)
    report = zd.verify(root, sweep=True)
    assert report.swept == 0
    assert (victim / f"__job-{'0' * 16}" / "job.json").read_bytes() == document
    shutil.rmtree(victim / f"__job-{'0' * 16}")


def test_held_jobs_and_empty_folders_are_not_looked_for_behind_links(tmp_path, victim):
    from zarr_dask.journal import remove_empty_folders
    from zarr_dask.journal.lock import is_locked, lock_job

    (tmp_path / "link").symlink_to(victim)
    (victim / "empty").mkdir()
    store = LocalStore(str(tmp_path))
    lock_job(store, "link/").close()
    assert not is_locked(store, "link/")
    remove_empty_folders(store, "link/empty/")
    assert (victim / "empty").is_dir()
    (victim / "empty").rmdir()


# --- nodes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", [call for call in CALLS if call != "rechunk"])
@pytest.mark.parametrize("whole", [False, True], ids=["by path", "as root"])
def test_nodes_that_are_links_are_not_replaced(root, victim, call, whole):
    replace_by_link(root / "q", victim / "data.zarr" / "a")
    if call in {"append", "rename"} and whole:
        return
    if whole:
        calls = {
            "w": lambda: zd.to_zarr(X, root / "q", mode="w"),
            "swap": lambda: zd.to_zarr(X, root / "q", mode="swap"),
            "resume": lambda: zd.to_zarr(X, root / "q", mode="w", resume=True),
            "overwrite": lambda: zd.create_array(root / "q", overwrite=True, **DATA),
            "group": lambda: zd.create_group(root / "q", overwrite=True),
            "delete": lambda: zd.delete(root / "q"),
        }
        run = calls[call]
    else:
        run = partial(CALLS[call], root)
    with pytest.raises(LinkError, match=r"q is a link that leads to .*by its own path"):
        run()
    assert (root / "q").is_symlink()


def test_a_group_that_goes_takes_its_links_and_not_what_they_lead_to(root, victim):
    zd.create_group(root, "below")
    (root / "below" / "linked").symlink_to(victim)
    (root / "below" / "file").symlink_to(victim / "thesis.txt")
    zd.delete(root, "below")
    assert not (root / "below").exists()
    (root / "linked").symlink_to(victim)
    zd.create_group(root, overwrite=True)
    assert [one.name for one in root.iterdir()] == ["zarr.json"]


CHANGES = {
    "resize": lambda array: array.resize((2, 2)),
    "assign": lambda array: array.__setitem__(slice(None), 1),
    "attributes": lambda array: array.update_attributes({"a": 1}),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("what", ["array", "chunks", "row"])
def test_arrays_are_not_written_behind_links(root, victim, name, what):
    change = CHANGES[name]
    at = {"array": "q", "chunks": "q/c", "row": "q/c/1"}[what]
    target = victim / "data.zarr" / "a" / at[2:]
    replace_by_link(root / at, target)
    array = zd.open_array(root, "q", "r+")
    np.testing.assert_array_equal(array[...], X.compute())  # what is named may be read
    if what == "array" or name == "assign":
        with pytest.raises(LinkError, match="is a link"):
            change(array)
    else:
        change(array)  # the document is behind no link


def test_a_resize_that_prunes_does_not_reach_out(root, victim):
    replace_by_link(root / "q" / "c" / "1", victim / "data.zarr" / "a" / "c" / "1")
    array = zd.open_array(root, "q", "r+")
    with pytest.raises(LinkError, match="stored objects"):
        array.resize((2, 2), prune=True)


def test_the_root_and_what_lies_above_it_may_be_links(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "short").symlink_to(tmp_path / "disk")
    zd.to_zarr(X, tmp_path / "short" / "x.zarr", "a")
    (tmp_path / "y.zarr").symlink_to(tmp_path / "disk" / "x.zarr")
    for mode in ("w", "swap"):
        zd.to_zarr(X + 1, tmp_path / "y.zarr", "a", mode=mode)
        np.testing.assert_array_equal(zd.open(tmp_path / "y.zarr", "a")[...], X + 1)
    array = zd.open_array(tmp_path / "y.zarr", "a", "r+")
    array.resize((2, 2))
    array[...] = 7
    assert sorted(path for path, _ in zd.open_group(tmp_path / "y.zarr").walk()) == ["a"]
    assert zd.verify(tmp_path / "y.zarr", sweep=True).arrays
    zd.delete(tmp_path / "y.zarr", "a")
    zd.create_group(tmp_path / "y.zarr", overwrite=True)
    assert (tmp_path / "y.zarr").is_symlink()
    assert [one.name for one in (tmp_path / "disk" / "x.zarr").iterdir()] == ["zarr.json"]


def test_writers_of_simulations_do_not_follow_links(root, victim):
    Path(f"{root}.zarr-dask").symlink_to(victim)
    series = {"u": {"shape": (4,), "dtype": "f4", "chunks": (1, 4)}}
    with pytest.raises(LinkError):
        zd.Writer.create(root, series, overwrite=True)
    assert (root / "q").exists()


# --- leftovers ------------------------------------------------------------------------------------


def test_sweeping_does_not_follow_links(root, victim):
    (root / "out").symlink_to(victim)
    swap = root.parent / f".{root.name}.zarr-dask-{'0' * 16}.swap"
    swap.symlink_to(victim)
    with pytest.warns(LinkWarning, match="out of"):
        report = zd.verify(root, sweep=True)
    assert report.swept == 0
    assert [one.kind for one in report.findings] == ["temporary"]
    assert swap.is_symlink()


def test_the_mark_of_a_swap_may_be_no_link(root, victim, tmp_path):
    from zarr_dask.journal.swap import AtomicReplace

    swap = AtomicReplace(str(root / "q"), str(tmp_path / ".g.zarr"), "0" * 16, fsync=False)
    Path(swap.beside).mkdir()
    Path(swap.beside, f".zarr-dask-{'0' * 16}.tmp").symlink_to(victim / "thesis.txt")
    mark = swap.begin(held=True, resumed=True)
    assert mark is not None
    mark.close()
    swap.remove()
    Path(swap.beside).mkdir()
    os.mkfifo(Path(swap.beside, f".zarr-dask-{'0' * 16}.tmp"))
    zd.verify(root, sweep=True)  # a pipe would make it wait for ever


# --- stores ---------------------------------------------------------------------------------------


def test_stores_write_and_delete_nothing_behind_links(tmp_path, victim):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "link").symlink_to(victim)
    (tmp_path / "s" / "file").symlink_to(victim / "thesis.txt")
    store = LocalStore(str(tmp_path / "s"))
    store.set("own/a", [b"1"])
    for call in (
        partial(store.set, "link/new", [b"1"]),
        partial(store.set, "link/photos/new/deep", [b"1"]),
        partial(store.set_pieces, "link/new", iter([b"1"])),
        partial(store.set_if, "link/new", [b"1"], None),
        partial(store.append, "link/thesis.txt", b"1"),
        partial(store.append, "file", b"1"),
        partial(store.delete, "link/thesis.txt"),
        partial(store.delete_prefix, "link/"),
        partial(store.delete_prefix, "link/photos/"),
        partial(store.move_prefix, "link/", "moved/"),
        partial(store.move_prefix, "link/photos/", "moved/"),
        partial(store.move_prefix, "own/", "link/own/"),
        partial(store.move_prefix, "own/", "link/"),
    ):
        with pytest.raises(LinkError, match="is a link"):
            call()
    assert store.get("link/thesis.txt") == b"years"
    assert store.get("file") == b"years"
    store.set("file", [b"own"])  # in the place of the link
    store.delete("link")
    assert sorted(store.list()) == ["file", "own/a"]


def test_a_folder_that_becomes_a_link_is_noticed(tmp_path, victim):
    store = LocalStore(str(tmp_path / "s"))
    store.set("a/b/c", [b"1"])
    (tmp_path / "s" / "a").rename(tmp_path / "s" / "old")
    (victim / "b").mkdir()
    (tmp_path / "s" / "a").symlink_to(victim)
    with pytest.raises(LinkError):
        store.set("a/b/c", [b"2"])
    (victim / "b").rmdir()


def test_a_folder_that_becomes_a_link_while_a_value_is_written(tmp_path, victim):
    store = LocalStore(str(tmp_path / "s"))

    def pieces():
        yield b"1"
        (tmp_path / "s" / "a").rename(tmp_path / "s" / "old")
        (tmp_path / "s" / "a").symlink_to(victim)
        yield b"2"

    with pytest.raises(ZarrDaskError):
        store.set_pieces("a/b", pieces())
    assert list((tmp_path / "s" / "old").iterdir()) == []


# --- walking --------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::zarr_dask.errors.LinkWarning")
@pytest.mark.parametrize("target", ["/", "home"])
def test_a_link_out_of_the_root_is_not_walked(root, victim, target):
    (root / "out").symlink_to("/" if target == "/" else victim)
    (root / "deep").symlink_to(victim / "data.zarr" / "a")
    begun = time.monotonic()
    group = zd.open_group(root)
    assert [path for path, _ in group.walk()] == ["q"]
    assert [node.path for node in zd.inventory(root).nodes] == ["", "q"]
    assert zd.verify(root).ok
    assert not [key for key in LocalStore(str(root)).list() if not key.startswith(("q/", "zarr"))]
    asked = zd.ReadOptions(walk_by_full_listing=True)
    assert [path for path, _ in zd.open_group(root, read=asked).walk()] == ["q"]
    assert time.monotonic() - begun < 5
    np.testing.assert_array_equal(zd.open(root, "deep")[...], X)  # what is named may be read
    assert zd.verify(root, "deep").ok


def test_a_link_out_of_the_root_is_told_of(root, victim):
    (root / "out").symlink_to(victim)
    with pytest.warns(LinkWarning, match=r"out is a link that leads out of .*home"):
        assert len(list(zd.open_group(root).walk())) == 1


def test_links_to_one_another_are_walked_in_bounded_time(tmp_path):
    root = zd.create_group(tmp_path / "g")
    for name in "abc":
        root.create_group(name)
    for name in "abc":
        for other in "abc":
            (tmp_path / "g" / name / f"to{other}").symlink_to(tmp_path / "g" / other)
    walked = {path for path, _ in root.walk()}
    listed = {k.rpartition("/")[0] for k in LocalStore(str(tmp_path / "g")).list()}
    assert "a/tob/toc" in walked
    assert "a/tob/toc" in listed
    assert max(path.count("/") for path in walked) == 3
    assert max(path.count("/") for path in listed) == 2  # links that lead back are not looked into


@pytest.mark.parametrize("way", ["walk", "list"])
def test_too_many_ways_through_links_are_an_error(tmp_path, monkeypatch, way):
    import zarr_dask.hierarchy.walk
    import zarr_dask.stores.backends.local

    monkeypatch.setattr(zarr_dask.hierarchy.walk, "_MOST_LINKS", 5)
    monkeypatch.setattr(zarr_dask.stores.backends.local, "_MOST_LINKS", 5)
    root = zd.create_group(tmp_path / "g")
    root.create_group("a")
    for number in range(6):
        (tmp_path / "g" / f"l{number}").symlink_to("a")
    with pytest.raises(LinkError, match="more than 5 ways"):
        list(root.walk() if way == "walk" else LocalStore(str(tmp_path / "g")).list())


# --- records that were tampered with --------------------------------------------------------------

GOOD = json.loads(
    JobRecord(
        "write",
        "token:1",
        "c" * 32,
        objects=1,
        documents={"zarr.json": "{}"},
        layers=(("a", "b"),),
        region=((0, 1),),
        extra={"stages": 1, "targets": ["a"]},
    ).to_json()
)
ODD = [None, True, -1, 1.5, 1 << 70, "\n", "x/../../victim", [], [1], [[1]], [["a"]], {}, {"a": 1}]
RIGHT = {
    "kind": {"\n", "x/../../victim"},
    "token": {"\n", "x/../../victim"},
    "run_id": {"\n", "x/../../victim"},
    "creates": {True},
    "append_committed": {True},
    "ended": {True},
    "content_token": {"\n", "x/../../victim"},
}
"""Odd values that are right: texts that are only compared, and flags."""
EMPTY = {"documents": {}, "extra": {}, "layers": [], "region": [], "finished_with": []}


def with_job(root: Path, document: dict) -> Path:
    place = default_place(LocalStore(str(root)), "q")
    folder = Path(place.store.root, f"{place.prefix}__job-{'0' * 16}")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "job.json").write_text(json.dumps(document))
    return folder


def test_every_member_of_a_job_is_checked():
    assert set(_CHECKS) == {*vars(JobRecord("write", "t", "c"))}


@pytest.mark.parametrize("name", [name for name in GOOD if name != "format"])
def test_tampered_jobs_are_refused(root, victim, name):
    for value in ODD:
        right = isinstance(value, str | bool) and value in RIGHT.get(name, set())
        if right or (name in EMPTY and value == EMPTY[name]):
            continue
        if name == "extra" and value == {"a": 1}:
            continue
        with_job(root, {**GOOD, name: value})
        with pytest.raises(JournalError, match=rf"job\.json.*its member {name} is"):
            zd.to_zarr(X, root, "q", mode="swap", resume=True)
    report = zd.verify(root, sweep=True)
    assert [one.kind for one in report.findings] == ["journal"]


@pytest.mark.parametrize("facts", [{"targets": ["../x"]}, {"arrays": ["/x"]}, {"stages": "1"}])
def test_tampered_facts_are_refused(root, victim, facts):
    with_job(root, {**GOOD, "extra": facts})
    with pytest.raises(JournalError, match="extra"):
        zd.to_zarr(X, root, "q", mode="w")


@pytest.mark.parametrize("key", ["../x", "/x", "a//b", "", "a/./b", "a\\b"])
def test_tampered_keys_are_refused(root, victim, key):
    with_job(root, {**GOOD, "documents": {key: "{}"}})
    with pytest.raises(JournalError, match="documents"):
        zd.to_zarr(X, root, "q", mode="w")
    good = Receipt("t", "c", (StoredObject("a", 1, 2),))
    bad = Receipt("t", "c", (StoredObject(key, 1, 2),))
    worse = Receipt("t", "c", (), (key,))
    text = good.to_line() + bad.to_line() + worse.to_line()
    assert list(parse_receipts(text)) == [good]
    for manifest in (zd.Manifest(bad.objects), zd.Manifest((), frozenset({key}))):
        with pytest.raises(ManifestError, match=r"line 2 .*its key is"):
            zd.Manifest.from_text(manifest.to_text())


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (StoredObject("a", -1, 2), "bytes"),
        (StoredObject("a", True, 2), "bytes"),
        (StoredObject("a", 1, 1 << 32), "CRC-32C"),
        (StoredObject("a", 1, 2, "../.."), "SHA-256"),
    ],
)
def test_tampered_numbers_are_refused(row, says):
    with pytest.raises(ManifestError, match=f"line 2 .*its {says}|number of {says}"):
        zd.Manifest.from_text(zd.Manifest((row,)).to_text())
    if row.nbytes is not True:
        assert list(parse_receipts(Receipt("t", "c", (row,)).to_line())) == []


RECORD = {"array": "u", "index": 0, "steps": [0, 1], "objects": [[[0], 4, 7]]}


@pytest.mark.parametrize(
    "record",
    [
        *({**RECORD, name: value} for name in RECORD for value in ("../x", -1, None, [[1]], {})),
        {"from_step": -1, "rewind": 1},
        {"from_step": 1},
        {"stored": {"../u": 1}, "rewind": 0},
        {"stored": {"u": -1}, "rewind": 0},
        {"unknown": 1},
        [1],
        7,
    ],
)
def test_tampered_records_of_ranks_are_refused(tmp_path, record):
    store = LocalStore(str(tmp_path))
    store.set("o/rank-0", [_line(RECORD)])
    folder = LogFolder(store, "o/")
    assert folder.records("rank-0") == [RECORD]
    store.set("o/rank-0", [_line(RECORD), _line(record)])
    with pytest.raises(JournalError, match="rank-0: line 2"):
        folder.records("rank-0")


@pytest.mark.parametrize("creation", ["../../home", "", None, "0" * 15])
def test_a_tampered_output_names_no_other_folder(root, victim, creation):
    folder = Path(f"{root}.zarr-dask/__output")
    folder.mkdir(parents=True)
    document = {"format": "zarr-dask output 1", "run_id": creation, "arrays": {}}
    (folder / "output.json").write_text(json.dumps(document))
    with pytest.raises(MetadataError):
        zd.Writer.abandon(root)
    series = {"u": {"shape": (4,), "dtype": "f4", "chunks": (1, 4)}}
    with pytest.raises(MetadataError):
        zd.Writer.create(root, series, overwrite=True)


@pytest.mark.parametrize("axis", [None, "0", -1, True])
def test_a_tampered_axis_of_an_output_is_refused(root, axis):
    folder = Path(f"{root}.zarr-dask/__output")
    folder.mkdir(parents=True)
    document = {"format": "zarr-dask output 1", "arrays": {"q": {"axis": axis}}}
    (folder / "output.json").write_text(json.dumps(document))
    with pytest.raises(JournalError, match=r"output\.json.*axis"):
        zd.open_array(root, "q", "r+").resize((8, 4))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("overwrite", "false"),
        ("overwrite", 1),
        ("threads", True),
        ("max_mem", -1),
        ("max_mem", "1GB"),
        ("run_id", "../" * 8),
    ],
)
def test_tampered_plans_are_refused(root, tmp_path, name, value):
    plan = zd.plan_rechunk(root / "q", tmp_path / "r.zarr", chunks=(4, 4))
    document = {**json.loads(plan.to_json()), name: value}
    with pytest.raises(PlanError, match=rf"{name}|hexadecimal"):
        zd.load_plan(json.dumps(document))


@pytest.mark.parametrize("box", [[0, 1 << 53], [-1, 12], [6, 3], [0, 12, 0]])
def test_a_box_outside_of_an_output_is_refused_at_once(tmp_path, box):
    root = tmp_path / "o.zarr"
    zd.Writer.create(root, {"x": {"shape": (12,), "dtype": "i4", "chunks": (2, 12)}})
    path = tmp_path / "o.zarr.zarr-dask" / "__output" / "output.json"
    document = json.loads(path.read_text())
    document["arrays"]["x"]["boxes"] = [[box]]
    path.write_text(json.dumps(document))
    with pytest.raises(MetadataError):
        zd.Writer.attach(root, rank=0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"waited": "x"},
        {"requests": [1]},
        {"requests": {"read": "x"}},
        {"objects": -1, "stored": []},
    ],
)
def test_a_tampered_report_of_an_ended_job_is_not_shown(tmp_path, wrong):
    call = {"url": tmp_path / "a.zarr", "resume": "run"}
    zd.to_zarr(X, **call)
    (path,) = (tmp_path / "a.zarr.zarr-dask").glob("__done-*")
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "report": {**document["report"], **wrong}}))
    again = zd.to_zarr(X, **call)
    assert again.already_done
    assert again.explain()
    plain = zd.WriteReport()
    assert all(getattr(again, name) == getattr(plain, name) for name in wrong)


@pytest.mark.parametrize("path", ["../x", "/x", "a//b", 7, None])
def test_paths_of_tampered_plans_are_refused(root, tmp_path, path):
    plan = zd.plan_rechunk(root / "q", tmp_path / "r.zarr", chunks=(4, 4))
    for part in ("source", "target"):
        document = json.loads(plan.to_json())
        document[part]["path"] = path
        with pytest.raises(PlanError):
            zd.load_plan(json.dumps(document))


def test_checks_of_links_look_at_every_name(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "l").symlink_to(tmp_path)
    store = LocalStore(str(tmp_path))
    check_no_link(store, "a/b")
    with pytest.raises(LinkError):
        check_no_link(store, "a/l/x/y")
    folder, file = create_in(str(tmp_path), "n/m", "f")
    os.close(folder)
    os.close(file)
    assert (tmp_path / "n" / "m" / "f").exists()
