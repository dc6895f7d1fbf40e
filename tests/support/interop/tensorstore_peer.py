"""Cases through tensorstore."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorstore as ts

from tests.support.interop import documents
from tests.support.interop.cases import Case
from tests.support.interop.seen import Seen

NAME = "tensorstore"
WRITES_ATTRIBUTES = ("v3",)


Place = Path | dict[str, Any]
"""A folder, or a store of keys and values as tensorstore describes it."""


def _spec(case: Case, path: Place) -> dict[str, Any]:
    driver = {"v3": "zarr3", "v2": "zarr"}[case.format]
    kvstore = path if isinstance(path, dict) else {"driver": "file", "path": f"{path}/"}
    return {"driver": driver, "kvstore": kvstore}


def create(case: Case, path: Place) -> ts.TensorStore:
    """Create the array of a case, with nothing written."""
    document = documents.v3_array(case) if case.format == "v3" else documents.v2_array(case)
    spec = _spec(case, path) | {"metadata": document}
    return ts.open(spec, create=True).result()


def write(case: Case, path: Place, values: np.ndarray[Any, Any]) -> None:
    """Create the array of a case and write the case's region of ``values``."""
    array = create(case, path)
    if case.region is not None:
        array[case.region].write(values[case.region]).result()


def read(case: Case, path: Place) -> Seen:
    """Open the array of a case and read all of it."""
    array = ts.open(_spec(case, path), open=True).result()
    values = np.asarray(array.read().result())
    metadata = array.spec().to_json()["metadata"]
    return Seen(
        values=values,
        dtype=array.dtype.numpy_dtype,
        fill=array.fill_value,
        # The v2 driver leaves ".zattrs" alone, and knows no dimension names.
        attributes=metadata.get("attributes", {}) if case.format == "v3" else None,
        dimension_names=_names(metadata),
    )


def _names(metadata: dict[str, Any]) -> tuple[str | None, ...] | None:
    names = metadata.get("dimension_names")
    return None if names is None else tuple(names)


def overwrite(
    case: Case, path: Place, region: tuple[slice, ...], values: np.ndarray[Any, Any]
) -> None:
    """Write a region of an array that exists."""
    ts.open(_spec(case, path), open=True).result()[region].write(values).result()
