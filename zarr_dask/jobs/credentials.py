"""Handing credentials over to other processes: which ones, to whom, and by what.

Stores are pickled without them (`zarr_dask.stores.credentials`). Jobs and lazy arrays that are made
while a client of a cluster is there hand over what they need by themselves; the functions here are
for all others.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from zarr_dask.jobs.write.sources import held_objects
from zarr_dask.stores.credentials import Credentials, references_of
from zarr_dask.stores.fsspec import FsspecStore
from zarr_dask.stores.http import HTTPStore
from zarr_dask.stores.obstore import ObstoreStore
from zarr_dask.stores.urls import open_store

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["credentials_of", "references_in_graph", "share_credentials", "share_graph"]

_REMOTE = (FsspecStore, HTTPStore, ObstoreStore)


def share_credentials(
    client: Client, *places: Any, storage_options: Mapping[str, Any] | None = None
) -> None:
    """Give the workers of a cluster the credentials of stores, those that come later included.

    They are sent beside the graphs, which have none, by a plugin of the workers. It is done by
    itself for jobs, and for lazy arrays that are made while there is a client; it is needed where a
    client is made after the array, or arrays are handed to functions of your own. Who listens to an
    unencrypted cluster, or controls its scheduler, can read them.

    Parameters
    ----------
    client
        Of the cluster.
    *places
        Dask collections, arrays, groups, plans, stores, or paths and URLs.
    storage_options
        Options of the URLs.

    Raises
    ------
    StoreError
        If no backend serves a URL.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> x = zd.from_zarr("s3://bucket/a", storage_options=given)  # doctest: +SKIP
    >>> client = Client("tcp://scheduler:8786")  # doctest: +SKIP
    >>> zd.share_credentials(client, x)  # doctest: +SKIP
    """
    from zarr_dask.graph.credentials_plugin import share_references

    share_references(client, _references(places, storage_options))


def credentials_of(*places: Any, storage_options: Mapping[str, Any] | None = None) -> Credentials:
    """The credentials of stores, as the initializer of processes that are started.

    Parameters
    ----------
    *places, storage_options
        As for `share_credentials`.

    Returns
    -------
    Credentials
        For ``initializer=`` of `multiprocessing` and `concurrent.futures`, and as dask's
        configuration ``multiprocessing.initializer``. Pickled for anything but a child that is
        being started it holds no credentials.

    Examples
    --------
    >>> import dask, zarr_dask as zd
    >>> initializer = zd.credentials_of({})
    >>> with dask.config.set({"multiprocessing.initializer": initializer}):
    ...     pass  # x.compute(scheduler="processes")
    """
    return Credentials(tuple(sorted(_references(places, storage_options))))


def references_in_graph(collection: Any) -> set[str]:
    """References to the credentials of the stores that a dask collection holds."""
    graph = collection.__dask_graph__()
    layers = getattr(graph, "layers", None)
    values = [graph] if layers is None else list(layers.values())
    return references_of(*held_objects(values, _REMOTE))


def share_graph(client: Client, collection: Any) -> None:
    """Give the workers of a cluster what they need to compute a dask collection."""
    from zarr_dask.graph.credentials_plugin import share_references

    share_references(client, references_in_graph(collection))


def _references(places: tuple[Any, ...], storage_options: Mapping[str, Any] | None) -> set[str]:
    return references_of(*(s for place in places for s in _stores(place, storage_options)))


def _stores(place: Any, storage_options: Mapping[str, Any] | None) -> Iterator[Any]:
    """The stores that are meant by a place."""
    if isinstance(place, str | os.PathLike):
        place = open_store(place, storage_options)
    yield from held_objects([place], _REMOTE)
