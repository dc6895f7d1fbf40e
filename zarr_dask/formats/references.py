"""Documents of Zarr v2 as references of kerchunk have them: keys and JSON texts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zarr_dask.formats.v2_document import DIMENSIONS

__all__ = ["ReferencedArray", "group_references"]


def group_references(path: str, attributes: Mapping[str, Any]) -> dict[str, str]:
    """Return the documents of a group by key.

    Examples
    --------
    >>> group_references("a", {"title": "run"})
    {'a/.zgroup': '{"zarr_format": 2}', 'a/.zattrs': '{"title": "run"}'}
    """
    prefix = f"{path}/" if path else ""
    return {
        f"{prefix}.zgroup": json.dumps({"zarr_format": 2}),
        f"{prefix}.zattrs": json.dumps(dict(attributes)),
    }


@dataclass(frozen=True)
class ReferencedArray:
    """An array whose chunks lie in other files."""

    path: str
    shape: Sequence[int]
    chunks: Sequence[int]
    dtype: str
    filters: Sequence[Mapping[str, Any]]
    """Filters in the order of encoding, as numcodecs names them."""
    fill: Any
    """Fill value in its JSON form; readers take it for a mask."""
    attributes: Mapping[str, Any]
    dims: Sequence[str | None]

    def documents(self) -> dict[str, str]:
        """Return its documents by key."""
        document = {
            "zarr_format": 2,
            "shape": list(self.shape),
            "chunks": list(self.chunks),
            "dtype": self.dtype,
            "compressor": None,
            "filters": [dict(item) for item in self.filters] or None,
            "fill_value": self.fill,
            "order": "C",
        }
        attributes = {**self.attributes, DIMENSIONS: list(self.dims)}
        return {
            f"{self.path}/.zarray": json.dumps(document),
            f"{self.path}/.zattrs": json.dumps(attributes),
        }

    def key(self, coords: Sequence[int]) -> str:
        """Return the key of a chunk."""
        return f"{self.path}/{'.'.join(map(str, coords)) or '0'}"
