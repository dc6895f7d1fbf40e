"""What a graph needs besides itself: credentials, which are no part of it.

distributed is not loaded for it: where nobody has, there is no cluster either.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["share_with_current_client"]


def share_with_current_client(value: Any) -> None:
    """Give the workers of the current client what they need for a value that a graph will hold."""
    if "distributed" in sys.modules:
        from zarr_dask.graph.credentials_plugin import share_with_client

        share_with_client(value)
