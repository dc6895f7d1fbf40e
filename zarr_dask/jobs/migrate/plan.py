"""Plans of migrations: what will be done, in words, and how it is done.

`MigrationPlan.run` does all of the hierarchy or nothing: copies of stored objects first (each read
back and compared), then the new documents, those of children before those of their groups and
that of the root last, then, if that is asked for, the old documents and keys go. At every moment
the hierarchy can be read, with the old documents or with the new ones; an interrupted run can be
repeated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from time import perf_counter

from zarr_dask.errors import MetadataChangedError, MigrationError, Problem, StoreError
from zarr_dask.formats.base import ArrayMeta, GroupMeta, read_documents, where
from zarr_dask.formats.consolidated import consolidated_key, warn_of_stale
from zarr_dask.jobs.migrate.nodes import (
    BACKUP,
    Move,
    NodePlan,
    Route,
    consolidated_node,
    moves,
    node_plans,
    old_documents,
)
from zarr_dask.jobs.plan import counted, format_bytes
from zarr_dask.pool import for_each
from zarr_dask.stores.base import Store

__all__ = ["MigrationPlan", "MigrationReport"]


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
        objects = counted(self.objects, "stored object")
        copied = f", {objects} copied ({format_bytes(self.nbytes)})" if self.objects else ""
        removed = f", {counted(self.removed, 'old key')} removed" if self.removed else ""
        return (
            f"{counted(self.nodes, 'node')}, {counted(self.documents, 'document')} written{copied}"
            f"{removed} in {self.seconds:.1f} s"
        )


@dataclass(frozen=True)
class MigrationPlan:
    """Everything that a migration will do; made by `plan_migration`."""

    route: Route
    """From where to where, and how."""
    nodes: tuple[NodePlan, ...]
    """By path, parents before children."""
    remove_old: bool = False
    """Whether the old documents and keys go at the end."""

    @property
    def refusals(self) -> tuple[tuple[str, Problem], ...]:
        """Path of a node, and why it cannot be migrated."""
        return tuple((node.path, problem) for node in self.nodes for problem in node.problems)

    @property
    def objects(self) -> int:
        """Stored objects to be copied."""
        return sum(node.objects for node in self.nodes)

    @property
    def nbytes(self) -> int:
        """Their bytes."""
        return sum(node.nbytes for node in self.nodes)

    @property
    def where(self) -> str:
        """Store and path of the hierarchy, for messages."""
        return where(self.route.source, self.route.path)

    def __str__(self) -> str:
        return self.explain()

    def explain(self) -> str:
        """The plan in words and numbers."""
        route = self.route
        arrays = sum(isinstance(node.before, ArrayMeta) for node in self.nodes)
        groups = sum(isinstance(node.before, GroupMeta) for node in self.nodes)
        place = "in place" if route.in_place else f"to {where(route.target, route.path)}"
        lines = [
            f"migrate {self.where} from {route.source_format.name} to {route.target_format.name}",
            f"  place      {place}",
            f"  nodes      {counted(groups, 'group')}, {counted(arrays, 'array')}",
            f"  documents  {counted(len(self._unwritten), 'new document')}",
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
        if self.route.data == "keep":
            return "stored objects stay where they are, untouched"
        how = "under new keys beside the old ones" if self.route.in_place else "into the new place"
        objects = f"{counted(self.objects, 'stored object')} ({format_bytes(self.nbytes)})"
        return f"{objects} copied byte for byte {how}"

    def _old_line(self) -> str:
        route = self.route
        if not route.in_place:
            return "the source stays as it is"
        what = "documents" if route.data == "keep" else "documents and keys"
        if self.remove_old:
            return f"old {what} are removed when the new ones are verified"
        if route.replaced:
            kept = ", ".join(f"{key} as {key}{BACKUP}" for key in route.replaced)
            return f"old {what} stay, {kept}; readers of the old format do not find them any more"
        return f"old {what} stay; {route.target_format.name} wins where both lie side by side"

    @property
    def _unwritten(self) -> dict[str, bytes]:
        """New documents that are not there yet, in the order of writing: children first."""
        ordered = [node for node in _children_first(self.nodes) if not node.is_written]
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
            If documents or objects have changed since the plan was made; the old ones still hold
            then.
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

    def _copy_objects(self, progress: Callable[[int], None] | None) -> tuple[int, int]:
        """Copy all stored objects; how many, and their bytes.

        Where the new documents are there already, so are the objects, and whoever has written
        since has written those: they are compared, if the old ones are to go, and never replaced.
        """
        tally = _Tally()

        def copy(move: Move) -> None:
            nbytes = self._copy_object(move)
            tally.add(nbytes)
            if progress is not None:
                progress(nbytes)

        for node in self.nodes:
            if not node.is_written:
                for_each(copy, moves(self.route, node), None)
            elif self.remove_old:
                for_each(self._check_object, moves(self.route, node), None)
        return tally.objects, tally.nbytes

    def _copy_object(self, move: Move) -> int:
        """Copy one stored object unless that is done; its bytes, compared after reading back."""
        source, target = self.route.source, self.route.target
        value = source.get(move.old)
        if value is None:
            raise MetadataChangedError(
                f"{where(source, move.old)} has gone while it was copied: something else changes "
                "the hierarchy. Stop it and run the migration again."
            )
        if target.size(move.new) != len(value) or target.get(move.new) != value:
            target.set(move.new, [value])
            if target.get(move.new) != value:
                raise StoreError(
                    f"{where(target, move.new)} does not hold what was just written to it: the "
                    "store is not to be trusted. The old keys and documents are untouched."
                )
        return len(value)

    def _check_object(self, move: Move) -> None:
        """Refuse to go on if an old object is not what the new one is."""
        source, target = self.route.source, self.route.target
        if source.get(move.old) != target.get(move.new):
            raise MetadataChangedError(
                f"{where(source, move.old)} is not the same as {move.new!r}, which was copied from "
                "it: one of them has been written since. The old one was kept. Remove the old "
                "keys yourself if the new ones are right."
            )

    def _check_unchanged(self) -> None:
        again = node_plans(self.route)
        if [(n.path, n.documents) for n in again] != [(n.path, n.documents) for n in self.nodes]:
            raise MetadataChangedError(
                f"the metadata of {self.where} have changed since the plan was made; no document "
                "was written. Run the migration again."
            )

    def _write_documents(self) -> int:
        """Write what is not there yet; how many documents that were."""
        source, target = self.route.source, self.route.target
        for key in self.route.replaced:
            text = source.get(key)
            if text is not None and target.get(key + BACKUP) is None:
                target.set(key + BACKUP, [text])
        unwritten = self._unwritten
        for key, text in unwritten.items():
            target.set(key, [text])
        return len(unwritten)

    def _verify_documents(self) -> None:
        """Read all documents again, byte by byte and for what they say."""
        target, spelled, options = self.route.target, self.route.target_format, self.route.options
        for node in self.nodes:
            texts = read_documents(target, list(node.documents), options.limits)
            after = spelled.read(target, node.path, options, found={})
            again = None if after is None else spelled.documents(after, node.path)
            wanted = None if node.after is None else spelled.documents(node.after, node.path)
            if texts != node.documents or again != wanted:
                raise StoreError(
                    f"the new documents of {where(target, node.path)} do not say what was just "
                    "written to them. The old keys and documents are untouched."
                )

    # --- removing what is old ---------------------------------------------------------------------

    def _remove_old(self) -> int:
        """Remove old documents and objects, children first; how many keys that were.

        A reader of the old format must not take removed objects for fill values: documents go
        first, consolidated ones before all others. Where such a reader has lost its entry point
        already, objects go first, so that what is left can be found again by the documents.
        """
        route = self.route
        removed = 0 if route.replaced else self._remove_keys(self._old_consolidated)
        for node in _children_first(self.nodes):
            keys = old_documents(route, node)
            if route.replaced:
                removed += self._remove_objects(node) + self._remove_keys(keys)
            else:
                removed += self._remove_keys(keys) + self._remove_objects(node)
        if route.replaced:
            removed += self._remove_keys(self._old_consolidated)
            for prefix in route.source_format.prefixes(""):
                _remove_empty_folder(route.target, prefix.partition("/")[0] + "/")
        elif route.path:
            warn_of_stale(route.target, route.path, route.source_format)
        return removed + self._remove_keys([key + BACKUP for key in route.replaced])

    @property
    def _old_consolidated(self) -> list[str]:
        """Keys of consolidated metadata, after those of a group that is there for them."""
        route = self.route
        holder = consolidated_node(route)
        group = [] if holder is None else list(route.source_format.node_keys(holder))
        groups = (node for node in self.nodes if isinstance(node.before, GroupMeta))
        keys = [consolidated_key(node.path, node.node_format) for node in groups]
        keys.append(consolidated_key(route.path, route.source_format))  # of a root that is new only
        return [*group, *dict.fromkeys(key for key in keys if key is not None)]

    def _remove_keys(self, keys: Sequence[str]) -> int:
        target = self.route.target
        present = [key for key in keys if target.size(key) is not None]
        for key in present:
            target.delete(key)
        return len(present)

    def _remove_objects(self, node: NodePlan) -> int:
        tally = _Tally()

        def remove(move: Move) -> None:
            self._check_object(move)
            self.route.target.delete(move.old)
            tally.add(0)

        for_each(remove, moves(self.route, node), None)
        if self.route.data != "keep" and isinstance(node.before, ArrayMeta):
            prefix = node.node_format.data_prefix(node.path)
            for below in self.route.target.list_dir(prefix).prefixes:
                _remove_empty_folder(self.route.target, below)
        return tally.objects


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


def _remove_empty_folder(store: Store, prefix: str) -> None:
    """Remove what only a file system has: folders without a value in them."""
    if next(store.list(prefix), None) is None:
        store.delete_prefix(prefix)


def _children_first(nodes: Sequence[NodePlan]) -> list[NodePlan]:
    return sorted(nodes, key=lambda node: len(node.path.split("/")) if node.path else 0)[::-1]
