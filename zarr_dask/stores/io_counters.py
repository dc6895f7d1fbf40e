"""The counts of what was read from a store."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["IOCounters"]


@dataclass
class IOCounters:
    """The amount of data read."""

    requests: int = 0
    """Number of read requests; a batch from an open file counts as one, a peek as none."""
    nbytes: int = 0
    """Number of bytes received."""
