"""Every benchmark by its name: the figures of the issues, and the layouts they are about."""

from __future__ import annotations

from benchmarks import (
    datasets,
    graphs,
    memory,
    ome,
    read_write,
    receipts,
    rechunk,
    rechunk_judged,
    small_reads,
    walk,
)
from benchmarks.measure import Factory

__all__ = ["CASES"]

CASES: dict[str, Factory] = {
    **read_write.CASES,
    **small_reads.CASES,
    **graphs.CASES,
    **walk.CASES,
    **memory.CASES,
    **receipts.CASES,
    **rechunk.CASES,
    **rechunk_judged.CASES,
    **ome.CASES,
    **datasets.CASES,
}
