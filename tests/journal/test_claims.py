"""Claims of appends, and what a process says of them when it ends."""

import os

from zarr_dask.journal import claims
from zarr_dask.stores.patience import is_foreground


def test_a_process_that_ends_has_little_patience_with_a_store(monkeypatch):
    """A server that has gone must not hold it up for as long as a job waits."""
    seen = []

    class End:
        def acknowledge(self):
            seen.append(is_foreground())

    monkeypatch.setattr(claims, "_LEFT", {("store", "held"): (os.getpid(), End())})
    claims._acknowledge()
    assert seen == [True]
