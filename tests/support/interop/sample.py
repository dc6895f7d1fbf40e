"""Some cases for every run, and all of them for ``make test-all``."""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Iterable
from dataclasses import fields

import pytest

from tests.support.interop.cases import Case


def sampled(params: Iterable[pytest.param], one_in: int = 5) -> list[pytest.param]:
    """Mark as slow all but one in so many: always the same ones, spread over every family."""
    return [param if drawn(param, one_in) else slow(param) for param in params]


def with_every_feature(params: Iterable[pytest.param], one_in: int) -> list[pytest.param]:
    """The same, but every feature of the cases of a peer is left in one of them at least."""
    params = list(params)
    seen = {one for param in params if drawn(param, one_in) for one in of(param)}
    found = []
    for param in params:
        found.append(param if drawn(param, one_in) or not of(param) <= seen else slow(param))
        seen |= of(param)
    return found


def drawn(param: pytest.param, one_in: int) -> bool:
    return zlib.crc32(param.id.encode()) % one_in == 0


def slow(param: pytest.param) -> pytest.param:
    return pytest.param(*param.values, id=param.id, marks=[*param.marks, pytest.mark.slow])


def of(param: pytest.param) -> set[Hashable]:
    """The features of a case, each with the peer and the format."""
    peer, case = param.values
    return {(peer, case.format, *feature) for feature in features(case)}


def features(case: Case) -> set[tuple[str, Hashable]]:
    """The members of a case, but of its sizes only their number and whether one is zero."""
    others = {"id", "shape", "chunks", "shards", "attributes", "dtype", "dimension_names"}
    found = {(m.name, getattr(case, m.name)) for m in fields(case) if m.name not in others}
    found |= {("dtype", case.dtype.str), ("ndim", case.ndim), ("empty", 0 in case.shape)}
    found |= {("names", case.dimension_names is None), ("attributes", bool(case.attributes))}
    if (shards := case.shards) is not None:
        index = shards.location, shards.checksum
        found |= {("index", index), ("nested", shards.nested is not None)}
        found |= {("order of shards", shards.order), ("after", shards.after)}
    return found
