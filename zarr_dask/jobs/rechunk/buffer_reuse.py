"""Reuse of box memory between the tasks of a process.

A task gets a box with `reuse_buffer`. When it ends, the next task can use the box while other tasks
of its stage still run in the process; the last of them frees the boxes. Allocating the pages of a
box anew for each task costs about as much as decoding it. The memory of a process is as planned
even if its tasks are not in step.

There are never more boxes than concurrent tasks, and each was made for a task of its own. So boxes
hold no more memory than the largest tasks do together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from threading import Lock
from typing import Any

import numpy as np

from zarr_dask._util.buffers import mmap_empty
from zarr_dask.grid.grid import Shape

__all__ = ["reuse_buffer"]

_BYTE = np.dtype(np.uint8)
_SMALLEST = 1 << 20
"""Minimum bytes of a box for which reuse pays off."""


@dataclass(frozen=True)
class _Free:
    """A box that no task uses."""

    stage: Hashable
    memory: np.ndarray


class _BufferPool:
    """Boxes of this process."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._free: list[_Free] = []
        self._tasks: Counter[Hashable] = Counter()
        """Number of running tasks of each stage."""

    def enter(self, stage: Hashable, nbytes: int) -> np.ndarray | None:
        """Count one more task; return a free box that is large enough for it, or None."""
        with self._lock:
            self._tasks[stage] += 1
            fitting = [
                one for one in self._free if one.stage == stage and one.memory.nbytes >= nbytes
            ]
            if not fitting and not self._free:
                return None
            # free a box that is too small before a new one is made
            taken = min(fitting or self._free, key=lambda one: one.memory.nbytes)
            self._free = [one for one in self._free if one is not taken]
        return taken.memory if fitting else None

    def leave(self, stage: Hashable, memory: np.ndarray | None) -> None:
        """Count one task less; the last task of a stage frees all boxes."""
        with self._lock:
            self._tasks[stage] -= 1
            if self._tasks[stage]:
                if memory is not None:
                    self._free.append(_Free(stage, memory))
                return
            del self._tasks[stage]
            self._free = [one for one in self._free if one.stage != stage]


_BOXES = _BufferPool()


@contextmanager
def reuse_buffer(stage: Hashable, shape: Shape, dtype: np.dtype[Any]) -> Iterator[np.ndarray]:
    """Yield memory for a box, with arbitrary content, while a task of a stage uses it.

    Parameters
    ----------
    stage
        Key that is equal for tasks that share their boxes.
    shape, dtype
        Shape and data type of the box.
    """
    nbytes = prod(shape) * dtype.itemsize
    if dtype.hasobject or nbytes < _SMALLEST:
        yield np.empty(shape, dtype)
        return
    memory = _BOXES.enter(stage, nbytes)
    try:
        if memory is None:
            memory = mmap_empty((nbytes,), _BYTE)
        yield memory[:nbytes].view(dtype).reshape(shape)
    finally:
        _BOXES.leave(stage, memory)
