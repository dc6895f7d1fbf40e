"""Datasets as arrays: values as they are stored, and what describes them.

xarray itself encodes: its coders make numbers of times, masks, scales and texts. What is left is
to say how its ``encoding`` and attributes become metadata, as its own Zarr backend does: in v3 the
fill value is a field and the masked value the attribute ``_FillValue``; in older formats one is the
other.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Number
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from xarray import conventions
from xarray.backends.zarr import FillValueCoder, encode_zarr_attr_value, encode_zarr_variable
from xarray.coding.strings import check_vlen_dtype

from zarr_dask._util.keywords import closest
from zarr_dask._util.warnings import warn
from zarr_dask.array.create import ArraySpec
from zarr_dask.codecs.registry_numcodecs import is_object_codec
from zarr_dask.dtypes.base import Casting
from zarr_dask.errors import DatasetMismatchError, DataTypeError, GridError, MetadataError
from zarr_dask.formats.base import Format
from zarr_dask.formats.documents import attribute_hint, dump_json
from zarr_dask.formats.translate import names_problems
from zarr_dask.jobs.engine.map_regions import is_dask
from zarr_dask.jobs.engine.plan import pluralize
from zarr_dask.xarray.check_values import (
    check_kinds,
    in_calendar,
    in_range,
    texts_in_length,
    times_in_range,
    whole_numbers,
)
from zarr_dask.xarray.elements import TAKES_FORMAT

if TYPE_CHECKING:
    import dask.array as da

__all__ = ["EncodedDataset", "array_spec", "encode_dataset", "values_of"]

_CODECS = ("filters", "serializer", "compressors")
_KNOWN = {*_CODECS, "chunks", "shards", "chunk_key_encoding", "write_empty_chunks"}
_IGNORED = {"cache_metadata", "write_empty_chunks", "preferred_chunks"}
_OF_NETCDF = {
    "chunksizes": "chunks",
    **dict.fromkeys(
        ("complevel", "compression", "compression_opts", "compressor", "shuffle", "zlib"),
        "compressors",
    ),
    **dict.fromkeys(
        ("least_significant_digit", "quantize_mode", "significant_digits"),
        "filters",
    ),
    "scale": "scale_factor",
    "offset": "add_offset",
}
"""Keys of encodings for NetCDF, and those for Zarr."""
_NO_NAME = "__values__"
"""Name in the store of a variable without one, as xarray has it."""
_LARGEST_BLOCK = 64 << 20  # bytes of a variable in memory that one task writes


@dataclass(frozen=True)
class EncodedDataset:
    """A dataset as it is stored."""

    variables: Mapping[str, xr.Variable]
    """Encoded values, with the attributes to store."""
    attributes: Mapping[str, Any]
    """Attributes of the group."""


def encode_dataset(
    dataset: xr.Dataset,
    node_format: Format,
    encoding: Mapping[str, Mapping[str, Any]] | None = None,
    stored: Mapping[str, xr.Variable] | None = None,
    *,
    casting: Casting = "safe",
) -> EncodedDataset:
    """Encode the variables of a dataset.

    Parameters
    ----------
    dataset
        The dataset.
    node_format
        Format of the group.
    encoding
        Encodings by variable, in place of those that the variables have.
    stored
        Variables that exist already; others of the same name are encoded as these are.
    casting
        ``"unsafe"`` to write numbers that the encoding cannot hold, as others.

    Raises
    ------
    DatasetMismatchError
        If values cannot be held by the encoding.
    KeyError
        If there are encodings of other variables.
    DataTypeError
        If an attribute of the dataset is nothing that JSON has.
    TypeError, ValueError
        If a variable has a name that no array can have.
    """
    stored = stored or {}
    _check_names(dataset)
    _check_dims(dataset)
    _check_dtypes(dataset)
    variables, attributes = conventions.encode_dataset_coordinates(dataset)
    variables = {_NO_NAME if name is None else name: one for name, one in variables.items()}
    attributes = dict(attributes)
    for name, given in (encoding or {}).items():
        if name not in variables:
            raise KeyError(f"encoding= names {name!r}, which is no variable of the dataset.")
        variables[name] = variables[name].copy(deep=False)
        variables[name].encoding = given  # xarray makes a dict of it
    for name, variable in stored.items():
        if name in variables:
            if casting != "unsafe":
                check_kinds(name, variables[name], variable)
                variables[name] = whole_numbers(name, variables[name], variable)
            variables[name] = variables[name].copy(deep=False)
            variables[name].encoding = dict(variable.encoding)
    if casting != "unsafe":
        variables = {
            name: texts_in_length(str(name), in_range(str(name), one))
            for name, one in variables.items()
        }
    options: dict[str, Any] = {}
    if TAKES_FORMAT:
        options["zarr_format"] = 2 if _is_older(node_format) else 3
    with warnings.catch_warnings():
        if stored:  # `check_encoded` refuses what this warns of
            warnings.filterwarnings("ignore", "Time[a-z]* can't be serialized faithfully")
        encoded = {
            str(name): _encoded(str(name), in_calendar(str(name), one), options)
            for name, one in variables.items()
        }
    if casting != "unsafe":
        encoded = {
            name: times_in_range(name, variables[name], one) for name, one in encoded.items()
        }
    return EncodedDataset(encoded, _as_json(attributes, "the dataset"))


def _encoded(name: str, variable: xr.Variable, options: Mapping[str, Any]) -> xr.Variable:
    """Return a variable as xarray encodes it; its errors do not name the variable."""
    _tell_missing_texts(name, variable)
    try:
        encoded: xr.Variable = encode_zarr_variable(
            _loaded_if_empty(variable), name=name, **options
        )
    except (KeyError, OverflowError, ValueError) as error:
        words = str(error) if not isinstance(error, KeyError) else f"xarray does not know {error}"
        raise DatasetMismatchError(
            f"the variable {name!r} cannot be encoded: {words.rstrip('.')}. Its encoding is "
            f"{dict(variable.encoding)}."
        ) from error
    except TypeError as error:  # xarray scales integers in place, for one
        packing = [variable.encoding.get(key) for key in ("scale_factor", "add_offset")]
        is_packed = any(isinstance(number, Number) for number in packing)
        is_whole = variable.dtype.kind in "biu"
        hint = " Convert it first: astype(float)." if is_packed and is_whole else ""
        raise DataTypeError(
            f"the variable {name!r} of {variable.dtype} cannot be encoded: "
            f"{str(error).rstrip('.')}. Its encoding is {dict(variable.encoding)}.{hint}"
        ) from error
    return encoded


def _tell_missing_texts(name: str, variable: xr.Variable) -> None:
    """Warn of missing values among texts, of which xarray makes empty ones."""
    if variable.dtype != object or is_dask(variable.data):
        return
    missing = int(variable.isnull().sum())
    if missing and any(isinstance(one, str | bytes) for one in variable.to_numpy().flat):
        warn(
            f"the variable {name!r} has {pluralize(missing, 'missing value')} among its texts, "
            "which are stored as empty ones: texts have no missing value. Fill them first, as in "
            "fillna('none')."
        )


def _as_json(attributes: Mapping[Any, Any], owner: str) -> dict[str, Any]:
    """Return attributes as JSON has them; those of a group are written last, and refused here."""
    found = {str(name): _attribute(value) for name, value in attributes.items()}
    for name, value in found.items():
        try:
            dump_json({name: value})
        except (TypeError, ValueError) as error:
            raise DataTypeError(
                f"Invalid attribute in Dataset.attrs. {name!r} of {owner}: {error}. Attributes are "
                f"strings, numbers, booleans, None, lists and dicts{attribute_hint(value)}."
            ) from error
    return found


def _check_names(dataset: xr.Dataset) -> None:
    for name in dataset.variables:
        if name is not None and not isinstance(name, str):
            raise TypeError(
                f"the name of the variable {name!r} must be a string or None, to be that of an "
                "array in a group; rename it."
            )
        if name is not None and "/" in name:
            raise ValueError(
                f"the name of the variable {name!r} has a '/' in it, and would be that of an array "
                "in another group; rename it, or write a DataTree."
            )
        if not name and name is not None:
            raise ValueError(
                f"the name of a variable is {name!r}; a string must be length 1 or more to be that "
                "of an array in a group."
            )


def _check_dims(dataset: xr.Dataset) -> None:
    for dim in dataset.dims:
        if not isinstance(dim, str):
            raise TypeError(f"the name of the dimension {dim!r} must be a string; rename it.")


def _check_dtypes(dataset: xr.Dataset) -> None:
    for name, variable in dataset.variables.items():
        if not isinstance(variable.dtype, np.dtype):
            raise DataTypeError(
                f"the variable {name!r} is of the pandas type {variable.dtype}, which Zarr "
                "does not have; convert it first: astype(str) for categories, astype(float) for "
                "numbers with missing values."
            )


def _loaded_if_empty(variable: xr.Variable) -> xr.Variable:
    return variable.load() if variable.size == 0 else variable


def array_spec(
    name: str,
    variable: xr.Variable,
    node_format: Format,
    *,
    is_asked: bool,
    chunks: Any = None,
    shards: Any = None,
    codecs: Any = None,
) -> tuple[ArraySpec, dict[str, Any]]:
    """Describe the new array of an encoded variable, also by keywords of zarr-python.

    Parameters
    ----------
    name, variable
        The variable.
    node_format
        Format of the array.
    is_asked
        True if the user gave the encoding; what a variable brings along is left out where it does
        not fit.
    chunks, shards, codecs
        What the user gave besides; they come before the encoding.

    Raises
    ------
    DataTypeError
        If an attribute is nothing that JSON has.
    MetadataError
        If the format keeps the names of dimensions in an attribute that the variable has.
    ValueError
        If the user gave an encoding that Zarr does not have.
    """
    encoding = dict(variable.encoding)
    attributes = dict(variable.attrs)
    fill = _fill_value(name, variable, attributes, encoding, node_format)
    problems = list(names_problems(attributes, list(map(str, variable.dims)), node_format))
    if problems:
        raise MetadataError.of(f"the variable {name!r}", problems)
    if encoding.pop("_FillValue", None) is not None:
        raise ValueError(f"{name!r} has a _FillValue in its encoding, which was not applied.")
    if is_asked:
        unknown = [key for key in encoding if key not in _KNOWN | _IGNORED]
        if unknown:
            near = {key: _OF_NETCDF.get(key, closest(key, _KNOWN)) for key in unknown}
            meant = {f"{found!r} for {key!r}" for key, found in near.items() if found}
            hint = f" Use {' and '.join(sorted(meant))}." if meant else ""
            raise ValueError(
                f"unexpected encoding of {name!r}: {unknown}; Zarr has {sorted(_KNOWN)}, and the "
                f"fill value of v2 is _FillValue.{hint}"
            )
    else:
        encoding = _fitting(encoding, variable, node_format)
    in_memory = variable.chunks is None
    keywords = {key: encoding[key] for key in _CODECS if key in encoding}
    if codecs is not None:
        keywords = {}
    elif "compressors" not in keywords:
        keywords["compressors"] = [_BLOSC if _is_older(node_format) else _ZSTD]
    keywords["chunk_key_encoding"] = encoding.get("chunk_key_encoding")
    grid = chunks if chunks is not None else encoding.get("chunks")
    spec = ArraySpec(
        shape=None,
        dtype=_data_type(name, variable),
        chunks="auto" if grid is None and in_memory else _as_cells("chunks", grid, name, variable),
        shards=_as_cells(
            "shards", shards if shards is not None else encoding.get("shards"), name, variable
        ),
        codecs=codecs,
        fill_value=fill,
        dimension_names=tuple(map(str, variable.dims))
        if variable.ndim or _is_older(node_format)
        else None,
        attributes=_as_json(attributes, f"the variable {name!r}"),
        format=node_format.name,
        allow_nan=True,  # as xarray has it: files of NetCDF often say so in missing_value
    )
    return spec, {
        key: value for key, value in keywords.items() if value is not None or key in _CODECS
    }


# compressors that xarray's own backend gets from zarr-python
_BLOSC = {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}
_ZSTD = {"name": "zstd", "configuration": {"level": 0, "checksum": False}}


def _attribute(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray) and value.dtype.kind in "mM":
        return value  # refused later; xarray makes integers of times in nanoseconds
    return encode_zarr_attr_value(value)  # type: ignore[no-untyped-call]


def _is_older(node_format: Format) -> bool:
    """True if the fill value of an array is the missing value of its variable."""
    return node_format.names_attribute is not None


def _fill_value(
    name: str,
    variable: xr.Variable,
    attributes: dict[str, Any],
    encoding: dict[str, Any],
    node_format: Format,
) -> Any:
    """Return the fill value of an array, and leave the attribute that goes with it."""
    if _is_older(node_format):
        return attributes.pop("_FillValue", None)
    fill = encoding.pop("fill_value", None)
    if fill is None and variable.dtype.kind == "f":
        fill = np.nan
    masked = attributes.pop("_FillValue", None)
    if masked is not None:
        _check_can_be_masked(name, variable, masked)
        try:
            attributes["_FillValue"] = FillValueCoder.encode(masked, variable.dtype)
        except (TypeError, ValueError) as error:
            raise DataTypeError(
                f"the variable {name!r} is stored as {variable.dtype}, which cannot have the "
                f"_FillValue {masked!r} of its encoding ({error}). Leave it out, or give one of "
                "this type."
            ) from error
    return 0 if fill is None else fill


def _check_can_be_masked(name: str, variable: xr.Variable, masked: Any) -> None:
    """Raise if xarray would write a ``_FillValue`` with which it cannot open the dataset."""
    if variable.dtype.kind in "US":
        raise DataTypeError(
            f"the variable {name!r} is stored as {variable.dtype}, whose _FillValue {masked!r} "
            "xarray cannot read in v3. Leave it out of the encoding, or pass format='v2'."
        )


def _fitting(
    encoding: dict[str, Any], variable: xr.Variable, node_format: Format
) -> dict[str, Any]:
    """Return what fits of the encoding that a variable has from where it was read."""
    shape = variable.shape
    kept = {key: value for key, value in encoding.items() if key in _KNOWN}
    chunks, shards = kept.get("chunks"), kept.get("shards")
    if not _fits(chunks, shape):
        kept.pop("chunks", None)
        kept.pop("shards", None)
    elif shards is not None and not (
        node_format.has_shards and _fits(shards, shape) and _divides(chunks, shards)
    ):
        kept.pop("shards")
    if not all(_is_codec_of(kept.get(key), node_format) for key in _CODECS):
        for key in _CODECS:
            kept.pop(key, None)
    if variable.dtype != object and any(map(_is_of_objects, _items(kept.get("filters")))):
        del kept["filters"]  # xarray makes texts of fixed length of those of StringDType in v2
    if _is_older(node_format):
        kept.pop("serializer", None)
    if "chunk_key_encoding" in kept and kept["chunk_key_encoding"] is None:
        del kept["chunk_key_encoding"]
    return kept


def _fits(cells: Any, shape: tuple[int, ...]) -> bool:
    if isinstance(cells, int | np.integer):
        return int(cells) > 0
    if not isinstance(cells, list | tuple) or len(cells) != len(shape):
        return False
    if any(isinstance(one, float) for one in cells):  # no array that was read has such chunks
        raise TypeError(f"chunks in an encoding are integers, got {list(cells)}.")
    return all(
        sum(one) == length and all(size > 0 for size in one)
        if isinstance(one, list | tuple)
        else isinstance(one, int | np.integer) and one > 0
        for one, length in zip(cells, shape, strict=True)
    )


def _divides(chunks: Any, shards: Any) -> bool:
    if not (isinstance(chunks, list | tuple) and isinstance(shards, list | tuple)):
        return False
    if any(isinstance(one, list | tuple) for one in chunks):
        return False
    return all(
        size % inner == 0
        for inner, outer in zip(chunks, shards, strict=True)
        for size in (outer if isinstance(outer, list | tuple) else (outer,))
    )


def _is_codec_of(codecs: Any, node_format: Format) -> bool:
    """True if codecs are of a format: those of v3 have a name, those of v2 an identifier."""
    has_name = not _is_older(node_format)
    for item in _items(codecs):
        if item is None or (isinstance(item, str) and item == "auto"):
            continue
        is_v3 = ("name" in item) if isinstance(item, Mapping) else hasattr(item, "to_dict")
        if is_v3 != has_name:
            return False
    return True


def _items(codecs: Any) -> list[Any]:
    return list(codecs) if isinstance(codecs, list | tuple) else [codecs]


def _is_of_objects(codec: Any) -> bool:
    return hasattr(codec, "get_config") and is_object_codec(codec.get_config())


def _as_cells(option: str, given: Any, name: str, variable: xr.Variable) -> Any:
    if isinstance(given, list | tuple) and len(given) != variable.ndim:
        raise GridError(
            f"{option}={given!r} of the variable {name!r}: expected a length for each of its "
            f"dimensions {list(variable.dims)}. A mapping gives lengths by name, as "
            "{'time': 24}, or by variable, as {'t': {'time': 24}}."
        )
    number = isinstance(given, int | np.integer) and not isinstance(given, bool)
    return (int(given),) * variable.ndim if number else given


def _data_type(name: str, variable: xr.Variable) -> Any:
    kind = check_vlen_dtype(variable.dtype)  # type: ignore[no-untyped-call]
    if kind is str or variable.dtype.kind == "T":
        return "string"
    if kind is bytes:
        return "bytes"
    if variable.dtype == object:
        raise DataTypeError(
            f"the variable {name!r} holds Python objects that are neither texts nor byte strings; "
            "convert it with astype."
        )
    return variable.dtype


def values_of(variable: xr.Variable) -> da.Array:
    """Return the values of an encoded variable as a dask array.

    Values in memory become blocks of their own: they are planned, checked and written as others.

    Raises
    ------
    GridError
        If they are in blocks, but no dask array.
    """
    import dask.array as da

    if variable.chunks is not None:
        data: Any = variable.data
        if not isinstance(data, da.Array):
            raise GridError(f"expected dask arrays, got blocks of {type(data).__name__}.")
        return data.astype(object) if data.dtype.kind == "T" else data
    values = np.asarray(variable.values)
    if values.dtype.kind == "T":
        values = values.astype(object)
    blocks: Any = -1
    if values.dtype != object and values.nbytes > _LARGEST_BLOCK:
        blocks = "auto"
    return da.from_array(values, chunks=blocks)
