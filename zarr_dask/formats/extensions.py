"""Extension points in Zarr v3 documents: an object with a name, or only the name.

Source: core specification 3.1, "Extensions". Version 3.0 allowed the name alone only for data
types, so it is read everywhere and written only there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zarr_dask._util.json_fields import FieldReader, is_object

__all__ = ["Extension", "may_be_ignored", "take_extension"]


@dataclass(frozen=True, slots=True)
class Extension:
    """The value of an extension point."""

    name: str
    configuration: Mapping[str, Any]

    @staticmethod
    def of(value: Any, members: FieldReader) -> Extension | None:
        """Parse an extension in its short or its long form; None if it is neither.

        Parameters
        ----------
        value
            Value in the document.
        members
            Collects the problems; its position is that of the extension.
        """
        if isinstance(value, str):
            return Extension(value, {})
        form = FieldReader(value, members.place)
        name = form.take("name", lambda v: isinstance(v, str) and v != "", "a name")
        configuration = form.take("configuration", is_object, "an object", {})
        form.take("must_understand", lambda v: isinstance(v, bool), "true or false", True)
        form.refuse_rest()
        members.problems.extend(form.problems)
        return None if form.problems else Extension(name, configuration)


def take_extension(members: FieldReader, name: str) -> Extension | None:
    """Return the extension in a field of a document; None, with problems added, if it has none."""
    expected = "a name, or an object with a 'name'"
    value = members.take(name, lambda v: isinstance(v, str) or is_object(v), expected)
    if value is None:
        return None
    inside = FieldReader({}, members.at(name))
    extension = Extension.of(value, inside)
    members.problems.extend(inside.problems)
    return extension


def may_be_ignored(value: Any) -> bool:
    """True if readers may ignore an unknown value."""
    return isinstance(value, Mapping) and value.get("must_understand") is False
