"""Results of tasks: what was copied, by which process, in what time and memory."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["CopyResult", "ProcessMemory"]


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
