"""Receipts: what a finished writing task leaves behind, and what is left to do.

A receipt is one line of text with a checksum of its own, so that a line cut short by a crash or
a full disk is told from a whole one and passed over. It says which stored objects the task has
written, how large they are and what their bytes sum up to, and which objects it left out because
all their elements have the fill value. Where receipts lie is the matter of `zarr_dask.journal`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from zarr_dask.codecs.checksum import crc32c
from zarr_dask.stores.base import Buffer, is_key

__all__ = [
    "Noting",
    "Receipt",
    "Receipts",
    "StoredObject",
    "checked_keys",
    "collect",
    "parse_receipts",
    "stored_object",
]

_LARGEST = 1 << 63
_SHA256 = re.compile("[0-9a-f]{64}")
_quoted = json.encoder.encode_basestring_ascii
"""A text as JSON has it."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One stored object as it was written."""

    key: str
    """Its key, below the node that is written; in a manifest, below the root of the store."""
    nbytes: int
    """Encoded bytes."""
    crc32c: int
    """CRC-32C of all of them."""
    sha256: str | None = None
    """SHA-256 of all of them as hexadecimal digits, where that was asked for."""

    def to_row(self) -> list[Any]:
        """As a list for JSON."""
        row = [self.key, self.nbytes, self.crc32c]
        return row if self.sha256 is None else [*row, self.sha256]

    def to_text(self) -> str:
        """`to_row` as JSON, put together by hand: a task has a receipt, and little time for it."""
        sha = "" if self.sha256 is None else f",{_quoted(self.sha256)}"
        return f"[{_quoted(self.key)},{self.nbytes},{self.crc32c}{sha}]"

    @staticmethod
    def from_row(row: Sequence[Any]) -> StoredObject:
        """What `to_row` has made.

        Raises
        ------
        ValueError
            If it is something else; says which item.
        """
        if not isinstance(row, list) or not 3 <= len(row) <= 4:
            raise ValueError(f"{row!a:.80}: expected a key, bytes, a CRC-32C and no more")
        key, nbytes, checksum, *more = row
        _check(is_key(key), "key", key)
        _check(type(nbytes) is int and 0 <= nbytes < _LARGEST, "number of bytes", nbytes)
        _check(type(checksum) is int and 0 <= checksum < 1 << 32, "CRC-32C", checksum)
        sha = more[0] if more else None
        _check(not more or bool(_SHA256.fullmatch(str(sha))), "SHA-256", sha)
        return StoredObject(key, nbytes, checksum, sha)


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
    """What one writing task has done.

    Examples
    --------
    >>> receipt = Receipt("run-7", "5f2a", (StoredObject("c/0", 4, 0x9A71BB4C),), ("c/1",))
    >>> line = receipt.to_line()
    >>> list(parse_receipts(line)) == [receipt], list(parse_receipts(line[:-9]))
    (True, [])
    """

    token: str
    """Tells the job."""
    creation: str
    """Tells what the job writes to from what may be at the same place later."""
    objects: tuple[StoredObject, ...]
    """Stored objects that were written."""
    empty: tuple[str, ...] = ()
    """Keys of objects that are absent on purpose."""

    def to_line(self) -> bytes:
        """The receipt as a line: its checksum, then JSON; an empty line comes first.

        What a crash has left without its end is closed by that empty line.
        """
        objects = ",".join([item.to_text() for item in self.objects])
        empty = ",".join(map(_quoted, self.empty))
        text = (
            f'{{"token":{_quoted(self.token)},"creation":{_quoted(self.creation)},'
            f'"objects":[{objects}],"empty":[{empty}]}}'
        ).encode()
        return b"\n%08x %b\n" % (crc32c(text), text)


class Noting:
    """What a receipt says of a stored object, from its bytes as they go by, piece by piece.

    Parameters
    ----------
    checksum
        Whether to sum them up; else what is noted has 0.
    with_sha256
        Whether to work out their SHA-256 as well.

    Examples
    --------
    >>> noting = Noting()
    >>> noting(b"1234"), noting(b"56789"), noting.of("c/0")
    (None, None, StoredObject(key='c/0', nbytes=9, crc32c=3808858755, sha256=None))
    """

    def __init__(self, *, checksum: bool = True, with_sha256: bool = False) -> None:
        self.nbytes = 0
        self._checksum = checksum
        self._crc32c = 0
        self._sha256 = sha256() if with_sha256 else None

    def __call__(self, piece: Buffer) -> None:
        """One more piece."""
        self.nbytes += memoryview(piece).nbytes
        if self._checksum:
            self._crc32c = crc32c(piece, self._crc32c)
        if self._sha256 is not None:
            self._sha256.update(piece)

    def of(self, key: str) -> StoredObject:
        """What was noted, of an object with a key."""
        sha = None if self._sha256 is None else self._sha256.hexdigest()
        return StoredObject(key, self.nbytes, self._crc32c, sha)


def stored_object(key: str, buffers: Sequence[Buffer], *, with_sha256: bool) -> StoredObject:
    """What a receipt says of the bytes of a stored object."""
    noting = Noting(with_sha256=with_sha256)
    for buffer in buffers:
        noting(buffer)
    return noting.of(key)


def parse_receipts(text: Buffer) -> Iterator[Receipt]:
    """The receipts in the bytes of a journal file; lines that are not whole are passed over."""
    for line in bytes(text).split(b"\n"):
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
            str(document["creation"]),
            tuple(StoredObject.from_row(row) for row in document["objects"]),
            checked_keys(document["empty"]),
        )
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None  # whole, but nothing that this package has written


@dataclass(frozen=True)
class Receipts:
    """The receipts of a job that hold for what is in the store."""

    objects: Mapping[str, StoredObject]
    """Stored objects that are there as they were written, by key."""
    empty: frozenset[str]
    """Keys that are absent on purpose."""

    def __contains__(self, key: object) -> bool:
        """Whether nothing is left to do for a stored object."""
        return key in self.objects or key in self.empty

    def __len__(self) -> int:
        return len(self.objects) + len(self.empty)


def collect(
    receipts: Iterable[Receipt], creation: str, sizes: Mapping[str, int] | None = None
) -> Receipts:
    """Join the receipts of one creation that hold.

    Parameters
    ----------
    receipts
        In any order; a task that was run twice has left two.
    creation
        Receipts of another one count for nothing.
    sizes
        Bytes of every stored object that there is. A receipt counts for an object only if that
        has the size it had when it was written, and for one that is absent on purpose only if it
        is absent. None takes every receipt at its word.
    """
    objects: dict[str, StoredObject] = {}
    empty: set[str] = set()
    for receipt in receipts:
        if receipt.creation != creation:
            continue
        for item in receipt.objects:
            if sizes is None or sizes.get(item.key) == item.nbytes:
                objects[item.key] = item
        empty.update(key for key in receipt.empty if sizes is None or key not in sizes)
    return Receipts(objects, frozenset(empty - objects.keys()))
