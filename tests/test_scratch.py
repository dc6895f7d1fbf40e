"""Memory that is used again."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from zarr_dask.scratch import scratch

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
