"""The entry point at the root of hierarchies of the v3 draft, as far as detection needs it."""

from __future__ import annotations

from zarr_dask.formats.documents import Limits, parse_json

__all__ = ["ENTRY", "may_be_entry"]

ENTRY = "zarr.json"
"""Key of the entry point, at the root of a hierarchy."""


def may_be_entry(text: bytes, limits: Limits) -> bool:
    """True if a ``zarr.json`` is an entry point rather than the document of a node."""
    if b'"node_type"' in text and b'"metadata_encoding"' not in text:
        return False  # final v3, detected without parsing
    try:
        document = parse_json(text, limits, strictly=False)
    except (ValueError, RecursionError):
        return False
    if not isinstance(document, dict) or "node_type" in document:
        return False
    version = document.get("zarr_format")
    return "metadata_encoding" in document or (isinstance(version, str) and "#" not in version)
