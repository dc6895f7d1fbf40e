"""Giving the credentials of stores to other processes.

Stores are pickled without credentials (`zarr_dask.stores.secrets`). Jobs, and lazy arrays that
are made while there is a cluster client, send the credentials by themselves; the functions here are
for all other cases.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from zarr_dask.jobs.engine.find_sources import walk_objects
from zarr_dask.stores.open import open_store
from zarr_dask.stores.secrets import CredentialsInitializer, HoldsCredentials, references_of

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["credentials_initializer", "references_in_graph", "share_credentials", "share_graph"]


def share_credentials(
    client: Client, *places: Any, storage_options: Mapping[str, Any] | None = None
) -> None:
    """Give the workers of a cluster, present and future, the credentials of stores.

    A worker plugin sends them separately from the graphs, which contain none. Jobs do this by
    themselves, and so do lazy arrays that are made while there is a client. Call it if the client
    is made after the array, or if arrays are passed to your own functions. Anyone who listens to an
    unencrypted cluster, or controls its scheduler, can read the credentials.

    Parameters
    ----------
    client
        Client of the cluster.
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
    >>> from distributed import Client
    >>> options = {"key": "mine", "secret": "hidden"}
    >>> x = zd.from_zarr("s3://bucket/a", storage_options=options)  # doctest: +SKIP
    >>> client = Client("tcp://scheduler:8786")  # doctest: +SKIP
    >>> zd.share_credentials(client, x)  # doctest: +SKIP
    """
    from zarr_dask.graph.credentials_plugin import share_references

    share_references(client, _references(places, storage_options))


def credentials_initializer(
    *places: Any, storage_options: Mapping[str, Any] | None = None
) -> CredentialsInitializer:
    """Return the credentials of stores, as the initializer of new processes.

    Parameters
    ----------
    *places
        Dask collections, arrays, groups, plans, stores, or paths and URLs.
    storage_options
        Options of the URLs.

    Returns
    -------
    Credentials
        For ``initializer=`` of `multiprocessing` and `concurrent.futures`, and for dask's
        configuration ``multiprocessing.initializer``. It pickles its credentials only for a child
        process that is being started.

    Examples
    --------
    >>> import dask, zarr_dask as zd
    >>> initializer = zd.credentials_initializer({})
    >>> with dask.config.set({"multiprocessing.initializer": initializer}):
    ...     pass  # x.compute(scheduler="processes")
    """
    return CredentialsInitializer(tuple(sorted(_references(places, storage_options))))


def references_in_graph(collection: Any) -> set[str]:
    """Return references to the credentials of the stores in a dask collection."""
    graph = collection.__dask_graph__()
    layers = getattr(graph, "layers", None)
    values = [graph] if layers is None else list(layers.values())
    return references_of(*walk_objects(values, (HoldsCredentials,)))


def share_graph(client: Client, collection: Any) -> None:
    """Give the workers of a cluster what they need to compute a dask collection."""
    from zarr_dask.graph.credentials_plugin import share_references

    share_references(client, references_in_graph(collection))


def _references(places: tuple[Any, ...], storage_options: Mapping[str, Any] | None) -> set[str]:
    return references_of(*(s for place in places for s in _stores(place, storage_options)))


def _stores(place: Any, storage_options: Mapping[str, Any] | None) -> Iterator[Any]:
    """Yield the stores in a value, or at a path or URL."""
    if isinstance(place, str | os.PathLike):
        place = open_store(place, storage_options)
    yield from walk_objects([place], (HoldsCredentials,))
