"""Data types and values: names, JSON forms of scalars, bitwise comparison.

A `DataType` describes an element: its name in metadata, the NumPy type that holds it in memory, and
the JSON form of a single value. In memory a value always has the byte order of the machine; the
byte order on disk is up to a codec. The code is free of side effects and knows only the metadata of
data types.

=================  ===============================================================
`base`             `DataType`
`numbers`          bool, integers, floats, complex numbers; JSON forms of floats
`times`            datetimes and timedeltas
`fixed`            texts and bytes of a fixed length
`structs`          records of named fields
`variable`         texts, byte strings and objects without a fixed size
`named`            `data_type_of` and `data_type_from_v3`: from names to data types
`registry`         data types of other packages, by their names
`bits`             byte order and comparison of NumPy arrays
=================  ===============================================================
"""

from zarr_dask.dtypes.base import LARGEST_ITEM, VARIABLE_BYTES, DataType
from zarr_dask.dtypes.bits import (
    bits_of,
    full_of,
    is_full_of,
    is_small,
    leaves,
    native,
    parts_of_complex,
    swappable,
    value_bits,
    which_are_full_of,
)
from zarr_dask.dtypes.named import (
    CORE_NAMES,
    data_type_from_v3,
    data_type_of,
    scalar,
    v3_names,
)
from zarr_dask.dtypes.numbers import float_from_json, float_to_json
from zarr_dask.dtypes.structs import Struct
from zarr_dask.dtypes.variable import data_type_of_objects

__all__ = [
    "CORE_NAMES",
    "LARGEST_ITEM",
    "VARIABLE_BYTES",
    "DataType",
    "Struct",
    "bits_of",
    "data_type_from_v3",
    "data_type_of",
    "data_type_of_objects",
    "float_from_json",
    "float_to_json",
    "full_of",
    "is_full_of",
    "is_small",
    "leaves",
    "native",
    "parts_of_complex",
    "scalar",
    "swappable",
    "v3_names",
    "value_bits",
    "which_are_full_of",
]
