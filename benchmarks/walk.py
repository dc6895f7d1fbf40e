"""Opening a group of a thousand arrays and looking at each of them."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import zarr

import zarr_dask as zd
from benchmarks.counts import Counting
from benchmarks.measure import Case, Contender
from zarr_dask.stores import LocalStore

__all__ = ["CASES"]

ARRAYS = 1000


@contextmanager
def _case(consolidated: bool, format: str, root: Path, threads: int) -> Iterator[Case]:
    path = root / "group.zarr"
    group = zd.create_group(path, format=format)
    for number in range(ARRAYS):
        group.create_array(
            f"v{number:04d}",
            shape=(365, 90, 180),
            dtype="f4",
            chunks=(31, 90, 180),
            attributes={"units": "K", "long_name": f"variable {number}"},
            dimension_names=("time", "lat", "lon"),
        )
    if consolidated:
        zd.consolidate(path)

    def floor() -> dict[str, tuple[int, ...]]:
        """Documents read and parsed, nothing validated."""
        if consolidated:
            key = ".zmetadata" if format == "v2" else "zarr.json"
            found = json.loads((path / key).read_bytes())
            if format == "v2":
                entries = found["metadata"].items()
                found = {k.split("/")[0]: d for k, d in entries if k.endswith("/.zarray")}
            else:
                found = found["consolidated_metadata"]["metadata"]
        else:
            found = {
                entry.name: json.loads((entry / "zarr.json").read_bytes())
                for entry in path.iterdir()
                if entry.is_dir()
            }
        return {name: tuple(document["shape"]) for name, document in found.items()}

    def own() -> dict[str, tuple[int, ...]]:
        return {name: array.shape for name, array in zd.open_group(path).arrays()}

    def peer() -> dict[str, tuple[int, ...]]:
        opened = zarr.open_group(path, mode="r", use_consolidated=consolidated)
        return {name: array.shape for name, array in opened.arrays()}

    def check(found: object) -> bool:
        return len(found) == ARRAYS and set(found.values()) == {(365, 90, 180)}

    def counted() -> dict[str, int]:
        store = Counting(LocalStore(str(path)))
        list(zd.open_group(store).arrays())
        return store.counts

    contenders = [
        Contender("floor", floor, check, _collect),
        Contender("zarr_dask", own, check, _collect, counted),
        Contender("zarr-python", peer, check, _collect),
    ]
    how = "consolidated" if consolidated else "not consolidated"
    title = f"open and walk a {format} group of {ARRAYS} arrays, {how}, every document validated"
    reach = "25 ms" if consolidated else "60 ms"
    yield Case(title, contenders, 20, single=True, reach=reach)


def _collect() -> None:
    """Let nobody pay for what another one has left to the collector: a thousand nodes in cycles."""
    gc.collect()


CASES: dict[str, Callable] = {
    "walk-consolidated": partial(_case, True, "v3"),
    "walk-v2-consolidated": partial(_case, True, "v2"),
    "walk": partial(_case, False, "v3"),
}
