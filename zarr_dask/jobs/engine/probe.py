"""A look at the workers of a cluster before a job begins: one round trip.

A task whose function cannot be loaded on a worker says so in that worker's log alone, and the
client waits. Here every worker answers first: if it has the package, which version, those that
functions of the graph are of, and what it sees of the folders that are written.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from zarr_dask._util.warnings import warn
from zarr_dask.errors import WorkerSetupError
from zarr_dask.jobs.engine.plan import format_bytes
from zarr_dask.jobs.engine.workers import ask_workers, few, known_workers, runs_elsewhere
from zarr_dask.stores.base import Store
from zarr_dask.stores.open import local_path

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["check_workers"]

_PATIENCE = 30.0
"""Seconds within which every worker must have answered."""


@dataclass(frozen=True)
class _Folder:
    """A folder as a worker sees it; only the nearest one above it may exist."""

    seen: str
    """The nearest folder that exists."""
    writable: bool
    free: int
    """Bytes that may still be written."""
    files: int | None
    """Files that may still be made; None if the file system has no such limit."""


@dataclass(frozen=True)
class _WorkerAnswer:
    """Answer of one worker."""

    release: str
    folders: tuple[_Folder, ...]
    lacking: tuple[str, ...]
    """Packages that it cannot import."""


def _release() -> str:
    try:
        return version("zarr-dask")
    except PackageNotFoundError:
        return "0"


def _look(folders: tuple[str, ...], packages: tuple[str, ...]) -> _WorkerAnswer:
    """Return what this process sees; runs on workers."""
    lacking = tuple(name for name in packages if not _is_there(name))
    return _WorkerAnswer(_release(), tuple(map(_look_at, folders)), lacking)


def _is_there(package: str) -> bool:
    try:
        return package in sys.modules or find_spec(package) is not None
    except (ImportError, ValueError):  # of a module without a specification
        return False


def _look_at(folder: str) -> _Folder:
    every = (Path(folder), *Path(folder).parents)
    nearest = next((one for one in every if one.is_dir()), every[-1])
    found = os.statvfs(nearest) if hasattr(os, "statvfs") else None
    return _Folder(
        str(nearest),
        os.access(nearest, os.W_OK | os.X_OK),
        found.f_bavail * found.f_frsize if found else 1 << 62,
        found.f_favail if found and found.f_files else None,
    )


class _ProbedWorkers:
    """Workers that have answered, for each client and folder, so that they are asked once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: WeakKeyDictionary[Client, set[tuple[str, str]]] = WeakKeyDictionary()

    def knows(self, client: Client, facts: set[tuple[str, str]]) -> bool:
        with self._lock:
            return facts <= self._known.get(client, set())

    def note(self, client: Client, facts: set[tuple[str, str]]) -> None:
        with self._lock:
            self._known.setdefault(client, set()).update(facts)


_PROBED = _ProbedWorkers()


def check_workers(
    client: Client | None,
    targets: Iterable[tuple[Store, str]],
    *,
    nbytes: int = 0,
    files: int = 0,
    packages: Iterable[str] = (),
) -> None:
    """Refuse to begin a job that workers of a cluster cannot run; ask each of them once.

    Parameters
    ----------
    client
        A cluster; None for schedulers of this process.
    targets
        Stores and paths that are written. Of local folders it is checked that workers can write
        there, and that there is room.
    nbytes
        Stored bytes that will be written, as estimated; 0 if unknown.
    files
        Stored objects that will be written.
    packages
        Packages and modules that tasks import when they are loaded.

    Raises
    ------
    WorkerSetupError
        If a worker lacks one of the packages or zarr_dask, has another version of the latter, or
        cannot write to a folder.

    Warns
    -----
    ZarrDaskWarning
        If workers do not answer, or there is little room.
    """
    if client is None or client.asynchronous or not runs_elsewhere(client):
        return
    places = (local_path(store, path) for store, path in targets)
    folders = tuple(dict.fromkeys(str(Path(place).parent) for place in places if place))
    workers = known_workers(client)
    packages = tuple(packages)
    asked = [*(folders or ("",)), *(f"import {name}" for name in packages)]
    facts = {(address, fact) for address in workers for fact in asked}
    if _PROBED.knows(client, facts):
        return
    answers = _ask(client, folders, packages)
    if not answers:
        return
    _check_package(answers)
    for number, folder in enumerate(folders):
        seen = {at: one.folders[number] for at, one in answers.items()}
        _check_folder(folder, _look_at(folder), seen)
        _warn_if_full(folder, seen, nbytes, files)
    _PROBED.note(client, {(address, fact) for address in answers for fact in asked})


def _ask(client: Client, folders: tuple[str, ...], packages: tuple[str, ...]) -> dict[str, Any]:
    found = ask_workers(client, _look, folders, packages, seconds=_PATIENCE)
    late = {at for at, one in found.items() if isinstance(one, TimeoutError)}
    if late:
        warn(
            f"{len(late)} of {len(found)} workers have not answered within {_PATIENCE:.0f} s: "
            f"{few(late)}. Their hosts may be out of reach. The job begins on the others; its "
            "tasks wait as long as the scheduler believes that all are there."
        )
    # a worker that has just died is no matter: its tasks go to others
    return {at: one for at, one in found.items() if not isinstance(one, OSError)}


def _check_package(answers: Mapping[str, Any]) -> None:
    failed = {at: one for at, one in answers.items() if isinstance(one, BaseException)}
    if failed:
        first = next(iter(failed.values()))
        raise WorkerSetupError(
            f"{len(failed)} of {len(answers)} workers cannot run tasks of zarr_dask: "
            f"{few(failed)} said {type(first).__name__}: {first}. Nothing was written; install "
            f"zarr-dask {_release()} where the workers run."
        ) from first
    own = _release()
    others = {at: one.release for at, one in answers.items() if one.release != own}
    if others:
        raise WorkerSetupError(
            f"{len(others)} of {len(answers)} workers have another version of zarr-dask: "
            f"{few(others)} {next(iter(others.values()))}, this process {own}. Nothing was "
            "written; install the same version everywhere."
        )
    lacking = {at: one.lacking for at, one in answers.items() if one.lacking}
    if lacking:
        names = ", ".join(sorted({name for one in lacking.values() for name in one}))
        raise WorkerSetupError(
            f"{len(lacking)} of {len(answers)} workers cannot import {names}, of which functions "
            f"in the graph are: {few(lacking)}. Nothing was written; install it where the workers "
            "run, or send it to them with client.upload_file."
        )


def _check_folder(folder: str, own: _Folder, answers: Mapping[str, _Folder]) -> None:
    lacking = {at: one for at, one in answers.items() if len(one.seen) < len(own.seen)}
    if lacking:
        raise WorkerSetupError(
            f"{len(lacking)} of {len(answers)} workers do not see the folder {own.seen}, in which "
            f"the target is to be: {few(lacking)}. Nothing was written; choose a folder on a file "
            "system that all hosts share, or an object store."
        )
    refused = {at: one for at, one in answers.items() if not one.writable}
    if refused:
        raise WorkerSetupError(
            f"{len(refused)} of {len(answers)} workers may not write to {folder}: "
            f"{few(refused)}. Nothing was written; change the permissions, or the user that runs "
            "the workers."
        )


def _warn_if_full(folder: str, answers: Mapping[str, _Folder], nbytes: int, files: int) -> None:
    free = min((one.free for one in answers.values()), default=nbytes)
    left = min((one.files for one in answers.values() if one.files is not None), default=files)
    if free < nbytes:
        warn(
            f"{folder} has {format_bytes(free)} free, and about {format_bytes(nbytes)} will be "
            "written there: make room before the job comes to its end."
        )
    if left < files:
        warn(
            f"{folder} has room for {left:,} files, and {files:,} stored objects will be written "
            "there: choose shards, or larger chunks."
        )
