"""Units of time against cftime."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zarr_dask.jobs.ingest.time_units import between_units, is_time

cftime = pytest.importorskip("cftime")

_CALENDARS = ["standard", "proleptic_gregorian", "noleap", "all_leap", "360_day", "julian"]
_UNITS = ["days", "hours", "minutes", "seconds"]
_dates = st.tuples(st.integers(1583, 2500), st.integers(1, 12), st.integers(1, 28))


@given(
    st.sampled_from(_CALENDARS),
    st.sampled_from(_UNITS),
    st.sampled_from(_UNITS),
    _dates,
    _dates,
    st.integers(0, 10**6),
)
def test_units_of_time_are_those_of_cftime(
    calendar: str,
    unit: str,
    wanted: str,
    start: tuple[int, int, int],
    other: tuple[int, int, int],
    value: int,
) -> None:
    units = "{} since {:04}-{:02}-{:02} 06:30:00".format(unit, *start)
    into = "{} since {:04}-{}-{}".format(wanted, *other)
    made = between_units(units, calendar, into, calendar)
    assert made is not None
    scale, offset = made
    date = cftime.num2date(value, units, calendar)
    expected = cftime.date2num(date, into, calendar)
    assert float(scale * value + offset) == pytest.approx(float(expected), abs=1e-6, rel=1e-12)


def test_units_that_have_no_fixed_relation_are_refused() -> None:
    assert between_units("months since 2000-01-01", "", "days since 2000-01-01", "") is None
    assert between_units("days since 1500-01-01", "standard", "days since 2000-01-01", "") is None
    assert between_units("K", "", "days since 2000-01-01", "") is None
    assert not is_time("degrees_north")
    made = between_units("days since 2000-01-01T00:00:00+01:00", "", "hours since 2000-01-01", "")
    assert made == (Fraction(24), Fraction(-1))
