"""Plans of migrations: explaining them, and running them.

`MigrationPlan.run` migrates the whole hierarchy or nothing. First it copies stored objects and
compares each copy (`zarr_dask.jobs.migrate.copies`). Then it writes the new metadata, that of
children before their groups, the root last. If requested, it then removes old metadata and keys.
The hierarchy stays readable at every moment, with the old metadata or with the new; an interrupted
run can be repeated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from zarr_dask._util.display import InWords
from zarr_dask._util.lazy_names import hides
from zarr_dask.errors import MetadataChangedError, MigrationError, StoreError, ValidationProblem
from zarr_dask.formats.base import ArrayMeta, GroupMeta, NodeMeta, read_documents, where
from zarr_dask.formats.consolidated import consolidated_key, warn_stale_consolidated
from zarr_dask.hierarchy.exclusive import editing
from zarr_dask.jobs.engine.plan import format_bytes, pluralize
from zarr_dask.jobs.engine.prices import Measured, Priced, Traffic, measuring
from zarr_dask.jobs.engine.thread_map import each_abreast
from zarr_dask.jobs.migrate.copies import CopiedObjects, Tally, at_a_time
from zarr_dask.jobs.migrate.nodes import (
    BACKUP,
    KeyMove,
    MigrationOptions,
    NodePlan,
    consolidated_node,
    moves,
    node_plans,
    old_documents,
)
from zarr_dask.stores.base import Store, is_remote
from zarr_dask.stores.compare_and_swap import folder_lock
from zarr_dask.stores.open import local_path
from zarr_dask.stores.patience import in_job

__all__ = ["MigrationPlan", "MigrationReport"]


@hides("traffic_lines", "traffic_to_json")
@dataclass(frozen=True, slots=True, repr=False)
class MigrationReport(Measured, InWords):
    """Result of a migration."""

    nodes: int
    """Nodes that have metadata of the new format."""
    documents: int
    """Metadata keys written."""
    objects: int
    """Stored objects copied, and compared with their source."""
    nbytes: int
    """Bytes of the copied objects."""
    removed: int
    """Old metadata keys and stored objects removed."""
    traffic: Traffic = field(default_factory=Traffic, compare=False)
    """Time and requests."""

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        counts = ("nodes", "documents", "objects", "nbytes", "removed")
        return {**{name: getattr(self, name) for name in counts}, **self.traffic_to_json()}

    def __str__(self) -> str:
        objects = pluralize(self.objects, "stored object")
        copied = f", {objects} copied ({format_bytes(self.nbytes)})" if self.objects else ""
        removed = f", {pluralize(self.removed, 'old key')} removed" if self.removed else ""
        return (
            f"{pluralize(self.nodes, 'node')}, {pluralize(self.documents, 'document')} "
            f"written{copied}{removed} in {self.seconds:.1f} s"
        )


@dataclass(frozen=True, repr=False)
class MigrationPlan(Priced, InWords):
    """Everything that a migration will do; made by `plan_migration`."""

    route: MigrationOptions
    """Source, target and manner of the migration."""
    nodes: tuple[NodePlan, ...]
    """Plans of the nodes by path, parents before children."""
    remove_old: bool = False
    """True if the old metadata and keys are removed at the end."""

    @property
    def refusals(self) -> tuple[tuple[str, ValidationProblem], ...]:
        """Paths of nodes, each with a reason why it cannot be migrated."""
        return tuple((node.path, problem) for node in self.nodes for problem in node.problems)

    @property
    def objects(self) -> int:
        """Stored objects to copy."""
        return sum(node.objects for node in self.nodes)

    @property
    def nbytes(self) -> int:
        """Bytes of the stored objects to copy."""
        return sum(node.nbytes for node in self.nodes)

    @property
    def requests(self) -> dict[str, int]:
        """Predicted requests for stored objects and new metadata; each object is read back."""
        documents = len(self._unwritten)
        return {
            "read": 2 * self.objects + documents,
            "inspect": self.objects,
            "write": self.objects + documents,
        }

    @property
    def where(self) -> str:
        """Store and path of the hierarchy, for messages."""
        return where(self.route.source, self.route.path)

    def __str__(self) -> str:
        return self.explain()

    def explain(self) -> str:
        """Return the plan in words and numbers."""
        route = self.route
        arrays = sum(isinstance(node.before, ArrayMeta) for node in self.nodes)
        groups = sum(isinstance(node.before, GroupMeta) for node in self.nodes)
        place = "in place" if route.in_place else f"to {where(route.target, route.path)}"
        formats = f"from {route.source_format.name} to {route.target_format.name}"
        same = route.source_format == route.target_format
        is_done = same and not (self._unwritten or self.objects or self.remove_old)
        if is_done:
            formats = f"to {route.target_format.name}, which it is already"
        lines = [
            f"migrate {self.where} {formats}",
            f"  place      {place}",
            f"  nodes      {pluralize(groups, 'group')}, {pluralize(arrays, 'array')}",
            f"  documents  {pluralize(len(self._unwritten), 'new document')}",
            f"  data       {self._data_line()}",
            f"  old        {self._old_line()}",
        ]
        notes = Counter(note for node in self.nodes for note in node.notes)
        for note, count in notes.items():
            first = next(node.path for node in self.nodes if note in node.notes) or "/"
            others = f" and {count - 1} more" if count > 1 else ""
            lines.append(f"  note       {first}{others}: {note}")
        lines += [f"  refused    {path or '/'}: {problem}" for path, problem in self.refusals]
        if is_done:
            lines.append(f"nothing to do: it is {route.target_format.name} already")
        if self.refusals:
            lines.append(
                "nothing will be written: a hierarchy is migrated as a whole or not at all"
            )
        return "\n".join(lines)

    def _data_line(self) -> str:
        if self.route.data == "keep":
            return "stored objects stay where they are, untouched"
        how = "under new keys beside the old ones" if self.route.in_place else "into the new place"
        objects = f"{pluralize(self.objects, 'stored object')} ({format_bytes(self.nbytes)})"
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
        """New metadata that does not exist yet, in the order of writing: children first."""
        ordered = [node for node in _children_first(self.nodes) if not node.is_written]
        return {key: text for node in ordered for key, text in node.documents.items()}

    # --- running ----------------------------------------------------------------------------------

    @in_job()
    def run(self, progress: Callable[[int], None] | None = None) -> MigrationReport:
        """Run the plan.

        Parameters
        ----------
        progress
            Called with the number of bytes of each stored object that is copied, in one of several
            threads.

        Raises
        ------
        MigrationError
            If something cannot be migrated; nothing is written.
        MetadataChangedError
            If metadata or objects have changed since the plan was made; the old metadata is still
            valid.
        StoreError
            If the store fails. The hierarchy stays readable, and the migration can be run again.
        """
        if self.refusals:
            raise MigrationError(self.where, self.refusals)
        with measuring() as measured:
            tally = Tally()
            copies = self._copy_objects(tally, progress)
            old = self._old_texts()
            self._check_unchanged()
            written = self._write_documents(old, copies)
            self._verify_documents()
            removed = self._remove_old() if self.remove_old else 0
        return MigrationReport(
            len(self.nodes), written, tally.objects, tally.nbytes, removed, measured.traffic
        )

    def _copy_objects(
        self, tally: Tally, progress: Callable[[int], None] | None
    ) -> dict[str, CopiedObjects]:
        """Copy all stored objects; return the copies by the path of their node.

        If the new metadata of a node exists, its objects do too, and may have been written since.
        They are never replaced. If the old objects are to be removed, both are compared.
        """

        def count(nbytes: int) -> None:
            tally.add(nbytes)
            if progress is not None:
                progress(nbytes)

        copies = {}
        for node in self.nodes:
            if not node.is_written:
                copies[node.path] = CopiedObjects(self.route, node, count)
                copies[node.path].copy_changed(shown=False)
            elif self.remove_old:
                each_abreast(
                    self._check_object, moves(self.route, node), at_a_time(self.route, node)
                )
        return copies

    def _check_object(self, move: KeyMove) -> None:
        """Raise if an old object differs from the new one."""
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
            raise self._changed()

    def _changed(self) -> MetadataChangedError:
        return MetadataChangedError(
            f"the metadata of {self.where} have changed since the plan was made; readers use the "
            "old ones. Run the migration again."
        )

    def _old_texts(self) -> Mapping[str, bytes | None]:
        """Return the old metadata in place that new metadata is going to take the place of."""
        if not self.route.in_place:
            return {}
        keys = [key for node in self.nodes if not node.is_written for key in _old_keys(node)]
        return read_documents(self.route.source, keys, self.route.options.limits)

    def _write_documents(
        self, old: Mapping[str, bytes | None], copies: Mapping[str, CopiedObjects]
    ) -> int:
        """Write the metadata that does not exist yet; return the number of keys.

        Old metadata in place is compared with what it was (`old`) before and after. Nodes are
        neither removed nor renamed in between in local files. Who changes old metadata looks for
        new metadata afterwards (`zarr_dask.formats.concurrent_edit.check_still_shown`).
        """
        source, target = self.route.source, self.route.target
        for key in self.route.replaced:
            text = source.get(key)
            if text is not None and target.get(key + BACKUP) is None:
                target.set(key + BACKUP, [text])
        renames = self.route.data == "rename"
        for node in _children_first(self.nodes):
            if node.is_written:
                continue
            with editing(target, node.path) if self.route.in_place else nullcontext():
                if renames:
                    copies[node.path].catch_up(shown=False)
                    if not copies[node.path].are_there():
                        raise self._changed()
                self._write_node(node, {key: old[key] for key in _old_keys(node) if key in old})
                if renames:
                    copies[node.path].catch_up(shown=True)
        return len(self._unwritten)

    def _write_node(self, node: NodePlan, old: Mapping[str, bytes | None]) -> None:
        source, target, limits = self.route.source, self.route.target, self.route.options.limits
        present = read_documents(target, list(node.documents), limits)

        def check() -> None:
            if read_documents(source, list(old), limits) != old:
                raise self._changed()

        if not is_remote(target):
            check()
        try:
            for key, text in node.documents.items():
                target.set(key, [text])
            check()
        except MetadataChangedError:
            for key, text in node.documents.items():
                if present[key] is None:
                    _withdraw(target, key, text)
            raise

    def _verify_documents(self) -> None:
        """Read all new metadata again, and compare its bytes and its parsed content."""
        target, spelled, options = self.route.target, self.route.target_format, self.route.options
        for node in self.nodes:
            texts = read_documents(target, list(node.documents), options.limits)
            after = spelled.read(target, node.path, options, found={})
            again = None if after is None else spelled.documents(after, node.path)
            wanted = None if node.after is None else spelled.documents(node.after, node.path)
            if texts != node.documents or again != wanted:
                self._check_changed_by_others(node, after)

    def _check_changed_by_others(self, node: NodePlan, after: NodeMeta | None) -> None:
        """Raise unless a node has other metadata by now because another process has changed it.

        Who opens it finds the new metadata, and may append or add attributes as soon as they exist.
        """
        at, kept = where(self.route.target, node.path), "The old keys and documents are untouched."
        if self.route.in_place and after is None:
            raise MetadataChangedError(
                f"the new documents of {at} have gone: another process has removed or renamed the "
                f"node, or the store has lost them. {kept} Run the migration again."
            )
        if not (self.route.in_place and _is_changed(node.after, after)):
            raise StoreError(
                f"the new documents of {at} do not say what was just written to them. {kept}"
            )

    # --- removing old metadata and objects --------------------------------------------------------

    def _remove_old(self) -> int:
        """Remove old metadata and objects, children first; return the number of keys removed.

        A reader of the old format must not take removed objects for fill values. So metadata is
        removed first, consolidated metadata before the rest. If such a reader has already lost its
        entry point, objects are removed first, so that the metadata still finds the remaining ones
        after a crash.
        """
        route = self.route
        removed = 0 if route.replaced else self._remove_keys(self._old_consolidated)
        for node in _children_first(self.nodes):
            if route.replaced:
                removed += self._remove_objects(node) + self._remove_documents(node)
            else:
                removed += self._remove_documents(node) + self._remove_objects(node)
        if route.replaced:
            removed += self._remove_keys(self._old_consolidated)
            for prefix in route.source_format.prefixes(""):
                _remove_empty_folder(route.target, prefix.partition("/")[0] + "/")
        elif route.path:
            warn_stale_consolidated(route.target, route.path, route.source_format)
        return removed + self._remove_keys([key + BACKUP for key in route.replaced])

    @property
    def _old_consolidated(self) -> list[str]:
        """Keys of consolidated metadata, preceded by those of a group that exists only for it."""
        route = self.route
        holder = consolidated_node(route)
        group = [] if holder is None else list(route.source_format.node_keys(holder))
        groups = (node for node in self.nodes if isinstance(node.before, GroupMeta))
        keys = [consolidated_key(node.path, node.node_format) for node in groups]
        keys.append(consolidated_key(route.path, route.source_format))  # of a new root
        return [*group, *dict.fromkeys(key for key in keys if key is not None)]

    def _remove_documents(self, node: NodePlan) -> int:
        """Remove the old metadata of a node, unless another process has removed or renamed it.

        What has the path by then is not this node.
        """
        with editing(self.route.target, node.path):
            if not self._is_there(node):
                return 0
            return self._remove_keys(old_documents(self.route, node))

    def _is_there(self, node: NodePlan) -> bool:
        return all(self.route.target.size(key) is not None for key in node.documents)

    def _remove_keys(self, keys: Sequence[str]) -> int:
        target = self.route.target
        present = [key for key in keys if target.size(key) is not None]
        for key in present:
            target.delete(key)
        return len(present)

    def _remove_objects(self, node: NodePlan) -> int:
        tally = Tally()

        def remove(move: KeyMove) -> None:
            self._check_object(move)
            self.route.target.delete(move.old)
            tally.add(0)

        each_abreast(remove, moves(self.route, node), at_a_time(self.route, node))
        if self.route.data != "keep" and isinstance(node.before, ArrayMeta):
            prefix = node.node_format.data_prefix(node.path)
            for below in self.route.target.list_dir(prefix).prefixes:
                _remove_empty_folder(self.route.target, below)
        return tally.objects


def _is_changed(before: NodeMeta | None, after: NodeMeta | None) -> bool:
    """True if a change of a node's attributes or length makes one of the other."""
    if isinstance(before, ArrayMeta) and isinstance(after, ArrayMeta):
        return after.is_stored_as(before)
    return isinstance(before, GroupMeta) and isinstance(after, GroupMeta)


def _remove_empty_folder(store: Store, prefix: str) -> None:
    """Remove folders without a value in them, which only a file system has."""
    if next(store.list(prefix), None) is None:
        store.delete_prefix(prefix)


def _withdraw(store: Store, key: str, text: bytes) -> None:
    """Remove metadata that have just been put, unless another process has changed them.

    In local files, whoever changes them has the lock of their folder.
    """
    folder = local_path(store, key.rpartition("/")[0])
    with nullcontext() if folder is None else folder_lock(folder):
        if store.get(key) == text:
            store.delete(key)


def _old_keys(node: NodePlan) -> tuple[str, ...]:
    """Return the keys of the present metadata of a node that new metadata leaves in place."""
    keys = node.node_format.node_keys(node.path)
    return tuple(key for key in keys if key not in node.documents)


def _children_first(nodes: Sequence[NodePlan]) -> list[NodePlan]:
    return sorted(nodes, key=lambda node: len(node.path.split("/")) if node.path else 0)[::-1]
