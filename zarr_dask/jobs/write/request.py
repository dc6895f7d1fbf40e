"""Arguments of a write of one array, or of each of several, and values to write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from zarr_dask._util.arguments import check_choice
from zarr_dask._util.keywords import explained_by
from zarr_dask.array.array import Array
from zarr_dask.array.cells import CHUNK_BYTES, auto_chunks
from zarr_dask.array.create import ArraySpec, given_values
from zarr_dask.array.view import View
from zarr_dask.dtypes.base import Casting, DefaultFill
from zarr_dask.grid.grid import Shape
from zarr_dask.hierarchy.create_node import create_array
from zarr_dask.hierarchy.edit import REPLACE
from zarr_dask.hierarchy.group import Group
from zarr_dask.hierarchy.key_swap import Swap
from zarr_dask.hierarchy.locate import PrefetchedLocation
from zarr_dask.jobs.engine.resume import Resume, ResumeOptions
from zarr_dask.jobs.write.plan import Partial
from zarr_dask.jobs.write.submit import WriteProgress
from zarr_dask.jobs.write.zarr_python_kwargs import ZarrPythonOptions
from zarr_dask.journal import OnConflict
from zarr_dask.stores.open import Location

if TYPE_CHECKING:
    import dask.array as da

__all__ = [
    "RunKeywords",
    "WriteKeywords",
    "WriteMode",
    "WriteOptions",
    "WriteRequest",
    "are_several",
    "as_dask",
    "is_of_xarray",
    "split_request",
]


WriteMode = Literal["a", "w", "w-", "r+", "swap"]


@explained_by(create_array)
@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """Options of a write: keywords of `plan_write` and `to_zarr`.

    An option is a field here, explained here, and a line of `WriteKeywords` for type checkers.

    Parameters
    ----------
    chunks, shards
        Grids of a new array, as a length for all dimensions, for each, or for some by name or
        position; -1 is a whole dimension. ``"auto"``, a size such as ``"10MB"`` and False are taken
        as by `zarr_dask.create_array`. By default one stored object per block where blocks are
        regular.
    codecs, fill_value, dimension_names, attributes, format
        Of a new array; see `zarr_dask.create_array`.
    overwrite
        Replace an existing array; the same as ``mode="w"``.
    append
        A dimension, by position or by name, at whose end the existing array grows by the values.
        Its document says so when all of them are written. The last objects that the old end cuts
        are read, changed and written by their single task; readers of the old length see the same
        values before and after. Of several appends to one array, one is under way at a time: it
        claims the end of the array before it writes its first object.
    casting
        Casts that are allowed, in NumPy's words: ``"safe"``, only data types all of whose values
        the target can hold; ``"same_kind"``, also wider ones of its kind; ``"unsafe"``, all.
    partial
        What to do where a region covers stored objects only in part: ``"refuse"``; let their single
        writing task of this job read and change them (``"own"``), which is right if no other job
        writes into the same objects meanwhile; or share them with other jobs that do the same
        (``"compare"``): an object is put back only if it is still what was read, else the task
        reads it again. The last needs a store that can compare: local files and memory can.
    on_conflict
        What an append does while another one is under way: ``"error"``, before anything is written,
        or ``"wait"`` until it has ended; it is then planned anew, behind the elements of that one.
        One array at a time may wait.
    resume
        True to resume the same call after it died: only stored objects without a valid receipt are
        written, and only their inputs are computed. If there is nothing to resume, the job starts
        anew. A job that has ended already answers with its report, unless it is to overwrite. A
        name such as ``"run-7"`` declares that all calls with this name write the same
        values, for graphs whose tokens cannot show it. False always starts anew.
    journal
        Location of the receipts, a path or URL outside the hierarchy; beside it by default.
    manifest
        A path or URL where all receipts are kept as one file; see `zarr_dask.Manifest`. A list for
        several arrays. True keeps them beside the hierarchy, where `ReadOptions.verify` finds
        them; what later calls with True write is added there.
    sha256
        True to put the SHA-256 of every stored object in the manifest, beside the CRC-32C.
    confirm
        True to ask the store for the size of each object after it has acknowledged it, with one
        more request, and for its ETag where the acknowledgement had one (obstore). Objects that it
        has lost, cut or put elsewhere are an error then; by the ETag, older ones of the same size.
    verify
        True to read each object back before its receipt is left and anything new is visible, and to
        compare its elements with what was computed. Lossy codecs make a difference. What an earlier
        run of a resumed job has put is not read again.
    each
        For several arrays, what differs between them: one mapping for each, with any of ``chunks``,
        ``shards``, ``codecs``, ``fill_value``, ``dimension_names`` and ``attributes``.
    max_mem
        Maximum bytes that the tasks of one process may hold, such as ``"2GB"``, besides what
        computing the blocks takes. By default the share that the workers' memory limit leaves, or
        half of the machine's memory. Blocks that cross stored objects are regrouped in the graph,
        or written as they come into an array between, from which the target is then written: the
        faster way that fits.
    temp
        Location of that array, if any is needed; beside the target by default.
    """

    chunks: Any = None
    shards: Any = None
    codecs: Any = None
    fill_value: Any = DefaultFill.OF_DTYPE
    dimension_names: Any = None
    attributes: Mapping[str, Any] | None = None
    format: str | None = None
    overwrite: bool = False
    append: int | str | None = None
    casting: Casting = "safe"
    partial: Partial = "refuse"
    on_conflict: OnConflict = "error"
    resume: Resume = False
    journal: Location | None = None
    manifest: Any = None
    sha256: bool = False
    confirm: bool = False
    verify: bool = False
    each: Sequence[Mapping[str, Any]] | None = None
    max_mem: str | int | None = None
    temp: Location | None = None


class WriteKeywords(ZarrPythonOptions, total=False):
    """The fields of `WriteOptions`, for type checkers."""

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
    resume: Resume
    journal: Location | None
    manifest: Any
    sha256: bool
    confirm: bool
    verify: bool
    each: Sequence[Mapping[str, Any]] | None
    max_mem: str | int | None
    temp: Location | None


class RunKeywords(WriteKeywords, total=False):
    """Keywords of `to_zarr`, for type checkers."""

    progress: WriteProgress | None
    window: int | None


@dataclass(frozen=True, kw_only=True)
class WriteRequest(WriteOptions):
    """A write of one array, or of each of several: where to, and the options."""

    url: Location | Array | Group
    component: str | None = None
    storage_options: Mapping[str, Any] | None = None
    region: Any = None
    mode: WriteMode = "a"
    keywords: Mapping[str, Any] = field(default_factory=dict)
    """Keywords of zarr-python."""
    spec: ArraySpec | None = None
    """The new array, in place of what the options say of it."""
    overlap: int = 0
    """Elements at the end of the array that an append replaces."""
    length: int | None = None
    """Length along `append` by which the caller has judged what to append, if it has."""
    ended: tuple[str, ...] = ()
    """As in `ResumeOptions`."""
    until: Shape | None = None
    """As in `ResumeOptions`."""
    prefetched: PrefetchedLocation | None = None
    """Content of the location of a new array, if it is known already."""
    advice: str = REPLACE
    """Advice for the case that something is in the place of a new array, in words of the call."""
    swap: Swap | None = None
    """Swap that replaces a group, of which the array is one."""
    is_between: bool = False
    """True if the array is itself one between, into which blocks are written as they come."""

    @property
    def wanted(self) -> ArraySpec:
        """The new array, as the options describe it."""
        if self.spec is not None:
            return self.spec
        return ArraySpec(
            shape=None,
            dtype=None,
            chunks=self.chunks,
            shards=self.shards,
            codecs=self.codecs,
            fill_value=self.fill_value,
            dimension_names=self.dimension_names,
            attributes={} if self.attributes is None else self.attributes,
            format=self.format,
        )

    @property
    def journals(self) -> ResumeOptions:
        """The options that concern journals."""
        return ResumeOptions(
            self.resume,
            self.journal,
            self.manifest,
            self.sha256,
            self.ended,
            self.until,
            confirm=self.confirm,
            verify=self.verify,
        )

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
        self.journals.check()
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


def split_request(request: WriteRequest, count: int) -> list[WriteRequest]:
    """Return the requests of several arrays.

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
    manifests: list[Any] = [None] * count
    if request.manifest is not None:
        wish = request.manifest
        manifests = _for_each(wish if wish is True else _several(wish), count, "manifest")
        named = [one for one in manifests if one is not True]
        if len(set(map(str, named))) < len(named):
            raise ValueError("manifest names one place twice: each array has a file of its own.")
    each = [{}] * count if request.each is None else _checked_each(request.each, count)
    return [
        replace(request, url=u, component=c, region=r, manifest=m, each=None, **one)
        for u, c, r, m, one in zip(urls, components, regions, manifests, each, strict=True)
    ]


def _checked_each(each: Sequence[Mapping[str, Any]], count: int) -> Sequence[Mapping[str, Any]]:
    if len(each) != count:
        raise ValueError(f"each has {len(each)} items for {count} dask arrays.")
    unknown = sorted({name for one in each for name in one if name not in _OF_EACH})
    if unknown:
        raise TypeError(f"each= has the keywords {unknown}; only {list(_OF_EACH)} may differ.")
    return each


def _several(manifest: Any) -> list[Any]:
    """Return one manifest for each array: a second one would replace the first."""
    return list(manifest) if isinstance(manifest, list | tuple) else [manifest]


def _for_each(given: Any, count: int, name: str) -> list[Any]:
    items = list(given) if isinstance(given, list | tuple) else [given] * count
    if len(items) != count:
        raise ValueError(f"{name} has {len(items)} items for {count} dask arrays.")
    return items


def are_several(given: Any) -> bool:
    """True for a list of arrays; nested lists of numbers or texts are one array."""
    return isinstance(given, list | tuple) and (not given or any(map(_is_array, given)))


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray | Array | View) or hasattr(value, "__dask_graph__")


def as_dask(given: Any) -> da.Array | Any:
    """Return values as a dask array; what is neither values nor an open array is unchanged."""
    if isinstance(given, Array | View):
        return given.to_dask()
    if not isinstance(given, np.ndarray | np.generic | list | tuple | int | float | complex):
        return given
    from zarr_dask.graph import map_blocks

    values, _ = given_values(given)
    return map_blocks(values, auto_chunks(values.shape, values.itemsize, CHUNK_BYTES))


def is_of_xarray(values: object) -> bool:
    """True for objects with our accessor of xarray (`zarr_dask.xarray.accessor`)."""
    return getattr(type(values), "zd", None) is not None
