"""References in JSON as a mapping whose values are parsed when they are asked for.

A document of a million references takes seconds to parse and a gigabyte of objects to hold. Almost
all of its members have one form: a name, and a text or a list of a text and two numbers. One pass
of a regular expression proves that a run of members has this form. Each has four quotes then, and
these are where its name begins and ends. All other members are left to `json`, and so is a whole
document that is not understood here.
"""

from __future__ import annotations

import base64
import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from fsspec.implementations.reference import LazyReferenceMapper

from zarr_dask.stores.backends.reference_targets import is_entry, malformed

__all__ = ["JsonReferences", "LazyObject", "is_below", "load_lazily", "plain", "size_of"]

_S = rb"[ \t\n\r]*+"
_TEXT = rb'"[^"\\\x00-\x1f]*+"'
_NUMBER = rb"(?:0|[1-9][0-9]{0,17}+)"
_PLACE = rb"\[" + _S + _TEXT + (_S + b"," + _S + _NUMBER) * 2 + _S + rb"\]"
_SPACE = re.compile(_S)
_COLON = re.compile(_S + b":" + _S)
_COMMA, _BRACE = re.compile(b"," + _S), re.compile(rb"\{" + _S)
_RUN = re.compile(b"(?:" + _TEXT + _COLON.pattern + _PLACE + _S + b"," + _S + b")*+")
_QUOTES = 4
_PIECE = 1 << 16
"""Members whose names are made at a time."""
_WINDOW = 1 << 12
"""Bytes that are decoded at first for one value."""
_MOST_OTHERS = 100_000
"""Members of another form; a document of more is parsed as a whole, which is faster then."""
_DECODER = json.JSONDecoder()


class LazyObject(Mapping[str, Any]):
    """A JSON object in a document; values of the usual form are parsed when they are asked for.

    Parameters
    ----------
    data
        The document.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._ends: dict[str, int] = {}
        """Positions of the quotes that end names, of members of the usual form."""
        self.others: dict[str, Any] = {}
        """The other members, parsed."""

    def add_run(self, start: int, stop: int) -> None:
        """Add members of the usual form, each followed by a comma."""
        quotes = start + np.flatnonzero(np.frombuffer(self._data, "u1")[start:stop] == ord('"'))
        first, last = quotes[::_QUOTES] + 1, quotes[1::_QUOTES]
        data = self._data
        for piece in range(0, len(first), _PIECE):
            starts, ends = (one[piece : piece + _PIECE].tolist() for one in (first, last))
            names = [data[i:j].decode() for i, j in zip(starts, ends, strict=True)]
            self._ends.update(zip(names, ends, strict=True))
            for name in self.others.keys() & names if self.others else ():
                del self.others[name]

    def add(self, name: str, value: Any) -> None:
        """Add another member; of two of one name the later one counts."""
        self._ends.pop(name, None)
        self.others[name] = value

    def __getitem__(self, name: str) -> Any:
        end = self._ends.get(name)
        if end is None:
            return self.others[name]
        return _value(self._data, _behind(_COLON, self._data, end + 1))[0]

    def __contains__(self, name: object) -> bool:
        return name in self._ends or name in self.others

    def last_numbers(self, names: Collection[str]) -> list[tuple[str, int]]:
        """Return names with the numbers at the ends of their values, where these are as usual."""
        found = list(map(self._ends.get, names))
        if None in found:
            names = [name for name, end in zip(names, found, strict=True) if end is not None]
        ends = np.array([end for end in found if end is not None], "i8")
        if not names:
            return []
        first, last = int(ends.min()), int(ends.max())
        for mark in (b'"', b'"', b"]"):
            last = self._data.index(mark, last + 1)
        text = np.frombuffer(self._data, "u1")[first : last + 1]
        quotes, closings = (np.flatnonzero(text == ord(mark)) for mark in '"]')
        behind_url = quotes[np.searchsorted(quotes, ends - first) + 2]
        at = closings[np.searchsorted(closings, behind_url)] - 1
        while (is_blank := text[at] <= ord(" ")).any():
            at -= is_blank
        numbers, factor = np.zeros(len(at), "i8"), 1
        while (is_digit := (digits := text[at] - np.uint8(ord("0"))) < 10).any():
            numbers += np.where(is_digit, digits, 0) * np.int64(factor)
            at, factor = at - is_digit, factor * 10
        return list(zip(names, numbers.tolist(), strict=True))

    def __iter__(self) -> Iterator[str]:
        yield from self.others
        yield from self._ends

    def __len__(self) -> int:
        return len(self.others) + len(self._ends)


def load_lazily(data: bytes) -> Any:
    """Return what `json.loads` returns, with a `LazyObject` for an object and for its ``refs``.

    Raises
    ------
    ValueError
        If it is no JSON.
    """
    try:
        if not data.isascii():
            data.decode()
        at = _behind(_SPACE, data, 0)
        found, at = _object(data, at, within=("refs",))
        if _behind(_SPACE, data, at) == len(data):
            return found
    except (ValueError, RecursionError):
        pass
    return json.loads(data)


def _object(data: bytes, at: int, within: tuple[str, ...] = ()) -> tuple[LazyObject, int]:
    """Return an object and where it ends; members of these names are lazy if they are objects.

    Raises
    ------
    ValueError
        If it is none that is understood here.
    """
    found = LazyObject(data)
    at = _behind(_BRACE, data, at)
    if data[at : at + 1] == b"}":
        return found, at + 1
    while True:
        end = _behind(_RUN, data, at)
        if end > at:
            found.add_run(at, end)
        name, at = _value(data, end)
        at = _behind(_COLON, data, at)
        if not isinstance(name, str) or len(found.others) == _MOST_OTHERS:
            raise ValueError(name)
        is_lazy = name in within and data[at : at + 1] == b"{"
        value, at = _object(data, at) if is_lazy else _value(data, at)
        found.add(name, value)
        at = _behind(_SPACE, data, at)
        if data[at : at + 1] == b"}":
            return found, at + 1
        at = _behind(_COMMA, data, at)


def _behind(pattern: re.Pattern[bytes], data: bytes, at: int) -> int:
    """Return where a match ends.

    Raises
    ------
    ValueError
        If there is none.
    """
    found = pattern.match(data, at)
    if found is None:
        raise ValueError(pattern)
    return found.end()


def _value(data: bytes, at: int) -> tuple[Any, int]:
    """Return the value at a place of a document in UTF-8, and where it ends."""
    size = _WINDOW
    while True:
        window = data[at : at + size].decode(errors="ignore")  # may end within a character
        is_all = at + size >= len(data)
        try:
            value, end = _DECODER.raw_decode(window)
        except ValueError:
            if is_all:
                raise
        else:
            if is_all or end < len(window):  # else a number may go on
                return value, at + len(window[:end].encode())
        size *= 16


def plain(value: Any) -> Any:
    """Return a reference as fsspec keeps it."""
    if isinstance(value, str) and value.startswith("base64:"):
        return base64.b64decode("".join(value[7:].split()), validate=True)
    return json.dumps(value) if isinstance(value, dict) else value


class JsonReferences(LazyReferenceMapper):  # type: ignore[misc]
    """References by key, as `fsspec` takes them: it asks for values, and for names in a folder.

    Parameters
    ----------
    entries
        The references, as the document has them.
    document
        Location of the document, for messages.

    Raises
    ------
    StoreError
        If an entry is malformed.
    """

    def __init__(self, entries: Mapping[str, Any], document: str) -> None:
        self._entries = entries
        # all others are lists of a URL and two numbers
        unproven = entries.others if isinstance(entries, LazyObject) else entries
        for key, entry in unproven.items():
            if not is_entry(plain(entry)):
                raise malformed(document, key, f"{entry!r:.200}")

    def __getitem__(self, key: str) -> Any:
        return plain(self._entries[key])

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def values(self) -> Iterator[Any]:
        """Yield all references."""
        return map(plain, self._entries.values())

    def items(self) -> Iterator[tuple[str, Any]]:
        """Yield all keys with their references."""
        return ((key, plain(entry)) for key, entry in self._entries.items())

    @cached_property
    def _folders(self) -> dict[str, list[str]]:
        """The keys in each folder."""
        found = defaultdict[str, list[str]](list)
        for key in self._entries:
            found[key.rpartition("/")[0]].append(key)
        for folder in list(found):
            parts = folder.split("/")
            for count in range(len(parts)):
                found["/".join(parts[:count])]  # those in between have no keys of their own
        return dict(found)

    def listdir(self) -> Collection[str]:
        """Return the paths of all folders."""
        return self._folders.keys()

    def keys_below(self, folder: str) -> Collection[str]:
        """Return the keys at and below a folder."""
        if not folder:
            return self._entries.keys()
        keys = [folder] if folder in self._entries else []
        for name in self._folders:
            if is_below(name, folder):
                keys += self._folders[name]
        return keys

    def sizes_below(self, folder: str) -> list[tuple[str, int | None]]:
        """Return the keys at and below a folder with their sizes; None for those of whole files."""
        return self._with_sizes(self.keys_below(folder))

    def _with_sizes(self, keys: Collection[str]) -> list[tuple[str, int | None]]:
        found: list[tuple[str, int | None]] = []
        others = self._entries
        if isinstance(others, LazyObject):
            found += others.last_numbers(keys)
            others = others.others
        if len(found) < len(keys):
            found += [(key, size_of(self[key])) for key in keys if key in others]
        return found

    def ls(self, path: str = "", detail: bool = True) -> Any:
        """Return what lies directly in a folder.

        Raises
        ------
        KeyError
            If there is none.
        """
        path = path.rstrip("/")
        keys = self._folders[path]
        folders = [one for one in self._folders if one and one.rpartition("/")[0] == path]
        if not detail:
            return sorted([*keys, *folders])
        found = [{"name": one, "type": "directory", "size": 0} for one in folders]
        sizes = self._with_sizes(keys)
        return found + [{"name": key, "type": "file", "size": size} for key, size in sizes]


def is_below(path: str, folder: str) -> bool:
    """True for a folder and all that is in it."""
    return not folder or path == folder or path.startswith(f"{folder}/")


def size_of(entry: Any) -> int | None:
    """Return the bytes of a value; None for those of a whole file."""
    if isinstance(entry, list):
        return entry[2] if len(entry) > 1 else None
    return len(entry)
