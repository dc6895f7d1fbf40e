"""Opening nodes, and creating those that a mode asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack, get_args

from zarr_dask._util.keywords import explained_by, takes_habits
from zarr_dask.array.array import Array
from zarr_dask.array.create_options import (
    NEW_ARRAY,
    NEW_ARRAY_HABITS,
    OPEN_HABITS,
    CreateOptions,
    takes_codec_steps,
)
from zarr_dask.errors import NodeNotFoundError, NodeTypeError
from zarr_dask.formats.base import ReadOptions, normalise_path
from zarr_dask.formats.consolidated import Consolidated, with_consolidated, without_consolidated
from zarr_dask.hierarchy.absent_node import Mode, names_beside, with_hint_of_file
from zarr_dask.hierarchy.create_node import DATA_OPTIONS, check_is_such, create_array
from zarr_dask.hierarchy.group import Group, as_array, as_group, create_group, node_of
from zarr_dask.hierarchy.locate import resolve_node
from zarr_dask.hierarchy.walk import read_node_or_implicit_group
from zarr_dask.stores.base import is_remote, join
from zarr_dask.stores.open import Location, open_store
from zarr_dask.stores.patience import in_foreground
from zarr_dask.stores.wrappers.base import is_read_only, read_only

__all__ = ["open", "open_array", "open_group"]


@in_foreground()
@takes_codec_steps
@takes_habits(
    NEW_ARRAY,
    group="path",
    **OPEN_HABITS,
    **NEW_ARRAY_HABITS,
)
def open(
    url: Location | Array | Group,
    path: str = "",
    mode: Mode = "r",
    format: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    read: ReadOptions | None = None,
    **options: Unpack[CreateOptions],
) -> Array | Group:
    """Open an array or a group, or create one.

    Parameters
    ----------
    url
        A path, a URL, a store, a mapping from keys to bytes, an open node, or a store, an array
        or a group of zarr-python.
    path
        Path of the node below `url`.
    mode
        ``"r"`` refuses writes; ``"r+"`` allows them. ``"a"`` allows them and creates the node if
        there is none, ``"w"`` replaces what is there, ``"w-"`` creates and refuses to replace. With
        ``shape=`` or ``data=`` an array is created, otherwise a group.
    format
        Name of a format, as for `create_array`. By default it is detected, with one batch of
        requests for v3 and v2. Object stores and HTTP servers are queried for ``zarr.json`` first,
        and for the metadata of all other formats in a second batch if it is absent; metadata of
        other formats beside a ``zarr.json`` are then not noticed.
    storage_options
        Options of the store.
    read
        Options for reading; by default those of the open node, if `url` is one.
    **options
        Of a new array, as for `create_array`: ``shape``, ``dtype``, ``data``, ``chunks``,
        ``shards``, ``codecs``, ``fill_value``, ``dimension_names``, ``attributes`` and so on; for a
        group only ``attributes``. With ``mode="a"``, shape and data type of an array that exists
        must be these.

    Raises
    ------
    NodeNotFoundError
        If there is neither an array nor a group.
    MetadataError
        If the metadata are wrong; every problem is listed.
    StoreError
        If the store fails.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> values = {}
    >>> _ = zd.create_array(values, "ocean/salt", shape=(4,), dtype="f4", chunks=2)
    >>> zd.open(values, "ocean/salt").shape
    (4,)
    >>> list(zd.open(values, "ocean"))
    ['salt']
    >>> zd.open(values, "wind", mode="w", shape=(4,), dtype="f4").chunks
    (4,)
    """
    _check_mode(mode)
    if mode in ("r", "r+") and options:
        raise TypeError(
            f"{sorted(options)} are for a new node; mode={mode!r} opens one that exists. Give "
            "mode='a', 'w' or 'w-' to create it, or use create_array."
        )
    if mode in ("w", "w-"):
        return _created(url, path, mode, format, storage_options, options)
    try:
        node = open_existing(url, path, mode, format, storage_options, read)
    except NodeNotFoundError:
        if mode != "a":
            raise
        return _created(url, path, mode, format, storage_options, options)
    if isinstance(node, Array):
        check_is_such(node, options)
    elif DATA_OPTIONS & options.keys():
        raise NodeTypeError(f"{node.where} is a group; shape=, dtype= and data= are of an array.")
    return node


def _check_mode(mode: Mode) -> None:
    if mode not in ("r", "r+", "a", "w", "w-"):  # a set would fail for unhashable values
        hint = " Use 'w-'." if str(mode) == "x" else ""
        raise ValueError(f"mode={mode!r}: expected 'r', 'r+', 'a', 'w' or 'w-'.{hint}")


def _created(
    url: Location | Array | Group,
    path: str,
    mode: Mode,
    format: str | None,
    storage_options: Mapping[str, Any] | None,
    options: CreateOptions,
) -> Array | Group:
    """Return a new node: an array if it has a shape or data, else a group."""
    given: dict[str, Any] = {"overwrite": mode == "w", **options}
    place: dict[str, Any] = {"format": format, "storage_options": storage_options}
    if "shape" in given or "data" in given:
        return create_array(url, path, **place, **given)
    more = sorted(options.keys() - {"attributes", "overwrite"})
    if more:
        raise TypeError(
            f"{more} are of an array, which needs shape= (and dtype=) or data=; a group takes "
            "attributes= alone."
        )
    return create_group(url, path, **place, **given)


def open_existing(
    url: Location | Array | Group,
    path: str,
    mode: Mode,
    format: str | None,
    storage_options: Mapping[str, Any] | None,
    read: ReadOptions | None,
) -> Array | Group:
    """Return the node that exists; see `open`."""
    if isinstance(url, Array | Group):
        below, read = normalise_path(path), url.options if read is None else read
        open_store(without_consolidated(url.store), storage_options)  # given when it was opened
        # consolidated metadata describe the nodes below the group that holds them
        store = url.store if below else without_consolidated(url.store)
        path, format = join(url.path, below), format or url.format
    else:
        store, path = resolve_node(url, path, storage_options)
    if mode == "r" and not is_read_only(without_consolidated(store)):
        store = read_only(store)
    options = ReadOptions.given(read)
    consolidated = mode == "r" and options.consolidated and not isinstance(store, Consolidated)
    try:
        node_format, meta, found = read_node_or_implicit_group(
            store, path, format, options, consolidated=consolidated
        )
    except NodeNotFoundError as error:
        from zarr_dask.journal import explain_incomplete

        error = with_hint_of_file(explain_incomplete(error, store, path), store)
        if not path or (is_remote(store) and path not in get_args(Mode)):
            raise error from None  # looking for other names would double the requests
        hint = f"{error.hint} {names_beside(store, '', path)}".strip()
        raise NodeNotFoundError(error.where, error.looked_for, hint) from None
    if consolidated:
        store = with_consolidated(store, path, node_format, meta, options, found)
    return node_of(store, path, meta, node_format, options)


@takes_codec_steps
@takes_habits(NEW_ARRAY, **OPEN_HABITS, **NEW_ARRAY_HABITS)
@explained_by(open)
def open_array(
    url: Location | Array | Group,
    path: str = "",
    mode: Mode = "r",
    format: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    read: ReadOptions | None = None,
    **options: Unpack[CreateOptions],
) -> Array:
    """Open an array, or create one.

    Parameters
    ----------
    url, path, mode, format, storage_options, read, **options
        As for `open`.

    Raises
    ------
    NodeTypeError
        If there is a group.
    NodeNotFoundError, MetadataError, StoreError
        See `open`.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> values = {}
    >>> zd.create_array(values, shape=(3,), dtype="i4")[...] = [1, 2, 3]
    >>> a = zd.open_array(values, mode="r+")
    >>> a[1] = 0
    >>> a[...]
    array([1, 0, 3], dtype=int32)
    """
    _check_mode(mode)
    if mode not in ("r", "r+") and not {"shape", "data"} & options.keys():
        if mode != "a":
            raise TypeError("a new array needs shape= (and dtype=), or data=.")
        node = open_existing(url, path, mode, format, storage_options, read)
    else:
        node = open(url, path, mode, format, storage_options, read, **options)
    return as_array(node)


@takes_habits(attrs="attributes", **OPEN_HABITS)
@explained_by(open)
def open_group(
    url: Location | Group,
    path: str = "",
    mode: Mode = "r",
    format: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    read: ReadOptions | None = None,
    *,
    attributes: Mapping[str, Any] | None = None,
) -> Group:
    """Open a group, or create one.

    Parameters
    ----------
    url, path, mode, format, storage_options, read
        As for `open`.
    attributes
        Of a new group.

    Raises
    ------
    NodeTypeError
        If there is an array.
    NodeNotFoundError, MetadataError, StoreError
        See `open`.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> values = {}
    >>> _ = zd.create_group(values, attributes={"title": "run 7"})
    >>> zd.open_group(values).attributes
    {'title': 'run 7'}
    """
    options: CreateOptions = {} if attributes is None else {"attributes": attributes}
    node = open(url, path, mode, format, storage_options, read, **options)
    return as_group(node)
