"""Arguments of a call that writes a dataset, and what it asks of single variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import xarray as xr

from zarr_dask._util.arguments import check_bools, check_choice
from zarr_dask.dtypes.base import Casting
from zarr_dask.jobs.engine.resume import ResumeOptions
from zarr_dask.jobs.write.dataset_keywords import DatasetMode, Missing, Others, Overlap
from zarr_dask.jobs.write.plan import Partial
from zarr_dask.journal import OnConflict
from zarr_dask.stores.open import Location

__all__ = ["Call", "VariableWrite"]


@dataclass(frozen=True, kw_only=True)
class Call:
    """Arguments of a call; see `plan_dataset`."""

    mode: DatasetMode
    append: str | None
    region: Any
    encoding: Mapping[str, Any]
    chunks: Any
    shards: Any
    codecs: Any
    format: str | None
    others: Others | None
    overlap: Overlap
    missing: Missing
    partial: Partial | None
    consolidated: bool | None
    casting: Casting
    on_conflict: OnConflict
    resume: ResumeOptions
    manifest: Literal[True] | None = None
    sha256: bool = False
    confirm: bool = False
    verify: bool = False
    max_mem: str | int | None = None
    temp: Location | None = None
    job: str = ""
    """Tells what is appended, if the call can be resumed."""
    bare: bool = False
    """True to make arrays of dask arrays without their values."""

    def check(self) -> None:
        """Refuse what contradicts itself."""
        check_choice("mode", self.mode, DatasetMode)
        if self.others is not None:
            check_choice("others", self.others, Others)
        check_choice("overlap", self.overlap, Overlap)
        check_choice("missing", self.missing, Missing)
        if self.manifest not in (None, True):
            raise ValueError(
                f"manifest must be True or None, got {self.manifest!r}: each variable of a dataset "
                "has a manifest of its own, which is kept beside it."
            )
        check_bools(sha256=self.sha256, confirm=self.confirm, verify=self.verify)
        self.resume.check()
        if not (isinstance(self.region, str) and self.region == "auto"):
            self.check_one_place()  # labels are looked for first: the error names those not there
        if self.append is not None and self.mode not in {"a", "a-"}:
            raise ValueError(
                f"cannot set append_dim unless mode='a' or mode='a-', the first of which is the "
                f"default then; mode={self.mode!r} was given."
            )
        if self.region is not None and self.mode not in {"a", "a-", "r+"}:
            raise ValueError(
                "cannot set region unless mode='a', mode='a-', mode='r+' or mode=None: it needs a "
                f"dataset that exists; mode={self.mode!r} was given."
            )

    def check_one_place(self) -> None:
        """Refuse an append into a region."""
        if self.append is not None and self.region is not None:
            raise ValueError(
                "cannot list the same dimension in both append_dim= and region=, nor others: "
                "append= and region= both say where to write."
            )


@dataclass(frozen=True)
class VariableWrite:
    """A write to an array that exists."""

    name: str
    variable: xr.Variable
    """Encoded values."""
    region: tuple[slice, ...] | None = None
    """Elements to write; None for all, or for those that are appended."""
    append: int | None = None
    """Dimension along which the array grows."""
    overlap: int = 0
    """Elements at the present end that are written again."""
    partial: Partial | None = None
    """Way to treat stored objects that the region cuts, if the user has no say in it."""
