"""A process that decodes hostile inputs and reports, as JSON, what went wrong.

Run as ``python -m tests.support.fuzz.child FIRST COUNT PART PARTS LAST``: inputs FIRST to
FIRST + COUNT of each target, of every PARTS-th target from PART on. The file LAST names the input
at hand. The memory of the process is limited from there on, so that a decoder that
asks for more fails.
"""

import json
import os
import resource
import sys
import time
import traceback
import warnings
from pathlib import Path

from tests.support.fuzz.targets import Target, all_targets
from zarr_dask.errors import ZarrDaskError

MEMORY = 300 << 20
SECONDS = 1.0
_COUNTING = 0.045  # processor seconds of counting to half a million, for a second to be one


def main(first: int, count: int, part: int, parts: int, last: str) -> None:
    targets = all_targets()[part::parts]
    warnings.simplefilter("ignore")  # what warns is read leniently
    for target in targets:  # imports, and memory that is kept
        target.decode(target.samples[0])
    limit_memory()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    failures = []
    slowest = (0.0, "")
    inputs = 0
    log = os.open(last, os.O_CREAT | os.O_WRONLY)
    for target in targets:
        for number in range(first, first + count):
            place = f"{target.name}#{number}"
            os.pwrite(log, place.ljust(80).encode(), 0)
            seconds, failure = attempt(target, place)
            slowest = max(slowest, (seconds, place))
            inputs += 1
            if failure:
                failures.append((place, failure))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    report = {
        "inputs": inputs,
        "failures": failures,
        "slowest": slowest,
        "grown_mib": grown / 1024,
        "targets": [target.name for target in targets],
    }
    print(json.dumps(report))


def attempt(target: Target, place: str) -> tuple[float, str]:
    """Processor seconds of one input, and what went wrong with it."""
    data = target.hostile(place, target.samples)
    start = time.process_time()
    failure = ""
    try:
        target.decode(data)
    except ZarrDaskError:
        pass
    except BaseException:  # noqa: BLE001  (whatever else comes is what is looked for)
        failure = f"{data[:200]!r}\n{traceback.format_exc()[-1500:]}"
    seconds = in_good_time(time.process_time() - start)
    if seconds > SECONDS:
        failure = f"{failure} {seconds:.1f} s: {data[:200]!r}"
    return seconds, failure


def in_good_time(seconds: float) -> float:
    """Processor seconds as on a machine that others leave alone, where they are too many."""
    if seconds <= SECONDS:
        return seconds
    start = time.process_time()
    sum(number * number % 7 for number in range(500_000))
    return seconds / max((time.process_time() - start) / _COUNTING, 1.0)


def limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:5]), sys.argv[5])
