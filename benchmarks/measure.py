"""Timing contenders fairly, and printing what came out.

Each contender runs several rounds one after the other, the first as a warm-up, so that all find
memory that is theirs already: on a virtual machine, pages that were freed some seconds ago cost
several times as much to touch as those just used. Where files are written, contenders take turns
instead, each round begun by another one: a disk that has taken some gigabytes becomes slower, and
would favour whoever came first. So they do where a run is so short that a machine may be faster or
slower for all rounds of one of them. The table gives each one's best and median
and the ratio of its best to that of the first contender, which is the floor where there is one.
A result is compared with the expected values once. Counts (tasks, requests, bytes) are taken in a
run of their own, so that counting costs no time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Case", "Contender", "Factory", "as_markdown", "facts", "report"]


@dataclass
class Contender:
    """One way to do the job."""

    name: str
    run: Callable[[], object]
    """Does the job; what it returns is given to `check`."""
    check: Callable[[object], bool]
    """Whether the result has the expected values."""
    prepare: Callable[[], None] = lambda: None
    """Called before every round, outside the timing."""
    count: Callable[[], dict[str, int]] = dict
    """What the job takes besides time: tasks, requests, bytes."""
    value: Callable[[object], float] | None = None
    """What is measured, from the result; the time by default."""
    results: list[float] = field(default_factory=list)
    """One per round: seconds, or what `value` gives."""
    verdict: str = ""
    counts: dict[str, int] = field(default_factory=dict)


@dataclass
class Case:
    """Contenders for one job; the first is what the others are compared with."""

    title: str
    contenders: list[Contender]
    rounds: int = 5
    in_turns: bool = False
    """Whether contenders take turns, because the job writes files or is short."""
    number: int = 1
    """How often a run does the job."""
    unit: str = "ms"
    scale: float = 1e3
    """Units per second, or per what `Contender.value` gives."""
    reach: str = ""
    """What this package is to reach."""
    afterwards: Callable[[], str] | None = None
    """Called when all is measured; a line to print."""

    def measure(self) -> None:
        rounds = range(self.rounds + 1)
        if self.in_turns:
            for number in rounds:
                first = number % len(self.contenders)
                for contender in [*self.contenders[first:], *self.contenders[:first]]:
                    self.run(contender, number)
        else:
            for contender in self.contenders:
                for number in rounds:
                    self.run(contender, number)
        for contender in self.contenders:
            contender.prepare()
            contender.counts = contender.count()

    def run(self, contender: Contender, number: int) -> None:
        contender.prepare()
        os.sync()  # what the one before has written must not be flushed on our time
        begun = time.perf_counter()
        result = contender.run()
        seconds = time.perf_counter() - begun
        if number == 0:  # a warm-up: imports, caches, the first touch of memory
            contender.verdict = "equal" if contender.check(result) else "WRONG"
        else:
            measured = seconds if contender.value is None else contender.value(result)
            contender.results.append(measured * self.scale / self.number)


Factory = Callable[[Path, int], AbstractContextManager[Case]]
"""Makes a case from a folder for its data and a number of threads, and ends what it started."""


def facts(name: str, case: Case) -> dict[str, Any]:
    """What came out, as values that JSON knows."""
    first = min(case.contenders[0].results)
    return {
        "name": name,
        "title": case.title,
        "unit": case.unit,
        "reach": case.reach,
        "contenders": [
            {
                "name": one.name,
                "best": min(one.results),
                "median": sorted(one.results)[len(one.results) // 2],
                "ratio": min(one.results) / first if first else 1.0,
                "verdict": one.verdict,
                "counts": one.counts,
            }
            for one in case.contenders
        ],
    }


def report(name: str, case: Case) -> dict[str, Any]:
    """Measure a case and print it; what came out."""
    case.measure()
    found = facts(name, case)
    print(f"\n{name}: {case.title}" + (f" (to reach: {case.reach})" if case.reach else ""))
    for one in found["contenders"]:
        counts = ", ".join(f"{count} {what}" for what, count in one["counts"].items())
        print(
            f"  {one['name']:<28} {one['best']:10.3f} {case.unit}  median {one['median']:10.3f}  "
            f"ratio {one['ratio']:6.2f}  {one['verdict']}  {counts}".rstrip(),
            flush=True,
        )
    if case.afterwards is not None:
        print(f"  {case.afterwards()}")
    return found


def as_markdown(results: list[dict[str, Any]]) -> str:
    """The table of docs/performance.md: one line per case, peers in the order of their names."""
    lines = [
        "| case | unit | zarr_dask | first | ratio | to reach | peers | counts |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for found in results:
        first, *_ = found["contenders"]
        own = next(one for one in found["contenders"] if one["name"] == "zarr_dask")
        peers = [one for one in found["contenders"] if one not in (first, own)]
        cells = [
            found["name"],
            found["unit"],
            f"{own['best']:.3g}",
            "" if first is own else f"{first['name']} {first['best']:.3g}",
            f"{own['ratio']:.2f}",
            found["reach"],
            ", ".join(f"{one['name']} {one['best']:.3g}" for one in peers),
            ", ".join(f"{count} {what}" for what, count in own["counts"].items()),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
