"""Differences between files that are to be one dataset, and the choices that settle them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from zarr_dask._util.keywords import did_you_mean
from zarr_dask.errors import IngestError
from zarr_dask.jobs.engine.plan import pluralize

__all__ = ["CHOICES", "FileDifference", "checked_settle", "choice_for", "refuse"]

CHOICES: dict[str, dict[str, str]] = {
    "unreadable": {"skip": "leave the file out"},
    "unsupported": {"skip": "leave the variable out"},
    "missing": {
        "fill": "masked values where a file lacks it; texts and bools have none: empty and False",
        "skip": "leave the variable out",
    },
    "dims": {"skip": "leave the variable out"},
    "shape": {"skip": "leave the variable out"},
    "dtype": {"promote": "a data type that holds all", "skip": "leave the variable out"},
    "units": {
        "convert": "in the units of the first file, as times are without a choice",
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

_OF_FILES = ("unreadable", "broken")
"""Kinds that are about a file, not about one of its variables."""

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
    by_name: tuple[str, ...] = ()
    """Those of them that hold only if the variable is named."""

    def __str__(self) -> str:
        name = f" {self.variable}:" if self.variable else ""
        return f"{self.file}:{name} {self.found}"


def checked_settle(settle: Mapping[str, str] | None) -> dict[str, str]:
    """Return choices by kind, or by kind and variable.

    Raises
    ------
    ValueError
        If there is no such kind or choice.

    Examples
    --------
    >>> checked_settle({"units": "convert", "units:lake/level": "first"})
    {'units': 'convert', 'units:lake/level': 'first'}
    >>> checked_settle({"units": "guess"})
    Traceback (most recent call last):
    ...
    ValueError: settle={'units': 'guess'}: for 'units' expected 'convert', ...
    """
    if settle is not None and not isinstance(settle, Mapping):
        raise TypeError(f"settle={settle!r}: expected a mapping such as {{'units': 'convert'}}.")
    found = dict(settle or {})
    for key, choice in found.items():
        kind, mark, _ = str(key).partition(":")
        if kind not in CHOICES or (mark and kind in _OF_FILES):
            hint = did_you_mean(kind, CHOICES) if kind not in CHOICES else ""
            raise ValueError(
                f"settle has {key!r}:{hint} expected one of {', '.join(CHOICES)}; for one variable "
                "as in 'units:time', if it is not about whole files."
            )
        if choice != "stop" and choice not in CHOICES[kind]:
            expected = ", ".join(map(repr, CHOICES[kind]))
            raise ValueError(
                f"settle={{{key!r}: {choice!r}}}: for {kind!r} expected {expected} or 'stop'."
            )
    return found


def choice_for(
    settle: Mapping[str, str],
    kind: str,
    variable: str,
    by_name: Sequence[str] = (),
    default: str = "stop",
) -> str:
    """Return the choice for a difference: that of the variable, of its kind, or the default."""
    chosen = settle.get(kind, default)
    return settle.get(f"{kind}:{variable}", default if chosen in by_name else chosen)


def refuse(differences: Sequence[FileDifference], hint: str = "") -> None:
    """Raise for differences that are not settled; all of them are listed, by kind, then the hint.

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
        lines += [f"  -> {text}" for text in _remedies(kind, some)]
    raise IngestError("\n".join(lines + [hint] * bool(hint)), differences)


def _remedies(kind: str, some: Sequence[FileDifference]) -> Iterator[str]:
    """Yield what to write; for each variable by itself if they have different choices."""
    first = some[0]
    if len({(one.choices, one.by_name) for one in some}) == 1:
        yield _remedy(kind, [name for name in first.choices if name not in first.by_name])
        if first.by_name:
            yield _remedy(f"{kind}:{first.variable}", first.by_name)
        return
    for variable, one in {one.variable: one for one in some}.items():
        if one.choices:
            yield _remedy(f"{kind}:{variable}", one.choices)
        else:
            yield f"{variable}: correct the files, or leave the variable out with variables="


def _remedy(key: str, choices: Sequence[str]) -> str:
    if not choices:
        return "no choice settles this: correct the files, or leave some out"
    kind = key.partition(":")[0]
    texts = [f"{name!r} ({CHOICES[kind][name]})" for name in CHOICES[kind] if name in choices]
    return f"settle={{{key!r}: ...}} with {' or '.join(texts)}"
