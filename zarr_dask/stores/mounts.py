"""The mounts of this process, by which file systems differ: in locks, in names, and in distance.

On Linux the type and the options of a mount tell (``/proc/self/mountinfo``); other systems do not.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

__all__ = ["Mount", "hides_names", "is_on_this_host", "mount_of", "parse_mounts"]

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
    def is_local(self) -> bool:
        """True if the file system is one of this host, behind no network."""
        return self.kind in _LOCAL

    @property
    def has_shared_locks(self) -> bool:
        """True if locks hold between all processes that see the files, on whatever host."""
        options = self.options
        if self.is_local or self.kind == "ceph":
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


def is_on_this_host(folder: str) -> bool:
    """True if a folder lies in a file system of this host, so that no network is waited for.

    Of a file system that is not known, False; True on systems other than Linux, which do not tell.
    The answer is kept for the device.
    """
    if sys.platform != "linux":
        return True
    try:
        mount = _mount_of_folder(folder)
    except OSError:
        return False
    return mount is not None and mount.is_local


def hides_names(folder: str) -> bool:
    """True if a file below a folder may seem to be missing at the moment when another replaces it.

    FUSE finds the name of a file first, and opens it by the number of its old node then. The answer
    is kept for the folder.
    """
    found = _HIDES.get(folder)
    if found is None:
        try:
            mount = _mount_of_folder(folder) if sys.platform == "linux" else None
        except OSError:
            return False  # there is no such folder yet
        if len(_HIDES) >= _MOST_FOLDERS:
            _HIDES.clear()
        found = _HIDES[folder] = mount is not None and mount.kind.startswith("fuse")
    return found


_HIDES: dict[str, bool] = {}
_MOST_FOLDERS = 1024


def _mount_of_folder(folder: str) -> Mount | None:
    device = os.stat(folder).st_dev  # noqa: PTH116  (each write asks)
    if device not in _MOUNT_OF:
        descriptor = os.open(folder, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        try:
            _MOUNT_OF[device] = mount_of(descriptor)
        finally:
            os.close(descriptor)
    return _MOUNT_OF[device]


_MOUNT_OF: dict[int, Mount | None] = {}


def mount_of(descriptor: int) -> Mount | None:
    """Return the mount that an open file lies in, if the system tells."""
    if sys.platform != "linux":
        return None  # records stand in for locks, which are not asked about
    try:
        with Path(f"/proc/self/fdinfo/{descriptor}").open(encoding="ascii") as lines:
            number = next(line.split()[1] for line in lines if line.startswith("mnt_id:"))
        text = Path(_MOUNTS).read_text(encoding="utf-8", errors="surrogateescape")
        return parse_mounts(text).get(int(number))
    except (OSError, StopIteration, ValueError, IndexError):
        return None


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
