"""Names of units that UDUNITS-2 and OME-Zarr share."""

from __future__ import annotations

__all__ = ["UNITS"]

_PREFIXES = (
    *("yocto", "zepto", "atto", "femto", "pico", "nano", "micro", "milli", "centi", "deci"),
    *("", "hecto", "kilo", "mega", "giga", "tera", "peta", "exa", "zetta", "yotta"),
)

UNITS = {
    "space": frozenset(f"{prefix}meter" for prefix in _PREFIXES)
    | {"angstrom", "foot", "inch", "mile", "parsec", "yard"},
    "time": frozenset(f"{prefix}second" for prefix in _PREFIXES) | {"day", "hour", "minute"},
}
"""Units of each type of axis."""
