"""Conversion of OME-Zarr images and plates to another version, with or without rewriting pixels.

`plan_migration` lists everything that will be done and all that cannot be; `OmeMigration.run`
executes it, for the whole hierarchy or not at all. Stored objects are copied or kept, and only JSON
is written (`zarr_dask.jobs.migrate`). Pixel arrays with new chunks, shards or codecs are rewritten
within bounded memory (`zarr_dask.jobs.rechunk.rechunk`). `zarr_dask.ome.versions` converts the
attributes, and dimensions get the names of the axes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

from zarr_dask._util.arguments import check_bools
from zarr_dask._util.display import InWords
from zarr_dask._util.keywords import takes_habits
from zarr_dask.errors import (
    MetadataError,
    MigrationError,
    NodeNotFoundError,
    OmeVersionError,
    SourceIsTargetError,
    ValidationProblem,
)
from zarr_dask.formats.base import (
    ArrayMeta,
    Format,
    GroupMeta,
    ReadOptions,
    ancestors,
    prefix_of,
    where,
)
from zarr_dask.formats.consolidated import consolidated_key, is_consolidated
from zarr_dask.formats.detect import OME_ZARR
from zarr_dask.hierarchy.edit import consolidate_group
from zarr_dask.hierarchy.group import Group
from zarr_dask.hierarchy.locate import options_of_both, source_and_target
from zarr_dask.hierarchy.zip_target import open_target_or_archive
from zarr_dask.jobs.engine.plan import add_requests, format_bytes, pluralize
from zarr_dask.jobs.engine.prices import Priced
from zarr_dask.jobs.migrate.nodes import (
    MigrationOptions,
    NodePlan,
    node_plans,
    read_or_problems,
    with_objects,
)
from zarr_dask.jobs.migrate.plan import MigrationPlan, MigrationReport
from zarr_dask.journal import discard_journals
from zarr_dask.journal.swap import AtomicReplace, plan_swap
from zarr_dask.ome.metadata_listing import with_metadata_listing
from zarr_dask.ome.model import EARLIER, EXPECTED, SUPPORTED, detect_version
from zarr_dask.ome.target_layout import TargetLayout
from zarr_dask.ome.versions import Rewriting
from zarr_dask.stores.base import Store, join
from zarr_dask.stores.open import Location, folder_store
from zarr_dask.stores.patience import in_job
from zarr_dask.stores.real_location import locations_overlap

if TYPE_CHECKING:
    from distributed import Client

    from zarr_dask.jobs.rechunk.joint_plan import JointRechunkPlan, JointReport
    from zarr_dask.jobs.rechunk.plan import Progress, RechunkPlan

__all__ = ["OmeMigration", "OmeMigrationReport", "migrate", "plan_migration"]


@dataclass(frozen=True, slots=True, repr=False)
class OmeMigrationReport(Priced, InWords):
    """Result of an OME-Zarr migration."""

    metadata: MigrationReport
    """Metadata written, and stored objects copied."""
    arrays: JointReport | None
    """Rewritten arrays; None if there are none."""
    files: int
    """Other files copied, such as OME-XML."""
    seconds: float

    @property
    def requests(self) -> dict[str, int]:
        """Requests by kind; files have none."""
        anew = {} if self.arrays is None else self.arrays.requests
        return add_requests([self.metadata.requests, anew])

    def __str__(self) -> str:
        anew = f"; written anew: {self.arrays}" if self.arrays else ""
        files = f"; {pluralize(self.files, 'other file')} copied" if self.files else ""
        return f"{self.metadata}{anew}{files}; {self.seconds:.1f} s in all"


@dataclass(frozen=True, repr=False)
class OmeMigration(Priced, InWords):
    """Everything that an OME-Zarr migration will do; made by `plan_migration`."""

    old: str
    """Version of the hierarchy."""
    new: str
    """Version after the migration."""
    metadata: MigrationPlan
    """Metadata to write, and stored objects that are copied unchanged."""
    arrays: JointRechunkPlan | None = None
    """Plan of the rewritten arrays; None if all are copied or kept."""
    files: tuple[str, ...] = ()
    """Keys of other files that are copied, such as OME-XML."""
    consolidated: tuple[str, ...] = ()
    """Paths of groups that get consolidated metadata once arrays have been rewritten."""
    swap: AtomicReplace | None = None
    """Exchange of the old hierarchy and the new one at the end; None for another place."""

    @property
    def anew(self) -> tuple[RechunkPlan, ...]:
        """The plan of each rewritten array."""
        return () if self.arrays is None else self.arrays.members

    @property
    def refusals(self) -> tuple[tuple[str, ValidationProblem], ...]:
        """Path of each node that cannot be migrated, and the reason."""
        return self.metadata.refusals

    @property
    def nbytes(self) -> int:
        """Bytes that are copied: as stored, or decoded if they are rewritten."""
        stages = () if self.arrays is None else self.arrays.stages
        return self.metadata.nbytes + sum(stage.nbytes for stage in stages)

    @property
    def requests(self) -> dict[str, int]:
        """Predicted requests by kind; not those of other files."""
        anew = {} if self.arrays is None else self.arrays.requests
        return add_requests([self.metadata.requests, anew])

    @property
    def where(self) -> str:
        """Store and path of the hierarchy, for messages."""
        return self.metadata.where

    def __str__(self) -> str:
        return self.explain()

    def explain(self) -> str:
        """Return the plan as text."""
        first, *lines = self.metadata.explain().splitlines()
        if self.swap is not None:
            lines = [_EXCHANGED.get(line[:_NAMED], line) for line in lines]
        said = [f"{first} (OME-Zarr {self.old} to {self.new})", *lines[:4]]
        if self.anew:
            total = format_bytes(sum(plan.nbytes for plan in self.anew))
            peak = 0 if self.arrays is None else self.arrays.peak
            said.append(
                f"  anew       {pluralize(len(self.anew), 'array')}, {total} decoded, "
                f"{format_bytes(peak)} at most in one process"
            )
        said += [f"             {_changes(plan)}" for plan in self.anew[:_SHOWN]]
        if len(self.anew) > _SHOWN:
            said.append(f"             and {len(self.anew) - _SHOWN} more")
        if self.files:
            said.append(f"  files      {', '.join(self.files[:_SHOWN])}: copied")
        if self.consolidated:
            said.append("  finally    consolidated metadata are written anew, of the new documents")
        return "\n".join([*said, *lines[4:]])

    @in_job()
    def run(
        self,
        client: Client | None = None,
        progress: Callable[[int], None] | None = None,
        *,
        resume: bool = False,
    ) -> OmeMigrationReport:
        """Execute the plan.

        Parameters
        ----------
        client
            A cluster for arrays that are rewritten; by default the current client's, or the
            scheduler that dask is configured for.
        progress
            Called with the number of bytes of each piece once it is copied.
        resume
            Resume arrays that an earlier run of the same migration left incomplete.

        Raises
        ------
        MigrationError
            If something cannot be migrated; nothing is written then.
        MetadataChangedError
            If metadata or objects have changed since the plan was made.
        StoreError, CorruptObjectError
            If a store fails. Existing data stay readable, and the migration can be run again.
        """
        if self.refusals:
            raise MigrationError(self.where, self.refusals)
        if self.swap is None:
            return self._run(client, progress, resume=resume)
        mark = self.swap.begin(held=True)
        with ExitStack() as stack:
            if mark is not None:
                stack.enter_context(mark)
            stack.callback(self.swap.remove)
            stack.callback(discard_journals, self.swap.store, "")
            report = self._run(client, progress, resume=False)
            self.swap.end()
            self.swap.forget()
        return report

    def _run(
        self,
        client: Client | None,
        progress: Callable[[int], None] | None,
        *,
        resume: bool,
    ) -> OmeMigrationReport:
        begun = perf_counter()

        def note(step: Progress) -> None:
            if progress is not None:
                progress(step.nbytes)

        arrays = None
        if self.arrays is not None and not (resume and self.arrays.is_finished()):
            arrays = self.arrays.run(client, note, resume=resume)
        route = self.metadata.route
        for key in self.files:
            _copy(route.source, route.target, key)
        report = self.metadata.run(progress)
        for path in sorted(self.consolidated, key=len, reverse=True):
            consolidate_group(route.target, path, route.target_format)
        seconds = perf_counter() - begun
        return OmeMigrationReport(report, arrays, len(self.files), seconds)


_SHOWN = 10
"""Maximum number of arrays and files that a plan names."""
_NAMED = len("  place")
_EXCHANGED = {
    "  place": "  place      in place: written beside it, and exchanged at the end in one instant",
    "  old  ": "  old        the old hierarchy is removed after that",
}
"""Lines of a plan, by their names, where the new hierarchy takes the place of the old one."""


def _changes(plan: RechunkPlan) -> str:
    source, target = plan.source, plan.target
    grids = f"{source.meta.grids} -> {target.meta.grids}"
    return f"{source.path}: {source.shape} {source.meta.data_type.label}, chunks {grids}"


def _copy(source: Store, target: Store, key: str) -> None:
    value = source.get(key)
    if value is not None and target.get(key) != value:
        target.set(key, [value])


# --- planning -------------------------------------------------------------------------------------


@takes_habits(version="to")
def migrate(
    url: Location | Group,
    to: str = "0.5",
    dst: Location | Group | None = None,
    *,
    path: str = "",
    chunks: Any = None,
    shards: Any = None,
    codecs: Any = None,
    max_mem: str | int | None = None,
    remove_old: bool = False,
    dry_run: bool = False,
    resume: bool = False,
    client: Client | None = None,
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
) -> OmeMigration:
    """Convert an image, a plate or a collection of images to another version of OME-Zarr.

    The whole hierarchy is converted, with labels, wells and fields, or nothing: if a node cannot be
    expressed in the other version, nothing is written and the error lists every reason. Stored
    objects are not decoded unless new chunks, shards or codecs are requested. The metadata of the
    root are written last: an interrupted migration leaves existing data readable, and can be
    repeated.

    Parameters
    ----------
    url, path
        The group of the image, plate or collection; also of 0.1, 0.2 and 0.3, which are brought to
        0.5. They tell no sizes of pixels: pixels of level 0 get the size 1.
    to
        ``"0.5"`` (Zarr v3) or ``"0.4"`` (Zarr v2).
    dst
        Location of the new hierarchy. None to migrate in place, to 0.5 only: metadata of 0.5 are
        then stored beside those of 0.4 and take precedence, until `remove_old` removes the old
        ones. With new chunks, shards or codecs the old hierarchy is replaced.
    chunks, shards
        New chunks and shards of all pixel arrays, which are then rewritten: to `dst`, or to a
        folder beside local files that takes their place at the end. Lengths by axis, such as
        ``{"z": 1, "y": 256, "x": 256}``, or by position; -1 is the whole axis. Axes that an image
        does not have are ignored.
    codecs
        New codecs of their chunks, as the new format spells them; those of the source by default.
    max_mem
        Bytes that one process may hold on top of its idle size, for rewritten arrays.
    remove_old
        In place: remove the old metadata once the new ones are written and verified.
    dry_run
        Only make the plan; print it to see what will happen.
    resume
        Resume arrays that an earlier run of the same migration left incomplete.
    client
        A cluster for arrays that are rewritten.
    storage_options, target_options
        Options of the stores at `url` and `dst`, as for `zarr_dask.copy`.

    Returns
    -------
    OmeMigration
        The plan, executed unless `dry_run` is set.

    Raises
    ------
    OmeVersionError
        If the metadata are of an unsupported version.
    MigrationError
        If something cannot be expressed in the other version: shards, codecs or data types that
        Zarr v2 lacks, or metadata of several versions. A dry run lists it in its plan instead.
    ValueError
        If the arguments do not fit together.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> axes = [{"name": name, "type": "space"} for name in "yx"]
    >>> scale = {"type": "scale", "scale": [1, 1]}
    >>> levels = [{"path": "0", "coordinateTransformations": [scale]}]
    >>> old = {"multiscales": [{"version": "0.4", "axes": axes, "datasets": levels}]}
    >>> store = {}
    >>> group = zd.create_group(store, attributes=old, format="v2")
    >>> group.create_array("0", shape=(4, 4), dtype="u2")[...] = 7
    >>> _ = zd.ome.migrate(store, remove_old=True)
    >>> image = zd.ome.open(store)
    >>> image.metadata.version, image.levels[0].array.dimension_names
    ('0.5', ('y', 'x'))
    """
    check_bools(dry_run=dry_run)
    is_copy = dst is not None
    if is_copy:
        storage_options, target_options = options_of_both(url, storage_options, target_options)
    target, its_options = (dst, target_options) if is_copy else (url, storage_options)
    with open_target_or_archive(target, its_options) as (place, known):
        plan = plan_migration(
            url if is_copy else place,
            to,
            place if is_copy else None,
            path=path,
            chunks=chunks,
            shards=shards,
            codecs=codecs,
            max_mem=max_mem,
            remove_old=remove_old,
            resume=resume,
            client=client,
            storage_options=storage_options if is_copy else known,
            target_options=known if is_copy else None,
        )
        if not dry_run:
            plan.run(client, resume=resume)
    return plan


@takes_habits(version="to")
def plan_migration(
    url: Location | Group,
    to: str = "0.5",
    dst: Location | Group | None = None,
    *,
    path: str = "",
    chunks: Any = None,
    shards: Any = None,
    codecs: Any = None,
    max_mem: str | int | None = None,
    remove_old: bool = False,
    resume: bool = False,
    client: Client | None = None,
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
) -> OmeMigration:
    """Plan `migrate` with these arguments, including everything that cannot be done; write nothing.

    Raises
    ------
    NodeNotFoundError
        If there is no group at `url`.
    OmeVersionError, MetadataError
        If the metadata are of an unsupported version, or missing.
    SourceIsTargetError
        If `dst` lies in `url`, or the reverse.
    ValueError
        If the arguments do not fit together.
    """
    if to not in SUPPORTED:
        known = " or ".join(map(repr, SUPPORTED))
        raise ValueError(f"to={to!r}: expected {known}; dst= is the target of a copy.")
    check_bools(remove_old=remove_old, resume=resume)
    layout = TargetLayout(chunks, shards, codecs)
    if resume and dst is None and layout.is_asked_for:
        raise ValueError("resume=True is for migrations to a dst: one in place begins anew.")
    _check_arguments(layout, dst, to, remove_old=remove_old)
    source, target, path = source_and_target(url, dst, path, storage_options, target_options)
    if dst is not None and locations_overlap((source, path), (target, path)):
        raise SourceIsTargetError(
            f"{where(target, path)} lies in {where(source, path)}, or the reverse: choose another "
            "place for the new hierarchy."
        )
    options = ReadOptions(consolidated=False)
    swap = None
    if dst is None and layout.is_asked_for:
        swap = plan_swap(source, path, *OME_ZARR.values())
        source, target, path = folder_store(swap.place), swap.store, ""
    in_place = dst is None and swap is None
    old = _version(source, path, to, options)
    if in_place:
        _check_in_place(source, path, old, to, options)
    else:
        known = "0.4" if old in EARLIER else old
        source = with_metadata_listing(source, path, _format_of(old), known, options)
    route = MigrationOptions(
        source=source,
        target=target,
        in_place=in_place,
        path=path,
        source_format=_format_of(old),
        target_format=OME_ZARR[to],
        data="keep" if in_place else "copy",
        options=options,
        rewriting=Rewriting(old, to),
    )
    nodes = every = node_plans(route)
    anew: JointRechunkPlan | None = None
    consolidated: tuple[str, ...] = ()
    if layout.is_asked_for:
        from zarr_dask.ome.migrate_arrays import plan_anew  # loads dask

        found, refused, anew = plan_anew(route, nodes, layout, max_mem, client, resume=resume)
        consolidated = tuple(_consolidated_groups(route, nodes))
        route = replace(route, elsewhere=found)
        nodes = (*node_plans(route), *refused)
    files = tuple(_other_files(route))
    if swap is not None:
        _check_all_known(route, every, files)
    metadata = MigrationPlan(route, tuple(with_objects(route, one) for one in nodes), remove_old)
    return OmeMigration(old, to, metadata, anew, files, consolidated, swap)


def _consolidated_groups(route: MigrationOptions, nodes: Sequence[NodePlan]) -> Iterator[str]:
    """Yield paths of groups that have consolidated metadata."""
    for node in nodes:
        meta = node.before
        if isinstance(meta, GroupMeta) and is_consolidated(
            route.source, node.path, node.node_format, meta
        ):
            yield node.path


def _check_arguments(
    layout: TargetLayout, dst: Location | Group | None, to: str, *, remove_old: bool
) -> None:
    if dst is not None and remove_old:
        raise ValueError("remove_old=True is for migrations in place: a copy leaves its source.")
    if layout.shards is not None and not OME_ZARR[to].has_shards:
        raise ValueError(f"shards={layout.shards!r}: OME-Zarr {to} is stored without shards.")


def _version(store: Store, path: str, to: str, options: ReadOptions) -> str:
    """Return the version of a hierarchy: the one other than `to`, if it has metadata of it.

    If an earlier run was interrupted, there are metadata of both.
    """
    for version in sorted(SUPPORTED, key=lambda one: one == to):
        node = read_or_problems(store, path, OME_ZARR[version], options)
        if isinstance(node, MetadataError):
            raise node
        if node is None:
            continue
        found = detect_version(node.attributes) if isinstance(node, GroupMeta) else None
        if found is None:
            problem = ValidationProblem("ome", node.attributes, EXPECTED)
            raise MetadataError(where(store, path), [problem])
        if found in EARLIER and version == "0.4":
            if to == version:
                raise ValueError(
                    f"{where(store, path)} has OME-Zarr {found}: it is brought to 0.5 alone."
                )
            return found
        if found not in SUPPORTED:
            raise OmeVersionError(where(store, path), found, SUPPORTED)
        if found != version:
            expected = f"metadata of {version}, which is what format {OME_ZARR[version].name} has"
            raise MetadataError(where(store, path), [ValidationProblem("version", found, expected)])
        return version
    keys = [key for one in OME_ZARR.values() for key in one.node_keys(path)]
    raise NodeNotFoundError(where(store, path), keys, "Check the path.")


def _check_in_place(store: Store, path: str, old: str, to: str, options: ReadOptions) -> None:
    if _format_of(old).name > OME_ZARR[to].name:
        raise ValueError(
            f"{where(store, path)} has OME-Zarr {old}, which goes before {to} where both lie side "
            "by side: pass dst, another place for the hierarchy of the older version."
        )
    for above in ancestors(path):
        node = read_or_problems(store, above, _format_of(old), options)
        if isinstance(node, GroupMeta) and detect_version(node.attributes) is not None:
            raise ValueError(
                f"{where(store, path)} belongs to {where(store, above)}: all of a hierarchy has "
                "one version. Migrate it from its root, or pass dst."
            )


def _format_of(version: str) -> Format:
    """Return the format of a version, also of one before 0.4."""
    return OME_ZARR["0.4" if version in EARLIER else version]


def _check_all_known(
    route: MigrationOptions, nodes: Sequence[NodePlan], files: Sequence[str]
) -> None:
    """Raise if a folder that is to be replaced holds files that would not be copied."""
    formats = (route.source_format, route.target_format)
    known = {key for node in nodes for one in formats for key in one.node_keys(node.path)}
    consolidated = {consolidated_key(node.path, one) for node in nodes for one in formats}
    known |= {*files, *(key for key in consolidated if key is not None)}
    arrays = [node.path for node in nodes if isinstance(node.before, ArrayMeta)]
    prefixes = tuple(prefix for path in arrays for prefix in route.source_format.prefixes(path))
    strange = [
        key for key in route.source.list("") if key not in known and not key.startswith(prefixes)
    ]
    if strange:
        raise ValueError(
            f"{route.source.url} holds files that are not of the hierarchy and would be lost: "
            f"{', '.join(strange[:_SHOWN])}. Move them, or pass dst."
        )


def _other_files(route: MigrationOptions) -> list[str]:
    """Return keys of other files of a collection: the OME-XML of bioformats2raw."""
    if route.in_place:
        return []
    folder = join(route.path, "OME")
    own = route.source_format.node_keys(folder)
    return [k for k in route.source.list_dir(prefix_of(folder)).keys if k not in own]
