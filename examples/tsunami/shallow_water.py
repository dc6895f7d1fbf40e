"""Long waves over real topography: the linear shallow-water equations on an Arakawa C grid.

Pure NumPy; knows neither files nor Dask. The unknowns are the surface elevation at the cell
centres and the volumes that cross the west and the south face of each cell in one step::

    d(elevation)/dt = -div(depth * velocity)          d(velocity)/dt = -g grad(elevation)

on a sphere, stepped forward-backward (velocities from the old elevations, elevations from the new
velocities). That is second order, conserves volume to round-off and is stable while
``c dt sqrt(1/dx^2 + 1/dy^2) <= 1`` with ``c = sqrt(g depth)``: Sielecki (1968), "An
energy-conserving difference scheme for the storm surge equations", Mon. Weather Rev. 96, 150-156;
Kowalik and Murty (1993), "Numerical Modeling of Ocean Dynamics", World Scientific.

Coasts, and the north and east edges of the map, are walls: nothing crosses them and waves are
reflected. Waves leave through the west and the south edge, where the velocity is that of an
outgoing wave. Sea shallower than `SHALLOWEST` is deepened to that; nothing falls dry. The rotation
of the earth is neglected: the Rossby radius (400 km in 200 m of water) exceeds the map, and the run
is short compared with a day.

One step carries information over one cell. A rank that starts from its block and n cells around it
has, after n steps, the exact values of its block (`widened`, `assembled`, `recorded`): ranks
exchange states once per time slab, not once per step, and together give bit for bit the result of
one process.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

GRAVITY = 9.81
EARTH_RADIUS = 6.371e6
SHALLOWEST = 10.0
"""Metres; keeps the slowest wave at 10 m/s, so that it stays resolved by the grid."""
COURANT = 0.9
"""Fraction of the longest stable step that is used."""

Floats = np.ndarray[Any, np.dtype[np.float64]]
Floats32 = np.ndarray[Any, np.dtype[np.float32]]
Window = tuple[slice, slice]
"""Rows and columns of the grid, each with start and stop, step 1."""


@dataclass(frozen=True, slots=True)
class Sea:
    """The map of the simulation."""

    latitude: Floats
    """Degrees north of the cell centres, increasing."""
    longitude: Floats
    """Degrees east of the cell centres, increasing."""
    topography: Floats
    """Metres above sea level, (latitude, longitude)."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self.latitude), len(self.longitude)

    @property
    def water(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Mask of the sea."""
        return self.topography < 0

    @property
    def depth(self) -> Floats:
        """Metres of water at rest; 0 on land."""
        return np.where(self.water, np.maximum(-self.topography, SHALLOWEST), 0.0)

    def spacing(self) -> tuple[Floats, float]:
        """Return metres between cell centres: eastward for each row, northward."""
        degree = EARTH_RADIUS * np.pi / 180
        along = degree * (self.longitude[1] - self.longitude[0]) * np.cos(np.radians(self.latitude))
        return along, float(degree * (self.latitude[1] - self.latitude[0]))

    def longest_step(self) -> float:
        """Return the stability limit in seconds."""
        dx, dy = self.spacing()
        speed = np.sqrt(GRAVITY * self.depth)
        return float(1 / (speed * np.sqrt(1 / dx**2 + 1 / dy**2)[:, None]).max())

    def nearest(self, latitude: float, longitude: float) -> tuple[int, int]:
        """Return row and column of the nearest cell of water."""
        away = self._distance(latitude, longitude)
        row, column = np.unravel_index(np.where(self.water, away, np.inf).argmin(), self.shape)
        return int(row), int(column)

    def hump(self, latitude: float, longitude: float, height: float, width: float) -> Floats:
        """Return the elevation of a Gaussian hump of water, `width` metres standard deviation."""
        away = self._distance(latitude, longitude)
        return np.where(self.water, height * np.exp(-0.5 * (away / width) ** 2), 0.0)

    def _distance(self, latitude: float, longitude: float) -> Floats:
        degree = EARTH_RADIUS * np.pi / 180
        north = degree * (self.latitude - latitude)[:, None]
        east = degree * np.cos(np.radians(latitude)) * (self.longitude - longitude)[None, :]
        away: Floats = np.hypot(north, east)
        return away


def refined(latitude: Floats, longitude: Floats, topography: Floats, shape: tuple[int, int]) -> Sea:
    """Return the same map on `shape` cells, bilinear between the given points."""
    rows, columns = _centres(latitude, shape[0]), _centres(longitude, shape[1])
    along = np.stack([np.interp(columns, longitude, row) for row in topography])
    return Sea(
        rows, columns, np.stack([np.interp(rows, latitude, column) for column in along.T], axis=1)
    )


def _centres(points: Floats, n: int) -> Floats:
    size = (float(points[-1]) - float(points[0])) / n
    return float(points[0]) + size * (np.arange(n, dtype=np.float64) + 0.5)


@dataclass(frozen=True, slots=True)
class State:
    """The unknowns, all with the shape of a window."""

    elevation: Floats
    """Metres above rest."""
    east: Floats
    """Volume in m3 through the west faces in one step."""
    north: Floats
    """Volume in m3 through the south faces in one step."""

    @classmethod
    def at_rest(cls, elevation: Floats) -> State:
        """Return the state in which nothing moves yet."""
        return cls(elevation.copy(), np.zeros_like(elevation), np.zeros_like(elevation))

    def cut(self, window: Window) -> State:
        """Return the state of a window; not a copy."""
        return State(self.elevation[window], self.east[window], self.north[window])


@dataclass(frozen=True, slots=True)
class Rates:
    """Precomputed factors of a step, so that a step takes eleven passes over arrays."""

    east: Floats
    """m3 per metre of elevation difference across a west face; 0 at walls."""
    north: Floats
    """The same for south faces."""
    rise: Floats
    """Metres that one m3 raises a cell by, by row; shape (rows, 1)."""
    west_edge: Floats
    """m3 per metre of elevation that leave through the west edge, by row."""
    south_edge: Floats
    """m3 per metre of elevation that leave through the south edge, by column."""

    @classmethod
    def of(cls, sea: Sea, step: float, *, open_edges: bool = True) -> Rates:
        """Return rates for steps in seconds; without open edges all sides of the map are walls."""
        dx, dy = sea.spacing()
        depth, water = sea.depth, sea.water
        # A south face lies between two rows: its length is that of the latitude between them.
        face = np.concatenate([dx[:1], (dx[1:] + dx[:-1]) / 2])[:, None]
        east, north = np.zeros(sea.shape), np.zeros(sea.shape)
        east[:, 1:] = np.where(water[:, 1:] & water[:, :-1], (depth[:, 1:] + depth[:, :-1]) / 2, 0)
        north[1:] = np.where(water[1:] & water[:-1], (depth[1:] + depth[:-1]) / 2, 0)
        outgoing = step * np.sqrt(GRAVITY * depth) * open_edges
        return cls(
            east=GRAVITY * step**2 * dy / dx[:, None] * east,
            north=GRAVITY * step**2 * face / dy * north,
            rise=(1 / (dx * dy))[:, None],
            west_edge=dy * outgoing[:, 0],
            south_edge=face[0] * outgoing[0],
        )

    def cut(self, window: Window) -> Rates:
        """Return rates of a window. Its sides act as walls even inside the map: hence `widened`."""
        rows, columns = window
        west, south = self.west_edge[rows], self.south_edge[columns]
        return Rates(
            self.east[window],
            self.north[window],
            self.rise[rows],
            west if columns.start == 0 else np.zeros_like(west),
            south if rows.start == 0 else np.zeros_like(south),
        )


def blocks(shape: tuple[int, int], counts: tuple[int, int]) -> list[Window]:
    """ChunkRead the grid into `counts` equal blocks, one per rank."""
    (ny, by), (nx, bx) = ((n, -(-n // count)) for n, count in zip(shape, counts, strict=True))
    return [
        (slice(y, min(y + by, ny)), slice(x, min(x + bx, nx)))
        for y in range(0, ny, by)
        for x in range(0, nx, bx)
    ]


def widened(window: Window, cells: int, shape: tuple[int, int]) -> Window:
    """Return a window extended by `cells` on all sides, within the map."""
    rows, columns = (
        slice(max(s.start - cells, 0), min(s.stop + cells, n))
        for s, n in zip(window, shape, strict=True)
    )
    return rows, columns


def overlap(a: Window, b: Window) -> Window | None:
    """Return the intersection of two windows, or None."""
    rows, columns = (
        slice(max(s.start, t.start), min(s.stop, t.stop)) for s, t in zip(a, b, strict=True)
    )
    return (rows, columns) if rows.start < rows.stop and columns.start < columns.stop else None


def inside(window: Window, outer: Window) -> Window:
    """Return a window counted from the corner of another that contains it."""
    rows, columns = (
        slice(s.start - o.start, s.stop - o.start) for s, o in zip(window, outer, strict=True)
    )
    return rows, columns


def assembled(pieces: Iterable[tuple[Window, State]], window: Window) -> State:
    """Assemble the state of a window from pieces that cover it."""
    state = State.at_rest(np.zeros([s.stop - s.start for s in window]))
    for where, piece in pieces:
        into = state.cut(inside(where, window))
        into.elevation[...] = piece.elevation
        into.east[...] = piece.east
        into.north[...] = piece.north
    return state


def advanced(state: State, rates: Rates, steps: int) -> State:
    """Advance by `steps`; each step makes one more cell wrong at sides inside the map."""
    work = _Translation.of(state)
    work.advance(rates, steps)
    return work.state()


def recorded(
    start: State, window: Window, rates: Rates, block: Window, frames: int, steps: int
) -> tuple[State, Floats32]:
    """Advance a block by frames of `steps` steps; return its new state and each frame's elevation.

    `start` is the state of `window`: the block and a cell around it for every step. Each frame
    drops the cells that are no longer needed. `rates` are those of the whole map.
    """
    work = _Translation.of(start)
    own = work.cut(inside(block, window))
    kept = np.empty((frames, *own.z.shape), dtype=np.float32)
    for number, frame in enumerate(kept):
        needed = widened(block, (frames - number) * steps, rates.east.shape)
        work.cut(inside(needed, window)).advance(rates.cut(needed), steps)
        frame[...] = own.z
    return own.state(), kept


@dataclass(frozen=True, slots=True)
class _Translation:
    """A state in progress. Made once and then cut: allocating costs more here than computing."""

    z: Floats
    """Elevation."""
    u: Floats
    """Volumes through west faces, and through the east side: one column more than cells."""
    v: Floats
    """Volumes through south faces, and through the north side: one row more than cells."""
    scratch: Floats

    @classmethod
    def of(cls, state: State) -> _Translation:
        ny, nx = state.elevation.shape
        u, v = np.zeros((ny, nx + 1)), np.zeros((ny + 1, nx))
        u[:, :-1], v[:-1] = state.east, state.north
        return cls(state.elevation.copy(), u, v, np.empty((2, ny, nx)))

    def cut(self, window: Window) -> _Translation:
        """Return the work of a window; not a copy."""
        rows, columns = window
        faces = slice(columns.start, columns.stop + 1), slice(rows.start, rows.stop + 1)
        return _Translation(
            self.z[window],
            self.u[rows, faces[0]],
            self.v[faces[1], columns],
            self.scratch[:, rows, columns],
        )

    def state(self) -> State:
        return State(self.z.copy(), self.u[:, :-1].copy(), self.v[:-1].copy())

    def advance(self, rates: Rates, steps: int) -> None:
        for _ in range(steps):
            self._step(rates)

    def _step(self, rates: Rates) -> None:
        z, u, v, scratch = self.z, self.u, self.v, self.scratch
        slope = np.subtract(z[:, 1:], z[:, :-1], out=scratch[0, :, 1:])
        slope *= rates.east[:, 1:]
        u[:, 1:-1] -= slope
        slope = np.subtract(z[1:], z[:-1], out=scratch[0, 1:])
        slope *= rates.north[1:]
        v[1:-1] -= slope
        u[:, 0] = -rates.west_edge * z[:, 0]
        v[0] = -rates.south_edge * z[0]
        outflow = np.subtract(u[:, 1:], u[:, :-1], out=scratch[0])
        outflow += np.subtract(v[1:], v[:-1], out=scratch[1])
        outflow *= rates.rise
        z -= outflow
