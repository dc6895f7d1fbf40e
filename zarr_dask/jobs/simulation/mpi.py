"""Exchange of pieces of shared stored objects between ranks, through a communicator.

In each step a rank sends one message to each of its peers and receives one from each of them, also
where there is nothing to say. So a rank that fails, or ends early, can say so in the place of its
next message, and nobody waits for it for ever. The ranks above and below in a binary tree are peers
as well: the news reaches all ranks.

Communicators of mpi4py carry the elements in buffers that are made once, without pickling and
without blocking. `Communicator` is all that others need.
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np

from zarr_dask.errors import RankError, StepError

__all__ = ["Communicator", "Exchange", "agree"]

T = TypeVar("T")

_TAG = 27182
"""Tag of all messages of this module; the communicator may carry others as well."""
_DATA, _ENDED, _FAILED = range(3)
_HEADER = 32
"""Bytes before the elements in a buffer: kind, step, rank and the bytes of a text."""
_TEXT = 512
"""Maximum number of bytes of the text about a failure."""
_ALIGNMENT = 16
_LONGEST_PAUSE = 0.001

Layout = Sequence[tuple[tuple[int, ...], np.dtype]]
"""Shapes and data types of the arrays in the messages between two ranks."""


@runtime_checkable
class Communicator(Protocol):
    """Sends objects between the ranks of a job."""

    @property
    def rank(self) -> int:
        """Number of this process."""
        ...

    @property
    def size(self) -> int:
        """Number of processes."""
        ...

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Send a picklable object to another rank."""
        ...

    def recv(self, buf: Any = None, source: int = 0, tag: int = 0) -> Any:
        """Return the next object with this tag from another rank; wait for it. `buf` stays None."""
        ...


class _Message(NamedTuple):
    """Message of one rank to one other in a step."""

    kind: int
    step: int
    arrays: Sequence[np.ndarray] = ()
    rank: int = 0
    """The rank that has failed."""
    text: str = ""


class _Transport(Protocol):
    """Carries the messages of each step."""

    def swap(self, messages: Mapping[int, _Message]) -> dict[int, _Message]:
        """Send a message to each of some peers; return those of the same peers that have come.

        A message from a peer that never sends elements may come one step later.
        """
        ...

    def leave(self, messages: Mapping[int, _Message]) -> None:
        """Send the last messages to some peers."""
        ...

    def drain(self) -> list[_Message]:
        """Return the messages of these peers that were not returned yet; wait for all."""
        ...

    def close(self) -> None:
        """Free all that was made for messages; no peer sends any more."""
        ...


# --- messages through buffers ---------------------------------------------------------------------


def _wait(request: Any) -> None:
    """Wait for a request of MPI without keeping a core from ranks that have work."""
    pause = 0.0
    while not request.Test():
        time.sleep(pause)
        pause = min(max(2 * pause, 2e-5), _LONGEST_PAUSE)


class _Buffer:
    """One message in memory that is used in every step."""

    def __init__(self, layout: Layout) -> None:
        offsets, end = [], _HEADER
        for shape, dtype in layout:
            offsets.append(end)
            end += -(-prod(shape) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        self.memory = np.zeros(max(end, _HEADER + _TEXT), np.uint8)
        self._head = np.ndarray((4,), np.int64, self.memory)
        self._arrays = [
            np.ndarray(shape, dtype, self.memory, offset)
            for (shape, dtype), offset in zip(layout, offsets, strict=True)
        ]

    def put(self, message: _Message) -> None:
        text = message.text.encode()[:_TEXT]
        self._head[:] = message.kind, message.step, message.rank, len(text)
        self.memory[_HEADER : _HEADER + len(text)] = np.frombuffer(text, np.uint8)
        for target, values in zip(self._arrays, message.arrays, strict=False):
            target[...] = values

    def get(self) -> _Message:
        kind, step, rank, size = map(int, self._head)
        text = bytes(self.memory[_HEADER : _HEADER + size]).decode(errors="replace")
        return _Message(kind, step, self._arrays, rank, text)


class _Link:
    """The two buffers between this rank and a peer."""

    def __init__(self, comm: Any, peer: int, sends: Layout, receives: Layout) -> None:
        self.outgoing, self.incoming = _Buffer(sends), _Buffer(receives)
        self.send = comm.Send_init(self.outgoing.memory, dest=peer, tag=_TAG)
        self.recv = comm.Recv_init(self.incoming.memory, source=peer, tag=_TAG)
        self.is_late = not receives
        """True if nothing but news comes from this peer: it is read one step later."""
        self.due = 0
        """Number of messages that this peer sends and that were not read."""
        self._receiving = False

    def expect(self) -> None:
        """Count one more message, and let it come if none is on its way."""
        self.due += 1
        self._start()

    def _start(self) -> None:
        if self.due and not self._receiving:
            self.recv.Start()
            self._receiving = True

    def read(self) -> _Message:
        self._start()
        _wait(self.recv)
        self._receiving, self.due = False, self.due - 1
        return self.incoming.get()

    def free(self) -> None:
        self.send.Free()
        self.recv.Free()


class _PersistentMessages:
    """Messages through the persistent requests of mpi4py."""

    def __init__(
        self, comm: Any, sends: Mapping[int, Layout], receives: Mapping[int, Layout]
    ) -> None:
        self._comm = comm.Dup()
        self._links = {peer: _Link(self._comm, peer, sends[peer], receives[peer]) for peer in sends}
        self._last: dict[int, tuple[Any, _Buffer]] = {}
        """The last messages on their way, which must stay in memory, by peer."""

    def swap(self, messages: Mapping[int, _Message]) -> dict[int, _Message]:
        """See `_Transport.swap`."""
        links = {peer: self._links[peer] for peer in messages}
        late = {peer: one.read() for peer, one in links.items() if one.due}
        if any(message.kind != _DATA for message in late.values()):
            return late
        for peer, one in links.items():
            _wait(one.send)
            one.outgoing.put(messages[peer])
            one.expect()
            one.send.Start()
        return late | {peer: one.read() for peer, one in links.items() if not one.is_late}

    def leave(self, messages: Mapping[int, _Message]) -> None:
        """See `_Transport.leave`."""
        for peer, message in messages.items():
            buffer = _Buffer(())
            buffer.put(message)
            self._last[peer] = self._comm.Isend(buffer.memory, peer, _TAG), buffer
            self._links[peer].expect()

    def drain(self) -> list[_Message]:
        """See `_Transport.drain`."""
        from mpi4py import MPI

        found: list[_Message] = []
        if MPI.Is_finalized():
            return found
        for peer, (request, _) in self._last.items():
            link = self._links[peer]
            while link.due:
                found.append(link.read())
                if found[-1].kind != _DATA:
                    link.due = 0
            _wait(link.send)
            _wait(request)
        self._last.clear()
        return found

    def close(self) -> None:
        """See `_Transport.close`."""
        for link in self._links.values():
            link.free()
        self._comm.Free()


class _PickledMessages:
    """Messages as objects that a communicator sends and receives one by one.

    All pairs of ranks have one order, in which each rank handles its own. So there is no deadlock,
    even if a send blocks until the message is received.
    """

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._last: list[_Message] = []

    def swap(self, messages: Mapping[int, _Message]) -> dict[int, _Message]:
        """See `_Transport.swap`."""
        found = {}
        for peer in sorted(messages):
            if self._comm.rank < peer:
                self._comm.send(messages[peer], dest=peer, tag=_TAG)
            found[peer] = self._comm.recv(source=peer, tag=_TAG)
            if self._comm.rank > peer:
                self._comm.send(messages[peer], dest=peer, tag=_TAG)
        return found

    def leave(self, messages: Mapping[int, _Message]) -> None:
        """See `_Transport.leave`; waits for the messages of the peers."""
        self._last = list(self.swap(messages).values())

    def drain(self) -> list[_Message]:
        """See `_Transport.drain`."""
        return self._last

    def close(self) -> None:
        """See `_Transport.close`."""


# --- what ranks say -------------------------------------------------------------------------------


class Exchange:
    """The messages of this rank, step by step.

    Parameters
    ----------
    comm
        Communicator between the ranks.
    sends, receives
        Layouts of the arrays that go to and come from other ranks.
    fixed
        True if all elements of all arrays have fixed sizes.
    """

    def __init__(
        self,
        comm: Communicator,
        sends: Mapping[int, Layout],
        receives: Mapping[int, Layout],
        *,
        fixed: bool,
    ) -> None:
        self._rank = comm.rank
        tree = {(self._rank - 1) // 2, 2 * self._rank + 1, 2 * self._rank + 2}
        peers = sends.keys() | receives.keys() | (tree & set(range(comm.size)))
        self._transport: _Transport = (
            _PersistentMessages(
                comm,
                {peer: sends.get(peer, ()) for peer in peers},
                {peer: receives.get(peer, ()) for peer in peers},
            )
            if fixed and hasattr(comm, "Send_init")
            else _PickledMessages(comm)
        )
        self._receives = receives
        self._peers = sorted(peers)
        """Peers that have not left."""
        self._failure: tuple[int, str] | None = None
        self._is_open = True

    def step(
        self, step: int, outgoing: Mapping[int, Sequence[np.ndarray]]
    ) -> dict[int, Sequence[np.ndarray]]:
        """Send arrays to some ranks; return those that came from others.

        Raises
        ------
        RankError
            If a rank has failed, or has ended its output.
        StepError
            If a rank puts another step.
        """
        messages = {peer: _Message(_DATA, step, outgoing.get(peer, ())) for peer in self._peers}
        received = self._transport.swap(messages)
        self._look_at(received)
        for source in self._receives:
            if received[source].step != step:
                raise StepError(
                    f"rank {self._rank} puts step {step}, rank {source} puts step "
                    f"{received[source].step}: ranks that share stored objects put together."
                )
        return {source: received[source].arrays for source in self._receives}

    def _look_at(self, received: Mapping[int, _Message]) -> None:
        gone = {peer: one for peer, one in received.items() if one.kind != _DATA}
        self._peers = [peer for peer in self._peers if peer not in gone]
        for peer, message in gone.items():
            if message.kind == _ENDED:
                self._failure = peer, f"it closed its writer before step {message.step}"
        failed = next((one for one in gone.values() if one.kind == _FAILED), None)
        if failed is not None:
            self._failure = failed.rank, failed.text
        if gone:
            raise self._error()

    def _error(self) -> RankError:
        rank, text = self._failure or (self._rank, "")
        return _failed(rank, text)

    def end(self, step: int) -> None:
        """Tell the other ranks that this one puts no step any more, and wait until all say so.

        Raises
        ------
        RankError
            If a rank has failed.
        """
        if not self._is_open:
            return
        self._is_open = False
        messages = dict.fromkeys(self._peers, _Message(_ENDED, step))
        self._transport.leave(messages)
        for message in self._transport.drain():
            if message.kind == _FAILED:
                raise _failed(message.rank, message.text)
        self._transport.close()

    def fail(self, reason: str) -> None:
        """Tell the other ranks that this one has failed, once; the first reason goes around."""
        if not self._is_open:
            return
        self._is_open = False
        rank, text = self._failure or (self._rank, reason)
        messages = dict.fromkeys(self._peers, _Message(_FAILED, 0, (), rank, text))
        self._transport.leave(messages)
        # not now: a peer that computes for long would keep the error from being shown
        atexit.register(self._transport.drain)


def _failed(rank: int, text: str) -> RankError:
    return RankError(
        f"rank {rank} has failed ({text}), and this rank shares stored objects with it: nothing "
        "more was written. Attach all ranks again; the first step that is not stored comes next."
    )


def describe(error: BaseException) -> str:
    """Return the type and the message of an error, for a part of a sentence."""
    return f"{type(error).__name__}: {error}".rstrip(". ")


def agree(comm: Communicator, work: Callable[[], T], number: Callable[[T], int]) -> tuple[T, int]:
    """Return the result of some work, and the smallest number that a rank makes of its result.

    Raises
    ------
    RankError
        If the work fails in another rank.
    """
    try:
        result = work()
        mine = number(result)
    except BaseException as error:
        _smallest(comm, 0, (comm.rank, describe(error)))
        raise
    least, failure = _smallest(comm, mine, None)
    if failure is not None:
        raise _failed(*failure)
    return result, least


def _smallest(
    comm: Communicator, number: int, failure: tuple[int, str] | None
) -> tuple[int, tuple[int, str] | None]:
    """Return the smallest of the numbers that all ranks give, and the first failure."""
    if comm.rank:
        comm.send((number, failure), dest=0, tag=_TAG)
        answer: tuple[int, tuple[int, str] | None] = comm.recv(source=0, tag=_TAG)
        return answer
    others = range(1, comm.size)
    every = [(number, failure), *(comm.recv(source=other, tag=_TAG) for other in others)]
    answer = min(one for one, _ in every), next((one for _, one in every if one), None)
    for other in others:
        comm.send(answer, dest=other, tag=_TAG)
    return answer
