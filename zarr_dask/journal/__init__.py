"""Journals: the description of a job and the receipts of its tasks, beside the hierarchy.

This package handles only bytes and values; jobs know which objects they own and what they have left
to do. Writes, rechunkings and simulation output have the same journals.

===========  =====================================================================
`journal`    what a job is, and the folder that it keeps its receipts in
`places`     where the journals of a node lie, and which of them are open
`held`       which jobs processes that live work on
`claims`     who appends to an array, one at a time
`outputs`    what the ranks of a simulation write, which nobody else may change
`half_done`  what is said of a node that a job makes and that is not whole yet
`believed`   what stores that are far away are not asked again for some seconds
===========  =====================================================================
"""

from zarr_dask.journal.claims import ArrayEnd, Claim, OnConflict, claimed, end_of_array
from zarr_dask.journal.incomplete import explain_incomplete, jobs_creating
from zarr_dask.journal.journal import (
    LAST,
    STAGES,
    TARGETS,
    JobRecord,
    Journal,
    StagePart,
    remove_empty_folders,
)
from zarr_dask.journal.location import (
    JournalLocation,
    check_resumable,
    default_place,
    discard_journals,
    given_place,
    new_journal,
    no_open_journals,
    open_journals,
)
from zarr_dask.journal.lock import JobLock, check_not_locked
from zarr_dask.journal.open_outputs import (
    OUTPUT,
    OpenOutput,
    check_no_output,
    forget_nodes_above,
    output_of,
)

__all__ = [
    "LAST",
    "OUTPUT",
    "STAGES",
    "TARGETS",
    "ArrayEnd",
    "Claim",
    "JobLock",
    "JobRecord",
    "Journal",
    "JournalLocation",
    "OnConflict",
    "OpenOutput",
    "StagePart",
    "check_no_output",
    "check_not_locked",
    "check_resumable",
    "claimed",
    "default_place",
    "discard_journals",
    "end_of_array",
    "explain_incomplete",
    "forget_nodes_above",
    "given_place",
    "jobs_creating",
    "new_journal",
    "no_open_journals",
    "open_journals",
    "output_of",
    "remove_empty_folders",
]
