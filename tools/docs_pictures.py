"""Make the pictures of the tutorials by running them: python -m tools.docs_pictures."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

from tools import docs_pages, docs_picture

_SHOWN = re.compile(r"!\[[^\]]*\]\(\.\./assets/([\w-]+\.png)\)")


def _run(name: str, path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    pictures = _SHOWN.findall(text)
    if not pictures:
        return
    with tempfile.TemporaryDirectory(prefix="zarr-dask-docs-") as folder:
        docs_pages.run(name, folder)
        for picture in pictures:
            shutil.copy(Path(folder, picture), docs_pages.DOCS / "assets" / picture)


if __name__ == "__main__":
    os.environ["MPLBACKEND"] = "Agg"
    docs_picture.write()
    for page, found in docs_pages.pages().items():
        if page.startswith("tutorials/"):
            _run(page, found)
