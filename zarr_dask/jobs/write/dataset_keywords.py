"""Keywords of a call that writes a dataset of xarray, for type checkers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol, TypedDict

from zarr_dask.dtypes.base import Casting
from zarr_dask.jobs.engine.resume import Resume
from zarr_dask.jobs.write.plan import Partial
from zarr_dask.jobs.write.submit import WriteProgress
from zarr_dask.journal import OnConflict
from zarr_dask.stores.open import Location

__all__ = [
    "DatasetMode",
    "DatasetPlanOptions",
    "DatasetWriteOptions",
    "Missing",
    "OfXarray",
    "Others",
    "Overlap",
]


class OfXarray(Protocol):
    """A dataset, an array or a tree of xarray."""

    @property
    def sizes(self) -> Mapping[Any, int]:
        """Lengths by name of the dimension."""


DatasetMode = Literal["w", "w-", "a", "a-", "r+", "swap"]
"""Ways to treat a store that is there: those of `xarray.Dataset.to_zarr`, and one of our own."""
Others = Literal["match", "keep", "write"]
"""Ways to treat variables without the dimension of an append that are stored."""
Overlap = Literal["refuse", "replace", "allow"]
"""Ways to treat labels of an append that are stored."""
Missing = Literal["refuse", "fill"]
"""Ways to treat stored variables that the appended dataset lacks."""


class DatasetPlanOptions(TypedDict, total=False):
    """Keywords of `ds.zd.plan`: those of `plan_dataset`, and xarray's own."""

    append: str | None
    append_dim: str | None
    casting: Casting
    chunks: Any
    codecs: Any
    confirm: bool
    consolidated: bool | None
    format: str | None
    journal: Location | None
    manifest: Literal[True] | None
    max_mem: str | int | None
    missing: Missing
    on_conflict: OnConflict
    others: Others | None
    overlap: Overlap
    partial: Partial | None
    region: Any
    resume: Resume
    sha256: bool
    shards: Any
    storage_options: Mapping[str, Any] | None
    temp: Location | None
    verify: bool
    write_inherited_coords: bool
    align_chunks: bool
    chunkmanager_store_kwargs: dict[str, Any] | None
    safe_chunks: bool
    write_empty_chunks: bool | None
    zarr_format: int | None


class DatasetWriteOptions(DatasetPlanOptions, total=False):
    """Keywords of `ds.zd.to_zarr`: those of `write_dataset`, and xarray's own."""

    client: Any
    compute: bool
    progress: WriteProgress | None
    window: int | None
