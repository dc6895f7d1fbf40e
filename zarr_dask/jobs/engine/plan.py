"""Values and texts that all plans share: sizes, counts, regions, costs, results of tasks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from zarr_dask.errors import MemoryBudgetError

__all__ = [
    "CopyResult",
    "Costs",
    "ProcessMemory",
    "add_requests",
    "format_bytes",
    "format_region",
    "format_requests",
    "format_times",
    "parse_bytes",
    "pluralize",
]


_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "p": 10**15}
_BINARY = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40, "pi": 2**50}
_SIZE = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*(|[kmgtp]|[kmgtp]i)b?\s*", re.IGNORECASE)


def parse_bytes(size: str | int, option: str = "") -> int:
    """Return a number of bytes from a number or a text with a unit; an error names the option.

    Raises
    ------
    MemoryBudgetError
        If it is neither.

    Examples
    --------
    >>> parse_bytes("256MB"), parse_bytes("1.5 GiB"), parse_bytes(1000)
    (256000000, 1610612736, 1000)
    """
    match = _SIZE.fullmatch(str(size))
    if match is None:
        given = f"{option}={size!r}" if option else repr(size)
        raise MemoryBudgetError(f"{given} is not a size: expected bytes, or '256MB', '2GiB' ...")
    unit = match[2].lower()
    return int(float(match[1]) * {**_UNITS, **_BINARY}[unit])


def format_times(ratio: float) -> str:
    """Return a ratio of times in digits.

    Examples
    --------
    >>> format_times(1.234), format_times(3417.3)
    ('1.2', '3,417')
    """
    return f"{ratio:.2g}" if ratio < 99.5 else f"{ratio:,.0f}"


def pluralize(number: int, noun: str) -> str:
    """Return a number with its noun.

    Examples
    --------
    >>> pluralize(1, "task"), pluralize(1200, "task")
    ('1 task', '1,200 tasks')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


LISTED = 100
"""Maximum number of arrays or nodes that a text names one by one."""


def more_line(count: int, noun: str) -> list[str]:
    """Return the line below a list of the first `LISTED` of some things, if there are more.

    Examples
    --------
    >>> more_line(1_200, "array")
    ['  and 1,100 more arrays']
    >>> more_line(LISTED, "array")
    []
    """
    more = count - LISTED
    return [f"  and {pluralize(more, f'more {noun}')}"] if more > 0 else []


def format_bytes(size: float) -> str:
    """Return a number of bytes as text for people.

    Examples
    --------
    >>> format_bytes(999), format_bytes(134217728), format_bytes(2e12)
    ('999 B', '134 MB', '2.00 TB')
    """
    for unit, name in ((10**15, "PB"), (10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size >= unit:
            number = size / unit
            return f"{number:.{max(0, 3 - len(str(int(number))))}f} {name}"
    return f"{size:.0f} B"


def format_region(region: tuple[slice, ...]) -> str:
    """Return a region in the notation of an index.

    Examples
    --------
    >>> format_region((slice(0, 10), slice(5, 6)))
    '[0:10, 5:6]'
    """
    steps = ("" if s.step in {None, 1} else f":{s.step}" for s in region)
    texts = (f"{s.start}:{s.stop}{step}" for s, step in zip(region, steps, strict=True))
    return f"[{', '.join(texts)}]"


@dataclass(frozen=True, slots=True)
class Costs:
    """Cost of a job or of a stage."""

    decoded: int = 0
    """Decoded bytes; a chunk counts each time it is read."""
    written: int = 0
    """Decoded bytes that are to be encoded."""
    reads: int = 0
    """Read requests."""
    writes: int = 0
    """Write requests."""
    read: int = 0
    """Stored bytes that are read; an estimate in a plan."""
    stored: int = 0
    """Stored bytes that are written; an estimate in a plan."""

    @property
    def requests(self) -> int:
        """Read and write requests together."""
        return self.reads + self.writes

    @property
    def by_kind(self) -> dict[str, int]:
        """Requests by kind, as reports count them."""
        return {"read": self.reads, "write": self.writes}

    def __add__(self, other: Costs) -> Costs:
        return Costs(
            self.decoded + other.decoded,
            self.written + other.written,
            self.reads + other.reads,
            self.writes + other.writes,
            self.read + other.read,
            self.stored + other.stored,
        )


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
    absent: int = 0
    """Absent chunks, or parts of absent objects, that were filled instead of read."""
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
