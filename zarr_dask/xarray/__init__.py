"""xarray backend of this package: ``xr.open_dataset(url, engine="zarr_dask", chunks={})``.

xarray finds `ZarrDaskBackend` by its entry point. The backend returns variables (`variables`) over
lazy arrays (`elements`), never dask arrays: xarray itself decides if and how these become dask
arrays, and applies the CF conventions (masks, scales, times, coordinates, texts). The backend
provides names of dimensions and attributes, the meaning of fill values, the ``encoding``, and
``preferred_chunks``, which are stored objects: shards, or pieces of them and blocks of several
small ones if a size is given.

`open_dataset` and `open_datatree` do the same with graphs whose size does not depend on the number
of chunks. xarray's default puts the array under a key of its own, and dask then visits all chunks
whenever one of them is computed.

========  ==============================================================================
reading   `read`, `variables`, `elements`
writing   `write`, `call`, `plan`, `dataset_planner`, `encode`, `check_values`, `stored`
in parts  `append`, `region`, `find_regions`
accessor  `accessor`
========  ==============================================================================
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypedDict, Unpack

import xarray as xr
from xarray.backends import AbstractDataStore, BackendEntrypoint
from xarray.backends.store import StoreBackendEntrypoint

from zarr_dask._util.buffers import keep_freed_arrays
from zarr_dask._util.keywords import did_you_mean, explained_by, takes_habits
from zarr_dask._util.xarray_accessor import register_accessor
from zarr_dask.array.array import Array
from zarr_dask.errors import MetadataError, ValidationProblem
from zarr_dask.formats.base import ReadOptions, normalise_path
from zarr_dask.formats.detect import formats_at, is_early
from zarr_dask.hierarchy.group import Group
from zarr_dask.hierarchy.open_node import open_group
from zarr_dask.jobs.engine.plan import parse_bytes
from zarr_dask.stores.base import is_remote, join
from zarr_dask.stores.open import Location, folder_store
from zarr_dask.xarray.variables import is_of_netcdf, shared_blocks, variable

__all__ = ["EarlyZarrBackend", "OpenOptions", "ZarrDaskBackend", "open_dataset", "open_datatree"]

register_accessor()

_LARGEST_LOCAL = 4_000_000
"""Bytes of a block of a shard: the peaks of reductions are then those of chunk-sized blocks."""
_LARGEST_REMOTE = 64_000_000
"""The same where a whole shard is one request, and each piece of one is two."""
_LARGEST_MERGED = 16_000_000
"""Bytes of a block of several stored objects."""


class OpenOptions(TypedDict, total=False):
    """Keywords of `xarray.open_dataset` that are handed on to it."""

    backend_kwargs: dict[str, Any] | None
    cache: bool | None
    chunked_array_type: str | None
    concat_characters: bool | Mapping[str, bool] | None
    create_default_indexes: bool
    decode_cf: bool | None
    decode_coords: Any
    decode_timedelta: Any
    decode_times: Any
    drop_variables: str | Iterable[str] | None
    from_array_kwargs: dict[str, Any] | None
    mask_and_scale: bool | Mapping[str, bool] | None
    use_cftime: bool | Mapping[str, bool] | None
    use_zarr_fill_value_as_mask: bool | None


_HABITS = {"store": "url", "path": "group", "zarr_format": "format"}


@takes_habits(tuple(OpenOptions.__annotations__), **_HABITS)
def open_dataset(
    url: Location | Group,
    group: str | None = None,
    chunks: Any = "pieces",
    *,
    format: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    read: ReadOptions | None = None,
    consolidated: bool | None = None,
    **options: Unpack[OpenOptions],
) -> xr.Dataset:
    """Open a group as a lazy `xarray.Dataset`.

    It works as ``xarray.open_dataset(url, engine="zarr_dask", ...)``, but the size of its graphs
    does not depend on the number of chunks. Names in the graph include the metadata of the
    variables.

    Parameters
    ----------
    url
        A path, a URL, a store, a mapping, or an open group.
    group
        Path of the group below `url`.
    chunks
        Blocks: ``"objects"`` for one stored object each. ``"pieces"`` is the same, but shards of
        more than 4 MB (64 MB in remote stores) are divided into blocks of whole chunks, so that
        less memory is needed, and smaller stored objects are merged up to 4 MB (16 MB), so that
        there are fewer tasks; a size such as ``"16MB"`` takes the place of these. None for no dask
        arrays, or any value that ``xarray.open_dataset`` takes.
    format
        Name of the format; detected by default.
    storage_options
        Options of the store.
    read
        Options for reading.
    consolidated
        False to read the metadata of every node, ignoring consolidated metadata.
    options
        All other options of ``xarray.open_dataset``: ``decode_cf``, ``mask_and_scale``,
        ``decode_times``, ``drop_variables``, ``use_zarr_fill_value_as_mask`` and so on.

    Raises
    ------
    NodeNotFoundError
        If there is no group.
    MetadataError
        If metadata are wrong, or a variable has dimensions without names.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> values = {}
    >>> a = zd.create_array(values, "t", shape=(6,), dtype="f4", chunks=2, dimension_names=["x"])
    >>> a[...] = range(6)
    >>> zd.open_dataset(values)["t"].chunks
    ((2, 2, 2),)
    """
    read = _read_options(url, read, consolidated)
    opened = _open(url, group, format, storage_options, read, recursive=False)
    opened, chunks = _blocks(opened, chunks)
    return xr.open_dataset(
        opened,  # type: ignore[arg-type]  # our backend takes what _open makes
        engine=ZarrDaskBackend,
        chunks=chunks,
        inline_array=True,
        **options,
    )


@takes_habits(tuple(OpenOptions.__annotations__), **_HABITS)
@explained_by(open_dataset)
def open_datatree(
    url: Location | Group,
    group: str | None = None,
    chunks: Any = "pieces",
    *,
    format: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    read: ReadOptions | None = None,
    consolidated: bool | None = None,
    **options: Unpack[OpenOptions],
) -> xr.DataTree:
    """Open a hierarchy of groups as a lazy `xarray.DataTree`.

    Parameters
    ----------
    url, group, chunks, format, storage_options, read, consolidated
        As for `open_dataset`.
    **options
        Options of `xarray.open_groups`.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> values = {}
    >>> _ = zd.create_array(values, "ocean/t", shape=(4,), dtype="f4", dimension_names=["x"])
    >>> zd.open_datatree(values).groups
    ('/', '/ocean')
    """
    read = _read_options(url, read, consolidated)
    opened = _open(url, group, format, storage_options, read, recursive=True)
    opened, chunks = _blocks(opened, chunks)
    groups = xr.open_groups(  # open_datatree loses scalars of the name of an inherited coordinate
        opened,  # type: ignore[arg-type]  # our backend takes what _open makes
        engine=ZarrDaskBackend,
        chunks=chunks,
        inline_array=True,
        **options,
    )
    return xr.DataTree.from_dict(groups)


class ZarrDaskBackend(BackendEntrypoint):
    """The xarray backend for ``engine="zarr_dask"``."""

    description = "Open Zarr hierarchies of any format with zarr_dask"
    supports_groups = True
    open_dataset_parameters = (
        *("mask_and_scale", "decode_times", "concat_characters", "decode_coords"),
        *("drop_variables", "use_cftime", "decode_timedelta", "group", "format"),
        *("storage_options", "read", "consolidated", "use_zarr_fill_value_as_mask"),
    )

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        """True if this backend should open an object without an explicit engine.

        It should open groups of this package, and names that end in ``.zarr`` or ``.zarr.zip``.
        xarray tries its backends in the order of their names, and its own Zarr backend comes first.
        """
        if isinstance(filename_or_obj, Group | _OpenedGroup):
            return True
        if not isinstance(filename_or_obj, str | os.PathLike):
            return False
        return os.fspath(filename_or_obj).rstrip("/").endswith((".zarr", ".zarr.zip"))

    def open_dataset(
        self,
        filename_or_obj: Any,
        *,
        mask_and_scale: Any = True,
        decode_times: Any = True,
        concat_characters: Any = True,
        decode_coords: Any = True,
        drop_variables: str | Iterable[str] | None = None,
        use_cftime: Any = None,
        decode_timedelta: Any = None,
        group: str | None = None,
        format: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        read: ReadOptions | None = None,
        consolidated: bool | None = None,
        use_zarr_fill_value_as_mask: bool | None = None,
    ) -> xr.Dataset:
        """Open a group as a dataset; see `xarray.open_dataset`.

        Parameters
        ----------
        filename_or_obj
            A path, a URL, a store, a mapping, or an open group.
        mask_and_scale, decode_times, concat_characters, decode_coords, use_cftime, decode_timedelta
            See `xarray.open_dataset`.
        drop_variables
            Names of variables to skip; their metadata are not interpreted.
        group
            Path of the group below it.
        format, storage_options, read
            See `zarr_dask.open`.
        consolidated
            False to read the metadata of every node, ignoring consolidated metadata.
        use_zarr_fill_value_as_mask
            True if elements with the fill value of their array are missing values. This is the
            default except in v3, where the attribute ``_FillValue`` states the missing value.
        """
        read = _read_options(filename_or_obj, read, consolidated)
        opened = _open(filename_or_obj, group, format, storage_options, read, recursive=False)
        dropped = _names(drop_variables)
        store = _Variables(opened, "", dropped, use_zarr_fill_value_as_mask)
        return store.decoded(
            mask_and_scale=mask_and_scale,
            decode_times=decode_times,
            concat_characters=concat_characters,
            decode_coords=decode_coords,
            use_cftime=use_cftime,
            decode_timedelta=decode_timedelta,
        )

    def open_groups_as_dict(
        self,
        filename_or_obj: Any,
        *,
        mask_and_scale: Any = True,
        decode_times: Any = True,
        concat_characters: Any = True,
        decode_coords: Any = True,
        drop_variables: str | Iterable[str] | None = None,
        use_cftime: Any = None,
        decode_timedelta: Any = None,
        group: str | None = None,
        format: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        read: ReadOptions | None = None,
        consolidated: bool | None = None,
        use_zarr_fill_value_as_mask: bool | None = None,
    ) -> dict[str, xr.Dataset]:
        """Open every group of a hierarchy as a dataset by its path; see `open_dataset`."""
        read = _read_options(filename_or_obj, read, consolidated)
        opened = _open(filename_or_obj, group, format, storage_options, read, recursive=True)
        dropped = _names(drop_variables)
        return {
            f"/{path}": _Variables(opened, path, dropped, use_zarr_fill_value_as_mask).decoded(
                mask_and_scale=mask_and_scale,
                decode_times=decode_times,
                concat_characters=concat_characters,
                decode_coords=decode_coords,
                use_cftime=use_cftime,
                decode_timedelta=decode_timedelta,
            )
            for path in opened.groups
        }

    def open_datatree(self, filename_or_obj: Any, **options: Any) -> xr.DataTree:
        """Open a hierarchy as a tree of datasets; parameters as `open_groups_as_dict`."""
        return xr.DataTree.from_dict(self.open_groups_as_dict(filename_or_obj, **options))


class EarlyZarrBackend(ZarrDaskBackend):
    """The xarray backend for hierarchies that zarr-python cannot read.

    Its name comes before that of xarray's own backend, which takes every ``.zarr`` for its own. It
    opens what `ZarrDaskBackend` opens, and is guessed for local folders of v1 and drafts of v3.
    """

    description = "Open Zarr hierarchies of v1 and drafts of v3 with zarr_dask"

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        """True for the path of a local folder with metadata of v1 or a draft of v3."""
        if not isinstance(filename_or_obj, str | os.PathLike):
            return False
        try:
            store = folder_store(os.fspath(filename_or_obj))
            return any(is_early(one) for one, _ in formats_at(store, ""))
        except (OSError, TypeError, ValueError):  # a file, a URL, or nothing
            return False


def _read_options(
    url: Any, read: ReadOptions | None, consolidated: bool | None
) -> ReadOptions | None:
    """Return options for reading, combined with xarray's keyword for consolidated metadata."""
    if consolidated is None:
        return read
    read = read or (url.options if isinstance(url, Group) else ReadOptions())
    return replace(read, consolidated=consolidated)


def _names(names: str | Iterable[str] | None) -> frozenset[str]:
    return frozenset([names] if isinstance(names, str) else names or ())


# --- opened hierarchies ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _OpenedGroup:
    """A group and the nodes below it, read once."""

    root: Group
    nodes: Mapping[str, Array | Group | MetadataError]
    """Nodes by path below the root."""
    is_named: bool
    """True if xarray knows a name of the location already."""
    largest_block: int | None = None
    """Bytes of a block; larger shards are divided."""

    @property
    def groups(self) -> dict[str, Group]:
        """All groups by path, the root first."""
        below = {path: node for path, node in self.nodes.items() if isinstance(node, Group)}
        return {"": self.root, **below}

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        arrays = {p: node.token for p, node in self.nodes.items() if isinstance(node, Array)}
        place = self.root.store.identity, self.root.path
        return "zarr_dask.xarray", *place, self.largest_block, arrays


def _open(
    url: Any,
    group: str | None,
    format: str | None,
    storage_options: Mapping[str, Any] | None,
    read: ReadOptions | None,
    *,
    recursive: bool,
) -> _OpenedGroup:
    if isinstance(url, _OpenedGroup):
        return url
    path = normalise_path(group)
    if isinstance(url, Group) and not (path or format or read or storage_options):
        return _OpenedGroup(url, dict(url.walk(recursive)), is_named=False)
    root = open_group(url, path, "r", format, storage_options, read)
    is_named = isinstance(url, str | os.PathLike)
    return _OpenedGroup(root, dict(root.walk(recursive)), is_named)


def _blocks(opened: _OpenedGroup, chunks: Any) -> tuple[_OpenedGroup, Any]:
    """Return what xarray is told of the blocks that a user asks for."""
    if not isinstance(chunks, str) or chunks == "auto":
        return opened, chunks
    if chunks == "objects":
        return opened, {}
    if chunks == "pieces":
        keep_freed_arrays(_LARGEST_LOCAL)
        largest = _LARGEST_REMOTE if is_remote(opened.root.store) else _LARGEST_LOCAL
    else:
        if hint := did_you_mean(chunks, ["auto", "objects", "pieces"]):
            raise ValueError(f"chunks={chunks!r}: expected 'objects', or a size as '16MB'.{hint}")
        largest = parse_bytes(chunks, "chunks")
    return replace(opened, largest_block=largest), {}


class _Variables(AbstractDataStore):
    """The arrays directly in one group, in the form of xarray's decoders."""

    def __init__(
        self, opened: _OpenedGroup, path: str, dropped: frozenset[str], fill_is_mask: bool | None
    ) -> None:
        self._opened = opened
        self._path = path
        self._dropped = dropped
        self._fill_is_mask = fill_is_mask
        self._variables: dict[str, xr.Variable] = {}
        """Variables as xarray has seen them: arrays become longer with what this process appends.
        """

    def decoded(self, **options: Any) -> xr.Dataset:
        """Return the dataset, decoded by xarray.

        Raises
        ------
        MetadataError
            If a dimension has several lengths, or as `get_variables`.
        """
        try:
            return StoreBackendEntrypoint().open_dataset(self, **options)
        except MetadataError:
            raise
        except ValueError as error:  # decoding may remove a dimension: only now it is known
            misfit = self._misfit()
            if misfit is None:
                raise
            for looked in self._looked_again():
                with suppress(ValueError):
                    return StoreBackendEntrypoint().open_dataset(looked, **options)
            raise misfit from error

    def _looked_again(self) -> Iterator[_Variables]:
        """Yield the arrays as before an append that may be changing their lengths, and as now."""
        from zarr_dask.hierarchy.growing import LOOKS, as_before, growing_lengths

        opened, group = self._opened, self._opened.groups[self._path]
        for _ in range(LOOKS):
            lengths = {
                **growing_lengths(group.store, opened.root.path),
                **growing_lengths(group.store, group.path),
            }
            before = {
                path: as_before(node, lengths) if isinstance(node, Array) else node
                for path, node in opened.nodes.items()
            }
            yield self._with(replace(opened, nodes=before))
            now = {join(self._path, name): node for name, node in group.walk(False)}
            opened = replace(opened, nodes={**opened.nodes, **now})
            yield self._with(opened)
            if not lengths:
                return

    def _with(self, opened: _OpenedGroup) -> _Variables:
        return _Variables(opened, self._path, self._dropped, self._fill_is_mask)

    def _misfit(self) -> MetadataError | None:
        """Return an error if a dimension has several lengths, as xarray has found."""
        first: dict[str, tuple[str, int]] = {}
        for name, one in self._variables.items():
            for n, (dim, size) in enumerate(zip(one.dims, one.shape, strict=True)):
                other, length = first.setdefault(str(dim), (name, size))
                if size != length:
                    where = self._opened.nodes[join(self._path, name)].where
                    expected = (
                        f"{length}, the length of {dim!r} in {other!r}: arrays of one group are "
                        "one dataset. Pass drop_variables=, or open them by zarr_dask.open"
                    )
                    problem = ValidationProblem(f"shape[{n}]", size, expected)
                    return MetadataError(where, [problem])
        return None

    def get_variables(self) -> dict[str, xr.Variable]:
        """Return variables by name.

        Raises
        ------
        MetadataError
            If one cannot be read, or has dimensions without names.
        """
        arrays = {}
        for path, node in self._opened.nodes.items():
            above, _, name = path.rpartition("/")
            if above != self._path or name in self._dropped:
                continue
            if isinstance(node, MetadataError):
                raise node
            if isinstance(node, Array):
                arrays[name] = node
        largest = self._opened.largest_block
        blocks = {} if largest is None else shared_blocks(arrays, min(largest, _LARGEST_MERGED))
        self._variables = {
            name: variable(array, self._fill_is_mask, largest, blocks.get(name))
            for name, array in arrays.items()
        }
        return self._variables

    def get_attrs(self) -> dict[str, Any]:
        """Return attributes of the group, without those of the netCDF library."""
        group = self._opened.groups[self._path]
        return {k: v for k, v in group.attributes.items() if not is_of_netcdf(k)}

    def get_encoding(self) -> dict[str, Any]:
        """Return the location of the group, if xarray does not know it."""
        return {} if self._opened.is_named else {"source": self._opened.groups[self._path].where}
