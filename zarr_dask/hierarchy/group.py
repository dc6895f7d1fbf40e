"""Groups: mappings of the nodes below them, opened and created."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, MutableMapping, ValuesView
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NoReturn, Unpack

from zarr_dask._util.arguments import check_bools, check_count
from zarr_dask._util.keywords import explained_by, takes_habits
from zarr_dask._util.lazy_names import hides
from zarr_dask._util.warnings import warn
from zarr_dask.array.array import Array
from zarr_dask.array.attributes import Attributes, fixed
from zarr_dask.array.common_names import NodeNames, assigns_attrs, facts_text, no_attribute
from zarr_dask.array.create_options import (
    NEW_ARRAY,
    NEW_ARRAY_HABITS,
    OPEN_HABITS,
    CreateOptions,
    takes_codec_steps,
)
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
)
from zarr_dask.formats.base import (
    ArrayMeta,
    Format,
    GroupMeta,
    NodeMeta,
    ReadOptions,
    normalise_path,
    where,
)
from zarr_dask.formats.consolidated import Consolidated, consolidating_path, without_consolidated
from zarr_dask.formats.detect import read_node
from zarr_dask.formats.handles import opened
from zarr_dask.hierarchy.absent_node import MOST_NAMED, names_beside
from zarr_dask.hierarchy.create_node import check_is_such, create_array, put_group
from zarr_dask.hierarchy.locate import Node, resolve_node
from zarr_dask.hierarchy.walk import NodeOrError, consolidated_above, read_as, walk
from zarr_dask.stores.base import Store, join
from zarr_dask.stores.open import Location

if TYPE_CHECKING:
    from zarr_dask._util.display import Tree

__all__ = ["Group", "as_array", "as_group", "create_group", "node_below", "node_of"]


@hides("follow", "listed", "where")
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
            return node_below(self, path)
        except StoreKeyError as error:
            raise NodeNameError(f"{path!r} names no node of {self.where}: {error}") from None
        except NodeNotFoundError as error:
            beside = names_beside(self.store, self.path, _node_name(path))
            hint = f"{error.hint} {beside}".strip()
            raise NodeKeyError(f"{self.where}/{path}", error.looked_for, hint) from None

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:
        raise TypeError(  # NumPy would make an array of the names
            f"{self.where} is a group, which has no values: group[name][...] reads those of an "
            "array in it."
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._metas(recursive=False))

    def __len__(self) -> int:
        return len(self._metas(recursive=False))

    def __contains__(self, path: object) -> bool:
        """True if there is a node at a path, even one whose metadata cannot be read."""
        if not isinstance(path, str):
            return False
        try:
            node_below(self, path)
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
        return _NodeItems(self)

    def values(self) -> ValuesView[Array | Group]:
        """Return all nodes directly below, read together."""
        return _NodeValues(self)

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

    @takes_habits()
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
                yield path, node_of(self.store, below, meta, self.node_format, self.options)

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

    @takes_habits()
    def arrays(self, recursive: bool = False) -> Iterator[tuple[str, Array]]:
        """Yield path and node of every array directly below, or at any depth if `recursive`."""
        for path, node in self._nodes(recursive):
            if isinstance(node, Array):
                yield path, node

    @takes_habits()
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

    @takes_codec_steps
    @takes_habits(NEW_ARRAY, name="path", **NEW_ARRAY_HABITS)
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
        node = self._if_there(path)
        return self.create_group(path) if node is None else as_group(node)

    @takes_codec_steps
    @takes_habits(NEW_ARRAY, name="path", **NEW_ARRAY_HABITS)
    def require_array(self, path: str, **options: Unpack[CreateOptions]) -> Array:
        """Return the array at a path below this group; create it if there is none.

        Raises
        ------
        NodeTypeError
            If there is a group.
        NodeExistsError
            If there is an array of another shape or data type.
        """
        node = self._if_there(path)
        if node is None:
            return self.create_array(path, **options)
        array = as_array(node)
        check_is_such(array, options)
        return array

    def _if_there(self, path: str) -> Array | Group | None:
        try:
            return self[path]
        except NodeKeyError:
            return None

    def array_keys(self) -> list[str]:
        """Return the names of the arrays directly below."""
        return [name for name, _ in self.arrays()]

    def group_keys(self) -> list[str]:
        """Return the names of the groups directly below."""
        return [name for name, _ in self.groups()]

    @takes_habits()
    def members(self, max_depth: int | None = 0) -> tuple[tuple[str, Array | Group], ...]:
        """Return path and node of everything below, `max_depth` groups down; None for all."""
        found = self._nodes(recursive=max_depth != 0)
        most = float("inf") if max_depth is None else max_depth
        return tuple((path, node) for path, node in found if path.count("/") <= most)

    @takes_habits(name="path")
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

    @takes_habits(source="old", dest="new")
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

        return rename_node(
            self.store, self._below(old), self._below(new), lambda: self._renamed(new)
        )

    def _renamed(self, path: str) -> Array | Group:
        """Return a node that has just got this path, in the format that it has by now.

        A migration may have removed its metadata of the group's format.
        """
        try:
            return self[path]
        except NodeKeyError:
            store, below = without_consolidated(self.store), self._below(path)
            node_format, meta = read_node(store, below, None, self.options)
            return node_of(store, below, meta, node_format, self.options)

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

    @takes_habits(new_attributes="attributes")
    def update_attributes(self, attributes: Mapping[str, Any]) -> Group:
        """Add or replace attributes in the store; as ``attrs.update``. Returns the group itself."""
        from zarr_dask.formats.concurrent_edit import with_attributes

        meta = with_attributes(
            self.store,
            self.path,
            self.node_format,
            self.meta,
            attributes,
            self.options,
            lambda now: self.meta.implicit or not now.implicit,
        )
        self.follow(meta)
        return self

    def follow(self, meta: GroupMeta) -> None:
        """Take the attributes from metadata that were changed."""
        self.__dict__["meta"] = replace(self.meta, attributes=meta.attributes, implicit=False)


class _NodeItems(ItemsView[str, "Array | Group"]):
    """Names and nodes directly below a group, whose metadata are read together."""

    _mapping: Group

    def __iter__(self) -> Iterator[tuple[str, Array | Group]]:
        return self._mapping.children()


class _NodeValues(ValuesView["Array | Group"]):
    """Nodes directly below a group, whose metadata are read together."""

    _mapping: Group

    def __iter__(self) -> Iterator[Array | Group]:
        return (node for _, node in self._mapping.children())


_GROUP_HINTS = {
    **dict.fromkeys(
        ("groupby", "resample", "rolling"),
        "zarr_dask.open_dataset(url) is a dataset of xarray, which has it.",
    ),
    **dict.fromkeys(("delitem", "getitem"), "group[name] is a node, del group[name] deletes one."),
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
    **dict.fromkeys(
        ("to_dask_dataframe", "to_dataframe", "to_pandas"),
        "zarr_dask.open_dataset(group).to_dataframe() makes one.",
    ),
    "from_array": "group.create_array(name, data=values) creates an array of values.",
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


def node_below(group: Group, path: str) -> Array | Group:
    """Return the node at a path below a group; where there is none, nothing else is looked for.

    Raises
    ------
    NodeNotFoundError
        If there is none.
    StoreKeyError
        If `path` is no path.
    """
    from zarr_dask.journal import explain_incomplete

    store, below = group.store, join(group.path, _node_name(path))
    try:
        meta = read_as(store, below, group.node_format, group.options)
    except NodeNotFoundError as error:
        if not isinstance(store, Consolidated):
            raise explain_incomplete(error, store, below) from None
        meta = read_as(without_consolidated(store), below, group.node_format, group.options)
        store = without_consolidated(store)
        warn(
            f"{where(store, below)} is not in the consolidated metadata of the group that was "
            "opened: they are out of date. zarr_dask.consolidate writes them anew.",
            ConsolidatedMetadataWarning,
        )
    return node_of(store, below, meta, group.node_format, group.options)


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


def node_of(
    store: Store, path: str, meta: NodeMeta, node_format: Format, options: ReadOptions
) -> Array | Group:
    """Return the array or the group that metadata describe."""
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


def as_array(node: Array | Group) -> Array:
    """Return a node that must be an array.

    Raises
    ------
    NodeTypeError
        If it is a group.
    """
    if not isinstance(node, Array):
        names = [name for name, meta in node.listed() if isinstance(meta, ArrayMeta)]
        said = f": {', '.join(names[:MOST_NAMED])}" if names else ""
        raise NodeTypeError(
            f"{node.where} is a group, not an array; open_group opens it, and path= names an "
            f"array in it{said}."
        )
    return node


def as_group(node: Array | Group) -> Group:
    """Return a node that must be a group.

    Raises
    ------
    NodeTypeError
        If it is an array.
    """
    if not isinstance(node, Group):
        raise NodeTypeError(f"{node.where} is an array, not a group; open_array opens it.")
    return node


@takes_habits(attrs="attributes", **OPEN_HABITS)
@explained_by(create_array)
def create_group(
    url: Location | Node,
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
    from zarr_dask.stores.sessions import transaction

    found, path = resolve_node(url, path, storage_options)
    with transaction(url, found, f"create the group {path}") as store:
        meta, node_format = put_group(store, path, attributes, format, overwrite=overwrite)
    group = Group(store, path, meta, node_format)
    opened(group)
    return group
