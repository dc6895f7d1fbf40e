"""Names of units that UDUNITS-2 and OME-Zarr share."""

from __future__ import annotations

__all__ = ["METRES", "UNITS"]

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

_POWERS = (-24, -21, -18, -15, -12, -9, -6, -3, -2, -1, 0, 2, 3, 6, 9, 12, 15, 18, 21, 24)

METRES = {
    f"{prefix}meter": 10.0**power for prefix, power in zip(_PREFIXES, _POWERS, strict=True)
} | {"angstrom": 1e-10, "inch": 0.0254, "foot": 0.3048, "yard": 0.9144, "mile": 1609.344}
"""Length of the units of space in metres, for comparing lengths along axes."""
