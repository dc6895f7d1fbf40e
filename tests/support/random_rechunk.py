"""Random rechunkings, each the same for the same seed, judged against their own plans.

``python -m tests.support.random_rechunk 0 300`` runs the seeds of a range and prints what is wrong.
A case is one array, several, or a group, of any layouts, within a budget that is often the least
that suffices. `problems` says what differs: values, counted requests and decoded bytes, a peak
above the budget, a budget that was named as enough and is not.
"""

from __future__ import annotations

import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from random import Random
from typing import Any

import dask
import numpy as np

import zarr_dask as zd
from tests.support.settle import settled
from zarr_dask.errors import MemoryBudgetError

__all__ = ["problems"]

GZIP = {"name": "gzip", "configuration": {"level": 1}}
BLOSC = {
    "name": "blosc",
    "configuration": {
        "cname": "lz4",
        "clevel": 1,
        "shuffle": "noshuffle",
        "typesize": 1,
        "blocksize": 0,
    },
}
BIG = {"name": "bytes", "configuration": {"endian": "big"}}
CODECS: list[list[Any] | None] = [None, ["zstd"], [GZIP], [BLOSC], [BIG], [BIG, "zstd"], []]
WIDER = {"u1": ["u1", "i2", "f4", "f8"], "i2": ["i2", "i4", "f8"], "f4": ["f4", "f8"], "f8": ["f8"]}


@dataclass
class Case:
    """What one seed makes."""

    rng: Random
    has_zeros: bool = False
    """True if some stored objects are absent, or are left out of the target."""

    def length(self, most: int) -> int:
        """Return a length, often a divisor of something or close to the end."""
        rng = self.rng
        near = [most, max(most - 1, 1), most + rng.randint(1, 5), -(-most // rng.randint(1, 9))]
        return rng.choice([*near, rng.randint(1, most), rng.randint(1, most), min(most, 1)])

    def shape(self) -> tuple[int, ...]:
        rng = self.rng
        ndim = rng.choice([1, 1, 2, 2, 3, 3, 4])
        elements = rng.choice([600, 20_000, 250_000])
        shape = []
        for left in range(ndim, 0, -1):
            room = max(elements // max(prod(shape), 1), 1)
            typical = max(round(room ** (1 / left)), 1)
            shape.append(room if left == 1 else rng.randint(1, 2 * typical))
        rng.shuffle(shape)
        return tuple(max(n - rng.randint(0, n // 3), 1) for n in shape)

    def least(self, shape: tuple[int, ...], lengths: list[int]) -> list[int]:
        """Return longer chunks where there would be more than some thousand."""
        while prod(-(-n // c) for n, c in zip(shape, lengths, strict=True)) > 200:
            axis = max(range(len(shape)), key=lambda d: shape[d] / lengths[d])
            lengths[axis] *= 3
        return lengths

    def grid(self, shape: tuple[int, ...]) -> dict[str, Any]:
        rng = self.rng
        chunks = self.least(shape, [self.length(n) for n in shape])
        kind = rng.choice(["chunks", "chunks", "shards", "uneven"])
        if kind == "shards":
            factors = [
                rng.choice([1, 2, 3, -(-n // c)]) for n, c in zip(shape, chunks, strict=True)
            ]
            shards = tuple(c * f for c, f in zip(chunks, factors, strict=True))
            return {"chunks": tuple(chunks), "shards": shards}
        if kind == "uneven":
            return {"chunks": tuple(self.edges(n) for n in shape)}
        return {"chunks": tuple(chunks)}

    def edges(self, extent: int) -> int | tuple[int, ...]:
        if self.rng.random() < 0.4:
            return max(self.length(extent), -(-extent // 5))
        borders = {self.rng.randint(1, extent) for _ in range(self.rng.randint(0, 5))}
        ends = sorted({*borders, extent})
        return tuple(b - a for a, b in zip([0, *ends], ends, strict=False))

    def region(self, shape: tuple[int, ...]) -> tuple[slice, ...] | None:
        if self.rng.random() < 0.7:
            return None
        pairs = [sorted(self.rng.sample(range(n + 1), 2)) for n in shape]
        return tuple(slice(*pair) for pair in pairs)

    def source(self, store: Any, path: str = "", shape: tuple[int, ...] | None = None) -> zd.Array:
        rng = self.rng
        shape = self.shape() if shape is None else shape
        dtype = rng.choice(list(WIDER))
        options = {**self.grid(shape), "codecs": rng.choice(CODECS)}
        if "shards" not in options and rng.random() < 0.2:
            options["order"] = "F"
        if rng.random() < 0.15 and options.keys() <= {"chunks", "codecs"}:
            even = all(isinstance(n, int) for n in options["chunks"])
            options = {"chunks": options["chunks"], "format": "v2"} if even else options
        if rng.random() < 0.5:
            options["dimension_names"] = tuple("abcd"[: len(shape)])
        if options.get("format") == "v2" and path:
            del options["format"]
        array = zd.create_array(store, path=path, shape=shape, dtype=dtype, **options)
        values = np.arange(prod(shape)) % 251 + 1
        if rng.random() < 0.3:  # some objects are absent
            self.has_zeros = True
            values[rng.randint(0, values.size) :] = 0
            values[: rng.randint(0, values.size)] = 0
        array[...] = values.astype(dtype).reshape(shape)
        for key in array.store.list():
            settled(array.store, key)  # else what is absent is looked for again
        return array

    def target(self, source: zd.Array) -> dict[str, Any]:
        rng = self.rng
        region = self.region(source.shape)
        shape = source.shape
        if region is not None:
            shape = tuple(s.stop - s.start for s in region)
        options: dict[str, Any] = {"region": region, **self.grid(shape)}
        if rng.random() < 0.4:
            options["codecs"] = rng.choice(CODECS)
        if rng.random() < 0.4:
            options["dtype"] = rng.choice(WIDER[source.dtype.str[1:]])
        return {name: value for name, value in options.items() if value is not None}

    def budget(self, plan: Any) -> int:
        """Return a budget: the least that is named as enough, or more."""
        try:
            plan(max_mem=1)
        except MemoryBudgetError as error:
            least = error.needed
        else:
            raise AssertionError("a byte of memory is said to be enough")
        if least is None:
            raise AssertionError("no budget is named")
        return int(least * self.rng.choice([1, 1, 1, 1.02, 1.3, 2, 8]))


def problems(seed: int) -> Iterator[str]:
    """Yield what is wrong with the rechunking of a seed."""
    case = Case(Random(seed))
    kind = case.rng.choice(["one", "one", "one", "several", "group"])
    threads = case.rng.choice([1, 2])
    with (
        tempfile.TemporaryDirectory(prefix="random-rechunk-") as folder,
        dask.config.set(scheduler="threads", num_workers=threads),
    ):
        yield from {"one": _one, "several": _several, "group": _group}[kind](case, Path(folder))


def _formats(source: zd.Array, options: dict[str, Any]) -> dict[str, Any]:
    needs = "shards" in options or any(isinstance(n, tuple) for n in options["chunks"])
    return {**options, "format": "v3"} if needs or "codecs" in options else options


def _one(case: Case, folder: Path) -> Iterator[str]:
    source = case.source(folder / "a")
    options = _formats(source, case.target(source))
    verify = case.rng.random() < 0.4

    def plan(max_mem: int) -> Any:
        return zd.plan_rechunk(source, folder / "b", max_mem=max_mem, **options)

    made = plan(case.budget(plan))
    yield from _judged(case, plan, made, f"{source.meta.grids} {options}", verify=verify)
    wanted = source[options.get("region", ...)]
    if not np.array_equal(zd.open_array(folder / "b")[...], wanted):
        yield "values differ"


def _several(case: Case, folder: Path) -> Iterator[str]:
    sources = [case.source(folder / f"a{n}") for n in range(case.rng.randint(2, 4))]
    each = [case.target(source) for source in sources]
    names = [str(folder / f"b{n}") for n in range(len(sources))]
    lists = {
        name: [one.get(name) for one in each] for name in ("chunks", "shards", "region", "dtype")
    }

    def plan(max_mem: int) -> Any:
        return zd.plan_rechunk(sources, names, max_mem=max_mem, format="v3", **lists)

    made = plan(case.budget(plan))
    yield from _judged(case, plan, made, str(lists), verify=case.rng.random() < 0.3)
    for source, one, name in zip(sources, each, names, strict=True):
        if not np.array_equal(zd.open_array(name)[...], source[one.get("region", ...)]):
            yield f"values of {name} differ"


def _group(case: Case, folder: Path) -> Iterator[str]:
    rng = case.rng
    zd.create_group(folder / "a", format="v3")
    shape = case.shape()
    sources = [case.source(folder / "a", f"x{n}", shape) for n in range(rng.randint(2, 4))]
    asked = {name for source in sources for name in source.dimension_names or ()}
    lengths = {
        name: max(case.length(n), -(-n // 5))
        for name, n in zip("abcd", shape, strict=False)
        if name in asked
    }
    options: dict[str, Any] = {"chunks": lengths} if lengths else {"codecs": ["zstd"]}

    def plan(max_mem: int) -> Any:
        return zd.plan_copy(folder / "a", folder / "b", max_mem=max_mem, **options)

    made = plan(case.budget(plan))
    yield from _judged(
        case,
        plan,
        made,
        str([s.meta.grids for s in sources]) + str(options),
        verify=rng.random() < 0.3,
    )
    for source in sources:
        new = zd.open_array(folder / "b", source.path)
        if not np.array_equal(new[...], source[...]):
            yield f"values of {source.path} differ"


def _judged(
    case: Case, replan: Callable[[int], Any], plan: Any, what: str, *, verify: bool
) -> Iterator[str]:
    if plan.peak > plan.max_mem:
        yield f"peak {plan.peak} above max_mem {plan.max_mem}: {what}"
    try:
        report = plan.run(verify=verify)
    except MemoryBudgetError as error:
        if not verify or error.needed is None or error.needed <= plan.max_mem:
            raise
        report = replan(error.needed).run(verify=True)
    for number, stage in enumerate(report.stages, 1):
        at_most = {
            "decoded": stage.absent > 0,
            "written": case.has_zeros,
            "reads": stage.absent > 0 or stage.requests_at_most,
            "writes": False,
        }
        for name, fewer in at_most.items():
            predicted, actual = getattr(stage.predicted, name), getattr(stage.actual, name)
            if actual > predicted or (actual < predicted and not fewer):
                yield f"stage {number} {name}: {predicted} predicted, {actual} done: {what}"


def main(first: int, last: int) -> int:
    """Run seeds, print what is wrong, return the number of seeds with problems."""
    wrong = 0
    for seed in range(first, last):
        try:
            found = list(problems(seed))
        except Exception as error:  # noqa: BLE001  (another seed may show something else)
            found = [repr(error)[:600]]
            traceback.print_exc(limit=-3)
        wrong += bool(found)
        for line in found:
            print(seed, line, flush=True)
    print(f"{wrong} of {last - first} seeds with problems")
    return wrong


if __name__ == "__main__":
    sys.exit(bool(main(*map(int, sys.argv[1:]))))
