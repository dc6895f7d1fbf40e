"""The hierarchy: groups, and opening and creating nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from zarr_dask.array import Array
from zarr_dask.create import ArraySpec, array_meta
from zarr_dask.errors import (
    MetadataError,
    NodeExistsError,
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
    ancestors,
    checked_attributes,
    normalise_path,
    where,
)
from zarr_dask.formats.detect import FORMATS, format_named, read_node
from zarr_dask.formats.update import with_attributes
from zarr_dask.stores.base import Store, join
from zarr_dask.stores.urls import Location, open_store
from zarr_dask.stores.wrappers import ReadOnly

__all__ = ["Group", "Mode", "create_array", "create_group", "open", "open_array", "open_group"]

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
    """Where the bytes are."""
    path: str
    """Path below the root of the store; empty for the root."""
    meta: GroupMeta
    """What the metadata document says."""
    node_format: Format
    """How documents are spelled."""
    options: ReadOptions = field(default_factory=ReadOptions)
    """How to read the arrays below."""

    @property
    def attributes(self) -> dict[str, Any]:
        """The user's attributes (a copy)."""
        return dict(self.meta.attributes)

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
        """The node at a path below this group."""
        below = join(self.path, normalise_path(path))
        node_format, meta = read_node(self.store, below, self.format, self.options)
        return _node(self.store, below, meta, node_format, self.options)

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.children())

    def __contains__(self, path: object) -> bool:
        if not isinstance(path, str):
            return False
        try:
            self[path]
        except NodeNotFoundError:
            return False
        return True

    def children(self) -> Iterator[tuple[str, Array | Group]]:
        """Name and node of everything directly below, by name."""
        for name in self.node_format.child_names(self.store, self.path):
            try:
                yield name, self[name]
            except NodeNotFoundError:
                continue  # a folder that is no node, of chunks for instance

    def arrays(self, recursive: bool = False) -> Iterator[tuple[str, Array]]:
        """Path and node of every array below; in groups below as well if `recursive`."""
        for path, node in _walk(self, recursive):
            if isinstance(node, Array):
                yield path, node

    def groups(self, recursive: bool = False) -> Iterator[tuple[str, Group]]:
        """Path and node of every group below; in groups below as well if `recursive`."""
        for path, node in _walk(self, recursive):
            if isinstance(node, Group):
                yield path, node

    def tree(self) -> str:
        """The hierarchy below as text, one node a line; documents that cannot be read are named."""
        return "\n".join([self.path.rsplit("/", 1)[-1] or "/", *_tree_lines(self, "")])

    def create_array(self, path: str, **options: Any) -> Array:
        """A new array below this group; see `zarr_dask.create_array`."""
        below = join(self.path, normalise_path(path))
        return create_array(self.store, below, format=self.format, **options)

    def create_group(self, path: str, **options: Any) -> Group:
        """A new group below this group; see `zarr_dask.create_group`."""
        below = join(self.path, normalise_path(path))
        return create_group(self.store, below, format=self.format, **options)

    def update_attributes(self, attributes: Mapping[str, Any]) -> Group:
        """The group with more (or other) attributes, written to the store."""
        meta = with_attributes(
            self.store, self.path, self.node_format, self.meta, attributes, self.options
        )
        return replace(self, meta=meta)


def _walk(group: Group, recursive: bool) -> Iterator[tuple[str, Array | Group]]:
    for name, node in group.children():
        yield name, node
        if recursive and isinstance(node, Group):
            for path, below in _walk(node, recursive):
                yield f"{name}/{path}", below


def _tree_lines(group: Group, indent: str) -> Iterator[str]:
    children = list(_readable_or_not(group))
    for number, (name, node) in enumerate(children):
        last = number == len(children) - 1
        yield f"{indent}{'└── ' if last else '├── '}{name}{_summary(node)}"
        if isinstance(node, Group):
            yield from _tree_lines(node, f"{indent}{'    ' if last else '│   '}")


def _readable_or_not(group: Group) -> Iterator[tuple[str, Array | Group | MetadataError]]:
    for name in group.node_format.child_names(group.store, group.path):
        try:
            yield name, group[name]
        except NodeNotFoundError:
            continue
        except MetadataError as error:
            yield name, error


def _summary(node: Array | Group | MetadataError) -> str:
    if isinstance(node, MetadataError):
        return f"  cannot be read: {'; '.join(map(str, node.problems))}"
    if isinstance(node, Group):
        return "/"
    shards = f" in shards {node.shards}" if node.shards else ""
    return f"  {node.shape} {node.dtype.name}, chunks {node.chunks}{shards}"


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
        A path, a URL, a store, a mapping from keys to bytes, or an open node.
    path
        Path of the node below it.
    mode
        ``"r"`` refuses writes; ``"r+"`` and ``"a"`` allow them.
    format
        ``"v2"`` or ``"v3"``; found out by default, with one batch of requests.
    storage_options
        Options of the store.
    read
        How to read.

    Raises
    ------
    NodeNotFoundError
        If there is neither an array nor a group.
    MetadataError
        If its documents are wrong; every problem is listed.
    StoreError
        If the store fails.
    """
    if mode not in {"r", "r+", "a"}:
        raise ValueError(f"mode={mode!r}: expected 'r', 'r+' or 'a'.")
    if isinstance(url, Array | Group):
        path = join(url.path, normalise_path(path))
        store, format = url.store, format or url.format
    else:
        path, store = normalise_path(path), open_store(url, storage_options)
    if mode == "r" and not isinstance(store, ReadOnly):
        store = ReadOnly(store)
    options = read or ReadOptions()
    node_format, meta = read_node(store, path, format, options)
    return _node(store, path, meta, node_format, options)


def _node(
    store: Store, path: str, meta: NodeMeta, node_format: Format, options: ReadOptions
) -> Array | Group:
    if isinstance(meta, ArrayMeta):
        return Array(store, path, meta, node_format, options)
    return Group(store, path, meta, node_format, options)


def open_array(
    url: Location | Array | Group,
    path: str = "",
    mode: Mode = "r",
    format: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    read: ReadOptions | None = None,
) -> Array:
    """As `open`, for arrays only.

    Raises
    ------
    NodeTypeError
        If there is a group.
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
    """As `open`, for groups only.

    Raises
    ------
    NodeTypeError
        If there is an array.
    """
    node = open(url, path, mode, format, storage_options, read)
    if not isinstance(node, Group):
        raise NodeTypeError(f"{node.where} is an array, not a group; open_array opens it.")
    return node


# --- creating -------------------------------------------------------------------------------------


def create_array(
    url: Location,
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
    format: str = "v3",
    overwrite: bool = False,
    order: Literal["C", "F"] = "C",
    chunk_key_encoding: Any = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Array:
    """Create an array: its metadata document and those of the groups above, nothing else.

    Parameters
    ----------
    url, path
        Where; a path, a URL, a store or a mapping, and the path below it.
    shape
        Elements along each dimension.
    dtype
        Data type, in any form that NumPy takes.
    chunks
        Shape of what is decoded at once; ``"auto"`` for near-cubic chunks of about 4 MiB, or
        1 MiB within shards.
    shards
        Shape of a stored object that holds several chunks; a multiple of theirs. None for
        chunks that are stored one by one.
    codecs
        For v3 a list of codecs (names, objects with ``name`` and ``configuration``, or codecs of
        this package); within shards where `shards` is given; a missing ``bytes`` codec is put
        in. For v2 a list of numcodecs configurations, the compressor last. By default blosc
        (lz4, level 5, shuffled by bytes, or by bits for elements of one byte).
    fill_value
        Value of what is not written; None (v2 only) for an undefined one.
    dimension_names
        A name or None per dimension.
    attributes
        JSON values by name.
    format
        ``"v3"`` or ``"v2"``.
    overwrite
        Replace what is there, all nodes below included.
    order
        ``"F"`` stores the elements of a chunk with the first dimension varying fastest.
    chunk_key_encoding
        v3: ``"default"``, ``"v2"`` or an object with a ``separator``. v2: a ``separator`` only.
    storage_options
        Options of the store.

    Returns
    -------
    Array
        Open for writing.

    Raises
    ------
    NodeExistsError
        If there is a node already, or an array above.
    GridError
        If chunks, shards and shape do not fit.
    MetadataError
        If the format cannot say what is asked for; every problem is listed.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> a = zd.create_array({}, shape=(64, 64), dtype="f4", chunks=8, shards=32)
    >>> a.chunks, a.shards
    ((8, 8), (32, 32))
    """
    spec = ArraySpec(
        shape=shape,
        dtype=dtype,
        chunks=chunks,
        shards=shards,
        codecs=codecs,
        fill_value=fill_value,
        dimension_names=dimension_names,
        attributes=attributes or {},
        format=format,
        order=order,
        chunk_key_encoding=chunk_key_encoding,
    )
    store, path = open_store(url, storage_options), normalise_path(path)
    node_format = format_named(format)
    meta = array_meta(spec, where(store, path))
    documents = node_format.documents(meta, path)
    prepare_place(store, path, node_format, overwrite=overwrite)
    _remove_leftovers(store, node_format.data_prefix(path), meta)
    put_documents(store, documents)
    return Array(store, path, meta, node_format)


def create_group(
    url: Location,
    path: str = "",
    *,
    attributes: Mapping[str, Any] | None = None,
    format: str = "v3",
    overwrite: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> Group:
    """Create a group, and the groups above it.

    Parameters
    ----------
    url, path, attributes, format, overwrite, storage_options
        As for `create_array`.

    Raises
    ------
    NodeExistsError
        If there is a node already, or an array above.
    """
    store, path = open_store(url, storage_options), normalise_path(path)
    node_format = format_named(format)
    meta = GroupMeta(checked_attributes(attributes or {}, where(store, path)))
    documents = node_format.documents(meta, path)
    prepare_place(store, path, node_format, overwrite=overwrite)
    put_documents(store, documents)
    return Group(store, path, meta, node_format)


def find_node(store: Store, path: str, options: ReadOptions | None = None) -> NodeMeta | None:
    """The metadata of the node at a path, of any format; None if there is none."""
    try:
        return read_node(store, path, None, options or ReadOptions())[1]
    except NodeNotFoundError:
        return None


def check_place(store: Store, path: str, node_format: Format, *, overwrite: bool) -> None:
    """Whether a node may be created at a path; changes nothing.

    Raises
    ------
    NodeExistsError
        If something is there and may not be replaced, or an array lies above.
    StoreKeyError
        If the format has no nodes of such a name.
    """
    for name in path.split("/") if path else ():
        if not node_format.is_node_name(name):
            raise StoreKeyError(
                f"{name!r} in {where(store, path)} cannot be the name of a node in format "
                f"{node_format.name}."
            )
    for above in ancestors(path):
        if isinstance(find_node(store, above), ArrayMeta):
            raise NodeExistsError(
                f"{where(store, path)} would lie inside the array at {where(store, above)}; an "
                "array cannot hold other nodes. Choose another path."
            )
    if not overwrite and _is_taken(store, path):
        raise NodeExistsError(
            f"{where(store, path)} exists already and was left as it is. Pass overwrite=True to "
            "replace it, or open it with mode='r+' to write into it."
        )


def _is_taken(store: Store, path: str) -> bool:
    try:
        return find_node(store, path) is not None
    except MetadataError:
        return True  # documents that cannot be read are still somebody's


def prepare_place(store: Store, path: str, node_format: Format, *, overwrite: bool) -> None:
    """Make room for a node: remove what it replaces, create the groups above.

    Raises
    ------
    NodeExistsError, StoreKeyError
        As `check_place`.
    """
    check_place(store, path, node_format, overwrite=overwrite)
    if overwrite and _is_taken(store, path):  # files that are no node's are not ours to remove
        remove_node(store, path)
    for key, document in node_format.root_documents().items():
        if store.get(key) is None:
            store.set(key, [document])
    if node_format.has_implicit_groups:
        return
    for above in ancestors(path):
        if find_node(store, above) is None:
            put_documents(store, node_format.documents(GroupMeta(), above))


def remove_node(store: Store, path: str) -> None:
    """Delete a node and all that lies below, its documents first.

    A reader that comes meanwhile finds no node rather than one with holes.
    """
    for candidate in FORMATS:
        for key in candidate.node_keys(path):
            store.delete(key)
    for prefix in sorted({prefix for f in FORMATS for prefix in f.prefixes(path)}):
        store.delete_prefix(prefix)


def _remove_leftovers(store: Store, prefix: str, meta: ArrayMeta) -> None:
    """Delete stored objects of a job that never finished: they are no values of a new array."""
    ndim = len(meta.shape)
    for key in list(store.list(prefix)):
        if meta.keys.coords(key[len(prefix) :], ndim) is not None:
            store.delete(key)


def put_documents(store: Store, documents: Mapping[str, bytes]) -> None:
    """Write documents in their order."""
    for key, document in documents.items():
        store.set(key, [document])
