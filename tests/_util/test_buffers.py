"""Memory that is used again."""

import os
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import zarr_dask as zd
from zarr_dask._util import buffers as scratch_module
from zarr_dask._util.buffers import SegmentedBuffer, prefault, task_memory_scope, thread_buffer

FAULTS = """
import resource
import numpy as np
from contextlib import nullcontext
from zarr_dask._util.buffers import malloc_keep_freed

def faults(context):
    with context:
        for _ in range(3):
            np.ones(1 << 18)  # 2 MiB, made and freed
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(20):
            np.ones(1 << 18)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(faults(nullcontext()), faults(malloc_keep_freed()), faults(nullcontext()))
"""


BLOCKS = """
import resource
import numpy as np
from zarr_dask._util.buffers import keep_freed_arrays

def faults():
    for n in range(10):
        if n == 2:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        held = [np.ones(3 << 17) for _ in range(3)]  # 3 MiB each
        del held
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

first = faults()
keep_freed_arrays(4_000_000)
print(first, faults())
"""

FORKED = """
import os, threading
from zarr_dask._util.buffers import task_memory_scope

begun, go_on = threading.Event(), threading.Event()

def task():
    with task_memory_scope("stage", hold):
        pass

def hold(_):  # with the lock
    begun.set()
    go_on.wait()

thread = threading.Thread(target=task)
thread.start()
begun.wait()
child = os.fork()
if not child:
    with task_memory_scope("other", lambda _: os.write(1, b"child ")):
        os._exit(0)
_, status = os.waitpid(child, 0)
go_on.set()
thread.join()
os.write(1, str(status).encode())
"""


class Threads:
    """Threads that do one thing after the other, as they are told."""

    def __init__(self, count):
        self._pools = [ThreadPoolExecutor(1) for _ in range(count)]

    def __enter__(self):
        return tuple(map(OneThread, self._pools))

    def __exit__(self, *error):
        for pool in self._pools:
            pool.shutdown()


class OneThread:
    def __init__(self, pool):
        self._pool = pool
        self._tasks = []

    def _do(self, function, *args):
        return self._pool.submit(function, *args).result(timeout=30)

    def begin(self, purpose, first=None):
        self._tasks.append(task_memory_scope(purpose, first))
        self._do(self._tasks[-1].__enter__)

    def end(self):
        self._do(self._tasks.pop().__exit__, None, None, None)

    def keep(self, nbytes):
        """A reference to the memory that it keeps, of elements of a chunk."""
        return self._do(lambda: weakref.ref(thread_buffer("decoded", nbytes).base))

    def gather(self):
        """A reference to the memory in which it has gathered."""

        def gathered():
            with SegmentedBuffer() as whole:
                whole.add(b"abc")
            return weakref.ref(whole.buffers()[0].obj)

        return self._do(gathered)


def test_memory_is_used_again_by_the_same_thread_only():
    first = thread_buffer("decoded", 1000)
    assert np.shares_memory(thread_buffer("decoded", 500), first)
    assert not np.shares_memory(thread_buffer("encoded", 500), first)
    others = []
    thread = threading.Thread(target=lambda: others.append(thread_buffer("decoded", 500)))
    thread.start()
    thread.join()
    assert not np.shares_memory(others[0], first)


def test_memory_is_kept_for_one_purpose_at_a_time():
    with task_memory_scope("one"):
        first = thread_buffer("decoded", 1000)
        with task_memory_scope("one"):
            assert np.shares_memory(thread_buffer("decoded", 500), first)
        with task_memory_scope("other"):
            assert not np.shares_memory(thread_buffer("decoded", 500), first)


def test_memory_is_kept_while_other_tasks_run_and_goes_with_the_last():
    with Threads(2) as (one, other):
        one.begin("stage")
        other.begin("stage")
        kept = other.keep(1000)
        other.end()
        assert kept() is not None
        other.begin("stage")
        assert other.keep(500)() is kept()
        other.end()
        one.end()
        assert kept() is None


def test_idle_threads_keep_nothing_of_an_earlier_stage():
    """Even if the process was never without a task."""
    with Threads(3) as (one, other, third):
        one.begin("another job")
        other.begin("first stage")
        kept, gathered = other.keep(1000), other.gather()
        of_others = one.keep(1000)
        other.end()
        third.begin("second stage")
        assert kept() is None
        assert gathered() is None
        assert of_others() is not None, "it may be at work in it"


def test_the_first_task_takes_what_reads_have_kept():
    with Threads(2) as (one, other):
        kept = other.keep(1000)
        one.begin("stage")
        assert kept() is None


def test_threads_that_have_ended_are_forgotten():
    with Threads(1) as (one,):
        one.begin("stage")
    del one
    begun = []
    with task_memory_scope("other", lambda _: begun.append("alone")):
        assert begun == ["alone"]


def test_only_the_first_task_of_a_process_is_told_so():
    begun = []
    with Threads(2) as (one, other):
        one.begin("stage", lambda _: begun.append(1))
        other.begin("stage", lambda _: begun.append(2))
        one.end()
        one.begin("other", lambda _: begun.append(3))
        one.end()
        other.end()
        other.begin("stage", lambda _: begun.append(4))
    assert begun == [1, 4]


def test_a_task_that_cannot_begin_has_not_begun():
    def fail(_):
        raise MemoryError

    with pytest.raises(MemoryError), task_memory_scope("stage", fail):
        pass
    begun = []
    with task_memory_scope("stage", lambda _: begun.append(1)):
        assert begun == [1]


CLEARED = """
import threading
from zarr_dask._util.buffers import task_memory_scope

def task():
    with task_memory_scope("stage", print):
        pass

task()
task()
thread = threading.Thread(target=task)
thread.start()
thread.join()
task()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a setting of glibc")
@pytest.mark.parametrize("told", [True, False])
def test_nothing_is_left_of_tasks_of_one_thread_where_freed_memory_goes_back(told):
    """What malloc keeps for other threads stays, even if these have ended."""
    environment = {name: text for name, text in os.environ.items() if "MALLOC" not in name}
    if told:
        environment["MALLOC_TRIM_THRESHOLD_"] = "65536"
    command = [sys.executable, "-c", CLEARED]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(told), str(told), "False", "False"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_has_no_tasks():
    """Nor does it wait for a lock that another thread held when it was made."""
    command = [sys.executable, "-W", "ignore", "-c", FORKED]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["child", "0"]


def test_what_is_gathered_stays_as_it_is_when_the_purpose_changes():
    with task_memory_scope("one"), SegmentedBuffer() as gathered:
        gathered.add(b"abc")
        with task_memory_scope("other"):
            gathered.add(b"def")
    assert b"".join(gathered.buffers()) == b"abcdef"


def test_what_is_gathered_stays_as_it_is_while_other_threads_begin_tasks():
    with Threads(1) as (other,), SegmentedBuffer() as gathered:
        gathered.add(b"abc")
        other.begin("stage")
        gathered.add(b"def")
    assert b"".join(gathered.buffers()) == b"abcdef"


def test_large_memory_is_not_kept():
    assert not np.shares_memory(
        thread_buffer("decoded", 1 << 27), thread_buffer("decoded", 1 << 27)
    )


@pytest.mark.skipif(sys.platform != "linux", reason="a setting of glibc")
def test_freed_memory_is_kept_while_a_task_runs():
    environment = {**os.environ, "MALLOC_TRIM_THRESHOLD_": "65536"}
    command = [sys.executable, "-c", FAULTS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    before, during, after = map(int, done.stdout.split())
    assert during < before / 10  # 512 pages are touched anew each time otherwise
    assert after > before / 2


@pytest.mark.skipif(sys.platform != "linux", reason="a setting of glibc")
def test_freed_blocks_are_used_again():
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    command = [sys.executable, "-c", BLOCKS]
    done = subprocess.run(command, env=kept, capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert after < before / 10  # 2,304 pages are touched anew each time otherwise


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
        patch.setattr(scratch_module, "_KEPT", scratch_module._ThreadMemory())
        patch.setattr(scratch_module, "_STEP", step)
        patch.setattr(scratch_module, "_LARGEST_KEPT", most)
        for _ in range(2):  # the second time in the memory of the first
            with SegmentedBuffer() as outer:
                for piece in pieces:
                    outer.add(memoryview(piece))
                with SegmentedBuffer() as within:
                    for piece in inner:
                        within.add(piece)
                for piece in within.buffers():
                    outer.add(piece)
            assert b"".join(outer.buffers()) == b"".join([*pieces, *inner])
            assert len(scratch_module._KEPT.keeper.segments) * step < most + step
        with SegmentedBuffer():
            pass
        assert not scratch_module._KEPT.keeper.segments, (
            "no more is kept than the last whole needed"
        )


def test_an_error_ends_the_gathering():
    with pytest.raises(TypeError), SegmentedBuffer() as gathered:
        gathered.add(None)
    with SegmentedBuffer() as gathered:
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
        kept.append([segment.obj.ctypes.data for segment in scratch_module._KEPT.keeper.segments])
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
        prefault(array)
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
        prefault(array)
        before = getrusage(RUSAGE_THREAD).ru_minflt
        array[...] = 1
        assert getrusage(RUSAGE_THREAD).ru_minflt - before < pages // 10
