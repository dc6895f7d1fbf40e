"""Tasks in other processes that write to stores whose changes must be merged (`ForkableSession`).

Each task gets a fork of its own and returns it with its result. A task that is run again, or is
lost with its worker, contributes all that it has stored, or nothing. The client merges the forks
when all tasks have ended; a failed job merges none.

The content of a task is pickled here with the stores left out (`_Packed`). When it is unpickled,
forks take the place of the stores.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from time import monotonic
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np

from zarr_dask.errors import StoreError, StoreOutOfReachError
from zarr_dask.stores.base import ForkableSession, Store
from zarr_dask.stores.sessions import JobSession
from zarr_dask.stores.wrapper import forkable

if TYPE_CHECKING:
    from zarr_dask.graph import Target

__all__ = ["ForkResult", "SessionForks"]

_BASES = 8
"""Maximum number of forks that a process caches; forks of its tasks share their connections."""
_ABSENT = "zarr-dask-absent/zarr.json"
"""A key without a value, so that reading it always sends a request."""
_SOON = 1.0
"""Seconds after which changes are merged that are committed now and then."""
_GATHERED = 64
"""Number of returned forks that the client holds before it merges them into one."""


@dataclass(frozen=True)
class ForkResult:
    """Result of a task, and the forks that it has written to."""

    result: Any
    forks: tuple[Store, ...]

    @property
    def nbytes(self) -> int:
        """Decoded bytes, from the result."""
        return int(self.result.nbytes)


class SessionForks:
    """Forks of the stores that a job writes to, and the changes that its tasks return.

    Parameters
    ----------
    stores
        Stores that are written to; only those that need it are forked.

    Raises
    ------
    StoreError
        If a store cannot be forked now.
    StoreOutOfReachError
        If other processes cannot reach it.
    """

    def __init__(self, stores: Iterable[Store]) -> None:
        found = {id(one): one for one in map(forkable, stores) if one is not None}
        self._stores: tuple[ForkableSession, ...] = tuple(found.values())
        self._bases = tuple(store.fork() for store in self._stores)
        for base in self._bases:
            _check_in_reach(base)
        self._returned: list[ForkResult] = []
        self._target: Target | None = None
        self._on_merge: Callable[[], None] | None = None
        self._merged_at = monotonic()

    def committing(self, on_merge: Callable[[], None]) -> SessionForks:
        """Merge changes now and then, and call a function then, which may commit them.

        Only for stores that are committed by their job: of others, a failed job merges nothing.
        """
        if all(isinstance(store, JobSession) for store in self._stores):
            self._on_merge = on_merge
        return self

    @property
    def commits(self) -> bool:
        """True if changes are merged now and then."""
        return self._on_merge is not None

    def target(self, target: Target) -> Target:
        """Return a target whose tasks write to forks."""
        self._target = target
        return _ForkedTarget(self._packed(target))

    def call(self, function: Callable[..., Any], *first: Any) -> Callable[..., ForkResult]:
        """Return a function that writes to forks; `first` are its first arguments."""
        return _ForkedCall(self._packed((function, first)))

    def take(self, forked: ForkResult) -> Any:
        """Keep what a task has stored; returns its result."""
        self._returned.append(forked)
        if self._on_merge is not None:
            if len(self._returned) >= _GATHERED or monotonic() - self._merged_at > _SOON:
                self.merge()
                self._on_merge()
        elif len(self._returned) >= _GATHERED:
            self._returned = [ForkResult(None, _merged(self._bases, self._returned))]
        return forked.result

    def finish(self, results: Sequence[Any]) -> Any:
        """Finish the target here, with the results of all its tasks that were taken."""
        if self._target is None:
            raise TypeError("these forks are of no target.")
        self.merge()
        return self._target.finish(self._target.merge(results))

    def merge(self) -> None:
        """Merge the changes of all tasks into the stores."""
        for number, store in enumerate(self._stores):
            store.merge([one.forks[number] for one in self._returned])
        self._returned = []
        self._merged_at = monotonic()

    def _packed(self, value: Any) -> _Packed:
        file = io.BytesIO()
        _Packer(file, self._stores).dump(value)
        bases = tuple(pickle.dumps(base) for base in self._bases)
        return _Packed(file.getvalue(), bases)


def _check_in_reach(base: Store) -> None:
    """Refuse a store in the memory of this process: other processes cannot read it."""
    elsewhere: Store = pickle.loads(pickle.dumps(base))  # noqa: S301  (made on this line)
    try:
        elsewhere.get(_ABSENT)
    except StoreError as error:
        raise StoreOutOfReachError(
            f"a fork of {base.url} in another process cannot be read ({error}), as is to be "
            "expected of what is in the memory of this one. Write to a local or remote "
            "repository, or compute with threads."
        ) from error


def _merged(bases: Iterable[Store], results: Sequence[ForkResult]) -> tuple[Store, ...]:
    """Return new forks with the changes of all forks in the results."""
    merged = tuple(_fork_of(base) for base in bases)
    for number, fork in enumerate(merged):
        if isinstance(fork, ForkableSession):
            fork.merge([one.forks[number] for one in results])
    return merged


def _fork_of(base: Store) -> Store:
    return base.fork() if isinstance(base, ForkableSession) else base


@dataclass(frozen=True)
class _Packed:
    """A pickled value without its stores."""

    content: bytes
    bases: tuple[bytes, ...]
    """Forks in their place, before anything was written to them."""

    def forks(self) -> tuple[Store, ...]:
        """Return new forks for a task."""
        return tuple(_fork_of(_base(base)) for base in self.bases)

    def unpacked(self, forks: Sequence[Store]) -> Any:
        """Return the value, with forks in it."""
        return _Unpacker(io.BytesIO(self.content), forks).load()


@lru_cache(maxsize=_BASES)
def _base(pickled: bytes) -> Store:
    """Return a fork that was sent to this process; it is forked again, and never written to."""
    base: Store = pickle.loads(pickled)  # noqa: S301  (as every task, it comes from the client)
    return base


class _Packer(cloudpickle.Pickler):
    """Pickler that leaves out some stores."""

    def __init__(self, file: io.BytesIO, stores: Sequence[ForkableSession]) -> None:
        super().__init__(file)
        self._numbers = {id(store): number for number, store in enumerate(stores)}

    def persistent_id(self, value: Any) -> int | None:
        """Return the number of a store that is left out; None for other values."""
        return self._numbers.get(id(value))


class _Unpacker(pickle.Unpickler):
    """Unpickler that puts other stores in their place."""

    def __init__(self, file: io.BytesIO, stores: Sequence[Store]) -> None:
        super().__init__(file)
        self._stores = stores

    def persistent_load(self, number: int) -> Store:
        """Return the store with this number."""
        return self._stores[number]


@dataclass(frozen=True)
class _ForkedCall:
    """Calls a function that writes to forks."""

    packed: _Packed

    def __call__(self, *arguments: Any) -> ForkResult:
        forks = self.packed.forks()
        function, first = self.packed.unpacked(forks)
        return ForkResult(function(*first, *arguments), forks)


@dataclass(frozen=True)
class _ForkedTarget:
    """Target whose tasks write to forks, one each."""

    packed: _Packed

    def write(self, block: np.ndarray, region: tuple[slice, ...]) -> ForkResult:
        """Write a block into new forks."""
        forks = self.packed.forks()
        return ForkResult(self.packed.unpacked(forks).write(block, region), forks)

    def merge(self, results: Sequence[ForkResult]) -> ForkResult:
        """Merge reports, and the forks into one set."""
        forks = _merged(map(_base, self.packed.bases), results)
        target: Target = self.packed.unpacked(forks)
        return ForkResult(target.merge([one.result for one in results]), forks)

    def finish(self, result: ForkResult) -> ForkResult:
        """Finish the target, with the changes of all tasks."""
        forks = _merged(map(_base, self.packed.bases), [result])
        return ForkResult(self.packed.unpacked(forks).finish(result.result), forks)
