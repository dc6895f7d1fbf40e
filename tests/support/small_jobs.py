"""Small jobs of each kind on local files, and what must be there before and after them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import dask.array as da
import numpy as np
import xarray as xr

import zarr_dask as zd
from tests.support.leftovers import left_in
from zarr_dask.errors import NodeNotFoundError

VALUES = np.arange(1, 97, dtype="i4").reshape(12, 8)
HALF = VALUES[:6]
Options = dict[str, bool] | None


def small(path: Path, values: np.ndarray, **options) -> None:
    zd.create_array(path, shape=values.shape, dtype="i4", chunks=(3, 8), **options)[...] = values


def write(place: Path, options: Options = None) -> None:
    blocks = da.from_array(VALUES, chunks=(6, 8), name="values")
    given = {"storage_options": options, "resume": True, "chunks": (3, 8)}
    zd.to_zarr(blocks, place / "a.zarr", **given)


def append(place: Path, options: Options = None) -> None:
    more = da.from_array(VALUES[6:], chunks=(6, 8), name="more")
    zd.to_zarr(more, place / "a.zarr", append_dim=0, resume=True, storage_options=options)


def rechunk(place: Path, options: Options = None) -> None:
    given = {"target_options": options, "resume": True, "chunks": (12, 4)}
    zd.rechunk(place / "source.zarr", place / "a.zarr", **given)


def copy(place: Path, options: Options = None) -> None:
    zd.copy(place / "source.zarr", place / "a.zarr", resume=True, target_options=options)


def ingest(place: Path, options: Options = None) -> None:
    files = [str(place / f"{number}.nc") for number in (0, 1)]
    given = {"target_options": options, "resume": True, "survey": False}
    zd.ingest(files, place / "a.zarr", concat="y", **given)


def image(place: Path, options: Options = None) -> None:
    blocks = da.from_array(VALUES.astype("u1"), chunks=(6, 8), name="pixels")
    given = {"storage_options": options, "resume": True, "chunks": (3, 8), "levels": 2}
    zd.ome.write(blocks, place / "a.zarr", axes="yx", **given)


def append_image(place: Path, options: Options = None) -> None:
    blocks = da.from_array(VALUES[6:].astype("u1"), chunks=(6, 8), name="pixels")
    zd.ome.append(place / "a.zarr", blocks, "y", resume=True, storage_options=options)


def swap(place: Path, options: Options = None) -> None:
    blocks = da.from_array(VALUES, chunks=(6, 8))
    given = {"storage_options": options, "resume": True, "mode": "swap"}
    zd.to_zarr(blocks, place / "a.zarr", **given)


def replace(place: Path, options: Options = None) -> None:
    blocks = da.from_array(VALUES, chunks=(6, 8), name="values")
    given = {"storage_options": options, "resume": True, "mode": "w", "chunks": (3, 8)}
    zd.to_zarr(blocks, place / "a.zarr", **given)


def dataset_of(values: np.ndarray) -> xr.Dataset:
    one = xr.Dataset({"v": (("y", "x"), values), "w": ("y", values[:, 0])})
    return one.chunk({"y": 6})


def dataset(place: Path, options: Options = None) -> None:
    given = {"storage_options": options, "resume": True, "chunks": {"y": 3}}
    zd.write_dataset(dataset_of(VALUES), place / "a.zarr", **given)


def append_dataset(place: Path, options: Options = None) -> None:
    given = {"storage_options": options, "resume": True, "append": "y"}
    zd.write_dataset(dataset_of(VALUES[6:]), place / "a.zarr", **given)


def swap_dataset(place: Path, options: Options = None) -> None:
    given = {"storage_options": options, "resume": True, "mode": "swap", "chunks": {"y": 3}}
    zd.write_dataset(dataset_of(VALUES), place / "a.zarr", **given)


def array_in(place: Path) -> np.ndarray:
    return zd.open_array(place / "a.zarr")[...]


def check_visible(place: Path) -> None:
    """Raise if the group has no document yet, which comes after those of its arrays."""
    if not (place / "a.zarr/zarr.json").exists():
        raise NodeNotFoundError(str(place), [])


def dataset_in(place: Path) -> np.ndarray:
    check_visible(place)
    found = {name: zd.open_array(place / "a.zarr" / name)[...] for name in "vw"}
    length = min(map(len, found.values()))  # one may have grown already
    np.testing.assert_array_equal(found["w"], VALUES[: len(found["w"]), 0])
    np.testing.assert_array_equal(found["v"], VALUES[: len(found["v"])])
    return found["v"][:length]


def ingested_in(place: Path) -> np.ndarray:
    check_visible(place)
    return zd.open_array(place / "a.zarr/v")[...]


def image_in(place: Path) -> np.ndarray:
    """Pixels; all levels are those of a fresh write."""
    check_visible(place)
    levels = [level.array[...] for level in zd.ome.open(place / "a.zarr").levels]
    fresh: dict[str, bytes] = {}
    zd.ome.write(levels[0], fresh, axes="yx", chunks=(3, 8), levels=2)
    for level, expected in zip(levels, zd.ome.open(fresh).levels, strict=True):
        np.testing.assert_array_equal(level, expected.array[...])
    return levels[0]


def files(place: Path) -> None:
    for number, values in enumerate((HALF, VALUES[6:])):
        xr.Dataset({"v": (("y", "x"), values)}).to_netcdf(place / f"{number}.nc")


def half_image(place: Path) -> None:
    zd.ome.write(HALF.astype("u1"), place / "a.zarr", axes="yx", chunks=(3, 8), levels=2)


def half_dataset(place: Path) -> None:
    zd.write_dataset(dataset_of(HALF), place / "a.zarr", chunks={"y": 3})


def half_ingested(place: Path) -> None:
    files(place)
    zd.ingest([str(place / "0.nc")], place / "a.zarr", concat="y", survey=False)


def migrate(place: Path, options: Options = None) -> None:
    zd.migrate(place / "a.zarr", format="v3", storage_options=options)


@dataclass(frozen=True)
class Job:
    run: Callable[..., None]
    """Takes a folder, and options of the store."""
    before: np.ndarray | None = None
    """What is at the target before; None if nothing is."""
    is_removed_first: bool = False
    """True if nothing is at the target for a while."""
    source: bool = False
    format: int = 3
    make: Callable[[Path], None] | None = None
    """Makes what is there before, if that is more than an array."""
    found: Callable[[Path], np.ndarray] = array_in

    def prepare(self, place: Path) -> None:
        place.mkdir()
        if self.source:
            small(place / "source.zarr", VALUES)
        if self.make is not None:
            self.make(place)
        elif self.before is not None:
            small(place / "a.zarr", self.before, format=self.format)

    def check_nothing_half_done(self, place: Path) -> None:
        try:
            found = self.found(place)
        except NodeNotFoundError:
            assert self.before is None or self.is_removed_first
            return
        old = self.before if self.before is not None else VALUES
        assert np.array_equal(found, VALUES) or np.array_equal(found, old)

    def is_visible(self, place: Path) -> bool:
        """True if a reader sees values that the job writes, or is about to."""
        if list(place.rglob("commit.json")):
            return True
        try:
            return np.array_equal(self.found(place), VALUES)
        except NodeNotFoundError:
            return False

    def check_values(self, place: Path) -> None:
        np.testing.assert_array_equal(self.found(place), VALUES)

    def check_done(self, place: Path) -> None:
        self.check_values(place)
        assert left_in(place) - {"0.nc", "1.nc", "source.zarr"} == {"a.zarr"}
        assert not list(place.rglob("*.lock"))


JOBS = {
    "write": Job(write),
    "append": Job(append, HALF),
    "rechunk": Job(rechunk, source=True),
    "copy": Job(copy, source=True),
    "migrate": Job(migrate, VALUES, format=2),
    "replace": Job(replace, HALF, is_removed_first=True),
    "swap": Job(swap, HALF),
    "dataset": Job(dataset, found=dataset_in),
    "append_dataset": Job(append_dataset, HALF, make=half_dataset, found=dataset_in),
    "swap_dataset": Job(swap_dataset, HALF, make=half_dataset, found=dataset_in),
    "ingest": Job(ingest, make=files, found=ingested_in),
    "append_files": Job(ingest, HALF, make=half_ingested, found=ingested_in),
    "image": Job(image, found=image_in),
    "append_image": Job(append_image, HALF, make=half_image, found=image_in),
}
