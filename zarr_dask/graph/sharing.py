"""Sharing credentials with the workers of the current client, apart from the graph.

distributed is not imported for it: if no other code has done so, there is no cluster.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["share_with_current_client"]


def share_with_current_client(value: Any) -> None:
    """Send the workers of the current client the credentials of a value that a graph will hold."""
    if "distributed" in sys.modules:
        from zarr_dask.graph.credentials_plugin import share_with_client

        share_with_client(value)
