"""From a dask array to the tasks that write it.

The result is not a `dask.array.Array` but a collection with one output key: a ``Blockwise`` of
write tasks, a tree that merges their results, and a last task that makes the result visible. Both
are expanded into tasks only in the scheduler. A target is any object with the methods of `Target`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, Protocol

import dask.array as da
import numpy as np
from dask.base import DaskMethodsMixin, tokenize
from dask.blockwise import blockwise, optimize_blockwise
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer
from dask.task_spec import Task, TaskRef
from dask.threaded import get as threaded_get

from zarr_dask.graph.regions import BlockRegions
from zarr_dask.graph.sharing import share_with_current_client
from zarr_dask.grid.grid import Shape

__all__ = ["Target", "TreeReduceLayer", "WriteCollection", "join_writes", "write_array"]


class Target(Protocol):
    """The object that write tasks write to."""

    def write(self, block: np.ndarray, region: tuple[slice, ...]) -> Any:
        """Write the stored objects of a region; return a result to be merged."""
        ...

    def merge(self, results: Sequence[Any]) -> Any:
        """Merge the results of several writes into one."""
        ...

    def finish(self, result: Any) -> Any:
        """Make the result visible; return the result for the user."""
        ...


def write_array(
    array: da.Array,
    target: Target,
    origin: Shape,
    token: str,
    only: Sequence[tuple[int, int]] | None = None,
    topic: str = "",
    *,
    in_order: bool = False,
) -> WriteCollection:
    """Return the collection that writes every block of a dask array.

    Parameters
    ----------
    array
        An array whose blocks are cut so that no stored object lies in two of them.
    target
        The object to write to; small when pickled.
    origin
        Offset of the first block in the target.
    token
        Identifies this write.
    only
        The blocks to write, as first numbers and counts in C order; all by default.
    topic
        Topic of the events by which each task tells the cluster's clients that it is done; "" for
        none.
    in_order
        Let schedulers write the blocks in C order, for blocks that share what has to wait in memory
        until each of them is written.
    """
    share_with_current_client(target)
    indices = tuple(range(array.ndim))
    write = f"zarr-write-{tokenize(array.name, token, origin)}"
    regions = BlockRegions(array.chunks, origin)
    layer = blockwise(
        _write_block,
        write,
        indices,
        array.name,
        indices,
        regions,
        indices,
        target,
        None,
        topic,
        None,
        token,
        None,
        numblocks={array.name: array.numblocks},
        dependencies=(),
    )
    merge = f"zarr-finish-{tokenize(array.name, token, origin)}"
    tree = TreeReduceLayer(merge, write, array.numblocks, target, only, in_order=in_order)
    if only is not None and not only:
        return WriteCollection(HighLevelGraph({merge: tree}, {merge: set()}), (merge, 0))
    graph = HighLevelGraph(
        {**array.__dask_graph__().layers, write: layer, merge: tree},
        {**array.__dask_graph__().dependencies, write: {array.name}, merge: {write}},
    )
    return WriteCollection(graph, (merge, 0))


def join_writes(
    writes: Sequence[WriteCollection], end: Callable[[tuple[Any, ...]], tuple[Any, ...]]
) -> WriteCollection:
    """Join several writes into one, whose ``compute()`` returns their results as a tuple.

    Their common tasks are in the graph once. `end` is called with the tuple when all are done.
    """
    outputs = [key for write in writes for key in write.__dask_keys__()]
    name = f"zarr-join-{tokenize(outputs)}"
    key = (name, 0)
    task = Task(key, _together, end, *map(TaskRef, outputs))
    graphs = [write.__dask_graph__() for write in writes]
    merged = HighLevelGraph.merge(*graphs)
    layers = {**merged.layers, name: MaterializedLayer({key: task})}
    return WriteCollection(
        HighLevelGraph(layers, {**merged.dependencies, name: {output[0] for output in outputs}}),
        key,
    )


def _together(end: Callable[[tuple[Any, ...]], tuple[Any, ...]], *results: Any) -> tuple[Any, ...]:
    return end(results)


def _write_block(
    block: np.ndarray, region: tuple[slice, ...], target: Target, topic: str, token: str
) -> Any:
    result = target.write(block, region)
    if topic:
        _tell(topic, (token, *(s.start for s in region)), np.asarray(block).nbytes)
    return result


def _tell(topic: str, task: tuple[str | int, ...], nbytes: int) -> None:
    """Log an event if the task runs in a worker of a cluster; this takes no time."""
    from distributed import get_worker

    try:
        worker = get_worker()
    except ValueError:
        return
    worker.log_event(topic, {"task": task, "nbytes": nbytes})


class TreeReduceLayer(Layer):
    """A layer that merges the results of many tasks, a few at a time, down to one output.

    The tasks are only created when they are accessed, which happens in the scheduler. Dask orders
    the blocks below one merge as it likes; where results are merged one after the other, it makes
    what the first one needs first.

    Parameters
    ----------
    name
        Name of the layer; its output key is ``(name, 0)``.
    source
        Name of the layer whose results are merged.
    numblocks
        Number of its blocks along each dimension.
    target
        Has the method that merges.
    only
        The blocks that there are results of; see `write_array`.
    in_order
        Merge one result after the other.
    """

    split = 32
    has_legacy_tasks = False

    def __init__(
        self,
        name: str,
        source: str,
        numblocks: Shape,
        target: Target,
        only: Sequence[tuple[int, int]] | None = None,
        *,
        in_order: bool = False,
    ) -> None:
        super().__init__()
        self.name = name
        self.source = source
        self.numblocks = numblocks
        self.target = target
        self.only = only
        self.in_order = in_order
        self._tasks: dict[Any, Task] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        plain = (self.name, self.source, self.numblocks, self.target, self.only)
        return partial(TreeReduceLayer, in_order=self.in_order), plain

    def is_materialized(self) -> bool:
        """True if the tasks exist already."""
        return self._tasks is not None

    def get_output_keys(self) -> set[Any]:
        """Return the only output key."""
        return {(self.name, 0)}

    @property
    def _dict(self) -> dict[Any, Task]:
        if self._tasks is None:
            self._tasks = dict(self._levels())
        return self._tasks

    def blocks(self) -> list[tuple[int, ...]]:
        """Return the coordinates of the blocks that there are results of."""
        return list(self._blocks())

    def _levels(self) -> Iterator[tuple[Any, Task]]:
        waiting: list[tuple[Any, ...]] = [(self.source, *block) for block in self.blocks()]
        level = 0
        while len(waiting) > (1 if self.in_order else self.split):
            merged: list[tuple[Any, ...]] = []
            for number, first in enumerate(range(0, len(waiting), self.split)):
                key: tuple[Any, ...] = (f"{self.name}-{level}", number)
                members = waiting[first : first + self.split]
                if self.in_order:
                    key = yield from self._in_turn(key, members)
                else:
                    yield key, Task(key, _merge, self.target, *map(TaskRef, members))
                merged.append(key)
            waiting, level = merged, level + 1
        key = (self.name, 0)
        yield key, Task(key, _finish, self.target, *map(TaskRef, waiting))

    def _in_turn(
        self, key: tuple[Any, ...], members: Sequence[tuple[Any, ...]]
    ) -> Generator[tuple[Any, Task], None, tuple[Any, ...]]:
        """Yield tasks that merge one result after the other; return the key of the last one.

        Of two results, dask makes the one first that has more tasks below it, where a task counts
        once for each way to it. The first result is below its merge in two ways.
        """
        total = (*key, "none")
        yield total, Task(total, _merge_none, self.target, TaskRef(members[0]))
        for number, member in enumerate(members):
            both = map(TaskRef, (total, member))
            total = (*key, number)
            yield total, Task(total, _merge, self.target, *both)
        return total

    def _blocks(self) -> Iterator[tuple[int, ...]]:
        if self.only is None:
            yield from product(*map(range, self.numblocks))
            return
        for first, count in self.only:
            for number in range(first, first + count):
                yield tuple(map(int, np.unravel_index(number, self.numblocks)))

    def __getitem__(self, key: Any) -> Task:
        return self._dict[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._dict)

    def __len__(self) -> int:
        return len(self._dict)


def _merge(target: Target, *results: Any) -> Any:
    return target.merge(results)


def _merge_none(target: Target, _: Any) -> Any:
    return target.merge(())


def _finish(target: Target, *results: Any) -> Any:
    return target.finish(target.merge(results))


class WriteCollection(DaskMethodsMixin):
    """A write that is waiting to be computed.

    ``compute()`` runs it and returns what the target's ``finish`` does; ``persist()`` and
    `distributed`'s ``client.compute`` start it.
    """

    def __init__(self, graph: HighLevelGraph, key: tuple[str, int]) -> None:
        self._graph = graph
        self._key = key

    def __repr__(self) -> str:
        return f"<zarr_dask.graph.WriteCollection {self._key[0]}: compute() writes>"

    @property
    def dask(self) -> HighLevelGraph:
        """The graph, by the name that dask's own collections use."""
        return self._graph

    def __dask_graph__(self) -> HighLevelGraph:
        return self._graph

    def __dask_keys__(self) -> list[Any]:
        return [self._key]

    def __dask_layers__(self) -> tuple[str, ...]:
        return (self._key[0],)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return ("WriteCollection", self._key)

    @staticmethod
    def __dask_optimize__(graph: HighLevelGraph, keys: Any, **options: Any) -> HighLevelGraph:
        # keeps layers unexpanded: annotations survive, and the scheduler creates the tasks
        wanted = set(flatten(keys))
        return optimize_blockwise(graph, keys=wanted).cull(wanted)

    __dask_scheduler__ = staticmethod(threaded_get)

    def __dask_postcompute__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _only, ()

    def __dask_postpersist__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _rebuilt, (self._key,)


def _only(results: Sequence[Any]) -> Any:
    return results[0]


def _rebuilt(
    graph: Any, key: tuple[str, int], rename: Mapping[str, str] | None = None
) -> WriteCollection:
    name = (rename or {}).get(key[0], key[0])
    return WriteCollection(
        graph
        if isinstance(graph, HighLevelGraph)
        else HighLevelGraph.from_collections(name, graph),
        (name, key[1]),
    )
