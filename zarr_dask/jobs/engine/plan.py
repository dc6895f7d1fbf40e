"""Formatting and parsing that all plans share: sizes, counts, regions, and costs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from zarr_dask.errors import MemoryBudgetError

__all__ = ["Costs", "format_bytes", "format_region", "parse_bytes", "pluralize"]

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


def pluralize(number: int, noun: str) -> str:
    """Return a number with its noun.

    Examples
    --------
    >>> pluralize(1, "task"), pluralize(1200, "task")
    ('1 task', '1,200 tasks')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


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
