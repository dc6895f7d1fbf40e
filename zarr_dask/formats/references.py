"""Documents of Zarr v2 as references of kerchunk have them: keys and JSON texts, or files."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from math import prod
from typing import Any

from zarr_dask.formats.base import DIMENSIONS
from zarr_dask.stores.backends.reference_targets import pyarrow

__all__ = ["PARQUET_METADATA", "ReferencedArray", "group_references", "parquet_files"]

PARQUET_METADATA = ".zmetadata"
"""Key of the metadata of references in Parquet, without which tables are none."""
_ROWS = 10_000
"""Of a table that is written; readers hold whole tables."""


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


def parquet_files(refs: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Yield keys and contents of the files of references in Parquet, the metadata last.

    Parameters
    ----------
    refs
        References as the JSON form has them: texts of documents, bytes as ``base64:...``, and lists
        of a URL, an offset and a size.
    """
    names = {".zgroup", ".zattrs", ".zarray"}
    documents = {
        key: json.loads(text) for key, text in refs.items() if key.rpartition("/")[2] in names
    }
    for key, document in documents.items():
        if key.endswith("/.zarray"):
            yield from _tables(key.rpartition("/")[0], document, refs)
    yield PARQUET_METADATA, json.dumps({"metadata": documents, "record_size": _ROWS}).encode()


def _tables(
    path: str, document: Mapping[str, Any], refs: Mapping[str, Any]
) -> Iterator[tuple[str, bytes]]:
    counts = [-(-n // c) for n, c in zip(document["shape"], document["chunks"], strict=True)]
    keys = (
        f"{path}/{'.'.join(map(str, coords)) or '0'}" for coords in product(*map(range, counts))
    )
    for record in range(-(-prod(counts) // _ROWS)):
        rows = [_row(refs.get(key)) for key in islice(keys, _ROWS)]
        yield f"{path}/refs.{record}.parq", _table_of(rows)


def _row(reference: Any) -> tuple[str | None, int, int, bytes | None]:
    if reference is None:
        return None, 0, 0, None
    if isinstance(reference, str):
        return None, 0, 0, base64.b64decode(reference.removeprefix("base64:"))
    url, offset, size = reference
    return url, offset, size, None


def _table_of(rows: Sequence[tuple[str | None, int, int, bytes | None]]) -> bytes:
    """Return a table; readers of kerchunk want numbers that cannot be masked."""
    arrow = pyarrow()
    schema = arrow.schema(
        [
            arrow.field("path", arrow.string()),
            arrow.field("offset", arrow.int64(), nullable=False),
            arrow.field("size", arrow.int64(), nullable=False),
            arrow.field("raw", arrow.binary()),
        ]
    )
    columns = [
        arrow.array(values, field.type)
        for values, field in zip(zip(*rows, strict=True), schema, strict=True)
    ]
    buffer = io.BytesIO()
    arrow.parquet.write_table(
        arrow.table(columns, schema=schema),
        buffer,
        compression="zstd",
        use_dictionary=["path"],
        write_statistics=["offset", "size"],  # without these fastparquet reads them as floats
    )
    return buffer.getvalue()
