"""A check that a peer has read the values of a case."""

from __future__ import annotations

from tests.support.interop.cases import Case, expected
from tests.support.interop.seen import Seen, bits


def check(case: Case, seen: Seen, *, attributes: bool = True) -> None:
    """The reader saw what the case says."""
    assert bits(seen.values) == bits(expected(case))
    assert seen.dtype.newbyteorder("=") == case.dtype.newbyteorder("=")
    if case.fill_value is None:
        assert seen.fill is None
    else:
        assert bits(seen.fill) == bits(case.fill_value)
    if seen.attributes is not None:
        assert dict(seen.attributes) == (dict(case.attributes) if attributes else {})
    names = None if seen.dimension_names is None else tuple(seen.dimension_names)
    assert names == case.dimension_names
