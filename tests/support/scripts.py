"""Scripts that run in processes of their own, to be killed, without a new interpreter for each.

They are forked from the process that conftest.py has import everything. For what differs by
interpreter (what is imported, seeds of hashes, memory), use `subprocess`.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Self

from tests.support.paths import ROOT

FORKED = multiprocessing.get_context("forkserver")
PATIENCE = 50.0


class Script:
    """Python code in a process, as `subprocess.Popen([sys.executable, "-c", code, ...])`.

    Both of its pipes are of text. Behind a `with` statement it has ended, if need be by SIGKILL.
    """

    def __init__(self, code: str, *arguments: object) -> None:
        reading, told = FORKED.Pipe(duplex=False)
        output, writing = FORKED.Pipe(duplex=False)
        ends = (code, [*map(str, arguments)], reading, writing)
        self._process = FORKED.Process(target=_run, args=ends, daemon=True)
        self._process.start()
        reading.close()
        writing.close()
        self.pid = self._process.pid
        self.stdin = os.fdopen(os.dup(told.fileno()), "w")
        self.stdout = os.fdopen(os.dup(output.fileno()))
        told.close()
        output.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Wait for its end, without further input; return when nothing of it is left."""
        with suppress(BrokenPipeError):
            self.stdin.close()
        self._process.join(PATIENCE)
        self.kill()
        self.wait()
        self.stdout.close()

    def kill(self) -> None:
        """End it by SIGKILL, if it runs."""
        if self._process.exitcode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Wait for its end; return its exit code, or minus the number of a signal."""
        self._process.join(PATIENCE)
        assert self._process.exitcode is not None, "a script has not ended"
        return self._process.exitcode


def run_script(code: str, *arguments: object) -> tuple[int, str]:
    """Run a script to its end; return its exit code, and what it has printed."""
    with Script(code, *arguments) as script:
        script.stdin.close()
        said = script.stdout.read()
        return script.wait(), said


def _run(code: str, arguments: list[str], reading: Connection, writing: Connection) -> None:
    os.dup2(reading.fileno(), 0)
    os.dup2(writing.fileno(), 1)
    reading.close()
    writing.close()
    os.chdir(ROOT)
    sys.argv = ["-c", *arguments]
    sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
    main = ModuleType("__main__")
    sys.modules["__main__"] = main  # where pickles look for what the script defines
    try:
        exec(compile(code, "<script>", "exec"), main.__dict__)  # noqa: S102
    finally:
        sys.stdout.flush()
