"""Some cases for every run, and all of them for ``make test-all``."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import pytest

ONE_IN = 3


def sampled(params: Iterable[pytest.param]) -> list[pytest.param]:
    """Mark as slow all but one in three: always the same ones, spread over every family."""
    return [
        param if zlib.crc32(param.id.encode()) % ONE_IN == 0 else slow(param) for param in params
    ]


def slow(param: pytest.param) -> pytest.param:
    return pytest.param(*param.values, id=param.id, marks=[*param.marks, pytest.mark.slow])
