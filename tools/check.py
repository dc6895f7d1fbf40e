"""The inner loop, in a minute: ruff, mypy, and the quick tests of what differs from main.

``python -m tools.check [BASE]``. What differs from where the branch left BASE (`main` by default),
or is not committed, decides the tests: those that changed, those of the same name as a changed
module, then those of its folder; its doctests; and the layers. Tests that are slow or start
clusters are left out, and after `SECONDS` the rest is: ``make test`` runs it.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 40.0
MOST = 30
"""Files of tests that are looked at: finding the tests takes time too."""


def changed(base: str) -> list[str]:
    """Return the files that differ from where this branch left `base`, and new ones."""
    start = _git("merge-base", base, "HEAD") or ["HEAD"]
    differ = _git("diff", "--name-only", "--diff-filter=d", *start)
    return sorted({*differ, *_git("ls-files", "--others", "--exclude-standard")})


def _git(*words: str) -> list[str]:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.split() if done.returncode == 0 else []


def select(files: Iterable[str], there: Iterable[str]) -> list[str]:
    """Return which of the files `there` to run for changed ones, the nearest first."""
    present = sorted(there)
    chosen: dict[str, None] = {}
    for wanted in zip(*[list(_near(name, present)) for name in files], strict=True):
        chosen.update(dict.fromkeys(path for paths in wanted for path in paths))
    return [*chosen, *(path for path in present if path == "tests/test_layers.py")]


def _near(name: str, present: list[str]) -> Iterator[list[str]]:
    """Yield the file itself, the tests of the same name, and those of its folder."""
    path = PurePosixPath(name)
    yield [name] if name in present and name.endswith(".py") else []
    if path.parts[0] != "zarr_dask":
        yield []
        yield []
        return
    folder = PurePosixPath("tests", *path.parent.parts[1:])
    yield [one for one in present if one == str(folder / f"test_{path.name}")]
    yield [one for one in present if PurePosixPath(one).parent == folder != PurePosixPath("tests")]


class _Budget:
    """A plugin of pytest that ends a run when its time is over."""

    def __init__(self) -> None:
        self.until = time.monotonic() + SECONDS
        self.over = False
        self.failed = 0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.session = session

    def pytest_runtest_logfinish(self) -> None:
        self.failed = self.session.testsfailed
        self.over = time.monotonic() > self.until
        if self.over:
            self.session.shouldstop = "the minute is over: make test runs the rest"


def main() -> int:
    """Run everything; return the exit code."""
    budget = _Budget()
    files = changed(sys.argv[1] if len(sys.argv) > 1 else "main")
    modules = [name for name in files if name.startswith("zarr_dask/")]
    tests = [str(p.relative_to(ROOT)) for p in (ROOT / "tests").rglob("test_*.py")]
    types = subprocess.Popen([sys.executable, "-m", "mypy"], cwd=ROOT)
    lint = subprocess.run([sys.executable, "-m", "ruff", "check", "."], cwd=ROOT, check=False)
    chosen = select(files, [*tests, *(name for name in modules if name.endswith(".py"))])
    print(f"{len(files)} files differ: {len(chosen)} files of tests", flush=True)
    kinds = "not slow and not ci and not cluster"
    quick = ["-q", "-p", "no:cacheprovider", "-m", kinds, "-r", "fE"]
    code = pytest.main([*quick, *chosen[:MOST]], plugins=[budget])
    good = code in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}
    ended = budget.over and not budget.failed and code == pytest.ExitCode.INTERRUPTED
    return int(bool(types.wait()) or bool(lint.returncode) or not (good or ended))


if __name__ == "__main__":
    sys.exit(main())
