"""Intermediate array that holds the blocks of a dask array until they are rechunked, and its grid.

It is an ordinary array in a folder of its own: at the location that the user gives, beside the
target, or in memory if the target is in memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from math import prod
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from zarr_dask.array.array import Array
from zarr_dask.array.create import ArraySpec
from zarr_dask.errors import ResumeError, StoreError
from zarr_dask.formats.base import prefix_of
from zarr_dask.formats.detect import DEFAULT_FORMAT
from zarr_dask.grid.grid import Blocks, Cells, Region, Shape
from zarr_dask.jobs.engine.array_job import metadata_hash
from zarr_dask.jobs.engine.resume import Resume
from zarr_dask.jobs.engine.zip_targets import archive_sibling
from zarr_dask.jobs.write.target_array import new_array
from zarr_dask.stores.base import Store
from zarr_dask.stores.key_names import state_of_token, token_of_process
from zarr_dask.stores.open import (
    Location,
    canonical_location,
    open_store,
    open_with_options_of,
    sibling_location,
    substore,
)
from zarr_dask.stores.real_location import check_folder
from zarr_dask.stores.wrapper import is_in_memory

if TYPE_CHECKING:
    import dask.array as da

__all__ = [
    "StagingArray",
    "StagingFolder",
    "folders_beside",
    "grids_between",
    "labels_folder",
    "plan_staging",
    "temporary_base",
]

_FORMAT = DEFAULT_FORMAT.name
"""Format of the intermediate array."""
_BLOCKS, _LABELS = "zarr-dask-blocks-", "zarr-dask-labels-"
_SMALL = 1 << 16
"""Minimum bytes of a chunk for which reading it alone saves more than it costs."""


@dataclass(frozen=True)
class StagingArray:
    """Layout and location of the intermediate array."""

    base: Store | None
    """The store that contains its folder; None for memory of this process."""
    prefix: str
    """Prefix of the folder's name."""
    chunks: Cells
    shards: Cells | None
    codecs: Any

    def staging(
        self,
        values: da.Array,
        target: Array,
        *,
        resume: Resume,
        region: Region | None = None,
        held: bool = True,
    ) -> StagingFolder:
        """Return the folder for one run: a new one, or one that the same call finds again.

        Parameters
        ----------
        values
            The array to rechunk.
        target
            The array that the values are for.
        resume
            As for `zarr_dask.rechunk`.
        region
            The elements of the target; all of a new array by default.
        held
            True if this process lives as long as the job.

        Raises
        ------
        ResumeError
            If the graph cannot be told from others, or the intermediate array is in memory.
        """
        if self.base is None:
            if resume:
                raise ResumeError(
                    f"{target.where} is in memory: say with temp= where the blocks are kept "
                    "that have been computed, or leave resume=True out."
                )
            return StagingFolder(open_store({}), "blocks", self)
        if held and not resume:
            name = token_of_process()
        else:
            name = (self._name(values, target, resume, region) if resume else token_hex(6))[:12]
        return StagingFolder(self.base, f"{self.prefix}{_BLOCKS}{name}", self)

    def _name(self, values: da.Array, target: Array, resume: Resume, region: Region | None) -> str:
        """Return a name that is equal for calls with the same values and target."""
        from zarr_dask.graph.tokens import layer_tokens

        what: Any = resume
        if not isinstance(resume, str):
            what = [token for _, token in layer_tokens(values)]
        place = canonical_location(target.store, target.path)
        facts: tuple[Any, ...] = (what, place, metadata_hash(target), self.chunks, self.shards)
        if region is not None:
            facts = (*facts, tuple((s.start, s.stop) for s in region))
        return sha256(repr(facts).encode()).hexdigest()


@dataclass(frozen=True)
class StagingFolder:
    """A folder for the blocks and the journal of their write."""

    base: Store
    folder: str
    between: StagingArray

    @property
    def array(self) -> Store:
        """The store whose root is the intermediate array."""
        return substore(self.base, f"{self.folder}/blocks")

    @property
    def journal(self) -> Store:
        """The store for the journal of their write."""
        return substore(self.base, f"{self.folder}/journal")

    def exists(self) -> bool:
        """True if the folder contains anything."""
        return any(self.base.list_dir(prefix_of(self.folder)))

    def remove(self) -> None:
        """Remove the blocks and the rest of their journal."""
        self.base.delete_prefix(prefix_of(self.folder))


def plan_staging(
    values: da.Array, target: Array, temp: Location | None
) -> tuple[StagingArray, Array]:
    """Return layout and location of an array between, and that array as its folder will hold it.

    Parameters
    ----------
    values
        The dask array whose blocks become stored objects.
    target
        The array that the values are for.
    temp
        Location of intermediate data; beside the target by default.

    Raises
    ------
    StoreError
        If there is no store for it.
    DataTypeError, MetadataError
        If it cannot hold the values.
    """
    base, prefix = temporary_base(target, temp)
    blocks = tuple(max(sizes, default=0) or 1 for sizes in values.chunks)
    spec = ArraySpec(shape=None, dtype=None, chunks=blocks, format=_FORMAT)
    data_type = new_array(values, open_store({}), "", spec, {}, _FORMAT).meta.data_type
    codecs = None if data_type.variable else _plain(data_type.itemsize)
    objects = target.meta.grid.largest_cell
    chunks, shards = grids_between(values.chunks, objects, data_type.typical_itemsize)
    between = StagingArray(base, prefix, chunks, shards, codecs)
    staging = StagingFolder(base or open_store({}), f"{prefix}planned", between)
    spec = replace(spec, chunks=chunks, shards=shards, codecs=codecs)
    return between, new_array(values, staging.array, "", spec, {}, _FORMAT)


def _plain(itemsize: int) -> list[dict[str, Any]]:
    """Return a codec chain without compression."""
    configuration = {"endian": "little"} if itemsize > 1 else {}
    return [{"name": "bytes", "configuration": configuration}]


def grids_between(blocks: Blocks, objects: Shape, itemsize: int) -> tuple[Cells, Cells | None]:
    """Return chunks and shards of an array whose stored objects are the blocks of a dask array.

    Parameters
    ----------
    blocks
        Sizes of the blocks.
    objects
        Shape of the new stored objects, which chunks should not exceed.
    itemsize
        Bytes of an element.

    Returns
    -------
    chunks, shards
        Shards are blocks of one size, if chunks that divide them help; else None.

    Examples
    --------
    >>> grids_between(((100, 100), (400,)), (200, 20), 8)
    ((100, 100), (100, 400))
    >>> grids_between(((30, 40), (400,)), (70, 20), 8)
    (((30, 40), 400), None)
    """
    lengths = [_one_size(sizes) for sizes in blocks]
    if any(length is None for length in lengths):
        cells = tuple(
            tuple(size for size in sizes if size) if length is None else length
            for sizes, length in zip(blocks, lengths, strict=True)
        )
        return cells, None
    block = tuple(length or 1 for length in lengths)
    chunk = [
        max(d for d in _divisors(length) if d <= max(wanted, 1))
        for length, wanted in zip(block, objects, strict=True)
    ]
    while prod(chunk) * itemsize < _SMALL and tuple(chunk) != block:
        # merge along the dimension with most chunks, which needs small chunks least
        axis = max(range(len(chunk)), key=lambda axis: (block[axis] // chunk[axis], axis))
        chunk[axis] = min(d for d in _divisors(block[axis]) if d > chunk[axis])
    return tuple(chunk), None if tuple(chunk) == block else block


def _one_size(sizes: tuple[int, ...]) -> int | None:
    """Return the size of all blocks along a dimension; None if more than the last one differ."""
    first = max(sizes[0], 1) if sizes else 1
    is_regular = all(size == first for size in sizes[:-1]) and (not sizes or sizes[-1] <= first)
    return first if is_regular else None


def _divisors(length: int) -> list[int]:
    small = [d for d in range(1, int(length**0.5) + 1) if length % d == 0]
    return sorted({*small, *(length // d for d in small)})


@contextmanager
def labels_folder(base: Store, prefix: str) -> Iterator[Store]:
    """Make room for the labels of blocks; also remove what killed processes have left of that."""
    for left in folders_of_processes(base, prefix):
        if left.state == "dead" and left.folder.startswith(f"{prefix}{_LABELS}"):
            with suppress(StoreError):  # they are in nobody's way
                left.remove()
    folder = f"{prefix}{_LABELS}{token_of_process()}"
    try:
        yield substore(base, folder)
    finally:
        base.delete_prefix(prefix_of(folder))


class ProcessFolder(NamedTuple):
    """A folder of intermediate arrays that one process needs, as its name says."""

    store: Store
    folder: str
    state: Literal["running", "dead", "unknown"]
    """State of that process; of one on another host it is unknown."""

    def remove(self) -> None:
        """Remove the folder."""
        self.store.delete_prefix(prefix_of(self.folder))


def folders_beside(store: Store) -> Iterator[ProcessFolder]:
    """Yield the folders beside a target or source that one process needs."""
    beside = sibling_location(store, ".") or archive_sibling(store)
    if beside is not None:
        yield from folders_of_processes(*beside)


def folders_of_processes(base: Store, prefix: str) -> Iterator[ProcessFolder]:
    """Yield the folders that one process needs, below a prefix of their names."""
    named = re.compile(rf"({re.escape(prefix)}(?:{_BLOCKS}|{_LABELS})([0-9a-f]{{16}}))/")
    with suppress(StoreError):  # what lies there may not be ours to list
        for found in filter(None, map(named.fullmatch, base.list_dir("").prefixes)):
            yield ProcessFolder(base, found[1], state_of_token(found[2]))


def temporary_base(target: Array, temp: Location | None) -> tuple[Store | None, str]:
    """Return the store for the intermediate array, and the prefix of its folder's name.

    Raises
    ------
    StoreError
        If there is no store for it.
    """
    if temp is not None:
        store = open_with_options_of(temp, target.store)
        check_folder(store, "", "temp=")
        return store, ""
    found = sibling_location(target.store, ".") or archive_sibling(target.store)
    if found is not None:
        return found
    if is_in_memory(target.store):
        return None, ""
    raise StoreError(
        f"{target.where} has no place beside it for the blocks of the dask array: it is the root "
        "of a bucket, or a session. Say where they go with temp=, a path or URL."
    )
