"""Limits of the control groups that this process is in, of a container or of a batch job.

A container shows its own limits at the root of ``/sys/fs/cgroup``. A job of Slurm or of systemd is
in a group below, named in ``/proc/self/cgroup``, and each group around it may have lower limits.
Sources: cgroups(7); the kernel's documents on control groups, versions 1 and 2.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from math import ceil
from pathlib import Path, PurePosixPath

__all__ = ["cpu_limit", "memory_limit"]

_ROOT = Path("/")


def memory_limit(root: Path = _ROOT) -> int | None:
    """Return the bytes of memory that this process and others of its groups may use.

    Parameters
    ----------
    root
        The folder that stands for the root of the file system.

    Returns
    -------
    int or None
        The lowest limit of a group; None if there is none.

    Examples
    --------
    >>> memory_limit(Path("no such folder")) is None
    True
    """
    files = [group / "memory.max" for group in _groups(root, "")]
    files += [group / "memory.limit_in_bytes" for group in _groups(root, "memory")]
    return min((found for file in files for found in _numbers(file)), default=None)


def cpu_limit(root: Path = _ROOT) -> int | None:
    """Return the number of cores that this process and others of its groups may keep busy.

    Parameters
    ----------
    root
        The folder that stands for the root of the file system.

    Returns
    -------
    int or None
        The lowest limit of a group, rounded up; None if there is none.

    Examples
    --------
    >>> cpu_limit(Path("no such folder")) is None
    True
    """
    shares = [_numbers(group / "cpu.max") for group in _groups(root, "")]
    for group in _groups(root, "cpu"):
        files = (group / "cpu.cfs_quota_us", group / "cpu.cfs_period_us")
        shares.append([number for file in files for number in _numbers(file)])
    limits = (ceil(share[0] / share[1]) for share in shares if len(share) == 2)
    return min(limits, default=None)


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of the groups of this process for a controller; "" is version 2."""
    mounted = root / "sys/fs/cgroup" / controller
    yield mounted
    with suppress(OSError, ValueError):  # of another system, or without /proc
        for line in (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controller in controllers.split(","):
                group = PurePosixPath(path.strip("/"))
                yield from (mounted / one for one in (group, *group.parents))


def _numbers(file: Path) -> list[int]:
    """Return the numbers in a file of limits above 0; none if it is absent, or has no limit."""
    try:
        found = [int(word) for word in file.read_text(encoding="utf-8").split()]
    except (OSError, ValueError):  # the word "max"
        return []
    return [number for number in found if number > 0]  # -1 is no limit
