"""Writers held until there are two of them, in one process or in several."""

from __future__ import annotations

import os
import select
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PATIENCE = 20.0  # seconds that a writer waits for another one before the test fails


def is_data(key: str) -> bool:
    return not key.endswith((".json", ".zarray", ".zattrs", ".zgroup"))


@dataclass(frozen=True)
class PairsOfProcesses:
    """Holds each writer of data until there is a second one, wherever it runs.

    Writers draw numbers by making files; two in a row wait for a byte in each other's pipe.
    """

    folder: str
    pairs: int

    def __call__(self, method: str, key: str) -> None:
        if method != "set" or not is_data(key):
            return
        ticket = self._ticket()
        if ticket is not None:
            self._meet(ticket, ticket ^ 1)

    def _ticket(self) -> int | None:
        for ticket in range(2 * self.pairs):
            with suppress(FileExistsError):
                Path(self.folder, f"ticket{ticket}").touch(exist_ok=False)
                return ticket
        return None

    def _meet(self, mine: int, other: int) -> None:
        pipes = [self._pipe(mine), self._pipe(other)]
        try:
            os.write(pipes[1], b"!")
            ready, _, _ = select.select([pipes[0]], [], [], PATIENCE)
            if not ready:
                raise TimeoutError(f"writer {mine} waited in vain for writer {other}")
            os.read(pipes[0], 1)
            Path(self.folder, f"met{mine}").write_text(str(os.getpid()))
        finally:
            for pipe in pipes:
                os.close(pipe)

    def _pipe(self, ticket: int) -> int:
        path = f"{self.folder}/pipe{ticket}"
        with suppress(FileExistsError):
            os.mkfifo(path)
        return os.open(path, os.O_RDWR)  # so that neither opening nor writing waits

    @property
    def met(self) -> list[set[str]]:
        """The processes of each pair that has met."""
        pids = {p.name: p.read_text() for p in Path(self.folder).glob("met*")}
        return [{pids[f"met{n}"], pids[f"met{n + 1}"]} for n in range(0, len(pids), 2)]
