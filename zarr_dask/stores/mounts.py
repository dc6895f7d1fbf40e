"""Mounts, as far as locks go: on which file systems a lock holds between all who see the files.

A lock of the operating system on a file in FUSE, or in a Lustre with the option ``localflock``, is
known to its own host, or to its own mount, alone: another process writes behind it. On Linux the
type and the options of the mount tell (``/proc/self/mountinfo``), once per device and process. What
is not known for certain to share its locks is taken not to, and nothing is lost by that: a record
in the store stands in for the lock then (`zarr_dask.stores.file_lock`). A probe would not tell
more: two processes of one host agree on locks that another host knows nothing of.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from zarr_dask.stores.file_lock import HAS_LOCKS

__all__ = ["Mount", "has_shared_locks", "parse_mounts"]

_LOCAL = frozenset(
    (
        *("apfs", "bcachefs", "btrfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs", "hfs"),
        *("hfsplus", "jfs", "msdos", "nilfs2", "ntfs", "ntfs3", "overlay", "ramfs", "reiserfs"),
        *("rootfs", "tmpfs", "udf", "ufs", "vfat", "xfs", "zfs"),
    )
)
"""File systems of one host, whose kernel keeps all of their locks."""
_MOUNTS = "/proc/self/mountinfo"


@dataclass(frozen=True)
class Mount:
    """One mount of this process.

    Examples
    --------
    >>> Mount("ext4", frozenset({"rw"})).has_shared_locks
    True
    >>> Mount("fuse.sshfs", frozenset({"rw"})).has_shared_locks
    False
    >>> Mount("lustre", frozenset({"flock"})).has_shared_locks
    True
    """

    kind: str
    """Type of the file system."""
    options: frozenset[str]
    """Those of the mount and of the file system."""

    @property
    def has_shared_locks(self) -> bool:
        """True if locks hold between all processes that see the files, on whatever host."""
        options = self.options
        if self.kind in _LOCAL or self.kind == "ceph":
            return True
        if self.kind in {"nfs", "nfs4"}:
            return not options & {"nolock", "local_lock=all", "local_lock=flock"}
        if self.kind == "lustre":
            return "flock" in options and "localflock" not in options
        if self.kind in {"cifs", "smb3"}:
            return not options & {"nobrl", "nolock", "forcemandatorylock"}
        if self.kind in {"gfs2", "ocfs2"}:
            return not options & {"localflocks", "lockproto=lock_nolock"}
        return False


def has_shared_locks(descriptor: int) -> bool:
    """True if locks on an open file hold between all processes that see it.

    The answer is kept for the device: looking is done once.
    """
    device = os.fstat(descriptor).st_dev
    found = _KNOWN.get(device)
    if found is None:
        found = _KNOWN[device] = _looked_up(descriptor)
    return found


_KNOWN: dict[int, bool] = {}


def _looked_up(descriptor: int) -> bool:
    if sys.platform != "linux" or not HAS_LOCKS:
        return False  # records stand in for locks, which are not asked about
    try:
        with Path(f"/proc/self/fdinfo/{descriptor}").open(encoding="ascii") as lines:
            number = next(line.split()[1] for line in lines if line.startswith("mnt_id:"))
        text = Path(_MOUNTS).read_text(encoding="utf-8", errors="surrogateescape")
        mount = parse_mounts(text).get(int(number))
    except (OSError, StopIteration, ValueError, IndexError):
        return False
    return mount is not None and mount.has_shared_locks


@lru_cache(maxsize=1)
def parse_mounts(text: str) -> dict[int, Mount]:
    """The mounts in the text of ``/proc/self/mountinfo``, by their numbers.

    Examples
    --------
    >>> line = "42 27 0:39 / /mnt rw,noatime shared:1 - fuse.sshfs host:/data rw,user_id=0"
    >>> parse_mounts(line)[42].kind
    'fuse.sshfs'
    """
    found = {}
    for line in text.splitlines():
        first, separator, second = line.partition(" - ")
        fields, kinds = first.split(" "), second.split(" ")
        if not separator or len(fields) < 6 or len(kinds) < 3 or not fields[0].isdigit():
            continue
        options = frozenset((*fields[5].split(","), *kinds[2].split(",")))
        found[int(fields[0])] = Mount(kinds[0], options)
    return found
