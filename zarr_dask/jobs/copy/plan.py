"""Plan of copying a hierarchy as a value: explained, saved as JSON, plotted, and run.

Its arrays are copied as stored objects (`zarr_dask.jobs.copy.raw_copy`) or rechunked
(`zarr_dask.jobs.rechunk.plan`), all by one job. Metadata is written when every object is complete:
that of children before that of their groups, the root last, then consolidated metadata. So a reader
that finds the copy finds all of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from html import escape
from itertools import islice
from typing import TYPE_CHECKING

from zarr_dask._util.display import InWords, escape_control_chars, html_table
from zarr_dask._util.lazy_names import hides
from zarr_dask.errors import NodeExistsError, PlanError, ValuesDifferError
from zarr_dask.formats.base import (
    Format,
    GroupMeta,
    Limits,
    ReadOptions,
    load_json,
    prefix_of,
    read_documents,
    where,
)
from zarr_dask.formats.consolidated import consolidated_documents
from zarr_dask.hierarchy.edit import (
    check_can_create,
    make_room_for_node,
    puts_metadata_first,
    remove_leftovers,
    rollback_metadata,
    write_documents,
)
from zarr_dask.hierarchy.locate import PrefetchedLocation
from zarr_dask.hierarchy.open_node import open as open_node
from zarr_dask.hierarchy.walk import is_implied
from zarr_dask.jobs.copy.raw_copy import RawCopyPlan
from zarr_dask.jobs.copy.source_nodes import nodes_of
from zarr_dask.jobs.engine.array_job import ArrayJob
from zarr_dask.jobs.engine.execute import Plan
from zarr_dask.jobs.engine.plan import LISTED, format_bytes, more_line, pluralize
from zarr_dask.jobs.rechunk.html import plan_html
from zarr_dask.jobs.rechunk.plan import VERSION, RechunkPlan
from zarr_dask.jobs.rechunk.plot import plot_plan
from zarr_dask.journal import discard_journals
from zarr_dask.stores.base import Store, join
from zarr_dask.stores.config import to_config
from zarr_dask.stores.open import canonical_location

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["CopyPlan"]

_NAMED = 10
"""Nodes that an error names."""


@hides("consolidated", "documents")
@dataclass(frozen=True, kw_only=True, repr=False)
class CopyPlan(InWords, Plan):
    """Everything that a copy will do; made by `zarr_dask.plan_copy`."""

    members: tuple[RawCopyPlan | RechunkPlan, ...]
    """The plans of the arrays, by path."""
    source: tuple[Store, str]
    """Store and path of the source."""
    store: Store
    """Store of the copy."""
    path: str
    """Path of the copy in its store."""
    node_format: Format
    groups: tuple[tuple[str, GroupMeta], ...]
    """Paths of the groups in the copy with their new metadata, parents first."""
    consolidated: tuple[str, ...] = ()
    """Paths of the groups that get consolidated metadata."""
    notes: tuple[str, ...] = ()
    """Notes for users."""

    @property
    def kind(self) -> str:
        """Kind of the job, as the journal names it."""
        return "copy"

    @property
    def where(self) -> str:
        """The copy, for messages."""
        return where(self.store, self.path)

    @property
    def home(self) -> tuple[Store, str]:
        """The root of the copy."""
        return self.store, self.path

    @property
    def token(self) -> str:
        """Token that is equal for plans that write the same bytes to the same location."""
        facts = (
            self.kind,
            canonical_location(*self.source),
            canonical_location(self.store, self.path),
            sorted(self.documents.items()),
            [member.token for member in self.members],
        )
        return sha256(repr(facts).encode()).hexdigest()[:32]

    # --- description ------------------------------------------------------------------------------

    def __str__(self) -> str:
        return self.explain()

    def explain(self) -> str:
        """Return the plan in words and numbers, with a line for each of the first arrays."""
        lines = [
            f"copy {where(*self.source)}",
            f"  to {self.where} ({self.node_format.name})",
            f"  nodes   {pluralize(len(self.groups), 'group')}, "
            f"{pluralize(len(self.members), 'array')}, "
            f"{format_bytes(sum(member.target.nbytes for member in self.members))}",
            self.memory_line,
        ]
        costs = self.costs
        lines.append(f"  work    {pluralize(self.tasks, 'task')}, {costs.requests:,} requests")
        if self.consolidated:
            lines.append("  finally consolidated metadata are written anew, of the new documents")
        lines += [f"  note    {note}" for note in self.notes]
        more = more_line(len(self.members), "array")
        return "\n".join([*lines, *_table(self._rows()), *more])

    def title(self) -> str:
        """Return a one-line summary."""
        return f"copy {where(*self.source)} to {self.where}"

    def _names(self) -> list[str]:
        """Return the names of the arrays among the others: their paths below the copy."""
        start = len(prefix_of(self.path))
        return [member.target.path[start:] or "/" for member in self.members]

    def plot(self) -> Figure:
        """Plot the grids of the largest arrays in all stages; see `JointRechunkPlan.plot`.

        Raises
        ------
        MissingDependencyError
            If matplotlib is not installed.
        """
        return plot_plan(self, self.title(), self._names())

    def _repr_html_(self) -> str:
        facts = {
            "source": where(*self.source),
            "format": self.node_format.name,
            "nodes": f"{pluralize(len(self.groups), 'group')}, "
            f"{pluralize(len(self.members), 'array')}",
            "memory": f"{format_bytes(self.peak)} of {format_bytes(self.max_mem)} per process",
            "work": f"{pluralize(self.tasks, 'task')}, {pluralize(self.costs.requests, 'request')}",
        }
        notes = "".join(f"<p>{escape(escape_control_chars(note))}</p>" for note in self.notes)
        tables = plan_html(self, self.title(), self._names())
        return html_table(f"copy to {self.where}", facts) + notes + tables

    def _rows(self) -> list[tuple[str, ...]]:
        """Return the rows of a table of the first arrays."""
        rows: list[tuple[str, ...]] = []
        for name, member in islice(zip(self._names(), self.members, strict=True), LISTED):
            target = member.target
            facts = (str(target.shape), target.meta.data_type.label, format_bytes(target.nbytes))
            requests = f"{member.costs.requests:,} requests"
            rows.append((name, *facts, member.how(), requests))
        return rows

    def to_json(self) -> str:
        """Return the plan as JSON, which `zarr_dask.load_plan` can load.

        It contains neither a list of tasks nor secrets; see `RechunkPlan.to_json`.

        Raises
        ------
        PlanError
            If the copy is there already.
        StoreError
            If a store is in the memory of this process.
        """
        if self.is_finished():
            raise PlanError(
                f"{self.where} is what the plan would write, so that nobody could tell whether it "
                "has been carried out. Delete it before, or use another target."
            )
        return json.dumps(
            {
                "job": self.kind,
                "version": VERSION,
                "source": {"store": to_config(self.source[0]), "path": self.source[1]},
                "target": {
                    "store": to_config(self.store),
                    "path": self.path,
                    "format": self.node_format.name,
                },
                "groups": {
                    path: {k: v.decode() for k, v in self._own_documents(path, meta).items()}
                    for path, meta in self.groups
                },
                "consolidated": list(self.consolidated),
                "arrays": [member.facts() for member in self.members],
                "max_mem": self.max_mem,
                "besides": self.besides,
                "threads": self.threads,
                "threads_per_process": self.threads_per_process,
                "overwrite": self.overwrite,
                "model": self.model.facts(),
                "run_id": self.run_id,
                "notes": list(self.notes),
                "explained": self.explain().splitlines(),
            },
            indent=1,
        )

    # --- metadata ---------------------------------------------------------------------------------

    def _own_documents(self, path: str, meta: GroupMeta) -> dict[str, bytes]:
        """Return the metadata of a group; none for an implicit group, if the format has them."""
        if meta.implicit and self.node_format.has_implicit_groups:
            return {}
        return self.node_format.documents(meta, path)

    @cached_property
    def documents(self) -> Mapping[str, bytes]:
        """All metadata by key, in the order of writing."""
        nodes = {path: self._own_documents(path, meta) for path, meta in self.groups}
        for member in self.members:
            target = member.target
            nodes[target.path] = self.node_format.documents(target.meta, target.path)
        last: dict[str, bytes] = {}
        for group in sorted(self.consolidated, key=_depth, reverse=True):
            below = {
                key: load_json(self.store, key, text)
                for path, documents in nodes.items()
                if path == group or path.startswith(prefix_of(group))
                for key, text in documents.items()
            }
            made = consolidated_documents(self.store, group, self.node_format, below)
            nodes[group] = {k: made.get(k, text) for k, text in nodes[group].items()}
            last.update((key, text) for key, text in made.items() if key not in nodes[group])
        ordered = sorted(nodes, key=_depth, reverse=True)
        return {**{k: text for path in ordered for k, text in nodes[path].items()}, **last}

    def is_finished(self) -> bool:
        """True if the copy is there with the metadata of the plan."""
        return self._present() == self.documents if self.documents else False

    def _present(self) -> dict[str, bytes]:
        """Return the parts of the metadata that exist."""
        found = read_documents(self.store, list(self.documents), Limits())
        return {key: text for key, text in found.items() if text is not None}

    def is_ours(self) -> bool:
        """True if existing metadata is that of the plan."""
        return all(self.documents[key] == text for key, text in self._present().items())

    def check_complete(self) -> None:
        """Refuse a copy if the source is listed once more, and has nodes that were not copied.

        Raises
        ------
        ValuesDifferError
            If it has: a store has left them out of a listing, or they were made meanwhile.
        """
        root = open_node(*self.source, read=ReadOptions(consolidated=False))
        copied = {path for path, _ in self.groups} | {one.target.path for one in self.members}
        missing = [name for name, _ in nodes_of(root) if join(self.path, name) not in copied]
        if missing:
            first = [((), f"the node {name!r}", "no such node") for name in missing[:_NAMED]]
            raise ValuesDifferError(where(*self.source), self.where, len(missing), first, "nodes")

    def publish(self, jobs: Sequence[ArrayJob]) -> None:  # noqa: ARG002  (all in one order)
        """Make the copy visible, its root last."""
        write_documents(self.store, self.documents)

    # --- location ---------------------------------------------------------------------------------

    @property
    def _is_group(self) -> bool:
        return bool(self.groups) and self.groups[0][0] == self.path

    def check_room(self, locations: Sequence[PrefetchedLocation] | None = None) -> None:
        """Refuse to write where something exists that may not be replaced."""
        (prefetched,) = locations or self.inspect()
        place = (prefetched.store, self.path, self.node_format)
        check_can_create(*place, overwrite=self.overwrite, is_group=self._is_group)
        if not self.overwrite and self._is_group and is_implied(prefetched.store, self.path):
            raise NodeExistsError(
                f"{self.where} has no document, but nodes lie below it, and a copy does not mix "
                "with what is there. Choose another path, or pass overwrite=True to replace all of "
                "them."
            )

    def make_room(
        self, locations: Sequence[PrefetchedLocation] | None = None, *, keep_journals: bool
    ) -> None:
        """Remove existing nodes at the location of the copy, and create the parent groups."""
        (prefetched,) = locations or self.inspect()
        place = (self.store, self.path, self.node_format)
        reserved = make_room_for_node(
            *place, overwrite=self.overwrite, is_group=self._is_group, prefetched=prefetched
        )
        if reserved.has_journals and not keep_journals:
            discard_journals(self.store, self.path)
        for member in self.members:
            # objects of a dead job are not values of an array whose chunks may be absent
            target = member.target
            prefix = self.node_format.data_prefix(target.path)
            remove_leftovers(prefetched.store, prefix, target.meta)
        if puts_metadata_first(self.store):
            write_documents(self.store, self.documents)

    def withdraw(self) -> None:
        """Undo metadata changes that were made before the values, because the job has failed."""
        rollback_metadata(self.store, self.path)


def _depth(path: str) -> int:
    return len(path.split("/")) if path else 0


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  "
        + "  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
