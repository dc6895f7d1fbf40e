"""Many files into one store: survey, plan, and run.

`plan_ingest` reads all headers, refuses files that do not fit together, and hands the files as one
read-only hierarchy (`zarr_dask.jobs.ingest.dataset_store`) to `zarr_dask.plan_copy`. So one task
writes each stored object, within `max_mem`, and a job that died is resumed. Files that arrive later
are appended to what is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial, wraps
from hashlib import sha256
from math import prod
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, get_args

import numpy as np

from zarr_dask._util.arguments import check_bools
from zarr_dask._util.display import InWords
from zarr_dask._util.keywords import explained_by, takes_habits
from zarr_dask._util.lazy_names import hides
from zarr_dask.array.array import Array
from zarr_dask.codecs.base import BytesCodec, Codec
from zarr_dask.errors import (
    GridError,
    IngestError,
    MemoryBudgetError,
    NodeNotFoundError,
    PlanError,
    StoreError,
)
from zarr_dask.formats.base import ArrayMeta, Format
from zarr_dask.formats.consolidated import has_consolidated
from zarr_dask.formats.detect import format_named
from zarr_dask.formats.missing_values import FILL_VALUE, carry_missing_value, missing_value
from zarr_dask.grid.grid import Fixed, Grid
from zarr_dask.hierarchy.group import Group
from zarr_dask.hierarchy.open_node import open as open_node
from zarr_dask.hierarchy.open_node import open_group
from zarr_dask.jobs.copy.copy import plan_copy
from zarr_dask.jobs.copy.node_plans import GridOptions
from zarr_dask.jobs.copy.plan import CopyPlan
from zarr_dask.jobs.copy.source_nodes import nodes_of
from zarr_dask.jobs.engine.lifecycle import is_known
from zarr_dask.jobs.engine.plan import add_requests, format_bytes, pluralize
from zarr_dask.jobs.engine.predict import CostModel, memory_budget
from zarr_dask.jobs.engine.prices import Measured, Priced, Traffic
from zarr_dask.jobs.engine.progress_bars import count_bar, given_progress
from zarr_dask.jobs.engine.report import JointReport, Progress
from zarr_dask.jobs.engine.resume import remove_ended
from zarr_dask.jobs.engine.workers import Workers, begin_imports, find_workers
from zarr_dask.jobs.ingest.broken import BrokenList, FilledChunk
from zarr_dask.jobs.ingest.combine import (
    Combination,
    Combined,
    Order,
    StoredVariable,
    combine,
    compared_variables,
    inferred_concat,
    new_ends,
    with_zero_fills,
)
from zarr_dask.jobs.ingest.dataset_store import DatasetStore
from zarr_dask.jobs.ingest.described import described
from zarr_dask.jobs.ingest.differences import checked_settle, refuse
from zarr_dask.jobs.ingest.file_store import FORMAT
from zarr_dask.jobs.ingest.footprint import held_besides, held_of_files, loaded_by_worker
from zarr_dask.jobs.ingest.source_file import find_files, natural
from zarr_dask.jobs.ingest.survey import FileSurvey, read_survey, survey_files, with_digests
from zarr_dask.jobs.verify.compare import compare
from zarr_dask.jobs.write.commit import GroupCommit, finish_commit
from zarr_dask.jobs.write.request import WriteRequest
from zarr_dask.jobs.write.running import run_alone
from zarr_dask.jobs.write.write import plan_several
from zarr_dask.journal.incomplete import jobs_creating
from zarr_dask.stores.base import Store
from zarr_dask.stores.open import Location, open_store, sibling_location
from zarr_dask.stores.patience import in_job
from zarr_dask.stores.real_location import place_of_target

if TYPE_CHECKING:
    from distributed import Client

    from zarr_dask.jobs.write.joint_plan import JointWritePlan

__all__ = ["AppendReport", "IngestPlan", "IngestReport", "dataset_of", "ingest", "plan_ingest"]

P = ParamSpec("P")

_HABITS = {"concat_dim": "concat", "target_chunks": "chunks"}
_CHUNK_BYTES = 4 << 20
_ALONG = 1024
"""Least elements of a chunk of a coordinate along the concatenation, so that it may grow."""
_OF_TASKS = (
    "zarr_dask.jobs.engine.job",
    "zarr_dask.jobs.rechunk.copy_task",
    "zarr_dask.jobs.ingest.dataset_store",
    "zarr_dask.codecs.numeric.filters",
)
"""Modules that the first task of a worker loads, which takes it a third of a second."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class IngestReport(JointReport):
    """Result of an ingest into a new store."""

    broken: tuple[FilledChunk, ...] = ()
    """Chunks that were filled, with `settle` of ``{"broken": "fill"}``."""

    def __str__(self) -> str:
        return "\n".join((JointReport.__str__(self), *map(str, self.broken)))

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {**JointReport.to_json(self), "broken": [asdict(one) for one in self.broken]}


@hides("traffic_lines", "traffic_to_json")
@dataclass(frozen=True, repr=False)
class AppendReport(Measured, InWords):
    """Result of an append of files; empty if all were there."""

    files: int
    objects: int
    nbytes: int
    broken: tuple[FilledChunk, ...] = ()
    """Chunks that were filled, with `settle` of ``{"broken": "fill"}``."""
    traffic: Traffic = field(default_factory=Traffic, compare=False)
    """Time and requests of the append."""

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        own = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "traffic"}
        broken = [asdict(one) for one in self.broken]
        return {**own, "broken": broken, **self.traffic_to_json()}

    def __str__(self) -> str:
        if not self.files:
            return "all files are there already"
        first = (
            f"appended {pluralize(self.files, 'file')}: {pluralize(self.objects, 'stored object')} "
            f"of {format_bytes(self.nbytes)}"
        )
        return "\n".join((first, *map(str, self.broken)))


@hides("anew", "run_alone")
@dataclass(frozen=True, repr=False)
class IngestPlan(Priced, InWords):
    """Everything that an ingest will do; made by `zarr_dask.plan_ingest`."""

    source: DatasetStore
    """The files as one read-only hierarchy."""
    concat: str | None
    """Dimension along which the files follow each other."""
    files: tuple[str, ...]
    """The files in their order."""
    new_files: tuple[str, ...]
    """Those whose values are still to be written."""
    notes: tuple[str, ...]
    """Notes for users, such as attributes that differ."""
    copy: CopyPlan | None
    """Plan of a new store; None if files are appended."""
    append: JointWritePlan | None
    """Plan of an append; None for a new store, or if all files are there."""
    target: tuple[Store, str]
    """Store and path of the result."""
    made_by: CopyPlan | None = None
    """Plan of the job that has made a store which has all files, and which may have died right at
    its end; None if nothing may be resumed."""
    anew: Callable[[], IngestPlan] | None = None
    """Plans the same resumable job again, after another process has worked on it; None for others.
    """

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return sum(plan.tasks for plan in (self.copy, self.append) if plan is not None)

    @property
    def nbytes(self) -> int:
        """Decoded bytes to write."""
        if self.copy is not None:
            return sum(member.nbytes for member in self.copy.members)
        return 0 if self.append is None else self.append.nbytes

    @property
    def requests(self) -> dict[str, int]:
        """Predicted requests of all tasks by kind."""
        return add_requests(plan.requests for plan in (self.copy, self.append) if plan is not None)

    def explain(self) -> str:
        """Return the plan in words and numbers."""
        along = "" if self.concat is None else f" along {self.concat}"
        lines = [f"ingest {pluralize(len(self.files), 'file')}{along}"]
        if self.copy is None:
            old = len(self.files) - len(self.new_files)
            lines.append(f"  {pluralize(old, 'file')} are there, {len(self.new_files)} to append")
        lines += [f"  note    {note}" for note in self.notes]
        for plan in (self.copy, self.append):
            if plan is not None:
                lines.append(plan.explain())
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.explain()

    def to_json(self) -> str:
        """Return the plan as JSON without secrets, for `load_plan` and ``zarr-dask run``.

        Raises
        ------
        PlanError
            If files are appended, which one process does.
        StoreError
            If the target or the survey cannot be named in a file.
        """
        if self.copy is None:
            raise PlanError(
                "an append of files cannot be kept in a file: its steps depend on one another. "
                "Run the plan itself."
            )
        return self.copy.to_json()

    @in_job()
    def run(
        self,
        client: Client | None = None,
        progress: Callable[[Progress], None] | bool | None = None,
        *,
        resume: bool = False,
        journal: Location | None = None,
        verify: bool = False,
    ) -> IngestReport | AppendReport:
        """Run the plan.

        If another process runs the same plan with ``resume=True``, its end is waited for.

        Parameters
        ----------
        client, progress, resume, journal
            As for `zarr_dask.copy`.
        verify
            Compare the store with the files: of a new store before it becomes visible, after an
            append with all files.

        Raises
        ------
        IngestError
            If a file has changed since the survey, or a chunk of it does not decode.
        ValuesDifferError
            If `verify` finds a difference.
        ZarrDaskError
            As `zarr_dask.copy` and `zarr_dask.to_zarr`.
        """
        if self.append is None:
            return self.run_alone(client, progress, resume=resume, journal=journal, verify=verify)
        return run_alone(
            self,
            lambda plan: () if plan.append is None else plan.append.plans,
            self.anew,
            lambda plan: plan.run_alone(
                client, progress, resume=resume, journal=journal, verify=verify
            ),
        )

    def run_alone(
        self,
        client: Client | None,
        progress: Callable[[Progress], None] | bool | None,
        *,
        resume: bool,
        journal: Location | None,
        verify: bool,
    ) -> IngestReport | AppendReport:
        """Run the plan while no other process works on the same job."""
        broken = self.source.broken
        if broken is not None and not resume:
            broken.clear()
        self.source.check_hierarchies()
        if self.copy is not None:
            copied = self.copy.run(client, progress, resume=resume, journal=journal, verify=verify)
            facts = {one.name: getattr(copied, one.name) for one in fields(copied)}
            return IngestReport(**facts, broken=_taken(broken))
        if self.append is None:
            made_by = self.made_by if resume else None
            if made_by is not None and made_by.is_finished() and is_known(made_by, journal):
                made_by.run(client, progress, resume=True, journal=journal)
            report = AppendReport(0, 0, 0)
        else:
            reports = self.append.run(client, progress)
            objects = sum(one.objects for one in reports)
            nbytes = self.append.nbytes
            traffic = Traffic(
                max((one.seconds for one in reports), default=0.0),
                add_requests(one.requests for one in reports),
                sum(one.retried for one in reports),
                sum(one.waited for one in reports),
            )
            report = AppendReport(len(self.new_files), objects, nbytes, _taken(broken), traffic)
        if verify:
            found = compare(
                open_node(self.source), open_group(*self.target), client=client, attributes=False
            )
            if not found:
                raise IngestError(
                    f"the store does not hold what the files hold: {found} Write it anew, with "
                    "overwrite=True, or find out which of them has changed."
                )
        return report


def _taken(broken: BrokenList | None) -> tuple[FilledChunk, ...]:
    """Return the chunks that were filled, and forget them."""
    if broken is None:
        return ()
    found = broken.entries()
    broken.clear()
    return found


# --- planning -------------------------------------------------------------------------------------


def _planned_anew(make: Callable[P, IngestPlan]) -> Callable[P, IngestPlan]:
    """Let plans that may be resumed be made again by the same call."""

    @wraps(make)
    def call(*args: P.args, **kwargs: P.kwargs) -> IngestPlan:
        plan = make(*args, **kwargs)
        return replace(plan, anew=partial(call, *args, **kwargs)) if kwargs.get("resume") else plan

    return call


@takes_habits(**_HABITS)
@in_job()
@_planned_anew
def plan_ingest(
    files: Any,
    url: Location,
    *,
    path: str = "",
    concat: str | None = None,
    order: Order | None = None,
    settle: Mapping[str, str] | None = None,
    variables: Sequence[str] | None = None,
    engine: str | None = None,
    chunks: Mapping[str, Any] | None = None,
    shards: Mapping[str, Any] | None = None,
    codecs: Any = None,
    format: str | None = None,
    max_mem: str | int | None = None,
    temp: Location | None = None,
    overwrite: bool = False,
    resume: bool = False,
    client: Client | None = None,
    threads: int | None = None,
    model: CostModel | None = None,
    survey: Location | Literal[False] | None = None,
    progress: Callable[[int, int], None] | bool | None = None,
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
) -> IngestPlan:
    """Plan how to write many files into one store; nothing is written but the survey.

    If an append to the store died while it changed lengths, the rest of these are changed, too. If
    it died while it removed its journals, and all files are there, the rest of these are removed.

    Parameters
    ----------
    files
        NetCDF, HDF5 or GRIB files, or Zarr hierarchies: a path or URL, a pattern such as
        ``"run/*.nc"``, a folder, ``"@list.txt"`` for a file that has one of these on each line, or
        a list of them. A URL that ends in ``.zarr`` is one of a hierarchy, whose root group is
        read.
    url, path
        Location of the store. If it has the first of the files already, the others are appended.
    concat
        Dimension along which the files follow each other; one that no file has is new. By default
        the one along which they differ.
    order
        ``"coordinate"`` sorts files by the values along `concat`, ``"name"`` by their names, with
        numbers by value; ``"given"`` keeps their order. By default files of a pattern or folder are
        sorted by name.
    settle
        Choices for differences between files, by kind, such as ``{"units": "convert"}``, or for
        one variable, such as ``{"units:pressure": "first"}``. Without one a difference is refused,
        and the error lists all differences with their choices; times of one calendar are converted.
    variables
        Paths of the variables to take; all by default.
    engine
        Engine of xarray that reads the files, such as ``"cfgrib"``, perhaps with options:
        ``"cfgrib:typeOfLevel=heightAboveGround,level=2"`` takes these messages. By default NetCDF
        and HDF5 files are read by this package, and GRIB files by cfgrib.
    chunks, shards
        Grids by name of the dimension, as for `zarr_dask.plan_copy`. By default chunks of the
        files, joined along `concat` up to 4 MiB.
    codecs
        Codecs of the chunks, as for `zarr_dask.create_array`, for all arrays or by path.
    format, max_mem, temp, overwrite, client, threads, model
        As for `zarr_dask.plan_copy`.
    resume
        True if a job at the target has died: what it has left may be replaced or used.
    survey
        Location of the file that keeps headers for the next call; beside the target by
        default, False for none.
    progress
        True for a bar while headers are read, or a function that is called after each file with
        the number of files done and of all.
    storage_options, target_options
        Options of the stores of remote files, and of the target.

    Raises
    ------
    IngestError
        If files cannot be read or do not fit together, or are not those that the target has.
    MissingDependencyError
        If h5py, or an engine, is not installed.
    ZarrDaskError
        As `zarr_dask.plan_copy`.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> plan = zd.plan_ingest("run/*.nc", "run.zarr", chunks={"time": -1})  # doctest: +SKIP
    >>> print(plan.explain())  # doctest: +SKIP
    """
    check_bools(overwrite=overwrite, resume=resume)
    settled = checked_settle(settle)
    store, kept = _survey_place(url, path, survey, target_options)
    _check_grids(chunks=chunks, shards=shards)
    place = place_of_target(open_store(url, target_options), path.strip("/"))
    urls = _urls(files, storage_options, concat, order, variables, place)
    begin_imports(client, _OF_TASKS)
    before = None if store is None else read_survey(store, kept)
    there = None if overwrite else _existing(url, path, target_options)
    with _told(progress) as tell:
        found, combination = _combined(
            urls, storage_options, engine, before, concat, order, settled, variables, tell, there
        )
    target = format_named(format or FORMAT.name) if there is None else there.node_format
    if target.names_attribute is not None:  # xarray takes fill values for masks there
        combination = with_zero_fills(combination)
    if store is not None:
        store.set(kept, [found.to_json()])
    refuse(combination.differences, combination.doubt)
    source = _source_of(combination, storage_options, store, kept, settled, variables)
    if there is not None:
        finish_commit(there.store, there.path, there.node_format)
    if there is not None and resume and _is_in_the_making(there, combination):
        there = None
    append = None
    if there is not None:
        _check_names(open_group(source), chunks, shards)
        append = _append_plan(
            there, combination, before, source, resume=resume, max_mem=max_mem, threads=threads
        )
        if append.append is not None or not resume:
            return append
    workers = find_workers(client) if threads is None else Workers(None, threads, threads)
    budget = memory_budget(max_mem, workers)
    besides = _reserved_memory(combination, workers, budget, fills=_fills(settled))
    plan = plan_copy(
        open_node(source),
        url,
        path=path,
        chunks=_chunks(combination, chunks),
        shards=shards,
        format=format or FORMAT.name,
        codecs=_codecs(combination, codecs, format_named(format or FORMAT.name)),
        max_mem=budget - besides,
        temp=temp,
        overwrite=overwrite or resume,
        client=client,
        threads=threads,
        model=model,
        target_options=target_options,
    )
    is_root = not plan.path and has_consolidated(plan.node_format)
    consolidated = (plan.path,) if is_root else ()  # as a dataset that is written
    plan = replace(
        plan, overwrite=overwrite, max_mem=budget, besides=besides, consolidated=consolidated
    )
    if append is not None:
        return replace(append, made_by=plan)
    names = tuple(one.url for one in combination.headers)
    return IngestPlan(
        source=source,
        concat=combination.concat,
        files=names,
        new_files=names,
        notes=combination.notes,
        copy=plan,
        append=None,
        target=(plan.store, plan.path),
    )


def _fills(settled: Mapping[str, str]) -> bool:
    """True if files that turn out broken are filled."""
    return settled.get("broken") == "fill"


def _source_of(
    combination: Combination,
    storage_options: Mapping[str, Any] | None,
    store: Store | None,
    kept: str,
    settled: Mapping[str, str],
    variables: Sequence[str] | None,
) -> DatasetStore:
    """Return the files as one hierarchy, which names the survey kept in a store, if there is one.

    Raises
    ------
    IngestError
        If broken files are filled, and there is no store to list them in.
    """
    if _fills(settled):
        if store is None:
            raise IngestError(
                "settle={'broken': 'fill'} lists what it fills beside the survey: give survey=, "
                "the location of a file."
            )
        return DatasetStore.of(combination, storage_options, BrokenList(store, f"{kept}.broken/"))
    source = DatasetStore.of(combination, storage_options, None)
    if store is not None:
        with suppress(StoreError):  # a store in memory has no name
            facts = described((store, kept), combination, settled, variables)
            source = replace(source, described=facts)
    return source


def _reserved_memory(
    combination: Combination, workers: Workers, budget: int, *, fills: bool
) -> int:
    """Return the bytes that a process holds besides what its tasks copy.

    Raises
    ------
    MemoryBudgetError
        If they leave nothing of the budget.
    """
    besides = held_of_files(combination) + loaded_by_worker(combination, workers)
    besides += held_besides(combination, decodes=fills) * workers.threads_per_process
    if budget <= besides:
        raise MemoryBudgetError(
            f"{format_bytes(budget)} of memory per process are too little: libraries that a "
            "worker loads, what is known of the files, and values that are cut or converted on "
            f"the way need {format_bytes(besides)}. Give more as max_mem=, or workers more memory."
        )
    return besides


def _urls(
    files: Any,
    options: Mapping[str, Any] | None,
    concat: Any,
    order: Any,
    variables: Any,
    but: str | None = None,
) -> list[str]:
    """Return the files, in the order of their names if that is wanted.

    Raises
    ------
    TypeError, ValueError
        If an argument is not what it is said to be.
    """
    if concat is not None and (not isinstance(concat, str) or not concat):
        raise TypeError(f"concat={concat!r}: expected the name of a dimension, such as 'time'.")
    if order not in (None, *get_args(Order)):
        expected = ", ".join(map(repr, get_args(Order)))
        raise ValueError(f"order={order!r}: expected one of {expected}.")
    if isinstance(variables, str):
        raise TypeError(f"variables={variables!r}: expected a list of names, [{variables!r}].")
    urls = find_files(files, options, but)
    if order != "name":
        return urls
    return sorted(urls, key=lambda url: natural(url.rpartition("/")[2]))


def _check_grids(**grids: Any) -> None:
    """Raise for grids that are not given by names.

    Raises
    ------
    GridError
        If one is no mapping.
    """
    for name, given in grids.items():
        if given is not None and not isinstance(given, Mapping):
            raise GridError(
                f"{name}={given!r}: expected lengths by name of the dimension, such as "
                "{'time': -1, 'x': 64}."
            )


def _check_names(files: Group, chunks: Any, shards: Any) -> None:
    """Raise for grids of dimensions and arrays that no file has, also where nothing is made.

    Raises
    ------
    GridError
        If there are such.
    """
    arrays = {path: node for path, node in nodes_of(files) if isinstance(node, Array)}
    GridOptions(chunks, shards, None, None, None, None, tuple(arrays)).check(files, arrays)


def _told(
    progress: Callable[[int, int], None] | bool | None,
) -> AbstractContextManager[Callable[[int, int], None] | None]:
    """Return what is told of the progress of a survey while a ``with`` statement runs.

    Raises
    ------
    TypeError
        If `progress` is neither a function nor a truth value.
    """
    if given_progress(progress) is True:
        return count_bar("surveying")
    return nullcontext(progress if callable(progress) else None)


def _combined(
    urls: Sequence[str],
    options: Mapping[str, Any] | None,
    engine: str | None,
    before: FileSurvey | None,
    concat: str | None,
    order: Order | None,
    settle: Mapping[str, str],
    variables: Sequence[str] | None,
    progress: Callable[[int, int], None] | None = None,
    there: Group | None = None,
) -> tuple[FileSurvey, Combination]:
    found = survey_files(urls, options, engine, before, progress)
    readable = [one for one in found.headers if not one.error]
    if readable:
        concat = concat or inferred_concat(readable)
        found = with_digests(found, compared_variables(readable, concat), options)
    stored = _stored_variables(there) if there is not None else {}
    made = combine(
        found.headers,
        concat=concat,
        order=order,
        settle=settle,
        variables=variables,
        stored=stored,
    )
    if not made.headers:
        refuse(made.differences)
        raise IngestError("no file can be read: all are left out.")
    return found, made


def _stored_variables(there: Group) -> dict[str, StoredVariable]:
    """Return what later files are brought to, by path."""
    nodes = ((path, node) for path, node in there.walk() if isinstance(node, Array))
    return {
        path: StoredVariable(str(node.attributes.get("units", "")), node.dtype)
        for path, node in nodes
    }


def surveyed(
    files: Any, options: Mapping[str, Any] | None, concat: str | None, order: Order | None
) -> tuple[FileSurvey, str | None]:
    """Return the survey of files, and the dimension of their concatenation."""
    found = survey_files(_urls(files, options, concat, order, None), options, None)
    readable = [one for one in found.headers if not one.error]
    concat = concat or (inferred_concat(readable) if readable else None)
    return with_digests(found, compared_variables(readable, concat), options), concat


def dataset_of(
    files: Any,
    *,
    concat: str | None = None,
    order: Order | None = None,
    settle: Mapping[str, str] | None = None,
    variables: Sequence[str] | None = None,
    engine: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> tuple[DatasetStore, Combination]:
    """Return files as one read-only hierarchy; arguments as for `plan_ingest`.

    Raises
    ------
    IngestError
        If files cannot be read or do not fit together.
    """
    settled = checked_settle(settle)
    urls = _urls(files, storage_options, concat, order, variables)
    _, made = _combined(urls, storage_options, engine, None, concat, order, settled, variables)
    refuse(made.differences)
    return DatasetStore.of(made, storage_options), made


def _survey_place(
    url: Location, path: str, survey: Any, options: Mapping[str, Any] | None
) -> tuple[Store | None, str]:
    """Return store and key of the file of the survey; None if none is kept."""
    if survey is False:
        return None, ""
    suffix = f".{path.strip('/').replace('/', '.')}" if path else ""
    if survey is None:
        place = sibling_location(open_store(url, options), f"{suffix}.ingest.json")
        return (None, "") if place is None else place
    folder, _, name = str(survey).rpartition("/")
    return open_store(folder or ".", options if "://" in folder else None), name


def _existing(url: Location, path: str, options: Mapping[str, Any] | None) -> Group | None:
    try:
        return open_group(url, path, "r+", storage_options=options)
    except NodeNotFoundError:
        return None


def _is_in_the_making(there: Group, found: Combination) -> bool:
    """True if the group or an array is not visible yet, and a job that makes it has not ended."""
    is_whole = not there.meta.implicit and all(path in there for path in found.arrays)
    return not is_whole and next(jobs_creating(there.store, there.path), None) is not None


# --- defaults -------------------------------------------------------------------------------------


def _chunks(found: Combination, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return chunks by dimension as given, and the default ones of each array."""
    chunks: dict[str, Any] = dict(given or {})
    for path, one in found.arrays.items():
        own = _default_chunks(one, given or {})
        if own:
            chunks[path] = own
    return chunks


def _default_chunks(one: Combined, given: Mapping[str, Any]) -> dict[str, int]:
    """Return chunks like those of the files, joined along the concatenation."""
    names = [str(name) for name in one.meta.dimension_names or ()]
    cell = [1, *one.served.chunks] if one.new_axis else list(one.served.chunks)
    cell = [max(min(c, n), 1) for c, n in zip(cell, one.meta.shape, strict=True)]
    for axis, name in enumerate(names):
        if name in given:
            length = given[name]
            cell[axis] = (
                one.meta.shape[axis] if length == -1 else length if isinstance(length, int) else 1
            )
    if one.axis is not None and names[one.axis] not in given:
        row = prod(c for n, c in enumerate(cell) if n != one.axis) * one.served.itemsize
        most = one.meta.shape[one.axis]
        if len(cell) == 1:
            most = max(most, _ALONG)
        times = max(_CHUNK_BYTES // max(row * cell[one.axis], 1), 1)
        cell[one.axis] = max(min(cell[one.axis] * times, most), 1)
    return {
        name: cell[n]
        for n, name in enumerate(names)
        if name not in given and names.count(name) == 1  # of two, neither can be told by its name
    }


def _codecs(found: Combination, given: Any, node_format: Format) -> Any:
    """Return codecs by path: the given ones, else the default ones of a new array."""
    by_path = isinstance(given, Mapping) and given and all(name in found.arrays for name in given)
    if given is not None and not by_path:
        return dict.fromkeys(found.arrays, given)
    usual = {path: _default_codecs(one.meta, node_format) for path, one in found.arrays.items()}
    return {**usual, **(given or {})}


def _default_codecs(meta: ArrayMeta, node_format: Format) -> list[Codec]:
    """Return those that compress or check bytes; the format adds the one of the elements itself."""
    chain = node_format.chain(None, meta.data_type, meta.dtype, "C", meta.grid.ndim)
    known = () if isinstance(chain, list) else chain.codecs
    return [codec for codec in known if isinstance(codec, BytesCodec)]


# --- appending ------------------------------------------------------------------------------------


def _append_plan(
    there: Group,
    found: Combination,
    before: FileSurvey | None,
    files: DatasetStore,
    *,
    resume: bool,
    max_mem: str | int | None,
    threads: int | None,
) -> IngestPlan:
    """Return the plan that appends the files that a store does not have yet."""
    concat = found.concat
    arrays = {path: one for path, one in found.arrays.items() if one.axis is not None}
    names_all = before is not None and {one.url for one in before.headers} <= {
        one.url for one in found.headers
    }
    remedy = _ANOTHER if names_all else _ALL_FILES
    targets = {path: _target(there, path, one, remedy) for path, one in found.arrays.items()}
    length = min(
        (targets[p].shape[one.axis] for p, one in arrays.items() if one.axis is not None), default=0
    )
    ends = np.cumsum((0, *found.lengths)).tolist()
    if concat is None or not arrays:
        old = len(found.headers)
    elif length not in ends[1:]:
        raise IngestError(
            f"{there.where} has {length} elements along {concat}, which is not where any of the "
            f"files ends ({_some(ends[1:])}): it was not made of the first of these files. "
            f"{_ALL_FILES}"
        )
    else:
        old = ends.index(length, 1)
    notes = [*found.notes, *_changed(found, before, old)]
    _check_values(there, targets, found, old)
    new = tuple(one.url for one in found.headers[old:])
    plan = None
    if new or (
        resume
        and any(
            targets[p].shape[one.axis] > length for p, one in arrays.items() if one.axis is not None
        )
    ):
        source = open_group(files)
        values, into = [], []
        for path, one in arrays.items():
            array = source[path]
            if isinstance(array, Array) and one.axis is not None:
                blocks = _blocks(targets[path], array.shape, one.axis, length, max_mem, threads)
                region = tuple(
                    slice(length if n == one.axis else 0, None) for n in range(array.ndim)
                )
                values.append(array.to_dask(chunks=blocks)[region])
                into.append(targets[path])
        requests = [WriteRequest(url=one, mode="r+", append=concat, resume=resume) for one in into]
        job = repr([(one.url, one.size, one.tag) for one in found.headers])
        commit = GroupCommit(
            store=there.store,
            path=there.path,
            node_format=there.node_format,
            appends=True,
            job=sha256(job.encode()).hexdigest(),
        )
        plan = plan_several(values, requests, commit)
    else:
        for path in arrays:
            remove_ended(targets[path])
    return IngestPlan(
        source=files,
        concat=concat,
        files=tuple(one.url for one in found.headers),
        new_files=new,
        notes=tuple(notes),
        copy=None,
        append=plan,
        target=(there.store, there.path),
    )


def _some(numbers: Sequence[int]) -> str:
    few = ", ".join(map(str, numbers[:5]))
    return few if len(numbers) <= 5 else f"{few} ... {numbers[-1]}"


def _target(there: Group, path: str, one: Combined, remedy: str) -> Array:
    """Return the array that a store has for one of the files; an error ends in the remedy.

    Raises
    ------
    IngestError
        If it has none, or another one.
    """
    try:
        array = there[path]
    except NodeNotFoundError:
        array = None
    if not isinstance(array, Array):
        raise IngestError(f"{there.where} has no array {path}, which the files have. {remedy}")
    meta, expected = array.meta, carry_missing_value(one.meta, FORMAT, array.node_format)
    facts = [
        ("dimensions", array.dimension_names, one.meta.dimension_names),
        ("data type", meta.data_type.label, one.meta.data_type.label),
        (
            "lengths",
            tuple(n for axis, n in enumerate(array.shape) if axis != one.axis),
            tuple(n for axis, n in enumerate(one.meta.shape) if axis != one.axis),
        ),
        *(
            (name, meta.attributes.get(name), expected.attributes.get(name))
            for name in ("units", "calendar", "scale_factor", "add_offset")
        ),
        (FILL_VALUE, *(missing_value(of, array.node_format) for of in (meta, expected))),
    ]
    for what, ours, theirs in facts:
        if ours != theirs:
            raise IngestError(
                f"{array.where} has the {what} {ours}, the files have {theirs}: nothing can be "
                f"appended. {remedy}"
            )
    return array


_ALL_FILES = (
    "Name all files, also those that are there already: only the others are read, and settle= "
    "holds for all. Else choose another target, or overwrite=True."
)
_ANOTHER = (
    "An append keeps what is stored as it is: choose another target for all files, or pass "
    "overwrite=True to write all of them again."
)


def _changed(found: Combination, before: FileSurvey | None, old: int) -> list[str]:
    """Return notes on files that have changed since their values were stored."""
    known = {one.url: (one.size, one.tag) for one in before.headers} if before else {}
    return [
        f"{one.url} has changed since its values were stored; verify=True compares them"
        for one in found.headers[:old]
        if known.get(one.url, (one.size, one.tag)) != (one.size, one.tag)
    ]


def _check_values(there: Group, targets: Mapping[str, Array], found: Combination, old: int) -> None:
    """Compare the coordinate that is there with the ends of the files.

    Raises
    ------
    IngestError
        If they differ.
    """
    concat = found.concat
    path = next(
        (p for p in targets if p.rpartition("/")[2] == concat and targets[p].ndim == 1), None
    )
    if concat is None or path is None:
        return
    start = 0
    present = targets[path].read(threads=1)
    for header, length in zip(found.headers[:old], found.lengths, strict=False):
        ends = new_ends(header, found)
        if ends and length:
            got = float(present[start]), float(present[start + length - 1])
            if not np.allclose(got, ends[:2], rtol=1e-12, atol=0):
                raise IngestError(
                    f"{there.where} has {got[0]:g} to {got[1]:g} along {concat} where {header.url} "
                    f"has {ends[0]:g} to {ends[1]:g}: it was not made of the first of these files, "
                    f"in this order. {_ALL_FILES}"
                )
        start += length


def _blocks(
    target: Array,
    shape: Sequence[int],
    axis: int,
    length: int,
    max_mem: str | int | None,
    threads: int | None,
) -> tuple[tuple[int, ...], ...]:
    """Return blocks of whole stored objects of the target, as large as memory allows."""
    workers = find_workers(None)
    share = memory_budget(max_mem, workers) // (4 * (threads or workers.threads_per_process))
    grid = Grid(
        tuple(
            Fixed(d.size, n) if isinstance(d, Fixed) else d.window(0, d.extent)
            for d, n in zip(target.meta.grid.dimensions, shape, strict=True)
        )
    )
    cell = list(grid.largest_cell)
    nbytes = prod(cell) * target.meta.data_type.typical_itemsize
    for n in reversed(range(len(cell))):
        if n != axis:  # so that chunks of the files are decoded once, not for each object
            times = min(max(share // max(nbytes, 1), 1), -(-shape[n] // cell[n]))
            cell[n] *= times
            nbytes *= times
    found = []
    for n, extent in enumerate(shape):
        first = [length] if n == axis and length else []
        at = sum(first)
        sizes = list(first)
        while at < extent:
            step = min(cell[n] - at % cell[n], extent - at)
            sizes.append(step)
            at += step
        found.append(tuple(sizes) or (0,))
    return tuple(found)


# --- all at once ----------------------------------------------------------------------------------


@takes_habits(**_HABITS)
@in_job()
@explained_by(plan_ingest)
def ingest(
    files: Any,
    url: Location,
    *,
    path: str = "",
    concat: str | None = None,
    order: Order | None = None,
    settle: Mapping[str, str] | None = None,
    variables: Sequence[str] | None = None,
    engine: str | None = None,
    chunks: Mapping[str, Any] | None = None,
    shards: Mapping[str, Any] | None = None,
    codecs: Any = None,
    format: str | None = None,
    max_mem: str | int | None = None,
    temp: Location | None = None,
    overwrite: bool = False,
    client: Client | None = None,
    progress: Callable[[Progress], None] | bool | None = None,
    survey: Location | Literal[False] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    resume: bool = False,
    journal: Location | None = None,
    verify: bool = False,
) -> IngestReport | AppendReport:
    """Write many files into one store: `plan_ingest`, then run.

    The same call with more files appends these.

    Parameters
    ----------
    files, url, path, concat, order, settle, variables, engine, chunks, shards, codecs, format
        As for `plan_ingest`.
    max_mem, temp, overwrite, client, survey, storage_options, target_options
        As for `plan_ingest`.
    progress, resume, journal, verify
        As for `IngestPlan.run`; True shows a bar while headers are read, too.

    Raises
    ------
    ZarrDaskError
        As `plan_ingest` and `IngestPlan.run`.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> zd.ingest("run/*.nc", "run.zarr", concat="time", chunks={"time": -1})  # doctest: +SKIP
    """
    check_bools(overwrite=overwrite, resume=resume, verify=verify)
    plan = plan_ingest(
        files,
        url,
        path=path,
        concat=concat,
        order=order,
        settle=settle,
        variables=variables,
        engine=engine,
        chunks=chunks,
        shards=shards,
        codecs=codecs,
        format=format,
        max_mem=max_mem,
        temp=temp,
        overwrite=overwrite,
        resume=resume,
        client=client,
        survey=survey,
        progress=True if progress is True else None,
        storage_options=storage_options,
        target_options=target_options,
    )
    return plan.run(client, progress, resume=resume, journal=journal, verify=verify)
