"""Tables of measurements beside label images, in AnnData's layout.

The group ``tables`` of an image lists its tables. A table is one AnnData object: the matrix ``X``
of measurements, with the labels as the names of its rows. Its group also tells ngio which label
image it belongs to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from zarr_dask._util.warnings import without_warnings
from zarr_dask.errors import MetadataError, NodeExistsError, ValidationProblem
from zarr_dask.formats.base import GroupMeta, where
from zarr_dask.formats.concurrent_edit import change_attributes, write_if_absent
from zarr_dask.formats.consolidated import consolidated_groups
from zarr_dask.hierarchy.edit import consolidate_group, delete_node, write_documents
from zarr_dask.hierarchy.group import Group, create_group
from zarr_dask.stores.base import Store, join
from zarr_dask.stores.open import open_store

__all__ = ["check_table_name", "write_table"]

_INDEX = "label"
"""Name of the column of labels."""
_EMPTY = ("layers", "obsm", "obsp", "uns", "varm", "varp")
_MEMBERS = ("X", "obs", "var", *_EMPTY)
_LONGEST = 1 << 20
"""Maximum number of rows of a chunk."""


def check_table_name(group: Group, name: str, *, overwrite: bool) -> None:
    """Raise if an image cannot get a table of a name.

    Raises
    ------
    MetadataError
        If the name is not one of a node.
    NodeExistsError
        If there is something of that name, unless it is to be replaced.
    """
    at = where(group.store, join(group.path, "tables"))
    if "/" in name or name in {"", ".", ".."} or not group.node_format.is_node_name(name):
        problem = ValidationProblem("table", name, "the name of a node, without '/'")
        raise MetadataError(at, [problem])
    if not overwrite and _exists(group, name):
        raise NodeExistsError(
            f"{at}/{name} exists already; pass overwrite=True to replace it, or another table=."
        )


def write_table(
    group: Group,
    name: str,
    label: str,
    labels: np.ndarray,
    columns: Mapping[str, np.ndarray],
    *,
    overwrite: bool,
) -> None:
    """Write a table of an image; it is listed, and can be read, once it is complete.

    Parameters
    ----------
    group
        The group of the image.
    name
        Name of the table.
    label
        Name of the label image.
    labels
        Labels of the rows.
    columns
        Measurements by name.
    overwrite
        Replace a table of that name.

    Raises
    ------
    NodeExistsError
        If there is something of that name, unless it is to be replaced.
    """
    check_table_name(group, name, overwrite=overwrite)
    store, below = group.store, join(group.path, f"tables/{name}")
    with without_warnings():  # of consolidated metadata, which are written anew at the end
        _put_table(group, name, label, _members(group, labels, columns))
        for above in consolidated_groups(store, below, group.node_format):
            consolidate_group(store, above, group.node_format)


def _put_table(group: Group, name: str, label: str, made: Store) -> None:
    store, tables = group.store, join(group.path, "tables")
    write_if_absent(store, group.node_format.documents(GroupMeta({"tables": []}), tables))
    below = join(tables, name)
    if _exists(group, name):
        delete_node(store, below)
    for member in _MEMBERS:  # of a table that was not completed
        store.delete_prefix(f"{below}/{member}/")
    for key in made.list():
        if key.startswith(_MEMBERS):
            store.set(f"{below}/{key}", [made.get(key) or b""])
    write_documents(store, group.node_format.documents(GroupMeta(_attributes(label)), below))

    def listed(attributes: dict[str, Any]) -> dict[str, Any]:
        names = attributes.get("tables")
        names = names if isinstance(names, list) else []
        return attributes if name in names else attributes | {"tables": [*names, name]}

    change_attributes(store, tables, group.node_format, listed, group.options)


def _exists(group: Group, name: str) -> bool:
    """True if there is a table of a name; one that was not completed has no document."""
    keys = group.node_format.node_keys(join(group.path, f"tables/{name}"))
    return any(group.store.size(key) is not None for key in keys)


def _attributes(label: str) -> dict[str, Any]:
    return _encoding("anndata", "0.1.0") | {
        "type": "feature_table",
        "table_version": "1",
        "backend": "anndata",
        "region": {"path": f"../labels/{label}"},
        "instance_key": _INDEX,
        "index_key": _INDEX,
        "index_type": "int",
    }


def _members(group: Group, labels: np.ndarray, columns: Mapping[str, np.ndarray]) -> Store:
    """Return the members of a table as they are to be stored: all of them are small."""
    store = open_store({})
    table = create_group(store, format=group.node_format.name)
    matrix = np.stack([*columns.values()], -1)
    _put(table, "X", matrix, _encoding("array", "0.2.0"))
    _put_frame(table, "obs", _INDEX, [str(one) for one in labels.tolist()])
    _put_frame(table, "var", "name", list(columns))
    for member in _EMPTY:
        table.create_group(member, attributes=_encoding("dict", "0.1.0"))
    return store


def _encoding(name: str, version: str) -> dict[str, Any]:
    return {"encoding-type": name, "encoding-version": version}


def _put_frame(table: Group, member: str, index: str, names: Sequence[str]) -> None:
    """Write a frame that has nothing but the names of its rows."""
    told: dict[str, Any] = {"_index": index, "column-order": []}
    frame = table.create_group(member, attributes=_encoding("dataframe", "0.2.0") | told)
    values = np.array(names, dtype=object)
    _put(frame, index, values, _encoding("string-array", "0.2.0"), dtype="string")


def _put(
    group: Group, name: str, values: np.ndarray, attributes: Mapping[str, Any], **options: Any
) -> None:
    chunks = (min(max(len(values), 1), _LONGEST), *(max(n, 1) for n in values.shape[1:]))
    options = {"dtype": values.dtype} | options
    array = group.create_array(
        name, shape=values.shape, chunks=chunks, codecs="zstd", attributes=attributes, **options
    )
    if values.size:
        array[...] = values
