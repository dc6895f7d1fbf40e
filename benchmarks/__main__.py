"""Run the benchmarks: ``python -m benchmarks --help`` says how."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import as_markdown, report
from benchmarks.suite import CASES


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name holds this text")
    parser.add_argument("--rounds", type=int, default=20, help="timed rounds of each case at most")
    parser.add_argument("--threads", type=int, default=min(os.cpu_count() or 1, 2))
    parser.add_argument("--dir", type=Path, help="where the data go; a temporary folder by default")
    parser.add_argument("--json", type=Path, help="also write what came out to this file")
    parser.add_argument("--markdown", type=Path, help="and as a table to this one")
    parser.add_argument("--list", action="store_true", help="name the cases and run none")
    options = parser.parse_args(arguments)
    wanted = {name: make for name, make in CASES.items() if options.only in name}
    if options.list:
        print("\n".join(wanted))
        return 0
    results = []
    for name, make in wanted.items():
        with (
            tempfile.TemporaryDirectory(prefix="zarr-dask-bench-", dir=options.dir) as folder,
            make(Path(folder), options.threads) as case,
        ):
            if options.rounds < case.rounds:
                case.rounds, case.more = options.rounds, 0
            results.append(report(name, case))
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")
    if options.markdown:
        options.markdown.write_text(as_markdown(results) + "\n")
    right = all(one["verdict"] == "equal" for found in results for one in found["contenders"])
    print("\nall results equal" if right else "\nsome results are WRONG")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
