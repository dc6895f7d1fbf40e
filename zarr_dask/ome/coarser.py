"""Coarser levels of an existing image, brought up to date after pixels of level 0 have changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from zarr_dask.array.array import Array
from zarr_dask.errors import MetadataError, ValidationProblem
from zarr_dask.grid.grid import Region
from zarr_dask.hierarchy.group import Group
from zarr_dask.indexing.basic import has_lists, parse_basic
from zarr_dask.ome.downsample import METHODS, Method, Reduce, method_named
from zarr_dask.ome.downsample_factors import factors_between
from zarr_dask.ome.images import label_method
from zarr_dask.ome.pixel_source import Budget, make_pyramid_plan
from zarr_dask.ome.plan import ImageUpdatePlan
from zarr_dask.ome.pyramid_plan import PyramidPlan

__all__ = ["LevelChain", "changed_region", "update_plan"]


@dataclass(frozen=True, eq=False)
class LevelChain:
    """The levels of one image, each made from the one before."""

    group: Group
    """The group of the image."""
    arrays: tuple[Array, ...]
    """The levels, the finest first."""
    scales: tuple[tuple[float, ...], ...]
    """Distances between pixels of each level along the axes."""
    axes: tuple[str, ...]
    """Names of the axes."""
    kind: str | None
    """Method that made the coarser levels, as the metadata name it."""
    is_label: bool
    """True for a label image."""

    def method(self, given: str | Method | Reduce | None = None) -> Method:
        """Return the method that makes the coarser levels: the given one, or the image's own.

        Raises
        ------
        MetadataError
            If the image names a method that this package does not have.
        """
        if given is None and self.kind is not None and self.kind not in METHODS:
            problem = ValidationProblem(
                "method of the coarser levels",
                self.kind,
                f"one of {', '.join(METHODS)}. Pass method=, one of them or a function, to make "
                "what has changed by that.",
            )
            raise MetadataError(self.group.where, [problem])
        chosen = given or self.kind or ("nearest" if self.is_label else "mean")
        return label_method(chosen) if self.is_label else method_named(chosen)

    def plan(
        self, region: Region, method: str | Method | Reduce | None, budget: Budget
    ) -> PyramidPlan | None:
        """Plan to make the pixels of coarser levels that a region of level 0 contributes to.

        Returns None if there is only one level.

        Raises
        ------
        GridError
            If the levels do not fit together.
        MemoryBudgetError
            If there is not enough memory for one stored object.
        ValueError
            If the method is not known.
        """
        if len(self.arrays) == 1:
            return None
        shapes = [array.shape for array in self.arrays]
        steps = factors_between(shapes, self.scales, self.group.where)
        first, *coarser = self.arrays
        return make_pyramid_plan(
            first, tuple(coarser), steps, self.method(method), budget, changed=region
        )

    def put(self, key: Any, value: Any) -> None:
        """Write pixels of level 0 by NumPy's indexing, then those of all coarser levels."""
        budget = Budget.of(None, None)
        region = changed_region(key, self.arrays[0])
        plan = update_plan([self], [self.plan(region, None, budget)], budget)
        self.arrays[0][key] = value
        plan.run()


def changed_region(key: Any, array: Array) -> Region:
    """Return a region that contains all elements of an index, as slices of step 1."""
    if has_lists(key):
        return tuple(slice(0, length, 1) for length in array.shape)
    return tuple(slice(s.start, s.stop, 1) for s in parse_basic(key, array.shape).region)


def update_plan(
    chains: Sequence[LevelChain], pyramids: Sequence[PyramidPlan | None], budget: Budget
) -> ImageUpdatePlan:
    """Return the plan of an image and its label images."""
    group, workers = chains[0].group, budget.workers
    return ImageUpdatePlan(
        store=group.store,
        path=group.path,
        node_format=group.node_format,
        pyramids=tuple(pyramid for pyramid in pyramids if pyramid is not None),
        groups={},
        creates=False,
        max_mem=budget.max_mem,
        threads=workers.threads,
        threads_per_process=workers.threads_per_process,
        title="update the coarser levels of",
        claims=tuple(chain.group.path for chain in chains),
    )
