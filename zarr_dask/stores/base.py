"""The interface of a store: bytes by key.

A `Store` is a small immutable value (a root and options) that can be pickled and sent to
another process; connections, if any, are opened lazily in the process that uses
them. All calls are synchronous and safe from many threads.

``None`` means "there is nothing at that key" and nothing else: every other failure raises
`zarr_dask.errors.StoreError`, so that a failed fetch can never be read as fill values.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, Protocol, Self, cast, runtime_checkable

from zarr_dask._util.threads import parallel_for
from zarr_dask.errors import CorruptObjectError, ObjectReplacedError, StoreError, StoreKeyError
from zarr_dask.stores.capabilities import capabilities_of

__all__ = [
    "WHOLE",
    "BoundedRange",
    "Buffer",
    "ConditionalRangeReader",
    "ForkableSession",
    "HeaderRange",
    "IOCounters",
    "IndexRange",
    "Listing",
    "Range",
    "RangeReader",
    "ReadPolicy",
    "ReadsFiles",
    "StandsForFiles",
    "Store",
    "SupportsAppend",
    "SupportsConditionalGet",
    "SupportsListTags",
    "TaggedBytes",
    "VersionRequest",
    "append_or_none",
    "cancel_reads",
    "check_key",
    "coalesce",
    "etag_of",
    "get_ranges_if_match",
    "get_start",
    "is_key",
    "is_remote",
    "is_whole",
    "iter_split_coalesced",
    "join",
    "list_sizes",
    "make_range",
    "open_value",
    "read_ranges",
    "require_same_etag",
    "slice_coalesced",
    "split_coalesced",
    "supports_cheap_random_reads",
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


make_range: Callable[[tuple[int, int]], Range] = partial(tuple.__new__, Range)
"""Makes a range of its start and stop, in two thirds of the time of calling the class."""


class IndexRange(Range):
    """A range that every partial read of its value begins with, so that it is worth caching."""

    __slots__ = ()


class HeaderRange(Range):
    """A small header whose content determines which ranges to read next.

    See `supports_cheap_random_reads`.
    """

    __slots__ = ()


class BoundedRange(Range):
    """All of a value that has fewer bytes than `stop`, from byte 0 on.

    If as many bytes as `stop` arrive, the value is longer than it may be.
    """

    __slots__ = ()


WHOLE = Range(0, None)
"""All of a value."""


def is_whole(wanted: Range) -> bool:
    """True if all bytes of a value are requested, with or without a bound."""
    return wanted == WHOLE or isinstance(wanted, BoundedRange)


class Listing(NamedTuple):
    """The keys and prefixes directly below a prefix."""

    keys: list[str]
    """Full keys of values."""
    prefixes: list[str]
    """Full prefixes, each ending in "/", that at least one key starts with."""

    @classmethod
    def below(cls, prefix: str, keys: Iterable[str]) -> Self:
        """Return the listing of a prefix, from all keys that start with it.

        Examples
        --------
        >>> from zarr_dask.stores import Listing
        >>> Listing.below("a/", ["a/zarr.json", "a/c/0", "a/c/1"])
        Listing(keys=['a/zarr.json'], prefixes=['a/c/'])
        """
        direct: set[str] = set()
        for key in keys:
            name, slash, _ = key[len(prefix) :].partition("/")
            direct.add(f"{prefix}{name}{slash}")
        names = sorted(direct)
        values = [name for name in names if not name.endswith("/")]
        return cls(values, [name for name in names if name.endswith("/")])


@dataclass(frozen=True, slots=True)
class ReadPolicy:
    """Limits for joining ranges and requests."""

    gap: int
    """Largest gap in bytes between two ranges of one value that are fetched as one."""
    largest: int
    """Largest joint request in bytes."""
    max_concurrent_requests: int = 1
    """Largest number of requests in a batch; 1 if single requests are as good."""
    max_bytes_in_flight: int = 1 << 25
    """Largest batch in bytes, except for a single request that is larger."""

    @property
    def worth_a_round_trip(self) -> int:
        """Unwanted bytes of one value that cost less than waiting for a further response.

        They are fewer than those of a gap: many values may be read at a time.
        """
        return self.gap // 8


@runtime_checkable
class Store(Protocol):
    """Bytes by key.

    Keys are "/"-separated, without a leading slash; a prefix is empty or ends in "/".
    """

    @property
    def url(self) -> str:
        """The location, for messages; equal for equal locations within one kind of store."""
        ...

    @property
    def identity(self) -> str:
        """A name that distinguishes locations, including options that change them; no secrets."""
        ...

    @property
    def coalescing(self) -> ReadPolicy:
        """The ranges that this store prefers to be requested together."""
        ...

    def get(self, key: str) -> Buffer | None:
        """Return the value at `key`, or None if there is none."""
        ...

    def get_transient(self, key: str) -> Buffer | None:
        """Return the same as `get`, in memory that is valid until the same thread borrows again."""
        ...

    def get_ranges(self, requests: Sequence[tuple[str, Range]]) -> list[Buffer | None]:
        """Return parts of values, in the order of the requests; shorter where a value ends."""
        ...

    def set(self, key: str, buffers: Sequence[Buffer]) -> None:
        """Put the joined `buffers` at `key`, all or nothing.

        The caller may reuse their memory afterwards.
        """
        ...

    def delete(self, key: str) -> None:
        """Remove a value; do nothing if there is none."""
        ...

    def delete_prefix(self, prefix: str) -> None:
        """Remove every value whose key starts with `prefix`; metadata before what they describe."""
        ...

    def list(self, prefix: str = "") -> Iterator[str]:
        """Yield every key that starts with `prefix`, in no particular order."""
        ...

    def list_dir(self, prefix: str = "") -> Listing:
        """Return the keys and prefixes directly below `prefix`, sorted; empty if there are none."""
        ...

    def size(self, key: str) -> int | None:
        """Return the bytes of the value at `key`, or None if there is none."""
        ...


def is_remote(store: Store) -> bool:
    """True if each request is slow and has a price, as behind a network."""
    return store.coalescing.max_concurrent_requests > 1


def supports_cheap_random_reads(store: Store) -> bool:
    """True if reading a few bytes of an open value before the others is cheap.

    All parts are of the same value, even if it is replaced meanwhile.
    """
    return capabilities_of(store).cheap_random_reads


def check_key(key: str) -> None:
    """Raise if a key could lead outside the store.

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
    """True if a text has no lone surrogates, which no file system or service can name."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def join(prefix: str, name: str) -> str:
    """Return a key or path below a path; either may be empty.

    Examples
    --------
    >>> join("a/b", "zarr.json"), join("", "zarr.json"), join("a", "")
    ('a/b/zarr.json', 'zarr.json', 'a')
    """
    return f"{prefix}/{name}" if prefix and name else prefix or name


# --- values of bounded size -----------------------------------------------------------------------


def get_start(store: Store, key: str, nbytes: int) -> Buffer | None:
    """Return the first bytes of a value in one request, valid until the thread borrows again.

    A value that a stranger has made is read no further than it can be right. Stores with a method
    `get_start` do that faster than by `get_ranges`.

    Parameters
    ----------
    store, key
        Location of the value.
    nbytes
        Number of bytes that may be returned, at most.

    Returns
    -------
    buffer or None
        None if there is no value.

    Examples
    --------
    >>> from zarr_dask.stores import MemoryStore
    >>> bytes(get_start(MemoryStore({"a": b"0123"}), "a", 2))
    b'01'
    """
    direct = getattr(store, "get_start", None)
    if direct is not None:
        found: Buffer | None = direct(key, nbytes)
        return found
    return store.get_ranges([(key, BoundedRange(0, nbytes))])[0]


# --- keys with their sizes ------------------------------------------------------------------------


class SupportsListSizes(Protocol):
    """A store whose listings include the sizes of values."""

    def list_sizes(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Yield every key that starts with `prefix`, and the bytes of its value."""
        ...


@runtime_checkable
class SupportsListTags(Protocol):
    """A store whose listings include the tags of values; see `etag_of`."""

    def list_tags(self, prefix: str) -> Iterator[tuple[str, tuple[str, int] | None]] | None:
        """Return all keys that start with `prefix`, with tags of their values; None if unknown.

        A tag is the pair of ETag and number of bytes, or None.
        """
        ...


def list_sizes(store: Store, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Yield every key that starts with `prefix`, and the bytes of its value.

    This takes one listing if the store supports it; otherwise also one request for each key.

    Examples
    --------
    >>> from zarr_dask.stores import MemoryStore
    >>> list(list_sizes(MemoryStore({"a/b": b"123"}), "a/"))
    [('a/b', 3)]
    """
    if capabilities_of(store).list_sizes:
        yield from cast("SupportsListSizes", store).list_sizes(prefix)
        return
    for key in store.list(prefix):
        size = store.size(key)
        if size is not None:  # it may have been removed meanwhile
            yield key, size


def list_tags(store: Store, prefix: str) -> Iterator[tuple[str, Hashable]]:
    """Yield every key that starts with `prefix`, and a tag of its value; see `etag_of`.

    This takes one listing if the store supports it; otherwise also one request for each key.
    """
    if isinstance(store, SupportsListTags) and (listed := store.list_tags(prefix)) is not None:
        yield from listed
        return
    found: dict[str, Hashable] = {}

    def ask(key: str) -> None:
        found[key] = etag_of(store, key)

    parallel_for(ask, list(store.list(prefix)), None)
    yield from found.items()


# --- values that grow -----------------------------------------------------------------------------


class SupportsAppend(Protocol):
    """A store that can append bytes to a value, which object stores cannot."""

    def append(self, key: str, data: bytes) -> bool:
        """Append bytes to a value in one piece; return False if its folder does not exist.

        Other processes must not append to the same value: on network file systems they would
        overwrite each other's bytes.
        """
        ...


def append_or_none(store: Store) -> SupportsAppend | None:
    """Return a store that can append bytes to values; None for all others."""
    return cast("SupportsAppend", store) if capabilities_of(store).append else None


# --- changes that are merged ----------------------------------------------------------------------


@dataclass
class IOCounters:
    """The amount of data read."""

    requests: int = 0
    """Number of read requests; a batch from an open file counts as one, a peek as none."""
    nbytes: int = 0
    """Number of bytes received."""


@runtime_checkable
class StandsForFiles(Protocol):
    """A store whose values are parts of files, which users know by their names."""

    def of_file(self, error: CorruptObjectError) -> Exception:
        """Return the error of a value as one of the file that it lies in."""
        ...


@runtime_checkable
class ReadsFiles(Protocol):
    """A store that is made of files, which must not be written over while it is read."""

    @property
    def files_read(self) -> Sequence[str]:
        """Paths and URLs of the files."""
        ...


@runtime_checkable
class ForkableSession(Protocol):
    """A store whose changes take effect only when its owner commits them, all of them or none.

    Changes that another process makes in a copy must be merged, or they are lost. Such a store
    accepts values only for arrays that it has the metadata of. Nothing is visible outside before
    the commit.
    """

    def fork(self) -> Store:
        """Return a picklable copy of the current state, whose changes are kept separately.

        Raises
        ------
        StoreError
            If no copy can be made now.
        """
        ...

    def merge(self, forks: Sequence[Store]) -> None:
        """Merge the changes of copies; merging a copy again does nothing."""
        ...


# --- one value, read in several steps -------------------------------------------------------------


class RangeReader(Protocol):
    """A value whose parts are read one after the other; a context manager.

    If the store supports it, all parts are of the same value, even when it is replaced meanwhile.
    """

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def validator(self) -> Hashable:
        """Return the `etag_of` the value being read."""
        ...

    def get_ranges(self, ranges: Sequence[Range]) -> Iterable[Buffer] | None:
        """Return parts of the value; None if there is none.

        Each buffer may be read only when it is taken, and is valid until the next one is. Ranges in
        ascending order are read once.
        """
        ...


@runtime_checkable
class SupportsOpen(Protocol):
    """A store whose values can be held open."""

    def open_value(self, key: str) -> RangeReader:
        """Open the value at `key`."""
        ...


@runtime_checkable
class SupportsETag(Protocol):
    """A store that can distinguish a value from an earlier one at the same key."""

    def validator(self, key: str) -> Hashable:
        """See `etag_of`."""
        ...


def open_value(store: Store, key: str) -> RangeReader:
    """Open the value at `key`, to be read in several steps."""
    return (
        store.open_value(key)
        if isinstance(store, SupportsOpen)
        else ConditionalRangeReader(store, key)
    )


def etag_of(store: Store, key: str) -> Hashable:
    """Return a tag that changes whenever the value at `key` does.

    Returns
    -------
    object
        A tag to compare with an earlier one; None if the store has none, or there is no value.
    """
    return store.validator(key) if isinstance(store, SupportsETag) else None


class TaggedBytes(NamedTuple):
    """A part of a value, and the tag of the value that it belongs to."""

    content: Buffer | None
    """None: there is a value, but it does not have the requested tag."""
    tag: Hashable
    """As `etag_of`; None if the store has no tags."""
    size: int | None = None
    """Bytes of the whole value, if the response tells."""


VersionRequest = tuple[str, Range, Hashable]
"""A key, a range of its value, and the tag that the value must have (None: any)."""


class SupportsConditionalGet(Protocol):
    """A store that can read parts of a value on condition that its tag is unchanged."""

    def get_versions(self, requests: Sequence[VersionRequest]) -> Iterable[TaggedBytes | None]:
        """Return the same as `Store.get_ranges`, with tags; see `get_ranges_if_match`."""
        ...


def get_ranges_if_match(
    store: Store, requests: Sequence[VersionRequest]
) -> Iterable[TaggedBytes | None]:
    """Return parts of values, each with the tag of its value.

    Returns
    -------
    iterable
        For each request a `TaggedBytes`, or None if there is no value. If the store has tags, parts
        with equal tags are of the same value, and a part has no content if the value does not have
        the requested tag. All requests are sent at once. A store may return a lazy iterable, which
        yields each part as soon as it and those before it have arrived. It can be iterated only
        once, and raises its errors meanwhile. Call `cancel_reads` to stop before its end.
    """
    if capabilities_of(store).conditional_get:
        return cast("SupportsConditionalGet", store).get_versions(requests)
    found = store.get_ranges([(key, wanted) for key, wanted, _ in requests])
    return [None if content is None else TaggedBytes(content, None) for content in found]


def cancel_reads(found: Iterable[Any]) -> None:
    """Stop iterating over a result of `get_ranges_if_match`; drop requests that are not yet sent.

    The frames in an error's traceback keep an iterator alive, which would otherwise end only with
    the error.
    """
    if isinstance(found, Generator):
        found.close()


class ConditionalRangeReader:
    """A value that each request opens again, on condition that it is unchanged.

    Parameters
    ----------
    store, key
        Its location.
    """

    def __init__(self, store: Store, key: str) -> None:
        self._store, self._key = store, key
        self._tag: Hashable = None
        self._asked: Iterable[TaggedBytes | None] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        cancel_reads(self._asked)

    def validator(self) -> Hashable:
        """See `RangeReader.validator`."""
        if self._tag is None:
            self._tag = etag_of(self._store, self._key)
        return self._tag

    def get_ranges(self, ranges: Sequence[Range]) -> Iterable[Buffer] | None:
        """See `RangeReader.get_ranges`.

        Raises
        ------
        ObjectReplacedError
            If the value was replaced since an earlier read; also raised while parts are taken.
        """
        if len(ranges) == 1 and self._tag is None and is_whole(ranges[0]):
            stop = ranges[0].stop
            value = (
                self._store.get_transient(self._key)
                if stop is None
                else get_start(self._store, self._key, stop)
            )
            return None if value is None else [value]
        joint, places = coalesce(ranges, self._store.coalescing)
        requests = [(self._key, wanted, self._tag) for wanted in joint]
        self._asked = get_ranges_if_match(self._store, requests)
        what = f"{self._key!r} in {self._store.url}"
        found, self._tag = require_same_etag(self._asked, self._tag, what)
        return None if found is None else iter_split_coalesced(found, places, ranges)


def require_same_etag(
    found: Iterable[TaggedBytes | None], tag: Hashable, what: str
) -> tuple[Iterator[Buffer] | None, Hashable]:
    """Return the contents of the parts of one value, and the tag that they must share.

    Parameters
    ----------
    found
        The result of `get_ranges_if_match` for them, with at least one element.
    tag
        The tag of the value, if it is known.
    what
        The value, for messages.

    Returns
    -------
    contents
        The contents in order, as they arrive; None if there is no value.
    tag
        The tag of the value.

    Raises
    ------
    ObjectReplacedError
        If they are not all of one value; also raised while contents are taken.
    StoreError
        If the store has returned nothing.
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


_NO_ANSWER = TaggedBytes(None, None)


def _contents_of(parts: Iterable[TaggedBytes | None], tag: Hashable, what: str) -> Iterator[Buffer]:
    """Yield the contents of parts, which must all have the tag of the first that has one."""
    for part in parts:
        yield _content_of(part, tag, what)
        if tag is None and part is not None:
            tag = part.tag


def _content_of(part: TaggedBytes | None, tag: Hashable, what: str) -> Buffer:
    """Return the content of a part if it has the tag of the value, or no tag."""
    if part is None or part.content is None or (part.tag != tag and None not in (part.tag, tag)):
        raise ObjectReplacedError(f"{what} was replaced while it was read.")
    return part.content


# --- reading several parts of one value -----------------------------------------------------------


def coalesce(
    ranges: Sequence[Range], policy: ReadPolicy
) -> tuple[list[Range], list[tuple[int, int]]]:
    """Join ranges that are close together.

    Returns
    -------
    joint
        The ranges to request.
    places
        For each of `ranges`, the index of the one of `joint` that holds it, and its offset therein.

    Examples
    --------
    >>> coalesce([Range(0, 4), Range(100, 104), Range(4, 8)], ReadPolicy(gap=0, largest=64))
    ([Range(start=0, stop=8), Range(start=100, stop=104)], [(0, 0), (1, 0), (0, 4)])
    """
    if len(ranges) == 1:
        return list(ranges), [(0, 0)]
    joint: list[Range] = []
    places: list[tuple[int, int]] = [(0, 0)] * len(ranges)
    gap, largest = policy.gap, policy.largest
    first, last = -1, None  # of the last joint range
    for number in sorted(range(len(ranges)), key=ranges.__getitem__):
        start, stop = ranges[number]
        if stop is not None and last is not None and 0 <= first <= start <= last + gap:
            longer = stop > last
            if (stop if longer else last) - first <= largest:
                if longer:
                    last = stop
                    joint[-1] = make_range((first, last))
                places[number] = (len(joint) - 1, start - first)
                continue
        first, last = start, stop
        joint.append(ranges[number])
        places[number] = (len(joint) - 1, 0)
    return joint, places


def read_ranges(store: Store, key: str, ranges: Sequence[Range]) -> list[Buffer] | None:
    """Return parts of the value at `key`, fetched with as few requests as the store prefers.

    The buffers are valid until the same thread reads the next value.

    Returns
    -------
    list or None
        One buffer per range, shorter where the value ends; None if there is no value.
    """
    if len(ranges) == 1 and ranges[0] == WHOLE:
        value = store.get_transient(key)
        return None if value is None else [value]
    joint, places = coalesce(ranges, store.coalescing)
    return split_coalesced(store.get_ranges([(key, wanted) for wanted in joint]), places, ranges)


def split_coalesced(
    fetched: Sequence[Buffer | None], places: Sequence[tuple[int, int]], ranges: Sequence[Range]
) -> list[Buffer] | None:
    """Return the requested ranges, cut out of the joint ones; see `coalesce`.

    Returns
    -------
    list or None
        One buffer per range, shorter where too few bytes arrived; None if there is no value.
    """
    present = [value for value in fetched if value is not None]
    return None if len(present) < len(fetched) else [*iter_split_coalesced(present, places, ranges)]


def iter_split_coalesced(
    fetched: Iterable[Buffer], places: Sequence[tuple[int, int]], ranges: Sequence[Range]
) -> Iterator[Buffer]:
    """Yield the result of `split_coalesced` for an existing value as the joint ranges arrive."""
    coming, views = iter(fetched), list[memoryview]()
    for (which, offset), wanted in zip(places, ranges, strict=True):
        while len(views) <= which:
            views.append(memoryview(next(coming)))
        yield slice_coalesced(views[which], offset, wanted)


def slice_coalesced(view: memoryview, offset: int, wanted: Range) -> memoryview:
    """Return a range out of a joint one, in which it begins at `offset`."""
    if wanted.stop is None:
        return view[offset:]
    return view[offset : offset + wanted.stop - wanted.start]
