"""The plan of arrays at locations of their own, as it is run: one array, or several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from zarr_dask.formats.base import prefix_of
from zarr_dask.hierarchy.edit import check_can_create, make_room_for_array, make_room_for_node
from zarr_dask.hierarchy.locate import PrefetchedLocation
from zarr_dask.jobs.engine.execute import Plan
from zarr_dask.jobs.engine.plan import pluralize
from zarr_dask.journal import TARGETS, JobRecord
from zarr_dask.stores.base import Store

__all__ = ["SeparateArrays"]


@dataclass(frozen=True, kw_only=True)
class SeparateArrays(Plan):
    """Rechunkings of arrays, each with a target of its own."""

    @property
    def kind(self) -> str:
        """Kind of the job, as the journal names it."""
        return "rechunk several" if len(self.members) > 1 else "rechunk"

    @property
    def where(self) -> str:
        """The targets, for messages."""
        first, *others = (member.target.where for member in self.members)
        return f"{first} and {pluralize(len(others), 'other')}" if others else first

    @property
    def home(self) -> tuple[Store, str]:
        """The group above all targets if they are in one store, else the first target."""
        targets = [member.target for member in self.members]
        if any(target.store != targets[0].store for target in targets):
            return targets[0].store, targets[0].path
        names = zip(*(target.path.split("/") for target in targets), strict=False)
        common = takewhile(lambda level: len(set(level)) == 1, names)
        return targets[0].store, "/".join(level[0] for level in common)

    @property
    def targets(self) -> Sequence[tuple[Store, str]]:
        """Targets of all arrays, which may be in several stores."""
        return [(member.target.store, member.target.path) for member in self.members]

    def described(self) -> JobRecord:
        """Return the description of the job for the journal."""
        job = super().described()
        if len(self.members) > 1:
            targets = [member.target.path for member in self.members]
            return replace(job, extra={**job.extra, TARGETS: targets})
        target = self.members[0].target
        prefix = target.node_format.data_prefix(target.path)
        documents = target.node_format.documents(target.meta, target.path)
        return replace(
            job,
            data="" if prefix == prefix_of(target.path) else prefix,
            documents={key: text.decode() for key, text in documents.items()},
        )

    def check_room(self, sites: Sequence[PrefetchedLocation] | None = None) -> None:
        """Refuse to write where something exists that may not be replaced."""
        for member, site in zip(self.members, sites or self.inspect(), strict=True):
            target = member.target
            check_can_create(site.store, target.path, target.node_format, overwrite=self.overwrite)

    def make_room(
        self, sites: Sequence[PrefetchedLocation] | None = None, *, keep_journals: bool
    ) -> None:
        """Remove existing nodes at the targets, and create the parent groups."""
        for member, site in zip(self.members, sites or self.inspect(), strict=True):
            target = member.target
            place = (target.store, target.path, target.node_format)
            if keep_journals:
                make_room_for_node(*place, overwrite=self.overwrite, is_group=False, site=site)
            else:
                make_room_for_array(*place, target.meta, overwrite=self.overwrite, site=site)
