"""Random rechunkings keep what their plans state, within the least budget that is named."""

from __future__ import annotations

import pytest

from tests.support.random_rechunk import problems


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_random_rechunkings_keep_their_plans(first):
    """More of them: ``python -m tests.support.random_rechunk 40 400``."""
    found = [f"{seed}: {one}" for seed in range(first, first + 10) for one in problems(seed)]
    assert not found
