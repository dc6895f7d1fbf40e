"""The comment of a zip archive that is an OME-Zarr hierarchy (RFC-9 of OME-Zarr).

It states the version of the metadata at the root, and that metadata come first in the directory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from zarr_dask.formats.base import ReadOptions
from zarr_dask.formats.v3 import V3
from zarr_dask.stores.base import Store

__all__ = ["archive_comment"]


def archive_comment(archive: Store) -> bytes:
    """Return the comment of an archive that is about to be closed; empty for other hierarchies.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> store = zd.stores.MemoryStore()
    >>> group = zd.create_group(store, attributes={"ome": {"version": "0.5"}})
    >>> archive_comment(store)
    b'{"ome": {"version": "0.5", "zipFile": {"centralDirectory": {"jsonFirst": true}}}}'
    """
    node = V3.read(archive, "", ReadOptions(), found={})
    ome = None if node is None else node.attributes.get("ome")
    version = ome.get("version") if isinstance(ome, Mapping) else None
    if not isinstance(version, str):
        return b""
    first = {"centralDirectory": {"jsonFirst": True}}
    return json.dumps({"ome": {"version": version, "zipFile": first}}).encode()
