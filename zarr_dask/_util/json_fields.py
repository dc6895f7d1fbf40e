"""Reading JSON objects field by field, collecting all problems.

A `FieldReader` returns each field once, checked. A wrong field becomes a `ValidationProblem` and
reading continues, so that one error lists all that is wrong. JSON numbers are distinguished by
their exact type: ``true`` is not 1 and ``2.0`` is not 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeGuard

from zarr_dask.errors import ABSENT, ValidationProblem

__all__ = [
    "FieldReader",
    "any_value",
    "are_names",
    "is_codec_list",
    "is_int",
    "is_int_in",
    "is_ints",
    "is_lengths",
    "is_list",
    "is_object",
    "is_one_of",
]


class FieldReader:
    """Reader of the fields of one JSON object.

    Parameters
    ----------
    members
        The object.
    place
        Position of the object in its document; empty at the top.
    """

    def __init__(self, members: Mapping[str, Any], place: str = "") -> None:
        self._members = dict(members)
        self.place = place
        self.problems: list[ValidationProblem] = []

    def take(
        self, name: str, fits: Callable[[Any], bool], expected: str, default: Any = ABSENT
    ) -> Any:
        """Return a field; if it is wrong, note a problem and return None.

        Parameters
        ----------
        name
            Name of the field.
        fits
            Returns True if the value is valid.
        expected
            Description of valid values.
        default
            Value if the field is absent; without a default the field is required.
        """
        value = self._members.pop(name, default)
        if value is ABSENT or not (value is default or fits(value)):
            self.blame(name, value, expected)
            return None
        return value

    def blame(self, name: str, found: object, expected: str, kind: str = "value") -> None:
        """Note that a field is wrong."""
        self.problems.append(ValidationProblem(self.at(name), found, expected, kind))

    def at(self, name: str) -> str:
        """Return the position of a field in the document."""
        return f"{self.place}.{name}" if self.place else name

    def rest(self) -> dict[str, Any]:
        """Return the fields that were not taken."""
        return self._members

    def refuse_rest(self) -> None:
        """Note every field that was not taken as a problem."""
        self.blame_all(self._members, lambda _: "no such member")

    def blame_all(self, names: Iterable[str], expected: Callable[[str], str]) -> None:
        """Note that some fields that were not taken are wrong; of very many, only the first."""
        wrong = list(names)
        for name in wrong[:_MOST_NAMED]:
            self.blame(name, self._members[name], expected(name))
        if len(wrong) > _MOST_NAMED:
            more = f"{len(wrong) - _MOST_NAMED} more"
            self.problems.append(ValidationProblem(self.place, more, "no such members"))


def any_value(value: Any) -> bool:  # noqa: ARG001  (every value fits)
    """True for every value; its meaning is checked later."""
    return True


def is_int(value: Any) -> bool:
    """True if a value is a JSON integer."""
    return type(value) is int


def is_ints(value: Any) -> bool:
    """True if a value is a list of JSON integers."""
    return isinstance(value, list) and all(is_int(item) for item in value)


def is_lengths(value: Any) -> bool:
    """True if a value is a list of JSON integers that are possible lengths of an array."""
    if not isinstance(value, list) or len(value) > _MOST_NDIM:
        return False
    # a loop takes half the time of a generator, which matters for thousands of arrays
    for length in value:  # noqa: SIM110
        if type(length) is not int or not 0 <= length < _LENGTHS:
            return False
    return True


def are_names(value: Any) -> TypeGuard[list[str | None]]:
    """True if a value is a list of possible names of dimensions, some of them null."""
    if not isinstance(value, list):
        return False
    for name in value:  # noqa: SIM110  (as in `is_lengths`)
        if not (isinstance(name, str) or name is None):
            return False
    return True


_MOST_STEPS = 1000
"""Maximum number of codecs or extensions in a list."""
_MOST_NAMED = 100
"""Maximum number of fields that are listed if all are wrong for the same reason."""
_LENGTHS = 1 << 63
_MOST_NDIM = 64
"""Maximum number of dimensions of an array, as in NumPy."""


def is_list(value: Any) -> bool:
    """True if a value is a list."""
    return isinstance(value, list)


def is_codec_list(value: Any) -> bool:
    """True if a value is a list of a plausible number of codecs or extensions."""
    return isinstance(value, list) and len(value) <= _MOST_STEPS


def is_object(value: Any) -> bool:
    """True if a value is a JSON object."""
    return isinstance(value, Mapping)


def is_int_in(allowed: range) -> Callable[[Any], bool]:
    """Return a predicate that is true for integers within a range."""
    return lambda value: is_int(value) and value in allowed


def is_one_of(*allowed: str) -> Callable[[Any], bool]:
    """Return a predicate that is true for the given strings."""
    return lambda value: isinstance(value, str) and value in allowed
