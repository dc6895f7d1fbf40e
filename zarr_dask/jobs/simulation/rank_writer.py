"""Output of a simulation from many independent processes; needs no dask.

One process creates the output, every rank attaches and puts its block of each step, one process
makes steps visible::

    zd.Writer.create("run.zarr", {"u": {...}, "time": {...}}, owners=zd.decompose((ny, nx), (4, 4)))

    with zd.Writer.attach("run.zarr", rank=rank) as writer:
        for step in range(writer.next_step, steps):
            writer.write_step(step, {"u": block, "time": time})

    zd.Writer.attach("run.zarr").publish()

Beside this module, `decomposition` assigns stored objects to ranks, `output` holds the shared
description, `rank_buffer` keeps steps until objects are whole and writes them, `rank_log` records
stored steps, `publish` makes steps visible, `restarts` goes back to a checkpoint, and `mpi` lets
ranks share stored objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from secrets import randbits
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self
from weakref import finalize

import numpy as np

from zarr_dask._util.arguments import MadeBy, check_bools, check_choice, check_count
from zarr_dask._util.keywords import takes_habits
from zarr_dask.array.common_names import no_attribute
from zarr_dask.dtypes.base import Casting
from zarr_dask.errors import GridError, RankError, StepError
from zarr_dask.grid.grid import Region
from zarr_dask.hierarchy.group import Group
from zarr_dask.jobs.simulation.decomposition import BlockPiece, Decomposition
from zarr_dask.jobs.simulation.mpi import Communicator, Exchange, agree, describe
from zarr_dask.jobs.simulation.output import (
    Output,
    OutputArguments,
    abandon_output,
    create_output,
    open_output,
)
from zarr_dask.jobs.simulation.progress import RankProgress, compact_log
from zarr_dask.jobs.simulation.publish import Publisher, checked_step, consolidate, lengths
from zarr_dask.jobs.simulation.rank_buffer import RankBuffer, pieces_of
from zarr_dask.jobs.simulation.rank_log import LogWriter
from zarr_dask.jobs.simulation.restarts import (
    begin,
    begin_all,
    check_ended,
    check_not_past,
    check_run,
)
from zarr_dask.stores.open import Location

__all__ = ["Writer"]


_FINISHED = -1
"""Said by a rank that has found a finished output: less than any random number."""
_NO_STEP = 1 << 62
"""Next step of a rank that stores nothing: any other one goes before it."""


_WRITE_STEP = "writer.write_step(step, {name: block}) puts the blocks of a step."
_RESTART = "Writer.attach(url, rank=..., from_step=...) restarts from a checkpoint."
_HINTS = {
    **dict.fromkeys(("append", "put", "put_step", "step", "write", "write_block"), _WRITE_STEP),
    **dict.fromkeys(("begin_step", "end_step"), _WRITE_STEP),
    **dict.fromkeys(("checkpoint", "commit", "sync"), "writer.flush() stores all steps so far."),
    **dict.fromkeys(("discard", "restart", "resume", "rewind", "rollback", "truncate"), _RESTART),
    **dict.fromkeys(("last_step", "nsteps", "num_steps", "steps"), "writer.next_step comes next."),
    **dict.fromkeys(
        ("arrays", "open", "read", "variables"), "zarr_dask.open(url) reads the output."
    ),
    **dict.fromkeys(("decomposition", "owners"), "writer.region(name) is the block of this rank."),
    **dict.fromkeys(
        ("block", "local_shape", "shape"), "writer.region(name) is the block of this rank."
    ),
    "status": "writer.stored() is the number of steps that all ranks have stored.",
}
"""Names of other libraries, and what to write instead."""


class Writer(MadeBy):
    """Output of a simulation, in one of its processes.

    Made by `Writer.create`, once, and `Writer.attach`, in every rank.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import zarr_dask as zd
    >>> folder = tempfile.TemporaryDirectory()
    >>> url = f"{folder.name}/run.zarr"
    >>> arrays = {
    ...     "u": {"shape": (4,), "dtype": "f4", "chunks": (2, 2)},
    ...     "time": {"shape": (), "dtype": "f8"},
    ... }
    >>> _ = zd.Writer.create(url, arrays, owners=zd.decompose((4,), (2,)))
    >>> for rank in range(2):
    ...     with zd.Writer.attach(url, rank=rank) as writer:
    ...         for step in range(5):
    ...             writer.write_step(step, {"u": np.full(2, step, "f4"), "time": step / 2})
    >>> zd.Writer.attach(url).publish()  # the last object along the steps is not whole
    4
    >>> zd.open(url)["u"][:, 3].tolist(), zd.open(url)["time"][...].tolist()
    ([0.0, 1.0, 2.0, 3.0], [0.0, 0.5, 1.0, 1.5])
    >>> zd.Writer.attach(url).publish(flush=True)
    5
    >>> folder.cleanup()
    """

    _made_by = (
        "Writer.create(url, arrays, owners=...) makes an output, once, and "
        "Writer.attach(url, rank=...) opens it in each rank"
    )

    if not TYPE_CHECKING:  # a type checker knows which attributes there are

        def __getattr__(self, name: str) -> NoReturn:
            no_attribute("Writer", name, _HINTS, dir(type(self)))

    def __init__(
        self,
        output: Output,
        rank: int | None,
        streams: Mapping[str, RankBuffer],
        appender: LogWriter | None,
        casting: Casting,
    ) -> None:
        self._output = output
        self._streams = streams
        self._appender = appender
        self._casting = casting
        self._exchange: Exchange | None = None
        self._received: tuple[int, dict[int, Sequence[np.ndarray]]] | None = None
        """Pieces from other ranks of a step that could not be stored: they are sent only once."""
        self._publisher: Publisher | None = None
        self.rank = rank
        """Number of this process; None for one that does not put steps."""
        self._next = min((one.stored for one in streams.values() if one.share.own), default=None)
        self._first = self._next or 0

    # --- making one -------------------------------------------------------------------------------

    @staticmethod
    @takes_habits(store="url")
    def create(
        url: Location | Group,
        arrays: Mapping[str, Mapping[str, Any]],
        *,
        path: str = "",
        capacity: int | None = None,
        owners: Decomposition | Mapping[str, Decomposition] | None = None,
        gather: bool = False,
        attributes: Mapping[str, Any] | None = None,
        format: str | None = None,
        overwrite: bool = False,
        journal: Location | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Writer:
        """Make the arrays of an output, without steps.

        A script that is started again after the end of its simulation may call this again: the
        same arguments find the finished output, and nothing is written.

        Parameters
        ----------
        url, path
            Location of the group of the arrays, which may exist; a group that is open for writing
            may replace both.
        arrays
            For each array, by its path below the group, the arguments of `zarr_dask.create_array`.
            ``shape`` is that of one step, without time. ``chunks`` and ``shards`` start with the
            number of steps in a stored object; ``axis`` moves the steps to another dimension. By
            default a chunk is one step of a rank's block, or a part of it of at most 4 MiB.
            ``values`` makes an array that does not grow, written at once.
        capacity
            Maximum number of steps; None for no limit.
        owners
            The regions of the ranks: one map for all arrays whose steps have its shape, or maps by
            the names of arrays. Rank 0 writes arrays without a map, and arrays with one value per
            step.
        gather
            Let ranks share stored objects: the first rank that overlaps an object collects it. All
            ranks must then attach with a communicator and put together.
        attributes
            Attributes of the group, if it is new.
        format
            Format of the arrays; that of the group, if it exists already.
        overwrite
            Replace arrays of the same names, and an unfinished output.
        journal
            A folder for the receipts of the ranks; by default beside the hierarchy
            (``run.zarr.zarr-dask``). Stores that have nothing beside them need one.
        storage_options
            Options of the store.

        Returns
        -------
        Writer
            A writer that publishes, but does not put steps.

        Raises
        ------
        SharedObjectError
            If two ranks would write one stored object; the error names a layout that would fit.
        GridError, DataTypeError, MetadataError, TypeError
            If an array is not possible as described.
        NodeExistsError
            If something exists at the location of an array, or the group has another format.
        RankError
            If another output is open there, and may not be replaced or has a running rank.
        ReadOnlyError
            If ranks cannot write to the store.
        StoreError
            If there is no location for the journal.
        """
        check_bools(gather=gather, overwrite=overwrite)
        request = OutputArguments(
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
        if output.ended is None:
            consolidate(output)
        return Writer(output, None, {}, None, "safe")

    @staticmethod
    @takes_habits(store="url")
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
        """Join an existing output, at the start or after a restart.

        An output that was finished has no step left: `next_step` is its number of steps, steps
        that are put again are skipped, `publish` and `finish` return that number.

        Parameters
        ----------
        url, path
            Location of the output.
        rank
            Number of this process; None for one that does not put steps. Two processes cannot be
            the same rank at the same time.
        from_step
            Restart with this step, from a checkpoint: all ranks discard it and all later steps,
            which are hidden from readers before anything is overwritten. Without a rank, this is
            done for all ranks, which then attach as usual.
        run
            Name of the run that starts with `from_step`: the same in all of its ranks, and another
            one in each run, such as the number of the job. It distinguishes two restarts from the
            same step; a rank that attaches again in the same run continues where it was. Ranks that
            gather agree on a name themselves.
        gather
            For an output created with ``gather=True``: the communicator between the ranks, of
            mpi4py for instance. All ranks attach, and put, together.
        casting
            Casts that are allowed for blocks, as in `numpy.can_cast`.
        threads
            Number of threads that encode and write the stored objects of this rank; None for one
            per core.
        journal, storage_options
            Same values as for `create`.

        Raises
        ------
        WriterNotFoundError
            If no output was created there, or its arrays have been replaced since it was finished.
        RankError
            If there is no such rank, another running process is this rank, or ranks that share
            stored objects have no communicator.
        StepError
            If steps before `from_step` are not stored, or the run has started with another step,
            or the output was finished by another run.
        """

        def prepare() -> Output:
            check_count("threads", threads, "one per core")
            check_choice("casting", casting, Casting)
            output = open_output(url, path, journal, storage_options, finished=True)
            check_run(run, from_step)
            if rank is not None:
                _check_rank(output, rank, gather)
            check_ended(output, from_step, run)
            return output

        if rank is None:
            output = prepare()
            if from_step is not None and output.ended is None:
                begin_all(output, from_step, run)
            return Writer(output, None, {}, None, casting)
        if gather is None:
            return Writer._attached(prepare(), rank, from_step, run, casting, threads)
        _check_communicator(gather)
        output, agreed = agree(gather, prepare, _number_of_run)
        if agreed == _FINISHED:
            return Writer._attached(_finished(output), rank, None, None, casting, threads)
        run = run or (None if from_step is None else f"together-{agreed:x}")
        attached = partial(Writer._attached, output, rank, from_step, run, casting, threads)
        with ExitStack() as stack:

            def attach() -> Writer:
                writer = attached()
                stack.callback(writer.release)
                return writer

            writer, first = agree(gather, attach, Writer._first_or_none)
            Writer._join(writer, gather, None if first == _NO_STEP else first)
            stack.pop_all()
        return writer

    @staticmethod
    def _attached(
        output: Output,
        rank: int,
        from_step: int | None,
        run: str | None,
        casting: Casting,
        threads: int | None,
    ) -> Writer:
        """Return a writer of a rank that has locked its file and has taken part in restarts."""
        if output.ended is not None:
            return Writer._past(output, output.ended.steps, rank, casting)
        name = output.rank_file(rank)
        appender = output.folder.appender(name, compact_log)
        try:
            progress = RankProgress().add(output.folder.records(name))
            shares = {
                key: one.share(rank, shared=output.gathers) for key, one in output.series.items()
            }
            owned = [key for key, share in shares.items() if share.own]
            begin(output, progress, owned, from_step, run, appender)
            check = partial(check_not_past, output, rank, progress.rewind, appender)
            streams = {
                key: RankBuffer(one, shares[key], progress, appender.add, check, threads)
                for key, one in output.series.items()
            }
            return Writer(output, rank, streams, appender, casting)
        except BaseException:
            appender.close()
            raise

    @staticmethod
    def _past(output: Output, steps: int, rank: int, casting: Casting) -> Writer:
        """Return a writer of a rank of a finished output, which stores nothing."""
        progress = RankProgress(stored=dict.fromkeys(output.series, steps))
        refuse = partial(_refuse, output)
        streams = {
            key: RankBuffer(
                one, one.share(rank, shared=output.gathers), progress, refuse, refuse, 1
            )
            for key, one in output.series.items()
        }
        return Writer(output, rank, streams, None, casting)

    def _first_or_none(self) -> int:
        return _NO_STEP if self._next is None else self._next

    def _join(self, comm: Communicator, first: int | None) -> None:
        """Begin with the step that all ranks have agreed on."""
        self._next, self._first = first, first or 0
        streams = self._streams.values()
        self._exchange = Exchange(
            comm,
            _layouts((one.series.array.dtype, one.share.send) for one in streams),
            _layouts((one.series.array.dtype, one.share.receive) for one in streams),
            fixed=not any(one.series.array.meta.data_type.variable for one in streams),
        )
        finalize(self, self._exchange.fail, "its writer was not closed")

    @staticmethod
    @takes_habits(store="url")
    def abandon(
        url: Location | Group,
        *,
        path: str = "",
        journal: Location | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Discard an output whose ranks will not continue, so that its arrays become ordinary ones.

        Visible steps stay visible. Stored objects of other steps are deleted, if the arrays are
        still those of the output.

        Parameters
        ----------
        url, path, journal, storage_options
            Same values as for `create`.

        Raises
        ------
        WriterNotFoundError
            If there is no output.
        RankError
            If a rank still runs; this is only detected on local files.
        """
        abandon_output(url, path, journal, storage_options)

    # --- properties -------------------------------------------------------------------------------

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self._output.ranks

    @property
    def next_step(self) -> int:
        """The step to put next: the first that this rank had not stored when it attached."""
        ended = self._output.ended
        return (self._next or 0) if ended is None else ended.steps

    @property
    def finished(self) -> bool:
        """True if the output was finished before this process attached: nothing is left to do."""
        return self._output.ended is not None

    @property
    def visible(self) -> int:
        """Number of steps that readers see."""
        return min(lengths(self._output).values())

    def stored(self) -> int:
        """Return the number of steps that all ranks have stored, where a restart can start."""
        if self._output.ended is not None:
            return self._output.ended.steps
        return self._publisher_of_output().stored()

    @takes_habits()
    def region(self, array: str) -> Region | None:
        """Return this rank's region in each step of an array; None for no elements.

        Examples
        --------
        >>> import zarr_dask as zd
        >>> arrays = {"u": {"shape": (4,), "dtype": "f4"}}
        >>> where, journal = {}, {}
        >>> owners = zd.decompose((4,), (2,))
        >>> _ = zd.Writer.create(where, arrays, owners=owners, journal=journal)
        >>> zd.Writer.attach(where, 1, journal=journal).region("u")
        (slice(2, 4, 1),)
        """
        return self._streams[array].share.region

    def __repr__(self) -> str:
        who = "" if self.rank is None else f" rank {self.rank} of"
        return f"<zarr_dask.Writer{who} {self.ranks} ranks, {self._output.where}>"

    # --- putting ----------------------------------------------------------------------------------

    @takes_habits()
    def write_step(self, step: int, blocks: Mapping[str, Any], *, flush: bool = False) -> None:
        """Put the block of this rank for one step of every array.

        Blocks are kept in memory until the stored objects along the steps are whole. A step that
        was stored before this process attached is skipped.

        Parameters
        ----------
        step
            Number of the step; steps are put in order, starting with `next_step`.
        blocks
            Blocks by the names of arrays, with the shapes of this rank's regions. Arrays without
            elements of this rank may be left out, and are ignored.
        flush
            Store this step and all earlier ones now.

        Raises
        ------
        StepError
            If another step comes next, or the step exceeds the capacity.
        GridError, DataTypeError
            If a block has another shape or is missing, or has values that the array cannot hold.
        StoreError
            If the store fails; the same step can be put again.
        """
        self._check_attached()
        check_bools(flush=flush)
        step = checked_step(self._output, step)
        if self._is_past(step) or step < self._first:
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
        if self._exchange is not None:
            self._swap(self._exchange, step, checked, pieces)
        for name, found in pieces.items():
            self._streams[name].add(step, found)
        if flush:
            self.flush()
        elif self._output.border(step + 1) == step + 1:
            for one in self._streams.values():
                if one.series.is_coordinate:
                    one.flush()
        self._next, self._received = step + 1, None

    def _is_past(self, step: int) -> bool:
        """True if the output is finished and has a step; raise if it is finished without it."""
        ended = self._output.ended
        if ended is not None and step >= ended.steps:
            raise StepError(
                f"{self._output.where} was finished with {ended.steps} steps, 0 to "
                f"{ended.steps - 1}; step {step} cannot be added. Create an output of another "
                "name, or replace this one with overwrite=True."
            )
        return ended is not None

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

    def _swap(
        self,
        exchange: Exchange,
        step: int,
        checked: Mapping[str, np.ndarray],
        pieces: dict[str, list[Any]],
    ) -> None:
        """Send pieces to the owners of their objects, and receive those of other ranks."""
        if self._received is None or self._received[0] != step:
            outgoing: dict[int, list[np.ndarray]] = {}
            for name, one in self._streams.items():
                for dest, found in one.share.send.items():
                    sent = (values for _, values in pieces_of(checked[name], found))
                    outgoing.setdefault(dest, []).extend(sent)
            self._received = step, exchange.step(step, outgoing)
        for source, arrays in self._received[1].items():
            values = iter(arrays)
            for name, one in self._streams.items():
                for piece in one.share.receive.get(source, ()):
                    pieces.setdefault(name, []).append((piece, next(values)))

    def flush(self) -> None:
        """Store all steps that were put, even if stored objects are not whole yet.

        Those objects are written again when they are whole. Call it before a checkpoint.
        """
        self._check_attached()
        for one in self._streams.values():
            one.flush()

    def close(self) -> None:
        """Store the steps in memory, and let another process take this rank.

        Ranks that gather close together.

        Raises
        ------
        RankError
            If a rank that gathers with this one has failed; this one has stored its steps.
        """
        if self._appender is not None:
            self.flush()
            if self._exchange is not None:
                self._exchange.end(self.next_step)
        self.release()

    def release(self) -> None:
        """Let another process take this rank; steps in memory are lost.

        Ranks that gather with this one get a `RankError`, if it was not closed.
        """
        if self._exchange is not None:
            self._exchange.fail("it was released")
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
            try:
                self.close()
            except BaseException as failed:
                self._fail(failed)
                raise
        else:
            self._fail(error)

    def _fail(self, error: BaseException | None) -> None:
        if self._exchange is not None and error is not None:
            self._exchange.fail(f"before its step {self.next_step}: {describe(error)}")
        self.release()

    def _check_attached(self) -> None:
        if self._appender is None and (self.rank is None or not self.finished):
            raise RankError("this writer puts nothing: it was closed, or attached without a rank.")

    # --- publishing -------------------------------------------------------------------------------

    @takes_habits()
    def publish(self, step: int | None = None, *, flush: bool = False) -> int:
        """Make steps visible up to a given one; only one process at a time may do this.

        The visible length ends where the stored objects of all arrays are whole: at `step`, or
        before it, with a `StepNotShownWarning`. It never decreases.

        Parameters
        ----------
        step
            Last step to make visible; by default the last one that all ranks have stored.
        flush
            Let the visible length end at any step, even if stored objects are not whole. If this
            writer has a rank, it flushes; the other ranks must have flushed.

        Returns
        -------
        int
            Number of visible steps.

        Raises
        ------
        StepsMissingError
            If a rank has not stored its part of the steps; the error names ranks and stored
            objects. Nothing has changed.
        StepError
            If `step` exceeds the capacity.
        MetadataChangedError
            If an array is no longer the one that was created.
        """
        check_bools(flush=flush)
        if self._output.ended is not None:
            if step is not None:
                self._is_past(checked_step(self._output, step))
            return self._output.ended.steps
        if flush and self._appender is not None:
            self.flush()
        return self._publisher_of_output().publish(step, flush=flush)

    def finish(self) -> int:
        """Make everything visible, and remove the files beside the hierarchy.

        A small record of the end stays, so that the same script may run again. Stored objects of
        discarded steps, beyond the end, are deleted.

        Returns
        -------
        int
            Number of visible steps.

        Raises
        ------
        RankError
            If a rank still runs; this is only detected on local files.
        StepsMissingError
            If a rank has not stored all steps that another one has. Nothing has changed.
        WriterNotFoundError
            If another process has ended the output meanwhile.
        """
        self.close()
        if self._output.ended is not None:
            self._output.remove_rest()
            return self._output.ended.steps
        return self._publisher_of_output().finish()

    def _publisher_of_output(self) -> Publisher:
        if self._publisher is None:
            self._publisher = Publisher(self._output)
        return self._publisher


def _layouts(
    parts: Iterable[tuple[np.dtype, Mapping[int, Iterable[BlockPiece]]]],
) -> dict[int, list[tuple[tuple[int, ...], np.dtype]]]:
    """Return shapes and data types of all pieces of a step, by the rank at the other end."""
    found: dict[int, list[tuple[tuple[int, ...], np.dtype]]] = {}
    for dtype, pieces_of_ranks in parts:
        for other, pieces in pieces_of_ranks.items():
            shapes = (tuple(one.stop - one.start for one in piece.block) for piece in pieces)
            found.setdefault(other, []).extend((shape, dtype) for shape in shapes)
    return found


def _number_of_run(output: Output) -> int:
    return randbits(62) if output.ended is None else _FINISHED


def _finished(output: Output) -> Output:
    """Return a finished output; raise if only other ranks have found it finished."""
    if output.ended is None:
        raise RankError(f"{output.where} was finished while its ranks attached; attach again.")
    return output


def _refuse(output: Output, *_: Any) -> NoReturn:
    raise RankError(f"{output.where} was finished: nothing may be written to it.")


def _check_communicator(comm: Any) -> None:
    if not (hasattr(comm, "rank") and hasattr(comm, "size")):
        raise TypeError(f"gather={comm!r}: expected a communicator (of mpi4py), or None.")


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
    if comm is not None and (comm.rank, comm.size) != (rank, output.ranks):
        raise RankError(
            f"rank {rank} of {output.ranks} was given a communicator that says it is rank "
            f"{comm.rank} of {comm.size}."
        )
