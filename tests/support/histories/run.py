"""Random histories: processes that run operations on one hierarchy, as fast as they can."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

from tests.support.histories.model import CHUNK, FIRST, Event

PATHS = ("a", "b")
WEIGHTS = {
    "read": 5,
    "write": 4,
    "append": 4,
    "attributes": 3,
    "create": 3,
    "resize": 2,
    "delete": 2,
    "rename": 1,
    "replace": 1,
    "swap": 1,
}
Operation = tuple[str, str, tuple[Any, ...]]

WORKER = """
import sys
from tests.support.histories.work import serve
serve(sys.stdin, sys.stdout)
"""


def operations(random: Random, count: int, names: Sequence[str]) -> list[list[Operation]]:
    """Operations of each process."""
    weights = [WEIGHTS[name] for name in names]
    number = iter(range(1, 1000))

    def one() -> Operation:
        (name,) = random.choices(names, weights)
        path = random.choice(PATHS)
        args: dict[str, tuple[Any, ...]] = {
            "write": (random.randrange(FIRST // CHUNK), next(number)),
            "append": (random.choice((1, 2)), next(number)),
            "attributes": (f"x{next(number)}", next(number)),
            "resize": (random.choice((0, 2, 3, 6)),),
            "rename": (PATHS[PATHS[0] == path],),
        }
        default = (next(number),) if name in {"create", "replace", "swap"} else ()
        return name, path, args.get(name, default)

    return [[one() for _ in range(count)] for _ in range(3)]


class Workers:
    """Processes that wait for operations."""

    def __init__(self, processes: Sequence[subprocess.Popen[str]]) -> None:
        self._processes = processes

    def run(
        self,
        root: str | Sequence[str],
        options: Mapping[str, Any],
        todo: Sequence[Sequence[Operation]],
    ) -> list[Event]:
        """Run operations of all processes at the same time; return what they say.

        All see the hierarchy at one root, or each at its own.
        """
        roots = [root] * len(todo) if isinstance(root, str) else root
        pipes = [(one.stdin, one.stdout) for one in self._processes]
        for (stdin, _), at, mine in zip(pipes, roots, todo, strict=True):
            print(json.dumps([at, options, mine]), file=stdin)
        for stdin, _ in pipes:
            stdin.flush()
        events: list[Event] = []
        for _, stdout in pipes:
            line = stdout.readline()
            assert line, "a process has died"
            events += [
                Event(name, path, tuple(args), *rest)
                for name, path, args, *rest in json.loads(line)
            ]
        return events


@contextmanager
def workers(count: int = 3) -> Iterator[Workers]:
    """Yield processes, which end with the ``with`` statement."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen([sys.executable, "-c", WORKER], **pipes) for _ in range(count)]
    try:
        yield Workers(processes)
    finally:
        for process in processes:
            process.communicate()
