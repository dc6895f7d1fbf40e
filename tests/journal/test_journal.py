"""Receipts, journals and manifests as files: what survives, what counts, and where they lie."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, replace
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

import zarr_dask as zd
from zarr_dask.errors import (
    ConditionalWriteError,
    ManifestError,
    NodeNotFoundError,
    ResumeError,
    StoreError,
)
from zarr_dask.journal import (
    JobRecord,
    Journal,
    JournalLocation,
    default_place,
    given_place,
    manifest,
    new_journal,
    open_journals,
)
from zarr_dask.journal import receipts as batching
from zarr_dask.journal.manifest import ManifestPlace
from zarr_dask.journal.receipts import Receipt, StoredObject, collect, parse_receipts, stored_object
from zarr_dask.stores import HookStore, LocalStore, MemoryStore, ReadOnly, Recording, ZipStore
from zarr_dask.stores.base import is_key
from zarr_dask.stores.open import canonical_location, open_store
from zarr_dask.stores.patience import in_task
from zarr_dask.stores.put_tags import Version
from zarr_dask.stores.wrapper import StoreWrapper
from zarr_dask.stores.wrappers.base import PrefixStore

KEYS = st.text(min_size=1, max_size=20).filter(is_key)
OBJECTS = st.builds(
    StoredObject,
    KEYS,
    st.integers(0, 2**40),
    st.integers(0, 2**32 - 1),
    st.none() | st.binary(max_size=9).map(lambda b: sha256(b).hexdigest()),
)
RECEIPTS = st.builds(
    Receipt, KEYS, KEYS, st.lists(OBJECTS, max_size=4).map(tuple), st.lists(KEYS).map(tuple)
)


def receipt(number: int, creation: str = "first") -> Receipt:
    return Receipt("job", creation, (StoredObject(f"c/{number}", number + 1, 7),))


# --- lines ----------------------------------------------------------------------------------------


@given(st.lists(RECEIPTS, max_size=4))
def test_lines_come_back(receipts):
    text = b"".join(one.to_line() for one in receipts)
    assert list(parse_receipts(text)) == receipts


@given(st.lists(RECEIPTS, min_size=1, max_size=3), st.data())
def test_a_line_cut_short_is_no_receipt_and_hides_none(receipts, data):
    *before, last = [one.to_line() for one in receipts]
    cut = data.draw(st.integers(0, len(last) - 2))
    torn = b"".join(before) + last[:cut]
    assert list(parse_receipts(torn)) == receipts[:-1]
    assert list(parse_receipts(torn + last)) == receipts


@given(RECEIPTS, st.data())
def test_a_changed_byte_is_never_another_receipt(one, data):
    line = bytearray(one.to_line())
    position = data.draw(st.integers(0, len(line) - 1))
    line[position] ^= data.draw(st.integers(1, 255))
    assert list(parse_receipts(bytes(line))) in ([], [one])


@pytest.mark.parametrize(
    "text", [b"[]", b"{}", b"7", b'{"token":1}', b"[" * 100_000, b'{"objects":[[]]}', b"\xff"]
)
def test_whole_lines_of_others_are_passed_over(text):
    from zarr_dask.codecs.checksum import crc32c

    assert list(parse_receipts(b"%08x %b\n" % (crc32c(text), text))) == []


def test_what_a_receipt_says_of_bytes():
    import zlib

    import google_crc32c

    buffers = [b"12345", memoryview(bytearray(b"67")), bytearray(b"89"), b""]
    whole = b"123456789"
    assert stored_object("k", buffers, with_sha256=True) == StoredObject(
        "k", 9, google_crc32c.value(whole), sha256(whole).hexdigest(), zlib.crc32(whole)
    )
    assert stored_object("k", buffers, with_sha256=False).sha256 is None


def test_receipts_count_by_creation_size_tag_and_presence():
    written = [
        Receipt("job", "new", (StoredObject("a", 1, 0), StoredObject("b", 2, 0)), ("e", "f")),
        Receipt("job", "new", (StoredObject("c", 3, 0),), ()),
        Receipt("job", "old", (StoredObject("d", 4, 0),), ("g",)),
        Receipt("job", "new", tuple(StoredObject(key, 5, 0, tag=key * 2) for key in "hij")),
    ]
    sizes = {"a": 1, "b": 1, "d": 4, "f": 9}
    listed = {key: Version(nbytes) for key, nbytes in sizes.items()}
    listed |= {"h": Version(5, "hh"), "i": Version(5, "ii of another kind"), "j": Version(5, "jk")}
    held = collect(written, "new", listed)
    assert set(held.objects) == {"a", "h", "i"}
    assert held.empty == {"e"}
    assert [key in held for key in "abcdefg"] == [True, False, False, False, True, False, False]
    assert len(collect(written, "new")) == 8


@pytest.mark.parametrize("sha256", [None, "0" * 64])
@pytest.mark.parametrize("crc32", [None, 7])
@pytest.mark.parametrize("tag", ["", "d41d8", 'with "quotes"'])
def test_receipts_read_back_as_they_were_written(sha256, crc32, tag):
    item = StoredObject("c/0", 4, 5, sha256, crc32, tag)
    (found,) = parse_receipts(Receipt("job", "new", (item,)).to_line())
    assert found.objects == (item,)
    assert found.objects[0].tag == tag
    assert StoredObject.from_row(item.to_row()) == item


# --- places ---------------------------------------------------------------------------------------


def place_url(store, path=""):
    place = default_place(store, path)
    return None if place is None else place.url


def test_every_way_to_name_a_node_leads_to_one_place(tmp_path):
    root = tmp_path / "run.zarr"
    zd.create_group(root, "g")
    (tmp_path / "link").symlink_to(root)
    want = f"{tmp_path}/run.zarr.zarr-dask/g/a/"
    stores = {
        "the root": (LocalStore(str(root)), "g/a"),
        "a group": (LocalStore(str(root / "g")), "a"),
        "the node": (LocalStore(str(root / "g" / "a")), ""),
        "a link": (LocalStore(str(tmp_path / "link")), "g/a"),
        "wrapped": (ReadOnly(Recording(LocalStore(str(root)))), "g/a"),
        "below": (PrefixStore(LocalStore(str(tmp_path / "run.zarr")), "g/"), "a"),
    }
    assert {way: place_url(*given) for way, given in stores.items()} == dict.fromkeys(stores, want)


def test_places_of_urls_and_what_has_none(tmp_path):

    assert place_url(open_store("memory://bucket/run.zarr"), "a") == (
        "memory://bucket/run.zarr.zarr-dask/a/"
    )
    assert place_url(open_store("memory://bucket"), "a") is None
    assert place_url(MemoryStore()) is None
    assert place_url(ZipStore.from_path(str(tmp_path / "a.zip"), "")) is None
    assert place_url(LocalStore("/")) is None


def test_a_place_that_is_given_has_a_folder_for_each_node(tmp_path):
    def prefix(root, path):
        place = given_place(tmp_path / "j", LocalStore(str(tmp_path / root)), path)
        assert place.store == LocalStore(str(tmp_path / "j"))
        return place.prefix

    assert prefix("a.zarr", "g/salt").startswith("salt-")
    assert prefix("a.zarr", "").startswith("a.zarr-")
    assert prefix("a.zarr", "g/salt") == prefix("a.zarr/g", "salt")
    places = [("a.zarr", "salt"), ("b.zarr", "salt"), ("a.zarr", "g/salt"), ("a.zarr", "")]
    assert len({prefix(*place) for place in places}) == 4


@pytest.mark.parametrize("bucket", ["memory://bucket", "s3://bucket", "gs://bucket"])
def test_a_place_that_is_given_is_the_same_from_every_root_of_a_bucket(bucket):
    roots = [("/run.zarr", "ocean"), ("", "run.zarr/ocean"), ("/run.zarr/ocean", "")]
    nodes = [(open_store(f"{bucket}{root}"), path) for root, path in roots]
    assert len({canonical_location(*node) for node in nodes}) == 1
    prefixes = {given_place("memory://jobs", *node).prefix for node in nodes}
    assert len(prefixes) == 1
    assert re.fullmatch("ocean-[0-9a-f]{8}/", prefixes.pop())
    assert canonical_location(*nodes[0]).startswith(
        f"{canonical_location(open_store(bucket), 'run.zarr')}/"
    )
    assert canonical_location(open_store("s3://other"), "run.zarr/ocean") != canonical_location(
        *nodes[0]
    )


@pytest.mark.parametrize("below", ["", "/jobs"])
@pytest.mark.parametrize(
    ("root", "path"), [("/run.zarr/ocean", ""), ("/run.zarr", "ocean"), ("", "run.zarr/ocean")]
)
def test_a_place_that_is_given_lies_outside_of_the_node(root, path, below):
    store = open_store(f"memory://bucket{root}")
    with pytest.raises(ResumeError, match=r"inside of .*: memory://bucket/run.zarr/ocean"):
        given_place(f"memory://bucket/run.zarr/ocean{below}", store, path)


def test_a_mapping_that_is_written_takes_no_journal():
    values = {}
    with pytest.raises(ResumeError, match="inside of"):
        given_place(values, open_store(values), "")


# --- journals -------------------------------------------------------------------------------------


def journals(tmp_path):
    """A journal on a file system, and one on a store that cannot append."""
    stores = [LocalStore(str(tmp_path / "files")), MemoryStore()]
    job = JobRecord("write", "token", "")
    return [new_journal(JournalLocation(store, "a/"), job) for store in stores]


def begun(journal: Journal) -> Journal:
    journal.begin(JobRecord("write", journal.token, journal.run_id))
    return journal


@pytest.mark.parametrize("kind", [0, 1], ids=["files", "objects"])
def test_a_journal_holds_what_was_added_until_it_is_removed(tmp_path, kind):
    journal = begun(journals(tmp_path)[kind])
    written = [receipt(number) for number in range(20)]
    for one in written:
        journal.add(one)
        journal.add(one)
    assert set(journal.receipts()) == set(written)
    assert journal.job().run_id == journal.run_id
    journal.merge()
    journal.merge()
    journal.add(receipt(20))
    assert set(journal.receipts()) == {*written, receipt(20)}
    journal.remove()
    assert journal.job() is None
    assert list(journal.store.list()) == []


@pytest.mark.parametrize("kind", [0, 1], ids=["files", "objects"])
def test_receipts_of_several_arrays_have_the_same_keys(tmp_path, kind):
    journal = begun(journals(tmp_path)[kind])
    written = {receipt(1, "first"), receipt(1, "second")}
    for one in written:
        journal.add(one)
    assert set(journal.receipts()) == written


def test_a_process_appends_to_one_file_and_a_task_puts_one_object(tmp_path):
    files, objects = map(begun, journals(tmp_path))
    objects = replace(objects, gathers=False)
    for number in range(10):
        files.add(receipt(number))
        objects.add(receipt(number))
        objects.add(receipt(number))
    assert len(list(files.store.list())) == 2
    assert len(list(objects.store.list())) == 11
    objects.merge()
    assert len(list(objects.store.list())) == 2


def many(count: int) -> Receipt:
    return Receipt("job", "first", tuple(StoredObject(f"c/{n}", 1, 7) for n in range(count)))


def test_receipts_are_gathered_where_each_would_be_a_request(tmp_path, monkeypatch):
    journal = begun(journals(tmp_path)[1])

    def stored() -> int:
        return sum("receipts" in key for key in journal.store.list())

    monkeypatch.setattr(batching, "_SHORT", 1000.0)
    for number in range(100):
        journal.add(receipt(number))
    assert stored() == 0
    assert len({*journal.receipts()}) == 100
    journal.flush()
    journal.flush()
    assert stored() == 1
    monkeypatch.setattr(batching, "_SHORT", 0.0)
    for number in range(100):
        journal.add(receipt(number))
    assert stored() == 1 + 100 // batching._MANY
    assert len({*journal.receipts()}) == 100
    journal.merge()
    assert stored() == 1


def test_receipts_of_a_task_that_took_long_are_stored_at_once(tmp_path, monkeypatch):
    journal = begun(journals(tmp_path)[1])
    with in_task():
        journal.add(receipt(1))
        monkeypatch.setattr(batching, "_LONG", 0.0)
        journal.add(receipt(2))
    assert {*replace(journal, run_id="another process").receipts()} == {receipt(1), receipt(2)}


def test_receipts_that_cannot_be_stored_fail_the_task_and_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(batching, "_LONG", 0.0)
    journal = begun(journals(tmp_path)[1])
    refusing = replace(journal, store=ReadOnly(journal.store))
    with pytest.raises(StoreError):
        refusing.add(many(3))
    refusing.flush_after_failure()
    assert list(journal.receipts()) == [many(3)]
    journal.flush()
    assert list(replace(journal, run_id="another process").receipts()) == [many(3)]


def test_only_so_many_jobs_gather_receipts(tmp_path):
    journal = begun(journals(tmp_path)[1])
    journal.add(receipt(0))
    for number in range(batching._MOST_JOBS):
        replace(journal, run_id=f"other {number}").add(receipt(number))
    assert list(journal.receipts()) == []
    assert len(batching.GATHERED._batches) <= batching._MOST_JOBS


def test_begin_forgets_what_an_older_job_has_left(tmp_path):
    for journal in journals(tmp_path):
        begun(journal).add(receipt(1))
        assert list(begun(journal).receipts()) == []


def test_a_receipt_that_comes_after_the_end_makes_nothing(tmp_path):
    journal = begun(journals(tmp_path)[0])
    journal.remove()
    journal.add(receipt(1))
    assert list(tmp_path.iterdir()) == [tmp_path / "files"]
    assert list((tmp_path / "files").iterdir()) == []


def test_removing_a_journal_leaves_others_alone(tmp_path):
    place = JournalLocation(LocalStore(str(tmp_path)), "a/")
    jobs = [JobRecord("write", "token", "", region=((n, n + 1),)) for n in range(2)]
    one, other = [new_journal(place, job) for job in jobs]
    for journal, job in zip((one, other), jobs, strict=True):
        journal.begin(job)
    one.remove()
    assert [journal.prefix for journal, _ in open_journals(place)] == [other.prefix]
    other.remove()
    assert open_journals(place) == []


def test_a_job_comes_back(tmp_path):
    place = JournalLocation(LocalStore(str(tmp_path)), "")
    job = JobRecord(
        "write",
        "t",
        "c",
        "name",
        creates=True,
        objects=3,
        documents={"zarr.json": "{}"},
        layers=(("add", "1f"),),
        region=((0, 3), (5, 7)),
        extra={"dtype": "<f8"},
    )
    new_journal(place, job).begin(job)
    [(journal, found)] = open_journals(place)
    assert found == job
    assert journal.run_id == "c"


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"format": "another"}',
    ],
)
def test_documents_of_others_are_no_jobs(tmp_path, text):
    place = JournalLocation(LocalStore(str(tmp_path)), "")
    journal = new_journal(place, JobRecord("write", "t", ""))
    journal.store.set(f"{journal.prefix}job.json", [text])
    assert open_journals(place) == []


def test_regions_of_jobs_meet():
    job = JobRecord("write", "t", "", region=((0, 3), (5, 7)))
    assert job.meets(((2, 9), (0, 6)))
    assert not job.meets(((3, 9), (0, 6)))
    assert job.meets(())
    assert JobRecord("write", "t", "").meets(((0, 1),))


def test_threads_do_not_mix_their_lines(tmp_path):
    journal = begun(journals(tmp_path)[0])

    def work(first: int) -> None:
        for number in range(first, first + 200):
            journal.add(receipt(number))

    threads = [threading.Thread(target=work, args=(1000 * n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = sorted(one.objects[0].key for one in journal.receipts())
    assert found == sorted(f"c/{1000 * n + m}" for n in range(8) for m in range(200))


def test_a_forked_process_has_a_file_of_its_own(tmp_path):
    code = f"""
import os
from zarr_dask.journal import *
from zarr_dask.journal.receipts import Receipt
from zarr_dask.stores import LocalStore
location = JournalLocation(LocalStore({str(tmp_path)!r}), "")
journal = new_journal(location, JobRecord("write", "t", ""))
journal.begin(JobRecord("write", "t", journal.run_id))
journal.add(Receipt("t", "parent", ()))
if os.fork() == 0:
    journal.add(Receipt("t", "child", ()))
    os._exit(0)
os.wait()
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    [(journal, _)] = open_journals(JournalLocation(LocalStore(str(tmp_path)), ""))
    assert sorted(one.run_id for one in journal.receipts()) == ["child", "parent"]
    assert len(list(journal.store.list(journal.prefix))) == 3


def test_receipts_survive_the_kill_of_their_process(tmp_path):
    """Every receipt whose writer went on to the next one is there after SIGKILL, none is torn."""
    code = f"""
from zarr_dask.journal import *
from zarr_dask.journal.receipts import Receipt
from zarr_dask.stores import LocalStore
location = JournalLocation(LocalStore({str(tmp_path)!r}), "")
journal = new_journal(location, JobRecord("write", "t", ""))
journal.begin(JobRecord("write", "t", journal.run_id))
number = 0
while True:
    journal.add(Receipt("t", str(number), ()))
    print(number, flush=True)
    number += 1
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as process:
        for line in process.stdout:
            if int(line) >= 50:
                break
        process.send_signal(signal.SIGKILL)
        seen = [int(line) for line in process.stdout.read().splitlines() if line]
    last = max(seen, default=50)
    [(journal, _)] = open_journals(JournalLocation(LocalStore(str(tmp_path)), ""))
    kept = [int(one.run_id) for one in journal.receipts()]
    assert kept in (list(range(last + 1)), list(range(last + 2)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs resource limits")
def test_a_full_disk_under_the_journal_is_an_error_and_tears_at_most_one_line(tmp_path):
    code = f"""
import resource, signal
from zarr_dask.errors import StoreError
from zarr_dask.journal import *
from zarr_dask.journal.receipts import Receipt
from zarr_dask.stores import LocalStore
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
location = JournalLocation(LocalStore({str(tmp_path)!r}), "")
journal = new_journal(location, JobRecord("write", "t", ""))
journal.begin(JobRecord("write", "t", journal.run_id))
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 100_000))
for number in range(100):
    try:
        journal.add(Receipt("t", str(number), ()))
    except StoreError as error:
        print(number, "failed")
        break
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
journal.add(Receipt("t", "later", ()))
"""
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    failed = int(run.stdout.split()[0])
    assert 5 < failed < 30
    [(journal, _)] = open_journals(JournalLocation(LocalStore(str(tmp_path)), ""))
    kept = [one.run_id for one in journal.receipts()]
    assert kept == [*(str(n) for n in range(failed)), "later"]


def test_a_receipt_that_cannot_be_kept_is_an_error():
    def full(method: str, key: str) -> None:
        if method == "set" and "receipts" in key:
            raise StoreError("no space left")

    journal = begun(
        new_journal(JournalLocation(HookStore(MemoryStore(), full), ""), JobRecord("w", "t", ""))
    )
    with pytest.raises(StoreError, match="no space"):
        replace(journal, gathers=False).add(receipt(1))


def test_the_fsync_of_the_store_holds_for_its_journal(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    place = default_place(LocalStore(str(tmp_path / "a.zarr"), fsync=True), "")
    journal = begun(new_journal(place, JobRecord("write", "t", "")))
    synced.clear()
    journal.add(receipt(1))
    assert len(synced) == 2  # the file and its folder


# --- manifests ------------------------------------------------------------------------------------


@given(st.lists(OBJECTS, unique_by=lambda one: one.key), st.frozensets(KEYS))
def test_manifests_come_back(objects, empty):
    keys = {one.key for one in objects}
    ordered = tuple(sorted(objects, key=lambda one: one.key))
    manifest = zd.Manifest(ordered, frozenset(empty - keys), "somewhere")
    assert zd.Manifest.from_text(manifest.to_text()) == manifest


def test_a_manifest_cut_short_or_changed_is_refused(tmp_path):
    manifest = zd.Manifest(tuple(receipt(n).objects[0] for n in range(3)), frozenset({"x"}))
    text = manifest.to_text()
    for end in range(len(text) - 1):
        with pytest.raises(ManifestError):
            zd.Manifest.from_text(text[:end])
    with pytest.raises(ManifestError):
        zd.Manifest.from_text(text.replace(b"c/1", b"c/9"))
    with pytest.raises(ManifestError, match="no manifest at"):
        zd.Manifest.read(tmp_path / "none")
    place = ManifestPlace.of(tmp_path / "bad")
    place.store.set(place.key, [json.dumps({"a": 1}).encode()])
    with pytest.raises(ManifestError, match="bad"):
        zd.Manifest.read(tmp_path / "bad")


def test_manifests_at_paths_and_urls(tmp_path):
    digest = sha256(b"a").hexdigest()
    manifest = zd.Manifest((StoredObject("a", 1, 2, digest),))
    for location in (tmp_path / "m.json", f"file://{tmp_path}/n", "memory://bucket/m"):
        manifest.write(ManifestPlace.of(location))
        assert zd.Manifest.read(location) == manifest
    assert manifest.to_sha256sum() == f"{digest}  a\n"


MUCH = 1 << 36
"""Bytes of a file with holes, more than there is memory."""


@pytest.mark.parametrize("rows", [0, 3, 40_000])
def test_a_manifest_that_goes_on_with_holes_is_read_no_further(tmp_path, rows):
    place = tmp_path / "m"
    objects = tuple(StoredObject(f"c/{n:09}", 1, 2) for n in range(rows))
    zd.Manifest(objects).write(ManifestPlace.of(place))
    assert zd.Manifest.read(place).objects == objects
    os.truncate(place, MUCH)
    with pytest.raises(ManifestError, match=str(place)):
        zd.Manifest.read(place)
    place.write_bytes(b"")
    os.truncate(place, MUCH)
    with pytest.raises(ManifestError):
        zd.Manifest.read(place)


def test_a_manifest_beside_an_array_with_far_more_lines_than_that_can_have_is_refused(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(manifest, "_AT_LEAST", 8)
    array = zd.create_array(tmp_path / "a", shape=2, dtype="i4", chunks=1)
    rows = {f"a/c/{n}": StoredObject(f"a/c/{n}", 1, n) for n in range(9)}
    place = ManifestPlace.of_node(True, array.store, array.path)
    for count, fits in ((5, True), (9, False)):
        zd.Manifest(tuple(list(rows.values())[:count]), prefix="a/").write(place)
        assert len(zd.Manifest.at(place).objects) == count
        if fits:
            assert len(zd.Manifest.beside([array]).objects) == count
            continue
        reads = (
            lambda: zd.Manifest.beside([array]),
            lambda: zd.open_array(tmp_path / "a", read=zd.ReadOptions(verify=True))[...],
            lambda: zd.verify(array, manifest=True),
        )
        for read in reads:
            with pytest.raises(ManifestError, match=r"more than 8 lines.* no more than 2"):
                read()


@pytest.mark.parametrize("stages", [{}, {"stages": 2}])
@pytest.mark.parametrize("named", ["objects", "empty"])
def test_receipts_of_far_more_objects_than_a_job_writes_are_told_of(
    tmp_path, monkeypatch, stages, named
):
    monkeypatch.setattr(batching, "_AT_LEAST", 8)
    store = LocalStore(str(tmp_path))
    job = JobRecord("write", "t", "run", creates=True, resume="token", objects=2, extra=stages)
    place = JournalLocation(LocalStore(str(tmp_path) + ".zarr-dask"), "a/")
    journal = replace(new_journal(place, job), run_id="run")
    journal.begin(job)
    keys = [f"c/{n}" for n in range(9)]
    rows = tuple(StoredObject(key, 1, 7) for key in keys) if named == "objects" else ()
    (tmp_path / "a" / "c").mkdir(parents=True)
    for key in keys if rows else ():
        (tmp_path / "a" / key).write_bytes(b"1")
    journal.add(Receipt("t", "run", rows, () if rows else tuple(keys)))
    with pytest.raises(NodeNotFoundError, match="receipts of far more stored objects than the 2"):
        zd.open(store, "a")


def test_a_long_manifest_that_is_replaced_while_it_is_read_is_read_again():
    objects = [tuple(StoredObject(f"{c}/{n:09}", 1, 2) for n in range(60_000)) for c in "ab"]
    values: dict[str, bytes] = {}

    @dataclass(frozen=True, eq=False)
    class Replaced(StoreWrapper):
        seen: list

        def get_ranges(self, requests):
            self.seen.append(requests)
            if len(self.seen) == 2:
                zd.Manifest(objects[1]).write(ManifestPlace(self.store, "m"))
            return self.store.get_ranges(requests)

    place = ManifestPlace(Replaced(MemoryStore.over(values), []), "m")
    zd.Manifest(objects[0]).write(place)
    assert len(values["m"]) > 1 << 20
    assert zd.Manifest.at(place).objects == objects[1]


def test_receipts_are_read_up_to_a_hole(tmp_path):
    (tmp_path / "jobs").mkdir()
    journal = Journal(LocalStore(tmp_path), "jobs/", "token", "run_id")
    journal.add(Receipt("token", "run_id", (StoredObject("c/0", 4, 0),)))
    (file,) = (tmp_path / "jobs").iterdir()
    os.truncate(file, MUCH)
    (found,) = journal.receipts()
    assert [item.key for item in found.objects] == ["c/0"]


@dataclass(frozen=True, eq=False)
class MergedMeanwhile(StoreWrapper):
    """Before the first receipt is read, another process merges all of them."""

    merges: list

    def get_start(self, key, nbytes):
        if "receipts-" in key and not self.merges:
            self.merges.append(key)
            Journal(self.store, "jobs/", "token", "run_id").merge()
        return self.store.get_start(key, nbytes)


def test_receipts_that_are_merged_while_they_are_read_are_found():
    values = MemoryStore()
    journal = Journal(values, "jobs/", "token", "run_id", gathers=False)
    for number in range(3):
        item = StoredObject(f"c/{number}", 4, 0)
        journal.add(Receipt("token", "run_id", (item,)))
    assert len(list(values.list("jobs/"))) == 3
    watched = replace(journal, store=MergedMeanwhile(values, []))
    keys = {item.key for receipt in watched.receipts() for item in receipt.objects}
    assert watched.store.merges
    assert keys == {"c/0", "c/1", "c/2"}


def test_a_store_that_refuses_each_condition_ends_a_job_that_marks_its_journal(
    tmp_path, monkeypatch
):
    journal = Journal(LocalStore(tmp_path), "__job-0123456789abcdef/", "token", "run")
    monkeypatch.setattr(LocalStore, "set_if", lambda *_: False)
    with pytest.raises(ConditionalWriteError, match="do not work as they must"):
        journal.note_as_only(JobRecord("write", "token", "run"), "the array")
