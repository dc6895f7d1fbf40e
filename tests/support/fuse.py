"""Mounts of bindfs: one folder seen at a second place, through FUSE, with locks of its own.

``tools/servers.sh bindfs`` unpacks Debian's package. Where it is not installed the tests are
skipped, with CI=true they fail. A machine that has no FUSE, or a process that must not mount, skips
them in CI too, with that reason: no package can mend it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

import pytest

from tests.support.object_stores import installed, libraries

PATIENCE = 30.0
DEVICE = Path("/dev/fuse")
REFUSED = ("Operation not permitted", "Permission denied", "No such device")
"""Words of bindfs and fusermount where the system does not let this process mount."""


def reason_against_mounts() -> str:
    """Return why no process like this one can mount; "" if it may be tried."""
    if not DEVICE.exists():
        return f"the machine has no {DEVICE}"
    try:
        os.close(os.open(DEVICE, os.O_RDWR))
    except OSError as error:
        return f"{DEVICE} cannot be opened: {error.strerror}"
    if os.geteuid() and not (shutil.which("fusermount3") or shutil.which("fusermount")):
        return "only root may mount here: the system has no fusermount3"
    return ""


@contextmanager
def mounted(behind: Path, mount: Path, options: str) -> Iterator[None]:
    """Show a folder at another one, until the end of the block."""
    program = installed("bindfs", "usr/bin/bindfs")
    if reason := reason_against_mounts():
        pytest.skip(reason)
    command = [program, "-f", "-o", options, behind, mount]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stderr=pipe, text=True, env=libraries("bindfs")) as process:
        until = monotonic() + PATIENCE
        while not mount.is_mount():
            if process.poll() is not None or monotonic() > until:
                process.kill()
                said = process.communicate()[1]
                is_refused = any(words in said for words in REFUSED)
                (pytest.skip if is_refused else pytest.fail)(f"bindfs does not mount: {said}")
            sleep(0.02)
        try:
            yield
        finally:
            subprocess.run([*_unmount(), mount], check=True)
            process.wait(PATIENCE)


def _unmount() -> list[str]:
    """Return the command that takes a mount away, which root needs no FUSE for."""
    if not os.geteuid():
        return ["umount"]
    return [shutil.which("fusermount3") or "fusermount", "-u"]
