"""Replacing an array in an object store in one instant, where nothing can be renamed.

The names of stored objects follow from the layout of keys that the metadata name, of which a format
may have several (`Format.key_layouts`): ``c/0/1``, ``c.0.1``, ``0.1`` and ``0/1``. So the objects
of a new version are put beside those of the old one, under names that the old one does not have.
Readers see the old version, whole, until the new metadata are put, on the condition that the old
ones still stand: that is the instant. Only then the objects of the old version are removed. The
next version has the first names again.

A job that makes a version has claimed the array (`zarr_dask.journal.node_claims`), and looks at its
claim before each request that puts or deletes. One that is killed leaves objects of a version that
is not shown, or not shown any more. The next swap removes them, and so does
``zarr_dask.verify(sweep=True)``, once no job is left that may go on with them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from secrets import token_hex

from zarr_dask._util.threads import map_waiting
from zarr_dask.array.array import Array
from zarr_dask.errors import JobRunningError, JournalError, MetadataChangedError, StoreError
from zarr_dask.formats.base import (
    DEFAULT_OPTIONS,
    ArrayMeta,
    ChunkKeyEncoding,
    Format,
    NodeMeta,
    where,
)
from zarr_dask.formats.concurrent_edit import SeenNode, reload_metadata, write_changed_documents
from zarr_dask.formats.consolidated import consolidated_groups, read_consolidated
from zarr_dask.formats.detect import formats_at
from zarr_dask.hierarchy.edit import consolidate_group
from zarr_dask.journal import claim_node, default_place, open_journals, releasing
from zarr_dask.journal.location import from_root
from zarr_dask.journal.node_claims import NodeClaim, has_claims
from zarr_dask.journal.swap import AtomicReplace
from zarr_dask.stores.base import Store
from zarr_dask.stores.compare_and_swap import as_cas_store, until_put
from zarr_dask.stores.fenced_deletes import fenced_deletes
from zarr_dask.stores.wrappers.base import is_read_only

__all__ = [
    "KeySwap",
    "Swap",
    "is_of_other_version",
    "may_have_versions",
    "plan_key_swap",
    "shown_key_swap",
    "sweep_versions",
]

_NUMBER = "(?:0|[1-9][0-9]*)"
_OBJECT = re.compile(
    rf"c|c(?:/{_NUMBER})+|c(?:\.{_NUMBER})+|{_NUMBER}(?:/{_NUMBER})*|{_NUMBER}(?:\.{_NUMBER})*"
)
"""Names that stored objects have in any layout."""
_INSTEAD = "Write to another place, and let readers open that one afterwards."


@dataclass(frozen=True, eq=False)
class KeySwap:
    """A new version of an array, whose objects have other names than those of the old one."""

    store: Store
    path: str
    node_format: Format
    before: ArrayMeta
    """The old version."""
    token: str
    """Tells the swap from others."""
    is_done: bool = False
    """True if a job that was killed before its end has shown the new version."""
    beside: str = ""
    is_begun: bool = True

    def path_beside(self, path: str) -> str:
        """Return the path of the new version, or of a node: it is where the old one is."""
        return path

    def begin(self, claim: NodeClaim | None, *, resumed: bool) -> None:
        """Remove what killed jobs have left, and see that the old version is as it was planned for.

        Parameters
        ----------
        claim
            The claim of the job to the array.
        resumed
            True if objects of the new version are those of the job.

        Raises
        ------
        MetadataChangedError
            If it is another one by now.
        StoreError
            If nothing can be claimed.
        """
        place = (self.store, self.path, self.node_format)
        if claim is None:
            raise _not_swappable(self.store, self.path, "nothing may be put beside its hierarchy")
        seen = SeenNode(self._confirmed(outdates=claim.was_others), {})
        meta = reload_metadata(*place, self.before, DEFAULT_OPTIONS, seen)
        self._consolidate(meta)  # an earlier job may have been killed before it could
        if not resumed:
            _remove_other_versions(*place, meta)

    def _confirmed(self, *, outdates: bool = False) -> NodeMeta | None:
        """Return the metadata, which the store has confirmed: objects that they do not name go.

        They are put as they are, on the condition that they still are so. With a blank more or less
        (`outdates`), what an earlier job has sent is put no more: it has the same condition.

        Raises
        ------
        ConditionalWriteError
            If the store goes on to answer with something else than what it has.
        """
        key = self.node_format.node_keys(self.path)[0]
        tagged, seen = as_cas_store(self.store), list[bytes | None]()

        def put(tags: dict[str, Hashable]) -> bool:
            value, tags[key] = tagged.get_tagged(key)
            seen[:] = [None if value is None else bytes(value)]
            if value is None:
                return True
            text = bytes(value)
            other = text[:-1] if text.endswith(b"\n") else text + b"\n"
            return tagged.set_if(key, [other if outdates else text], tags[key])

        until_put(f"the metadata of {where(self.store, self.path)}", put)
        return self.node_format.read(self.store, self.path, DEFAULT_OPTIONS, found={key: seen[0]})

    def show(self, store: Store, meta: ArrayMeta, fence: Callable[[], None]) -> None:
        """Put the metadata of the new version in place of those of the old one.

        May be called again after it has been done.

        Parameters
        ----------
        store
            The store, as metadata are put into it.
        meta
            The new version.
        fence
            Raises if a later job has the array; called before each attempt.

        Raises
        ------
        MetadataChangedError
            If the array is neither of both by now.
        """

        def new(_: ArrayMeta) -> ArrayMeta:
            fence()
            return meta

        place = (store, self.path, self.node_format)
        try:
            write_changed_documents(*place, self.before, new, DEFAULT_OPTIONS, warns=False)
        except MetadataChangedError as error:
            fence()
            if not self._is_shown(meta):
                raise MetadataChangedError(
                    f"{where(self.store, self.path)} has changed since a new version of it was "
                    "planned, by more than its attributes: it was left as it is by now. Look at "
                    "it, and write the new version again."
                ) from error

    def _is_shown(self, meta: ArrayMeta) -> bool:
        """Return True if a version is shown; its attributes may have changed since."""
        place = (self.store, self.path, self.node_format)
        try:
            reload_metadata(*place, meta, DEFAULT_OPTIONS, SeenNode(self._confirmed(), {}))
        except MetadataChangedError:
            return False
        return True

    def end(self, shown: ArrayMeta | None = None) -> int:
        """Bring consolidated metadata up to date, and remove the objects of the old version.

        The caller has claimed the array, and may have `shown` the new version just now. May be
        called again. Returns the number of objects.

        Raises
        ------
        MetadataChangedError
            If there is no array any more.
        """
        meta = shown or self._confirmed()
        if not isinstance(meta, ArrayMeta):
            raise MetadataChangedError(
                f"{where(self.store, self.path)} is not the array any more that was put there just "
                "now; objects of an older version may be left. Look at what is there."
            )
        self._consolidate(meta)
        return _remove_other_versions(self.store, self.path, self.node_format, meta)

    def _consolidate(self, meta: ArrayMeta) -> None:
        """Write consolidated metadata anew which name other keys than those of a version.

        Its readers would find objects of none, or of the next version while it is being written.
        """
        root, below = from_root(self.store, self.path)
        for above in reversed(consolidated_groups(root, below, self.node_format)):
            found = read_consolidated(root, above, self.node_format, below, DEFAULT_OPTIONS)
            old = None if found is None else found.meta
            keys = old.chunk_key_encoding if isinstance(old, ArrayMeta) else None
            if keys not in (None, meta.chunk_key_encoding):
                consolidate_group(root, above, self.node_format)

    def remove(self) -> None:
        """Do what is left after the end, if another process has shown the new version."""
        if self.is_done:
            self.end()

    def forget(self) -> None:
        """Do nothing: there is no mark of it."""


Swap = AtomicReplace | KeySwap


def plan_key_swap(target: Array, present: Array, *, named: bool) -> tuple[Array, KeySwap]:
    """Plan the swap of an array in an object store; nothing is written.

    Parameters
    ----------
    target
        The new version.
    present
        The array that stands.
    named
        True if the user has named the keys of the new version.

    Returns
    -------
    Array, KeySwap
        The new version, with keys that the old one does not have, and the swap.

    Raises
    ------
    StoreError
        If it is not possible.
    """
    store, path = target.store, target.path
    old = present.meta.with_attributes({})  # it travels with each task
    formats = {one.name for one, _ in formats_at(present.store, path)} | {target.format}
    layouts = target.node_format.key_layouts
    if not has_claims(store, path):
        why = "its store has no conditional writes, or it has no place beside it for a claim"
        raise _not_swappable(store, path, why)
    if len(formats) > 1 or not layouts:
        why = f"what lies there and the new version are of the formats {', '.join(sorted(formats))}"
        raise _not_swappable(store, path, why)
    wanted = target.meta.chunk_key_encoding
    candidates = (wanted,) if named else layouts
    free = next((one for one in candidates if _are_apart(one, target.ndim, old)), None)
    if free is None:
        why = f"both would have stored objects of the name {wanted.key((0,) * target.ndim)!r}"
        raise _not_swappable(store, path, f"{why}: leave chunk_key_encoding out, or name others")
    swap = KeySwap(store, path, present.node_format, old, token_hex(8))
    return _with_keys(target, free), swap


def shown_key_swap(target: Array, present: Array) -> tuple[Array, KeySwap]:
    """Return the same for a job that was killed after its version had been shown."""
    given = (target.store, target.path, present.node_format, present.meta, token_hex(8))
    swap = KeySwap(*given, is_done=True)
    return _with_keys(target, present.meta.chunk_key_encoding), swap


def _with_keys(target: Array, keys: ChunkKeyEncoding) -> Array:
    return replace(target, meta=replace(target.meta, chunk_key_encoding=keys))


def _not_swappable(store: Store, path: str, why: str) -> StoreError:
    return StoreError(
        f"{where(store, path)} cannot be replaced at once, because {why}; nothing was written. "
        "mode='swap' renames folders of local files, and in object stores with conditional writes "
        f"it puts a new version of an array of format v3 beside the old one. {_INSTEAD}"
    )


def _are_apart(one: ChunkKeyEncoding, ndim: int, old: ArrayMeta) -> bool:
    """True if no object of an array has the name of another one's, or of a folder of it."""
    first = f"{one.key((0,) * ndim)}/"
    second = f"{old.chunk_key_encoding.key((0,) * old.grid.ndim)}/"
    is_other = one != old.chunk_key_encoding
    return is_other and not (first.startswith(second) or second.startswith(first))


# --- objects of other versions --------------------------------------------------------------------


def is_of_other_version(name: str, meta: ArrayMeta) -> bool:
    """True if a key below the data prefix of an array is one that another version may have.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> meta = zd.create_array({}, shape=(4, 4), dtype="i2").meta
    >>> [is_of_other_version(name, meta) for name in ("c/0/0", "c.0.0", "0/1", "c", "zarr.json")]
    [False, True, True, True, False]
    """
    if meta.chunk_key_encoding.coords(name, meta.grid.ndim) is not None:
        return False
    return _OBJECT.fullmatch(name) is not None


def may_have_versions(array: Array) -> bool:
    """True if a swap of an array puts its objects beside those of the old version."""
    return bool(array.node_format.key_layouts) and has_claims(array.store, array.path)


def _remove_other_versions(store: Store, path: str, node_format: Format, meta: ArrayMeta) -> int:
    """Delete stored objects that are not of the version that stands; return their number."""
    prefix = node_format.data_prefix(path)
    keys = [key for key in store.list(prefix) if is_of_other_version(key[len(prefix) :], meta)]
    map_waiting(store.delete, keys)
    return len(keys)


def sweep_versions(array: Array) -> int | None:
    """Remove objects of versions of an array that are not shown, or not any more.

    Returns
    -------
    int or None
        Their number; None if they may not be removed: a job may be at work, or go on with them, or
        the objects may be those of an array of another format in the same place.
    """
    store, path = array.store, array.path
    if is_read_only(store):
        store = store.store
    if len(formats_at(store, path)) != 1:
        return None
    place = default_place(store, path)
    try:
        if place is None or open_journals(place):
            return None
        claim, _ = claim_node(store, path, token_hex(16), takes_over=False)
    except (JobRunningError, JournalError):
        return None
    if claim is None:
        return None
    with releasing(claim), fenced_deletes(claim.fence):
        return KeySwap(store, path, array.node_format, array.meta, claim.token).end()
