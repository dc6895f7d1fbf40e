"""Journals: the description of a job and the receipts of its tasks, beside the hierarchy.

This package handles only bytes and values; jobs know which objects they own and what they have left
to do. Writes, rechunkings and simulation output have the same journals.

=================  ======================================================================
`journal`          the description of a job, and the folder of its receipts
`validate_record`  validation of that description, as if a stranger wrote it
`receipts`         records of finished tasks; `manifest` keeps them after the job
`location`         locations of the journals of a node
`lock`             locks of running jobs
`claims`           claims to the end of an array, one appending job at a time
`node_claims`      claims to the location of a new node, in remote stores
`leases`           renewals of claims, by which other hosts see that a process is at work
`group_changes`    records of what is left to do when a group has become visible in part
`open_outputs`     outputs of simulations, which no other job may change
`seen_folder`      folders of arrays, to notice that one was replaced
`incomplete`       messages about a node that a job has not finished
`job_states`       jobs that have left something beside a hierarchy
`finished`         records of finished jobs
`removals`         records of removals that are under way
`swap`             replacement of an array by one that was written beside it
=================  ======================================================================
"""

from typing import TYPE_CHECKING

from zarr_dask._util.lazy_names import lazy_names

if TYPE_CHECKING:
    from zarr_dask.journal.claims import (
        ArrayEnd,
        Claim,
        EndedAppend,
        OnConflict,
        check_no_job,
        check_not_claimed,
        claimed,
        end_of_array,
        ended_append,
    )
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
    from zarr_dask.journal.node_claims import (
        NodeClaim,
        NodeClaims,
        claim_node,
        claim_nodes,
        claiming_nodes,
        end_claims_below,
        releasing,
    )
    from zarr_dask.journal.open_outputs import (
        OUTPUT,
        OpenOutput,
        check_no_output,
        forget_nodes_above,
        output_of,
    )
    from zarr_dask.journal.removals import begin_removal, end_removal, stopped_removal
    from zarr_dask.journal.seen_folder import SeenFolder, see_folder

__all__ = [
    "LAST",
    "OUTPUT",
    "STAGES",
    "TARGETS",
    "ArrayEnd",
    "Claim",
    "EndedAppend",
    "JobLock",
    "JobRecord",
    "Journal",
    "JournalLocation",
    "NodeClaim",
    "NodeClaims",
    "OnConflict",
    "OpenOutput",
    "SeenFolder",
    "StagePart",
    "begin_removal",
    "check_no_job",
    "check_no_output",
    "check_not_claimed",
    "check_not_locked",
    "check_resumable",
    "claim_node",
    "claim_nodes",
    "claimed",
    "claiming_nodes",
    "default_place",
    "discard_journals",
    "end_claims_below",
    "end_of_array",
    "end_removal",
    "ended_append",
    "explain_incomplete",
    "forget_nodes_above",
    "given_place",
    "jobs_creating",
    "new_journal",
    "no_open_journals",
    "open_journals",
    "output_of",
    "releasing",
    "remove_empty_folders",
    "see_folder",
    "stopped_removal",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "claims": (
            "ArrayEnd",
            "Claim",
            "OnConflict",
            "check_no_job",
            "check_not_claimed",
            "claimed",
            "end_of_array",
            "ended_append",
            "EndedAppend",
        ),
        "incomplete": ("explain_incomplete", "jobs_creating"),
        "journal": (
            "LAST",
            "STAGES",
            "TARGETS",
            "JobRecord",
            "Journal",
            "StagePart",
            "remove_empty_folders",
        ),
        "location": (
            "JournalLocation",
            "check_resumable",
            "default_place",
            "discard_journals",
            "given_place",
            "new_journal",
            "no_open_journals",
            "open_journals",
        ),
        "lock": ("JobLock", "check_not_locked"),
        "node_claims": (
            "NodeClaim",
            "NodeClaims",
            "claim_node",
            "claim_nodes",
            "claiming_nodes",
            "end_claims_below",
            "releasing",
        ),
        "open_outputs": (
            "OUTPUT",
            "OpenOutput",
            "check_no_output",
            "forget_nodes_above",
            "output_of",
        ),
        "removals": ("begin_removal", "end_removal", "stopped_removal"),
        "seen_folder": ("SeenFolder", "see_folder"),
    },
)
