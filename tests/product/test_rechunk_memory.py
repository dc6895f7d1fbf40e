"""What a plan states of memory, decoded bytes and requests, against what a process takes."""

from __future__ import annotations

import shutil
import sys

import pytest

from benchmarks.bounds import LAYOUTS, MB, Layout, measured

LEAST = 0.6
"""Of the memory that is stated: a bound that is far too high would waste workers."""
QUICK = [("slabs to series", 4), ("slabs to shards", 1)]
"""A plain process and a worker of dask; the slow test below has every layout in both."""

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")


def assert_as_stated(layout, threads, root, *, worker) -> None:
    """Decoded bytes and requests are exact, and memory is neither above nor far below the bound."""
    found = measured(layout, threads, root, worker=worker)
    assert found.decoded[0] == found.decoded[1]
    assert found.requests[0] == found.requests[1]
    assert LEAST <= found.share <= 1, str(found)


@pytest.mark.parametrize(
    ("name", "threads"), [QUICK[1], pytest.param(*QUICK[0], marks=pytest.mark.slow)]
)
def test_a_process_takes_what_its_plan_states(tmp_path, name, threads):
    layout = next(one for one in LAYOUTS if one.name == name)
    assert_as_stated(layout, threads, tmp_path, worker=threads == 1)


@pytest.mark.slow
def test_the_copy_in_the_other_byte_order_counts(tmp_path):
    """It is made to be encoded, besides the chunk as it is read and as it is stored."""
    grids = {"chunks": (100, 256, 64)}, {"chunks": (128, 256, 64)}
    layout = Layout("big-endian", *grids, 80 * MB, "zstd", ">f4", shape=(128, 256, 64))
    assert_as_stated(layout, 1, tmp_path, worker=False)


@pytest.fixture(scope="module", params=LAYOUTS, ids=str)
def layout(request, tmp_path_factory):
    """A layout, and the folder in which its source is made once for all tests of it."""
    root = tmp_path_factory.mktemp("layout")
    yield request.param, root
    shutil.rmtree(root)


@pytest.mark.slow
@pytest.mark.parametrize("worker", [True, False], ids=["of dask", "plain"])
@pytest.mark.parametrize("threads", [1, 4])
def test_processes_of_all_kinds_take_what_their_plans_state(layout, threads, worker):
    which, root = layout
    assert_as_stated(which, threads, root, worker=worker)


@pytest.mark.slow
@pytest.mark.parametrize("worker", [True, False], ids=["of dask", "plain"])
def test_rows_of_large_chunks_on_many_threads(tmp_path, worker):
    """Where most is gained by not holding whole chunks."""
    which = next(one for one in LAYOUTS if one.name == "large chunks to slabs, blosc")
    assert_as_stated(which, 8, tmp_path, worker=worker)
