"""OME-Zarr, the format of bioimaging: metadata of versions 0.4 and 0.5, and their rules.

`model` holds metadata as values, `rules` and `validate` say what breaks the specification.
"""

from zarr_dask.ome.model import Metadata, detect_version, from_attributes
from zarr_dask.ome.rules import Violation
from zarr_dask.ome.validate import validate, validate_attributes

__all__ = [
    "Metadata",
    "Violation",
    "detect_version",
    "from_attributes",
    "validate",
    "validate_attributes",
]
