"""Reading JSON objects member by member, with everything that is wrong collected.

A `Members` hands out each member once, checked; what does not fit becomes a `Problem` and the
caller goes on, so that one error lists all that is wrong with a document. JSON numbers are told
apart by their exact type: ``true`` is not 1 and ``2.0`` is not 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeGuard

from zarr_dask.errors import ABSENT, Problem

__all__ = [
    "Members",
    "anything",
    "are_names",
    "between",
    "is_int",
    "is_ints",
    "is_lengths",
    "is_list",
    "is_object",
    "is_steps",
    "one_of",
]


class Members:
    """The members of one JSON object.

    Parameters
    ----------
    members
        The object.
    place
        Where it stands in its document; empty at the top.
    """

    def __init__(self, members: Mapping[str, Any], place: str = "") -> None:
        self._members = dict(members)
        self.place = place
        self.problems: list[Problem] = []

    def take(
        self, name: str, fits: Callable[[Any], bool], expected: str, default: Any = ABSENT
    ) -> Any:
        """A member, or None and one more problem.

        Parameters
        ----------
        name
            Of the member.
        fits
            Whether its value will do.
        expected
            What would do, in words.
        default
            Its value where it is absent; without one it must be there.
        """
        value = self._members.pop(name, default)
        if value is ABSENT or not (value is default or fits(value)):
            self.blame(name, value, expected)
            return None
        return value

    def blame(self, name: str, found: object, expected: str, kind: str = "value") -> None:
        """Note that a member is wrong."""
        self.problems.append(Problem(self.at(name), found, expected, kind))

    def at(self, name: str) -> str:
        """Place of a member in the document."""
        return f"{self.place}.{name}" if self.place else name

    def rest(self) -> dict[str, Any]:
        """The members that were not taken."""
        return self._members

    def refuse_rest(self) -> None:
        """Note every member that was not taken as a problem."""
        self.blame_all(self._members, lambda _: "no such member")

    def blame_all(self, names: Iterable[str], expected: Callable[[str], str]) -> None:
        """Note that some members that were not taken are wrong, of very many the first."""
        wrong = list(names)
        for name in wrong[:_MOST_NAMED]:
            self.blame(name, self._members[name], expected(name))
        if len(wrong) > _MOST_NAMED:
            more = f"{len(wrong) - _MOST_NAMED} more"
            self.problems.append(Problem(self.place, more, "no such members"))


def anything(value: Any) -> bool:  # noqa: ARG001  (every value fits)
    """Whether there is a value: its meaning is looked at later."""
    return True


def is_int(value: Any) -> bool:
    """Whether a value is a JSON integer."""
    return type(value) is int


def is_ints(value: Any) -> bool:
    """Whether a value is a list of JSON integers."""
    return isinstance(value, list) and all(is_int(item) for item in value)


def is_lengths(value: Any) -> bool:
    """Whether a value is a list of JSON integers that may be the lengths of an array."""
    if not isinstance(value, list) or len(value) > _MOST_NDIM:
        return False
    # a loop takes half the time of a generator, and documents of thousands of arrays come here
    for length in value:  # noqa: SIM110
        if type(length) is not int or not 0 <= length < _LENGTHS:
            return False
    return True


def are_names(value: Any) -> TypeGuard[list[str | None]]:
    """Whether a value is a list that may name dimensions, some of them with null."""
    if not isinstance(value, list):
        return False
    for name in value:  # noqa: SIM110  (as in `is_lengths`)
        if not (isinstance(name, str) or name is None):
            return False
    return True


_MOST_STEPS = 1000
"""Codecs or extensions in a list at most."""
_MOST_NAMED = 100
"""Members that are named at most where all are wrong for one reason."""
_LENGTHS = 1 << 63
_MOST_NDIM = 64
"""Dimensions of an array at most, as in NumPy."""


def is_list(value: Any) -> bool:
    """Whether a value is a list."""
    return isinstance(value, list)


def is_steps(value: Any) -> bool:
    """Whether a value is a list that may name the steps of something; nobody takes a thousand."""
    return isinstance(value, list) and len(value) <= _MOST_STEPS


def is_object(value: Any) -> bool:
    """Whether a value is a JSON object."""
    return isinstance(value, Mapping)


def between(allowed: range) -> Callable[[Any], bool]:
    """Tells integers within a range."""
    return lambda value: is_int(value) and value in allowed


def one_of(*allowed: str) -> Callable[[Any], bool]:
    """Tells some strings."""
    return lambda value: isinstance(value, str) and value in allowed
