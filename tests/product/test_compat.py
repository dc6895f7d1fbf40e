"""docs/reference/compat.md says what is true: every cell of it is tried again."""

import os
from importlib.metadata import version

import pytest

from tools import compat

pytestmark = pytest.mark.slow  # .ci/run runs it
PAGE = compat.PAGE.read_text(encoding="utf-8") if compat.PAGE.exists() else ""
PEERS = (f"zarr-python {version('zarr')}", f"tensorstore {version('tensorstore')}")


@pytest.fixture(scope="module")
def trials():
    if not compat.ZARR2.exists() and not os.environ.get("CI"):
        pytest.skip("zarr-python 2.18 is not installed here (make test sets it up)")
    return compat.tried()


def test_the_page_is_what_the_registries_and_the_peers_say(trials):
    if not all(peer in PAGE for peer in PEERS):
        # with other versions of the peers only our own side can be compared
        assert _ours(compat.page(trials)) == _ours(PAGE), "run `make compat`"
        return
    assert compat.page(trials) == PAGE, "run `make compat` and look at what changed"


def _ours(page):
    """Which data types each codec takes, whoever agrees."""
    found, section = {}, ""
    for line in page.splitlines():
        if line.startswith("## "):
            section = line
        elif line.startswith("| `"):
            cells = line.replace("\\|", "¦").split("|")
            found.setdefault((section, cells[1]), set()).update(compat.members(cells[3]))
    return found


def test_every_peer_agrees_with_most_of_what_it_knows(trials):
    agreeing = {peer for trial in trials for peer in trial.peers}
    assert agreeing == {"zarr-python", "tensorstore", "zarr-python 2.18"}
    assert sum(not trial.refused for trial in trials) > 1500
    assert sum(bool(trial.peers) for trial in trials) > 900
