"""The demo: a simulation and another library write in parallel, and a rechunk reads the result.

1. `simulation`: ranks on a process cluster compute a wave over real topography (`shallow_water`)
   and write their blocks of each time slab in parallel into one sharded array.
2. The driver gathers the same frames through Dask and lets zarr-python write them time-major.
3. ``zarr-dask rechunk``, started as a user would, rechunks that foreign store to time series.
4. Every value is compared, bit by bit, and `plots` draws the wave and the plan.

``make demo`` runs ``python -m examples.tsunami``, which calls `run` only.
"""

from __future__ import annotations

import importlib.util
import math
import shlex
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from examples.tsunami.simulation import FOREIGN_FRAMES, FRAME_SECONDS, RANKS, Simulation, simulate
from zarr_dask.errors import MissingDependencyError, NodeExistsError, ZarrDaskError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from matplotlib.figure import Figure
    from rich.console import Console

    from examples.tsunami.plots import Gauge

__all__ = ["Report", "run"]

POINT_CHUNK = 32
COMPARED_AT_ONCE = 2**27
"""Maximum bytes of one array compared at once, unless one row of chunks is larger."""

GAUGES = {
    "Bamfield": (48.80, -125.17),
    "Port Renfrew": (48.53, -124.45),
    "Victoria": (48.40, -123.37),
    "San Juan Islands": (48.62, -123.20),
    "Bellingham": (48.70, -122.58),
    "Point Atkinson": (49.32, -123.27),
}
SNAPSHOTS = (0.05, 0.19, 0.42, 0.93)
"""Fractions of the run at which maps are drawn."""

SIMULATION, FOREIGN, POINTS = "simulation.zarr", "foreign.zarr", "points.zarr"
WAVE_PICTURE, PLAN_PICTURE = "wave.png", "plan.png"
MARKER = ".zarr-dask-demo"


@dataclass(frozen=True, slots=True)
class Report:
    """The results of one run of the demo."""

    output: Path
    values: int
    """Number of values compared in each of the two copies, all equal."""
    seconds: dict[str, float]
    """Seconds of each step, in order."""


def run(
    output: str | os.PathLike[str] = "demo-output",
    *,
    frames: int = 768,
    shape: tuple[int, int] = (384, 512),
    workers: int = 2,
    max_mem: int | str = "256MB",
    console: Console | None = None,
) -> Report:
    """Run the demo and write its arrays and pictures to a folder.

    Parameters
    ----------
    output
        The folder. The folder of an earlier run is reused; any other one must be empty.
    frames, shape
        Size of the simulation: frames in time, (rows, columns) of the map.
    workers
        Number of processes of the local cluster.
    max_mem
        Memory limit of one worker during the rechunk.
    console
        Console to print to; by default the terminal.

    Returns
    -------
    Report
        The number of values compared, and the time of each step.

    Raises
    ------
    MissingDependencyError
        Matplotlib or zarr-python is not installed.
    NodeExistsError
        The folder contains files that this demo has not made.
    ZarrDaskError
        The rechunk failed, or a value differs.
    """
    _require("matplotlib", "zarr")
    from zarr_dask.jobs.engine.connect import connect

    say = _Narrator(_console(console))
    folder = _prepared(Path(output))
    job = Simulation.of_topobathy(frames, shape)
    say.line(f"Tsunami: three copies of a field of {_size(job.nbytes)} in {folder}")

    say.title("1  A wave, computed and written in parallel")
    say.describe(job, workers)
    with connect(workers=workers) as client:
        with say.timed("simulation"), say.progress("simulating and writing", job.nbytes) as advance:
            simulate(job, folder / SIMULATION, folder / FOREIGN, client, advance)
        say.stored(folder / SIMULATION, folder / FOREIGN)

        say.title("2  The plan for the foreign store")
        _save(_plan_figure(folder, max_mem, client), folder / PLAN_PICTURE)
        say.line(f"   drawn in {folder / PLAN_PICTURE}")

    say.title("3  From time-major to time series, as a user would")
    arguments = _rechunk_arguments(folder, max_mem, workers)
    say.command("zarr-dask", *arguments)
    with say.timed("rechunk"):
        _command_line(arguments)
    say.stored(folder / POINTS)

    say.title("4  Every value, bit by bit")
    with say.timed("comparison"):
        values = _compare(job, folder)
    say.line(
        f"   equal: all {values:,} values of {POINTS}, and as many of {SIMULATION},\n"
        f"   are those that zarr-python reads from {FOREIGN}",
        "bold green",
    )

    say.title("5  Pictures")
    with say.timed("pictures"):
        _save(_wave_figure(job, folder), folder / WAVE_PICTURE)
    say.line(f"   {folder / WAVE_PICTURE}\n   {folder / PLAN_PICTURE}")
    say.farewell(folder)
    return Report(folder, values, say.seconds)


def _require(*packages: str) -> None:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingDependencyError(
            f"the demo needs {' and '.join(missing)}, not installed here: "
            "pip install 'zarr-dask[demo]'"
        )


def _prepared(folder: Path) -> Path:
    """Create the folder, or delete only the files of an earlier run in it."""
    if folder.exists() and not folder.is_dir():
        raise NodeExistsError(f"{folder} is not a folder: give the demo another one")
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / MARKER).exists() and any(folder.iterdir()):
        raise NodeExistsError(
            f"{folder} holds files that this demo has not made (it has no {MARKER}), and they "
            "could be overwritten: empty the folder or give the demo another one"
        )
    (folder / MARKER).write_text("made by: python -m examples.tsunami\n")
    for name in (SIMULATION, FOREIGN, POINTS):
        if (folder / name).exists():
            shutil.rmtree(folder / name)
    for name in (WAVE_PICTURE, PLAN_PICTURE):
        (folder / name).unlink(missing_ok=True)
    return folder


# --- the rechunk ----------------------------------------------------------------------------------


def _point_chunks() -> dict[str, int]:
    return {"time": -1, "lat": POINT_CHUNK, "lon": POINT_CHUNK}


def _plan_figure(folder: Path, max_mem: int | str, client: Any) -> Figure:
    """Draw the plan that the command will make, on a cluster of the same size."""
    import zarr_dask as zd

    plan = zd.plan_rechunk(
        folder / FOREIGN,
        folder / POINTS,
        chunks=_point_chunks(),
        max_mem=max_mem,
        client=client,
    )
    figure: Figure = plan.plot()
    return figure


def _rechunk_arguments(folder: Path, max_mem: int | str, workers: int) -> list[str]:
    chunks = ",".join(f"{name}={size}" for name, size in _point_chunks().items())
    return [
        "rechunk",
        str(folder / FOREIGN),
        str(folder / POINTS),
        "--chunks",
        chunks,
        "--max-mem",
        str(max_mem),
        "--workers",
        str(workers),
    ]


def _command_line(arguments: list[str]) -> None:
    """Run ``zarr-dask`` of this environment, even if its script is not on PATH."""
    program = "import sys; sys.argv[0] = 'zarr-dask'; from zarr_dask.cli import main; main()"
    sys.stdout.flush()
    done = subprocess.run([sys.executable, "-c", program, *arguments], check=False)
    if done.returncode:
        raise ZarrDaskError(
            f"zarr-dask {shlex.join(arguments)} failed with exit code {done.returncode}; "
            "its own message is above"
        )


# --- the comparison -------------------------------------------------------------------------------


def _compare(job: Simulation, folder: Path) -> int:
    """Compare both arrays with the foreign store read by zarr-python; return the number of values.

    Bands of rows with all times are compared, because the time series are stored like that. Their
    size bounds the memory.
    """
    import zarr

    import zarr_dask as zd

    foreign = zarr.open_array(folder / FOREIGN, mode="r")
    copies = {name: zd.open_array(folder / name) for name in (POINTS, SIMULATION)}
    compared = 0
    for rows in _bands(job):
        expected = np.asarray(foreign[:, rows])
        for name, copy in copies.items():
            _must_equal(copy[:, rows], expected, f"{folder / name}, rows {rows.start}:{rows.stop}")
        compared += expected.size
    return compared


def _bands(job: Simulation) -> list[slice]:
    row_bytes = job.nbytes // job.sea.shape[0]
    unit = math.lcm(POINT_CHUNK, job.chunks[1])
    step = max(unit, COMPARED_AT_ONCE // row_bytes // unit * unit)
    return [slice(y, min(y + step, job.sea.shape[0])) for y in range(0, job.sea.shape[0], step)]


def _must_equal(found: Any, expected: Any, where: str) -> None:
    """Compare bits, so that the NaN of land counts as a value like any other."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        raise ZarrDaskError(
            f"{where}: got {found.dtype} of shape {found.shape}, "
            f"expected {expected.dtype} of shape {expected.shape}"
        )
    different = int(np.count_nonzero(found.view("uint32") != expected.view("uint32")))
    if different:
        raise ZarrDaskError(
            f"{where}: {different:,} of {expected.size:,} values differ from what zarr-python "
            f"reads in {FOREIGN}"
        )


# --- the pictures ---------------------------------------------------------------------------------


def _wave_figure(job: Simulation, folder: Path) -> Figure:
    import zarr_dask as zd
    from examples.tsunami import plots

    simulation = zd.open_array(folder / SIMULATION)
    chosen = [min(int(part * job.frames), job.frames - 1) for part in SNAPSHOTS]
    snapshots = [(float(job.seconds[t]), simulation[t]) for t in chosen]
    return plots.wave_figure(job.sea, job.seconds, snapshots, _gauges(job, folder))


def _gauges(job: Simulation, folder: Path) -> list[Gauge]:
    import zarr_dask as zd
    from examples.tsunami import plots

    points = zd.open_array(folder / POINTS)
    gauges = []
    for name, (latitude, longitude) in GAUGES.items():
        row, column = job.sea.nearest(latitude, longitude)
        where = float(job.sea.latitude[row]), float(job.sea.longitude[column])
        gauges.append(plots.Gauge(name, *where, points[:, row, column]))
    return gauges


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=110)


# --- printing -------------------------------------------------------------------------------------


def _console(given: Console | None) -> Console:
    from rich.console import Console

    return given or Console()


def _size(nbytes: float) -> str:
    for unit in ("B", "kB", "MB"):
        if nbytes < 1000:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.3g} GB"


def _bytes_in(folder: Path) -> tuple[int, int]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return len(files), sum(path.stat().st_size for path in files)


class _Narrator:
    """Prints each step and records its duration."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.seconds: dict[str, float] = {}
        self._started = time.perf_counter()

    def line(self, text: str, style: str | None = None) -> None:
        # Paths may contain rich markup.
        self.console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    def title(self, text: str) -> None:
        self.line(f"\n{text}", "bold cyan")

    def command(self, *words: str) -> None:
        self.line(f"   $ {shlex.join(words)}", "bold")

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[step] = time.perf_counter() - started
        self.line(f"   {step}: {self.seconds[step]:.1f} s")

    @contextmanager
    def progress(self, what: str, nbytes: int) -> Iterator[Any]:
        """Show a progress bar in bytes; yield the function that advances it."""
        from rich import progress

        columns = (
            progress.TextColumn("   {task.description}"),
            progress.BarColumn(),
            progress.DownloadColumn(),
            progress.TransferSpeedColumn(),
            progress.TimeRemainingColumn(),
        )
        with progress.Progress(*columns, console=self.console) as bar:
            task = bar.add_task(what, total=nbytes)
            yield lambda done: bar.update(task, advance=done)

    def describe(self, job: Simulation, workers: int) -> None:
        slab, rows, columns = job.shards
        frames, ny, nx = job.shape
        minutes = job.seconds[-1] / 60
        self.line(
            f"   {ny} x {nx} cells over the Salish Sea, {frames * job.steps} steps of "
            f"{FRAME_SECONDS / job.steps:.3g} s ({minutes:.0f} min), {frames} frames kept\n"
            f"   {math.prod(RANKS)} ranks on {workers} processes write {SIMULATION}: "
            f"shards of {slab} x {rows} x {columns}, each written once, by the rank that owns it\n"
            f"   zarr-python writes the same frames into {FOREIGN}: "
            f"chunks of {FOREIGN_FRAMES} x {ny} x {nx}"
        )

    def stored(self, *arrays: Path) -> None:
        for path in arrays:
            files, nbytes = _bytes_in(path)
            self.line(f"   {path}: {_size(nbytes)} in {files} files")

    def farewell(self, folder: Path) -> None:
        self.line(f"   everything: {time.perf_counter() - self._started:.0f} s")
        self.title("Try next")
        self.command("zarr-dask", "info", str(folder / POINTS))
        self.command("zarr-dask", "info", str(folder / SIMULATION))
        self.command(
            "zarr-dask", "plan", str(folder / SIMULATION), str(folder / "other.zarr"),
            "--chunks", "time=-1,lat=16,lon=16", "--max-mem", "100MB",
        )  # fmt: skip
