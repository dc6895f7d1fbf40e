"""A pytest plugin that reports the numbered statements of the specifications one by one.

``make conformance`` runs every test with the marker ``conformance`` and prints, for each statement
about arrays, hierarchies and OME-Zarr, its number, its level in the source (M must, S should, P
policy of this project where the source is silent or contradicts itself) and its result. A statement
passes if it has tests and all of them passed; one without a test, or with a skipped one, fails.
"""

from __future__ import annotations

from collections import defaultdict

import pytest

_SECTIONS = (
    ("v1", range(1, 12), "MMMMMMMMPPP"),
    ("v2", range(12, 48), "MSMMMMMMMMMMMPPPPMMPMPMMMMMMPPPPPPPP"),
    ("v3 draft", range(48, 81), "MMMMMPMMMMMMMMMPMMPMMMMMMMMSMMMPP"),
    (
        "v3",
        range(81, 141),
        "MMMMMMPMMMMMMMMMMMMMMMPMMMMMMMMMMMMMMMPMMMMPPMMMMMMMPPPPMMPS",
    ),
    ("OME-Zarr", range(141, 160), "MMMMMMMMMMMMPSSMPPM"),
    ("conversion", range(160, 171), "SPPPPPPPPPP"),
)
"""Sections of the list with the levels of their statements."""

LEVELS = {
    f"C{number:03}": (section, level)
    for section, numbers, levels in _SECTIONS
    for number, level in zip(numbers, levels, strict=True)
}

NOT_APPLICABLE: dict[str, str] = {}
"""Statements that cannot be tested here, each with its reason; at most five."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let the numbers travel with the report, from worker processes too."""
    numbers = [str(n) for marker in item.iter_markers("conformance") for n in marker.args]
    unknown = sorted(set(numbers) - LEVELS.keys())
    if unknown:
        raise pytest.UsageError(f"{item.nodeid}: no statement has the number {unknown}")
    item.user_properties.append(("conformance", numbers))


class Results:
    """The outcomes of the tests of each statement."""

    def __init__(self) -> None:
        self.outcomes: dict[str, list[str]] = defaultdict(list)

    def add(self, report: pytest.TestReport) -> None:
        """Take note of a test that has run, or could not."""
        if report.when != "call" and report.outcome == "passed":
            return
        for name, numbers in report.user_properties:
            if name == "conformance":
                for number in numbers:  # type: ignore[attr-defined]
                    self.outcomes[number].append(report.outcome)

    def verdict(self, number: str) -> tuple[bool, str]:
        """Whether a statement holds, and why it may not."""
        if number in NOT_APPLICABLE:
            return True, f"not applicable: {NOT_APPLICABLE[number]}"
        outcomes = self.outcomes.get(number, [])
        if not outcomes:
            return False, "FAILED: no test has its number"
        bad = [outcome for outcome in outcomes if outcome != "passed"]
        if bad:
            return False, f"FAILED: {len(bad)} of {len(outcomes)} tests {', '.join(set(bad))}"
        return True, f"passed ({len(outcomes)} test{'s' if len(outcomes) > 1 else ''})"


_RESULTS = pytest.StashKey[Results]()


def pytest_configure(config: pytest.Config) -> None:
    """Start with no results."""
    config.stash[_RESULTS] = Results()
    config.pluginmanager.register(_Listener(config), "conformance-listener")


class _Listener:
    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.config.stash[_RESULTS].add(report)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        results = self.config.stash[_RESULTS]
        failed = not all(results.verdict(number)[0] for number in LEVELS)
        if hasattr(self.config, "workerinput"):
            return
        if (failed or len(NOT_APPLICABLE) > 5) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        """Print the table below everything that pytest has to say."""
        if hasattr(config, "workerinput"):
            return
        results = config.stash[_RESULTS]
        verdicts = {number: results.verdict(number) for number in LEVELS}
        for number, (section, level) in LEVELS.items():
            print(f"{number}  {level}  {section:<10}  {verdicts[number][1]}")
        passed = sum(holds for holds, _ in verdicts.values())
        print(f"{passed} passed, {len(verdicts) - passed} failed", flush=True)
