"""Results of tasks: what was copied, by which process, in what time and memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

__all__ = ["CopyResult", "ProcessMemory", "add_requests", "format_requests"]


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Process that ran a task."""

    name: str = ""
    idle: int = 0
    """Resident bytes while no task ran."""
    peak: int = 0
    """Maximum resident bytes that were measured: after reading, and with each large object."""


@dataclass(frozen=True, slots=True)
class CopyResult:
    """Result of one task."""

    nbytes: int
    """Decoded bytes copied, as elements of the job's source."""
    stored: int
    """Encoded bytes written."""
    objects: int
    """Stored objects that were written, or left out because all their values are the fill value."""
    decoded: int = 0
    """Decoded bytes of all chunks that were read, each as a whole."""
    encoded: int = 0
    """Decoded bytes of the objects that were written, each as a whole."""
    read: int = 0
    """Encoded bytes read."""
    reads: int = 0
    """Requests that read them."""
    seconds: float = 0.0
    process: ProcessMemory = field(default_factory=ProcessMemory)
    """Process that ran the task."""
    retried: int = 0
    """Requests that were retried."""
    waited: float = 0.0
    """Seconds that retried requests have waited, of all threads together."""
    requests: Mapping[str, int] = field(default_factory=dict)
    """Requests by kind, repeated ones included; files have none."""


def add_requests(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the sums of requests by kind.

    Examples
    --------
    >>> add_requests([{"read": 2}, {"read": 1, "write": 4}])
    {'read': 3, 'write': 4}
    """
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return dict(total)


def format_requests(counts: Mapping[str, int]) -> str:
    """Return requests by kind as text for people.

    Examples
    --------
    >>> format_requests({"write": 1200, "read": 3})
    '3 read, 1,200 write'
    """
    return ", ".join(f"{counts[kind]:,} {kind}" for kind in sorted(counts)) or "none"
