"""Report of `zarr_dask.verify`: as text, as JSON, as a plot.

`VerifyReport.to_json` is stable: members are added, never renamed or removed, as long as
``"verify_version"`` is 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from zarr_dask._util.display import InWords
from zarr_dask._util.lazy_names import hides
from zarr_dask.errors import MissingDependencyError
from zarr_dask.grid.grid import Shape
from zarr_dask.jobs.engine.plan import LISTED, format_bytes, more_line, pluralize
from zarr_dask.jobs.engine.prices import Measured, Traffic
from zarr_dask.jobs.verify.object_states import ObjectStates
from zarr_dask.jobs.verify.scan import STATES, Depth, Finding, State

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ArrayReport", "VerifyReport"]

_SYMBOLS = "#o.TCX"
"""One letter for each of `STATES`."""
_COLOURS = ("#44aa77", "#bbddcc", "#f0f0f0", "#ddaa33", "#cc6677", "#882255")
_MAP_ROWS, _MAP_COLUMNS = 16, 64
_SHOWN = 20
_MOST_PANELS = 12


@dataclass(frozen=True, eq=False)
class ArrayReport:
    """The stored objects of one array."""

    path: str
    where: str
    shape: Shape
    counts: Shape
    """Stored objects along each dimension."""
    found: ObjectStates = field(repr=False)
    """State of each stored object."""
    chunks: Mapping[State, int]
    """Chunks inside shards by state; empty if there are no shards."""
    nbytes: int
    """Bytes stored."""
    unpublished: int = 0
    """Stored objects of steps that an open output (`zarr_dask.Writer`) has not published yet."""

    @property
    def states(self) -> np.ndarray:
        """Index in `STATES` of each stored object, in the shape `counts`."""
        return self.found.codes()

    @property
    def objects(self) -> dict[State, int]:
        """Stored objects by state."""
        return dict(zip(STATES, self.found.tally(), strict=True))

    @property
    def ok(self) -> bool:
        """True if no stored object is damaged."""
        return not any(self.objects[state] for state in STATES[3:])

    def heat_map(self, rows: int = _MAP_ROWS, columns: int = _MAP_COLUMNS) -> str:
        """Return a text map of the stored objects; a letter shows the worst state it covers.

        ``#`` ok, ``o`` empty on purpose, ``.`` absent, ``T`` torn, ``C`` checksum, ``X``
        undecodable. The map shows the last two dimensions, with the others overlaid.
        """
        image = self.found.image(rows, columns)
        return "\n".join("".join(_SYMBOLS[state] for state in row) for row in image.tolist())

    def to_json(self) -> dict[str, Any]:
        """Return strict JSON values."""
        return {
            "path": self.path,
            "shape": list(self.shape),
            "grid": list(self.counts),
            "objects": self.objects,
            "chunks": dict(self.chunks),
            "stored_bytes": self.nbytes,
            "unpublished": self.unpublished,
        }


@hides("exit_code", "traffic_lines", "traffic_to_json")
@dataclass(frozen=True, repr=False)
class VerifyReport(Measured, InWords):
    """Result for everything below a location; made by `zarr_dask.verify`.

    ``bool(report)`` is `ok`, so that ``if zd.verify(url):`` means what it says.
    """

    where: str
    """Store and path."""
    deep: Depth
    arrays: tuple[ArrayReport, ...]
    findings: tuple[Finding, ...]
    """Problems by path and key; the first ten thousand."""
    counts: Mapping[str, int]
    """Number of findings of each kind, including those not named."""
    listed: bool = True
    """True if the store can list its keys; without listing, orphans cannot be found."""
    swept: int = 0
    """Number of temporary files that were removed."""
    claims: tuple[str, ...] = ()
    """Descriptions of the claims of dead jobs that were removed."""
    leftovers: int = 0
    """Number of temporary files of processes that have died, which ``sweep=True`` removes; not a
    problem."""
    receipts: bool = False
    """True if receipts of jobs tell which absent objects were lost."""
    traffic: Traffic = field(default_factory=Traffic, compare=False)
    """Time and requests."""

    def __bool__(self) -> bool:
        return self.ok

    @property
    def present(self) -> int:
        """Stored objects that exist, damaged ones included."""
        objects = self.objects
        return sum(objects.values()) - objects["empty"] - objects["absent"]

    @property
    def ok(self) -> bool:
        """True if nothing is wrong."""
        return not self.counts and all(array.ok for array in self.arrays)

    @property
    def exit_code(self) -> int:
        """Exit code of the command: 0 only if nothing is wrong."""
        return 0 if self.ok else 1

    @property
    def objects(self) -> dict[State, int]:
        """Stored objects of all arrays, by state."""
        return {s: sum(array.objects[s] for array in self.arrays) for s in STATES}

    @property
    def unpublished(self) -> int:
        """Stored objects of steps that open outputs have not published yet; not a problem."""
        return sum(array.unpublished for array in self.arrays)

    @property
    def chunks(self) -> dict[State, int]:
        """Chunks inside shards of all arrays, by state."""
        return {s: sum(array.chunks.get(s, 0) for array in self.arrays) for s in STATES}

    def to_json(self) -> dict[str, Any]:
        """Return strict JSON values.

        Returns
        -------
        dict
            ``verify_version`` (1), ``where``, ``deep``, ``ok``, ``listed``, ``swept`` and
            ``leftovers`` (numbers), ``claims`` (texts), ``objects`` and ``chunks`` (numbers by
            state), ``unpublished`` (a number), ``counts`` (findings by kind), ``seconds``,
            ``requests`` (numbers by kind), ``retried``, ``waited``, ``arrays`` and
            ``findings`` (lists of objects).
        """
        return {
            "verify_version": 1,
            "where": self.where,
            "deep": self.deep,
            "ok": self.ok,
            "listed": self.listed,
            "swept": self.swept,
            "claims": list(self.claims),
            "leftovers": self.leftovers,
            "objects": self.objects,
            "chunks": self.chunks,
            "unpublished": self.unpublished,
            "counts": dict(self.counts),
            **self.traffic_to_json(),
            "arrays": [array.to_json() for array in self.arrays],
            "findings": [
                {
                    "kind": one.kind,
                    "path": one.path,
                    "key": one.key,
                    "coords": [list(coords) for coords in one.coords],
                    "reason": one.reason,
                }
                for one in self.findings
            ],
        }

    def __str__(self) -> str:
        nbytes = format_bytes(sum(array.nbytes for array in self.arrays))
        lines = [
            f"verify {self.where}: {pluralize(self.present, 'stored object')} present; "
            f"{self._depth()}",
            f"  {pluralize(len(self.arrays), 'array')}, {nbytes}; "
            f"objects: {_numbers(self.objects)}",
        ]
        if any(self.chunks.values()):
            lines.append(f"  chunks in shards: {_numbers(self.chunks)}")
        if self.unpublished:
            lines.append(
                f"  {pluralize(self.unpublished, 'stored object')} of steps that an open output "
                "has not published yet"
            )
        if self.leftovers:
            lines.append(
                f"  {pluralize(self.leftovers, 'temporary file')} of processes that have died; "
                "sweep=True removes them"
            )
        lines += self.traffic_lines()
        damaged = [array for array in self.arrays if not array.ok]
        for array in damaged[:LISTED]:
            lines.append(f"  {array.path or '/'}: {_numbers(array.objects)}")
            lines.extend(f"    {row}" for row in array.heat_map().splitlines())
        lines += more_line(len(damaged), "damaged array")
        lines.extend(f"  {finding}" for finding in self.findings[:_SHOWN])
        more = sum(self.counts.values()) - min(len(self.findings), _SHOWN)
        if more > 0:
            lines.append(f"  and {more:,} more")
        if not self.listed:
            lines.append("  the store cannot list: keys that belong to nothing are not known")
        if self.swept:
            lines.append(f"  {pluralize(self.swept, 'temporary file')} removed")
        lines += [f"  {claim} of a job that has died was removed" for claim in self.claims]
        if self.objects["absent"] and not self.receipts:
            lines.append(
                f"  {pluralize(self.objects['absent'], 'object')} absent: without receipts "
                "(manifest=) lost objects cannot be told from those that were never written"
            )
        lines.append(f"  {self._verdict()}")
        return "\n".join(lines)

    def _depth(self) -> str:
        """Return a phrase that says how much of the stored objects was read."""
        if self.deep == "decode":
            return "every chunk decoded"
        if self.deep == "receipts":
            return "every byte compared with its receipt"
        hint = "deep='decode' reads them"
        if any(self.chunks.values()):
            return f"indices of shards read, chunks in them not ({hint})"
        return f"contents not read ({hint})"

    def _verdict(self) -> str:
        if not self.ok:
            return _numbers(self.counts) if self.counts else "damaged"
        return "nothing is wrong in what was read" if self.deep == "index" else "nothing is wrong"

    def plot(self) -> Figure:
        """Plot a heat map of the stored objects of at most twelve arrays, damaged ones first.

        Raises
        ------
        MissingDependencyError
            If matplotlib is not installed.
        """
        try:
            from matplotlib.colors import BoundaryNorm, ListedColormap
            from matplotlib.figure import Figure
            from matplotlib.patches import Patch
        except ImportError as error:
            raise MissingDependencyError(
                "plots need matplotlib: install zarr-dask[plots]."
            ) from error
        shown = sorted(self.arrays, key=lambda array: array.ok)[:_MOST_PANELS]
        columns = min(len(shown), 3) or 1
        rows = -(-len(shown) // columns) or 1
        figure = Figure(figsize=(4.2 * columns, 3.4 * rows + 0.8), layout="constrained")
        norm = BoundaryNorm(np.arange(len(STATES) + 1) - 0.5, len(STATES))
        axes = figure.subplots(rows, columns, squeeze=False).ravel()
        for axis, array in zip(axes, shown, strict=False):
            image = array.found.image(512, 512)
            axis.imshow(
                image, ListedColormap(_COLOURS), norm, interpolation="nearest", aspect="auto"
            )
            axis.set_title(array.path or "/", fontsize=9, loc="left")
            axis.set_xticks([])
            axis.set_yticks([])
        for axis in axes[len(shown) :]:
            axis.set_axis_off()
        patches = [Patch(color=c, label=s) for s, c in zip(STATES, _COLOURS, strict=True)]
        figure.legend(handles=patches, loc="outside lower center", ncols=len(STATES), frameon=False)
        figure.suptitle(f"{self.where}: stored objects")
        return figure


def _numbers(counts: Mapping[Any, int]) -> str:
    """Return numbers with their names as text, without zeros."""
    return ", ".join(f"{number:,} {name}" for name, number in counts.items() if number) or "none"
