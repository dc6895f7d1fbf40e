"""Tasks in other processes that write to stores whose changes must be merged (`Forkable`).

Each task gets a fork of its own and returns it with its result: so a task that is run again, or is
lost with its worker, brings all that it has stored, or nothing. The client merges the forks when
all tasks have come to an end; a job that fails merges none.

What a task is made of is pickled here, with the stores left out (`_Packed`): wherever it is made
again, forks take their place.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np

from zarr_dask.errors import StoreError, StoreOutOfReachError
from zarr_dask.stores.base import Forkable, Store
from zarr_dask.stores.wrappers import forkable

if TYPE_CHECKING:
    from zarr_dask.graph import Target

__all__ = ["Forked", "Forks"]

_BASES = 8
"""Forks that a process keeps, whose connections the forks of its tasks share."""
_ABSENT = "zarr-dask-absent/zarr.json"
"""A key with no value, which no store can say without being asked."""
_GATHERED = 64
"""Forks of tasks that the client keeps before it merges them into one."""


@dataclass(frozen=True)
class Forked:
    """What a task has returned, and the forks that it has written to."""

    result: Any
    forks: tuple[Store, ...]

    @property
    def nbytes(self) -> int:
        """Decoded bytes, as the result says."""
        return int(self.result.nbytes)


class Forks:
    """The stores that the tasks of a job write to in forks, and what they have stored.

    Parameters
    ----------
    stores
        What is written to, of which those are forked that must be.

    Raises
    ------
    StoreError
        If a store cannot be forked now.
    StoreOutOfReachError
        If other processes cannot reach it.
    """

    def __init__(self, stores: Iterable[Store]) -> None:
        found = {id(one): one for one in map(forkable, stores) if one is not None}
        self._stores: tuple[Forkable, ...] = tuple(found.values())
        self._bases = tuple(store.fork() for store in self._stores)
        for base in self._bases:
            _check_in_reach(base)
        self._returned: list[Forked] = []

    def target(self, target: Target) -> Target:
        """A target whose tasks write to forks."""
        return _ForkedTarget(self._packed(target))

    def call(self, function: Callable[..., Any], *first: Any) -> Callable[..., Forked]:
        """A function, or one of which the first arguments are given, that writes to forks."""
        return _ForkedCall(self._packed((function, first)))

    def take(self, forked: Forked) -> Any:
        """Keep what a task has stored; returns its result."""
        self._returned.append(forked)
        if len(self._returned) >= _GATHERED:
            self._returned = [Forked(None, _merged(self._bases, self._returned))]
        return forked.result

    def merge(self) -> None:
        """Put what all tasks have stored into the stores."""
        for number, store in enumerate(self._stores):
            store.merge([one.forks[number] for one in self._returned])
        self._returned = []

    def _packed(self, value: Any) -> _Packed:
        file = io.BytesIO()
        _Packer(file, self._stores).dump(value)
        bases = tuple(pickle.dumps(base) for base in self._bases)
        return _Packed(file.getvalue(), bases)


def _check_in_reach(base: Store) -> None:
    """Refuse what is in the memory of this process, of which a fork elsewhere finds nothing."""
    elsewhere: Store = pickle.loads(pickle.dumps(base))  # noqa: S301  (made on this line)
    try:
        elsewhere.get(_ABSENT)
    except StoreError as error:
        raise StoreOutOfReachError(
            f"a fork of {base.url} in another process cannot be read ({error}), as is to be "
            "expected of what is in the memory of this one. Write to a local or remote "
            "repository, or compute with threads."
        ) from error


def _merged(bases: Iterable[Store], results: Sequence[Forked]) -> tuple[Store, ...]:
    """New forks that have what all of some others have."""
    merged = tuple(_fork_of(base) for base in bases)
    for number, fork in enumerate(merged):
        if isinstance(fork, Forkable):
            fork.merge([one.forks[number] for one in results])
    return merged


def _fork_of(base: Store) -> Store:
    return base.fork() if isinstance(base, Forkable) else base


@dataclass(frozen=True)
class _Packed:
    """A value in which stores are left out."""

    content: bytes
    bases: tuple[bytes, ...]
    """What takes their place, before anything was written to it."""

    def forks(self) -> tuple[Store, ...]:
        """New forks for a task."""
        return tuple(_fork_of(_base(base)) for base in self.bases)

    def unpacked(self, forks: Sequence[Store]) -> Any:
        """The value, with forks in it."""
        return _Unpacker(io.BytesIO(self.content), forks).load()


@lru_cache(maxsize=_BASES)
def _base(pickled: bytes) -> Store:
    """A fork that was sent to this process; nothing is ever written to it, but forked again."""
    base: Store = pickle.loads(pickled)  # noqa: S301  (as every task, it comes from the client)
    return base


class _Packer(cloudpickle.Pickler):
    """Pickles a value without some of the stores in it."""

    def __init__(self, file: io.BytesIO, stores: Sequence[Forkable]) -> None:
        super().__init__(file)
        self._numbers = {id(store): number for number, store in enumerate(stores)}

    def persistent_id(self, value: Any) -> int | None:
        """The number of a store that is left out."""
        return self._numbers.get(id(value))


class _Unpacker(pickle.Unpickler):
    """Puts others in their place."""

    def __init__(self, file: io.BytesIO, stores: Sequence[Store]) -> None:
        super().__init__(file)
        self._stores = stores

    def persistent_load(self, number: int) -> Store:
        """The store of a number."""
        return self._stores[number]


@dataclass(frozen=True)
class _ForkedCall:
    """Calls a function that writes to forks."""

    packed: _Packed

    def __call__(self, *arguments: Any) -> Forked:
        forks = self.packed.forks()
        function, first = self.packed.unpacked(forks)
        return Forked(function(*first, *arguments), forks)


@dataclass(frozen=True)
class _ForkedTarget:
    """A target of which each task writes to forks."""

    packed: _Packed

    def write(self, block: np.ndarray, region: tuple[slice, ...]) -> Forked:
        """As the target, into forks."""
        forks = self.packed.forks()
        return Forked(self.packed.unpacked(forks).write(block, region), forks)

    def merge(self, results: Sequence[Forked]) -> Forked:
        """As the target, and the forks as one."""
        forks = _merged(map(_base, self.packed.bases), results)
        target: Target = self.packed.unpacked(forks)
        return Forked(target.merge([one.result for one in results]), forks)

    def finish(self, result: Forked) -> Forked:
        """As the target, with what all have stored."""
        forks = _merged(map(_base, self.packed.bases), [result])
        return Forked(self.packed.unpacked(forks).finish(result.result), forks)
