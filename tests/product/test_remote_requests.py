"""How often an S3 service is asked, counted by a proxy in front of a real server."""

from __future__ import annotations

from collections import Counter
from itertools import count

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr

import zarr_dask as zd
from tests.support.fault_proxy import fault_proxy
from tests.support.object_stores import s3_server
from zarr_dask.errors import NodeExistsError, RankError, ResumeError
from zarr_dask.journal import lock
from zarr_dask.journal.location import NODES
from zarr_dask.stores import Recording, open_store
from zarr_dask.stores.compare_and_swap import cas_store_or_none

VALUES = np.arange(4 * 256, dtype="i4").reshape(4, 256)
WIDE = np.arange(4 * 256 * 256, dtype="i4").reshape(4, 256 * 256)
"""Of which a shard has more bytes than arrive while a response is waited for."""
ARRAYS = 6


@pytest.fixture(scope="module")
def proxy():
    """A proxy in front of a server with a group of arrays, and the same again, consolidated."""
    with s3_server() as server, fault_proxy(server.endpoint) as running:
        for name in ("plain", "consolidated"):
            group = zd.create_group(f"s3://bucket/{name}", storage_options=server.options)
            array = group.create_array(
                "a", shape=WIDE.shape, chunks=(1, 2048), shards=(1, 256 * 256), dtype="i4"
            )
            array[...] = WIDE
            for number in range(ARRAYS - 1):
                group.create_array(f"b{number}", shape=(4,), chunks=(2,), dtype="i4")
        zd.consolidate(f"s3://bucket/{name}", storage_options=server.options)
        yield running, server.options


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """A clock by which calls take no time, so that jobs do not look whether they are replaced."""
    monkeypatch.setattr(lock, "_now", lambda: 0.0)
    return monkeypatch


@pytest.fixture(params=["obstore", "fsspec"])
def place(request, proxy):
    """Where they are, and the options that lead through the proxy."""
    running, options = proxy
    client = {"endpoint_url": running.endpoint, "region_name": "us-east-1"}
    options = {**options, "client_kwargs": client, "backend": request.param}
    assert cas_store_or_none(open_store("s3://bucket/tried", options), "a")  # once in a process
    return "s3://bucket", options


@pytest.fixture
def counted(proxy):
    """The requests since the last time: methods with the last name of the key, or "list"."""
    running, _ = proxy

    def count():
        seen = running.faults.counted()
        names = ("list" if "list-type=2" in one.path else one.path for one in seen)
        return Counter(name.rsplit("/", 1)[-1].partition("?")[0] for name in names)

    count()
    return count


def test_opening_a_consolidated_group(place, counted):
    url, options = place
    group = zd.open(f"{url}/consolidated", format="v3", storage_options=options)
    assert counted() == {"zarr.json": 1}
    assert len(dict(group.arrays())) == ARRAYS
    assert group["b3"].shape == (4,)
    assert counted() == {}
    # where there is a zarr.json no other format is looked for
    zd.open(f"{url}/consolidated", storage_options=options)
    assert counted() == {"zarr.json": 1}


OLD = (".zarray", ".zattrs", ".zgroup", ".zmetadata", "meta", "attrs")


def test_opening_a_consolidated_group_of_v2_takes_two_round_trips(place, counted):
    url, options = place
    store = Recording(open_store(f"{url}/old", options))
    group = zd.create_group(store, format="v2", overwrite=True)
    group.create_array("a", shape=(4,), chunks=(2,), dtype="i4")
    zd.consolidate(store)
    for format, keys, rounds in ((None, ("zarr.json", *OLD), 2), ("v2", OLD[:4], 1)):
        counted()
        store.clear()
        opened = zd.open(store, format=format)
        assert sum(store.batches.values()) == rounds
        assert counted() == dict.fromkeys(keys, 1)
        assert opened["a"].shape == (4,)
        assert list(opened) == ["a"]
        assert zd.open(opened, "a").shape == (4,)
        assert counted() == {}


def test_a_cold_partial_read_of_shards(place, counted):
    url, options = place
    array = zd.open(f"{url}/plain", "a", format="v3", storage_options=options)
    assert counted() == {"zarr.json": 1}
    assert np.array_equal(array[1:4, 15000:33000], WIDE[1:4, 15000:33000])
    assert counted() == {"0": 6}  # for each of three shards its index, and its chunks together
    assert np.array_equal(array[2, 2048:4096], WIDE[2, 2048:4096])
    assert counted() == {"0": 2}
    assert np.array_equal(array[1:3], WIDE[1:3])  # whole shards need no index
    assert counted() == {"0": 2}
    assert np.array_equal(array[1:3, ::1000], WIDE[1:3, ::1000])  # nor do those taken all over
    assert counted() == {"0": 2}


def test_through_consolidated_metadata_only_the_shards_are_asked_for(place, counted):
    url, options = place
    group = zd.open(f"{url}/consolidated", format="v3", storage_options=options)
    counted()
    assert np.array_equal(group["a"][1:3, 3:9], WIDE[1:3, 3:9])
    assert counted() == {"0": 4}


def test_opening_arrays_lists_each_group_once(place, counted):
    url, options = place
    group = zd.open(f"{url}/plain", format="v3", storage_options=options)
    counted()
    assert len(dict(group.arrays())) == ARRAYS
    assert counted() == {"list": 1, "zarr.json": ARRAYS}


def test_a_version_that_takes_the_place_of_another(place, counted):
    """The old metadata, the claim and the old objects are looked at, and then removed."""
    url, options = place
    at = f"{url}/swapped-{options['backend']}"
    zd.to_zarr(da.from_array(VALUES, chunks=(1, 256)), at, storage_options=options)
    x = da.from_array(VALUES + 1, chunks=(1, 256))
    zd.to_zarr(x, at, mode="swap", storage_options=options)
    counted()
    zd.to_zarr(x, at, mode="swap", storage_options=options)
    seen = counted()
    # planned, claimed, read to be put, put, and read once more before the old objects go
    assert seen["zarr.json"] == 5
    assert seen["list"] == 4
    assert sum(seen[name] for name in OLD) <= 6
    assert seen["held"] <= 3  # put, looked at, deleted


def test_dask_asks_for_what_it_reads(place, counted):
    url, options = place
    x = zd.from_zarr(f"{url}/plain", "a", storage_options=options)
    counted()
    assert np.array_equal(x.compute(scheduler="threads"), WIDE)
    assert counted() == {"0": 4}


def test_assignments_look_for_an_open_output_now_and_then(place, counted):
    url, options = place
    root = f"{url}/deep/output-{options['backend']}"
    arrays = {"u": {"shape": (4,), "dtype": "i4"}}
    zd.Writer.create(root, arrays, owners=zd.decompose((4,), (1,)), storage_options=options)
    with pytest.raises(RankError, match="abandon"):
        zd.open_array(root, "u", "r+", storage_options=options)[...] = 1
    zd.Writer.abandon(root, storage_options=options)
    array = zd.open_array(root, "u", "r+", storage_options=options)
    created = {"shape": (64,), "chunks": (1,), "dtype": "i4", "storage_options": options}
    free = zd.create_array(f"{root}-other", "v", **created)
    array[...] = 1
    counted()
    for number in range(32):
        free[number] = 1
        zd.open_array(f"{root}-other", "v", "r+", format="v3", storage_options=options)[number] = 2
    asked = counted()
    assert asked["output.json"] <= 2
    assert asked.total() < 150
    np.testing.assert_array_equal(free[:32], 2)


def test_a_new_array_is_asked_for_once(place, counted):
    """Documents at its place and of a hierarchy around it, what lies below, and what beside.

    The place is claimed by a put, then seen to be free still, and given back by a removal.
    """
    url, options = place
    root = f"{url}/new-{options['backend']}.zarr"
    NODES.forget()  # what another test has seen around it some seconds ago
    counted()
    zd.to_zarr(da.from_array(VALUES, chunks=(4, 256)), root, storage_options=options)
    others = dict.fromkeys(set(OLD) - {".zmetadata"}, 2)
    # of the documents of v3 two are asked for and one is put; fsspec looks before it removes
    claim = {"held": 1, "bucket": 1} if options["backend"] == "obstore" else {"held": 3}
    assert counted() == {"list": 2 + 1, **others, "zarr.json": 3, "0": 1, **claim}
    np.testing.assert_array_equal(zd.open_array(root, storage_options=options)[...], VALUES)


def test_a_call_that_makes_a_node_claims_its_place_in_few_requests(place, counted):
    """A put, a removal, a look for a claim to each node above; to those below, for what replaces.

    A group that replaces nothing has no claim. A removal puts a record that it has begun. After it,
    an object that was listed before is looked for once: a listing that is falsely empty would leave
    it.
    """
    url, options = place
    root = f"{url}/made-{options['backend']}.zarr"
    given = {"shape": (4,), "chunks": (2,), "dtype": "i4", "storage_options": options}

    def counts(call):
        counted()
        call()
        seen = counted()
        return seen.total(), seen["held"] + seen["bucket"]  # where obstore removes keys

    _, of_claims = counts(lambda: zd.create_group(root, storage_options=options))
    assert of_claims == 0
    made = counts(lambda: zd.create_array(root, "a", **given))
    deeper = counts(lambda: zd.create_array(root, "p/q/a", **given))
    replaced = counts(lambda: zd.create_array(root, "a", overwrite=True, **given))
    deleted = counts(lambda: zd.delete(root, "a", storage_options=options))
    if options["backend"] == "obstore":
        assert (made, deeper, replaced, deleted) == ((24, 3), (40, 5), (28, 4), (46, 5))
    else:  # asks before it removes
        assert (made, deeper, replaced, deleted) == ((25, 4), (41, 6), (30, 4), (49, 4))


def test_a_write_into_an_array_asks_for_its_document_once(place, counted):
    """With what lies beside, and whether the hierarchy begins further up, which is then known."""
    url, options = place
    root = f"{url}/into-{options['backend']}.zarr"
    given = {"shape": VALUES.shape, "chunks": (1, 256), "dtype": "i4", "storage_options": options}
    zd.create_array(root, **given)
    array = zd.open_array(root, "", "r+", storage_options=options)
    x = da.from_array(VALUES, chunks=(1, 256))
    counted()
    zd.to_zarr(x, array)
    first = counted()
    assert first["list"] == 1
    assert first["0"] == 4
    assert first["zarr.json"] == 2
    assert first == {
        "list": 1,
        "0": 4,
        "zarr.json": 2,
        **dict.fromkeys(set(OLD) - {".zmetadata"}, 1),
    }
    zd.to_zarr(x + 1, array)
    assert counted() == {"list": 1, "0": 4, "zarr.json": 1}
    np.testing.assert_array_equal(array[...], VALUES + 1)


def test_objects_at_the_end_take_a_read_more(place, counted):
    """An append may be changing them."""
    url, options = place
    root = f"{url}/ends-{options['backend']}.zarr"
    given = {"shape": (3, 7), "chunks": (2, 7), "dtype": "i4", "storage_options": options}
    zd.create_array(root, **given)
    array = zd.open_array(root, "", "r+", storage_options=options)
    array[...] = 1
    counted()
    reads = 1
    array[...] = 2
    assert counted()["0"] == 2 + reads
    plan = zd.plan_write(da.full((3, 7), 3, dtype="i4", chunks=(2, 7)), array, region=np.s_[:, :])
    assert plan.requests == {"read": reads, "write": 2}
    counted()
    report = plan.run()
    assert counted()["0"] == 2 + reads
    if reads:
        assert report.requests == plan.requests
    array.append(np.full((1, 7), 4))
    assert counted()["0"] == 2
    array.append(np.full((2, 7), 5))
    assert counted()["0"] == 1
    np.testing.assert_array_equal(array[...], np.array([[3, 3, 3, 4, 5, 5]]).T.repeat(7, 1))


@pytest.mark.parametrize("resume", [False, True])
def test_a_look_for_a_later_job_takes_one_request(resume, place, counted, clock):
    """Before each object where each takes two seconds, and around the document and the removal."""
    url, options = place
    root = f"{url}/looks-{options['backend']}-{resume}.zarr"
    x = da.from_array(np.ones((3, 4)), chunks=(1, 4), name=False)
    zd.to_zarr(x, f"{root}/quick", resume=resume, storage_options=options)
    quick = counted()
    times = count(step=2)
    clock.setattr(lock, "_now", lambda: float(next(times)))
    with dask.config.set(scheduler="sync"):  # threads that look at the same time share one look
        zd.to_zarr(x, f"{root}/slow", resume=resume, storage_options=options)
    slow = counted()
    assert slow["held"] - quick["held"] == slow.total() - quick.total() == 3 + 2 + 2


@pytest.mark.parametrize("format", ["v2", "v3"])
def test_a_tree_takes_two_requests_a_node_at_most(place, counted, format):
    """All checks of its groups and arrays are answered by one listing.

    A node of v2 has two documents and a root a third one: what is not an object of the tree counts.
    """
    url, options = place
    root = f"{url}/tree-{options['backend']}-{format}"
    ds = xr.Dataset({"t": ("x", np.arange(3))}, coords={"x": np.arange(3)})
    groups = {"/": ds, **{f"/g{number}": ds.rename(t="u") for number in range(12)}}
    tree = xr.DataTree.from_dict(groups)
    # that there is no hierarchy around it is known: it takes six requests, once
    zd.plan_dataset(ds, f"{root}-planned", format=format, storage_options=options)
    counted()
    zd.write_dataset(tree, root, format=format, storage_options=options)
    arrays = 1 + 1 + 12  # the coordinate is inherited
    nodes, seen = 13 + arrays, counted()
    documents = nodes if format == "v3" else 2 * nodes + 1
    assert seen.total() <= documents + arrays + 13
    assert format == "v2" or seen.total() < 2 * nodes
    assert seen["0"] == arrays
    found = zd.open_datatree(root, storage_options=options)
    assert counted().total() <= (3 if format == "v3" else 8)
    xr.testing.assert_identical(found.load(), tree)
    with pytest.raises(NodeExistsError):
        zd.write_dataset(tree, root, storage_options=options)


def test_a_dataset_takes_the_place_of_another_in_few_requests(place, counted):
    """What is removed is looked at once, and nothing of it is asked for again, array by array."""
    url, options = place
    root = f"{url}/replaced-{options['backend']}"
    ds = xr.Dataset({f"v{number}": ("x", np.arange(3) + number) for number in range(6)})
    given = {"storage_options": options}
    NODES.forget()  # what another test has seen around it some seconds ago
    zd.write_dataset(ds, root, **given)
    new = counted()
    zd.write_dataset(ds + 1, root, mode="w", **given)
    replaced = counted()
    assert replaced["0"] == new["0"] == 6
    # documents at two places, listings, removals, and a look for what was listed
    assert replaced.total() <= new.total() + 25
    xr.testing.assert_identical(zd.open_zarr(root, **given).load(), ds + 1)
    zd.write_dataset(ds[["v0"]], root, mode="w", **given)
    assert list(zd.open_group(root, **given)) == ["v0"]


def test_an_append_asks_for_nothing_that_it_knows(place, counted):
    """Labels are read once; other formats are not looked for where the dataset is known."""
    url, options = place
    root = f"{url}/growing-{options['backend']}"

    def days(first):
        x = np.arange(first, first + 3)
        return xr.Dataset({"t": ("x", x * 1.0)}, coords={"x": x})

    given = {"storage_options": options}
    zd.write_dataset(days(0), root, **given)
    zd.open_zarr(root, **given)  # the hierarchy is known to begin here
    counted()
    zd.write_dataset(days(3), root, append="x", **given)
    seen = counted()
    assert not set(OLD) & {name for name, count in seen.items() if count > 1}
    assert (seen["0"], seen["1"]) == (1, 2)  # labels, once; what is written
    xr.testing.assert_identical(
        zd.open_zarr(root, **given).load(), xr.concat([days(0), days(3)], "x")
    )


def test_a_region_asks_for_the_documents_that_it_changes_twice(place, counted):
    """Once to plan, and once when it begins; for all others once."""
    url, options = place
    root = f"{url}/region-{options['backend']}"
    x = np.arange(6)
    ds = xr.Dataset({"t": ("x", x * 1.0), "u": ("x", x * 2.0)}, coords={"x": x})
    given = {"storage_options": options}
    zd.write_dataset(ds.chunk(x=2), root, chunks={"x": 2}, **given)
    zd.open_zarr(root, **given)  # the hierarchy is known to begin here
    part = (ds[["t"]] + 1).drop_vars("x").isel(x=slice(2, 4))
    counted()
    zd.write_dataset(part, root, region={"x": slice(2, 4)}, **given)
    seen = counted()
    assert seen["zarr.json"] <= 2 + 3 + 1  # the group and what lies above, all arrays, "t" again
    assert seen["1"] == 1
    assert zd.open_zarr(root, **given)["t"].values.tolist() == [0, 1, 3, 4, 4, 5]


def test_what_is_kept_beside_is_found(place):
    """A job that has not ended is in the way of another one, which begins anew if it is told to."""
    url, options = place
    root = f"{url}/jobs-{options['backend']}.zarr"

    def fail(block):
        raise OSError("no values")

    x = da.from_array(VALUES, chunks=(1, 256))
    with pytest.raises(OSError, match="no values"):
        zd.to_zarr(x.map_blocks(fail, dtype="i4"), root, storage_options=options, resume="one")
    assert list(open_store(f"{root}.zarr-dask", options).list())
    with pytest.raises(ResumeError, match="resume='one'"):
        zd.to_zarr(x, root, storage_options=options, resume="two")
    zd.to_zarr(x, root, storage_options=options)
    assert not list(open_store(f"{root}.zarr-dask", options).list())
    np.testing.assert_array_equal(zd.open_array(root, storage_options=options)[...], VALUES)


def test_a_cold_partial_read_of_small_shards(place, counted):
    url, options = place
    root = f"{url}/small-{options['backend']}"
    array = zd.create_array(
        root, shape=VALUES.shape, chunks=(1, 8), shards=(1, 256), dtype="i4",
        storage_options=options,
    )  # fmt: skip
    array[...] = VALUES
    counted()
    assert np.array_equal(array[1:4, 60:130], VALUES[1:4, 60:130])
    assert np.array_equal(array.vindex[[0, 0], [9, 99]], VALUES[[0, 0], [9, 99]])
    assert counted() == {"0": 4}
