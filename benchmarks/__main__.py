"""Run the benchmarks: ``python -m benchmarks --help`` says how."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from benchmarks import read_write, rechunk
from benchmarks.measure import report


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", default="", help="cases whose title holds this text")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds of each case")
    parser.add_argument("--threads", type=int, default=min(os.cpu_count() or 1, 2))
    parser.add_argument("--dir", type=Path, help="where the data go; a temporary folder by default")
    options = parser.parse_args()
    right = True
    with tempfile.TemporaryDirectory(prefix="zarr-dask-bench-", dir=options.dir) as folder:
        for module in (read_write, rechunk):
            root = Path(folder) / module.__name__.rpartition(".")[2]
            for case in module.cases(root, options.threads, options.rounds, options.only):
                right = report(case) and right
    print("\nall results equal" if right else "\nsome results are WRONG")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
