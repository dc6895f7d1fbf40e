"""Ranks on a process cluster that compute a wave and write it in parallel.

Each rank owns a block of the map and lives on one worker, with its state. For every slab of time it
receives its halo from its neighbours, computes, and writes its block of the slab: a region of whole
stored objects, so that no two ranks write the same object and none waits for another. The driver
gathers the frames through Dask and lets zarr-python write them time-major.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from examples.tsunami import shallow_water as sw

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["DIMENSIONS", "FOREIGN_FRAMES", "FRAME_SECONDS", "RANKS", "Simulation", "simulate"]

FRAME_SECONDS = 15.0
FRAMES_PER_SLAB = 16
RANKS = (2, 2)
"""Number of blocks of the map from south to north, and from west to east."""
CHUNK = 64
"""Rows and columns of a chunk inside a shard, if they divide the blocks."""
FOREIGN_FRAMES = 4
DIMENSIONS = ("time", "lat", "lon")
HUMP = {"latitude": 48.40, "longitude": -125.35, "height": 2.0, "width": 12e3}

Water = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True)
class Simulation:
    """The simulated sea, and its division into frames and blocks."""

    sea: sw.Sea
    frames: int
    steps: int
    """Steps of the solver from one frame to the next."""

    @classmethod
    def of_topobathy(cls, frames: int, shape: tuple[int, int]) -> Simulation:
        """Simulate over matplotlib's sample topography: the Salish Sea, 48 to 50 degrees north."""
        from matplotlib.cbook import get_sample_data

        with np.load(get_sample_data("topobathy.npz", asfileobj=False)) as data:
            latitude, longitude, topography = (
                data[name].astype("float64") for name in ("latitude", "longitude", "topo")
            )
        sea = sw.refined(latitude, longitude - 360, topography, shape)
        return cls(sea, frames, math.ceil(FRAME_SECONDS / (sw.COURANT * sea.longest_step())))

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of the arrays: frames, rows, columns."""
        return (self.frames, *self.sea.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of each array, as float32."""
        return 4 * math.prod(self.shape)

    @property
    def seconds(self) -> sw.Floats:
        """Time of each frame after the start, in seconds."""
        return FRAME_SECONDS * np.arange(1.0, self.frames + 1)

    @property
    def blocks(self) -> list[sw.Window]:
        """Blocks of the map, one for each rank."""
        return sw.blocks(self.sea.shape, RANKS)

    @property
    def shards(self) -> tuple[int, int, int]:
        """Shape of a rank's part of a slab: one stored object."""
        rows, columns = self.blocks[0]
        return FRAMES_PER_SLAB, rows.stop, columns.stop

    @property
    def chunks(self) -> tuple[int, int, int]:
        """Chunk shape of the sharded array."""
        slab, rows, columns = self.shards
        return slab, math.gcd(rows, CHUNK), math.gcd(columns, CHUNK)

    @property
    def slabs(self) -> list[slice]:
        """Slabs of time."""
        starts = range(0, self.frames, FRAMES_PER_SLAB)
        return [slice(t, min(t + FRAMES_PER_SLAB, self.frames)) for t in starts]

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes of the arrays."""
        latitude, longitude = self.sea.latitude, self.sea.longitude
        return {
            "long_name": "sea surface elevation",
            "units": "m",
            "seconds_between_frames": FRAME_SECONDS,
            "first_and_last_latitude": [float(latitude[0]), float(latitude[-1])],
            "first_and_last_longitude": [float(longitude[0]), float(longitude[-1])],
        }


def simulate(
    job: Simulation, target: Path, foreign: Path, client: Any, advance: Callable[[int], object]
) -> None:
    """Write the simulation into `target`, through the ranks, and into `foreign`, by zarr-python.

    While the ranks compute a slab, the driver stores the one before. At most two are in flight,
    which bounds the memory of workers and driver. `advance` is called with the bytes of each slab.
    """
    ranks = _Ranks.start(job, _create(job, target), client)
    array = _create_foreign(job, foreign)
    before: tuple[slice, list[Any]] | None = None
    for slab in job.slabs:
        frames = ranks.advance(slab)
        if before is not None:
            advance(_store_foreign(job, array, client, *before))
        before = slab, frames
    if before is not None:
        advance(_store_foreign(job, array, client, *before))


def _create(job: Simulation, target: Path) -> str:
    """Create the array that the ranks share; return its path."""
    import zarr_dask as zd

    zd.create_array(
        target,
        shape=job.shape,
        dtype="float32",
        chunks=job.chunks,
        shards=job.shards,
        fill_value=math.nan,
        dimension_names=DIMENSIONS,
        attributes=job.attributes,
    )
    return str(target.absolute())


def _create_foreign(job: Simulation, target: Path) -> Any:
    import zarr
    from zarr.codecs import BloscCodec

    return zarr.create_array(
        target,
        shape=job.shape,
        dtype="float32",
        chunks=(min(FOREIGN_FRAMES, job.frames), *job.sea.shape),
        compressors=BloscCodec(cname="lz4", clevel=5, shuffle="shuffle"),
        fill_value=math.nan,
        dimension_names=DIMENSIONS,
        attributes=job.attributes,
    )


def _store_foreign(
    job: Simulation, foreign: Any, client: Any, slab: slice, frames: list[Any]
) -> int:
    """Assemble the blocks of a slab and let zarr-python write them; return the number of bytes."""
    whole = np.empty((slab.stop - slab.start, *job.sea.shape), dtype="float32")
    for block, values in zip(job.blocks, client.gather(frames), strict=True):
        whole[(slice(None), *block)] = values
    foreign[slab] = whole
    return whole.nbytes


@dataclass(frozen=True, slots=True)
class _SharedReferences:
    """Data of the whole map that every rank needs; on every worker."""

    rates: sw.Rates
    water: Water
    hump: sw.Floats


@dataclass(frozen=True, slots=True)
class _Rank:
    """A block of the map and its worker. Sent to its worker with every task."""

    block: sw.Window
    outer: sw.Window
    """Window of the block and its halo."""
    home: str
    """Address of its worker."""
    url: str
    steps: int

    def start(self, shared: _SharedReferences) -> sw.State:
        """Return the initial state; run on the worker, so it can be repeated if that is lost."""
        return sw.State.at_rest(shared.hump[self.block])

    def compute_and_write(
        self, pieces: list[tuple[sw.Window, sw.State]], shared: _SharedReferences, slab: slice
    ) -> tuple[sw.State, sw.Floats32]:
        """Advance by one slab, on the worker; return the new state of the block, and its frames.

        If a worker is lost, dask runs this again, from the start if necessary: the same bytes are
        written to the same objects.
        """
        import zarr_dask as zd

        state, frames = sw.recorded(
            sw.assembled(pieces, self.outer),
            self.outer,
            shared.rates,
            self.block,
            slab.stop - slab.start,
            self.steps,
        )
        np.copyto(frames, np.nan, where=~shared.water[self.block])
        zd.open_array(self.url, mode="r+")[(slab, *self.block)] = frames
        return state, frames


@dataclass(slots=True)
class _Ranks:
    """All ranks, seen from the driver. Their states stay on the workers."""

    ranks: list[_Rank]
    client: Any
    shared: Any
    """Future of `_SharedReferences`."""
    states: list[Any]
    """Futures of `sw.State`, in the order of `ranks`."""

    @classmethod
    def start(cls, job: Simulation, url: str, client: Any) -> _Ranks:
        homes = sorted(client.scheduler_info(n_workers=-1)["workers"])
        halo = FRAMES_PER_SLAB * job.steps
        ranks = [
            _Rank(
                block,
                sw.widened(block, halo, job.sea.shape),
                homes[number % len(homes)],
                url,
                job.steps,
            )
            for number, block in enumerate(job.blocks)
        ]
        rates = sw.Rates.of(job.sea, FRAME_SECONDS / job.steps)
        shared = client.scatter(
            _SharedReferences(rates, job.sea.water, job.sea.hump(**HUMP)),
            broadcast=True,
            hash=False,
        )
        all_ranks = cls(ranks, client, shared, [])
        all_ranks.states = [all_ranks._on(rank, _Rank.start, rank, shared) for rank in ranks]
        return all_ranks

    def advance(self, slab: slice) -> list[Any]:
        """Advance every rank by a slab; return futures of its frames."""
        done = [
            self._on(rank, _Rank.compute_and_write, rank, self._pieces(rank), self.shared, slab)
            for rank in self.ranks
        ]
        self.states = self._each(operator.itemgetter(0), done)
        return self._each(operator.itemgetter(1), done)

    def _pieces(self, rank: _Rank) -> list[tuple[sw.Window, Any]]:
        """Return the parts of one rank's surroundings from every rank, cut on their workers."""
        pieces = []
        for other, state in zip(self.ranks, self.states, strict=True):
            shared = sw.overlap(rank.outer, other.block)
            if shared is not None:
                piece = self._on(other, sw.State.cut, state, sw.inside(shared, other.block))
                pieces.append((shared, piece))
        return pieces

    def _each(self, function: Callable[[Any], Any], futures: list[Any]) -> list[Any]:
        return [
            self._on(rank, function, future)
            for rank, future in zip(self.ranks, futures, strict=True)
        ]

    def _on(self, rank: _Rank, function: Callable[..., Any], *arguments: Any) -> Any:
        # On another worker if that one is lost.
        return self.client.submit(
            function, *arguments, workers=[rank.home], allow_other_workers=True, pure=False
        )
