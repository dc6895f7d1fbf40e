"""Replacing an array or a group in an object store at once, where nothing can be renamed.

The names of stored objects follow from the layout of keys that the metadata name, of which a format
may have several (`Format.key_layouts`): ``c/0/1``, ``c.0.1``, ``0.1`` and ``0/1``. So the objects
of a new version are put beside those of the old one, under names that the old one does not have.
Readers see the old version, whole, until the new metadata are put, on the condition that the old
ones still stand: that is the instant. Only then the objects of the old version are removed. The
next version has the first names again.

Of a group all arrays have other names at once, and its consolidated metadata are what is put: they
name the new keys of all. The documents of the arrays follow, and then the old objects go.

A job that makes a version has claimed the array (`zarr_dask.journal.node_claims`), and looks at its
claim before each request that puts or deletes. One that is killed leaves objects of a version that
is not shown, or not shown any more. The next swap removes them, and so does
``zarr_dask.verify(sweep=True)``, once no job is left that may go on with them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from secrets import token_hex

from zarr_dask._util.threads import map_waiting
from zarr_dask.array.array import Array
from zarr_dask.errors import (
    JobRunningError,
    JournalError,
    MetadataChangedError,
    MetadataError,
    StoreError,
)
from zarr_dask.formats.base import (
    DEFAULT_OPTIONS,
    ArrayMeta,
    ChunkKeyEncoding,
    Format,
    GroupMeta,
    NodeMeta,
    ancestors,
    prefix_of,
    where,
)
from zarr_dask.formats.concurrent_edit import change_node, say_the_same
from zarr_dask.formats.consolidated import (
    Consolidated,
    consolidated_groups,
    recorded_documents,
    with_consolidated,
)
from zarr_dask.formats.detect import formats_at
from zarr_dask.hierarchy.edit import consolidate_group
from zarr_dask.hierarchy.group import Group
from zarr_dask.hierarchy.walk import walk, walk_documents
from zarr_dask.journal import claim_node, default_place, open_journals, releasing
from zarr_dask.journal.group_changes import change_at, check_not_changing
from zarr_dask.journal.location import from_root
from zarr_dask.journal.node_claims import NodeClaim, has_claims
from zarr_dask.journal.swap import AtomicReplace
from zarr_dask.stores.base import Store, is_remote, join
from zarr_dask.stores.compare_and_swap import as_cas_store, until_put
from zarr_dask.stores.fenced_deletes import fenced_deletes
from zarr_dask.stores.key_names import in_order_of_removal
from zarr_dask.stores.wrappers.base import is_read_only

__all__ = [
    "KeySwap",
    "Swap",
    "check_shown_whole",
    "is_of_other_version",
    "may_have_versions",
    "plan_group_swap",
    "plan_key_swap",
    "shown_key_swap",
    "sweep_versions",
]

_NUMBER = "(?:0|[1-9][0-9]*)"
_OBJECT = re.compile(
    rf"c|c(?:/{_NUMBER})+|c(?:\.{_NUMBER})+|{_NUMBER}(?:/{_NUMBER})*|{_NUMBER}(?:\.{_NUMBER})*"
)
"""Names that stored objects have in any layout."""
_AT_ONCE = 1000
_INSTEAD = "Write to another place, and let readers open that one afterwards."


@dataclass(frozen=True, eq=False)
class KeySwap:
    """A new version of an array or a group, whose objects have other names than the old ones."""

    store: Store
    path: str
    node_format: Format
    before: Mapping[str, ArrayMeta]
    """The arrays of the old version by path: the array itself, or all below the group."""
    token: str
    """Tells the swap from others."""
    is_done: bool = False
    """True if a job that was killed before its end has shown the new version."""
    groups: tuple[str, ...] | None = None
    """Paths of the groups below a group; None for an array."""
    beside: str = ""
    is_begun: bool = True

    def path_beside(self, path: str) -> str:
        """Return the path of the new version, or of a node: it is where the old one is."""
        return path

    def new_version(self, target: Array, *, named: bool) -> Array:
        """Return a new array with keys that no stored object of the old one has.

        Parameters
        ----------
        target
            The new array.
        named
            True if the user has named its keys.

        Raises
        ------
        StoreError
            If there are none.
        """
        old, wanted = self.before.get(target.path), target.meta.chunk_key_encoding
        if old is None:
            return target
        if self.is_done:
            return _with_keys(target, old.chunk_key_encoding)
        candidates = (wanted,) if named else target.node_format.key_layouts
        free = next((one for one in candidates if _are_apart(one, target.ndim, old)), None)
        if free is None:
            why = f"both would have stored objects of the name {wanted.key((0,) * target.ndim)!r}"
            why = f"{why}: leave chunk_key_encoding out, or name others"
            raise _not_swappable(self.store, target.path, why)
        return _with_keys(target, free)

    def check_kinds(self, arrays: Collection[str], groups: Collection[str]) -> None:
        """Refuse arrays of a new version where the old one has groups, and the other way round.

        Raises
        ------
        StoreError
            If there are some: their stored objects might have the same names.
        """
        for path in sorted({*arrays} & {*(self.groups or ())} | {*groups} & self.before.keys()):
            why = f"{path!r} is a group in one version, and an array in the other one"
            raise _not_swappable(self.store, self.path, why)

    # --- before the instant -----------------------------------------------------------------------

    def begin(self, claim: NodeClaim | None, *, resumed: bool, made: Collection[str] = ()) -> None:
        """Remove what killed jobs have left, and see that the old version is as it was planned for.

        Parameters
        ----------
        claim
            The claim of the job to the array or group.
        resumed
            True if objects of the new version are those of the job.
        made
            Paths of the arrays of a new version of a group.

        Raises
        ------
        MetadataChangedError
            If it is another one by now.
        StoreError
            If nothing can be claimed.
        """
        if claim is None:
            raise _not_swappable(self.store, self.path, "nothing may be put beside its hierarchy")
        arrays = self._standing(outdates=claim.was_others)
        if not self._are_same(arrays, self.before):
            raise MetadataChangedError(
                f"{where(self.store, self.path)} is not what it was any more when a new version "
                "of it was planned, by more than its attributes; nothing was written. Open it "
                "again, and write the new version anew."
            )
        self._consolidate(arrays)  # an earlier job may have been killed before it could
        if not resumed:
            self._remove_others(arrays, [path for path in made if path not in arrays])

    def _standing(self, *, outdates: bool) -> dict[str, ArrayMeta]:
        """Return the arrays that stand, as their own metadata say."""
        holder = self._confirmed(self.path, outdates=outdates)
        if self.groups is None or not isinstance(holder, GroupMeta):
            return self._named(holder)
        texts = walk_documents(self.store, self.path, self.node_format, DEFAULT_OPTIONS)
        arrays = self._parsed({key.rpartition("/")[0]: text for key, text in texts.items()})
        if outdates or _keys(arrays) != _keys(self._named(holder)):  # one of both is an older one
            found = map_waiting(partial(self._confirmed, outdates=outdates), arrays)
            each = zip(arrays, found, strict=True)
            arrays = {path: meta for path, meta in each if isinstance(meta, ArrayMeta)}
        return arrays

    def _parsed(self, texts: Mapping[str, bytes]) -> dict[str, ArrayMeta]:
        """Return the arrays among nodes whose documents have been read."""
        found = {}
        for path, text in texts.items():
            known = {self.node_format.node_keys(path)[0]: text}
            meta = self.node_format.read(self.store, path, DEFAULT_OPTIONS, found=known)
            if isinstance(meta, ArrayMeta):
                found[path] = meta
        return found

    def _named(self, holder: NodeMeta | None) -> dict[str, ArrayMeta]:
        """Return the arrays that the document of the instant shows."""
        if isinstance(holder, ArrayMeta):
            return {self.path: holder}
        if holder is None:
            return {}
        return _consolidated_arrays(self.store, self.path, self.node_format, holder)

    def _are_same(self, some: Mapping[str, ArrayMeta], others: Mapping[str, ArrayMeta]) -> bool:
        """True if arrays differ in their attributes at most."""
        return some.keys() == others.keys() and all(
            say_the_same(self.node_format, path, one, others[path]) for path, one in some.items()
        )

    def _confirmed(self, path: str, *, outdates: bool = False) -> NodeMeta | None:
        """Return metadata that the store has confirmed: objects that they do not name go.

        They are put as they are, on the condition that they still are so. With a blank more or less
        (`outdates`), what an earlier job has sent is put no more: it has the same condition.

        Raises
        ------
        ConditionalWriteError
            If the store goes on to answer with something else than what it has.
        """
        key = self.node_format.node_keys(path)[0]
        tagged, seen = as_cas_store(self.store), list[bytes | None]()

        def put(tags: dict[str, Hashable]) -> bool:
            value, tags[key] = tagged.get_tagged(key)
            seen[:] = [None if value is None else bytes(value)]
            if value is None:
                return True
            text = bytes(value)
            other = text[:-1] if text.endswith(b"\n") else text + b"\n"
            return tagged.set_if(key, [other if outdates else text], tags[key])

        until_put(f"the metadata of {where(self.store, path)}", put)
        return self.node_format.read(self.store, path, DEFAULT_OPTIONS, found={key: seen[0]})

    # --- the instant, and after it ----------------------------------------------------------------

    def show(self, store: Store, meta: NodeMeta, fence: Callable[[], None]) -> None:
        """Put the metadata of the new version in place of those of the old one.

        Of a group these are its own, with consolidated metadata. May be called again.

        Parameters
        ----------
        store
            The store, as metadata are put into it.
        meta
            The new version.
        fence
            Raises if a later job has the place; called before each attempt.

        Raises
        ------
        MetadataChangedError
            If what stands is neither of both by now.
        """

        def changed(present: NodeMeta | None) -> NodeMeta:
            fence()
            found = self._named(present)
            if type(present) is type(meta) and self._are_same(found, self.before):
                return meta
            if present is None or not self._are_same(found, self._named(meta)):
                raise MetadataChangedError(
                    f"{where(self.store, self.path)} has changed since a new version of it was "
                    "planned, by more than its attributes: it was left as it is by now. Look at "
                    "it, and write the new version again."
                )
            return present

        change_node(store, self.path, self.node_format, changed, DEFAULT_OPTIONS)

    def show_below(
        self, store: Store, texts: Mapping[str, bytes], fence: Callable[[], None]
    ) -> None:
        """Put the documents of all nodes below a group, whose own names them already.

        May be called again: what has the new keys has been put before, and may have changed since.

        Parameters
        ----------
        store, fence
            As for `show`.
        texts
            Documents by path.
        """
        new, tagged = self._parsed(texts), as_cas_store(store)

        def put_one(path: str) -> None:
            key = self.node_format.node_keys(path)[0]

            def put(tags: dict[str, Hashable]) -> bool:
                value, tags[key] = tagged.get_tagged(key)
                present = {} if value is None else self._parsed({path: bytes(value)})
                if path in new and _keys(present) == _keys({path: new[path]}):
                    return True
                fence()
                return value == texts[path] or tagged.set_if(key, [texts[path]], tags[key])

            until_put(f"the metadata of {where(store, path)}", put)

        map_waiting(put_one, texts)

    def is_shown(self, texts: Mapping[str, bytes]) -> bool:
        """True if the consolidated metadata of a group name keys of a new version of it."""
        named = _keys(self._named(self._confirmed(self.path, outdates=True)))
        new = _keys(self._parsed(texts))
        return not new or any(named.get(path) == keys for path, keys in new.items())

    def end(self, shown: NodeMeta | None = None, gone: Collection[str] = ()) -> int:
        """Bring consolidated metadata up to date, and remove the objects of the old version.

        The caller has claimed the place, and may have `shown` the new version just now. May be
        called again. Returns the number of objects.

        Parameters
        ----------
        shown
            The new version.
        gone
            Paths of nodes below a group that it does not have.

        Raises
        ------
        MetadataChangedError
            If there is nothing any more.
        """
        holder = shown or self._confirmed(self.path)
        if holder is None or isinstance(holder, GroupMeta) == (self.groups is None):
            raise MetadataChangedError(
                f"{where(self.store, self.path)} is not what was put there just now any more; "
                "objects of an older version may be left. Look at what is there."
            )
        arrays = self._named(holder)
        self._consolidate(arrays, is_told=self.groups is None)
        return self._remove_others(arrays, gone)

    def _consolidate(self, arrays: Mapping[str, ArrayMeta], *, is_told: bool = True) -> None:
        """Write consolidated metadata anew which name other keys than those of a version.

        Its readers would find objects of none, or of the next version while it is being written.
        Those above a group are written in any case if nobody has been told (`is_told`).
        """
        root, top = from_root(self.store, self.path)
        around = top[: len(top) - len(self.path)].rstrip("/")
        wanted = {join(around, path): meta for path, meta in arrays.items()}
        below = top if self.groups is None else join(top, "-")
        for above in reversed(consolidated_groups(root, below, self.node_format)):
            holder = self.node_format.read(root, above, DEFAULT_OPTIONS, found={})
            if not isinstance(holder, GroupMeta):
                continue
            found = _consolidated_arrays(root, above, self.node_format, holder)
            inside = {p: m for p, m in found.items() if f"{p}/".startswith(prefix_of(top))}
            known = {path: wanted[path] for path in inside if path in wanted}
            is_own = self.groups is not None and above == top
            is_right = _keys(inside) == _keys(known)
            if is_own:
                is_right = self._are_same(inside, wanted)
            if not is_right or not (is_told or is_own):
                consolidate_group(root, above, self.node_format)

    def _remove_others(self, arrays: Mapping[str, ArrayMeta], gone: Collection[str] = ()) -> int:
        """Delete objects that are not of the version that stands; return their number."""
        names = {self.node_format.data_prefix(path): meta for path, meta in arrays.items()}
        old = tuple(prefix_of(path) for path in gone)

        def is_other(key: str) -> bool:
            end = key.rfind("/") + 1
            while end and key[:end] not in names:
                end = key.rfind("/", 0, end - 1) + 1
            meta = names.get(key[:end])
            if meta is None:
                return key.startswith(old)
            return is_of_other_version(key[end:], meta)

        keys = [*filter(is_other, self.store.list(prefix_of(self.path)))]
        for some in in_order_of_removal(keys, _AT_ONCE):
            map_waiting(self.store.delete, some)
        return len(keys)

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
    _check_swappable(target.store, target.path, target.node_format, seen=present.store)
    old = {target.path: present.meta.with_attributes({})}  # it travels with each task
    swap = KeySwap(target.store, target.path, present.node_format, old, token_hex(8))
    return swap.new_version(target, named=named), swap


def shown_key_swap(target: Array, present: Array) -> tuple[Array, KeySwap]:
    """Return the same for a job that was killed after its version had been shown."""
    given = (target.store, target.path, present.node_format, {target.path: present.meta})
    swap = KeySwap(*given, token_hex(8), is_done=True)
    return swap.new_version(target, named=False), swap


def plan_group_swap(group: Group, node_format: Format) -> KeySwap:
    """Plan the swap of a group in an object store; nothing is written.

    Parameters
    ----------
    group
        The group that stands.
    node_format
        The format of the new one.

    Raises
    ------
    StoreError
        If it is not possible.
    """
    store, path = group.store, group.path
    _check_swappable(store, path, node_format)
    place = (store, path, group.node_format)
    if recorded_documents(*place, group.meta, DEFAULT_OPTIONS.limits) is None:
        why = (
            "it has no consolidated metadata, which would show the new variables all at once "
            f"(zarr_dask.consolidate writes those of the group {path!r})"
        )
        raise _not_swappable(store, path, why)
    nodes = walk(*place, DEFAULT_OPTIONS)
    for meta in nodes.values():
        if isinstance(meta, MetadataError):
            raise meta
    below = {join(path, name): meta for name, meta in nodes.items()}
    arrays = {at: m.with_attributes({}) for at, m in below.items() if isinstance(m, ArrayMeta)}
    groups = tuple(at for at, meta in below.items() if isinstance(meta, GroupMeta))
    return KeySwap(*place, arrays, token_hex(8), groups=groups)


def check_shown_whole(group: Group, arrays: Iterable[Array]) -> None:
    """Refuse to write to arrays of a group that is being replaced in an object store.

    Raises
    ------
    JobRunningError
        If its consolidated metadata are of another version than those of an array.
    """
    if not is_remote(group.store):
        return
    named = _consolidated_arrays(group.store, group.path, group.node_format, group.meta)
    found = _keys({one.path: one.meta for one in arrays})
    if any(path in named and named[path].chunk_key_encoding != found[path] for path in found):
        check_not_changing(group.store, group.path)


def _check_swappable(
    store: Store, path: str, node_format: Format, seen: Store | None = None
) -> None:
    """Raise unless another version of a node may be put beside it.

    A caller may have seen the place, with a store that knows what is there (`seen`).

    Raises
    ------
    StoreError
        If not.
    """
    formats = {one.name for one, _ in formats_at(seen or store, path)} | {node_format.name}
    if not has_claims(store, path):
        why = "its store has no conditional writes, or it has no place beside it for a claim"
        raise _not_swappable(store, path, why)
    if len(formats) > 1 or not node_format.key_layouts:
        why = f"what lies there and the new version are of the formats {', '.join(sorted(formats))}"
        raise _not_swappable(store, path, why)


def _with_keys(target: Array, keys: ChunkKeyEncoding) -> Array:
    return replace(target, meta=replace(target.meta, chunk_key_encoding=keys))


def _keys(arrays: Mapping[str, ArrayMeta]) -> dict[str, ChunkKeyEncoding]:
    return {path: meta.chunk_key_encoding for path, meta in arrays.items()}


def _consolidated_arrays(
    store: Store, path: str, node_format: Format, holder: GroupMeta
) -> dict[str, ArrayMeta]:
    """Return the arrays below a group by path, as its consolidated metadata say."""
    known = with_consolidated(store, path, node_format, holder, DEFAULT_OPTIONS)
    found: dict[str, ArrayMeta] = {}
    if not isinstance(known, Consolidated):
        return found
    for key in known.documents:
        at = key.rpartition("/")[0]
        meta = node_format.read(known, at, DEFAULT_OPTIONS, found=known.parsed([key]) or {})
        if isinstance(meta, ArrayMeta):
            found[at] = meta
    return found


def _not_swappable(store: Store, path: str, why: str) -> StoreError:
    return StoreError(
        f"{where(store, path)} cannot be replaced at once, because {why}; nothing was written. "
        "mode='swap' renames folders of local files, and in object stores with conditional writes "
        "it puts a new version of an array or a dataset of format v3 beside the old one. "
        f"{_INSTEAD}"
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
    root, below = from_root(store, path)
    try:
        if place is None or open_journals(place):
            return None
        if any(change_at(root, above) is not None for above in ancestors(below)):
            return None  # what the array says may not be what its group shows
        claim, _ = claim_node(store, path, token_hex(16), takes_over=False)
    except (JobRunningError, JournalError):
        return None
    if claim is None:
        return None
    with releasing(claim), fenced_deletes(claim.fence):
        return KeySwap(store, path, array.node_format, {}, claim.token).end()
