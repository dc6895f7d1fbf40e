"""Folders of the checkout, which tests read from or start programs in."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "product" / "golden"
"""Stored bytes that must read, and be written, as they are for ever."""
SNAPPY_FRAMES = ROOT / "tests" / "support" / "snappy_frames.json"
ZARR2 = ROOT / ".venv-zarr2" / "bin" / "python"
"""The Python beside the last zarr-python of the 2 line."""
ZARR2_SCRIPTS = ROOT / "tests" / "support" / "zarr2"
"""What that Python runs."""
