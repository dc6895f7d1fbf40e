"""Storage options of pixel arrays: chunks, shards and codecs, by names of axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["TargetLayout"]


@dataclass(frozen=True)
class TargetLayout:
    """New storage options of pixel arrays; None to leave an option unchanged."""

    chunks: Any
    shards: Any
    codecs: Any

    @property
    def is_asked_for(self) -> bool:
        """True if anything changes."""
        return any(one is not None for one in (self.chunks, self.shards, self.codecs))

    def check_axes(self, axes: set[str]) -> None:
        """Raise if an option names an axis that no image has.

        Raises
        ------
        ValueError
            If there is such an axis; the message names it.
        """
        for what, given in (("chunks", self.chunks), ("shards", self.shards)):
            named = [*given] if isinstance(given, Mapping) else []
            unknown = [str(key) for key in named if key not in axes and not isinstance(key, int)]
            if unknown:
                raise ValueError(
                    f"{what}={given!r}: no image has an axis {' or '.join(unknown)}; there are "
                    f"{', '.join(sorted(axes))}."
                )

    def of(self, axes: Sequence[str]) -> TargetLayout:
        """Return the options for an image with these axes, by position."""
        return replace(self, chunks=_at(self.chunks, axes), shards=_at(self.shards, axes))


def _at(given: Any, axes: Sequence[str]) -> Any:
    """Return lengths by position, without axes that do not exist."""
    if not isinstance(given, Mapping):
        return given
    at = {name: position for position, name in enumerate(axes)}
    named = {at.get(name, name): length for name, length in given.items()}
    return {key: length for key, length in named.items() if isinstance(key, int)} or None
