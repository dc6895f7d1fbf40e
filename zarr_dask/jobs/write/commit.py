"""The common end of writes to the arrays of a group: all of them become visible, or none.

What tasks have written is not visible before the metadata say so. `GroupCommit` puts these last and
in one order: documents of new arrays and new lengths, in the order of the plans; then the documents
of new groups, the outermost last; then consolidated metadata, which most readers of a dataset ask
alone.

Several lengths cannot be changed by one request. So an append first leaves a record beside the
hierarchy, of what the lengths are and will be::

    run.zarr.zarr-dask/ocean/__append/commit

It stands from the moment when all values are stored until all metadata are. If the process dies in
between, the next append to the group does what is left (`finish_commit`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from secrets import token_hex
from typing import Any

from zarr_dask._util.threads import map_waiting
from zarr_dask.array.array import Array
from zarr_dask.array.resize import resize_grid
from zarr_dask.errors import (
    AppendConflictError,
    JobRunningError,
    JournalError,
    MetadataChangedError,
    NodeNotFoundError,
    StoreError,
)
from zarr_dask.formats.base import (
    ArrayMeta,
    Format,
    GroupMeta,
    NodeMeta,
    ReadOptions,
    ancestors,
    dump_json,
    load_json,
    normalise_path,
    prefix_of,
    where,
)
from zarr_dask.formats.concurrent_edit import change_attributes, write_changed_documents
from zarr_dask.formats.consolidated import (
    consolidated_documents,
    consolidated_groups,
    has_consolidated,
)
from zarr_dask.formats.detect import read_node
from zarr_dask.hierarchy.edit import (
    check_can_create,
    consolidate_group,
    create_parent_groups,
    make_room_for_array,
    make_room_for_node,
    puts_metadata_first,
    remove_leftovers,
    write_documents,
)
from zarr_dask.hierarchy.key_swap import KeySwap, Swap
from zarr_dask.hierarchy.locate import is_still_free
from zarr_dask.jobs.write.append_state import has_released
from zarr_dask.jobs.write.target import ArrayTarget
from zarr_dask.journal import (
    Journal,
    NodeClaim,
    NodeClaims,
    OnConflict,
    claim_node,
    claimed,
    claiming_nodes,
    default_place,
    end_claims_below,
    releasing,
)
from zarr_dask.journal.group_changes import LengthChange, VersionChange, change_at
from zarr_dask.journal.node_claims import claim_left
from zarr_dask.journal.swap import AtomicReplace
from zarr_dask.stores.base import Store, is_remote, join
from zarr_dask.stores.fenced_deletes import fenced_deletes
from zarr_dask.stores.wrappers.base import is_read_only
from zarr_dask.stores.wrappers.confirmed import confirmed_if

__all__ = [
    "DerivedArrays",
    "GroupCommit",
    "GroupShown",
    "finish_claimed_commit",
    "finish_commit",
    "finish_left_swap",
    "has_unfinished_commit",
]


@dataclass(frozen=True)
class GroupShown:
    """A group that a write makes, or gives attributes."""

    path: str
    """Path below the root of the store."""
    attributes: Mapping[str, Any]
    creates: bool
    """True to make it; else the attributes are added to those that it has."""


@dataclass(frozen=True)
class DerivedArrays:
    """Arrays whose values follow from those that are written, and which grow together with them."""

    arrays: tuple[tuple[ArrayMeta, Array], ...]
    """Each with its metadata now, and as it will be."""
    write: Callable[[], None]
    """Writes their values once the others are stored; the same bytes whenever it is called."""


@dataclass(frozen=True, kw_only=True)
class GroupCommit:
    """Changes that become visible at the end of writes to arrays of a group, and their order."""

    store: Store
    path: str
    """The outermost group."""
    node_format: Format
    groups: tuple[GroupShown, ...] = ()
    """Groups to make or change, the outermost last."""
    bare: tuple[Array, ...] = ()
    """Arrays that are made without values."""
    derived: DerivedArrays | None = None
    """Arrays that become longer without a write of their own."""
    overwrite: bool = False
    """True to remove what is at `path` before anything is written."""
    swap: Swap | None = None
    """Swap that puts the group in place of another one at the end."""
    claims: tuple[NodeClaim, ...] = ()
    """The claims to the group, and to its arrays of which another version is written, in a remote
    store."""
    appends: bool = False
    """True to keep other appends to the group away."""
    job: str = ""
    """Tells what is appended, so that the same call may take over the claim of one that died."""
    consolidated: bool = False
    """True to write consolidated metadata of the root, besides those that there are."""
    confirms: bool = False
    """True to look at all metadata right after they were put."""

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Keep appends to the group away as long as a ``with`` statement lasts.

        Raises
        ------
        AppendConflictError
            If another one is under way.
        """
        if not self.appends and not isinstance(self.swap, AtomicReplace):
            yield
            return
        with claimed(self.store, self.path, job=self.job):
            yield

    @contextmanager
    def beside(self, journal: Journal | None, *, resumed: bool, held: bool) -> Iterator[None]:
        """Make the folder of a group that replaces another one, or continue in it.

        Parameters
        ----------
        journal
            The journal that is removed last, if there is one.
        resumed
            True if its receipts are for the existing content of the folder.
        held
            True if the ``with`` statement lasts as long as the job.
        """
        if not isinstance(self.swap, AtomicReplace) or self.swap.is_done:
            yield
            return
        mark = self.swap.begin(held=held, journal=journal, resumed=resumed)
        try:
            yield
        except BaseException:
            if journal is None:
                self.swap.remove()
            raise
        finally:
            if mark is not None:
                mark.close()

    def claim_group(self, run_id: str, job: str = "") -> tuple[NodeClaim | None, bool]:
        """Claim the location of the outermost group, if it is made, in a remote store.

        `job` as `NodeClaim.job`.

        Returns the claim, if there is one, and whether what was seen there before still counts.
        """
        if not self._takes_group:
            return None, True
        spares = isinstance(self.swap, KeySwap)
        claim, was_others = claim_node(
            self.store, self.path, run_id, job=job, spares_appends=spares
        )
        if claim is None:
            return None, True
        place = (self.store, self.path, self.node_format)
        return claim, not was_others and (self.overwrite or is_still_free(*place))

    def with_version(self, made: Collection[str], *, resumed: bool) -> GroupCommit:
        """Return the end with claims to all arrays, if a version is put beside an old one.

        What killed jobs have left there goes. Arrays are written to the paths that are `made`.
        """
        swap = self.swap
        if not isinstance(swap, KeySwap) or not self.claims:
            return self
        end_claims_below(self.store, self.path, spares_appends=not swap.is_done)
        if swap.is_done:
            return self
        found = [*self.claims]

        def claim(path: str) -> None:
            token = self.claims[0].token
            one, _ = claim_node(self.store, path, token, spares_appends=True)
            found.extend([] if one is None else [one])

        try:
            map_waiting(claim, swap.before)
            finish_claimed_commit(self.store, self.path, self.node_format, self.claims[0])
            paths = [*made, *(array.path for array in self.bare)]
            swap.begin(self.claims[0], resumed=resumed, made=paths)
        except BaseException:
            NodeClaims(tuple(found[1:])).give_up(leaves_journal=False)
            raise
        return replace(self, claims=tuple(found))

    def make_room(self, *, resumed: bool, is_as_seen: bool = True) -> None:
        """Remove what is replaced, unless an earlier call of a resumed job has done so.

        Where the location may not be as it was planned for, it is looked at again (`is_as_seen`).
        """
        if resumed or self.swap is not None:  # whose folder is a new one
            return
        place = (self.store, self.path, self.node_format)
        if not (self.overwrite or is_as_seen):
            check_can_create(*place, overwrite=False, is_group=True)
        if self.overwrite:
            make_room_for_node(
                *place, overwrite=True, is_group=True, warns=False, makes_above=False
            )
        for array in self.bare:
            make_room_for_array(
                array.store,
                array.path,
                array.node_format,
                array.meta,
                overwrite=False,
                alone=False,
            )

    # --- the end ----------------------------------------------------------------------------------

    def show(self, targets: Sequence[ArrayTarget]) -> None:
        """Make everything visible.

        Raises
        ------
        MetadataChangedError
            If an array that was to grow is another one by now.
        """
        if isinstance(self.swap, KeySwap):
            self._show_version(self.swap, targets)
        elif self.swap is not None:
            if not self.swap.is_done:
                self._of_folder(self.swap).show(targets)
            self.swap.end()
            self.consolidate(with_root=True)
        else:
            self._show_in_place(targets)

    def _show_in_place(self, targets: Sequence[ArrayTarget]) -> None:
        """Do so for what takes the place of no other group."""
        if self.derived is not None:
            self.derived.write()
        record = self._record(targets)
        for target in targets:
            target.announce()
        if record is not None:
            record.put()
        for target in targets:
            target.show()
        for before, array in () if self.derived is None else self.derived.arrays:
            _grow(self._shown_in, array.path, before.shape, array.shape)
        self._show_bare()
        arrays = [*(target.array for target in targets), *self.bare]
        self._show_groups(arrays)
        # arrays of a job that had ended before are not among them: their metadata are read again
        if self._changes_metadata(targets):
            self.consolidate(with_root=bool(arrays))
        if record is not None:
            record.remove()

    def _show_version(self, swap: KeySwap, targets: Sequence[ArrayTarget]) -> None:
        """Make a new version of the group visible, whose objects lie beside those of the old one.

        Its consolidated metadata are the instant. What is left then is recorded before.
        """
        place = default_place(self.store, self.path)
        if swap.is_done or place is None or (targets and all(one.is_over() for one in targets)):
            return
        start = len(prefix_of(self.path))
        arrays = [*(target.array for target in targets), *self.bare]
        nodes = self._texts(arrays)
        texts = {
            path[start:]: b"".join(documents.values()).decode()  # of v3 there is one
            for path, documents in nodes.items()
            if path != self.path
        }
        gone = sorted({*swap.before, *(swap.groups or ())} - nodes.keys())
        paths = [path[start:] for path in gone]
        record = VersionChange(place.store, place.prefix, texts, paths)
        found = self._consolidated_documents(self.path, arrays)
        holder = self.node_format.read(self.store, self.path, ReadOptions(), found=found)
        if holder is None:
            raise TypeError(f"{self.node_format.name} has no consolidated metadata in a document.")
        self._fence()
        record.put()
        swap.show(self._shown_in, holder, self._fence)
        self._end_version(swap, holder, record)

    def finish_version(self, record: VersionChange) -> None:
        """Do what is left of a swap in an object store that died while it made a version visible.

        The caller has claimed the group.
        """
        end_claims_below(self.store, self.path)
        swap = KeySwap(self.store, self.path, self.node_format, {}, "", groups=())
        if swap.is_shown(self._below(record.documents)):
            self._end_version(swap, None, record)
        else:
            record.remove()

    def _end_version(self, swap: KeySwap, shown: NodeMeta | None, record: VersionChange) -> None:
        swap.show_below(self._shown_in, self._below(record.documents), self._fence)
        with fenced_deletes(self._fence):
            swap.end(shown, [join(self.path, path) for path in record.gone])
            record.remove()

    def is_half_shown(self) -> bool:
        """True if a version may be shown in part: the claim that keeps others away stays then."""
        if not isinstance(self.swap, KeySwap):
            return False
        with suppress(StoreError, JournalError):  # the first error is what matters
            return has_unfinished_commit(self.store, self.path)
        return True

    def _below(self, documents: Mapping[str, str]) -> dict[str, bytes]:
        """Return documents by path in the store."""
        return {
            normalise_path(join(self.path, path)): text.encode() for path, text in documents.items()
        }

    def _fence(self) -> None:
        """Raise if a later job has the location of the group; nobody takes one below it."""
        for claim in self.claims[:1]:
            if not has_released(claim):
                claim.fence()

    def _of_folder(self, swap: AtomicReplace) -> GroupCommit:
        """Return the changes in the folder of a group that replaces another one."""

        def array_beside(array: Array) -> Array:
            return replace(array, store=swap.store, path=swap.path_beside(array.path))

        return replace(
            self,
            store=swap.store,
            path="",
            groups=tuple(replace(one, path=swap.path_beside(one.path)) for one in self.groups),
            bare=tuple(map(array_beside, self.bare)),
            consolidated=self.consolidated and not self.path,
            swap=None,
        )

    @property
    def _shown_in(self) -> Store:
        """Return the store for the metadata."""
        return confirmed_if(self.confirms, self.store)

    def _changes_metadata(self, targets: Sequence[ArrayTarget]) -> bool:
        """True if consolidated metadata may be outdated: regions leave all metadata as they are."""
        if self.groups or self.bare or self.derived is not None or self.consolidated:
            return True
        return any(one.creates or one.before is not None or one.swap is not None for one in targets)

    def _record(self, targets: Sequence[ArrayTarget]) -> LengthChange | None:
        place = default_place(self.store, self.path)
        start = len(prefix_of(self.path))
        lengths = {
            target.array.path[start:]: (target.before.shape, target.array.shape)
            for target in targets
            if target.before is not None
        }
        for before, array in () if self.derived is None else self.derived.arrays:
            lengths[array.path[start:]] = (before.shape, array.shape)
        if place is None or not lengths or puts_metadata_first(self.store):
            return None
        return LengthChange(place.store, place.prefix, lengths)

    def _show_bare(self) -> None:
        """Make the arrays without values visible, and stop jobs that make one of them, too.

        Where the group is claimed, each of them is below that claim.
        """
        bare = [array for array in self.bare if not puts_metadata_first(array.store)]
        own = () if self._takes_group else (array.path for array in bare)
        with claiming_nodes(self.store, *own) as found:
            stopped = {claim.what for claim in found.claims if claim.was_others}
            for array in bare:
                if array.where in stopped:
                    prefix = array.node_format.data_prefix(array.path)
                    remove_leftovers(array.store, prefix, array.meta)
                found.fence()
                store = confirmed_if(self.confirms, array.store)
                write_documents(store, array.node_format.documents(array.meta, array.path))

    @property
    def _takes_group(self) -> bool:
        """True if the outermost group is made, or replaced."""
        return self.overwrite or any(one.creates and one.path == self.path for one in self.groups)

    def _show_groups(self, arrays: Sequence[Array]) -> None:
        options = ReadOptions()
        made = {group.path for group in self.groups if group.creates}
        for group in self.groups:
            place = (self._shown_in, group.path, self.node_format)
            if not group.creates:
                _add_attributes(*place, group.attributes, options)
                continue
            documents = self._documents(group, arrays)
            # the last one is what makes the group a node
            write_documents(self._shown_in, dict(reversed(list(documents.items()))))
            if made.isdisjoint(ancestors(group.path)):  # these are still to come
                create_parent_groups(*place)

    def _documents(self, group: GroupShown, arrays: Sequence[Array]) -> Mapping[str, bytes]:
        """Return the documents of a new group, with consolidated metadata if it is the root."""
        documents = dict(self.node_format.documents(GroupMeta(group.attributes), group.path))
        wanted = self.consolidated and has_consolidated(self.node_format)
        if group.path or not (wanted and arrays) or puts_metadata_first(self.store):
            return documents
        return {**documents, **self._consolidated_documents(group.path, arrays)}

    def _consolidated_documents(self, path: str, arrays: Sequence[Array]) -> dict[str, bytes]:
        """Return the consolidated metadata of the outermost group."""
        texts: dict[str, bytes] = {}
        for documents in self._texts(arrays).values():
            texts |= documents
        parsed = {key: load_json(self.store, key, text) for key, text in texts.items()}
        return consolidated_documents(self.store, path, self.node_format, parsed)

    def _texts(self, arrays: Sequence[Array]) -> dict[str, Mapping[str, bytes]]:
        """Return the documents of new groups and arrays by path."""
        found: dict[str, Mapping[str, bytes]] = {}
        for group in self.groups:
            meta = GroupMeta(group.attributes)
            found[group.path] = self.node_format.documents(meta, group.path)
        for array in arrays:
            found[array.path] = array.node_format.documents(array.meta, array.path)
        return found

    def consolidate(self, *, with_root: bool = False) -> None:
        """Write consolidated metadata anew, where there are some and where they are wanted.

        Those of a new root have been written together with its document (`with_root`).
        """
        if not has_consolidated(self.node_format) or puts_metadata_first(self.store):
            return
        if with_root and any(group.creates and not group.path for group in self.groups):
            return  # nothing lies above a root
        below = join(self.path, "-")  # consolidated metadata of the group itself are told of, too
        present = set(consolidated_groups(self.store, below, self.node_format))
        if self.consolidated:
            present.add("")
        for path in sorted(present, key=lambda one: one.count("/") + bool(one), reverse=True):
            consolidate_group(self._shown_in, path, self.node_format)


def _add_attributes(
    store: Store,
    path: str,
    node_format: Format,
    attributes: Mapping[str, Any],
    options: ReadOptions,
) -> None:
    present = node_format.read(store, path, options, found={})
    if present is not None and any(
        name not in present.attributes
        or dump_json({name: present.attributes[name]}) != dump_json({name: value})  # NaN, too
        for name, value in attributes.items()
    ):
        given = (store, path, node_format, lambda old: {**old, **attributes}, options)
        change_attributes(*given, allow_nan=True)


# --- after the death of a process -----------------------------------------------------------------


def has_unfinished_commit(store: Store, path: str) -> bool:
    """True if an append to a group, or a swap of it, died while it became visible."""
    return change_at(store, path) is not None


def finish_commit(
    store: Store,
    path: str,
    node_format: Format,
    on_conflict: OnConflict = "error",
    job: str = "",
    *,
    takes_over: bool = False,
) -> bool:
    """Do what is left of an append, or a swap, that died while it became visible.

    Parameters
    ----------
    store, path, node_format
        The group.
    on_conflict
        What to do while the append is under way.
    job
        See `GroupCommit.job`.
    takes_over
        True to go on with a swap in an object store whatever has become of its process.

    Returns
    -------
    bool
        True if there was such a job.

    Raises
    ------
    AppendConflictError
        If it is under way.
    MetadataChangedError
        If an array has neither the length that the append found nor the one that it makes.
    """
    record = change_at(store, path)
    if record is None:
        return False
    if isinstance(record, VersionChange):
        if takes_over:
            claim, _ = claim_node(store, path, token_hex(16))
        else:
            claim = claim_left(store, path)
        if claim is None:
            raise AppendConflictError(
                f"{where(store, path)} is being replaced by a job with mode='swap', or that was "
                "killed at its end on another host; nothing was written. Wait until it has ended, "
                "or repeat its call."
            )
        with releasing(claim):
            return finish_claimed_commit(store, path, node_format, claim)
    with claimed(store, path, on_conflict, job):
        return finish_claimed_commit(store, path, node_format)


def finish_left_swap(store: Store, path: str, node_format: Format) -> bool:
    """Do what is left of a swap of a group in an object store whose process is known to be dead.

    Returns True if there was one.
    """
    if is_read_only(store):
        store = store.store
    if not is_remote(store) or not isinstance(change_at(store, path), VersionChange):
        return False
    with suppress(AppendConflictError, JobRunningError):
        return finish_commit(store, path, node_format)
    return False


def finish_claimed_commit(
    store: Store, path: str, node_format: Format, claim: NodeClaim | None = None
) -> bool:
    """As `finish_commit`, for a caller that has claimed the group, by a `claim` to its location.

    Raises
    ------
    MetadataChangedError
        As `finish_commit`.
    """
    record = change_at(store, path)
    if record is None:
        return False
    if isinstance(record, VersionChange):
        claims = () if claim is None else (claim,)
        end = GroupCommit(store=store, path=path, node_format=node_format, claims=claims)
        end.finish_version(record)
        return True
    for name, (before, after) in record.lengths.items():
        _grow(store, normalise_path(join(path, name)), before, after)
    GroupCommit(store=store, path=path, node_format=node_format, appends=True).consolidate()
    record.remove()
    return True


def _grow(store: Store, path: str, before: tuple[int, ...], after: tuple[int, ...]) -> None:
    options = ReadOptions()
    try:
        node_format, meta = read_node(store, path, None, options)
    except NodeNotFoundError as error:
        raise _changed(store, path, before, after, "no array") from error
    shape = meta.shape if isinstance(meta, ArrayMeta) else None
    if shape == after:
        return
    if not isinstance(meta, ArrayMeta) or shape != before:
        raise _changed(store, path, before, after, shape)
    grid = resize_grid(meta.grid, after, sharded=meta.codecs.serializer.is_sharding)

    def longer(now: ArrayMeta) -> ArrayMeta:
        return replace(now, grid=grid)

    write_changed_documents(store, path, node_format, meta, longer, options, warns=False)


def _changed(
    store: Store, path: str, before: tuple[int, ...], after: tuple[int, ...], found: object
) -> MetadataChangedError:
    return MetadataChangedError(
        f"an append that made {where(store, path)} {after} from {before} was killed at its end, "
        f"and finds {found} by now. Look at the ends of the arrays of its group."
    )
