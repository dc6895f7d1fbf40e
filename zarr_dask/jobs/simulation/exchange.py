"""Pieces of blocks that go to the owners of shared stored objects, through a communicator.

All that is asked of a communicator is `Communicator`; those of mpi4py are such. Messages between
two ranks are sent and received in one order on all ranks, so that nothing waits in a circle even
where a message is only sent once it is received.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

__all__ = ["Communicator", "exchange", "smallest"]

_TAG = 27182
"""Of all our messages; the communicator may carry others as well."""


@runtime_checkable
class Communicator(Protocol):
    """What carries objects between the ranks of a job."""

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
        """The next object with that tag from another rank; waits for it. `buf` stays None."""
        ...


def exchange(
    comm: Communicator, outgoing: Mapping[int, Any], sources: Iterable[int]
) -> dict[int, Any]:
    """Send a message to some ranks and receive one from each of others.

    All messages of a step have one order, by sender and receiver, and each rank takes its own in
    that order. Of the messages that are not through yet the first one is always next for both of
    its ranks.

    Returns
    -------
    dict
        What came, by sender.
    """
    rank = comm.rank
    received = {}
    for source, dest in sorted({(rank, to) for to in outgoing} | {(of, rank) for of in sources}):
        if source == rank:
            comm.send(outgoing[dest], dest=dest, tag=_TAG)
        else:
            received[source] = comm.recv(source=source, tag=_TAG)
    return received


def smallest(comm: Communicator, number: int) -> int:
    """The smallest of the numbers that all ranks give, for all ranks."""
    if comm.rank:
        comm.send(number, dest=0, tag=_TAG)
        return int(comm.recv(source=0, tag=_TAG))
    others = range(1, comm.size)
    result = min(number, *(int(comm.recv(source=other, tag=_TAG)) for other in others), number)
    for other in others:
        comm.send(result, dest=other, tag=_TAG)
    return result
