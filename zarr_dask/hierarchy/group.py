"""The hierarchy: groups, and opening and creating nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from zarr_dask._util.arguments import check_flags
from zarr_dask._util.display import Tree, draw, facts_table
from zarr_dask._util.warnings import warn
from zarr_dask.array.array import Array
from zarr_dask.array.create import ArraySpec, array_meta
from zarr_dask.array.revalidate import Shown
from zarr_dask.errors import (
    ConsolidatedMetadataWarning,
    ListingError,
    MetadataError,
    NodeKeyError,
    NodeNotFoundError,
    NodeTypeError,
    StoreKeyError,
)
from zarr_dask.formats.base import (
    ArrayMeta,
    Format,
    GroupMeta,
    NodeMeta,
    ReadOptions,
    checked_attributes,
    normalise_path,
    where,
)
from zarr_dask.formats.consolidated import (
    Consolidated,
    consolidating_path,
    with_consolidated,
    without_consolidated,
)
from zarr_dask.formats.detect import format_for_new
from zarr_dask.formats.edit import with_attributes
from zarr_dask.hierarchy.edit import (
    consolidate_group,
    delete_node,
    prepare_array_place,
    prepare_place,
    put_documents,
    rename_node,
    stale_paths,
)
from zarr_dask.hierarchy.locate import node_place
from zarr_dask.hierarchy.parents import format_around
from zarr_dask.hierarchy.prefetch import site_of
from zarr_dask.hierarchy.walk import Below, consolidated_above, read_as, read_or_imply, walk
from zarr_dask.journal import explained
from zarr_dask.stores.backends.local import LocalStore
from zarr_dask.stores.base import Store, join
from zarr_dask.stores.open import Location, open_store
from zarr_dask.stores.wrappers.base import ReadOnly, innermost

__all__ = [
    "Group",
    "Mode",
    "consolidate",
    "create_array",
    "create_group",
    "delete",
    "open",
    "open_array",
    "open_group",
]

Mode = Literal["r", "r+", "a"]


@dataclass(frozen=True, eq=False)
class Group:
    """A group in a store; made by `zarr_dask.open_group` and `zarr_dask.create_group`.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> group = zd.create_group({}, attributes={"title": "run 7"})
    >>> _ = group.create_array("ocean/salt", shape=(4,), dtype="f4", chunks=2)
    >>> [path for path, _ in group.arrays(recursive=True)]
    ['ocean/salt']
    """

    store: Store
    """Store that holds the group."""
    path: str
    """Path below the root of the store; empty for the root."""
    meta: GroupMeta
    """Parsed metadata of the group."""
    node_format: Format
    """Format in which the metadata are written."""
    options: ReadOptions = field(default_factory=ReadOptions)
    """Options for reading the arrays below."""

    @property
    def attributes(self) -> dict[str, Any]:
        """The user's attributes (a copy)."""
        return deepcopy(dict(self.meta.attributes))

    @property
    def format(self) -> str:
        """Name of the format, such as ``"v3"``."""
        return self.node_format.name

    @property
    def where(self) -> str:
        """Store and path, for messages."""
        return where(self.store, self.path)

    def __repr__(self) -> str:
        return f"<zarr_dask.Group {self.where} {self.format}>"

    def __getitem__(self, path: str) -> Array | Group:
        """Return the node at a path below this group.

        Raises
        ------
        NodeKeyError
            If there is none.
        """
        try:
            return self._node_at(join(self.path, normalise_path(path)))
        except NodeNotFoundError as error:
            raise NodeKeyError(error.where, error.looked_for, error.hint) from None

    def _node_at(self, below: str) -> Array | Group:
        store = self.store
        try:
            meta = read_as(store, below, self.node_format, self.options)
        except NodeNotFoundError as error:
            if not isinstance(store, Consolidated):
                raise explained(error, store, below) from None
            meta = read_as(without_consolidated(store), below, self.node_format, self.options)
            store = without_consolidated(store)
            warn(
                f"{where(store, below)} is not in the consolidated metadata of the group that was "
                "opened: they are out of date. zarr_dask.consolidate writes them anew.",
                ConsolidatedMetadataWarning,
            )
        return _node(store, below, meta, self.node_format, self.options)

    def __iter__(self) -> Iterator[str]:
        return iter(self._metas(recursive=False))

    def __contains__(self, path: object) -> bool:
        if not isinstance(path, str):
            return False
        try:
            self[path]
        except NodeNotFoundError:
            return False
        return True

    def walk(self, recursive: bool = True) -> Iterator[tuple[str, Array | Group | MetadataError]]:
        """Yield path and node of everything below, or the error for metadata that are wrong.

        With consolidated metadata this takes no request. Otherwise it takes one batch of requests
        for the metadata of each level, and one listing: of everything for a store in memory, of
        each group for other stores, where folders of arrays are not listed.

        Parameters
        ----------
        recursive
            True to include the groups below.
        """
        check_flags(recursive=recursive)
        for path, meta in self._metas(recursive).items():
            if isinstance(meta, MetadataError):
                yield path, meta
            else:
                below = join(self.path, path)
                yield path, _node(self.store, below, meta, self.node_format, self.options)

    def _metas(self, recursive: bool) -> dict[str, Below]:
        asked = self.path, self.node_format, self.options
        try:
            return walk(self.store, *asked, recursive=recursive)
        except ListingError:
            known = consolidated_above(self.store, *asked)
            if known is None:
                raise
            return walk(known, *asked, recursive=recursive)

    def _nodes(self, recursive: bool) -> Iterator[tuple[str, Array | Group]]:
        for path, node in self.walk(recursive):
            if isinstance(node, MetadataError):
                raise node
            yield path, node

    def children(self) -> Iterator[tuple[str, Array | Group]]:
        """Yield name and node of everything directly below, by name.

        Raises
        ------
        MetadataError
            When a node with wrong metadata is reached; `walk` continues after it.
        """
        return self._nodes(recursive=False)

    def arrays(self, recursive: bool = False) -> Iterator[tuple[str, Array]]:
        """Yield path and node of every array directly below, or at any depth if `recursive`."""
        for path, node in self._nodes(recursive):
            if isinstance(node, Array):
                yield path, node

    def groups(self, recursive: bool = False) -> Iterator[tuple[str, Group]]:
        """Yield path and node of every group directly below, or at any depth if `recursive`."""
        for path, node in self._nodes(recursive):
            if isinstance(node, Group):
                yield path, node

    def tree(self) -> Tree:
        """Return the hierarchy below, one node a line; nodes with unreadable metadata are marked.

        Returns
        -------
        Tree
            A text that notebooks show as nested lists.
        """
        name = self.path.rsplit("/", 1)[-1] or "/"
        return draw(name, {path: _summary(meta) for path, meta in self._metas(True).items()})

    def _repr_html_(self) -> str:
        attributes = ", ".join(self.attributes) or "none"
        facts = {"format": self.format, "attributes": attributes}
        return facts_table(f"zarr_dask.Group {self.where}", facts)

    def create_array(self, path: str, **options: Any) -> Array:
        """Create an array below this group.

        Parameters
        ----------
        path
            Path below this group.
        **options
            See `zarr_dask.create_array`; the format is that of the group.
        """
        below = join(self.path, normalise_path(path))
        return create_array(self.store, below, format=self.format, **options)

    def create_group(self, path: str, **options: Any) -> Group:
        """Create a group below this group.

        Parameters
        ----------
        path
            Path below this group.
        **options
            See `zarr_dask.create_group`; the format is that of this group.
        """
        below = join(self.path, normalise_path(path))
        return create_group(self.store, below, format=self.format, **options)

    def delete(self, path: str) -> None:
        """Delete the node at a path below this group, and everything below it.

        Raises
        ------
        NodeNotFoundError
            If there is none.
        ReadOnlyError
            If the group was opened for reading.
        """
        delete_node(self.store, self._below(path))

    def rename(self, old: str, new: str) -> Array | Group:
        """Move a node to another path below this group.

        In a local store its folder is renamed. In other stores every stored object is copied byte
        for byte, the metadata last; only then the old ones are deleted. Nothing is overwritten.

        Parameters
        ----------
        old, new
            Paths below this group.

        Returns
        -------
        Array or Group
            The node at its new path.

        Raises
        ------
        NodeNotFoundError
            If there is no node at `old`.
        NodeExistsError
            If anything exists at `new`, or one path contains the other.
        ReadOnlyError
            If the group was opened for reading.
        """
        rename_node(self.store, self._below(old), self._below(new))
        return self[new]

    def stale(self) -> list[str]:
        """Return paths whose consolidated metadata differ from the metadata of the nodes.

        These are nodes that were added, removed or changed since; all metadata of the hierarchy are
        read from the store. Empty if the group has no consolidated metadata.

        Examples
        --------
        >>> import zarr_dask as zd
        >>> values = {}
        >>> _ = zd.create_group(values, "a")
        >>> group = zd.consolidate(values)
        >>> del values["a/zarr.json"]
        >>> group.stale()
        ['a']
        """
        store = without_consolidated(self.store)
        meta = read_as(store, self.path, self.node_format, self.options)
        if not isinstance(meta, GroupMeta):
            raise NodeTypeError(f"{self.where} is not a group any more.")
        return stale_paths(store, self.path, self.node_format, meta)

    def _below(self, path: str) -> str:
        """Return the full path of a node below this group, which is not the group itself."""
        normal = normalise_path(path)
        if not normal:
            raise StoreKeyError(
                f"{path!r} names no node below {self.where}; zarr_dask.delete removes a whole "
                "hierarchy."
            )
        return join(self.path, normal)

    def update_attributes(self, attributes: Mapping[str, Any]) -> Group:
        """Add or replace attributes in the store and return the changed group."""
        meta = with_attributes(
            self.store, self.path, self.node_format, self.meta, attributes, self.options
        )
        return replace(self, meta=meta)


def _summary(meta: Below) -> tuple[str, str]:
    """Return the separator after the name of a node, and its description, for a tree."""
    if isinstance(meta, MetadataError):
        return "  ", f"cannot be read: {'; '.join(map(str, meta.problems))}"
    if isinstance(meta, GroupMeta):
        return "/", ""
    return "  ", f"{meta.shape} {meta.data_type.label}, chunks {meta.grids}"


# --- opening --------------------------------------------------------------------------------------


def open(
    url: Location | Array | Group,
    path: str = "",
    mode: Mode = "r",
    format: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    read: ReadOptions | None = None,
) -> Array | Group:
    """Open an array or a group.

    Parameters
    ----------
    url
        A path, a URL, a store, a mapping from keys to bytes, an open node, or a store, an array
        or a group of zarr-python.
    path
        Path of the node below `url`.
    mode
        ``"r"`` refuses writes; ``"r+"`` and ``"a"`` allow them.
    format
        Name of a format, as for `create_array`. By default it is detected, with one batch of
        requests for v3 and v2. Object stores and HTTP servers are queried for ``zarr.json`` first,
        and for the metadata of all other formats in a second batch if it is absent; metadata of
        other formats beside a ``zarr.json`` are then not noticed.
    storage_options
        Options of the store.
    read
        Options for reading; by default those of the open node, if `url` is one.

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
    """
    if mode not in ("r", "r+", "a"):  # a set would fail for unhashable values
        raise ValueError(f"mode={mode!r}: expected 'r', 'r+' or 'a'.")
    if isinstance(url, Array | Group):
        below, read = normalise_path(path), url.options if read is None else read
        open_store(without_consolidated(url.store), storage_options)  # given when it was opened
        # consolidated metadata describe the nodes below the group that holds them
        store = url.store if below else without_consolidated(url.store)
        path, format = join(url.path, below), format or url.format
    else:
        store, path = node_place(url, path, storage_options)
    if mode == "r" and not isinstance(without_consolidated(store), ReadOnly):
        store = ReadOnly(store)
    options = ReadOptions.given(read)
    consolidated = mode == "r" and options.consolidated and not isinstance(store, Consolidated)
    try:
        node_format, meta, found = read_or_imply(
            store, path, format, options, consolidated=consolidated
        )
    except NodeNotFoundError as error:
        raise _of_a_file(explained(error, store, path), store) from None
    if consolidated:
        store = with_consolidated(store, path, node_format, meta, options, found)
    return _node(store, path, meta, node_format, options)


def _of_a_file(error: NodeNotFoundError, store: Store) -> NodeNotFoundError:
    """Return the error, with a hint if the given location seems to be a file, not a folder."""
    place = innermost(store)
    remote = "::" not in place.url and "://" in place.url
    if isinstance(place, LocalStore) and Path(place.root).is_file():
        hint = f"{place.root} is a file, and no zip archive."
        if place.root.endswith(".json"):
            hint += f" References (kerchunk) are read as 'reference::{place.root}'."
    elif remote and place.url.lower().endswith(".zip"):
        hint = f"An archive is read as 'zip::{place.url}'."
    elif remote and place.url.endswith(".json"):
        hint = f"References (kerchunk) are read as 'reference::{place.url}'."
    else:
        return error
    return NodeNotFoundError(error.where, error.looked_for, f"{error.hint} {hint}".lstrip())


def _node(
    store: Store, path: str, meta: NodeMeta, node_format: Format, options: ReadOptions
) -> Array | Group:
    if isinstance(meta, ArrayMeta):
        shown = Shown(consolidating_path(store, path))
        return Array(without_consolidated(store), path, meta, node_format, options, shown)
    return Group(store, path, meta, node_format, options)


def open_array(
    url: Location | Array | Group,
    path: str = "",
    mode: Mode = "r",
    format: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    read: ReadOptions | None = None,
) -> Array:
    """Open an array.

    Parameters
    ----------
    url, path, mode, format, storage_options, read
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
    node = open(url, path, mode, format, storage_options, read)
    if not isinstance(node, Array):
        raise NodeTypeError(
            f"{node.where} is a group, not an array; open_group opens it, and path= names an "
            "array in it."
        )
    return node


def open_group(
    url: Location | Group,
    path: str = "",
    mode: Mode = "r",
    format: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    read: ReadOptions | None = None,
) -> Group:
    """Open a group.

    Parameters
    ----------
    url, path, mode, format, storage_options, read
        As for `open`.

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
    node = open(url, path, mode, format, storage_options, read)
    if not isinstance(node, Group):
        raise NodeTypeError(f"{node.where} is an array, not a group; open_array opens it.")
    return node


# --- creating -------------------------------------------------------------------------------------


def create_array(
    url: Location | Array | Group,
    path: str = "",
    *,
    shape: Any,
    dtype: Any,
    chunks: Any = "auto",
    shards: Any = None,
    codecs: Any = None,
    fill_value: Any = 0,
    dimension_names: Any = None,
    attributes: Mapping[str, Any] | None = None,
    format: str | None = None,
    overwrite: bool = False,
    order: Literal["C", "F"] = "C",
    chunk_key_encoding: Any = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Array:
    """Create an array: its metadata and those of the groups above, nothing else.

    Parameters
    ----------
    url, path
        Location: a path, a URL, a store, a mapping, or a node that is open for writing, of this
        package or of zarr-python; and the path below it.
    shape
        Elements along each dimension.
    dtype
        Data type: anything that NumPy accepts (numbers, ``"U8"``, ``"S8"``, ``"V8"``, ``"M8[ns]"``,
        records), ``str`` or ``bytes`` for texts or byte strings of any length, a type of ml_dtypes,
        or the name or JSON object of a data type of Zarr v3 (``"string"``, ``"bfloat16"``,
        ``"r24"``). The byte order of a NumPy type is that of the stored bytes.
    chunks
        Shape of a chunk, the unit of decoding; ``"auto"`` for near-cubic chunks of about 4 MiB, or
        1 MiB within shards. For v3, the sizes of all chunks along a dimension may be given instead
        of one length, as in dask: ``((31, 28, 31), 100)``. This makes a ``rectilinear`` grid, which
        few readers support, unless all sizes are equal except for a smaller last one.
    shards
        Shape of a stored object that holds several chunks; a multiple of the chunk shape, in the
        same forms. None to store each chunk as an object of its own.
    codecs
        For v3 a list of codecs (names, objects with ``name`` and ``configuration``, or codecs of
        this package); inside shards if `shards` is given; a missing ``bytes`` codec is added. For
        v2 a list of numcodecs configurations, the compressor last; for v1 only the compressor (one
        of blosc, zlib, bz2, lzma). For the drafts either form, if they have the codecs. By default
        blosc (lz4, level 5, shuffled by bytes, or by bits for elements of one byte).
    fill_value
        Value of elements that are not written; None (v1 and v2) leaves it undefined. 0 is the zero
        of any data type: an empty text, a record of zeros.
    dimension_names
        A name or None per dimension.
    attributes
        JSON values by name.
    format
        ``"v3"``, ``"v2"``, ``"v1"``, or the v3 draft of 2022: ``"v3draft"``, or
        ``"v3draft-2022-05"`` for its older layout, which zarr-python 2 reads. By default the format
        of the surrounding group, or v3 if there is none.
    overwrite
        Replace an existing node, including all nodes below it.
    order
        ``"F"`` stores the elements of a chunk with the first dimension varying fastest.
    chunk_key_encoding
        v3: ``"default"``, ``"v2"`` or an object with a ``separator``. v2 and the v3 draft: a
        ``separator`` only.
    storage_options
        Options of the store.

    Returns
    -------
    Array
        The new array, open for writing.

    Raises
    ------
    NodeExistsError
        If a node exists there already, or an array above it.
    GridError
        If chunks, shards and shape do not fit.
    MetadataError
        If the format cannot express the request; every problem is listed.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> a = zd.create_array({}, shape=(64, 64), dtype="f4", chunks=8, shards=32)
    >>> a.chunks, a.shards
    ((8, 8), (32, 32))
    """
    check_flags(overwrite=overwrite)
    spec = ArraySpec(
        shape=shape,
        dtype=dtype,
        chunks=chunks,
        shards=shards,
        codecs=codecs,
        fill_value=fill_value,
        dimension_names=dimension_names,
        attributes={} if attributes is None else attributes,
        format=format,
        order=order,
        chunk_key_encoding=chunk_key_encoding,
    )
    store, path = node_place(url, path, storage_options)
    site = site_of(store, path)
    node_format = format_for_new(store, format or format_around(site.store, path), path)
    meta = array_meta(replace(spec, format=node_format.name), where(store, path))
    documents = node_format.documents(meta, path)
    prepare_array_place(store, path, node_format, meta, overwrite=overwrite, site=site)
    put_documents(store, documents)
    return Array(store, path, meta, node_format, shown=Shown(path))


def create_group(
    url: Location | Array | Group,
    path: str = "",
    *,
    attributes: Mapping[str, Any] | None = None,
    format: str | None = None,
    overwrite: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> Group:
    """Create a group, and the groups above it.

    Parameters
    ----------
    url, path, attributes, format, overwrite, storage_options
        As for `create_array`.

    Returns
    -------
    Group
        The new group, open for writing.

    Raises
    ------
    NodeExistsError
        If a node exists there already, or an array above it.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> group = zd.create_group({}, "runs/7", attributes={"title": "run 7"})
    >>> group.path
    'runs/7'
    """
    check_flags(overwrite=overwrite)
    store, path = node_place(url, path, storage_options)
    site = site_of(store, path, below=overwrite)
    node_format = format_for_new(store, format or format_around(site.store, path), path)
    meta = GroupMeta(
        checked_attributes({} if attributes is None else attributes, where(store, path))
    )
    documents = node_format.documents(meta, path)
    prepare_place(store, path, node_format, overwrite=overwrite, is_group=True, site=site)
    put_documents(store, documents)
    return Group(store, path, meta, node_format)


def delete(
    url: Location | Array | Group,
    path: str = "",
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Delete a node and everything below it, its metadata first.

    Parameters
    ----------
    url, path
        Location of the node. For the root of a store, everything in the store is deleted. The
        folder of a local store itself is kept, empty: it may be the current folder, shared, or a
        mount point.
    storage_options
        Options of the store.

    Raises
    ------
    NodeNotFoundError
        If there is none.
    ReadOnlyError
        If the store is read-only.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> values = {}
    >>> _ = zd.create_array(values, "a", shape=(2,), dtype="i1")
    >>> zd.delete(values, "a")
    >>> list(values)
    ['zarr.json']
    """
    delete_node(*node_place(url, path, storage_options))


def consolidate(
    url: Location | Array | Group,
    path: str = "",
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> Group:
    """Write all metadata below a group into one object, so that it opens with one request.

    v2 gets ``.zmetadata``; v3 gets ``consolidated_metadata`` in the metadata of the group, as
    zarr-python and xarray read them. Run it again when the hierarchy has changed: readers of
    consolidated metadata see the state at the time of writing (`Group.stale` compares).

    Parameters
    ----------
    url, path
        The group.
    storage_options
        Options of the store.

    Returns
    -------
    Group
        The group, reopened for reading.

    Raises
    ------
    NodeNotFoundError, NodeTypeError
        If there is no group.
    MetadataError
        If metadata are not a JSON object, or the format has no consolidated metadata.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> values = {}
    >>> _ = zd.create_array(values, "ocean/salt", shape=(4,), dtype="f4")
    >>> group = zd.consolidate(values)
    >>> [path for path, _ in group.arrays(recursive=True)]  # no request
    ['ocean/salt']
    """
    store, path = node_place(url, path, storage_options)
    group = open_group(store, path, "r+")
    consolidate_group(store, path, group.node_format)
    return open_group(store, path)
