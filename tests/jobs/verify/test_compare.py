"""`zd.compare` and `zd.digest` against NumPy, in any layout, format and encoding."""

from __future__ import annotations

import json
import threading

import dask.array as da
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import zarr_dask as zd
from zarr_dask.cli import main
from zarr_dask.errors import ManifestError, NodeTypeError
from zarr_dask.jobs.engine.block_diff import mask_of_differences
from zarr_dask.jobs.engine.map_regions import boxes_for
from zarr_dask.jobs.verify.digest import add_hashes, digest_text, sum_of
from zarr_dask.stores import MemoryStore
from zarr_dask.stores.base import ReadPolicy
from zarr_dask.stores.wrappers.base import Recording

LAYOUTS = {
    "v3": {"chunks": (3, 4)},
    "sharded": {"chunks": (2, 2), "shards": (4, 6)},
    "rectilinear": {"chunks": ((1, 5, 2), 5)},
    "v2": {"chunks": (5, 7), "format": "v2", "codecs": [{"id": "zlib", "level": 1}], "order": "F"},
    "v1": {"chunks": (8, 3), "format": "v1"},
}


def stored(values, layout="v3", **options):
    more = {"shape": values.shape, "dtype": values.dtype} | LAYOUTS[layout] | options
    array = zd.create_array({}, **more)
    array[...] = values
    return array


def numbers(dtype="f8"):
    return np.random.default_rng(3).integers(-100, 100, (8, 12)).astype(dtype)


@pytest.mark.parametrize("b", LAYOUTS)
@pytest.mark.parametrize("a", LAYOUTS)
def test_layouts_and_formats_do_not_count(a, b):
    values = numbers()
    values[0, :3] = [np.nan, -0.0, np.inf]
    left, right = stored(values, a), stored(values, b, fill_value=7)
    found = zd.compare(left, right, digest=True)
    assert found
    assert found.equal
    assert found.exit_code == 0
    assert found.arrays[0].elements == 96
    assert found.digest == zd.digest(left) == zd.digest(right) == zd.digest(values)


@pytest.mark.parametrize("kind", ["numpy", "dask", "stored"])
def test_first_differences_are_named(kind):
    values = numbers("i4")
    other = values.copy()
    for at in [(7, 11), (0, 5), (3, 2)]:
        other[at] += 1000
    make = {"numpy": np.asarray, "dask": lambda x: da.from_array(x, (5, 5)), "stored": stored}
    array = stored(values, "sharded")
    for a, b in ((array, make[kind](other)), (make[kind](other), array)):
        found = zd.compare(a, b)
        assert not found
        (one,) = found.arrays
        assert one.differing == 3
        assert [at for at, _, _ in one.first] == [(0, 5), (3, 2), (7, 11)]
        x, y = (values, other) if a is array else (other, values)
        assert [(p, q) for _, p, q in one.first] == [(x[at], y[at]) for at, _, _ in one.first]
        assert zd.digest(a) != zd.digest(b)
        assert f"(0, 5): {x[0, 5]} and {y[0, 5]}" in str(found)
        assert "3 of 96 elements differ" in str(found)


DTYPES = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(),
    hnp.unsigned_integer_dtypes(),
    hnp.floating_dtypes(),
    hnp.complex_number_dtypes(sizes=(64, 128)),
    hnp.datetime64_dtypes(max_period="s", min_period="ns"),
    hnp.byte_string_dtypes(max_len=9),
    hnp.unicode_string_dtypes(max_len=3),
    hnp.array_dtypes(hnp.floating_dtypes(), max_size=3, allow_subarrays=True),
)


@given(data=st.data(), dtype=DTYPES)
def test_numpy_agrees(data, dtype):
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=3, max_side=6))
    elements = hnp.from_dtype(dtype)
    a = data.draw(hnp.arrays(dtype, shape, elements=elements, fill=st.nothing()))
    b = a.copy()
    for at in data.draw(st.lists(st.tuples(*(st.integers(0, n - 1) for n in shape)), max_size=4)):
        b[at] = data.draw(hnp.arrays(dtype, (), elements=elements))[()]
    for equal_nan in (True, False):
        expected = np.array(
            [not same(x, y, equal_nan) for x, y in zip(a.flat, b.flat, strict=True)]
        )
        mask = mask_of_differences(a, b, equal_nan=equal_nan)
        np.testing.assert_array_equal(mask.ravel(), expected)
    whole = tuple(slice(0, n, 1) for n in shape)
    equal = not mask_of_differences(a, b, equal_nan=True).any()
    assert (sum_of(a, whole, shape) == sum_of(b, whole, shape)) == equal


def same(x, y, equal_nan):
    """Element by element, with Python's own comparison."""
    if isinstance(x, np.void):
        pairs = zip(x, y, strict=True)
        return all(
            same(p, q, equal_nan)
            for one, other in pairs
            for p, q in zip(np.ravel(one), np.ravel(other), strict=True)
        )
    if isinstance(x, np.complexfloating):
        return same(x.real, y.real, equal_nan) and same(x.imag, y.imag, equal_nan)
    if isinstance(x, np.datetime64):
        return bool(x == y) or (equal_nan and np.isnat(x) and np.isnat(y))
    if isinstance(x, np.floating):
        return bool(x == y) or (equal_nan and bool(np.isnan(x)) and bool(np.isnan(y)))
    return bool(x == y)


@given(data=st.data())
def test_digests_ask_for_no_blocks(data):
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=3, max_side=9))
    values = np.random.default_rng(1).normal(size=shape)
    cells = [data.draw(st.integers(1, 9)) for _ in shape]
    total = (0, 0)
    grid = zd.create_array({}, shape=shape, dtype="f8", chunks=tuple(cells)).meta.grid
    parts = list(grid.parts(grid.everything))
    for part in data.draw(st.permutations(parts)):
        total = add_hashes(total, sum_of(values[part.out] if shape else values, part.out, shape))
    assert digest_text(shape, values.dtype, total) == zd.digest(values)


def test_the_digest_of_a_place(tmp_path):
    values = np.arange(12.0).reshape(3, 4)
    zd.to_zarr(da.from_array(values), tmp_path / "a.zarr", shards=(4, 4), chunks=(2, 2))
    for place in (tmp_path / "a.zarr", str(tmp_path / "a.zarr")):
        assert zd.digest(place) == zd.digest(values)
    with pytest.raises(FileNotFoundError):
        zd.digest(tmp_path / "b.zarr")


def test_digests_are_what_they_were():
    """A digest that is kept must mean the same in years."""
    values = np.arange(24, dtype="<i4").reshape(4, 6)
    assert zd.digest(values) == zd.digest(values.astype(">i4")) == PINNED["int32"]
    assert zd.digest(np.array([1.5, -0.0, np.nan])) == PINNED["float64"]
    texts = zd.create_array({}, shape=(3,), dtype=str)
    texts[...] = ["a", "", "日本"]
    assert zd.digest(texts) == PINNED["texts"]


PINNED = {
    "int32": "zd1-b3729bfe612c08c22e76afcad40c81d7",
    "float64": "zd1-73dcc8e8c08bd08603e891ec8ff11c68",
    "texts": "zd1-7f715e92154cb93921ceb13b83cf07a7",
}


def test_digests_tell_shape_type_place_and_value():
    values = np.arange(6, dtype="i4")
    others = [
        values.reshape(2, 3),
        values.astype("i8"),
        values[::-1],
        np.array([0, 1, 2, 3, 5, 4], "i4"),
        values + np.array([0, 0, 1, -1, 0, 0], "i4"),
        np.append(values, np.int32(0)),
    ]
    digests = {zd.digest(one) for one in [values, *others]}
    assert len(digests) == 7
    assert all(text.startswith("zd1-") and len(text) == 36 for text in digests)


@pytest.mark.parametrize(
    "dtype", ["M8[s]", "m8[ms]", "U3", "f4", "i8", "c8", [("a", "M8[s]"), ("b", "U2")]]
)
def test_digests_are_those_of_either_byte_order(dtype):
    native = np.arange(6).astype(dtype) if isinstance(dtype, str) else np.zeros(6, dtype)
    if native.dtype.names:
        native["a"], native["b"] = range(6), "xy"
    swapped = native.astype(native.dtype.newbyteorder())
    assert zd.digest(swapped) == zd.digest(native)


def test_digests_are_kept_in_manifests(tmp_path):
    values, kept = numbers("i4"), tmp_path / "kept"
    zd.to_zarr(da.from_array(values, (4, 6)), tmp_path / "run", "a", manifest=kept)
    before = zd.Manifest.read(kept)
    text = zd.digest(zd.open(tmp_path / "run", "a"), manifest=kept)
    after = zd.Manifest.read(kept)
    assert after.digest == text == zd.digest(values)
    assert (after.objects, after.empty, after.array) == (before.objects, before.empty, before.array)
    assert before.digest == ""
    with pytest.raises(ManifestError, match="no manifest"):
        zd.digest(values, manifest=tmp_path / "none")


def test_large_blocks_are_hashed_in_slabs():
    values = np.random.default_rng(2).integers(0, 99, (3, 70_001)).astype("u1")
    a = zd.create_array({}, shape=values.shape, dtype="u1", chunks=(1, 40_000))
    a[...] = values
    assert zd.digest(a) == zd.digest(values)
    assert zd.digest(np.ones((0, 4))) != zd.digest(np.ones((4, 0)))


def test_texts_and_byte_strings():
    values = np.array(["a", "bc", ""], object)
    texts = zd.create_array({}, shape=(3,), dtype=str, chunks=2)
    texts[...] = values
    fixed = stored_texts(np.array(["a", "bc", ""], "U2"))
    found = zd.compare(texts, fixed)
    assert [d.kind for d in found.differences] == ["dtype"]  # the values are the same
    assert found.arrays[0].differing == 0
    raw = zd.create_array({}, shape=(3,), dtype=bytes, chunks=1)
    raw[...] = np.array([b"a", b"bc", b""], object)
    assert zd.compare(raw, raw)
    assert zd.digest(raw) != zd.digest(texts)


@pytest.mark.parametrize("dtype", [object, np.dtypes.StringDType()])
def test_stored_texts_are_those_in_memory(tmp_path, dtype):
    values = np.array([["a", "bc"], ["", "ü" * 99]], dtype)
    zd.to_zarr(da.from_array(values, chunks=1), tmp_path / "a.zarr", chunks=(1, 2))
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "a.zarr")[...], values)
    for one in (values, da.from_array(values, chunks=1)):
        assert zd.compare(tmp_path / "a.zarr", one)
        assert zd.compare(one, tmp_path / "a.zarr")
    other = values.copy()
    other[1, 0] = "x"
    assert [at for at, *_ in zd.compare(tmp_path / "a.zarr", other).arrays[0].first] == [(1, 0)]
    raw = np.array([[b"a", b"bc"], [b"", b"x"]], object)
    assert zd.compare(tmp_path / "a.zarr", raw).arrays[0].differing == 4


def test_scalars_of_numpy_are_arrays_without_dimensions(tmp_path):
    zd.to_zarr(da.from_array(np.array(2 + 3j)), tmp_path / "a.zarr")
    assert zd.compare(tmp_path / "a.zarr", np.complex128(2 + 3j))
    assert not zd.compare(np.complex128(2), tmp_path / "a.zarr")
    assert zd.compare(np.str_(tmp_path / "a.zarr"), tmp_path / "a.zarr")  # but texts are places


def stored_texts(values):
    array = zd.create_array({}, shape=values.shape, dtype=values.dtype, chunks=2)
    array[...] = values
    return array


def test_shapes_and_types():
    a = stored(numbers("i4"))
    found = zd.compare(a, stored(numbers("i4")[:, :9], chunks=(3, 4)))
    assert [d.kind for d in found.differences] == ["shape"]
    found = zd.compare(a, numbers("i8"))
    assert [(d.kind, d.a, d.b) for d in found.differences] == [("dtype", "int32", "int64")]
    assert found.arrays[0].differing == 0
    assert not found
    found = zd.compare(a, np.zeros((8, 12), "M8[s]"))
    assert not found.arrays  # nothing to compare
    assert zd.compare(np.full((), 3, "i4"), np.array(3, "i4"))


def hierarchy(**more):
    root = zd.create_group({}, attributes={"title": "t", "n": float("nan") if more else 1})
    root.create_array("x", shape=(3,), dtype="i4", dimension_names=["x"])[...] = [1, 2, 3]
    root.create_array("deep/y", shape=(3,), dtype="i4", attributes={"units": "m"})
    return root


def test_hierarchies():
    a, b = hierarchy(), hierarchy()
    assert zd.compare(a, b)
    b["x"].store.values["x/zarr.json"] = b["x"].store.values["x/zarr.json"].replace(b'"x"', b'"z"')
    zd.open_array(b.store, "deep/y", mode="r+")[1] = 5
    zd.open_array(b.store, "deep/y", mode="r+").update_attributes({"units": "km", "more": 1})
    b.create_group("only")
    a.create_array("kind", shape=(), dtype="i4")
    b.create_group("kind")
    found = zd.compare(a, b)
    assert [(d.path, d.kind) for d in found.differences] == [
        ("deep/y", "attributes"),
        ("deep/y", "attributes"),
        ("kind", "kind"),
        ("only", "only in b"),
        ("x", "dimension_names"),
    ]
    assert {one.path: one.differing for one in found.arrays} == {"deep/y": 1, "x": 0}
    assert "units='m' and units='km'" in str(found)
    kinds = [d.kind for d in zd.compare(a, b, attributes=False).differences]
    assert "attributes" not in kinds
    with pytest.raises(NodeTypeError, match=r"a group.*an array"):
        zd.compare(a, b["x"])


def test_formats_with_names_in_attributes():
    v2 = zd.create_array({}, shape=(3,), dtype="i4", dimension_names=["x"], format="v2")
    v3 = zd.create_array({}, shape=(3,), dtype="i4", dimension_names=["x"])
    assert zd.compare(v2, v3)


def test_every_object_is_decoded_once():
    store = Recording(MemoryStore())
    other = Recording(MemoryStore())
    options = {"shape": (60, 60), "dtype": "i4"}
    zd.create_array(store, **options, chunks=(6, 10))[...] = 1
    zd.create_array(other, **options, chunks=(4, 15))[...] = 1
    for one in (store, other):
        one.requests.clear()
    assert zd.compare(zd.open_array(store), zd.open_array(other))
    for one in (store, other):
        keys = [request.key for request in one.requests if request.key.startswith("c/")]
        assert len(keys) == len(set(keys)) == 60


class AskedTogether(MemoryStore):
    """A service that answers when another one has been asked, too."""

    coalescing = ReadPolicy(gap=0, largest=1 << 20, max_concurrent_requests=8)

    def __init__(self):
        super().__init__()
        self.asked = threading.Event()
        self.other = self

    def get_ranges(self, requests):
        if "c/" in requests[0][0]:
            self.asked.set()
            assert self.other.asked.wait(20), "the other array was not read at the same time"
        return super().get_ranges(requests)


def test_what_is_far_is_read_at_the_same_time():
    a, b = AskedTogether(), AskedTogether()
    for store in (a, b):
        zd.create_array(store, shape=(8, 12), dtype="i4", chunks=(4, 12))[...] = numbers("i4")
    a.other, b.other = b, a
    assert zd.compare(zd.open_array(a), zd.open_array(b))


def test_boxes_cut_no_stored_object():
    a = zd.create_array({}, shape=(100, 90), dtype="u1", chunks=((10, 20, 30, 40), 7))
    b = zd.create_array({}, shape=(100, 90), dtype="u1", chunks=((30, 30, 40), 9))
    boxes = boxes_for(a.shape, a.dtype, [a, b])
    for region in (part.out for part in boxes.parts(boxes.everything)):
        for grid in (a.meta.grid, b.meta.grid):
            assert all(part.whole for part in grid.parts(region))
    wide = zd.create_array({}, shape=(1 << 20, 1 << 20), dtype="f4", chunks=(1 << 12, 1 << 10))
    tall = zd.create_array({}, shape=(1 << 20, 1 << 20), dtype="f4", chunks=(999, 1001))
    boxes = boxes_for(wide.shape, wide.dtype, [wide, tall])
    assert boxes.largest_cell[0] * boxes.largest_cell[1] * 4 <= 1 << 27


def test_samples():
    values = numbers("i4")
    a = zd.create_array({}, shape=(1000, 1000), dtype="f8", chunks=(100, 1000))
    one = zd.compare(a, a, sample=1)
    assert 0 < one.arrays[0].elements <= 1_000_000
    assert "a sample" in str(one)
    assert one.arrays[0].digest is None
    assert json.dumps(zd.compare(a, a, sample=np.int64(3)).to_json()["sample"]) == "3"
    for sample in (0, -1, 0.0, 1.5, float("nan"), "x"):
        with pytest.raises(ValueError, match="sample="):
            zd.compare(a, a, sample=sample)
    with pytest.raises(NodeTypeError, match="dask"):
        zd.compare(stored(values), da.from_array(values), sample=0.5)
    with pytest.raises(NodeTypeError, match="two dask arrays"):
        zd.compare(da.from_array(values), da.from_array(values))


def test_on_a_cluster(tmp_path, client):
    values = np.arange(400, dtype="f4").reshape(20, 20)
    for name, chunks in (("a", (3, 20)), ("b", (20, 7))):
        zd.create_array(tmp_path / name, shape=(20, 20), dtype="f4", chunks=chunks)[...] = values
    found = zd.compare(tmp_path / "a", tmp_path / "b", client=client, digest=True)
    assert found
    assert found.digest == zd.digest(values, client=client)
    lazy = da.from_array(values, 6)
    assert zd.compare(tmp_path / "b", lazy, client=client)
    assert zd.digest(lazy, client=client) == found.digest


def test_command(tmp_path, capsys):
    def run(*arguments):
        with pytest.raises(SystemExit) as end:
            main(["compare", *map(str, arguments)])
        return end.value.code or 0, capsys.readouterr().out

    values = numbers("i4")
    for name, chunks in (("a", 3), ("b", 5)):
        zd.create_array(tmp_path / name, shape=(8, 12), dtype="i4", chunks=chunks)[...] = values
    code, text = run(tmp_path / "a", tmp_path / "b", "--digest")
    assert code == 0
    assert "equal (96 elements compared)" in text
    assert zd.digest(values) in text
    zd.open_array(tmp_path / "b", mode="r+")[2, 3] = 555
    code, text = run(tmp_path / "a", tmp_path / "b", "--json", "--sample", "1.0")
    assert code == 1
    document = json.loads(text)["result"]
    assert document["arrays"][0]["first"] == [
        {"coords": [2, 3], "a": str(values[2, 3]), "b": "555"}
    ]
    assert run(tmp_path / "a", tmp_path / "b", "--sample", "2.5")[0] == 2
    assert run(tmp_path / "a", tmp_path / "b", "--sample", "x")[0] == 2
