"""Making steps visible: done by one process, after all ranks have recorded them as stored.

The order is: stored objects (written by the ranks, including coordinates), then the metadata of the
arrays, coordinates last, then consolidated metadata, from the group of the output up to the root.
With consolidated metadata, readers see all arrays grow at once. Other readers may see one array
longer than another for a moment, each with all of its steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from zarr_dask._util.threads import parallel_for
from zarr_dask._util.warnings import warn
from zarr_dask.array.resize import prune_outside, resize_grid
from zarr_dask.errors import StepError, StepNotShownWarning, StepsMissingError
from zarr_dask.formats.base import ArrayMeta, ReadOptions
from zarr_dask.formats.consolidated import consolidated_groups, has_consolidated
from zarr_dask.grid.grid import Grid, Shape
from zarr_dask.hierarchy.edit import consolidate_group
from zarr_dask.jobs.simulation.decomposition import share_of
from zarr_dask.jobs.simulation.output import Output, OutputArray, changed_error
from zarr_dask.jobs.simulation.progress import OutputProgress, RestartHistory, StoredObjects
from zarr_dask.jobs.simulation.rank_log import REWINDS

__all__ = ["Publisher", "publish_length"]

_SHOWN_KEYS = 3


def lengths(output: Output) -> dict[str, int]:
    """Return the number of visible steps of each array."""
    return {name: _present(output, one).shape[one.axis] for name, one in output.series.items()}


def _present(output: Output, series: OutputArray) -> ArrayMeta:
    """Return the current metadata of an array, whose attributes may have changed."""
    array = series.array
    meta = output.node_format.read(output.store, array.path, ReadOptions(), found={})
    if not isinstance(meta, ArrayMeta) or meta.grid.ndim != array.ndim:
        raise changed_error(array)
    shape = series.shape_with(meta.shape[series.axis])
    bare = replace(array.meta, grid=_grid(array.meta, shape), attributes=meta.attributes)
    documents = output.node_format.documents
    if documents(bare, array.path) != documents(meta, array.path):
        raise changed_error(array)
    return meta


def _documents(output: Output) -> Iterator[tuple[str, str]]:
    """Yield the metadata of the growing arrays, by key."""
    for one in output.series.values():
        documents = output.node_format.documents(_present(output, one), one.array.path)
        yield from ((key, bytes(text).decode()) for key, text in documents.items())


def _grid(meta: ArrayMeta, shape: Shape) -> Grid:
    return resize_grid(meta.grid, shape, sharded=meta.codecs.serializer.is_sharding)


def publish_length(output: Output, steps: int) -> None:
    """Set the visible length of all arrays to this many steps."""
    ordered = sorted(output.series.values(), key=lambda one: one.is_coordinate)
    store, node_format = output.store, output.node_format
    for one in ordered:
        meta = _present(output, one)
        changed = replace(meta, grid=_grid(meta, one.shape_with(steps)))
        if changed.shape == meta.shape:
            continue
        before = node_format.documents(meta, one.array.path)
        for key, document in node_format.documents(changed, one.array.path).items():
            if document != before.get(key):
                store.set(key, [document])
    consolidate(output)


def consolidate(output: Output) -> None:
    """Write the consolidated metadata of the output's group, and of parent groups that have it."""
    path, store, node_format = output.group.path, output.store, output.node_format
    if has_consolidated(node_format):
        above = [one for one in consolidated_groups(store, path, node_format) if one != path]
        for group in (path, *sorted(above, key=len, reverse=True)):
            consolidate_group(store, group, node_format)


def rewind(output: Output, step: int, run: str | None) -> None:
    """Discard a step and all later ones; the caller holds the lock of the output.

    The steps are hidden first, so that nothing visible is ever overwritten.
    """
    if max(lengths(output).values()) > step:
        publish_length(output, step)
    number = RestartHistory(output.folder.restarts()).last + 1
    appender = output.folder.appender(REWINDS, list)
    try:
        appender.add({"rewind": number, "from_step": step, **({"run": run} if run else {})})
    finally:
        appender.close()


class Publisher:
    """Makes the steps of an output visible.

    Parameters
    ----------
    output
        Output whose steps are published.
    """

    def __init__(self, output: Output) -> None:
        self._output = output
        self._survey = OutputProgress(output)
        self._owned = {
            name: {rank: own for rank in range(one.owners.ranks) if (own := self._own(one, rank))}
            for name, one in output.series.items()
        }

    def _own(self, series: OutputArray, rank: int) -> tuple[tuple[int, ...], ...]:
        return share_of(series.owners, series.grid, rank, shared=self._output.gathers).own

    def stored(self) -> int:
        """Return the number of steps that all ranks have stored of all arrays."""
        self._survey.update()
        return self._stored()

    def _stored(self) -> int:
        return min(
            self._survey.stored(rank, name) for name, own in self._owned.items() for rank in own
        )

    def publish(self, step: int | None, *, flush: bool) -> int:
        """Make steps visible; see `zarr_dask.Writer.publish`."""
        output = self._output
        if step is not None:
            step = checked_step(output, step)
        with output.folder.exclusive():
            self._survey.update()
            wanted = self._stored() if step is None else step + 1
            shown = lengths(output)
            end = max(wanted if flush else output.border(wanted), *shown.values(), 0)
            missing = list(self._missing(end))
            if not missing:
                missing = self._damaged(min(shown.values()), end)
            if missing:
                raise StepsMissingError(output.where, end - 1, missing)
            if end:
                publish_length(output, end)
            self._survey.forget(end)
        if step is not None and end <= step:
            warn(
                f"{output.where}: publish({step}) shows the steps before {end} only, because the "
                f"stored objects that hold step {step} hold later ones as well. Publish the last "
                "of those, or let all ranks flush and pass flush=True.",
                StepNotShownWarning,
            )
        return end

    def finish(self) -> int:
        """Make everything visible and end the output; see `zarr_dask.Writer.finish`."""
        output = self._output
        output.folder.restarts()
        output.folder.check_idle("rank-")
        self._survey.update()
        most = max(
            self._survey.stored(rank, name) for name, own in self._owned.items() for rank in own
        )
        end = self.publish(most - 1, flush=True) if most else 0
        for one in output.series.values():
            array = one.array
            meta = _present(output, one)
            prefix = output.node_format.data_prefix(array.path)
            prune_outside(array.store, prefix, meta, array.where)
        output.end(end, dict(_documents(output)))
        return end

    def _missing(self, end: int) -> Iterator[tuple[int, str, str]]:
        for name, own in self._owned.items():
            one = self._output.series[name]
            for rank, coords in own.items():
                stored = self._survey.stored(rank, name)
                if stored < end:
                    first, last = one.steps.find(stored), one.steps.find(end - 1)
                    keys = [one.key(first, where) for where in coords[:_SHOWN_KEYS]]
                    count = (last - first + 1) * len(coords)
                    rest = f" and {count - len(keys)} more" if count > len(keys) else ""
                    what = f"{', '.join(keys)}{rest} (steps {stored} to {end - 1})"
                    yield rank, name, what

    def _damaged(self, start: int, end: int) -> list[tuple[int, str, str]]:
        """Return stored objects of newly visible steps that do not match their receipts."""
        found: list[tuple[int, str, str]] = []

        def check(item: tuple[int, OutputArray, int, StoredObjects]) -> None:
            rank, one, index, receipt = item
            whole = receipt.stop == min(one.steps.start(index + 1), one.steps.extent)
            for coords, nbytes, _ in receipt.objects:
                key = one.key(index, coords)
                size = self._output.store.size(key) or 0
                # an incomplete object may be replaced at any moment
                if size != nbytes if whole else nbytes and not size:
                    found.append((rank, one.name, f"{key} has {size} bytes, not {nbytes}"))

        parallel_for(check, self._new(start, end), None)
        return sorted(found)

    def _new(self, start: int, end: int) -> Iterator[tuple[int, OutputArray, int, StoredObjects]]:
        if start >= end:
            return
        for name, own in self._owned.items():
            one = self._output.series[name]
            for index in range(one.steps.find(start), one.steps.find(end - 1) + 1):
                for rank in own:
                    receipt = self._survey.receipt(rank, name, index)
                    if receipt is not None:
                        yield rank, one, index, receipt


def checked_step(output: Output, step: Any, *, end: bool = False) -> int:
    """Return a valid number of a step of an output as an int; NumPy integers are accepted.

    With `end`, the number after the last step is valid too: a run that starts there has nothing to
    do.

    Raises
    ------
    StepError
        If it is not valid.
    """
    is_integer = isinstance(step, int | np.integer) and not isinstance(step, bool)
    if not is_integer or step < 0:
        raise StepError(f"step={step!r}: expected the number of a step, from 0 on.")
    if output.capacity is not None and step >= output.capacity + end:
        raise StepError(
            f"{output.where} has room for {output.capacity} steps, 0 to {output.capacity - 1}; "
            f"step {step} lies beyond. Create the output with a larger capacity, or with None."
        )
    return int(step)
