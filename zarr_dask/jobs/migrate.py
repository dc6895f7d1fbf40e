"""Migrating a hierarchy to another format without decoding a chunk.

`plan_migration` says everything that will be done, and all that cannot be; `MigrationPlan.run`
does it, all of the hierarchy or nothing: copies of stored objects first (each read back and
compared), then the new documents, those of children before those of their groups and that of the
root last, then, if that is asked for, the old documents and keys go. At every moment the
hierarchy can be read, with the old documents or with the new ones; an interrupted run can be
repeated.

Where documents of two formats lie side by side, the newer format wins (with a warning), which
is why old documents may stay for readers of the old format.
"""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from threading import Lock
from time import perf_counter
from typing import Any, Literal, NamedTuple, cast

from zarr_dask.errors import (
    MetadataChangedError,
    MetadataError,
    MigrationError,
    MissingGroupWarning,
    NodeNotFoundError,
    Problem,
    SourceIsTargetError,
    StoreError,
)
from zarr_dask.formats.base import (
    ArrayMeta,
    ChunkKeys,
    Format,
    GroupMeta,
    NodeMeta,
    ReadOptions,
    load_json,
    normalise_path,
    prefix_of,
    read_documents,
    where,
)
from zarr_dask.formats.consolidated import consolidated_documents, consolidated_key
from zarr_dask.formats.detect import FORMATS
from zarr_dask.formats.migrate import DIMENSIONS, TARGETS, default_keys, older, translate
from zarr_dask.jobs.plan import format_bytes
from zarr_dask.pool import for_each
from zarr_dask.stores.base import Buffer, Range, Store, join
from zarr_dask.stores.urls import Location, open_store, overlap, real_place
from zarr_dask.stores.wrappers import Wrapper
from zarr_dask.walk import read_or_imply, walk

__all__ = ["Data", "MigrationPlan", "MigrationReport", "NodePlan", "migrate", "plan_migration"]

Data = Literal["keep", "rename", "copy"]


class Move(NamedTuple):
    """One stored object under its old and its new key."""

    old: str
    new: str


@dataclass(frozen=True)
class NodePlan:
    """What will become of one node."""

    path: str
    """Below the root of the store."""
    before: NodeMeta | None
    """What its documents say now; None if they cannot be read."""
    node_format: Format
    """How they are spelled now."""
    after: NodeMeta | None = None
    """What they will say; None if that is not possible."""
    documents: Mapping[str, bytes] = field(default_factory=dict)
    """Its new documents by key, the one that makes it visible last."""
    problems: tuple[Problem, ...] = ()
    """Why it cannot be migrated."""
    notes: tuple[str, ...] = ()
    """What users should know."""
    objects: int = 0
    """Stored objects to be copied."""

    @property
    def format(self) -> str:
        """Name of the format that it has now."""
        return self.node_format.name


@dataclass(frozen=True, slots=True)
class MigrationReport:
    """What a migration has done."""

    nodes: int
    """Nodes that have documents of the new format."""
    documents: int
    """Documents written."""
    objects: int
    """Stored objects copied, and compared with what they were copied from."""
    nbytes: int
    """Their bytes."""
    removed: int
    """Old documents and stored objects removed."""
    seconds: float

    def __str__(self) -> str:
        objects = _count(self.objects, "stored object")
        copied = f", {objects} copied ({format_bytes(self.nbytes)})" if self.objects else ""
        removed = f", {_count(self.removed, 'old key')} removed" if self.removed else ""
        return (
            f"{_count(self.nodes, 'node')}, {_count(self.documents, 'document')} written{copied}"
            f"{removed} in {self.seconds:.1f} s"
        )


@dataclass(frozen=True)
class MigrationPlan:
    """Everything that a migration will do; made by `plan_migration`."""

    source: Store
    target: Store
    in_place: bool
    """Whether source and target are the same place."""
    path: str
    """Of the root of the hierarchy, in both stores."""
    source_format: Format
    target_format: Format
    data: Data
    """What happens to stored objects."""
    nodes: tuple[NodePlan, ...]
    """By path, parents before children."""
    remove_old: bool = False
    """Whether the old documents and keys go at the end."""
    options: ReadOptions = field(default_factory=ReadOptions)
    """How the old documents are read."""

    @property
    def refusals(self) -> tuple[tuple[str, Problem], ...]:
        """Path of a node, and why it cannot be migrated."""
        return tuple((node.path, problem) for node in self.nodes for problem in node.problems)

    @property
    def objects(self) -> int:
        """Stored objects to be copied."""
        return sum(node.objects for node in self.nodes)

    @property
    def where(self) -> str:
        """Store and path of the hierarchy, for messages."""
        return where(self.source, self.path)

    def __str__(self) -> str:
        return self.explain()

    def explain(self) -> str:
        """The plan in words and numbers."""
        arrays = sum(isinstance(node.before, ArrayMeta) for node in self.nodes)
        groups = sum(isinstance(node.before, GroupMeta) for node in self.nodes)
        place = "in place" if self.in_place else f"to {where(self.target, self.path)}"
        lines = [
            f"migrate {self.where} from {self.source_format.name} to {self.target_format.name}",
            f"  place      {place}",
            f"  nodes      {_count(groups, 'group')}, {_count(arrays, 'array')}",
            f"  documents  {_count(len(self._documents), 'new document')}",
            f"  data       {self._data_line()}",
            f"  old        {self._old_line()}",
        ]
        notes = Counter(note for node in self.nodes for note in node.notes)
        for note, count in notes.items():
            first = next(node.path for node in self.nodes if note in node.notes) or "/"
            others = f" and {count - 1} more" if count > 1 else ""
            lines.append(f"  note       {first}{others}: {note}")
        lines += [f"  refused    {path or '/'}: {problem}" for path, problem in self.refusals]
        if self.refusals:
            lines.append(
                "nothing will be written: a hierarchy is migrated as a whole or not at all"
            )
        return "\n".join(lines)

    def _data_line(self) -> str:
        if self.data == "keep":
            return "stored objects stay where they are, untouched"
        how = "under new keys beside the old ones" if self.in_place else "into the new place"
        return f"{_count(self.objects, 'stored object')} copied byte for byte {how}"

    def _old_line(self) -> str:
        if not self.in_place:
            return "the source stays as it is"
        what = "documents" if self.data == "keep" else "documents and keys"
        if self.remove_old:
            return f"old {what} are removed when the new ones are verified"
        return f"old {what} stay; {self.target_format.name} wins where both lie side by side"

    @property
    def _documents(self) -> dict[str, bytes]:
        """All new documents in the order of writing: children before parents."""
        ordered = sorted(self.nodes, key=_depth, reverse=True)
        return {key: text for node in ordered for key, text in node.documents.items()}

    # --- doing it ---------------------------------------------------------------------------------

    def run(self, progress: Callable[[int], None] | None = None) -> MigrationReport:
        """Do it.

        Parameters
        ----------
        progress
            Called with the number of bytes after each stored object that is copied, in one of
            several threads.

        Raises
        ------
        MigrationError
            If something cannot be migrated; nothing is written then.
        MetadataChangedError
            If documents have changed since the plan was made; they still hold then.
        StoreError
            If the store fails. What is there can be read, and the same migration be run again.
        """
        if self.refusals:
            raise MigrationError(self.where, self.refusals)
        begun = perf_counter()
        copied = self._copy_objects(progress)
        self._check_unchanged()
        written = self._write_documents()
        self._verify_documents()
        removed = self._remove_old() if self.remove_old else 0
        seconds = perf_counter() - begun
        return MigrationReport(len(self.nodes), written, *copied, removed, seconds)

    def is_written(self, node: NodePlan) -> bool:
        """Whether the new documents of a node are there already."""
        present = read_documents(self.target, list(node.documents), self.options.limits)
        return present == node.documents

    def _copy_objects(self, progress: Callable[[int], None] | None) -> tuple[int, int]:
        tally = _Tally()

        def copy(move: Move) -> None:
            nbytes = self._copy_object(move)
            tally.add(nbytes)
            if progress is not None:
                progress(nbytes)

        for node in self.nodes:
            for_each(copy, self.moves(node), None)
        return tally.objects, tally.nbytes

    def _copy_object(self, move: Move) -> int:
        """Copy one stored object unless that is done; its bytes, compared after reading back."""
        value = self.source.get(move.old)
        if value is None:
            raise MetadataChangedError(
                f"{where(self.source, move.old)} has gone while it was copied: something else "
                "changes the hierarchy. Stop it and run the migration again."
            )
        if self.target.size(move.new) != len(value) or self.target.get(move.new) != value:
            self.target.set(move.new, [value])
            if self.target.get(move.new) != value:
                raise StoreError(
                    f"{where(self.target, move.new)} does not hold what was just written to it: "
                    "the store is not to be trusted. The old keys and documents are untouched."
                )
        return len(value)

    def moves(self, node: NodePlan) -> Iterator[Move]:
        """The stored objects of a node that get another key, or another store."""
        after, before = node.after, node.before
        if not isinstance(after, ArrayMeta) or not isinstance(before, ArrayMeta):
            return
        new_prefix = self.target_format.data_prefix(node.path)
        for old_prefix, keys in self._old_layouts(node, before):
            if self.in_place and (old_prefix, keys) == (new_prefix, after.keys):
                continue
            for key in self.source.list(old_prefix):
                coords = _coords(before, keys, key[len(old_prefix) :])
                if coords is not None:
                    yield Move(key, new_prefix + after.keys.key(coords))

    def _old_layouts(self, node: NodePlan, before: ArrayMeta) -> Iterator[tuple[str, ChunkKeys]]:
        """Where stored objects may lie now: prefix and keys.

        A node that has the new documents only may have been left by an interrupted run between
        the removal of its old documents and that of its old keys.
        """
        prefix = node.node_format.data_prefix(node.path)
        yield prefix, before.keys
        if self.data == "rename" and node.node_format == self.target_format:
            yield prefix, ChunkKeys("v2", ".")
            if before.grid.ndim > 1:  # else they are the same keys
                yield prefix, ChunkKeys("v2", "/")

    def _check_unchanged(self) -> None:
        again = _node_plans(self)
        if [(n.path, n.documents) for n in again] != [(n.path, n.documents) for n in self.nodes]:
            raise MetadataChangedError(
                f"the metadata of {self.where} have changed since the plan was made; no document "
                "was written. Run the migration again."
            )

    def _write_documents(self) -> int:
        """Write what is not there yet; how many documents that were."""
        for key in self.replaced:
            text = self.source.get(key)
            if text is not None and self.target.get(key + BACKUP) is None:
                self.target.set(key + BACKUP, [text])
        documents = self._documents
        present = read_documents(self.target, list(documents), self.options.limits)
        missing = {key: text for key, text in documents.items() if present[key] != text}
        for key, text in missing.items():
            self.target.set(key, [text])
        return len(missing)

    def _verify_documents(self) -> None:
        for node in self.nodes:
            after = self.target_format.read(self.target, node.path, self.options, found={})
            again = {} if after is None else self.target_format.documents(after, node.path)
            wanted = self.target_format.documents(node.after, node.path) if node.after else {}
            if again != wanted or not self.is_written(node):
                raise StoreError(
                    f"the new documents of {where(self.target, node.path)} do not say what was "
                    "just written to them. The old keys and documents are untouched."
                )

    # --- removing what is old ---------------------------------------------------------------------

    @property
    def replaced(self) -> tuple[str, ...]:
        """Old documents whose keys new ones need: they are kept under another key."""
        return tuple(self.source_format.root_documents()) if self.in_place else ()

    def _remove_old(self) -> int:
        """Remove old documents and objects, children first; how many keys that were."""
        # first, or their readers would take removed objects for fill values
        removed = self._remove_keys(self._old_consolidated)
        for node in sorted(self.nodes, key=_depth, reverse=True):
            keys = self._old_documents(node)
            # a reader of the old format must not take removed objects for fill values; where it
            # has lost its entry document already, what is left can be found again by the others
            if self.replaced:
                removed += self._remove_objects(node) + self._remove_keys(keys)
            else:
                removed += self._remove_keys(keys) + self._remove_objects(node)
        return removed + self._remove_keys([key + BACKUP for key in self.replaced])

    @property
    def _old_consolidated(self) -> list[str]:
        groups = (node for node in self.nodes if isinstance(node.before, GroupMeta))
        keys = (consolidated_key(node.path, node.node_format) for node in groups)
        return [key for key in keys if key is not None]

    def _old_documents(self, node: NodePlan) -> list[str]:
        """Keys of the old documents of a node, the one that makes it visible first."""
        if node.before is None or node.after is None:
            return []
        if node.node_format == self.target_format:
            return self._orphans(node.path, node.after)
        keys = node.node_format.node_keys(node.path)
        if isinstance(node.before, GroupMeta):  # arrays have theirs first anyway
            group = node.node_format.documents(GroupMeta(), node.path)
            keys = tuple(dict.fromkeys((*reversed(group), *keys)))
        return [key for key in keys if key not in node.documents and key not in self.replaced]

    def _orphans(self, path: str, meta: NodeMeta) -> list[str]:
        """Attributes that an interrupted removal has left without the document of their node."""
        attributes = {**meta.attributes}
        orphans = []
        for one in older(self.target_format):
            texts = read_documents(self.target, one.node_keys(path), self.options.limits)
            for key, text in texts.items():
                if text is not None and _says(text, attributes):
                    orphans.append(key)
        return [key for key in orphans if key not in self.target_format.node_keys(path)]

    def _remove_keys(self, keys: Sequence[str]) -> int:
        present = [key for key in keys if self.target.size(key) is not None]
        for key in present:
            self.target.delete(key)
        return len(present)

    def _remove_objects(self, node: NodePlan) -> int:
        tally = _Tally()

        def remove(move: Move) -> None:
            self._remove_object(move)
            tally.add(0)

        for_each(remove, self.moves(node), None)
        _remove_empty_folders(self.target, self.source_format.data_prefix(node.path))
        return tally.objects

    def _remove_object(self, move: Move) -> None:
        if self.source.get(move.old) != self.target.get(move.new):
            raise MetadataChangedError(
                f"{where(self.source, move.old)} is not the same any more as its copy {move.new!r} "
                "and was kept: something else writes into the hierarchy. Stop it, and run the "
                "migration again."
            )
        self.target.delete(move.old)


class _Tally:
    """Stored objects and bytes, counted by several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.objects = 0
        self.nbytes = 0

    def add(self, nbytes: int) -> None:
        with self._lock:
            self.objects += 1
            self.nbytes += nbytes


BACKUP = ".migrated"
"""Ends the key under which a document is kept that had to make room for a new one."""


def _remove_empty_folders(store: Store, prefix: str) -> None:
    """Remove what only a file system has: folders without a value in them."""
    for below in store.list_dir(prefix).prefixes:
        if next(store.list(below), None) is None:
            store.delete_prefix(below)


def _coords(meta: ArrayMeta, keys: ChunkKeys, key: str) -> tuple[int, ...] | None:
    """Where the object of a key belongs in an array; None if it is none of it."""
    coords = keys.coords(key, meta.grid.ndim)
    if coords is None or any(at >= n for at, n in zip(coords, meta.grid.counts, strict=True)):
        return None
    return coords


def _depth(node: NodePlan) -> int:
    return len(node.path.split("/")) if node.path else 0


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


# --- planning -------------------------------------------------------------------------------------


def migrate(
    src: Location,
    dst: Location | None = None,
    *,
    path: str = "",
    format: str = "v3",
    data: Data | None = None,
    dry_run: bool = False,
    remove_old: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    read: ReadOptions | None = None,
) -> MigrationPlan:
    """Migrate a hierarchy to a newer format, without decoding a chunk.

    All of it or nothing: if a node cannot be migrated, nothing is written and the error lists
    every reason. New documents are written from the leaves to the root, when all stored objects
    are in their places; until then readers find the old ones. Where both lie side by side, the
    newer format wins and readers are warned, so that old documents can stay for readers of the
    old format: changes made through one kind of documents are not seen through the other.

    Parameters
    ----------
    src
        A path, a URL, a store or a mapping, of format v1, v2 or a draft of v3.
    dst
        Where the migrated hierarchy goes; None to migrate in place.
    path
        Path of the hierarchy's root below `src` (and `dst`). Groups above it are left alone.
    format
        ``"v3"``, or ``"v2"`` for arrays of v1.
    data
        ``"keep"`` leaves stored objects where they are (v1 and v2 in place, the default there);
        ``"rename"`` puts them under the default keys of v3, in place; ``"copy"`` into `dst`.
        Their bytes are the same in each case.
    dry_run
        Only make the plan; print it to see what will happen.
    remove_old
        Remove the old documents and keys of a hierarchy in place when the new ones are there and
        verified: every document read again, every object compared with its copy.
    storage_options, target_options
        Options of the stores at `src` and `dst`.
    read
        How to read the old hierarchy: ``ReadOptions(v1_f_order="legacy")`` for instance.

    Returns
    -------
    MigrationPlan
        What was done, or would be.

    Raises
    ------
    MigrationError
        If something cannot be said in the new format (not for a dry run, whose plan lists it).
    NodeNotFoundError
        If there is nothing at `src`.
    MetadataChangedError
        If the hierarchy changes meanwhile.
    StoreError
        If a store fails. What is there can be read, and the same call be repeated.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> store = {}
    >>> a = zd.create_array(store, shape=(4,), dtype=">i2", chunks=2, format="v2")
    >>> a[...] = [1, 2, 3, 4]
    >>> _ = zd.migrate(store, remove_old=True)
    >>> sorted(store), zd.open(store)[...].tolist()
    (['0', '1', 'zarr.json'], [1, 2, 3, 4])
    """
    plan = plan_migration(
        src,
        dst,
        path=path,
        format=format,
        data=data,
        remove_old=remove_old,
        storage_options=storage_options,
        target_options=target_options,
        read=read,
    )
    if not dry_run:
        plan.run()
    return plan


def plan_migration(
    src: Location,
    dst: Location | None = None,
    *,
    path: str = "",
    format: str = "v3",
    data: Data | None = None,
    remove_old: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    read: ReadOptions | None = None,
) -> MigrationPlan:
    """What `migrate` with these arguments will do, and what it cannot; writes nothing.

    Raises
    ------
    ValueError
        If the arguments do not go together.
    NodeNotFoundError
        If there is nothing at `src`.
    SourceIsTargetError
        If `dst` lies in `src`, or the reverse.
    """
    target_format = _target_format(format)
    data = data or ("keep" if dst is None else "copy")
    _check_arguments(data, dst, remove_old=remove_old)
    source, path = open_store(src, storage_options), normalise_path(path)
    target = source if dst is None else open_store(dst, target_options)
    if dst is not None and overlap(real_place(source, path), real_place(target, path)):
        raise SourceIsTargetError(
            f"{where(target, path)} lies in {where(source, path)}, or the reverse: leave dst out "
            "to migrate in place, or choose another place."
        )
    options = replace(read or ReadOptions(), consolidated=False)
    if dst is None:
        source = _as_before(source)
    plan = MigrationPlan(
        source=source,
        target=target,
        in_place=dst is None,
        path=path,
        source_format=_source_format(source, path, target_format, options),
        target_format=target_format,
        data=data,
        nodes=(),
        remove_old=remove_old,
        options=options,
    )
    plan = replace(plan, nodes=_node_plans(plan))
    return replace(plan, nodes=tuple(_with_objects(plan, node) for node in plan.nodes))


def _target_format(name: str) -> Format:
    for candidate in TARGETS:
        if candidate.name == name:
            return candidate
    known = " or ".join(repr(candidate.name) for candidate in TARGETS)
    raise ValueError(f"format={name!r}: expected {known}.")


def _check_arguments(data: str, dst: Location | None, *, remove_old: bool) -> None:
    possible = ("keep", "rename") if dst is None else ("copy",)
    if data not in possible:
        how = "in place" if dst is None else "into another place"
        raise ValueError(
            f"data={data!r}: a migration {how} takes {' or '.join(map(repr, possible))}; with dst "
            "it copies, without it works in place."
        )
    if remove_old and dst is not None:
        raise ValueError("remove_old=True is for migrations in place: a copy leaves its source.")


def _source_format(store: Store, path: str, target: Format, options: ReadOptions) -> Format:
    """The old format that a hierarchy has; the target format if there is no old one left."""
    for candidate in (*older(target), target):
        if _read(store, path, candidate, options) is not None:
            return candidate
    for candidate in older(target):
        if _is_implied(store, path, candidate, options):
            return candidate
    for other in FORMATS:
        if _read(store, path, other, options) is not None:
            known = ", ".join(one.name for one in older(target))
            raise ValueError(
                f"{where(store, path)} has format {other.name}; to {target.name} can be migrated: "
                f"{known}."
            )
    keys = [key for one in FORMATS for key in one.node_keys(path)]
    raise NodeNotFoundError(where(store, path), keys, "Check the path.")


def _is_implied(store: Store, path: str, node_format: Format, options: ReadOptions) -> bool:
    """Whether nodes of a format lie below a path without a document."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MissingGroupWarning)
        try:
            return bool(read_or_imply(store, path, node_format.name, options))
        except NodeNotFoundError:
            return False


def _read(
    store: Store, path: str, node_format: Format, options: ReadOptions
) -> NodeMeta | MetadataError | None:
    """The node of one format at a path, or what is wrong with it."""
    found = read_documents(store, node_format.node_keys(path), options.limits)
    try:
        return node_format.read(store, path, options, found=found)
    except MetadataError as error:
        return error


class _Found(NamedTuple):
    """A node of a hierarchy before it is migrated."""

    path: str
    node_format: Format
    meta: NodeMeta | MetadataError


@dataclass(frozen=True)
class _Either:
    """Nodes of two formats in one hierarchy: the old documents first, the new ones without them.

    As much of a `Format` as walking needs.
    """

    formats: tuple[Format, ...]
    by_path: dict[str, Format] = field(default_factory=dict)
    """Which of them a node has, as far as nodes were read."""

    @property
    def has_implicit_groups(self) -> bool:
        """See `Format.has_implicit_groups`."""
        return self.formats[0].has_implicit_groups

    def node_keys(self, path: str) -> tuple[str, ...]:
        """See `Format.node_keys`."""
        return tuple(key for one in self.formats for key in one.node_keys(path))

    def child_names(self, store: Store, path: str) -> list[str]:
        """See `Format.child_names`."""
        return sorted({name for one in self.formats for name in one.child_names(store, path)})

    def read(
        self, store: Store, path: str, options: ReadOptions, *, found: Mapping[str, bytes | None]
    ) -> NodeMeta | None:
        """See `Format.read`."""
        for one in self.formats:
            self.by_path[path] = one
            own = {key: found[key] for key in one.node_keys(path) if key in found}
            meta = one.read(store, path, options, found=own)
            if meta is not None:
                return meta
        del self.by_path[path]
        return None


def _found(plan: MigrationPlan) -> Iterator[_Found]:
    """The nodes of a hierarchy, parents before children."""
    either = _Either(tuple(dict.fromkeys((plan.source_format, plan.target_format))))
    root = _read(plan.source, plan.path, plan.source_format, plan.options)
    root = GroupMeta(implicit=True) if root is None else root
    yield _Found(plan.path, plan.source_format, root)
    if not isinstance(root, GroupMeta):
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MissingGroupWarning)  # they get documents
        below = walk(plan.source, plan.path, cast("Format", either), plan.options)
    for name, meta in below.items():
        path = join(plan.path, name)
        yield _Found(path, either.by_path.get(path, plan.source_format), meta)


def _node_plans(plan: MigrationPlan) -> tuple[NodePlan, ...]:
    nodes = _consolidated(plan, [_node_plan(plan, *found) for found in _found(plan)])
    return tuple(_beside_present(plan, node) for node in nodes)


def _node_plan(
    plan: MigrationPlan, path: str, node_format: Format, meta: NodeMeta | MetadataError
) -> NodePlan:
    if isinstance(meta, MetadataError):
        return NodePlan(path, None, node_format, problems=meta.problems)
    node = NodePlan(path, meta, node_format)
    if node_format == plan.target_format:
        return _as_it_is(plan, node)
    translated = translate(meta, plan.target_format, _new_keys(plan, meta))
    notes = translated.notes
    if isinstance(meta, GroupMeta) and meta.implicit:
        notes = ("group without a document: it gets one",)
    problems = (*_name_problems(plan, path), *translated.problems)
    if translated.meta is None or problems:
        return replace(node, problems=problems, notes=notes)
    documents = plan.target_format.documents(translated.meta, path)
    return replace(node, after=translated.meta, documents=documents, notes=notes)


def _as_it_is(plan: MigrationPlan, node: NodePlan) -> NodePlan:
    """A node that has the new documents only."""
    keys = node.node_format.node_keys(node.path)
    texts = read_documents(plan.source, keys, plan.options.limits)
    documents = {key: text for key, text in texts.items() if text is not None}
    return replace(node, after=node.before, documents=documents)


def _consolidated(plan: MigrationPlan, nodes: Sequence[NodePlan]) -> Sequence[NodePlan]:
    """The same nodes; groups that have consolidated metadata of old documents get those of new."""
    changed = {node.path: node for node in nodes}
    for path in sorted(_consolidated_groups(plan, nodes), key=len, reverse=True):
        inside = prefix_of(path)
        documents = {
            key: load_json(plan.source, key, text)
            for node in changed.values()
            if node.path == path or node.path.startswith(inside)
            for key, text in node.documents.items()
        }
        made = consolidated_documents(plan.target, path, plan.target_format, documents)
        node = changed[path]
        after = plan.target_format.read(plan.target, path, plan.options, found=made)
        note = "consolidated metadata are written anew, of the new documents"
        changed[path] = replace(node, after=after, documents=made, notes=(*node.notes, note))
    return list(changed.values())


def _consolidated_groups(plan: MigrationPlan, nodes: Sequence[NodePlan]) -> Iterator[str]:
    """Paths of groups that have consolidated metadata, or had them when a former run began."""
    groups = [n for n in nodes if n.after is not None and isinstance(n.before, GroupMeta)]
    groups = [node for node in groups if node.node_format != plan.target_format]
    keys = {consolidated_key(node.path, node.node_format): node.path for node in groups}
    requests = [(key, Range(0, 1)) for key in keys if key is not None]
    found = plan.source.get_ranges(requests)
    old = {keys[key] for (key, _), value in zip(requests, found, strict=True) if value is not None}
    written = [key for node in groups for key in node.documents]
    texts = read_documents(plan.target, written, plan.options.limits) if written else {}
    for node in groups:
        new = [text for key, text in texts.items() if key in node.documents and text is not None]
        if node.path in old or any(_has_consolidated(text) for text in new):
            yield node.path


def _has_consolidated(text: bytes) -> bool:
    document = _json(text)
    return isinstance(document, dict) and document.get("consolidated_metadata") is not None


def _new_keys(plan: MigrationPlan, meta: NodeMeta) -> ChunkKeys | None:
    """Where the stored objects of an array will be."""
    if isinstance(meta, GroupMeta):
        return None
    return meta.keys if plan.data == "keep" else default_keys(plan.target_format, meta.keys)


def _name_problems(plan: MigrationPlan, path: str) -> Iterator[Problem]:
    """Names that nodes of the new format may not have, or that would lie in the old layout."""
    below = path[len(plan.path) :].lstrip("/")
    for name in below.split("/") if below else ():
        if not plan.target_format.is_node_name(name):
            expected = f"a name that a node may have in {plan.target_format.name}. Rename it"
            yield Problem("name", name, expected)
    if plan.replaced and any(f"{path}/".startswith(p) for p in plan.source_format.prefixes("")):
        expected = "a path that is not one of the old format's own keys: copy it to another place"
        yield Problem("name", path, expected)


def _beside_present(plan: MigrationPlan, node: NodePlan) -> NodePlan:
    """The plan of a node, where a former run may have written its documents already."""
    if not node.documents:
        return node
    present = read_documents(plan.target, list(node.documents), plan.options.limits)
    chosen, problems = dict(node.documents), []
    for key, text in present.items():
        if text is None or key in plan.replaced:
            continue
        if _same_json(text, node.documents[key]):
            chosen[key] = text
        else:
            expected = (
                "nothing there, or what the old documents say: it is newer, or another node's. "
                "Remove it to migrate from the old documents"
            )
            problems.append(Problem(key, text[:60].decode("utf-8", "replace"), expected))
    return replace(node, documents=chosen, problems=(*node.problems, *problems))


def _json(text: bytes) -> Any:
    """A document, or None if it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _same_json(a: bytes, b: bytes) -> bool:
    first, second = (json.dumps(_json(text), sort_keys=True) for text in (a, b))
    return first == second


def _says(text: bytes, attributes: Mapping[str, Any]) -> bool:
    """Whether a document is the attributes of a node, names of dimensions aside."""
    document = _json(text)
    if not isinstance(document, dict):
        return False
    document.pop(DIMENSIONS, None)
    return bool(document == {k: v for k, v in attributes.items() if k != DIMENSIONS})


# --- stored objects -------------------------------------------------------------------------------


def _with_objects(plan: MigrationPlan, node: NodePlan) -> NodePlan:
    """The plan of a node that knows how many stored objects there are to be copied."""
    if plan.data == "keep" or node.problems:
        return node
    strays = tuple(islice(_strays(plan, node), _SHOWN))
    objects = sum(1 for _ in plan.moves(node))
    return replace(node, objects=objects, problems=strays)


_SHOWN = 5
"""Stored objects that are named at most, of those in the way."""


def _strays(plan: MigrationPlan, node: NodePlan) -> Iterator[Problem]:
    """Objects under the new keys of an array that none of its old ones is."""
    before, after = node.before, node.after
    if not isinstance(before, ArrayMeta) or not isinstance(after, ArrayMeta):
        return
    old_prefix = node.node_format.data_prefix(node.path)
    new_prefix = plan.target_format.data_prefix(node.path)
    if plan.is_written(node) or (
        plan.in_place and (old_prefix, before.keys) == (new_prefix, after.keys)
    ):
        return
    folder = "c/" if after.keys == ChunkKeys("default", "/") and after.shape else ""
    for key in plan.target.list(new_prefix + folder):
        coords = _coords(after, after.keys, key[len(new_prefix) :])
        if coords is not None and plan.source.size(old_prefix + before.keys.key(coords)) is None:
            expected = "no object there: the array has none at these coordinates. Remove it"
            yield Problem("stored object", key, expected)


# --- what an interrupted migration has left -------------------------------------------------------


@dataclass(frozen=True)
class _Before(Wrapper):
    """A store with documents that have been replaced since as they were."""

    texts: Mapping[str, bytes]

    def get(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.get`."""
        return self.texts[key] if key in self.texts else self.store.get(key)

    def get_ranges(self, requests: Sequence[tuple[str, Range]]) -> list[Buffer | None]:
        """See `zarr_dask.stores.base.Store.get_ranges`."""
        found = self.store.get_ranges(requests)
        whole = {n for n, (key, wanted) in enumerate(requests) if key in self.texts}
        return [self.texts[requests[n][0]] if n in whole else v for n, v in enumerate(found)]

    def borrow(self, key: str) -> Buffer | None:
        """See `zarr_dask.stores.base.Store.borrow`."""
        return self.texts[key] if key in self.texts else self.store.borrow(key)


def _as_before(store: Store) -> Store:
    """The store as it was before a migration has replaced documents in it."""
    keys = [key for one in FORMATS for key in one.root_documents()]
    kept = {key: store.get(key + BACKUP) for key in keys}
    texts = {key: bytes(text) for key, text in kept.items() if text is not None}
    return _Before(store, texts) if texts else store
