"""Codecs: the steps between a chunk and its stored bytes."""

import sys
from importlib.metadata import PackageNotFoundError, version


def _hide_zfpy_of_unreadable_version() -> None:
    """Make numcodecs importable beside zfpy 1.0.1.post0.

    numcodecs parses the version of zfpy as integers, and if that fails, none of it can be imported.
    Without its module for zfpy, which is not used here, the rest can be imported.
    """
    try:
        found = version("zfpy")
    except PackageNotFoundError:
        return
    if not found.replace(".", "").isdecimal():
        sys.modules.setdefault("numcodecs.zfpy", None)  # type: ignore[arg-type]


_hide_zfpy_of_unreadable_version()
