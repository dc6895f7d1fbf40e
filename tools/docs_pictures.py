"""Make the pictures of the tutorials by running the tutorials.

``python -m tools.docs_pictures FOLDER`` puts them there. The hook of mkdocs does so for every
build, in a process of its own, so that the site never shows what its code does not make.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from tools import docs_pages


def make(folder: str | Path) -> None:
    """Run all tutorials that show pictures, and copy the pictures to a folder."""
    for name, path in docs_pages.pages().items():
        shown = docs_pages.pictures(path.read_text(encoding="utf-8"))
        if shown:
            with tempfile.TemporaryDirectory(prefix="zarr-dask-docs-") as new:
                docs_pages.run(name, new)
                for picture in shown:
                    shutil.copy(Path(new, picture), folder)


@cache
def made() -> dict[str, bytes]:
    """Return the pictures by their names; tutorials run once for each process that asks."""
    with tempfile.TemporaryDirectory(prefix="zarr-dask-docs-") as folder:
        command = [sys.executable, "-m", "tools.docs_pictures", folder]
        ran = subprocess.run(
            command, cwd=docs_pages.ROOT, check=False, capture_output=True, text=True
        )
        if ran.returncode:
            raise RuntimeError(f"a tutorial failed while its pictures were made:\n{ran.stderr}")
        return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


if __name__ == "__main__":
    os.environ["MPLBACKEND"] = "Agg"
    make(sys.argv[1])
