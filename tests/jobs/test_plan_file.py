"""Plans in files: small, without secrets, and the same plan again wherever they are read."""

from __future__ import annotations

import json
from fractions import Fraction

import dask
import numpy as np
import pytest
from fsspec.config import conf

import zarr_dask as zd
from zarr_dask.errors import (
    ChunkMissingError,
    MetadataChangedError,
    NodeNotFoundError,
    PlanError,
    SourceIsTargetError,
    StoreError,
)
from zarr_dask.stores import LocalStore
from zarr_dask.stores.backends.fsspec import FsspecStore
from zarr_dask.stores.backends.http import HTTPStore
from zarr_dask.stores.config import from_config, to_config
from zarr_dask.stores.url_secrets import split_credentials
from zarr_dask.stores.wrappers.base import PrefixStore, ReadOnly

MB = 1_000_000


@pytest.fixture(autouse=True)
def one_thread():
    with dask.config.set(scheduler="sync"):
        yield


def source_at(place, **options) -> zd.Array:
    options = {"shape": (64, 64, 64), "dtype": "f4", "chunks": (1, 64, 64), **options}
    array = zd.create_array(place, **options)
    array[...] = np.arange(array.size).reshape(array.shape) % 2003
    return array


@pytest.mark.parametrize("max_mem", ["2.2MB", "100MB"])
@pytest.mark.parametrize(
    "target",
    [
        {"chunks": (64, 4, 4)},
        {"chunks": (16, 4, 4), "shards": (64, 16, 16)},
        {"chunks": (64, 4, 4), "dtype": "f2", "format": "v2"},
        {"chunks": ((40, 24), 8, 8)},
    ],
    ids=str,
)
def test_a_plan_is_the_same_after_it_was_in_a_file(tmp_path, target, max_mem):
    source = source_at(tmp_path / "a.zarr")
    plan = zd.plan_rechunk(source, tmp_path / "b.zarr", max_mem=max_mem, **target)
    text = plan.to_json()
    again = zd.load_plan(text)
    assert again.stages == plan.stages
    assert documents_of(again.target) == documents_of(plan.target)
    assert again.to_json() == text.replace(*_reasons(text, again))
    again.run()
    np.testing.assert_array_equal(
        zd.open_array(tmp_path / "b.zarr")[...], source[...].astype(again.target.dtype)
    )


def documents_of(array: zd.Array) -> tuple[str, dict[str, bytes]]:
    return array.format, array.node_format.documents(array.meta, array.path)


def _reasons(text: str, again) -> tuple[str, str]:
    """What only the planner knows: why it did not take another way."""
    told = json.loads(text)["explained"]
    left = again.explain().splitlines()
    return tuple(json.dumps(lines, indent=1).replace("\n", "\n ") for lines in (told, left))


def test_a_plan_of_ten_million_chunks_is_small(tmp_path):
    source = zd.create_array(
        tmp_path / "a.zarr", shape=(40_000, 4000, 4000), dtype="f4", chunks=(1, 4000, 4000)
    )
    plan = zd.plan_rechunk(source, tmp_path / "b.zarr", chunks=(40, 40, 40), max_mem="4GB")
    assert plan.target.meta.grid.ncells == 10**7
    assert len(plan.to_json()) < 20_000
    assert zd.load_plan(plan.to_json()).tasks == plan.tasks


OBJECT_STORE = zd.CostModel(request=0.2, read=5e6, write=8e6, limit=3000.0, listing=1e-5)


def test_the_cost_model_is_kept(tmp_path):
    values = np.arange(256 * 64 * 64, dtype="f4").reshape(256, 64, 64)
    source = zd.create_array(
        tmp_path / "a.zarr", shape=values.shape, dtype="f4", chunks=(1, 64, 64), codecs=["blosc"]
    )
    source[...] = values
    wanted = {"chunks": (256, 4, 4), "max_mem": "2.2MB"}
    plans = {
        model: zd.plan_rechunk(source, tmp_path / "b.zarr", model=model, **wanted)
        for model in (zd.CostModel(), OBJECT_STORE)
    }
    assert len({plan.stages for plan in plans.values()}) == 2  # the choice is that of the model
    for model, plan in plans.items():
        text = plan.to_json()
        assert len(text) < 20_000
        json.loads(text, parse_constant=pytest.fail)  # no Infinity, which is no JSON
        again = zd.load_plan(text)
        assert again.model == model
        assert again.stages == plan.stages
        assert again.seconds == plan.seconds


def test_plans_of_several_arrays_keep_the_cost_model(tmp_path):
    group = zd.create_group(tmp_path / "g.zarr")
    for name in "ab":
        group.create_array(
            name, shape=(64, 64), dtype="f4", chunks=(1, 64), dimension_names=["t", "x"]
        )
    several = zd.plan_rechunk(
        [group["a"], group["b"]], tmp_path / "b.zarr", path=["a", "b"], chunks=8, model=OBJECT_STORE
    )
    copied = zd.plan_copy(group, tmp_path / "c.zarr", chunks={"t": 64}, model=OBJECT_STORE)
    for plan in (several, copied):
        again = zd.load_plan(plan.to_json())
        assert again.model == OBJECT_STORE
        assert again.seconds == plan.seconds
        assert all(member.model == OBJECT_STORE for member in again.members)


@pytest.mark.parametrize(
    "wrong",
    [
        {"read": 0},
        {"write": -1.0},
        {"request": -1},
        {"task": float("nan")},
        {"limit": "x"},
        {"stage": True},
    ],
)
def test_cost_models_that_make_no_sense(tmp_path, wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        zd.CostModel(**wrong)
    source = source_at(tmp_path / "a.zarr")
    plan = json.loads(zd.plan_rechunk(source, tmp_path / "b.zarr", chunks=16).to_json())
    with pytest.raises(PlanError, match="CostModel"):
        zd.load_plan(json.dumps({**plan, "model": {**plan["model"], **wrong}}))


def test_cost_models_of_any_real_numbers(tmp_path):
    """NumPy's, as a measurement gives them, are none that JSON knows."""
    model = zd.CostModel(read=np.float32(1e8), request=np.int64(2), task=Fraction(1, 4))
    assert model == zd.CostModel(read=1e8, request=2.0, task=0.25)
    source = source_at(tmp_path / "a.zarr")
    plan = zd.plan_rechunk(source, tmp_path / "b.zarr", chunks=16, model=model)
    assert zd.load_plan(plan.to_json()).model == model


@pytest.mark.parametrize("job", ["rechunk", "several", "copy"])
def test_how_the_source_is_read_is_kept(tmp_path, job):
    """Else what is lost, and an error when the plan is made, is a fill value when it is run."""
    source = source_at(tmp_path / "a.zarr")
    source.store.delete("c/7/0/0")
    strict = zd.open_array(tmp_path / "a.zarr", read=zd.ReadOptions(missing="error"))
    made = {
        "rechunk": lambda: zd.plan_rechunk(strict, tmp_path / "b.zarr", chunks=(64, 8, 8)),
        "several": lambda: zd.plan_rechunk(
            [strict], tmp_path / "b.zarr", path=["x"], chunks=(64, 8, 8)
        ),
        "copy": lambda: zd.plan_copy(strict, tmp_path / "b.zarr", chunks=(64, 8, 8)),
    }[job]()
    with pytest.raises(ChunkMissingError):
        zd.load_plan(made.to_json()).run()
    assert zd.load_plan(made.to_json()).token == made.token


@pytest.mark.parametrize(
    "read", [{"allow_pickle": True}, {"limits": {}}, {"missing": "never"}, ["missing"], {"x": 1}]
)
def test_a_stranger_does_not_say_what_a_reader_bears(tmp_path, read):
    plan = zd.plan_rechunk(source_at(tmp_path / "a.zarr"), tmp_path / "b.zarr", chunks=(64, 8, 8))
    document = json.loads(plan.to_json())
    document["source"]["read"] = read
    with pytest.raises(PlanError):
        zd.load_plan(json.dumps(document))


def test_a_source_that_has_changed_is_noticed(tmp_path):
    source = source_at(tmp_path / "a.zarr")
    text = zd.plan_rechunk(source, tmp_path / "b.zarr", chunks=16).to_json()
    source.update_attributes({"unit": "K"})
    with pytest.raises(MetadataChangedError, match=r"a\.zarr .*Make it again"):
        zd.load_plan(text)
    zd.delete(tmp_path / "a.zarr")
    with pytest.raises(NodeNotFoundError):
        zd.load_plan(text)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda plan: "{", "not JSON"),
        (lambda plan: "[]", "no plan"),
        (lambda plan: json.dumps({**plan, "version": 99}), "version 99"),
        (lambda plan: json.dumps({**plan, "stages": [{"box": [3, 16, 16]}]}), "whole stored"),
        (lambda plan: json.dumps({**plan, "stages": [{"box": [16, 16]}]}), "expected 3 integers"),
        (lambda plan: json.dumps({**plan, "stages": [{"box": ["16", 16, 16]}]}), "3 integers"),
        (lambda plan: json.dumps({**plan, "stages": []}), "no stages"),
        (lambda plan: json.dumps({**plan, "max_mem": 1000}), "more than its max_mem"),
        (lambda plan: json.dumps({**plan, "threads_per_process": -1}), "at least 1"),
        (lambda plan: json.dumps({**plan, "max_mem": 10}), "than its max_mem"),
        (lambda plan: json.dumps({**plan, "run_id": "../../.."}), "32 hexadecimal"),
        (
            lambda plan: json.dumps({**plan, "stages": [{"box": [16] * 3, "cell": [16] * 3}] * 3}),
            "would be one",
        ),
        (
            lambda plan: json.dumps(
                {**plan, "source": {**plan["source"], "region": [[0, 1], [0, 1], [0, 1]]}}
            ),
            "is not of the shape",
        ),
        (lambda plan: json.dumps({**plan, "max_mem": "much"}), "'max_mem' is 'much'"),
        (lambda plan: json.dumps({k: v for k, v in plan.items() if k != "target"}), "'target'"),
    ],
)
def test_what_is_no_plan(tmp_path, change, says):
    source = source_at(tmp_path / "a.zarr")
    plan = json.loads(zd.plan_rechunk(source, tmp_path / "b.zarr", chunks=16).to_json())
    with pytest.raises(PlanError, match=says):
        zd.load_plan(change(plan))


@pytest.mark.parametrize("job", ["rechunk", "several", "move", "copy"])
def test_plans_that_were_changed_to_write_over_their_source(tmp_path, job):
    group = zd.create_group(tmp_path / "g")
    for name in "ab":
        group.create_array(
            name, shape=(8, 8), dtype="f4", chunks=(1, 8), dimension_names=["t", "x"]
        )[...] = 7
    chunks = {"chunks": {"t": 8, "x": 1}}
    plan = {
        "rechunk": lambda: zd.plan_rechunk(group["a"], tmp_path / "new", path="a", **chunks),
        "several": lambda: zd.plan_rechunk(
            [group["a"], group["b"]], tmp_path / "new", path=["a", "b"], **chunks
        ),
        "move": lambda: zd.plan_copy(group, tmp_path / "new"),
        "copy": lambda: zd.plan_copy(group, tmp_path / "new", **chunks),
    }[job]()
    text = json.dumps({**json.loads(plan.to_json()), "overwrite": True})
    assert zd.load_plan(text).overwrite
    changed = text.replace(str(tmp_path / "new"), str(tmp_path / "g"))
    assert changed != text
    with pytest.raises(SourceIsTargetError):
        zd.load_plan(changed)
    assert (group["a"][...] == 7).all()


def test_what_is_replaced_must_be_told_from_what_is_written(tmp_path):
    source = source_at(tmp_path / "a.zarr")
    zd.rechunk(source, tmp_path / "b.zarr", chunks=16)
    plan = zd.plan_rechunk(source, tmp_path / "b.zarr", chunks=16, overwrite=True)
    with pytest.raises(PlanError, match="Delete it before"):
        plan.to_json()


def test_arrays_in_memory_have_no_plan_files():
    plan = zd.plan_rechunk(source_at({}), {}, chunks=16)
    with pytest.raises(StoreError, match="memory of this process"):
        plan.to_json()


# --- stores without their secrets ---------------------------------------------------------------

SECRETS = ("hunter2", "AKIA", "bearer")
OPTIONS = {
    "key": "AKIA",
    "secret": "hunter2",
    "token": "bearer",
    "anon": False,
    "profile": "mine",
    "endpoint_url": "http://127.0.0.1:9",
    "client_kwargs": {"aws_secret_access_key": "hunter2", "region_name": "eu"},
    "headers": {"Authorization": "bearer"},
}


@pytest.mark.parametrize(
    "store",
    [
        FsspecStore("s3://bucket/a.zarr", json.dumps(OPTIONS)),
        FsspecStore("ftp://me:hunter2@host/a.zarr"),
        HTTPStore.from_url(
            "https://me:hunter2@host/a.zarr?token=bearer", {"headers": {"X-Token": "bearer"}}
        ),
    ],
    ids=["s3", "ftp", "http"],
)
def test_no_secret_is_described(store):
    text = json.dumps(to_config(store))
    assert not any(secret in text for secret in SECRETS)
    assert "a.zarr" in text


def test_a_password_in_a_url_is_an_option_or_refused():
    place, login = split_credentials("ftp://me:hunt%40er2@host:21/a.zarr")
    assert place == "ftp://host:21/a.zarr"
    assert login == {"username": "me", "password": "hunt@er2"}
    account = "abfs://container@account.dfs.core.windows.net/a.zarr"
    assert split_credentials(account) == (account, {})
    with pytest.raises(StoreError, match="storage_options") as caught:
        FsspecStore.from_url("s3://me:hunter2@bucket/a.zarr", {})
    assert "hunter2" not in str(caught.value)


def test_what_says_where_it_is_stays():
    described = to_config(FsspecStore("s3://bucket/a.zarr", json.dumps(OPTIONS)))
    assert described == {
        "url": "s3://bucket/a.zarr",
        "options": {
            "anon": False,
            "profile": "mine",
            "endpoint_url": "http://127.0.0.1:9",
            "client_kwargs": {"region_name": "eu"},
        },
    }


@pytest.mark.parametrize(
    "store",
    [
        LocalStore("/data/a.zarr", fsync=True),
        PrefixStore(LocalStore("/data/a.zarr"), "b/c/"),
        FsspecStore("memory://a.zarr"),
    ],
    ids=["local", "below", "fsspec"],
)
def test_a_store_is_the_same_after_it_was_described(store):
    assert from_config(json.loads(json.dumps(to_config(store)))) == store
    assert to_config(ReadOnly(store)) == to_config(store)


ENCRYPTED = {"ServerSideEncryption": "aws:kms"}


@pytest.mark.parametrize(
    ("url", "options", "needs"),
    [
        ("s3://bucket/a", {"s3_additional_kwargs": ENCRYPTED}, ["s3_additional_kwargs"]),
        ("s3://bucket/a", {"client_kwargs": {"verify": "/ca.pem"}}, ["client_kwargs"]),
        ("simplecache::s3://bucket/a", {"s3": {"endpoint_url": "http://h"}}, ["s3"]),
        ("s3://bucket/a", {"key": "AKIA", "secret": "hunter2", "asynchronous": True}, []),
        ("s3://bucket/a", {"client_kwargs": {"region_name": "eu"}, "version_aware": False}, []),
    ],
)
def test_options_that_are_not_kept_must_be_given_again(monkeypatch, url, options, needs):
    """Else a plan in a file would write without encryption, or to another service."""
    described = json.loads(json.dumps(to_config(FsspecStore.from_url(url, options))))
    assert described.get("needs", []) == needs
    if needs:
        with pytest.raises(StoreError, match=f"{needs[0]}.*FSSPEC_S3"):
            from_config(described, {"anon": True} if "::" not in url else {})
        if "::" not in url:
            monkeypatch.setitem(conf, "s3", {**options, "anon": True})
            assert from_config(described).url == url
    assert from_config(described, {**options, "backend": "fsspec"}).url == url


def test_each_service_is_given_its_own_options(tmp_path):
    given = {"s3": {"key": "AKIA", "secret": "hunter2"}, "gs": {"token": "anon"}}
    local = LocalStore(str(tmp_path))
    s3, gs = (FsspecStore(f"{scheme}://bucket/a") for scheme in ("s3", "gs"))
    for store in (local, s3, gs):
        opened = from_config(to_config(store), given)
        assert opened.url == store.url
        if store is not local:
            assert opened.settings() == given[store.url[:2]]
    assert from_config(to_config(local), given["s3"]) == local
    with pytest.raises(StoreError, match="no mapping"):
        from_config(to_config(s3), {"s3": "AKIA"})


@pytest.mark.parametrize(
    "described",
    [
        {"options": {"key": "AKIA"}},
        {"options": {"client_kwargs": {"verify": False}}},
        {"below": "../other"},
        {"below": "/etc"},
    ],
    ids=["key", "client", "above", "absolute"],
)
def test_a_description_by_a_stranger_leads_nowhere_else(tmp_path, described):
    with pytest.raises(StoreError):
        from_config({"url": str(tmp_path / "a"), **described})


@pytest.mark.parametrize("url", [None, 7, 1.5, [], ["a"], {"a": 1}, True])
@pytest.mark.parametrize("side", ["source", "target"])
def test_a_location_that_is_no_text_is_refused(tmp_path, monkeypatch, side, url):
    """Its text was taken for the name of a folder, such as "None" in the working directory."""
    monkeypatch.chdir(tmp_path)
    source = source_at(tmp_path / "a.zarr", shape=(4, 4), chunks=(4, 4))
    plan = json.loads(zd.plan_rechunk(source, tmp_path / "b.zarr", chunks=(2, 2)).to_json())
    plan[side]["store"]["url"] = url
    with pytest.raises(StoreError, match="is no text"):
        zd.load_plan(json.dumps(plan))
    assert [one.name for one in tmp_path.iterdir()] == ["a.zarr"]
