"""Manifests: the receipts of a job, kept in one file after the job.

A manifest is a text with one JSON value per line. The first line is a header. Then follows one line
per stored object in the order of keys: ``[key, bytes, crc32c, sha256, crc32]``, the SHA-256 null
if it was not requested, or ``[key]`` for an object that is absent on purpose. The last line
holds the number of lines and their checksum, so that a truncated manifest is detected.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import PurePosixPath
from typing import Any, Protocol

from zarr_dask.codecs.checksum import crc32c
from zarr_dask.errors import ManifestError, ObjectReplacedError
from zarr_dask.formats.base import ArrayMeta, Format, where
from zarr_dask.journal.location import check_behind_no_link, default_place
from zarr_dask.journal.receipts import Receipts, StoredObject, checked_keys
from zarr_dask.stores.base import Store, get_start
from zarr_dask.stores.compare_and_swap import cas_update
from zarr_dask.stores.lines import lines_of
from zarr_dask.stores.open import open_store, open_with_options_of

__all__ = ["Manifest", "ManifestPlace"]

_FORMAT = "zarr-dask manifest 1"
_START = f'{{"format":"{_FORMAT}"'.encode()
"""The first bytes of each manifest."""
_NAME = "__manifest"
_LONGEST = 1 << 20
"""Bytes of a line."""
_AS_MANY, _AT_LEAST = 4, 1 << 18
"""Lines of the manifest beside an array: for each of its stored objects, and where it has few. An
array that has become smaller keeps the lines of what it had."""


@dataclass(frozen=True)
class ManifestPlace:
    """Location of a manifest."""

    store: Store
    key: str
    beside: bool = False
    """True if it is the manifest beside a node, which later jobs add to."""
    most: int | None = None
    """Maximum number of lines that are read; None for any number."""

    @property
    def url(self) -> str:
        """URL of the manifest, for messages."""
        return f"{self.store.url}/{self.key}"

    def check_free(self) -> None:
        """Refuse a location that a user has named, and where something else than a manifest lies.

        Raises
        ------
        ManifestError
            If it does: the manifest of a job takes the place of an earlier one.
        """
        if self.beside:
            return
        found = bytes(get_start(self.store, self.key, len(_START)) or b"")
        if not _START.startswith(found) and not found.startswith(_START):
            raise ManifestError(
                f"manifest={self.url!r} names a file that is no manifest; nothing was written. "
                "Name another one, or remove it."
            )

    @staticmethod
    def of_node(
        manifest: bool | str | os.PathLike[str],
        store: Store,
        path: str,
        objects: int | None = None,
    ) -> ManifestPlace:
        """Return the location that a path or URL names; for True the one beside a node.

        Parameters
        ----------
        manifest, store, path
            The location, or the node.
        objects
            Number of stored objects that the node may have; bounds the lines beside it that are
            read.

        Raises
        ------
        ManifestError
            If there is no place beside the node.
        LinkError
            If the place beside it lies behind a link.
        """
        if manifest is not True:
            return ManifestPlace.of(manifest, store)  # type: ignore[arg-type]
        beside = default_place(store, path)
        if beside is None:
            raise ManifestError(
                f"{where(store, path)} has no place beside it for a manifest: it is in memory, in "
                "an archive, or the root of a bucket. Give a path or URL instead of True."
            )
        check_behind_no_link(beside)
        most = None if objects is None else max(_AS_MANY * objects, _AT_LEAST)
        return ManifestPlace(beside.store, f"{beside.prefix}{_NAME}", beside=True, most=most)

    @staticmethod
    def of(
        location: str | os.PathLike[str],
        like: Store | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> ManifestPlace:
        """Return the location that a path or URL names.

        Parameters
        ----------
        location
            A path or URL.
        like
            Store whose options are used for a URL of the same service.
        storage_options
            Options of the store, used instead of those of `like`.

        Raises
        ------
        StoreError
            If no backend supports the URL.
        TypeError
            If `location` is neither a path nor a URL.
        """
        if not isinstance(location, str | os.PathLike):
            raise TypeError(f"manifest={location!r}: expected a path or URL.")
        text = os.fspath(location)
        if "://" in text:
            folder, _, name = text.rpartition("/")
        else:
            path = PurePosixPath(text)
            folder, name = str(path.parent), path.name
        if like is None or storage_options is not None:
            return ManifestPlace(open_store(folder, storage_options), name)
        return ManifestPlace(open_with_options_of(folder, like), name)


class ManifestArray(Protocol):
    """Interface of an array that may have a manifest beside it."""

    @property
    def store(self) -> Store:
        """Store that holds the array."""
        ...

    @property
    def path(self) -> str:
        """Path below the root of the store."""
        ...

    @property
    def node_format(self) -> Format:
        """Format of its metadata."""
        ...

    @property
    def meta(self) -> ArrayMeta:
        """Its metadata."""
        ...


@dataclass(frozen=True)
class Manifest:
    """The stored objects that a job wrote.

    Examples
    --------
    >>> import tempfile
    >>> import zarr_dask as zd
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = zd.to_zarr([1, 2, 3], f"{folder}/run.zarr", manifest=f"{folder}/run.manifest")
    ...     manifest = zd.Manifest.read(f"{folder}/run.manifest")
    >>> [one.key for one in manifest.objects]
    ['c/0', 'zarr.json']
    >>> zd.Manifest.from_text(manifest.to_text()) == manifest
    True
    """

    objects: tuple[StoredObject, ...]
    """Stored objects in the order of their keys, including metadata."""
    empty: frozenset[str] = frozenset()
    """Keys of stored objects that are absent on purpose: all their elements have the fill value."""
    array: str = ""
    """Store and path of the array or group that was written."""
    digest: str = ""
    """`zarr_dask.digest` of the values, if it was computed."""
    prefix: str | None = None
    """Common prefix of the keys of the array's stored objects; None if it is not known."""

    @staticmethod
    def of(
        receipts: Receipts, prefix: str, documents: Iterable[StoredObject], array: str
    ) -> Manifest:
        """Return the manifest of a finished job; `prefix` is the common prefix of its keys."""
        found = {item.key: item for item in documents}
        for item in receipts.objects.values():
            found[prefix + item.key] = replace(item, key=prefix + item.key)
        objects = tuple(found[key] for key in sorted(found))
        empty = frozenset(prefix + key for key in receipts.empty)
        return Manifest(objects, empty, array, prefix=prefix)

    @staticmethod
    def read(
        location: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
    ) -> Manifest:
        """Read the manifest at a path or URL.

        Parameters
        ----------
        location
            The path or URL.
        storage_options
            Options of its store.

        Raises
        ------
        ManifestError
            If there is no manifest, or it is not complete.
        StoreError
            If the store fails.
        """
        return Manifest.at(ManifestPlace.of(location, storage_options=storage_options))

    @staticmethod
    def beside(arrays: Iterable[ManifestArray]) -> Manifest:
        """Return the manifests that are kept beside arrays, as one with the keys of their store."""
        found: list[StoredObject] = []
        empty: set[str] = set()
        for array in arrays:
            objects = array.meta.grid.ncells
            kept = Manifest.at(ManifestPlace.of_node(True, array.store, array.path, objects))
            prefix = array.node_format.data_prefix(array.path)
            theirs = prefix if kept.prefix is None else kept.prefix
            below = [item for item in kept.objects if item.key.startswith(theirs)]
            found += (replace(item, key=_moved(item.key, theirs, prefix)) for item in below)
            empty |= {_moved(key, theirs, prefix) for key in kept.empty}
        return Manifest(tuple(found), frozenset(empty))

    @staticmethod
    def at(place: ManifestPlace) -> Manifest:
        """Read the manifest at a location; see `read`."""
        try:
            return _read(place)
        except (ManifestError, ObjectReplacedError):  # maybe replaced while it was read
            return _read(place)

    def write(self, place: ManifestPlace) -> None:
        """Write the manifest to a location."""
        place.store.set(place.key, [self.to_text()])

    def add_to(self, place: ManifestPlace) -> None:
        """Put what is listed into the manifest at a location, instead of what it says of it."""
        cas_update(place.store, place.key, lambda: self._added_to(place).to_text())

    def _added_to(self, place: ManifestPlace) -> Manifest:
        if place.store.size(place.key) is None:
            return self
        old, mine = Manifest.at(place), self.prefix or ""
        theirs = mine if old.prefix is None else old.prefix
        found = {item.key: item for item in old.objects}
        new = {_moved(item.key, mine, theirs): item for item in self.objects}
        empty = {_moved(key, mine, theirs) for key in self.empty}
        kept = {key: item for key, item in found.items() if key not in empty}
        kept |= {key: replace(item, key=key) for key, item in new.items()}
        objects = tuple(kept[key] for key in sorted(kept))
        return replace(
            old, objects=objects, empty=(old.empty - new.keys()) | empty, digest="", prefix=theirs
        )

    def to_text(self) -> bytes:
        """Return the manifest as a text."""
        rows: dict[str, list[Any]] = {key: [key] for key in self.empty}
        rows |= {item.key: item.to_row() for item in self.objects}
        more = {"digest": self.digest or None, "prefix": self.prefix}
        told = {name: value for name, value in more.items() if value is not None}
        lines = [_line({"format": _FORMAT, "array": self.array, **told})]
        lines += [_line(rows[key]) for key in sorted(rows)]
        body = b"".join(lines)
        return body + _line({"lines": len(lines), "crc32c": crc32c(body)})

    @staticmethod
    def from_text(text: bytes) -> Manifest:
        """Parse the text that `to_text` returns.

        Raises
        ------
        ManifestError
            If it is not a manifest, or not complete.
        """
        return _parsed(text.split(b"\n"))

    def to_sha256sum(self) -> str:
        """Return the lines that the program ``sha256sum`` writes and checks, for archives.

        ``sha256sum --check`` must be run in the root folder of the store.

        Raises
        ------
        ManifestError
            If the job did not compute SHA-256 (``sha256=True``).
        """
        without = [item.key for item in self.objects if item.sha256 is None]
        if without:
            raise ManifestError(
                f"{len(without)} of {len(self.objects)} stored objects have no SHA-256 in the "
                f"manifest, {without[0]!r} for one; write with sha256=True to have them computed."
            )
        return "".join(f"{item.sha256}  {item.key}\n" for item in self.objects)


def _moved(key: str, prefix: str, other: str) -> str:
    """Return a key below a prefix as one below another prefix."""
    return other + key[len(prefix) :] if key.startswith(prefix) else key


def _read(place: ManifestPlace) -> Manifest:
    lines = lines_of(place.store, place.key, _LONGEST)
    if lines is None:
        raise ManifestError(f"there is no manifest at {place.url}.")
    try:
        return _parsed(lines if place.most is None else _at_most(place.most, lines))
    except ManifestError as error:
        raise ManifestError(f"{place.url}: {error}") from error


def _parsed(lines: Iterable[bytes]) -> Manifest:
    """Return the manifest of these lines, of which none is taken behind the first wrong one."""
    header: dict[str, Any] = {}
    objects: list[StoredObject] = []
    empty: set[str] = set()
    number = checksum = 0
    try:
        last = b""
        for line, following in pairwise(chain(lines, (b"",))):
            if line and not following:
                last = line
            elif line and not last:
                number, checksum = number + 1, crc32c(line + b"\n", checksum)
                if number == 1:
                    header = _header(json.loads(line))
                else:
                    _add_row(number, json.loads(line), objects, empty)
            elif line:
                raise ManifestError(_NOT_WHOLE)
        if not header or json.loads(last) != {"lines": number, "crc32c": checksum}:
            raise ManifestError(_NOT_WHOLE)
        digest, prefix = str(header.get("digest", "")), header.get("prefix")
        if not isinstance(prefix, str | None):
            raise ManifestError(f"its prefix is {prefix!a:.80}, which is none.")
        found = tuple(objects), frozenset(empty)
        return Manifest(*found, str(header["array"]), digest, prefix)
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError) as error:
        if isinstance(error, ManifestError):
            raise
        raise ManifestError(f"this is no manifest ({error!s:.200}).") from error


def _at_most(most: int, lines: Iterable[bytes]) -> Iterator[bytes]:
    for number, line in enumerate(lines):
        if number > most:
            raise ManifestError(
                f"it has more than {most:,} lines, and the array can have no more than "
                f"{most // _AS_MANY:,} stored objects. Remove it, or read without it."
            )
        yield line


_NOT_WHOLE = "this is no whole manifest; its last line does not sum it up."


def _header(line: Any) -> dict[str, Any]:
    if not isinstance(line, dict) or line["format"] != _FORMAT:
        raise ManifestError(_NOT_WHOLE)
    return line


def _add_row(number: int, row: Any, objects: list[StoredObject], empty: set[str]) -> None:
    """Add the stored object of a line, or the key of one that is not there."""
    try:
        if isinstance(row, list) and len(row) == 1:
            empty.update(checked_keys(row))
        else:
            objects.append(StoredObject.from_row(row))
    except ValueError as error:
        raise ManifestError(f"line {number} of it is of no stored object: {error}.") from error


def _line(value: Mapping[str, Any] | Sequence[Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"
