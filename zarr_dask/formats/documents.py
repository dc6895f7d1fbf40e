"""Metadata documents as bytes and as JSON, within limits.

Documents are untrusted: no more bytes are fetched than `Limits` allow, and they are parsed only if
the result fits in memory. 64 MiB of text can hold twenty million empty lists.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from functools import partial
from itertools import chain
from pathlib import PurePath
from typing import Any, TypeVar

import jiter
import numpy as np

from zarr_dask.dtypes import VARIABLE_BYTES
from zarr_dask.errors import MetadataError, ValidationProblem
from zarr_dask.stores.base import Buffer, Range, Store

__all__ = [
    "DEFAULT_LIMITS",
    "Document",
    "FetchedDocuments",
    "Limits",
    "are_stored",
    "attribute_hint",
    "checked_attributes",
    "checked_documents",
    "document_range",
    "dump_json",
    "load_json",
    "looked_up_before",
    "looked_up_once",
    "looking_once",
    "nodes_at_root",
    "parse_json",
    "read_documents",
    "real_path",
    "where",
]


Document = bytes | Mapping[str, Any]
"""A document as it is stored, or the JSON object parsed from it."""
FetchedDocuments = Mapping[str, Document | None]
"""Documents by key; None for absent ones."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for untrusted metadata.

    Examples
    --------
    >>> import zarr_dask as zd
    >>> limits = zd.Limits(chunk_bytes=1 << 34)  # chunks of up to 16 GiB
    >>> zd.ReadOptions(limits=limits).limits.chunk_bytes
    17179869184
    """

    chunk_bytes: int = 1 << 31
    """Maximum decoded bytes of a chunk."""
    metadata_bytes: int = 1 << 26
    """Maximum bytes of a metadata document."""
    metadata_memory: int = 1 << 28
    """Maximum bytes of memory for parsing a metadata document, itself included."""
    variable_bytes: int = VARIABLE_BYTES
    """Maximum encoded bytes of a chunk of elements without a fixed size (texts, for instance)."""

    def __post_init__(self) -> None:
        for bound in fields(self):
            value = getattr(self, bound.name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{bound.name}={value!r}: expected a number of bytes, at least 1.")


DEFAULT_LIMITS = Limits()


def document_range(limits: Limits) -> Range:
    """Return the range to fetch of a document: all of it, or one byte more than `limits` allow."""
    return Range(0, limits.metadata_bytes + 1)


def read_documents(store: Store, keys: Sequence[str], limits: Limits) -> dict[str, bytes | None]:
    """Read several documents in one batch; None for absent ones.

    Raises
    ------
    MetadataError
        If one is larger than `limits` allow.
    """
    part = document_range(limits)
    values = store.get_ranges([(key, part) for key in keys])
    return checked_documents(store, dict(zip(keys, values, strict=True)), limits)


def checked_documents(
    store: Store, found: Mapping[str, Buffer | None], limits: Limits
) -> dict[str, bytes | None]:
    """Return fetched documents as bytes.

    Raises
    ------
    MetadataError
        If one is larger than `limits` allow.
    """
    documents: dict[str, bytes | None] = {}
    for key, value in found.items():
        if value is not None and len(value) > limits.metadata_bytes:
            expected = (
                f"a document of at most {limits.metadata_bytes} bytes "
                "(ReadOptions(limits=Limits(metadata_bytes=...)) sets another bound)"
            )
            raise MetadataError(where(store, key), [ValidationProblem(key, "more bytes", expected)])
        documents[key] = None if value is None else bytes(value)
    return documents


def are_stored(store: Store, documents: Mapping[str, bytes]) -> bool:
    """True if a store holds documents, byte by byte; False if there are none to compare."""
    found = store.get_ranges([(key, Range(0, len(text) + 1)) for key, text in documents.items()])
    return bool(documents) and all(
        value == text for value, text in zip(found, documents.values(), strict=True)
    )


def where(store: Store, key: str) -> str:
    """Return store and key, for messages."""
    return f"{store.url}/{key}" if key else store.url


def load_json(
    store: Store, key: str, text: Document, limits: Limits = DEFAULT_LIMITS
) -> dict[str, Any]:
    """Parse a document that must be a JSON object; the result must not be changed.

    Raises
    ------
    MetadataError
        If it is not one, or takes more memory than `limits` allow.
    """
    if isinstance(text, dict):
        return text
    if isinstance(text, Mapping):
        return dict(text)
    try:
        document = parse_json(text, limits)
    except _TooMuchMemoryError as error:
        expected = (
            f"at most {limits.metadata_memory} "
            "(ReadOptions(limits=Limits(metadata_memory=...)) sets another bound)"
        )
        raise _refusal(store, key, str(error), expected) from error
    except _TooDeepError as error:
        raise _refusal(store, key, "deeper ones", str(error)) from error
    except (ValueError, RecursionError) as error:
        found = text[:60].decode("utf-8", "backslashreplace")
        raise _refusal(store, key, found, f"JSON ({error})") from error
    if not isinstance(document, dict):
        raise _refusal(store, key, document, "a JSON object")
    return document


def _refusal(store: Store, key: str, found: object, expected: str) -> MetadataError:
    return MetadataError(
        where(store, key), [ValidationProblem(key.rsplit("/", 1)[-1], found, expected)]
    )


def parse_json(text: bytes, limits: Limits, *, strictly: bool = True) -> Any:
    """Parse JSON if it does not take more memory than `limits` allow.

    Raises
    ------
    ValueError
        If it takes more, is not JSON, is nested too deeply, or, with `strictly`, an object has two
        fields of one name.
    RecursionError
        If it is nested very deeply.
    """
    if len(text) * _MOST_PER_BYTE > limits.metadata_memory:
        _check_memory(text, limits.metadata_memory)
    try:
        return jiter.from_json(text, catch_duplicate_keys=strictly)
    except ValueError as error:  # the slower one accepts half a surrogate pair, or gives a reason
        if twice := _TWICE.match(str(error)):
            raise ValueError(f"the name {twice[1][:60]!r} stands twice in one object") from error
        document = json.loads(text, object_pairs_hook=_object if strictly else None)
    if _is_deeper(document, _DEEPEST):
        raise _TooDeepError(f"values nested at most {_DEEPEST} deep")
    return document


_TWICE = re.compile(r'Detected duplicate key "(.*)" at line', re.DOTALL)


class _TooMuchMemoryError(ValueError):
    """The document would take too much memory; the message says how much."""


_MOST_PER_BYTE = 100
"""Maximum bytes of memory per byte of a document, by the costs below."""
_LEAST = 1 << 12
_COSTS = ((b"{", 100), (b"[", 80), (b":", 210), (b",", 56))
"""Bytes of memory for the parts of a document, by the byte that marks each of them.

The parts are objects, lists, fields with a unique name (the tuple they are passed in, its text, its
entries in the object and in the parser's table of names), and values. Measured with CPython 3.13.
"""


def _check_memory(text: bytes, most: int) -> None:
    """Raise if a document takes more memory than `most`.

    Raises
    ------
    ValueError
        With a lower bound of the bytes that it takes.
    """
    nbytes = _LEAST
    counted = (text.count(found) * cost for found, cost in _COSTS)
    for cost in chain(_text_costs(text), counted):
        nbytes += cost
        if nbytes > most:
            raise _TooMuchMemoryError(f"at least {nbytes} bytes of memory when it is parsed")


def _text_costs(text: bytes) -> Iterator[int]:
    """Yield bytes of memory for the document, for it as a text, and for the texts in it.

    One wide character makes its whole text wide.
    """
    yield 3 * len(text)
    if not text.isascii() or b"\0" in text:
        yield 3 * len(text)
        yield 4 * len(text) if re.search(rb"[\xf0-\xff\x00]", text) else 0
    elif b"\\u" in text:
        yield 3 * len(text)
        yield 3 * len(text) if re.search(rb"\\u[dD][89abAB]", text) else 0


class _TooDeepError(ValueError):
    """The document is nested too deeply; the message has the limit."""


_DEEPEST = 200
"""Maximum nesting of lists and objects; copying and printing are recursive. The fast parser stops
there (or one later) by itself."""


_HOLDERS = frozenset({dict, list})


def _is_deeper(document: Any, most: int) -> bool:
    """True if lists and objects are nested more than `most` deep."""
    level = [document] if type(document) in _HOLDERS else []
    for _ in range(most):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) in _HOLDERS
        ]
        if not level:
            return False
    return True


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a JSON object; its names must be unique, because readers disagree on which one wins."""
    document = dict(members)
    if len(document) != len(members):
        last = {name: position for position, (name, _) in enumerate(members)}
        twice = next(name for position, (name, _) in enumerate(members) if last[name] > position)
        raise ValueError(f"the name {twice[:60]!r} stands twice in one object")
    return document


def dump_json(document: Mapping[str, Any]) -> bytes:
    """Return a document as JSON; NaN in attributes of other writers is kept."""
    return json.dumps(document, indent=2, default=_json_value).encode()


def checked_attributes(
    attributes: Mapping[str, Any], at: str, *, allow_nan: bool = False
) -> dict[str, Any]:
    """Return attributes given by a user, which must be strict JSON.

    Parameters
    ----------
    attributes
        The attributes.
    at
        Location of their node, for messages.
    allow_nan
        True to take NaN and infinities, too, as other writers do.

    Raises
    ------
    MetadataError
        If they contain values that JSON lacks: NaN, infinities, or objects of other types.
    """
    if attributes == {}:  # of most new arrays
        return {}
    try:
        text = json.dumps(dict(attributes), allow_nan=allow_nan, default=_json_value)
        return dict(json.loads(text))
    except (ValueError, TypeError, RecursionError) as error:
        numbers = "numbers" if allow_nan else "finite numbers"
        expected = f"attributes of strings, {numbers}, booleans, null, lists and objects"
        name, hint = _not_json(attributes, allow_nan=allow_nan)
        field = f"attributes.{name}" if name else "attributes"
        raise MetadataError(at, [ValidationProblem(field, str(error), expected + hint)]) from error


def _not_json(attributes: Any, *, allow_nan: bool) -> tuple[str, str]:
    """Return the name of the first attribute that is not JSON, and a hint for its type."""
    if not isinstance(attributes, Mapping):
        return "", " in a mapping from names to values"
    for name, value in attributes.items():
        try:
            json.dumps({name: value}, allow_nan=allow_nan, default=_json_value)
        except (ValueError, TypeError, RecursionError):
            return str(name), attribute_hint(value)
    return "", ""


def attribute_hint(value: object) -> str:
    """Return the expression that makes JSON of a value; empty if there is none."""
    if hasattr(value, "isoformat"):
        return "; value.isoformat() makes a text"
    if isinstance(value, bytes | np.bytes_):
        return "; value.decode() makes a text"
    if isinstance(value, np.datetime64 | np.timedelta64 | PurePath):
        return "; str(value) makes a text"
    if isinstance(value, np.ndarray) and value.dtype.kind in "mM":
        return "; value.astype(str) makes texts"
    if isinstance(value, AbstractSet | Iterator | range):
        return "; list(value) makes a list"
    if isinstance(value, complex):
        return "; [value.real, value.imag] is a list"
    return ""


def _json_value(value: object) -> object:
    if isinstance(value, np.generic | np.ndarray) and value.dtype.kind in "mM":
        raise TypeError(f"{value.dtype} is not a JSON value")  # those of ns would become integers
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not a JSON value")


# --- looking once ---------------------------------------------------------------------------------

T = TypeVar("T")
_LOOKED_AT: ContextVar[dict[Hashable, Any] | None] = ContextVar("_LOOKED_AT", default=None)
"""Findings around a store, by the question that was asked, within `looking_once`."""


@contextmanager
def looking_once() -> Iterator[None]:
    """Look at each folder around a store once in a ``with`` statement (`looked_up_once`).

    Several checks of one call ask what a hierarchy lies in.
    """
    token = None if _LOOKED_AT.get() is not None else _LOOKED_AT.set({})
    try:
        yield
    finally:
        if token is not None:
            _LOOKED_AT.reset(token)


def looked_up_once(question: Hashable, look: Callable[[], T]) -> T:
    """Return what a look finds, or has found in the same `looking_once` for the same question."""
    looked_at = _LOOKED_AT.get()
    if looked_at is None:
        return look()
    if question not in looked_at:
        looked_at[question] = look()
    found: T = looked_at[question]
    return found


def looked_up_before(question: Hashable) -> Any:
    """Return what `looked_up_once` has found for a question; None if it was not asked."""
    return (_LOOKED_AT.get() or {}).get(question)


def nodes_at_root(folder: str) -> Hashable:
    """Return the question for the nodes at the root of a folder that a store lies in."""
    return "nodes", folder


def real_path(path: str) -> str:
    """Return a path without links, which is looked up once; so is that of the folder around it."""
    found: str = looked_up_once(("real", path), partial(os.path.realpath, path))
    around = os.path.dirname(found)  # noqa: PTH120  (each append asks)
    looked_up_once(("real", around), lambda: around)
    return found
