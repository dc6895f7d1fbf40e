"""Journals: the description of a job and the receipts of its tasks, beside the hierarchy.

This package handles only bytes and values; jobs know which objects they own and what they have left
to do. Writes, rechunkings and simulation output have the same journals.

===========  =====================================================================
`journal`    the description of a job, and the folder of its receipts
`places`     the location of a node's journals, and which of them are open
`held`       advisory locks on the jobs of running processes
`outputs`    outputs that only the ranks of a simulation may change
`half_done`  error messages about a node that a job has not finished
`believed`   a short-lived cache of results from remote stores
===========  =====================================================================
"""

from zarr_dask.journal.half_done import creating, explained
from zarr_dask.journal.held import Hold, check_none_held
from zarr_dask.journal.journal import (
    LAST,
    STAGES,
    TARGETS,
    Job,
    Journal,
    remove_empty_folders,
)
from zarr_dask.journal.outputs import (
    OUTPUT,
    OpenOutput,
    check_no_output,
    forget_nodes_above,
    output_of,
)
from zarr_dask.journal.places import (
    Place,
    check_resumable,
    default_place,
    discard_journals,
    given_place,
    is_free_beside,
    new_journal,
    open_journals,
)

__all__ = [
    "LAST",
    "OUTPUT",
    "STAGES",
    "TARGETS",
    "Hold",
    "Job",
    "Journal",
    "OpenOutput",
    "Place",
    "check_no_output",
    "check_none_held",
    "check_resumable",
    "creating",
    "default_place",
    "discard_journals",
    "explained",
    "forget_nodes_above",
    "given_place",
    "is_free_beside",
    "new_journal",
    "open_journals",
    "output_of",
    "remove_empty_folders",
]
