"""File systems without retries of their own.

s3fs, gcsfs and adlfs repeat requests up to six times, with waits that add up to half a minute,
before anybody hears of a failure. `zarr_dask.stores.retry` does that for all stores, by one policy
that users can set, and tells errors that may pass from those that will not.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

from zarr_dask.stores.backends.fsspec_s3 import is_s3

__all__ = ["leave_retries_to_us"]


def leave_retries_to_us(fs: Any) -> None:
    """Switch off the retries of a file system, as far as it has some that are known."""
    if is_s3(fs):
        fs.retries = 1
    once = getattr(getattr(type(fs), "_request", None), "__wrapped__", None)
    if once is not None and type(fs).__module__.startswith("gcsfs"):
        fs._request = MethodType(once, fs)  # noqa: SLF001
    for policy in _policies_of_azure(fs):
        policy.total_retries = 0


def _policies_of_azure(fs: Any) -> list[Any]:
    """Return the retry policies of adlfs's client, which all clients made by it share."""
    client = getattr(fs, "service_client", None)
    clients = client if isinstance(client, list) else [client]
    configs = [getattr(one, "_config", None) for one in clients]
    found = [getattr(config, "retry_policy", None) for config in configs]
    return [policy for policy in found if hasattr(policy, "total_retries")]
