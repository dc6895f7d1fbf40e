"""The folder that a thread keeps open between puts, when others move or remove it meanwhile."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from pathlib import Path

import numpy as np
import pytest

import zarr_dask as zd
from zarr_dask.errors import LinkError
from zarr_dask.stores import LocalStore, no_follow
from zarr_dask.stores.no_follow import FolderKeeper, create_in_kept, folder_in

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/fd").exists(), reason="looks at what is open as Linux shows it"
)


@pytest.fixture
def store(tmp_path):
    """A store in which a put has kept the folder of `c/0`."""
    store = LocalStore(str(tmp_path / "a"))
    with FolderKeeper():
        store.set("c/0", [b"zero"])
        assert open_below(tmp_path)
        yield store
    assert open_below(tmp_path) == []


def open_below(folder):
    """Files and folders below a folder that this process has open."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that lists them
            found.append(descriptor.readlink())
    return [path for path in found if path.is_relative_to(folder)]


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_the_folder_is_kept_by_its_thread_alone(store):
    with ThreadPoolExecutor(1) as threads:
        context = copy_context()
        assert threads.submit(context.run, create_in_kept, store.root, "c", "x").result() is None
    store.set("c/1", [b"one"])
    assert files(Path(store.root)) == ["c/0", "c/1"]


def test_a_put_into_a_removed_folder_makes_it_again(store):
    shutil.rmtree(f"{store.root}/c")
    store.set("c/1", [b"one"])
    assert store.get("c/1") == b"one"
    assert files(Path(store.root)) == ["c/1"]


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_put_goes_where_its_key_leads_by_now(store, tmp_path, is_replaced):
    Path(store.root, "c").rename(tmp_path / "moved")
    if is_replaced:
        Path(store.root, "c").mkdir()
    store.set("c/1", [b"one"])
    store.set_pieces("c/2", iter([b"t", b"wo"]))
    assert (store.get("c/1"), store.get("c/2")) == (b"one", b"two")
    assert files(tmp_path) == ["a/c/1", "a/c/2", "moved/0"]


def test_no_link_in_the_place_of_the_folder_is_followed(store, tmp_path):
    Path(store.root, "c").rename(tmp_path / "moved")
    (tmp_path / "victim").mkdir()
    Path(store.root, "c").symlink_to(tmp_path / "victim")
    with pytest.raises(LinkError):
        store.set("c/1", [b"one"])
    assert files(tmp_path) == ["moved/0"]


def test_a_put_that_is_filled_by_other_puts_keeps_its_folder(store):
    def pieces():
        store.set("d/0", [b"other"])
        store.set("c/2", [b"two"])
        yield b"one"

    store.set_pieces("c/1", pieces())
    assert [store.get(key) for key in ("c/0", "c/1", "c/2", "d/0")] == [
        *(b"zero", b"one", b"two", b"other")
    ]
    assert files(Path(store.root)) == ["c/0", "c/1", "c/2", "d/0"]


def test_a_put_that_fails_leaves_nothing(store):
    def pieces():
        yield b"half"
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError):
        store.set_pieces("c/1", pieces())
    store.set("c/2", [b"two"])
    assert files(Path(store.root)) == ["c/0", "c/2"]


def test_a_region_of_small_chunks_opens_their_folder_once(tmp_path, monkeypatch):
    a = zd.create_array(tmp_path / "a", shape=64, dtype="i4", chunks=1)
    opened = []
    reached = zd.stores.no_follow._reached
    monkeypatch.setattr(
        "zarr_dask.stores.no_follow._reached",
        lambda *place, **options: (opened.append(place), reached(*place, **options))[1],
    )
    a[...] = np.arange(1, 65)
    assert len(opened) == 1
    assert a[...].tolist() == [*range(1, 65)]


class Unsearched(dict):
    """A dict that nothing goes through from end to end."""

    def __iter__(self):
        raise AssertionError("it is searched")

    keys = values = items = __iter__


def test_a_removed_folder_is_forgotten_by_its_number_alone(tmp_path, monkeypatch):
    """Each appended row removes folders, and remembers another one."""
    reached = Unsearched()
    monkeypatch.setattr(no_follow, "_REACHED", reached)
    monkeypatch.setattr(no_follow, "_PLACES", {})
    root, above = str(tmp_path / "a"), str(tmp_path)
    for place in ((root, "c/0"), (above, "a/c/0"), (root, "c/1")):
        with folder_in(*place, make=True):
            pass
    with folder_in(root, "c") as around:
        no_follow.remove_empty("0", around)
    kept = [place in reached for place in ((root, "c/0"), (above, "a/c/0"), (root, "c/1"))]
    assert kept == [False, False, True]
