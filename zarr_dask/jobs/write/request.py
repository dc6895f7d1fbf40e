"""Arguments of a write of one array, or of each of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from zarr_dask._util.arguments import check_choice
from zarr_dask.array.array import Array
from zarr_dask.array.create import ArraySpec
from zarr_dask.hierarchy.group import Group
from zarr_dask.hierarchy.prefetch import PrefetchedLocation
from zarr_dask.jobs.engine.resume import ResumeOptions
from zarr_dask.jobs.write.plan import Partial
from zarr_dask.jobs.write.submit import WriteProgress
from zarr_dask.jobs.write.target import Casting
from zarr_dask.jobs.write.zarr_python_kwargs import ZarrPythonOptions
from zarr_dask.journal import OnConflict
from zarr_dask.stores.open import Location

__all__ = ["RunOptions", "WriteMode", "WriteOptions", "WriteRequest", "split_request"]

WriteMode = Literal["a", "w", "w-", "r+", "swap"]


class WriteOptions(ZarrPythonOptions, total=False):
    """Keywords of `plan_write`."""

    chunks: Any
    shards: Any
    codecs: Any
    fill_value: Any
    dimension_names: Any
    attributes: Mapping[str, Any] | None
    format: str | None
    overwrite: bool
    append: int | str | None
    casting: Casting
    partial: Partial
    on_conflict: OnConflict
    resume: bool | str
    journal: Location | None
    manifest: Any
    sha256: bool
    confirm: bool
    each: Sequence[Mapping[str, Any]] | None
    max_mem: str | int | None
    temp: Location | None


class RunOptions(WriteOptions, total=False):
    """Keywords of `to_zarr`."""

    progress: WriteProgress | None
    window: int | None


@dataclass(frozen=True, kw_only=True)
class WriteRequest:
    """Arguments of a write of one array; see `plan_write`."""

    url: Location | Array | Group
    component: str | None
    storage_options: Mapping[str, Any] | None
    region: Any
    mode: WriteMode
    wanted: ArraySpec
    overwrite: bool
    append: int | str | None
    casting: Casting
    partial: Partial
    on_conflict: OnConflict
    resume: ResumeOptions
    keywords: Mapping[str, Any]
    overlap: int = 0
    """Elements at the end of the array that an append replaces."""
    max_mem: str | int | None = None
    temp: Location | None = None
    site: PrefetchedLocation | None = None
    """Content of the location of a new array, if it is known already."""
    is_between: bool = False
    """True if the array is itself one between, into which blocks are written as they come."""

    @property
    def creates(self) -> bool:
        """True if a new array is to be made."""
        exists = isinstance(self.url, Array) or self.mode == "r+"
        return not exists and self.region is None and self.append is None

    def check(self) -> None:
        """Refuse what contradicts itself."""
        check_choice("mode", self.mode, WriteMode)
        check_choice("casting", self.casting, Casting)
        check_choice("partial", self.partial, Partial)
        check_choice("on_conflict", self.on_conflict, OnConflict)
        self.resume.check()
        if self.region is not None and self.mode in {"w", "w-"}:
            raise ValueError(
                f"region= writes into an array that exists; mode={self.mode!r} makes one. Leave "
                "mode out, or pass mode='r+'. zarr_dask.create_array makes an array to be written "
                "region by region."
            )
        if self.append is not None and self.region is not None:
            raise ValueError("append= and region= both say where to write; choose one.")
        if self.on_conflict == "wait" and self.append is None:
            raise ValueError("on_conflict='wait' is about appends; give append=.")
        if self.append is not None and self.mode in {"w", "w-"}:
            raise ValueError(f"append= needs an array that exists; mode={self.mode!r} makes one.")
        if self.mode == "swap" and (not self.creates or isinstance(self.url, Array)):
            raise ValueError(
                "mode='swap' replaces the array at a place: give the path and neither region= nor "
                "append=."
            )
        if self.overwrite and not self.creates:
            raise ValueError(
                "overwrite=True replaces an array; mode='r+', region= and append= keep it."
            )


_OF_EACH = ("chunks", "shards", "codecs", "fill_value", "dimension_names", "attributes")
"""Options of `plan_write` that may differ between the arrays of one call."""


def split_request(
    request: WriteRequest, count: int, each: Sequence[Mapping[str, Any]] | None = None
) -> list[WriteRequest]:
    """Requests for several arrays; `each` is as for `plan_write`.

    Raises
    ------
    TypeError
        For options that cannot differ between arrays.
    ValueError
        If there are more or fewer values than arrays.
    """
    if request.on_conflict == "wait":
        raise ValueError(
            "on_conflict='wait' is for one array at a time: two calls that append to several could "
            "wait for each other."
        )
    if not count:
        raise ValueError("there is no array to write: the list of dask arrays is empty.")
    urls = _for_each(request.url, count, "url")
    components = _for_each(request.component, count, "component")
    regions = request.region if isinstance(request.region, list) else [request.region] * count
    if len(regions) != count:
        raise ValueError(f"region has {len(regions)} items for {count} dask arrays.")
    manifests = [None] * count
    if request.resume.manifest is not None:
        manifests = _for_each(_several(request.resume.manifest), count, "manifest")
        if len(set(map(str, manifests))) < count:
            raise ValueError("manifest names one place twice: each array has a file of its own.")
    wanted = [request.wanted] * count if each is None else _specs(request.wanted, count, each)
    return [
        replace(
            request,
            url=u,
            component=c,
            region=r,
            wanted=w,
            resume=replace(request.resume, manifest=m),
        )
        for u, c, r, m, w in zip(urls, components, regions, manifests, wanted, strict=True)
    ]


def _specs(spec: ArraySpec, count: int, each: Sequence[Mapping[str, Any]]) -> list[ArraySpec]:
    if len(each) != count:
        raise ValueError(f"each has {len(each)} items for {count} dask arrays.")
    unknown = sorted({name for one in each for name in one if name not in _OF_EACH})
    if unknown:
        raise TypeError(f"each= has the keywords {unknown}; only {list(_OF_EACH)} may differ.")
    return [replace(spec, **one) for one in each]


def _several(manifest: Any) -> list[Any]:
    """Return one manifest for each array: a second one would replace the first."""
    return list(manifest) if isinstance(manifest, list | tuple) else [manifest]


def _for_each(given: Any, count: int, name: str) -> list[Any]:
    items = list(given) if isinstance(given, list | tuple) else [given] * count
    if len(items) != count:
        raise ValueError(f"{name} has {len(items)} items for {count} dask arrays.")
    return items
