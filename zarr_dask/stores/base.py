"""What a store is: bytes by key.

A `Store` is a small immutable value (a root and options) that can be pickled and sent to
another process; connections, where there are any, are opened lazily in the process that uses
them. All calls are synchronous and safe from many threads.

``None`` means "there is nothing at that key" and nothing else: every other failure raises
`zarr_dask.errors.StoreError`, so that a failed fetch can never be read as fill values.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

from zarr_dask.errors import ObjectReplacedError, StoreError, StoreKeyError

__all__ = [
    "WHOLE",
    "Appender",
    "Buffer",
    "Coalescing",
    "Forkable",
    "IndexRange",
    "Listing",
    "OpenValue",
    "PeekRange",
    "Range",
    "ReopenedValue",
    "Store",
    "Version",
    "VersionReader",
    "VersionRequest",
    "abandon",
    "can_peek",
    "check_key",
    "coalesce",
    "distribute",
    "distributed",
    "is_far",
    "is_key",
    "join",
    "list_sizes",
    "open_value",
    "part_of",
    "read_ranges",
    "read_versions",
    "same_version",
    "validator_of",
]

Buffer = bytes | bytearray | memoryview
"""Contiguous bytes."""


class Range(NamedTuple):
    """Bytes of one value: from `start` up to `stop`, or to the end where that is None.

    A negative `start` counts from the end, and then `stop` is None: ``Range(-16)`` is the last
    16 bytes.
    """

    start: int
    stop: int | None = None


class IndexRange(Range):
    """A range that every partial read of its value begins with, so that it is worth keeping."""

    __slots__ = ()


class PeekRange(Range):
    """A few bytes that say which others are wanted; see `can_peek`."""

    __slots__ = ()


WHOLE = Range(0, None)
"""All of a value."""


class Listing(NamedTuple):
    """What lies directly below a prefix."""

    keys: list[str]
    """Full keys of values."""
    prefixes: list[str]
    """Full prefixes, each ending in "/", below which there is something."""


@dataclass(frozen=True, slots=True)
class Coalescing:
    """What is worth fetching together."""

    gap: int
    """Bytes between two ranges of one value that are read in vain at most, to fetch them as one."""
    largest: int
    """Bytes of one joint request at most."""
    requests: int = 1
    """Requests of one batch at most; 1 where values are as well asked for one by one."""
    in_flight: int = 1 << 25
    """Bytes of one batch at most, but for a single request that is larger."""


@runtime_checkable
class Store(Protocol):
    """Bytes by key.

    Keys are "/"-separated, without a leading slash; a prefix is empty or ends in "/".
    """

    @property
    def url(self) -> str:
        """Where the store is, for messages; equal for equal places within one kind of store."""
        ...

    @property
    def identity(self) -> str:
        """Tells this place from all others, options that change it included; no secrets."""
        ...

    @property
    def coalescing(self) -> Coalescing:
        """Which ranges this store wants to be asked for together."""
        ...

    def get(self, key: str) -> Buffer | None:
        """The value at `key`, or None if there is none."""
        ...

    def borrow(self, key: str) -> Buffer | None:
        """As `get`, in memory that is good until the same thread borrows again."""
        ...

    def get_ranges(self, requests: Sequence[tuple[str, Range]]) -> list[Buffer | None]:
        """Parts of values, in the order asked for; shorter where a value ends before its range."""
        ...

    def set(self, key: str, buffers: Sequence[Buffer]) -> None:
        """Put the joined `buffers` at `key`, all or nothing.

        They are the caller's again afterwards, who may put other bytes into the same memory.
        """
        ...

    def delete(self, key: str) -> None:
        """Remove a value; nothing happens if there is none."""
        ...

    def delete_prefix(self, prefix: str) -> None:
        """Remove every value whose key starts with `prefix`."""
        ...

    def list(self, prefix: str = "") -> Iterator[str]:
        """Every key that starts with `prefix`, in no particular order."""
        ...

    def list_dir(self, prefix: str = "") -> Listing:
        """What lies directly below `prefix`, sorted; empty if there is nothing."""
        ...

    def size(self, key: str) -> int | None:
        """Bytes of the value at `key`, or None if there is none."""
        ...


def is_far(store: Store) -> bool:
    """Whether each request takes its time and its price, as behind a network."""
    return store.coalescing.requests > 1


def can_peek(store: Store) -> bool:
    """Whether one may look at a few bytes of an open value before asking for others.

    It costs next to nothing, and all are of one value even if it is replaced meanwhile.
    """
    return bool(getattr(store, "can_peek", False))


def check_key(key: str) -> None:
    """Refuse keys that could lead outside the store.

    Raises
    ------
    StoreKeyError
        For empty keys, empty, "." or ".." segments, backslashes, NUL, lone surrogates.

    Examples
    --------
    >>> check_key("a/c/0/0")
    >>> check_key("../secret")
    Traceback (most recent call last):
    ...
    zarr_dask.errors.StoreKeyError: '../secret' is not a key: it must be made of names ...
    """
    segments = f"/{key}/"
    bad = (
        "//" in segments
        or "/./" in segments
        or "/../" in segments
        or "\0" in key
        or "\\" in key
        or not (key.isascii() or _is_unicode(key))
    )
    if bad:
        raise StoreKeyError(
            f"{key!r} is not a key: it must be made of names joined by '/', none of them empty, "
            "'.' or '..', without backslashes and NUL characters, in valid Unicode."
        )


def is_key(value: object) -> bool:
    """True for a text that `check_key` takes, whatever was given.

    Examples
    --------
    >>> is_key("a/c/0"), is_key("a/../b"), is_key(""), is_key(None)
    (True, False, False, False)
    """
    if not isinstance(value, str):
        return False
    try:
        check_key(value)
    except StoreKeyError:
        return False
    return True


def _is_unicode(text: str) -> bool:
    """Whether a text has no lone surrogates, which no file system or service can name."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def join(prefix: str, name: str) -> str:
    """A key or path below a path, either of which may be empty.

    Examples
    --------
    >>> join("a/b", "zarr.json"), join("", "zarr.json"), join("a", "")
    ('a/b/zarr.json', 'zarr.json', 'a')
    """
    return f"{prefix}/{name}" if prefix and name else prefix or name


# --- keys with their sizes ------------------------------------------------------------------------


@runtime_checkable
class SizesLister(Protocol):
    """A store whose listings say how large values are."""

    def list_sizes(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Every key that starts with `prefix`, and the bytes of its value."""
        ...


def list_sizes(store: Store, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Every key that starts with `prefix`, and the bytes of its value.

    One listing where the store can; else one request for each key as well.

    Examples
    --------
    >>> from zarr_dask.stores import MemoryStore
    >>> list(list_sizes(MemoryStore({"a/b": b"123"}), "a/"))
    [('a/b', 3)]
    """
    if isinstance(store, SizesLister):
        yield from store.list_sizes(prefix)
        return
    for key in store.list(prefix):
        size = store.size(key)
        if size is not None:  # it may have gone meanwhile
            yield key, size


# --- values that grow -----------------------------------------------------------------------------


@runtime_checkable
class Appender(Protocol):
    """A store that can put bytes at the end of a value, which object stores cannot."""

    def append(self, key: str, data: bytes) -> bool:
        """Put bytes at the end of a value in one piece; False if its folder is not there.

        Other processes must not append to the same value: network file systems would let the
        bytes of one overwrite those of another.
        """
        ...


# --- changes that are merged ----------------------------------------------------------------------


@runtime_checkable
class Forkable(Protocol):
    """A store whose changes are kept only when its owner commits them, all of them or none.

    What another process writes into a copy of it must be merged, or it is lost. Such a store takes
    values only of arrays whose documents it has; nobody else sees these before the commit.
    """

    def fork(self) -> Store:
        """A copy as the store is now, which can be pickled and keeps what is changed in it apart.

        Raises
        ------
        StoreError
            If no copy can be had now.
        """
        ...

    def merge(self, forks: Sequence[Store]) -> None:
        """Take over what was changed in copies; nothing happens where that is done again."""
        ...


# --- one value, read in several steps -------------------------------------------------------------


class OpenValue(Protocol):
    """A value of which parts are read one after the other; a context manager.

    Where the store can, all parts are of the same value, even when it is replaced meanwhile.
    """

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def validator(self) -> Hashable:
        """As `validator_of`, of the value that is read from."""
        ...

    def get_ranges(self, ranges: Sequence[Range]) -> Iterable[Buffer] | None:
        """Parts of the value; None if there is none.

        Each is good until the next one is taken, and may be read only then; ranges in ascending
        order are read once.
        """
        ...


@runtime_checkable
class ValueOpener(Protocol):
    """A store whose values can be held open."""

    def open_value(self, key: str) -> OpenValue:
        """The value at `key`."""
        ...


@runtime_checkable
class Validating(Protocol):
    """A store that can tell a value from the one before it."""

    def validator(self, key: str) -> Hashable:
        """See `validator_of`."""
        ...


def open_value(store: Store, key: str) -> OpenValue:
    """The value at `key`, to be read in several steps."""
    return store.open_value(key) if isinstance(store, ValueOpener) else ReopenedValue(store, key)


def validator_of(store: Store, key: str) -> Hashable:
    """Something that changes whenever the value at `key` does.

    Returns
    -------
    object
        To be compared with an earlier one; None if the store cannot tell, or there is no value.
    """
    return store.validator(key) if isinstance(store, Validating) else None


class Version(NamedTuple):
    """A part of a value, and which value it is a part of."""

    content: Buffer | None
    """None: there is a value, but not the one that was asked for."""
    tag: Hashable
    """As `validator_of`; None if the store cannot tell."""


VersionRequest = tuple[str, Range, Hashable]
"""A key, which part of its value, and the tag that the value must have (None: any)."""


@runtime_checkable
class VersionReader(Protocol):
    """A store that can read parts of a value on the condition that it is still the same."""

    def get_versions(self, requests: Sequence[VersionRequest]) -> Iterable[Version | None]:
        """As `Store.get_ranges`; see `read_versions`."""
        ...


def read_versions(store: Store, requests: Sequence[VersionRequest]) -> Iterable[Version | None]:
    """Parts of values, each of which tells what value it is of.

    Returns
    -------
    iterable
        For each request a `Version`, or None if there is no value. Where the store can tell, parts
        with equal tags are of one and the same value, and a part is without content if the value
        has not the tag that was asked for. All are asked for at once; a store may hand on each as
        soon as it and those before it are there, so that they are taken once, and its errors come
        when they are. Who may take less than all of them says so with `abandon`.
    """
    if isinstance(store, VersionReader):
        return store.get_versions(requests)
    found = store.get_ranges([(key, wanted) for key, wanted, _ in requests])
    return [None if content is None else Version(content, None) for content in found]


def abandon(found: Iterable[Any]) -> None:
    """Take no more of what `read_versions` has returned: what is not on its way is not asked for.

    Errors keep the frames that they have passed through, and so what was handed to these: it would
    end with the last of them.
    """
    if isinstance(found, Generator):
        found.close()


class ReopenedValue:
    """A value that each request finds anew, on the condition that it is still the same.

    Parameters
    ----------
    store, key
        Where it is.
    """

    def __init__(self, store: Store, key: str) -> None:
        self._store, self._key = store, key
        self._tag: Hashable = None
        self._asked: Iterable[Version | None] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        abandon(self._asked)

    def validator(self) -> Hashable:
        """See `OpenValue.validator`."""
        if self._tag is None:
            self._tag = validator_of(self._store, self._key)
        return self._tag

    def get_ranges(self, ranges: Sequence[Range]) -> Iterable[Buffer] | None:
        """See `OpenValue.get_ranges`.

        Raises
        ------
        ObjectReplacedError
            If it is no more the value that was read from before; also while parts are taken.
        """
        if len(ranges) == 1 and ranges[0] == WHOLE and self._tag is None:
            value = self._store.borrow(self._key)
            return None if value is None else [value]
        joint, places = coalesce(ranges, self._store.coalescing)
        requests = [(self._key, wanted, self._tag) for wanted in joint]
        self._asked = read_versions(self._store, requests)
        what = f"{self._key!r} in {self._store.url}"
        found, self._tag = same_version(self._asked, self._tag, what)
        return None if found is None else distributed(found, places, ranges)


def same_version(
    found: Iterable[Version | None], tag: Hashable, what: str
) -> tuple[Iterator[Buffer] | None, Hashable]:
    """What parts of one value hold, and its tag, which they must share.

    Parameters
    ----------
    found
        What `read_versions` has returned for them, one at least.
    tag
        That of the value, as far as it is known.
    what
        The value, for messages.

    Returns
    -------
    contents
        One after the other, as they come; None if there is no value.
    tag
        Of the value.

    Raises
    ------
    ObjectReplacedError
        If they are not all of one value; also while contents are taken.
    StoreError
        If the store has not answered at all.
    """
    parts = iter(found)
    first = next(parts, _NO_ANSWER)
    if first is _NO_ANSWER:
        raise StoreError(f"{what} was asked for, and the store gave no answer.")
    if first is None and tag is None and all(part is None for part in parts):
        return None, None
    contents = _contents_of(chain((first,), parts), tag, what)
    content = next(contents)
    if tag is None and first is not None:
        tag = first.tag
    return chain((content,), contents), tag


_NO_ANSWER = Version(None, None)


def _contents_of(parts: Iterable[Version | None], tag: Hashable, what: str) -> Iterator[Buffer]:
    """What parts hold, of which the first one that has a tag says which the others must have."""
    for part in parts:
        yield _content_of(part, tag, what)
        if tag is None and part is not None:
            tag = part.tag


def _content_of(part: Version | None, tag: Hashable, what: str) -> Buffer:
    """What a part holds, if it is of the value with a tag, or cannot tell."""
    if part is None or part.content is None or (part.tag != tag and None not in (part.tag, tag)):
        raise ObjectReplacedError(f"{what} was replaced while it was read.")
    return part.content


# --- reading several parts of one value -----------------------------------------------------------


def coalesce(
    ranges: Sequence[Range], policy: Coalescing
) -> tuple[list[Range], list[tuple[int, int]]]:
    """Join ranges that lie close together.

    Returns
    -------
    joint
        What to ask for.
    places
        For each of `ranges`, which of `joint` holds it and from which byte on.

    Examples
    --------
    >>> coalesce([Range(0, 4), Range(100, 104), Range(4, 8)], Coalescing(gap=0, largest=64))
    ([Range(start=0, stop=8), Range(start=100, stop=104)], [(0, 0), (1, 0), (0, 4)])
    """
    if len(ranges) == 1:
        return list(ranges), [(0, 0)]
    joint: list[Range] = []
    places: list[tuple[int, int]] = [(0, 0)] * len(ranges)
    for number in sorted(range(len(ranges)), key=ranges.__getitem__):
        start, stop = ranges[number]
        if joint and start >= 0 and stop is not None:
            first, last = joint[-1]
            near = first >= 0 and last is not None and start - last <= policy.gap
            if near and max(stop, last or 0) - first <= policy.largest:
                joint[-1] = Range(first, max(stop, last or 0))
                places[number] = (len(joint) - 1, start - first)
                continue
        joint.append(ranges[number])
        places[number] = (len(joint) - 1, 0)
    return joint, places


def read_ranges(store: Store, key: str, ranges: Sequence[Range]) -> list[Buffer] | None:
    """Parts of the value at `key`, fetched with as few requests as the store wants.

    The buffers are good until the same thread reads the next value.

    Returns
    -------
    list or None
        One buffer per range, shorter where the value ends; None if there is no value.
    """
    if len(ranges) == 1 and ranges[0] == WHOLE:
        value = store.borrow(key)
        return None if value is None else [value]
    joint, places = coalesce(ranges, store.coalescing)
    return distribute(store.get_ranges([(key, wanted) for wanted in joint]), places, ranges)


def distribute(
    fetched: Sequence[Buffer | None], places: Sequence[tuple[int, int]], ranges: Sequence[Range]
) -> list[Buffer] | None:
    """What was asked for, out of what was fetched for it; see `coalesce`.

    Returns
    -------
    list or None
        One buffer per range, shorter where too few bytes have come; None if there is no value.
    """
    present = [value for value in fetched if value is not None]
    return None if len(present) < len(fetched) else [*distributed(present, places, ranges)]


def distributed(
    fetched: Iterable[Buffer], places: Sequence[tuple[int, int]], ranges: Sequence[Range]
) -> Iterator[Buffer]:
    """As `distribute`, of a value that is there: each part as soon as what it lies in is taken."""
    coming, views = iter(fetched), list[memoryview]()
    for (which, offset), wanted in zip(places, ranges, strict=True):
        while len(views) <= which:
            views.append(memoryview(next(coming)))
        yield part_of(views[which], offset, wanted)


def part_of(view: memoryview, offset: int, wanted: Range) -> memoryview:
    """A range out of a joint one, of which it begins at `offset`."""
    if wanted.stop is None:
        return view[offset:]
    return view[offset : offset + wanted.stop - wanted.start]
