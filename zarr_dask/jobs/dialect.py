"""What dask hands on to zarr-python, understood: the keywords of its ``create_array``.

Codecs may be objects of zarr-python or numcodecs; they are asked for their configuration, so that
neither package needs to be imported here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from zarr_dask.create import ArraySpec

__all__ = ["spec_from_keywords"]

_KEYWORDS = frozenset(
    {
        "chunk_key_encoding",
        "compressor",
        "compressors",
        "dimension_separator",
        "filters",
        "order",
        "serializer",
        "zarr_format",
    }
)


def spec_from_keywords(spec: ArraySpec, keywords: Mapping[str, Any]) -> ArraySpec:
    """The array with zarr-python's keywords taken in.

    Raises
    ------
    TypeError
        For keywords that are not understood, and for codecs given twice.
    """
    unknown = sorted(set(keywords) - _KEYWORDS)
    if unknown:
        raise TypeError(
            f"unexpected keywords {unknown}; besides its own, to_zarr takes {sorted(_KEYWORDS)}."
        )
    given = {name: value for name, value in keywords.items() if value is not None}
    if "zarr_format" in given:
        spec = replace(spec, format=f"v{given['zarr_format']}")
    if "order" in given:
        spec = replace(spec, order=given["order"])
    if "chunk_key_encoding" in given:
        spec = replace(spec, chunk_key_encoding=_keys(given["chunk_key_encoding"]))
    if "dimension_separator" in given:
        spec = replace(spec, chunk_key_encoding={"separator": given["dimension_separator"]})
    codecs = _codecs(keywords)
    if codecs is not None:
        if spec.codecs is not None:
            raise TypeError("codecs= and zarr-python's codec keywords are given; choose one.")
        spec = replace(spec, codecs=codecs)
    return spec


def _codecs(keywords: Mapping[str, Any]) -> list[Any] | None:
    """Filters, serializer and compressors in their order; None where nothing is said."""
    steps = ("filters", "serializer", "compressor", "compressors")
    said = [n for n in steps if n in keywords and not _is_auto(keywords[n])]
    if not said:
        return None
    codecs = [_configuration(item) for name in said for item in _listed(keywords[name])]
    if not {"compressor", "compressors"} & set(said):
        codecs.append("blosc")
    return codecs


def _is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == "auto"


def _listed(value: Any) -> list[Any]:
    if value is None or _is_auto(value):
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _configuration(codec: Any) -> Any:
    for method in ("to_dict", "get_config"):
        if hasattr(codec, method):
            document = dict(getattr(codec, method)())
            open_ = getattr(codec, "_tunable_attrs", ())  # what zarr-python fills in later
            if "configuration" in document:
                configuration = json.loads(json.dumps(document["configuration"]))
                document["configuration"] = {
                    k: v for k, v in configuration.items() if k not in open_
                }
            return document
    return codec


def _keys(value: Any) -> Any:
    return value.to_dict() if hasattr(value, "to_dict") else value
