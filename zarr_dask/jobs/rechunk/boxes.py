"""The memory of boxes, which the tasks of a process hand on to each other.

A task asks for a box with `held`. When it ends, the box stays for the next task while others of
its stage still run in the process, and goes back to the system with the last of them: making the
pages of a box anew for each task costs about as much as decoding it, and what a process holds is
what its plan says even where its tasks do not keep step.

There are never more boxes than tasks have run at the same time, each made for a task of its own,
so that they hold no more than the largest tasks do together.
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

from zarr_dask.grid import Shape
from zarr_dask.scratch import lasting

__all__ = ["held"]

_BYTE = np.dtype(np.uint8)
_SMALLEST = 1 << 20
"""Bytes of a box that is worth it."""


@dataclass(frozen=True)
class _Free:
    """A box that nobody works in."""

    stage: Hashable
    memory: np.ndarray


class _Boxes:
    """The boxes of this process."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._free: list[_Free] = []
        self._tasks: Counter[Hashable] = Counter()
        """How many run, of each stage."""

    def enter(self, stage: Hashable, nbytes: int) -> np.ndarray | None:
        """One more task; the memory that is there for it, if it is large enough."""
        with self._lock:
            self._tasks[stage] += 1
            fitting = [
                one for one in self._free if one.stage == stage and one.memory.nbytes >= nbytes
            ]
            if not fitting and not self._free:
                return None
            # what does not fit goes before a new one is made
            taken = min(fitting or self._free, key=lambda one: one.memory.nbytes)
            self._free = [one for one in self._free if one is not taken]
        return taken.memory if fitting else None

    def leave(self, stage: Hashable, memory: np.ndarray | None) -> None:
        """One task less; the last of a stage leaves nothing."""
        with self._lock:
            self._tasks[stage] -= 1
            if self._tasks[stage]:
                if memory is not None:
                    self._free.append(_Free(stage, memory))
                return
            del self._tasks[stage]
            self._free = [one for one in self._free if one.stage != stage]


_BOXES = _Boxes()


@contextmanager
def held(stage: Hashable, shape: Shape, dtype: np.dtype[Any]) -> Iterator[np.ndarray]:
    """Memory for a box, of any content, for as long as a task of a stage works in it.

    Parameters
    ----------
    stage
        Equal for the tasks that hand on their boxes.
    shape, dtype
        Of the box.
    """
    nbytes = prod(shape) * dtype.itemsize
    if dtype.hasobject or nbytes < _SMALLEST:
        yield np.empty(shape, dtype)
        return
    memory = _BOXES.enter(stage, nbytes)
    try:
        if memory is None:
            memory = lasting((nbytes,), _BYTE)
        yield memory[:nbytes].view(dtype).reshape(shape)
    finally:
        _BOXES.leave(stage, memory)
