"""Pixel arrays that get new chunks, shards or codecs while their hierarchy is migrated.

They are rechunked together (`zarr_dask.jobs.rechunk.joint_plan`), which writes the metadata of all
of them last. The metadata of the hierarchy's groups follow afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from zarr_dask.array.array import Array
from zarr_dask.array.revalidate import Shown
from zarr_dask.errors import (
    DataTypeError,
    GridError,
    MemoryBudgetError,
    MetadataError,
    NodeExistsError,
    ValidationProblem,
)
from zarr_dask.formats.base import ArrayMeta
from zarr_dask.formats.detect import OME_ZARR
from zarr_dask.jobs.migrate.nodes import MigrationOptions, NodePlan, Rewrite
from zarr_dask.jobs.rechunk.joint_plan import JointRechunkPlan
from zarr_dask.jobs.rechunk.plan import RechunkPlan
from zarr_dask.jobs.rechunk.rechunk import plan_rechunk
from zarr_dask.ome.metadata_listing import MetadataListingStore
from zarr_dask.ome.target_layout import TargetLayout
from zarr_dask.ome.versions import Rewriting, names_of_dimensions

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["plan_anew"]


def plan_anew(
    route: MigrationOptions,
    nodes: Sequence[NodePlan],
    layout: TargetLayout,
    max_mem: str | int | None,
    client: Client | None,
    *,
    resume: bool,
) -> tuple[frozenset[str], list[NodePlan], JointRechunkPlan | None]:
    """Plan how all pixel arrays are rewritten.

    Returns
    -------
    frozenset, list, JointRechunkPlan or None
        Paths of all of them, those that cannot be rewritten, and the plan of the others, if any.

    Raises
    ------
    ValueError
        If a length is given for an axis that no image has.
    """
    before = {
        one.path: one.before
        for one in nodes
        if one.before is not None and one.node_format == route.source_format
    }
    old = next(version for version, one in OME_ZARR.items() if one == route.source_format)
    said = route.rewriting.in_words(before)[0] if isinstance(route.rewriting, Rewriting) else before
    axes = {path: names[0] for path, names in names_of_dimensions(said, old).items()}
    arrays = {p: m for p, m in before.items() if p in axes and isinstance(m, ArrayMeta)}
    layout.check_axes({name for names in axes.values() for name in names})
    rewrite = None if route.rewriting is None else route.rewriting(before)
    # tasks need no names of nodes
    store = route.source.store if isinstance(route.source, MetadataListingStore) else route.source

    def plan(path: str, meta: ArrayMeta) -> RechunkPlan | NodePlan:
        source = Array(store, path, meta, route.source_format, shown=Shown(path))
        wanted = layout.of(axes[path])
        try:
            made = plan_rechunk(
                source,
                route.target,
                path=path,
                chunks=wanted.chunks,
                shards=wanted.shards,
                codecs=wanted.codecs,
                format=route.target_format.name,
                max_mem=max_mem,
                client=client,
                overwrite=resume,  # a job that died may have made it visible
            )
        except MetadataError as error:
            return _refused(route, path, error.problems)
        except (DataTypeError, GridError, MemoryBudgetError, NodeExistsError) as error:
            asked = {"chunks": wanted.chunks, "shards": wanted.shards}
            expected = f"another layout, or another place: {error}"
            return _refused(route, path, (ValidationProblem("array", asked, expected),))
        return _rewritten(route, replace(made, overwrite=False), rewrite)

    plans = [plan(path, meta) for path, meta in arrays.items()]
    refused = [one for one in plans if isinstance(one, NodePlan)]
    members = tuple(one for one in plans if isinstance(one, RechunkPlan))
    if not members:
        return frozenset(arrays), refused, None
    joint = JointRechunkPlan(
        members=members,
        max_mem=members[0].max_mem,
        threads=members[0].threads,
        threads_per_process=members[0].threads_per_process,
    )
    return frozenset(arrays), refused, joint


def _refused(
    route: MigrationOptions, path: str, problems: tuple[ValidationProblem, ...]
) -> NodePlan:
    return NodePlan(path, None, route.source_format, problems=problems)


def _rewritten(
    route: MigrationOptions, plan: RechunkPlan, rewrite: Rewrite | None
) -> RechunkPlan | NodePlan:
    """Return the plan of an array with the names of the axes and its version's key encoding."""
    target = plan.target
    keys = route.target_format.chunk_keys({"separator": "/"})  # OME-Zarr requires folders
    if isinstance(keys, ValidationProblem):
        return _refused(route, target.path, (keys,))
    meta = replace(target.meta, chunk_key_encoding=keys)
    if rewrite is not None:
        made, problems = rewrite(target.path, meta)
        if problems or not isinstance(made, ArrayMeta):
            return _refused(route, target.path, problems)
        meta = made
    return replace(plan, target=replace(target, meta=meta))
