"""Every shared combination: ours read by the peers, theirs by us, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.interop import ours
from tests.support.interop.cases import Case, data, expected, matrix
from tests.support.interop.check import check
from tests.support.interop.refusals import PEERS, Side, shared
from tests.support.interop.sample import of, with_every_feature
from tests.support.interop.seen import bits

pytestmark = pytest.mark.filterwarnings("ignore:.*two dimensions have one name")

MATRIX = matrix()


def _exchanges(side: Side) -> list[pytest.param]:
    cases = (
        pytest.param(peer, case, id=f"{peer}-{case.id}")
        for peer in PEERS
        for case in shared(MATRIX, peer, side)
    )
    return with_every_feature(cases, one_in=6)


@pytest.mark.parametrize(("peer", "case"), _exchanges("read"))
def test_peer_reads_ours(peer, case, place):
    ours.write(case, place, data(case))
    check(case, PEERS[peer].read(case, place))


@pytest.mark.parametrize(("peer", "case"), _exchanges("write"))
def test_we_read_the_peers(peer, case, place):
    PEERS[peer].write(case, place, data(case))
    check(case, ours.read(case, place), attributes=case.format in PEERS[peer].WRITES_ATTRIBUTES)


@pytest.mark.parametrize("side", ["read", "write"])
@pytest.mark.parametrize("peer", PEERS)
def test_the_matrix_is_large(peer, side):
    assert len({case.id for case in shared(MATRIX, peer, side)}) >= 600


@pytest.mark.parametrize("peer", PEERS)
@pytest.mark.parametrize("side", ["read", "write"])
def test_the_matrix_has_every_feature(peer, side):
    cases = shared(MATRIX, peer, side)
    stored = {(case.format, case.dtype.newbyteorder("=").name, case.endian) for case in cases}
    # 3 types of one byte, 11 of more in two byte orders, in two formats
    assert len(stored) >= 2 * (3 + 2 * 11)
    v3 = [case for case in cases if case.format == "v3"]
    assert {case.keys for case in v3} == {"default/", "default.", "v2.", "v2/"}
    assert {case.order is None for case in cases} == {True, False}
    assert {case.ndim for case in cases} == {0, 1, 2, 3, 4}
    assert any(0 in case.shape for case in cases)
    sharded = [case.shards for case in v3 if case.shards is not None]
    assert len({(s.location, s.checksum, s.nested is None, s.order is None) for s in sharded}) == 16


@pytest.mark.parametrize("side", ["read", "write"])
def test_every_run_has_every_feature_with_every_peer(side):
    params = _exchanges(side)
    run = [param for param in params if not param.marks]
    assert set().union(*map(of, run)) == set().union(*map(of, params))
    assert 400 < len(run) < len(params) / 4


def test_the_matrix_is_not_all_fill():
    """It would show nothing if what must be read were what is read where nothing is."""
    written = [case for case in MATRIX if case.region and 0 not in case.shape]
    assert len(written) > 0.9 * len([case for case in MATRIX if case.written != "nothing"])
    seen = [case for case in written if bits(expected(case)) != bits(_all_fill(case))]
    assert len(seen) > 0.95 * len(written)


def _all_fill(case: Case) -> np.ndarray:
    fill = 0 if case.fill_value is None else case.fill_value
    return np.full(case.shape, fill, case.dtype.newbyteorder("="))
