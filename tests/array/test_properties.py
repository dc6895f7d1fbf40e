"""Any array, any grid, any basic selection: what NumPy does, after any sequence of writes.

The model is a NumPy array of the same values; both are compared bit by bit, so that NaN payloads
and signs of zeros count.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import zarr_dask as zd
from zarr_dask.stores import MemoryStore

DTYPES = (
    "bool",
    *(f"{sign}int{size}" for sign in ("", "u") for size in (8, 16, 32, 64)),
    *("float16", "float32", "float64", "complex64", "complex128"),
)

V3_CODECS = (
    [],
    [{"name": "crc32c"}],
    [{"name": "gzip", "configuration": {"level": 1}}],
    [{"name": "zstd", "configuration": {"level": 1, "checksum": True}}],
    [
        {"name": "bytes", "configuration": {"endian": "big"}},
        {"name": "zstd", "configuration": {"level": 0, "checksum": False}},
        {"name": "crc32c"},
    ],
)
V2_CODECS = ([], [{"id": "zlib", "level": 1}], [{"id": "crc32"}, {"id": "lz4"}])


@dataclass(frozen=True)
class Layout:
    """Everything that ``create_array`` is told."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    options: dict[str, Any]

    def create(self, store: MemoryStore) -> zd.Array:
        return zd.create_array(store, shape=self.shape, dtype=self.dtype, **self.options)

    def model(self) -> np.ndarray:
        return np.full(self.shape, self.options["fill_value"], self.dtype)


def some_bits(dtype: np.dtype[Any], shape: tuple[int, ...], seed: int) -> np.ndarray:
    """An array of any bit patterns that the data type has, the peculiar ones often."""
    random = np.random.default_rng(seed)
    if dtype.kind == "b":
        return random.integers(0, 2, shape).astype(bool)
    raw = random.bytes(math.prod(shape) * dtype.itemsize)
    values = np.frombuffer(raw, dtype).copy()
    if dtype.kind in "fc":
        numbers = values.view(values.real.dtype)
        chosen = random.random(numbers.size) < random.choice((0, 0.5, 1))
        numbers[chosen] = random.choice(PECULIAR[numbers.itemsize], np.count_nonzero(chosen))
    return values.reshape(shape)


def _peculiar(itemsize: int, payload: int) -> np.ndarray:
    """Both zeros, both infinities, the canonical NaN and another one."""
    numbers = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, np.nan], f"f{itemsize}")
    numbers[-1:].view(f"u{itemsize}")[...] |= payload
    return numbers


PECULIAR = {size: _peculiar(size, payload=3) for size in (2, 4, 8)}


SEEDS = st.integers(0, 2**32 - 1)


@st.composite
def layouts(draw: st.DrawFn, min_dims: int = 0) -> Layout:
    """Any shape, data type, grid, codecs, order, keys and fill value of either format."""
    ndim = draw(st.integers(min_dims, 4), label="dimensions")
    side = st.integers(0, 9 if ndim < 3 else 5)
    shape = tuple(draw(side) for _ in range(ndim))
    chunks = tuple(draw(st.integers(1, max(2, size + 1))) for size in shape)
    dtype = np.dtype(draw(st.sampled_from(DTYPES), label="dtype"))
    version = draw(st.sampled_from(("v2", "v3")), label="format")
    fill = draw(st.one_of(st.just(dtype.type(0)), SEEDS.map(lambda s: some_bits(dtype, (), s)[()])))
    if version == "v2" and dtype.kind in "fc":
        fill = dtype.type(draw(st.sampled_from((0, -0.0, 1.5, np.nan, np.inf))))
    options: dict[str, Any] = {"format": version, "fill_value": fill, "chunks": chunks}
    options["chunk_key_encoding"] = {
        "name": draw(st.sampled_from(("default", "v2"))) if version == "v3" else "v2",
        "separator": draw(st.sampled_from("./")),
    }
    options["order"] = draw(st.sampled_from("CF"), label="order")
    if version == "v2":
        options["codecs"] = draw(st.sampled_from(V2_CODECS), label="codecs")
        return Layout(shape, dtype.newbyteorder(draw(st.sampled_from("<>"))), options)
    options |= _v3_grid(draw, shape, chunks, draw(st.sampled_from(V3_CODECS), label="codecs"))
    return Layout(shape, dtype, options)


def _v3_grid(
    draw: st.DrawFn, shape: tuple[int, ...], chunks: tuple[int, ...], codecs: list[dict[str, Any]]
) -> dict[str, Any]:
    """Chunks alone, in shards, or in shards of shards."""
    levels = draw(st.sampled_from((0, 0, 1, 1, 2)), label="levels of shards")
    if levels == 0:
        return {"codecs": codecs}
    factors = st.tuples(*[st.integers(1, 3) for _ in shape])
    shards = tuple(a * b for a, b in zip(chunks, draw(factors), strict=True))
    if levels == 1 and draw(st.booleans(), label="plain"):
        return {"codecs": codecs, "shards": shards}
    sharding = _sharding(draw, chunks, codecs)
    if levels == 1:
        return {"codecs": [sharding], "chunks": shards, "order": "C"}
    outer = tuple(a * b for a, b in zip(shards, draw(factors), strict=True))
    return {"codecs": [_sharding(draw, shards, [sharding])], "chunks": outer, "order": "C"}


def _sharding(
    draw: st.DrawFn, chunks: tuple[int, ...], codecs: list[dict[str, Any]]
) -> dict[str, Any]:
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    inner = codecs if any(c["name"] in {"bytes", "sharding_indexed"} for c in codecs) else None
    return {
        "name": "sharding_indexed",
        "configuration": {
            "chunk_shape": list(chunks),
            "codecs": inner or [little, *codecs],
            "index_codecs": [little, *([{"name": "crc32c"}] if draw(st.booleans()) else [])],
            "index_location": draw(st.sampled_from(("end", "start"))),
        },
    }


# --- selections ----------------------------------------------------------------------------------

INTEGER_TYPES = (int, np.int8, np.int64)


@st.composite
def _integers(draw: st.DrawFn, size: int) -> Any:
    number = draw(st.integers(-size, size - 1))
    if number >= 0 and draw(st.booleans()):
        return np.uint16(number)
    return draw(st.sampled_from(INTEGER_TYPES))(number)


@st.composite
def _slices(draw: st.DrawFn, size: int) -> slice:
    """Ends inside, outside and far outside of the array, by the front and by the back."""
    end = st.none() | st.integers(-size - 3, size + 3) | st.sampled_from((-(10**12), 10**12))
    step = st.none() | st.integers(-4, 4).filter(bool) | st.sampled_from((-(10**12), 10**12))
    parts = draw(end), draw(end), draw(step)
    if draw(st.booleans()):
        return slice(*parts)
    return slice(*(part if part is None else np.int64(part) for part in parts))


@st.composite
def selections(draw: st.DrawFn, shape: tuple[int, ...]) -> Any:
    """Any basic selection that NumPy takes for the shape."""
    items: list[Any] = []
    for size in shape:
        kinds = _slices(size) if size == 0 else st.one_of(_slices(size), _integers(size))
        items.append(draw(kinds))
    if draw(st.booleans(), label="Ellipsis"):
        # In place of any run of dimensions, an empty one too.
        start = draw(st.integers(0, len(items)))
        stop = draw(st.integers(start, len(items)))
        items[start:stop] = [...]
    else:
        items = items[: draw(st.integers(0, len(items)))]
    for _ in range(draw(st.sampled_from((0, 0, 0, 1, 2)), label="newaxis")):
        items.insert(draw(st.integers(0, len(items))), None)
    if len(items) == 1 and draw(st.booleans()):
        return items[0]
    return tuple(items)


@st.composite
def values_for(draw: st.DrawFn, shape: tuple[int, ...], layout: Layout) -> Any:
    """A scalar or an array that broadcasts to the shape."""
    dtype = layout.dtype
    kind = draw(st.sampled_from(("array", "scalar", "python", "fill", "broadcast", "list")))
    seed = draw(SEEDS)
    if kind == "fill":
        return layout.options["fill_value"]
    if kind == "scalar":
        return some_bits(dtype.newbyteorder("="), (), seed)[()]
    if kind == "python":
        return {"b": bool, "i": int, "u": int, "f": float, "c": complex}[dtype.kind](seed % 100)
    if kind == "broadcast":
        kept = shape[draw(st.integers(0, len(shape))) :]
        shape = tuple(1 if draw(st.booleans()) else size for size in kept)
    value = some_bits(dtype.newbyteorder(draw(st.sampled_from("<>"))), shape, seed)
    if kind == "list" and value.size:
        return (np.arange(value.size).reshape(shape) % 100).astype(dtype).tolist()
    if draw(st.booleans(), label="Fortran order"):
        value = np.array(value, order="F")
    return value


def assert_same(got: Any, want: Any) -> None:
    """Equal in shape, data type and every bit."""
    got, want = np.asarray(got), np.asarray(want)
    native = want.dtype.newbyteorder("=")
    assert got.shape == want.shape
    assert got.dtype.newbyteorder("=") == native
    assert got.astype(native).tobytes() == want.astype(native).tobytes()


def filled(layout: Layout, seed: int) -> tuple[MemoryStore, zd.Array, np.ndarray]:
    """A store, an array in it with a region written, and its model."""
    store = MemoryStore()
    array, model = layout.create(store), layout.model()
    region = tuple(slice(size // 3, None) for size in layout.shape)
    model[region] = some_bits(layout.dtype, layout.shape, seed)[region]
    array[region] = model[region]
    return store, array, model


# --- properties ----------------------------------------------------------------------------------


@given(st.data(), layouts(), SEEDS)
def test_reads_are_numpys(data, layout, seed):
    _, array, model = filled(layout, seed)
    assert_same(array[...], model)
    assert array.shape == model.shape
    assert array.ndim == model.ndim
    assert array.size == model.size
    assert array.nbytes == model.nbytes
    for _ in range(3):
        selection = data.draw(selections(layout.shape))
        assert_same(array[selection], model[selection])


@given(st.data(), layouts())
def test_writes_are_numpys(data, layout):
    store = MemoryStore()
    array, model = layout.create(store), layout.model()
    for _ in range(data.draw(st.integers(1, 5))):
        selection = data.draw(selections(layout.shape))
        value = data.draw(values_for(model[selection].shape, layout))
        model[selection] = value
        array[selection] = value
        assert_same(array[...], model)
    assert_same(zd.open_array(store, format=layout.options["format"])[...], model)


@given(st.data(), layouts(), SEEDS)
def test_threads_make_no_difference(data, layout, seed):
    _, array, model = filled(layout, seed)
    region = tuple(
        slice(*sorted(data.draw(st.tuples(st.integers(0, size), st.integers(0, size)))))
        for size in layout.shape
    )
    one = array.read(region, threads=1)
    many = array.read(region, threads=None)
    three = array.read(region, threads=3)
    assert_same(one, model[region])
    assert_same(many, one)
    assert_same(three, one)


@given(st.data(), layouts(), SEEDS)
def test_reads_into_any_array(data, layout, seed):
    """``out=`` contiguous, in Fortran order, with strides, or turned around."""
    _, array, model = filled(layout, seed)
    kind = data.draw(st.sampled_from(("C", "F", "strides", "turned")))
    shape, native = model.shape, layout.dtype.newbyteorder("=")
    if kind in {"C", "F"}:
        out = np.empty(shape, native, order=kind)
    else:
        wide = np.empty(tuple(2 * size + 1 for size in shape), native)
        out = wide[..., *(slice(1, 2 * size + 1, 2) for size in shape)]
        if kind == "turned":
            out = out[..., *(slice(None, None, -1) for _ in shape)]
    assert out.shape == shape
    threads = data.draw(st.sampled_from((1, None)))
    result = array.read(tuple(slice(0, size) for size in shape), out=out, threads=threads)
    assert result is out
    assert_same(out, model)


WRONG = st.sampled_from((1.5, "x", object(), b"0"))


@given(st.data(), layouts(), SEEDS)
def test_index_errors_are_numpys(data, layout, seed):
    """Where NumPy raises IndexError, reads and writes do, and nothing is written."""
    store, array, model = filled(layout, seed)
    items = list(data.draw(selections(layout.shape).filter(lambda item: isinstance(item, tuple))))
    kind = data.draw(st.sampled_from(("beyond", "too many", "two ellipses", "not an index")))
    if kind == "beyond":
        assume(layout.shape)
        axis = data.draw(st.integers(0, len(layout.shape) - 1))
        size = layout.shape[axis]
        beyond = st.integers(size, size + 3) | st.integers(-size - 3, -size - 1)
        far = st.sampled_from((2**40, -(2**40)))
        items = [*([slice(None)] * axis), data.draw(beyond | far)]
    elif kind == "too many":
        items = [slice(None)] * (len(layout.shape) + 1)
    elif kind == "two ellipses":
        items = [..., ...]
    else:
        items.insert(data.draw(st.integers(0, len(items))), data.draw(WRONG))
    selection = tuple(items)
    note(f"{selection=}")
    with pytest.raises(IndexError):
        model[selection]
    before = dict(store.values)
    with pytest.raises(zd.errors.SelectionError):
        array[selection]
    with pytest.raises(zd.errors.SelectionError):
        array[selection] = 0
    assert store.values == before


@given(st.data(), layouts(min_dims=1), SEEDS)
def test_values_that_do_not_broadcast(data, layout, seed):
    """NumPy raises ValueError, and so do we, before anything is written."""
    store, array, model = filled(layout, seed)
    selection = data.draw(selections(layout.shape))
    shape = model[selection].shape
    value = np.zeros((*shape[:-1], shape[-1] + 2) if shape else (2,), layout.dtype)
    # TypeError where a complex scalar is assigned to
    with pytest.raises((ValueError, TypeError)):
        model[selection] = value
    before = dict(store.values)
    with pytest.raises(ValueError):  # noqa: PT011 - ours may differ from all of them
        array[selection] = value
    assert store.values == before


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("int8", 300),
        ("uint8", -1),
        ("int16", [1, 40000]),
        ("uint64", 2**64),
        ("float32", 1 + 2j),
        ("float64", "x"),
    ],
)
def test_values_that_the_data_type_cannot_hold(dtype, value):
    """Python numbers that NumPy refuses are not written as something else."""
    with pytest.raises((OverflowError, TypeError, ValueError)):
        np.zeros(2, dtype)[...] = value
    store = MemoryStore()
    array = zd.create_array(store, shape=2, dtype=dtype)
    before = dict(store.values)
    with pytest.raises((OverflowError, TypeError, ValueError)):
        array[...] = value
    assert store.values == before


@given(layouts(), SEEDS)
def test_only_what_is_not_fill_is_stored(layout, seed):
    """Written back to the fill value, nothing is left but the document, and the end's objects."""
    store = MemoryStore()
    array = layout.create(store)
    empty = set(store.values)
    array[...] = layout.options["fill_value"]
    assert set(store.values) == empty
    array[...] = some_bits(layout.dtype, layout.shape, seed)
    grid = array.meta.grid
    ends = {
        array.key(part.coords) for part in grid.parts(grid.everything) if grid.cuts(part.coords)
    }
    left = empty | (ends & set(store.values))
    array[...] = layout.options["fill_value"]
    assert set(store.values) == left
    assert_same(array[...], layout.model())


@pytest.mark.parametrize("selection", [True, np.array(False), 1.0, "x", [0.5]])
def test_what_selects_nothing_is_refused(selection):
    """Of these NumPy takes single booleans, which add a dimension."""
    array = zd.create_array(MemoryStore(), shape=2, dtype="u1")
    with pytest.raises(zd.errors.SelectionError):
        array[selection]
    with pytest.raises(zd.errors.SelectionError):
        array[selection] = 1


def test_a_step_of_zero_is_refused():
    array = zd.create_array(MemoryStore(), shape=2, dtype="u1")
    with pytest.raises(zd.errors.SelectionError, match="zero"):
        array[::0]


# --- any sequence of reads, writes and reopenings -----------------------------------------------


class ArrayMachine(RuleBasedStateMachine):
    """One array through a life of writes; after every step it is its model."""

    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore()
        self.attributes: dict[str, Any] = {}

    @initialize(layout=layouts())
    def create(self, layout: Layout) -> None:
        self.layout = layout
        self.array = layout.create(self.store)
        self.model = layout.model()

    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        selection = data.draw(selections(self.layout.shape))
        value = data.draw(values_for(self.model[selection].shape, self.layout))
        self.model[selection] = value
        self.array[selection] = value

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        selection = data.draw(selections(self.layout.shape))
        assert_same(self.array[selection], self.model[selection])

    @rule()
    def clear(self) -> None:
        self.model[...] = self.layout.options["fill_value"]
        self.array[...] = self.layout.options["fill_value"]

    @rule(detect=st.booleans())
    def reopen(self, detect: bool) -> None:
        version = None if detect else self.layout.options["format"]
        self.array = zd.open_array(self.store, mode="r+", format=version)

    @rule(value=st.integers() | st.text() | st.none())
    def set_attribute(self, value: Any) -> None:
        self.attributes["key"] = value
        self.array = self.array.update_attributes({"key": value})

    @invariant()
    def is_its_model(self) -> None:
        if hasattr(self, "array"):
            assert_same(self.array[...], self.model)
            assert dict(self.array.attributes) == self.attributes


TestSequences = ArrayMachine.TestCase
TestSequences.settings = settings(
    # A life is many writes long: fewer of them than examples of single writes.
    max_examples=settings().max_examples // 2,
    stateful_step_count=20,
    suppress_health_check=[HealthCheck.too_slow],
)
