"""The configuration of a codec in metadata, as its class reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zarr_dask._util.json_fields import FieldReader
from zarr_dask._util.warnings import warn
from zarr_dask.errors import MetadataError, ValidationProblem

__all__ = ["PREFIX", "CodecConfig", "ParseContext", "StrictParseContext"]

PREFIX = "numcodecs."
"""Start of the names that v3 metadata has for codecs of numcodecs."""


@dataclass(frozen=True, slots=True)
class ParseContext:
    """The source of stored codec metadata, which may have older spellings, with a warning."""

    at: str
    """The location of the metadata, for messages."""
    ndim: int
    """Number of dimensions of the codec's input."""

    def warn(self, message: str) -> None:
        """Warn of a problem with metadata that is read nevertheless."""
        warn(f"{self.at}: {message}")


@dataclass(frozen=True, slots=True)
class StrictParseContext(ParseContext):
    """Raises for metadata that would be read with a warning, if it is read only once."""

    def warn(self, message: str) -> None:
        """Raise for the metadata.

        Raises
        ------
        MetadataError
            Always.
        """
        raise MetadataError.of(self.at, [ValidationProblem("", message, "nothing to warn of")])


class CodecConfig(FieldReader):
    """The configuration of a codec.

    Parameters
    ----------
    members, place
        See `FieldReader`.
    name
        Name of the codec in the metadata.
    stored
        Its source; None for a user's value.
    """

    def __init__(
        self,
        members: Mapping[str, Any],
        place: str = "configuration",
        name: str = "",
        stored: ParseContext | None = None,
    ) -> None:
        super().__init__(members, place)
        self.name = name
        self.stored = stored

    @property
    def id(self) -> str:
        """Name of the codec in numcodecs."""
        return self.name.removeprefix(PREFIX)
