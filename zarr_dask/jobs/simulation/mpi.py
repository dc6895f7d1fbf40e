"""Exchange of pieces of shared stored objects between ranks, through a communicator.

`Communicator` is the required interface; communicators of mpi4py satisfy it. All ranks send and
receive the messages between two ranks in one order. So there is no deadlock, even if a send blocks
until the message is received.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

__all__ = ["Communicator", "allreduce_min", "exchange"]

_TAG = 27182
"""Tag of all messages of this module; the communicator may carry others as well."""


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


def exchange(
    comm: Communicator, outgoing: Mapping[int, Any], sources: Iterable[int]
) -> dict[int, Any]:
    """Send a message to some ranks and receive one from each of others.

    All messages of a step have one order, by sender and receiver, and each rank handles its own in
    that order. So the first unfinished message is always the next one for both of its ranks.

    Returns
    -------
    dict
        Received messages, by sender.
    """
    rank = comm.rank
    received = {}
    for source, dest in sorted({(rank, to) for to in outgoing} | {(of, rank) for of in sources}):
        if source == rank:
            comm.send(outgoing[dest], dest=dest, tag=_TAG)
        else:
            received[source] = comm.recv(source=source, tag=_TAG)
    return received


def allreduce_min(comm: Communicator, number: int) -> int:
    """Return the smallest of the numbers that all ranks give, on all ranks."""
    if comm.rank:
        comm.send(number, dest=0, tag=_TAG)
        return int(comm.recv(source=0, tag=_TAG))
    others = range(1, comm.size)
    result = min(number, *(int(comm.recv(source=other, tag=_TAG)) for other in others), number)
    for other in others:
        comm.send(result, dest=other, tag=_TAG)
    return result
