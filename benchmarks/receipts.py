"""What receipts cost: their share of the time of a writing task, by profile.

A task encodes and stores the objects of one block, sums up their bytes and appends its receipt to
the journal. What a profile says of the last two is compared with all of it; reading or computing
the block, which every real task does as well, is not counted at all. The blocks of 64 MiB are those
of the fields that are written in the other cases. Of small ones, whose tasks take a few
milliseconds, receipts are a larger part.
"""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np

import zarr_dask as zd
from benchmarks.fields import field
from benchmarks.measure import Case, Contender
from zarr_dask.jobs.write.target import ArrayTarget, WriteReceipts
from zarr_dask.journal import JobRecord, JournalLocation, new_journal
from zarr_dask.stores import LocalStore

__all__ = ["CASES"]

TASKS = {64: 20, 128: 20, 256: 4}
"""How many, by the length of a block's side."""
KEEPING = {("receipts.py", "__call__"), ("receipts.py", "of"), ("journal.py", "add")}
"""Functions whose time, with all that they call, is that of receipts: no one calls another."""


def _target(root: Path, name: str, side: int, **options: object) -> ArrayTarget:
    shape = (TASKS[side] * side, side, side)
    array = zd.create_array(root / name, shape=shape, dtype="f4", **options)
    job = JobRecord("write", name, "")
    journal = new_journal(JournalLocation(LocalStore(str(root / f"{name}.journal")), ""), job)
    journal.begin(job)
    return ArrayTarget(array, False, records=WriteReceipts(journal))


def _share(target: ArrayTarget, block: np.ndarray) -> float:
    """Per cent of the time that tasks take."""
    side = block.shape[0]
    profile = cProfile.Profile()
    for number in range(TASKS[side]):
        rows = slice(number * side, (number + 1) * side)
        region = (rows, *(slice(0, size) for size in block.shape[1:]))
        profile.enable()
        target.write(block, region)
        profile.disable()
    found = pstats.Stats(profile).stats.items()
    total = sum(own for _, (_, _, own, _, _) in found)
    kept = {
        (Path(path).name, name): whole
        for (path, _, name), (_, _, _, whole, _) in found
        if (Path(path).name, name) in KEEPING
    }
    if kept.keys() != KEEPING:
        raise LookupError(f"the profile has no {KEEPING - kept.keys()}: what is measured has moved")
    return 100 * sum(kept.values()) / total


@contextmanager
def _cost(root: Path, threads: int) -> Iterator[Case]:
    contenders = []
    for side, options, what in [
        (256, {"chunks": (64,) * 3, "shards": (256,) * 3}, "64 MiB, a shard of 64^3"),
        (256, {"chunks": (32,) * 3, "shards": (256,) * 3}, "64 MiB, a shard of 32^3"),
        (256, {"chunks": (64,) * 3}, "64 MiB, 64 objects"),
        (256, {"chunks": (256,) * 3}, "64 MiB, one object"),
        (256, {"chunks": (64,) * 3, "shards": (256,) * 3, "codecs": _zstd()}, "64 MiB, 64^3, zstd"),
        (256, {"chunks": (256,) * 3, "codecs": _zstd()}, "64 MiB, one object, zstd"),
        (128, {"chunks": (128,) * 3}, "8 MiB, one object"),
        (64, {"chunks": (64,) * 3}, "1 MiB, one object"),
    ]:
        target = _target(root, f"{len(contenders)}", side, **options)
        run = partial(_share, target, field(side))
        contenders.append(Contender(what, run, lambda share: 0 < share < 100, value=float))
    title = "receipts and checksums, of the time of writing tasks"
    yield Case(title, contenders, 5, unit="%", scale=1, reach="3 %")


def _zstd() -> list[dict[str, object]]:
    return [
        {"name": "bytes", "configuration": {"endian": "little"}},
        {"name": "zstd", "configuration": {"level": 1, "checksum": False}},
    ]


CASES = {"receipts": _cost}
"""Benchmarks by name."""
