"""Codecs: the steps between a chunk and the bytes that are stored."""

import sys
from importlib.metadata import PackageNotFoundError, version


def _hide_zfpy_of_unreadable_version() -> None:
    """Let numcodecs be imported beside zfpy 1.0.1.post0.

    It reads the version of zfpy as integers, and where that fails nothing of it can be imported.
    Without its module for zfpy, which we do not use, all else can.
    """
    try:
        found = version("zfpy")
    except PackageNotFoundError:
        return
    if not found.replace(".", "").isdecimal():
        sys.modules.setdefault("numcodecs.zfpy", None)  # type: ignore[arg-type]


_hide_zfpy_of_unreadable_version()
