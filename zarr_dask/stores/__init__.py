"""Stores: bytes by key, and options as wrappers around them.

=============  ==================================================================================
the interface  `base`, `capabilities`, `wrapper`, `listing`, `lines`, `key_names`, `registry`
opening        `open`, `locations`, `real_location`, `option_checks`, `option_mapping`, `config`,
               `archives`, `sessions`
secrets        `secrets`, `url_secrets`, `credential_functions`, `aws_files`, `client_renewal`
requests       `retry`, `patience`, `error_mapping`, `conditional_get`, `index_prefetch`,
               `streaming_put`, `server_copy`
one writer     `compare_and_swap`, `fenced_deletes`, `put_tags`, `process_identity`,
               `unfinished_uploads`
local files    `file_backed`, `file_lock`, `no_follow`, `mounts`
=============  ==================================================================================
"""

from typing import TYPE_CHECKING

from zarr_dask._util.lazy_names import lazy_names

if TYPE_CHECKING:
    from zarr_dask.stores.backends.local import LocalStore
    from zarr_dask.stores.backends.memory import MemoryStore
    from zarr_dask.stores.backends.zip import ZipStore
    from zarr_dask.stores.backends.zip_writer import ZipWriter
    from zarr_dask.stores.base import WHOLE, Buffer, Listing, Range, Store
    from zarr_dask.stores.open import Location, open_store
    from zarr_dask.stores.retry import Retrying, RetryPolicy
    from zarr_dask.stores.wrappers.base import HookStore, ReadOnly, Recording
    from zarr_dask.stores.wrappers.cache import Cache
    from zarr_dask.stores.wrappers.confirmed import Confirmed

__all__ = [
    "WHOLE",
    "Buffer",
    "Cache",
    "Confirmed",
    "HookStore",
    "Listing",
    "LocalStore",
    "Location",
    "MemoryStore",
    "Range",
    "ReadOnly",
    "Recording",
    "RetryPolicy",
    "Retrying",
    "Store",
    "ZipStore",
    "ZipWriter",
    "open_store",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "backends.local": ("LocalStore",),
        "backends.memory": ("MemoryStore",),
        "backends.zip": ("ZipStore",),
        "backends.zip_writer": ("ZipWriter",),
        "base": (
            "WHOLE",
            "Buffer",
            "Listing",
            "Range",
            "Store",
        ),
        "open": (
            "Location",
            "open_store",
        ),
        "retry": (
            "Retrying",
            "RetryPolicy",
        ),
        "wrappers.base": (
            "HookStore",
            "ReadOnly",
            "Recording",
        ),
        "wrappers.cache": ("Cache",),
        "wrappers.confirmed": ("Confirmed",),
    },
    {
        **dict.fromkeys(
            ("FSStore", "FsspecStore", "ObjectStore", "StorePath"),
            "A URL is a store, with storage_options=; filesystems of fsspec and stores of obstore "
            "and zarr-python are taken as they are.",
        ),
        "LoggingStore": "zarr_dask.stores.Recording(store) records requests.",
        "ManagedMemoryStore": "zarr_dask.stores.MemoryStore is a store in memory, as is a dict.",
        "StoreLike": "zarr_dask.stores.Location is the type of what is taken for a store.",
        "WrapperStore": "zarr_dask.stores.HookStore wraps a store.",
    },
)
