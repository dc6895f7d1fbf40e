"""A disk in whose place a power cut leaves what was synced, and of the rest what a test chooses.

A job runs in a child process that ends at its n-th change of a name. What the disk may hold then
follows from what was synced before: content that was not is empty, and a change of names (a new
file or folder, a renaming, a removal, an exchange) in a folder that was not is undone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from random import Random
from shutil import rmtree
from threading import RLock
from typing import Any

from zarr_dask.journal import swap

DONE = 7
"""Exit code of a job that has met its n-th change."""
LOSSES = ("content", "names", "some")
"""All content that was not synced, all changes of names, or either of a random part."""


@dataclass
class Change:
    """A change of names in one or two folders, which are told by their inodes."""

    what: str
    folders: list[int]
    names: list[str]
    kept: str | None = None
    """A second name of the file that was removed or replaced."""
    synced: list[int] = field(default_factory=list)
    """Files and folders that were synced since."""
    gone: int = 0
    """What stands for the inode of a folder that was removed, which another one may get."""

    @property
    def is_safe(self) -> bool:
        return set(self.synced) >= set(self.folders)


class Disk:
    """Records in a child process what is on the disk, and ends it at a change of names."""

    def __init__(self, folder: Path, last: int, log: Path) -> None:
        self.folder, self.last, self.log = str(folder), last, log
        self.aside = log.with_suffix(".aside")
        self.aside.mkdir()
        self.changes: list[Change] = []
        self.whole = {path.stat().st_ino for path in folder.rglob("*") if path.is_file()}
        self.met = self.removed = 0
        self.lock = RLock()
        names = ("fsync", "replace", "rename", "unlink", "rmdir", "mkdir", "open")
        self.true: dict[str, Callable[..., Any]] = {name: getattr(os, name) for name in names}
        self.exchange = swap._exchanged
        for name in names:
            setattr(os, name, self.one_at_a_time(getattr(self, name)))
        os.remove = os.unlink
        swap._exchanged = self.one_at_a_time(self.exchanged)

    def one_at_a_time(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Let no other thread sync a change that is not written down yet."""

        def locked(*args: Any, **options: Any) -> Any:
            with self.lock:
                return call(*args, **options)

        return locked

    def fsync(self, descriptor: int) -> None:
        self.true["fsync"](descriptor)
        number = os.fstat(descriptor).st_ino
        self.whole.add(number)
        for change in self.changes:
            change.synced.append(number)

    def replace(self, source, target, *, src_dir_fd=None, dst_dir_fd=None) -> None:
        self._rename("replace", source, target, src_dir_fd, dst_dir_fd)

    def rename(self, source, target, *, src_dir_fd=None, dst_dir_fd=None) -> None:
        self._rename("rename", source, target, src_dir_fd, dst_dir_fd)

    def _rename(self, call: str, source, target, at, to) -> None:
        old, new = _path(source, at), _path(target, to)
        kept = self._kept(new)
        self.true[call](source, target, src_dir_fd=at, dst_dir_fd=to)
        self._add("rename", old, new, kept=kept)

    def unlink(self, path, *, dir_fd=None) -> None:
        whole = _path(path, dir_fd)
        kept = self._kept(whole)
        self.true["unlink"](path, dir_fd=dir_fd)
        self._add("unlink", whole, kept=kept)

    def rmdir(self, path, *, dir_fd=None) -> None:
        whole = _path(path, dir_fd)
        number = Path(whole).stat().st_ino
        self.true["rmdir"](path, dir_fd=dir_fd)
        self.removed -= 1
        for change in self.changes:
            change.folders = [self.removed if one == number else one for one in change.folders]
        self._add("rmdir", whole, counts=False)
        self.changes[-1].gone = self.removed

    def mkdir(self, path, mode=0o777, *, dir_fd=None) -> None:
        self.true["mkdir"](path, mode, dir_fd=dir_fd)
        self._add("mkdir", _path(path, dir_fd), counts=False)

    def open(self, path, flags, mode=0o777, *, dir_fd=None) -> int:
        makes = flags & os.O_CREAT and not os.path.lexists(_path(path, dir_fd))
        descriptor = self.true["open"](path, flags, mode, dir_fd=dir_fd)
        if makes:
            self._add("make", _path(path, dir_fd), counts=False)
        return descriptor

    def exchanged(self, new: str, old: str) -> bool:
        done = self.exchange(new, old)
        if done:
            self._add("exchange", new, old)
        return done

    def _kept(self, path: str) -> str | None:
        if not path.startswith(self.folder) or not Path(path).is_file():
            return None
        kept = str(self.aside / str(len(self.changes)))
        os.link(path, kept)
        return kept

    def _add(self, what: str, *paths: str, kept: str | None = None, counts: bool = True) -> None:
        if not paths[0].startswith(self.folder):
            return
        parts = [os.path.split(path) for path in paths]
        folders = [Path(folder).stat().st_ino for folder, _ in parts]
        self.changes.append(Change(what, folders, [name for _, name in parts], kept))
        self.met += counts
        if counts and self.met == self.last:
            self.end()
            os._exit(DONE)

    def end(self) -> None:
        """Write down what is known, for `lose`."""
        known = {"whole": [*self.whole], "changes": [asdict(one) for one in self.changes]}
        self.log.write_text(json.dumps(known))


def _path(path: Any, folder: int | None) -> str:
    if folder is None or Path(path).is_absolute():
        return str(Path(path).absolute())
    return f"{Path(f'/proc/self/fd/{folder}').readlink()}/{path}"


def has_forgotten_job(log: Path) -> bool:
    """True if the record of a job was removed: all was done, and nothing would be done again."""
    changes = json.loads(log.read_text())["changes"]
    return any(one["what"] == "unlink" and one["names"] == ["job.json"] for one in changes)


def cut(job: Callable[[Path], object], place: Path, last: int, log: Path) -> bool:
    """Run a job in a folder to its n-th change of names; False if it has ended before."""
    process = get_context("fork").Process(target=_run, args=(job, place, last, log))
    process.start()
    process.join()
    assert process.exitcode in {0, DONE}
    return process.exitcode == DONE


def _run(job: Callable[[Path], object], place: Path, last: int, log: Path) -> None:
    disk = Disk(place, last, log)
    job(place)
    disk.end()


def lose(place: Path, log: Path, loss: str, seed: int = 0) -> None:
    """Take from a folder what was not on the disk for sure, or a part of it."""
    known = json.loads(log.read_text())
    random = Random(seed)

    def goes(kind: str) -> bool:
        return loss == kind or (loss == "some" and random.random() < 0.5)

    whole = set(known["whole"])
    for path in sorted(place.rglob("*")):
        if path.is_file() and path.stat().st_ino not in whole and goes("content"):
            path.write_bytes(b"")
    revived: dict[int, Path] = {}
    stands: set[tuple[int, str]] = set()
    for change in (Change(**one) for one in reversed(known["changes"])):
        names = set(zip(change.folders, change.names, strict=True))
        if change.is_safe or stands & names or not goes("names"):
            stands |= names
        else:
            _undo(change, place, revived)


def _undo(change: Change, place: Path, revived: dict[int, Path]) -> None:
    """Undo a change, where its folders are still there."""
    found = {path.stat().st_ino: path for path in (place, *place.rglob("*")) if path.is_dir()}
    found |= revived
    if not all(number in found for number in change.folders):
        return
    paths = [found[n] / name for n, name in zip(change.folders, change.names, strict=True)]
    first, last = paths[0], paths[-1]
    if change.what == "mkdir":
        rmtree(first, ignore_errors=True)
    elif change.what == "make":
        first.unlink(missing_ok=True)
    elif change.what == "rmdir":
        first.mkdir(exist_ok=True)
        revived[change.gone] = first
    elif change.what == "exchange":
        swap._exchanged(str(first), str(last))
    elif change.what == "rename" and last.exists():
        last.rename(first)
    if change.kept is not None and not last.exists():
        os.link(change.kept, last)
