"""The benchmarks for airspeed velocity: a class for each case, made of the same code.

``asv run`` follows this package over its commits: the time of a case, its ratio to the first
contender (the floor where there is one), and what it takes besides time.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks.measure import Factory
from benchmarks.suite import CASES

__all__: list[str] = []


class _Benchmark:
    """One case; a subclass names its factory."""

    make: Factory
    timeout = 600
    rounds = 1
    repeat = 5
    number = 1
    warmup_time = 0

    def setup(self) -> None:
        self.stack = ExitStack()
        folder = self.stack.enter_context(tempfile.TemporaryDirectory(prefix="zarr-dask-asv-"))
        self.case = self.stack.enter_context(type(self).make(Path(folder), 2))
        self.own = next(one for one in self.case.contenders if one.name == "zarr_dask")
        self.own.prepare()

    def teardown(self) -> None:
        self.stack.close()

    def time_run(self) -> None:
        """Time of one run by this package."""
        self.own.run()

    def track_ratio(self) -> float:
        """Best of this package to the best of the first contender."""
        for contender in (self.case.contenders[0], self.own):
            contender.results.clear()
            self.case.warm_up(contender)
            for _ in range(3):
                self.case.round(contender)
        return min(self.own.results) / min(self.case.contenders[0].results)

    def track_counts(self) -> int:
        """Tasks, requests and bytes together: any of them that grows is seen."""
        return sum(self.own.count().values())


for _name, _make in CASES.items():
    _class = "".join(word.capitalize() for word in _name.split("-"))
    _members = {"make": staticmethod(_make), "__doc__": _name, "__module__": __name__}
    globals()[_class] = type(_class, (_Benchmark,), _members)
