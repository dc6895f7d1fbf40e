"""Output of a simulation from many processes that know nothing of each other; needs no dask.

One process creates the output, every rank attaches and puts its block of each step, one process
makes steps visible::

    zd.Writer.create("run.zarr", {"u": {...}, "time": {...}}, owners=zd.owners((ny, nx), (4, 4)))

    with zd.Writer.attach("run.zarr", rank=rank) as writer:
        for step in range(writer.next_step, steps):
            writer.put(step, {"u": block, "time": time})

    zd.Writer.attach("run.zarr").publish()

Beside this module, `owners` says who writes what, `output` what was agreed on, `stream` writes,
`progress` keeps what was written, `publish` makes it visible, `rewinds` begins anew from a
checkpoint, `exchange` lets ranks share stored objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from secrets import randbits
from types import TracebackType
from typing import Any, Literal, Self, get_args

import numpy as np

from zarr_dask.errors import GridError, RankError, StepError
from zarr_dask.flags import check_count, check_flags
from zarr_dask.grid import Region
from zarr_dask.group import Group
from zarr_dask.jobs.simulation.exchange import Communicator, exchange, smallest
from zarr_dask.jobs.simulation.output import (
    Output,
    Request,
    abandon_output,
    create_output,
    open_output,
)
from zarr_dask.jobs.simulation.owners import Owners
from zarr_dask.jobs.simulation.progress import Progress, shortened
from zarr_dask.jobs.simulation.progress_files import Appender
from zarr_dask.jobs.simulation.publish import Publisher, checked_step, consolidate, lengths
from zarr_dask.jobs.simulation.rewinds import begin, begin_all, check_not_past, check_run
from zarr_dask.jobs.simulation.stream import Stream, pieces_of
from zarr_dask.stores.urls import Location

__all__ = ["Writer"]

Casting = Literal["safe", "same_kind", "unsafe"]


class Writer:
    """Output of a simulation, as one of its processes sees it.

    Made by `Writer.create`, once, and `Writer.attach`, in every rank.

    Examples
    --------
    >>> import tempfile
    >>> import zarr_dask as zd
    >>> folder = tempfile.TemporaryDirectory()
    >>> url = f"{folder.name}/run.zarr"
    >>> arrays = {
    ...     "u": {"shape": (4,), "dtype": "f4", "chunks": (2, 2)},
    ...     "time": {"shape": (), "dtype": "f8"},
    ... }
    >>> _ = zd.Writer.create(url, arrays, owners=zd.owners((4,), (2,)))
    >>> for rank in range(2):
    ...     with zd.Writer.attach(url, rank=rank) as writer:
    ...         for step in range(5):
    ...             writer.put(step, {"u": np.full(2, step, "f4"), "time": step / 2})
    >>> zd.Writer.attach(url).publish()  # the last object along the steps is not whole
    4
    >>> zd.open(url)["u"][:, 3].tolist(), zd.open(url)["time"][...].tolist()
    ([0.0, 1.0, 2.0, 3.0], [0.0, 0.5, 1.0, 1.5])
    >>> zd.Writer.attach(url).publish(flush=True)
    5
    >>> folder.cleanup()
    """

    def __init__(
        self,
        output: Output,
        rank: int | None,
        streams: Mapping[str, Stream],
        appender: Appender | None,
        comm: Communicator | None,
        casting: Casting,
    ) -> None:
        self._output = output
        self._streams = streams
        self._appender = appender
        self._comm = comm
        self._casting = casting
        self._received: tuple[int, dict[int, dict[str, list[np.ndarray]]]] | None = None
        """What other ranks have sent of a step that could not be stored: they send it once."""
        self._publisher: Publisher | None = None
        self.rank = rank
        """Number of this process; None for one that puts nothing."""
        self._next = min((one.stored for one in streams.values() if one.share.own), default=None)
        if comm is not None:
            bound = 1 << 62
            agreed = smallest(comm, bound if self._next is None else self._next)
            self._next = None if agreed == bound else agreed
        self._first = self._next or 0

    # --- making one -------------------------------------------------------------------------------

    @staticmethod
    def create(
        url: Location | Group,
        arrays: Mapping[str, Mapping[str, Any]],
        *,
        path: str = "",
        capacity: int | None = None,
        owners: Owners | Mapping[str, Owners] | None = None,
        gather: bool = False,
        attributes: Mapping[str, Any] | None = None,
        format: str | None = None,
        overwrite: bool = False,
        journal: Location | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Writer:
        """Make the arrays of an output, with no step in them.

        Parameters
        ----------
        url, path
            Where the group of the arrays is, or will be; a group that is open for writing may
            stand for both.
        arrays
            For each array, by its path below the group, the arguments of
            `zarr_dask.create_array`: ``shape`` is that of one step, without time; ``chunks`` and
            ``shards`` have the steps in front, several to a stored object if wanted. ``axis`` puts
            them elsewhere. Without grids a chunk is one step of a rank's block, or a part of it of
            at most 4 MiB. ``values`` instead makes an array that does not grow, written at once.
        capacity
            Steps at most; None for no bound.
        owners
            The regions of the ranks: one map for all arrays whose steps have its shape, or maps
            by the names of arrays. Rank 0 writes what has no map, and arrays with one value a
            step.
        gather
            Let ranks share stored objects: the first one of those that meet an object collects
            it. All ranks must then attach with a communicator and put together.
        attributes
            Of the group, if it is new.
        format
            Of the arrays; that of the group, if it exists already.
        overwrite
            Replace arrays of the same names, and an output that was not finished.
        journal
            A folder where ranks say what they have stored; beside the hierarchy by default
            (``run.zarr.zarr-dask``). Stores that have nothing beside them need one.
        storage_options
            Options of the store.

        Returns
        -------
        Writer
            One that publishes, but puts nothing.

        Raises
        ------
        SharedObjectError
            If two ranks would write one stored object; says what would fit.
        GridError, DataTypeError, MetadataError, TypeError
            If an array cannot be as it is described.
        NodeExistsError
            If there is something at the place of an array, or the group is of another format.
        RankError
            If another output is open there, and is not to be replaced or has a rank that runs.
        StoreError
            If there is no place for the journal.
        """
        check_flags(gather=gather, overwrite=overwrite)
        request = Request(
            url=url,
            path=path,
            arrays=arrays,
            capacity=capacity,
            owners=owners,
            gathers=gather,
            attributes={} if attributes is None else attributes,
            format=format,
            overwrite=overwrite,
            journal=journal,
            storage_options=storage_options,
        )
        output = create_output(request)
        consolidate(output)
        return Writer(output, None, {}, None, None, "safe")

    @staticmethod
    def attach(
        url: Location | Group,
        rank: int | None = None,
        from_step: int | None = None,
        *,
        run: str | None = None,
        path: str = "",
        gather: Communicator | None = None,
        casting: Casting = "safe",
        threads: int | None = 1,
        journal: Location | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Writer:
        """Join an output that was created, at the beginning or after a restart.

        Parameters
        ----------
        url, path
            Of the output.
        rank
            Number of this process; None for one that puts nothing. Two processes cannot be the
            same rank at a time.
        from_step
            Begin again with this step, from a checkpoint: it and all steps after it are
            forgotten, by all ranks, and hidden from readers before anything is overwritten. Without
            a rank, that is done for all of them, which then attach as ever.
        run
            Name of the run that begins with `from_step`: the same in all of its ranks, and another
            one in each run, such as the number of the job. It tells two restarts from one step
            apart; a rank that attaches again in the same run goes on where it was. Ranks that
            gather agree on one themselves.
        gather
            For an output created with ``gather=True``: what carries pieces between the ranks, a
            communicator of mpi4py for instance. All ranks attach, and put, together.
        casting
            What blocks may be cast from, as in `numpy.can_cast`.
        threads
            That encode and write the stored objects of this rank; None for one per core.
        journal, storage_options
            As given to `create`.

        Raises
        ------
        WriterNotFoundError
            If no output was created there.
        RankError
            If there is no such rank, another process that still runs is it, or ranks that share
            stored objects have no communicator.
        StepError
            If steps before `from_step` are not stored, or the run has begun with another step.
        """
        check_count("threads", threads, "one per core")
        if casting not in get_args(Casting):
            known = ", ".join(map(repr, get_args(Casting)))
            raise ValueError(f"casting={casting!r}: expected one of {known}.")
        output = open_output(url, path, journal, storage_options)
        check_run(run, from_step)
        if rank is None:
            if from_step is not None:
                begin_all(output, from_step, run)
            return Writer(output, None, {}, None, None, casting)
        _check_rank(output, rank, gather)
        if gather is not None:
            agreed = smallest(gather, randbits(62))
            run = run or (None if from_step is None else f"together-{agreed:x}")
        name = output.rank_file(rank)
        appender = output.folder.appender(name, shortened)
        try:
            progress = Progress().add(output.folder.records(name))
            shares = {
                key: one.share(rank, shared=output.gathers) for key, one in output.series.items()
            }
            owned = [key for key, share in shares.items() if share.own]
            begin(output, progress, owned, from_step, run, appender)
            check = partial(check_not_past, output, rank, progress.rewind, appender)
            streams = {
                key: Stream(one, shares[key], progress, appender.add, check, threads)
                for key, one in output.series.items()
            }
            return Writer(output, rank, streams, appender, gather, casting)
        except BaseException:
            appender.close()
            raise

    @staticmethod
    def abandon(
        url: Location | Group,
        *,
        path: str = "",
        journal: Location | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Forget an output whose ranks will not go on, so that its arrays are like any others.

        Readers see what they saw. Stored objects of steps that were not visible are deleted, as far
        as the arrays are still those of the output.

        Parameters
        ----------
        url, path, journal, storage_options
            As given to `create`.

        Raises
        ------
        WriterNotFoundError
            If there is no output.
        RankError
            If a rank still runs; local files tell.
        """
        abandon_output(url, path, journal, storage_options)

    # --- what it is -------------------------------------------------------------------------------

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self._output.ranks

    @property
    def next_step(self) -> int:
        """The step to put next: the first one that this rank has not stored when it attached."""
        return self._next or 0

    @property
    def visible(self) -> int:
        """Steps that readers see."""
        return min(lengths(self._output).values())

    def stored(self) -> int:
        """Steps that all ranks have stored of all arrays: where a restart can begin."""
        return self._publisher_of_output().stored()

    def region(self, array: str) -> Region | None:
        """What this rank has of each step of an array; None for nothing.

        Examples
        --------
        >>> import zarr_dask as zd
        >>> arrays = {"u": {"shape": (4,), "dtype": "f4"}}
        >>> where, journal = {}, {}
        >>> owners = zd.owners((4,), (2,))
        >>> _ = zd.Writer.create(where, arrays, owners=owners, journal=journal)
        >>> zd.Writer.attach(where, 1, journal=journal).region("u")
        (slice(2, 4, 1),)
        """
        return self._streams[array].share.region

    def __repr__(self) -> str:
        who = "" if self.rank is None else f" rank {self.rank} of"
        return f"<zarr_dask.Writer{who} {self.ranks} ranks, {self._output.where}>"

    # --- putting ----------------------------------------------------------------------------------

    def put(self, step: int, blocks: Mapping[str, Any], *, flush: bool = False) -> None:
        """Give the block of this rank for one step of every array.

        It is kept in memory until the stored objects along the steps are whole. A step that was
        stored before this process attached is passed over.

        Parameters
        ----------
        step
            Its number; one after the other, beginning with `next_step`.
        blocks
            By the names of arrays; of the shapes of this rank's regions. Arrays of which this rank
            has nothing may be left out, and are passed over.
        flush
            Store this step and all before it now.

        Raises
        ------
        StepError
            If it is not this step's turn, or it lies beyond the capacity.
        GridError, DataTypeError
            If a block has another shape, or values that the array cannot hold; also if one is
            missing.
        StoreError
            If the store fails; the same step can be put again.
        """
        self._check_attached()
        check_flags(flush=flush)
        step = checked_step(self._output, step)
        if step < self._first:
            return
        if self._next is not None and step != self._next:
            raise StepError(
                f"rank {self.rank} puts step {step}, but step {self._next} comes next: steps are "
                "put once and in order. To begin again, attach with from_step=."
            )
        checked = self._checked(blocks)
        pieces = {
            name: pieces_of(checked[name], one.share.keep)
            for name, one in self._streams.items()
            if name in checked
        }
        if self._comm is not None:
            self._exchange(self._comm, step, checked, pieces)
        for name, found in pieces.items():
            self._streams[name].add(step, found)
        if flush:
            self.flush()
        elif self._output.border(step + 1) == step + 1:
            for one in self._streams.values():
                if one.series.is_coordinate:
                    one.flush()
        self._next, self._received = step + 1, None

    def _checked(self, blocks: Mapping[str, Any]) -> dict[str, np.ndarray]:
        if not isinstance(blocks, Mapping):
            raise TypeError(f"blocks={blocks!r}: expected the block of each array, by its name.")
        unknown = sorted(map(str, blocks.keys() - self._streams.keys()))
        needed = [name for name, one in self._streams.items() if one.share.region is not None]
        missing = [name for name in needed if name not in blocks]
        if unknown or missing:
            says = [f"no block for {missing}"] if missing else []
            says += [f"{unknown} are no growing arrays of this output"] if unknown else []
            raise GridError(f"rank {self.rank}: {'; '.join(says)}; expected blocks for {needed}.")
        return {name: self._streams[name].checked(blocks[name], self._casting) for name in needed}

    def _exchange(
        self,
        comm: Communicator,
        step: int,
        checked: Mapping[str, np.ndarray],
        pieces: dict[str, list[Any]],
    ) -> None:
        """Send pieces to the owners of their objects, and take those that others send."""
        if self._received is None or self._received[0] != step:
            self._received = step, self._sent_by_others(comm, step, checked)
        for source, sent in self._received[1].items():
            for name, values in sent.items():
                expected = self._streams[name].share.receive[source]
                pieces.setdefault(name, []).extend(zip(expected, values, strict=True))

    def _sent_by_others(
        self, comm: Communicator, step: int, checked: Mapping[str, np.ndarray]
    ) -> dict[int, dict[str, list[np.ndarray]]]:
        outgoing: dict[int, tuple[int, dict[str, list[np.ndarray]]]] = {}
        sources: set[int] = set()
        for name, one in self._streams.items():
            sources |= one.share.receive.keys()
            for dest, found in one.share.send.items():
                sent = [values for _, values in pieces_of(checked[name], found)]
                outgoing.setdefault(dest, (step, {}))[1][name] = sent
        received = {}
        for source, (at, sent) in exchange(comm, outgoing, sources).items():
            received[source] = sent
            if at != step:
                raise StepError(
                    f"rank {self.rank} puts step {step}, rank {source} puts step {at}: ranks that "
                    "share stored objects put together."
                )
        return received

    def flush(self) -> None:
        """Store all steps that were put, also where stored objects are not whole yet.

        Those are written once more when they are. Do so before a checkpoint.
        """
        self._check_attached()
        for one in self._streams.values():
            one.flush()

    def close(self) -> None:
        """Store what is in memory, and let another process be this rank."""
        if self._appender is not None:
            self.flush()
        self.release()

    def release(self) -> None:
        """Let another process be this rank; what is in memory is lost."""
        if self._appender is not None:
            self._appender.close()
            self._appender = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.release()

    def _check_attached(self) -> None:
        if self._appender is None:
            raise RankError("this writer puts nothing: it was closed, or attached without a rank.")

    # --- publishing -------------------------------------------------------------------------------

    def publish(self, step: int | None = None, *, flush: bool = False) -> int:
        """Let readers see the steps up to one; for one process at a time.

        The visible length ends where the stored objects of all arrays are whole: at `step`, or
        before it, with a `StepNotShownWarning`. It is never made shorter.

        Parameters
        ----------
        step
            The last step to be seen; by default the last one that all ranks have stored.
        flush
            Let it end at any step, with stored objects that are not whole. If this writer is a
            rank, it flushes; the others must have done so.

        Returns
        -------
        int
            Steps that are visible now.

        Raises
        ------
        StepsMissingError
            If a rank has not stored its part of them; it names ranks and stored objects.
            Nothing has changed then.
        StepError
            If `step` lies beyond the capacity.
        MetadataChangedError
            If an array is not the one any more that was created.
        """
        check_flags(flush=flush)
        if flush and self._appender is not None:
            self.flush()
        return self._publisher_of_output().publish(step, flush=flush)

    def finish(self) -> int:
        """Let readers see everything, and remove what lies beside the hierarchy.

        No rank can attach any more. Stored objects of steps that were forgotten, beyond the end,
        are deleted.

        Returns
        -------
        int
            Steps that are visible now.

        Raises
        ------
        RankError
            If a rank still runs; local files tell.
        StepsMissingError
            If a rank has not stored all that another one has. Nothing has changed then.
        WriterNotFoundError
            If the output has ended.
        """
        self.close()
        return self._publisher_of_output().finish()

    def _publisher_of_output(self) -> Publisher:
        if self._publisher is None:
            self._publisher = Publisher(self._output)
        return self._publisher


def _check_rank(output: Output, rank: Any, comm: Communicator | None) -> None:
    known = isinstance(rank, int | np.integer) and not isinstance(rank, bool)
    if not known or not 0 <= rank < output.ranks:
        raise RankError(
            f"rank={rank!r}: {output.where} is written by ranks 0 to {output.ranks - 1}."
        )
    if output.gathers and comm is None:
        raise RankError(
            f"{output.where} was created with gather=True: ranks share stored objects and need "
            "gather=, a communicator between them."
        )
    if comm is not None and not (hasattr(comm, "rank") and hasattr(comm, "size")):
        raise TypeError(f"gather={comm!r}: expected a communicator (of mpi4py), or None.")
    if comm is not None and (comm.rank, comm.size) != (rank, output.ranks):
        raise RankError(
            f"rank {rank} of {output.ranks} was given a communicator that says it is rank "
            f"{comm.rank} of {comm.size}."
        )
