"""Timing contenders fairly, and printing what came out.

Contenders take turns, begun by another one each time: a machine that others use as well is faster
or slower for minutes, and a disk that has taken some gigabytes becomes slower, which would favour
whoever came first. A turn is one round where files are written or a run is short. Else it is a
warm-up and three rounds, so that all find memory that is theirs already: on a virtual machine,
pages that were freed some seconds ago cost several times as much to touch as those just used.

The table gives each one's best and median, the ratio of the best to that of the first contender,
which is the floor where there is one, and the ratio pair by pair: the median, over the rounds, of
the time of a round to that of the first contender's round in the same turn. It holds when the speed
of the machine drifts and when a disk takes now and then some files in half the time, which decides
who has the best. Of fields the first two contenders, the floor and this package, take more turns
without the peers: their ratio is what counts, and five rounds are few on a machine with several
users. A result is compared with the expected values once. Counts (tasks, requests, bytes) are taken
in a run of their own, so that counting costs no time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

__all__ = ["Case", "Contender", "Factory", "as_markdown", "facts", "report"]

ROUNDS_IN_TURN = 3


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
    more: int = 0
    """Further rounds, of the first two contenders alone."""
    single: bool = False
    """Whether a turn is one round without a warm-up: the job writes files or is short."""
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
        self._take_turns(self.contenders, self.rounds)
        self._take_turns(self.contenders[:2], self.more)
        for contender in self.contenders:
            contender.prepare()
            contender.counts = contender.count()

    def _take_turns(self, contenders: list[Contender], rounds: int) -> None:
        in_turn = 1 if self.single else ROUNDS_IN_TURN
        for turn, done in enumerate(range(0, rounds, in_turn)):
            first = turn % len(contenders)
            for contender in [*contenders[first:], *contenders[:first]]:
                if not contender.results or not self.single:
                    self.warm_up(contender)
                for _ in range(min(in_turn, rounds - done)):
                    self.round(contender)

    def warm_up(self, contender: Contender) -> None:
        """Imports, caches, the first touch of memory; the first time, the result is checked."""
        result, _ = self._run(contender)
        if not contender.verdict:
            contender.verdict = "equal" if contender.check(result) else "WRONG"

    def round(self, contender: Contender) -> None:
        result, seconds = self._run(contender)
        measured = seconds if contender.value is None else contender.value(result)
        contender.results.append(measured * self.scale / self.number)

    @staticmethod
    def _run(contender: Contender) -> tuple[object, float]:
        contender.prepare()
        os.sync()  # what the one before has written must not be flushed on our time
        begun = time.perf_counter()
        result = contender.run()
        return result, time.perf_counter() - begun


Factory = Callable[[Path, int], AbstractContextManager[Case]]
"""Makes a case from a folder for its data and a number of threads, and ends what it started."""


def facts(name: str, case: Case) -> dict[str, Any]:
    """What came out, as values that JSON knows."""
    first = case.contenders[0].results
    return {
        "name": name,
        "title": case.title,
        "unit": case.unit,
        "reach": case.reach,
        "contenders": [
            {
                "name": one.name,
                "best": min(one.results),
                "median": median(one.results),
                "ratio": _ratio(min(one.results), min(first)),
                "paired": median(list(map(_ratio, one.results, first))),
                "verdict": one.verdict,
                "counts": one.counts,
            }
            for one in case.contenders
        ],
    }


def _ratio(result: float, to: float) -> float:
    return result / to if to else 1.0


def report(name: str, case: Case) -> dict[str, Any]:
    """Measure a case and print it; what came out."""
    case.measure()
    found = facts(name, case)
    print(f"\n{name}: {case.title}" + (f" (to reach: {case.reach})" if case.reach else ""))
    for one in found["contenders"]:
        counts = ", ".join(f"{count} {what}" for what, count in one["counts"].items())
        print(
            f"  {one['name']:<28} {one['best']:10.3f} {case.unit}  median {one['median']:10.3f}  "
            f"ratio {one['ratio']:6.2f}  by pairs {one['paired']:6.2f}  {one['verdict']}  "
            f"{counts}".rstrip(),
            flush=True,
        )
    if case.afterwards is not None:
        print(f"  {case.afterwards()}")
    return found


def as_markdown(results: list[dict[str, Any]]) -> str:
    """The table of docs/developers/performance.md: one line per case, peers by name."""
    lines = [
        "| case | unit | zarr_dask | first | ratio | by pairs | to reach | peers | counts |",
        "|---|---|---|---|---|---|---|---|---|",
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
            f"{own['paired']:.2f}",
            found["reach"],
            ", ".join(f"{one['name']} {one['best']:.3g}" for one in peers),
            ", ".join(f"{count} {what}" for what, count in own["counts"].items()),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
