"""Migrating a hierarchy to another format without decoding a chunk.

`plan_migration` lists everything that will be done, and all that is impossible; the plan
(`zarr_dask.jobs.migrate.plan`) does it. `zarr_dask.jobs.migrate.nodes` determines the new metadata
of each node.

If a node has metadata of two formats, the newer format wins (with a warning). So old metadata may
stay for readers of the old format.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from zarr_dask._util.arguments import check_bools
from zarr_dask._util.keywords import explained_by, takes_habits
from zarr_dask.array.array import Array
from zarr_dask.errors import MissingGroupWarning, NodeNotFoundError, SourceIsTargetError
from zarr_dask.formats.base import Format, ReadOptions, where
from zarr_dask.formats.detect import DEFAULT_FORMAT, FORMATS, spelled_format
from zarr_dask.formats.translate import TARGETS, older_formats
from zarr_dask.hierarchy.group import Group
from zarr_dask.hierarchy.locate import source_and_target
from zarr_dask.hierarchy.walk import read_node_or_implicit_group
from zarr_dask.jobs.migrate.nodes import (
    Data,
    MigrationOptions,
    as_before,
    node_plans,
    read_or_problems,
    with_objects,
)
from zarr_dask.jobs.migrate.plan import MigrationPlan
from zarr_dask.stores.base import Store
from zarr_dask.stores.open import Location
from zarr_dask.stores.patience import in_job
from zarr_dask.stores.real_location import locations_overlap

__all__ = ["migrate", "plan_migration"]


@in_job()
@takes_habits(source="src", target="dst", zarr_format="format")
def migrate(
    src: Location | Array | Group,
    dst: Location | Group | None = None,
    *,
    path: str = "",
    format: str = DEFAULT_FORMAT.name,
    data: Data | None = None,
    dry_run: bool = False,
    remove_old: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    read: ReadOptions | None = None,
) -> MigrationPlan:
    """Migrate a hierarchy to a newer format, without decoding a chunk.

    If a node cannot be migrated, nothing is written and the error lists every reason. New metadata
    is written from the leaves to the root, when all stored objects are in place; until then readers
    use the old metadata. If a node has both, the newer format wins and readers are warned. So old
    metadata can stay for readers of the old format. They do not see changes that are made later. To
    change them beside the new ones is an error.

    Parameters
    ----------
    src
        A path, a URL, a store, a mapping or an open node, of format v1, v2 or a draft of v3.
    dst
        Location of the migrated hierarchy; None to migrate in place.
    path
        Path of the hierarchy's root below `src` (and `dst`). Its parent groups are not changed.
    format
        ``"v3"``, or ``"v2"`` for arrays of v1.
    data
        ``"keep"`` leaves stored objects where they are (v1 and v2 in place, the default there).
        ``"rename"`` puts them under the default keys of v3, in place. ``"copy"`` copies them to
        `dst`. Their bytes are the same in each case.
    dry_run
        Only make the plan; print it to see the changes.
    remove_old
        Remove the old metadata and keys of a hierarchy in place after the new ones are verified:
        all metadata is read again, and every object compared with its copy.
    storage_options, target_options
        Options of the stores at `src` and `dst`, as for `zarr_dask.copy`.
    read
        Options for reading the old hierarchy: ``ReadOptions(v1_f_order="legacy")`` for instance.

    Returns
    -------
    MigrationPlan
        The plan, which has been run unless `dry_run` is true.

    Raises
    ------
    MigrationError
        If the new format cannot express something (a dry run does not raise; its plan lists it).
    NodeNotFoundError
        If nothing exists at `src`.
    MetadataChangedError
        If the hierarchy changes meanwhile.
    StoreError
        If a store fails. The hierarchy stays readable, and the same call can be repeated.

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
    check_bools(dry_run=dry_run)
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


@in_job()
@takes_habits(source="src", target="dst", zarr_format="format")
@explained_by(migrate)
def plan_migration(
    src: Location | Array | Group,
    dst: Location | Group | None = None,
    *,
    path: str = "",
    format: str = DEFAULT_FORMAT.name,
    data: Data | None = None,
    remove_old: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    read: ReadOptions | None = None,
) -> MigrationPlan:
    """Plan what `migrate` does with these arguments; nothing is written.

    Parameters
    ----------
    src, dst, path, format, data, remove_old, storage_options, target_options, read
        As for `migrate`.

    Returns
    -------
    MigrationPlan
        Printed, it lists the changes of each node; ``plan.run()`` does them.

    Raises
    ------
    ValueError
        If the arguments contradict each other.
    NodeNotFoundError
        If nothing exists at `src`.
    SourceIsTargetError
        If `dst` lies in `src`, or the reverse.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> values = {}
    >>> _ = zd.create_array(values, "a", shape=(4,), dtype=">i2", chunks=2, format="v2")
    >>> plan = zd.plan_migration(values)
    >>> [node.path for node in plan.nodes], plan.refusals, plan.objects
    (['', 'a'], (), 0)
    """
    target_format = _target_format(format)
    data = data or ("keep" if dst is None else "copy")
    check_bools(remove_old=remove_old)
    _check_arguments(data, dst, remove_old=remove_old)
    if dst is None and target_options:
        raise ValueError(
            f"target_options {sorted(target_options)} are for dst, and there is none: those of src "
            "are storage_options."
        )
    source, target, path = source_and_target(src, dst, path, storage_options, target_options)
    if dst is not None and locations_overlap((source, path), (target, path)):
        raise SourceIsTargetError(
            f"{where(target, path)} lies in {where(source, path)}, or the reverse: leave dst out "
            "to migrate in place, or choose another place."
        )
    options = replace(ReadOptions.given(read), consolidated=False)
    if dst is None:
        source = as_before(source)
    source_format = _source_format(source, path, target_format, options)
    _check_entry(source, path, source_format, data)
    route = MigrationOptions(
        source=source,
        target=target,
        in_place=dst is None,
        path=path,
        source_format=source_format,
        target_format=target_format,
        data=data,
        options=options,
    )
    nodes = tuple(with_objects(route, node) for node in node_plans(route))
    return MigrationPlan(route, nodes, remove_old)


def _target_format(name: object) -> Format:
    wanted = spelled_format(name)
    for candidate in TARGETS:
        if candidate.name == wanted:
            return candidate
    known = " or ".join(repr(candidate.name) for candidate in TARGETS)
    raise ValueError(f"format={name!r}: expected {known}.")


def _check_arguments(data: str, dst: Location | Group | None, *, remove_old: bool) -> None:
    if isinstance(dst, str) and dst in {one.name for one in FORMATS}:
        raise ValueError(
            f"dst={dst!r} is the name of a format: pass format={dst!r}, or dst='./{dst}' for a "
            "folder of that name."
        )
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
    """Return the old format of a hierarchy, or the target format if no old one is left."""
    for candidate in (*older_formats(target, store, options), target):
        if read_or_problems(store, path, candidate, options) is not None:
            return candidate
    for candidate in older_formats(target, store, options):
        if _is_implied(store, path, candidate, options):
            return candidate
    for other in FORMATS:
        if read_or_problems(store, path, other, options) is not None:
            raise ValueError(
                f"{where(store, path)} has format {other.name}, which cannot be migrated to "
                f"{target.name}: only v1 can be migrated to v2, and all older formats to v3. "
                f"zarr_dask.copy(source, target, format={target.name!r}) decodes and encodes it."
            )
    keys = [key for one in FORMATS for key in one.node_keys(path)]
    raise NodeNotFoundError(where(store, path), keys, "Check the path.")


def _check_entry(store: Store, path: str, source_format: Format, data: str) -> None:
    """Refuse a migration that is impossible for a hierarchy with an entry point."""
    if not source_format.root_documents():
        return
    if path:
        raise ValueError(
            f"{where(store, path)} lies in a hierarchy of format {source_format.name}, which is "
            "migrated from its root: leave path out."
        )
    if data == "keep":
        raise ValueError(
            f"data='keep': the keys of format {source_format.name} are none that v3 knows. Pass "
            "data='rename' to put stored objects under the keys of v3, in place, or a dst to copy "
            "them to."
        )


def _is_implied(store: Store, path: str, node_format: Format, options: ReadOptions) -> bool:
    """True if nodes of a format lie below a path without metadata of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MissingGroupWarning)
        try:
            return bool(read_node_or_implicit_group(store, path, node_format.name, options))
        except NodeNotFoundError:
            return False
