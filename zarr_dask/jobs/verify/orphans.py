"""Objects that belong to nothing: those without an array, and what killed writers have left.

The metadata of an array may be lost, or not written yet.
A listing shows only names, and other files may have names like stored objects. While all keys are
listed, `OrphanedKeys` counts keys that look like stored objects and lie below no array. Afterwards
it decides which of them to report. Killed writers leave temporary files, folders of swaps, and
unfinished uploads, which are known by their names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import time
from typing import NamedTuple

from zarr_dask._util.warnings import warn
from zarr_dask.errors import LinkError, MissingDependencyError, StoreError, StoreKeyError
from zarr_dask.formats.base import ChunkKeyEncoding, GroupMeta, ancestors, prefix_of
from zarr_dask.formats.detect import formats_at
from zarr_dask.jobs.engine.thread_map import listing_concurrency, map_concurrently
from zarr_dask.jobs.verify.scan import Finding
from zarr_dask.jobs.write.staging import folders_beside
from zarr_dask.journal.claims import sweep_claims
from zarr_dask.journal.node_claims import LeftClaims, sweep_remote_claims
from zarr_dask.journal.swap import left_beside
from zarr_dask.stores.archives import archive_file
from zarr_dask.stores.base import Store, is_remote
from zarr_dask.stores.compare_and_swap import RECORD_OF_FOLDER
from zarr_dask.stores.file_backed import FileStore
from zarr_dask.stores.key_names import is_left_by_the_dead
from zarr_dask.stores.open import folder_store
from zarr_dask.stores.unfinished_uploads import uploads_below
from zarr_dask.stores.wrapper import StoreWrapper

__all__ = ["LostArray", "OrphanedKeys", "find_leftovers"]


_MOST_PATHS = 10_000
_NUMBER = "(?:0|[1-9][0-9]*)"
_LETTERED = re.compile(rf"(?:(.*)/)?c(?:(?:/{_NUMBER})+|(?:\.{_NUMBER})+)")
_FLAT = re.compile(rf"(?:(.*)/)?{_NUMBER}(?:\.{_NUMBER})+")
"""Default keys of stored objects in the formats."""


class LostArray(NamedTuple):
    """Stored objects at a location where an array should be."""

    path: str
    objects: int
    """Number of keys that look like stored objects."""
    first: str
    """The first of these keys."""


@dataclass
class OrphanedKeys:
    """Keys that look like stored objects and lie below no array.

    Keys of only numbers and dots count if some array has such keys, or would have them by default.
    Otherwise they are more likely to be files named by a version or a date than objects of an array
    whose metadata is lost.
    """

    flat: bool
    """True if keys of only numbers count."""
    found: dict[str, LostArray] = field(default_factory=dict)
    """Findings by the path where the array should be."""

    @staticmethod
    def among(layouts: Iterable[object]) -> OrphanedKeys:
        """Return an empty collection for a hierarchy with these layouts of keys."""
        return OrphanedKeys(
            any(isinstance(k, ChunkKeyEncoding) and k.key((0,)) == "0" for k in layouts)
        )

    def note(self, key: str) -> None:
        """Count a key that lies below no array."""
        found = _LETTERED.fullmatch(key) or (_FLAT.fullmatch(key) if self.flat else None)
        if found is None:
            return
        path = found.group(1) or ""
        before = self.found.get(path, LostArray(path, 0, key))
        if before.objects or len(self.found) < _MOST_PATHS:
            self.found[path] = before._replace(objects=before.objects + 1)

    def lost(self, store: Store, told: Collection[str]) -> list[LostArray]:
        """Return the orphans to report.

        Parameters
        ----------
        store
            Store of the keys. It is checked for arrays of another format, which are not part of
            this hierarchy.
        told
            Paths that are reported already; everything below them is skipped too.
        """
        untold = [
            one
            for path, one in self.found.items()
            if not path.startswith(".") and not {path, *ancestors(path)}.intersection(told)
        ]
        owned = map_concurrently(
            lambda one: _has_owner(store, one), untold, listing_concurrency(store)
        )
        return [one for one, has in zip(untold, owned, strict=True) if not has]


def _has_owner(store: Store, lost: LostArray) -> bool:
    """True if an array of any format lies around a key, at its path or below that."""
    for folder in ancestors(lost.first):
        if len(folder) < len(lost.path):
            continue
        with suppress(StoreKeyError):  # such a key cannot have metadata
            if any(not isinstance(meta, GroupMeta) for _, meta in formats_at(store, folder)):
                return True
    return False


_OLD = 3600.0
"""Seconds after which a temporary file is no longer in use."""
_LEFT = {
    "dead": "that was killed; sweep=True removes it",
    "resumable": "that was killed; the same call with resume= goes on with it",
    "unknown": "of which nobody here knows whether it runs; remove it if it does not",
}
"""Descriptions of folders, by their state."""


class Leftovers(NamedTuple):
    """Leftovers at a location."""

    findings: list[Finding]
    swept: int
    """Number of those that were removed."""
    dead: int = 0
    """Number of temporary files of processes that are known to be gone."""
    claims: tuple[str, ...] = ()
    """Descriptions of claims that were removed."""


def find_leftovers(store: Store, path: str, *, sweep: bool) -> Leftovers:
    """Find temporary files of killed writers, folders of swaps and, to sweep them, uploads.

    A file that a dead process had not renamed yet is in nobody's way, and no finding.
    """
    found, swept = _find_uploads(store, prefix_of(path)) if sweep else ([], 0)
    claims = sweep_remote_claims(store, path) if sweep else LeftClaims([], {})
    for key, job in claims.unknown.items():
        reason = f"the claim of a job, {job}, {_LEFT['unknown']}"
        found.append(Finding("temporary", path, key, reason=reason))
    while isinstance(store, StoreWrapper) and not hasattr(store, "prefix"):
        store = store.store
    between, removed = _find_between(store, path, sweep=sweep)
    found, swept = found + between, swept + removed
    archive = archive_file(store)
    folder: str | None = prefix_of(path)
    if archive is not None:  # its writer puts them beside it
        store, folder = folder_store(str(Path(archive).parent)), None
    if not isinstance(store, FileStore):
        return Leftovers(found, swept, claims=tuple(claims.removed))
    files = _find_files(store, path, folder, sweep=sweep)
    found, swept = found + files.findings, swept + files.swept
    for left in left_beside(*os.path.split(os.path.realpath(store.root))):
        if sweep and left.remove():
            swept += 1
        elif left.state != "running":
            reason = f"the folder of a job with mode='swap' {_LEFT[left.state]}"
            found.append(Finding("temporary", "", left.folder, reason=reason))
    if sweep:
        sweep_claims(store, path)
    return Leftovers(found, swept, files.dead)


def _find_between(store: Store, path: str, *, sweep: bool) -> tuple[list[Finding], int]:
    """Find folders of intermediate arrays beside a store, and remove those of killed processes.

    To look for them at a remote store is to list what lies around it, which only a sweep does.
    """
    found: list[Finding] = []
    swept = 0
    for left in folders_beside(store) if sweep or not is_remote(store) else ():
        if sweep and left.state == "dead":
            with suppress(LinkError):  # no job has made it
                left.remove()
                swept += 1
                continue
        if left.state != "running":
            reason = f"the intermediate array of a process {_LEFT[left.state]}"
            found.append(Finding("temporary", path, left.folder, reason=reason))
    return found, swept


def _find_files(store: FileStore, path: str, folder: str | None, *, sweep: bool) -> Leftovers:
    """Find temporary files below a folder, or directly in the store, and remove the old ones."""
    found: list[Finding] = []
    swept = dead = 0
    for key, changed in store.list_temporaries(folder):
        age = time() - changed
        is_dead = is_left_by_the_dead(key.rpartition("/")[2])
        if sweep and (age > _OLD or is_dead):
            store.delete(key)
            swept += 1
        elif is_dead:
            dead += 1
        elif not key.endswith(RECORD_OF_FOLDER):  # a lock, which the next process takes over
            reason = f"a temporary file, {age:.0f} s old; sweep=True removes it after an hour"
            found.append(Finding("temporary", path, key, reason=reason))
    return Leftovers(found, swept, dead)


def _find_uploads(store: Store, prefix: str) -> tuple[list[Finding], int]:
    """Remove old unfinished uploads; return findings about the others, and the number removed."""
    place = uploads_below(store, prefix)
    if place is None:
        return [], 0
    uploading, below = place
    found: list[Finding] = []
    swept = 0
    try:
        for upload in uploading.list_uploads(below):
            age = time() - upload.begun
            if age > _OLD:
                uploading.abort_upload(upload)
                swept += 1
                continue
            key = f"{prefix}{upload.key.removeprefix(below)}"
            reason = f"an unfinished upload, {age:.0f} s old; sweep=True removes it after an hour"
            found.append(Finding("temporary", prefix.rstrip("/"), key, reason=reason))
    except (StoreError, MissingDependencyError) as error:
        warn(
            f"{store.url}: unfinished uploads could not be looked for, which a service keeps and "
            f"charges for ({error}). They are listed by s3fs; the right s3:ListBucketMultipart"
            "Uploads is needed."
        )
    return found, swept
