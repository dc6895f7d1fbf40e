"""Timing contenders fairly, and printing what came out.

Each contender runs several rounds one after the other, the first as a warm-up, so that all find
memory that is theirs already: on a virtual machine, pages that were freed some seconds ago cost
several times as much to touch as those just used. Where files are written, contenders take turns
instead, each round begun by another one: a disk that has taken some gigabytes becomes slower, and
would favour whoever came first. The table gives each one's best and median time
and the ratio of its best to the floor's. A result is compared with the expected values once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["Case", "Contender", "report"]


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
    times: list[float] = field(default_factory=list)
    verdict: str = ""


@dataclass
class Case:
    """Contenders for one job; the first is what the others are compared with."""

    title: str
    contenders: list[Contender]
    rounds: int = 5
    in_turns: bool = False
    """Whether contenders take turns, because the job writes files."""

    def measure(self) -> None:
        rounds = range(self.rounds + 1)
        if self.in_turns:
            for number in rounds:
                first = number % len(self.contenders)
                for contender in [*self.contenders[first:], *self.contenders[:first]]:
                    _run(contender, number)
        else:
            for contender in self.contenders:
                for number in rounds:
                    _run(contender, number)


def _run(contender: Contender, number: int) -> None:
    contender.prepare()
    os.sync()  # what the one before has written must not be flushed on our time
    begun = time.perf_counter()
    result = contender.run()
    seconds = time.perf_counter() - begun
    if number == 0:  # a warm-up: imports, caches, the first touch of memory
        contender.verdict = "equal" if contender.check(result) else "WRONG"
    else:
        contender.times.append(seconds)


def report(case: Case) -> bool:
    """Measure a case and print it; True if all results were right."""
    case.measure()
    floor = min(case.contenders[0].times)
    print(f"\n{case.title}")
    for contender in case.contenders:
        best = min(contender.times)
        middle = sorted(contender.times)[len(contender.times) // 2]
        print(
            f"  {contender.name:<28} {best * 1e3:9.1f} ms  median {middle * 1e3:9.1f}  "
            f"ratio {best / floor:6.2f}  {contender.verdict}",
            flush=True,
        )
    return all(contender.verdict == "equal" for contender in case.contenders)
