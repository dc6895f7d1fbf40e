"""The planner's arithmetic against counting by hand, and its promises on any pair of layouts."""

from __future__ import annotations

from itertools import accumulate, pairwise, product
from math import prod

import dask
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import zarr_dask as zd
from zarr_dask.codecs.base import CodecMemory
from zarr_dask.codecs.throughput import speeds_of
from zarr_dask.errors import MemoryBudgetError
from zarr_dask.grid.grid import Edges, Fixed, Grid
from zarr_dask.jobs.engine.cost_model import Layout, StagePlan
from zarr_dask.jobs.engine.plan import Costs, format_bytes, parse_bytes
from zarr_dask.jobs.engine.predict import CostModel, seconds
from zarr_dask.jobs.rechunk import planner
from zarr_dask.jobs.rechunk.planner import alternatives, plan_stages
from zarr_dask.stores import MemoryStore, Recording

LENGTHS = st.integers(1, 40)
MODEL = CostModel()
MB = 1_000_000


def pairs_by_hand(extent: int, cell: int, box: int) -> int:
    """How many pairs of a cell and a box share an element."""
    return len({(i // cell, i // box) for i in range(extent)})


@given(st.integers(0, 120), LENGTHS, LENGTHS)
def test_touched_is_what_counting_gives(extent, cell, box):
    assert Fixed(cell, extent).meetings(box) == pairs_by_hand(extent, cell, box)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), LENGTHS, st.integers(0, 3))
def test_touched_cells_of_their_own_sizes(edges, box, beyond):
    extent = max(sum(edges) - beyond, 0)
    cell_of = [number for number, edge in enumerate(edges) for _ in range(edge)]
    want = len({(cell_of[i], i // box) for i in range(extent)})
    assert Edges.of(edges, extent).meetings(box) == want


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), LENGTHS, st.integers(0, 8))
def test_lengths_of_touched_cells(sizes, box, beyond):
    extent = max(sum(sizes) - beyond, 0)
    cell_of = [number for number, size in enumerate(sizes) for _ in range(size)]
    pairs = {(cell_of[i], i // box) for i in range(extent)}
    assert Edges.of(sizes, extent).met_length(box) == sum(sizes[cell] for cell, _ in pairs)


@given(st.integers(0, 120), LENGTHS, LENGTHS, st.booleans(), st.booleans())
def test_cells_within_one_interval(extent, cell, box, first, last):
    cells = [(a, min(a + cell, extent)) for a in range(0, extent, cell)]
    assert Fixed(cell, extent).uncut(box, first=first, last=last) == uncut(cells, box, first, last)


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=8),
    LENGTHS,
    st.integers(0, 8),
    st.booleans(),
    st.booleans(),
)
def test_cells_of_their_own_sizes_within_one_interval(sizes, box, beyond, first, last):
    extent = max(sum(sizes) - beyond, 0)
    starts = [0, *accumulate(sizes)]
    cells = [(a, min(b, extent)) for a, b in pairwise(starts) if a < extent]
    assert Edges.of(sizes, extent).uncut(box, first=first, last=last) == uncut(
        cells, box, first, last
    )


def uncut(cells, box, first, last):
    """By counting: the cells of which all elements lie in one interval."""
    left_out = {0 for _ in cells if first} | {len(cells) - 1 for _ in cells if last}
    return sum(
        len({i // box for i in range(*cell)}) == 1
        for n, cell in enumerate(cells)
        if n not in left_out
    )


# --- any pair of layouts ------------------------------------------------------------------------


@st.composite
def layouts(draw, max_dims=3, max_length=60):
    """A source, a target and an element size; either may be sharded."""
    ndim = draw(st.integers(1, max_dims))
    shape = tuple(draw(st.integers(1, max_length)) for _ in range(ndim))
    itemsize = draw(st.sampled_from((1, 2, 4, 8, 16)))
    return tuple(_layout(draw, shape, itemsize) for _ in range(2))


def _layout(draw, shape, itemsize):
    chunk = tuple(draw(st.integers(1, n + 2)) for n in shape)
    factors = (1,) * len(shape)
    if draw(st.booleans(), label="sharded"):
        factors = tuple(draw(st.integers(1, 3)) for _ in shape)
    stored = tuple(c * f for c, f in zip(chunk, factors, strict=True))
    working = draw(st.sampled_from([0, prod(chunk) * itemsize]))
    tables = draw(st.sampled_from([0, 5000]))
    kind = draw(st.sampled_from(["one", "other"]))  # an object in the other type is held besides
    return Layout(
        Grid.regular(shape, stored),
        chunk,
        itemsize,
        CodecMemory(working, working, encoder_state=tables),
        kind=kind,
    )


BUDGETS = st.floats(0, 1)


def budget_of(source, target, share):
    """From what the smallest task needs up to what the whole array needs."""
    least = StagePlan(source, target, target.object_shape).peak
    whole = tuple(
        -(-n // size) * size for n, size in zip(source.grid.shape, target.object_shape, strict=True)
    )
    most = StagePlan(source, target, whole).peak
    return int(least + share * max(most - least, 0)) + 1


@given(layouts(), BUDGETS, st.integers(1, 8))
def test_promises_of_every_plan(pair, share, threads):
    source, target = pair
    budget = budget_of(source, target, share)
    stages = plan_stages(source, target, budget, threads, MODEL)
    assert 1 <= len(stages) <= 4
    assert stages[0].source == source
    assert stages[-1].target == target
    for earlier, later in pairwise(stages):
        assert earlier.target == later.source
    for stage in stages:
        assert stage.peak == stage.memory(1) <= budget
        assert stage.memory(threads) <= threads * budget
        assert_boxes_are_whole_objects(stage)
        assert_boxes_cover_once(stage)


def test_boxes_that_do_not_exist_hold_nothing():
    """Boxes of three rows end with the array: there are none of the rest."""
    source = Layout(Grid.regular((21, 17), (15, 1)), (15, 1), 1, CodecMemory(15, 15))
    target = Layout(Grid.regular((21, 17), (3, 1)), (3, 1), 8, CodecMemory(24, 24))
    stage = StagePlan(source, target, (3, 1))
    assert stage.memory(1) == stage.peak


def assert_boxes_are_whole_objects(stage: StagePlan) -> None:
    """No stored object of the target lies in two boxes."""
    for border, objects, extent in zip(
        stage.box, stage.target.grid.dimensions, stage.target.grid.shape, strict=True
    ):
        assert border >= 1
        assert all(objects.is_boundary(position) for position in range(0, extent, border))


def assert_boxes_cover_once(stage: StagePlan) -> None:
    covered = np.zeros(stage.source.grid.shape, np.uint8)
    boxes = stage.boxes
    for coords in product(*map(range, boxes.counts)):
        covered[boxes.region_of(coords)] += 1
    assert (covered == 1).all()
    assert stage.tasks == prod(boxes.counts)


@given(layouts(max_dims=2, max_length=20), BUDGETS)
def test_costs_are_what_counting_gives(pair, share):
    source, target = pair
    for stage in plan_stages(source, target, budget_of(source, target, share), 1, MODEL):
        decoded = written = requests = 0
        chunks = Grid.regular(source.grid.shape, stage.source.chunk)
        for coords in product(*map(range, stage.boxes.counts)):
            region = stage.boxes.region_of(coords)
            for part in stage.source.grid.parts(region):
                requests += 1 if part.whole or not stage.source.sharded else 2
            decoded += chunks.count_parts(region) * stage.source.chunk_bytes
            written += stage.target.grid.count_parts(region)
        costs = stage.costs
        assert costs.decoded == decoded
        assert costs.reads == requests
        assert costs.writes == written
        assert costs.written == written * stage.target.object_bytes


@given(layouts(), BUDGETS, BUDGETS, st.integers(1, 4))
def test_more_memory_never_makes_a_slower_plan(pair, share, other, threads):
    source, target = pair
    budgets = sorted(budget_of(source, target, part) for part in (share, other))
    slower, faster = (
        sum(seconds(stage, threads, MODEL) for stage in stages)
        for stages in (plan_stages(source, target, budget, threads, MODEL) for budget in budgets)
    )
    assert faster <= slower * 1.0001


SLABS_TO_SERIES = [
    ((1024, 64, 64), (1, 64, 64), (1024, 4, 4)),
    ((2048, 64, 64), (1, 64, 64), (2048, 4, 4)),
    ((2048, 2048), (1, 2048), (2048, 1)),
    ((256, 256, 256), (1, 256, 256), (256, 4, 4)),
]


@pytest.mark.parametrize(("shape", "source", "target"), SLABS_TO_SERIES, ids=str)
def test_more_memory_never_makes_a_slower_plan_of_slabs(shape, source, target):
    old, new = (Layout(Grid.regular(shape, chunk), chunk, 4) for chunk in (source, target))
    times = [
        alternatives(old, new, budget, 1, MODEL)[0].seconds
        for budget in range(2_200_000, 20 * MB, MB // 2)
    ]
    best = times[0]
    for number, now in enumerate(times):
        assert now <= best * 1.0001, f"{2.2 + number / 2:.1f} MB: {now:.2f} s after {best:.2f} s"
        best = now


@given(layouts(), BUDGETS, st.integers(1, 8))
def test_many_stages_are_judged_as_each_judges_itself(pair, share, threads):
    source, target = pair
    boxes = planner._candidates(source, target)
    sides = planner._StageSide(source), planner._StageSide(target)
    peaks, times = planner._judge(*sides, boxes, threads, MODEL)
    for row, box in enumerate(boxes):
        stage = StagePlan(source, target, tuple(map(int, box)))
        assert peaks[row] == stage.peak
        assert times[row] == pytest.approx(seconds(stage, threads, MODEL))
    for way in alternatives(source, target, budget_of(source, target, share), threads, MODEL):
        assert way.seconds == pytest.approx(sum(seconds(s, threads, MODEL) for s in way.stages))


def test_more_stages_where_two_would_meet_in_small_objects():
    shape = (10**6, 10**5)
    old, new = (Layout(Grid.regular(shape, c), c, 4) for c in ((1, 10**5), (10**6, 1)))
    far = CostModel(request=0.1, schedule=0.0)
    ways = {len(way.stages): way for way in alternatives(old, new, 50 * MB, 64, far)}
    best = alternatives(old, new, 50 * MB, 64, far)[0]
    assert len(best.stages) >= 3
    assert best.seconds < ways[2].seconds / 2
    assert all(stage.peak <= 50 * MB for stage in best.stages)
    middle = {len(way.stages): way.stages[0].target.object_bytes for way in ways.values()}
    assert middle[3] > middle[2]


def test_boxes_along_the_source_read_each_object_once():
    shape = (700, 50)
    old = Layout(Grid.regular(shape, (70, 50)), (70, 50), 8)
    new = Layout(Grid.regular(shape, (7, 10)), (7, 10), 8)
    way, *others = alternatives(old, new, 10 * MB, 2, MODEL)
    assert way.name == "directly, each source object read once"
    assert way.stages[0].costs.reads == old.grid.ncells
    assert not others


def test_a_box_is_no_larger_than_pays_off():
    shape = (4000, 256, 512)
    old = Layout(Grid.regular(shape, (1, 256, 512)), (1, 256, 512), 4)
    new = Layout(Grid.regular(shape, (8, 256, 512)), (8, 256, 512), 4)
    (stage,) = plan_stages(old, new, 1000 * MB, 2, MODEL)
    assert stage.costs.decoded == old.decoded_once * old.itemsize
    assert stage.peak < 200 * MB
    (large,) = plan_stages(old, new, 1000 * MB, 2, CostModel(touch=1e15))
    assert large.peak > 400 * MB


def test_ten_million_chunks_cost_no_more_to_plan_than_ten(monkeypatch):
    judged = []
    original = planner._judge

    def counting(source, target, boxes, *rest):
        judged.append(len(boxes))
        return original(source, target, boxes, *rest)

    monkeypatch.setattr(planner, "_judge", counting)
    shape = (40_000, 4000, 4000)
    old = Layout(Grid.regular(shape, (1, 4000, 4000)), (1, 4000, 4000), 4)
    new = Layout(Grid.regular(shape, (40, 40, 40)), (40, 40, 40), 4)
    assert new.grid.ncells == 10**7
    plan_stages(old, new, 4000 * MB, 100, MODEL)
    assert sum(judged) < 100_000  # rows of arrays; each is a microsecond's work


def test_speeds_are_those_of_the_codecs_within_shards():
    plain = zd.create_array({}, shape=(8, 8), dtype="f4", chunks=(2, 2), codecs=["gzip"])
    sharded = zd.create_array(
        {}, shape=(8, 8), dtype="f4", chunks=(2, 2), shards=(4, 4), codecs=["gzip"]
    )
    assert speeds_of(sharded.meta.codecs) == speeds_of(plain.meta.codecs)


def test_a_second_stage_is_cheaper_where_memory_is_small():
    shape, source, target = SLABS_TO_SERIES[0]
    old, new = (Layout(Grid.regular(shape, chunk), chunk, 4) for chunk in (source, target))
    small, large = (plan_stages(old, new, budget, 1, MODEL) for budget in (4 * MB, 40 * MB))
    assert (len(small), len(large)) == (2, 1)
    middle = small[0].target
    assert not middle.sharded
    found = {len(way.stages): way.seconds for way in alternatives(old, new, 4 * MB, 1, MODEL)}
    assert found[2] < found[1] / 2


def test_what_is_aligned_is_copied_in_one_stage():
    grid = Grid.regular((64, 64, 64), (16, 16, 16))
    layout = Layout(grid, (16, 16, 16), 4)
    (stage,) = plan_stages(layout, layout, 64 * MB, 2, MODEL)
    assert stage.costs.decoded == stage.costs.written == 64**3 * 4
    assert stage.costs.reads == stage.costs.writes == grid.ncells
    assert stage.tasks >= 2  # both threads have something to do


def test_too_little_memory_says_how_much_it_takes():
    layout = Layout(Grid.regular((64, 64), (64, 64)), (64, 64), 8)
    with pytest.raises(MemoryBudgetError, match=r"\(64, 64\)") as caught:
        plan_stages(layout, layout, 1000, 1, MODEL)
    needed = StagePlan(layout, layout, (64, 64)).peak
    assert f"{needed:,} bytes" in str(caught.value)
    assert "max_mem" in str(caught.value)
    assert plan_stages(layout, layout, needed, 1, MODEL)


def test_many_dimensions_are_planned_quickly():
    shape = (1000,) * 8
    old = Layout(Grid.regular(shape, (10,) * 8), (10,) * 8, 1)
    new = Layout(Grid.regular(shape, (5,) * 8), (5,) * 8, 1)
    stages = plan_stages(old, new, 1000 * MB, 4, MODEL)
    assert all(stage.peak <= 1000 * MB for stage in stages)


@pytest.mark.parametrize("threads", [1, 2])
def test_no_plan_holds_more_than_its_budget_where_objects_are_padded_and_converted(threads):
    stored = {"chunks": (504, 768), "shards": (2520, 768), "codecs": ["gzip"]}
    source = zd.create_array({}, shape=(11186, 768), dtype="f4", **stored)
    made = 0
    for max_mem in range(20 * MB, 62 * MB, 2 * MB):
        try:
            plan = zd.plan_rechunk(
                source,
                {},
                chunks=(1249, 74),
                shards=(4996, 74),
                dtype="i8",
                max_mem=max_mem,
                threads=threads,
            )
        except MemoryBudgetError:
            continue
        made += 1
        assert plan.peak <= max_mem
    assert made >= 5


# --- plans that are carried out -----------------------------------------------------------------


@given(layouts(max_dims=2, max_length=12), BUDGETS)
def test_requests_are_those_of_the_plan(pair, share):
    source_layout, target_layout = pair
    assume(not source_layout.sharded)
    values = np.arange(1, prod(source_layout.grid.shape) + 1, dtype="u2")
    recording, target = Recording(MemoryStore()), Recording(MemoryStore())
    source = zd.create_array(
        recording,
        shape=source_layout.grid.shape,
        dtype="u2",
        chunks=source_layout.chunk,
        codecs=[],
    )
    source[...] = values.reshape(source.shape)
    shards = target_layout.object_shape if target_layout.sharded else None
    grids = {"chunks": target_layout.chunk, "shards": shards}
    with dask.config.set(scheduler="sync"):
        loose = zd.plan_rechunk(source, target, max_mem="64MB", **grids)
        stage = loose.stages[0]
        least = StagePlan(stage.source, stage.target, loose.target.write_chunks).peak
        tight = least + int(share * (loose.peak - least)) + 1
        plan = zd.plan_rechunk(source, target, max_mem=tight, **grids)
        recording.clear()
        target.clear()
        report = plan.run()
    (stage,) = plan.stages
    assert recording.per_key("get").total() == plan.costs.reads == stage.costs.reads
    assert target.per_key("set").total() == plan.costs.writes
    assert target.per_key("set_if").total() == 1  # the document
    assert set(target.per_key("set").values()) == {1}
    assert report.objects == plan.costs.writes
    assert report.tasks == plan.tasks
    np.testing.assert_array_equal(zd.open_array(target.store)[...], source[...])


# --- words and numbers --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        (0, 0),
        (1000, 1000),
        ("2000", 2000),
        ("1kB", 1000),
        ("1 KiB", 1024),
        ("256MB", 256 * MB),
        ("256M", 256 * MB),
        ("1.5 GiB", 3 << 29),
        (".5gb", 500 * MB),
        ("2TB", 2 * 10**12),
        (np.int64(7), 7),
        (1e9, 10**9),
    ],
)
def test_sizes(text, nbytes):
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize("text", ["", "MB", "-1", -5, "1 2", "1XB", "many", None, "1.2.3", "1e400"])
def test_what_is_no_size(text):
    with pytest.raises(MemoryBudgetError, match="not a size"):
        parse_bytes(text)


@given(st.integers(0, 10**18))
def test_sizes_are_read_as_they_are_shown(nbytes):
    assert parse_bytes(format_bytes(nbytes)) == pytest.approx(nbytes, rel=0.01)


def test_costs_add_up():
    assert Costs(1, 2, 3, 4) + Costs(10, 20, 30, 40) == Costs(11, 22, 33, 44)
    assert sum([Costs(1), Costs(2)], Costs()) == Costs(3)


def speeds_with(codecs, **grid):
    options = {"shape": (8, 8), "dtype": "f4", "chunks": (2, 2), "codecs": codecs, **grid}
    return speeds_of(zd.create_array({}, **options).meta.codecs)


BIG = {"name": "bytes", "configuration": {"endian": "big"}}
LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}


def test_bytes_that_a_compressor_takes_as_they_are_count_nothing():
    """As measured: blosc alone decodes 7.8 GB/s of native floats here, 4.0 GB/s of swapped ones."""
    zstd = speeds_with(["zstd"])
    assert zstd == speeds_with([LITTLE, "zstd"]) == speeds_with(["zstd"], shards=(4, 4))
    assert zstd.decode > speeds_with([BIG, "zstd"]).decode
    assert zstd.decode > speeds_with(["zstd", "crc32c"]).decode
    copied, summed = speeds_with([]), speeds_with(["crc32c"])
    assert copied.decode > summed.decode > zstd.decode  # a checksum does not copy for it
    order = {"name": "transpose", "configuration": {"order": [1, 0]}}
    slower = speeds_with([order, "zstd"])
    assert 1 / slower.decode == pytest.approx(1 / speeds_with([order]).decode + 1 / zstd.decode)


def test_a_plan_says_in_three_lines_why_its_stages_were_chosen():
    a = zd.create_array({}, shape=(1000, 300), dtype="f4", chunks=(100, 300))
    lines = zd.plan_rechunk(a, {}, chunks=(1000, 10)).explain().splitlines()
    why = lines[-3:]
    assert why[0].startswith("  why     directly: the least time by the cost model within ")
    assert why[0].endswith("2.40 MB decoded and 50 requests")
    assert why[1].startswith("          in 2 stages: 2 times as long; ")
    assert why[2].startswith("          and in 2 stages, compressed between: ")
    assert why[2].endswith(" times as long")
