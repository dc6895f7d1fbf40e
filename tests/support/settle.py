"""Files old enough for their validator to be trusted."""

from __future__ import annotations

import time

from zarr_dask.stores.base import etag_of


def settled(store, key: str = "c/0/0") -> None:
    """Wait until a file is so old that another change of it would show."""
    until = time.monotonic() + 10
    while etag_of(store, key) is None:
        assert time.monotonic() < until
