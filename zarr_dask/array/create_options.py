"""Keywords of the functions that open and create nodes, and the peers' names for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Literal, ParamSpec, TypedDict, TypeVar

__all__ = [
    "NEW_ARRAY",
    "NEW_ARRAY_HABITS",
    "OPEN_HABITS",
    "CreateOptions",
    "LayoutOptions",
    "NewArrayOptions",
    "codecs_of_steps",
    "takes_codec_steps",
]

P = ParamSpec("P")
T = TypeVar("T")

_STEPS = ("filters", "serializer", "compressor", "compressors")
"""Keywords of zarr-python that are parts of ``codecs``, in the order of encoding."""


class LayoutOptions(TypedDict, total=False):
    """Keywords that say how a new array is stored; see `zarr_dask.create_array`."""

    chunks: Any
    shards: Any
    codecs: Any
    dimension_names: Any
    attributes: Mapping[str, Any] | None
    order: Literal["C", "F"]
    chunk_key_encoding: Any


class NewArrayOptions(LayoutOptions, total=False):
    """Keywords that say what a new array is like; see `zarr_dask.create_array`."""

    fill_value: Any


class CreateOptions(NewArrayOptions, total=False):
    """Keywords of `create_array` that methods of a group and `open` pass on."""

    shape: Any
    dtype: Any
    data: Any
    overwrite: bool


NEW_ARRAY = tuple(CreateOptions.__annotations__)
OPEN_HABITS = {"component": "path", "name": "path", "store": "url", "zarr_format": "format"}
NEW_ARRAY_HABITS = {
    "attrs": "attributes",
    "dimension_separator": "chunk_key_encoding",
    "dims": "dimension_names",
}
"""Names of zarr-python, xarray and dask for arguments of this package."""


def takes_codec_steps(function: Callable[P, T]) -> Callable[P, T]:
    """Let a function that has ``codecs=`` take zarr-python's keywords for its parts as well."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        said = {name: kwargs.pop(name) for name in _STEPS if name in kwargs}
        first = next(iter(said.values()), None)
        by_array = isinstance(first, Mapping) and not {"id", "name"} & set(first)
        codecs = first if by_array else codecs_of_steps(said)
        if codecs is not None:
            if kwargs.get("codecs") is not None:
                raise TypeError(
                    f"{function.__name__}() got codecs= and {next(iter(said))}=, which are two "
                    "names of one thing; give one."
                )
            kwargs["codecs"] = codecs
        return function(*args, **kwargs)

    return call


def codecs_of_steps(keywords: Mapping[str, Any]) -> list[Any] | None:
    """Return filters, serializer and compressors in their order; None for the default codecs.

    As in zarr-python, None or an empty list is no codec of that kind, and "auto" the default one.

    Raises
    ------
    TypeError
        If a codec is given for a step that is not its own.

    Examples
    --------
    >>> codecs_of_steps({"filters": ["crc32c"], "compressors": ("gzip", "crc32c")})
    ['crc32c', 'gzip', 'crc32c']
    >>> codecs_of_steps({"compressors": None}), codecs_of_steps({"compressors": "auto"})
    ([], None)
    """
    if not keywords:
        return None
    from zarr_dask.array.create import codec_configuration  # not for every read

    said = [name for name in _STEPS if name in keywords and not _is_auto(keywords[name])]
    steps = [(name, codec_configuration(item)) for name in said for item in _listed(keywords[name])]
    for name, codec in steps:
        _check_step(name, codec)
    codecs = [codec for _, codec in steps]
    if {"compressor", "compressors"} & set(said):
        return codecs
    return [*codecs, "blosc"] if codecs else None


def _check_step(keyword: str, codec: Any) -> None:
    """Raise for a known codec that makes bytes of elements, or does not, against its keyword."""
    from zarr_dask.codecs.registry import codec_class, is_serializer, name_of

    known = isinstance(name_of(codec), str) and codec_class(name_of(codec)) is not None
    if known and is_serializer(codec) != (keyword == "serializer"):
        right = "compressors= or filters=" if keyword == "serializer" else "serializer="
        raise TypeError(f"{keyword}={name_of(codec)!r}: this codec is given as {right}.")


def _is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == "auto"


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]
