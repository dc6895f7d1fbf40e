"""The hierarchy: groups, and opening and creating nodes."""

from __future__ import annotations

import re
from collections.abc import Callable, ItemsView, Iterator, Mapping, MutableMapping, ValuesView
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Unpack, get_args

import numpy as np

from zarr_dask._util.arguments import check_bools, check_count
from zarr_dask._util.keywords import closest, did_you_mean, explained_by, takes_habits
from zarr_dask._util.warnings import warn
from zarr_dask.array.array import Array
from zarr_dask.array.attributes import Attributes, fixed
from zarr_dask.array.common_names import NodeNames, assigns_attrs, facts_text, no_attribute
from zarr_dask.array.create_options import NewArrayOptions
from zarr_dask.array.revalidate import Shown
from zarr_dask.errors import (
    ConsolidatedMetadataWarning,
    ListingError,
    MetadataError,
    NodeExistsError,
    NodeKeyError,
    NodeNameError,
    NodeNotFoundError,
    NodeTypeError,
    StoreError,
    StoreKeyError,
    ZarrDaskError,
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
from zarr_dask.formats.detect import FORMATS, format_for_new, formats_at, looking_once
from zarr_dask.formats.handles import opened
from zarr_dask.hierarchy.locate import (
    PrefetchedLocation,
    parent_format,
    prefetch_location,
    resolve_node,
)
from zarr_dask.hierarchy.walk import (
    NodeOrError,
    consolidated_above,
    read_as,
    read_node_or_implicit_group,
    walk,
)
from zarr_dask.indexing.basic import checked_region
from zarr_dask.stores.base import Store, is_remote, join
from zarr_dask.stores.open import Location, local_path, open_store
from zarr_dask.stores.patience import in_foreground
from zarr_dask.stores.wrapper import unwrap
from zarr_dask.stores.wrappers.base import is_read_only, read_only

if TYPE_CHECKING:
    from zarr_dask._util.display import Tree
    from zarr_dask.array.create import ArraySpec
    from zarr_dask.journal import NodeClaim

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

Mode = Literal["r", "r+", "a", "w", "w-"]


class CreateOptions(NewArrayOptions, total=False):
    """Keywords of `create_array` that methods of a group and `open` pass on."""

    shape: Any
    dtype: Any
    data: Any
    overwrite: bool


_HABITS = {"component": "path", "name": "path", "store": "url", "zarr_format": "format"}
_OF_NEW = {
    "attrs": "attributes",
    "compressor": "codecs",
    "compressors": "codecs",
    "dims": "dimension_names",
}
"""Names of zarr-python, xarray and dask for arguments of this package."""
_NEW_ARRAY = tuple(CreateOptions.__annotations__)


@assigns_attrs
@dataclass(frozen=True, eq=False)
class Group(NodeNames, MutableMapping[str, "Array | Group"]):
    """A group in a store; made by `zarr_dask.open_group` and `zarr_dask.create_group`.

    A group is a mapping from names to the nodes directly below it, in the order of their names; a
    path such as ``"ocean/salt"`` names a node further below. Assignment creates an array of values
    (``group["x"] = values``) and replaces nothing; ``del group["x"]`` deletes the node. A group is
    true even if it is empty.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> group = zd.create_group({}, attributes={"title": "run 7"})
    >>> _ = group.create_array("ocean/salt", shape=(4,), dtype="f4", chunks=2)
    >>> [path for path, _ in group.arrays(recursive=True)]
    ['ocean/salt']
    """

    _made_by = "open_group(url) opens a group, create_group(url, ...) makes one"

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
    def attrs(self) -> Attributes:
        """The user's attributes, as a mapping that writes: ``group.attrs["title"] = "run 7"``."""
        return Attributes(self)

    @attrs.setter
    def attrs(self, attributes: Mapping[str, Any]) -> None:
        self.attrs.put(attributes)

    @property
    def attributes(self) -> dict[str, Any]:
        """The user's attributes, as a copy that raises on assignment; `attrs` changes them."""
        found: dict[str, Any] = fixed(self.meta.attributes)
        return found

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

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, path: str) -> Array | Group:
        """Return the node at a path below this group.

        Raises
        ------
        NodeKeyError
            If there is none.
        NodeNameError
            If `path` is no path; a `KeyError`, too.
        TypeError
            If `path` is an index of elements.
        """
        try:
            return self._node_at(join(self.path, _node_name(path)))
        except StoreKeyError as error:
            raise NodeNameError(f"{path!r} names no node of {self.where}: {error}") from None
        except NodeNotFoundError as error:
            beside = _names_beside(self.store, self.path, _node_name(path))
            hint = f"{error.hint} {beside}".strip()
            raise NodeKeyError(f"{self.where}/{path}", error.looked_for, hint) from None

    def _node_at(self, below: str) -> Array | Group:
        from zarr_dask.journal import explain_incomplete

        store = self.store
        try:
            meta = read_as(store, below, self.node_format, self.options)
        except NodeNotFoundError as error:
            if not isinstance(store, Consolidated):
                raise explain_incomplete(error, store, below) from None
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

    def __len__(self) -> int:
        return len(self._metas(recursive=False))

    def __contains__(self, path: object) -> bool:
        """True if there is a node at a path, even one whose metadata cannot be read."""
        if not isinstance(path, str):
            return False
        try:
            self._node_at(join(self.path, _node_name(path)))
        except (NodeNotFoundError, StoreKeyError):
            return False
        except MetadataError:
            return True
        return True

    def __setitem__(self, path: str, value: Any) -> None:
        """Create an array of values: a NumPy array, a scalar, or nested lists.

        Raises
        ------
        NodeExistsError
            If there is a node already; ``group[path][...] = value`` writes into an array.
        TypeError
            If `value` is a dask array or a node, which are written by other functions.
        """
        try:
            self.create_array(path, data=value)
        except NodeExistsError as error:
            raise NodeExistsError(
                f"{self.where}/{path} exists already and was left as it is. group[{path!r}][...] = "
                f"values writes into an array, del group[{path!r}] makes room for another one."
            ) from error

    def __delitem__(self, path: str) -> None:
        """Delete the node at a path below this group, and everything below it."""
        try:
            self.delete(path)
        except NodeNotFoundError as error:
            raise NodeKeyError(error.where, error.looked_for, error.hint) from None

    def items(self) -> ItemsView[str, Array | Group]:
        """Return name and node of everything directly below, read together."""
        return _Items(self)

    def values(self) -> ValuesView[Array | Group]:
        """Return all nodes directly below, read together."""
        return _Values(self)

    def _ipython_key_completions_(self) -> list[str]:
        """Return the names that a notebook offers after ``group["``."""
        return list(self._metas(recursive=False))

    @property
    def info(self) -> Tree:
        """Facts about the group as a text, which a notebook shows as a table."""
        return facts_text(f"zarr_dask.Group {self.where}", self._facts())

    if not TYPE_CHECKING:  # a type checker knows which attributes there are

        def __getattr__(self, name: str) -> NoReturn:
            node = f" Nodes are found by key: group[{name!r}]."
            no_attribute("Group", name, _GROUP_HINTS, dir(type(self)), node)

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
        check_bools(recursive=recursive)
        for path, meta in self._metas(recursive).items():
            if isinstance(meta, MetadataError):
                yield path, meta
            else:
                below = join(self.path, path)
                yield path, _node(self.store, below, meta, self.node_format, self.options)

    def _metas(self, recursive: bool) -> dict[str, NodeOrError]:
        asked = self.path, self.node_format, self.options
        try:
            return walk(self.store, *asked, recursive=recursive)
        except ListingError:
            known = consolidated_above(self.store, *asked)
            if known is None:
                raise
            return walk(known, *asked, recursive=recursive)

    def listed(self) -> list[tuple[str, NodeOrError]]:
        """Return names and metadata directly below; nothing where the store cannot tell."""
        try:
            return list(self._metas(recursive=False).items())
        except StoreError:
            return []

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

    @takes_habits()
    def tree(self, level: int | None = None) -> Tree:
        """Return the hierarchy below, one node a line; nodes with unreadable metadata are marked.

        Parameters
        ----------
        level
            Depth to which nodes are shown, 1 for those directly below; by default all of them.

        Returns
        -------
        Tree
            A text that notebooks show as nested lists.
        """
        from zarr_dask._util.display import render_tree

        check_count("level", level, "all of them")
        name = self.path.rsplit("/", 1)[-1] or "/"
        shown = {
            path: _summary(meta)
            for path, meta in self._metas(level != 1).items()
            if level is None or path.count("/") < level
        }
        return render_tree(name, shown)

    def _repr_html_(self) -> str:
        from zarr_dask._util.display import html_table

        return html_table(f"zarr_dask.Group {self.where}", self._facts())

    def _facts(self) -> dict[str, object]:
        return {"format": self.format, "attributes": ", ".join(self.attributes) or "none"}

    @takes_habits(_NEW_ARRAY, name="path", **_OF_NEW)
    def create_array(self, path: str, **options: Unpack[CreateOptions]) -> Array:
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

    @takes_habits(name="path", attrs="attributes")
    def create_group(
        self,
        path: str,
        *,
        attributes: Mapping[str, Any] | None = None,
        overwrite: bool = False,
    ) -> Group:
        """Create a group below this group, in its format.

        Parameters
        ----------
        path
            Path below this group.
        attributes
            JSON values by name.
        overwrite
            Replace an existing node, including all nodes below it.
        """
        below = join(self.path, normalise_path(path))
        return create_group(
            self.store, below, format=self.format, attributes=attributes, overwrite=overwrite
        )

    @takes_habits(name="path")
    def require_group(self, path: str) -> Group:
        """Return the group at a path below this group; create it if there is none.

        Raises
        ------
        NodeTypeError
            If there is an array.
        """
        return open_group(self, path, "a")

    @takes_habits(_NEW_ARRAY, name="path", **_OF_NEW)
    def require_array(self, path: str, **options: Unpack[CreateOptions]) -> Array:
        """Return the array at a path below this group; create it if there is none.

        Raises
        ------
        NodeTypeError
            If there is a group.
        NodeExistsError
            If there is an array of another shape or data type.
        """
        return open_array(self, path, "a", **options)

    def array_keys(self) -> list[str]:
        """Return the names of the arrays directly below."""
        return [name for name, _ in self.arrays()]

    def group_keys(self) -> list[str]:
        """Return the names of the groups directly below."""
        return [name for name, _ in self.groups()]

    def members(self, max_depth: int | None = 0) -> tuple[tuple[str, Array | Group], ...]:
        """Return path and node of everything below, `max_depth` groups down; None for all."""
        found = self._nodes(recursive=max_depth != 0)
        most = float("inf") if max_depth is None else max_depth
        return tuple((path, node) for path, node in found if path.count("/") <= most)

    def delete(self, path: str) -> None:
        """Delete the node at a path below this group, and everything below it.

        Raises
        ------
        NodeNotFoundError
            If there is none.
        ReadOnlyError
            If the group was opened for reading.
        """
        from zarr_dask.hierarchy.edit import delete_node

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
        from zarr_dask.hierarchy.edit import rename_node

        return rename_node(self.store, self._below(old), self._below(new), lambda: self[new])

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
        from zarr_dask.hierarchy.edit import stale_paths

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
        """Add or replace attributes in the store; as ``attrs.update``. Returns the group itself."""
        from zarr_dask.formats.concurrent_edit import with_attributes

        meta = with_attributes(
            self.store, self.path, self.node_format, self.meta, attributes, self.options
        )
        self.follow(meta)
        return self

    def follow(self, meta: GroupMeta) -> None:
        """Take the attributes from metadata that were changed."""
        self.__dict__["meta"] = replace(self.meta, attributes=meta.attributes, implicit=False)


class _Items(ItemsView[str, "Array | Group"]):
    """Names and nodes directly below a group, whose metadata are read together."""

    _mapping: Group

    def __iter__(self) -> Iterator[tuple[str, Array | Group]]:
        return self._mapping.children()


class _Values(ValuesView["Array | Group"]):
    """Nodes directly below a group, whose metadata are read together."""

    _mapping: Group

    def __iter__(self) -> Iterator[Array | Group]:
        return (node for _, node in self._mapping.children())


_MOST_NAMED = 10
"""Names of nodes that an error lists at most."""
_GROUP_HINTS = {
    "create_dataset_like": "zarr_dask.zeros_like(other, group, path='name') creates one like it.",
    "create_virtual_dataset": "zarr_dask.reference(files, url) refers to files as they are.",
    "create_dataset": "group.create_array(name, shape=..., dtype=...) creates an array.",
    "require_dataset": "group.require_array(name, shape=..., dtype=...) opens or creates one.",
    "create": "group.create_array and group.create_group create nodes.",
    "array": "group.create_array(name, data=values) creates an array of values.",
    **dict.fromkeys(
        ("empty", "full", "ones", "zeros"),
        "group.create_array(name, shape=..., dtype=..., fill_value=...) creates an array.",
    ),
    **dict.fromkeys(
        ("empty_like", "full_like", "ones_like", "zeros_like"),
        "zarr_dask.zeros_like(other, group, path='name') creates an array like another one.",
    ),
    **dict.fromkeys(
        ("array_values", "get_array", "group_values"),
        "group.arrays() and group.groups() yield names and nodes, group['name'] opens one.",
    ),
    **dict.fromkeys(("get_group",), "group['name'] opens a node in it."),
    **dict.fromkeys(
        (
            "driver",
            "filename",
            "id",
            "in_memory",
            "libver",
            "mode",
            "ref",
            "regionref",
            "store_path",
            "swmr_mode",
        ),
        "group.url is its location, group.store the store; zarr_dask.open(url, mode='r+') writes.",
    ),
    "build_virtual_dataset": "zarr_dask.reference(files, url) refers to files as they are.",
    "from_store": "zarr_dask.open_group(store) opens a group.",
    "info_complete": "group.info has the facts; zarr_dask.inventory(group) measures objects.",
    "metadata": "group.attrs has the attributes, group.format the format.",
    "require_groups": "[group.require_group(name) for name in names] opens or creates several.",
    "synchronizer": "Every stored object has one writer, so that no lock is needed.",
    "consolidate": "zarr_dask.consolidate(group) writes consolidated metadata.",
    "filter": "[name for name in group if ...] selects nodes.",
    "nbytes": "It is a group, not an array: group['name'] is a node in it.",
    **dict.fromkeys(("open", "open_array", "open_group"), "group['name'] opens a node in it."),
    "create_groups": "[group.create_group(name) for name in names] creates several.",
    "create_hierarchy": "group.create_group and group.create_array create nodes.",
    "read_only": "zarr_dask.open(url, mode='r') opens for reading only.",
    "root": "zarr_dask.open_group opens it by its own path.",
    **dict.fromkeys(
        ("to_dataset", "to_xarray"), "zarr_dask.open_dataset(group) gives an xarray.Dataset."
    ),
    "to_datatree": "zarr_dask.open_datatree(group) gives an xarray.DataTree.",
    "copy": "zarr_dask.copy(group['name'], group, path='new name') copies a node.",
    "parent": "zarr_dask.open_group opens it by its own path.",
    "file": "group.store is the store, group.url the place.",
    "move": "group.rename(old, new) moves a node.",
    **dict.fromkeys(
        ("visit", "visit_links", "visititems", "visititems_links"),
        "group.walk() yields everything below.",
    ),
    "nmembers": "len(group) counts the nodes directly below.",
    "dims": "zarr_dask.open_dataset(group) gives an xarray.Dataset.",
    "data_vars": "zarr_dask.open_dataset(group) gives an xarray.Dataset.",
    "shape": "It is a group, not an array: group['name'] is a node in it.",
    "dtype": "It is a group, not an array: group['name'] is a node in it.",
    "to_dask": "It is a group, not an array: group['name'].to_dask() reads an array in it.",
    "flush": "Every write is stored when it returns.",
}


def _node_name(path: object) -> str:
    """Return a path below a group.

    Raises
    ------
    TypeError
        If it is an index of elements.
    StoreKeyError
        If it is no path of a node.
    """
    if isinstance(path, slice | tuple | type(Ellipsis) | list):
        raise TypeError(
            f"a group is indexed by names of nodes, not by {path!r}: group['name'][...] reads the "
            "elements of an array in it."
        )
    if not isinstance(path, str):
        raise StoreKeyError(f"got {path!r}, expected a text.")
    return normalise_path(path)


def _summary(meta: NodeOrError) -> tuple[str, str]:
    """Return the separator after the name of a node, and its description, for a tree."""
    if isinstance(meta, MetadataError):
        return "  ", f"cannot be read: {'; '.join(map(str, meta.problems))}"
    if isinstance(meta, GroupMeta):
        return "/", ""
    return "  ", f"{meta.shape} {meta.data_type.label}, chunks {meta.grids}"


# --- opening --------------------------------------------------------------------------------------


@in_foreground()
@takes_habits(
    _NEW_ARRAY,
    group="path",
    **_HABITS,
    **_OF_NEW,
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
    if mode not in ("r", "r+", "a", "w", "w-"):  # a set would fail for unhashable values
        hint = " Use 'w-'." if str(mode) == "x" else ""
        raise ValueError(f"mode={mode!r}: expected 'r', 'r+', 'a', 'w' or 'w-'.{hint}")
    if mode in ("r", "r+") and options:
        raise TypeError(
            f"{sorted(options)} are for a new node; mode={mode!r} opens one that exists. Give "
            "mode='a', 'w' or 'w-' to create it, or use create_array."
        )
    if mode in ("w", "w-"):
        return _created(url, path, mode, format, storage_options, options)
    try:
        node = _opened(url, path, mode, format, storage_options, read)
    except NodeNotFoundError:
        if mode != "a":
            raise
        return _created(url, path, mode, format, storage_options, options)
    _check_is_such(node, options)
    return node


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


def _check_is_such(node: Array | Group, options: CreateOptions) -> None:
    """Refuse an array of another shape or data type than is asked for.

    Raises
    ------
    NodeExistsError
        If it is such an array.
    NodeTypeError
        If it is a group.
    """
    if "shape" not in options and "dtype" not in options and "data" not in options:
        return
    from zarr_dask.array.create import ArraySpec, array_meta, given_shape

    if not isinstance(node, Array):
        raise NodeTypeError(f"{node.where} is a group; shape=, dtype= and data= are of an array.")
    values = options.get("data")
    if values is not None:
        raise NodeExistsError(
            f"{node.where} exists already and was left as it is: open it without data= and write "
            "by array[...] = values, or pass mode='w' to replace it."
        )
    shape = given_shape(options.get("shape", node.shape))
    wanted = ArraySpec(shape=shape, dtype=options.get("dtype", node.meta.data_type))
    dtype = array_meta(wanted, node.where).dtype
    if (shape, dtype) != (node.shape, node.dtype):
        raise NodeExistsError(
            f"{node.where} exists already, with shape {node.shape} of {node.dtype}, not {shape} of "
            f"{dtype}; it was left as it is. Open it without shape= and dtype=, or pass mode='w' "
            "to replace it."
        )


def _opened(
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

        error = _of_a_file(explain_incomplete(error, store, path), store)
        if not path or (is_remote(store) and path not in get_args(Mode)):
            raise error from None  # looking for other names would double the requests
        hint = f"{error.hint} {_names_beside(store, '', path)}".strip()
        raise NodeNotFoundError(error.where, error.looked_for, hint) from None
    if consolidated:
        store = with_consolidated(store, path, node_format, meta, options, found)
    return _node(store, path, meta, node_format, options)


def _names_beside(store: Store, path: str, below: str) -> str:
    """Return a hint with the names that there are beside a node that is missing below a group."""
    if below in get_args(Mode) and not path:
        return f"{below!r} was taken as the path of a node: a mode is given as mode={below!r}."
    above, _, name = below.rpartition("/")
    around = join(path, above)
    try:
        groups = [one for one, meta in formats_at(store, around) if isinstance(meta, GroupMeta)]
        names = groups[0].child_names(store, around) if groups else []
    except ZarrDaskError:
        return ""
    if not names:
        return ""
    shown = ", ".join(map(repr, names[:_MOST_NAMED]))
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{above or 'The group'} has {shown}{more}.{did_you_mean(name, names)}"


def _of_a_file(error: NodeNotFoundError, store: Store) -> NodeNotFoundError:
    """Return the error, with a hint if the given location seems to be a file, not a folder."""
    place = unwrap(store)
    remote = "::" not in place.url and "://" in place.url
    root = local_path(place, "")
    if root is not None and Path(root).is_file():
        hint = f"{root} is a file, and no zip archive."
        hint = _of_kind(root) or hint
        if any(Path(root).name in known.node_keys("") for known in FORMATS):
            hint = f"{root} is the metadata of a node: open {Path(root).parent}."
        elif root.endswith(".json"):
            hint += f" References (kerchunk) are read as 'reference::{root}'."
    elif remote and place.url.lower().endswith((".zip", ".ozx")):
        hint = f"An archive is read as 'zip::{place.url}'."
    elif remote and place.url.endswith(".json"):
        hint = f"References (kerchunk) are read as 'reference::{place.url}'."
    elif root is not None and not Path(root).exists():
        above, name = Path(root).parent, Path(root).name
        names = [one.name for one in above.iterdir()] if above.is_dir() else []
        by_stem = {one.removesuffix(".zarr"): one for one in names}
        meant = closest(name.removesuffix(".zarr"), by_stem)
        hint = "There is no such folder." + (f" Did you mean {by_stem[meant]!r}?" if meant else "")
        hint = _of_other_spelling(root) or hint
        hint += " zarr_dask.create_array and create_group make nodes."
    else:
        return error
    return NodeNotFoundError(error.where, error.looked_for, f"{error.hint} {hint}".lstrip())


def _of_other_spelling(path: str) -> str:
    """Return a hint for a location spelled as other programs have it; empty for all others."""
    if found := re.match(r".*/(https?)[:/]+(.+)", path):
        return f"A URL has '://', as in {f'{found[1]}://{found[2]}'!r}."
    for mark in ("/|", "::", "#", "|", ":"):
        above, cut, name = path.partition(mark)
        if cut and Path(above).exists():
            below = "" if "|" in mark else f", path={name!r}"
            return f"A node is named by its path: open({above!r}{below})."
    return ""


_KINDS = (
    ((b"\x89HDF\r\n\x1a\n", b"CDF\x01", b"CDF\x02", b"CDF\x05", b"GRIB"), "a NetCDF, HDF5 or GRIB"),
    ((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"), "a TIFF"),
)
"""First bytes of files of other formats."""


def _of_kind(path: str) -> str:
    """Return a hint for a file of another format; empty if its first bytes are unknown."""
    with suppress(OSError), Path(path).open("rb") as file:
        start = file.read(8)
        for begins, kind in _KINDS:
            if start.startswith(begins):
                way = (
                    "tifffile reads it, and zarr_dask.ome.write writes its pixels"
                    if kind == "a TIFF"
                    else "zarr_dask.ingest writes it, or many of its kind, into a store; "
                    "xarray.open_dataset opens it as it is"
                )
                return f"{path} is {kind} file: {way}."
    return ""


def _node(
    store: Store, path: str, meta: NodeMeta, node_format: Format, options: ReadOptions
) -> Array | Group:
    if isinstance(meta, ArrayMeta):
        shown = Shown(consolidating_path(store, path))
        store = without_consolidated(store)
        if options.consistent is True:
            from zarr_dask.array.object_versions import pinned

            options = pinned(store, path, node_format.data_prefix(path), meta, options)
        array = Array(store, path, meta, node_format, options, shown)
        opened(array)
        return array
    group = Group(store, path, meta, node_format, options)
    opened(group)
    return group


@takes_habits(_NEW_ARRAY, **_HABITS, **_OF_NEW)
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
    if mode not in {"r", "r+"} and not {"shape", "data"} & options.keys():
        if mode != "a":
            raise TypeError("a new array needs shape= (and dtype=), or data=.")
        node = _opened(url, path, mode, format, storage_options, read)
    else:
        node = open(url, path, mode, format, storage_options, read, **options)
    if not isinstance(node, Array):
        names = [name for name, meta in node.listed() if isinstance(meta, ArrayMeta)]
        said = f": {', '.join(names[:_MOST_NAMED])}" if names else ""
        raise NodeTypeError(
            f"{node.where} is a group, not an array; open_group opens it, and path= names an "
            f"array in it{said}."
        )
    return node


@takes_habits(attrs="attributes", **_HABITS)
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
    if not isinstance(node, Group):
        raise NodeTypeError(f"{node.where} is an array, not a group; open_array opens it.")
    return node


# --- creating -------------------------------------------------------------------------------------


@takes_habits(**_HABITS, **_OF_NEW)
def create_array(
    url: Location | Array | Group,
    path: str = "",
    *,
    shape: Any = None,
    dtype: Any = None,
    data: Any = None,
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
    """Create an array: its metadata and those of the groups above, and its values with `data`.

    Parameters
    ----------
    url, path
        Location: a path, a URL, a store, a mapping, or a node that is open for writing, of this
        package or of zarr-python; and the path below it.
    shape
        Elements along each dimension; may be left out with `data`.
    dtype
        Data type, which may be left out with `data`: anything that NumPy accepts (numbers,
        ``"U8"``, ``"S8"``, ``"V8"``, ``"M8[ns]"``, records), ``str`` or ``bytes`` for texts or byte
        strings of any length, a type of ml_dtypes, or the name or JSON object of a data type of
        Zarr v3 (``"string"``, ``"bfloat16"``, ``"r24"``). The byte order of a NumPy type is that of
        the stored bytes.
    data
        Values of the array: a NumPy array, a scalar or nested lists. They are written before the
        metadata, so that no reader sees half of them. `to_zarr` writes dask arrays.
    chunks
        Shape of a chunk, the unit of decoding: a length for all dimensions, for each, or for some
        by name or position, -1 for a whole dimension; False for one chunk, a size such as
        ``"10MB"``, or ``"auto"`` for near-cubic chunks of about 4 MiB, or 1 MiB within shards.
        ``(10, "auto")`` chooses one length so, ``{"time": "10MB"}`` one that makes the whole chunk
        of this size, and None is a whole dimension, as in dask. For v3,
        the sizes of all chunks along a dimension may be given instead of one length, as in
        dask: ``((31, 28, 31), 100)``. This makes a ``rectilinear`` grid, which few readers support,
        unless all sizes are equal except for a smaller last one.
    shards
        Shape of a stored object that holds several chunks; a multiple of the chunk shape, in the
        same forms. ``"auto"`` for about 64 MiB, or a size such as ``"256MB"``. None or False to
        store each chunk as an object of its own.
    codecs
        For v3 a list of codecs (names, objects with ``name`` and ``configuration``, codecs of
        `zarr_dask.codecs`, of zarr-python or of numcodecs), or one of them; inside shards if
        `shards` is given; a missing ``bytes`` codec is added. For v2 a list of numcodecs
        configurations, the compressor last; for v1 only the compressor (one of blosc, zlib, bz2,
        lzma). For the drafts either form, if they have the codecs. By default blosc (zstd, level 1,
        shuffled), or zstd for elements of one byte or of variable length, and crc32c for v3.
    fill_value
        Value of elements that are not written; None (v1 and v2) leaves it undefined. 0 is the zero
        of any data type: an empty text, a record of zeros.
    dimension_names
        A name or None per dimension.
    attributes
        JSON values by name.
    format
        ``"v3"``, ``"v2"``, ``"v1"`` (or 3, 2, 1), or the v3 draft of 2022: ``"v3draft"``, or
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
    >>> zd.create_array({}, data=[[1, 2], [3, 4]], dimension_names=["y", "x"])[1]
    array([3, 4])
    """
    from zarr_dask.array.create import ArraySpec, given_values, shape_of_values

    check_bools(overwrite=overwrite)
    values = None
    if data is not None:
        values, found = given_values(data)
        shape, dtype = shape_of_values(values, shape), found if dtype is None else dtype
    elif shape is None or dtype is None:
        missing = "shape=" if shape is None else "dtype="
        raise TypeError(f"create_array() needs {missing}, or data= with values.")
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
    store, path = resolve_node(url, path, storage_options)
    with looking_once() if values is None else nullcontext():
        return _create_array(store, path, spec, values, overwrite=overwrite)


def _create_array(
    store: Store, path: str, spec: ArraySpec, values: np.ndarray | None, *, overwrite: bool
) -> Array:
    from zarr_dask.array.create import array_meta
    from zarr_dask.hierarchy.edit import (
        check_can_create,
        make_room_for_array,
        put_new_node,
        puts_metadata_first,
        rollback_metadata,
    )
    from zarr_dask.hierarchy.exclusive import creating

    def planned(site: PrefetchedLocation) -> tuple[Array, Mapping[str, bytes]]:
        node_format = format_for_new(store, spec.format or parent_format(site.store, path), path)
        meta = array_meta(replace(spec, format=node_format.name), where(store, path))
        documents = node_format.documents(meta, path)
        array = Array(store, path, meta, node_format)
        if values is not None:
            array.cast(values)  # refuses what it cannot hold
        return array, documents

    def check(site: PrefetchedLocation) -> None:
        check_can_create(site.store, path, planned(site)[0].node_format, overwrite=overwrite)

    with creating(store, path, check) as (site, claim):
        array, documents = planned(site)
        meta, node_format = array.meta, array.node_format
        make_room_for_array(
            store,
            path,
            node_format,
            meta,
            overwrite=overwrite,
            site=site,
            is_claimed=claim is not None,
        )
        if values is not None:
            try:
                _fill(array, values, claim)
            except ZarrDaskError:
                rollback_metadata(store, path)
                raise
        put_new_node(store, path, documents, again=puts_metadata_first(store), claim=claim)
    array = replace(array, shown=Shown(path))
    opened(array)
    return array


def _fill(array: Array, values: np.ndarray, claim: NodeClaim | None) -> None:
    """Write the values of a new array, which have its shape, or are one value for all."""
    from zarr_dask.array.writer import write_parts

    grid, whole = array.meta.grid, checked_region(None, array.shape)
    elements = np.broadcast_to(array.cast(values), array.shape)
    fence = None if claim is None else claim.fence
    write_parts(array, lambda: grid.parts(whole), elements, None, fence=fence)


@takes_habits(attrs="attributes", **_HABITS)
@explained_by(create_array)
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
    from zarr_dask.hierarchy.edit import make_room_for_node, put_new_node, puts_metadata_first

    check_bools(overwrite=overwrite)
    store, path = resolve_node(url, path, storage_options)
    given = checked_attributes({} if attributes is None else attributes, where(store, path))
    meta = GroupMeta(given)

    def planned(site: PrefetchedLocation) -> tuple[Format, Mapping[str, bytes]]:
        node_format = format_for_new(store, format or parent_format(site.store, path), path)
        return node_format, node_format.documents(meta, path)

    with _creating_group(store, path, planned, overwrite=overwrite) as (site, claim):
        node_format, documents = planned(site)
        make_room_for_node(store, path, node_format, overwrite=overwrite, is_group=True, site=site)
        put_new_node(store, path, documents, again=puts_metadata_first(store), claim=claim)
    group = Group(store, path, meta, node_format)
    opened(group)
    return group


@contextmanager
def _creating_group(
    store: Store, path: str, check: Callable[[PrefetchedLocation], object], *, overwrite: bool
) -> Iterator[tuple[PrefetchedLocation, NodeClaim | None]]:
    """As `creating`, without a claim to a group that replaces nothing: its document is enough."""
    from zarr_dask.hierarchy.exclusive import creating

    if overwrite:
        with creating(store, path, check) as claimed:
            yield claimed
    else:
        yield prefetch_location(store, path, below=False), None


@takes_habits(component="path", name="path")
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
    from zarr_dask.hierarchy.edit import delete_node

    delete_node(*resolve_node(url, path, storage_options))


@takes_habits(component="path", name="path")
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
    from zarr_dask.hierarchy.edit import consolidate_group

    store, path = resolve_node(url, path, storage_options)
    group = open_group(store, path, "r+")
    consolidate_group(store, path, group.node_format)
    return open_group(store, path)
