"""Samples of large matrices: some for every run, and all of them for ``make test-all``."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable
from typing import Any

import pytest


def sampled(values: Iterable[Any], one_in: int, always: Collection[Any] = ()) -> list[Any]:
    """Mark as slow all but one in so many: always the same ones, by their text."""
    return [
        pytest.param(
            value,
            id=str(value),
            marks=() if value in always or drawn(str(value), one_in) else pytest.mark.slow,
        )
        for value in values
    ]


def drawn(text: str, one_in: int) -> bool:
    return zlib.crc32(text.encode()) % one_in == 0
