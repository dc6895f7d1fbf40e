"""What jobs leave in a folder."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def open_below(place: Path) -> set[str]:
    """Files of jobs that have not ended; jobs that have leave a record and a text."""
    files = [path for path in place.rglob("*") if path.is_file()]
    return {path.name for path in files if not _is_of_the_past(path)}


def _is_of_the_past(path: Path) -> bool:
    if path.name == "held" and path.parent.name == "__append":
        return json.loads(path.read_text())["ended"] is not None
    return path.name.startswith(("__done-", "README"))


def left_in(place: Path) -> set[str]:
    """Names in a folder, without folders that hold records of finished jobs alone."""
    return {
        path.name
        for path in place.iterdir()
        if not path.name.endswith(".zarr-dask") or open_below(path)
    }
