"""Receipts of open outputs of simulations for `zarr_dask.verify`."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from zarr_dask.errors import (
    MetadataChangedError,
    MetadataError,
    NodeNotFoundError,
    ResumeError,
    WriterNotFoundError,
)
from zarr_dask.formats.base import ancestors
from zarr_dask.formats.consolidated import without_consolidated
from zarr_dask.jobs.simulation.output import Output, open_output
from zarr_dask.jobs.simulation.progress import OutputProgress
from zarr_dask.journal import default_place
from zarr_dask.journal.manifest import Manifest
from zarr_dask.journal.receipts import StoredObject
from zarr_dask.stores.base import Store
from zarr_dask.stores.open import Location
from zarr_dask.stores.wrappers.base import is_read_only

__all__ = ["receipts_of_outputs"]

_NO_OUTPUT = (
    WriterNotFoundError,
    ResumeError,  # the journal lies inside the target
    NodeNotFoundError,  # the state of the arrays is checked elsewhere
    MetadataError,
    MetadataChangedError,
)


def receipts_of_outputs(
    store: Store, paths: Iterable[str], journal: Location | None
) -> list[Manifest]:
    """Return the receipts of the outputs that some arrays belong to, found by their parent groups.

    Objects that are not complete along the steps are left out, because their rank may write them
    again at any time.
    """
    store = without_consolidated(store)
    while is_read_only(store):
        store = without_consolidated(store.store)
    groups = sorted({above for path in paths for above in ancestors(path)})
    found = [_output_at(store, group, journal) for group in groups]
    return [_receipts(output) for output in found if output is not None]


def _output_at(store: Store, path: str, journal: Location | None) -> Output | None:
    places: list[Location | None] = [] if journal is None else [journal]
    if default_place(store, path) is not None:
        places.append(None)
    for place in places:
        with suppress(*_NO_OUTPUT):
            return open_output(store, path, place, None)
    return None


def _receipts(output: Output) -> Manifest:
    survey = OutputProgress(output)
    survey.update()
    objects: list[StoredObject] = []
    empty: set[str] = set()
    for name, index, receipt in survey.receipts():
        series = output.series[name]
        if receipt.stop < min(series.steps.start(index + 1), series.steps.extent):
            continue
        for coords, nbytes, checksum in receipt.objects:
            key = series.key(index, coords)
            if nbytes:
                objects.append(StoredObject(key, nbytes, checksum))
            else:
                empty.add(key)
    return Manifest(tuple(objects), frozenset(empty))
