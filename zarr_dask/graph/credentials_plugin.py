"""Credentials for the workers of a cluster, separate from graphs, which hold none.

They are sent by a worker plugin, once for each client and credential; the scheduler also sends it
to workers that join later. This happens automatically when a lazy array is made or a job begins
while there is a client.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from distributed import Client, WorkerPlugin

from zarr_dask.stores.secrets import keep_credentials, known_credentials, references_of

__all__ = ["share_references", "share_with_client"]

_LOG = logging.getLogger(__name__)
_PATIENCE = 30.0
"""Maximum seconds to wait for workers to take credentials."""


class _CredentialsPlugin(WorkerPlugin):
    """A plugin that gives a worker credentials when it starts."""

    idempotent = True

    def __init__(self, secrets: dict[str, str]) -> None:
        self._secrets = secrets

    def setup(self, worker: Any) -> None:  # noqa: ARG002
        """Store them in the worker's process."""
        keep_credentials(self._secrets)

    def __repr__(self) -> str:
        return f"<credentials {sorted(self._secrets)}>"


class _SharedReferences:
    """The references of the credentials that the workers of a client have."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: WeakKeyDictionary[Client, set[str]] = WeakKeyDictionary()

    def missing(self, client: Client, references: Iterable[str]) -> list[str]:
        with self._lock:
            return sorted(set(references) - self._known.get(client, set()))

    def note(self, client: Client, reference: str) -> None:
        with self._lock:
            self._known.setdefault(client, set()).add(reference)


_SHARED = _SharedReferences()


def share_references(client: Client, references: Iterable[str]) -> None:
    """Send credentials to the workers of a cluster, including those that join later.

    A client that is used from its own event loop sends them as soon as that is free.
    """
    for reference in _SHARED.missing(client, references):
        secrets = known_credentials([reference])
        if not secrets:
            continue  # this process does not have them either
        plugin = _CredentialsPlugin(secrets)
        _register(client, plugin, f"zarr-dask-credentials-{reference}")
        _SHARED.note(client, reference)


def _register(client: Client, plugin: WorkerPlugin, name: str) -> None:
    if client.asynchronous:
        done = client.register_plugin(plugin, name=name)
        client.loop.add_callback(lambda: done)
        return
    try:
        client.sync(client.register_plugin, plugin, name=name, callback_timeout=_PATIENCE)
    except TimeoutError:
        _LOG.warning(
            "a worker of %r has not taken credentials within %.0f s; its host may be out of reach",
            client,
            _PATIENCE,
        )


def share_with_client(value: Any) -> None:
    """Send the credentials of a value that becomes part of a graph, if there is a client."""
    client = _current_client()
    if client is not None:
        with suppress(OSError):  # a lost cluster raises when it is to compute something
            share_references(client, references_of(value))


def _current_client() -> Client | None:
    try:
        client = Client.current()
    except ValueError:
        return None
    return client if client.status == "running" else None
