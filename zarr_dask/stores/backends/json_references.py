"""References of kerchunk in JSON: a document of keys, and of texts or places.

fsspec is given a mapping in which all is written out. Left to itself, it leaves out what generators
(``gen``) make, so that chunks become fill values, and takes base64 for as long as its text.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from itertools import product
from math import prod
from typing import Any

from fsspec.compression import compr
from fsspec.core import open as open_file
from fsspec.core import url_to_fs

from zarr_dask.errors import MissingDependencyError, StoreError
from zarr_dask.stores.backends.lazy_references import JsonReferences, load_lazily
from zarr_dask.stores.backends.parquet_references import ParquetReferences
from zarr_dask.stores.backends.reference_targets import is_parquet
from zarr_dask.stores.backends.reference_templates import Template

__all__ = ["reference_options"]

_MOST_BYTES = 1 << 31
"""Of a document, decompressed."""
_MOST_GENERATED = 1_000_000
"""Of a document: a few characters name any number of references."""
_COMPRESSED = {b"\x28\xb5\x2f\xfd": "zstd", b"\x1f\x8b": "gzip"}
"""Names of compressions by the bytes that they begin with."""


def reference_options(document: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a reference file system with all references written out.

    Parameters
    ----------
    document
        Location of the document, in JSON or Parquet; empty for one in the options.
    given
        Options of users, also those of the document, by scheme or as ``target_options``.

    Raises
    ------
    StoreError
        If the document has templates or generators that are programs.
    ValueError
        If it is malformed.
    """
    options = {**given, **given.get("reference", {})}
    options.pop("reference", None)
    options.pop("simple_templates", None)
    overrides = options.pop("template_overrides", None)
    own = {one: options.pop(one) for one in _schemes(document) if one in options}
    for name in ("ref_storage_args", "target_options"):
        own |= options.pop(name, None) or {}
    protocol = options.pop("target_protocol", None)
    own |= {} if protocol is None else {"protocol": protocol}
    fo = options.get("fo")
    if fo is None or isinstance(fo, str):
        fo = _loaded(document, own)
    if not isinstance(fo, ParquetReferences):
        fo = JsonReferences(_written_out(fo, overrides or {}, document or "memory"), document)
    return {**options, "fo": fo}


def _schemes(document: str) -> list[str]:
    return [part.partition("://")[0] for part in document.split("::")]


def _loaded(document: str, own: Mapping[str, Any]) -> Any:
    if is_parquet(document):
        return ParquetReferences(document, own)
    try:
        return load_lazily(_read(document, own))
    except (FileNotFoundError, IsADirectoryError):  # references in Parquet may have any name
        fs, root = url_to_fs(document, **own)
        if not fs.exists(f"{root.rstrip('/')}/.zmetadata"):
            raise
        return ParquetReferences(document, own)


def _read(document: str, own: Mapping[str, Any]) -> bytes:
    """Return a document, decompressed."""
    with open_file(document, "rb", **own) as file:
        data: bytes = file.read(_MOST_BYTES + 1)
    for magic, name in _COMPRESSED.items():
        if data.startswith(magic):
            if name not in compr:
                raise MissingDependencyError(
                    f"references in {document} are compressed by {name}: install zstandard."
                )
            data = compr[name](io.BytesIO(data), mode="rb").read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise StoreError(
            f"references in {document} have more than {_MOST_BYTES} bytes: write them in Parquet."
        )
    return data


def _written_out(
    document: Mapping[str, Any], overrides: Mapping[str, str], name: str
) -> Mapping[str, Any]:
    """Return the references of a document without templates and generators."""
    version = document.get("version")
    if version is None:
        if isinstance(document.get("refs"), Mapping):
            raise ValueError("'refs' in a document without 'version', expected 1")
        return document
    if version != 1:
        raise ValueError(f"version {version!r}, expected 1")
    what = "templates"
    try:
        templates = _templates({**document.get("templates", {}), **overrides})
        what = "refs"
        found: Mapping[str, Any] = document.get("refs", {})
        if templates:
            found = {key: _at_place(value, templates) for key, value in found.items()}
        what = "gen"
        if generated := dict(_generated(document.get("gen", []), templates)):
            found = {**found, **generated}
    except ValueError as error:
        raise StoreError(
            f"references in {name} have {what!r} that are not understood ({error}). zarr_dask runs "
            "no programs of their author: expected texts and, in {{ }}, names, numbers, and + - * "
            "// % of them. Make the references anew with all written out; fsspec does it, if you "
            "trust them, by ReferenceFileSystem(..., simple_templates=False).save_json(...)."
        ) from error
    return found


def _templates(texts: Mapping[str, str]) -> dict[str, str | Template]:
    parsed = {name: Template.of(text) for name, text in texts.items()}
    return {name: texts[name] if one.is_plain else one for name, one in parsed.items()}


def _at_place(value: Any, templates: Mapping[str, str | Template]) -> Any:
    """Return a reference with its URL written out."""
    if isinstance(value, list) and value and isinstance(value[0], str) and "{{" in value[0]:
        return [Template.of(value[0]).render(templates), *value[1:]]
    return value


def _generated(
    generators: list[Mapping[str, Any]], templates: Mapping[str, str | Template]
) -> Iterator[tuple[str, list[Any]]]:
    """Yield keys and places that generators make."""
    dimensions = [
        {name: _values(of) for name, of in one["dimensions"].items()} for one in generators
    ]
    count = sum(prod(map(len, one.values())) for one in dimensions)
    if count > _MOST_GENERATED:
        raise ValueError(f"{count} references, expected at most {_MOST_GENERATED}")
    for one, ranges in zip(generators, dimensions, strict=True):
        if both := {*ranges} & {*templates}:
            raise ValueError(f"{min(both)!r} is a dimension and a template")
        if ("offset" in one) != ("length" in one):
            raise ValueError("one of offset and length, expected both")
        key, url = Template.of(one["key"]), Template.of(one["url"])
        bounds = [Template.of(str(one[name])) for name in ("offset", "length") if name in one]
        for values in product(*ranges.values()):
            names = {**templates, **dict(zip(ranges, values, strict=True))}
            yield key.render(names), [url.render(names), *(int(b.render(names)) for b in bounds)]


def _values(of: Any) -> range | list[int | str]:
    """Return the values of a dimension."""
    if isinstance(of, list) and all(isinstance(value, int | str) for value in of):
        return of
    return range(of.get("start", 0), of["stop"], of.get("step", 1))
