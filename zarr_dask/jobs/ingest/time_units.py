"""Units of time of the CF conventions as exact numbers: "days since 2000-01-01", a calendar."""

from __future__ import annotations

import re
from fractions import Fraction

__all__ = ["between_lengths", "between_units", "finer_units", "is_time"]

_SECONDS = {
    **dict.fromkeys(("day", "days", "d"), Fraction(86400)),
    **dict.fromkeys(("hour", "hours", "hr", "hrs", "h"), Fraction(3600)),
    **dict.fromkeys(("minute", "minutes", "min", "mins"), Fraction(60)),
    **dict.fromkeys(("second", "seconds", "sec", "secs", "s"), Fraction(1)),
    **dict.fromkeys(
        ("millisecond", "milliseconds", "millisec", "millisecs", "msec", "ms"), Fraction(1, 1000)
    ),
    **dict.fromkeys(("microsecond", "microseconds"), Fraction(1, 10**6)),
    **dict.fromkeys(("nanosecond", "nanoseconds"), Fraction(1, 10**9)),
}
_SINCE = re.compile(
    r"\s*(?P<unit>[a-zA-Z]+)\s+since\s+(?P<year>\d{1,4})-(?P<month>\d{1,2})-(?P<day>\d{1,2})"
    r"(?:[T\s]+(?P<hour>\d{1,2}):(?P<minute>\d{1,2})(?::(?P<second>\d{1,2}(?:\.\d*)?))?)?"
    r"\s*(?:Z|UTC|GMT|(?P<sign>[+-])(?P<zone>\d{1,2}):?(?P<rest>\d{2})?)?\s*"
)
_MONTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_WHOLE = ("hours", "minutes", "seconds", "milliseconds", "microseconds", "nanoseconds")
_ALIASES = {"gregorian": "standard", "365_day": "noleap", "366_day": "all_leap", "": "standard"}
_REFORM = (1582, 10, 15)


def is_time(units: object) -> bool:
    """True for units such as "days since 2000-01-01".

    Examples
    --------
    >>> is_time("days since 2000-01-01"), is_time("K"), is_time(None)
    (True, False, False)
    """
    return isinstance(units, str) and " since " in units


def between_lengths(units: str, wanted: str) -> Fraction | None:
    """Return the factor that brings lengths of time from one unit to another; None for others.

    Examples
    --------
    >>> between_lengths("days", "seconds"), between_lengths("days", "K")
    (Fraction(86400, 1), None)
    """
    one, other = (_SECONDS.get(text.strip().lower()) for text in (units, wanted))
    return None if one is None or other is None else one / other


def between_units(
    units: str, calendar: str, wanted: str, wanted_calendar: str
) -> tuple[Fraction, Fraction] | None:
    """Return factor and summand that bring numbers from one unit to another.

    None if they cannot: of other calendars, months and years, which have no fixed length, or dates
    that are written in an unknown way.

    Examples
    --------
    >>> between_units("hours since 2000-01-02", "", "days since 2000-01-01", "standard")
    (Fraction(1, 24), Fraction(1, 1))
    >>> between_units("days since 2001-03-01", "noleap", "days since 2000-03-01", "noleap")[1]
    Fraction(365, 1)
    >>> between_units("days since 2000-01-01", "noleap", "days since 2000-01-01", "") is None
    True
    """
    one, other = _calendar(calendar), _calendar(wanted_calendar)
    proleptic = {"standard", "proleptic_gregorian"}
    if one != other and not {one, other} <= proleptic:
        return None
    made = [_parsed(text, name) for text, name in ((units, one), (wanted, other))]
    if made[0] is None or made[1] is None:
        return None
    (length, start), (wanted_length, wanted_start) = made[0], made[1]
    return length / wanted_length, (start - wanted_start) / wanted_length


def finer_units(units: str, parts: int) -> str | None:
    """Return the coarsest units of which one of these has a multiple of a number; None without.

    Examples
    --------
    >>> finer_units("days since 2000-01-01", 24), finer_units("days", 1440)
    ('hours since 2000-01-01', 'minutes')
    >>> finer_units("hours", 7) is None
    True
    """
    word, space, since = units.strip().partition(" ")
    length = _SECONDS.get(word.lower())
    if length is None:
        return None
    for name in _WHOLE:
        times = length / _SECONDS[name]
        if times.denominator == 1 and int(times) % parts == 0:
            return f"{name}{space}{since}"
    return None


def _calendar(name: str) -> str:
    return _ALIASES.get(name.lower(), name.lower())


def _parsed(units: str, calendar: str) -> tuple[Fraction, Fraction] | None:
    """Return seconds of one unit, and of the reference date since the year 0."""
    match = _SINCE.fullmatch(units)
    if match is None or match["unit"].lower() not in _SECONDS:
        return None
    year, month, day = (int(match[name]) for name in ("year", "month", "day"))
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    if calendar == "standard" and (year, month, day) < _REFORM:
        return None
    days = _days(calendar, year, month, day)
    if days is None:
        return None
    seconds = Fraction(days) * 86400
    seconds += int(match["hour"] or 0) * 3600 + int(match["minute"] or 0) * 60
    seconds += Fraction(match["second"].rstrip(".") if match["second"] else 0)
    if match["zone"]:
        shift = int(match["zone"]) * 3600 + int(match["rest"] or 0) * 60
        seconds -= shift if match["sign"] == "+" else -shift
    return _SECONDS[match["unit"].lower()], seconds


def _days(calendar: str, year: int, month: int, day: int) -> int | None:
    """Return the days since the first of January of the year 0."""
    if calendar == "360_day":
        return year * 360 + (month - 1) * 30 + day - 1
    before = sum(_MONTHS[: month - 1]) + day - 1
    late = month > 2
    if calendar == "noleap":
        return year * 365 + before
    if calendar == "all_leap":
        return year * 366 + before + late
    if calendar == "julian":
        return year * 365 + -(-year // 4) + before + (late and year % 4 == 0)
    if calendar in {"standard", "proleptic_gregorian"}:
        past = year - 1
        leaps = past // 4 - past // 100 + past // 400 + 1
        leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
        return year * 365 + leaps + before + (late and leap)
    return None
