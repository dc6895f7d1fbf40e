"""Fixtures of the exchange with other implementations."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def _places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    base = tmp_path_factory.mktemp("interop")
    return (base / str(number) for number in itertools.count())


@pytest.fixture
def place(_places: Iterator[Path]) -> Iterator[Path]:
    """A path where nothing is yet, gone after the test.

    Not ``tmp_path``: it looks through all directories of earlier tests for each new one, which
    takes longer than a test of this folder.
    """
    path = next(_places)
    yield path
    shutil.rmtree(path, ignore_errors=True)
