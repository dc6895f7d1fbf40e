"""Memory that is used again."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import zarr_dask as zd
from zarr_dask import scratch as scratch_module
from zarr_dask.scratch import Gathered, keep_scratch_for, provide, scratch

FAULTS = """
import resource
import numpy as np
from contextlib import nullcontext
from zarr_dask.scratch import keeping_freed_memory

def faults(context):
    with context:
        for _ in range(3):
            np.ones(1 << 18)  # 2 MiB, made and freed
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(20):
            np.ones(1 << 18)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(faults(nullcontext()), faults(keeping_freed_memory()), faults(nullcontext()))
"""


def test_memory_is_used_again_by_the_same_thread_only():
    first = scratch("decoded", 1000)
    assert np.shares_memory(scratch("decoded", 500), first)
    assert not np.shares_memory(scratch("encoded", 500), first)
    others = []
    thread = threading.Thread(target=lambda: others.append(scratch("decoded", 500)))
    thread.start()
    thread.join()
    assert not np.shares_memory(others[0], first)


def test_memory_is_kept_for_one_purpose_at_a_time():
    keep_scratch_for("one")
    first = scratch("decoded", 1000)
    keep_scratch_for("one")
    assert np.shares_memory(scratch("decoded", 500), first)
    keep_scratch_for("other")
    assert not np.shares_memory(scratch("decoded", 500), first)


def test_what_is_gathered_stays_as_it_is_when_the_purpose_changes():
    keep_scratch_for("one")
    with Gathered() as gathered:
        gathered.add(b"abc")
        keep_scratch_for("other")
        gathered.add(b"def")
    assert b"".join(gathered.buffers()) == b"abcdef"


def test_large_memory_is_not_kept():
    assert not np.shares_memory(scratch("decoded", 1 << 27), scratch("decoded", 1 << 27))


@pytest.mark.skipif(sys.platform != "linux", reason="a setting of glibc")
def test_freed_memory_is_kept_while_a_task_runs():
    environment = {**os.environ, "MALLOC_TRIM_THRESHOLD_": "65536"}
    command = [sys.executable, "-c", FAULTS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    before, during, after = map(int, done.stdout.split())
    assert during < before / 10  # 512 pages are touched anew each time otherwise
    assert after > before / 2


# --- pieces of one whole --------------------------------------------------------------------------


@given(
    st.lists(st.binary(max_size=40), max_size=12),
    st.lists(st.binary(max_size=40), max_size=4),
    st.integers(1, 16),
    st.integers(0, 100),
)
def test_what_is_gathered_is_what_was_added(pieces, inner, step, most):
    """However long the segments are, more than is kept, and with a whole in the whole."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scratch_module, "_KEPT", scratch_module._Kept())
        patch.setattr(scratch_module, "_STEP", step)
        patch.setattr(scratch_module, "_LARGEST_KEPT", most)
        for _ in range(2):  # the second time in the memory of the first
            with Gathered() as outer:
                for piece in pieces:
                    outer.add(memoryview(piece))
                with Gathered() as within:
                    for piece in inner:
                        within.add(piece)
                for piece in within.buffers():
                    outer.add(piece)
            assert b"".join(outer.buffers()) == b"".join([*pieces, *inner])
            assert len(scratch_module._KEPT.segments) * step < most + step
        with Gathered():
            pass
        assert not scratch_module._KEPT.segments, "no more is kept than the last whole needed"


def test_an_error_ends_the_gathering():
    with pytest.raises(TypeError), Gathered() as gathered:
        gathered.add(None)
    with Gathered() as gathered:
        gathered.add(b"y")
    assert not scratch_module._KEPT.gathers
    assert bytes(gathered.buffers()[0]) == b"y"


def test_shards_are_encoded_in_memory_that_is_used_again():
    """Nothing of one shard is in another; the second takes no memory from the system."""
    values = np.random.default_rng(0).normal(size=(2, 256, 1024))
    grid = {"chunks": (1, 16, 64), "shards": (1, 256, 1024)}
    array = zd.create_array({}, shape=values.shape, dtype="f8", **grid)
    kept = []
    for shard in range(2):
        array[shard] = values[shard]
        kept.append([segment.obj.ctypes.data for segment in scratch_module._KEPT.segments])
    np.testing.assert_array_equal(array[...], values)
    assert kept[0] == kept[1]
    assert len(kept[0]) > 1


@pytest.mark.parametrize(
    "dtype", ["?", "i2", "f8", "V5", "U3", [("a", "i1"), ("b", "f4")], "O", "T"]
)
def test_memory_that_is_provided_keeps_its_elements(dtype):
    values = np.arange(6000).astype("U3" if dtype == "T" else "i8").astype(dtype)
    orders = [values, values.reshape(20, 300), values.reshape(10, 20, 30).transpose(2, 0, 1)]
    for array in [*orders, np.asfortranarray(orders[1]), orders[1][::2, 3:]]:
        before = array.copy()
        provide(array)
        np.testing.assert_array_equal(array, before)


@pytest.mark.skipif(sys.platform != "linux", reason="counts faults as Linux does")
def test_memory_that_is_provided_is_there():
    """The pages that the system counts as given are all, in whatever order elements lie."""
    from mmap import PAGESIZE, mmap
    from resource import RUSAGE_THREAD, getrusage

    pages = 300
    for order in "CF":
        memory = np.frombuffer(mmap(-1, pages * PAGESIZE), np.uint8).view("f8")
        array = memory.reshape(-1, 64, order=order)
        provide(array)
        before = getrusage(RUSAGE_THREAD).ru_minflt
        array[...] = 1
        assert getrusage(RUSAGE_THREAD).ru_minflt - before < pages // 10
