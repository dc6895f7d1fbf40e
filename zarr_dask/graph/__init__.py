"""From an index space cut into blocks to dask, and from dask to tasks that write.

This package does not know `zarr_dask.Array`: a source is any object with ``shape``, ``dtype`` and
``__getitem__``, a target any object with the methods of `Target`. Its modules import dask at their
top, so each name here is loaded when it is first used.

====================  ===============================================================
`requirements`        requirements for dask arrays that are to be written
`normalize_chunks`    the blocks that a reader requests: ``chunks=`` in all its forms
`regions`             regions of blocks: computed on demand, small when pickled
`read`                from a source cut into blocks to a lazy dask array
`write`               from a dask array to the tasks that write it
`independent_blocks`  blocks that share no ancestor, computed or written one by one
`sharing`             credentials for the workers of a cluster, apart from the graph
`credentials_plugin`  what such a worker keeps of them
`tokens`              tokens that are the same in another process
`plain`               contents of graphs for these, without what differs between processes
====================  ===============================================================
"""

from typing import TYPE_CHECKING

from zarr_dask._util.lazy_names import lazy_names

if TYPE_CHECKING:
    from zarr_dask.graph.independent_blocks import (
        IndependentBlocks,
        IndependentWrites,
        computed_blocks,
        independent_writes,
        is_embarrassingly_parallel,
        writing_keys,
    )
    from zarr_dask.graph.normalize_chunks import (
        blocks_of_selection,
        normalize_blocks,
        splits_objects,
    )
    from zarr_dask.graph.read import (
        find_sources,
        read_after,
        read_ahead,
        read_array,
        read_per_block,
    )
    from zarr_dask.graph.regions import BlockRegions
    from zarr_dask.graph.requirements import check_backend, checked_array, map_blocks
    from zarr_dask.graph.write import Target, WriteCollection, join_writes, write_array

__all__ = [
    "BlockRegions",
    "IndependentBlocks",
    "IndependentWrites",
    "Target",
    "WriteCollection",
    "blocks_of_selection",
    "check_backend",
    "checked_array",
    "computed_blocks",
    "find_sources",
    "independent_writes",
    "is_embarrassingly_parallel",
    "join_writes",
    "map_blocks",
    "normalize_blocks",
    "read_after",
    "read_ahead",
    "read_array",
    "read_per_block",
    "splits_objects",
    "write_array",
    "writing_keys",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "independent_blocks": (
            "IndependentBlocks",
            "IndependentWrites",
            "computed_blocks",
            "independent_writes",
            "is_embarrassingly_parallel",
            "writing_keys",
        ),
        "normalize_chunks": ("blocks_of_selection", "normalize_blocks", "splits_objects"),
        "read": ("find_sources", "read_after", "read_ahead", "read_array", "read_per_block"),
        "regions": ("BlockRegions",),
        "requirements": ("check_backend", "checked_array", "map_blocks"),
        "write": ("Target", "WriteCollection", "join_writes", "write_array"),
    },
)
