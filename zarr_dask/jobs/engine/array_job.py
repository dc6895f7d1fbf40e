"""One array of a job: its plan, its stages, its receipts, and the runner of its tasks.

A plan has any number of arrays (`zarr_dask.jobs.engine.job`); how an array is copied is its own
business. The kinds are rechunkings and copies of stored objects as they are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Protocol

from zarr_dask.array.array import Array
from zarr_dask.errors import MetadataError, NodeNotFoundError, NodeTypeError, ResumeError
from zarr_dask.formats.documents import are_stored
from zarr_dask.hierarchy.edit import can_create, put_new_node
from zarr_dask.hierarchy.open_node import open_array
from zarr_dask.jobs.engine.plan import CopyResult, Costs, pluralize
from zarr_dask.jobs.engine.predict import CostModel
from zarr_dask.jobs.engine.thread_map import map_concurrently, transfers_for
from zarr_dask.journal import Journal
from zarr_dask.journal.receipts import Receipt, Receipts, collect
from zarr_dask.stores.put_tags import Version, versions_below

__all__ = [
    "ArrayJob",
    "ArrayPlan",
    "ArrayStage",
    "ComparedElements",
    "CopyComparison",
    "TaskFunction",
    "is_there_as_planned",
    "metadata_hash",
]


class ArrayStage(Protocol):
    """One pass over an array."""

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        ...

    @property
    def busy(self) -> int:
        """Number of tasks that have something to do."""
        ...

    @property
    def costs(self) -> Costs:
        """Costs of all tasks together."""
        ...

    @property
    def estimated(self) -> bool:
        """True if decoded bytes are estimates."""
        ...

    @property
    def requests_at_most(self) -> bool:
        """True if there may be fewer requests."""
        ...

    @property
    def threads(self) -> int:
        """Number of threads that share its only task; 1 if there are several tasks."""
        ...

    def memory(self, threads: int) -> int:
        """Return the maximum bytes that tasks on this many threads hold together."""
        ...

    def work(self, model: CostModel) -> float:
        """Return the seconds that one thread, or those of its only task, would need for all."""
        ...


class TaskFunction(Protocol):
    """Runner for the tasks of one stage of one array."""

    def copy(self, number: int, stop: Callable[[], bool] | None = None) -> CopyResult:
        """Do one task; see `zarr_dask.jobs.rechunk.copy_task.CopyStage.copy`."""
        ...


class ComparedElements(Protocol):
    """Result of comparing some elements."""

    @property
    def nbytes(self) -> int:
        """Bytes of the source that were compared."""
        ...

    @property
    def retried(self) -> int:
        """Requests that were retried."""
        ...


class CopyComparison(Protocol):
    """The comparison of a source and its target; called with the number of a task."""

    @property
    def numbers(self) -> Sequence[int]:
        """Numbers of the tasks."""
        ...

    def __call__(self, number: int) -> Any:
        """Compare some elements."""
        ...

    def check(self, results: Sequence[Any]) -> None:
        """Refuse a target that differs from the source."""
        ...


class ArrayPlan(Protocol):
    """The plan of one array."""

    @property
    def source(self) -> Array:
        """The array that is read."""
        ...

    @property
    def target(self) -> Array:
        """The target as it will be."""
        ...

    @property
    def stages(self) -> Sequence[ArrayStage]:
        """The stages in order."""
        ...

    @property
    def copy_stages(self) -> Sequence[Any]:
        """Stages that copy boxes, for plots."""
        ...

    @property
    def costs(self) -> Costs:
        """Costs of all tasks together."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes that are copied."""
        ...

    @property
    def token(self) -> str:
        """Token that is equal for plans that write the same bytes to the same location."""
        ...

    def how(self) -> str:
        """Return a short description of the changes to the array."""
        ...

    def is_finished(self) -> bool:
        """True if the target is there with the metadata of the plan."""
        ...

    def bound(self, run_id: str, journal: Journal | None) -> ArrayJob:
        """Return the job with its receipts."""
        ...

    def matching(self, threads: int) -> CopyComparison:
        """Return the comparison of source and target, for processes with this many threads."""
        ...


@dataclass(frozen=True, eq=False)
class ArrayJob(ABC):
    """The plan of one array and the receipts of its tasks."""

    plan: ArrayPlan
    run_id: str
    """Identifier that separates the output of this job from later output at its location."""
    journal: Journal | None
    """Journal with the receipts; None if there is no location for one."""

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.plan.stages)

    @abstractmethod
    def stage(self, number: int) -> TaskFunction:
        """Return a stage, bound to its source, target and receipts."""

    @abstractmethod
    def missing(
        self,
        stage: int,
        receipts: Sequence[Receipt] | None = None,
        within: range | None = None,
    ) -> Sequence[int]:
        """Return the numbers of a stage's tasks with an object that has no valid receipt.

        Parameters
        ----------
        stage
            Number of the stage.
        receipts
            Receipts in the journal, if they were read already.
        within
            The only tasks of interest; objects of others are not looked at.
        """

    def written(self, stage: int) -> Array:  # noqa: ARG002  (there may be one only)
        """Return the array that a stage writes."""
        return self.plan.target

    def run_id_of(self, stage: int) -> str:  # noqa: ARG002
        """Return the run id of the receipts of a stage."""
        return self.run_id

    # --- what is left -----------------------------------------------------------------------------

    def done(
        self,
        stage: int,
        receipts: Sequence[Receipt] | None = None,
        keys: Iterable[str] | None = None,
    ) -> Receipts:
        """Return the valid receipts of a stage.

        Parameters
        ----------
        stage
            Number of the stage.
        receipts
            Receipts in the journal, if they were read already.
        keys
            The only objects of interest, each looked at by itself; None for one listing of all.
        """
        if self.journal is None:
            return Receipts({}, frozenset())
        kept = list(self.journal.receipts()) if receipts is None else receipts
        if not kept:
            return Receipts({}, frozenset())
        target, run_id = self.written(stage), self.run_id_of(stage)
        if keys is not None:
            return _collect_only({*keys}, kept, run_id, target)
        prefix = target.node_format.data_prefix(target.path)
        return collect(kept, run_id, versions_below(target.store, prefix))

    def left(self, receipts: Sequence[Receipt] | None = None) -> list[Sequence[int]]:
        """Return the numbers of the tasks that are still to be done, for each stage."""
        if receipts is None and self.journal is not None:
            receipts = list(self.journal.receipts())
        found: list[Sequence[int]] = [() for _ in range(self.stages)]
        for number in reversed(range(self.stages)):
            found[number] = self.missing(number, receipts)
            if not found[number]:
                break  # its sources are no longer needed
        return found

    def is_ours(self, receipts: Sequence[Receipt] | None = None) -> bool:
        """True if no other job has put anything at the target since this job started.

        The target of this job may exist: if all tasks are done, the job died after making it
        visible. If some are not, but its document is the job's own, a power cut has taken objects.

        Parameters
        ----------
        receipts
            Receipts in the journal, if they were read already.
        """
        target = self.plan.target
        if can_create(target.store, target.path, target.node_format):
            return True
        if not self.plan.is_finished():
            return False
        ours = target.node_format.documents(target.meta, target.path)
        return not self.missing(self.stages - 1, receipts) or are_stored(target.store, ours)

    # --- the end ----------------------------------------------------------------------------------

    def check_complete(self, receipts: Sequence[Receipt] | None = None) -> None:
        """Refuse to end an incomplete job; without a journal this cannot be checked.

        Raises
        ------
        ResumeError
            If something is missing.
        """
        last = self.stages - 1
        missing = () if self.journal is None else self.missing(last, receipts)
        if missing:
            raise ResumeError(
                f"{self.plan.target.where} is not complete: {pluralize(len(missing), 'task')} of "
                f"{self.plan.stages[last].tasks} of the last stage left no valid receipt, the "
                f"first of them number {missing[0]}. Run the plan again; it does what is missing."
            )

    def publish(self) -> None:
        """Make the target visible."""
        target = self.plan.target
        documents = target.node_format.documents(target.meta, target.path)
        put_new_node(target.store, target.path, documents, again=True, claimed=True)

    def remove_intermediates(self) -> None:  # noqa: B027  (there may be none)
        """Remove the intermediate arrays between the stages, if there are any."""

    def tidy_up(self, stage: int) -> None:  # noqa: B027
        """Remove intermediate arrays that no later stage reads."""


def _collect_only(
    keys: Collection[str], receipts: Iterable[Receipt], run_id: str, target: Array
) -> Receipts:
    """Return the valid receipts of some objects; no other object is looked at."""
    own = [
        replace(
            one,
            objects=tuple(item for item in one.objects if item.key in keys),
            empty=tuple(key for key in one.empty if key in keys),
        )
        for one in receipts
        if one.run_id == run_id
    ]
    named = {key for one in own for key in (*(item.key for item in one.objects), *one.empty)}
    prefix = target.node_format.data_prefix(target.path)

    def size(key: str) -> tuple[str, int | None]:
        return key, target.store.size(f"{prefix}{key}")

    found = map_concurrently(size, sorted(named), transfers_for(target.store))
    listed = {key: Version(nbytes) for key, nbytes in found if nbytes is not None}
    return collect(own, run_id, listed)


def metadata_hash(array: Array) -> str:
    """Return a digest of an array's metadata, which does not depend on how it was opened."""
    documents = array.node_format.documents(array.meta, array.path)
    return sha256(b"\0".join(documents.values())).hexdigest()


def is_there_as_planned(target: Array) -> bool:
    """True if an array is there with the metadata planned for it."""
    try:
        found = open_array(target.store, target.path, format=target.format)
    except (NodeNotFoundError, NodeTypeError, MetadataError):
        return False
    return metadata_hash(found) == metadata_hash(target)
