"""What a job takes besides time: requests and bytes, counted by a store around the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from zarr_dask.stores import Buffer, Range, Recording
from zarr_dask.stores.base import TaggedBytes, VersionRequest

__all__ = ["Counting"]


@dataclass(frozen=True)
class Counting(Recording):
    """Writes down requests, and how many bytes came back."""

    lengths: list[int] = field(default_factory=list, compare=False)

    def clear(self) -> None:
        super().clear()
        self.lengths.clear()

    def get(self, key: str) -> Buffer | None:
        found = super().get(key)
        self.lengths.append(0 if found is None else len(found))
        return found

    def get_ranges(self, requests: Sequence[tuple[str, Range]]) -> list[Buffer | None]:
        found = super().get_ranges(requests)
        self.lengths.extend(len(one) for one in found if one is not None)
        return found

    def get_versions(self, requests: Sequence[VersionRequest]) -> list[TaggedBytes | None]:
        found = super().get_versions(requests)
        self.lengths.extend(len(one.content or b"") for one in found if one is not None)
        return found

    @property
    def counts(self) -> dict[str, int]:
        """Requests (each range is one), keys they were about, bytes that came back."""
        return {
            "requests": len(self.requests),
            "keys": len(self.per_key()),
            "bytes": sum(self.lengths),
        }
