"""Blocks without common ancestors, each of which can be computed and written by itself.

That is the case if every block is made by a single task, from a store or from nothing. A result
that several blocks need (an average that is subtracted, an array in memory, a rechunking) would be
computed again for each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import cloudpickle
import dask.array as da
import numpy as np
from dask.blockwise import Blockwise, optimize_blockwise

from zarr_dask._util.arguments import to_numpy
from zarr_dask.errors import GridError
from zarr_dask.graph.regions import PackedBlocks, pack_blocks, unpack_blocks
from zarr_dask.graph.write import Target, TreeReduceLayer, WriteCollection
from zarr_dask.grid.grid import Blocks, Grid
from zarr_dask.stores.secrets import NOT_PICKLED

__all__ = [
    "IndependentBlocks",
    "IndependentWrites",
    "computed_blocks",
    "independent_writes",
    "is_embarrassingly_parallel",
    "writing_keys",
]

_LARGEST_LAYER = 1 << 16
"""Largest pickled layer in bytes that is sent with every task."""


class IndependentWrites:
    """The write tasks of a graph whose blocks share no ancestor, each called by its number.

    Parameters
    ----------
    layer
        Makes everything that a block needs; depends on no other layer.
    tree
        Tells which blocks there are, and how to merge their results.
    """

    def __init__(self, layer: Blockwise, tree: TreeReduceLayer) -> None:
        self.layer = layer
        self.tree = tree

    def __reduce__(self) -> tuple[Any, ...]:
        return IndependentWrites, (self.layer, self.tree)

    @property
    def target(self) -> Target:
        """The target that the tasks write to."""
        return self.tree.target

    @property
    def annotations(self) -> dict[str, Any]:
        """The user's annotations of the tasks: retries, priority and so on."""
        return dict(self.layer.annotations or {})

    def __len__(self) -> int:
        return len(self._blocks)

    @cached_property
    def _blocks(self) -> Sequence[tuple[int, ...]]:
        return self.tree.blocks()

    def __call__(self, numbers: Iterable[int]) -> Any:
        """Run some of the tasks in sequence in this thread, and merge their results."""
        keys = [(self.layer.output, *self._blocks[number]) for number in numbers]
        culled, _ = self.layer.cull(set(keys), ())
        return self.target.merge([culled[key]() for key in keys])


def is_embarrassingly_parallel(array: da.Array) -> bool:
    """True if each block of an array is made by a task that needs no other one."""
    return _lone_layer(array) is not None


def _lone_layer(array: da.Array) -> Blockwise | None:
    """Return the layer that makes all blocks without any other layer; None if there is none."""
    first = (array.name,) + (0,) * array.ndim
    graph = optimize_blockwise(array.__dask_graph__(), keys={first})
    layer = graph.layers[array.name]
    return layer if isinstance(layer, Blockwise) and not graph.dependencies[array.name] else None


def writing_keys(write: WriteCollection) -> list[tuple[Any, ...]]:
    """Return the keys of the tasks of a write that each write a block."""
    (key,) = write.__dask_keys__()
    tree = write.__dask_graph__().layers[key[0]]
    if not isinstance(tree, TreeReduceLayer):
        return []
    return [(tree.source, *block) for block in tree.blocks()]


def independent_writes(write: WriteCollection) -> IndependentWrites | None:
    """Return the tasks of a write that can run one by one; None if blocks share ancestors."""
    (key,) = write.__dask_keys__()
    graph = optimize_blockwise(write.__dask_graph__(), keys={key})
    tree = write.__dask_graph__().layers[key[0]]
    if not isinstance(tree, TreeReduceLayer) or graph.dependencies.get(tree.source) != set():
        return None
    layer = graph.layers[tree.source]
    if not isinstance(layer, Blockwise) or not _is_small(layer):
        return None
    return IndependentWrites(layer, tree)


class IndependentBlocks:
    """The blocks of an array that share no ancestor, computed by the caller on demand.

    A task that needs several of them computes them in sequence, in its own thread, and none of them
    is sent between processes.

    Parameters
    ----------
    layer
        Makes everything that a block needs; depends on no other layer.
    chunks
        Sizes of the blocks along each dimension.
    """

    def __init__(self, layer: Blockwise, chunks: Blocks) -> None:
        self.layer = layer
        self.chunks = chunks

    def __reduce__(self) -> tuple[Any, ...]:
        return _computed_blocks, (self.layer, pack_blocks(self.chunks))

    @cached_property
    def _grid(self) -> Grid:
        return Grid.of(tuple(map(sum, self.chunks)), self.chunks)

    def read(self, region: tuple[slice, ...]) -> np.ndarray:
        """Return a region; blocks that it overlaps only in part are computed as a whole.

        Raises
        ------
        GridError
            If a block does not have the shape that dask expects.
        DataTypeError
            If a block is masked, or of a type that cannot become a NumPy array.
        """
        parts = list(self._grid.parts(region))
        shape = tuple(s.stop - s.start for s in region)
        if len(parts) == 1 and parts[0].whole:
            return self._block(parts[0].coords)
        values: np.ndarray | None = None
        for part in parts:
            block = self._block(part.coords)[part.inside]
            if values is None:
                values = np.empty(shape, block.dtype)
            values[part.out] = block
        return np.empty(shape) if values is None else values

    def _block(self, coords: tuple[int, ...]) -> np.ndarray:
        key = (self.layer.output, *coords)
        culled, _ = self.layer.cull({key}, ())
        block = culled[key]()
        expected = tuple(sizes[i] for sizes, i in zip(self.chunks, coords, strict=True))
        found = to_numpy(block, f"the block {coords}")
        if found.shape != expected:
            raise GridError(
                f"the block {coords} has the shape {found.shape}, but dask said {expected}; "
                "give map_blocks the right chunks=."
            )
        return found


def _computed_blocks(layer: Blockwise, blocks: PackedBlocks) -> IndependentBlocks:
    return IndependentBlocks(layer, unpack_blocks(blocks))


def computed_blocks(array: da.Array) -> IndependentBlocks | None:
    """Return an object that computes the blocks one by one; None if they share ancestors."""
    layer = _lone_layer(array)
    if layer is None or layer.annotations or not _is_small(layer):
        return None
    return IndependentBlocks(layer, array.chunks)


def _is_small(layer: Blockwise) -> bool:
    """True if a layer can be sent with every task; one of open files cannot be sent at all."""
    try:
        return len(cloudpickle.dumps(layer)) <= _LARGEST_LAYER
    except NOT_PICKLED:
        return False
