"""Differences between files that are to be one dataset, and the choices that settle them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zarr_dask.errors import IngestError
from zarr_dask.jobs.engine.plan import pluralize

__all__ = ["CHOICES", "FileDifference", "checked_settle", "refuse"]

CHOICES: dict[str, dict[str, str]] = {
    "unreadable": {"skip": "leave the file out"},
    "unsupported": {"skip": "leave the variable out"},
    "missing": {"fill": "masked values where a file lacks it", "skip": "leave the variable out"},
    "dims": {"skip": "leave the variable out"},
    "shape": {"skip": "leave the variable out"},
    "dtype": {"promote": "a data type that holds all", "skip": "leave the variable out"},
    "units": {
        "convert": "times in the units of the first file",
        "first": "keep the numbers, with the units of the first file",
        "skip": "leave the variable out",
    },
    "packing": {"unpack": "store unpacked floats", "skip": "leave the variable out"},
    "values": {"first": "those of the first file", "skip": "leave the variable out"},
    "order": {"keep": "keep the order of the files; order='coordinate' sorts them"},
    "overlap": {"keep": "keep all elements, also those that occur twice"},
    "broken": {"fill": "masked values where a file does not decode; the report lists them"},
}
"""The kinds of differences, and the choices for each; files turn out broken when they are read."""

_LISTED = 1000


@dataclass(frozen=True)
class FileDifference:
    """One thing in one file that keeps the files from being one dataset."""

    kind: str
    file: str
    variable: str
    found: str
    choices: tuple[str, ...]
    """Choices that settle it; none if it must be settled in the files."""

    def __str__(self) -> str:
        name = f" {self.variable}:" if self.variable else ""
        return f"{self.file}:{name} {self.found}"


def checked_settle(settle: Mapping[str, str] | None) -> dict[str, str]:
    """Return choices by kind.

    Raises
    ------
    ValueError
        If there is no such kind or choice.

    Examples
    --------
    >>> checked_settle({"units": "convert"})
    {'units': 'convert'}
    >>> checked_settle({"units": "guess"})
    Traceback (most recent call last):
    ...
    ValueError: settle={'units': 'guess'}: for 'units' expected 'convert', ...
    """
    if settle is not None and not isinstance(settle, Mapping):
        raise TypeError(f"settle={settle!r}: expected a mapping such as {{'units': 'convert'}}.")
    found = dict(settle or {})
    for kind, choice in found.items():
        if kind not in CHOICES:
            raise ValueError(f"settle has {kind!r}: expected one of {', '.join(CHOICES)}.")
        if choice != "stop" and choice not in CHOICES[kind]:
            expected = ", ".join(map(repr, CHOICES[kind]))
            raise ValueError(
                f"settle={{{kind!r}: {choice!r}}}: for {kind!r} expected {expected} or 'stop'."
            )
    return found


def refuse(differences: Sequence[FileDifference]) -> None:
    """Raise for differences that are not settled; all of them are listed, by kind.

    Raises
    ------
    IngestError
        If there are any.
    """
    if not differences:
        return
    files = len({one.file for one in differences})
    count, among = pluralize(len(differences), "difference"), pluralize(files, "file")
    lines = [f"{count} in {among}; nothing has been written."]
    for kind in CHOICES:
        some = [one for one in differences if one.kind == kind]
        if not some:
            continue
        lines.append(f"{kind}:")
        lines += [f"  {one}" for one in some[:_LISTED]]
        if len(some) > _LISTED:
            lines.append(f"  and {len(some) - _LISTED} more (all in the error's .differences)")
        lines.append(f"  {_remedy(kind, some)}")
    raise IngestError("\n".join(lines), differences)


def _remedy(kind: str, some: Sequence[FileDifference]) -> str:
    choices = [name for name in CHOICES[kind] if all(name in one.choices for one in some)]
    if not choices:
        return "-> no one choice settles all of these: correct the files, or leave some out"
    texts = [f"{name!r} ({CHOICES[kind][name]})" for name in choices]
    return f"-> settle={{{kind!r}: ...}} with {' or '.join(texts)}"
