"""Validation of the document of a job, member by member: it is read as if a stranger wrote it.

Tokens, places and names of folders are used to find what is resumed, replaced and removed, so that
a document that was tampered with must not lead anywhere else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from zarr_dask.errors import JournalError
from zarr_dask.stores.base import is_key
from zarr_dask.stores.process_identity import Owner

__all__ = ["checked_members"]

_LONGEST_TEXT = 1 << 16
_LARGEST = 1 << 63
_SWAP = re.compile("[0-9a-f]{16}")
_SESSION = re.compile(r"zarr-dask\.[0-9a-f]{16}")
_LONGEST_SHOWN = 80


def _is_count(value: Any) -> bool:
    """True for an integer of at least 0 that a file system could count to."""
    return type(value) is int and 0 <= value < _LARGEST


def _is_path(value: Any) -> bool:
    """True for the path of a node, the root included."""
    return value == "" or is_key(value)


def _shortly(value: Any) -> str:
    """A value on one short line, for messages."""
    text = ascii(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST_TEXT


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_prefix(value: Any) -> bool:
    return value == "" or (isinstance(value, str) and value[-1:] == "/" and is_key(value[:-1]))


def _is_swap(value: Any) -> bool:
    return value == "" or (isinstance(value, str) and _SWAP.fullmatch(value) is not None)


def _is_session(value: Any) -> bool:
    return value == "" or (isinstance(value, str) and _SESSION.fullmatch(value) is not None)


def _is_owner(value: Any) -> bool:
    return value == "" or (_is_text(value) and Owner.parse(value) is not None)


def _is_time(value: Any) -> bool:
    try:
        datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return False
    return True


def _is_documents(value: Any) -> bool:
    return isinstance(value, dict) and all(
        is_key(key) and isinstance(text, str) for key, text in value.items()
    )


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_layers(value: Any) -> bool:
    return isinstance(value, list) and all(_is_texts(one) and len(one) == 2 for one in value)


def _is_region(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(one, list) and len(one) == 2 and all(map(_is_count, one)) and one[0] <= one[1]
        for one in value
    )


def _is_paths(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_path, value))


def _is_facts(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and _is_count(value.get("stages", 0))
        and _is_paths(value.get("targets", []))
        and (_is_count(value.get("arrays", 0)) or _is_paths(value["arrays"]))
    )


_CHECKS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "kind": (lambda value: _is_text(value) and value != "", "the name of a kind of job"),
    "token": (lambda value: _is_text(value) and value != "", "a text"),
    "run_id": (_is_text, "a text"),
    "resume": (lambda value: value in ("", "token", "name"), "'', 'token' or 'name'"),
    "creates": (_is_flag, "true or false"),
    "data": (_is_prefix, "a prefix of keys that ends in '/', or ''"),
    "objects": (_is_count, "an integer of at least 0"),
    "documents": (_is_documents, "texts by keys"),
    "layers": (_is_layers, "pairs of texts"),
    "region": (_is_region, "pairs of integers, the first element and the one behind the last"),
    "extra": (_is_facts, "an object whose 'stages' is an integer, and 'targets' paths of nodes"),
    "begun": (_is_time, "a time in ISO 8601"),
    "append_committed": (_is_flag, "true or false"),
    "ended": (_is_flag, "true or false"),
    "content_token": (_is_text, "a text"),
    "finished_with": (_is_texts, "texts"),
    "swap": (_is_swap, "16 hexadecimal digits, or ''"),
    "process": (_is_owner, "a process, or ''"),
    "renewed": (lambda value: value == "" or _is_time(value), "a time in ISO 8601, or ''"),
    "session": (_is_session, "the branch of a job, zarr-dask.<16 hexadecimal digits>, or ''"),
}


def checked_members(document: Mapping[str, Any], at: str) -> dict[str, Any]:
    """The members of a job, as its document has them.

    Raises
    ------
    JournalError
        If one is unknown, missing, or not what a job says.
    """
    for name in ("kind", "token", "run_id"):
        if name not in document:
            raise _wrong(at, name, "nothing", _CHECKS[name][1])
    for name, value in document.items():
        if name not in _CHECKS:
            raise _wrong(at, _shortly(name), _shortly(value), "no such member")
        is_right, expected = _CHECKS[name]
        if not is_right(value):
            raise _wrong(at, name, _shortly(value), expected)
    return dict(document)


def _wrong(at: str, name: str, found: str, expected: str) -> JournalError:
    return JournalError(
        f"{at} is the journal of no job that this version has begun: its member {name} is {found}, "
        f"expected {expected}. Nothing was changed. If no job of another version is running, "
        "remove the folder that it lies in."
    )
