"""Receipts: records of finished writing tasks, which show the remaining work.

A receipt is one line of text with its own checksum, so that a line truncated by a crash or a full
disk is detected and skipped. It lists the stored objects that the task has written, with their
sizes and checksums, and the objects that it omitted because all their elements have the fill value.
`zarr_dask.journal` stores receipts.

Receipts of this process that wait to be stored together, for stores that cannot append.

There each receipt is a request, as expensive as that of the stored object that it is about. So a
process gathers receipts and stores them as one object, at most one for `_MANY` stored objects or
for `_LONG` seconds of work. What a killed process has gathered is lost, and done again: `_SHORT`
seconds of work, `_MANY` objects or `_LONG` seconds, whichever of the last two comes first.

No thread waits for the time to pass: a batch is stored by the task that makes it complete, by the
process that ends a job without success, or never, if the job ends.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from time import monotonic
from typing import Any

from isal import isal_zlib

from zarr_dask.codecs.checksum import crc32c
from zarr_dask.errors import JournalError, ObjectReplacedError
from zarr_dask.stores.base import Buffer, Store, is_key
from zarr_dask.stores.lines import lines_of
from zarr_dask.stores.put_tags import Version

__all__ = [
    "GATHERED",
    "Batch",
    "MostReceipts",
    "ObjectDigest",
    "Receipt",
    "ReceiptBatches",
    "Receipts",
    "StoredObject",
    "checked_keys",
    "collect",
    "parse_receipts",
    "receipts_at",
    "stored_object",
    "take_gathered",
    "with_tags",
]


_LARGEST = 1 << 63
_LONGEST = 1 << 26
"""Bytes of a receipt."""
_LONGEST_TAG = 256
_AS_MANY, _AT_LEAST = 4, 1 << 18
"""Objects in receipts of a job: for each that it writes, and where these are few."""
_SHA256 = re.compile("[0-9a-f]{64}")
_quoted = json.encoder.encode_basestring_ascii
"""Function that returns a text as a JSON string."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One stored object as it was written."""

    key: str
    """Key below the node that is written; in a manifest, below the root of the store."""
    nbytes: int
    """Number of encoded bytes."""
    crc32c: int
    """CRC-32C of the encoded bytes; 0 if no checksum was computed."""
    sha256: str | None = None
    """SHA-256 of the encoded bytes as hexadecimal digits, if it was requested."""
    crc32: int | None = None
    """CRC-32 of the encoded bytes, as of zlib. It tells bytes apart that end in their own CRC-32C:
    all of these with one length have the same CRC-32C."""
    tag: str = field(default="", compare=False)
    """ETag that the store has returned for it; empty if it returned none. Not in manifests."""

    @property
    def has_checksum(self) -> bool:
        """True if a checksum was computed; not for objects that a service has copied itself."""
        return bool(self.crc32c) or (self.sha256, self.crc32) != (None, None)

    def difference(self, said: Any) -> str:
        """Return how an object differs from a receipt of it; empty if it does not.

        Parameters
        ----------
        said
            The receipt: anything with ``nbytes`` and ``crc32c``, and ``sha256`` and ``crc32`` if
            it has these checksums too.
        """
        if self.nbytes != said.nbytes:
            return f"it has {self.nbytes} bytes, its receipt says {said.nbytes}"
        if not getattr(said, "has_checksum", True):
            return ""
        if self.crc32c != said.crc32c:
            return f"its CRC-32C is {self.crc32c:#010x}, its receipt says {said.crc32c:#010x}"
        if getattr(said, "crc32", None) not in {None, self.crc32}:
            return "its CRC-32 is another than its receipt says"
        if getattr(said, "sha256", None) not in {None, self.sha256}:
            return f"its SHA-256 is {self.sha256}, its receipt says {said.sha256}"
        return ""

    def to_row(self) -> list[Any]:
        """Return the object as a list for JSON, without its tag."""
        row: list[Any] = [self.key, self.nbytes, self.crc32c, self.sha256, self.crc32]
        while row[-1] is None:
            del row[-1]
        return row

    def to_text(self) -> str:
        """Return it as a row of JSON; formatted by hand, because every task writes a receipt."""
        sha = "null" if self.sha256 is None else _quoted(self.sha256)
        if self.tag:
            more = f",{sha},{'null' if self.crc32 is None else self.crc32},{_quoted(self.tag)}"
        elif self.crc32 is not None:
            more = f",{sha},{self.crc32}"
        else:
            more = "" if self.sha256 is None else f",{sha}"
        return f"[{_quoted(self.key)},{self.nbytes},{self.crc32c}{more}]"

    @staticmethod
    def from_row(row: Sequence[Any]) -> StoredObject:
        """Return the receipt of a row that `to_row` or `to_text` has made.

        Raises
        ------
        ValueError
            If it is something else; says which item.
        """
        if not isinstance(row, list) or not 3 <= len(row) <= 6:
            raise ValueError(f"{row!a:.80}: expected a key, bytes, a CRC-32C and no more")
        tag = row[5] if len(row) == 6 else ""
        _check(isinstance(tag, str) and len(tag) <= _LONGEST_TAG, "tag", tag)
        key, nbytes, checksum, *more = row[:5]
        while len(row) == 6 and more and more[-1] is None:
            more.pop()
        _check(is_key(key), "key", key)
        _check(type(nbytes) is int and 0 <= nbytes < _LARGEST, "number of bytes", nbytes)
        _check(type(checksum) is int and 0 <= checksum < 1 << 32, "CRC-32C", checksum)
        sha = more[0] if more else None
        is_left_out = not more or (sha is None and len(more) == 2)
        _check(is_left_out or bool(_SHA256.fullmatch(str(sha))), "SHA-256", sha)
        other = more[1] if len(more) == 2 else None
        is_crc32 = type(other) is int and 0 <= other < 1 << 32
        _check(len(more) < 2 or is_crc32, "CRC-32", other)
        return StoredObject(key, nbytes, checksum, sha, other, tag)

    def at(self, version: Version | None) -> bool:
        """True if a listing shows this object, as far as it tells."""
        return version is not None and version.may_be(self.nbytes, self.tag)


def _check(is_right: bool, name: str, found: object) -> None:
    if not is_right:
        raise ValueError(f"its {name} is {found!a:.80}, which is none")


def checked_keys(keys: object) -> tuple[str, ...]:
    """Keys of stored objects, as a stranger has listed them.

    Raises
    ------
    ValueError
        If they are something else.
    """
    if not isinstance(keys, list):
        raise ValueError(f"{keys!a:.80}: expected a list of keys")
    for key in keys:
        _check(is_key(key), "key", key)
    return tuple(keys)


@dataclass(frozen=True, slots=True)
class Receipt:
    """Record of the objects that one task has written.

    Examples
    --------
    >>> receipt = Receipt("run-7", "5f2a", (StoredObject("c/0", 4, 0x9A71BB4C),), ("c/1",))
    >>> line = receipt.to_line()
    >>> list(parse_receipts(line)) == [receipt], list(parse_receipts(line[:-9]))
    (True, [])
    """

    token: str
    """Identifies the job."""
    run_id: str
    """Identifies the creation of the target, which may be replaced by another one later."""
    objects: tuple[StoredObject, ...]
    """Stored objects that were written."""
    empty: tuple[str, ...] = ()
    """Keys of objects that are absent on purpose."""

    def to_line(self) -> bytes:
        """Return the receipt as a line: its checksum, then JSON, after an empty line.

        The empty line ends a line that a crash may have truncated.
        """
        objects = ",".join([item.to_text() for item in self.objects])
        empty = ",".join(map(_quoted, self.empty))
        text = (
            f'{{"token":{_quoted(self.token)},"run_id":{_quoted(self.run_id)},'
            f'"objects":[{objects}],"empty":[{empty}]}}'
        ).encode()
        return b"\n%08x %b\n" % (crc32c(text), text)


class ObjectDigest:
    """Computes size and checksums of a stored object from its bytes, piece by piece.

    Parameters
    ----------
    checksum
        True to compute the CRC-32C and the CRC-32; otherwise the first is recorded as 0.
    with_crc32
        False to leave out the CRC-32, for records that have no room for it.
    with_sha256
        True to compute the SHA-256 as well.

    Examples
    --------
    >>> noting = ObjectDigest()
    >>> noting(b"1234")
    >>> noting(b"56789")
    >>> found = noting.of("c/0")
    >>> found.key, found.nbytes, found.crc32c, found.crc32
    ('c/0', 9, 3808858755, 3421780262)
    >>> ObjectDigest(with_crc32=False).of("c/0").crc32 is None
    True
    """

    def __init__(
        self, *, checksum: bool = True, with_crc32: bool = True, with_sha256: bool = False
    ) -> None:
        self.nbytes = 0
        self.crc32c = 0
        self._checksum = checksum
        self._crc32 = 0 if checksum and with_crc32 else None
        self._sha256 = sha256() if with_sha256 else None

    def __call__(self, piece: Buffer) -> None:
        """Add a piece."""
        self.nbytes += memoryview(piece).nbytes
        if self._checksum:
            self.crc32c = crc32c(piece, self.crc32c)
        if self._crc32 is not None:
            self._crc32 = isal_zlib.crc32(piece, self._crc32)
        if self._sha256 is not None:
            self._sha256.update(piece)

    def of(self, key: str) -> StoredObject:
        """Return the record of an object with this key."""
        sha = None if self._sha256 is None else self._sha256.hexdigest()
        return StoredObject(key, self.nbytes, self.crc32c, sha, self._crc32)


def stored_object(key: str, buffers: Sequence[Buffer], *, with_sha256: bool) -> StoredObject:
    """Return the record of a stored object from its bytes."""
    noting = ObjectDigest(with_sha256=with_sha256)
    for buffer in buffers:
        noting(buffer)
    return noting.of(key)


def with_tags(
    objects: Iterable[StoredObject], store: Store, prefix: str, tags: Mapping[str, str]
) -> tuple[StoredObject, ...]:
    """Return objects with the tags of their puts (`zarr_dask.stores.put_tags.noting_tags`).

    Parameters
    ----------
    objects
        Objects that were put, when all puts have ended.
    store, prefix
        Where their keys are from.
    tags
        By URL.
    """
    if not tags:
        return tuple(objects)
    start = f"{store.url}/{prefix}"
    return tuple(replace(one, tag=tags.get(f"{start}{one.key}", "")) for one in objects)


def parse_receipts(text: Buffer) -> Iterator[Receipt]:
    """Yield the receipts in the bytes of a journal file; incomplete lines are skipped."""
    return _receipts(bytes(text).split(b"\n"))


def receipts_at(store: Store, key: str) -> Iterator[Receipt] | None:
    """Yield the receipts in a journal file, up to a line that is too long to be one; None if gone.

    Of a file that is replaced meanwhile, those that have been read are yielded.
    """
    lines = lines_of(store, key, _LONGEST)
    return None if lines is None else _receipts(lines)


def _receipts(lines: Iterable[bytes]) -> Iterator[Receipt]:
    with suppress(ObjectReplacedError):  # by the same task, which has run again
        for line in lines:
            receipt = _parsed(line)
            if receipt is not None:
                yield receipt


def _parsed(line: bytes) -> Receipt | None:
    checksum, space, text = line.partition(b" ")
    if not space or checksum != b"%08x" % crc32c(text):
        return None
    try:
        document = json.loads(text)
        return Receipt(
            str(document["token"]),
            str(document["run_id"]),
            tuple(StoredObject.from_row(row) for row in document["objects"]),
            checked_keys(document["empty"]),
        )
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None  # complete, but not written by this package


@dataclass(frozen=True)
class Receipts:
    """The valid receipts of a job."""

    objects: Mapping[str, StoredObject]
    """Stored objects that are present as they were written, by key."""
    empty: frozenset[str]
    """Keys that are absent on purpose."""

    def __contains__(self, key: object) -> bool:
        """True if nothing is left to do for a stored object."""
        return key in self.objects or key in self.empty

    def __len__(self) -> int:
        return len(self.objects) + len(self.empty)


@dataclass(frozen=True)
class MostReceipts:
    """The number of stored objects that the receipts in a journal may name."""

    url: str
    """The journal, for messages."""
    objects: int
    """Number of stored objects that its job writes."""

    def check(self, count: int) -> None:
        """Raise if a number of stored objects is far too large.

        Raises
        ------
        JournalError
            If it is.
        """
        if count > max(_AS_MANY * self.objects, _AT_LEAST):
            raise JournalError(
                f"{self.url} has receipts of far more stored objects than the {self.objects:,} "
                "that its job writes. Remove it if the job does not run."
            )


def collect(
    receipts: Iterable[Receipt],
    creation: str,
    listed: Mapping[str, Version] | None = None,
    most: MostReceipts | None = None,
) -> Receipts:
    """Collect the valid receipts of one creation.

    Parameters
    ----------
    receipts
        Receipts in any order; a task that ran twice has left two.
    creation
        Identifier of the creation; receipts of others are ignored.
    listed
        Every stored object that exists. A receipt is valid for an object only if the object has the
        recorded size, and tag, where there are any; or is absent if it was recorded as absent on
        purpose. None accepts all receipts unchecked.
    most
        Bounds their number; None for any number.

    Raises
    ------
    JournalError
        If there are more.
    """
    objects: dict[str, StoredObject] = {}
    empty: set[str] = set()
    for receipt in receipts:
        if receipt.run_id != creation:
            continue
        for item in receipt.objects:
            if listed is None or item.at(listed.get(item.key)):
                objects[item.key] = item
        empty.update(key for key in receipt.empty if listed is None or key not in listed)
        if most is not None:
            most.check(len(objects) + len(empty))
    return Receipts(objects, frozenset(empty - objects.keys()))


_SHORT = 2.0
"""Seconds of work that may always be lost."""
_LONG = 30.0
"""Seconds of work that may be lost if it has made only few objects."""
_MANY = 20
_MOST_BYTES = 1 << 20
"""Bytes of receipts that are gathered."""
_MOST_JOBS = 64
"""Jobs of which receipts are kept; those of the oldest one are forgotten."""


@dataclass
class Batch:
    """Receipts of a job, in lines, that are not stored yet."""

    lines: list[bytes] = field(default_factory=list)
    objects: int = 0
    """Number of stored objects that they are about."""
    begun: float = float("inf")
    """Time by `time.monotonic` when the first of these tasks began."""

    @property
    def is_due(self) -> bool:
        """True if it should be stored now."""
        age = monotonic() - self.begun
        return (
            age >= _LONG
            or (age >= _SHORT and self.objects >= _MANY)
            or sum(map(len, self.lines)) >= _MOST_BYTES
        )

    def add(self, other: Batch) -> None:
        """Add the receipts of another batch."""
        self.lines += other.lines
        self.objects += other.objects
        self.begun = min(self.begun, other.begun)


class ReceiptBatches:
    """The batches of this process, by job."""

    def __init__(self) -> None:
        self.forget_all()

    def forget_all(self) -> None:
        """Reset; the new lock is free, also in a forked process, which has written nothing yet."""
        self._lock = threading.Lock()
        self._batches: dict[Sequence[str], Batch] = {}

    def add(self, job: Sequence[str], more: Batch) -> Batch | None:
        """Gather receipts; return those to store now, if it is time, which are no longer kept."""
        with self._lock:
            batch = self._batches.setdefault(job, Batch())
            batch.add(more)
            if batch.is_due:
                return self._batches.pop(job)
            if len(self._batches) > _MOST_JOBS:
                del self._batches[next(iter(self._batches))]
        return None

    def keep(self, job: Sequence[str], batch: Batch) -> None:
        """Gather receipts that could not be stored, or were taken from elsewhere."""
        with self._lock:
            self._batches.setdefault(job, Batch()).add(batch)

    def take(self, job: Sequence[str]) -> Batch:
        """Return the receipts of a job, which are no longer kept."""
        with self._lock:
            return self._batches.pop(job, Batch())

    def lines(self, job: Sequence[str]) -> bytes:
        """Return the receipts of a job."""
        with self._lock:
            return b"".join(self._batches.get(job, Batch()).lines)


GATHERED = ReceiptBatches()
"""The batches of this process."""


def take_gathered(job: Sequence[str]) -> Batch:
    """Return the receipts that this process has gathered, for another one that keeps them."""
    return GATHERED.take(job)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=GATHERED.forget_all)
