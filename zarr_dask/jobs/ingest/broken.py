"""The list of chunks that were filled because a file turned out broken while it was read.

Tasks in any process put an entry for each chunk beside the target; the report takes them.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from hashlib import sha256

from zarr_dask.errors import JournalError
from zarr_dask.stores.base import Buffer, Store

__all__ = ["BrokenList", "FilledChunk"]


@dataclass(frozen=True, order=True)
class FilledChunk:
    """A part of an array that has masked values in the place of what a file does not yield."""

    file: str
    array: str
    region: str
    """The elements, as in ``0:4, 0:90``."""
    found: str
    """Error of the file."""

    def __str__(self) -> str:
        return f"{self.file}: {self.array}[{self.region}] is filled: {self.found}"


@dataclass(frozen=True)
class BrokenList:
    """The entries of one target.

    Parameters
    ----------
    store
        The store beside the target.
    prefix
        Prefix of their keys.
    """

    store: Store
    prefix: str

    def add(self, one: FilledChunk) -> None:
        """Put an entry; the same one again changes nothing."""
        facts = json.dumps(asdict(one), sort_keys=True).encode()
        self.store.set(f"{self.prefix}{sha256(facts).hexdigest()[:32]}.json", [facts])

    def entries(self) -> tuple[FilledChunk, ...]:
        """Return all entries, also those of runs that died.

        Raises
        ------
        JournalError
            If something else lies among them.
        """
        values = {key: self.store.get(key) for key in self.store.list(self.prefix)}
        found = (self._parsed(key, text) for key, text in values.items() if text is not None)
        return tuple(sorted(found))

    def _parsed(self, key: str, text: Buffer) -> FilledChunk:
        try:
            facts = json.loads(bytes(text))
            if not all(isinstance(value, str) for value in facts.values()):
                raise TypeError("expected texts")  # noqa: TRY301
            return FilledChunk(**facts)
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise JournalError(
                f"{self.store.url}/{key} names no chunk that was filled ({error}). Remove it."
            ) from error

    def clear(self) -> None:
        """Remove all entries."""
        self.store.delete_prefix(self.prefix)
