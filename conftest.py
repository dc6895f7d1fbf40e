"""Examples in docstrings run in the modules that the package imports, not in copies of them."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent / "zarr_dask"


@pytest.hookimpl(tryfirst=True)
def pytest_collect_file(file_path: Path) -> None:
    """Import a module before pytest, which would keep a copy of one that nobody has imported."""
    if file_path.suffix == ".py" and file_path.is_relative_to(PACKAGE):
        name = file_path.relative_to(PACKAGE.parent).with_suffix("")
        parts = name.parts[:-1] if name.name == "__init__" else name.parts
        if name.name != "__main__":
            importlib.import_module(".".join(parts))
