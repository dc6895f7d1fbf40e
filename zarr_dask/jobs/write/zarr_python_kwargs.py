"""Arguments of dask's functions for Zarr: objects and keywords of zarr-python.

Codecs may be objects of zarr-python or numcodecs. Only their configuration is used, so neither
package needs to be imported here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, TypedDict

from zarr_dask._util.keywords import unknown_keyword
from zarr_dask.array.array import Array
from zarr_dask.array.create import ArraySpec
from zarr_dask.array.create_options import codecs_of_steps
from zarr_dask.formats.detect import spelled_format
from zarr_dask.hierarchy.group import Group
from zarr_dask.hierarchy.open_node import open_array
from zarr_dask.stores.backends.zarr_python import place_in_zarr_python
from zarr_dask.stores.open import Location, split_zarr_python_node

__all__ = ["KEYWORDS", "ZarrPythonOptions", "spec_from_keywords", "target_of"]


class ZarrPythonOptions(TypedDict, total=False):
    """Keywords that dask passes to zarr-python, and other names for those of `plan_write`."""

    append_dim: int | str | None
    attrs: Mapping[str, Any] | None
    chunk_key_encoding: Any
    compressor: Any
    compressors: Any
    dimension_separator: str
    dims: Any
    filters: Any
    name: str
    order: Literal["C", "F"]
    path: Any
    serializer: Any
    zarr_format: int


KEYWORDS = frozenset(ZarrPythonOptions.__annotations__) - {
    "append_dim",
    "attrs",
    "dims",
    "name",
    "path",
}


def target_of(
    url: Location | Array | Group, component: str | None, keywords: Mapping[str, Any]
) -> tuple[Location | Array | Group, str | None, Mapping[str, Any]]:
    """Return the target of a write, with an array of zarr-python opened and ``name=`` applied.

    Raises
    ------
    TypeError
        If both a component and a name are given.
    """
    if "name" in keywords:
        if component is not None:
            raise TypeError("component= and name= both say where the array lies; choose one.")
        component = keywords["name"]
        keywords = {key: value for key, value in keywords.items() if key != "name"}
    if not isinstance(url, Array | Group) and place_in_zarr_python(url) is not None:
        if hasattr(url, "shape") and not component:
            return open_array(url, mode="r+"), None, keywords
        return (*split_zarr_python_node(url, component or ""), keywords)
    return url, component, keywords


def spec_from_keywords(spec: ArraySpec, keywords: Mapping[str, Any]) -> ArraySpec:
    """Return the specification of an array with zarr-python's keywords applied.

    Raises
    ------
    TypeError
        For unknown keywords, and for codecs given twice.
    """
    unknown = sorted(set(keywords) - KEYWORDS)
    if unknown:
        raise unknown_keyword("to_zarr", unknown[0], KEYWORDS)
    given = {name: value for name, value in keywords.items() if value is not None}
    if "zarr_format" in given:
        asked = str(spelled_format(given["zarr_format"]))
        if spec.format is not None and spelled_format(spec.format) != asked:
            raise TypeError(
                f"format={spec.format!r} and zarr_format={given['zarr_format']!r} are given; "
                "choose one."
            )
        spec = replace(spec, format=asked)
    if "order" in given:
        spec = replace(spec, order=given["order"])
    if "chunk_key_encoding" in given:
        spec = replace(spec, chunk_key_encoding=_keys(given["chunk_key_encoding"]))
    if "dimension_separator" in given:
        spec = replace(spec, chunk_key_encoding={"separator": given["dimension_separator"]})
    codecs = codecs_of_steps(keywords)
    if codecs is not None:
        if spec.codecs is not None:
            raise TypeError("codecs= and zarr-python's codec keywords are given; choose one.")
        spec = replace(spec, codecs=codecs)
    return spec


def _keys(value: Any) -> Any:
    return value.to_dict() if hasattr(value, "to_dict") else value
