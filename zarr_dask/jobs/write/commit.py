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

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from zarr_dask.array.array import Array
from zarr_dask.array.resize import resize_grid
from zarr_dask.errors import JournalError, MetadataChangedError, NodeNotFoundError, StoreError
from zarr_dask.formats.base import (
    ArrayMeta,
    Format,
    GroupMeta,
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
from zarr_dask.hierarchy.locate import is_still_free
from zarr_dask.jobs.write.target import ArrayTarget
from zarr_dask.journal import (
    Journal,
    NodeClaim,
    OnConflict,
    claim_node,
    claimed,
    claiming_nodes,
    default_place,
    remove_empty_folders,
)
from zarr_dask.journal.swap import AtomicReplace
from zarr_dask.stores.base import Store, join
from zarr_dask.stores.wrappers.confirmed import confirmed_if

__all__ = [
    "DerivedArrays",
    "GroupCommit",
    "GroupShown",
    "finish_claimed_commit",
    "finish_commit",
    "growing_lengths",
    "has_unfinished_commit",
]

_FORMAT = "zarr-dask commit 1"
_NAME = "__append/commit.json"
_LARGEST = 1 << 63


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
    swap: AtomicReplace | None = None
    """Swap that puts the group in place of another one at the end."""
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
        if not self.appends and self.swap is None:
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
        if self.swap is None or self.swap.is_done:
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
        claim, was_others = claim_node(self.store, self.path, run_id, job=job)
        if claim is None:
            return None, True
        place = (self.store, self.path, self.node_format)
        return claim, not was_others and (self.overwrite or is_still_free(*place))

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
        if self.swap is not None:
            if not self.swap.is_done:
                self._of_folder(self.swap).show(targets)
            self.swap.end()
            self.consolidate(with_root=True)
            return
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

    def _record(self, targets: Sequence[ArrayTarget]) -> _LengthChange | None:
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
        return _LengthChange(place.store, place.prefix, lengths)

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
        texts = dict(documents)
        for array in arrays:
            texts |= array.node_format.documents(array.meta, array.path)
        for other in self.groups:
            if other.path:
                texts |= self.node_format.documents(GroupMeta(other.attributes), other.path)
        parsed = {key: load_json(self.store, key, text) for key, text in texts.items()}
        made = consolidated_documents(self.store, group.path, self.node_format, parsed)
        return {**documents, **made}

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


@dataclass(frozen=True)
class _LengthChange:
    """Lengths that are being changed together."""

    store: Store
    """Store beside the hierarchy."""
    prefix: str
    lengths: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]
    """Shapes before and after, by path of the array below the group."""

    @property
    def _key(self) -> str:
        return f"{self.prefix}{_NAME}"

    def put(self) -> None:
        document = {"format": _FORMAT, "arrays": self.lengths}
        self.store.set(self._key, [json.dumps(document).encode()])

    def remove(self) -> None:
        self.store.delete(self._key)
        remove_empty_folders(self.store, self._key.rpartition("/")[0] + "/")

    @staticmethod
    def at(store: Store, path: str) -> _LengthChange | None:
        """Return the record of a group; None if there is none.

        Raises
        ------
        JournalError
            If something else is there.
        """
        place = default_place(store, path)
        if place is None:
            return None
        try:
            text = place.store.get(f"{place.prefix}{_NAME}")
        except StoreError:
            return None  # what lies beside may not be ours to read
        if text is None:
            return None
        try:
            document = json.loads(bytes(text))
            arrays = document["arrays"]
            if document["format"] != _FORMAT:
                raise KeyError("format")  # noqa: TRY301
            lengths = {name: _shapes(before, after) for name, (before, after) in arrays.items()}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise JournalError(
                f"{place.url}{_NAME} is not what an append leaves there while it ends ({error}); "
                "look at the lengths of the arrays, and remove it."
            ) from error
        return _LengthChange(place.store, place.prefix, lengths)


def _shapes(before: Any, after: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of an array that becomes longer.

    Raises
    ------
    ValueError, TypeError
        If they are none.
    """
    if not all(type(n) is int for n in (*before, *after)):
        raise ValueError(f"{before!r:.80} and {after!r:.80} are no shapes")
    if not all(0 <= old <= new < _LARGEST for old, new in zip(before, after, strict=True)):
        raise ValueError(f"{before!r:.80} does not grow to {after!r:.80}")
    return tuple(before), tuple(after)


def has_unfinished_commit(store: Store, path: str) -> bool:
    """True if an append to a group died while it made its values visible."""
    return _LengthChange.at(store, path) is not None


def growing_lengths(
    store: Store, path: str
) -> Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return the shapes before and after of arrays whose lengths are being changed, by path."""
    record = _LengthChange.at(store, path)
    lengths = {} if record is None else record.lengths
    return {normalise_path(join(path, name)): pair for name, pair in lengths.items()}


def finish_commit(
    store: Store,
    path: str,
    node_format: Format,
    on_conflict: OnConflict = "error",
    job: str = "",
) -> bool:
    """Do what is left of an append that died while it made its values visible.

    Parameters
    ----------
    store, path, node_format
        The group.
    on_conflict
        What to do while the append is under way.
    job
        See `GroupCommit.job`.

    Returns
    -------
    bool
        True if there was such an append.

    Raises
    ------
    AppendConflictError
        If it is under way.
    MetadataChangedError
        If an array has neither the length that the append found nor the one that it makes.
    """
    if not has_unfinished_commit(store, path):
        return False
    with claimed(store, path, on_conflict, job):
        return finish_claimed_commit(store, path, node_format)


def finish_claimed_commit(store: Store, path: str, node_format: Format) -> bool:
    """As `finish_commit`, for a caller that has claimed the group.

    Raises
    ------
    MetadataChangedError
        As `finish_commit`.
    """
    record = _LengthChange.at(store, path)
    if record is None:
        return False
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
