"""The list of chunks that were filled because a file turned out broken while it was read.

Tasks in any process put an entry for each chunk beside the target; the report takes them.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from hashlib import sha256

from zarr_dask.stores.base import Store

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
        """Return all entries, also those of runs that died."""
        values = (self.store.get(key) for key in self.store.list(self.prefix))
        found = (json.loads(bytes(value)) for value in values if value is not None)
        return tuple(sorted(FilledChunk(**facts) for facts in found))

    def clear(self) -> None:
        """Remove all entries."""
        self.store.delete_prefix(self.prefix)
